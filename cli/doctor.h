/*
 * doctor.h - findings of invar doctor on one machine, and the comparison of several ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_DOCTOR_H
#define INVAR_CLI_DOCTOR_H

#include "engine/config/config.h"
#include "kernels-deterministic/device.h"

/* Members of the JSON of a rank; further members are the columns that apply to it. */
#define INVAR_RANKS_RANK                                                                           \
    "{rank int, wrong_bytes int, host~ text, cores~ int, threads~ int, gpu~ text, driver~ text,"   \
    " sm90~ text, nccl~ text, program~ text, weights~ text, data~ text, identity~ text}"
#define INVAR_RANKS_DIFFERENCE "{rank int, what text}"
#define INVAR_RANKS_CALL "{call text, bytes int, seconds real}"
#define INVAR_RANKS_RESULT                                                                         \
    "{version text, transport text, ranks [" INVAR_RANKS_RANK "],"                                 \
    " differences [" INVAR_RANKS_DIFFERENCE "], recipe text?, calls [" INVAR_RANKS_CALL "],"       \
    " gpu_transport text?, gpu_calls [" INVAR_RANKS_CALL "], sound bool}"                          \
    " (with --ranks, or by a launcher: all ranks)"

typedef struct invar_doctor_findings {
    long cores;
    bool built;                             /* this build has CUDA */
    bool present;                           /* this build can open a GPU */
    bool examined;                          /* `gpu` is valid */
    char trouble[INVAR_ERROR_MESSAGE_SIZE]; /* error message of the failed step; empty if all steps
                                               succeeded */
    invar_device_info gpu;
    double product_flops; /* floating point operations per second; 0 if not measured */
} invar_doctor_findings;

/*
 * Inspects a GPU of this machine; `ordinal` is that of invar_device. A missing GPU is not an error;
 * the reason is in out->trouble.
 */
void invar_doctor_inspect(invar_doctor_findings *out, int ordinal);

/* Returns true if the GPU computes numerics sm90, or if there is no GPU. */
bool invar_doctor_agrees(const invar_doctor_findings *found);

/* Returns the exit code for a machine with these findings. */
int invar_doctor_code(const invar_doctor_findings *found);

typedef struct invar_doctor_ranks_options {
    int64_t ranks;              /* number of ranks as threads; 1 to use the ranks of the launcher */
    const invar_config *config; /* recipe whose run is checked, or NULL */
    const char *path;           /* path of the recipe; may be NULL */
    double seconds;             /* seconds that a rank waits for another; 0 for the recipe's value
                                   or 60 */
    bool json;
} invar_doctor_ranks_options;

/* Compares all ranks, prints the result and returns the exit code. */
int invar_doctor_ranks(const invar_doctor_ranks_options *options);

#endif
