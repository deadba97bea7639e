/*
 * hash.c - tests of the C API for tensor digests.
 *
 * The expected digest is that of the op hash.tree, or of a dense copy for tensors with other
 * strides. Controls: one changed bit, and the bytes in memory order, give other digests. Tensor
 * descriptions that cannot be valid are rejected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "api/invar.h"

#include <stdlib.h>
#include <string.h>

#include "tests/fault/faulty.h"
#include "tests/ops.h"

static void hash_tensor(uint8_t out[16], const invar_api_tensor *t, int32_t threads)
{
    assert_ok(invar_api_hash_tensors(out, t, 1, threads));
}

/* ---- the engine's digests -------------------------------------------------------------------- */

static void test_api_hash__matches_the_op(void **state)
{
    const invar_device *dev = *state;
    const int64_t shapes[][2] = {{1, 1}, {3, 5}, {64, 129}, {300, 77}, {0, 4}, {9000, 3}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int64_t gap = 0; gap < 3; gap += 2) {
            const int64_t strides[2] = {shapes[i][1] + gap, 1};
            invar_tensor x = invar_test_strided(
                invar_tensor_2d(NULL, INVAR_DTYPE_F32, shapes[i][0], shapes[i][1]), gap);
            invar_api_tensor t = {x.data, shapes[i], strides, 2, 2, 32, 0};
            invar_digest expected;
            uint8_t digest[16];
            invar_hash_tree_args args = {.digest = &expected, .x = &x, .count = 1, .shards = 1};

            for (int64_t row = 0; row < shapes[i][0]; row++)
                for (int64_t col = 0; col < shapes[i][1]; col++)
                    invar_test_set(&x, row, col, (float)(row * 1000 + col));
            assert_ok(invar_hash_tree(dev, &args));
            for (int32_t threads = 1; threads <= 3; threads++) {
                hash_tensor(digest, &t, threads);
                assert_memory_equal(digest, expected.bytes, 16);
            }
            if (shapes[i][0] > 0) { // control: one changed bit
                ((uint32_t *)x.data)[0] ^= 1;
                hash_tensor(digest, &t, 1);
                assert_memory_not_equal(digest, expected.bytes, 16);
            }
            invar_test_free(&x);
        }
}

/*
 * All orders of three indices, each index also reversed. The digest is the one of a dense copy; it
 * does not depend on the strides.
 */
static void test_api_hash__ignores_strides(void **state)
{
    enum { A = 3, B = 4, C = 5, ALL = A * B * C };
    const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const int64_t extents[3] = {A, B, C}, dense_strides[3] = {B * C, C, 1};
    uint16_t memory[ALL], dense[ALL];
    uint8_t digest[16], expected[16];

    (void)state;
    for (int i = 0; i < ALL; i++)
        memory[i] = (uint16_t)(i * 257);
    for (int order = 0; order < 6; order++)
        for (int reversed = 0; reversed < 8; reversed++) {
            int64_t shape[3], strides[3];
            uint16_t *first = memory;
            int n = 0;
            for (int i = 0; i < 3; i++) {
                shape[i] = extents[orders[order][i]];
                strides[i] = dense_strides[orders[order][i]];
                if (reversed >> i & 1) {
                    first += (shape[i] - 1) * strides[i];
                    strides[i] = -strides[i];
                }
            }
            for (int64_t a = 0; a < shape[0]; a++)
                for (int64_t b = 0; b < shape[1]; b++)
                    for (int64_t c = 0; c < shape[2]; c++)
                        dense[n++] = first[a * strides[0] + b * strides[1] + c * strides[2]];
            hash_tensor(digest, &(invar_api_tensor){first, shape, strides, 3, 1, 16, 0}, 1);
            hash_tensor(expected, &(invar_api_tensor){dense, shape, NULL, 3, 1, 16, 0}, 1);
            assert_memory_equal(digest, expected, 16);
            if (order > 0 || reversed > 0) { // control: the bytes in memory order differ
                hash_tensor(expected, &(invar_api_tensor){memory, shape, NULL, 3, 1, 16, 0}, 1);
                assert_memory_not_equal(digest, expected, 16);
            }
        }
    // broadcast: stride 0, so all rows are the same memory
    hash_tensor(digest,
                &(invar_api_tensor){memory, (int64_t[]){2, 3}, (int64_t[]){0, 1}, 2, 1, 16, 0}, 1);
    memcpy(dense, memory, 6);
    memcpy(dense + 3, memory, 6);
    hash_tensor(expected, &(invar_api_tensor){dense, (int64_t[]){2, 3}, NULL, 2, 1, 16, 0}, 1);
    assert_memory_equal(digest, expected, 16);
}

/* ---- invalid tensors ------------------------------------------------------------------------- */

static void test_api_hash__rejects_invalid_tensors(void **state)
{
    const int64_t two[2] = {2, 2}, negative[2] = {2, -1}, huge[2] = {INT64_MAX, 4};
    uint8_t memory[64] = {0}, digest[16];
    const invar_api_tensor wrong[] = {
        {memory, two, NULL, 2, 2, 12, 0},  {memory, two, NULL, 2, 2, 0, 0},
        {memory, two, NULL, 2, 2, 256, 0}, {memory, two, NULL, -1, 2, 8, 0},
        {memory, two, NULL, 65, 2, 8, 0},  {memory, NULL, NULL, 2, 2, 8, 0},
        {NULL, two, NULL, 2, 2, 8, 0},     {memory, negative, NULL, 2, 2, 8, 0},
        {memory, huge, NULL, 2, 2, 8, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(invar_api_hash_tensors(digest, &wrong[i], 1, 1), INVAR_E_INVALID);
        assert_non_null(strstr(invar_api_error(), "tensor 0 cannot be hashed"));
    }
    assert_int_equal(invar_api_hash_tensors(digest, wrong, 0, 0), INVAR_E_INVALID); // threads
    assert_int_equal(invar_api_hash_bytes(digest, NULL, 1), INVAR_E_INVALID);
    assert_string_equal(invar_api_status_name(INVAR_E_INVALID), "INVALID");
}

static invar_status hash_transposed(void)
{
    const float memory[6] = {1, 2, 3, 4, 5, 6};
    const int64_t shape[2] = {3, 2}, strides[2] = {1, 3};
    const invar_api_tensor t = {(void *)(uintptr_t)memory, shape, strides, 2, 2, 32, 0};
    uint8_t digest[16];

    return (invar_status)invar_api_hash_tensors(digest, &t, 1, 2);
}

static void test_api_hash__survives_each_failed_allocation(void **state)
{
    (void)state;
    fail_each_allocation(hash_transposed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_api_hash__matches_the_op),
        cmocka_unit_test(test_api_hash__ignores_strides),
        cmocka_unit_test(test_api_hash__rejects_invalid_tensors),
        cmocka_unit_test(test_api_hash__survives_each_failed_allocation),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
