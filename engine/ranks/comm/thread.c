/*
 * thread.c - transport for ranks that are threads of this process.
 *
 * A sender posts messages (addresses only) into the inbox of each receiver. The receiver copies the
 * bytes from the sender's memory, without the lock, and signals the sender. When the world fails, a
 * sender withdraws the messages that are not being copied yet and waits for the others, so no
 * thread ever reads memory that its owner has released.
 *
 * One mutex guards inboxes, message states, failures and the heartbeat. It is recursive because
 * failures are reported with and without it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "engine/ranks/comm/comm.h"
#include "engine/ranks/comm/comm_internal.h"

#include "base/invar_banned.h"

typedef struct mailbox {
    pthread_cond_t wake;  /* signaled when something for this rank changes */
    invar_message *inbox; /* messages posted for this rank, unordered */
    bool left;
} mailbox;

typedef struct threads {
    pthread_mutex_t lock;           /* guards all fields below */
    invar_comm_failure failures[2]; /* failure of the world, and of the recovered world */
    double beat;                    /* time of the last heartbeat of any rank */
    int size, present;
    mailbox *boxes; /* (size) one per rank */
} threads;

typedef struct thread_rank {
    threads *all;
    invar_world *world;
    bool revived;
    uint64_t random; /* state of the adversarial scheduler; 0 if it is off */
} thread_rank;

static invar_comm_failure *failure_of(const thread_rank *me)
{
    return &me->all->failures[me->revived];
}

/* ---- adversarial scheduling ------------------------------------------------------------------ */

/* Returns a random number below `bound` > 0 (splitmix64). */
static uint64_t draw_random(thread_rank *me, uint64_t bound)
{
    uint64_t z = (me->random += 0x9E3779B97F4A7C15u);

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % bound;
}

static void random_delay(thread_rank *me)
{
    struct timespec pause = {0, 0};

    if (!me->random)
        return;
    switch (draw_random(me, 8)) {
    case 0: pause.tv_nsec = (long)draw_random(me, 300000); break;
    case 1:
    case 2: sched_yield(); return;
    default: return;
    }
    nanosleep(&pause, NULL);
}

/* Shuffles the messages, and fills the receive buffers with noise. */
static void scramble_messages(thread_rank *me, invar_comm_request *request)
{
    if (!me->random)
        return;
    for (int i = request->count - 1; i > 0; i--) {
        int j = (int)draw_random(me, (uint64_t)i + 1);
        invar_message m = request->messages[i];

        request->messages[i] = request->messages[j];
        request->messages[j] = m;
    }
    for (int i = 0; i < request->count; i++)
        if (request->messages[i].incoming && request->messages[i].bytes &&
            !request->messages[i].by_device)
            memset(request->messages[i].data, (int)draw_random(me, 256),
                   request->messages[i].bytes);
}

/* ---- messages -------------------------------------------------------------------------------- */

static invar_status post_messages(void *self, invar_comm_request *request)
{
    thread_rank *me = self;
    threads *all = me->all;

    scramble_messages(me, request);
    for (int i = 0; i < request->count; i++) {
        invar_message *m = &request->messages[i];
        mailbox *box = &all->boxes[m->peer];

        if (m->incoming)
            continue;
        random_delay(me);
        m->from = me->world->rank;
        pthread_mutex_lock(&all->lock);
        m->next = box->inbox;
        box->inbox = m;
        pthread_cond_signal(&box->wake);
        pthread_mutex_unlock(&all->lock);
    }
    return INVAR_OK;
}

/*
 * Returns the link to the posted message that matches an expected one; *link is NULL if it was not
 * posted.
 */
static invar_message **find_posted(threads *all, int rank, const invar_message *expected)
{
    invar_message **link = &all->boxes[rank].inbox;

    while (*link && ((*link)->from != expected->peer || (*link)->context != expected->context ||
                     (*link)->number != expected->number))
        link = &(*link)->next;
    return link;
}

static bool can_copy(const thread_rank *me, const invar_message *m)
{
    return m->incoming && m->state == INVAR_MESSAGE_POSTED &&
           *find_posted(me->all, me->world->rank, m);
}

/*
 * Chooses a message that can be copied now, at random if scheduling is adversarial; *of is its
 * request, NULL if no message can be copied. Considers all active requests, because another rank
 * may wait for them in another order.
 */
static invar_message *choose_message(const invar_comm_request **of, thread_rank *me)
{
    invar_message *chosen = NULL;
    uint64_t found = 0;

    *of = NULL;
    for (const invar_comm_request *t = me->world->active; t; t = t->next)
        for (int i = 0; i < t->count; i++) {
            if (!can_copy(me, &t->messages[i]) || (me->random && draw_random(me, ++found) != 0))
                continue;
            chosen = &t->messages[i];
            *of = t;
            if (!me->random)
                return chosen;
        }
    return chosen;
}

/* Copies a posted message. Caller holds the lock, which is released during the copy. */
static invar_status copy_message(thread_rank *me, const invar_comm_request *request,
                                 invar_message *expected)
{
    threads *all = me->all;
    invar_message **link = find_posted(all, me->world->rank, expected), *posted = *link;

    expected->header = posted->header;
    INVAR_TRY(invar_world_check(me->world, request, expected));
    *link = posted->next;
    posted->state = INVAR_MESSAGE_TAKEN;
    pthread_mutex_unlock(&all->lock);
    random_delay(me);
    if (expected->bytes && !expected->by_device)
        memcpy(expected->data, posted->data, expected->bytes);
    random_delay(me);
    pthread_mutex_lock(&all->lock);
    expected->state = INVAR_MESSAGE_DONE;
    posted->state = INVAR_MESSAGE_DONE; // the sender may reuse its memory from here on
    pthread_cond_signal(&all->boxes[expected->peer].wake);
    return INVAR_OK;
}

static bool all_done(const invar_comm_request *request)
{
    for (int i = 0; i < request->count; i++)
        if (request->messages[i].state != INVAR_MESSAGE_DONE)
            return false;
    return true;
}

/* Fails if no message can be copied now and a peer that this rank waits for has left. */
static invar_status expect_peers(const thread_rank *me, const invar_comm_request *request)
{
    for (int i = 0; i < request->count; i++) {
        const invar_message *m = &request->messages[i];
        bool awaited =
            m->incoming ? m->state == INVAR_MESSAGE_POSTED : m->state != INVAR_MESSAGE_DONE;

        if (awaited && me->all->boxes[m->peer].left)
            return invar_world_fail_peer_exit(me->world, request, m);
    }
    return INVAR_OK;
}

static struct timespec point_in_time(double seconds)
{
    double whole = floor(seconds);

    return (struct timespec){.tv_sec = (time_t)whole, .tv_nsec = (long)(1e9 * (seconds - whole))};
}

/*
 * Waits until something changes for this rank, or times out; the caller has waited since `since`.
 */
static invar_status wait_for_change(thread_rank *me, const invar_comm_request *request,
                                    double since)
{
    threads *all = me->all;
    pthread_cond_t *wake = &all->boxes[me->world->rank].wake;
    double from = all->beat > since ? all->beat : since;
    struct timespec end = point_in_time(from + request->seconds);
    const invar_comm_request *of;

    if (request->seconds == 0)
        pthread_cond_wait(wake, &all->lock);
    else if (pthread_cond_timedwait(wake, &all->lock, &end) == ETIMEDOUT &&
             !choose_message(&of, me) && !all_done(request) && !failure_of(me)->native &&
             all->beat <= from)
        return invar_world_fail_timeout(me->world, request, NULL);
    return INVAR_OK;
}

/* Ends the use of the request's messages by other threads. */
static void withdraw_messages(thread_rank *me, invar_comm_request *request)
{
    threads *all = me->all;

    for (int i = 0; i < request->count; i++) {
        invar_message *m = &request->messages[i], **link = &all->boxes[m->peer].inbox;

        if (m->incoming)
            continue;
        while (*link && *link != m)
            link = &(*link)->next;
        if (*link)
            *link = m->next;
        while (m->state == INVAR_MESSAGE_TAKEN)
            pthread_cond_wait(&all->boxes[me->world->rank].wake, &all->lock);
    }
}

static invar_status wait_for_request(void *self, invar_comm_request *request)
{
    thread_rank *me = self;
    threads *all = me->all;
    double since = invar_comm_clock();
    invar_status status = INVAR_OK;

    pthread_mutex_lock(&all->lock);
    while (status == INVAR_OK && !all_done(request)) {
        const invar_comm_request *of;
        invar_message *next = choose_message(&of, me);

        if (next) // messages that have arrived count, whatever their sender did later
            status = copy_message(me, of, next);
        else if (failure_of(me)->native)
            status = invar_world_accept_failure(me->world, failure_of(me));
        else if ((status = expect_peers(me, request)) == INVAR_OK)
            status = wait_for_change(me, request, since);
    }
    if (status != INVAR_OK)
        withdraw_messages(me, request);
    pthread_mutex_unlock(&all->lock);
    return status;
}

/* Records the heartbeat. Wakes no rank: a waiting rank reads it when its timeout expires. */
static void record_heartbeat(void *self)
{
    thread_rank *me = self;

    pthread_mutex_lock(&me->all->lock);
    me->all->beat = me->world->last_heartbeat;
    pthread_mutex_unlock(&me->all->lock);
}

static invar_status poll_failure(void *self)
{
    thread_rank *me = self;
    invar_status status = INVAR_OK;

    pthread_mutex_lock(&me->all->lock);
    if (failure_of(me)->native)
        status = invar_world_accept_failure(me->world, failure_of(me));
    pthread_mutex_unlock(&me->all->lock);
    return status;
}

/* ---- join and leave -------------------------------------------------------------------------- */

static void wake_all(threads *all)
{
    for (int i = 0; i < all->size; i++)
        pthread_cond_signal(&all->boxes[i].wake);
}

static void threads_free(threads *all)
{
    for (int i = 0; i < all->size; i++)
        pthread_cond_destroy(&all->boxes[i].wake);
    pthread_mutex_destroy(&all->lock);
    invar_free(all->boxes);
    invar_free(all);
}

static invar_status threads_new(threads **out, int size)
{
    pthread_mutexattr_t nested;
    pthread_condattr_t steady;
    threads *all;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_ZEROED(all, 1, "ranks that are threads"));
    status = INVAR_ALLOC(all->boxes, (size_t)size, "inboxes of ranks");
    if (status != INVAR_OK) {
        invar_free(all);
        return status;
    }
    memset(all->boxes, 0, (size_t)size * sizeof *all->boxes);
    all->size = size;
    pthread_mutexattr_init(&nested); // a failure is reported with and without the lock
    pthread_mutexattr_settype(&nested, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&all->lock, &nested);
    pthread_mutexattr_destroy(&nested);
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    for (int i = 0; i < size; i++)
        pthread_cond_init(&all->boxes[i].wake, &steady);
    pthread_condattr_destroy(&steady);
    *out = all;
    return INVAR_OK;
}

static void leave_world(void *self)
{
    thread_rank *me = self;
    threads *all = me->all;
    bool last;

    pthread_mutex_lock(&all->lock);
    all->boxes[me->world->rank].left = true;
    wake_all(all);
    last = --all->present == 0;
    pthread_mutex_unlock(&all->lock);
    if (last)
        threads_free(all);
    invar_free(me);
}

static void record_failure(void *self, invar_comm_failure *failure)
{
    thread_rank *me = self;
    threads *all = me->all;

    pthread_mutex_lock(&all->lock);
    if (failure_of(me)->native)
        *failure = *failure_of(me);
    else
        *failure_of(me) = *failure;
    wake_all(all);
    pthread_mutex_unlock(&all->lock);
}

static void switch_failure_slot(void *self)
{
    ((thread_rank *)self)->revived = true;
}

static invar_status join_rank(invar_comm **out, threads *all, int rank, uint64_t seed)
{
    static const invar_transport transport = {post_messages, wait_for_request, record_heartbeat,
                                              poll_failure,  record_failure,   switch_failure_slot,
                                              leave_world};
    invar_world *world;
    thread_rank *me;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(me, 1, "a rank that is a thread"));
    status = invar_world_new(out, rank, all->size);
    if (status != INVAR_OK) {
        invar_free(me);
        return status;
    }
    world = (*out)->world;
    for (int i = 0; i < all->size; i++)
        memcpy(world->hosts[i], world->hosts[rank], sizeof world->hosts[i]);
    *me = (thread_rank){.all = all,
                        .world = world,
                        .random = seed ? seed * 0xD1342543DE82EF95u + (uint64_t)rank + 1 : 0};
    world->self = me;
    world->transport = &transport;
    all->present++;
    return INVAR_OK;
}

invar_status invar_comm_threads(invar_comm **out, int size, uint64_t seed)
{
    threads *all;
    invar_status status;

    if (size < 1 || size > INVAR_COMM_MAX_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%d ranks: there can be 1 to %d", size,
                          INVAR_COMM_MAX_SIZE);
    INVAR_TRY(threads_new(&all, size));
    for (int rank = 0; rank < size; rank++) {
        status = join_rank(&out[rank], all, rank, seed);
        if (status == INVAR_OK)
            continue;
        if (rank == 0)
            threads_free(all);
        while (rank-- > 0)
            invar_comm_free(out[rank]);
        return status;
    }
    return INVAR_OK;
}
