/*
 * sha256.h - SHA-256 (FIPS 180-4), computed incrementally.
 *
 * Used for seals, which must resist forgery, and for formats that require SHA-256. XXH3-128
 * (base/hash.h) is faster but shows accidental damage only. Holds no resource and cannot fail.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_SHA256_H
#define INVAR_LEDGER_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define INVAR_SHA256_BYTES 32
#define INVAR_SHA256_HEX_SIZE 65 /* hexadecimal digits and a NUL */

typedef struct invar_sha256 {
    uint32_t state[8];
    uint64_t bytes;    /* number of bytes added so far */
    uint8_t block[64]; /* the last bytes % 64 bytes, which do not fill a block yet */
} invar_sha256;

/* Begins a new message. */
void invar_sha256_init(invar_sha256 *sha);

/* Adds bytes to the message. `data` may be NULL if `bytes` is 0. */
void invar_sha256_update(invar_sha256 *sha, const void *data, size_t bytes);

/* Writes the digest to `out`. Call invar_sha256_init before using `sha` again. */
void invar_sha256_final(uint8_t out[INVAR_SHA256_BYTES], invar_sha256 *sha);

/* Writes a digest as hexadecimal digits. */
void invar_sha256_format(char out[INVAR_SHA256_HEX_SIZE], const uint8_t digest[INVAR_SHA256_BYTES]);

#endif
