/*
 * pipeline_exec.c - runs forward and backward of all micro-batches in pipeline order.
 *
 * The order of tasks comes from invar_pipeline_schedule (1F1B, interleaved with virtual stages).
 * This file allocates as many activation slots per model chunk as that schedule needs, receives
 * activations from the previous stage, runs the layers, and sends on. What happens at the loss is
 * up to the caller, in on_forward and on_backward. A slot is idle or belongs to exactly one round
 * of its chunk.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/pipeline_exec.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* ---- slots ----------------------------------------------------------------------------------- */

static invar_status add_slot(invar_inflight_micro_batches *to, const invar_device *dev,
                             const invar_pass_options *options, int chunk)
{
    invar_pass_options own = *options;
    invar_inflight_micro_batch *micro_batch = &to->items[to->count++];

    own.chunk = chunk;
    *micro_batch = (invar_inflight_micro_batch){.chunk = chunk, .dp_round = -1};
    return invar_pass_new(&micro_batch->pass, dev, &own);
}

/*
 * Counts the slots of a model chunk. The schedule is simulated with enough micro-batches to fill
 * the pipeline: more of them need no more slots.
 */
static invar_status count_slots(int64_t *out, const invar_layout *layout, int turn, bool back)
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

static invar_status make_slots(invar_inflight_micro_batches *out, const invar_device *dev,
                               const invar_pass_options *pass, const invar_layout *layout)
{
    int stages = invar_layout_is_pipelined(layout) ? layout->pipeline.size : 1;
    int chunks = stages > 1 ? layout->virtual_stages : 1;
    int64_t counts[INVAR_LAYOUT_MAX_CHUNKS] = {1}, all = 0;

    for (int i = 0; i < chunks; i++) {
        if (stages > 1)
            INVAR_TRY(count_slots(&counts[i], layout, i, pass->train));
        all += counts[i];
    }
    INVAR_TRY(INVAR_ALLOC(out->items, (size_t)all, "passes"));
    for (int i = 0; i < chunks; i++)
        for (int64_t k = 0; k < counts[i]; k++)
            INVAR_TRY(
                add_slot(out, dev, pass, stages > 1 ? i * stages + layout->pipeline.rank : 0));
    return INVAR_OK;
}

invar_status invar_inflight_micro_batches_new(invar_inflight_micro_batches *out,
                                              const invar_device *dev,
                                              const invar_pass_options *pass,
                                              const invar_layout *layout)
{
    invar_status status;

    *out = (invar_inflight_micro_batches){NULL, 0};
    status = make_slots(out, dev, pass, layout);
    if (status != INVAR_OK)
        invar_inflight_micro_batches_free(out);
    return status;
}

void invar_inflight_micro_batches_free(invar_inflight_micro_batches *slots)
{
    for (int64_t i = 0; i < slots->count; i++) {
        invar_pass_free(slots->items[i].pass);
        invar_micro_batch_release(&slots->items[i].batch);
        invar_free(slots->items[i].gradient);
    }
    invar_free(slots->items);
    *slots = (invar_inflight_micro_batches){NULL, 0};
}

invar_status invar_inflight_micro_batch_reserve(invar_inflight_micro_batch *micro_batch,
                                                int64_t tokens)
{
    return INVAR_GROW(micro_batch->gradient, micro_batch->capacity, 0, 2 * tokens,
                      "gradients of log-probabilities");
}

/* Returns the slot of a chunk that holds this round, or an idle one if `round` is -1. */
static invar_inflight_micro_batch *find_slot(const invar_inflight_micro_batches *lanes, int chunk,
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
    return (w->plan->n_micro_batches + w->ranks - 1) / w->ranks;
}

static int64_t count_response_tokens(const invar_pipeline_exec *w, int64_t first, int64_t end)
{
    int64_t tokens = 0;

    for (int64_t i = w->plan->first_sample[first]; i < w->plan->first_sample[end]; i++)
        tokens += invar_rl_sample_response(&w->samples[i]);
    return tokens;
}

invar_dp_round invar_pipeline_exec_round(const invar_pipeline_exec *w, int64_t number)
{
    int64_t first = number * w->ranks, left = w->plan->n_micro_batches - first;
    invar_dp_round r = {.number = number, .first = first, .local_micro_batch = -1};

    r.count = left < w->ranks ? left : w->ranks;
    if (w->rank < r.count)
        r.local_micro_batch = first + w->rank;
    r.first_token = count_response_tokens(w, 0, first);
    r.n_tokens = count_response_tokens(w, first, first + r.count);
    r.tokens_before = count_response_tokens(
        w, first, r.local_micro_batch < 0 ? first + r.count : r.local_micro_batch);
    return r;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static int last_chunk(const invar_pipeline_exec *w)
{
    return invar_layout_is_pipelined(w->layout)
               ? w->layout->pipeline.size * w->layout->virtual_stages - 1
               : 0;
}

bool invar_pipeline_exec_has_head(const invar_pipeline_exec *w,
                                  const invar_inflight_micro_batch *micro_batch)
{
    return micro_batch->chunk == last_chunk(w);
}

static invar_status fill_micro_batch(invar_pipeline_exec *w,
                                     invar_inflight_micro_batch *micro_batch, int64_t b)
{
    const invar_batch_plan *plan = w->plan;
    invar_micro_batch_plan part = {.first = plan->first_sample[b],
                                   .count = plan->first_sample[b + 1] - plan->first_sample[b],
                                   .unit_start = plan->unit_sample + plan->first_unit[b],
                                   .units = plan->first_unit[b + 1] - plan->first_unit[b],
                                   .temperature = w->temperature > 0.0f ? w->temperature : 1.0f,
                                   .route = invar_model_spec_route(&w->model->spec),
                                   .replay = w->replay};

    part.replay = part.replay && part.route > 0;
    return invar_micro_batch_fill(&micro_batch->batch, w->samples, &part);
}

static size_t residual_bytes(const invar_pipeline_exec *w,
                             const invar_inflight_micro_batch *micro_batch)
{
    return invar_pass_stream_bytes(w->model, &micro_batch->batch.rows);
}

static invar_status run_layers(invar_pipeline_exec *w, const invar_dp_round *r,
                               invar_inflight_micro_batch *micro_batch)
{
    invar_pipeline_channel *channel = &w->channels->forward;
    void *stream = NULL;
    size_t bytes;

    INVAR_TRY(fill_micro_batch(w, micro_batch, r->local_micro_batch));
    bytes = residual_bytes(w, micro_batch);
    if (micro_batch->chunk > 0)
        INVAR_TRY(invar_pipeline_receive(&stream, channel, bytes));
    micro_batch->batch.rows.residual_in = stream;
    INVAR_TRY(invar_pass_run(micro_batch->pass, w->model, &micro_batch->batch.rows));
    if (invar_pipeline_exec_has_head(w, micro_batch))
        return INVAR_OK;
    INVAR_TRY(invar_pipeline_send_buffer(&stream, channel, bytes));
    INVAR_TRY(invar_pass_get_residual(micro_batch->pass, stream));
    return invar_pipeline_send(channel, bytes);
}

invar_status invar_pipeline_exec_receive_grad(invar_pipeline_exec *w,
                                              invar_inflight_micro_batch *micro_batch)
{
    void *d_stream;

    INVAR_TRY(
        invar_pipeline_receive(&d_stream, &w->channels->backward, residual_bytes(w, micro_batch)));
    return invar_pass_set_residual_grad(micro_batch->pass, d_stream);
}

invar_status invar_pipeline_exec_send_grad(invar_pipeline_exec *w,
                                           const invar_inflight_micro_batch *micro_batch)
{
    invar_pipeline_channel *channel = &w->channels->backward;
    size_t bytes = residual_bytes(w, micro_batch);
    void *d_stream;

    if (micro_batch->chunk == 0)
        return INVAR_OK;
    INVAR_TRY(invar_pipeline_send_buffer(&d_stream, channel, bytes));
    INVAR_TRY(invar_pass_get_residual_grad(micro_batch->pass, d_stream));
    return invar_pipeline_send(channel, bytes);
}

/* ---- schedule -------------------------------------------------------------------------------- */

/*
 * Runs the layers of a round, if this rank has a micro-batch in it, and then the forward of the
 * caller.
 */
static invar_status run_forward(invar_pipeline_exec *w, const invar_dp_round *r,
                                invar_inflight_micro_batch *micro_batch)
{
    if (r->local_micro_batch >= 0)
        INVAR_TRY(run_layers(w, r, micro_batch));
    return w->on_forward(w, r, micro_batch);
}

/*
 * Dry run: uses every slot for every round, so that all memory is allocated as in a full pipeline.
 */
static invar_status run_dry(invar_pipeline_exec *w)
{
    for (int64_t i = 0; i < w->slots->count; i++)
        for (int64_t b = 0; b < invar_pipeline_exec_rounds(w); b++) {
            invar_dp_round r = invar_pipeline_exec_round(w, b);

            INVAR_TRY(run_forward(w, &r, &w->slots->items[i]));
            if (w->on_backward)
                INVAR_TRY(w->on_backward(w, &r, &w->slots->items[i]));
        }
    return INVAR_OK;
}

/*
 * Aborts the pipeline, so that other stages do not wait for this rank, and drains the channels. The
 * error of this rank is kept.
 */
static void abort_pipeline(invar_pipeline_exec *w)
{
    invar_error error;

    invar_comm_abort(w->layout->world, invar_error_last()->message);
    invar_error_take(&error);
    if (invar_pipeline_channel_flush(&w->channels->forward) != INVAR_OK ||
        invar_pipeline_channel_flush(&w->channels->backward) != INVAR_OK)
        invar_error_clear();
    invar_error_put(&error);
}

/* Waits until the other stages have got what this one has sent, also after a failure. */
static invar_status finish_channels(invar_pipeline_exec *w, invar_status status)
{
    if (!invar_layout_is_pipelined(w->layout))
        return status;
    if (status == INVAR_OK)
        status = invar_pipeline_channel_flush(&w->channels->forward);
    if (status == INVAR_OK)
        status = invar_pipeline_channel_flush(&w->channels->backward);
    if (status != INVAR_OK)
        abort_pipeline(w);
    return status;
}

/* *out = order of the forwards and backwards on this rank. */
static invar_status make_schedule(invar_pipeline_schedule *out, const invar_pipeline_exec *w)
{
    const invar_layout *l = w->layout;
    bool pipes = invar_layout_is_pipelined(l);

    return invar_pipeline_schedule_make(out, pipes ? l->pipeline.size : 1,
                                        pipes ? l->virtual_stages : 1, pipes ? l->pipeline.rank : 0,
                                        invar_pipeline_exec_rounds(w), w->on_backward != NULL);
}

invar_status invar_pipeline_exec_run(invar_pipeline_exec *w)
{
    invar_pipeline_schedule tasks = {0};
    invar_status status;

    for (int64_t i = 0; i < w->slots->count; i++)
        w->slots->items[i].dp_round = -1;
    if (w->dry_run)
        return run_dry(w);
    status = make_schedule(&tasks, w);
    for (int64_t i = 0; i < tasks.count && status == INVAR_OK; i++) {
        const invar_pipeline_task *task = &tasks.tasks[i];
        invar_dp_round r = invar_pipeline_exec_round(w, task->batch);
        invar_inflight_micro_batch *micro_batch =
            find_slot(w->slots, task->chunk, task->is_backward ? task->batch : -1);

        INVAR_CHECK(micro_batch);
        micro_batch->dp_round = task->is_backward || !w->on_backward ? -1 : task->batch;
        status = task->is_backward ? w->on_backward(w, &r, micro_batch)
                                   : run_forward(w, &r, micro_batch);
        if (status == INVAR_OK && w->on_progress)
            status = w->on_progress(w->progress_payload);
    }
    invar_pipeline_schedule_release(&tasks);
    return finish_channels(w, status);
}
