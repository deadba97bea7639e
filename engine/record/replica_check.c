/*
 * replica_check.c - compares the ledger entry of a step between all ranks, before it is written.
 *
 * If all ranks agree, only one digest per rank is sent, and one between data-parallel ranks for
 * their compute weights: weight points are digests of the masters, whose rows have one owner each,
 * so they cannot show that a rank's compute weights differ. Points finer than the chain are
 * computed by one rank each and are not compared.
 *
 * Points of a run are not marked as replicated, whatever the number of ranks, so that the ledger
 * does not depend on it; those of a step in which ranks differ are, since the query rank-desync
 * needs it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/replica_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/ranks/layout/rank_collectives.h"

#include "base/invar_banned.h"

#define PHASE "compare"
#define TEXT_SIZE (INVAR_LEDGER_NAME_BYTES + 512)

static bool is_compared(const invar_ledger_point *point)
{
    return point->level == INVAR_PROBE_STEP;
}

/* Hashes the compute weights of all learners on this rank. */
static void hash_compute_weights(invar_digest *out, const invar_step_report *step)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    for (int i = 0; i < step->n_learners; i++)
        invar_hasher_update(&hasher, &step->learners[i].learner->weights_digest,
                            sizeof(invar_digest));
    invar_hasher_final(out, &hasher);
}

/*
 * *out = true if this rank's compute weights differ from those of the majority of data-parallel
 * ranks.
 */
static invar_status find_other_weights(bool *out, const invar_recorder *r)
{
    const invar_layout *layout = r->options.layout;
    invar_digest *all = NULL, *own;
    size_t *bytes = NULL;
    invar_rank_outlier outlier;
    invar_status status;

    *out = false;
    if (!invar_layout_has_data_parallel(layout) || !r->step)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC_SIZED(all, (size_t)layout->data.size, sizeof *all + sizeof *bytes,
                                "digests of weights"));
    bytes = (size_t *)(all + layout->data.size);
    own = &all[layout->data.rank];
    for (int i = 0; i < layout->data.size; i++)
        bytes[i] = sizeof *all;
    hash_compute_weights(own, r->step);
    status = invar_layout_gather(layout, &layout->data, PHASE " weights", all, bytes);
    if (status == INVAR_OK) {
        outlier = invar_ranks_find_outlier(all, layout->data.size);
        *out = outlier.differing_rank >= 0 && !invar_digest_equal(own, &all[outlier.majority_rank]);
    }
    invar_free(all);
    return status;
}

/*
 * Hashes the parts of an entry that must be equal on all ranks; `differing` if this rank has other
 * weights.
 */
static void hash_step(invar_digest *out, const invar_ledger_step *step,
                      const invar_probe_result *points, bool differing)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, &differing, sizeof differing);
    invar_hasher_update(&hasher, &step->step, sizeof step->step);
    invar_hasher_update(&hasher, step->batch.bytes, sizeof step->batch.bytes);
    invar_hasher_update(&hasher, step->rng.bytes, sizeof step->rng.bytes);
    for (int64_t i = 0; i < points->count; i++)
        if (is_compared(&points->points[i]))
            invar_hasher_update(&hasher, &step->digests[i], sizeof *step->digests);
    for (size_t i = 0; i < step->n_metrics; i++) {
        const invar_ledger_metric *m = &step->metrics[i];
        invar_hasher_update(&hasher, m->name, strlen(m->name) + 1);
        invar_hasher_update(&hasher, &m->value, sizeof m->value);
    }
    invar_hasher_final(out, &hasher);
}

/* Compared digests of all ranks. */
typedef struct digests {
    invar_digest *rank_digest; /* (ranks, count) */
    int64_t count;
} digests;

static void describe_desync(char out[TEXT_SIZE], const invar_layout *layout,
                            const invar_rank_outlier *outlier, const digests *all,
                            const invar_probe_result *points)
{
    const invar_digest *differing = all->rank_digest + outlier->differing_rank * all->count;
    const invar_digest *usual = all->rank_digest + outlier->majority_rank * all->count;
    const char *what = "its metrics or its weights as ops read them";

    for (int64_t i = 0; i < points->count; i++) {
        if (!is_compared(&points->points[i]))
            continue;
        if (!invar_digest_equal(differing++, usual++)) {
            what = points->points[i].name;
            break;
        }
    }
    (void)snprintf(out, TEXT_SIZE,
                   "rank %d on %s is out of step: %s differs from that of rank %d on %s; check the "
                   "host with invar doctor, then start the run again, on other ranks if you like",
                   outlier->differing_rank, invar_comm_host(layout->world, outlier->differing_rank),
                   what, outlier->majority_rank,
                   invar_comm_host(layout->world, outlier->majority_rank));
}

/*
 * Data that rank 0 writes about the other ranks. Release with release_desync_record, also after a
 * failure.
 */
typedef struct desync_record {
    invar_ledger_point *points; /* (count) points, the compared ones marked as replicated */
    invar_ledger_replica_digests *replicas; /* (ranks - 1) */
    invar_digest *digests;                  /* (ranks - 1, count) */
} desync_record;

static void release_desync_record(desync_record *w)
{
    invar_free(w->points);
    invar_free(w->replicas);
    invar_free(w->digests);
}

/* Fills in the record. Points that are not compared get rank 0's digest on all ranks. */
static invar_status make_desync_record(desync_record *out, int others, const digests *all,
                                       const invar_probe_result *points)
{
    const invar_digest *at = all->rank_digest + all->count;
    size_t count = (size_t)points->count;

    INVAR_TRY(INVAR_ALLOC(out->points, count, "points"));
    INVAR_TRY(INVAR_ALLOC(out->replicas, (size_t)others, "replicas"));
    INVAR_TRY(INVAR_ALLOC(out->digests, (size_t)others * count, "digests of replicas"));
    memcpy(out->points, points->points, count * sizeof *out->points);
    for (size_t i = 0; i < count; i++)
        out->points[i].replicated = is_compared(&out->points[i]);
    for (int r = 0; r < others; r++) {
        invar_digest *rank_digest = out->digests + (size_t)r * count;
        out->replicas[r] = (invar_ledger_replica_digests){r + 1, rank_digest};
        for (size_t i = 0; i < count; i++)
            rank_digest[i] = out->points[i].replicated ? *at++ : points->digests[i];
    }
    return INVAR_OK;
}

/* Writes rank 0's entry of the step, with the digests of the other ranks and an event. */
static invar_status write_desync(invar_recorder *r, invar_ledger_step step, const char *text,
                                 const digests *all, const invar_probe_result *points)
{
    const invar_ledger_event event = {
        .step = step.step, .level = "error", .kind = "rank-desync", .message = text};
    int others = invar_ranks_size(r->options.layout) - 1;
    desync_record w = {0};
    invar_status status = make_desync_record(&w, others, all, points);

    step.replicas = w.replicas;
    step.n_replicas = (size_t)others;
    step.events = &event;
    step.n_events = 1;
    if (status == INVAR_OK)
        status = invar_ledger_define(r->ledger, w.points, (size_t)points->count);
    if (status == INVAR_OK)
        status = invar_ledger_append(r->ledger, &step);
    release_desync_record(&w);
    return status;
}

/* Gathers the compared digests of all ranks, this one included. */
static invar_status gather_digests(digests *out, const invar_layout *layout,
                                   const invar_probe_result *points)
{
    size_t ranks = (size_t)invar_ranks_size(layout);
    invar_digest *own = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(own, (size_t)points->count, "digests"));
    for (int64_t i = 0; i < points->count; i++)
        if (is_compared(&points->points[i]))
            own[out->count++] = points->digests[i];
    status = INVAR_ALLOC_SIZED(out->rank_digest, ranks * (size_t)out->count, sizeof *own,
                               "digests of all ranks");
    if (status == INVAR_OK)
        status = invar_ranks_all_gather(layout, PHASE " points", own,
                                        (size_t)out->count * sizeof *own, out->rank_digest);
    invar_free(own);
    return status;
}

static invar_status report_desync(invar_recorder *r, const invar_ledger_step *step,
                                  const invar_rank_outlier *outlier,
                                  const invar_probe_result *points)
{
    digests all = {NULL, 0};
    char text[TEXT_SIZE];
    invar_status status = gather_digests(&all, r->options.layout, points);

    if (status == INVAR_OK) {
        describe_desync(text, r->options.layout, outlier, &all, points);
        if (r->ledger)
            status = write_desync(r, *step, text, &all, points);
    }
    invar_free(all.rank_digest);
    INVAR_TRY(status);
    r->ranks_diverged = true;
    return INVAR_FAIL(INVAR_E_MISMATCH, 0, "step %" PRId64 ": %s", step->step, text);
}

invar_status invar_replica_check(invar_recorder *r, const invar_ledger_step *step,
                                 const invar_probe_result *points)
{
    invar_rank_outlier outlier;
    invar_digest own;
    bool differing;

    if (!r->options.layout)
        return INVAR_OK;
    INVAR_TRY(find_other_weights(&differing, r));
    hash_step(&own, step, points, differing);
    INVAR_TRY(invar_ranks_compare_digests(&outlier, r->options.layout, PHASE, &own));
    return outlier.differing_rank < 0 ? INVAR_OK : report_desync(r, step, &outlier, points);
}
