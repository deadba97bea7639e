/*
 * op_runner.c - runs ops on a device and grows their scratch.
 *
 * On a dry-run device no op runs: its scratch size is recorded, and allocated when the runner is
 * released or asked to, so that a memory plan counts it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/op_runner.h"

#include "base/invar_banned.h"

void invar_op_runner_init(invar_op_runner *runner, const invar_device *dev)
{
    *runner = (invar_op_runner){.dev = *dev, .layer = -1};
    runner->dev.scratch = NULL;
}

static void free_scratch(invar_op_runner *runner)
{
    invar_arena_free(runner->dev.scratch);
    runner->dev.scratch = NULL;
    runner->bytes = 0;
}

static invar_status grow_scratch(invar_op_runner *runner, size_t bytes)
{
    invar_arena *arena = NULL;
    invar_status status;

    free_scratch(runner); // freed first: old and new scratch need not fit at the same time
    runner->scratch_generation++;
    INVAR_TRY(invar_device_arena(&arena, &runner->dev, "scratch of ops"));
    status = invar_arena_plan_scratch(arena, bytes);
    if (status == INVAR_OK)
        status = invar_arena_reserve(arena);
    if (status != INVAR_OK) {
        invar_arena_free(arena);
        return status;
    }
    runner->dev.scratch = arena;
    runner->bytes = bytes;
    return INVAR_OK;
}

invar_status invar_op_runner_alloc_scratch(invar_op_runner *runner)
{
    size_t bytes = invar_device_growth_bytes(&runner->dev, runner->dry_scratch_bytes, 4);

    return bytes > runner->bytes ? grow_scratch(runner, bytes) : INVAR_OK;
}

void invar_op_runner_release(invar_op_runner *runner)
{
    // A dry run that never settled still has to count the scratch. If it does not fit, the real run
    // reports it.
    if (invar_op_runner_alloc_scratch(runner) != INVAR_OK)
        invar_error_clear();
    free_scratch(runner);
    runner->dry_scratch_bytes = 0;
}

invar_status invar_op_runner_reserve(invar_op_runner *runner, invar_op op, const void *args)
{
    const invar_op_impl *impl = &runner->dev.backend->ops[op];
    size_t bytes = 0;

    if (runner->dev.backend->memory.dry_run) {
        INVAR_TRY(invar_op_workspace(&bytes, &runner->dev, op, args));
        runner->dry_scratch_bytes =
            bytes > runner->dry_scratch_bytes ? bytes : runner->dry_scratch_bytes;
        return INVAR_OK;
    }
    if (impl->run) // a missing op is reported by invar_op_run
        bytes = impl->workspace(&runner->dev, args);
    return bytes > runner->bytes
               ? grow_scratch(runner, invar_device_growth_bytes(&runner->dev, bytes, 4))
               : INVAR_OK;
}
