/*
 * token.cu - sums over tokens and shards, embedding, residual addition.
 *
 * Numerics contract (rev 1), docs/arithmetic.md, section 7; all in f32, round to nearest even:
 *   token.sum       per unit, per block of 128 tokens: from +0, tokens ascending; blocks and units
 *                   added to out in ascending order
 *   shard.fold      binary tree over the shards, neighbours first: ((0+1) + (2+3)) + ...
 *   embedding.fwd   a copy
 *   embedding.bwd   dtable[id] += dout[t], tokens ascending
 *   add             round(a + b)
 * A thread owns columns; what is summed, it sums alone and in order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/rows/gather.cuh"
#include "kernels-deterministic/cuda/sm90/rows/sort.cuh"
#include "kernels-deterministic/cuda/sm90/rows/token_blocks.cuh"

/* ---- token.sum ------------------------------------------------------------------------------- */

#define SUM_COLUMNS 4 // of a thread
#define SUM_THREADS 128
#define SUM_BATCH 16

/* sum[c] += the rows at `row`, `row + stride`, ...: Count of them, in order. */
template <int Count, bool Whole, typename T>
__device__ __forceinline__ void add_rows_to(float sum[SUM_COLUMNS], const T *row, int64_t stride,
                                            int64_t first, int64_t cols)
{
    invar_run<T, SUM_COLUMNS> run[Count];

#pragma unroll
    for (int i = 0; i < Count; i++)
        run[i].template load<Whole>(row + i * stride, first, cols);
#pragma unroll
    for (int i = 0; i < Count; i++)
#pragma unroll
        for (int c = 0; c < SUM_COLUMNS; c++)
            sum[c] = sum[c] + run[i].get(c);
}

template <typename T, bool Whole>
static __global__ void __launch_bounds__(SUM_THREADS, 6)
    sum_tokens(float *sums, invar_view<T> x, invar_token_blocks blocks)
{
    int64_t token = 0, first = ((int64_t)blockIdx.y * SUM_THREADS + threadIdx.x) * SUM_COLUMNS;
    int count;

    invar_grid_begin();
    (void)invar_find_token_block<SUM_THREADS>(&token, &count, blocks, blockIdx.x);
    if (count == 0)
        return;
    for (; first < x.cols; first += (int64_t)gridDim.y * SUM_THREADS * SUM_COLUMNS) {
        float sum[SUM_COLUMNS] = {0.0f, 0.0f, 0.0f, 0.0f};
        int t = 0;
        for (; t + SUM_BATCH <= count; t += SUM_BATCH)
            add_rows_to<SUM_BATCH, Whole>(sum, x.row(token + t), x.stride, first, x.cols);
        for (; t < count; t++)
            add_rows_to<1, Whole>(sum, x.row(token + t), x.stride, first, x.cols);
        invar_run<float, SUM_COLUMNS> out;
        out.set(sum);
        out.template store<Whole>(sums + (int64_t)blockIdx.x * x.cols, first, x.cols);
    }
}

size_t invar_cuda_token_sum_workspace(const invar_device *dev, const invar_token_sum_args *a)
{
    (void)dev;
    return (size_t)(invar_token_blocks_most(&a->units, a->x.shape[0]) * a->x.shape[1]) *
           sizeof(float);
}

invar_status invar_cuda_token_sum(const invar_device *dev, const invar_token_sum_args *a,
                                  void *workspace)
{
    invar_op op = INVAR_OP_TOKEN_SUM;
    int64_t tokens = a->x.shape[0], cols = a->x.shape[1];
    invar_token_blocks blocks = invar_token_blocks_of(dev, op, &a->units, tokens);
    float *sums = (float *)workspace;
    dim3 grid((unsigned)invar_token_blocks_most(&a->units, tokens),
              invar_grid_rows(invar_ceil_div(cols, SUM_THREADS * SUM_COLUMNS)));
    bool whole = invar_aligned({&a->x}) && cols % SUM_COLUMNS == 0;

    INVAR_TRY(invar_by_storage(a->x.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return invar_by_flag(whole, [&](auto flag) {
            return invar_launch_early(dev, op, sum_tokens<T, flag.value>, grid, dim3(SUM_THREADS),
                                      0)(sums, invar_view_of<T>(&a->x), blocks);
        });
    }));
    return invar_token_blocks_add(dev, op, (float *)a->out.data, sums, cols, &blocks);
}

/* ---- shard.fold ------------------------------------------------------------------------------ */

#define MAX_LEVELS 11 // 2^10 shards, the bound of the check

/* A run of columns; Leaf shards are loaded at once and folded, then the leaves. */
template <int Leaf> struct fold_shards {
    static constexpr int width = 4;
    float *out;
    invar_view<float> x;
    bool aligned;

    __device__ __forceinline__ void load_leaf(float sum[width], int64_t shard, int64_t first,
                                              int64_t count) const
    {
        invar_run<float, width> run[Leaf];
        float part[Leaf][width];

#pragma unroll
        for (int i = 0; i < Leaf; i++)
            run[i].load(x.row(shard + i) + first, count, aligned);
#pragma unroll
        for (int c = 0; c < width; c++) {
#pragma unroll
            for (int i = 0; i < Leaf; i++)
                part[i][c] = run[i].get(c);
#pragma unroll
            for (int apart = 1; apart < Leaf; apart *= 2)
#pragma unroll
                for (int i = 0; i + apart < Leaf; i += 2 * apart)
                    part[i][c] = part[i][c] + part[i + apart][c];
            sum[c] = part[0][c];
        }
    }

    __device__ __forceinline__ void operator()(int64_t, int64_t first, int64_t count) const
    {
        float partial[MAX_LEVELS][width], sum[width];

        // a binary counter: partial[l] waits for its right neighbour, a subtree of 2^l leaves
        for (int64_t leaf = 0; leaf * Leaf < x.rows; leaf++) {
            bool carry = true;
            load_leaf(sum, leaf * Leaf, first, count);
#pragma unroll
            for (int level = 0; level < MAX_LEVELS; level++) {
                bool waiting = leaf >> level & 1;
#pragma unroll
                for (int c = 0; carry && c < width; c++) {
                    if (waiting)
                        sum[c] = partial[level][c] + sum[c];
                    else
                        partial[level][c] = sum[c];
                }
                carry = carry && waiting;
            }
        }
        invar_run<float, width> run;
        run.set(sum);
        run.store(out + first, count, aligned);
    }
};

size_t invar_cuda_shard_fold_workspace(const invar_device *dev, const invar_shard_fold_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cuda_shard_fold(const invar_device *dev, const invar_shard_fold_args *a,
                                   void *workspace)
{
    bool aligned = invar_aligned({&a->out, &a->x});
    auto fold = [&](auto f) {
        f.out = (float *)a->out.data;
        f.x = invar_view_of<float>(&a->x);
        f.aligned = aligned;
        return invar_map(dev, INVAR_OP_SHARD_FOLD, 1, a->out.shape[0], false, f);
    };

    (void)workspace;
    switch (a->x.shape[0]) {
    case 1: return fold(fold_shards<1>{});
    case 2: return fold(fold_shards<2>{});
    case 4: return fold(fold_shards<4>{});
    default: return fold(fold_shards<8>{});
    }
}

/* ---- embedding ------------------------------------------------------------------------------- */

size_t invar_cuda_embedding_fwd_workspace(const invar_device *dev,
                                          const invar_embedding_fwd_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cuda_embedding_fwd(const invar_device *dev, const invar_embedding_fwd_args *a,
                                      void *workspace)
{
    (void)workspace;
    return invar_gather_rows(dev, INVAR_OP_EMBEDDING_FWD, &a->out, &a->table, &a->ids);
}

struct token_ids {
    const int32_t *ids;
    int64_t bound;
    invar_cuda_fault *fault;

    __device__ __forceinline__ invar_sort_entry operator()(int64_t i) const
    {
        return {(int32_t)invar_guard(fault, INVAR_OP_EMBEDDING_BWD, ids[i], bound), (int32_t)i};
    }
};

#define SCATTER_COLUMNS 4 // of a thread
#define SCATTER_THREADS 256
#define SCATTER_BATCH 16 // rows under way at once

/* sum[c] += the rows of Count tokens, those of the entries from `at` on. */
template <int Count, bool Whole, typename T>
__device__ __forceinline__ void add_tokens_to(float sum[SCATTER_COLUMNS], const invar_view<T> &dout,
                                              const invar_sort_entry *at, int64_t first)
{
    invar_run<T, SCATTER_COLUMNS> run[Count];
    int32_t token[Count];

#pragma unroll
    for (int i = 0; i < Count; i++)
        token[i] = at[i].position;
#pragma unroll
    for (int i = 0; i < Count; i++)
        run[i].template load<Whole>(dout.row(token[i]), first, dout.cols);
#pragma unroll
    for (int i = 0; i < Count; i++)
#pragma unroll
        for (int c = 0; c < SCATTER_COLUMNS; c++)
            sum[c] = sum[c] + run[i].get(c);
}

/*
 * A block of threads for each entry and tile of columns: that of the first entry of an id adds the
 * rows of all its tokens, the others have nothing to do.
 */
template <typename T, bool Whole>
static __global__ void __launch_bounds__(SCATTER_THREADS, 5)
    scatter_rows(invar_view<float> dtable, invar_view<T> dout, const invar_sort_entry *sorted)
{
    int64_t i = blockIdx.x, tokens = dout.rows;
    int64_t first = ((int64_t)blockIdx.y * SCATTER_THREADS + threadIdx.x) * SCATTER_COLUMNS;
    int32_t id = sorted[i].key;

    if (i > 0 && sorted[i - 1].key == id)
        return;
    auto same = [&](int64_t at) { return at < tokens && sorted[at].key == id; };
    for (; first < dout.cols; first += (int64_t)gridDim.y * SCATTER_THREADS * SCATTER_COLUMNS) {
        invar_run<float, SCATTER_COLUMNS> row;
        float sum[SCATTER_COLUMNS];
        row.template load<Whole>(dtable.row(id), first, dtable.cols);
#pragma unroll
        for (int c = 0; c < SCATTER_COLUMNS; c++)
            sum[c] = row.get(c);
        add_tokens_to<1, Whole>(sum, dout, sorted + i, first);
        int64_t at = i + 1;
        for (; same(at + SCATTER_BATCH - 1); at += SCATTER_BATCH)
            add_tokens_to<SCATTER_BATCH, Whole>(sum, dout, sorted + at, first);
        for (; same(at); at++)
            add_tokens_to<1, Whole>(sum, dout, sorted + at, first);
        row.set(sum);
        row.template store<Whole>(dtable.row(id), first, dtable.cols);
    }
}

size_t invar_cuda_embedding_bwd_workspace(const invar_device *dev,
                                          const invar_embedding_bwd_args *a)
{
    (void)dev;
    return invar_sort_bytes(a->dout.shape[0]);
}

invar_status invar_cuda_embedding_bwd(const invar_device *dev, const invar_embedding_bwd_args *a,
                                      void *workspace)
{
    invar_op op = INVAR_OP_EMBEDDING_BWD;
    int64_t tokens = a->dout.shape[0], cols = a->dout.shape[1];
    token_ids ids = {(const int32_t *)a->ids.data, a->dtable.shape[0], invar_cuda_of(dev)->fault};
    const invar_sort_entry *sorted;

    INVAR_TRY(invar_indexable(op, tokens, a->dtable.shape[0]));
    if (tokens > INT32_MAX || a->dtable.shape[0] > INT32_MAX)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: more than 2^31 tokens or rows",
                          invar_op_name(op));
    INVAR_TRY(invar_sort(&sorted, dev, op, ids, tokens, a->dtable.shape[0], workspace));
    dim3 grid((unsigned)tokens,
              invar_grid_rows(invar_ceil_div(cols, SCATTER_THREADS * SCATTER_COLUMNS)));
    bool whole = invar_aligned({&a->dtable, &a->dout}) && cols % SCATTER_COLUMNS == 0;
    return invar_by_storage(a->dout.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return invar_by_flag(whole, [&](auto flag) {
            return invar_launch(dev, op, scatter_rows<T, flag.value>, grid, dim3(SCATTER_THREADS),
                                0)(invar_view_of<float>(&a->dtable), invar_view_of<T>(&a->dout),
                                   sorted);
        });
    });
}

/* ---- residual -------------------------------------------------------------------------------- */

template <typename T> struct add_rows {
    static constexpr int width = INVAR_RUN;
    invar_view<T> out, a, b;
    bool aligned;

    __device__ __forceinline__ void operator()(int64_t row, int64_t first, int64_t count) const
    {
        invar_run<T> x, y;
        float sum[width];

        x.load(a.row(row) + first, count, aligned);
        y.load(b.row(row) + first, count, aligned);
#pragma unroll
        for (int i = 0; i < width; i++)
            sum[i] = x.get(i) + y.get(i);
        x.set(sum);
        x.store(out.row(row) + first, count, aligned);
    }
};

size_t invar_cuda_add_workspace(const invar_device *dev, const invar_add_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cuda_add(const invar_device *dev, const invar_add_args *a, void *workspace)
{
    (void)workspace;
    return invar_by_storage(a->out.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        add_rows<T> add = {invar_view_of<T>(&a->out), invar_view_of<T>(&a->a),
                           invar_view_of<T>(&a->b), invar_aligned({&a->out, &a->a, &a->b})};
        return invar_map(dev, INVAR_OP_ADD, a->out.shape[0], a->out.shape[1],
                         invar_joined({&a->out, &a->a, &a->b}), add);
    });
}
