/*
 * forward_mma.cu - forward of attention in bf16 under sm90: any head dim and strides, rows or
 * pages.
 *
 * A tile has 64 rows: query heads that share a kv head, positions in order; each of four warps has
 * 16 of them. One block of keys and one of values lie in shared memory. Each is loaded again as
 * soon as it has been used, so that keys are in flight while values are summed, and values while
 * scores are computed.
 *
 * Numerics contract (rev 3): docs/arithmetic.md, section 8.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/attention/forward.cuh"

namespace
{

constexpr int tile_rows = 64;
constexpr int threads = 128;

/* Shared memory for head dims up to DIM. */
template <int DIM> struct layout {
    static constexpr int block = DIM > 128 ? 64 : 128;
    static constexpr int pitch = DIM + 8; // 8 rows of 16 bytes are in different banks

    int64_t k_at[block], v_at[block]; // offset of each key; -1 if no row sees it
    int64_t q_at[tile_rows];          // offset of each row; -1 after the last one
    alignas(16) uint16_t q[tile_rows][pitch];
    alignas(16) uint16_t k[block][pitch];
    alignas(16) uint16_t v[block][pitch];
    float total[1]; // (DIM / 2, threads) merged spans; allocated only if there are several

    static size_t bytes(bool spans)
    {
        return sizeof(layout) + (spans ? sizeof(float) * DIM / 2 * threads : 0);
    }
};

/* ---- copies ---------------------------------------------------------------------------------- */

/* Copies 16 bytes to shared memory without waiting, or 16 zeros. */
__device__ __forceinline__ void copy_16(void *to, const void *from, bool zeros)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(invar_shared_address(to)),
                 "l"(from), "r"(zeros ? 0 : 16)
                 : "memory");
}

__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Copies rows of `dim` elements from `from + at[row]`, with zeros if that is -1 and after `dim`. */
template <int DIM, int PITCH>
__device__ __forceinline__ void copy_rows(uint16_t (*to)[PITCH], const uint16_t *from,
                                          const int64_t *at, int rows, int dim, bool aligned)
{
    if (aligned) {
        for (int i = (int)threadIdx.x; i < rows * (DIM / 8); i += threads) {
            int row = i / (DIM / 8), column = i % (DIM / 8) * 8;
            bool zeros = at[row] < 0 || column >= dim;
            copy_16(&to[row][column], from + (zeros ? 0 : at[row] + column), zeros);
        }
    } else {
        for (int i = (int)threadIdx.x; i < rows * DIM; i += threads) {
            int row = i / DIM, column = i % DIM;
            to[row][column] = at[row] < 0 || column >= dim ? 0 : from[at[row] + column];
        }
    }
    copy_commit();
}

/* ---- products -------------------------------------------------------------------------------- */

/* Adds one step to accumulators 4 i .. 4 i + 3, a tile of 8 columns. */
template <int COUNT>
__device__ __forceinline__ void multiply_tile(float (&acc)[COUNT], int i, const uint32_t (&a)[4],
                                              uint32_t b0, uint32_t b1)
{
    float tile[4] = {acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]};
    uint32_t b[2] = {b0, b1};

    invar_product_warp(tile, a, b);
#pragma unroll
    for (int j = 0; j < 4; j++)
        acc[4 * i + j] = tile[j];
}

/* Computes s (16, block), chains over the head dim; only the first `keys` columns are needed. */
template <int DIM, int BLOCK, int PITCH>
__device__ __forceinline__ void compute_scores(float (&s)[BLOCK / 2], const uint16_t (*q)[PITCH],
                                               const uint16_t (*k)[PITCH], int dim, int keys)
{
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < BLOCK / 2; i++)
        s[i] = 0.0f;
#pragma unroll
    for (int d = 0; d < DIM; d += 16) {
        if (d >= dim)
            break;
        uint32_t a[4];
        invar_load_matrices<false>(a, &q[lane % 16][d + lane / 16 * 8]);
#pragma unroll
        for (int n = 0; n < BLOCK; n += 16) {
            if (n < keys) {
                uint32_t b[4];
                invar_load_matrices<false>(b,
                                           &k[n + lane % 8 + lane / 16 * 8][d + lane / 8 % 2 * 8]);
                multiply_tile(s, n / 8, a, b[0], b[1]);
                multiply_tile(s, n / 8 + 1, a, b[2], b[3]);
            }
        }
    }
}

/* Continues the chains of o (16, D) over the first `keys` keys. */
template <int DIM, int BLOCK, int PITCH>
__device__ __forceinline__ void sum_values(float (&o)[DIM / 2], const uint32_t (&p)[BLOCK / 16][4],
                                           const uint16_t (*v)[PITCH], int dim, int keys)
{
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int g = 0; g < BLOCK / 16; g++) {
        if (16 * g >= keys)
            break;
#pragma unroll
        for (int d = 0; d < DIM; d += 16) {
            if (d < dim) {
                uint32_t b[4];
                invar_load_matrices<true>(b, &v[16 * g + lane % 16][d + lane / 16 * 8]);
                multiply_tile(o, d / 8, p[g], b[0], b[1]);
                multiply_tile(o, d / 8 + 1, p[g], b[2], b[3]);
            }
        }
    }
}

/* Like sum_values, if values are not finite and rows see different keys. */
template <int DIM, int BLOCK, int PITCH>
__device__ __forceinline__ void
sum_values_exact(float (&o)[DIM / 2], const uint32_t (&p)[BLOCK / 16][4],
                 const uint16_t (*v)[PITCH], const int (&begin)[2], const int (&end)[2])
{
    int lane = (int)threadIdx.x % 32;

#pragma unroll 1
    for (int g = 0; g < BLOCK / 16; g++) {
        uint32_t a[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            a[j] = p[0][j];
#pragma unroll
            for (int other = 1; other < BLOCK / 16; other++)
                a[j] = g == other ? p[other][j] : a[j];
        }
#pragma unroll
        for (int d = 0; d < DIM; d += 16) {
            uint32_t m[4];
            invar_load_matrices<true>(m, &v[16 * g + lane % 16][d + lane / 16 * 8]);
#pragma unroll
            for (int tile = 0; tile < 2; tile++) {
                int i = d / 2 + 4 * tile;
                float sum[4] = {o[i], o[i + 1], o[i + 2], o[i + 3]};
                const uint32_t b[2] = {m[2 * tile], m[2 * tile + 1]};
                invar_attention_step_exact(sum, a, b, 16 * g, begin, end);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[i + j] = sum[j];
            }
        }
    }
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* Visible keys of the two rows of a thread, of its warp and of the tile. */
struct thread_rows {
    bool live[2];              // false after the last row of the tile
    int position[2], first[2]; // first: first key that the row sees
    // in the warp, some row does not see keys above `earliest` or below `latest`
    int earliest, latest;
    int tile_first, tile_end; // no row of the tile sees a key outside of [tile_first, tile_end)
    int tile_earliest, tile_latest;
};

__device__ __forceinline__ thread_rows rows_of(const invar_attention_problem &p,
                                               const invar_attention_tile &t)
{
    int base = (int)threadIdx.x / 32 * 16, quad = (int)threadIdx.x % 32 / 4, last = t.count - 1;
    thread_rows rows;

#pragma unroll
    for (int row = 0; row < 2; row++) {
        int r = base + quad + 8 * row;
        rows.live[row] = r < t.count;
        rows.position[row] = invar_attention_position(p, t, min(r, last));
        rows.first[row] = invar_attention_first(p, rows.position[row]);
    }
    rows.earliest = invar_attention_position(p, t, min(base, last));
    rows.latest = invar_attention_first(p, invar_attention_position(p, t, min(base + 15, last)));
    rows.tile_earliest = t.position;
    rows.tile_first = invar_attention_first(p, t.position);
    rows.tile_end = invar_attention_position(p, t, last) + 1;
    rows.tile_latest = invar_attention_first(p, rows.tile_end - 1);
    return rows;
}

template <int DIM> struct tile_run {
    using memory_type = layout<DIM>;
    static constexpr int block = memory_type::block;

    const invar_attention_problem &p;
    const invar_attention_tile &t;
    memory_type &memory;
    thread_rows rows;
    bool aligned;
    invar_attention_softmax softmax;
    invar_attention_total total;
    float o[DIM / 2];

    /* Finds the offsets of the keys of a block. */
    __device__ __forceinline__ void locate(int key0)
    {
        for (int j = (int)threadIdx.x; j < block; j += threads) {
            int key = key0 + j;
            int64_t k_at = -1, v_at = -1;
            if (key >= rows.tile_first && key < rows.tile_end)
                invar_attention_key(&k_at, &v_at, p, t, key);
            memory.k_at[j] = k_at;
            memory.v_at[j] = v_at;
        }
        __syncthreads();
    }

    /*
     * Loads a block of keys or values. Without `any`, it only starts an empty group, so that the
     * number of groups in flight is the same after the last block.
     */
    __device__ __forceinline__ void load(uint16_t (*to)[memory_type::pitch], const void *from,
                                         const int64_t *at, bool any)
    {
        copy_rows<DIM>(to, (const uint16_t *)from, at, any ? block : 0, (int)p.form.dim, aligned);
    }

    __device__ __forceinline__ void load_queries()
    {
        for (int r = (int)threadIdx.x; r < tile_rows; r += threads) {
            int64_t row = t.sequence.row0 + invar_attention_position(p, t, r);
            int64_t at = row * p.q_stride + invar_attention_head(p, t, r) * p.form.dim;
            memory.q_at[r] = r < t.count ? at : -1;
        }
        __syncthreads();
        copy_rows<DIM>(memory.q, (const uint16_t *)p.q, memory.q_at, tile_rows, (int)p.form.dim,
                       aligned);
    }

    /*
     * Returns whether a value of the block is not finite while some row of the tile does not see
     * all of the block.
     */
    __device__ __forceinline__ bool needs_exact(int key0)
    {
        uint32_t special = 0;

        if (rows.tile_latest <= max(key0, rows.tile_first) &&
            rows.tile_earliest + 1 >= min(key0 + block, rows.tile_end))
            return false;
        for (int i = (int)threadIdx.x; i < block * (DIM / 2); i += threads)
            special |= invar_attention_special(
                *(const uint32_t *)&memory.v[i / (DIM / 2)][i % (DIM / 2) * 2]);
        return __syncthreads_or(special != 0) != 0;
    }

    /*
     * Processes one block of keys; `next` is the first key of the next one, which exists if it is
     * below the tile's end.
     */
    __device__ __forceinline__ void process_block(int key0, int next)
    {
        float s[block / 2];
        uint32_t a[block / 16][4];
        int begin[2], end[2], warp = (int)threadIdx.x / 32;
        int keys = min(rows.tile_end - key0, block);
        bool more = next < rows.tile_end, seen[2] = {true, true};

        copy_wait<1>();
        __syncthreads();
        compute_scores<DIM, block>(s, memory.q + 16 * warp, memory.k, (int)p.form.dim, keys);
        __syncthreads();
        if (more)
            locate(next);
        load(memory.k, p.k, memory.k_at, more);

#pragma unroll
        for (int row = 0; row < 2; row++)
            invar_attention_clip(&begin[row], &end[row], rows.first[row], rows.position[row] + 1,
                                 key0, block);
        if (rows.latest > key0 || rows.earliest < key0 + block - 1) {
            invar_attention_mask(s, begin, end);
            seen[0] = begin[0] < end[0];
            seen[1] = begin[1] < end[1];
        }
        const float most[2] = {invar_attention_largest(s, 0), invar_attention_largest(s, 1)};
        invar_attention_rise(softmax, o, most, p.form.c, seen);
        const float base[2] = {invar_attention_base(softmax.m[0], seen[0]),
                               invar_attention_base(softmax.m[1], seen[1])};
        invar_attention_weigh(softmax, a, s, p.form.c, base, false);

        copy_wait<1>();
        __syncthreads();
        if (needs_exact(key0))
            sum_values_exact<DIM, block>(o, a, memory.v, begin, end);
        else
            sum_values<DIM, block>(o, a, memory.v, (int)p.form.dim, keys);
        __syncthreads();
        load(memory.v, p.v, memory.v_at, more);
    }

    /*
     * Ends the span [span0, stop): merges it for rows that see one of its keys, and resets all
     * rows.
     */
    __device__ __forceinline__ void close_span(int64_t span0, int64_t stop)
    {
        float alpha[2], beta[2];
        bool sees[2];

#pragma unroll
        for (int row = 0; row < 2; row++)
            sees[row] = rows.first[row] < stop && rows.position[row] >= span0;
        invar_attention_merge(total, alpha, beta, softmax, sees);
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) {
            float *old = &memory.total[i * threads + (int)threadIdx.x];
            int row = i / 2 % 2;
            if (sees[row])
                *old = total.started[row] ? invar_fmaf(o[i], beta[row], *old * alpha[row]) : o[i];
            o[i] = 0.0f;
        }
        total.started[0] |= sees[0];
        total.started[1] |= sees[1];
        invar_attention_start(softmax);
    }

    __device__ __forceinline__ void run()
    {
        int first = rows.tile_first / block * block;

        load_queries();
        locate(first);
        load(memory.k, p.k, memory.k_at, true);
        load(memory.v, p.v, memory.v_at, true);
        invar_attention_start(softmax);
        total.started[0] = total.started[1] = false;
        total.m[0] = total.m[1] = -INFINITY;
#pragma unroll
        for (int i = 0; i < DIM / 2; i++)
            o[i] = 0.0f;
        for (int key0 = first; key0 < rows.tile_end; key0 += block) {
            process_block(key0, key0 + block);
            int64_t span0 = key0 / p.form.kv_span * p.form.kv_span;
            if (p.form.kv_span < INVAR_ATTENTION_FAR &&
                (key0 + block == span0 + p.form.kv_span || key0 + block >= rows.tile_end))
                close_span(span0, span0 + p.form.kv_span);
        }
        store();
    }

    __device__ __forceinline__ void store()
    {
        bool spans = p.form.kv_span < INVAR_ATTENTION_FAR;
        int base = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;

#pragma unroll
        for (int row = 0; row < 2; row++) {
            float l = spans ? total.l[row] : invar_attention_fold(softmax.l[row]);
            float m = spans ? total.m[row] : softmax.m[row];
            int head = invar_attention_head(p, t, base + 8 * row);
            int64_t at = t.sequence.row0 + rows.position[row];
            uint16_t *to = (uint16_t *)p.o + at * p.o_stride + head * p.form.dim;

            if (rows.live[row] && p.lse2 && threadIdx.x % 4 == 0)
                p.lse2[at * p.lse2_stride + head] = invar_attention_lse2(l, m);
#pragma unroll
            for (int i = 2 * row; i < DIM / 2; i += 4) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int column = 2 * i - 4 * row + 2 * ((int)threadIdx.x % 4) + e;
                    float sum =
                        spans ? memory.total[(i + e) * threads + (int)threadIdx.x] : o[i + e];
                    if (rows.live[row] && column < p.form.dim)
                        to[column] = invar_bf16_bits(sum / l + 0.0f);
                }
            }
        }
    }
};

template <int DIM>
__global__ void __launch_bounds__(threads)
    forward_mma(const __grid_constant__ invar_attention_problem p, bool aligned)
{
    extern __shared__ __align__(16) char shared[];
    invar_attention_tile t;

    if (!invar_attention_tile_of(&t, p, tile_rows, blockIdx.x))
        return;
    tile_run<DIM> tile = {p, t, *(layout<DIM> *)shared, rows_of(p, t), aligned};
    tile.run();
}

/* ---- launch ---------------------------------------------------------------------------------- */

template <int DIM> invar_status launch(const invar_device *dev, const invar_attention_problem *p)
{
    bool aligned = (((uintptr_t)p->q | (uintptr_t)p->k | (uintptr_t)p->v) & 15) == 0 &&
                   (p->q_stride | p->k_stride | p->v_stride | p->form.dim) % 8 == 0;

    return invar_launch(dev, p->op, forward_mma<DIM>,
                        dim3((unsigned)invar_attention_tiles(p, tile_rows)), dim3(threads),
                        layout<DIM>::bytes(p->form.kv_span < INVAR_ATTENTION_FAR))(*p, aligned);
}

} // namespace

bool invar_attention_mma_supports(const invar_device *dev, const invar_attention_problem *p)
{
    return p->dtype == INVAR_DTYPE_BF16 && dev->numerics == INVAR_NUMERICS_SM90;
}

invar_status invar_attention_mma(const invar_device *dev, const invar_attention_problem *p)
{
    if (p->form.dim <= 32)
        return launch<32>(dev, p);
    if (p->form.dim <= 64)
        return launch<64>(dev, p);
    if (p->form.dim <= 128)
        return launch<128>(dev, p);
    return launch<256>(dev, p);
}
