/*
 * framing.c - fuzz target: the head of an HTTP request, on any bytes.
 *
 * A head is rejected with a reason, incomplete, or complete within the input. The result must not
 * depend on how the bytes arrive: a prefix of a complete head is incomplete, bytes after the head
 * change nothing, and a rejected head stays rejected when more bytes arrive.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/module/framing.h"

#include <string.h>

#include "base/status.h"
#include "tests/fuzz/fuzz.h"

static void check_complete(const invar_framing *complete, const char *text, size_t bytes)
{
    invar_framing reread;

    INVAR_CHECK(complete->head_bytes >= 4 && complete->head_bytes <= bytes);
    INVAR_CHECK(memcmp(text + complete->head_bytes - 4, "\r\n\r\n", 4) == 0);
    INVAR_CHECK(!memchr(text, '\0', complete->head_bytes));
    INVAR_CHECK(!complete->chunked || complete->body_bytes == 0);
    invar_framing_read(&reread, text, complete->head_bytes);
    INVAR_CHECK(!reread.error && reread.head_bytes == complete->head_bytes);
    INVAR_CHECK(reread.body_bytes == complete->body_bytes && reread.chunked == complete->chunked);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    invar_framing complete, prefix;

    invar_framing_read(&complete, text, size);
    if (complete.head_bytes && !complete.error)
        check_complete(&complete, text, size);
    for (size_t bytes = 0; bytes < size; bytes++) {
        invar_framing_read(&prefix, text, bytes);
        INVAR_CHECK(!prefix.error || complete.error);
        INVAR_CHECK(prefix.error || prefix.head_bytes == 0 ||
                    prefix.head_bytes == complete.head_bytes);
    }
    return 0;
}
