/*
 * comm.h - communicators: transfers of bytes between ranks (threads, MPI, NCCL), without
 * reductions.
 *
 * A handle is one rank of a group. All ranks of a group make the same calls in the same order; only
 * SENDRECV is between two ranks. The arguments of a call are a transfer, a plain struct that is
 * also used to estimate how many bytes a layout moves.
 *
 * There is no reduction: sums have an order, which is part of the result, and transports choose
 * their own (docs/adr/0020-transports-move-bytes.md). A caller cannot observe which bytes arrived
 * first either: it waits for transfers that it names.
 *
 * Ranks that compute for long send heartbeats (invar_comm_heartbeat), and waiting ranks keep
 * waiting. A wait times out if no rank of the world sends a heartbeat or completes a call.
 *
 * A rank that dies, hangs, aborts or makes another call ends the calls of all ranks: each fails
 * with INVAR_E_IO and the same line, which names a rank, its host and the phase. All later calls on
 * the group and on groups split from it fail with that line. `native` of the error is the reason:
 * ETIMEDOUT (timeout), EPROTO (a different call), ECONNRESET (the rank has left), ECONNABORTED
 * (invar_comm_abort) or ECANCELED (invar_comm_abort_recoverable).
 *
 * The handles of a rank must be used by one thread at a time. Memory is host memory, except for
 * groups of invar_comm_nccl.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_COMM_COMM_H
#define INVAR_ENGINE_RANKS_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct invar_comm invar_comm;
typedef struct invar_comm_request invar_comm_request;

#define INVAR_COMM_NONE (-1)
#define INVAR_COMM_PHASE_SIZE 48 /* size of a phase with its NUL; longer phases are truncated */

typedef enum invar_comm_op {
    INVAR_COMM_ALLGATHERV, /* every rank receives the bytes of every rank */
    INVAR_COMM_ALLTOALLV,  /* every rank sends a different piece to each rank */
    INVAR_COMM_SENDRECV,   /* sends to one rank and receives from one; one call may do both */
    INVAR_COMM_BROADCAST,  /* every rank receives the bytes of one rank */
    INVAR_COMM_BARRIER,    /* returns when every rank has called it */
    INVAR_COMM_SPLIT,      /* used by invar_comm_split only */
    INVAR_COMM_OPS
} invar_comm_op;

const char *invar_comm_op_name(invar_comm_op op);

/*
 * Arguments of one call. Arrays have one element per rank of the group; pieces are stored in rank
 * order without gaps. A rank's own piece is copied, unless `in` points to its place in `out`
 * already; otherwise `in` and `out` must not overlap. All ranks of a call must name the same phase,
 * and sent and expected sizes must be equal; a difference is reported as a failure (EPROTO).
 */
typedef struct invar_comm_transfer {
    invar_comm_op op;
    const char *phase; /* purpose of the transfer, used in error messages */
    double timeout_s;  /* time limit of a wait without a heartbeat of any rank; 0 for no limit */
    const void *in;
    void *out;
    const size_t *in_bytes;  /* ALLTOALLV: bytes for each rank */
    const size_t *out_bytes; /* ALLGATHERV, ALLTOALLV: bytes from each rank */
    int dst_rank;            /* SENDRECV: destination rank or INVAR_COMM_NONE */
    int src_rank;            /* SENDRECV: source rank or INVAR_COMM_NONE; BROADCAST: the root */
    size_t to_bytes;         /* SENDRECV: bytes for dst_rank */
    size_t from_bytes;       /* SENDRECV: bytes from src_rank; BROADCAST: bytes of the root */
} invar_comm_transfer;

/*
 * invar_comm_run makes a transfer and waits for it; invar_comm_start only starts it. Until the wait
 * `in` must not be written and `out` not be read. Every request must be waited for, also after a
 * failure of another one; the wait releases it.
 */
invar_status invar_comm_run(invar_comm *comm, const invar_comm_transfer *transfer) INVAR_MUST_USE;
invar_status invar_comm_start(invar_comm_request **out, invar_comm *comm,
                              const invar_comm_transfer *transfer) INVAR_MUST_USE;
invar_status invar_comm_wait(invar_comm_request *request) INVAR_MUST_USE;

/*
 * Splits a group: ranks with the same color form a group, ordered by (key, rank). Collective. *out
 * is NULL if `color` is below 0. Free with invar_comm_free.
 */
invar_status invar_comm_split(invar_comm **out, invar_comm *comm, int64_t color, int64_t key,
                              const char *phase, double seconds) INVAR_MUST_USE;

/*
 * Reports that this rank makes progress, which restarts the timeouts of waiting ranks. Never waits.
 * `seconds` is their timeout; at most eight heartbeats are sent in that time.
 */
void invar_comm_heartbeat(invar_comm *comm, double seconds);

int invar_comm_rank(const invar_comm *comm);
int invar_comm_size(const invar_comm *comm);

/* Name of the host of a rank of the group; owned by the communicator. */
const char *invar_comm_host(const invar_comm *comm, int rank);

/*
 * Reports to all ranks that this one cannot continue, without waiting. `why` is one line for the
 * user, such as the message of this thread's error record, which stays unchanged. If `why` is that
 * message and the record's status has an exit code of its own, the others fail with that status.
 */
void invar_comm_abort(invar_comm *comm, const char *why);

/*
 * Like invar_comm_abort, for a rank that must save something together with the others afterwards
 * (invar_comm_recover).
 */
void invar_comm_abort_recoverable(invar_comm *comm, const char *why);

/*
 * Makes the world group usable once more after invar_comm_abort_recoverable; groups that were split
 * from it stay unusable. Every rank calls it. The first failure stays the one that is reported,
 * whatever fails later. Returns false if the world has not failed, or failed in another way: then
 * there is nothing to wait for.
 */
bool invar_comm_recover(invar_comm *comm);

/*
 * Returns true on the one rank that reports the error to the user: rank 0, or rank 1 if rank 0 has
 * left or hangs. If ranks are processes, the launcher kills all of them as soon as one has exited
 * with a failure, so this rank prints and exits, and the others free their handles first, which
 * then takes some seconds. A rank that still runs after that prints, too, because no other rank
 * has.
 */
bool invar_comm_reports_error(const invar_comm *comm);

/*
 * Frees a handle; `comm` may be NULL. A rank whose last handle is freed has left the world. If
 * ranks are processes, the call waits for all ranks to leave.
 */
void invar_comm_free(invar_comm *comm);

/*
 * Statistics of the completed calls of a handle. Bytes are those that callers asked for, to and
 * from other ranks: (size - 1) times the piece for a rank that sends it to all. Not counted are
 * bytes that a rank sends to itself and overhead or relays of a transport. Over all ranks, the sums
 * of sent and received bytes are equal. A split counts as a gather of 24 bytes per rank.
 */
typedef struct invar_comm_stats {
    uint64_t calls;
    uint64_t sent, received; /* bytes */
    double wait_s;           /* time spent in invar_comm_wait and invar_comm_run */
} invar_comm_stats;

invar_comm_stats invar_comm_get_stats(const invar_comm *comm, invar_comm_op op);

/*
 * Computes the bytes that `rank` of a group of `size` ranks would send and receive; makes no
 * transfer.
 */
invar_status invar_comm_transfer_bytes(uint64_t *sent_out, uint64_t *received_out,
                                       const invar_comm_transfer *transfer, int rank,
                                       int size) INVAR_MUST_USE;

/* A completed call, for the observer. */
typedef struct invar_comm_event {
    invar_comm_op op;
    const char *phase;
    uint64_t sent, received; /* bytes, counted as in invar_comm_stats */
    double waited;           /* seconds spent waiting in this call */
} invar_comm_event;

/*
 * Sets an observer that is called for each later call of this rank that completes, in any group of
 * more than one rank. NULL removes it.
 */
void invar_comm_set_observer(invar_comm *comm,
                             void (*done)(void *payload, const invar_comm_event *call),
                             void *payload);

/* ---- constructors ---------------------------------------------------------------------------- */

/* Creates a group of a single rank. */
invar_status invar_comm_self(invar_comm **out) INVAR_MUST_USE;

/*
 * Creates a rank of a group whose other ranks do not exist: calls are checked and counted, but
 * nothing is read, written or waited for. Used to estimate transfers. It must not be split.
 */
invar_status invar_comm_simulated(invar_comm **out, int rank, int size) INVAR_MUST_USE;

/*
 * Creates ranks that are threads of this process: out (size) gets one handle each. The receiving
 * thread copies the bytes once, from the sender's memory.
 *
 * With a seed other than 0 the scheduling is adversarial: messages are posted and received in a
 * random order with random delays, and `out` is filled with noise until the wait. No result may
 * depend on it.
 */
invar_status invar_comm_threads(invar_comm **out, int size, uint64_t seed) INVAR_MUST_USE;

/*
 * Ranks that are processes started by mpirun or srun. Can be created once per process. The MPI
 * module is loaded at run time; returns INVAR_E_UNSUPPORTED if it is missing.
 */
typedef struct invar_comm_mpi_options {
    double seconds; /* timeout at start and when the last handle is freed; 0 for none */
    /* path of the module; NULL for invar-mpi.so beside the executable or in ../lib/invar */
    const char *module;
    size_t piece; /* largest message in bytes; 0 for 16 MiB, which is also the maximum */
} invar_comm_mpi_options;

invar_status invar_comm_mpi(invar_comm **out, const invar_comm_mpi_options *options) INVAR_MUST_USE;

/*
 * Creates a group of the same ranks whose transfers take device memory: `in` and `out` are in the
 * memory of the rank's own GPU, and the work that writes them must have finished. Collective.
 * Groups split from it are of the same kind. NCCL is loaded at run time; returns
 * INVAR_E_UNSUPPORTED if the module is missing. NCCL refuses two ranks on one GPU, unless they are
 * processes and each has its own NCCL_HOSTID in the environment.
 */
typedef struct invar_comm_nccl_options {
    double seconds; /* timeout of the start; 0 for none */
    /* path of the module; NULL for invar-nccl.so beside the executable or in ../lib/invar */
    const char *module;
    int ordinal; /* GPU index, as in invar_device */
} invar_comm_nccl_options;

invar_status invar_comm_nccl(invar_comm **out, invar_comm *host,
                             const invar_comm_nccl_options *options) INVAR_MUST_USE;

/*
 * Version of the NCCL that a module loads (NULL for the default module): 22809 is 2.28.9. Not
 * collective.
 */
invar_status invar_comm_nccl_version(int *out, const char *module) INVAR_MUST_USE;

#define INVAR_COMM_MAX_SIZE 65536 /* ranks of a group */

#endif
