/*
 * replicas.c - entries of the ledger, compared between ranks.
 *
 * Between ranks that are in step 16 bytes each are moved. The points of a run are not marked as
 * replicated, whatever the number of its ranks; those of a step in which ranks differ are, which is
 * what the ledger's query asks for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/replicas.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/layout/agree.h"

#include "base/invar_banned.h"

#define PHASE "compare"
#define TEXT_SIZE (INVAR_LEDGER_NAME_BYTES + 512)

/* All of an entry that must not depend on who made it. */
static void hash_step(invar_digest *out, const invar_ledger_step *step, int64_t points)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, &step->step, sizeof step->step);
    invar_hasher_update(&hasher, step->batch.bytes, sizeof step->batch.bytes);
    invar_hasher_update(&hasher, step->rng.bytes, sizeof step->rng.bytes);
    invar_hasher_update(&hasher, step->digests, (size_t)points * sizeof *step->digests);
    for (size_t i = 0; i < step->n_metrics; i++) {
        const invar_ledger_metric *m = &step->metrics[i];
        invar_hasher_update(&hasher, m->name, strlen(m->name) + 1);
        invar_hasher_update(&hasher, &m->value, sizeof m->value);
    }
    invar_hasher_final(out, &hasher);
}

/* all (ranks, points) */
static void describe(char out[TEXT_SIZE], const invar_layout *layout, const invar_agree_odd *who,
                     const invar_digest *all, const invar_probe_result *points)
{
    const invar_digest *odd = all + who->odd * points->count;
    const invar_digest *usual = all + who->usual * points->count;
    const char *what = "its metrics";
    int64_t i = 0;

    while (i < points->count && invar_digest_equal(&odd[i], &usual[i]))
        i++;
    if (i < points->count)
        what = points->points[i].name;
    (void)snprintf(out, TEXT_SIZE,
                   "rank %d on %s is out of step: %s differs from that of rank %d on %s; check the "
                   "host with invar doctor, then start the run again, on other ranks if you like",
                   who->odd, invar_comm_host(layout->world, who->odd), what, who->usual,
                   invar_comm_host(layout->world, who->usual));
}

/* The step as rank 0 made it, with what the others have. */
static invar_status write_all(invar_recorder *r, invar_ledger_step step, const char *text,
                              const invar_digest *all, const invar_probe_result *points)
{
    const invar_ledger_event event = {
        .step = step.step, .level = "error", .kind = "rank-desync", .message = text};
    int others = invar_agree_size(r->options.layout) - 1;
    invar_ledger_replica *replicas = NULL;
    invar_ledger_point *marked = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&marked, (size_t)points->count, sizeof *marked, "points"));
    status = invar_alloc((void **)&replicas, (size_t)others, sizeof *replicas, "replicas");
    if (status == INVAR_OK) {
        memcpy(marked, points->points, (size_t)points->count * sizeof *marked);
        for (int64_t i = 0; i < points->count; i++)
            marked[i].replicated = true;
        for (int i = 0; i < others; i++)
            replicas[i] = (invar_ledger_replica){i + 1, all + (i + 1) * points->count};
        step.replicas = replicas;
        step.n_replicas = (size_t)others;
        step.events = &event;
        step.n_events = 1;
        status = invar_ledger_define(r->ledger, marked, (size_t)points->count);
    }
    if (status == INVAR_OK)
        status = invar_ledger_append(r->ledger, &step);
    invar_free(replicas);
    invar_free(marked);
    return status;
}

static invar_status tell(invar_recorder *r, const invar_ledger_step *step,
                         const invar_agree_odd *who, const invar_probe_result *points)
{
    const invar_layout *layout = r->options.layout;
    size_t bytes = (size_t)points->count * sizeof(invar_digest);
    invar_digest *all = NULL;
    char text[TEXT_SIZE];
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&all, (size_t)invar_agree_size(layout), bytes,
                          "digests of all ranks"));
    status = invar_agree_gather(layout, PHASE " points", points->digests, bytes, all);
    if (status == INVAR_OK) {
        describe(text, layout, who, all, points);
        if (r->ledger)
            status = write_all(r, *step, text, all, points);
    }
    invar_free(all);
    INVAR_TRY(status);
    r->desync = true;
    return INVAR_FAIL(INVAR_E_MISMATCH, 0, "step %" PRId64 ": %s", step->step, text);
}

invar_status invar_replicas_compare(invar_recorder *r, const invar_ledger_step *step,
                                    const invar_probe_result *points)
{
    invar_agree_odd who;
    invar_digest own;

    if (!r->options.layout)
        return INVAR_OK;
    hash_step(&own, step, points->count);
    INVAR_TRY(invar_agree_compare(&who, r->options.layout, PHASE, &own));
    return who.odd < 0 ? INVAR_OK : tell(r, step, &who, points);
}
