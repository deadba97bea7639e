/*
 * state_internal.h - a state in memory, for the files that read and write it.
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
    int fd;     /* the file, locked and to append to; -1: of a reader */
    char *text; /* the first part, cut into strings */
    invar_bisect_case what;
    const char **lists; /* room for the lists of `what` */
    char *recipe;       /* text; NULL: none */
    invar_bisect_state_trial *trials;
    size_t count, capacity;
    int64_t until;
    bool finished;
};

/* The first part of the file: what is asked. `recipe` is the recipe's text; NULL: none. */
invar_status invar_bisect_state_put_case(invar_word_buffer *out, const invar_bisect_case *what,
                                         const char *recipe) INVAR_MUST_USE;

/* The reverse: state->text is that part, and is cut into strings. */
invar_status invar_bisect_state_take_case(invar_bisect_state *state) INVAR_MUST_USE;

/* The error about a line that nobody wrote. */
invar_status invar_bisect_state_damaged(const invar_bisect_state *state,
                                        int64_t line) INVAR_MUST_USE;

/* An object id; a text that fits. */
bool invar_bisect_state_is_oid(const char *text);
bool invar_bisect_state_copy(char *out, size_t size, const char *text);

size_t invar_bisect_state_count_lines(const char *text);

/* Opens state->path to append to, for this process alone. */
invar_status invar_bisect_state_lock(invar_bisect_state *state) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
