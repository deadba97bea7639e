/*
 * chain.c - products of matrices as independent chains.
 *
 * A tile is walked in blocks of KC along k. Each block of A and B is packed into panels as wide as
 * the micro-kernel, in k-major order, then the kernel continues all chains of the tile. Between
 * blocks accumulators rest in f32, which rounds nothing: a block edge is no event in a chain.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/step/chain.h"

#include <math.h>
#include <string.h>

#include "kernels-deterministic/row.h"
#include "kernels-deterministic/step/kernel.h"
#include "kernels-deterministic/step/simd.h"

#include "base/invar_banned.h"

#define KC 256 // a multiple of every group and of the fp8 scale block

#define PANEL_ROWS (INVAR_CHAIN_TILE_N + INVAR_KERNEL_MAX_COLS) // enough for either operand

#define LINE (KC > INVAR_CHAIN_TILE_N ? KC : INVAR_CHAIN_TILE_N) // a row of either layout

/* The scratch of one thread. */
typedef struct packs {
    float a[PANEL_ROWS * KC];
    float b[PANEL_ROWS * KC];
    float partial[INVAR_CHAIN_TILE_M * INVAR_CHAIN_TILE_N];
    float lines[INVAR_VF_WIDTH * LINE];
    int16_t a_exp[PANEL_ROWS * KC];
    int16_t b_exp[PANEL_ROWS * KC];
} packs;

_Static_assert(sizeof(packs) <= INVAR_CHAIN_WORKSPACE, "the scratch of a thread holds the panels");

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---- packing --------------------------------------------------------------------------------- */

/*
 * panel[(i / width) * width * kp + p * width + i % width] = element (i, p), zero beyond the
 * operand. kp is k padded to whole groups.
 */
static void pack_rows(float *panel, float *lines, const invar_chain_operand *op, int64_t rows,
                      int64_t k_first, int64_t k, int64_t kp, int width)
{
    for (int64_t i = 0; i < rows;) {
        int64_t place = i % width; // in its panel
        float *dst = panel + (i - place) * kp + place;
        bool whole = width - place >= INVAR_VF_WIDTH && rows - i >= INVAR_VF_WIDTH;
        int64_t count = whole ? INVAR_VF_WIDTH : 1, p = 0;

        for (int64_t r = 0; r < count; r++)
            invar_row_load(lines + r * LINE, op->tensor, op->row0 + i + r, op->k0 + k_first, k);
        if (whole)
            for (; p + INVAR_VF_WIDTH <= k; p += INVAR_VF_WIDTH)
                invar_vf_transpose(dst + p * width, width, lines + p, LINE);
        for (; p < k; p++)
            for (int64_t r = 0; r < count; r++)
                dst[p * width + r] = lines[r * LINE + p];
        i += count;
    }
}

static void pack_columns(float *panel, float *line, const invar_chain_operand *op, int64_t rows,
                         int64_t k_first, int64_t k, int64_t kp, int width)
{
    for (int64_t p = 0; p < k; p++) {
        invar_row_load(line, op->tensor, op->k0 + k_first + p, op->row0, rows);
        for (int64_t i = 0; i < rows; i += width) {
            int64_t n = rows - i < width ? rows - i : width;
            memcpy(panel + i * kp + p * width, line + i, (size_t)n * sizeof *line);
        }
    }
}

static void pack(float *panel, float *lines, const invar_chain_operand *op, int64_t rows,
                 int64_t k_first, int64_t k, int64_t kp, int width)
{
    int64_t padded = round_up(rows, width);

    if (padded != rows || kp != k)
        memset(panel, 0, (size_t)(padded * kp) * sizeof *panel);
    if (op->layout == INVAR_CHAIN_ROWS)
        pack_rows(panel, lines, op, rows, k_first, k, kp, width);
    else
        pack_columns(panel, lines, op, rows, k_first, k, kp, width);
}

static void pack_exponents(int16_t *exps, const float *panel, int64_t count, int min_exp, int bias)
{
    for (int64_t i = 0; i < count; i++)
        exps[i] = invar_kernel_exponent(panel[i], min_exp, bias);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

static const invar_kernel *choose(const invar_device *dev, invar_dtype dtype)
{
    int simd = dev->cpu_path == INVAR_CPU_PATH_SIMD;

    if (dtype == INVAR_DTYPE_F32 || dev->numerics == INVAR_NUMERICS_IEEE)
        return simd ? &invar_kernel_ieee_simd : &invar_kernel_ieee_portable;
    if (dtype == INVAR_DTYPE_FP8)
        return simd ? &invar_kernel_sm90_e4m3_simd : &invar_kernel_sm90_e4m3_portable;
    return simd ? &invar_kernel_sm90_bf16_simd : &invar_kernel_sm90_bf16_portable;
}

/* A cell on the edge of the tile: the kernel runs on a full cell beside it. */
static void run_edge(const invar_kernel *kernel, float *acc, int64_t ld, int64_t rows, int64_t cols,
                     const float *a, const int16_t *a_exp, const float *b, const int16_t *b_exp,
                     int64_t kp)
{
    float cell[INVAR_KERNEL_MAX_ROWS * INVAR_KERNEL_MAX_COLS] = {0};

    for (int64_t i = 0; i < rows; i++)
        memcpy(cell + i * kernel->cols, acc + i * ld, (size_t)cols * sizeof *cell);
    kernel->run(cell, kernel->cols, a, a_exp, b, b_exp, kp);
    for (int64_t i = 0; i < rows; i++)
        memcpy(acc + i * ld, cell + i * kernel->cols, (size_t)cols * sizeof *cell);
}

static void run_cells(const invar_kernel *kernel, float *acc, int64_t ld, int64_t m, int64_t n,
                      int64_t kp, const packs *w)
{
    uint64_t mode = kernel->toward_zero ? invar_rounding_toward_zero() : 0;

    for (int64_t j = 0; j < n; j += kernel->cols) {
        for (int64_t i = 0; i < m; i += kernel->rows) {
            int64_t rows = m - i < kernel->rows ? m - i : kernel->rows;
            int64_t cols = n - j < kernel->cols ? n - j : kernel->cols;
            float *cell = acc + i * ld + j;

            if (rows == kernel->rows && cols == kernel->cols)
                kernel->run(cell, ld, w->a + i * kp, w->a_exp + i * kp, w->b + j * kp,
                            w->b_exp + j * kp, kp);
            else
                run_edge(kernel, cell, ld, rows, cols, w->a + i * kp, w->a_exp + i * kp,
                         w->b + j * kp, w->b_exp + j * kp, kp);
        }
    }
    if (kernel->toward_zero)
        invar_rounding_restore(mode);
}

/* Continues the chains of a tile over k values from k_first on, k <= KC. */
static void run_block(const invar_kernel *kernel, float *acc, int64_t ld,
                      const invar_chain_tile *tile, int64_t k_first, int64_t k, packs *w)
{
    int64_t kp = round_up(k, kernel->group);

    pack(w->a, w->lines, &tile->a, tile->m, k_first, k, kp, kernel->rows);
    pack(w->b, w->lines, &tile->b, tile->n, k_first, k, kp, kernel->cols);
    if (kernel->min_exp != INVAR_KERNEL_NO_EXPONENTS) {
        pack_exponents(w->a_exp, w->a, round_up(tile->m, kernel->rows) * kp, kernel->min_exp,
                       INVAR_KERNEL_BIAS_A);
        pack_exponents(w->b_exp, w->b, round_up(tile->n, kernel->cols) * kp, kernel->min_exp,
                       INVAR_KERNEL_BIAS_B);
    }
    run_cells(kernel, acc, ld, tile->m, tile->n, kp, w);
}

static float scale_at(const invar_chain_operand *op, int64_t row, int64_t k)
{
    if (op->layout == INVAR_CHAIN_ROWS)
        return invar_row_fp8_scale(op->tensor, op->row0 + row, op->k0 + k);
    return invar_row_fp8_scale(op->tensor, op->k0 + k, op->row0 + row);
}

/* The scales of a block of 128 multiply its partial chain, which joins acc by one fmaf. */
static void promote(float *acc, int64_t ld, const invar_chain_tile *tile, int64_t k_first, packs *w)
{
    for (int64_t j = 0; j < tile->n; j++)
        w->lines[j] = scale_at(&tile->b, j, k_first);
    for (int64_t i = 0; i < tile->m; i++) {
        float scale = scale_at(&tile->a, i, k_first);
        const float *partial = w->partial + i * tile->n;
        for (int64_t j = 0; j < tile->n; j++)
            acc[i * ld + j] = fmaf(partial[j], scale * w->lines[j], acc[i * ld + j]);
    }
}

void invar_chain_run(float *acc, int64_t ld, const invar_device *dev, const invar_chain_tile *tile,
                     void *workspace)
{
    packs *w = workspace;
    invar_dtype dtype = tile->a.tensor->dtype;
    const invar_kernel *kernel = choose(dev, dtype);

    INVAR_CHECK(tile->m <= INVAR_CHAIN_TILE_M && tile->n <= INVAR_CHAIN_TILE_N);
    if (dtype != INVAR_DTYPE_FP8) {
        for (int64_t k = 0; k < tile->k; k += KC)
            run_block(kernel, acc, ld, tile, k, tile->k - k < KC ? tile->k - k : KC, w);
        return;
    }
    INVAR_CHECK(tile->k % INVAR_FP8_BLOCK == 0 && tile->a.k0 % INVAR_FP8_BLOCK == 0);
    for (int64_t k = 0; k < tile->k; k += INVAR_FP8_BLOCK) {
        memset(w->partial, 0, (size_t)(tile->m * tile->n) * sizeof(float));
        run_block(kernel, w->partial, tile->n, tile, k, INVAR_FP8_BLOCK, w);
        promote(acc, ld, tile, k, w);
    }
}

/* ---- whole products -------------------------------------------------------------------------- */

typedef struct grid_job {
    const invar_device *dev;
    const invar_chain_grid *grid;
    int64_t tiles_across;
    char *workspace;
    size_t workspace_each;
} grid_job;

static size_t workspace_each(int32_t accumulators)
{
    return INVAR_CHAIN_WORKSPACE +
           (size_t)accumulators * (size_t)INVAR_CHAIN_TILE_FLOATS * sizeof(float);
}

size_t invar_chain_grid_workspace(const invar_device *dev, int32_t accumulators)
{
    return workspace_each(accumulators) * (size_t)invar_pool_threads(dev->pool);
}

static invar_status run_grid_tile(void *payload, int64_t task, int worker)
{
    const grid_job *job = payload;
    const invar_chain_grid *g = job->grid;
    char *workspace = job->workspace + (size_t)worker * job->workspace_each;
    float *acc = (float *)(void *)(workspace + INVAR_CHAIN_WORKSPACE);
    invar_chain_range r;

    r.row0 = task / job->tiles_across * INVAR_CHAIN_TILE_M;
    r.col0 = task % job->tiles_across * INVAR_CHAIN_TILE_N;
    r.rows = g->m - r.row0 < INVAR_CHAIN_TILE_M ? g->m - r.row0 : INVAR_CHAIN_TILE_M;
    r.cols = g->n - r.col0 < INVAR_CHAIN_TILE_N ? g->n - r.col0 : INVAR_CHAIN_TILE_N;
    g->run(g->payload, job->dev, &r, acc, workspace);
    return INVAR_OK;
}

invar_status invar_chain_grid_run(const invar_device *dev, const invar_chain_grid *grid,
                                  void *workspace)
{
    grid_job job = {dev, grid, 0, workspace, workspace_each(grid->accumulators)};
    int64_t down = (grid->m + INVAR_CHAIN_TILE_M - 1) / INVAR_CHAIN_TILE_M;

    job.tiles_across = (grid->n + INVAR_CHAIN_TILE_N - 1) / INVAR_CHAIN_TILE_N;
    return invar_pool_run(dev->pool, down * job.tiles_across, run_grid_tile, &job);
}

void invar_chain_fold(float *acc, int32_t tiles, int64_t count)
{
    // neighbours first: (0+1) + (2+3)
    for (int32_t step = 1; step < tiles; step *= 2)
        for (int32_t s = 0; s < tiles; s += 2 * step) {
            float *left = acc + s * INVAR_CHAIN_TILE_FLOATS;
            const float *right = acc + (s + step) * INVAR_CHAIN_TILE_FLOATS;
            for (int64_t i = 0; i < count; i++)
                left[i] += right[i];
        }
}

void invar_chain_finish(float *acc, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] += 0.0f;
}
