/*
 * run_storage.h - functions on what a run has on disk: folders, ledger, checkpoints, logs.
 *
 * Private to engine/run. Unless a comment says otherwise, all ranks call these functions in the
 * same order. Rank 0 alone writes files and the ledger and prints for the user.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_RUN_STORAGE_H
#define INVAR_ENGINE_RUN_RUN_STORAGE_H

#include "engine/run/run_state.h"

/* ---- identity/identity.c: ledger and identity ------------------------------------------------ */

/*
 * Opens the ledger to write. Fails with INVAR_E_STATE if it holds a run with another identity, and
 * if that run was computed with other revisions of ops.
 */
invar_status invar_run_open_ledger(invar_run_storage *storage,
                                   invar_run_models *models) INVAR_MUST_USE;

/*
 * Fails, without writing, if the ledger holds a run with another identity. *uuid_out is the id of
 * the run in the ledger; empty if it has no run, or if the ledger must first be opened to write.
 */
invar_status invar_run_check_existing(char uuid_out[INVAR_LEDGER_UUID_SIZE],
                                      const invar_run_storage *storage,
                                      const invar_run_models *models) INVAR_MUST_USE;

/*
 * Compares program, modules, recipe and options over all ranks. Returns INVAR_E_STATE if those of
 * one rank differ from the majority. Call before the ranks are divided, which depends on the
 * recipe. Collective.
 */
invar_status invar_run_compare_recipes(invar_run_storage *storage) INVAR_MUST_USE;

/*
 * Compares the hashes of data, tokenizer and weights over all ranks. Returns INVAR_E_STATE if those
 * of one rank differ from the majority. Collective.
 */
invar_status invar_run_compare_files(invar_run_storage *storage,
                                     invar_run_models *models) INVAR_MUST_USE;

/*
 * Reads the evaluation sets, if the run evaluates, and measures all data. Call before
 * invar_run_identify and before memory is planned.
 */
invar_status invar_run_read_sets(invar_run_storage *storage,
                                 invar_run_models *models) INVAR_MUST_USE;

/* Fails with INVAR_E_NOTFOUND: the run of the checkpoint of `step` is not in the ledger. */
invar_status invar_run_fail_missing_run(const invar_run_storage *storage,
                                        int64_t step) INVAR_MUST_USE;

/* ---- run_dir/start.c: opening the folders ---------------------------------------------------- */

/*
 * Fails, before anything is created, if the run folder has foreign files or another run, if `save`
 * has checkpoints of another run, or if the checkpoints of this run are in another folder than
 * `save`, so that the run would start over.
 */
invar_status invar_run_check_home(const invar_run_storage *storage,
                                  const invar_run_models *models) INVAR_MUST_USE;

/*
 * Locks the checkpoint folder, creates the run folder and opens its ledger. Returns INVAR_E_STATE
 * if one of them belongs to another run. With --fresh, an existing run folder is renamed first.
 */
invar_status invar_run_open_dirs(invar_run_storage *storage,
                                 invar_run_models *models) INVAR_MUST_USE;

/*
 * Sets storage->fork from the ledger of the run folder and from --fork, and opens the parent's
 * checkpoint if the fork starts now. Collective.
 */
invar_status invar_run_find_fork(invar_run_storage *storage) INVAR_MUST_USE;

#define INVAR_FORK_COMMAND_SIZE 1500

/*
 * Writes the command that continues the run in its folder as a fork with the keys of the
 * recipe; used in error messages only. `out` is empty if the folder has no checkpoint or the
 * command is too long.
 */
void invar_run_fork_command(char out[INVAR_FORK_COMMAND_SIZE], const invar_run_storage *storage);

/*
 * Writes the owner file of the checkpoint folder and removes leftovers of interrupted writes. Call
 * after the run has begun in the ledger.
 */
invar_status invar_run_write_owner(invar_run_storage *storage) INVAR_MUST_USE;

/*
 * Updates storage->dirs if the run folder was moved. Call before anything is written by path.
 * Returns INVAR_E_STATE if a folder was removed or replaced.
 */
invar_status invar_run_refresh_paths(invar_run_storage *storage) INVAR_MUST_USE;

/* True if this process prints to the file, because its output is redirected there. */
struct stat;
bool invar_run_is_output(const struct stat *file);

/* ---- run_dir/run_files.c: recipe.ini and train.log ------------------------------------------- */

/* Opens train.log and writes recipe.ini. Rank 0 calls it once the run has begun in its folder. */
invar_status invar_run_write_run_files(invar_run_storage *storage) INVAR_MUST_USE;

/*
 * Prints a line for the user and writes it to train.log. `storage` is an invar_run_storage: the
 * function is a callback, such as invar_recorder_options.print_line.
 */
void invar_run_print(void *storage, const char *line);

/* Logs a step, if enough time has passed since the last line about a step. */
void invar_run_log_step(invar_run_storage *storage, const invar_train_progress *progress);

/* Logs the end of the run, with the last error unless `status` is INVAR_OK, and closes the log. */
void invar_run_log_end(invar_run_storage *storage, invar_status status);

/* ---- progress.c ------------------------------------------------------------------------------ */

/* Starts the measurement of throughput and ETA. Call before the first rollout. */
void invar_run_start_pace(invar_run_storage *storage, invar_run_models *models);

/*
 * True if all samples have rewards: the estimator needs them, or a reward rule or plug-in covers
 * every sample.
 */
bool invar_run_rewarded(const invar_run_flow *flow, const invar_rl_sample *samples, int64_t count);

/* Reports a finished step: updates the summary, logs, and calls options->progress. */
void invar_run_show_step(invar_run_storage *storage, invar_run_models *models,
                         const invar_step_report *step);

/* Opens and closes the experiment trackers. `finish` is the status of the run. */
invar_status invar_run_open_track(invar_run_storage *storage) INVAR_MUST_USE;
void invar_run_close_track(invar_run_storage *storage, invar_status finish);

/* Prints the first sample of the rollout, if debug-rollout-print-every asks for it. */
void invar_run_show_sample(const invar_run_storage *storage, const invar_run_flow *flow);

/*
 * Warns once if all rewards of a rollout are equal and at most 0, so that nothing is learned from
 * it.
 */
void invar_run_warn_equal_rewards(invar_run_storage *storage, invar_run_flow *flow);

/* ---- triage.c -------------------------------------------------------------------------------- */

/*
 * Runs the triage rules on the run's ledger and reports new findings, if enough time has passed.
 * Rank 0 does it between rollouts. `last` ignores the time; set it after the last rollout.
 */
void invar_run_triage(invar_run_storage *storage, bool last);

/* ---- audit.c --------------------------------------------------------------------------------- */

/*
 * Records an error event. Unless on-mismatch lets the run continue, also fails with
 * INVAR_E_MISMATCH. All ranks find the same mismatch and must call it.
 */
invar_status invar_run_mismatch(invar_run_storage *storage, const char *kind,
                                const char *text) INVAR_MUST_USE;

/* Creates the audit that the recipe asks for and attaches it to rollout and trainer. */
invar_status invar_run_attach_audit(invar_run_storage *storage,
                                    invar_run_models *models) INVAR_MUST_USE;

/*
 * Writes the findings of all ranks to the ledger, and fails with INVAR_E_MISMATCH if there were
 * any, unless on-mismatch lets the run continue. Call at the end of a phase. Collective.
 */
invar_status invar_run_report_findings(invar_run_storage *storage) INVAR_MUST_USE;

/* ---- run_dir/resume.c ------------------------------------------------------------------------ */

/*
 * Broadcasts a text of rank 0. On other ranks, *text is allocated and the caller frees it.
 * Collective.
 */
invar_status invar_run_share_text(char **text, size_t *bytes, const invar_run_world *world,
                                  const char *what) INVAR_MUST_USE;

/* ---- run_dir/by_time.c ----------------------------------------------------------------------- */

/* Restarts the interval of save-interval-minutes. */
void invar_run_restart_clock(invar_run_storage *storage);

/* Computes the disk space that the remaining checkpoints of the run need. */
invar_status invar_run_plan_disk(invar_disk *out, const invar_run_storage *storage,
                                 const invar_run_models *models) INVAR_MUST_USE;

/*
 * True if a checkpoint by time of `bytes` may be copied to a host with `memory` bytes, and be
 * written from the copy while training continues. The user did not ask for this copy, which stays
 * until the run ends, so it takes at most half of the memory. Larger checkpoints are written at
 * once.
 */
bool invar_run_may_copy(int64_t bytes, size_t memory);

/*
 * Collective. *out is true if the clock of rank 0 asks for a checkpoint. A checkpoint that would
 * leave no space for those that the run is sure to write is reported like one that failed.
 */
invar_status invar_run_agree_by_time(bool *out, invar_run_storage *storage,
                                     invar_run_models *models) INVAR_MUST_USE;

/*
 * Handles the status of a checkpoint by time. If disk space or memory ran out, records and reports
 * an event and returns INVAR_OK; any other status is returned. Of consecutive failures for the same
 * reason, the first, the second, the fourth and so on are reported.
 */
invar_status invar_run_forgive_save(invar_run_storage *storage, invar_status status) INVAR_MUST_USE;

/* ---- run_dir/schedule_record.c --------------------------------------------------------------- */

/*
 * Reads the schedule that rollout-record names, if the recipe has that key, before anything is
 * written. Returns INVAR_E_NOTFOUND if there is no such schedule or it ends before the run does,
 * and INVAR_E_CORRUPT if the file is damaged or its batches have another size than the recipe's.
 * Collective.
 */
invar_status invar_run_read_record(invar_run_storage *storage, invar_run_flow *flow) INVAR_MUST_USE;

/*
 * Opens the record that the run follows and continues; in a replay, the record in the ledger. Call
 * when the next rollout is known.
 */
invar_status invar_run_open_schedule(invar_run_storage *storage,
                                     invar_run_flow *flow) INVAR_MUST_USE;

/*
 * Writes the run's own record file, to which later ticks are appended. Rank 0 calls it after the
 * run has begun in the ledger.
 */
invar_status invar_run_begin_schedule(invar_run_storage *storage,
                                      invar_run_flow *flow) INVAR_MUST_USE;

/* Reports, and records in the ledger, that unchecked lines of a version 1 journal were used. */
invar_status invar_run_report_unchecked(invar_run_storage *storage,
                                        const char *file) INVAR_MUST_USE;

/*
 * Appends the recorded events of this rollout's tick to `text`, if the run has a recorded schedule.
 */
invar_status invar_run_write_tick(invar_json_text *text, const invar_run_storage *storage,
                                  const invar_run_flow *flow) INVAR_MUST_USE;

/* ---- run_dir/save.c -------------------------------------------------------------------------- */

/* Writes the models that a checkpoint can contain to `out` and returns their number. */
int invar_run_parts(invar_checkpoint_part out[INVAR_DISK_PARTS], const invar_run_models *models);

/*
 * True if the run never changes the weights that its identity names: its checkpoints then contain
 * the position in the data, and no weights. A fork keeps the weights of its parent.
 */
bool invar_run_keeps_weights_fixed(const invar_run_storage *storage);

/*
 * Fails if save-hf names a folder that is not empty and that this run has not written. Call before
 * the run begins.
 */
invar_status invar_run_check_exports(const invar_run_storage *storage) INVAR_MUST_USE;

typedef enum invar_train_loop_saving {
    INVAR_TRAIN_LOOP_SAVE_DUE, /* save-interval */
    INVAR_TRAIN_LOOP_SAVE_LAST,
    INVAR_TRAIN_LOOP_SAVE_BY_TIME /* save-interval-minutes; without an export */
} invar_train_loop_saving;

/*
 * Saves the position of the source and, on rank 0, a copy of the in-flight samples before a
 * rollout, so that a failed rollout can still be followed by a checkpoint of the previous step.
 */
invar_status invar_run_save_rescue_point(invar_run_storage *storage,
                                         invar_run_flow *flow) INVAR_MUST_USE;
/*
 * Drops that copy, and saves the present position of the source instead. Call after the rollout,
 * when the source itself has what is to be saved.
 */
void invar_run_clear_rescue_point(invar_run_storage *storage, invar_run_flow *flow);

/* True if this rank has all that a checkpoint of the steps before the current rollout contains. */
bool invar_run_has_rescue_point(const invar_run_storage *storage);

/*
 * Call before any state changes that a checkpoint contains: waits until a checkpoint in progress
 * has its copy, and clears can_save_previous.
 */
void invar_run_before_change(invar_run_storage *storage);

/* Releases the masters that were gathered for checkpoints and exports. */
void invar_run_release_masters(invar_run_storage *storage);

/* Waits until the checkpoint in progress, if any, is complete. */
invar_status invar_run_finish_save(invar_run_storage *storage) INVAR_MUST_USE;

#endif
