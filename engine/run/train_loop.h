/*
 * train_loop.h - the training loop of one rank: all parts of its state, and what needs them all.
 *
 * One rollout runs as follows: the sample source yields samples with rewards; trainers score them
 * (actor, reference, teacher, critic) and advantages are computed; then each optimizer step runs
 * forward, loss, backward and AdamW, and the recorder writes the step to the ledger (train.c).
 *
 * Private to engine/run. Unless a comment says otherwise, all ranks call these functions in the
 * same order. Rank 0 alone writes files and the ledger, calls plug-ins and prints for the user.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_TRAIN_LOOP_H
#define INVAR_ENGINE_RUN_TRAIN_LOOP_H

#include "engine/run/run_state.h"
#include "engine/run/run_storage.h"

/* A training run on one rank. */
typedef struct invar_train_loop {
    invar_run_job job;
    invar_run_world world;
    invar_run_models models;
    invar_run_storage storage;
    invar_run_flow flow;
} invar_train_loop;

/* ---- train.c --------------------------------------------------------------------------------- */

/* Runs rollouts until the schedule, a signal or a failure ends the run. Collective. */
invar_status invar_train_loop_run(invar_train_loop *loop) INVAR_MUST_USE;

/* Returns the signal that asks this rank to end the run; 0 if there was none. */
int invar_run_signal(const invar_run_job *job);

/* Records the restarts of plug-ins since the last call as events of the ledger. */
invar_status invar_run_record_restarts(invar_run_storage *storage,
                                       invar_run_flow *flow) INVAR_MUST_USE;

/* ---- setup/setup.c --------------------------------------------------------------------------- */

/*
 * Opens everything that the run needs, from the recipe to the loaded checkpoint, and begins the run
 * in its ledger. Sets summary->finished if nothing is left to do. `config`, `options` and `summary`
 * must outlive the loop. Call invar_train_loop_close afterwards, also after a failure. Collective.
 */
invar_status invar_train_loop_open(invar_train_loop *loop, const invar_config *config,
                                   const invar_train_options *options,
                                   invar_train_summary *summary) INVAR_MUST_USE;

/*
 * Like invar_train_loop_open, but only reads: opens the inputs, loads the models and compares the
 * ranks. Writes nothing and starts no plug-in.
 */
invar_status invar_train_loop_read(invar_train_loop *loop, const invar_config *config,
                                   const invar_train_options *options) INVAR_MUST_USE;
/* Releases everything that the loop owns. */
void invar_train_loop_close(invar_train_loop *loop);

/* ---- setup/ranks.c --------------------------------------------------------------------------- */

/*
 * Rebuilds the groups of the layout after a recoverable abort, which only the group of all ranks
 * survives. Collective.
 */
invar_status invar_run_renew_layout(invar_run_models *models) INVAR_MUST_USE;

/* ---- identity/identity.c: ledger and identity ------------------------------------------------ */

/*
 * Begins the run in its ledger. If the ledger has the run already, begins a new segment after
 * `step` (-1 for the start), at which the chain must be *chain.
 */
invar_status invar_train_loop_begin(invar_train_loop *loop, int64_t step,
                                    const invar_digest *chain) INVAR_MUST_USE;
/*
 * Computes the identity of the run from recipe, data and weights. In a replay, fails if it is not
 * the identity of the recorded run.
 */
invar_status invar_run_identify(invar_run_storage *storage,
                                invar_run_models *models) INVAR_MUST_USE;

/* ---- async_verify.c -------------------------------------------------------------------------- */

/*
 * Compares the log-probs of the tokens that the current weights sampled with `scored`, the
 * log-probs of all response tokens of the samples. Reports the first difference as a mismatch.
 */
invar_status invar_run_compare_fresh(invar_run_storage *storage, invar_run_flow *flow,
                                     const invar_rl_sample *samples, int64_t count,
                                     const float *scored) INVAR_MUST_USE;

/*
 * Scores in-flight and surplus samples, and the batch if it was not scored, and compares the tokens
 * that the current weights sampled. Call before the weights change.
 */
invar_status invar_train_loop_check_flight(invar_train_loop *loop) INVAR_MUST_USE;

/* Verification callback of the sampling thread (async_sampler.h). `loop` is an invar_train_loop. */
invar_status invar_train_loop_verify_async(void *loop, const invar_rl_sample *samples,
                                           int64_t count,
                                           const invar_progress_callback *tick) INVAR_MUST_USE;

/*
 * Progress callback of async_verifier: forwards to the callback of the verification in progress.
 * `flow` is an invar_run_flow.
 */
invar_status invar_run_async_progress(void *flow) INVAR_MUST_USE;

/*
 * Waits for asynchronous sampling (invar_sample_source_join) and reports a mismatch that any rank
 * has found. Collective.
 */
invar_status invar_run_join_async(invar_run_storage *storage, invar_run_flow *flow) INVAR_MUST_USE;

/* ---- train_step.c ---------------------------------------------------------------------------- */

/* The loss of a learner in an optimizer step. */
typedef struct invar_train_step_loss {
    invar_loss *loss;     /* owned; NULL before it is made */
    const int64_t *start; /* offsets of the step; borrowed */
    float factor;         /* factor of the loss that a hook has returned */
} invar_train_step_loss;

/*
 * One optimizer step: its report and what the report borrows. Zero-initialize before use. Release
 * with invar_train_loop_step_release, also after a failure.
 */
typedef struct invar_train_step {
    invar_step_report report;
    int64_t *start;       /* (count + 1) offsets of the samples' tokens; owned */
    invar_rl_batch batch; /* input of the losses */
    invar_train_step_loss losses[INVAR_STEP_REPORT_LEARNERS]; /* losses of actor and critic */
} invar_train_step;

/*
 * Computes the loss of a plug-in on rank 0 and broadcasts it. `flow` is an invar_run_flow, as
 * invar_loss_custom needs it.
 */
invar_status invar_run_ask_loss(float *loss_out, float *dlogp_out, const invar_loss_sample *sample,
                                void *flow) INVAR_MUST_USE;

/*
 * Computes the log-probs of actor, reference and teacher and the values of the critic for all
 * samples of the rollout, and compares those that must be equal.
 */
invar_status invar_train_loop_score(invar_train_loop *loop) INVAR_MUST_USE;

/* Computes the advantages and returns of all samples of the rollout; 0 in supervised training. */
invar_status invar_run_compute_advantages(invar_run_flow *flow) INVAR_MUST_USE;

/*
 * Calls a hook, if the recipe has one: INVAR_PLUGIN_BEFORE_LOGPROB or another of invar_plugin.h.
 * `set` is the evaluation set of the samples, or NULL; `samples` may be NULL.
 */
invar_status invar_run_hook(invar_run_storage *storage, invar_run_flow *flow, int hook,
                            const char *set, const invar_rl_samples *samples) INVAR_MUST_USE;

/*
 * Prepares the report of an optimizer step of samples [first, first + count). Returns
 * INVAR_E_INVALID if the rollout has fewer samples.
 */
invar_status invar_train_loop_step_make(invar_train_step *out, const invar_train_loop *loop,
                                        int64_t first, int64_t count) INVAR_MUST_USE;
void invar_train_loop_step_release(invar_train_step *step);

/*
 * True if the actor is not updated in this rollout: num-critic-only-steps or
 * debug-disable-optimizer.
 */
bool invar_run_skips_actor(const invar_run_storage *storage);

/*
 * Run forward, loss and backward for the samples of `step`: of the actor, whose log-probs are
 * compared with those of the rollout, and of the critic.
 */
invar_status invar_train_loop_policy_gradients(invar_train_step *step,
                                               invar_train_loop *loop) INVAR_MUST_USE;
invar_status invar_train_loop_value_gradients(invar_train_step *step,
                                              invar_train_loop *loop) INVAR_MUST_USE;

/* ---- run_dir/resume.c ------------------------------------------------------------------------ */

/*
 * Opens the checkpoint of `load`, if that is not the run's own folder, and checks it; for a fork
 * that starts, checks the parent's checkpoint. For a new run, also checks the rollout files that it
 * will load. Call before anything is created.
 */
invar_status invar_train_loop_find_checkpoint(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Loads the checkpoint that was found, or the newest one of the run, and begins after it. If
 * nothing is left to do, writes nothing and sets summary->finished. Rank 0 decides, and all ranks
 * load the same checkpoint. Collective.
 */
invar_status invar_train_loop_resume(invar_train_loop *loop) INVAR_MUST_USE;

/* ---- run_dir/save.c -------------------------------------------------------------------------- */

/*
 * Writes the checkpoint and the Hugging Face export, as the recipe asks. Unless it is the last one,
 * a checkpoint of a device with its own memory may be only begun (async-save). A checkpoint by time
 * that fails for lack of space or memory is reported, and INVAR_OK is returned.
 */
invar_status invar_train_loop_save(invar_train_loop *loop,
                                   invar_train_loop_saving kind) INVAR_MUST_USE;

/* Writes the first checkpoint of a fork, so that it can resume without its parent. */
invar_status invar_train_loop_keep_fork(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Writes a checkpoint of the last complete step after a failed rollout. *saved_out is true if one
 * was written. Pass sound = false if the state of this rank may be wrong after the failure. With
 * several ranks, all must call it, after one has aborted the run recoverably.
 */
invar_status invar_train_loop_emergency_save(bool *saved_out, invar_train_loop *loop,
                                             bool sound) INVAR_MUST_USE;

#endif
