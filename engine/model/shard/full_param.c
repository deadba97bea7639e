/*
 * full_param.c - assembles full parameters on rank 0 from the shards of all ranks.
 *
 * The loop runs over the ranks that hold the model together; each step is one send to rank 0, so at
 * most one received shard is in memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/full_param.h"

#include "base/alloc.h"
#include "engine/model/shard/logical_shards.h"

#include "base/invar_banned.h"

void invar_full_param_reader_release(invar_full_param_reader *reader)
{
    invar_host_window_release(&reader->window);
    invar_free(reader->values);
    invar_free(reader->recv_shard);
    *reader = (invar_full_param_reader){0};
}

static invar_status ensure_buffers(invar_full_param_reader *reader, int64_t elements)
{
    if (elements <= reader->capacity)
        return INVAR_OK;
    invar_full_param_reader_release(reader);
    INVAR_TRY(INVAR_ALLOC(reader->values, (size_t)elements, "a parameter of all ranks"));
    INVAR_TRY(
        INVAR_ALLOC(reader->recv_shard, (size_t)elements, "what another rank has of a parameter"));
    reader->capacity = elements;
    return INVAR_OK;
}

/* The part of some experts of a parameter that one rank contributes. */
typedef struct contribution {
    const invar_full_param_source *source;
    const invar_param *param;
    int64_t expert, experts; /* experts to read */
    invar_param_shard box;   /* the rank's shard of them; box.expert is relative to `expert` */
    int64_t skipped;         /* number of experts that the rank holds before them */
    int rank;                /* rank in the world */
} contribution;

static int64_t expert_elements(const contribution *s)
{
    return s->box.rows * (s->param->cols ? s->box.cols : 1);
}

/*
 * Sets the part that rank `number` contributes. Returns false if another rank contributes it, or if
 * it is empty.
 */
static bool find_contribution(contribution *s, int number)
{
    const invar_model *model = s->source->model;
    const invar_layout *layout = model->layout;
    invar_model_partition part = invar_model_partition_numbered(&model->part, number);
    int64_t first, end;

    s->box = invar_model_partition_shard(&part, &model->spec, s->param);
    if (s->box.experts == 0 || invar_logical_shards_contributor(model, s->param, s->box.expert,
                                                                s->box.first_shard) != number)
        return false;
    first = s->box.expert > s->expert ? s->box.expert : s->expert;
    end = s->box.expert + s->box.experts;
    end = end < s->expert + s->experts ? end : s->expert + s->experts;
    s->skipped = first - s->box.expert;
    s->box.expert = first - s->expert;
    s->box.experts = end - first;
    s->rank = invar_layout_rank_of(
        layout,
        &(invar_rank_coords){.tensor = part.tensor, .expert = part.expert, .pipeline = part.stage});
    return end > first;
}

static invar_status read_own(const void **out, invar_full_param_reader *reader,
                             const contribution *s)
{
    const float *values = s->source->masters->data;

    reader->window.dev = s->source->dev;
    return invar_host_window_read(out, &reader->window, values + s->skipped * expert_elements(s),
                                  (size_t)(s->box.experts * expert_elements(s)) * sizeof *values);
}

static invar_status send_or_receive(const invar_layout *layout, invar_comm_transfer transfer,
                                    size_t bytes)
{
    transfer.op = INVAR_COMM_SENDRECV;
    transfer.phase = "whole parameters";
    transfer.timeout_s = layout->timeout_s;
    *(transfer.dst_rank == INVAR_COMM_NONE ? &transfer.from_bytes : &transfer.to_bytes) = bytes;
    return invar_comm_run(layout->world, &transfer);
}

/* Copies the part from its rank to rank 0's values. */
static invar_status collect_contribution(invar_full_param_reader *reader, const contribution *s)
{
    const invar_layout *layout = s->source->model->layout;
    size_t bytes = (size_t)(s->box.experts * expert_elements(s)) * sizeof(float);
    int self = invar_comm_rank(layout->world);
    const void *values = reader->recv_shard;

    if (self == s->rank)
        INVAR_TRY(read_own(&values, reader, s));
    if (s->rank != 0 && self == s->rank)
        return send_or_receive(
            layout, (invar_comm_transfer){.in = values, .src_rank = INVAR_COMM_NONE}, bytes);
    if (self != 0)
        return INVAR_OK;
    if (s->rank != 0)
        INVAR_TRY(send_or_receive(layout,
                                  (invar_comm_transfer){.out = reader->recv_shard,
                                                        .dst_rank = INVAR_COMM_NONE,
                                                        .src_rank = s->rank},
                                  bytes));
    invar_param_shard_insert(reader->values, s->param, &s->box, values);
    return INVAR_OK;
}

invar_status invar_full_param_reader_read(const float **out, invar_full_param_reader *reader,
                                          const invar_full_param_source *source, int64_t expert,
                                          int64_t experts)
{
    const invar_model *model = source->model;
    contribution s = {.source = source,
                      .param = &model->params[source->param],
                      .expert = expert,
                      .experts = experts};
    int64_t each = invar_param_all_elements(s.param) / s.param->stack;
    bool leads = !model->layout || invar_comm_rank(model->layout->world) == 0;

    *out = NULL;
    if (!invar_model_is_divided(model)) {
        s.box =
            (invar_param_shard){.experts = experts, .rows = s.param->rows, .cols = s.param->cols};
        s.skipped = expert;
        return leads ? read_own((const void **)out, reader, &s) : INVAR_OK;
    }
    if (leads)
        INVAR_TRY(ensure_buffers(reader, experts * each));
    for (int n = 0; n < invar_model_partition_ranks(&model->part); n++)
        if (find_contribution(&s, n))
            INVAR_TRY(collect_contribution(reader, &s));
    *out = leads ? reader->values : NULL;
    return INVAR_OK;
}
