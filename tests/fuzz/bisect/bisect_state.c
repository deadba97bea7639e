/*
 * bisect_state.c - fuzz target: the state file of a bisect, on any bytes.
 *
 * A file is rejected with a proper message, or its case is written to a new state, read back the
 * same, and its trials can be imported.
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

/* Writes the case to a new state and imports the trials. */
static void write_again(const invar_bisect_state *state)
{
    invar_bisect_case expected = *invar_bisect_state_case(state);
    const invar_bisect_case *reread;
    char folder[FUZZ_PATH_SIZE];
    invar_bisect_state *rewritten;
    invar_status status;
    size_t before, after;

    expected.recipe_text = invar_bisect_state_recipe(state);
    fuzz_path(folder, "again");
    INVAR_CHECK(invar_held_folder_remove(folder) == INVAR_OK);
    status = invar_bisect_state_open(&rewritten, folder, &expected);
    INVAR_CHECK(status == INVAR_OK);
    INVAR_CHECK(invar_bisect_state_import(rewritten, state) == INVAR_OK);
    reread = invar_bisect_state_case(rewritten);
    INVAR_CHECK(strcmp(reread->repo, expected.repo) == 0 &&
                strcmp(reread->good, expected.good) == 0);
    INVAR_CHECK(reread->first_parent == expected.first_parent);
    INVAR_CHECK(memcmp(&reread->question.until, &expected.question.until, sizeof(int64_t)) == 0);
    check_list(reread->paths, expected.paths);
    check_list(reread->skip, expected.skip);
    check_list(reread->flags, expected.flags);
    invar_bisect_state_trials(&before, state);
    invar_bisect_state_trials(&after, rewritten);
    INVAR_CHECK(after <= before); // duplicate trials are merged
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
