/*
 * unit_sum.c - units' gradients are added one by one in order, however many ranks and pieces.
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

typedef struct sums {
    const invar_device *dev;
    const invar_model *model;
    size_t bytes, bucket;
    const float *expected; /* (elements) */
} sums;

/* An element of g_u: orders of magnitude, so that the order of a sum shows in most elements. */
static float gradient(int64_t unit, size_t i)
{
    float scale = (float)(1 << invar_test_random(100 + (uint64_t)unit, i) % 12);

    return invar_test_normal((uint64_t)unit, i, scale);
}

static size_t elements(const sums *s)
{
    return s->bytes / sizeof(float);
}

/* ---- sums of one rank ------------------------------------------------------------------------ */

static float *new_sum(const sums *s)
{
    float *sum = calloc(elements(s), sizeof *sum);

    assert_non_null(sum);
    return sum;
}

static void add_unit(float *sum, const sums *s, int64_t unit)
{
    for (size_t i = 0; i < elements(s); i++)
        sum[i] += gradient(unit, i);
}

static float *ascending(const sums *s)
{
    float *sum = new_sum(s);

    for (int64_t u = 0; u < UNITS; u++)
        add_unit(sum, s, u);
    return sum;
}

static float *descending(const sums *s)
{
    float *sum = new_sum(s);

    for (int64_t u = UNITS - 1; u >= 0; u--)
        add_unit(sum, s, u);
    return sum;
}

/* What a reduction would make: each rank its units, then one rank after the other. */
static float *by_rank(const sums *s, int size)
{
    float *sum = new_sum(s);

    for (int r = 0; r < size; r++) {
        float *own = new_sum(s);
        for (int64_t u = r; u < UNITS; u += size)
            add_unit(own, s, u);
        for (size_t i = 0; i < elements(s); i++)
            sum[i] += own[i];
        free(own);
    }
    return sum;
}

/* ---- sums of several ------------------------------------------------------------------------- */

static invar_status add_all(const sums *s, const invar_layout *layout, const invar_model *model,
                            invar_grads *grads)
{
    const invar_layout_axis *data = &layout->data;
    invar_unit_sum *sum = NULL;
    invar_zero_ranges owned;
    invar_status status = invar_zero_ranges_grads(&owned, model, 0);

    if (status == INVAR_OK)
        status = invar_unit_sum_new(&sum, s->dev, layout, &owned);
    invar_zero_ranges_release(&owned);
    for (int64_t first = 0; first < UNITS && status == INVAR_OK; first += data->size) {
        int64_t left = UNITS - first;
        for (size_t i = 0; i < elements(s) && data->rank < left; i++)
            ((float *)grads->memory)[i] = gradient(first + data->rank, i);
        status =
            invar_unit_sum_add(sum, grads->memory, (int)(left < data->size ? left : data->size));
    }
    if (status == INVAR_OK)
        status = invar_unit_sum_end(sum, grads->memory);
    invar_unit_sum_free(sum);
    return status;
}

/* Of the rows that the rank owns; of the others there is the gradient of a unit. */
static invar_status compare(const sums *s, const invar_model *model, const invar_grads *grads)
{
    int rank = model->layout->data.rank;
    invar_zero_ranges owned;

    INVAR_TRY(invar_zero_ranges_grads(&owned, model, 0));
    for (int64_t i = rank > 0 ? owned.end[rank - 1] : 0; i < owned.end[rank]; i++) {
        invar_byte_range range = owned.ranges[i];

        if (invar_bits_differ((char *)grads->memory + range.first,
                              (const char *)s->expected + range.first, range.bytes))
            return INVAR_FAIL(INVAR_E_MISMATCH, 0, "another sum on rank %d", rank);
    }
    invar_zero_ranges_release(&owned);
    return INVAR_OK;
}

static invar_status rank_part(rank_run *run)
{
    const sums *s = run->payload;
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
        status = compare(s, model, grads);
    invar_grads_free(grads);
    invar_model_free(model);
    return status;
}

static void test_unit_sum__order_of_units(void **state)
{
    static const int sizes[] = {2, 3, 4, 8, 11, 16};
    const invar_device *dev = *state;
    invar_device alone = *dev;
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 1, dev);
    sums s = {&alone, model, model->grad_bytes, 0, NULL};
    float *expected = ascending(&s), *other = descending(&s);
    rank_run runs[MAX_RANKS];

    alone.pool = NULL; // a rank is a thread
    s.expected = expected;
    assert_true(invar_bits_differ(expected, other, s.bytes));
    free(other);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        other = by_rank(&s, sizes[i]);
        assert_true(sizes[i] >= UNITS || invar_bits_differ(expected, other, s.bytes));
        free(other);
        // pieces of a leaf, of some, of all
        for (s.bucket = 1; s.bucket < s.bytes * 64; s.bucket = s.bucket * 64 + (64 << 10)) {
            run_ranks(runs, sizes[i], s.bucket % 3, 0, rank_part, &s);
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
