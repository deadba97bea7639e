/*
 * internal.h - what the files of the diff share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_DIFF_INTERNAL_H
#define INVAR_LEDGER_VIEW_DIFF_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/number.h"
#include "base/status.h"
#include "ledger/store/sql.h"
#include "ledger/view/diff/diff.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- memory: handed out piece by piece, given back by invar_diff_free ------------------------ */

/* *out = count * size bytes of zeros. */
invar_status invar_diff_alloc(void **out, invar_diff *diff, size_t count,
                              size_t size) INVAR_MUST_USE;

/*
 * A printable copy. Different texts have different copies: a backslash that would read as one of
 * our escapes is escaped itself.
 */
invar_status invar_diff_text(const char **out, invar_diff *diff, const char *text,
                             size_t bytes) INVAR_MUST_USE;

/* The same of a column of the current row. */
invar_status invar_diff_column(const char **out, invar_diff *diff, invar_sql_stmt *stmt,
                               int column) INVAR_MUST_USE;

/* The copy as if by printf. */
invar_status invar_diff_format(const char **out, invar_diff *diff, const char *format,
                               ...) INVAR_MUST_USE INVAR_PRINTF(3, 4);

typedef struct invar_diff_list {
    void *data;
    size_t count, room;
} invar_diff_list;

/* One more element of `size` bytes, zeroed. Pointers to earlier ones are void. */
invar_status invar_diff_add(void **out, invar_diff *diff, invar_diff_list *list,
                            size_t size) INVAR_MUST_USE;

/* ---- two sorted results side by side --------------------------------------------------------- */

typedef struct invar_diff_join {
    invar_sql_stmt *a, *b;
    int keys;        /* how many first columns identify a row; both results are sorted by them */
    bool in_a, in_b; /* the current row is on this side */
    bool started, more_a, more_b;
} invar_diff_join;

/* Moves on; *row_out: there is a row, on one side or both. */
invar_status invar_diff_join_next(bool *row_out, invar_diff_join *join) INVAR_MUST_USE;
void invar_diff_join_release(invar_diff_join *join);

/* True when a column says the same on both sides. */
bool invar_diff_join_same(const invar_diff_join *join, int column);

/* ---- one execution of one step --------------------------------------------------------------- */

typedef struct invar_diff_source {
    invar_sql *sql;
    int64_t run, step, seg;
    int64_t newest; /* segment whose evaluations count */
    invar_diff_side *side;
} invar_diff_source;

/* "ledger PATH, run 3: WHAT; run `invar ledger verify`", with INVAR_E_CORRUPT. */
invar_status invar_diff_corrupt(const invar_diff_source *source, const char *what);

/* A statement with ?1 = run, ?2 = step, ?3 = segment, ?4 = newest segment. */
invar_status invar_diff_prepare(invar_sql_stmt **out, const invar_diff_source *source,
                                const char *text) INVAR_MUST_USE;

/* Fills in changes, points, culprit, groups: compare_points.c. */
invar_status invar_diff_compare_points(invar_diff *diff, const invar_diff_source *a,
                                       const invar_diff_source *b) INVAR_MUST_USE;

/* Fills in facts and twins, of the segments `step` to `seg`: facts.c. */
invar_status invar_diff_compare_facts(invar_diff *diff, const invar_diff_source *a,
                                      const invar_diff_source *b) INVAR_MUST_USE;

/* The fact that says that two programs or plug-ins were at work; NULL: none: facts.c. */
const invar_diff_fact *invar_diff_program_change(const invar_diff *diff);

/* Fills in metrics, samples and replies: records.c. */
invar_status invar_diff_compare_records(invar_diff *diff, const invar_diff_source *a,
                                        const invar_diff_source *b) INVAR_MUST_USE;

/*
 * The first step from -1 to the sources' whose evaluations have different values; with `alone`, the
 * first with an evaluation that only one side has, which contradicts nothing.
 */
invar_status invar_diff_compare_evaluations(bool *found_out, int64_t *step_out,
                                            const invar_diff_source *a, const invar_diff_source *b,
                                            bool alone) INVAR_MUST_USE;

/* The step that points and records are of: the divergent one, or the last common one; -1: none. */
int64_t invar_diff_compared_step(const invar_diff *diff);

/*
 * The first difference was recorded without the inputs of its point: training that is executed
 * again can name the op.
 */
bool invar_diff_replay_would_help(const invar_diff *diff);

/* ---- printing -------------------------------------------------------------------------------- */

/* The shortest decimal that means these bits; "?" when there is no memory for it. */
void invar_diff_number(char out[INVAR_NUMBER_SIZE], double value);

/* "yes", "no", "not recorded"; in JSON true, false, null, a new reference. */
const char *invar_tristate_name(invar_tristate answer);
json_t *invar_tristate_json(invar_tristate answer);

/* "12 ulp (fp32)"; empty if there is no distance. */
void invar_diff_distance(char out[INVAR_NUMBER_SIZE], const invar_diff_metric *metric);

#ifdef __cplusplus
}
#endif
#endif
