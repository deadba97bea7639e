/*
 * param_loader.h - loads f32 values into the weights and masters of a model's parameters.
 *
 *     invar_param_loader_buffer(&values, &fill, param, first, rows);  ...
 *     invar_param_loader_store(&fill);
 *
 * All rows of the local shard are converted to the form that ops read. The master keeps the rows
 * that this rank owns (zero_partition.h); a frozen base has no master. Values go directly to the
 * memory where they stay, and through a buffer only if they do not stay.
 *
 * Ranks that own rows must have loaded the same values, but none keeps all of them to compare
 * afterwards. model->load_checksum therefore sums hashes of all loaded values.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_PARAM_LOADER_H
#define INVAR_ENGINE_MODEL_SHARD_PARAM_LOADER_H

#include "engine/model/graph/host_staging.h"
#include "engine/model/graph/op_runner.h"
#include "engine/model/model.h"

/*
 * Loads one parameter after another; buffers of the largest one are kept. Release with
 * invar_param_loader_release.
 */
typedef struct invar_param_loader {
    invar_model *model;
    const invar_device *dev; /* device of the model */
    invar_op_runner op_runner;
    invar_host_window window; /* window to values that stay in f32 */
    float *host_buffer;       /* host buffer of values that do not stay */
    void *staging;            /* device buffer of values that do not stay */
    size_t host_buffer_bytes, staging_bytes;
    const invar_param *param; /* parameter that is being loaded */
    int64_t first, rows;      /* rows of its local shard */
    float *values;
} invar_param_loader;

void invar_param_loader_init(invar_param_loader *out, invar_model *model, const invar_device *dev);
void invar_param_loader_release(invar_param_loader *loader);

/*
 * *out = host memory for rows [first, first + rows) of the parameter's local shard: all of them, or
 * those of one expert. Fill it, then call invar_param_loader_store.
 */
invar_status invar_param_loader_buffer(float **out, invar_param_loader *loader,
                                       const invar_param *param, int64_t first,
                                       int64_t rows) INVAR_MUST_USE;

/* Like invar_param_loader_buffer, for all rows of the local shard. */
invar_status invar_param_loader_buffer_all(float **out, invar_param_loader *loader,
                                           const invar_param *param) INVAR_MUST_USE;

/* Stores the values of the buffer in the model. */
invar_status invar_param_loader_store(invar_param_loader *loader) INVAR_MUST_USE;

/* Sets all rows of the local shard to zero. */
invar_status invar_param_loader_zero(invar_param_loader *loader,
                                     const invar_param *param) INVAR_MUST_USE;

/*
 * Computes rows of param->weight, starting at `first`, from f32 values in device memory; the weight
 * must not be f32 itself.
 */
invar_status invar_param_loader_weight(invar_op_runner *runner, const invar_param *param,
                                       int64_t first, const invar_tensor *values) INVAR_MUST_USE;

#endif
