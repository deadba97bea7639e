/*
 * parquet.h - the rows of a Parquet file as JSON lines, by the real pyarrow.
 *
 * A child process (python3 with pyarrow) reads the file; it is needed while a data set is loaded,
 * never during a run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_DATA_PARQUET_H
#define INVAR_ENGINE_FILES_DATA_PARQUET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True when the data begins as a Parquet file does. */
bool invar_parquet_is(const char *data, size_t bytes);

/*
 * The rows with the columns of these names, as far as the file has them; it must have the first. A
 * NULL ends the names, empty ones are passed over. The text ends with a NUL that is not counted;
 * the caller owns *out (invar_free). INVAR_E_INVALID: python3 has no pyarrow, the file is none, a
 * value has no form in JSON, or the text has more than `max_bytes`.
 */
invar_status invar_parquet_read(char **out, size_t *bytes_out, const char *path,
                                const char *const *columns, size_t max_bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
