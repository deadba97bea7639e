/*
 * nccl_module.h - what the engine needs of NCCL, as a table that a shared object has.
 *
 * A module of the engine is compiled against the NCCL and the CUDA runtime of a machine, and has no
 * logic: a test puts another one in its place. All memory is that of the group's GPU. There is no
 * reduction. No call waits for another rank: each begins something, one at a time, and `test` says
 * when it is done. Functions return 0 or a code that `explain` makes a text of.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_COMM_MODULE_NCCL_MODULE_H
#define INVAR_ENGINE_RANKS_COMM_MODULE_NCCL_MODULE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_NCCL_ABI 1
#define INVAR_NCCL_TABLE invar_nccl_v1 /* the symbol of the table */
#define INVAR_NCCL_ID_BYTES 128

/* What goes to a rank of the group, or comes from it. */
typedef struct invar_nccl_p2p {
    int peer;         /* may be the rank itself, once in each direction */
    const void *from; /* NULL: it comes */
    void *to;         /* NULL: it goes */
    size_t bytes;
} invar_nccl_p2p;

/* Zeroed, it is not open; the module's otherwise. */
typedef struct invar_nccl_group {
    void *comm, *stream, *end;
    int ordinal;
    int marked; /* `end` is behind what was begun last */
} invar_nccl_group;

typedef struct invar_nccl_table {
    uint32_t abi;

    /* 22809 is 2.28.9 */
    int (*version)(int *out);

    /* By one rank; the others get it from that one. */
    int (*make_id)(char out[INVAR_NCCL_ID_BYTES]);

    /* From the last GPU on, the first follows again. Close, after a failure, too. */
    int (*open)(invar_nccl_group *out, const char id[INVAR_NCCL_ID_BYTES], int rank, int size,
                int ordinal);

    /* All pieces of this rank. Those between two ranks meet in their order. */
    int (*exchange)(invar_nccl_group *group, const invar_nccl_p2p *pieces, int count);

    /* Every rank gives as many bytes; `in` may be the place in `out` where they belong. */
    int (*gather)(invar_nccl_group *group, const void *in, void *out, size_t bytes);

    /* `in` is the root's; its `out` may be the same. */
    int (*broadcast)(invar_nccl_group *group, const void *in, void *out, size_t bytes, int root);

    /* Is what was begun done? The code of a failure, also of another rank's. */
    int (*test)(int *done_out, invar_nccl_group *group);

    /* Waits for the other ranks some seconds; for none if the group is broken. */
    void (*close)(invar_nccl_group *group, int broken);

    void (*explain)(char *out, size_t size, int code);
} invar_nccl_table;

#ifdef __cplusplus
}
#endif
#endif
