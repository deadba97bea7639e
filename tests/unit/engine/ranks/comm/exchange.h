/*
 * exchange.h - one rank's part of a random exchange in which every byte is known beforehand.
 *
 * Every op with random sizes, one at a time and several under way, then in groups of groups. Each
 * byte is a function of who gives it to whom in which move, so that a rank can check what it got
 * without asking anybody. The digest is over all bytes that all ranks got: the same whatever the
 * transport and its schedule.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_RANKS_COMM_EXCHANGE_H
#define INVAR_TESTS_UNIT_ENGINE_RANKS_COMM_EXCHANGE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ranks.h"

#define SECONDS 60 /* deadline of a call that must not meet it */
#define ALL 1000   /* instead of a rank: a piece that is for all */

typedef struct exchange {
    invar_comm *comm;
    uint64_t seed;
    int rank, size;
    int names[MAX_RANKS]; /* of its ranks: their ranks in the world */
    uint64_t moves;       /* so far */
    uint64_t digest;
    invar_comm_stats counts[INVAR_COMM_OPS]; /* that the group must have */
} exchange;

static inline uint64_t mixed(uint64_t a, uint64_t b)
{
    uint64_t z = (a + 0x9E3779B97F4A7C15u) ^ (b * 0xBF58476D1CE4E5B9u);

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline uint64_t key_of(const exchange *x, uint64_t move, int giver, int getter)
{
    return mixed(mixed(x->seed, move), (uint64_t)(giver * 4096 + getter));
}

/* Often none, mostly few, sometimes many bytes. */
static inline size_t length_of(const exchange *x, uint64_t move, int giver, int getter)
{
    uint64_t key = mixed(key_of(x, move, giver, getter), 1);

    switch (key % 8) {
    case 0:
    case 1: return 0;
    case 2: return 5000 + (key >> 8) % 20000;
    default: return (key >> 8) % 100;
    }
}

static inline void write_piece(char *at, size_t bytes, uint64_t key)
{
    for (size_t i = 0; i < bytes; i++, key = key * 6364136223846793005u + 1442695040888963407u)
        at[i] = (char)(key >> 56);
}

static inline bool is_piece(const char *at, size_t bytes, uint64_t key)
{
    for (size_t i = 0; i < bytes; i++, key = key * 6364136223846793005u + 1442695040888963407u)
        if (at[i] != (char)(key >> 56))
            return false;
    return true;
}

/* ---- one move -------------------------------------------------------------------------------- */

typedef struct leg {
    invar_comm_transfer move;
    uint64_t number;
    size_t in_bytes[MAX_RANKS], out_bytes[MAX_RANKS];
    int getter[MAX_RANKS]; /* the name under which rank i gave the piece that this rank gets */
    char *in, *out;
    size_t out_total;
    invar_comm_request *ticket;
} leg;

static inline void plan_pair(exchange *x, leg *l)
{
    uint64_t key = key_of(x, l->number, 0, ALL);
    int shift = (int)((key >> 8) % (uint64_t)x->size), me = x->names[x->rank];

    if (key % 4 == 0) { // a chain: the first gets nothing, the last gives nothing
        l->move.dst_rank = x->rank + 1 < x->size ? x->rank + 1 : INVAR_COMM_NONE;
        l->move.src_rank = x->rank - 1;
    } else {
        l->move.dst_rank = (x->rank + shift) % x->size;
        l->move.src_rank = (x->rank - shift + x->size) % x->size;
    }
    if (l->move.dst_rank >= 0)
        l->move.to_bytes = l->in_bytes[l->move.dst_rank] =
            length_of(x, l->number, me, x->names[l->move.dst_rank]);
    if (l->move.src_rank >= 0)
        l->move.from_bytes = l->out_bytes[l->move.src_rank] =
            length_of(x, l->number, x->names[l->move.src_rank], me);
}

static inline void plan_leg(exchange *x, leg *l, invar_comm_op op)
{
    int me = x->names[x->rank];

    memset(l, 0, sizeof *l);
    l->number = x->moves++;
    l->move = (invar_comm_transfer){.op = op, .phase = "test", .timeout_s = SECONDS};
    for (int r = 0; r < x->size; r++) {
        l->getter[r] = op == INVAR_COMM_ALLGATHERV || op == INVAR_COMM_BROADCAST ? ALL : me;
        if (op == INVAR_COMM_ALLGATHERV) {
            l->in_bytes[r] = length_of(x, l->number, me, ALL);
            l->out_bytes[r] = length_of(x, l->number, x->names[r], ALL);
        } else if (op == INVAR_COMM_ALLTOALLV) {
            l->in_bytes[r] = length_of(x, l->number, me, x->names[r]);
            l->out_bytes[r] = length_of(x, l->number, x->names[r], me);
        }
    }
    if (op == INVAR_COMM_SENDRECV)
        plan_pair(x, l);
    if (op == INVAR_COMM_BROADCAST) {
        int root = (int)(key_of(x, l->number, 1, ALL) % (uint64_t)x->size);
        size_t bytes = length_of(x, l->number, x->names[root], ALL);

        l->move.src_rank = root;
        l->move.from_bytes = l->out_bytes[root] = bytes;
        for (int r = 0; r < x->size; r++)
            l->in_bytes[r] = root == x->rank ? bytes : 0;
    }
}

/* Memory with what this rank gives, and what the group must count. */
static inline void fill_leg(exchange *x, leg *l)
{
    invar_comm_op op = l->move.op;
    bool one = op == INVAR_COMM_ALLGATHERV || op == INVAR_COMM_BROADCAST; // piece for all
    int me = x->names[x->rank];
    size_t in_total = 0, at = 0;

    for (int r = 0; r < x->size; r++) {
        in_total = one ? l->in_bytes[r] : in_total + l->in_bytes[r];
        l->out_total += l->out_bytes[r];
        x->counts[op].sent += r == x->rank ? 0 : l->in_bytes[r];
        x->counts[op].received += r == x->rank ? 0 : l->out_bytes[r];
    }
    x->counts[op].calls++;
    l->in = malloc(in_total + 1);
    l->out = malloc(l->out_total + 1);
    memset(l->out, 0x5A, l->out_total + 1);
    if (one)
        write_piece(l->in, in_total, key_of(x, l->number, me, ALL));
    for (int r = 0; !one && r < x->size; at += l->in_bytes[r++])
        write_piece(l->in + at, l->in_bytes[r], key_of(x, l->number, me, x->names[r]));
    l->move.in = l->in;
    l->move.out = l->out;
    l->move.in_bytes = l->in_bytes;
    l->move.out_bytes = l->out_bytes;
}

/* Frees the memory. */
static inline invar_status check_leg(exchange *x, leg *l, invar_status status)
{
    size_t at = 0;

    for (int r = 0; status == INVAR_OK && r < x->size; at += l->out_bytes[r++])
        if (!is_piece(l->out + at, l->out_bytes[r],
                      key_of(x, l->number, x->names[r], l->getter[r])))
            status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "move %d, %s: rank %d got wrong bytes from %d",
                                (int)l->number, invar_comm_op_name(l->move.op), x->rank, r);
    if (status == INVAR_OK && l->out[l->out_total] != 0x5A)
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "a byte behind the memory was written");
    for (size_t i = 0; status == INVAR_OK && i < l->out_total; i++)
        x->digest = (x->digest ^ (uint8_t)l->out[i]) * 1099511628211u;
    free(l->in);
    free(l->out);
    return status;
}

/* ---- many ------------------------------------------------------------------------------------ */

static inline invar_comm_op random_op(const exchange *x, uint64_t move)
{
    return (invar_comm_op)(key_of(x, move, 2, ALL) % INVAR_COMM_SPLIT);
}

static inline invar_status one_by_one(exchange *x, int count)
{
    for (int i = 0; i < count; i++) {
        leg l;

        plan_leg(x, &l, i < INVAR_COMM_SPLIT ? (invar_comm_op)i : random_op(x, x->moves));
        fill_leg(x, &l);
        INVAR_TRY(check_leg(x, &l, invar_comm_run(x->comm, &l.move)));
    }
    return INVAR_OK;
}

/* Several under way; waited for in an order of this rank's own. */
static inline invar_status together(exchange *x)
{
    enum { COUNT = 4 };
    leg legs[COUNT];
    invar_status status = INVAR_OK, first = INVAR_OK;
    int started = 0, from = (int)(key_of(x, x->moves, x->names[x->rank], 3) % COUNT);

    for (; started < COUNT && first == INVAR_OK; started++) {
        plan_leg(x, &legs[started], random_op(x, x->moves));
        fill_leg(x, &legs[started]);
        first = invar_comm_start(&legs[started].ticket, x->comm, &legs[started].move);
    }
    for (int i = 0; i < started; i++) {
        leg *l = &legs[(i + from) % started];

        status = l->ticket ? invar_comm_wait(l->ticket) : first;
        first = first == INVAR_OK ? status : first;
    }
    for (int i = 0; i < started; i++) {
        status = check_leg(x, &legs[i], first);
        first = first == INVAR_OK ? status : first;
    }
    return first;
}

static inline invar_status learn_names(exchange *x, int name)
{
    size_t bytes[MAX_RANKS];
    invar_comm_transfer move = {.op = INVAR_COMM_ALLGATHERV,
                                .phase = "names",
                                .timeout_s = SECONDS,
                                .in = &x->names[x->rank], // already where it belongs
                                .out = x->names,
                                .out_bytes = bytes};

    for (int r = 0; r < x->size; r++)
        bytes[r] = sizeof name;
    x->names[x->rank] = name;
    x->counts[INVAR_COMM_ALLGATHERV].calls++;
    x->counts[INVAR_COMM_ALLGATHERV].sent += (uint64_t)(x->size - 1) * sizeof name;
    x->counts[INVAR_COMM_ALLGATHERV].received += (uint64_t)(x->size - 1) * sizeof name;
    return invar_comm_run(x->comm, &move);
}

static inline invar_status check_counts(const exchange *x)
{
    for (int op = 0; op < INVAR_COMM_OPS; op++) {
        invar_comm_stats is = invar_comm_get_stats(x->comm, (invar_comm_op)op);
        const invar_comm_stats *due = &x->counts[op];

        if (is.calls != due->calls || is.sent != due->sent || is.received != due->received ||
            !(is.wait_s >= 0))
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "%s of rank %d of %d: counted %d calls, %d and %d"
                              " bytes, not %d, %d, %d",
                              invar_comm_op_name((invar_comm_op)op), x->rank, x->size,
                              (int)is.calls, (int)is.sent, (int)is.received, (int)due->calls,
                              (int)due->sent, (int)due->received);
    }
    return INVAR_OK;
}

/* Colour -1: in no group; keys are few, so that ranks decide, too. */
static inline int64_t colour_of(const exchange *x, int name)
{
    return (int64_t)(key_of(x, 9999, name, 0) % 4) - (x->seed % 3 == 0 ? 1 : 0);
}

static inline int64_t order_of(const exchange *x, int name)
{
    return 3 - (int64_t)(key_of(x, 9999, name, 1) % 6);
}

static inline invar_status check_group(const exchange *x, const exchange *child)
{
    int expected[MAX_RANKS], count = 0;
    int64_t colour = colour_of(x, x->names[x->rank]);

    for (int64_t order = -3; order <= 3; order++)
        for (int r = 0; r < x->size; r++)
            if (colour_of(x, x->names[r]) == colour && order_of(x, x->names[r]) == order)
                expected[count++] = x->names[r];
    if (count != child->size || memcmp(expected, child->names, (size_t)count * sizeof *expected))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "a split has other ranks, or another order");
    return INVAR_OK;
}

static inline invar_status exchange_all(uint64_t *digest, invar_comm *comm, int name, uint64_t seed,
                                        int depth, const exchange *parent)
{
    exchange x = {.comm = comm,
                  .seed = seed,
                  .rank = invar_comm_rank(comm),
                  .size = invar_comm_size(comm),
                  .digest = *digest};
    invar_comm *child;
    invar_status status;

    INVAR_TRY(learn_names(&x, name));
    if (parent)
        INVAR_TRY(check_group(parent, &x));
    INVAR_TRY(one_by_one(&x, 12));
    INVAR_TRY(together(&x));
    for (uint64_t i = 0; depth > 0 && i < 2; i++) {
        x.seed = mixed(seed, i);
        INVAR_TRY(invar_comm_split(&child, comm, colour_of(&x, name), order_of(&x, name), "split",
                                   SECONDS));
        x.counts[INVAR_COMM_SPLIT].calls++;
        x.counts[INVAR_COMM_SPLIT].sent += (uint64_t)(x.size - 1) * 24;
        x.counts[INVAR_COMM_SPLIT].received += (uint64_t)(x.size - 1) * 24;
        if (!child != (colour_of(&x, name) < 0))
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "a split has the wrong groups");
        if (child) {
            status = exchange_all(&x.digest, child, name, x.seed + 1, depth - 1, &x);
            invar_comm_free(child);
            INVAR_TRY(status);
        }
    }
    INVAR_TRY(together(&x));
    *digest = x.digest;
    return check_counts(&x);
}

/* Two groups of the same ranks: each begins with one of them, and no message is the other's. */
static inline invar_status exchange_apart(invar_comm *comm)
{
    static const char *const phases[] = {"first", "second"};
    invar_comm_request *tickets[2] = {NULL, NULL};
    invar_comm *groups[2] = {NULL, NULL};
    uint64_t in[2] = {11, 22}, out[2] = {0, 0};
    int rank = invar_comm_rank(comm);
    invar_status status = INVAR_OK, waited;

    for (int g = 0; g < 2 && status == INVAR_OK; g++)
        status = invar_comm_split(&groups[g], comm, 0, 0, phases[g], SECONDS);
    for (int i = 0; i < 2 && status == INVAR_OK; i++) {
        int g = (i + rank) % 2;
        invar_comm_transfer move = {.op = INVAR_COMM_BROADCAST,
                                    .phase = "apart",
                                    .timeout_s = SECONDS,
                                    .in = &in[g],
                                    .out = &out[g],
                                    .from_bytes = sizeof in[g]};

        status = invar_comm_start(&tickets[g], groups[g], &move);
    }
    for (int g = 0; g < 2; g++) {
        waited = tickets[g] ? invar_comm_wait(tickets[g]) : INVAR_OK;
        status = status == INVAR_OK ? waited : status;
        invar_comm_free(groups[g]);
    }
    if (status == INVAR_OK && (out[0] != in[0] || out[1] != in[1]))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "rank %d got bytes of another group", rank);
    return status;
}

/* All of it, by every rank; the digest is that of all ranks, on each of them. */
static inline invar_status exchange_run(uint64_t *out, invar_comm *comm, uint64_t seed)
{
    uint64_t digests[MAX_RANKS] = {0}, digest = 1469598103934665603u;
    size_t bytes[MAX_RANKS];
    int rank = invar_comm_rank(comm), size = invar_comm_size(comm);
    invar_comm_transfer move = {.op = INVAR_COMM_ALLGATHERV,
                                .phase = "digests",
                                .timeout_s = SECONDS,
                                .in = &digests[rank],
                                .out = digests,
                                .out_bytes = bytes};

    INVAR_TRY(exchange_all(&digest, comm, rank, seed, 2, NULL));
    INVAR_TRY(exchange_apart(comm));
    digests[rank] = digest;
    for (int r = 0; r < size; r++)
        bytes[r] = sizeof digest;
    INVAR_TRY(invar_comm_run(comm, &move));
    *out = 0;
    for (int r = 0; r < size; r++)
        *out = mixed(*out, digests[r]);
    return INVAR_OK;
}

/* ---- ranks that are threads ------------------------------------------------------------------ */

static inline invar_status exchange_part(rank_run *run)
{
    return exchange_run(&run->digest, run->comm, run->seed);
}

/* The digest of an exchange among threads. */
static inline uint64_t exchange_threads(int size, uint64_t schedule, uint64_t seed)
{
    rank_run runs[MAX_RANKS];

    run_ranks(runs, size, schedule, seed, exchange_part, NULL);
    for (int r = 0; r < size; r++) {
        if (runs[r].status != INVAR_OK)
            fail_msg("rank %d of %d: %s", r, size, runs[r].error.message);
        assert_true(runs[r].digest == runs[0].digest);
    }
    return runs[0].digest;
}

#endif
