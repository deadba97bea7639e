/*
 * rank_collectives.c - broadcast, gather, minimum and digest comparison over all ranks.
 *
 * Every collective is one or two transfers of invar_comm. Numbers are gathered by all ranks and
 * combined locally in rank order, so all ranks get the same result. Without a layout each function
 * returns the value of the only rank.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/rank_collectives.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

bool invar_ranks_is_leader(const invar_layout *layout)
{
    return !layout || invar_comm_rank(layout->world) == 0;
}

int invar_ranks_size(const invar_layout *layout)
{
    return layout ? invar_comm_size(layout->world) : 1;
}

/* Number of ranks on this rank's host among the first `count` ranks of the world. */
static int count_on_host(const invar_layout *layout, int count)
{
    const char *own = invar_comm_host(layout->world, invar_comm_rank(layout->world));
    int here = 0;

    for (int r = 0; r < count; r++)
        here += strcmp(invar_comm_host(layout->world, r), own) == 0;
    return here;
}

int invar_ranks_local_size(const invar_layout *layout)
{
    return layout ? count_on_host(layout, invar_comm_size(layout->world)) : 1;
}

int invar_ranks_local_rank(const invar_layout *layout)
{
    return layout ? count_on_host(layout, invar_comm_rank(layout->world)) : 0;
}

invar_status invar_ranks_broadcast(const invar_layout *layout, const char *phase, int from,
                                   void *data, size_t bytes)
{
    if (!layout)
        return INVAR_OK;
    return invar_comm_run(layout->world, &(invar_comm_transfer){.op = INVAR_COMM_BROADCAST,
                                                                .phase = phase,
                                                                .timeout_s = layout->timeout_s,
                                                                .in = data,
                                                                .out = data,
                                                                .src_rank = from,
                                                                .from_bytes = bytes});
}

invar_status invar_ranks_all_gather(const invar_layout *layout, const char *phase, const void *own,
                                    size_t bytes, void *out)
{
    INVAR_AUTO_FREE size_t *each = NULL;
    invar_comm_transfer transfer = {
        .op = INVAR_COMM_ALLGATHERV, .phase = phase, .in = own, .out = out};
    int size = invar_ranks_size(layout);

    if (!layout) {
        memcpy(out, own, bytes);
        return INVAR_OK;
    }
    INVAR_TRY(INVAR_ALLOC(each, (size_t)size, "what ranks gather"));
    for (int r = 0; r < size; r++)
        each[r] = bytes;
    transfer.timeout_s = layout->timeout_s;
    transfer.out_bytes = each;
    return invar_comm_run(layout->world, &transfer);
}

/* Allocates the buffers of a gather: rank 0 gets the sizes of all ranks, other ranks get zeros. */
static invar_status prepare_gather(invar_rank_gathered *out, const invar_layout *layout,
                                   const char *phase, size_t bytes)
{
    size_t size = (size_t)invar_ranks_size(layout), all = 0;

    INVAR_TRY(INVAR_ALLOC(out->bytes, size, "what ranks collect"));
    INVAR_TRY(invar_ranks_all_gather(layout, phase, &bytes, sizeof bytes, out->bytes));
    for (size_t r = 0; r < size; r++) {
        if (!invar_ranks_is_leader(layout))
            out->bytes[r] = 0;
        if (out->bytes[r] > SIZE_MAX / 2 - all)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "the %zu bytes of rank %zu are too many: check its host",
                              out->bytes[r], r);
        all += out->bytes[r];
    }
    return INVAR_ALLOC(out->data, all + 1, "what ranks collect");
}

invar_status invar_ranks_gather(invar_rank_gathered *out, const invar_layout *layout,
                                const char *phase, const void *own, size_t bytes)
{
    INVAR_AUTO_FREE size_t *give = NULL;
    invar_comm_transfer transfer = {.op = INVAR_COMM_ALLTOALLV, .phase = phase, .in = own};

    *out = (invar_rank_gathered){0};
    INVAR_TRY(prepare_gather(out, layout, phase, bytes));
    if (!layout) {
        if (bytes)
            memcpy(out->data, own, bytes);
        return INVAR_OK;
    }
    INVAR_TRY(INVAR_ALLOC_ZEROED(give, (size_t)invar_ranks_size(layout), "what ranks collect"));
    give[0] = bytes;
    transfer.timeout_s = layout->timeout_s;
    transfer.out = out->data;
    transfer.in_bytes = give;
    transfer.out_bytes = out->bytes;
    return invar_comm_run(layout->world, &transfer);
}

void invar_rank_gathered_release(invar_rank_gathered *gathered)
{
    invar_free(gathered->data);
    invar_free(gathered->bytes);
    *gathered = (invar_rank_gathered){0};
}

/* Combines the numbers of all ranks, in rank order, with `fold`. */
static invar_status fold_numbers(int64_t *out, const invar_layout *layout, const char *phase,
                                 int64_t own, int64_t (*fold)(int64_t a, int64_t b))
{
    INVAR_AUTO_FREE int64_t *all = NULL;

    *out = own;
    if (!layout)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(all, (size_t)invar_ranks_size(layout), "a number of each rank"));
    INVAR_TRY(invar_ranks_all_gather(layout, phase, &own, sizeof own, all));
    for (int r = 0; r < invar_ranks_size(layout); r++)
        *out = r == 0 ? all[0] : fold(*out, all[r]);
    return INVAR_OK;
}

static int64_t first_nonzero_of(int64_t a, int64_t b)
{
    return a ? a : b;
}

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

invar_status invar_ranks_first_nonzero(int64_t *out, const invar_layout *layout, const char *phase,
                                       int64_t own)
{
    return fold_numbers(out, layout, phase, own, first_nonzero_of);
}

invar_status invar_ranks_min(int64_t *out, const invar_layout *layout, const char *phase,
                             int64_t own)
{
    return fold_numbers(out, layout, phase, own, min_of);
}

/* Number of ranks that hold the same digest as rank `which`. */
static int count_equal(const invar_digest *all, int size, int which)
{
    int count = 0;

    for (int r = 0; r < size; r++)
        count += invar_digest_equal(&all[r], &all[which]);
    return count;
}

invar_rank_outlier invar_ranks_find_outlier(const invar_digest *all, int size)
{
    invar_rank_outlier found = {.differing_rank = -1};
    int most = count_equal(all, size, 0);

    for (int r = 1; r < size && most <= size / 2; r++) {
        int count = count_equal(all, size, r);
        if (count > most) {
            most = count;
            found.majority_rank = r;
        }
    }
    for (int r = 0; r < size && found.differing_rank < 0; r++)
        if (!invar_digest_equal(&all[r], &all[found.majority_rank]))
            found.differing_rank = r;
    return found;
}

invar_status invar_ranks_compare_digests(invar_rank_outlier *out, const invar_layout *layout,
                                         const char *phase, const invar_digest *own)
{
    INVAR_AUTO_FREE invar_digest *all = NULL;
    int size = invar_ranks_size(layout);

    *out = (invar_rank_outlier){.differing_rank = -1, .n_same = 1};
    if (!layout)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(all, (size_t)size, "a digest of each rank"));
    INVAR_TRY(invar_ranks_all_gather(layout, phase, own, sizeof *own, all));
    *out = invar_ranks_find_outlier(all, size);
    out->n_same = count_equal(all, size, invar_comm_rank(layout->world));
    return INVAR_OK;
}
