/*
 * cuda_graph_cache.c - records op calls, compares them with the last pass, and captures graphs.
 *
 * The calls from one flush to the next are a part, with its own record and graph; the parts of one
 * shape key form a track. With tensor-parallel ranks there are more than two parts per layer,
 * because every transfer flushes. Tracks are evicted round-robin until all tracks have at most
 * MOST_PARTS parts; the current track may then exceed that number.
 *
 * A record whose graph cannot be captured is replayed call by call (`refused`).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/cuda_graph_cache.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define MOST_TRACKS 64
#define MOST_PARTS 4096 // of all tracks; the current track may exceed it

/* One recorded call; its arguments follow, padded with zeros. */
typedef struct call {
    invar_op_runner *caller;
    int64_t grown; /* caller->scratch_generation at the time: identifies the scratch */
    int64_t op;
    size_t bytes; /* size of the arguments, rounded up to a multiple of this struct */
} call;

typedef struct part {
    char *calls;
    size_t used;
    int64_t room;
    invar_device_graph *graph; /* captured graph of all calls; NULL before it is captured */
    bool refused;              /* the calls cannot be captured */
} part;

typedef struct track {
    invar_cuda_graph_key key;
    part *parts; /* (room) in the order of their flushes */
    int64_t count, room;
} track;

struct invar_cuda_graph_cache {
    invar_device dev; /* device of all op runners; its scratch is not used */
    track tracks[MOST_TRACKS];
    int next;      /* track to evict next when all are in use */
    int64_t parts; /* number of parts of all tracks */
    bool listens;
    track *track; /* valid while `listens` */
    int64_t flushes;
    part *now; /* part since the last flush; NULL before its first call */
    bool same; /* all calls since the last flush equal the record */
    size_t at; /* offset in the record after the last matching call */
};

/* ---- tracks and parts ------------------------------------------------------------------------ */

invar_status invar_cuda_graph_cache_new(invar_cuda_graph_cache **out, const invar_device *dev)
{
    invar_cuda_graph_cache *cache = NULL;

    *out = NULL;
    if (!dev->backend->graphs.begin)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC_ZEROED(cache, 1, "the calls of decoding"));
    cache->dev = *dev;
    *out = cache;
    return INVAR_OK;
}

static void drop_graph(invar_cuda_graph_cache *cache, part *p)
{
    if (p->graph)
        cache->dev.backend->graphs.free(&cache->dev, p->graph);
    p->graph = NULL;
    p->refused = false;
}

static void discard_track(invar_cuda_graph_cache *cache, track *t)
{
    for (int64_t i = 0; i < t->count; i++) {
        drop_graph(cache, &t->parts[i]);
        invar_free(t->parts[i].calls);
    }
    cache->parts -= t->count;
    invar_free(t->parts);
    *t = (track){0};
}

void invar_cuda_graph_cache_free(invar_cuda_graph_cache *graph_cache)
{
    if (!graph_cache)
        return;
    for (int i = 0; i < MOST_TRACKS; i++)
        discard_track(graph_cache, &graph_cache->tracks[i]);
    invar_free(graph_cache);
}

static track *find_track(invar_cuda_graph_cache *cache, const invar_cuda_graph_key *key)
{
    track *t;

    for (int i = 0; i < MOST_TRACKS; i++) {
        t = &cache->tracks[i];
        if (t->count > 0 && memcmp(&t->key, key, sizeof *key) == 0)
            return t;
    }
    do {
        t = &cache->tracks[cache->next];
        cache->next = (cache->next + 1) % MOST_TRACKS;
        discard_track(cache, t);
    } while (cache->parts > MOST_PARTS);
    t->key = *key;
    return t;
}

static invar_status open_part(invar_cuda_graph_cache *cache)
{
    track *t = cache->track;

    if (cache->flushes == t->count) {
        INVAR_TRY(INVAR_GROW(t->parts, t->room, t->count, t->count + 1, "the calls of decoding"));
        t->parts[t->count++] = (part){0};
        cache->parts++;
    }
    cache->now = &t->parts[cache->flushes];
    cache->same = cache->now->used > 0;
    cache->at = 0;
    return INVAR_OK;
}

void invar_cuda_graph_cache_begin(invar_cuda_graph_cache *graph_cache,
                                  const invar_cuda_graph_key *key)
{
    graph_cache->now = NULL;
    // the profiler measures single ops
    graph_cache->listens = !invar_device_profiled(&graph_cache->dev);
    if (!graph_cache->listens)
        return;
    graph_cache->track = find_track(graph_cache, key);
    graph_cache->flushes = 0;
}

void invar_cuda_graph_cache_end(invar_cuda_graph_cache *graph_cache)
{
    graph_cache->listens = false;
    graph_cache->now = NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Writes a call to `to` and returns its size. */
static size_t write_call(char *to, invar_op_runner *runner, invar_op op, const void *args)
{
    call *c = (call *)to;
    size_t bytes = invar_op_args_copy(c + 1, op, args);
    size_t whole = (bytes + sizeof *c - 1) / sizeof *c * sizeof *c;

    memset((char *)(c + 1) + bytes, 0, whole - bytes);
    *c = (call){runner, runner->scratch_generation, op, whole};
    return sizeof *c + whole;
}

static const call *next_call(const call *c)
{
    return (const call *)((const char *)(c + 1) + c->bytes);
}

/* Runs the calls in the first `bytes` of the record one by one. */
static invar_status run_calls(const part *p, size_t bytes)
{
    for (const call *c = (const call *)p->calls; (const char *)c < p->calls + bytes;
         c = next_call(c))
        INVAR_TRY(invar_op_runner_run_now(c->caller, (invar_op)c->op, c + 1));
    return INVAR_OK;
}

/* Truncates the record after the matching calls, and runs the ones held back. */
static invar_status truncate_record(invar_cuda_graph_cache *cache)
{
    part *p = cache->now;

    cache->same = false;
    p->used = cache->at;
    drop_graph(cache, p);
    return run_calls(p, p->used);
}

invar_status invar_cuda_graph_cache_call(invar_cuda_graph_cache *graph_cache,
                                         invar_op_runner *runner, invar_op op, const void *args)
{
    part *p;

    if (!graph_cache->listens)
        return invar_op_runner_run_now(runner, op, args);
    if (!graph_cache->now)
        INVAR_TRY(open_part(graph_cache));
    p = graph_cache->now;
    // capacity for one more call of any op
    INVAR_TRY(INVAR_GROW(p->calls, p->room, (int64_t)p->used,
                         (int64_t)(p->used + 2 * sizeof(call) + INVAR_OP_ARGS_MAX),
                         "the calls of decoding"));
    if (graph_cache->same) {
        size_t bytes = write_call(p->calls + p->used, runner, op, args);

        if (bytes <= p->used - graph_cache->at &&
            memcmp(p->calls + graph_cache->at, p->calls + p->used, bytes) == 0) {
            graph_cache->at += bytes;
            return INVAR_OK;
        }
        INVAR_TRY(truncate_record(graph_cache));
    }
    INVAR_TRY(invar_op_runner_run_now(runner, op, args));
    // after it has run, because it may have replaced the scratch
    p->used += write_call(p->calls + p->used, runner, op, args);
    return INVAR_OK;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/*
 * Issues the recorded calls for capture. The op runners are bypassed because scratch must not grow
 * during capture, and the profiler because nothing runs yet.
 */
static invar_status issue_calls(const part *p)
{
    for (const call *c = (const call *)p->calls; (const char *)c < p->calls + p->used;
         c = next_call(c)) {
        invar_device dev = c->caller->dev;

        dev.profiler = NULL;
        INVAR_TRY(invar_op_run(&dev, (invar_op)c->op, c + 1));
    }
    return INVAR_OK;
}

static invar_status capture_graph(invar_cuda_graph_cache *cache, part *p)
{
    const invar_device_graphs *graphs = &cache->dev.backend->graphs;
    invar_status status;

    INVAR_TRY(graphs->begin(&cache->dev));
    status = issue_calls(p);
    if (status == INVAR_OK)
        return graphs->end(&p->graph, &cache->dev);
    (void)graphs->end(NULL, &cache->dev);
    return status;
}

static invar_status launch_part(invar_cuda_graph_cache *cache, part *p)
{
    if (!p->graph && !p->refused && capture_graph(cache, p) != INVAR_OK) {
        // if a call is invalid, running it reports the error
        invar_error_clear();
        p->refused = true;
    }
    if (!p->graph)
        return run_calls(p, p->used);
    return cache->dev.backend->graphs.launch(&cache->dev, p->graph);
}

invar_status invar_cuda_graph_cache_flush(invar_cuda_graph_cache *graph_cache)
{
    part *p = graph_cache->now;

    if (!p)
        return INVAR_OK;
    if (graph_cache->same)
        INVAR_TRY(graph_cache->at == p->used ? launch_part(graph_cache, p)
                                             : truncate_record(graph_cache));
    graph_cache->flushes++;
    graph_cache->now = NULL;
    return INVAR_OK;
}
