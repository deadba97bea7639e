/*
 * micro_batch.h - samples packed into the rows of one forward.
 *
 * A sample of n tokens has n - 1 rows: its last token predicts nothing. The head sees the rows
 * whose next token is part of the response. Nothing is padded. The branches of a sample are
 * sequences side by side; the last row of each predicts the first token of the next one, which no
 * mask counts and nothing depends on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_MICRO_BATCH_H
#define INVAR_ENGINE_TRAIN_MICRO_BATCH_H

#include "engine/model/forward.h"
#include "engine/rl/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed at first; reused by every fill; release. */
typedef struct invar_micro_batch {
    invar_packed_rows rows;
    invar_logit_rows head;
    int32_t *routing; /* (T, route): room for what the routers choose; NULL without experts */
    void *memory;
    size_t bytes;
} invar_micro_batch;

/* Which samples: [first, first + count), cut into units by `unit_start` (units + 1, absolute). */
typedef struct invar_micro_batch_plan {
    int64_t first, count;
    const int64_t *unit_start;
    int64_t units;
    float temperature;
    int64_t route; /* experts that the model chooses for a token, in all layers; 0: a dense model */
    bool replay;   /* the routers take the routing that the samples recorded */
} invar_micro_batch_plan;

/*
 * Packs; everything is borrowed from the batch until the next fill. INVAR_E_INVALID names a sample
 * without a response or, if routing is replayed, without routing or with that of another model.
 */
invar_status invar_micro_batch_fill(invar_micro_batch *batch, const invar_rl_sample *samples,
                                    const invar_micro_batch_plan *plan) INVAR_MUST_USE;
void invar_micro_batch_release(invar_micro_batch *batch);

/* Rows of a sample. */
static inline int64_t invar_micro_batch_rows(const invar_rl_sample *s)
{
    return s->n_tokens - 1;
}

#ifdef __cplusplus
}
#endif
#endif
