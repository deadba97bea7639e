/*
 * diff.h - two runs compared: where their bits part, and what else differs.
 *
 * The first divergent step is found by binary search over the chains, since a chain that differs
 * once differs ever after. At that step the points are compared by name, and the culprit is the
 * first whose inputs are all equal and whose value is not. A run that executed steps twice, with
 * two results, is compared with itself instead: nothing else that it says can be trusted.
 *
 * The cost of the search is a logarithm of the number of steps. Runs whose chains are equal are
 * read once from end to end, and so are steps that were executed twice: metrics, samples, replies
 * and evaluations are covered by "identical" too. Runs with the same steps are identical exactly
 * when their contents (invar_ledger_content_hash) are equal and none of them contradicts itself.
 *
 * All text in the result is printable UTF-8: control characters and broken bytes are "\xNN".
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

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_diff_verdict {
    INVAR_DIFF_VERDICT_IDENTICAL,        /* over all steps that both have */
    INVAR_DIFF_VERDICT_DIFFERENT,        /* other inputs or another program, other bits */
    INVAR_DIFF_VERDICT_NONDETERMINISTIC, /* same program and inputs, two results: see `twins` */
    INVAR_DIFF_VERDICT_NOTHING           /* no step in common */
} invar_diff_verdict;

/* One of the two sides. */
typedef struct invar_diff_side {
    const char *ledger; /* path of its file */
    int64_t run;        /* its number there */
    const char *uuid, *name, *kind;
    bool replayable; /* it has free keys of a recipe: a run of this program, which can replay it */
    int64_t segments;
    int64_t first_step, last_step; /* -1, -1: none */
    int64_t seg;                   /* that executed or evaluated the step below; -1: no step */
    invar_digest root, chain;      /* of that step */
    bool digests;                  /* of its points are there; not in a copy without them */
} invar_diff_side;

/* A fact that differs. A run with several values over its segments shows them all in one text. */
typedef struct invar_diff_fact {
    const char *scope; /* identity run build host gpu free ... */
    const char *key;
    const char *a, *b; /* NULL: not there */
} invar_diff_fact;

/* A difference between the manifests: not of numbers, but of what is computed. */
typedef struct invar_diff_manifest_change {
    const char *point;
    const char *what; /* "point" (one side lacks it), "order", or the field: "shape" "inputs" ... */
    const char *a, *b; /* NULL: not there */
} invar_diff_manifest_change;

/* A point that both sides have, in the same shape, with different values. */
typedef struct invar_diff_point {
    const char *name, *phase, *op, *kind, *dtype, *shape; /* as side A has them */
    int64_t ord;                                          /* in A's order of execution */
    int64_t layer;                                        /* -1: of no layer */
    int64_t level;                                        /* 0: part of the root */
    int64_t inputs;                                       /* how many points feed it */
    bool is_origin;     /* all its inputs are equal, or it has none on record and is the first */
    bool inputs_differ; /* its inputs are not the same points on both sides; those of both decide */
    bool fused;         /* both sides also have what the parts of its call gave (NAME.parts): */
    bool fused_mismatch_a, fused_mismatch_b; /* the call gave other bits than its parts */
    bool parts_equal;                        /* the parts gave the same bits on both sides */
    invar_digest a, b;
} invar_diff_point;

/* How the points of one phase and layer fared: phases in order of execution, layers upwards. */
typedef struct invar_diff_group {
    const char *phase;
    int64_t layer; /* -1: of no layer */
    int64_t equal, different;
} invar_diff_group;

/* A metric whose bits differ, or an evaluation (its name: INVAR_LEDGER_EVALUATION). */
typedef struct invar_diff_metric {
    const char *name;
    bool in_a, in_b;
    double a, b; /* any bits */
    uint64_t
        ulp;  /* how many numbers of the format lie between them, one included; 0: NaN or absent */
    bool f32; /* the format is fp32, in which both were computed; else it is fp64 */
} invar_diff_metric;

/* The format of `ulp`: "fp32" or "fp64". */
const char *invar_diff_ulp_format(const invar_diff_metric *metric);

/* In which respects a sample differs. */
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
    int64_t idx; /* in the batch */
    bool in_a, in_b;
    int64_t prompt_a, prompt_b;
    unsigned fields; /* INVAR_DIFF_SAMPLE_*; 0 when one side lacks it */
} invar_diff_sample;

typedef enum invar_tristate {
    INVAR_TRISTATE_NO,
    INVAR_TRISTATE_YES,
    INVAR_TRISTATE_UNKNOWN /* a side has not recorded it */
} invar_tristate;

typedef struct invar_diff {
    invar_diff_verdict verdict;
    /* 'A' or 'B': that run disagrees with itself, and both sides are segments of it. */
    char self_contradicting_side;
    bool same_inputs; /* same identity and program, different bits */
    invar_diff_side a, b;

    int64_t common_first, common_last; /* steps that both have; -1, -1: none */
    int64_t steps_compared;            /* up to the first divergent one */
    int64_t only_a, only_b;            /* steps that the other side does not have */
    int64_t lookups;                   /* of chains, to find the step */

    bool diverged; /* there is a difference, at `step` */
    int64_t step;  /* the first divergent one, -1 before the first step of all; -1: not parted */
    bool roots_differ; /* there; else only what is recorded beside the tensors */
    bool evaluations;  /* there; the step itself is equal, only evaluations after it are not */
    invar_tristate same_batch, same_rng; /* there */
    invar_tristate same_weights;         /* before it */

    const invar_diff_fact *facts;
    size_t n_facts;
    int64_t facts_equal;

    /* At the divergent step; of identical runs at the last common one. */
    const invar_diff_manifest_change *changes;
    size_t n_changes;
    const invar_diff_point *points; /* in order of execution */
    size_t n_points;
    int64_t points_equal;
    int64_t points_a, points_b;      /* of the manifests */
    const invar_diff_point *culprit; /* the first born one; NULL: none is known */
    const invar_diff_group *groups;
    size_t n_groups;
    const invar_diff_metric *metrics; /* by name */
    size_t n_metrics;
    int64_t metrics_equal;
    const invar_diff_sample *samples; /* by index */
    size_t n_samples;
    int64_t samples_equal;
    int64_t replies_equal, replies_different;

    bool replayed; /* the step was executed again for this: nothing finer can be had */
    void *memory;  /* holds all of the above */
} invar_diff;

/*
 * `a` and `b` may be the same ledger, and the runs the same run; numbers as invar_ledger_find says.
 * INVAR_E_NOTFOUND: no such run; INVAR_E_CORRUPT: what a run records contradicts itself.
 */
invar_status invar_diff_runs(invar_diff **out, invar_ledger *a, int64_t run_a, invar_ledger *b,
                             int64_t run_b) INVAR_MUST_USE;

/*
 * The same of one step that both have, as its newest execution has it: whatever the runs did before
 * and after, and even where one executed the step to two results. A point outside the root that
 * differs makes them part, too.
 */
invar_status invar_diff_step(invar_diff **out, invar_ledger *a, int64_t run_a, invar_ledger *b,
                             int64_t run_b, int64_t step) INVAR_MUST_USE;
void invar_diff_free(invar_diff *diff); /* NULL is allowed */

#define INVAR_DIFF_HEADLINE_SIZE 768

/* The verdict in one line, "different: first at step 57, point layer.3.mlp.down.act (...)". */
void invar_diff_headline(char out[INVAR_DIFF_HEADLINE_SIZE], const invar_diff *diff);

#define INVAR_DIFF_FUSED_SIZE 256

/*
 * Whether the fused call of a point or a part of it is to blame, in half a sentence: "fused
 * linear.fwd differs from its parts in B, the parts are equal". "" for a point that is not `fused`.
 * `in_a` and `in_b` say where the sides are: "in A", "in B".
 */
void invar_diff_fused(char out[INVAR_DIFF_FUSED_SIZE], const invar_diff_point *point,
                      const char *in_a, const char *in_b);

#define INVAR_DIFF_NEXT_SIZE 2048
#define INVAR_DIFF_NEXT_LINES 2

/* The commands that would look closer; returns how many lines, 0 for runs without a difference. */
int invar_diff_next(char out[INVAR_DIFF_NEXT_LINES][INVAR_DIFF_NEXT_SIZE], const invar_diff *diff);

/* "identical", "different", "nondeterministic", "nothing". */
const char *invar_diff_verdict_name(invar_diff_verdict verdict);

/* The name of the field `1 << bit` of a sample, "rollout log-probs". */
const char *invar_diff_sample_field(int bit);

/* For people: the verdict first, lists cut after 40 lines. */
invar_status invar_diff_print(FILE *stream, const invar_diff *diff, bool colour) INVAR_MUST_USE;

/* For programs: everything. */
invar_status invar_diff_json(FILE *stream, const invar_diff *diff) INVAR_MUST_USE;

/* One self-contained page; lists cut after 2000 rows. */
invar_status invar_diff_html(FILE *stream, const invar_diff *diff) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
