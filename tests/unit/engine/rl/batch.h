/*
 * batch.h - a random batch of samples with all per-token arrays, for the tests of engine/rl.
 *
 * The log-probs of a token differ by small random amounts between policies, so that ratios are near
 * 1. One token in eight is masked.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_RL_BATCH_H
#define INVAR_TESTS_UNIT_ENGINE_RL_BATCH_H

#include <math.h>
#include <string.h>

#include "engine/rl/loss.h"
#include "tests/support.h"

enum { SAMPLES = 12, GROUP = 4, LONGEST = 700, TOKENS = SAMPLES * LONGEST };

/* A batch of SAMPLES samples in groups of GROUP, and the arrays that it borrows. */
typedef struct fixture {
    invar_rl_batch batch;
    int64_t tokens; /* number of response tokens of all samples */
    int64_t start[SAMPLES + 1], group[SAMPLES];
    uint8_t mask[TOKENS];
    float reward[SAMPLES], advantage[TOKENS], returns[TOKENS];
    float old_logp[TOKENS], rollout_logp[TOKENS], ref_logp[TOKENS], teacher_logp[TOKENS];
    float values[TOKENS], now[TOKENS], entropy[TOKENS];
} fixture;

/* Fills the batch with pseudo-random numbers; responses have 1 to `longest` tokens. */
static inline void fixture_init(fixture *f, uint64_t seed, int64_t longest)
{
    memset(f, 0, sizeof *f);
    for (int64_t i = 0; i < SAMPLES; i++) {
        int64_t length = 1 + (int64_t)(invar_test_random(seed, (uint64_t)i) % (uint64_t)longest);
        f->start[i + 1] = f->start[i] + length;
        f->group[i] = i / GROUP;
        f->reward[i] = (float)(invar_test_random(seed + 1, (uint64_t)i) % 5) * 0.25f;
    }
    f->tokens = f->start[SAMPLES];
    for (int64_t t = 0; t < f->tokens; t++) {
        uint64_t n = (uint64_t)t;
        float old = -fabsf(invar_test_normal(seed + 2, n, 1.5f)) - 0.01f;
        f->mask[t] = invar_test_random(seed + 3, n) % 8 != 0;
        f->old_logp[t] = old;
        f->now[t] = old + invar_test_normal(seed + 4, n, 0.3f);
        f->rollout_logp[t] = old + invar_test_normal(seed + 5, n, 0.2f);
        f->ref_logp[t] = old + invar_test_normal(seed + 6, n, 0.4f);
        f->teacher_logp[t] = old + invar_test_normal(seed + 7, n, 0.4f);
        f->values[t] = invar_test_normal(seed + 8, n, 1.0f);
        f->entropy[t] = fabsf(invar_test_normal(seed + 9, n, 1.0f));
        f->advantage[t] = invar_test_normal(seed + 10, n, 1.0f);
        f->returns[t] = invar_test_normal(seed + 11, n, 1.0f);
    }
    f->batch = (invar_rl_batch){.samples = SAMPLES,
                                .offsets = f->start,
                                .group = f->group,
                                .mask = f->mask,
                                .reward = f->reward,
                                .old_logp = f->old_logp,
                                .rollout_logp = f->rollout_logp,
                                .ref_logp = f->ref_logp,
                                .teacher_logp = f->teacher_logp,
                                .values = f->values};
}

/* Returns the options of GRPO with the recipe's defaults. */
static inline invar_rl_options usual_options(void)
{
    return (invar_rl_options){.rewards_normalization = true,
                              .std_normalization = true,
                              .gamma = 1.0f,
                              .lambd = 1.0f,
                              .kl.type = INVAR_KL_LOW_VAR,
                              .clip.low = 0.2f,
                              .clip.high = 0.28f};
}

/* Computes the loss of all samples in one call. The caller frees the loss after its metrics. */
static inline invar_loss *run_whole(const fixture *f, const invar_rl_options *options, float *dnow,
                                    float *dentropy)
{
    invar_loss *loss;

    assert_ok(invar_loss_new(&loss, &f->batch, options, f->advantage, f->returns));
    assert_ok(invar_loss_run(loss, 0, SAMPLES, f->now, f->entropy, dnow, dentropy));
    return loss;
}

/* Returns a metric of the loss; fails if it does not exist. */
static inline double metric(invar_loss *loss, const char *name)
{
    const invar_loss_metric *metrics;
    size_t count;

    assert_ok(invar_loss_metrics(&metrics, &count, loss));
    for (size_t i = 0; i < count; i++) {
        if (strcmp(metrics[i].name, name) == 0)
            return metrics[i].value;
    }
    fail_msg("no metric %s", name);
    return 0.0;
}

#endif
