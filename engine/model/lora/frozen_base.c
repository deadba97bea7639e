/*
 * frozen_base.c - hash of the weights of a frozen base.
 *
 * If ranks divide the model, rank 0 assembles one weight at a time from the shards of all ranks and
 * hashes it on the CPU; the digest equals that of a single rank, and is broadcast.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/lora/frozen_base.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/model/shard/logical_shards.h"
#include "engine/model/tensor_hasher.h"
#include "engine/ranks/layout/rank_collectives.h"

#include "base/invar_banned.h"

static const char what[] = "a frozen weight of all ranks";

/* ---- shards of weights ----------------------------------------------------------------------- */

/* Copies a shard with elements of `bits` bits, contiguous at `from`, into the full weight. */
static void copy_shard(char *whole, const invar_param *p, const invar_param_shard *box,
                       const char *from, int bits)
{
    invar_shard_runs runs = invar_param_shard_runs_of(p, box);
    size_t length = (size_t)runs.length * (size_t)bits / 8;

    for (int64_t k = 0; k < runs.count; k++)
        memcpy(whole + (size_t)invar_param_shard_run_at(&runs, k) * (size_t)bits / 8,
               from + (size_t)k * length, length);
}

static int64_t blocks_in(int64_t count, int64_t block)
{
    return (count + block - 1) / block;
}

/* Copies the scales of a shard. It has complete scale blocks, so they are a shard of all scales. */
static void copy_scales(const invar_tensor *whole, const invar_param *p,
                        const invar_param_shard *box, const char *from)
{
    int64_t across = invar_dtype_scale_block(whole->dtype), down = whole->scale_rows;
    invar_param of = {
        .stack = p->stack, .rows = blocks_in(p->rows, down), .cols = blocks_in(p->cols, across)};
    invar_param_shard own = {.expert = box->expert,
                             .experts = box->experts,
                             .row = box->row / down,
                             .rows = blocks_in(box->rows, down),
                             .col = box->col / across,
                             .cols = blocks_in(box->cols, across)};
    int64_t count = of.stack * of.rows * of.cols;

    copy_shard(whole->scale, &of, &own, from,
               8 * (int)((int64_t)invar_tensor_scale_bytes(whole) / count));
}

/* ---- collecting shards ----------------------------------------------------------------------- */

/* Assembles full weights of the base on rank 0. */
typedef struct weight_assembly {
    const invar_model *model;
    invar_host_window window;
    char *whole, *came; /* full weight, and a shard received from another rank; on rank 0 */
    size_t bytes;       /* capacity of each */
} weight_assembly;

static void release_assembly(weight_assembly *j)
{
    invar_host_window_release(&j->window);
    invar_free(j->whole);
}

static invar_param with_shard(const invar_param *p, const invar_param_shard *box)
{
    invar_param out = *p;

    out.local = *box;
    return out;
}

static size_t bytes_of(const invar_model *model, const invar_param *p)
{
    invar_carver c = {NULL, 0};

    (void)invar_model_carve_weight(&c, model, p);
    return c.used;
}

static invar_param full_param(const invar_param *p)
{
    return with_shard(
        p, &(invar_param_shard){
               .experts = p->stack, .rows = p->rows, .cols = p->cols, .n_shards = p->split.shards});
}

/*
 * Sets the shard that rank `number` contributes. Returns false if another rank contributes it, or
 * if it is empty.
 */
static bool find_contribution(invar_param *out, int *rank, const weight_assembly *j,
                              const invar_param *p, int number)
{
    const invar_model *model = j->model;
    invar_model_partition part = invar_model_partition_numbered(&model->part, number);
    const invar_rank_coords place = {
        .tensor = part.tensor, .expert = part.expert, .pipeline = part.stage};
    invar_param_shard box = invar_model_partition_shard(&part, &model->spec, p);

    if (box.experts == 0 ||
        invar_logical_shards_contributor(model, p, box.expert, box.first_shard) != number)
        return false;
    *out = with_shard(p, &box);
    *rank = invar_layout_rank_of(model->layout, &place);
    return true;
}

static void copy_weight(weight_assembly *j, const invar_param *box, const void *from)
{
    invar_param whole = full_param(box);
    invar_carver to = {j->whole, 0}, of = {(char *)(uintptr_t)from, 0};
    invar_tensor all = invar_model_carve_weight(&to, j->model, &whole);
    invar_tensor own = invar_model_carve_weight(&of, j->model, box);

    copy_shard(all.data, box, &box->local, own.data, invar_dtype_bits(all.dtype));
    if (own.scale)
        copy_scales(&all, box, &box->local, own.scale);
}

static invar_status send_or_receive(const invar_layout *layout, invar_comm_transfer transfer,
                                    size_t bytes)
{
    transfer.op = INVAR_COMM_SENDRECV;
    transfer.phase = "frozen weights";
    transfer.timeout_s = layout->timeout_s;
    *(transfer.dst_rank == INVAR_COMM_NONE ? &transfer.from_bytes : &transfer.to_bytes) = bytes;
    return invar_comm_run(layout->world, &transfer);
}

/* Copies the shard from its rank into rank 0's weight. */
static invar_status collect_shard(weight_assembly *j, const invar_param *box, int rank)
{
    const invar_layout *layout = j->model->layout;
    size_t bytes = bytes_of(j->model, box);
    int self = invar_comm_rank(layout->world);
    const void *values = j->came;

    if (self == rank)
        INVAR_TRY(invar_host_window_read(&values, &j->window, box->weight.data, bytes));
    if (rank != 0 && self == rank)
        return send_or_receive(
            layout, (invar_comm_transfer){.in = values, .src_rank = INVAR_COMM_NONE}, bytes);
    if (self != 0)
        return INVAR_OK;
    if (rank != 0)
        INVAR_TRY(send_or_receive(
            layout,
            (invar_comm_transfer){.out = j->came, .dst_rank = INVAR_COMM_NONE, .src_rank = rank},
            bytes));
    copy_weight(j, box, values);
    return INVAR_OK;
}

/* ---- hashing --------------------------------------------------------------------------------- */

/* Hashes the assembled weight on rank 0. */
static invar_status hash_assembled(invar_digest *out, const weight_assembly *j,
                                   const invar_param *p)
{
    INVAR_AUTO(invar_tensor_hasher_release) invar_tensor_hasher hasher;
    const invar_device near = {.backend = invar_backend_cpu(), .numerics = j->model->dev.numerics};
    invar_param whole = full_param(p);
    invar_carver c = {j->whole, 0};
    invar_tensor all = invar_model_carve_weight(&c, j->model, &whole);

    invar_tensor_hasher_init(&hasher, &near);
    INVAR_TRY(invar_tensor_hasher_add(&hasher, &all, 1));
    return invar_tensor_hasher_read(out, &hasher);
}

static invar_status alloc_buffers(weight_assembly *j)
{
    const invar_model *model = j->model;

    for (int64_t i = 0; i < model->n_base; i++) {
        invar_param whole = full_param(&model->base[i]);
        size_t bytes = bytes_of(model, &whole);
        j->bytes = bytes > j->bytes ? bytes : j->bytes;
    }
    INVAR_TRY(INVAR_ALLOC_SIZED(j->whole, 2, j->bytes, what));
    j->came = j->whole + j->bytes;
    memset(j->whole, 0, j->bytes); // padding is never written
    return INVAR_OK;
}

static invar_status hash_divided(invar_digest *of, weight_assembly *j)
{
    const invar_model *model = j->model;
    bool leads = invar_comm_rank(model->layout->world) == 0;
    invar_param box;
    int rank;

    if (leads)
        INVAR_TRY(alloc_buffers(j));
    for (int64_t i = 0; i < model->n_base; i++) {
        const invar_param *p = &model->base[i];

        for (int n = 0; n < invar_model_partition_ranks(&model->part); n++)
            if (find_contribution(&box, &rank, j, p, n))
                INVAR_TRY(collect_shard(j, &box, rank));
        if (leads)
            INVAR_TRY(hash_assembled(&of[i], j, p));
    }
    return invar_ranks_broadcast(model->layout, "identity", 0, of,
                                 (size_t)model->n_base * sizeof *of);
}

static invar_status hash_local(invar_digest *of, const invar_model *model, const invar_device *dev)
{
    INVAR_AUTO(invar_tensor_hasher_release) invar_tensor_hasher hasher;

    invar_tensor_hasher_init(&hasher, dev);
    for (int64_t i = 0; i < model->n_base; i++)
        INVAR_TRY(invar_tensor_hasher_add(&hasher, &model->base[i].weight, 1));
    return invar_tensor_hasher_read(of, &hasher);
}

invar_status invar_base_hash(invar_digest *out, const invar_model *model, const invar_device *dev)
{
    INVAR_AUTO(release_assembly) weight_assembly j = {.model = model, .window = {.dev = dev}};
    INVAR_AUTO_FREE invar_digest *of = NULL;

    INVAR_TRY(INVAR_ALLOC(of, (size_t)model->n_base, "digests of a base"));
    INVAR_TRY(invar_model_is_divided(model) ? hash_divided(of, &j) : hash_local(of, model, dev));
    invar_hash_bytes(out, of, (size_t)model->n_base * sizeof *of);
    return INVAR_OK;
}
