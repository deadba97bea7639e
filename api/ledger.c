/*
 * ledger.c - writes ledgers for libinvar.
 *
 * Structs of the interface have the layout of our own, which the compiler checks, so arrays are
 * passed without copies. Only structs with digests are converted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/ledger.h"

#include <inttypes.h>
#include <string.h>

#include "api/internal.h"
#include "base/alloc.h"
#include "ledger/view/texts/texts.h"

#include "base/invar_banned.h"

INVAR_API_SAME(invar_api_pair, invar_ledger_pair, value);
INVAR_API_SAME(invar_api_fact, invar_ledger_fact, value);
INVAR_API_SAME(invar_api_number, invar_ledger_metric, value);

/* Rejects a negative count, which would become a huge size_t. */
static invar_status check_count(int64_t count, const char *what)
{
    if (count < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%" PRId64 " %s: a count is at least 0", count, what);
    return INVAR_OK;
}

static void read_digest(invar_digest *out, const uint8_t *bytes)
{
    memset(out, 0, sizeof *out);
    if (bytes)
        memcpy(out->bytes, bytes, sizeof out->bytes);
}

/* ---- opening --------------------------------------------------------------------------------- */

int32_t invar_api_ledger_open(invar_api_ledger **out, const char *path, int32_t mode,
                              const char *writer)
{
    const invar_ledger_options options = {
        .write = mode == INVAR_API_WRITE, .create = mode == INVAR_API_CREATE, .writer = writer};
    invar_ledger *ledger;

    *out = NULL;
    if (mode < INVAR_API_READ || mode > INVAR_API_CREATE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a ledger cannot be opened in mode %" PRId32, mode);
    INVAR_TRY(invar_ledger_open(&ledger, path, &options));
    invar_status status = mode == INVAR_API_READ ? invar_texts_add(ledger) : INVAR_OK;
    if (status == INVAR_OK)
        *out = (invar_api_ledger *)ledger;
    else
        invar_ledger_close(ledger);
    return status;
}

void invar_api_ledger_close(invar_api_ledger *ledger)
{
    invar_ledger_close(invar_api_own(ledger));
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Our build has left no facts about the calling program, so only its own facts are recorded. */
static invar_ledger_provenance provenance_of(const invar_api_fact *facts, int64_t n_facts)
{
    return (invar_ledger_provenance){
        .facts = (const invar_ledger_fact *)facts, .n_facts = (size_t)n_facts, .build = ""};
}

int32_t invar_api_ledger_begin(invar_api_ledger *ledger, const char *name, const char *kind,
                               const invar_api_pair *identity, int64_t n_identity,
                               const invar_api_fact *facts, int64_t n_facts)
{
    invar_ledger_run run = {.name = name, .kind = kind};

    INVAR_TRY(check_count(n_identity, "keys of an identity"));
    INVAR_TRY(check_count(n_facts, "facts"));
    run.identity = (const invar_ledger_pair *)identity;
    run.n_identity = (size_t)n_identity;
    run.circumstances = provenance_of(facts, n_facts);
    return invar_ledger_begin(invar_api_own(ledger), &run);
}

int32_t invar_api_ledger_resume(invar_api_ledger *ledger, int64_t after_step, const uint8_t *chain,
                                const invar_api_fact *facts, int64_t n_facts)
{
    invar_ledger_provenance provenance;
    invar_digest digest;

    INVAR_TRY(check_count(n_facts, "facts"));
    provenance = provenance_of(facts, n_facts);
    read_digest(&digest, chain);
    return invar_ledger_resume(invar_api_own(ledger), NULL, after_step, &digest, &provenance);
}

/* ---- steps ----------------------------------------------------------------------------------- */

int32_t invar_api_ledger_define(invar_api_ledger *ledger, const invar_api_point *points,
                                int64_t count)
{
    INVAR_AUTO_FREE invar_ledger_point *own = NULL;

    INVAR_TRY(check_count(count, "points"));
    INVAR_TRY(INVAR_ALLOC(own, (size_t)count, "points"));
    for (int64_t i = 0; i < count; i++) {
        const invar_api_point *p = &points[i];
        own[i] = (invar_ledger_point){.name = p->name,
                                      .phase = p->phase,
                                      .layer = p->layer,
                                      .op = p->op,
                                      .kind = p->kind,
                                      .level = p->level,
                                      .dtype = p->dtype,
                                      .shape = p->shape,
                                      .dims = (size_t)p->dims,
                                      .shards = 1};
        INVAR_TRY(check_count(p->dims, "dimensions of a point"));
    }
    return invar_ledger_define(invar_api_own(ledger), own, (size_t)count);
}

int32_t invar_api_ledger_append(invar_api_ledger *ledger, const invar_api_step *step)
{
    const invar_ledger_timing timing = {"step", step->start_ns, step->duration_ns};
    invar_ledger_step own = {.step = step->step, .weights_version = step->step};

    _Static_assert(sizeof(invar_digest) == INVAR_API_DIGEST_BYTES, "digests are plain bytes");
    INVAR_TRY(check_count(step->n_metrics, "metrics"));
    INVAR_TRY(check_count(step->n_gauges, "gauges"));
    read_digest(&own.batch, step->batch);
    own.digests = (const invar_digest *)step->digests;
    own.metrics = (const invar_ledger_metric *)step->metrics;
    own.n_metrics = (size_t)step->n_metrics;
    own.gauges = (const invar_ledger_metric *)step->gauges;
    own.n_gauges = (size_t)step->n_gauges;
    own.timings = &timing;
    own.n_timings = step->duration_ns > 0;
    return invar_ledger_append(invar_api_own(ledger), &own);
}

int32_t invar_api_ledger_chain(int64_t *step_out, uint8_t *chain_out,
                               const invar_api_ledger *ledger)
{
    invar_digest chain;

    INVAR_TRY(invar_ledger_chain(step_out, &chain, (const invar_ledger *)ledger));
    memcpy(chain_out, chain.bytes, sizeof chain.bytes);
    return INVAR_OK;
}

/* ---- between steps --------------------------------------------------------------------------- */

int32_t invar_api_ledger_note(invar_api_ledger *ledger, const char *level, const char *kind,
                              const char *message, const char *data)
{
    invar_ledger_event event = {.level = level, .kind = kind, .message = message, .data = data};
    invar_digest chain;

    INVAR_TRY(invar_ledger_chain(&event.step, &chain, invar_api_own(ledger)));
    return invar_ledger_log_event(invar_api_own(ledger), &event);
}

int32_t invar_api_ledger_evaluate(invar_api_ledger *ledger, const char *dataset,
                                  const invar_api_number *results, int64_t count)
{
    INVAR_TRY(check_count(count, "results"));
    return invar_ledger_add_evaluation(invar_api_own(ledger), dataset,
                                       (const invar_ledger_metric *)results, (size_t)count);
}

int32_t invar_api_ledger_finish(invar_api_ledger *ledger, int64_t exit_code, const char *reason)
{
    return invar_ledger_finish(invar_api_own(ledger), exit_code, reason);
}
