/*
 * comm.c - splits transfers into messages between two ranks, for any transport.
 *
 * A transfer consists of one piece per peer and direction, which may be empty. Pieces of 0 bytes
 * are sent, too: their headers show that the ranks make the same call. Bytes of a rank for itself
 * are copied here, except in groups with a device transport.
 *
 * Requests are recycled per group. Requests of a group with a device transport are queued: all
 * ranks move their bytes in the order in which they were started, whatever order they wait in.
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

#define BEATS 8 /* heartbeats per timeout */

const char *invar_comm_op_name(invar_comm_op op)
{
    static const char *const names[INVAR_COMM_OPS] = {"allgatherv", "alltoallv", "sendrecv",
                                                      "broadcast",  "barrier",   "split"};

    return names[op];
}

/* ---- pieces of a transfer -------------------------------------------------------------------- */

/* Part of a transfer between this rank and one peer, in one direction. */
typedef struct transfer_piece {
    bool exists;
    size_t offset, bytes;
} transfer_piece;

static bool is_gather(const invar_comm_transfer *move)
{
    return move->op == INVAR_COMM_ALLGATHERV || move->op == INVAR_COMM_SPLIT;
}

static transfer_piece sent_piece(const invar_comm_transfer *move, int rank, int peer)
{
    switch (move->op) {
    case INVAR_COMM_ALLTOALLV:
        return (transfer_piece){.exists = true, .bytes = move->in_bytes[peer]};
    case INVAR_COMM_SENDRECV:
        return (transfer_piece){.exists = peer == move->dst_rank,
                                .bytes = peer == move->dst_rank ? move->to_bytes : 0};
    case INVAR_COMM_BROADCAST:
        return (transfer_piece){.exists = rank == move->src_rank,
                                .bytes = rank == move->src_rank ? move->from_bytes : 0};
    case INVAR_COMM_BARRIER: return (transfer_piece){.exists = true};
    default: return (transfer_piece){.exists = true, .bytes = move->out_bytes[rank]};
    }
}

static transfer_piece received_piece(const invar_comm_transfer *move, int peer)
{
    switch (move->op) {
    case INVAR_COMM_SENDRECV:
    case INVAR_COMM_BROADCAST:
        return (transfer_piece){.exists = peer == move->src_rank,
                                .bytes = peer == move->src_rank ? move->from_bytes : 0};
    case INVAR_COMM_BARRIER: return (transfer_piece){.exists = true};
    default: return (transfer_piece){.exists = true, .bytes = move->out_bytes[peer]};
    }
}

/* Iterates over the ranks in ascending order. Pieces of one direction are adjacent in memory. */
typedef struct piece_iterator {
    const invar_comm_transfer *move;
    int rank, size;
    int peer; /* -1 before the first piece */
    transfer_piece in, out;
} piece_iterator;

static bool next_piece(piece_iterator *w)
{
    size_t in = w->move->op == INVAR_COMM_ALLTOALLV ? w->in.offset + w->in.bytes : 0;
    size_t out = w->out.offset + w->out.bytes;

    if (++w->peer == w->size)
        return false;
    w->in = sent_piece(w->move, w->rank, w->peer);
    w->out = received_piece(w->move, w->peer);
    w->in.offset = in;
    w->out.offset = out;
    return true;
}

static piece_iterator iterate_pieces(const invar_comm_transfer *move, int rank, int size)
{
    return (piece_iterator){.move = move, .rank = rank, .size = size, .peer = -1};
}

/* ---- checks of arguments --------------------------------------------------------------------- */

static invar_status fail_transfer(const invar_comm_transfer *move, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s in phase \"%s\": %s", invar_comm_op_name(move->op),
                      move->phase, why);
}

static invar_status check_ends(const invar_comm_transfer *move, int rank, int size)
{
    bool pair = move->op == INVAR_COMM_SENDRECV;

    if (pair && (move->dst_rank < INVAR_COMM_NONE || move->dst_rank >= size ||
                 move->src_rank < INVAR_COMM_NONE || move->src_rank >= size))
        return fail_transfer(move, "there is no such rank");
    if (move->op == INVAR_COMM_BROADCAST && (move->src_rank < 0 || move->src_rank >= size))
        return fail_transfer(move, "there is no such rank");
    if (pair && (move->dst_rank == rank) != (move->src_rank == rank))
        return fail_transfer(move, "a rank that sends to itself receives from itself");
    if (pair && move->dst_rank == rank && move->to_bytes != move->from_bytes)
        return fail_transfer(move, "a rank sends itself another number of bytes than it expects");
    return INVAR_OK;
}

static invar_status check_sums(const invar_comm_transfer *move, int rank, int size)
{
    piece_iterator w = iterate_pieces(move, rank, size);

    while (next_piece(&w)) {
        if (w.in.offset > SIZE_MAX - w.in.bytes || w.out.offset > SIZE_MAX - w.out.bytes)
            return fail_transfer(move, "the sum of bytes is more than memory has");
        if (w.peer == rank && move->op == INVAR_COMM_ALLTOALLV && w.in.bytes != w.out.bytes)
            return fail_transfer(move,
                                 "a rank gives itself another number of bytes than it expects");
    }
    return INVAR_OK;
}

static invar_status check_move(const invar_comm_transfer *move, int rank, int size)
{
    if ((unsigned)move->op >= INVAR_COMM_OPS || !move->phase || !move->phase[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a call between ranks has no op or no phase");
    if (!(move->timeout_s >= 0 && move->timeout_s <= 1e9))
        return fail_transfer(move, "a deadline is 0 or a number of seconds");
    if ((move->op == INVAR_COMM_ALLTOALLV && !move->in_bytes) ||
        ((move->op == INVAR_COMM_ALLTOALLV || is_gather(move)) && !move->out_bytes))
        return fail_transfer(move, "the numbers of bytes are missing");
    INVAR_TRY(check_ends(move, rank, size));
    return check_sums(move, rank, size);
}

/* Like check_move, for a transfer that is made: its bytes need memory. */
static invar_status check_call(const invar_comm_transfer *move, int rank, int size)
{
    bool gives = false, gets = false;
    piece_iterator w;

    INVAR_TRY(check_move(move, rank, size));
    w = iterate_pieces(move, rank, size);
    while (next_piece(&w)) {
        gives |= w.in.bytes > 0;
        // the root of a broadcast needs no `out`
        gets |= w.out.bytes > 0 && (move->op != INVAR_COMM_BROADCAST || rank != move->src_rank);
    }
    if ((gives && !move->in) || (gets && !move->out))
        return fail_transfer(move, "there are bytes, but no memory");
    return INVAR_OK;
}

static invar_comm_self_copy self_copy_of(const invar_comm_transfer *move, int rank, int size)
{
    piece_iterator w = iterate_pieces(move, rank, size);
    invar_comm_self_copy own = {.to = NULL};

    while (next_piece(&w) && w.peer < rank)
        continue;
    if (!w.in.exists || w.in.bytes == 0)
        return own;
    own.from = (const char *)move->in + w.in.offset;
    own.bytes = w.in.bytes;
    if (w.out.exists && move->out && (char *)move->out + w.out.offset != own.from)
        own.to = (char *)move->out + w.out.offset;
    return own;
}

static void copy_self(const invar_comm *comm, const invar_comm_transfer *move)
{
    invar_comm_self_copy own = self_copy_of(move, comm->rank, comm->size);

    if (own.to && !comm->world->simulated)
        memcpy(own.to, own.from, own.bytes);
}

static void count_bytes(uint64_t *sent, uint64_t *received, const invar_comm_transfer *move,
                        int rank, int size)
{
    piece_iterator w = iterate_pieces(move, rank, size);

    *sent = *received = 0;
    while (next_piece(&w)) {
        *sent += w.peer == rank ? 0 : w.in.bytes;
        *received += w.peer == rank ? 0 : w.out.bytes;
    }
}

invar_status invar_comm_transfer_bytes(uint64_t *sent_out, uint64_t *received_out,
                                       const invar_comm_transfer *transfer, int rank, int size)
{
    *sent_out = *received_out = 0;
    if (size < 1 || size > INVAR_COMM_MAX_SIZE || rank < 0 || rank >= size)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "there is no rank %d of %d", rank, size);
    INVAR_TRY(check_move(transfer, rank, size));
    count_bytes(sent_out, received_out, transfer, rank, size);
    return INVAR_OK;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void request_free(invar_comm_request *ticket)
{
    if (!ticket)
        return;
    invar_free(ticket->messages);
    invar_free(ticket->requests);
    invar_free(ticket);
}

static invar_status request_new(invar_comm_request **out, int size)
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

static invar_status acquire_request(invar_comm_request **out, invar_comm *comm)
{
    if (comm->spare) {
        *out = comm->spare;
        comm->spare = comm->spare->next;
    } else {
        INVAR_TRY(request_new(out, comm->size));
    }
    (*out)->comm = comm;
    return INVAR_OK;
}

static void release_request(invar_comm_request *ticket)
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
                               .by_device = ticket->device_pending};
    if (incoming)
        return;
    message->header.op = ticket->op;
    message->header.bytes = bytes;
    memcpy(message->header.phase, ticket->phase, sizeof ticket->phase);
}

/* Adds the messages with the ranks [low, high). */
static void add_messages(invar_comm_request *ticket, const invar_comm_transfer *move, int low,
                         int high)
{
    piece_iterator w = iterate_pieces(move, ticket->comm->rank, ticket->comm->size);

    while (!ticket->comm->world->simulated && next_piece(&w)) {
        if (w.peer < low || w.peer >= high)
            continue;
        // `in` is only read: a message has one field for both directions
        if (w.in.exists)
            add_message(ticket, w.peer, false, (char *)move->in + w.in.offset, w.in.bytes);
        if (w.out.exists)
            add_message(ticket, w.peer, true, (char *)move->out + w.out.offset, w.out.bytes);
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

/* Appends a request to the queue of the device transport. */
static void queue_device_request(invar_comm_request *ticket, const invar_comm_transfer *move)
{
    invar_comm *comm = ticket->comm;
    invar_comm_request **link = &comm->device_queue;

    ticket->self_copies = self_copy_of(move, comm->rank, comm->size);
    ticket->next_device = NULL;
    while (*link)
        link = &(*link)->next_device;
    *link = ticket;
}

static void dequeue_device_request(invar_comm_request *ticket)
{
    invar_comm_request **link = &ticket->comm->device_queue;

    while (*link != ticket)
        link = &(*link)->next_device;
    *link = ticket->next_device;
    ticket->device_pending = false;
}

static void send_heartbeat(invar_world *world, double now, double seconds)
{
    if (!world->transport || world->failure.native || now - world->last_heartbeat < seconds / BEATS)
        return;
    world->last_heartbeat = now;
    world->transport->send_heartbeat(world->self);
}

void invar_comm_heartbeat(invar_comm *comm, double seconds)
{
    send_heartbeat(comm->world, invar_comm_clock(), seconds);
}

/* Counts a completed call and passes it to the observer. */
static void finish_call(const invar_comm_request *ticket, double from)
{
    invar_world *world = ticket->comm->world;
    double now = invar_comm_clock(), waited = now - from;

    if (ticket->seconds > 0)
        send_heartbeat(world, now, ticket->seconds);
    count_call(ticket->comm, ticket->op, ticket->sent, ticket->received, waited);
    if (world->done)
        world->done(world->payload, &(invar_comm_event){ticket->op, ticket->phase, ticket->sent,
                                                        ticket->received, waited});
}

static invar_status begin_request(invar_comm_request **out, invar_comm *comm,
                                  const invar_comm_transfer *move)
{
    invar_world *world = comm->world;
    invar_comm_request *ticket;
    invar_status status = INVAR_OK;

    *out = NULL;
    INVAR_TRY(check_call(move, comm->rank, comm->size));
    if (world->failure.native)
        return invar_world_accept_failure(world, &world->failure);
    INVAR_TRY(acquire_request(&ticket, comm));
    ticket->op = move->op;
    ticket->seconds = move->timeout_s;
    ticket->count = 0;
    ticket->host_done = false;
    ticket->device_pending =
        comm->device_transport && move->op != INVAR_COMM_SPLIT; // a split gathers host memory
    memset(ticket->phase, 0, sizeof ticket->phase);
    (void)snprintf(ticket->phase, sizeof ticket->phase, "%s", move->phase);
    count_bytes(&ticket->sent, &ticket->received, move, comm->rank, comm->size);
    // each rank begins with the next one, so that not all begin with rank 0
    add_messages(ticket, move, comm->rank + 1, comm->size);
    add_messages(ticket, move, 0, comm->rank);
    if (ticket->count)
        status = world->transport->start(world->self, ticket);
    if (status != INVAR_OK) {
        release_request(ticket);
        return status;
    }
    if (ticket->device_pending)
        queue_device_request(ticket, move);
    else
        copy_self(comm, move);
    ticket->next = world->active;
    world->active = ticket;
    comm->n_active++;
    *out = ticket;
    return INVAR_OK;
}

/* Waits for the messages of a request; at most once. */
static invar_status wait_for_transport(invar_comm_request *ticket)
{
    invar_world *world = ticket->comm->world;

    if (ticket->host_done || !ticket->count)
        return INVAR_OK;
    ticket->host_done = true;
    return world->transport->wait(world->self, ticket);
}

/*
 * Moves the bytes of queued requests up to this one, oldest first. All ranks use this order,
 * whatever request they wait for first.
 */
static invar_status move_device_bytes(invar_comm_request *ticket)
{
    invar_comm *comm = ticket->comm;
    invar_status status = INVAR_OK;

    while (status == INVAR_OK && ticket->device_pending) {
        invar_comm_request *oldest = comm->device_queue;

        status = wait_for_transport(oldest);
        if (status == INVAR_OK)
            status = comm->device_transport->move(comm->device_transport_state, oldest);
        if (status == INVAR_OK)
            dequeue_device_request(oldest);
    }
    if (status == INVAR_OK)
        return INVAR_OK;
    dequeue_device_request(ticket);
    if (wait_for_transport(ticket) != INVAR_OK) // ends the messages in flight
        return invar_world_accept_failure(comm->world, &comm->world->failure);
    return status;
}

invar_status invar_comm_wait(invar_comm_request *request)
{
    invar_comm *comm = request->comm;
    invar_comm_request **link = &comm->world->active;
    double from = invar_comm_clock();
    invar_status status;

    status = request->device_pending ? move_device_bytes(request) : wait_for_transport(request);
    if (status == INVAR_OK)
        finish_call(request, from);
    while (*link != request)
        link = &(*link)->next;
    *link = request->next;
    comm->n_active--;
    release_request(request);
    return status;
}

invar_status invar_comm_transfer_now(invar_comm *comm, const invar_comm_transfer *transfer)
{
    invar_comm_request *ticket;

    if (comm->size == 1 && !comm->device_transport) { // fast path: no request, no clock
        INVAR_TRY(check_call(transfer, 0, 1));
        if (comm->world->failure.native)
            return invar_world_accept_failure(comm->world, &comm->world->failure);
        copy_self(comm, transfer);
        count_call(comm, transfer->op, 0, 0, 0);
        return INVAR_OK;
    }
    INVAR_TRY(begin_request(&ticket, comm, transfer));
    return invar_comm_wait(ticket);
}

static invar_status reject_split(const invar_comm_transfer *move)
{
    if (move->op == INVAR_COMM_SPLIT)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a group is split by invar_comm_split alone");
    return INVAR_OK;
}

invar_status invar_comm_start(invar_comm_request **out, invar_comm *comm,
                              const invar_comm_transfer *transfer)
{
    *out = NULL;
    INVAR_TRY(reject_split(transfer));
    return begin_request(out, comm, transfer);
}

invar_status invar_comm_run(invar_comm *comm, const invar_comm_transfer *transfer)
{
    INVAR_TRY(reject_split(transfer));
    return invar_comm_transfer_now(comm, transfer);
}

/* ---- communicators --------------------------------------------------------------------------- */

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
    (*out)->world->simulated = true;
    return INVAR_OK;
}

static void drop_spare(invar_comm *comm)
{
    while (comm->spare) {
        invar_comm_request *next = comm->spare->next;

        request_free(comm->spare);
        comm->spare = next;
    }
}

bool invar_comm_recover(invar_comm *comm)
{
    invar_world *world = comm->world;

    if (world->failure.native != ECANCELED || comm->context != INVAR_COMM_CONTEXT_FIRST)
        return false;
    INVAR_CHECK(!world->active); // every request must have been waited for
    drop_spare(comm);            // a transport may have kept their messages
    world->recovered_failure = world->failure;
    world->failure = (invar_comm_failure){0};
    comm->context = INVAR_COMM_CONTEXT_REVIVED; // messages of interrupted calls no longer match
    for (int i = 0; i < comm->size; i++)
        comm->posted[i] = comm->awaited[i] = 0;
    if (world->transport)
        world->transport->recover(world->self);
    return true;
}

void invar_comm_free(invar_comm *comm)
{
    invar_world *world;

    if (!comm)
        return;
    world = comm->world;
    INVAR_CHECK(!comm->n_active); // every request must have been waited for
    drop_spare(comm);
    if (comm->device_transport)
        comm->device_transport->close(comm->device_transport_state);
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
