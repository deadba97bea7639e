/*
 * device.h - where ops run: numerics, backends, op tables.
 *
 * A backend is a constant table with one entry per op of ops.def. An op without an entry is an
 * error, never a fallback to other arithmetic. Numerics is always explicit, never derived from the
 * machine. Arguments are checked once, by code that all backends share, before a backend sees them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_DEVICE_H
#define INVAR_KERNELS_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/pool.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_numerics {
    INVAR_NUMERICS_IEEE, /* dot-step: one fmaf per product */
    INVAR_NUMERICS_SM90, /* dot-step: the Hopper tensor core */
    INVAR_NUMERICS_COUNT
} invar_numerics;

typedef enum invar_op {
#define INVAR_OP(ID, fn, name, revision, numerics) INVAR_OP_##ID,
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
    INVAR_OP_COUNT
} invar_op;

/* Which of the bit-equal CPU code paths runs; PORTABLE exists for tests and for comparison. */
typedef enum invar_cpu_path { INVAR_CPU_PATH_SIMD, INVAR_CPU_PATH_PORTABLE } invar_cpu_path;

typedef struct invar_backend invar_backend;

/* All that a call of an op needs besides its arguments. Caller-owned; fields are set directly. */
typedef struct invar_device {
    const invar_backend *backend;
    invar_numerics numerics;
    invar_cpu_path cpu_path;
    invar_pool *pool;     /* NULL: the calling thread alone */
    invar_arena *scratch; /* reserved; ops push what they need and rewind it */
} invar_device;

typedef struct invar_op_impl {
    /* Bytes of scratch that `run` needs; arguments have passed the check. */
    size_t (*workspace)(const invar_device *dev, const void *args);
    invar_status (*run)(const invar_device *dev, const void *args, void *workspace);
} invar_op_impl;

#define INVAR_BACKEND_ABI 1

struct invar_backend {
    int abi;
    const char *name;
    invar_op_impl ops[INVAR_OP_COUNT]; /* run == NULL: not implemented */
};

const invar_backend *invar_backend_cpu(void);

const char *invar_numerics_name(invar_numerics numerics);

/* "linear.fwd"; NULL out of range. */
const char *invar_op_name(invar_op op);
int invar_op_revision(invar_op op);

/* True when the op's bits depend on the numerics of the run. */
int invar_op_uses_step(invar_op op);

/* Checks the arguments (struct of ops.h that belongs to `op`), then yields the scratch bytes. */
invar_status invar_op_workspace(size_t *out, const invar_device *dev, invar_op op,
                                const void *args) INVAR_MUST_USE;

/* Checks, takes scratch, runs, gives scratch back. The typed entry points of ops.h call this. */
invar_status invar_op_run(const invar_device *dev, invar_op op, const void *args) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
