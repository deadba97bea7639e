/*
 * command.h - commands of the command line, their options, help texts and exit codes.
 *
 * A command is a table of name, summary, help, options and a function. Options are parsed
 * strictly: an unknown option or a value out of range is an error. The help text exists once and is
 * printed, or passed to a sink that makes man pages and completions of it (manpages/).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_COMMAND_H
#define INVAR_CLI_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/process/process.h"
#include "base/recipe/choices.h"
#include "base/status.h"

typedef enum invar_option_type {
    INVAR_OPTION_FLAG,         /* bool, set to true */
    INVAR_OPTION_INT,          /* int64_t */
    INVAR_OPTION_OPTIONAL_INT, /* int64_t; set to `low` if no number follows */
    INVAR_OPTION_REAL,         /* double */
    INVAR_OPTION_TEXT,         /* const char *, borrowed from argv */
    INVAR_OPTION_WORD          /* invar_option_choice */
} invar_option_type;

/* Value of an option that is one of several words. Initialize it with the default. */
typedef struct invar_option_choice {
    const invar_choices *choices;
    int value; /* index in `choices`; negative if there is no default */
} invar_option_choice;

typedef struct invar_option {
    const char *name; /* name without the dashes */
    invar_option_type type;
    void *value;
    const char *metavar; /* placeholder of the value in help, such as "N"; NULL for a flag */
    const char *help;    /* help text; the choices are appended to it if the type is WORD */
    int64_t low;         /* range of a number */
    int64_t high;
} invar_option;

/* Returns true if the option has no value. `next` is the next word of the command line, or NULL. */
bool invar_option_takes_no_value(const invar_option *option, const char *next);

#define INVAR_OPTION_TEXT_SIZE (2 * INVAR_CHOICES_TEXT_SIZE)

/*
 * Names of flags that the command reads elsewhere (recipe keys). An option list may end with an
 * unnamed option whose value points to this struct; misspelt flags are then compared with these
 * names too.
 */
typedef struct invar_option_names {
    const char *(*name_at)(int index); /* returns NULL after the last name */
    /* Returns the replacement of a removed name, or NULL if the name never existed. */
    const char *(*replacement)(const char *name, size_t length);
    /* Returns an explanation for a flag of another program, or NULL. */
    const char *(*explain_foreign)(const char *name, size_t length);
} invar_option_names;

typedef struct invar_cli_command {
    const char *name;
    const char *summary;               /* one line */
    int (*run)(int argc, char **argv); /* runs the command on the arguments after its name; returns
                                          an exit code */
    /*
     * Help in this order: paragraphs, options, and a function that prints by the functions below.
     * Each part may be NULL.
     */
    const char *about;
    const invar_option *options;
    void (*help)(void);
    /*
     * Name of the words that are not options, for messages. The options are parsed before `run`,
     * whose arguments are then `min_words` to `max_words` words, and a NULL after them. NULL if
     * `run` parses the options itself.
     */
    const char *words;
    int min_words, max_words;
    const char *arguments; /* usage, such as "RUN [--step S]"; NULL if there are only options */
    const char *result;    /* members of what --json prints, for invar_result_schema; or NULL */
    /* subcommands, NULL-terminated, or NULL; with subcommands, run may be NULL */
    const struct invar_cli_command *const *subcommands;
    /* returns the allowed words for the first argument; NULL if any word is allowed */
    const char *(*first_argument_word)(int index);
    /* Several processes of a launcher may run the command, each as a rank or for its own host. */
    bool multi_process;
} invar_cli_command;

extern const invar_cli_command invar_cmd_version;
extern const invar_cli_command invar_cmd_selfcheck;
extern const invar_cli_command invar_cmd_bench;
extern const invar_cli_command invar_cmd_doctor;
extern const invar_cli_command invar_cmd_train;
extern const invar_cli_command invar_cmd_plan;
extern const invar_cli_command invar_cmd_eval;
extern const invar_cli_command invar_cmd_generate;
extern const invar_cli_command invar_cmd_score;
extern const invar_cli_command invar_cmd_serve;
extern const invar_cli_command invar_cmd_convert;
extern const invar_cli_command invar_cmd_replay;
extern const invar_cli_command invar_cmd_pack;
extern const invar_cli_command invar_cmd_import_miles;
extern const invar_cli_command invar_cmd_ledger;
extern const invar_cli_command invar_cmd_diff;
extern const invar_cli_command invar_cmd_triage;
extern const invar_cli_command invar_cmd_bug_report;
extern const invar_cli_command
    invar_cmd_bisect; /* only with INVAR_BISECT, like the following ones */
extern const invar_cli_command invar_cmd_blame;
extern const invar_cli_command invar_cmd_ab;
extern const invar_cli_command invar_cmd_ci;

/* Commands of this build in the order of the help; NULL-terminated. */
extern const invar_cli_command *const invar_cmds[];

/* Meaning of an exit code, equal for all commands. Help, man pages and docs/commands.md list it. */
typedef struct invar_exit_meaning {
    int code;
    const char *meaning;
} invar_exit_meaning;

/* All exit codes, ascending; terminated by a NULL meaning. */
extern const invar_exit_meaning invar_exit_codes[];

/* Initializer of the option --threads. */
#define INVAR_OPTION_THREADS(value, help)                                                          \
    {                                                                                              \
        "threads", INVAR_OPTION_INT, value, "N", help, 1, INVAR_POOL_MAX_THREADS                   \
    }

/*
 * Parses `--name value` and `--name=value` and rejects everything else. The list ends with a NULL
 * name.
 */
invar_status invar_options_parse(const invar_option *options, int argc, char **argv) INVAR_MUST_USE;

/*
 * Like invar_options_parse, but allows `low` to `high` words that are not options; these are moved
 * to the front of argv, in order. Everything after "--" is a word. `what` names the words in
 * messages.
 */
invar_status invar_options_parse_words(int *count_out, const invar_option *options, int argc,
                                       char **argv, const char *what, int low,
                                       int high) INVAR_MUST_USE;

/* Prints paragraphs of help to stdout. Each one ends with "\n" and an empty line. */
void invar_help_text(const char *text);

/* Prints the options to stdout as aligned lines. */
void invar_options_help(const invar_option *options);

/* Formats the help of an option, with choices and default if its type is WORD. */
void invar_option_describe(char out[INVAR_OPTION_TEXT_SIZE], const invar_option *option);

/* Receives the help of a command instead of stdout; used for man pages and completions. */
typedef struct invar_help_sink {
    void *payload;
    void (*text)(void *payload, const char *text); /* may be NULL to ignore paragraphs */
    void (*options)(void *payload, const invar_option *options);
} invar_help_sink;

/* Prints the paragraphs and options of a command's help to stdout. */
void invar_command_help(const invar_cli_command *command);

/* Passes the paragraphs and options of a command's help to a sink. Recipe keys are left out. */
void invar_help_send(const invar_cli_command *command, const invar_help_sink *sink);

/* Returns true while help is passed to a sink. */
bool invar_help_has_sink(void);

/* Prints "invar: MESSAGE" from the error record to stderr. Returns the exit code of its status. */
int invar_report_error(void);

/* Returns INVAR_EXIT_OK, or prints the error and returns its exit code. */
int invar_exit(invar_status status);

/* Returns the default number of threads: the online processors, at most 256. */
int64_t invar_default_threads(void);

#endif
