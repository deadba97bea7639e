/*
 * fake_nccl.c - an NCCL module without GPUs: ranks are threads, and any memory counts as a GPU's.
 *
 * A receiving rank copies the bytes from the sending rank while it polls for completion. If the
 * program has the fake GPU (tests/device/fake_gpu.h), that copies, and rejects bytes in host
 * memory. INVAR_TEST_NCCL=WORD injects a fault: "version", "id", "open" and "move" fail, "stall"
 * never completes, "flip" changes a bit of every received transfer.
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

#pragma weak invar_fake_gpu_copy

#define MAX_RANKS 16
#define MAX_TRANSFERS (2 * MAX_RANKS + 2)
#define MAX_WORLDS 4096

typedef struct rank {
    struct world *world;
    int number;
    invar_nccl_p2p transfers[MAX_TRANSFERS];
    bool done[MAX_TRANSFERS];
    int count;
} rank;

typedef struct world {
    int size, n_joined;
    rank *ranks[MAX_RANKS];
} world;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all variables below */
static world worlds[MAX_WORLDS];                         /* indexed by id */
static int ids;

static bool fault_is(const char *word)
{
    const char *wanted = getenv("INVAR_TEST_NCCL");

    return wanted && !strcmp(wanted, word);
}

static int get_version(int *out)
{
    *out = 12304;
    return fault_is("version") ? 3 : 0;
}

static int make_id(char out[INVAR_NCCL_ID_BYTES])
{
    int id;

    pthread_mutex_lock(&lock);
    id = ids++ % MAX_WORLDS;
    worlds[id] = (world){.size = 0};
    pthread_mutex_unlock(&lock);
    memset(out, 0, INVAR_NCCL_ID_BYTES);
    memcpy(out, &id, sizeof id);
    return fault_is("id") ? 4 : 0;
}

static int open_rank(invar_nccl_group *out, const char id[INVAR_NCCL_ID_BYTES], int number,
                     int size, int ordinal)
{
    rank *me = calloc(1, sizeof *me);
    int index;

    (void)ordinal;
    *out = (invar_nccl_group){.comm = NULL};
    if (fault_is("open") || !me || size > MAX_RANKS) {
        free(me);
        return 5;
    }
    memcpy(&index, id, sizeof index);
    pthread_mutex_lock(&lock);
    *me = (rank){.world = &worlds[index], .number = number};
    me->world->size = size;
    me->world->n_joined++;
    me->world->ranks[number] = me;
    pthread_mutex_unlock(&lock);
    out->comm = me;
    return 0;
}

static int exchange(invar_nccl_group *group, const invar_nccl_p2p *transfers, int count)
{
    rank *me = group->comm;

    if (fault_is("move") || count > MAX_TRANSFERS)
        return 7;
    pthread_mutex_lock(&lock);
    memcpy(me->transfers, transfers, (size_t)count * sizeof *transfers);
    memset(me->done, 0, sizeof me->done);
    me->count = count;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int all_gather(invar_nccl_group *group, const void *in, void *out, size_t bytes)
{
    rank *me = group->comm;
    invar_nccl_p2p transfers[MAX_TRANSFERS];
    int count = 0;

    for (int r = 0; r < me->world->size; r++) {
        char *to = (char *)out + (size_t)r * bytes;

        if (r == me->number && to == in)
            continue;
        transfers[count++] = (invar_nccl_p2p){.peer = r, .from = in, .bytes = bytes};
        transfers[count++] = (invar_nccl_p2p){.peer = r, .to = to, .bytes = bytes};
    }
    return exchange(group, transfers, count);
}

static int broadcast(invar_nccl_group *group, const void *in, void *out, size_t bytes, int root)
{
    rank *me = group->comm;
    invar_nccl_p2p transfers[MAX_TRANSFERS];
    int count = 0;

    for (int r = 0; r < me->world->size && root == me->number; r++)
        if (r != root || in != out)
            transfers[count++] = (invar_nccl_p2p){.peer = r, .from = in, .bytes = bytes};
    if (root != me->number || in != out)
        transfers[count++] = (invar_nccl_p2p){.peer = root, .to = out, .bytes = bytes};
    return exchange(group, transfers, count);
}

static int copy_bytes(void *to, const void *from, size_t bytes)
{
    if (invar_fake_gpu_copy)
        return invar_fake_gpu_copy(to, from, bytes, fault_is("flip")) ? 0 : 8;
    memcpy(to, from, bytes);
    *(char *)to ^= (char)fault_is("flip");
    return 0;
}

/*
 * Completes receive `i` with the first transfer of its peer to this rank that is not received yet.
 */
static int receive_piece(rank *me, int i)
{
    const invar_nccl_p2p *p = &me->transfers[i];
    rank *peer = me->world->ranks[p->peer];

    for (int k = 0; peer && k < peer->count; k++) {
        const invar_nccl_p2p *q = &peer->transfers[k];

        if (!q->from || q->peer != me->number || peer->done[k])
            continue;
        if (q->bytes != p->bytes)
            return 9;
        me->done[i] = peer->done[k] = true;
        return copy_bytes(p->to, q->from, p->bytes);
    }
    return 0;
}

static int test_completion(int *done_out, invar_nccl_group *group)
{
    rank *me = group->comm;
    int code = 0;

    pthread_mutex_lock(&lock);
    *done_out = me->world->n_joined == me->world->size && !(me->count > 0 && fault_is("stall"));
    for (int i = 0; i < me->count && !code && *done_out; i++)
        if (!me->transfers[i].from && !me->done[i])
            code = receive_piece(me, i);
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

static void error_text(char *out, size_t size, int code)
{
    (void)snprintf(out, size, "code %d of the fake", code);
}

extern const invar_nccl_table INVAR_NCCL_TABLE;
__attribute__((visibility("default"))) const invar_nccl_table INVAR_NCCL_TABLE = {
    INVAR_NCCL_ABI, get_version, make_id,         open_rank,  exchange,
    all_gather,     broadcast,   test_completion, close_rank, error_text};
