/*
 * linear.c - linear layers are bit-invariant at the sizes at which a GPU changes its kernel or
 * tile.
 *
 * Every number of rows from 1 to 300 and some larger ones, every position in a batch, any
 * neighbors, any split of a batch, for every format: y and dx of a row have the same bytes, and
 * some rows of the full batch equal the CPU's. The shapes are those that other engines are tested
 * with, or failed with (docs/testing.md). Controls that must differ: a chain in two halves, one
 * unit instead of several, and a result that was not written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/invariance/sweep.h"

/* ---- comparison of some rows with the CPU ---------------------------------------------------- */

enum { CPU_ROWS = 3 };

/* Returns the index of the first row, of one in the middle or of the last one. */
static int64_t cpu_row(int64_t rows, int i)
{
    return i == 0 ? 0 : i == 1 ? rows / 2 : rows - 1;
}

/* Returns whether the device is the CPU, so that there is nothing to compare with. */
static bool is_cpu(const invar_sweep *s)
{
    return s->dev.backend == invar_backend_cpu();
}

static invar_device cpu_open(const invar_sweep *s)
{
    invar_device cpu = {.backend = invar_backend_cpu(), .numerics = s->dev.numerics};

    assert_ok(invar_pool_new(&cpu.pool, 8));
    assert_ok(invar_arena_new_debug(&cpu.scratch, "scratch"));
    assert_ok(invar_arena_plan_scratch(cpu.scratch, (size_t)1 << 32));
    assert_ok(invar_arena_reserve(cpu.scratch));
    return cpu;
}

static void cpu_close(invar_device *cpu)
{
    invar_arena_free(cpu->scratch);
    invar_pool_free(cpu->pool);
}

static invar_tensor download_row(const invar_sweep *s, const invar_tensor *t, int64_t row)
{
    invar_tensor view = invar_tensor_rows(t, row, 1);

    return invar_sweep_download(s, &view);
}

/*
 * Computes some rows of the call `full` on the CPU and compares them with its results, on the heap.
 */
static void check_forward_with_cpu(const invar_sweep *s, const invar_linear_fwd_args *full,
                                   const invar_tensor *expected, const char *what)
{
    invar_device cpu;
    invar_linear_fwd_args args = *full;

    if (is_cpu(s))
        return;
    cpu = cpu_open(s);
    args.w = invar_sweep_download(s, &full->w);
    if (full->bias.data)
        args.bias = invar_sweep_download(s, &full->bias);
    for (int i = 0; i < CPU_ROWS; i++) {
        int64_t at = cpu_row(full->x.shape[0], i);
        invar_tensor row = invar_tensor_rows(expected, at, 1);

        args.x = download_row(s, &full->x, at);
        args.y = invar_test_tensor(invar_tensor_2d(NULL, row.dtype, 1, row.shape[1]));
        assert_ok(invar_linear_fwd(&cpu, &args));
        invar_assert_bits_tensor(&row, &args.y, what);
        invar_test_free(&args.x, &args.y);
    }
    invar_test_free(&args.w);
    if (full->bias.data)
        invar_test_free(&args.bias);
    cpu_close(&cpu);
}

static void check_backward_with_cpu(const invar_sweep *s, const invar_linear_dx_args *full,
                                    const invar_tensor *expected, const char *what)
{
    invar_device cpu;
    invar_linear_dx_args args = *full;

    if (is_cpu(s))
        return;
    cpu = cpu_open(s);
    for (int p = 0; p < args.n_parts; p++)
        args.parts[p].w = invar_sweep_download(s, &full->parts[p].w);
    for (int i = 0; i < CPU_ROWS; i++) {
        int64_t at = cpu_row(full->dx.shape[0], i);
        invar_tensor row = invar_tensor_rows(expected, at, 1);

        for (int p = 0; p < args.n_parts; p++)
            args.parts[p].dy = download_row(s, &full->parts[p].dy, at);
        args.dx = invar_test_tensor(invar_tensor_2d(NULL, row.dtype, 1, row.shape[1]));
        assert_ok(invar_linear_dx(&cpu, &args));
        invar_assert_bits_tensor(&row, &args.dx, what);
        invar_test_free(&args.dx);
        for (int p = 0; p < args.n_parts; p++)
            invar_test_free(&args.parts[p].dy);
    }
    for (int p = 0; p < args.n_parts; p++)
        invar_test_free(&args.parts[p].w);
    cpu_close(&cpu);
}

/* ---- a layer --------------------------------------------------------------------------------- */

/* A batch and its results. */
typedef struct layer {
    invar_sweep *s;
    const invar_test_format *format;
    int64_t rows, n, k;
    invar_tensor plain_x, plain_dy; /* values before quantization */
    invar_tensor x, dy, w;
    invar_tensor y, dx;                   /* results of the current call */
    invar_tensor expected_y, expected_dx; /* results of the full batch, on the heap */
    int mark;
} layer;

/* Sets shards of complete atoms; one shard has no atoms. */
static void forward_atoms(invar_sweep *s, const invar_tensor *y, const invar_tensor *x,
                          const invar_tensor *w, int32_t shards, int64_t atom)
{
    invar_linear_fwd_args args = {.y = *y, .x = *x, .w = *w, .k_shards = shards, .k_atom = atom};

    invar_sweep_zero(s, y);
    invar_sweep_run(s, INVAR_OP_LINEAR_FWD, &args);
}

static void forward(invar_sweep *s, const invar_tensor *y, const invar_tensor *x,
                    const invar_tensor *w, int32_t shards)
{
    forward_atoms(s, y, x, w, shards, x->shape[1] / shards);
}

static void backward(invar_sweep *s, const invar_tensor *dx, const invar_tensor *dy,
                     const invar_tensor *w)
{
    invar_linear_dx_args args = {.dx = *dx, .parts = {{*dy, *w}}, .n_parts = 1, .k_shards = 1};

    invar_sweep_zero(s, dx);
    invar_sweep_run(s, INVAR_OP_LINEAR_DX, &args);
}

typedef void (*filling)(const invar_sweep *s, const invar_tensor *t, uint64_t seed);

static void fill_normal(const invar_sweep *s, const invar_tensor *t, uint64_t seed)
{
    invar_sweep_fill_normal(s, t, seed, 1.0f);
}

/* Values from -100 to 100 in equal steps, as in the tests of batch_invariant_ops. */
static void fill_even(const invar_sweep *s, const invar_tensor *t, uint64_t seed)
{
    invar_tensor host = invar_test_tensor(*t);
    int64_t count = t->shape[0] * t->shape[1];

    (void)seed;
    for (int64_t i = 0; i < count; i++)
        invar_test_set(&host, 0, i, -100.0f + 200.0f * ((float)i / (float)(count - 1)));
    invar_sweep_upload(s, t, host.data);
    invar_test_free(&host);
}

static invar_tensor filled(invar_sweep *s, invar_dtype dtype, int64_t rows, int64_t cols,
                           filling fill, uint64_t seed)
{
    invar_tensor t = invar_sweep_2d(s, dtype, rows, cols);

    fill(s, &t, seed);
    return t;
}

static layer layer_with(const invar_test_format *format, invar_numerics numerics, int64_t rows,
                        int64_t n, int64_t k, filling fill)
{
    layer l = {.s = invar_sweep_begin(numerics), .format = format, .rows = rows, .n = n, .k = k};
    invar_tensor plain_w;

    l.mark = invar_sweep_mark(l.s);
    l.plain_x = filled(l.s, format->storage, rows, k, fill, 1);
    l.plain_dy = filled(l.s, format->storage, rows, n, fill, 2);
    plain_w = filled(l.s, format->storage, n, k, fill, 3);
    l.x = invar_sweep_quantized(l.s, &l.plain_x, format->x, false);
    l.dy = invar_sweep_quantized(l.s, &l.plain_dy, format->x, false);
    l.w = invar_sweep_quantized(l.s, &plain_w, format->w, true);
    l.y = invar_sweep_2d(l.s, INVAR_DTYPE_F32, rows, n);
    l.dx = invar_sweep_2d(l.s, INVAR_DTYPE_F32, rows, k);
    forward(l.s, &l.y, &l.x, &l.w, 1);
    backward(l.s, &l.dx, &l.dy, &l.w);
    l.expected_y = invar_sweep_download(l.s, &l.y);
    l.expected_dx = invar_sweep_download(l.s, &l.dx);
    check_forward_with_cpu(l.s, &(invar_linear_fwd_args){.x = l.x, .w = l.w, .k_shards = 1},
                           &l.expected_y, format->name);
    check_backward_with_cpu(
        l.s,
        &(invar_linear_dx_args){.dx = l.dx, .parts = {{l.dy, l.w}}, .n_parts = 1, .k_shards = 1},
        &l.expected_dx, format->name);
    return l;
}

static layer layer_new(const invar_test_format *format, invar_numerics numerics, int64_t rows,
                       int64_t n, int64_t k)
{
    return layer_with(format, numerics, rows, n, k, fill_normal);
}

static void layer_free(layer *l)
{
    invar_test_free(&l->expected_y, &l->expected_dx);
    invar_sweep_release(l->s, l->mark);
}

/* int4 has complete groups only. */
static bool format_fits(const invar_test_format *format, int64_t n, int64_t k)
{
    return format->w != INVAR_DTYPE_INT4 ||
           (n % INVAR_INT4_BLOCK == 0 && k % INVAR_INT4_BLOCK == 0);
}

/* Rows [first, first + m) alone must equal those of the full batch. */
static void check_slice(layer *l, int64_t first, int64_t m)
{
    invar_tensor x = invar_tensor_rows(&l->x, first, m), dy = invar_tensor_rows(&l->dy, first, m);
    invar_tensor y = invar_tensor_rows(&l->y, 0, m), dx = invar_tensor_rows(&l->dx, 0, m);

    forward(l->s, &y, &x, &l->w, 1);
    backward(l->s, &dx, &dy, &l->w);
    invar_sweep_assert(l->s, &y, &l->expected_y, first, "%s y, %d rows from %d, n %d, k %d",
                       l->format->name, (int)m, (int)first, (int)l->n, (int)l->k);
    invar_sweep_assert(l->s, &dx, &l->expected_dx, first, "%s dx, %d rows from %d, n %d, k %d",
                       l->format->name, (int)m, (int)first, (int)l->n, (int)l->k);
}

/* ---- every number of rows -------------------------------------------------------------------- */

static void sweep_rows(layer *l)
{
    static const int64_t beyond[] = {383, 384, 385, 511, 512, 513, 1000, 1023, 1024, 1025, 2048};

    for (int64_t m = 1; m <= l->rows && m <= invar_sweep_size(l->s, 300, 20); m++) {
        check_slice(l, 0, m);
        check_slice(l, l->rows - m, m);
    }
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond && beyond[i] <= l->rows; i++)
        check_slice(l, l->rows - beyond[i], beyond[i]);
}

static void test_linear__bits_invariant_to_rows(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_TEST_FORMATS; i++) {
        const invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
        bool plain = invar_test_formats[i].x == INVAR_DTYPE_F32;
        int64_t max_rows = invar_sweep_size(s, plain ? 700 : 4096, 36);
        int64_t n = invar_sweep_size(s, plain ? 256 : 2048, 128);
        layer l = layer_new(&invar_test_formats[i], INVAR_NUMERICS_SM90, max_rows, n,
                            invar_sweep_size(s, plain ? 1024 : 4096, 256));

        sweep_rows(&l);
        layer_free(&l);
    }
}

static void test_linear__bits_invariant_to_rows_ieee(void **state)
{
    (void)state;
    for (int i = 1; i < INVAR_TEST_FORMATS; i++) {
        const invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_IEEE);
        layer l = layer_new(&invar_test_formats[i], INVAR_NUMERICS_IEEE,
                            invar_sweep_size(s, 520, 36), invar_sweep_size(s, 256, 128), 256);

        sweep_rows(&l);
        layer_free(&l);
    }
}

/* ---- shapes that others are tested with ------------------------------------------------------ */

static const struct {
    int64_t rows, k, n;
} shapes[] = {
    {8, 64, 128},
    {16, 128, 256},
    {4, 32, 64}, /* SGLang */
    {32, 128, 1024},
    {64, 512, 2048},
    {24, 192, 768}, /* SGLang */
    {128, 1024, 4096},
    {256, 2048, 8192},
    {96, 768, 3072}, /* SGLang */
    {257, 2048, 1024},
    {257, 4096, 4608}, /* vLLM, FP8 */
    {1024, 4096, 28672},
    {1024, 14336, 4096},
    {1024, 4096, 6144}, /* LLM-42 */
    {1024, 6144, 2048}, /* TBIK */
    {300, 7168, 256},   /* a router in f32 */
    /* shapes without a kernel of their own */
    {130, 72, 100},
    {300, 1000, 1003},
    {67, 4104, 520},
};

/* Numbers of rows of the tests of TransformerEngine, vLLM, LLM-42 and Marlin. */
static const int64_t row_counts[] = {1,  2,  4,  8,   9,   12,  16,  17,  32,  33,
                                     64, 65, 73, 128, 129, 256, 257, 512, 1024};

/* f32 has no tensor cores; the largest weights are tested in two formats only. */
static int64_t most_work(const invar_sweep *s, const invar_test_format *format)
{
    if (!s->large)
        return INT64_C(1) << 20;
    if (format->x == INVAR_DTYPE_F32)
        return INT64_C(1) << 33;
    return format->w == INVAR_DTYPE_BF16 || format->w == INVAR_DTYPE_FP8 ? INT64_MAX
                                                                         : INT64_C(1) << 35;
}

static void test_linear__invariant_at_published_model_shapes(void **state)
{
    const invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int f = 0; f < INVAR_TEST_FORMATS; f++) {
            const invar_test_format *format = &invar_test_formats[f];
            int64_t work = shapes[i].rows * shapes[i].k * shapes[i].n;
            layer l;

            if (!format_fits(format, shapes[i].n, shapes[i].k) || work > most_work(s, format))
                continue;
            l = layer_new(format, INVAR_NUMERICS_SM90, shapes[i].rows, shapes[i].n, shapes[i].k);
            for (size_t r = 0;
                 r < sizeof row_counts / sizeof *row_counts && row_counts[r] <= l.rows; r++)
                check_slice(&l, (l.rows - row_counts[r]) / 2, row_counts[r]);
            layer_free(&l);
        }
}

static void test_linear__evenly_spaced_inputs(void **state)
{
    const invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
    int64_t rows = invar_sweep_size(s, 2048, 40), side = invar_sweep_size(s, 4096, 128);

    (void)state;
    for (int f = 0; f < INVAR_TEST_STORAGE_FORMATS; f++) {
        layer l =
            layer_with(&invar_test_formats[f], INVAR_NUMERICS_SM90, rows, side, side, fill_even);

        for (int again = 0; again < 10; again++)
            check_slice(&l, 0, 1);
        for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts && row_counts[r] <= l.rows;
             r++)
            check_slice(&l, l.rows - row_counts[r], row_counts[r]);
        layer_free(&l);
    }
}

/* ---- position and neighbors ------------------------------------------------------------------ */

/* Puts row 0 of the batch at `position` of m rows of `filler`, and quantizes them together. */
static void check_position(layer *l, const invar_tensor *filler, int64_t m, int64_t position)
{
    int mark = invar_sweep_mark(l->s);
    invar_tensor plain = invar_tensor_rows(filler, 0, m), x, dx, y, dy;
    invar_tensor wide = invar_tensor_rows(filler + 1, 0, m);

    invar_sweep_copy_rows(l->s, &plain, position, &l->plain_x, 0, 1);
    invar_sweep_copy_rows(l->s, &wide, position, &l->plain_dy, 0, 1);
    x = invar_sweep_quantized(l->s, &plain, l->format->x, false);
    dy = invar_sweep_quantized(l->s, &wide, l->format->x, false);
    y = invar_tensor_rows(&l->y, 0, m);
    dx = invar_tensor_rows(&l->dx, 0, m);
    forward(l->s, &y, &x, &l->w, 1);
    backward(l->s, &dx, &dy, &l->w);
    y = invar_tensor_rows(&y, position, 1);
    dx = invar_tensor_rows(&dx, position, 1);
    invar_sweep_assert(l->s, &y, &l->expected_y, 0, "%s y, place %d of %d", l->format->name,
                       (int)position, (int)m);
    invar_sweep_assert(l->s, &dx, &l->expected_dx, 0, "%s dx, place %d of %d", l->format->name,
                       (int)position, (int)m);
    // restores this row of the filler from its last row, which was not used
    invar_sweep_copy_rows(l->s, &plain, position, filler, filler->shape[0] - 1, 1);
    invar_sweep_copy_rows(l->s, &wide, position, filler + 1, filler->shape[0] - 1, 1);
    invar_sweep_release(l->s, mark);
}

static void test_linear__bits_invariant_to_position_and_neighbors(void **state)
{
    static const int64_t counts[] = {1, 2, 3, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257};
    const float fillers[] = {NAN, INFINITY, 3e38f, 1e-40f, -0.0f};
    const invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
    int64_t max_rows = invar_sweep_size(s, 257, 33), step = invar_sweep_size(s, 1, 5);

    (void)state;
    for (int i = 0; i < INVAR_TEST_FORMATS; i++) {
        const invar_test_format *format = &invar_test_formats[i];
        int64_t n = invar_sweep_size(s, 1024, 128), k = invar_sweep_size(s, 1024, 256);
        layer l = layer_new(format, INVAR_NUMERICS_SM90, max_rows, n, k);

        for (int kind = 0; kind < invar_sweep_size(s, 5, 2); kind++) {
            int mark = invar_sweep_mark(l.s);
            invar_tensor filler[] = {invar_sweep_2d(l.s, format->storage, max_rows + 1, k),
                                     invar_sweep_2d(l.s, format->storage, max_rows + 1, n)};

            invar_sweep_fill(l.s, &filler[0], fillers[kind]);
            invar_sweep_fill(l.s, &filler[1], fillers[kind]);
            for (size_t c = 0; c < sizeof counts / sizeof *counts && counts[c] <= max_rows; c++)
                for (int64_t position = 0; position < counts[c]; position += step)
                    if (kind == 0 || position % 5 == kind || position + step >= counts[c])
                        check_position(&l, filler, counts[c], position);
            invar_sweep_release(l.s, mark);
        }
        layer_free(&l);
    }
}

/* ---- slices ---------------------------------------------------------------------------------- */

static void test_linear__bits_invariant_to_chunks(void **state)
{
    static const int64_t chunks[] = {1, 3, 7, 16, 17, 64, 100, 129, 256, 333};
    const invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);

    (void)state;
    for (int i = 0; i < INVAR_TEST_FORMATS; i++) {
        layer l =
            layer_new(&invar_test_formats[i], INVAR_NUMERICS_SM90, invar_sweep_size(s, 600, 36),
                      invar_sweep_size(s, 512, 128), invar_sweep_size(s, 1024, 256));

        for (size_t c = 0; c < sizeof chunks / sizeof *chunks && chunks[c] < l.rows; c++)
            for (int64_t first = 0; first < l.rows; first += chunks[c])
                check_slice(&l, first, l.rows - first < chunks[c] ? l.rows - first : chunks[c]);
        layer_free(&l);
    }
}

/* bf16 results with a bias are stored by other code of the kernels. */
static void test_linear__bits_of_narrow_results(void **state)
{
    const invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);

    (void)state;
    for (int i = 1; i < INVAR_TEST_FORMATS; i++) {
        layer l =
            layer_new(&invar_test_formats[i], INVAR_NUMERICS_SM90, invar_sweep_size(s, 1024, 36),
                      invar_sweep_size(s, 1152, 128), invar_sweep_size(s, 1024, 256));
        invar_linear_fwd_args args = {.w = l.w, .k_shards = 1};
        invar_tensor y = invar_sweep_2d(l.s, INVAR_DTYPE_BF16, l.rows, l.n), expected;

        args.bias = invar_sweep_tensor(l.s, invar_tensor_1d(NULL, INVAR_DTYPE_BF16, l.n));
        invar_sweep_fill_normal(l.s, &args.bias, 4, 1.0f);
        args.x = l.x;
        args.y = y;
        invar_sweep_run(l.s, INVAR_OP_LINEAR_FWD, &args);
        expected = invar_sweep_download(l.s, &y);
        check_forward_with_cpu(l.s, &args, &expected, l.format->name);
        for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts && row_counts[r] <= l.rows;
             r++) {
            args.x = invar_tensor_rows(&l.x, l.rows - row_counts[r], row_counts[r]);
            args.y = invar_tensor_rows(&y, 0, row_counts[r]);
            invar_sweep_zero(l.s, &args.y);
            invar_sweep_run(l.s, INVAR_OP_LINEAR_FWD, &args);
            invar_sweep_assert(l.s, &args.y, &expected, l.rows - row_counts[r], "%s, bf16, %d rows",
                               l.format->name, (int)row_counts[r]);
        }
        invar_test_free(&expected);
        layer_free(&l);
    }
}

/* Outputs of three layers of one input, a sum with a residual, the activation of the first two. */
enum { FIRST, SECOND, THIRD, SUM, ACT, FUSED };

typedef struct fused {
    layer l; /* layer of the first output */
    invar_tensor w[3], residual;
    invar_tensor at[FUSED], expected[FUSED]; /* `expected` is on the heap */
} fused;

static fused fused_new(const invar_test_format *format, int64_t rows, int64_t n, int64_t k)
{
    fused f = {.l = layer_new(format, INVAR_NUMERICS_SM90, rows, n, k)};
    invar_sweep *s = f.l.s;

    f.w[FIRST] = f.l.w;
    for (int i = SECOND; i <= THIRD; i++) {
        invar_tensor plain = invar_sweep_normal(s, format->storage, n, k, 10 + (uint64_t)i);
        f.w[i] = invar_sweep_quantized(s, &plain, format->w, true);
    }
    f.residual = invar_sweep_normal(s, INVAR_DTYPE_BF16, rows, n, 14);
    for (int i = 0; i < FUSED; i++)
        f.at[i] = invar_sweep_2d(s, INVAR_DTYPE_BF16, rows, n);
    for (int i = FIRST; i <= THIRD; i++)
        forward(s, &f.at[i], &f.l.x, &f.w[i], 1);
    invar_sweep_run(s, INVAR_OP_ADD, &(invar_add_args){f.at[SUM], f.residual, f.at[FIRST]});
    invar_sweep_run(
        s, INVAR_OP_SWIGLU_FWD,
        &(invar_swiglu_fwd_args){.y = f.at[ACT], .gate = f.at[FIRST], .up = f.at[SECOND]});
    for (int i = 0; i < FUSED; i++)
        f.expected[i] = invar_sweep_download(s, &f.at[i]);
    return f;
}

/* Computes the last m rows with fused calls. */
static void check_fused(fused *f, int64_t m)
{
    int64_t first = f->l.rows - m;
    invar_tensor x = invar_tensor_rows(&f->l.x, first, m), at[FUSED];
    invar_linear_fwd_args sum = {.x = x, .w = f->w[FIRST], .k_shards = 1}, many = sum, act;

    for (int i = 0; i < FUSED; i++) {
        at[i] = invar_tensor_rows(&f->at[i], 0, m);
        invar_sweep_zero(f->l.s, &at[i]);
    }
    sum.y = at[SUM];
    sum.residual = invar_tensor_rows(&f->residual, first, m);
    many.y = at[FIRST];
    many.more[0] = (invar_linear_output){.y = at[SECOND], .w = f->w[SECOND]};
    act = many;
    act.n_more = 1;
    act.act = at[ACT];
    if (m % 2) // the inputs of the activation are outputs as well, or not
        act.y = act.more[0].y = (invar_tensor){0};
    many.more[1] = (invar_linear_output){.y = at[THIRD], .w = f->w[THIRD]};
    many.n_more = 2;
    invar_sweep_run(f->l.s, INVAR_OP_LINEAR_FWD, &sum);
    invar_sweep_run(f->l.s, INVAR_OP_LINEAR_FWD, &act);
    for (int i = FIRST; i <= SECOND && m % 2 == 0; i++) {
        invar_sweep_assert(f->l.s, &at[i], &f->expected[i], first, "%s, before act %d, %d rows",
                           f->l.format->name, i, (int)m);
        invar_sweep_zero(f->l.s, &at[i]);
    }
    invar_sweep_run(f->l.s, INVAR_OP_LINEAR_FWD, &many);
    for (int i = 0; i < FUSED; i++)
        invar_sweep_assert(f->l.s, &at[i], &f->expected[i], first, "%s, fused %d, %d rows",
                           f->l.format->name, i, (int)m);
}

static void test_linear__fused_calls_equal_separate_ones(void **state)
{
    const invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);

    (void)state;
    for (int i = 1; i < INVAR_TEST_FORMATS; i++) {
        fused f = fused_new(&invar_test_formats[i], invar_sweep_size(s, 1024, 36),
                            invar_sweep_size(s, 512, 128), invar_sweep_size(s, 1024, 256));

        for (int64_t m = 1; m <= invar_sweep_size(s, 70, 10); m++)
            check_fused(&f, m);
        for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts && row_counts[r] <= f.l.rows;
             r++)
            check_fused(&f, row_counts[r]);
        for (int n = 0; n < FUSED; n++)
            invar_test_free(&f.expected[n]);
        layer_free(&f.l);
    }
}

/* dx of three parts, like queries, keys and values. */
static void test_linear_dx__bits_invariant_to_rows_with_parts(void **state)
{
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
    const int64_t rows = invar_sweep_size(s, 1024, 36), k = invar_sweep_size(s, 1024, 128);
    const int64_t widths[] = {invar_sweep_size(s, 1024, 128), 256, 256};

    (void)state;
    for (int i = 1; i < INVAR_TEST_FORMATS; i++) {
        const invar_test_format *format = &invar_test_formats[i];
        int mark = invar_sweep_mark(s);
        invar_linear_dx_args full = {.n_parts = 3, .k_shards = 1}, part;
        invar_tensor expected;

        full.dx = invar_sweep_2d(s, INVAR_DTYPE_F32, rows, k);
        for (int p = 0; p < 3; p++) {
            uint64_t seed = 5 + 2 * (uint64_t)p;
            invar_tensor dy = invar_sweep_normal(s, format->storage, rows, widths[p], seed);
            invar_tensor w = invar_sweep_normal(s, format->storage, widths[p], k, seed + 1);

            full.parts[p].dy = invar_sweep_quantized(s, &dy, format->x, false);
            full.parts[p].w = invar_sweep_quantized(s, &w, format->w, true);
        }
        invar_sweep_run(s, INVAR_OP_LINEAR_DX, &full);
        expected = invar_sweep_download(s, &full.dx);
        check_backward_with_cpu(s, &full, &expected, format->name);
        part = full;
        for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts && row_counts[r] <= rows;
             r++) {
            part.dx = invar_tensor_rows(&full.dx, 0, row_counts[r]);
            for (int p = 0; p < 3; p++)
                part.parts[p].dy =
                    invar_tensor_rows(&full.parts[p].dy, rows - row_counts[r], row_counts[r]);
            invar_sweep_zero(s, &part.dx);
            invar_sweep_run(s, INVAR_OP_LINEAR_DX, &part);
            invar_sweep_assert(s, &part.dx, &expected, rows - row_counts[r],
                               "%s, three parts, %d rows", format->name, (int)row_counts[r]);
        }
        invar_test_free(&expected);
        invar_sweep_release(s, mark);
    }
}

/* ---- shards ---------------------------------------------------------------------------------- */

/*
 * Column slices of x and w, as in tensor parallelism, added by the tree, equal the sharded product.
 */
static void check_separate_shards(invar_sweep *s, int32_t count, int64_t atoms)
{
    const int64_t rows = invar_sweep_size(s, 1024, 20), n = invar_sweep_size(s, 2048, 64);
    const int64_t atom = invar_sweep_size(s, 1536, 64);
    const int64_t k = atoms * atom;
    int mark = invar_sweep_mark(s);
    invar_tensor x = invar_sweep_normal(s, INVAR_DTYPE_BF16, rows, k, 1);
    invar_tensor w = invar_sweep_normal(s, INVAR_DTYPE_BF16, n, k, 2);
    invar_tensor y = invar_sweep_2d(s, INVAR_DTYPE_F32, rows, n), expected;
    invar_tensor shards = invar_sweep_2d(s, INVAR_DTYPE_F32, count * rows, n);

    forward_atoms(s, &y, &x, &w, count, atom);
    expected = invar_sweep_download(s, &y);
    for (int64_t half = 0; half < 2; half++) { // first half of the batch, then all of it
        int64_t m = half ? rows : rows / 2, a = 0;
        invar_tensor sum = invar_tensor_rows(&shards, 0, m);

        for (int32_t v = 0; v < count; v++) {
            int64_t first = a;
            while (a < atoms && a * count / atoms == v)
                a++;
            invar_tensor xs = invar_tensor_columns(&x, first * atom, (a - first) * atom);
            invar_tensor ws = invar_tensor_columns(&w, first * atom, (a - first) * atom);
            invar_tensor ys = invar_tensor_rows(&shards, v * m, m);

            xs = invar_tensor_rows(&xs, 0, m);
            forward(s, &ys, &xs, &ws, 1);
        }
        for (int32_t stride = 1; stride < count; stride *= 2) // the tree: neighbors first
            for (int32_t v = 0; v < count; v += 2 * stride) {
                invar_tensor left = invar_tensor_rows(&shards, v * m, m);
                invar_tensor right = invar_tensor_rows(&shards, (v + stride) * m, m);
                invar_add_args add = {left, left, right};
                invar_sweep_run(s, INVAR_OP_ADD, &add);
            }
        invar_sweep_assert(s, &sum, &expected, 0, "%d shards of %d rows", count, (int)m);
    }
    invar_test_free(&expected);
    invar_sweep_release(s, mark);
}

static void test_linear__separate_shards_are_the_sharded_product(void **state)
{
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);

    (void)state;
    check_separate_shards(s, 4, 4);
    check_separate_shards(s, 8, 11);
    check_separate_shards(s, 8, 6); // two shards are empty
}

/* ---- gradients of weights -------------------------------------------------------------------- */

enum { UNITS = 9 };

/* Runs the units [first, end) of the batch, as a micro-batch. */
static void accumulate(const layer *l, const invar_tensor *dw, const int64_t *start, int first,
                       int end)
{
    int64_t moved[UNITS + 1], row = start[first], rows = start[end] - row;
    int mark = invar_sweep_mark(l->s);
    invar_linear_dw_args args = {.dw = *dw,
                                 .dy = invar_tensor_rows(&l->dy, row, rows),
                                 .x = invar_tensor_rows(&l->x, row, rows)};

    for (int u = first; u <= end; u++)
        moved[u - first] = start[u] - row;
    args.units =
        (invar_row_offsets){invar_sweep_numbers(l->s, moved, end - first + 1), end - first};
    invar_sweep_run(l->s, INVAR_OP_LINEAR_DW, &args);
    invar_sweep_release(l->s, mark);
}

/* Row offsets of units of t tokens: short ones, long ones, and one without a token. */
static void cut_units(int64_t start[UNITS + 1], int64_t t)
{
    const int64_t at[] = {0, 1, 4, 20, t / 4, t / 4 + 1, t / 2, t / 2, t - 17, t};

    memcpy(start, at, sizeof at);
}

static void check_micro_batches(const layer *l)
{
    const int64_t one[] = {0, l->rows};
    int64_t start[UNITS + 1];
    invar_tensor dw = invar_sweep_2d(l->s, INVAR_DTYPE_F32, l->n, l->k), expected;

    cut_units(start, l->rows);
    accumulate(l, &dw, start, 0, UNITS);
    expected = invar_sweep_download(l->s, &dw);
    for (unsigned cuts = 1; cuts < 1u << (UNITS - 1);
         cuts += (unsigned)invar_sweep_size(l->s, 3, 51)) {
        int first = 0;

        invar_sweep_zero(l->s, &dw);
        for (int u = 1; u <= UNITS; u++)
            if (u == UNITS || cuts >> (u - 1) & 1) {
                accumulate(l, &dw, start, first, u);
                first = u;
            }
        invar_sweep_assert(l->s, &dw, &expected, 0, "%s dw, cuts %x", l->format->name, cuts);
    }
    // control: the units belong to the expression
    invar_sweep_zero(l->s, &dw);
    accumulate(l, &dw, one, 0, 1);
    assert_false(invar_sweep_equal(l->s, &dw, &expected, 0));
    invar_test_free(&expected);
}

static void test_linear_dw__bits_invariant_to_micro_batches(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * INVAR_TEST_STORAGE_FORMATS; i++) {
        invar_numerics numerics = i % 2 ? INVAR_NUMERICS_SM90 : INVAR_NUMERICS_IEEE;
        bool fast = i == 3; // bf16 on the tensor cores
        const invar_sweep *s = invar_sweep_begin(numerics);
        layer l = layer_new(
            &invar_test_formats[i / 2], numerics, invar_sweep_size(s, fast ? 4096 : 700, 90),
            invar_sweep_size(s, fast ? 1024 : 128, 72), invar_sweep_size(s, fast ? 1408 : 200, 40));

        check_micro_batches(&l);
        layer_free(&l);
    }
}

/* Compares some rows of dw, which is on the heap. */
static void check_weights_with_cpu(const layer *l, const invar_tensor *dw, const int64_t *start)
{
    invar_linear_dw_args args = {.units = {start, UNITS}, .fresh = 1};
    invar_device cpu;
    invar_tensor dy;

    if (is_cpu(l->s))
        return;
    cpu = cpu_open(l->s);
    dy = invar_sweep_download(l->s, &l->dy);
    args.x = invar_sweep_download(l->s, &l->x);
    for (int i = 0; i < CPU_ROWS; i++) {
        int64_t at = cpu_row(l->n, i);
        invar_tensor row = invar_tensor_rows(dw, at, 1);

        args.dy = invar_tensor_columns(&dy, at, 1);
        args.dw = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 1, l->k));
        assert_ok(invar_linear_dw(&cpu, &args));
        invar_assert_bits_tensor(&row, &args.dw, "dw of many tiles");
        invar_test_free(&args.dw);
    }
    invar_test_free(&dy, &args.x);
    cpu_close(&cpu);
}

/*
 * A product does not depend on the order of its operands: with both exchanged the gradient is
 * transposed, from other tiles, with the same bits.
 */
static void test_linear_dw__bits_invariant_to_tiles(void **state)
{
    const invar_test_format *bf16 = &invar_test_formats[1];
    static const int64_t outputs[][2] = {{6144, 1024}, {1024, 3072}, {2048, 1024}, {4096, 4096}};

    (void)state;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
        layer l = layer_new(bf16, INVAR_NUMERICS_SM90, invar_sweep_size(s, 2100, 90),
                            invar_sweep_size(s, outputs[i][0], outputs[i][0] / 64),
                            invar_sweep_size(s, outputs[i][1], outputs[i][1] / 64));
        layer transposed = l;
        invar_tensor dw = invar_sweep_2d(s, INVAR_DTYPE_F32, l.n, l.k), got;
        invar_tensor other = invar_sweep_2d(s, INVAR_DTYPE_F32, l.k, l.n), across;
        int64_t start[UNITS + 1];

        transposed.dy = l.x;
        transposed.x = l.dy;
        cut_units(start, l.rows);
        accumulate(&l, &dw, start, 0, UNITS);
        accumulate(&transposed, &other, start, 0, UNITS);
        got = invar_sweep_download(s, &dw);
        across = invar_sweep_download(s, &other);
        for (int64_t r = 0; r < l.n; r++)
            for (int64_t c = 0; c < l.k; c++)
                if (memcmp((float *)got.data + r * l.k + c, (float *)across.data + c * l.n + r,
                           sizeof(float)) != 0)
                    fail_msg("%d x %d: row %d, column %d", (int)l.n, (int)l.k, (int)r, (int)c);
        check_weights_with_cpu(&l, &got, start);
        // control: all tokens as one unit
        invar_sweep_zero(s, &other);
        accumulate(&transposed, &other, (const int64_t[]){0, l.rows}, 0, 1);
        assert_false(invar_sweep_equal(s, &other, &across, 0));
        invar_test_free(&got, &across);
        layer_free(&l);
    }
}

/* ---- controls -------------------------------------------------------------------------------- */

/* Control: a kernel that splits k by the number of rows would add two half chains. */
static void test_linear__control_split_chain_is_seen(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_TEST_FORMATS; i++) {
        const invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
        layer l = layer_new(&invar_test_formats[i], INVAR_NUMERICS_SM90,
                            invar_sweep_size(s, 300, 20), 128, invar_sweep_size(s, 4096, 256));

        forward(l.s, &l.y, &l.x, &l.w, 2);
        assert_false(invar_sweep_equal(l.s, &l.y, &l.expected_y, 0));
        // control: a result that was not written
        invar_sweep_zero(l.s, &l.y);
        assert_false(invar_sweep_equal(l.s, &l.y, &l.expected_y, 0));
        layer_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear__bits_invariant_to_rows),
        cmocka_unit_test(test_linear__bits_invariant_to_rows_ieee),
        cmocka_unit_test(test_linear__invariant_at_published_model_shapes),
        cmocka_unit_test(test_linear__evenly_spaced_inputs),
        cmocka_unit_test(test_linear__bits_invariant_to_position_and_neighbors),
        cmocka_unit_test(test_linear__bits_invariant_to_chunks),
        cmocka_unit_test(test_linear__bits_of_narrow_results),
        cmocka_unit_test(test_linear__fused_calls_equal_separate_ones),
        cmocka_unit_test(test_linear_dx__bits_invariant_to_rows_with_parts),
        cmocka_unit_test(test_linear__separate_shards_are_the_sharded_product),
        cmocka_unit_test(test_linear_dw__bits_invariant_to_micro_batches),
        cmocka_unit_test(test_linear_dw__bits_invariant_to_tiles),
        cmocka_unit_test(test_linear__control_split_chain_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, invar_sweep_report);
}
