/*
 * byte_chars.c - the characters that stand for bytes in a byte-level vocabulary.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/byte_chars.h"

#include <string.h>

#include "base/text.h"

#include "base/invar_banned.h"

static bool is_printable(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

void invar_byte_chars_init(invar_byte_chars *map)
{
    uint16_t moved = 0x100;

    memset(map->bytes, -1, sizeof map->bytes);
    for (unsigned b = 0; b < 256; b++) {
        map->chars[b] = is_printable(b) ? (uint16_t)b : moved++;
        map->bytes[map->chars[b]] = (int16_t)b;
    }
}

bool invar_byte_chars_read(char *out, size_t *bytes_out, const invar_byte_chars *map,
                           const char *name, size_t length)
{
    uint32_t point;
    size_t step;

    *bytes_out = 0;
    for (size_t at = 0; at < length; at += step) {
        step = invar_text_utf8(&point, name + at, length - at);
        if (step == 0 || point >= INVAR_BYTE_CHARS_END || map->bytes[point] < 0)
            return false;
        out[(*bytes_out)++] = (char)map->bytes[point];
    }
    return true;
}
