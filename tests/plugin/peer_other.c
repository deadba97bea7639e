/*
 * peer_other.c - ops for bench.peers --peer, one of which writes no result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/device.h"

__attribute__((visibility("default"))) const invar_backend *
invar_bench_peer(const invar_backend *own);

static invar_status write_nothing(const invar_device *dev, const void *args, void *workspace)
{
    (void)dev, (void)args, (void)workspace;
    return INVAR_OK;
}

const invar_backend *invar_bench_peer(const invar_backend *own)
{
    static invar_backend table;

    table = *own;
    table.ops[INVAR_OP_LINEAR_DW].run = write_nothing;
    return &table;
}
