/*
 * layer.h - the inside of the self-check: its sizes, its data, the blocks of its layer.
 *
 * Only kernels-deterministic/selfcheck includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_SELFCHECK_LAYER_H
#define INVAR_KERNELS_SELFCHECK_LAYER_H

#include "kernels-deterministic/selfcheck.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TOKENS = 37,
    WIDTH = 128, /* whole fp8 blocks */
    HEADS = 4,
    HEAD_DIM = 32,
    Q_WIDTH = HEADS * HEAD_DIM,
    VOCABULARY = 300,
    SHARDS = 2,
    SAMPLES = 3
};

/* Where samples begin in the tokens; the last number is the end. */
extern const int64_t invar_selfcheck_sample_start[SAMPLES + 1];

/* A run. */
typedef struct invar_selfcheck {
    const invar_device *dev;
    invar_dtype storage;
    invar_selfcheck_emit emit;
    void *payload;
    uint32_t tensors;          /* made so far: each one's data is its own Philox stream */
    invar_row_offsets samples; /* sample_start, where the device sees it */
    invar_digest *digest;      /* (1) on the device: of the value at hand */
} invar_selfcheck;

/* ---- data.c: tensors on the device, and digests of results ----------------------------------- */

/* Zeroed memory of the device. */
invar_status invar_selfcheck_make_raw(void **out, invar_selfcheck *r, size_t bytes) INVAR_MUST_USE;

/* The host's bytes on the device. */
invar_status invar_selfcheck_make_copy(void **out, invar_selfcheck *r, const void *from,
                                       size_t bytes) INVAR_MUST_USE;
invar_status invar_selfcheck_make_segments(invar_row_offsets *out, invar_selfcheck *r,
                                           const int64_t *start, int64_t count) INVAR_MUST_USE;

/* A zeroed tensor. */
invar_status invar_selfcheck_make(invar_tensor *out, invar_selfcheck *r, invar_dtype dtype,
                                  int64_t rows, int64_t cols) INVAR_MUST_USE;

/* Indices, as a vector. */
invar_status invar_selfcheck_make_indices(invar_tensor *out, invar_selfcheck *r,
                                          const int32_t *values, int64_t count) INVAR_MUST_USE;

/* A tensor of `dtype` with values in (-range, range). */
invar_status invar_selfcheck_make_random(invar_tensor *out, invar_selfcheck *r, invar_dtype dtype,
                                         int64_t rows, int64_t cols, float range) INVAR_MUST_USE;
invar_status invar_selfcheck_make_quantized(invar_tensor *out, invar_selfcheck *r,
                                            const invar_tensor *x, invar_dtype dtype,
                                            int32_t scale_rows) INVAR_MUST_USE;

invar_tensor invar_selfcheck_as_3d(const invar_tensor *t, int64_t n1, int64_t n2);
invar_tensor invar_selfcheck_as_1d(const invar_tensor *t);

/* The operands of a linear layer as a format takes them. */
typedef struct invar_selfcheck_operands {
    invar_tensor x;
    invar_tensor w;
    invar_tensor dy;
} invar_selfcheck_operands;

/* int4 is a format of weights; its activations stay as they are. */
invar_status invar_selfcheck_quantize_operands(invar_selfcheck_operands *out, invar_selfcheck *r,
                                               const invar_selfcheck_operands *plain,
                                               invar_dtype format) INVAR_MUST_USE;

/* Products are defined for every format but int4 weights with f32 activations. */
bool invar_selfcheck_has_product(const invar_selfcheck *r, invar_dtype format);

/* Hands the digest of `op`'s result to the caller of the self-check. */
invar_status invar_selfcheck_emit_tensor(invar_selfcheck *r, invar_op op, const char *what,
                                         const invar_tensor *t) INVAR_MUST_USE;

/*
 * The same for what is computed from the result of `source`. A new revision of that op changes the
 * digest although `op` has its bits as before: so it is another value, with another name.
 */
invar_status invar_selfcheck_emit_after(invar_selfcheck *r, invar_op source, invar_op op,
                                        const char *what, const invar_tensor *t) INVAR_MUST_USE;

/* ---- linear.c: what several blocks are made of ----------------------------------------------- */

invar_status invar_selfcheck_linear(invar_selfcheck *r, invar_tensor *y, const invar_tensor *x,
                                    const invar_tensor *w, const invar_tensor *bias,
                                    int32_t k_shards, invar_dtype out_type) INVAR_MUST_USE;
invar_status invar_selfcheck_weight_grad(invar_selfcheck *r, invar_tensor *dw,
                                         const invar_tensor *dy,
                                         const invar_tensor *x) INVAR_MUST_USE;

/* dx of up to three linear layers that share an input. */
invar_status invar_selfcheck_input_grad(invar_selfcheck *r, invar_tensor *dx,
                                        const invar_linear_part *parts, int n) INVAR_MUST_USE;
invar_status invar_selfcheck_norm(invar_selfcheck *r, invar_tensor *y, const invar_tensor *x,
                                  const invar_tensor *weight, int64_t heads) INVAR_MUST_USE;
invar_status invar_selfcheck_norm_grad(invar_selfcheck *r, invar_tensor *dx, invar_tensor *dweight,
                                       const invar_tensor *dy, const invar_tensor *x,
                                       const invar_tensor *weight, int64_t heads) INVAR_MUST_USE;

/* ---- the blocks, a file each ----------------------------------------------------------------- */

invar_status invar_selfcheck_attention(invar_selfcheck *r, const invar_tensor *h) INVAR_MUST_USE;

/*
 * What the layer above does not reach: a window, spans, heads wider than a block of 128 keys allows
 * and one sample that fills several blocks.
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

#ifdef __cplusplus
}
#endif
#endif
