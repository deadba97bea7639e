/*
 * split.c - splits a group of ranks into groups by color.
 *
 * Every rank gathers the colors, keys and free contexts of all ranks, so all compute the same
 * groups without further messages. The context of the new groups is the highest free context of any
 * rank; no rank has used it before.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/ranks/comm/comm.h"
#include "engine/ranks/comm/comm_internal.h"

#include "base/invar_banned.h"

typedef struct split_key {
    int64_t color, key;
    uint64_t next_context;
} split_key;

/* Returns true if rank `a` precedes rank `b` in a group of both. */
static bool key_precedes(const split_key *wishes, int a, int b)
{
    return wishes[a].key != wishes[b].key ? wishes[a].key < wishes[b].key : a < b;
}

/* Sets the members of the child group: the ranks of one color, sorted by insertion. */
static void choose_members(invar_comm *child, const invar_comm *parent, const split_key *wishes)
{
    const split_key *mine = &wishes[parent->rank];
    // ranks of the parent until the list is complete, then ranks of the world
    int *members = child->members;

    for (int rank = 0; rank < parent->size; rank++) {
        int at = child->size;

        if (wishes[rank].color != mine->color)
            continue;
        for (; at > 0 && key_precedes(wishes, rank, members[at - 1]); at--)
            members[at] = members[at - 1];
        members[at] = rank;
        child->size++;
    }
    for (int i = 0; i < child->size; i++) {
        if (members[i] == parent->rank)
            child->rank = i;
        members[i] = parent->members[members[i]];
    }
}

static invar_status gather_keys(split_key *wishes, invar_comm *comm, const split_key *mine,
                                const char *phase, double seconds)
{
    INVAR_AUTO_FREE size_t *bytes = NULL;
    invar_comm_transfer transfer = {
        .op = INVAR_COMM_SPLIT, .phase = phase, .timeout_s = seconds, .in = mine, .out = wishes};

    INVAR_TRY(INVAR_ALLOC(bytes, (size_t)comm->size, "a group's split"));
    for (int i = 0; i < comm->size; i++)
        bytes[i] = sizeof *wishes;
    transfer.out_bytes = bytes;
    return invar_comm_transfer_now(comm, &transfer);
}

invar_status invar_comm_split(invar_comm **out, invar_comm *comm, int64_t color, int64_t key,
                              const char *phase, double seconds)
{
    invar_world *world = comm->world;
    split_key mine = {color, key, world->next_context}, *wishes;
    invar_comm *child = NULL;
    invar_status status;

    *out = NULL;
    INVAR_CHECK(!world->simulated); // simulated peers have no color
    INVAR_TRY(INVAR_ALLOC(wishes, (size_t)comm->size, "a group's split"));
    // before the gather: no rank may fail after it
    status = invar_comm_new(&child, world, comm->size);
    if (status == INVAR_OK)
        status = gather_keys(wishes, comm, &mine, phase, seconds);
    if (status == INVAR_OK) {
        for (int i = 0; i < comm->size; i++)
            if (wishes[i].next_context > world->next_context)
                world->next_context = wishes[i].next_context;
        child->context = world->next_context++;
        choose_members(child, comm, wishes);
    }
    invar_free(wishes);
    if (status == INVAR_OK && color >= 0 && comm->device_transport)
        status = comm->device_transport->join(comm->device_transport_state, child, seconds);
    if (status != INVAR_OK || color < 0) {
        invar_comm_free(child);
        return status;
    }
    *out = child;
    return INVAR_OK;
}
