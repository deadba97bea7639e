/*
 * attention.c - attention is bit-invariant at the sizes at which a GPU changes its kernel or tile.
 *
 * A decoded row against prefill, at every length; chunks; pages of any size; prefill and decode in
 * one batch; packs; prefixes of samples; forward and backward. Every byte is compared with the
 * sample computed alone, in one chunk. Includes the cases in which other engines failed
 * (docs/testing.md). Controls: other key spans, and two samples packed as one, must differ.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/invariance/sweep.h"

typedef struct form {
    invar_numerics numerics;
    invar_dtype dtype;
    int64_t heads, kv_heads, dim;
    invar_attention_shape shape;
} form;

#define SM90 INVAR_NUMERICS_SM90
#define IEEE INVAR_NUMERICS_IEEE
#define BF16 INVAR_DTYPE_BF16
#define F32 INVAR_DTYPE_F32

/* The first forms have their own kernel on a GPU; the CPU runs the last ones. */
static const form forms[] = {
    {SM90, BF16, 32, 8, 128, {0.0f, 0, 0, 0}},    {SM90, BF16, 14, 2, 64, {0.0f, 0, 0, 0}},
    {SM90, BF16, 8, 8, 64, {0.0f, 100, 0, 0}},    {SM90, BF16, 8, 1, 128, {0.0f, 0, 256, 256}},
    {SM90, BF16, 6, 2, 96, {0.0f, 0, 0, 0}},      {SM90, BF16, 4, 2, 256, {0.0f, 0, 0, 0}},
    {IEEE, BF16, 4, 2, 64, {0.0f, 0, 0, 0}},      {SM90, BF16, 2, 1, 64, {0.0f, 0, 0, 0}},
    {SM90, BF16, 3, 1, 40, {0.0f, 17, 128, 128}}, {IEEE, F32, 2, 1, 16, {0.0f, 0, 0, 0}},
};

#define FORMS ((int)(sizeof forms / sizeof *forms))
#define SMALL_FORMS 3

/* Calls f for every form that this device runs. */
static void for_forms(void (*f)(invar_sweep *s, const form *of))
{
    bool large = invar_sweep_begin(SM90)->large;

    for (int i = large ? 0 : FORMS - SMALL_FORMS; i < FORMS; i++) {
        invar_sweep *s = invar_sweep_begin(forms[i].numerics);
        int mark = invar_sweep_mark(s);

        f(s, &forms[i]);
        invar_sweep_release(s, mark);
    }
}

static invar_tensor heads_of(invar_sweep *s, const form *f, int64_t rows, int64_t heads)
{
    return invar_sweep_tensor(s, invar_tensor_3d(NULL, f->dtype, rows, heads, f->dim));
}

/* ---- packs ----------------------------------------------------------------------------------- */

enum { O, LSE2, DQ, DK, DV, RESULTS };

static const char *const names[RESULTS] = {"o", "lse2", "dq", "dk", "dv"};

/* The rows of packed samples. */
typedef struct pack {
    invar_tensor q, k, v, d_o;
    invar_tensor at[RESULTS];
} pack;

static pack pack_new(invar_sweep *s, const form *f, int64_t rows)
{
    pack p = {.q = heads_of(s, f, rows, f->heads),
              .k = heads_of(s, f, rows, f->kv_heads),
              .v = heads_of(s, f, rows, f->kv_heads),
              .d_o = heads_of(s, f, rows, f->heads),
              .at = {[O] = heads_of(s, f, rows, f->heads),
                     [LSE2] = invar_sweep_2d(s, F32, rows, f->heads),
                     [DQ] = heads_of(s, f, rows, f->heads),
                     [DK] = heads_of(s, f, rows, f->kv_heads),
                     [DV] = heads_of(s, f, rows, f->kv_heads)}};

    return p;
}

static void pack_fill(const invar_sweep *s, const pack *p, uint64_t seed)
{
    invar_sweep_fill_normal(s, &p->q, 4 * seed + 1, 1.0f);
    invar_sweep_fill_normal(s, &p->k, 4 * seed + 2, 1.0f);
    invar_sweep_fill_normal(s, &p->v, 4 * seed + 3, 1.0f);
    invar_sweep_fill_normal(s, &p->d_o, 4 * seed + 4, 1.0f);
}

static pack pack_rows(const pack *p, int64_t first, int64_t rows)
{
    pack view = {.q = invar_tensor_rows(&p->q, first, rows),
                 .k = invar_tensor_rows(&p->k, first, rows),
                 .v = invar_tensor_rows(&p->v, first, rows),
                 .d_o = invar_tensor_rows(&p->d_o, first, rows)};

    for (int i = 0; i < RESULTS; i++)
        view.at[i] = invar_tensor_rows(&p->at[i], first, rows);
    return view;
}

static void pack_run(invar_sweep *s, const form *f, const pack *p, const int64_t *start,
                     int64_t count, bool backward)
{
    int mark = invar_sweep_mark(s);
    invar_row_offsets samples = {invar_sweep_numbers(s, start, count + 1), count};
    invar_attention_fwd_args fwd = {.o = p->at[O],
                                    .lse2 = p->at[LSE2],
                                    .q = p->q,
                                    .k = p->k,
                                    .v = p->v,
                                    .samples = samples,
                                    .shape = f->shape};
    invar_attention_bwd_args bwd = {.dq = p->at[DQ],
                                    .dk = p->at[DK],
                                    .dv = p->at[DV],
                                    .d_o = p->d_o,
                                    .o = p->at[O],
                                    .lse2 = p->at[LSE2],
                                    .q = p->q,
                                    .k = p->k,
                                    .v = p->v,
                                    .samples = samples,
                                    .shape = f->shape};

    for (int i = 0; i < RESULTS; i++)
        invar_sweep_zero(s, &p->at[i]);
    invar_sweep_run(s, INVAR_OP_ATTENTION_FWD, &fwd);
    if (backward)
        invar_sweep_run(s, INVAR_OP_ATTENTION_BWD, &bwd);
    invar_sweep_release(s, mark);
}

static void pack_run_one(invar_sweep *s, const form *f, const pack *p, bool backward)
{
    const int64_t start[] = {0, p->q.shape[0]};

    pack_run(s, f, p, start, 1, backward);
}

/* ---- a sample in a pack ---------------------------------------------------------------------- */

enum { SAMPLES = 15 };

static const int64_t lengths[SAMPLES] = {1,   63,  64,  65,  127, 128, 129, 200,
                                         255, 256, 257, 384, 511, 513, 1000};

/*
 * Packs `count` samples in this order and compares each with the sample alone. `all` has all
 * samples.
 */
static void check_order(invar_sweep *s, const form *f, const pack *all, const int64_t *begin,
                        const invar_tensor *expected, const int *order, int count)
{
    int mark = invar_sweep_mark(s);
    int64_t start[SAMPLES + 1] = {0};
    pack p;

    for (int i = 0; i < count; i++)
        start[i + 1] = start[i] + lengths[order[i]];
    p = pack_new(s, f, start[count]);
    for (int i = 0; i < count; i++) {
        const invar_tensor *from[] = {&all->q, &all->k, &all->v, &all->d_o};
        const invar_tensor *to[] = {&p.q, &p.k, &p.v, &p.d_o};

        for (int n = 0; n < 4; n++)
            invar_sweep_copy_rows(s, to[n], start[i], from[n], begin[order[i]], lengths[order[i]]);
    }
    pack_run(s, f, &p, start, count, true);
    for (int i = 0; i < count; i++)
        for (int n = 0; n < RESULTS; n++) {
            invar_tensor rows = invar_tensor_rows(&p.at[n], start[i], lengths[order[i]]);
            invar_sweep_assert(s, &rows, &expected[n], begin[order[i]],
                               "dim %d, %s of %d rows, place %d of %d", (int)f->dim, names[n],
                               (int)lengths[order[i]], i, count);
        }
    invar_sweep_release(s, mark);
}

static void check_packs(invar_sweep *s, const form *f)
{
    int count = (int)invar_sweep_size(s, SAMPLES, 7), order[SAMPLES];
    int64_t begin[SAMPLES + 1] = {0};
    invar_tensor expected[RESULTS];
    pack all;

    for (int i = 0; i < count; i++)
        begin[i + 1] = begin[i] + lengths[i];
    all = pack_new(s, f, begin[count]);
    pack_fill(s, &all, 1);
    for (int i = 0; i < RESULTS; i++)
        expected[i] = invar_test_tensor(all.at[i]);
    for (int i = 0; i < count; i++) { // each alone
        pack one = pack_rows(&all, begin[i], lengths[i]);

        pack_run_one(s, f, &one, true);
        for (int n = 0; n < RESULTS; n++) {
            invar_tensor got = invar_sweep_download(s, &one.at[n]);
            invar_test_copy_rows(&expected[n], begin[i], &got, 0, lengths[i]);
            invar_test_free(&got);
        }
    }
    for (int turn = 0; turn < count; turn += (int)invar_sweep_size(s, 1, 4)) {
        for (int i = 0; i < count; i++) // a step of 1 or 4 reaches all of 15 and of 7
            order[i] = (turn + i * (turn % 2 ? 4 : 1)) % count;
        check_order(s, f, &all, begin, expected, order, count);
        check_order(s, f, &all, begin, expected, order, 1 + turn % count);
    }
    for (int i = 0; i < RESULTS; i++)
        invar_test_free(&expected[i]);
}

static void test_attention__bits_invariant_to_pack(void **state)
{
    (void)state;
    for_forms(check_packs);
}

/* ---- beginnings ------------------------------------------------------------------------------ */

/*
 * Attention is causal: o, lse2 and dq of the first rows do not depend on the number of later rows.
 */
static void check_prefixes(invar_sweep *s, const form *f)
{
    bool tensor = f->numerics == SM90 && (f->dim == 64 || f->dim == 128);
    int64_t length = invar_sweep_size(s, tensor ? 700 : 400, 140);
    int64_t every = invar_sweep_size(s, tensor ? 300 : 140, 0);
    pack whole = pack_new(s, f, length), part = pack_new(s, f, length);
    invar_tensor expected[DQ + 1];

    pack_fill(s, &whole, 2);
    pack_run_one(s, f, &whole, true);
    for (int i = 0; i <= DQ; i++)
        expected[i] = invar_sweep_download(s, &whole.at[i]);
    for (int64_t m = 1; m < length; m += m < every ? 1 : 33) {
        pack first = pack_rows(&whole, 0, m), into = pack_rows(&part, 0, m);

        memcpy(first.at, into.at, sizeof first.at);
        pack_run_one(s, f, &first, true);
        for (int i = 0; i <= DQ; i++)
            invar_sweep_assert(s, &first.at[i], &expected[i], 0, "dim %d, %s of the first %d of %d",
                               (int)f->dim, names[i], (int)m, (int)length);
    }
    for (int i = 0; i <= DQ; i++)
        invar_test_free(&expected[i]);
}

static void test_attention__bits_invariant_to_length(void **state)
{
    (void)state;
    for_forms(check_prefixes);
}

/* ---- the cache ------------------------------------------------------------------------------- */

enum { CACHED = 3, MAX_SEQUENCES = 5000 };

/* Samples whose keys are all in pages, and the expected rows, computed in one chunk. */
typedef struct cached {
    invar_sweep *s;
    const form *f;
    int64_t length, page_size, max_pages;
    invar_tensor q[CACHED], expected[CACHED]; /* `expected` is on the heap */
    invar_kv_pages cache;
    int32_t *pages; /* (CACHED, max_pages) in host memory */
    invar_tensor rows, o;
} cached;

/* One sequence of a call: the last rows of the first `length` rows of a sample. */
typedef struct sequence {
    int sample;
    int64_t length, rows;
} sequence;

static void write_sample(cached *c, int sample, const pack *p)
{
    const int64_t start[] = {0, c->length};
    int mark = invar_sweep_mark(c->s);
    invar_kv_write_args args = {.cache = c->cache, .k = p->k, .v = p->v};

    args.cache.pages = invar_sweep_2d(c->s, INVAR_DTYPE_I32, 1, c->max_pages);
    invar_sweep_upload(c->s, &args.cache.pages, c->pages + sample * c->max_pages);
    args.rows = (invar_row_offsets){invar_sweep_numbers(c->s, start, 2), 1};
    args.lengths = invar_sweep_numbers(c->s, start + 1, 1);
    invar_sweep_run(c->s, INVAR_OP_KV_WRITE, &args);
    invar_sweep_release(c->s, mark);
}

/* Assigns pages to all samples in random order; two pages more than needed, with stale NaNs. */
static cached cached_new(invar_sweep *s, const form *f, int64_t length, int64_t page_size,
                         int64_t most_rows)
{
    int64_t max_pages = (length + page_size - 1) / page_size, n_pages = CACHED * max_pages + 2;
    invar_tensor view = invar_tensor_4d(NULL, f->dtype, n_pages, page_size, f->kv_heads, f->dim);
    cached c = {.s = s, .f = f, .length = length, .page_size = page_size, .max_pages = max_pages};
    int32_t *deck = malloc((size_t)n_pages * sizeof *deck);

    assert_non_null(deck);
    for (int64_t i = 0; i < n_pages; i++) {
        int64_t j = invar_test_random(99, (uint64_t)i) % (i + 1);
        deck[i] = deck[j];
        deck[j] = (int32_t)i;
    }
    c.pages = deck;
    c.cache.k = invar_sweep_tensor(s, view);
    c.cache.v = invar_sweep_tensor(s, view);
    invar_sweep_fill(s, &c.cache.k, NAN);
    invar_sweep_fill(s, &c.cache.v, NAN);
    c.rows = heads_of(s, f, most_rows, f->heads);
    c.o = heads_of(s, f, most_rows, f->heads);
    for (int i = 0; i < CACHED; i++) {
        pack p = pack_new(s, f, length);

        pack_fill(s, &p, 10 + (uint64_t)i);
        pack_run_one(s, f, &p, false);
        c.q[i] = p.q;
        c.expected[i] = invar_sweep_download(s, &p.at[O]);
        write_sample(&c, i, &p);
    }
    return c;
}

static void cached_free(cached *c)
{
    for (int i = 0; i < CACHED; i++)
        invar_test_free(&c->expected[i]);
    free(c->pages);
}

/* Runs a call with these sequences; every row must equal that of its sample. */
static void check_call(cached *c, const sequence *sequences, int64_t count, const char *what)
{
    static int64_t start[MAX_SEQUENCES + 1], keys[MAX_SEQUENCES];
    int32_t *pages = malloc((size_t)(count * c->max_pages) * sizeof *pages);
    int mark = invar_sweep_mark(c->s);
    invar_attention_paged_args args = {.cache = c->cache, .shape = c->f->shape};

    assert_true(count <= MAX_SEQUENCES && pages);
    for (int64_t i = 0; i < count; i++) {
        const sequence *q = &sequences[i];

        start[i + 1] = start[i] + q->rows;
        keys[i] = q->length;
        assert_true(start[i + 1] <= c->rows.shape[0]);
        memcpy(pages + i * c->max_pages, c->pages + q->sample * c->max_pages,
               (size_t)c->max_pages * sizeof *pages);
        invar_sweep_copy_rows(c->s, &c->rows, start[i], &c->q[q->sample], q->length - q->rows,
                              q->rows);
    }
    args.cache.pages = invar_sweep_2d(c->s, INVAR_DTYPE_I32, count, c->max_pages);
    invar_sweep_upload(c->s, &args.cache.pages, pages);
    args.rows = (invar_row_offsets){invar_sweep_numbers(c->s, start, count + 1), count};
    args.lengths = invar_sweep_numbers(c->s, keys, count);
    args.q = invar_tensor_rows(&c->rows, 0, start[count]);
    args.o = invar_tensor_rows(&c->o, 0, start[count]);
    invar_sweep_zero(c->s, &args.o);
    invar_sweep_run(c->s, INVAR_OP_ATTENTION_PAGED, &args);
    for (int64_t i = 0; i < count; i++) {
        const sequence *q = &sequences[i];
        invar_tensor got = invar_tensor_rows(&args.o, start[i], q->rows);

        invar_sweep_assert(c->s, &got, &c->expected[q->sample], q->length - q->rows,
                           "%s: dim %d, pages of %d, sequence %d of %d: %d rows of %d", what,
                           (int)c->f->dim, (int)c->page_size, (int)i, (int)count, (int)q->rows,
                           (int)q->length);
    }
    free(pages);
    invar_sweep_release(c->s, mark);
}

/* ---- decode and prefill ---------------------------------------------------------------------- */

/* Checks each length with one row, with few rows as for drafts, and all lengths in one batch. */
static void check_decode(cached *c)
{
    sequence *all = malloc((size_t)c->length * sizeof *all);

    assert_non_null(all);
    for (int64_t length = 1; length <= c->length; length += invar_sweep_size(c->s, 1, 7)) {
        sequence one = {0, length, 1}, few = {1, length, 1 + length % 9};

        few.rows = few.rows < length ? few.rows : length;
        check_call(c, &one, 1, "decode");
        check_call(c, &few, 1, "few rows");
    }
    for (int64_t i = 0; i < c->length; i++)
        all[i] = (sequence){(int)(i % CACHED), c->length - i, 1};
    check_call(c, all, c->length, "decode of every length");
    free(all);
}

static void check_chunks(cached *c)
{
    static const int64_t chunks[] = {2, 7, 16, 31, 32, 33, 64, 100, 128, 129, 256, 300};

    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i += (size_t)(c->s->large ? 1 : 4))
        for (int64_t done = 0; done < c->length; done += chunks[i]) {
            int64_t left = c->length - done, rows = left < chunks[i] ? left : chunks[i];
            sequence next = {2, done + rows, rows};

            check_call(c, &next, 1, "chunk");
        }
}

static void check_decode_and_chunks(invar_sweep *s, const form *f)
{
    static const int64_t page_sizes[] = {16, 1, 8, 24, 64, 128, 256};
    int64_t length = invar_sweep_size(s, f->numerics == SM90 ? 400 : 260, 150);

    for (int64_t i = 0; i < invar_sweep_size(s, 7, 2); i++) {
        int mark = invar_sweep_mark(s);
        cached c = cached_new(s, f, length, page_sizes[i], length);

        if (i < 3)
            check_decode(&c);
        check_chunks(&c);
        cached_free(&c);
        invar_sweep_release(s, mark);
    }
}

static void test_attention_paged__decode_and_chunks_are_prefill(void **state)
{
    (void)state;
    for_forms(check_decode_and_chunks);
}

/* ---- prefill beside decode ------------------------------------------------------------------- */

/* Checks random parts of random samples in one batch: decode, drafts, chunks, complete prefills. */
static void check_mixtures(invar_sweep *s, const form *f)
{
    int64_t most = invar_sweep_size(s, f->numerics == SM90 ? 4200 : 700, 160);
    cached c = cached_new(s, f, most, 16, 16 * most);
    uint64_t n = 0;

    for (int64_t call = 0; call < invar_sweep_size(s, 24, 4); call++) {
        static const int64_t prompt_lengths[] = {1,    511, 2048,
                                                 4097, 130, 64}; // prefixes of SGLang's tests
        sequence sequences[16];
        int64_t count = 1 + invar_test_random(7, n++) % 16;

        for (int64_t i = 0; i < count; i++) {
            sequence *q = &sequences[i];
            int64_t length = invar_test_random(7, n++) % 2
                                 ? prompt_lengths[invar_test_random(7, n++) % 6]
                                 : 1 + invar_test_random(7, n++) % most;
            uint32_t kind = invar_test_random(7, n++) % 4;

            q->sample = (int)(invar_test_random(7, n++) % CACHED);
            q->length = length < most ? length : most;
            q->rows = kind == 0   ? q->length
                      : kind == 1 ? 1 + invar_test_random(7, n++) % q->length
                                  : 1;
        }
        check_call(&c, sequences, count, "mixture");
    }
    cached_free(&c);
}

static void test_attention_paged__bits_invariant_to_batch(void **state)
{
    (void)state;
    for_forms(check_mixtures);
}

/* Decodes one row over many keys, together with a prefill that grows by one row at a time. */
static void test_attention_paged__decode_beside_growing_prefill(void **state)
{
    invar_sweep *s = invar_sweep_begin(SM90);
    const form f = {SM90, BF16,           invar_sweep_size(s, 14, 2), invar_sweep_size(s, 2, 1),
                    64,   {0.0f, 0, 0, 0}};
    int64_t keys = invar_sweep_size(s, 19802, 600), most = invar_sweep_size(s, 300, 12);
    int mark = invar_sweep_mark(s);
    cached c = cached_new(s, &f, keys, 16, most + 1);

    (void)state;
    for (int64_t rows = 1; rows <= most; rows++) {
        const sequence beside[] = {{0, keys, 1}, {1, rows, rows}, {0, keys, 1}};

        check_call(&c, beside, 2, "decode before prefill");
        check_call(&c, beside + 1, 2, "decode behind prefill");
    }
    cached_free(&c);
    invar_sweep_release(s, mark);
}

/* ---- controls -------------------------------------------------------------------------------- */

/* Control: another split of the keys, and samples whose blocks start elsewhere, must differ. */
static void test_attention__controls_are_seen(void **state)
{
    const form f = {SM90, BF16, 2, 1, 64, {0.0f, 0, 0, 0}};
    const int64_t start[] = {0, 5, 400};
    invar_sweep *s = invar_sweep_begin(SM90);
    int mark = invar_sweep_mark(s);
    pack p = pack_new(s, &f, 400), last = pack_rows(&p, 5, 395);
    invar_tensor expected[RESULTS];
    form split = f;

    (void)state;
    pack_fill(s, &p, 3);
    pack_run(s, &f, &p, start, 2, true);
    for (int i = 0; i < RESULTS; i++)
        expected[i] = invar_sweep_download(s, &last.at[i]);
    split.shape.kv_span = split.shape.q_span = 128; // two or more spans of keys, which are merged
    pack_run(s, &split, &p, start, 2, true);
    for (int i = 0; i < RESULTS; i++)
        assert_false(invar_sweep_equal(s, &last.at[i], &expected[i], 0));
    // control: as one sample, the rows see five keys more
    pack_run_one(s, &f, &p, true);
    for (int i = 0; i < RESULTS; i++)
        assert_false(invar_sweep_equal(s, &last.at[i], &expected[i], 0));
    for (int i = 0; i < RESULTS; i++)
        invar_test_free(&expected[i]);
    invar_sweep_release(s, mark);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention__bits_invariant_to_pack),
        cmocka_unit_test(test_attention__bits_invariant_to_length),
        cmocka_unit_test(test_attention_paged__decode_and_chunks_are_prefill),
        cmocka_unit_test(test_attention_paged__bits_invariant_to_batch),
        cmocka_unit_test(test_attention_paged__decode_beside_growing_prefill),
        cmocka_unit_test(test_attention__controls_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, invar_sweep_report);
}
