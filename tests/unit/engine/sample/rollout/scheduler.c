/*
 * scheduler.c - continuous batching with a model that only remembers what was put in.
 *
 * The model of these tests writes a tag for every row into the row's page, and looks at the tags of
 * all positions before it, as attention would. Whatever goes wrong with pages (shared too early,
 * given back too soon, written by two) shows as a wrong tag.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "engine/sample/rollout/scheduler.h"
#include "tests/support.h"

enum { MOST_JOBS = 64 };

typedef struct fake {
    invar_kv_cache *cache;
    invar_scheduler schedule;
    invar_seq jobs[MOST_JOBS];
    int64_t prompt_tag[MOST_JOBS]; /* what the first rows of a job say */
    int64_t prompt[MOST_JOBS];     /* how many of them */
    int64_t length[MOST_JOBS];     /* rows after which a sequence ends; at least prefill */
    int64_t seen[MOST_JOBS];       /* rows put in, once or more often */
    int64_t ended[MOST_JOBS];      /* number of the pass; 0: not yet */
    int64_t n_jobs;
    int64_t passes;
    int64_t rows;  /* in all passes */
    int64_t again; /* of them, those that had been in a pass */
    bool apart;
    int64_t ahead;
    uint64_t luck; /* guesses so far */
} fake;

static void fake_init(fake *f, int64_t pages, int64_t page_size)
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

static void fake_release(fake *f)
{
    invar_scheduler_release(&f->schedule);
    invar_kv_cache_free(f->cache);
}

/* A sequence that ends after `length` rows, or a prompt. */
static void add(fake *f, int64_t prefill, int64_t rows, int64_t length, int64_t children)
{
    int64_t n = f->n_jobs++, parent = n;

    f->jobs[n] = (invar_seq){.prefill = prefill, .rows = rows, .n_sharing = children, .sample = n};
    f->prompt[n] = prefill;
    f->length[n] = length;
    // the known rows of jobs that share a prompt say the same
    while (parent > 0 && f->jobs[parent].n_sharing == 0)
        parent--;
    f->prompt_tag[n] = f->jobs[parent].n_sharing >= n - parent && parent < n ? parent : n;
}

static void add_group(fake *f, int64_t prefill, int64_t rows, int64_t children)
{
    add(f, prefill, prefill, prefill, children);
    for (int64_t i = 0; i < children; i++)
        add(f, prefill, rows, prefill + (i * 3) % (rows - prefill + 1), 0);
}

static float tag(const fake *f, int64_t job, int64_t row)
{
    int64_t who = row < f->prompt[job] ? f->prompt_tag[job] : job;

    return (float)(who * 1000 + row);
}

static float *place(const fake *f, int64_t job, int64_t row)
{
    int64_t size = f->cache->shape.page_size;

    return (float *)f->cache->layers[0].k.data + f->jobs[job].pages[row / size] * size + row % size;
}

static void put_in(fake *f, const invar_seq_slice *turn)
{
    for (int64_t row = turn->first; row < turn->first + turn->count; row++)
        *place(f, turn->seq, row) = tag(f, turn->seq, row);
}

static void look_back(const fake *f, const invar_seq_slice *turn)
{
    for (int64_t row = 0; row < turn->first + turn->count; row++)
        assert_true(*place(f, turn->seq, row) == tag(f, turn->seq, row));
}

static void end_sequence(fake *f, int64_t job)
{
    f->ended[job] = f->passes;
    invar_scheduler_finish(&f->schedule, job);
}

/* What the caller does after a pass: sequences end; a prompt ends those that need no more. */
static void after(fake *f, const invar_seq_slice *turn)
{
    const invar_seq *job = &f->jobs[turn->seq];
    int64_t behind = turn->first + turn->count;

    for (int64_t row = turn->first; row < behind; row++) {
        bool before = row < f->seen[turn->seq] ||
                      (f->prompt_tag[turn->seq] != turn->seq && row < f->prompt[turn->seq]);
        // nothing new is taken for old, nor the other way round
        assert_true(before == (row < job->n_recompute));
        f->again += before;
    }
    if (behind > f->seen[turn->seq])
        f->seen[turn->seq] = behind;
    for (int64_t i = 1; i <= job->n_sharing && f->seen[turn->seq] == job->prefill; i++)
        if (f->length[turn->seq + i] == job->prefill)
            end_sequence(f, turn->seq + i);
    if (job->n_sharing > 0 && f->seen[turn->seq] == job->prefill)
        f->ended[turn->seq] = f->passes;
    else if (job->n_sharing == 0 && behind == f->length[turn->seq])
        end_sequence(f, turn->seq);
}

static bool gave_way(const fake *f)
{
    for (int64_t i = 0; i < f->n_jobs; i++)
        if (f->jobs[i].state == INVAR_SEQ_WAITING && f->jobs[i].n_recompute > 0)
            return true;
    return false;
}

static void check_pass(const fake *f, const invar_seq_slice *turns, int64_t count)
{
    int64_t known = 0, others = 0, ahead = 0;

    assert_true(count <= f->schedule.concurrency);
    for (int64_t i = 0; i < count; i++) {
        const invar_seq *job = &f->jobs[turns[i].seq];

        assert_true(i == 0 || turns[i].seq > turns[i - 1].seq);
        if (turns[i].first < job->prefill)
            known += turns[i].count;
        else
            others++, ahead += turns[i].count - 1;
        assert_true(turns[i].first < job->prefill || turns[i].count <= 1 + f->schedule.lookahead);
    }
    assert_true(known <= f->schedule.chunk);
    // those that give way are out of a pass that was to be theirs, too
    assert_true(!f->schedule.separate_prefill || others == 0 || known <= 2 * others || gave_way(f));
    assert_true(known + others + ahead <=
                invar_scheduler_max_rows(f->schedule.chunk, f->schedule.concurrency,
                                         f->schedule.lookahead, f->schedule.separate_prefill));
}

/* Some of the rows ahead turn out to be wrong, and are cut. */
static void guess(fake *f, const invar_seq_slice *turns, int64_t i)
{
    const invar_seq_slice *turn = &turns[i];
    const invar_seq *job = &f->jobs[turn->seq];
    int64_t right = 1 + invar_test_random(91, f->luck++) % turn->count;
    int64_t left = f->length[turn->seq] - turn->first;

    if (turn->first < job->prefill)
        return;
    right = right < left ? right : left;
    for (int64_t row = turn->first + right; row < turn->first + turn->count; row++)
        *place(f, turn->seq, row) = -1.0f;
    if (right < turn->count)
        invar_scheduler_truncate(&f->schedule, i, right);
    assert_int_equal(job->n_pages, invar_kv_cache_pages_for(f->cache, job->done));
}

static bool pass(fake *f)
{
    const invar_seq_slice *turns;
    int64_t count;

    assert_ok(invar_scheduler_next(&turns, &count, &f->schedule));
    f->passes++;
    check_pass(f, turns, count);
    for (int64_t i = 0; i < count; i++)
        put_in(f, &turns[i]);
    for (int64_t i = 0; i < count; i++)
        guess(f, turns, i);
    for (int64_t i = 0; i < count; i++) {
        look_back(f, &turns[i]);
        f->rows += turns[i].count;
    }
    for (int64_t i = 0; i < count; i++)
        after(f, &turns[i]);
    return count > 0;
}

static void run(fake *f, int64_t concurrency, int64_t chunk)
{
    assert_ok(invar_scheduler_init(&f->schedule, f->cache, f->jobs, f->n_jobs, concurrency, chunk));
    f->schedule.separate_prefill = f->apart;
    f->schedule.lookahead = f->ahead;
    while (pass(f))
        assert_true(f->passes < 100000);
    for (int64_t i = 0; i < f->n_jobs; i++)
        assert_true(f->ended[i] > 0);
    assert_int_equal(f->cache->n_free, f->cache->shape.pages);
}

/* ---- the schedule, by hand ------------------------------------------------------------------- */

static void test_schedule__mixes_prefill_and_decode(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, 100, 4);
    add(&f, 5, 9, 7, 0);
    add(&f, 4, 9, 4, 0);
    add(&f, 1, 9, 3, 0);
    assert_ok(invar_scheduler_init(&f.schedule, f.cache, f.jobs, 3, 2, 3));
    {
        // {job, first, count}: a chunk of 3, two jobs at a time
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
            assert_true(pass(&f));
            assert_memory_equal(f.schedule.slices, expected[i],
                                (size_t)counts[i] * sizeof(invar_seq_slice));
        }
    }
    assert_false(pass(&f));
    assert_false(pass(&f)); // over stays over
    fake_release(&f);
}

static void test_schedule__keeps_much_prefill_apart(void **state)
{
    // job 2 has two known rows beside one other
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
    fake f;

    (void)state;
    fake_init(&f, 100, 4);
    add(&f, 5, 9, 7, 0);
    add(&f, 4, 9, 7, 0);
    add(&f, 2, 9, 3, 0);
    assert_ok(invar_scheduler_init(&f.schedule, f.cache, f.jobs, 3, 2, 3));
    f.schedule.separate_prefill = true;
    for (int i = 0; i < 7; i++) {
        assert_true(pass(&f));
        assert_memory_equal(f.schedule.slices, expected[i],
                            (size_t)counts[i] * sizeof(invar_seq_slice));
    }
    assert_false(pass(&f));
    fake_release(&f);
}

static void test_schedule__a_prompt_is_put_in_once(void **state)
{
    fake f;

    (void)state;
    for (int64_t size = 1; size <= 8; size++) {
        fake_init(&f, 200, size);
        add_group(&f, 6, 6 + 3, 5); // lengths 6, 9, 8, 7, 6
        run(&f, 64, 512);
        assert_int_equal(f.rows, 6 + 0 + 3 + 2 + 1 + 0);
        assert_int_equal(f.passes, 1 + 3 + 1);
        // full pages are there once
        assert_true(f.cache->max_used <= invar_kv_cache_pages_for(f.cache, 6) +
                                             5 * (invar_kv_cache_pages_for(f.cache, 9) - 6 / size));
        fake_release(&f);
    }
}

static void test_schedule__goes_on_behind_a_prompt(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, 200, 4);
    for (int i = 0; i < 4; i++)
        add_group(&f, 5, 8, 2);
    run(&f, 64, 512);
    // all prompts in the first pass, all sequences side by side
    assert_int_equal(f.passes, 1 + 3 + 1);
    fake_release(&f);
}

static void test_schedule__admits_in_order_when_pages_are_short(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, 3, 2);
    add(&f, 2, 6, 6, 0); // 3 pages in the end
    add(&f, 2, 6, 6, 0); // must wait: the first one grows
    add(&f, 1, 2, 2, 0); // 1 page: would fit, but waits behind
    run(&f, 64, 512);
    assert_int_equal(f.ended[0], 5);
    assert_int_equal(f.ended[1], 10);
    assert_int_equal(f.ended[2], 12);
    assert_int_equal(f.again, 0);
    fake_release(&f);
}

static void test_schedule__the_last_one_gives_way(void **state)
{
    // {job, first, count}: 8 pages of a row each; the second one comes with room for four of each
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
    fake f;

    (void)state;
    fake_init(&f, 8, 1);
    add(&f, 1, 8, 7, 0);
    add(&f, 1, 8, 7, 0);
    assert_ok(invar_scheduler_init(&f.schedule, f.cache, f.jobs, 2, 2, 3));
    for (int i = 0; i < 11; i++) {
        assert_true(pass(&f));
        assert_memory_equal(f.schedule.slices, expected[i],
                            (size_t)counts[i] * sizeof(invar_seq_slice));
    }
    assert_false(pass(&f));
    assert_int_equal(f.again, 4);
    fake_release(&f);
}

/* A cache that holds far fewer rows than all sequences could have: they run side by side. */
static void test_schedule__takes_no_pages_beforehand(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, 100, 4);
    for (int i = 0; i < 12; i++)
        add(&f, 8, 400, 16, 0);
    run(&f, 64, 512);
    assert_int_equal(f.passes, 1 + 8 + 1);
    assert_int_equal(f.again, 0);
    fake_release(&f);
}

/* Pages for rows ahead are those that are left, and job 0 and 1 never wait for them. */
static void test_schedule__rows_ahead_take_what_is_left(void **state)
{
    // job 1 is as long as it may be after 4 rows; 7 pages of one row are all there are
    const invar_seq_slice expected[][2] = {
        {{0, 0, 1}, {1, 0, 1}},
        {{0, 1, 3}, {1, 1, 2}},
        {{0, 2, 2}, {1, 2, 1}},
        {{0, 3, 3}},
    };
    const int64_t counts[] = {2, 2, 2, 1}, kept[] = {1, 1, 1, 2};
    const invar_seq_slice *turns;
    int64_t count;
    fake f;

    (void)state;
    fake_init(&f, 7, 1);
    add(&f, 1, 7, 7, 0);
    add(&f, 1, 4, 4, 0);
    assert_ok(invar_scheduler_init(&f.schedule, f.cache, f.jobs, 2, 2, 8));
    f.schedule.lookahead = 2;
    for (int i = 0; i < 4; i++) {
        assert_ok(invar_scheduler_next(&turns, &count, &f.schedule));
        assert_int_equal(count, counts[i]);
        assert_memory_equal(turns, expected[i], (size_t)count * sizeof(invar_seq_slice));
        for (int64_t n = 0; n < count; n++)
            invar_scheduler_truncate(&f.schedule, n, kept[i]);
        if (i == 2)
            invar_scheduler_finish(&f.schedule, 1);
    }
    assert_int_equal(f.cache->n_free, 2);
    fake_release(&f);
}

static void test_schedule__refuses_what_can_never_fit(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, 3, 4);
    add(&f, 2, 12, 12, 0);
    add(&f, 2, 13, 12, 0);
    assert_fails(invar_scheduler_init(&f.schedule, f.cache, f.jobs, 2, 1, 1), INVAR_E_INVALID,
                 "sample 1 may need 4 pages of 4 positions, the cache has 3");
    fake_release(&f);
    fake_init(&f, 3, 4);
    add_group(&f, 5, 12, 2); // two pages for the prompt, two more for a sequence
    assert_fails(invar_scheduler_init(&f.schedule, f.cache, f.jobs, 3, 1, 1), INVAR_E_INVALID,
                 "sample 1 may need 4 pages");
    fake_release(&f);
    fake_init(&f, 3, 4);
    add_group(&f, 4, 12, 2); // nothing to copy: it fits exactly
    run(&f, 5, 3);
    fake_release(&f);
}

static void test_schedule__nothing_to_do(void **state)
{
    fake f;

    (void)state;
    fake_init(&f, 3, 4);
    run(&f, 64, 512);
    assert_int_equal(f.passes, 1);
    fake_release(&f);
}

/* ---- the schedule, by chance ----------------------------------------------------------------- */

static int64_t pick(uint64_t seed, uint64_t *n, int64_t from, int64_t to)
{
    return from + invar_test_random(seed, (*n)++) % (to - from + 1);
}

static void make_jobs(fake *f, uint64_t seed, uint64_t *n)
{
    while (f->n_jobs < MOST_JOBS - 7) {
        int64_t prefill = pick(seed, n, 1, 20), rows = prefill + pick(seed, n, 0, 20);

        if (pick(seed, n, 0, 1))
            add_group(f, prefill, rows, pick(seed, n, 1, 6));
        else
            add(f, prefill, rows, pick(seed, n, prefill, rows), 0);
    }
}

/* Pages that the most demanding job needs, its prompt included. */
static int64_t pages_needed(const fake *f, int64_t size)
{
    int64_t most = 0;

    for (int64_t i = 0; i < f->n_jobs; i++) {
        int64_t shared = f->prompt_tag[i] != i && f->jobs[i].prefill % size != 0;
        int64_t pages = (f->jobs[i].rows + size - 1) / size + shared;
        most = pages > most ? pages : most;
    }
    return most;
}

static void test_schedule__always_comes_to_an_end(void **state)
{
    int64_t cases = invar_test_count(300, 20000), again = 0, rows = 0;

    (void)state;
    for (int64_t i = 0; i < cases; i++) {
        uint64_t n = 0, seed = (uint64_t)i;
        int64_t size = pick(seed, &n, 1, 9);
        fake f, planned = {0};

        make_jobs(&planned, seed, &n);
        // now and then not one page more than the most demanding job needs: many give way then
        fake_init(&f, pages_needed(&planned, size) + pick(seed, &n, 0, 1) * pick(seed, &n, 0, 40),
                  size);
        memcpy(f.jobs, planned.jobs, sizeof f.jobs);
        memcpy(f.prompt_tag, planned.prompt_tag, sizeof f.prompt_tag);
        memcpy(f.prompt, planned.prompt, sizeof f.prompt);
        memcpy(f.length, planned.length, sizeof f.length);
        f.n_jobs = planned.n_jobs;
        f.apart = i % 2;
        f.ahead = i % 3 ? 0 : 1 + i % 8;
        run(&f, pick(seed, &n, 1, 12), pick(seed, &n, 1, 30));
        // a sequence that ends with its prompt has no rows of its own
        for (int64_t j = 0; j < f.n_jobs; j++)
            assert_int_equal(f.seen[j],
                             f.prompt_tag[j] != j && f.length[j] == f.prompt[j] ? 0 : f.length[j]);
        again += f.again;
        rows += f.rows;
        fake_release(&f);
    }
    // it happens, and costs little even in such caches
    assert_true(again > cases && again < rows / 4);
}

/* One page less than needed is refused: the bound above is sharp. */
static void test_schedule__one_page_less_is_refused(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        uint64_t n = 0;
        int64_t size = pick(seed, &n, 1, 9);
        fake f, planned = {0};

        make_jobs(&planned, seed, &n);
        if (pages_needed(&planned, size) == 1)
            continue;
        fake_init(&f, pages_needed(&planned, size) - 1, size);
        assert_fails(invar_scheduler_init(&f.schedule, f.cache, planned.jobs, planned.n_jobs, 4, 4),
                     INVAR_E_INVALID, "give it more pages");
        fake_release(&f);
    }
}

/* The model of these tests notices what it must notice. */
static void test_schedule__a_page_in_two_hands_is_seen(void **state)
{
    const invar_seq_slice *turns;
    int64_t count;
    fake f;

    (void)state;
    fake_init(&f, 10, 4);
    add(&f, 2, 3, 3, 0);
    add(&f, 2, 3, 3, 0);
    assert_ok(invar_scheduler_init(&f.schedule, f.cache, f.jobs, 2, 2, 8));
    assert_ok(invar_scheduler_next(&turns, &count, &f.schedule));
    assert_int_equal(count, 2);
    f.jobs[1].pages[0] = f.jobs[0].pages[0];
    put_in(&f, &turns[0]);
    put_in(&f, &turns[1]);
    assert_true(*place(&f, 0, 0) != tag(&f, 0, 0));
    fake_release(&f);
}

/* Jobs come while others run, those that are over leave the list, and dropped ones their prompt. */
static void test_schedule__jobs_come_and_go(void **state)
{
    int64_t places[8], count;
    const invar_seq_slice *turns;
    fake f;

    (void)state;
    fake_init(&f, 20, 2);
    add(&f, 2, 9, 9, 0);
    add_group(&f, 3, 6, 2); // jobs 1 to 3
    assert_ok(invar_scheduler_init(&f.schedule, f.cache, f.jobs, 1, 8, 8));
    assert_ok(invar_scheduler_next(&turns, &count, &f.schedule));
    assert_ok(invar_scheduler_next(&turns, &count, &f.schedule));
    assert_int_equal(count, 1); // nobody else was there
    assert_ok(invar_scheduler_add(&f.schedule, f.jobs, 3));
    assert_ok(invar_scheduler_next(&turns, &count, &f.schedule));
    assert_int_equal(count, 2); // the first job, and the prompt
    assert_int_equal(turns[1].seq, 1);
    invar_scheduler_cancel(&f.schedule, 2);
    assert_int_equal(f.jobs[1].n_pending_shares, 1);
    invar_scheduler_cancel(&f.schedule, 3);
    assert_int_equal(f.jobs[1].state, INVAR_SEQ_FINISHED); // with the last who wanted it
    assert_int_equal(f.cache->n_free, 20 - 2);
    add_group(&f, 2, 4, 2); // jobs 4 to 6
    add(&f, 2, 3, 3, 0);
    assert_ok(invar_scheduler_add(&f.schedule, f.jobs, 4));
    invar_scheduler_compact(places, &f.schedule);
    assert_int_equal(f.schedule.n_seqs, 5);
    for (int i = 0; i < 8; i++)
        assert_int_equal(places[i], i == 0 ? 0 : i < 4 ? -1 : i - 3);
    assert_int_equal(f.jobs[2].parent, 1);
    assert_int_equal(f.jobs[3].parent, 1);
    assert_ok(invar_scheduler_next(&turns, &count, &f.schedule));
    assert_int_equal(count, 3); // the first job, the new prompt, and the last job
    assert_int_equal(turns[2].seq, 4);
    for (int64_t i = 0; i < 5; i++)
        if (f.jobs[i].n_sharing == 0)
            invar_scheduler_cancel(&f.schedule, i);
    assert_int_equal(f.cache->n_free, 20);
    assert_ok(invar_scheduler_next(&turns, &count, &f.schedule));
    assert_int_equal(count, 0);
    fake_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule__mixes_prefill_and_decode),
        cmocka_unit_test(test_schedule__keeps_much_prefill_apart),
        cmocka_unit_test(test_schedule__a_prompt_is_put_in_once),
        cmocka_unit_test(test_schedule__goes_on_behind_a_prompt),
        cmocka_unit_test(test_schedule__admits_in_order_when_pages_are_short),
        cmocka_unit_test(test_schedule__the_last_one_gives_way),
        cmocka_unit_test(test_schedule__takes_no_pages_beforehand),
        cmocka_unit_test(test_schedule__rows_ahead_take_what_is_left),
        cmocka_unit_test(test_schedule__refuses_what_can_never_fit),
        cmocka_unit_test(test_schedule__nothing_to_do),
        cmocka_unit_test(test_schedule__always_comes_to_an_end),
        cmocka_unit_test(test_schedule__one_page_less_is_refused),
        cmocka_unit_test(test_schedule__a_page_in_two_hands_is_seen),
        cmocka_unit_test(test_schedule__jobs_come_and_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
