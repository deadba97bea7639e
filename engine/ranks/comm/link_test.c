/*
 * link_test.c - makes transfers with known bytes, checks and times them.
 *
 * Every byte is a function of its sender, receiver and position, so bytes of another rank or of
 * another position are detected, and so are missing ones. Pieces of different sizes come first,
 * some of them empty, then timed calls with equal pieces.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/link_test.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/ranks/comm/comm_internal.h"

#include "base/invar_banned.h"

#define PHASE "trial"
#define MIN_SECONDS 0.05 /* shortest time of a series of calls, in seconds */
#define MAX_CALLS 4096   /* largest number of calls in a series */
#define UNEVEN 0         /* marks a call with different sizes */

typedef struct test_state {
    invar_comm *comm;
    int rank, size;
    double seconds;
    invar_comm *far;               /* device communicator to test; NULL to test `comm` */
    const invar_device *dev;       /* device of `far` */
    unsigned char *device_buffers; /* (2, room) device memory: sent and received bytes */
    size_t room;                   /* bytes of each buffer */
    unsigned char *in, *out;       /* (room) host memory */
    size_t *in_bytes, *out_bytes;  /* (size) bytes per rank */
    invar_link_test *report;
} test_state;

typedef struct test_call {
    invar_comm_op op;
    size_t bytes; /* bytes that a rank sends in total, or UNEVEN */
} test_call;

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Returns the size of the piece from one rank to another. Gathered pieces go to all ranks. */
static size_t piece_of(const test_call *c, int from, int to, int size)
{
    if (c->bytes == UNEVEN)
        return (size_t)((from + 2 * to + 1) % 5) * 1021;
    return c->op == INVAR_COMM_ALLTOALLV ? c->bytes / (size_t)size : c->bytes;
}

static unsigned char byte_of(int from, int to, size_t at)
{
    uint32_t x =
        (uint32_t)at * 2654435761u + (uint32_t)from * 2246822519u + (uint32_t)to * 3266489917u;

    return (unsigned char)((x ^ x >> 15) * 668265263u >> 24);
}

static void write_piece(unsigned char *out, int from, int to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        out[i] = byte_of(from, to, i);
}

static void check_piece(test_state *s, const test_call *c, const unsigned char *got, int from,
                        int to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (got[i] == byte_of(from, to, i))
            continue;
        if (s->report->wrong++ == 0) {
            s->report->op = c->op;
            s->report->src_rank = from;
        }
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int next_of(const test_state *s, int by)
{
    return (s->rank + by + s->size) % s->size;
}

/* Fills `in` and describes the transfer. */
static invar_comm_transfer make_move(test_state *s, const test_call *c)
{
    invar_comm_transfer transfer = {.op = c->op,
                                    .phase = PHASE,
                                    .timeout_s = s->seconds,
                                    .in = s->in,
                                    .out = s->out,
                                    .in_bytes = s->in_bytes,
                                    .out_bytes = s->out_bytes,
                                    .dst_rank = next_of(s, 1),
                                    .src_rank = next_of(s, -1),
                                    .to_bytes = c->bytes,
                                    .from_bytes = c->bytes};
    size_t at = 0;

    for (int r = 0; r < s->size; r++) {
        s->in_bytes[r] = piece_of(c, s->rank, r, s->size);
        s->out_bytes[r] = piece_of(c, r, c->op == INVAR_COMM_ALLTOALLV ? s->rank : 0, s->size);
    }
    memset(s->out, 0, s->room);
    if (c->op == INVAR_COMM_ALLTOALLV)
        for (int r = 0; r < s->size; at += s->in_bytes[r++])
            write_piece(s->in + at, s->rank, r, s->in_bytes[r]);
    else if (c->op == INVAR_COMM_ALLGATHERV)
        write_piece(s->in, s->rank, 0, s->out_bytes[s->rank]);
    else if (c->op == INVAR_COMM_SENDRECV)
        write_piece(s->in, s->rank, transfer.dst_rank, c->bytes);
    return transfer;
}

/* Like make_move, with the bytes in the memory that is tested. */
static invar_status prepare_transfer(invar_comm_transfer *out, test_state *s, const test_call *c)
{
    *out = make_move(s, c);
    if (!s->far)
        return INVAR_OK;
    out->in = s->device_buffers;
    out->out = s->device_buffers + s->room;
    INVAR_TRY(invar_device_upload(s->dev, s->device_buffers, s->in, s->room));
    INVAR_TRY(invar_device_upload(s->dev, s->device_buffers + s->room, s->out, s->room));
    return invar_device_synchronize(s->dev);
}

static invar_status run_transfer(test_state *s, const invar_comm_transfer *transfer)
{
    return invar_comm_run(s->far ? s->far : s->comm, transfer);
}

static invar_status check_received(test_state *s, const test_call *c)
{
    int to = c->op == INVAR_COMM_ALLTOALLV ? s->rank : 0;
    size_t at = 0;

    if (s->far)
        INVAR_TRY(invar_device_download(s->dev, s->out, s->device_buffers + s->room, s->room));
    if (c->op == INVAR_COMM_SENDRECV)
        check_piece(s, c, s->out, next_of(s, -1), s->rank, c->bytes);
    else if (c->op != INVAR_COMM_BARRIER)
        for (int r = 0; r < s->size; at += s->out_bytes[r++])
            check_piece(s, c, s->out + at, r, to, s->out_bytes[r]);
    return INVAR_OK;
}

/* Doubles the number of calls until a series takes long enough by the clock of rank 0. */
static invar_status time_calls(double *out, test_state *s, const invar_comm_transfer *transfer)
{
    double begin, taken = 0.0;
    int64_t count = 1;

    for (;; count *= 2) {
        begin = invar_comm_clock();
        for (int64_t i = 0; i < count; i++)
            INVAR_TRY(run_transfer(s, transfer));
        taken = invar_comm_clock() - begin;
        INVAR_TRY(invar_comm_run(s->comm, &(invar_comm_transfer){.op = INVAR_COMM_BROADCAST,
                                                                 .phase = PHASE " time",
                                                                 .timeout_s = s->seconds,
                                                                 .in = &taken,
                                                                 .out = &taken,
                                                                 .from_bytes = sizeof taken}));
        if (taken >= MIN_SECONDS || count >= MAX_CALLS)
            break;
    }
    *out = taken / (double)count;
    return INVAR_OK;
}

static invar_status run_calls(test_state *s)
{
    static const test_call uneven[] = {{INVAR_COMM_ALLGATHERV, UNEVEN},
                                       {INVAR_COMM_ALLTOALLV, UNEVEN}};
    static const test_call timed[INVAR_COMM_RATES] = {
        {INVAR_COMM_BARRIER, 1},          {INVAR_COMM_SENDRECV, 64 << 10},
        {INVAR_COMM_SENDRECV, 1 << 20},   {INVAR_COMM_SENDRECV, 16 << 20},
        {INVAR_COMM_ALLTOALLV, 64 << 10}, {INVAR_COMM_ALLTOALLV, 1 << 20},
        {INVAR_COMM_ALLTOALLV, 16 << 20},
    };

    for (size_t i = 0; i < sizeof uneven / sizeof *uneven; i++) {
        invar_comm_transfer move;

        INVAR_TRY(prepare_transfer(&move, s, &uneven[i]));
        INVAR_TRY(run_transfer(s, &move));
        INVAR_TRY(check_received(s, &uneven[i]));
    }
    for (int i = 0; i < INVAR_COMM_RATES; i++) {
        invar_link_rate *rate = &s->report->rates[i];
        invar_comm_transfer move;
        uint64_t sent, received;

        INVAR_TRY(prepare_transfer(&move, s, &timed[i]));
        INVAR_TRY(invar_comm_transfer_bytes(&sent, &received, &move, s->rank, s->size));
        rate->op = timed[i].op;
        rate->bytes = (size_t)sent;
        INVAR_TRY(time_calls(&rate->seconds, s, &move));
        INVAR_TRY(check_received(s, &timed[i]));
    }
    return INVAR_OK;
}

invar_status invar_link_test_run(invar_link_test *out, invar_comm *comm, double seconds)
{
    return invar_link_test_run_device(out, comm, NULL, NULL, seconds);
}

invar_status invar_link_test_run_device(invar_link_test *out, invar_comm *comm,
                                        invar_comm *device_comm, const invar_device *dev,
                                        double seconds)
{
    test_state s = {.comm = comm,
                    .rank = invar_comm_rank(comm),
                    .size = invar_comm_size(comm),
                    .seconds = seconds,
                    .far = device_comm,
                    .dev = dev,
                    .report = out};
    size_t uneven = (size_t)s.size * 4 * 1021;
    void *device_buffers = NULL;
    invar_status status = INVAR_OK;

    *out = (invar_link_test){.wrong = 0};
    s.room = uneven > (size_t)16 << 20 ? uneven : (size_t)16 << 20;
    if (device_comm)
        status = invar_device_alloc(dev, &device_buffers, 2 * s.room, "bytes between GPUs");
    s.device_buffers = device_buffers;
    if (status == INVAR_OK)
        status = INVAR_ALLOC(s.in, s.room, "bytes to send");
    if (status == INVAR_OK)
        status = INVAR_ALLOC(s.out, s.room, "bytes to receive");
    if (status == INVAR_OK)
        status = INVAR_ALLOC(s.in_bytes, (size_t)s.size, "pieces");
    if (status == INVAR_OK)
        status = INVAR_ALLOC(s.out_bytes, (size_t)s.size, "pieces");
    if (status == INVAR_OK)
        status = run_calls(&s);
    invar_free(s.out_bytes);
    invar_free(s.in_bytes);
    invar_free(s.out);
    invar_free(s.in);
    if (device_buffers)
        invar_device_free(dev, device_buffers);
    return status;
}
