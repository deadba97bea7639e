/*
 * moe.c - random calls of the mixture of experts: router, plan, gather, combine, and their
 * backward.
 *
 * The first seeds are edge shapes: no token, one expert, equal numbers of slots and experts,
 * groups, more experts than a digit of a sort has values. All other seeds draw all properties:
 * extents, types (also mixed ones, if an op accepts them), gaps, scoring, groups, bias, replay.
 * Logits often repeat, so that ids decide.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "kernels-deterministic/tensor_row.h"
#include "tests/gpu/cases/cases.h"

typedef struct form {
    int64_t tokens;
    int64_t experts;
    int64_t slots;
    int64_t groups;
    int64_t n_kept_groups; /* groups that a token may use */
    int64_t cols;
} form;

static const form edges[] = {
    {0, 8, 2, 1, 1, 64},      {1, 1, 1, 1, 1, 1},      {5, 4, 4, 1, 1, 256},
    {33, 256, 8, 8, 4, 128},  {64, 128, 8, 1, 1, 257}, {3, 3000, 7, 1, 1, 8},
    {700, 600, 9, 1, 1, 4},   {7, 64, 6, 64, 9, 4100}, {40, 512, 40, 2, 1, 16},
    {3000, 8, 2, 1, 1, 4},    {2, 33, 5, 11, 10, 24},  {1500, 8, 8, 1, 1, 8},
    {2, 300000, 3, 1, 1, 32},
};

enum { EDGES = sizeof edges / sizeof edges[0] };

/* State while a case is made. */
typedef struct case_builder {
    invar_case *c;
    invar_case_rng rng;
    form f;
    int64_t gap; /* elements between rows */
} case_builder;

static case_builder new_builder(invar_case *c, uint64_t seed)
{
    case_builder m = {.c = c, .rng = {seed << 8 | invar_case_stream(c->op)}};

    if (seed < EDGES) {
        m.f = edges[seed];
    } else {
        int64_t group = INVAR_CASE_PICK(&m.rng, 1, 2, 4, 16, 32, 37);
        m.f.tokens = 1 + invar_case_random(&m.rng, INVAR_CASE_PICK(&m.rng, 3, 40, 300));
        m.f.groups = INVAR_CASE_PICK(&m.rng, 1, 1, 2, 4, 8);
        m.f.experts = m.f.groups * group;
        m.f.n_kept_groups = 1 + invar_case_random(&m.rng, m.f.groups);
        m.f.slots = 1 + invar_case_random(
                            &m.rng, m.f.n_kept_groups * group < 9 ? m.f.n_kept_groups * group : 9);
        m.f.cols = INVAR_CASE_PICK(&m.rng, 1, 8, 30, 64, 128, 256, 264, 1024, 4096);
        while (m.f.tokens > 1 && m.f.tokens * m.f.slots * m.f.cols > INT64_C(1) << 17)
            m.f.tokens /= 2;
        m.gap = invar_case_random(&m.rng, 2) ? INVAR_CASE_PICK(&m.rng, 8, 16, 1, 5) : 0;
    }
    snprintf(c->text, sizeof c->text,
             "T %" PRId64 ", E %" PRId64 ", S %" PRId64 ", groups %" PRId64 "/%" PRId64
             ", D %" PRId64 ", gap %" PRId64,
             m.f.tokens, m.f.experts, m.f.slots, m.f.n_kept_groups, m.f.groups, m.f.cols, m.gap);
    return m;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static invar_dtype storage(case_builder *m)
{
    return invar_case_random(&m->rng, 3) == 0 ? INVAR_DTYPE_F32 : INVAR_DTYPE_BF16;
}

static invar_tensor output(case_builder *m, invar_dtype dtype, int64_t rows, int64_t cols)
{
    return invar_case_tensor(m->c, invar_tensor_2d(NULL, dtype, rows, cols), m->gap);
}

static invar_tensor input(case_builder *m, invar_dtype dtype, int64_t rows, int64_t cols,
                          float scale)
{
    return invar_case_normal(m->c, invar_tensor_2d(NULL, dtype, rows, cols), m->gap, &m->rng,
                             scale);
}

/* Replaces each value x by f(x). */
static void map_values(const invar_tensor *t, float (*f)(float))
{
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < t->shape[1]; j++) {
            float value;
            invar_tensor_row_load(&value, t, i, j, 1);
            value = f(value);
            invar_tensor_row_store(t, i, j, 1, &value);
        }
}

static float round_to_quarters(float x)
{
    return floorf(x * 4.0f) * 0.25f;
}

static float positive(float x)
{
    return fabsf(x) + 0x1p-8f;
}

/* Draws distinct experts for each token. */
static invar_tensor distinct_experts(case_builder *m)
{
    invar_tensor ids = output(m, INVAR_DTYPE_I32, m->f.tokens, m->f.slots);

    for (int64_t t = 0; t < m->f.tokens; t++) {
        int32_t *row = (int32_t *)ids.data + t * ids.row_stride;
        for (int64_t s = 0; s < m->f.slots; s++) {
            // a random expert, or the next one that is not taken yet
            int64_t id = invar_case_random(&m->rng, m->f.experts), earlier = 0;
            while (earlier < s) {
                if (row[earlier] == id) {
                    id = (id + 1) % m->f.experts;
                    earlier = 0;
                } else {
                    earlier++;
                }
            }
            row[s] = (int32_t)id;
        }
    }
    return ids;
}

/* Fills each of the T * S rows once, in random order. */
static invar_tensor permutation(case_builder *m)
{
    invar_tensor rows = output(m, INVAR_DTYPE_I32, m->f.tokens, m->f.slots);
    int32_t *at = rows.data;

    for (int64_t i = 0; i < m->f.tokens * m->f.slots; i++) {
        int64_t j = invar_case_random(&m->rng, i + 1);
        int64_t to = i / m->f.slots * rows.row_stride + i % m->f.slots;
        int64_t from = j / m->f.slots * rows.row_stride + j % m->f.slots;
        at[to] = at[from];
        at[from] = (int32_t)i;
    }
    return rows;
}

static invar_moe_router router(case_builder *m)
{
    invar_moe_router r = {.scoring = (invar_moe_scoring)invar_case_random(&m->rng, 2),
                          .groups = (int32_t)m->f.groups,
                          .groups_kept = (int32_t)m->f.n_kept_groups,
                          .group_score_top = 1,
                          .normalise = (int32_t)invar_case_random(&m->rng, 2),
                          .normalise_eps = invar_case_random(&m->rng, 2) ? 1e-20f : 0.0f,
                          .scale = invar_case_random(&m->rng, 2) ? 1.0f : 2.5f};

    if (m->f.experts / m->f.groups >= 2)
        r.group_score_top = 1 + (int32_t)invar_case_random(&m->rng, 2);
    return r;
}

/* ---- ops ------------------------------------------------------------------------------------- */

static void make_route_fwd(case_builder *m)
{
    invar_moe_route_fwd_args *a = &m->c->args.moe_route_fwd;
    float scale = invar_case_random(&m->rng, 4) == 0 ? 60.0f : 2.0f;

    a->router = router(m);
    a->logits = input(m, INVAR_DTYPE_F32, m->f.tokens, m->f.experts, scale);
    if (invar_case_random(&m->rng, 2))
        map_values(&a->logits, round_to_quarters);
    if (invar_case_random(&m->rng, 2))
        a->bias = invar_case_normal(m->c, invar_tensor_1d(NULL, INVAR_DTYPE_F32, m->f.experts), 0,
                                    &m->rng, 0.1f);
    if (invar_case_random(&m->rng, 3) == 0) {
        a->replay = distinct_experts(m);
        // the scores of all replayed experts may be 0, and the bits of 0 / 0 are not promised
        a->router.normalise_eps += 0x1p-149f;
    }
    a->ids = output(m, INVAR_DTYPE_I32, m->f.tokens, m->f.slots);
    a->weights = output(m, INVAR_DTYPE_F32, m->f.tokens, m->f.slots);
    a->scores = output(m, INVAR_DTYPE_F32, m->f.tokens, m->f.experts);
}

static void make_route_bwd(case_builder *m)
{
    invar_moe_route_bwd_args *a = &m->c->args.moe_route_bwd;

    a->router = router(m);
    a->scores = input(m, INVAR_DTYPE_F32, m->f.tokens, m->f.experts, 0.5f);
    map_values(&a->scores, positive);
    a->dweights = input(m, INVAR_DTYPE_F32, m->f.tokens, m->f.slots, 1.0f);
    a->ids = distinct_experts(m);
    a->dlogits = output(m, storage(m), m->f.tokens, m->f.experts);
}

static void make_plan(case_builder *m)
{
    invar_moe_plan_args *a = &m->c->args.moe_plan;

    a->experts = m->f.experts;
    a->ids = distinct_experts(m);
    a->slot_row = output(m, INVAR_DTYPE_I32, m->f.tokens, m->f.slots);
    a->row_token = invar_case_tensor(
        m->c, invar_tensor_1d(NULL, INVAR_DTYPE_I32, m->f.tokens * m->f.slots), 0);
    a->expert_start = invar_case_alloc(m->c, (size_t)(m->f.experts + 1) * sizeof(int64_t));
}

static void make_gather_fwd(case_builder *m)
{
    invar_moe_gather_fwd_args *a = &m->c->args.moe_gather_fwd;
    invar_dtype dtype = storage(m);
    int64_t rows = m->f.tokens * m->f.slots;

    a->x = input(m, dtype, m->f.tokens, m->f.cols, 1.0f);
    a->out = output(m, dtype, rows, m->f.cols);
    a->row_token = invar_case_index(m->c, invar_tensor_1d(NULL, INVAR_DTYPE_I32, rows), 0, &m->rng,
                                    m->f.tokens);
}

static void make_gather_bwd(case_builder *m)
{
    invar_moe_gather_bwd_args *a = &m->c->args.moe_gather_bwd;

    a->dout = input(m, storage(m), m->f.tokens * m->f.slots, m->f.cols, 1.0f);
    a->dx = output(m, storage(m), m->f.tokens, m->f.cols);
    a->slot_row = permutation(m);
}

static void make_combine_fwd(case_builder *m)
{
    invar_moe_combine_fwd_args *a = &m->c->args.moe_combine_fwd;

    a->y = input(m, storage(m), m->f.tokens * m->f.slots, m->f.cols, 1.0f);
    a->weights = input(m, INVAR_DTYPE_F32, m->f.tokens, m->f.slots, 1.0f);
    a->slot_row = permutation(m);
    if (invar_case_random(&m->rng, 2))
        a->shared = input(m, storage(m), m->f.tokens, m->f.cols, 1.0f);
    a->out = output(m, storage(m), m->f.tokens, m->f.cols);
}

static void make_combine_bwd(case_builder *m)
{
    invar_moe_combine_bwd_args *a = &m->c->args.moe_combine_bwd;

    a->y = input(m, storage(m), m->f.tokens * m->f.slots, m->f.cols, 1.0f);
    a->dout = input(m, storage(m), m->f.tokens, m->f.cols, 1.0f);
    a->weights = input(m, INVAR_DTYPE_F32, m->f.tokens, m->f.slots, 1.0f);
    a->slot_row = permutation(m);
    a->dy = output(m, storage(m), m->f.tokens * m->f.slots, m->f.cols);
    a->dweights = output(m, INVAR_DTYPE_F32, m->f.tokens, m->f.slots);
}

static void make_case(invar_case *c, uint64_t seed)
{
    case_builder m = new_builder(c, seed);

    switch (c->op) {
    case INVAR_OP_MOE_ROUTE_FWD: make_route_fwd(&m); return;
    case INVAR_OP_MOE_ROUTE_BWD: make_route_bwd(&m); return;
    case INVAR_OP_MOE_PLAN: make_plan(&m); return;
    case INVAR_OP_MOE_GATHER_FWD: make_gather_fwd(&m); return;
    case INVAR_OP_MOE_GATHER_BWD: make_gather_bwd(&m); return;
    case INVAR_OP_MOE_COMBINE_FWD: make_combine_fwd(&m); return;
    default: break;
    }
    INVAR_CHECK(c->op == INVAR_OP_MOE_COMBINE_BWD); // the last of the family
    make_combine_bwd(&m);
}

const invar_case_family invar_cases_moe = {make_case, EDGES};
