/*
 * run_plugins.h - the plug-ins of a run: called in its steps, or answered from its ledger.
 *
 * A step that the ledger has already is answered with the recorded replies, so that executing it
 * again gives the same bits. Plug-ins are attached on rank 0 only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_RUN_PLUGINS_H
#define INVAR_ENGINE_RUN_RUN_PLUGINS_H

#include "engine/config/config.h"
#include "engine/ext/recorded_replies.h"
#include "engine/record/recorder.h"
#include "engine/text/tokenizer/tokenizer.h"

/* Roles of plug-ins (engine/ext/kinds.def), and their number; the last five are hooks. */
enum {
#define INVAR_PLUGIN_ROLE(ID, key, field, kind) INVAR_RUN_PLUGINS_##ID,
#include "engine/ext/kinds.def"
#undef INVAR_PLUGIN_ROLE
    INVAR_PLUGINS
};

/* Plug-ins by role; zeroed if there are no plug-ins. Release with invar_run_plugins_close. */
typedef struct invar_run_plugins {
    invar_plugin *by_role[INVAR_PLUGINS];         /* NULL if not attached */
    invar_recorded_replies stored[INVAR_PLUGINS]; /* their recorded replies for the current step */
    int64_t restarts[INVAR_PLUGINS];              /* restarts that were recorded in the ledger */
    double factor; /* loss factor that the last hook returned; 1 if it returned none */
    /* metrics that hooks returned since the last step */
    invar_hook_metrics measures[INVAR_PLUGINS - INVAR_RUN_PLUGINS_HOOKS];
    bool replay;          /* no plug-in is started: all replies come from the ledger */
    invar_ledger *record; /* ledger with sessions of agents (agent-record), owned; NULL for the
                             run's own */
    int64_t record_run;
} invar_run_plugins;

/* Attaches the plug-ins of the recipe. `tokenizer` must outlive them. */
invar_status invar_run_plugins_open(invar_run_plugins *out, const invar_config *config,
                                    const invar_tokenizer *tokenizer, bool replay) INVAR_MUST_USE;
void invar_run_plugins_close(invar_run_plugins *plugins);

/*
 * Returns what invar_run_plugins_open would fail with if a shared object or a program of the recipe
 * does not exist. Nothing is loaded or started.
 */
invar_status invar_run_plugins_locate(const invar_config *config) INVAR_MUST_USE;

/*
 * Prints and records an event for each plug-in that has changed since `step` was executed. Returns
 * INVAR_E_STATE if the teacher has changed.
 */
invar_status invar_run_plugins_compare(const invar_run_plugins *plugins, invar_recorder *recorder,
                                       int64_t step) INVAR_MUST_USE;

/* Records an event for each plug-in program that was started again since the last call. */
invar_status invar_run_plugins_report_restarts(invar_run_plugins *plugins, invar_recorder *recorder,
                                               int64_t step) INVAR_MUST_USE;

/*
 * Begins a step of the plug-in with role `role`; does nothing if it is not attached. Its calls are
 * answered from the ledger if that has the step already.
 */
invar_status invar_run_plugins_begin(invar_run_plugins *plugins, int role,
                                     const invar_recorder *recorder, int64_t step) INVAR_MUST_USE;

/*
 * Calls the hook of the event, if one is attached. `samples` may be NULL. The metrics that it
 * returns are kept until it is called again or the metrics are cleared.
 */
invar_status invar_run_plugins_hook(invar_run_plugins *plugins, const invar_plugin_event *event,
                                    const invar_rl_samples *samples) INVAR_MUST_USE;

/* Clears the metrics of all hooks. Call after they were recorded in the ledger. */
void invar_run_plugins_clear_metrics(invar_run_plugins *plugins);

/*
 * *out is the array of replies to record with this step: those of loss and hooks; at the first step
 * of a rollout also those of rewards, filters and teachers, which are called once per rollout; and
 * the text of a recorded schedule's tick, if there is one. The caller frees *out with invar_free;
 * it borrows from the plug-ins and from `tick`.
 */
invar_status invar_run_plugins_replies(invar_ledger_plugin_reply **out, size_t *count_out,
                                       const invar_run_plugins *plugins,
                                       const invar_json_text *tick, bool first) INVAR_MUST_USE;

#endif
