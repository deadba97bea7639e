/*
 * scheduler.c - tests of continuous batching with a model that only writes and checks tags.
 *
 * For every row, the model of these tests writes a tag into the row's page and checks the tags of
 * all earlier positions, as attention reads them. An error with pages (shared too early, freed too
 * soon, owned twice) results in a wrong tag; a control test provokes one. Short schedules are
 * compared with tables, random ones must finish.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "engine/sample/rollout/scheduler.h"
#include "tests/support.h"

enum { MAX_SEQS = 64 };

typedef struct tag_model {
    invar_kv_cache *cache;
    invar_scheduler schedule;
    invar_seq seqs[MAX_SEQS];
    int64_t prompt_tag[MAX_SEQS]; /* sequence whose tag the prompt rows have */
    int64_t prompt[MAX_SEQS];     /* number of prompt rows */
    int64_t length[MAX_SEQS];     /* rows after which a sequence ends; at least prefill */
    int64_t n_computed[MAX_SEQS]; /* number of rows computed at least once */
    int64_t ended[MAX_SEQS];      /* number of the pass in which it ended; 0 if it has not */
    int64_t n_seqs;
    int64_t passes;        /* number of passes so far */
    int64_t rows;          /* rows of all passes */
    int64_t n_recomputed;  /* rows of all passes that were computed before */
    bool separate_prefill; /* separate_prefill of the scheduler */
    int64_t lookahead;     /* lookahead of the scheduler */
    uint64_t n_draws;      /* random numbers drawn for drafts so far */
} tag_model;

static void tag_model_init(tag_model *f, int64_t pages, int64_t page_size)
{
    invar_kv_cache_shape shape = {.layers = 1,
                                  .kv_heads = 1,
                                  .head_dim = 1,
                                  .storage = INVAR_DTYPE_F32,
                                  .page_size = page_size,
                                  .pages = pages};
    const invar_device dev = {.backend = invar_backend_cpu()};

    memset(f, 0, sizeof *f);
    assert_ok(invar_kv_cache_new(&f->cache, &shape, &dev));
}

static void tag_model_release(tag_model *f)
{
    invar_scheduler_release(&f->schedule);
    invar_kv_cache_free(f->cache);
}

/* Adds a sequence that ends after `length` rows, or a prompt that `children` sequences share. */
static void add_seq(tag_model *f, int64_t prefill, int64_t rows, int64_t length, int64_t children)
{
    int64_t n = f->n_seqs++, parent = n;

    f->seqs[n] = (invar_seq){.prefill = prefill, .rows = rows, .n_sharing = children, .sample = n};
    f->prompt[n] = prefill;
    f->length[n] = length;
    // prompt rows of sequences that share a prompt have the same tag
    while (parent > 0 && f->seqs[parent].n_sharing == 0)
        parent--;
    f->prompt_tag[n] = f->seqs[parent].n_sharing >= n - parent && parent < n ? parent : n;
}

static void add_group(tag_model *f, int64_t prefill, int64_t rows, int64_t children)
{
    add_seq(f, prefill, prefill, prefill, children);
    for (int64_t i = 0; i < children; i++)
        add_seq(f, prefill, rows, prefill + (i * 3) % (rows - prefill + 1), 0);
}

static float expected_tag(const tag_model *f, int64_t seq, int64_t row)
{
    int64_t owner = row < f->prompt[seq] ? f->prompt_tag[seq] : seq;

    return (float)(owner * 1000 + row);
}

static float *row_tag(const tag_model *f, int64_t seq, int64_t row)
{
    int64_t size = f->cache->shape.page_size;

    return (float *)f->cache->layers[0].k.data + f->seqs[seq].pages[row / size] * size + row % size;
}

static void write_tags(tag_model *f, const invar_seq_slice *slice)
{
    for (int64_t row = slice->first; row < slice->first + slice->count; row++)
        *row_tag(f, slice->seq, row) = expected_tag(f, slice->seq, row);
}

static void check_tags(const tag_model *f, const invar_seq_slice *slice)
{
    for (int64_t row = 0; row < slice->first + slice->count; row++)
        assert_true(*row_tag(f, slice->seq, row) == expected_tag(f, slice->seq, row));
}

static void end_sequence(tag_model *f, int64_t seq)
{
    f->ended[seq] = f->passes;
    invar_scheduler_finish(&f->schedule, seq);
}

/*
 * Does what a caller does after a pass: ends sequences of full length. A completed prompt ends the
 * sequences that have no rows of their own.
 */
static void end_finished(tag_model *f, const invar_seq_slice *slice)
{
    const invar_seq *seq = &f->seqs[slice->seq];
    int64_t end = slice->first + slice->count;

    for (int64_t row = slice->first; row < end; row++) {
        bool computed_before =
            row < f->n_computed[slice->seq] ||
            (f->prompt_tag[slice->seq] != slice->seq && row < f->prompt[slice->seq]);
        // the scheduler knows which rows were computed before a preemption
        assert_true(computed_before == (row < seq->n_recompute));
        f->n_recomputed += computed_before;
    }
    if (end > f->n_computed[slice->seq])
        f->n_computed[slice->seq] = end;
    for (int64_t i = 1; i <= seq->n_sharing && f->n_computed[slice->seq] == seq->prefill; i++)
        if (f->length[slice->seq + i] == seq->prefill)
            end_sequence(f, slice->seq + i);
    if (seq->n_sharing > 0 && f->n_computed[slice->seq] == seq->prefill)
        f->ended[slice->seq] = f->passes;
    else if (seq->n_sharing == 0 && end == f->length[slice->seq])
        end_sequence(f, slice->seq);
}

static bool has_preempted(const tag_model *f)
{
    for (int64_t i = 0; i < f->n_seqs; i++)
        if (f->seqs[i].state == INVAR_SEQ_WAITING && f->seqs[i].n_recompute > 0)
            return true;
    return false;
}

static void check_pass(const tag_model *f, const invar_seq_slice *slices, int64_t count)
{
    int64_t known = 0, others = 0, drafts = 0;

    assert_true(count <= f->schedule.concurrency);
    for (int64_t i = 0; i < count; i++) {
        const invar_seq *seq = &f->seqs[slices[i].seq];

        assert_true(i == 0 || slices[i].seq > slices[i - 1].seq);
        if (slices[i].first < seq->prefill)
            known += slices[i].count;
        else
            others++, drafts += slices[i].count - 1;
        assert_true(slices[i].first < seq->prefill || slices[i].count <= 1 + f->schedule.lookahead);
    }
    assert_true(known <= f->schedule.chunk);
    // preempted sequences may leave a pass that was meant for them
    assert_true(!f->schedule.separate_prefill || others == 0 || known <= 2 * others ||
                has_preempted(f));
    assert_true(known + others + drafts <=
                invar_scheduler_max_rows(f->schedule.chunk, f->schedule.concurrency,
                                         f->schedule.lookahead, f->schedule.separate_prefill));
}

/* Rejects a random number of draft rows and truncates the sequence. */
static void reject_drafts(tag_model *f, const invar_seq_slice *slices, int64_t i)
{
    const invar_seq_slice *slice = &slices[i];
    const invar_seq *seq = &f->seqs[slice->seq];
    int64_t n_accepted = 1 + invar_test_random(91, f->n_draws++) % slice->count;
    int64_t n_left = f->length[slice->seq] - slice->first;

    if (slice->first < seq->prefill)
        return;
    n_accepted = n_accepted < n_left ? n_accepted : n_left;
    for (int64_t row = slice->first + n_accepted; row < slice->first + slice->count; row++)
        *row_tag(f, slice->seq, row) = -1.0f;
    if (n_accepted < slice->count)
        invar_scheduler_truncate(&f->schedule, i, n_accepted);
    assert_int_equal(seq->n_pages, invar_kv_cache_pages_for(f->cache, seq->done));
}

static bool run_pass(tag_model *f)
{
    const invar_seq_slice *slices;
    int64_t count;

    assert_ok(invar_scheduler_next(&slices, &count, &f->schedule));
    f->passes++;
    check_pass(f, slices, count);
    for (int64_t i = 0; i < count; i++)
        write_tags(f, &slices[i]);
    for (int64_t i = 0; i < count; i++)
        reject_drafts(f, slices, i);
    for (int64_t i = 0; i < count; i++) {
        check_tags(f, &slices[i]);
        f->rows += slices[i].count;
    }
    for (int64_t i = 0; i < count; i++)
        end_finished(f, &slices[i]);
    return count > 0;
}

static void run_all(tag_model *f, int64_t concurrency, int64_t chunk)
{
    assert_ok(invar_scheduler_init(&f->schedule, f->cache, f->seqs, f->n_seqs, concurrency, chunk));
    f->schedule.separate_prefill = f->separate_prefill;
    f->schedule.lookahead = f->lookahead;
    while (run_pass(f))
        assert_true(f->passes < 100000);
    for (int64_t i = 0; i < f->n_seqs; i++)
        assert_true(f->ended[i] > 0);
    assert_int_equal(f->cache->n_free, f->cache->shape.pages);
}

/* ---- schedules by hand ----------------------------------------------------------------------- */

static void test_scheduler__mixes_prefill_and_decode(void **state)
{
    tag_model f;

    (void)state;
    tag_model_init(&f, 100, 4);
    add_seq(&f, 5, 9, 7, 0);
    add_seq(&f, 4, 9, 4, 0);
    add_seq(&f, 1, 9, 3, 0);
    assert_ok(invar_scheduler_init(&f.schedule, f.cache, f.seqs, 3, 2, 3));
    {
        // {sequence, first, count}: prefill chunks of 3, two sequences at a time
        const invar_seq_slice expected[][2] = {
            {{0, 0, 3}},
            {{0, 3, 2}, {1, 0, 1}},
            {{0, 5, 1}, {1, 1, 3}},
            {{0, 6, 1}, {2, 0, 1}},
            {{2, 1, 1}},
            {{2, 2, 1}},
        };
        const int64_t counts[] = {1, 2, 2, 2, 1, 1};

        for (int i = 0; i < 6; i++) {
            assert_true(run_pass(&f));
            assert_memory_equal(f.schedule.slices, expected[i],
                                (size_t)counts[i] * sizeof(invar_seq_slice));
        }
    }
    assert_false(run_pass(&f));
    assert_false(run_pass(&f)); // further calls return nothing, too
    tag_model_release(&f);
}

static void test_scheduler__separates_much_prefill(void **state)
{
    // sequence 2 has two prefill rows in a pass with one decode row
    const invar_seq_slice expected[][2] = {
        {{0, 0, 3}},
        {{0, 3, 2}, {1, 0, 1}},
        {{1, 1, 3}},
        {{0, 5, 1}, {1, 4, 1}},
        {{0, 6, 1}, {1, 5, 1}},
        {{1, 6, 1}, {2, 0, 2}},
        {{2, 2, 1}},
    };
    const int64_t counts[] = {1, 2, 1, 2, 2, 2, 1};
    tag_model f;

    (void)state;
    tag_model_init(&f, 100, 4);
    add_seq(&f, 5, 9, 7, 0);
    add_seq(&f, 4, 9, 7, 0);
    add_seq(&f, 2, 9, 3, 0);
    assert_ok(invar_scheduler_init(&f.schedule, f.cache, f.seqs, 3, 2, 3));
    f.schedule.separate_prefill = true;
    for (int i = 0; i < 7; i++) {
        assert_true(run_pass(&f));
        assert_memory_equal(f.schedule.slices, expected[i],
                            (size_t)counts[i] * sizeof(invar_seq_slice));
    }
    assert_false(run_pass(&f));
    tag_model_release(&f);
}

static void test_scheduler__a_shared_prompt_is_prefilled_once(void **state)
{
    tag_model f;

    (void)state;
    for (int64_t size = 1; size <= 8; size++) {
        tag_model_init(&f, 200, size);
        add_group(&f, 6, 6 + 3, 5); // lengths 6, 9, 8, 7, 6
        run_all(&f, 64, 512);
        assert_int_equal(f.rows, 6 + 0 + 3 + 2 + 1 + 0);
        assert_int_equal(f.passes, 1 + 3 + 1);
        // full pages of the prompt exist once
        assert_true(f.cache->max_used <= invar_kv_cache_pages_for(f.cache, 6) +
                                             5 * (invar_kv_cache_pages_for(f.cache, 9) - 6 / size));
        tag_model_release(&f);
    }
}

static void test_scheduler__sequences_continue_after_their_prompt(void **state)
{
    tag_model f;

    (void)state;
    tag_model_init(&f, 200, 4);
    for (int i = 0; i < 4; i++)
        add_group(&f, 5, 8, 2);
    run_all(&f, 64, 512);
    // all prompts in the first pass, then all sequences together
    assert_int_equal(f.passes, 1 + 3 + 1);
    tag_model_release(&f);
}

static void test_scheduler__admits_in_order_when_pages_are_short(void **state)
{
    tag_model f;

    (void)state;
    tag_model_init(&f, 3, 2);
    add_seq(&f, 2, 6, 6, 0); // needs all 3 pages at its end
    add_seq(&f, 2, 6, 6, 0); // must wait for the first sequence
    add_seq(&f, 1, 2, 2, 0); // would fit with 1 page, but waits for its predecessor
    run_all(&f, 64, 512);
    assert_int_equal(f.ended[0], 5);
    assert_int_equal(f.ended[1], 10);
    assert_int_equal(f.ended[2], 12);
    assert_int_equal(f.n_recomputed, 0);
    tag_model_release(&f);
}

static void test_scheduler__preempts_the_last_sequence(void **state)
{
    // {sequence, first, count}: 8 pages of one row; sequence 1 is preempted after 4 rows of each
    const invar_seq_slice expected[][2] = {
        {{0, 0, 1}, {1, 0, 1}},
        {{0, 1, 1}, {1, 1, 1}},
        {{0, 2, 1}, {1, 2, 1}},
        {{0, 3, 1}, {1, 3, 1}},
        {{0, 4, 1}},
        {{0, 5, 1}},
        {{0, 6, 1}},
        {{1, 0, 3}},
        {{1, 3, 2}},
        {{1, 5, 1}},
        {{1, 6, 1}},
    };
    const int64_t counts[] = {2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1};
    tag_model f;

    (void)state;
    tag_model_init(&f, 8, 1);
    add_seq(&f, 1, 8, 7, 0);
    add_seq(&f, 1, 8, 7, 0);
    assert_ok(invar_scheduler_init(&f.schedule, f.cache, f.seqs, 2, 2, 3));
    for (int i = 0; i < 11; i++) {
        assert_true(run_pass(&f));
        assert_memory_equal(f.schedule.slices, expected[i],
                            (size_t)counts[i] * sizeof(invar_seq_slice));
    }
    assert_false(run_pass(&f));
    assert_int_equal(f.n_recomputed, 4);
    tag_model_release(&f);
}

/* Pages are not reserved for the largest length, so all sequences run together in a small cache. */
static void test_scheduler__reserves_no_pages(void **state)
{
    tag_model f;

    (void)state;
    tag_model_init(&f, 100, 4);
    for (int i = 0; i < 12; i++)
        add_seq(&f, 8, 400, 16, 0);
    run_all(&f, 64, 512);
    assert_int_equal(f.passes, 1 + 8 + 1);
    assert_int_equal(f.n_recomputed, 0);
    tag_model_release(&f);
}

/* Draft rows only get free pages, and sequences 0 and 1 never wait because of them. */
static void test_scheduler__draft_rows_use_free_pages(void **state)
{
    // sequence 1 has its full length after 4 rows; the cache has 7 pages of one row
    const invar_seq_slice expected[][2] = {
        {{0, 0, 1}, {1, 0, 1}},
        {{0, 1, 3}, {1, 1, 2}},
        {{0, 2, 2}, {1, 2, 1}},
        {{0, 3, 3}},
    };
    const int64_t counts[] = {2, 2, 2, 1}, kept[] = {1, 1, 1, 2};
    const invar_seq_slice *slices;
    int64_t count;
    tag_model f;

    (void)state;
    tag_model_init(&f, 7, 1);
    add_seq(&f, 1, 7, 7, 0);
    add_seq(&f, 1, 4, 4, 0);
    assert_ok(invar_scheduler_init(&f.schedule, f.cache, f.seqs, 2, 2, 8));
    f.schedule.lookahead = 2;
    for (int i = 0; i < 4; i++) {
        assert_ok(invar_scheduler_next(&slices, &count, &f.schedule));
        assert_int_equal(count, counts[i]);
        assert_memory_equal(slices, expected[i], (size_t)count * sizeof(invar_seq_slice));
        for (int64_t n = 0; n < count; n++)
            invar_scheduler_truncate(&f.schedule, n, kept[i]);
        if (i == 2)
            invar_scheduler_finish(&f.schedule, 1);
    }
    assert_int_equal(f.cache->n_free, 2);
    tag_model_release(&f);
}

static void test_scheduler__refuses_sequences_that_never_fit(void **state)
{
    tag_model f;

    (void)state;
    tag_model_init(&f, 3, 4);
    add_seq(&f, 2, 12, 12, 0);
    add_seq(&f, 2, 13, 12, 0);
    assert_fails(invar_scheduler_init(&f.schedule, f.cache, f.seqs, 2, 1, 1), INVAR_E_INVALID,
                 "sample 1 may need 4 pages of 4 positions, the cache has 3");
    tag_model_release(&f);
    tag_model_init(&f, 3, 4);
    add_group(&f, 5, 12, 2); // two pages for the prompt and two more for a sequence
    assert_fails(invar_scheduler_init(&f.schedule, f.cache, f.seqs, 3, 1, 1), INVAR_E_INVALID,
                 "sample 1 may need 4 pages");
    tag_model_release(&f);
    tag_model_init(&f, 3, 4);
    add_group(&f, 4, 12, 2); // no partial page to copy: it fits exactly
    run_all(&f, 5, 3);
    tag_model_release(&f);
}

static void test_scheduler__nothing_to_do(void **state)
{
    tag_model f;

    (void)state;
    tag_model_init(&f, 3, 4);
    run_all(&f, 64, 512);
    assert_int_equal(f.passes, 1);
    tag_model_release(&f);
}

/* ---- random schedules ------------------------------------------------------------------------ */

static int64_t random_between(uint64_t seed, uint64_t *n, int64_t from, int64_t to)
{
    return from + invar_test_random(seed, (*n)++) % (to - from + 1);
}

static void make_seqs(tag_model *f, uint64_t seed, uint64_t *n)
{
    while (f->n_seqs < MAX_SEQS - 7) {
        int64_t prefill = random_between(seed, n, 1, 20),
                rows = prefill + random_between(seed, n, 0, 20);

        if (random_between(seed, n, 0, 1))
            add_group(f, prefill, rows, random_between(seed, n, 1, 6));
        else
            add_seq(f, prefill, rows, random_between(seed, n, prefill, rows), 0);
    }
}

/* Returns the largest number of pages that a sequence needs, including its prompt. */
static int64_t pages_needed(const tag_model *f, int64_t size)
{
    int64_t most = 0;

    for (int64_t i = 0; i < f->n_seqs; i++) {
        int64_t shared = f->prompt_tag[i] != i && f->seqs[i].prefill % size != 0;
        int64_t pages = (f->seqs[i].rows + size - 1) / size + shared;
        most = pages > most ? pages : most;
    }
    return most;
}

static void test_scheduler__random_schedules_finish(void **state)
{
    int64_t cases = invar_test_count(300, 20000), n_recomputed = 0, rows = 0;

    (void)state;
    for (int64_t i = 0; i < cases; i++) {
        uint64_t n = 0, seed = (uint64_t)i;
        int64_t size = random_between(seed, &n, 1, 9);
        tag_model f, template = {0};

        make_seqs(&template, seed, &n);
        // half of the caches have only the pages that one sequence needs, which forces preemptions
        tag_model_init(&f,
                       pages_needed(&template, size) +
                           random_between(seed, &n, 0, 1) * random_between(seed, &n, 0, 40),
                       size);
        memcpy(f.seqs, template.seqs, sizeof f.seqs);
        memcpy(f.prompt_tag, template.prompt_tag, sizeof f.prompt_tag);
        memcpy(f.prompt, template.prompt, sizeof f.prompt);
        memcpy(f.length, template.length, sizeof f.length);
        f.n_seqs = template.n_seqs;
        f.separate_prefill = i % 2;
        f.lookahead = i % 3 ? 0 : 1 + i % 8;
        run_all(&f, random_between(seed, &n, 1, 12), random_between(seed, &n, 1, 30));
        // a sequence that ends with its prompt has no rows of its own
        for (int64_t j = 0; j < f.n_seqs; j++)
            assert_int_equal(f.n_computed[j],
                             f.prompt_tag[j] != j && f.length[j] == f.prompt[j] ? 0 : f.length[j]);
        n_recomputed += f.n_recomputed;
        rows += f.rows;
        tag_model_release(&f);
    }
    // preemption happens, and recomputes few rows even in small caches
    assert_true(n_recomputed > cases && n_recomputed < rows / 4);
}

/* One page less than pages_needed is rejected. */
static void test_scheduler__one_page_less_is_refused(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        uint64_t n = 0;
        int64_t size = random_between(seed, &n, 1, 9);
        tag_model f, template = {0};

        make_seqs(&template, seed, &n);
        if (pages_needed(&template, size) == 1)
            continue;
        tag_model_init(&f, pages_needed(&template, size) - 1, size);
        assert_fails(
            invar_scheduler_init(&f.schedule, f.cache, template.seqs, template.n_seqs, 4, 4),
            INVAR_E_INVALID, "give it more pages");
        tag_model_release(&f);
    }
}

/* Control: a page that two sequences own gives a wrong tag. */
static void test_scheduler__a_page_with_two_owners_is_detected(void **state)
{
    const invar_seq_slice *slices;
    int64_t count;
    tag_model f;

    (void)state;
    tag_model_init(&f, 10, 4);
    add_seq(&f, 2, 3, 3, 0);
    add_seq(&f, 2, 3, 3, 0);
    assert_ok(invar_scheduler_init(&f.schedule, f.cache, f.seqs, 2, 2, 8));
    assert_ok(invar_scheduler_next(&slices, &count, &f.schedule));
    assert_int_equal(count, 2);
    f.seqs[1].pages[0] = f.seqs[0].pages[0];
    write_tags(&f, &slices[0]);
    write_tags(&f, &slices[1]);
    assert_true(*row_tag(&f, 0, 0) != expected_tag(&f, 0, 0));
    tag_model_release(&f);
}

/* Sequences are added, canceled and compacted while others run; an unused prompt is freed. */
static void test_scheduler__add_cancel_compact(void **state)
{
    int64_t new_indexes[8], count;
    const invar_seq_slice *slices;
    tag_model f;

    (void)state;
    tag_model_init(&f, 20, 2);
    add_seq(&f, 2, 9, 9, 0);
    add_group(&f, 3, 6, 2); // sequences 1 to 3
    assert_ok(invar_scheduler_init(&f.schedule, f.cache, f.seqs, 1, 8, 8));
    assert_ok(invar_scheduler_next(&slices, &count, &f.schedule));
    assert_ok(invar_scheduler_next(&slices, &count, &f.schedule));
    assert_int_equal(count, 1); // only the first sequence exists
    assert_ok(invar_scheduler_add(&f.schedule, f.seqs, 3));
    assert_ok(invar_scheduler_next(&slices, &count, &f.schedule));
    assert_int_equal(count, 2); // the first sequence and the prompt
    assert_int_equal(slices[1].seq, 1);
    invar_scheduler_cancel(&f.schedule, 2);
    assert_int_equal(f.seqs[1].n_pending_shares, 1);
    invar_scheduler_cancel(&f.schedule, 3);
    assert_int_equal(f.seqs[1].state, INVAR_SEQ_FINISHED); // a prompt ends with its last sequence
    assert_int_equal(f.cache->n_free, 20 - 2);
    add_group(&f, 2, 4, 2); // sequences 4 to 6
    add_seq(&f, 2, 3, 3, 0);
    assert_ok(invar_scheduler_add(&f.schedule, f.seqs, 4));
    invar_scheduler_compact(new_indexes, &f.schedule);
    assert_int_equal(f.schedule.n_seqs, 5);
    for (int i = 0; i < 8; i++)
        assert_int_equal(new_indexes[i], i == 0 ? 0 : i < 4 ? -1 : i - 3);
    assert_int_equal(f.seqs[2].parent, 1);
    assert_int_equal(f.seqs[3].parent, 1);
    assert_ok(invar_scheduler_next(&slices, &count, &f.schedule));
    assert_int_equal(count, 3); // the first sequence, the new prompt and the last sequence
    assert_int_equal(slices[2].seq, 4);
    for (int64_t i = 0; i < 5; i++)
        if (f.seqs[i].n_sharing == 0)
            invar_scheduler_cancel(&f.schedule, i);
    assert_int_equal(f.cache->n_free, 20);
    assert_ok(invar_scheduler_next(&slices, &count, &f.schedule));
    assert_int_equal(count, 0);
    tag_model_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scheduler__mixes_prefill_and_decode),
        cmocka_unit_test(test_scheduler__separates_much_prefill),
        cmocka_unit_test(test_scheduler__a_shared_prompt_is_prefilled_once),
        cmocka_unit_test(test_scheduler__sequences_continue_after_their_prompt),
        cmocka_unit_test(test_scheduler__admits_in_order_when_pages_are_short),
        cmocka_unit_test(test_scheduler__preempts_the_last_sequence),
        cmocka_unit_test(test_scheduler__reserves_no_pages),
        cmocka_unit_test(test_scheduler__draft_rows_use_free_pages),
        cmocka_unit_test(test_scheduler__refuses_sequences_that_never_fit),
        cmocka_unit_test(test_scheduler__nothing_to_do),
        cmocka_unit_test(test_scheduler__random_schedules_finish),
        cmocka_unit_test(test_scheduler__one_page_less_is_refused),
        cmocka_unit_test(test_scheduler__a_page_with_two_owners_is_detected),
        cmocka_unit_test(test_scheduler__add_cancel_compact),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
