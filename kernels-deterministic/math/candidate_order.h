/*
 * candidate_order.h - the one order of candidates: value descending, then id ascending.
 *
 * Router and sampling choose by it. A candidate becomes one integer, so the order is total whatever
 * the bits of the value, and a smaller key is a better candidate. -0 ranks with +0. A NaN ranks
 * somewhere: its bits are the hardware's, but nothing breaks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_CANDIDATE_ORDER_H
#define INVAR_KERNELS_MATH_CANDIDATE_ORDER_H

#include "kernels-deterministic/math/portable.h"

/* Behind every key whose id is below 2^32 - 1. */
#define INVAR_ORDER_LAST UINT64_MAX

INVAR_FN uint64_t invar_order_key(float value, uint32_t id)
{
    uint32_t bits = invar_f32_bits(value + 0.0f); // -0 becomes +0
    uint32_t rank = bits & INVAR_SIGN_BIT ? bits : bits ^ ~INVAR_SIGN_BIT;

    return (uint64_t)rank << 32 | id;
}

INVAR_FN uint32_t invar_order_id(uint64_t key)
{
    return (uint32_t)key;
}

/* The value of the key, with -0 as +0. */
INVAR_FN float invar_order_value(uint64_t key)
{
    uint32_t rank = (uint32_t)(key >> 32);

    return invar_bits_f32(rank & INVAR_SIGN_BIT ? rank : rank ^ ~INVAR_SIGN_BIT);
}

#endif
