/*
 * base.h - the weights of a frozen base: made from f32 values, of which no master is kept.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_LORA_BASE_H
#define INVAR_ENGINE_MODEL_LORA_BASE_H

#include "engine/model/model.h"
#include "engine/program/call.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes values in turn; room for the largest stays until the end. */
typedef struct invar_base_writer {
    const invar_device *dev; /* the model's memory is its */
    invar_caller caller;
    float *near;   /* the host's */
    void *staging; /* the device's */
    size_t near_bytes, staging_bytes;
} invar_base_writer;

void invar_base_writer_init(invar_base_writer *out, const invar_device *dev);
void invar_base_writer_release(invar_base_writer *writer);

/* Room for values on the host, until the next call. */
invar_status invar_base_room(float **out, invar_base_writer *writer,
                             int64_t elements) INVAR_MUST_USE;

/* Makes the rows [first, first + rows) of a frozen parameter from what is in the room. */
invar_status invar_base_write(invar_base_writer *writer, const invar_param *p, int64_t first,
                              int64_t rows) INVAR_MUST_USE;

/* The hash of all weights of a frozen base, as ops read them. */
invar_status invar_base_hash(invar_digest *out, const invar_model *model,
                             const invar_device *dev) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
