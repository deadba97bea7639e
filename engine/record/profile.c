/*
 * profile.c - measures every op and copy of one device.
 *
 * On a GPU a call returns before its op has run. A timer event is recorded before and after each
 * op, and the op stays in the list `pending` until the timers are read. The first timer after
 * each reading is waited for, so that the host knows its time; all others are relative to it.
 *
 * Fields up to `n_texts` belong to the thread that calls ops, except `phase`, which is atomic.
 * `lock` guards the fields after it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/profile.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/process/process.h"
#include "kernels-deterministic/op_fields.h"

#include "base/invar_banned.h"

#define OUTSIDE "other" /* phase of ops outside of phases */
#define MAX_TEXTS 16384
#define TEXT_SIZE 512

typedef struct event_list {
    invar_profile_event *events;
    int64_t count, capacity;
} event_list;

struct invar_profile {
    invar_op_profiler meter;
    const char *phase; /* accessed with atomic builtins only */
    int64_t unix_ns;   /* Unix time at the monotonic clock's 0; read once */

    /* Fields of the thread that calls ops. */
    invar_device dev;       /* device of the last op */
    int depth;              /* nesting of calls: an op that copies is one call */
    bool call_synchronizes; /* the measured call waits for all previous ones */
    /* the measured call */
    invar_profile_event now;
    /* (INVAR_DEVICE_TIMERS_MAX / 2) calls whose timers were not read */
    invar_profile_event *pending;
    int64_t n_pending;
    int64_t *read_ns;          /* (INVAR_DEVICE_TIMERS_MAX) buffer for the times of timers */
    int64_t marks;             /* number of recorded timers; 0 if not even the first */
    int64_t first_ns;          /* monotonic time of the first timer */
    int64_t memory_sampled_ns; /* monotonic time of the last memory sample */
    char **texts;              /* (MAX_TEXTS) hash table of operand texts */
    int n_texts;

    pthread_mutex_t lock; /* guards the following fields */
    event_list ready, taken;
    int64_t left_out;
    invar_profile_sum *sums, *taken_sums;
    int64_t n_sums, sum_capacity;
    invar_error failure;
};

/* Keeps the first failure until the next take. */
static void keep_failure(invar_profile *p, invar_status status)
{
    if (status == INVAR_OK)
        return;
    pthread_mutex_lock(&p->lock);
    if (p->failure.status == INVAR_OK)
        invar_error_take(&p->failure);
    pthread_mutex_unlock(&p->lock);
    invar_error_clear();
}

/* ---- operands -------------------------------------------------------------------------------- */

static size_t put_tensor(char *out, size_t size, const char *name, const invar_tensor *t)
{
    size_t used = (size_t)snprintf(out, size, "%s %s", name, invar_dtype_name(t->dtype));

    for (int i = 0; i < t->rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%c%" PRId64, i ? ',' : '[', t->shape[i]);
    if (used < size)
        used += (size_t)snprintf(out + used, size - used, "] ");
    return used;
}

/* Describes the tensors of a call, as many as fit. */
static void describe_operands(char out[TEXT_SIZE], const invar_op_profiler_call *call)
{
    size_t used = 0;
    int count;
    const invar_field *fields = invar_op_fields(&count, (invar_op)call->op);

    out[0] = '\0';
    for (int i = 0; i < count && used < TEXT_SIZE; i++)
        if (fields[i].kind == INVAR_FIELD_TENSOR && invar_field_present(&fields[i], call->args))
            used += put_tensor(out + used, TEXT_SIZE - used, fields[i].name,
                               invar_field_in(&fields[i], call->args));
    if (used > 0 && used < TEXT_SIZE)
        out[used - 1] = '\0';
}

/*
 * Returns the only copy of a text, which lives as long as the profile; empty if there are too many.
 */
static const char *intern_text(invar_profile *p, const char *text)
{
    size_t bytes = strlen(text) + 1, at;
    invar_digest digest;
    invar_status status;
    uint64_t hash;

    invar_hash_bytes(&digest, text, bytes);
    memcpy(&hash, digest.bytes, sizeof hash);
    for (at = hash % MAX_TEXTS; p->texts[at]; at = (at + 1) % MAX_TEXTS)
        if (strcmp(p->texts[at], text) == 0)
            return p->texts[at];
    if (p->n_texts == MAX_TEXTS / 2)
        return "";
    status = INVAR_ALLOC(p->texts[at], bytes, "operands of a profile");
    if (status != INVAR_OK) {
        p->texts[at] = NULL;
        keep_failure(p, status);
        return "";
    }
    memcpy(p->texts[at], text, bytes);
    p->n_texts++;
    return p->texts[at];
}

/* ---- events ---------------------------------------------------------------------------------- */

static invar_status add_event(invar_profile *p, const invar_profile_event *event)
{
    if (p->ready.count == INVAR_PROFILE_EVENTS) {
        p->left_out++;
        return INVAR_OK;
    }
    INVAR_TRY(INVAR_GROW(p->ready.events, p->ready.capacity, p->ready.count, p->ready.count + 1,
                         "events of a profile"));
    p->ready.events[p->ready.count++] = *event;
    return INVAR_OK;
}

static invar_status find_sum(invar_profile_sum **out, invar_profile *p,
                             const invar_profile_event *event)
{
    for (int64_t i = 0; i < p->n_sums; i++) {
        *out = &p->sums[i];
        if (strcmp((*out)->op, event->name) == 0 && strcmp((*out)->phase, event->phase) == 0)
            return INVAR_OK;
    }
    // grows from empty after each take, which hands out the array
    INVAR_TRY(INVAR_GROW(p->sums, p->sum_capacity, p->n_sums, p->n_sums + 1, "sums of a profile"));
    *out = &p->sums[p->n_sums++];
    **out = (invar_profile_sum){.phase = event->phase, .op = event->name};
    return INVAR_OK;
}

static invar_status add_to_profile(invar_profile *p, const invar_profile_event *event)
{
    invar_profile_sum *sum;

    if (event->name) {
        INVAR_TRY(find_sum(&sum, p, event));
        sum->calls++;
        sum->duration_ns += event->duration_ns;
        if (event->duration_ns > sum->longest_ns)
            sum->longest_ns = event->duration_ns;
    }
    return add_event(p, event);
}

static void add_locked(invar_profile *p, const invar_profile_event *event)
{
    invar_status status;

    pthread_mutex_lock(&p->lock);
    status = add_to_profile(p, event);
    pthread_mutex_unlock(&p->lock);
    keep_failure(p, status);
}

/* Returns the resident bytes of this process; 0 if unknown. */
static size_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    char line[128], *second = NULL;

    if (!file)
        return 0;
    if (fgets(line, sizeof line, file)) // fields in pages: total, resident, ...
        (void)strtoul(line, &second, 10);
    fclose(file);
    return second ? (size_t)strtoul(second, NULL, 10) * (size_t)sysconf(_SC_PAGESIZE) : 0;
}

static void sample_memory(invar_profile *p, const invar_device *dev)
{
    int64_t now = invar_process_clock_ns(CLOCK_MONOTONIC);
    invar_profile_event memory = {.phase = "", .operands = "", .start_ns = p->unix_ns + now};

    if (now - p->memory_sampled_ns < INVAR_PROFILE_SAMPLE_NS)
        return;
    p->memory_sampled_ns = now;
    memory.bytes = dev->backend->memory.allocated_bytes ? dev->backend->memory.allocated_bytes(dev)
                                                        : resident_bytes();
    if (memory.bytes > 0)
        add_locked(p, &memory);
}

/* ---- timers ---------------------------------------------------------------------------------- */

static invar_status record_first_timer(invar_profile *p, const invar_device *dev)
{
    const invar_device_timers *timers = &dev->backend->timers;

    INVAR_TRY(timers->record(dev, 0));
    INVAR_TRY(timers->elapsed_ns(dev, p->read_ns, 1));
    p->first_ns = invar_process_clock_ns(CLOCK_MONOTONIC);
    p->marks = 1;
    return INVAR_OK;
}

/* Waits for the pending ops and turns them into events. */
static invar_status read_timers(invar_profile *p, const invar_device *dev)
{
    invar_status status = INVAR_OK;

    if (p->n_pending > 0)
        status = dev->backend->timers.elapsed_ns(dev, p->read_ns, p->marks);
    for (int64_t i = 0; i < p->n_pending && status == INVAR_OK; i++) {
        invar_profile_event *event = &p->pending[i];
        const int64_t *ns = &p->read_ns[2 * i + 1];

        event->start_ns = p->unix_ns + p->first_ns + ns[0];
        event->duration_ns = ns[1] - ns[0];
        add_locked(p, event);
    }
    p->n_pending = p->marks = 0;
    return status;
}

static invar_status record_begin_timer(invar_profile *p, const invar_device *dev)
{
    if (p->marks + 2 > INVAR_DEVICE_TIMERS_MAX)
        INVAR_TRY(read_timers(p, dev));
    if (p->marks == 0)
        INVAR_TRY(record_first_timer(p, dev));
    return dev->backend->timers.record(dev, p->marks);
}

static invar_status record_end_timer(invar_profile *p, const invar_device *dev)
{
    INVAR_TRY(dev->backend->timers.record(dev, p->marks + 1));
    p->pending[p->n_pending++] = p->now;
    p->marks += 2;
    // the call has waited for all ops, so reading the timers costs nothing more
    return p->call_synchronizes && p->marks > INVAR_DEVICE_TIMERS_MAX / 2 ? read_timers(p, dev)
                                                                          : INVAR_OK;
}

/* ---- profiler callbacks ---------------------------------------------------------------------- */

static void on_op_begin(invar_op_profiler *meter, const invar_device *dev,
                        const invar_op_profiler_call *call)
{
    invar_profile *p = (invar_profile *)(void *)meter;
    char text[TEXT_SIZE];

    if (p->depth++ > 0)
        return;
    p->dev = *dev;
    p->now = (invar_profile_event){.name = call->name,
                                   .phase = __atomic_load_n(&p->phase, __ATOMIC_ACQUIRE),
                                   .operands = "",
                                   .bytes = call->bytes};
    p->call_synchronizes = strcmp(call->name, "get") == 0 || strcmp(call->name, "wait") == 0;
    if (call->op >= 0) {
        describe_operands(text, call);
        p->now.operands = intern_text(p, text);
    }
    if (dev->backend->timers.range)
        dev->backend->timers.range(call->name);
    if (dev->backend->timers.record)
        keep_failure(p, record_begin_timer(p, dev));
    else
        p->now.start_ns = p->unix_ns + invar_process_clock_ns(CLOCK_MONOTONIC);
}

static void end_call(invar_profile *p, const invar_device *dev)
{
    if (dev->backend->timers.record) {
        keep_failure(p, record_end_timer(p, dev));
    } else {
        p->now.duration_ns = p->unix_ns + invar_process_clock_ns(CLOCK_MONOTONIC) - p->now.start_ns;
        add_locked(p, &p->now);
    }
    if (dev->backend->timers.range)
        dev->backend->timers.range(NULL);
    sample_memory(p, dev);
}

static void on_op_end(invar_op_profiler *meter, const invar_device *dev)
{
    invar_profile *p = (invar_profile *)(void *)meter;
    invar_error of_op = {0};

    if (--p->depth > 0)
        return;
    if (invar_error_last()->status !=
        INVAR_OK) // the error of the op must survive failures of the profile
        invar_error_take(&of_op);
    end_call(p, dev);
    if (of_op.status != INVAR_OK)
        invar_error_put(&of_op);
}

invar_op_profiler *invar_profile_meter(invar_profile *profile)
{
    return profile ? &profile->meter : NULL;
}

void invar_profile_switch(invar_profile *profile, bool on)
{
    __atomic_store_n(&profile->meter.enabled, on, __ATOMIC_RELEASE);
}

void invar_profile_phase(invar_profile *profile, const char *phase)
{
    __atomic_store_n(&profile->phase, phase ? phase : OUTSIDE, __ATOMIC_RELEASE);
}

void invar_profile_flush(invar_profile *profile)
{
    if (profile->n_pending > 0)
        keep_failure(profile, read_timers(profile, &profile->dev));
}

/* ---- taking ---------------------------------------------------------------------------------- */

invar_status invar_profile_take(invar_profile_batch *out, invar_profile *profile)
{
    event_list events = profile->taken;
    invar_status status;

    *out = (invar_profile_batch){0};
    invar_free(profile->taken_sums);
    pthread_mutex_lock(&profile->lock);
    profile->taken = profile->ready;
    profile->ready = (event_list){.events = events.events, .capacity = events.capacity};
    profile->taken_sums = profile->sums;
    *out = (invar_profile_batch){profile->taken.events, (size_t)profile->taken.count,
                                 profile->left_out, profile->taken_sums, (size_t)profile->n_sums};
    profile->sums = NULL;
    profile->n_sums = profile->sum_capacity = 0;
    profile->left_out = 0;
    status = profile->failure.status;
    if (status != INVAR_OK)
        invar_error_put(&profile->failure);
    profile->failure = (invar_error){0};
    pthread_mutex_unlock(&profile->lock);
    return status;
}

/* ---- new and free ---------------------------------------------------------------------------- */

static invar_status alloc_buffers(invar_profile *p)
{
    INVAR_TRY(INVAR_ALLOC(p->pending, INVAR_DEVICE_TIMERS_MAX / 2, "a profile"));
    INVAR_TRY(INVAR_ALLOC(p->read_ns, INVAR_DEVICE_TIMERS_MAX, "a profile"));
    INVAR_TRY(INVAR_ALLOC_ZEROED(p->texts, MAX_TEXTS, "a profile"));
    return INVAR_OK;
}

invar_status invar_profile_new(invar_profile **out)
{
    invar_profile *p = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(p, 1, "a profile"));
    *p = (invar_profile){.meter = {.begin = on_op_begin, .end = on_op_end}, .phase = OUTSIDE};
    p->unix_ns = invar_process_clock_ns(CLOCK_REALTIME) - invar_process_clock_ns(CLOCK_MONOTONIC);
    INVAR_CHECK(pthread_mutex_init(&p->lock, NULL) == 0);
    status = alloc_buffers(p);
    if (status != INVAR_OK) {
        invar_profile_free(p);
        return status;
    }
    *out = p;
    return INVAR_OK;
}

void invar_profile_free(invar_profile *profile)
{
    if (!profile)
        return;
    for (int i = 0; profile->texts && i < MAX_TEXTS; i++)
        invar_free(profile->texts[i]);
    invar_free(profile->texts);
    invar_free(profile->read_ns);
    invar_free(profile->pending);
    invar_free(profile->ready.events);
    invar_free(profile->taken.events);
    invar_free(profile->sums);
    invar_free(profile->taken_sums);
    pthread_mutex_destroy(&profile->lock);
    invar_free(profile);
}
