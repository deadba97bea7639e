/*
 * diff.h - compares two runs: the first step, point and op at which they differ, and all else.
 *
 * A chain that differs at one step differs at every later one, so the first divergent step is found
 * by binary search over the chains. At that step the points are compared by name; the culprit is
 * the first point whose inputs are all equal and whose value is not. If a run executed a step twice
 * with two results, it is compared with itself instead: nothing else that it records can be
 * trusted.
 *
 * The search costs a logarithm of the number of steps. If the chains are equal, the steps are read
 * once from end to end, and so are steps that were executed twice, because "identical" also covers
 * metrics, samples, replies and evaluations. Runs with the same steps are identical exactly if
 * their content hashes (invar_ledger_content_hash) are equal and neither run contradicts itself.
 *
 * All text in the result is printable UTF-8: control characters and invalid bytes are "\xNN".
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_DIFF_DIFF_H
#define INVAR_LEDGER_VIEW_DIFF_DIFF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/hash.h"
#include "base/status.h"
#include "ledger/ledger.h"

typedef enum invar_diff_verdict {
    INVAR_DIFF_VERDICT_IDENTICAL,        /* equal in all common steps */
    INVAR_DIFF_VERDICT_DIFFERENT,        /* bits differ, and so do inputs or program */
    INVAR_DIFF_VERDICT_NONDETERMINISTIC, /* bits differ with the same program and inputs, see
                                            same_inputs, or between two executions in one run */
    INVAR_DIFF_VERDICT_NOTHING           /* no common step */
} invar_diff_verdict;

/* One of the two sides. A field "of the compared step" is about invar_diff.step. */
typedef struct invar_diff_side {
    const char *ledger; /* path of the ledger */
    int64_t run;        /* number of the run in the ledger */
    const char *uuid, *name, *kind;
    bool replayable; /* the run has free keys of a recipe, so this program can replay it */
    int64_t segments;
    int64_t first_step, last_step; /* both -1 if the run has no steps */
    int64_t seg;              /* segment that executed or evaluated the compared step; -1 if none */
    invar_digest root, chain; /* root and chain of the compared step */
    bool digests;   /* the ledger has the digests of the compared step; false for a pruned copy */
    int64_t points; /* number of points in the manifest of the compared step */
} invar_diff_side;

/* A fact that differs. The values of a run that had several over its segments are in one text. */
typedef struct invar_diff_fact {
    const char *scope; /* identity run build host gpu free ... */
    const char *key;
    const char *a, *b; /* values; NULL if the side does not have the fact */
} invar_diff_fact;

/* A difference between the manifests, that is, between the computations and not their numbers. */
typedef struct invar_diff_manifest_change {
    const char *point; /* name of the point */
    const char *what;  /* "point" (one side lacks it), "order", or a field: "shape" "inputs" ... */
    const char *a, *b; /* values; NULL if the side does not have the point */
} invar_diff_manifest_change;

/* A point that both sides have, in the same shape, with different values. */
typedef struct invar_diff_point {
    const char *name, *phase, *op, *kind, *dtype, *shape; /* values of side A */
    int64_t ord;                                          /* index in side A's order of execution */
    int64_t layer;                                        /* -1 if the point belongs to no layer */
    int64_t level;                                        /* 0 if the point is part of the root */
    int64_t inputs; /* number of points that the point is computed from */
    bool is_origin; /* the difference arises here: all inputs are equal, or no inputs are recorded
                       and it is the first differing point */
    bool inputs_differ; /* the sides compute the point from different points; the inputs of both
                           sides must be equal for is_origin */
    bool fused;         /* both sides also recorded the result of the call's parts, NAME.parts */
    bool fused_mismatch_a,
        fused_mismatch_b; /* the fused call differs from its parts on this side */
    bool parts_equal;     /* the parts are equal on both sides */
    invar_digest a, b;    /* digests of the point */
} invar_diff_point;

/* Counts of points of one phase and layer. Phases are in order of execution, layers ascending. */
typedef struct invar_diff_group {
    const char *phase;
    int64_t layer; /* -1 for points of no layer */
    int64_t equal, different;
} invar_diff_group;

/* A metric or evaluation result whose bits differ; INVAR_LEDGER_EVALUATION names results. */
typedef struct invar_diff_metric {
    const char *name;
    bool in_a, in_b;
    double a, b;  /* values, any bits */
    uint64_t ulp; /* distance in units in the last place; 0 if a value is NaN or absent */
    bool f32;     /* ulp is of fp32, because both are fp32 numbers; otherwise of fp64 */
} invar_diff_metric;

/* Returns the format of `ulp`: "fp32" or "fp64". */
const char *invar_diff_ulp_format(const invar_diff_metric *metric);

/* Fields in which a sample can differ. */
enum {
    INVAR_DIFF_SAMPLE_PROMPT = 1 << 0,  /* another prompt */
    INVAR_DIFF_SAMPLE_RNG = 1 << 1,     /* other random coordinates */
    INVAR_DIFF_SAMPLE_WEIGHTS = 1 << 2, /* sampled with other weights */
    INVAR_DIFF_SAMPLE_TOKENS = 1 << 3,
    INVAR_DIFF_SAMPLE_ROLLOUT = 1 << 4, /* log-probs of the rollout */
    INVAR_DIFF_SAMPLE_TRAIN = 1 << 5,   /* log-probs of training */
    INVAR_DIFF_SAMPLE_GAP = 1 << 6,     /* the largest difference between the two */
    INVAR_DIFF_SAMPLE_REWARD = 1 << 7,
    INVAR_DIFF_SAMPLE_ADVANTAGE = 1 << 8,
    INVAR_DIFF_SAMPLE_FINISH = 1 << 9
};
#define INVAR_DIFF_SAMPLE_FIELDS 10

typedef struct invar_diff_sample {
    int64_t idx;                /* index in the batch */
    bool in_a, in_b;            /* the side has the sample */
    int64_t prompt_a, prompt_b; /* index of the prompt in the data set */
    unsigned fields;            /* INVAR_DIFF_SAMPLE_*; 0 if only one side has the sample */
} invar_diff_sample;

typedef enum invar_tristate {
    INVAR_TRISTATE_NO,
    INVAR_TRISTATE_YES,
    INVAR_TRISTATE_UNKNOWN /* a side has not recorded the value */
} invar_tristate;

/* The steps that were compared. */
typedef struct invar_diff_steps {
    int64_t first, last;    /* range of the common steps; both -1 if there are none */
    int64_t compared;       /* number of common steps up to the first divergent one */
    int64_t only_a, only_b; /* number of steps that only this side has */
    int64_t lookups;        /* number of steps read to find the divergent one */
} invar_diff_steps;

/* The elements of a type that differ, and the number of equal ones if they are counted. */
#define INVAR_DIFF_LIST(type)                                                                      \
    struct {                                                                                       \
        type *items; /* (count) */                                                                 \
        size_t count;                                                                              \
        int64_t equal;                                                                             \
    }

/* The result of a comparison. */
typedef struct invar_diff {
    invar_diff_verdict verdict;
    /* 'A' or 'B' if that run contradicts itself; both sides are then segments of it. Otherwise
       0. */
    char self_contradicting_side;
    bool same_inputs; /* the bits differ although identity and program are the same */
    invar_diff_side a, b;
    invar_diff_steps steps;

    bool diverged; /* a difference was found, at `step` */
    int64_t step;  /* first divergent step; -1 for evaluations before step 0, or if not diverged */
    bool roots_differ; /* tensors differ at `step`; otherwise only other records do */
    bool evaluations;  /* `step` itself is equal, and only evaluations after it differ */
    invar_tristate same_batch, same_rng; /* batch and random coordinates of the compared step */
    invar_tristate same_weights;         /* weights before the compared step */

    INVAR_DIFF_LIST(invar_diff_fact) facts;

    /* The compared step: the divergent one, or for identical runs the last common one. */
    INVAR_DIFF_LIST(invar_diff_manifest_change) changes;
    INVAR_DIFF_LIST(invar_diff_point) points; /* in order of execution */
    const invar_diff_point *culprit;          /* first point with is_origin; NULL if none */
    INVAR_DIFF_LIST(invar_diff_group) groups;
    INVAR_DIFF_LIST(invar_diff_metric) metrics; /* sorted by name */
    INVAR_DIFF_LIST(invar_diff_sample) samples; /* ascending by index */
    struct {
        int64_t equal, different;
    } replies;

    bool replayed; /* the caller sets it if the step was replayed for this comparison, so that no
                      replay is recommended */
    void *memory;  /* memory of all arrays and texts; owned */
} invar_diff;

/*
 * Compares two runs. `a` and `b` may be the same ledger, and the runs the same run; then only steps
 * that it executed twice are compared. run_a and run_b are the numbers of the runs. The caller
 * frees *out with invar_diff_free. Returns INVAR_E_NOTFOUND if there is no such run,
 * INVAR_E_CORRUPT if the records of a run contradict each other.
 */
invar_status invar_diff_runs(invar_diff **out, invar_ledger *a, int64_t run_a, invar_ledger *b,
                             int64_t run_b) INVAR_MUST_USE;

/*
 * Like invar_diff_runs, for one step, which both runs must have. The newest execution of each is
 * compared; other steps and older executions are ignored. A difference in a point outside the root
 * counts, too.
 */
invar_status invar_diff_step(invar_diff **out, invar_ledger *a, int64_t run_a, invar_ledger *b,
                             int64_t run_b, int64_t step) INVAR_MUST_USE;
void invar_diff_free(invar_diff *diff); /* `diff` may be NULL */

#define INVAR_DIFF_HEADLINE_SIZE 768

/*
 * Writes the verdict as one line, such as "different: first at step 57, point layer.3.mlp.down.act
 * (...)".
 */
void invar_diff_headline(char out[INVAR_DIFF_HEADLINE_SIZE], const invar_diff *diff);

#define INVAR_DIFF_FUSED_SIZE 256

/*
 * Writes whether the fused call of a point or one of its parts causes the difference, such as
 * "fused linear.fwd differs from its parts in B, the parts are equal"; empty if the point is not
 * `fused`. `in_a` and `in_b` are the words for the sides: "in A", "in B".
 */
void invar_diff_fused(char out[INVAR_DIFF_FUSED_SIZE], const invar_diff_point *point,
                      const char *in_a, const char *in_b);

#define INVAR_DIFF_NEXT_SIZE 2048
#define INVAR_DIFF_NEXT_LINES 2

/*
 * Writes the commands that narrow the difference down, one per line. Returns the number of lines, 0
 * if there is nothing to recommend.
 */
int invar_diff_next(char out[INVAR_DIFF_NEXT_LINES][INVAR_DIFF_NEXT_SIZE], const invar_diff *diff);

/* Returns "identical", "different", "nondeterministic" or "nothing". */
const char *invar_diff_verdict_name(invar_diff_verdict verdict);

/* Returns the name of the field 1 << bit of a sample, such as "rollout log-probs". */
const char *invar_diff_sample_field(int bit);

/* Prints the diff for people: the verdict first, lists cut after 40 lines. */
invar_status invar_diff_print(FILE *stream, const invar_diff *diff, bool color) INVAR_MUST_USE;

extern const char invar_diff_members[]; /* members of the JSON, for invar_result_schema */

/* Writes the complete diff as one JSON object. */
invar_status invar_diff_json(FILE *stream, const invar_diff *diff) INVAR_MUST_USE;

/* Writes the diff as one self-contained HTML page; lists are cut after 2000 rows. */
invar_status invar_diff_html(FILE *stream, const invar_diff *diff) INVAR_MUST_USE;

#endif
