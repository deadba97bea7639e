/*
 * layouts.h - plans the layouts of a run on GPUs that need not exist: memory, traffic and time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_LAYOUTS_H
#define INVAR_CLI_RUN_LAYOUTS_H

#include <stdbool.h>

#include "cli/memory_table.h"
#include "engine/config/config.h"

/* Members of the JSON. */
#define INVAR_LAYOUTS_SAMPLERS                                                                     \
    "{gpus int, gpus_per_engine int, need int, items [" INVAR_MEMORY_ITEM "], sampling int,"       \
    " fits bool, weights int}"
#define INVAR_LAYOUTS_ROW                                                                          \
    "{gpus int, tensor int, sequence bool, context int, expert int, expert_tensor int,"            \
    " pipeline int, data int, need int, items [" INVAR_MEMORY_ITEM "], sampling int,"              \
    " scoring int, learning int, around int, fits bool, tensor_gb real, context_gb real,"          \
    " expert_gb real, data_gb real, pipeline_gb real, predicted_computing_s real,"                 \
    " predicted_moving_s real, samplers~ " INVAR_LAYOUTS_SAMPLERS "}"
#define INVAR_LAYOUTS_RESULT                                                                       \
    "{prediction bool, tflops real, node_gb_per_s real, net_gb_per_s real, samples int,"           \
    " tokens int, layouts [" INVAR_LAYOUTS_ROW "]} (with --gpus: every way to divide the model)"

typedef struct invar_layouts_options {
    const char *path; /* path of the recipe; may be NULL */
    const char *gpus; /* numbers of GPUs, such as "8,64" */
    bool all;         /* all layouts that fit instead of the recipe's layout */
    bool json;
    size_t memory;          /* memory of a GPU in bytes; 0 for the free memory of the device */
    double tflops;          /* rate of a GPU in TFLOP/s */
    double intra_node_gbps; /* GB/s that a GPU sends to other GPUs of its node */
    double inter_node_gbps; /* GB/s that a GPU sends to other nodes */
} invar_layouts_options;

#define INVAR_LAYOUTS_TFLOPS 450.0
#define INVAR_LAYOUTS_NODE 450.0
#define INVAR_LAYOUTS_NET 50.0

/*
 * Plans and prints the layouts. *fits_out is true if at least one layout fits; for the recipe's
 * layout, if it fits for every number of GPUs.
 */
invar_status invar_layouts_show(bool *fits_out, const invar_config *config,
                                const invar_layouts_options *options) INVAR_MUST_USE;

#endif
