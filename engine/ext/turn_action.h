/*
 * turn_action.h - what a plug-in answers after a turn of a sample: what comes next.
 *
 * The answer is a line of JSON, also of a shared object's functions: the ledger keeps it, and every
 * rank reads the same bytes. What is inserted, text or tokens, is only known to be well-formed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_TURN_ACTION_H
#define INVAR_ENGINE_EXT_TURN_ACTION_H

#include <jansson.h>

#include "base/json/text.h"
#include "engine/ext/invar_plugin.h"
#include "engine/rl/reward_parts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Strings that end a turn, in one block (invar_free). */
typedef struct invar_turn_stop_strings {
    int64_t count;
    const char **strings; /* (count) */
} invar_turn_stop_strings;

/* What comes after a turn. Zeroed at first; release. */
typedef struct invar_turn_action {
    bool end;
    bool rewarded; /* of one that ends: the rewards below count */
    double reward;
    invar_reward_parts parts;
    char *text; /* that is inserted; NULL: the tokens are */
    size_t text_bytes;
    int32_t *tokens; /* (n_tokens) */
    int64_t n_tokens;
    int64_t max_tokens;            /* of the next turn; 0: no limit of its own */
    invar_turn_stop_strings *stop; /* of the next turn; NULL: the recipe's */
} invar_turn_action;

void invar_turn_action_release(invar_turn_action *next);

/* The reply that a program would have written; `names` of parts end with a NULL. */
void invar_turn_write_next(invar_json_text *text, const invar_plugin_next *next, size_t count,
                           const char *const *names);

/* INVAR_E_CORRUPT unless `reply` answers `count` turns. out (count), released by the caller. */
invar_status invar_turn_read(invar_turn_action *out, size_t count, const json_t *reply,
                             const char *where) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
