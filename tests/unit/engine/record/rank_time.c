/*
 * rank_time.c - tests of the times of ranks: rows per phase and transfer, and the tracks of the
 * trace.
 *
 * Ranks are threads; rank 2 sleeps in one phase. Each nanosecond must be in one row, so that the
 * rows of a rank sum to a duration measured here. Bytes must be those that the ranks asked for,
 * whatever the message schedule.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/rank_time.h"

#include <time.h>
#include <unistd.h>

#include "base/json/json.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/record/trace.h"
#include "tests/unit/engine/ranks/comm/exchange.h"

enum { RANKS = 3, SLOW = 2, ROWS = 64, PAUSE_MS = 40 };

#define MS INT64_C(1000000)

/* Results of all ranks; texts are copies. */
typedef struct rank_time_results {
    invar_ledger_rank_time rows[2][ROWS];         /* rows that rank 0 collected, for two steps */
    size_t n_rows[2], n_intervals_collected[2];   /* counts of rows and intervals, for two steps */
    char text[2][ROWS][3][INVAR_COMM_PHASE_SIZE]; /* copies of phase, transfer and host */
    int64_t min_ns[RANKS], max_ns[RANKS];         /* bounds on the duration of the first step */
    int64_t sent[RANKS];                          /* bytes, summed over all rows */
    size_t n_on_other_ranks[RANKS];               /* rows and intervals collected by other ranks */
    const char *trace;                            /* path of rank 0's trace; NULL for no trace */
} rank_time_results;

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void sleep_ms(int64_t ms)
{
    nanosleep(&(struct timespec){0, (long)(ms * MS)}, NULL);
}

static void copy_rows(rank_time_results *out, int step, const invar_rank_times *all)
{
    for (size_t i = 0; i < all->n_rows && i < ROWS; i++) {
        char(*text)[INVAR_COMM_PHASE_SIZE] = out->text[step][i];
        invar_ledger_rank_time *row = &out->rows[step][i];

        *row = all->rows[i];
        (void)snprintf(text[0], sizeof text[0], "%s", row->phase);
        (void)snprintf(text[1], sizeof text[1], "%s", row->transfer);
        (void)snprintf(text[2], sizeof text[2], "%s", row->host);
        row->phase = text[0];
        row->transfer = text[1];
        row->host = text[2];
    }
    out->n_rows[step] = all->n_rows;
    out->n_intervals_collected[step] = all->n_intervals;
}

static invar_status gather_bytes(const invar_layout *layout, const char *phase, size_t bytes)
{
    static const char zeros[1000];
    char all[RANKS * sizeof zeros];

    return invar_ranks_all_gather(layout, phase, zeros, bytes, all);
}

/* Gathers in a group of its own: transfers of all groups are counted. */
static invar_status gather_in_group(const invar_layout *layout, const char *phase, size_t bytes)
{
    invar_layout group = *layout;
    invar_status status;

    INVAR_TRY(invar_comm_split(&group.world, layout->world, 0, 0, "groups", SECONDS));
    status = gather_bytes(&group, phase, bytes);
    invar_comm_free(group.world);
    return status;
}

/* A step with a slow rank and an inner phase that transfers bytes as well. */
static invar_status run_step(const invar_layout *layout, invar_rank_timer *timer, int rank)
{
    invar_status status;

    invar_rank_timer_begin(timer, "train");
    if (rank == SLOW)
        sleep_ms(PAUSE_MS);
    status = gather_bytes(layout, "gradients", 100);
    if (status == INVAR_OK)
        status = gather_bytes(layout, "gradients", 1000);
    invar_rank_timer_begin(timer, "save");
    if (status == INVAR_OK)
        status = gather_in_group(layout, "moments", 10);
    invar_rank_timer_end(timer);
    invar_rank_timer_end(timer);
    return status;
}

static invar_status collect_two_steps(rank_time_results *out, const invar_layout *layout,
                                      invar_rank_timer *timer, int rank)
{
    int64_t from = now_ns();
    invar_rank_times all;

    INVAR_TRY(run_step(layout, timer, rank));
    out->min_ns[rank] = now_ns() - from;
    for (int step = 0; step < 2; step++) {
        INVAR_TRY(invar_rank_timer_collect(&all, timer));
        if (step == 0)
            out->max_ns[rank] += now_ns();
        if (rank == 0)
            copy_rows(out, step, &all);
        else
            out->n_on_other_ranks[rank] += all.n_rows + all.n_intervals;
    }
    return INVAR_OK;
}

static invar_status run_rank(rank_run *run)
{
    rank_time_results *t = run->payload;
    int rank = invar_comm_rank(run->comm);
    invar_layout layout;
    invar_rank_timer *timer;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    t->max_ns[rank] = -now_ns();
    INVAR_TRY(invar_rank_timer_new(&timer, &layout, true));
    status = collect_two_steps(t, &layout, timer, rank);
    invar_rank_timer_free(timer);
    if (status == INVAR_OK) // the freed timer must not observe transfers any more
        status = gather_bytes(&layout, "after", 1);
    return status;
}

static const invar_ledger_rank_time *find_row(const rank_time_results *t, int step, int rank,
                                              const char *phase, const char *transfer_name)
{
    for (size_t i = 0; i < t->n_rows[step]; i++) {
        const invar_ledger_rank_time *row = &t->rows[step][i];
        if (row->rank == rank && strcmp(row->phase, phase) == 0 &&
            strcmp(row->transfer, transfer_name) == 0)
            return row;
    }
    fail_msg("step %d, rank %d: no row of %s, \"%s\"", step, rank, phase, transfer_name);
    return NULL;
}

static void run_ranks_for_results(rank_time_results *out, uint64_t schedule)
{
    rank_run runs[MAX_RANKS];

    *out = (rank_time_results){.trace = NULL};
    run_ranks(runs, RANKS, schedule, 0, run_rank, out);
    assert_ok(ranks_status(runs, RANKS));
}

static void test_rank_time__other_ranks_wait_for_the_slow_rank(void **state)
{
    static rank_time_results t;

    (void)state;
    run_ranks_for_results(&t, 0);
    for (int r = 0; r < RANKS; r++) {
        const invar_ledger_rank_time *computed = find_row(&t, 0, r, "train", "");
        const invar_ledger_rank_time *waited = find_row(&t, 0, r, "train", "gradients");

        assert_int_equal(computed->calls, 1);
        assert_int_equal(t.n_on_other_ranks[r], 0);
        assert_true(strlen(computed->host) > 0);
        if (r == SLOW)
            assert_true(computed->duration_ns >= PAUSE_MS * MS);
        else
            assert_true(waited->duration_ns > computed->duration_ns);
    }
    assert_true(t.n_intervals_collected[0] >=
                2 * RANKS + RANKS - 1); // all phases, and the long waits of the fast ranks
}

/* Bytes are exact for every message schedule and count for the innermost phase. */
static void test_rank_time__bytes_are_exact(void **state)
{
    static rank_time_results t;

    (void)state;
    for (uint64_t schedule = 0; schedule < 4; schedule++) {
        run_ranks_for_results(&t, schedule);
        for (int r = 0; r < RANKS; r++) {
            const invar_ledger_rank_time *outer = find_row(&t, 0, r, "train", "gradients");
            const invar_ledger_rank_time *inner = find_row(&t, 0, r, "save", "moments");

            assert_int_equal(outer->calls, 2);
            assert_int_equal(outer->sent, (RANKS - 1) * 1100);
            assert_int_equal(outer->received, (RANKS - 1) * 1100);
            assert_int_equal(inner->calls, 1);
            assert_int_equal(inner->sent, (RANKS - 1) * 10);
            assert_int_equal(find_row(&t, 0, r, "save", "groups")->sent, (RANKS - 1) * 24);
        }
    }
}

static void test_rank_time__all_time_is_in_one_row(void **state)
{
    static rank_time_results t;

    (void)state;
    run_ranks_for_results(&t, 0);
    for (int r = 0; r < RANKS; r++) {
        int64_t sum = 0;

        for (size_t i = 0; i < t.n_rows[0]; i++)
            sum += t.rows[0][i].rank == r ? t.rows[0][i].duration_ns : 0;
        assert_in_range(sum, t.min_ns[r], t.max_ns[r]);
    }
}

/* The second step has no time of the first, except for the transfers that collected it. */
static void test_rank_time__a_step_is_collected_once(void **state)
{
    static rank_time_results t;

    (void)state;
    run_ranks_for_results(&t, 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(find_row(&t, 1, r, "other", "work")->calls, 2);
        for (size_t i = 0; i < t.n_rows[1]; i++)
            assert_string_equal(t.rows[1][i].phase, "other");
    }
    assert_int_equal(t.n_rows[1], 2 * RANKS);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static invar_status run_many_phases(rank_run *run)
{
    rank_time_results *out = run->payload;
    invar_rank_times all = {0};
    invar_layout layout;
    invar_rank_timer *timer;
    invar_status status = INVAR_OK;

    invar_layout_init(&layout, run->comm, SECONDS);
    INVAR_TRY(invar_rank_timer_new(&timer, &layout, false));
    for (int i = 0; i < 2 * INVAR_RANK_TIMER_ROWS && status == INVAR_OK; i++) {
        char name[80];

        (void)snprintf(name, sizeof name, "%0*d", i % 2 ? 70 : 4,
                       i); // half of the names are too long
        invar_rank_timer_begin(timer, name);
        status = gather_bytes(&layout, name, 1);
        invar_rank_timer_end(timer);
    }
    if (status == INVAR_OK)
        status = invar_rank_timer_collect(&all, timer);
    if (invar_comm_rank(run->comm) == 0) { // the others collect no rows
        for (size_t i = 0; i < all.n_rows; i++)
            out->sent[all.rows[i].rank] += all.rows[i].sent;
        out->n_intervals_collected[0] += all.n_intervals;
        out->n_rows[0] += all.n_rows;
    }
    invar_rank_timer_free(timer);
    return status;
}

static void test_rank_time__has_a_bound_and_loses_no_byte(void **state)
{
    rank_run runs[MAX_RANKS];
    static rank_time_results t;

    (void)state;
    run_ranks(runs, RANKS, 0, 0, run_many_phases, &t);
    assert_ok(ranks_status(runs, RANKS));
    assert_int_equal(t.n_rows[0], RANKS * INVAR_RANK_TIMER_ROWS);
    assert_int_equal(t.n_intervals_collected[0], 0); // the timer was made without intervals
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(t.sent[r], (RANKS - 1) * 2 * INVAR_RANK_TIMER_ROWS);
}

static void test_rank_time__one_rank_has_no_rows(void **state)
{
    invar_rank_times all;

    (void)state;
    invar_rank_timer_begin(NULL, "train");
    invar_rank_timer_end(NULL);
    assert_ok(invar_rank_timer_collect(&all, NULL));
    assert_int_equal(all.n_rows + all.n_intervals, 0);
    invar_rank_timer_free(NULL);
}

/* ---- trace ----------------------------------------------------------------------------------- */

static invar_status traced_step(const invar_layout *layout, invar_trace *trace, int rank)
{
    const invar_ledger_rank_time *rows;
    invar_status status;
    size_t count;

    invar_trace_step(trace, 7);
    invar_trace_begin(trace, "train");
    if (rank == SLOW)
        sleep_ms(PAUSE_MS);
    status = gather_bytes(layout, "gradients", 100);
    invar_trace_end(trace);
    return status == INVAR_OK ? invar_trace_collect_rank_times(&rows, &count, trace) : status;
}

static invar_status run_traced_steps(rank_run *run)
{
    const rank_time_results *t = run->payload;
    int rank = invar_comm_rank(run->comm);
    invar_layout layout;
    invar_trace *trace;
    invar_rank_timer *timer;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    INVAR_TRY(invar_trace_open(&trace, rank == 0 ? t->trace : ""));
    status = invar_rank_timer_new(&timer, &layout, true);
    if (status == INVAR_OK)
        invar_trace_set_rank_timer(trace, timer);
    for (int i = 0; i < 2 && status == INVAR_OK; i++)
        status = traced_step(&layout, trace, rank);
    if (status == INVAR_OK)
        status = invar_trace_check(trace);
    invar_trace_close(trace);
    return status;
}

static double number(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static void test_rank_time__each_rank_has_a_track(void **state)
{
    int names = 0, phases[RANKS] = {0}, waits[RANKS] = {0};
    static rank_time_results t = {.trace = INVAR_TEST_WORK "/work-trace.json"};
    rank_run runs[MAX_RANKS];
    json_t *events;

    (void)state;
    run_ranks(runs, RANKS, 0, 0, run_traced_steps, &t);
    assert_ok(ranks_status(runs, RANKS));
    assert_ok(invar_json_read(&events, t.trace, 1 << 20));
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i), *args = json_object_get(event, "args");
        const char *name = json_string_value(json_object_get(event, "name"));
        int rank = (int)number(event, "tid");
        char text[32];

        if (number(event, "pid") != 2)
            continue;
        (void)snprintf(text, sizeof text, "rank %d on ", rank);
        if (strcmp(name, "thread_name") == 0) {
            const char *thread_name = json_string_value(json_object_get(args, "name"));
            assert_memory_equal(thread_name, text, strlen(text));
            names++;
        }
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0)
            continue;
        assert_true(rank >= 0 && rank < RANKS);
        assert_true(number(args, "step") == 7);
        phases[rank] += strcmp(name, "train") == 0;
        waits[rank] += strcmp(name, "wait: gradients") == 0 && number(args, "sent") == 200;
    }
    json_decref(events);
    assert_int_equal(names, RANKS);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(phases[r], 2);
        assert_int_equal(waits[r], r == SLOW ? waits[r] : 2);
    }
    (void)unlink(t.trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_time__other_ranks_wait_for_the_slow_rank),
        cmocka_unit_test(test_rank_time__bytes_are_exact),
        cmocka_unit_test(test_rank_time__all_time_is_in_one_row),
        cmocka_unit_test(test_rank_time__a_step_is_collected_once),
        cmocka_unit_test(test_rank_time__has_a_bound_and_loses_no_byte),
        cmocka_unit_test(test_rank_time__one_rank_has_no_rows),
        cmocka_unit_test(test_rank_time__each_rank_has_a_track),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
