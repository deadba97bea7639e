/*
 * state_internal.h - bisect state in memory. Private to bisect/state.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_STATE_STATE_INTERNAL_H
#define INVAR_BISECT_STATE_STATE_INTERNAL_H

#include "bisect/state/escaped_words.h"
#include "bisect/state/state.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_BISECT_STATE_MAGIC "# invar bisect 1\n"
#define INVAR_BISECT_STATE_FILE "state"

struct invar_bisect_state {
    char id[INVAR_DIGEST_HEX_SIZE];
    char folder[INVAR_PATH_SIZE], path[INVAR_PATH_SIZE];
    int fd;     /* locked descriptor for appending; -1 if the state is read-only */
    char *text; /* first part of the file, cut into strings; owned */
    invar_bisect_case what;
    const char **lists; /* storage for the lists of `what`; owned */
    char *recipe;       /* text of the recipe, or NULL; owned */
    invar_bisect_state_trial *trials;
    size_t count, capacity;
    int64_t until;
    bool finished;
};

/* Writes the first part of the file. `recipe` is the text of the recipe, or NULL. */
invar_status invar_bisect_state_put_case(invar_word_buffer *out, const invar_bisect_case *what,
                                         const char *recipe) INVAR_MUST_USE;

/* Parses the first part, which is state->text, and cuts it into strings. */
invar_status invar_bisect_state_take_case(invar_bisect_state *state) INVAR_MUST_USE;

/* Fails with INVAR_E_CORRUPT and names the line. */
invar_status invar_bisect_state_damaged(const invar_bisect_state *state,
                                        int64_t line) INVAR_MUST_USE;

/* Returns true for an object id in lowercase hexadecimal. */
bool invar_bisect_state_is_oid(const char *text);
/* Copies a text. Returns false if it does not fit. */
bool invar_bisect_state_copy(char *out, size_t size, const char *text);

size_t invar_bisect_state_count_lines(const char *text);

/*
 * Opens and creates state->path for appending and locks it. Returns INVAR_E_BUSY if another process
 * holds the lock.
 */
invar_status invar_bisect_state_lock(invar_bisect_state *state) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
