/*
 * micro_batch.h - packs samples into the rows of one forward.
 *
 * A sample of n tokens has n - 1 rows because its last token predicts nothing. The head gets the
 * rows whose next token is part of the response. There is no padding. The branches of a sample are
 * separate sequences; the last row of each predicts the first token of the next branch, which every
 * mask excludes and nothing depends on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_MICRO_BATCH_H
#define INVAR_ENGINE_TRAIN_MICRO_BATCH_H

#include "engine/model/forward.h"
#include "engine/rl/sample.h"

/*
 * Packed samples, in a buffer that every fill reuses. Zero-initialize before use. Release with
 * invar_micro_batch_release.
 */
typedef struct invar_micro_batch {
    /* input of the layers */
    invar_packed_rows rows;
    /* rows and targets of the head */
    invar_logit_rows head;
    /*
     * (rows, route) output buffer for the experts that the routers choose; NULL if the model has
     * none
     */
    int32_t *routing;
    void *memory;
    /* capacity of `memory` */
    size_t bytes;
} invar_micro_batch;

/*
 * The samples to pack, [first, first + count), and their units: `unit_start` has units + 1 absolute
 * sample indices.
 */
typedef struct invar_micro_batch_plan {
    int64_t first, count;
    const int64_t *unit_start;
    int64_t units;
    float temperature;
    int64_t route; /* experts chosen for a token in all layers together; 0 for a dense model */
    bool replay;   /* the routers use the routing that the samples recorded */
} invar_micro_batch_plan;

/*
 * Packs the samples. All arrays are valid until the next fill. Returns INVAR_E_INVALID and names
 * the sample if a sample has no response, has branches out of order or, if routing is replayed, has
 * no routing or that of another model.
 */
invar_status invar_micro_batch_fill(invar_micro_batch *batch, const invar_rl_sample *samples,
                                    const invar_micro_batch_plan *plan) INVAR_MUST_USE;
void invar_micro_batch_release(invar_micro_batch *batch);

/* Returns the number of rows of a sample. */
static inline int64_t invar_micro_batch_rows(const invar_rl_sample *s)
{
    return s->n_tokens - 1;
}

#endif
