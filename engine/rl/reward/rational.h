/*
 * rational.h - exact values of written numbers: "-3", "2.50", "7/4", "1+3/4", "2*10^6".
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_REWARD_RATIONAL_H
#define INVAR_ENGINE_RL_REWARD_RATIONAL_H

#include <stdint.h>

#include "engine/rl/reward/answer_text.h"

/* Reduced fraction with a positive denominator. */
typedef struct invar_rational {
    /* numerator */
    int64_t num;
    /* denominator */
    int64_t den;
} invar_rational;

/*
 * Parses numbers, + - * / ^ and parentheses, without blanks. Returns false if the text is anything
 * else, if a step overflows 64 bits, or if parentheses are nested more than 32 deep.
 */
bool invar_rational_parse(invar_rational *out, invar_str_view view);

#endif
