/*
 * endpoints.c - tests both ends of a bisect, and the merge bases if good is not an ancestor of bad.
 *
 * For the criterion "chain" the ends are run for a few steps first, and four times as many until
 * they diverge. The diverging step becomes the last step of all later trials, which saves most of
 * the run time. It is stored in the state file before any trial, so a resumed bisect uses the same
 * step.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bisect/bisect_context.h"
#include "ledger/view/golden/golden.h"

#include "base/invar_banned.h"

/* ---- the ends -------------------------------------------------------------------------------- */

/* Runs both ends up to step `until`, without the state file: nothing is recorded about them yet. */
static invar_status run_endpoints(invar_trial_job ends[2], invar_bisect_context *context,
                                  int64_t until)
{
    memset(ends, 0, 2 * sizeof *ends);
    memcpy(ends[0].commit, context->what->good, INVAR_OID_SIZE);
    memcpy(ends[1].commit, context->what->bad, INVAR_OID_SIZE);
    context->trial_context.question.until = until;
    for (size_t i = 0; i < 2; i += (size_t)context->options->jobs) {
        invar_bisect_context_begin(context, ends[i].commit, i ? "bad end" : "good end");
        INVAR_TRY(invar_trial_batch(ends + i, context->options->jobs > 1 ? 2 : 1,
                                    &context->trial_context, NULL, NULL, NULL));
    }
    for (int i = 0; i < 2; i++) {
        context->spent[i].build_s += ends[i].result.trial.build_s;
        context->spent[i].run_s += ends[i].result.trial.run_s;
    }
    context->stopped = ends[0].stopped || ends[1].stopped;
    return INVAR_OK;
}

/*
 * Finds the step at which the chains of the ends diverge. Both run a few steps, then about four
 * times as many, so that no end runs much further than needed; a command runs as far as it likes.
 * *out is -1 if they do not diverge or cannot be run.
 */
static invar_status find_endpoint_divergence(int64_t *out, invar_trial_job ends[2],
                                             invar_bisect_context *context)
{
    const int64_t limit = context->what->question.until;
    int64_t until = 0, last[2];

    *out = -1;
    for (;;) {
        if (context->what->run || (limit >= 0 && until > limit))
            until = limit;
        INVAR_TRY(run_endpoints(ends, context, until));
        if (context->stopped || !ends[0].result.trial.value[0] || !ends[1].result.trial.value[0])
            return INVAR_OK;
        INVAR_TRY(invar_criterion_first_divergence(out, last, ends[0].result.trial.ledger,
                                                   ends[1].result.trial.ledger));
        if (*out >= 0 || until == limit)
            return INVAR_OK;
        if (last[0] < until && last[1] < until) { // the recipe has no more steps
            context->trial_context.question.until = last[0] > last[1] ? last[0] : last[1];
            return INVAR_OK;
        }
        until = 4 * until + 3;
    }
}

/*
 * Records the last runs of find_endpoint_divergence as the trials of the ends, with their values at
 * the chosen step.
 */
static invar_status record_endpoint_trials(invar_bisect_context *context, invar_trial_job ends[2])
{
    static const char *const roles[] = {"good end", "bad end"};

    for (int i = 0; i < 2 && !context->stopped; i++) {
        invar_bisect_state_trial *result = &ends[i].result;
        if (invar_bisect_state_find(context->state, ends[i].commit, 0))
            continue;
        if (result->trial.value[0])
            INVAR_TRY(invar_criterion_evaluate(
                result->trial.value, &context->trial_context.question, result->trial.ledger));
        result->trial.build_s = result->trial.run_s = 0; // their time is in context->spent
        INVAR_TRY(invar_bisect_context_record(context, result, roles[i]));
    }
    return INVAR_OK;
}

static invar_status choose_last_step(invar_bisect_context *context)
{
    int64_t until = context->state->until;
    invar_trial_job ends[2];

    if (context->what->question.kind != INVAR_CRITERION_CHAIN)
        return INVAR_OK;
    if (context->what->all_changes && context->what->question.until >= 0)
        return INVAR_OK; // the user chose the step at which all commits are compared
    context->result->first_diverging_step = until;
    if (until >= 0)
        context->trial_context.question.until = until;
    if (until >= 0 || (invar_bisect_state_find(context->state, context->what->good, 0) &&
                       invar_bisect_state_find(context->state, context->what->bad, 0)))
        return INVAR_OK;
    INVAR_TRY(find_endpoint_divergence(&until, ends, context));
    context->result->first_diverging_step = until;
    if (until >= 0) { // otherwise the last step that both ends have
        INVAR_TRY(invar_bisect_state_set_until(context->state, until));
        context->trial_context.question.until = until;
    }
    return record_endpoint_trials(context, ends);
}

/*
 * Sets the verdict WRONG_END for the good end. The output of a failing command is part of the
 * reason.
 */
static void reject_good_end(invar_bisect_context *context, const invar_bisect_trial *good,
                            const char *why)
{
    char story[INVAR_CHILD_REASON_SIZE];

    if (context->what->question.kind == INVAR_CRITERION_EXIT)
        (void)snprintf(story, sizeof story, "%.60s: exit code %d%s%.1000s", why, good->exit_code,
                       good->failure_reason[0] ? ": " : "", good->failure_reason);
    else
        (void)snprintf(story, sizeof story, "%.60s", why);
    invar_bisect_set_verdict(context, INVAR_BISECT_WRONG_END, good->commit, story);
}

/* Checks the values of both ends. Leaves the verdict FOUND if they are as claimed. */
static void check_endpoint_values(invar_bisect_context *context,
                                  const invar_bisect_state_trial *good,
                                  const invar_bisect_state_trial *bad)
{
    const char *fine = context->what->question.kind == INVAR_CRITERION_METRIC ? "no" : "good";
    const invar_bisect_trial *ends[] = {&good->trial, &bad->trial};

    for (int i = 0; i < 2; i++)
        if (!ends[i]->value[0]) {
            invar_bisect_set_verdict(context, INVAR_BISECT_UNTESTABLE, ends[i]->commit,
                                     ends[i]->failure_reason);
            return;
        }
    if (invar_criterion_has_bits(&context->what->question)) {
        (void)snprintf(context->good_value, sizeof context->good_value, "%s", good->trial.value);
        (void)snprintf(context->bad_value, sizeof context->bad_value, "%s", bad->trial.value);
        if (strcmp(context->good_value, context->bad_value) == 0)
            invar_bisect_set_verdict(context, INVAR_BISECT_SAME_ENDS, "",
                                     "both ends give the same bits");
        return;
    }
    if (good->trial.exit_code == 126 || good->trial.exit_code == 127)
        reject_good_end(context, &good->trial, "the command cannot be run at the good end");
    else if (strcmp(good->trial.value, fine) != 0 && strcmp(bad->trial.value, fine) == 0)
        invar_bisect_set_verdict(context, INVAR_BISECT_WRONG_END, good->trial.commit,
                                 "the good end is bad and the bad end is good: are they swapped?");
    else if (strcmp(good->trial.value, fine) != 0)
        reject_good_end(context, &good->trial, "the good end is bad as well");
    else if (strcmp(bad->trial.value, fine) == 0)
        invar_bisect_set_verdict(context, INVAR_BISECT_WRONG_END, bad->trial.commit,
                                 "the bad end is good as well");
}

/* Compares the good end with the golden over their common steps. */
static invar_status compare_golden(invar_bisect_context *context, const char *ledger_path)
{
    invar_golden *was = NULL, *is = NULL;
    invar_golden_comparison c = {.first = -1};
    invar_ledger *ledger = NULL;
    invar_ledger_summary run;
    char story[128];
    invar_status status = invar_golden_read(&was, context->golden);

    if (status == INVAR_OK)
        status = invar_workspace_ledger_open(&ledger, &run, ledger_path);
    if (status == INVAR_OK)
        status = invar_golden_from_run(&is, ledger, run.run, "bisect");
    if (status == INVAR_OK)
        invar_golden_compare(&c, was, is);
    if (status == INVAR_OK && c.verdict != INVAR_GOLDEN_SAME) {
        (void)snprintf(story, sizeof story,
                       c.verdict == INVAR_GOLDEN_NOTHING
                           ? "the good end and the golden have no step in common"
                           : "the good end differs from the golden at step %" PRId64,
                       c.first);
        invar_bisect_set_verdict(context, INVAR_BISECT_WRONG_END, context->what->good, story);
    }
    invar_ledger_close(ledger);
    invar_golden_free(is);
    invar_golden_free(was);
    return status;
}

static void set_expected_values(invar_bisect_context *context)
{
    const char *const names[2][2] = {{"no", "yes"}, {"good", "bad"}};
    int kind = context->what->question.kind == INVAR_CRITERION_METRIC ? 0 : 1;

    if (invar_criterion_has_bits(&context->what->question))
        return; // the values are those of the ends, which have not run yet
    (void)snprintf(context->good_value, sizeof context->good_value, "%s", names[kind][0]);
    (void)snprintf(context->bad_value, sizeof context->bad_value, "%s", names[kind][1]);
}

invar_status invar_bisect_test_endpoints(invar_bisect_context *context)
{
    const char(*good)[INVAR_OID_SIZE] = (const char(*)[INVAR_OID_SIZE])context->what->good;
    const char(*bad)[INVAR_OID_SIZE] = (const char(*)[INVAR_OID_SIZE])context->what->bad;

    set_expected_values(context);
    INVAR_TRY(choose_last_step(context));
    if (!context->stopped)
        INVAR_TRY(invar_bisect_context_test(context, good, 1, 0, "good end"));
    if (!context->stopped)
        INVAR_TRY(invar_bisect_context_test(context, bad, 1, 0, "bad end"));
    if (!context->stopped)
        check_endpoint_values(context,
                              invar_bisect_state_find(context->state, context->what->good, 0),
                              invar_bisect_state_find(context->state, context->what->bad, 0));
    if (context->stopped || !context->golden[0] ||
        context->result->verdict == INVAR_BISECT_UNTESTABLE)
        return INVAR_OK;
    return compare_golden(
        context, invar_bisect_state_find(context->state, context->what->good, 0)->trial.ledger);
}

/* ---- merge bases ----------------------------------------------------------------------------- */

invar_status invar_bisect_test_merge_bases(invar_bisect_context *context)
{
    char bases[INVAR_REPO_BASES][INVAR_OID_SIZE];
    bool ancestor;
    size_t count;

    INVAR_TRY(
        invar_repo_is_ancestor(&ancestor, context->repo, context->what->good, context->what->bad));
    if (ancestor)
        return INVAR_OK;
    INVAR_TRY(invar_repo_merge_bases(bases, &count, context->repo, context->what->good,
                                     context->what->bad));
    if (count)
        memcpy(context->result->base, bases[0], INVAR_OID_SIZE);
    for (size_t i = 0; i < count; i++) {
        const invar_bisect_state_trial *t;
        if (!invar_bisect_context_skipped(context, bases[i]))
            INVAR_TRY(invar_bisect_context_test(context, (const char(*)[INVAR_OID_SIZE])bases[i], 1,
                                                0, "merge base"));
        if (context->stopped)
            return INVAR_OK;
        t = invar_bisect_state_find(context->state, bases[i], 0);
        memcpy(context->result->base, bases[i], INVAR_OID_SIZE);
        if (!t || !t->trial.value[0])
            (void)snprintf(context->result->reason, sizeof context->result->reason,
                           "the merge base %.12s cannot be tested, so the cause may lie before it",
                           bases[i]);
        else if (strcmp(t->trial.value, context->good_value) != 0) {
            invar_bisect_set_verdict(
                context, INVAR_BISECT_FIXED, bases[i],
                "the merge base is bad: the good end has a fix that the bad end does not have");
            return INVAR_OK;
        }
    }
    return INVAR_OK;
}
