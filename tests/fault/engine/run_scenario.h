/*
 * run_scenario.h - a whole training run that something disturbs once, and that is started again.
 *
 * After the failure the ledger verifies; and the run, started again in the same folder, ends with
 * the chain and the content of one that was never disturbed. The far backend
 * (tests/device/fake_gpu.h) stands in for CUDA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FAULT_ENGINE_RUN_SCENARIO_H
#define INVAR_TESTS_FAULT_ENGINE_RUN_SCENARIO_H

#include "tests/device/fake_gpu.h"
#include "tests/fault/faulty.h"
#include "tests/run.h"

#define SCENARIO_RUN "run" /* the name of it */

const invar_backend *invar_backend_cuda(void)
{
    return invar_far_backend();
}

/* run_tiny with `own` over it, and with all files that a run can write while it trains. */
static inline invar_recipe *scenario_recipe(const run_pair *own)
{
    char checkpoints[400], rollouts[400] = "";
    const run_pair places[] = {{"save", checkpoints},
                               {"load", checkpoints},
                               {"save-interval", "1"},
                               {"save-debug-rollout-data", rollouts},
                               {NULL, NULL}};

    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", run_below(SCENARIO_RUN));
    if (!run_has(own, "load-debug-rollout-data")) // those it need not write again
        (void)snprintf(rollouts, sizeof rollouts, "%s/{rollout_id}.jsonl", run_below(SCENARIO_RUN));
    return run_recipe(run_below(SCENARIO_RUN), own, places);
}

/* The run from its beginning, undisturbed. */
static inline run_memory scenario_whole(const invar_recipe *recipe)
{
    assert_ok(invar_held_folder_remove(run_below(SCENARIO_RUN)));
    invar_far_begin(0);
    assert_ok(run_train(recipe));
    return run_memory_of(SCENARIO_RUN);
}

/*
 * The run from its beginning. Its fail_at-th allocation fails, if that is not 0; whatever else
 * disturbs it, the far backend has been told. *f has then counted the blocks of the heap.
 */
static inline invar_status scenario_disturbed(faulty *f, const invar_recipe *recipe, int fail_at)
{
    invar_allocator allocator = {faulty_alloc, faulty_free, f};
    invar_status status;

    assert_ok(invar_held_folder_remove(run_below(SCENARIO_RUN)));
    *f = (faulty){.fail_at = fail_at};
    invar_error_clear();
    invar_allocator_set(&allocator);
    status = run_train(recipe);
    invar_allocator_set(NULL);
    return status;
}

/* What the disturbed run left verifies, and goes on to the bits of the whole one. */
static inline void scenario_go_on(const invar_recipe *recipe, const run_memory *whole,
                                  const char *disturbance)
{
    run_memory after;

    (void)run_remember(&after, run_below(SCENARIO_RUN));
    invar_far_begin(0);
    assert_ok(run_train(recipe));
    after = run_memory_of(SCENARIO_RUN);
    if (!run_same(&after, whole))
        fail_msg("%s: the run went on to other bits", disturbance);
}

#endif
