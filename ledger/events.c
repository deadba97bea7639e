/*
 * events.c - records what happens between steps: events, evaluations, checkpoints, the end.
 *
 * Each call is one transaction of the open segment. Checkpoints and the end are synced to disk, so
 * that the ledger never loses a step that a checkpoint contains.
 *
 * Invariants: L5, L7 (docs/ledger.md)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "base/alloc.h"
#include "ledger/internal.h"
#include "ledger/validate.h"

#include "base/invar_banned.h"

static invar_status check_segment_open(const invar_ledger *ledger)
{
    if (ledger->position.run == 0)
        return INVAR_FAIL(INVAR_E_STATE, 0, "ledger: there is no run; begin or resume one");
    if (ledger->position.finished)
        return INVAR_FAIL(INVAR_E_STATE, 0, "ledger: the segment is finished; resume the run");
    return INVAR_OK;
}

/* Records one row in a transaction of its own, which moves the position to `next`. */
static invar_status record_row(invar_ledger *ledger, invar_ledger_table table,
                               const invar_ledger_value *row, const invar_ledger_position *next)
{
    const char *kind = invar_ledger_table_get(table)->name;

    INVAR_TRY(invar_ledger_begin_transaction(ledger, kind, INVAR_DURABILITY_POWER));
    return invar_ledger_commit(ledger, invar_ledger_add(ledger, table, row), next);
}

/* ---- events ---------------------------------------------------------------------------------- */

invar_status invar_ledger_add_event(invar_ledger *ledger, const invar_ledger_event *event,
                                    int64_t step, int64_t i)
{
    return invar_ledger_add(
        ledger, INVAR_LEDGER_TABLE_EVENT,
        (invar_ledger_row_values){
            invar_ledger_value_int(ledger->position.entry), invar_ledger_value_int(i),
            invar_ledger_value_int(ledger->position.seg),
            step < 0 ? invar_ledger_value_null() : invar_ledger_value_int(step),
            invar_ledger_value_text(event->level), invar_ledger_value_text(event->kind),
            invar_ledger_value_text(event->message), invar_ledger_value_text(event->data)});
}

invar_status invar_ledger_log_event(invar_ledger *ledger, const invar_ledger_event *event)
{
    invar_status status;

    INVAR_TRY(check_segment_open(ledger));
    INVAR_TRY(invar_ledger_validate_event(event));
    INVAR_TRY(invar_ledger_begin_transaction(ledger, "event", INVAR_DURABILITY_PROCESS));
    status = invar_ledger_add_event(ledger, event, event->step, 0);
    return invar_ledger_commit(ledger, status, &ledger->position);
}

/* ---- evaluations ----------------------------------------------------------------------------- */

static invar_status add_results(invar_ledger *ledger, const char *dataset,
                                const invar_ledger_metric *const *results, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        INVAR_TRY(invar_ledger_add_series(ledger, results[i]->name));
        INVAR_TRY(invar_ledger_add(
            ledger, INVAR_LEDGER_TABLE_EVALUATION,
            (invar_ledger_row_values){invar_ledger_value_int(ledger->position.step),
                                      invar_ledger_value_int(ledger->position.seg),
                                      invar_ledger_value_text(dataset),
                                      invar_ledger_value_text(results[i]->name),
                                      invar_ledger_value_int(ledger->position.entry),
                                      invar_ledger_value_bits(results[i]->value)}));
    }
    return INVAR_OK;
}

invar_status invar_ledger_add_evaluation(invar_ledger *ledger, const char *dataset,
                                         const invar_ledger_metric *results, size_t count)
{
    const invar_ledger_metric **order;
    invar_status status;

    INVAR_TRY(check_segment_open(ledger));
    INVAR_TRY(invar_ledger_validate_name("a data set", dataset));
    INVAR_TRY(INVAR_ALLOC(order, count, "an evaluation"));
    status = invar_ledger_validate_metrics(order, "a result", results, count);
    if (status == INVAR_OK)
        status = invar_ledger_begin_transaction(ledger, "evaluation", INVAR_DURABILITY_PROCESS);
    if (status == INVAR_OK)
        status = invar_ledger_commit(ledger, add_results(ledger, dataset, order, count),
                                     &ledger->position);
    invar_free(order);
    return status;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static invar_status check_checkpoint(invar_ledger *ledger, const invar_ledger_checkpoint *made)
{
    invar_digest chain = {{0}};

    INVAR_TRY(check_segment_open(ledger));
    INVAR_TRY(invar_ledger_validate_text("a checkpoint's path", made->path));
    if (made->step < -1 || made->step > ledger->position.step)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "ledger: a checkpoint of step %" PRId64 "; the last step is %" PRId64,
                          made->step, ledger->position.step);
    if (made->step >= 0)
        INVAR_TRY(invar_ledger_chain_at(&chain, ledger, ledger->position.run, made->step));
    if (!invar_digest_equal(&chain, &made->chain))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "checkpoint %.1000s: its chain is not the ledger's at step %" PRId64
                          "; it holds another state than it says",
                          made->path, made->step);
    return INVAR_OK;
}

static invar_status record_checkpoint(invar_ledger *ledger, const invar_ledger_checkpoint *made,
                                      const char *state)
{
    INVAR_TRY(check_checkpoint(ledger, made));
    return record_row(
        ledger, INVAR_LEDGER_TABLE_CHECKPOINT,
        (invar_ledger_row_values){
            invar_ledger_value_int(made->step), invar_ledger_value_int(ledger->position.seg),
            invar_ledger_value_int(ledger->position.entry), invar_ledger_value_text(state),
            invar_ledger_value_text(made->path), invar_ledger_value_int(made->bytes),
            invar_ledger_value_digest(&made->hash), invar_ledger_value_digest(&made->chain)},
        &ledger->position);
}

invar_status invar_ledger_checkpoint_intent(invar_ledger *ledger,
                                            const invar_ledger_checkpoint *made)
{
    return record_checkpoint(ledger, made, "intent");
}

invar_status invar_ledger_checkpoint_complete(invar_ledger *ledger,
                                              const invar_ledger_checkpoint *made)
{
    return record_checkpoint(ledger, made, "complete");
}

/* ---- the end --------------------------------------------------------------------------------- */

invar_status invar_ledger_finish(invar_ledger *ledger, int64_t exit_code, const char *reason)
{
    invar_ledger_position next = ledger->position;

    INVAR_TRY(check_segment_open(ledger));
    INVAR_TRY(invar_ledger_validate_text("a reason", reason));
    next.finished = true;
    return record_row(ledger, INVAR_LEDGER_TABLE_FINISH,
                      (invar_ledger_row_values){invar_ledger_value_int(ledger->position.seg),
                                                invar_ledger_value_int(ledger->position.entry),
                                                invar_ledger_value_int(exit_code),
                                                invar_ledger_value_text(reason)},
                      &next);
}
