/*
 * ledger.h - makes ledgers for tests: small training runs with the faults that a test asks for.
 *
 * Everything but uuids and wall clocks is a pure function of the spec, so two calls with one spec
 * give two runs with the same content. A spec of zeros with a number of steps is a healthy run:
 *
 *     assert_ok(invar_test_ledger_write(path, &(invar_test_ledger){.steps = 100}));
 *     assert_ok(invar_test_ledger_add(path, &(invar_test_ledger){
 *         .steps = 100, .name = "bad",
 *         .faults = {{INVAR_TEST_DIVERGES, .step = 57, .point = "layer.1.mlp.out"}}}));
 *
 * A healthy run: weights version = step; 8 samples a step, four of each of two prompts out of 16;
 * an evaluation ("gsm8k": reward, truncated_ratio) and a complete checkpoint after every 10th step
 * (9, 19, ...); digests of two ranks' replicas; statistics of two points every 8th step; one reply
 * of the plug-in "reward" a step; timings of the phases rollout, forward, backward, optimizer; work
 * of three ranks, which compute and wait equally long; samples 1 and 6 with their text;
 * gauges of performance; an event where the run begins and at every checkpoint; facts of build,
 * host, gpu, free.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_LEDGER_H
#define INVAR_TESTS_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "ledger/ledger.h"

#define INVAR_TEST_LEDGER_POINTS 15        /* with .finer one more */
#define INVAR_TEST_LEDGER_SAMPLES 8        /* a step */
#define INVAR_TEST_LEDGER_EPOCH 1767225600 /* the beginning of 2026 */
#define INVAR_TEST_LEDGER_FAULTS 4

/*
 * What can go wrong. Each uses `step`, and the fields named in brackets. Of each kind the first one
 * counts, of DIVERGES all.
 */
typedef enum invar_test_fault_kind {
    INVAR_TEST_HEALTHY,
    /* bits of points, [point] */
    INVAR_TEST_DIVERGES, /* from `step` on it and all that follow are others; `value` says which */
    INVAR_TEST_OVERLAP,  /* other bits where a resume executes the step again */
    INVAR_TEST_DESYNC,   /* from `step` on rank 2 has another replica */
    INVAR_TEST_NAN,      /* from `step` on 3 NaN in it and all that follow; loss, grad_norm NaN */
    INVAR_TEST_FROZEN,   /* from `step` on it is what it was in the step before `step` */
    /* what a step was given, [other] */
    INVAR_TEST_BATCH_REPEATED, /* the batch of the step `other` */
    INVAR_TEST_RNG_REUSED,     /* its random coordinates, in the first sample too */
    INVAR_TEST_REPLY,          /* another reply of the plug-in to the same request */
    INVAR_TEST_TURNS,          /* the plug-in leads three samples, one of which ends */
    /* metrics */
    INVAR_TEST_SPIKE,        /* a warning 3 steps before, KL high from 2 before, grad_norm 25 */
    INVAR_TEST_REWARD_SHIFT, /* [value] from `step` on rollout/raw_reward is that much higher */
    INVAR_TEST_EVAL_DROP,    /* from `step` on the evaluation's reward is 0.25 lower */
    INVAR_TEST_SLOW,         /* the phase rollout takes ten times as long */
    INVAR_TEST_STRAGGLER,    /* [other] from `step` on rank `other` computes twice as long */
    /* samples */
    INVAR_TEST_REWARD_JUMP,   /* from `step` on prompts 3 and 5: reward 1, 200 more tokens */
    INVAR_TEST_LOGP_MISMATCH, /* [other, value] sample `other` is `value` apart, at token 17 */
    INVAR_TEST_STALE,         /* [other] from `step` on weights are `other` steps old, of the first
                                 four samples one more */
    INVAR_TEST_ABORTED,       /* [other] the sample `other` ended with "abort" */
    /* around the run */
    INVAR_TEST_CHECKPOINT_PENDING, /* the checkpoint of the step is intended, never completed */
    INVAR_TEST_DIRTY,              /* built from modified sources; the diff is in the ledger */
    INVAR_TEST_DRIVER              /* another GPU driver after the resume */
} invar_test_fault_kind;

typedef struct invar_test_fault {
    invar_test_fault_kind kind;
    int64_t step;
    const char *point;
    int64_t other;
    double value;
} invar_test_fault;

typedef struct invar_test_ledger {
    int64_t steps;         /* the timeline: steps 0 to steps - 1 */
    const char *name;      /* NULL: "test" */
    const char *kind;      /* NULL: "train" */
    uint64_t seed;         /* other seeds, other bits everywhere; part of the identity */
    int64_t crash, resume; /* dies after `crash` steps, goes on with step `resume`; 0, 0: never */
    bool killed;           /* the last segment does not finish */
    bool must_match;       /* steps that were executed before must have the same bits */
    bool finer;            /* one more point, "layer.0.norm.out", before "layer.0.attn.out" */
    const char *parent;    /* uuid of the run it starts from */
    int64_t fork_step;     /* with a parent */
    const invar_ledger_fact *facts; /* (n_facts) replace the usual ones, or come on top */
    size_t n_facts;
    invar_test_fault faults[INVAR_TEST_LEDGER_FAULTS]; /* in any order */
} invar_test_ledger;

/* A new file with one run; an older one of that name is removed. */
invar_status invar_test_ledger_write(const char *path,
                                     const invar_test_ledger *spec) INVAR_MUST_USE;

/* One more run, in a new file if there is none. */
invar_status invar_test_ledger_add(const char *path, const invar_test_ledger *spec) INVAR_MUST_USE;

/*
 * The same piece by piece, on a writer: a run and its points, or a segment of the newest run that
 * goes on with `step`; then step after step, each with what belongs beside it. `seg` is from 0.
 */
invar_status invar_test_ledger_begin(invar_ledger *ledger,
                                     const invar_test_ledger *spec) INVAR_MUST_USE;
invar_status invar_test_ledger_resume(invar_ledger *ledger, const invar_test_ledger *spec,
                                      int64_t step) INVAR_MUST_USE;
invar_status invar_test_ledger_step(invar_ledger *ledger, const invar_test_ledger *spec,
                                    int64_t seg, int64_t step) INVAR_MUST_USE;

/*
 * A CI case: one run of `steps` steps for each of 8 commits ("c0" to "c7", a minute apart, kind
 * "ci"). With `changes`, "c3" and "c6" change bits from layer.1.mlp.out and layer.0.attn.grad on.
 */
invar_status invar_test_ledger_ci(const char *path, int64_t steps, bool changes) INVAR_MUST_USE;

/*
 * An A/B experiment "lr": runs "a0", "b0" to "a3", "b3" with one seed a pair. With `effect`, side b
 * has a reward that is 0.125 higher in three pairs and 0.125 lower in the last.
 */
invar_status invar_test_ledger_ab(const char *path, int64_t steps, bool effect) INVAR_MUST_USE;

/* The name of a point in order of execution (without .finer). */
const char *invar_test_ledger_point(int64_t index);

/* The kind of a fault by its name in lower case, "diverges"; INVAR_E_NOTFOUND. */
invar_status invar_test_fault_parse(invar_test_fault_kind *out, const char *name) INVAR_MUST_USE;

#endif
