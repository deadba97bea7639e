/*
 * param_loader.h - f32 values become what this rank holds of a model's parameters.
 *
 *     invar_param_loader_buffer(&values, &fill, param, first, rows);  ...
 *     invar_param_loader_put(&fill);
 *
 * All rows of a parameter are made into the form that ops read. The master keeps those that this
 * rank owns (zero_partition.h); a frozen base keeps none. Values go straight to where they stay,
 * and pass through a buffer only where they do not stay.
 *
 * Ranks that own rows each must have read the same values, and no rank keeps all of them to compare
 * afterwards: so model->filled sums up what passes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_PARAM_LOADER_H
#define INVAR_ENGINE_MODEL_SHARD_PARAM_LOADER_H

#include "engine/model/graph/host_staging.h"
#include "engine/model/graph/op_runner.h"
#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills parameters in turn; room for the largest stays until the end. Release. */
typedef struct invar_param_loader {
    invar_model *model;
    const invar_device *dev; /* whose memory the model is in */
    invar_op_runner caller;
    invar_host_window window; /* into values that stay */
    float *near;              /* the host's, of those that do not */
    void *staging;            /* the device's */
    size_t near_bytes, staging_bytes;
    const invar_param *param; /* what is filled, */
    int64_t first, rows;      /* of those that are here */
    float *values;
} invar_param_loader;

void invar_param_loader_init(invar_param_loader *out, invar_model *model, const invar_device *dev);
void invar_param_loader_release(invar_param_loader *fill);

/*
 * Room on the host for the rows [first, first + rows) of what is here of a parameter: all of them,
 * or those of one expert.
 */
invar_status invar_param_loader_buffer(float **out, invar_param_loader *fill,
                                       const invar_param *param, int64_t first,
                                       int64_t rows) INVAR_MUST_USE;

/* The same for all that is here. */
invar_status invar_param_loader_room_all(float **out, invar_param_loader *fill,
                                         const invar_param *param) INVAR_MUST_USE;

/* Takes what is in the room. */
invar_status invar_param_loader_put(invar_param_loader *fill) INVAR_MUST_USE;

/* Zeros into all that is here. */
invar_status invar_param_loader_zero(invar_param_loader *fill,
                                     const invar_param *param) INVAR_MUST_USE;

/* Makes the rows from `first` on of what ops read of f32 values, which are not that themselves. */
invar_status invar_param_loader_weight(invar_op_runner *caller, const invar_param *param,
                                       int64_t first, const invar_tensor *values) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
