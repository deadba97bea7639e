/*
 * nccl_module.h - table of the NCCL functions that the engine needs, exported by a shared object.
 *
 * The module is compiled against the NCCL and the CUDA runtime of a machine, and has no logic;
 * tests replace it. All memory is on the group's GPU. There is no reduction. No call waits for
 * another rank: each begins one operation, one at a time, and `test` reports when it is done.
 * Functions return 0, or a code that `explain` converts to text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_COMM_MODULE_NCCL_MODULE_H
#define INVAR_ENGINE_RANKS_COMM_MODULE_NCCL_MODULE_H

#include <stddef.h>
#include <stdint.h>

#define INVAR_NCCL_ABI 1
#define INVAR_NCCL_TABLE invar_nccl_v1 /* symbol of the table */
#define INVAR_NCCL_ID_BYTES 128

/* Bytes that go to a rank of the group or come from it. */
typedef struct invar_nccl_p2p {
    int peer;         /* may be the rank itself, once in each direction */
    const void *from; /* NULL for a receive */
    void *to;         /* NULL for a send */
    size_t bytes;
} invar_nccl_p2p;

/* State of the module for one group. Zeroed means not open. */
typedef struct invar_nccl_group {
    void *comm, *stream, *end;
    int ordinal;
    int marked; /* the event `end` was recorded after the last operation */
} invar_nccl_group;

typedef struct invar_nccl_table {
    uint32_t abi;

    /* 22809 is 2.28.9 */
    int (*version)(int *out);

    /* Makes the id of a new group. One rank calls it and sends the id to the others. */
    int (*make_id)(char out[INVAR_NCCL_ID_BYTES]);

    /*
     * Joins the group of an id, on GPU `ordinal` modulo the number of GPUs. Close it, also after a
     * failure.
     */
    int (*open)(invar_nccl_group *out, const char id[INVAR_NCCL_ID_BYTES], int rank, int size,
                int ordinal);

    /* Sends and receives all pieces of this rank. Pieces between two ranks match in their order. */
    int (*exchange)(invar_nccl_group *group, const invar_nccl_p2p *pieces, int count);

    /* All-gather of the same number of bytes per rank; `in` may be its place in `out`. */
    int (*gather)(invar_nccl_group *group, const void *in, void *out, size_t bytes);

    /* Broadcasts `in` of the root; its `out` may be the same memory. */
    int (*broadcast)(invar_nccl_group *group, const void *in, void *out, size_t bytes, int root);

    /*
     * Sets *done_out if the operation is done. Returns the code of a failure, also of another
     * rank's.
     */
    int (*test)(int *done_out, invar_nccl_group *group);

    /* Waits some seconds for the other ranks, unless the group is broken, and frees the group. */
    void (*close)(invar_nccl_group *group, int broken);

    void (*explain)(char *out, size_t size, int code);
} invar_nccl_table;

#endif
