/*
 * layer.h - private header of the self-check: sizes, test data, digests, blocks of the layer.
 *
 * Private to kernels-deterministic/selfcheck. The data of random tensors depend on the order in
 * which they are made (data.c), so new blocks go last.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_SELFCHECK_LAYER_H
#define INVAR_KERNELS_SELFCHECK_LAYER_H

#include "kernels-deterministic/selfcheck.h"

enum {
    TOKENS = 37,
    WIDTH = 128, /* a multiple of the fp8 block */
    HEADS = 4,
    HEAD_DIM = 32,
    Q_WIDTH = HEADS * HEAD_DIM,
    VOCABULARY = 300,
    SHARDS = 2,
    SAMPLES = 3
};

/* First row of each sample, then TOKENS. */
extern const int64_t invar_selfcheck_sample_start[SAMPLES + 1];

/* State of one run of the self-check. */
typedef struct invar_selfcheck {
    const invar_device *dev;
    invar_dtype storage;
    invar_selfcheck_emit emit;
    void *payload;
    uint32_t tensors;          /* number of random tensors made so far; selects the Philox stream
                                  of the next one */
    invar_row_offsets samples; /* offsets invar_selfcheck_sample_start, in device memory */
    invar_digest *digest;      /* (1) digest of the current result, in device memory */
} invar_selfcheck;

/* ---- data.c: tensors on the device, and digests of results ----------------------------------- */

/* Allocates zeroed device memory, until the end of the run. */
invar_status invar_selfcheck_make_raw(void **out, invar_selfcheck *r, size_t bytes) INVAR_MUST_USE;

/* Copies host memory to new device memory. */
invar_status invar_selfcheck_make_copy(void **out, invar_selfcheck *r, const void *from,
                                       size_t bytes) INVAR_MUST_USE;
/* Makes row offsets in device memory from `start` (count + 1). */
invar_status invar_selfcheck_make_segments(invar_row_offsets *out, invar_selfcheck *r,
                                           const int64_t *start, int64_t count) INVAR_MUST_USE;

/* Makes a zeroed contiguous tensor. */
invar_status invar_selfcheck_make(invar_tensor *out, invar_selfcheck *r, invar_dtype dtype,
                                  int64_t rows, int64_t cols) INVAR_MUST_USE;

/* Makes a vector of i32 from host memory. */
invar_status invar_selfcheck_make_indices(invar_tensor *out, invar_selfcheck *r,
                                          const int32_t *values, int64_t count) INVAR_MUST_USE;

/* Makes a tensor with uniform random values from [-range, range), rounded to `dtype`. */
invar_status invar_selfcheck_make_random(invar_tensor *out, invar_selfcheck *r, invar_dtype dtype,
                                         int64_t rows, int64_t cols, float range) INVAR_MUST_USE;
/* Makes a quantized copy of x. */
invar_status invar_selfcheck_make_quantized(invar_tensor *out, invar_selfcheck *r,
                                            const invar_tensor *x, invar_dtype dtype,
                                            int32_t scale_rows) INVAR_MUST_USE;

/* Return views of t as (rows, n1, n2) and as a vector. */
invar_tensor invar_selfcheck_as_3d(const invar_tensor *t, int64_t n1, int64_t n2);
invar_tensor invar_selfcheck_as_1d(const invar_tensor *t);

/* The operands of a linear layer. */
typedef struct invar_selfcheck_operands {
    invar_tensor x;
    invar_tensor w;
    invar_tensor dy;
} invar_selfcheck_operands;

/*
 * Quantizes the operands. int4 is a format of weights: activations and gradients stay as they are.
 */
invar_status invar_selfcheck_quantize_operands(invar_selfcheck_operands *out, invar_selfcheck *r,
                                               const invar_selfcheck_operands *plain,
                                               invar_dtype format) INVAR_MUST_USE;

/*
 * Returns whether products are defined: for all formats except int4 weights with f32 activations.
 */
bool invar_selfcheck_has_product(const invar_selfcheck *r, invar_dtype format);

/* Passes the digest of a result of `op` to the callback of the self-check. */
invar_status invar_selfcheck_emit_tensor(invar_selfcheck *r, invar_op op, const char *what,
                                         const invar_tensor *t) INVAR_MUST_USE;

/*
 * Like invar_selfcheck_emit_tensor, for a result computed from a result of the op `source`. Its
 * name contains the revision of `source`, since a new revision changes the digest although `op` is
 * the same.
 */
invar_status invar_selfcheck_emit_after(invar_selfcheck *r, invar_op source, invar_op op,
                                        const char *what, const invar_tensor *t) INVAR_MUST_USE;

/* ---- linear.c: what several blocks are made of ----------------------------------------------- */

/* y = x w^T + bias in a new tensor of `out_type`; `bias` may be NULL. */
invar_status invar_selfcheck_linear(invar_selfcheck *r, invar_tensor *y, const invar_tensor *x,
                                    const invar_tensor *w, const invar_tensor *bias,
                                    int32_t k_shards, invar_dtype out_type) INVAR_MUST_USE;
/* dw = dy^T x in a new f32 tensor. */
invar_status invar_selfcheck_weight_grad(invar_selfcheck *r, invar_tensor *dw,
                                         const invar_tensor *dy,
                                         const invar_tensor *x) INVAR_MUST_USE;

/* Computes dx of n <= 3 linear layers that share an input, in a new tensor. */
invar_status invar_selfcheck_input_grad(invar_selfcheck *r, invar_tensor *dx,
                                        const invar_linear_part *parts, int n) INVAR_MUST_USE;
/* y = rmsnorm of x with `heads` heads, in a new tensor. */
invar_status invar_selfcheck_norm(invar_selfcheck *r, invar_tensor *y, const invar_tensor *x,
                                  const invar_tensor *weight, int64_t heads) INVAR_MUST_USE;
/* Computes the gradients of invar_selfcheck_norm in new tensors. */
invar_status invar_selfcheck_norm_grad(invar_selfcheck *r, invar_tensor *dx, invar_tensor *dweight,
                                       const invar_tensor *dy, const invar_tensor *x,
                                       const invar_tensor *weight, int64_t heads) INVAR_MUST_USE;

/* ---- the blocks, a file each ----------------------------------------------------------------- */

invar_status invar_selfcheck_attention(invar_selfcheck *r, const invar_tensor *h) INVAR_MUST_USE;

/*
 * Checks attention that the layer does not use: a window, spans, a head dim with blocks of 64 keys,
 * and one sample of several blocks.
 */
invar_status invar_selfcheck_long_attention(invar_selfcheck *r) INVAR_MUST_USE;
invar_status invar_selfcheck_experts(invar_selfcheck *r, const invar_tensor *h) INVAR_MUST_USE;
invar_status invar_selfcheck_dense(invar_selfcheck *r, const invar_tensor *h) INVAR_MUST_USE;
invar_status invar_selfcheck_head(invar_selfcheck *r, const invar_tensor *h,
                                  const invar_tensor *table,
                                  const invar_tensor *targets) INVAR_MUST_USE;
invar_status invar_selfcheck_products_of_ranks(invar_selfcheck *r) INVAR_MUST_USE;
invar_status invar_selfcheck_norm_of_ranks(invar_selfcheck *r) INVAR_MUST_USE;
invar_status invar_selfcheck_logprobs_of_ranks(invar_selfcheck *r) INVAR_MUST_USE;

#endif
