/*
 * phase_memory.c - the block of device memory that the phases of a run share.
 *
 * Sampling, scoring and learning use the block in turn or, with overlap, its two parts at the same
 * time. Every object allocates before the run, for the largest shapes that can come, and keeps its
 * memory: addresses do not change during the run, and CUDA graphs depend on that.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/alloc.h"
#include "engine/run/memory_plan/memory_plan.h"

#include "base/invar_banned.h"

#define PHASES (int)(sizeof((invar_phase_memory *)0)->stages / sizeof(invar_phase_arena *))

invar_status invar_phase_memory_alloc(invar_phase_memory *out, const invar_device *dev,
                                      const invar_device *sampler, const invar_memory_plan *plan)
{
    size_t first = plan->sampler_bytes ? plan->sampler_bytes : plan->block;
    invar_status status;

    *out = (invar_phase_memory){.dev = dev};
    status = invar_device_alloc(dev, &out->memory, plan->block, "activations and KV cache");
    for (int i = 0; i < PHASES && status == INVAR_OK; i++) {
        bool samples = i == INVAR_MEMORY_PLAN_SAMPLING || i == INVAR_MEMORY_PLAN_CHECKING;
        char *memory = out->memory;

        status = INVAR_ALLOC(out->stages[i], 1, "a stage of the device's memory");
        if (status != INVAR_OK)
            break;
        invar_phase_arena_init(out->stages[i], samples ? sampler : dev, 0);
        if (samples)
            invar_phase_arena_bind(out->stages[i], memory, first);
        else
            invar_phase_arena_bind(out->stages[i], memory + plan->sampler_bytes,
                                   plan->block - plan->sampler_bytes);
    }
    if (status != INVAR_OK)
        invar_phase_memory_release(out);
    return status;
}

void invar_phase_memory_release(invar_phase_memory *memory)
{
    for (int i = 0; i < PHASES; i++)
        invar_free(memory->stages[i]);
    if (memory->dev)
        invar_device_free(memory->dev, memory->memory);
    *memory = (invar_phase_memory){0};
}

const invar_device *invar_phase_memory_dev(const invar_phase_memory *memory,
                                           invar_memory_phase phase)
{
    return &memory->stages[phase]->dev;
}

invar_status invar_phase_memory_activate(invar_phase_memory *memory,
                                         const invar_dry_run_objects *parts,
                                         const invar_memory_workload *workload)
{
    if (parts->rollout)
        INVAR_TRY(invar_dry_run_rollout(parts->rollout, workload));
    if (parts->trainer) {
        INVAR_TRY(invar_dry_run_score(parts, workload));
        INVAR_TRY(invar_dry_run_learn(parts, workload));
    }
    if (parts->checker)
        INVAR_TRY(invar_dry_run_check(parts, workload));
    for (int i = 0; i < PHASES; i++)
        invar_phase_arena_activate(memory->stages[i]);
    return INVAR_OK;
}
