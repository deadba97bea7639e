/*
 * reward_parts.c - tests of named reward parts: equality, means, and the selection by reward-key.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/reward_parts.h"

#include <string.h>

#include "engine/rl/reward/reward.h"
#include "tests/support.h"

static void add_part(invar_rl_sample *sample, const char *name, double value)
{
    assert_ok(invar_reward_parts_add(&sample->parts, name, strlen(name), value, "test"));
}

static void test_reward_parts__order_does_not_matter(void **state)
{
    invar_rl_sample a = {0}, b = {0};

    (void)state;
    add_part(&a, "x", 1);
    add_part(&a, "m", 2);
    add_part(&a, "a", 3);
    add_part(&b, "a", 3);
    add_part(&b, "x", 1);
    assert_false(invar_reward_parts_equal(&a.parts, &b.parts));
    add_part(&b, "m", 2);
    assert_true(invar_reward_parts_equal(&a.parts, &b.parts));
    b.parts.items[1].value = -2;
    assert_false(invar_reward_parts_equal(&a.parts, &b.parts));
    assert_fails(invar_reward_parts_add(&a.parts, "m", 1, 0, "test"), INVAR_E_CORRUPT,
                 "test: a reward has two parts \"m\"");
    invar_rl_sample_release(&a);
    invar_rl_sample_release(&b);
    assert_int_equal(a.parts.count, 0);
}

/* The mean of a part is over the samples that have it. */
static void test_reward_parts__means(void **state)
{
    invar_rl_sample samples[3] = {{0}};
    invar_reward_parts means = {NULL, 0};

    (void)state;
    assert_ok(invar_reward_parts_mean(&means, samples, 3));
    assert_int_equal(means.count, 0);
    add_part(&samples[0], "format", 1);
    add_part(&samples[2], "format", 0.5);
    add_part(&samples[2], "brevity", -4);
    assert_ok(invar_reward_parts_mean(&means, samples, 3));
    assert_int_equal(means.count, 2);
    assert_string_equal(means.items[0].name, "brevity");
    assert_true(means.items[0].value == -4 && means.items[1].value == 0.75);
    invar_reward_parts_release(&means);
    for (int i = 0; i < 3; i++)
        invar_rl_sample_release(&samples[i]);
}

/* The reward dapo has parts only if reward-key selects one of them. */
static void test_reward_parts__reward_key(void **state)
{
    char text[] = "Answer: 72", wrong[] = "Answer: 7";
    invar_rl_sample s = {.index = 5, .data.label = "72", .data.metadata = "{}", .response = text};

    (void)state;
    s.response_bytes = strlen(text);
    assert_ok(invar_reward_compute(&s, INVAR_REWARD_DAPO, false, NULL));
    assert_true(s.reward == 1 && s.parts.count == 0);
    assert_ok(invar_reward_compute(&s, INVAR_REWARD_DAPO, false, "acc"));
    assert_true(s.reward == 1 && s.parts.count == 2);
    s.response = wrong;
    s.response_bytes = strlen(wrong);
    assert_ok(invar_reward_compute(&s, INVAR_REWARD_DAPO, false, "acc"));
    assert_true(s.reward == 0);
    assert_ok(invar_reward_compute(&s, INVAR_REWARD_DAPO, false, "score"));
    assert_true(s.reward == -1);
    assert_fails(invar_reward_compute(&s, INVAR_REWARD_DAPO, false, "pred"), INVAR_E_INVALID,
                 "reward-key = pred: the reward of sample 5 has no such part");
    assert_fails(invar_reward_compute(&s, INVAR_REWARD_EXACT, false, "acc"), INVAR_E_INVALID,
                 "has no such part");
    s.response = NULL;
    invar_rl_sample_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reward_parts__order_does_not_matter),
        cmocka_unit_test(test_reward_parts__means),
        cmocka_unit_test(test_reward_parts__reward_key),
    };

    return cmocka_run_group_tests_name("rl.parts", tests, NULL, NULL);
}
