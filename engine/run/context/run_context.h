/*
 * run_context.h - device, tokenizer, models and data that a recipe asks for.
 *
 * Everything that generates, scores or trains begins here. Initial weights come, in this order,
 * from ref-load if that is the actor's model, from hf-checkpoint, or from Philox. A checkpoint that
 * a run resumes from is loaded over them later (engine/run/run_dir/resume.c), so the identity of
 * the run is known first.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_CONTEXT_RUN_CONTEXT_H
#define INVAR_ENGINE_RUN_CONTEXT_RUN_CONTEXT_H

#include "engine/config/config.h"
#include "engine/config/eval_config.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/files/data/dataset.h"
#include "engine/model/forward.h"
#include "engine/record/profile.h"
#include "engine/run/models/model_set.h"
#include "engine/sample/rollout/file/rollout_file.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/text/tokenizer/tokenizer.h"

/* Origin of loaded weights. */
typedef struct invar_weights_origin {
    char folder[INVAR_PATH_SIZE]; /* Hugging Face folder, or folder of one checkpoint; empty if
                                     nothing was loaded */
    int64_t rollout;              /* next rollout, if the folder is a checkpoint; else 0 */
    bool adapters;                /* adapters only, without their base */
    char format[INVAR_CHECKPOINT_WORD_SIZE]; /* number format of the run that trained the
                                                adapters */
    invar_digest base;                       /* digest of the base with which the adapters were
                                                trained */
} invar_weights_origin;

/* Largest lengths in the data, in tokens. If a field is 0, the recipe's bound is used. */
typedef struct invar_data_lengths {
    int64_t prompt;                 /* longest prompt of training */
    int64_t answer;                 /* longest answer of training and evaluation */
    int64_t total;                  /* longest prompt with its answer, of both, for SFT */
    bool evaluates;                 /* the run evaluates during training */
    int64_t eval;                   /* longest prompt of evaluation */
    int64_t eval_prompts;           /* number of prompts in the largest evaluation set */
    int64_t per_prompt;             /* largest number of samples per prompt of evaluation */
    int64_t response;               /* largest response length of evaluation */
    invar_sampling_params sampling; /* evaluation parameters that need most memory */
} invar_data_lengths;

/* Spec and weights of a model besides the actor; zeroed weights without such a model. */
typedef struct invar_other_model {
    invar_model_spec spec;
    bool own_spec; /* the folder of the model has another config.json than the actor */
    /* digest of the initial weights; of a reference, if it has its own spec, in ops format */
    invar_digest weights;
} invar_other_model;

/* The frozen base of the actor's adapters. */
typedef struct invar_adapter_base {
    invar_digest weights; /* in the format of ops */
    invar_digest sampled; /* in rollout_format, if that differs from `format` */
    bool named;           /* ref-load has the base, and is not a folder of adapters only */
} invar_adapter_base;

/* Device context of the sampling thread, on the device of training; zeroed without a thread. */
typedef struct invar_sampler_device {
    invar_device dev;
    invar_pool *pool;       /* threads, as many as training has */
    invar_profile *profile; /* op profile, or NULL */
} invar_sampler_device;

/* Tokens of model, tokenizer and recipe, and texts, that end a sample. */
typedef struct invar_stop_list {
    int32_t *ids; /* (n_ids) */
    int64_t n_ids;
    char **texts; /* (n_texts) */
    int64_t n_texts;
} invar_stop_list;

typedef struct invar_run_context {
    const invar_config *config; /* borrowed, checked */
    invar_pool *pool;
    invar_device dev;
    bool imagined; /* the device is a simulated GPU, since this host has no GPU; its ops have
                      the scratch of the CPU */
    invar_profile *profile; /* op profile of `dev`, or NULL */
    invar_sampler_device sampler;
    invar_tokenizer *tokenizer;
    invar_model_spec spec;
    invar_format format, rollout_format;
    const invar_layout *layout; /* layout of the ranks that the models are divided over; NULL
                                   for one rank */
    invar_model_set models;
    invar_other_model reference, teacher, critic;
    invar_model_spec draft_spec;
    invar_eval_config evals;  /* sets of eval-config, once invar_evaluate_read_sets has read them */
    invar_dataset *data;      /* NULL without prompt-data */
    invar_digest weights;     /* digest of the actor's initial weights */
    invar_adapter_base base;  /* zeroed without adapters */
    invar_digest filled;      /* checksum of what was loaded into this copy of the models, equal in
                                all copies; zero without data-parallel ranks */
    const char *weights_from; /* "ref-load", "hf-checkpoint" or "seed" */
    invar_weights_origin loaded; /* set by invar_run_context_load_newest */
    invar_stop_list stops;
} invar_run_context;

/* Flags that select what a run context opens. */
enum {
    INVAR_RUN_CONTEXT_DATA = 1,  /* prompts of training */
    INVAR_RUN_CONTEXT_LEARN = 2, /* reference, teacher and critic, if the recipe needs them */
    INVAR_RUN_CONTEXT_NO_TOKENIZER = 4, /* tokenizer.json may be missing */
    INVAR_RUN_CONTEXT_NO_WEIGHTS = 8,   /* models are made later, by
                                           invar_run_context_make_models */
    INVAR_RUN_CONTEXT_ANY_DEVICE = 16,  /* nothing is computed, so the GPU may be missing */
    INVAR_RUN_CONTEXT_SAMPLE = 32       /* only memory for the sampling weights, which training
                                           ranks send */
};

/* Sets what the recipe decides about the actor: the arithmetic of its sums, and its adapters. */
invar_status invar_run_context_complete_spec(invar_model_spec *spec,
                                             const invar_config *config) INVAR_MUST_USE;

/* Fails if a key is about experts and the actor has no experts. */
invar_status invar_run_context_check_actor(const invar_config *config,
                                           const invar_model_spec *spec) INVAR_MUST_USE;

/*
 * Opens a run context for a single rank. `session` may be uninitialized; it is empty after a
 * failure. Close with invar_run_context_close. `config` and its recipe must outlive it.
 */
invar_status invar_run_context_open(invar_run_context *session, const invar_config *config,
                                    unsigned wants) INVAR_MUST_USE;

/* Number of ranks in the process and on the host, and the index of this rank there. */
typedef struct invar_local_ranks {
    int process_ranks;          /* number of ranks that share the threads of this process; at
                                   least 1 */
    int host_ranks;             /* number of ranks that share the cores of this host; at least 1 */
    int local_rank;             /* index of this rank on its host; selects the GPU */
    const invar_layout *layout; /* borrowed; NULL for one rank */
} invar_local_ranks;

/* Like invar_run_context_open, for one of several ranks. */
invar_status invar_run_context_open_rank(invar_run_context *session, const invar_config *config,
                                         unsigned wants,
                                         const invar_local_ranks *local_ranks) INVAR_MUST_USE;
void invar_run_context_close(invar_run_context *session);

/*
 * Returns the models that a rank needs for what a context opens. A run reduces them to those of the
 * rank's role.
 */
invar_model_specs invar_run_context_model_specs(const invar_run_context *session, unsigned wants);

/*
 * Makes the models of a context that was opened with INVAR_RUN_CONTEXT_NO_WEIGHTS, and loads their
 * weights.
 */
invar_status invar_run_context_make_models(invar_run_context *session,
                                           const invar_model_specs *specs) INVAR_MUST_USE;

/* True if sampling and training use weights of different formats. */
static inline bool invar_run_context_two_formats(const invar_run_context *session)
{
    return session->rollout_format != session->format;
}

/* Returns the device on which samples are drawn: the sampling thread's device if there is one. */
const invar_device *invar_run_context_sampler_dev(const invar_run_context *session);

/*
 * Copies the actor's weights to the sampling copy, if there is one. Call after they have changed,
 * before anything is sampled. Collective: all ranks that have the actor must call it.
 */
invar_status invar_run_context_refresh_sampler(invar_run_context *session) INVAR_MUST_USE;

/* Returns the sampling parameters of the recipe. Arrays are borrowed from the context. */
invar_sampling_params invar_run_context_sampling(const invar_run_context *session);

/* *out = everything besides the weights that samples depend on. Needs the models. */
invar_status invar_run_context_policy(invar_rollout_policy *out,
                                      const invar_run_context *session) INVAR_MUST_USE;

/*
 * Fails with INVAR_E_INVALID if the model cannot sample this: lengths beyond its positions, tokens
 * beyond its vocabulary. `key` is that of the response length: rollout-max-response-len or
 * eval-max-response-len.
 */
invar_status invar_run_context_check_sampling(const invar_run_context *session, invar_key key,
                                              const invar_sampling_params *sampling) INVAR_MUST_USE;

/*
 * Calls invar_run_context_check_sampling for the recipe's rollouts; does nothing for a supervised
 * run.
 */
invar_status invar_run_context_check_rollouts(const invar_run_context *session) INVAR_MUST_USE;

/* True if a draft model proposes tokens. */
bool invar_run_context_drafts(const invar_run_context *session);

/* Returns the free settings of a rollout. */
invar_rollout_exec_options invar_run_context_limits(const invar_run_context *session);

/* Opens the data set `path`, which is prompt-data or one of eval-prompt-data. */
invar_status invar_run_context_data(invar_dataset **out, const invar_run_context *session,
                                    const char *path, bool eval) INVAR_MUST_USE;

/* Includes a data set of training or, if `eval`, of evaluation in *out. `data` may be NULL. */
void invar_data_lengths_add(invar_data_lengths *out, const invar_dataset *data, bool eval);

/* Makes a data set with one prompt: the text itself or, with a chat template, a user message. */
invar_status invar_run_context_prompt(invar_dataset **out, const invar_run_context *session,
                                      const char *text) INVAR_MUST_USE;

/*
 * Loads this rank's shard of a parameter from a set of a checkpoint into host memory. Reads nothing
 * if the rank holds no part of it.
 */
invar_status invar_run_context_load_own(float *out, const invar_param *param,
                                        invar_checkpoint *checkpoint,
                                        const char *set) INVAR_MUST_USE;

/* name of the set of adapters in a checkpoint; their base is in no set */
#define INVAR_RUN_CONTEXT_ADAPTERS "adapter"

/* Describes the training of the actor's adapters, for a checkpoint. */
void invar_run_context_describe_adapters(invar_checkpoint_adapters *out,
                                         const invar_run_context *session);

/*
 * Returns INVAR_E_INVALID if the checkpoint has no weights, or adapters of another rank, alpha,
 * base or set of layers than the actor. Does not check full weights.
 */
invar_status invar_run_context_check_adapters(const invar_run_context *session,
                                              const invar_checkpoint *checkpoint) INVAR_MUST_USE;

/* Loads a set of a checkpoint into the parameters of the model. */
invar_status invar_run_context_load_set(invar_model *model, invar_checkpoint *checkpoint,
                                        const char *set) INVAR_MUST_USE;

/*
 * Loads weights of a Hugging Face folder or of a checkpoint folder into a model. `step` selects the
 * checkpoint; INVAR_CHECKPOINT_LATEST is the newest.
 */
invar_status invar_run_context_load(invar_model *model, const char *path, int64_t step,
                                    const invar_device *dev) INVAR_MUST_USE;

/*
 * Loads the weights of the recipe's `load` over the initial ones, and updates the sampling copy,
 * `weights` and `loaded`; does nothing without the key.
 */
invar_status invar_run_context_load_newest(invar_run_context *session) INVAR_MUST_USE;

#endif
