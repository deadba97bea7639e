/*
 * comm.h - ranks: bytes move between them, and nothing is added on the way.
 *
 * A handle is one rank of a group. Every rank of the group makes the same calls in the same order;
 * only SENDRECV is between two. A call is a move, which is plain data: what computes how many bytes
 * a layout moves and what moves them read the same struct.
 *
 * There is no reduction. Sums have an order, which is part of the result, and transports choose
 * their own (docs/adr/0020-transports-move-bytes.md). Nor can a caller see what arrived first: it
 * waits for moves that it names.
 *
 * A rank that computes for long is not one that hangs: it beats (invar_comm_heartbeat), and those
 * who
 * wait go on waiting. A deadline passes where no rank of the world beats, or completes a call.
 *
 * A rank that dies, hangs, aborts or calls something else ends the calls of all others: each fails
 * with INVAR_E_IO and the same line, which names a rank, its host and the phase. After that every
 * call on the group and on what it was split into fails with that line. `native` says what it was:
 * ETIMEDOUT (a deadline), EPROTO (another call), ECONNRESET (the rank has left), ECONNABORTED
 * (invar_comm_abort), ECANCELED (invar_comm_abort_recoverable).
 *
 * The handles of a rank are used by one thread at a time. Memory is the host's, but for groups of
 * invar_comm_nccl.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_COMM_COMM_H
#define INVAR_ENGINE_RANKS_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_comm invar_comm;
typedef struct invar_comm_request invar_comm_request;

#define INVAR_COMM_NONE (-1)
#define INVAR_COMM_PHASE_SIZE 48 /* of a phase with its NUL; what is longer is cut */

typedef enum invar_comm_op {
    INVAR_COMM_ALLGATHERV, /* every rank gets what every rank gives */
    INVAR_COMM_ALLTOALLV,  /* every rank gives each rank a piece of its own */
    INVAR_COMM_SENDRECV,   /* gives to one rank, gets from one; both may be in one call */
    INVAR_COMM_BROADCAST,  /* every rank gets what one gives */
    INVAR_COMM_BARRIER,    /* returns when every rank has called it */
    INVAR_COMM_SPLIT,      /* invar_comm_split alone */
    INVAR_COMM_OPS
} invar_comm_op;

const char *invar_comm_op_name(invar_comm_op op);

/*
 * One call. Arrays have an element a rank of the group; pieces lie one after the other in the order
 * of ranks. A rank's own piece is copied, unless `in` is already the place where it belongs; other
 * than that `in` and `out` do not overlap. Ranks of one call name the same phase, and what one
 * gives is as long as the other expects: a difference is found and told.
 */
typedef struct invar_comm_transfer {
    invar_comm_op op;
    const char *phase; /* what it is for: a part of messages */
    double timeout_s;  /* without a beat of any rank a wait for others ends; 0: never */
    const void *in;
    void *out;
    const size_t *in_bytes;  /* ALLTOALLV: for each rank */
    const size_t *out_bytes; /* ALLGATHERV, ALLTOALLV: from each rank */
    int dst_rank;            /* SENDRECV: a rank or INVAR_COMM_NONE */
    int src_rank;            /* SENDRECV the same; BROADCAST: who gives */
    size_t to_bytes;         /* SENDRECV */
    size_t from_bytes;       /* SENDRECV, BROADCAST */
} invar_comm_transfer;

/*
 * Starts and waits. With several moves under way, `in` must not be changed and `out` not be read
 * before the wait, which is due for every ticket, after a failure too, and releases it.
 */
invar_status invar_comm_run(invar_comm *comm, const invar_comm_transfer *move) INVAR_MUST_USE;
invar_status invar_comm_start(invar_comm_request **out, invar_comm *comm,
                              const invar_comm_transfer *move) INVAR_MUST_USE;
invar_status invar_comm_wait(invar_comm_request *ticket) INVAR_MUST_USE;

/*
 * Groups of ranks with one colour, in the order of (key, rank); a call of all ranks. *out is NULL
 * for a colour below 0.
 */
invar_status invar_comm_split(invar_comm **out, invar_comm *comm, int64_t colour, int64_t key,
                              const char *phase, double seconds) INVAR_MUST_USE;

/*
 * This rank has got on with its work. So whoever waits for it, or for one that waits for it, waits
 * `seconds` more. Without waiting; others are told now and then, several times in `seconds`.
 */
void invar_comm_heartbeat(invar_comm *comm, double seconds);

int invar_comm_rank(const invar_comm *comm);
int invar_comm_size(const invar_comm *comm);

/* The host of a rank of the group. */
const char *invar_comm_host(const invar_comm *comm, int rank);

/*
 * Tells all ranks that this one cannot go on, without waiting; `why` is one line for the user, such
 * as the message of this thread's error record, which stays as it is. Where it is that message and
 * the record's status has an exit code of its own, the others fail with that status.
 */
void invar_comm_abort(invar_comm *comm, const char *why);

/* The same by a rank that has something to save, together with the others. */
void invar_comm_abort_recoverable(invar_comm *comm, const char *why);

/*
 * After a halt, by each rank: the group of all ranks works once more, what it was split into does
 * not. The failure stays the one to tell, whatever fails then. False: the world has not failed, or
 * in another way, and there is nothing to wait for.
 */
bool invar_comm_recover(invar_comm *comm);

/*
 * The one rank that tells the user: 0, or 1 when 0 has left or hangs. Where ranks are
 * processes, the launcher ends all of them as soon as one has ended with a failure. So this one
 * speaks and ends, and the others free their handles first, which then takes some seconds: who is
 * still there after that speaks, too, because nobody has.
 */
bool invar_comm_reports_error(const invar_comm *comm);

/* A rank whose last handle is freed has left. Where ranks are processes, it waits for all. */
void invar_comm_free(invar_comm *comm);

/*
 * What completed calls of a handle moved. Bytes are those that the callers asked for, from and to
 * other ranks: (size - 1) times its piece for a rank that gives it to all. What a rank gives itself
 * does not count, nor does what a transport adds or how it relays. The sum of bytes sent over all
 * ranks is that of bytes received. A split counts as the gather of 24 bytes a rank.
 */
typedef struct invar_comm_stats {
    uint64_t calls;
    uint64_t sent, received; /* bytes */
    double wait_s;           /* seconds in invar_comm_wait and invar_comm_run */
} invar_comm_stats;

invar_comm_stats invar_comm_get_stats(const invar_comm *comm, invar_comm_op op);

/* The same for a move that is not made: what a rank of a group of `size` sends and receives. */
invar_status invar_comm_transfer_bytes(uint64_t *sent_out, uint64_t *received_out,
                                       const invar_comm_transfer *move, int rank,
                                       int size) INVAR_MUST_USE;

/* A call that has completed. */
typedef struct invar_comm_event {
    invar_comm_op op;
    const char *phase;
    uint64_t sent, received; /* bytes, as they are counted */
    double waited;           /* seconds, up to now */
} invar_comm_event;

/*
 * Shows each call of this rank that completes from now on, in whatever group of more than one rank;
 * NULL: no longer.
 */
void invar_comm_set_observer(invar_comm *comm,
                             void (*done)(void *payload, const invar_comm_event *call),
                             void *payload);

/* ---- where groups come from ------------------------------------------------------------------ */

/* One rank. */
invar_status invar_comm_self(invar_comm **out) INVAR_MUST_USE;

/*
 * A rank of a group whose other ranks are not there: its calls are checked and counted, but nothing
 * is read, written or waited for. For those who want to know what a run will move. It cannot be
 * split.
 */
invar_status invar_comm_simulated(invar_comm **out, int rank, int size) INVAR_MUST_USE;

/*
 * Ranks that are threads of this process: out is (size), a handle for each. Bytes are copied once,
 * from the giver's memory by the thread that gets them.
 *
 * With a seed other than 0 an adversary schedules: messages are posted and taken in a random order
 * with random delays, and `out` is filled with noise until the wait. No result may depend on it.
 */
invar_status invar_comm_threads(invar_comm **out, int size, uint64_t seed) INVAR_MUST_USE;

/*
 * Ranks that are processes of mpirun or srun; once in a process. MPI is loaded by it, not linked:
 * INVAR_E_UNSUPPORTED says that the module is not there.
 */
typedef struct invar_comm_mpi_options {
    double seconds;     /* for the other ranks to come, here and when the last handle is freed; 0 */
    const char *module; /* its file; NULL: invar-mpi.so beside the program or in ../lib/invar */
    size_t piece;       /* largest message in bytes; 0: 16 MiB, which is the most */
} invar_comm_mpi_options;

invar_status invar_comm_mpi(invar_comm **out, const invar_comm_mpi_options *options) INVAR_MUST_USE;

/*
 * The ranks of a group once more, with the memory of GPUs in their moves: `in` and `out` are in
 * that of the rank's own GPU, and what it still computes there must have been waited for. A call of
 * all ranks. What is split from it is of the same kind. NCCL is loaded by it, not linked:
 * INVAR_E_UNSUPPORTED says that the module is not there. It refuses two ranks on one GPU, unless
 * they are processes and each has its own NCCL_HOSTID in the environment.
 */
typedef struct invar_comm_nccl_options {
    double seconds;     /* for the other ranks to come; 0 */
    const char *module; /* its file; NULL: invar-nccl.so beside the program or in ../lib/invar */
    int ordinal;        /* of the GPU, as in invar_device */
} invar_comm_nccl_options;

invar_status invar_comm_nccl(invar_comm **out, invar_comm *host,
                             const invar_comm_nccl_options *options) INVAR_MUST_USE;

/* Of the NCCL that a module (NULL: this program's) brings: 22809 is 2.28.9. No call of ranks. */
invar_status invar_comm_nccl_version(int *out, const char *module) INVAR_MUST_USE;

#define INVAR_COMM_MAX_SIZE 65536 /* ranks */

#ifdef __cplusplus
}
#endif
#endif
