/*
 * profiling_backend.c - times the ops of a device and counts its memory by name.
 *
 * Time is measured by the profiler of the device. Each op and copy is followed by a
 * synchronization, whose cost on an idle device is measured before and subtracted. Memory is
 * counted by a copy of the backend with functions of its own for allocations. Not thread-safe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bench/profiling_backend.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/bench/bench.h"

#include "base/invar_banned.h"

enum { MAX_ROWS = 128, MAX_BLOCKS = 256 };

typedef struct memory_block {
    void *at;
    size_t bytes;
    char what[40];
} memory_block;

struct invar_profiling_backend {
    invar_backend table; /* first member, so that a device's backend pointer can be converted to
                            this struct */
    const invar_backend *behind;
    invar_op_profiler meter; /* enabled while profiling is on */
    double begun, seconds;
    int depth; /* calls that have begun and not ended; copies inside an op belong to the op */
    const char *name; /* name, shape and start of the outermost call */
    char shape[sizeof((invar_profile_row){0}.shape)];
    double call_begun;
    double idle; /* seconds of a synchronization with an idle device */
    int64_t waits;
    invar_profile_row rows[MAX_ROWS];
    int64_t n_rows;
    memory_block blocks[MAX_BLOCKS];
    int n_blocks;
};

static invar_profiling_backend *backend_of(const invar_device *dev)
{
    return (invar_profiling_backend *)(uintptr_t)dev->backend;
}

/* ---- time ------------------------------------------------------------------------------------ */

static void add_time(invar_profiling_backend *m, const char *name, const char *shape,
                     double seconds)
{
    int64_t i = 0;

    while (i < m->n_rows &&
           (strcmp(m->rows[i].name, name) != 0 || strcmp(m->rows[i].shape, shape) != 0))
        i++;
    if (i == MAX_ROWS) { // the last row collects everything without a row of its own
        i--;
        m->rows[i].name = "others";
        m->rows[i].shape[0] = '\0';
    } else if (i == m->n_rows) {
        m->rows[m->n_rows++] = (invar_profile_row){.name = name};
        (void)snprintf(m->rows[i].shape, sizeof m->rows[i].shape, "%s", shape);
    }
    m->rows[i].calls++;
    m->rows[i].seconds += seconds;
}

#define SHAPE_SIZE sizeof((invar_profile_row){0}.shape)

static void format_product(char *out, int64_t rows, int64_t outputs, int64_t inputs,
                           const char *type)
{
    (void)snprintf(out, SHAPE_SIZE, "%" PRId64 "x%" PRId64 "x%" PRId64 " %s", rows, outputs, inputs,
                   type);
}

/* Formats the properties that distinguish calls of an op with much different work. */
static void format_shape(char *out, invar_op op, const void *args)
{
    out[0] = '\0';
    if (op == INVAR_OP_LINEAR_FWD) {
        const invar_linear_fwd_args *a = args;
        int64_t outputs = a->w.shape[0];
        for (int32_t i = 0; i < a->n_more; i++)
            outputs += a->more[i].w.shape[0];
        format_product(out, a->x.shape[0], outputs, a->x.shape[1], invar_dtype_name(a->w.dtype));
    } else if (op == INVAR_OP_LINEAR_DX) {
        const invar_linear_dx_args *a = args;
        int64_t inputs = 0;
        for (int32_t i = 0; i < a->n_parts; i++)
            inputs += a->parts[i].dy.shape[1];
        format_product(out, a->dx.shape[0], a->dx.shape[1], inputs,
                       invar_dtype_name(a->parts[0].w.dtype));
    } else if (op == INVAR_OP_LINEAR_DW) {
        const invar_linear_dw_args *a = args;
        format_product(out, a->dw.shape[0], a->dw.shape[1], a->x.shape[0],
                       invar_dtype_name(a->x.dtype));
    } else if (op == INVAR_OP_RMSNORM_FWD || op == INVAR_OP_RMSNORM_BWD) {
        // the output is the first member in both structs
        const invar_tensor *y = args;
        (void)snprintf(out, SHAPE_SIZE, "%" PRId64 "x%" PRId64 "x%" PRId64, y->shape[0],
                       y->shape[1], y->shape[2]);
    }
}

static invar_profiling_backend *profiler_of(invar_op_profiler *meter)
{
    return (invar_profiling_backend *)(void *)((char *)meter -
                                               offsetof(invar_profiling_backend, meter));
}

static void begin_call(invar_op_profiler *meter, const invar_device *dev,
                       const invar_op_profiler_call *call)
{
    invar_profiling_backend *m = profiler_of(meter);

    (void)dev;
    if (m->depth++ > 0)
        return;
    m->name = call->name;
    m->shape[0] = '\0';
    if (call->args)
        format_shape(m->shape, (invar_op)call->op, call->args);
    m->call_begun = invar_bench_now();
}

/* Waits for the device and adds the time of the call to its row. */
static void end_call(invar_op_profiler *meter, const invar_device *dev)
{
    static const char *const copies[][2] = {{"put", "to the device"},
                                            {"get", "from the device"},
                                            {"copy", "on the device"},
                                            {"zero", "zeros"}};
    invar_profiling_backend *m = profiler_of(meter);
    double idle = m->idle, seconds;
    invar_error of_call = {0};

    if (--m->depth > 0 || strcmp(m->name, "wait") == 0)
        return;
    if (invar_error_last()->status != INVAR_OK)
        invar_error_take(&of_call);
    if (strcmp(m->name, "get") == 0)
        idle = 0.0; // it has synchronized already
    else if (dev->backend->memory.synchronize(dev) != INVAR_OK)
        invar_error_clear(); // the next call on the device fails with the same error
    m->waits += idle > 0.0;
    seconds = invar_bench_now() - m->call_begun - idle;
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        m->name = strcmp(m->name, copies[i][0]) == 0 ? copies[i][1] : m->name;
    add_time(m, m->name, m->shape, seconds > 0.0 ? seconds : 0.0);
    if (of_call.status != INVAR_OK) // the error of the call, which has failed already
        invar_error_put(&of_call);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_status profile_alloc(const invar_device *dev, void **out, size_t bytes,
                                  const char *what)
{
    invar_profiling_backend *m = backend_of(dev);
    memory_block *b = &m->blocks[m->n_blocks];

    INVAR_CHECK(m->n_blocks < MAX_BLOCKS);
    INVAR_TRY(m->behind->memory.alloc(dev, out, bytes, what));
    b->at = *out;
    b->bytes = bytes;
    (void)snprintf(b->what, sizeof b->what, "%s", what);
    m->n_blocks++;
    return INVAR_OK;
}

static void profile_free(const invar_device *dev, void *at)
{
    invar_profiling_backend *m = backend_of(dev);

    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].at == at) {
            m->blocks[i] = m->blocks[--m->n_blocks];
            break;
        }
    m->behind->memory.free(dev, at);
}

/* ---- interface ------------------------------------------------------------------------------- */

invar_status invar_profiling_backend_new(invar_profiling_backend **out, const invar_backend *inner)
{
    invar_profiling_backend *m = NULL;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(m, 1, "a meter"));
    m->table = *inner;
    m->table.memory.alloc = profile_alloc;
    m->table.memory.free = profile_free;
    m->behind = inner;
    m->meter.begin = begin_call;
    m->meter.end = end_call;
    *out = m;
    return INVAR_OK;
}

void invar_profiling_backend_free(invar_profiling_backend *profiler)
{
    invar_free(profiler);
}

invar_backend *invar_profiling_backend_attach(invar_device *dev, invar_profiling_backend *profiler)
{
    dev->profiler = &profiler->meter;
    dev->backend = &profiler->table;
    return &profiler->table;
}

invar_status invar_profiling_backend_begin(invar_profiling_backend *profiler,
                                           const invar_device *dev)
{
    enum { TRIES = 16 };

    profiler->idle = 1.0;
    for (int i = 0; i <= TRIES; i++) {
        double begun = invar_bench_now(), seconds;
        INVAR_TRY(profiler->behind->memory.synchronize(dev));
        seconds = invar_bench_now() - begun;
        // the first synchronization may have waited for earlier work
        if (i > 0 && seconds < profiler->idle)
            profiler->idle = seconds;
    }
    profiler->n_rows = profiler->waits = 0;
    __atomic_store_n(&profiler->meter.enabled, true, __ATOMIC_RELEASE);
    profiler->begun = invar_bench_now();
    return INVAR_OK;
}

void invar_profiling_backend_end(invar_profiling_backend *profiler)
{
    profiler->seconds =
        invar_bench_now() - profiler->begun - profiler->idle * (double)profiler->waits;
    __atomic_store_n(&profiler->meter.enabled, false, __ATOMIC_RELEASE);
}

double invar_profiling_backend_seconds(const invar_profiling_backend *profiler)
{
    return profiler->seconds;
}

const invar_profile_row *invar_profiling_backend_rows(int64_t *count_out,
                                                      invar_profiling_backend *profiler)
{
    for (int64_t i = 1; i < profiler->n_rows; i++) {
        invar_profile_row row = profiler->rows[i];
        int64_t at = i;
        for (; at > 0 && profiler->rows[at - 1].seconds < row.seconds; at--)
            profiler->rows[at] = profiler->rows[at - 1];
        profiler->rows[at] = row;
    }
    *count_out = profiler->n_rows;
    return profiler->rows;
}

size_t invar_profiling_backend_allocated_bytes(const invar_profiling_backend *profiler,
                                               const char *what)
{
    size_t bytes = 0;

    for (int i = 0; i < profiler->n_blocks; i++)
        if (!what || strncmp(profiler->blocks[i].what, what, strlen(what)) == 0)
            bytes += profiler->blocks[i].bytes;
    return bytes;
}
