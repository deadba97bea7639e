/*
 * rng_coords.h - random coordinates of a sample, as text.
 *
 *     seed=42,purpose=0,rollout=3,draw=17,prompt=25,weights=HEX
 *
 * The text names everything that the sampled tokens depend on beyond the recipe. The ledger stores
 * it with every sample, and `invar generate` can sample the same tokens again from it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_RNG_COORDS_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_RNG_COORDS_H

#include "engine/rl/sample.h"

typedef struct invar_rng_coords {
    uint32_t seed, purpose, rollout, draw;
    int64_t prompt; /* line of the data set */
    invar_digest weights;
} invar_rng_coords;

#define INVAR_RNG_COORDS_SIZE 192

/* Returns the coordinates of a sample that was sampled with this seed and purpose. */
invar_rng_coords invar_rng_coords_of(const invar_rl_sample *sample, uint32_t seed,
                                     uint32_t purpose);

/* Writes the text shown in the file head, NUL-terminated. */
void invar_rng_coords_format(char out[INVAR_RNG_COORDS_SIZE], const invar_rng_coords *coords);

/* Parses a text exactly as invar_rng_coords_format writes it; otherwise returns INVAR_E_INVALID. */
invar_status invar_rng_coords_parse(invar_rng_coords *out, const char *text) INVAR_MUST_USE;

#endif
