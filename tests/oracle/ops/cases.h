/*
 * cases.h - the cases of the oracle; each runs ops on the fixtures with its name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_ORACLE_OPS_CASES_H
#define INVAR_TESTS_ORACLE_OPS_CASES_H

#include "tests/oracle/ops/run.h"

/*
 * Error limits, {worst element, norm}, for f32 and for bf16. They are derived from the roundings of
 * a value:
 *
 *   - IN_F32: about 100 additions in f32, each wrong by at most 2^-24 of a sum of the result's
 *     size.
 *   - ROUNDED: IN_F32, then one rounding to the storage type: at most 2^-8 of each element for
 *     bf16.
 *   - BLOCK: a complete layer; for bf16 a dozen roundings in sequence. This is not a bound, but the
 *     largest error of random seeds with a margin.
 */
#define INVAR_ORACLE_IN_F32 ((invar_oracle_limit){{0x1p-18, 0x1p-20}, {0x1p-18, 0x1p-20}})
#define INVAR_ORACLE_ROUNDED ((invar_oracle_limit){{0x1p-18, 0x1p-20}, {0x1.04p-8, 0x1p-8}})
#define INVAR_ORACLE_BLOCK ((invar_oracle_limit){{0x1p-16, 0x1p-18}, {0x1p-2, 0x1.8p-5}})

void invar_oracle_convert(invar_oracle_run *r);
void invar_oracle_quantize(invar_oracle_run *r);
void invar_oracle_linear(invar_oracle_run *r);
void invar_oracle_linear_low(invar_oracle_run *r);

void invar_oracle_embedding(invar_oracle_run *r);
void invar_oracle_rmsnorm(invar_oracle_run *r);
void invar_oracle_rope(invar_oracle_run *r);
void invar_oracle_swiglu(invar_oracle_run *r);

void invar_oracle_attention(invar_oracle_run *r);

void invar_oracle_route(invar_oracle_run *r);
void invar_oracle_moe_ops(invar_oracle_run *r);
void invar_oracle_moe_block(invar_oracle_run *r);

void invar_oracle_layer(invar_oracle_run *r);

/*
 * The gated MLP. Its weights in the fixtures are wgate, wup and wdown, each followed by a suffix.
 */
typedef struct invar_oracle_mlp {
    invar_tensor x, wgate, wup, wdown, gate, up, act, y;
} invar_oracle_mlp;

void invar_oracle_mlp_forward(invar_oracle_mlp *m, invar_oracle_run *r, const invar_tensor *x,
                              const char *suffix);

/* Returns dx and compares the gradients of the weights. */
invar_tensor invar_oracle_mlp_backward(const invar_oracle_mlp *m, invar_oracle_run *r,
                                       const invar_tensor *dy, invar_row_offsets units,
                                       const char *suffix);

/* Returns dx of linear layers that share an input. */
invar_tensor invar_oracle_dx(invar_oracle_run *r, const invar_linear_part *parts, int32_t n_parts);

/* Compares the gradient of the weight w with the expected result `name`. */
void invar_oracle_expect_dw(invar_oracle_run *r, const char *name, const invar_tensor *dy,
                            const invar_tensor *x, const invar_tensor *w, invar_row_offsets units);

void invar_oracle_logprob(invar_oracle_run *r);
void invar_oracle_sample(invar_oracle_run *r);
void invar_oracle_optimizer(invar_oracle_run *r);

#endif
