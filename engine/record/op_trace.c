/*
 * op_trace.c - collects op times of all ranks in a window of steps, for the trace and the ledger.
 *
 * Each step a rank takes the events and sums of its profiles, formats the events as JSON, and sends
 * text and sums to rank 0. A rank that fails to take them sends nothing, since rank 0 must not wait
 * in vain. One step after the window is collected too, because overlapping sampling may end in it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/op_trace.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/record/rank_time.h"
#include "engine/record/trace_event.h"

#include "base/invar_banned.h"

#define COMM_PHASE "profile"  /* phase name of the transfers */
#define SAMPLER_PHASE "ahead" /* phase of sampling that overlaps training */

/* Streams of a rank; each is a track of its process. */
enum { DEVICE, SAMPLER, STREAMS };

/* Sum over the calls of an op in a phase, as sent to rank 0. */
typedef struct op_sum {
    char phase[INVAR_RANK_TIMER_PHASE_SIZE];
    char op[32];
    int64_t calls, duration_ns, longest_ns;
} op_sum;

struct invar_op_trace {
    const invar_layout *layout;
    invar_profile *profiles[STREAMS];
    int64_t first, end, origin_ns;
    int64_t step;
    bool named; /* the tracks of this rank have been named */
    /* end of the last event of each track; events of a track must not overlap */
    int64_t ended_ns[STREAMS];
    invar_json_text text; /* events of this rank since the last collect */
    op_sum *rows;         /* (n_rows) sums of this rank since the last collect */
    size_t n_rows;
    int64_t row_capacity;
    /* result of the last collect, on rank 0 */
    invar_rank_gathered gathered_text, gathered_rows;
    invar_ledger_op_time *ledger_rows;
};

/* ---- events ---------------------------------------------------------------------------------- */

static int local_rank(const invar_op_trace *t)
{
    return t->layout ? invar_comm_rank(t->layout->world) : 0;
}

static int local_process(const invar_op_trace *t)
{
    return INVAR_OP_TRACE_PROCESS + local_rank(t);
}

static invar_json_text *begin_event(invar_op_trace *t, const char *name, const char *ph, int stream)
{
    invar_trace_event_begin(&t->text, name, ph, local_process(t), stream);
    return &t->text;
}

static void put_track_name(invar_op_trace *t, const char *what, int stream, const char *name)
{
    invar_trace_event_name(&t->text, what, local_process(t), stream, name);
}

static void name_tracks(invar_op_trace *t)
{
    const char *host = t->layout ? invar_comm_host(t->layout->world, local_rank(t)) : NULL;
    char name[160];

    (void)snprintf(name, sizeof name, host ? "ops of rank %d on %s" : "ops", local_rank(t), host);
    put_track_name(t, "process_name", 0, name);
    put_track_name(t, "thread_name", DEVICE, "device");
    if (t->profiles[SAMPLER])
        put_track_name(t, "thread_name", SAMPLER, "sampling beside training");
    t->named = true;
}

static void put_memory(invar_op_trace *t, const invar_profile_event *is, int stream)
{
    invar_json_text *line = begin_event(t, "memory", "C", stream);

    invar_trace_event_time(line, "ts", is->start_ns - t->origin_ns);
    invar_json_text_put_open(line, "args", '{');
    invar_json_text_put_int(line, "MiB", (int64_t)(is->bytes >> 20));
    invar_json_text_close(line, '}');
    invar_trace_event_end(&t->text);
}

static void put_op(invar_op_trace *t, const invar_profile_event *is, int stream)
{
    int64_t from = is->start_ns - t->origin_ns, to = from + is->duration_ns;
    invar_json_text *line = begin_event(t, is->name, "X", stream);

    from = from > t->ended_ns[stream] ? from : t->ended_ns[stream];
    to = to > from ? to : from;
    t->ended_ns[stream] = to;
    invar_trace_event_time(line, "ts", from);
    invar_trace_event_time(line, "dur", to - from);
    invar_json_text_put_open(line, "args", '{');
    invar_json_text_put_int(line, "step", t->step);
    invar_json_text_put_string(line, "phase", is->phase);
    if (is->operands[0]) {
        invar_json_text_put_string(line, "operands", is->operands);
        invar_json_text_put_int(line, "scratch", (int64_t)is->bytes);
    } else {
        invar_json_text_put_int(line, "bytes", (int64_t)is->bytes);
    }
    invar_json_text_close(line, '}');
    invar_trace_event_end(&t->text);
}

static void put_left_out(invar_op_trace *t, int64_t count, int stream)
{
    invar_json_text *line = begin_event(t, "ops left out: too many in one step", "i", stream);

    invar_trace_event_time(line, "ts", t->ended_ns[stream]);
    invar_json_text_put_open(line, "args", '{');
    invar_json_text_put_int(line, "ops", count);
    invar_json_text_close(line, '}');
    invar_trace_event_end(&t->text);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void add_row(invar_op_trace *t, const invar_profile_sum *sum)
{
    op_sum *r = &t->rows[t->n_rows++];

    *r = (op_sum){
        .calls = sum->calls, .duration_ns = sum->duration_ns, .longest_ns = sum->longest_ns};
    (void)snprintf(r->phase, sizeof r->phase, "%s", sum->phase);
    (void)snprintf(r->op, sizeof r->op, "%s", sum->op);
}

/* ---- collecting ------------------------------------------------------------------------------ */

/* Takes what this rank measured, as text and rows. */
static invar_status take_local(invar_op_trace *t)
{
    invar_profile_batch taken[STREAMS] = {{0}};
    size_t sums = 0;

    invar_json_text_reset(&t->text);
    t->n_rows = 0;
    // the sampling thread flushes its own profile, or this thread does after it has ended
    invar_profile_flush(t->profiles[DEVICE]);
    for (int s = 0; s < STREAMS; s++) {
        if (!t->profiles[s])
            continue;
        INVAR_TRY(invar_profile_take(&taken[s], t->profiles[s]));
        sums += taken[s].n_sums;
    }
    INVAR_TRY(INVAR_GROW(t->rows, t->row_capacity, 0, (int64_t)sums, "times of ops"));
    for (int s = 0; s < STREAMS; s++) {
        if (taken[s].n_events && !t->named)
            name_tracks(t);
        for (size_t i = 0; i < taken[s].n_events; i++)
            (taken[s].events[i].name ? put_op : put_memory)(t, &taken[s].events[i], s);
        if (taken[s].left_out)
            put_left_out(t, taken[s].left_out, s);
        for (size_t i = 0; i < taken[s].n_sums; i++)
            add_row(t, &taken[s].sums[i]);
    }
    return t->text.status;
}

/* Converts the gathered rows of all ranks to rows of the ledger. */
static invar_status convert_rows(invar_op_trace_result *out, invar_op_trace *t)
{
    int size = invar_ranks_size(t->layout);
    op_sum *next = (op_sum *)(void *)t->gathered_rows.data;
    size_t all = 0;

    for (int r = 0; r < size; r++)
        all += t->gathered_rows.bytes[r] / sizeof *next;
    invar_free(t->ledger_rows);
    t->ledger_rows = NULL;
    INVAR_TRY(INVAR_ALLOC(t->ledger_rows, all, "times of ops of all ranks"));
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < t->gathered_rows.bytes[r] / sizeof *next; i++, next++) {
            next->phase[sizeof next->phase - 1] =
                '\0'; // data of another rank: terminate the strings
            next->op[sizeof next->op - 1] = '\0';
            t->ledger_rows[out->n_rows++] = (invar_ledger_op_time){
                r, next->phase, next->op, next->calls, next->duration_ns, next->longest_ns};
        }
    out->rows = t->ledger_rows;
    return INVAR_OK;
}

invar_status invar_op_trace_collect(invar_op_trace_result *out, invar_op_trace *trace)
{
    bool complete;

    *out = (invar_op_trace_result){0};
    // one more step: sampling that overlapped the last step of the window may have ended since
    if (!trace || trace->step < trace->first || trace->step > trace->end)
        return INVAR_OK;
    invar_rank_gathered_release(&trace->gathered_text);
    invar_rank_gathered_release(&trace->gathered_rows);
    out->local_status = take_local(trace);
    complete =
        out->local_status == INVAR_OK; // rank 0 waits for this rank's data, also after a failure
    INVAR_TRY(invar_ranks_gather(&trace->gathered_text, trace->layout, COMM_PHASE, trace->text.data,
                                 complete ? trace->text.bytes : 0));
    INVAR_TRY(invar_ranks_gather(&trace->gathered_rows, trace->layout, COMM_PHASE, trace->rows,
                                 complete ? trace->n_rows * sizeof *trace->rows : 0));
    for (int r = 0; r < invar_ranks_size(trace->layout); r++)
        out->bytes += trace->gathered_text.bytes[r];
    out->text = trace->gathered_text.data;
    return convert_rows(out, trace);
}

/* ---- window ---------------------------------------------------------------------------------- */

void invar_op_trace_step(invar_op_trace *trace, int64_t step)
{
    if (!trace)
        return;
    trace->step = step;
    for (int s = 0; s < STREAMS; s++)
        if (trace->profiles[s])
            invar_profile_switch(trace->profiles[s], step >= trace->first && step < trace->end);
}

void invar_op_trace_phase(invar_op_trace *trace, const char *phase)
{
    if (trace)
        invar_profile_phase(trace->profiles[DEVICE], phase);
}

/* ---- new and free ---------------------------------------------------------------------------- */

invar_status invar_op_trace_new(invar_op_trace **out, const invar_op_trace_options *options)
{
    invar_op_trace *t = NULL;
    int64_t origin = options->origin_ns;

    *out = NULL;
    INVAR_TRY(invar_ranks_broadcast(options->layout, COMM_PHASE, 0, &origin, sizeof origin));
    INVAR_TRY(INVAR_ALLOC(t, 1, "tracks of ops"));
    *t = (invar_op_trace){.layout = options->layout,
                          .profiles = {options->device, options->sampler_profile},
                          .first = options->first,
                          .end = options->end,
                          .origin_ns = origin,
                          .step = -1};
    if (options->sampler_profile)
        invar_profile_phase(options->sampler_profile, SAMPLER_PHASE);
    *out = t;
    return INVAR_OK;
}

void invar_op_trace_free(invar_op_trace *trace)
{
    if (!trace)
        return;
    invar_rank_gathered_release(&trace->gathered_text);
    invar_rank_gathered_release(&trace->gathered_rows);
    invar_free(trace->ledger_rows);
    invar_free(trace->rows);
    invar_json_text_release(&trace->text);
    invar_free(trace);
}
