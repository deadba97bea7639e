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

static bool is_gather(const invar_comm_transfer *transfer)
{
    return transfer->op == INVAR_COMM_ALLGATHERV || transfer->op == INVAR_COMM_SPLIT;
}

static transfer_piece sent_piece(const invar_comm_transfer *transfer, int rank, int peer)
{
    switch (transfer->op) {
    case INVAR_COMM_ALLTOALLV:
        return (transfer_piece){.exists = true, .bytes = transfer->in_bytes[peer]};
    case INVAR_COMM_SENDRECV:
        return (transfer_piece){.exists = peer == transfer->dst_rank,
                                .bytes = peer == transfer->dst_rank ? transfer->to_bytes : 0};
    case INVAR_COMM_BROADCAST:
        return (transfer_piece){.exists = rank == transfer->src_rank,
                                .bytes = rank == transfer->src_rank ? transfer->from_bytes : 0};
    case INVAR_COMM_BARRIER: return (transfer_piece){.exists = true};
    default: return (transfer_piece){.exists = true, .bytes = transfer->out_bytes[rank]};
    }
}

static transfer_piece received_piece(const invar_comm_transfer *transfer, int peer)
{
    switch (transfer->op) {
    case INVAR_COMM_SENDRECV:
    case INVAR_COMM_BROADCAST:
        return (transfer_piece){.exists = peer == transfer->src_rank,
                                .bytes = peer == transfer->src_rank ? transfer->from_bytes : 0};
    case INVAR_COMM_BARRIER: return (transfer_piece){.exists = true};
    default: return (transfer_piece){.exists = true, .bytes = transfer->out_bytes[peer]};
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

static piece_iterator iterate_pieces(const invar_comm_transfer *transfer, int rank, int size)
{
    return (piece_iterator){.move = transfer, .rank = rank, .size = size, .peer = -1};
}

/* ---- checks of arguments --------------------------------------------------------------------- */

static invar_status fail_transfer(const invar_comm_transfer *transfer, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s in phase \"%s\": %s",
                      invar_comm_op_name(transfer->op), transfer->phase, why);
}

static invar_status check_ends(const invar_comm_transfer *transfer, int rank, int size)
{
    bool pair = transfer->op == INVAR_COMM_SENDRECV;

    if (pair && (transfer->dst_rank < INVAR_COMM_NONE || transfer->dst_rank >= size ||
                 transfer->src_rank < INVAR_COMM_NONE || transfer->src_rank >= size))
        return fail_transfer(transfer, "there is no such rank");
    if (transfer->op == INVAR_COMM_BROADCAST &&
        (transfer->src_rank < 0 || transfer->src_rank >= size))
        return fail_transfer(transfer, "there is no such rank");
    if (pair && (transfer->dst_rank == rank) != (transfer->src_rank == rank))
        return fail_transfer(transfer, "a rank that sends to itself receives from itself");
    if (pair && transfer->dst_rank == rank && transfer->to_bytes != transfer->from_bytes)
        return fail_transfer(transfer,
                             "a rank sends itself another number of bytes than it expects");
    return INVAR_OK;
}

static invar_status check_sums(const invar_comm_transfer *transfer, int rank, int size)
{
    piece_iterator w = iterate_pieces(transfer, rank, size);

    while (next_piece(&w)) {
        if (w.in.offset > SIZE_MAX - w.in.bytes || w.out.offset > SIZE_MAX - w.out.bytes)
            return fail_transfer(transfer, "the sum of bytes is more than memory has");
        if (w.peer == rank && transfer->op == INVAR_COMM_ALLTOALLV && w.in.bytes != w.out.bytes)
            return fail_transfer(transfer,
                                 "a rank gives itself another number of bytes than it expects");
    }
    return INVAR_OK;
}

static invar_status check_move(const invar_comm_transfer *transfer, int rank, int size)
{
    if ((unsigned)transfer->op >= INVAR_COMM_OPS || !transfer->phase || !transfer->phase[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a call between ranks has no op or no phase");
    if (!(transfer->timeout_s >= 0 && transfer->timeout_s <= 1e9))
        return fail_transfer(transfer, "a deadline is 0 or a number of seconds");
    if ((transfer->op == INVAR_COMM_ALLTOALLV && !transfer->in_bytes) ||
        ((transfer->op == INVAR_COMM_ALLTOALLV || is_gather(transfer)) && !transfer->out_bytes))
        return fail_transfer(transfer, "the numbers of bytes are missing");
    INVAR_TRY(check_ends(transfer, rank, size));
    return check_sums(transfer, rank, size);
}

/* Like check_move, for a transfer that is made: its bytes need memory. */
static invar_status check_call(const invar_comm_transfer *transfer, int rank, int size)
{
    bool gives = false, gets = false;
    piece_iterator w;

    INVAR_TRY(check_move(transfer, rank, size));
    w = iterate_pieces(transfer, rank, size);
    while (next_piece(&w)) {
        gives |= w.in.bytes > 0;
        // the root of a broadcast needs no `out`
        gets |=
            w.out.bytes > 0 && (transfer->op != INVAR_COMM_BROADCAST || rank != transfer->src_rank);
    }
    if ((gives && !transfer->in) || (gets && !transfer->out))
        return fail_transfer(transfer, "there are bytes, but no memory");
    return INVAR_OK;
}

static invar_comm_self_copy self_copy_of(const invar_comm_transfer *transfer, int rank, int size)
{
    piece_iterator w = iterate_pieces(transfer, rank, size);
    invar_comm_self_copy own = {.to = NULL};

    while (next_piece(&w) && w.peer < rank)
        continue;
    if (!w.in.exists || w.in.bytes == 0)
        return own;
    own.from = (const char *)transfer->in + w.in.offset;
    own.bytes = w.in.bytes;
    if (w.out.exists && transfer->out && (char *)transfer->out + w.out.offset != own.from)
        own.to = (char *)transfer->out + w.out.offset;
    return own;
}

static void copy_self(const invar_comm *comm, const invar_comm_transfer *transfer)
{
    invar_comm_self_copy own = self_copy_of(transfer, comm->rank, comm->size);

    if (own.to && !comm->world->simulated)
        memcpy(own.to, own.from, own.bytes);
}

static void count_bytes(uint64_t *sent, uint64_t *received, const invar_comm_transfer *transfer,
                        int rank, int size)
{
    piece_iterator w = iterate_pieces(transfer, rank, size);

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

static void request_release(invar_comm_request **request)
{
    if (!*request)
        return;
    invar_free((*request)->messages);
    invar_free((*request)->requests);
    invar_free(*request);
}

static invar_status acquire_request(invar_comm_request **out, invar_comm *comm)
{
    INVAR_AUTO(request_release) invar_comm_request *request = comm->spare;

    if (request) {
        comm->spare = request->next;
    } else {
        INVAR_TRY(INVAR_ALLOC_ZEROED(request, 1, "a call between ranks"));
        INVAR_TRY(INVAR_ALLOC(request->messages, 2 * (size_t)comm->size,
                              "the messages of a call between ranks"));
    }
    request->comm = comm;
    *out = request;
    request = NULL;
    return INVAR_OK;
}

static void release_request(invar_comm_request *request)
{
    request->next = request->comm->spare;
    request->comm->spare = request;
}

static void add_message(invar_comm_request *request, int peer, bool incoming, char *data,
                        size_t bytes)
{
    invar_comm *comm = request->comm;
    invar_message *message = &request->messages[request->count++];

    *message = (invar_message){.peer = comm->members[peer],
                               .member = peer,
                               .incoming = incoming,
                               .context = comm->context,
                               .number = (incoming ? comm->awaited : comm->posted)[peer]++,
                               .data = data,
                               .bytes = bytes,
                               .by_device = request->device_pending};
    if (incoming)
        return;
    message->header.op = request->op;
    message->header.bytes = bytes;
    memcpy(message->header.phase, request->phase, sizeof request->phase);
}

/* Adds the messages with the ranks [low, high). */
static void add_messages(invar_comm_request *request, const invar_comm_transfer *transfer, int low,
                         int high)
{
    piece_iterator w = iterate_pieces(transfer, request->comm->rank, request->comm->size);

    while (!request->comm->world->simulated && next_piece(&w)) {
        if (w.peer < low || w.peer >= high)
            continue;
        // `in` is only read: a message has one field for both directions
        if (w.in.exists)
            add_message(request, w.peer, false, (char *)transfer->in + w.in.offset, w.in.bytes);
        if (w.out.exists)
            add_message(request, w.peer, true, (char *)transfer->out + w.out.offset, w.out.bytes);
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
static void queue_device_request(invar_comm_request *request, const invar_comm_transfer *transfer)
{
    invar_comm *comm = request->comm;
    invar_comm_request **link = &comm->device_queue;

    request->self_copies = self_copy_of(transfer, comm->rank, comm->size);
    request->next_device = NULL;
    while (*link)
        link = &(*link)->next_device;
    *link = request;
}

static void dequeue_device_request(invar_comm_request *request)
{
    invar_comm_request **link = &request->comm->device_queue;

    while (*link != request)
        link = &(*link)->next_device;
    *link = request->next_device;
    request->device_pending = false;
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
static void finish_call(const invar_comm_request *request, double from)
{
    invar_world *world = request->comm->world;
    double now = invar_comm_clock(), waited = now - from;

    if (request->seconds > 0)
        send_heartbeat(world, now, request->seconds);
    count_call(request->comm, request->op, request->sent, request->received, waited);
    if (world->done)
        world->done(world->payload, &(invar_comm_event){request->op, request->phase, request->sent,
                                                        request->received, waited});
}

static invar_status begin_request(invar_comm_request **out, invar_comm *comm,
                                  const invar_comm_transfer *transfer)
{
    invar_world *world = comm->world;
    invar_comm_request *request;
    invar_status status = INVAR_OK;

    *out = NULL;
    INVAR_TRY(check_call(transfer, comm->rank, comm->size));
    if (world->failure.native)
        return invar_world_accept_failure(world, &world->failure);
    INVAR_TRY(acquire_request(&request, comm));
    request->op = transfer->op;
    request->seconds = transfer->timeout_s;
    request->count = 0;
    request->host_done = false;
    request->device_pending =
        comm->device_transport && transfer->op != INVAR_COMM_SPLIT; // a split gathers host memory
    memset(request->phase, 0, sizeof request->phase);
    (void)snprintf(request->phase, sizeof request->phase, "%s", transfer->phase);
    count_bytes(&request->sent, &request->received, transfer, comm->rank, comm->size);
    // each rank begins with the next one, so that not all begin with rank 0
    add_messages(request, transfer, comm->rank + 1, comm->size);
    add_messages(request, transfer, 0, comm->rank);
    if (request->count)
        status = world->transport->start(world->self, request);
    if (status != INVAR_OK) {
        release_request(request);
        return status;
    }
    if (request->device_pending)
        queue_device_request(request, transfer);
    else
        copy_self(comm, transfer);
    request->next = world->active;
    world->active = request;
    comm->n_active++;
    *out = request;
    return INVAR_OK;
}

/* Waits for the messages of a request; at most once. */
static invar_status wait_for_transport(invar_comm_request *request)
{
    invar_world *world = request->comm->world;

    if (request->host_done || !request->count)
        return INVAR_OK;
    request->host_done = true;
    return world->transport->wait(world->self, request);
}

/*
 * Moves the bytes of queued requests up to this one, oldest first. All ranks use this order,
 * whatever request they wait for first.
 */
static invar_status move_device_bytes(invar_comm_request *request)
{
    invar_comm *comm = request->comm;
    invar_status status = INVAR_OK;

    while (status == INVAR_OK && request->device_pending) {
        invar_comm_request *oldest = comm->device_queue;

        status = wait_for_transport(oldest);
        if (status == INVAR_OK)
            status = comm->device_transport->move(comm->device_transport_state, oldest);
        if (status == INVAR_OK)
            dequeue_device_request(oldest);
    }
    if (status == INVAR_OK)
        return INVAR_OK;
    dequeue_device_request(request);
    if (wait_for_transport(request) != INVAR_OK) // ends the messages in flight
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
    invar_comm_request *request;

    if (comm->size == 1 && !comm->device_transport) { // fast path: no request, no clock
        INVAR_TRY(check_call(transfer, 0, 1));
        if (comm->world->failure.native)
            return invar_world_accept_failure(comm->world, &comm->world->failure);
        copy_self(comm, transfer);
        count_call(comm, transfer->op, 0, 0, 0);
        return INVAR_OK;
    }
    INVAR_TRY(begin_request(&request, comm, transfer));
    return invar_comm_wait(request);
}

static invar_status reject_split(const invar_comm_transfer *transfer)
{
    if (transfer->op == INVAR_COMM_SPLIT)
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
    INVAR_TRY(INVAR_ALLOC_ZEROED(comm, 1, "a group of ranks"));
    status = INVAR_ALLOC_SIZED(comm->posted, (size_t)size, each, "the ranks of a group");
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
        INVAR_AUTO(request_release) invar_comm_request *first = comm->spare;
        comm->spare = first->next;
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
