/*
 * framing.h - finds the end of an HTTP request in the raw bytes of its head, and rejects ambiguity.
 *
 * Two programs that disagree about the end of a request can be made to see different requests
 * (request smuggling). A head is therefore rejected if it leaves any doubt: RFC 9112, sections 2.2,
 * 5.1, 6.1 and 6.3.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_MODULE_FRAMING_H
#define INVAR_ENGINE_SAMPLE_SERVE_MODULE_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct invar_framing {
    const char *error;   /* reason to reject the head, static text; NULL if it is valid so far */
    size_t head_bytes;   /* bytes of the head, including its empty line; 0 if its end has not
                          arrived */
    uint64_t body_bytes; /* bytes of the body; 0 if the body is chunked */
    bool chunked;
    const char *authorization; /* value of the first header Authorization, inside of `data`, not
                                  terminated; NULL if absent */
    size_t authorization_bytes;
} invar_framing;

/* Reads the head at the beginning of `data`. Only complete lines are checked. */
void invar_framing_read(invar_framing *out, const char *data, size_t bytes);

#endif
