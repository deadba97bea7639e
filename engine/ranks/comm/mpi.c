/*
 * mpi.c - ranks that are processes, started by mpirun or srun.
 *
 * A message is a header and pieces of at most 16 MiB, each a request of its own, all posted when
 * the call is started: MPI counts in int, and pieces that are done show that there is progress. The
 * tag tells groups and headers apart; MPI keeps the order of messages between two ranks. Payload is
 * looked at when its header is as expected.
 *
 * Notes have a tag of their own: a rank that has failed tells why, one that leaves says so, and so
 * does one that gets on with its work while others may wait for it. All are polled, because no wait
 * of MPI ends at a deadline or when another rank is gone.
 *
 * After a failure MPI is not finalized, which would wait for ranks that do not come: the process
 * ends with an exit code other than 0, and the launcher ends the others.
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
/* Tags of notes: of the world, and of the revived one. */
enum { NOTE, NOTE_REVIVED };
#define LINGER 3.0 /* seconds in which the rank that speaks does so */
#define SPIN 0.02  /* seconds without progress after which a wait begins to sleep */
#define QUIET 0.1  /* seconds for what is cancelled to come to its end */
#define ANSWER 1.0 /* seconds in which a rank that is said to be late tells whom it waits for */

#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name

typedef struct request {
    invar_mpi_request handle;
    bool done;
} request;

typedef struct mpi_rank {
    const invar_mpi_table *mpi;
    invar_world *world;
    size_t piece;
    double seconds; /* that the end of the run may take */
    int max_tag;
    int left_count;
    bool *left;                        /* (size) */
    double active;                     /* when a request was last seen to be done */
    const invar_comm_request *awaited; /* by this rank now; NULL: nothing */
    double since;                      /* when it began to wait */
    double beat;                       /* when another rank was last heard to get on */
    request *beats;                    /* (size) ours under way */
    int note_tag;                      /* of ours */
    request *notes;                    /* (size) ours under way, and behind them `beats` */
    invar_comm_failure note;           /* what they tell; native 0: that we leave */
} mpi_rank;

/* ---- MPI's calls ----------------------------------------------------------------------------- */

/* A call about a peer failed. */
static invar_status mpi_rank_trouble(mpi_rank *me, int peer, int code)
{
    char why[INVAR_TEXT_QUOTE_SIZE * 4], text[512];

    me->mpi->explain(text, sizeof text, code);
    invar_text_quote(why, sizeof why, text, strlen(text));
    return invar_world_fail(me->world, peer, EIO,
                            "rank %d on %s cannot be reached from rank %d: %s; look at the network "
                            "and at its host, then start the run again to resume it",
                            peer, me->world->hosts[peer], me->world->rank, why);
}

static invar_status mpi_rank_finished(bool *all, mpi_rank *me, request *r, int peer)
{
    int done = 0, code;

    if (r->done)
        return INVAR_OK;
    code = me->mpi->test(&done, &r->handle);
    if (code)
        return mpi_rank_trouble(me, peer, code);
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

/* To all: one that leaves waits for our note, too. */
static void send_notes(mpi_rank *me)
{
    for (int r = 0; r < me->world->size; r++) {
        me->notes[r].done = r == me->world->rank;
        if (!me->notes[r].done &&
            me->mpi->send(&me->notes[r].handle, &me->note, sizeof me->note, r, me->note_tag) != 0)
            me->notes[r].done = true; // the failure that we tell ends the run even so
    }
}

static void comm_failure_report(void *self, invar_comm_failure *failure)
{
    mpi_rank *me = self;

    me->note = *failure;
    send_notes(me);
}

/* Who cannot be reached is found by the rank that waits for it. */
static void beat(void *self)
{
    static const invar_comm_failure gets_on = {.native = EINPROGRESS};
    mpi_rank *me = self;

    for (int r = 0; r < me->world->size; r++) {
        request *of = &me->beats[r];
        int done = 1;

        if (r == me->world->rank || (!of->done && (me->mpi->test(&done, &of->handle) || !done)))
            continue; // the last one is under way: that is enough
        of->done = me->mpi->send(&of->handle, &gets_on, sizeof gets_on, r, me->note_tag) != 0;
    }
}

/* It is said to be late. Has it waited itself, about as long as who says so, and told nobody? */
static bool has_waited(const mpi_rank *me)
{
    return me->awaited && !me->note.native &&
           invar_comm_clock() - me->since > me->awaited->seconds / 2;
}

/* Ranks halt at the same time: in the revived world that is no failure. */
static invar_status take_note(mpi_rank *me, int peer, int tag, invar_comm_failure *heard)
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

/* Takes notice of what other ranks have told. */
static invar_status poll_failures(void *self)
{
    mpi_rank *me = self;
    invar_comm_failure heard;
    int peer, code;

    for (int tag = NOTE; tag <= me->note_tag; tag++)
        do {
            code = me->mpi->listen(&peer, &heard, sizeof heard, tag);
            if (code)
                return mpi_rank_trouble(me, peer < 0 ? me->world->rank : peer, code);
            if (peer >= 0)
                INVAR_TRY(take_note(me, peer, tag, &heard));
        } while (peer >= 0);
    return INVAR_OK;
}

/* ---- messages -------------------------------------------------------------------------------- */

static size_t pieces_of(const mpi_rank *me, const invar_message *m)
{
    return m->carried ? 0 : m->bytes / me->piece + (m->bytes % me->piece != 0);
}

static invar_status make_room(invar_comm_request *ticket, size_t count)
{
    void *room;

    if (count * sizeof(request) <= ticket->request_bytes)
        return INVAR_OK;
    INVAR_TRY(invar_alloc(&room, count, sizeof(request), "the requests of a call between ranks"));
    invar_free(ticket->requests);
    ticket->requests = room;
    ticket->request_bytes = count * sizeof(request);
    return INVAR_OK;
}

static int post_bytes(const mpi_rank *me, const invar_message *m, request *r, void *data, int bytes,
                      int tag)
{
    int code = m->incoming ? me->mpi->receive(&r->handle, data, bytes, m->peer, tag)
                           : me->mpi->send(&r->handle, data, bytes, m->peer, tag);

    r->done = code != 0;
    return code;
}

static invar_status mpi_rank_post(mpi_rank *me, invar_message *m, request *r)
{
    int tag = (int)(2 * m->context + 2);
    int code = post_bytes(me, m, r, &m->header, sizeof m->header, tag);

    for (size_t at = 0; !code && !m->carried && at < m->bytes; at += me->piece) {
        size_t bytes = m->bytes - at < me->piece ? m->bytes - at : me->piece;

        code = post_bytes(me, m, ++r, m->data + at, (int)bytes, tag + 1);
    }
    return code ? mpi_rank_trouble(me, m->peer, code) : INVAR_OK;
}

/* Receives that nothing has come for must not write later. */
static void give_up(mpi_rank *me, invar_comm_request *ticket)
{
    double until = invar_comm_clock() + QUIET;
    size_t count = 0, open = 1;
    request *r = ticket->requests;

    for (int i = 0; i < ticket->count; count += 1 + pieces_of(me, &ticket->messages[i++]))
        for (size_t k = count; k <= count + pieces_of(me, &ticket->messages[i]); k++)
            if (ticket->messages[i].incoming && !r[k].done)
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
    if (open) { // MPI has these until the process ends, which is soon
        ticket->messages = NULL;
        ticket->requests = NULL;
    }
}

static invar_status comm_request_start(void *self, invar_comm_request *ticket)
{
    mpi_rank *me = self;
    size_t count = 0, at;
    request *requests;
    invar_status status = INVAR_OK;

    if (ticket->comm->context > (uint64_t)(me->max_tag - 3) / 2)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "there were too many groups of ranks: this MPI has %d tags", me->max_tag);
    for (int i = 0; i < ticket->count; i++)
        count += 1 + pieces_of(me, &ticket->messages[i]);
    INVAR_TRY(make_room(ticket, count));
    requests = ticket->requests;
    for (at = 0; at < count; at++)
        requests[at].done = true; // nothing is posted yet
    // receives first: what comes early goes to its place and not through a buffer of MPI's
    for (int incoming = 1; incoming >= 0; incoming--) {
        at = 0;
        for (int i = 0; i < ticket->count; at += 1 + pieces_of(me, &ticket->messages[i++]))
            if (status == INVAR_OK && ticket->messages[i].incoming == (incoming == 1))
                status = mpi_rank_post(me, &ticket->messages[i], &requests[at]);
    }
    if (status != INVAR_OK)
        give_up(me, ticket);
    return status;
}

static invar_status advance_one(mpi_rank *me, const invar_comm_request *ticket, invar_message *m,
                                request *r)
{
    bool all = true;

    INVAR_TRY(mpi_rank_finished(&all, me, r, m->peer));
    if (m->incoming && m->state == INVAR_MESSAGE_POSTED) {
        if (!all)
            return INVAR_OK;
        INVAR_TRY(invar_world_check(me->world, ticket, m));
        m->state = INVAR_MESSAGE_TAKEN;
    }
    for (size_t i = 0; all && i < pieces_of(me, m); i++) // they end in their order, mostly
        INVAR_TRY(mpi_rank_finished(&all, me, r + 1 + i, m->peer));
    if (all)
        m->state = INVAR_MESSAGE_DONE;
    return INVAR_OK;
}

/* *done: all messages are. */
static invar_status mpi_rank_advance(bool *done, mpi_rank *me, const invar_comm_request *ticket)
{
    request *r = ticket->requests;

    *done = true;
    for (int i = 0; i < ticket->count; i++) {
        invar_message *m = &ticket->messages[i];

        if (m->state != INVAR_MESSAGE_DONE)
            INVAR_TRY(advance_one(me, ticket, m, r));
        *done = *done && m->state == INVAR_MESSAGE_DONE;
        r += 1 + pieces_of(me, m);
    }
    return INVAR_OK;
}

/*
 * Its last message came before the note of a rank that has left: MPI keeps the order of messages
 * between two ranks whatever their tags, because a receive may ask for any tag.
 */
static invar_status expect_peers(const mpi_rank *me, const invar_comm_request *ticket)
{
    for (int i = 0; i < ticket->count; i++) {
        const invar_message *m = &ticket->messages[i];

        if (m->incoming && m->state == INVAR_MESSAGE_POSTED && me->left[m->peer])
            return invar_world_fail_peer_exit(me->world, ticket, m);
    }
    return INVAR_OK;
}

/* What has come counts, whatever its sender told then. */
static invar_status poll_once(bool *done, mpi_rank *me, const invar_comm_request *ticket)
{
    invar_status heard = poll_failures(me);

    INVAR_TRY(mpi_rank_advance(done, me, ticket));
    if (*done) {
        invar_error_clear();
        return INVAR_OK;
    }
    return heard == INVAR_OK ? expect_peers(me, ticket) : heard;
}

/* A rank was late: the failure is that of the last one in the row of those who wait. */
static invar_status hear_answers(mpi_rank *me)
{
    double until = invar_comm_clock() + ANSWER;

    while (invar_comm_clock() < until) {
        if (poll_failures(me) != INVAR_OK)
            invar_error_clear();
        sleep_ns(1000000);
    }
    return invar_world_accept_failure(me->world, &me->world->failure);
}

static invar_status comm_request_wait(void *self, invar_comm_request *ticket)
{
    mpi_rank *me = self;
    invar_status status = INVAR_OK;
    bool done = false;

    me->awaited = ticket;
    me->since = invar_comm_clock();

    if (me->world->failure.native)
        status = invar_world_accept_failure(me->world, &me->world->failure);
    me->active = me->beat = me->since;
    while (status == INVAR_OK && (status = poll_once(&done, me, ticket)) == INVAR_OK && !done) {
        double now = invar_comm_clock();

        if (ticket->seconds > 0 && now > me->beat + ticket->seconds)
            status = invar_world_fail_timeout(me->world, ticket, NULL);
        else if (now - me->active < SPIN)
            sched_yield(); // MPI moves bytes only while it is called
        else
            sleep_ns(50000);
    }
    if (status != INVAR_OK && me->world->failure.native == ETIMEDOUT)
        status = hear_answers(me);
    me->awaited = NULL;
    if (status != INVAR_OK)
        give_up(me, ticket);
    return status;
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool notes_sent(mpi_rank *me)
{
    bool all = true;

    for (int r = 0; r < me->world->size; r++)
        if (mpi_rank_finished(&all, me, &me->notes[r], r) != INVAR_OK ||
            mpi_rank_finished(&all, me, &me->beats[r], r) != INVAR_OK)
            return true; // it failed otherwise
    return all;
}

/* What is still told of the first failure is told in the memory of the next one. */
static void revive(void *self)
{
    mpi_rank *me = self;
    double until = invar_comm_clock() + QUIET;

    while (!notes_sent(me) && invar_comm_clock() < until)
        sleep_ns(50000);
    me->note_tag = NOTE_REVIVED;
}

/* Waits until all ranks leave, so that MPI's own end cannot hang. */
static invar_status mpi_rank_part(mpi_rank *me)
{
    int other = me->world->rank ? 0 : 1;

    me->beat = invar_comm_clock();
    memset(&me->note, 0, sizeof me->note);
    send_notes(me);
    while (!notes_sent(me) || me->left_count < me->world->size - 1) {
        INVAR_TRY(poll_failures(me));
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

static void leave(void *self)
{
    mpi_rank *me = self;
    bool failed = invar_world_failed(me->world) || mpi_rank_part(me) != INVAR_OK;
    double until = invar_comm_clock() + LINGER; // since all know that

    if (!failed)
        (void)me->mpi->close();
    // the launcher ends all when one has ended: not before the user was told
    while (failed && me->world->rank != invar_world_error_rank(me->world) &&
           invar_comm_clock() < until) {
        (void)notes_sent(me);
        sleep_ns(1000000);
    }
    invar_free(me->left);
    invar_free(me->notes);
    invar_free(me);
}

/* ---- the beginning --------------------------------------------------------------------------- */

static invar_status load_module(const invar_mpi_table **out, const char *wanted)
{
    const char *file = wanted ? wanted : INVAR_MODULE_MPI;
    const void *symbol;

    // global: MPI loads parts of itself that look for its symbols
    INVAR_TRY(invar_module_load(&symbol, file, TEXT(INVAR_MPI_TABLE), true));
    *out = symbol;
    if ((*out)->abi != INVAR_MPI_ABI)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%.1000s has version %u of the interface, this program %d: build both "
                          "together",
                          file, (*out)->abi, INVAR_MPI_ABI);
    return INVAR_OK;
}

/* All ranks learn each other's host. */
static invar_status share_hosts(invar_comm *comm, double seconds)
{
    invar_world *world = comm->world;
    invar_comm_transfer move = {.op = INVAR_COMM_ALLGATHERV,
                                .phase = "start",
                                .timeout_s = seconds,
                                .in = world->hosts[world->rank],
                                .out = world->hosts};
    size_t *bytes;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&bytes, (size_t)world->size, sizeof *bytes, "names of hosts"));
    for (int r = 0; r < world->size; r++)
        bytes[r] = sizeof *world->hosts;
    move.out_bytes = bytes;
    status = invar_comm_transfer_now(comm, &move);
    invar_free(bytes);
    for (int r = 0; r < world->size; r++)
        world->hosts[r][INVAR_COMM_HOST_SIZE - 1] = '\0';
    memset(comm->counts, 0, sizeof comm->counts);
    return status;
}

/* What it has allocated is the caller's, also when it fails. */
static invar_status join_world(invar_comm **out, mpi_rank *me, int rank, int size)
{
    static const invar_transport transport = {comm_request_start,
                                              comm_request_wait,
                                              beat,
                                              poll_failures,
                                              comm_failure_report,
                                              revive,
                                              leave};
    invar_status status;

    status = invar_world_new(out, rank, size);
    if (status == INVAR_OK)
        status = invar_alloc((void **)&me->left, (size_t)size, sizeof *me->left, "ranks that left");
    if (status == INVAR_OK)
        status =
            invar_alloc((void **)&me->notes, 2 * (size_t)size, sizeof *me->notes, "notes to ranks");
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
    INVAR_TRY(invar_alloc((void **)&me, 1, sizeof *me, "a rank of MPI"));
    memset(me, 0, sizeof *me);
    me->seconds = options->seconds;
    me->piece = options->piece && options->piece < PIECE ? options->piece : PIECE;
    fegetenv(&rounding); // libraries that are loaded may change it
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
