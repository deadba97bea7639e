/*
 * run_plugins.h - the plug-ins of a run, asked in its steps, or answered from its ledger.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_RUN_PLUGINS_H
#define INVAR_ENGINE_RUN_RUN_PLUGINS_H

#include "base/recipe/recipe.h"
#include "engine/ext/recorded_replies.h"
#include "engine/record/recorder.h"
#include "engine/text/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    INVAR_RUN_PLUGINS_REWARD,
    INVAR_RUN_PLUGINS_TURNS,   /* leads samples */
    INVAR_RUN_PLUGINS_AGENTS,  /* lead them by themselves; here is what they did */
    INVAR_RUN_PLUGINS_TEACHER, /* scores them */
    INVAR_RUN_PLUGINS_GROUPS,  /* filters them */
    INVAR_RUN_PLUGINS_FILTER,
    INVAR_RUN_PLUGINS_BUFFER,  /* filters those that wait */
    INVAR_RUN_PLUGINS_PROMPTS, /* chooses prompts */
    INVAR_RUN_PLUGINS_LOSS,
    INVAR_RUN_PLUGINS_HOOKS
};
#define INVAR_PLUGINS (INVAR_RUN_PLUGINS_HOOKS + 5) /* one for each hook */

/* Zeroed, there is none. */
typedef struct invar_run_plugins {
    invar_plugin *of[INVAR_PLUGINS];              /* NULL: not attached */
    invar_recorded_replies stored[INVAR_PLUGINS]; /* their replies to the step before */
    int64_t restarts[INVAR_PLUGINS];              /* that the ledger knows of */
    double factor;                                /* for the loss, as the last hook has given it */
    invar_hook_metrics measures[INVAR_PLUGINS - INVAR_RUN_PLUGINS_HOOKS]; /* since the last step */
    bool replay;          /* they are not started: their replies come from the ledger */
    invar_ledger *record; /* of agents; NULL: the run's own */
    int64_t record_run;
} invar_run_plugins;

/* `tokenizer` is borrowed. */
invar_status invar_run_plugins_open(invar_run_plugins *out, const invar_recipe *recipe,
                                    const invar_tokenizer *tokenizer, bool replay) INVAR_MUST_USE;
void invar_run_plugins_close(invar_run_plugins *plugins);

/*
 * Returns what invar_run_plugins_open would fail with if a shared object or a program of the recipe
 * does not exist. Nothing is loaded or started.
 */
invar_status invar_run_plugins_locate(const invar_recipe *recipe) INVAR_MUST_USE;

/* Tells, and notes in the ledger, which are others than when `step` was executed. */
invar_status invar_run_plugins_compare(const invar_run_plugins *plugins, invar_recorder *recorder,
                                       int64_t step) INVAR_MUST_USE;

/* Records an event for each plug-in program that was started again since the last call. */
invar_status invar_run_plugins_tell_restarts(invar_run_plugins *plugins, invar_recorder *recorder,
                                             int64_t step) INVAR_MUST_USE;

/*
 * A new step for a plug-in that is asked; without one nothing happens. It is answered from the
 * ledger where that has the step already.
 */
invar_status invar_run_plugins_begin(invar_run_plugins *plugins, int place,
                                     const invar_recorder *recorder, int64_t step) INVAR_MUST_USE;

/*
 * Tells a hook, where one is attached, with `samples` if there are some; what it has measured is
 * kept until it is told again.
 */
invar_status invar_run_plugins_hook(invar_run_plugins *plugins, const invar_plugin_event *event,
                                    const invar_rl_samples *samples) INVAR_MUST_USE;

/* Forgets what hooks have measured: the ledger has it. */
void invar_run_plugins_clear_metrics(invar_run_plugins *plugins);

/*
 * What was replied in this step, `first` of its rollout or not: of the loss and of hooks, and of
 * rewards, filters and teachers, which are asked once for the whole rollout; and the text of a
 * recorded schedule's tick, where there is one. The caller frees the array, which borrows.
 */
invar_status invar_run_plugins_replies(invar_ledger_plugin_reply **out, size_t *count_out,
                                       const invar_run_plugins *plugins,
                                       const invar_json_text *tick, bool first) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
