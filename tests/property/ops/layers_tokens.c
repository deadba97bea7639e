/*
 * layers_tokens.c - gradients summed over tokens do not depend on micro-batches, ranks or threads.
 *
 * Samples are grouped into units, and units into micro-batches. For any micro-batches, and for
 * units that are summed separately and added in order, the bits are those of one batch. Controls
 * that must differ: a micro-batch that ends inside a unit, other units, micro-batches in another
 * order, one accumulator for the two uses of a tied embedding, and one accumulator per
 * data-parallel rank.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/ops.h"

enum { SAMPLES = 12, D = 640, HEADS = 5, VOCABULARY = 12, MAX_GRAD = VOCABULARY * D };

static const int64_t lengths[SAMPLES] = {1, 7, 128, 129, 40, 300, 2, 64, 255, 16, 33, 90};

/* The tokens of all samples, in order. */
typedef struct batch {
    int64_t start[SAMPLES + 1]; /* first token of each sample; the last entry is the number of
                                   tokens */
    invar_tensor x;             /* (T, D) */
    invar_tensor dy;            /* (T, D) */
    invar_tensor dlogits;       /* (T, VOCABULARY) */
    invar_tensor ids;           /* (T) */
    invar_tensor weight;        /* (D) */
} batch;

static batch batch_new(invar_dtype dtype, int64_t gap)
{
    batch b;
    int64_t tokens = 0;

    for (int i = 0; i < SAMPLES; i++) {
        b.start[i] = tokens;
        tokens += lengths[i];
    }
    b.start[SAMPLES] = tokens;
    b.x = invar_test_strided(invar_tensor_2d(NULL, dtype, tokens, D), gap);
    b.dy = invar_test_strided(invar_tensor_2d(NULL, dtype, tokens, D), gap);
    b.dlogits = invar_test_strided(invar_tensor_2d(NULL, dtype, tokens, VOCABULARY), gap);
    b.ids = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_I32, tokens));
    b.weight = invar_test_tensor(invar_tensor_1d(NULL, dtype, D));
    invar_test_fill_normal(&b.x, 1, 1.0f);
    invar_test_fill_normal(&b.dy, 2, 1.0f);
    invar_test_fill_normal(&b.dlogits, 3, 1.0f);
    invar_test_fill_index(&b.ids, 4, VOCABULARY);
    invar_test_fill_normal(&b.weight, 5, 1.0f);
    return b;
}

static void batch_free(batch *b)
{
    invar_test_free(&b->x, &b->dy, &b->dlogits, &b->ids, &b->weight);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* A micro-batch: tokens [first, first + tokens) of the batch. Its units count from `first`. */
typedef struct micro_batch {
    const batch *all;
    int64_t first;
    int64_t tokens;
    invar_row_offsets units;
} micro_batch;

/* A gradient op, which adds to the `floats` floats of `grad`. */
typedef struct gradient {
    const char *name;
    int64_t floats;
    invar_status (*run)(const invar_device *dev, float *grad, const micro_batch *m);
} gradient;

static invar_tensor rows_of(const invar_tensor *t, const micro_batch *m)
{
    return invar_tensor_rows(t, m->first, m->tokens);
}

static invar_status bias_grad(const invar_device *dev, float *grad, const micro_batch *m)
{
    return invar_token_sum(dev, &(invar_token_sum_args){invar_tensor_1d(grad, INVAR_DTYPE_F32, D),
                                                        rows_of(&m->all->dy, m), m->units});
}

/* Views rows of D values as heads. */
static invar_tensor as_heads(invar_tensor t, int64_t heads)
{
    t.rank = 3;
    t.shape[1] = heads;
    t.shape[2] = D / heads;
    return t;
}

static invar_status norm_grad_heads(const invar_device *dev, float *grad, const micro_batch *m,
                                    int64_t heads)
{
    invar_tensor x = rows_of(&m->all->x, m), dy = rows_of(&m->all->dy, m);
    invar_tensor dx = invar_test_tensor(invar_tensor_2d(NULL, x.dtype, m->tokens, D));
    invar_status status = invar_rmsnorm_bwd(
        dev, &(invar_rmsnorm_bwd_args){.dx = as_heads(dx, heads),
                                       .dweight = invar_tensor_1d(grad, INVAR_DTYPE_F32, D / heads),
                                       .dy = as_heads(dy, heads),
                                       .x = as_heads(x, heads),
                                       .weight = invar_tensor_rows(&m->all->weight, 0, D / heads),
                                       .units = m->units,
                                       .eps = 1e-6f});

    invar_test_free(&dx);
    return status;
}

static invar_status norm_grad(const invar_device *dev, float *grad, const micro_batch *m)
{
    return norm_grad_heads(dev, grad, m, 1);
}

static invar_status head_norm_grad(const invar_device *dev, float *grad, const micro_batch *m)
{
    return norm_grad_heads(dev, grad, m, HEADS);
}

static invar_status embedding_grad(const invar_device *dev, float *grad, const micro_batch *m)
{
    return invar_embedding_bwd(
        dev,
        &(invar_embedding_bwd_args){invar_tensor_2d(grad, INVAR_DTYPE_F32, VOCABULARY, D),
                                    rows_of(&m->all->dy, m), rows_of(&m->all->ids, m), m->units});
}

static invar_status head_grad(const invar_device *dev, float *grad, const micro_batch *m)
{
    return invar_linear_dw(
        dev,
        &(invar_linear_dw_args){invar_tensor_2d(grad, INVAR_DTYPE_F32, VOCABULARY, D),
                                rows_of(&m->all->dlogits, m), rows_of(&m->all->x, m), m->units, 0});
}

static const gradient gradients[] = {{"token.sum", D, bias_grad},
                                     {"rmsnorm.bwd", D, norm_grad},
                                     {"rmsnorm.bwd, heads", D / HEADS, head_norm_grad},
                                     {"embedding.bwd", VOCABULARY *D, embedding_grad},
                                     {"linear.dw", VOCABULARY *D, head_grad}};

enum { GRADIENTS = sizeof gradients / sizeof *gradients };

/* ---- micro-batches --------------------------------------------------------------------------- */

/* Runs the samples [first, end) as one micro-batch with units of `unit` samples. */
static void run_micro(const invar_device *dev, const gradient *g, float *grad, const batch *b,
                      int first, int end, int unit)
{
    int64_t start[SAMPLES + 1];
    micro_batch m = {b, b->start[first], b->start[end] - b->start[first], {start, 0}};

    start[0] = 0;
    for (int i = first; i < end; i += unit)
        start[++m.units.count] = b->start[i + unit < end ? i + unit : end] - m.first;
    assert_ok(g->run(dev, grad, &m));
}

/*
 * Runs the samples [first, end) as micro-batches: one ends after unit i if bit i of `cuts` is set.
 */
static void run_cut(const invar_device *dev, const gradient *g, float *grad, const batch *b,
                    int first, int end, int unit, uint32_t cuts)
{
    int begin = first;

    for (int i = first; i < end; i += unit) {
        int next = i + unit < end ? i + unit : end;
        if (next == end || cuts >> (i - first) / unit & 1) {
            run_micro(dev, g, grad, b, begin, next, unit);
            begin = next;
        }
    }
}

static void test_gradients__bits_invariant_to_micro_batches(void **state)
{
    int64_t n_cuts = invar_test_count(3, 200);

    for (int d = 0; d < 2; d++) {
        batch b = batch_new(invar_test_storage[d], 3);
        for (int g = 0; g < GRADIENTS; g++)
            for (int unit = 1; unit <= 3; unit++) {
                float whole[MAX_GRAD] = {0};
                run_cut(*state, &gradients[g], whole, &b, 0, SAMPLES, unit, 0);
                for (int64_t i = 0; i < n_cuts; i++) {
                    float cut[MAX_GRAD] = {0};
                    uint32_t cuts = i == 0 ? UINT32_MAX : invar_test_random(7, (uint64_t)i);
                    run_cut(*state, &gradients[g], cut, &b, 0, SAMPLES, unit, cuts);
                    invar_assert_bits_f32(cut, whole, gradients[g].floats, gradients[g].name);
                }
            }
        batch_free(&b);
    }
}

/*
 * Control: a micro-batch that ends inside a unit, other units, and another order of micro-batches
 * give other bits.
 */
static void test_gradients__controls_are_caught(void **state)
{
    batch b = batch_new(INVAR_DTYPE_F32, 0);

    for (int g = 0; g < GRADIENTS; g++) {
        float whole[MAX_GRAD] = {0}, other_units[MAX_GRAD] = {0}, cut_inside_unit[MAX_GRAD] = {0};
        float backwards[MAX_GRAD] = {0};

        run_cut(*state, &gradients[g], whole, &b, 0, SAMPLES, 2, 0);
        run_cut(*state, &gradients[g], other_units, &b, 0, SAMPLES, 3, 0);
        assert_true(invar_bits_differ(whole, other_units, sizeof whole));
        // samples 4 and 5 are one unit
        run_micro(*state, &gradients[g], cut_inside_unit, &b, 0, 5, 2);
        run_micro(*state, &gradients[g], cut_inside_unit, &b, 5, 6, 2);
        run_micro(*state, &gradients[g], cut_inside_unit, &b, 6, SAMPLES, 2);
        assert_true(invar_bits_differ(whole, cut_inside_unit, sizeof whole));
        run_micro(*state, &gradients[g], backwards, &b, 6, SAMPLES, 2);
        run_micro(*state, &gradients[g], backwards, &b, 0, 6, 2);
        assert_true(invar_bits_differ(whole, backwards, sizeof whole));
    }
    batch_free(&b);
}

/* Runs a gradient over `tokens` tokens as two units. */
static void run_tokens(float *grad, const invar_device *dev, const gradient *g, const batch *b,
                       int64_t tokens)
{
    const int64_t start[3] = {0, tokens / 3, tokens};

    memset(grad, 0, MAX_GRAD * sizeof *grad);
    assert_ok(g->run(dev, grad, &(micro_batch){b, 600, tokens, {start, 2}}));
}

static void test_gradients__bits_invariant_to_threads_and_strides(void **state)
{
    static float expected[MAX_GRAD], got[MAX_GRAD];
    const invar_device *devices = *state;
    int64_t step = invar_test_count(69, 1);

    for (int d = 0; d < 2; d++) {
        batch b = batch_new(invar_test_storage[d], 0),
              strided = batch_new(invar_test_storage[d], 5);
        for (int64_t tokens = 1; tokens <= 300; tokens += step)
            for (int g = 0; g < GRADIENTS; g++)
                for (int i = 0; i < INVAR_TEST_DEVICES; i++) {
                    // only linear.dw depends on the numerics, which the first two devices represent
                    int like = gradients[g].run == head_grad ? i % 2 : 0;
                    run_tokens(expected, &devices[like], &gradients[g], &b, tokens);
                    run_tokens(got, &devices[i], &gradients[g], &strided, tokens);
                    invar_assert_bits_f32(got, expected, gradients[g].floats, gradients[g].name);
                }
        batch_free(&b);
        batch_free(&strided);
    }
}

/* ---- tied embedding -------------------------------------------------------------------------- */

/*
 * tied = head gradient + embedding gradient, added once. For comparison, `shared` is a single
 * accumulator for both uses.
 */
static void run_tied(float *tied, float *shared, const invar_device *dev, const batch *b,
                     uint32_t cuts)
{
    static const gradient head = {"linear.dw", MAX_GRAD, head_grad};
    static const gradient embedding = {"embedding.bwd", MAX_GRAD, embedding_grad};
    float from_head[MAX_GRAD] = {0}, from_embedding[MAX_GRAD] = {0};
    int begin = 0;

    memset(shared, 0, MAX_GRAD * sizeof *shared);
    for (int i = 0; i < SAMPLES; i++) {
        if (i + 1 < SAMPLES && !(cuts >> i & 1))
            continue;
        run_micro(dev, &head, from_head, b, begin, i + 1, 1);
        run_micro(dev, &embedding, from_embedding, b, begin, i + 1, 1);
        run_micro(dev, &head, shared, b, begin, i + 1, 1);
        run_micro(dev, &embedding, shared, b, begin, i + 1, 1);
        begin = i + 1;
    }
    assert_ok(invar_add(
        dev, &(invar_add_args){invar_tensor_2d(tied, INVAR_DTYPE_F32, VOCABULARY, D),
                               invar_tensor_2d(from_head, INVAR_DTYPE_F32, VOCABULARY, D),
                               invar_tensor_2d(from_embedding, INVAR_DTYPE_F32, VOCABULARY, D)}));
}

static void test_tied_embedding__bits_invariant_to_micro_batches(void **state)
{
    for (int d = 0; d < 2; d++) {
        batch b = batch_new(invar_test_storage[d], 0);
        static float whole[MAX_GRAD], shared[MAX_GRAD], cut[MAX_GRAD], shared_cut[MAX_GRAD];

        run_tied(whole, shared, *state, &b, 0);
        for (uint64_t i = 0; i < 8; i++) {
            run_tied(cut, shared_cut, *state, &b, i ? invar_test_random(3, i) : UINT32_MAX);
            invar_assert_bits_f32(cut, whole, MAX_GRAD, "tied embedding");
        }
        // control: a single accumulator for both uses depends on the micro-batches
        run_tied(cut, shared_cut, *state, &b, UINT32_MAX);
        assert_true(invar_bits_differ(shared, shared_cut, sizeof shared));
        batch_free(&b);
    }
}

/* ---- data-parallel ranks --------------------------------------------------------------------- */

enum { MOST_RANKS = 5 };

/*
 * Computes each unit separately, starting at +0, and adds the units in order, as data-parallel
 * ranks do.
 */
static void run_units_separately(float *out, const invar_device *dev, const gradient *g,
                                 const batch *b, int unit)
{
    static float own[MAX_GRAD];

    memset(out, 0, MAX_GRAD * sizeof *out);
    for (int first = 0; first < SAMPLES; first += unit) {
        int end = first + unit < SAMPLES ? first + unit : SAMPLES;
        memset(own, 0, sizeof own);
        run_micro(dev, g, own, b, first, end, unit);
        for (int64_t i = 0; i < g->floats; i++)
            out[i] = out[i] + own[i];
    }
}

/* Control: rank r sums the units r, r + ranks, ... itself, then the sums of the ranks are added. */
static void run_by_rank(float *out, const invar_device *dev, const gradient *g, const batch *b,
                        int unit, int ranks)
{
    static float own[MAX_GRAD];

    memset(out, 0, MAX_GRAD * sizeof *out);
    for (int r = 0; r < ranks; r++) {
        memset(own, 0, sizeof own);
        for (int first = r * unit; first < SAMPLES; first += ranks * unit)
            run_micro(dev, g, own, b, first, first + unit < SAMPLES ? first + unit : SAMPLES, unit);
        for (int64_t i = 0; i < g->floats; i++)
            out[i] = out[i] + own[i];
    }
}

static void test_gradients__units_may_be_summed_apart(void **state)
{
    static float whole[MAX_GRAD], separate[MAX_GRAD], by_rank[MAX_GRAD];
    const invar_device *devices = *state;

    for (int d = 0; d < 2; d++) {
        batch b = batch_new(invar_test_storage[d], 0);
        for (int g = 0; g < GRADIENTS; g++)
            for (int unit = 1; unit <= 3; unit++) {
                size_t bytes = (size_t)gradients[g].floats * sizeof(float);
                memset(whole, 0, sizeof whole);
                run_cut(&devices[0], &gradients[g], whole, &b, 0, SAMPLES, unit, 0);
                run_units_separately(separate, &devices[0], &gradients[g], &b, unit);
                invar_assert_bits_f32(separate, whole, gradients[g].floats, gradients[g].name);
                for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
                    run_by_rank(by_rank, &devices[0], &gradients[g], &b, unit, ranks);
                    if (ranks * unit < SAMPLES) // else each rank has one unit
                        assert_true(invar_bits_differ(by_rank, whole, bytes));
                }
            }
        batch_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients__bits_invariant_to_micro_batches),
        cmocka_unit_test(test_gradients__controls_are_caught),
        cmocka_unit_test(test_gradients__bits_invariant_to_threads_and_strides),
        cmocka_unit_test(test_tied_embedding__bits_invariant_to_micro_batches),
        cmocka_unit_test(test_gradients__units_may_be_summed_apart),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
