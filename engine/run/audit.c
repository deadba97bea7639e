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

#include "engine/run/train_loop.h"

#include "base/invar_banned.h"

#define KIND "audit-mismatch"

/* Keeps the line if the buffer has space. Further ones are dropped; a gauge counts all findings. */
static void keep_finding(invar_audit_findings *findings, const char *text)
{
    size_t bytes = strlen(text) + 1;

    if (bytes > sizeof findings->text - findings->bytes)
        return;
    memcpy(findings->text + findings->bytes, text, bytes);
    findings->bytes += bytes;
}

static invar_status on_finding(void *payload, const invar_audit_finding *f)
{
    invar_train_loop *loop = payload;
    char layer[40] = "", rank[100] = "", text[INVAR_ERROR_MESSAGE_SIZE];

    if (f->layer >= 0)
        (void)snprintf(layer, sizeof layer, " in layer %" PRId64, f->layer);
    if (loop->ranks)
        (void)snprintf(rank, sizeof rank, "rank %d on %s: ", invar_comm_rank(loop->ranks->world),
                       invar_comm_host(loop->ranks->world, invar_comm_rank(loop->ranks->world)));
    (void)snprintf(
        text, sizeof text,
        "audit: %s%s%s: %.60s is 0x%0*" PRIx32 " on the device, 0x%0*" PRIx32
        " computed again; check the device with invar doctor, and continue on another one",
        rank, invar_op_name(f->op), layer, f->element, f->digits, f->device, f->digits, f->cpu);
    if (!loop->ranks)
        return invar_train_loop_mismatch(loop, KIND, text);
    keep_finding(&loop->findings, text);
    return INVAR_OK;
}

/* Records an event for each of the NUL-terminated lines. */
static invar_status write_events(invar_train_loop *loop, const char *lines, size_t bytes)
{
    const char *end = lines + bytes;

    for (const char *at = lines; at < end; at += strlen(at) + 1)
        INVAR_TRY(invar_recorder_event(&loop->recorder, loop->position.step, "error", KIND, at));
    return INVAR_OK;
}

/* Gathers the findings of all ranks on rank 0, which records them. Collective. */
static invar_status record_all_findings(invar_train_loop *loop)
{
    invar_rank_gathered pile;
    invar_status status =
        invar_ranks_gather(&pile, loop->ranks, KIND, loop->findings.text, loop->findings.bytes);
    const char *at = pile.data;

    for (int r = 0; status == INVAR_OK && r < invar_ranks_size(loop->ranks); r++) {
        status = write_events(loop, at, pile.bytes[r]);
        at += pile.bytes[r];
    }
    invar_rank_gathered_release(&pile);
    return status;
}

invar_status invar_train_loop_gather_findings(bool *any_out, invar_train_loop *loop)
{
    int64_t first = 0;

    *any_out = false;
    if (!loop->audit || !loop->ranks)
        return INVAR_OK;
    if (loop->findings.bytes > 0)
        first = invar_comm_rank(loop->ranks->world) + 1;
    INVAR_TRY(invar_ranks_first_nonzero(&first, loop->ranks, KIND, first));
    if (first == 0)
        return INVAR_OK;
    INVAR_TRY(record_all_findings(loop));
    INVAR_TRY(invar_ranks_broadcast(loop->ranks, KIND, (int)first - 1, loop->findings.text,
                                    sizeof loop->findings.text));
    loop->findings.bytes = 0;
    *any_out = true;
    return INVAR_OK;
}

invar_status invar_train_loop_report_findings(invar_train_loop *loop)
{
    bool any;

    INVAR_TRY(invar_train_loop_gather_findings(&any, loop));
    if (!any || loop->config->on_mismatch != INVAR_ON_MISMATCH_STOP)
        return INVAR_OK;
    loop->all_ranks_failed = true;
    return INVAR_FAIL(INVAR_E_MISMATCH, 0, "step %" PRId64 ": %.1000s", loop->position.step,
                      loop->findings.text);
}

invar_status invar_train_loop_attach_audit(invar_train_loop *loop)
{
    int64_t elements = loop->config->audit;
    int ranks = invar_ranks_size(loop->ranks);
    int rank = loop->ranks ? invar_comm_rank(loop->ranks->world) : 0;
    const invar_audit_options o = {.elements = invar_layout_range_of(elements, ranks, rank).count,
                                   .rank = rank,
                                   .ranks = ranks,
                                   .found = on_finding,
                                   .payload = loop};

    if (elements == 0)
        return INVAR_OK;
    INVAR_TRY(invar_audit_new(&loop->audit, &loop->session.dev, &o));
    invar_trainer_set_audit(loop->trainer, loop->audit);
    if (loop->rollout)
        invar_rollout_audit(loop->rollout, loop->audit);
    return INVAR_OK;
}
