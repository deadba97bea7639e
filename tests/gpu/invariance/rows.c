/*
 * rows.c - ops on rows are bit-invariant at the numbers of rows that a GPU processes at a time.
 *
 * Each result must be the same bytes for one row at every position of a large batch, for the same
 * rows in parts of any size, and for log-probs and samples of a complete vocabulary in any order.
 * Controls: scales that belong to several rows, and all tokens as one unit, change results.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/invariance/sweep.h"

#define F32 INVAR_DTYPE_F32
#define BF16 INVAR_DTYPE_BF16
#define I32 INVAR_DTYPE_I32

enum { MAX_TENSORS = 5, HEAD = 64, VOCABULARY = 500, POSITIONS = 500 };

/* Operands of a call other than its rows. */
typedef struct constants {
    invar_tensor weight, head_weight, table, cosine, sine;
} constants;

typedef struct row_op {
    const char *name;
    int outputs, tensors; /* outputs come first */
    invar_tensor views[MAX_TENSORS];
    void (*run)(invar_sweep *s, const invar_tensor *t, const constants *c);
} row_op;

/* ---- the ops --------------------------------------------------------------------------------- */

static void run_add(invar_sweep *s, const invar_tensor *t, const constants *c)
{
    (void)c;
    invar_sweep_run(s, INVAR_OP_ADD, &(invar_add_args){t[0], t[1], t[2]});
}

static void run_embedding(invar_sweep *s, const invar_tensor *t, const constants *c)
{
    invar_sweep_run(s, INVAR_OP_EMBEDDING_FWD, &(invar_embedding_fwd_args){t[0], c->table, t[1]});
}

static void run_norm(invar_sweep *s, const invar_tensor *t, const constants *c)
{
    invar_rmsnorm_fwd_args args = {.y = t[0],
                                   .x = t[1],
                                   .weight = t[0].shape[1] == 1 ? c->weight : c->head_weight,
                                   .eps = 1e-6f};

    invar_sweep_run(s, INVAR_OP_RMSNORM_FWD, &args);
}

static void run_norm_bwd(invar_sweep *s, const invar_tensor *t, const constants *c)
{
    invar_rmsnorm_bwd_args args = {.dx = t[0],
                                   .dy = t[1],
                                   .x = t[2],
                                   .weight = t[0].shape[1] == 1 ? c->weight : c->head_weight,
                                   .eps = 1e-6f};

    invar_sweep_run(s, INVAR_OP_RMSNORM_BWD, &args);
}

/* The first ops of a layer: the residual, its norm, the norm quantized. */
static void run_add_norm_quantize(invar_sweep *s, const invar_tensor *t, const constants *c)
{
    int mark = invar_sweep_mark(s);
    int64_t rows = t[0].shape[0], d = t[0].shape[1];
    invar_tensor x = invar_tensor_3d(t[1].data, t[1].dtype, rows, 1, d);
    invar_tensor y = invar_sweep_tensor(s, invar_tensor_3d(NULL, t[1].dtype, rows, 1, d));
    invar_tensor flat = invar_tensor_2d(y.data, y.dtype, rows, d);

    invar_sweep_run(s, INVAR_OP_ADD, &(invar_add_args){t[1], t[2], t[3]});
    invar_sweep_run(s, INVAR_OP_RMSNORM_FWD,
                    &(invar_rmsnorm_fwd_args){.y = y, .x = x, .weight = c->weight, .eps = 1e-6f});
    invar_sweep_run(s, INVAR_OP_QUANTIZE, &(invar_quantize_args){t[0], flat});
    invar_sweep_release(s, mark);
}

static void run_rope(invar_sweep *s, const invar_tensor *t, const constants *c)
{
    invar_sweep_run(s, INVAR_OP_ROPE_FWD,
                    &(invar_rope_fwd_args){t[0], t[1], t[2], c->cosine, c->sine});
}

static void run_swiglu(invar_sweep *s, const invar_tensor *t, const constants *c)
{
    (void)c;
    invar_sweep_run(s, INVAR_OP_SWIGLU_FWD,
                    &(invar_swiglu_fwd_args){.y = t[0], .gate = t[1], .up = t[2]});
}

static void run_swiglu_bwd(invar_sweep *s, const invar_tensor *t, const constants *c)
{
    (void)c;
    invar_sweep_run(
        s, INVAR_OP_SWIGLU_BWD,
        &(invar_swiglu_bwd_args){.dgate = t[0], .dup = t[1], .dy = t[2], .gate = t[3], .up = t[4]});
}

static void run_quantize(invar_sweep *s, const invar_tensor *t, const constants *c)
{
    (void)c;
    invar_sweep_run(s, INVAR_OP_QUANTIZE, &(invar_quantize_args){t[0], t[1]});
}

static constants constants_new(invar_sweep *s, invar_dtype dtype, int64_t d)
{
    constants c = {.weight = invar_sweep_tensor(s, invar_tensor_1d(NULL, dtype, d)),
                   .head_weight = invar_sweep_tensor(s, invar_tensor_1d(NULL, dtype, HEAD)),
                   .table = invar_sweep_normal(s, dtype, VOCABULARY, d, 3),
                   .cosine = invar_sweep_2d(s, F32, POSITIONS, HEAD / 2),
                   .sine = invar_sweep_2d(s, F32, POSITIONS, HEAD / 2)};
    invar_rope_table_args table = {.cosine = c.cosine, .sine = c.sine, .theta = 10000.0};

    invar_sweep_fill_normal(s, &c.weight, 1, 1.0f);
    invar_sweep_fill_normal(s, &c.head_weight, 2, 1.0f);
    invar_sweep_run(s, INVAR_OP_ROPE_TABLE, &table);
    return c;
}

/* ---- the sweep ------------------------------------------------------------------------------- */

/* Runs the op on rows [first, first + count) with zeroed outputs. */
static void run_rows(invar_sweep *s, const row_op *op, const constants *c, invar_tensor *part,
                     const invar_tensor *t, int64_t first, int64_t count)
{
    for (int i = 0; i < op->tensors; i++) {
        part[i] = invar_tensor_rows(&t[i], first, count);
        if (i < op->outputs) {
            invar_sweep_zero(s, &part[i]);
            if (part[i].scale)
                assert_ok(
                    invar_device_zero(&s->dev, part[i].scale, invar_tensor_scale_bytes(&part[i])));
        }
    }
    op->run(s, part, c);
}

/* Compares data and scales. */
static void check_part(const invar_sweep *s, const row_op *op, const invar_tensor *part,
                       const invar_tensor *expected, int64_t first, const char *what)
{
    for (int i = 0; i < op->outputs; i++) {
        invar_sweep_assert(s, &part[i], &expected[i], first, "%s, %s of %d rows from %d", op->name,
                           what, (int)part[i].shape[0], (int)first);
        if (part[i].scale) {
            invar_tensor rows = invar_tensor_rows(&expected[i], first, part[i].shape[0]);
            invar_tensor got = invar_sweep_download(s, &part[i]);

            invar_assert_bits_tensor(&got, &rows, op->name);
            invar_test_free(&got);
        }
    }
}

/* One row at every position: all rows of the inputs become copies of row `probe`. */
static void check_copies(invar_sweep *s, const row_op *op, const constants *c,
                         const invar_tensor *t, const invar_tensor *expected, int64_t probe)
{
    int64_t rows = t[0].shape[0];
    invar_tensor many[MAX_TENSORS], part[MAX_TENSORS];

    for (int i = op->outputs; i < op->tensors; i++) {
        invar_sweep_copy_rows(s, &t[i], 0, &t[i], probe, 1);
        for (int64_t have = 1; have < rows; have *= 2)
            invar_sweep_copy_rows(s, &t[i], have, &t[i], 0,
                                  rows - have < have ? rows - have : have);
    }
    for (int i = 0; i < op->outputs; i++) {
        many[i] = invar_test_tensor(t[i]);
        for (int64_t row = 0; row < rows; row++)
            invar_test_copy_rows(&many[i], row, &expected[i], probe, 1);
    }
    run_rows(s, op, c, part, t, 0, rows);
    check_part(s, op, part, many, 0, "copies");
    for (int i = 0; i < op->outputs; i++)
        invar_test_free(&many[i]);
}

static void check_op(invar_sweep *s, const row_op *op, const constants *c, int64_t rows)
{
    static const int64_t counts[] = {1,   2,   3,   7,   8,    31,   32,   33,   128, 129,
                                     255, 256, 257, 300, 1000, 1024, 1025, 4097, 9999};
    int mark = invar_sweep_mark(s);
    invar_tensor t[MAX_TENSORS], part[MAX_TENSORS], expected[MAX_TENSORS];

    for (int i = 0; i < op->tensors; i++) {
        invar_tensor view = op->views[i];

        view.shape[0] = rows;
        t[i] = invar_sweep_tensor(s, view);
        if (i >= op->outputs && view.dtype == I32)
            invar_sweep_fill_index(s, &t[i], (uint64_t)i, VOCABULARY);
        else if (i >= op->outputs)
            invar_sweep_fill_normal(s, &t[i], 40 + (uint64_t)i, 1.0f);
    }
    op->run(s, t, c);
    for (int i = 0; i < op->outputs; i++)
        expected[i] = invar_sweep_download(s, &t[i]);
    for (size_t n = 0; n < sizeof counts / sizeof *counts && counts[n] < rows; n++)
        for (int place = 0; place < 2; place++) {
            int64_t first = place ? rows - counts[n] : (rows - counts[n]) / 2;

            run_rows(s, op, c, part, t, first, counts[n]);
            check_part(s, op, part, expected, first, "piece");
        }
    for (int64_t row = 0; row < invar_sweep_size(s, 300, 20); row++) {
        run_rows(s, op, c, part, t, row, 1);
        check_part(s, op, part, expected, row, "row");
    }
    check_copies(s, op, c, t, expected, rows / 3);
    for (int i = 0; i < op->outputs; i++)
        invar_test_free(&expected[i]);
    invar_sweep_release(s, mark);
}

static void test_rows__bits_invariant_to_batch(void **state)
{
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
    const int64_t d = invar_sweep_size(s, 1024, 256), rows = invar_sweep_size(s, 32768, 140);

    (void)state;
    for (int storage = 0; storage < 2; storage++) {
        invar_dtype dtype = invar_test_storage[storage];
        int mark = invar_sweep_mark(s);
        constants c = constants_new(s, dtype, d);
        invar_tensor x = invar_tensor_2d(NULL, dtype, 1, d);
        invar_tensor wide = invar_tensor_3d(NULL, dtype, 1, 1, d);
        invar_tensor heads = invar_tensor_3d(NULL, dtype, 1, 3, HEAD);
        invar_tensor index = invar_tensor_1d(NULL, I32, 1);
        invar_tensor fp8 = invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_FP8, 1, 1, d);
        invar_tensor mx = invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_MXFP8, 1, 1, d);
        const row_op ops[] = {
            {"add", 1, 3, {x, x, x}, run_add},
            {"embedding.fwd", 1, 2, {x, index}, run_embedding},
            {"rmsnorm.fwd", 1, 2, {wide, wide}, run_norm},
            {"rmsnorm.fwd, heads", 1, 2, {heads, heads}, run_norm},
            {"rmsnorm.bwd", 1, 3, {wide, wide, wide}, run_norm_bwd},
            {"add, rmsnorm, quantise", 2, 4, {fp8, x, x, x}, run_add_norm_quantize},
            {"rope.fwd", 1, 3, {heads, heads, index}, run_rope},
            {"swiglu.fwd", 1, 3, {x, x, x}, run_swiglu},
            {"swiglu.bwd", 2, 5, {x, x, x, x, x}, run_swiglu_bwd},
            {"quantise fp8", 1, 2, {fp8, x}, run_quantize},
            {"quantise mxfp8", 1, 2, {mx, x}, run_quantize},
        };

        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
            check_op(s, &ops[i], &c, storage == 0 && s->large ? rows / 8 : rows);
        invar_sweep_release(s, mark);
    }
}

/* ---- log-probabilities and samples ----------------------------------------------------------- */

enum { LOGP, ENTROPY, MAX, LOGSUM, DLOGITS, TOKENS, RESULTS };

static const char *const names[RESULTS] = {"logp", "entropy", "max", "logsum", "dlogits", "tokens"};

typedef struct head {
    invar_tensor logits, targets, dlogp, dentropy, coords; /* coords: (T, 3) i32 */
    invar_tensor at[RESULTS];
} head;

static head head_new(invar_sweep *s, int64_t rows, int64_t vocabulary)
{
    head h = {.logits = invar_sweep_2d(s, F32, rows, vocabulary),
              .targets = invar_sweep_tensor(s, invar_tensor_1d(NULL, I32, rows)),
              .dlogp = invar_sweep_tensor(s, invar_tensor_1d(NULL, F32, rows)),
              .dentropy = invar_sweep_tensor(s, invar_tensor_1d(NULL, F32, rows)),
              .coords = invar_sweep_2d(s, I32, rows, 3),
              .at = {[DLOGITS] = invar_sweep_2d(s, BF16, rows, vocabulary),
                     [TOKENS] = invar_sweep_tensor(s, invar_tensor_1d(NULL, I32, rows))}};

    for (int i = LOGP; i <= LOGSUM; i++)
        h.at[i] = invar_sweep_tensor(s, invar_tensor_1d(NULL, F32, rows));
    return h;
}

static head head_rows(const head *h, int64_t first, int64_t rows)
{
    head view = {.logits = invar_tensor_rows(&h->logits, first, rows),
                 .targets = invar_tensor_rows(&h->targets, first, rows),
                 .dlogp = invar_tensor_rows(&h->dlogp, first, rows),
                 .dentropy = invar_tensor_rows(&h->dentropy, first, rows),
                 .coords = invar_tensor_rows(&h->coords, first, rows)};

    for (int i = 0; i < RESULTS; i++)
        view.at[i] = invar_tensor_rows(&h->at[i], first, rows);
    return view;
}

static void head_run(invar_sweep *s, const head *h)
{
    invar_logprob_fwd_args fwd = {h->at[LOGP], h->at[ENTROPY], h->at[MAX], h->at[LOGSUM],
                                  h->logits,   h->targets,     0.8f};
    invar_logprob_bwd_args bwd = {.dlogits = h->at[DLOGITS],
                                  .dlogp = h->dlogp,
                                  .dentropy = h->dentropy,
                                  .entropy = h->at[ENTROPY],
                                  .max = h->at[MAX],
                                  .logsum = h->at[LOGSUM],
                                  .logits = h->logits,
                                  .targets = h->targets,
                                  .temperature = 0.8f};
    invar_sample_args sample = {.tokens = h->at[TOKENS],
                                .logits = h->logits,
                                .coords = h->coords.data,
                                .seed = 42,
                                .temperature = 0.8f,
                                .top_p = 0.95f,
                                .top_k = h->logits.shape[1] > 1000 ? 0 : 50};

    for (int i = 0; i < RESULTS; i++)
        invar_sweep_zero(s, &h->at[i]);
    invar_sweep_run(s, INVAR_OP_LOGPROB_FWD, &fwd);
    invar_sweep_run(s, INVAR_OP_LOGPROB_BWD, &bwd);
    invar_sweep_run(s, INVAR_OP_SAMPLE, &sample);
}

/* Places row order[i] of `all` at position i; each result must equal that of its row. */
static void check_order(invar_sweep *s, const head *all, const invar_tensor *expected,
                        const int64_t *order, int64_t count, const char *what)
{
    int mark = invar_sweep_mark(s);
    head h = head_new(s, count, all->logits.shape[1]);
    const invar_tensor *to[] = {&h.logits, &h.targets, &h.dlogp, &h.dentropy, &h.coords};
    const invar_tensor *from[] = {&all->logits, &all->targets, &all->dlogp, &all->dentropy,
                                  &all->coords};

    for (int64_t i = 0; i < count; i++)
        for (int n = 0; n < 5; n++)
            invar_sweep_copy_rows(s, to[n], i, from[n], order[i], 1);
    head_run(s, &h);
    for (int n = 0; n < RESULTS; n++) {
        invar_tensor ordered = invar_test_tensor(h.at[n]);

        for (int64_t i = 0; i < count; i++)
            invar_test_copy_rows(&ordered, i, &expected[n], order[i], 1);
        invar_sweep_assert(s, &h.at[n], &ordered, 0, "%s of %d rows, %s", names[n], (int)count,
                           what);
        invar_test_free(&ordered);
    }
    invar_sweep_release(s, mark);
}

static void check_vocabulary(invar_sweep *s, int64_t rows, int64_t vocabulary)
{
    int mark = invar_sweep_mark(s);
    head all = head_new(s, rows, vocabulary);
    invar_tensor expected[RESULTS];
    int64_t order[300] = {0};

    invar_sweep_fill_normal(s, &all.logits, 1, 4.0f);
    invar_sweep_fill_index(s, &all.targets, 2, (int32_t)vocabulary);
    invar_sweep_fill_normal(s, &all.dlogp, 3, 1.0f);
    invar_sweep_fill_normal(s, &all.dentropy, 4, 1.0f);
    invar_sweep_fill_index(s, &all.coords, 5, 1000);
    head_run(s, &all);
    for (int i = 0; i < RESULTS; i++)
        expected[i] = invar_sweep_download(s, &all.at[i]);
    for (int64_t i = 0; i < rows; i++)
        order[i] = rows - 1 - i;
    check_order(s, &all, expected, order, rows, "reversed");
    for (int64_t i = 0; i < rows; i++)
        order[i] = (i * 7 + 3) % rows; // 7 divides none of the numbers of rows
    for (int64_t count = 1; count <= rows; count += 1 + count / 2)
        check_order(s, &all, expected, order, count, "some of them");
    for (int64_t i = 0; i < rows; i++) {
        head one = head_rows(&all, i, 1);

        head_run(s, &one);
        for (int n = 0; n < RESULTS; n++)
            invar_sweep_assert(s, &one.at[n], &expected[n], i, "%s of row %d alone", names[n],
                               (int)i);
    }
    for (int i = 0; i < RESULTS; i++)
        invar_test_free(&expected[i]);
    invar_sweep_release(s, mark);
}

static void test_logprob_and_sample__bits_invariant_to_batch(void **state)
{
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);

    (void)state;
    check_vocabulary(s, invar_sweep_size(s, 65, 17), invar_sweep_size(s, 151936, 2000));
    check_vocabulary(s, invar_sweep_size(s, 300, 20), 1000);
}

/* ---- controls -------------------------------------------------------------------------------- */

/* Control: scales that belong to several rows (128 rows of fp8) must change the result. */
static void test_rows__controls_are_seen(void **state)
{
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
    int mark = invar_sweep_mark(s);
    invar_tensor x = invar_sweep_normal(s, BF16, 128, 256, 1), few = invar_tensor_rows(&x, 0, 127);
    invar_tensor wide = invar_sweep_quantized(s, &x, INVAR_DTYPE_FP8, true);
    invar_tensor rows = invar_sweep_quantized(s, &few, INVAR_DTYPE_FP8, false);
    invar_tensor expected = invar_sweep_download(s, &rows),
                 beginning = invar_tensor_rows(&wide, 0, 1);

    (void)state;
    beginning.shape[0] = 127;
    assert_false(invar_sweep_equal(s, &beginning, &expected, 0));
    invar_test_free(&expected);
    invar_sweep_release(s, mark);
}

/* ---- sums over tokens ------------------------------------------------------------------------ */

enum { MAX_UNITS = 8192, IDS = 20, SUMS = 3 };

/* Inputs of three sums over tokens: of a bias, a norm's weight, the rows of a table. */
typedef struct token_sums {
    invar_tensor x, dy, dx, ids, weight;
    invar_tensor sum[SUMS];
} token_sums;

/* Runs each op on the units [first, end) in one call; `start` is in host memory. */
static void sum_units(invar_sweep *s, const token_sums *t, const int64_t *start, int64_t first,
                      int64_t end)
{
    static int64_t own[MAX_UNITS + 1];
    int64_t row = start[first], rows = start[end] - row, d = t->x.shape[1];
    invar_tensor x = invar_tensor_rows(&t->x, row, rows), dy = invar_tensor_rows(&t->dy, row, rows);
    invar_tensor dx = invar_tensor_rows(&t->dx, row, rows);
    int mark = invar_sweep_mark(s);
    invar_row_offsets units = {NULL, end - first};
    invar_rmsnorm_bwd_args norm = {.dx = invar_tensor_3d(dx.data, x.dtype, rows, 1, d),
                                   .dweight = t->sum[1],
                                   .dy = invar_tensor_3d(dy.data, x.dtype, rows, 1, d),
                                   .x = invar_tensor_3d(x.data, x.dtype, rows, 1, d),
                                   .weight = t->weight,
                                   .eps = 1e-6f};

    for (int64_t u = first; u <= end; u++)
        own[u - first] = start[u] - row;
    norm.units.offsets = units.offsets = invar_sweep_numbers(s, own, units.count + 1);
    norm.units.count = units.count;
    invar_sweep_run(s, INVAR_OP_TOKEN_SUM, &(invar_token_sum_args){t->sum[0], dy, units});
    invar_sweep_run(s, INVAR_OP_RMSNORM_BWD, &norm);
    invar_sweep_run(
        s, INVAR_OP_EMBEDDING_BWD,
        &(invar_embedding_bwd_args){t->sum[2], dy, invar_tensor_rows(&t->ids, row, rows), units});
    invar_sweep_release(s, mark);
}

/* Many short units and a few long ones, in any micro-batches; and a control. */
static void check_sums(invar_dtype dtype)
{
    static int64_t start[MAX_UNITS + 1];
    static const char *const ops[SUMS] = {"token.sum", "rmsnorm.bwd", "embedding.bwd"};
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
    int mark = invar_sweep_mark(s);
    int64_t rows = invar_sweep_size(s, 20000, 1500), d = invar_sweep_size(s, 1024, 64), units = 0;
    token_sums t = {.x = invar_sweep_normal(s, dtype, rows, d, 1),
                    .dy = invar_sweep_normal(s, dtype, rows, d, 2),
                    .dx = invar_sweep_2d(s, dtype, rows, d),
                    .ids = invar_sweep_tensor(s, invar_tensor_1d(NULL, I32, rows)),
                    .weight = invar_sweep_tensor(s, invar_tensor_1d(NULL, dtype, d)),
                    .sum = {invar_sweep_tensor(s, invar_tensor_1d(NULL, F32, d)),
                            invar_sweep_tensor(s, invar_tensor_1d(NULL, F32, d)),
                            invar_sweep_2d(s, F32, IDS, d)}};
    invar_tensor whole[SUMS];

    invar_sweep_fill_normal(s, &t.weight, 3, 1.0f);
    invar_sweep_fill_index(s, &t.ids, 4, IDS);
    for (; start[units] < rows; units++) {
        int64_t next = start[units] + (units % 50 == 49 ? 300 : 1 + units % 3);
        start[units + 1] = next < rows ? next : rows;
    }
    for (int variant = 0; variant < 5; variant++) { // all at once, in parts, as one unit
        const int64_t one[] = {0, rows};
        for (int i = 0; i < SUMS; i++)
            invar_sweep_zero(s, &t.sum[i]);
        if (variant == 4)
            sum_units(s, &t, one, 0, 1);
        for (int64_t first = 0, end; variant < 4 && first < units; first = end) {
            end = first + 1 + invar_test_random((uint64_t)variant, (uint64_t)first) % (units / 2);
            end = variant == 0 || end > units ? units : end;
            sum_units(s, &t, start, first, end);
        }
        for (int i = 0; i < SUMS; i++) {
            if (variant == 0)
                whole[i] = invar_sweep_download(s, &t.sum[i]);
            else if (variant < 4)
                invar_sweep_assert(s, &t.sum[i], &whole[i], 0, "%s, way %d", ops[i], variant);
            else if (dtype == F32) // few bf16 sums are rounded, so not all differ
                assert_false(invar_sweep_equal(s, &t.sum[i], &whole[i], 0));
        }
    }
    for (int i = 0; i < SUMS; i++)
        invar_test_free(&whole[i]);
    invar_sweep_release(s, mark);
}

static void test_sums__bits_invariant_to_micro_batches(void **state)
{
    (void)state;
    check_sums(F32);
    check_sums(BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows__bits_invariant_to_batch),
        cmocka_unit_test(test_logprob_and_sample__bits_invariant_to_batch),
        cmocka_unit_test(test_rows__controls_are_seen),
        cmocka_unit_test(test_sums__bits_invariant_to_micro_batches),
    };
    return cmocka_run_group_tests(tests, NULL, invar_sweep_report);
}
