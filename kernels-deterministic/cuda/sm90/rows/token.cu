/*
 * token.cu - sums over tokens, embedding, residual addition, scaling, folds of shards.
 *
 * Numerics contract (rev 2), docs/arithmetic.md, section 7; all in f32, round to nearest even:
 *   token.sum       per unit a sum from +0 of its blocks of 128 tokens, ascending; a block's sum is
 *                   from +0, tokens ascending; then units are added to out, ascending
 *   embedding.fwd   a copy
 *   embedding.bwd   per unit and id a sum from +0 of its dout[t], tokens ascending; units are added
 *                   to dtable[id], ascending
 *   add             round(a + b)
 *   scale           round(factor * x)
 *   token.fold      the sums of units of token.sum, from those of blocks
 *   shards.fold     round(the tree over shards + 0); with a residual, `add` of both
 * A thread owns columns, and sums them alone and in order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/rows/gather.cuh"
#include "kernels-deterministic/cuda/sm90/rows/sort.cuh"
#include "kernels-deterministic/cuda/sm90/rows/token_blocks.cuh"

/* ---- sums over tokens ------------------------------------------------------------------------ */

#define SUM_COLUMNS 4 // columns of a thread
#define SUM_THREADS 128
#define SUM_BATCH 16

/* sum[c] += Count rows at `row`, `row + stride`, ..., in order. */
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
    sum_tokens(invar_view<float> sums, invar_view<T> x, invar_token_blocks blocks)
{
    int64_t token = 0, first = ((int64_t)blockIdx.y * SUM_THREADS + threadIdx.x) * SUM_COLUMNS;
    int count;

    invar_grid_begin();
    invar_find_token_block<SUM_THREADS>(&token, &count, blocks, blockIdx.x);
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
        out.template store<Whole>(sums.row(blockIdx.x), first, x.cols);
    }
}

size_t invar_cuda_token_sum_workspace(const invar_device *dev, const invar_token_sum_args *a)
{
    (void)dev;
    return (size_t)(invar_token_blocks_max(&a->units, a->x.shape[0]) * a->x.shape[1]) *
           sizeof(float);
}

invar_status invar_cuda_token_sum(const invar_device *dev, const invar_token_sum_args *a,
                                  void *workspace)
{
    invar_op op = INVAR_OP_TOKEN_SUM;
    int64_t tokens = a->x.shape[0], cols = a->x.shape[1];
    int64_t most = invar_token_blocks_max(&a->units, tokens);
    invar_token_blocks blocks = invar_blocks_of_units(dev, op, &a->units, tokens);
    invar_view<float> sums = invar_block_rows(workspace, most, cols);
    dim3 grid((unsigned)most, invar_grid_rows(invar_ceil_div(cols, SUM_THREADS * SUM_COLUMNS)));
    bool whole = invar_aligned({&a->x}) && cols % SUM_COLUMNS == 0;

    INVAR_TRY(invar_by_storage(a->x.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return invar_by_flag(whole, [&](auto flag) {
            return invar_launch_early(dev, op, sum_tokens<T, flag.value>, grid, dim3(SUM_THREADS),
                                      0)(sums, invar_view_of<T>(&a->x), blocks);
        });
    }));
    return invar_token_blocks_add(dev, op, (float *)a->out.data, &sums, &blocks);
}

INVAR_NO_WORKSPACE(cuda, token_fold)

invar_status invar_cuda_token_fold(const invar_device *dev, const invar_token_fold_args *a,
                                   void *workspace)
{
    invar_op op = INVAR_OP_TOKEN_FOLD;
    invar_token_blocks blocks = invar_blocks_of_units(dev, op, &a->units, a->tokens);
    invar_view<float> sums = invar_view_of<float>(&a->sums);

    (void)workspace;
    return invar_token_blocks_add(dev, op, (float *)a->out.data, &sums, &blocks);
}

/* ---- embedding ------------------------------------------------------------------------------- */

INVAR_NO_WORKSPACE(cuda, embedding_fwd)

invar_status invar_cuda_embedding_fwd(const invar_device *dev, const invar_embedding_fwd_args *a,
                                      void *workspace)
{
    (void)workspace;
    return invar_gather_rows(dev, INVAR_OP_EMBEDDING_FWD, &a->out, &a->table, &a->ids);
}

/*
 * Source of the tokens to sort by id. A call also stores the token's unit, and checks a share of
 * the unit offsets.
 */
struct token_ids {
    const int32_t *ids;
    int64_t bound;
    const int64_t *start; /* (units + 1) token offsets */
    int64_t units, tokens;
    int32_t *unit; /* (tokens) unit of each token */
    invar_cuda_fault *fault;

    __device__ __forceinline__ invar_sort_entry operator()(int64_t i) const
    {
        int64_t low = 0, high = units - 1; // the last unit that begins at or before i

        for (int64_t u = i; u < units; u += tokens)
            check(u);
        while (low < high) {
            int64_t middle = (low + high + 1) / 2;
            if (start[middle] <= i)
                low = middle;
            else
                high = middle - 1;
        }
        unit[i] = (int32_t)low;
        return {(int32_t)invar_guard(fault, INVAR_OP_EMBEDDING_BWD, ids[i], bound), (int32_t)i};
    }

    __device__ __forceinline__ void check(int64_t u) const
    {
        if (start[u] > start[u + 1] || (u == 0 && start[u] != 0) ||
            (u == units - 1 && start[u + 1] != tokens))
            invar_report(fault, INVAR_OP_EMBEDDING_BWD, INVAR_CUDA_SEGMENTS, u);
    }
};

#define SCATTER_COLUMNS 4 // columns of a thread
#define SCATTER_THREADS 256
#define SCATTER_BYTES 32 // bytes of a column of dout that are in flight at once

/* A row of dtable, and the sum of the open unit. */
struct scatter_sums {
    float running[SCATTER_COLUMNS], unit[SCATTER_COLUMNS];

    __device__ __forceinline__ void close_unit()
    {
#pragma unroll
        for (int c = 0; c < SCATTER_COLUMNS; c++) {
            running[c] = running[c] + unit[c];
            unit[c] = 0.0f;
        }
    }
};

/*
 * Adds the rows of up to Most of `count` tokens, which the warp's lanes from `lane` on hold. Bit i
 * of `fresh` is set if a unit begins with the i-th of them.
 */
template <int Most, bool Whole, typename T>
__device__ __forceinline__ void add_tokens_to(scatter_sums *s, const invar_view<T> &dout,
                                              int32_t token, int lane, int count, unsigned fresh,
                                              int64_t first)
{
    invar_run<T, SCATTER_COLUMNS> run[Most];

#pragma unroll
    for (int i = 0; i < Most; i++) {
        int32_t row = __shfl_sync(0xFFFFFFFFu, token, (lane + i) % 32);
        if (i < count)
            run[i].template load<Whole>(dout.row(row), first, dout.cols);
    }
#pragma unroll
    for (int i = 0; i < Most; i++) {
        if (i >= count)
            break;
        if (fresh >> i & 1)
            s->close_unit();
#pragma unroll
        for (int c = 0; c < SCATTER_COLUMNS; c++)
            s->unit[c] = s->unit[c] + run[i].get(c);
    }
}

/*
 * Adds rows of dout to dtable, with a block of threads for each entry and tile of columns. The
 * block of the first entry of an id adds the rows of all its tokens; the others have nothing to do.
 * A warp reads 32 entries at a time.
 */
template <typename T, bool Whole>
static __global__ void __launch_bounds__(SCATTER_THREADS, 4)
    scatter_rows(invar_view<float> dtable, invar_view<T> dout, const invar_sort_entry *sorted,
                 const int32_t *unit)
{
    constexpr int batch = SCATTER_BYTES / (int)sizeof(T);
    int lane = (int)threadIdx.x % 32;
    int64_t i = blockIdx.x, tokens = dout.rows;
    int64_t tile = ((int64_t)blockIdx.y * SCATTER_THREADS + threadIdx.x - lane) * SCATTER_COLUMNS;

    invar_grid_begin();
    int32_t id = sorted[i].key;
    if (i > 0 && sorted[i - 1].key == id)
        return;
    for (; tile < dout.cols; tile += (int64_t)gridDim.y * SCATTER_THREADS * SCATTER_COLUMNS) {
        int64_t first = tile + lane * SCATTER_COLUMNS;
        invar_run<float, SCATTER_COLUMNS> row;
        scatter_sums sums;
        row.template load<Whole>(dtable.row(id), first, dtable.cols);
#pragma unroll
        for (int c = 0; c < SCATTER_COLUMNS; c++) {
            sums.running[c] = row.get(c);
            sums.unit[c] = 0.0f;
        }
        int32_t last = unit[sorted[i].position]; // unit of the previous token
        int count = 32;
        for (int64_t base = i; count == 32; base += 32) {
            invar_sort_entry entry = {-1, 0};
            if (base + lane < tokens)
                entry = sorted[base + lane];
            bool own = entry.key == id;
            int32_t here = own ? unit[entry.position] : 0;
            int32_t before = __shfl_up_sync(0xFFFFFFFFu, here, 1);
            unsigned fresh = __ballot_sync(0xFFFFFFFFu, own && here != (lane > 0 ? before : last));
            count = __popc(__ballot_sync(0xFFFFFFFFu, own));
            last = __shfl_sync(0xFFFFFFFFu, here, 31);
            if (count == 1)
                add_tokens_to<1, Whole>(&sums, dout, entry.position, 0, 1, fresh, first);
            for (int at = 0; count > 1 && at < count; at += batch)
                add_tokens_to<batch, Whole>(&sums, dout, entry.position, at, count - at,
                                            fresh >> at, first);
        }
        sums.close_unit();
        row.set(sums.running);
        row.template store<Whole>(dtable.row(id), first, dtable.cols);
    }
}

size_t invar_cuda_embedding_bwd_workspace(const invar_device *dev,
                                          const invar_embedding_bwd_args *a)
{
    (void)dev;
    return invar_sort_bytes(a->dout.shape[0]) + (size_t)a->dout.shape[0] * sizeof(int32_t);
}

invar_status invar_cuda_embedding_bwd(const invar_device *dev, const invar_embedding_bwd_args *a,
                                      void *workspace)
{
    invar_op op = INVAR_OP_EMBEDDING_BWD;
    int64_t tokens = a->dout.shape[0], cols = a->dout.shape[1];
    int32_t *unit = (int32_t *)((char *)workspace + invar_sort_bytes(tokens));
    token_ids ids = {(const int32_t *)a->ids.data,
                     a->dtable.shape[0],
                     a->units.offsets,
                     a->units.count,
                     tokens,
                     unit,
                     invar_cuda_of(dev)->fault};
    const invar_sort_entry *sorted;

    INVAR_TRY(invar_indexable(op, tokens, a->dtable.shape[0]));
    if (tokens > INT32_MAX || a->dtable.shape[0] > INT32_MAX || a->units.count > INT32_MAX)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: more than 2^31 tokens, rows or units",
                          invar_op_name(op));
    INVAR_TRY(invar_sort(&sorted, dev, op, ids, tokens, a->dtable.shape[0], workspace));
    dim3 grid((unsigned)tokens,
              invar_grid_rows(invar_ceil_div(cols, SCATTER_THREADS * SCATTER_COLUMNS)));
    bool whole = invar_aligned({&a->dtable, &a->dout}) && cols % SCATTER_COLUMNS == 0;
    return invar_by_storage(a->dout.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return invar_by_flag(whole, [&](auto flag) {
            return invar_launch_early(dev, op, scatter_rows<T, flag.value>, grid,
                                      dim3(SCATTER_THREADS), 0)(
                invar_view_of<float>(&a->dtable), invar_view_of<T>(&a->dout), sorted, unit);
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

INVAR_NO_WORKSPACE(cuda, add)

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

/* ---- a factor -------------------------------------------------------------------------------- */

template <typename T> struct scale_rows {
    static constexpr int width = INVAR_RUN;
    invar_view<T> y;
    invar_view<float> x;
    float factor;
    bool aligned;

    __device__ __forceinline__ void operator()(int64_t row, int64_t first, int64_t count) const
    {
        invar_run<float> in;
        invar_run<T> out;
        float product[width];

        in.load(x.row(row) + first, count, aligned);
#pragma unroll
        for (int i = 0; i < width; i++)
            product[i] = factor * in.get(i);
        out.set(product);
        out.store(y.row(row) + first, count, aligned);
    }
};

INVAR_NO_WORKSPACE(cuda, scale)

invar_status invar_cuda_scale(const invar_device *dev, const invar_scale_args *a, void *workspace)
{
    (void)workspace;
    return invar_by_storage(a->y.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        scale_rows<T> scale = {invar_view_of<T>(&a->y), invar_view_of<float>(&a->x), a->factor,
                               invar_aligned({&a->y, &a->x})};
        return invar_map(dev, INVAR_OP_SCALE, a->y.shape[0], a->y.shape[1],
                         invar_joined({&a->y, &a->x}), scale);
    });
}

/* ---- shards of ranks ------------------------------------------------------------------------- */

template <typename T, int Shards> struct fold_shards {
    static constexpr int width = INVAR_RUN;
    invar_view<T> y;
    invar_view<T> residual; /* data is NULL if there is none */
    invar_view<float> x;
    bool aligned;

    __device__ __forceinline__ void operator()(int64_t row, int64_t first, int64_t count) const
    {
        invar_run<float> shard[Shards];
        invar_run<T> out, old;
        float sum[Shards][width];

#pragma unroll
        for (int v = 0; v < Shards; v++)
            shard[v].load(x.row(v * y.rows + row) + first, count, aligned);
        if (residual.data)
            old.load(residual.row(row) + first, count, aligned);
#pragma unroll
        for (int i = 0; i < width; i++) {
#pragma unroll
            for (int v = 0; v < Shards; v++)
                sum[v][i] = shard[v].get(i);
#pragma unroll
            for (int apart = 1; apart < Shards; apart *= 2)
#pragma unroll
                for (int v = 0; v < Shards; v += 2 * apart)
                    sum[v][i] = sum[v][i] + sum[v + apart][i];
            sum[0][i] = sum[0][i] + 0.0f; // -0 becomes +0
        }
        out.set(sum[0]);
        if (residual.data) {
#pragma unroll
            for (int i = 0; i < width; i++)
                sum[0][i] = old.get(i) + out.get(i);
            out.set(sum[0]);
        }
        out.store(y.row(row) + first, count, aligned);
    }
};

INVAR_NO_WORKSPACE(cuda, shards_fold)

/* Calls f with the number of shards as a std::integral_constant. */
template <typename F> static invar_status by_shards(int32_t shards, F f)
{
    switch (shards) {
    case 8: return f(std::integral_constant<int, 8>{});
    case 4: return f(std::integral_constant<int, 4>{});
    case 2: return f(std::integral_constant<int, 2>{});
    default: return f(std::integral_constant<int, 1>{});
    }
}

invar_status invar_cuda_shards_fold(const invar_device *dev, const invar_shards_fold_args *a,
                                    void *workspace)
{
    bool aligned = invar_aligned({&a->y, &a->x, &a->residual});
    bool joined = invar_joined({&a->y, &a->x, &a->residual});

    (void)workspace;
    return invar_by_storage(a->y.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return by_shards(a->shards, [&](auto shards) {
            fold_shards<T, shards.value> fold = {invar_view_of<T>(&a->y),
                                                 invar_view_if_present<T>(&a->residual),
                                                 invar_view_of<float>(&a->x), aligned};
            return invar_map(dev, INVAR_OP_SHARDS_FOLD, a->y.shape[0], a->y.shape[1], joined, fold);
        });
    });
}
