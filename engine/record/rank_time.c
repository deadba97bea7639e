/*
 * rank_time.c - what each of several ranks did between two steps of the ledger.
 *
 * A rank keeps its rows in a block of fixed size, so that watching a move cannot fail, and sends
 * those that it has to rank 0 once a step.
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

#define OUTSIDE "other" /* the phase between phases */
#define TELLING "work"  /* the move of collect */

/* What travels: a sum over a step, or one stretch of time. */
typedef struct row {
    char phase[INVAR_RANK_TIMER_PHASE_SIZE];
    char move[INVAR_COMM_PHASE_SIZE];
    int64_t start_ns; /* 0: a sum */
    int64_t calls, duration_ns, sent, received;
} row;

typedef struct open_phase {
    const char *name;
    int64_t begin_ns;
} open_phase;

struct invar_rank_timer {
    const invar_layout *layout;
    int64_t unix_ns; /* calendar at the monotonic clock's 0; read once, so that slices nest */
    int64_t mark_ns; /* up to here all time is in a row */
    open_phase stack[INVAR_RANK_TIMER_DEPTH];
    int depth;
    row *rows; /* (INVAR_RANK_TIMER_ROWS), then slices (most_slices) */
    int64_t n_rows, n_slices, most_slices;
    row *leaving; /* the same, on their way to rank 0 */
    /* rank 0: of the last call */
    invar_rank_gathered came;
    invar_ledger_rank_time *told;
    invar_rank_interval *slices;
    size_t room; /* of both */
};

/* ---- counting -------------------------------------------------------------------------------- */

static const char *phase_of(const invar_rank_timer *work)
{
    return work->depth ? work->stack[work->depth - 1].name : OUTSIDE;
}

static row row_of(const char *phase, const char *move)
{
    row made = {0};

    (void)snprintf(made.phase, sizeof made.phase, "%s", phase);
    (void)snprintf(made.move, sizeof made.move, "%s", move);
    return made;
}

/* The sum that a phase and a move belong to. */
static row *rank_timer_find(invar_rank_timer *work, const char *phase, const char *move)
{
    row wanted = row_of(phase, move);

    for (int64_t i = 0; i < work->n_rows; i++)
        if (strcmp(work->rows[i].phase, wanted.phase) == 0 &&
            strcmp(work->rows[i].move, wanted.move) == 0)
            return &work->rows[i];
    if (work->n_rows == INVAR_RANK_TIMER_ROWS)
        return &work->rows[INVAR_RANK_TIMER_ROWS - 1];
    work->rows[work->n_rows] = wanted;
    return &work->rows[work->n_rows++];
}

static void rank_timer_slice(invar_rank_timer *work, const row *is)
{
    if (work->n_slices < work->most_slices)
        work->rows[INVAR_RANK_TIMER_ROWS + work->n_slices++] = *is;
}

/* The time since the mark was computing, but for `waited`. */
static row *rank_timer_compute(invar_rank_timer *work, int64_t now_ns, int64_t waited)
{
    row *computed = rank_timer_find(work, phase_of(work), "");

    computed->duration_ns += now_ns - work->mark_ns - waited;
    work->mark_ns = now_ns;
    return computed;
}

void invar_rank_timer_begin(invar_rank_timer *work, const char *phase)
{
    if (!work)
        return;
    INVAR_CHECK(work->depth < INVAR_RANK_TIMER_DEPTH);
    rank_timer_compute(work, invar_process_clock_ns(CLOCK_MONOTONIC), 0);
    work->stack[work->depth++] = (open_phase){phase, work->mark_ns};
}

void invar_rank_timer_end(invar_rank_timer *work)
{
    const open_phase *phase;
    row is;

    if (!work)
        return;
    INVAR_CHECK(work->depth > 0);
    rank_timer_compute(work, invar_process_clock_ns(CLOCK_MONOTONIC), 0)->calls++;
    phase = &work->stack[--work->depth];
    is = row_of(phase->name, "");
    is.start_ns = work->unix_ns + phase->begin_ns;
    is.duration_ns = work->mark_ns - phase->begin_ns;
    rank_timer_slice(work, &is);
}

/* A move has ended. */
static void take_move(void *payload, const invar_comm_event *done)
{
    invar_rank_timer *work = payload;
    int64_t now = invar_process_clock_ns(CLOCK_MONOTONIC), waited = (int64_t)(done->waited * 1e9);
    row *moved;

    if (waited > now - work->mark_ns) // two clocks, or it was not watched from its beginning
        waited = now - work->mark_ns;
    rank_timer_compute(work, now, waited);
    moved = rank_timer_find(work, phase_of(work), done->phase);
    moved->calls++;
    moved->duration_ns += waited;
    moved->sent += (int64_t)done->sent;
    moved->received += (int64_t)done->received;
    if (waited >= INVAR_RANK_TIMER_SHORT) {
        row is = row_of(phase_of(work), done->phase);

        is.start_ns = work->unix_ns + now - waited;
        is.duration_ns = waited;
        is.sent = (int64_t)done->sent;
        is.received = (int64_t)done->received;
        rank_timer_slice(work, &is);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

invar_status invar_rank_timer_new(invar_rank_timer **out, const invar_layout *layout, bool slices)
{
    size_t most = slices ? INVAR_RANK_TIMER_SLICES : 0, rows = INVAR_RANK_TIMER_ROWS + most;
    invar_rank_timer *work = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&work, 1, sizeof *work, "work of a rank"));
    *work = (invar_rank_timer){.layout = layout, .most_slices = (int64_t)most};
    status =
        invar_alloc((void **)&work->rows, 2 * rows, sizeof *work->rows, "what a rank has done");
    if (status != INVAR_OK) {
        invar_free(work);
        return status;
    }
    work->leaving = work->rows + rows;
    work->mark_ns = invar_process_clock_ns(CLOCK_MONOTONIC);
    work->unix_ns = invar_process_clock_ns(CLOCK_REALTIME) - work->mark_ns;
    invar_comm_set_observer(layout->world, take_move, work);
    *out = work;
    return INVAR_OK;
}

void invar_rank_timer_free(invar_rank_timer *work)
{
    if (!work)
        return;
    invar_comm_set_observer(work->layout->world, NULL, NULL);
    invar_free(work->slices);
    invar_free(work->told);
    invar_ranks_pile_release(&work->came);
    invar_free(work->rows);
    invar_free(work);
}

/* ---- to rank 0 ------------------------------------------------------------------------------- */

/* All up to now is about to leave; what follows is counted anew. */
static int64_t take_out(invar_rank_timer *work)
{
    int64_t rows, slices = work->n_slices;

    rank_timer_compute(work, invar_process_clock_ns(CLOCK_MONOTONIC), 0);
    rows = work->n_rows;
    memcpy(work->leaving, work->rows, (size_t)rows * sizeof *work->rows);
    memcpy(work->leaving + rows, work->rows + INVAR_RANK_TIMER_ROWS,
           (size_t)slices * sizeof *work->rows);
    work->n_rows = work->n_slices = 0;
    return rows + slices;
}

static invar_status make_room(invar_rank_timer *work, size_t rows)
{
    if (rows <= work->room)
        return INVAR_OK;
    invar_free(work->slices);
    invar_free(work->told);
    work->slices = NULL;
    work->told = NULL;
    work->room = 0;
    INVAR_TRY(invar_alloc((void **)&work->told, rows, sizeof *work->told, "work of all ranks"));
    INVAR_TRY(invar_alloc((void **)&work->slices, rows, sizeof *work->slices, "slices of ranks"));
    work->room = rows;
    return INVAR_OK;
}

/* A sum or a slice of a rank, for the ledger or the trace. */
static void rank_timer_report(invar_rank_timer *work, invar_rank_times *out, int rank, row *is)
{
    const char *host = invar_comm_host(work->layout->world, rank);

    is->phase[sizeof is->phase - 1] = '\0'; // it came from another rank
    is->move[sizeof is->move - 1] = '\0';
    if (is->start_ns)
        work->slices[out->n_slices++] = (invar_rank_interval){
            rank, host, is->phase, is->move, is->start_ns, is->duration_ns, is->sent, is->received};
    else
        work->told[out->n_rows++] = (invar_ledger_rank_time){
            rank, host, is->phase, is->move, is->calls, is->duration_ns, is->sent, is->received};
}

/* The rows of all ranks are here. */
static invar_status tell_all(invar_rank_times *out, invar_rank_timer *work)
{
    const size_t *bytes = work->came.bytes;
    int size = invar_ranks_size(work->layout);
    row *next = (row *)(void *)work->came.data;
    size_t all = 0;

    for (int r = 0; r < size; r++)
        all += bytes[r] / sizeof *next;
    INVAR_TRY(make_room(work, all));
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < bytes[r] / sizeof *next; i++)
            rank_timer_report(work, out, r, next++);
    out->rows = work->told;
    out->slices = work->slices;
    return INVAR_OK;
}

invar_status invar_rank_timer_collect(invar_rank_times *out, invar_rank_timer *work)
{
    int64_t rows;

    *out = (invar_rank_times){0};
    if (!work)
        return INVAR_OK;
    invar_ranks_pile_release(&work->came);
    rows = take_out(work);
    INVAR_TRY(invar_ranks_gather(&work->came, work->layout, TELLING, work->leaving,
                                 (size_t)rows * sizeof *work->leaving));
    return tell_all(out, work);
}
