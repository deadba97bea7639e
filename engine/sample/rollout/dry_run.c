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

#include "base/alloc.h"
#include "base/block_carver.h"
#include "base/minmax.h"
#include "engine/model/graph/host_staging.h"
#include "engine/sample/rollout/draft/draft_model.h"
#include "engine/sample/rollout/model_runner.h"
#include "engine/sample/rollout/sampler.h"

#include "base/invar_banned.h"

/* The largest pass of one kind, with arrays like those of invar_model_runner. */
typedef struct dry_pass {
    invar_rollout *rollout;
    int64_t rows, sequences;
    int64_t draws; /* tokens that a decode pass samples */
    int64_t width; /* pages per row of the page table */
    int64_t route; /* expert ids per row of routing; 0 for a dense model */
    int32_t *ids, *positions, *slots, *tables, *routing;
    int64_t *start, *lengths;
} dry_pass;

static void carve_arrays(dry_pass *s, invar_carver *c)
{
    size_t rows = (size_t)s->rows, sequences = (size_t)s->sequences;

    s->ids = invar_carve(c, rows * sizeof *s->ids);
    s->positions = invar_carve(c, rows * sizeof *s->positions);
    s->slots = invar_carve(c, rows * sizeof *s->slots);
    s->tables = invar_carve(c, sequences * (size_t)s->width * sizeof *s->tables);
    s->routing = invar_carve(c, rows * (size_t)s->route * sizeof *s->routing);
    s->start = invar_carve(c, (sequences + 1) * sizeof *s->start);
    s->lengths = invar_carve(c, sequences * sizeof *s->lengths);
}

static invar_status run_dry_pass(dry_pass *s)
{
    invar_rollout *r = s->rollout;
    invar_packed_rows rows = {.count = s->rows,
                              .ids = s->ids,
                              .positions = s->positions,
                              .samples = {s->start, s->sequences},
                              .cache = r->cache->layers,
                              .lengths = s->lengths,
                              .kv_slots = s->slots,
                              .routing = s->route > 0 ? s->routing : NULL};

    for (int64_t i = 0; i <= s->sequences; i++)
        s->start[i] = i * s->rows / s->sequences;
    for (int64_t i = 0; i < r->cache->shape.layers; i++)
        r->cache->layers[i].pages =
            invar_tensor_2d(s->tables, INVAR_DTYPE_I32, s->sequences, s->width);
    return invar_rollout_stages_run(r, &rows);
}

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

static invar_status plan_pass_and_draws(dry_pass *s, invar_sampler *sampler,
                                        const invar_rollout_max_shape *most)
{
    invar_carver c = {NULL, 0};
    void *memory = NULL;
    invar_status status;

    carve_arrays(s, &c);
    INVAR_TRY(invar_alloc(&memory, c.used, 1, "the rows of a rollout"));
    memset(memory, 0, c.used);
    c = (invar_carver){memory, 0};
    carve_arrays(s, &c);
    status = run_dry_pass(s);
    if (status == INVAR_OK && invar_rollout_stages_samples(s->rollout))
        status = draw_rows(sampler, s->rollout->pass, s->draws, s->rows, false);
    if (status == INVAR_OK && invar_rollout_stages_samples(s->rollout) &&
        most->prompts < most->samples)
        status = draw_rows(sampler, s->rollout->pass, most->samples, s->rows, true);
    invar_free(memory);
    return status;
}

invar_status invar_rollout_dry_run(invar_rollout *r, const invar_sampling_params *sampling,
                                   const invar_rollout_max_shape *max_shape)
{
    bool far = invar_device_is_local(&r->op_runner.dev);
    dry_pass s = {.rollout = r,
                  .route = invar_model_sparse_layers(r->model) * r->model->spec.experts_per_token};
    invar_rollout_exec_options limits;
    invar_sampler sampler = {0};
    int64_t known, apart, ahead = invar_speculation_tokens(&r->limits.speculation);
    invar_status status;

    INVAR_CHECK(r->op_runner.dev.backend->memory.dry_run);
    INVAR_TRY(invar_host_staging_advise_oom(
        invar_model_runner_resolve_options(&limits, r, max_shape->samples, max_shape->rows), far,
        INVAR_MODEL_RUNNER_ADVICE));
    // fillers of a CUDA graph may take the slots of prompts
    s.sequences =
        invar_min_i64(limits.concurrency, max_shape->samples + (far ? max_shape->prompts : 0));
    s.draws = s.sequences * (1 + ahead);
    s.width = invar_kv_cache_pages_for(r->cache, max_shape->rows);
    apart = limits.no_prefix_sharing ? max_shape->samples : max_shape->prompts;
    known = max_shape->prompt_rows < limits.prefill_chunk / apart + 1
                ? max_shape->prompt_rows * apart
                : limits.prefill_chunk;
    // preempted samples return with many known rows
    if (max_shape->resumed || limits.pages < s.sequences * s.width)
        known = limits.prefill_chunk;
    known = invar_min_i64(known, limits.prefill_chunk);
    if (r->row_owners.hooks.probe.on_value)
        invar_rollout_stages_probe(r, &r->row_owners.hooks.probe);
    status = invar_sampler_init(&sampler, &r->op_runner, sampling);
    s.rows = invar_scheduler_max_rows(known, s.sequences, ahead, far);
    if (status == INVAR_OK)
        status = plan_pass_and_draws(&s, &sampler, max_shape);
    s.rows = s.sequences * (1 + ahead); // decoding
    if (status == INVAR_OK)
        status = plan_pass_and_draws(&s, &sampler, max_shape);
    for (int i = 0; i < r->n_passes && status == INVAR_OK; i++)
        status = invar_pass_alloc_scratch(r->passes[i]);
    if (status == INVAR_OK)
        status = invar_op_runner_alloc_scratch(&r->op_runner);
    invar_rollout_stages_probe(r, NULL);
    if (status == INVAR_OK && r->draft)
        status = invar_draft_model_dry_run(r->draft, &limits, sampling, max_shape);
    invar_sampler_release(&sampler);
    return invar_host_staging_advise_oom(status, far, INVAR_MODEL_RUNNER_ADVICE);
}
