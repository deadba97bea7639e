/*
 * train_loop.h - a training run from the inside: its parts, and in which order they work.
 *
 * Only engine/run includes this. The way of one rollout: the source yields samples with rewards,
 * they are scored (log-probabilities by other forwards) and get advantages, then per optimizer step
 * the learners learn and the recorder writes down what they did.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_TRAIN_LOOP_H
#define INVAR_ENGINE_RUN_TRAIN_LOOP_H

#include <stdio.h>

#include "base/file.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/files/hf/aux_files.h"
#include "engine/model/graph/audit.h"
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
#include "engine/run/train.h"
#include "engine/run/train_settings.h"
#include "engine/run/user_facts.h"
#include "engine/sample/source/source.h"
#include "engine/train/weight_sync/weight_sync.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where its files are. */
typedef struct invar_run_dirs {
    invar_run_paths paths;
    invar_held_folder folder;    /* at.run, held */
    invar_checkpoint_lock claim; /* of at.save */
} invar_run_dirs;

/* What it is asked for. */
typedef struct invar_identity {
    invar_digest digest;
    bool evaluates;             /* while it trains */
    invar_digest eval_data;     /* of all evaluation sets */
    invar_data_lengths data;    /* how long samples can be */
    invar_saved_rollouts saved; /* rollouts */
    invar_user_facts facts;     /* given along by whoever started it */
} invar_identity;

#define INVAR_TRAIN_LOOP_PARTS 3 /* models that a checkpoint keeps, at most */

/* Its checkpoints. */
typedef struct invar_run_checkpoints {
    invar_hf_files hf_files;         /* of hf-checkpoint, which exports and checkpoints hand on */
    invar_checkpoint *resume_from;   /* what it goes on from, until it has; NULL: none */
    invar_checkpoint_writer *writer; /* NULL: no checkpoint was written behind the run's back */
    invar_full_masters masters[INVAR_TRAIN_LOOP_PARTS]; /* of what is written, until it changes */
    int64_t next;        /* the step that follows the newest one; 0: there is none */
    bool by_time;        /* what the writer has begun is saved by time */
    int64_t saved_ms;    /* time of the last attempt to save one, or of the start; rank 0's */
    uint64_t failures;   /* of checkpoints by time, one after the other for the same reason: */
    invar_status failed; /* this, */
    int native;          /* and this code of the system */
} invar_run_checkpoints;

/* Where the run is: what, with the place of the source, a checkpoint keeps. */
typedef struct invar_train_position {
    int64_t rollout; /* the next one */
    int64_t step;    /* the next one */
    int64_t weights; /* version */
} invar_train_position;

/* The step of another run that this one goes on from. */
typedef struct invar_fork {
    int64_t step;       /* -1: it has begun by itself */
    invar_digest chain; /* there */
    bool starting;      /* it begins, from a checkpoint of the other run; else it has its own */
    char uuid[INVAR_LEDGER_UUID_SIZE];
    char name[INVAR_LEDGER_NAME_BYTES + 1];
} invar_fork;

/* What the audit of this rank has found and not told yet: lines that end with a NUL. */
typedef struct invar_audit_findings {
    char text[8192];
    size_t bytes;
} invar_audit_findings;

#define INVAR_TRAIN_LOOP_ODD_SIZE 512

/* What a thread that draws ahead has to tell; its own until it is joined. */
typedef struct invar_async_status {
    int64_t begin_ns, end_ns; /* of invar_trace_clock */
    char mismatch_text
        [INVAR_TRAIN_LOOP_ODD_SIZE]; /* a token that scoring finds another log-probability of */
    invar_progress_callback tick;    /* who is told that scoring gets on */
} invar_async_status;

/* What the run has found in its own ledger. */
typedef struct invar_triage_state {
    uint32_t reported_rules; /* a bit for each rule */
    int64_t next_ms;         /* no look before this time */
} invar_triage_state;

/* train.log of the rank that writes. */
typedef struct invar_train_log {
    FILE *file;       /* NULL: not yet, or none is kept */
    int64_t next_ms;  /* no line of a step before this time */
    bool ended;       /* `early` is no longer filled: */
    char early[4096]; /* what was said before the run had a folder, lines that end with a NUL */
    size_t early_bytes;
} invar_train_log;

typedef struct invar_train_loop {
    const invar_train_options *options;
    const invar_recipe *recipe;
    invar_train_summary *summary;
    invar_train_settings settings;
    invar_layout layout;       /* of its ranks, or of those that train, or that only sample, */
    const invar_layout *ranks; /* where there are several; NULL: one */
    invar_rank_roles roles;    /* where some only sample, */
    const invar_layout *world; /* and all ranks then; else as `ranks` */
    invar_layout_transport transport;
    invar_run_context session; /* device, models, data */
    invar_run_dirs dirs;
    invar_fork fork;
    invar_identity identity;
    invar_run_checkpoints store;
    invar_run_plugins plugins;
    invar_loss_custom custom; /* the loss among them */
    invar_rollout *rollout;   /* NULL: nothing is sampled */
    invar_trainer *trainer;
    /* of what is drawn beside training; NULL: nothing is, or unchecked */
    invar_trainer *async_verifier;
    invar_memory_workload ask;         /* what it will ask of the device's memory, */
    invar_phase_memory block;          /* and where rollout and trainer have theirs */
    invar_audit *audit;                /* NULL: none */
    invar_audit_findings findings;     /* of one rank of several */
    invar_agents *agents;              /* that lead samples; NULL: none do */
    invar_recorded_schedule timetable; /* of a recorded schedule */
    invar_sample_source source;
    invar_async_status ahead;
    invar_weight_sync *sync; /* NULL: whoever trains samples */
    int64_t synced; /* the rollout for which those that sample have the weights; -1: none */
    invar_learner actor, critic;
    invar_recorder recorder;
    invar_track *track; /* who is told about it, by the rank that writes; NULL: nobody */
    invar_train_position place;
    bool can_save_previous; /* by the current rollout: all is as a checkpoint keeps it, but */
    invar_source_position position_before; /* where the source was then, */
    invar_inflight flight;     /* and what was in flight, where a checkpoint may want it, */
    bool inflight_copy_stale;  /* which is no longer what the source has */
    invar_sample_batch batch;  /* the current rollout, */
    invar_token_arrays arrays; /* its numbers */
    bool warned_equal_rewards; /* rewards */
    invar_triage_state triage;
    invar_train_log log;
    bool all_ranks_failed; /* all ranks fail alike: none has to be told */
} invar_train_loop;

/* ---- setup/setup.c --------------------------------------------------------------------------- */

invar_status invar_train_loop_open(invar_train_loop *loop, const invar_recipe *recipe,
                                   const invar_train_options *options,
                                   invar_train_summary *summary) INVAR_MUST_USE;

/* The same as far as it only reads: until the ranks have compared what they were given. */
invar_status invar_train_loop_read(invar_train_loop *loop, const invar_recipe *recipe,
                                   const invar_train_options *options) INVAR_MUST_USE;
void invar_train_loop_close(invar_train_loop *loop);

/* ---- setup/ranks.c --------------------------------------------------------------------------- */

/* After a halt: the groups of the layout, which only the group of all ranks survives, anew. */
invar_status invar_train_loop_renew_layout(invar_train_loop *loop) INVAR_MUST_USE;

/* ---- identity.c: ledger and identity --------------------------------------------------------- */

/* Opens the run's ledger as its writer. Where it has a run, that must be this one, computed under
   this program's revisions of ops. */
invar_status invar_train_loop_open_ledger(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Begins the run in its ledger, or, where that has it, a new segment after `step` (-1: from the
 * start), whose chain must be `chain`.
 */
invar_status invar_train_loop_begin(invar_train_loop *loop, int64_t step,
                                    const invar_digest *chain) INVAR_MUST_USE;
invar_status invar_train_loop_identify(invar_train_loop *loop) INVAR_MUST_USE;

/* Refuses, without writing, a folder whose ledger has a run with another identity. *uuid_out: of
   the run that is there; "" if there is none, or if only a writer can say. */
invar_status invar_train_loop_check_existing(char uuid_out[INVAR_LEDGER_UUID_SIZE],
                                             const invar_train_loop *loop) INVAR_MUST_USE;

/*
 * INVAR_E_STATE: a rank runs another program, or was asked for something else, than most. Before
 * ranks divide anything: what they make of a recipe depends on it.
 */
invar_status invar_train_loop_compare_recipes(invar_train_loop *loop) INVAR_MUST_USE;

/* INVAR_E_STATE: a rank has other data, weights or kernels of a GPU than most. */
invar_status invar_train_loop_compare_files(invar_train_loop *loop) INVAR_MUST_USE;

/* Before: which sets it is evaluated on. */
invar_status invar_train_loop_read_sets(invar_train_loop *loop) INVAR_MUST_USE;

/* INVAR_E_NOTFOUND: a checkpoint of `step` is to be gone on from, and its run is not there. */
invar_status invar_train_loop_fail_missing_run(const invar_train_loop *loop,
                                               int64_t step) INVAR_MUST_USE;

/*
 * ---- run_dir/start.c: where it writes -----------------------------------------------------------
 */

/*
 * Before anything is made: the run's folder is somebody's or another run's, `save` has checkpoints
 * of another run, or those of this run are elsewhere, so that it would begin again.
 */
invar_status invar_train_loop_check_home(const invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Claims the folder of checkpoints, makes the run's folder and opens its ledger. INVAR_E_STATE: one
 * of them is another run's. Where a fresh start is asked for, what is there gets another name.
 */
invar_status invar_train_loop_open_dirs(invar_train_loop *loop) INVAR_MUST_USE;

/* Whether the run is or becomes a fork, by its ledger or by what was asked for. */
invar_status invar_train_loop_find_fork(invar_train_loop *loop) INVAR_MUST_USE;

#define INVAR_FORK_COMMAND_SIZE 1500

/*
 * Writes the command that continues the run in the loop's folder as a fork with the loop's keys,
 * for error messages. `out` is empty if the folder has no checkpoint or the command is too long.
 */
void invar_train_loop_fork_command(char out[INVAR_FORK_COMMAND_SIZE], const invar_train_loop *loop);

/* After the run has begun: its checkpoints' folder says so. */
invar_status invar_train_loop_write_owner(invar_train_loop *loop) INVAR_MUST_USE;

/* Before anything is written by its path: loop->at says where the folders are by now. */
invar_status invar_train_loop_refresh_paths(invar_train_loop *loop) INVAR_MUST_USE;

/* True of a file that this process prints to: the log of whoever started the run. */
struct stat;
bool invar_train_loop_is_output(const struct stat *file);

/*
 * ---- run_dir/run_files.c: recipe.ini and train.log
 * ---------------------------------------------------
 */

/* Once the run has begun in its folder, by the rank that writes. */
invar_status invar_train_loop_write_run_files(invar_train_loop *loop) INVAR_MUST_USE;

/* A line in the log alone; nothing where there is none. */
void invar_train_loop_log(invar_train_loop *loop, const char *fmt, ...);

/* A line for people and for the log; `loop` is an invar_train_loop (invar_recorder_options.say). */
void invar_train_loop_print(void *loop, const char *line);

/* A step, where the last line of one is long enough ago. */
void invar_train_loop_log_step(invar_train_loop *loop, const invar_train_progress *progress);

/* The end of the run, with the last failure unless `status` is INVAR_OK. */
void invar_train_loop_log_end(invar_train_loop *loop, invar_status status);

/*
 * ---- progress.c
 * ----------------------------------------------------------------------------------
 */

/* Before the first rollout: the clock of the pace runs from here on. */
void invar_train_loop_start_pace(invar_train_loop *loop);

/* Whether samples have rewards: the estimator needs some, or somebody gives them nevertheless. */
bool invar_train_loop_rewarded(const invar_train_loop *loop, const invar_rl_sample *samples,
                               int64_t count);

/* After a step: progress for whoever started the run, and its summary. */
void invar_train_loop_show_step(invar_train_loop *loop, const invar_step_report *step);

/* Who is told about the run, from here on; `finish` is the run's status. */
invar_status invar_train_loop_open_track(invar_train_loop *loop) INVAR_MUST_USE;
void invar_train_loop_close_track(invar_train_loop *loop, invar_status finish);

/* The text of a sample, where the recipe wants it. */
void invar_train_loop_show_sample(const invar_train_loop *loop);

/* Once: who sees it in the first rollout need not wait for the curves. Rewards above 0 are good. */
void invar_train_loop_tell_equal_rewards(invar_train_loop *loop);

/* ---- triage.c -------------------------------------------------------------------------------- */

/* Between two rollouts, by rank 0: tells what is new. `last`: of the run, whatever the time. */
void invar_train_loop_triage(invar_train_loop *loop, bool last);

/* ---- audit.c --------------------------------------------------------------------------------- */

/* The recipe's audit, of the rollout and the trainer. */
invar_status invar_train_loop_attach_audit(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * What several ranks have found since the last time is in the ledger; *any_out: there was
 * something, and loop->findings has the first line. Calls of all ranks; of one nothing happens.
 */
invar_status invar_train_loop_gather_findings(bool *any_out, invar_train_loop *loop) INVAR_MUST_USE;

/* At the end of a phase, the same; then, unless the recipe says otherwise, the end of the run. */
invar_status invar_train_loop_report_findings(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * ---- async_verify.c
 * ---------------------------------------------------------------------------------
 */

/* The weights of now have drawn the samples' newest tokens; `scored` by all tokens of them. */
invar_status invar_train_loop_compare_fresh(invar_train_loop *loop, const invar_rl_sample *samples,
                                            int64_t count, const float *scored) INVAR_MUST_USE;

/* Before these weights change: all in flight, surplus, and the batch where it was not scored. */
invar_status invar_train_loop_check_flight(invar_train_loop *loop) INVAR_MUST_USE;

/* The look of a thread that draws beside training (async_sampler.h); `loop` is an
 * invar_train_loop.
 */
invar_status invar_train_loop_verify_async(void *loop, const invar_rl_sample *samples,
                                           int64_t count,
                                           const invar_progress_callback *tick) INVAR_MUST_USE;

/* Of the checker: such a look gets on. */
invar_status invar_train_loop_tick_ahead(void *loop) INVAR_MUST_USE;

/* A call of all ranks: invar_sample_source_join, and what the look of any of them has found. */
invar_status invar_train_loop_join_ahead(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * ---- train_step.c
 * ---------------------------------------------------------------------------------
 */

/* An optimizer step: what the recorder is told, and what of it is owned. Zeroed at first. */
typedef struct invar_train_step {
    invar_step_report report;
    int64_t *start;
    invar_rl_batch batch; /* what the losses look at */
    invar_loss *losses[INVAR_STEP_REPORT_LEARNERS];
} invar_train_step;

/* An event and, unless the recipe says otherwise, the end of the run. */
invar_status invar_train_loop_mismatch(invar_train_loop *loop, const char *kind,
                                       const char *text) INVAR_MUST_USE;

/* The loss of a plug-in, which rank 0 asks; `loop` is an invar_train_loop (invar_loss_custom). */
invar_status invar_train_loop_ask_loss(float *loss_out, float *dlogp_out,
                                       const invar_loss_sample *sample, void *loop) INVAR_MUST_USE;

/* Scoring, reference, teacher, critic, advantages of the whole rollout. */
invar_status invar_train_loop_prepare(invar_train_loop *loop) INVAR_MUST_USE;

/* Tells a hook, where there is one; `samples` may be NULL. */
invar_status invar_train_loop_hook(invar_train_loop *loop, int hook,
                                   const invar_rl_samples *samples) INVAR_MUST_USE;

/* A step of `count` samples from `first` on, in which nothing has been learned yet. */
invar_status invar_train_loop_step_make(invar_train_step *out, const invar_train_loop *loop,
                                        int64_t first, int64_t count) INVAR_MUST_USE;
void invar_train_loop_step_release(invar_train_step *step);

/* The actor rests while only the critic learns, and where the recipe says so. */
bool invar_train_loop_skips_actor(const invar_train_loop *loop);

/* Forward, loss, backward, norm, AdamW of step `number` of the rollout. */
invar_status invar_train_loop_learn(invar_train_step *step, invar_train_loop *loop) INVAR_MUST_USE;

/*
 * ---- run_dir/resume.c ---------------------------------------------------------------------------
 */

/* Before anything is made: a `load` that is not the run's own folder has a checkpoint of it, and a
   new run has the files with rollouts that it will load. */
invar_status invar_train_loop_find_checkpoint(invar_train_loop *loop) INVAR_MUST_USE;

/*
 * Loads the checkpoint that was found, or the newest of the run's own, and begins behind it. Where
 * all that is asked for is done already nothing is written, and loop->summary says so. Rank 0
 * decides, and all load the same.
 */
invar_status invar_train_loop_resume(invar_train_loop *loop) INVAR_MUST_USE;

/* Bytes of a file that rank 0 has read; the others get a block of their own. A call of all. */
invar_status invar_train_loop_share_text(char **text, size_t *bytes, const invar_train_loop *loop,
                                         const char *what) INVAR_MUST_USE;

/*
 * ---- run_dir/by_time.c --------------------------------------------------------------------------
 */

/* The time to the next checkpoint by time begins now. */
void invar_train_loop_restart_clock(invar_train_loop *loop);

/* What its checkpoints need, from here on. */
invar_status invar_train_loop_plan_disk(invar_disk *out,
                                        const invar_train_loop *loop) INVAR_MUST_USE;

/*
 * True if a checkpoint by time of so many bytes may be copied to a host with `memory` bytes, and be
 * written from the copy while training continues. No user asked for this copy, which stays until
 * the run ends, so it takes at most half of the memory. Larger checkpoints are written at once.
 */
bool invar_train_loop_may_copy(int64_t bytes, size_t memory);

/*
 * Collective: whether the clock of rank 0 asks for a checkpoint. One that would leave no room for
 * those that the run is sure to write is reported like one that failed.
 */
invar_status invar_train_loop_agree_by_time(bool *out, invar_train_loop *loop) INVAR_MUST_USE;

/*
 * The status of a checkpoint by time: if there was no space or no memory for it, the failure is
 * reported and recorded as an event, and INVAR_OK is returned. Of many for the same reason, with no
 * checkpoint by time that succeeds between them, the first, the second, the fourth and so on are
 * reported.
 */
invar_status invar_train_loop_forgive_save(invar_train_loop *loop,
                                           invar_status status) INVAR_MUST_USE;

/*
 * ---- run_dir/schedule_record.c
 * ------------------------------------------------------------------------
 */

/*
 * Reads the schedule that rollout-record names, if the recipe has that key, before anything is
 * written. Every rank calls this function. INVAR_E_NOTFOUND: there is no such schedule, or it ends
 * before the run does; INVAR_E_CORRUPT: the file is damaged, or its batches have another size than
 * the recipe's.
 */
invar_status invar_train_loop_read_record(invar_train_loop *loop) INVAR_MUST_USE;

/* Where it is known with which rollout the run goes on: the record that it obeys and continues. */
invar_status invar_train_loop_open_timetable(invar_train_loop *loop) INVAR_MUST_USE;

/* After the ledger has the run: writes the run's own file, to which the next ticks are appended.
   Only the rank that has the ledger calls it. */
invar_status invar_train_loop_begin_timetable(invar_train_loop *loop) INVAR_MUST_USE;

/* Reports, and records in the ledger, that the lines of a journal of version 1 were used. */
invar_status invar_train_loop_tell_unchecked(invar_train_loop *loop,
                                             const char *file) INVAR_MUST_USE;

/* For the first step of a rollout: what the clock has decided for it, where it does. */
invar_status invar_train_loop_show_tick(invar_json_text *text,
                                        const invar_train_loop *loop) INVAR_MUST_USE;

/*
 * ---- run_dir/save.c -----------------------------------------------------------------------------
 */

/* One model with its optimizer as three sets of tensors. */
typedef struct invar_checkpoint_part {
    const char *masters, *m, *v; /* names of sets */
    invar_model *model;
    invar_optimizer *optimizer; /* NULL: without moments */
} invar_checkpoint_part;

/* What a checkpoint can keep; returns how many. */
int invar_train_loop_parts(invar_checkpoint_part out[INVAR_TRAIN_LOOP_PARTS],
                           const invar_train_loop *loop);

/*
 * True if the run never changes the weights that its identity names: its checkpoints keep the place
 * in the data, and no weights. A fork has the weights of its parent, which it keeps.
 */
bool invar_train_loop_rests(const invar_train_loop *loop);

/* Before the run begins: fails where save-hf names a folder of somebody else. */
invar_status invar_train_loop_check_exports(const invar_train_loop *loop) INVAR_MUST_USE;

typedef enum invar_train_loop_saving {
    INVAR_TRAIN_LOOP_SAVE_DUE, /* save-interval */
    INVAR_TRAIN_LOOP_SAVE_LAST,
    INVAR_TRAIN_LOOP_SAVE_BY_TIME /* save-interval-minutes: without an export */
} invar_train_loop_saving;

/*
 * Writes the checkpoint and the Hugging Face export, each where the recipe wants it. On a device
 * with memory of its own, unless this is the last one, the checkpoint is only begun. One by time
 * that cannot be written for want of space or memory is reported, and is no failure.
 */
invar_status invar_train_loop_save(invar_train_loop *loop,
                                   invar_train_loop_saving kind) INVAR_MUST_USE;

/* Before a rollout: all is as a checkpoint keeps it, and what of it the source will change is
   remembered. After the rollout it is forgotten: what the source has by then is to be kept. */
invar_status invar_train_loop_save_rescue_point(invar_train_loop *loop) INVAR_MUST_USE;
void invar_train_loop_clear_rescue_point(invar_train_loop *loop);

/* Before the first step of a fork: the checkpoint of its own that it resumes from. */
invar_status invar_train_loop_keep_fork(invar_train_loop *loop) INVAR_MUST_USE;

/* Does this rank have all that a checkpoint of the steps before the current rollout keeps? */
bool invar_train_loop_has_rescue_point(const invar_train_loop *loop);

/*
 * After a rollout that failed, before anything was learned from it: the checkpoint of the steps
 * before it. *saved_out: whether there is a new one. `sound`: the failure says nothing against what
 * this rank has. Of several ranks all call it, after one has halted the run.
 */
invar_status invar_train_loop_emergency_save(bool *saved_out, invar_train_loop *loop,
                                             bool sound) INVAR_MUST_USE;

/* Before anything that a checkpoint keeps is changed: one that was begun has its copy then, and
   the rollout is no longer untouched. */
void invar_train_loop_before_change(invar_train_loop *loop);

/* Masters that were collected for files are no longer wanted. */
void invar_train_loop_forget_masters(invar_train_loop *loop);

/* The checkpoint that was begun exists now; where there is none nothing happens. */
invar_status invar_train_loop_finish_save(invar_train_loop *loop) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
