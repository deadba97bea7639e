/*
 * rng_coords.h - the coordinates of a sample: a text that names all it was made from.
 *
 *     seed=42,purpose=0,rollout=3,draw=17,prompt=25,weights=HEX
 *
 * The ledger keeps it with every sample, and the sample can be made again from it alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_RNG_COORDS_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_RNG_COORDS_H

#include "engine/rl/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_rng_coords {
    uint32_t seed, purpose, rollout, draw;
    int64_t prompt; /* line of the data set */
    invar_digest weights;
} invar_rng_coords;

#define INVAR_RNG_COORDS_SIZE 192

invar_rng_coords invar_rng_coords_of(const invar_rl_sample *sample, uint32_t seed,
                                     uint32_t purpose);
void invar_rng_coords_format(char out[INVAR_RNG_COORDS_SIZE], const invar_rng_coords *coords);

/* What _format writes, to the letter; else INVAR_E_INVALID. */
invar_status invar_rng_coords_parse(invar_rng_coords *out, const char *text) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
