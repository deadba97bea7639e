/*
 * ab_compare.c - how the runs of an A/B experiment compare.
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

/* ---- two runs ------------------------------------------------------------------------------- */

static invar_status open_run(invar_ledger **out, invar_ledger_summary *run, const char *path)
{
    INVAR_TRY(invar_ledger_open(out, path, &(invar_ledger_options){0}));
    return invar_ledger_find(run, *out, NULL);
}

static invar_status diff_compare(const char *a, const char *b,
                                 void (*take)(void *payload, const invar_diff *diff), void *payload)
{
    invar_ledger *ledgers[2] = {NULL, NULL};
    invar_ledger_summary runs[2];
    invar_diff *diff = NULL;
    invar_status status = open_run(&ledgers[0], &runs[0], a);

    if (status == INVAR_OK)
        status = open_run(&ledgers[1], &runs[1], b);
    if (status == INVAR_OK)
        status = invar_diff_runs(&diff, ledgers[0], runs[0].run, ledgers[1], runs[1].run);
    if (status == INVAR_OK)
        take(payload, diff);
    invar_diff_free(diff);
    invar_ledger_close(ledgers[0]);
    invar_ledger_close(ledgers[1]);
    return status;
}

static bool is_same(const invar_diff *diff)
{
    return diff->verdict == INVAR_DIFF_VERDICT_IDENTICAL && diff->only_a == 0 && diff->only_b == 0;
}

static int64_t common_steps(const invar_diff *diff)
{
    return diff->common_first < 0 ? 0 : diff->common_last - diff->common_first + 1;
}

static void take_pair(void *payload, const invar_diff *diff)
{
    invar_ab_pair *pair = payload;

    pair->compared = true;
    pair->same = is_same(diff);
    pair->steps = common_steps(diff);
    pair->only[INVAR_AB_A] = diff->only_a;
    pair->only[INVAR_AB_B] = diff->only_b;
    pair->parted = diff->diverged;
    pair->first = diff->step;
    invar_diff_headline(pair->headline, diff);
}

static void copy_value(char out[INVAR_AB_VALUE], const char *text)
{
    invar_text_quote(out, INVAR_AB_VALUE, text ? text : "", text ? strlen(text) : 0);
}

/* What an experiment sets itself, or what follows from where a run was made, tells nothing. */
static bool is_noise(const invar_diff_fact *fact)
{
    static const char *const places[] = {"run", "ledger", "save", "load", "name"};

    if (strcmp(fact->scope, "ab") == 0 || strcmp(fact->scope, "run") == 0)
        return true;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (strcmp(fact->scope, "free") == 0 && strcmp(fact->key, places[i]) == 0)
            return true;
    return false;
}

/* Keys are words: beside them an identity has hashes, "data hash". */
static bool is_key(const invar_diff_fact *fact)
{
    return (strcmp(fact->scope, "identity") == 0 || strcmp(fact->scope, "free") == 0) &&
           !strchr(fact->key, ' ');
}

/* The hash of all that gives a model its shapes. */
static bool is_model(const invar_diff_fact *fact)
{
    return strcmp(fact->scope, "identity") == 0 && strcmp(fact->key, "model hash") == 0;
}

static void take_facts(void *payload, const invar_diff *diff)
{
    invar_ab_result *answer = payload;

    for (int pass = 0; pass < 2; pass++) { // the identity, then the rest
        for (size_t i = 0; i < diff->n_facts; i++) {
            const invar_diff_fact *fact = &diff->facts[i];
            invar_ab_fact *out = &answer->facts[answer->n_facts];
            if (is_noise(fact) || (strcmp(fact->scope, "identity") == 0) != (pass == 0))
                continue;
            answer->all_facts++;
            answer->two_models |= is_model(fact);
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

static void take_gate(void *payload, const invar_diff *diff)
{
    invar_aa_check *gate = payload;

    gate->same = is_same(diff);
    gate->steps = common_steps(diff);
    invar_diff_headline(gate->headline, diff);
}

invar_status invar_ab_compare_pair(invar_ab_pair *pair)
{
    return diff_compare(pair->ran[INVAR_AB_A].ledger, pair->ran[INVAR_AB_B].ledger, take_pair,
                        pair);
}

invar_status invar_ab_compare_gate(invar_aa_check *gate)
{
    return diff_compare(gate->ledger, gate->second_ledger, take_gate, gate);
}

invar_status invar_ab_compare_facts(invar_ab_result *answer)
{
    return diff_compare(answer->pairs->ran[INVAR_AB_A].ledger,
                        answer->pairs->ran[INVAR_AB_B].ledger, take_facts, answer);
}

/* ---- all runs in one ledger ------------------------------------------------------------------ */

static invar_status import_run(int64_t *number_out, invar_ledger *into, const char *path)
{
    invar_ledger *from = NULL;
    invar_ledger_summary run;
    int64_t count;
    invar_status status = open_run(&from, &run, path);

    if (status == INVAR_OK)
        status = invar_ledger_import(&count, into, from);
    invar_ledger_close(from);
    INVAR_TRY(status);
    INVAR_TRY(invar_ledger_find(&run, into, run.uuid));
    *number_out = run.run;
    return INVAR_OK;
}

static invar_status import_all(int64_t *numbers, const invar_ab_result *answer, const char *path)
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

/* Made beside its place, so that a ledger with the name is a whole one. */
static invar_status ab_result_merge(int64_t *numbers, invar_ab_result *answer)
{
    char folder[INVAR_PATH_SIZE], fresh[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(folder, sizeof folder, answer->folder, "new"));
    INVAR_TRY(invar_path_join(fresh, sizeof fresh, folder, "ab.db"));
    INVAR_TRY(invar_path_join(answer->ledger, sizeof answer->ledger, answer->folder, "ab.db"));
    INVAR_TRY(invar_held_folder_remove(folder));
    INVAR_TRY(invar_held_folder_make(folder));
    INVAR_TRY(import_all(numbers, answer, fresh));
    if (rename(fresh, answer->ledger) != 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s cannot get its name: %s", fresh,
                          strerror(errno));
    return invar_held_folder_remove(folder);
}

invar_status invar_ab_measure(invar_ab_result *answer)
{
    invar_ledger *ledger = NULL;
    invar_status status;
    int64_t *numbers;

    INVAR_TRY(invar_alloc((void **)&numbers, 2 * answer->n_pairs, sizeof *numbers, "runs"));
    status = ab_result_merge(numbers, answer);
    if (status == INVAR_OK)
        status = invar_ledger_open(&ledger, answer->ledger, &(invar_ledger_options){0});
    if (status == INVAR_OK)
        status = invar_ab_effects_read(&answer->effects, ledger, numbers, numbers + answer->n_pairs,
                                       answer->n_pairs);
    invar_ledger_close(ledger);
    invar_free(numbers);
    return status;
}
