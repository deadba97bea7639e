/*
 * mpi_module.h - table of the MPI functions that the engine needs, exported by a shared object.
 *
 * MPI has no fixed binary interface: a handle is a pointer in one implementation and a number in
 * another. The module is therefore compiled against the MPI of a machine, and has no logic.
 * Functions return 0, or a code that `explain` converts to text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_COMM_MODULE_MPI_MODULE_H
#define INVAR_ENGINE_RANKS_COMM_MODULE_MPI_MODULE_H

#include <stddef.h>
#include <stdint.h>

#define INVAR_MPI_ABI 1
#define INVAR_MPI_TABLE invar_mpi_v1 /* symbol of the table */

typedef union invar_mpi_request {
    void *pointer;
    int number;
} invar_mpi_request;

typedef struct invar_mpi_table {
    uint32_t abi;

    /* Starts MPI, which a process can do once. Calls must come from one thread at a time. */
    int (*open)(int *rank_out, int *size_out, int *max_tag_out);

    /* Finalizes MPI; waits for all ranks. */
    int (*close)(void);

    int (*send)(invar_mpi_request *out, const void *data, int bytes, int peer, int tag);
    int (*receive)(invar_mpi_request *out, void *data, int bytes, int peer, int tag);
    int (*test)(int *done_out, invar_mpi_request *request);

    /* Cancels a receive; `test` reports it done soon if no message had arrived for it. */
    int (*cancel)(invar_mpi_request *request);

    /* Receives a message with this tag from any rank; *peer_out is -1 if none has arrived. */
    int (*listen)(int *peer_out, void *data, int bytes, int tag);

    void (*explain)(char *out, size_t size, int code);
} invar_mpi_table;

#endif
