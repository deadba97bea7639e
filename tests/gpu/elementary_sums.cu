/*
 * elementary_sums.cu - checksums of math/ over all 2^32 inputs, on the device.
 *
 *   elementary_sums [STEP]            the lines of elementary_sums.c, bit for bit
 *   elementary_sums hardware [STEP]   seven of them, with the PTX instruction that a kernel may use
 *                                     instead of the portable code
 *
 * A kernel may use such an instruction if its line here equals the host's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_runtime.h>

#include "kernels-deterministic/cuda/sm90/sfu.cuh"
#include "tests/gpu/elementary_list.h"

enum { THREADS = 256 };

/* ---- instructions that may replace portable code --------------------------------------------- */

static __device__ uint32_t hardware_max(uint32_t w)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(invar_bits_f32(w)), "f"(other_f32(w)));
    return invar_f32_bits(y);
}

static __device__ uint32_t hardware_max_zero(uint32_t w)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(invar_bits_f32(w)), "f"(-0.0f));
    return invar_f32_bits(y);
}

static __device__ uint32_t hardware_bf16_from_f32(uint32_t w)
{
    uint16_t y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(invar_bits_f32(w)));
    return y;
}

static __device__ uint32_t hardware_e4m3_from_f32(uint32_t w)
{
    uint16_t y;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(0.0f), "f"(invar_bits_f32(w)));
    return y;
}

static __device__ uint32_t hardware_e5m2_from_f32(uint32_t w)
{
    uint16_t y;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(y) : "f"(0.0f), "f"(invar_bits_f32(w)));
    return y;
}

static __device__ uint32_t hardware_sfu_ex2(uint32_t w)
{
    return invar_f32_bits(invar_unit_ex2(invar_bits_f32(w)));
}

static __device__ uint32_t hardware_sfu_rcp(uint32_t w)
{
    return invar_f32_bits(invar_unit_rcp(invar_bits_f32(w)));
}

#define HARDWARE_LIST(X)                                                                           \
    X(max)                                                                                         \
    X(max_zero)                                                                                    \
    X(bf16_from_f32)                                                                               \
    X(e4m3_from_f32)                                                                               \
    X(e5m2_from_f32)                                                                               \
    X(sfu_ex2)                                                                                     \
    X(sfu_rcp)

/* ---- kernels: one block per chunk ---------------------------------------------------------- */

template <uint32_t (*word)(uint32_t)>
static __global__ void sum_chunks(uint64_t *out, uint32_t step)
{
    __shared__ uint64_t partial[THREADS];
    uint32_t first = blockIdx.x * step * INVAR_SUMS_CHUNK;
    uint64_t sum = 0;

    for (uint32_t i = threadIdx.x; i < INVAR_SUMS_CHUNK; i += THREADS)
        sum += (uint64_t)word(first + i) * (2 * (uint64_t)i + 1);
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (uint32_t half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = partial[0];
}

/* ---- host ---------------------------------------------------------------------------------- */

struct entry {
    const char *name;
    void (*kernel)(uint64_t *out, uint32_t step);
};

#define PORTABLE_ENTRY(name, expression) {#name, sum_chunks<word_##name>},
static const entry portable[] = {INVAR_ELEMENTARY_LIST(PORTABLE_ENTRY)};

#define HARDWARE_ENTRY(name) {#name, sum_chunks<hardware_##name>},
static const entry hardware[] = {HARDWARE_LIST(HARDWARE_ENTRY)};

static void exit_on_error(cudaError_t error)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "elementary_sums: %s\n", cudaGetErrorString(error));
    exit(1);
}

int main(int argc, char **argv)
{
    static uint64_t chunk_sums[INVAR_SUMS_CHUNKS];
    bool use_hardware = argc > 1 && strcmp(argv[1], "hardware") == 0;
    const entry *entries = use_hardware ? hardware : portable;
    size_t count =
        use_hardware ? sizeof hardware / sizeof *hardware : sizeof portable / sizeof *portable;
    int step = argc > 1 + use_hardware ? atoi(argv[1 + use_hardware]) : 1;
    uint64_t *sums;

    if (step < 1 || step > INVAR_SUMS_CHUNKS) {
        fprintf(stderr, "usage: elementary_sums [hardware] [STEP]\n");
        return 2;
    }
    int chunks = (INVAR_SUMS_CHUNKS + step - 1) / step;
    exit_on_error(cudaMalloc(&sums, sizeof chunk_sums));
    for (size_t i = 0; i < count; i++) {
        uint64_t checksum = 0;
        entries[i].kernel<<<(unsigned)chunks, THREADS>>>(sums, (uint32_t)step);
        exit_on_error(cudaGetLastError());
        exit_on_error(
            cudaMemcpy(chunk_sums, sums, (size_t)chunks * sizeof *sums, cudaMemcpyDeviceToHost));
        for (int j = 0; j < chunks; j++)
            checksum = fold_chunk(checksum, chunk_sums[j]);
        printf("%s %016" PRIx64 "\n", entries[i].name, checksum);
    }
    exit_on_error(cudaFree(sums));
    return 0;
}
