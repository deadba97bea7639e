/*
 * golden.h - goldens: a run as a reviewable text file that later runs are compared with in CI.
 *
 * NAME.golden has one line per step with its hashes, which are the same on all hardware:
 *
 *     # invar golden 2
 *     # one line a step: step, chain, root, bits of the loss (docs/formats.md)
 *     name quickstart
 *     identity 531b...            hash of the run's identity
 *     manifest 90ab...            hash of the points that were recorded
 *     ops adamw 1, add 1, ...     revisions of the ops, several per line
 *     generator invar 0.1.0, train
 *     accepted 1: WHO, COMMIT, REASON
 *     0 5d1e... 77c2... 3fe1d2...
 *
 * NAME.points beside it has 8 digits of the digest of every point of level 0, of every step at
 * first and then of some. They suffice to find the first point that differs without running the old
 * version again.
 *
 * Both files may come from an untrusted source. A file that differs in any byte from the text that
 * would be written for its content is rejected with the number of the line; so is a chain that does
 * not follow from its roots.
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

/* ---- the golden ------------------------------------------------------------------------------ */

#define INVAR_GOLDEN_OPS 1024
#define INVAR_GOLDEN_ACCEPTED 1024
#define INVAR_GOLDEN_TEXT 1024 /* bytes of a line of history, with the NUL */

typedef struct invar_golden_op {
    const char *name, *revision;
} invar_golden_op;

typedef struct invar_golden_step {
    invar_digest chain, root;
    bool has_loss;
    uint64_t loss; /* bits of train/loss, if has_loss */
} invar_golden_step;

typedef struct invar_golden {
    const char *name, *generator;
    invar_digest identity, manifest;
    size_t n_ops, n_accepted;
    invar_golden_op ops[INVAR_GOLDEN_OPS];       /* (n_ops) sorted by name */
    const char *accepted[INVAR_GOLDEN_ACCEPTED]; /* (n_accepted) "WHO, COMMIT, REASON", oldest
                                                    first */
    invar_golden_step *steps;                    /* (n_steps) steps from 0; owned */
    int64_t n_steps;
    int64_t first_line; /* line of step 0 in the file, for messages */
    char *memory;       /* memory of the strings; owned */
} invar_golden;

/*
 * Parses a golden. `where` names the text in messages. The caller frees *out with
 * invar_golden_free. Returns INVAR_E_CORRUPT if the text is not a golden, INVAR_E_UNSUPPORTED for
 * another version.
 */
invar_status invar_golden_parse(invar_golden **out, const char *where, const char *text,
                                size_t bytes) INVAR_MUST_USE;

/* Like invar_golden_parse, for a file. Returns INVAR_E_NOTFOUND if it does not exist. */
invar_status invar_golden_read(invar_golden **out, const char *path) INVAR_MUST_USE;

/*
 * Makes a golden of a run. `generator` is the program that made it: "invar 0.1.0, train". Returns
 * INVAR_E_UNSUPPORTED if the run does not begin at step 0.
 */
invar_status invar_golden_from_run(invar_golden **out, invar_ledger *ledger, int64_t run,
                                   const char *generator) INVAR_MUST_USE;
void invar_golden_free(invar_golden *golden); /* `golden` may be NULL */

/* *out = the text of a golden. The caller frees *out with invar_free. */
invar_status invar_golden_print(char **out, size_t *bytes_out,
                                const invar_golden *golden) INVAR_MUST_USE;

/*
 * *out = a copy of a golden with the history of `before` instead of its own, and `entry` as a new
 * line of history. Both may be NULL. The caller frees *out with invar_golden_free.
 */
invar_status invar_golden_accept(invar_golden **out, const invar_golden *golden,
                                 const invar_golden *before, const char *entry) INVAR_MUST_USE;

/* Writes a golden to a file, atomically. Replaces only a golden. */
invar_status invar_golden_write(const char *path, const invar_golden *golden) INVAR_MUST_USE;

typedef enum invar_golden_verdict {
    INVAR_GOLDEN_SAME,
    INVAR_GOLDEN_CHANGED,
    INVAR_GOLDEN_NOTHING /* no common step */
} invar_golden_verdict;

#define INVAR_GOLDEN_SHOWN 16 /* maximum number of listed changes */

typedef struct invar_golden_op_change {
    const char *name;
    const char *old_revision, *new_revision; /* NULL if the side does not have the op */
} invar_golden_op_change;

typedef struct invar_golden_comparison {
    invar_golden_verdict verdict;
    int64_t compared;   /* number of steps compared: those that both have */
    int64_t steps;      /* number of steps of `was` */
    int64_t first;      /* first step whose chain or loss differs; -1 if all are equal */
    bool same_identity; /* the runs have the same identity */
    bool same_manifest; /* the runs recorded the same points */
    bool only_loss;     /* at `first` only the loss differs */
    size_t ops_differ;  /* number of ops whose revision differs */
    invar_golden_op_change
        ops[INVAR_GOLDEN_SHOWN]; /* the first of them; borrows from the goldens */
} invar_golden_comparison;

/* Compares the steps that both goldens have, and the revisions of the ops. */
void invar_golden_compare(invar_golden_comparison *out, const invar_golden *was,
                          const invar_golden *is);

/* ---- the points of a golden ------------------------------------------------------------------ */

#define INVAR_GOLDEN_DIGITS 8 /* hexadecimal digits that are kept of a point's digest */

typedef struct invar_golden_point {
    int64_t ord; /* index in the manifest */
    const char *name, *phase, *op, *kind, *dtype, *shape;
    int64_t layer;      /* -1 if the point belongs to no layer */
    const char *inputs; /* "0,3": ords of listed points that the point is computed from; "-" if it
                           has none */
} invar_golden_point;

typedef struct invar_golden_values {
    int64_t step;
    const char *digits; /* (n_points * INVAR_GOLDEN_DIGITS) digits of all points */
} invar_golden_values;

typedef struct invar_golden_points {
    const char *name;
    invar_digest identity, manifest;
    int64_t last_step;          /* last step of the golden; -1 if it has no steps */
    invar_digest chain;         /* chain at last_step, which ties the points to their golden */
    invar_golden_point *points; /* (n_points) ascending by ord; owned */
    size_t n_points;
    invar_golden_values *values; /* (n_values) ascending by step; owned */
    size_t n_values;
    char *memory; /* memory of the strings; owned */
} invar_golden_points;

/* Like the functions of goldens without "points" in their names. */
invar_status invar_golden_points_parse(invar_golden_points **out, const char *where,
                                       const char *text, size_t bytes) INVAR_MUST_USE;
invar_status invar_golden_points_of_run(invar_golden_points **out, invar_ledger *ledger,
                                        int64_t run) INVAR_MUST_USE;
void invar_golden_points_free(invar_golden_points *points);
invar_status invar_golden_points_print(char **out, size_t *bytes_out,
                                       const invar_golden_points *points) INVAR_MUST_USE;
invar_status invar_golden_points_write(const char *path,
                                       const invar_golden_points *points) INVAR_MUST_USE;

/*
 * Reads the points of a golden that was read from `path`. *out is NULL if the file does not exist
 * or belongs to another version of the golden; a damaged file is a failure. The caller frees *out
 * with invar_golden_points_free.
 */
invar_status invar_golden_points_beside(invar_golden_points **out, const invar_golden *golden,
                                        const char *path) INVAR_MUST_USE;

#define INVAR_GOLDEN_NAME (INVAR_LEDGER_NAME_BYTES + 1)
#define INVAR_GOLDEN_CHANGE 192 /* bytes of the text of a change, with the NUL */

/* The first point that differs between two runs. */
typedef struct invar_golden_divergence {
    bool known;   /* a point that differs was found */
    bool exact;   /* found at the requested step; otherwise at a later one, where the difference may
                   be a consequence */
    int64_t step; /* step whose points were compared; -1 if no step is recorded on both sides */
    char point[INVAR_GOLDEN_NAME], phase[INVAR_GOLDEN_NAME], op[INVAR_GOLDEN_NAME];
    char kind[INVAR_GOLDEN_NAME], dtype[INVAR_GOLDEN_NAME], shape[INVAR_GOLDEN_NAME];
    int64_t layer; /* -1 if the point belongs to no layer */
    char was[INVAR_GOLDEN_DIGITS + 1], is[INVAR_GOLDEN_DIGITS + 1]; /* digits of the digests */
    int64_t different, equal; /* number of points at `step` that differ, and that are equal */
    size_t n_changes;         /* number of differences between the manifests */
    char changes[INVAR_GOLDEN_SHOWN][INVAR_GOLDEN_CHANGE]; /* texts of the first of them */
} invar_golden_divergence;

/*
 * Finds the first point, in order of execution, that differs at `step`, the first divergent step,
 * or at the next step that both sides recorded. Its inputs precede it and are therefore equal. Also
 * lists the differences between the manifests.
 */
invar_status invar_golden_localize(invar_golden_divergence *out, const invar_golden_points *was,
                                   const invar_golden_points *is, int64_t step) INVAR_MUST_USE;

#define INVAR_GOLDEN_HEADLINE 768

/*
 * Writes the divergence as one line: "step 7, point layer.1.mlp.out (forward, layer 1,
 * swiglu.fwd)". `first` is the first divergent step.
 */
void invar_golden_divergence_describe(char out[INVAR_GOLDEN_HEADLINE],
                                      const invar_golden_divergence *divergence, int64_t first);

/*
 * Writes the path of the points to `out`: NAME.points for NAME.golden, NAME.points.new for
 * NAME.golden.new, else PATH.points.
 */
invar_status invar_golden_points_path(char *out, size_t size, const char *golden) INVAR_MUST_USE;

/* ---- both files ------------------------------------------------------------------------------ */

/* Checks that golden and points can be written at `path` without replacing any other file. */
invar_status invar_golden_check_output(const char *path) INVAR_MUST_USE;

/*
 * Writes the golden of a run and its points. Keeps the history of a golden that exists at `path`
 * unless it cannot be read.
 */
invar_status invar_golden_record(const char *path, invar_ledger *ledger, int64_t run,
                                 const char *generator) INVAR_MUST_USE;

#endif
