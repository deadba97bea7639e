/*
 * train_settings.c - tests of the settings that the training loop reads from a recipe.
 *
 * Given keys, values derived from other keys, and the extra models that a recipe needs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/train_settings.h"

#include "engine/config/config.h"
#include "tests/support.h"
#include "tests/unit/engine/config/config_of.h"

typedef struct key_value {
    const char *key, *value;
} key_value;

static invar_train_settings settings_of(const key_value *pairs, int64_t data, int64_t until)
{
    invar_recipe *recipe = NULL;
    invar_train_settings set;

    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    assert_ok(
        invar_recipe_set(recipe, "rollout-batch-size", "4", "test")); // this key has no default
    for (; pairs->key; pairs++)
        assert_ok(invar_recipe_set(recipe, pairs->key, pairs->value, "test"));
    invar_train_settings_read(&set, config_of(recipe), data, until, false);
    invar_recipe_free(recipe);
    return set;
}

static void test_train_settings__rollouts(void **state)
{
    const key_value epochs[] = {{"num-rollout", "0"}, {"num-epoch", "3"}, {NULL, NULL}};
    const key_value given[] = {{"num-rollout", "9"}, {NULL, NULL}};

    (void)state;
    assert_int_equal(settings_of(epochs, 10, -1).run_schedule.rollouts,
                     7); // 30 prompts: the last incomplete batch is dropped
    assert_int_equal(settings_of(epochs, 0, -1).run_schedule.rollouts,
                     0); // unknown number of prompts
    assert_int_equal(settings_of(given, 10, 5).run_schedule.rollouts, 9);
    assert_int_equal(settings_of(given, 10, 5).run_schedule.until, 5);
}

static void test_train_settings__batches(void **state)
{
    const key_value two[] = {
        {"n-samples-per-prompt", "6"}, {"num-steps-per-rollout", "2"}, {NULL, NULL}};
    const key_value over[] = {{"over-sampling-batch-size", "7"}, {NULL, NULL}};
    invar_train_settings set;

    (void)state;
    set = settings_of(two, 10, -1);
    assert_int_equal(set.steps_per_rollout, 2);
    assert_int_equal(set.global_batch, 12);
    assert_int_equal(set.round, 4);
    assert_int_equal(settings_of(over, 10, -1).round, 7);
}

/*
 * Missing keys get their values from other keys. The critic has its own warm-up and, if set, its
 * own learning rate.
 */
static void test_train_settings__derived_values(void **state)
{
    const key_value plain[] = {
        {"eps-clip", "0.1"}, {"lr", "0.5"}, {"lr-warmup-iters", "3"}, {NULL, NULL}};
    const key_value given[] = {{"eps-clip", "0.1"},
                               {"eps-clip-high", "0.4"},
                               {"lr", "0.5"},
                               {"critic-lr", "0.25"},
                               {"critic-lr-warmup-iters", "2"},
                               {"loss-type", "sft_loss"},
                               {"opd-kl-coef", "0.7"},
                               {NULL, NULL}};
    invar_train_settings set = settings_of(plain, 1, -1);

    (void)state;
    assert_true(set.rl.clip.high == 0.1f);
    assert_true(set.critic_schedule.lr == 0.5 && set.critic_schedule.warmup_steps == 0);
    assert_int_equal(set.schedule.warmup_steps, 3);
    assert_false(set.sft);
    set = settings_of(given, 1, -1);
    assert_true(set.rl.clip.high == 0.4f && set.sft);
    assert_true(set.schedule.lr == 0.5 && set.critic_schedule.lr == 0.25);
    assert_int_equal(set.critic_schedule.warmup_steps, 2);
    assert_true(set.rl.opd_kl_coef == 0.0f); // without a teacher the coefficient is ignored
}

static void test_train_settings__models(void **state)
{
    const struct {
        key_value key_value;
        bool reference, teacher, critic;
    } cases[] = {
        {{NULL, NULL}, false, false, false},
        {{"use-kl-loss", "true"}, true, false, false},
        {{"kl-coef", "0.1"}, true, false, false},
        {{"use-opd", "true"}, false, true, false},
        {{"advantage-estimator", "on_policy_distillation"}, false, true, false},
        {{"advantage-estimator", "ppo"}, false, false, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_recipe *recipe = NULL;

        assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
        if (cases[i].key_value.key)
            assert_ok(
                invar_recipe_set(recipe, cases[i].key_value.key, cases[i].key_value.value, "test"));
        assert_int_equal(invar_train_settings_reference(config_of(recipe)), cases[i].reference);
        assert_int_equal(invar_train_settings_teacher(config_of(recipe)), cases[i].teacher);
        assert_int_equal(invar_train_settings_critic(config_of(recipe)), cases[i].critic);
        invar_recipe_free(recipe);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train_settings__rollouts),
        cmocka_unit_test(test_train_settings__batches),
        cmocka_unit_test(test_train_settings__derived_values),
        cmocka_unit_test(test_train_settings__models),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
