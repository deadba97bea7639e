/*
 * source.h - produces the sample batch of each rollout, by sampling, from SFT data or from files.
 *
 *     invar_sample_source_start(&source, &order);
 *  do invar_sample_source_poll(&ready, &source); while (!ready);   each does a part
 *     invar_sample_source_take(&batch, &source);
 *
 * The caller does not depend on the kind of source. Samples are returned in order with their
 * rewards. Except with a recorded schedule, they are a function of data, request and settings, and
 * never of timing. On several ranks every call from start to take is collective.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_SOURCE_H
#define INVAR_ENGINE_SAMPLE_SOURCE_SOURCE_H

#include "engine/config/config.h"
#include "engine/files/data/dataset.h"
#include "engine/ranks/layout/layout.h"
#include "engine/sample/agent/agent_runner.h"
#include "engine/sample/rollout/file/rollout_file.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/sample/source/async_sampler.h"
#include "engine/sample/source/group_select.h"
#include "engine/sample/source/inflight.h"
#include "engine/sample/source/multi_turn.h"
#include "engine/sample/source/recorded_schedule.h"
#include "engine/sample/source/reward_source.h"
#include "engine/sample/source/sample_schedule.h"

/* ---- files with rollouts --------------------------------------------------------------------- */

/*
 * Rollout files named by the recipe, and whether this run wrote them. Zero-initialize before use.
 * Release with invar_saved_rollouts_release.
 */
typedef struct invar_saved_rollouts {
    bool on_policy;       /* the files are own ones, or rollout 0 has no file */
    invar_digest foreign; /* digest of all foreign files */
    invar_digest *files;  /* (n_files) digest of each foreign file; empty in a replay */
    int64_t n_files;
} invar_saved_rollouts;

/*
 * Classifies the files that the recipe names: own ones, of a run whose identity without them is
 * `own`, or foreign ones, whose digest becomes part of the identity. All files are foreign if a
 * plug-in computes rewards or filters. Returns INVAR_E_INVALID for keys that would have no effect
 * on own rollouts.
 */
invar_status invar_saved_rollouts_find(invar_saved_rollouts *out, const invar_config *config,
                                       const invar_digest *own) INVAR_MUST_USE;
void invar_saved_rollouts_release(invar_saved_rollouts *saved);

/* ---- the source ------------------------------------------------------------------------------ */

/*
 * Plug-ins of the recipe that decide about groups and prompts. Each is NULL without its key, and on
 * ranks other than the one that runs it.
 */
typedef struct invar_sample_source_plugins {
    invar_plugin *groups;  /* drops groups; further ones are sampled for them */
    invar_plugin *samples; /* drops groups, like `groups`, or masks samples */
    invar_plugin *buffer;  /* selects the surplus groups that join the batch */
    invar_plugin *prompts; /* selects prompts; without its key, prompts come in data order */
} invar_sample_source_plugins;

/* Settings of a sample source. Everything that they point to is borrowed. */
typedef struct invar_sample_source_options {
    const invar_config *config;
    invar_generate_args generate; /* how the groups of all batches are sampled and rewarded */
    invar_dataset *data;          /* NULL if all rollouts are loaded from files */
    const invar_tokenizer *tokenizer;
    const invar_model_spec *spec;
    invar_rollout_policy policy; /* number format and arithmetic of sampling in this run */
    invar_sample_source_plugins plugins;
    bool use_data_answers; /* SFT: use the answers of the data instead of sampling */
    int64_t round;         /* prompts of a sampling round */
    invar_sample_schedule schedule;
    invar_recorded_schedule *recorded_schedule; /* recorded schedule; NULL for a declared one */
    invar_verify_callback verify;      /* checks this rank's new in-flight tokens before the weights
                                     change; runs in the sampling thread, if there is one */
    int64_t stop_rollout;              /* first rollout that is never trained on; 0 if unknown */
    const invar_saved_rollouts *saved; /* classification of the files that are loaded */
    invar_digest run;                  /* identity that own files must have */
    bool replay;                       /* digests of foreign files are not known and not checked */
    bool recompute_points;             /* run own files through the rollout again, for its hooks */
} invar_sample_source_options;

/* Position of a sample source in the run, as stored in checkpoints. */
typedef struct invar_source_position {
    int64_t samples; /* index of the next sample */
    int64_t groups;  /* number of the next group */
    invar_data_cursor cursor;
} invar_source_position;

/* Request for the batch of a rollout. */
typedef struct invar_rollout_request {
    int64_t rollout;
    int64_t weights; /* weight version that samples */
    invar_digest weights_hash;
} invar_rollout_request;

/* The samples of a rollout. */
typedef struct invar_sample_batch {
    invar_rl_samples samples; /* owned; texts are borrowed from the source until its next start */
    bool on_policy;           /* requested weights and policy of this run sampled all tokens */
    int64_t filtered_groups;  /* groups rejected by filters; -1 if unknown */
    int64_t reused_groups;    /* surplus groups of earlier rollouts in this batch */
    int64_t surplus_groups;   /* surplus groups left for later rollouts */
} invar_sample_batch;

struct invar_sample_source;

/* A kind of source. A function that is NULL has nothing to do. */
typedef struct invar_sample_source_kind {
    /* begins the batch of source->request */
    invar_status (*start)(struct invar_sample_source *source);
    /* produces the next part of the batch */
    invar_status (*produce)(bool *ready_out, struct invar_sample_source *source);
    /* implement invar_sample_source_prefetch and invar_sample_source_join; NULL if the source has
       no in-flight samples */
    invar_status (*prefetch)(struct invar_sample_source *source);
    invar_status (*join)(struct invar_sample_source *source);
    bool loads; /* samples come from files, which name the weights that sampled */
} invar_sample_source_kind;

/* A sample source. The training loop reads the first three members, `inflight` and `active`. */
typedef struct invar_sample_source {
    invar_sample_source_options options;
    invar_source_position position;
    invar_rollout_request request; /* current request */
    const invar_sample_source_kind *kind;
    invar_group_selection selection; /* dynamic sampling of the current batch */
    invar_inflight inflight;         /* in-flight samples and surplus groups */
    int64_t active;                  /* samples that got tokens in the last sampling call */
    /* samples moved out of `inflight` while they are sampled; merged back afterwards */
    invar_rl_samples active_ahead;
    invar_async_sampler *async_sampler; /* thread that samples active_ahead; NULL if none runs */
    invar_schedule_tick tick;           /* recorded decisions of the current tick; borrowed */
    invar_rollout_file loaded;          /* file of the current rollout */
    invar_sample_batch batch;           /* batch in preparation */
} invar_sample_source;

/* Opens a sample source; it cannot fail. `out` must be zeroed or closed. Options are copied. */
void invar_sample_source_open(invar_sample_source *out, const invar_sample_source_options *options);
void invar_sample_source_close(invar_sample_source *source);

/* Starts the batch of a rollout. Texts of the previous batch become invalid. Collective. */
invar_status invar_sample_source_start(invar_sample_source *source,
                                       const invar_rollout_request *request) INVAR_MUST_USE;

/*
 * Does the next part of the work, such as a sampling round. *ready_out = true if the batch is done.
 */
invar_status invar_sample_source_poll(bool *ready_out, invar_sample_source *source) INVAR_MUST_USE;

/* Moves the finished batch to *out. The caller owns its samples. */
void invar_sample_source_take(invar_sample_batch *out, invar_sample_source *source);

/*
 * Samples the tokens of in-flight rollouts that the weights of the current request must produce.
 * Call it once after invar_sample_source_take. If they are sampled during training, it samples only
 * this rank's share and waits for no other rank, or starts the thread that samples this share.
 */
invar_status invar_sample_source_prefetch(invar_sample_source *source) INVAR_MUST_USE;

/*
 * Returns the error of a sampling thread that has failed already, else INVAR_OK. Never waits. The
 * training loop calls it before the optimizer step, while a checkpoint of the previous step is
 * possible.
 */
invar_status invar_sample_source_poll_error(const invar_sample_source *source) INVAR_MUST_USE;

/*
 * Waits for asynchronous sampling and merges its samples into `inflight` on all ranks. Collective:
 * all ranks must call it before they read `inflight` or change the weights.
 */
invar_status invar_sample_source_join(invar_sample_source *source) INVAR_MUST_USE;

/* Stops the sampling thread and discards its samples. Call it after a failure. */
void invar_sample_source_stop(invar_sample_source *source);

/*
 * Checks the file of a rollout that will be loaded, before the first rollout: it must exist and be
 * complete, and its header and number of samples must fit the recipe.
 */
invar_status invar_sample_source_check_file(const invar_sample_source *source,
                                            int64_t rollout) INVAR_MUST_USE;

/* Writes a batch that was taken to the rollout file of the current request. */
invar_status invar_sample_source_save(const invar_sample_source *source,
                                      const invar_sample_batch *batch,
                                      const char *pattern) INVAR_MUST_USE;

/*
 * Sets a zeroed sample to a prompt. Texts are borrowed from the data set; the tokens are a copy
 * with capacity for the answer of the data.
 */
invar_status invar_sample_source_init_sample(invar_rl_sample *out,
                                             const invar_prompt *prompt) INVAR_MUST_USE;

/* ---- kinds ----------------------------------------------------------------------------------- */

/* Sampling with a declared schedule, one round per call, and with a recorded one. */
extern const invar_sample_source_kind invar_sample_source_declared;
extern const invar_sample_source_kind invar_sample_source_recorded;

/* Answers of the data, for SFT. */
extern const invar_sample_source_kind invar_sample_source_answers;

/* Loading of rollout files. */
extern const invar_sample_source_kind invar_sample_source_files;

/* Returns the next prompt in data order and advances the cursor; borrowed from the data set. */
const invar_prompt *invar_sample_source_next(invar_sample_source *source);

/*
 * Selects `count` prompts for a rollout: the next ones in data order, or those that a plug-in
 * selects. The caller frees *out with invar_free, also after a failure; the prompts are borrowed
 * from the data set. Collective.
 */
invar_status invar_sample_source_prompts(const invar_prompt ***out, invar_sample_source *source,
                                         int64_t rollout, int64_t count) INVAR_MUST_USE;

/*
 * Moves surplus groups into the batch, oldest first, until it is full: all of them, or those that
 * the buffer filter takes. Groups that the filter drops are released. Collective.
 */
invar_status invar_sample_source_take_surplus(invar_sample_source *source) INVAR_MUST_USE;

/* Begins rollouts up to the lag, in order, so that prompts are assigned in data order. */
invar_status invar_sample_source_begin_rollouts(invar_sample_source *source) INVAR_MUST_USE;

/* Returns true if an in-flight sample gets tokens at this tick, and sets its suspend_at. */
typedef bool (*invar_needs_tokens)(invar_rl_sample *sample, const invar_sample_source *source);

/*
 * Moves the samples of the first `rollouts` rollouts in flight that need tokens to active_ahead, to
 * sample them in one run, and leaves zeroed holes.
 */
invar_status invar_sample_source_move_active(invar_sample_source *source, int64_t rollouts,
                                             invar_needs_tokens needs) INVAR_MUST_USE;

/* Returns a callback that sends a heartbeat to the other ranks, which borrows the source. */
invar_progress_callback invar_sample_source_heartbeat(invar_sample_source *source);

/* Joins the sampling thread and merges active_ahead into `inflight` on all ranks. Collective. */
invar_status invar_sample_source_merge_ahead(invar_sample_source *source) INVAR_MUST_USE;

/* Returns true if the requested weights sampled every token of the batch. */
bool invar_sample_source_is_on_policy(const invar_sample_source *source);

/* Returns the largest number of sampling rounds of a batch. */
int64_t invar_sample_source_max_rounds(const invar_sample_source *source);

/*
 * Appends the answer of the data to a sample that has the prompt, with the loss mask of the data.
 */
invar_status invar_sample_source_fill_answer(invar_rl_sample *out,
                                             const invar_prompt *prompt) INVAR_MUST_USE;

#endif
