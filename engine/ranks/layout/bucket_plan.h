/*
 * bucket_plan.h - plan of the bucketed scatter and gather of one block over ranks.
 *
 * Each rank owns a slice of a block. In a scatter each sender has a complete block and sends every
 * rank its slice; an owner receives one slice per sender, in rank order, and adds them itself. In a
 * gather every rank sends its slice to all ranks, in a collect to rank 0. Slices are sent bucket by
 * bucket (Megatron: param_and_grad_buffer), which bounds the size of the buffers.
 *
 * This is only the plan: transfers as plain data, used by the code that runs them and by the code
 * that estimates their volume.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_LAYOUT_BUCKET_PLAN_H
#define INVAR_ENGINE_RANKS_LAYOUT_BUCKET_PLAN_H

#include "engine/ranks/layout/layout.h"

/*
 * Plan for one block. A piece is the part of a slice that is sent at a time; bucket number b is
 * piece b of every slice.
 */
typedef struct invar_bucket_plan {
    size_t *owned_bytes; /* (size) bytes of the slice of each rank; owned */
    size_t longest;      /* bytes of the longest slice */
    size_t bucket_bytes; /* largest number of bytes of a piece */
    int size, rank;
    int64_t n_buckets; /* number of pieces of the longest slice */
    /* (size) sizes of the transfer that was made last; in the allocation of owned_bytes */
    size_t *send_bytes, *recv_bytes;
} invar_bucket_plan;

/*
 * Plans the exchange of slices of bytes[r] bytes (size). Pieces are multiples of a leaf
 * (INVAR_TREE_LEAF_BYTES); the `size` pieces that a rank sends at a time fit in `bucket` bytes if
 * it has room for one leaf per rank. Release with invar_bucket_plan_release.
 */
invar_status invar_bucket_plan_init(invar_bucket_plan *out, const size_t *bytes, size_t bucket,
                                    int size, int rank) INVAR_MUST_USE;
void invar_bucket_plan_release(invar_bucket_plan *plan);

/* Returns the largest number of bytes that a rank sends or receives at a time: `size` pieces. */
size_t invar_bucket_plan_max_bytes(const invar_bucket_plan *plan);

/*
 * Returns the bytes of piece number `bucket` within the slice of `rank`; empty if it is past the
 * end.
 */
invar_byte_range invar_bucket_plan_bucket_range(const invar_bucket_plan *plan, int rank,
                                                int64_t bucket);

/*
 * Make the transfer of one piece per rank: a scatter from the ranks 0 to givers - 1, a gather, or a
 * collect. The arrays of *out belong to the plan and change with the next call. The caller sets the
 * phase, the timeout, `in` and `out`.
 */
void invar_bucket_plan_scatter(invar_comm_transfer *out, invar_bucket_plan *plan, int64_t bucket,
                               int givers);
void invar_bucket_plan_gather(invar_comm_transfer *out, invar_bucket_plan *plan, int64_t bucket);
void invar_bucket_plan_collect(invar_comm_transfer *out, invar_bucket_plan *plan, int64_t bucket);

#endif
