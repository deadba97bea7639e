/*
 * backend.cu - the op table of CUDA, its context and its memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/common/cuda.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/alloc.h"
#include "kernels-deterministic/cuda/common/gpu_support.h"
#include "kernels-deterministic/cuda/common/gpu_timers.h"
#include "kernels-deterministic/cuda/module.h"
#include "kernels-deterministic/cuda/sm90/hardware_check.h"

/* ---- errors ---------------------------------------------------------------------------------- */

/* The codes that mean: no GPU that this build can talk to. No GPU is to blame for them. */
static bool is_absence(cudaError_t code)
{
    switch (code) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice: return true;
    default: return false;
    }
}

static const char *advice(cudaError_t code)
{
    switch (code) {
    case cudaErrorNoDevice: return "see whether nvidia-smi lists one, or choose device = cpu";
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
        return "install a newer driver, or choose device = cpu";
    case cudaErrorNoKernelImageForDevice: return "this build runs on compute capability 9.0";
    case cudaErrorDevicesUnavailable: return "nvidia-smi shows who else uses it";
    default: return "see nvidia-smi; started again, a run goes on from its last checkpoint";
    }
}

invar_status invar_cuda_fail(cudaError_t code, const char *what, const char *file, int line)
{
    invar_status status = is_absence(code)                    ? INVAR_E_NODEVICE
                          : code == cudaErrorMemoryAllocation ? INVAR_E_NOMEM
                                                              : INVAR_E_CUDA;
    size_t free_bytes = 0, all = 0;

    if (status == INVAR_E_NOMEM && cudaMemGetInfo(&free_bytes, &all) == cudaSuccess)
        invar_error_set(status, (int)code, file, line,
                        "%s: CUDA: out of memory: %zu of the GPU's %zu MiB are free", what,
                        free_bytes >> 20, all >> 20);
    else
        invar_error_set(status, (int)code, file, line, "%s: CUDA: %s (%s); %s", what,
                        cudaGetErrorString(code), cudaGetErrorName(code), advice(code));
    return status;
}

static_assert(cudaErrorMemoryAllocation == INVAR_DEVICE_NOMEM, "the GPU's memory is meant");

/* Of the host's memory that is pinned: how much of the GPU's is free says nothing there. */
static invar_status check_pinned(cudaError_t code, const char *what)
{
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "%s: no memory of the host that CUDA can pin", what);
    }
    INVAR_CUDA_TRY(what, code);
    return INVAR_OK;
}

static const char *reason_text(int32_t reason)
{
    switch (reason) {
    case INVAR_CUDA_INDEX: return "index out of range";
    case INVAR_CUDA_SEGMENTS: return "segments do not ascend or do not cover the rows, at";
    case INVAR_CUDA_REPEATED: return "named twice, where each may be named once:";
    case INVAR_CUDA_COUNT: return "leaves: another number than there are in the segments, which is";
    }
    return "fault";
}

/* What kernels reported since the last time; forgotten once it is told. */
static invar_status take_fault(invar_cuda *cuda)
{
    invar_cuda_fault fault = *cuda->fault_host;

    if (fault.op == 0)
        return INVAR_OK;
    *cuda->fault_host = invar_cuda_fault{};
    INVAR_CUDA_TRY("fault", cudaMemsetAsync(cuda->fault, 0, sizeof *cuda->fault, cuda->stream));
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: %s %" PRId64,
                      invar_op_name((invar_op)(fault.op - 1)), reason_text(fault.reason),
                      fault.value);
}

/* ---- threads --------------------------------------------------------------------------------- */

/*
 * The context, on whose GPU this thread goes on: CUDA has a current one for each thread, and every
 * rank of a process may have another. CUDA itself is asked for it, since others in the process
 * (PyTorch, CuPy) change it as well.
 */
static invar_cuda *enter(const invar_device *dev)
{
    invar_cuda *cuda = invar_cuda_of(dev);
    int current;

    if (cudaGetDevice(&current) != cudaSuccess || current != cuda->ordinal)
        (void)cudaSetDevice(cuda->ordinal);
    return cuda;
}

cudaError_t invar_cuda_allow_shared(invar_cuda *cuda, const void *kernel)
{
    size_t at = ((uintptr_t)kernel >> 4) % INVAR_CUDA_KERNELS, tried = 0;
    cudaFuncAttributes facts;

    for (; tried < INVAR_CUDA_KERNELS && cuda->shared_limit_raised[at]; tried++) {
        if (cuda->shared_limit_raised[at] == kernel)
            return cudaSuccess;
        at = (at + 1) % INVAR_CUDA_KERNELS;
    }
    cudaError_t code = cudaFuncGetAttributes(&facts, kernel);
    if (code == cudaSuccess)
        code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    cuda->max_shared_bytes - (int)facts.sharedSizeBytes);
    if (code == cudaSuccess && tried < INVAR_CUDA_KERNELS)
        cuda->shared_limit_raised[at] = kernel;
    return code;
}

/* ---- memory ---------------------------------------------------------------------------------- */

#define LANDING_BYTES                                                                              \
    ((size_t)1 << 20) /* less than that takes the way over memory that is pinned */

/* What was given back and is kept for the next request becomes free. */
static void empty_pool(const invar_cuda *cuda)
{
    cudaMemPool_t pool;

    if (cudaStreamSynchronize(cuda->stream) == cudaSuccess &&
        cudaDeviceGetDefaultMemPool(&pool, cuda->ordinal) == cudaSuccess)
        (void)cudaMemPoolTrimTo(pool, 0);
}

static invar_status take(const invar_device *dev, void **out, size_t bytes, const char *what)
{
    invar_cuda *cuda = enter(dev);
    size_t wanted = bytes > 0 ? bytes : 1;

    *out = NULL;
    cudaError_t code = cudaMallocAsync(out, wanted, cuda->stream);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        empty_pool(cuda);
        code = cudaMallocAsync(out, wanted, cuda->stream);
    }
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
        (void)cudaFreeAsync(block, enter(dev)->stream);
}

#define TOUCHED_BYTES ((size_t)64 << 20) /* by a thread at a time */

typedef struct pages {
    char *block;
    size_t bytes;
} pages;

/* A page gets its memory when it is first written, which takes longer than to copy it. */
static invar_status touch(void *payload, int64_t task, int worker)
{
    const pages *p = (const pages *)payload;
    size_t first = (size_t)task * TOUCHED_BYTES, rest = p->bytes - first;

    (void)worker;
    memset(p->block + first, 0, rest < TOUCHED_BYTES ? rest : TOUCHED_BYTES);
    return INVAR_OK;
}

static void give_host(const invar_device *dev, void *block)
{
    if (!block)
        return;
    (void)enter(dev);
    if (cudaHostUnregister(block) != cudaSuccess)
        (void)cudaGetLastError(); // a small one, see below
    invar_free(block);
}

static invar_status pin(const invar_device *dev, char *block, size_t bytes, const char *what)
{
    pages p = {block, bytes};
    int64_t tasks = (int64_t)((bytes + TOUCHED_BYTES - 1) / TOUCHED_BYTES);

    // a small block shares its pages with others, and is copied fast enough
    if (bytes < LANDING_BYTES)
        return INVAR_OK;
    (void)enter(dev);
    INVAR_TRY(invar_pool_run(dev->pool, tasks, touch, &p));
    return check_pinned(cudaHostRegister(block, bytes, cudaHostRegisterDefault), what);
}

static invar_status take_host(const invar_device *dev, void **out, size_t bytes, const char *what)
{
    INVAR_TRY(invar_alloc(out, bytes, 1, what));
    invar_status status = pin(dev, (char *)*out, bytes, what);
    if (status != INVAR_OK) {
        give_host(dev, *out);
        *out = NULL;
    }
    return status;
}

static bool is_pinned(const void *block)
{
    cudaPointerAttributes found;

    if (cudaPointerGetAttributes(&found, block) == cudaSuccess)
        return found.type == cudaMemoryTypeHost;
    (void)cudaGetLastError();
    return false;
}

/* What is free, and what the pool keeps though nobody uses it. */
static size_t room(const invar_device *dev)
{
    size_t free_bytes = 0, all = 0;
    uint64_t reserved = 0, used = 0;
    cudaMemPool_t pool;

    (void)enter(dev);
    (void)cudaMemGetInfo(&free_bytes, &all);
    if (cudaDeviceGetDefaultMemPool(&pool, invar_cuda_of(dev)->ordinal) != cudaSuccess ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved) !=
            cudaSuccess ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used) != cudaSuccess)
        return free_bytes;
    return free_bytes + (size_t)(reserved - used);
}

static size_t used(const invar_device *dev)
{
    uint64_t bytes = 0;
    cudaMemPool_t pool;

    (void)enter(dev);
    if (cudaDeviceGetDefaultMemPool(&pool, invar_cuda_of(dev)->ordinal) != cudaSuccess ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes) != cudaSuccess)
        return 0;
    return (size_t)bytes;
}

/* Goes on to the next slot; waits until its copies have run. */
static invar_status turn(invar_cuda *cuda)
{
    invar_cuda_ring *ring = &cuda->ring;

    INVAR_CUDA_TRY("copy to the GPU", cudaEventRecord(ring->copied[ring->slot], cuda->stream));
    ring->full[ring->slot] = true;
    ring->slot = (ring->slot + 1) % INVAR_CUDA_SLOTS;
    ring->used = 0;
    if (ring->full[ring->slot])
        INVAR_CUDA_TRY("copy to the GPU", cudaEventSynchronize(ring->copied[ring->slot]));
    ring->full[ring->slot] = false;
    return INVAR_OK;
}

static invar_status put(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    invar_cuda *cuda = enter(dev);
    invar_cuda_ring *ring = &cuda->ring;

    if (bytes >= LANDING_BYTES && is_pinned(from)) {
        INVAR_CUDA_TRY("copy to the GPU",
                       cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cuda->stream));
        INVAR_CUDA_TRY("copy to the GPU", cudaStreamSynchronize(cuda->stream));
        return INVAR_OK;
    }
    while (bytes > 0) {
        size_t piece = bytes < INVAR_CUDA_SLOT_BYTES ? bytes : INVAR_CUDA_SLOT_BYTES;
        if (piece > INVAR_CUDA_SLOT_BYTES - ring->used)
            INVAR_TRY(turn(cuda));
        char *pinned = ring->memory + ring->slot * INVAR_CUDA_SLOT_BYTES + ring->used;
        memcpy(pinned, from, piece);
        INVAR_CUDA_TRY("copy to the GPU",
                       cudaMemcpyAsync(to, pinned, piece, cudaMemcpyHostToDevice, cuda->stream));
        ring->used += (piece + INVAR_ALIGN - 1) / INVAR_ALIGN * INVAR_ALIGN;
        to = (char *)to + piece;
        from = (const char *)from + piece;
        bytes -= piece;
    }
    return INVAR_OK;
}

static invar_status wait(const invar_device *dev)
{
    invar_cuda *cuda = enter(dev);

    INVAR_CUDA_TRY("wait", cudaMemcpyAsync(cuda->fault_host, cuda->fault, sizeof *cuda->fault_host,
                                           cudaMemcpyDeviceToHost, cuda->stream));
    INVAR_CUDA_TRY("wait", cudaStreamSynchronize(cuda->stream));
    for (bool &full : cuda->ring.full)
        full = false;
    cuda->ring.used = 0;
    cuda->fault_copy_pending = false;
    return take_fault(cuda);
}

static invar_status get(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    invar_cuda *cuda = enter(dev);
    bool small = bytes <= LANDING_BYTES;

    if (bytes > 0)
        INVAR_CUDA_TRY("copy from the GPU",
                       cudaMemcpyAsync(small ? cuda->host_buffer : to, from, bytes,
                                       cudaMemcpyDeviceToHost, cuda->stream));
    INVAR_TRY(wait(dev));
    if (small && bytes > 0)
        memcpy(to, cuda->host_buffer, bytes);
    return INVAR_OK;
}

static invar_status copy(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        INVAR_CUDA_TRY("copy on the GPU", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                                                          enter(dev)->stream));
    return INVAR_OK;
}

static invar_status copy_each(const invar_device *dev, void *to, const void *from, size_t bytes,
                              size_t stride, size_t count)
{
    if (bytes == 0 || count == 0)
        return INVAR_OK;
    if (stride <= INT32_MAX) {
        INVAR_CUDA_TRY("copies on the GPU",
                       cudaMemcpy2DAsync(to, stride, from, stride, bytes, count,
                                         cudaMemcpyDeviceToDevice, enter(dev)->stream));
        return INVAR_OK;
    }
    // further apart than CUDA takes
    for (size_t i = 0; i < count; i++)
        INVAR_TRY(copy(dev, (char *)to + i * stride, (const char *)from + i * stride, bytes));
    return INVAR_OK;
}

static invar_status zero(const invar_device *dev, void *at, size_t bytes)
{
    if (bytes > 0)
        INVAR_CUDA_TRY("zeros", cudaMemsetAsync(at, 0, bytes, enter(dev)->stream));
    return INVAR_OK;
}

static void identify(const invar_device *dev, invar_digest *out)
{
    static_assert(sizeof(cudaUUID_t) == sizeof out->bytes, "a digest has room for it");
    memcpy(out->bytes, &invar_cuda_of(dev)->uuid, sizeof out->bytes);
}

/* ---- a stream of the caller's ---------------------------------------------------------------- */

static invar_status follow(const invar_device *dev, void *stream)
{
    invar_cuda *cuda = enter(dev);

    if (cuda->stream == (cudaStream_t)stream)
        return INVAR_OK;
    INVAR_CUDA_TRY("stream", cudaEventRecord(cuda->previous_done, cuda->stream));
    INVAR_CUDA_TRY("stream", cudaStreamWaitEvent((cudaStream_t)stream, cuda->previous_done, 0));
    cuda->stream = (cudaStream_t)stream;
    return INVAR_OK;
}

/* One question at a time is on its way. */
static invar_status look(const invar_device *dev)
{
    invar_cuda *cuda = enter(dev);

    if (cuda->fault_copy_pending) {
        cudaError_t code = cudaEventQuery(cuda->fault_copied);
        if (code == cudaErrorNotReady) {
            (void)cudaGetLastError();
            return INVAR_OK;
        }
        cuda->fault_copy_pending = false;
        INVAR_CUDA_TRY("ops", code);
        INVAR_TRY(take_fault(cuda));
    }
    INVAR_CUDA_TRY("ops", cudaMemcpyAsync(cuda->fault_host, cuda->fault, sizeof *cuda->fault_host,
                                          cudaMemcpyDeviceToHost, cuda->stream));
    INVAR_CUDA_TRY("ops", cudaEventRecord(cuda->fault_copied, cuda->stream));
    cuda->fault_copy_pending = true;
    return INVAR_OK;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

struct invar_device_graph {
    cudaGraphExec_t exec;
};

static invar_status graph_begin(const invar_device *dev)
{
    INVAR_CUDA_TRY("graph",
                   cudaStreamBeginCapture(enter(dev)->stream, cudaStreamCaptureModeThreadLocal));
    return INVAR_OK;
}

static invar_status graph_end(invar_device_graph **out, const invar_device *dev)
{
    cudaGraph_t noted = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t code = cudaStreamEndCapture(enter(dev)->stream, &noted);

    if (code == cudaSuccess && out)
        code = cudaGraphInstantiate(&exec, noted, 0);
    if (noted)
        (void)cudaGraphDestroy(noted);
    if (code != cudaSuccess) {
        (void)cudaGetLastError(); // it is told here, and not by the next launch
        return invar_cuda_fail(code, "graph", __FILE__, __LINE__);
    }
    if (!out)
        return INVAR_OK;
    invar_status status = invar_alloc((void **)out, 1, sizeof **out, "a graph of ops");
    if (status == INVAR_OK)
        (*out)->exec = exec;
    else
        (void)cudaGraphExecDestroy(exec);
    return status;
}

static invar_status graph_run(const invar_device *dev, invar_device_graph *graph)
{
    INVAR_CUDA_TRY("graph", cudaGraphLaunch(graph->exec, enter(dev)->stream));
    return INVAR_OK;
}

static void graph_free(const invar_device *dev, invar_device_graph *graph)
{
    if (!graph)
        return;
    (void)enter(dev);
    (void)cudaGraphExecDestroy(graph->exec);
    invar_free(graph);
}

/* ---- marks ----------------------------------------------------------------------------------- */

static invar_status mark_set(const invar_device *dev, int64_t at)
{
    (void)enter(dev);
    return invar_cuda_timer_set(dev, at);
}

static invar_status mark_read(const invar_device *dev, int64_t *ns_out, int64_t count)
{
    (void)enter(dev);
    return invar_cuda_timer_read(dev, ns_out, count);
}

/* ---- context --------------------------------------------------------------------------------- */

static void close_context(invar_device *dev)
{
    if (!dev->context)
        return;
    invar_cuda *cuda = enter(dev);
    if (cuda->own_stream) {
        (void)cudaStreamSynchronize(cuda->stream);
        (void)cudaStreamDestroy(cuda->own_stream);
    }
    for (cudaEvent_t event : {cuda->previous_done, cuda->fault_copied})
        if (event)
            (void)cudaEventDestroy(event);
    for (cudaEvent_t event : cuda->ring.copied)
        if (event)
            (void)cudaEventDestroy(event);
    invar_cuda_timers_free(cuda);
    (void)cudaFree(cuda->fault);
    (void)cudaFreeHost(cuda->fault_host);
    (void)cudaFreeHost(cuda->host_buffer);
    (void)cudaFreeHost(cuda->ring.memory);
    invar_free(cuda);
    dev->context = NULL;
}

static invar_status check_gpu(const invar_device *dev, invar_cuda *cuda)
{
    int driver = 0, runtime = CUDART_VERSION, count = 1;
    cudaDeviceProp gpu;

    if (cudaDriverGetVersion(&driver) == cudaSuccess)
        INVAR_TRY(invar_gpu_check_driver(driver, runtime));
    INVAR_CUDA_TRY("GPU", cudaGetDeviceCount(&count));
    cuda->ordinal = dev->ordinal % count;
    INVAR_CUDA_TRY("GPU", cudaSetDevice(cuda->ordinal));
    INVAR_CUDA_TRY("GPU", cudaGetDeviceProperties(&gpu, cuda->ordinal));
    cuda->multiprocessors = gpu.multiProcessorCount;
    cuda->uuid = gpu.uuid;
    snprintf(cuda->model, sizeof cuda->model, "%.*s", (int)sizeof cuda->model - 1, gpu.name);
    cuda->max_shared_bytes = (int)gpu.sharedMemPerBlockOptin;
    return invar_gpu_check_capability(cuda->ordinal, gpu.name, gpu.major, gpu.minor);
}

static const char *model(const invar_device *dev)
{
    return invar_cuda_of(dev)->model;
}

static invar_status open_stream(const invar_device *dev, invar_cuda *cuda)
{
    cudaMemPool_t pool;
    uint64_t keep = UINT64_MAX;
    int last = 0, first = 0;

    INVAR_TRY(check_gpu(dev, cuda));
    INVAR_CUDA_TRY("stream", cudaDeviceGetStreamPriorityRange(&last, &first));
    INVAR_CUDA_TRY("stream", cudaStreamCreateWithPriority(&cuda->own_stream, cudaStreamNonBlocking,
                                                          dev->high_priority ? first : last));
    cuda->stream = cuda->own_stream;
    for (cudaEvent_t *event : {&cuda->previous_done, &cuda->fault_copied})
        INVAR_CUDA_TRY("event", cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    // what was given back is kept for the next request instead of being unmapped
    INVAR_CUDA_TRY("memory pool", cudaDeviceGetDefaultMemPool(&pool, cuda->ordinal));
    INVAR_CUDA_TRY("memory pool",
                   cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    INVAR_CUDA_TRY("fault word", cudaMalloc(&cuda->fault, sizeof *cuda->fault));
    INVAR_CUDA_TRY("fault word", cudaMemset(cuda->fault, 0, sizeof *cuda->fault));
    INVAR_TRY(
        check_pinned(cudaMallocHost(&cuda->fault_host, sizeof *cuda->fault_host), "fault word"));
    *cuda->fault_host = invar_cuda_fault{};
    return INVAR_OK;
}

static invar_status open_pinned(invar_cuda *cuda)
{
    INVAR_TRY(check_pinned(
        cudaMallocHost((void **)&cuda->ring.memory, INVAR_CUDA_SLOTS * INVAR_CUDA_SLOT_BYTES),
        "what is on its way"));
    INVAR_TRY(check_pinned(cudaMallocHost(&cuda->host_buffer, LANDING_BYTES), "what arrives"));
    for (cudaEvent_t &event : cuda->ring.copied)
        INVAR_CUDA_TRY("event", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return INVAR_OK;
}

static invar_status check_results(const invar_device *dev, const char *what, int64_t differ,
                                  int64_t results)
{
    if (differ > 0)
        return INVAR_FAIL(INVAR_E_NODEVICE, 0,
                          "%s of GPU %d differs from numerics sm90 in %" PRId64 " of %" PRId64
                          " results: this GPU is damaged or another one; choose device = cpu",
                          what, invar_cuda_of(dev)->ordinal, differ, results);
    return INVAR_OK;
}

/* A GPU whose circuits compute something else must not run what is named after them. */
static invar_status check_numerics(const invar_device *dev)
{
    enum { TILES = 8 };
    int64_t results, differ;

    if (dev->numerics != INVAR_NUMERICS_SM90)
        return INVAR_OK;
    INVAR_TRY(invar_hardware_check_step(&results, &differ, dev, TILES));
    INVAR_TRY(check_results(dev, "the tensor core", differ, results));
    INVAR_TRY(invar_hardware_check_unit(&results, &differ, dev, false));
    return check_results(dev, "the special function unit", differ, results);
}

static invar_status open_context(invar_device *dev)
{
    invar_status status;
    invar_cuda *cuda;

    INVAR_TRY(invar_alloc((void **)&cuda, 1, sizeof *cuda, "the CUDA context"));
    *cuda = invar_cuda{};
    dev->context = cuda;
    status = open_stream(dev, cuda);
    if (status == INVAR_OK)
        status = open_pinned(cuda);
    if (status == INVAR_OK)
        status = check_numerics(dev);
    if (status == INVAR_OK)
        dev->ordinal = cuda->ordinal;
    else
        close_context(dev);
    return status;
}

/* ---- table ----------------------------------------------------------------------------------- */

/* Calls through the real type of each op: function pointers are not cast. */
#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    static size_t workspace_##fn(const invar_device *dev, const void *args)                        \
    {                                                                                              \
        (void)enter(dev);                                                                          \
        return invar_cuda_##fn##_workspace(dev, (const invar_##fn##_args *)args);                  \
    }                                                                                              \
    static invar_status run_##fn(const invar_device *dev, const void *args, void *workspace)       \
    {                                                                                              \
        (void)enter(dev);                                                                          \
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
    invar_hardware_check_facts,
    model,
    follow,
    look,
    {true, take, give, take_host, give_host, room, used, put, get, copy, copy_each, zero, wait,
     identify, false, false},
    {graph_begin, graph_end, graph_run, graph_free},
    {mark_set, mark_read, invar_cuda_timer_range},
    {
#define INVAR_OP(ID, fn, name, revision, numerics) {workspace_##fn, run_##fn},
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
    },
};

const invar_backend *invar_cuda_backend(void)
{
    return &cuda_backend;
}
