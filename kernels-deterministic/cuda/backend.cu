/*
 * backend.cu - the op table of CUDA, its context and its memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/cuda.h"

#include <cinttypes>
#include <cstdlib>

#include "base/alloc.h"
#include "kernels-deterministic/cuda/probe.h"

/* ---- errors ---------------------------------------------------------------------------------- */

static const char *advice(cudaError_t code)
{
    switch (code) {
    case cudaErrorNoDevice: return "; see whether nvidia-smi lists one, or choose device = cpu";
    case cudaErrorInsufficientDriver: return "; install a newer driver, or choose device = cpu";
    default: return "";
    }
}

invar_status invar_cuda_fail(cudaError_t code, const char *what, const char *file, int line)
{
    // no GPU that this build can talk to is no GPU's fault
    bool none = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver;
    invar_status status = none                                ? INVAR_E_UNSUPPORTED
                          : code == cudaErrorMemoryAllocation ? INVAR_E_NOMEM
                                                              : INVAR_E_CUDA;

    invar_error_set(status, (int)code, file, line, "%s: CUDA: %s (%s)%s", what,
                    cudaGetErrorString(code), cudaGetErrorName(code), advice(code));
    return status;
}

static const char *reason_text(int32_t reason)
{
    switch (reason) {
    case INVAR_CUDA_INDEX: return "index out of range";
    case INVAR_CUDA_SEGMENTS: return "segments do not ascend or do not cover the rows, at";
    case INVAR_CUDA_REPEATED: return "named twice, where each may be named once:";
    }
    return "fault";
}

/* What kernels reported since the last time; forgotten once it is told. */
static invar_status take_fault(invar_cuda *cuda)
{
    invar_cuda_fault fault = *cuda->landed;

    if (fault.op == 0)
        return INVAR_OK;
    *cuda->landed = invar_cuda_fault{};
    INVAR_CUDA_TRY("fault", cudaMemsetAsync(cuda->fault, 0, sizeof *cuda->fault, cuda->stream));
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: %s %" PRId64,
                      invar_op_name((invar_op)(fault.op - 1)), reason_text(fault.reason),
                      fault.value);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_status take(const invar_device *dev, void **out, size_t bytes, const char *what)
{
    *out = NULL;
    cudaError_t code = cudaMallocAsync(out, bytes > 0 ? bytes : 1, invar_cuda_of(dev)->stream);
    if (code == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, all = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &all);
        return INVAR_FAIL(INVAR_E_NOMEM, (int)code,
                          "%s: %zu MiB do not fit: %zu of the GPU's %zu MiB are free", what,
                          bytes >> 20, free_bytes >> 20, all >> 20);
    }
    INVAR_CUDA_TRY(what, code);
    return INVAR_OK;
}

static void give(const invar_device *dev, void *block)
{
    if (block)
        (void)cudaFreeAsync(block, invar_cuda_of(dev)->stream);
}

static invar_status put(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    // from pageable memory: CUDA has read it when the call returns
    if (bytes > 0)
        INVAR_CUDA_TRY("copy to the GPU", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice,
                                                          invar_cuda_of(dev)->stream));
    return INVAR_OK;
}

static invar_status wait(const invar_device *dev)
{
    invar_cuda *cuda = invar_cuda_of(dev);

    INVAR_CUDA_TRY("wait", cudaMemcpyAsync(cuda->landed, cuda->fault, sizeof *cuda->landed,
                                           cudaMemcpyDeviceToHost, cuda->stream));
    INVAR_CUDA_TRY("wait", cudaStreamSynchronize(cuda->stream));
    return take_fault(cuda);
}

static invar_status get(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        INVAR_CUDA_TRY("copy from the GPU", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost,
                                                            invar_cuda_of(dev)->stream));
    return wait(dev);
}

static invar_status copy(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        INVAR_CUDA_TRY("copy on the GPU", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                                                          invar_cuda_of(dev)->stream));
    return INVAR_OK;
}

static invar_status zero(const invar_device *dev, void *at, size_t bytes)
{
    if (bytes > 0)
        INVAR_CUDA_TRY("zeros", cudaMemsetAsync(at, 0, bytes, invar_cuda_of(dev)->stream));
    return INVAR_OK;
}

/* ---- context --------------------------------------------------------------------------------- */

static void close_context(invar_device *dev)
{
    invar_cuda *cuda = invar_cuda_of(dev);

    if (!cuda)
        return;
    if (cuda->stream) {
        (void)cudaStreamSynchronize(cuda->stream);
        (void)cudaStreamDestroy(cuda->stream);
    }
    (void)cudaFree(cuda->fault);
    (void)cudaFreeHost(cuda->landed);
    invar_free(cuda);
    dev->context = NULL;
}

static invar_status check_gpu(int ordinal, int *multiprocessors_out)
{
    cudaDeviceProp gpu;

    INVAR_CUDA_TRY("GPU", cudaGetDeviceProperties(&gpu, ordinal));
    if (gpu.major != 9 || gpu.minor != 0)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "GPU %d is a %s of compute capability %d.%d; this build runs on 9.0 "
                          "(H100, H200): choose device = cpu",
                          ordinal, gpu.name, gpu.major, gpu.minor);
    *multiprocessors_out = gpu.multiProcessorCount;
    return INVAR_OK;
}

static invar_status open_stream(invar_cuda *cuda)
{
    cudaMemPool_t pool;
    uint64_t keep = UINT64_MAX;

    INVAR_CUDA_TRY("GPU", cudaGetDevice(&cuda->ordinal));
    INVAR_TRY(check_gpu(cuda->ordinal, &cuda->multiprocessors));
    INVAR_CUDA_TRY("stream", cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking));
    // what was given back is kept for the next request instead of being unmapped
    INVAR_CUDA_TRY("memory pool", cudaDeviceGetDefaultMemPool(&pool, cuda->ordinal));
    INVAR_CUDA_TRY("memory pool",
                   cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    INVAR_CUDA_TRY("fault word", cudaMalloc(&cuda->fault, sizeof *cuda->fault));
    INVAR_CUDA_TRY("fault word", cudaMemset(cuda->fault, 0, sizeof *cuda->fault));
    INVAR_CUDA_TRY("fault word", cudaMallocHost(&cuda->landed, sizeof *cuda->landed));
    *cuda->landed = invar_cuda_fault{};
    return INVAR_OK;
}

/* A GPU whose tensor cores compute something else must not run what is named after them. */
static invar_status check_step(const invar_device *dev)
{
    enum { TILES = 8 };
    int64_t outputs, differ;

    if (dev->numerics != INVAR_NUMERICS_SM90)
        return INVAR_OK;
    INVAR_TRY(invar_probe_step(&outputs, &differ, dev, TILES));
    if (differ > 0)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "the tensor cores of GPU %d differ from numerics sm90 in %" PRId64
                          " of %" PRId64 " outputs: this GPU is damaged or another one; choose "
                          "device = cpu",
                          invar_cuda_of(dev)->ordinal, differ, outputs);
    return INVAR_OK;
}

static invar_status open_context(invar_device *dev)
{
    invar_status status;
    invar_cuda *cuda;

    INVAR_TRY(invar_alloc((void **)&cuda, 1, sizeof *cuda, "the CUDA context"));
    *cuda = invar_cuda{};
    dev->context = cuda;
    status = open_stream(cuda);
    if (status == INVAR_OK)
        status = check_step(dev);
    if (status != INVAR_OK)
        close_context(dev);
    return status;
}

/* ---- table ----------------------------------------------------------------------------------- */

/* Calls through the real type of each op: function pointers are not cast. */
#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    static size_t workspace_##fn(const invar_device *dev, const void *args)                        \
    {                                                                                              \
        return invar_cuda_##fn##_workspace(dev, (const invar_##fn##_args *)args);                  \
    }                                                                                              \
    static invar_status run_##fn(const invar_device *dev, const void *args, void *workspace)       \
    {                                                                                              \
        return invar_cuda_##fn(dev, (const invar_##fn##_args *)args, workspace);                   \
    }
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

/* In the order of ops.def, which is that of the enum. */
static const invar_backend cuda_backend = {
    INVAR_BACKEND_ABI,
    "cuda",
    open_context,
    close_context,
    invar_probe_facts,
    {true, take, give, put, get, copy, zero, wait},
    {
#define INVAR_OP(ID, fn, name, revision, numerics) {workspace_##fn, run_##fn},
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
    },
};

const invar_backend *invar_backend_cuda(void)
{
    return &cuda_backend;
}
