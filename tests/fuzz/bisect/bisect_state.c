/*
 * bisect_state.c - fuzz target: the state of a bisect, whatever the bytes.
 *
 * A file is refused with a proper message, or the case that it holds, written anew, is read back
 * the same, with all its trials.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/state/state.h"

#include <stdio.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

static size_t length(const char *const *list)
{
    size_t count = 0;

    while (list && list[count])
        count++;
    return count;
}

static void check_list(const char *const *a, const char *const *b)
{
    INVAR_CHECK(length(a) == length(b));
    for (size_t i = 0; i < length(a); i++)
        INVAR_CHECK(strcmp(a[i], b[i]) == 0);
}

/* The case again, in a state of its own, with the trials taken over. */
static void write_again(const invar_bisect_state *state)
{
    invar_bisect_case what = *invar_bisect_state_case(state);
    const invar_bisect_case *back;
    char folder[FUZZ_PATH_SIZE];
    invar_bisect_state *again;
    invar_status status;
    size_t before, after;

    what.recipe_text = invar_bisect_state_recipe(state);
    fuzz_path(folder, "again");
    INVAR_CHECK(invar_held_folder_remove(folder) == INVAR_OK);
    status = invar_bisect_state_open(&again, folder, &what);
    INVAR_CHECK(status == INVAR_OK);
    INVAR_CHECK(invar_bisect_state_import(again, state) == INVAR_OK);
    back = invar_bisect_state_case(again);
    INVAR_CHECK(strcmp(back->repo, what.repo) == 0 && strcmp(back->good, what.good) == 0);
    INVAR_CHECK(back->first_parent == what.first_parent);
    INVAR_CHECK(memcmp(&back->question.until, &what.question.until, sizeof(int64_t)) == 0);
    check_list(back->paths, what.paths);
    check_list(back->skip, what.skip);
    check_list(back->flags, what.flags);
    invar_bisect_state_trials(&before, state);
    invar_bisect_state_trials(&after, again);
    INVAR_CHECK(after <= before); // one of two with the same commit and attempt
    invar_bisect_state_close(again);
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
