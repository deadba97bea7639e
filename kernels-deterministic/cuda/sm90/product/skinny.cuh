/*
 * skinny.cuh - products with few rows, as skinny.cu cuts them and its kernels take them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_PRODUCT_SKINNY_CUH
#define INVAR_KERNELS_CUDA_SM90_PRODUCT_SKINNY_CUH

#include "kernels-deterministic/cuda/common/kernel.cuh"
#include "kernels-deterministic/cuda/sm90/product/product.h"
#include "kernels-deterministic/cuda/sm90/tensor_map.h"

enum {
    MAX_ROWS = 64,
    MAX_GROUPS = 1024,
    MAX_GROUP_ROWS = 16, // on average
    MAX_EXTENT = 1 << 30,
    MAX_STAGES = 32,
    PANEL = 64,                           // k of bf16 in the 128 bytes of a swizzled row
    ROW_BYTES = 128,                      // of a panel: 64 values of bf16, 256 of int4
    PANEL_OVERRUN = MAX_ROWS * ROW_BYTES, // what a product may read behind the last panel
    INT4_PANELS = 4,                      // of x, to one of w
    INT4_BLOCKS = 8,                      // of 32 k in a stage
    SCALE_BYTES = 16,                     // of the 256 k of a feature
    HEAD_BYTES = 1024,                    // barriers, and the alignment of what follows
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
    const uint8_t *scale; // of int4
    bool scale_wide;      // in pieces of 16 bytes, not of 4
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

skinny_kernel invar_skinny_bf16(const skinny_plan *plan); // skinny_bf16.cu
skinny_kernel invar_skinny_int4(const skinny_plan *plan); // skinny_int4.cu

#endif
