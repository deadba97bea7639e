/*
 * comm.c - moves as messages between two ranks, whatever the transport.
 *
 * A move is a piece that this rank gives to each rank and one that it gets from each, which may be
 * empty. Pieces of 0 bytes travel, too: their headers show that the ranks make the same call.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/comm.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/ranks/comm/comm_internal.h"

#include "base/invar_banned.h"

#define BEATS 8 /* in the time that ranks wait without one */

const char *invar_comm_op_name(invar_comm_op op)
{
    static const char *const names[INVAR_COMM_OPS] = {"allgatherv", "alltoallv", "sendrecv",
                                                      "broadcast",  "barrier",   "split"};

    return names[op];
}

/* ---- what a move consists of ----------------------------------------------------------------- */

/* What `rank` gives to `peer` or gets from it. */
typedef struct piece {
    bool there;
    size_t at, bytes;
} piece;

static bool comm_transfer_gathers(const invar_comm_transfer *move)
{
    return move->op == INVAR_COMM_ALLGATHERV || move->op == INVAR_COMM_SPLIT;
}

static piece comm_transfer_given(const invar_comm_transfer *move, int rank, int peer)
{
    switch (move->op) {
    case INVAR_COMM_ALLTOALLV: return (piece){.there = true, .bytes = move->in_bytes[peer]};
    case INVAR_COMM_SENDRECV:
        return (piece){.there = peer == move->dst_rank,
                       .bytes = peer == move->dst_rank ? move->to_bytes : 0};
    case INVAR_COMM_BROADCAST:
        return (piece){.there = rank == move->src_rank,
                       .bytes = rank == move->src_rank ? move->from_bytes : 0};
    case INVAR_COMM_BARRIER: return (piece){.there = true};
    default: return (piece){.there = true, .bytes = move->out_bytes[rank]};
    }
}

static piece comm_transfer_gotten(const invar_comm_transfer *move, int peer)
{
    switch (move->op) {
    case INVAR_COMM_SENDRECV:
    case INVAR_COMM_BROADCAST:
        return (piece){.there = peer == move->src_rank,
                       .bytes = peer == move->src_rank ? move->from_bytes : 0};
    case INVAR_COMM_BARRIER: return (piece){.there = true};
    default: return (piece){.there = true, .bytes = move->out_bytes[peer]};
    }
}

/* Goes through the ranks in ascending order; pieces of one side lie behind each other. */
typedef struct walk {
    const invar_comm_transfer *move;
    int rank, size;
    int peer; /* -1 at first */
    piece in, out;
} walk;

static bool walk_on(walk *w)
{
    size_t in = w->move->op == INVAR_COMM_ALLTOALLV ? w->in.at + w->in.bytes : 0;
    size_t out = w->out.at + w->out.bytes;

    if (++w->peer == w->size)
        return false;
    w->in = comm_transfer_given(w->move, w->rank, w->peer);
    w->out = comm_transfer_gotten(w->move, w->peer);
    w->in.at = in;
    w->out.at = out;
    return true;
}

static walk walk_begin(const invar_comm_transfer *move, int rank, int size)
{
    return (walk){.move = move, .rank = rank, .size = size, .peer = -1};
}

/* ---- is it one ------------------------------------------------------------------------------- */

static invar_status comm_transfer_bad(const invar_comm_transfer *move, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s in phase \"%s\": %s", invar_comm_op_name(move->op),
                      move->phase, why);
}

static invar_status check_ends(const invar_comm_transfer *move, int rank, int size)
{
    bool pair = move->op == INVAR_COMM_SENDRECV;

    if (pair && (move->dst_rank < INVAR_COMM_NONE || move->dst_rank >= size ||
                 move->src_rank < INVAR_COMM_NONE || move->src_rank >= size))
        return comm_transfer_bad(move, "there is no such rank");
    if (move->op == INVAR_COMM_BROADCAST && (move->src_rank < 0 || move->src_rank >= size))
        return comm_transfer_bad(move, "there is no such rank");
    if (pair && (move->dst_rank == rank) != (move->src_rank == rank))
        return comm_transfer_bad(move, "a rank that sends to itself receives from itself");
    if (pair && move->dst_rank == rank && move->to_bytes != move->from_bytes)
        return comm_transfer_bad(move,
                                 "a rank sends itself another number of bytes than it expects");
    return INVAR_OK;
}

static invar_status check_sums(const invar_comm_transfer *move, int rank, int size)
{
    walk w = walk_begin(move, rank, size);

    while (walk_on(&w)) {
        if (w.in.at > SIZE_MAX - w.in.bytes || w.out.at > SIZE_MAX - w.out.bytes)
            return comm_transfer_bad(move, "the sum of bytes is more than memory has");
        if (w.peer == rank && move->op == INVAR_COMM_ALLTOALLV && w.in.bytes != w.out.bytes)
            return comm_transfer_bad(move,
                                     "a rank gives itself another number of bytes than it expects");
    }
    return INVAR_OK;
}

static invar_status check_move(const invar_comm_transfer *move, int rank, int size)
{
    if ((unsigned)move->op >= INVAR_COMM_OPS || !move->phase || !move->phase[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a call between ranks has no op or no phase");
    if (!(move->timeout_s >= 0 && move->timeout_s <= 1e9))
        return comm_transfer_bad(move, "a deadline is 0 or a number of seconds");
    if ((move->op == INVAR_COMM_ALLTOALLV && !move->in_bytes) ||
        ((move->op == INVAR_COMM_ALLTOALLV || comm_transfer_gathers(move)) && !move->out_bytes))
        return comm_transfer_bad(move, "the numbers of bytes are missing");
    INVAR_TRY(check_ends(move, rank, size));
    return check_sums(move, rank, size);
}

/* The same of a move that is made: its bytes lie somewhere. */
static invar_status check_call(const invar_comm_transfer *move, int rank, int size)
{
    bool gives = false, gets = false;
    walk w;

    INVAR_TRY(check_move(move, rank, size));
    w = walk_begin(move, rank, size);
    while (walk_on(&w)) {
        gives |= w.in.bytes > 0;
        // the root of a broadcast needs no place for what it has
        gets |= w.out.bytes > 0 && (move->op != INVAR_COMM_BROADCAST || rank != move->src_rank);
    }
    if ((gives && !move->in) || (gets && !move->out))
        return comm_transfer_bad(move, "there are bytes, but no memory");
    return INVAR_OK;
}

static invar_comm_self_copy own_of(const invar_comm_transfer *move, int rank, int size)
{
    walk w = walk_begin(move, rank, size);
    invar_comm_self_copy own = {.to = NULL};

    while (walk_on(&w) && w.peer < rank)
        continue;
    if (!w.in.there || w.in.bytes == 0)
        return own;
    own.from = (const char *)move->in + w.in.at;
    own.bytes = w.in.bytes;
    if (w.out.there && move->out && (char *)move->out + w.out.at != own.from)
        own.to = (char *)move->out + w.out.at;
    return own;
}

static void copy_own(const invar_comm *comm, const invar_comm_transfer *move)
{
    invar_comm_self_copy own = own_of(move, comm->rank, comm->size);

    if (own.to && !comm->world->imagined)
        memcpy(own.to, own.from, own.bytes);
}

static void count_bytes(uint64_t *sent, uint64_t *received, const invar_comm_transfer *move,
                        int rank, int size)
{
    walk w = walk_begin(move, rank, size);

    *sent = *received = 0;
    while (walk_on(&w)) {
        *sent += w.peer == rank ? 0 : w.in.bytes;
        *received += w.peer == rank ? 0 : w.out.bytes;
    }
}

invar_status invar_comm_transfer_bytes(uint64_t *sent_out, uint64_t *received_out,
                                       const invar_comm_transfer *move, int rank, int size)
{
    *sent_out = *received_out = 0;
    if (size < 1 || size > INVAR_COMM_MAX_SIZE || rank < 0 || rank >= size)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "there is no rank %d of %d", rank, size);
    INVAR_TRY(check_move(move, rank, size));
    count_bytes(sent_out, received_out, move, rank, size);
    return INVAR_OK;
}

/* ---- tickets --------------------------------------------------------------------------------- */

static void ticket_free(invar_comm_request *ticket)
{
    if (!ticket)
        return;
    invar_free(ticket->messages);
    invar_free(ticket->requests);
    invar_free(ticket);
}

static invar_status ticket_new(invar_comm_request **out, int size)
{
    invar_comm_request *ticket;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&ticket, 1, sizeof *ticket, "a call between ranks"));
    memset(ticket, 0, sizeof *ticket);
    status = invar_alloc((void **)&ticket->messages, 2 * (size_t)size, sizeof *ticket->messages,
                         "the messages of a call between ranks");
    if (status != INVAR_OK) {
        invar_free(ticket);
        return status;
    }
    *out = ticket;
    return INVAR_OK;
}

static invar_status take_ticket(invar_comm_request **out, invar_comm *comm)
{
    if (comm->spare) {
        *out = comm->spare;
        comm->spare = comm->spare->next;
    } else {
        INVAR_TRY(ticket_new(out, comm->size));
    }
    (*out)->comm = comm;
    return INVAR_OK;
}

static void put_ticket(invar_comm_request *ticket)
{
    ticket->next = ticket->comm->spare;
    ticket->comm->spare = ticket;
}

static void add_message(invar_comm_request *ticket, int peer, bool incoming, char *data,
                        size_t bytes)
{
    invar_comm *comm = ticket->comm;
    invar_message *message = &ticket->messages[ticket->count++];

    *message = (invar_message){.peer = comm->members[peer],
                               .member = peer,
                               .incoming = incoming,
                               .context = comm->context,
                               .number = (incoming ? comm->awaited : comm->posted)[peer]++,
                               .data = data,
                               .bytes = bytes,
                               .carried = ticket->device_pending};
    if (incoming)
        return;
    message->header.op = ticket->op;
    message->header.bytes = bytes;
    memcpy(message->header.phase, ticket->phase, sizeof ticket->phase);
}

/* Messages with the ranks from `low` to before `high`. */
static void add_messages(invar_comm_request *ticket, const invar_comm_transfer *move, int low,
                         int high)
{
    walk w = walk_begin(move, ticket->comm->rank, ticket->comm->size);

    while (!ticket->comm->world->imagined && walk_on(&w)) {
        if (w.peer < low || w.peer >= high)
            continue;
        // `in` is read only: a message has one field for both directions
        if (w.in.there)
            add_message(ticket, w.peer, false, (char *)move->in + w.in.at, w.in.bytes);
        if (w.out.there)
            add_message(ticket, w.peer, true, (char *)move->out + w.out.at, w.out.bytes);
    }
}

static void count_call(invar_comm *comm, invar_comm_op op, uint64_t sent, uint64_t received,
                       double waited)
{
    comm->counts[op].calls++;
    comm->counts[op].sent += sent;
    comm->counts[op].received += received;
    comm->counts[op].wait_s += waited;
}

/* Behind all that were started before it. */
static void add_due(invar_comm_request *ticket, const invar_comm_transfer *move)
{
    invar_comm *comm = ticket->comm;
    invar_comm_request **link = &comm->due;

    ticket->self_copies = own_of(move, comm->rank, comm->size);
    ticket->next_device = NULL;
    while (*link)
        link = &(*link)->next_device;
    *link = ticket;
}

static void drop_due(invar_comm_request *ticket)
{
    invar_comm_request **link = &ticket->comm->due;

    while (*link != ticket)
        link = &(*link)->next_device;
    *link = ticket->next_device;
    ticket->device_pending = false;
}

static void world_beat(invar_world *world, double now, double seconds)
{
    if (!world->transport || world->failure.native || now - world->beat < seconds / BEATS)
        return;
    world->beat = now;
    world->transport->beat(world->self);
}

void invar_comm_heartbeat(invar_comm *comm, double seconds)
{
    world_beat(comm->world, invar_comm_clock(), seconds);
}

/* A call has completed: it counts, and who watches is shown it. */
static void end_call(const invar_comm_request *ticket, double from)
{
    invar_world *world = ticket->comm->world;
    double now = invar_comm_clock(), waited = now - from;

    if (ticket->seconds > 0)
        world_beat(world, now, ticket->seconds);
    count_call(ticket->comm, ticket->op, ticket->sent, ticket->received, waited);
    if (world->done)
        world->done(world->payload, &(invar_comm_event){ticket->op, ticket->phase, ticket->sent,
                                                        ticket->received, waited});
}

static invar_status comm_begin(invar_comm_request **out, invar_comm *comm,
                               const invar_comm_transfer *move)
{
    invar_world *world = comm->world;
    invar_comm_request *ticket;
    invar_status status = INVAR_OK;

    *out = NULL;
    INVAR_TRY(check_call(move, comm->rank, comm->size));
    if (world->failure.native)
        return invar_world_accept_failure(world, &world->failure);
    INVAR_TRY(take_ticket(&ticket, comm));
    ticket->op = move->op;
    ticket->seconds = move->timeout_s;
    ticket->count = 0;
    ticket->host_done = false;
    ticket->device_pending =
        comm->carrier && move->op != INVAR_COMM_SPLIT; // which is about the host's memory
    memset(ticket->phase, 0, sizeof ticket->phase);
    (void)snprintf(ticket->phase, sizeof ticket->phase, "%s", move->phase);
    count_bytes(&ticket->sent, &ticket->received, move, comm->rank, comm->size);
    // each rank begins with the one behind it, so that not all begin with rank 0
    add_messages(ticket, move, comm->rank + 1, comm->size);
    add_messages(ticket, move, 0, comm->rank);
    if (ticket->count)
        status = world->transport->start(world->self, ticket);
    if (status != INVAR_OK) {
        put_ticket(ticket);
        return status;
    }
    if (ticket->device_pending)
        add_due(ticket, move);
    else
        copy_own(comm, move);
    ticket->next = world->under_way;
    world->under_way = ticket;
    comm->under_way++;
    *out = ticket;
    return INVAR_OK;
}

/* For messages, once. */
static invar_status comm_request_meet(invar_comm_request *ticket)
{
    invar_world *world = ticket->comm->world;

    if (ticket->host_done || !ticket->count)
        return INVAR_OK;
    ticket->host_done = true;
    return world->transport->wait(world->self, ticket);
}

/* All ranks carry calls in the order in which they were started, whatever they wait for first. */
static invar_status comm_request_carry(invar_comm_request *ticket)
{
    invar_comm *comm = ticket->comm;
    invar_status status = INVAR_OK;

    while (status == INVAR_OK && ticket->device_pending) {
        invar_comm_request *oldest = comm->due;

        status = comm_request_meet(oldest);
        if (status == INVAR_OK)
            status = comm->carrier->carry(comm->device_transport_state, oldest);
        if (status == INVAR_OK)
            drop_due(oldest);
    }
    if (status == INVAR_OK)
        return INVAR_OK;
    drop_due(ticket);
    if (comm_request_meet(ticket) != INVAR_OK) // so that its messages are under way no longer
        return invar_world_accept_failure(comm->world, &comm->world->failure);
    return status;
}

invar_status invar_comm_wait(invar_comm_request *ticket)
{
    invar_comm *comm = ticket->comm;
    invar_comm_request **link = &comm->world->under_way;
    double from = invar_comm_clock();
    invar_status status;

    status = ticket->device_pending ? comm_request_carry(ticket) : comm_request_meet(ticket);
    if (status == INVAR_OK)
        end_call(ticket, from);
    while (*link != ticket)
        link = &(*link)->next;
    *link = ticket->next;
    comm->under_way--;
    put_ticket(ticket);
    return status;
}

invar_status invar_comm_transfer_now(invar_comm *comm, const invar_comm_transfer *move)
{
    invar_comm_request *ticket;

    if (comm->size == 1 && !comm->carrier) { // no ticket, no clock
        INVAR_TRY(check_call(move, 0, 1));
        if (comm->world->failure.native)
            return invar_world_accept_failure(comm->world, &comm->world->failure);
        copy_own(comm, move);
        count_call(comm, move->op, 0, 0, 0);
        return INVAR_OK;
    }
    INVAR_TRY(comm_begin(&ticket, comm, move));
    return invar_comm_wait(ticket);
}

static invar_status no_split(const invar_comm_transfer *move)
{
    if (move->op == INVAR_COMM_SPLIT)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a group is split by invar_comm_split alone");
    return INVAR_OK;
}

invar_status invar_comm_start(invar_comm_request **out, invar_comm *comm,
                              const invar_comm_transfer *move)
{
    *out = NULL;
    INVAR_TRY(no_split(move));
    return comm_begin(out, comm, move);
}

invar_status invar_comm_run(invar_comm *comm, const invar_comm_transfer *move)
{
    INVAR_TRY(no_split(move));
    return invar_comm_transfer_now(comm, move);
}

/* ---- handles --------------------------------------------------------------------------------- */

invar_status invar_comm_new(invar_comm **out, invar_world *world, int size)
{
    size_t each = sizeof *(*out)->posted + sizeof *(*out)->awaited + sizeof *(*out)->members;
    invar_comm *comm;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&comm, 1, sizeof *comm, "a group of ranks"));
    memset(comm, 0, sizeof *comm);
    status = invar_alloc((void **)&comm->posted, (size_t)size, each, "the ranks of a group");
    if (status != INVAR_OK) {
        invar_free(comm);
        return status;
    }
    memset(comm->posted, 0, (size_t)size * each);
    comm->awaited = comm->posted + size;
    comm->members = (int *)(comm->awaited + size);
    comm->world = world;
    world->handles++;
    *out = comm;
    return INVAR_OK;
}

invar_status invar_comm_self(invar_comm **out)
{
    return invar_world_new(out, 0, 1);
}

invar_status invar_comm_simulated(invar_comm **out, int rank, int size)
{
    *out = NULL;
    if (size < 1 || size > INVAR_COMM_MAX_SIZE || rank < 0 || rank >= size)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "there is no rank %d of %d", rank, size);
    INVAR_TRY(invar_world_new(out, rank, size));
    (*out)->world->imagined = true;
    return INVAR_OK;
}

static void drop_spare(invar_comm *comm)
{
    while (comm->spare) {
        invar_comm_request *next = comm->spare->next;

        ticket_free(comm->spare);
        comm->spare = next;
    }
}

bool invar_comm_recover(invar_comm *comm)
{
    invar_world *world = comm->world;

    if (world->failure.native != ECANCELED || comm->context != INVAR_COMM_CONTEXT_FIRST)
        return false;
    INVAR_CHECK(!world->under_way); // every ticket is waited for
    drop_spare(comm);               // a transport may have kept their messages
    world->halted = world->failure;
    world->failure = (invar_comm_failure){0};
    comm->context = INVAR_COMM_CONTEXT_REVIVED; // what ranks were in the middle of is not met
    for (int i = 0; i < comm->size; i++)
        comm->posted[i] = comm->awaited[i] = 0;
    if (world->transport)
        world->transport->revive(world->self);
    return true;
}

void invar_comm_free(invar_comm *comm)
{
    invar_world *world;

    if (!comm)
        return;
    world = comm->world;
    INVAR_CHECK(!comm->under_way); // every ticket is waited for
    drop_spare(comm);
    if (comm->carrier)
        comm->carrier->close(comm->device_transport_state);
    invar_free(comm->posted);
    invar_free(comm);
    if (--world->handles > 0)
        return;
    if (world->transport)
        world->transport->close(world->self);
    invar_free(world->hosts);
    invar_free(world);
}

int invar_comm_rank(const invar_comm *comm)
{
    return comm->rank;
}

int invar_comm_size(const invar_comm *comm)
{
    return comm->size;
}

const char *invar_comm_host(const invar_comm *comm, int rank)
{
    return comm->world->hosts[comm->members[rank]];
}

invar_comm_stats invar_comm_get_stats(const invar_comm *comm, invar_comm_op op)
{
    return comm->counts[op];
}

void invar_comm_set_observer(invar_comm *comm,
                             void (*done)(void *payload, const invar_comm_event *call),
                             void *payload)
{
    comm->world->done = done;
    comm->world->payload = payload;
}
