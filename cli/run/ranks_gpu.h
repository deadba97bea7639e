/*
 * ranks_gpu.h - tests the transport between the GPUs of several ranks, for invar doctor --ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_RANKS_GPU_H
#define INVAR_CLI_RUN_RANKS_GPU_H

#include "engine/config/config.h"
#include "engine/ranks/comm/link_test.h"
#include "engine/ranks/layout/transport.h"

typedef struct invar_doctor_gpu_ranks {
    bool any;                         /* a rank has a GPU */
    invar_layout_transport transport; /* transport that a run would choose */
    invar_link_test trial;            /* result of the link test, if the transport is NCCL */
} invar_doctor_gpu_ranks;

/*
 * Tests the transport. Collective: all ranks of the layout must call it. `present` is true if this
 * rank can open its GPU. The recipe may be NULL.
 */
invar_status invar_doctor_gpu_ranks_test(invar_doctor_gpu_ranks *out, const invar_layout *layout,
                                         bool present, const invar_config *config) INVAR_MUST_USE;

#endif
