/*
 * layers_tokens.c - gradients summed over tokens do not depend on micro-batches, ranks or threads.
 *
 * Samples are cut into units, units into micro-batches. Whatever the micro-batches, and whoever
 * sums a unit, the bits are those of the whole. Controls: cuts inside a unit, other units, one
 * accumulator for two uses, an accumulator per rank.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/ops.h"

enum { SAMPLES = 12, D = 640, HEADS = 5, VOCABULARY = 12, MAX_GRAD = VOCABULARY * D };

static const int64_t lengths[SAMPLES] = {1, 7, 128, 129, 40, 300, 2, 64, 255, 16, 33, 90};

/* The tokens of all samples, in order. */
typedef struct batch {
    int64_t start[SAMPLES + 1]; /* of each sample */
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

/* A micro-batch: tokens [first, first + tokens) of the batch; its units count from `first`. */
typedef struct micro {
    const batch *all;
    int64_t first;
    int64_t tokens;
    invar_row_offsets units;
} micro;

/* A gradient: `grad` holds `floats` floats and accumulates. */
typedef struct gradient {
    const char *name;
    int64_t floats;
    invar_status (*run)(const invar_device *dev, float *grad, const micro *m);
} gradient;

static invar_tensor rows(const invar_tensor *t, const micro *m)
{
    return invar_tensor_rows(t, m->first, m->tokens);
}

static invar_status bias_grad(const invar_device *dev, float *grad, const micro *m)
{
    return invar_token_sum(dev, &(invar_token_sum_args){invar_tensor_1d(grad, INVAR_DTYPE_F32, D),
                                                        rows(&m->all->dy, m), m->units});
}

/* Rows of D values as heads. */
static invar_tensor as_heads(invar_tensor t, int64_t heads)
{
    t.rank = 3;
    t.shape[1] = heads;
    t.shape[2] = D / heads;
    return t;
}

static invar_status norm_grad_heads(const invar_device *dev, float *grad, const micro *m,
                                    int64_t heads)
{
    invar_tensor x = rows(&m->all->x, m), dy = rows(&m->all->dy, m);
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

static invar_status norm_grad(const invar_device *dev, float *grad, const micro *m)
{
    return norm_grad_heads(dev, grad, m, 1);
}

static invar_status head_norm_grad(const invar_device *dev, float *grad, const micro *m)
{
    return norm_grad_heads(dev, grad, m, HEADS);
}

static invar_status embedding_grad(const invar_device *dev, float *grad, const micro *m)
{
    return invar_embedding_bwd(
        dev, &(invar_embedding_bwd_args){invar_tensor_2d(grad, INVAR_DTYPE_F32, VOCABULARY, D),
                                         rows(&m->all->dy, m), rows(&m->all->ids, m), m->units});
}

static invar_status head_grad(const invar_device *dev, float *grad, const micro *m)
{
    return invar_linear_dw(
        dev, &(invar_linear_dw_args){invar_tensor_2d(grad, INVAR_DTYPE_F32, VOCABULARY, D),
                                     rows(&m->all->dlogits, m), rows(&m->all->x, m), m->units, 0});
}

static const gradient gradients[] = {{"token.sum", D, bias_grad},
                                     {"rmsnorm.bwd", D, norm_grad},
                                     {"rmsnorm.bwd, heads", D / HEADS, head_norm_grad},
                                     {"embedding.bwd", VOCABULARY *D, embedding_grad},
                                     {"linear.dw", VOCABULARY *D, head_grad}};

enum { GRADIENTS = sizeof gradients / sizeof *gradients };

/* ---- micro-batches --------------------------------------------------------------------------- */

/* The samples [first, end) as one micro-batch of units of `unit` samples. */
static void run_micro(const invar_device *dev, const gradient *g, float *grad, const batch *b,
                      int first, int end, int unit)
{
    int64_t start[SAMPLES + 1];
    micro m = {b, b->start[first], b->start[end] - b->start[first], {start, 0}};

    start[0] = 0;
    for (int i = first; i < end; i += unit)
        start[++m.units.count] = b->start[i + unit < end ? i + unit : end] - m.first;
    assert_ok(g->run(dev, grad, &m));
}

/* Bit i of `cuts` set: a micro-batch ends behind unit i. The samples are [first, end). */
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
    int64_t tries = invar_test_count(3, 200);

    for (int d = 0; d < 2; d++) {
        batch b = batch_new(invar_test_storage[d], 3);
        for (int g = 0; g < GRADIENTS; g++)
            for (int unit = 1; unit <= 3; unit++) {
                float whole[MAX_GRAD] = {0};
                run_cut(*state, &gradients[g], whole, &b, 0, SAMPLES, unit, 0);
                for (int64_t i = 0; i < tries; i++) {
                    float cut[MAX_GRAD] = {0};
                    uint32_t cuts = i == 0 ? UINT32_MAX : invar_test_random(7, (uint64_t)i);
                    run_cut(*state, &gradients[g], cut, &b, 0, SAMPLES, unit, cuts);
                    invar_assert_bits_f32(cut, whole, gradients[g].floats, gradients[g].name);
                }
            }
        batch_free(&b);
    }
}

/* A cut inside a unit, or other units, must show. */
static void test_gradients__controls_are_caught(void **state)
{
    batch b = batch_new(INVAR_DTYPE_F32, 0);

    for (int g = 0; g < GRADIENTS; g++) {
        float whole[MAX_GRAD] = {0}, other[MAX_GRAD] = {0}, inside[MAX_GRAD] = {0};
        float backwards[MAX_GRAD] = {0};

        run_cut(*state, &gradients[g], whole, &b, 0, SAMPLES, 2, 0);
        run_cut(*state, &gradients[g], other, &b, 0, SAMPLES, 3, 0);
        assert_true(invar_bits_differ(whole, other, sizeof whole));
        // samples 4 and 5 are one unit
        run_micro(*state, &gradients[g], inside, &b, 0, 5, 2);
        run_micro(*state, &gradients[g], inside, &b, 5, 6, 2);
        run_micro(*state, &gradients[g], inside, &b, 6, SAMPLES, 2);
        assert_true(invar_bits_differ(whole, inside, sizeof whole));
        run_micro(*state, &gradients[g], backwards, &b, 6, SAMPLES, 2);
        run_micro(*state, &gradients[g], backwards, &b, 0, 6, 2);
        assert_true(invar_bits_differ(whole, backwards, sizeof whole));
    }
    batch_free(&b);
}

/* The same tokens on a device, as two units. */
static void run_tokens(float *grad, const invar_device *dev, const gradient *g, const batch *b,
                       int64_t tokens)
{
    const int64_t start[3] = {0, tokens / 3, tokens};

    memset(grad, 0, MAX_GRAD * sizeof *grad);
    assert_ok(g->run(dev, grad, &(micro){b, 600, tokens, {start, 2}}));
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
                    // only linear.dw follows the numerics, which the first two devices represent
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

/* Head and embedding gradient, added once; with one accumulator for both uses for comparison. */
static void run_tied(float *tied, float *one, const invar_device *dev, const batch *b,
                     uint32_t cuts)
{
    static const gradient head = {"linear.dw", MAX_GRAD, head_grad};
    static const gradient embedding = {"embedding.bwd", MAX_GRAD, embedding_grad};
    float from_head[MAX_GRAD] = {0}, from_embedding[MAX_GRAD] = {0};
    int begin = 0;

    memset(one, 0, MAX_GRAD * sizeof *one);
    for (int i = 0; i < SAMPLES; i++) {
        if (i + 1 < SAMPLES && !(cuts >> i & 1))
            continue;
        run_micro(dev, &head, from_head, b, begin, i + 1, 1);
        run_micro(dev, &embedding, from_embedding, b, begin, i + 1, 1);
        run_micro(dev, &head, one, b, begin, i + 1, 1);
        run_micro(dev, &embedding, one, b, begin, i + 1, 1);
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
        static float whole[MAX_GRAD], one[MAX_GRAD], cut[MAX_GRAD], one_cut[MAX_GRAD];

        run_tied(whole, one, *state, &b, 0);
        for (uint64_t i = 0; i < 8; i++) {
            run_tied(cut, one_cut, *state, &b, i ? invar_test_random(3, i) : UINT32_MAX);
            invar_assert_bits_f32(cut, whole, MAX_GRAD, "tied embedding");
        }
        // the control: two uses in one accumulator follow the micro-batches
        run_tied(cut, one_cut, *state, &b, UINT32_MAX);
        assert_true(invar_bits_differ(one, one_cut, sizeof one));
        batch_free(&b);
    }
}

/* ---- data-parallel ranks --------------------------------------------------------------------- */

enum { MOST_RANKS = 5 };

/* Each unit by itself from +0, whoever has it; then added in order, by who owns the elements. */
static void run_apart(float *out, const invar_device *dev, const gradient *g, const batch *b,
                      int unit)
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

/* The control: rank r sums the units r, r + ranks, ... itself, and the ranks' sums are added. */
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
    static float whole[MAX_GRAD], apart[MAX_GRAD], by_rank[MAX_GRAD];
    const invar_device *devices = *state;

    for (int d = 0; d < 2; d++) {
        batch b = batch_new(invar_test_storage[d], 0);
        for (int g = 0; g < GRADIENTS; g++)
            for (int unit = 1; unit <= 3; unit++) {
                size_t bytes = (size_t)gradients[g].floats * sizeof(float);
                memset(whole, 0, sizeof whole);
                run_cut(&devices[0], &gradients[g], whole, &b, 0, SAMPLES, unit, 0);
                run_apart(apart, &devices[0], &gradients[g], &b, unit);
                invar_assert_bits_f32(apart, whole, gradients[g].floats, gradients[g].name);
                for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
                    run_by_rank(by_rank, &devices[0], &gradients[g], &b, unit, ranks);
                    if (ranks * unit < SAMPLES) // else each has one unit
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
