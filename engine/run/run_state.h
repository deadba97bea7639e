/*
 * run_state.h - state of a training run on one rank, in five parts.
 *
 * job: options and configuration; world: ranks; models: weights and the objects that compute with
 * them; storage: data on disk and the position of the run; flow: samples between the data and the
 * losses. A function takes the parts that it needs. The last three point to job and world.
 *
 * Private to engine/run. The thread that runs the loop uses all parts; the sampling thread, if
 * there is one, writes only to flow->async_status until it is joined.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_RUN_STATE_H
#define INVAR_ENGINE_RUN_RUN_STATE_H

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
#include "engine/run/identity/user_facts.h"
#include "engine/run/memory_workload.h"
#include "engine/run/run_dir/disk.h"
#include "engine/run/run_dir/paths.h"
#include "engine/run/run_plugins.h"
#include "engine/run/train_options.h"
#include "engine/run/train_settings.h"
#include "engine/sample/source/source.h"
#include "engine/train/weight_sync/weight_sync.h"

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

/* State of saving and resuming. */
typedef struct invar_run_checkpoints {
    invar_hf_files hf_files;         /* auxiliary files of hf-checkpoint, copied to exports and
                                        checkpoints */
    invar_checkpoint *resume_from;   /* checkpoint to resume or fork from, or NULL; NULL after it
                                        was loaded */
    invar_checkpoint_writer *writer; /* background writer; NULL until a checkpoint is written
                                        in the background */
    /* masters gathered for writing; valid until the weights change */
    invar_full_masters masters[INVAR_DISK_PARTS];
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

/* Task of the run: options and configuration. Constant once the run is open. */
typedef struct invar_run_job {
    const invar_train_options *options;
    const invar_config *config;
    invar_train_settings settings;
} invar_run_job;

/* Ranks of the run, and which of them train and sample. */
typedef struct invar_run_world {
    const invar_run_job *job;
    invar_layout layout;       /* layout of the ranks with this rank's role, train or sample */
    const invar_layout *ranks; /* &layout; NULL if there is only one rank */
    invar_rank_roles roles;    /* ranks that only sample; zeroed if all ranks do both */
    const invar_layout *all;   /* layout of all ranks; equal to `ranks` if all do both */
    invar_layout_transport transport;
    bool all_failed; /* all ranks fail with the same error, so no rank has to abort the others */
} invar_run_world;

/* Models of the run on this rank, and what computes with them. */
typedef struct invar_run_models {
    const invar_run_job *job;
    invar_run_world *world;
    invar_run_context context; /* device, models and data */
    invar_rollout *rollout;    /* NULL if this rank samples nothing */
    invar_trainer *trainer;
    /* verifies samples drawn during training; NULL if nothing is, or if it is not verified */
    invar_trainer *async_verifier;
    invar_learner actor, critic;
    invar_loss_custom custom_loss;   /* loss of a plug-in */
    invar_memory_workload workload;  /* input of the memory plan */
    invar_phase_memory phase_memory; /* device memory that sampling, scoring and training share */
    invar_weight_sync *weight_sync;  /* weight sync to ranks that only sample; NULL if all ranks do
                                        both */
    int64_t synced; /* rollout for which sampling weights are up to date; -1 at first */
} invar_run_models;

/* Data of the run on disk (run folder, ledger, checkpoints, logs), and the position of the run. */
typedef struct invar_run_storage {
    const invar_run_job *job;
    invar_run_world *world;
    invar_train_summary *summary;
    invar_run_dirs dirs;
    invar_fork fork;
    invar_identity identity;
    invar_run_checkpoints checkpoints;
    invar_recorder recorder;
    invar_track *track; /* experiment trackers, on rank 0, or NULL */
    invar_train_log log;
    invar_triage_state triage;
    invar_audit *audit;                  /* NULL if the recipe asks for none */
    invar_audit_findings audit_findings; /* if there are several ranks */
    invar_train_position position;       /* next rollout and step */
    bool can_save_previous; /* no state of this step has changed yet: a checkpoint of the previous
                               step can be written */
    invar_source_position position_before; /* position of the source before the current rollout */
    invar_inflight inflight; /* copy of the in-flight samples before the rollout, for such a
                                checkpoint */
    bool restore_inflight;   /* the source may have changed its in-flight samples, so `inflight` has
                                to replace them */
} invar_run_storage;

/* Samples between the data and the losses: their source, plug-ins and the current batch. */
typedef struct invar_run_flow {
    const invar_run_job *job;
    invar_run_world *world;
    invar_run_plugins plugins;
    invar_agents *agents;                      /* agents that lead samples, or NULL */
    invar_recorded_schedule recorded_schedule; /* used with rollout-schedule = recorded */
    invar_sample_source source;
    invar_async_status async_status; /* status of the sampling thread */
    invar_sample_batch batch;        /* samples of the current rollout */
    invar_token_arrays arrays;       /* per-token arrays of the current rollout */
    bool warned_equal_rewards;       /* the warning about equal rewards was printed */
} invar_run_flow;

#endif
