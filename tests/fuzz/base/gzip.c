/*
 * gzip.c - fuzz target: any bytes expand to at most what is allowed, or are an error with a name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/zip/gzip.h"

#include <string.h>

#include "base/alloc.h"
#include "tests/fuzz/fuzz.h"

#define MOST 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *message;
    size_t bytes;
    char *text;
    invar_status status = invar_gzip_expand(&text, &bytes, "fuzz", (const char *)data, size, MOST);

    if (status == INVAR_OK) {
        INVAR_CHECK(invar_gzip_is((const char *)data, size));
        INVAR_CHECK(bytes <= MOST && text[bytes] == '\0');
        invar_free(text);
        return 0;
    }
    message = invar_error_last()->message;
    INVAR_CHECK(status == INVAR_E_INVALID && !text && bytes == 0);
    INVAR_CHECK(strncmp(message, "fuzz: ", 6) == 0);
    return 0;
}
