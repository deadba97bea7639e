/*
 * fake_gpu.c - a backend whose memory the host cannot access, with the ops of the CPU.
 *
 * The memory is one region of address space, reserved once and protected. Blocks are allocated
 * first fit and listed by address. The used part is made accessible around each op and copy, by one
 * thread at a time; it consists of huge pages if the system has them, since the time of the change
 * grows with the number of pages. A device may be opened several times, each for a thread of its
 * own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // MAP_ANONYMOUS, mincore

#include "tests/device/fake_gpu.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "kernels-deterministic/ops.h"

#define REGION ((size_t)1 << 34)
#define HUGE ((size_t)2 << 20)
#define MAX_BLOCKS 4096
#define MAX_CONTEXTS 8
#define MAX_LABEL 48

typedef struct block {
    size_t at, bytes; /* multiples of INVAR_ALIGN */
    char what[MAX_LABEL];
} block;

/* An op in a graph. */
typedef struct graph_op {
    struct graph_op *next;
    invar_op op;
    void *scratch;
    void *args; /* copy of the arguments, owned */
} graph_op;

struct invar_device_graph {
    graph_op *first, **last;
};

/* An opened device. */
typedef struct device_context {
    bool open;
    invar_device_graph *graph;              /* graph being captured; NULL if ops run at once */
    int64_t last_call;                      /* time in milliseconds */
    int64_t marks[INVAR_DEVICE_TIMERS_MAX]; /* timers in nanoseconds */
} device_context;

/* Held while the memory is accessible; guards blocks and counts. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
    device_context devices[MAX_CONTEXTS]; /* the first one belongs to the run */
    char *base;
    block blocks[MAX_BLOCKS]; /* (count) ordered by address */
    int count;
    int fail_at;
    size_t limit; /* 0 for the complete region */
    bool no_graphs;
    int64_t idle_ms; /* delay of downloads in milliseconds */
    int64_t lose_at; /* index of the call; 0 for never */
    bool delayed;
    invar_fake_gpu_counts counts;
    struct sigaction before; /* previous handler of segmentation faults */
} far;

/* ---- blocks ---------------------------------------------------------------------------------- */

static const block *block_of(const void *address)
{
    size_t at = (size_t)((const char *)address - far.base);

    for (int i = 0; i < far.count; i++)
        if (at >= far.blocks[i].at && at - far.blocks[i].at < far.blocks[i].bytes)
            return &far.blocks[i];
    return NULL;
}

static bool is_device_memory(const void *address)
{
    return far.base && (const char *)address >= far.base &&
           (size_t)((const char *)address - far.base) < REGION;
}

/* Returns whether all bytes are in one block. */
static bool is_in_one_block(const void *piece, size_t bytes)
{
    const block *b = is_device_memory(piece) ? block_of(piece) : NULL;

    return b && (size_t)((const char *)piece - far.base) - b->at + bytes <= b->bytes;
}

/* Reports the accessed block; then restores the previous handler, under which the fault repeats. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    const block *b = is_device_memory(info->si_addr) ? block_of(info->si_addr) : NULL;
    char line[160];
    int length = snprintf(line, sizeof line, "far: the host touched the device's memory: %s\n",
                          b ? b->what : "no block");

    (void)context;
    if (is_device_memory(info->si_addr) && write(STDERR_FILENO, line, (size_t)length) < 0)
        _exit(1);
    sigaction(number, &far.before, NULL);
}

static void protect(int how)
{
    const block *last = far.count > 0 ? &far.blocks[far.count - 1] : NULL;
    size_t used = last ? (last->at + last->bytes + HUGE - 1) / HUGE * HUGE : 0;

    INVAR_CHECK(used == 0 || mprotect(far.base, used, how) == 0);
}

static void open_memory(void)
{
    pthread_mutex_lock(&lock);
    protect(PROT_READ | PROT_WRITE);
}

static void close_memory(void)
{
    protect(PROT_NONE);
    pthread_mutex_unlock(&lock);
}

/* Finds `bytes` between the blocks or after them. */
static int find_gap(size_t *at_out, size_t bytes)
{
    size_t end = 0;

    for (int i = 0; i < far.count; i++) {
        if (far.blocks[i].at - end >= bytes) {
            *at_out = end;
            return i;
        }
        end = far.blocks[i].at + far.blocks[i].bytes;
    }
    *at_out = end;
    return far.count;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static device_context *context_of(const invar_device *dev)
{
    device_context *o = dev->context;

    return o && o->open ? o : NULL;
}

static invar_status check_device(const invar_device *dev)
{
    if (!context_of(dev))
        return INVAR_FAIL(INVAR_E_STATE, 0, "far: the device was not opened");
    return INVAR_OK;
}

/* Fails during a capture, for calls that a graph cannot contain. */
static invar_status check_direct(const invar_device *dev)
{
    INVAR_TRY(check_device(dev));
    if (context_of(dev)->graph)
        return INVAR_FAIL(INVAR_E_STATE, 0, "far: only ops belong into a graph");
    return INVAR_OK;
}

static int64_t milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits as invar_fake_gpu_delay requests. */
static void delay_download(const invar_device *dev)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const device_context *run = &far.devices[0];
    bool early = context_of(dev) != run;

    while (early) {
        pthread_mutex_lock(&lock);
        early = milliseconds() - run->last_call < far.idle_ms;
        pthread_mutex_unlock(&lock);
        if (early)
            nanosleep(&pause, NULL);
    }
}

typedef enum call { CALL_ALLOCATES, CALL_ENQUEUES, CALL_WAITS } call;

/*
 * Counts a call of any thread. *dead_out is set if the call has no effect because the device is
 * lost.
 */
static invar_status count_call(bool *dead_out, const invar_device *dev, call kind)
{
    bool reported;

    pthread_mutex_lock(&lock);
    context_of(dev)->last_call = milliseconds();
    *dead_out = ++far.counts.calls >= far.lose_at && far.lose_at > 0;
    far.counts.waits += kind == CALL_WAITS;
    reported = *dead_out && (!far.delayed || far.counts.lost || kind == CALL_WAITS);
    far.counts.lost = far.counts.lost || reported;
    pthread_mutex_unlock(&lock);
    return reported ? INVAR_FAIL(INVAR_E_CUDA, 0, "far: the device is lost") : INVAR_OK;
}

static size_t memory_of_device(void)
{
    return far.limit ? far.limit : REGION;
}

/* Returns a new block; NULL if there is not enough memory. */
static char *add_block(size_t bytes, const char *what)
{
    size_t rounded_bytes = (bytes + !bytes + INVAR_ALIGN - 1) / INVAR_ALIGN * INVAR_ALIGN, at;
    int index;

    if (++far.counts.takes == far.fail_at || bytes > REGION || far.count == MAX_BLOCKS ||
        far.counts.bytes + rounded_bytes > memory_of_device())
        return NULL;
    index = find_gap(&at, rounded_bytes);
    if (at + rounded_bytes > REGION)
        return NULL;
    memmove(&far.blocks[index + 1], &far.blocks[index],
            (size_t)(far.count - index) * sizeof *far.blocks);
    far.count++;
    far.blocks[index] = (block){.at = at, .bytes = rounded_bytes};
    snprintf(far.blocks[index].what, MAX_LABEL, "%s", what);
    far.counts.live++;
    far.counts.bytes += rounded_bytes;
    far.counts.most = far.counts.bytes > far.counts.most ? far.counts.bytes : far.counts.most;
    protect(PROT_READ | PROT_WRITE);
    // a value that is read before it was written is NaN
    memset(far.base + at, 0xFF, rounded_bytes);
    protect(PROT_NONE);
    return far.base + at;
}

static invar_status alloc_device(const invar_device *dev, void **out, size_t bytes,
                                 const char *what)
{
    bool is_lost;

    *out = NULL;
    INVAR_TRY(check_direct(dev));
    INVAR_TRY(count_call(&is_lost, dev, CALL_ALLOCATES));
    pthread_mutex_lock(&lock);
    *out = add_block(bytes, what);
    pthread_mutex_unlock(&lock);
    if (!*out)
        return INVAR_FAIL(INVAR_E_NOMEM, INVAR_DEVICE_NOMEM,
                          "%s: no memory for %zu bytes on the device", what, bytes);
    return INVAR_OK;
}

static void free_device(const invar_device *dev, void *address)
{
    const block *b;
    int index;

    if (!address)
        return;
    pthread_mutex_lock(&lock);
    b = is_device_memory(address) ? block_of(address) : NULL;
    INVAR_CHECK(context_of(dev) && b && far.base + b->at == address);
    index = (int)(b - far.blocks);
    far.counts.bytes -= b->bytes;
    memmove(&far.blocks[index], &far.blocks[index + 1],
            (size_t)(far.count - index - 1) * sizeof *far.blocks);
    far.count--;
    far.counts.live--;
    pthread_mutex_unlock(&lock);
}

static size_t free_bytes(const invar_device *dev)
{
    size_t used;

    INVAR_CHECK(context_of(dev));
    pthread_mutex_lock(&lock);
    used = far.counts.bytes;
    pthread_mutex_unlock(&lock);
    return memory_of_device() - used;
}

static invar_status alloc_host(const invar_device *dev, void **out, size_t bytes, const char *what)
{
    INVAR_TRY(check_direct(dev));
    return invar_alloc(out, bytes, 1, what);
}

static void free_host(const invar_device *dev, void *address)
{
    INVAR_CHECK(context_of(dev));
    invar_free(address);
}

/* Copies between host and device; to_far and from_far are the ends in device memory. */
static invar_status copy_between(const invar_device *dev, void *to, const void *from, size_t bytes,
                                 bool to_far, bool from_far)
{
    bool is_lost, valid;

    INVAR_TRY(check_direct(dev));
    INVAR_TRY(count_call(&is_lost, dev, to_far ? CALL_ENQUEUES : CALL_WAITS));
    if (bytes == 0)
        return INVAR_OK;
    open_memory();
    valid = (to_far ? is_in_one_block(to, bytes) : !is_device_memory(to)) &&
            (from_far ? is_in_one_block(from, bytes) : !is_device_memory(from));
    if (valid && !is_lost)
        memcpy(to, from, bytes);
    close_memory();
    if (!valid)
        return INVAR_FAIL(INVAR_E_STATE, 0, "far: a copy of %zu bytes leads elsewhere", bytes);
    return INVAR_OK;
}

static invar_status upload(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    return copy_between(dev, to, from, bytes, true, false);
}

static invar_status download(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    INVAR_TRY(check_device(dev));
    delay_download(dev);
    return copy_between(dev, to, from, bytes, false, true);
}

static invar_status copy(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    return copy_between(dev, to, from, bytes, true, true);
}

bool invar_fake_gpu_copy(void *to, const void *from, size_t bytes, bool flip)
{
    bool valid;

    open_memory();
    valid = is_in_one_block(to, bytes) && is_in_one_block(from, bytes);
    if (valid) {
        memcpy(to, from, bytes);
        *(char *)to ^= (char)flip;
    }
    close_memory();
    return valid;
}

static invar_status copy_each(const invar_device *dev, void *to, const void *from, size_t bytes,
                              size_t stride, size_t count)
{
    for (size_t i = 0; i < count; i++)
        INVAR_TRY(copy(dev, (char *)to + i * stride, (const char *)from + i * stride, bytes));
    return INVAR_OK;
}

static invar_status zero(const invar_device *dev, void *at, size_t bytes)
{
    bool is_lost, valid;

    INVAR_TRY(check_direct(dev));
    INVAR_TRY(count_call(&is_lost, dev, CALL_ENQUEUES));
    if (bytes == 0)
        return INVAR_OK;
    open_memory();
    valid = is_in_one_block(at, bytes);
    if (valid && !is_lost)
        memset(at, 0, bytes);
    close_memory();
    if (!valid)
        return INVAR_FAIL(INVAR_E_STATE, 0, "far: %zu bytes of zeros lead elsewhere", bytes);
    return INVAR_OK;
}

static invar_status wait(const invar_device *dev)
{
    bool is_lost;

    INVAR_TRY(check_direct(dev));
    return count_call(&is_lost, dev, CALL_WAITS);
}

/* ---- ops ------------------------------------------------------------------------------------- */

/*
 * Returns whether a word is an address that is mapped and outside of this memory. Other numbers in
 * arguments are too small to be addresses.
 */
static bool is_host_address(uintptr_t word)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    unsigned char resident;

    return INVAR_FAKE_GPU_REJECTS_HOST_ADDRESSES && word >> 40 != 0 && word >> 48 == 0 &&
           !is_device_memory((const void *)word) &&
           mincore((void *)(word / page * page), 1, &resident) == 0;
}

/* Padding between the fields of a struct may contain an address. */
#if defined __has_builtin
#if __has_builtin(__builtin_clear_padding)
#define CLEAR_PADDING(object) __builtin_clear_padding(object)
#endif
#endif
#ifndef CLEAR_PADDING
#define CLEAR_PADDING(object) ((void)(object))
#endif

static invar_status check_words(invar_op op, const void *args, size_t bytes)
{
    for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
        uintptr_t word;

        memcpy(&word, (const char *)args + at, sizeof word);
        if (is_host_address(word))
            return INVAR_FAIL(INVAR_E_STATE, 0,
                              "far: %s: byte %zu of its arguments leads to the host",
                              invar_op_name(op), at);
    }
    return INVAR_OK;
}

/* Checks the tensors of a list; the list itself is in host memory. */
static invar_status check_list(invar_op op, const invar_tensor *list, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        invar_tensor tensor = list[i];

        CLEAR_PADDING(&tensor);
        INVAR_TRY(check_words(op, &tensor, sizeof tensor));
    }
    return INVAR_OK;
}

static invar_status check_args(invar_op op, const void *args, const void *clean, size_t bytes)
{
    const invar_grad_norm_args *norm = args;
    const invar_hash_tree_args *hash = args;
    invar_adamw_args adamw;

    switch (op) {
    case INVAR_OP_GRAD_NORM: return check_list(op, norm->grads, norm->count);
    case INVAR_OP_HASH_TREE:
        INVAR_TRY(check_words(op, &hash->digest, sizeof hash->digest));
        return check_list(op, hash->x, hash->count);
    case INVAR_OP_ADAMW:
        adamw = *(const invar_adamw_args *)clean;
        adamw.end = NULL;
        return check_words(op, &adamw, bytes);
    default: return check_words(op, clean, bytes);
    }
}

static size_t workspace(const invar_device *dev, invar_op op, const void *args)
{
    size_t bytes;

    open_memory();
    bytes = invar_backend_cpu()->ops[op].workspace(dev, args);
    close_memory();
    return bytes;
}

static invar_status run_now(const invar_device *dev, invar_op op, const void *args, void *scratch)
{
    invar_status status;
    bool is_lost;

    INVAR_TRY(count_call(&is_lost, dev, op == INVAR_OP_GRAD_NORM ? CALL_WAITS : CALL_ENQUEUES));
    if (is_lost)
        return INVAR_OK;
    open_memory();
    far.counts.ops++;
    status = invar_backend_cpu()->ops[op].run(dev, args, scratch);
    close_memory();
    return status;
}

static invar_status append_to_graph(invar_device_graph *graph, invar_op op, const void *args,
                                    size_t bytes, void *scratch)
{
    graph_op *n;

    if (op == INVAR_OP_GRAD_NORM || op == INVAR_OP_HASH_TREE || op == INVAR_OP_ADAMW)
        return INVAR_FAIL(INVAR_E_STATE, 0, "far: %s: its list is the host's", invar_op_name(op));
    INVAR_TRY(INVAR_ALLOC(n, 1, "an op of a graph"));
    *n = (graph_op){.op = op, .scratch = scratch};
    *graph->last = n;
    graph->last = &n->next;
    INVAR_TRY(invar_alloc(&n->args, bytes, 1, "the arguments of an op of a graph"));
    memcpy(n->args, args, bytes);
    return INVAR_OK;
}

/* Runs an op or adds it to a graph. `clean` is a copy of the arguments without padding. */
static invar_status run(const invar_device *dev, invar_op op, const void *args, const void *clean,
                        size_t bytes, void *scratch)
{
    invar_device_graph *graph;

    INVAR_TRY(check_device(dev));
    INVAR_TRY(check_args(op, args, clean, bytes));
    if (scratch && !is_device_memory(scratch))
        return INVAR_FAIL(INVAR_E_STATE, 0, "far: %s: its scratch is the host's",
                          invar_op_name(op));
    graph = context_of(dev)->graph;
    return graph ? append_to_graph(graph, op, args, bytes, scratch)
                 : run_now(dev, op, args, scratch);
}

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    static size_t workspace_##fn(const invar_device *dev, const void *args)                        \
    {                                                                                              \
        return workspace(dev, INVAR_OP_##ID, args);                                                \
    }                                                                                              \
    static invar_status run_##fn(const invar_device *dev, const void *args, void *scratch)         \
    {                                                                                              \
        invar_##fn##_args clean = *(const invar_##fn##_args *)args;                                \
                                                                                                   \
        CLEAR_PADDING(&clean);                                                                     \
        return run(dev, INVAR_OP_##ID, args, &clean, sizeof clean, scratch);                       \
    }
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

/* ---- graphs ---------------------------------------------------------------------------------- */

static void free_graph(invar_device_graph *graph)
{
    graph_op *next;

    for (graph_op *n = graph->first; n; n = next) {
        next = n->next;
        invar_free(n->args);
        invar_free(n);
    }
    invar_free(graph);
}

static invar_status graph_begin(const invar_device *dev)
{
    invar_device_graph *graph;

    INVAR_TRY(check_direct(dev));
    INVAR_TRY(INVAR_ALLOC(graph, 1, "a graph"));
    graph->first = NULL;
    graph->last = &graph->first;
    context_of(dev)->graph = graph;
    return INVAR_OK;
}

static invar_status graph_end(invar_device_graph **out, const invar_device *dev)
{
    invar_device_graph *graph;

    INVAR_TRY(check_device(dev));
    graph = context_of(dev)->graph;
    INVAR_CHECK(graph);
    context_of(dev)->graph = NULL;
    if (!out || far.no_graphs) {
        free_graph(graph);
        return out ? INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "far: no graphs") : INVAR_OK;
    }
    pthread_mutex_lock(&lock);
    far.counts.graphs++;
    far.counts.live_graphs++;
    pthread_mutex_unlock(&lock);
    *out = graph;
    return INVAR_OK;
}

static invar_status graph_run(const invar_device *dev, invar_device_graph *graph)
{
    INVAR_TRY(check_direct(dev));
    pthread_mutex_lock(&lock);
    far.counts.graph_runs++;
    pthread_mutex_unlock(&lock);
    for (const graph_op *n = graph->first; n; n = n->next)
        INVAR_TRY(run_now(dev, n->op, n->args, n->scratch));
    return INVAR_OK;
}

static void graph_free(const invar_device *dev, invar_device_graph *graph)
{
    if (!graph)
        return;
    INVAR_CHECK(context_of(dev));
    pthread_mutex_lock(&lock);
    far.counts.live_graphs--;
    pthread_mutex_unlock(&lock);
    free_graph(graph);
}

/* ---- timers ---------------------------------------------------------------------------------- */

static invar_status check_mark(const invar_device *dev)
{
    INVAR_TRY(check_direct(dev)); // a timer in a graph would measure nothing
    return invar_fake_gpu_counted().lost ? INVAR_FAIL(INVAR_E_CUDA, 0, "far: the device is lost")
                                         : INVAR_OK;
}

static invar_status mark_set(const invar_device *dev, int64_t at)
{
    struct timespec now;

    INVAR_TRY(check_mark(dev));
    INVAR_CHECK(at >= 0 && at < INVAR_DEVICE_TIMERS_MAX);
    clock_gettime(CLOCK_MONOTONIC, &now);
    context_of(dev)->marks[at] = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    return INVAR_OK;
}

static invar_status mark_read(const invar_device *dev, int64_t *ns_out, int64_t count)
{
    const device_context *of = context_of(dev);

    INVAR_TRY(check_mark(dev));
    for (int64_t i = 0; i < count; i++)
        ns_out[i] = of->marks[i] - of->marks[0];
    return INVAR_OK;
}

/* ---- the backend ----------------------------------------------------------------------------- */

static invar_status reserve_memory(void)
{
    void *space = far.base ? NULL
                           : mmap(NULL, REGION + HUGE, PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (far.base)
        return INVAR_OK;
    if (space == MAP_FAILED)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "far: no address space");
    far.base = (char *)space + (HUGE - (uintptr_t)space % HUGE) % HUGE;
    (void)madvise(far.base, REGION, MADV_HUGEPAGE);
    return INVAR_OK;
}

static invar_status open_device(invar_device *dev)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    device_context *free_context = far.devices;
    invar_status status;

    pthread_mutex_lock(&lock); // ranks that are threads open their devices at the same time
    status = reserve_memory();
    if (status == INVAR_OK) {
        if (far.counts.opens++ == 0)
            sigaction(SIGSEGV, &action, &far.before);
        while (free_context < far.devices + MAX_CONTEXTS && free_context->open)
            free_context++;
        INVAR_CHECK(free_context < far.devices + MAX_CONTEXTS);
        *free_context = (device_context){.open = true};
        dev->context = free_context;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static void close_device(invar_device *dev)
{
    if (!context_of(dev))
        return;
    pthread_mutex_lock(&lock);
    context_of(dev)->open = false;
    if (--far.counts.opens == 0)
        sigaction(SIGSEGV, &far.before, NULL);
    pthread_mutex_unlock(&lock);
    dev->context = NULL;
}

const invar_backend *invar_fake_gpu_backend(void)
{
    static const invar_backend backend = {
        .abi = INVAR_BACKEND_ABI,
        .name = "fake_gpu",
        .open = open_device,
        .close = close_device,
        .memory = {true, alloc_device, free_device, alloc_host, free_host, free_bytes, NULL, upload,
                   download, copy, copy_each, zero, wait},
        .graphs = {graph_begin, graph_end, graph_run, graph_free},
        .timers = {mark_set, mark_read, NULL},
        .ops =
            {
#define INVAR_OP(ID, fn, name, revision, numerics) [INVAR_OP_##ID] = {workspace_##fn, run_##fn},
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
            },
    };

    return &backend;
}

void invar_fake_gpu_begin(int fail_at)
{
    INVAR_CHECK(far.counts.live == 0 && far.counts.opens == 0 && far.counts.live_graphs == 0);
    far.counts = (invar_fake_gpu_counts){0};
    far.fail_at = fail_at;
    far.limit = 0;
    far.no_graphs = false;
    far.lose_at = 0;
    far.idle_ms = 0;
}

void invar_fake_gpu_delay(int64_t idle_ms)
{
    pthread_mutex_lock(&lock);
    far.idle_ms = idle_ms;
    pthread_mutex_unlock(&lock);
}

void invar_fake_gpu_limit(size_t bytes)
{
    far.limit = bytes;
}

void invar_fake_gpu_refuse_graphs(void)
{
    far.no_graphs = true;
}

void invar_fake_gpu_lose(int64_t at, bool delayed)
{
    pthread_mutex_lock(&lock);
    far.lose_at = at;
    far.delayed = delayed;
    pthread_mutex_unlock(&lock);
}

invar_fake_gpu_counts invar_fake_gpu_counted(void)
{
    invar_fake_gpu_counts counts;

    pthread_mutex_lock(&lock);
    counts = far.counts;
    pthread_mutex_unlock(&lock);
    return counts;
}

invar_status invar_fake_gpu_open(invar_device *out, const invar_device *near)
{
    *out = *near;
    out->backend = invar_fake_gpu_backend();
    out->scratch = NULL;
    invar_fake_gpu_begin(0);
    return invar_device_open(out);
}
