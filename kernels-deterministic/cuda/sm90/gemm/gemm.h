/*
 * gemm.h - matrix products of linear layers, as their kernels take them.
 *
 * linear.cu turns the arguments of the six linear ops into one of two problems, invar_gemm or
 * invar_wgrad_gemm, and passes it to the first kernel that supports it. Each kernel is a pair of
 * functions: one returns whether the kernel can compute the problem, the other launches it. The
 * choice of the kernel changes no bit: the result is the expression of docs/arithmetic.md, section
 * 3.
 *
 * All pointers are to device memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_GEMM_GEMM_H
#define INVAR_KERNELS_CUDA_SM90_GEMM_GEMM_H

#include "kernels-deterministic/cuda/common/cuda.h"

/*
 * One operand of a chain: element (i, k) of a matrix. k is the contiguous index, or index 0 if
 * `k_outer` is set. Quantized types are those of tensor.h; scales run along the contiguous index.
 */
typedef struct invar_gemm_operand {
    const void *data;
    const void *scale;
    invar_dtype dtype;
    int32_t scale_rows;
    bool k_outer;
    int64_t stride; /* elements between consecutive values of index 0 */
} invar_gemm_operand;

/*
 * A product. out[i][j] = the chain over all parts, one after the other, of a[i], b[j]; then the
 * bias; rounded; then the residual, rounded again. With shards, the chain is cut into `shards`
 * chains, added by the tree; shard v has shard v of each part's k, cut by the part's atoms
 * (math/shards.h), and may be empty. With groups (experts), rows [start[g], start[g + 1]) of a and
 * of out go with matrix g of b, which begins g * group_rows[part] values of index 0 after the
 * first. A dense product has groups = 1 and start = NULL.
 */
typedef struct invar_gemm {
    invar_op op;
    int64_t rows, cols; /* rows i and columns j of out */
    void *out;
    invar_dtype out_dtype; /* f32 or bf16 */
    int64_t out_stride;
    const void *bias; /* (cols); NULL if there is none */
    invar_dtype bias_dtype;
    const void *residual; /* type of out; added to the rounded value; NULL if there is none */
    int64_t residual_stride;
    invar_gemm_operand a[INVAR_LINEAR_MAX_PARTS], b[INVAR_LINEAR_MAX_PARTS];
    int64_t k[INVAR_LINEAR_MAX_PARTS];
    int64_t group_rows[INVAR_LINEAR_MAX_PARTS];
    int32_t parts;
    int32_t shards;
    int64_t atom[INVAR_LINEAR_MAX_PARTS];
    const int64_t *start; /* (groups + 1) row offsets; NULL if dense */
    int64_t groups;
} invar_gemm;

/*
 * Products with one a, without groups; no kernel computes a set with shards in one launch. If `act`
 * is not NULL, there are two products, of one width and type, and act is swiglu of their results;
 * their out may then be NULL.
 */
typedef struct invar_gemm_set {
    invar_gemm product[INVAR_LINEAR_MAX_PARTS];
    int32_t count;
    void *act; /* type of out; NULL if there is no activation */
    int64_t act_stride;
} invar_gemm_set;

/*
 * Gradient of weights. out[g * rows + i][j] += for each unit u one chain from +0 over the tokens t
 * in [cut[u], cut[u + 1]) of a[t][i], b[t][j], units in ascending order, with row g of `cut`. Both
 * operands are f32 or bf16 with k (the tokens) outermost.
 */
typedef struct invar_wgrad_gemm {
    invar_op op;
    int64_t rows, cols;
    float *out;
    int64_t out_stride;
    invar_gemm_operand a, b;
    int64_t tokens;     /* rows of a and b; no offset in `cut` may be larger */
    const int64_t *cut; /* (groups, units + 1) token offsets of the units */
    int64_t units;
    int64_t groups;
    bool fresh; /* overwrite out, whatever it holds, instead of adding to it */
} invar_wgrad_gemm;

/* ---- generic.cu: every problem, any shape, stride, type and numerics; slow ------------------- */

invar_status invar_gemm_generic_product(const invar_device *dev,
                                        const invar_gemm *p) INVAR_MUST_USE;
invar_status invar_gemm_generic_weight_product(const invar_device *dev,
                                               const invar_wgrad_gemm *p) INVAR_MUST_USE;

/* ---- gemm_bf16*.cu: bf16 on the tensor cores, dense or grouped ------------------------------- */

bool invar_gemm_bf16_supports(const invar_device *dev, const invar_gemm *p);
invar_status invar_gemm_bf16(const invar_device *dev, const invar_gemm *p) INVAR_MUST_USE;

/* Computes products with shards that invar_gemm_bf16_supports accepts. */
invar_status invar_gemm_bf16_tree(const invar_device *dev, const invar_gemm *p) INVAR_MUST_USE;

/* Computes products with shards that have few rows. */
bool invar_gemm_bf16_supports_split(const invar_device *dev, const invar_gemm *p);
invar_status invar_gemm_bf16_split(const invar_device *dev, const invar_gemm *p) INVAR_MUST_USE;

bool invar_gemm_bf16_supports_set(const invar_device *dev, const invar_gemm_set *set);
invar_status invar_gemm_bf16_set(const invar_device *dev, const invar_gemm_set *set) INVAR_MUST_USE;

bool invar_gemm_bf16_supports_gated(const invar_device *dev, const invar_gemm_set *set);
invar_status invar_gemm_bf16_gated(const invar_device *dev,
                                   const invar_gemm_set *set) INVAR_MUST_USE;

bool invar_gemm_bf16_supports_weight(const invar_device *dev, const invar_wgrad_gemm *p);
invar_status invar_gemm_bf16_weight(const invar_device *dev,
                                    const invar_wgrad_gemm *p) INVAR_MUST_USE;

/* ---- skinny.cu: few rows (decoding), a in bf16, b in bf16, int4 or mxfp8 --------------------- */

bool invar_skinny_takes(const invar_device *dev, const invar_gemm *p);
invar_status invar_skinny(const invar_device *dev, const invar_gemm *p) INVAR_MUST_USE;

bool invar_skinny_takes_set(const invar_device *dev, const invar_gemm_set *set);
invar_status invar_skinny_set(const invar_device *dev, const invar_gemm_set *set) INVAR_MUST_USE;

/* ---- gemm_fp8.cu: e4m3 on the tensor cores, promoted every 128 of k, dense or grouped -------- */

bool invar_gemm_fp8_takes(const invar_device *dev, const invar_gemm *p);
invar_status invar_gemm_fp8(const invar_device *dev, const invar_gemm *p) INVAR_MUST_USE;

#endif
