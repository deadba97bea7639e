/*
 * empty.c - tests of every op with nothing to do: no tokens, then no columns.
 *
 * Tensors without elements are NULL, so that a sanitizer detects any address formed from them.
 * Outputs that have elements nevertheless, such as gradient sums, must not change.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/ops.h"

#define F32 INVAR_DTYPE_F32
#define BF16 INVAR_DTYPE_BF16
#define I32 INVAR_DTYPE_I32

#define FILL 0x5A

static float inputs[128 * 128];              /* zeros; also valid indices and scales */
static unsigned char outputs[128 * 128 * 4]; /* FILL */

typedef struct empty_case {
    invar_op op;
    const void *args;
    const char *message; /* part of the expected error; NULL if the call must succeed */
} empty_case;

static void run_cases(const invar_device *devices, const empty_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (int d = 0; d < INVAR_TEST_DEVICES; d++) {
            invar_status status;

            memset(outputs, FILL, sizeof outputs);
            status = invar_op_run(&devices[d], cases[i].op, cases[i].args);
            if (cases[i].message)
                assert_fails(status, INVAR_E_INVALID, cases[i].message);
            else
                assert_ok(status);
            for (size_t byte = 0; byte < sizeof outputs; byte++)
                if (outputs[byte] != FILL)
                    fail_msg("%s: wrote byte %zu", invar_op_name(cases[i].op), byte);
        }
}

/* Memory of an input or output; NULL if it has no elements. */
static void *input_memory(int64_t elements)
{
    return elements ? inputs : NULL;
}

static void *output_memory(int64_t elements)
{
    return elements ? outputs : NULL;
}

static invar_tensor in_1d(invar_dtype dtype, int64_t n)
{
    return invar_tensor_1d(input_memory(n), dtype, n);
}

static invar_tensor out_1d(invar_dtype dtype, int64_t n)
{
    return invar_tensor_1d(output_memory(n), dtype, n);
}

static invar_tensor in_2d(invar_dtype dtype, int64_t rows, int64_t cols)
{
    return invar_tensor_2d(input_memory(rows * cols), dtype, rows, cols);
}

static invar_tensor out_2d(invar_dtype dtype, int64_t rows, int64_t cols)
{
    return invar_tensor_2d(output_memory(rows * cols), dtype, rows, cols);
}

static invar_tensor in_3d(invar_dtype dtype, int64_t n0, int64_t n1, int64_t n2)
{
    return invar_tensor_3d(input_memory(n0 * n1 * n2), dtype, n0, n1, n2);
}

static invar_tensor in_quantized(invar_dtype dtype, int32_t scale_rows, int64_t rows, int64_t cols)
{
    return invar_tensor_quantized(input_memory(rows * cols), input_memory(rows * cols), dtype,
                                  scale_rows, rows, cols);
}

/* ---- no tokens ------------------------------------------------------------------------------- */

/* Runs every op without tokens, with `count` empty segments: 0 or 1. */
static void run_without_tokens(const invar_device *devices, int64_t count)
{
    static const int64_t zero[2], length[1];
    const invar_row_offsets none = {count ? zero : NULL, count};
    const int64_t *lengths = count ? length : NULL;
    const invar_moe_router router = {INVAR_MOE_SOFTMAX, 1, 1, 1, 1, 0.0f, 1.0f};
    const invar_kv_pages cache = {invar_tensor_4d(NULL, BF16, 0, 4, 2, 8),
                                  invar_tensor_4d(NULL, BF16, 0, 4, 2, 8), in_2d(I32, count, 0)};
    const invar_attention_shape shape = {0.0f, 0, 0, 0};
    float norm = 0.0f, clip = 0.0f;
    int64_t expert_start[4];
    invar_digest digest;
    const invar_tensor weights = in_2d(BF16, 4, 16), rows = in_2d(BF16, 0, 16);
    const invar_tensor heads = in_3d(BF16, 0, 4, 8), kv = in_3d(BF16, 0, 2, 8);
    const invar_tensor slots = in_2d(I32, 0, 2), vector = in_1d(F32, 0), ids = in_1d(I32, 0);

    const invar_linear_fwd_args linear_fwd = {.y = in_2d(BF16, 0, 4),
                                              .x = rows,
                                              .w = weights,
                                              .bias = in_1d(F32, 4),
                                              .k_shards = 1,
                                              .residual = in_2d(BF16, 0, 4)};
    const invar_linear_dx_args linear_dx = {rows, {{in_2d(BF16, 0, 4), weights}}, 1, 1, {0}};
    const invar_linear_dw_args linear_dw = {out_2d(F32, 4, 16), in_2d(BF16, 0, 4), rows, none, 0};
    const invar_token_sum_args token_sum = {out_1d(F32, 16), rows, none};
    const invar_token_fold_args token_fold = {out_1d(F32, 16), in_2d(F32, 0, 16), none, 0};
    const invar_shards_fold_args shards_fold = {rows, in_2d(F32, 0, 16), rows, 4};
    const invar_scale_args scale = {rows, in_2d(F32, 0, 16), 2.0f};
    const invar_quantize_args quantize = {in_quantized(INVAR_DTYPE_FP8, 128, 0, 128),
                                          in_2d(BF16, 0, 128)};
    const invar_dequantize_args dequantize = {in_2d(BF16, 0, 128),
                                              in_quantized(INVAR_DTYPE_INT4, 1, 0, 128)};
    const invar_embedding_fwd_args embedding_fwd = {rows, in_2d(BF16, 3, 16), ids};
    const invar_embedding_bwd_args embedding_bwd = {out_2d(F32, 3, 16), rows, ids, none};
    const invar_add_args add = {rows, rows, rows};
    const invar_rope_args rotation = {ids, in_2d(F32, 0, 4), in_2d(F32, 0, 4)};
    const invar_rmsnorm_fwd_args rmsnorm_fwd = {heads, heads, in_1d(F32, 8), 1e-6f, rotation};
    const invar_rmsnorm_bwd_args rmsnorm_bwd = {
        heads, out_1d(F32, 8), .dy = heads, heads, in_1d(F32, 8), none, 1e-6f, rotation, heads};
    const invar_rope_table_args rope_table = {
        .cosine = in_2d(F32, 0, 4), .sine = in_2d(F32, 0, 4), .theta = 1e4};
    const invar_rope_fwd_args rope = {heads, heads, ids, in_2d(F32, 0, 4), in_2d(F32, 0, 4)};
    const invar_swiglu_fwd_args swiglu_fwd = {.y = rows, .gate = rows, .up = rows};
    const invar_swiglu_bwd_args swiglu_bwd = {
        .dgate = rows, .dup = rows, .dy = rows, .gate = rows, .up = rows};
    const invar_attention_fwd_args attention_fwd = {heads, in_2d(F32, 0, 4), heads, kv, kv, none,
                                                    shape};
    const invar_attention_bwd_args attention_bwd = {
        heads, kv, kv, heads, heads, in_2d(F32, 0, 4), heads, kv, kv, none, shape, 0, 0};
    const invar_attention_paged_args paged = {heads, heads, cache, none, lengths, shape};
    const invar_kv_write_args kv_write = {cache, kv, kv, none, lengths};
    const invar_moe_route_fwd_args route_fwd = {.ids = slots,
                                                .weights = in_2d(F32, 0, 2),
                                                .scores = in_2d(F32, 0, 3),
                                                .logits = in_2d(F32, 0, 3),
                                                .bias = in_1d(F32, 3),
                                                .replay = slots,
                                                .router = router};
    const invar_moe_route_bwd_args route_bwd = {in_2d(F32, 0, 3), in_2d(F32, 0, 2), slots,
                                                in_2d(F32, 0, 3), router};
    const invar_moe_plan_args plan = {ids, slots, expert_start, slots, 3};
    const invar_moe_gather_fwd_args gather_fwd = {rows, rows, ids};
    const invar_moe_gather_bwd_args gather_bwd = {rows, rows, slots};
    const invar_moe_linear_fwd_args moe_fwd = {
        in_2d(BF16, 0, 4), rows, in_2d(BF16, count * 4, 16), none, 1, 0};
    const invar_moe_linear_dx_args moe_dx = {
        rows, {{in_2d(BF16, 0, 4), in_2d(BF16, count * 4, 16)}}, 1, none, 1, {0}};
    const invar_moe_linear_dw_args moe_dw = {
        out_2d(F32, count * 4, 16), in_2d(BF16, 0, 4), rows, ids, none, none, 0};
    const invar_moe_combine_fwd_args combine_fwd = {rows, rows, in_2d(F32, 0, 2), slots, rows};
    const invar_moe_combine_bwd_args combine_bwd = {rows, in_2d(F32, 0, 2), rows,
                                                    rows, in_2d(F32, 0, 2), slots};
    const invar_logprob_fwd_args logprob_fwd = {vector,           vector, vector, vector,
                                                in_2d(F32, 0, 9), ids,    1.0f};
    const invar_logprob_bwd_args logprob_bwd = {
        in_2d(F32, 0, 9), vector, vector, vector, vector, vector, in_2d(F32, 0, 9), ids, 1.0f};
    const invar_logprob_sum_args logprob_sum = {in_2d(F32, 0, 4), in_2d(F32, 0, 9), ids, 1.0f};
    const invar_logprob_join_args logprob_join = {vector, vector, vector, vector, in_2d(F32, 0, 4),
                                                  ids,    9,      2,      1.0f};
    const invar_sample_args sample = {
        .tokens = ids, .logits = in_2d(F32, 0, 9), .temperature = 1.0f, .top_p = 0.5f};
    const invar_grad_norm_args grad_norm = {&norm, &clip, .grads = count ? &vector : NULL,
                                            count, 1.0f,  .digest = &digest};
    const invar_adamw_args adamw = {.weight = in_1d(BF16, 0),
                                    .master = vector,
                                    .m = vector,
                                    .v = vector,
                                    .grad = vector,
                                    .clip = 1.0f,
                                    .eps = 1e-8f};
    const invar_tensor hashed = in_quantized(INVAR_DTYPE_FP8, 128, 0, 128);
    const invar_hash_tree_args hash_tree = {&digest, &hashed, 1, 2, NULL};
    const invar_hash_leaves_args hash_leaves = {NULL, in_quantized(INVAR_DTYPE_FP8, 1, 0, 128),
                                                none, 0};

    const empty_case cases[] = {
        {INVAR_OP_LINEAR_FWD, &linear_fwd, NULL},
        {INVAR_OP_LINEAR_DX, &linear_dx, NULL},
        {INVAR_OP_LINEAR_DW, &linear_dw, NULL},
        {INVAR_OP_TOKEN_SUM, &token_sum, NULL},
        {INVAR_OP_TOKEN_FOLD, &token_fold, NULL},
        {INVAR_OP_SHARDS_FOLD, &shards_fold, NULL},
        {INVAR_OP_QUANTIZE, &quantize, NULL},
        {INVAR_OP_DEQUANTIZE, &dequantize, NULL},
        {INVAR_OP_EMBEDDING_FWD, &embedding_fwd, NULL},
        {INVAR_OP_EMBEDDING_BWD, &embedding_bwd, NULL},
        {INVAR_OP_ADD, &add, NULL},
        {INVAR_OP_SCALE, &scale, NULL},
        {INVAR_OP_RMSNORM_FWD, &rmsnorm_fwd, NULL},
        {INVAR_OP_RMSNORM_BWD, &rmsnorm_bwd, NULL},
        {INVAR_OP_ROPE_TABLE, &rope_table, NULL},
        {INVAR_OP_ROPE_FWD, &rope, NULL},
        {INVAR_OP_ROPE_BWD, &rope, NULL},
        {INVAR_OP_SWIGLU_FWD, &swiglu_fwd, NULL},
        {INVAR_OP_SWIGLU_BWD, &swiglu_bwd, NULL},
        {INVAR_OP_ATTENTION_FWD, &attention_fwd, NULL},
        {INVAR_OP_ATTENTION_BWD, &attention_bwd, NULL},
        {INVAR_OP_ATTENTION_PAGED, &paged, NULL},
        {INVAR_OP_KV_WRITE, &kv_write, NULL},
        {INVAR_OP_MOE_ROUTE_FWD, &route_fwd, NULL},
        {INVAR_OP_MOE_ROUTE_BWD, &route_bwd, NULL},
        {INVAR_OP_MOE_PLAN, &plan, NULL},
        {INVAR_OP_MOE_GATHER_FWD, &gather_fwd, NULL},
        {INVAR_OP_MOE_GATHER_BWD, &gather_bwd, NULL},
        {INVAR_OP_MOE_LINEAR_FWD, &moe_fwd, NULL},
        {INVAR_OP_MOE_LINEAR_DX, &moe_dx, NULL},
        {INVAR_OP_MOE_LINEAR_DW, &moe_dw, NULL},
        {INVAR_OP_MOE_COMBINE_FWD, &combine_fwd, NULL},
        {INVAR_OP_MOE_COMBINE_BWD, &combine_bwd, NULL},
        {INVAR_OP_LOGPROB_FWD, &logprob_fwd, NULL},
        {INVAR_OP_LOGPROB_BWD, &logprob_bwd, NULL},
        {INVAR_OP_LOGPROB_SUM, &logprob_sum, NULL},
        {INVAR_OP_LOGPROB_JOIN, &logprob_join, NULL},
        {INVAR_OP_SAMPLE, &sample, NULL},
        {INVAR_OP_GRAD_NORM, &grad_norm, NULL},
        {INVAR_OP_ADAMW, &adamw, NULL},
        {INVAR_OP_HASH_TREE, &hash_tree, NULL},
        {INVAR_OP_HASH_LEAVES, &hash_leaves, NULL},
    };
    const size_t n = sizeof cases / sizeof *cases;

    assert_int_equal(n, INVAR_OP_COUNT);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(cases[i].op, i); // the list has every op once
    run_cases(devices, cases, n);
    assert_int_equal(expert_start[3], 0);
    assert_true(norm == 0.0f && clip == 1.0f);
}

static void test_empty__no_tokens(void **state)
{
    run_without_tokens(*state, 0);
    run_without_tokens(*state, 1);
}

/* ---- no columns ------------------------------------------------------------------------------ */

static void test_empty__no_columns(void **state)
{
    static const int64_t three[] = {0, 3};
    const invar_row_offsets unit = {three, 1};
    const invar_tensor rows = in_2d(BF16, 3, 0), ids = in_1d(I32, 3), narrow = in_2d(F32, 3, 0);
    const invar_tensor heads = in_3d(BF16, 3, 2, 0), no_heads = in_3d(BF16, 3, 0, 8);
    const invar_kv_pages cache = {invar_tensor_4d(NULL, BF16, 1, 4, 0, 8),
                                  invar_tensor_4d(NULL, BF16, 1, 4, 0, 8), in_2d(I32, 1, 1)};
    invar_digest digest;

    // no output columns, or no columns of a gradient
    const invar_linear_fwd_args fwd_n = {
        .y = rows, .x = in_2d(BF16, 3, 16), .w = in_2d(BF16, 0, 16), .k_shards = 1};
    const invar_linear_fwd_args gated_n = {.x = in_2d(BF16, 3, 16),
                                           .w = in_2d(BF16, 0, 16),
                                           .k_shards = 1,
                                           .more = {{.w = in_2d(BF16, 0, 16)}},
                                           .n_more = 1,
                                           .act = rows};
    const invar_linear_dx_args dx_k = {rows, {{in_2d(BF16, 3, 4), in_2d(BF16, 4, 0)}}, 1, 1, {0}};
    const invar_linear_dw_args dw_n = {in_2d(F32, 0, 16), rows, in_2d(BF16, 3, 16), unit, 0};
    const invar_linear_dw_args dw_k = {in_2d(F32, 4, 0), in_2d(BF16, 3, 4), rows, unit, 0};
    const invar_moe_linear_fwd_args moe_n = {rows, in_2d(BF16, 3, 16), in_2d(BF16, 0, 16), unit, 1,
                                             0};
    const invar_token_sum_args token_sum = {in_1d(F32, 0), rows, unit};
    const invar_token_fold_args token_fold = {in_1d(F32, 0), in_2d(F32, 1, 0), unit, 3};
    const invar_shards_fold_args shards_fold = {rows, in_2d(F32, 6, 0), rows, 2};
    const invar_scale_args scale = {rows, in_2d(F32, 3, 0), 2.0f};
    const invar_quantize_args quantize = {in_quantized(INVAR_DTYPE_MXFP8, 1, 3, 0), rows};
    const invar_dequantize_args dequantize = {rows, in_quantized(INVAR_DTYPE_FP8, 1, 3, 0)};
    const invar_embedding_fwd_args embedding_fwd = {rows, in_2d(BF16, 5, 0), ids};
    const invar_embedding_bwd_args embedding_bwd = {in_2d(F32, 5, 0), rows, ids, unit};
    const invar_add_args add = {rows, rows, rows};
    const invar_rmsnorm_fwd_args norm_d = {
        .y = heads, .x = heads, .weight = in_1d(F32, 0), .eps = 1e-6f};
    const invar_rmsnorm_fwd_args norm_h = {
        .y = no_heads, .x = no_heads, .weight = in_1d(F32, 8), .eps = 1e-6f};
    const invar_rope_table_args table = {.cosine = narrow, .sine = narrow, .theta = 1e4};
    const invar_rope_fwd_args rope_d = {heads, heads, ids, narrow, narrow};
    const invar_rope_fwd_args rope_h = {no_heads, no_heads, ids, in_2d(F32, 3, 4),
                                        in_2d(F32, 3, 4)};
    const invar_swiglu_fwd_args swiglu = {.y = rows, .gate = rows, .up = rows};
    const invar_attention_fwd_args attention_d = {
        .o = heads, .q = heads, .k = heads, .v = heads, .samples = unit};
    const invar_attention_fwd_args attention_h = {
        .o = no_heads, .q = no_heads, .k = no_heads, .v = no_heads, .samples = unit};
    const invar_kv_write_args kv_write = {cache, no_heads, no_heads, unit, &three[1]};
    const invar_moe_plan_args plan = {ids, in_2d(I32, 3, 0), (int64_t[3]){0}, in_2d(I32, 3, 0), 2};
    const invar_moe_gather_fwd_args gather_fwd = {rows, rows, ids};
    const invar_moe_gather_bwd_args no_slots = {rows, in_2d(BF16, 0, 0), in_2d(I32, 3, 0)};
    const invar_moe_combine_bwd_args combine_bwd = {rows, out_2d(F32, 3, 1), rows,
                                                    rows, in_2d(F32, 3, 1),  in_2d(I32, 3, 1)};
    const invar_logprob_fwd_args logprob = {
        .logp = ids, .max = ids, .logsum = ids, .logits = narrow, .targets = ids};
    const invar_sample_args sample = {.tokens = ids, .logits = narrow, .top_p = 1.0f};
    const invar_tensor hashed = in_quantized(INVAR_DTYPE_FP8, 1, 3, 0);
    const invar_hash_tree_args hash_tree = {&digest, &hashed, 1, 2, NULL};
    const invar_hash_leaves_args hash_leaves = {NULL, hashed, unit, 0};

    const empty_case cases[] = {
        {INVAR_OP_LINEAR_FWD, &fwd_n, NULL},
        {INVAR_OP_LINEAR_FWD, &gated_n, NULL},
        {INVAR_OP_LINEAR_DX, &dx_k, NULL},
        {INVAR_OP_LINEAR_DW, &dw_n, NULL},
        {INVAR_OP_LINEAR_DW, &dw_k, NULL},
        {INVAR_OP_MOE_LINEAR_FWD, &moe_n, NULL},
        {INVAR_OP_TOKEN_SUM, &token_sum, NULL},
        {INVAR_OP_TOKEN_FOLD, &token_fold, NULL},
        {INVAR_OP_SHARDS_FOLD, &shards_fold, NULL},
        {INVAR_OP_QUANTIZE, &quantize, NULL},
        {INVAR_OP_DEQUANTIZE, &dequantize, NULL},
        {INVAR_OP_EMBEDDING_FWD, &embedding_fwd, NULL},
        {INVAR_OP_EMBEDDING_BWD, &embedding_bwd, NULL},
        {INVAR_OP_ADD, &add, NULL},
        {INVAR_OP_SCALE, &scale, NULL},
        {INVAR_OP_RMSNORM_FWD, &norm_d, "rmsnorm.fwd: x: nothing to normalise over"},
        {INVAR_OP_RMSNORM_FWD, &norm_h, NULL},
        {INVAR_OP_ROPE_TABLE, &table, NULL},
        {INVAR_OP_ROPE_FWD, &rope_d, NULL},
        {INVAR_OP_ROPE_FWD, &rope_h, NULL},
        {INVAR_OP_SWIGLU_FWD, &swiglu, NULL},
        {INVAR_OP_ATTENTION_FWD, &attention_d, "attention.fwd: q: head dim 0"},
        {INVAR_OP_ATTENTION_FWD, &attention_h, "attention.fwd: q: 0 query heads"},
        {INVAR_OP_KV_WRITE, &kv_write, NULL},
        {INVAR_OP_MOE_PLAN, &plan, "moe.plan: slots: 0"},
        {INVAR_OP_MOE_GATHER_FWD, &gather_fwd, NULL},
        {INVAR_OP_MOE_GATHER_BWD, &no_slots, "moe.gather.bwd: slots: 0"},
        {INVAR_OP_MOE_COMBINE_BWD, &combine_bwd, "moe.combine.bwd: columns: 0"},
        {INVAR_OP_LOGPROB_FWD, &logprob, "logprob.fwd: vocabulary: 0"},
        {INVAR_OP_SAMPLE, &sample, "sample: vocabulary: 0"},
        {INVAR_OP_HASH_TREE, &hash_tree, NULL},
        {INVAR_OP_HASH_LEAVES, &hash_leaves, NULL},
    };

    run_cases(*state, cases, sizeof cases / sizeof *cases);
}

/* Without heads the block sums are +0, regardless of their earlier content. */
static void test_empty__no_heads_in_block_sums(void **state)
{
    static const int64_t three[] = {0, 1, 3};
    const invar_tensor heads = in_3d(F32, 3, 0, 2);
    float sums[2 * 2] = {1.0f, 2.0f, 3.0f, 4.0f};
    const float zero[4] = {0};
    const invar_rmsnorm_bwd_args norm = {.dx = heads,
                                         .block_sums = invar_tensor_2d(sums, F32, 2, 2),
                                         .dy = heads,
                                         .x = heads,
                                         .weight = in_1d(F32, 2),
                                         .units = {three, 2},
                                         .eps = 1e-6f};

    assert_ok(invar_rmsnorm_bwd(*state, &norm));
    invar_assert_bits_f32(sums, zero, 4, "block sums");
}

/* A sum over no products is +0, and the bias is added. */
static void test_empty__no_input_features(void **state)
{
    float y[3 * 2], bias[2] = {1.5f, -2.0f};
    const invar_linear_fwd_args fwd = {.y = invar_tensor_2d(y, F32, 3, 2),
                                       .x = in_2d(F32, 3, 0),
                                       .w = in_2d(F32, 2, 0),
                                       .bias = invar_tensor_1d(bias, F32, 2),
                                       .k_shards = 2,
                                       .k_atom = 1};
    const invar_linear_dx_args dx = {.dx = fwd.y,
                                     .parts = {{fwd.x, in_2d(F32, 0, 2)}},
                                     .n_parts = 1,
                                     .k_shards = 2,
                                     .k_atom = {1}};
    const float expected[] = {1.5f, -2.0f, 1.5f, -2.0f, 1.5f, -2.0f}, zero[6] = {0};

    assert_ok(invar_linear_fwd(*state, &fwd));
    invar_assert_bits_f32(y, expected, 6, "y");
    assert_ok(invar_linear_dx(*state, &dx));
    invar_assert_bits_f32(y, zero, 6, "dx");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty__no_tokens),
        cmocka_unit_test(test_empty__no_columns),
        cmocka_unit_test(test_empty__no_heads_in_block_sums),
        cmocka_unit_test(test_empty__no_input_features),
    };
    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
