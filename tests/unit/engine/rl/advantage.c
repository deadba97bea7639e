/*
 * advantage.c - tests of advantages: exact zeros, independent groups, episodes, rejected input.
 *
 * Small cases have results computed by hand. Accuracy against PyTorch is tested in torch.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/engine/rl/batch.h"

static fixture f;
static float advantage[TOKENS], returns[TOKENS];

/* ---- groups ---------------------------------------------------------------------------------- */

static void test_rl_advantage__equal_rewards_are_exactly_zero(void **state)
{
    invar_rl_options options = usual_options();

    (void)state;
    fixture_init(&f, 1, 5);
    for (int64_t i = 0; i < SAMPLES; i++) {
        f.group[i] = i / 3; // in fp32, three times 0.1 has a rounding error
        f.reward[i] = 0.1f;
    }
    for (int whiten = 0; whiten < 2; whiten++) {
        options.normalize_advantages = whiten;
        assert_ok(invar_rl_advantages(advantage, NULL, &f.batch, &options));
        for (int64_t t = 0; t < f.tokens; t++)
            assert_true(advantage[t] == 0.0f);
    }
    // whitening a nonzero constant gives zeros
    options.rewards_normalization = false;
    assert_ok(invar_rl_advantages(advantage, returns, &f.batch, &options));
    for (int64_t t = 0; t < f.tokens; t++) {
        assert_true(advantage[t] == 0.0f);
        assert_true(returns[t] == (f.mask[t] ? 0.1f : 0.0f));
    }
}

/* A group's advantages depend on the group only; a group of one sample has advantage 0. */
static void test_rl_advantage__groups_are_independent(void **state)
{
    static float other[TOKENS];
    invar_rl_options options = usual_options();

    (void)state;
    fixture_init(&f, 2, 5);
    f.group[SAMPLES - 1] = 99;
    assert_ok(invar_rl_advantages(advantage, NULL, &f.batch, &options));
    for (int64_t t = f.start[SAMPLES - 1]; t < f.tokens; t++)
        assert_true(advantage[t] == 0.0f);
    f.reward[0] += 1.0f;
    assert_ok(invar_rl_advantages(other, NULL, &f.batch, &options));
    invar_assert_bits_f32(other + f.start[GROUP], advantage + f.start[GROUP],
                          f.tokens - f.start[GROUP], "other groups");
    assert_true(invar_bits_differ(other, advantage, (size_t)f.start[GROUP] * sizeof(float)));
}

/* Rewards with a large offset: a one-pass variance would lose all bits, two passes are exact. */
static void test_rl_advantage__survives_an_offset(void **state)
{
    invar_rl_options options = usual_options();

    (void)state;
    fixture_init(&f, 3, 5);
    memset(f.mask, 1, sizeof f.mask);
    for (int64_t i = 0; i < SAMPLES; i++)
        f.reward[i] = 8192.0f + (float)(i % 2);
    options.rewards_normalization = false;
    options.normalize_advantages = true;
    for (int64_t i = 0; i <= SAMPLES; i++)
        f.start[i] = 2 * i;
    assert_ok(invar_rl_advantages(advantage, NULL, &f.batch, &options));
    for (int64_t t = 0; t < 2 * SAMPLES; t++) // deviation 1/2, unbiased over 24 tokens
        assert_true(fabs((double)advantage[t] - (t / 2 % 2 ? 1 : -1) * sqrt(23.0 / 24.0)) < 1e-6);
}

/* PPO: a branch has the returns that it would have as a sample of its own with the same reward. */
static void test_rl_advantage__branches_are_episodes(void **state)
{
    static float expected[TOKENS];
    static uint8_t branch_start_of[TOKENS];
    int64_t start[2 * SAMPLES + 1] = {0};
    float reward[2 * SAMPLES];
    invar_rl_options options = usual_options();
    invar_rl_batch branches;

    (void)state;
    options.estimator = INVAR_ESTIMATOR_PPO;
    options.gamma = 0.9f;
    options.lambd = 0.8f;
    options.kl.reward_coef = 0.1f;
    fixture_init(&f, 4, 60);
    memset(branch_start_of, 0, sizeof branch_start_of);
    for (int64_t i = 0; i < SAMPLES; i++) { // a response of one token has an empty first half
        start[2 * i + 1] = (f.start[i] + f.start[i + 1]) / 2;
        start[2 * i + 2] = f.start[i + 1];
        reward[2 * i] = reward[2 * i + 1] = f.reward[i];
        branch_start_of[start[2 * i + 1]] = 1;
    }
    branches = f.batch;
    branches.samples = 2 * SAMPLES;
    branches.offsets = start;
    branches.reward = reward;
    assert_ok(invar_rl_advantages(advantage, expected, &branches, &options));
    f.batch.branch_start = branch_start_of;
    assert_ok(invar_rl_advantages(advantage, returns, &f.batch, &options));
    invar_assert_bits_f32(returns, expected, f.tokens, "branches");
    f.batch.branch_start = NULL; // control: a sample as one episode has other returns
    assert_ok(invar_rl_advantages(advantage, returns, &f.batch, &options));
    assert_true(invar_bits_differ(returns, expected, (size_t)f.tokens * sizeof(float)));
}

static void test_rl_advantage__group_filter(void **state)
{
    const float equal[] = {0.3f, 0.3f, 0.3f}, mixed[] = {0.0f, 1.0f, 0.0f};
    const float close[] = {1.0f, 1.0000001f};

    (void)state;
    assert_false(invar_rl_group_keeps(equal, 3));
    assert_true(invar_rl_group_keeps(mixed, 3));
    assert_true(invar_rl_group_keeps(close, 2));
    assert_false(invar_rl_group_keeps(mixed, 1));
    assert_false(invar_rl_group_keeps(mixed, 0));
}

/* ---- estimators ------------------------------------------------------------------------------ */

static void init_small_sample(void)
{
    static const uint8_t mask[] = {1, 0, 1, 0};

    fixture_init(&f, 4, 5);
    f.batch.samples = 1;
    f.start[1] = 4;
    memcpy(f.mask, mask, sizeof mask);
    f.reward[0] = 2.0f;
    for (int t = 0; t < 4; t++)
        f.values[t] = 0.5f;
}

/* REINFORCE++ discounts masked tokens by gamma as well; PPO skips them. */
static void test_rl_advantage__masked_tokens_in_returns(void **state)
{
    invar_rl_options options = usual_options();

    (void)state;
    init_small_sample();
    options.gamma = 0.5f;
    options.lambd = 0.5f;
    options.estimator = INVAR_ESTIMATOR_REINFORCE_PLUS_PLUS;
    assert_ok(invar_rl_advantages(advantage, returns, &f.batch, &options));
    assert_true(returns[0] == 0.5f && returns[1] == 0.0f && returns[2] == 2.0f);
    options.estimator = INVAR_ESTIMATOR_PPO;
    assert_ok(invar_rl_advantages(advantage, returns, &f.batch, &options));
    assert_true(advantage[2] == 1.5f && returns[2] == 2.0f);
    assert_true(advantage[0] == -0.25f + 0.25f * 1.5f && returns[0] == advantage[0] + 0.5f);
    assert_true(advantage[1] == 0.0f && advantage[3] == 0.0f);
}

/* A sample that is masked out has advantages and returns of 0 with every estimator. */
static void test_rl_advantage__removed_sample(void **state)
{
    invar_rl_options options = usual_options();

    (void)state;
    for (int e = INVAR_ESTIMATOR_GRPO; e <= INVAR_ESTIMATOR_ON_POLICY_DISTILLATION; e++) {
        init_small_sample();
        memset(f.mask, 0, sizeof f.mask);
        options.estimator = (invar_estimator)e;
        options.opd_kl_coef = 1.0f;
        assert_ok(invar_rl_advantages(advantage, returns, &f.batch, &options));
        for (int t = 0; t < 4; t++)
            assert_true(advantage[t] == 0.0f && returns[t] == 0.0f);
    }
}

/* ---- rejected input -------------------------------------------------------------------------- */

static void test_rl_advantage__refuses(void **state)
{
    invar_rl_options options = usual_options();
    invar_rl_batch batch;

    (void)state;
    fixture_init(&f, 5, 5);
    f.reward[7] = NAN;
    assert_fails(invar_rl_advantages(advantage, NULL, &f.batch, &options), INVAR_E_STATE,
                 "sample 7: the reward is not finite");
    f.reward[7] = INFINITY;
    assert_fails(invar_rl_advantages(advantage, NULL, &f.batch, &options), INVAR_E_STATE,
                 "sample 7");
    f.reward[7] = 0.0f;
    batch = f.batch;
    batch.values = NULL;
    options.estimator = INVAR_ESTIMATOR_PPO;
    assert_fails(invar_rl_advantages(advantage, NULL, &batch, &options), INVAR_E_INVALID,
                 "critic's values");
    batch.ref_logp = batch.teacher_logp = NULL;
    options.estimator = INVAR_ESTIMATOR_REINFORCE_PLUS_PLUS;
    options.kl.reward_coef = 0.1f;
    assert_fails(invar_rl_advantages(advantage, NULL, &batch, &options), INVAR_E_INVALID,
                 "kl-coef needs reference");
    options.estimator = INVAR_ESTIMATOR_ON_POLICY_DISTILLATION;
    assert_fails(invar_rl_advantages(advantage, NULL, &batch, &options), INVAR_E_INVALID,
                 "teacher");
    assert_fails(invar_rl_advantages(advantage, NULL, &f.batch, &options), INVAR_E_INVALID,
                 "opd-kl-coef 0");
    // a NaN in the teacher's log-probs is detected in the advantage
    options = usual_options();
    options.opd_kl_coef = 1.0f;
    options.normalize_advantages = true; // would spread the NaN to every token
    memset(f.mask, 1, sizeof f.mask);
    f.teacher_logp[f.start[3]] = NAN;
    assert_fails(invar_rl_advantages(advantage, NULL, &f.batch, &options), INVAR_E_STATE,
                 "sample 3, response token 0: the advantage");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rl_advantage__equal_rewards_are_exactly_zero),
        cmocka_unit_test(test_rl_advantage__groups_are_independent),
        cmocka_unit_test(test_rl_advantage__survives_an_offset),
        cmocka_unit_test(test_rl_advantage__branches_are_episodes),
        cmocka_unit_test(test_rl_advantage__group_filter),
        cmocka_unit_test(test_rl_advantage__masked_tokens_in_returns),
        cmocka_unit_test(test_rl_advantage__removed_sample),
        cmocka_unit_test(test_rl_advantage__refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
