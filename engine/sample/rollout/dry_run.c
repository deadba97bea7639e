/*
 * dry_run.c - the largest passes of a rollout, for the memory that they take.
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

/* A pass that is as large as can be. */
typedef struct scene {
    invar_rollout *rollout;
    int64_t rows, sequences;
    int64_t draws; /* of decoding */
    int64_t width; /* of the page tables */
    int64_t route; /* numbers of one row's routing; 0: none */
    int32_t *ids, *positions, *slots, *tables, *routing;
    int64_t *start, *lengths;
} scene;

static void lay_out(scene *s, invar_carver *c)
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

static invar_status scene_run(scene *s)
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

/* `rows` of them at most, with `shared` two draws of the first. */
static invar_status sampler_draw(invar_sampler *sampler, invar_pass *pass, int64_t count,
                                 int64_t rows, bool shared)
{
    invar_draw draws[INVAR_SAMPLER_ROWS];

    memset(draws, 0, sizeof draws);
    count = invar_min_i64(count, INVAR_SAMPLER_ROWS);
    for (int64_t i = 0; i < count; i++)
        draws[i].row = invar_min_i64(shared && i > 0 ? i - 1 : i, rows - 1);
    return invar_sampler_draw(sampler, pass, draws, count);
}

static invar_status run_scene(scene *s, invar_sampler *sampler, const invar_rollout_max_shape *most)
{
    invar_carver c = {NULL, 0};
    void *memory = NULL;
    invar_status status;

    lay_out(s, &c);
    INVAR_TRY(invar_alloc(&memory, c.used, 1, "the rows of a rollout"));
    memset(memory, 0, c.used);
    c = (invar_carver){memory, 0};
    lay_out(s, &c);
    status = scene_run(s);
    if (status == INVAR_OK && invar_rollout_stages_draw(s->rollout))
        status = sampler_draw(sampler, s->rollout->pass, s->draws, s->rows, false);
    if (status == INVAR_OK && invar_rollout_stages_draw(s->rollout) &&
        most->prompts < most->samples)
        status = sampler_draw(sampler, s->rollout->pass, most->samples, s->rows, true);
    invar_free(memory);
    return status;
}

invar_status invar_rollout_dry_run(invar_rollout *r, const invar_sampling_params *sampling,
                                   const invar_rollout_max_shape *most)
{
    bool far = invar_device_is_local(&r->caller.dev);
    scene s = {.rollout = r,
               .route = invar_model_sparse_layers(r->model) * r->model->spec.experts_per_token};
    invar_rollout_exec_options limits;
    invar_sampler sampler = {0};
    int64_t known, apart, ahead = invar_speculation_tokens(&r->limits.speculation);
    invar_status status;

    INVAR_CHECK(r->caller.dev.backend->memory.dry_run);
    INVAR_TRY(invar_host_staging_advise_oom(
        invar_model_runner_settle(&limits, r, most->samples, most->rows), far,
        INVAR_MODEL_RUNNER_ADVICE));
    // a graph's fillers stand where prompts may
    s.sequences = invar_min_i64(limits.concurrency, most->samples + (far ? most->prompts : 0));
    s.draws = s.sequences * (1 + ahead);
    s.width = invar_kv_cache_pages_for(r->cache, most->rows);
    apart = limits.no_prefix_sharing ? most->samples : most->prompts;
    known = most->prompt_rows < limits.prefill_chunk / apart + 1 ? most->prompt_rows * apart
                                                                 : limits.prefill_chunk;
    // samples that give way come back with many rows
    if (most->resumed || limits.pages < s.sequences * s.width)
        known = limits.prefill_chunk;
    known = invar_min_i64(known, limits.prefill_chunk);
    if (r->show.watcher.probe.take)
        invar_rollout_stages_probe(r, &r->show.watcher.probe);
    status = invar_sampler_init(&sampler, &r->caller, sampling);
    s.rows = invar_scheduler_most_rows(known, s.sequences, ahead, far);
    if (status == INVAR_OK)
        status = run_scene(&s, &sampler, most);
    s.rows = s.sequences * (1 + ahead); // decoding
    if (status == INVAR_OK)
        status = run_scene(&s, &sampler, most);
    for (int i = 0; i < r->n_passes && status == INVAR_OK; i++)
        status = invar_pass_alloc_scratch(r->passes[i]);
    if (status == INVAR_OK)
        status = invar_op_runner_settle(&r->caller);
    invar_rollout_stages_probe(r, NULL);
    if (status == INVAR_OK && r->draft)
        status = invar_draft_model_rehearse(r->draft, &limits, sampling, most);
    invar_sampler_release(&sampler);
    return invar_host_staging_advise_oom(status, far, INVAR_MODEL_RUNNER_ADVICE);
}
