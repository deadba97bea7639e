/*
 * device.h - where ops run: numerics, backends, op tables.
 *
 * A backend is a constant table with one entry per op of ops.def. An op without an entry is an
 * error, never a fallback to other arithmetic. Numerics is always explicit, never derived from the
 * machine. Arguments are checked once, by code that all backends share, before a backend sees them.
 *
 * Every pointer in an op's arguments leads into the backend's memory, except the lists of tensors
 * of grad.norm and hash.tree and the two results of grad.norm. Where that memory is far (a GPU's),
 * the host cannot look at it: what the check would have read (segments, indices, lengths) the
 * backend checks itself while it runs, reads and writes nothing out of bounds, and reports at the
 * next get or wait. Ops on one device run in the order of the calls, and a call may return before
 * its op has run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_DEVICE_H
#define INVAR_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/hash.h"
#include "base/pool.h"
#include "base/recipe/choices.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_CHOICES INVAR_CHOICES_ENUM
#define INVAR_CHOICE INVAR_CHOICE_ID
#include "kernels-deterministic/choices.def"
#undef INVAR_CHOICES
#undef INVAR_CHOICE

typedef enum invar_op {
#define INVAR_OP(ID, fn, name, revision, numerics) INVAR_OP_##ID,
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
    INVAR_OP_COUNT
} invar_op;

/* Which of the bit-equal CPU code paths runs; PORTABLE exists for tests and for comparison. */
typedef enum invar_cpu_path { INVAR_CPU_PATH_SIMD, INVAR_CPU_PATH_PORTABLE } invar_cpu_path;

typedef struct invar_backend invar_backend;
typedef struct invar_device invar_device;

/* An op or a copy, for whoever measures it. */
typedef struct invar_op_profiler_call {
    const char *name; /* "linear.fwd", "put"; a constant */
    int op;           /* invar_op; -1: none, and without arguments */
    const void *args; /* borrowed until `begin` returns */
    size_t bytes;     /* of scratch, or that are copied */
} invar_op_profiler_call;

/*
 * Who measures what runs on a device; no result depends on it. One thread calls ops of a device at
 * a time, and so `begin` and `end`; `on` may be switched by another one at any time. What an op
 * itself copies is measured within it.
 */
typedef struct invar_op_profiler {
    bool enabled; /* read and written by the builtins of atomics alone */
    void (*begin)(struct invar_op_profiler *meter, const invar_device *dev,
                  const invar_op_profiler_call *call);
    void (*end)(struct invar_op_profiler *meter, const invar_device *dev);
} invar_op_profiler;

/* All that a call of an op needs besides its arguments. Caller-owned; fields are set directly. */
struct invar_device {
    const invar_backend *backend;
    invar_numerics numerics;
    invar_cpu_path cpu_path;
    invar_pool *pool;     /* NULL: the calling thread alone */
    invar_arena *scratch; /* reserved; ops push what they need and rewind it */
    int ordinal;          /* which of the machine's; from the last on, the first follows again,
                              and once it is open, the one that it is */
    bool high_priority;   /* opened so, its ops go before those of others on the same one */
    void *context;        /* the backend's own, made by its `open`; NULL where it has none */
    invar_op_profiler *profiler; /* borrowed; NULL: none */
};

/*
 * The native code of an INVAR_E_NOMEM that means memory of a device whose memory is far: CUDA's own
 * for that. Without it the host's memory is meant.
 */
#define INVAR_DEVICE_NOMEM 2

/* The memory of a backend. Copies are ordered with the ops of the device. */
typedef struct invar_device_memory {
    bool device_local; /* the host can neither read nor write it */
    /* Aligned to INVAR_ALIGN at least; its content is undefined. `what` is for the message. */
    invar_status (*alloc)(const invar_device *dev, void **out, size_t bytes, const char *what);
    void (*free)(const invar_device *dev, void *block);
    /* Of the host, for what travels often or in bulk: copies are fastest from and to there. */
    invar_status (*alloc_host)(const invar_device *dev, void **out, size_t bytes, const char *what);
    void (*free_host)(const invar_device *dev, void *block);
    /* Bytes that could be taken now, more or less. NULL: nobody knows. */
    size_t (*free_bytes)(const invar_device *dev);
    /* Bytes that this process has taken and not given back. NULL: those of the process count. */
    size_t (*allocated_bytes)(const invar_device *dev);
    /* From the host; `from` may be changed as soon as the call returns. */
    invar_status (*upload)(const invar_device *dev, void *to, const void *from, size_t bytes);
    /* To the host, once everything before it has run. */
    invar_status (*download)(const invar_device *dev, void *to, const void *from, size_t bytes);
    /* Within the memory; the two do not overlap. */
    invar_status (*copy)(const invar_device *dev, void *to, const void *from, size_t bytes);
    /* The same for `count` pieces, `stride` bytes from one to the next at both ends. */
    invar_status (*copy_strided)(const invar_device *dev, void *to, const void *from, size_t bytes,
                                 size_t stride, size_t count);
    invar_status (*zero)(const invar_device *dev, void *at, size_t bytes);
    /* Until everything has run; fails with what failed in it. */
    invar_status (*synchronize)(const invar_device *dev);
    /* Which memory it is: devices with the same one share it. NULL: the host's, or nobody knows. */
    void (*identify)(const invar_device *dev, invar_digest *out);
    /* No op runs, as while memory is planned: what lies there means nothing, and is not checked. */
    bool dry_run;
    /* All that will be taken has been planned: nobody takes more than needed, to grow into. */
    bool exact_size;
} invar_device_memory;

typedef struct invar_device_graph invar_device_graph;

/*
 * Ops that are noted once and then run together, as often as wanted: the same arguments, so the
 * same addresses, with whatever these hold by then. Between begin and end a device is asked for
 * ops alone, and for none that has a list or a result on the host.
 */
typedef struct invar_device_graphs {
    invar_status (*begin)(const invar_device *dev); /* NULL: the backend has none */
    /* With `out` NULL, or when it fails: what was noted is forgotten. */
    invar_status (*end)(invar_device_graph **out, const invar_device *dev);
    invar_status (*launch)(const invar_device *dev, invar_device_graph *graph);
    void (*free)(const invar_device *dev, invar_device_graph *graph);
} invar_device_graphs;

/* When ops ran, where a call may return before its op has run. */
typedef struct invar_device_timers {
    /* Mark number `at`, below INVAR_DEVICE_TIMERS_MAX, stands behind all calls so far. NULL: an op
     * has run
       when its call returns. */
    invar_status (*record)(const invar_device *dev, int64_t at);
    /* Waits for the marks before number `count`: nanoseconds from mark 0 to each of them. */
    invar_status (*elapsed_ns)(const invar_device *dev, int64_t *ns_out, int64_t count);
    /* A range of this thread for the vendor's profilers; NULL ends the last one. NULL: none. */
    void (*range)(const char *name);
} invar_device_timers;

#define INVAR_DEVICE_TIMERS_MAX 8192

/* What a backend knows about the machine beneath it. */
typedef struct invar_device_info {
    char name[128];   /* "NVIDIA H200" */
    char driver[16];  /* the CUDA version of the driver: "13.0" */
    char runtime[16]; /* and that of this build */
    int multiprocessors;
    size_t memory, memory_free;   /* bytes */
    int64_t step_outputs;         /* of its tensor cores, compared with the contract's step */
    int64_t step_differences;     /* 0, or numerics sm90 is refused */
    int64_t sfu_results;          /* of its special function unit, compared with math/sfu.h */
    int64_t sfu_differences;      /* likewise */
    double copy_bytes_per_second; /* read and written, within its memory */
} invar_device_info;

typedef struct invar_op_impl {
    /* Bytes of scratch that `run` needs; arguments have passed the check. */
    size_t (*workspace)(const invar_device *dev, const void *args);
    invar_status (*run)(const invar_device *dev, const void *args, void *workspace);
} invar_op_impl;

#define INVAR_BACKEND_ABI 13

struct invar_backend {
    int abi;
    const char *name;
    /* Fills in dev->context for a device whose other fields are set; NULL: nothing to open. */
    invar_status (*open)(invar_device *dev);
    void (*close)(invar_device *dev);
    /* Measures; takes a second or so. NULL: nothing to tell. */
    invar_status (*measure)(const invar_device *dev, invar_device_info *out);
    /* What its maker calls it, as in the facts, without measuring. NULL: nothing to tell. */
    const char *(*model)(const invar_device *dev);
    /*
     * Ops and copies go into a stream of the caller's from now on (a cudaStream_t, NULL: CUDA's
     * default one), behind all that the device was asked for before. NULL: there are no streams.
     */
    invar_status (*set_stream)(const invar_device *dev, void *stream);
    /* What failed, as far as it is known without waiting. NULL: nothing fails late. */
    invar_status (*poll_error)(const invar_device *dev);
    invar_device_memory memory;
    invar_device_graphs graphs;
    invar_device_timers marks;
    invar_op_impl ops[INVAR_OP_COUNT]; /* run == NULL: not implemented */
};

const invar_backend *invar_backend_cpu(void);

/* That of the module (cuda/module.h); NULL where there is none. */
const invar_backend *invar_backend_cuda(void);

/* Why there is none, and what to do: INVAR_E_NODEVICE. */
invar_status invar_backend_cuda_absent(void) INVAR_MUST_USE;

/* INVAR_E_NODEVICE where there is none of the kind. */
invar_status invar_backend_find(const invar_backend **out, invar_device_kind kind) INVAR_MUST_USE;

/* Makes the backend ready, and puts away what that took. */
invar_status invar_device_open(invar_device *dev) INVAR_MUST_USE;
void invar_device_close(invar_device *dev);

/* The memory of the device's backend, in the words of invar_device_memory. */
static inline bool invar_device_is_local(const invar_device *dev)
{
    return dev->backend->memory.device_local;
}

/* Nobody on the host may look at what lies there. */
static inline bool invar_device_unreadable(const invar_device *dev)
{
    return dev->backend->memory.device_local || dev->backend->memory.dry_run;
}

/* What to take where `bytes` are needed now and more may be later: the `part`-th part on top. */
static inline size_t invar_device_growth_bytes(const invar_device *dev, size_t bytes, size_t part)
{
    return dev->backend->memory.exact_size ? bytes : bytes + bytes / part;
}

/* Does anybody measure it now? */
static inline bool invar_device_profiled(const invar_device *dev)
{
    return dev->profiler && __atomic_load_n(&dev->profiler->enabled, __ATOMIC_ACQUIRE);
}

/* Whether the call is measured; then `end` follows it. */
static inline bool invar_op_profiler_begin(const invar_device *dev,
                                           const invar_op_profiler_call *call)
{
    if (!invar_device_profiled(dev))
        return false;
    dev->profiler->begin(dev->profiler, dev, call);
    return true;
}

static inline invar_status invar_op_profiler_end(const invar_device *dev, bool begun,
                                                 invar_status status)
{
    if (begun)
        dev->profiler->end(dev->profiler, dev);
    return status;
}

/* A copy or a wait. */
static inline bool invar_op_profiler_begin_copy(const invar_device *dev, const char *name,
                                                size_t bytes)
{
    invar_op_profiler_call call = {name, -1, NULL, bytes};

    return invar_op_profiler_begin(dev, &call);
}

static inline invar_status invar_device_alloc(const invar_device *dev, void **out, size_t bytes,
                                              const char *what)
{
    return dev->backend->memory.alloc(dev, out, bytes, what);
}

static inline void invar_device_free(const invar_device *dev, void *block)
{
    dev->backend->memory.free(dev, block);
}

static inline invar_status invar_device_alloc_host(const invar_device *dev, void **out,
                                                   size_t bytes, const char *what)
{
    return dev->backend->memory.alloc_host(dev, out, bytes, what);
}

static inline void invar_device_free_host(const invar_device *dev, void *block)
{
    dev->backend->memory.free_host(dev, block);
}

static inline invar_status invar_device_upload(const invar_device *dev, void *to, const void *from,
                                               size_t bytes)
{
    bool begun = invar_op_profiler_begin_copy(dev, "put", bytes);

    return invar_op_profiler_end(dev, begun, dev->backend->memory.upload(dev, to, from, bytes));
}

static inline invar_status invar_device_download(const invar_device *dev, void *to,
                                                 const void *from, size_t bytes)
{
    bool begun = invar_op_profiler_begin_copy(dev, "get", bytes);

    return invar_op_profiler_end(dev, begun, dev->backend->memory.download(dev, to, from, bytes));
}

static inline invar_status invar_device_copy(const invar_device *dev, void *to, const void *from,
                                             size_t bytes)
{
    bool begun = invar_op_profiler_begin_copy(dev, "copy", bytes);

    return invar_op_profiler_end(dev, begun, dev->backend->memory.copy(dev, to, from, bytes));
}

static inline invar_status invar_device_copy_strided(const invar_device *dev, void *to,
                                                     const void *from, size_t bytes, size_t stride,
                                                     size_t count)
{
    bool begun = invar_op_profiler_begin_copy(dev, "copy", bytes * count);

    return invar_op_profiler_end(
        dev, begun, dev->backend->memory.copy_strided(dev, to, from, bytes, stride, count));
}

static inline invar_status invar_device_zero(const invar_device *dev, void *at, size_t bytes)
{
    bool begun = invar_op_profiler_begin_copy(dev, "zero", bytes);

    return invar_op_profiler_end(dev, begun, dev->backend->memory.zero(dev, at, bytes));
}

static inline invar_status invar_device_synchronize(const invar_device *dev)
{
    bool begun = invar_op_profiler_begin_copy(dev, "wait", 0);

    return invar_op_profiler_end(dev, begun, dev->backend->memory.synchronize(dev));
}

/* An arena in the device's memory; `dev` outlives it. */
invar_status invar_device_arena(invar_arena **out, const invar_device *dev,
                                const char *name) INVAR_MUST_USE;

const char *invar_numerics_name(invar_numerics numerics);

/* "linear.fwd"; NULL out of range. */
INVAR_EXPORT const char *invar_op_name(invar_op op);
int invar_op_revision(invar_op op);

/* True when the op's bits depend on the numerics of the run. */
int invar_op_depends_on_numerics(invar_op op);

/* The largest struct of ops.h, in bytes; no less. */
#define INVAR_OP_ARGS_MAX 1024

/*
 * Copies the arguments to `to`, an invar_op_args or INVAR_OP_ARGS_MAX bytes with the alignment of
 * malloc, and yields their size. Where the compiler can do that, what lies between the fields is
 * cleared: equal arguments are then equal bytes.
 */
size_t invar_op_args_copy(void *to, invar_op op, const void *args);

/* Checks the arguments (struct of ops.h that belongs to `op`), then yields the scratch bytes. */
invar_status invar_op_workspace(size_t *out, const invar_device *dev, invar_op op,
                                const void *args) INVAR_MUST_USE;

/* Checks, takes scratch, runs, gives scratch back. The typed entry points of ops.h call this. */
invar_status invar_op_run(const invar_device *dev, invar_op op, const void *args) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
