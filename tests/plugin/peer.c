/*
 * peer.c - ops for bench.peers --peer: the program's own, and an op that runs kv.write twice.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/bench/peers.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT const invar_backend *invar_bench_peer(const invar_backend *own);
EXPORT const invar_gpu_compare_peer *invar_race_peers(const invar_backend *own);

const invar_backend *invar_bench_peer(const invar_backend *own)
{
    return own;
}

static invar_status write_twice(const invar_device *dev, const void *args, void *workspace)
{
    INVAR_TRY(dev->backend->ops[INVAR_OP_KV_WRITE].run(dev, args, workspace));
    return dev->backend->ops[INVAR_OP_KV_WRITE].run(dev, args, workspace);
}

const invar_gpu_compare_peer *invar_race_peers(const invar_backend *own)
{
    static const invar_gpu_compare_peer list[] = {{"twice", INVAR_OP_KV_WRITE, "bf16", write_twice},
                                                  {0}};

    return own->memory.device_local ? list : NULL;
}
