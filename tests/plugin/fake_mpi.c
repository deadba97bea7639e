/*
 * fake_mpi.c - an MPI module for what a real one does not do on request.
 *
 * There is one rank, which can be opened repeatedly. INVAR_TEST_MPI=open makes opening fail; with
 * =send there is a second rank that cannot be reached.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/module/mpi_module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fault_is(const char *word)
{
    const char *wanted = getenv("INVAR_TEST_MPI");

    return wanted && !strcmp(wanted, word);
}

static int open_world(int *rank_out, int *size_out, int *max_tag_out)
{
    *rank_out = 0;
    *size_out = fault_is("send") ? 2 : 1;
    *max_tag_out = 32767;
    return fault_is("open") ? 5 : 0;
}

static int close_world(void)
{
    return 0;
}

static int send_bytes(invar_mpi_request *out, const void *data, int bytes, int peer, int tag)
{
    (void)out, (void)data, (void)bytes, (void)peer, (void)tag;
    return 7;
}

static int receive_bytes(invar_mpi_request *out, void *data, int bytes, int peer, int tag)
{
    (void)data, (void)bytes, (void)peer, (void)tag;
    memset(out, 0, sizeof *out);
    return 0;
}

static int test_request(int *done_out, invar_mpi_request *request)
{
    *done_out = request->number;
    return 0;
}

static int cancel_request(invar_mpi_request *request)
{
    request->number = 1;
    return 0;
}

static int listen_any(int *peer_out, void *data, int bytes, int tag)
{
    (void)data, (void)bytes, (void)tag;
    *peer_out = -1;
    return 0;
}

static void error_text(char *out, size_t size, int code)
{
    (void)snprintf(out, size, "code %d of the fake", code);
}

extern const invar_mpi_table INVAR_MPI_TABLE;
__attribute__((visibility("default"))) const invar_mpi_table INVAR_MPI_TABLE = {
    INVAR_MPI_ABI, open_world,     close_world, send_bytes, receive_bytes,
    test_request,  cancel_request, listen_any,  error_text};
