/*
 * run_scenario.h - a complete training run that a fault disturbs once, and that is started again.
 *
 * After the fault the ledger must verify, and the run, started again in the same folder, must end
 * with the chain and the content of a run that was never disturbed. The fake GPU
 * (tests/device/fake_gpu.h) stands in for CUDA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FAULT_ENGINE_RUN_SCENARIO_H
#define INVAR_TESTS_FAULT_ENGINE_RUN_SCENARIO_H

#include "tests/device/fake_gpu.h"
#include "tests/fault/faulty.h"
#include "tests/run.h"

#define SCENARIO_RUN "run" /* name of the run and of its folder */

const invar_backend *invar_backend_cuda(void)
{
    return invar_fake_gpu_backend();
}

/*
 * The recipe of run_tiny with the keys `keys`, and with all files that a run can write while it
 * trains.
 */
static inline invar_recipe *scenario_recipe(const run_pair *keys)
{
    char checkpoints[400], rollouts[400] = "";
    const run_pair files[] = {{"save", checkpoints},
                              {"load", checkpoints},
                              {"save-interval", "1"},
                              {"save-debug-rollout-data", rollouts},
                              {NULL, NULL}};

    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", run_path(SCENARIO_RUN));
    // A run that reads rollouts from files need not write them.
    if (!run_has(keys, "load-debug-rollout-data"))
        (void)snprintf(rollouts, sizeof rollouts, "%s/{rollout_id}.jsonl", run_path(SCENARIO_RUN));
    return run_recipe(run_path(SCENARIO_RUN), keys, files);
}

/* Trains the run from its beginning without a fault, and returns what it recorded. */
static inline run_digests scenario_whole(invar_recipe *recipe)
{
    assert_ok(invar_held_folder_remove(run_path(SCENARIO_RUN)));
    invar_fake_gpu_begin(0);
    assert_ok(run_train(recipe));
    return run_digests_of(SCENARIO_RUN);
}

/*
 * Trains the run from its beginning. Its fail_at-th allocation fails (0 for none), and the fake GPU
 * fails as configured before the call. *f then holds the counts of the heap.
 */
static inline invar_status scenario_disturbed(faulty *f, invar_recipe *recipe, int fail_at)
{
    invar_allocator allocator = {faulty_alloc, faulty_free, f};
    invar_status status;

    assert_ok(invar_held_folder_remove(run_path(SCENARIO_RUN)));
    *f = (faulty){.fail_at = fail_at};
    invar_error_clear();
    invar_allocator_set(&allocator);
    status = run_train(recipe);
    invar_allocator_set(NULL);
    return status;
}

/*
 * Starts the disturbed run again. It must reach the bits of the undisturbed one. `disturbance` is
 * used in messages only.
 */
static inline void scenario_check_resume(invar_recipe *recipe, const run_digests *undisturbed,
                                         const char *disturbance)
{
    run_digests after;

    (void)run_read_digests(&after, run_path(SCENARIO_RUN));
    invar_fake_gpu_begin(0);
    assert_ok(run_train(recipe));
    after = run_digests_of(SCENARIO_RUN);
    if (!run_same(&after, undisturbed))
        fail_msg("%s: the run went on to other bits", disturbance);
}

#endif
