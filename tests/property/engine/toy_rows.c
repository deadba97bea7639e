/*
 * toy_rows.c - a new estimator or reward needs one function and one table row.
 *
 * tests/example_extension adds an estimator and a reward; no product code knows them. Recipes can
 * choose them, config rules and messages apply to them, and they compute the expected values.
 * Control: the same functions with other traits give other results in each of these.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/config/config.h"
#include "engine/rl/estimator.h"
#include "engine/rl/reward/reward.h"
#include "tests/support.h"
#include "tests/unit/engine/config/config_of.h"

static invar_recipe *recipe_of(const char *estimator, const char *const (*flags)[2], size_t count)
{
    static const char *const plain[][2] = {
        {"num-layers", "1"},          {"hidden-size", "32"}, {"ffn-hidden-size", "32"},
        {"num-attention-heads", "2"}, {"numerics", "ieee"},  {"prompt-data", "task:copy"},
        {"rollout-batch-size", "2"},  {"num-rollout", "1"},  {"rollout-max-response-len", "8"},
        {"rm-type", "boxed_toy"}};
    invar_recipe *recipe;

    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        assert_ok(invar_recipe_set(recipe, plain[i][0], plain[i][1], plain[i][0]));
    assert_ok(invar_recipe_set(recipe, "advantage-estimator", estimator, "test"));
    for (size_t i = 0; i < count; i++)
        assert_ok(invar_recipe_set(recipe, flags[i][0], flags[i][1], flags[i][0]));
    return recipe;
}

static void test_toy_rows__recipes_choose_them(void **state)
{
    static const char *const valid[][2] = {{"n-samples-per-prompt", "2"}, {"gamma", "0.5"}};
    static const char *const single_sample[][2] = {{"n-samples-per-prompt", "1"}};
    static const char *const unscaled[][2] = {{"n-samples-per-prompt", "2"},
                                              {"disable-grpo-std-normalization", "true"}};
    invar_recipe *recipe = recipe_of("toy", valid, 2);

    (void)state;
    assert_ok(invar_config_check(config_of(recipe)));
    assert_int_equal(config_of(recipe)->advantage_estimator, INVAR_ESTIMATOR_TOY);
    invar_recipe_free(recipe);
    recipe = recipe_of("toy", single_sample, 1); // the estimator compares samples within a group
    assert_fails(invar_config_check(config_of(recipe)), INVAR_E_INVALID,
                 "the mean of its own group");
    invar_recipe_free(recipe);
    recipe = recipe_of("toy", unscaled, 2); // the estimator does not divide by a standard deviation
    assert_fails(invar_config_check(config_of(recipe)), INVAR_E_INVALID,
                 "advantage-estimator = grpo, gspo or toy_wrong");
    invar_recipe_free(recipe);
}

static void test_toy_rows__messages_list_them(void **state)
{
    static const char *const unused_key[][2] = {{"n-samples-per-prompt", "2"}, {"lambd", "0.5"}};
    invar_recipe *recipe = recipe_of("toy", unused_key, 2);
    invar_reward reward;
    bool boxed;

    (void)state;
    assert_fails(invar_config_check(config_of(recipe)), INVAR_E_INVALID,
                 "advantage-estimator = ppo");
    invar_recipe_free(recipe);
    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    assert_fails(invar_recipe_set(recipe, "advantage-estimator", "tpo", "--x"), INVAR_E_INVALID,
                 "on_policy_distillation|toy|toy_wrong");
    invar_recipe_free(recipe);
    assert_fails(invar_reward_parse(&reward, &boxed, "tpo"), INVAR_E_INVALID,
                 "math_verify, toy or toy_wrong");
}

/* Computes the advantages of a group of two samples with rewards 3 and 1. */
static void compute_advantages(float advantage[5], invar_estimator estimator)
{
    static const int64_t start[] = {0, 3, 5}, group[] = {0, 0};
    static const uint8_t mask[] = {1, 0, 1, 1, 1};
    static const float reward[] = {3.0f, 1.0f};
    const invar_rl_batch batch = {
        .samples = 2, .offsets = start, .group = group, .mask = mask, .reward = reward};
    const invar_rl_options options = {.estimator = estimator,
                                      .rewards_normalization = true,
                                      .std_normalization = true,
                                      .gamma = 0.5f};

    assert_ok(invar_rl_advantages(advantage, NULL, &batch, &options));
}

static void test_toy_rows__compute(void **state)
{
    static const float expected[] = {1.0f, 0.0f, 0.5f, -1.0f, -0.5f};
    const invar_rl_sample sample = {.response = "so \\boxed{abc}",
                                    .response_bytes = 14,
                                    .data.label = "123",
                                    .data.metadata = "{}"};
    float advantage[5];
    double value = 0;

    (void)state;
    compute_advantages(advantage, INVAR_ESTIMATOR_TOY);
    assert_memory_equal(advantage, expected, sizeof expected);
    assert_ok(invar_reward_of(&value, INVAR_REWARD_TOY, true, &sample));
    assert_true(value == 1.0);
    assert_ok(invar_reward_of(&value, INVAR_REWARD_TOY, false, &sample));
    assert_true(value == 0.0);
    assert_true(invar_reward_needs_label(INVAR_REWARD_TOY));
}

/* Control: one other trait changes each result above. */
static void test_toy_rows__other_traits_change_results(void **state)
{
    static const char *const single_sample[][2] = {{"n-samples-per-prompt", "1"}};
    static const char *const unscaled[][2] = {{"n-samples-per-prompt", "2"},
                                              {"disable-grpo-std-normalization", "true"}};
    static const char *const discounted[][2] = {{"n-samples-per-prompt", "2"}, {"gamma", "0.5"}};
    static const float expected[] = {3.0f, 0.0f, 1.5f, 1.0f, 0.5f};
    invar_recipe *recipe = recipe_of("toy_wrong", single_sample, 1);
    float advantage[5];

    (void)state;
    assert_ok(invar_config_check(config_of(recipe)));
    invar_recipe_free(recipe);
    recipe = recipe_of("toy_wrong", unscaled, 2);
    assert_ok(invar_config_check(config_of(recipe)));
    invar_recipe_free(recipe);
    recipe = recipe_of("toy_wrong", discounted, 2);
    assert_fails(invar_config_check(config_of(recipe)), INVAR_E_INVALID,
                 "reinforce_plus_plus, ppo or toy");
    invar_recipe_free(recipe);
    compute_advantages(advantage, INVAR_ESTIMATOR_TOY_WRONG);
    assert_memory_equal(advantage, expected, sizeof expected);
    assert_false(invar_reward_needs_label(INVAR_REWARD_TOY_WRONG));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_toy_rows__recipes_choose_them),
        cmocka_unit_test(test_toy_rows__messages_list_them),
        cmocka_unit_test(test_toy_rows__compute),
        cmocka_unit_test(test_toy_rows__other_traits_change_results),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
