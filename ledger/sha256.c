/*
 * sha256.c - SHA-256, with the names and the order of FIPS 180-4.
 *
 * The message is compressed in blocks of 64 bytes; an incomplete block waits in invar_sha256.block.
 * Portable C, without CPU extensions.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/sha256.h"

#include <stdio.h>
#include <string.h>

#include "base/invar_banned.h"

// START: first 32 bits of the fractions of the square roots of the first 8 primes. K: those of the
// cube roots of the first 64 primes.
static const uint32_t START[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void compress_block(uint32_t state[8], const uint8_t block[64])
{
    uint32_t w[64];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
               (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = s1 + w[t - 7] + s0 + w[t - 16];
    }

    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 64; t++) {
        uint32_t sum1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
        uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + K[t] + w[t];
        uint32_t sum0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
        uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

void invar_sha256_init(invar_sha256 *sha)
{
    memcpy(sha->state, START, sizeof(START));
    sha->bytes = 0;
}

void invar_sha256_update(invar_sha256 *sha, const void *data, size_t bytes)
{
    const uint8_t *in = data;
    while (bytes > 0) {
        size_t held = sha->bytes % 64;
        size_t take = bytes < 64 - held ? bytes : 64 - held;
        if (take == 64) {
            compress_block(sha->state, in);
        } else {
            memcpy(sha->block + held, in, take);
            if (held + take == 64)
                compress_block(sha->state, sha->block);
        }
        sha->bytes += take;
        in += take;
        bytes -= take;
    }
}

void invar_sha256_final(uint8_t out[INVAR_SHA256_BYTES], invar_sha256 *sha)
{
    // padding: a one bit, zeros up to the last 8 bytes of a block, then the number of bits
    uint8_t tail[72] = {0x80};
    uint64_t bits = sha->bytes * 8;
    size_t zeros = (119 - sha->bytes % 64) % 64;
    for (int i = 0; i < 8; i++)
        tail[1 + zeros + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    invar_sha256_update(sha, tail, 1 + zeros + 8);
    for (int i = 0; i < INVAR_SHA256_BYTES; i++)
        out[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

void invar_sha256_format(char out[INVAR_SHA256_HEX_SIZE], const uint8_t digest[INVAR_SHA256_BYTES])
{
    for (int i = 0; i < INVAR_SHA256_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}
