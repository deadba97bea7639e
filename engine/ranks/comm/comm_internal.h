/*
 * comm_internal.h - interface between comm.c and the transports: world, messages, failures.
 *
 * All groups of a rank belong to one world, which has one transport. A transport only knows
 * messages between two ranks of the world: message n that one rank posts for a context matches
 * message n that the other expects. Groups that have two ranks in common have different contexts.
 * The header of a message describes the call of its sender, so that the receiver detects a mismatch
 * before it uses the bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_COMM_COMM_INTERNAL_H
#define INVAR_ENGINE_RANKS_COMM_COMM_INTERNAL_H

#include "engine/ranks/comm/comm.h"

#define INVAR_COMM_HOST_SIZE 64
#define INVAR_COMM_FAILURE_SIZE 1000

/* Call of the sender; sent before the bytes. */
typedef struct invar_comm_header {
    uint64_t op;
    uint64_t bytes;
    char phase[INVAR_COMM_PHASE_SIZE];
} invar_comm_header;

typedef enum invar_message_state {
    INVAR_MESSAGE_POSTED,
    INVAR_MESSAGE_TAKEN, /* being copied */
    INVAR_MESSAGE_DONE
} invar_message_state;

typedef struct invar_message {
    struct invar_message *next; /* used by the transport */
    int peer;                   /* rank in the world */
    int member;                 /* rank in the group */
    int from;                   /* world rank of the sender; used by the transport */
    bool incoming;
    invar_message_state state;
    uint64_t context, number;
    char *data; /* bytes to send (read only) or the buffer to receive into */
    size_t bytes;
    bool by_device; /* a device transport moves the bytes; the transport moves only the header */
    invar_comm_header header; /* call of the sender */
} invar_message;

/* Bytes that a rank sends to itself. */
typedef struct invar_comm_self_copy {
    const char *from;
    char *to; /* NULL if no copy is needed */
    size_t bytes;
} invar_comm_self_copy;

/* A started call, until it is waited for. */
struct invar_comm_request {
    invar_comm *comm;
    /* next in the group's list of spare requests, or in the world's list of active ones */
    invar_comm_request *next;
    invar_comm_op op;
    double seconds;
    char phase[INVAR_COMM_PHASE_SIZE];
    uint64_t sent, received;
    int count;
    invar_message *messages; /* (2 * size) at most two per peer */
    void *requests;          /* owned by the transport, from invar_alloc; freed with the request */
    size_t request_bytes;
    bool host_done;      /* the wait for the transport was begun */
    bool device_pending; /* the device transport has not moved the bytes yet */
    /* bytes that this rank sends to itself; set while device_pending */
    invar_comm_self_copy self_copies;
    invar_comm_request *next_device; /* next request in the queue of the device transport */
};

/* Reason for the failure of a world; equal on all of its ranks. */
typedef struct invar_comm_failure {
    int culprit;         /* world rank that caused it; -1 if unknown */
    int native;          /* errno value (comm.h); 0 if there is no failure */
    invar_status status; /* status on the ranks that did not cause it */
    int reporter;        /* world rank that found it */
    int answers; /* timeouts: number of ranks that were reported late and were waiting themselves */
    char text[INVAR_COMM_FAILURE_SIZE];
} invar_comm_failure;

typedef struct invar_transport {
    /* Posts the messages of a request. After a failure none of them is in flight. */
    invar_status (*start)(void *self, invar_comm_request *ticket);
    /*
     * Returns when all messages are done or the world has failed; the memory is the caller's again.
     */
    invar_status (*wait)(void *self, invar_comm_request *ticket);
    /* Sends a heartbeat to the other ranks, without waiting. */
    void (*send_heartbeat)(void *self);
    /* Returns the failure that another rank has reported, if any, without waiting. */
    invar_status (*poll_failure)(void *self);
    /*
     * Reports a failure to the other ranks. If another rank reported one earlier, replaces *failure
     * with it.
     */
    void (*send_failure)(void *self, invar_comm_failure *failure);
    /* Discards the failures received so far, so that the group can be used again. */
    void (*recover)(void *self);
    void (*close)(void *self);
} invar_transport;

/*
 * Moves bytes of device memory for a group whose headers travel by the transport. A request is
 * moved after its headers were found to match, and all ranks move requests in the order in which
 * they were started, so a device transport never meets a different call on another rank.
 */
typedef struct invar_device_transport {
    /* Returns when all bytes have arrived or the world has failed. */
    invar_status (*move)(void *self, const invar_comm_request *ticket);
    /* Gives a device transport to a group that was split from this one. */
    invar_status (*join)(void *self, invar_comm *child, double seconds);
    void (*close)(void *self);
} invar_device_transport;

/* State of one rank: its view of all ranks and of its transport. */
typedef struct invar_world {
    const invar_transport *transport; /* NULL if there is only one rank */
    void *self;                       /* state of the transport; released by its close */
    int rank, size;
    bool simulated; /* the other ranks do not exist: calls are counted, no bytes move */
    int handles;    /* number of live communicators */
    /* Active requests of all groups. A wait for one request advances all of them. */
    invar_comm_request *active;
    uint64_t next_context; /* lowest context that no group of this rank has used */
    double last_heartbeat; /* time of the last heartbeat that was sent */
    invar_comm_failure failure;
    invar_comm_failure recovered_failure; /* failure before the recovery */
    /* observer (invar_comm_set_observer); may be NULL */
    void (*done)(void *payload, const invar_comm_event *call);
    void *payload;                       /* argument of the observer */
    char (*hosts)[INVAR_COMM_HOST_SIZE]; /* (size) names of hosts */
} invar_world;

/* One rank of a group. */
struct invar_comm {
    invar_world *world;
    uint64_t context;
    int rank, size;
    int *members; /* (size) rank in the world of each member */
    /* (size) number of messages posted to, and awaited from, each rank so far */
    uint64_t *posted, *awaited;
    invar_comm_request *spare;
    int n_active;                                   /* number of active requests */
    const invar_device_transport *device_transport; /* NULL if transfers take host memory */
    void *device_transport_state;     /* state of the device transport; released by its close */
    invar_comm_request *device_queue; /* oldest request that the device transport has not moved */
    invar_comm_stats counts[INVAR_COMM_OPS];
};

enum {
    INVAR_COMM_CONTEXT_FIRST,
    INVAR_COMM_CONTEXT_REVIVED,
    INVAR_COMM_CONTEXT_FREE
}; /* contexts of the group of all ranks, before and after a recovery; further ones are free */

/* Creates the group of all ranks. The caller sets `transport` and `self` of its world. */
invar_status invar_world_new(invar_comm **out, int rank, int size) INVAR_MUST_USE;

/* Creates a handle without members in a world, with capacity for `size` ranks. */
invar_status invar_comm_new(invar_comm **out, invar_world *world, int size) INVAR_MUST_USE;

/* Like invar_comm_run, but also accepts INVAR_COMM_SPLIT, which gathers. */
invar_status invar_comm_transfer_now(invar_comm *comm,
                                     const invar_comm_transfer *transfer) INVAR_MUST_USE;

/*
 * Fails the world. The functions from here on serve transports: each one sets the failure of the
 * world if it has none, reports it to the other ranks, and returns the status of the failure that
 * the world has, with its error record.
 */
invar_status invar_world_fail(invar_world *world, int culprit, int native, const char *fmt, ...)
    INVAR_PRINTF(4, 5) INVAR_MUST_USE;
/*
 * Accepts a failure that another rank reported. A rank that is reported late may itself wait for a
 * later one; the failure that it reports then replaces the earlier one.
 */
invar_status invar_world_accept_failure(invar_world *world,
                                        const invar_comm_failure *failure) INVAR_MUST_USE;
/*
 * Compares the header of an incoming message with the call of the request. Returns INVAR_OK if they
 * match, else fails the world (EPROTO).
 */
invar_status invar_world_check(invar_world *world, const invar_comm_request *request,
                               const invar_message *message) INVAR_MUST_USE;
/*
 * Fails the world because of a timeout, and names a rank that has not come. `said` is the failure
 * that reported this rank as late, or NULL.
 */
invar_status invar_world_fail_timeout(invar_world *world, const invar_comm_request *request,
                                      const invar_comm_failure *said) INVAR_MUST_USE;
/* Fails the world because the peer of a message has left before it. */
invar_status invar_world_fail_peer_exit(invar_world *world, const invar_comm_request *request,
                                        const invar_message *message) INVAR_MUST_USE;

/*
 * Fails the world because of a timeout while the device transport moved the bytes: all ranks had
 * come.
 */
invar_status invar_world_fail_device_timeout(invar_world *world,
                                             const invar_comm_request *request) INVAR_MUST_USE;

/* Returns true if the world has failed, before or after a recovery. */
bool invar_world_failed(const invar_world *world);

/* World rank that reports the error to the user (invar_comm_reports_error). */
int invar_world_error_rank(const invar_world *world);

/* Seconds of a monotonic clock. */
double invar_comm_clock(void);

#endif
