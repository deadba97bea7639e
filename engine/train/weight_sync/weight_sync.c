/*
 * weight_sync.c - weights on their way.
 *
 * A rank that trains gives to one rank after the other, in the order of their numbers, and a rank
 * that samples takes from one giver after the other: so of the ranks that wait, the first one to
 * sample always finds its giver there.
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
    char *buckets[2]; /* one travels while the other is filled, or emptied */
    invar_host_window window;
    invar_tensor shown; /* the weight of parameter `param` in the host's memory */
    int64_t param;      /* -1: none */
};

/* ---- life ------------------------------------------------------------------------------------ */

/* Of those that a peer gives or gets no bucket is fuller than all of it. */
static size_t weight_sync_fullest(const invar_weight_sync *sync)
{
    uint64_t most = 1;

    for (int64_t i = 0, next; i < sync->plan.count; i = next) {
        uint64_t bytes = invar_weight_sync_plan_bytes(&next, &sync->plan, sync->options.model, i);
        most = bytes > most ? bytes : most;
    }
    return most < sync->options.bucket ? (size_t)most : sync->options.bucket;
}

/* The host's memory, where copies of the device's are fastest. */
static invar_status take_buckets(invar_weight_sync *sync)
{
    const invar_device *dev = sync->options.dev;
    size_t bytes = 2 * sync->options.bucket;
    const char *what = "weights on their way (update-weight-buffer-size)";
    void *memory = NULL;

    INVAR_TRY(invar_device_is_local(dev) ? invar_device_alloc_host(dev, &memory, bytes, what)
                                         : invar_device_alloc(dev, &memory, bytes, what));
    sync->buckets[0] = memory;
    sync->buckets[1] = sync->buckets[0] + sync->options.bucket;
    return INVAR_OK;
}

static void give_buckets(invar_weight_sync *sync)
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
    INVAR_TRY(invar_alloc((void **)&sync, 1, sizeof *sync, "weights on their way"));
    *sync = (invar_weight_sync){.options = *options, .window = {.dev = options->dev}, .param = -1};
    status = invar_weight_sync_plan_make(&sync->plan, options->sides, options->model,
                                         invar_comm_rank(options->sides->world.world));
    if (status == INVAR_OK) {
        sync->options.bucket = weight_sync_fullest(sync);
        status = take_buckets(sync);
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
    give_buckets(sync);
    invar_free(sync);
}

uint64_t invar_weight_sync_bytes(const invar_weight_sync *sync)
{
    return sync->plan.bytes;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* What was written to the parameter that is shown goes where its ops read it. */
static invar_status put_back(invar_weight_sync *sync)
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

/* What pieces of others hold stays: of a parameter they come one by one. */
static invar_status weight_sync_show(invar_weight_sync *sync, int64_t param)
{
    if (param == sync->param)
        return INVAR_OK;
    INVAR_TRY(put_back(sync));
    sync->param = -1;
    if (param < 0)
        return INVAR_OK;
    INVAR_TRY(invar_host_window_tensor(&sync->shown, &sync->window,
                                       &sync->options.model->params[param].weight));
    sync->param = param;
    return INVAR_OK;
}

/* ---- a stream of bytes between two ranks ----------------------------------------------------- */

typedef struct stream {
    invar_weight_sync *sync;
    int peer;
    uint64_t left;              /* bytes that no bucket has had yet */
    invar_comm_request *moving; /* the bucket that travels; NULL: none does */
    size_t coming;              /* its bytes */
    int turn;                   /* the other bucket, */
    size_t used, filled;        /* of which so much is filled by this rank, or used of what came */
} stream;

/* Waits for the bucket that travels, after a failure, too. */
static invar_status stream_finalize(stream *s)
{
    invar_comm_request *moving = s->moving;

    s->moving = NULL;
    return moving ? invar_comm_wait(moving) : INVAR_OK;
}

static size_t next_bucket(const stream *s)
{
    return s->left < s->sync->options.bucket ? (size_t)s->left : s->sync->options.bucket;
}

/* The bucket that is not in use sets out; nothing is left: none does. */
static invar_status stream_start(stream *s, char *bucket)
{
    const invar_layout *world = &s->sync->options.sides->world;
    bool gets = s->sync->plan.is_receiver;
    size_t bytes = next_bucket(s);
    const invar_comm_transfer m = {.op = INVAR_COMM_SENDRECV,
                                   .phase = PHASE,
                                   .timeout_s = world->seconds,
                                   .in = bucket,
                                   .out = bucket,
                                   .dst_rank = gets ? INVAR_COMM_NONE : s->peer,
                                   .src_rank = gets ? s->peer : INVAR_COMM_NONE,
                                   .to_bytes = gets ? 0 : bytes,
                                   .from_bytes = gets ? bytes : 0};

    s->coming = bytes;
    s->left -= bytes;
    return bytes > 0 ? invar_comm_start(&s->moving, world->world, &m) : INVAR_OK;
}

/* A bucket that is full leaves as soon as the one before it has arrived. */
static invar_status stream_free(stream *s, const char *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        char *bucket = s->sync->buckets[s->turn];
        size_t room = next_bucket(s) - s->used, some = bytes - done < room ? bytes - done : room;

        memcpy(bucket + s->used, from + done, some);
        s->used += some;
        done += some;
        if (s->used < next_bucket(s))
            continue;
        INVAR_TRY(stream_finalize(s));
        INVAR_TRY(stream_start(s, bucket));
        s->turn = 1 - s->turn;
        s->used = 0;
    }
    return INVAR_OK;
}

/* The bucket that has come is used while the next one comes. */
static invar_status turn_over(stream *s)
{
    INVAR_TRY(stream_finalize(s));
    s->turn = 1 - s->turn;
    s->filled = s->coming;
    s->used = 0;
    return stream_start(s, s->sync->buckets[1 - s->turn]);
}

static invar_status stream_get(stream *s, char *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        size_t some;

        if (s->used == s->filled)
            INVAR_TRY(turn_over(s));
        some = s->filled - s->used < bytes - done ? s->filled - s->used : bytes - done;
        memcpy(to + done, s->sync->buckets[s->turn] + s->used, some);
        s->used += some;
        done += some;
    }
    return INVAR_OK;
}

static invar_status move_rows(stream *s, const invar_tree_shard *plane)
{
    char *row = (char *)(uintptr_t)plane->data; // of this rank's own weights

    for (int64_t r = 0; r < plane->rows; r++, row += plane->row_stride_bytes)
        INVAR_TRY(s->sync->plan.is_receiver ? stream_get(s, row, plane->row_bytes)
                                            : stream_free(s, row, plane->row_bytes));
    return INVAR_OK;
}

static invar_status move_piece(stream *s, const invar_weight_sync_item *item)
{
    const invar_param *param = &s->sync->options.model->params[item->param];
    invar_tree_shard planes[INVAR_WEIGHT_SYNC_PLANES];
    int count;

    INVAR_TRY(weight_sync_show(s->sync, item->param));
    count = invar_weight_sync_planes(planes, param, &s->sync->shown, item->piece);
    for (int i = 0; i < count; i++)
        INVAR_TRY(move_rows(s, &planes[i]));
    return INVAR_OK;
}

/* The items [first, end) of one peer. */
static invar_status move_items(stream *s, int64_t first, int64_t end)
{
    const invar_weight_sync_plan *plan = &s->sync->plan;

    if (plan->is_receiver) // the first bucket comes, and then one while another is used
        INVAR_TRY(stream_start(s, s->sync->buckets[1 - s->turn]));
    for (int64_t i = first; i < end; i++)
        INVAR_TRY(move_piece(s, &plan->items[i]));
    return INVAR_OK;
}

static invar_status move_all(invar_weight_sync *sync, int64_t first, int64_t *next_out)
{
    stream s = {.sync = sync, .peer = sync->plan.items[first].peer};
    invar_status status, settled;
    invar_error error;

    s.left = invar_weight_sync_plan_bytes(next_out, &sync->plan, sync->options.model, first);
    status = move_items(&s, first, *next_out);
    invar_error_take(&error);
    settled = stream_finalize(&s);
    if (status == INVAR_OK)
        return settled;
    invar_error_put(&error);
    return status;
}

invar_status invar_weight_sync_transfer(invar_weight_sync *sync)
{
    for (int64_t i = 0, next; i < sync->plan.count; i = next)
        INVAR_TRY(move_all(sync, i, &next));
    return weight_sync_show(sync, -1);
}

/* ---- afterwards ------------------------------------------------------------------------------ */

invar_status invar_weight_sync_compare(invar_weight_sync_result *out, invar_weight_sync *sync)
{
    const invar_weight_sync_options *o = &sync->options;
    invar_weight_digests all;
    invar_status status;

    *out = (invar_weight_sync_result){.bytes = 0};
    status = invar_weight_digests_make(&all, o->model, o->dev);
    if (status == INVAR_OK)
        status = invar_weight_digests_compare(out, &all, &o->sides->world,
                                              sync->plan.is_receiver ? sync->plan.bytes : 0);
    invar_weight_digests_release(&all);
    return status;
}
