/*
 * skinny.cuh - plan and kernel arguments of products with few rows (skinny.cu).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_GEMM_SKINNY_CUH
#define INVAR_KERNELS_CUDA_SM90_GEMM_SKINNY_CUH

#include "kernels-deterministic/cuda/common/kernel.cuh"
#include "kernels-deterministic/cuda/sm90/gemm/gemm.h"
#include "kernels-deterministic/cuda/sm90/tensor_map.h"

enum {
    MAX_ROWS = 64,
    MAX_GROUPS = 1024,
    MAX_GROUP_ROWS = 16, // average rows of a group
    MAX_EXTENT = 1 << 30,
    MAX_STAGES = 32,
    PANEL = 64,      // values of k in the 128 bytes of a swizzled row of bf16
    ROW_BYTES = 128, // bytes of a row of a panel: 64 values of bf16, 128 of mxfp8, 256 of int4
    PANEL_OVERRUN = MAX_ROWS * ROW_BYTES, // bytes that a product may read after the last panel
    CODES_PANELS = 4,                     // panels of x in a stage if weights are codes
    CODES_BLOCKS = 8,                     // blocks of 32 k in such a stage, each with a scale
    INT4_PANELS = 1,                      // panels of w in a stage
    INT4_SCALES = 16,                     // bytes of a feature's scales in a stage
    MXFP8_PANELS = 2,
    MXFP8_SCALES = 8,
    HEAD_BYTES = 1024, // bytes of the barriers, and of the alignment of the stages
    RING_BYTES = 227 * 1024 - 2 * HEAD_BYTES - PANEL_OVERRUN,
    // bytes of w that a block prefetches before the previous kernel has ended
    AHEAD_BYTES = 32 * 1024
};

/* How a product is cut into tiles and stages. */
typedef struct skinny_plan {
    int features; // features of a tile; if gated, those of both matrices
    int warps;    // warps that multiply
    int x_rows;   // rows for which a panel has memory, a multiple of 8
    int panels;   // panels of x in a stage
    int stages;
    int stage_bytes;
    int ahead; // stages of w to prefetch before the previous kernel has ended
} skinny_plan;

/* Rows of memory that results are stored to. */
typedef struct skinny_rows_out {
    void *data; // NULL if nothing is stored
    int64_t stride;
    bool pairs; // two neighboring elements of a row can be stored at once
} skinny_rows_out;

/* A matrix of weights, and the output of its features. */
typedef struct skinny_output {
    CUtensorMap w;
    int64_t w_rows;
    int cols;
    int first_tile;
    skinny_rows_out out;
    bool bias_bf16;
    const void *bias;
    const uint8_t *scale; // scales, if weights are codes
    // scales of a feature in a stage are copied as one piece, not in pieces of 4 bytes
    bool scale_wide;
} skinny_output;

/* Arguments of the kernel. */
typedef struct skinny_job {
    CUtensorMap x;
    skinny_output output[INVAR_LINEAR_MAX_PARTS];
    int outputs;
    int tiles; // tiles of all outputs, if the product is dense
    skinny_plan plan;
    int rows, k;
    bool out_bf16;
    const void *residual; // added to the only output; NULL if there is none
    int64_t residual_stride;
    bool gated; // two outputs, gate and up, and their activation
    skinny_rows_out act;
    const int64_t *start; // row offsets of the groups; NULL if dense
    int groups, group_rows;
} skinny_job;

/* Kernel; launched with one warp more than plan.warps, which fetches. */
typedef void (*skinny_kernel)(skinny_job);

skinny_kernel invar_skinny_bf16(const skinny_plan *plan);  // skinny_bf16.cu
skinny_kernel invar_skinny_int4(const skinny_plan *plan);  // skinny_int4.cu
skinny_kernel invar_skinny_mxfp8(const skinny_plan *plan); // skinny_mxfp8.cu

#endif
