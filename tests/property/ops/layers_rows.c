/*
 * layers_rows.c - a row's result depends on that row alone.
 *
 * Each op whose output row belongs to one input row runs with other numbers of rows, positions,
 * strides, threads, numerics and CPU paths, and with neighbors that are NaN or huge; every result
 * is compared with one run of all rows. Two controls must be detected: an op that divides by a
 * mean over the batch, and one that sums a row in one accumulator per thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "tests/ops.h"

enum { ROWS = 300, VOCABULARY = 40, POSITIONS = 64, HEAD = 64, MAX_TENSORS = 5 };

/* Inputs of an op that are the same for all rows. */
typedef struct constants {
    invar_tensor weight, head_weight, table, cosine, sine;
} constants;

typedef struct row_op {
    const char *name;
    int outputs; /* the first ones of `views` */
    int tensors;
    invar_tensor views[MAX_TENSORS]; /* shapes with ROWS rows, without data */
    invar_status (*run)(const invar_device *dev, const invar_tensor *t, const constants *c);
} row_op;

/* ---- the ops --------------------------------------------------------------------------------- */

static invar_status run_add(const invar_device *dev, const invar_tensor *t, const constants *c)
{
    (void)c;
    return invar_add(dev, &(invar_add_args){t[0], t[1], t[2]});
}

static invar_status run_embedding(const invar_device *dev, const invar_tensor *t,
                                  const constants *c)
{
    return invar_embedding_fwd(dev, &(invar_embedding_fwd_args){t[0], c->table, t[1]});
}

static invar_status run_norm(const invar_device *dev, const invar_tensor *t, const constants *c)
{
    const invar_tensor *w = t[0].shape[1] == 1 ? &c->weight : &c->head_weight;

    return invar_rmsnorm_fwd(
        dev, &(invar_rmsnorm_fwd_args){.y = t[0], .x = t[1], .weight = *w, .eps = 1e-6f});
}

static invar_status run_norm_bwd(const invar_device *dev, const invar_tensor *t, const constants *c)
{
    const invar_tensor *w = t[0].shape[1] == 1 ? &c->weight : &c->head_weight;

    return invar_rmsnorm_bwd(
        dev,
        &(invar_rmsnorm_bwd_args){.dx = t[0], .dy = t[1], .x = t[2], .weight = *w, .eps = 1e-6f});
}

static invar_status run_rope(const invar_device *dev, const invar_tensor *t, const constants *c)
{
    return invar_rope_fwd(dev, &(invar_rope_fwd_args){t[0], t[1], t[2], c->cosine, c->sine});
}

static invar_status run_rope_bwd(const invar_device *dev, const invar_tensor *t, const constants *c)
{
    return invar_rope_bwd(dev, &(invar_rope_bwd_args){t[0], t[1], t[2], c->cosine, c->sine});
}

static invar_status run_swiglu(const invar_device *dev, const invar_tensor *t, const constants *c)
{
    (void)c;
    return invar_swiglu_fwd(dev, &(invar_swiglu_fwd_args){.y = t[0], .gate = t[1], .up = t[2]});
}

static invar_status run_swiglu_bwd(const invar_device *dev, const invar_tensor *t,
                                   const constants *c)
{
    (void)c;
    return invar_swiglu_bwd(
        dev,
        &(invar_swiglu_bwd_args){.dgate = t[0], .dup = t[1], .dy = t[2], .gate = t[3], .up = t[4]});
}

static invar_status run_quantize(const invar_device *dev, const invar_tensor *t, const constants *c)
{
    (void)c;
    return invar_quantize(dev, &(invar_quantize_args){t[0], t[1]});
}

static invar_status run_dequantize(const invar_device *dev, const invar_tensor *t,
                                   const constants *c)
{
    (void)c;
    return invar_dequantize(dev, &(invar_dequantize_args){t[0], t[1]});
}

/* ---- controls -------------------------------------------------------------------------------- */

/* Control: divides by a sum over all rows, so the result depends on the batch. */
static invar_status run_batch_mean(const invar_device *dev, const invar_tensor *t,
                                   const constants *c)
{
    (void)dev, (void)c;
    for (int64_t j = 0; j < t[0].shape[1]; j++) {
        float sum = 0.0f;
        for (int64_t i = 0; i < t[0].shape[0]; i++)
            sum += fabsf(invar_test_get(&t[1], i, j));
        for (int64_t i = 0; i < t[0].shape[0]; i++)
            invar_test_set(&t[0], i, j, invar_test_get(&t[1], i, j) / sum);
    }
    return INVAR_OK;
}

/* Control: sums a row in one accumulator per thread, so the result depends on the threads. */
static invar_status run_split_sum(const invar_device *dev, const invar_tensor *t,
                                  const constants *c)
{
    int threads = invar_pool_threads(dev->pool);

    (void)c;
    for (int64_t i = 0; i < t[0].shape[0]; i++) {
        float lanes[8] = {0}, sum = 0.0f;
        for (int64_t j = 0; j < t[1].shape[1]; j++)
            lanes[j % threads] += invar_test_get(&t[1], i, j);
        for (int k = 0; k < threads; k++)
            sum += lanes[k];
        for (int64_t j = 0; j < t[0].shape[1]; j++)
            invar_test_set(&t[0], i, j, sum);
    }
    return INVAR_OK;
}

/* ---- the sweep ------------------------------------------------------------------------------- */

typedef struct sweep {
    const invar_device *devices; /* (INVAR_TEST_DEVICES) */
    const row_op *op;
    const constants *row_inputs;
    invar_tensor
        expected_all[MAX_TENSORS]; /* inputs of all ROWS rows, and the outputs expected for them */
} sweep;

static invar_tensor with_rows(invar_tensor view, int64_t rows, int64_t gap)
{
    view.shape[0] = rows;
    return invar_test_strided(view, view.rank > 1 ? gap : 0);
}

/*
 * Fills with 0 if the rows are indices, with 3e38 if `huge`, so that a sum of two is infinite;
 * otherwise the NaN of a new tensor stays.
 */
static void fill_neighbors(const invar_tensor *t, bool huge)
{
    if (t->dtype == INVAR_DTYPE_I32)
        invar_test_fill(t, 0.0f);
    else if (huge && (t->dtype == INVAR_DTYPE_F32 || t->dtype == INVAR_DTYPE_BF16))
        invar_test_fill(t, 3e38f);
}

/*
 * Runs a batch of `rows` rows that has the base rows [first, first + count) at position `at` and
 * neighbors elsewhere. Returns whether these rows have the expected results.
 */
static bool rows_match(const sweep *s, int64_t device, int64_t rows, int64_t at, int64_t first,
                       int64_t count, int64_t gap, bool huge)
{
    const row_op *op = s->op;
    invar_tensor t[MAX_TENSORS] = {{0}};
    bool equal = true;

    for (int i = 0; i < op->tensors; i++) {
        t[i] = with_rows(op->views[i], rows, i < op->outputs ? gap + 4 : gap);
        if (i >= op->outputs) {
            fill_neighbors(&t[i], huge);
            invar_test_copy_rows(&t[i], at, &s->expected_all[i], first, count);
        }
    }
    assert_ok(op->run(&s->devices[device % INVAR_TEST_DEVICES], t, s->row_inputs));
    for (int i = 0; i < op->outputs; i++) {
        invar_tensor got = invar_tensor_rows(&t[i], at, count);
        invar_tensor expected = invar_tensor_rows(&s->expected_all[i], first, count);
        equal = equal && !invar_tensors_differ(&got, &expected);
    }
    for (int i = 0; i < op->tensors; i++)
        invar_test_free(&t[i]);
    return equal;
}

static void sweep_init(sweep *s, const invar_device *devices, const row_op *op,
                       const constants *row_inputs)
{
    s->devices = devices;
    s->op = op;
    s->row_inputs = row_inputs;
    for (int i = 0; i < op->tensors; i++) {
        s->expected_all[i] = with_rows(op->views[i], ROWS, 0);
        if (i < op->outputs)
            continue;
        if (s->expected_all[i].dtype == INVAR_DTYPE_I32)
            invar_test_fill_index(&s->expected_all[i], (uint64_t)i, VOCABULARY);
        else if (!s->expected_all[i].scale)
            invar_test_fill_normal(&s->expected_all[i], (uint64_t)i, 1.0f);
    }
    if (s->expected_all[op->tensors - 1].scale) { // dequantize needs valid codes
        invar_tensor x = with_rows(op->views[0], ROWS, 0);
        invar_test_fill_normal(&x, 9, 1.0f);
        assert_ok(invar_quantize(&devices[0], &(invar_quantize_args){s->expected_all[1], x}));
        invar_test_free(&x);
    }
    assert_ok(op->run(&devices[0], s->expected_all, row_inputs));
}

static void sweep_release(sweep *s)
{
    for (int i = 0; i < s->op->tensors; i++)
        invar_test_free(&s->expected_all[i]);
}

/* Returns the condition that the bits depend on; NULL if there is none. */
static const char *dependence(const invar_device *devices, const row_op *op,
                              const constants *row_inputs)
{
    static const int64_t few[] = {1, 2, 3, 7, 16, 31, 64, 129, 255, ROWS};
    int64_t steps = invar_test_full() ? ROWS : (int64_t)(sizeof few / sizeof *few);
    const char *found = NULL;
    sweep s;

    sweep_init(&s, devices, op, row_inputs);
    for (int i = 0; i < INVAR_TEST_DEVICES && !found; i++)
        if (!rows_match(&s, i, ROWS, 0, 0, ROWS, 2 * i, false))
            found = "threads, numerics, CPU path or strides";
    for (int64_t i = 0; i < steps && !found; i++) {
        int64_t rows = invar_test_full() ? i + 1 : few[i];
        if (!rows_match(&s, i, rows, 0, (ROWS - rows) / 2, rows, 0, false))
            found = "the number of rows";
    }
    for (int64_t at = 0; at < 19 && !found; at++)
        if (!rows_match(&s, at, 19, at, at * 15, 1, 6, at % 2))
            found = "the position or the neighbours";
    sweep_release(&s);
    return found;
}

static constants constants_new(const invar_device *dev, invar_dtype dtype)
{
    constants c = {
        .weight = invar_test_tensor(invar_tensor_1d(NULL, dtype, 640)),
        .head_weight = invar_test_tensor(invar_tensor_1d(NULL, dtype, HEAD)),
        .table = invar_test_tensor(invar_tensor_2d(NULL, dtype, VOCABULARY, 128)),
        .cosine = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, POSITIONS, HEAD / 2)),
        .sine = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, POSITIONS, HEAD / 2))};

    invar_test_fill_normal(&c.weight, 1, 1.0f);
    invar_test_fill_normal(&c.head_weight, 2, 1.0f);
    invar_test_fill_normal(&c.table, 3, 1.0f);
    assert_ok(invar_rope_table(
        dev, &(invar_rope_table_args){.cosine = c.cosine, .sine = c.sine, .theta = 10000.0}));
    return c;
}

static void constants_free(constants *c)
{
    invar_test_free(&c->weight, &c->head_weight, &c->table, &c->cosine, &c->sine);
}

static void test_layers__bits_invariant_to_batch(void **state)
{
    for (int d = 0; d < 2; d++) {
        invar_dtype dtype = invar_test_storage[d];
        invar_tensor x = invar_tensor_2d(NULL, dtype, ROWS, 640);
        invar_tensor wide = invar_tensor_3d(NULL, dtype, ROWS, 1, 640);
        invar_tensor heads = invar_tensor_3d(NULL, dtype, ROWS, 3, HEAD);
        invar_tensor narrow = invar_tensor_2d(NULL, dtype, ROWS, 128);
        invar_tensor index = invar_tensor_1d(NULL, INVAR_DTYPE_I32, ROWS);
        invar_tensor fp8 = invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_FP8, 1, ROWS, 640);
        invar_tensor mx = invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_MXFP8, 1, ROWS, 640);
        invar_tensor int4 = invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_INT4, 1, ROWS, 640);
        const row_op ops[] = {
            {"add", 1, 3, {x, x, x}, run_add},
            {"embedding.fwd", 1, 2, {narrow, index}, run_embedding},
            {"rmsnorm.fwd", 1, 2, {wide, wide}, run_norm},
            {"rmsnorm.fwd, heads", 1, 2, {heads, heads}, run_norm},
            {"rmsnorm.bwd", 1, 3, {wide, wide, wide}, run_norm_bwd},
            {"rmsnorm.bwd, heads", 1, 3, {heads, heads, heads}, run_norm_bwd},
            {"rope.fwd", 1, 3, {heads, heads, index}, run_rope},
            {"rope.bwd", 1, 3, {heads, heads, index}, run_rope_bwd},
            {"swiglu.fwd", 1, 3, {x, x, x}, run_swiglu},
            {"swiglu.bwd", 2, 5, {x, x, x, x, x}, run_swiglu_bwd},
            {"quantise fp8", 1, 2, {fp8, x}, run_quantize},
            {"quantise mxfp8", 1, 2, {mx, x}, run_quantize},
            {"quantise int4", 1, 2, {int4, x}, run_quantize},
            {"dequantise fp8", 1, 2, {x, fp8}, run_dequantize},
            {"dequantise mxfp8", 1, 2, {x, mx}, run_dequantize},
            {"dequantise int4", 1, 2, {x, int4}, run_dequantize},
        };
        constants c = constants_new(*state, dtype);

        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
            const char *found = dependence(*state, &ops[i], &c);
            if (found)
                fail_msg("%s %s: bits depend on %s", ops[i].name, invar_dtype_name(dtype), found);
        }
        constants_free(&c);
    }
}

static void test_layers__controls_are_caught(void **state)
{
    invar_tensor x = invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, 64);
    const row_op mean = {"batch mean", 1, 2, {x, x}, run_batch_mean};
    const row_op split = {"split sum", 1, 2, {x, x}, run_split_sum};

    assert_string_equal(dependence(*state, &mean, NULL), "the number of rows");
    assert_string_equal(dependence(*state, &split, NULL), "threads, numerics, CPU path or strides");
}

/* Rows of a 128x128 band share scales, but a band depends on no other band. */
static void test_quantize__bits_invariant_to_other_bands(void **state)
{
    const invar_device *devices = *state;
    invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 384, 256));
    invar_tensor q =
        invar_test_tensor(invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_FP8, 128, 384, 256));
    invar_tensor alone =
        invar_test_tensor(invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_FP8, 128, 128, 256));

    invar_test_fill_normal(&x, 1, 1.0f);
    for (int i = 0; i < INVAR_TEST_DEVICES; i++)
        for (int64_t band = 0; band < 3; band++) {
            invar_tensor rows = invar_tensor_rows(&x, band * 128, 128), got;
            assert_ok(invar_quantize(&devices[i], &(invar_quantize_args){q, x}));
            assert_ok(invar_quantize(&devices[0], &(invar_quantize_args){alone, rows}));
            got = invar_tensor_rows(&q, band * 128, 128);
            invar_assert_bits_tensor(&got, &alone, "a band of fp8 128x128");
        }
    invar_test_free(&x, &q, &alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers__bits_invariant_to_batch),
        cmocka_unit_test(test_layers__controls_are_caught),
        cmocka_unit_test(test_quantize__bits_invariant_to_other_bands),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
