/*
 * loss.h - advantages and losses: from rewards and log-probs to dL/dlogp.
 *
 * A batch of samples has flat per-token arrays: token j of sample i is at offsets[i] + j. Values of
 * the whole batch (counts, whitening, importance normalizers) are computed before the first
 * gradient and multiplied into each token, so micro-batching cannot change a bit; every sum is a
 * REDUCE in index order. A value that is not finite is never replaced by zero: it stops the step
 * and names sample and token. docs/arithmetic.md, section 13, has the formulas.
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

/* One sample in a call of invar_loss_run. */
typedef struct invar_loss_sample_view invar_loss_sample_view;

typedef struct invar_loss_traits {
    /* Computes loss and slope of each token of the sample, before mask and reduction. */
    invar_status (*rows)(invar_loss *loss, const invar_loss_sample_view *view);
    const char *metric; /* metric of the mean loss of the step */
    /* metric of the share of clipped tokens; NULL if the loss does not clip */
    const char *clip_metric;
    bool policy; /* policy gradient: advantages, ratios, importance weights */
    /* supervised: trains on responses of the data set; nothing is sampled or rewarded */
    bool supervised;
    bool values;      /* loss of a critic's values, not of log-probs */
    bool plugin;      /* computed by a user plug-in */
    bool regularized; /* entropy and KL losses are added; loss-divisor applies */
} invar_loss_traits;

/* Returns the traits; `type` must be in range. */
const invar_loss_traits *invar_loss_traits_of(invar_loss_type type);

/*
 * Input of a custom loss: one sample. Arrays have (tokens) elements and are NULL if the run has
 * none.
 */
typedef struct invar_loss_sample {
    int64_t sample; /* index in the batch */
    int64_t tokens;
    const uint8_t *mask;
    const float *logp; /* log-probs of the training forward */
    const float *old_logp;
    const float *rollout_logp;
    const float *ref_logp;
    const float *advantage;
    const float *entropy;
} invar_loss_sample;

/*
 * Replaces the policy loss: computes for each token its loss, and the derivative of the sample's
 * sum of losses with respect to the token's log-prob. Mask, reduction, entropy and KL loss are
 * applied afterwards, so a function of the sample alone gives the same step for every
 * micro-batching.
 */
typedef struct invar_loss_custom {
    invar_status (*run)(float *loss_out, float *dlogp_out, const invar_loss_sample *sample,
                        void *payload);
    void *payload;
} invar_loss_custom;

/* KL divergence from the reference model: a penalty of rewards, and a term of the loss. */
typedef struct invar_kl_options {
    invar_kl type;
    float reward_coef; /* coefficient of the penalty in the reward */
    bool use_loss;
    float loss_coef;
    bool unbiased;
} invar_kl_options;

/* Limits of the ratio, and of a critic's values. */
typedef struct invar_clip_options {
    float low, high;
    float dual;  /* dual clip; 0 for no dual clip */
    float value; /* 0 for no clipping of values */
} invar_clip_options;

/* Masking of samples with negative advantages that are far from the policy. */
typedef struct invar_opsm_options {
    bool use;
    float delta;
} invar_opsm_options;

/* Importance weights that are truncated at two bounds (TIS). */
typedef struct invar_tis_options {
    bool use;
    float low, high;
    invar_tis_mode mode;
} invar_tis_options;

/* Masked importance weights (MIS), which are used instead of truncated ones. */
typedef struct invar_mis_options {
    bool use;
    invar_mis_level level;
    invar_mis_mode mode;
    float low, high; /* low = 0 stands for 1 / high */
    struct {
        bool use;
        invar_mis_level level;
        float low, high; /* 0 stands for the bounds of the weights */
        float veto;      /* 0 for no veto */
    } rs;                /* rejection */
    bool batch_normalize;
} invar_mis_options;

typedef struct invar_rl_options {
    invar_loss_type loss;
    const invar_loss_custom *custom; /* function of INVAR_LOSS_CUSTOM; borrowed */
    invar_estimator estimator;
    bool rewards_normalization; /* subtract the group's mean from rewards */
    bool std_normalization;     /* divide the rest by the group's standard deviation (grpo, gspo) */
    /* whiten advantages over the batch; reinforce_plus_plus* always do */
    bool normalize_advantages;
    float gamma, lambd;
    invar_kl_options kl;
    invar_clip_options clip;
    float entropy_coef;
    bool per_token_loss;
    /* Dr.GRPO: if > 0, divides every sample's policy loss instead of its token count */
    float constant_divisor;
    float opd_kl_coef; /* if > 0, adds distillation to any estimator; needs teacher_logp */
    invar_opsm_options opsm;
    invar_tis_options tis;
    invar_mis_options mis;
} invar_rl_options;

/*
 * Input of advantages and losses. Arrays are borrowed and NULL if absent; T = offsets[samples] is
 * the number of response tokens. `offsets` and `mask` are always present.
 */
typedef struct invar_rl_batch {
    int64_t samples;
    const int64_t *offsets; /* (samples + 1) offsets of response tokens */
    const int64_t *group;  /* (samples) samples of a group have equal numbers and are consecutive */
    const uint8_t *mask;   /* (T) 1 if the token takes part in the loss */
    const float *reward;   /* (samples) raw rewards */
    const float *old_logp; /* (T) log-probs before the step */
    const float *rollout_logp; /* (T) log-probs at sampling */
    /* old_logp or rollout_logp is a copy of the other, so metrics that compare both are left out */
    bool copied;
    const float *ref_logp;     /* (T) */
    const float *teacher_logp; /* (T) */
    const float *values;       /* (T) critic's values before the step */
    /* (T) 1 if a branch of the sample begins at the token; NULL if there are no branches */
    const uint8_t *branch_start;
} invar_rl_batch;

/*
 * Computes the advantages (T) of a complete rollout: group normalization, estimator, distillation,
 * whitening. returns_out (T) may be NULL; the critic's loss needs it.
 */
invar_status invar_rl_advantages(float *advantage_out, float *returns_out,
                                 const invar_rl_batch *batch,
                                 const invar_rl_options *options) INVAR_MUST_USE;

/*
 * Makes the loss of an optimizer step and computes everything that depends on the whole step. The
 * batch and the advantages (T), or returns (T) for the value loss, are borrowed until
 * invar_loss_free; the options are copied. Free with invar_loss_free.
 */
invar_status invar_loss_new(invar_loss **out, const invar_rl_batch *batch,
                            const invar_rl_options *options, const float *advantage,
                            const float *returns) INVAR_MUST_USE;
void invar_loss_free(invar_loss *loss);

/*
 * Evaluates the samples [first, first + count). `now` has the log-probs of their tokens from the
 * training forward (values for the value loss). Writes dL/dnow and dL/dentropy for these tokens.
 * `entropy` and dentropy_out may be NULL if entropy_coef is 0. Each sample must be evaluated once,
 * in any grouping.
 */
invar_status invar_loss_run(invar_loss *loss, int64_t first, int64_t count, const float *now,
                            const float *entropy, float *dnow_out,
                            float *dentropy_out) INVAR_MUST_USE;

typedef struct invar_loss_metric {
    char name[64]; /* "train/pg_loss" */
    double value;  /* exact value of an fp32 number */
} invar_loss_metric;

/*
 * Returns the metrics of the step: the loss first, then those of its terms, such as pg_loss,
 * pg_clipfrac, ppo_kl, kl_loss, entropy_loss, tis* and mis_*, with the names of Miles if Miles logs
 * the same. Borrowed until invar_loss_free. Returns INVAR_E_STATE if a sample was not evaluated.
 */
invar_status invar_loss_metrics(const invar_loss_metric **out, size_t *count_out,
                                invar_loss *loss) INVAR_MUST_USE;

/*
 * DAPO's group filter: returns false if all rewards of the group are equal (std <= 1e-8 in double),
 * or if there are fewer than two.
 */
bool invar_rl_group_keeps(const float *reward, int64_t count);

#endif
