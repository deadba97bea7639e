/*
 * exchange.h - random transfers between ranks in which every byte is known in advance.
 *
 * exchange_run executes every op with random sizes, first one at a time, then several in flight,
 * then the same in groups and in groups of these. Each byte is a function of the seed, the number
 * of the transfer, its sender and its receiver, so that a rank checks the bytes that it received
 * without further messages. The digest covers all bytes that all ranks received and does not
 * depend on the transport or its schedule.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_RANKS_COMM_EXCHANGE_H
#define INVAR_TESTS_UNIT_ENGINE_RANKS_COMM_EXCHANGE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ranks.h"

#define SECONDS 60 /* timeout of calls that must not time out */
#define ALL 1000   /* receiver of data that a rank sends to all ranks */

typedef struct exchange {
    invar_comm *comm;
    uint64_t seed;
    int rank, size;
    int world_ranks[MAX_RANKS]; /* (size) world rank of each rank of the group */
    uint64_t n_transfers;       /* number of transfers planned so far */
    uint64_t digest;
    invar_comm_stats counts[INVAR_COMM_OPS]; /* counts that the group must report */
} exchange;

static inline uint64_t mix_keys(uint64_t a, uint64_t b)
{
    uint64_t z = (a + 0x9E3779B97F4A7C15u) ^ (b * 0xBF58476D1CE4E5B9u);

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline uint64_t key_of(const exchange *x, uint64_t transfer, int sender, int receiver)
{
    return mix_keys(mix_keys(x->seed, transfer), (uint64_t)(sender * 4096 + receiver));
}

/* Returns the size of a message: 0 for a quarter of all, mostly below 100, else up to 25 KB. */
static inline size_t length_of(const exchange *x, uint64_t transfer, int sender, int receiver)
{
    uint64_t key = mix_keys(key_of(x, transfer, sender, receiver), 1);

    switch (key % 8) {
    case 0:
    case 1: return 0;
    case 2: return 5000 + (key >> 8) % 20000;
    default: return (key >> 8) % 100;
    }
}

static inline void write_pattern(char *at, size_t bytes, uint64_t key)
{
    for (size_t i = 0; i < bytes; i++, key = key * 6364136223846793005u + 1442695040888963407u)
        at[i] = (char)(key >> 56);
}

static inline bool has_pattern(const char *at, size_t bytes, uint64_t key)
{
    for (size_t i = 0; i < bytes; i++, key = key * 6364136223846793005u + 1442695040888963407u)
        if (at[i] != (char)(key >> 56))
            return false;
    return true;
}

/* ---- one transfer ---------------------------------------------------------------------------- */

typedef struct planned_transfer {
    invar_comm_transfer transfer;
    uint64_t number;
    size_t in_bytes[MAX_RANKS], out_bytes[MAX_RANKS];
    int receiver[MAX_RANKS]; /* receiver in the key of rank i's data: this rank or ALL */
    char *in, *out;
    size_t out_total;
    invar_comm_request *request;
} planned_transfer;

static inline void plan_pair(exchange *x, planned_transfer *l)
{
    uint64_t key = key_of(x, l->number, 0, ALL);
    int shift = (int)((key >> 8) % (uint64_t)x->size), me = x->world_ranks[x->rank];

    if (key % 4 == 0) { // a chain: the first rank receives nothing, the last sends nothing
        l->transfer.dst_rank = x->rank + 1 < x->size ? x->rank + 1 : INVAR_COMM_NONE;
        l->transfer.src_rank = x->rank - 1;
    } else {
        l->transfer.dst_rank = (x->rank + shift) % x->size;
        l->transfer.src_rank = (x->rank - shift + x->size) % x->size;
    }
    if (l->transfer.dst_rank >= 0)
        l->transfer.to_bytes = l->in_bytes[l->transfer.dst_rank] =
            length_of(x, l->number, me, x->world_ranks[l->transfer.dst_rank]);
    if (l->transfer.src_rank >= 0)
        l->transfer.from_bytes = l->out_bytes[l->transfer.src_rank] =
            length_of(x, l->number, x->world_ranks[l->transfer.src_rank], me);
}

static inline void plan_transfer(exchange *x, planned_transfer *l, invar_comm_op op)
{
    int me = x->world_ranks[x->rank];

    memset(l, 0, sizeof *l);
    l->number = x->n_transfers++;
    l->transfer = (invar_comm_transfer){.op = op, .phase = "test", .timeout_s = SECONDS};
    for (int r = 0; r < x->size; r++) {
        l->receiver[r] = op == INVAR_COMM_ALLGATHERV || op == INVAR_COMM_BROADCAST ? ALL : me;
        if (op == INVAR_COMM_ALLGATHERV) {
            l->in_bytes[r] = length_of(x, l->number, me, ALL);
            l->out_bytes[r] = length_of(x, l->number, x->world_ranks[r], ALL);
        } else if (op == INVAR_COMM_ALLTOALLV) {
            l->in_bytes[r] = length_of(x, l->number, me, x->world_ranks[r]);
            l->out_bytes[r] = length_of(x, l->number, x->world_ranks[r], me);
        }
    }
    if (op == INVAR_COMM_SENDRECV)
        plan_pair(x, l);
    if (op == INVAR_COMM_BROADCAST) {
        int root = (int)(key_of(x, l->number, 1, ALL) % (uint64_t)x->size);
        size_t bytes = length_of(x, l->number, x->world_ranks[root], ALL);

        l->transfer.src_rank = root;
        l->transfer.from_bytes = l->out_bytes[root] = bytes;
        for (int r = 0; r < x->size; r++)
            l->in_bytes[r] = root == x->rank ? bytes : 0;
    }
}

/* Allocates the memory, writes the data that this rank sends, and adds the expected counts. */
static inline void prepare_transfer(exchange *x, planned_transfer *l)
{
    invar_comm_op op = l->transfer.op;
    bool is_shared = op == INVAR_COMM_ALLGATHERV || op == INVAR_COMM_BROADCAST; // same data for all
    int me = x->world_ranks[x->rank];
    size_t in_total = 0, at = 0;

    for (int r = 0; r < x->size; r++) {
        in_total = is_shared ? l->in_bytes[r] : in_total + l->in_bytes[r];
        l->out_total += l->out_bytes[r];
        x->counts[op].sent += r == x->rank ? 0 : l->in_bytes[r];
        x->counts[op].received += r == x->rank ? 0 : l->out_bytes[r];
    }
    x->counts[op].calls++;
    l->in = malloc(in_total + 1);
    l->out = malloc(l->out_total + 1);
    memset(l->out, 0x5A, l->out_total + 1);
    if (is_shared)
        write_pattern(l->in, in_total, key_of(x, l->number, me, ALL));
    for (int r = 0; !is_shared && r < x->size; at += l->in_bytes[r++])
        write_pattern(l->in + at, l->in_bytes[r], key_of(x, l->number, me, x->world_ranks[r]));
    l->transfer.in = l->in;
    l->transfer.out = l->out;
    l->transfer.in_bytes = l->in_bytes;
    l->transfer.out_bytes = l->out_bytes;
}

/* Checks the received bytes after a transfer with `status`, adds them to the digest and frees. */
static inline invar_status check_transfer(exchange *x, planned_transfer *l, invar_status status)
{
    size_t at = 0;

    for (int r = 0; status == INVAR_OK && r < x->size; at += l->out_bytes[r++])
        if (!has_pattern(l->out + at, l->out_bytes[r],
                         key_of(x, l->number, x->world_ranks[r], l->receiver[r])))
            status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "move %d, %s: rank %d got wrong bytes from %d",
                                (int)l->number, invar_comm_op_name(l->transfer.op), x->rank, r);
    if (status == INVAR_OK && l->out[l->out_total] != 0x5A)
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "a byte behind the memory was written");
    for (size_t i = 0; status == INVAR_OK && i < l->out_total; i++)
        x->digest = (x->digest ^ (uint8_t)l->out[i]) * 1099511628211u;
    free(l->in);
    free(l->out);
    return status;
}

/* ---- many transfers -------------------------------------------------------------------------- */

static inline invar_comm_op random_op(const exchange *x, uint64_t transfer)
{
    return (invar_comm_op)(key_of(x, transfer, 2, ALL) % INVAR_COMM_SPLIT);
}

static inline invar_status run_one_by_one(exchange *x, int count)
{
    for (int i = 0; i < count; i++) {
        planned_transfer l;

        plan_transfer(x, &l,
                      i < INVAR_COMM_SPLIT ? (invar_comm_op)i : random_op(x, x->n_transfers));
        prepare_transfer(x, &l);
        INVAR_TRY(check_transfer(x, &l, invar_comm_run(x->comm, &l.transfer)));
    }
    return INVAR_OK;
}

/* Several transfers in flight; each rank waits for them in another order. */
static inline invar_status run_overlapping(exchange *x)
{
    enum { COUNT = 4 };
    planned_transfer planned[COUNT];
    invar_status status = INVAR_OK, first = INVAR_OK;
    int started = 0, from = (int)(key_of(x, x->n_transfers, x->world_ranks[x->rank], 3) % COUNT);

    for (; started < COUNT && first == INVAR_OK; started++) {
        plan_transfer(x, &planned[started], random_op(x, x->n_transfers));
        prepare_transfer(x, &planned[started]);
        first = invar_comm_start(&planned[started].request, x->comm, &planned[started].transfer);
    }
    for (int i = 0; i < started; i++) {
        planned_transfer *l = &planned[(i + from) % started];

        status = l->request ? invar_comm_wait(l->request) : first;
        first = first == INVAR_OK ? status : first;
    }
    for (int i = 0; i < started; i++) {
        status = check_transfer(x, &planned[i], first);
        first = first == INVAR_OK ? status : first;
    }
    return first;
}

static inline invar_status gather_world_ranks(exchange *x, int world_rank)
{
    size_t bytes[MAX_RANKS];
    invar_comm_transfer transfer = {
        .op = INVAR_COMM_ALLGATHERV,
        .phase = "names",
        .timeout_s = SECONDS,
        .in = &x->world_ranks[x->rank], // in place: already at its offset in `out`
        .out = x->world_ranks,
        .out_bytes = bytes};

    for (int r = 0; r < x->size; r++)
        bytes[r] = sizeof world_rank;
    x->world_ranks[x->rank] = world_rank;
    x->counts[INVAR_COMM_ALLGATHERV].calls++;
    x->counts[INVAR_COMM_ALLGATHERV].sent += (uint64_t)(x->size - 1) * sizeof world_rank;
    x->counts[INVAR_COMM_ALLGATHERV].received += (uint64_t)(x->size - 1) * sizeof world_rank;
    return invar_comm_run(x->comm, &transfer);
}

static inline invar_status check_counts(const exchange *x)
{
    for (int op = 0; op < INVAR_COMM_OPS; op++) {
        invar_comm_stats counted = invar_comm_get_stats(x->comm, (invar_comm_op)op);
        const invar_comm_stats *wanted = &x->counts[op];

        if (counted.calls != wanted->calls || counted.sent != wanted->sent ||
            counted.received != wanted->received || !(counted.wait_s >= 0))
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "%s of rank %d of %d: counted %d calls, %d and %d"
                              " bytes, not %d, %d, %d",
                              invar_comm_op_name((invar_comm_op)op), x->rank, x->size,
                              (int)counted.calls, (int)counted.sent, (int)counted.received,
                              (int)wanted->calls, (int)wanted->sent, (int)wanted->received);
    }
    return INVAR_OK;
}

/* Returns the group of a rank in a split; -1 for no group. */
static inline int64_t color_of(const exchange *x, int world_rank)
{
    return (int64_t)(key_of(x, 9999, world_rank, 0) % 4) - (x->seed % 3 == 0 ? 1 : 0);
}

/* Returns the sort key of a rank in a split; there are few keys, so that world ranks decide too. */
static inline int64_t order_of(const exchange *x, int world_rank)
{
    return 3 - (int64_t)(key_of(x, 9999, world_rank, 1) % 6);
}

static inline invar_status check_group(const exchange *x, const exchange *child)
{
    int expected[MAX_RANKS], count = 0;
    int64_t color = color_of(x, x->world_ranks[x->rank]);

    for (int64_t order = -3; order <= 3; order++)
        for (int r = 0; r < x->size; r++)
            if (color_of(x, x->world_ranks[r]) == color && order_of(x, x->world_ranks[r]) == order)
                expected[count++] = x->world_ranks[r];
    if (count != child->size ||
        memcmp(expected, child->world_ranks, (size_t)count * sizeof *expected))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "a split has other ranks, or another order");
    return INVAR_OK;
}

static inline invar_status exchange_all(uint64_t *digest, invar_comm *comm, int world_rank,
                                        uint64_t seed, int depth, const exchange *parent)
{
    exchange x = {.comm = comm,
                  .seed = seed,
                  .rank = invar_comm_rank(comm),
                  .size = invar_comm_size(comm),
                  .digest = *digest};
    invar_comm *child;
    invar_status status;

    INVAR_TRY(gather_world_ranks(&x, world_rank));
    if (parent)
        INVAR_TRY(check_group(parent, &x));
    INVAR_TRY(run_one_by_one(&x, 12));
    INVAR_TRY(run_overlapping(&x));
    for (uint64_t i = 0; depth > 0 && i < 2; i++) {
        x.seed = mix_keys(seed, i);
        INVAR_TRY(invar_comm_split(&child, comm, color_of(&x, world_rank), order_of(&x, world_rank),
                                   "split", SECONDS));
        x.counts[INVAR_COMM_SPLIT].calls++;
        x.counts[INVAR_COMM_SPLIT].sent += (uint64_t)(x.size - 1) * 24;
        x.counts[INVAR_COMM_SPLIT].received += (uint64_t)(x.size - 1) * 24;
        if (!child != (color_of(&x, world_rank) < 0))
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "a split has the wrong groups");
        if (child) {
            status = exchange_all(&x.digest, child, world_rank, x.seed + 1, depth - 1, &x);
            invar_comm_free(child);
            INVAR_TRY(status);
        }
    }
    INVAR_TRY(run_overlapping(&x));
    *digest = x.digest;
    return check_counts(&x);
}

/*
 * Broadcasts in two groups of the same ranks. Even and odd ranks start them in opposite order, and
 * no message may arrive in the other group.
 */
static inline invar_status exchange_in_two_groups(invar_comm *comm)
{
    static const char *const phases[] = {"first", "second"};
    invar_comm_request *requests[2] = {NULL, NULL};
    invar_comm *groups[2] = {NULL, NULL};
    uint64_t in[2] = {11, 22}, out[2] = {0, 0};
    int rank = invar_comm_rank(comm);
    invar_status status = INVAR_OK, waited;

    for (int g = 0; g < 2 && status == INVAR_OK; g++)
        status = invar_comm_split(&groups[g], comm, 0, 0, phases[g], SECONDS);
    for (int i = 0; i < 2 && status == INVAR_OK; i++) {
        int g = (i + rank) % 2;
        invar_comm_transfer transfer = {.op = INVAR_COMM_BROADCAST,
                                        .phase = "apart",
                                        .timeout_s = SECONDS,
                                        .in = &in[g],
                                        .out = &out[g],
                                        .from_bytes = sizeof in[g]};

        status = invar_comm_start(&requests[g], groups[g], &transfer);
    }
    for (int g = 0; g < 2; g++) {
        waited = requests[g] ? invar_comm_wait(requests[g]) : INVAR_OK;
        status = status == INVAR_OK ? waited : status;
        invar_comm_free(groups[g]);
    }
    if (status == INVAR_OK && (out[0] != in[0] || out[1] != in[1]))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "rank %d got bytes of another group", rank);
    return status;
}

/* Runs all of the above. Collective. Every rank gets the same digest, over the bytes of all. */
static inline invar_status exchange_run(uint64_t *out, invar_comm *comm, uint64_t seed)
{
    uint64_t digests[MAX_RANKS] = {0}, digest = 1469598103934665603u;
    size_t bytes[MAX_RANKS];
    int rank = invar_comm_rank(comm), size = invar_comm_size(comm);
    invar_comm_transfer transfer = {.op = INVAR_COMM_ALLGATHERV,
                                    .phase = "digests",
                                    .timeout_s = SECONDS,
                                    .in = &digests[rank],
                                    .out = digests,
                                    .out_bytes = bytes};

    INVAR_TRY(exchange_all(&digest, comm, rank, seed, 2, NULL));
    INVAR_TRY(exchange_in_two_groups(comm));
    digests[rank] = digest;
    for (int r = 0; r < size; r++)
        bytes[r] = sizeof digest;
    INVAR_TRY(invar_comm_run(comm, &transfer));
    *out = 0;
    for (int r = 0; r < size; r++)
        *out = mix_keys(*out, digests[r]);
    return INVAR_OK;
}

/* ---- ranks that are threads ------------------------------------------------------------------ */

static inline invar_status run_exchange(rank_run *run)
{
    return exchange_run(&run->digest, run->comm, run->seed);
}

/* Returns the digest of an exchange between ranks that are threads. */
static inline uint64_t exchange_threads(int size, uint64_t schedule, uint64_t seed)
{
    rank_run runs[MAX_RANKS];

    run_ranks(runs, size, schedule, seed, run_exchange, NULL);
    for (int r = 0; r < size; r++) {
        if (runs[r].status != INVAR_OK)
            fail_msg("rank %d of %d: %s", r, size, runs[r].error.message);
        assert_true(runs[r].digest == runs[0].digest);
    }
    return runs[0].digest;
}

#endif
