/*
 * ci_internal.h - chaos runs and comparisons of bit-exact CI. Private to bisect/ci.
 *
 * A chaos run repeats a case with variations that must not change its bits (ci_chaos.c). A side of
 * a comparison is a golden or a run, each with the digests of its points (ci_compare.c).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_CI_CI_INTERNAL_H
#define INVAR_BISECT_CI_CI_INTERNAL_H

#include "bisect/ci/ci.h"
#include "bisect/workspace/workspace.h"

/* ---- chaos: variations of a run that must not change its bits -------------------------------- */

#define INVAR_CHAOS_ITEMS 20
#define INVAR_CHAOS_WORD 96

typedef enum invar_chaos_kind {
    INVAR_CHAOS_FLAGS,     /* words of the command line that set free keys */
    INVAR_CHAOS_VARIABLE,  /* a variable of the environment */
    INVAR_CHAOS_PREFIX,    /* a command that starts the program */
    INVAR_CHAOS_ADDRESSES, /* no randomization of the address space */
    INVAR_CHAOS_FOLDER     /* a run folder with another path */
} invar_chaos_kind;

/* One variation of a chaos run. */
typedef struct invar_chaos_item {
    invar_chaos_kind kind;
    char words[2][INVAR_CHAOS_WORD]; /* unused entries are empty */
    char description[INVAR_CHAOS_WORD];
} invar_chaos_item;

typedef struct invar_chaos {
    invar_chaos_item items[INVAR_CHAOS_ITEMS];
    size_t count;
} invar_chaos;

/* One or all variations in the form that a run request needs. Texts are borrowed from the chaos. */
typedef struct invar_chaos_run {
    const char *flags[2 * INVAR_CHAOS_ITEMS + 1];
    const char *environment[INVAR_CHAOS_ITEMS + 1];
    const char *prefix; /* command that starts the program, or NULL */
    bool same_addresses, other_folder;
    char description[INVAR_CI_REASON_SIZE];
} invar_chaos_run;

#define INVAR_CHAOS_ALL (-1)

/* Combines all variations (INVAR_CHAOS_ALL) or the one with index `item`. */
void invar_chaos_compose(invar_chaos_run *out, const invar_chaos *chaos, int item);

#define INVAR_CHAOS_LOCALES 64

/* Locales installed on this machine. */
typedef struct invar_chaos_locales {
    char names[INVAR_CHAOS_LOCALES][40];
    size_t count;
} invar_chaos_locales;

/*
 * Lists the locales with `locale -a`, using a temporary file in `folder`. *out is empty if the
 * command fails.
 */
invar_status invar_chaos_list_locales(invar_chaos_locales *out, const char *folder) INVAR_MUST_USE;

/* Generates the variations of chaos run `number` of a case; a pure function of its arguments. */
void invar_chaos_generate(invar_chaos *out, const invar_chaos_locales *locales, int64_t seed,
                          const char *name, int64_t number);

/* ---- comparison ------------------------------------------------------------------------------ */

/* A golden, read from a file or made from a run, with its points (NULL if unknown). */
typedef struct invar_ci_side {
    invar_golden *golden;
    invar_golden_points *points;
} invar_ci_side;

void invar_ci_side_free(invar_ci_side *side);

/*
 * Changes the verdict SAME to OBSOLETE if the golden has another length than the run. `made` is the
 * number of executed steps; `asked` is the limit of the user, 0 for no limit.
 */
void invar_ci_check_length(invar_ci_result *out, int64_t made, int64_t asked);

/* Sets the verdict OBSOLETE if the golden has another identity, whether the bits differ or not. */
void invar_ci_check_identity(invar_ci_result *out);

/*
 * Fills the fields of the result that come from both sides, and the verdict SAME, CHANGED or
 * NOTHING.
 */
invar_status invar_ci_compare(invar_ci_result *out, const invar_ci_side *was,
                              const invar_ci_side *is) INVAR_MUST_USE;

/* Reads the golden at `path`, and its points if they belong to it. */
invar_status invar_ci_side_read(invar_ci_side *out, const char *path) INVAR_MUST_USE;

#endif
