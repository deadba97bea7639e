/*
 * rational.h - the exact value of a number written out: "-3", "2.50", "7/4", "1+3/4", "2*10^6".
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_REWARD_RATIONAL_H
#define INVAR_ENGINE_RL_REWARD_RATIONAL_H

#include <stdint.h>

#include "engine/rl/reward/answer_text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reduced; the denominator is positive. */
typedef struct invar_rational {
    int64_t top;
    int64_t bottom;
} invar_rational;

/*
 * Numbers, + - * / ^ and parentheses, no blanks. False when the text is anything else, when a step
 * overflows 64 bits, or when parentheses are nested more than 32 deep.
 */
bool invar_rational_parse(invar_rational *out, invar_str_view piece);

#ifdef __cplusplus
}
#endif
#endif
