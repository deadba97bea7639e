/*
 * sample.h - one prompt with one response, from its birth in the rollout to the train step.
 *
 * A group is the n samples of one prompt; a batch is groups in order. Everything that a sample
 * depends on is in it: the coordinates of its randomness, the weights, the prompt, so it can be
 * made again alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_SAMPLE_H
#define INVAR_ENGINE_RL_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "engine/rl/reward_parts.h"
#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_finish {
    INVAR_FINISH_NONE,   /* not generated yet */
    INVAR_FINISH_STOP,   /* a stop id, the end of text, or a stop string */
    INVAR_FINISH_LENGTH, /* as long as allowed: truncated */
    INVAR_FINISH_ABORT   /* given up */
} invar_finish;

/* "stop", "length", ... */
const char *invar_finish_name(invar_finish finish);

/* What guesses did for a sample, or for several. */
typedef struct invar_spec_decode_stats {
    int64_t passes;   /* that drew tokens behind the first one */
    int64_t drafted;  /* tokens guessed for them, */
    int64_t accepted; /* and those of them that were drawn */
} invar_spec_decode_stats;

/* Arrays are owned by the sample (invar_alloc); NULL where empty or not computed. */
typedef struct invar_rl_sample {
    int64_t index;    /* of all samples of the run */
    int64_t group;    /* of all groups of the run */
    int64_t prompt;   /* line of the data set, from 0 */
    uint32_t rollout; /* coordinates: (rollout, draw) and the position of a token */
    /* prompt's place in its rollout * n-samples-per-prompt + number in group */
    uint32_t draw_index;

    int32_t *tokens;       /* (n_tokens) prompt, then response */
    int64_t prompt_tokens; /* at least 1 */
    int64_t n_tokens;
    /* (n_cuts) ascending positions after the prompt where a branch begins. A branch is a
       sequence of its own, whose tokens see none before it; its prompt is not sampled. */
    int64_t *branch_starts;
    int64_t n_cuts;
    int64_t suspend_at; /* tokens in all at which a rollout leaves it to be gone on with; 0: none */
    float *logp;        /* (response) as sampled */
    uint8_t *mask;      /* (response) 1: takes part in the loss */
    int32_t *routing;   /* (n_tokens - 1, sparse layers, slots); experts only */
    int64_t route_size; /* sparse layers * slots; 0: no routing */

    char *response; /* text of the response without special tokens, NUL-terminated */
    size_t response_bytes;
    const char *label;    /* borrowed from the data set; "" when there is none */
    const char *metadata; /* JSON object, borrowed from the data set; "{}" when there is none */
    const char *prompt_text;

    invar_finish finish;
    int64_t turns;                      /* of the model, where a plug-in led it; 0: none did */
    int64_t first_version;              /* version that drew its first token, */
    int64_t last_version;               /* and its last, */
    invar_digest weights_hash;          /* with the hash of these, */
    int64_t current_version_from;       /* which drew the tokens from here on */
    invar_digest prompt_hash;           /* of the prompt's tokens */
    int64_t arrival;                    /* order of completion on its rank; outside every result, */
    invar_spec_decode_stats speculated; /* as is this */

    double reward;            /* raw */
    bool has_plugin_reward;   /* by the plug-in that led it: a judge does not change it */
    invar_reward_parts parts; /* that it consists of; most rewards have none */
    bool is_masked_out;       /* a filter took it out: its mask counts as zero */
} invar_rl_sample;

static inline int64_t invar_rl_sample_response(const invar_rl_sample *s)
{
    return s->n_tokens - s->prompt_tokens;
}

/* Frees the arrays; the sample is zeroed. */
void invar_rl_sample_release(invar_rl_sample *sample);

void invar_spec_decode_stats_add(invar_spec_decode_stats *sum, const invar_spec_decode_stats *more);

/* Of all of them together. */
invar_spec_decode_stats invar_spec_decode_stats_sum(const invar_rl_sample *samples, int64_t count);

typedef struct invar_rl_samples {
    invar_rl_sample *items; /* (count), in order of index */
    int64_t count;
    int64_t capacity;
} invar_rl_samples;

/* A new zeroed sample at the end; borrowed until the next append. */
invar_status invar_rl_samples_append(invar_rl_sample **out,
                                     invar_rl_samples *samples) INVAR_MUST_USE;

/*
 * Moves samples in front of the first one with a higher index, which is higher than all of theirs;
 * `from` is zeroed.
 */
invar_status invar_rl_samples_insert(invar_rl_samples *to, invar_rl_sample *from,
                                     int64_t count) INVAR_MUST_USE;

/* Into an empty list: all of it, but for texts that are borrowed. */
invar_status invar_rl_samples_copy(invar_rl_samples *out,
                                   const invar_rl_samples *from) INVAR_MUST_USE;

/* Releases all; an empty list again. */
void invar_rl_samples_reset(invar_rl_samples *samples);

#ifdef __cplusplus
}
#endif
#endif
