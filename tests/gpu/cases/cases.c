/*
 * cases.c - memory and random numbers of random calls, and the loop that runs them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/gpu/cases/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels-deterministic/math/philox.h"
#include "kernels-deterministic/tensor_row.h"

/* ---- random numbers -------------------------------------------------------------------------- */

/* The generator splitmix64. */
static uint64_t next_word(invar_case_rng *rng)
{
    uint64_t z = rng->state += UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

int64_t invar_case_random(invar_case_rng *rng, int64_t bound)
{
    return bound > 0 ? (int64_t)(next_word(rng) % (uint64_t)bound) : 0;
}

/* Returns an approximately normal number: the sum of four uniforms. */
static float next_normal(invar_case_rng *rng, float scale)
{
    uint64_t w = next_word(rng);
    int32_t sum = 0;

    for (int i = 0; i < 4; i++)
        sum += (int32_t)(w >> (16 * i) & 0xFFFF) - 0x8000;
    return (float)sum * 0x1p-16f * scale;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void abort_on_error(invar_status status)
{
    if (status == INVAR_OK)
        return;
    fprintf(stderr, "cases: %s\n", invar_error_last()->message);
    abort();
}

void *invar_case_alloc(invar_case *c, size_t bytes)
{
    invar_case_block *block = NULL;

    abort_on_error(INVAR_ALLOC(block, 1, "a block of a case"));
    abort_on_error(invar_alloc(&block->data, bytes > 0 ? bytes : 1, 1, "memory of a case"));
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
    // rows of int4 have a number of complete bytes
    if (view.dtype == INVAR_DTYPE_INT4)
        view.row_stride += view.row_stride % 2;
    view.data = invar_case_alloc(c, (size_t)(rows * view.row_stride) *
                                        (size_t)invar_dtype_bits(view.dtype) / 8);
    if (invar_dtype_scale_block(view.dtype) > 0)
        view.scale = invar_case_alloc(c, invar_tensor_scale_bytes(&view));
    return view;
}

invar_tensor invar_case_normal(invar_case *c, invar_tensor view, int64_t gap, invar_case_rng *rng,
                               float scale)
{
    invar_tensor t = invar_case_tensor(c, view, gap);
    int64_t cols = invar_tensor_row_elements(&t);
    bool vector = t.rank == 1;

    for (int64_t i = 0; i < t.shape[0]; i++)
        for (int64_t j = 0; j < cols; j++) {
            float value = next_normal(rng, scale);
            // a vector is one row
            invar_tensor_row_store(&t, vector ? 0 : i, vector ? i : j, 1, &value);
        }
    return t;
}

invar_tensor invar_case_index(invar_case *c, invar_tensor view, int64_t gap, invar_case_rng *rng,
                              int64_t bound)
{
    invar_tensor t = invar_case_tensor(c, view, gap);
    int64_t cols = invar_tensor_row_elements(&t);

    for (int64_t i = 0; i < t.shape[0]; i++)
        for (int64_t j = 0; j < cols; j++)
            ((int32_t *)t.data)[i * t.row_stride + j] = (int32_t)invar_case_random(rng, bound);
    return t;
}

invar_tensor invar_case_quantized(invar_case *c, invar_tensor view, invar_case_rng *rng,
                                  float scale)
{
    invar_device cpu = {.backend = invar_backend_cpu(), .numerics = INVAR_NUMERICS_IEEE};
    invar_case plain = {.op = INVAR_OP_QUANTIZE};
    invar_tensor q = invar_case_tensor(c, view, 0);

    plain.args.quantize.q = q;
    plain.args.quantize.x = invar_case_normal(
        &plain, invar_tensor_2d(NULL, INVAR_DTYPE_F32, q.shape[0], q.shape[1]), 0, rng, scale);
    abort_on_error(invar_case_run(&cpu, &plain));
    invar_case_free(&plain);
    return q;
}

invar_row_offsets invar_case_segments(invar_case *c, int64_t rows, int64_t count, bool empty,
                                      invar_case_rng *rng)
{
    int64_t *start = invar_case_alloc(c, (size_t)(count + 1) * sizeof *start);
    int64_t min_rows = empty ? 0 : 1, remaining = rows - min_rows * count;

    start[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t extra =
            i + 1 < count ? invar_case_random(rng, 2 * remaining / (count - i) + 1) : remaining;
        extra = extra > remaining ? remaining : extra;
        start[i + 1] = start[i] + min_rows + extra;
        remaining -= extra;
    }
    return (invar_row_offsets){start, count};
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
    case INVAR_OP_LOGPROB_SUM:
    case INVAR_OP_LOGPROB_JOIN:
    case INVAR_OP_SAMPLE:
    case INVAR_OP_GRAD_NORM:
    case INVAR_OP_ADAMW:
    case INVAR_OP_HASH_TREE:
    case INVAR_OP_HASH_LEAVES: return &invar_cases_head;
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

/* ---- running --------------------------------------------------------------------------------- */

invar_status invar_case_run(const invar_device *dev, const invar_case *c)
{
    invar_device case_device = *dev;
    size_t bytes = 0;
    invar_status status;

    case_device.numerics = c->numerics;
    case_device.scratch = NULL;
    INVAR_TRY(invar_op_workspace(&bytes, &case_device, c->op, &c->args));
    INVAR_TRY(invar_device_arena(&case_device.scratch, dev, "scratch of a case"));
    status = invar_arena_plan_scratch(case_device.scratch, bytes);
    if (status == INVAR_OK)
        status = invar_arena_reserve(case_device.scratch);
    if (status == INVAR_OK)
        status = invar_op_run(&case_device, c->op, &c->args);
    invar_arena_free(case_device.scratch);
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

/* A printed line: an op, or the calls of an op from a seed on. */
typedef struct case_series {
    invar_op op;
    const char *name;
    uint64_t first_seed;
} case_series;

static invar_status print_cases(const case_series *series, invar_numerics numerics, int count,
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
        invar_case_make(&c, series->op, numerics, series->first_seed + (uint64_t)seed);
        status = run(payload, &c, (uint64_t)seed);
        digest = invar_case_digest(&c);
        if (status != INVAR_OK)
            fprintf(stderr, "%s %s seed %d, %s: %s\n", series->name, invar_numerics_name(numerics),
                    seed, c.text, invar_error_last()->message);
        invar_case_free(&c);
        INVAR_TRY(status);
        invar_hasher_update(&hasher, &digest, sizeof digest);
    }
    invar_hasher_final(&digest, &hasher);
    invar_digest_format(text, &digest);
    printf("%s %s %d %s\n", series->name, invar_numerics_name(numerics), count, text);
    fflush(stdout);
    return INVAR_OK;
}

invar_status invar_case_lines(int count, const char *only,
                              invar_status (*run)(void *payload, invar_case *c, uint64_t seed),
                              void *payload)
{
    static const case_series extra[] = {
        {INVAR_OP_LINEAR_FWD, "linear.fwd.fused", INVAR_CASE_FUSED},
        {INVAR_OP_LINEAR_DW, "linear.dw.fresh", INVAR_CASE_FUSED},
        {INVAR_OP_MOE_LINEAR_DW, "moe.linear.dw.fresh", INVAR_CASE_FUSED},
        {INVAR_OP_LINEAR_FWD, "linear.fwd.atoms", INVAR_CASE_ATOMS},
        {INVAR_OP_LINEAR_DX, "linear.dx.atoms", INVAR_CASE_ATOMS},
        {INVAR_OP_MOE_LINEAR_FWD, "moe.linear.fwd.atoms", INVAR_CASE_ATOMS},
        {INVAR_OP_MOE_LINEAR_DX, "moe.linear.dx.atoms", INVAR_CASE_ATOMS},
        {INVAR_OP_LINEAR_FWD, "linear.fwd.short", INVAR_CASE_SHORT},
        {INVAR_OP_LINEAR_DX, "linear.dx.short", INVAR_CASE_SHORT},
        {INVAR_OP_MOE_LINEAR_FWD, "moe.linear.fwd.short", INVAR_CASE_SHORT},
        {INVAR_OP_MOE_LINEAR_DX, "moe.linear.dx.short", INVAR_CASE_SHORT},
        {INVAR_OP_QUANTIZE, "quantise.short", INVAR_CASE_SHORT},
        {INVAR_OP_DEQUANTIZE, "dequantise.short", INVAR_CASE_SHORT},
        {INVAR_OP_SWIGLU_FWD, "swiglu.fwd.short", INVAR_CASE_SHORT},
        {INVAR_OP_SWIGLU_BWD, "swiglu.bwd.short", INVAR_CASE_SHORT},
        {INVAR_OP_HASH_TREE, "hash.tree.short", INVAR_CASE_SHORT},
        {INVAR_OP_HASH_LEAVES, "hash.leaves.short", INVAR_CASE_SHORT},
        {INVAR_OP_RMSNORM_BWD, "rmsnorm.bwd.shards", INVAR_CASE_SPLIT},
        {INVAR_OP_ATTENTION_BWD, "attention.bwd.shards", INVAR_CASE_SPLIT},
        {INVAR_OP_GRAD_NORM, "grad.norm.gaps", INVAR_CASE_SPLIT},
        {INVAR_OP_GRAD_NORM, "grad.norm.squares", INVAR_CASE_SHARDS},
        {INVAR_OP_HASH_TREE, "hash.tree.cuts", INVAR_CASE_SPLIT},
        {INVAR_OP_LINEAR_FWD, "linear.fwd.few", INVAR_CASE_FEW},
        {INVAR_OP_MOE_LINEAR_FWD, "moe.linear.fwd.few", INVAR_CASE_FEW},
        {INVAR_OP_LINEAR_FWD, "linear.fwd.shards", INVAR_CASE_SHARDS},
        {INVAR_OP_LINEAR_DX, "linear.dx.shards", INVAR_CASE_SHARDS},
        {INVAR_OP_MOE_LINEAR_FWD, "moe.linear.fwd.shards", INVAR_CASE_SHARDS},
        {INVAR_OP_MOE_LINEAR_DX, "moe.linear.dx.shards", INVAR_CASE_SHARDS},
        {INVAR_OP_RMSNORM_BWD, "rmsnorm.bwd.heads", INVAR_CASE_SHARDS},
        {INVAR_OP_RMSNORM_BWD, "rmsnorm.bwd.blocks", INVAR_CASE_FUSED},
    };
    invar_status first = INVAR_OK;

    for (int n = 0; n < INVAR_OP_COUNT + (int)(sizeof extra / sizeof *extra); n++) {
        case_series series = n < INVAR_OP_COUNT
                                 ? (case_series){(invar_op)n, invar_op_name((invar_op)n), 0}
                                 : extra[n - INVAR_OP_COUNT];
        if (only && strcmp(only, series.name) != 0)
            continue;
        for (int i = 0; i < (invar_op_depends_on_numerics(series.op) ? INVAR_NUMERICS_COUNT : 1);
             i++) {
            invar_status status = print_cases(&series, (invar_numerics)i, count, run, payload);
            first = first == INVAR_OK ? status : first;
        }
    }
    return first;
}
