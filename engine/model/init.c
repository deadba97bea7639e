/*
 * init.c - initial values of parameters.
 *
 * Initialization, normative: value i of parameter p of `base` is std * z, where z is a normal
 * number made by Box and Muller in double from Philox with counter (i / 4 low, i / 4 high, p, 0)
 * and key (seed, 2): words 0 and 1 give z of i % 4 = 0 and 1, words 2 and 3 the other two;
 * u = (w + 0.5) * 2^-32, z = sqrt(-2 log u_a) * cos(2 pi u_b), then sin; rounded to f32, times std.
 * A of the adapter of parameter p has counter (.., p, 1) and std 1 / sqrt(3 * columns), in f32.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "engine/model/lora/adapters.h"
#include "engine/model/shard/param_loader.h"
#include "kernels-deterministic/math/elementary_f64.h"
#include "kernels-deterministic/math/philox.h"
#include "kernels-deterministic/math/portable.h"

#include "base/invar_banned.h"

#define PURPOSE_INIT 2
#define INIT_PIECE 65536 /* values per task, a multiple of 4 */

typedef struct init_job {
    float *out;
    int64_t count;
    invar_shard_runs runs; /* runs of the local shard in the full parameter */
    uint32_t param, seed;
    float std;
    uint32_t of_adapter; /* 1 for the adapter of the parameter; 0 for the parameter itself */
} init_job;

/* Computes two normal numbers from two words. */
static void normal_pair(float out[2], uint32_t a, uint32_t b)
{
    double u = ((double)a + 0.5) * 0x1p-32, v = ((double)b + 0.5) * 0x1p-32;
    double radius = sqrt(-2.0 * invar_log_f64(u)), angle = 0x1.921fb54442d18p2 * v;

    out[0] = (float)(radius * invar_cos_f64(angle));
    out[1] = (float)(radius * invar_sin_f64(angle));
}

/* Computes values [first, first + count) of the full parameter. */
static void fill_values(float *out, const init_job *job, int64_t first, int64_t count)
{
    for (int64_t i = first; i < first + count;) {
        uint64_t block = (uint64_t)i / 4;
        uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), job->param,
                               job->of_adapter};
        uint32_t key[2] = {job->seed, invar_philox_purpose(PURPOSE_INIT, 0)}, word[4];
        float z[4];

        invar_philox4x32(word, counter, key);
        normal_pair(z, word[0], word[1]);
        normal_pair(z + 2, word[2], word[3]);
        do
            out[i - first] = z[i % 4] * job->std;
        while (++i % 4 && i < first + count);
    }
}

static invar_status init_task(void *payload, int64_t task, int worker)
{
    const init_job *job = payload;
    int64_t first = task * INIT_PIECE, end = first + INIT_PIECE, count;

    (void)worker;
    end = end < job->count ? end : job->count;
    for (int64_t i = first; i < end; i += count) {
        int64_t into = i % job->runs.length, left = job->runs.length - into;
        count = left < end - i ? left : end - i;
        fill_values(job->out + i, job,
                    invar_param_shard_run_at(&job->runs, i / job->runs.length) + into, count);
    }
    return INVAR_OK;
}

/*
 * Returns true for norms, which start at one, and for biases and B of adapters, which start at
 * zero.
 */
static bool is_constant(const invar_param *p)
{
    return p->kind == INVAR_PARAM_NORM || p->kind == INVAR_PARAM_BIAS ||
           (p->kind == INVAR_PARAM_ADAPTER && !invar_adapter_is_first(p));
}

/* Zeroes the padding of A's rank. */
static void zero_rank_padding(float *out, const invar_param *p)
{
    for (int64_t e = 0; e < p->local.experts; e++)
        for (int64_t i = p->rank * p->local.cols; i < p->local.rows * p->local.cols; i++)
            out[e * p->local.rows * p->local.cols + i] = 0.0f;
}

/* Computes the initial values of parameter `i` of the base, or of its adapter. */
static invar_status initial_values(float *out, const invar_model *model, const invar_param *p,
                                   int64_t i, uint32_t seed, invar_pool *pool)
{
    int64_t count = invar_param_elements(p);
    init_job job = {out,
                    count,
                    invar_param_shard_runs_of(p, &p->local),
                    (uint32_t)i,
                    seed,
                    model->spec.init_std,
                    0};

    if (is_constant(p)) {
        for (int64_t j = 0; j < count; j++)
            out[j] = p->kind == INVAR_PARAM_NORM ? 1.0f : 0.0f;
        return INVAR_OK;
    }
    if (p->kind == INVAR_PARAM_ADAPTER) {
        job.of_adapter = 1;
        job.std = 1.0f / invar_sqrtf(3.0f * (float)p->cols); // variance 1 / (3 cols), as in peft
    }
    INVAR_TRY(invar_pool_run(pool, (count + INIT_PIECE - 1) / INIT_PIECE, init_task, &job));
    if (p->kind == INVAR_PARAM_ADAPTER)
        zero_rank_padding(out, p);
    return INVAR_OK;
}

static invar_status init_param(invar_param_loader *loader, const invar_param *p, int64_t i,
                               uint32_t seed)
{
    float *out;

    if (p->local.experts == 0)
        return INVAR_OK;
    INVAR_TRY(invar_param_loader_buffer_all(&out, loader, p));
    INVAR_TRY(initial_values(out, loader->model, p, i, seed, loader->dev->pool));
    return invar_param_loader_store(loader);
}

static invar_status init_base(invar_param_loader *loader, uint32_t seed)
{
    for (int64_t i = 0; i < loader->model->n_base; i++)
        INVAR_TRY(init_param(loader, &loader->model->base[i], i, seed));
    return INVAR_OK;
}

static invar_status init_adapters(invar_param_loader *loader, uint32_t seed)
{
    const invar_model *model = loader->model;

    for (int64_t i = 0; i < model->n_base; i++)
        for (int k = 0; k < 2 && model->base[i].adapter; k++)
            INVAR_TRY(init_param(loader, &model->base[i].adapter[k], i, seed));
    return INVAR_OK;
}

static invar_status run_initializer(invar_status (*init)(invar_param_loader *fill, uint32_t seed),
                                    invar_model *model, uint32_t seed, const invar_device *dev)
{
    INVAR_AUTO(invar_param_loader_release) invar_param_loader fill;

    invar_param_loader_init(&fill, model, dev);
    return init(&fill, seed);
}

invar_status invar_model_init_adapters(invar_model *model, uint32_t seed, const invar_device *dev)
{
    return run_initializer(init_adapters, model, seed, dev);
}

invar_status invar_model_init_base(invar_model *model, uint32_t seed, const invar_device *dev)
{
    return run_initializer(init_base, model, seed, dev);
}

invar_status invar_model_init(invar_model *model, uint32_t seed, const invar_device *dev)
{
    INVAR_TRY(invar_model_init_adapters(model, seed, dev));
    return invar_model_init_base(model, seed, dev);
}
