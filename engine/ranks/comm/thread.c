/*
 * thread.c - ranks that are threads of this process.
 *
 * A sender posts messages, addresses only, into the inboxes of those that receive them. A receiver
 * copies the bytes out of the sender's memory, without the lock, and tells the sender. When the
 * world fails, a sender takes back what nobody has begun to copy and waits for the rest: no thread
 * ever reads memory whose owner has gone on.
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
    pthread_cond_t wake;  /* something for this rank has changed */
    invar_message *inbox; /* posted for it, in any order */
    bool left;
} mailbox;

typedef struct threads {
    pthread_mutex_t lock;           /* of all that follows */
    invar_comm_failure failures[2]; /* of the world, and of the revived one */
    double beat;                    /* when a rank last got on */
    int size, present;
    mailbox *boxes; /* (size) */
} threads;

typedef struct thread_rank {
    threads *all;
    invar_world *world;
    bool revived;
    uint64_t random; /* 0: nothing is */
} thread_rank;

static invar_comm_failure *failure_of(const thread_rank *me)
{
    return &me->all->failures[me->revived];
}

/* ---- the adversary --------------------------------------------------------------------------- */

/* splitmix64; below `bound` > 0. */
static uint64_t thread_rank_draw(thread_rank *me, uint64_t bound)
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
    switch (thread_rank_draw(me, 8)) {
    case 0: pause.tv_nsec = (long)thread_rank_draw(me, 300000); break;
    case 1:
    case 2: sched_yield(); return;
    default: return;
    }
    nanosleep(&pause, NULL);
}

/* Messages in a random order, and noise where they will arrive. */
static void scramble_messages(thread_rank *me, invar_comm_request *ticket)
{
    if (!me->random)
        return;
    for (int i = ticket->count - 1; i > 0; i--) {
        int j = (int)thread_rank_draw(me, (uint64_t)i + 1);
        invar_message m = ticket->messages[i];

        ticket->messages[i] = ticket->messages[j];
        ticket->messages[j] = m;
    }
    for (int i = 0; i < ticket->count; i++)
        if (ticket->messages[i].incoming && ticket->messages[i].bytes &&
            !ticket->messages[i].carried)
            memset(ticket->messages[i].data, (int)thread_rank_draw(me, 256),
                   ticket->messages[i].bytes);
}

/* ---- messages -------------------------------------------------------------------------------- */

static invar_status comm_request_start(void *self, invar_comm_request *ticket)
{
    thread_rank *me = self;
    threads *all = me->all;

    scramble_messages(me, ticket);
    for (int i = 0; i < ticket->count; i++) {
        invar_message *m = &ticket->messages[i];
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

/* The link to what was posted for an incoming message of this rank; it leads to NULL if nothing. */
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
 * Of the messages that could be copied now one, by chance if there is an adversary; *of is its
 * ticket, NULL when there is none. Those of all tickets: another rank may wait for them in another
 * order than this one.
 */
static invar_message *comm_request_choose(const invar_comm_request **of, thread_rank *me)
{
    invar_message *chosen = NULL;
    uint64_t found = 0;

    *of = NULL;
    for (const invar_comm_request *t = me->world->under_way; t; t = t->next)
        for (int i = 0; i < t->count; i++) {
            if (!can_copy(me, &t->messages[i]) ||
                (me->random && thread_rank_draw(me, ++found) != 0))
                continue;
            chosen = &t->messages[i];
            *of = t;
            if (!me->random)
                return chosen;
        }
    return chosen;
}

/* Called and returns with the lock, which it gives up to copy. */
static invar_status thread_rank_copy(thread_rank *me, const invar_comm_request *ticket,
                                     invar_message *expected)
{
    threads *all = me->all;
    invar_message **link = find_posted(all, me->world->rank, expected), *posted = *link;

    expected->header = posted->header;
    INVAR_TRY(invar_world_check(me->world, ticket, expected));
    *link = posted->next;
    posted->state = INVAR_MESSAGE_TAKEN;
    pthread_mutex_unlock(&all->lock);
    random_delay(me);
    if (expected->bytes && !expected->carried)
        memcpy(expected->data, posted->data, expected->bytes);
    random_delay(me);
    pthread_mutex_lock(&all->lock);
    expected->state = INVAR_MESSAGE_DONE;
    posted->state = INVAR_MESSAGE_DONE; // from here on its memory is the sender's
    pthread_cond_signal(&all->boxes[expected->peer].wake);
    return INVAR_OK;
}

static bool all_done(const invar_comm_request *ticket)
{
    for (int i = 0; i < ticket->count; i++)
        if (ticket->messages[i].state != INVAR_MESSAGE_DONE)
            return false;
    return true;
}

/* When nothing can be copied now: is there still somebody to wait for? */
static invar_status expect_peers(const thread_rank *me, const invar_comm_request *ticket)
{
    for (int i = 0; i < ticket->count; i++) {
        const invar_message *m = &ticket->messages[i];
        bool awaited =
            m->incoming ? m->state == INVAR_MESSAGE_POSTED : m->state != INVAR_MESSAGE_DONE;

        if (awaited && me->all->boxes[m->peer].left)
            return invar_world_fail_peer_exit(me->world, ticket, m);
    }
    return INVAR_OK;
}

static struct timespec point_in_time(double seconds)
{
    double whole = floor(seconds);

    return (struct timespec){.tv_sec = (time_t)whole, .tv_nsec = (long)(1e9 * (seconds - whole))};
}

/* Waits until something has changed for this rank; it has waited since `since`. */
static invar_status thread_rank_rest(thread_rank *me, const invar_comm_request *ticket,
                                     double since)
{
    threads *all = me->all;
    pthread_cond_t *wake = &all->boxes[me->world->rank].wake;
    double from = all->beat > since ? all->beat : since;
    struct timespec end = point_in_time(from + ticket->seconds);
    const invar_comm_request *of;

    if (ticket->seconds == 0)
        pthread_cond_wait(wake, &all->lock);
    else if (pthread_cond_timedwait(wake, &all->lock, &end) == ETIMEDOUT &&
             !comm_request_choose(&of, me) && !all_done(ticket) && !failure_of(me)->native &&
             all->beat <= from)
        return invar_world_fail_timeout(me->world, ticket, NULL);
    return INVAR_OK;
}

/* No other thread reads or writes messages of the ticket after this. */
static void thread_rank_withdraw(thread_rank *me, invar_comm_request *ticket)
{
    threads *all = me->all;

    for (int i = 0; i < ticket->count; i++) {
        invar_message *m = &ticket->messages[i], **link = &all->boxes[m->peer].inbox;

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

static invar_status comm_request_wait(void *self, invar_comm_request *ticket)
{
    thread_rank *me = self;
    threads *all = me->all;
    double since = invar_comm_clock();
    invar_status status = INVAR_OK;

    pthread_mutex_lock(&all->lock);
    while (status == INVAR_OK && !all_done(ticket)) {
        const invar_comm_request *of;
        invar_message *next = comm_request_choose(&of, me);

        if (next) // what has come counts, whatever its sender did then
            status = thread_rank_copy(me, of, next);
        else if (failure_of(me)->native)
            status = invar_world_accept_failure(me->world, failure_of(me));
        else if ((status = expect_peers(me, ticket)) == INVAR_OK)
            status = thread_rank_rest(me, ticket, since);
    }
    if (status != INVAR_OK)
        thread_rank_withdraw(me, ticket);
    pthread_mutex_unlock(&all->lock);
    return status;
}

/* Wakes nobody: who waits looks here when its time is over. */
static void beat(void *self)
{
    thread_rank *me = self;

    pthread_mutex_lock(&me->all->lock);
    me->all->beat = me->world->beat;
    pthread_mutex_unlock(&me->all->lock);
}

static invar_status hear(void *self)
{
    thread_rank *me = self;
    invar_status status = INVAR_OK;

    pthread_mutex_lock(&me->all->lock);
    if (failure_of(me)->native)
        status = invar_world_accept_failure(me->world, failure_of(me));
    pthread_mutex_unlock(&me->all->lock);
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

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

    INVAR_TRY(invar_alloc((void **)&all, 1, sizeof *all, "ranks that are threads"));
    memset(all, 0, sizeof *all);
    status =
        invar_alloc((void **)&all->boxes, (size_t)size, sizeof *all->boxes, "inboxes of ranks");
    if (status != INVAR_OK) {
        invar_free(all);
        return status;
    }
    memset(all->boxes, 0, (size_t)size * sizeof *all->boxes);
    all->size = size;
    pthread_mutexattr_init(&nested); // a failure is told with the lock and without it
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

static void leave(void *self)
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

static void comm_failure_report(void *self, invar_comm_failure *failure)
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

static void revive(void *self)
{
    ((thread_rank *)self)->revived = true;
}

static invar_status join_rank(invar_comm **out, threads *all, int rank, uint64_t seed)
{
    static const invar_transport transport = {
        comm_request_start, comm_request_wait, beat, hear, comm_failure_report, revive, leave};
    invar_world *world;
    thread_rank *me;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&me, 1, sizeof *me, "a rank that is a thread"));
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
