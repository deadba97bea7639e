/*
 * golden.h - a run as reviewable text that other runs are compared with.
 *
 * NAME.golden says what the bits were, one line a step, the same on all hardware:
 *
 *     # invar golden 2
 *     # one line a step: step, chain, root, bits of the loss (docs/formats.md)
 *     name quickstart
 *     identity 531b...            what was asked for
 *     manifest 90ab...            which points were hashed
 *     ops adamw 1, add 1, ...     the revisions of the ops, some on a line
 *     generator invar 0.1.0, train
 *     accepted 1: WHO, COMMIT, REASON
 *     0 5d1e... 77c2... 3fe1d2...
 *
 * NAME.points beside it has 8 digits of every point's digest, of every step at first and then of
 * some: enough to say where a difference begins without running the good side again.
 *
 * Both may come from anywhere. A file that is not, byte for byte, what would be written for its
 * content is refused with the line; so is a chain that its roots do not give.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_GOLDEN_GOLDEN_H
#define INVAR_LEDGER_VIEW_GOLDEN_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the golden ------------------------------------------------------------------------------ */

#define INVAR_GOLDEN_OPS 1024
#define INVAR_GOLDEN_ACCEPTED 1024
#define INVAR_GOLDEN_TEXT 1024 /* room for a line of history */

typedef struct invar_golden_op {
    const char *name, *revision;
} invar_golden_op;

typedef struct invar_golden_step {
    invar_digest chain, root;
    bool has_loss;
    uint64_t loss; /* the bits of train/loss */
} invar_golden_step;

typedef struct invar_golden {
    const char *name, *generator;
    invar_digest identity, manifest;
    size_t n_ops, n_accepted;
    invar_golden_op ops[INVAR_GOLDEN_OPS];       /* by name */
    const char *accepted[INVAR_GOLDEN_ACCEPTED]; /* "WHO, COMMIT, REASON", the oldest first */
    invar_golden_step *steps;                    /* (n_steps) from step 0 on */
    int64_t n_steps;
    int64_t first_line; /* of the file: that of step 0 */
    char *memory;       /* that the strings lie in */
} invar_golden;

/* `where` names the text in messages. INVAR_E_CORRUPT; INVAR_E_UNSUPPORTED: another version. */
invar_status invar_golden_parse(invar_golden **out, const char *where, const char *text,
                                size_t bytes) INVAR_MUST_USE;

/* INVAR_E_NOTFOUND: no such file. */
invar_status invar_golden_read(invar_golden **out, const char *path) INVAR_MUST_USE;

/* A run as a golden; `generator` says who made it. */
invar_status invar_golden_from_run(invar_golden **out, invar_ledger *ledger, int64_t run,
                                   const char *generator) INVAR_MUST_USE;
void invar_golden_free(invar_golden *golden); /* NULL is allowed */

/* The text; the caller owns *out (invar_free). */
invar_status invar_golden_print(char **out, size_t *bytes_out,
                                const invar_golden *golden) INVAR_MUST_USE;

/* A copy with the history of `before` (NULL: none) and, where `entry` is given, one line more. */
invar_status invar_golden_accept(invar_golden **out, const invar_golden *golden,
                                 const invar_golden *before, const char *entry) INVAR_MUST_USE;

/* Atomically. */
invar_status invar_golden_write(const char *path, const invar_golden *golden) INVAR_MUST_USE;

typedef enum invar_golden_verdict {
    INVAR_GOLDEN_SAME,
    INVAR_GOLDEN_CHANGED,
    INVAR_GOLDEN_NOTHING /* no step in common */
} invar_golden_verdict;

#define INVAR_GOLDEN_SHOWN 16

typedef struct invar_golden_op_change {
    const char *name;
    const char *old_revision, *new_revision; /* revisions; NULL: not there */
} invar_golden_op_change;

typedef struct invar_golden_comparison {
    invar_golden_verdict verdict;
    int64_t compared;   /* steps */
    int64_t steps;      /* of the golden */
    int64_t first;      /* step whose chain or loss differs; -1: none */
    bool same_identity; /* the same was asked for */
    bool same_manifest; /* the same points were hashed */
    bool only_loss;     /* at `first` the chains are equal */
    size_t ops_differ;  /* of them the first are listed; strings of both goldens */
    invar_golden_op_change ops[INVAR_GOLDEN_SHOWN];
} invar_golden_comparison;

/* As far as both go. */
void invar_golden_compare(invar_golden_comparison *out, const invar_golden *was,
                          const invar_golden *is);

/* ---- its points ------------------------------------------------------------------------------ */

#define INVAR_GOLDEN_DIGITS 8 /* of a point's digest */

typedef struct invar_golden_point {
    int64_t ord; /* in the manifest */
    const char *name, *phase, *op, *kind, *dtype, *shape;
    int64_t layer;      /* -1: of no layer */
    const char *inputs; /* "0,3": ords of the points here that it is computed from; "-": none */
} invar_golden_point;

typedef struct invar_golden_values {
    int64_t step;
    const char *digits; /* INVAR_GOLDEN_DIGITS a point */
} invar_golden_values;

typedef struct invar_golden_points {
    const char *name;
    invar_digest identity, manifest;
    int64_t last_step;  /* of the golden that it belongs to; -1: it has none */
    invar_digest chain; /* there */
    invar_golden_point *points;
    size_t n_points;
    invar_golden_values *values; /* ascending */
    size_t n_values;
    char *memory;
} invar_golden_points;

/* As their counterparts above. */
invar_status invar_golden_points_parse(invar_golden_points **out, const char *where,
                                       const char *text, size_t bytes) INVAR_MUST_USE;
invar_status invar_golden_points_read(invar_golden_points **out, const char *path) INVAR_MUST_USE;
invar_status invar_golden_points_of_run(invar_golden_points **out, invar_ledger *ledger,
                                        int64_t run) INVAR_MUST_USE;
void invar_golden_points_free(invar_golden_points *points);
invar_status invar_golden_points_print(char **out, size_t *bytes_out,
                                       const invar_golden_points *points) INVAR_MUST_USE;
invar_status invar_golden_points_write(const char *path,
                                       const invar_golden_points *points) INVAR_MUST_USE;

/*
 * The points beside a golden that was read from `path`, for the caller to free; NULL where there
 * are none, or those of a golden before or after it. Damaged ones are a failure.
 */
invar_status invar_golden_points_beside(invar_golden_points **out, const invar_golden *golden,
                                        const char *path) INVAR_MUST_USE;

#define INVAR_GOLDEN_NAME (INVAR_LEDGER_NAME_BYTES + 1)
#define INVAR_GOLDEN_CHANGE 192

typedef struct invar_golden_divergence {
    bool known; /* a point that differs was found */
    bool exact; /* at the very step that was asked for; else at a later one, of a run long parted */
    int64_t step; /* that was compared; -1: none of both is recorded */
    char point[INVAR_GOLDEN_NAME], phase[INVAR_GOLDEN_NAME], op[INVAR_GOLDEN_NAME];
    char kind[INVAR_GOLDEN_NAME], dtype[INVAR_GOLDEN_NAME], shape[INVAR_GOLDEN_NAME];
    int64_t layer; /* -1: of no layer */
    char was[INVAR_GOLDEN_DIGITS + 1], is[INVAR_GOLDEN_DIGITS + 1];
    int64_t different, equal; /* points at that step */
    size_t n_changes;         /* of what is computed; of them the first are listed */
    char changes[INVAR_GOLDEN_SHOWN][INVAR_GOLDEN_CHANGE];
} invar_golden_divergence;

/*
 * Where runs that part at `step` part: the first point in order of execution that differs, whose
 * inputs, all before it, are therefore equal; and what one side computes and the other does not.
 */
invar_status invar_golden_localise(invar_golden_divergence *out, const invar_golden_points *was,
                                   const invar_golden_points *is, int64_t step) INVAR_MUST_USE;

#define INVAR_GOLDEN_HEADLINE 768

/* The place in one line, "step 7, point layer.1.mlp.out (forward, layer 1, swiglu.fwd)". */
void invar_golden_divergence_tell(char out[INVAR_GOLDEN_HEADLINE],
                                  const invar_golden_divergence *place, int64_t first);

/* NAME.points for NAME.golden, else PATH.points. */
invar_status invar_golden_points_path(char *out, size_t size, const char *golden) INVAR_MUST_USE;

/* ---- both files ------------------------------------------------------------------------------ */

/* Fails where a file lies that is neither a golden, nor its points in their place. */
invar_status invar_golden_check_output(const char *path) INVAR_MUST_USE;

/* Writes the golden of a run and its points; a golden that is there hands on its history. */
invar_status invar_golden_record(const char *path, invar_ledger *ledger, int64_t run,
                                 const char *generator) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
