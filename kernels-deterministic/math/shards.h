/*
 * shards.h - logical shards: where each shard of a chain or of heads begins.
 *
 * The k values of a chain form atoms of `atom` values, the last of which may be shorter. Atom a of
 * n is in shard floor(a V / n) of V. So every rank of a world whose size divides V has complete
 * shards, and the sizes of a model need not be multiples of V. With fewer atoms than V some shards
 * are empty.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_MATH_SHARDS_H
#define INVAR_KERNELS_MATH_SHARDS_H

#include <stdbool.h>

#include "kernels-deterministic/math/portable.h"

/*
 * Returns the first value of shard v, or k if v == shards. `atom` is not read if there is one
 * shard.
 */
INVAR_FN int64_t invar_shard_start(int64_t k, int64_t atom, int32_t shards, int32_t v)
{
    int64_t atoms, first;

    if (v == 0 || v == shards)
        return v == 0 ? 0 : k;
    atoms = k / atom + (k % atom != 0);
    first = (v * atoms + shards - 1) / shards; // smallest a with a V >= v n
    return first < atoms ? first * atom : k;
}

/*
 * Returns whether each rank, which has shards / ranks consecutive shards, finds the boundaries of
 * its shards from the number of its own values alone.
 */
INVAR_FN bool invar_shards_divide_evenly(int64_t k, int64_t atom, int32_t shards, int32_t ranks)
{
    int32_t own = shards / ranks;

    for (int32_t v = 0; v < shards; v++) {
        int32_t first = v / own * own; // first shard of its rank
        int64_t begin = invar_shard_start(k, atom, shards, first);
        int64_t end = invar_shard_start(k, atom, shards, first + own);
        if (invar_shard_start(k, atom, shards, v) - begin !=
            invar_shard_start(end - begin, atom, own, v - first))
            return false;
    }
    return true;
}

/*
 * Returns whether no kv head has query heads in several shards; a sum over its group is one chain
 * then, as with one shard. `group` is the number of query heads per kv head.
 */
INVAR_FN bool invar_shard_whole_groups(int64_t heads, int64_t group, int64_t atom, int32_t shards)
{
    for (int32_t v = 1; v < shards; v++)
        if (invar_shard_start(heads, atom, shards, v) % group != 0)
            return false;
    return true;
}

#endif
