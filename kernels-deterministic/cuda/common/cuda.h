/*
 * cuda.h - the CUDA backend: its context, and two functions per op.
 *
 * invar_cuda_<op>_workspace says how much scratch the op needs, invar_cuda_<op> launches it on the
 * context's stream and returns without waiting. Arguments have passed the op's check, but for what
 * lies in device memory: kernels take indices through the guards of kernel.cuh, which report to the
 * context's fault and put something harmless in their place.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_COMMON_CUDA_H
#define INVAR_KERNELS_CUDA_COMMON_CUDA_H

#include <cuda_runtime_api.h>

#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a kernel found wrong with its arguments; the first one stays. All zero: nothing. */
typedef struct invar_cuda_fault {
    int32_t op;     /* invar_op + 1 */
    int32_t reason; /* invar_cuda_reason */
    int64_t value;
} invar_cuda_fault;

typedef enum invar_cuda_reason {
    INVAR_CUDA_INDEX = 1, /* an index out of range */
    INVAR_CUDA_SEGMENTS,  /* segments that do not ascend or do not cover the rows */
    INVAR_CUDA_REPEATED,  /* an index that may occur once, twice */
    INVAR_CUDA_COUNT      /* segments have another number of leaves than the host says */
} invar_cuda_reason;

#define INVAR_CUDA_SLOTS 4
#define INVAR_CUDA_SLOT_BYTES ((size_t)4 << 20)

/*
 * Pinned memory that arrays pass through on their way to the GPU: one slot after the other is
 * filled, and none is filled anew before its copies have run.
 */
typedef struct invar_cuda_ring {
    char *memory; /* (slots) */
    cudaEvent_t copied[INVAR_CUDA_SLOTS];
    bool full[INVAR_CUDA_SLOTS]; /* until `read` has come */
    int slot;                    /* that is being filled */
    size_t used;                 /* of it */
} invar_cuda_ring;

#define INVAR_CUDA_KERNELS 1024 /* more than there are */

typedef struct invar_cuda {
    int ordinal;
    cudaUUID_t uuid;
    char model[128];      /* as in the facts of a device */
    int max_shared_bytes; /* bytes of shared memory that a block can have */
    /* kernels that may have as much, by their hash */
    const void *shared_limit_raised[INVAR_CUDA_KERNELS];
    int multiprocessors;
    cudaStream_t stream; /* where ops go: its own, or one of the caller's */
    cudaStream_t own_stream;
    cudaEvent_t previous_done;    /* all that the stream before had */
    invar_cuda_fault *fault;      /* device memory */
    invar_cuda_fault *fault_host; /* pinned host memory */
    cudaEvent_t fault_copied;     /* `fault` is in `fault_host`, where somebody has asked for it */
    bool fault_copy_pending;
    invar_cuda_ring ring;
    void *host_buffer;  /* pinned host memory, for small results */
    cudaEvent_t *marks; /* (INVAR_DEVICE_TIMERS_MAX), those that were needed; NULL: none was */
} invar_cuda;

static inline invar_cuda *invar_cuda_of(const invar_device *dev)
{
    return (invar_cuda *)dev->context;
}

/*
 * The kernel may have as much shared memory as a block can, on the GPU of the context. Not as much
 * as one call needs: threads that call it with more and with less would take it from each other.
 */
cudaError_t invar_cuda_allow_shared(invar_cuda *cuda, const void *kernel);

/* INVAR_E_NOMEM, _NODEVICE or _CUDA with CUDA's own words; `what` begins the message. */
invar_status invar_cuda_fail(cudaError_t code, const char *what, const char *file, int line);

/* INVAR_CUDA_TRY("hash.tree", cudaMemsetAsync(...)) */
#define INVAR_CUDA_TRY(what, call)                                                                 \
    do {                                                                                           \
        cudaError_t invar_cuda_code_ = (call);                                                     \
        if (invar_cuda_code_ != cudaSuccess)                                                       \
            return invar_cuda_fail(invar_cuda_code_, (what), __FILE__, __LINE__);                  \
    } while (0)

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    size_t invar_cuda_##fn##_workspace(const invar_device *dev, const invar_##fn##_args *args);    \
    invar_status invar_cuda_##fn(const invar_device *dev, const invar_##fn##_args *args,           \
                                 void *workspace) INVAR_MUST_USE;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

#ifdef __cplusplus
}
#endif
#endif
