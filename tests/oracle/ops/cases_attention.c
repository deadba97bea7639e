/*
 * cases_attention.c - attention, packed and paged, against scaled_dot_product_attention.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/oracle/ops/cases.h"

/*
 * Limits beyond one rounding. f32: the product of a probability and (dp - delta) has an error of
 * the size of dp, not of the difference. bf16: probabilities and, in the backward, their gradients
 * are rounded as well, and delta comes from the rounded o. These are not bounds, but the largest
 * errors of random seeds with a margin. The worst element of o is one whose values nearly cancel,
 * because every weight of its row is rounded, each by up to 2^-8 of its product. LSE2 is a bound:
 * in bf16 the polynomial of exponentials, which ieee uses, is wrong by up to 1.0137e-4, so lse2 by
 * 1.463e-4, and the root mean square of lse2 is above 2.4 (here about 6).
 */
#define OUTPUT ((invar_oracle_limit){{0x1p-17, 0x1p-20}, {0x1p-5, 0x1p-8}})
#define LSE2 ((invar_oracle_limit){{0x1p-18, 0x1p-20}, {0x1p-14, 0x1p-15}})
#define GRADIENT ((invar_oracle_limit){{0x1p-16, 0x1p-19}, {0x1p-2, 0x1p-7}})

typedef struct problem {
    invar_tensor q, k, v, d_o;
    invar_row_offsets samples;
    invar_attention_shape shape;
} problem;

static problem load(invar_oracle_run *r)
{
    return (problem){.q = invar_oracle_input(r, "q"),
                     .k = invar_oracle_input(r, "k"),
                     .v = invar_oracle_input(r, "v"),
                     .d_o = invar_oracle_input(r, "d_o"),
                     .samples = invar_oracle_row_offsets(r, "samples"),
                     .shape = {.scale = (float)invar_oracle_number(r, "scale"),
                               .window = (int64_t)invar_oracle_number(r, "window")}};
}

static invar_attention_fwd_args forward(invar_oracle_run *r, const problem *p)
{
    invar_tensor lse2 = invar_tensor_2d(NULL, INVAR_DTYPE_F32, p->q.shape[0], p->q.shape[1]);
    invar_attention_fwd_args args = {.o = invar_oracle_output_like(r, &p->q),
                                     .lse2 = invar_oracle_output(r, lse2),
                                     .q = p->q,
                                     .k = p->k,
                                     .v = p->v,
                                     .samples = p->samples,
                                     .shape = p->shape};

    assert_ok(invar_attention_fwd(&r->dev, &args));
    return args;
}

static void packed(invar_oracle_run *r, const problem *p)
{
    invar_attention_fwd_args fwd = forward(r, p);
    invar_attention_bwd_args bwd = {.dq = invar_oracle_output_like(r, &p->q),
                                    .dk = invar_oracle_output_like(r, &p->k),
                                    .dv = invar_oracle_output_like(r, &p->v),
                                    .d_o = p->d_o,
                                    .o = fwd.o,
                                    .lse2 = fwd.lse2,
                                    .q = p->q,
                                    .k = p->k,
                                    .v = p->v,
                                    .samples = p->samples,
                                    .shape = p->shape};

    invar_oracle_expect(r, "attention.fwd", "o", &fwd.o, OUTPUT);
    invar_oracle_expect(r, "attention.fwd", "lse2", &fwd.lse2, LSE2);
    assert_ok(invar_attention_bwd(&r->dev, &bwd));
    invar_oracle_expect(r, "attention.bwd", "dq", &bwd.dq, GRADIENT);
    invar_oracle_expect(r, "attention.bwd", "dk", &bwd.dk, GRADIENT);
    invar_oracle_expect(r, "attention.bwd", "dv", &bwd.dv, GRADIENT);
}

/* ---- paged ----------------------------------------------------------------------------------- */

static void write_and_read(invar_oracle_run *r, const problem *p, const invar_kv_pages *cache,
                           const invar_tensor *o, invar_row_offsets rows, const int64_t *lengths)
{
    assert_ok(invar_kv_write(
        &r->dev, &(invar_kv_write_args){
                     .cache = *cache, .k = p->k, .v = p->v, .rows = rows, .lengths = lengths}));
    assert_ok(invar_attention_paged(&r->dev, &(invar_attention_paged_args){.o = *o,
                                                                           .q = p->q,
                                                                           .cache = *cache,
                                                                           .rows = rows,
                                                                           .lengths = lengths,
                                                                           .shape = p->shape}));
}

/* Runs the rows [first, first + rows) of sample s, whose keys are in the cache up to `length`. */
static void run_chunk(invar_oracle_run *r, const problem *p, const invar_kv_pages *cache,
                      const invar_tensor *o, int64_t s, int64_t first, int64_t rows, int64_t length)
{
    problem part = {.q = invar_tensor_rows(&p->q, first, rows),
                    .k = invar_tensor_rows(&p->k, first, rows),
                    .v = invar_tensor_rows(&p->v, first, rows),
                    .shape = p->shape};
    invar_kv_pages pages = {cache->k, cache->v, invar_tensor_rows(&cache->pages, s, 1)};
    invar_tensor o_part = invar_tensor_rows(o, first, rows);
    int64_t start[2] = {0, rows};

    write_and_read(r, &part, &pages, &o_part, (invar_row_offsets){start, 1}, &length);
}

/*
 * Runs prefill chunks of `size` rows, sample by sample; size 0 runs all samples complete, in one
 * call.
 */
static void run_paged(invar_oracle_run *r, const problem *p, int64_t size)
{
    const int64_t *shape = invar_oracle_fixture(r, "k_cache")->shape, *start = p->samples.offsets;
    invar_tensor view = invar_tensor_4d(NULL, r->storage, shape[0], shape[1], shape[2], shape[3]);
    invar_kv_pages cache = {invar_oracle_output(r, view), invar_oracle_output(r, view),
                            invar_oracle_input(r, "pages")};
    invar_tensor o = invar_oracle_output_like(r, &p->q);

    invar_test_fill(&cache.k, 0.0f);
    invar_test_fill(&cache.v, 0.0f);
    if (size == 0) {
        int64_t lengths[8];
        assert_true(p->samples.count <= 8);
        for (int64_t s = 0; s < p->samples.count; s++)
            lengths[s] = start[s + 1] - start[s];
        write_and_read(r, p, &cache, &o, p->samples, lengths);
    }
    for (int64_t s = 0; size > 0 && s < p->samples.count; s++)
        for (int64_t row = start[s]; row < start[s + 1]; row += size) {
            int64_t rows = start[s + 1] - row < size ? start[s + 1] - row : size;
            run_chunk(r, p, &cache, &o, s, row, rows, row + rows - start[s]);
        }
    invar_oracle_expect(r, "attention.paged", "o", &o, OUTPUT);
    invar_oracle_expect_equal(r, "k_cache", &cache.k);
    invar_oracle_expect_equal(r, "v_cache", &cache.v);
}

/* ---- controls -------------------------------------------------------------------------------- */

static void reject_problem(invar_oracle_run *r, problem wrong)
{
    invar_attention_fwd_args fwd = forward(r, &wrong);

    invar_oracle_reject(r, "o", &fwd.o, OUTPUT);
}

/*
 * Negative controls: scores without their scale, one key too many in the window, and samples that
 * attend to each other.
 */
static void reject_mistakes(invar_oracle_run *r, const problem *p)
{
    int64_t whole[2] = {0, p->q.shape[0]};
    problem wrong = *p;

    wrong.shape.scale = 1.0f;
    reject_problem(r, wrong);
    wrong = *p;
    wrong.shape.window++;
    if (p->shape.window > 0)
        reject_problem(r, wrong);
    wrong = *p;
    wrong.samples = (invar_row_offsets){whole, 1};
    if (p->samples.count > 1)
        reject_problem(r, wrong);
}

void invar_oracle_attention(invar_oracle_run *r)
{
    problem p = load(r);

    packed(r, &p);
    reject_mistakes(r, &p);
    if (invar_oracle_has(r, "k_cache")) {
        run_paged(r, &p, 0);
        run_paged(r, &p, 1);
        run_paged(r, &p, 50);
    }
    p.shape.kv_span = p.shape.q_span = invar_attention_block(p.q.shape[2]);
    packed(r, &p);
}
