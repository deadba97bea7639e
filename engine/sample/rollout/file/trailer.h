/*
 * trailer.h - the last line of a rollout file.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_FILE_TRAILER_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_FILE_TRAILER_H

#include <stdint.h>

#include "ledger/sha256.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_ROLLOUT_END_SIZE 160

/* The line with its newline. `sha` has seen all bytes before it, and is ended. */
void invar_rollout_end(char out[INVAR_ROLLOUT_END_SIZE], int64_t samples, invar_sha256 *sha);

#ifdef __cplusplus
}
#endif
#endif
