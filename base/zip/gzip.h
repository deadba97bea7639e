/*
 * gzip.h - compresses and expands gzip data. The only user of zlib.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_ZIP_GZIP_H
#define INVAR_BASE_ZIP_GZIP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* True if the data begin with the magic bytes of gzip. */
bool invar_gzip_is(const char *data, size_t bytes);

/*
 * Expands all members of gzip data, concatenated. *out is followed by a NUL that is not counted;
 * the caller frees it with invar_free. Returns INVAR_E_INVALID, with a message that begins with
 * `where`, if the data are damaged, end early or expand to more than `max_bytes`; *out is then
 * NULL.
 */
invar_status invar_gzip_expand(char **out, size_t *bytes_out, const char *where, const char *data,
                               size_t bytes, size_t max_bytes) INVAR_MUST_USE;

/*
 * Compresses at most 1 GiB of data to one member without name and time, so that equal data give
 * equal bytes with the same zlib. The caller frees *out with invar_free.
 */
invar_status invar_gzip_pack(char **out, size_t *bytes_out, const char *data,
                             size_t bytes) INVAR_MUST_USE;

#endif
