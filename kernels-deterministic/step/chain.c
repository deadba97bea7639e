/*
 * chain.c - runs tiles of chains: packs operands into panels and calls the micro-kernels.
 *
 * A tile is computed in blocks of KC along k. Each block of A and B is packed into k-major panels
 * as wide as the micro-kernel; then the kernel continues all chains of the tile. Between blocks the
 * accumulators are stored in f32, which rounds nothing, so the block size never changes a bit.
 * Products of few rows skip the packing of B, and fp8 blocks are promoted with their scales one by
 * one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/step/chain.h"

#include <math.h>
#include <string.h>

#include "kernels-deterministic/step/kernel.h"
#include "kernels-deterministic/step/simd.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

#define KC 256 // a multiple of every group and of the fp8 scale block

#define PANEL_ROWS (INVAR_CHAIN_TILE_N + INVAR_KERNEL_MAX_COLS) // enough for either operand

#define W INVAR_VF_WIDTH

// floats of one row of either layout
#define LINE (KC > INVAR_CHAIN_TILE_N ? KC : INVAR_CHAIN_TILE_N)

/* The scratch of one thread. */
typedef struct packs {
    float a[PANEL_ROWS * KC];
    float b[PANEL_ROWS * KC];
    float partial[INVAR_CHAIN_TILE_M * INVAR_CHAIN_TILE_N];
    float lines[(W > INVAR_KERNEL_DIRECT_ROWS ? W : INVAR_KERNEL_DIRECT_ROWS) * LINE];
    int8_t a_exp[PANEL_ROWS * KC];
    int8_t b_exp[PANEL_ROWS * KC];
    bool a_large[PANEL_ROWS]; /* per panel: a value is too large, so the panel has no exponents */
    bool b_large[PANEL_ROWS];
} packs;

_Static_assert(sizeof(packs) <= INVAR_CHAIN_WORKSPACE, "the scratch of a thread holds the panels");

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static int64_t div_up(int64_t extent, int64_t piece)
{
    return (extent + piece - 1) / piece;
}

/* ---- packing --------------------------------------------------------------------------------- */

/*
 * Returns where rows are: in the tensor itself if its type can be loaded into vectors, else in a
 * copy.
 */
static invar_kernel_rows find_rows(float *lines, const invar_tensor *t, int64_t row, int64_t count,
                                   int64_t first, int64_t k)
{
    int64_t at = row * t->row_stride + first;

    if (t->dtype == INVAR_DTYPE_F32)
        return (invar_kernel_rows){(const float *)t->data + at, t->row_stride, 0};
    if (t->dtype == INVAR_DTYPE_BF16)
        return (invar_kernel_rows){(const uint16_t *)t->data + at, t->row_stride, 1};
    for (int64_t r = 0; r < count; r++)
        invar_tensor_row_load(lines + r * LINE, t, row + r, first, k);
    return (invar_kernel_rows){lines, LINE, 0};
}

/*
 * Transposes W rows into a panel, up to the last full vector of k; returns the end of that vector.
 */
static int64_t transpose_rows(float *dst, int width, const invar_kernel_rows *src, int64_t k)
{
    int64_t p = 0;

    for (; p + W <= k; p += W) {
        invar_vf row[W];
        for (int r = 0; r < W; r++)
            row[r] = src->bf16
                         ? invar_vf_load_bf16((const uint16_t *)src->data + r * src->stride + p)
                         : invar_vf_load((const float *)src->data + r * src->stride + p);
        invar_vf_transpose(row);
        for (int r = 0; r < W; r++)
            invar_vf_store(dst + (p + r) * width, row[r]);
    }
    return p;
}

/*
 * panel[(i / width) * width * kp + p * width + i % width] = element (i, p), and zero outside of the
 * operand. kp is k padded to full groups.
 */
static void pack_rows(float *panel, float *lines, const invar_chain_operand *op, int64_t rows,
                      int64_t k_first, int64_t k, int64_t kp, int width)
{
    for (int64_t i = 0; i < rows;) {
        int64_t place = i % width; // column in its panel
        float *dst = panel + (i - place) * kp + place;
        bool whole = width - place >= W && rows - i >= W;
        int64_t count = whole ? W : 1, first = op->k0 + k_first, p = 0;

        if (whole) {
            invar_kernel_rows src = find_rows(lines, op->tensor, op->row0 + i, W, first, k);
            p = transpose_rows(dst, width, &src, k);
        }
        for (int64_t r = 0; p < k && r < count; r++) {
            invar_tensor_row_load(lines, op->tensor, op->row0 + i + r, first + p, k - p);
            for (int64_t q = p; q < k; q++)
                dst[q * width + r] = lines[q - p];
        }
        i += count;
    }
}

/* Copies count <= width floats. */
static inline void copy_columns(float *dst, const float *src, int64_t count, int width)
{
    if (count < width || width % W != 0)
        memcpy(dst, src, (size_t)count * sizeof *dst);
    else
        for (int v = 0; v < width; v += W)
            invar_vf_store(dst + v, invar_vf_load(src + v));
}

static void pack_columns(float *panel, float *line, const invar_chain_operand *op, int64_t rows,
                         int64_t k_first, int64_t k, int64_t kp, int width)
{
    const invar_tensor *t = op->tensor;

    for (int64_t p = 0; p < k; p++) {
        int64_t row = op->k0 + k_first + p;
        const float *src = line;

        if (t->dtype == INVAR_DTYPE_F32)
            src = (const float *)t->data + row * t->row_stride + op->row0;
        else
            invar_tensor_row_load(line, t, row, op->row0, rows);
        for (int64_t i = 0; i < rows; i += width)
            copy_columns(panel + i * kp + p * width, src + i, rows - i < width ? rows - i : width,
                         width);
    }
}

static void pack_operand(float *panel, float *lines, const invar_chain_operand *op, int64_t rows,
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

/*
 * Writes the exponents of `count` panels of `size` values. large[n] is set if a value of panel n is
 * too large.
 */
static void pack_exponents(int8_t *exps, bool *large, const float *panels, int64_t count,
                           int64_t size, int min_exp)
{
    for (int64_t n = 0; n < count; n++) {
        int32_t most = INVAR_KERNEL_EXP_ZERO;

        for (int64_t i = n * size; i < (n + 1) * size; i++) {
            int32_t exp = invar_kernel_exponent(panels[i], min_exp);
            most = exp > most ? exp : most;
            exps[i] = (int8_t)exp;
        }
        large[n] = most > INVAR_KERNEL_EXP_MAX;
    }
}

/* ---- tiles ----------------------------------------------------------------------------------- */

static const invar_kernel *choose_kernel(const invar_device *dev, invar_dtype dtype)
{
    const invar_kernels *kernels =
        dev->cpu_path == INVAR_CPU_PATH_SIMD ? invar_kernels_widest() : &invar_kernels_portable;

    if (dtype == INVAR_DTYPE_F32 || dev->numerics == INVAR_NUMERICS_IEEE)
        return &kernels->ieee;
    return dtype == INVAR_DTYPE_FP8 ? &kernels->sm90_e4m3 : &kernels->sm90_bf16;
}

/* Computes a full cell: the i-th panel of a with the j-th panel of b. */
static void run_cell(const invar_kernel *kernel, float *acc, int64_t ld, int64_t i, int64_t j,
                     int64_t kp, const packs *w)
{
    int64_t at_a = i * kernel->rows * kp, at_b = j * kernel->cols * kp;

    if (kernel->min_exp != INVAR_KERNEL_NO_EXPONENTS && (w->a_large[i] || w->b_large[j]))
        invar_kernel_reference(kernel, acc, ld, w->a + at_a, w->b + at_b, kp);
    else
        kernel->run(acc, ld, w->a + at_a, w->a_exp + at_a, w->b + at_b, w->b_exp + at_b, kp);
}

/* Computes a cell that exceeds the tile: the kernel runs on a full cell in a buffer. */
static void run_edge(const invar_kernel *kernel, float *acc, int64_t ld, int64_t rows, int64_t cols,
                     int64_t i, int64_t j, int64_t kp, const packs *w)
{
    float cell[INVAR_KERNEL_MAX_ROWS * INVAR_KERNEL_MAX_COLS] = {0};

    for (int64_t r = 0; r < rows; r++)
        memcpy(cell + r * kernel->cols, acc + r * ld, (size_t)cols * sizeof *cell);
    run_cell(kernel, cell, kernel->cols, i, j, kp, w);
    for (int64_t r = 0; r < rows; r++)
        memcpy(acc + r * ld, cell + r * kernel->cols, (size_t)cols * sizeof *cell);
}

static void run_cells(const invar_kernel *kernel, float *acc, int64_t ld, int64_t m, int64_t n,
                      int64_t kp, const packs *w)
{
    uint64_t mode = kernel->toward_zero ? invar_rounding_toward_zero() : 0;

    for (int64_t j = 0; j * kernel->cols < n; j++) {
        for (int64_t i = 0; i * kernel->rows < m; i++) {
            int64_t rows = m - i * kernel->rows, cols = n - j * kernel->cols;
            float *cell = acc + i * kernel->rows * ld + j * kernel->cols;

            if (rows >= kernel->rows && cols >= kernel->cols)
                run_cell(kernel, cell, ld, i, j, kp, w);
            else
                run_edge(kernel, cell, ld, rows < kernel->rows ? rows : kernel->rows,
                         cols < kernel->cols ? cols : kernel->cols, i, j, kp, w);
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

    pack_operand(w->a, w->lines, &tile->a, tile->m, k_first, k, kp, kernel->rows);
    pack_operand(w->b, w->lines, &tile->b, tile->n, k_first, k, kp, kernel->cols);
    if (kernel->min_exp != INVAR_KERNEL_NO_EXPONENTS) {
        pack_exponents(w->a_exp, w->a_large, w->a, div_up(tile->m, kernel->rows), kernel->rows * kp,
                       kernel->min_exp);
        pack_exponents(w->b_exp, w->b_large, w->b, div_up(tile->n, kernel->cols), kernel->cols * kp,
                       kernel->min_exp);
    }
    run_cells(kernel, acc, ld, tile->m, tile->n, kp, w);
}

static float scale_at(const invar_chain_operand *op, int64_t row, int64_t k)
{
    if (op->layout == INVAR_CHAIN_ROWS)
        return invar_tensor_row_fp8_scale(op->tensor, op->row0 + row, op->k0 + k);
    return invar_tensor_row_fp8_scale(op->tensor, op->k0 + k, op->row0 + row);
}

/* Multiplies the partial chain of a block of 128 by its scales and adds it to acc with one fmaf. */
static void promote_partial(float *acc, int64_t ld, const invar_chain_tile *tile, int64_t k_first,
                            packs *w)
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

/* ---- few rows -------------------------------------------------------------------------------- */

/* Returns whether run_direct applies, and packing b would take longer. */
static bool few_rows(const invar_kernel *kernel, const invar_chain_tile *tile)
{
    invar_dtype dtype = tile->b.tensor->dtype;

    return kernel == &invar_kernels_widest()->ieee && tile->m <= INVAR_KERNEL_DIRECT_ROWS &&
           (dtype == INVAR_DTYPE_F32 || dtype == INVAR_DTYPE_BF16) &&
           tile->a.layout == INVAR_CHAIN_ROWS && tile->b.layout == INVAR_CHAIN_ROWS;
}

/*
 * Computes the columns that fill complete cells and returns their number; the caller computes the
 * others.
 */
static int64_t run_direct(float *acc, int64_t ld, const invar_chain_tile *tile, packs *w)
{
    const invar_chain_operand *a = &tile->a, *b = &tile->b;
    int64_t cols = tile->n / INVAR_KERNEL_DIRECT_COLS * INVAR_KERNEL_DIRECT_COLS;

    for (int64_t first = 0; first < tile->k; first += KC) {
        int64_t k = tile->k - first < KC ? tile->k - first : KC;

        for (int64_t r = 0; r < tile->m; r++)
            invar_tensor_row_load(w->lines + r * LINE, a->tensor, a->row0 + r, a->k0 + first, k);
        for (int64_t j = 0; j < cols; j += INVAR_KERNEL_DIRECT_COLS) {
            invar_kernel_rows rows = find_rows(NULL, b->tensor, b->row0 + j, 0, b->k0 + first, k);
            invar_kernel_ieee_direct(acc + j, ld, (int)tile->m, w->lines, LINE, &rows, k);
        }
    }
    return cols;
}

void invar_chain_run(float *acc, int64_t ld, const invar_device *dev, const invar_chain_tile *tile,
                     void *workspace)
{
    packs *w = workspace;
    invar_dtype dtype = tile->a.tensor->dtype;
    const invar_kernel *kernel = choose_kernel(dev, dtype);

    INVAR_CHECK(tile->m <= INVAR_CHAIN_TILE_M && tile->n <= INVAR_CHAIN_TILE_N);
    if (dtype != INVAR_DTYPE_FP8) {
        invar_chain_tile rest = *tile;
        int64_t done = few_rows(kernel, tile) ? run_direct(acc, ld, tile, w) : 0;

        rest.b.row0 += done;
        rest.n -= done;
        for (int64_t k = 0; k < tile->k && rest.n > 0; k += KC)
            run_block(kernel, acc + done, ld, &rest, k, tile->k - k < KC ? tile->k - k : KC, w);
        return;
    }
    INVAR_CHECK(tile->k == 0 || tile->a.k0 % INVAR_FP8_BLOCK == 0); // a shard may be empty
    for (int64_t k = 0; k < tile->k; k += INVAR_FP8_BLOCK) {
        memset(w->partial, 0, (size_t)(tile->m * tile->n) * sizeof(float));
        run_block(kernel, w->partial, tile->n, tile, k,
                  tile->k - k < INVAR_FP8_BLOCK ? tile->k - k : INVAR_FP8_BLOCK, w);
        promote_partial(acc, ld, tile, k, w);
    }
}

/* ---- whole products -------------------------------------------------------------------------- */

#define MIN_TILE_EXTENT 64 // tiles are not split below this extent
#define TILES_PER_THREAD 4

typedef struct grid_job {
    const invar_device *dev;
    const invar_chain_grid *grid;
    int64_t tile_m;
    int64_t tile_n;
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

    r.row0 = task / job->tiles_across * job->tile_m;
    r.col0 = task % job->tiles_across * job->tile_n;
    r.rows = g->m - r.row0 < job->tile_m ? g->m - r.row0 : job->tile_m;
    r.cols = g->n - r.col0 < job->tile_n ? g->n - r.col0 : job->tile_n;
    g->run(g->payload, job->dev, &r, acc, workspace);
    return INVAR_OK;
}

/* Chooses tiles of equal size, smaller ones if there would be too few for the threads. */
static void cut_grid(grid_job *job, const invar_chain_grid *g, int64_t threads)
{
    int64_t down = div_up(g->m, INVAR_CHAIN_TILE_M), across = div_up(g->n, INVAR_CHAIN_TILE_N);
    int64_t most_down = div_up(g->m, MIN_TILE_EXTENT), most_across = div_up(g->n, MIN_TILE_EXTENT);

    while (threads > 1 && down * across < TILES_PER_THREAD * threads &&
           (down < most_down || across < most_across)) {
        if (across < most_across && (down >= most_down || g->n / across >= g->m / down))
            across++;
        else
            down++;
    }
    if (threads > 1 && down > across && down * across % threads != 0 && down < most_down)
        down = round_up(down, threads);
    job->tile_m = round_up(div_up(g->m, down), INVAR_KERNEL_MAX_ROWS);
    job->tile_n = round_up(div_up(g->n, across), INVAR_KERNEL_MAX_COLS);
    job->tiles_across = div_up(g->n, job->tile_n);
}

invar_status invar_chain_grid_run(const invar_device *dev, const invar_chain_grid *grid,
                                  void *workspace)
{
    grid_job job = {.dev = dev,
                    .grid = grid,
                    .workspace = workspace,
                    .workspace_each = workspace_each(grid->accumulators)};

    if (grid->m == 0 || grid->n == 0)
        return INVAR_OK;
    cut_grid(&job, grid, invar_pool_threads(dev->pool));
    return invar_pool_run(dev->pool, div_up(grid->m, job.tile_m) * job.tiles_across, run_grid_tile,
                          &job);
}

/*
 * Returns how many subtrees wait for their right neighbor when a shard begins: the 1 bits of its
 * number.
 */
static int32_t waiting_subtrees(int32_t shard)
{
    int32_t count = 0;

    for (; shard > 0; shard >>= 1)
        count += shard & 1;
    return count;
}

int32_t invar_chain_tiles(int32_t shards)
{
    // shards is a power of two, so the last shard has the most subtrees before it
    return waiting_subtrees(shards - 1) + 1;
}

float *invar_chain_shard(float *acc, int32_t shard)
{
    return acc + waiting_subtrees(shard) * INVAR_CHAIN_TILE_FLOATS;
}

void invar_chain_fold(float *acc, int32_t shard, int64_t count)
{
    float *right = invar_chain_shard(acc, shard);

    for (; shard & 1; shard >>= 1) {
        float *left = right - INVAR_CHAIN_TILE_FLOATS;
        for (int64_t i = 0; i < count; i++)
            left[i] += right[i];
        right = left;
    }
}

void invar_chain_finish(float *acc, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        acc[i] += 0.0f;
}
