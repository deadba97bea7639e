/*
 * moe_permute.c - tests of moe.plan, moe.gather and moe.combine against naive forms, and float64.
 *
 * Control: combining the slots of a token in reverse order gives other bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/copying_backend.h"
#include "tests/ops.h"

#define EXPERTS 7

static const invar_dtype storage[] = {INVAR_DTYPE_F32, INVAR_DTYPE_BF16};

/* ---- routings -------------------------------------------------------------------------------- */

/* Returns distinct experts for each token: random, or equal for all tokens. */
static invar_tensor make_ids(int64_t tokens, int64_t slots, bool random, uint64_t seed)
{
    invar_tensor ids = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_I32, tokens, slots), 2);

    for (int64_t t = 0; t < tokens; t++) {
        int32_t remaining_experts[EXPERTS], *row = (int32_t *)ids.data + t * ids.row_stride;
        for (int32_t e = 0; e < EXPERTS; e++)
            remaining_experts[e] = e;
        for (int64_t s = 0; s < slots; s++) {
            uint32_t word = invar_test_random(seed, (uint64_t)(t * slots + s));
            int64_t pick = s + (random ? (int64_t)(word % (uint32_t)(EXPERTS - s)) : 0);
            row[s] = remaining_experts[pick];
            remaining_experts[pick] = remaining_experts[s];
            remaining_experts[s] = row[s];
        }
    }
    return ids;
}

typedef struct permutation {
    invar_tensor ids;
    invar_tensor row_token;
    invar_tensor slot_row;
    int64_t expert_start[EXPERTS + 1];
} permutation;

static permutation permutation_new(const invar_device *dev, int64_t tokens, int64_t slots,
                                   bool random)
{
    const invar_dtype i32 = INVAR_DTYPE_I32;
    permutation p = {.ids = make_ids(tokens, slots, random, (uint64_t)tokens)};

    p.row_token = invar_test_tensor(invar_tensor_1d(NULL, i32, tokens * slots));
    p.slot_row = invar_test_strided(invar_tensor_2d(NULL, i32, tokens, slots), 1);
    assert_ok(invar_moe_plan(
        dev, &(invar_moe_plan_args){p.row_token, p.slot_row, p.expert_start, p.ids, EXPERTS}));
    return p;
}

static void permutation_free(permutation *p)
{
    invar_test_free(&p->ids, &p->row_token, &p->slot_row);
}

static int32_t i32_at(const invar_tensor *t, int64_t row, int64_t col)
{
    return ((const int32_t *)t->data)[row * t->row_stride + col];
}

static invar_tensor make_normal(invar_dtype dtype, int64_t rows, int64_t cols, uint64_t seed)
{
    invar_tensor t = invar_test_strided(invar_tensor_2d(NULL, dtype, rows, cols), 3);

    invar_test_fill_normal(&t, seed, 1.0f);
    return t;
}

/* ---- plan ------------------------------------------------------------------------------------ */

/* Every slot has one row, among the rows of its expert, whose tokens ascend. */
static void check_plan(const permutation *p)
{
    int64_t tokens = p->ids.shape[0], slots = p->ids.shape[1];

    assert_int_equal(p->expert_start[0], 0);
    assert_int_equal(p->expert_start[EXPERTS], tokens * slots);
    for (int e = 0; e < EXPERTS; e++) {
        assert_true(p->expert_start[e] <= p->expert_start[e + 1]);
        for (int64_t row = p->expert_start[e] + 1; row < p->expert_start[e + 1]; row++)
            assert_true(i32_at(&p->row_token, row - 1, 0) < i32_at(&p->row_token, row, 0));
    }
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t s = 0; s < slots; s++) {
            int32_t row = i32_at(&p->slot_row, t, s), e = i32_at(&p->ids, t, s);
            assert_true(row >= p->expert_start[e] && row < p->expert_start[e + 1]);
            assert_int_equal(i32_at(&p->row_token, row, 0), t);
        }
}

static void test_moe_plan__sorts_by_expert_and_token(void **state)
{
    static const int64_t sizes[] = {0, 1, 2, 5, 64, 333};
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t slots = 1; slots <= EXPERTS; slots++)
            for (int random = 0; random < 2; random++) {
                permutation p = permutation_new(&dev, sizes[i], slots, random);
                check_plan(&p);
                permutation_free(&p);
            }
    invar_test_device_release(&dev);
}

/* ---- gather ---------------------------------------------------------------------------------- */

static void test_moe_gather_fwd__copies_bits(void **state)
{
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int i = 0; i < 2; i++) {
        permutation p = permutation_new(&dev, 9, 3, true);
        invar_tensor x = make_normal(storage[i], 9, 600, 1), out, expected;

        memset(x.data, 0xFF, 40); // NaN with a sign and a payload
        out = invar_test_strided(invar_tensor_2d(NULL, storage[i], 27, 600), 1);
        assert_ok(invar_moe_gather_fwd(&dev, &(invar_moe_gather_fwd_args){out, x, p.row_token}));
        for (int64_t row = 0; row < 27; row++) {
            invar_tensor got = invar_tensor_rows(&out, row, 1);
            expected = invar_tensor_rows(&x, i32_at(&p.row_token, row, 0), 1);
            invar_assert_bits_tensor(&got, &expected, "gather");
        }
        invar_test_free(&x, &out);
        permutation_free(&p);
    }
    invar_test_device_release(&dev);
}

/* Adds weights[s] * y[s] over the slots s, or y[s] if `weights` is NULL, and then `shared`. */
static void combine_ref(const invar_tensor *out, const invar_tensor *y, const invar_tensor *weights,
                        const invar_tensor *slot_row, const invar_tensor *shared)
{
    for (int64_t t = 0; t < out->shape[0]; t++)
        for (int64_t d = 0; d < out->shape[1]; d++) {
            float acc = 0.0f;
            for (int64_t s = 0; s < slot_row->shape[1]; s++) {
                float value = invar_test_get(y, i32_at(slot_row, t, s), d);
                acc = weights ? fmaf(invar_test_get(weights, t, s), value, acc) : acc + value;
            }
            if (shared)
                acc = acc + invar_test_get(shared, t, d);
            invar_test_set(out, t, d, acc);
        }
}

static void test_moe_gather_bwd__equals_the_expression(void **state)
{
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int i = 0; i < 4; i++) {
        permutation p = permutation_new(&dev, 11, 4, true);
        invar_tensor dout = make_normal(storage[i / 2], 44, 700, 2);
        invar_tensor dx = invar_test_strided(invar_tensor_2d(NULL, storage[i % 2], 11, 700), 2);
        invar_tensor expected = invar_test_tensor(invar_tensor_2d(NULL, storage[i % 2], 11, 700));

        assert_ok(invar_moe_gather_bwd(&dev, &(invar_moe_gather_bwd_args){dx, dout, p.slot_row}));
        combine_ref(&expected, &dout, NULL, &p.slot_row, NULL);
        invar_assert_bits_tensor(&dx, &expected, "dx");
        invar_test_free(&dout, &dx, &expected);
        permutation_free(&p);
    }
    invar_test_device_release(&dev);
}

/* ---- combine --------------------------------------------------------------------------------- */

static void test_moe_combine_fwd__equals_the_expression(void **state)
{
    static const int64_t widths[] = {1, 511, 513};
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int i = 0; i < 2 * 2 * 3 * 3; i++) {
        int64_t slots = 1 + i / 2 % 3 * 3, width = widths[i / 6 % 3];
        permutation p = permutation_new(&dev, 8, slots, true);
        invar_tensor y = make_normal(storage[i % 2], 8 * slots, width, 1), shared = {0};
        invar_tensor weights = make_normal(INVAR_DTYPE_F32, 8, slots, 2);
        invar_tensor out = invar_test_strided(invar_tensor_2d(NULL, storage[i % 2], 8, width), 1);
        invar_tensor expected = invar_test_tensor(invar_tensor_2d(NULL, storage[i % 2], 8, width));

        if (i / 18)
            shared = make_normal(storage[i % 2], 8, width, 3);
        assert_ok(invar_moe_combine_fwd(
            &dev, &(invar_moe_combine_fwd_args){out, y, weights, p.slot_row, shared}));
        combine_ref(&expected, &y, &weights, &p.slot_row, i / 18 ? &shared : NULL);
        invar_assert_bits_tensor(&out, &expected, "out");
        invar_test_free(&y, &weights, &shared, &out, &expected);
        permutation_free(&p);
    }
    invar_test_device_release(&dev);
}

static void combine_back_ref(const invar_moe_combine_bwd_args *expected)
{
    int64_t width = expected->dout.shape[1];
    float *products = malloc((size_t)width * sizeof *products);

    for (int64_t t = 0; t < expected->dout.shape[0]; t++)
        for (int64_t s = 0; s < expected->slot_row.shape[1]; s++) {
            int32_t row = i32_at(&expected->slot_row, t, s);
            for (int64_t d = 0; d < width; d++) {
                float dout = invar_test_get(&expected->dout, t, d);
                products[d] = dout * invar_test_get(&expected->y, row, d);
                invar_test_set(&expected->dy, row, d,
                               invar_test_get(&expected->weights, t, s) * dout);
            }
            invar_test_set(&expected->dweights, t, s, invar_test_reduce(products, width));
        }
    free(products);
}

static void test_moe_combine_bwd__equals_the_expression(void **state)
{
    static const int64_t widths[] = {1, 255, 257, 5000}; // above 4096, REDUCE has two levels
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int i = 0; i < 8; i++) {
        invar_dtype dtype = storage[i % 2];
        int64_t width = widths[i / 2];
        permutation p = permutation_new(&dev, 6, 3, true);
        invar_moe_combine_bwd_args a = {
            .dy = invar_test_strided(invar_tensor_2d(NULL, dtype, 18, width), 2),
            .dweights = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 6, 3), 1),
            .dout = make_normal(dtype, 6, width, 1),
            .y = make_normal(dtype, 18, width, 2),
            .weights = make_normal(INVAR_DTYPE_F32, 6, 3, 3),
            .slot_row = p.slot_row};
        invar_moe_combine_bwd_args expected = a;

        expected.dy = invar_test_tensor(invar_tensor_2d(NULL, dtype, 18, width));
        expected.dweights = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 6, 3));
        combine_back_ref(&expected);
        assert_ok(invar_moe_combine_bwd(&dev, &a));
        invar_assert_bits_tensor(&a.dy, &expected.dy, "dy");
        invar_assert_bits_tensor(&a.dweights, &expected.dweights, "dweights");
        invar_test_free(&a.dy, &a.dweights, &a.dout, &a.y, &a.weights, &expected.dy,
                        &expected.dweights);
        permutation_free(&p);
    }
    invar_test_device_release(&dev);
}

/* Control: with the slots of each token in reverse order, some sums have other bits. */
static void test_moe_combine_fwd__control_of_reversed_slots(void **state)
{
    const int64_t tokens = 20, slots = 4, width = 64;
    permutation p, reversed;
    invar_tensor y = make_normal(INVAR_DTYPE_F32, tokens * slots, width, 1);
    invar_tensor weights = make_normal(INVAR_DTYPE_F32, tokens, slots, 2);
    invar_tensor reversed_weights = invar_test_copy(&weights);
    invar_tensor out = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, tokens, width));
    invar_tensor other = invar_test_copy(&out);
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    p = permutation_new(&dev, tokens, slots, true);
    reversed = permutation_new(&dev, tokens, slots, true);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t s = 0; s < slots; s++) {
            ((int32_t *)reversed.slot_row.data)[t * reversed.slot_row.row_stride + s] =
                i32_at(&p.slot_row, t, slots - 1 - s);
            invar_test_set(&reversed_weights, t, s, invar_test_get(&weights, t, slots - 1 - s));
        }
    assert_ok(invar_moe_combine_fwd(
        &dev, &(invar_moe_combine_fwd_args){
                  .out = out, .y = y, .weights = weights, .slot_row = p.slot_row}));
    assert_ok(invar_moe_combine_fwd(
        &dev,
        &(invar_moe_combine_fwd_args){
            .out = other, .y = y, .weights = reversed_weights, .slot_row = reversed.slot_row}));
    assert_true(invar_tensors_differ(&out, &other));
    invar_test_free(&y, &weights, &reversed_weights, &out, &other);
    permutation_free(&p);
    permutation_free(&reversed);
    invar_test_device_release(&dev);
}

/* ---- accuracy -------------------------------------------------------------------------------- */

/* Errors relative to the sum of magnitudes; bf16 rounds the result to 8 bits. */
static void test_moe_combine__accuracy_vs_f64(void **state)
{
    const int64_t tokens = 16, slots = 6, width = 1000;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int i = 0; i < 2; i++) {
        double round = i ? 0x1p-8 : 0x1p-23;
        permutation p = permutation_new(&dev, tokens, slots, true);
        invar_tensor y = make_normal(storage[i], tokens * slots, width, 1);
        invar_tensor dout = make_normal(storage[i], tokens, width, 2);
        invar_tensor weights = make_normal(INVAR_DTYPE_F32, tokens, slots, 3);
        invar_tensor out = invar_test_tensor(invar_tensor_2d(NULL, storage[i], tokens, width));
        invar_tensor dy = invar_test_copy(&y), dweights = invar_test_copy(&weights);

        assert_ok(invar_moe_combine_fwd(
            &dev, &(invar_moe_combine_fwd_args){
                      .out = out, .y = y, .weights = weights, .slot_row = p.slot_row}));
        assert_ok(invar_moe_combine_bwd(
            &dev, &(invar_moe_combine_bwd_args){dy, dweights, dout, y, weights, p.slot_row}));
        for (int64_t t = 0; t < tokens; t++) {
            for (int64_t d = 0; d < width; d++) {
                double sum = 0.0, size = 0.0;
                for (int64_t s = 0; s < slots; s++) {
                    int32_t row = i32_at(&p.slot_row, t, s);
                    double w = (double)invar_test_get(&weights, t, s);
                    double term = w * (double)invar_test_get(&y, row, d);
                    double gradient = w * (double)invar_test_get(&dout, t, d);
                    sum += term;
                    size += fabs(term);
                    assert_true(fabs((double)invar_test_get(&dy, row, d) - gradient) <=
                                round * fabs(gradient));
                }
                assert_true(fabs((double)invar_test_get(&out, t, d) - sum) <=
                            round * fabs(sum) + 4e-7 * size);
            }
            for (int64_t s = 0; s < slots; s++) {
                double sum = 0.0, size = 0.0;
                for (int64_t d = 0; d < width; d++) {
                    double term = (double)invar_test_get(&dout, t, d) *
                                  (double)invar_test_get(&y, i32_at(&p.slot_row, t, s), d);
                    sum += term;
                    size += fabs(term);
                }
                assert_true(fabs((double)invar_test_get(&dweights, t, s) - sum) <= 4e-7 * size);
            }
        }
        invar_test_free(&y, &dout, &weights, &out, &dy, &dweights);
        permutation_free(&p);
    }
    invar_test_device_release(&dev);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void test_moe_permutation__rejects_bad_arguments(void **state)
{
    float row_data[2][6 * 8] = {{0}}, token_data[2][3 * 8] = {{0}}, weight_data[2][6] = {{0}};
    int32_t token[6] = {0, 1, 2, 0, 1, 2}, slot[6] = {0, 3, 1, 4, 2, 5}, id[6] = {0, 1, 0, 1, 0, 1};
    // a GPU checks some arguments only while the op runs, and has other messages for them
    const bool gpu = invar_test_ops_backend() == invar_backend_cuda();
    int64_t start[3];
    const invar_tensor tokens = invar_tensor_2d(token_data[0], INVAR_DTYPE_F32, 3, 8);
    const invar_tensor rows = invar_tensor_2d(row_data[0], INVAR_DTYPE_F32, 6, 8);
    const invar_tensor weights = invar_tensor_2d(weight_data[0], INVAR_DTYPE_F32, 3, 2);
    const invar_tensor shared = invar_tensor_2d(token_data[1], INVAR_DTYPE_F32, 3, 8);
    const invar_tensor drows = invar_tensor_2d(row_data[1], INVAR_DTYPE_F32, 6, 8);
    const invar_tensor dweights = invar_tensor_2d(weight_data[1], INVAR_DTYPE_F32, 3, 2);
    const invar_tensor row_token = invar_tensor_1d(token, INVAR_DTYPE_I32, 6);
    const invar_tensor slot_row = invar_tensor_2d(slot, INVAR_DTYPE_I32, 3, 2);
    const invar_tensor ids = invar_tensor_2d(id, INVAR_DTYPE_I32, 3, 2);
    const invar_moe_plan_args plan = {row_token, slot_row, start, ids, 2};
    const invar_moe_gather_fwd_args gather = {rows, tokens, row_token};
    const invar_moe_gather_bwd_args gather_back = {tokens, rows, slot_row};
    const invar_moe_combine_fwd_args combine = {tokens, rows, weights, slot_row, shared};
    const invar_moe_combine_bwd_args combine_back = {drows, dweights, tokens,
                                                     rows,  weights,  slot_row};
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_ok(invar_moe_plan(&dev, &plan));
    assert_field_invalid(moe_plan, plan, experts, 0, "moe.plan: experts: 0");
    assert_field_invalid(moe_plan, plan, experts, 1,
                         "moe.plan: ids: value 1 in row 0; expected 0 to 0");
    assert_field_invalid(moe_plan, plan, expert_start, NULL, "moe.plan: expert_start: missing");
    assert_field_invalid(moe_plan, plan, ids.dtype, INVAR_DTYPE_I64, "moe.plan: ids: type i64");
    assert_field_invalid(moe_plan, plan, ids.shape[1], 0, "moe.plan: slots: 0");
    assert_field_invalid(moe_plan, plan, row_token.shape[0], 5, "moe.plan: row_token: extent 5");
    assert_field_invalid(moe_plan, plan, slot_row.shape[0], 2, "moe.plan: slot_row: extent 2");
    id[3] = 0;
    assert_field_invalid(moe_plan, plan, experts, 2, "moe.plan: ids: row 1 names expert 0 twice");

    assert_ok(invar_moe_gather_fwd(&dev, &gather));
    assert_field_invalid(moe_gather_fwd, gather, x.dtype, INVAR_DTYPE_FP8,
                         "moe.gather.fwd: x: type fp8");
    assert_field_invalid(moe_gather_fwd, gather, x.dtype, INVAR_DTYPE_BF16,
                         "moe.gather.fwd: out is f32 but x");
    assert_field_invalid(moe_gather_fwd, gather, out.shape[1], 7, "moe.gather.fwd: out: extent 7");
    assert_field_invalid(moe_gather_fwd, gather, row_token.shape[0], 5,
                         "moe.gather.fwd: row_token: extent 5");
    assert_field_invalid(moe_gather_fwd, gather, x.shape[0], 2,
                         "moe.gather.fwd: row_token: value 2 in row 2");

    assert_ok(invar_moe_gather_bwd(&dev, &gather_back));
    assert_field_invalid(moe_gather_bwd, gather_back, dx.rank, 1, "moe.gather.bwd: dx: rank 1");
    assert_field_invalid(moe_gather_bwd, gather_back, dx.shape[0], 2,
                         "moe.gather.bwd: slot_row: extent 3");
    assert_field_invalid(moe_gather_bwd, gather_back, dout.shape[0], 5,
                         "moe.gather.bwd: dout: extent 5");
    assert_field_invalid(moe_gather_bwd, gather_back, slot_row.shape[1], 0,
                         "moe.gather.bwd: slots: 0");

    assert_ok(invar_moe_combine_fwd(&dev, &combine));
    assert_field_invalid(moe_combine_fwd, combine, out.data, NULL, "moe.combine.fwd: out: no data");
    assert_field_invalid(moe_combine_fwd, combine, y.shape[1], 7, "moe.combine.fwd: y: extent 7");
    assert_field_invalid(moe_combine_fwd, combine, weights.shape[1], 1,
                         "moe.combine.fwd: weights: extent 1");
    assert_field_invalid(moe_combine_fwd, combine, weights.dtype, INVAR_DTYPE_NONE,
                         "weights: missing");
    assert_field_invalid(moe_combine_fwd, combine, shared.shape[0], 2,
                         "moe.combine.fwd: shared: extent 2");
    slot[1] = 6;
    assert_field_invalid(moe_combine_fwd, combine, y, rows,
                         "moe.combine.fwd: slot_row: value 6 in row 0");
    slot[1] = 3;

    assert_ok(invar_moe_combine_bwd(&dev, &combine_back));
    assert_field_invalid(moe_combine_bwd, combine_back, dy.shape[0], 5,
                         "moe.combine.bwd: dy: extent 5");
    assert_field_invalid(moe_combine_bwd, combine_back, y.shape[0], 5,
                         "moe.combine.bwd: y: extent 5");
    assert_field_invalid(moe_combine_bwd, combine_back, dout.shape[1], 0,
                         "moe.combine.bwd: columns: 0");
    assert_field_invalid(moe_combine_bwd, combine_back, dweights.shape[0], 2, "dweights: extent 2");
    assert_field_invalid(moe_combine_bwd, combine_back, weights.dtype, INVAR_DTYPE_BF16,
                         "weights: type bf16");
    slot[5] = -1;
    assert_field_invalid(moe_combine_bwd, combine_back, y, rows,
                         "moe.combine.bwd: slot_row: value -1 in row 2");

    // all values are in range, but one occurs twice: two threads would write one row
    memset(row_data[1], 0x5A, sizeof row_data[1]);
    slot[5] = 3;
    assert_invalid(invar_moe_gather_bwd(&dev, &gather_back),
                   gpu ? "moe.gather.bwd: named twice, where each may be named once: 3"
                       : "moe.gather.bwd: slot_row: value 3 again in row 2; expected each of 0 to");
    assert_invalid(invar_moe_combine_fwd(&dev, &combine),
                   gpu ? "moe.combine.fwd: named twice"
                       : "moe.combine.fwd: slot_row: value 3 again in row 2");
    assert_invalid(invar_moe_combine_bwd(&dev, &combine_back),
                   gpu ? "moe.combine.bwd: named twice"
                       : "moe.combine.bwd: slot_row: value 3 again in row 2");
    for (size_t i = 0; i < sizeof row_data[1]; i++)
        assert_int_equal(((const uint8_t *)row_data[1])[i], 0x5A); // nothing was written
    invar_test_device_release(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe_plan__sorts_by_expert_and_token),
        cmocka_unit_test(test_moe_gather_fwd__copies_bits),
        cmocka_unit_test(test_moe_gather_bwd__equals_the_expression),
        cmocka_unit_test(test_moe_combine_fwd__equals_the_expression),
        cmocka_unit_test(test_moe_combine_bwd__equals_the_expression),
        cmocka_unit_test(test_moe_combine_fwd__control_of_reversed_slots),
        cmocka_unit_test(test_moe_combine__accuracy_vs_f64),
        cmocka_unit_test(test_moe_permutation__rejects_bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
