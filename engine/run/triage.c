/*
 * triage.c - runs the triage rules on the run's own ledger during training, and reports each
 * finding once.
 *
 * Checks are at most 1/500 of the running time. A finding is an event, and events are not part of a
 * chain, so the clock never changes a result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/triage/triage.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/process/process.h"
#include "engine/run/run_storage.h"

#include "base/invar_banned.h"

enum { SHARE = 500 }; // checks take at most one part in so much of the running time

static invar_status report_finding(invar_run_storage *storage, const invar_triage_finding *finding)
{
    const char *rule = finding->rule.name + sizeof INVAR_TRIAGE_PREFIX - 1;
    char message[sizeof finding->evidence + 2 * INVAR_LEDGER_QUERY_LINE];

    (void)snprintf(message, sizeof message, "%s: %s; this may mean: %s", rule, finding->evidence,
                   finding->explanation);
    invar_recorder_print(&storage->recorder,
                         "warning: step %" PRId64 ": %s; 'invar triage' says how to find out",
                         finding->step, message);
    return invar_recorder_event(&storage->recorder, finding->step, "warning", "triage", message);
}

static invar_status check_rules(invar_run_storage *storage)
{
    invar_ledger_summary run;
    invar_triage found;

    INVAR_TRY(invar_ledger_find(&run, storage->recorder.ledger, storage->recorder.uuid));
    INVAR_TRY(invar_triage_run(&found, storage->recorder.ledger, run.run, true));
    for (int i = 0; i < found.count; i++) {
        uint32_t mark = UINT32_C(1) << found.found[i].number;

        if (!(storage->triage.reported_rules & mark))
            INVAR_TRY(report_finding(storage, &found.found[i]));
        storage->triage.reported_rules |= mark;
    }
    return INVAR_OK;
}

void invar_run_triage(invar_run_storage *storage, bool last)
{
    int64_t begin = invar_process_clock_ms();

    if (!storage->recorder.ledger || storage->job->options->replay ||
        (!last && begin < storage->triage.next_ms))
        return;
    if (check_rules(storage) != INVAR_OK) { // a query that fails is no reason to stop
        invar_recorder_print(&storage->recorder, "triage: %s", invar_error_last()->message);
        invar_error_clear();
    }
    storage->triage.next_ms = begin + SHARE * (invar_process_clock_ms() - begin + 1);
}
