/*
 * byte_chars.h - how a byte-level vocabulary spells bytes: each as one character.
 *
 * Printable bytes stand for themselves, the others for U+0100 and on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_BYTE_CHARS_H
#define INVAR_ENGINE_TEXT_BYTE_CHARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_BYTE_CHARS_END 0x144 /* the characters are below */

typedef struct invar_byte_chars {
    uint16_t chars[256];
    int16_t bytes[INVAR_BYTE_CHARS_END]; /* -1: the character stands for no byte */
} invar_byte_chars;

void invar_byte_chars_init(invar_byte_chars *map);

/*
 * The bytes that `name` spells, at most as many as it has itself; false when a character of it
 * stands for no byte: then *bytes_out is how many were before.
 */
bool invar_byte_chars_read(char *out, size_t *bytes_out, const invar_byte_chars *map,
                           const char *name, size_t length);

#ifdef __cplusplus
}
#endif
#endif
