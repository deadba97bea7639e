/*
 * tensorcore.cu - the tensor core of this GPU against the reference step.
 *
 * For every family of tests/step_tiles.h: mma.sync and wgmma (bf16) or wgmma (e4m3) on the GPU, the
 * integer reference on the CPU, compared output by output. Writes what the hardware produced:
 *   DIR/step_hashes.txt       form, family, tiles, hash of the outputs of so many tiles
 *   DIR/step_hashes.2048.txt  the same for the first 2048
 *   DIR/step_vectors.bin      the first tiles of each family, inputs and outputs
 * Usage: tensorcore DIR [TILES]. Exit code 1 when a single output differs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "kernels-deterministic/step/step.h"
#include "tests/step_tiles.h"

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t rc_ = (call);                                                                  \
        if (rc_ != cudaSuccess) {                                                                  \
            fprintf(stderr, "tensorcore: %s: %s\n", #call, cudaGetErrorString(rc_));               \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

/* ---- kernels ---- */

/* Operands of one 16-byte-wide step, packed as the hardware reads them: 32 bytes per row. */
struct packed_tile {
    uint8_t a[TILE_MAX_K * 2 / 32][TILE_ROWS][32];
    uint8_t b[TILE_MAX_K * 2 / 32][TILE_COLS][32];
    float c[TILE_ROWS][TILE_COLS];
    int steps;
};

/* Register fragment of A: rows g and g+8, bytes 4q and 16+4q, for lane 4g+q. */
__device__ static void load_a(uint32_t a[4], const packed_tile *t, int s, int lane)
{
    int g = lane / 4, q = lane % 4;
    a[0] = *(const uint32_t *)&t->a[s][g][4 * q];
    a[1] = *(const uint32_t *)&t->a[s][g + 8][4 * q];
    a[2] = *(const uint32_t *)&t->a[s][g][16 + 4 * q];
    a[3] = *(const uint32_t *)&t->a[s][g + 8][16 + 4 * q];
}

__device__ static void load_c(float d[4], const packed_tile *t, int lane)
{
    int g = lane / 4, q = lane % 4;
    for (int r = 0; r < 4; r++)
        d[r] = t->c[g + (r >= 2 ? 8 : 0)][2 * q + (r & 1)];
}

__device__ static void store_d(float (*out)[TILE_COLS], const float d[4], int lane)
{
    int g = lane / 4, q = lane % 4;
    for (int r = 0; r < 4; r++)
        out[g + (r >= 2 ? 8 : 0)][2 * q + (r & 1)] = d[r];
}

__global__ static void mma_bf16(const packed_tile *tiles, float (*out)[TILE_ROWS][TILE_COLS])
{
    const packed_tile *t = &tiles[blockIdx.x];
    int lane = threadIdx.x, g = lane / 4, q = lane % 4;
    float d[4];

    load_c(d, t, lane);
    for (int s = 0; s < t->steps; s++) {
        uint32_t a[4], b0, b1;
        load_a(a, t, s, lane);
        b0 = *(const uint32_t *)&t->b[s][g][4 * q];
        b1 = *(const uint32_t *)&t->b[s][g][16 + 4 * q];
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    store_d(out[blockIdx.x], d, lane);
}

/* A warpgroup works on 64 rows: all four warps hold the same 16, the first one stores. */
template <bool E4M3>
__global__ static void wgmma(const packed_tile *tiles, float (*out)[TILE_ROWS][TILE_COLS])
{
    __shared__ __align__(128) uint8_t shared_b[256];
    const packed_tile *t = &tiles[blockIdx.x];
    int lane = threadIdx.x % 32;
    float d[4];
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared_b);
    // no swizzle: 8 x 16-byte core matrices, the two halves of k 128 bytes apart
    uint64_t descriptor = (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(128 >> 4) << 16 |
                          (uint64_t)(256 >> 4) << 32;

    load_c(d, t, lane);
    for (int s = 0; s < t->steps; s++) {
        uint32_t a[4];
        load_a(a, t, s, lane);
        __syncthreads();
        for (int i = threadIdx.x; i < 256; i += blockDim.x) {
            int half = i / 128, row = i % 128 / 16, byte = i % 16;
            shared_b[i] = t->b[s][row][half * 16 + byte];
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        if (E4M3)
            asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0;"
                         "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
                         "{%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, 1, 1;}"
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor));
        else
            asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0;"
                         "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                         "{%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, 1, 1, 0;}"
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
    }
    if (threadIdx.x < 32)
        store_d(out[blockIdx.x], d, lane);
}

/* ---- host ---- */

typedef uint32_t outputs[TILE_ROWS][TILE_COLS];

static void pack(packed_tile *p, const step_tile *t, tile_form form)
{
    int step = form == TILE_BF16 ? 16 : 32, width = 32 / step;

    p->steps = t->k / step;
    for (int k = 0; k < t->k; k++) {
        for (int i = 0; i < TILE_ROWS; i++)
            memcpy(&p->a[k / step][i][k % step * width], &t->a[i][k], (size_t)width);
        for (int j = 0; j < TILE_COLS; j++)
            memcpy(&p->b[k / step][j][k % step * width], &t->b[j][k], (size_t)width);
    }
    memcpy(p->c, t->c, sizeof p->c);
}

static uint32_t reference(const step_tile *t, tile_form form, int i, int j)
{
    uint32_t c = t->c[i][j];

    for (int k = 0; k < t->k; k += form == TILE_BF16 ? 16 : 32) {
        if (form == TILE_BF16) {
            c = invar_step_sm90_bf16_ref(c, &t->a[i][k], &t->b[j][k]);
        } else {
            uint8_t a[32], b[32];
            for (int p = 0; p < 32; p++) {
                a[p] = (uint8_t)t->a[i][k + p];
                b[p] = (uint8_t)t->b[j][k + p];
            }
            c = invar_step_sm90_e4m3_ref(c, a, b);
        }
    }
    return c;
}

template <typename F> static void in_parallel(size_t count, F run)
{
    unsigned n = std::thread::hardware_concurrency();
    std::vector<std::thread> threads;

    for (unsigned w = 0; w < n; w++)
        threads.emplace_back([=] {
            for (size_t i = w; i < count; i += n)
                run(i);
        });
    for (auto &thread : threads)
        thread.join();
}

static void write_or_die(const void *data, size_t size, FILE *f)
{
    if (fwrite(data, size, 1, f) != 1) {
        perror("tensorcore: write");
        exit(2);
    }
}

static void write_hash(FILE *f, tile_form form, int family, size_t tiles, uint64_t hash)
{
    fprintf(f, "%s %s %zu %016" PRIx64 "\n", form == TILE_BF16 ? "bf16" : "e4m3",
            tile_family_names[family], tiles, hash);
}

/* The same layout as tests/golden/step.c reads: form, family, number, then operands, c, d. */
static void write_vector(FILE *f, tile_form form, int family, const step_tile *t, const outputs d)
{
    uint8_t head[4] = {(uint8_t)form, (uint8_t)family, (uint8_t)t->k, 0};

    write_or_die(head, sizeof head, f);
    for (int i = 0; i < TILE_ROWS; i++)
        for (int p = 0; p < t->k; p++)
            write_or_die(&t->a[i][p], form == TILE_BF16 ? 2 : 1, f);
    for (int j = 0; j < TILE_COLS; j++)
        for (int p = 0; p < t->k; p++)
            write_or_die(&t->b[j][p], form == TILE_BF16 ? 2 : 1, f);
    write_or_die(t->c, sizeof t->c, f);
    write_or_die(d, sizeof(outputs), f);
}

int main(int argc, char **argv)
{
    size_t count = argc > 2 ? (size_t)strtoull(argv[2], NULL, 10) : 65536;
    const size_t prefix = 2048, recorded = 40;
    std::vector<step_tile> tiles(count);
    std::vector<packed_tile> packed(count);
    std::vector<float> hw(count * TILE_OUTPUTS), mma(count * TILE_OUTPUTS);
    packed_tile *d_tiles;
    float *d_out;
    char path[4096];
    FILE *hashes, *first_hashes, *vectors;
    uint64_t total_bad = 0, total = 0;

    if (argc < 2 || count < prefix) {
        fprintf(stderr, "usage: tensorcore DIR [TILES >= 2048]\n");
        return 129;
    }
    snprintf(path, sizeof path, "%s/step_hashes.txt", argv[1]);
    hashes = fopen(path, "w");
    snprintf(path, sizeof path, "%s/step_hashes.2048.txt", argv[1]);
    first_hashes = fopen(path, "w");
    snprintf(path, sizeof path, "%s/step_vectors.bin", argv[1]);
    vectors = fopen(path, "wb");
    if (!hashes || !first_hashes || !vectors) {
        perror(path);
        return 2;
    }
    CUDA(cudaMalloc(&d_tiles, count * sizeof(packed_tile)));
    CUDA(cudaMalloc(&d_out, count * TILE_OUTPUTS * sizeof(float)));
    for (int form = 0; form < TILE_FORMS; form++) {
        for (int family = 0; family < TILE_FAMILIES; family++) {
            std::vector<uint32_t> bad(count, 0);
            uint64_t differ = 0, wrong = 0, hash = 0;

            in_parallel(count, [&](size_t n) {
                tile_make(&tiles[n], (tile_form)form, family, n);
                pack(&packed[n], &tiles[n], (tile_form)form);
            });
            CUDA(cudaMemcpy(d_tiles, packed.data(), count * sizeof(packed_tile),
                            cudaMemcpyHostToDevice));
            if (form == TILE_BF16)
                wgmma<false>
                    <<<(unsigned)count, 128>>>(d_tiles, (float(*)[TILE_ROWS][TILE_COLS])d_out);
            else
                wgmma<true>
                    <<<(unsigned)count, 128>>>(d_tiles, (float(*)[TILE_ROWS][TILE_COLS])d_out);
            CUDA(cudaGetLastError());
            CUDA(cudaMemcpy(hw.data(), d_out, hw.size() * sizeof(float), cudaMemcpyDeviceToHost));
            if (form == TILE_BF16) {
                mma_bf16<<<(unsigned)count, 32>>>(d_tiles, (float(*)[TILE_ROWS][TILE_COLS])d_out);
                CUDA(cudaGetLastError());
                CUDA(cudaMemcpy(mma.data(), d_out, mma.size() * sizeof(float),
                                cudaMemcpyDeviceToHost));
                for (size_t i = 0; i < hw.size(); i++)
                    differ += memcmp(&hw[i], &mma[i], sizeof(float)) != 0;
            }
            const outputs *d = (const outputs *)hw.data();
            in_parallel(count, [&](size_t n) {
                for (int i = 0; i < TILE_ROWS; i++)
                    for (int j = 0; j < TILE_COLS; j++)
                        bad[n] += d[n][i][j] != reference(&tiles[n], (tile_form)form, i, j);
            });
            for (size_t n = 0; n < count; n++) {
                wrong += bad[n];
                hash = tile_hash(hash, &d[n][0][0]);
                if (n + 1 == prefix)
                    write_hash(first_hashes, (tile_form)form, family, n + 1, hash);
                if (n + 1 == count)
                    write_hash(hashes, (tile_form)form, family, n + 1, hash);
                if (n < recorded)
                    write_vector(vectors, (tile_form)form, family, &tiles[n], d[n]);
            }
            printf("%s %-10s %zu outputs: %" PRIu64 " differ from the reference, mma.sync and "
                   "wgmma differ in %" PRIu64 "\n",
                   form == TILE_BF16 ? "bf16" : "e4m3", tile_family_names[family], hw.size(), wrong,
                   differ);
            total_bad += wrong + differ;
            total += hw.size();
        }
    }
    if (fclose(hashes) != 0 || fclose(first_hashes) != 0 || fclose(vectors) != 0) {
        perror(argv[1]);
        return 2;
    }
    printf("%" PRIu64 " outputs, %" PRIu64 " differences\n", total, total_bad);
    return total_bad != 0;
}
