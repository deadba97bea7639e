/*
 * transport.h - how bytes in the memory of GPUs travel between the ranks of a layout.
 *
 * From GPU to GPU by NCCL, or through the memory of the hosts. All ranks choose the same, which
 * changes no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_LAYOUT_TRANSPORT_H
#define INVAR_ENGINE_RANKS_LAYOUT_TRANSPORT_H

#include "engine/config/choices.h"
#include "engine/ranks/layout/layout.h"
#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_LAYOUT_TRANSPORT_SIZE 240

typedef struct invar_layout_transport {
    bool nccl;
    /* Ranks of one host share a GPU: NCCL must treat them as ranks of several hosts. */
    bool nccl_ignore_shm;
    int rank;                               /* of the world that chose */
    char nccl_version[16];                  /* of this rank: "2.28.9"; "": it has none */
    char text[INVAR_LAYOUT_TRANSPORT_SIZE]; /* "NCCL 2.28.9", "host memory: no GPU" */
} invar_layout_transport;

/*
 * A call of all ranks, each with its open device. INVAR_E_UNSUPPORTED: rank 0 wants NCCL, which
 * cannot be here. AUTO takes it where each rank has a GPU of its own: ranks that share one are
 * slower by NCCL.
 */
invar_status invar_layout_choose_transport(invar_layout_transport *out, const invar_layout *layout,
                                           const invar_device *dev,
                                           invar_distributed_backend wanted) INVAR_MUST_USE;

/*
 * A call of all ranks: where it is NCCL, the axes of tensors, experts and data get groups for the
 * device's memory, and the last buckets in it. Close, after a failure, too; before the device and
 * the world.
 */
invar_status invar_layout_open_transport(invar_layout *layout, const invar_device *dev,
                                         const invar_layout_transport *transport) INVAR_MUST_USE;
void invar_layout_close_transport(invar_layout *layout, const invar_device *dev);

#ifdef __cplusplus
}
#endif
#endif
