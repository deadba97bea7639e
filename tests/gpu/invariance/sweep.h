/*
 * sweep.h - what the sweeps of tests/gpu share: a device, tensors in its memory, comparison.
 *
 * The same program runs on every backend (INVAR_TEST_DEVICE, tests/device/copying_backend.h): on a
 * GPU with sizes around the edges of its kernels, on the CPU with small ones, so that the sweep
 * itself is tested. Results are compared in every byte, on the host; before an op runs, what it
 * writes is zeros.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_GPU_INVARIANCE_SWEEP_H
#define INVAR_TESTS_GPU_INVARIANCE_SWEEP_H

#include "tests/formats.h"
#include "tests/ops.h"

#define INVAR_SWEEP_MAX_BLOCKS 512

typedef struct invar_sweep {
    invar_device dev;
    bool large; /* the sizes of a GPU */
    void *blocks[INVAR_SWEEP_MAX_BLOCKS];
    int n_blocks;
    void *scratch;
    size_t scratch_bytes;
} invar_sweep;

/* One device a numerics and program: it stays open; the tensors are given back by `release`. */
invar_sweep *invar_sweep_begin(invar_numerics numerics);
int invar_sweep_mark(const invar_sweep *s);
void invar_sweep_release(invar_sweep *s, int mark);

/* A size for a GPU, or for a CPU. */
int64_t invar_sweep_size(const invar_sweep *s, int64_t large, int64_t small);

/* Runs invar_<op> on args; fails the test where it fails. */
void invar_sweep_run(invar_sweep *s, invar_op op, const void *args);

/* ---- tensors, contiguous, in the device's memory --------------------------------------------- */

/* `view` without data, with memory for data and scales: zeros. */
invar_tensor invar_sweep_tensor(invar_sweep *s, invar_tensor view);
invar_tensor invar_sweep_2d(invar_sweep *s, invar_dtype dtype, int64_t rows, int64_t cols);

/* About normal numbers from a seed; all elements equal; indices below a bound. */
void invar_sweep_fill_normal(const invar_sweep *s, const invar_tensor *t, uint64_t seed,
                             float scale);
void invar_sweep_fill(const invar_sweep *s, const invar_tensor *t, float value);
void invar_sweep_fill_index(const invar_sweep *s, const invar_tensor *t, uint64_t seed,
                            int32_t bound);
invar_tensor invar_sweep_normal(invar_sweep *s, invar_dtype dtype, int64_t rows, int64_t cols,
                                uint64_t seed);

/* `plain` in the format `dtype`, itself where that is its own; fp8 weights take 128x128 scales. */
invar_tensor invar_sweep_quantized(invar_sweep *s, const invar_tensor *plain, invar_dtype dtype,
                                   bool weight);

/* A copy of numbers of the host. */
const int64_t *invar_sweep_numbers(invar_sweep *s, const int64_t *values, int64_t count);

/* The bytes of a tensor from the heap, without scales. */
void invar_sweep_put(const invar_sweep *s, const invar_tensor *t, const void *host);

/* Rows of one tensor to rows of another, without scales. */
void invar_sweep_copy_rows(const invar_sweep *s, const invar_tensor *to, int64_t to_row,
                           const invar_tensor *from, int64_t from_row, int64_t rows);
void invar_sweep_zero(const invar_sweep *s, const invar_tensor *t);

/* A copy on the heap, scales included; freed by invar_test_free. */
invar_tensor invar_sweep_get(const invar_sweep *s, const invar_tensor *t);

/* ---- comparison ------------------------------------------------------------------------------ */

/* Whether rows [first, first + got.shape[0]) of `expected`, on the heap, are what `got` holds. */
bool invar_sweep_same(const invar_sweep *s, const invar_tensor *got, const invar_tensor *expected,
                      int64_t first);

/* The same as an assertion, with the first difference; `what` is a format. */
void invar_sweep_assert(const invar_sweep *s, const invar_tensor *got, const invar_tensor *expected,
                        int64_t first, const char *what, ...) __attribute__((format(printf, 5, 6)));

/* Teardown of a group: prints how many results, and bytes of them, were compared. */
int invar_sweep_report(void **state);

#endif
