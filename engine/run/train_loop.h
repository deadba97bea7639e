/*
 * train_loop.h - state of a training run on one rank, and the functions that its files share.
 *
 * Private to engine/run. One rollout runs as follows: the sample source yields samples with
 * rewards; trainers score them (actor, reference, teacher, critic) and advantages are computed;
 * then each optimizer step runs forward, loss, backward and AdamW, and the recorder writes the step
 * to the ledger.
 *
 * Unless a comment says otherwise, all ranks call these functions in the same order. Rank 0 alone
 * writes files and the ledger, calls plug-ins and prints for the user. The thread that runs the
 * loop uses invar_train_loop; the sampling thread, if there is one, writes only to `async_status`
 * until it is joined.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_TRAIN_LOOP_H
#define INVAR_ENGINE_RUN_TRAIN_LOOP_H

#include <stdio.h>

#include "base/file.h"
#include "engine/config/config.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/files/hf/aux_files.h"
#include "engine/model/audit/audit.h"
#include "engine/model/shard/master_weights.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/ranks/layout/rank_roles.h"
#include "engine/ranks/layout/transport.h"
#include "engine/record/recorder.h"
#include "engine/record/track/track.h"
#include "engine/run/context/run_context.h"
#include "engine/run/memory_workload.h"
#include "engine/run/run_dir/disk.h"
#include "engine/run/run_dir/paths.h"
#include "engine/run/run_plugins.h"
#include "engine/run/train_options.h"
#include "engine/run/train_settings.h"
#include "engine/run/user_facts.h"
#include "engine/sample/source/source.h"
#include "engine/train/weight_sync/weight_sync.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Run folder, ledger and checkpoint folder, and the locks that this rank holds on them. */
typedef struct invar_run_dirs {
    invar_run_paths paths;
    invar_held_folder folder; /* open run folder, paths.run; not held on ranks that do not write */
    invar_checkpoint_lock claim; /* lock of the checkpoint folder, paths.save */
} invar_run_dirs;

/* Identity of the run and what its computation has read. */
typedef struct invar_identity {
    invar_digest digest;
    bool evaluates;             /* the run evaluates during training */
    invar_digest eval_data;     /* digest of all evaluation sets */
    invar_data_lengths data;    /* largest lengths of the data, for the memory plan */
    invar_saved_rollouts saved; /* rollouts of load-debug-rollout-data */
    invar_user_facts facts;     /* facts that the user passed in INVAR_FACTS */
} invar_identity;

#define INVAR_TRAIN_LOOP_PARTS 3 /* largest number of models in a checkpoint */

/* State of saving and resuming. */
typedef struct invar_run_checkpoints {
    invar_hf_files hf_files;         /* auxiliary files of hf-checkpoint, copied to exports and
                                        checkpoints */
    invar_checkpoint *resume_from;   /* checkpoint to resume or fork from, or NULL; NULL after it
                                        was loaded */
    invar_checkpoint_writer *writer; /* background writer; NULL until a checkpoint is written
                                        in the background */
    /* masters gathered for writing; valid until the weights change */
    invar_full_masters masters[INVAR_TRAIN_LOOP_PARTS];
    int64_t next;     /* step after the newest checkpoint; 0 without one, or if the newest failed */
    bool by_time;     /* the checkpoint in progress was started by save-interval-minutes */
    int64_t saved_ms; /* time of the last checkpoint or attempt by time, or of the start, in ms of
                         options->clock_ms; rank 0 only */
    uint64_t failures;   /* consecutive failed checkpoints by time with the same `failed` and
                            `native` */
    invar_status failed; /* status of the last checkpoint by time that failed */
    int native;          /* system error code of that failure */
} invar_run_checkpoints;

/* Progress of the run. A checkpoint stores it with the position of the sample source. */
typedef struct invar_train_position {
    int64_t rollout; /* next rollout */
    int64_t step;    /* next optimizer step */
    int64_t weights; /* version of the actor's weights */
} invar_train_position;

/* Origin of a fork: the step of the parent run that this run continues from. */
typedef struct invar_fork {
    int64_t step;       /* last step of the parent; -1 if this run is no fork */
    invar_digest chain; /* chain of the parent at that step */
    bool starting; /* the fork starts in this process, from the parent's checkpoint; false if it
                      resumes from its own */
    char uuid[INVAR_LEDGER_UUID_SIZE];
    char name[INVAR_LEDGER_NAME_BYTES + 1];
} invar_fork;

/*
 * Audit findings of this rank that are not reported yet, as consecutive NUL-terminated lines. Used
 * with several ranks only.
 */
typedef struct invar_audit_findings {
    char text[8192];
    size_t bytes;
} invar_audit_findings;

#define INVAR_TRAIN_LOOP_MISMATCH_SIZE 512

/*
 * Times and findings of asynchronous sampling. If a thread samples, only that thread uses this
 * struct until it is joined.
 */
typedef struct invar_async_status {
    int64_t begin_ns, end_ns; /* times of invar_trace_clock */
    /* first token whose log-prob differs in scoring; empty if all are equal */
    char mismatch_text[INVAR_TRAIN_LOOP_MISMATCH_SIZE];
    invar_progress_callback tick; /* progress callback of the current verification */
} invar_async_status;

/* State of the triage that the run does on its own ledger. */
typedef struct invar_triage_state {
    uint32_t reported_rules; /* bit per rule that was reported */
    int64_t next_ms;         /* earliest time of the next check */
} invar_triage_state;

/* Writer of train.log, on rank 0. */
typedef struct invar_train_log {
    FILE *file;       /* NULL until the log is open, and if none is kept */
    int64_t next_ms;  /* earliest time of the next line about a step */
    bool ended;       /* `early` was written, and keeps no further lines; the log continues */
    char early[4096]; /* lines printed before the log was open, each with its NUL */
    size_t early_bytes;
} invar_train_log;

typedef struct invar_train_loop {
    const invar_train_options *options;
    const invar_config *config;
    invar_train_summary *summary;
    invar_train_settings settings;
    invar_layout layout;       /* layout of the ranks with this rank's role, train or sample */
    const invar_layout *ranks; /* &layout; NULL if there is only one rank */
    invar_rank_roles roles;    /* ranks that only sample; zeroed if all ranks do both */
    const invar_layout *world; /* layout of all ranks; equal to `ranks` if all do both */
    invar_layout_transport transport;
    invar_run_context session; /* device, models and data */
    invar_run_dirs dirs;
    invar_fork fork;
    invar_identity identity;
    invar_run_checkpoints store;
    invar_run_plugins plugins;
    invar_loss_custom custom; /* loss of a plug-in */
    invar_rollout *rollout;   /* NULL if this rank samples nothing */
    invar_trainer *trainer;
    /* verifies samples drawn during training; NULL if nothing is, or if it is not verified */
    invar_trainer *async_verifier;
    invar_memory_workload workload; /* input of the memory plan */
    invar_phase_memory block;       /* device memory that sampling, scoring and training share */
    invar_audit *audit;             /* NULL if the recipe asks for none */
    invar_audit_findings findings;  /* audit findings, if there are several ranks */
    invar_agents *agents;           /* agents that lead samples, or NULL */
    invar_recorded_schedule
        recorded_schedule; /* recorded schedule, with rollout-schedule = recorded */
    invar_sample_source source;
    invar_async_status async_status; /* status of the sampling thread */
    invar_weight_sync *sync; /* weight sync to ranks that only sample; NULL if all ranks do both */
    int64_t synced;          /* rollout for which sampling weights are up to date; -1 at first */
    invar_learner actor, critic;
    invar_recorder recorder;
    invar_track *track;            /* experiment trackers, on rank 0, or NULL */
    invar_train_position position; /* next rollout and step */
    bool can_save_previous; /* no state of this step has changed yet: a checkpoint of the previous
                               step can be written */
    invar_source_position position_before; /* position of the source before the current rollout */
    invar_inflight inflight;   /* copy of the in-flight samples before the rollout, for such a
                                  checkpoint */
    bool restore_inflight;     /* the source may have changed its in-flight samples, so
                                  `inflight` has to replace them */
    invar_sample_batch batch;  /* samples of the current rollout */
    invar_token_arrays arrays; /* per-token arrays of the current rollout */
    bool warned_equal_rewards; /* the warning about equal rewards was printed */
    invar_triage_state triage;
    invar_train_log log;
    bool all_ranks_failed; /* all ranks fail with the same error, so no rank has to abort the
                              others */
} invar_train_loop;

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
invar_status invar_train_loop_renew_layout(invar_train_loop *loop) INVAR_MUST_USE;

/* ---- identity.c: ledger and identity --------------------------------------------------------- */

/*
 * Opens the ledger to write. Fails with INVAR_E_STATE if it holds a run with another identity, and
 * if that run was computed with other revisions of ops.
 */
invar_status invar_train_loop_open_ledger(invar_train_loop *loop) INVAR_MUST_USE;

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
invar_status invar_train_loop_identify(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Fails, without writing, if the ledger holds a run with another identity. *uuid_out is the id of
 * the run in the ledger; empty if it has no run, or if the ledger must first be opened to write.
 */
invar_status invar_train_loop_check_existing(char uuid_out[INVAR_LEDGER_UUID_SIZE],
                                             const invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Compares program, modules, recipe and options over all ranks. Returns INVAR_E_STATE if those of
 * one rank differ from the majority. Call before the ranks are divided, which depends on the
 * recipe. Collective.
 */
invar_status invar_train_loop_compare_recipes(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Compares the hashes of data, tokenizer and weights over all ranks. Returns INVAR_E_STATE if those
 * of one rank differ from the majority. Collective.
 */
invar_status invar_train_loop_compare_files(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Reads the evaluation sets, if the run evaluates, and measures all data. Call before
 * invar_train_loop_identify and before memory is planned.
 */
invar_status invar_train_loop_read_sets(invar_train_loop *loop) INVAR_MUST_USE;

/* Fails with INVAR_E_NOTFOUND: the run of the checkpoint of `step` is not in the ledger. */
invar_status invar_train_loop_fail_missing_run(const invar_train_loop *loop,
                                               int64_t step) INVAR_MUST_USE;

/* ---- run_dir/start.c: opening the folders ---------------------------------------------------- */

/*
 * Fails, before anything is created, if the run folder has foreign files or another run, if `save`
 * has checkpoints of another run, or if the checkpoints of this run are in another folder than
 * `save`, so that the run would start over.
 */
invar_status invar_train_loop_check_home(const invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Locks the checkpoint folder, creates the run folder and opens its ledger. Returns INVAR_E_STATE
 * if one of them belongs to another run. With --fresh, an existing run folder is renamed first.
 */
invar_status invar_train_loop_open_dirs(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Sets loop->fork from the ledger of the run folder and from --fork, and opens the parent's
 * checkpoint if the fork starts now. Collective.
 */
invar_status invar_train_loop_find_fork(invar_train_loop *loop) INVAR_MUST_USE;

#define INVAR_FORK_COMMAND_SIZE 1500

/*
 * Writes the command that continues the run in the loop's folder as a fork with the loop's keys;
 * used in error messages only. `out` is empty if the folder has no checkpoint or the command is too
 * long.
 */
void invar_train_loop_fork_command(char out[INVAR_FORK_COMMAND_SIZE], const invar_train_loop *loop);

/*
 * Writes the owner file of the checkpoint folder and removes leftovers of interrupted writes. Call
 * after the run has begun in the ledger.
 */
invar_status invar_train_loop_write_owner(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Updates loop->dirs if the run folder was moved. Call before anything is written by path. Returns
 * INVAR_E_STATE if a folder was removed or replaced.
 */
invar_status invar_train_loop_refresh_paths(invar_train_loop *loop) INVAR_MUST_USE;

/* True if this process prints to the file, because its output is redirected there. */
struct stat;
bool invar_train_loop_is_output(const struct stat *file);

/* ---- run_dir/run_files.c: recipe.ini and train.log ------------------------------------------- */

/* Opens train.log and writes recipe.ini. Rank 0 calls it once the run has begun in its folder. */
invar_status invar_train_loop_write_run_files(invar_train_loop *loop) INVAR_MUST_USE;

/* Writes a line to train.log; does nothing if no log is open. */
void invar_train_loop_log(invar_train_loop *loop, const char *fmt, ...);

/*
 * Prints a line for the user and writes it to train.log. `loop` is an invar_train_loop: the
 * function is a callback, such as invar_recorder_options.print_line.
 */
void invar_train_loop_print(void *loop, const char *line);

/* Logs a step, if enough time has passed since the last line about a step. */
void invar_train_loop_log_step(invar_train_loop *loop, const invar_train_progress *progress);

/* Logs the end of the run, with the last error unless `status` is INVAR_OK, and closes the log. */
void invar_train_loop_log_end(invar_train_loop *loop, invar_status status);

/* ---- progress.c ------------------------------------------------------------------------------ */

/* Starts the measurement of throughput and ETA. Call before the first rollout. */
void invar_train_loop_start_pace(invar_train_loop *loop);

/*
 * True if all samples have rewards: the estimator needs them, or a reward rule or plug-in covers
 * every sample.
 */
bool invar_train_loop_rewarded(const invar_train_loop *loop, const invar_rl_sample *samples,
                               int64_t count);

/* Reports a finished step: updates the summary, logs, and calls options->progress. */
void invar_train_loop_show_step(invar_train_loop *loop, const invar_step_report *step);

/* Opens and closes the experiment trackers. `finish` is the status of the run. */
invar_status invar_train_loop_open_track(invar_train_loop *loop) INVAR_MUST_USE;
void invar_train_loop_close_track(invar_train_loop *loop, invar_status finish);

/* Prints the first sample of the rollout, if debug-rollout-print-every asks for it. */
void invar_train_loop_show_sample(const invar_train_loop *loop);

/*
 * Warns once if all rewards of a rollout are equal and at most 0, so that nothing is learned from
 * it.
 */
void invar_train_loop_warn_equal_rewards(invar_train_loop *loop);

/* ---- triage.c -------------------------------------------------------------------------------- */

/*
 * Runs the triage rules on the run's ledger and reports new findings, if enough time has passed.
 * Rank 0 does it between rollouts. `last` ignores the time; set it after the last rollout.
 */
void invar_train_loop_triage(invar_train_loop *loop, bool last);

/* ---- audit.c --------------------------------------------------------------------------------- */

/* Creates the audit that the recipe asks for and attaches it to rollout and trainer. */
invar_status invar_train_loop_attach_audit(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Writes the findings of all ranks to the ledger. *any_out is true if there were any;
 * loop->findings then begins with the first one. Collective; does nothing with one rank.
 */
invar_status invar_train_loop_gather_findings(bool *any_out, invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Like invar_train_loop_gather_findings, but fails with INVAR_E_MISMATCH after a finding, unless
 * on-mismatch lets the run continue. Call at the end of a phase.
 */
invar_status invar_train_loop_report_findings(invar_train_loop *loop) INVAR_MUST_USE;

/* ---- async_verify.c -------------------------------------------------------------------------- */

/*
 * Compares the log-probs of the tokens that the current weights sampled with `scored`, the
 * log-probs of all response tokens of the samples. Reports the first difference as a mismatch.
 */
invar_status invar_train_loop_compare_fresh(invar_train_loop *loop, const invar_rl_sample *samples,
                                            int64_t count, const float *scored) INVAR_MUST_USE;

/*
 * Scores in-flight and surplus samples, and the batch if it was not scored, and compares the tokens
 * that the current weights sampled. Call before the weights change.
 */
invar_status invar_train_loop_check_flight(invar_train_loop *loop) INVAR_MUST_USE;

/* Verification callback of the sampling thread (async_sampler.h). `loop` is an invar_train_loop. */
invar_status invar_train_loop_verify_async(void *loop, const invar_rl_sample *samples,
                                           int64_t count,
                                           const invar_progress_callback *tick) INVAR_MUST_USE;

/* Progress callback of async_verifier: forwards to the callback of the verification in progress. */
invar_status invar_train_loop_async_progress(void *loop) INVAR_MUST_USE;

/*
 * Waits for asynchronous sampling (invar_sample_source_join) and reports a mismatch that any rank
 * has found. Collective.
 */
invar_status invar_train_loop_join_async(invar_train_loop *loop) INVAR_MUST_USE;

/* ---- train_step.c ---------------------------------------------------------------------------- */

/*
 * One optimizer step: its report and what the report borrows. Zero-initialize before use. Release
 * with invar_train_loop_step_release, also after a failure.
 */
typedef struct invar_train_step {
    invar_step_report report;
    int64_t *start;       /* (count + 1) offsets of the samples' tokens; owned */
    invar_rl_batch batch; /* input of the losses */
    invar_loss *losses[INVAR_STEP_REPORT_LEARNERS]; /* owned; by learner */
} invar_train_step;

/*
 * Records an error event. Unless on-mismatch lets the run continue, also fails with
 * INVAR_E_MISMATCH. All ranks find the same mismatch and must call it.
 */
invar_status invar_train_loop_mismatch(invar_train_loop *loop, const char *kind,
                                       const char *text) INVAR_MUST_USE;

/*
 * Computes the loss of a plug-in on rank 0 and broadcasts it. `loop` is an invar_train_loop, as
 * invar_loss_custom needs it.
 */
invar_status invar_train_loop_ask_loss(float *loss_out, float *dlogp_out,
                                       const invar_loss_sample *sample, void *loop) INVAR_MUST_USE;

/*
 * Computes the log-probs of actor, reference and teacher, the values of the critic and the
 * advantages of all samples of the rollout.
 */
invar_status invar_train_loop_prepare(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Calls a hook, if the recipe has one: INVAR_PLUGIN_BEFORE_LOGPROB or another of invar_plugin.h.
 * `samples` may be NULL.
 */
invar_status invar_train_loop_hook(invar_train_loop *loop, int hook,
                                   const invar_rl_samples *samples) INVAR_MUST_USE;

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
bool invar_train_loop_skips_actor(const invar_train_loop *loop);

/* Runs forward, loss, backward and AdamW for the samples of `step`. */
invar_status invar_train_loop_learn(invar_train_step *step, invar_train_loop *loop) INVAR_MUST_USE;

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

/*
 * Broadcasts a text of rank 0. On other ranks, *text is allocated and the caller frees it.
 * Collective.
 */
invar_status invar_train_loop_share_text(char **text, size_t *bytes, const invar_train_loop *loop,
                                         const char *what) INVAR_MUST_USE;

/* ---- run_dir/by_time.c ----------------------------------------------------------------------- */

/* Restarts the interval of save-interval-minutes. */
void invar_train_loop_restart_clock(invar_train_loop *loop);

/* Computes the disk space that the remaining checkpoints of the run need. */
invar_status invar_train_loop_plan_disk(invar_disk *out,
                                        const invar_train_loop *loop) INVAR_MUST_USE;

/*
 * True if a checkpoint by time of `bytes` may be copied to a host with `memory` bytes, and be
 * written from the copy while training continues. The user did not ask for this copy, which stays
 * until the run ends, so it takes at most half of the memory. Larger checkpoints are written at
 * once.
 */
bool invar_train_loop_may_copy(int64_t bytes, size_t memory);

/*
 * Collective. *out is true if the clock of rank 0 asks for a checkpoint. A checkpoint that would
 * leave no space for those that the run is sure to write is reported like one that failed.
 */
invar_status invar_train_loop_agree_by_time(bool *out, invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Handles the status of a checkpoint by time. If disk space or memory ran out, records and reports
 * an event and returns INVAR_OK; any other status is returned. Of consecutive failures for the same
 * reason, the first, the second, the fourth and so on are reported.
 */
invar_status invar_train_loop_forgive_save(invar_train_loop *loop,
                                           invar_status status) INVAR_MUST_USE;

/* ---- run_dir/schedule_record.c --------------------------------------------------------------- */

/*
 * Reads the schedule that rollout-record names, if the recipe has that key, before anything is
 * written. Returns INVAR_E_NOTFOUND if there is no such schedule or it ends before the run does,
 * and INVAR_E_CORRUPT if the file is damaged or its batches have another size than the recipe's.
 * Collective.
 */
invar_status invar_train_loop_read_record(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Opens the record that the run follows and continues; in a replay, the record in the ledger. Call
 * when the next rollout is known.
 */
invar_status invar_train_loop_open_schedule(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Writes the run's own record file, to which later ticks are appended. Rank 0 calls it after the
 * run has begun in the ledger.
 */
invar_status invar_train_loop_begin_schedule(invar_train_loop *loop) INVAR_MUST_USE;

/* Reports, and records in the ledger, that unchecked lines of a version 1 journal were used. */
invar_status invar_train_loop_report_unchecked(invar_train_loop *loop,
                                               const char *file) INVAR_MUST_USE;

/*
 * Appends the recorded events of this rollout's tick to `text`, if the run has a recorded schedule.
 */
invar_status invar_train_loop_write_tick(invar_json_text *text,
                                         const invar_train_loop *loop) INVAR_MUST_USE;

/* ---- run_dir/save.c -------------------------------------------------------------------------- */

/* One model with its optimizer as three sets of tensors. */
typedef struct invar_checkpoint_part {
    const char *masters, *m, *v; /* names of the three sets */
    invar_model *model;
    invar_optimizer *optimizer; /* NULL if there are no moments */
} invar_checkpoint_part;

/* Writes the models that a checkpoint can contain to `out` and returns their number. */
int invar_train_loop_parts(invar_checkpoint_part out[INVAR_TRAIN_LOOP_PARTS],
                           const invar_train_loop *loop);

/*
 * True if the run never changes the weights that its identity names: its checkpoints then contain
 * the position in the data, and no weights. A fork keeps the weights of its parent.
 */
bool invar_train_loop_keeps_weights_fixed(const invar_train_loop *loop);

/*
 * Fails if save-hf names a folder that is not empty and that this run has not written. Call before
 * the run begins.
 */
invar_status invar_train_loop_check_exports(const invar_train_loop *loop) INVAR_MUST_USE;

typedef enum invar_train_loop_saving {
    INVAR_TRAIN_LOOP_SAVE_DUE, /* save-interval */
    INVAR_TRAIN_LOOP_SAVE_LAST,
    INVAR_TRAIN_LOOP_SAVE_BY_TIME /* save-interval-minutes; without an export */
} invar_train_loop_saving;

/*
 * Writes the checkpoint and the Hugging Face export, as the recipe asks. Unless it is the last one,
 * a checkpoint of a device with its own memory may be only begun (async-save). A checkpoint by time
 * that fails for lack of space or memory is reported, and INVAR_OK is returned.
 */
invar_status invar_train_loop_save(invar_train_loop *loop,
                                   invar_train_loop_saving kind) INVAR_MUST_USE;

/*
 * Saves the position of the source and, on rank 0, a copy of the in-flight samples before a
 * rollout, so that a failed rollout can still be followed by a checkpoint of the previous step.
 */
invar_status invar_train_loop_save_rescue_point(invar_train_loop *loop) INVAR_MUST_USE;
/*
 * Drops that copy, and saves the present position of the source instead. Call after the rollout,
 * when the source itself has what is to be saved.
 */
void invar_train_loop_clear_rescue_point(invar_train_loop *loop);

/* Writes the first checkpoint of a fork, so that it can resume without its parent. */
invar_status invar_train_loop_keep_fork(invar_train_loop *loop) INVAR_MUST_USE;

/* True if this rank has all that a checkpoint of the steps before the current rollout contains. */
bool invar_train_loop_has_rescue_point(const invar_train_loop *loop);

/*
 * Writes a checkpoint of the last complete step after a failed rollout. *saved_out is true if one
 * was written. Pass sound = false if the state of this rank may be wrong after the failure. With
 * several ranks, all must call it, after one has aborted the run recoverably.
 */
invar_status invar_train_loop_emergency_save(bool *saved_out, invar_train_loop *loop,
                                             bool sound) INVAR_MUST_USE;

/*
 * Call before any state changes that a checkpoint contains: waits until a checkpoint in progress
 * has its copy, and clears can_save_previous.
 */
void invar_train_loop_before_change(invar_train_loop *loop);

/* Releases the masters that were gathered for checkpoints and exports. */
void invar_train_loop_release_masters(invar_train_loop *loop);

/* Waits until the checkpoint in progress, if any, is complete. */
invar_status invar_train_loop_finish_save(invar_train_loop *loop) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
