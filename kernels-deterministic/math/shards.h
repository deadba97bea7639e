/*
 * shards.h - where the shards of a chain begin: logical tensor parallelism.
 *
 * k values are atoms of `atom` values each, of which the last may be shorter. Atom a of n is in
 * shard floor(a V / n) of V, so that every rank of a world that divides V has whole shards, and a
 * model's sizes need not be multiples of V. With fewer atoms than V some shards are empty.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_SHARDS_H
#define INVAR_KERNELS_MATH_SHARDS_H

#include <stdbool.h>

#include "kernels-deterministic/math/portable.h"

/* The first value of shard v; v = shards: k. One shard needs no atom. */
INVAR_FN int64_t invar_shard_start(int64_t k, int64_t atom, int32_t shards, int32_t v)
{
    int64_t atoms, first;

    if (v == 0 || v == shards)
        return v == 0 ? 0 : k;
    atoms = k / atom + (k % atom != 0);
    first = (v * atoms + shards - 1) / shards; // the least a with a V >= v n
    return first < atoms ? first * atom : k;
}

/*
 * Whether each of some ranks, which have equally many shards, has them where they would be if its
 * values were all that there are.
 */
INVAR_FN bool invar_shards_divide_evenly(int64_t k, int64_t atom, int32_t shards, int32_t ranks)
{
    int32_t own = shards / ranks;

    for (int32_t v = 0; v < shards; v++) {
        int32_t first = v / own * own; // of its rank
        int64_t begin = invar_shard_start(k, atom, shards, first);
        int64_t end = invar_shard_start(k, atom, shards, first + own);
        if (invar_shard_start(k, atom, shards, v) - begin !=
            invar_shard_start(end - begin, atom, own, v - first))
            return false;
    }
    return true;
}

/*
 * Whether no kv head has query heads in several shards: then a sum over its group is one chain, as
 * with one shard.
 */
INVAR_FN bool invar_shard_whole_groups(int64_t heads, int64_t group, int64_t atom, int32_t shards)
{
    for (int32_t v = 1; v < shards; v++)
        if (invar_shard_start(heads, atom, shards, v) % group != 0)
            return false;
    return true;
}

#endif
