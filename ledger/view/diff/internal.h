/*
 * internal.h - shared by the files of the diff. Private to ledger/view/diff/.
 *
 * Memory of a diff, the join of two results that are sorted alike, and the comparisons of one step,
 * each of which fills its fields of invar_diff.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_DIFF_INTERNAL_H
#define INVAR_LEDGER_VIEW_DIFF_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/number.h"
#include "base/status.h"
#include "ledger/store/sql.h"
#include "ledger/view/diff/diff.h"

/* ---- memory of a diff, which invar_diff_free frees as a whole -------------------------------- */

/*
 * Assigns `count` zeroed items to `pointer`, owned by the diff. The value is an invar_status, with
 * which `pointer` is NULL after a failure.
 */
#define INVAR_DIFF_ALLOC(pointer, diff, count)                                                     \
    (INVAR_ALLOC_ASSIGN(pointer, invar_diff_alloc(diff, count, sizeof *(pointer)))                 \
         ? INVAR_OK                                                                                \
         : INVAR_E_NOMEM)
void *invar_diff_alloc(invar_diff *diff, size_t count, size_t size);

/*
 * Appends a value, a compound literal, to a list of items and count, which is zeroed at first and
 * owned by the diff. The value is an invar_status. Invalidates pointers to earlier items.
 */
#define INVAR_DIFF_ADD(list, diff, ...)                                                            \
    (INVAR_ALLOC_ASSIGN(                                                                           \
         (list).items, invar_diff_append(diff, (list).items, &(list).count, sizeof *(list).items)) \
         ? ((list).items[(list).count - 1] = (__VA_ARGS__), INVAR_OK)                              \
         : INVAR_E_NOMEM)
void *invar_diff_append(invar_diff *diff, void *items, size_t *count, size_t size);

/*
 * *out = a printable copy of the text, owned by the diff. Unprintable bytes are escaped, and so is
 * a backslash that would read as an escape. So different texts have different copies.
 */
invar_status invar_diff_text(const char **out, invar_diff *diff, const char *text,
                             size_t bytes) INVAR_MUST_USE;

/* Like invar_diff_text, for a column of the current row. */
invar_status invar_diff_column(const char **out, invar_diff *diff, invar_sql_stmt *stmt,
                               int column) INVAR_MUST_USE;

/* *out = text formatted as by printf, owned by the diff. Nothing is escaped. */
invar_status invar_diff_format(const char **out, invar_diff *diff, const char *format,
                               ...) INVAR_MUST_USE INVAR_PRINTF(3, 4);

/* ---- two sorted results side by side --------------------------------------------------------- */

/* A full join of two results that are sorted by the same keys. */
typedef struct invar_diff_join {
    invar_sql_stmt *a, *b; /* owned */
    int keys;        /* number of first columns that identify a row; results are sorted by them */
    bool in_a, in_b; /* the current row is on this side */
    bool more_a, more_b;
} invar_diff_join;

/* ---- one execution of one step --------------------------------------------------------------- */

/* One side of a comparison: an execution of a step. */
typedef struct invar_diff_source {
    invar_sql *sql;
    int64_t run, step, seg;
    int64_t newest; /* last segment to read: evaluations of later ones are ignored */
    invar_diff_side *side;
} invar_diff_source;

/* Fails with INVAR_E_CORRUPT: "ledger PATH, run 3: WHAT; see `invar ledger verify`". */
invar_status invar_diff_corrupt(const invar_diff_source *source, const char *what);

/*
 * Prepares a statement with ?1 = run, ?2 = step, ?3 = segment and ?4 = newest segment, as far as it
 * has these parameters. The caller frees *out with invar_sql_free.
 */
invar_status invar_diff_prepare(invar_sql_stmt **out, const invar_diff_source *source,
                                const char *text) INVAR_MUST_USE;

/*
 * Joins the results of a statement on both sides, as invar_diff_prepare makes it. The caller ends
 * the join, also after a failure; invar_diff_join_end returns `status`.
 */
invar_status invar_diff_join_open(invar_diff_join *join, const invar_diff_source *a,
                                  const invar_diff_source *b, const char *text,
                                  int keys) INVAR_MUST_USE;
invar_status invar_diff_join_end(invar_diff_join *join, invar_status status) INVAR_MUST_USE;

/* Advances to the next key. Fails and ends like invar_sql_next. */
bool invar_diff_join_next(invar_status *status, invar_diff_join *join);

/* True if a column has equal values on both sides; the current row must be on both. */
bool invar_diff_join_same(const invar_diff_join *join, int column);

/* Compares the points: sets changes, points, culprit and groups (compare_points.c). */
invar_status invar_diff_compare_points(invar_diff *diff, const invar_diff_source *a,
                                       const invar_diff_source *b) INVAR_MUST_USE;

/*
 * Compares facts: sets facts and same_inputs (facts.c). Here `step` of a source is the first
 * segment whose facts are read, and `seg` the last.
 */
invar_status invar_diff_compare_facts(invar_diff *diff, const invar_diff_source *a,
                                      const invar_diff_source *b) INVAR_MUST_USE;

/*
 * Returns the differing fact that shows two programs or two versions of a plug-in; NULL if there is
 * none (facts.c).
 */
const invar_diff_fact *invar_diff_program_change(const invar_diff *diff);

/* Compares records: sets metrics, samples and replies (records.c). */
invar_status invar_diff_compare_records(invar_diff *diff, const invar_diff_source *a,
                                        const invar_diff_source *b) INVAR_MUST_USE;

/*
 * Finds the first step with evaluations of different values. Here `seg` of a source is the first
 * step that is examined, and `step` the last. With `alone`, finds instead the first step with an
 * evaluation that only one side has, which is no contradiction.
 */
invar_status invar_diff_compare_evaluations(bool *found_out, int64_t *step_out,
                                            const invar_diff_source *a, const invar_diff_source *b,
                                            bool alone) INVAR_MUST_USE;

/*
 * Returns the step whose points and records are compared: the divergent one, or the last common
 * one; -1 if there is none.
 */
int64_t invar_diff_compared_step(const invar_diff *diff);

/*
 * True if the first point that differs was recorded without its inputs, so that only a replay with
 * all points can name the op.
 */
bool invar_diff_replay_would_help(const invar_diff *diff);

/* ---- printing -------------------------------------------------------------------------------- */

/* Writes the shortest decimal number that reads back as `value`; "?" for lack of memory. */
void invar_diff_number(char out[INVAR_NUMBER_SIZE], double value);

/* Return "yes", "no" or "not recorded", or in JSON true, false or null (a new reference). */
const char *invar_tristate_name(invar_tristate answer);
json_t *invar_tristate_json(invar_tristate answer);

/* Returns the complete diff as a JSON object, or NULL without memory. */
json_t *invar_diff_object(const invar_diff *diff);

/* Writes the distance of two values, such as "12 ulp (fp32)"; empty if there is no distance. */
void invar_diff_distance(char out[INVAR_NUMBER_SIZE], const invar_diff_metric *metric);

#endif
