/*
 * unit_sum.c - tests of the sum of unit gradients over ranks: in order of units, bit for bit.
 *
 * Ranks are threads; the expected sum is a loop over the units. Controls: descending order and
 * sums per rank, as a reduction would make them, have other bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "engine/train/unit_sum.h"
#include "tests/model.h"
#include "tests/ranks.h"

enum { UNITS = 11 };
#define SECONDS 60

/* Input of all ranks. */
typedef struct sum_case {
    const invar_device *dev;
    const invar_model *model;
    size_t bytes, bucket;  /* bytes of all gradients, and of a bucket */
    const float *expected; /* (bytes / 4) sum over all units */
} sum_case;

/* Returns an element of a unit's gradient; magnitudes vary, so that most sums show their order. */
static float gradient_element(int64_t unit, size_t i)
{
    float scale = (float)(1 << invar_test_random(100 + (uint64_t)unit, i) % 12);

    return invar_test_normal((uint64_t)unit, i, scale);
}

static size_t elements(const sum_case *s)
{
    return s->bytes / sizeof(float);
}

/* ---- sums of one rank ------------------------------------------------------------------------ */

static float *new_sum(const sum_case *s)
{
    float *sum = calloc(elements(s), sizeof *sum);

    assert_non_null(sum);
    return sum;
}

static void add_unit(float *sum, const sum_case *s, int64_t unit)
{
    for (size_t i = 0; i < elements(s); i++)
        sum[i] += gradient_element(unit, i);
}

static float *sum_ascending(const sum_case *s)
{
    float *sum = new_sum(s);

    for (int64_t u = 0; u < UNITS; u++)
        add_unit(sum, s, u);
    return sum;
}

static float *sum_descending(const sum_case *s)
{
    float *sum = new_sum(s);

    for (int64_t u = UNITS - 1; u >= 0; u--)
        add_unit(sum, s, u);
    return sum;
}

/* Sums like a reduction: each rank adds its units, then the sums of the ranks are added. */
static float *sum_by_rank(const sum_case *s, int size)
{
    float *sum = new_sum(s);

    for (int r = 0; r < size; r++) {
        float *rank_sum = new_sum(s);
        for (int64_t u = r; u < UNITS; u += size)
            add_unit(rank_sum, s, u);
        for (size_t i = 0; i < elements(s); i++)
            sum[i] += rank_sum[i];
        free(rank_sum);
    }
    return sum;
}

/* ---- sums of several ranks ------------------------------------------------------------------- */

static invar_status add_all(const sum_case *s, const invar_layout *layout, const invar_model *model,
                            invar_grads *grads)
{
    const invar_layout_axis *data = &layout->data;
    invar_unit_sum *sum = NULL;
    invar_zero_ranges ranges;
    invar_status status = invar_zero_ranges_grads(&ranges, model, 0);

    if (status == INVAR_OK)
        status = invar_unit_sum_new(&sum, s->dev, layout, &ranges);
    invar_zero_ranges_release(&ranges);
    for (int64_t first = 0; first < UNITS && status == INVAR_OK; first += data->size) {
        int64_t n_left = UNITS - first;
        for (size_t i = 0; i < elements(s) && data->rank < n_left; i++)
            ((float *)grads->memory)[i] = gradient_element(first + data->rank, i);
        status = invar_unit_sum_add(sum, grads->memory,
                                    (int)(n_left < data->size ? n_left : data->size));
    }
    if (status == INVAR_OK)
        status = invar_unit_sum_end(sum, grads->memory);
    invar_unit_sum_free(sum);
    return status;
}

/* Compares the rank's zero range; other rows still have the gradient of a unit. */
static invar_status compare_range(const sum_case *s, const invar_model *model,
                                  const invar_grads *grads)
{
    int rank = model->layout->data.rank;
    invar_zero_ranges ranges;
    invar_status status = invar_zero_ranges_grads(&ranges, model, 0);
    int64_t first = status == INVAR_OK && rank > 0 ? ranges.end[rank - 1] : 0;

    for (int64_t i = first; status == INVAR_OK && i < ranges.end[rank]; i++) {
        invar_byte_range range = ranges.ranges[i];

        if (invar_bits_differ((char *)grads->memory + range.first,
                              (const char *)s->expected + range.first, range.bytes))
            status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "another sum on rank %d", rank);
    }
    invar_zero_ranges_release(&ranges);
    return status;
}

static invar_status run_rank(rank_run *run)
{
    const sum_case *s = run->payload;
    invar_layout layout;
    invar_model *model = NULL;
    invar_grads *grads = NULL;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    layout.bucket_bytes = s->bucket;
    INVAR_TRY(invar_test_model_part(&model, s->model, &layout, s->dev));
    status = invar_grads_new(&grads, model);
    if (status == INVAR_OK)
        status = add_all(s, &layout, model, grads);
    if (status == INVAR_OK)
        status = compare_range(s, model, grads);
    invar_grads_free(grads);
    invar_model_free(model);
    return status;
}

static void test_unit_sum__order_of_units(void **state)
{
    static const int sizes[] = {2, 3, 4, 8, 11, 16};
    const invar_device *dev = *state;
    invar_device serial = *dev;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 1, dev);
    sum_case s = {&serial, model, model->grad_bytes, 0, NULL};
    float *expected = sum_ascending(&s), *other = sum_descending(&s);
    rank_run runs[MAX_RANKS];

    serial.pool = NULL; // each rank is one thread
    s.expected = expected;
    assert_true(invar_bits_differ(expected, other, s.bytes));
    free(other);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        other = sum_by_rank(&s, sizes[i]);
        assert_true(sizes[i] >= UNITS || invar_bits_differ(expected, other, s.bytes));
        free(other);
        // buckets of one leaf, of some leaves and of all
        for (s.bucket = 1; s.bucket < s.bytes * 64; s.bucket = s.bucket * 64 + (64 << 10)) {
            run_ranks(runs, sizes[i], s.bucket % 3, 0, run_rank, &s);
            for (int r = 0; r < sizes[i]; r++)
                if (runs[r].status != INVAR_OK)
                    fail_msg("rank %d of %d: %s", r, sizes[i], runs[r].error.message);
        }
    }
    free(expected);
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_unit_sum__order_of_units)};

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
