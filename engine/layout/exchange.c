/*
 * exchange.c - how blocks become slices and slices a block.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/layout/exchange.h"

#include "base/alloc.h"
#include "base/hash.h"

#include "base/invar_banned.h"

invar_status invar_bucket_plan_init(invar_bucket_plan *out, const size_t *bytes, size_t bucket,
                                    int size, int rank)
{
    size_t leaves = bucket / (size_t)size / INVAR_TREE_LEAF_BYTES;
    size_t piece = (leaves ? leaves : 1) * INVAR_TREE_LEAF_BYTES;

    *out = (invar_bucket_plan){.piece = piece, .size = size, .rank = rank};
    INVAR_TRY(invar_alloc((void **)&out->slice, 3 * (size_t)size, sizeof *out->slice,
                          "the bytes of a move"));
    out->give = out->slice + size;
    out->get = out->give + size;
    for (int r = 0; r < size; r++) {
        out->slice[r] = bytes[r];
        out->longest = bytes[r] > out->longest ? bytes[r] : out->longest;
    }
    out->pieces = (int64_t)((out->longest + piece - 1) / piece);
    return INVAR_OK;
}

void invar_bucket_plan_release(invar_bucket_plan *exchange)
{
    invar_free(exchange->slice);
    *exchange = (invar_bucket_plan){0};
}

size_t invar_bucket_plan_room(const invar_bucket_plan *exchange)
{
    size_t piece = exchange->longest < exchange->piece ? exchange->longest : exchange->piece;

    return (size_t)exchange->size * piece;
}

invar_byte_range invar_bucket_plan_piece(const invar_bucket_plan *exchange, int rank, int64_t piece)
{
    size_t all = exchange->slice[rank], before = (size_t)piece * exchange->piece;
    size_t first = before < all ? before : all, left = all - first;

    return (invar_byte_range){first, left < exchange->piece ? left : exchange->piece};
}

static void from_each_to_each(invar_comm_transfer *out, const invar_bucket_plan *exchange)
{
    *out = (invar_comm_transfer){
        .op = INVAR_COMM_ALLTOALLV, .in_bytes = exchange->give, .out_bytes = exchange->get};
}

void invar_bucket_plan_scatter(invar_comm_transfer *out, invar_bucket_plan *exchange, int64_t piece,
                               int givers)
{
    size_t own = invar_bucket_plan_piece(exchange, exchange->rank, piece).bytes;

    for (int r = 0; r < exchange->size; r++) {
        exchange->give[r] =
            exchange->rank < givers ? invar_bucket_plan_piece(exchange, r, piece).bytes : 0;
        exchange->get[r] = r < givers ? own : 0;
    }
    from_each_to_each(out, exchange);
}

void invar_bucket_plan_gather(invar_comm_transfer *out, invar_bucket_plan *exchange, int64_t piece)
{
    for (int r = 0; r < exchange->size; r++)
        exchange->get[r] = invar_bucket_plan_piece(exchange, r, piece).bytes;
    *out = (invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV, .out_bytes = exchange->get};
}

void invar_bucket_plan_collect(invar_comm_transfer *out, invar_bucket_plan *exchange, int64_t piece)
{
    for (int r = 0; r < exchange->size; r++) {
        exchange->give[r] =
            r == 0 ? invar_bucket_plan_piece(exchange, exchange->rank, piece).bytes : 0;
        exchange->get[r] =
            exchange->rank == 0 ? invar_bucket_plan_piece(exchange, r, piece).bytes : 0;
    }
    from_each_to_each(out, exchange);
}
