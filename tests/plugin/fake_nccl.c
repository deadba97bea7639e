/*
 * fake_nccl.c - an NCCL module without GPUs: ranks are threads, and any memory counts as a GPU's.
 *
 * A receiving rank copies the bytes from the sending rank while it polls for completion. If the
 * program has the fake GPU (tests/device/fake_gpu.h), that copies, and rejects bytes in host
 * memory. INVAR_TEST_NCCL=WORD injects a fault: "version", "id", "open" and "move" fail, "stall"
 * never completes, "flip" changes a bit of every received piece.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/module/nccl_module.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/fake_gpu.h"

#pragma weak invar_far_copy

#define MOST_RANKS 16
#define MOST_PIECES (2 * MOST_RANKS + 2)
#define MOST_WORLDS 4096

typedef struct rank {
    struct world *world;
    int number;
    invar_nccl_p2p pieces[MOST_PIECES];
    bool done[MOST_PIECES];
    int count;
} rank;

typedef struct world {
    int size, came;
    rank *ranks[MOST_RANKS];
} world;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all variables below */
static world worlds[MOST_WORLDS];                        /* indexed by id */
static int ids;

static bool is(const char *word)
{
    const char *wanted = getenv("INVAR_TEST_NCCL");

    return wanted && !strcmp(wanted, word);
}

static int version(int *out)
{
    *out = 12304;
    return is("version") ? 3 : 0;
}

static int make_id(char out[INVAR_NCCL_ID_BYTES])
{
    int id;

    pthread_mutex_lock(&lock);
    id = ids++ % MOST_WORLDS;
    worlds[id] = (world){.size = 0};
    pthread_mutex_unlock(&lock);
    memset(out, 0, INVAR_NCCL_ID_BYTES);
    memcpy(out, &id, sizeof id);
    return is("id") ? 4 : 0;
}

static int open_rank(invar_nccl_group *out, const char id[INVAR_NCCL_ID_BYTES], int number,
                     int size, int ordinal)
{
    rank *me = calloc(1, sizeof *me);
    int place;

    (void)ordinal;
    *out = (invar_nccl_group){.comm = NULL};
    if (is("open") || !me || size > MOST_RANKS) {
        free(me);
        return 5;
    }
    memcpy(&place, id, sizeof place);
    pthread_mutex_lock(&lock);
    *me = (rank){.world = &worlds[place], .number = number};
    me->world->size = size;
    me->world->came++;
    me->world->ranks[number] = me;
    pthread_mutex_unlock(&lock);
    out->comm = me;
    return 0;
}

static int exchange(invar_nccl_group *group, const invar_nccl_p2p *pieces, int count)
{
    rank *me = group->comm;

    if (is("move") || count > MOST_PIECES)
        return 7;
    pthread_mutex_lock(&lock);
    memcpy(me->pieces, pieces, (size_t)count * sizeof *pieces);
    memset(me->done, 0, sizeof me->done);
    me->count = count;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int gather(invar_nccl_group *group, const void *in, void *out, size_t bytes)
{
    rank *me = group->comm;
    invar_nccl_p2p pieces[MOST_PIECES];
    int count = 0;

    for (int r = 0; r < me->world->size; r++) {
        char *to = (char *)out + (size_t)r * bytes;

        if (r == me->number && to == in)
            continue;
        pieces[count++] = (invar_nccl_p2p){.peer = r, .from = in, .bytes = bytes};
        pieces[count++] = (invar_nccl_p2p){.peer = r, .to = to, .bytes = bytes};
    }
    return exchange(group, pieces, count);
}

static int broadcast(invar_nccl_group *group, const void *in, void *out, size_t bytes, int root)
{
    rank *me = group->comm;
    invar_nccl_p2p pieces[MOST_PIECES];
    int count = 0;

    for (int r = 0; r < me->world->size && root == me->number; r++)
        if (r != root || in != out)
            pieces[count++] = (invar_nccl_p2p){.peer = r, .from = in, .bytes = bytes};
    if (root != me->number || in != out)
        pieces[count++] = (invar_nccl_p2p){.peer = root, .to = out, .bytes = bytes};
    return exchange(group, pieces, count);
}

static int copy(void *to, const void *from, size_t bytes)
{
    if (invar_far_copy)
        return invar_far_copy(to, from, bytes, is("flip")) ? 0 : 8;
    memcpy(to, from, bytes);
    *(char *)to ^= (char)is("flip");
    return 0;
}

/* Receives a piece: the first one of `peer` for this rank that was not received yet. */
static int take(rank *me, int i)
{
    const invar_nccl_p2p *p = &me->pieces[i];
    rank *peer = me->world->ranks[p->peer];

    for (int k = 0; peer && k < peer->count; k++) {
        const invar_nccl_p2p *q = &peer->pieces[k];

        if (!q->from || q->peer != me->number || peer->done[k])
            continue;
        if (q->bytes != p->bytes)
            return 9;
        me->done[i] = peer->done[k] = true;
        return copy(p->to, q->from, p->bytes);
    }
    return 0;
}

static int test(int *done_out, invar_nccl_group *group)
{
    rank *me = group->comm;
    int code = 0;

    pthread_mutex_lock(&lock);
    *done_out = me->world->came == me->world->size && !(me->count > 0 && is("stall"));
    for (int i = 0; i < me->count && !code && *done_out; i++)
        if (!me->pieces[i].from && !me->done[i])
            code = take(me, i);
    for (int i = 0; i < me->count; i++)
        *done_out = *done_out && me->done[i];
    pthread_mutex_unlock(&lock);
    return code;
}

static void close_rank(invar_nccl_group *group, int broken)
{
    rank *me = group->comm;

    (void)broken;
    if (!me)
        return;
    pthread_mutex_lock(&lock);
    me->world->ranks[me->number] = NULL;
    pthread_mutex_unlock(&lock);
    free(me);
}

static void explain(char *out, size_t size, int code)
{
    (void)snprintf(out, size, "code %d of the fake", code);
}

extern const invar_nccl_table INVAR_NCCL_TABLE;
__attribute__((visibility("default")))
const invar_nccl_table INVAR_NCCL_TABLE = {INVAR_NCCL_ABI, version,   make_id, open_rank,  exchange,
                                           gather,         broadcast, test,    close_rank, explain};
