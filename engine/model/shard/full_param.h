/*
 * full_param.h - parameters whole on rank 0, of which ranks hold boxes: for files and for points,
 * which know no ranks.
 *
 * Every rank of the model's layout makes the same calls in the same order. What is here of a
 * parameter goes to rank 0, which gets all of it; one parameter, or one expert, at a time lies in
 * the host's memory. Where no ranks divide the model, rank 0 reads its own memory and others do
 * nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_FULL_PARAM_H
#define INVAR_ENGINE_MODEL_SHARD_FULL_PARAM_H

#include "engine/model/graph/host_staging.h"
#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed at first; release. */
typedef struct invar_full_param_reader {
    invar_host_window window;
    float *values;     /* of a parameter */
    float *recv_shard; /* a box of another rank */
    int64_t room;      /* elements of each */
} invar_full_param_reader;

/* What is read: a tensor with the extents of what is here of a parameter. */
typedef struct invar_full_param_source {
    const invar_model *model;
    int64_t param;
    const invar_tensor *masters;
    const invar_device *dev; /* whose memory it is in; NULL: the host's */
} invar_full_param_source;

/*
 * *out = the values of `experts` of the parameter from `expert` on, until the next call; NULL on
 * other ranks than 0.
 */
invar_status invar_full_param_reader_read(const float **out, invar_full_param_reader *whole,
                                          const invar_full_param_source *source, int64_t expert,
                                          int64_t experts) INVAR_MUST_USE;
void invar_full_param_reader_release(invar_full_param_reader *whole);

#ifdef __cplusplus
}
#endif
#endif
