/*
 * doctor.h - what invar doctor finds on a machine, and what it makes of several.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_DOCTOR_H
#define INVAR_CLI_DOCTOR_H

#include "base/recipe/recipe.h"
#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_doctor_findings {
    long cores;
    bool built;                             /* with CUDA */
    bool present;                           /* a GPU that this build can open */
    bool examined;                          /* `gpu` is filled in */
    char trouble[INVAR_ERROR_MESSAGE_SIZE]; /* why not */
    invar_device_info gpu;
    double product_flops; /* per second; 0: not measured */
} invar_doctor_findings;

/*
 * Looks at a GPU of this machine: which one, `ordinal` says as in invar_device. A machine without a
 * GPU is no failure; what stands in the way is told.
 */
void invar_doctor_inspect(invar_doctor_findings *out, int ordinal);

/* Does the GPU compute numerics sm90? Where there is none, nothing differs. */
bool invar_doctor_agrees(const invar_doctor_findings *found);

/* The exit code of a machine where this was found. */
int invar_doctor_code(const invar_doctor_findings *found);

typedef struct invar_doctor_ranks_options {
    int64_t ranks;              /* that are threads; 1: as the launcher says */
    const invar_recipe *recipe; /* whose run they would be; NULL: none was given */
    const char *path;           /* of the recipe; may be NULL */
    double seconds; /* that a rank waits for another; 0: as the recipe says, or a minute */
    bool json;
} invar_doctor_ranks_options;

/* Compares all ranks, and tells; an exit code. Not without INVAR_LEDGER. */
int invar_doctor_ranks(const invar_doctor_ranks_options *ask);

#ifdef __cplusplus
}
#endif
#endif
