/*
 * ci_internal.h - what the files of ci share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_CI_CI_INTERNAL_H
#define INVAR_BISECT_CI_CI_INTERNAL_H

#include "bisect/ci/ci.h"
#include "bisect/workspace/workspace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- chaos: a run otherwise, to the same bits ------------------------------------------------ */

#define INVAR_CHAOS_ITEMS 20
#define INVAR_CHAOS_WORD 96

typedef enum invar_chaos_kind {
    INVAR_CHAOS_FLAGS,    /* words of the command line: free keys */
    INVAR_CHAOS_VARIABLE, /* of the environment */
    INVAR_CHAOS_PREFIX,   /* a command before the program */
    INVAR_CHAOS_ADDRESSES,
    INVAR_CHAOS_FOLDER
} invar_chaos_kind;

/* One thing that is otherwise. */
typedef struct invar_chaos_item {
    invar_chaos_kind kind;
    char words[2][INVAR_CHAOS_WORD]; /* "": none */
    char description[INVAR_CHAOS_WORD];
} invar_chaos_item;

typedef struct invar_chaos {
    invar_chaos_item items[INVAR_CHAOS_ITEMS];
    size_t count;
} invar_chaos;

/* All of them, or one, as a run needs them; borrows the texts. */
typedef struct invar_chaos_run {
    const char *flags[2 * INVAR_CHAOS_ITEMS + 1];
    const char *environment[INVAR_CHAOS_ITEMS + 1];
    const char *prefix; /* NULL: none */
    bool same_addresses, other_folder;
    char told[INVAR_CI_STORY];
} invar_chaos_run;

#define INVAR_CHAOS_ALL (-1)

void invar_chaos_compose(invar_chaos_run *out, const invar_chaos *chaos, int item);

#define INVAR_CHAOS_LOCALES 64

/* What the machine has to vary. */
typedef struct invar_chaos_locales {
    char names[INVAR_CHAOS_LOCALES][40];
    size_t count;
} invar_chaos_locales;

/* Asks `locale -a`; a file for its answer lies in `folder` meanwhile. */
invar_status invar_chaos_list_locales(invar_chaos_locales *out, const char *folder) INVAR_MUST_USE;

/* The run `number` of a case: a pure function of its arguments. */
void invar_chaos_generate(invar_chaos *out, const invar_chaos_locales *locales, int64_t seed,
                          const char *name, int64_t number);

/* ---- what is compared ------------------------------------------------------------------------ */

/* A golden, or a run as one, with its points (NULL: none are known). */
typedef struct invar_ci_side {
    invar_golden *golden;
    invar_golden_points *points;
} invar_ci_side;

void invar_ci_side_free(invar_ci_side *side);

/*
 * A golden of another length is OBSOLETE where its bits are the same: `made` steps were run, and
 * at least `asked` wanted (0: all).
 */
void invar_ci_check_length(invar_ci_result *out, int64_t made, int64_t asked);

/* A golden of another identity is OBSOLETE, whatever the bits are. */
void invar_ci_check_identity(invar_ci_result *out);

/* Fills everything of the result that both sides say, and the verdict SAME, CHANGED or NOTHING. */
invar_status invar_ci_compare(invar_ci_result *out, const invar_ci_side *was,
                              const invar_ci_side *is) INVAR_MUST_USE;

/* The golden at `path` and the points beside it, if they fit. */
invar_status invar_ci_side_read(invar_ci_side *out, const char *path) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
