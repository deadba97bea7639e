/*
 * rl_alloc.c - allocations of engine/rl fail one at a time (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/loss.h"
#include "engine/rl/reward/reward.h"
#include "tests/fault/faulty.h"

static invar_status exercise_step(void)
{
    static const int64_t start[] = {0, 2, 3}, group[] = {0, 0};
    static const uint8_t mask[] = {1, 0, 1};
    static const float reward[] = {1, 0}, logp[] = {-1, -2, -3}, rollout[] = {-1, -2, -2.5f};
    invar_rl_batch batch = {.samples = 2,
                            .offsets = start,
                            .group = group,
                            .mask = mask,
                            .reward = reward,
                            .old_logp = logp,
                            .rollout_logp = rollout};
    invar_rl_options options = {.rewards_normalization = true,
                                .normalize_advantages = true,
                                .mis.use = true,
                                .mis.high = 2.0f};
    float advantage[3], dnow[3];
    const invar_loss_metric *metrics;
    invar_loss *loss = NULL;
    invar_status status;
    size_t count;

    INVAR_TRY(invar_rl_advantages(advantage, NULL, &batch, &options));
    status = invar_loss_new(&loss, &batch, &options, advantage, NULL);
    if (status == INVAR_OK)
        status = invar_loss_run(loss, 0, 2, logp, NULL, dnow, NULL);
    if (status == INVAR_OK)
        status = invar_loss_metrics(&metrics, &count, loss);
    invar_loss_free(loss);
    return status;
}

static invar_status exercise_rewards(void)
{
    char response[] = "The answer is red wine, \\boxed{B}. Answer: 5";
    invar_rl_sample sample = {.response = response,
                              .response_bytes = strlen(response),
                              .data.label = "red wine",
                              .data.metadata =
                                  "{\"choices\":[\"beer\",\"red wine\"],"
                                  "\"instruction_id_list\":[\"punctuation:no_comma\"]}"};
    double value;

    for (int i = 0; i < INVAR_REWARD_COUNT; i++) {
        if (invar_reward_is_external((invar_reward)i))
            continue; // external rewards need a server or a model, which this test does not have
        INVAR_TRY(invar_reward_of(&value, (invar_reward)i, false, &sample));
    }
    return INVAR_OK;
}

static void test_rl_alloc__step(void **state)
{
    (void)state;
    fail_each_allocation(exercise_step);
}

static void test_rl_alloc__rewards(void **state)
{
    (void)state;
    fail_each_allocation(exercise_rewards);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rl_alloc__step),
        cmocka_unit_test(test_rl_alloc__rewards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
