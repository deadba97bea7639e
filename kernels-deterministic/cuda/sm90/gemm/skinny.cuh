/*
 * skinny.cuh - products with few rows, as skinny.cu cuts them and its kernels take them.
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
    MAX_GROUP_ROWS = 16, // on average
    MAX_EXTENT = 1 << 30,
    MAX_STAGES = 32,
    PANEL = 64,      // k of bf16 in the 128 bytes of a swizzled row
    ROW_BYTES = 128, // of a panel: 64 values of bf16, 128 of mxfp8, 256 of int4
    PANEL_OVERRUN = MAX_ROWS * ROW_BYTES, // what a product may read behind the last panel
    CODES_PANELS = 4,                     // of x in a stage, where weights are codes
    CODES_BLOCKS = 8,                     // of 32 k in it, each with a scale
    INT4_PANELS = 1,                      // of w in a stage
    INT4_SCALES = 16,                     // bytes of a feature's scales in it
    MXFP8_PANELS = 2,
    MXFP8_SCALES = 8,
    HEAD_BYTES = 1024, // barriers, and the alignment of what follows
    RING_BYTES = 227 * 1024 - 2 * HEAD_BYTES - PANEL_OVERRUN,
    AHEAD_BYTES = 32 * 1024 // that a block asks for before its turn
};

/* How a product is cut. */
typedef struct skinny_plan {
    int features; // of a tile: of a block; gated, those of both matrices
    int warps;    // that multiply
    int x_rows;   // room in a panel, a multiple of 8
    int panels;   // of x in a stage
    int stages;
    int stage_bytes;
    int ahead; // stages of w to ask for before the previous kernel has ended
} skinny_plan;

/* Rows of memory that results go to. */
typedef struct skinny_rows_out {
    void *data; // NULL: nowhere
    int64_t stride;
    bool pairs; // two neighbours of a row can be stored at once
} skinny_rows_out;

/* A matrix of weights, and what becomes of its features. */
typedef struct skinny_output {
    CUtensorMap w;
    int64_t w_rows;
    int cols;
    int first_tile;
    skinny_rows_out out;
    bool bias_bf16;
    const void *bias;
    const uint8_t *scale; // of codes
    bool scale_wide;      // a feature's of a stage in one piece, not in pieces of 4 bytes
} skinny_output;

/* What the kernel takes. */
typedef struct skinny_job {
    CUtensorMap x;
    skinny_output output[INVAR_LINEAR_MAX_PARTS];
    int outputs;
    int tiles; // of all outputs, where the product is dense
    skinny_plan plan;
    int rows, k;
    bool out_bf16;
    const void *residual; // of the only output
    int64_t residual_stride;
    bool gated; // two outputs and their activation
    skinny_rows_out act;
    const int64_t *start; // of the groups; NULL: dense
    int groups, group_rows;
} skinny_job;

/* Started with a warp more than the plan has for the products. */
typedef void (*skinny_kernel)(skinny_job);

skinny_kernel invar_skinny_bf16(const skinny_plan *plan);  // skinny_bf16.cu
skinny_kernel invar_skinny_int4(const skinny_plan *plan);  // skinny_int4.cu
skinny_kernel invar_skinny_mxfp8(const skinny_plan *plan); // skinny_mxfp8.cu

#endif
