/*
 * profile.c - every op and copy of one device.
 *
 * On a GPU a call returns before its op has run. A mark stands before and behind each op, and the
 * op waits in a list until the marks are read: then it is an event. The first mark is set while
 * nothing runs, so that the host knows when it was.
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

#define OUTSIDE "other" /* the phase between phases */
#define MOST_TEXTS 16384
#define TEXT_SIZE 512

typedef struct list {
    invar_profile_event *events;
    size_t count, room;
} list;

struct invar_profile {
    invar_op_profiler meter;
    const char *phase; /* by the builtins of atomics alone */
    int64_t unix_ns;   /* calendar at the monotonic clock's 0; read once */

    /* of the thread that calls ops */
    invar_device dev; /* of the last one */
    int depth;        /* an op that copies is one call */
    bool waits;       /* the call that is measured waits for all before it */
    invar_profile_event now;
    invar_profile_event *waiting; /* (INVAR_DEVICE_TIMERS_MAX / 2) whose marks were not read */
    int64_t n_waiting;
    int64_t *read_ns;  /* (INVAR_DEVICE_TIMERS_MAX) */
    int64_t marks;     /* that are set; 0: not even the first */
    int64_t first_ns;  /* when the first was, by the monotonic clock */
    int64_t looked_ns; /* at memory */
    char **texts;      /* (MOST_TEXTS) operands, each once, by their hash */
    int n_texts;

    pthread_mutex_t lock; /* of what follows */
    list ready, taken;
    int64_t left_out;
    invar_profile_sum *sums, *taken_sums;
    size_t n_sums, room_sums;
    invar_error failure;
};

/* The first failure is kept. */
static void profile_fail(invar_profile *p, invar_status status)
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

/* The tensors of a call, as far as there is room. */
static void op_profiler_call_describe(char out[TEXT_SIZE], const invar_op_profiler_call *call)
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

/* One copy of each text lives as long as the profile; where there are too many, "". */
static const char *keep_text(invar_profile *p, const char *text)
{
    size_t bytes = strlen(text) + 1, at;
    invar_digest digest;
    invar_status status;
    uint64_t hash;

    invar_hash_bytes(&digest, text, bytes);
    memcpy(&hash, digest.bytes, sizeof hash);
    for (at = hash % MOST_TEXTS; p->texts[at]; at = (at + 1) % MOST_TEXTS)
        if (strcmp(p->texts[at], text) == 0)
            return p->texts[at];
    if (p->n_texts == MOST_TEXTS / 2)
        return "";
    status = invar_alloc((void **)&p->texts[at], bytes, 1, "operands of a profile");
    if (status != INVAR_OK) {
        p->texts[at] = NULL;
        profile_fail(p, status);
        return "";
    }
    memcpy(p->texts[at], text, bytes);
    p->n_texts++;
    return p->texts[at];
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Under the lock. */
static invar_status list_grow(list *l)
{
    size_t room = l->room ? 2 * l->room : 1024;
    invar_profile_event *larger = NULL;

    INVAR_TRY(invar_alloc((void **)&larger, room, sizeof *larger, "events of a profile"));
    if (l->count)
        memcpy(larger, l->events, l->count * sizeof *larger);
    invar_free(l->events);
    l->events = larger;
    l->room = room;
    return INVAR_OK;
}

static invar_status add_event(invar_profile *p, const invar_profile_event *event)
{
    if (p->ready.count == INVAR_PROFILE_EVENTS) {
        p->left_out++;
        return INVAR_OK;
    }
    if (p->ready.count == p->ready.room)
        INVAR_TRY(list_grow(&p->ready));
    p->ready.events[p->ready.count++] = *event;
    return INVAR_OK;
}

static invar_status find_sum(invar_profile_sum **out, invar_profile *p,
                             const invar_profile_event *event)
{
    size_t room = p->room_sums ? 2 * p->room_sums : 128;
    invar_profile_sum *larger = NULL;

    for (size_t i = 0; i < p->n_sums; i++) {
        *out = &p->sums[i];
        if (strcmp((*out)->op, event->name) == 0 && strcmp((*out)->phase, event->phase) == 0)
            return INVAR_OK;
    }
    if (p->n_sums == p->room_sums) {
        // two halves: one is filled while the other is out
        INVAR_TRY(invar_alloc((void **)&larger, room, sizeof *larger, "sums of a profile"));
        if (p->n_sums)
            memcpy(larger, p->sums, p->n_sums * sizeof *larger);
        invar_free(p->sums);
        p->sums = larger;
        p->room_sums = room;
    }
    *out = &p->sums[p->n_sums++];
    **out = (invar_profile_sum){.phase = event->phase, .op = event->name};
    return INVAR_OK;
}

static invar_status profile_add(invar_profile *p, const invar_profile_event *event)
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
    status = profile_add(p, event);
    pthread_mutex_unlock(&p->lock);
    profile_fail(p, status);
}

/* Bytes of this process in memory; 0: nobody knows. */
static size_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    char line[128], *second = NULL;

    if (!file)
        return 0;
    if (fgets(line, sizeof line, file)) // pages: all, resident, ...
        (void)strtoul(line, &second, 10);
    fclose(file);
    return second ? (size_t)strtoul(second, NULL, 10) * (size_t)sysconf(_SC_PAGESIZE) : 0;
}

static void look_at_memory(invar_profile *p, const invar_device *dev)
{
    int64_t now = invar_process_clock_ns(CLOCK_MONOTONIC);
    invar_profile_event memory = {.phase = "", .operands = "", .start_ns = p->unix_ns + now};

    if (now - p->looked_ns < INVAR_PROFILE_SAMPLE_NS)
        return;
    p->looked_ns = now;
    memory.bytes = dev->backend->memory.allocated_bytes ? dev->backend->memory.allocated_bytes(dev)
                                                        : resident_bytes();
    if (memory.bytes > 0)
        add_locked(p, &memory);
}

/* ---- marks ----------------------------------------------------------------------------------- */

static invar_status set_first(invar_profile *p, const invar_device *dev)
{
    const invar_device_timers *marks = &dev->backend->marks;

    INVAR_TRY(marks->record(dev, 0));
    INVAR_TRY(marks->elapsed_ns(dev, p->read_ns, 1));
    p->first_ns = invar_process_clock_ns(CLOCK_MONOTONIC);
    p->marks = 1;
    return INVAR_OK;
}

/* Waits for the ops whose marks are set. */
static invar_status read_marks(invar_profile *p, const invar_device *dev)
{
    invar_status status = INVAR_OK;

    if (p->n_waiting > 0)
        status = dev->backend->marks.elapsed_ns(dev, p->read_ns, p->marks);
    for (int64_t i = 0; i < p->n_waiting && status == INVAR_OK; i++) {
        invar_profile_event *event = &p->waiting[i];
        const int64_t *ns = &p->read_ns[2 * i + 1];

        event->start_ns = p->unix_ns + p->first_ns + ns[0];
        event->duration_ns = ns[1] - ns[0];
        add_locked(p, event);
    }
    p->n_waiting = p->marks = 0;
    return status;
}

static invar_status begin_mark(invar_profile *p, const invar_device *dev)
{
    if (p->marks + 2 > INVAR_DEVICE_TIMERS_MAX)
        INVAR_TRY(read_marks(p, dev));
    if (p->marks == 0)
        INVAR_TRY(set_first(p, dev));
    return dev->backend->marks.record(dev, p->marks);
}

static invar_status end_mark(invar_profile *p, const invar_device *dev)
{
    INVAR_TRY(dev->backend->marks.record(dev, p->marks + 1));
    p->waiting[p->n_waiting++] = p->now;
    p->marks += 2;
    // a copy to the host has waited for all: reading costs no more than asking
    return p->waits && p->marks > INVAR_DEVICE_TIMERS_MAX / 2 ? read_marks(p, dev) : INVAR_OK;
}

/* ---- the meter ------------------------------------------------------------------------------- */

static void op_profiler_begin(invar_op_profiler *meter, const invar_device *dev,
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
    p->waits = strcmp(call->name, "get") == 0 || strcmp(call->name, "wait") == 0;
    if (call->op >= 0) {
        op_profiler_call_describe(text, call);
        p->now.operands = keep_text(p, text);
    }
    if (dev->backend->marks.range)
        dev->backend->marks.range(call->name);
    if (dev->backend->marks.record)
        profile_fail(p, begin_mark(p, dev));
    else
        p->now.start_ns = p->unix_ns + invar_process_clock_ns(CLOCK_MONOTONIC);
}

static void end_call(invar_profile *p, const invar_device *dev)
{
    if (dev->backend->marks.record) {
        profile_fail(p, end_mark(p, dev));
    } else {
        p->now.duration_ns = p->unix_ns + invar_process_clock_ns(CLOCK_MONOTONIC) - p->now.start_ns;
        add_locked(p, &p->now);
    }
    if (dev->backend->marks.range)
        dev->backend->marks.range(NULL);
    look_at_memory(p, dev);
}

static void op_profiler_end(invar_op_profiler *meter, const invar_device *dev)
{
    invar_profile *p = (invar_profile *)(void *)meter;
    invar_error of_op = {0};

    if (--p->depth > 0)
        return;
    if (invar_error_last()->status != INVAR_OK) // what the op has to say is not ours to replace
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
    if (profile->n_waiting > 0)
        profile_fail(profile, read_marks(profile, &profile->dev));
}

/* ---- taking ---------------------------------------------------------------------------------- */

invar_status invar_profile_take(invar_profile_batch *out, invar_profile *profile)
{
    list events = profile->taken;
    invar_status status;

    *out = (invar_profile_batch){0};
    invar_free(profile->taken_sums);
    pthread_mutex_lock(&profile->lock);
    profile->taken = profile->ready;
    profile->ready = (list){.events = events.events, .room = events.room};
    profile->taken_sums = profile->sums;
    *out = (invar_profile_batch){profile->taken.events, profile->taken.count, profile->left_out,
                                 profile->taken_sums, profile->n_sums};
    profile->sums = NULL;
    profile->n_sums = profile->room_sums = 0;
    profile->left_out = 0;
    status = profile->failure.status;
    if (status != INVAR_OK)
        invar_error_put(&profile->failure);
    profile->failure = (invar_error){0};
    pthread_mutex_unlock(&profile->lock);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static invar_status make_room(invar_profile *p)
{
    INVAR_TRY(invar_alloc((void **)&p->waiting, INVAR_DEVICE_TIMERS_MAX / 2, sizeof *p->waiting,
                          "a profile"));
    INVAR_TRY(invar_alloc((void **)&p->read_ns, INVAR_DEVICE_TIMERS_MAX, sizeof *p->read_ns,
                          "a profile"));
    INVAR_TRY(invar_alloc((void **)&p->texts, MOST_TEXTS, sizeof *p->texts, "a profile"));
    memset(p->texts, 0, MOST_TEXTS * sizeof *p->texts);
    return INVAR_OK;
}

invar_status invar_profile_new(invar_profile **out)
{
    invar_profile *p = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&p, 1, sizeof *p, "a profile"));
    *p = (invar_profile){.meter = {.begin = op_profiler_begin, .end = op_profiler_end},
                         .phase = OUTSIDE};
    p->unix_ns = invar_process_clock_ns(CLOCK_REALTIME) - invar_process_clock_ns(CLOCK_MONOTONIC);
    INVAR_CHECK(pthread_mutex_init(&p->lock, NULL) == 0);
    status = make_room(p);
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
    for (int i = 0; profile->texts && i < MOST_TEXTS; i++)
        invar_free(profile->texts[i]);
    invar_free(profile->texts);
    invar_free(profile->read_ns);
    invar_free(profile->waiting);
    invar_free(profile->ready.events);
    invar_free(profile->taken.events);
    invar_free(profile->sums);
    invar_free(profile->taken_sums);
    pthread_mutex_destroy(&profile->lock);
    invar_free(profile);
}
