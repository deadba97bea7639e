/*
 * linear.c - a bit of a linear layer depends on nothing but its own row and column.
 *
 * Sweeps over batch sizes, positions, neighbors, threads, CPU paths, micro-batches and ranks that
 * hold logical shards, for every format and numerics, and compares with one run of the full batch.
 * Controls that must differ: the products in reverse order, one unit instead of nine, a chain cut
 * into two shards, shards added in another order than the tree's, and shards cut at equal k
 * instead of atoms. By default the formats and numerics share the values of a sweep, so that each
 * value runs for some of them; under `full` every value runs for all.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "kernels-deterministic/tensor_row.h"
#include "tests/formats.h"

/* More than one row and column tile, more than two blocks of k, and partial last scale blocks. */
enum { ROWS = 300, N = 370, K = 736 };

/* A batch of inputs and output gradients, the weights, and the results of the full batch. */
typedef struct fixture {
    const invar_test_format *format;
    int number; /* format and numerics as one number, from 0 */
    invar_device dev;
    invar_tensor plain_x, plain_dy, plain_w; /* values before quantization */
    invar_tensor x, dy, w;
    invar_tensor y, dx;
} fixture;

static void forward(const invar_device *dev, const invar_tensor *y, const invar_tensor *x,
                    const invar_tensor *w)
{
    assert_ok(
        invar_linear_fwd(dev, &(invar_linear_fwd_args){.y = *y, .x = *x, .w = *w, .k_shards = 1}));
}

static void backward(const invar_device *dev, const invar_tensor *dx, const invar_tensor *dy,
                     const invar_tensor *w)
{
    assert_ok(invar_linear_dx(
        dev,
        &(invar_linear_dx_args){.dx = *dx, .parts = {{*dy, *w}}, .n_parts = 1, .k_shards = 1}));
}

static void set_up(fixture *f, const invar_test_format *format, invar_numerics numerics)
{
    f->format = format;
    f->number = (int)(format - invar_test_formats) + INVAR_TEST_FORMATS * (int)numerics;
    invar_test_device_init(&f->dev, numerics, INVAR_CPU_PATH_SIMD, 1);
    f->plain_x = invar_test_normal_2d(format->storage, ROWS, K, 1);
    f->plain_dy = invar_test_normal_2d(format->storage, ROWS, N, 2);
    f->plain_w = invar_test_normal_2d(format->storage, N, K, 3);
    f->x = invar_test_quantized(&f->dev, &f->plain_x, format->x, false);
    f->dy = invar_test_quantized(&f->dev, &f->plain_dy, format->x, false);
    f->w = invar_test_quantized(&f->dev, &f->plain_w, format->w, true);
    f->y = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, N));
    f->dx = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, K));
    forward(&f->dev, &f->y, &f->x, &f->w);
    backward(&f->dev, &f->dx, &f->dy, &f->w);
}

static void tear_down(fixture *f)
{
    invar_test_free(&f->plain_x, &f->plain_dy, &f->plain_w, &f->x, &f->dy, &f->w, &f->y, &f->dx);
    invar_test_device_release(&f->dev);
}

typedef void (*property)(fixture *f);

enum { FIXTURES = INVAR_TEST_FORMATS * INVAR_NUMERICS_COUNT };
static fixture fixtures[FIXTURES]; /* all formats and numerics; made by setup */

static void for_all(property check)
{
    for (int i = 0; i < FIXTURES; i++)
        check(&fixtures[i]);
}

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < FIXTURES; i++)
        set_up(&fixtures[i], &invar_test_formats[i % INVAR_TEST_FORMATS],
               (invar_numerics)(i / INVAR_TEST_FORMATS));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < FIXTURES; i++)
        tear_down(&fixtures[i]);
    return 0;
}

/* Checks that rows [first, first + m) alone give the bits that they have in the batch. */
static void check_slice(fixture *f, int64_t first, int64_t m)
{
    invar_tensor x = invar_tensor_rows(&f->x, first, m), dy = invar_tensor_rows(&f->dy, first, m);
    invar_tensor y = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, m, N));
    invar_tensor dx = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, m, K));
    invar_tensor expected_y = invar_tensor_rows(&f->y, first, m);
    invar_tensor expected_dx = invar_tensor_rows(&f->dx, first, m);

    forward(&f->dev, &y, &x, &f->w);
    backward(&f->dev, &dx, &dy, &f->w);
    invar_assert_bits_tensor(&y, &expected_y, f->format->name);
    invar_assert_bits_tensor(&dx, &expected_dx, f->format->name);
    invar_test_free(&y, &dx);
}

static void check_batch_sizes(fixture *f)
{
    static const int64_t reduced[] = {1, 2, 5, 8, 13, 16, 17, 64, 65, 129, 241, 299};

    if (!invar_test_full()) {
        for (size_t i = 0; i < sizeof reduced / sizeof *reduced; i++)
            if (reduced[i] < 64 || i % 5 == (size_t)f->number % 5)
                check_slice(f, (int64_t)i * 7 % (ROWS - reduced[i] + 1), reduced[i]);
        return;
    }
    for (int64_t m = 1; m <= ROWS; m += m < 40 ? 1 : m % 7 + 1)
        check_slice(f, m * 37 % (ROWS - m + 1), m);
}

static void test_linear__bits_invariant_to_batch_size(void **state)
{
    (void)state;
    for_all(check_batch_sizes);
}

/*
 * Checks that row 0, put at `position` of a batch whose other rows hold `filler`, keeps its bits.
 */
static void check_position(fixture *f, int64_t m, int64_t position, float filler)
{
    invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, f->format->storage, m, K));
    invar_tensor dy = invar_test_tensor(invar_tensor_2d(NULL, f->format->storage, m, N));
    invar_tensor y = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, m, N));
    invar_tensor dx = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, m, K));
    invar_tensor qx, qdy, got, expected;
    float line[K];

    invar_test_fill(&x, filler);
    invar_test_fill(&dy, filler);
    invar_tensor_row_load(line, &f->plain_x, 0, 0, K);
    invar_tensor_row_store(&x, position, 0, K, line);
    invar_tensor_row_load(line, &f->plain_dy, 0, 0, N);
    invar_tensor_row_store(&dy, position, 0, N, line);
    qx = invar_test_quantized(&f->dev, &x, f->format->x, false);
    qdy = invar_test_quantized(&f->dev, &dy, f->format->x, false);
    forward(&f->dev, &y, &qx, &f->w);
    backward(&f->dev, &dx, &qdy, &f->w);
    got = invar_tensor_rows(&y, position, 1), expected = invar_tensor_rows(&f->y, 0, 1);
    invar_assert_bits_tensor(&got, &expected, f->format->name);
    got = invar_tensor_rows(&dx, position, 1), expected = invar_tensor_rows(&f->dx, 0, 1);
    invar_assert_bits_tensor(&got, &expected, f->format->name);
    invar_test_free(&x, &dy, &y, &dx, &qx, &qdy);
}

static void check_positions(fixture *f)
{
    static const float fillers[] = {0.0f, 1.0f, 3.0e38f, -INFINITY, NAN, 1e-40f};
    int64_t m = 33, number = f->number;

    if (!invar_test_full()) { // two of the fillers and one position in a batch of two row tiles
        check_position(f, m, number * 11 % 33, fillers[number % 6]);
        check_position(f, 17, number * 5 % 17, fillers[(number + 3) % 6]);
        check_position(f, ROWS, number % 2 ? 239 : ROWS - 1, (float)(number % 2));
        return;
    }
    for (int64_t position = 0; position < m; position++)
        check_position(f, m, position, fillers[position % 6]);
    // The second row tile starts at 240. Rows with NaN take the slow reference path, hence only
    // one.
    for (int64_t position = 0; position < ROWS; position++)
        check_position(f, ROWS, position, position == ROWS - 1 ? NAN : (float)(position % 2));
}

static void test_linear__bits_invariant_to_position_and_neighbors(void **state)
{
    (void)state;
    for_all(check_positions);
}

static void check_threads_and_paths(fixture *f)
{
    static const int threads[] = {1, 2, 3, 8};

    for (int path = 0; path < 2; path++)
        for (int i = 0; i < 4; i++) {
            // the portable step is slow, so a few rows must do
            int64_t m = path == INVAR_CPU_PATH_PORTABLE ? invar_test_count(9, ROWS) : ROWS;
            invar_device dev;

            // the fixture has the bits of one thread and SIMD, so each has another number here
            if (!invar_test_full() && i != (path ? f->number % 4 : 1 + f->number % 3))
                continue;
            invar_tensor x = invar_tensor_rows(&f->x, 0, m), dy = invar_tensor_rows(&f->dy, 0, m);
            invar_tensor ey = invar_tensor_rows(&f->y, 0, m), edx = invar_tensor_rows(&f->dx, 0, m);
            invar_tensor y, dx;

            invar_test_device_init(&dev, f->dev.numerics, (invar_cpu_path)path, threads[i]);
            y = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, m, N));
            dx = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, m, K));
            forward(&dev, &y, &x, &f->w);
            backward(&dev, &dx, &dy, &f->w);
            invar_assert_bits_tensor(&y, &ey, f->format->name);
            invar_assert_bits_tensor(&dx, &edx, f->format->name);
            invar_test_free(&y, &dx);
            invar_test_device_release(&dev);
        }
}

static void test_linear__bits_invariant_to_threads_and_path(void **state)
{
    (void)state;
    for_all(check_threads_and_paths);
}

/* ---- gradients of weights under micro-batching ----------------------------------------------- */

static const int64_t unit_start[] = {0, 1, 4, 9, 20, 21, 280, 290, 299, 300};
enum { UNITS = 9 };

static void accumulate(const invar_device *dev, const invar_tensor *dw, const invar_tensor *dy,
                       const invar_tensor *x, int64_t first, int64_t units)
{
    int64_t start[UNITS + 1];
    int64_t row = unit_start[first], rows = unit_start[first + units] - row;

    for (int64_t u = 0; u <= units; u++)
        start[u] = unit_start[first + u] - row;
    assert_ok(invar_linear_dw(dev, &(invar_linear_dw_args){.dw = *dw,
                                                           .dy = invar_tensor_rows(dy, row, rows),
                                                           .x = invar_tensor_rows(x, row, rows),
                                                           .units = {start, units}}));
}

static void test_linear_dw__bits_invariant_to_micro_batches(void **state)
{
    (void)state;
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++)
        for (int i = 0; i < INVAR_TEST_STORAGE_FORMATS; i++) {
            fixture f;
            invar_tensor full = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, N, K));
            invar_tensor micro_batched =
                invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, N, K));
            invar_tensor one_unit_dw =
                invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, N, K));
            const int64_t one_unit[] = {0, ROWS};

            set_up(&f, &invar_test_formats[i], (invar_numerics)numerics);
            invar_test_fill(&full, 0.0f);
            accumulate(&f.dev, &full, &f.dy, &f.x, 0, UNITS);
            // Each bit of `cuts` ends a micro-batch after a unit; under `full` all 256 cuts run.
            for (unsigned cuts = 0; cuts < 1u << (UNITS - 1);
                 cuts += (unsigned)invar_test_count(85, 1)) {
                int64_t first = 0;
                invar_test_fill(&micro_batched, 0.0f);
                for (int64_t u = 1; u <= UNITS; u++)
                    if (u == UNITS || cuts >> (u - 1) & 1) {
                        accumulate(&f.dev, &micro_batched, &f.dy, &f.x, first, u - first);
                        first = u;
                    }
                invar_assert_bits_tensor(&micro_batched, &full, f.format->name);
            }
            // control: units are part of the expression, so one unit must give other bits
            invar_test_fill(&one_unit_dw, 0.0f);
            assert_ok(invar_linear_dw(
                &f.dev, &(invar_linear_dw_args){
                            .dw = one_unit_dw, .dy = f.dy, .x = f.x, .units = {one_unit, 1}}));
            assert_true(invar_tensors_differ(&one_unit_dw, &full));
            invar_test_free(&full, &micro_batched, &one_unit_dw);
            tear_down(&f);
        }
}

/* ---- logical tensor parallelism -------------------------------------------------------------- */

enum { SHARD_ROWS = 6, SHARD_N = 128, SHARD_ATOM = 128, MOST_SHARDS = INVAR_LINEAR_MAX_SHARDS };

/*
 * A forward product or a dx that is computed by several ranks: each has columns of x and w, or of
 * dy and rows of w.
 */
typedef struct sharded_product {
    const invar_device *dev;
    const invar_test_format *format;
    bool is_dx;             /* dx of two parts, the second of 3 atoms */
    invar_tensor in[2];     /* (SHARD_ROWS, K_p) before quantization: x, or dy of each part */
    invar_tensor weight[2]; /* w before quantization: (N, K), or (K_p, N) of each part */
    int64_t atoms[2];
} sharded_product;

/*
 * Computes rows [row, row + rows of out) from atoms [first[p], end[p]) of each part, as `shards`
 * logical shards.
 */
static void run_atoms(const sharded_product *l, const invar_device *dev, const invar_tensor *out,
                      int64_t row, const int64_t *first, const int64_t *end, int32_t shards,
                      int64_t atom)
{
    invar_linear_fwd_args fwd = {.y = *out, .k_shards = shards, .k_atom = atom};
    invar_linear_dx_args dx = {.dx = *out, .k_shards = shards, .k_atom = {atom, atom}};
    invar_tensor operand[4];
    int count = 0;

    for (int p = 0; p < (l->is_dx ? 2 : 1); p++) {
        int64_t k0 = first[p] * SHARD_ATOM, k = (end[p] - first[p]) * SHARD_ATOM;
        invar_tensor x = invar_tensor_columns(&l->in[p], k0, k);
        invar_tensor w = l->is_dx ? invar_tensor_rows(&l->weight[p], k0, k)
                                  : invar_tensor_columns(&l->weight[p], k0, k);
        if (k == 0)
            continue;
        x = invar_tensor_rows(&x, row, out->shape[0]);
        operand[count++] = fwd.x = invar_test_quantized(l->dev, &x, l->format->x, false);
        operand[count++] = fwd.w = invar_test_quantized(l->dev, &w, l->format->w, true);
        dx.parts[dx.n_parts++] = (invar_linear_part){fwd.x, fwd.w};
    }
    invar_test_fill(out, count ? NAN : 0.0f); // a rank without atoms contributes +0
    if (count > 0)
        assert_ok(l->is_dx ? invar_linear_dx(dev, &dx) : invar_linear_fwd(dev, &fwd));
    for (int i = 0; i < count; i++)
        invar_test_free(&operand[i]);
}

/* Returns the first atom of shard v, out of n atoms. */
static int64_t atom_of(int64_t n, int32_t shards, int64_t v)
{
    int64_t a = 0;

    while (a < n && a * shards / n < v)
        a++;
    return a;
}

/* Control: adding the shards in another order than the tree's must change bits. */
static void check_other_orders(const float *shards, int32_t count, const float *expected)
{
    bool ascending = false, descending = false, halves = false;
    int64_t n = SHARD_ROWS * SHARD_N;

    for (int64_t i = 0; i < n; i++) {
        float up = shards[i], down = shards[(count - 1) * n + i], lane[MOST_SHARDS];
        for (int32_t v = 1; v < count; v++) {
            up += shards[v * n + i];
            down += shards[(count - 1 - v) * n + i];
        }
        for (int32_t v = 0; v < count; v++)
            lane[v] = shards[v * n + i];
        for (int32_t shard_sums = count / 2; shard_sums > 0; shard_sums /= 2)
            for (int32_t v = 0; v < shard_sums; v++)
                lane[v] += lane[v + shard_sums];
        ascending = ascending || up != expected[i];
        descending = descending || down != expected[i];
        halves = halves || lane[0] != expected[i];
    }
    assert_true(ascending && descending && halves);
}

/*
 * Folds the gathered sums of all ranks: `ranks` matrices (SHARD_ROWS, SHARD_N), one after the
 * other.
 */
static void fold_ranks(const invar_device *dev, const invar_tensor *out, float *gathered,
                       int32_t ranks)
{
    assert_ok(invar_shards_fold(
        dev, &(invar_shards_fold_args){
                 .y = *out,
                 .x = invar_tensor_2d(gathered, INVAR_DTYPE_F32, ranks * SHARD_ROWS, SHARD_N),
                 .shards = ranks}));
}

/*
 * Compares one call for all shards with calls for a few rows on three threads, and with shards that
 * are computed separately and folded first by rank, then across ranks, for every number of ranks.
 */
static void check_ranks(const sharded_product *l, int32_t shards)
{
    static const int64_t none[2] = {0, 0};
    int64_t n = SHARD_ROWS * SHARD_N;
    invar_tensor full =
        invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, SHARD_ROWS, SHARD_N));
    invar_tensor actual = invar_test_copy(&full), shard_sums, folded;
    invar_device threads;

    shard_sums = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, shards, n));
    folded = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, shards, n));
    run_atoms(l, l->dev, &full, 0, none, l->atoms, shards, SHARD_ATOM);
    invar_test_device_init(&threads, l->dev->numerics, INVAR_CPU_PATH_SIMD, 3);
    for (int64_t row = 0, m = 1; row < SHARD_ROWS; row += m, m = row % 3 + 1) {
        invar_tensor rows = invar_tensor_rows(&actual, row, m);
        run_atoms(l, &threads, &rows, row, none, l->atoms, shards, SHARD_ATOM);
    }
    invar_test_device_release(&threads);
    invar_assert_bits_tensor(&actual, &full, l->format->name);
    for (int32_t v = 0; v < shards; v++) {
        int64_t first[2], end[2];
        invar_tensor out =
            invar_tensor_2d((float *)shard_sums.data + v * n, INVAR_DTYPE_F32, SHARD_ROWS, SHARD_N);
        for (int p = 0; p < 2; p++) {
            first[p] = atom_of(l->atoms[p], shards, v);
            end[p] = atom_of(l->atoms[p], shards, v + 1);
        }
        run_atoms(l, l->dev, &out, 0, first, end, 1, 0);
    }
    for (int32_t ranks = 1; ranks <= shards; ranks *= 2) {
        for (int32_t r = 0; r < ranks; r++)
            invar_test_fold((float *)folded.data + r * n,
                            (float *)shard_sums.data + r * (shards / ranks) * n, shards / ranks,
                            SHARD_ROWS * SHARD_N);
        fold_ranks(l->dev, &actual, folded.data, ranks);
        invar_assert_bits_tensor(&actual, &full, l->format->name);
    }
    if (shards > 2 && l->atoms[0] >= shards) // otherwise orders may agree
        check_other_orders(shard_sums.data, shards, full.data);
    invar_test_free(&full, &actual, &shard_sums, &folded);
}

/*
 * Control: shards of equal size give other bits, if the atoms do not divide evenly and the format
 * allows such a cut.
 */
static void check_equal_cuts(const sharded_product *l, int32_t shards)
{
    static const int64_t none[2] = {0, 0};
    int64_t k = l->atoms[0] * SHARD_ATOM;
    invar_tensor full =
        invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, SHARD_ROWS, SHARD_N));
    invar_tensor equal = invar_test_copy(&full);

    run_atoms(l, l->dev, &full, 0, none, l->atoms, shards, SHARD_ATOM);
    run_atoms(l, l->dev, &equal, 0, none, l->atoms, shards, k / shards);
    assert_int_equal(invar_tensors_differ(&full, &equal), l->atoms[0] % shards != 0);
    invar_test_free(&full, &equal);
}

static void check_atoms(const invar_device *dev, const invar_test_format *format, int64_t atoms,
                        bool is_dx)
{
    sharded_product l = {.dev = dev, .format = format, .is_dx = is_dx, .atoms = {atoms, 3}};

    for (int p = 0; p < 2; p++) {
        int64_t k = l.atoms[p] * SHARD_ATOM;
        l.in[p] = invar_test_normal_2d(format->storage, SHARD_ROWS, k, 1 + (uint64_t)p);
        l.weight[p] = is_dx ? invar_test_normal_2d(format->storage, k, SHARD_N, 3 + (uint64_t)p)
                            : invar_test_normal_2d(format->storage, SHARD_N, k, 3 + (uint64_t)p);
    }
    for (int32_t shards = 1; shards <= MOST_SHARDS; shards *= 2) {
        check_ranks(&l, shards);
        if (!is_dx && format->w != INVAR_DTYPE_FP8 && atoms * SHARD_ATOM / shards % 32 == 0)
            check_equal_cuts(&l, shards);
    }
    for (int p = 0; p < 2; p++)
        invar_test_free(&l.in[p], &l.weight[p]);
}

/* The numbers of atoms of real models: 8, 11, and fewer than there are shards. */
static void test_linear__bits_invariant_to_ranks(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_NUMERICS_COUNT * INVAR_TEST_FORMATS; i++) {
        invar_device dev;
        invar_test_device_init(&dev, (invar_numerics)(i % INVAR_NUMERICS_COUNT),
                               INVAR_CPU_PATH_SIMD, 1);
        for (int is_dx = 0; is_dx < 2; is_dx++) {
            const invar_test_format *f = &invar_test_formats[i / INVAR_NUMERICS_COUNT];
            bool uneven = (i / INVAR_NUMERICS_COUNT + i + is_dx) % 2 == 0;

            if (invar_test_full() || (!uneven && i % 4 < 2))
                check_atoms(&dev, f, 8, is_dx);
            if (invar_test_full() || uneven)
                check_atoms(&dev, f, 11, is_dx);
            if (invar_test_full() || (!uneven && i % 4 >= 2))
                check_atoms(&dev, f, 3, is_dx);
        }
        invar_test_device_release(&dev);
    }
}

/* ---- controls -------------------------------------------------------------------------------- */

/* Control: the same products, added in another order because k is reversed in both operands. */
static void check_reversed_k(fixture *f)
{
    invar_tensor x = invar_test_copy(&f->plain_x), w = invar_test_copy(&f->plain_w), qx, qw;
    invar_tensor y = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, N));

    for (int operand = 0; operand < 2; operand++) {
        invar_tensor *t = operand ? &w : &x;
        for (int64_t i = 0; i < t->shape[0]; i++) {
            float line[K], reversed[K];
            invar_tensor_row_load(line, t, i, 0, K);
            for (int k = 0; k < K; k++)
                reversed[k] = line[K - 1 - k];
            invar_tensor_row_store(t, i, 0, K, reversed);
        }
    }
    qx = invar_test_quantized(&f->dev, &x, f->format->x, false);
    qw = invar_test_quantized(&f->dev, &w, f->format->w, true);
    forward(&f->dev, &y, &qx, &qw);
    assert_true(invar_tensors_differ(&y, &f->y));
    invar_test_free(&x, &w, &qx, &qw, &y);
}

static void test_linear__control_reversed_chain_is_seen(void **state)
{
    (void)state;
    for_all(check_reversed_k);
}

/*
 * Control: a chain cut into two shards is another expression, because shards are part of the
 * contract.
 */
static void check_split_chain(fixture *f)
{
    invar_tensor y = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, N));

    assert_ok(invar_linear_fwd(
        &f->dev,
        &(invar_linear_fwd_args){.y = y, .x = f->x, .w = f->w, .k_shards = 2, .k_atom = 384}));
    assert_true(invar_tensors_differ(&y, &f->y));
    invar_test_free(&y);
}

static void test_linear__control_split_chain_is_seen(void **state)
{
    (void)state;
    for_all(check_split_chain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear__bits_invariant_to_batch_size),
        cmocka_unit_test(test_linear__bits_invariant_to_position_and_neighbors),
        cmocka_unit_test(test_linear__bits_invariant_to_threads_and_path),
        cmocka_unit_test(test_linear_dw__bits_invariant_to_micro_batches),
        cmocka_unit_test(test_linear__bits_invariant_to_ranks),
        cmocka_unit_test(test_linear__control_reversed_chain_is_seen),
        cmocka_unit_test(test_linear__control_split_chain_is_seen),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
