/*
 * sampler.h - samples tokens and their log-probs from rows of a pass.
 *
 * Token and log-prob come from the same logits. The log-prob is over the full vocabulary at the
 * sampling temperature (1 for temperature 0), regardless of top-k, top-p and min-p, so that it
 * equals the one of the training forward.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_SAMPLER_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_SAMPLER_H

#include "engine/model/graph/op_runner.h"
#include "engine/sample/rollout/rollout_hooks.h"

#define INVAR_SAMPLER_ROWS 256 /* largest number of tokens sampled by one call of the ops */

/* One token to sample: the inputs, then the result. */
typedef struct invar_draw {
    int64_t row;                /* row of the last run of the pass; several draws may share it */
    invar_sample_coords coords; /* random coordinates with the position of the new token */
    const invar_sampling_params *sampling; /* borrowed; NULL for those of the sampler */
    bool ban_stop_ids;                     /* stop ids cannot be sampled */
    bool filler;                           /* the row is padding and belongs to no sample */
    int64_t owner; /* chosen by the caller; with hooks, index of the sample in the run */
    int32_t token; /* out: sampled token */
    float logp;    /* out: its log-prob; not finite if the logits are not */
} invar_draw;

/* Inputs of the sampling ops, uploaded in one copy. */
typedef struct invar_sampler_inputs {
    invar_sample_coords coords[INVAR_SAMPLER_ROWS];
    int32_t logits_row[INVAR_SAMPLER_ROWS];   /* index of the row of logits that a draw uses */
    int32_t ban_stop_ids[INVAR_SAMPLER_ROWS]; /* 1 if stop ids are banned */
} invar_sampler_inputs;

/* Outputs of the sampling ops, downloaded in one copy. */
typedef struct invar_sampler_outputs {
    int32_t tokens[INVAR_SAMPLER_ROWS];
    float logp[INVAR_SAMPLER_ROWS];
} invar_sampler_outputs;

/* Device memory of the sampling ops. */
typedef struct invar_sampler_buffers {
    invar_sampler_inputs inputs;
    invar_sampler_outputs outputs;
    float max[INVAR_SAMPLER_ROWS];    /* largest logit of each row */
    float logsum[INVAR_SAMPLER_ROWS]; /* logarithm of the softmax sum of each row */
} invar_sampler_buffers;

typedef struct invar_sampler {
    invar_op_runner *op_runner;            /* borrowed */
    const invar_sampling_params *sampling; /* borrowed; NULL if every draw has its own */
    invar_row_ownership *row_owners;       /* borrowed; NULL without hooks */
    int64_t row[INVAR_SAMPLER_ROWS];       /* distinct rows of the current draws, ascending */
    invar_sampler_inputs inputs;
    invar_sampler_outputs outputs;
    /* The members below are in device memory. */
    invar_sampler_buffers *buffers;
    int32_t *stop_ids;      /* (n_stop_ids) stop ids of `sampling` */
    int32_t *draw_stop_ids; /* (draw_stop_ids_capacity) stop ids of draws with their own params */
    int64_t draw_stop_ids_capacity;
    float *copies;    /* (n_copies, vocabulary) logits of draws that share a row */
    int64_t n_copies; /* capacity of copies, in rows */
} invar_sampler;

/*
 * Initializes the sampler and uploads the stop ids of `sampling`. `runner` and `sampling` are
 * borrowed; `sampling` is NULL if every draw has its own. Release also after a failure.
 */
invar_status invar_sampler_init(invar_sampler *sampler, invar_op_runner *runner,
                                const invar_sampling_params *sampling) INVAR_MUST_USE;
void invar_sampler_release(invar_sampler *sampler);

/*
 * Samples token and logp of draws[0, count) from the last run of `pass`. The rows of successive
 * draws ascend or repeat. If the logits of a row are not finite, neither is its logp.
 */
invar_status invar_sampler_draw(invar_sampler *sampler, invar_pass *pass, invar_draw *draws,
                                int64_t count) INVAR_MUST_USE;

/* Returns the temperature of log-probs for a sampling temperature. */
static inline float invar_sampling_logp_temperature(float temperature)
{
    return temperature == 0.0f ? 1.0f : temperature;
}

#endif
