/*
 * linear.cu - linear layers, y and dx, dense and grouped by expert: chooses and runs the kernels.
 *
 * Numerics contract (rev 1): docs/arithmetic.md, section 3, as in cpu/linear.c. The arguments
 * become problems of gemm.h and go to the first kernel that supports them. If no fast kernel
 * supports a problem as it is, but one would with rewritten operands, they are rewritten into the
 * workspace: mxfp8 and int4 as the bf16 values that they stand for, fp8 weights with k outermost
 * transposed. Neither changes a value, so neither changes a bit. If no kernel computes all shards
 * of a chain together, shards are products of their own, added by the tree afterwards. Several
 * outputs of one x, and the activation of two of them, are one launch if a kernel supports it.
 * linear_dw.cu has dw.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <type_traits>

#include "kernels-deterministic/cuda/sm90/gemm/epilogue.cuh"
#include "kernels-deterministic/cuda/sm90/gemm/linear.cuh"
#include "kernels-deterministic/math/shards.h"

/* ---- rewritten operands ---------------------------------------------------------------------- */

/*
 * Arguments of transpose_fp8: blocks of 128 x 128 bytes, from (groups * depth, cols) to (groups *
 * cols, depth), and their scales. The last blocks of a group may be short. Both matrices, their
 * strides and cols are aligned to 16 bytes.
 */
struct fp8_transposition {
    uint8_t *to;
    float *to_scale;
    const uint8_t *from;
    const float *from_scale;
    int64_t stride, to_stride;
    int64_t depth, cols;
};

/* Transposes 4 x 4 bytes: byte j of word i becomes byte i of word j. */
static __device__ __forceinline__ void transpose_bytes(uint32_t (&w)[4])
{
    uint32_t low01 = __byte_perm(w[0], w[1], 0x5140), low23 = __byte_perm(w[2], w[3], 0x5140);
    uint32_t high01 = __byte_perm(w[0], w[1], 0x7362), high23 = __byte_perm(w[2], w[3], 0x7362);

    w[0] = __byte_perm(low01, low23, 0x5410);
    w[1] = __byte_perm(low01, low23, 0x7632);
    w[2] = __byte_perm(high01, high23, 0x5410);
    w[3] = __byte_perm(high01, high23, 0x7632);
}

static __global__ void transpose_fp8(fp8_transposition t)
{
    constexpr int BLOCK = INVAR_FP8_BLOCK, WORDS = BLOCK / 4;
    __shared__ uint32_t tile[BLOCK][WORDS + 1];
    int64_t across = invar_ceil_div(t.cols, BLOCK), down = invar_ceil_div(t.depth, BLOCK);
    int64_t band = (int64_t)blockIdx.x / across, group = band / down;
    int64_t row = band % down * BLOCK, col = (int64_t)blockIdx.x % across * BLOCK;
    const uint8_t *from = t.from + (group * t.depth + row) * t.stride + col;
    uint8_t *to = t.to + (group * t.cols + col) * t.to_stride + row;

    for (int i = (int)threadIdx.x; i < BLOCK * WORDS / 4; i += THREADS) {
        int r = i / (WORDS / 4), c = i % (WORDS / 4) * 4;
        bool there = row + r < t.depth && col + 4 * c < t.cols;
        uint4 four = there ? *(const uint4 *)(from + r * t.stride + 4 * c) : make_uint4(0, 0, 0, 0);
        tile[r][c] = four.x;
        tile[r][c + 1] = four.y;
        tile[r][c + 2] = four.z;
        tile[r][c + 3] = four.w;
    }
    if (threadIdx.x == 0)
        t.to_scale[(group * across + col / BLOCK) * down + row / BLOCK] =
            t.from_scale[band * across + col / BLOCK];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < BLOCK * WORDS / 4; i += THREADS) {
        int r = i % WORDS * 4, c = i / WORDS;
        uint32_t square[4] = {tile[r][c], tile[r + 1][c], tile[r + 2][c], tile[r + 3][c]};
        if (row + r >= t.to_stride || col + 4 * c >= t.cols)
            continue;
        transpose_bytes(square);
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(uint32_t *)(to + (4 * c + j) * t.to_stride + r) = square[j];
    }
}

/*
 * Returns the extent of index 0 of operand b of a part, all groups together. cols_of_b returns that
 * of its contiguous index.
 */
static int64_t rows_of_b(const invar_gemm *p, int part)
{
    return p->groups * p->group_rows[part];
}

static int64_t cols_of_b(const invar_gemm *p, int part)
{
    return p->b[part].k_outer ? p->cols : p->k[part];
}

static invar_status transpose_weights(const invar_device *dev, const invar_gemm *p, int part,
                                      const invar_gemm_operand *to)
{
    const invar_gemm_operand *from = &p->b[part];
    fp8_transposition t = {(uint8_t *)to->data,
                           (float *)to->scale,
                           (const uint8_t *)from->data,
                           (const float *)from->scale,
                           from->stride,
                           to->stride,
                           p->k[part],
                           p->cols};
    int64_t blocks = p->groups * invar_ceil_div(p->k[part], INVAR_FP8_BLOCK) *
                     invar_ceil_div(p->cols, INVAR_FP8_BLOCK);

    return invar_launch(dev, p->op, transpose_fp8, dim3((unsigned)blocks), dim3(THREADS), 0)(t);
}

static invar_status dequantize_operand(const invar_device *dev, const invar_gemm_operand *from,
                                       const invar_gemm_operand *to, int64_t rows, int64_t cols)
{
    invar_dequantize_args args = {};

    args.x = invar_tensor_2d((void *)to->data, INVAR_DTYPE_BF16, rows, cols);
    args.q = invar_tensor_quantized((void *)from->data, (void *)from->scale, from->dtype,
                                    from->scale_rows, rows, cols);
    args.q.row_stride = from->stride;
    return invar_cuda_dequantize(dev, &args, NULL); // dequantize needs no workspace
}

/* ---- shards ---------------------------------------------------------------------------------- */

static __device__ __forceinline__ float4 add_four(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Returns the mask of the shards that have values: bit v is shard v. */
static uint32_t shards_there(const invar_gemm *p)
{
    uint32_t there = 0;

    for (int32_t v = 0; v < p->shards; v++)
        for (int part = 0; part < p->parts; part++)
            if (invar_shard_start(p->k[part], p->atom[part], p->shards, v) <
                invar_shard_start(p->k[part], p->atom[part], p->shards, v + 1))
                there |= 1u << v;
    return there;
}

/* Loads four elements of a row that has `left` elements left; memory after its end is undefined. */
static __device__ __forceinline__ float4 load_four(const float4 *at, int64_t left)
{
    const float *x = (const float *)at;

    if (left >= 4)
        return *at;
    return make_float4(x[0], left > 1 ? x[1] : 0.0f, left > 2 ? x[2] : 0.0f, 0.0f);
}

/*
 * out = the shards added by the tree, then bias and residual. A shard has `fours` times 4 elements;
 * a shard without values (`there`) is +0, and its memory is not read.
 */
template <typename T>
static __global__ void fold_shards(invar_gemm p, const float4 *shards, int64_t fours,
                                   uint32_t there)
{
    constexpr int MOST = INVAR_LINEAR_MAX_SHARDS;
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, across = fours / p.rows;
    int64_t row = at / across, col = at % across * 4;

    if (at >= fours)
        return;
    float4 sum[MOST]; // missing shards are +0: adding them changes no bit
#pragma unroll
    for (int v = 0; v < MOST; v++)
        sum[v] = there >> v & 1 ? load_four(&shards[v * fours + at], p.cols - col)
                                : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int apart = 1; apart < MOST; apart *= 2)
#pragma unroll
        for (int v = 0; v < MOST; v += 2 * apart)
            sum[v] = add_four(sum[v], sum[v + apart]);
    float x[4] = {sum[0].x, sum[0].y, sum[0].z, sum[0].w};
    T *out = (T *)p.out + row * p.out_stride;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (col + i >= p.cols)
            return;
        x[i] = x[i] + 0.0f;
        if (p.bias)
            x[i] = x[i] + (p.bias_dtype == INVAR_DTYPE_F32
                               ? invar_load((const float *)p.bias + col + i)
                               : invar_load((const __nv_bfloat16 *)p.bias + col + i));
        if (p.residual)
            x[i] = invar_with_residual((const T *)p.residual + row * p.residual_stride + col + i,
                                       x[i]);
        invar_store(out + col + i, x[i]);
    }
}

/* Offsets of the shards in a line, and the end of the last one. */
struct shard_starts {
    int64_t at[INVAR_LINEAR_MAX_SHARDS + 1];
};

/* Copies (lines, line) so that the values of each shard, of all lines, are consecutive. */
static __global__ void cut_scales(float *to, const float *from, int64_t lines, int64_t line,
                                  shard_starts start, int shards)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, col = at % line;
    int64_t first = 0, end = line;

    if (at >= lines * line)
        return;
#pragma unroll
    for (int v = 0; v < INVAR_LINEAR_MAX_SHARDS; v++)
        if (v < shards && start.at[v] <= col && col < start.at[v + 1]) {
            first = start.at[v];
            end = start.at[v + 1];
        }
    to[first * lines + at / line * (end - first) + col - first] = from[at];
}

/* ---- choice of the kernel -------------------------------------------------------------------- */

typedef invar_status (*run_product)(const invar_device *dev, const invar_gemm *p);

/*
 * A product as its kernel takes it, with rewritten operands and checked row offsets in the
 * workspace. If `shards` is not NULL, shards are products of their own, each for the kernel that
 * supports it: they go to `shards`, `shard` floats apart, and a_scales and b_scales are the scales
 * of fp8 operands, shard by shard.
 */
struct plan {
    run_product run;
    invar_gemm product;
    float *shards;
    int64_t shard;
    float *a_scales[INVAR_LINEAR_MAX_PARTS], *b_scales[INVAR_LINEAR_MAX_PARTS];
    char *workspace;
    size_t bytes;
};

/* Rows of a group below which rewriting its weights costs more than a fast kernel saves. */
#define REWRITE_ROWS 16

static void *plan_alloc(plan *plan, int64_t bytes)
{
    void *at = plan->workspace + plan->bytes;

    plan->bytes += (size_t)invar_ceil_div(bytes, 256) * 256;
    return at;
}

static run_product fast_kernel(const invar_device *dev, const invar_gemm *p)
{
    if (invar_skinny_takes(dev, p))
        return invar_skinny;
    if (invar_gemm_bf16_supports(dev, p))
        return invar_gemm_bf16;
    if (invar_gemm_fp8_takes(dev, p))
        return invar_gemm_fp8;
    return NULL;
}

/*
 * Returns the lines of scales of an fp8 operand with k contiguous, (scale_lines, ceil(k / 128)),
 * for `groups` of `rows` rows.
 */
static int64_t scale_lines(const invar_gemm_operand *x, int64_t groups, int64_t rows)
{
    return groups * invar_ceil_div(rows, x->scale_rows);
}

/*
 * Returns the operand from `first` of its k on. Its scales, if any, are in `scales`, shard by
 * shard.
 */
static invar_gemm_operand cut_operand(invar_gemm_operand x, int64_t first, int64_t groups,
                                      int64_t rows, const float *scales)
{
    int64_t bytes = first * (x.k_outer ? x.stride : 1) * invar_dtype_bits(x.dtype) / 8;

    x.data = (const char *)x.data + bytes;
    if (x.dtype == INVAR_DTYPE_FP8)
        x.scale = scales + first / INVAR_FP8_BLOCK * scale_lines(&x, groups, rows);
    return x;
}

/* Returns shard v as a product into f32, of the parts that have values in it. */
static invar_gemm shard_of(const plan *plan, int32_t v)
{
    const invar_gemm *whole = &plan->product;
    invar_gemm p = *whole;

    p.parts = 0;
    for (int part = 0; part < whole->parts; part++) {
        int64_t k = whole->k[part], atom = whole->atom[part];
        int64_t first = invar_shard_start(k, atom, whole->shards, v);
        int64_t end = invar_shard_start(k, atom, whole->shards, v + 1);
        if (first == end)
            continue;
        p.k[p.parts] = end - first;
        p.group_rows[p.parts] = whole->group_rows[part];
        p.a[p.parts] = cut_operand(whole->a[part], first, 1, p.rows, plan->a_scales[part]);
        p.b[p.parts] = cut_operand(whole->b[part], first, p.groups, whole->group_rows[part],
                                   plan->b_scales[part]);
        p.parts++;
    }
    p.shards = 1;
    p.bias = p.residual = NULL;
    p.out = plan->shards + v * plan->shard;
    p.out_dtype = INVAR_DTYPE_F32;
    p.out_stride = plan->shard / p.rows;
    return p;
}

/*
 * Reserves memory for the shards of a product. Returns false if they cannot be cut: operands must
 * be bf16, or fp8 with k contiguous.
 */
static bool alloc_shards(plan *plan)
{
    invar_gemm *p = &plan->product;

    for (int part = 0; part < p->parts; part++) {
        const invar_gemm_operand *a = &p->a[part], *b = &p->b[part];
        bool fp8 = a->dtype == INVAR_DTYPE_FP8 && b->dtype == INVAR_DTYPE_FP8 && !b->k_outer;
        int64_t line = invar_ceil_div(p->k[part], INVAR_FP8_BLOCK) * (int64_t)sizeof(float);
        if (fp8) {
            plan->a_scales[part] = (float *)plan_alloc(plan, scale_lines(a, 1, p->rows) * line);
            plan->b_scales[part] =
                (float *)plan_alloc(plan, scale_lines(b, p->groups, p->group_rows[part]) * line);
        } else if (a->dtype != INVAR_DTYPE_BF16 || b->dtype != INVAR_DTYPE_BF16) {
            return false;
        }
    }
    plan->shard = p->rows * invar_ceil_div(p->cols, 4) * 4;
    plan->shards = (float *)plan_alloc(plan, p->shards * plan->shard * (int64_t)sizeof(float));
    return true;
}

/*
 * Sets `run` to a fast kernel that supports the product, or its first shard, if there is one. A
 * product of few rows that no kernel supports as it is goes shard by shard to kernels that read
 * weights faster than tiles do.
 */
static void find_fast(const invar_device *dev, plan *whole)
{
    plan cut = *whole;

    if (whole->product.shards == 1) {
        whole->run = fast_kernel(dev, &whole->product);
        return;
    }
    if (invar_gemm_bf16_supports_split(dev, &whole->product)) {
        whole->run = invar_gemm_bf16_split;
        return;
    }
    if (alloc_shards(&cut)) {
        invar_gemm first = shard_of(&cut, 0); // the first shard has the first atom
        cut.run = first.parts > 0 ? fast_kernel(dev, &first) : NULL;
    }
    if (cut.run != invar_skinny && invar_gemm_bf16_supports(dev, &whole->product))
        whole->run = invar_gemm_bf16;
    else if (cut.run)
        *whole = cut;
}

/* Replaces an operand that stands for bf16 values by bf16 memory for them. */
static void rewrite_values(plan *plan, invar_gemm_operand *x, int64_t rows, int64_t cols)
{
    if (x->dtype != INVAR_DTYPE_MXFP8 && x->dtype != INVAR_DTYPE_INT4)
        return;
    x->data = plan_alloc(plan, rows * cols * (int64_t)sizeof(uint16_t));
    x->scale = NULL;
    x->dtype = INVAR_DTYPE_BF16;
    x->stride = cols;
}

/* Replaces fp8 weights with k outermost by memory for weights with k contiguous. */
static void rewrite_layout(plan *plan, int part)
{
    invar_gemm *p = &plan->product;
    invar_gemm_operand *b = &p->b[part];
    int64_t stride = invar_ceil_div(p->k[part], 16) * 16;
    int64_t line = invar_ceil_div(p->k[part], INVAR_FP8_BLOCK) * (int64_t)sizeof(float);

    if (b->dtype != INVAR_DTYPE_FP8 || !b->k_outer ||
        ((uintptr_t)b->data | b->stride | p->cols) % 16 != 0)
        return;
    b->data = plan_alloc(plan, p->groups * p->cols * stride);
    b->scale = plan_alloc(plan, scale_lines(b, p->groups, p->cols) * line);
    b->k_outer = false;
    b->stride = stride;
    p->group_rows[part] = p->cols;
}

/*
 * Returns the plan of a product. It depends only on the arguments, never on the contents of memory,
 * and on nothing of `workspace` but its alignment: the size can be computed without memory.
 */
static plan make_plan(const invar_device *dev, const invar_gemm *p, void *workspace)
{
    plan plain = {}, fast, few, rewritten;

    plain.product = *p;
    plain.workspace = (char *)workspace;
    if (p->start)
        plain.product.start =
            (const int64_t *)plan_alloc(&plain, (p->groups + 1) * (int64_t)sizeof *p->start);
    fast = plain;
    find_fast(dev, &fast);
    if (fast.run)
        return fast;
    few = plain;
    for (int part = 0; part < p->parts; part++)
        rewrite_values(&few, &few.product.a[part], p->rows, p->k[part]);
    if (invar_skinny_takes(dev, &few.product)) {
        few.run = invar_skinny;
        return few;
    }
    if (dev->numerics == INVAR_NUMERICS_SM90 && p->rows >= REWRITE_ROWS * p->groups) {
        rewritten = plain;
        for (int part = 0; part < p->parts; part++) {
            rewrite_values(&rewritten, &rewritten.product.a[part], p->rows, p->k[part]);
            rewrite_values(&rewritten, &rewritten.product.b[part], rows_of_b(p, part),
                           cols_of_b(p, part));
            rewrite_layout(&rewritten, part);
        }
        find_fast(dev, &rewritten);
        if (rewritten.run)
            return rewritten;
    }
    plain.run = invar_gemm_generic_product;
    return plain;
}

static bool is_empty(const invar_gemm *p)
{
    return p->rows == 0 || p->cols == 0;
}

static size_t product_workspace(const invar_device *dev, const invar_gemm *p)
{
    // an aligned address that is not accessed
    return is_empty(p) ? 0 : make_plan(dev, p, (void *)256).bytes;
}

static invar_status rewrite_part(const invar_device *dev, const invar_gemm *p, const plan *plan,
                                 int part)
{
    const invar_gemm_operand *a = &plan->product.a[part], *b = &plan->product.b[part];

    if (a->data != p->a[part].data)
        INVAR_TRY(dequantize_operand(dev, &p->a[part], a, p->rows, p->k[part]));
    if (b->data == p->b[part].data)
        return INVAR_OK;
    if (b->dtype == INVAR_DTYPE_FP8)
        return transpose_weights(dev, p, part, b);
    return dequantize_operand(dev, &p->b[part], b, rows_of_b(p, part), cols_of_b(p, part));
}

static invar_status add_shards(const invar_device *dev, const invar_gemm *p, const plan *plan)
{
    int64_t fours = plan->shard / 4;
    uint32_t there = shards_there(p);

    return invar_by_storage(p->out_dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return invar_launch(dev, p->op, fold_shards<T>,
                            dim3((unsigned)invar_ceil_div(fours, THREADS)), dim3(THREADS),
                            0)(*p, (const float4 *)plan->shards, fours, there);
    });
}

/* Copies the scales of an operand, if it has any, shard by shard. */
static invar_status cut_scales_of(const invar_device *dev, const invar_gemm *p, float *to,
                                  const invar_gemm_operand *x, int64_t groups, int64_t rows,
                                  int part)
{
    int64_t lines, line = invar_ceil_div(p->k[part], INVAR_FP8_BLOCK);
    shard_starts start = {};

    if (x->dtype != INVAR_DTYPE_FP8 || line == 0)
        return INVAR_OK;
    for (int32_t v = 0; v <= p->shards; v++)
        start.at[v] = invar_ceil_div(invar_shard_start(p->k[part], p->atom[part], p->shards, v),
                                     INVAR_FP8_BLOCK);
    lines = scale_lines(x, groups, rows);
    return invar_launch(dev, p->op, cut_scales,
                        dim3((unsigned)invar_ceil_div(lines * line, THREADS)), dim3(THREADS),
                        0)(to, (const float *)x->scale, lines, line, start, p->shards);
}

static invar_status multiply_shards(const invar_device *dev, const invar_gemm *p, const plan *plan)
{
    for (int part = 0; part < p->parts; part++) {
        const invar_gemm_operand *a = &plan->product.a[part], *b = &plan->product.b[part];
        INVAR_TRY(cut_scales_of(dev, p, plan->a_scales[part], a, 1, p->rows, part));
        INVAR_TRY(cut_scales_of(dev, p, plan->b_scales[part], b, p->groups,
                                plan->product.group_rows[part], part));
    }
    for (int32_t v = 0; v < p->shards; v++) {
        invar_gemm shard = shard_of(plan, v);
        if (shard.parts == 0)
            continue;                                // empty: fold_shards takes +0
        run_product fast = fast_kernel(dev, &shard); // shards may have different lengths
        INVAR_TRY((fast ? fast : invar_gemm_generic_product)(dev, &shard));
    }
    return add_shards(dev, p, plan);
}

static invar_status run_gemm(const invar_device *dev, const invar_gemm *p, void *workspace)
{
    if (is_empty(p))
        return INVAR_OK;
    plan plan = make_plan(dev, p, workspace);
    if (p->start)
        INVAR_TRY(invar_launch(dev, p->op, copy_segments, dim3(1), dim3(THREADS),
                               0)((int64_t *)plan.product.start, p->start, p->groups, p->rows,
                                  p->op, invar_cuda_of(dev)->fault, true));
    for (int part = 0; part < p->parts; part++)
        INVAR_TRY(rewrite_part(dev, p, &plan, part));
    return plan.shards ? multiply_shards(dev, p, &plan) : plan.run(dev, &plan.product);
}

/* ---- y --------------------------------------------------------------------------------------- */

static invar_gemm product_into(invar_op op, const invar_tensor *out, int32_t shards)
{
    invar_gemm p = {};

    p.op = op;
    p.rows = out->shape[0];
    p.cols = out->shape[1];
    p.out = out->data;
    p.out_dtype = out->dtype;
    p.out_stride = out->row_stride;
    p.shards = shards;
    p.groups = 1;
    return p;
}

static void by_expert(invar_gemm *p, const invar_row_offsets *experts)
{
    p->start = experts->offsets;
    p->groups = experts->count;
}

static void set_forward(invar_gemm *p, const invar_tensor *x, const invar_tensor *w, int64_t atom)
{
    p->a[0] = gemm_operand_of(x, false);
    p->b[0] = gemm_operand_of(w, false);
    p->k[0] = x->shape[1];
    p->atom[0] = atom;
    p->group_rows[0] = p->cols;
    p->parts = 1;
}

/*
 * Returns the product of an output. An output that is not stored has the type and shape of `act`.
 */
static invar_gemm output_of(const invar_linear_fwd_args *a, const invar_linear_output *output)
{
    bool stored = invar_tensor_present(&output->y);
    invar_gemm p = product_into(INVAR_OP_LINEAR_FWD, stored ? &output->y : &a->act, a->k_shards);

    set_forward(&p, &a->x, &output->w, a->k_atom);
    if (!stored)
        p.out = NULL;
    if (invar_tensor_present(&output->bias)) {
        p.bias = output->bias.data;
        p.bias_dtype = output->bias.dtype;
    }
    return p;
}

static invar_gemm_set forward_set(const invar_linear_fwd_args *a)
{
    invar_linear_output first = {a->y, a->w, a->bias};
    invar_gemm_set set = {};

    set.count = 1 + a->n_more;
    set.product[0] = output_of(a, &first);
    for (int32_t i = 0; i < a->n_more; i++)
        set.product[1 + i] = output_of(a, &a->more[i]);
    if (invar_tensor_present(&a->residual)) {
        set.product[0].residual = a->residual.data;
        set.product[0].residual_stride = a->residual.row_stride;
    }
    if (invar_tensor_present(&a->act)) {
        set.act = a->act.data;
        set.act_stride = a->act.row_stride;
    }
    return set;
}

typedef invar_status (*run_set)(const invar_device *dev, const invar_gemm_set *set);

/* Returns the kernel that computes all of a set in one launch; NULL if there is none. */
static run_set set_kernel(const invar_device *dev, const invar_gemm_set *set)
{
    if (set->count > 1 && invar_skinny_takes_set(dev, set))
        return invar_skinny_set;
    if (set->act && invar_gemm_bf16_supports_gated(dev, set))
        return invar_gemm_bf16_gated;
    if (set->count > 1 && invar_gemm_bf16_supports_set(dev, set))
        return invar_gemm_bf16_set;
    return NULL;
}

/* Returns the bytes of an output that only the activation needs; 0 if the output is stored. */
static int64_t unstored_bytes(const invar_gemm *p)
{
    int64_t bytes = p->rows * p->cols * invar_dtype_bits(p->out_dtype) / 8;

    return p->out ? 0 : invar_ceil_div(bytes, 256) * 256;
}

size_t invar_cuda_linear_fwd_workspace(const invar_device *dev, const invar_linear_fwd_args *a)
{
    invar_gemm_set set = forward_set(a);
    size_t hidden = 0, most = 0;

    if (set_kernel(dev, &set))
        return 0;
    for (int32_t i = 0; i < set.count; i++) {
        size_t own = product_workspace(dev, &set.product[i]);
        hidden += (size_t)unstored_bytes(&set.product[i]);
        most = own > most ? own : most;
    }
    return hidden + most;
}

/* Returns the output of a product as a tensor. */
static invar_tensor output_tensor(const invar_gemm *p)
{
    invar_tensor t = invar_tensor_2d(p->out, p->out_dtype, p->rows, p->cols);

    t.row_stride = p->out_stride;
    return t;
}

/*
 * Rewrites x of a set as bf16 values, into *out. Returns whether the kernels for few rows then
 * support the set, as they would each product.
 */
static bool rewrite_set(invar_gemm_set *out, const invar_device *dev, const invar_gemm_set *set,
                        char *workspace)
{
    plan plan = {};

    plan.workspace = workspace;
    *out = *set;
    rewrite_values(&plan, &out->product[0].a[0], set->product[0].rows, set->product[0].k[0]);
    for (int32_t i = 1; i < set->count; i++)
        out->product[i].a[0] = out->product[0].a[0];
    return set->count > 1 && invar_skinny_takes_set(dev, out);
}

static invar_status multiply_few(const invar_device *dev, const invar_gemm_set *set,
                                 const invar_gemm_set *few)
{
    const invar_gemm *p = &set->product[0];

    INVAR_TRY(dequantize_operand(dev, &p->a[0], &few->product[0].a[0], p->rows, p->k[0]));
    return invar_skinny_set(dev, few);
}

/*
 * Runs a set without the activation, product by product if need be, then the activation. Outputs
 * that are not stored go into the workspace.
 */
static invar_status run_separately(const invar_device *dev, invar_gemm_set *set,
                                   const invar_tensor *act, char *workspace)
{
    invar_swiglu_fwd_args swiglu = {};
    invar_gemm_set few;

    for (int32_t i = 0; i < set->count; i++) {
        invar_gemm *p = &set->product[i];
        int64_t bytes = unstored_bytes(p);
        if (p->out)
            continue;
        p->out = workspace;
        p->out_stride = p->cols;
        workspace += bytes;
    }
    set->act = NULL;
    if (run_set all = set_kernel(dev, set))
        INVAR_TRY(all(dev, set));
    else if (rewrite_set(&few, dev, set, workspace))
        INVAR_TRY(multiply_few(dev, set, &few));
    else
        for (int32_t i = 0; i < set->count; i++)
            INVAR_TRY(run_gemm(dev, &set->product[i], workspace));
    if (!invar_tensor_present(act))
        return INVAR_OK;
    swiglu.y = *act;
    swiglu.gate = output_tensor(&set->product[0]);
    swiglu.up = output_tensor(&set->product[1]);
    return invar_cuda_swiglu_fwd(dev, &swiglu, NULL); // swiglu.fwd needs no workspace
}

invar_status invar_cuda_linear_fwd(const invar_device *dev, const invar_linear_fwd_args *a,
                                   void *workspace)
{
    invar_gemm_set set = forward_set(a);
    run_set all = set_kernel(dev, &set);

    return all ? all(dev, &set) : run_separately(dev, &set, &a->act, (char *)workspace);
}

static invar_gemm product_of(const invar_moe_linear_fwd_args *a)
{
    invar_gemm p = product_into(INVAR_OP_MOE_LINEAR_FWD, &a->y, a->k_shards);

    set_forward(&p, &a->x, &a->w, a->k_atom);
    by_expert(&p, &a->experts);
    return p;
}

/* ---- dx -------------------------------------------------------------------------------------- */

static void set_parts(invar_gemm *p, const invar_linear_part *parts, const int64_t *atoms,
                      int32_t count)
{
    p->parts = count;
    for (int32_t i = 0; i < count; i++) {
        p->a[i] = gemm_operand_of(&parts[i].dy, false);
        p->b[i] = gemm_operand_of(&parts[i].w, true);
        p->k[i] = parts[i].dy.shape[1];
        p->atom[i] = atoms[i];
        p->group_rows[i] = p->k[i];
    }
}

static invar_gemm product_of(const invar_linear_dx_args *a)
{
    invar_gemm p = product_into(INVAR_OP_LINEAR_DX, &a->dx, a->k_shards);

    set_parts(&p, a->parts, a->k_atom, a->n_parts);
    return p;
}

static invar_gemm product_of(const invar_moe_linear_dx_args *a)
{
    invar_gemm p = product_into(INVAR_OP_MOE_LINEAR_DX, &a->dx, a->k_shards);

    set_parts(&p, a->parts, a->k_atom, a->n_parts);
    by_expert(&p, &a->experts);
    return p;
}

/* ---- ops of one product ---------------------------------------------------------------------- */

#define PRODUCT_OP(fn)                                                                             \
    size_t invar_cuda_##fn##_workspace(const invar_device *dev, const invar_##fn##_args *a)        \
    {                                                                                              \
        invar_gemm p = product_of(a);                                                              \
                                                                                                   \
        return product_workspace(dev, &p);                                                         \
    }                                                                                              \
    invar_status invar_cuda_##fn(const invar_device *dev, const invar_##fn##_args *a,              \
                                 void *workspace)                                                  \
    {                                                                                              \
        invar_gemm p = product_of(a);                                                              \
                                                                                                   \
        return run_gemm(dev, &p, workspace);                                                       \
    }

PRODUCT_OP(moe_linear_fwd)
PRODUCT_OP(linear_dx)
PRODUCT_OP(moe_linear_dx)
