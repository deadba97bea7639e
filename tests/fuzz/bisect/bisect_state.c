/*
 * bisect_state.c - fuzz target: the state file of a bisect, on any bytes.
 *
 * A file is rejected with a proper message, or its case and its trials are written to a new state.
 * Both are equal there and when that file is read again, in every field that the format has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/state/state.h"

#include <stdio.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

static size_t list_length(const char *const *list)
{
    size_t count = 0;

    while (list && list[count])
        count++;
    return count;
}

static void check_list(const char *const *a, const char *const *b)
{
    INVAR_CHECK(list_length(a) == list_length(b));
    for (size_t i = 0; i < list_length(a); i++)
        INVAR_CHECK(strcmp(a[i], b[i]) == 0);
}

/* Texts that may both be NULL. */
static void check_text(const char *a, const char *b)
{
    INVAR_CHECK(!a == !b && (!a || strcmp(a, b) == 0));
}

static void check_number(double a, double b)
{
    INVAR_CHECK(a == b || (a != a && b != b));
}

/* Compares the fields that the kind of the criterion has; the others are not written. */
static void check_criterion(const invar_criterion *a, const invar_criterion *b)
{
    INVAR_CHECK(a->kind == b->kind && a->until == b->until);
    if (a->kind == INVAR_CRITERION_METRIC) {
        check_text(a->metric, b->metric);
        check_text(a->op, b->op);
        check_number(a->bound, b->bound);
    }
    if (a->kind == INVAR_CRITERION_POINTS) {
        INVAR_CHECK(a->layer == b->layer);
        check_text(a->point_kind, b->point_kind);
        check_text(a->point_op, b->point_op);
        check_text(a->phase, b->phase);
        check_text(a->point, b->point);
    }
}

static void check_case(const invar_bisect_case *got, const invar_bisect_case *expected)
{
    check_text(got->repo, expected->repo);
    check_text(got->good, expected->good);
    check_text(got->bad, expected->bad);
    check_text(got->recipe, expected->recipe);
    check_text(got->golden, expected->golden);
    check_text(got->run, expected->run);
    check_text(got->build, expected->build);
    check_text(got->program, expected->program);
    if (expected->inputs) // otherwise the inputs of the recipe are hashed as they are now
        check_text(got->inputs, expected->inputs);
    INVAR_CHECK(got->first_parent == expected->first_parent);
    INVAR_CHECK(got->all_changes == expected->all_changes);
    check_number(got->timeout, expected->timeout);
    check_criterion(&got->question, &expected->question);
    check_list(got->paths, expected->paths);
    check_list(got->skip, expected->skip);
    check_list(got->flags, expected->flags);
}

static void check_trial(const invar_bisect_state_trial *a, const invar_bisect_state_trial *b)
{
    check_text(a->trial.commit, b->trial.commit);
    check_text(a->tree, b->tree);
    check_text(a->binary, b->binary);
    INVAR_CHECK(a->attempt == b->attempt);
    check_text(a->trial.role, b->trial.role);
    check_text(a->trial.verdict, b->trial.verdict);
    check_text(a->trial.value, b->trial.value);
    check_text(a->trial.source, b->trial.source);
    INVAR_CHECK(a->trial.diverged_at == b->trial.diverged_at);
    INVAR_CHECK(a->trial.exit_code == b->trial.exit_code);
    check_number(a->trial.build_s, b->trial.build_s);
    check_number(a->trial.run_s, b->trial.run_s);
    check_text(a->trial.ledger, b->trial.ledger);
    check_text(a->trial.failure_reason, b->trial.failure_reason);
}

/* Checks that `got` has the trials of `from`, of equal commits and attempts only the first. */
static void check_trials(const invar_bisect_state *got, const invar_bisect_state *from)
{
    const invar_bisect_state_trial *expected = from->trials;
    size_t next = 0;

    for (size_t i = 0; i < from->count; i++) {
        bool known = false;
        for (size_t k = 0; k < i && !known; k++)
            known = expected[k].attempt == expected[i].attempt &&
                    strcmp(expected[k].trial.commit, expected[i].trial.commit) == 0;
        if (known)
            continue;
        INVAR_CHECK(next < got->count);
        check_trial(&got->trials[next++], &expected[i]);
    }
    INVAR_CHECK(next == got->count);
    INVAR_CHECK(got->until == from->until);
}

/* Writes the case to a new state, imports the trials, and reads the new file. */
static void write_again(const invar_bisect_state *state)
{
    invar_bisect_case expected = state->what;
    char folder[FUZZ_PATH_SIZE], path[INVAR_PATH_SIZE];
    invar_bisect_state *rewritten;

    expected.recipe_text = state->recipe;
    fuzz_path(folder, "again");
    INVAR_CHECK(invar_held_folder_remove(folder) == INVAR_OK);
    INVAR_CHECK(invar_bisect_state_open(&rewritten, folder, &expected) == INVAR_OK);
    INVAR_CHECK(invar_bisect_state_import(rewritten, state) == INVAR_OK);
    check_case(&rewritten->what, &expected);
    check_trials(rewritten, state);
    INVAR_CHECK(invar_path_join(path, sizeof path, rewritten->folder, "state") == INVAR_OK);
    invar_bisect_state_close(rewritten);
    INVAR_CHECK(invar_bisect_state_read(&rewritten, path) == INVAR_OK);
    check_case(&rewritten->what, &expected);
    check_text(rewritten->recipe, expected.recipe_text);
    check_trials(rewritten, state);
    invar_bisect_state_close(rewritten);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_SIZE];
    invar_bisect_state *state;
    invar_status status;

    fuzz_path(path, "state");
    fuzz_write(path, data, size);
    status = invar_bisect_state_read(&state, path);
    if (status != INVAR_OK) {
        fuzz_check_failure(status);
        return 0;
    }
    write_again(state);
    invar_bisect_state_close(state);
    return 0;
}
