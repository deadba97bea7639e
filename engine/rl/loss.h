/*
 * loss.h - advantages and losses: from rewards and log-probabilities to dL/dlogp.
 *
 * One batch of samples with their per-token arrays, flat: token j of sample i is at start[i] + j.
 * Whatever is a number of the whole batch (counts, whitening, importance normalisers) is computed
 * before the first gradient and multiplied into each token's; so micro-batching cannot change a
 * bit, and every sum is a REDUCE in index order. Nothing is replaced by zero: a value that is not
 * finite stops the step and names sample and token. Formulas: docs/arithmetic.md section 13.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_LOSS_H
#define INVAR_ENGINE_RL_LOSS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/config/choices.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_estimator {
#define INVAR_ESTIMATOR(ID, ...) INVAR_ESTIMATOR_##ID,
#include "engine/rl/estimators.def"
#undef INVAR_ESTIMATOR
    INVAR_ESTIMATOR_COUNT
} invar_estimator;

typedef enum invar_kl {
#define INVAR_KL(ID, ...) INVAR_KL_##ID,
#include "engine/rl/kls.def"
#undef INVAR_KL
    INVAR_KL_COUNT
} invar_kl;

typedef enum invar_loss_type {
#define INVAR_LOSS(ID, ...) INVAR_LOSS_##ID,
#include "engine/rl/losses.def"
#undef INVAR_LOSS
    INVAR_LOSS_COUNT
} invar_loss_type;

extern const invar_choices invar_estimator_choices, invar_kl_choices, invar_loss_type_choices;

typedef struct invar_loss invar_loss;
typedef struct invar_loss_sample_view invar_loss_sample_view; /* a sample of a run */

typedef struct invar_loss_traits {
    /* Loss and slope of each of the sample's tokens, before mask and reduction. */
    invar_status (*rows)(invar_loss *loss, const invar_loss_sample_view *view);
    const char *metric;      /* its mean over the step */
    const char *clip_metric; /* the share of tokens that were clipped; NULL: none is */
    bool policy;             /* a policy gradient: advantages, ratios, importance weights */
    bool supervised;         /* learns the answers of the data: nothing is sampled or judged */
    bool values;             /* of a critic's values, not of log-probabilities */
    bool plugin;             /* computed by the user's own */
    bool regularised;        /* entropy and KL are added, loss-divisor divides */
} invar_loss_traits;

/* `type` is in range. */
const invar_loss_traits *invar_loss_traits_of(invar_loss_type type);

/* What a loss of the user's own sees: one sample, (tokens) each, NULL where the run has none. */
typedef struct invar_loss_sample {
    int64_t sample; /* of the batch */
    int64_t tokens;
    const uint8_t *mask;
    const float *logp; /* of the training forward */
    const float *old_logp;
    const float *rollout_logp;
    const float *ref_logp;
    const float *advantage;
    const float *entropy;
} invar_loss_sample;

/*
 * In place of the policy loss: per token its loss and the derivative of the sample's sum of losses
 * with respect to the token's log-probability. Mask, reduction, entropy and KL loss are ours, so a
 * function of the sample alone gives the same step for every micro-batching.
 */
typedef struct invar_loss_custom {
    invar_status (*run)(float *loss_out, float *dlogp_out, const invar_loss_sample *sample,
                        void *payload);
    void *payload;
} invar_loss_custom;

typedef struct invar_rl_options {
    invar_loss_type loss;
    const invar_loss_custom *custom; /* for INVAR_LOSS_CUSTOM; borrowed */
    invar_estimator estimator;
    bool rewards_normalization; /* subtract the group's mean */
    bool std_normalization;     /* and divide by its deviation (grpo, gspo) */
    bool normalize_advantages;  /* whitening over the batch; always so for reinforce_plus_plus* */
    float gamma, lambd;
    float kl_coef; /* in the reward */
    invar_kl kl_type;
    bool use_kl_loss;
    float kl_loss_coef;
    bool unbiased_kl;
    float eps_clip, eps_clip_high;
    float eps_clip_c; /* dual clip; 0: off */
    float value_clip; /* 0: off */
    float entropy_coef;
    bool per_token_loss;
    float constant_divisor; /* Dr.GRPO: > 0 divides every sample's policy loss by this instead */
    float opd_kl_coef;      /* > 0: distils into any estimator; needs teacher_logp */
    bool use_opsm;
    float opsm_delta;
    bool use_tis;
    float tis_clip, tis_clip_low;
    invar_tis_mode tis_mode;
    bool use_mis; /* its weights instead of TIS's */
    invar_mis_level mis_level;
    invar_mis_mode mis_mode;
    float mis_low, mis_high; /* low 0: 1 / high */
    bool mis_rs;
    invar_mis_level mis_rs_level;
    float mis_rs_low, mis_rs_high; /* 0: those of mis */
    float mis_veto;                /* part of rejection (mis_rs); 0: off */
    bool mis_batch_normalize;
} invar_rl_options;

/* Borrowed by every call; an absent array is NULL. Lengths: T tokens = start[samples]. */
typedef struct invar_rl_batch {
    int64_t samples;
    const int64_t *start;      /* (samples + 1) response tokens */
    const int64_t *group;      /* (samples) equal numbers stand together */
    const uint8_t *mask;       /* (T) */
    const float *reward;       /* (samples) raw */
    const float *old_logp;     /* (T) before the step */
    const float *rollout_logp; /* (T) as sampled */
    bool copied;               /* one of the last two is a copy of the other: no metric of both */
    const float *ref_logp;     /* (T) */
    const float *teacher_logp; /* (T) */
    const float *values;       /* (T) of the critic, before the step */
    const uint8_t *begins;     /* (T) 1: a branch of the sample begins there; NULL: none does */
} invar_rl_batch;

/*
 * Advantages (T) of a whole rollout: group normalisation, estimator, distillation, whitening.
 * returns_out (T) may be NULL; the critic's loss needs it.
 */
invar_status invar_rl_advantages(float *advantage_out, float *returns_out,
                                 const invar_rl_batch *batch,
                                 const invar_rl_options *options) INVAR_MUST_USE;

/*
 * A loss over one optimizer step's samples. Takes the batch and its advantages (T) or, for the
 * value loss, returns (T), all borrowed until free; computes everything that belongs to the whole
 * step. The options are copied.
 */
invar_status invar_loss_new(invar_loss **out, const invar_rl_batch *batch,
                            const invar_rl_options *options, const float *advantage,
                            const float *returns) INVAR_MUST_USE;
void invar_loss_free(invar_loss *loss);

/*
 * The samples [first, first + count): `now` holds their tokens' log-probabilities (for the value
 * loss: values) from the training forward, `entropy` may be NULL. Writes dL/dnow and, where the
 * entropy has a coefficient, dL/dentropy, for the same tokens. Each sample once, in any grouping.
 */
invar_status invar_loss_run(invar_loss *loss, int64_t first, int64_t count, const float *now,
                            const float *entropy, float *dnow_out,
                            float *dentropy_out) INVAR_MUST_USE;

typedef struct invar_loss_metric {
    char name[64]; /* "train/pg_loss" */
    double value;  /* of an fp32 number */
} invar_loss_metric;

/*
 * After all samples, by Miles' names where Miles logs the same: first the loss itself, then
 * pg_loss, pg_clipfrac, ppo_kl, kl_loss, entropy_loss, ess_ratio, tis*, mis_*, opsm_clipfrac,
 * value_loss, ... Borrowed until free. A step in which a sample was left out is refused.
 */
invar_status invar_loss_metrics(const invar_loss_metric **out, size_t *count_out,
                                invar_loss *loss) INVAR_MUST_USE;

/* DAPO's group filter: false where all rewards of the group are equal (std <= 1e-8 in double). */
bool invar_rl_group_keeps(const float *reward, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
