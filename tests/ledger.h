/*
 * ledger.h - writes ledgers for tests: small training runs with the faults that a test requests.
 *
 * Everything except uuids and wall clocks is a pure function of the spec, so two calls with one
 * spec give two runs with the same content. A zeroed spec with a number of steps is a healthy run:
 *
 *     assert_ok(invar_test_ledger_write(path, &(invar_test_ledger){.steps = 100}));
 *     assert_ok(invar_test_ledger_add(path, &(invar_test_ledger){
 *         .steps = 100, .name = "bad",
 *         .faults = {{INVAR_TEST_DIVERGES, .step = 57, .point = "layer.1.mlp.out"}}}));
 *
 * A healthy run: weights version = step; 8 samples per step, four of each of two prompts out of 16;
 * an evaluation ("gsm8k": reward, truncated_ratio) and a complete checkpoint after every 10th step
 * (9, 19, ...); digests of two ranks' replicas; statistics of two points every 8th step; one reply
 * of the plug-in "reward" per step; timings of the phases rollout, forward, backward, optimizer;
 * work of three ranks, which compute and wait equally long; samples 1 and 6 with their text; gauges
 * of performance; an event at the start of the run and at every checkpoint; facts of build, host,
 * gpu, free.
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

#define INVAR_TEST_LEDGER_POINTS 15        /* one more with .finer */
#define INVAR_TEST_LEDGER_SAMPLES 8        /* per step */
#define INVAR_TEST_LEDGER_EPOCH 1767225600 /* start of 2026 */
#define INVAR_TEST_LEDGER_FAULTS 4

/*
 * Faults of a run. Each uses `step` and the fields in brackets. If several have the same kind, only
 * the first is used, except for DIVERGES.
 */
typedef enum invar_test_fault_kind {
    INVAR_TEST_HEALTHY,
    /* bits of points: [point] */
    INVAR_TEST_DIVERGES, /* from `step` on this point and all later ones have other bits, selected
                            by `value` */
    INVAR_TEST_OVERLAP,  /* a resume executes the step again with other bits */
    INVAR_TEST_DESYNC,   /* from `step` on rank 2 has a differing replica */
    INVAR_TEST_NAN,      /* from `step` on 3 NaN in this point and all later ones; loss and
                            grad_norm are NaN */
    INVAR_TEST_FROZEN,   /* from `step` on the point keeps its bits of the step before */
    /* inputs of a step: [other] */
    INVAR_TEST_BATCH_REPEATED, /* the batch of step `other` is repeated */
    INVAR_TEST_RNG_REUSED,     /* the random coordinates of step `other` are reused, also in the
                                  first sample */
    INVAR_TEST_REPLY,          /* the plug-in gives another reply to the same request */
    INVAR_TEST_TURNS,          /* three multi-turn samples, one of which ends early */
    /* metrics */
    INVAR_TEST_SPIKE,        /* KL is high from 2 steps before, a warning 3 steps before,
                                grad_norm 25 */
    INVAR_TEST_REWARD_SHIFT, /* [value] from `step` on rollout/raw_reward is higher by `value` */
    INVAR_TEST_EVAL_DROP,    /* from `step` on the evaluation's reward is 0.25 lower */
    INVAR_TEST_SLOW,         /* the phase rollout takes ten times as long */
    INVAR_TEST_STRAGGLER,    /* [other] from `step` on rank `other` computes twice as long */
    /* samples */
    INVAR_TEST_REWARD_JUMP,   /* from `step` on prompts 3 and 5: reward 1, 200 more tokens */
    INVAR_TEST_LOGP_MISMATCH, /* [other, value] log-probs of sample `other` differ by `value` at
                                 token 17 */
    INVAR_TEST_STALE,         /* [other] from `step` on weights are `other` steps old, one more
                                 for the first four samples */
    INVAR_TEST_ABORTED,       /* [other] the sample `other` ended with "abort" */
    /* provenance and life cycle of the run */
    INVAR_TEST_CHECKPOINT_PENDING, /* the checkpoint of the step is announced but never completed
                                      */
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
    int64_t steps;         /* steps 0 to steps - 1 */
    const char *name;      /* NULL for "test" */
    const char *kind;      /* NULL for "train" */
    uint64_t seed;         /* part of the identity; changes all bits */
    int64_t crash, resume; /* the run crashes after `crash` steps and resumes from step `resume`;
                              0 and 0 for never */
    bool killed;           /* the last segment does not finish */
    bool must_match;       /* steps that are executed again must have the same bits */
    bool finer;            /* one more point, "layer.0.norm.out", before "layer.0.attn.out" */
    const char *parent;    /* uuid of the parent run */
    int64_t fork_step;     /* used if `parent` is set */
    const invar_ledger_fact *facts; /* (n_facts) added to the usual facts, or replace them */
    size_t n_facts;
    invar_test_fault faults[INVAR_TEST_LEDGER_FAULTS]; /* in any order */
} invar_test_ledger;

/* Writes a new file with one run; removes an older file of that name. */
invar_status invar_test_ledger_write(const char *path,
                                     const invar_test_ledger *spec) INVAR_MUST_USE;

/* Adds one run, in a new file if there is none. */
invar_status invar_test_ledger_add(const char *path, const invar_test_ledger *spec) INVAR_MUST_USE;

/*
 * Writes a run step by step: begin writes the run and its points, or resume a segment of the newest
 * run that resumes from `step`; then step writes each step with its data. `seg` is the index of the
 * segment.
 */
invar_status invar_test_ledger_begin(invar_ledger *ledger,
                                     const invar_test_ledger *spec) INVAR_MUST_USE;
invar_status invar_test_ledger_resume(invar_ledger *ledger, const invar_test_ledger *spec,
                                      int64_t step) INVAR_MUST_USE;
invar_status invar_test_ledger_step(invar_ledger *ledger, const invar_test_ledger *spec,
                                    int64_t seg, int64_t step) INVAR_MUST_USE;

/*
 * Writes a CI case: one run of `steps` steps for each of 8 commits ("c0" to "c7", a minute apart,
 * kind "ci"). With `changes`, "c3" changes bits from layer.1.mlp.out on and "c6" from
 * layer.0.attn.grad on.
 */
invar_status invar_test_ledger_ci(const char *path, int64_t steps, bool changes) INVAR_MUST_USE;

/*
 * Writes an A/B experiment "lr": runs "a0", "b0" to "a3", "b3" with one seed per pair. With
 * `effect`, side b has a reward that is 0.125 higher in three pairs and 0.125 lower in the last.
 */
invar_status invar_test_ledger_ab(const char *path, int64_t steps, bool effect) INVAR_MUST_USE;

/* Returns the name of a point in order of execution (without .finer). */
const char *invar_test_ledger_point(int64_t index);

/*
 * Finds the kind of a fault by its name in lower case, "diverges". Returns INVAR_E_NOTFOUND if
 * unknown.
 */
invar_status invar_test_fault_parse(invar_test_fault_kind *out, const char *name) INVAR_MUST_USE;

#endif
