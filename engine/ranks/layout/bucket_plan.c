/*
 * bucket_plan.c - computes the transfers of a bucketed scatter, gather or collect.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/bucket_plan.h"

#include "base/alloc.h"
#include "base/hash.h"

#include "base/invar_banned.h"

invar_status invar_bucket_plan_init(invar_bucket_plan *out, const size_t *bytes, size_t bucket,
                                    int size, int rank)
{
    size_t leaves = bucket / (size_t)size / INVAR_TREE_LEAF_BYTES;
    size_t piece = (leaves ? leaves : 1) * INVAR_TREE_LEAF_BYTES;

    *out = (invar_bucket_plan){.bucket_bytes = piece, .size = size, .rank = rank};
    INVAR_TRY(invar_alloc((void **)&out->owned_bytes, 3 * (size_t)size, sizeof *out->owned_bytes,
                          "the bytes of a move"));
    out->send_bytes = out->owned_bytes + size;
    out->recv_bytes = out->send_bytes + size;
    for (int r = 0; r < size; r++) {
        out->owned_bytes[r] = bytes[r];
        out->longest = bytes[r] > out->longest ? bytes[r] : out->longest;
    }
    out->pieces = (int64_t)((out->longest + piece - 1) / piece);
    return INVAR_OK;
}

void invar_bucket_plan_release(invar_bucket_plan *exchange)
{
    invar_free(exchange->owned_bytes);
    *exchange = (invar_bucket_plan){0};
}

size_t invar_bucket_plan_room(const invar_bucket_plan *exchange)
{
    size_t piece =
        exchange->longest < exchange->bucket_bytes ? exchange->longest : exchange->bucket_bytes;

    return (size_t)exchange->size * piece;
}

invar_byte_range invar_bucket_plan_piece(const invar_bucket_plan *exchange, int rank, int64_t piece)
{
    size_t all = exchange->owned_bytes[rank], before = (size_t)piece * exchange->bucket_bytes;
    size_t first = before < all ? before : all, left = all - first;

    return (invar_byte_range){first, left < exchange->bucket_bytes ? left : exchange->bucket_bytes};
}

static void make_all_to_all(invar_comm_transfer *out, const invar_bucket_plan *exchange)
{
    *out = (invar_comm_transfer){.op = INVAR_COMM_ALLTOALLV,
                                 .in_bytes = exchange->send_bytes,
                                 .out_bytes = exchange->recv_bytes};
}

void invar_bucket_plan_scatter(invar_comm_transfer *out, invar_bucket_plan *exchange, int64_t piece,
                               int givers)
{
    size_t own = invar_bucket_plan_piece(exchange, exchange->rank, piece).bytes;

    for (int r = 0; r < exchange->size; r++) {
        exchange->send_bytes[r] =
            exchange->rank < givers ? invar_bucket_plan_piece(exchange, r, piece).bytes : 0;
        exchange->recv_bytes[r] = r < givers ? own : 0;
    }
    make_all_to_all(out, exchange);
}

void invar_bucket_plan_gather(invar_comm_transfer *out, invar_bucket_plan *exchange, int64_t piece)
{
    for (int r = 0; r < exchange->size; r++)
        exchange->recv_bytes[r] = invar_bucket_plan_piece(exchange, r, piece).bytes;
    *out = (invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV, .out_bytes = exchange->recv_bytes};
}

void invar_bucket_plan_collect(invar_comm_transfer *out, invar_bucket_plan *exchange, int64_t piece)
{
    for (int r = 0; r < exchange->size; r++) {
        exchange->send_bytes[r] =
            r == 0 ? invar_bucket_plan_piece(exchange, exchange->rank, piece).bytes : 0;
        exchange->recv_bytes[r] =
            exchange->rank == 0 ? invar_bucket_plan_piece(exchange, r, piece).bytes : 0;
    }
    make_all_to_all(out, exchange);
}
