/*
 * cases.c - memory, dice and fields of random calls.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/gpu/cases/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels-deterministic/math/philox.h"
#include "kernels-deterministic/row.h"

/* ---- dice ------------------------------------------------------------------------------------ */

/* splitmix64 */
static uint64_t next_word(invar_dice *dice)
{
    uint64_t z = dice->state += UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

int64_t invar_roll(invar_dice *dice, int64_t bound)
{
    return bound > 0 ? (int64_t)(next_word(dice) % (uint64_t)bound) : 0;
}

/* About normal: the sum of four uniforms. */
static float next_normal(invar_dice *dice, float scale)
{
    uint64_t w = next_word(dice);
    int32_t sum = 0;

    for (int i = 0; i < 4; i++)
        sum += (int32_t)(w >> (16 * i) & 0xFFFF) - 0x8000;
    return (float)sum * 0x1p-16f * scale;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void must(invar_status status)
{
    if (status == INVAR_OK)
        return;
    fprintf(stderr, "cases: %s\n", invar_error_last()->message);
    abort();
}

void *invar_case_take(invar_case *c, size_t bytes)
{
    invar_case_block *block = NULL;

    must(invar_alloc((void **)&block, 1, sizeof *block, "a block of a case"));
    must(invar_alloc(&block->data, bytes > 0 ? bytes : 1, 1, "memory of a case"));
    memset(block->data, 0xFF, bytes > 0 ? bytes : 1);
    block->bytes = bytes;
    block->next = c->blocks;
    c->blocks = block;
    return block->data;
}

void invar_case_free(invar_case *c)
{
    for (invar_case_block *block = c->blocks, *next; block; block = next) {
        next = block->next;
        invar_free(block->data);
        invar_free(block);
    }
    c->blocks = NULL;
}

invar_tensor invar_case_tensor(invar_case *c, invar_tensor view, int64_t gap)
{
    int64_t rows = view.shape[0];

    view.row_stride += gap;
    // rows of int4 are whole bytes
    if (view.dtype == INVAR_DTYPE_INT4)
        view.row_stride += view.row_stride % 2;
    view.data = invar_case_take(c, (size_t)(rows * view.row_stride) *
                                       (size_t)invar_dtype_bits(view.dtype) / 8);
    if (invar_dtype_scale_block(view.dtype) > 0)
        view.scale = invar_case_take(c, invar_tensor_scale_bytes(&view));
    return view;
}

invar_tensor invar_case_normal(invar_case *c, invar_tensor view, int64_t gap, invar_dice *dice,
                               float scale)
{
    invar_tensor t = invar_case_tensor(c, view, gap);
    int64_t cols = invar_tensor_row_elements(&t);
    bool vector = t.rank == 1;

    for (int64_t i = 0; i < t.shape[0]; i++)
        for (int64_t j = 0; j < cols; j++) {
            float value = next_normal(dice, scale);
            // a vector counts as one row
            invar_row_store(&t, vector ? 0 : i, vector ? i : j, 1, &value);
        }
    return t;
}

invar_tensor invar_case_index(invar_case *c, invar_tensor view, int64_t gap, invar_dice *dice,
                              int64_t bound)
{
    invar_tensor t = invar_case_tensor(c, view, gap);
    int64_t cols = invar_tensor_row_elements(&t);

    for (int64_t i = 0; i < t.shape[0]; i++)
        for (int64_t j = 0; j < cols; j++)
            ((int32_t *)t.data)[i * t.row_stride + j] = (int32_t)invar_roll(dice, bound);
    return t;
}

invar_tensor invar_case_quantised(invar_case *c, invar_dtype dtype, int32_t scale_rows,
                                  int64_t rows, int64_t cols, invar_dice *dice, float scale)
{
    invar_device cpu = {.backend = invar_backend_cpu(), .numerics = INVAR_NUMERICS_IEEE};
    invar_case plain = {.op = INVAR_OP_QUANTISE};
    invar_tensor q =
        invar_case_tensor(c, invar_tensor_quantised(NULL, NULL, dtype, scale_rows, rows, cols), 0);

    plain.args.quantise.q = q;
    plain.args.quantise.x = invar_case_normal(
        &plain, invar_tensor_2d(NULL, INVAR_DTYPE_F32, rows, cols), 0, dice, scale);
    must(invar_case_run(&cpu, &plain));
    invar_case_free(&plain);
    return q;
}

invar_segments invar_case_segments(invar_case *c, int64_t rows, int64_t count, bool empty,
                                   invar_dice *dice)
{
    int64_t *start = invar_case_take(c, (size_t)(count + 1) * sizeof *start);
    int64_t least = empty ? 0 : 1, spare = rows - least * count;

    start[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t more = i + 1 < count ? invar_roll(dice, 2 * spare / (count - i) + 1) : spare;
        more = more > spare ? spare : more;
        start[i + 1] = start[i] + least + more;
        spare -= more;
    }
    return (invar_segments){start, count};
}

/* ---- making ---------------------------------------------------------------------------------- */

static const invar_case_family *family_of(invar_op op)
{
    switch (op) {
    case INVAR_OP_LINEAR_FWD:
    case INVAR_OP_LINEAR_DX:
    case INVAR_OP_LINEAR_DW:
    case INVAR_OP_MOE_LINEAR_FWD:
    case INVAR_OP_MOE_LINEAR_DX:
    case INVAR_OP_MOE_LINEAR_DW: return &invar_cases_linear;
    case INVAR_OP_ATTENTION_FWD:
    case INVAR_OP_ATTENTION_BWD:
    case INVAR_OP_ATTENTION_PAGED:
    case INVAR_OP_KV_WRITE: return &invar_cases_attention;
    case INVAR_OP_MOE_ROUTE_FWD:
    case INVAR_OP_MOE_ROUTE_BWD:
    case INVAR_OP_MOE_PLAN:
    case INVAR_OP_MOE_GATHER_FWD:
    case INVAR_OP_MOE_GATHER_BWD:
    case INVAR_OP_MOE_COMBINE_FWD:
    case INVAR_OP_MOE_COMBINE_BWD: return &invar_cases_moe;
    case INVAR_OP_LOGPROB_FWD:
    case INVAR_OP_LOGPROB_BWD:
    case INVAR_OP_SAMPLE:
    case INVAR_OP_GRAD_NORM:
    case INVAR_OP_ADAMW:
    case INVAR_OP_HASH_TREE: return &invar_cases_head;
    default: return &invar_cases_rows;
    }
}

void invar_case_make(invar_case *c, invar_op op, invar_numerics numerics, uint64_t seed)
{
    memset(c, 0, sizeof *c);
    c->op = op;
    c->numerics = numerics;
    family_of(op)->make(c, seed);
}

/* ---- fields ---------------------------------------------------------------------------------- */

#define AT(fn, field) offsetof(invar_##fn##_args, field)
#define TENSOR(fn, field)                                                                          \
    {                                                                                              \
        INVAR_FIELD_TENSOR, AT(fn, field)                                                          \
    }
#define SEGMENTS(fn, field)                                                                        \
    {                                                                                              \
        INVAR_FIELD_SEGMENTS, AT(fn, field)                                                        \
    }
#define POINTER(fn, field)                                                                         \
    {                                                                                              \
        INVAR_FIELD_POINTER, AT(fn, field)                                                         \
    }
#define PARTS(fn)                                                                                  \
    TENSOR(fn, parts[0].dy), TENSOR(fn, parts[0].w), TENSOR(fn, parts[1].dy),                      \
        TENSOR(fn, parts[1].w), TENSOR(fn, parts[2].dy), TENSOR(fn, parts[2].w)
#define OUTPUT(fn, i) TENSOR(fn, more[i].y), TENSOR(fn, more[i].w), TENSOR(fn, more[i].bias)
#define PAGES(fn) TENSOR(fn, cache.k), TENSOR(fn, cache.v), TENSOR(fn, cache.pages)

#define MOST_FIELDS 16

/* One row per op. */
static const struct {
    int count;
    invar_field at[MOST_FIELDS];
} table[INVAR_OP_COUNT] = {
#define ROW(ID, ...)                                                                               \
    [INVAR_OP_##ID] = {(int)(sizeof((const invar_field[]){__VA_ARGS__}) / sizeof(invar_field)),    \
                       {__VA_ARGS__}}
    ROW(LINEAR_FWD, TENSOR(linear_fwd, y), TENSOR(linear_fwd, x), TENSOR(linear_fwd, w),
        TENSOR(linear_fwd, bias), TENSOR(linear_fwd, residual), TENSOR(linear_fwd, act),
        OUTPUT(linear_fwd, 0), OUTPUT(linear_fwd, 1)),
    ROW(LINEAR_DX, TENSOR(linear_dx, dx), PARTS(linear_dx)),
    ROW(LINEAR_DW, TENSOR(linear_dw, dw), TENSOR(linear_dw, dy), TENSOR(linear_dw, x),
        SEGMENTS(linear_dw, units)),
    ROW(TOKEN_SUM, TENSOR(token_sum, out), TENSOR(token_sum, x), SEGMENTS(token_sum, units)),
    ROW(SHARD_FOLD, TENSOR(shard_fold, out), TENSOR(shard_fold, x)),
    ROW(QUANTISE, TENSOR(quantise, q), TENSOR(quantise, x)),
    ROW(DEQUANTISE, TENSOR(dequantise, x), TENSOR(dequantise, q)),
    ROW(EMBEDDING_FWD, TENSOR(embedding_fwd, out), TENSOR(embedding_fwd, table),
        TENSOR(embedding_fwd, ids)),
    ROW(EMBEDDING_BWD, TENSOR(embedding_bwd, dtable), TENSOR(embedding_bwd, dout),
        TENSOR(embedding_bwd, ids)),
    ROW(ADD, TENSOR(add, out), TENSOR(add, a), TENSOR(add, b)),
    ROW(RMSNORM_FWD, TENSOR(rmsnorm_fwd, y), TENSOR(rmsnorm_fwd, x), TENSOR(rmsnorm_fwd, weight),
        TENSOR(rmsnorm_fwd, rotation.positions), TENSOR(rmsnorm_fwd, rotation.cosine),
        TENSOR(rmsnorm_fwd, rotation.sine)),
    ROW(RMSNORM_BWD, TENSOR(rmsnorm_bwd, dx), TENSOR(rmsnorm_bwd, dweight), TENSOR(rmsnorm_bwd, dy),
        TENSOR(rmsnorm_bwd, x), TENSOR(rmsnorm_bwd, weight), SEGMENTS(rmsnorm_bwd, units),
        TENSOR(rmsnorm_bwd, rotation.positions), TENSOR(rmsnorm_bwd, rotation.cosine),
        TENSOR(rmsnorm_bwd, rotation.sine), TENSOR(rmsnorm_bwd, residual)),
    ROW(ROPE_TABLE, TENSOR(rope_table, cosine), TENSOR(rope_table, sine)),
    ROW(ROPE_FWD, TENSOR(rope_fwd, y), TENSOR(rope_fwd, x), TENSOR(rope_fwd, positions),
        TENSOR(rope_fwd, cosine), TENSOR(rope_fwd, sine)),
    ROW(ROPE_BWD, TENSOR(rope_bwd, y), TENSOR(rope_bwd, x), TENSOR(rope_bwd, positions),
        TENSOR(rope_bwd, cosine), TENSOR(rope_bwd, sine)),
    ROW(SWIGLU_FWD, TENSOR(swiglu_fwd, y), TENSOR(swiglu_fwd, gate), TENSOR(swiglu_fwd, up),
        TENSOR(swiglu_fwd, y_q)),
    ROW(SWIGLU_BWD, TENSOR(swiglu_bwd, dgate), TENSOR(swiglu_bwd, dup), TENSOR(swiglu_bwd, dy),
        TENSOR(swiglu_bwd, gate), TENSOR(swiglu_bwd, up), TENSOR(swiglu_bwd, dgate_q),
        TENSOR(swiglu_bwd, dup_q)),
    ROW(ATTENTION_FWD, TENSOR(attention_fwd, o), TENSOR(attention_fwd, lse2),
        TENSOR(attention_fwd, q), TENSOR(attention_fwd, k), TENSOR(attention_fwd, v),
        SEGMENTS(attention_fwd, samples)),
    ROW(ATTENTION_BWD, TENSOR(attention_bwd, dq), TENSOR(attention_bwd, dk),
        TENSOR(attention_bwd, dv), TENSOR(attention_bwd, d_o), TENSOR(attention_bwd, o),
        TENSOR(attention_bwd, lse2), TENSOR(attention_bwd, q), TENSOR(attention_bwd, k),
        TENSOR(attention_bwd, v), SEGMENTS(attention_bwd, samples)),
    ROW(ATTENTION_PAGED, TENSOR(attention_paged, o), TENSOR(attention_paged, q),
        PAGES(attention_paged), SEGMENTS(attention_paged, rows), POINTER(attention_paged, lengths)),
    ROW(KV_WRITE, PAGES(kv_write), TENSOR(kv_write, k), TENSOR(kv_write, v),
        SEGMENTS(kv_write, rows), POINTER(kv_write, lengths)),
    ROW(MOE_ROUTE_FWD, TENSOR(moe_route_fwd, ids), TENSOR(moe_route_fwd, weights),
        TENSOR(moe_route_fwd, scores), TENSOR(moe_route_fwd, logits), TENSOR(moe_route_fwd, bias),
        TENSOR(moe_route_fwd, replay)),
    ROW(MOE_ROUTE_BWD, TENSOR(moe_route_bwd, dlogits), TENSOR(moe_route_bwd, dweights),
        TENSOR(moe_route_bwd, ids), TENSOR(moe_route_bwd, scores)),
    ROW(MOE_PLAN, TENSOR(moe_plan, row_token), TENSOR(moe_plan, slot_row),
        POINTER(moe_plan, expert_start), TENSOR(moe_plan, ids)),
    ROW(MOE_GATHER_FWD, TENSOR(moe_gather_fwd, out), TENSOR(moe_gather_fwd, x),
        TENSOR(moe_gather_fwd, row_token)),
    ROW(MOE_GATHER_BWD, TENSOR(moe_gather_bwd, dx), TENSOR(moe_gather_bwd, dout),
        TENSOR(moe_gather_bwd, slot_row)),
    ROW(MOE_LINEAR_FWD, TENSOR(moe_linear_fwd, y), TENSOR(moe_linear_fwd, x),
        TENSOR(moe_linear_fwd, w), SEGMENTS(moe_linear_fwd, experts)),
    ROW(MOE_LINEAR_DX, TENSOR(moe_linear_dx, dx), PARTS(moe_linear_dx),
        SEGMENTS(moe_linear_dx, experts)),
    ROW(MOE_LINEAR_DW, TENSOR(moe_linear_dw, dw), TENSOR(moe_linear_dw, dy),
        TENSOR(moe_linear_dw, x), TENSOR(moe_linear_dw, row_token),
        SEGMENTS(moe_linear_dw, experts), SEGMENTS(moe_linear_dw, units)),
    ROW(MOE_COMBINE_FWD, TENSOR(moe_combine_fwd, out), TENSOR(moe_combine_fwd, y),
        TENSOR(moe_combine_fwd, weights), TENSOR(moe_combine_fwd, slot_row),
        TENSOR(moe_combine_fwd, shared)),
    ROW(MOE_COMBINE_BWD, TENSOR(moe_combine_bwd, dy), TENSOR(moe_combine_bwd, dweights),
        TENSOR(moe_combine_bwd, dout), TENSOR(moe_combine_bwd, y), TENSOR(moe_combine_bwd, weights),
        TENSOR(moe_combine_bwd, slot_row)),
    ROW(LOGPROB_FWD, TENSOR(logprob_fwd, logp), TENSOR(logprob_fwd, entropy),
        TENSOR(logprob_fwd, max), TENSOR(logprob_fwd, logsum), TENSOR(logprob_fwd, logits),
        TENSOR(logprob_fwd, targets)),
    ROW(LOGPROB_BWD, TENSOR(logprob_bwd, dlogits), TENSOR(logprob_bwd, dlogp),
        TENSOR(logprob_bwd, dentropy), TENSOR(logprob_bwd, entropy), TENSOR(logprob_bwd, max),
        TENSOR(logprob_bwd, logsum), TENSOR(logprob_bwd, logits), TENSOR(logprob_bwd, targets)),
    ROW(SAMPLE, TENSOR(sample, tokens), TENSOR(sample, logits), POINTER(sample, coords),
        TENSOR(sample, hidden), TENSOR(sample, hides)),
    ROW(GRAD_NORM, {INVAR_FIELD_RESULT, AT(grad_norm, norm)},
        {INVAR_FIELD_RESULT, AT(grad_norm, clip)}, {INVAR_FIELD_TENSORS, AT(grad_norm, grads)},
        {INVAR_FIELD_RESULT, AT(grad_norm, digest)}),
    ROW(ADAMW, TENSOR(adamw, weight), TENSOR(adamw, master), TENSOR(adamw, m), TENSOR(adamw, v),
        TENSOR(adamw, grad), POINTER(adamw, digest)),
    ROW(HASH_TREE, POINTER(hash_tree, digest), {INVAR_FIELD_TENSORS, AT(hash_tree, x)}),
};

const invar_field *invar_case_fields(int *count_out, invar_op op)
{
    *count_out = table[op].count;
    return table[op].at;
}

/* ---- running --------------------------------------------------------------------------------- */

invar_status invar_case_run(const invar_device *dev, const invar_case *c)
{
    invar_device own = *dev;
    size_t bytes = 0;
    invar_status status;

    own.numerics = c->numerics;
    own.scratch = NULL;
    INVAR_TRY(invar_op_workspace(&bytes, &own, c->op, &c->args));
    INVAR_TRY(invar_device_arena(&own.scratch, dev, "scratch of a case"));
    status = invar_arena_plan_scratch(own.scratch, bytes);
    if (status == INVAR_OK)
        status = invar_arena_reserve(own.scratch);
    if (status == INVAR_OK)
        status = invar_op_run(&own, c->op, &c->args);
    invar_arena_free(own.scratch);
    return status;
}

const invar_tensor *invar_case_list(int64_t *count_out, const invar_case *c)
{
    switch (c->op) {
    case INVAR_OP_GRAD_NORM: *count_out = c->args.grad_norm.count; return c->args.grad_norm.grads;
    case INVAR_OP_HASH_TREE: *count_out = c->args.hash_tree.count; return c->args.hash_tree.x;
    default: *count_out = 0; return NULL;
    }
}

bool invar_case_is_list(const invar_case *c, const invar_case_block *block)
{
    int64_t count;
    const invar_tensor *list = invar_case_list(&count, c);

    return list && (const void *)list == block->data;
}

invar_digest invar_case_digest(const invar_case *c)
{
    invar_digest digest;
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    for (const invar_case_block *block = c->blocks; block; block = block->next)
        if (!invar_case_is_list(c, block))
            invar_hasher_update(&hasher, block->data, block->bytes);
    invar_hasher_final(&digest, &hasher);
    return digest;
}

/* What a line is about: an op, or the calls of one from a seed on. */
typedef struct line {
    invar_op op;
    const char *name;
    uint64_t first_seed;
} line;

static invar_status one_line(const line *l, invar_numerics numerics, int count,
                             invar_status (*run)(void *payload, invar_case *c, uint64_t seed),
                             void *payload)
{
    char text[INVAR_DIGEST_HEX_SIZE];
    invar_hasher hasher;
    invar_digest digest;

    invar_hasher_init(&hasher);
    for (int seed = 0; seed < count; seed++) {
        invar_status status;
        invar_case c;
        invar_case_make(&c, l->op, numerics, l->first_seed + (uint64_t)seed);
        status = run(payload, &c, (uint64_t)seed);
        digest = invar_case_digest(&c);
        if (status != INVAR_OK)
            fprintf(stderr, "%s %s seed %d, %s: %s\n", l->name, invar_numerics_name(numerics), seed,
                    c.text, invar_error_last()->message);
        invar_case_free(&c);
        INVAR_TRY(status);
        invar_hasher_update(&hasher, &digest, sizeof digest);
    }
    invar_hasher_final(&digest, &hasher);
    invar_digest_format(text, &digest);
    printf("%s %s %d %s\n", l->name, invar_numerics_name(numerics), count, text);
    fflush(stdout);
    return INVAR_OK;
}

invar_status invar_case_lines(int count, const char *only,
                              invar_status (*run)(void *payload, invar_case *c, uint64_t seed),
                              void *payload)
{
    static const line more[] = {
        {INVAR_OP_LINEAR_FWD, "linear.fwd.fused", INVAR_CASE_MORE},
        {INVAR_OP_LINEAR_DW, "linear.dw.fresh", INVAR_CASE_MORE},
        {INVAR_OP_MOE_LINEAR_DW, "moe.linear.dw.fresh", INVAR_CASE_MORE},
    };
    invar_status first = INVAR_OK;

    for (int n = 0; n < INVAR_OP_COUNT + (int)(sizeof more / sizeof *more); n++) {
        line l = n < INVAR_OP_COUNT ? (line){(invar_op)n, invar_op_name((invar_op)n), 0}
                                    : more[n - INVAR_OP_COUNT];
        if (only && strcmp(only, l.name) != 0)
            continue;
        for (int i = 0; i < (invar_op_uses_step(l.op) ? INVAR_NUMERICS_COUNT : 1); i++) {
            invar_status status = one_line(&l, (invar_numerics)i, count, run, payload);
            first = first == INVAR_OK ? status : first;
        }
    }
    return first;
}
