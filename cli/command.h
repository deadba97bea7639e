/*
 * command.h - the verbs of the command line and their options.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_COMMAND_H
#define INVAR_CLI_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/process/process.h"
#include "base/recipe/choices.h"
#include "base/status.h"

typedef enum invar_option_type {
    INVAR_OPTION_FLAG,         /* bool, set to true */
    INVAR_OPTION_INT,          /* int64_t */
    INVAR_OPTION_OPTIONAL_INT, /* int64_t; where no number follows, it is `low` */
    INVAR_OPTION_REAL,         /* double */
    INVAR_OPTION_TEXT,         /* const char *, borrowed from argv */
    INVAR_OPTION_WORD          /* invar_option_choice */
} invar_option_type;

/* One of several words, at first the default. */
typedef struct invar_option_choice {
    const invar_choices *choices;
    int value; /* below 0: none */
} invar_option_choice;

typedef struct invar_option {
    const char *name; /* without the dashes */
    invar_option_type type;
    void *value;
    const char *metavar; /* "N"; NULL for a flag */
    const char *help;    /* of a word: without the words, which follow it */
    int64_t low;         /* of a number: the range */
    int64_t high;
} invar_option;

/* Has it no value of its own? `next` is the word behind it; NULL: there is none. */
bool invar_option_takes_no_value(const invar_option *option, const char *next);

#define INVAR_OPTION_TEXT_SIZE (2 * INVAR_CHOICES_TEXT_SIZE)

/* Flags of a verb that others read; the last option, which has no name, may have them as value. */
typedef struct invar_option_names {
    const char *(*at)(int index); /* NULL behind the last */
    /* What to use for a name that is gone; NULL: there never was one. */
    const char *(*instead)(const char *name, size_t length);
    /* The sentence about a flag that other programs have; NULL: none is known. */
    const char *(*foreign)(const char *name, size_t length);
} invar_option_names;

typedef struct invar_cli_command {
    const char *name;
    const char *summary;               /* one line */
    int (*run)(int argc, char **argv); /* arguments after the verb; an exit code */
    void (*help)(void);
    const char *arguments; /* "RUN [--step S]"; NULL: options only */
    const struct invar_cli_command *const
        *subcommands; /* verbs of its own, then NULL; run may be NULL then */
    const char *(*first_argument_word)(
        int index); /* of those that its first argument may be; NULL: any may */
    /* Several processes of one launcher may run it, each as a rank or for its own host. */
    bool multi_process;
} invar_cli_command;

extern const invar_cli_command invar_verb_version;
extern const invar_cli_command invar_verb_selfcheck;
extern const invar_cli_command invar_verb_bench;
extern const invar_cli_command invar_verb_doctor;
extern const invar_cli_command
    invar_verb_train; /* this and the following: not without INVAR_LEDGER */
extern const invar_cli_command invar_verb_plan;
extern const invar_cli_command invar_verb_eval;
extern const invar_cli_command invar_verb_generate;
extern const invar_cli_command invar_verb_score;
extern const invar_cli_command invar_verb_serve;
extern const invar_cli_command invar_verb_convert;
extern const invar_cli_command invar_verb_replay;
extern const invar_cli_command invar_verb_pack;
extern const invar_cli_command invar_verb_import_miles;
extern const invar_cli_command invar_verb_ledger;
extern const invar_cli_command invar_verb_diff;
extern const invar_cli_command invar_verb_triage;
extern const invar_cli_command invar_verb_bug_report;
extern const invar_cli_command
    invar_verb_bisect; /* this and the following: not without INVAR_BISECT */
extern const invar_cli_command invar_verb_blame;
extern const invar_cli_command invar_verb_ab;
extern const invar_cli_command invar_verb_ci;

/* All that this build has, as help lists them; NULL ends the list. */
extern const invar_cli_command *const invar_verbs[];

/*
 * What an exit code means, whichever verb ends with it: help, pages and docs/commands.md show it.
 */
typedef struct invar_exit_meaning {
    int code;
    const char *meaning;
} invar_exit_meaning;

/* All that a verb ends with, ascending; a NULL meaning ends the list. */
extern const invar_exit_meaning invar_exit_codes[];

/* The option that every verb with threads has. */
invar_option invar_option_threads(int64_t *value, const char *help);

/* Reads `--name value` and `--name=value`, refuses the rest. The list ends with a NULL name. */
invar_status invar_options_parse(const invar_option *options, int argc, char **argv) INVAR_MUST_USE;

/*
 * The same where words that are no options are allowed, `low` to `high` of them: they are moved to
 * the front of argv, in order. All that follows a "--" are words. `what` names them in messages.
 */
invar_status invar_options_parse_words(int *count_out, const invar_option *options, int argc,
                                       char **argv, const char *what, int low,
                                       int high) INVAR_MUST_USE;

/* Paragraphs of a verb's help on stdout; with a "\n" at their end, and an empty line. */
void invar_help_text(const char *text);

/* The options as aligned lines on stdout. */
void invar_options_help(const invar_option *options);

/* What an option does: of a word also its words and its default. */
void invar_option_describe(char out[INVAR_OPTION_TEXT_SIZE], const invar_option *option);

/* Takes the help of a verb in place of the screen: pages are made of it, and completions. */
typedef struct invar_help_sink {
    void *payload;
    void (*text)(void *payload, const char *text); /* NULL: paragraphs do not count */
    void (*options)(void *payload, const invar_option *options);
} invar_help_sink;

/* The paragraphs and options of a verb's help, to a taker; recipe keys are left out. */
void invar_help_give(const invar_cli_command *verb, const invar_help_sink *taker);

/* Is there a taker now? */
bool invar_help_taken(void);

/* "invar: message" on stderr, from the error record; yields the exit code that fits its status. */
int invar_report_error(void);

/* Threads when the user does not say: the processors that are online. */
int64_t invar_default_threads(void);

#endif
