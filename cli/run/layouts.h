/*
 * layouts.h - layouts of a run on GPUs that are not there: memory, traffic and time of a rank.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_LAYOUTS_H
#define INVAR_CLI_RUN_LAYOUTS_H

#include <stdbool.h>

#include "base/recipe/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_layouts_options {
    const char *path; /* the recipe's; may be NULL */
    const char *gpus; /* "8,64" */
    bool all;         /* layouts that fit, not the recipe's */
    bool json;
    size_t memory;          /* of a GPU; 0: what the device has free */
    double tflops;          /* that a GPU computes in a second */
    double intra_node_gbps; /* GB/s that a GPU sends inside of its node, */
    double inter_node_gbps; /* and to others */
} invar_layouts_options;

#define INVAR_LAYOUTS_TFLOPS 450.0
#define INVAR_LAYOUTS_NODE 450.0
#define INVAR_LAYOUTS_NET 50.0

/* Prints them; *fits_out: there is one, and with the recipe's layout each does. */
invar_status invar_layouts_show(bool *fits_out, const invar_recipe *recipe,
                                const invar_layouts_options *options) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
