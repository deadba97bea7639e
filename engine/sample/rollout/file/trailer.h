/*
 * trailer.h - last line of a rollout file, with the SHA-256 of everything before it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_FILE_TRAILER_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_FILE_TRAILER_H

#include <stdint.h>

#include "ledger/sha256.h"

#define INVAR_ROLLOUT_FILE_TRAILER_SIZE 160

/*
 * Writes the trailer with its newline. `sha` must have hashed all bytes before the trailer; it is
 * finalized here and cannot be used again.
 */
void invar_rollout_file_format_trailer(char out[INVAR_ROLLOUT_FILE_TRAILER_SIZE], int64_t samples,
                                       invar_sha256 *sha);

#endif
