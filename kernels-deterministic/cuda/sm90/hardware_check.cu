/*
 * hardware_check.cu - compares tensor cores and special function unit with their references.
 *
 * Numerics sm90 promises bits, so each GPU is compared before it is used. The tiles of step/tiles.h
 * run by mma.sync and by wgmma and must equal the integer reference of step/step.h; ex2 and rcp
 * must equal math/sfu.h. The file also measures the other fields of invar_device_info, such as the
 * copy bandwidth.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/hardware_check.h"

#include <cstdio>
#include <cstring>

#include "base/alloc.h"
#include "kernels-deterministic/cuda/common/kernel.cuh"
#include "kernels-deterministic/cuda/sm90/sfu.cuh"
#include "kernels-deterministic/cuda/sm90/wgmma.cuh"
#include "kernels-deterministic/math/sfu.h"
#include "kernels-deterministic/step/step.h"

/* ---- kernels --------------------------------------------------------------------------------- */

enum { STEP_BYTES = 32, MOST_STEPS = INVAR_TILE_MAX_K * 2 / STEP_BYTES };

/* Operands of a tile as the instructions read them: 32 bytes per row and step. */
struct packed_tile {
    uint8_t a[MOST_STEPS][INVAR_TILE_ROWS][STEP_BYTES];
    uint8_t b[MOST_STEPS][INVAR_TILE_COLS][STEP_BYTES];
    float c[INVAR_TILE_ROWS][INVAR_TILE_COLS];
    int steps;
};

typedef float tile_outputs[INVAR_TILE_ROWS][INVAR_TILE_COLS];

/* Loads the register fragment of A: lane 4g + q has rows g and g + 8, bytes 4q and 16 + 4q. */
__device__ static void load_a(uint32_t (&a)[4], const packed_tile *t, int s, int lane)
{
    int g = lane / 4, q = lane % 4;

    a[0] = *(const uint32_t *)&t->a[s][g][4 * q];
    a[1] = *(const uint32_t *)&t->a[s][g + 8][4 * q];
    a[2] = *(const uint32_t *)&t->a[s][g][16 + 4 * q];
    a[3] = *(const uint32_t *)&t->a[s][g + 8][16 + 4 * q];
}

__device__ static void load_c(float (&d)[4], const packed_tile *t, int lane)
{
    int g = lane / 4, q = lane % 4;

    for (int r = 0; r < 4; r++)
        d[r] = t->c[g + (r >= 2 ? 8 : 0)][2 * q + (r & 1)];
}

__device__ static void store_d(tile_outputs out, const float (&d)[4], int lane)
{
    int g = lane / 4, q = lane % 4;

    for (int r = 0; r < 4; r++)
        out[g + (r >= 2 ? 8 : 0)][2 * q + (r & 1)] = d[r];
}

__global__ static void tiles_by_warp(const packed_tile *tiles, tile_outputs *out)
{
    const packed_tile *t = &tiles[blockIdx.x];
    int lane = (int)threadIdx.x, g = lane / 4, q = lane % 4;
    float d[4];

    load_c(d, t, lane);
    for (int s = 0; s < t->steps; s++) {
        uint32_t a[4], b[2];
        load_a(a, t, s, lane);
        b[0] = *(const uint32_t *)&t->b[s][g][4 * q];
        b[1] = *(const uint32_t *)&t->b[s][g][16 + 4 * q];
        invar_product_warp(d, a, b);
    }
    store_d(out[blockIdx.x], d, lane);
}

/*
 * Computes tiles by wgmma. A warpgroup works on 64 rows: all four warps hold the same 16 rows, and
 * the first warp stores them.
 */
template <bool E4M3>
__global__ static void tiles_by_warpgroup(const packed_tile *tiles, tile_outputs *out)
{
    __shared__ __align__(128) uint8_t shared_b[INVAR_TILE_COLS * STEP_BYTES];
    const packed_tile *t = &tiles[blockIdx.x];
    int lane = (int)threadIdx.x % 32;
    float d[4];
    // no swizzle: 8 x 16-byte core matrices, the two halves of k 128 bytes apart
    uint64_t b = invar_matrix(shared_b, 128, 256, INVAR_SWIZZLE_NONE);

    load_c(d, t, lane);
    for (int s = 0; s < t->steps; s++) {
        uint32_t a[4];
        load_a(a, t, s, lane);
        __syncthreads();
        for (int i = (int)threadIdx.x; i < (int)sizeof shared_b; i += (int)blockDim.x) {
            int half = i / 128, row = i % 128 / 16, byte = i % 16;
            shared_b[i] = t->b[s][row][half * 16 + byte];
        }
        invar_fence_async();
        __syncthreads();
        invar_product_fence();
        if constexpr (E4M3)
            invar_product_e4m3_a<8>(d, a, b, 1);
        else
            invar_product_bf16_a<8, 0>(d, a, b, 1);
        invar_product_commit();
        invar_product_wait<0>();
        invar_product_hold(d);
    }
    if (threadIdx.x < 32)
        store_d(out[blockIdx.x], d, lane);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

static void pack_tile(packed_tile *p, const invar_step_tile *t, invar_tile_form form)
{
    int step = form == INVAR_TILE_BF16 ? INVAR_STEP_BF16 : INVAR_STEP_FP8;
    int width = STEP_BYTES / step;

    p->steps = t->k / step;
    for (int k = 0; k < t->k; k++) {
        for (int i = 0; i < INVAR_TILE_ROWS; i++)
            memcpy(&p->a[k / step][i][k % step * width], &t->a[i][k], (size_t)width);
        for (int j = 0; j < INVAR_TILE_COLS; j++)
            memcpy(&p->b[k / step][j][k % step * width], &t->b[j][k], (size_t)width);
    }
    memcpy(p->c, t->c, sizeof p->c);
}

static invar_status run_tiles(const invar_device *dev, invar_tile_form form, invar_mma_kind by,
                              const packed_tile *tiles, tile_outputs *out, size_t count)
{
    invar_op op = INVAR_OP_LINEAR_FWD; // messages name an op that depends on these instructions
    dim3 grid((unsigned)count);

    if (by == INVAR_HARDWARE_CHECK_WARP)
        return invar_launch(dev, op, tiles_by_warp, grid, 32, 0)(tiles, out);
    if (form == INVAR_TILE_BF16)
        return invar_launch(dev, op, tiles_by_warpgroup<false>, grid, 128, 0)(tiles, out);
    return invar_launch(dev, op, tiles_by_warpgroup<true>, grid, 128, 0)(tiles, out);
}

/* Inputs and outputs of the tiles of one call. */
typedef struct tile_buffers {
    packed_tile *packed; /* host memory */
    packed_tile *tiles;
    tile_outputs *out;
} tile_buffers;

static void free_tile_buffers(tile_buffers *w, const invar_device *dev)
{
    invar_free(w->packed);
    invar_device_free(dev, w->tiles);
    invar_device_free(dev, w->out);
}

static invar_status compute_tiles(tile_buffers *w, uint32_t (*out)[INVAR_TILE_OUTPUTS],
                                  const invar_device *dev, invar_tile_form form, invar_mma_kind by,
                                  const invar_step_tile *tiles, size_t count)
{
    INVAR_TRY(INVAR_ALLOC(w->packed, count, "tiles of the probe"));
    INVAR_TRY(invar_device_alloc(dev, (void **)&w->tiles, count * sizeof *w->tiles,
                                 "tiles of the probe"));
    INVAR_TRY(
        invar_device_alloc(dev, (void **)&w->out, count * sizeof *w->out, "outputs of the probe"));
    for (size_t n = 0; n < count; n++)
        pack_tile(&w->packed[n], &tiles[n], form);
    INVAR_TRY(invar_device_upload(dev, w->tiles, w->packed, count * sizeof *w->packed));
    INVAR_TRY(run_tiles(dev, form, by, w->tiles, w->out, count));
    return invar_device_download(dev, out, w->out, count * sizeof *w->out);
}

invar_status invar_hardware_check_tiles(uint32_t (*out)[INVAR_TILE_OUTPUTS],
                                        const invar_device *dev, invar_tile_form form,
                                        invar_mma_kind by, const invar_step_tile *tiles,
                                        size_t count)
{
    tile_buffers w = {};
    invar_status status = compute_tiles(&w, out, dev, form, by, tiles, count);

    free_tile_buffers(&w, dev);
    return status;
}

void invar_hardware_check_expected(uint32_t out[INVAR_TILE_OUTPUTS], const invar_step_tile *t,
                                   invar_tile_form form)
{
    int step = form == INVAR_TILE_BF16 ? INVAR_STEP_BF16 : INVAR_STEP_FP8;

    for (int n = 0; n < INVAR_TILE_OUTPUTS; n++) {
        const uint16_t *a = t->a[n / INVAR_TILE_COLS], *b = t->b[n % INVAR_TILE_COLS];
        uint32_t c = t->c[n / INVAR_TILE_COLS][n % INVAR_TILE_COLS];
        for (int k = 0; k < t->k; k += step) {
            uint8_t codes_a[INVAR_STEP_FP8], codes_b[INVAR_STEP_FP8];
            if (form == INVAR_TILE_BF16) {
                c = invar_step_sm90_bf16_ref(c, a + k, b + k);
                continue;
            }
            for (int p = 0; p < step; p++) {
                codes_a[p] = (uint8_t)a[k + p];
                codes_b[p] = (uint8_t)b[k + p];
            }
            c = invar_step_sm90_e4m3_ref(c, codes_a, codes_b);
        }
        out[n] = c;
    }
}

/* ---- the tensor cores ------------------------------------------------------------------------ */

static int64_t count_differences(const uint32_t (*got)[INVAR_TILE_OUTPUTS],
                                 const invar_step_tile *tiles, size_t count, invar_tile_form form)
{
    int64_t differ = 0;

    for (size_t n = 0; n < count; n++) {
        uint32_t expected[INVAR_TILE_OUTPUTS];
        invar_hardware_check_expected(expected, &tiles[n], form);
        for (int i = 0; i < INVAR_TILE_OUTPUTS; i++)
            differ += got[n][i] != expected[i];
    }
    return differ;
}

static invar_status check_families(int64_t *outputs_out, int64_t *differences_out,
                                   const invar_device *dev, invar_step_tile *tiles,
                                   uint32_t (*got)[INVAR_TILE_OUTPUTS], size_t count)
{
    for (int form = 0; form < INVAR_TILE_FORMS; form++)
        for (int family = 0; family < INVAR_TILE_FAMILIES; family++) {
            int ways = form == INVAR_TILE_BF16 ? 2 : 1;
            for (size_t n = 0; n < count; n++)
                invar_tile_make(&tiles[n], (invar_tile_form)form, family, n);
            for (int by = 0; by < ways; by++) {
                INVAR_TRY(invar_hardware_check_tiles(got, dev, (invar_tile_form)form,
                                                     (invar_mma_kind)by, tiles, count));
                *differences_out += count_differences(got, tiles, count, (invar_tile_form)form);
                *outputs_out += (int64_t)count * INVAR_TILE_OUTPUTS;
            }
        }
    return INVAR_OK;
}

invar_status invar_hardware_check_step(int64_t *outputs_out, int64_t *differences_out,
                                       const invar_device *dev, size_t tiles)
{
    uint32_t(*got)[INVAR_TILE_OUTPUTS] = NULL;
    invar_step_tile *made = NULL;
    invar_status status;

    *outputs_out = *differences_out = 0;
    INVAR_TRY(INVAR_ALLOC(made, tiles, "tiles of the probe"));
    status = INVAR_ALLOC(got, tiles, "outputs of the probe");
    if (status == INVAR_OK)
        status = check_families(outputs_out, differences_out, dev, made, got, tiles);
    invar_free(got);
    invar_free(made);
    return status;
}

/* ---- the special function unit --------------------------------------------------------------- */

enum { UNIT_THREADS = 256, UNIT_SPARSE = 4099 };

/* Counts the differing results for the `count` arguments first, first + step, ... */
__global__ static void compare_unit(unsigned long long *differ, uint32_t first, uint32_t step,
                                    uint64_t count)
{
    uint64_t stride = (uint64_t)gridDim.x * UNIT_THREADS;
    uint32_t wrong = 0;

    for (uint64_t i = (uint64_t)blockIdx.x * UNIT_THREADS + threadIdx.x; i < count; i += stride) {
        float x = __uint_as_float(first + (uint32_t)i * step);
        wrong += __float_as_uint(invar_unit_ex2(x)) != __float_as_uint(invar_sfu_ex2(x));
        wrong += __float_as_uint(invar_unit_rcp(x)) != __float_as_uint(invar_sfu_rcp(x));
    }
    if (wrong > 0)
        atomicAdd(differ, (unsigned long long)wrong);
}

struct unit_range {
    uint32_t first, step;
    uint64_t count;
};

static invar_status compare_ranges(int64_t *results_out, int64_t *differences_out,
                                   const invar_device *dev, unsigned long long *differ, bool all)
{
    static const unit_range whole[] = {{0, 1, UINT64_C(1) << 32}},
                            some[] = {{0x3F800000, 1, 1 << 23}, // [1, 2)
                                      {0xBF800000, 1, 1 << 23}, // (-2, -1]
                                      {0, UNIT_SPARSE, (UINT64_C(1) << 32) / UNIT_SPARSE}};
    const unit_range *ranges = all ? whole : some;
    size_t count = all ? sizeof whole / sizeof *whole : sizeof some / sizeof *some;
    unsigned blocks = (unsigned)invar_cuda_of(dev)->multiprocessors * 8;

    INVAR_TRY(invar_device_zero(dev, differ, sizeof *differ));
    for (size_t i = 0; i < count; i++) {
        INVAR_TRY(invar_launch(dev, INVAR_OP_ATTENTION_FWD, compare_unit, dim3(blocks),
                               dim3(UNIT_THREADS),
                               0)(differ, ranges[i].first, ranges[i].step, ranges[i].count));
        *results_out += 2 * (int64_t)ranges[i].count;
    }
    return invar_device_download(dev, differences_out, differ, sizeof *differ);
}

invar_status invar_hardware_check_unit(int64_t *results_out, int64_t *differences_out,
                                       const invar_device *dev, bool all)
{
    void *differ = NULL;
    invar_status status;

    *results_out = *differences_out = 0;
    INVAR_TRY(invar_device_alloc(dev, &differ, sizeof(unsigned long long), "a count of the probe"));
    status = compare_ranges(results_out, differences_out, dev, (unsigned long long *)differ, all);
    invar_device_free(dev, differ);
    return status;
}

/* ---- facts ----------------------------------------------------------------------------------- */

enum { FACT_TILES = 256, COPIES = 10 };
static const size_t COPY_BYTES = (size_t)1 << 30;

/* Queues COPIES copies within the GPU's memory between the two events, and waits for them. */
static invar_status queue_copies(const invar_device *dev, void *to, void *from,
                                 const cudaEvent_t (&at)[2])
{
    cudaStream_t stream = invar_cuda_of(dev)->stream;

    INVAR_TRY(invar_device_copy(dev, to, from, COPY_BYTES));
    INVAR_CUDA_TRY("clock", cudaEventRecord(at[0], stream));
    for (int i = 0; i < COPIES; i++)
        INVAR_TRY(invar_device_copy(dev, to, from, COPY_BYTES));
    INVAR_CUDA_TRY("clock", cudaEventRecord(at[1], stream));
    INVAR_CUDA_TRY("clock", cudaEventSynchronize(at[1]));
    return INVAR_OK;
}

/* Measures the seconds that COPIES copies take, by CUDA events. */
static invar_status time_copies(double *seconds_out, const invar_device *dev, void *to, void *from)
{
    cudaEvent_t at[2] = {};
    float ms = 0.0f;
    cudaError_t code = cudaEventCreate(&at[0]);
    invar_status status = INVAR_OK;

    if (code == cudaSuccess)
        code = cudaEventCreate(&at[1]);
    if (code == cudaSuccess)
        status = queue_copies(dev, to, from, at);
    if (code == cudaSuccess && status == INVAR_OK)
        code = cudaEventElapsedTime(&ms, at[0], at[1]);
    for (cudaEvent_t event : at)
        if (event)
            (void)cudaEventDestroy(event);
    INVAR_TRY(status);
    INVAR_CUDA_TRY("clock", code);
    *seconds_out = ms / 1e3;
    return INVAR_OK;
}

/* Measures the bytes that copies read and write per second; 0 if the buffers do not fit. */
static invar_status measure_copies(double *out, const invar_device *dev)
{
    void *to = NULL, *from = NULL;
    double seconds = 0.0;
    invar_status status = invar_device_alloc(dev, &to, COPY_BYTES, "room for copies");

    *out = 0.0;
    if (status == INVAR_OK)
        status = invar_device_alloc(dev, &from, COPY_BYTES, "room for copies");
    if (status == INVAR_OK)
        status = time_copies(&seconds, dev, to, from);
    invar_device_free(dev, to);
    invar_device_free(dev, from);
    if (status == INVAR_E_NOMEM) {
        invar_error_clear();
        return INVAR_OK;
    }
    INVAR_TRY(status);
    *out = 2.0 * COPIES * (double)COPY_BYTES / seconds;
    return INVAR_OK;
}

invar_status invar_hardware_check_facts(const invar_device *dev, invar_device_info *out)
{
    const invar_cuda *cuda = invar_cuda_of(dev);
    int driver = 0, runtime = 0;
    cudaDeviceProp gpu;

    *out = invar_device_info{};
    INVAR_CUDA_TRY("GPU", cudaGetDeviceProperties(&gpu, cuda->ordinal));
    INVAR_CUDA_TRY("driver", cudaDriverGetVersion(&driver));
    INVAR_CUDA_TRY("runtime", cudaRuntimeGetVersion(&runtime));
    INVAR_CUDA_TRY("memory", cudaMemGetInfo(&out->memory_free, &out->memory));
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, gpu.name);
    snprintf(out->driver, sizeof out->driver, "%d.%d", driver / 1000, driver % 1000 / 10);
    snprintf(out->runtime, sizeof out->runtime, "%d.%d", runtime / 1000, runtime % 1000 / 10);
    out->multiprocessors = cuda->multiprocessors;
    INVAR_TRY(
        invar_hardware_check_step(&out->step_outputs, &out->step_differences, dev, FACT_TILES));
    INVAR_TRY(invar_hardware_check_unit(&out->sfu_results, &out->sfu_differences, dev, true));
    return measure_copies(&out->copy_bytes_per_second, dev);
}
