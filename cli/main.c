/*
 * main.c - entry point: finds the command, prints help, runs the command.
 *
 * Each command is selected by one or two words, the second for a subcommand. A command that was not
 * written for several processes is rejected if a launcher started several. Output that could not be
 * written to stdout changes the exit code to TROUBLE.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/console/spelling.h"
#include "base/process/argv0.h"
#include "cli/combinations/combinations.h"
#include "cli/command.h"
#include "cli/open_ranks.h"
#include "cli/recipe_flags.h"
#include "cli/safe_text.h"
#include "cli/schema/schema.h"

#include "base/invar_banned.h"

static const invar_cli_command *find_command(const invar_cli_command *const *list, const char *name)
{
    for (; *list; list++)
        if (strcmp((*list)->name, name) == 0)
            return *list;
    return NULL;
}

static void print_entry(FILE *out, const char *name, const char *summary)
{
    invar_safe_text_wrap(out, summary, fprintf(out, "  %-13s ", name));
}

static void print_command_list(FILE *out, const invar_cli_command *const *list)
{
    for (; *list; list++)
        print_entry(out, (*list)->name, (*list)->summary);
}

static void print_help(FILE *out)
{
    fputs("invar - reproducible post-training of language models\n\n"
          "usage: invar VERB [--option value ...]\n\n",
          out);
    print_command_list(out, invar_cmds);
    print_entry(out, "help VERB", "explain a verb and its options");
    print_entry(out, "help KEY", "explain a recipe key, its values and its default");
    print_entry(out, "help combinations",
                "list the pairs of recipe keys that are refused, and why");
    print_entry(out, "help exit-codes", "list the exit codes, and what they mean");
    print_entry(out, "help --schema", "JSON Schemas of recipes and of what --json prints");
}

static int report_unexpected(const char *argument)
{
    fprintf(stderr, "invar: unexpected argument '%s'; 'invar help' shows what there is\n",
            argument);
    return INVAR_EXIT_USAGE;
}

static bool asks_for_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* ---- selecting a command --------------------------------------------------------------------- */

typedef struct command_selection {
    const invar_cli_command *group; /* NULL for a command at the top level */
    const invar_cli_command *verb;
    int words; /* number of words that name the command */
} command_selection;

/* Prints "invar: ledger: no verb 'shwo' (did you mean 'show'?); ...". */
static void report_unknown_command(const char *group, const invar_cli_command *const *list,
                                   const char *name)
{
    invar_spelling spelling;

    invar_spelling_init(&spelling, name, strlen(name));
    for (; *list; list++)
        invar_spelling_offer(&spelling, (*list)->name);
    invar_open_ranks_queue();
    fprintf(stderr, "invar: %s%sno verb '%s'%s; 'invar help%s%s' lists them\n", group,
            *group ? ": " : "", name, invar_spelling_hint(&spelling), *group ? " " : "", group);
}

/*
 * Selects the command that argv[0], and argv[1] for a subcommand, names. A group without a further
 * word selects the group itself, and so does a group that can run if the word names no subcommand.
 */
static bool select_command(command_selection *out, int argc, char **argv)
{
    *out = (command_selection){.verb = find_command(invar_cmds, argv[0]), .words = 1};
    if (!out->verb) {
        report_unknown_command("", invar_cmds, argv[0]);
        return false;
    }
    if (!out->verb->subcommands || argc < 2 || asks_for_help(argv[1]))
        return true;
    if (out->verb->run && !find_command(out->verb->subcommands, argv[1]))
        return true;
    *out = (command_selection){
        .group = out->verb, .verb = find_command(out->verb->subcommands, argv[1]), .words = 2};
    if (!out->verb)
        report_unknown_command(argv[0], out->group->subcommands, argv[1]);
    return out->verb;
}

static void print_command_help(FILE *out, const command_selection *s)
{
    const char *group = s->group ? s->group->name : "", *space = s->group ? " " : "";

    invar_safe_text_wrap(out, s->verb->summary,
                         fprintf(out, "invar %s%s%s - ", group, space, s->verb->name));
    fputc('\n', out);
    if (s->verb->arguments) {
        invar_safe_text_wrap(out, s->verb->arguments,
                             fprintf(out, "usage: invar %s%s%s ", group, space, s->verb->name));
        fputc('\n', out);
    }
    if (s->verb->subcommands)
        print_command_list(out, s->verb->subcommands);
    if (s->verb->subcommands && s->verb->run)
        fputc('\n', out);
    if (out != stdout) // usage after an error has no details
        return;
    invar_command_help(s->verb);
    fputc('\n', out);
    invar_safe_text_wrap(out, "'invar help exit-codes' lists the exit codes of all commands.", 0);
}

static void print_exit_codes(void)
{
    fputs("invar help exit-codes - how every verb ends\n\n", stdout);
    for (const invar_exit_meaning *e = invar_exit_codes; e->meaning; e++)
        invar_safe_text_wrap(stdout, e->meaning, printf("  %-3d  ", e->code));
}

/*
 * Prints help on a subject other than a command, and sets *code_out. Returns false if the word is
 * not such a subject.
 */
static bool print_subject_help(int *code_out, int argc, char **argv)
{
    const bool codes = strcmp(argv[0], "exit-codes") == 0;
    const bool pairs = strcmp(argv[0], "combinations") == 0;
    const bool key = !find_command(invar_cmds, argv[0]) && invar_recipe_flags_is_key(argv[0]);

    if (!codes && !pairs && !key)
        return false;
    *code_out = INVAR_EXIT_OK;
    if (argc > 1)
        *code_out = report_unexpected(argv[1]);
    else if (codes)
        print_exit_codes();
    else if (key)
        invar_recipe_flags_help_key(argv[0]);
    else if (invar_combinations_show() != INVAR_OK)
        *code_out = invar_report_error();
    return true;
}

static int cmd_help(int argc, char **argv)
{
    command_selection s;
    int code;

    if (argc == 0) {
        print_help(stdout);
        return INVAR_EXIT_OK;
    }
    if (strcmp(argv[0], "--schema") == 0 && argc <= 3)
        return invar_schema_help(argc - 1, argv + 1);
    if (print_subject_help(&code, argc, argv))
        return code;
    if (!select_command(&s, argc, argv))
        return INVAR_EXIT_USAGE;
    if (argc > s.words)
        return report_unexpected(argv[s.words]);
    print_command_help(stdout, &s);
    return INVAR_EXIT_OK;
}

/* Returns true if mpirun or srun started several processes, which would all do the same at once. */
static bool is_one_of_several(const command_selection *s)
{
    int64_t processes;

    if (invar_launch_processes(&processes) == INVAR_OK && processes <= 1)
        return false;
    invar_open_ranks_queue();
    fprintf(stderr,
            "invar: %s%s%s runs in one process, and a launcher has started several: start it "
            "without mpirun, or by srun -n 1\n",
            s->group ? s->group->name : "", s->group ? " " : "", s->verb->name);
    return true;
}

/*
 * Selects the command that the arguments name. Returns false, with *code_out, if there is nothing
 * more to run: help, or a wrong use.
 */
static bool prepare_command(command_selection *out, int *code_out, int argc, char **argv)
{
    *code_out = INVAR_EXIT_USAGE;
    if (argc == 0) {
        print_help(stderr);
        return false;
    }
    if (strcmp(argv[0], "help") == 0 || asks_for_help(argv[0])) {
        *code_out = cmd_help(argc - 1, argv + 1);
        return false;
    }
    if (strcmp(argv[0], "--version") == 0) {
        *out = (command_selection){.verb = &invar_cmd_version, .words = 1};
        return true;
    }
    if (!select_command(out, argc, argv))
        return false;
    for (int i = out->words; i < argc; i++)
        if (asks_for_help(argv[i])) {
            print_command_help(stdout, out);
            *code_out = INVAR_EXIT_OK;
            return false;
        }
    if (!out->verb->run)
        print_command_help(stderr, out);
    return out->verb->run && (out->verb->multi_process || !is_one_of_several(out));
}

/* Reads the options of a command that names its words, and leaves the words in argv. */
static invar_status read_words(const invar_cli_command *verb, int *argc, char **argv)
{
    if (!verb->words)
        return INVAR_OK;
    INVAR_TRY(invar_options_parse_words(argc, verb->options, *argc, argv, verb->words,
                                        verb->min_words, verb->max_words));
    argv[*argc] = NULL;
    return INVAR_OK;
}

int main(int argc, char **argv)
{
    command_selection s;
    int code = INVAR_EXIT_USAGE;

    if (argc > 0) {
        invar_argv0_set(argv[0]);
        if (prepare_command(&s, &code, argc - 1, argv + 1)) {
            argc -= 1 + s.words;
            argv += 1 + s.words;
            code = read_words(s.verb, &argc, argv) == INVAR_OK ? s.verb->run(argc, argv)
                                                               : invar_report_error();
        }
    }
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    // a result that could not be written counts as failed
    fprintf(stderr, "invar: standard output could not be written%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : "");
    return INVAR_EXIT_TROUBLE;
}
