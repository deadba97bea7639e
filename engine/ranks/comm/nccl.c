/*
 * nccl.c - groups whose transfers take GPU memory: a device transport on NCCL.
 *
 * Such a group is a host group with a device transport (comm_internal.h). Headers travel by the
 * host's transport, which finds and names ranks that are late, out of step or gone; NCCL then moves
 * the bytes of calls in which all ranks agree. It is polled: a failure of another rank or the
 * timeout ends a wait, and a group that has failed is aborted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <fenv.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/process/module.h"
#include "base/text.h"
#include "engine/ranks/comm/comm.h"
#include "engine/ranks/comm/comm_internal.h"
#include "engine/ranks/comm/module/nccl_module.h"

#include "base/invar_banned.h"

#define SPIN 0.02 /* seconds of busy waiting before a wait sleeps */

#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name

#define START "start of NCCL" /* phase */

typedef struct nccl_rank {
    const invar_nccl_table *nccl;
    invar_comm *comm;
    int ordinal;
    invar_nccl_group group; /* state of the module */
    invar_nccl_p2p *pieces; /* (2 * size) pieces of one transfer */
} nccl_rank;

/* ---- wait ------------------------------------------------------------------------------------ */

/* Fails the world because an NCCL call failed. */
static invar_status fail_nccl(const nccl_rank *me, const char *phase, int code)
{
    invar_world *world = me->comm->world;
    char why[INVAR_TEXT_QUOTE_SIZE * 4], text[512];

    me->nccl->explain(text, sizeof text, code);
    invar_text_quote(why, sizeof why, text, strlen(text));
    return invar_world_fail(world, world->rank, ECONNABORTED,
                            "rank %d on %s cannot move the memory of its GPU in phase \"%s\": %s; "
                            "look at its host and at the network, or choose distributed-backend = "
                            "host, then start the run again to resume it",
                            world->rank, world->hosts[world->rank], phase, why);
}

static void pause_since(double from)
{
    struct timespec pause = {0, 50000};

    if (invar_comm_clock() - from < SPIN)
        sched_yield();
    else
        nanosleep(&pause, NULL);
}

/* Polls until the operation that was begun is done. */
static invar_status wait_pending(nccl_rank *me, const invar_comm_request *call)
{
    invar_world *world = me->comm->world;
    double from = invar_comm_clock();
    int done = 0, code;

    for (;;) {
        code = me->nccl->test(&done, &me->group);
        if (code)
            return fail_nccl(me, call->phase, code);
        if (done)
            return INVAR_OK;
        if (world->transport)
            INVAR_TRY(world->transport->poll_failure(world->self));
        if (call->seconds > 0 && invar_comm_clock() - from > call->seconds)
            return invar_world_fail_device_timeout(world, call);
        pause_since(from);
    }
}

/* ---- transfers ------------------------------------------------------------------------------- */

/* Lists all pieces of a call, from and to this rank. Empty pieces are left out on both sides. */
static int list_pieces(const nccl_rank *me, const invar_comm_request *request)
{
    int count = 0;

    for (int i = 0; i < request->count; i++) {
        const invar_message *m = &request->messages[i];

        if (m->bytes > 0)
            me->pieces[count++] = (invar_nccl_p2p){.peer = m->member,
                                                   .from = m->incoming ? NULL : m->data,
                                                   .to = m->incoming ? m->data : NULL,
                                                   .bytes = m->bytes};
    }
    if (request->self_copies.to) {
        me->pieces[count++] = (invar_nccl_p2p){.peer = me->comm->rank,
                                               .from = request->self_copies.from,
                                               .bytes = request->self_copies.bytes};
        me->pieces[count++] = (invar_nccl_p2p){.peer = me->comm->rank,
                                               .to = request->self_copies.to,
                                               .bytes = request->self_copies.bytes};
    }
    return count;
}

/*
 * Returns true for a gather in which all ranks send the same number of bytes; all ranks see the
 * same sizes.
 */
static bool is_even(const invar_comm_request *request)
{
    for (int i = 0; i < request->count; i++)
        if (request->messages[i].bytes != request->self_copies.bytes)
            return false;
    return request->op == INVAR_COMM_ALLGATHERV;
}

/* Address of the piece of rank 0 in the output of a gather. */
static char *gather_base(const nccl_rank *me, const invar_comm_request *request)
{
    size_t before = (size_t)me->comm->rank * request->self_copies.bytes;

    // a piece that needs no copy is at its place already
    return (char *)(request->self_copies.to ? request->self_copies.to : request->self_copies.from) -
           before;
}

static int begin_broadcast(nccl_rank *me, const invar_comm_request *request)
{
    const invar_comm_self_copy *own = &request->self_copies;
    const invar_message *m = request->messages;

    if (request->count > 0 && m->incoming)
        return m->bytes ? me->nccl->broadcast(&me->group, m->data, m->data, m->bytes, m->member)
                        : 0;
    if (own->bytes == 0)
        return 0;
    return me->nccl->broadcast(&me->group, own->from, own->to ? own->to : (char *)own->from,
                               own->bytes, me->comm->rank);
}

static int begin_transfer(nccl_rank *me, const invar_comm_request *request)
{
    const invar_comm_self_copy *own = &request->self_copies;
    int count;

    if (request->op == INVAR_COMM_BROADCAST)
        return begin_broadcast(me, request);
    if (is_even(request))
        return own->bytes
                   ? me->nccl->gather(&me->group, own->from, gather_base(me, request), own->bytes)
                   : 0;
    count = list_pieces(me, request);
    return count ? me->nccl->exchange(&me->group, me->pieces, count) : 0;
}

static invar_status move_bytes(void *self, const invar_comm_request *request)
{
    nccl_rank *me = self;
    const invar_world *world = me->comm->world;
    int code;

    if (world->failure.native)
        return invar_world_accept_failure(me->comm->world, &world->failure);
    code = begin_transfer(me, request);
    return code ? fail_nccl(me, request->phase, code) : wait_pending(me, request);
}

/* ---- open and close -------------------------------------------------------------------------- */

static void close_group(void *self)
{
    nccl_rank *me = self;

    if (!me)
        return;
    me->nccl->close(&me->group, me->comm->world->failure.native != 0);
    invar_free(me->pieces);
    invar_free(me);
}

/* Broadcasts the id of the new NCCL group, which rank 0 makes. */
static invar_status share_id(char out[INVAR_NCCL_ID_BYTES], const nccl_rank *me, double seconds)
{
    invar_comm_transfer transfer = {.op = INVAR_COMM_BROADCAST,
                                    .phase = START,
                                    .timeout_s = seconds,
                                    .in = out,
                                    .out = out,
                                    .from_bytes = INVAR_NCCL_ID_BYTES};
    int code = me->comm->rank == 0 ? me->nccl->make_id(out) : 0;

    if (code)
        return fail_nccl(me, START, code);
    INVAR_TRY(invar_comm_transfer_now(me->comm, &transfer));
    // a rank without memory fails before this barrier: from here on NCCL waits for all ranks
    transfer =
        (invar_comm_transfer){.op = INVAR_COMM_BARRIER, .phase = START, .timeout_s = seconds};
    return invar_comm_transfer_now(me->comm, &transfer);
}

static invar_status connect_ranks(nccl_rank *me, double seconds)
{
    invar_comm_request call = {.op = INVAR_COMM_SPLIT, .phase = START, .seconds = seconds};
    char id[INVAR_NCCL_ID_BYTES] = {0};
    fenv_t rounding;
    int code;

    INVAR_TRY(share_id(id, me, seconds));
    fegetenv(&rounding); // NCCL loads libraries, which may change the rounding mode
    code = me->nccl->open(&me->group, id, me->comm->rank, me->comm->size, me->ordinal);
    fesetenv(&rounding);
    return code ? fail_nccl(me, START, code) : wait_pending(me, &call);
}

/* Gives `comm` a device transport with the module and GPU of `like`, which may have no group. */
static invar_status join_group(void *like, invar_comm *comm, double seconds)
{
    static const invar_device_transport carrier = {move_bytes, join_group, close_group};
    nccl_rank *me;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(me, 1, "a rank of NCCL"));
    *me = *(const nccl_rank *)like;
    me->comm = comm;
    memset(&me->group, 0, sizeof me->group);
    status = INVAR_ALLOC(me->pieces, 2 * (size_t)comm->size, "pieces of a move");
    if (status == INVAR_OK)
        status = connect_ranks(me, seconds);
    if (status != INVAR_OK) {
        close_group(me);
        return status;
    }
    memset(comm->counts, 0, sizeof comm->counts);
    comm->device_transport = &carrier;
    comm->device_transport_state = me;
    return INVAR_OK;
}

static invar_status load_module(const invar_nccl_table **out, const char *wanted)
{
    const char *file = wanted ? wanted : INVAR_MODULE_NCCL;
    const void *symbol;

    INVAR_TRY(invar_error_advise(invar_module_load(&symbol, file, TEXT(INVAR_NCCL_TABLE), false),
                                 INVAR_E_UNSUPPORTED, "or choose distributed-backend = host"));
    *out = symbol;
    if ((*out)->abi != INVAR_NCCL_ABI)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%.1000s has version %u of the interface, this program %d: build both "
                          "together",
                          file, (*out)->abi, INVAR_NCCL_ABI);
    return INVAR_OK;
}

invar_status invar_comm_nccl_version(int *out, const char *module)
{
    const invar_nccl_table *nccl;
    char why[512];
    int code;

    *out = 0;
    INVAR_TRY(load_module(&nccl, module));
    code = nccl->version(out);
    if (code) {
        nccl->explain(why, sizeof why, code);
        return INVAR_FAIL(INVAR_E_NCCL, code, "NCCL does not say its version: %s", why);
    }
    return INVAR_OK;
}

invar_status invar_comm_nccl(invar_comm **out, invar_comm *host,
                             const invar_comm_nccl_options *options)
{
    nccl_rank like = {.ordinal = options->ordinal};
    invar_comm *comm = NULL;
    invar_status status;

    *out = NULL;
    INVAR_CHECK(!host->device_transport);
    INVAR_TRY(load_module(&like.nccl, options->module));
    INVAR_TRY(invar_comm_split(&comm, host, 0, invar_comm_rank(host), START, options->seconds));
    status = join_group(&like, comm, options->seconds);
    if (status == INVAR_OK)
        *out = comm;
    else
        invar_comm_free(comm);
    return status;
}
