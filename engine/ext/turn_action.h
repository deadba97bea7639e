/*
 * turn_action.h - actions of a plug-in after a turn: insert text or tokens, or end the sample.
 *
 * An action is exchanged as a line of JSON, also for shared objects: the ledger keeps it, and every
 * rank parses the same bytes. Inserted text and tokens are checked for their form only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_TURN_ACTION_H
#define INVAR_ENGINE_EXT_TURN_ACTION_H

#include <jansson.h>

#include "base/json/text.h"
#include "engine/ext/invar_plugin.h"
#include "engine/rl/reward_parts.h"

/* Strings that end a turn, in one allocation (free with invar_free). */
typedef struct invar_turn_stop_strings {
    int64_t count;
    const char **strings; /* (count) stop strings */
} invar_turn_stop_strings;

/* One action. Zero-initialize before use; release with invar_turn_action_release. */
typedef struct invar_turn_action {
    bool end;
    bool rewarded; /* the sample ends with the reward below */
    double reward;
    invar_reward_parts parts;
    char *text; /* inserted text; NULL if tokens are inserted */
    size_t text_bytes;
    int32_t *tokens; /* (n_tokens) inserted tokens */
    int64_t n_tokens;
    int64_t max_tokens;            /* limit of the next turn; 0 for no limit of its own */
    invar_turn_stop_strings *stop; /* stop strings of the next turn; NULL for those of the recipe */
} invar_turn_action;

void invar_turn_action_release(invar_turn_action *next);

/*
 * Writes the actions as the line that a program would send. `names` of reward parts end with a
 * NULL.
 */
void invar_turn_actions_write(invar_json_text *text, const invar_plugin_next *next, size_t count,
                              const char *const *names);

/*
 * Parses `count` actions into out (count), which the caller releases. Returns INVAR_E_CORRUPT if
 * `reply` is not an answer to `count` turns.
 */
invar_status invar_turn_actions_read(invar_turn_action *out, size_t count, const json_t *reply,
                                     const char *where) INVAR_MUST_USE;

#endif
