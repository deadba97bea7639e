/*
 * loop.h - a training run from the inside: its parts, its place in the data, the current rollout.
 *
 * Only engine/run includes this. The way of one rollout: collect (samples with rewards), score
 * (log-probabilities by other forwards), advantages, then per optimizer step learn and record.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_LOOP_H
#define INVAR_ENGINE_RUN_LOOP_H

#include "base/file.h"
#include "engine/ext/plugin.h"
#include "engine/ext/stored.h"
#include "engine/io/checkpoint.h"
#include "engine/io/hf_files.h"
#include "engine/io/rollout_file.h"
#include "engine/model/audit.h"
#include "engine/probe/view.h"
#include "engine/record/trace.h"
#include "engine/rl/flat.h"
#include "engine/run/facts.h"
#include "engine/run/folders.h"
#include "engine/run/session.h"
#include "engine/run/train.h"
#include "engine/source/judge.h"
#include "engine/train/optimizer.h"
#include "engine/train/schedule.h"
#include "engine/train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the recipe says about learning, read once. */
typedef struct invar_loop_settings {
    invar_rl_options rl;
    invar_adamw_options adamw;
    invar_schedule schedule;
    invar_schedule critic_schedule;
    int64_t rollouts;          /* of the whole run */
    int64_t prompts;           /* of a rollout */
    int64_t per_prompt;        /* samples of a prompt */
    int64_t global_batch;      /* samples of an optimizer step */
    int64_t steps_per_rollout; /* optimizer steps */
    bool sft, rollout_only, replay_routing, check_logprobs, rollout_logprobs, stop_on_mismatch;
} invar_loop_settings;

/* Where the run is: what a checkpoint keeps. */
typedef struct invar_loop_place {
    int64_t rollout; /* the next one */
    int64_t step;    /* the next one */
    int64_t weights; /* version */
    int64_t samples; /* index of the next sample */
    int64_t groups;
    invar_cursor cursor;
} invar_loop_place;

enum { INVAR_LOOP_REWARD, INVAR_LOOP_FILTER, INVAR_LOOP_LOSS, INVAR_LOOP_HOOKS };
#define INVAR_LOOP_PLUGINS (INVAR_LOOP_HOOKS + 3) /* one for each hook */

typedef struct invar_loop {
    const invar_train_options *options;
    const invar_recipe *recipe;
    invar_session session;
    invar_loop_settings set;
    invar_loop_place place;
    invar_folders at;             /* where its files are */
    invar_folder home;            /* at.run, held */
    invar_checkpoint_claim claim; /* of at.save */
    invar_facts facts;            /* given along by whoever started it */
    invar_digest identity;
    bool evaluates;         /* while it trains */
    invar_digest eval_data; /* of all evaluation sets */
    bool own_rollouts;      /* that are loaded: they are what this run would sample */
    invar_digest foreign;   /* of all rollouts that are loaded and are not */
    invar_digest *files;    /* (n_files) of each of them; a replay does not know them */
    int64_t n_files;
    invar_ledger *ledger;
    char uuid[INVAR_LEDGER_UUID_SIZE];
    int64_t run_number;     /* in the ledger */
    int64_t recorded;       /* the last step that the ledger had when it was opened; -1: none */
    invar_rollout *rollout; /* NULL: nothing is sampled */
    invar_trainer *trainer;
    invar_grads *grads; /* zeroed between steps; NULL, like the next: nothing is learned */
    invar_optimizer *optimizer;
    invar_grads *critic_grads;
    invar_optimizer *critic_optimizer;
    invar_hf_files hf_files;         /* of hf-checkpoint, which exports and checkpoints hand on */
    invar_checkpoint *from;          /* what it goes on from, until it has; NULL: none */
    invar_checkpoint_writer *writer; /* NULL: no checkpoint was written behind the run's back */
    invar_probe *probe;
    invar_probe_view view; /* how activations are named */
    invar_trace *trace;
    invar_audit *audit;                           /* NULL: none */
    invar_plugin *plugins[INVAR_LOOP_PLUGINS];    /* NULL: not attached */
    invar_plugin_stored stored[INVAR_LOOP_HOOKS]; /* their replies to the step before */
    invar_loss_custom custom;
    invar_judge judge;
    /* the current rollout */
    invar_rl_samples batch;
    invar_rollout_data loaded; /* what samples from a file borrow their texts from */
    bool own_weights;          /* the weights of now sampled them */
    invar_flat flat;
    invar_digest weights_hash; /* of the weights that sample */
    bool weights_hashed;       /* it is that of the weights of now */
    int64_t dropped_groups;
    bool told_equal; /* rewards */
    invar_train_summary *summary;
} invar_loop;

/* ---- setup.c --------------------------------------------------------------------------------- */

invar_status invar_loop_open(invar_loop *loop, const invar_recipe *recipe,
                             const invar_train_options *options,
                             invar_train_summary *summary) INVAR_MUST_USE;
void invar_loop_close(invar_loop *loop);

/* A line for people, where somebody listens. */
void invar_loop_say(const invar_loop *loop, const char *line);

/* ---- identity.c: ledger and identity --------------------------------------------------------- */

/* Opens the run's ledger as its writer. Where it has a run, that must be this one; loop->uuid. */
invar_status invar_loop_open_ledger(invar_loop *loop) INVAR_MUST_USE;

/*
 * Begins the run in its ledger, or, where that has it, a new segment after `step` (-1: from the
 * start), whose chain must be `chain`.
 */
invar_status invar_loop_begin(invar_loop *loop, int64_t step,
                              const invar_digest *chain) INVAR_MUST_USE;
invar_status invar_loop_identify(invar_loop *loop) INVAR_MUST_USE;

/* INVAR_E_NOTFOUND: a checkpoint of `step` is to be gone on from, and its run is not there. */
invar_status invar_loop_without_run(const invar_loop *loop, int64_t step) INVAR_MUST_USE;

/*
 * Before the run starts again without a checkpoint: INVAR_E_STATE when its checkpoints went into a
 * folder that this time nobody named.
 */
invar_status invar_loop_check_save(const invar_loop *loop) INVAR_MUST_USE;

/* ---- start.c: where it writes ---------------------------------------------------------------- */

/*
 * Claims the folder of checkpoints, makes the run's folder and opens its ledger. INVAR_E_STATE: one
 * of them is another run's. Where a fresh start is asked for, what is there gets another name.
 */
invar_status invar_loop_settle(invar_loop *loop) INVAR_MUST_USE;

/* After the run has begun: its checkpoints' folder says so. */
invar_status invar_loop_sign(invar_loop *loop) INVAR_MUST_USE;

/* Before anything is written by its path: loop->at says where the folders are by now. */
invar_status invar_loop_follow(invar_loop *loop) INVAR_MUST_USE;

/* ---- plugins.c ------------------------------------------------------------------------------- */

/* Tells, and notes in the ledger, which plug-ins are others than when `step` was executed. */
invar_status invar_loop_compare_plugins(invar_loop *loop, int64_t step) INVAR_MUST_USE;

/*
 * A new step for a plug-in that is asked; without one nothing happens. It is answered from the
 * ledger where that has the step already.
 */
invar_status invar_loop_begin_plugin(invar_loop *loop, int place) INVAR_MUST_USE;

/* Before an evaluation, which the ledger keeps no replies of. */
invar_status invar_loop_free_plugin(invar_loop *loop, int place) INVAR_MUST_USE;

/* ---- collect.c: samples with rewards --------------------------------------------------------- */

invar_status invar_loop_collect(invar_loop *loop) INVAR_MUST_USE;

/* Moves the cursor. */
const invar_prompt *invar_loop_next_prompt(invar_loop *loop);

/* Prompts of a round of sampling. */
int64_t invar_loop_round_size(const invar_loop *loop);

/* Every prompt twice without a full batch: the filter will never be content. */
int64_t invar_loop_most_rounds(const invar_loop *loop, int64_t round);

/* SFT: the prompt's answer, with its mask, into a sample that has the prompt. */
invar_status invar_loop_answer(invar_rl_sample *sample, const invar_prompt *prompt) INVAR_MUST_USE;

/* ---- saved.c: rollouts in files -------------------------------------------------------------- */

/*
 * Decides whose rollouts the files are that the recipe loads: this run's, whose identity without
 * them is `own`, or foreign ones, whose hash belongs to the identity. Keys that could do nothing
 * with own rollouts are refused.
 */
invar_status invar_loop_find_rollouts(invar_loop *loop, const invar_digest *own) INVAR_MUST_USE;

/* The samples of the coming rollout from its file; own ones are checked against the recipe. */
invar_status invar_loop_load_rollout(invar_loop *loop, const char *pattern) INVAR_MUST_USE;

invar_status invar_loop_save_rollout(invar_loop *loop, const char *pattern) INVAR_MUST_USE;

/* ---- audit.c --------------------------------------------------------------------------------- */

/* The recipe's audit, of the rollout and the trainer. */
invar_status invar_loop_attach_audit(invar_loop *loop) INVAR_MUST_USE;

/* ---- learn.c --------------------------------------------------------------------------------- */

/* What a step has to tell. */
typedef struct invar_loop_step {
    int64_t first, count; /* samples of the rollout */
    bool on_policy;       /* first step of its rollout: training log-probs equal the rollout's */
    invar_rl_batch batch; /* what the losses look at */
    invar_loss *loss;     /* NULL: nothing was learned */
    invar_loss *value_loss;
    bool actor_hashed, critic_hashed; /* AdamW has made the digests of its masters */
    float norm, clip, lr;
    float critic_norm, critic_lr;
    bool compared;      /* there is a gap: two forwards gave the log-probabilities */
    invar_logp_gap gap; /* rollout against training, or against scoring */
    invar_trainer_result result;
} invar_loop_step;

/* An event and, unless the recipe says otherwise, the end of the run. */
invar_status invar_loop_mismatch(invar_loop *loop, const char *kind,
                                 const char *text) INVAR_MUST_USE;

/* Scoring, reference, teacher, critic, advantages of the whole rollout. */
invar_status invar_loop_prepare(invar_loop *loop) INVAR_MUST_USE;

/* Forward, loss, backward, norm, AdamW; released by the caller. */
invar_status invar_loop_learn(invar_loop_step *out, invar_loop *loop,
                              int64_t number) INVAR_MUST_USE;
void invar_loop_step_release(invar_loop_step *step);

/* ---- points.c -------------------------------------------------------------------------------- */

/*
 * The points of the chain that a finer one is computed from get their place before it: of tokens
 * before the forward, then (`forward_done`) all of tokens before the backward.
 */
invar_status invar_loop_define_points(invar_loop *loop, bool forward_done) INVAR_MUST_USE;

/* The values of the step's points, all of them. The gradients are zeroed afterwards. */
invar_status invar_loop_points(invar_probe_result *out, invar_loop *loop,
                               const invar_loop_step *step) INVAR_MUST_USE;

/* ---- record.c -------------------------------------------------------------------------------- */

/* Digests, metrics and samples of the step into the ledger: one transaction. */
invar_status invar_loop_record(invar_loop *loop, const invar_loop_step *step) INVAR_MUST_USE;

/* An event at once. */
invar_status invar_loop_event(invar_loop *loop, const char *level, const char *kind,
                              const char *message) INVAR_MUST_USE;

/* ---- resume.c -------------------------------------------------------------------------------- */

/* Before anything is made: a `load` that is not the run's own folder has a checkpoint of it. */
invar_status invar_loop_find_checkpoint(invar_loop *loop) INVAR_MUST_USE;

/*
 * Loads the checkpoint that was found, or the newest of the run's own, and begins behind it. Where
 * all that is asked for is done already nothing is written, and loop->summary says so.
 */
invar_status invar_loop_resume(invar_loop *loop) INVAR_MUST_USE;

/* Before the run begins: fails where save-hf names a folder of somebody else. */
invar_status invar_loop_check_exports(const invar_loop *loop) INVAR_MUST_USE;

/*
 * Writes the checkpoint and the Hugging Face export, each where the recipe wants it. On a device
 * with memory of its own, unless this is the last one, the checkpoint is only begun.
 */
invar_status invar_loop_save(invar_loop *loop, bool last) INVAR_MUST_USE;

/* Before anything that a checkpoint keeps is changed: one that was begun has its copy then. */
void invar_loop_before_change(invar_loop *loop);

/* The checkpoint that was begun exists now; where there is none nothing happens. */
invar_status invar_loop_finish_save(invar_loop *loop) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
