/*
 * embedded.h - files that the build puts into the program (invar_embed in cmake/InvarEmbed.cmake).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_EMBEDDED_H
#define INVAR_BASE_EMBEDDED_H

#include <stddef.h>

/* An embedded file. Lists end with an element whose name is NULL. */
typedef struct invar_embedded {
    const char *name; /* name of the file without its folder */
    const char *text; /* (bytes) content, followed by a NUL that `bytes` does not count */
    size_t bytes;
} invar_embedded;

#endif
