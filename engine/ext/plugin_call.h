/*
 * plugin_call.h - one call of a plug-in: what is asked, where the answer goes, and both as bytes.
 *
 * The answer has two forms of bytes: a line of JSON, as a program wrote it, and 'b' followed by the
 * plain little-endian values, for a shared object. Rewards with parts have 'p', the rewards, and
 * then of each its number of parts and these. Turns (turn_action.h) are always JSON. Whatever it
 * is, it is kept in the ledger and read back.
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

#ifdef __cplusplus
extern "C" {
#endif

/* Of one of the kinds of plugin.h, which says what is set below. */
typedef struct invar_plugin_call {
    const char *plugin; /* its name, for messages */
    uint32_t kind;
    int64_t step;
    int64_t id;                         /* its number in the step */
    const invar_plugin_sample *samples; /* rewards, filter and teacher */
    size_t count;
    const invar_plugin_turn *turns;    /* (count) generate */
    const invar_plugin_tokens *tokens; /* loss */
    const invar_plugin_event *event;   /* hook */
    const invar_plugin_buffer *buffer; /* filter of the buffer */
    const invar_plugin_wanted *wanted; /* prompts */
    double *reward;                    /* (count) */
    invar_reward_parts *parts;         /* (count) of the rewards; zeroed before */
    invar_reward_parts *measures;      /* what a hook says it has measured; zeroed before */
    double *factor;                    /* that it gives for the loss; 1 before */
    uint8_t *verdict;                  /* (count) */
    int64_t *lines;                    /* (wanted->count) */
    invar_turn_action *next;           /* (count) zeroed before; the caller releases each */
    float *dlogp, *loss;               /* (tokens->count) */
    float *logp;                       /* teacher: of all responses of `samples` */
} invar_plugin_call;

/* "reward", "group_reward", ...; NULL for what is not exactly one kind. */
const char *invar_plugin_kind_name(uint32_t kind);

/* The hash of the question, whoever is asked. Step and number are no part of it. */
void invar_plugin_call_hash(invar_digest *out, const invar_plugin_call *call);

/* The question as a line; failures stay in `text`. */
void invar_plugin_call_write(invar_json_text *text, const invar_plugin_call *call);

/* Reads an answer of either form; `live`: it must be JSON and have the call's id. */
invar_status invar_plugin_call_read(const invar_plugin_call *call, const char *data, size_t bytes,
                                    bool live) INVAR_MUST_USE;

/* The plain form of the answer, checked; the caller owns *out. */
invar_status invar_plugin_call_pack(char **out, size_t *bytes_out,
                                    const invar_plugin_call *call) INVAR_MUST_USE;

/* ---- pieces of a reply ----------------------------------------------------------------------- */

#define INVAR_PLUGIN_TOTAL "total" /* the member of a reward's object that is no part */

/* A list of `count` values; borrowed. */
invar_status invar_plugin_list_read(const json_t **out, const json_t *reply, const char *key,
                                    size_t count, const char *where) INVAR_MUST_USE;

/* A reward: a finite number, or an object of named parts. */
invar_status invar_plugin_reward_read(double *out, invar_reward_parts *parts, json_t *value,
                                      const char *where) INVAR_MUST_USE;

/* ---- the first line of a program ------------------------------------------------------------- */

#define INVAR_PLUGIN_TITLE_SIZE 65

void invar_plugin_greet_write(invar_json_text *text, const char *plugin, uint32_t kinds);
invar_status invar_plugin_greet_read(char title_out[INVAR_PLUGIN_TITLE_SIZE], uint32_t *kinds_out,
                                     const char *plugin, const char *data,
                                     size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
