/*
 * sharded_model.h - models that several ranks split, and the single rank that they are compared
 * with.
 *
 * Layouts and specs whose logical shards have 8 or 11 atoms, comparison of parameters with those
 * of one rank, and a function that runs a check on every rank in a thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_SHARDED_MODEL_H
#define INVAR_TESTS_SHARDED_MODEL_H

#include <stdlib.h>
#include <string.h>

#include "engine/model/graph/host_staging.h"
#include "engine/model/graph/op_runner.h"
#include "engine/model/shard/zero_partition.h"
#include "kernels-deterministic/math/bf16.h"
#include "tests/model.h"
#include "tests/ranks.h"

#define SHARDED_TIMEOUT_S 60

/* A world and how it splits the model; the remaining factor is data parallelism. */
typedef struct sharded_world {
    int size;
    invar_layout_sizes sizes;
} sharded_world;

#define WORLD(ranks, t, et, p, c, e)                                                               \
    {                                                                                              \
        (ranks),                                                                                   \
        {                                                                                          \
            .tensor = (t), .expert_tensor = (et), .pipeline = (p), .virtual_stages = (c),          \
            .expert = (e)                                                                          \
        }                                                                                          \
    }

static const sharded_world divided_worlds[] = {
    WORLD(1, 1, 1, 1, 1, 1), WORLD(2, 2, 2, 1, 1, 1), WORLD(2, 1, 1, 2, 1, 1),
    WORLD(2, 1, 1, 2, 2, 1), WORLD(4, 4, 1, 1, 1, 1), WORLD(4, 2, 2, 1, 1, 1),
    WORLD(4, 2, 1, 2, 2, 1), WORLD(4, 1, 1, 4, 1, 1), WORLD(4, 1, 1, 2, 1, 1),
    WORLD(8, 8, 8, 1, 1, 1), WORLD(8, 2, 2, 2, 1, 1), WORLD(8, 4, 4, 1, 1, 1),
    WORLD(8, 2, 1, 4, 1, 1), WORLD(8, 1, 1, 4, 1, 1), WORLD(8, 4, 4, 2, 2, 1),
};

/* Worlds with expert parallelism, for models with experts. */
static const sharded_world divided_expert_worlds[] = {
    WORLD(2, 1, 1, 1, 1, 2),
    WORLD(3, 1, 1, 1, 1, 3),
    WORLD(4, 2, 2, 1, 1, 2),
    WORLD(8, 2, 1, 2, 1, 2),
};
enum { DIVIDED_EXPERT_WORLDS = sizeof divided_expert_worlds / sizeof *divided_expert_worlds };
enum { DIVIDED_WORLDS = sizeof divided_worlds / sizeof *divided_worlds };

/*
 * Returns whether a test runs divided_worlds[w]. By default these are the worlds with each kind of
 * parallelism alone, if no other world has more of it, and with all of them; under `full` all.
 */
static inline bool sharded_runs(int w)
{
    return invar_test_full() || (1u << w & (1u << 4 | 1u << 6 | 1u << 9 | 1u << 10 | 1u << 13));
}

/*
 * Returns a spec with eight logical shards of 8 or 11 atoms on every axis that is split, and four
 * layers. 11 atoms of a quantized layer fit 8 ranks only.
 */
static inline invar_model_spec sharded_spec(invar_test_model kind, invar_format format)
{
    invar_model_spec s = invar_test_spec(kind, false);

    s.vocab = 11 * 256;
    s.hidden = 64;
    s.layers = 4;
    s.attention.heads = s.attention.kv_heads = 8;
    s.attention.head_dim = invar_format_head_block(format); // an atom is a head
    s.intermediate = (format > INVAR_FORMAT_BF16 ? 8 : 11) * 128;
    s.max_positions = 32;
    s.logical_tp = 8;
    if (s.experts.count) {
        s.experts.count = 3;
        s.experts.intermediate = 8 * 128;
        s.logical_etp = 8;
        s.experts.sparse[1] = s.experts.sparse[2] = true;
    }
    return s;
}

static inline invar_status sharded_layout(invar_layout *out, invar_comm *world,
                                          const sharded_world *of)
{
    invar_layout_init(out, world, SHARDED_TIMEOUT_S);
    return invar_layout_divide(out, &of->sizes);
}

/* ---- values ---------------------------------------------------------------------------------- */

/*
 * Writes the values of a tensor as f32 to *out; the caller frees it. Quantized values are those
 * that products use.
 */
static inline invar_status sharded_values(float **out, const invar_tensor *t,
                                          const invar_device *dev)
{
    int64_t cols = invar_tensor_row_elements(t), count = t->shape[0] * cols;
    invar_host_window window = {.dev = dev};
    invar_device near = {.backend = invar_backend_cpu(), .numerics = dev->numerics};
    invar_op_runner caller;
    invar_tensor shown;
    invar_status status = invar_host_window_tensor(&shown, &window, t);

    *out = calloc((size_t)count + 1, sizeof **out);
    invar_op_runner_init(&caller, &near);
    for (int64_t i = 0; status == INVAR_OK && i < count; i++) {
        if (t->dtype == INVAR_DTYPE_F32)
            (*out)[i] = ((const float *)shown.data)[i];
        else if (t->dtype == INVAR_DTYPE_BF16)
            (*out)[i] = invar_f32_from_bf16(((const uint16_t *)shown.data)[i]);
    }
    if (status == INVAR_OK && invar_dtype_scale_block(t->dtype))
        status =
            INVAR_CALL(&caller, DEQUANTIZE, dequantize,
                       .x = invar_tensor_2d(*out, INVAR_DTYPE_F32, t->shape[0], cols), .q = shown);
    invar_op_runner_release(&caller);
    invar_host_window_release(&window);
    return status;
}

/* Returns whether some rows of a local shard of the complete parameter have these values. */
static inline bool sharded_rows_equal(const invar_param *p, const invar_param_shard *box,
                                      invar_index_range rows, const float *whole,
                                      const float *values)
{
    int64_t cols = p->cols ? p->cols : 1, own = p->cols ? box->cols : 1;

    for (int64_t i = 0; i < rows.count; i++) {
        int64_t row = rows.first + i, e = box->expert + row / box->rows;
        int64_t at = (e * p->rows + box->row + row % box->rows) * cols + box->col;
        if (memcmp(&values[i * own], &whole[at], (size_t)own * sizeof *values) != 0)
            return false;
    }
    return true;
}

static inline bool sharded_shard_equal(const invar_param *p, const invar_param_shard *box,
                                       const float *whole, const float *values)
{
    return sharded_rows_equal(p, box, (invar_index_range){0, box->experts * box->rows}, whole,
                              values);
}

/* Compares a rank's tensor, from row `first` on, with the same part of the tensor of one rank. */
static inline invar_status sharded_compare(bool *equal, const invar_param *p,
                                           const invar_param_shard *box, const invar_tensor *whole,
                                           const invar_device *whole_dev, const invar_tensor *own,
                                           int64_t first, const invar_device *dev)
{
    float *a, *b = NULL;
    invar_status status = sharded_values(&a, whole, whole_dev);

    if (status == INVAR_OK)
        status = sharded_values(&b, own, dev);
    *equal = status == INVAR_OK &&
             sharded_rows_equal(p, box, (invar_index_range){first, own->shape[0]}, a, b);
    free(a);
    free(b);
    return status;
}

/* Fails unless the weights of a rank, and its masters, equal those of one rank. */
static inline invar_status sharded_compare_model(const invar_model *one, const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i], *q = &one->params[i];
        bool master = true, weight;

        if (p->local.experts == 0)
            continue;
        if (p->master.shape[0] != invar_zero_partition_local_rows(model, i).count)
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "%s: a master of other rows", p->name);
        if (p->master.shape[0] > 0)
            INVAR_TRY(sharded_compare(&master, p, &p->local, &q->master, &one->dev, &p->master,
                                      p->master_row, &model->dev));
        INVAR_TRY(sharded_compare(&weight, p, &p->local, &q->weight, &one->dev, &p->weight, 0,
                                  &model->dev));
        if (!master || !weight)
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "%s: another %s", p->name,
                              master ? "weight" : "master");
    }
    return INVAR_OK;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Returns the device of a rank: `far` for rank 1 if it is not NULL, else `dev`. */
static inline invar_device sharded_device(const invar_device *dev, const invar_device *far,
                                          int rank)
{
    invar_device out = far && rank == 1 ? *far : *dev;

    out.pool = NULL; // a rank is a thread
    out.scratch = NULL;
    return out;
}

static inline void sharded_run(int size, uint64_t schedule, invar_status (*part)(rank_run *run),
                               void *payload, const char *what)
{
    rank_run runs[MAX_RANKS];

    run_ranks(runs, size, schedule, 0, part, payload);
    for (int r = 0; r < size; r++)
        if (runs[r].status != INVAR_OK)
            fail_msg("%s: rank %d of %d: %s", what, r, size, runs[r].error.message);
}

/* A model that the ranks of a world split, and the check of each rank. */
typedef struct sharded_model {
    const sharded_world *world;
    invar_model_spec spec;
    invar_format format;
    const invar_device *dev, *far; /* device of the ranks; device of rank 1, or NULL for the same
                                      one */
    size_t bucket;                 /* bucket size of the layout; 0 for the default */
    invar_model *one;              /* the complete model of one rank */
    invar_status (*check)(void *payload, invar_model *model, const invar_device *dev);
    void *payload;
} sharded_model;

static inline invar_status sharded_rank(rank_run *run)
{
    const sharded_model *of = run->payload;
    invar_device dev = sharded_device(of->dev, of->far, invar_comm_rank(run->comm));
    invar_model *model = NULL;
    invar_layout layout;
    invar_status status = sharded_layout(&layout, run->comm, of->world);

    if (of->bucket)
        layout.bucket_bytes = of->bucket;
    if (status == INVAR_OK)
        status = invar_model_new(&model, &of->spec, of->format, &layout, &dev);
    if (status == INVAR_OK)
        status = of->check(of->payload, model, &dev);
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    invar_model_free(model);
    invar_layout_release(&layout);
    return status;
}

/* Runs the check on all ranks of the model's world. */
static inline void sharded_check(sharded_model *of, uint64_t schedule, const char *what)
{
    sharded_run(of->world->size, schedule, sharded_rank, of, what);
}

#endif
