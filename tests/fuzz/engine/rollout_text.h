/*
 * rollout_text.h - makes a rollout file with a valid trailer from any bytes, for fuzz targets.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FUZZ_ENGINE_ROLLOUT_TEXT_H
#define INVAR_TESTS_FUZZ_ENGINE_ROLLOUT_TEXT_H

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/sample/rollout/file/trailer.h"

/*
 * Appends the trailer (number of lines and SHA-256) to the input; without a valid one nearly every
 * input would be rejected. The caller frees the result with invar_free.
 */
static inline char *rollout_text(size_t *bytes_out, const uint8_t *data, size_t size)
{
    invar_sha256 sha;
    int64_t lines = 0;
    char *text;

    INVAR_CHECK(INVAR_ALLOC(text, size + 1 + INVAR_ROLLOUT_FILE_TRAILER_SIZE, "text") == INVAR_OK);
    if (size > 0)
        memcpy(text, data, size);
    if (size > 0 && text[size - 1] != '\n')
        text[size++] = '\n';
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    invar_sha256_init(&sha);
    invar_sha256_update(&sha, text, size);
    invar_rollout_file_format_trailer(text + size, lines - 1, &sha);
    *bytes_out = size + strlen(text + size);
    return text;
}

#endif
