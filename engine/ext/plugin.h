/*
 * plugin.h - plug-ins: rewards, filters, prompts, turns, teachers, losses and hooks, attached at
 * launch.
 *
 * A plug-in is a C shared object (engine/ext/invar_plugin.h), a program that speaks JSON lines on
 * standard input and output (docs/plugins.md), or a server (engine/ext/server). All have the same
 * interface here. Any failure of a program, including a timeout or invalid output, is an error that
 * names the plug-in; the program is then killed and reaped, and every later call fails. A program
 * that dies is started again and gets the request again, as often as `restarts` permits.
 *
 * Replies are kept until the next step begins, as rows for the ledger. Steps that the ledger
 * already has are answered from those rows: the plug-in is not called, and a request that differs
 * from the recorded one is rejected, as is a plug-in whose files differ from those of the plug-in
 * that replied. Resume and replay therefore produce the same bits whatever the plug-in would reply
 * today. The requests of a step are a function of the step: one call per list of samples, per group
 * or per sample of the loss, in order. Hooks are notified in recorded steps, too; only their factor
 * for the loss is kept.
 *
 * A plug-in must be used by one thread at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_PLUGIN_H
#define INVAR_ENGINE_EXT_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/ext/plugin_call.h"
#include "engine/rl/loss.h"
#include "engine/rl/sample.h"
#include "ledger/ledger.h"

typedef struct invar_plugin invar_plugin;

/* Texts of the student's tokens; `payload` is borrowed. */
typedef struct invar_token_text_fn {
    /* Returns the text of a token, which need not be UTF-8. */
    const char *(*text)(size_t *bytes_out, const void *payload, int32_t token);
    const void *payload;
    int64_t count; /* number of token ids */
} invar_token_text_fn;

/* Teacher model behind an HTTP server (engine/ext/server/remote_teacher.h). */
typedef struct invar_remote_teacher_options {
    const char *model; /* model to request, borrowed; empty for the server's default */
    const char *key;   /* API key; NULL if absent */
    double temperature;
    invar_token_text_fn words;
} invar_remote_teacher_options;

/* At most one of `spec` and `url` is set. If none is, all replies come from the ledger. */
typedef struct invar_plugin_options {
    const char *name; /* role, "custom-rm"; used in messages and in the ledger */
    /* "FILE.so", or "PROGRAM ARG..." with '...' or "..." around blanks; NULL if absent */
    const char *spec;
    const char *url; /* server that computes rewards, or of the teacher; NULL if absent */
    /* teacher at `url`, whose API has the version in the URL: http://HOST:PORT/v1; else NULL */
    const invar_remote_teacher_options *teacher;
    /* identify the plug-in by the name that it reports, not by the hash of its files */
    bool identify_by_title;
    bool record_only; /* another component starts `spec`; here replies are only recorded */
    /* kinds of calls that must be offered, else opening fails; calls of other kinds fail */
    uint32_t kinds;
    /*
     * Time limit in seconds of a program's handshake and of each reply, or of each request to
     * `url`; 0 for no limit.
     */
    double timeout;
    int log_fd;       /* file for the standard error of a program; -1 to discard it */
    int64_t restarts; /* limit for restarts of a program that died, over its lifetime */
} invar_plugin_options;

/* Loads or starts a plug-in. `name` and `spec` are copied. */
invar_status invar_plugin_open(invar_plugin **out,
                               const invar_plugin_options *options) INVAR_MUST_USE;

/*
 * Closes a plug-in; NULL is ignored. A program sees the end of its input, and is killed if it does
 * not exit.
 */
void invar_plugin_close(invar_plugin *plugin);

/*
 * Sets a callback that runs at least once per second while a reply is awaited, and more often while
 * data arrives. The caller can send heartbeats from it: a late reply ends the wait anyway
 * (timeout). `plugin` may be NULL.
 */
void invar_plugin_set_wait_callback(invar_plugin *plugin, void (*waits)(void *payload),
                                    void *payload);

/* Name that the plug-in reports; empty if no plug-in is attached. Borrowed. */
const char *invar_plugin_title(const invar_plugin *plugin);

/* Number of restarts after the program had died. */
int64_t invar_plugin_restarts(const invar_plugin *plugin);

/* Role of the plug-in. Borrowed. */
const char *invar_plugin_name(const invar_plugin *plugin);

#define INVAR_PLUGIN_SCOPE                                                                         \
    "plugin" /* scope of the ledger facts that hold the digests of plug-ins */

/*
 * Digest that identifies the plug-in, a fact of the run: of its own files (invar_plugin_argv_hash),
 * or of the name that it reports (identify_by_title, teachers). NULL if unknown.
 */
const invar_digest *invar_plugin_hash(const invar_plugin *plugin);

/* ---- steps and replies ----------------------------------------------------------------------- */

/* List of replies with names and data of its own. Zero-initialize before use. */
typedef struct invar_plugin_reply_list {
    invar_ledger_plugin_reply *items; /* (count) */
    int64_t count, capacity;
} invar_plugin_reply_list;

/* Appends a copy; `list` is an invar_plugin_reply_list. A callback of invar_ledger_replies. */
invar_status invar_plugin_reply_list_add(void *list,
                                         const invar_ledger_plugin_reply *reply) INVAR_MUST_USE;

/* Removes all replies, and keeps the memory for their number. */
void invar_plugin_reply_list_clear(invar_plugin_reply_list *list);

/* Replies of one step as recorded in the ledger. */
typedef struct invar_plugin_replies {
    const invar_ledger_plugin_reply *items; /* (count) unordered; of any plug-ins */
    size_t count;
} invar_plugin_replies;

/*
 * Begins a step: call numbers restart at 0 and the replies of the last step are discarded. With
 * `stored` (borrowed until the next begin) calls are answered from there. They fail with
 * INVAR_E_NOTFOUND if a reply is missing, and INVAR_E_MISMATCH if it belongs to a different
 * request. Returns INVAR_E_NOTFOUND if `stored` is NULL and no plug-in is attached.
 */
invar_status invar_plugin_begin_step(invar_plugin *plugin, int64_t step,
                                     const invar_plugin_replies *stored) INVAR_MUST_USE;

/* Replies since the step began, in call order; borrowed until the next call on the plug-in. */
invar_plugin_replies invar_plugin_get_replies(const invar_plugin *plugin);

/* ---- calls ----------------------------------------------------------------------------------- */

/*
 * Computes reward_out (count), finite. With the kind GROUP_REWARD there is one call per run of
 * samples with equal `group`, otherwise one for all. Zero-initialize parts_out (count); the caller
 * releases each, also after a failure.
 */
invar_status invar_plugin_reward(invar_plugin *plugin, const invar_rl_sample *samples,
                                 int64_t count, double *reward_out,
                                 invar_reward_parts *parts_out) INVAR_MUST_USE;

/*
 * Filters samples: verdict_out (count) is INVAR_PLUGIN_KEEP, _REMOVE or _DROP. If one sample of a
 * group is dropped, all of them are.
 */
invar_status invar_plugin_filter(invar_plugin *plugin, const invar_rl_sample *samples,
                                 int64_t count, uint8_t *verdict_out) INVAR_MUST_USE;

/*
 * Filters samples in the buffer: verdict_out (count) is INVAR_PLUGIN_TAKE, _WAIT or _DROP, equal
 * within a group. Returns INVAR_E_CORRUPT if the verdicts of a group differ.
 */
invar_status invar_plugin_filter_buffer(invar_plugin *plugin, const invar_plugin_buffer *buffer,
                                        const invar_rl_sample *samples, int64_t count,
                                        uint8_t *verdict_out) INVAR_MUST_USE;

/*
 * Chooses prompts: lines_out (wanted->count) gets lines of prompt-data, from 0 to wanted->lines -
 * 1.
 */
invar_status invar_plugin_prompts(invar_plugin *plugin, const invar_plugin_wanted *wanted,
                                  int64_t *lines_out) INVAR_MUST_USE;

/*
 * Asks for the actions after turns of samples, one call for all. Zero-initialize next_out (count);
 * the caller releases each, also after a failure. The reply is the last one of
 * invar_plugin_get_replies.
 */
invar_status invar_plugin_generate(invar_plugin *plugin, const invar_plugin_turn *turns,
                                   size_t count, invar_turn_action *next_out) INVAR_MUST_USE;

/*
 * Like invar_plugin_generate, but parses a reply that another rank received. `name` is the
 * plug-in's.
 */
invar_status invar_plugin_generate_read(const char *name, const char *reply, size_t bytes,
                                        size_t count, invar_turn_action *next_out) INVAR_MUST_USE;

/* Fills the plug-in's view of a sample; borrows its data. */
void invar_plugin_sample_view(invar_plugin_sample *out, const invar_rl_sample *sample);

/* Log-probs of a teacher for all responses, concatenated; finite. One call for all samples. */
invar_status invar_plugin_score(float *logp_out, invar_plugin *plugin,
                                const invar_rl_sample *samples, int64_t count) INVAR_MUST_USE;

/*
 * Loss and gradient of one sample, finite. `plugin` is an invar_plugin: this function is the
 * callback of an invar_loss_custom.
 */
invar_status invar_plugin_loss(float *loss_out, float *dlogp_out, const invar_loss_sample *sample,
                               void *plugin) INVAR_MUST_USE;

/*
 * Calls a hook. `samples` (count) are passed for after_rollout and after_eval, else NULL. The
 * plug-in may report named numbers (zero-initialize measures_out; the caller releases it) and a
 * factor for the loss of the coming step, 1 by default. A factor is kept as a reply; a recorded
 * factor replaces the one that the hook gives now.
 */
invar_status invar_plugin_hook(invar_plugin *plugin, const invar_plugin_event *event,
                               const invar_rl_sample *samples, int64_t count,
                               invar_reward_parts *measures_out, double *factor_out) INVAR_MUST_USE;

/* ---- recorded only --------------------------------------------------------------------------- */

/* Position of a call among the replies of a step. */
typedef struct invar_plugin_reply_slot {
    int64_t call;
    invar_digest request;
    const char *data; /* (bytes) recorded reply, borrowed; NULL if the plug-in must be called */
    size_t bytes;
} invar_plugin_reply_slot;

/*
 * Begins the next call, about one sample, of a plug-in that was opened with `record_only`. Fails if
 * the ledger has the step but not the reply, or has a reply to a different request.
 */
invar_status invar_plugin_next_slot(invar_plugin_reply_slot *out, invar_plugin *plugin,
                                    const invar_rl_sample *sample) INVAR_MUST_USE;

/* Stores a copy of the reply of a slot for the ledger. */
invar_status invar_plugin_store_reply(invar_plugin *plugin, const invar_plugin_reply_slot *slot,
                                      const char *data, size_t bytes) INVAR_MUST_USE;

#endif
