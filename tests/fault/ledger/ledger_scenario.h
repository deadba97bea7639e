/*
 * ledger_scenario.h - the calls of a ledger's life, in order, for tests that let calls fail.
 *
 * The scenario creates a ledger, writes steps, evaluations, checkpoints and events, closes it,
 * opens it again and continues. Everything written is a function of the step, so every chain and
 * the content are known. A test lets one call fail and then checks that the ledger has lost nothing
 * that was acknowledged and can continue: with a new object (scenario_recover) or with the same one
 * (scenario_repeat).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FAULT_LEDGER_LEDGER_SCENARIO_H
#define INVAR_TESTS_FAULT_LEDGER_LEDGER_SCENARIO_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "ledger/ledger.h"
#include "tests/support.h"

#define SCENARIO_STEPS 6
#define SCENARIO_POINTS 3

typedef struct scenario {
    const char *path;
    invar_ledger *ledger;                /* NULL if it is not open */
    bool begun;                          /* the beginning of the run is acknowledged */
    int64_t steps;                       /* number of acknowledged steps */
    invar_digest chains[SCENARIO_STEPS]; /* chains of the acknowledged steps */
} scenario;

/* ---- content --------------------------------------------------------------------------------- */

static inline invar_digest scenario_digest(int64_t step, int64_t what)
{
    int64_t key[2] = {step, what};
    invar_digest out;

    invar_hash_bytes(&out, key, sizeof key);
    return out;
}

/*
 * Computes the chain after a step by its definition. The last point has level 1 and is not part of
 * the root.
 */
static inline invar_digest scenario_chain(int64_t step)
{
    invar_digest chain = {{0}}, digests[SCENARIO_POINTS - 1], root;

    for (int64_t s = 0; s <= step; s++) {
        for (int64_t i = 0; i < SCENARIO_POINTS - 1; i++)
            digests[i] = scenario_digest(s, i);
        invar_hash_bytes(&root, digests, sizeof digests);
        invar_digest_chain(&chain, &root);
    }
    return chain;
}

static inline invar_status scenario_define(invar_ledger *ledger)
{
    static const int64_t shape[2] = {4, 4}, input = 0;
    const invar_ledger_point points[SCENARIO_POINTS] = {
        {"embed.out", "forward", -1, "embed", "act", 0, "bf16", shape, 2, 1, false, NULL, 0},
        {"layer.0.out", "forward", 0, "swiglu", "act", 0, "bf16", shape, 2, 1, false, &input, 1},
        {"layer.0.norm", "forward", 0, "rmsnorm", "act", 1, "f32", shape, 1, 1, true, &input, 1},
    };

    return invar_ledger_define(ledger, points, SCENARIO_POINTS);
}

static inline invar_status scenario_begin(invar_ledger *ledger)
{
    const invar_ledger_pair identity[] = {{"seed", "1"}, {"model", "tiny"}};
    const invar_ledger_fact fact = {"host", "name", "here"};
    const invar_ledger_object object = {"build", "diff", "text/x-diff", "-a\n+b\n", 6};
    const invar_ledger_run run = {.name = "scenario",
                                  .kind = "train",
                                  .identity = identity,
                                  .n_identity = 2,
                                  .circumstances = {&fact, 1, &object, 1, NULL, true}};

    return invar_ledger_begin(ledger, &run);
}

static inline invar_status scenario_append(invar_ledger *ledger, int64_t step)
{
    invar_digest digests[SCENARIO_POINTS], d = scenario_digest(step, 9);
    const invar_ledger_replica_digests replica = {1, digests};
    const invar_ledger_metric metrics[] = {{"train/loss", 1.0 / (double)(step + 3)},
                                           {"train/grad_norm", (double)step}};
    const invar_ledger_metric gauge = {"perf/tokens", 1000};
    const invar_ledger_stat stat = {0, 1, 0, 0, 1.5, 2.5};
    const invar_ledger_sample sample = {7, d, "1,2,3", step, step, d,  10,     20, d,
                                        d, d, 1,       -1,   0,    -1, "stop", 0};
    const invar_ledger_plugin_reply reply = {"reward", 0, d, "1.0", 3};
    const invar_ledger_timing timing = {"rollout", 1, 2};
    const invar_ledger_reward_part part = {0, "format", 0.5};
    const invar_ledger_rank_time work = {1, "node1", "rollout", "samples", 1, 2, 3, 4};
    const invar_ledger_event event = {-1, "info", "note", "all is well", "{\"a\":1}"};
    const invar_ledger_step made = {.step = step,
                                    .weights_version = step,
                                    .batch = d,
                                    .rng = d,
                                    .digests = digests,
                                    .replicas = &replica,
                                    .n_replicas = 1,
                                    .metrics = metrics,
                                    .n_metrics = 2,
                                    .stats = &stat,
                                    .n_stats = 1,
                                    .samples = &sample,
                                    .n_samples = 1,
                                    .replies = &reply,
                                    .n_replies = 1,
                                    .timings = &timing,
                                    .n_timings = 1,
                                    .parts = &part,
                                    .n_parts = 1,
                                    .work = &work,
                                    .n_work = 1,
                                    .gauges = &gauge,
                                    .n_gauges = 1,
                                    .events = &event,
                                    .n_events = 1};

    for (int64_t i = 0; i < SCENARIO_POINTS; i++)
        digests[i] = scenario_digest(step, i);
    return invar_ledger_append(ledger, &made);
}

static inline invar_status scenario_evaluate(invar_ledger *ledger, int64_t step)
{
    const invar_ledger_metric result = {"reward", (double)step / 8};

    return invar_ledger_add_evaluation(ledger, "gsm8k", &result, 1);
}

/* Returns true if the scenario adds an evaluation after this step. */
static inline bool scenario_evaluates(int64_t step)
{
    return step == 1 || step == SCENARIO_STEPS - 1;
}

static inline invar_status scenario_resume(invar_ledger *ledger, int64_t after)
{
    const invar_ledger_provenance bare = {.no_auto_facts = true};
    invar_digest chain = scenario_chain(after);

    return invar_ledger_resume(ledger, NULL, after, &chain, &bare);
}

/* ---- the calls ------------------------------------------------------------------------------- */

typedef enum scenario_call {
    CALL_CREATE,
    CALL_BEGIN,
    CALL_DEFINE,
    CALL_APPEND,
    CALL_NOTE,
    CALL_EVALUATE,
    CALL_INTENT,
    CALL_COMPLETE,
    CALL_FINISH,
    CALL_CLOSE,
    CALL_OPEN,
    CALL_RESUME,
    CALL_SEAL
} scenario_call;

static const scenario_call scenario_calls[] = {
    CALL_CREATE,   CALL_BEGIN,  CALL_DEFINE, CALL_APPEND,   CALL_APPEND, CALL_EVALUATE,
    CALL_NOTE,     CALL_APPEND, CALL_INTENT, CALL_COMPLETE, CALL_APPEND, CALL_FINISH,
    CALL_CLOSE,    CALL_OPEN,   CALL_RESUME, CALL_DEFINE,   CALL_APPEND, CALL_APPEND,
    CALL_EVALUATE, CALL_SEAL,   CALL_FINISH, CALL_CLOSE,
};
#define SCENARIO_CALLS (sizeof scenario_calls / sizeof scenario_calls[0])

static inline invar_status scenario_checkpoint(scenario *s, bool complete)
{
    const invar_ledger_checkpoint made = {s->steps - 1, "step2.ckpt", 4096,
                                          scenario_digest(s->steps, 5),
                                          scenario_chain(s->steps - 1)};

    return complete ? invar_ledger_checkpoint_complete(s->ledger, &made)
                    : invar_ledger_checkpoint_intent(s->ledger, &made);
}

/* Appends the next step. Success acknowledges it, so its chain is kept for later checks. */
static inline invar_status scenario_append_next(scenario *s)
{
    int64_t step;

    INVAR_TRY(scenario_append(s->ledger, s->steps));
    assert_ok(invar_ledger_chain(&step, &s->chains[s->steps], s->ledger));
    assert_int_equal(step, s->steps);
    s->steps++;
    return INVAR_OK;
}

static inline void scenario_close(scenario *s)
{
    invar_ledger_close(s->ledger);
    s->ledger = NULL;
}

static inline invar_status scenario_do(scenario *s, scenario_call call)
{
    static const invar_ledger_options create = {.create = true}, write = {.write = true};
    const invar_ledger_event event = {-1, "warning", "note", "between steps", NULL};
    char seal[INVAR_LEDGER_SEAL_SIZE];

    switch (call) {
    case CALL_CREATE: return invar_ledger_open(&s->ledger, s->path, &create);
    case CALL_OPEN: return invar_ledger_open(&s->ledger, s->path, &write);
    case CALL_BEGIN: INVAR_TRY(scenario_begin(s->ledger)); break;
    case CALL_DEFINE: return scenario_define(s->ledger);
    case CALL_APPEND: return scenario_append_next(s);
    case CALL_NOTE: return invar_ledger_log_event(s->ledger, &event);
    case CALL_EVALUATE: return scenario_evaluate(s->ledger, s->steps - 1);
    case CALL_INTENT: return scenario_checkpoint(s, false);
    case CALL_COMPLETE: return scenario_checkpoint(s, true);
    case CALL_FINISH: return invar_ledger_finish(s->ledger, 0, "done");
    case CALL_RESUME: return scenario_resume(s->ledger, s->steps - 1);
    case CALL_SEAL: return invar_ledger_seal(seal, s->ledger, 1);
    case CALL_CLOSE: scenario_close(s); break;
    }
    s->begun = true;
    return INVAR_OK;
}

/* ---- runs with a failure --------------------------------------------------------------------- */

/* Prepares the scenario for a new ledger at `path`; files of an earlier one are removed. */
static inline void scenario_init(scenario *s, const char *path)
{
    static const char *const parts[] = {"", "-wal", "-shm", "-journal", "-lock"};
    char part[600];

    memset(s, 0, sizeof *s);
    s->path = path;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        (void)snprintf(part, sizeof part, "%s%s", path, parts[i]);
        (void)unlink(part);
    }
}

/* Makes the calls until one fails, and closes the ledger. */
static inline invar_status scenario_run(scenario *s)
{
    invar_status status = INVAR_OK;

    for (size_t i = 0; i < SCENARIO_CALLS && status == INVAR_OK; i++)
        status = scenario_do(s, scenario_calls[i]);
    scenario_close(s);
    return status;
}

/*
 * Makes all calls. A call that fails is repeated after `clear_fault` has removed the fault. Returns
 * the number of failed calls.
 */
static inline int scenario_repeat(scenario *s, void (*clear_fault)(void))
{
    int failures = 0;

    for (size_t i = 0; i < SCENARIO_CALLS; i++) {
        if (scenario_do(s, scenario_calls[i]) == INVAR_OK)
            continue;
        failures++;
        clear_fault();
        assert_ok(scenario_do(s, scenario_calls[i]));
    }
    return failures;
}

typedef struct scenario_result {
    invar_digest content;
    int64_t entries;
} scenario_result;

/* Checks that the ledger verifies, is finished and has all steps and the right chain. */
static inline scenario_result scenario_check_whole(const scenario *s)
{
    invar_ledger_verify_result verdict;
    invar_ledger_summary summary;
    scenario_result out;
    invar_ledger *ledger;
    invar_digest expected = scenario_chain(SCENARIO_STEPS - 1);

    assert_ok(invar_ledger_open(&ledger, s->path, NULL));
    assert_ok(invar_ledger_verify(&verdict, ledger, NULL, NULL));
    if (verdict.problems != 0)
        fail_msg("%s", verdict.first_problem);
    assert_ok(invar_ledger_find(&summary, ledger, NULL));
    assert_int_equal(summary.last_step, SCENARIO_STEPS - 1);
    assert_true(summary.finished);
    assert_memory_equal(&summary.chain, &expected, sizeof expected);
    assert_ok(invar_ledger_content_hash(&out.content, ledger, summary.run));
    out.entries = summary.entries;
    invar_ledger_close(ledger);
    return out;
}

/*
 * Checks that every acknowledged step exists with the chain that was acknowledged. *run_out is
 * whether the run exists.
 */
static inline void scenario_check_kept(const scenario *s, invar_ledger *ledger, bool *run_out)
{
    invar_ledger_verify_result verdict;
    invar_ledger_summary summary;
    invar_digest chain, expected;

    assert_ok(invar_ledger_verify(&verdict, ledger, NULL, NULL));
    if (verdict.problems != 0)
        fail_msg("%s", verdict.first_problem);
    *run_out = invar_ledger_find(&summary, ledger, NULL) == INVAR_OK;
    assert_true(*run_out || !s->begun);
    for (int64_t i = 0; i < s->steps; i++) {
        assert_ok(invar_ledger_chain_at(&chain, ledger, summary.run, i));
        expected = scenario_chain(i);
        assert_memory_equal(&chain, &expected, sizeof chain);
        assert_memory_equal(&chain, &s->chains[i], sizeof chain);
    }
}

/* Continues as a new process would after the failure: nothing is lost, and the run is completed. */
static inline void scenario_recover(const scenario *s)
{
    invar_ledger *ledger;
    bool run;

    assert_ok(invar_ledger_open(&ledger, s->path, &(invar_ledger_options){.create = true}));
    scenario_check_kept(s, ledger, &run);
    if (run)
        assert_ok(scenario_resume(ledger, s->steps - 1));
    else
        assert_ok(scenario_begin(ledger));
    assert_ok(scenario_define(ledger));
    if (scenario_evaluates(s->steps - 1))
        assert_ok(scenario_evaluate(ledger, s->steps - 1));
    for (int64_t step = s->steps; step < SCENARIO_STEPS; step++) {
        assert_ok(scenario_append(ledger, step));
        if (scenario_evaluates(step))
            assert_ok(scenario_evaluate(ledger, step));
    }
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
    invar_ledger_close(ledger);
}

#endif
