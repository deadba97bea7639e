/*
 * run.h - runs one case of the oracle with one storage type and one numerics.
 *
 * The tensor NAME of a case is in the fixtures as CASE/STORAGE/NAME, or as CASE/NAME if it is the
 * same for every storage type. Tensors live until the run is released. A missing tensor and a
 * result outside its limit fail the test.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_ORACLE_OPS_RUN_H
#define INVAR_TESTS_ORACLE_OPS_RUN_H

#include "tests/ops.h"
#include "tests/oracle/oracle.h"

#define INVAR_ORACLE_MAX_TENSORS 160

typedef struct invar_oracle_run {
    const invar_oracle *oracle;
    const char *name; /* name of the case */
    invar_dtype storage;
    invar_device dev;
    invar_tensor owned[INVAR_ORACLE_MAX_TENSORS];
    int n_owned;
} invar_oracle_run;

void invar_oracle_run_init(invar_oracle_run *r, const invar_oracle *oracle, const char *name,
                           invar_dtype storage, invar_numerics numerics);
void invar_oracle_run_release(invar_oracle_run *r);

/* ---- tensors of the run ---------------------------------------------------------------------- */

/* Returns the tensor of the fixtures. */
const invar_oracle_tensor *invar_oracle_fixture(const invar_oracle_run *r, const char *name);
bool invar_oracle_has(const invar_oracle_run *r, const char *name);

/* Returns the data of a tensor, which must have `count` elements of this type. */
const void *invar_oracle_data(const invar_oracle_run *r, const char *name, invar_oracle_type type,
                              int64_t count);

/* Returns a copy of an input of type f32, bf16 or i32. */
invar_tensor invar_oracle_input(invar_oracle_run *r, const char *name);

/* Returns an attribute: an i64 or f64 without extents. */
double invar_oracle_number(const invar_oracle_run *r, const char *name);

invar_row_offsets invar_oracle_row_offsets(const invar_oracle_run *r, const char *name);

/* Returns a tensor for a result, filled with NaN, with the shape and type of `view`. */
invar_tensor invar_oracle_output(invar_oracle_run *r, invar_tensor view);

/* Like invar_oracle_output, with the type and shape of `model`, or with the storage type. */
invar_tensor invar_oracle_output_like(invar_oracle_run *r, const invar_tensor *model);
invar_tensor invar_oracle_storage(invar_oracle_run *r, int64_t rows, int64_t cols);

/* Returns f32 zeros in the shape of `model`, for gradients that accumulate. */
invar_tensor invar_oracle_sum(invar_oracle_run *r, const invar_tensor *model);

/* Makes the run free `t` when it is released, and returns `t`. */
invar_tensor invar_oracle_add_owned(invar_oracle_run *r, invar_tensor t);

/* ---- comparison ------------------------------------------------------------------------------ */

/*
 * Two errors of a tensor. `worst` is the largest error of an element, relative to that element or
 * to the root mean square of all, whichever is larger. `norm` is the error in the Euclidean norm,
 * relative to the norm of the tensor. A wrong element shows in `worst`, a wrong factor in `norm`.
 */
typedef struct invar_oracle_error {
    double worst;
    double norm;
} invar_oracle_error;

/* The largest accepted errors of runs with storage f32 and bf16. */
typedef struct invar_oracle_limit {
    invar_oracle_error f32;
    invar_oracle_error bf16;
} invar_oracle_limit;

/*
 * Compares `got` with the expected result `name`; the error is reported as (what, name). Control:
 * the expected values shifted by one element must be outside the limit.
 */
void invar_oracle_expect(const invar_oracle_run *r, const char *what, const char *name,
                         const invar_tensor *got, invar_oracle_limit limit);

/* Negative control: a deliberately wrong result must be outside the limit. */
void invar_oracle_reject(const invar_oracle_run *r, const char *name, const invar_tensor *got,
                         invar_oracle_limit limit);

/* Checks that `got`, which has `bytes` bytes of any type, equals the fixture bit for bit. */
void invar_oracle_expect_bits(const invar_oracle_run *r, const char *name, const void *got,
                              size_t bytes);
/* Like invar_oracle_expect_bits, for the data of a contiguous tensor. */
void invar_oracle_expect_equal(const invar_oracle_run *r, const char *name,
                               const invar_tensor *got);

/* Prints the errors of all comparisons so far as a Markdown table. */
void invar_oracle_report(const invar_oracle *oracle);

#endif
