/*
 * device.h - devices and backends: where and with which numerics ops run.
 *
 * A backend is a constant table of functions with one entry for each op of ops.def. An op without
 * an entry is an error; there is no fallback to other arithmetic. Numerics are set by the caller,
 * never derived from the machine. Code that all backends share checks the arguments before a
 * backend runs.
 *
 * Pointers in the arguments of an op are in the backend's memory, except the fields that
 * op_fields.def marks HOST. If that memory is device-local (a GPU's), the host cannot read it: the
 * backend itself then checks row offsets, indices and lengths while the op runs, neither reads nor
 * writes out of bounds, and reports the error at the next download or synchronize. Ops on one
 * device run in the order of the calls; a call may return before its op has run.
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

/* The CPU code path, both with the same bits; PORTABLE is for tests and comparisons. */
typedef enum invar_cpu_path { INVAR_CPU_PATH_SIMD, INVAR_CPU_PATH_PORTABLE } invar_cpu_path;

typedef struct invar_backend invar_backend;
typedef struct invar_device invar_device;

/* One op call or copy, as the profiler sees it. */
typedef struct invar_op_profiler_call {
    const char *name; /* constant text: "linear.fwd", "put" */
    int op;           /* invar_op; -1 for a copy or wait */
    const void *args; /* arguments of the op, NULL if there is none; borrowed until `begin`
                         returns */
    size_t bytes;     /* scratch of the op, or copied bytes */
} invar_op_profiler_call;

/*
 * Profiler callbacks around every op and copy; no result depends on them. Calls on one device come
 * from one thread at a time, and so do `begin` and `end`. Copies inside an op belong to the op.
 */
typedef struct invar_op_profiler {
    bool enabled; /* the profiler records; accessed by atomic builtins only, because any thread
                     may change it */
    void (*begin)(struct invar_op_profiler *meter, const invar_device *dev,
                  const invar_op_profiler_call *call);
    void (*end)(struct invar_op_profiler *meter, const invar_device *dev);
} invar_op_profiler;

/*
 * Everything that an op needs besides its arguments. Owned by the caller, who sets the fields
 * directly.
 */
struct invar_device {
    const invar_backend *backend;
    invar_numerics numerics;
    invar_cpu_path cpu_path;
    invar_pool *pool;     /* borrowed; NULL for the calling thread alone */
    invar_arena *scratch; /* borrowed; invar_op_run allocates the workspace of an op here and
                             releases it before it returns; if NULL, ops that need workspace fail */
    int ordinal;          /* GPU index; invar_device_open takes it modulo the number of GPUs and
                             stores the result */
    bool high_priority;   /* set before open: ops go to a high-priority stream of the GPU */
    void *context;        /* private to the backend, created by its `open`; NULL if it has none */
    invar_op_profiler *profiler; /* borrowed; NULL if there is none */
};

/*
 * Native code of an INVAR_E_NOMEM error that means device memory (cudaErrorMemoryAllocation). With
 * any other code, host memory is meant.
 */
#define INVAR_DEVICE_NOMEM 2

/* Functions for the memory of a backend. Copies are ordered with the ops of the device. */
typedef struct invar_device_memory {
    bool device_local; /* the host can neither read nor write this memory */
    /*
     * Allocates with alignment INVAR_ALIGN or more; the content is undefined. `what` is for
     * messages.
     */
    invar_status (*alloc)(const invar_device *dev, void **out, size_t bytes, const char *what);
    void (*free)(const invar_device *dev, void *block);
    /*
     * Allocates host memory from and to which copies are fastest (pinned), for frequent or large
     * copies.
     */
    invar_status (*alloc_host)(const invar_device *dev, void **out, size_t bytes, const char *what);
    void (*free_host)(const invar_device *dev, void *block);
    /* Returns the approximate bytes that can be allocated now. NULL if unknown. */
    size_t (*free_bytes)(const invar_device *dev);
    /* Returns the bytes that this process has allocated. NULL if only the process size is known. */
    size_t (*allocated_bytes)(const invar_device *dev);
    /* Copies from the host. `from` may be changed as soon as the call returns. */
    invar_status (*upload)(const invar_device *dev, void *to, const void *from, size_t bytes);
    /* Copies to the host, after all earlier ops have run. Fails with their first error. */
    invar_status (*download)(const invar_device *dev, void *to, const void *from, size_t bytes);
    /* Copies within the memory. The ranges must not overlap. */
    invar_status (*copy)(const invar_device *dev, void *to, const void *from, size_t bytes);
    /* Copies `count` blocks of `bytes`, `stride` bytes apart in both `to` and `from`. */
    invar_status (*copy_strided)(const invar_device *dev, void *to, const void *from, size_t bytes,
                                 size_t stride, size_t count);
    invar_status (*zero)(const invar_device *dev, void *at, size_t bytes);
    /* Waits for all queued work and fails with its first error. */
    invar_status (*synchronize)(const invar_device *dev);
    /*
     * Writes the identity of the memory, equal for devices that share it. NULL for host memory, or
     * if unknown.
     */
    void (*identify)(const invar_device *dev, invar_digest *out);
    /* Dry run: no op runs, only addresses are planned. The content is undefined and not checked. */
    bool dry_run;
    /* All allocations are planned in advance, so no buffer may be larger than needed. */
    bool exact_size;
} invar_device_memory;

typedef struct invar_device_graph invar_device_graph;

/*
 * Captures a sequence of ops once and replays it: the same arguments and addresses, with the
 * current content of the memory. Between begin and end only ops may be called on the device, and
 * none that reads a list or writes a result in host memory.
 */
typedef struct invar_device_graphs {
    /* Starts a capture. NULL if the backend has no graphs. */
    invar_status (*begin)(const invar_device *dev);
    /* Ends the capture. If `out` is NULL or the call fails, the captured ops are discarded. */
    invar_status (*end)(invar_device_graph **out, const invar_device *dev);
    invar_status (*launch)(const invar_device *dev, invar_device_graph *graph);
    void (*free)(const invar_device *dev, invar_device_graph *graph);
} invar_device_graphs;

/* Timers in the queue of the device, for backends whose calls return before the op has run. */
typedef struct invar_device_timers {
    /*
     * Records timer `at`, below INVAR_DEVICE_TIMERS_MAX, after all calls so far. NULL if every op
     * has run when its call returns.
     */
    invar_status (*record)(const invar_device *dev, int64_t at);
    /*
     * Waits for the first `count` timers and writes the nanoseconds from timer 0 to each of them.
     */
    invar_status (*elapsed_ns)(const invar_device *dev, int64_t *ns_out, int64_t count);
    /*
     * Opens a named range of this thread for the vendor's profilers; a NULL name ends the last one.
     * NULL if there are none.
     */
    void (*range)(const char *name);
} invar_device_timers;

#define INVAR_DEVICE_TIMERS_MAX 8192

/* Properties and measurements of a device. */
typedef struct invar_device_info {
    char name[128];   /* "NVIDIA H200" */
    char driver[16];  /* CUDA version of the driver, "13.0" */
    char runtime[16]; /* CUDA version of this build */
    int multiprocessors;
    size_t memory, memory_free;   /* bytes */
    int64_t step_outputs;         /* tensor core outputs compared with the dot-step of the
                                     contract */
    int64_t step_differences;     /* outputs that differ; if not 0, numerics sm90 are rejected */
    int64_t sfu_results;          /* special function unit results compared with math/sfu.h */
    int64_t sfu_differences;      /* results that differ; if not 0, numerics sm90 are rejected */
    double copy_bytes_per_second; /* read plus written, by copies within the memory */
} invar_device_info;

/* The implementation of one op in a backend. Arguments have passed the check of the op. */
typedef struct invar_op_impl {
    /* Returns the bytes of scratch that `run` needs. */
    size_t (*workspace)(const invar_device *dev, const void *args);
    invar_status (*run)(const invar_device *dev, const void *args, void *workspace);
} invar_op_impl;

#define INVAR_BACKEND_ABI 13

struct invar_backend {
    int abi;
    const char *name;
    /*
     * Sets dev->context of a device whose other fields are set. NULL if there is nothing to open.
     */
    invar_status (*open)(invar_device *dev);
    void (*close)(invar_device *dev);
    /* Measures the device, for about a second. NULL if there is nothing to measure. */
    invar_status (*measure)(const invar_device *dev, invar_device_info *out);
    /* Returns the model name, as in invar_device_info, without measuring. NULL if there is none. */
    const char *(*model)(const invar_device *dev);
    /*
     * Sends further ops and copies to a stream of the caller (a cudaStream_t; NULL for CUDA's
     * default stream), ordered after everything that was queued before. NULL if the backend has no
     * streams.
     */
    invar_status (*set_stream)(const invar_device *dev, void *stream);
    /*
     * Returns an error of queued work that is already known, without waiting. NULL if no error
     * comes late.
     */
    invar_status (*poll_error)(const invar_device *dev);
    invar_device_memory memory;
    invar_device_graphs graphs;
    invar_device_timers timers;
    invar_op_impl ops[INVAR_OP_COUNT]; /* `run` is NULL if the op is not implemented */
};

const invar_backend *invar_backend_cpu(void);

/* Returns the backend of the CUDA module (cuda/module.h), or NULL if it is not available. */
const invar_backend *invar_backend_cuda(void);

/* Returns INVAR_E_NODEVICE with the reason why there is no CUDA backend, and the remedy. */
invar_status invar_backend_cuda_absent(void) INVAR_MUST_USE;

/* Finds the backend of a kind of device. Returns INVAR_E_NODEVICE if it is not available. */
invar_status invar_backend_find(const invar_backend **out, invar_device_kind kind) INVAR_MUST_USE;

/*
 * Opens the device with its backend. Close it with invar_device_close, which may be called without
 * open.
 */
invar_status invar_device_open(invar_device *dev) INVAR_MUST_USE;
void invar_device_close(invar_device *dev);

/* Like memory.device_local of the backend. */
static inline bool invar_device_is_local(const invar_device *dev)
{
    return dev->backend->memory.device_local;
}

/*
 * Returns whether the host must not read device memory: it is out of reach, or undefined in a dry
 * run.
 */
static inline bool invar_device_unreadable(const invar_device *dev)
{
    return dev->backend->memory.device_local || dev->backend->memory.dry_run;
}

/*
 * Returns the size to allocate for a buffer that needs `bytes` now and may grow: bytes + bytes /
 * part, or `bytes` if all allocations are planned.
 */
static inline size_t invar_device_growth_bytes(const invar_device *dev, size_t bytes, size_t part)
{
    return dev->backend->memory.exact_size ? bytes : bytes + bytes / part;
}

/* Returns whether a profiler is attached and records. */
static inline bool invar_device_profiled(const invar_device *dev)
{
    return dev->profiler && __atomic_load_n(&dev->profiler->enabled, __ATOMIC_ACQUIRE);
}

/*
 * Reports the start of a call to the profiler. Returns whether it records; pass that on to
 * invar_op_profiler_end.
 */
static inline bool invar_op_profiler_begin(const invar_device *dev,
                                           const invar_op_profiler_call *call)
{
    if (!invar_device_profiled(dev))
        return false;
    dev->profiler->begin(dev->profiler, dev, call);
    return true;
}

/* Reports the end of a call if `begun` is set. Returns `status`. */
static inline invar_status invar_op_profiler_end(const invar_device *dev, bool begun,
                                                 invar_status status)
{
    if (begun)
        dev->profiler->end(dev->profiler, dev);
    return status;
}

/* Like invar_op_profiler_begin, for a copy or a wait. */
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

/* Creates an arena in the memory of the device, which must outlive it. */
invar_status invar_device_arena(invar_arena **out, const invar_device *dev,
                                const char *name) INVAR_MUST_USE;

const char *invar_numerics_name(invar_numerics numerics);

/* Returns the name of an op, "linear.fwd", or NULL if op is out of range. */
INVAR_EXPORT const char *invar_op_name(invar_op op);
/* Returns the numerics revision of the op; 0 if op is out of range. */
int invar_op_revision(invar_op op);

/* Returns whether the bits of the op depend on the numerics of the run. */
int invar_op_depends_on_numerics(invar_op op);

/* An upper bound of the size of the structs of ops.h, in bytes. */
#define INVAR_OP_ARGS_MAX 1024

/*
 * Copies the arguments to `to`, which is an invar_op_args or INVAR_OP_ARGS_MAX bytes with the
 * alignment of malloc, and returns their size. Padding is cleared if the compiler can do that, so
 * that equal arguments are equal bytes; linear.fwd, linear.dx and moe.linear.dx keep theirs.
 */
size_t invar_op_args_copy(void *to, invar_op op, const void *args);

/*
 * Checks the arguments, a struct of ops.h, and writes the bytes of scratch that the op needs to
 * *out.
 */
invar_status invar_op_workspace(size_t *out, const invar_device *dev, invar_op op,
                                const void *args) INVAR_MUST_USE;

/*
 * Checks the arguments, allocates scratch, runs the op and releases the scratch. The typed entry
 * points of ops.h call this. Fails with INVAR_E_STATE if the rounding mode of the thread is not the
 * default.
 */
invar_status invar_op_run(const invar_device *dev, invar_op op, const void *args) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
