/*
 * output.h - a file that appears whole or not at all.
 *
 * It is written beside its place under another name, synced and renamed. "-" is standard output; a
 * pipe, a device or a link that is there already is written where it stands.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_OUTPUT_H
#define INVAR_CLI_OUTPUT_H

#include <stdio.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_output {
    FILE *stream;
    char path[4096];
    char other[4096]; /* the name until it is whole; "": none */
} invar_output;

invar_status invar_output_open(invar_output *out, const char *path) INVAR_MUST_USE;

/* Ends it: keeps the file when `status` is INVAR_OK, else removes it. Yields the first failure. */
invar_status invar_output_close(invar_output *out, invar_status status) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
