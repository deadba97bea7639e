/*
 * optimizer_grad_norm.c - tests of the global gradient norm against a plain loop and float64.
 *
 * Digests of the gradients are compared with the op hash.tree. Controls: a sum in ascending order
 * gives other bits, and a flipped bit changes the digest of its tensor only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/math/portable.h"
#include "kernels-deterministic/math/reduce.h"
#include "tests/ops.h"

enum { TENSORS = 6 };

/* Sizes around the lanes (256) and chunks (4096) of REDUCE, empty, and with chunks of chunks. */
static int64_t sizes[TENSORS] = {1, 256, 4096, 4097, 0, 0};

static void grads_new(invar_tensor *grads)
{
    sizes[5] = invar_test_count(100000, 4096 * 4096 + 4097);
    for (int i = 0; i < TENSORS; i++) {
        grads[i] = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_F32, sizes[i]));
        invar_test_fill_normal(&grads[i], (uint64_t)i + 1, 0.01f);
    }
}

static void grads_free(invar_tensor *grads)
{
    for (int i = 0; i < TENSORS; i++)
        invar_test_free(&grads[i]);
}

static float sum_ascending(const float *x, int64_t n)
{
    float sum = 0.0f;

    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

static float norm_ref(const invar_tensor *grads, float (*reduce)(const float *x, int64_t n))
{
    float sums[TENSORS];

    for (int i = 0; i < TENSORS; i++) {
        float *squares = calloc((size_t)sizes[i] + 1, sizeof *squares);
        for (int64_t j = 0; j < sizes[i]; j++)
            squares[j] = invar_test_get(&grads[i], 0, j) * invar_test_get(&grads[i], 0, j);
        sums[i] = reduce(squares, sizes[i]);
        free(squares);
    }
    return sqrtf(reduce(sums, TENSORS));
}

static void test_grad_norm__bits_match_reference(void **state)
{
    static const float limits[] = {0.0f, 1.0f, 1e-3f, 1e6f, FLT_MAX};
    const invar_device *devices = *state;
    invar_tensor grads[TENSORS];
    float norm, clip, expected;

    grads_new(grads);
    expected = norm_ref(grads, invar_test_reduce);
    assert_true(expected != norm_ref(grads, sum_ascending)); // control
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        float ratio = limits[i] / (expected + 1e-6f);
        norm = clip = NAN;
        assert_ok(invar_grad_norm(
            &devices[i % INVAR_TEST_DEVICES],
            &(invar_grad_norm_args){&norm, &clip, .grads = grads, TENSORS, limits[i]}));
        assert_true(norm == expected);
        assert_true(clip == (i > 0 && ratio < 1.0f ? ratio : 1.0f));
    }
    grads_free(grads);
}

static void test_grad_norm__is_invariant_to_tensor_rank(void **state)
{
    invar_tensor flat = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_F32, 6000));
    invar_tensor shapes[3] = {flat, invar_tensor_2d(flat.data, INVAR_DTYPE_F32, 60, 100),
                              invar_tensor_4d(flat.data, INVAR_DTYPE_F32, 10, 2, 3, 100)};
    float norm[3], clip;

    invar_test_fill_normal(&flat, 1, 1.0f);
    for (int i = 0; i < 3; i++)
        assert_ok(invar_grad_norm(
            *state, &(invar_grad_norm_args){&norm[i], &clip, .grads = &shapes[i], 1, 0.0f}));
    invar_assert_bits_f32(norm + 1, norm, 1, "rank 2");
    invar_assert_bits_f32(norm + 2, norm, 1, "rank 4");
    invar_test_free(&flat);
}

static void test_grad_norm__accuracy_vs_f64(void **state)
{
    invar_tensor grads[TENSORS];
    double sum = 0.0;
    float norm, clip;

    grads_new(grads);
    for (int i = 0; i < TENSORS; i++)
        for (int64_t j = 0; j < sizes[i]; j++)
            sum += pow((double)invar_test_get(&grads[i], 0, j), 2);
    assert_ok(invar_grad_norm(
        *state, &(invar_grad_norm_args){&norm, &clip, .grads = grads, TENSORS, 0.5f}));
    assert_true(fabs((double)norm / sqrt(sum) - 1.0) < 1e-6);
    assert_true(fabs((double)clip * (sqrt(sum) + 1e-6) / 0.5 - 1.0) < 1e-6);
    grads_free(grads);
}

static void test_grad_norm__nothing_has_norm_zero(void **state)
{
    float norm = NAN, clip = NAN;

    assert_ok(
        invar_grad_norm(*state, &(invar_grad_norm_args){&norm, &clip, .grads = NULL, 0, 1.0f}));
    assert_true(norm == 0.0f && clip == 1.0f);
}

/*
 * The norm is the square root of the sum of the tensors' sums of squares. If one is not finite, the
 * op fails, and the sums show which.
 */
static void test_grad_norm__squares_of_each_tensor(void **state)
{
    float norm, clip, one, squares[TENSORS];
    invar_tensor grads[TENSORS];
    invar_grad_norm_args args = {&norm, &clip, .grads = grads, TENSORS, 1.0f, .squares = squares};

    grads_new(grads);
    assert_ok(invar_grad_norm(*state, &args));
    assert_true(norm == invar_sqrtf(invar_reduce_f32(squares, TENSORS)));
    for (int i = 0; i < TENSORS; i++) {
        assert_ok(invar_grad_norm(
            *state, &(invar_grad_norm_args){&one, &clip, .grads = &grads[i], 1, 1.0f}));
        assert_true(one == invar_sqrtf(squares[i]));
    }
    invar_test_set(&grads[3], 0, 4096, NAN);
    memset(squares, 0xFF, sizeof squares);
    assert_fails(invar_grad_norm(*state, &args), INVAR_E_STATE, "tensor 3");
    for (int i = 0; i < TENSORS; i++)
        assert_true(isfinite(squares[i]) == (i != 3));
    grads_free(grads);
}

/* A sum that is not finite is an error that names the first such tensor. Nothing is written. */
static void test_grad_norm__faults_stop_the_step(void **state)
{
    static const float faults[] = {NAN, INFINITY, -INFINITY, 1e30f};
    invar_tensor grads[TENSORS];
    float norm = 5.0f, clip = 6.0f;
    invar_digest digests[TENSORS] = {{{7}}}, before[TENSORS] = {{{7}}};
    invar_grad_norm_args args = {&norm, &clip, .grads = grads, TENSORS, 1.0f, .digest = digests};

    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        grads_new(grads);
        invar_test_set(&grads[3], 0, 4096, faults[i]);
        invar_test_set(&grads[5], 0, 7, NAN);
        assert_fails(invar_grad_norm(*state, &args), INVAR_E_STATE,
                     "grad.norm: grads: tensor 3: the sum of squares is not finite");
        grads_free(grads);
    }
    // the sum of each tensor is finite, but not the sum of both
    grads_new(grads);
    invar_test_set(&grads[0], 0, 0, 1.5e19f);
    invar_test_set(&grads[1], 0, 0, 1.5e19f);
    assert_fails(invar_grad_norm(*state, &args), INVAR_E_STATE,
                 "grad.norm: grads: the sum of squares over tensors overflows");
    grads_free(grads);
    assert_true(norm == 5.0f && clip == 6.0f);
    assert_memory_equal(digests, before, sizeof digests);
}

/* A list of gradient tensors, aligned to 16 bytes as in training, or shifted. */
typedef struct hashed_list {
    int64_t count, shift; /* `shift`: elements between the alignment and the tensor */
    int64_t sizes[6];
} hashed_list;

static const hashed_list hashed_lists[] = {
    {6, 0, {1, 4096, 4097, 4100, 8192, 60}}, // last leaves of 4, 16 and 240 bytes, and full ones
    {4, 0, {4096 + 61, 12288, 100000, 3}},   // a last leaf of 244 bytes; several leaves
    {2, 0, {4096 * 1024 + 4096 + 8, 4096 * 80}}, // two levels in the tree of digests
    {3, 1, {4096, 20000, 4096 * 3}},             // not aligned to 16 bytes
    {4, 0, {8192, 0, 4096, 0}},                  // empty tensors
};

static void check_hashed_list(void **state, const hashed_list *list)
{
    const invar_device *devices = *state;
    invar_tensor memory[6], grads[6];
    invar_digest expected[6], digests[6];
    float norm[2], clip[2];

    for (int64_t i = 0; i < list->count; i++) {
        int64_t n = list->sizes[i];
        memory[i] = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_F32, n + list->shift));
        invar_test_fill_normal(&memory[i], (uint64_t)n + 3, 0.5f);
        grads[i] = invar_tensor_1d((float *)memory[i].data + list->shift, INVAR_DTYPE_F32, n);
    }
    assert_ok(
        invar_hash_tree(devices, &(invar_hash_tree_args){expected, grads, list->count, 1, NULL}));
    assert_ok(invar_grad_norm(
        devices, &(invar_grad_norm_args){&norm[0], &clip[0], .grads = grads, list->count, 0.25f}));
    for (int d = 0; d < INVAR_TEST_DEVICES; d++) {
        memset(digests, 0xFF, sizeof digests);
        assert_ok(invar_grad_norm(&devices[d],
                                  &(invar_grad_norm_args){&norm[1], &clip[1], .grads = grads,
                                                          list->count, 0.25f, .digest = digests}));
        assert_memory_equal(digests, expected, (size_t)list->count * sizeof *digests);
        assert_true(norm[1] == norm[0] && clip[1] == clip[0]);
    }
    // control: one flipped bit
    ((uint32_t *)grads[0].data)[list->sizes[0] - 1] ^= 1;
    assert_ok(
        invar_grad_norm(devices, &(invar_grad_norm_args){&norm[1], &clip[1], .grads = grads,
                                                         list->count, 0.25f, .digest = digests}));
    for (int64_t i = 0; i < list->count; i++)
        assert_int_equal(invar_digest_equal(&digests[i], &expected[i]), i > 0);
    for (int64_t i = 0; i < list->count; i++)
        invar_test_free(&memory[i]);
}

static void test_grad_norm__digests_match_hash_tree(void **state)
{
    for (size_t i = 0; i < sizeof hashed_lists / sizeof *hashed_lists; i++)
        check_hashed_list(state, &hashed_lists[i]);
}

/* Columns of a matrix give the norm of a compact copy of these columns. */
static void test_grad_norm__gaps_between_rows_are_not_read(void **state)
{
    for (int64_t cols = 1; cols <= 700; cols = 3 * cols + 7) {
        invar_tensor matrix = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 50, 700));
        invar_tensor columns = invar_tensor_columns(&matrix, 700 - cols, cols);
        invar_tensor copy;
        float norm[2], clip[2];

        invar_test_fill_normal(&matrix, 9, 1.0f);
        copy = invar_test_copy(&columns);
        assert_ok(invar_grad_norm(
            *state, &(invar_grad_norm_args){&norm[0], &clip[0], .grads = &columns, 1, 1.0f}));
        assert_ok(invar_grad_norm(
            *state, &(invar_grad_norm_args){&norm[1], &clip[1], .grads = &copy, 1, 1.0f}));
        assert_memory_equal(&norm[0], &norm[1], sizeof norm[0]);
        assert_memory_equal(&clip[0], &clip[1], sizeof clip[0]);
        invar_test_free(&matrix, &copy);
    }
}

static void test_grad_norm__rejects_bad_arguments(void **state)
{
    float data[16] = {0}, norm, clip;
    invar_tensor good = invar_tensor_2d(data, INVAR_DTYPE_F32, 2, 4), pair[2] = {good, good};

#define GRAD_NORM(out, clip, ...)                                                                  \
    invar_grad_norm(*state, &(invar_grad_norm_args){out, clip, .grads = __VA_ARGS__})
    assert_invalid(GRAD_NORM(NULL, &clip, &good, 1, 1.0f), "grad.norm: norm: missing");
    assert_invalid(GRAD_NORM(&norm, NULL, &good, 1, 1.0f), "grad.norm: clip: missing");
    assert_invalid(GRAD_NORM(&norm, &clip, NULL, 1, 1.0f), "grad.norm: grads: 1 tensors");
    assert_invalid(GRAD_NORM(&norm, &clip, &good, -1, 1.0f), "grad.norm: grads: -1 tensors");
    assert_invalid(GRAD_NORM(&norm, &clip, &good, 1, -1.0f), "grad.norm: max_norm: -1");
    assert_invalid(GRAD_NORM(&norm, &clip, &good, 1, NAN), "grad.norm: max_norm: nan");
    pair[1].dtype = INVAR_DTYPE_BF16;
    assert_invalid(GRAD_NORM(&norm, &clip, pair, 2, 1.0f), "grad.norm: grads: tensor 1: type bf16");
    pair[1] = good;
    pair[1].rank = 5;
    assert_invalid(GRAD_NORM(&norm, &clip, pair, 2, 1.0f), "grad.norm: grads: tensor 1: rank 5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grad_norm__bits_match_reference),
        cmocka_unit_test(test_grad_norm__is_invariant_to_tensor_rank),
        cmocka_unit_test(test_grad_norm__accuracy_vs_f64),
        cmocka_unit_test(test_grad_norm__nothing_has_norm_zero),
        cmocka_unit_test(test_grad_norm__squares_of_each_tensor),
        cmocka_unit_test(test_grad_norm__faults_stop_the_step),
        cmocka_unit_test(test_grad_norm__digests_match_hash_tree),
        cmocka_unit_test(test_grad_norm__gaps_between_rows_are_not_read),
        cmocka_unit_test(test_grad_norm__rejects_bad_arguments),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
