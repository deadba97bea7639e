/*
 * audit.c - the audit of a run: attaches it as the recipe asks, and handles findings.
 *
 * An audit recomputes random elements of op results on the CPU. With one rank, a finding ends the
 * run at once. With several ranks, each collects its findings and all report them together at the
 * end of the phase, so that no rank stops alone while others wait for it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/run/run_storage.h"

#include "base/invar_banned.h"

#define KIND "audit-mismatch"

static invar_status on_finding(void *payload, const invar_audit_finding *f)
{
    invar_run_storage *storage = payload;
    invar_audit_findings *findings = &storage->audit_findings;
    char layer[40] = "", rank[100] = "", text[INVAR_ERROR_MESSAGE_SIZE];
    size_t bytes;

    if (f->layer >= 0)
        (void)snprintf(layer, sizeof layer, " in layer %" PRId64, f->layer);
    if (storage->world->ranks)
        (void)snprintf(rank, sizeof rank,
                       "rank %d on %s: ", invar_comm_rank(storage->world->ranks->world),
                       invar_comm_host(storage->world->ranks->world,
                                       invar_comm_rank(storage->world->ranks->world)));
    (void)snprintf(
        text, sizeof text,
        "audit: %s%s%s: %.60s is 0x%0*" PRIx32 " on the device, 0x%0*" PRIx32
        " computed again; check the device with invar doctor, and continue on another one",
        rank, invar_op_name(f->op), layer, f->element, f->digits, f->device, f->digits, f->cpu);
    if (!storage->world->ranks)
        return invar_run_mismatch(storage, KIND, text);
    bytes = strlen(text) + 1;
    if (bytes > sizeof findings->text - findings->bytes)
        return INVAR_OK; // a gauge counts all findings
    memcpy(findings->text + findings->bytes, text, bytes);
    findings->bytes += bytes;
    return INVAR_OK;
}

/* Gathers the findings of all ranks on rank 0, which records them. Collective. */
static invar_status record_all_findings(invar_run_storage *storage)
{
    invar_rank_gathered pile;
    invar_status status =
        invar_ranks_gather(&pile, storage->world->ranks, KIND, storage->audit_findings.text,
                           storage->audit_findings.bytes);
    const char *at = pile.data, *end = at;

    for (int r = 0; status == INVAR_OK && r < invar_ranks_size(storage->world->ranks); r++)
        for (end += pile.bytes[r]; status == INVAR_OK && at < end; at += strlen(at) + 1)
            status =
                invar_recorder_event(&storage->recorder, storage->position.step, "error", KIND, at);
    invar_rank_gathered_release(&pile);
    return status;
}

/*
 * Writes the findings of all ranks to the ledger. *any_out is true if there were any;
 * storage->audit_findings then begins with the first one. Collective; does nothing with one rank.
 */
static invar_status gather_findings(bool *any_out, invar_run_storage *storage)
{
    int64_t first = 0;

    *any_out = false;
    if (!storage->audit || !storage->world->ranks)
        return INVAR_OK;
    if (storage->audit_findings.bytes > 0)
        first = invar_comm_rank(storage->world->ranks->world) + 1;
    INVAR_TRY(invar_ranks_first_nonzero(&first, storage->world->ranks, KIND, first));
    if (first == 0)
        return INVAR_OK;
    INVAR_TRY(record_all_findings(storage));
    INVAR_TRY(invar_ranks_broadcast(storage->world->ranks, KIND, (int)first - 1,
                                    storage->audit_findings.text,
                                    sizeof storage->audit_findings.text));
    storage->audit_findings.bytes = 0;
    *any_out = true;
    return INVAR_OK;
}

invar_status invar_run_report_findings(invar_run_storage *storage)
{
    bool any;

    INVAR_TRY(gather_findings(&any, storage));
    if (!any || storage->job->config->on_mismatch != INVAR_ON_MISMATCH_STOP)
        return INVAR_OK;
    storage->world->all_failed = true;
    return INVAR_FAIL(INVAR_E_MISMATCH, 0, "step %" PRId64 ": %.1000s", storage->position.step,
                      storage->audit_findings.text);
}

invar_status invar_run_attach_audit(invar_run_storage *storage, invar_run_models *models)
{
    int64_t elements = storage->job->config->audit;
    int ranks = invar_ranks_size(storage->world->ranks);
    int rank = storage->world->ranks ? invar_comm_rank(storage->world->ranks->world) : 0;
    const invar_audit_options o = {.elements = invar_layout_range_of(elements, ranks, rank).count,
                                   .rank = rank,
                                   .ranks = ranks,
                                   .found = on_finding,
                                   .payload = storage};

    if (elements == 0)
        return INVAR_OK;
    INVAR_TRY(invar_audit_new(&storage->audit, &models->context.dev, &o));
    invar_trainer_set_audit(models->trainer, storage->audit);
    if (models->rollout)
        invar_rollout_audit(models->rollout, storage->audit);
    return INVAR_OK;
}

invar_status invar_run_mismatch(invar_run_storage *storage, const char *kind, const char *text)
{
    int64_t unused;
    bool found;

    INVAR_TRY(
        invar_recorder_event(&storage->recorder, storage->position.step, "error", kind, text));
    if (storage->job->config->on_mismatch != INVAR_ON_MISMATCH_STOP)
        return INVAR_OK;
    INVAR_TRY(gather_findings(&found, storage)); // an audit finding may be the cause
    // every rank finds the same mismatch: no rank may end before rank 0 has recorded the event
    INVAR_TRY(invar_ranks_min(&unused, storage->world->ranks, kind, 0));
    storage->world->all_failed = true;
    return INVAR_FAIL(INVAR_E_MISMATCH, 0, "step %" PRId64 ": %.1000s", storage->position.step,
                      text);
}
