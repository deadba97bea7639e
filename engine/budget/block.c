/*
 * block.c - the block of a run: sampling, scoring and learning have it in turn, or two pieces of it
 * at the same time.
 *
 * Every part takes its memory before the run, for the largest shapes that can come, and keeps it:
 * so addresses do not change, which graphs of ops depend on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/alloc.h"
#include "engine/budget/budget.h"

#include "base/invar_banned.h"

#define PHASES (int)(sizeof((invar_budget_block *)0)->stages / sizeof(invar_stage *))

invar_status invar_budget_block_take(invar_budget_block *out, const invar_device *dev,
                                     const invar_device *sampler, const invar_budget *plan)
{
    size_t first = plan->beside ? plan->beside : plan->block;
    invar_status status;

    *out = (invar_budget_block){.dev = dev};
    status = invar_device_take(dev, &out->memory, plan->block, "activations and KV cache");
    for (int i = 0; i < PHASES && status == INVAR_OK; i++) {
        bool samples = i == INVAR_BUDGET_SAMPLING || i == INVAR_BUDGET_CHECKING;
        char *memory = out->memory;

        status = invar_alloc((void **)&out->stages[i], 1, sizeof *out->stages[i],
                             "a stage of the device's memory");
        if (status != INVAR_OK)
            break;
        invar_stage_init(out->stages[i], samples ? sampler : dev, 0);
        if (samples)
            invar_stage_place(out->stages[i], memory, first);
        else
            invar_stage_place(out->stages[i], memory + plan->beside, plan->block - plan->beside);
    }
    if (status != INVAR_OK)
        invar_budget_block_release(out);
    return status;
}

void invar_budget_block_release(invar_budget_block *block)
{
    for (int i = 0; i < PHASES; i++)
        invar_free(block->stages[i]);
    if (block->dev)
        invar_device_give(block->dev, block->memory);
    *block = (invar_budget_block){0};
}

const invar_device *invar_budget_block_dev(const invar_budget_block *block,
                                           invar_budget_phase phase)
{
    return &block->stages[phase]->dev;
}

invar_status invar_budget_block_open(invar_budget_block *block, const invar_budget_parts *parts,
                                     const invar_budget_ask *ask)
{
    invar_budget_parts watched = *parts;

    if (ask->level >= INVAR_PROBE_FULL)
        watched.probe = &invar_budget_blind;
    if (parts->rollout)
        INVAR_TRY(invar_budget_rehearse_rollout(parts->rollout, ask));
    if (parts->trainer) {
        INVAR_TRY(invar_budget_rehearse_score(parts, ask));
        INVAR_TRY(invar_budget_rehearse_learn(&watched, ask));
    }
    if (parts->checker)
        INVAR_TRY(invar_budget_rehearse_check(parts, ask));
    for (int i = 0; i < PHASES; i++)
        invar_stage_open(block->stages[i]);
    return INVAR_OK;
}
