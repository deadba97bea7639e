/*
 * backend.cu - the CUDA backend: op table, context, memory, copies, graphs, timers, errors.
 *
 * A context has one stream, which orders all ops and copies of the device. Uploads go through a
 * ring of pinned slots, or directly if the source is large and pinned. A kernel cannot fail: it
 * records a fault in device memory, which synchronize_stream and poll_error return as an error.
 * Every entry first makes the GPU of the context current, because CUDA has one current GPU per
 * thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/common/cuda.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nvtx3/nvToolsExt.h>

#include "base/alloc.h"
#include "kernels-deterministic/cuda/common/gpu_support.h"
#include "kernels-deterministic/cuda/module.h"
#include "kernels-deterministic/cuda/sm90/hardware_check.h"

/* ---- errors ---------------------------------------------------------------------------------- */

/*
 * Returns whether the code means that there is no GPU or driver that this build can use. Such a
 * code is not the fault of a GPU.
 */
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

static const char *error_advice(cudaError_t code)
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
                        cudaGetErrorString(code), cudaGetErrorName(code), error_advice(code));
    return status;
}

static_assert(cudaErrorMemoryAllocation == INVAR_DEVICE_NOMEM, "the GPU's memory is meant");

/*
 * Checks a call that pins host memory. invar_cuda_fail would report how much memory of the GPU is
 * free, which is not what is missing.
 */
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

/*
 * Returns the fault that kernels have recorded as an error, and clears it. The caller has copied it
 * to fault_host.
 */
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
 * Makes the GPU of the device current in this thread and returns the context. CUDA has one current
 * GPU per thread, and the ranks of a process may use different ones. The current GPU is queried
 * every time, since other libraries of the process (PyTorch, CuPy) change it as well.
 */
static invar_cuda *set_current_device(const invar_device *dev)
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

/* Limit of small copies, which go through pinned memory of the context. */
#define SMALL_COPY_BYTES ((size_t)1 << 20)

/* Frees the memory that the pool keeps for later allocations. */
static void empty_pool(const invar_cuda *cuda)
{
    cudaMemPool_t pool;

    if (cudaStreamSynchronize(cuda->stream) == cudaSuccess &&
        cudaDeviceGetDefaultMemPool(&pool, cuda->ordinal) == cudaSuccess)
        (void)cudaMemPoolTrimTo(pool, 0);
}

static invar_status cuda_alloc(const invar_device *dev, void **out, size_t bytes, const char *what)
{
    invar_cuda *cuda = set_current_device(dev);
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

static void cuda_free(const invar_device *dev, void *block)
{
    if (block)
        (void)cudaFreeAsync(block, set_current_device(dev)->stream);
}

#define PREFAULT_BYTES ((size_t)64 << 20) /* written by one task */

typedef struct prefault_range {
    char *block;
    size_t bytes;
} prefault_range;

/*
 * Zeroes one part of a block. A page gets its memory when it is first written, which takes longer
 * than copying it, so several threads do this before the block is pinned.
 */
static invar_status prefault_pages(void *payload, int64_t task, int worker)
{
    const prefault_range *p = (const prefault_range *)payload;
    size_t first = (size_t)task * PREFAULT_BYTES, rest = p->bytes - first;

    (void)worker;
    memset(p->block + first, 0, rest < PREFAULT_BYTES ? rest : PREFAULT_BYTES);
    return INVAR_OK;
}

static void cuda_free_host(const invar_device *dev, void *block)
{
    if (!block)
        return;
    (void)set_current_device(dev);
    if (cudaHostUnregister(block) != cudaSuccess)
        (void)cudaGetLastError(); // small blocks are not registered, see pin_host_memory
    invar_free(block);
}

static invar_status pin_host_memory(const invar_device *dev, char *block, size_t bytes,
                                    const char *what)
{
    prefault_range p = {block, bytes};
    int64_t tasks = (int64_t)((bytes + PREFAULT_BYTES - 1) / PREFAULT_BYTES);

    // a small block shares its pages with others, and is copied fast enough
    if (bytes < SMALL_COPY_BYTES)
        return INVAR_OK;
    (void)set_current_device(dev);
    INVAR_TRY(invar_pool_run(dev->pool, tasks, prefault_pages, &p));
    return check_pinned(cudaHostRegister(block, bytes, cudaHostRegisterDefault), what);
}

static invar_status cuda_alloc_host(const invar_device *dev, void **out, size_t bytes,
                                    const char *what)
{
    INVAR_TRY(invar_alloc(out, bytes, 1, what));
    invar_status status = pin_host_memory(dev, (char *)*out, bytes, what);
    if (status != INVAR_OK) {
        cuda_free_host(dev, *out);
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

/* Returns the free bytes of the GPU, including those that the pool holds but does not use. */
static size_t free_gpu_bytes(const invar_device *dev)
{
    size_t free_bytes = 0, all = 0;
    uint64_t reserved = 0, allocated_gpu_bytes = 0;
    cudaMemPool_t pool;

    (void)set_current_device(dev);
    (void)cudaMemGetInfo(&free_bytes, &all);
    if (cudaDeviceGetDefaultMemPool(&pool, invar_cuda_of(dev)->ordinal) != cudaSuccess ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved) !=
            cudaSuccess ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &allocated_gpu_bytes) !=
            cudaSuccess)
        return free_bytes;
    return free_bytes + (size_t)(reserved - allocated_gpu_bytes);
}

static size_t allocated_gpu_bytes(const invar_device *dev)
{
    uint64_t bytes = 0;
    cudaMemPool_t pool;

    (void)set_current_device(dev);
    if (cudaDeviceGetDefaultMemPool(&pool, invar_cuda_of(dev)->ordinal) != cudaSuccess ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes) != cudaSuccess)
        return 0;
    return (size_t)bytes;
}

/* Advances to the next slot of the ring and waits until its copies have run. */
static invar_status next_staging_slot(invar_cuda *cuda)
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

static invar_status upload_bytes(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    invar_cuda *cuda = set_current_device(dev);
    invar_cuda_ring *ring = &cuda->ring;

    if (bytes >= SMALL_COPY_BYTES && is_pinned(from)) {
        INVAR_CUDA_TRY("copy to the GPU",
                       cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cuda->stream));
        INVAR_CUDA_TRY("copy to the GPU", cudaStreamSynchronize(cuda->stream));
        return INVAR_OK;
    }
    while (bytes > 0) {
        size_t piece = bytes < INVAR_CUDA_SLOT_BYTES ? bytes : INVAR_CUDA_SLOT_BYTES;
        if (piece > INVAR_CUDA_SLOT_BYTES - ring->used)
            INVAR_TRY(next_staging_slot(cuda));
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

static invar_status synchronize_stream(const invar_device *dev)
{
    invar_cuda *cuda = set_current_device(dev);

    INVAR_CUDA_TRY("wait", cudaMemcpyAsync(cuda->fault_host, cuda->fault, sizeof *cuda->fault_host,
                                           cudaMemcpyDeviceToHost, cuda->stream));
    INVAR_CUDA_TRY("wait", cudaStreamSynchronize(cuda->stream));
    for (bool &full : cuda->ring.full)
        full = false;
    cuda->ring.used = 0;
    cuda->fault_copy_pending = false;
    return take_fault(cuda);
}

static invar_status download_bytes(const invar_device *dev, void *to, const void *from,
                                   size_t bytes)
{
    invar_cuda *cuda = set_current_device(dev);
    bool small = bytes <= SMALL_COPY_BYTES;

    if (bytes > 0)
        INVAR_CUDA_TRY("copy from the GPU",
                       cudaMemcpyAsync(small ? cuda->host_buffer : to, from, bytes,
                                       cudaMemcpyDeviceToHost, cuda->stream));
    INVAR_TRY(synchronize_stream(dev));
    if (small && bytes > 0)
        memcpy(to, cuda->host_buffer, bytes);
    return INVAR_OK;
}

static invar_status copy_on_gpu(const invar_device *dev, void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        INVAR_CUDA_TRY("copy on the GPU", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                                                          set_current_device(dev)->stream));
    return INVAR_OK;
}

static invar_status copy_strided(const invar_device *dev, void *to, const void *from, size_t bytes,
                                 size_t stride, size_t count)
{
    if (bytes == 0 || count == 0)
        return INVAR_OK;
    if (stride <= INT32_MAX) {
        INVAR_CUDA_TRY("copies on the GPU", cudaMemcpy2DAsync(to, stride, from, stride, bytes,
                                                              count, cudaMemcpyDeviceToDevice,
                                                              set_current_device(dev)->stream));
        return INVAR_OK;
    }
    // the stride is larger than cudaMemcpy2DAsync accepts
    for (size_t i = 0; i < count; i++)
        INVAR_TRY(
            copy_on_gpu(dev, (char *)to + i * stride, (const char *)from + i * stride, bytes));
    return INVAR_OK;
}

static invar_status zero_bytes(const invar_device *dev, void *at, size_t bytes)
{
    if (bytes > 0)
        INVAR_CUDA_TRY("zeros", cudaMemsetAsync(at, 0, bytes, set_current_device(dev)->stream));
    return INVAR_OK;
}

static void identify_gpu(const invar_device *dev, invar_digest *out)
{
    static_assert(sizeof(cudaUUID_t) == sizeof out->bytes, "a digest has room for it");
    memcpy(out->bytes, &invar_cuda_of(dev)->uuid, sizeof out->bytes);
}

/* ---- a stream of the caller's ---------------------------------------------------------------- */

static invar_status set_stream(const invar_device *dev, void *stream)
{
    invar_cuda *cuda = set_current_device(dev);

    if (cuda->stream == (cudaStream_t)stream)
        return INVAR_OK;
    INVAR_CUDA_TRY("stream", cudaEventRecord(cuda->previous_done, cuda->stream));
    INVAR_CUDA_TRY("stream", cudaStreamWaitEvent((cudaStream_t)stream, cuda->previous_done, 0));
    cuda->stream = (cudaStream_t)stream;
    return INVAR_OK;
}

/*
 * Returns an error that is known without waiting. Only one copy of the fault is in flight at a
 * time.
 */
static invar_status poll_error(const invar_device *dev)
{
    invar_cuda *cuda = set_current_device(dev);

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
    INVAR_CUDA_TRY("graph", cudaStreamBeginCapture(set_current_device(dev)->stream,
                                                   cudaStreamCaptureModeThreadLocal));
    return INVAR_OK;
}

static invar_status graph_end(invar_device_graph **out, const invar_device *dev)
{
    cudaGraph_t noted = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t code = cudaStreamEndCapture(set_current_device(dev)->stream, &noted);

    if (code == cudaSuccess && out)
        code = cudaGraphInstantiate(&exec, noted, 0);
    if (noted)
        (void)cudaGraphDestroy(noted);
    if (code != cudaSuccess) {
        // clear the error, which is reported here, so that the next launch does not report it again
        (void)cudaGetLastError();
        return invar_cuda_fail(code, "graph", __FILE__, __LINE__);
    }
    if (!out)
        return INVAR_OK;
    invar_status status = INVAR_ALLOC(*out, 1, "a graph of ops");
    if (status == INVAR_OK)
        (*out)->exec = exec;
    else
        (void)cudaGraphExecDestroy(exec);
    return status;
}

static invar_status launch_graph(const invar_device *dev, invar_device_graph *graph)
{
    INVAR_CUDA_TRY("graph", cudaGraphLaunch(graph->exec, set_current_device(dev)->stream));
    return INVAR_OK;
}

static void graph_free(const invar_device *dev, invar_device_graph *graph)
{
    if (!graph)
        return;
    (void)set_current_device(dev);
    (void)cudaGraphExecDestroy(graph->exec);
    invar_free(graph);
}

/* ---- timers ---------------------------------------------------------------------------------- */

/* Makes sure that the event of a mark exists; events are created when they are first used. */
static invar_status ensure_event(invar_cuda *cuda, int64_t at)
{
    if (!cuda->marks) {
        INVAR_TRY(INVAR_ALLOC(cuda->marks, INVAR_DEVICE_TIMERS_MAX, "marks of the profile"));
        for (int64_t i = 0; i < INVAR_DEVICE_TIMERS_MAX; i++)
            cuda->marks[i] = NULL;
    }
    if (!cuda->marks[at])
        INVAR_CUDA_TRY("mark", cudaEventCreate(&cuda->marks[at]));
    return INVAR_OK;
}

static invar_status record_timer(const invar_device *dev, int64_t at)
{
    invar_cuda *cuda = set_current_device(dev);

    INVAR_TRY(ensure_event(cuda, at));
    INVAR_CUDA_TRY("mark", cudaEventRecord(cuda->marks[at], cuda->stream));
    return INVAR_OK;
}

static invar_status read_timers(const invar_device *dev, int64_t *ns_out, int64_t count)
{
    const invar_cuda *cuda = set_current_device(dev);
    float milliseconds;

    if (count == 0)
        return INVAR_OK;
    INVAR_CUDA_TRY("mark", cudaEventSynchronize(cuda->marks[count - 1]));
    for (int64_t i = 0; i < count; i++) {
        INVAR_CUDA_TRY("mark", cudaEventElapsedTime(&milliseconds, cuda->marks[0], cuda->marks[i]));
        ns_out[i] = (int64_t)((double)milliseconds * 1e6);
    }
    return INVAR_OK;
}

static void name_range(const char *name)
{
    if (name)
        (void)nvtxRangePushA(name);
    else
        (void)nvtxRangePop();
}

/* ---- context --------------------------------------------------------------------------------- */

static void close_context(invar_device *dev)
{
    if (!dev->context)
        return;
    invar_cuda *cuda = set_current_device(dev);
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
    for (int64_t i = 0; cuda->marks && i < INVAR_DEVICE_TIMERS_MAX; i++)
        if (cuda->marks[i])
            (void)cudaEventDestroy(cuda->marks[i]);
    invar_free(cuda->marks);
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

static const char *gpu_model(const invar_device *dev)
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
    // keep freed memory for later allocations instead of unmapping it
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
    INVAR_TRY(check_pinned(cudaMallocHost(&cuda->host_buffer, SMALL_COPY_BYTES), "what arrives"));
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

/*
 * Compares the GPU with the contract's step and math/sfu.h: a GPU that computes other bits must not
 * run numerics sm90.
 */
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

    INVAR_TRY(INVAR_ALLOC(cuda, 1, "the CUDA context"));
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

/*
 * Each op is called with the real type of its arguments, because function pointers are not
 * converted.
 */
#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    static size_t workspace_##fn(const invar_device *dev, const void *args)                        \
    {                                                                                              \
        (void)set_current_device(dev);                                                             \
        return invar_cuda_##fn##_workspace(dev, (const invar_##fn##_args *)args);                  \
    }                                                                                              \
    static invar_status run_##fn(const invar_device *dev, const void *args, void *workspace)       \
    {                                                                                              \
        (void)set_current_device(dev);                                                             \
        return invar_cuda_##fn(dev, (const invar_##fn##_args *)args, workspace);                   \
    }
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

/* The op table has the order of ops.def, which is that of invar_op. */
static const invar_backend cuda_backend = {
    INVAR_BACKEND_ABI,
    "cuda",
    open_context,
    close_context,
    invar_hardware_check_facts,
    gpu_model,
    set_stream,
    poll_error,
    {true, cuda_alloc, cuda_free, cuda_alloc_host, cuda_free_host, free_gpu_bytes,
     allocated_gpu_bytes, upload_bytes, download_bytes, copy_on_gpu, copy_strided, zero_bytes,
     synchronize_stream, identify_gpu, false, false},
    {graph_begin, graph_end, launch_graph, graph_free},
    {record_timer, read_timers, name_range},
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
