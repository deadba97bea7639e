/*
 * server_info.h - what every reply of a server says about it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_SERVER_INFO_H
#define INVAR_ENGINE_SAMPLE_SERVE_SERVER_INFO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_server_info {
    const char *model;    /* the name that requests call it by */
    invar_digest weights; /* of the model, or of its adapters */
    invar_digest base;    /* of the frozen base of adapters, */
    bool adapted;         /* which there are */
    const char *numerics; /* "ieee" */
    const char *format;   /* "bf16" */
    int64_t context;      /* tokens of the longest sequence */
    int64_t started;      /* seconds since 1970 */
} invar_server_info;

#ifdef __cplusplus
}
#endif
#endif
