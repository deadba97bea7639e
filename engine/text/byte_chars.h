/*
 * byte_chars.h - the characters that stand for bytes in a byte-level vocabulary (GPT-2's table).
 *
 * Printable bytes of Latin-1 stand for themselves, the others for U+0100 and up, in order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_BYTE_CHARS_H
#define INVAR_ENGINE_TEXT_BYTE_CHARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INVAR_BYTE_CHARS_END 0x144 /* all characters of the table are below */

typedef struct invar_byte_chars {
    uint16_t chars[256];
    int16_t bytes[INVAR_BYTE_CHARS_END]; /* byte of each character; -1 if it stands for no byte */
} invar_byte_chars;

void invar_byte_chars_init(invar_byte_chars *map);

/*
 * Writes the bytes that the characters of `name`, a text of `length` bytes, stand for; `out` has
 * room for `length` bytes. Returns false at the first character that stands for no byte; *bytes_out
 * then counts the bytes of the characters before it.
 */
bool invar_byte_chars_read(char *out, size_t *bytes_out, const invar_byte_chars *map,
                           const char *name, size_t length);

#endif
