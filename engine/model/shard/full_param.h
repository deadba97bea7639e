/*
 * full_param.h - reads full parameters on rank 0 for files and points, which know no ranks.
 *
 * All ranks of the model's layout make the same calls in the same order (collective). Each
 * contributor sends its shard to rank 0, which assembles one parameter, or one expert, at a time in
 * host memory. If no ranks divide the model, rank 0 reads its own memory and other ranks do
 * nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_FULL_PARAM_H
#define INVAR_ENGINE_MODEL_SHARD_FULL_PARAM_H

#include "engine/model/graph/host_staging.h"
#include "engine/model/model.h"

/* Zero-initialize before use. Release with invar_full_param_reader_release. */
typedef struct invar_full_param_reader {
    invar_host_window window;
    float *values;     /* full parameter */
    float *recv_shard; /* shard received from another rank */
    int64_t capacity;  /* capacity of each in elements */
} invar_full_param_reader;

/* A tensor to read: master, moment or gradient of a parameter. */
typedef struct invar_full_param_source {
    const invar_model *model;
    int64_t param;               /* index in model->params */
    const invar_tensor *masters; /* f32 tensor of the parameter's local shard, without gaps */
    const invar_device *dev;     /* device that holds the tensor; NULL for host memory */
} invar_full_param_source;

/*
 * *out = values of `experts` experts of the parameter, starting with `expert`, valid until the next
 * call; NULL on ranks other than 0.
 */
invar_status invar_full_param_reader_read(const float **out, invar_full_param_reader *reader,
                                          const invar_full_param_source *source, int64_t expert,
                                          int64_t experts) INVAR_MUST_USE;
void invar_full_param_reader_release(invar_full_param_reader *reader);

#endif
