/*
 * nccl_module.c - table of functions over the NCCL that this file is compiled with.
 *
 * Communicators are non-blocking: a call that has not ended is polled with ncclCommGetAsyncError.
 * Bytes move in the order of the group's own stream; an event recorded after them reports that they
 * have arrived.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/module/nccl_module.h"

#include <nccl.h> // includes the CUDA runtime
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/invar_banned.h"

_Static_assert(sizeof(ncclUniqueId) == INVAR_NCCL_ID_BYTES, "an id travels as bytes");
_Static_assert(ncclSuccess == 0, "0 is success");

enum { CUDA = 1000 }; /* codes from here on are those of the CUDA runtime */
/* timeout of finalize_comm in seconds, and milliseconds per second */
enum { FINALIZE = 10, MS = 1000 };

static int of_cuda(cudaError_t code)
{
    return code == cudaSuccess ? 0 : CUDA + (int)code;
}

/* Converts a code. A call in progress is a success here: test_done reports its end. */
static int of_nccl(ncclResult_t code)
{
    return code == ncclInProgress ? 0 : (int)code;
}

static int get_version(int *out)
{
    return (int)ncclGetVersion(out);
}

static int make_id(char out[INVAR_NCCL_ID_BYTES])
{
    ncclUniqueId id;
    int code = (int)ncclGetUniqueId(&id);

    memcpy(out, &id, sizeof id);
    return code;
}

static int connect_ranks(invar_nccl_group *g, const char *bytes, int rank, int size)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    int code;

    memcpy(&id, bytes, sizeof id);
    config.blocking = 0;
    code = of_nccl(ncclCommInitRankConfig(&comm, size, id, rank, &config));
    g->comm = comm;
    return code;
}

static int open_stream(invar_nccl_group *g)
{
    cudaStream_t stream = NULL;
    cudaEvent_t end = NULL;
    int code = of_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

    if (!code)
        code = of_cuda(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
    g->stream = stream;
    g->end = end;
    return code;
}

static int open_group(invar_nccl_group *g, const char id[INVAR_NCCL_ID_BYTES], int rank, int size,
                      int ordinal)
{
    int count = 1, code = of_cuda(cudaGetDeviceCount(&count));

    memset(g, 0, sizeof *g);
    if (code)
        return code;
    g->ordinal = ordinal % count;
    g->marked = 1; // no operation was begun yet
    if ((code = of_cuda(cudaSetDevice(g->ordinal))) || (code = open_stream(g)))
        return code;
    return connect_ranks(g, id, rank, size);
}

/* Prepares the group for a new operation. */
static int begin_op(invar_nccl_group *g)
{
    g->marked = 0;
    return of_cuda(cudaSetDevice(g->ordinal));
}

static int exchange_pieces(invar_nccl_group *g, const invar_nccl_p2p *pieces, int count)
{
    int code = begin_op(g), ended;

    if (code || (code = (int)ncclGroupStart()))
        return code;
    for (int i = 0; i < count && !code; i++) {
        const invar_nccl_p2p *p = &pieces[i];

        code = of_nccl(p->from ? ncclSend(p->from, p->bytes, ncclUint8, p->peer, g->comm, g->stream)
                               : ncclRecv(p->to, p->bytes, ncclUint8, p->peer, g->comm, g->stream));
    }
    ended = of_nccl(ncclGroupEnd());
    return code ? code : ended;
}

static int all_gather(invar_nccl_group *g, const void *in, void *out, size_t bytes)
{
    int code = begin_op(g);

    return code ? code : of_nccl(ncclAllGather(in, out, bytes, ncclUint8, g->comm, g->stream));
}

static int broadcast_bytes(invar_nccl_group *g, const void *in, void *out, size_t bytes, int root)
{
    int code = begin_op(g);

    return code ? code
                : of_nccl(ncclBroadcast(in, out, bytes, ncclUint8, root, g->comm, g->stream));
}

static int test_done(int *done_out, invar_nccl_group *g)
{
    ncclResult_t state = ncclSuccess;
    int code = (int)ncclCommGetAsyncError(g->comm, &state);
    cudaError_t end;

    *done_out = 0;
    if (code || state == ncclInProgress)
        return code;
    if (state != ncclSuccess)
        return (int)state;
    // the operation is in the stream from here on
    if (!g->marked && (code = of_cuda(cudaEventRecord(g->end, g->stream))))
        return code;
    g->marked = 1;
    end = cudaEventQuery(g->end);
    *done_out = end == cudaSuccess;
    return end == cudaErrorNotReady ? 0 : of_cuda(end);
}

/* Waits until all messages of this rank have been sent, or FINALIZE seconds. */
static ncclResult_t finalize_comm(ncclComm_t comm)
{
    struct timespec pause = {0, 1000000};
    ncclResult_t state = ncclCommFinalize(comm);

    for (int i = 0; state == ncclInProgress && i < FINALIZE * MS; i++) {
        nanosleep(&pause, NULL);
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess)
            break;
    }
    return state;
}

static void close_group(invar_nccl_group *g, int broken)
{
    if (!g->stream)
        return;
    (void)cudaSetDevice(g->ordinal);
    if (g->comm && !broken && finalize_comm(g->comm) == ncclSuccess)
        (void)ncclCommDestroy(g->comm);
    else if (g->comm)
        (void)ncclCommAbort(g->comm);
    if (g->end)
        (void)cudaEventDestroy(g->end);
    if (g->stream)
        (void)cudaStreamDestroy(g->stream);
    memset(g, 0, sizeof *g);
}

static void describe_error(char *out, size_t size, int code)
{
    const char *last = ncclGetLastError(NULL);

    if (code >= CUDA)
        (void)snprintf(out, size, "CUDA: %s", cudaGetErrorString((cudaError_t)(code - CUDA)));
    else
        (void)snprintf(out, size, "NCCL: %s%s%s", ncclGetErrorString((ncclResult_t)code),
                       last && last[0] ? ": " : "", last ? last : "");
}

extern const invar_nccl_table INVAR_NCCL_TABLE;
__attribute__((visibility("default"))) const invar_nccl_table INVAR_NCCL_TABLE = {
    INVAR_NCCL_ABI, get_version,     make_id,   open_group,  exchange_pieces,
    all_gather,     broadcast_bytes, test_done, close_group, describe_error};
