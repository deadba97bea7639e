/*
 * split.c - groups of a group.
 *
 * Every rank gathers the colours, keys and contexts of all, and so all compute the same groups
 * without asking further. The context of the new groups is the highest that a rank has free, which
 * none of them has used before.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/ranks/comm/comm.h"
#include "engine/ranks/comm/comm_internal.h"

#include "base/invar_banned.h"

typedef struct wish {
    int64_t colour, key;
    uint64_t next_context;
} wish;

/* True when rank `a` comes before rank `b` in a group of both. */
static bool wish_before(const wish *wishes, int a, int b)
{
    return wishes[a].key != wishes[b].key ? wishes[a].key < wishes[b].key : a < b;
}

/* Inserts the ranks of one colour in their order. */
static void choose_members(invar_comm *child, const invar_comm *parent, const wish *wishes)
{
    const wish *mine = &wishes[parent->rank];
    int *members = child->members; // ranks of the parent, until all are there

    for (int rank = 0; rank < parent->size; rank++) {
        int at = child->size;

        if (wishes[rank].colour != mine->colour)
            continue;
        for (; at > 0 && wish_before(wishes, rank, members[at - 1]); at--)
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

static invar_status wish_gather(wish *wishes, invar_comm *comm, const wish *mine, const char *phase,
                                double seconds)
{
    invar_comm_transfer move = {
        .op = INVAR_COMM_SPLIT, .phase = phase, .timeout_s = seconds, .in = mine, .out = wishes};
    size_t *bytes;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&bytes, (size_t)comm->size, sizeof *bytes, "a group's split"));
    for (int i = 0; i < comm->size; i++)
        bytes[i] = sizeof *wishes;
    move.out_bytes = bytes;
    status = invar_comm_transfer_now(comm, &move);
    invar_free(bytes);
    return status;
}

invar_status invar_comm_split(invar_comm **out, invar_comm *comm, int64_t colour, int64_t key,
                              const char *phase, double seconds)
{
    invar_world *world = comm->world;
    wish mine = {colour, key, world->next_context}, *wishes;
    invar_comm *child = NULL;
    invar_status status;

    *out = NULL;
    INVAR_CHECK(!world->imagined); // nobody is there to have a wish
    INVAR_TRY(invar_alloc((void **)&wishes, (size_t)comm->size, sizeof *wishes, "a group's split"));
    status = invar_comm_new(&child, world, comm->size); // before the gather: after it, all succeed
    if (status == INVAR_OK)
        status = wish_gather(wishes, comm, &mine, phase, seconds);
    if (status == INVAR_OK) {
        for (int i = 0; i < comm->size; i++)
            if (wishes[i].next_context > world->next_context)
                world->next_context = wishes[i].next_context;
        child->context = world->next_context++;
        choose_members(child, comm, wishes);
    }
    invar_free(wishes);
    if (status == INVAR_OK && colour >= 0 && comm->carrier)
        status = comm->carrier->join(comm->device_transport_state, child, seconds);
    if (status != INVAR_OK || colour < 0) {
        invar_comm_free(child);
        return status;
    }
    *out = child;
    return INVAR_OK;
}
