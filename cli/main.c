/*
 * main.c - the program: finds the verb and runs it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/verb.h"

#include "base/invar_banned.h"

static const invar_verb *const verbs[] = {&invar_verb_selfcheck, &invar_verb_bench};
enum { VERBS = sizeof verbs / sizeof *verbs };

static const invar_verb *find(const char *name)
{
    for (int i = 0; i < VERBS; i++)
        if (strcmp(verbs[i]->name, name) == 0)
            return verbs[i];
    return NULL;
}

static void print_help(FILE *out)
{
    fprintf(out,
            "invar - LLM post-training whose bits do not change\n\nusage: invar VERB [--option "
            "value ...]\n\n");
    for (int i = 0; i < VERBS; i++)
        fprintf(out, "  %-12s %s\n", verbs[i]->name, verbs[i]->summary);
    fprintf(out, "  %-12s %s\n  %-12s %s\n", "help VERB", "what a verb does and its options",
            "version", "the version of this program");
}

static int unknown(const char *name)
{
    fprintf(stderr, "invar: no verb '%s'; 'invar help' lists them\n", name);
    return INVAR_EXIT_USAGE;
}

static int unexpected(const char *argument)
{
    fprintf(stderr, "invar: unexpected argument '%s'; 'invar help' shows what there is\n",
            argument);
    return INVAR_EXIT_USAGE;
}

static int help(int argc, char **argv)
{
    const invar_verb *verb;

    if (argc == 0) {
        print_help(stdout);
        return INVAR_EXIT_OK;
    }
    if (argc > 1)
        return unexpected(argv[1]);
    verb = find(argv[0]);
    if (!verb)
        return unknown(argv[0]);
    printf("invar %s - %s\n\n", verb->name, verb->summary);
    verb->help();
    return INVAR_EXIT_OK;
}

static int version(int argc, char **argv)
{
    if (argc > 0)
        return unexpected(argv[0]);
    puts("invar " INVAR_VERSION);
    return INVAR_EXIT_OK;
}

static bool asks_for_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int run(int argc, char **argv)
{
    const invar_verb *verb;

    if (argc < 2) {
        print_help(stderr);
        return INVAR_EXIT_USAGE;
    }
    if (strcmp(argv[1], "help") == 0 || asks_for_help(argv[1]))
        return help(argc - 2, argv + 2);
    if (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0)
        return version(argc - 2, argv + 2);
    verb = find(argv[1]);
    if (!verb)
        return unknown(argv[1]);
    for (int i = 2; i < argc; i++)
        if (asks_for_help(argv[i]))
            return help(1, argv + 1);
    return verb->run(argc - 2, argv + 2);
}

int main(int argc, char **argv)
{
    int code = run(argc, argv);

    // an answer that could not be written was not given
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "invar: standard output: %s\n", strerror(errno));
        return INVAR_EXIT_TROUBLE;
    }
    return code;
}
