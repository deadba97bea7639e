/*
 * ranks_gpu.h - how bytes travel between the GPUs of several ranks, tried by invar doctor --ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_RANKS_GPU_H
#define INVAR_CLI_RUN_RANKS_GPU_H

#include "base/recipe/recipe.h"
#include "engine/ranks/comm/link_test.h"
#include "engine/ranks/layout/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_doctor_gpu_ranks {
    bool any;                         /* rank has a GPU */
    invar_layout_transport transport; /* that a run would choose */
    invar_link_test trial;            /* of NCCL, if it is that */
} invar_doctor_gpu_ranks;

/* A call of all ranks; `present`: this one can open its GPU. The recipe may be NULL. */
invar_status invar_doctor_gpu_ranks_test(invar_doctor_gpu_ranks *out, const invar_layout *layout,
                                         bool present, const invar_recipe *recipe) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
