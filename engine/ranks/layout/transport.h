/*
 * transport.h - chooses how device memory travels between ranks: NCCL or host memory.
 *
 * All ranks choose the same transport, which changes no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_LAYOUT_TRANSPORT_H
#define INVAR_ENGINE_RANKS_LAYOUT_TRANSPORT_H

#include "engine/config/choices.h"
#include "engine/ranks/layout/layout.h"
#include "kernels-deterministic/device.h"

#define INVAR_LAYOUT_TRANSPORT_SIZE 240

typedef struct invar_layout_transport {
    bool nccl;
    /* ranks share a GPU: invar_layout_open_transport gives each an NCCL_HOSTID of its own */
    bool nccl_ignore_shm;
    int rank;              /* world rank of this rank */
    char nccl_version[16]; /* installed NCCL version, "2.28.9"; empty if not found */
    /* description: "NCCL 2.28.9", "host memory", or "host memory: " and the reason */
    char text[INVAR_LAYOUT_TRANSPORT_SIZE];
} invar_layout_transport;

/*
 * Chooses the transport that rank 0 wants. Collective: all ranks call it, each with its open
 * device. AUTO selects NCCL if each rank has a GPU of its own; ranks that share a GPU are slower
 * with NCCL. Returns INVAR_E_UNSUPPORTED if rank 0 wants NCCL and a rank cannot use it.
 */
invar_status invar_layout_choose_transport(invar_layout_transport *out, const invar_layout *layout,
                                           const invar_device *dev,
                                           invar_distributed_backend wanted) INVAR_MUST_USE;

/*
 * If the transport is NCCL, creates the device communicators of the tensor, context, expert and
 * data axes, and the buckets of the data axis. Collective. Close with invar_layout_close_transport,
 * also after a failure, before the device and the world are closed.
 */
invar_status invar_layout_open_transport(invar_layout *layout, const invar_device *dev,
                                         const invar_layout_transport *transport) INVAR_MUST_USE;
void invar_layout_close_transport(invar_layout *layout, const invar_device *dev);

#endif
