/*
 * sample.c - tests of sampling against a naive form of its expression and the exact distribution.
 *
 * The naive form sorts by float comparison and handles one token at a time; it shares no code with
 * the op except exp, log and Philox. Controls: with other chunks, or a softmax over tokens that
 * top-k drops, some draws differ.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/philox.h"
#include "tests/ops.h"

typedef struct settings {
    float temperature;
    int32_t top_k;
    float top_p;
    float min_p;
} settings;

/* ---- the naive form -------------------------------------------------------------------------- */

static bool ranks_before(const float *z, int32_t a, int32_t b)
{
    return z[a] > z[b] || (z[a] == z[b] && a < b);
}

/* Shellsort. The order is total, so the algorithm does not affect the result. */
static void sort_ref(int32_t *ids, const float *z, int64_t n)
{
    for (int64_t gap = n / 2; gap > 0; gap /= 2)
        for (int64_t i = gap; i < n; i++) {
            int32_t id = ids[i];
            int64_t pos = i;
            for (; pos >= gap && ranks_before(z, id, ids[pos - gap]); pos -= gap)
                ids[pos] = ids[pos - gap];
            ids[pos] = id;
        }
}

static float score_ref(float z, int32_t id, const invar_sample_coords *coords,
                       const uint32_t key[2])
{
    uint32_t counter[4] = {(uint32_t)id >> 2, coords->position, coords->sample, coords->rollout},
             word[4];
    float u;

    invar_philox4x32(word, counter, key);
    u = ((float)(word[id & 3] >> 9) + 0.5f) * 0x1p-23f;
    return z - invar_log(-invar_log(u));
}

/*
 * Returns L, the softmax denominator of the tokens in `left`, from chunks of ids, each relative to
 * its own maximum. The contract has chunks of 256; other sizes are controls.
 */
static float total_ref(const float *z, const bool *left, int64_t vocabulary, float max_logit,
                       int64_t chunk)
{
    float *sums = calloc((size_t)(vocabulary / chunk + 1), sizeof *sums);
    float *e = malloc((size_t)chunk * sizeof *e), total;
    int64_t chunks = 0;

    for (int64_t first = 0; first < vocabulary; first += chunk, chunks++) {
        int64_t count = vocabulary - first < chunk ? vocabulary - first : chunk;
        float largest = -INFINITY;
        for (int64_t i = 0; i < count; i++)
            if (left[first + i] && z[first + i] > largest)
                largest = z[first + i];
        for (int64_t i = 0; i < count; i++)
            e[i] = left[first + i] ? invar_exp(z[first + i] - largest) : 0.0f;
        if (largest > -INFINITY)
            sums[chunks] = invar_test_reduce(e, count) * invar_exp(largest - max_logit);
    }
    total = invar_test_reduce(sums, chunks);
    free(sums);
    free(e);
    return total;
}

/* How the reference samples; every variant other than `contract` is a negative control. */
typedef struct variant {
    int64_t chunk;
    bool full_vocabulary; /* L includes the tokens that top-k drops */
} variant;

static const variant contract = {256, false};

static int32_t sample_variant(const float *logits, int64_t vocabulary, const settings *s,
                              const invar_sample_coords *coords, const uint32_t key[2],
                              const variant *v)
{
    float *z = malloc((size_t)vocabulary * sizeof *z), *e = malloc((size_t)vocabulary * sizeof *e);
    int32_t *ids = malloc((size_t)vocabulary * sizeof *ids), best = -1;
    bool *left = calloc((size_t)vocabulary, sizeof *left);
    float total, best_score = 0.0f;
    int64_t kept = vocabulary;
    uint64_t sum = 0;

    for (int64_t i = 0; i < vocabulary; i++) {
        z[i] = s->temperature == 0.0f ? logits[i] : logits[i] * (1.0f / s->temperature);
        ids[i] = (int32_t)i;
    }
    sort_ref(ids, z, vocabulary);
    if (s->temperature == 0.0f)
        kept = 1;
    if (s->top_k > 0 && s->top_k < kept)
        kept = s->top_k;
    for (int64_t i = 0; i < kept; i++)
        e[i] = invar_exp(z[ids[i]] - z[ids[0]]);
    for (int64_t i = 0; i < (v->full_vocabulary ? vocabulary : kept); i++)
        left[ids[i]] = true;
    total = total_ref(z, left, vocabulary, z[ids[0]], v->chunk);
    for (int64_t i = 0; i < kept && s->top_p < 1.0f; i++) {
        if (sum >= (uint64_t)((double)s->top_p * 0x1p40))
            kept = i;
        sum += (uint64_t)((double)(e[i] / total) * 0x1p40);
    }
    for (int64_t i = 0; i < kept; i++) {
        float score = s->temperature == 0.0f ? 0.0f : score_ref(z[ids[i]], ids[i], coords, key);
        if (e[i] < s->min_p)
            continue;
        if (best < 0 || score > best_score || (score == best_score && ids[i] < best)) {
            best = ids[i];
            best_score = score;
        }
    }
    free(z);
    free(e);
    free(ids);
    free(left);
    return best;
}

static int32_t sample_ref(const float *logits, int64_t vocabulary, const settings *s,
                          const invar_sample_coords *coords, const uint32_t key[2])
{
    return sample_variant(logits, vocabulary, s, coords, key, &contract);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static const uint32_t philox_key[2] = {1234, 5};

/* Tokens that some rows must not draw; zeroed if there are none. */
typedef struct hidden_tokens {
    invar_tensor hidden, hides;
} hidden_tokens;

/* Samples one token per row of the logits, at the positions 0, 1, ... */
static void sample_with_hidden(int32_t *tokens, const invar_tensor *logits, const settings *s,
                               const hidden_tokens *h)
{
    int64_t rows = logits->shape[0];
    invar_sample_coords *coords = malloc((size_t)rows * sizeof *coords);
    invar_device dev;

    for (int64_t i = 0; i < rows; i++)
        coords[i] = (invar_sample_coords){(uint32_t)i, 3, 7};
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_ok(invar_sample(
        &dev, &(invar_sample_args){.tokens = invar_tensor_1d(tokens, INVAR_DTYPE_I32, rows),
                                   .logits = *logits,
                                   .coords = coords,
                                   .seed = philox_key[0],
                                   .purpose = philox_key[1],
                                   .temperature = s->temperature,
                                   .top_k = s->top_k,
                                   .top_p = s->top_p,
                                   .min_p = s->min_p,
                                   .hidden = h->hidden,
                                   .hides = h->hides}));
    invar_test_device_release(&dev);
    free(coords);
}

static void sample_rows(int32_t *tokens, const invar_tensor *logits, const settings *s)
{
    sample_with_hidden(tokens, logits, s, &(hidden_tokens){{0}, {0}});
}

/* Fills the logits: 0 typical, 1 with ties, 2 all equal, 3 zeros of both signs. */
static void fill_logits(const invar_tensor *logits, int kind)
{
    invar_test_fill_normal(logits, 17, 2.5f);
    for (int64_t t = 0; t < logits->shape[0]; t++)
        for (int64_t v = 0; v < logits->shape[1]; v++) {
            float z = invar_test_get(logits, t, v);
            if (kind == 1)
                invar_test_set(logits, t, v, floorf(z));
            else if (kind == 2)
                invar_test_set(logits, t, v, 4.0f);
            else if (kind == 3)
                invar_test_set(logits, t, v, z > 0.0f ? 0.0f : -0.0f);
        }
}
enum { KINDS = 4 };

static void check_rows(const invar_tensor *logits, const settings *s)
{
    int64_t rows = logits->shape[0];
    int32_t *tokens = malloc((size_t)rows * sizeof *tokens);

    sample_rows(tokens, logits, s);
    for (int64_t i = 0; i < rows; i++) {
        const float *row = (const float *)logits->data + i * logits->row_stride;
        const invar_sample_coords coords = {(uint32_t)i, 3, 7};
        int32_t expected = sample_ref(row, logits->shape[1], s, &coords, philox_key);
        if (tokens[i] != expected)
            fail_msg("row %d of %d tokens: got %d, expected %d (T %g, k %d, p %g, min %g)", (int)i,
                     (int)logits->shape[1], tokens[i], expected, (double)s->temperature, s->top_k,
                     (double)s->top_p, (double)s->min_p);
    }
    free(tokens);
}

static void test_sample__equals_the_expression(void **state)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 100, 255, 256, 257, 1000, 5000};
    static const float temperatures[] = {0.0f, 0.7f, 1.0f, 2.5f, 0.02f, 1e30f};
    static const int32_t top_k[] = {0, 1, 2, 40, 5001};
    static const float top_p[] = {1.0f, 0.9f, 0.5f, 0.99999f, 0x1p-40f}, min_p[] = {0, 0.05f, 1};
    int64_t rows = invar_test_count(1, 8);

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            invar_tensor logits =
                invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, rows, sizes[i]), 5);
            fill_logits(&logits, kind);
            for (int j = 0; j < 6 * 5 * 5 * 3; j++) {
                const settings s = {temperatures[j / 75], top_k[j / 15 % 5], top_p[j / 3 % 5],
                                    min_p[j % 3]};
                if (sizes[i] < 1000 || j % 7 == kind)
                    check_rows(&logits, &s);
            }
            invar_test_free(&logits);
        }
}

static void test_sample__equals_the_expression_for_a_large_vocabulary(void **state)
{
    static const settings all[] = {
        {0.7f, 0, 1, 0},      {1, 50, 1, 0},         {1, 0, 0.95f, 0}, {0.8f, 3000, 0.9f, 0.001f},
        {1, 20, 0.95f, 0.1f}, {50.0f, 0, 0.999f, 0}, {0.1f, 0, 1, 0},  {0.1f, 0, 0.9f, 0}};
    invar_tensor logits = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 2, 151936));

    (void)state;
    fill_logits(&logits, 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_rows(&logits, &all[i]);
    invar_test_free(&logits);
}

/* Rounding keeps the integer sum of 150009 equal tokens below top_p, so no token is dropped. */
static void test_sample__keeps_all_if_the_sum_is_below_top_p(void **state)
{
    invar_tensor logits = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 2, 150009));

    (void)state;
    fill_logits(&logits, 2);
    check_rows(&logits, &(settings){1, 0, 0x1.fffffep-1f, 0});
    invar_test_free(&logits);
}

/*
 * Five tokens dominate. The last bits of L decide if top-p keeps the fifth, so the controls with
 * other chunks, or with the tokens that top-k drops, draw other tokens in some rows.
 */
static void test_sample__controls_of_top_p_differ(void **state)
{
    static const variant controls[] = {{128, false}, {512, false}, {1000, false}, {256, true}};
    enum { ROWS = 200, TOKENS = 1000, CONTROLS = sizeof controls / sizeof *controls };
    const invar_sample_coords coords = {0, 3, 7};
    invar_tensor logits = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, TOKENS));
    int differing[CONTROLS] = {0};

    (void)state;
    fill_logits(&logits, 0);
    for (int64_t row = 0; row < ROWS; row++) {
        invar_tensor one = invar_tensor_rows(&logits, row, 1);
        settings s = {1, row % 2 ? 0 : 900, 1, 0};
        bool left[TOKENS];
        for (int i = 0; i < TOKENS; i++)
            left[i] = true;
        for (int i = 0; i < 5; i++) // at other ids in each row, for other noise
            invar_test_set(&one, 0, (300 * i + 7 * row) % TOKENS, i == 4 ? 9.999f : 10.0f);
        s.top_p = 4.0f / total_ref(one.data, left, TOKENS, 10.0f, 256) + 4 * 0x1p-24f;
        for (int i = 0; i < 9; i++, s.top_p = nextafterf(s.top_p, 0.0f)) {
            int32_t token, expected = sample_ref(one.data, TOKENS, &s, &coords, philox_key);
            sample_rows(&token, &one, &s);
            assert_int_equal(token, expected);
            for (int j = 0; j < CONTROLS; j++)
                differing[j] += sample_variant(one.data, TOKENS, &s, &coords, philox_key,
                                               &controls[j]) != expected;
        }
    }
    for (int j = 0; j < CONTROLS; j++)
        assert_true(differing[j] > 0);
    invar_test_free(&logits);
}

/* ---- hidden tokens --------------------------------------------------------------------------- */

/* A row that hides tokens draws as if their logits were -2^100. Other rows are unaffected. */
static void check_hiding(const invar_tensor *logits, const settings *s, int32_t count)
{
    enum { ROWS = 12 };
    int32_t ids[64], flags[ROWS], tokens[ROWS], expected[ROWS], plain[ROWS];
    invar_tensor changed = invar_test_tensor(
        invar_tensor_2d(NULL, INVAR_DTYPE_F32, logits->shape[0], logits->shape[1]));
    const hidden_tokens h = {invar_tensor_1d(ids, INVAR_DTYPE_I32, count),
                             invar_tensor_1d(flags, INVAR_DTYPE_I32, ROWS)};

    assert_true(count <= 64 && logits->shape[0] == ROWS);
    for (int32_t i = 0; i < count; i++)
        ids[i] = (int32_t)(invar_test_random(3, (uint64_t)i) % logits->shape[1]);
    for (int32_t t = 0; t < ROWS; t++) {
        flags[t] = (t % 3) * 1000 - 1000; // any number other than 0 hides the tokens
        for (int64_t v = 0; v < logits->shape[1]; v++)
            invar_test_set(&changed, t, v, invar_test_get(logits, t, v));
        for (int32_t i = 0; flags[t] != 0 && i < count; i++)
            invar_test_set(&changed, t, ids[i], -0x1p100f);
    }
    sample_rows(plain, logits, s);
    sample_with_hidden(tokens, logits, s, &h);
    sample_rows(expected, &changed, s);
    assert_memory_equal(tokens, expected, sizeof tokens);
    for (int32_t t = 0; t < ROWS; t++)
        if (flags[t] == 0)
            assert_int_equal(tokens[t], plain[t]);
    invar_test_free(&changed);
}

static void test_sample__hidden_tokens_count_as_very_small(void **state)
{
    static const settings all[] = {{0, 0, 1, 0},    {1, 0, 1, 0},        {0.7f, 40, 1, 0},
                                   {1, 0, 0.9f, 0}, {1.5f, 0, 1, 0.05f}, {0.8f, 30, 0.9f, 0.001f},
                                   {1, 2, 1, 0}};
    static const int64_t sizes[] = {1, 2, 5, 100, 1000};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) {
            invar_tensor logits =
                invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 12, sizes[i]), 3);
            fill_logits(&logits, (int)j % 2);
            for (int32_t count = 0; count <= 64; count = 4 * count + 1)
                check_hiding(&logits, &all[j], count);
            invar_test_free(&logits);
        }
}

/* ---- edge cases of the filters --------------------------------------------------------------- */

enum { DRAWS = 400 };

/* Returns a bit set of the tokens that appear in DRAWS draws from the same four logits. */
static unsigned drawn_tokens(const float *four, const settings *s)
{
    invar_tensor logits = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, DRAWS, 4));
    int32_t tokens[DRAWS];
    unsigned seen = 0;

    for (int i = 0; i < DRAWS; i++)
        memcpy((float *)logits.data + 4 * i, four, 4 * sizeof *four);
    sample_rows(tokens, &logits, s);
    for (int i = 0; i < DRAWS; i++)
        seen |= 1u << tokens[i];
    invar_test_free(&logits);
    return seen;
}

static void test_sample__edges_of_the_filters(void **state)
{
    const float tied[4] = {1, 2, 2, 0}, flat[4] = {0}, zeros[4] = {-0.0f, 0.0f, -1, -1};

    (void)state;
    assert_int_equal(drawn_tokens(flat, &(settings){1, 0, 1, 0}), 0xF);
    assert_int_equal(drawn_tokens(tied, &(settings){0, 0, 1, 0}), 0x2);  // greedy, lower id
    assert_int_equal(drawn_tokens(zeros, &(settings){0, 0, 1, 0}), 0x1); // -0 equals +0
    assert_int_equal(drawn_tokens(tied, &(settings){1, 1, 1, 0}), 0x2);  // top-k 1, lower id
    assert_int_equal(drawn_tokens(zeros, &(settings){1, 1, 1, 0}), 0x1);
    assert_int_equal(drawn_tokens(tied, &(settings){1, 2, 1, 0}), 0x6);
    assert_int_equal(drawn_tokens(flat, &(settings){1, 3, 1, 0}), 0x7);
    assert_int_equal(drawn_tokens(flat, &(settings){1, 9, 1, 0}),
                     0xF); // larger than the vocabulary
    assert_int_equal(drawn_tokens(tied, &(settings){1, 0, 0x1p-40f, 0}), 0x2); // the smallest top-p
    assert_int_equal(drawn_tokens(flat, &(settings){1, 0, 0.25f, 0}),
                     0x1); // equal to the first probability
    assert_int_equal(drawn_tokens(flat, &(settings){1, 0, 0.250001f, 0}), 0x3);
    assert_int_equal(drawn_tokens(flat, &(settings){1, 2, 0.5f, 0}),
                     0x1); // top-p applies after top-k
    assert_int_equal(drawn_tokens(tied, &(settings){1, 0, 1, 1}),
                     0x6); // min-p 1 keeps ties with the best
    assert_int_equal(drawn_tokens(tied, &(settings){1, 0, 1, 0.367f}), 0x7); // exp(-1) = 0.3679
    assert_int_equal(drawn_tokens(tied, &(settings){1, 0, 1, 0.369f}), 0x6);
    assert_int_equal(drawn_tokens(tied, &(settings){1, 1, 1, 1e-6f}), 0x2);
}

/* The token is within the vocabulary even if logits are NaN or infinite. */
static void test_sample__survives_infinities_and_nan(void **state)
{
    static const float values[] = {NAN, -NAN, INFINITY, -INFINITY, 3e38f, 0.0f};
    static const settings all[] = {{0, 0, 1, 0},    {1, 0, 1, 0},          {1, 2, 1, 0},
                                   {1, 0, 0.9f, 0}, {0.5f, 3, 0.5f, 0.1f}, {1, 0, 1, 1}};
    enum { ROWS = 36 };
    invar_tensor logits = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, 5));
    int32_t tokens[ROWS];

    (void)state;
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t v = 0; v < 5; v++)
            invar_test_set(&logits, i, v, values[v % 2 ? i % 6 : i / 6]);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        sample_rows(tokens, &logits, &all[i]);
        for (int j = 0; j < ROWS; j++)
            assert_true(tokens[j] >= 0 && tokens[j] < 5);
    }
    invar_test_free(&logits);
}

/* ---- the distribution ------------------------------------------------------------------------ */

enum { TOKENS = 12 };

/* Computes the exact probabilities after the filters, in double. */
static void probabilities(double *p, const float *logits, const settings *s)
{
    double z[TOKENS], total = 0.0, cumulative = 0.0, rest = 0.0, max_logit = -INFINITY;
    int order[TOKENS], left = s->top_k > 0 && s->top_k < TOKENS ? s->top_k : TOKENS;

    for (int i = 0; i < TOKENS; i++) {
        int pos = i;
        z[i] = (double)logits[i] / (double)s->temperature;
        max_logit = fmax(max_logit, z[i]);
        for (; pos > 0 && z[order[pos - 1]] < z[i]; pos--)
            order[pos] = order[pos - 1];
        order[pos] = i;
        p[i] = 0.0;
    }
    for (int i = 0; i < left; i++)
        total += exp(z[order[i]] - max_logit);
    for (int i = 0; i < left; i++) {
        double q = exp(z[order[i]] - max_logit) / total;
        if ((s->top_p < 1.0f && cumulative >= (double)s->top_p) ||
            exp(z[order[i]] - max_logit) < (double)s->min_p)
            continue;
        cumulative += q;
        p[order[i]] = q;
        rest += q;
    }
    for (int i = 0; i < TOKENS; i++)
        p[i] /= rest;
}

/*
 * Chi-square test with at most 11 degrees of freedom, which exceeds 48 in one of 10^6 runs. The
 * seed is fixed, so the result is reproducible. Tokens that a filter drops must never appear.
 */
static void test_sample__follows_the_distribution(void **state)
{
    static const settings all[] = {{1, 0, 1, 0},    {0.5f, 0, 1, 0},    {3, 0, 1, 0},
                                   {1, 5, 1, 0},    {1, 0, 0.8f, 0},    {1, 0, 1, 0.1f},
                                   {1, 6, 0.9f, 0}, {2, 8, 0.95f, 0.2f}};
    int64_t draws = invar_test_count(20000, 1000000);
    invar_tensor logits = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, draws, TOKENS));
    int32_t *tokens = malloc((size_t)draws * sizeof *tokens);
    float *row = logits.data;

    (void)state;
    for (int64_t i = 0; i < draws * TOKENS; i++)
        row[i] = i < TOKENS ? invar_test_normal(3, (uint64_t)i, 1.5f) : row[i - TOKENS];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double p[TOKENS], chi = 0.0;
        int64_t count[TOKENS] = {0};

        probabilities(p, row, &all[i]);
        sample_rows(tokens, &logits, &all[i]);
        for (int64_t j = 0; j < draws; j++)
            count[tokens[j]]++;
        for (int v = 0; v < TOKENS; v++) {
            double expected = p[v] * (double)draws, off = (double)count[v] - expected;
            if (p[v] == 0.0)
                assert_int_equal(count[v], 0);
            else
                chi += off * off / expected;
        }
        if (!(chi < 48.0))
            fail_msg("settings %d: chi-square %g", (int)i, chi);
    }
    free(tokens);
    invar_test_free(&logits);
}

/* ---- errors ---------------------------------------------------------------------------------- */

#define REFUSED(field, value, text)                                                                \
    do {                                                                                           \
        invar_sample_args bad = good;                                                              \
        bad.field = value;                                                                         \
        assert_fails(invar_sample(&dev, &bad), INVAR_E_INVALID, "sample: " text);                  \
    } while (0)

static void test_sample__rejects_bad_arguments(void **state)
{
    float data[3 * 4] = {0};
    int32_t token[3];
    const invar_sample_coords coords[3] = {{0}};
    const invar_sample_args good = {.tokens = invar_tensor_1d(token, INVAR_DTYPE_I32, 3),
                                    .logits = invar_tensor_2d(data, INVAR_DTYPE_F32, 3, 4),
                                    .coords = coords,
                                    .temperature = 1.0f,
                                    .top_p = 1.0f};
    const invar_tensor ids = invar_tensor_1d((int32_t[]){0, 4}, INVAR_DTYPE_I32, 2);
    invar_sample_args greedy = good, with_hidden = good;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_ok(invar_sample(&dev, &good));
    REFUSED(logits.dtype, INVAR_DTYPE_BF16, "logits: type bf16");
    REFUSED(logits.shape[1], 0, "vocabulary: 0; expected 1 to ");
    REFUSED(logits.row_stride, 3, "logits: row stride 3");
    REFUSED(tokens.shape[0], 2, "tokens: extent 2");
    REFUSED(tokens.dtype, INVAR_DTYPE_I64, "tokens: type i64");
    REFUSED(coords, NULL, "coords: missing");
    REFUSED(temperature, -1.0f, "temperature: -1");
    REFUSED(temperature, 1e-39f, "temperature: 1e-39");
    REFUSED(temperature, NAN, "temperature: ");
    REFUSED(temperature, INFINITY, "temperature: inf");
    REFUSED(top_k, -1, "top_k: -1; expected 0 to ");
    REFUSED(top_p, 0.0f, "top_p: 0");
    REFUSED(top_p, 0x1p-41f, "top_p: 4.5");
    REFUSED(top_p, 1.5f, "top_p: 1.5");
    REFUSED(top_p, NAN, "top_p: ");
    REFUSED(min_p, -0.5f, "min_p: -0.5; expected 0 to 1");
    REFUSED(min_p, 1.5f, "min_p: 1.5");
    REFUSED(hidden, ids, "hides: missing");
    REFUSED(hides, ids, "hidden: missing");
    with_hidden.hides = invar_tensor_1d((int32_t[]){0, 1, 0}, INVAR_DTYPE_I32, 3);
    with_hidden.hidden = ids;
    assert_fails(invar_sample(&dev, &with_hidden), INVAR_E_INVALID,
                 "sample: hidden: value 4 in row 1; expected 0 to 3");
    with_hidden.hidden = with_hidden.tokens;
    assert_fails(invar_sample(&dev, &with_hidden), INVAR_E_INVALID, "sample: tokens");
    greedy.temperature = 0.0f;
    greedy.coords = NULL; // not needed without randomness
    assert_ok(invar_sample(&dev, &greedy));
    invar_test_device_release(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample__equals_the_expression),
        cmocka_unit_test(test_sample__equals_the_expression_for_a_large_vocabulary),
        cmocka_unit_test(test_sample__keeps_all_if_the_sum_is_below_top_p),
        cmocka_unit_test(test_sample__controls_of_top_p_differ),
        cmocka_unit_test(test_sample__hidden_tokens_count_as_very_small),
        cmocka_unit_test(test_sample__edges_of_the_filters),
        cmocka_unit_test(test_sample__survives_infinities_and_nan),
        cmocka_unit_test(test_sample__follows_the_distribution),
        cmocka_unit_test(test_sample__rejects_bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
