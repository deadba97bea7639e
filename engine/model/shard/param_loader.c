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

static int64_t row_elements(const invar_param_loader *loader)
{
    return invar_param_row_elements(loader->param);
}

static size_t bytes_of(const invar_param_loader *loader, int64_t rows)
{
    return (size_t)(rows * row_elements(loader)) * sizeof(float);
}

/* ---- buffers --------------------------------------------------------------------------------- */

static invar_status ensure_host_buffer(invar_param_loader *loader, size_t bytes)
{
    if (bytes <= loader->host_buffer_bytes)
        return INVAR_OK;
    invar_free(loader->host_buffer);
    loader->host_buffer = NULL;
    loader->host_buffer_bytes = 0;
    INVAR_TRY(INVAR_ALLOC_SIZED(loader->host_buffer, bytes, 1, what));
    loader->host_buffer_bytes = bytes;
    return INVAR_OK;
}

/* Returns the address of the rows if the model keeps all of them in f32; NULL if it does not. */
static void *f32_rows(const invar_param_loader *loader)
{
    const invar_tensor *all = invar_param_f32(loader->param);

    return all ? (float *)all->data + loader->first * row_elements(loader) : NULL;
}

invar_status invar_param_loader_buffer(float **out, invar_param_loader *loader,
                                       const invar_param *param, int64_t first, int64_t rows)
{
    void *values;

    loader->param = param;
    loader->first = first;
    loader->rows = rows;
    if (f32_rows(loader)) {
        INVAR_TRY(invar_host_window_write(&values, &loader->window, f32_rows(loader),
                                          bytes_of(loader, rows)));
    } else {
        INVAR_TRY(ensure_host_buffer(loader, bytes_of(loader, rows)));
        values = loader->host_buffer;
    }
    *out = loader->values = values;
    return INVAR_OK;
}

invar_status invar_param_loader_buffer_all(float **out, invar_param_loader *loader,
                                           const invar_param *param)
{
    return invar_param_loader_buffer(out, loader, param, 0, invar_param_rows(param));
}

/* ---- values ---------------------------------------------------------------------------------- */

/*
 * Adds the hash of the values to the checksum. A sum does not depend on the order, which differs
 * between files.
 */
static void add_to_checksum(const invar_param_loader *loader)
{
    const int64_t place[] = {loader->param - loader->model->params, loader->first, loader->rows};
    invar_hasher hasher;
    invar_digest digest;
    uint64_t words[2];

    if (!invar_zero_partition_is_divided(loader->model))
        return;
    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, place, sizeof place);
    invar_hasher_update(&hasher, loader->values, bytes_of(loader, loader->rows));
    invar_hasher_final(&digest, &hasher);
    memcpy(words, digest.bytes, sizeof words);
    loader->model->load_checksum[0] += words[0];
    loader->model->load_checksum[1] += words[1];
}

/* Uploads the rows that the master has. */
static invar_status upload_master(const invar_param_loader *loader)
{
    const invar_param *p = loader->param;
    int64_t each = row_elements(loader), end = loader->first + loader->rows;
    int64_t own_end = p->master_row + p->master.shape[0];
    int64_t from = p->master_row > loader->first ? p->master_row : loader->first;
    int64_t to = own_end < end ? own_end : end;

    if (from >= to)
        return INVAR_OK;
    return invar_device_upload(loader->dev, (float *)p->master.data + (from - p->master_row) * each,
                               loader->values + (from - loader->first) * each,
                               bytes_of(loader, to - from));
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
static invar_status compute_weight(invar_param_loader *loader, int64_t first, int64_t rows,
                                   void *values)
{
    invar_tensor all = invar_param_local_tensor(loader->param, values);

    all.shape[0] = rows;
    return invar_param_loader_weight(&loader->op_runner, loader->param, first, &all);
}

static invar_status stage_values(invar_param_loader *loader, const float *values, size_t bytes)
{
    if (bytes > loader->staging_bytes) {
        INVAR_TRY(invar_op_runner_alloc_scratch(&loader->op_runner));
        invar_device_free(loader->dev, loader->staging);
        loader->staging = NULL;
        loader->staging_bytes = 0;
        INVAR_TRY(invar_device_alloc(loader->dev, &loader->staging, bytes, what));
        loader->staging_bytes = bytes;
    }
    return invar_device_upload(loader->dev, loader->staging, values, bytes);
}

/* Number of rows from `first` on that are staged together: complete scale blocks of one expert. */
static int64_t rows_to_stage(const invar_param_loader *loader, int64_t first)
{
    int64_t blocks = (int64_t)(STAGED_BYTES / bytes_of(loader, INVAR_FP8_BLOCK));
    int64_t rows = (blocks > 0 ? blocks : 1) * INVAR_FP8_BLOCK;
    int64_t left = loader->first + loader->rows - first;
    int64_t of_expert = loader->param->local.rows - first % loader->param->local.rows;

    left = left < of_expert ? left : of_expert;
    return rows < left ? rows : left;
}

static invar_status compute_staged_weights(invar_param_loader *loader)
{
    int64_t rows;

    for (int64_t at = loader->first; at < loader->first + loader->rows; at += rows) {
        rows = rows_to_stage(loader, at);
        INVAR_TRY(stage_values(loader, loader->values + (at - loader->first) * row_elements(loader),
                               bytes_of(loader, rows)));
        INVAR_TRY(compute_weight(loader, at, rows, loader->staging));
    }
    return INVAR_OK;
}

invar_status invar_param_loader_store(invar_param_loader *loader)
{
    add_to_checksum(loader);
    if (!f32_rows(loader)) {
        INVAR_TRY(upload_master(loader));
        return compute_staged_weights(loader);
    }
    INVAR_TRY(
        invar_host_window_store(&loader->window, f32_rows(loader), bytes_of(loader, loader->rows)));
    return loader->param->weight.dtype == INVAR_DTYPE_F32
               ? INVAR_OK
               : compute_weight(loader, loader->first, loader->rows, f32_rows(loader));
}

invar_status invar_param_loader_zero(invar_param_loader *loader, const invar_param *param)
{
    float *values;

    INVAR_TRY(invar_param_loader_buffer_all(&values, loader, param));
    memset(values, 0, bytes_of(loader, loader->rows));
    return invar_param_loader_store(loader);
}
