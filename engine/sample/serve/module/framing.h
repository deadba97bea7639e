/*
 * framing.h - where an HTTP request ends, read from the raw bytes of its head.
 *
 * Two programs that disagree about the end of a request can be made to see different requests
 * (request smuggling). A head is therefore refused if it leaves any doubt: RFC 9112, sections 2.2,
 * 5.1, 6.1 and 6.3.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_MODULE_FRAMING_H
#define INVAR_ENGINE_SAMPLE_SERVE_MODULE_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_framing {
    const char *wrong; /* why the head is refused, static text; NULL if it is not */
    size_t head;       /* bytes of the head with its empty line; 0 if its end is missing */
    uint64_t body;     /* bytes of the body; 0 if the body is chunked */
    bool chunked;
    const char *authorization; /* value of the first header of this name, inside of `data` and not
                                  terminated; NULL if there is none */
    size_t authorization_bytes;
} invar_framing;

/* Reads the head of the request that `data` begins with. Only complete lines are judged. */
void invar_framing_read(invar_framing *out, const char *data, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
