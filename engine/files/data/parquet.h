/*
 * parquet.h - reads the rows of a Parquet file as JSON lines, with pyarrow.
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

/* Returns true if the data begin like a Parquet file. */
bool invar_parquet_is(const char *data, size_t bytes);

/*
 * Reads the rows with the columns of these names that exist; the first one must exist. `columns`
 * ends with a NULL, empty names are ignored. *out has an additional NUL that is not counted; the
 * caller frees it with invar_free. Returns INVAR_E_INVALID if python3 has no pyarrow, the file is
 * not Parquet, a value cannot be represented in JSON, or the text has more than `max_bytes` bytes.
 */
invar_status invar_parquet_read(char **out, size_t *bytes_out, const char *path,
                                const char *const *columns, size_t max_bytes) INVAR_MUST_USE;

#endif
