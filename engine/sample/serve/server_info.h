/*
 * server_info.h - model name, digests and start time that every response of the server reports.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_SERVER_INFO_H
#define INVAR_ENGINE_SAMPLE_SERVE_SERVER_INFO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"

typedef struct invar_server_info {
    const char *model;    /* name that requests use for the model */
    invar_digest weights; /* digest of the weights; of the adapters if `adapted` is set */
    invar_digest base;    /* digest of the frozen base weights below the adapters; used only if
                             `adapted` is set */
    bool adapted;         /* the model has adapters */
    const char *numerics; /* numerics of the kernels, such as "ieee" */
    const char *format;   /* number format of the weights, such as "bf16" */
    int64_t context;      /* tokens of the longest sequence, prompt and response together */
    int64_t started;      /* Unix time of the start, in seconds; reported as "created" */
} invar_server_info;

#endif
