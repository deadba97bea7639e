/*
 * work.c - what each of several ranks did between two steps of the ledger.
 *
 * A rank keeps its rows in a block of fixed size, so that watching a move cannot fail, and sends
 * those that it has to rank 0 once a step.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/work.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/process/process.h"
#include "engine/layout/agree.h"

#include "base/invar_banned.h"

#define OUTSIDE "other" /* the phase between phases */
#define TELLING "work"  /* the move of collect */

/* What travels: a sum over a step, or one stretch of time. */
typedef struct row {
    char phase[INVAR_WORK_PHASE_SIZE];
    char move[INVAR_COMM_PHASE_SIZE];
    int64_t start_ns; /* 0: a sum */
    int64_t calls, duration_ns, sent, received;
} row;

typedef struct open_phase {
    const char *name;
    int64_t begin_ns;
} open_phase;

struct invar_work {
    const invar_layout *layout;
    int64_t unix_ns; /* calendar at the monotonic clock's 0; read once, so that slices nest */
    int64_t mark_ns; /* up to here all time is in a row */
    open_phase stack[INVAR_WORK_DEPTH];
    int depth;
    row *rows; /* (INVAR_WORK_ROWS), then slices (most_slices) */
    int64_t n_rows, n_slices, most_slices;
    row *leaving; /* the same, on their way to rank 0 */
    /* rank 0: of the last call */
    invar_agree_pile came;
    invar_ledger_work *told;
    invar_work_slice *slices;
    size_t room; /* of both */
};

/* ---- counting -------------------------------------------------------------------------------- */

static const char *phase_of(const invar_work *work)
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
static row *find(invar_work *work, const char *phase, const char *move)
{
    row wanted = row_of(phase, move);

    for (int64_t i = 0; i < work->n_rows; i++)
        if (strcmp(work->rows[i].phase, wanted.phase) == 0 &&
            strcmp(work->rows[i].move, wanted.move) == 0)
            return &work->rows[i];
    if (work->n_rows == INVAR_WORK_ROWS)
        return &work->rows[INVAR_WORK_ROWS - 1];
    work->rows[work->n_rows] = wanted;
    return &work->rows[work->n_rows++];
}

static void slice(invar_work *work, const row *is)
{
    if (work->n_slices < work->most_slices)
        work->rows[INVAR_WORK_ROWS + work->n_slices++] = *is;
}

/* The time since the mark was computing, but for `waited`. */
static row *compute(invar_work *work, int64_t now_ns, int64_t waited)
{
    row *computed = find(work, phase_of(work), "");

    computed->duration_ns += now_ns - work->mark_ns - waited;
    work->mark_ns = now_ns;
    return computed;
}

void invar_work_begin(invar_work *work, const char *phase)
{
    if (!work)
        return;
    INVAR_CHECK(work->depth < INVAR_WORK_DEPTH);
    compute(work, invar_process_clock_ns(CLOCK_MONOTONIC), 0);
    work->stack[work->depth++] = (open_phase){phase, work->mark_ns};
}

void invar_work_end(invar_work *work)
{
    const open_phase *phase;
    row is;

    if (!work)
        return;
    INVAR_CHECK(work->depth > 0);
    compute(work, invar_process_clock_ns(CLOCK_MONOTONIC), 0)->calls++;
    phase = &work->stack[--work->depth];
    is = row_of(phase->name, "");
    is.start_ns = work->unix_ns + phase->begin_ns;
    is.duration_ns = work->mark_ns - phase->begin_ns;
    slice(work, &is);
}

/* A move has ended. */
static void take_move(void *payload, const invar_comm_done *done)
{
    invar_work *work = payload;
    int64_t now = invar_process_clock_ns(CLOCK_MONOTONIC), waited = (int64_t)(done->waited * 1e9);
    row *moved;

    if (waited > now - work->mark_ns) // two clocks, or it was not watched from its beginning
        waited = now - work->mark_ns;
    compute(work, now, waited);
    moved = find(work, phase_of(work), done->phase);
    moved->calls++;
    moved->duration_ns += waited;
    moved->sent += (int64_t)done->sent;
    moved->received += (int64_t)done->received;
    if (waited >= INVAR_WORK_SHORT) {
        row is = row_of(phase_of(work), done->phase);

        is.start_ns = work->unix_ns + now - waited;
        is.duration_ns = waited;
        is.sent = (int64_t)done->sent;
        is.received = (int64_t)done->received;
        slice(work, &is);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

invar_status invar_work_new(invar_work **out, const invar_layout *layout, bool slices)
{
    size_t most = slices ? INVAR_WORK_SLICES : 0, rows = INVAR_WORK_ROWS + most;
    invar_work *work = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&work, 1, sizeof *work, "work of a rank"));
    *work = (invar_work){.layout = layout, .most_slices = (int64_t)most};
    status =
        invar_alloc((void **)&work->rows, 2 * rows, sizeof *work->rows, "what a rank has done");
    if (status != INVAR_OK) {
        invar_free(work);
        return status;
    }
    work->leaving = work->rows + rows;
    work->mark_ns = invar_process_clock_ns(CLOCK_MONOTONIC);
    work->unix_ns = invar_process_clock_ns(CLOCK_REALTIME) - work->mark_ns;
    invar_comm_watch(layout->world, take_move, work);
    *out = work;
    return INVAR_OK;
}

void invar_work_free(invar_work *work)
{
    if (!work)
        return;
    invar_comm_watch(work->layout->world, NULL, NULL);
    invar_free(work->slices);
    invar_free(work->told);
    invar_agree_pile_release(&work->came);
    invar_free(work->rows);
    invar_free(work);
}

/* ---- to rank 0 ------------------------------------------------------------------------------- */

/* All up to now is about to leave; what follows is counted anew. */
static int64_t take_out(invar_work *work)
{
    int64_t rows, slices = work->n_slices;

    compute(work, invar_process_clock_ns(CLOCK_MONOTONIC), 0);
    rows = work->n_rows;
    memcpy(work->leaving, work->rows, (size_t)rows * sizeof *work->rows);
    memcpy(work->leaving + rows, work->rows + INVAR_WORK_ROWS, (size_t)slices * sizeof *work->rows);
    work->n_rows = work->n_slices = 0;
    return rows + slices;
}

static invar_status make_room(invar_work *work, size_t rows)
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
static void tell(invar_work *work, invar_work_all *out, int rank, row *is)
{
    const char *host = invar_comm_host(work->layout->world, rank);

    is->phase[sizeof is->phase - 1] = '\0'; // it came from another rank
    is->move[sizeof is->move - 1] = '\0';
    if (is->start_ns)
        work->slices[out->n_slices++] = (invar_work_slice){
            rank, host, is->phase, is->move, is->start_ns, is->duration_ns, is->sent, is->received};
    else
        work->told[out->n_rows++] = (invar_ledger_work){
            rank, host, is->phase, is->move, is->calls, is->duration_ns, is->sent, is->received};
}

/* The rows of all ranks are here. */
static invar_status tell_all(invar_work_all *out, invar_work *work)
{
    const size_t *bytes = work->came.bytes;
    int size = invar_agree_size(work->layout);
    row *next = (row *)(void *)work->came.data;
    size_t all = 0;

    for (int r = 0; r < size; r++)
        all += bytes[r] / sizeof *next;
    INVAR_TRY(make_room(work, all));
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < bytes[r] / sizeof *next; i++)
            tell(work, out, r, next++);
    out->rows = work->told;
    out->slices = work->slices;
    return INVAR_OK;
}

invar_status invar_work_collect(invar_work_all *out, invar_work *work)
{
    int64_t rows;

    *out = (invar_work_all){0};
    if (!work)
        return INVAR_OK;
    invar_agree_pile_release(&work->came);
    rows = take_out(work);
    INVAR_TRY(invar_agree_collect(&work->came, work->layout, TELLING, work->leaving,
                                  (size_t)rows * sizeof *work->leaving));
    return tell_all(out, work);
}
