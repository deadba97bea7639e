/*
 * weight_sync.c - sends weights in two alternating buckets, from one rank to another at a time.
 *
 * While one bucket is in flight, the sender fills the other, or the receiver empties it. Parameters
 * are written one after the other: the weight that the current shard belongs to is mapped into host
 * memory (invar_host_window) and uploaded when the next parameter begins.
 *
 * Deadlock freedom: a sender serves the receivers in ascending order of rank, and a receiver reads
 * from the senders in ascending order. So the lowest receiver that still waits always finds its
 * sender ready.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/weight_sync/weight_sync.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/train/weight_sync/weight_digests.h"
#include "engine/train/weight_sync/weight_planes.h"

#include "base/invar_banned.h"

#define PHASE "weights for sampling"

struct invar_weight_sync {
    invar_weight_sync_options options;
    invar_weight_sync_plan plan;
    char *buckets[2]; /* one is in flight while the other is filled or emptied */
    invar_host_window window;
    invar_tensor shown; /* weight of parameter `param` in host memory */
    int64_t param;      /* -1 if no parameter is mapped */
};

/* ---- allocation ------------------------------------------------------------------------------ */

/*
 * Returns the bucket size: the bytes exchanged with one peer at most, but no more than the option.
 */
static size_t bucket_size_of(const invar_weight_sync *sync)
{
    uint64_t largest = 1;

    for (int64_t i = 0, next; i < sync->plan.count; i = next) {
        uint64_t bytes = invar_weight_sync_plan_bytes(&next, &sync->plan, sync->options.model, i);
        largest = bytes > largest ? bytes : largest;
    }
    return largest < sync->options.bucket_bytes ? (size_t)largest : sync->options.bucket_bytes;
}

/* Allocates the buckets in host memory from which device copies are fastest. */
static invar_status alloc_buckets(invar_weight_sync *sync)
{
    const invar_device *dev = sync->options.dev;
    size_t bytes = 2 * sync->options.bucket_bytes;
    const char *what = "weights on their way (update-weight-buffer-size)";
    void *memory = NULL;

    INVAR_TRY(invar_device_is_local(dev) ? invar_device_alloc_host(dev, &memory, bytes, what)
                                         : invar_device_alloc(dev, &memory, bytes, what));
    sync->buckets[0] = memory;
    sync->buckets[1] = sync->buckets[0] + sync->options.bucket_bytes;
    return INVAR_OK;
}

static void free_buckets(invar_weight_sync *sync)
{
    const invar_device *dev = sync->options.dev;

    if (!sync->buckets[0])
        return;
    if (invar_device_is_local(dev))
        invar_device_free_host(dev, sync->buckets[0]);
    else
        invar_device_free(dev, sync->buckets[0]);
}

invar_status invar_weight_sync_new(invar_weight_sync **out,
                                   const invar_weight_sync_options *options)
{
    invar_weight_sync *sync = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(sync, 1, "weights on their way"));
    *sync = (invar_weight_sync){.options = *options, .window = {.dev = options->dev}, .param = -1};
    status = invar_weight_sync_plan_make(&sync->plan, options->roles, options->model,
                                         invar_comm_rank(options->roles->world.world));
    if (status == INVAR_OK) {
        sync->options.bucket_bytes = bucket_size_of(sync);
        status = alloc_buckets(sync);
    }
    if (status != INVAR_OK) {
        invar_weight_sync_free(sync);
        return status;
    }
    *out = sync;
    return INVAR_OK;
}

void invar_weight_sync_free(invar_weight_sync *sync)
{
    if (!sync)
        return;
    invar_weight_sync_plan_release(&sync->plan);
    invar_host_window_release(&sync->window);
    free_buckets(sync);
    invar_free(sync);
}

uint64_t invar_weight_sync_bytes(const invar_weight_sync *sync)
{
    return sync->plan.bytes;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Uploads the mapped weight to where ops read it. Does nothing on a sender. */
static invar_status upload_mapped_weight(invar_weight_sync *sync)
{
    const invar_tensor *weight, *shown = &sync->shown;

    if (sync->param < 0 || !sync->plan.is_receiver)
        return INVAR_OK;
    weight = &sync->options.model->params[sync->param].weight;
    if (shown->data == weight->data)
        return INVAR_OK;
    INVAR_TRY(invar_device_upload(sync->options.dev, weight->data, shown->data,
                                  invar_host_staging_span(weight)));
    if (!shown->scale)
        return INVAR_OK;
    return invar_device_upload(sync->options.dev, weight->scale, shown->scale,
                               invar_tensor_scale_bytes(weight));
}

/*
 * Maps the weight of another parameter, -1 for none, and uploads the previous one. The mapping
 * starts with the current values, since shards of one parameter may come from several peers.
 */
static invar_status map_weight(invar_weight_sync *sync, int64_t param)
{
    if (param == sync->param)
        return INVAR_OK;
    INVAR_TRY(upload_mapped_weight(sync));
    sync->param = -1;
    if (param < 0)
        return INVAR_OK;
    INVAR_TRY(invar_host_window_tensor(&sync->shown, &sync->window,
                                       &sync->options.model->params[param].weight));
    sync->param = param;
    return INVAR_OK;
}

/* ---- a stream of bytes between two ranks ----------------------------------------------------- */

typedef struct bucket_stream {
    invar_weight_sync *sync;
    int peer;
    uint64_t left;                /* bytes that are not assigned to a bucket yet */
    invar_comm_request *inflight; /* transfer of the other bucket; NULL if none is in flight */
    size_t inflight_bytes;        /* bytes of that transfer */
    int current_bucket;           /* index of the bucket that this rank fills or empties */
    /* bytes filled, or consumed, in the current bucket; received bytes in it */
    size_t used, filled;
} bucket_stream;

/* Waits for the transfer in flight. Must also be called after a failure. */
static invar_status finish_transfer(bucket_stream *s)
{
    invar_comm_request *inflight = s->inflight;

    s->inflight = NULL;
    return inflight ? invar_comm_wait(inflight) : INVAR_OK;
}

static size_t next_bucket(const bucket_stream *s)
{
    return s->left < s->sync->options.bucket_bytes ? (size_t)s->left
                                                   : s->sync->options.bucket_bytes;
}

/* Starts the transfer of the next bytes in `bucket`; does nothing if no bytes are left. */
static invar_status start_transfer(bucket_stream *s, char *bucket)
{
    const invar_layout *world = &s->sync->options.roles->world;
    bool gets = s->sync->plan.is_receiver;
    size_t bytes = next_bucket(s);
    const invar_comm_transfer m = {.op = INVAR_COMM_SENDRECV,
                                   .phase = PHASE,
                                   .timeout_s = world->timeout_s,
                                   .in = bucket,
                                   .out = bucket,
                                   .dst_rank = gets ? INVAR_COMM_NONE : s->peer,
                                   .src_rank = gets ? s->peer : INVAR_COMM_NONE,
                                   .to_bytes = gets ? 0 : bytes,
                                   .from_bytes = gets ? bytes : 0};

    s->inflight_bytes = bytes;
    s->left -= bytes;
    return bytes > 0 ? invar_comm_start(&s->inflight, world->world, &m) : INVAR_OK;
}

/* Appends bytes to the buckets. A full bucket is sent when the previous transfer has finished. */
static invar_status send_bytes(bucket_stream *s, const char *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        char *bucket = s->sync->buckets[s->current_bucket];
        size_t room = next_bucket(s) - s->used, some = bytes - done < room ? bytes - done : room;

        memcpy(bucket + s->used, from + done, some);
        s->used += some;
        done += some;
        if (s->used < next_bucket(s))
            continue;
        INVAR_TRY(finish_transfer(s));
        INVAR_TRY(start_transfer(s, bucket));
        s->current_bucket = 1 - s->current_bucket;
        s->used = 0;
    }
    return INVAR_OK;
}

/* Starts to receive into the consumed bucket and switches to the one that has arrived. */
static invar_status receive_next_bucket(bucket_stream *s)
{
    INVAR_TRY(finish_transfer(s));
    s->current_bucket = 1 - s->current_bucket;
    s->filled = s->inflight_bytes;
    s->used = 0;
    return start_transfer(s, s->sync->buckets[1 - s->current_bucket]);
}

static invar_status receive_bytes(bucket_stream *s, char *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        size_t some;

        if (s->used == s->filled)
            INVAR_TRY(receive_next_bucket(s));
        some = s->filled - s->used < bytes - done ? s->filled - s->used : bytes - done;
        memcpy(to + done, s->sync->buckets[s->current_bucket] + s->used, some);
        s->used += some;
        done += some;
    }
    return INVAR_OK;
}

static invar_status transfer_rows(bucket_stream *s, const invar_tree_shard *plane)
{
    char *row = (char *)(uintptr_t)plane->data; // the local weights, which a receiver may write

    for (int64_t r = 0; r < plane->rows; r++, row += plane->row_stride_bytes)
        INVAR_TRY(s->sync->plan.is_receiver ? receive_bytes(s, row, plane->row_bytes)
                                            : send_bytes(s, row, plane->row_bytes));
    return INVAR_OK;
}

static invar_status transfer_shard(bucket_stream *s, const invar_weight_sync_item *item)
{
    const invar_param *param = &s->sync->options.model->params[item->param];
    invar_tree_shard planes[INVAR_WEIGHT_SYNC_PLANES];
    int count;

    INVAR_TRY(map_weight(s->sync, item->param));
    count = invar_weight_sync_planes(planes, param, &s->sync->shown, item->shard);
    for (int i = 0; i < count; i++)
        INVAR_TRY(transfer_rows(s, &planes[i]));
    return INVAR_OK;
}

/* Sends or receives the items [first, end), which have one peer. */
static invar_status transfer_items(bucket_stream *s, int64_t first, int64_t end)
{
    const invar_weight_sync_plan *plan = &s->sync->plan;

    // the first bucket; from then on one is received while another is consumed
    if (plan->is_receiver)
        INVAR_TRY(start_transfer(s, s->sync->buckets[1 - s->current_bucket]));
    for (int64_t i = first; i < end; i++)
        INVAR_TRY(transfer_shard(s, &plan->items[i]));
    return INVAR_OK;
}

static invar_status transfer_peer(invar_weight_sync *sync, int64_t first, int64_t *next_out)
{
    bucket_stream s = {.sync = sync, .peer = sync->plan.items[first].peer};
    invar_status status, settled;
    invar_error error;

    s.left = invar_weight_sync_plan_bytes(next_out, &sync->plan, sync->options.model, first);
    status = transfer_items(&s, first, *next_out);
    invar_error_take(&error);
    settled = finish_transfer(&s);
    if (status == INVAR_OK)
        return settled;
    invar_error_put(&error);
    return status;
}

invar_status invar_weight_sync_transfer(invar_weight_sync *sync)
{
    for (int64_t i = 0, next; i < sync->plan.count; i = next)
        INVAR_TRY(transfer_peer(sync, i, &next));
    return map_weight(sync, -1);
}

/* ---- comparison ------------------------------------------------------------------------------ */

invar_status invar_weight_sync_compare(invar_weight_sync_result *out, invar_weight_sync *sync)
{
    const invar_weight_sync_options *o = &sync->options;
    invar_weight_digests all;
    invar_status status;

    *out = (invar_weight_sync_result){.bytes = 0};
    status = invar_weight_digests_make(&all, o->model, o->dev);
    if (status == INVAR_OK)
        status = invar_weight_digests_compare(out, &all, &o->roles->world,
                                              sync->plan.is_receiver ? sync->plan.bytes : 0);
    invar_weight_digests_release(&all);
    return status;
}
