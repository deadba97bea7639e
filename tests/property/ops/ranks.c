/*
 * ranks.c - sums over heads have the same bits on one rank and on tensor-parallel ranks.
 *
 * A rank has only the heads of its logical shards. It computes and folds these shards, and the
 * sums of all ranks are folded once more; the result must equal the sum over all heads in one
 * call. Covers the weight gradient of QK-norm, as a full sum and as token-block sums, and the
 * gradients of keys and values. Control: one shard instead of several gives other bits. Products
 * have the same test in linear.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdint.h>
#include <string.h>

#include "kernels-deterministic/math/shards.h"
#include "tests/ops.h"

#define ROWS 100 /* more than one group of tokens, less than one block */
#define D 16
#define MOST INVAR_LINEAR_MAX_SHARDS

/* Number of values of one result. */
#define WEIGHTS D
#define KEYS (ROWS * D)

/* Copies the heads [first, end) of a tensor (T, H, D) or (T, H). */
static invar_tensor heads_of(const invar_tensor *t, int64_t first, int64_t end)
{
    invar_tensor rows =
                     invar_tensor_2d(t->data, t->dtype, t->shape[0], invar_tensor_row_elements(t)),
                 own;
    int64_t dim = t->rank == 3 ? t->shape[2] : 1;

    rows.row_stride = t->row_stride;
    rows = invar_tensor_columns(&rows, first * dim, (end - first) * dim);
    own = invar_test_copy(&rows);
    return t->rank == 3 ? invar_tensor_3d(own.data, t->dtype, t->shape[0], end - first, dim) : own;
}

/* Folds shard (shards, count) by ranks, for every number of ranks, and compares with `full`. */
static void check_folds(const float *shard, int64_t count, int32_t shards, const float *full)
{
    float of_rank[MOST * KEYS], folded[KEYS];

    for (int32_t ranks = 1; ranks <= shards; ranks *= 2) {
        int32_t own = shards / ranks;
        for (int32_t r = 0; r < ranks; r++)
            invar_test_fold(of_rank + r * count, shard + r * own * count, own, count);
        invar_test_fold(folded, of_rank, ranks, count);
        assert_memory_equal(folded, full, (size_t)count * sizeof *folded);
    }
}

/* ---- the weight of QK-norm ------------------------------------------------------------------- */

/*
 * Computes only the weight gradient: dx and the weight are temporary. A rank without heads adds
 * nothing.
 */
static void run_norm(const invar_device *dev, const invar_rmsnorm_bwd_args *given)
{
    invar_rmsnorm_bwd_args a = *given;

    if (a.x.shape[1] == 0)
        return;
    a.dx = invar_test_copy(&a.x);
    a.weight = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_F32, D));
    a.eps = 1e-6f;
    a.head_atom = 1;
    invar_test_fill(&a.weight, 1.0f);
    assert_ok(invar_rmsnorm_bwd(dev, &a));
    invar_test_free(&a.dx, &a.weight);
}

static void norm_weight(const invar_device *dev, float *out, const invar_tensor *x,
                        const invar_tensor *dy, int32_t shards)
{
    static const int64_t start[] = {0, ROWS};

    for (int i = 0; i < D; i++)
        out[i] = 0.0f;
    run_norm(dev, &(invar_rmsnorm_bwd_args){.dweight = invar_tensor_1d(out, INVAR_DTYPE_F32, D),
                                            .dy = *dy,
                                            .x = *x,
                                            .units = {start, 1},
                                            .head_shards = shards});
}

static void check_norm(const invar_device *dev, int64_t heads, int32_t shards)
{
    invar_tensor view = invar_tensor_3d(NULL, INVAR_DTYPE_F32, ROWS, heads, D);
    invar_tensor x = invar_test_tensor(view), dy = invar_test_tensor(view);
    float full[WEIGHTS], one_shard[WEIGHTS], shard[MOST * WEIGHTS];

    invar_test_fill_normal(&x, 1, 1.0f);
    invar_test_fill_normal(&dy, 2, 1.0f);
    norm_weight(dev, full, &x, &dy, shards);
    norm_weight(dev, one_shard, &x, &dy, 1);
    for (int32_t v = 0; v < shards; v++) {
        int64_t first = invar_shard_start(heads, 1, shards, v);
        int64_t end = invar_shard_start(heads, 1, shards, v + 1);
        invar_tensor own_x = heads_of(&x, first, end), own_dy = heads_of(&dy, first, end);
        norm_weight(dev, shard + v * WEIGHTS, &own_x, &own_dy, 1);
        invar_test_free(&own_x, &own_dy);
    }
    check_folds(shard, WEIGHTS, shards, full);
    assert_int_equal(memcmp(full, one_shard, sizeof full) != 0, shards > 1); // control: one shard
    invar_test_free(&x, &dy);
}

static void test_ranks__weight_of_a_norm_of_heads(void **state)
{
    for (int32_t shards = 1; shards <= MOST; shards *= 2) {
        check_norm(*state, 8, shards);
        check_norm(*state, 11, shards);
        check_norm(*state, 3, shards);
    }
}

/* ---- the same weight gradient from token-block sums that ranks gather ------------------------ */

#define TOKENS 300
#define BLOCKS 5 /* four blocks and a partial one */
#define SUMS (BLOCKS * D)

static const int64_t unit_start[] = {0, 30, 30, TOKENS};
static const invar_row_offsets units = {unit_start, 3};

/* Computes the token-block sums of the heads of the shards [shard, shard + own). */
static void block_sums(const invar_device *dev, float *out, const invar_tensor *x,
                       const invar_tensor *dy, int32_t shard, int32_t own, int32_t shards)
{
    int64_t first = invar_shard_start(x->shape[1], 1, shards, shard);
    int64_t end = invar_shard_start(x->shape[1], 1, shards, shard + own);
    invar_tensor own_x = heads_of(x, first, end), own_dy = heads_of(dy, first, end);

    memset(out, 0, SUMS * sizeof *out);
    run_norm(dev, &(invar_rmsnorm_bwd_args){.block_sums =
                                                invar_tensor_2d(out, INVAR_DTYPE_F32, BLOCKS, D),
                                            .dy = own_dy,
                                            .x = own_x,
                                            .units = units,
                                            .head_shards = own});
    invar_test_free(&own_x, &own_dy);
}

static void fold_shards(const invar_device *dev, float *out, float *shard, int32_t count)
{
    assert_ok(invar_shards_fold(
        dev,
        &(invar_shards_fold_args){.y = invar_tensor_2d(out, INVAR_DTYPE_F32, BLOCKS, D),
                                  .x = invar_tensor_2d(shard, INVAR_DTYPE_F32, count * BLOCKS, D),
                                  .shards = count}));
}

/* Initializes the gradient with values, since the fold adds to it. */
static void begin_weight(float out[D])
{
    for (int i = 0; i < D; i++)
        out[i] = 0.1f * (float)i;
}

static void check_blocks(const invar_device *dev, int64_t heads, int32_t shards)
{
    invar_tensor view = invar_tensor_3d(NULL, INVAR_DTYPE_F32, TOKENS, heads, D);
    invar_tensor x = invar_test_tensor(view), dy = invar_test_tensor(view);
    float full[D], got[D], shard[MOST * SUMS], of_rank[MOST * SUMS], folded[SUMS];
    invar_rmsnorm_bwd_args one_rank = {.dweight = invar_tensor_1d(full, INVAR_DTYPE_F32, D),
                                       .dy = dy,
                                       .x = x,
                                       .units = units,
                                       .head_shards = shards};

    invar_test_fill_normal(&x, 1, 1.0f);
    invar_test_fill_normal(&dy, 2, 1.0f);
    begin_weight(full);
    run_norm(dev, &one_rank);
    for (int32_t v = 0; v < shards; v++)
        block_sums(dev, shard + v * SUMS, &x, &dy, v, 1, shards);
    for (int32_t ranks = 1; ranks <= shards; ranks *= 2) {
        int32_t own = shards / ranks;
        for (int32_t r = 0; r < ranks; r++) {
            fold_shards(dev, of_rank + r * SUMS, shard + r * own * SUMS, own);
            block_sums(dev, folded, &x, &dy, r * own, own, shards);
            if (heads % shards == 0) // the shards of a rank's heads are then those of all heads
                assert_memory_equal(of_rank + r * SUMS, folded, sizeof folded);
        }
        fold_shards(dev, folded, of_rank, ranks);
        begin_weight(got);
        assert_ok(invar_token_fold(
            dev,
            &(invar_token_fold_args){.out = invar_tensor_1d(got, INVAR_DTYPE_F32, D),
                                     .sums = invar_tensor_2d(folded, INVAR_DTYPE_F32, BLOCKS, D),
                                     .units = units,
                                     .tokens = TOKENS}));
        assert_memory_equal(got, full, sizeof full);
    }
    one_rank.head_shards = 1;
    begin_weight(full);
    run_norm(dev, &one_rank);
    assert_int_equal(memcmp(full, got, sizeof full) != 0, shards > 1); // control: one shard
    invar_test_free(&x, &dy);
}

static void test_ranks__sums_of_blocks_of_a_norm_of_heads(void **state)
{
    for (int32_t shards = 1; shards <= MOST; shards *= 2) {
        check_blocks(*state, 8, shards);
        check_blocks(*state, 11, shards);
        check_blocks(*state, 3, shards);
    }
}

/* ---- keys and values ------------------------------------------------------------------------- */

typedef struct layer {
    invar_tensor q, k, v, o, lse2, d_o;
} layer;

/* Computes dk and dv of the one kv head. With a scale of 1 they are plain sums over the heads. */
static void key_gradients(const invar_device *dev, float *dk, float *dv, const layer *l,
                          int32_t shards)
{
    static const int64_t start[] = {0, ROWS};
    invar_tensor dq = invar_test_copy(&l->q);

    for (int i = 0; i < KEYS; i++)
        dk[i] = dv[i] = 0.0f;
    if (l->q.shape[1] > 0)
        assert_ok(invar_attention_bwd(
            dev, &(invar_attention_bwd_args){.dq = dq,
                                             .dk = invar_tensor_3d(dk, INVAR_DTYPE_F32, ROWS, 1, D),
                                             .dv = invar_tensor_3d(dv, INVAR_DTYPE_F32, ROWS, 1, D),
                                             .d_o = l->d_o,
                                             .o = l->o,
                                             .lse2 = l->lse2,
                                             .q = l->q,
                                             .k = l->k,
                                             .v = l->v,
                                             .samples = {start, 1},
                                             .shape = {.scale = 1.0f},
                                             .head_shards = shards,
                                             .head_atom = 1}));
    invar_test_free(&dq);
}

static void check_keys(const invar_device *dev, int64_t heads, int32_t shards)
{
    static const int64_t start[] = {0, ROWS};
    static float dk[MOST * KEYS], dv[MOST * KEYS], full[2][KEYS], one_shard[2][KEYS];
    invar_tensor queries = invar_tensor_3d(NULL, INVAR_DTYPE_F32, ROWS, heads, D);
    invar_tensor keys = invar_tensor_3d(NULL, INVAR_DTYPE_F32, ROWS, 1, D);
    layer l = {invar_test_tensor(queries),
               invar_test_tensor(keys),
               invar_test_tensor(keys),
               invar_test_tensor(queries),
               invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, heads)),
               invar_test_tensor(queries)};

    invar_test_fill_normal(&l.q, 1, 0.3f);
    invar_test_fill_normal(&l.k, 2, 0.3f);
    invar_test_fill_normal(&l.v, 3, 1.0f);
    invar_test_fill_normal(&l.d_o, 4, 1.0f);
    assert_ok(invar_attention_fwd(dev, &(invar_attention_fwd_args){.o = l.o,
                                                                   .lse2 = l.lse2,
                                                                   .q = l.q,
                                                                   .k = l.k,
                                                                   .v = l.v,
                                                                   .samples = {start, 1},
                                                                   .shape = {.scale = 1.0f}}));
    key_gradients(dev, full[0], full[1], &l, shards);
    key_gradients(dev, one_shard[0], one_shard[1], &l, 1);
    for (int32_t v = 0; v < shards; v++) {
        int64_t first = invar_shard_start(heads, 1, shards, v);
        int64_t end = invar_shard_start(heads, 1, shards, v + 1);
        layer own = {heads_of(&l.q, first, end),
                     l.k,
                     l.v,
                     heads_of(&l.o, first, end),
                     heads_of(&l.lse2, first, end),
                     heads_of(&l.d_o, first, end)};
        key_gradients(dev, dk + v * KEYS, dv + v * KEYS, &own, 1);
        invar_test_free(&own.q, &own.o, &own.lse2, &own.d_o);
    }
    check_folds(dk, KEYS, shards, full[0]);
    check_folds(dv, KEYS, shards, full[1]);
    assert_int_equal(memcmp(full, one_shard, sizeof full) != 0, shards > 1); // control: one shard
    invar_test_free(&l.q, &l.k, &l.v, &l.o, &l.lse2, &l.d_o);
}

static void test_ranks__gradients_of_keys_and_values(void **state)
{
    for (int32_t shards = 1; shards <= MOST; shards *= 2) {
        check_keys(*state, 8, shards);
        check_keys(*state, 11, shards);
        check_keys(*state, 3, shards);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks__weight_of_a_norm_of_heads),
        cmocka_unit_test(test_ranks__sums_of_blocks_of_a_norm_of_heads),
        cmocka_unit_test(test_ranks__gradients_of_keys_and_values),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
