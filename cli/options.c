/*
 * options.c - parses command-line options strictly and prints help.
 *
 * An unknown option is an error with a suggestion: similar names, the replacement of a removed
 * recipe key, or an explanation for a flag of Miles. Help goes to stdout or to the sink of
 * invar_help_send. Not thread-safe: the sink is a static variable.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/console/spelling.h"
#include "base/process/process.h"
#include "cli/command.h"
#include "cli/safe_text.h"

#include "base/invar_banned.h"

static const invar_option *find_option(const invar_option *options, const char *name, size_t length)
{
    for (; options->name; options++)
        if (strlen(options->name) == length && strncmp(options->name, name, length) == 0)
            return options;
    return NULL;
}

static invar_status set_real(const invar_option *option, const char *text)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0')
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: '%s' is not a number", option->name, text);
    // the negated comparison rejects NaN
    if (!(value >= (double)option->low && value <= (double)option->high))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: %s; expected %" PRId64 " to %" PRId64,
                          option->name, text, option->low, option->high);
    *(double *)option->value = value;
    return INVAR_OK;
}

static invar_status set_int(const invar_option *option, const char *text)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || (errno != 0 && errno != ERANGE))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: '%s' is not a whole number", option->name,
                          text);
    if (errno == ERANGE || value < option->low || value > option->high)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: %s; expected %" PRId64 " to %" PRId64,
                          option->name, text, option->low, option->high);
    *(int64_t *)option->value = value;
    return INVAR_OK;
}

static invar_status set_word(const invar_option *option, const char *text)
{
    invar_option_choice *word = option->value;
    const int value = invar_choices_find(word->choices, text, strlen(text));
    char words[INVAR_CHOICES_TEXT_SIZE];

    if (value < 0) {
        invar_choices_text(words, sizeof words, word->choices, ", ", " and ");
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s %.40s: there are %s", option->name, text,
                          words);
    }
    word->value = value;
    return INVAR_OK;
}

/*
 * Returns true for the names that commands give their output file. Each of them is suggested for
 * the others.
 */
static bool is_output(const char *name, size_t length)
{
    static const char *const names[] = {"out", "output", "into", "to"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0)
            return true;
    return false;
}

static void offer_output(invar_spelling *spelling, const invar_option *options)
{
    char known[INVAR_SPELLING_SIZE];

    for (; options->name; options++)
        if (is_output(options->name, strlen(options->name))) {
            (void)snprintf(known, sizeof known, "--%s", options->name);
            invar_spelling_init(spelling, known, strlen(known));
            invar_spelling_offer(spelling, known);
        }
}

/*
 * Fails with "unknown option '--sede 7' (did you mean '--seed'?); ...". The name in `word` has
 * `length` bytes.
 */
static invar_status fail_unknown_option(const invar_option *options, const char *word,
                                        size_t length)
{
    const invar_option *verb = options;
    const invar_option_names *others;
    const char *instead;
    char known[INVAR_SPELLING_SIZE];
    invar_spelling spelling;

    invar_spelling_init(&spelling, word, length + 2);
    for (; options->name; options++) {
        (void)snprintf(known, sizeof known, "--%s", options->name);
        invar_spelling_offer(&spelling, known);
    }
    others = options->value;
    instead = others ? others->replacement(word + 2, length) : NULL;
    if (instead)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "unknown option '%s' (gone: use %s)", word, instead);
    instead = others ? others->explain_foreign(word + 2, length) : NULL;
    if (instead && instead[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%.*s, a flag of Miles, does not exist here: %s",
                          (int)length, word + 2, instead);
    for (int i = 0; others && others->name_at(i); i++) {
        (void)snprintf(known, sizeof known, "--%s", others->name_at(i));
        invar_spelling_offer(&spelling, known);
    }
    if (!spelling.found[0] && is_output(word + 2, length))
        offer_output(&spelling, verb);
    return INVAR_FAIL(INVAR_E_INVALID, 0, "unknown option '%s'%s; --help lists them", word,
                      invar_spelling_hint(&spelling));
}

bool invar_option_takes_no_value(const invar_option *option, const char *next)
{
    return option->type == INVAR_OPTION_FLAG ||
           (option->type == INVAR_OPTION_OPTIONAL_INT &&
            (!next || !next[0] || next[strspn(next, "0123456789")] != '\0'));
}

/* Parses the option at argv[*at] and advances *at to its last word. */
static invar_status set_option(int *at, const invar_option *options, int argc, char **argv)
{
    const char *name = argv[*at] + 2, *equals = strchr(name, '='), *value;
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const invar_option *option = find_option(options, name, length);

    if (!option)
        return fail_unknown_option(options, argv[*at], length);
    if (option->type == INVAR_OPTION_FLAG) {
        if (equals)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s takes no value", option->name);
        *(bool *)option->value = true;
        return INVAR_OK;
    }
    if (!equals && invar_option_takes_no_value(option, *at + 1 < argc ? argv[*at + 1] : NULL)) {
        *(int64_t *)option->value = option->low;
        return INVAR_OK;
    }
    value = equals ? equals + 1 : *at + 1 < argc ? argv[++*at] : NULL;
    if (!value)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s needs a value", option->name);
    if (option->type == INVAR_OPTION_INT || option->type == INVAR_OPTION_OPTIONAL_INT)
        return set_int(option, value);
    if (option->type == INVAR_OPTION_REAL)
        return set_real(option, value);
    if (option->type == INVAR_OPTION_WORD)
        return set_word(option, value);
    *(const char **)option->value = value;
    return INVAR_OK;
}

/* Explains that RUN is an argument here, if the user gave --run. Other commands have the option. */
static invar_status check_run(const invar_option *options, const char *word, const char *what)
{
    if (strncmp(what, "RUN", 3) != 0 || strncmp(word, "--run", 5) != 0 ||
        (word[5] != '\0' && word[5] != '=') || find_option(options, "run", 3))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "unknown option '%s': RUN is given without a flag, as runs/NAME or @last; "
                      "'invar ledger ls' lists the runs below runs/",
                      word);
}

invar_status invar_options_parse(const invar_option *options, int argc, char **argv)
{
    int words;

    return invar_options_parse_words(&words, options, argc, argv, "argument", 0, 0);
}

invar_status invar_options_parse_words(int *count_out, const invar_option *options, int argc,
                                       char **argv, const char *what, int low, int high)
{
    bool only_words = false;

    *count_out = 0;
    for (int i = 0; i < argc; i++) {
        char *word = argv[i];
        if (!only_words && strcmp(word, "--") == 0 && high > 0) {
            only_words = true;
        } else if (!only_words && strncmp(word, "--", 2) == 0 && word[2] != '\0') {
            INVAR_TRY(check_run(options, word, what));
            INVAR_TRY(set_option(&i, options, argc, argv));
        } else if (*count_out == high) {
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "unexpected argument '%s'; --help shows the usage", word);
        } else if (!only_words && word[0] == '-' && word[1] != '\0') {
            return INVAR_FAIL(INVAR_E_INVALID, 0, "unknown option '%s'; --help lists them", word);
        } else {
            argv[(*count_out)++] = word;
        }
    }
    if (*count_out < low)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "an argument is missing: expected %s", what);
    return INVAR_OK;
}

/* ---- help ------------------------------------------------------------------------------------ */

static const invar_help_sink *taker; // NULL to print to stdout

void invar_command_help(const invar_cli_command *command)
{
    if (command->about)
        invar_help_text(command->about);
    if (command->options)
        invar_options_help(command->options);
    if (command->help)
        command->help();
}

void invar_help_send(const invar_cli_command *command, const invar_help_sink *to)
{
    taker = to;
    invar_command_help(command);
    taker = NULL;
}

bool invar_help_has_sink(void)
{
    return taker;
}

void invar_help_text(const char *text)
{
    if (!taker)
        invar_safe_text_fill(stdout, text);
    else if (taker->text)
        taker->text(taker->payload, text);
}

/*
 * Formats an option of type WORD as "where to run: cpu or cuda (cpu)", with the current value as
 * default.
 */
void invar_option_describe(char out[INVAR_OPTION_TEXT_SIZE], const invar_option *option)
{
    const invar_option_choice *word = option->value;
    const char *fallback;
    char words[INVAR_CHOICES_TEXT_SIZE];

    if (option->type != INVAR_OPTION_WORD) {
        (void)snprintf(out, INVAR_OPTION_TEXT_SIZE, "%s", option->help ? option->help : "");
        return;
    }
    fallback = invar_choices_word(word->choices, word->value);
    invar_choices_text(words, sizeof words, word->choices, ", ", " or ");
    (void)snprintf(out, INVAR_OPTION_TEXT_SIZE, fallback ? "%s: %s (%s)" : "%s: %s", option->help,
                   words, fallback);
}

void invar_options_help(const invar_option *options)
{
    char text[INVAR_OPTION_TEXT_SIZE];

    if (taker) {
        taker->options(taker->payload, options);
        return;
    }
    for (; options->name; options++) {
        int used = printf("  --%s%s%-*s ", options->name, options->metavar ? " " : "",
                          (int)(18 - strlen(options->name) - (options->metavar ? 1 : 0)),
                          options->metavar ? options->metavar : "");
        invar_option_describe(text, options);
        invar_safe_text_wrap(stdout, text, used);
    }
}

int invar_report_error(void)
{
    const invar_error *error = invar_error_last();

    fputs("invar: ", stderr);
    invar_safe_text_print(stderr, error->message); // the message may quote an untrusted file
    fputc('\n', stderr);
    return invar_process_exit_code(error->status);
}

int invar_exit(invar_status status)
{
    return status == INVAR_OK ? INVAR_EXIT_OK : invar_report_error();
}

int64_t invar_default_threads(void)
{
    int64_t cores = invar_process_cores(1, 1);

    return cores > 256 ? 256 : cores;
}
