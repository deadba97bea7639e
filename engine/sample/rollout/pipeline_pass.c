/*
 * pipeline_pass.c - rollout passes on one rank or on the stages of a pipeline.
 *
 * All stages pack the same rows. Each stage receives the residual stream, runs its model chunks and
 * sends the stream on. The last stage samples and broadcasts the tokens, so that all stages make
 * the same decisions; that must stay true, because each of them runs its own scheduler. Without a
 * pipeline a pass is one call of invar_pass_run. Routing is computed per stage and gathered
 * afterwards.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/sample/rollout/model_runner.h"

#include "base/invar_banned.h"

/* ---- set-up ---------------------------------------------------------------------------------- */

invar_status invar_rollout_stages_open(invar_rollout *r, const invar_device *dev,
                                       const invar_pass_options *options)
{
    const invar_model_partition *part = &r->model->part;
    invar_pass_options own = *options;

    if (part->stages > 1)
        invar_pipeline_channel_init(&r->pipeline_channel, r->model->layout, false);
    for (int i = 0; i < part->chunks; i++) {
        own.chunk = i * part->stages + part->stage;
        INVAR_TRY(invar_pass_new(&r->passes[r->n_passes], dev, &own));
        r->pass = r->passes[r->n_passes++];
    }
    return INVAR_OK;
}

void invar_rollout_stages_close(invar_rollout *r)
{
    invar_error error; // error of the rollout, which a failing flush must not replace

    invar_error_take(&error);
    if (invar_pipeline_channel_flush(&r->pipeline_channel) != INVAR_OK)
        invar_error_clear();
    invar_error_put(&error);
    invar_pipeline_channel_release(&r->pipeline_channel);
    for (int i = 0; i < r->n_passes; i++)
        invar_pass_free(r->passes[i]);
}

void invar_rollout_stages_probe(const invar_rollout *r, const invar_forward_hooks *probe)
{
    for (int i = 0; i < r->n_passes; i++)
        invar_pass_probe(r->passes[i], probe);
}

bool invar_rollout_stages_samples(const invar_rollout *r)
{
    return r->model->part.stage == r->model->part.stages - 1;
}

static invar_index_range layers_of(const invar_rollout *r, int pass)
{
    const invar_model_partition *part = &r->model->part;

    return invar_model_partition_chunk(part, r->model->spec.layers,
                                       pass * part->stages + part->stage);
}

int64_t invar_rollout_stages_layers(const invar_model *model)
{
    int64_t count = 0;

    for (int64_t i = 0; i < model->spec.layers; i++)
        count += invar_model_partition_has(&model->part, model->spec.layers, i);
    return count;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

static invar_status send_residual(invar_rollout *r, invar_pass *pass, size_t bytes)
{
    void *stream;

    INVAR_TRY(invar_pipeline_send_buffer(&stream, &r->pipeline_channel, bytes));
    INVAR_TRY(invar_pass_get_residual(pass, stream));
    return invar_pipeline_send(&r->pipeline_channel, bytes);
}

invar_status invar_rollout_stages_run(invar_rollout *r, const invar_packed_rows *rows)
{
    size_t bytes = invar_pass_stream_bytes(r->model, rows);
    invar_packed_rows own = *rows;

    r->pipeline_channel.dry_run = r->op_runner.dev.backend->memory.dry_run;
    for (int i = 0; i < r->n_passes; i++) {
        bool first = r->model->part.stage == 0 && i == 0;
        bool last = invar_rollout_stages_samples(r) && i == r->n_passes - 1;
        void *stream = NULL;

        if (!first)
            INVAR_TRY(invar_pipeline_receive(&stream, &r->pipeline_channel, bytes));
        own.residual_in = stream;
        INVAR_TRY(invar_pass_run(r->passes[i], r->model, &own));
        if (!last)
            INVAR_TRY(send_residual(r, r->passes[i], bytes));
        own.cache += layers_of(r, i).count;
    }
    return INVAR_OK;
}

invar_status invar_rollout_stages_broadcast(const invar_rollout *r, const char *phase, void *data,
                                            size_t bytes)
{
    return r->model->part.stages > 1
               ? invar_pipeline_broadcast_last(r->model->layout, phase, data, bytes)
               : INVAR_OK;
}

/* ---- routing --------------------------------------------------------------------------------- */

/* Range of columns of the routing that belong to one model chunk. */
typedef struct columns {
    int64_t first, count;
} columns;

static columns columns_of(const invar_rollout *r, int chunk)
{
    const invar_model *m = r->model;
    invar_index_range layers = invar_model_partition_chunk(&m->part, m->spec.layers, chunk);
    int64_t slots = m->spec.experts.per_token;
    int64_t first = invar_model_sparse_before(m, layers.first) * slots;

    return (columns){first,
                     invar_model_sparse_before(m, layers.first + layers.count) * slots - first};
}

/*
 * Copies the columns c of `rows` rows between `all` (rows, route) and `own` (rows, c->count): into
 * `all` if `out`, else from it. Returns the number of ids copied.
 */
static int64_t copy_columns(int32_t *all, int32_t *own, int64_t rows, int64_t route,
                            const columns *c, bool out)
{
    for (int64_t i = 0; i < rows; i++) {
        int32_t *a = all + i * route + c->first, *b = own + i * c->count;
        memcpy(out ? a : b, out ? b : a, (size_t)c->count * sizeof *a);
    }
    return rows * c->count;
}

/* Gathers the routing of all stages; the part of this stage must be in `packed` already. */
static invar_status gather_routing(const invar_rollout *r, int32_t *packed, const size_t *bytes)
{
    const invar_layout *layout = r->model->layout;

    return invar_layout_gather(layout, &layout->pipeline, "choices of experts", packed, bytes);
}

/*
 * Completes rows->routing with the routing of the other stages. The gathered buffer is ordered by
 * stage, then by the model chunks of the stage.
 */
static invar_status merge_stage_routing(invar_rollout *r, const invar_packed_rows *rows,
                                        int64_t route)
{
    const invar_model_partition *part = &r->model->part;
    int32_t *packed = NULL, *at;
    size_t *bytes = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(packed, (size_t)(rows->count * route) + 1, "choices of experts"));
    status = INVAR_ALLOC(bytes, (size_t)part->stages, "a gather");
    at = packed;
    for (int s = 0; s < part->stages && status == INVAR_OK; s++) {
        int32_t *begin = at;
        for (int i = 0; i < part->chunks && status == INVAR_OK; i++) {
            columns c = columns_of(r, i * part->stages + s);
            if (s == part->stage)
                status = invar_pass_routing(r->passes[i]);
            if (status == INVAR_OK)
                at += copy_columns(rows->routing, at, rows->count, route, &c, false);
        }
        bytes[s] = (size_t)(at - begin) * sizeof *at;
    }
    if (status == INVAR_OK)
        status = gather_routing(r, packed, bytes);
    at = packed;
    for (int s = 0; s < part->stages && status == INVAR_OK; s++)
        for (int i = 0; i < part->chunks; i++) {
            columns c = columns_of(r, i * part->stages + s);
            at += copy_columns(rows->routing, at, rows->count, route, &c, true);
        }
    invar_free(bytes);
    invar_free(packed);
    return status;
}

invar_status invar_rollout_stages_routing(invar_rollout *r, const invar_packed_rows *rows)
{
    int64_t route = invar_model_sparse_layers(r->model) * r->model->spec.experts.per_token;

    if (r->model->part.stages == 1 || route == 0 || !rows->routing)
        return invar_pass_routing(r->pass);
    return merge_stage_routing(r, rows, route);
}
