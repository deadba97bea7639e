/*
 * gzip.c - fuzz target: any bytes expand to at most the limit, or are rejected with the file's
 * name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/zip/gzip.h"

#include <string.h>

#include "base/alloc.h"
#include "tests/fuzz/fuzz.h"

#define MAX_BYTES 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *message;
    size_t bytes;
    char *text;
    invar_status status =
        invar_gzip_expand(&text, &bytes, "fuzz", (const char *)data, size, MAX_BYTES);

    if (status == INVAR_OK) {
        INVAR_CHECK(invar_gzip_is((const char *)data, size));
        INVAR_CHECK(bytes <= MAX_BYTES && text[bytes] == '\0');
        invar_free(text);
        return 0;
    }
    message = invar_error_last()->message;
    INVAR_CHECK(status == INVAR_E_INVALID && !text && bytes == 0);
    INVAR_CHECK(strncmp(message, "fuzz: ", 6) == 0);
    return 0;
}
