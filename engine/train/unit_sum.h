/*
 * unit_sum.h - the sum over units of gradients that several ranks compute.
 *
 * G = +0, then G = G + g_u for units ascending (docs/arithmetic.md, section 5), whoever computed
 * g_u: in a round the ranks 0, 1, ... hold the gradients of as many neighbouring units, each in a
 * block of its own. Every rank has the sum of its slice of the block (zero_comm.h) and adds what
 * the givers send it in the order of ranks, which is that of units. Nobody else has that sum.
 *
 * Memory: the slice, and twice a bucket of the host's; a far device has room for a piece, too. If
 * bytes go straight from device to device, it is the slice alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_UNIT_SUM_H
#define INVAR_ENGINE_TRAIN_UNIT_SUM_H

#include "engine/model/shard/zero_comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_unit_sum invar_unit_sum;

/*
 * Of what is `owned` of blocks, which is taken from the caller; of no unit, so +0. The layout is
 * borrowed; the calls are those of all ranks of its data axis.
 */
invar_status invar_unit_sum_new(invar_unit_sum **out, const invar_device *dev,
                                const invar_layout *layout,
                                invar_zero_ranges *owned) INVAR_MUST_USE;
void invar_unit_sum_free(invar_unit_sum *sum);

/* A round: the ranks below `givers` have a unit's gradients in `block`; others' are not read. */
invar_status invar_unit_sum_add(invar_unit_sum *sum, const void *block, int givers) INVAR_MUST_USE;

/* The slice of the block becomes the sum; the rest is what the last unit has left there. */
invar_status invar_unit_sum_end(invar_unit_sum *sum, void *block) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
