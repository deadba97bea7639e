/*
 * source.h - where the samples of a rollout come from: sampled, the answers of the data, files.
 *
 *     invar_sample_source_start(&source, &order);
 *  do invar_sample_source_poll(&ready, &source); while (!ready);   each does a piece of the work
 *     invar_sample_source_take(&batch, &source);
 *
 * Whoever asks does not know which kind it is. Samples come with their rewards, in order; what they
 * are is a function of the data, the order and the settings alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_SOURCE_H
#define INVAR_ENGINE_SAMPLE_SOURCE_SOURCE_H

#include "engine/files/data/dataset.h"
#include "engine/ranks/layout/layout.h"
#include "engine/sample/agent/agent_runner.h"
#include "engine/sample/rollout/file/rollout_file.h"
#include "engine/sample/rollout/group_select.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/sample/source/async_sampler.h"
#include "engine/sample/source/inflight.h"
#include "engine/sample/source/lag.h"
#include "engine/sample/source/multi_turn.h"
#include "engine/sample/source/recorded_schedule.h"
#include "engine/sample/source/reward_source.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- files with rollouts --------------------------------------------------------------------- */

/* Whose the rollouts in the recipe's files are. Zeroed, there are none; release. */
typedef struct invar_saved_rollouts {
    bool on_policy;       /* they are what this run would sample */
    invar_digest foreign; /* of all of them, where they are not */
    invar_digest *files;  /* (n_files) of each; a replay does not know them */
    int64_t n_files;
} invar_saved_rollouts;

/*
 * Decides it of the files that the recipe names: this run's, whose identity without them is `own`,
 * or foreign ones, whose hash belongs to the identity. Keys that could do nothing with own rollouts
 * are refused.
 */
invar_status invar_saved_rollouts_find(invar_saved_rollouts *out, const invar_recipe *recipe,
                                       const invar_digest *own) INVAR_MUST_USE;
void invar_saved_rollouts_release(invar_saved_rollouts *saved);

/* ---- the source ------------------------------------------------------------------------------ */

/* A plug-in that filters what was sampled, or chooses what is. */
typedef struct invar_sample_source_filter {
    bool enabled;
    invar_plugin *plugin; /* NULL: another rank has it */
} invar_sample_source_filter;

/* What it is made of; all is borrowed. */
typedef struct invar_sample_source_options {
    const invar_layout *layout; /* whose ranks generate together; NULL: one rank */
    invar_dataset *data;        /* NULL: files alone */
    const invar_tokenizer *tokenizer;
    const invar_model_spec *spec;
    invar_rollout *rollout; /* that samples; NULL where nothing does */
    invar_sampling_params sampling;
    invar_rollout_policy policy; /* with which this run samples */
    invar_reward_source judge;
    invar_multi_turn turns;
    bool agents_lead;                   /* samples, by themselves */
    invar_agents *agents;               /* who they are; NULL: there are none, or rank 0 has them */
    bool judged;                        /* with them: every sample needs a reward */
    invar_sample_source_filter groups;  /* that drops some, for which others are sampled */
    invar_sample_source_filter samples; /* that drops groups, too, or masks samples */
    invar_sample_source_filter buffer;  /* that says which groups of those that wait are taken */
    /* no filter: it chooses the prompts; off: they come in order */
    invar_sample_source_filter prompt_selector;
    bool drop_zero_std; /* groups whose rewards are all alike are dropped */
    bool shuffle;
    bool use_data_answers; /* of the data instead of samples: SFT */
    int64_t prompts;       /* of a rollout */
    int64_t per_prompt;    /* samples of a prompt */
    int64_t round;         /* prompts of a round of sampling */
    bool keep_surplus;     /* groups that are kept beyond the batch wait for the next one */
    invar_lag lag;         /* rollouts begin before their turn */
    invar_recorded_schedule *timetable; /* and end when they do, by this; NULL: lag says when */
    int64_t max_delay;                  /* rollouts that a group may be late then */
    /* Samples in flight continue only in invar_sample_source_prefetch, not beside the current
       rollout. */
    bool separate_async_phase;
    bool async;      /* and nobody need wait for it until invar_sample_source_join: another rank, */
    bool use_thread; /* or this one, which a thread of its own draws beside, */
    invar_verify_callback verify; /* of this rank's share; of such a thread then */
    int64_t stop_rollout;         /* rollouts from here on are never wanted; 0: there is no end */
    /* Told while samples are made; may be NULL. */
    invar_status (*tick)(void *payload, int64_t samples_done, int64_t tokens_done);
    void *payload;
    /* Files: */
    const char *load; /* their pattern; "": none */
    const invar_saved_rollouts *saved;
    invar_digest run;      /* the identity that own ones have */
    bool replay;           /* their hashes are not known */
    bool recompute_points; /* own ones go through `rollout` as if they were being sampled */
    bool needs_logp;       /* a sample without log-probabilities is refused */
    bool needs_routing;    /* a sample without recorded routing is refused */
} invar_sample_source_options;

/* How far it is: what a checkpoint keeps. */
typedef struct invar_source_position {
    int64_t samples; /* index of the next sample */
    int64_t groups;
    invar_data_cursor cursor;
} invar_source_position;

/* What it is asked for. */
typedef struct invar_rollout_request {
    int64_t rollout;
    int64_t weights; /* version of those that sample */
    invar_digest weights_hash;
} invar_rollout_request;

/* The samples of a rollout. */
typedef struct invar_sample_batch {
    invar_rl_samples samples; /* owned; texts are borrowed from the source until its next start */
    bool on_policy;           /* the weights and the policy of this run sampled all of them */
    int64_t filtered_groups;  /* groups that a filter of samples rejected; -1 if unknown */
    int64_t reused_groups;    /* that had waited, as surplus of earlier rollouts, */
    int64_t surplus_groups;   /* and those that wait now */
} invar_sample_batch;

typedef struct invar_sample_source {
    invar_sample_source_options options;
    invar_source_position place;
    invar_rollout_request order;
    invar_status (*produce)(bool *ready, struct invar_sample_source *source); /* the kind of it */
    invar_group_selection choice; /* of what is sampled */
    invar_inflight flight;        /* what has begun */
    int64_t active;               /* samples that get tokens */
    /* those of them that are out of the flight until they are joined */
    invar_rl_samples active_ahead;
    invar_async_sampler *async_sampler; /* the thread that draws them; NULL: none does */
    invar_schedule_tick tick;           /* what the timetable says of this one */
    invar_rollout_file loaded;          /* the file of this rollout */
    invar_sample_batch batch;
} invar_sample_source;

/* Nothing can fail. `out` is zeroed or closed. */
void invar_sample_source_open(invar_sample_source *out, const invar_sample_source_options *options);
void invar_sample_source_close(invar_sample_source *source);

invar_status invar_sample_source_start(invar_sample_source *source,
                                       const invar_rollout_request *order) INVAR_MUST_USE;

/* Goes on; what it does before it returns is the kind's own affair. */
invar_status invar_sample_source_poll(bool *ready_out, invar_sample_source *source) INVAR_MUST_USE;

/* When ready; the caller owns the samples. */
void invar_sample_source_take(invar_sample_batch *out, invar_sample_source *source);

/*
 * Once after a rollout was taken: those that have begun before their turn have their tokens of this
 * tick, from the weights of the order.
 */
invar_status invar_sample_source_prefetch(invar_sample_source *source) INVAR_MUST_USE;

/*
 * The failure so far of a thread that draws ahead, while all is still as it was before the rollout.
 */
invar_status invar_sample_source_poll_error(const invar_sample_source *source) INVAR_MUST_USE;

/* A call of all ranks, before anybody looks at the flight, or at the weights that come next. */
invar_status invar_sample_source_join(invar_sample_source *source) INVAR_MUST_USE;

/* After a failure: nobody draws any more, and what was being drawn is forgotten. */
void invar_sample_source_stop(invar_sample_source *source);

/*
 * Before the first rollout, of one that will be loaded: its file is there and whole, and what its
 * first line says and the number of its samples are what the recipe needs.
 */
invar_status invar_sample_source_check_file(const invar_sample_source *source,
                                            int64_t rollout) INVAR_MUST_USE;

/* The batch, as it was taken, into the file of its rollout. */
invar_status invar_sample_source_save(const invar_sample_source *source,
                                      const invar_sample_batch *batch,
                                      const char *pattern) INVAR_MUST_USE;

/*
 * The prompt into a zeroed sample: texts and hash are borrowed from the data set, the tokens are a
 * copy with room for its answer.
 */
invar_status invar_sample_source_init_sample(invar_rl_sample *out,
                                             const invar_prompt *prompt) INVAR_MUST_USE;

/* ---- kinds ----------------------------------------------------------------------------------- */

/* Sampled, a round at a time; by a timetable; the answers of the data; the file of the rollout. */
invar_status invar_sample_source_sample(bool *ready_out,
                                        invar_sample_source *source) INVAR_MUST_USE;
invar_status invar_sample_source_recorded(bool *ready_out,
                                          invar_sample_source *source) INVAR_MUST_USE;
invar_status invar_sample_source_answer(bool *ready_out,
                                        invar_sample_source *source) INVAR_MUST_USE;
invar_status invar_sample_source_load(bool *ready_out, invar_sample_source *source) INVAR_MUST_USE;

/* For them: the next prompt of the data; the most rounds that are sampled; an answer's sample. */
const invar_prompt *invar_sample_source_next(invar_sample_source *source);

/*
 * The next `count` prompts of the data, for a rollout: in order, or as a plug-in chooses. A call of
 * all ranks; the caller frees *out, whose prompts are borrowed from the data.
 */
invar_status invar_sample_source_prompts(const invar_prompt ***out, invar_sample_source *source,
                                         int64_t rollout, int64_t count) INVAR_MUST_USE;

/*
 * Moves groups that wait into the batch, oldest first, at most as many as it wants: all of them, or
 * those that a plug-in takes. A call of all ranks.
 */
invar_status invar_sample_source_take_surplus(invar_sample_source *source) INVAR_MUST_USE;

/*
 * ---- recorded_schedule_source.c: by a timetable
 * --------------------------------------------------------------
 */

/* After rollouts have begun: what is known of this tick, and can be. */
invar_status invar_sample_source_plan_tick(invar_sample_source *source) INVAR_MUST_USE;

/* As invar_sample_source_prefetch and invar_sample_source_join. */
invar_status invar_sample_source_recorded_ahead(invar_sample_source *source) INVAR_MUST_USE;
invar_status invar_sample_source_recorded_join(invar_sample_source *source) INVAR_MUST_USE;

/* For it: how samples are generated; how this rank says that it gets on; those that were out of the
   flight are in it again, on all ranks; is each token of the batch from the order's weights? */
invar_generate_args invar_sample_source_generation(const invar_sample_source *source);
invar_progress_callback invar_sample_source_heartbeat(invar_sample_source *source);
invar_status invar_sample_source_merge_ahead(invar_sample_source *source) INVAR_MUST_USE;
bool invar_sample_source_is_on_policy(const invar_sample_source *source);

int64_t invar_sample_source_max_rounds(const invar_sample_source *source);
invar_status invar_sample_source_fill_answer(invar_rl_sample *out,
                                             const invar_prompt *prompt) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
