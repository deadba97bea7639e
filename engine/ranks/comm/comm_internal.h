/*
 * comm_internal.h - what comm.c and the transports share: a world, its messages, its failure.
 *
 * All groups of a rank live in one world, which has a transport. A transport only knows messages
 * between two ranks of the world: the n-th that one posts for a context meets the n-th that the
 * other expects. Groups that have two ranks in common have different contexts. A message has a
 * header, which says what its sender calls.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_COMM_COMM_INTERNAL_H
#define INVAR_ENGINE_RANKS_COMM_COMM_INTERNAL_H

#include "engine/ranks/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_COMM_HOST_SIZE 64
#define INVAR_COMM_FAILURE_SIZE 1000

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
    struct invar_message *next; /* of the transport */
    int peer;                   /* in the world, */
    int member;                 /* and in the group */
    int from;                   /* of the transport: who posted it */
    bool incoming;
    invar_message_state state;
    uint64_t context, number;
    char *data; /* of an outgoing message only read */
    size_t bytes;
    bool carried;             /* by a carrier: the transport moves the header alone */
    invar_comm_header header; /* what the sender calls */
} invar_message;

/* What a rank gives itself. */
typedef struct invar_comm_self_copy {
    const char *from;
    char *to; /* NULL: it needs no copy */
    size_t bytes;
} invar_comm_self_copy;

/* A started call. */
struct invar_comm_request {
    invar_comm *comm;
    invar_comm_request *next; /* of the group's spare ones, or of the world's under way */
    invar_comm_op op;
    double seconds;
    char phase[INVAR_COMM_PHASE_SIZE];
    uint64_t sent, received;
    int count;
    invar_message *messages; /* room for two a peer */
    void *requests;          /* of the transport, from invar_alloc; freed with the ticket */
    size_t request_bytes;
    bool host_done;                   /* the transport was waited for */
    bool device_pending;              /* a carrier has yet to carry its bytes, */
    invar_comm_self_copy self_copies; /* these among them, */
    invar_comm_request *next_device;  /* and those of this one after it */
};

/* Why a world has ended; the same on all its ranks. */
typedef struct invar_comm_failure {
    int culprit;         /* rank in the world; -1: nobody knows */
    int native;          /* 0: there is none */
    invar_status status; /* of those who did not cause it */
    int reporter;        /* who found it */
    int answers;         /* of ranks that were named late, and wait themselves */
    char text[INVAR_COMM_FAILURE_SIZE];
} invar_comm_failure;

typedef struct invar_transport {
    /* Posts the messages of a ticket. When it fails, none is under way. */
    invar_status (*start)(void *self, invar_comm_request *ticket);
    /* Returns when all are done, or the world has failed; then the memory is the caller's again. */
    invar_status (*wait)(void *self, invar_comm_request *ticket);
    /* Tells the other ranks that this one gets on, without waiting. */
    void (*beat)(void *self);
    /* Without waiting: has another rank told a failure? */
    invar_status (*poll_failure)(void *self);
    /* Tells the other ranks. One that was told earlier by another rank replaces it. */
    void (*send_failure)(void *self, invar_comm_failure *failure);
    /* What was told until now is no failure any more. */
    void (*revive)(void *self);
    void (*close)(void *self);
} invar_transport;

/*
 * Moves bytes that the host cannot reach, of a group whose headers go by the transport: a call is
 * carried when its headers are as expected, and calls are carried in the order in which they were
 * started. So a carrier never meets another call than its own.
 */
typedef struct invar_device_transport {
    /* Returns when all bytes are where they belong, or the world has failed. */
    invar_status (*carry)(void *self, const invar_comm_request *ticket);
    /* Gives a group that was split from its own a carrier, too. */
    invar_status (*join)(void *self, invar_comm *child, double seconds);
    void (*close)(void *self);
} invar_device_transport;

/* One rank's view. */
typedef struct invar_world {
    const invar_transport *transport; /* NULL: one rank */
    void *self;                       /* of the transport; close releases it */
    int rank, size;
    bool imagined; /* the other ranks: calls are counted, bytes stay where they are */
    int handles;   /* alive */
    invar_comm_request *under_way; /* of all its groups; who waits for one advances them all */
    uint64_t next_context;         /* that no group of this rank has had */
    double beat;                   /* when it last told that it gets on */
    invar_comm_failure failure;
    invar_comm_failure halted; /* by it, before it was revived */
    void (*done)(void *payload,
                 const invar_comm_event *call); /* invar_comm_set_observer; may be NULL */
    void *payload;                              /* for it */
    char (*hosts)[INVAR_COMM_HOST_SIZE];        /* (size) */
} invar_world;

/* One rank of a group. */
struct invar_comm {
    invar_world *world;
    uint64_t context;
    int rank, size;
    int *members;               /* (size) ranks in the world */
    uint64_t *posted, *awaited; /* (size) messages for and from each rank, so far */
    invar_comm_request *spare;
    int under_way;                         /* tickets */
    const invar_device_transport *carrier; /* NULL: memory is the host's */
    void *device_transport_state;          /* of the carrier; close releases it */
    invar_comm_request *due;               /* the oldest ticket that is */
    invar_comm_stats counts[INVAR_COMM_OPS];
};

enum {
    INVAR_COMM_CONTEXT_FIRST,
    INVAR_COMM_CONTEXT_REVIVED,
    INVAR_COMM_CONTEXT_FREE
}; /* of all ranks, or free */

/* The group of all ranks; `transport` and `self` of its world are for the caller to set. */
invar_status invar_world_new(invar_comm **out, int rank, int size) INVAR_MUST_USE;

/* A handle without members in a world, with room for `size`. */
invar_status invar_comm_new(invar_comm **out, invar_world *world, int size) INVAR_MUST_USE;

/* invar_comm_run for every op, INVAR_COMM_SPLIT too, which gathers. */
invar_status invar_comm_transfer_now(invar_comm *comm,
                                     const invar_comm_transfer *move) INVAR_MUST_USE;

/*
 * The ways to fail, for transports: each sets the world's failure if it has none, tells it, and
 * returns INVAR_E_IO with the record of the failure that the world has.
 */
invar_status invar_world_fail(invar_world *world, int culprit, int native, const char *fmt, ...)
    INVAR_PRINTF(4, 5) INVAR_MUST_USE;
/*
 * another rank's, which it told us. A rank that is said to be late may wait itself, for one that is
 * the reason: what it tells then takes the place of what was said of it.
 */
invar_status invar_world_accept_failure(invar_world *world,
                                        const invar_comm_failure *failure) INVAR_MUST_USE;
/* the header of an incoming message is not what the ticket expects; INVAR_OK when it is */
invar_status invar_world_check(invar_world *world, const invar_comm_request *ticket,
                               const invar_message *message) INVAR_MUST_USE;
/* the deadline has passed: names a rank that has not come; `said` of us before, or NULL */
invar_status invar_world_fail_timeout(invar_world *world, const invar_comm_request *ticket,
                                      const invar_comm_failure *said) INVAR_MUST_USE;
/* the peer of a message has left without its part of it */
invar_status invar_world_fail_peer_exit(invar_world *world, const invar_comm_request *ticket,
                                        const invar_message *message) INVAR_MUST_USE;

/* Its deadline has passed while its bytes were carried: all ranks had come. */
invar_status invar_world_fail_device_timeout(invar_world *world,
                                             const invar_comm_request *ticket) INVAR_MUST_USE;

/* Has it, before it was revived or after? */
bool invar_world_failed(const invar_world *world);

/* The rank that tells the user (invar_comm_reports_error). */
int invar_world_error_rank(const invar_world *world);

/* Seconds of a clock that only goes on. */
double invar_comm_clock(void);

#ifdef __cplusplus
}
#endif
#endif
