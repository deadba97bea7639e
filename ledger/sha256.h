/*
 * sha256.h - SHA-256 (FIPS 180-4) of bytes that come in pieces.
 *
 * For seals, which are compared with a line kept elsewhere, so they must resist forgery, which
 * XXH3-128 (base/hash.h) does not; and where others expect it. Holds no resource; cannot fail.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_SHA256_H
#define INVAR_LEDGER_SHA256_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_SHA256_BYTES 32

typedef struct invar_sha256 {
    uint32_t state[8];
    uint64_t bytes;    /* added so far */
    uint8_t block[64]; /* the bytes % 64 that fill no block yet */
} invar_sha256;

void invar_sha256_init(invar_sha256 *sha);

/* `data` may be NULL when `bytes` is 0. */
void invar_sha256_update(invar_sha256 *sha, const void *data, size_t bytes);

/* Ends the computation: init before the next use. */
void invar_sha256_final(uint8_t out[INVAR_SHA256_BYTES], invar_sha256 *sha);

#ifdef __cplusplus
}
#endif
#endif
