/*
 * sample.c - a sampled token depends on its logits and random coordinates only.
 *
 * A row sampled alone gives the token that it has in a batch, at any position, with any number of
 * threads, CPU path and numerics, and with NaN, infinite or huge values in its neighbors and in
 * the padding of the vocabulary. Controls: changing the seed, the purpose or any of the three
 * coordinates changes the tokens, and so does an op whose rows depend on other rows (row_leak.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/row_leak.h"
#include "tests/ops.h"

enum { ROWS = 24 };

typedef struct sample_case {
    invar_sample_args args;
    invar_sample_coords coords[ROWS];
    int32_t tokens[ROWS];
} sample_case;

static const invar_sample_args filters[] = {
    {.temperature = 0.0f, .top_p = 1.0f},
    {.temperature = 1.0f, .top_p = 1.0f},
    {.temperature = 0.8f, .top_k = 20, .top_p = 1.0f},
    {.temperature = 1.2f, .top_p = 0.9f},
    {.temperature = 1.0f, .top_p = 1.0f, .min_p = 0.1f},
    {.temperature = 1.5f, .top_k = 100, .top_p = 0.95f, .min_p = 0.01f},
};
enum { FILTERS = sizeof filters / sizeof *filters };

/* Makes the inputs. invar_test_strided leaves NaN between the rows as padding. */
static sample_case *sample_case_new(const invar_sample_args *filter, int64_t vocabulary)
{
    sample_case *d = malloc(sizeof *d);

    assert_non_null(d);
    d->args = *filter;
    d->args.seed = 42;
    d->args.purpose = 1;
    d->args.coords = d->coords;
    d->args.tokens = invar_tensor_1d(d->tokens, INVAR_DTYPE_I32, ROWS);
    d->args.logits =
        invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, vocabulary), 32);
    invar_test_fill_normal(&d->args.logits, 5, 3.0f);
    for (uint32_t i = 0; i < ROWS; i++)
        d->coords[i] = (invar_sample_coords){100 + i % 5, i / 5, 9};
    return d;
}

static void sample_case_free(sample_case *d)
{
    invar_test_free(&d->args.logits);
    free(d);
}

static bool leaking; /* a row depends on the row before it */

static void run_sample(const invar_sample_args *args, invar_numerics numerics, invar_cpu_path path,
                       int threads)
{
    invar_device dev;

    invar_test_device_init(&dev, numerics, path, threads);
    if (leaking)
        dev.backend =
            row_leak_backend(dev.backend, INVAR_OP_SAMPLE, offsetof(invar_sample_args, logits));
    assert_ok(invar_sample(&dev, args));
    invar_test_device_release(&dev);
}

static void run_plain(const invar_sample_args *args)
{
    run_sample(args, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
}

/* Samples row i alone. */
static int32_t sample_alone(const sample_case *d, int64_t i)
{
    invar_sample_args one = d->args;
    int32_t token = -1;

    one.tokens = invar_tensor_1d(&token, INVAR_DTYPE_I32, 1);
    one.logits = invar_tensor_rows(&d->args.logits, i, 1);
    one.coords = &d->coords[i];
    run_plain(&one);
    return token;
}

/* Returns how many of the rows 0, step, 2 * step, ... have another token if they are alone. */
static int count_other_alone(const invar_sample_args *filter, int64_t vocabulary, int64_t step)
{
    sample_case *d = sample_case_new(filter, vocabulary);
    int n_other = 0;

    run_plain(&d->args);
    for (int64_t row = 0; row < ROWS; row += step)
        n_other += sample_alone(d, row) != d->tokens[row];
    sample_case_free(d);
    return n_other;
}

static void test_sample__row_alone_gives_the_same_token(void **state)
{
    int64_t sizes[] = {50, 1000, 151936};

    (void)state;
    for (int i = 0; i < FILTERS * 3; i++)
        assert_int_equal(count_other_alone(&filters[i / 3], sizes[i % 3],
                                           i % 3 == 2 ? invar_test_count(11, 1) : 1),
                         0);
}

/* Returns how many rows have another token in another order of the rows. */
static int count_other_in_order(const invar_sample_args *filter)
{
    sample_case *d = sample_case_new(filter, 700), *other = sample_case_new(filter, 700);
    int n_other = 0;

    run_plain(&d->args);
    for (int64_t row = 0; row < ROWS; row++) {
        int64_t from = (row * 5 + 3) % ROWS; // a permutation: 24 is coprime to 5
        float *to = (float *)other->args.logits.data + row * other->args.logits.row_stride;
        memcpy(to, (const float *)d->args.logits.data + from * d->args.logits.row_stride,
               700 * sizeof *to);
        other->coords[row] = d->coords[from];
    }
    run_plain(&other->args);
    for (int64_t row = 0; row < ROWS; row++)
        n_other += other->tokens[row] != d->tokens[(row * 5 + 3) % ROWS];
    sample_case_free(d);
    sample_case_free(other);
    return n_other;
}

static void test_sample__order_of_rows_changes_no_row(void **state)
{
    (void)state;
    for (int i = 0; i < FILTERS; i++)
        assert_int_equal(count_other_in_order(&filters[i]), 0);
}

/* Returns whether row 7 has another token if all other rows are `poison`. */
static bool poison_changes_token(const invar_sample_args *filter, float poison)
{
    sample_case *d = sample_case_new(filter, 300);
    int32_t alone = sample_alone(d, 7);
    bool changed;

    for (int64_t row = 0; row < ROWS; row++) {
        invar_tensor logits = invar_tensor_rows(&d->args.logits, row, 1);
        if (row != 7)
            invar_test_fill(&logits, poison);
    }
    run_plain(&d->args);
    changed = d->tokens[7] != alone;
    sample_case_free(d);
    return changed;
}

static const float poison[] = {NAN, INFINITY, -3e38f};

static void test_sample__neighbors_change_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < FILTERS * 3; i++)
        assert_false(poison_changes_token(&filters[i / 3], poison[i % 3]));
}

/* Control: rows that depend on other rows give other tokens, for every filter. */
static void test_sample__control_rows_that_depend_on_others_are_seen(void **state)
{
    (void)state;
    leaking = true;
    for (int i = 0; i < FILTERS; i++) {
        assert_true(count_other_alone(&filters[i], 1000, 1) > 0);
        assert_true(count_other_in_order(&filters[i]) > 0);
        assert_true(poison_changes_token(&filters[i], -3e38f));
    }
    leaking = false;
}

static void test_sample__threads_paths_and_numerics_change_nothing(void **state)
{
    static const int threads[] = {1, 2, 3, 8};

    (void)state;
    for (int i = 0; i < FILTERS; i++) {
        sample_case *d = sample_case_new(&filters[i], 5000);
        int32_t expected[ROWS];

        run_plain(&d->args);
        memcpy(expected, d->tokens, sizeof expected);
        for (int j = 0; j < 4 * 2 * 2; j++) {
            memset(d->tokens, 0xFF, sizeof d->tokens);
            run_sample(&d->args, (invar_numerics)(j % 2), (invar_cpu_path)(j / 2 % 2),
                       threads[j / 4]);
            assert_memory_equal(d->tokens, expected, sizeof expected);
        }
        sample_case_free(d);
    }
}

/* Control: the seed, the purpose and each coordinate change the tokens. */
static void test_sample__every_coordinate_changes_tokens(void **state)
{
    sample_case *d = sample_case_new(&filters[1], 5000);
    int32_t expected[ROWS];

    (void)state;
    run_plain(&d->args);
    memcpy(expected, d->tokens, sizeof expected);
    for (int i = 0; i < 5; i++) {
        sample_case *other = sample_case_new(&filters[1], 5000);
        other->args.seed += i == 0;
        other->args.purpose += i == 1;
        for (int row = 0; row < ROWS; row++) {
            other->coords[row].position += i == 2;
            other->coords[row].sample += i == 3;
            other->coords[row].rollout += i == 4;
        }
        run_plain(&other->args);
        assert_memory_not_equal(other->tokens, expected, sizeof expected);
        sample_case_free(other);
    }
    sample_case_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample__row_alone_gives_the_same_token),
        cmocka_unit_test(test_sample__order_of_rows_changes_no_row),
        cmocka_unit_test(test_sample__neighbors_change_nothing),
        cmocka_unit_test(test_sample__control_rows_that_depend_on_others_are_seen),
        cmocka_unit_test(test_sample__threads_paths_and_numerics_change_nothing),
        cmocka_unit_test(test_sample__every_coordinate_changes_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
