/*
 * rmsnorm.cu - root mean square norm over the last index: plain kernels and launches.
 *
 * Numerics contract (rev 2), docs/arithmetic.md, section 7; in f32 per token and head, D = last
 * extent:
 *   rstd    = 1 / sqrt(REDUCE(x*x) / D + eps), NaN if the mean of squares is not finite
 *   y       = (x * rstd) * w                                              rounded to storage
 *   xhat    = x * rstd,  g = dy * w,  mean = REDUCE(g * xhat) / D
 *   dx      = rstd * fma(-xhat, mean, g)                                  rounded to storage
 *   dweight = sum over tokens in the order of token_blocks.cuh; a token adds
 *             sum = fma(dy, xhat, sum), heads ascending; with shards of heads a block has a sum
 *             of each, added by a tree; block_sums is the sum of each block
 * Rows are held in registers (rmsnorm_short.cuh) or in shared memory (rmsnorm_long.cuh). Rows that
 * are not aligned, or longer still, use the plain kernels of this file, and so do shards of long
 * rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/rows/rmsnorm_long.cuh"
#include "kernels-deterministic/cuda/sm90/rows/rmsnorm_short.cuh"
#include "kernels-deterministic/math/shards.h"

/* ---- forward, plainly ------------------------------------------------------------------------ */

/* Normalizes rows of any length and alignment, a warp for each; a row is read twice. */
template <typename T>
static __global__ void __launch_bounds__(128, 8)
    plain_forward(invar_view<T> y, invar_view<T> x, invar_any_float_rows weight, norm_shape shape)
{
    int64_t row = ((int64_t)blockIdx.x * 128 + threadIdx.x) / 32;
    int lane = (int)threadIdx.x % 32 * INVAR_RUN;
    invar_warp_sum squares;

    if (row >= shape.rows)
        return;
    const T *from = row_of(x, shape, row);
    T *to = row_of(y, shape, row);
    squares.start();
    for (int64_t base = 0; base < shape.n; base += INVAR_REDUCE_LANES) {
        invar_run<T> run;
        float square[INVAR_RUN];
        run.load_some(from + base + lane, shape.n - base - lane);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            square[i] = run.get(i) * run.get(i);
        squares.add(square);
    }
    float rstd = inverse_rms(squares.sum(), shape);
    for (int64_t base = 0; base < shape.n; base += INVAR_REDUCE_LANES) {
        invar_run<T> run;
        float w[INVAR_RUN], out[INVAR_RUN];
        run.load_some(from + base + lane, shape.n - base - lane);
        weight.load<INVAR_RUN, false>(w, 0, base + lane, shape.n);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            out[i] = run.get(i) * rstd * w[i];
        run.set(out);
        run.store_some(to + base + lane, shape.n - base - lane);
    }
}

/* ---- backward, plainly ----------------------------------------------------------------------- */

/*
 * Computes dx of rows of any length and alignment, a warp for each. rstd_out is for dweight, NULL
 * without it.
 */
template <typename T>
static __global__ void __launch_bounds__(128, 6)
    plain_backward(invar_view<T> dx, invar_view<T> dy, invar_view<T> x, invar_any_float_rows weight,
                   float *rstd_out, norm_shape shape, bool aligned)
{
    int64_t row = ((int64_t)blockIdx.x * 128 + threadIdx.x) / 32;
    int lane = (int)threadIdx.x % 32 * INVAR_RUN;

    if (row >= shape.rows)
        return;
    const T *x_row = row_of(x, shape, row), *dy_row = row_of(dy, shape, row);
    T *to = row_of(dx, shape, row);
    // calls take(out, first) with out[i] = value(x, dy, w) for every run of the row
    auto for_row = [&](auto value, auto take) {
        for (int64_t first = lane; first - lane < shape.n; first += INVAR_REDUCE_LANES) {
            invar_run<T> x_run, dy_run;
            float w[INVAR_RUN], out[INVAR_RUN];
            x_run.load(x_row + first, shape.n - first, aligned);
            dy_run.load(dy_row + first, shape.n - first, aligned);
            weight.load<INVAR_RUN>(w, 0, first, shape.n - first, aligned);
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++)
                out[i] = value(x_run.get(i), dy_run.get(i), w[i]);
            take(out, first);
        }
    };
    invar_warp_sum sum;
    auto add = [&](const float out[INVAR_RUN], int64_t) { sum.add(out); };
    sum.start();
    for_row([](float x_i, float, float) { return x_i * x_i; }, add);
    float rstd = inverse_rms(sum.sum(), shape);
    sum.start();
    for_row([&](float x_i, float dy_i, float w_i) { return dy_i * w_i * (x_i * rstd); }, add);
    float mean = mean_of(sum.sum(), shape);
    for_row([&](float x_i, float dy_i,
                float w_i) { return rstd * invar_fmaf(-(x_i * rstd), mean, dy_i * w_i); },
            [&](const float out[INVAR_RUN], int64_t first) {
                invar_run<T> run;
                run.set(out);
                run.store(to + first, shape.n - first, aligned);
            });
    if (rstd_out && lane == 0)
        rstd_out[row] = rstd;
}

#define PLAIN_COLUMNS 128

/* Shards of heads; at least 1. */
struct head_shards {
    int32_t count;
    int64_t atom;
};

#define SHARD_LEVELS 3 // levels below the root of the tree over 2^3 shards, INVAR_LINEAR_MAX_SHARDS

/*
 * Computes the sums of a token block. A thread has a column, or several if rows are very long.
 * Every shard of heads has its own sum; the tree adds them.
 */
template <typename T>
static __global__ void __launch_bounds__(PLAIN_COLUMNS)
    plain_weight_sums(invar_view<float> sums, invar_view<T> dy, invar_view<T> x, const float *rstd,
                      invar_token_blocks blocks, norm_shape shape, head_shards shards)
{
    int64_t token = 0, column = (int64_t)blockIdx.y * PLAIN_COLUMNS + threadIdx.x;
    int tokens;

    invar_find_token_block<PLAIN_COLUMNS>(&token, &tokens, blocks, blockIdx.x);
    if (tokens == 0)
        return;
    for (; column < shape.n; column += (int64_t)gridDim.y * PLAIN_COLUMNS) {
        float waiting[SHARD_LEVELS], sum = 0.0f;
        for (int32_t v = 0; v < shards.count; v++) {
            int64_t first = invar_shard_start(shape.heads, shards.atom, shards.count, v);
            int64_t end = invar_shard_start(shape.heads, shards.atom, shards.count, v + 1);
            bool carry = true;
            sum = 0.0f;
            auto add_rows = [&](int64_t row, int64_t behind) {
#pragma unroll 4
                for (; row < behind; row++)
                    sum = invar_fmaf(invar_load(row_of(dy, shape, row) + column),
                                     invar_load(row_of(x, shape, row) + column) * rstd[row], sum);
            };
            if (end - first == shape.heads)
                add_rows(token * shape.heads, (token + tokens) * shape.heads);
            else
                for (int64_t t = token * shape.heads; t < (token + tokens) * shape.heads;
                     t += shape.heads)
                    add_rows(t + first, t + end);
#pragma unroll
            for (int level = 0; level < SHARD_LEVELS; level++) {
                bool both = v >> level & 1;
                if (carry && both)
                    sum = waiting[level] + sum;
                else if (carry)
                    waiting[level] = sum;
                carry = carry && both;
            }
        }
        sums.row(blockIdx.x)[column] = sum;
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

static norm_shape shape_of(const invar_tensor *x, float eps)
{
    int64_t n = x->shape[2];

    return {x->shape[0] * x->shape[1], x->shape[1], n, eps,
            n > 0 && (n & (n - 1)) == 0 ? 1.0f / (float)n : 0.0f};
}

static invar_status check_length(invar_op op, const norm_shape *shape)
{
    if (shape->n > INVAR_WARP_SUM_MAX)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: rows of more than 2^24 values",
                          invar_op_name(op));
    return INVAR_OK;
}

static invar_status check_rotation(invar_op op, const norm_shape *shape, const invar_rope_args *r)
{
    if (!invar_tensor_present(&r->positions))
        return INVAR_OK;
    return invar_indexable(op, shape->rows * shape->n, r->cosine.shape[0]);
}

/* Calls f(Group) with the group of threads for rows of up to SHORT_MOST values. */
template <typename F> static invar_status by_short_group(int64_t n, F f)
{
    if (n <= 4 * SHORT_VALUES)
        return f(std::integral_constant<int, 4>{});
    if (n <= 8 * SHORT_VALUES)
        return f(std::integral_constant<int, 8>{});
    if (n <= 16 * SHORT_VALUES)
        return f(std::integral_constant<int, 16>{});
    return f(std::integral_constant<int, 32>{});
}

/*
 * Returns the shape with one head if there are no gaps between tokens: all rows are then rows of
 * tokens.
 */
template <typename T>
static norm_shape join_heads(const norm_shape *shape, bool joined,
                             std::initializer_list<invar_view<T> *> views)
{
    norm_shape out = *shape;

    if (!joined)
        return out;
    out.heads = 1;
    for (invar_view<T> *view : views)
        view->stride = shape->n;
    return out;
}

/* Calls f with the weight's address in its type, which is f32 or that of the rows. */
template <typename T, typename F> static invar_status by_weight(const invar_tensor *weight, F f)
{
    if (weight->dtype == INVAR_DTYPE_F32)
        return f((const float *)weight->data);
    return f((const T *)weight->data);
}

static bool has_rotation(const invar_rope_args *r)
{
    return invar_tensor_present(&r->positions);
}

/*
 * Returns whether the kernels of short rows can rotate: rows are as wide as a group of 4 or 8
 * threads.
 */
static bool rotates_inside(const norm_shape *shape, const invar_rope_args *r)
{
    return (shape->n == 4 * SHORT_VALUES || shape->n == 8 * SHORT_VALUES) &&
           invar_aligned({&r->cosine, &r->sine});
}

static short_norm_rope rotation_of(const invar_device *dev, invar_op op, const norm_shape *shape,
                                   const invar_rope_args *r)
{
    return {invar_view_of<float>(&r->cosine),
            invar_view_of<float>(&r->sine),
            (const int32_t *)r->positions.data,
            shape->heads,
            op,
            invar_cuda_of(dev)->fault};
}

/* Calls f(whether to rotate); only kernels of narrow groups can. */
template <int Group, typename F> static invar_status by_rotation(const invar_rope_args *r, F f)
{
    if constexpr (Group <= 8)
        if (has_rotation(r))
            return f(std::true_type{});
    return f(std::false_type{});
}

template <typename T>
static invar_status launch_short_forward(const invar_device *dev, const invar_rmsnorm_fwd_args *a,
                                         const norm_shape *shape)
{
    invar_op op = INVAR_OP_RMSNORM_FWD;
    invar_view<T> y = invar_view_of<T>(&a->y), x = invar_view_of<T>(&a->x);
    norm_shape joined = join_heads<T>(shape, invar_joined({&a->y, &a->x}), {&y, &x});
    short_norm_rope rotation = rotation_of(dev, op, shape, &a->rotation);

    return by_short_group(shape->n, [&](auto group) {
        constexpr int lanes = decltype(group)::value;
        dim3 grid((unsigned)invar_ceil_div(shape->rows, SHORT_THREADS / lanes));
        return by_weight<T>(&a->weight, [&](auto *weight) {
            using W = std::remove_const_t<std::remove_pointer_t<decltype(weight)>>;
            return by_rotation<lanes>(&a->rotation, [&](auto turn) {
                return invar_launch_early(dev, op, short_forward<T, W, lanes, turn.value>, grid,
                                          dim3(SHORT_THREADS), 0)(y, x, weight, joined, rotation);
            });
        });
    });
}

INVAR_NO_WORKSPACE(cuda, rmsnorm_fwd)

/* Runs the two ops one after the other. */
static invar_status normalize_then_rotate(const invar_device *dev, const invar_rmsnorm_fwd_args *a,
                                          void *workspace)
{
    invar_rmsnorm_fwd_args norm = *a;
    invar_rope_fwd_args rope = {a->y, a->y, a->rotation.positions, a->rotation.cosine,
                                a->rotation.sine};

    norm.rotation = {};
    INVAR_TRY(invar_cuda_rmsnorm_fwd(dev, &norm, workspace));
    return invar_cuda_rope_fwd(dev, &rope, workspace);
}

invar_status invar_cuda_rmsnorm_fwd(const invar_device *dev, const invar_rmsnorm_fwd_args *a,
                                    void *workspace)
{
    invar_op op = INVAR_OP_RMSNORM_FWD;
    norm_shape shape = shape_of(&a->x, a->eps);
    bool whole = invar_aligned({&a->y, &a->x, &a->weight}) && shape.n % INVAR_RUN == 0;

    INVAR_TRY(check_length(op, &shape));
    INVAR_TRY(check_rotation(op, &shape, &a->rotation));
    if (shape.rows == 0)
        return INVAR_OK;
    if (has_rotation(&a->rotation) && !(whole && rotates_inside(&shape, &a->rotation)))
        return normalize_then_rotate(dev, a, workspace);
    return invar_by_storage(a->x.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        if (whole && shape.n <= SHORT_MOST)
            return launch_short_forward<T>(dev, a, &shape);
        forward_rows<T> rows = {invar_view_of<T>(&a->y), invar_view_of<T>(&a->x),
                                invar_any_float_rows_of(&a->weight), shape, FORWARD_SLOTS};
        int warps = FORWARD_WARPS;
        auto room = [&] {
            return forward_head_bytes(shape.n) + warps * rows.slots * shape.n * (int64_t)sizeof(T);
        };
        for (; room() > SHARED_MOST && warps > 2; warps /= 2)
            if (rows.slots == FORWARD_SLOTS && warps == FORWARD_WARPS / 2)
                rows.slots--;
        int64_t bytes = room();
        if (!whole || bytes > SHARED_MOST) {
            dim3 grid((unsigned)invar_ceil_div(shape.rows, 4));
            return invar_launch(dev, op, plain_forward<T>, grid, dim3(128), 0)(rows.y, rows.x,
                                                                               rows.weight, shape);
        }
        int64_t blocks = invar_ceil_div(shape.rows, warps);
        int64_t most = invar_cuda_of(dev)->multiprocessors * (bytes <= SHARED_SHARE ? 2 : 1);
        return invar_launch_early(dev, op, stream_forward<T>,
                                  dim3((unsigned)(blocks < most ? blocks : most)),
                                  dim3((unsigned)(32 * warps)), (size_t)bytes)(rows);
    });
}

/* Calls f(Pieces): the number of pieces, WIDTH columns each, of a row that a thread sums. */
template <typename F> static invar_status by_pieces(int64_t n, F f)
{
    if (n <= 4 * WIDTH * COLUMN_THREADS)
        return f(std::integral_constant<int, 4>{});
    if (n <= 8 * WIDTH * COLUMN_THREADS)
        return f(std::integral_constant<int, 8>{});
    return f(std::integral_constant<int, 16>{});
}

#define MOST_COLUMNS (16 * WIDTH * COLUMN_THREADS)

/*
 * Returns the slots that fit into shared memory; 0 if there are fewer than 4, which are not worth
 * it.
 */
template <typename T> static int count_slots(int64_t n)
{
    int64_t each = slot_bytes<T>(n), head = backward_head_bytes(n);
    int64_t slots = (SHARED_SHARE - head) / each;

    if (slots < 6)
        slots = (SHARED_MOST - head) / each;
    if (slots >= ROW_WARPS)
        return slots < MOST_SLOTS ? ROW_WARPS : MOST_SLOTS; // multiples of ROW_WARPS
    return slots < 4 ? 0 : (int)slots;
}

static bool sums_weight(const invar_rmsnorm_bwd_args *a)
{
    return invar_tensor_present(&a->dweight) || invar_tensor_present(&a->block_sums);
}

/* Returns the slots of the kernel of long rows; 0 if it does not apply. */
static int long_slots(const invar_rmsnorm_bwd_args *a, bool whole)
{
    int64_t n = a->x.shape[2];

    if (!whole || !sums_weight(a) || n <= SHORT_MOST || n > MOST_COLUMNS)
        return 0;
    return a->x.dtype == INVAR_DTYPE_F32 ? count_slots<float>(n) : count_slots<__nv_bfloat16>(n);
}

/* Returns the bytes of scratch for sums of token blocks; block_sums are the caller's. */
static size_t sums_bytes(const invar_rmsnorm_bwd_args *a)
{
    int64_t blocks = invar_token_blocks_max(&a->units, a->x.shape[0]);

    if (!invar_tensor_present(&a->dweight))
        return 0;
    return ((size_t)(blocks * a->x.shape[2]) * sizeof(float) + 255) / 256 * 256;
}

static size_t rstd_bytes(const invar_rmsnorm_bwd_args *a)
{
    return ((size_t)(a->x.shape[0] * a->x.shape[1]) * sizeof(float) + 255) / 256 * 256;
}

static size_t values_bytes(const invar_rmsnorm_bwd_args *a)
{
    size_t values = (size_t)(a->x.shape[0] * a->x.shape[1] * a->x.shape[2]);

    return (values * (size_t)invar_dtype_bits(a->x.dtype) / 8 + 255) / 256 * 256;
}

/*
 * Returns the bytes of the sums of token blocks and of rstd; tensors between ops come after them.
 */
static size_t own_bytes(const invar_rmsnorm_bwd_args *a)
{
    return sums_weight(a) ? sums_bytes(a) + rstd_bytes(a) : 0;
}

size_t invar_cuda_rmsnorm_bwd_workspace(const invar_device *dev, const invar_rmsnorm_bwd_args *a)
{
    (void)dev;
    return own_bytes(a) + (has_rotation(&a->rotation) ? values_bytes(a) : 0) +
           (invar_tensor_present(&a->residual) ? values_bytes(a) : 0);
}

/* Returns the rows that the sums of token blocks go to. */
static invar_view<float> sums_of(const invar_rmsnorm_bwd_args *a, void *workspace)
{
    if (invar_tensor_present(&a->block_sums))
        return invar_view_of<float>(&a->block_sums);
    return invar_block_rows(workspace, invar_token_blocks_max(&a->units, a->x.shape[0]),
                            a->x.shape[2]);
}

/* Sets rows to +0, for rows that no token block writes. */
static invar_status clear_rows(const invar_device *dev, const invar_tensor *t)
{
    size_t row = (size_t)t->shape[1] * sizeof(float), rows = (size_t)t->shape[0];

    if (row == 0 || rows == 0)
        return INVAR_OK;
    INVAR_CUDA_TRY(invar_op_name(INVAR_OP_RMSNORM_BWD),
                   cudaMemset2DAsync(t->data, (size_t)t->row_stride * sizeof(float), 0, row, rows,
                                     invar_cuda_of(dev)->stream));
    return INVAR_OK;
}

static head_shards shards_of(const invar_rmsnorm_bwd_args *a)
{
    return {a->head_shards > 1 ? a->head_shards : 1, a->head_atom};
}

static short_shards short_shards_of(head_shards shards, int64_t heads)
{
    short_shards out = {shards.count, 0, {}};

    for (int32_t v = 1; v <= INVAR_LINEAR_MAX_SHARDS; v++) {
        int32_t end = v < shards.count ? v : shards.count;
        out.start[v] = (int32_t)invar_shard_start(heads, shards.atom, shards.count, end);
        if (out.start[v] - out.start[v - 1] > out.max_heads)
            out.max_heads = out.start[v] - out.start[v - 1];
    }
    return out;
}

template <typename T>
static invar_status launch_short(const invar_device *dev, const invar_rmsnorm_bwd_args *a,
                                 const norm_shape *shape, const invar_token_blocks *blocks,
                                 const invar_view<float> *sums)
{
    invar_op op = INVAR_OP_RMSNORM_BWD;
    invar_view<T> dx = invar_view_of<T>(&a->dx), dy = invar_view_of<T>(&a->dy),
                  x = invar_view_of<T>(&a->x);
    short_sums<T> rows = {dx,
                          dy,
                          x,
                          invar_view_if_present<T>(&a->residual),
                          invar_joined({&a->dy, &a->x}),
                          invar_any_float_rows_of(&a->weight),
                          *shape,
                          short_shards_of(shards_of(a), shape->heads),
                          rotation_of(dev, op, shape, &a->rotation),
                          *blocks,
                          *sums};
    norm_shape joined = join_heads<T>(shape, invar_joined({&a->dx, &a->dy, &a->x}), {&dx, &dy, &x});

    return by_short_group(shape->n, [&](auto group) {
        constexpr int lanes = decltype(group)::value;
        using memory = short_memory<T, lanes>;
        if (sums_weight(a))
            return by_rotation<lanes>(&a->rotation, [&](auto turn) {
                dim3 grid((unsigned)invar_token_blocks_max(&a->units, a->x.shape[0]));
                return invar_launch_early(dev, op, short_backward_sums<T, lanes, turn.value>, grid,
                                          dim3(memory::threads), sizeof(memory))(rows);
            });
        return by_weight<T>(&a->weight, [&](auto *weight) {
            using W = std::remove_const_t<std::remove_pointer_t<decltype(weight)>>;
            dim3 grid((unsigned)invar_ceil_div(shape->rows, SHORT_THREADS / lanes));
            return invar_launch_early(dev, op, short_backward<T, W, lanes>, grid,
                                      dim3(SHORT_THREADS), 0)(dx, dy, x, weight, joined);
        });
    });
}

template <typename T>
static invar_status launch_stream(const invar_device *dev, const invar_rmsnorm_bwd_args *a,
                                  const backward_rows<T> *rows)
{
    invar_op op = INVAR_OP_RMSNORM_BWD;
    int64_t n = rows->shape.n;
    size_t bytes = (size_t)(backward_head_bytes(n) + rows->slots * slot_bytes<T>(n));
    dim3 grid((unsigned)invar_token_blocks_max(&a->units, a->x.shape[0]));

    return by_pieces(n, [&](auto pieces) {
        return invar_launch_early(dev, op, stream_backward<T, pieces.value>, grid,
                                  dim3(32 * BACKWARD_WARPS), bytes)(*rows);
    });
}

template <typename T>
static invar_status launch_plain(const invar_device *dev, const invar_rmsnorm_bwd_args *a,
                                 const backward_rows<T> *rows, float *rstd)
{
    invar_op op = INVAR_OP_RMSNORM_BWD;
    bool aligned =
        invar_aligned({&a->dx, &a->dy, &a->x, &a->weight}) && rows->shape.n % INVAR_RUN == 0;
    dim3 grid((unsigned)invar_ceil_div(rows->shape.rows, 4));
    dim3 blocks((unsigned)invar_token_blocks_max(&a->units, a->x.shape[0]),
                invar_grid_rows(invar_ceil_div(rows->shape.n, PLAIN_COLUMNS)));

    INVAR_TRY(invar_launch(dev, op, plain_backward<T>, grid, dim3(128), 0)(
        rows->dx, rows->dy, rows->x, rows->weight, rstd, rows->shape, aligned));
    if (!rstd)
        return INVAR_OK;
    return invar_launch(dev, op, plain_weight_sums<T>, blocks, dim3(PLAIN_COLUMNS), 0)(
        rows->sums, rows->dy, rows->x, rstd, rows->blocks, rows->shape, shards_of(a));
}

/* Returns a tensor with all heads of a token as one row. */
static invar_tensor as_rows(const invar_tensor *t)
{
    invar_tensor rows = invar_tensor_2d(t->data, t->dtype, t->shape[0], t->shape[1] * t->shape[2]);

    rows.row_stride = t->row_stride;
    return rows;
}

/* Runs rope.bwd, the norm and add one after the other. */
static invar_status backward_by_ops(const invar_device *dev, const invar_rmsnorm_bwd_args *a,
                                    void *workspace)
{
    const invar_rope_args *r = &a->rotation;
    bool rotated = has_rotation(r), added = invar_tensor_present(&a->residual);
    char *memory = (char *)workspace + own_bytes(a);
    invar_rmsnorm_bwd_args norm = *a;
    invar_tensor between =
        invar_tensor_3d(memory, a->x.dtype, a->x.shape[0], a->x.shape[1], a->x.shape[2]);

    norm.rotation = {};
    norm.residual = {};
    if (rotated) {
        invar_rope_bwd_args rope = {between, a->dy, r->positions, r->cosine, r->sine};
        INVAR_TRY(invar_cuda_rope_bwd(dev, &rope, nullptr));
        norm.dy = between;
        between.data = memory + values_bytes(a);
    }
    if (added)
        norm.dx = between;
    INVAR_TRY(invar_cuda_rmsnorm_bwd(dev, &norm, workspace));
    if (!added)
        return INVAR_OK;
    invar_add_args add = {as_rows(&a->dx), as_rows(&a->residual), as_rows(&between)};
    return invar_cuda_add(dev, &add, nullptr);
}

invar_status invar_cuda_rmsnorm_bwd(const invar_device *dev, const invar_rmsnorm_bwd_args *a,
                                    void *workspace)
{
    invar_op op = INVAR_OP_RMSNORM_BWD;
    norm_shape shape = shape_of(&a->x, a->eps);
    bool whole = invar_aligned({&a->dx, &a->dy, &a->x, &a->weight, &a->residual}) &&
                 shape.n % INVAR_RUN == 0;
    bool weight = sums_weight(a);
    invar_view<float> sums = sums_of(a, workspace);
    invar_token_blocks blocks = invar_blocks_of_units(dev, op, &a->units, a->x.shape[0]);
    bool sharded = weight && a->head_shards > 1;
    bool narrow = whole && shape.heads <= SHORT_HEADS &&
                  shape.n <= (sharded ? SHORT_SHARDED_GROUP * SHORT_VALUES : SHORT_MOST);
    int slots = sharded ? 0 : long_slots(a, whole);
    bool rotated = has_rotation(&a->rotation), added = invar_tensor_present(&a->residual);
    bool inside =
        weight && (rotated ? narrow && rotates_inside(&shape, &a->rotation) : narrow || slots > 0);

    INVAR_TRY(check_length(op, &shape));
    INVAR_TRY(check_rotation(op, &shape, &a->rotation));
    if (shape.rows > 0 && (rotated || added) && !inside)
        return backward_by_ops(dev, a, workspace);
    if (invar_tensor_present(&a->block_sums))
        INVAR_TRY(clear_rows(dev, &a->block_sums));
    if (shape.rows == 0)
        return INVAR_OK;
    INVAR_TRY(invar_by_storage(a->x.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        if (narrow)
            return launch_short<T>(dev, a, &shape, &blocks, &sums);
        backward_rows<T> rows = {invar_view_of<T>(&a->dx),
                                 invar_view_of<T>(&a->dy),
                                 invar_view_of<T>(&a->x),
                                 invar_view_if_present<T>(&a->residual),
                                 invar_any_float_rows_of(&a->weight),
                                 shape,
                                 blocks,
                                 sums,
                                 slots,
                                 slots < ROW_WARPS ? slots : ROW_WARPS};
        if (slots > 0)
            return launch_stream(dev, a, &rows);
        return launch_plain(dev, a, &rows,
                            weight ? (float *)((char *)workspace + sums_bytes(a)) : nullptr);
    }));
    if (!invar_tensor_present(&a->dweight))
        return INVAR_OK;
    return invar_token_blocks_add(dev, op, (float *)a->dweight.data, &sums, &blocks);
}
