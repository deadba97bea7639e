/*
 * run.h - one case of the oracle under one storage type and one numerics.
 *
 * A case has its name in the fixtures. Its tensor NAME is there as CASE/STORAGE/NAME, or CASE/NAME
 * where it is the same for every storage type. Tensors live until the run ends. A missing tensor,
 * and a result outside its limit, fail the test.
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
    const char *name; /* of the case */
    invar_dtype storage;
    invar_device dev;
    invar_tensor owned[INVAR_ORACLE_MAX_TENSORS];
    int n_owned;
} invar_oracle_run;

void invar_oracle_run_init(invar_oracle_run *r, const invar_oracle *oracle, const char *name,
                           invar_dtype storage, invar_numerics numerics);
void invar_oracle_run_release(invar_oracle_run *r);

/* ---- tensors of the run ---------------------------------------------------------------------- */

/* The tensor of the fixtures as it stands there. */
const invar_oracle_tensor *invar_oracle_fixture(const invar_oracle_run *r, const char *name);
bool invar_oracle_has(const invar_oracle_run *r, const char *name);

/* Its data, which must be `count` elements of this type. */
const void *invar_oracle_data(const invar_oracle_run *r, const char *name, invar_oracle_type type,
                              int64_t count);

/* An input of type f32, bf16 or i32. */
invar_tensor invar_oracle_given(invar_oracle_run *r, const char *name);

/* An attribute: an i64 or f64 without extents. */
double invar_oracle_number(const invar_oracle_run *r, const char *name);

invar_row_offsets invar_oracle_segments(const invar_oracle_run *r, const char *name);

/* For results; filled with NaN. */
invar_tensor invar_oracle_output(invar_oracle_run *r, invar_tensor view);

/* The same, with the type and the shape of another tensor, or of storage type. */
invar_tensor invar_oracle_like(invar_oracle_run *r, const invar_tensor *model);
invar_tensor invar_oracle_storage(invar_oracle_run *r, int64_t rows, int64_t cols);

/* f32 zeros in the shape of `model`, for gradients that accumulate. */
invar_tensor invar_oracle_sum(invar_oracle_run *r, const invar_tensor *model);

/* Frees `t` when the run ends; returns it. */
invar_tensor invar_oracle_own(invar_oracle_run *r, invar_tensor t);

/* ---- comparison ------------------------------------------------------------------------------ */

/*
 * The error of a tensor, twice: of its worst element, relative to that element or, where that is
 * larger, to the root mean square of all; and in the Euclidean norm, relative to the tensor's.
 * A wrong element shows in the first, a wrong factor in the second.
 */
typedef struct invar_oracle_error {
    double worst;
    double norm;
} invar_oracle_error;

/* The errors that are accepted in runs with the storage f32 and bf16. */
typedef struct invar_oracle_limit {
    invar_oracle_error f32;
    invar_oracle_error bf16;
} invar_oracle_limit;

/*
 * Compares with the expected result `name`; the error goes into the report as (what, name). So that
 * the comparison can fail, the expected values moved on by one place must be outside the limit.
 */
void invar_oracle_expect(const invar_oracle_run *r, const char *what, const char *name,
                         const invar_tensor *got, invar_oracle_limit limit);

/* For negative controls: a deliberately wrong result must be outside the limit. */
void invar_oracle_reject(const invar_oracle_run *r, const char *name, const invar_tensor *got,
                         invar_oracle_limit limit);

/* Equal to the bit, whatever the type; `got` holds `bytes` bytes. */
void invar_oracle_expect_bits(const invar_oracle_run *r, const char *name, const void *got,
                              size_t bytes);
/* The same for a contiguous tensor's data. */
void invar_oracle_expect_equal(const invar_oracle_run *r, const char *name,
                               const invar_tensor *got);

/* Prints the errors of all comparisons so far as a table in Markdown. */
void invar_oracle_report(const invar_oracle *oracle);

#endif
