/*
 * framing.c - fuzz target: the head of an HTTP request, on any bytes.
 *
 * Whatever the bytes are, a head is refused with a reason, incomplete, or complete within the
 * input. The verdict must not depend on how the bytes arrive: a prefix of the head is incomplete or
 * refused, bytes after the head change nothing, and a refused head stays refused as more arrives.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/module/framing.h"

#include <string.h>

#include "base/status.h"
#include "tests/fuzz/fuzz.h"

static void check_complete(const invar_framing *whole, const char *text, size_t bytes)
{
    invar_framing again;

    INVAR_CHECK(whole->head_bytes >= 4 && whole->head_bytes <= bytes);
    INVAR_CHECK(memcmp(text + whole->head_bytes - 4, "\r\n\r\n", 4) == 0);
    INVAR_CHECK(!memchr(text, '\0', whole->head_bytes));
    INVAR_CHECK(!whole->chunked || whole->body_bytes == 0);
    invar_framing_read(&again, text, whole->head_bytes);
    INVAR_CHECK(!again.error && again.head_bytes == whole->head_bytes);
    INVAR_CHECK(again.body_bytes == whole->body_bytes && again.chunked == whole->chunked);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    invar_framing whole, part;

    invar_framing_read(&whole, text, size);
    if (whole.head_bytes && !whole.error)
        check_complete(&whole, text, size);
    for (size_t bytes = 0; bytes < size; bytes++) {
        invar_framing_read(&part, text, bytes);
        INVAR_CHECK(!part.error || whole.error);
        INVAR_CHECK(part.error || part.head_bytes == 0 || part.head_bytes == whole.head_bytes);
    }
    return 0;
}
