/*
 * gzip.h - gzip data, made and expanded. The only user of zlib.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_ZIP_GZIP_H
#define INVAR_BASE_ZIP_GZIP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True when the data begins as gzip's does. */
bool invar_gzip_is(const char *data, size_t bytes);

/*
 * All members, one after another, with a NUL after the last byte that is not counted; the caller
 * owns *out (invar_free). INVAR_E_INVALID, beginning with `where`, for data that is damaged, ends
 * early or becomes more than `max_bytes`: never a part.
 */
invar_status invar_gzip_expand(char **out, size_t *bytes_out, const char *where, const char *data,
                               size_t bytes, size_t max_bytes) INVAR_MUST_USE;

/*
 * Data as one member, without a name and without a time: the same bytes for the same data and zlib.
 * The caller owns *out (invar_free). At most 1 GiB.
 */
invar_status invar_gzip_pack(char **out, size_t *bytes_out, const char *data,
                             size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
