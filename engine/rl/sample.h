/*
 * sample.h - a sample: one prompt with one response, from the rollout to the train step.
 *
 * A group is the n samples of one prompt; a batch is a sequence of groups. A sample contains
 * everything that it depends on (coordinates of its random numbers, weight versions, prompt), so it
 * can be reproduced alone.
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

typedef enum invar_finish {
    INVAR_FINISH_NONE,   /* not generated yet */
    INVAR_FINISH_STOP,   /* a stop id, the end of text, or a stop string */
    INVAR_FINISH_LENGTH, /* truncated at the largest length */
    INVAR_FINISH_ABORT   /* generation was aborted */
} invar_finish;

/* Returns "stop", "length", ... */
const char *invar_finish_name(invar_finish finish);

/* Counters of speculative decoding, of one sample or a sum. */
typedef struct invar_spec_decode_stats {
    int64_t passes;   /* passes that sampled tokens after the first one */
    int64_t drafted;  /* tokens proposed for these passes */
    int64_t accepted; /* proposed tokens that were accepted */
} invar_spec_decode_stats;

/* Prompt of a sample in the data set. Texts are borrowed from the data set. */
typedef struct invar_sample_data {
    int64_t line;         /* line of the data set, from 0 */
    invar_digest hash;    /* digest of the prompt's tokens */
    const char *prompt;   /* text */
    const char *label;    /* empty if the prompt has none */
    const char *metadata; /* JSON object; "{}" if the prompt has none */
} invar_sample_data;

/* Weights that sampled a response. */
typedef struct invar_sample_weights {
    int64_t first;     /* weight version that sampled the first response token */
    int64_t last;      /* weight version that sampled the last one */
    invar_digest hash; /* digest of the weights of `last` */
    int64_t last_from; /* index in `tokens` of the first one sampled by `last` */
} invar_sample_weights;

/* Facts about the sampling that are not part of any result. */
typedef struct invar_sample_stats {
    int64_t arrival; /* order of completion on its rank */
    invar_spec_decode_stats speculated;
} invar_sample_stats;

/* Arrays are owned by the sample (invar_alloc) and NULL if empty or not computed. */
typedef struct invar_rl_sample {
    int64_t index;    /* index among all samples of the run */
    int64_t group;    /* index among all groups of the run */
    uint32_t rollout; /* random coordinates: (rollout, draw_index) and the position of a token */
    /* index of the prompt in its rollout * n-samples-per-prompt + index in the group */
    uint32_t draw_index;

    int32_t *tokens;       /* (n_tokens) prompt, then response */
    int64_t prompt_tokens; /* at least 1 */
    int64_t n_tokens;
    /*
     * (n_branch_starts) ascending indices in `tokens`, after the prompt, at which a branch begins.
     * A branch is a sequence of its own, whose tokens do not see earlier branches; its prompt is
     * not sampled.
     */
    int64_t *branch_starts;
    int64_t n_branch_starts;
    /*
     * value of n_tokens, prompt included, at which an asynchronous rollout suspends the sample, to
     * resume it later; 0 if never
     */
    int64_t suspend_at;
    float *logp;   /* (response) log-probs at sampling */
    uint8_t *mask; /* (response) 1 if the token takes part in the loss; NULL if all do */
    /* (n_tokens - 1, sparse layers, slots) chosen experts; NULL for a dense model */
    int32_t *routing;
    int64_t route_size; /* sparse layers * slots; 0 if there is no routing */

    char *response; /* text of the response without special tokens, NUL-terminated */
    size_t response_bytes;

    invar_finish finish;
    int64_t turns; /* turns of the model in a multi-turn sample; 0 for other samples */
    invar_sample_data data;
    invar_sample_weights weights;
    invar_sample_stats stats;

    double reward; /* raw reward */
    /* the plug-in that led the sample set the reward, so no reward function may change it */
    bool has_plugin_reward;
    invar_reward_parts parts; /* named components of the reward; empty for most rewards */
    bool is_masked_out; /* a filter excluded the sample from the loss: its mask counts as zero */
} invar_rl_sample;

/* Returns the number of response tokens. */
static inline int64_t invar_rl_sample_response(const invar_rl_sample *s)
{
    return s->n_tokens - s->prompt_tokens;
}

/*
 * Gives tokens, log-probs, mask and routing space for `room` response tokens, at least those that
 * the sample has. New items are 0.
 */
invar_status invar_rl_sample_reserve(invar_rl_sample *sample, int64_t room) INVAR_MUST_USE;

/* Gives a sample without tokens a copy of its prompt, with space for `room` more tokens. */
invar_status invar_rl_sample_set_prompt(invar_rl_sample *sample, const int32_t *tokens,
                                        int64_t count, int64_t room) INVAR_MUST_USE;

/* Frees the arrays and zeroes the sample. */
void invar_rl_sample_release(invar_rl_sample *sample);

/* Adds `more` to `sum`. */
void invar_spec_decode_stats_add(invar_spec_decode_stats *sum, const invar_spec_decode_stats *more);

/* Returns the sum of the counters of all samples. */
invar_spec_decode_stats invar_spec_decode_stats_sum(const invar_rl_sample *samples, int64_t count);

typedef struct invar_rl_samples {
    invar_rl_sample *items; /* (count) in ascending order of index; owned */
    int64_t count;
    int64_t capacity;
} invar_rl_samples;

/* Appends a zeroed sample. *out is valid until the next append. */
invar_status invar_rl_samples_append(invar_rl_sample **out,
                                     invar_rl_samples *samples) INVAR_MUST_USE;

/*
 * Moves the `count` samples of `from`, in ascending order of index, to their place among those of
 * `to`: before the first one with a higher index than from[0]. All indices of `from` must be lower
 * than that one. `from` is zeroed.
 */
invar_status invar_rl_samples_insert(invar_rl_samples *to, invar_rl_sample *from,
                                     int64_t count) INVAR_MUST_USE;

/* Appends deep copies of all samples to an empty list; borrowed texts stay borrowed. */
invar_status invar_rl_samples_copy(invar_rl_samples *out,
                                   const invar_rl_samples *from) INVAR_MUST_USE;

/* Releases all samples and empties the list. */
void invar_rl_samples_reset(invar_rl_samples *samples);

#endif
