/*
 * candidate_order.h - total order of candidates: value descending, then id ascending.
 *
 * The router and sampling choose by this order. A candidate becomes one integer key, so the order
 * is total for all bits of the value; a smaller key is a better candidate. -0 equals +0. The
 * position of a NaN depends on the bits that the hardware gives it, but its key and id stay valid.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_CANDIDATE_ORDER_H
#define INVAR_KERNELS_MATH_CANDIDATE_ORDER_H

#include "kernels-deterministic/math/portable.h"

/* Worse than every key whose id is below 2^32 - 1. */
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

/* Returns the value of the key, with -0 as +0. */
INVAR_FN float invar_order_value(uint64_t key)
{
    uint32_t rank = (uint32_t)(key >> 32);

    return invar_bits_f32(rank & INVAR_SIGN_BIT ? rank : rank ^ ~INVAR_SIGN_BIT);
}

#endif
