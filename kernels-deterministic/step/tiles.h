/*
 * tiles.h - random and directed test tiles for the dot-step of numerics sm90.
 *
 * A tile is 16 rows of A, 8 rows of B and 16 x 8 accumulators: the operands of one mma.sync. Tile
 * (form, family, number) is a pure function of its coordinates, so the outputs of a GPU can be
 * recorded as hashes and compared anywhere. Used by C and CUDA programs; runs on the host.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_STEP_TILES_H
#define INVAR_KERNELS_STEP_TILES_H

#include <stdint.h>
#include <string.h>

#define INVAR_TILE_ROWS 16
#define INVAR_TILE_COLS 8
#define INVAR_TILE_OUTPUTS (INVAR_TILE_ROWS * INVAR_TILE_COLS)
#define INVAR_TILE_MAX_K 128 /* 8 bf16 steps or 4 e4m3 steps */

typedef enum invar_tile_form { INVAR_TILE_BF16, INVAR_TILE_E4M3, INVAR_TILE_FORMS } invar_tile_form;

/* Operands are bit patterns of bf16 or e4m3. */
typedef struct invar_step_tile {
    int k; /* 16 or 32 for one step; INVAR_TILE_MAX_K for a chain */
    uint16_t a[INVAR_TILE_ROWS][INVAR_TILE_MAX_K];
    uint16_t b[INVAR_TILE_COLS][INVAR_TILE_MAX_K];
    uint32_t c[INVAR_TILE_ROWS][INVAR_TILE_COLS];
} invar_step_tile;

#define INVAR_TILE_FAMILIES 14

static const char *const invar_tile_family_names[INVAR_TILE_FAMILIES] = {
    "typical",    /* exponents as in a network */
    "wide",       /* exponents over a wide range: most terms are truncated */
    "tiny",       /* products around the floor of bf16, 2^-150 to 2^-104 */
    "subnormal",  /* subnormal operands and zeros among small values */
    "sparse",     /* mostly zeros of both signs */
    "special",    /* infinities and NaN strewn in */
    "overflow",   /* sums around 2^128 */
    "cancel",     /* products that cancel in pairs */
    "bits",       /* uniform bit patterns */
    "carry",      /* significands near 2 and one sign: the largest sums */
    "small-step", /* a large accumulator, small products */
    "chain",      /* typical values, INVAR_TILE_MAX_K long */
    "resting",    /* a chain in which complete steps are zeros; accumulators of every size */
    "faint",      /* a chain with zero steps around the floor: accumulators become and stay
                     subnormal */
};

static inline uint64_t invar_tile_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static inline int invar_tile_between(uint64_t *state, int low, int high)
{
    return low + (int)(invar_tile_random(state) % (uint64_t)(high - low + 1));
}

static inline uint16_t invar_tile_bf16(uint64_t *state, int family)
{
    uint64_t r = invar_tile_random(state);
    uint16_t sign_fraction = (uint16_t)(r & 0x807F);
    int pick = (int)(r >> 32 & 0xFF), field;

    switch (family) {
    case 1: field = invar_tile_between(state, 97, 157); break;
    case 2:
    case 13: field = invar_tile_between(state, 52, 75); break;
    case 3: field = pick < 64 ? 0 : invar_tile_between(state, 1, 70); break;
    case 4:
        if (pick < 160)
            return (uint16_t)(r & 0x8000);
        field = invar_tile_between(state, 112, 141);
        break;
    case 5:
        if (pick == 0)
            return (uint16_t)((r & 0x8000) | 0x7F80);
        if (pick == 1)
            return (uint16_t)((r & 0x8000) | 0x7FC0);
        if (pick < 8)
            return 0;
        field = invar_tile_between(state, 97, 156);
        break;
    case 6: field = invar_tile_between(state, 185, 195); break;
    case 8: return (uint16_t)r;
    case 9: return (uint16_t)((127u + (pick & 1)) << 7 | 0x78 | (r & 7));
    case 10: field = invar_tile_between(state, 105, 115); break;
    default: field = invar_tile_between(state, 117, 128); break;
    }
    return (uint16_t)(sign_fraction | field << 7);
}

static inline uint16_t invar_tile_e4m3(uint64_t *state, int family)
{
    uint64_t r = invar_tile_random(state);
    uint16_t any = (uint16_t)(r & 0xFF);
    int pick = (int)(r >> 32 & 0xFF);

    if (family == 5 && pick == 0)
        return 0x7F;
    if (family == 4 && pick < 160)
        return any & 0x80;
    if (family == 3)
        any &= 0x8F; // exponent fields 0 and 1
    if (family == 9)
        return (uint16_t)(0x76 | (r & 1)); // 224 and 240: significands near 2
    if (family == 10)
        any &= 0x9F;
    return (any & 0x7F) == 0x7F ? any ^ 1 : any;
}

static inline uint32_t invar_tile_c(uint64_t *state, int family)
{
    uint64_t r = invar_tile_random(state);
    uint32_t sign_fraction = (uint32_t)(r & 0x807FFFFF);
    int pick = (int)(r >> 32 & 0xFF), field;

    switch (family) {
    case 2:
    case 3:
    case 12:
    case 13:
        if (pick < 64)
            return (uint32_t)(r & 0x80000000);
        field = pick < 128 ? 0 : invar_tile_between(state, 0, 30);
        break;
    case 5:
        if (pick < 4)
            return (uint32_t)(r & 0x80000000) | 0x7F800000 | (pick & 1 ? 0x1234u : 0);
        field = invar_tile_between(state, 90, 150);
        break;
    case 6: field = invar_tile_between(state, 230, 254); break;
    case 8: return (uint32_t)r;
    case 9: return (uint32_t)(129 + (pick & 1)) << 23 | 0x7FFFFF;
    case 10: field = invar_tile_between(state, 118, 140); break;
    default:
        if (pick < 64)
            return (uint32_t)(r & 0x80000000);
        field = invar_tile_between(state, 100, 140);
        break;
    }
    return sign_fraction | (uint32_t)field << 23;
}

static inline void invar_tile_make(invar_step_tile *t, invar_tile_form form, int family,
                                   uint64_t number)
{
    uint64_t state = number * 64 + (uint64_t)family * 2 + (uint64_t)form;
    int step = form == INVAR_TILE_BF16 ? 16 : 32;
    uint16_t sign = form == INVAR_TILE_BF16 ? 0x8000 : 0x80;

    state = invar_tile_random(&state); // related coordinates must not give related streams
    memset(t, 0, sizeof *t);
    t->k = family >= 11 ? INVAR_TILE_MAX_K : step;
    for (int i = 0; i < INVAR_TILE_ROWS; i++)
        for (int p = 0; p < t->k; p++)
            t->a[i][p] = form == INVAR_TILE_BF16 ? invar_tile_bf16(&state, family)
                                                 : invar_tile_e4m3(&state, family);
    for (int j = 0; j < INVAR_TILE_COLS; j++)
        for (int p = 0; p < t->k; p++)
            t->b[j][p] = form == INVAR_TILE_BF16 ? invar_tile_bf16(&state, family)
                                                 : invar_tile_e4m3(&state, family);
    for (int i = 0; i < INVAR_TILE_ROWS; i++)
        for (int j = 0; j < INVAR_TILE_COLS; j++)
            t->c[i][j] = invar_tile_c(&state, family);
    if (family >= 12) { // half of the steps are zeros
        for (int p = 0; p < t->k; p += step)
            if (invar_tile_random(&state) % 2 == 0)
                for (int j = 0; j < INVAR_TILE_COLS; j++)
                    memset(&t->b[j][p], 0, (size_t)step * sizeof t->b[j][p]);
    }
    if (family == 7) { // the second half repeats the first with A negated, except for a few values
        for (int p = 0; p < t->k / 2; p++) {
            for (int i = 0; i < INVAR_TILE_ROWS; i++)
                if (invar_tile_random(&state) % 32 != 0)
                    t->a[i][t->k / 2 + p] = t->a[i][p] ^ sign;
            for (int j = 0; j < INVAR_TILE_COLS; j++)
                t->b[j][t->k / 2 + p] = t->b[j][p];
        }
    }
}

#endif
