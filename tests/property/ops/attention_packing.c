/*
 * attention_packing.c - a sample's results do not depend on the samples it is packed with.
 *
 * Each sample is run alone, then at every position of a pack, in micro-batches, and next to
 * samples of NaN, infinite and huge values; forward and backward must have the same bits. Poison
 * inside a sample must not reach rows that mask it. Control: key blocks counted from the start of
 * the pack instead of the sample change bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "tests/unit/kernels-deterministic/cpu/attention_expression.h"

static const attention_form forms[] = {
    {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 4, 2, 32, {0.0f, 0, 0, 0}},
    {INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, 2, 1, 16, {0.0f, 90, 128, 128}},
    {INVAR_NUMERICS_IEEE, INVAR_DTYPE_BF16, 3, 1, 40, {0.0f, 0, 128, 128}},
    {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 7, 1, 64, {0.0f, 17, 0, 0}},
};

#define FORMS ((int64_t)(sizeof forms / sizeof *forms))
#define SAMPLES 6

static const int64_t lengths[SAMPLES] = {129, 1, 64, 200, 17, 128};

/* Runs each sample alone. */
static void run_alone(attention_pack *alone, const attention_form *form, const invar_device *dev)
{
    for (int64_t i = 0; i < SAMPLES; i++) {
        alone[i] = attention_sample(form, lengths[i], (uint64_t)i);
        attention_run(dev, &alone[i]);
    }
}

/* Packs `count` samples, order[n] at position n, and compares each with its own run. */
static void check_pack(const attention_pack *alone, const invar_device *dev, const int64_t *order,
                       int64_t count, const char *what)
{
    int64_t packed[SAMPLES];
    attention_pack p;

    for (int64_t n = 0; n < count; n++)
        packed[n] = lengths[order[n]];
    p = attention_pack_new(&alone[0].form, count, packed);
    for (int64_t n = 0; n < count; n++)
        attention_fill(&p, n, (uint64_t)order[n]);
    attention_run(dev, &p);
    for (int64_t n = 0; n < count; n++) {
        assert_forward_bits(&p, n, &alone[order[n]], 0, lengths[order[n]], what);
        assert_backward_bits(&p, n, &alone[order[n]], 0, what);
    }
    attention_pack_free(&p);
}

static void free_all(attention_pack *alone)
{
    for (int64_t i = 0; i < SAMPLES; i++)
        attention_pack_free(&alone[i]);
}

/*
 * Rotations put every sample at every position; consecutive slices of the order are micro-batches.
 */
static void test_attention_packing__bits_invariant_to_position_and_micro_batch(void **state)
{
    (void)state;
    for (int64_t f = 0; f < FORMS; f++) {
        attention_pack alone[SAMPLES];
        invar_device dev;
        char what[64];

        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 2);
        run_alone(alone, &forms[f], &dev);
        for (int64_t rotation = 0; rotation < SAMPLES; rotation += invar_test_count(3, 1)) {
            int64_t order[SAMPLES];

            for (int64_t n = 0; n < SAMPLES; n++)
                order[n] = (n + rotation) % SAMPLES;
            snprintf(what, sizeof what, "form %" PRId64 ", turn %" PRId64, f, rotation);
            check_pack(alone, &dev, order, SAMPLES, what);
        }
        for (int64_t size = 2; size < SAMPLES; size += invar_test_count(3, 1)) {
            static const int64_t order[SAMPLES] = {0, 1, 2, 3, 4, 5};

            snprintf(what, sizeof what, "form %" PRId64 ", micro-batches of %" PRId64, f, size);
            for (int64_t n = 0; n < SAMPLES; n += size)
                check_pack(alone, &dev, order + n, SAMPLES - n < size ? SAMPLES - n : size, what);
        }
        free_all(alone);
        invar_test_device_release(&dev);
    }
}

/*
 * Poisoned samples come before, between and after the others. They are short, since special values
 * take the slow step.
 */
static void test_attention_packing__bits_invariant_to_neighbors(void **state)
{
    const float poisons[] = {NAN, 3e38f, INFINITY, -INFINITY, -3e38f};
    static const int64_t packed[] = {7, 129, 21, 64, 2, 200, 17};

    (void)state;
    for (int64_t n = 0; n < FORMS * invar_test_count(2, 5); n++) {
        attention_pack clean = attention_pack_new(&forms[n % FORMS], 7, packed);
        attention_pack poisoned = attention_pack_new(&forms[n % FORMS], 7, packed);
        invar_device dev;

        for (int64_t i = 0; i < 7; i++) {
            attention_fill(&clean, i, (uint64_t)i);
            if (i % 2 == 0)
                attention_fill_constant(&poisoned, i, poisons[n / FORMS]);
            else
                attention_fill(&poisoned, i, (uint64_t)i);
        }
        invar_test_device_init(&dev, clean.form.numerics, INVAR_CPU_PATH_SIMD, 2);
        attention_run(&dev, &clean);
        attention_run(&dev, &poisoned);
        for (int64_t i = 1; i < 7; i += 2) {
            assert_forward_bits(&poisoned, i, &clean, i, packed[i], "beside poison");
            assert_backward_bits(&poisoned, i, &clean, i, "beside poison");
        }
        invar_test_device_release(&dev);
        attention_pack_free(&clean);
        attention_pack_free(&poisoned);
    }
}

/* Control: blocks shifted against the start of the sample give other bits. */
static void test_attention_packing__shifted_blocks_are_caught(void **state)
{
    (void)state;
    for (int64_t f = 0; f < FORMS; f++) {
        attention_pack right = attention_sample(&forms[f], 200, 3);
        attention_pack wrong = attention_sample(&forms[f], 200, 3);
        invar_device dev;

        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 1);
        attention_forward(&dev, &right);
        expression_forward(&wrong, 0, TWIST_BLOCKS_SHIFTED);
        assert_true(invar_tensors_differ(&right.o, &wrong.o) ||
                    invar_tensors_differ(&right.lse2, &wrong.lse2));
        invar_test_device_release(&dev);
        attention_pack_free(&right);
        attention_pack_free(&wrong);
    }
}

/* ---- poison inside a sample ------------------------------------------------------------------ */

#define LENGTH 150

static const attention_form poison_forms[] = {
    {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 2, 1, 16, {0.0f, 0, 0, 0}},
    {INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, 2, 1, 8, {0.0f, 20, 0, 0}},
    {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 1, 1, 16, {0.0f, 11, 128, 128}},
    {INVAR_NUMERICS_IEEE, INVAR_DTYPE_BF16, 3, 1, 16, {0.0f, 0, 128, 128}},
};

#define POISON_FORMS ((int64_t)(sizeof poison_forms / sizeof *poison_forms))

static void poison_rows(const invar_tensor *t, int64_t begin, int64_t end, float value)
{
    invar_tensor rows = invar_tensor_rows(t, begin, end - begin);

    invar_test_fill(&rows, value);
}

static void assert_rows(const invar_tensor *got, const invar_tensor *expected, int64_t begin,
                        int64_t end, const char *what)
{
    invar_tensor a = invar_tensor_rows(got, begin, end - begin);
    invar_tensor b = invar_tensor_rows(expected, begin, end - begin);

    invar_assert_bits_tensor(&a, &b, what);
}

/* Poisons keys and values from `cut` on, which rows before it do not see. */
static void check_future(const attention_pack *clean, const invar_device *dev, int64_t cut,
                         float value)
{
    attention_pack p = attention_sample(&clean->form, LENGTH, 9);

    poison_rows(&p.k, cut, LENGTH, value);
    poison_rows(&p.v, cut, LENGTH, value);
    attention_run(dev, &p);
    assert_rows(&p.o, &clean->o, 0, cut, "o before poisoned keys");
    assert_rows(&p.lse2, &clean->lse2, 0, cut, "lse2 before poisoned keys");
    assert_rows(&p.dq, &clean->dq, 0, cut, "dq before poisoned keys");
    if (isnan(value))
        assert_true(!!isnan(invar_test_get(&p.o, cut, 0))); // a visible key is not skipped
    attention_pack_free(&p);
}

/* Poisons queries and their gradients before `cut`, which do not see keys from `cut` on. */
static void check_past_queries(const attention_pack *clean, const invar_device *dev, int64_t cut,
                               float value)
{
    attention_pack p = attention_sample(&clean->form, LENGTH, 9);

    poison_rows(&p.q, 0, cut, value);
    poison_rows(&p.d_o, 0, cut, value);
    attention_run(dev, &p);
    assert_rows(&p.dk, &clean->dk, cut, LENGTH, "dk after poisoned queries");
    assert_rows(&p.dv, &clean->dv, cut, LENGTH, "dv after poisoned queries");
    assert_rows(&p.dq, &clean->dq, cut, LENGTH, "dq after poisoned queries");
    attention_pack_free(&p);
}

/*
 * Poisons all tensors in the rows before `cut`: with a window, rows far enough after it do not see
 * them.
 */
static void check_past(const attention_pack *clean, const invar_device *dev, int64_t cut,
                       float value)
{
    attention_pack p = attention_sample(&clean->form, LENGTH, 9);
    int64_t first_clear = cut + clean->form.shape.window - 1; // at most LENGTH

    poison_rows(&p.q, 0, cut, value);
    poison_rows(&p.k, 0, cut, value);
    poison_rows(&p.v, 0, cut, value);
    poison_rows(&p.d_o, 0, cut, value);
    attention_run(dev, &p);
    assert_rows(&p.o, &clean->o, first_clear, LENGTH, "o behind the window");
    assert_rows(&p.lse2, &clean->lse2, first_clear, LENGTH, "lse2 behind the window");
    assert_rows(&p.dq, &clean->dq, first_clear, LENGTH, "dq behind the window");
    assert_rows(&p.dk, &clean->dk, first_clear, LENGTH, "dk behind the window");
    assert_rows(&p.dv, &clean->dv, first_clear, LENGTH, "dv behind the window");
    attention_pack_free(&p);
}

static void test_attention_packing__masked_poison_changes_nothing(void **state)
{
    const float poisons[] = {NAN, INFINITY, 3e38f};
    static const int64_t cuts[] = {1, 16, 37, 100, 127, 128, 131};

    (void)state;
    for (int64_t f = 0; f < POISON_FORMS; f++) {
        attention_pack clean = attention_sample(&poison_forms[f], LENGTH, 9);
        invar_device dev;

        invar_test_device_init(&dev, poison_forms[f].numerics, INVAR_CPU_PATH_SIMD, 2);
        attention_run(&dev, &clean);
        for (int64_t n = 0; n < 21; n += invar_test_count(5, 1)) {
            int64_t cut = cuts[n % 7];
            float value = poisons[n % 3];

            check_future(&clean, &dev, cut, value);
            check_past_queries(&clean, &dev, cut, value);
            if (poison_forms[f].shape.window > 0)
                check_past(&clean, &dev, cut, value);
        }
        attention_pack_free(&clean);
        invar_test_device_release(&dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_packing__bits_invariant_to_position_and_micro_batch),
        cmocka_unit_test(test_attention_packing__bits_invariant_to_neighbors),
        cmocka_unit_test(test_attention_packing__shifted_blocks_are_caught),
        cmocka_unit_test(test_attention_packing__masked_poison_changes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
