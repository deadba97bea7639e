/*
 * sweep.h - shared by the sweeps of tests/gpu: a device, tensors in its memory, comparison.
 *
 * The same program runs on every backend (INVAR_TEST_DEVICE, tests/device/copying_backend.h): on a
 * GPU with sizes around the edges of its kernels, on the CPU with small ones, so that the sweep
 * itself is tested. Results are compared byte by byte on the host; outputs are zeroed before an op
 * runs.
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
    bool large; /* sizes for a GPU */
    void *blocks[INVAR_SWEEP_MAX_BLOCKS];
    int n_blocks;
    void *scratch;
    size_t scratch_bytes;
} invar_sweep;

/*
 * Opens one device per numerics and program, which stays open. invar_sweep_release frees the
 * tensors that were made after a mark.
 */
invar_sweep *invar_sweep_begin(invar_numerics numerics);
int invar_sweep_mark(const invar_sweep *s);
void invar_sweep_release(invar_sweep *s, int mark);

/* Returns the first size for a GPU, the second one for a CPU. */
int64_t invar_sweep_size(const invar_sweep *s, int64_t large, int64_t small);

/* Runs invar_<op> on args; fails the test if that fails. */
void invar_sweep_run(invar_sweep *s, invar_op op, const void *args);

/* ---- tensors, contiguous, in the device's memory --------------------------------------------- */

/* Allocates zeroed data and scales for a view without data. */
invar_tensor invar_sweep_tensor(invar_sweep *s, invar_tensor view);
invar_tensor invar_sweep_2d(invar_sweep *s, invar_dtype dtype, int64_t rows, int64_t cols);

/* Fill or make tensors: normal numbers from a seed; all elements equal; indices below a bound. */
void invar_sweep_fill_normal(const invar_sweep *s, const invar_tensor *t, uint64_t seed,
                             float scale);
void invar_sweep_fill(const invar_sweep *s, const invar_tensor *t, float value);
void invar_sweep_fill_index(const invar_sweep *s, const invar_tensor *t, uint64_t seed,
                            int32_t bound);
invar_tensor invar_sweep_normal(invar_sweep *s, invar_dtype dtype, int64_t rows, int64_t cols,
                                uint64_t seed);

/*
 * Returns `plain` in the format `dtype`, or itself if it has that type; fp8 weights get 128x128
 * scales.
 */
invar_tensor invar_sweep_quantized(invar_sweep *s, const invar_tensor *plain, invar_dtype dtype,
                                   bool weight);

/* Copies numbers from the host. */
const int64_t *invar_sweep_numbers(invar_sweep *s, const int64_t *values, int64_t count);

/* Copies the bytes of a tensor on the heap, without scales. */
void invar_sweep_upload(const invar_sweep *s, const invar_tensor *t, const void *host);

/* Copies rows from one tensor to another, without scales. */
void invar_sweep_copy_rows(const invar_sweep *s, const invar_tensor *to, int64_t to_row,
                           const invar_tensor *from, int64_t from_row, int64_t rows);
void invar_sweep_zero(const invar_sweep *s, const invar_tensor *t);

/* Returns a copy on the heap, scales included. Free it with invar_test_free. */
invar_tensor invar_sweep_download(const invar_sweep *s, const invar_tensor *t);

/* ---- comparison ------------------------------------------------------------------------------ */

/* Returns whether rows [first, first + got.shape[0]) of `expected`, on the heap, equal `got`. */
bool invar_sweep_equal(const invar_sweep *s, const invar_tensor *got, const invar_tensor *expected,
                       int64_t first);

/* Like invar_sweep_equal, as an assertion that prints the first difference; `what` is a format. */
void invar_sweep_assert(const invar_sweep *s, const invar_tensor *got, const invar_tensor *expected,
                        int64_t first, const char *what, ...) __attribute__((format(printf, 5, 6)));

/* Teardown of a group: prints the number of compared results and their bytes. */
int invar_sweep_report(void **state);

#endif
