/*
 * ops.h - what tests of ops share: a device, tensors on the heap, their elements.
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
 * A CPU device with a pool of its own (none for 1 thread) and scratch from the debug twin of the
 * arena: a sanitizer sees where it ends, and reading it before writing yields NaN. Its tensors are
 * the heap's; INVAR_TEST_DEVICE may send the ops elsewhere (tests/device/copying_backend.h).
 */
void invar_test_device_init(invar_device *dev, invar_numerics numerics, invar_cpu_path path,
                            int threads);
void invar_test_device_release(invar_device *dev);

/*
 * For a group of tests: *state is an array of four devices with 2, 1, 3 and 8 threads; numerics and
 * CPU path change from one to the next. A test that needs one takes the first: ieee, SIMD.
 */
enum { INVAR_TEST_DEVICES = 4 };
int invar_test_devices_setup(void **state);
int invar_test_devices_teardown(void **state);

/* Memory of an open device. The caller gives it back. */
void *invar_test_take(const invar_device *dev, size_t bytes, const char *what);

/* The two types of storage. */
extern const invar_dtype invar_test_storage[2];

/* ---- tensors --------------------------------------------------------------------------------- */

/*
 * `view`, made by invar_tensor_2d(NULL, ...) and the like, with memory of its own for its data and
 * scales. All bytes are 0xFF: NaN in every float format, -1 as an integer.
 */
invar_tensor invar_test_tensor(invar_tensor view);

/* The same with rows `gap` elements further apart than they need to be. */
invar_tensor invar_test_strided(invar_tensor view, int64_t gap);

/* invar_test_free(&x, &y): frees what the two functions above allocated; zeroes the tensors. */
#define invar_test_free(...) invar_test_free_all((invar_tensor *[]){__VA_ARGS__, NULL})
void invar_test_free_all(invar_tensor *const *tensors);

/* A contiguous copy, scales included; freed like any other. */
invar_tensor invar_test_copy(const invar_tensor *t);

/* Rows of src to rows of dst, with their scales unless rows share them (scale_rows 128). */
void invar_test_copy_rows(const invar_tensor *dst, int64_t dst_row, const invar_tensor *src,
                          int64_t src_row, int64_t rows);

/* ---- elements -------------------------------------------------------------------------------- */

/* f32 and bf16; i32 is converted. */
float invar_test_get(const invar_tensor *t, int64_t row, int64_t col);
void invar_test_set(const invar_tensor *t, int64_t row, int64_t col, float value);

void invar_test_fill(const invar_tensor *t, float value);

/* Element n, counted without gaps, is invar_test_normal(seed, n, scale), rounded. */
void invar_test_fill_normal(const invar_tensor *t, uint64_t seed, float scale);

/* i32 in [0, bound). */
void invar_test_fill_index(const invar_tensor *t, uint64_t seed, int32_t bound);

/* REDUCE, word for word as the contract states it and independent of math/reduce.h. */
float invar_test_reduce(const float *x, int64_t n);

/* ---- comparison ------------------------------------------------------------------------------ */

/* Equal bits in data and scales, whatever the strides; types and shapes must agree. */
void invar_assert_bits_tensor(const invar_tensor *got, const invar_tensor *expected,
                              const char *what);

/* A caller's mistake, refused with a message that names op and argument. */
#define assert_refused(expr, text) assert_fails(expr, INVAR_E_INVALID, text)

/* The arguments `good` of an op are refused, on `dev`, once one field has another value. */
#define assert_field_refused(op, good, field, value, text)                                         \
    do {                                                                                           \
        invar_##op##_args bad = good;                                                              \
        bad.field = value;                                                                         \
        assert_refused(invar_##op(&dev, &bad), text);                                              \
    } while (0)

/* For negative controls. */
bool invar_tensors_differ(const invar_tensor *a, const invar_tensor *b);

/* out (n) = the tree over `count` shards, a power of two of them, of n values: neighbours first. */
void invar_test_fold(float *out, const float *shards, int64_t count, int64_t n);

/* |got - expected| <= absolute + relative * |expected| for each element; expected is contiguous. */
void invar_assert_close(const invar_tensor *got, const double *expected, double relative,
                        double absolute, const char *what);

#endif
