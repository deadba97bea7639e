/*
 * plugin.h - rewards, filters, prompts, turns, teachers, losses, hooks: attached at launch.
 *
 * A plug-in is a C shared object (engine/ext/invar_plugin.h), any program that speaks JSON lines on
 * standard input and output (docs/plugins.md), or a server (engine/ext/server). All look the same
 * from here. Whatever goes wrong inside a program, also its death, silence or rubbish, is an error
 * that names the plug-in; it is then ended and reaped, and every later call fails.
 *
 * What a plug-in replies to all but hooks is kept until the next step
 * begins, as rows for the ledger. A step that the ledger already has is answered from those rows
 * instead: the plug-in is not asked, and a request that is not the recorded one is refused, as is a
 * plug-in whose files are not those of the one that replied. So resume and replay end on the same
 * bits whatever the plug-in would say today. The requests of a step are a function of the step: one
 * call for each list of samples, each group or each sample of the loss, in order. Hooks are told of
 * things, also in a step that the ledger has; of what they say only a factor for the loss is kept.
 *
 * A plug-in belongs to one thread at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_PLUGIN_H
#define INVAR_ENGINE_EXT_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/ext/invar_plugin.h"
#include "engine/ext/server/remote_teacher.h"
#include "engine/ext/turn_action.h"
#include "engine/rl/loss.h"
#include "engine/rl/sample.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_plugin invar_plugin;

/* What a plug-in is wanted for; a mask. */
#define INVAR_PLUGIN_KIND_REWARD 1u
#define INVAR_PLUGIN_KIND_GROUP_REWARD 2u
#define INVAR_PLUGIN_KIND_FILTER 4u
#define INVAR_PLUGIN_KIND_LOSS 8u
#define INVAR_PLUGIN_KIND_HOOK 16u
#define INVAR_PLUGIN_KIND_GENERATE 32u
#define INVAR_PLUGIN_KIND_TEACHER 64u /* of servers alone */
#define INVAR_PLUGIN_KIND_BUFFER_FILTER 128u
#define INVAR_PLUGIN_KIND_PROMPTS 256u
#define INVAR_PLUGIN_KIND_AGENT 512u /* asks the model by itself, over HTTP (engine/sample/agent) */
#define INVAR_PLUGIN_KINDS 1023u     /* all of them */

typedef struct invar_plugin_options {
    const char *name; /* its role, "custom-rm": in messages and in the ledger */
    const char *spec; /* "FILE.so", or "PROGRAM ARG..." with '...' or "..." around blanks;
                         NULL: there is none, everything comes from stored replies */
    const char *url;  /* in place of `spec`: a server that is asked for rewards; NULL: none */
    const invar_remote_teacher_options *teacher; /* likewise one that is asked for log-probs */
    bool titled;      /* who it is, is the name that it gives itself, not a file */
    bool apart;       /* somebody else starts `spec`: here it is known, and its replies are kept */
    uint32_t kinds;   /* kinds of calls that must be offered; a missing kind is an error */
    double timeout;   /* seconds that a program may take for its start or a reply; 0: no limit */
    int log_fd;       /* file for a program's standard error; -1 if it is discarded */
    int64_t restarts; /* how often a program that died is started again, in all */
} invar_plugin_options;

/* Loads or starts it. `name` and `spec` are copied. */
invar_status invar_plugin_open(invar_plugin **out,
                               const invar_plugin_options *options) INVAR_MUST_USE;

/* Ends a program: it sees the end of its input, and is killed if that does not end it. */
void invar_plugin_close(invar_plugin *plugin);

/*
 * Called at least every second while a reply is awaited, and far more often where much comes.
 * `plugin` may be NULL. A reply that is late ends the wait by itself (timeout): so whoever waits
 * for us can be told that we go on.
 */
void invar_plugin_set_wait_callback(invar_plugin *plugin, void (*waits)(void *payload),
                                    void *payload);

/* The name that it has given itself; "" when there is none behind it. Borrowed. */
const char *invar_plugin_title(const invar_plugin *plugin);

/* How often the program was started again because it had died. */
int64_t invar_plugin_restarts(const invar_plugin *plugin);

/* Its role. Borrowed. */
const char *invar_plugin_name(const invar_plugin *plugin);

#define INVAR_PLUGIN_SCOPE "plugin" /* of the facts that have the digests of plug-ins */

/* The digest of its own files (engine/ext/plugin_command.h), a fact of the run; NULL: not known. */
const invar_digest *invar_plugin_hash(const invar_plugin *plugin);

/* ---- steps and replies ----------------------------------------------------------------------- */

/* Replies of one step as the ledger has them. */
typedef struct invar_plugin_replies {
    const invar_ledger_plugin_reply *items; /* (count), in any order; of any plug-ins */
    size_t count;
} invar_plugin_replies;

/*
 * A new step: calls are numbered from 0 again and the last step's replies forgotten. With `stored`
 * (borrowed until the next begin), calls are answered from there: INVAR_E_NOTFOUND when a reply is
 * missing, INVAR_E_MISMATCH when it belongs to another request.
 */
invar_status invar_plugin_begin_step(invar_plugin *plugin, int64_t step,
                                     const invar_plugin_replies *stored) INVAR_MUST_USE;

/* The replies since begin, in order of calls; borrowed until the next call on the plug-in. */
invar_plugin_replies invar_plugin_get_replies(const invar_plugin *plugin);

/* ---- calls ----------------------------------------------------------------------------------- */

/*
 * reward_out (count), finite. Opened for GROUP_REWARD: one call for each run of samples with equal
 * `group`; else one for all. parts_out (count) is zeroed before; the caller releases each, also
 * after a failure.
 */
invar_status invar_plugin_reward(invar_plugin *plugin, const invar_rl_sample *samples,
                                 int64_t count, double *reward_out,
                                 invar_reward_parts *parts_out) INVAR_MUST_USE;

/* verdict_out (count): INVAR_PLUGIN_KEEP, _REMOVE or _DROP (equal for all samples of a group). */
invar_status invar_plugin_filter(invar_plugin *plugin, const invar_rl_sample *samples,
                                 int64_t count, uint8_t *verdict_out) INVAR_MUST_USE;

/* The same of samples that wait: INVAR_PLUGIN_TAKE, _WAIT or _DROP, one word for each group. */
invar_status invar_plugin_filter_buffer(invar_plugin *plugin, const invar_plugin_buffer *buffer,
                                        const invar_rl_sample *samples, int64_t count,
                                        uint8_t *verdict_out) INVAR_MUST_USE;

/* lines_out (wanted->count), each from 0 to wanted->lines - 1. */
invar_status invar_plugin_prompts(invar_plugin *plugin, const invar_plugin_wanted *wanted,
                                  int64_t *lines_out) INVAR_MUST_USE;

/*
 * What comes after turns of samples, one call for all; next_out (count) is zeroed before, and the
 * caller releases each, also after a failure. The reply is the last of invar_plugin_get_replies.
 */
invar_status invar_plugin_generate(invar_plugin *plugin, const invar_plugin_turn *turns,
                                   size_t count, invar_turn_action *next_out) INVAR_MUST_USE;

/* The same out of that reply, where another rank has asked. `name` is the plug-in's. */
invar_status invar_plugin_generate_read(const char *name, const char *reply, size_t bytes,
                                        size_t count, invar_turn_action *next_out) INVAR_MUST_USE;

/* A sample as plug-ins see it; borrows. */
void invar_plugin_sample_view(invar_plugin_sample *out, const invar_rl_sample *sample);

/* A teacher's log-probs of all responses, one behind the other; one call for all. Finite. */
invar_status invar_plugin_score(float *logp_out, invar_plugin *plugin,
                                const invar_rl_sample *samples, int64_t count) INVAR_MUST_USE;

/* One sample; `plugin` is an invar_plugin: this is the `run` of an invar_loss_custom. Finite. */
invar_status invar_plugin_loss(float *loss_out, float *dlogp_out, const invar_loss_sample *sample,
                               void *plugin) INVAR_MUST_USE;

/* "after_init", "before_logprob", "before_train_step", "after_rollout", "after_eval". */
const char *invar_plugin_hook_name(int hook);

/*
 * `samples` (count) go with after_rollout and after_eval; else NULL. The plug-in may say what it
 * has measured, named numbers (measures_out is zeroed before; the caller releases), and give a
 * factor for the loss of the coming step, 1 where it does not. A factor is kept as a reply; one
 * that is stored counts in place of what the hook says now.
 */
invar_status invar_plugin_hook(invar_plugin *plugin, const invar_plugin_event *event,
                               const invar_rl_sample *samples, int64_t count,
                               invar_reward_parts *measures_out, double *factor_out) INVAR_MUST_USE;

/* ---- who is asked elsewhere ------------------------------------------------------------------ */

/* The place of a call among the replies of a step. */
typedef struct invar_plugin_reply_slot {
    int64_t call;
    invar_digest request;
    const char *data; /* (bytes) the stored reply, borrowed; NULL: somebody is to be asked */
    size_t bytes;
} invar_plugin_reply_slot;

/* The next call of a plug-in that is `apart`, about one sample. It fails where a step that the
   ledger has lacks the reply, or has that to another request. */
invar_status invar_plugin_next_slot(invar_plugin_reply_slot *out, invar_plugin *plugin,
                                    const invar_rl_sample *sample) INVAR_MUST_USE;

/* Its reply, for the ledger; a copy is kept. */
invar_status invar_plugin_store_reply(invar_plugin *plugin, const invar_plugin_reply_slot *slot,
                                      const char *data, size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
