/*
 * attention_paged.c - attention over a paged KV cache has the bits of attention over the sample.
 *
 * A sample is prefilled at once, in chunks and token by token, with pages of several sizes in
 * random order and stale values in unused rows; batches mix prefill and decode. Each row must
 * equal the one of attention.fwd over its whole sample, or of the naive expression
 * (attention_expression.h). Control: other key spans give other bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/kernels-deterministic/cpu/attention_expression.h"

/* The cache of all samples of a pack. Row i of the page table belongs to sample i. */
typedef struct paged {
    const attention_pack *pack;
    const invar_device *dev;
    invar_kv_pages cache;
    int64_t done[ATTENTION_MAX_SAMPLES]; /* number of positions that are in the cache */
} paged;

/* The rows of one sequence in a call. */
typedef struct seq_rows {
    int64_t sample;
    int64_t rows;
} seq_rows;

/* Makes a cache with two pages more than needed, in random order, all filled with `stale`. */
static paged paged_new(const attention_pack *pack, const invar_device *dev, int64_t page_size,
                       float stale)
{
    const attention_form *f = &pack->form;
    paged c = {.pack = pack, .dev = dev};
    int64_t max_pages = 0, n_pages;
    int32_t *pages;

    for (int64_t i = 0; i < pack->count; i++) {
        int64_t length = pack->start[i + 1] - pack->start[i];
        max_pages = length > max_pages ? length : max_pages;
    }
    max_pages = (max_pages + page_size - 1) / page_size;
    n_pages = max_pages * pack->count + 2;
    c.cache.k = invar_test_strided(
        invar_tensor_4d(NULL, f->dtype, n_pages, page_size, f->kv_heads, f->dim), ATTENTION_GAP);
    c.cache.v =
        invar_test_tensor(invar_tensor_4d(NULL, f->dtype, n_pages, page_size, f->kv_heads, f->dim));
    c.cache.pages =
        invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_I32, pack->count, max_pages));
    invar_test_fill(&c.cache.k, stale);
    invar_test_fill(&c.cache.v, stale);
    pages = malloc((size_t)n_pages * sizeof *pages);
    assert_non_null(pages);
    for (int64_t i = 0; i < n_pages; i++) {
        int64_t j = invar_test_random(99, (uint64_t)i) % (i + 1);
        pages[i] = pages[j];
        pages[j] = (int32_t)i;
    }
    memcpy(c.cache.pages.data, pages, (size_t)(max_pages * pack->count) * sizeof *pages);
    free(pages);
    return c;
}

static void paged_free(paged *c)
{
    invar_test_free(&c->cache.k, &c->cache.v, &c->cache.pages);
}

static void copy_row(const invar_tensor *to, int64_t to_row, const invar_tensor *from,
                     int64_t from_row)
{
    int64_t element = invar_dtype_bits(from->dtype) / 8;

    memcpy((char *)to->data + to_row * to->row_stride * element,
           (const char *)from->data + from_row * from->row_stride * element,
           (size_t)(invar_tensor_row_elements(from) * element));
}

/*
 * Writes the next rows of some samples to the cache, runs attention on them, and copies o to
 * out->o.
 */
static void paged_call(paged *c, const attention_pack *out, const seq_rows *batch, int64_t count)
{
    const attention_pack *p = c->pack;
    const attention_form *f = &p->form;
    int64_t start[ATTENTION_MAX_SAMPLES + 1] = {0}, lengths[ATTENTION_MAX_SAMPLES];
    invar_tensor q, k, v, o, pages = c->cache.pages;
    invar_kv_pages cache = c->cache;

    for (int64_t n = 0; n < count; n++) {
        start[n + 1] = start[n] + batch[n].rows;
        lengths[n] = c->done[batch[n].sample] + batch[n].rows;
    }
    pages.shape[0] = count;
    pages = invar_test_tensor(pages);
    q = invar_test_tensor(invar_tensor_3d(NULL, f->dtype, start[count], f->heads, f->dim));
    o = invar_test_tensor(invar_tensor_3d(NULL, f->dtype, start[count], f->heads, f->dim));
    k = invar_test_tensor(invar_tensor_3d(NULL, f->dtype, start[count], f->kv_heads, f->dim));
    v = invar_test_tensor(invar_tensor_3d(NULL, f->dtype, start[count], f->kv_heads, f->dim));
    for (int64_t n = 0; n < count; n++) {
        int64_t row = p->start[batch[n].sample] + c->done[batch[n].sample];

        copy_row(&pages, n, &c->cache.pages, batch[n].sample);
        for (int64_t r = 0; r < batch[n].rows; r++) {
            copy_row(&q, start[n] + r, &p->q, row + r);
            copy_row(&k, start[n] + r, &p->k, row + r);
            copy_row(&v, start[n] + r, &p->v, row + r);
        }
    }
    cache.pages = pages;
    {
        invar_kv_write_args write = {cache, k, v, {start, count}, lengths};
        invar_attention_paged_args attend = {o, q, cache, {start, count}, lengths, f->shape};

        assert_ok(invar_kv_write(c->dev, &write));
        assert_ok(invar_attention_paged(c->dev, &attend));
    }
    for (int64_t n = 0; n < count; n++) {
        int64_t row = p->start[batch[n].sample] + c->done[batch[n].sample];

        for (int64_t r = 0; r < batch[n].rows; r++)
            copy_row(&out->o, row + r, &o, start[n] + r);
        c->done[batch[n].sample] += batch[n].rows;
    }
    invar_test_free(&pages, &q, &k, &v, &o);
}

/* ---- chunks and pages ------------------------------------------------------------------------ */

static const attention_form forms[] = {
    {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 4, 2, 32, {0.0f, 0, 0, 0}},
    {INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, 2, 1, 16, {0.0f, 90, 128, 128}},
    {INVAR_NUMERICS_IEEE, INVAR_DTYPE_BF16, 7, 1, 40, {0.0f, 0, 128, 128}},
    {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 2, 2, 64, {0.0f, 17, 0, 0}},
    {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 2, 1, 144, {0.0f, 0, 64, 64}},
};

#define FORMS ((int64_t)(sizeof forms / sizeof *forms))

/* Runs one sample through the cache in chunks and compares o with attention.fwd. */
static void run_chunks(const attention_pack *expected, const invar_device *dev, int64_t chunk,
                       int64_t page_size, float stale)
{
    int64_t length = expected->start[1];
    attention_pack got = attention_pack_new(&expected->form, 1, &length);
    paged c = paged_new(expected, dev, page_size, stale);
    char what[96];

    for (int64_t row = 0; row < length; row += chunk) {
        seq_rows t = {0, length - row < chunk ? length - row : chunk};
        paged_call(&c, &got, &t, 1);
    }
    snprintf(what, sizeof what, "dim %" PRId64 ", chunks of %" PRId64 ", pages of %" PRId64,
             expected->form.dim, chunk, page_size);
    invar_assert_bits_tensor(&got.o, &expected->o, what);
    paged_free(&c);
    attention_pack_free(&got);
}

static void test_attention_paged__bits_invariant_to_chunks_and_pages(void **state)
{
    static const int64_t page_sizes[] = {16, 1, 128};
    static const int64_t chunks[] = {100000, 1, 7, 64, 100};
    int64_t length = invar_test_count(150, 530);

    (void)state;
    for (int64_t f = 0; f < FORMS; f++) {
        attention_pack expected = attention_sample(&forms[f], length, 21);
        invar_device dev;

        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 1);
        attention_forward(&dev, &expected);
        // without `full`, each chunk size runs with one page size, which differs by form
        for (int64_t n = 0; n < 15; n++)
            if (invar_test_full() || n / 5 == (n + f) % 3)
                run_chunks(&expected, &dev, chunks[n % 5], page_sizes[n / 5], n % 2 ? NAN : 3e38f);
        invar_test_device_release(&dev);
        attention_pack_free(&expected);
    }
}

/*
 * Control: another key span gives other bits, so a split that followed the chunks would be
 * detected.
 */
static void test_attention_paged__other_spans_are_caught(void **state)
{
    (void)state;
    for (int64_t f = 0; f < FORMS; f++) {
        attention_form other = forms[f];
        attention_pack right, wrong;
        invar_device dev;

        if (forms[f].shape.window == 17)
            continue; // most rows see a single block, because this window is short
        other.shape.kv_span = other.shape.kv_span ? 0 : 128;
        right = attention_sample(&forms[f], 200, 21);
        wrong = attention_sample(&other, 200, 21);
        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 1);
        attention_forward(&dev, &right);
        attention_forward(&dev, &wrong);
        assert_true(invar_tensors_differ(&right.o, &wrong.o) ||
                    invar_tensors_differ(&right.lse2, &wrong.lse2));
        invar_test_device_release(&dev);
        attention_pack_free(&right);
        attention_pack_free(&wrong);
    }
}

/* Pages before a window are never read: their index may be invalid. */
static void test_attention_paged__pages_behind_the_window_may_go(void **state)
{
    attention_form form = {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 2, 1, 32, {0.0f, 20, 0, 0}};
    attention_pack expected = attention_sample(&form, 200, 4);
    attention_pack got = attention_sample(&form, 200, 4);
    invar_device dev;
    paged c;

    (void)state;
    invar_test_device_init(&dev, form.numerics, INVAR_CPU_PATH_SIMD, 1);
    attention_forward(&dev, &expected);
    c = paged_new(&expected, &dev, 16, NAN);
    for (int64_t row = 0; row < 200; row += 8) {
        seq_rows t = {0, 8};

        paged_call(&c, &got, &t, 1);
        // the next rows see positions from row + 8 - 19 on
        for (int64_t page = 0; (page + 1) * 16 <= row + 8 - 19; page++)
            ((int32_t *)c.cache.pages.data)[page] = -1;
    }
    invar_assert_bits_tensor(&got.o, &expected.o, "pages given back");
    paged_free(&c);
    invar_test_device_release(&dev);
    attention_pack_free(&expected);
    attention_pack_free(&got);
}

/* ---- batches --------------------------------------------------------------------------------- */

#define SAMPLES 5

/*
 * Five sequences in random portions: long prefill together with decode, and sequences without rows,
 * in random order. Every row must have the bits of attention over its sample.
 */
static void test_attention_paged__bits_invariant_to_batch(void **state)
{
    static const int64_t lengths[SAMPLES] = {150, 33, 129, 1, 90};

    (void)state;
    for (int64_t f = 0; f < FORMS; f++) {
        attention_pack expected = attention_pack_new(&forms[f], SAMPLES, lengths);
        attention_pack got = attention_pack_new(&forms[f], SAMPLES, lengths);
        int64_t left = 0;
        uint64_t n_draws = 0;
        invar_device dev;
        paged c;

        for (int64_t i = 0; i < SAMPLES; i++) {
            attention_fill(&expected, i, (uint64_t)(50 + i));
            left += lengths[i];
        }
        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 2);
        attention_forward(&dev, &expected);
        c = paged_new(&expected, &dev, 16, NAN);
        while (left > 0) {
            seq_rows batch[SAMPLES];
            int64_t count = 0, first = invar_test_random(5, n_draws++) % SAMPLES;

            for (int64_t n = 0; n < SAMPLES; n++) {
                int64_t i = (first + n) % SAMPLES, rest = lengths[i] - c.done[i];
                uint32_t r = invar_test_random(5, n_draws++);
                int64_t rows = r % 3 == 0 ? 1 : r % 3 == 1 ? (int64_t)(r >> 8) % 60 : 0;

                rows = rows < rest ? rows : rest;
                batch[count++] = (seq_rows){i, rows};
                left -= rows;
            }
            paged_call(&c, &got, batch, count);
        }
        invar_assert_bits_tensor(&got.o, &expected.o, "random batches");
        paged_free(&c);
        invar_test_device_release(&dev);
        attention_pack_free(&expected);
        attention_pack_free(&got);
    }
}

/*
 * vLLM #51902: a decode row changed when an unrelated prefill in its batch grew from 9 to 10
 * tokens, because the tile size depended on the longest query. This test decodes a row alone and
 * together with 1 to 70 tokens.
 */
static void test_attention_paged__decode_beside_growing_prefill(void **state)
{
    int64_t lengths[] = {invar_test_count(1500, 19802), 70}, last = lengths[0] - 1;
    static const int64_t prefill_rows[] = {0, 1, 8, 9, 10, 11, 17, 64, 70};
    static const attention_form kv19802[] = {
        {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 14, 2, 64, {0.0f, 0, 0, 0}},
        {INVAR_NUMERICS_IEEE, INVAR_DTYPE_BF16, 14, 2, 64, {0.0f, 0, 0, 0}},
        {INVAR_NUMERICS_SM90, INVAR_DTYPE_F32, 14, 2, 64, {0.0f, 0, 0, 0}},
    };

    (void)state;
    for (int64_t f = 0; f < 3; f++) {
        const attention_form *form = &kv19802[f];
        attention_pack p = attention_pack_new(form, 2, lengths), got;
        expression right, wrong;
        invar_tensor expected, row;
        invar_device dev;
        paged c;

        attention_fill(&p, 0, 1);
        attention_fill(&p, 1, 2);
        got = attention_pack_new(form, 2, lengths);
        right = expression_init(&p, 0, TWIST_NONE);
        wrong = expression_init(&p, 0, TWIST_NONE);
        wrong.kv_span = 256; // a split of the keys as by vLLM's other tile size
        for (int64_t h = 0; h < form->heads; h++) {
            expression_row(&right, last, h);
            expression_row(&wrong, last, h);
        }
        if (form->dtype == INVAR_DTYPE_F32) // control; bf16 rounds the difference away
            assert_true(invar_bits_differ(right.o + last * 14 * 64, wrong.o + last * 14 * 64,
                                          14 * 64 * sizeof(float)));
        expected = invar_tensor_3d(right.o + last * 14 * 64, INVAR_DTYPE_F32, 1, 14, 64);

        invar_test_device_init(&dev, form->numerics, INVAR_CPU_PATH_SIMD, 2);
        c = paged_new(&p, &dev, 16, NAN);
        {
            invar_tensor k = invar_tensor_rows(&p.k, 0, last);
            invar_tensor v = invar_tensor_rows(&p.v, 0, last);
            invar_tensor pages = invar_tensor_rows(&c.cache.pages, 0, 1);
            const int64_t start[] = {0, last};
            invar_kv_write_args write = {{c.cache.k, c.cache.v, pages}, k, v, {start, 1}, &last};

            assert_ok(invar_kv_write(&dev, &write));
        }
        for (size_t n = 0; n < sizeof prefill_rows / sizeof *prefill_rows; n++) {
            seq_rows batch[] = {{0, 1}, {1, prefill_rows[n]}};

            c.done[0] = last;
            c.done[1] = 0;
            paged_call(&c, &got, batch, 2);
            row = invar_tensor_rows(&got.o, last, 1);
            for (int64_t j = 0; j < 14 * 64; j++) {
                float value = invar_test_get(&row, 0, j), exact = invar_test_get(&expected, 0, j);
                invar_assert_bits_f32(&value, &exact, 1, "decode row");
            }
        }
        expression_release(&right);
        expression_release(&wrong);
        paged_free(&c);
        invar_test_device_release(&dev);
        attention_pack_free(&p);
        attention_pack_free(&got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_paged__bits_invariant_to_chunks_and_pages),
        cmocka_unit_test(test_attention_paged__other_spans_are_caught),
        cmocka_unit_test(test_attention_paged__pages_behind_the_window_may_go),
        cmocka_unit_test(test_attention_paged__bits_invariant_to_batch),
        cmocka_unit_test(test_attention_paged__decode_beside_growing_prefill),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
