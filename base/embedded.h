/*
 * embedded.h - files that the build puts into the program (invar_embed in cmake/InvarEmbed.cmake).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_EMBEDDED_H
#define INVAR_BASE_EMBEDDED_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_embedded {
    const char *name; /* without its folder */
    const char *text; /* the file, terminated by a NUL that is not counted */
    size_t bytes;
} invar_embedded;

#ifdef __cplusplus
}
#endif
#endif
