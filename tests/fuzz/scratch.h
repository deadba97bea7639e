/*
 * scratch.h - files for fuzz targets, in a folder of the process, in memory where there is one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FUZZ_SCRATCH_H
#define INVAR_TESTS_FUZZ_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define FUZZ_PATH_SIZE 512

/* The path of a file in the folder, which goes when the process ends in order; "": the folder. */
void fuzz_path(char out[FUZZ_PATH_SIZE], const char *name);

/* How many files there are. */
int fuzz_count(void);

void fuzz_write(const char *path, const void *data, size_t size);

/* All of a file; the caller frees it. A missing file is an empty one. */
uint8_t *fuzz_read(size_t *size_out, const char *path);

/* Aborts unless the failure has a message, of one line that a terminal may show. */
void fuzz_check_failure(invar_status status);

#endif
