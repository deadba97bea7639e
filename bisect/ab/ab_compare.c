/*
 * ab_compare.c - compares the runs of an A/B experiment and merges them into one ledger.
 *
 * Pairs, A/A checks and facts are reduced from diffs of two ledgers (ledger/view/diff/diff.h). The
 * effects on metrics are computed from ab.db, a ledger with all runs, which appears under its name
 * only when it is complete.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "bisect/ab/ab_internal.h"

#include "base/invar_banned.h"

/* ---- two runs -------------------------------------------------------------------------------- */

static bool runs_are_equal(const invar_diff *diff)
{
    return diff->verdict == INVAR_DIFF_VERDICT_IDENTICAL && diff->steps.only_a == 0 &&
           diff->steps.only_b == 0;
}

static int64_t common_steps(const invar_diff *diff)
{
    return diff->steps.first < 0 ? 0 : diff->steps.last - diff->steps.first + 1;
}

static void copy_value(char out[INVAR_AB_VALUE], const char *text)
{
    invar_text_quote(out, INVAR_AB_VALUE, text ? text : "", text ? strlen(text) : 0);
}

/* Returns true for facts that differ because of the experiment itself or the place of the run. */
static bool is_irrelevant_fact(const invar_diff_fact *fact)
{
    static const char *const places[] = {"run", "ledger", "save", "load", "name"};

    if (strcmp(fact->scope, "ab") == 0 || strcmp(fact->scope, "run") == 0)
        return true;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (strcmp(fact->scope, "free") == 0 && strcmp(fact->key, places[i]) == 0)
            return true;
    return false;
}

/*
 * Returns true for recipe keys. Keys are single words; other identity entries, such as "data hash",
 * are not.
 */
static bool is_key(const invar_diff_fact *fact)
{
    return (strcmp(fact->scope, "identity") == 0 || strcmp(fact->scope, "free") == 0) &&
           !strchr(fact->key, ' ');
}

static void set_facts(invar_ab_result *answer, const invar_diff *diff)
{
    for (int pass = 0; pass < 2; pass++) { // identity facts first, then the rest
        for (size_t i = 0; i < diff->facts.count; i++) {
            const invar_diff_fact *fact = &diff->facts.items[i];
            invar_ab_fact *out = &answer->facts[answer->n_facts];
            if (is_irrelevant_fact(fact) || (strcmp(fact->scope, "identity") == 0) != (pass == 0))
                continue;
            answer->all_facts++;
            // this hash covers everything that determines the shapes of a model
            answer->two_models |= pass == 0 && strcmp(fact->key, "model hash") == 0;
            if (answer->n_facts == INVAR_AB_FACTS)
                continue;
            answer->n_facts++;
            out->is_key = is_key(fact);
            copy_value(out->scope, fact->scope);
            copy_value(out->key, fact->key);
            copy_value(out->values[INVAR_AB_A], fact->a);
            copy_value(out->values[INVAR_AB_B], fact->b);
        }
    }
}

invar_status invar_ab_compare_pair(invar_ab_pair *pair, invar_ab_result *facts)
{
    invar_diff *diff;

    INVAR_TRY(invar_divergence_diff(&diff, pair->ran[INVAR_AB_A].ledger,
                                    pair->ran[INVAR_AB_B].ledger, -1));
    pair->compared = true;
    pair->same = runs_are_equal(diff);
    pair->steps = common_steps(diff);
    pair->only[INVAR_AB_A] = diff->steps.only_a;
    pair->only[INVAR_AB_B] = diff->steps.only_b;
    pair->diverged = diff->diverged;
    pair->first = diff->step;
    invar_diff_headline(pair->headline, diff);
    if (facts)
        set_facts(facts, diff);
    invar_diff_free(diff);
    return INVAR_OK;
}

invar_status invar_ab_compare_aa_check(invar_aa_check *check)
{
    invar_diff *diff;

    INVAR_TRY(invar_divergence_diff(&diff, check->ledger, check->second_ledger, -1));
    check->same = runs_are_equal(diff);
    check->steps = common_steps(diff);
    invar_diff_headline(check->headline, diff);
    invar_diff_free(diff);
    return INVAR_OK;
}

/* ---- one ledger of all runs ------------------------------------------------------------------ */

static invar_status import_run(int64_t *number_out, invar_ledger *into, const char *path)
{
    invar_ledger *from = NULL;
    invar_ledger_summary run;
    int64_t count;
    invar_status status = invar_workspace_ledger_open(&from, &run, path);

    if (status == INVAR_OK)
        status = invar_ledger_import(&count, into, from);
    invar_ledger_close(from);
    INVAR_TRY(status);
    INVAR_TRY(invar_ledger_find(&run, into, run.uuid));
    *number_out = run.run;
    return INVAR_OK;
}

static invar_status import_all_runs(int64_t *numbers, const invar_ab_result *answer,
                                    const char *path)
{
    invar_ledger *into = NULL;
    invar_status status = invar_ledger_open(
        &into, path, &(invar_ledger_options){.create = true, .writer = "invar ab"});

    for (size_t i = 0; i < answer->n_pairs; i++)
        for (int side = 0; side < INVAR_AB_SIDES && status == INVAR_OK; side++)
            status = import_run(&numbers[(size_t)side * answer->n_pairs + i], into,
                                answer->pairs[i].ran[side].ledger);
    invar_ledger_close(into);
    return status;
}

/*
 * Writes all runs to ab.db. It is built under a temporary name, so that an existing ab.db is
 * complete.
 */
static invar_status merge_ledgers(int64_t *numbers, invar_ab_result *answer)
{
    char folder[INVAR_PATH_SIZE], fresh[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(folder, sizeof folder, answer->folder, "new"));
    INVAR_TRY(invar_path_join(fresh, sizeof fresh, folder, "ab.db"));
    INVAR_TRY(invar_path_join(answer->ledger, sizeof answer->ledger, answer->folder, "ab.db"));
    INVAR_TRY(invar_held_folder_remove(folder));
    INVAR_TRY(invar_held_folder_make(folder));
    INVAR_TRY(import_all_runs(numbers, answer, fresh));
    if (rename(fresh, answer->ledger) != 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s cannot get its name: %s", fresh,
                          strerror(errno));
    return invar_held_folder_remove(folder);
}

invar_status invar_ab_measure(invar_ab_result *result)
{
    invar_ledger *ledger = NULL;
    invar_status status;
    int64_t *numbers;

    INVAR_TRY(INVAR_ALLOC(numbers, 2 * result->n_pairs, "runs"));
    status = merge_ledgers(numbers, result);
    if (status == INVAR_OK)
        status = invar_ledger_open(&ledger, result->ledger, &(invar_ledger_options){0});
    if (status == INVAR_OK)
        status = invar_ab_effects_read(&result->effects, ledger, numbers, numbers + result->n_pairs,
                                       result->n_pairs);
    invar_ledger_close(ledger);
    invar_free(numbers);
    return status;
}
