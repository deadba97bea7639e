/*
 * comm_failure.c - creates the group of all ranks, and makes its ranks fail together.
 *
 * The first failure of a world is the only one: the rank that finds it reports it to the others,
 * and failures that ranks find later, because another rank stopped, are not reported. A world that
 * is recovered after an abort may fail once more; the user is shown the first failure. Exception: a
 * rank that is reported late may be waiting itself; its own report then replaces the first one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/comm_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/process/process.h"

#include "base/invar_banned.h"

double invar_comm_clock(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

invar_status invar_world_new(invar_comm **out, int rank, int size)
{
    invar_world *world;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(world, 1, "a rank's world"));
    world->rank = rank;
    world->size = size;
    world->next_context = INVAR_COMM_CONTEXT_FREE;
    status = INVAR_ALLOC(world->hosts, (size_t)size, "the names of hosts");
    if (status == INVAR_OK)
        status = invar_comm_new(out, world, size);
    if (status != INVAR_OK) {
        invar_free(world->hosts);
        invar_free(world);
        return status;
    }
    memset(world->hosts, 0, (size_t)size * sizeof *world->hosts);
    for (int i = 0; i < size; i++) {
        (*out)->members[i] = i;
        if (i != rank || gethostname(world->hosts[i], INVAR_COMM_HOST_SIZE - 1) != 0)
            (void)snprintf(world->hosts[i], INVAR_COMM_HOST_SIZE, "an unknown host");
    }
    (*out)->rank = rank;
    (*out)->size = size;
    return INVAR_OK;
}

/* ---- failures -------------------------------------------------------------------------------- */

static invar_status return_failure(const invar_world *world)
{
    return INVAR_FAIL(world->failure.status, world->failure.native, "%s", world->failure.text);
}

static bool replaces_failure(const invar_comm_failure *later, const invar_comm_failure *first)
{
    return later->native == ETIMEDOUT && first->native == ETIMEDOUT &&
           (later->answers > first->answers || later->reporter == first->culprit);
}

invar_status invar_world_accept_failure(invar_world *world, const invar_comm_failure *failure)
{
    if (!world->failure.native || replaces_failure(failure, &world->failure))
        world->failure = *failure;
    return return_failure(world);
}

static invar_status publish_failure(invar_world *world, invar_comm_failure *failure)
{
    if (world->failure.native && !replaces_failure(failure, &world->failure))
        return return_failure(world);
    if (world->transport)
        world->transport->send_failure(world->self, failure);
    return invar_world_accept_failure(world, failure);
}

invar_status invar_world_fail(invar_world *world, int culprit, int native, const char *fmt, ...)
{
    invar_comm_failure failure = {
        .culprit = culprit, .native = native, .status = INVAR_E_IO, .reporter = world->rank};
    va_list list;

    va_start(list, fmt);
    (void)vsnprintf(failure.text, sizeof failure.text, fmt, list);
    va_end(list);
    return publish_failure(world, &failure);
}

invar_status invar_world_check(invar_world *world, const invar_comm_request *request,
                               const invar_message *message)
{
    const invar_comm_header *theirs = &message->header;
    bool known = theirs->op < INVAR_COMM_OPS && memchr(theirs->phase, 0, sizeof theirs->phase);

    if (known && theirs->op == request->op && theirs->bytes == message->bytes &&
        !strcmp(theirs->phase, request->phase))
        return INVAR_OK;
    return invar_world_fail(
        world, message->peer, EPROTO,
        "rank %d on %s is out of step with rank %d on %s: it calls %s in phase \"%s\" and sends "
        "%llu bytes, the other calls %s in phase \"%s\" and expects %zu; start all ranks with the "
        "same program, recipe and data",
        message->peer, world->hosts[message->peer], world->rank, world->hosts[world->rank],
        known ? invar_comm_op_name((invar_comm_op)theirs->op) : "something unknown",
        known ? theirs->phase : "", (unsigned long long)theirs->bytes,
        invar_comm_op_name(request->op), request->phase, message->bytes);
}

invar_status invar_world_fail_peer_exit(invar_world *world, const invar_comm_request *request,
                                        const invar_message *message)
{
    return invar_world_fail(world, message->peer, ECONNRESET,
                            "rank %d on %s has left the run in phase \"%s\", where rank %d waits "
                            "for it in %s; see what it printed, then start the run again to "
                            "resume it",
                            message->peer, world->hosts[message->peer], request->phase, world->rank,
                            invar_comm_op_name(request->op));
}

invar_status invar_world_fail_timeout(invar_world *world, const invar_comm_request *request,
                                      const invar_comm_failure *said)
{
    invar_comm_failure failure = {
        .native = ETIMEDOUT, .status = INVAR_E_IO, .reporter = world->rank};
    const invar_message *first = NULL;

    // a rank that has sent nothing is later than one that has not yet received our message
    for (int i = 0; i < request->count; i++) {
        const invar_message *m = &request->messages[i];

        if (m->state != INVAR_MESSAGE_DONE && (!first || (m->incoming && !first->incoming)))
            first = m;
    }
    failure.culprit = first->peer;
    failure.answers = said ? said->answers + 1 : 0;
    (void)snprintf(failure.text, sizeof failure.text,
                   "rank %d on %s did not come to %s in phase \"%s\": rank %d has waited %g s, in "
                   "which no rank got on; it hangs or is slow: look at its host, or raise "
                   "distributed-timeout-minutes, then start the run again to resume it",
                   first->peer, world->hosts[first->peer], invar_comm_op_name(request->op),
                   request->phase, world->rank, request->seconds);
    return publish_failure(world, &failure);
}

invar_status invar_world_fail_device_timeout(invar_world *world, const invar_comm_request *request)
{
    return invar_world_fail(world, -1, ETIMEDOUT,
                            "rank %d on %s has waited %g s for the bytes of %s in phase \"%s\", to "
                            "which all ranks came: one of them hangs since, or the network is "
                            "slow; look at their hosts, or raise distributed-timeout-minutes, then "
                            "start the run again to resume it",
                            world->rank, world->hosts[world->rank], request->seconds,
                            invar_comm_op_name(request->op), request->phase);
}

/*
 * Status of an abort for the other ranks. An own exit code is passed on; any other failure is
 * INVAR_E_IO for them.
 */
static invar_status status_of_others(const invar_error *own, const char *why)
{
    bool trouble = invar_process_exit_code(own->status) == invar_process_exit_code(INVAR_E_IO);

    return trouble || strcmp(own->message, why) != 0 ? INVAR_E_IO : own->status;
}

static void abort_world(invar_world *world, int native, const char *why)
{
    invar_error own = *invar_error_last(); // the caller has a failure of its own to return
    invar_comm_failure failure = {.culprit = world->rank,
                                  .native = native,
                                  .status = status_of_others(&own, why),
                                  .reporter = world->rank};

    (void)snprintf(failure.text, sizeof failure.text, "rank %d on %s cannot go on: %.800s",
                   world->rank, world->hosts[world->rank], why);
    if (publish_failure(world, &failure) != INVAR_OK)
        invar_error_put(&own);
}

void invar_comm_abort(invar_comm *comm, const char *why)
{
    abort_world(comm->world, ECONNABORTED, why);
}

void invar_comm_abort_recoverable(invar_comm *comm, const char *why)
{
    abort_world(comm->world, ECANCELED, why);
}

bool invar_world_failed(const invar_world *world)
{
    return world->failure.native || world->recovered_failure.native;
}

/*
 * Two ranks that are out of step may each find the other at the same time, and both can print: only
 * a rank that is gone is skipped.
 */
int invar_world_error_rank(const invar_world *world)
{
    const invar_comm_failure *f = &world->failure;
    bool gone =
        f->native && f->native != EPROTO && f->native != ECONNABORTED && f->native != ECANCELED;

    return gone && f->culprit == 0 && world->size > 1 ? 1 : 0;
}

bool invar_comm_reports_error(const invar_comm *comm)
{
    return comm->world->rank == invar_world_error_rank(comm->world);
}
