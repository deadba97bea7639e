/*
 * cuda.h - context of the CUDA backend, and the two functions of each op.
 *
 * invar_cuda_<op>_workspace returns the bytes of scratch that the op needs; invar_cuda_<op>
 * launches it on the context's stream and returns without waiting. The op's check has validated the
 * arguments, except for indices and row offsets in device memory, which the host cannot read.
 * Kernels check those with the guards of kernel.cuh, which record the first bad one in the
 * context's fault and continue with a harmless value. The backend returns the fault as an error
 * when the device is synchronized or polled.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_COMMON_CUDA_H
#define INVAR_KERNELS_CUDA_COMMON_CUDA_H

#include <cuda_runtime_api.h>

#include "kernels-deterministic/ops.h"

/* First invalid argument that a kernel found in device memory; all zero if there is none. */
typedef struct invar_cuda_fault {
    int32_t op;     /* invar_op + 1 */
    int32_t reason; /* invar_cuda_reason */
    int64_t value;
} invar_cuda_fault;

typedef enum invar_cuda_reason {
    INVAR_CUDA_INDEX = 1, /* an index out of range */
    INVAR_CUDA_SEGMENTS,  /* row offsets that do not ascend or do not cover the rows */
    INVAR_CUDA_REPEATED,  /* an index that may occur only once, but occurs twice */
    INVAR_CUDA_COUNT      /* row offsets whose number of leaves differs from the one that the host
                             passed */
} invar_cuda_reason;

#define INVAR_CUDA_SLOTS 4
#define INVAR_CUDA_SLOT_BYTES ((size_t)4 << 20)

/*
 * Ring of pinned memory for uploads. Slots are filled in turn, and a slot is filled again only
 * after its copies have run.
 */
typedef struct invar_cuda_ring {
    char *memory; /* (INVAR_CUDA_SLOTS * INVAR_CUDA_SLOT_BYTES) bytes, pinned */
    cudaEvent_t copied[INVAR_CUDA_SLOTS];
    bool full[INVAR_CUDA_SLOTS]; /* copies may be in flight; wait for `copied` before reuse */
    int slot;                    /* slot that is being filled */
    size_t used;                 /* bytes that are used in this slot */
} invar_cuda_ring;

#define INVAR_CUDA_KERNELS 1024 /* capacity of shared_limit_raised; more than there are kernels */

typedef struct invar_cuda {
    int ordinal;
    cudaUUID_t uuid;
    char model[128];      /* name of the GPU, equal to invar_device_info.name */
    int max_shared_bytes; /* maximum shared memory of a block, in bytes */
    /* hash set of the kernels whose shared-memory limit is already raised */
    const void *shared_limit_raised[INVAR_CUDA_KERNELS];
    int multiprocessors;
    cudaStream_t stream; /* stream that ops go to: own_stream, or one of the caller's */
    cudaStream_t own_stream;
    cudaEvent_t previous_done;    /* event: all work of the previous stream is done */
    invar_cuda_fault *fault;      /* in device memory */
    invar_cuda_fault *fault_host; /* copy of `fault`, in pinned host memory */
    cudaEvent_t fault_copied;     /* event: `fault` has been copied to `fault_host` */
    bool fault_copy_pending;      /* a copy of `fault` to `fault_host` is in flight */
    invar_cuda_ring ring;
    void *host_buffer;  /* pinned host memory for small downloads */
    cudaEvent_t *marks; /* (INVAR_DEVICE_TIMERS_MAX) timer events, created on first use; NULL before
                           the first */
} invar_cuda;

static inline invar_cuda *invar_cuda_of(const invar_device *dev)
{
    return (invar_cuda *)dev->context;
}

/*
 * Raises the limit of dynamic shared memory of `kernel`, on the GPU of the context, to all that a
 * block can have. It is not raised to what one call needs: threads that launch the kernel with more
 * and with less would lower it for each other.
 */
cudaError_t invar_cuda_allow_shared(invar_cuda *cuda, const void *kernel);

/*
 * Sets the error of a failed CUDA call, with CUDA's description, and returns its status:
 * INVAR_E_NOMEM if the GPU has no memory left, INVAR_E_NODEVICE if there is no GPU or driver for
 * this build, else INVAR_E_CUDA. `what` begins the message.
 */
invar_status invar_cuda_fail(cudaError_t code, const char *what, const char *file, int line);

/*
 * Returns from the calling function with invar_cuda_fail if a CUDA call fails. Usage:
 * INVAR_CUDA_TRY("hash.tree", cudaMemsetAsync(...))
 */
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

#endif
