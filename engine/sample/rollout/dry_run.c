/*
 * dry_run.c - runs the largest passes of a rollout without data, to plan its memory.
 *
 * On a dry-run device allocations are counted and ops compute nothing. The passes here must be at
 * least as large as any pass of scheduler.c: one of prefill and decode rows together, one of decode
 * rows with drafts, and draws that share rows of logits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/minmax.h"
#include "engine/model/graph/host_staging.h"
#include "engine/sample/rollout/draft/draft_model.h"
#include "engine/sample/rollout/model_runner.h"
#include "engine/sample/rollout/sampler.h"

#include "base/invar_banned.h"

/* Samples `count` tokens from the first `rows` rows; if `shared`, the first row is drawn twice. */
static invar_status draw_rows(invar_sampler *sampler, invar_pass *pass, int64_t count, int64_t rows,
                              bool shared)
{
    invar_draw draws[INVAR_SAMPLER_ROWS];

    memset(draws, 0, sizeof draws);
    count = invar_min_i64(count, INVAR_SAMPLER_ROWS);
    for (int64_t i = 0; i < count; i++)
        draws[i].row = invar_min_i64(shared && i > 0 ? i - 1 : i, rows - 1);
    return invar_sampler_draw(sampler, pass, draws, count);
}

/* Runs a pass of `rows` rows, which are zeros, and samples `draws` tokens from it. */
static invar_status run_pass_and_draws(invar_model_runner *runner, int64_t rows, int64_t draws,
                                       invar_sampler *sampler, const invar_rollout_max_shape *most)
{
    invar_pass *pass = runner->rollout->pass;

    for (int64_t i = 0; i <= runner->sequences; i++)
        runner->start[i] = i * rows / runner->sequences;
    INVAR_TRY(invar_model_runner_run(runner, runner->width));
    if (!invar_rollout_stages_samples(runner->rollout))
        return INVAR_OK;
    INVAR_TRY(draw_rows(sampler, pass, draws, rows, false));
    return most->prompts < most->samples ? draw_rows(sampler, pass, most->samples, rows, true)
                                         : INVAR_OK;
}

invar_status invar_rollout_dry_run(invar_rollout *r, const invar_sampling_params *sampling,
                                   const invar_rollout_max_shape *max_shape)
{
    bool far = invar_device_is_local(&r->op_runner.dev);
    invar_model_runner runner = {.rollout = r,
                                 .is_draft = true, // there are no sequences to release
                                 .route = invar_model_sparse_layers(r->model) *
                                          r->model->spec.experts.per_token};
    invar_rollout_exec_options limits;
    invar_sampler sampler = {0};
    int64_t known, apart, draws, ahead = invar_speculation_tokens(&r->limits.speculation);
    invar_status status;

    INVAR_CHECK(r->op_runner.dev.backend->memory.dry_run);
    INVAR_TRY(invar_host_staging_advise_oom(
        invar_model_runner_resolve_options(&limits, r, max_shape->samples, max_shape->rows), far,
        INVAR_MODEL_RUNNER_ADVICE));
    // fillers of a CUDA graph may take the slots of prompts
    runner.sequences =
        invar_min_i64(limits.concurrency, max_shape->samples + (far ? max_shape->prompts : 0));
    draws = runner.sequences * (1 + ahead);
    runner.width = invar_kv_cache_pages_for(r->cache, max_shape->rows);
    apart = limits.no_prefix_sharing ? max_shape->samples : max_shape->prompts;
    known = max_shape->prompt_rows < limits.prefill_chunk / apart + 1
                ? max_shape->prompt_rows * apart
                : limits.prefill_chunk;
    // preempted samples return with many known rows
    if (max_shape->resumed || limits.pages < runner.sequences * runner.width)
        known = limits.prefill_chunk;
    known = invar_min_i64(known, limits.prefill_chunk);
    if (r->row_owners.hooks.probe.on_value)
        invar_rollout_stages_probe(r, &r->row_owners.hooks.probe);
    status = invar_sampler_init(&sampler, &r->op_runner, sampling);
    runner.scheduler = (invar_scheduler){
        .cache = r->cache, .concurrency = runner.sequences, .chunk = known, .lookahead = ahead};
    if (status == INVAR_OK)
        status = invar_model_runner_alloc(&runner);
    if (status == INVAR_OK)
        status = run_pass_and_draws(&runner,
                                    invar_scheduler_max_rows(known, runner.sequences, ahead, far),
                                    draws, &sampler, max_shape);
    if (status == INVAR_OK) // decoding
        status = run_pass_and_draws(&runner, draws, draws, &sampler, max_shape);
    for (int i = 0; i < r->n_passes && status == INVAR_OK; i++)
        status = invar_pass_alloc_scratch(r->passes[i]);
    if (status == INVAR_OK)
        status = invar_op_runner_alloc_scratch(&r->op_runner);
    invar_rollout_stages_probe(r, NULL);
    if (status == INVAR_OK && r->draft)
        status = invar_draft_model_dry_run(r->draft, &limits, sampling, max_shape);
    invar_sampler_release(&sampler);
    invar_model_runner_release(&runner);
    return invar_host_staging_advise_oom(status, far, INVAR_MODEL_RUNNER_ADVICE);
}
