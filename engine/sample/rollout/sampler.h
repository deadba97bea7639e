/*
 * sampler.h - from rows of a pass to tokens and their log-probabilities.
 *
 * Both come from the same logits. Log-probabilities are over the whole vocabulary at the
 * temperature of sampling (1 for temperature 0), whatever top-k, top-p and min-p leave out: those
 * of the training forward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_SAMPLER_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_SAMPLER_H

#include "engine/model/graph/op_runner.h"
#include "engine/sample/rollout/rollout_hooks.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_SAMPLER_ROWS 256 /* logits at a time */

/* One token. */
typedef struct invar_draw {
    int64_t row;                /* of the last run of the pass; several may have the same */
    invar_sample_coords coords; /* position: that of the new token */
    const invar_sampling_params *sampling; /* how; NULL: as the sampler's */
    bool ban_stop_ids;                     /* stop ids may not be drawn */
    bool filler;                           /* its row is nobody's */
    int64_t owner;                         /* the caller's */
    int32_t token;                         /* drawn */
    float logp;                            /* its log-probability */
} invar_draw;

/* What ops are told of the draws, */
typedef struct invar_sampler_inputs {
    invar_sample_coords coords[INVAR_SAMPLER_ROWS];
    int32_t copy[INVAR_SAMPLER_ROWS]; /* the row of logits of each, where draws share them */
    int32_t no_end[INVAR_SAMPLER_ROWS];
} invar_sampler_inputs;

/* and what they answer: */
typedef struct invar_sampler_outputs {
    int32_t tokens[INVAR_SAMPLER_ROWS];
    float logp[INVAR_SAMPLER_ROWS];
} invar_sampler_outputs;

/* each goes in one piece. */
typedef struct invar_sampler_buffers {
    invar_sampler_inputs asked;
    invar_sampler_outputs drawn;
    float max[INVAR_SAMPLER_ROWS];
    float logsum[INVAR_SAMPLER_ROWS];
} invar_sampler_buffers;

typedef struct invar_sampler {
    invar_op_runner *caller;               /* borrowed */
    const invar_sampling_params *sampling; /* borrowed; NULL: every draw has its own */
    invar_row_ownership *show;             /* borrowed; NULL: nobody looks */
    int64_t row[INVAR_SAMPLER_ROWS];
    invar_sampler_inputs asked;
    invar_sampler_outputs drawn;
    /* in the device's memory */
    invar_sampler_buffers *room;
    int32_t *stop_ids;      /* (n_stop_ids) of the sampler's sampling */
    int32_t *remote_tokens; /* (n_other) those of another one */
    int64_t n_other;
    float *copies; /* (n_copies, vocabulary) where draws share a row */
    int64_t n_copies;
} invar_sampler;

invar_status invar_sampler_init(invar_sampler *sampler, invar_op_runner *caller,
                                const invar_sampling_params *sampling) INVAR_MUST_USE;
void invar_sampler_release(invar_sampler *sampler);

/* Draws all; rows ascend or repeat. Where logits are not finite, neither is `logp`. */
invar_status invar_sampler_draw(invar_sampler *sampler, invar_pass *pass, invar_draw *draws,
                                int64_t count) INVAR_MUST_USE;

/* The temperature that log-probabilities are at. */
static inline float invar_sampling_logp_temperature(float temperature)
{
    return temperature == 0.0f ? 1.0f : temperature;
}

#ifdef __cplusplus
}
#endif
#endif
