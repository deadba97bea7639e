/*
 * run_context.h - what a recipe asks for, brought to life: device, tokenizer, models, data.
 *
 * Everything that generates, scores or trains begins here. Weights come, in this order, from
 * ref-load, if that is the actor's model, from hf-checkpoint, or, where neither is given, from
 * Philox; a checkpoint that a run resumes from is loaded over them later
 * (engine/run/run_dir/resume.c), so the identity of the run is known first.
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
#include "engine/sample/rollout/file/rollout_file.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/text/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where weights came from. */
typedef struct invar_weights_origin {
    char folder[INVAR_PATH_SIZE]; /* Hugging Face's, or that of one checkpoint; "": none */
    int64_t rollout;              /* the coming one, which a checkpoint knows; else 0 */
    bool adapters;                /* these alone, without their base */
    char format[INVAR_CHECKPOINT_WORD_SIZE]; /* then the number format, */
    invar_digest base;                       /* and the base that they were trained with */
} invar_weights_origin;

typedef struct invar_run_context {
    const invar_recipe *recipe; /* borrowed, checked */
    invar_pool *pool;
    invar_device dev;
    bool imagined; /* the device is a GPU that is not there; its ops have the CPU's scratch */
    invar_device sampler_dev; /* once more, of a thread that samples while others learn, */
    invar_pool *beside_pool;  /* which has as many threads; no backend: nobody does */
    invar_profile *profile, *beside_profile; /* who measures them; NULL: nobody */
    invar_tokenizer *tokenizer;
    invar_model_spec spec;
    invar_format format, rollout_format;
    const invar_layout *layout; /* of the ranks that the models are on; NULL: one rank */
    invar_model *actor;
    invar_model *sampler_model; /* its weights in another format, or beside it; NULL: it samples */
    invar_model *reference;     /* NULL: not needed */
    invar_model *teacher;
    invar_model *critic;
    invar_model_spec ref_spec, teacher_spec, critic_spec;
    bool ref_has_own_spec, teacher_apart,
        critic_apart;   /* it is a model of its own, not of that shape */
    invar_model *draft; /* whole, where this rank samples; its spec is known before */
    invar_model_spec draft_spec;
    invar_eval_config
        evals;            /* sets of eval-config, once they were read: invar_evaluate_read_sets */
    invar_dataset *data;  /* NULL: no prompt-data */
    invar_digest weights; /* of the actor at the start, */
    invar_digest ref_weights; /* of a reference apart, in the form that ops read; */
    invar_digest teacher_weights, critic_weights; /* and of these, where there are any */
    invar_digest base_weights;                    /* of the actor's frozen base, likewise */
    invar_digest sampled_base; /* the same in rollout_format, where that is another */
    invar_digest filled; /* of what this copy of the models was filled with, where there are more */
    const char *weights_from;    /* "ref-load", "hf-checkpoint" or "seed" */
    bool base_named;             /* with adapters: ref-load has their base, and is no folder of
                                    adapters alone */
    invar_weights_origin loaded; /* by load_newest */
    int32_t *stop_ids;           /* the model's ends, the tokenizer's, the recipe's */
    int64_t n_stop_ids;
    char **stop;
    int64_t n_stop;
} invar_run_context;

/* What of it is wanted. */
enum {
    INVAR_RUN_CONTEXT_DATA = 1,  /* the prompts of training */
    INVAR_RUN_CONTEXT_LEARN = 2, /* reference, teacher and critic, as the recipe needs them */
    INVAR_RUN_CONTEXT_NO_TOKENIZER = 4, /* a folder without tokenizer.json will do */
    INVAR_RUN_CONTEXT_NO_WEIGHTS = 8,   /* models come later: invar_run_context_make_models */
    INVAR_RUN_CONTEXT_ANY_DEVICE = 16,  /* nothing is computed: a GPU that is not there will do */
    INVAR_RUN_CONTEXT_SAMPLE = 32       /* room for the weights that sample, which others have */
};

/* Sets what the recipe decides about the actor: sizes of its sums, and its adapters. */
invar_status invar_run_context_complete_spec(invar_model_spec *spec,
                                             const invar_recipe *recipe) INVAR_MUST_USE;

/* Refuses keys about experts if the actor, as config.json or the recipe describes it, has none. */
invar_status invar_run_context_check_actor(const invar_recipe *recipe,
                                           const invar_model_spec *spec) INVAR_MUST_USE;

/* `session` is zeroed or uninitialised; after a failure nothing is left in it. */
invar_status invar_run_context_open(invar_run_context *session, const invar_recipe *recipe,
                                    unsigned wants) INVAR_MUST_USE;

/* Ranks beside this one: */
typedef struct invar_local_ranks {
    int process_ranks;          /* so many, itself included, share the threads of its process, */
    int host_ranks;             /* and the cores of its host; */
    int local_rank;             /* its number among these: that of its GPU */
    const invar_layout *layout; /* borrowed */
} invar_local_ranks;

/* The same for one of several ranks. */
invar_status invar_run_context_open_beside(invar_run_context *session, const invar_recipe *recipe,
                                           unsigned wants,
                                           const invar_local_ranks *crowd) INVAR_MUST_USE;
void invar_run_context_close(invar_run_context *session);

/* The models, of a session that was opened without; `wants` as it was then. */
invar_status invar_run_context_make_models(invar_run_context *session,
                                           unsigned wants) INVAR_MUST_USE;

/* Whether what samples and what learns have weights of two formats. */
static inline bool invar_run_context_two_formats(const invar_run_context *session)
{
    return session->rollout_format != session->format;
}

/* Whose weights sample: those of the actor, or a copy of them that may have another format. */
const invar_model *invar_run_context_sampler(const invar_run_context *session);

/* Where it samples: on the device, or beside it. */
const invar_device *invar_run_context_sampler_dev(const invar_run_context *session);

/*
 * After the actor's weights have changed, before anything is sampled: the sampler has them, too. A
 * call of all ranks that have the actor.
 */
invar_status invar_run_context_refresh_sampler(invar_run_context *session) INVAR_MUST_USE;

/* How the recipe samples; arrays are borrowed from the session. */
invar_sampling_params invar_run_context_sampling(const invar_run_context *session);

/* What samples with the weights of now depend on beside them; needs the models. */
invar_status invar_run_context_policy(invar_rollout_policy *out,
                                      const invar_run_context *session) INVAR_MUST_USE;

/*
 * Refuses sampling that the model cannot do: lengths beyond its positions, tokens beyond its
 * vocabulary. `key` names the longest response: rollout-max-response-len or eval-max-response-len.
 */
invar_status invar_run_context_check_sampling(const invar_run_context *session, int key,
                                              const invar_sampling_params *sampling) INVAR_MUST_USE;

/* invar_run_context_check_sampling of the recipe's rollouts, which a supervised run does not have.
 * */
invar_status invar_run_context_check_rollouts(const invar_run_context *session) INVAR_MUST_USE;

/* Whether a smaller model guesses for the actor, and its format. */
bool invar_run_context_drafts(const invar_run_context *session);
invar_format invar_run_context_draft_format(const invar_run_context *session);

/* The free settings of a rollout. */
invar_rollout_exec_options invar_run_context_limits(const invar_run_context *session);

/* The data set `path` (a recipe's prompt-data or one of eval-prompt-data). */
invar_status invar_run_context_data(invar_dataset **out, const invar_run_context *session,
                                    const char *path, bool eval) INVAR_MUST_USE;

/* A text as the only prompt of a set: as it stands or, with a chat template, the user's message. */
invar_status invar_run_context_prompt(invar_dataset **out, const invar_run_context *session,
                                      const char *text) INVAR_MUST_USE;

/*
 * What this rank has of a parameter, out of a set of a checkpoint, into the host's memory; of one
 * that is not here nothing is read.
 */
invar_status invar_run_context_load_own(float *out, const invar_param *param,
                                        invar_checkpoint *checkpoint,
                                        const char *set) INVAR_MUST_USE;

/* The set of a checkpoint that adapters are; their base is in none. */
#define INVAR_RUN_CONTEXT_ADAPTERS "adapter"

/* How the actor's adapters are trained, for a checkpoint. */
void invar_run_context_describe_adapters(invar_checkpoint_adapters *out,
                                         const invar_run_context *session);

/*
 * INVAR_E_INVALID: the checkpoint has adapters of another rank, alpha, base, or set of layers than
 * the actor, or no weights. Of one with weights and without adapters nothing is said.
 */
invar_status invar_run_context_check_adapters(const invar_run_context *session,
                                              const invar_checkpoint *checkpoint) INVAR_MUST_USE;

/* A set of a checkpoint into the model's parameters. */
invar_status invar_run_context_load_set(invar_model *model, invar_checkpoint *checkpoint,
                                        const char *set) INVAR_MUST_USE;

/*
 * Weights of a Hugging Face folder, or of a folder with checkpoints, into a model: those of `step`,
 * INVAR_CHECKPOINT_LATEST being the newest.
 */
invar_status invar_run_context_load(invar_model *model, const char *path, int64_t step,
                                    const invar_device *dev) INVAR_MUST_USE;

/* The weights that the recipe's `load` names, over the initial ones; without it nothing happens. */
invar_status invar_run_context_load_newest(invar_run_context *session) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
