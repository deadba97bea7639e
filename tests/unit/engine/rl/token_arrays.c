/*
 * token_arrays.c - tests of the flat arrays of a rollout, of pass@k and of log-prob differences.
 *
 * Arrays are compared with literals, pass@k with a count over all subsets of samples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "engine/rl/token_arrays.h"
#include "tests/support.h"

enum { SAMPLES = 4 };

typedef struct samples_fixture {
    float logp[SAMPLES][3];
    uint8_t mask[SAMPLES][3];
    invar_rl_sample items[SAMPLES];
    invar_rl_samples list;
} samples_fixture;

/* Responses of 2, 1, 3 and 2 tokens in groups of two. */
static void make_samples(samples_fixture *s)
{
    static const int64_t response[SAMPLES] = {2, 1, 3, 2};

    memset(s, 0, sizeof *s);
    for (int i = 0; i < SAMPLES; i++) {
        for (int j = 0; j < 3; j++) {
            s->logp[i][j] = (float)-(10 * i + j + 1);
            s->mask[i][j] = 1;
        }
        s->items[i] = (invar_rl_sample){.group = 5 + i / 2,
                                        .prompt_tokens = 4,
                                        .n_tokens = 4 + response[i],
                                        .logp = s->logp[i],
                                        .mask = s->mask[i],
                                        .reward = 0.25 * i};
    }
    s->list = (invar_rl_samples){s->items, SAMPLES, SAMPLES};
}

static void test_token_arrays__arrays(void **state)
{
    const int64_t start[] = {0, 2, 3, 6, 8}, group[] = {5, 5, 6, 6};
    const float logp[] = {-1, -2, -11, -21, -22, -23, -31, -32};
    const uint8_t mask[] = {1, 1, 0, 1, 0, 1, 1, 1}, sampled[] = {1, 1, 1, 1, 0, 1, 1, 1};
    invar_token_arrays f;
    samples_fixture s;

    (void)state;
    make_samples(&s);
    s.items[1].is_masked_out = true;
    s.mask[2][1] = 0;
    s.items[3].mask = NULL; // no mask: all tokens count
    assert_ok(invar_token_arrays_make(&f, &s.list, &(invar_token_array_flags){.critic = true}));
    assert_int_equal(f.samples, SAMPLES);
    assert_int_equal(f.tokens, 8);
    assert_memory_equal(f.offsets, start, sizeof start);
    assert_memory_equal(f.group, group, sizeof group);
    assert_memory_equal(f.mask, mask, sizeof mask);
    assert_memory_equal(f.sampled_mask, sampled, sizeof sampled);
    assert_memory_equal(f.rollout_logp, logp, sizeof logp);
    assert_true(f.reward[3] == 0.75f);
    assert_true(f.values && f.returns && f.train_values);
    assert_true(!f.ref_logp && !f.teacher_logp);
    invar_token_arrays_release(&f);
    assert_null(f.memory);
    s.items[0].logp = NULL; // a response that was not sampled
    assert_ok(invar_token_arrays_make(&f, &s.list, &(invar_token_array_flags){.reference = true}));
    assert_true(f.rollout_logp[0] == 0.0f && f.rollout_logp[2] == -11.0f);
    assert_true(f.ref_logp && !f.values && !f.returns);
    invar_token_arrays_release(&f);
}

static void test_token_arrays__a_step_is_a_view(void **state)
{
    int64_t start[3], offsets[5];
    invar_rl_batch b;
    invar_token_arrays f;
    samples_fixture s;

    (void)state;
    make_samples(&s);
    assert_ok(invar_token_arrays_make(&f, &s.list, &(invar_token_array_flags){.reference = true}));
    invar_token_arrays_starts(start, &f, 1, 2);
    b = invar_token_arrays_batch(&f, 1, 2, start);
    invar_token_arrays_starts(offsets, &f, 0, 4); // another view does not change the first one
    (void)invar_token_arrays_batch(&f, 0, 4, offsets);
    assert_int_equal(b.samples, 2);
    assert_memory_equal(b.offsets, ((int64_t[]){0, 1, 4}), 3 * sizeof(int64_t));
    assert_int_equal(b.group[1], 6);
    assert_ptr_equal(b.rollout_logp, f.rollout_logp + 2);
    assert_ptr_equal(b.old_logp, f.score_logp + 2);
    assert_ptr_equal(b.ref_logp, f.ref_logp + 2);
    assert_ptr_equal(b.mask, f.mask + 2);
    assert_ptr_equal(b.reward, f.reward + 1);
    assert_null(b.teacher_logp);
    assert_null(b.values);
    invar_token_arrays_release(&f);
}

/* ---- pass@k ---------------------------------------------------------------------------------- */

/* Returns the fraction of all subsets of k of n samples that contain a correct sample. */
static double count_pass_at(int n, int correct, int k)
{
    int64_t n_hits = 0, n_subsets = 0;

    for (unsigned set = 0; set < 1u << n; set++) {
        int size = 0;
        for (int i = 0; i < n; i++)
            size += (int)(set >> i & 1);
        if (size != k)
            continue;
        n_subsets++;
        n_hits += (set & ((1u << correct) - 1)) != 0;
    }
    return (double)n_hits / (double)n_subsets;
}

static void test_token_arrays__pass_at_k_counts_subsets(void **state)
{
    int64_t group[12] = {0};
    float reward[12];
    invar_token_arrays f = {.group = group, .reward = reward};

    (void)state;
    for (int n = 1; n <= 6; n++)
        for (int a = 0; a <= n; a++)
            for (int k = 1; k <= n; k++) {
                // one group with `a` correct samples, one without any; a reward of 0.99 is not
                // correct
                for (int i = 0; i < n; i++) {
                    group[i] = 3;
                    group[n + i] = 4;
                    reward[i] = i < a ? 1.0f : 0.99f;
                    reward[n + i] = 0.0f;
                }
                f.samples = n;
                assert_true(fabs(invar_token_arrays_pass_at(&f, k) - count_pass_at(n, a, k)) <
                            1e-12);
                f.samples = 2 * n;
                assert_true(fabs(invar_token_arrays_pass_at(&f, k) - count_pass_at(n, a, k) / 2) <
                            1e-12);
            }
    // a group smaller than k counts with all its samples
    f.samples = 2;
    group[0] = group[1] = 1;
    reward[0] = reward[1] = 0.0f;
    assert_true(invar_token_arrays_pass_at(&f, 8) == 0.0);
    reward[1] = 1.0f;
    assert_true(invar_token_arrays_pass_at(&f, 8) == 1.0);
    f.samples = 0;
    assert_true(invar_token_arrays_pass_at(&f, 1) == 0.0);
}

/* ---- differences ----------------------------------------------------------------------------- */

static void test_token_arrays__finds_the_worst_token(void **state)
{
    float a[8] = {-1, -2, -3, -4, -5, -6, -7, -8}, b[8];
    invar_logp_diff diff;
    invar_token_arrays f;
    samples_fixture s;

    (void)state;
    make_samples(&s);
    assert_ok(invar_token_arrays_make(&f, &s.list, &(invar_token_array_flags){0}));
    memcpy(b, a, sizeof b);
    assert_ok(invar_token_arrays_logp_diff(&diff, &f, 0, SAMPLES, a, b));
    assert_true(diff.max == 0.0f && diff.p50 == 0.0f && diff.p99 == 0.0f);
    assert_true(diff.differ == 0 && diff.sample == -1 && diff.position == -1);
    b[4] -= 0.5f;
    b[7] += 0.25f;
    assert_ok(invar_token_arrays_logp_diff(&diff, &f, 0, SAMPLES, a, b));
    assert_true(diff.max == 0.5f && diff.p50 == 0.0f && diff.p99 == 0.5f);
    assert_true(diff.differ == 2 && diff.sample == 2 && diff.position == 1);
    diff = invar_token_arrays_max_logp_diff(&f, 3, 1, a, b);
    assert_true(diff.max == 0.25f && diff.sample == 0 && diff.position == 1);
    assert_ok(invar_token_arrays_logp_diff(&diff, &f, 0, 2, a, b)); // samples 0 and 1 only
    assert_int_equal(diff.differ, 0);
    for (int i = 0; i < 8; i++)
        b[i] = a[i] - (float)(i + 1);
    assert_ok(invar_token_arrays_logp_diff(&diff, &f, 0, SAMPLES, a, b));
    assert_true(diff.p50 == 4.0f && diff.p99 == 8.0f && diff.differ == 8);
    // NaN is a difference, and so is -0 against 0, at distance 0
    memcpy(b, a, sizeof b);
    b[2] = NAN;
    b[5] += 1000.0f;
    assert_ok(invar_token_arrays_logp_diff(&diff, &f, 0, SAMPLES, a, b));
    assert_true(diff.sample == 1 && diff.position == 0 && diff.max > 1e30f);
    memcpy(b, a, sizeof b);
    a[1] = 0.0f;
    b[1] = -0.0f;
    assert_ok(invar_token_arrays_logp_diff(&diff, &f, 0, SAMPLES, a, b));
    assert_true(diff.differ == 1 && diff.max == 0.0f);
    invar_token_arrays_release(&f);
}

static void test_token_arrays__inserted_tokens_are_not_compared(void **state)
{
    float a[8] = {-1, -2, -3, -4, -5, -6, -7, -8}, b[8];
    invar_logp_diff diff;
    invar_token_arrays f;
    samples_fixture s;

    (void)state;
    make_samples(&s);
    s.mask[2][1] = 0; // inserted: token 4
    assert_ok(invar_token_arrays_make(&f, &s.list, &(invar_token_array_flags){0}));
    memcpy(b, a, sizeof b);
    b[4] = 0.0f;
    assert_ok(invar_token_arrays_logp_diff(&diff, &f, 0, SAMPLES, a, b));
    assert_true(diff.differ == 0 && diff.max == 0.0f && diff.sample == -1);
    for (int i = 0; i < 8; i++)
        b[i] = i == 4 ? 0.0f : a[i] - (float)(i + 1); // 1, 2, 3, 4, 6, 7, 8
    assert_ok(invar_token_arrays_logp_diff(&diff, &f, 0, SAMPLES, a, b));
    assert_true(diff.differ == 7 && diff.max == 8.0f && diff.p50 == 4.0f && diff.p99 == 8.0f);
    // the next token is compared
    memcpy(b, a, sizeof b);
    b[5] += 0.5f;
    diff = invar_token_arrays_max_logp_diff(&f, 0, SAMPLES, a, b);
    assert_true(diff.differ == 1 && diff.sample == 2 && diff.position == 2);
    invar_token_arrays_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_arrays__arrays),
        cmocka_unit_test(test_token_arrays__a_step_is_a_view),
        cmocka_unit_test(test_token_arrays__pass_at_k_counts_subsets),
        cmocka_unit_test(test_token_arrays__finds_the_worst_token),
        cmocka_unit_test(test_token_arrays__inserted_tokens_are_not_compared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
