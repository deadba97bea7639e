/*
 * stop.c - searches the new end of a text for stop strings.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/stop.h"

#include <stdbool.h>
#include <string.h>

#include "base/invar_banned.h"

/* Returns true if text[begin, bytes) contains `needle`, whose `length` is at least 1. */
static bool contains_from(const char *text, size_t bytes, size_t begin, const char *needle,
                          size_t length)
{
    while (length <= bytes && begin <= bytes - length) {
        const char *hit = memchr(text + begin, needle[0], bytes - length - begin + 1);

        if (!hit)
            return false;
        if (memcmp(hit, needle, length) == 0)
            return true;
        begin = (size_t)(hit - text) + 1;
    }
    return false;
}

int64_t invar_stop_find(const char *text, size_t bytes, size_t from, const char *const *stop,
                        int64_t n_stop)
{
    for (int64_t i = 0; bytes > from && i < n_stop; i++) {
        size_t length = strlen(stop[i]);
        // first start of a match that ends after `from`
        size_t begin = from + 1 > length ? from + 1 - length : 0;

        if (length > 0 && contains_from(text, bytes, begin, stop[i], length))
            return i;
    }
    return -1;
}
