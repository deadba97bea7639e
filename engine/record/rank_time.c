/*
 * rank_time.c - measures how long each rank computed and how long it waited for transfers.
 *
 * A rank keeps its rows in a block of fixed size, so that observing a transfer cannot fail, and
 * sends the rows to rank 0 once a step. `mark_ns` is the end of the time that is already in a row;
 * every begin, end and transfer moves it forward, so no time is counted twice or left out.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/rank_time.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/process/process.h"
#include "engine/ranks/layout/rank_collectives.h"

#include "base/invar_banned.h"

#define OUTSIDE "other"     /* phase of time outside of phases */
#define COLLECT_KIND "work" /* transfer kind of the gather in collect */

/* Element of the data sent to rank 0; a sum over a step or an interval. */
typedef struct timer_row {
    char phase[INVAR_RANK_TIMER_PHASE_SIZE];
    char move[INVAR_COMM_PHASE_SIZE];
    int64_t start_ns; /* Unix time of an interval; 0 for a sum */
    int64_t calls, duration_ns, sent, received;
} timer_row;

typedef struct open_phase {
    const char *name;
    int64_t begin_ns;
} open_phase;

struct invar_rank_timer {
    const invar_layout *layout;
    int64_t unix_ns; /* Unix time at the monotonic clock's 0; read once, so that intervals nest */
    int64_t mark_ns; /* all time before this is in a row */
    open_phase stack[INVAR_RANK_TIMER_DEPTH];
    int depth;
    timer_row *rows; /* (INVAR_RANK_TIMER_ROWS) sums, then intervals (max_slices) */
    int64_t n_rows, n_slices, max_slices;
    timer_row *send_rows; /* copy of `rows` that is being sent */
    /* result of the last collect, on rank 0 */
    invar_rank_gathered gathered;
    invar_ledger_rank_time *ledger_rows;
    invar_rank_interval *slices;
    int64_t rows_capacity, slices_capacity;
};

/* ---- counting -------------------------------------------------------------------------------- */

static const char *current_phase(const invar_rank_timer *timer)
{
    return timer->depth ? timer->stack[timer->depth - 1].name : OUTSIDE;
}

static timer_row make_row(const char *phase, const char *move)
{
    timer_row made = {0};

    (void)snprintf(made.phase, sizeof made.phase, "%s", phase);
    (void)snprintf(made.move, sizeof made.move, "%s", move);
    return made;
}

/* Returns the sum of a phase and a kind of transfer. */
static timer_row *find_sum(invar_rank_timer *timer, const char *phase, const char *move)
{
    timer_row wanted = make_row(phase, move);

    for (int64_t i = 0; i < timer->n_rows; i++)
        if (strcmp(timer->rows[i].phase, wanted.phase) == 0 &&
            strcmp(timer->rows[i].move, wanted.move) == 0)
            return &timer->rows[i];
    if (timer->n_rows == INVAR_RANK_TIMER_ROWS)
        return &timer->rows[INVAR_RANK_TIMER_ROWS - 1];
    timer->rows[timer->n_rows] = wanted;
    return &timer->rows[timer->n_rows++];
}

static void add_slice(invar_rank_timer *timer, const timer_row *is)
{
    if (timer->n_slices < timer->max_slices)
        timer->rows[INVAR_RANK_TIMER_ROWS + timer->n_slices++] = *is;
}

/* Adds the time since mark_ns, except `waited`, to the computing time of the current phase. */
static timer_row *add_compute_time(invar_rank_timer *timer, int64_t now_ns, int64_t waited)
{
    timer_row *computed = find_sum(timer, current_phase(timer), "");

    computed->duration_ns += now_ns - timer->mark_ns - waited;
    timer->mark_ns = now_ns;
    return computed;
}

void invar_rank_timer_begin(invar_rank_timer *timer, const char *phase)
{
    if (!timer)
        return;
    INVAR_CHECK(timer->depth < INVAR_RANK_TIMER_DEPTH);
    add_compute_time(timer, invar_process_clock_ns(CLOCK_MONOTONIC), 0);
    timer->stack[timer->depth++] = (open_phase){phase, timer->mark_ns};
}

void invar_rank_timer_end(invar_rank_timer *timer)
{
    const open_phase *phase;
    timer_row is;

    if (!timer)
        return;
    INVAR_CHECK(timer->depth > 0);
    add_compute_time(timer, invar_process_clock_ns(CLOCK_MONOTONIC), 0)->calls++;
    phase = &timer->stack[--timer->depth];
    is = make_row(phase->name, "");
    is.start_ns = timer->unix_ns + phase->begin_ns;
    is.duration_ns = timer->mark_ns - phase->begin_ns;
    add_slice(timer, &is);
}

/* Observer: a transfer has ended. */
static void on_transfer(void *payload, const invar_comm_event *done)
{
    invar_rank_timer *timer = payload;
    int64_t now = invar_process_clock_ns(CLOCK_MONOTONIC), waited = (int64_t)(done->waited * 1e9);
    timer_row *moved;

    if (waited >
        now - timer->mark_ns) // the two clocks differ, or the transfer began before it was observed
        waited = now - timer->mark_ns;
    add_compute_time(timer, now, waited);
    moved = find_sum(timer, current_phase(timer), done->phase);
    moved->calls++;
    moved->duration_ns += waited;
    moved->sent += (int64_t)done->sent;
    moved->received += (int64_t)done->received;
    if (waited >= INVAR_RANK_TIMER_SHORT) {
        timer_row is = make_row(current_phase(timer), done->phase);

        is.start_ns = timer->unix_ns + now - waited;
        is.duration_ns = waited;
        is.sent = (int64_t)done->sent;
        is.received = (int64_t)done->received;
        add_slice(timer, &is);
    }
}

/* ---- new and free ---------------------------------------------------------------------------- */

invar_status invar_rank_timer_new(invar_rank_timer **out, const invar_layout *layout,
                                  bool intervals)
{
    size_t most = intervals ? INVAR_RANK_TIMER_INTERVALS : 0, rows = INVAR_RANK_TIMER_ROWS + most;
    invar_rank_timer *timer = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(timer, 1, "work of a rank"));
    *timer = (invar_rank_timer){.layout = layout, .max_slices = (int64_t)most};
    status = INVAR_ALLOC(timer->rows, 2 * rows, "what a rank has done");
    if (status != INVAR_OK) {
        invar_free(timer);
        return status;
    }
    timer->send_rows = timer->rows + rows;
    timer->mark_ns = invar_process_clock_ns(CLOCK_MONOTONIC);
    timer->unix_ns = invar_process_clock_ns(CLOCK_REALTIME) - timer->mark_ns;
    invar_comm_set_observer(layout->world, on_transfer, timer);
    *out = timer;
    return INVAR_OK;
}

void invar_rank_timer_free(invar_rank_timer *timer)
{
    if (!timer)
        return;
    invar_comm_set_observer(timer->layout->world, NULL, NULL);
    invar_free(timer->slices);
    invar_free(timer->ledger_rows);
    invar_rank_gathered_release(&timer->gathered);
    invar_free(timer->rows);
    invar_free(timer);
}

/* Moves all rows to send_rows and returns their number; counting starts again from 0. */
static int64_t take_rows(invar_rank_timer *timer)
{
    int64_t rows, slices = timer->n_slices;

    add_compute_time(timer, invar_process_clock_ns(CLOCK_MONOTONIC), 0);
    rows = timer->n_rows;
    memcpy(timer->send_rows, timer->rows, (size_t)rows * sizeof *timer->rows);
    memcpy(timer->send_rows + rows, timer->rows + INVAR_RANK_TIMER_ROWS,
           (size_t)slices * sizeof *timer->rows);
    timer->n_rows = timer->n_slices = 0;
    return rows + slices;
}

/* Adds a row of a rank to the sums or the intervals of the result. */
static void add_result(invar_rank_timer *timer, invar_rank_times *out, int rank, timer_row *is)
{
    const char *host = invar_comm_host(timer->layout->world, rank);

    is->phase[sizeof is->phase - 1] = '\0'; // data of another rank: terminate the strings
    is->move[sizeof is->move - 1] = '\0';
    if (is->start_ns)
        timer->slices[out->n_intervals++] = (invar_rank_interval){
            rank, host, is->phase, is->move, is->start_ns, is->duration_ns, is->sent, is->received};
    else
        timer->ledger_rows[out->n_rows++] = (invar_ledger_rank_time){
            rank, host, is->phase, is->move, is->calls, is->duration_ns, is->sent, is->received};
}

/* Converts the gathered rows of all ranks. */
static invar_status convert_rows(invar_rank_times *out, invar_rank_timer *timer)
{
    const size_t *bytes = timer->gathered.bytes;
    int size = invar_ranks_size(timer->layout);
    timer_row *next = (timer_row *)(void *)timer->gathered.data;
    size_t all = 0;

    for (int r = 0; r < size; r++)
        all += bytes[r] / sizeof *next;
    INVAR_TRY(
        INVAR_GROW(timer->ledger_rows, timer->rows_capacity, 0, (int64_t)all, "work of all ranks"));
    INVAR_TRY(
        INVAR_GROW(timer->slices, timer->slices_capacity, 0, (int64_t)all, "slices of ranks"));
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < bytes[r] / sizeof *next; i++)
            add_result(timer, out, r, next++);
    out->rows = timer->ledger_rows;
    out->intervals = timer->slices;
    return INVAR_OK;
}

invar_status invar_rank_timer_collect(invar_rank_times *out, invar_rank_timer *timer)
{
    int64_t rows;

    *out = (invar_rank_times){0};
    if (!timer)
        return INVAR_OK;
    invar_rank_gathered_release(&timer->gathered);
    rows = take_rows(timer);
    INVAR_TRY(invar_ranks_gather(&timer->gathered, timer->layout, COLLECT_KIND, timer->send_rows,
                                 (size_t)rows * sizeof *timer->send_rows));
    return convert_rows(out, timer);
}
