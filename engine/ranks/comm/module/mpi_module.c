/*
 * mpi_module.c - table of functions over the MPI that this file is compiled with.
 *
 * A module has no logic: it converts handles between MPI_Request and the union of the engine, and
 * keeps one duplicate of MPI_COMM_WORLD. Errors are returned as codes, never handled by MPI.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/module/mpi_module.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "base/invar_banned.h"

_Static_assert(sizeof(MPI_Request) <= sizeof(invar_mpi_request), "a request is kept in a union");
_Static_assert(MPI_SUCCESS == 0, "0 is success");

enum { STARTED_BEFORE = -1, NO_THREADS = -2 };

static MPI_Comm world; /* duplicate of MPI_COMM_WORLD, so that only our messages are in it */

static MPI_Request load_request(const invar_mpi_request *request)
{
    MPI_Request value;

    memcpy(&value, request, sizeof value);
    return value;
}

static void store_request(invar_mpi_request *request, MPI_Request value)
{
    memset(request, 0, sizeof *request);
    memcpy(request, &value, sizeof value);
}

static int open_world(int *rank_out, int *size_out, int *max_tag_out)
{
    int started = 0, level = 0, found = 0, code, *max_tag = NULL;

    code = MPI_Initialized(&started);
    if (code || started)
        return code ? code : STARTED_BEFORE;
    code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (code || level < MPI_THREAD_SERIALIZED)
        return code ? code : NO_THREADS;
    if ((code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)) ||
        (code = MPI_Comm_dup(MPI_COMM_WORLD, &world)) ||
        (code = MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN)) ||
        (code = MPI_Comm_rank(world, rank_out)) || (code = MPI_Comm_size(world, size_out)) ||
        (code = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &max_tag, &found)))
        return code;
    *max_tag_out = found ? *max_tag : 32767; // minimum that the standard requires
    return 0;
}

static int close_world(void)
{
    int code = MPI_Comm_free(&world);

    return code ? code : MPI_Finalize();
}

static int send_bytes(invar_mpi_request *out, const void *data, int bytes, int peer, int tag)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Isend(data, bytes, MPI_BYTE, peer, tag, world, &request);

    store_request(out, request);
    return code;
}

static int receive_bytes(invar_mpi_request *out, void *data, int bytes, int peer, int tag)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, world, &request);

    store_request(out, request);
    return code;
}

static int test_request(int *done_out, invar_mpi_request *out)
{
    MPI_Request request = load_request(out);
    int code = MPI_Test(&request, done_out, MPI_STATUS_IGNORE);

    store_request(out, request);
    return code;
}

static int cancel_request(invar_mpi_request *out)
{
    MPI_Request request = load_request(out);

    return MPI_Cancel(&request);
}

static int listen_any(int *peer_out, void *data, int bytes, int tag)
{
    MPI_Message message;
    MPI_Status status;
    int there = 0, code;

    *peer_out = -1;
    code = MPI_Improbe(MPI_ANY_SOURCE, tag, world, &there, &message, &status);
    if (code || !there)
        return code;
    *peer_out = status.MPI_SOURCE;
    return MPI_Mrecv(data, bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE);
}

static void describe_error(char *out, size_t size, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;

    if (code == STARTED_BEFORE)
        (void)snprintf(text, sizeof text, "a process can start MPI only once");
    else if (code == NO_THREADS)
        (void)snprintf(text, sizeof text, "this MPI was built without support for threads");
    else if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        (void)snprintf(text, sizeof text, "MPI error %d", code);
    (void)snprintf(out, size, "%s", text);
}

extern const invar_mpi_table INVAR_MPI_TABLE;
__attribute__((visibility("default"))) const invar_mpi_table INVAR_MPI_TABLE = {
    INVAR_MPI_ABI, open_world,     close_world, send_bytes,    receive_bytes,
    test_request,  cancel_request, listen_any,  describe_error};
