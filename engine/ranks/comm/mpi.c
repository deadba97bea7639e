/*
 * mpi.c - transport for ranks that are processes, started by mpirun or srun.
 *
 * A message is a header and pieces of at most 16 MiB, because MPI counts in int. Each has its own
 * MPI request; all are posted when the call starts. A wait does not sleep while pieces finish, but
 * only heartbeats restart its timeout. Tags separate groups, and headers from payload; MPI keeps
 * the order of messages between two ranks. The payload is used only if the header is as expected.
 *
 * Notes have a tag of their own. A rank sends one when it fails (with the reason), when it leaves,
 * and as a heartbeat. All requests are polled, because no MPI wait ends at a timeout or when
 * another rank is gone.
 *
 * After a failure MPI is not finalized, which would wait for ranks that do not come: the process
 * exits with a code other than 0, and the launcher kills the others.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <fenv.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/process/module.h"
#include "base/text.h"
#include "engine/ranks/comm/comm.h"
#include "engine/ranks/comm/comm_internal.h"
#include "engine/ranks/comm/module/mpi_module.h"

#include "base/invar_banned.h"

#define PIECE ((size_t)16 << 20)
/* tags of notes of the world and of the recovered world */
enum { NOTE, NOTE_REVIVED };
#define LINGER 3.0 /* seconds that other ranks wait for the rank that prints the error */
#define SPIN 0.02  /* seconds without progress before a wait begins to sleep */
#define QUIET 0.1  /* seconds that canceled requests get to finish */
#define ANSWER                                                                                     \
    1.0 /* seconds in which a rank that is reported late can report the rank it waits for */

#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name

typedef struct mpi_request {
    invar_mpi_request handle;
    bool done;
} mpi_request;

typedef struct mpi_rank {
    const invar_mpi_table *mpi;
    invar_world *world;
    size_t piece;
    double seconds; /* timeout of the end of the run */
    int max_tag;
    int left_count;
    bool *left;    /* (size) ranks that have left */
    double active; /* time at which a request was last found done */
    /* request that this rank waits for; NULL if it does not wait */
    const invar_comm_request *awaited;
    double since;            /* start time of the wait for `awaited` */
    double beat;             /* time of the last heartbeat of another rank */
    mpi_request *beats;      /* (size) our heartbeats in flight; in the allocation of `notes` */
    int note_tag;            /* tag of our notes */
    mpi_request *notes;      /* (2 * size) our notes in flight, then `beats` */
    invar_comm_failure note; /* content of our notes; native 0 means that we leave */
} mpi_rank;

/* ---- calls of MPI ---------------------------------------------------------------------------- */

/* Fails the world because an MPI call about a peer failed. */
static invar_status fail_unreachable(mpi_rank *me, int peer, int code)
{
    char why[INVAR_TEXT_QUOTE_SIZE * 4], text[512];

    me->mpi->explain(text, sizeof text, code);
    invar_text_quote(why, sizeof why, text, strlen(text));
    return invar_world_fail(me->world, peer, EIO,
                            "rank %d on %s cannot be reached from rank %d: %s; look at the network "
                            "and at its host, then start the run again to resume it",
                            peer, me->world->hosts[peer], me->world->rank, why);
}

static invar_status test_request(bool *all, mpi_rank *me, mpi_request *r, int peer)
{
    int done = 0, code;

    if (r->done)
        return INVAR_OK;
    code = me->mpi->test(&done, &r->handle);
    if (code)
        return fail_unreachable(me, peer, code);
    r->done = done;
    if (done)
        me->active = invar_comm_clock();
    *all = *all && done;
    return INVAR_OK;
}

static void sleep_ns(long nanoseconds)
{
    struct timespec pause = {0, nanoseconds};

    nanosleep(&pause, NULL);
}

/* ---- notes ----------------------------------------------------------------------------------- */

/* Sends our note to all ranks, also to those that left: a rank that leaves waits for it. */
static void send_notes(mpi_rank *me)
{
    for (int r = 0; r < me->world->size; r++) {
        me->notes[r].done = r == me->world->rank;
        if (!me->notes[r].done &&
            me->mpi->send(&me->notes[r].handle, &me->note, sizeof me->note, r, me->note_tag) != 0)
            me->notes[r].done = true; // the failure that we report ends the run anyway
    }
}

static void send_failure_notes(void *self, invar_comm_failure *failure)
{
    mpi_rank *me = self;

    me->note = *failure;
    send_notes(me);
}

/* Sends a heartbeat to all ranks. Errors are ignored: the rank that waits for a peer finds them. */
static void send_heartbeat(void *self)
{
    static const invar_comm_failure gets_on = {.native = EINPROGRESS};
    mpi_rank *me = self;

    for (int r = 0; r < me->world->size; r++) {
        mpi_request *of = &me->beats[r];
        int done = 1;

        if (r == me->world->rank || (!of->done && (me->mpi->test(&done, &of->handle) || !done)))
            continue; // a heartbeat in flight is enough
        of->done = me->mpi->send(&of->handle, &gets_on, sizeof gets_on, r, me->note_tag) != 0;
    }
}

/*
 * Returns true if this rank, which was reported late, has itself waited about as long as the
 * reporter and has not reported that yet.
 */
static bool has_waited(const mpi_rank *me)
{
    return me->awaited && !me->note.native &&
           invar_comm_clock() - me->since > me->awaited->seconds / 2;
}

/*
 * Handles a note of another rank. Ranks may abort at the same time: such a note of the world before
 * the recovery is no failure of the recovered one.
 */
static invar_status handle_note(mpi_rank *me, int peer, int tag, invar_comm_failure *heard)
{
    if (!heard->native) {
        me->left_count += !me->left[peer];
        me->left[peer] = true;
        return INVAR_OK;
    }
    if (heard->native == EINPROGRESS) {
        me->beat = invar_comm_clock();
        return INVAR_OK;
    }
    heard->text[sizeof heard->text - 1] = '\0';
    heard->status = heard->status < INVAR_OK ? heard->status : INVAR_E_IO;
    if (heard->native == ETIMEDOUT && heard->culprit == me->world->rank && has_waited(me))
        return invar_world_fail_timeout(me->world, me->awaited, heard);
    return tag < me->note_tag && heard->native == ECANCELED
               ? INVAR_OK
               : invar_world_accept_failure(me->world, heard);
}

/* Receives and handles all notes that have arrived. */
static invar_status poll_notes(void *self)
{
    mpi_rank *me = self;
    invar_comm_failure heard;
    int peer, code;

    for (int tag = NOTE; tag <= me->note_tag; tag++)
        do {
            code = me->mpi->listen(&peer, &heard, sizeof heard, tag);
            if (code)
                return fail_unreachable(me, peer < 0 ? me->world->rank : peer, code);
            if (peer >= 0)
                INVAR_TRY(handle_note(me, peer, tag, &heard));
        } while (peer >= 0);
    return INVAR_OK;
}

/* ---- messages -------------------------------------------------------------------------------- */

static size_t pieces_of(const mpi_rank *me, const invar_message *m)
{
    return m->by_device ? 0 : m->bytes / me->piece + (m->bytes % me->piece != 0);
}

static invar_status reserve_requests(invar_comm_request *request, size_t count)
{
    void *room;

    if (count * sizeof(mpi_request) <= request->request_bytes)
        return INVAR_OK;
    INVAR_TRY(
        invar_alloc(&room, count, sizeof(mpi_request), "the requests of a call between ranks"));
    invar_free(request->requests);
    request->requests = room;
    request->request_bytes = count * sizeof(mpi_request);
    return INVAR_OK;
}

static int post_bytes(const mpi_rank *me, const invar_message *m, mpi_request *r, void *data,
                      int bytes, int tag)
{
    int code = m->incoming ? me->mpi->receive(&r->handle, data, bytes, m->peer, tag)
                           : me->mpi->send(&r->handle, data, bytes, m->peer, tag);

    r->done = code != 0;
    return code;
}

static invar_status post_message(mpi_rank *me, invar_message *m, mpi_request *r)
{
    int tag = (int)(2 * m->context + 2);
    int code = post_bytes(me, m, r, &m->header, sizeof m->header, tag);

    for (size_t at = 0; !code && !m->by_device && at < m->bytes; at += me->piece) {
        size_t bytes = m->bytes - at < me->piece ? m->bytes - at : me->piece;

        code = post_bytes(me, m, ++r, m->data + at, (int)bytes, tag + 1);
    }
    return code ? fail_unreachable(me, m->peer, code) : INVAR_OK;
}

/* Cancels the receives of a request, so that MPI does not write to their memory later. */
static void cancel_messages(mpi_rank *me, invar_comm_request *request)
{
    double until = invar_comm_clock() + QUIET;
    size_t count = 0, open = 1;
    mpi_request *r = request->requests;

    for (int i = 0; i < request->count; count += 1 + pieces_of(me, &request->messages[i++]))
        for (size_t k = count; k <= count + pieces_of(me, &request->messages[i]); k++)
            if (request->messages[i].incoming && !r[k].done)
                (void)me->mpi->cancel(&r[k].handle);
    while (open && invar_comm_clock() < until) {
        open = 0;
        for (size_t i = 0; i < count; i++) {
            int done = 1;

            if (!r[i].done && me->mpi->test(&done, &r[i].handle) == 0)
                r[i].done = done;
            open += !done;
        }
    }
    if (open) { // MPI keeps using this memory until the process exits, which is soon
        request->messages = NULL;
        request->requests = NULL;
    }
}

static invar_status start_request(void *self, invar_comm_request *request)
{
    mpi_rank *me = self;
    size_t count = 0, at;
    mpi_request *requests;
    invar_status status = INVAR_OK;

    if (request->comm->context > (uint64_t)(me->max_tag - 3) / 2)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "there were too many groups of ranks: this MPI has %d tags", me->max_tag);
    for (int i = 0; i < request->count; i++)
        count += 1 + pieces_of(me, &request->messages[i]);
    INVAR_TRY(reserve_requests(request, count));
    requests = request->requests;
    for (at = 0; at < count; at++)
        requests[at].done = true; // nothing is posted yet
    // receives first: an early message goes to its place and not through a buffer of MPI
    for (int incoming = 1; incoming >= 0; incoming--) {
        at = 0;
        for (int i = 0; i < request->count; at += 1 + pieces_of(me, &request->messages[i++]))
            if (status == INVAR_OK && request->messages[i].incoming == (incoming == 1))
                status = post_message(me, &request->messages[i], &requests[at]);
    }
    if (status != INVAR_OK)
        cancel_messages(me, request);
    return status;
}

static invar_status advance_one(mpi_rank *me, const invar_comm_request *request, invar_message *m,
                                mpi_request *r)
{
    bool all = true;

    INVAR_TRY(test_request(&all, me, r, m->peer));
    if (m->incoming && m->state == INVAR_MESSAGE_POSTED) {
        if (!all)
            return INVAR_OK;
        INVAR_TRY(invar_world_check(me->world, request, m));
        m->state = INVAR_MESSAGE_TAKEN;
    }
    for (size_t i = 0; all && i < pieces_of(me, m); i++) // pieces mostly finish in order
        INVAR_TRY(test_request(&all, me, r + 1 + i, m->peer));
    if (all)
        m->state = INVAR_MESSAGE_DONE;
    return INVAR_OK;
}

/* Advances all messages of a request; *done is true if all are done. */
static invar_status advance_messages(bool *done, mpi_rank *me, const invar_comm_request *request)
{
    mpi_request *r = request->requests;

    *done = true;
    for (int i = 0; i < request->count; i++) {
        invar_message *m = &request->messages[i];

        if (m->state != INVAR_MESSAGE_DONE)
            INVAR_TRY(advance_one(me, request, m, r));
        *done = *done && m->state == INVAR_MESSAGE_DONE;
        r += 1 + pieces_of(me, m);
    }
    return INVAR_OK;
}

/*
 * Fails if a rank that this one waits for has left. Its last message arrived before that note: MPI
 * keeps the order of messages between two ranks whatever their tags, because a receive may ask for
 * any tag.
 */
static invar_status expect_peers(const mpi_rank *me, const invar_comm_request *request)
{
    for (int i = 0; i < request->count; i++) {
        const invar_message *m = &request->messages[i];

        if (m->incoming && m->state == INVAR_MESSAGE_POSTED && me->left[m->peer])
            return invar_world_fail_peer_exit(me->world, request, m);
    }
    return INVAR_OK;
}

/* Polls notes and messages. Messages that have arrived count, even if their sender failed later. */
static invar_status poll_once(bool *done, mpi_rank *me, const invar_comm_request *request)
{
    invar_status heard = poll_notes(me);

    INVAR_TRY(advance_messages(done, me, request));
    if (*done) {
        invar_error_clear();
        return INVAR_OK;
    }
    return heard == INVAR_OK ? expect_peers(me, request) : heard;
}

/*
 * Waits for notes of ranks that were reported late and wait themselves, so that after a timeout the
 * failure names the last rank of the chain.
 */
static invar_status await_answers(mpi_rank *me)
{
    double until = invar_comm_clock() + ANSWER;

    while (invar_comm_clock() < until) {
        if (poll_notes(me) != INVAR_OK)
            invar_error_clear();
        sleep_ns(1000000);
    }
    return invar_world_accept_failure(me->world, &me->world->failure);
}

static invar_status wait_for_request(void *self, invar_comm_request *request)
{
    mpi_rank *me = self;
    invar_status status = INVAR_OK;
    bool done = false;

    me->awaited = request;
    me->since = invar_comm_clock();

    if (me->world->failure.native)
        status = invar_world_accept_failure(me->world, &me->world->failure);
    me->active = me->beat = me->since;
    while (status == INVAR_OK && (status = poll_once(&done, me, request)) == INVAR_OK && !done) {
        double now = invar_comm_clock();

        if (request->seconds > 0 && now > me->beat + request->seconds)
            status = invar_world_fail_timeout(me->world, request, NULL);
        else if (now - me->active < SPIN)
            sched_yield(); // MPI moves bytes only while it is called
        else
            sleep_ns(50000);
    }
    if (status != INVAR_OK && me->world->failure.native == ETIMEDOUT)
        status = await_answers(me);
    me->awaited = NULL;
    if (status != INVAR_OK)
        cancel_messages(me, request);
    return status;
}

/* ---- end of the run -------------------------------------------------------------------------- */

static bool notes_sent(mpi_rank *me)
{
    bool all = true;

    for (int r = 0; r < me->world->size; r++)
        if (test_request(&all, me, &me->notes[r], r) != INVAR_OK ||
            test_request(&all, me, &me->beats[r], r) != INVAR_OK)
            return true; // the peer failed in another way
    return all;
}

/*
 * Switches to the tag of the recovered world. Notes of the first failure must be sent first,
 * because the next note reuses their memory.
 */
static void switch_note_tag(void *self)
{
    mpi_rank *me = self;
    double until = invar_comm_clock() + QUIET;

    while (!notes_sent(me) && invar_comm_clock() < until)
        sleep_ns(50000);
    me->note_tag = NOTE_REVIVED;
}

/* Waits until all ranks have left, so that MPI_Finalize cannot hang. */
static invar_status wait_for_departure(mpi_rank *me)
{
    int other = me->world->rank ? 0 : 1;

    me->beat = invar_comm_clock();
    memset(&me->note, 0, sizeof me->note);
    send_notes(me);
    while (!notes_sent(me) || me->left_count < me->world->size - 1) {
        INVAR_TRY(poll_notes(me));
        if (me->seconds > 0 && invar_comm_clock() > me->beat + me->seconds) {
            while (me->left[other] || other == me->world->rank)
                other++;
            return invar_world_fail(me->world, other, ETIMEDOUT,
                                    "rank %d on %s did not come to the end of the run: rank %d has "
                                    "waited %g s; look at its host",
                                    other, me->world->hosts[other], me->world->rank, me->seconds);
        }
        sleep_ns(50000);
    }
    return INVAR_OK;
}

static void leave_world(void *self)
{
    mpi_rank *me = self;
    bool failed = invar_world_failed(me->world) || wait_for_departure(me) != INVAR_OK;
    double until = invar_comm_clock() + LINGER; // all ranks know of the failure by now

    if (!failed)
        (void)me->mpi->close();
    // the launcher kills all ranks when one has exited: the rank that prints must exit first
    while (failed && me->world->rank != invar_world_error_rank(me->world) &&
           invar_comm_clock() < until) {
        (void)notes_sent(me);
        sleep_ns(1000000);
    }
    invar_free(me->left);
    invar_free(me->notes);
    invar_free(me);
}

/* ---- start of the run ------------------------------------------------------------------------ */

static invar_status load_module(const invar_mpi_table **out, const char *wanted)
{
    const char *file = wanted ? wanted : INVAR_MODULE_MPI;
    const void *symbol;

    // global symbols: MPI loads plug-ins of its own that need them
    INVAR_TRY(invar_module_load(&symbol, file, TEXT(INVAR_MPI_TABLE), true));
    *out = symbol;
    if ((*out)->abi != INVAR_MPI_ABI)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%.1000s has version %u of the interface, this program %d: build both "
                          "together",
                          file, (*out)->abi, INVAR_MPI_ABI);
    return INVAR_OK;
}

/* Gathers the host names of all ranks. */
static invar_status share_hosts(invar_comm *comm, double seconds)
{
    invar_world *world = comm->world;
    invar_comm_transfer transfer = {.op = INVAR_COMM_ALLGATHERV,
                                    .phase = "start",
                                    .timeout_s = seconds,
                                    .in = world->hosts[world->rank],
                                    .out = world->hosts};
    size_t *bytes;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(bytes, (size_t)world->size, "names of hosts"));
    for (int r = 0; r < world->size; r++)
        bytes[r] = sizeof *world->hosts;
    transfer.out_bytes = bytes;
    status = invar_comm_transfer_now(comm, &transfer);
    invar_free(bytes);
    for (int r = 0; r < world->size; r++)
        world->hosts[r][INVAR_COMM_HOST_SIZE - 1] = '\0';
    memset(comm->counts, 0, sizeof comm->counts);
    return status;
}

/* Initializes the rank. The caller releases what was allocated, also after a failure. */
static invar_status join_world(invar_comm **out, mpi_rank *me, int rank, int size)
{
    static const invar_transport transport = {start_request, wait_for_request,   send_heartbeat,
                                              poll_notes,    send_failure_notes, switch_note_tag,
                                              leave_world};
    invar_status status;

    status = invar_world_new(out, rank, size);
    if (status == INVAR_OK)
        status = INVAR_ALLOC(me->left, (size_t)size, "ranks that left");
    if (status == INVAR_OK)
        status = INVAR_ALLOC(me->notes, 2 * (size_t)size, "notes to ranks");
    if (status != INVAR_OK)
        return status;
    memset(me->left, 0, (size_t)size * sizeof *me->left);
    memset(me->notes, 0, 2 * (size_t)size * sizeof *me->notes);
    for (int r = 0; r < 2 * size; r++)
        me->notes[r].done = true;
    me->beats = me->notes + size;
    me->world = (*out)->world;
    me->world->self = me;
    me->world->transport = &transport;
    return INVAR_OK;
}

invar_status invar_comm_mpi(invar_comm **out, const invar_comm_mpi_options *options)
{
    int rank, size, code;
    mpi_rank *me;
    fenv_t rounding;
    char why[512];
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(me, 1, "a rank of MPI"));
    me->seconds = options->seconds;
    me->piece = options->piece && options->piece < PIECE ? options->piece : PIECE;
    fegetenv(&rounding); // loaded libraries may change the rounding mode
    status = load_module(&me->mpi, options->module);
    code = status == INVAR_OK ? me->mpi->open(&rank, &size, &me->max_tag) : 0;
    fesetenv(&rounding);
    if (code) {
        me->mpi->explain(why, sizeof why, code);
        status = INVAR_FAIL(INVAR_E_MPI, code, "MPI cannot be started: %s", why);
    }
    if (status == INVAR_OK)
        status = join_world(out, me, rank, size);
    if (status != INVAR_OK) {
        invar_comm_free(*out);
        invar_free(me->left);
        invar_free(me->notes);
        invar_free(me);
        *out = NULL;
        return status;
    }
    status = share_hosts(*out, options->seconds);
    if (status != INVAR_OK) {
        invar_comm_free(*out);
        *out = NULL;
    }
    return status;
}
