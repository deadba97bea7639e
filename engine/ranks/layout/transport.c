/*
 * transport.c - decides between NCCL and host memory, and opens the NCCL communicators.
 *
 * Each rank gathers the GPU, process and NCCL version of all ranks and applies the same rules, so
 * all ranks reach the same decision and can name the rank that prevents NCCL. NCCL refuses two
 * ranks of one host on one GPU. If the user asks for NCCL and processes share a GPU, this file
 * gives each rank an NCCL_HOSTID of its own, so that NCCL takes them for ranks of several hosts.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/ranks/layout/rank_collectives.h"

#include "base/invar_banned.h"

/* Properties of a rank that decide about the transport; sent as bytes. */
typedef struct rank_info {
    invar_digest memory; /* digest that identifies its GPU */
    int64_t process;
    int32_t wanted;
    int32_t on_gpu;     /* it computes on a GPU */
    int32_t identified; /* `memory` is known */
    int32_t version;    /* NCCL version number; 0 if it has none */
} rank_info;

static void describe_rank(rank_info *out, const invar_device *dev, invar_distributed_backend wanted)
{
    int version = 0;

    memset(out, 0, sizeof *out); // padding is sent, too
    out->process = getpid();
    out->wanted = (int32_t)wanted;
    out->on_gpu = invar_device_is_local(dev);
    out->identified = dev->backend->memory.identify != NULL;
    if (out->identified)
        dev->backend->memory.identify(dev, &out->memory);
    if (out->on_gpu && invar_comm_nccl_version(&version, NULL) != INVAR_OK)
        invar_error_clear(); // no error here: the rank is reported as one without NCCL
    out->version = version;
}

static void format_version(char out[16], int version)
{
    out[0] = '\0';
    if (version > 0)
        (void)snprintf(out, 16, "%d.%d.%d", version / 10000 % 1000, version / 100 % 100,
                       version % 100);
}

/* ---- the choice ------------------------------------------------------------------------------ */

typedef struct transport_choice {
    const invar_layout *layout;
    const rank_info *all; /* (size) one per rank */
    int size;
    invar_layout_transport *out;
} transport_choice;

static const char *host_of(const transport_choice *s, int rank)
{
    return invar_comm_host(s->layout->world, rank);
}

/*
 * Returns true, with the reason in the text, if a rank has no GPU or no NCCL, or another NCCL than
 * rank 0.
 */
static bool lacks_nccl(const transport_choice *s, int rank)
{
    const rank_info *its = &s->all[rank];
    char *text = s->out->text, version[16], first[16];

    format_version(version, its->version);
    format_version(first, s->all[0].version);
    if (!its->on_gpu)
        (void)snprintf(text, sizeof s->out->text, "rank %d on %s computes on its CPU", rank,
                       host_of(s, rank));
    else if (its->version == 0)
        (void)snprintf(text, sizeof s->out->text, "rank %d on %s has no NCCL (invar-nccl.so)", rank,
                       host_of(s, rank));
    else if (its->version != s->all[0].version)
        (void)snprintf(text, sizeof s->out->text, "rank %d on %s has NCCL %s, rank 0 has %s", rank,
                       host_of(s, rank), version, first);
    else
        return false;
    return true;
}

static bool share_gpu(const rank_info *a, const rank_info *b)
{
    return a->identified && b->identified && invar_digest_equal(&a->memory, &b->memory);
}

/*
 * Returns true, with the reason in the text, if a rank shares a GPU with a lower rank in a way that
 * rules out NCCL. Processes may share one if NCCL was asked for; threads may not.
 */
static bool rejects_shared_gpu(const transport_choice *s, int rank)
{
    const rank_info *its = &s->all[rank];

    for (int r = 0; r < rank; r++) {
        bool threads = s->all[r].process == its->process;

        if (!share_gpu(&s->all[r], its))
            continue;
        s->out->nccl_ignore_shm = true;
        if (s->all[0].wanted == INVAR_DISTRIBUTED_BACKEND_NCCL && !threads)
            return false;
        (void)snprintf(s->out->text, sizeof s->out->text, "ranks %d and %d on %s share a GPU%s", r,
                       rank, host_of(s, rank), threads ? " and a process" : "");
        return true;
    }
    return false;
}

static bool can_be_nccl(const transport_choice *s)
{
    for (int r = 0; r < s->size; r++)
        if (lacks_nccl(s, r))
            return false;
    for (int r = 0; r < s->size; r++)
        if (rejects_shared_gpu(s, r))
            return false;
    return true;
}

static bool has_gpu(const transport_choice *s)
{
    for (int r = 0; r < s->size; r++)
        if (s->all[r].on_gpu)
            return true;
    return false;
}

static invar_status decide_transport(const transport_choice *s)
{
    invar_layout_transport *out = s->out;
    invar_distributed_backend wanted = (invar_distributed_backend)s->all[0].wanted;
    char why[sizeof out->text];

    if (wanted == INVAR_DISTRIBUTED_BACKEND_HOST)
        (void)snprintf(out->text, sizeof out->text, "distributed-backend = host");
    else
        out->nccl = can_be_nccl(s);
    if (!out->nccl && wanted == INVAR_DISTRIBUTED_BACKEND_NCCL)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "distributed-backend = nccl cannot be: %s; give each rank a GPU and "
                          "NCCL, or choose auto or host",
                          out->text);
    (void)snprintf(why, sizeof why, "%s", has_gpu(s) ? out->text : "");
    if (out->nccl)
        (void)snprintf(out->text, sizeof out->text, "NCCL %s", out->nccl_version);
    else
        (void)snprintf(out->text, sizeof out->text, "host memory%s%.200s", why[0] ? ": " : "", why);
    return INVAR_OK;
}

invar_status invar_layout_choose_transport(invar_layout_transport *out, const invar_layout *layout,
                                           const invar_device *dev,
                                           invar_distributed_backend wanted)
{
    INVAR_AUTO_FREE rank_info *all = NULL;
    transport_choice s = {.layout = layout, .size = invar_ranks_size(layout), .out = out};
    rank_info own;

    *out = (invar_layout_transport){.rank = layout ? invar_comm_rank(layout->world) : 0};
    INVAR_TRY(INVAR_ALLOC(all, (size_t)s.size, "what ranks tell"));
    describe_rank(&own, dev, wanted);
    format_version(out->nccl_version, own.version);
    s.all = all;
    INVAR_TRY(invar_ranks_all_gather(layout, "transport", &own, sizeof own, all));
    return decide_transport(&s);
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Gives each rank its own NCCL host id, because NCCL refuses two ranks of one host on one GPU. */
static invar_status set_nccl_hostid(const invar_layout_transport *transport)
{
    char name[32];

    (void)snprintf(name, sizeof name, "invar-rank-%d", transport->rank);
    if (setenv("NCCL_HOSTID", name, 0) != 0)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "NCCL_HOSTID: no memory for the environment");
    return INVAR_OK;
}

static invar_status open_axis(invar_layout_axis *axis, const invar_comm_nccl_options *options)
{
    return axis->size > 1 ? invar_comm_nccl(&axis->device_comm, axis->comm, options) : INVAR_OK;
}

invar_status invar_layout_open_transport(invar_layout *layout, const invar_device *dev,
                                         const invar_layout_transport *transport)
{
    invar_layout_axis *data = &layout->data;
    invar_comm_nccl_options options = {.seconds = layout->timeout_s, .ordinal = dev->ordinal};
    void *memory = NULL;

    if (!transport->nccl)
        return INVAR_OK;
    if (transport->nccl_ignore_shm)
        INVAR_TRY(set_nccl_hostid(transport));
    INVAR_TRY(open_axis(&layout->tensor, &options));
    INVAR_TRY(open_axis(&layout->context, &options));
    INVAR_TRY(open_axis(&layout->expert, &options));
    INVAR_TRY(open_axis(data, &options));
    if (!data->device_comm)
        return INVAR_OK;
    INVAR_TRY(invar_device_alloc(dev, &memory, 2 * invar_layout_bucket_bytes(layout, data),
                                 "what travels between GPUs"));
    data->buckets = memory;
    return INVAR_OK;
}

void invar_layout_close_transport(invar_layout *layout, const invar_device *dev)
{
    invar_layout_axis *const axes[] = {&layout->tensor, &layout->context, &layout->expert,
                                       &layout->data};

    if (layout->data.buckets)
        invar_device_free(dev, layout->data.buckets);
    layout->data.buckets = NULL;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        invar_comm_free(axes[i]->device_comm);
        axes[i]->device_comm = NULL;
    }
}
