/*
 * ops.h - shared by tests of ops: devices, tensors on the heap, their elements, comparisons.
 *
 * An element is addressed by (row, col): row is index 0, col runs through all further indices. A
 * vector may be read either way, (i, 0) or (0, i).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_OPS_H
#define INVAR_TESTS_OPS_H

#include "kernels-deterministic/ops.h"
#include "tests/support.h"

/*
 * Makes a CPU device with its own pool (none for 1 thread) and scratch from the debug version of
 * the arena: a sanitizer sees its end, and reading it before writing gives NaN. Tensors are on the
 * heap; INVAR_TEST_DEVICE may run the ops elsewhere (tests/device/copying_backend.h).
 */
void invar_test_device_init(invar_device *dev, invar_numerics numerics, invar_cpu_path path,
                            int threads);
void invar_test_device_release(invar_device *dev);

/*
 * Setup and teardown of a group of tests: *state is an array of four devices with 2, 1, 3 and 8
 * threads; numerics and CPU path alternate. A test that needs one device takes the first: ieee,
 * SIMD.
 */
enum { INVAR_TEST_DEVICES = 4 };
int invar_test_devices_setup(void **state);
int invar_test_devices_teardown(void **state);

/* Allocates memory of an open device. The caller frees it with invar_device_free. */
void *invar_test_device_alloc(const invar_device *dev, size_t bytes, const char *what);

/* The two storage types. */
extern const invar_dtype invar_test_storage[2];

/* ---- tensors --------------------------------------------------------------------------------- */

/*
 * Allocates data and scales for a view made by invar_tensor_2d(NULL, ...) or the like. All bytes
 * are 0xFF: NaN in every float format, -1 as an integer.
 */
invar_tensor invar_test_tensor(invar_tensor view);

/* Like invar_test_tensor, with rows `gap` elements further apart than needed. */
invar_tensor invar_test_strided(invar_tensor view, int64_t gap);

/* invar_test_free(&x, &y) frees what the two functions above allocated and zeroes the tensors. */
#define invar_test_free(...) invar_test_free_all((invar_tensor *[]){__VA_ARGS__, NULL})
void invar_test_free_all(invar_tensor *const *tensors);

/* Returns a contiguous copy, scales included. Free it with invar_test_free. */
invar_tensor invar_test_copy(const invar_tensor *t);

/* Copies rows of src to rows of dst, with their scales unless rows share them (scale_rows 128). */
void invar_test_copy_rows(const invar_tensor *dst, int64_t dst_row, const invar_tensor *src,
                          int64_t src_row, int64_t rows);

/* ---- elements -------------------------------------------------------------------------------- */

/* Read and write an element of an f32 or bf16 tensor, or convert it for i32. */
float invar_test_get(const invar_tensor *t, int64_t row, int64_t col);
void invar_test_set(const invar_tensor *t, int64_t row, int64_t col, float value);

void invar_test_fill(const invar_tensor *t, float value);

/* Sets element n, counted without gaps, to invar_test_normal(seed, n, scale), rounded. */
void invar_test_fill_normal(const invar_tensor *t, uint64_t seed, float scale);

/* Fills an i32 tensor with values in [0, bound). */
void invar_test_fill_index(const invar_tensor *t, uint64_t seed, int32_t bound);

/* REDUCE, written as in the contract and independent of math/reduce.h. */
float invar_test_reduce(const float *x, int64_t n);

/* ---- comparison ------------------------------------------------------------------------------ */

/* Asserts equal bits in data and scales; strides may differ, types and shapes must not. */
void invar_assert_bits_tensor(const invar_tensor *got, const invar_tensor *expected,
                              const char *what);

/* Asserts that a call is rejected with a message that names op and argument. */
#define assert_invalid(expr, text) assert_fails(expr, INVAR_E_INVALID, text)

/*
 * Asserts that the arguments `good` of an op are rejected on `dev` if one field has another value.
 */
#define assert_field_invalid(op, good, field, value, text)                                         \
    do {                                                                                           \
        invar_##op##_args bad = good;                                                              \
        bad.field = value;                                                                         \
        assert_invalid(invar_##op(&dev, &bad), text);                                              \
    } while (0)

/* Returns whether tensors differ, for negative controls. */
bool invar_tensors_differ(const invar_tensor *a, const invar_tensor *b);

/*
 * out (n) = `count` shards of n values, added by the tree, neighbors first; count is a power of
 * two.
 */
void invar_test_fold(float *out, const float *shards, int64_t count, int64_t n);

/*
 * Asserts |got - expected| <= absolute + relative * |expected| for each element; expected is
 * contiguous.
 */
void invar_assert_close(const invar_tensor *got, const double *expected, double relative,
                        double absolute, const char *what);

#endif
