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
    INVAR_TRY(INVAR_ALLOC(out->owned_bytes, 3 * (size_t)size, "the bytes of a move"));
    out->send_bytes = out->owned_bytes + size;
    out->recv_bytes = out->send_bytes + size;
    for (int r = 0; r < size; r++) {
        out->owned_bytes[r] = bytes[r];
        out->longest = bytes[r] > out->longest ? bytes[r] : out->longest;
    }
    out->n_buckets = (int64_t)((out->longest + piece - 1) / piece);
    return INVAR_OK;
}

void invar_bucket_plan_release(invar_bucket_plan *plan)
{
    invar_free(plan->owned_bytes);
    *plan = (invar_bucket_plan){0};
}

size_t invar_bucket_plan_max_bytes(const invar_bucket_plan *plan)
{
    size_t piece = plan->longest < plan->bucket_bytes ? plan->longest : plan->bucket_bytes;

    return (size_t)plan->size * piece;
}

invar_byte_range invar_bucket_plan_bucket_range(const invar_bucket_plan *plan, int rank,
                                                int64_t bucket)
{
    size_t all = plan->owned_bytes[rank], before = (size_t)bucket * plan->bucket_bytes;
    size_t first = before < all ? before : all, left = all - first;

    return (invar_byte_range){first, left < plan->bucket_bytes ? left : plan->bucket_bytes};
}

static void make_all_to_all(invar_comm_transfer *out, const invar_bucket_plan *exchange)
{
    *out = (invar_comm_transfer){.op = INVAR_COMM_ALLTOALLV,
                                 .in_bytes = exchange->send_bytes,
                                 .out_bytes = exchange->recv_bytes};
}

void invar_bucket_plan_scatter(invar_comm_transfer *out, invar_bucket_plan *plan, int64_t bucket,
                               int givers)
{
    size_t own = invar_bucket_plan_bucket_range(plan, plan->rank, bucket).bytes;

    for (int r = 0; r < plan->size; r++) {
        plan->send_bytes[r] =
            plan->rank < givers ? invar_bucket_plan_bucket_range(plan, r, bucket).bytes : 0;
        plan->recv_bytes[r] = r < givers ? own : 0;
    }
    make_all_to_all(out, plan);
}

void invar_bucket_plan_gather(invar_comm_transfer *out, invar_bucket_plan *plan, int64_t bucket)
{
    for (int r = 0; r < plan->size; r++)
        plan->recv_bytes[r] = invar_bucket_plan_bucket_range(plan, r, bucket).bytes;
    *out = (invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV, .out_bytes = plan->recv_bytes};
}

void invar_bucket_plan_collect(invar_comm_transfer *out, invar_bucket_plan *plan, int64_t bucket)
{
    for (int r = 0; r < plan->size; r++) {
        plan->send_bytes[r] =
            r == 0 ? invar_bucket_plan_bucket_range(plan, plan->rank, bucket).bytes : 0;
        plan->recv_bytes[r] =
            plan->rank == 0 ? invar_bucket_plan_bucket_range(plan, r, bucket).bytes : 0;
    }
    make_all_to_all(out, plan);
}
