/*
 * rank_time.c - tests of what ranks did: every nanosecond in one row, every byte as it was asked
 * for, and the track of each rank in the trace.
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

/* What rank 0 was told, in memory of its own. */
typedef struct told {
    invar_ledger_rank_time rows[2][ROWS]; /* of two steps */
    size_t n_rows[2], n_slices[2];
    char text[2][ROWS][3][INVAR_COMM_PHASE_SIZE]; /* copies of phase, move and host */
    int64_t least_ns[RANKS], most_ns[RANKS];      /* that the first step took */
    int64_t sent[RANKS];
    size_t others[RANKS]; /* what ranks other than 0 were told */
    const char *trace;    /* where rank 0 writes one; NULL: nowhere */
} told;

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void nap(int64_t ms)
{
    nanosleep(&(struct timespec){0, (long)(ms * MS)}, NULL);
}

static void keep(told *out, int step, const invar_rank_times *all)
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
    out->n_slices[step] = all->n_intervals;
}

static invar_status gather_bytes(const invar_layout *layout, const char *phase, size_t bytes)
{
    static const char zeros[1000];
    char all[RANKS * sizeof zeros];

    return invar_ranks_all_gather(layout, phase, zeros, bytes, all);
}

/* The moves of every group count. */
static invar_status gather_in_group(const invar_layout *layout, const char *phase, size_t bytes)
{
    invar_layout group = *layout;
    invar_status status;

    INVAR_TRY(invar_comm_split(&group.world, layout->world, 0, 0, "groups", SECONDS));
    status = gather_bytes(&group, phase, bytes);
    invar_comm_free(group.world);
    return status;
}

/* A step in which one rank is slow, and an inner phase that moves something, too. */
static invar_status one_step(const invar_layout *layout, invar_rank_timer *work, int rank)
{
    invar_status status;

    invar_rank_timer_begin(work, "train");
    if (rank == SLOW)
        nap(PAUSE_MS);
    status = gather_bytes(layout, "gradients", 100);
    if (status == INVAR_OK)
        status = gather_bytes(layout, "gradients", 1000);
    invar_rank_timer_begin(work, "save");
    if (status == INVAR_OK)
        status = gather_in_group(layout, "moments", 10);
    invar_rank_timer_end(work);
    invar_rank_timer_end(work);
    return status;
}

static invar_status two_steps(told *out, const invar_layout *layout, invar_rank_timer *work,
                              int rank)
{
    int64_t from = now_ns();
    invar_rank_times all;

    INVAR_TRY(one_step(layout, work, rank));
    out->least_ns[rank] = now_ns() - from;
    for (int step = 0; step < 2; step++) {
        INVAR_TRY(invar_rank_timer_collect(&all, work));
        if (step == 0)
            out->most_ns[rank] += now_ns();
        if (rank == 0)
            keep(out, step, &all);
        else
            out->others[rank] += all.n_rows + all.n_intervals;
    }
    return INVAR_OK;
}

static invar_status part(rank_run *run)
{
    told *t = run->payload;
    int rank = invar_comm_rank(run->comm);
    invar_layout layout;
    invar_rank_timer *work;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    t->most_ns[rank] = -now_ns();
    INVAR_TRY(invar_rank_timer_new(&work, &layout, true));
    status = two_steps(t, &layout, work, rank);
    invar_rank_timer_free(work);
    if (status == INVAR_OK) // nobody is shown it any more
        status = gather_bytes(&layout, "after", 1);
    return status;
}

static const invar_ledger_rank_time *find(const told *t, int step, int rank, const char *phase,
                                          const char *move)
{
    for (size_t i = 0; i < t->n_rows[step]; i++) {
        const invar_ledger_rank_time *row = &t->rows[step][i];
        if (row->rank == rank && strcmp(row->phase, phase) == 0 && strcmp(row->transfer, move) == 0)
            return row;
    }
    fail_msg("step %d, rank %d: no row of %s, \"%s\"", step, rank, phase, move);
    return NULL;
}

static void ask(told *out, uint64_t schedule)
{
    rank_run runs[MAX_RANKS];

    *out = (told){.trace = NULL};
    run_ranks(runs, RANKS, schedule, 0, part, out);
    assert_ok(ranks_status(runs, RANKS));
}

static void test_work__the_others_wait_for_the_slow_rank(void **state)
{
    static told t;

    (void)state;
    ask(&t, 0);
    for (int r = 0; r < RANKS; r++) {
        const invar_ledger_rank_time *computed = find(&t, 0, r, "train", "");
        const invar_ledger_rank_time *waited = find(&t, 0, r, "train", "gradients");

        assert_int_equal(computed->calls, 1);
        assert_int_equal(t.others[r], 0);
        assert_true(strlen(computed->host) > 0);
        if (r == SLOW)
            assert_true(computed->duration_ns >= PAUSE_MS * MS);
        else
            assert_true(waited->duration_ns > computed->duration_ns);
    }
    assert_true(t.n_slices[0] >= 2 * RANKS + RANKS - 1); // phases of all, and the long waits
}

/* Whatever the order of messages: bytes are what was asked for, each in the innermost phase. */
static void test_work__bytes_are_exact(void **state)
{
    static told t;

    (void)state;
    for (uint64_t schedule = 0; schedule < 4; schedule++) {
        ask(&t, schedule);
        for (int r = 0; r < RANKS; r++) {
            const invar_ledger_rank_time *outer = find(&t, 0, r, "train", "gradients");
            const invar_ledger_rank_time *inner = find(&t, 0, r, "save", "moments");

            assert_int_equal(outer->calls, 2);
            assert_int_equal(outer->sent, (RANKS - 1) * 1100);
            assert_int_equal(outer->received, (RANKS - 1) * 1100);
            assert_int_equal(inner->calls, 1);
            assert_int_equal(inner->sent, (RANKS - 1) * 10);
            assert_int_equal(find(&t, 0, r, "save", "groups")->sent, (RANKS - 1) * 24);
        }
    }
}

static void test_work__all_time_is_in_one_row(void **state)
{
    static told t;

    (void)state;
    ask(&t, 0);
    for (int r = 0; r < RANKS; r++) {
        int64_t sum = 0;

        for (size_t i = 0; i < t.n_rows[0]; i++)
            sum += t.rows[0][i].rank == r ? t.rows[0][i].duration_ns : 0;
        assert_in_range(sum, t.least_ns[r], t.most_ns[r]);
    }
}

/* The second step has nothing of the first, but what it cost to tell of it. */
static void test_work__a_step_is_told_once(void **state)
{
    static told t;

    (void)state;
    ask(&t, 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(find(&t, 1, r, "other", "work")->calls, 2);
        for (size_t i = 0; i < t.n_rows[1]; i++)
            assert_string_equal(t.rows[1][i].phase, "other");
    }
    assert_int_equal(t.n_rows[1], 2 * RANKS);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static invar_status many_kinds(rank_run *run)
{
    told *out = run->payload;
    invar_rank_times all = {0};
    invar_layout layout;
    invar_rank_timer *work;
    invar_status status = INVAR_OK;

    invar_layout_init(&layout, run->comm, SECONDS);
    INVAR_TRY(invar_rank_timer_new(&work, &layout, false));
    for (int i = 0; i < 2 * INVAR_RANK_TIMER_ROWS && status == INVAR_OK; i++) {
        char name[80];

        (void)snprintf(name, sizeof name, "%0*d", i % 2 ? 70 : 4, i); // some are too long
        invar_rank_timer_begin(work, name);
        status = gather_bytes(&layout, name, 1);
        invar_rank_timer_end(work);
    }
    if (status == INVAR_OK)
        status = invar_rank_timer_collect(&all, work);
    for (size_t i = 0; i < all.n_rows; i++)
        out->sent[all.rows[i].rank] += all.rows[i].sent;
    out->n_slices[0] += all.n_intervals;
    out->n_rows[0] += all.n_rows;
    invar_rank_timer_free(work);
    return status;
}

static void test_work__has_a_bound_and_loses_no_byte(void **state)
{
    rank_run runs[MAX_RANKS];
    static told t;

    (void)state;
    run_ranks(runs, RANKS, 0, 0, many_kinds, &t);
    assert_ok(ranks_status(runs, RANKS));
    assert_int_equal(t.n_rows[0], RANKS * INVAR_RANK_TIMER_ROWS);
    assert_int_equal(t.n_slices[0], 0); // none were wanted
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(t.sent[r], (RANKS - 1) * 2 * INVAR_RANK_TIMER_ROWS);
}

static void test_work__of_one_rank_there_is_none(void **state)
{
    invar_rank_times all;

    (void)state;
    invar_rank_timer_begin(NULL, "train");
    invar_rank_timer_end(NULL);
    assert_ok(invar_rank_timer_collect(&all, NULL));
    assert_int_equal(all.n_rows + all.n_intervals, 0);
    invar_rank_timer_free(NULL);
}

/* ---- the trace ------------------------------------------------------------------------------- */

static invar_status traced_step(const invar_layout *layout, invar_trace *trace, int rank)
{
    const invar_ledger_rank_time *rows;
    invar_status status;
    size_t count;

    invar_trace_step(trace, 7);
    invar_trace_begin(trace, "train");
    if (rank == SLOW)
        nap(PAUSE_MS);
    status = gather_bytes(layout, "gradients", 100);
    invar_trace_end(trace);
    return status == INVAR_OK ? invar_trace_collect_rank_times(&rows, &count, trace) : status;
}

static invar_status traced(rank_run *run)
{
    const told *t = run->payload;
    int rank = invar_comm_rank(run->comm);
    invar_layout layout;
    invar_trace *trace;
    invar_rank_timer *work;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    INVAR_TRY(invar_trace_open(&trace, rank == 0 ? t->trace : ""));
    status = invar_rank_timer_new(&work, &layout, true);
    if (status == INVAR_OK)
        invar_trace_set_rank_timer(trace, work);
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

static void test_work__each_rank_has_a_track(void **state)
{
    int names = 0, phases[RANKS] = {0}, waits[RANKS] = {0};
    static told t = {.trace = INVAR_TEST_WORK "/work-trace.json"};
    rank_run runs[MAX_RANKS];
    json_t *events;

    (void)state;
    run_ranks(runs, RANKS, 0, 0, traced, &t);
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
            const char *called = json_string_value(json_object_get(args, "name"));
            assert_memory_equal(called, text, strlen(text));
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
        cmocka_unit_test(test_work__the_others_wait_for_the_slow_rank),
        cmocka_unit_test(test_work__bytes_are_exact),
        cmocka_unit_test(test_work__all_time_is_in_one_row),
        cmocka_unit_test(test_work__a_step_is_told_once),
        cmocka_unit_test(test_work__has_a_bound_and_loses_no_byte),
        cmocka_unit_test(test_work__of_one_rank_there_is_none),
        cmocka_unit_test(test_work__each_rank_has_a_track),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
