/*
 * plugin_call.h - one call of a plug-in: request, buffers for the answer, and both encodings.
 *
 * An answer is encoded as a line of JSON, as a program wrote it, or as 'b' followed by plain
 * little-endian values, for a shared object. Rewards with parts are encoded as 'p', the rewards,
 * and then for each reward its number of parts and the parts. Answers to turns (turn_action.h) are
 * always JSON. Either encoding is kept in the ledger and read back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_PLUGIN_CALL_H
#define INVAR_ENGINE_EXT_PLUGIN_CALL_H

#include "base/hash.h"
#include "base/json/text.h"
#include "engine/ext/invar_plugin.h"
#include "engine/ext/turn_action.h"
#include "engine/rl/reward_parts.h"

/* Kinds of calls that a plug-in can offer (kinds.def); a mask. */
enum {
#define INVAR_PLUGIN_KIND(ID, bit, ...) INVAR_PLUGIN_KIND_##ID = bit,
#include "engine/ext/kinds.def"
#undef INVAR_PLUGIN_KIND
    INVAR_PLUGIN_KINDS = 0 /* mask of all kinds */
#define INVAR_PLUGIN_KIND(ID, bit, ...) | (bit)
#include "engine/ext/kinds.def"
#undef INVAR_PLUGIN_KIND
};

/* Name of a kind, "reward", "group_reward", ...; NULL if `kind` is not exactly one kind. */
const char *invar_plugin_kind_name(uint32_t kind);

/*
 * Name of a hook: "after_init", "before_logprob", "before_train_step", "after_rollout",
 * "after_eval".
 */
const char *invar_plugin_hook_name(int hook);

/* A call of one of the kinds of kinds.def, which determines the fields that are set. */
typedef struct invar_plugin_call {
    const char *plugin; /* name of the plug-in, used in error messages */
    uint32_t kind;
    int64_t step;
    int64_t id;                         /* number of the call in the step */
    const invar_plugin_sample *samples; /* (count) rewards, filters and teacher */
    size_t count;
    const invar_plugin_turn *turns;            /* (count) generate */
    const invar_plugin_tokens *tokens;         /* loss */
    const invar_plugin_event *event;           /* hook */
    const invar_plugin_buffer *buffer;         /* buffer filter */
    const invar_plugin_wanted *prompt_request; /* prompts */
    double *reward;                            /* (count) answer */
    invar_reward_parts *parts;    /* (count) parts of the rewards; zero-initialized by the caller */
    invar_reward_parts *measures; /* values reported by a hook; zero-initialized by the caller */
    double *factor;               /* factor of a hook for the loss; preset to 1 */
    uint8_t *verdict;             /* (count) answer */
    int64_t *lines;               /* (prompt_request->count) answer */
    invar_turn_action *next;      /* (count) zero-initialized; the caller releases each */
    float *dlogp, *loss;          /* (tokens->count) answer */
    float *logp; /* teacher: log-probs of all responses of `samples`, concatenated */
} invar_plugin_call;

/*
 * Hash of the request, independent of the transport. Step, call number and the event of a hook are
 * not included.
 */
void invar_plugin_call_hash(invar_digest *out, const invar_plugin_call *call);

/* Writes the request as a line of JSON; failures stay in `text`. */
void invar_plugin_call_write(invar_json_text *text, const invar_plugin_call *call);

/*
 * Parses an answer in either encoding into the buffers of the call, and checks it. If `live`, the
 * answer must be JSON with the id of the call.
 */
invar_status invar_plugin_call_read(const invar_plugin_call *call, const char *data, size_t bytes,
                                    bool live) INVAR_MUST_USE;

/* Like invar_plugin_call_read, for a text that was written; returns its failure if it has one. */
invar_status invar_plugin_call_read_text(const invar_plugin_call *call, const invar_json_text *text,
                                         bool live) INVAR_MUST_USE;

/* Checks the answer and encodes it as plain values, which replace the content of `out`. */
invar_status invar_plugin_call_pack(invar_json_text *out,
                                    const invar_plugin_call *call) INVAR_MUST_USE;

/* ---- parts of a reply ------------------------------------------------------------------------ */

#define INVAR_PLUGIN_TOTAL "total" /* key in a reward object that is not a part */

/* Returns the list `key` of a reply, which must have `count` values; borrowed. */
invar_status invar_plugin_list_read(const json_t **out, const json_t *reply, const char *key,
                                    size_t count, const char *where) INVAR_MUST_USE;

/* Parses a reward: a finite number, or an object of named parts. */
invar_status invar_plugin_reward_read(double *out, invar_reward_parts *parts, json_t *value,
                                      const char *where) INVAR_MUST_USE;

/* ---- handshake ------------------------------------------------------------------------------- */

#define INVAR_PLUGIN_TITLE_SIZE 65

/*
 * Exchanges the first lines with a program, which is killed if its line is not valid. *kinds_out
 * are the kinds that it offers.
 */
struct invar_line_process;
invar_status invar_plugin_greet(char title_out[INVAR_PLUGIN_TITLE_SIZE], uint32_t *kinds_out,
                                struct invar_line_process *program, const char *name,
                                uint32_t kinds) INVAR_MUST_USE;

/* Writes the first line that a program gets, and parses the first line that it sends. */
void invar_plugin_greet_write(invar_json_text *text, const char *plugin, uint32_t kinds);
invar_status invar_plugin_greet_read(char title_out[INVAR_PLUGIN_TITLE_SIZE], uint32_t *kinds_out,
                                     const char *plugin, const char *data,
                                     size_t bytes) INVAR_MUST_USE;

#endif
