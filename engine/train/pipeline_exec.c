/*
 * pipeline_exec.c - micro-batches through the layers and back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/pipeline_exec.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* ---- lanes ----------------------------------------------------------------------------------- */

static invar_status add_lane(invar_inflight_micro_batches *to, const invar_device *dev,
                             const invar_pass_options *options, int chunk)
{
    invar_pass_options own = *options;
    invar_inflight_micro_batch *lane = &to->items[to->count++];

    own.chunk = chunk;
    *lane = (invar_inflight_micro_batch){.chunk = chunk, .dp_round = -1};
    return invar_pass_new(&lane->pass, dev, &own);
}

/* Lanes of a chunk: more micro-batches than fill the pipeline need no more. */
static invar_status count_lanes(int64_t *out, const invar_layout *layout, int turn, bool back)
{
    int stages = layout->pipeline.size, stage = layout->pipeline.rank;
    invar_pipeline_schedule tasks;

    *out = 1;
    if (!back)
        return INVAR_OK;
    INVAR_TRY(invar_pipeline_schedule_make(&tasks, stages, layout->virtual_stages, stage,
                                           4 * (int64_t)stages * layout->virtual_stages, true));
    *out = invar_pipeline_max_in_flight(&tasks, turn * stages + stage);
    invar_pipeline_schedule_release(&tasks);
    return INVAR_OK;
}

static invar_status make_lanes(invar_inflight_micro_batches *out, const invar_device *dev,
                               const invar_pass_options *pass, const invar_layout *layout)
{
    int stages = invar_layout_pipes(layout) ? layout->pipeline.size : 1;
    int chunks = stages > 1 ? layout->virtual_stages : 1;
    int64_t counts[INVAR_LAYOUT_MAX_CHUNKS] = {1}, all = 0;

    for (int i = 0; i < chunks; i++) {
        if (stages > 1)
            INVAR_TRY(count_lanes(&counts[i], layout, i, pass->train));
        all += counts[i];
    }
    INVAR_TRY(invar_alloc((void **)&out->items, (size_t)all, sizeof *out->items, "passes"));
    for (int i = 0; i < chunks; i++)
        for (int64_t k = 0; k < counts[i]; k++)
            INVAR_TRY(
                add_lane(out, dev, pass, stages > 1 ? i * stages + layout->pipeline.rank : 0));
    return INVAR_OK;
}

invar_status invar_inflight_micro_batches_new(invar_inflight_micro_batches *out,
                                              const invar_device *dev,
                                              const invar_pass_options *pass,
                                              const invar_layout *layout)
{
    invar_status status;

    *out = (invar_inflight_micro_batches){NULL, 0};
    status = make_lanes(out, dev, pass, layout);
    if (status != INVAR_OK)
        invar_inflight_micro_batches_free(out);
    return status;
}

void invar_inflight_micro_batches_free(invar_inflight_micro_batches *lanes)
{
    for (int64_t i = 0; i < lanes->count; i++) {
        invar_pass_free(lanes->items[i].pass);
        invar_micro_batch_release(&lanes->items[i].batch);
        invar_free(lanes->items[i].gradient);
    }
    invar_free(lanes->items);
    *lanes = (invar_inflight_micro_batches){NULL, 0};
}

invar_status invar_inflight_micro_batch_room(invar_inflight_micro_batch *lane, int64_t tokens)
{
    if (tokens <= lane->capacity)
        return INVAR_OK;
    invar_free(lane->gradient);
    lane->gradient = NULL;
    lane->capacity = 0;
    INVAR_TRY(invar_alloc((void **)&lane->gradient, 2 * (size_t)tokens, sizeof(float),
                          "gradients of log-probabilities"));
    lane->capacity = tokens;
    return INVAR_OK;
}

/* The lane of a chunk with this round; -1: one that is free. */
static invar_inflight_micro_batch *find_lane(const invar_inflight_micro_batches *lanes, int chunk,
                                             int64_t round)
{
    for (int64_t i = 0; i < lanes->count; i++)
        if (lanes->items[i].chunk == chunk && lanes->items[i].dp_round == round)
            return &lanes->items[i];
    return NULL;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

int64_t invar_pipeline_exec_rounds(const invar_pipeline_exec *w)
{
    return (w->plan->count + w->ranks - 1) / w->ranks;
}

static int64_t pipeline_exec_responses(const invar_pipeline_exec *w, int64_t first, int64_t end)
{
    int64_t tokens = 0;

    for (int64_t i = w->plan->sample[first]; i < w->plan->sample[end]; i++)
        tokens += invar_rl_sample_response(&w->samples[i]);
    return tokens;
}

invar_dp_round invar_pipeline_exec_round(const invar_pipeline_exec *w, int64_t number)
{
    int64_t first = number * w->ranks, left = w->plan->count - first;
    invar_dp_round r = {.number = number, .first = first, .local_micro_batch = -1};

    r.count = left < w->ranks ? left : w->ranks;
    if (w->rank < r.count)
        r.local_micro_batch = first + w->rank;
    r.first_token = pipeline_exec_responses(w, 0, first);
    r.n_tokens = pipeline_exec_responses(w, first, first + r.count);
    r.tokens_before = pipeline_exec_responses(
        w, first, r.local_micro_batch < 0 ? first + r.count : r.local_micro_batch);
    return r;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static int last_chunk(const invar_pipeline_exec *w)
{
    return invar_layout_pipes(w->layout) ? w->layout->pipeline.size * w->layout->virtual_stages - 1
                                         : 0;
}

bool invar_pipeline_exec_ends(const invar_pipeline_exec *w, const invar_inflight_micro_batch *lane)
{
    return lane->chunk == last_chunk(w);
}

static invar_status pipeline_exec_fill(invar_pipeline_exec *w, invar_inflight_micro_batch *lane,
                                       int64_t b)
{
    const invar_batch_plan *plan = w->plan;
    invar_micro_batch_plan part = {.first = plan->sample[b],
                                   .count = plan->sample[b + 1] - plan->sample[b],
                                   .unit_start = plan->unit_sample + plan->unit[b],
                                   .units = plan->unit[b + 1] - plan->unit[b],
                                   .temperature = w->temperature > 0.0f ? w->temperature : 1.0f,
                                   .route = invar_model_spec_route(&w->model->spec),
                                   .replay = w->replay};

    part.replay = part.replay && part.route > 0;
    return invar_micro_batch_fill(&lane->batch, w->samples, &part);
}

static size_t stream_bytes(const invar_pipeline_exec *w, const invar_inflight_micro_batch *lane)
{
    return invar_pass_stream_bytes(w->model, &lane->batch.rows);
}

/* From the stage before or behind; alone, room that nobody has filled. */
static invar_status pipeline_exec_receive(void **out, const invar_pipeline_exec *w,
                                          invar_pipeline_channel *way, size_t bytes)
{
    return w->alone ? invar_pipeline_room(out, way, bytes)
                    : invar_pipeline_receive(out, way, bytes);
}

static invar_status send_on(const invar_pipeline_exec *w, invar_pipeline_channel *way, size_t bytes)
{
    return w->alone ? INVAR_OK : invar_pipeline_pending_send_on(way, bytes);
}

static invar_status run_layers(invar_pipeline_exec *w, const invar_dp_round *r,
                               invar_inflight_micro_batch *lane)
{
    invar_pipeline_channel *way = &w->ways->forth;
    void *stream = NULL;
    size_t bytes;

    INVAR_TRY(pipeline_exec_fill(w, lane, r->local_micro_batch));
    bytes = stream_bytes(w, lane);
    if (lane->chunk > 0)
        INVAR_TRY(pipeline_exec_receive(&stream, w, way, bytes));
    lane->batch.rows.residual_in = stream;
    INVAR_TRY(invar_pass_run(lane->pass, w->model, &lane->batch.rows));
    if (invar_pipeline_exec_ends(w, lane))
        return INVAR_OK;
    INVAR_TRY(invar_pipeline_room(&stream, way, bytes));
    INVAR_TRY(invar_pass_get_residual(lane->pass, stream));
    return send_on(w, way, bytes);
}

invar_status invar_pipeline_exec_back(invar_pipeline_exec *w, invar_inflight_micro_batch *lane,
                                      invar_grads *grads)
{
    void *d_stream;

    INVAR_TRY(pipeline_exec_receive(&d_stream, w, &w->ways->back, stream_bytes(w, lane)));
    return invar_pass_backward_stream(lane->pass, d_stream, grads);
}

invar_status invar_pipeline_exec_pass_back(invar_pipeline_exec *w,
                                           const invar_inflight_micro_batch *lane)
{
    invar_pipeline_channel *way = &w->ways->back;
    size_t bytes = stream_bytes(w, lane);
    void *d_stream;

    if (lane->chunk == 0)
        return INVAR_OK;
    INVAR_TRY(invar_pipeline_room(&d_stream, way, bytes));
    INVAR_TRY(invar_pass_get_residual_grad(lane->pass, d_stream));
    return send_on(w, way, bytes);
}

/* ---- the walk -------------------------------------------------------------------------------- */

static invar_status go_forth(invar_pipeline_exec *w, const invar_dp_round *r,
                             invar_inflight_micro_batch *lane)
{
    if (r->local_micro_batch >= 0)
        INVAR_TRY(run_layers(w, r, lane));
    return w->on_forward(w, r, lane);
}

static invar_status do_task(invar_pipeline_exec *w, const invar_pipeline_task *task)
{
    invar_dp_round r = invar_pipeline_exec_round(w, task->batch);
    invar_inflight_micro_batch *lane =
        find_lane(w->lanes, task->chunk, task->is_backward ? task->batch : -1);

    INVAR_CHECK(lane);
    lane->dp_round = task->is_backward || !w->on_backward ? -1 : task->batch;
    return task->is_backward ? w->on_backward(w, &r, lane) : go_forth(w, &r, lane);
}

static invar_status do_tasks(invar_pipeline_exec *w)
{
    const invar_layout *l = w->layout;
    bool pipes = invar_layout_pipes(l);
    invar_pipeline_schedule tasks;
    invar_status status;

    INVAR_TRY(invar_pipeline_schedule_make(
        &tasks, pipes ? l->pipeline.size : 1, pipes ? l->virtual_stages : 1,
        pipes ? l->pipeline.rank : 0, invar_pipeline_exec_rounds(w), w->on_backward != NULL));
    status = INVAR_OK;
    for (int64_t i = 0; i < tasks.count && status == INVAR_OK; i++) {
        status = do_task(w, &tasks.tasks[i]);
        if (status == INVAR_OK && w->tick)
            status = w->tick(w->watcher);
    }
    invar_pipeline_schedule_release(&tasks);
    return status;
}

/* Every lane has all of it, as if the rest of the pipeline were there. */
static invar_status do_alone(invar_pipeline_exec *w)
{
    for (int64_t i = 0; i < w->lanes->count; i++)
        for (int64_t b = 0; b < invar_pipeline_exec_rounds(w); b++) {
            invar_dp_round r = invar_pipeline_exec_round(w, b);

            INVAR_TRY(go_forth(w, &r, &w->lanes->items[i]));
            if (w->on_backward)
                INVAR_TRY(w->on_backward(w, &r, &w->lanes->items[i]));
        }
    return INVAR_OK;
}

/* Whoever waits for this rank's rows, or has sent it some, is told that it is no use. */
static void give_up(invar_pipeline_exec *w)
{
    invar_error error;

    invar_comm_abort(w->layout->world, invar_error_last()->message);
    invar_error_take(&error);
    if (invar_pipeline_channel_flush(&w->ways->forth) != INVAR_OK ||
        invar_pipeline_channel_flush(&w->ways->back) != INVAR_OK)
        invar_error_clear();
    invar_error_put(&error);
}

invar_status invar_pipeline_exec_run(invar_pipeline_exec *w)
{
    invar_status status;

    for (int64_t i = 0; i < w->lanes->count; i++)
        w->lanes->items[i].dp_round = -1;
    if (w->alone)
        return do_alone(w);
    status = do_tasks(w);
    if (!invar_layout_pipes(w->layout))
        return status;
    if (status == INVAR_OK)
        status = invar_pipeline_channel_flush(&w->ways->forth);
    if (status == INVAR_OK)
        status = invar_pipeline_channel_flush(&w->ways->back);
    if (status != INVAR_OK)
        give_up(w);
    return status;
}
