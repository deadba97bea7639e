/*
 * scratch.h - files for fuzz targets, in a folder of the process, in /dev/shm if that exists.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FUZZ_SCRATCH_H
#define INVAR_TESTS_FUZZ_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define FUZZ_PATH_SIZE 512

/*
 * Writes the path of a file in the folder; "" is the folder itself. The folder is removed when the
 * process exits normally.
 */
void fuzz_path(char out[FUZZ_PATH_SIZE], const char *name);

/* Returns the number of files in the folder. */
int fuzz_count(void);

void fuzz_write(const char *path, const void *data, size_t size);

/* Reads a complete file; the caller frees it. A missing file reads as an empty one. */
uint8_t *fuzz_read(size_t *size_out, const char *path);

/* Aborts unless the failure has a message of printable text. */
void fuzz_check_failure(invar_status status);

#endif
