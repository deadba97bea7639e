/*
 * main.c - the program: finds the verb and runs it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/console/spelling.h"
#include "base/process/argv0.h"
#include "cli/command.h"
#include "cli/recipe_flags.h"
#include "cli/safe_text.h"
#include "cli/schema/schema.h"

#ifdef INVAR_LEDGER
#include "cli/combinations/combinations.h"
#include "cli/open_ranks.h"
#endif

#include "base/invar_banned.h"

static const invar_cli_command *cli_command_find(const invar_cli_command *const *list,
                                                 const char *name)
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

static void print_verbs(FILE *out, const invar_cli_command *const *list)
{
    for (; *list; list++)
        print_entry(out, (*list)->name, (*list)->summary);
}

static void print_help(FILE *out)
{
    fputs("invar - reproducible post-training of language models\n\n"
          "usage: invar VERB [--option value ...]\n\n",
          out);
    print_verbs(out, invar_verbs);
    print_entry(out, "help VERB", "explain a verb and its options");
#ifdef INVAR_LEDGER
    print_entry(out, "help KEY", "explain a recipe key, its values and its default");
    print_entry(out, "help combinations",
                "list the pairs of recipe keys that are refused, and why");
#endif
    print_entry(out, "help exit-codes", "list the exit codes, and what they mean");
    print_entry(out, "help --schema", "JSON Schemas of recipes and of what --json prints");
}

static int unexpected(const char *argument)
{
    fprintf(stderr, "invar: unexpected argument '%s'; 'invar help' shows what there is\n",
            argument);
    return INVAR_EXIT_USAGE;
}

static bool asks_for_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* ---- a verb and, before it, the verb that it belongs to -------------------------------------- */

typedef struct selection {
    const invar_cli_command *group; /* NULL: the verb is one of the program itself */
    const invar_cli_command *verb;
    int words; /* of the command line that name it */
} selection;

/* What every process of a launcher finds is told by the first of them. */
static void wait_for_first(void)
{
#ifdef INVAR_LEDGER
    invar_open_ranks_queue();
#endif
}

/* "invar: ledger: no verb 'shwo' (did you mean 'show'?); ..." */
static void no_verb(const char *group, const invar_cli_command *const *list, const char *name)
{
    invar_spelling near;

    invar_spelling_init(&near, name, strlen(name));
    for (; *list; list++)
        invar_spelling_offer(&near, (*list)->name);
    wait_for_first();
    fprintf(stderr, "invar: %s%sno verb '%s'%s; 'invar help%s%s' lists them\n", group,
            *group ? ": " : "", name, invar_spelling_hint(&near), *group ? " " : "", group);
}

/*
 * argv[0] is the verb's name. A group without a further word stays selected itself; so does one
 * that can run when the word is none of its verbs.
 */
static bool select_verb(selection *out, int argc, char **argv)
{
    *out = (selection){.verb = cli_command_find(invar_verbs, argv[0]), .words = 1};
    if (!out->verb) {
        no_verb("", invar_verbs, argv[0]);
        return false;
    }
    if (!out->verb->subcommands || argc < 2 || asks_for_help(argv[1]))
        return true;
    if (out->verb->run && !cli_command_find(out->verb->subcommands, argv[1]))
        return true;
    *out = (selection){
        .group = out->verb, .verb = cli_command_find(out->verb->subcommands, argv[1]), .words = 2};
    if (!out->verb)
        no_verb(argv[0], out->group->subcommands, argv[1]);
    return out->verb;
}

static void print_verb(FILE *out, const selection *s)
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
        print_verbs(out, s->verb->subcommands);
    if (s->verb->subcommands && s->verb->run)
        fputc('\n', out);
    if (out != stdout) // a complaint
        return;
    s->verb->help();
    fputc('\n', out);
    invar_safe_text_wrap(out, "'invar help exit-codes' lists the exit codes of all commands.", 0);
}

static void help_exit_codes(void)
{
    fputs("invar help exit-codes - how every verb ends\n\n", stdout);
    for (const invar_exit_meaning *e = invar_exit_codes; e->meaning; e++)
        invar_safe_text_wrap(stdout, e->meaning, printf("  %-3d  ", e->code));
}

/* True if the word is no verb but a subject of its own; *code_out is the exit code then. */
static bool help_subject(int *code_out, int argc, char **argv)
{
    const bool codes = strcmp(argv[0], "exit-codes") == 0;
    bool pairs = false, key = false;

#ifdef INVAR_LEDGER // keys of a recipe come with the verbs that read one
    pairs = strcmp(argv[0], "combinations") == 0;
    key = !cli_command_find(invar_verbs, argv[0]) && invar_recipe_flags_is_key(argv[0]);
#endif
    if (!codes && !pairs && !key)
        return false;
    *code_out = INVAR_EXIT_OK;
    if (argc > 1)
        *code_out = unexpected(argv[1]);
    else if (codes)
        help_exit_codes();
#ifdef INVAR_LEDGER
    else if (key)
        invar_recipe_flags_help_key(argv[0]);
    else if (invar_combinations_show() != INVAR_OK)
        *code_out = invar_report_error();
#endif
    return true;
}

static int cmd_main_help(int argc, char **argv)
{
    selection s;
    int code;

    if (argc == 0) {
        print_help(stdout);
        return INVAR_EXIT_OK;
    }
    if (strcmp(argv[0], "--schema") == 0 && argc <= 3)
        return invar_schema_help(argc - 1, argv + 1);
    if (help_subject(&code, argc, argv))
        return code;
    if (!select_verb(&s, argc, argv))
        return INVAR_EXIT_USAGE;
    if (argc > s.words)
        return unexpected(argv[s.words]);
    print_verb(stdout, &s);
    return INVAR_EXIT_OK;
}

/* Started by mpirun or srun, each process would do the same, at the same time. */
static bool is_one_of_several(const selection *s)
{
#ifdef INVAR_LEDGER
    int64_t processes;

    if (invar_launch_processes(&processes) == INVAR_OK && processes <= 1)
        return false;
    wait_for_first();
    fprintf(stderr,
            "invar: %s%s%s runs in one process, and a launcher has started several: start it "
            "without mpirun, or by srun -n 1\n",
            s->group ? s->group->name : "", s->group ? " " : "", s->verb->name);
    return true;
#else
    (void)s;
    return false;
#endif
}

static int cmd_main(int argc, char **argv)
{
    selection s;

    if (argc == 0) {
        print_help(stderr);
        return INVAR_EXIT_USAGE;
    }
    if (strcmp(argv[0], "help") == 0 || asks_for_help(argv[0]))
        return cmd_main_help(argc - 1, argv + 1);
    if (strcmp(argv[0], "--version") == 0)
        return invar_verb_version.run(argc - 1, argv + 1);
    if (!select_verb(&s, argc, argv))
        return INVAR_EXIT_USAGE;
    for (int i = s.words; i < argc; i++)
        if (asks_for_help(argv[i])) {
            print_verb(stdout, &s);
            return INVAR_EXIT_OK;
        }
    if (!s.verb->run) {
        print_verb(stderr, &s);
        return INVAR_EXIT_USAGE;
    }
    if (!s.verb->multi_process && is_one_of_several(&s))
        return INVAR_EXIT_USAGE;
    return s.verb->run(argc - s.words, argv + s.words);
}

int main(int argc, char **argv)
{
    int code = INVAR_EXIT_USAGE;

    if (argc > 0) {
        invar_argv0_set(argv[0]);
        code = cmd_main(argc - 1, argv + 1);
    }
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    // an answer that could not be written was not given
    fprintf(stderr, "invar: standard output could not be written%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : "");
    return INVAR_EXIT_TROUBLE;
}
