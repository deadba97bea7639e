/*
 * philox.h - Philox4x32-10, uniform and Gumbel random numbers.
 *
 * The counter-based generator of Salmon, Moraes, Dror and Shaw (SC 2011), as in Random123: four
 * words from a counter and a key, without state. docs/arithmetic.md defines the coordinates that
 * form counters. Keys are (seed, invar_philox_purpose).
 *
 * Numerics contract (rev 1): u = ((w >> 9) + 0.5) * 2^-23, exact, 2^-24 <= u <= 1 - 2^-24; gumbel =
 * -log(-log(u)) with invar_log, finite for every word.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_PHILOX_H
#define INVAR_KERNELS_MATH_PHILOX_H

#include "base/status.h"
#include "kernels-deterministic/math/elementary.h"

/* Writes the four words of a counter and a key; `out` must not overlap the inputs. */
INVAR_FN void invar_philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)c0 * UINT32_C(0xD2511F53);
        uint64_t product1 = (uint64_t)c2 * UINT32_C(0xCD9E8D57);
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#define INVAR_PHILOX_PURPOSES 256
#define INVAR_PHILOX_CALLS 16777216 /* 2^24 */

/*
 * Returns the second word of a key: what the numbers are used for, and the index of the call for
 * that purpose.
 */
static inline uint32_t invar_philox_purpose(uint32_t purpose, uint32_t call)
{
    INVAR_CHECK(purpose < INVAR_PHILOX_PURPOSES && call < INVAR_PHILOX_CALLS);
    return purpose + INVAR_PHILOX_PURPOSES * call;
}

/* Returns a number in the open interval (0, 1). */
INVAR_FN float invar_uniform_f32(uint32_t word)
{
    return ((float)(int32_t)(word >> 9) + 0.5f) * 0x1p-23f;
}

/* Returns Gumbel noise: the index of the largest log-probability plus noise is a sample. */
INVAR_FN float invar_gumbel_f32(uint32_t word)
{
    return -invar_log(-invar_log(invar_uniform_f32(word)));
}

#endif
