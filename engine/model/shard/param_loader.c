/*
 * param_loader.c - loads f32 values into weights and masters, quantizing on the device.
 *
 * If the model keeps all f32 rows of a parameter, the caller writes to them directly (through a
 * window on GPUs). Otherwise values go to a host buffer; the owned rows are copied to the master,
 * and the weights are computed from a staging buffer in parts of up to STAGED_BYTES that never
 * split a scale block or an expert.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/param_loader.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/shard/zero_partition.h"

#include "base/invar_banned.h"

#define STAGED_BYTES ((size_t)8 << 20) /* unless one scale block has more */

static const char what[] = "values of a parameter";

void invar_param_loader_init(invar_param_loader *out, invar_model *model, const invar_device *dev)
{
    *out = (invar_param_loader){.model = model, .dev = dev, .window = {.dev = dev}};
    invar_op_runner_init(&out->op_runner, dev);
}

void invar_param_loader_release(invar_param_loader *loader)
{
    invar_op_runner_release(&loader->op_runner);
    invar_host_window_release(&loader->window);
    invar_free(loader->host_buffer);
    invar_device_free(loader->dev, loader->staging);
}

static int64_t row_elements(const invar_param_loader *f)
{
    return invar_param_row_elements(f->param);
}

static size_t bytes_of(const invar_param_loader *f, int64_t rows)
{
    return (size_t)(rows * row_elements(f)) * sizeof(float);
}

/* ---- buffers --------------------------------------------------------------------------------- */

static invar_status ensure_host_buffer(invar_param_loader *f, size_t bytes)
{
    if (bytes <= f->host_buffer_bytes)
        return INVAR_OK;
    invar_free(f->host_buffer);
    f->host_buffer = NULL;
    f->host_buffer_bytes = 0;
    INVAR_TRY(invar_alloc((void **)&f->host_buffer, bytes, 1, what));
    f->host_buffer_bytes = bytes;
    return INVAR_OK;
}

/* Returns the address of the rows if the model keeps all of them in f32; NULL if it does not. */
static void *f32_rows(const invar_param_loader *f)
{
    const invar_tensor *all = invar_param_f32(f->param);

    return all ? (float *)all->data + f->first * row_elements(f) : NULL;
}

invar_status invar_param_loader_buffer(float **out, invar_param_loader *f, const invar_param *param,
                                       int64_t first, int64_t rows)
{
    void *values;

    f->param = param;
    f->first = first;
    f->rows = rows;
    if (f32_rows(f)) {
        INVAR_TRY(invar_host_window_write(&values, &f->window, f32_rows(f), bytes_of(f, rows)));
    } else {
        INVAR_TRY(ensure_host_buffer(f, bytes_of(f, rows)));
        values = f->host_buffer;
    }
    *out = f->values = values;
    return INVAR_OK;
}

invar_status invar_param_loader_buffer_all(float **out, invar_param_loader *f,
                                           const invar_param *param)
{
    return invar_param_loader_buffer(out, f, param, 0, invar_param_rows(param));
}

/* ---- values ---------------------------------------------------------------------------------- */

/*
 * Adds the hash of the values to the checksum. A sum does not depend on the order, which differs
 * between files.
 */
static void add_to_checksum(const invar_param_loader *f)
{
    const int64_t place[] = {f->param - f->model->params, f->first, f->rows};
    invar_hasher hasher;
    invar_digest digest;
    uint64_t words[2];

    if (!invar_zero_partition_divide(f->model))
        return;
    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, place, sizeof place);
    invar_hasher_update(&hasher, f->values, bytes_of(f, f->rows));
    invar_hasher_final(&digest, &hasher);
    memcpy(words, digest.bytes, sizeof words);
    f->model->load_checksum[0] += words[0];
    f->model->load_checksum[1] += words[1];
}

/* Uploads the rows that the master has. */
static invar_status upload_master(const invar_param_loader *f)
{
    const invar_param *p = f->param;
    int64_t each = row_elements(f), end = f->first + f->rows;
    int64_t own_end = p->master_row + p->master.shape[0];
    int64_t from = p->master_row > f->first ? p->master_row : f->first;
    int64_t to = own_end < end ? own_end : end;

    if (from >= to)
        return INVAR_OK;
    return invar_device_upload(f->dev, (float *)p->master.data + (from - p->master_row) * each,
                               f->values + (from - f->first) * each, bytes_of(f, to - from));
}

/* View of a vector as a matrix with one row. */
static invar_tensor as_matrix(const invar_tensor *t)
{
    return t->rank == 2 ? *t : invar_tensor_2d(t->data, t->dtype, 1, t->shape[0]);
}

invar_status invar_param_loader_weight(invar_op_runner *runner, const invar_param *p, int64_t first,
                                       const invar_tensor *values)
{
    invar_tensor to = invar_tensor_rows(&p->weight, first, values->shape[0]);

    return INVAR_CALL(runner, QUANTIZE, quantize, .q = as_matrix(&to), .x = as_matrix(values));
}

/* Computes the weights of some rows from values in device memory. */
static invar_status compute_weight(invar_param_loader *f, int64_t first, int64_t rows, void *values)
{
    invar_tensor all = invar_param_local_tensor(f->param, values);

    all.shape[0] = rows;
    return invar_param_loader_weight(&f->op_runner, f->param, first, &all);
}

static invar_status stage_values(invar_param_loader *f, const float *values, size_t bytes)
{
    if (bytes > f->staging_bytes) {
        INVAR_TRY(invar_op_runner_alloc_scratch(&f->op_runner));
        invar_device_free(f->dev, f->staging);
        f->staging = NULL;
        f->staging_bytes = 0;
        INVAR_TRY(invar_device_alloc(f->dev, &f->staging, bytes, what));
        f->staging_bytes = bytes;
    }
    return invar_device_upload(f->dev, f->staging, values, bytes);
}

/* Number of rows from `first` on that are staged together: complete scale blocks of one expert. */
static int64_t rows_to_stage(const invar_param_loader *f, int64_t first)
{
    int64_t blocks = (int64_t)(STAGED_BYTES / bytes_of(f, INVAR_FP8_BLOCK));
    int64_t rows = (blocks > 0 ? blocks : 1) * INVAR_FP8_BLOCK;
    int64_t left = f->first + f->rows - first;
    int64_t of_expert = f->param->local.rows - first % f->param->local.rows;

    left = left < of_expert ? left : of_expert;
    return rows < left ? rows : left;
}

static invar_status compute_staged_weights(invar_param_loader *f)
{
    int64_t rows;

    for (int64_t at = f->first; at < f->first + f->rows; at += rows) {
        rows = rows_to_stage(f, at);
        INVAR_TRY(
            stage_values(f, f->values + (at - f->first) * row_elements(f), bytes_of(f, rows)));
        INVAR_TRY(compute_weight(f, at, rows, f->staging));
    }
    return INVAR_OK;
}

invar_status invar_param_loader_put(invar_param_loader *f)
{
    add_to_checksum(f);
    if (!f32_rows(f)) {
        INVAR_TRY(upload_master(f));
        return compute_staged_weights(f);
    }
    INVAR_TRY(invar_host_window_store(&f->window, f32_rows(f), bytes_of(f, f->rows)));
    return f->param->weight.dtype == INVAR_DTYPE_F32
               ? INVAR_OK
               : compute_weight(f, f->first, f->rows, f32_rows(f));
}

invar_status invar_param_loader_zero(invar_param_loader *f, const invar_param *param)
{
    float *values;

    INVAR_TRY(invar_param_loader_buffer_all(&values, f, param));
    memset(values, 0, bytes_of(f, f->rows));
    return invar_param_loader_put(f);
}
