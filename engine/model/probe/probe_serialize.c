/*
 * probe_serialize.c - merges the points of ranks that compute different samples of a step.
 *
 * A value is a list of leaves in sample order, and statistics that are joined in this order.
 * Appending the lists of other ranks in order therefore gives the value of a single rank. Received
 * data are checked before use.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/model/probe/probe_internal.h"
#include "engine/model/probe/tensor_stats.h"

#include "base/invar_banned.h"

/* Header of a packed value; its leaves and the statistics of its samples follow. */
typedef struct packed_value {
    char name[INVAR_LEDGER_NAME_BYTES + 1];
    int64_t leaves, shards, samples;
    uint64_t bytes;
} packed_value;

/*
 * Returns true if the value has samples that were not packed yet. Complete values are known to
 * every rank.
 */
static bool has_unpacked_samples(const invar_probe_value *v)
{
    return !v->complete && v->shards > v->packed.shards;
}

static invar_status pack_value(invar_rank_buffer *to, invar_probe_value *v, const char *name)
{
    packed_value p = {.leaves = v->count - v->packed.leaves,
                      .shards = v->shards - v->packed.shards,
                      .samples = v->n_samples,
                      .bytes = v->bytes - v->packed.bytes};

    memcpy(p.name, name, strlen(name) + 1);
    INVAR_TRY(invar_rank_buffer_put(to, &p, 1, sizeof p));
    INVAR_TRY(invar_rank_buffer_put(to, v->leaves + v->packed.leaves, (size_t)p.leaves,
                                    sizeof *v->leaves));
    INVAR_TRY(invar_rank_buffer_put(to, v->samples, (size_t)p.samples, sizeof *v->samples));
    v->packed.leaves = v->count;
    v->packed.shards = v->shards;
    v->packed.bytes = v->bytes;
    v->n_samples = 0;
    return INVAR_OK;
}

invar_status invar_probe_pack(invar_rank_buffer *to, invar_probe *probe)
{
    int64_t count = 0;

    INVAR_TRY(invar_probe_read_leaves(probe));
    for (int64_t i = 0; i < probe->count; i++)
        count += has_unpacked_samples(&probe->values[i]);
    INVAR_TRY(invar_rank_buffer_put(to, &count, 1, sizeof count));
    for (int64_t i = 0; i < probe->count; i++)
        if (has_unpacked_samples(&probe->values[i]))
            INVAR_TRY(pack_value(to, &probe->values[i], probe->points[i].name));
    return INVAR_OK;
}

static invar_status unpack_value(invar_probe *probe, invar_rank_buffer_reader *from)
{
    const void *item, *leaves, *samples;
    const packed_value *p;
    invar_probe_value *v;
    int64_t key;

    INVAR_TRY(invar_rank_buffer_take(&item, from, 1, sizeof *p));
    p = item;
    INVAR_TRY(invar_rank_buffer_take(&leaves, from, p->leaves, sizeof *v->leaves));
    INVAR_TRY(invar_rank_buffer_take(&samples, from, p->samples, sizeof *v->samples));
    if (!memchr(p->name, '\0', sizeof p->name))
        return invar_rank_buffer_damaged();
    key = invar_probe_find(probe, p->name);
    if (key <= 0 || probe->values[key - 1].complete)
        return invar_rank_buffer_damaged();
    v = &probe->values[key - 1];
    INVAR_TRY(invar_probe_grow_leaves(v, p->leaves));
    if (p->leaves > 0)
        memcpy(v->leaves + v->count, leaves, (size_t)p->leaves * sizeof *v->leaves);
    v->count += p->leaves;
    v->shards += p->shards;
    v->bytes += p->bytes;
    v->present = true;
    v->has_stats = v->has_stats || p->samples > 0;
    for (int64_t i = 0; i < p->samples; i++)
        invar_tensor_stats_join(&v->stat, (const invar_ledger_stat *)samples + i);
    return INVAR_OK;
}

invar_status invar_probe_unpack(invar_probe *probe, invar_rank_buffer_reader *from)
{
    const void *count;

    INVAR_TRY(invar_probe_read_leaves(probe)); // this rank's leaves come first
    INVAR_TRY(invar_rank_buffer_take(&count, from, 1, sizeof(int64_t)));
    for (int64_t i = 0; i < *(const int64_t *)count; i++)
        INVAR_TRY(unpack_value(probe, from));
    return INVAR_OK;
}
