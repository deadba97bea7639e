/*
 * run.c - runs one case of the oracle with one storage type and one numerics, and reports errors.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/oracle/ops/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void invar_oracle_run_init(invar_oracle_run *r, const invar_oracle *oracle, const char *name,
                           invar_dtype storage, invar_numerics numerics)
{
    memset(r, 0, sizeof *r);
    r->oracle = oracle;
    r->name = name;
    r->storage = storage;
    invar_test_device_init(&r->dev, numerics, INVAR_CPU_PATH_SIMD, 1);
}

void invar_oracle_run_release(invar_oracle_run *r)
{
    for (int i = 0; i < r->n_owned; i++)
        invar_test_free(&r->owned[i]);
    invar_test_device_release(&r->dev);
}

/* ---- tensors of the run ---------------------------------------------------------------------- */

static const invar_oracle_tensor *find_fixture(const invar_oracle_run *r, const char *name)
{
    const invar_oracle_tensor *t;
    char path[128];

    snprintf(path, sizeof path, "%s/%s/%s", r->name, invar_dtype_name(r->storage), name);
    t = invar_oracle_find(r->oracle, path);
    if (t)
        return t;
    snprintf(path, sizeof path, "%s/%s", r->name, name);
    return invar_oracle_find(r->oracle, path);
}

bool invar_oracle_has(const invar_oracle_run *r, const char *name)
{
    return find_fixture(r, name) != NULL;
}

const invar_oracle_tensor *invar_oracle_fixture(const invar_oracle_run *r, const char *name)
{
    const invar_oracle_tensor *t = find_fixture(r, name);

    if (!t)
        fail_msg("the fixtures hold no %s of %s, %s", name, r->name, invar_dtype_name(r->storage));
    return t;
}

const void *invar_oracle_data(const invar_oracle_run *r, const char *name, invar_oracle_type type,
                              int64_t count)
{
    const invar_oracle_tensor *t = invar_oracle_fixture(r, name);

    assert_int_equal(t->type, type);
    assert_int_equal(t->count, count);
    return t->data;
}

invar_tensor invar_oracle_add_owned(invar_oracle_run *r, invar_tensor t)
{
    assert_true(r->n_owned < INVAR_ORACLE_MAX_TENSORS);
    r->owned[r->n_owned++] = t;
    return t;
}

invar_tensor invar_oracle_output(invar_oracle_run *r, invar_tensor view)
{
    return invar_oracle_add_owned(r, invar_test_tensor(view));
}

invar_tensor invar_oracle_output_like(invar_oracle_run *r, const invar_tensor *model)
{
    return invar_oracle_output(r, *model);
}

invar_tensor invar_oracle_storage(invar_oracle_run *r, int64_t rows, int64_t cols)
{
    return invar_oracle_output(r, invar_tensor_2d(NULL, r->storage, rows, cols));
}

invar_tensor invar_oracle_sum(invar_oracle_run *r, const invar_tensor *model)
{
    invar_tensor t = *model;

    t.dtype = INVAR_DTYPE_F32;
    t = invar_oracle_output(r, t);
    invar_test_fill(&t, 0.0f);
    return t;
}

invar_tensor invar_oracle_input(invar_oracle_run *r, const char *name)
{
    static const invar_dtype dtypes[INVAR_ORACLE_TYPES] = {[INVAR_ORACLE_F32] = INVAR_DTYPE_F32,
                                                           [INVAR_ORACLE_BF16] = INVAR_DTYPE_BF16,
                                                           [INVAR_ORACLE_I32] = INVAR_DTYPE_I32};
    const invar_oracle_tensor *t = invar_oracle_fixture(r, name);
    invar_tensor copy =
        invar_tensor_4d(NULL, dtypes[t->type], t->shape[0], t->shape[1], t->shape[2], t->shape[3]);

    if (copy.dtype == INVAR_DTYPE_NONE)
        fail_msg("%s of %s has a type that no op takes", name, r->name);
    copy.rank = t->rank;
    copy = invar_oracle_output(r, copy);
    memcpy(copy.data, t->data, (size_t)t->count * invar_oracle_type_size(t->type));
    return copy;
}

double invar_oracle_number(const invar_oracle_run *r, const char *name)
{
    const invar_oracle_tensor *t = invar_oracle_fixture(r, name);

    assert_int_equal(t->rank, 0);
    if (t->type == INVAR_ORACLE_I64)
        return (double)*(const int64_t *)t->data;
    assert_int_equal(t->type, INVAR_ORACLE_F64);
    return *(const double *)t->data;
}

invar_row_offsets invar_oracle_row_offsets(const invar_oracle_run *r, const char *name)
{
    const invar_oracle_tensor *t = invar_oracle_fixture(r, name);

    assert_int_equal(t->type, INVAR_ORACLE_I64);
    return (invar_row_offsets){t->data, t->count - 1};
}

/* ---- comparison ------------------------------------------------------------------------------ */

static double expected_at(const invar_oracle_tensor *t, int64_t i)
{
    return t->type == INVAR_ORACLE_F64 ? ((const double *)t->data)[i]
                                       : (double)((const float *)t->data)[i];
}

/* Returns the error against the expected values shifted by `shift` elements. */
static invar_oracle_error error_of(const invar_tensor *got, const invar_oracle_tensor *t,
                                   int64_t shift)
{
    int64_t cols = invar_tensor_row_elements(got);
    double squares = 0.0, squared_errors = 0.0, worst = 0.0, size;

    assert_true(t->type == INVAR_ORACLE_F32 || t->type == INVAR_ORACLE_F64);
    assert_int_equal(got->shape[0] * cols, t->count);
    for (int64_t i = 0; i < t->count; i++)
        squares += expected_at(t, i) * expected_at(t, i);
    size = sqrt(squares / (double)t->count);
    for (int64_t i = 0; i < t->count; i++) {
        double expected = expected_at(t, (i + shift) % t->count);
        double error = fabs((double)invar_test_get(got, i / cols, i % cols) - expected);
        squared_errors += error * error; // NaN stays in this sum
        worst = fmax(worst, error / fmax(fabs(expected), size));
    }
    return (invar_oracle_error){worst, sqrt(squared_errors / squares)};
}

static bool is_within(const invar_oracle_run *r, invar_oracle_error error, invar_oracle_limit limit)
{
    invar_oracle_error max_error = r->storage == INVAR_DTYPE_F32 ? limit.f32 : limit.bf16;

    return error.worst <= max_error.worst && error.norm <= max_error.norm;
}

/* One line of the report. */
typedef struct report_line {
    char what[40];
    char name[32];
    invar_oracle_error error[2][INVAR_NUMERICS_COUNT]; /* [0] for storage f32, [1] for bf16 */
    invar_oracle_limit limit;
} report_line;

static report_line lines[200];
static int n_lines;

static report_line *find_line(const char *what, const char *name)
{
    report_line *l = lines;

    while (l < lines + n_lines && (strcmp(l->what, what) != 0 || strcmp(l->name, name) != 0))
        l++;
    if (l == lines + n_lines) {
        assert_true((size_t)++n_lines <= sizeof lines / sizeof *lines);
        snprintf(l->what, sizeof l->what, "%s", what);
        snprintf(l->name, sizeof l->name, "%s", name);
    }
    return l;
}

static void keep_larger(invar_oracle_error *kept, invar_oracle_error error)
{
    kept->worst = fmax(kept->worst, error.worst);
    kept->norm = fmax(kept->norm, error.norm);
}

static void report_error(const invar_oracle_run *r, const char *what, const char *name,
                         invar_oracle_error error, invar_oracle_limit limit)
{
    report_line *l = find_line(what, name);

    keep_larger(&l->error[r->storage == INVAR_DTYPE_BF16][r->dev.numerics], error);
    keep_larger(&l->limit.f32, limit.f32);
    keep_larger(&l->limit.bf16, limit.bf16);
}

void invar_oracle_expect(const invar_oracle_run *r, const char *what, const char *name,
                         const invar_tensor *got, invar_oracle_limit limit)
{
    const invar_oracle_tensor *t = invar_oracle_fixture(r, name);
    invar_oracle_error error = error_of(got, t, 0);

    report_error(r, what, name, error, limit);
    if (!is_within(r, error, limit))
        fail_msg("%s of %s (%s, %s, %s): error %.3g, in the norm %.3g: outside its limit", name,
                 what, r->name, invar_dtype_name(r->storage), invar_numerics_name(r->dev.numerics),
                 error.worst, error.norm);
    if (t->count > 1 && is_within(r, error_of(got, t, 1), limit))
        fail_msg("%s of %s (%s): a shifted result would pass", name, what, r->name);
}

void invar_oracle_reject(const invar_oracle_run *r, const char *name, const invar_tensor *got,
                         invar_oracle_limit limit)
{
    if (is_within(r, error_of(got, invar_oracle_fixture(r, name), 0), limit))
        fail_msg("%s (%s, %s): the wrong result passes", name, r->name,
                 invar_dtype_name(r->storage));
}

void invar_oracle_expect_bits(const invar_oracle_run *r, const char *name, const void *got,
                              size_t bytes)
{
    const invar_oracle_tensor *t = invar_oracle_fixture(r, name);
    size_t size = invar_oracle_type_size(t->type);
    const char *a = got, *b = t->data;

    assert_int_equal((size_t)t->count * size, bytes);
    for (int64_t i = 0; i < t->count; i++, a += size, b += size)
        if (memcmp(a, b, size) != 0)
            fail_msg("%s (%s, %s): element %" PRId64 " of %" PRId64 " differs", name, r->name,
                     invar_dtype_name(r->storage), i, t->count);
}

void invar_oracle_expect_equal(const invar_oracle_run *r, const char *name, const invar_tensor *got)
{
    int64_t count = got->shape[0] * invar_tensor_row_elements(got);

    invar_oracle_expect_bits(r, name, got->data,
                             (size_t)(count * invar_dtype_bits(got->dtype) / 8));
}

static void print_cell(invar_oracle_error error)
{
    printf(" %.1e, %.1e |", error.worst, error.norm);
}

void invar_oracle_report(const invar_oracle *oracle)
{
    printf(
        "%s\n\n| op | result | f32, ieee | f32, sm90 | limit | bf16, ieee | bf16, sm90 | limit |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n",
        oracle->origin);
    for (const report_line *l = lines; l < lines + n_lines; l++) {
        printf("| %s | %s |", l->what, l->name);
        print_cell(l->error[0][INVAR_NUMERICS_IEEE]);
        print_cell(l->error[0][INVAR_NUMERICS_SM90]);
        print_cell(l->limit.f32);
        print_cell(l->error[1][INVAR_NUMERICS_IEEE]);
        print_cell(l->error[1][INVAR_NUMERICS_SM90]);
        print_cell(l->limit.bf16);
        printf("\n");
    }
}
