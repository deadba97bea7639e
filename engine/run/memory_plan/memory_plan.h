/*
 * memory_plan.h - what a run needs of a device's memory, known before its first token.
 *
 * Nothing is estimated: the very code of the run goes through its largest rollout, scoring and
 * optimizer step on a device that only counts (engine/run/memory_plan/phase_arena.h). What the
 * recipe leaves open, and may without changing a bit, is chosen so that everything fits: how many
 * rows of logits are computed at a time, how many tokens a micro-batch has, how many pages the KV
 * cache has and how many sequences are sampled at a time.
 *
 *     resident                      for the whole run: weights, gradients, moments, buckets
 *     max(sampling, scoring,        one block, in which these lie in turn: the KV cache and the
 *         learning)                 activations
 *     around                        between the two: norms, hashes
 *
 * Where rollouts are sampled ahead while others are learned from, the block is one piece for those
 * who sample, max(sampling, checking), and behind it one for the others, max(scoring, learning).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_MEMORY_PLAN_MEMORY_PLAN_H
#define INVAR_ENGINE_RUN_MEMORY_PLAN_MEMORY_PLAN_H

#include "engine/ranks/layout/rank_roles.h"
#include "engine/run/memory_plan/phase_arena.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/train/learner.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ends of messages about a model of another shape than the actor: which key names it. */
#define INVAR_MEMORY_PLAN_IS_REFERENCE "this is the reference (ref-load)"
#define INVAR_MEMORY_PLAN_IS_TEACHER "this is the teacher (opd-teacher-load)"
#define INVAR_MEMORY_PLAN_IS_CRITIC "this is the critic (critic-load)"

/* What is sampled; zeroed, nothing. */
typedef struct invar_rollout_shape {
    int64_t prompts, per_prompt; /* at a time */
    int64_t prompt;              /* tokens of the longest prompt */
    int64_t response;            /* most tokens of a response, */
    int64_t context;             /* and of both together */
    bool measured;               /* the prompts were read: else `prompt` is the recipe's bound */
    bool resumed; /* samples are left and gone on with, all their rows computed anew */
} invar_rollout_shape;

typedef enum invar_rollout_use {
    INVAR_MEMORY_PLAN_TRAINING,
    INVAR_MEMORY_PLAN_EVALUATION,
    INVAR_MEMORY_PLAN_USES
} invar_rollout_use;

/* What a run will do. Zero is what the recipe leaves open: see the choices below. */
typedef struct invar_memory_workload {
    const invar_device *dev; /* open, unless it is only planned for */
    const invar_model_spec *spec;
    invar_format format;
    bool two_formats; /* sampling has weights of its own, in */
    invar_format rollout_format;
    bool overlap;         /* so it has where it goes on while others learn, */
    bool verify_inflight; /* and it scores what it has drawn, */
    int64_t max_inflight; /* so many samples at most */
    bool reference, teacher, critic;
    bool reference_moves; /* then it is in checkpoints, and has masters */
    const invar_model_spec *reference_spec, *teacher_spec, *critic_spec; /* NULL: the actor's */
    const invar_model_spec *draft; /* of the model that guesses for the actor; NULL: none */
    invar_format draft_format;
    bool learns;
    bool samples_alone; /* nothing is trained on, and the actor has no masters */
    bool must_fit;      /* what does not is not looked at further */
    bool entropy;       /* the loss has a term of entropies */
    bool loss_on_rank0; /* the policy's loss comes from rank 0, as plug-ins' does */
    int64_t level;      /* of the points that are recorded */
    bool replay;        /* experts are those of the rollout */
    invar_adamw_options adamw;
    /* of the moments that visit the device; 0: they are there for good */
    size_t offload_chunk_bytes;
    const invar_layout *layout; /* of the ranks that divide samples and moments; NULL: one rank */
    const invar_rank_roles *sides; /* between which weights travel; NULL: whoever trains samples */
    size_t bucket;                 /* of these weights: update-weight-buffer-size */
    invar_batch_plan_options plan; /* of micro-batches */
    bool dynamic;                  /* plan.max_tokens is an upper bound */
    bool micro_batch_unset;        /* which no key of the recipe says */
    bool recompute;
    int64_t head_rows;
    int64_t step_samples;              /* of an optimizer step */
    int64_t samples;                   /* that are scored: of a rollout */
    int64_t prompt, response, context; /* most tokens that learning sees: each, and together, */
    int64_t branches;                  /* in so many sequences of a sample; 0: one */
    invar_rollout_shape rollouts[INVAR_MEMORY_PLAN_USES];
    invar_rollout_exec_options limits;
    invar_sampling_params sampling[INVAR_MEMORY_PLAN_USES];
} invar_memory_workload;

/* What is chosen where the recipe leaves it open; else the recipe's own. */
typedef struct invar_memory_plan_choice {
    int64_t head_rows;   /* log-probs-chunk-size */
    int64_t max_tokens;  /* of a micro-batch; 0: micro-batch-size counts */
    int64_t pages;       /* kv-pages; 0: nothing is sampled */
    int64_t concurrency; /* rollout-concurrency */
} invar_memory_plan_choice;

#define INVAR_MEMORY_PLAN_ITEMS 12

typedef struct invar_memory_plan_item {
    const char *name; /* "actor: weights" */
    size_t bytes;
} invar_memory_plan_item;

typedef struct invar_memory_plan {
    invar_memory_plan_item items[INVAR_MEMORY_PLAN_ITEMS]; /* (n_items) what is resident */
    int n_items;
    size_t resident; /* their sum */
    size_t host;     /* of the host's memory beside a far device: moments, bytes on their way */
    size_t weights;  /* of a rank that only samples: what it gets before a rollout */
    int peak_rank;   /* rank of the same stage that holds most, as far as this one knows */
    size_t cache;    /* of sampling: keys and values */
    size_t sampling, scoring, learning;
    size_t verify_bytes; /* of those who sample while others learn, here or elsewhere */
    size_t beside;       /* what these have of the block, its first bytes; 0: all have it in turn */
    size_t block;        /* the largest of all, or of both sides */
    size_t outside_block_bytes;
    /* Peak while a teacher is loaded, before all else, to hash its masters; 0 if there is none. */
    size_t load_peak_bytes;
    size_t need;      /* resident, block and around; or loading, where that is more */
    size_t available; /* what the device has */
    size_t usable;    /* of it: a little is left for what the driver needs */
    invar_memory_plan_choice choice;
    bool fits;
} invar_memory_plan;

/* `available` bytes, of which a little is left for what the driver needs. */
invar_status invar_memory_plan_make(invar_memory_plan *out, const invar_memory_workload *ask,
                                    size_t available) INVAR_MUST_USE;

#define INVAR_MEMORY_PLAN_ADVICE_SIZE 1024

/* The keys that would help, "set a = 1, or b = 2 (semantic)"; "": it fits, or none would. */
invar_status invar_memory_plan_advice(char out[INVAR_MEMORY_PLAN_ADVICE_SIZE],
                                      const invar_memory_plan *budget,
                                      const invar_memory_workload *ask) INVAR_MUST_USE;

/* INVAR_OK where it fits; else INVAR_E_NOMEM with the numbers and the keys that would help. */
invar_status invar_memory_plan_check_fits(const invar_memory_plan *budget,
                                          const invar_memory_workload *ask) INVAR_MUST_USE;

/* Tokens of the longest sequence that is learned, or scored, and of the longest sample, which may
   have several. */
int64_t invar_memory_plan_longest(const invar_memory_workload *ask);
int64_t invar_memory_plan_longest_sample(const invar_memory_workload *ask);

/* What the largest micro-batch has: all of it, and its longest unit. */
typedef struct invar_largest_micro_batch {
    int64_t rows, samples;
    int64_t unit_rows, unit_samples;
} invar_largest_micro_batch;

/* Of learning, or of scoring, in which each sample is by itself. */
invar_largest_micro_batch invar_memory_plan_batch_of(const invar_memory_workload *ask, bool learns);

/* Rows of the longest sequence that is sampled. */
int64_t invar_memory_plan_rows(const invar_rollout_shape *rollout);

/* ---- the block of a run ---------------------------------------------------------------------- */

/* One block of the device's memory and who has it in turn. Zeroed, there is none; release. */
typedef struct invar_phase_memory {
    const invar_device *dev; /* borrowed */
    void *memory;
    invar_phase_arena *stages[4];
} invar_phase_memory;

typedef enum invar_memory_phase {
    INVAR_MEMORY_PLAN_SAMPLING,
    INVAR_MEMORY_PLAN_CHECKING, /* of what was sampled ahead */
    INVAR_MEMORY_PLAN_SCORING,
    INVAR_MEMORY_PLAN_LEARNING,
} invar_memory_phase;

/*
 * Takes the memory of a plan; each phase has a device that is dry. The first two are `sampler`,
 * which has the same memory as `dev`, and may be it.
 */
invar_status invar_phase_memory_alloc(invar_phase_memory *out, const invar_device *dev,
                                      const invar_device *sampler,
                                      const invar_memory_plan *plan) INVAR_MUST_USE;
void invar_memory_plan_block_release(invar_phase_memory *block);

const invar_device *invar_memory_plan_block_dev(const invar_phase_memory *block,
                                                invar_memory_phase phase);

/* The parts of a run, on devices of the block. */
typedef struct invar_dry_run_objects {
    invar_rollout *rollout;                  /* NULL: nothing is sampled */
    invar_trainer *trainer;                  /* NULL: nothing is scored or learned */
    invar_trainer *checker;                  /* of what was sampled ahead; NULL: nobody does */
    const invar_forward_hooks *probe;        /* who looks at learning; NULL: nobody */
    const invar_model *actor, *critic;       /* critic NULL: none */
    const invar_model *sampler;              /* of the checker */
    const invar_model *reference, *teacher;  /* NULL: none, or of the actor's shape */
    invar_grads *actor_grads, *critic_grads; /* NULL: nothing is learned */
} invar_dry_run_objects;

/* The parts take their memory, for the largest shapes; then the block's devices work. */
invar_status invar_phase_memory_activate(invar_phase_memory *block,
                                         const invar_dry_run_objects *parts,
                                         const invar_memory_workload *ask) INVAR_MUST_USE;

/* ---- inside ---------------------------------------------------------------------------------- */

/*
 * Only engine/run/memory_plan: who looks and sees nothing, a loss; the rehearsals, on dry devices.
 */
extern const invar_forward_hooks invar_dry_run_null_probe;
invar_status invar_memory_plan_no_loss(void *payload, int64_t first, int64_t count,
                                       const float *now, const float *entropy, float *dnow_out,
                                       float *dentropy_out) INVAR_MUST_USE;
invar_status invar_dry_run_rollout(invar_rollout *rollout,
                                   const invar_memory_workload *ask) INVAR_MUST_USE;
invar_status invar_memory_plan_rehearse_score(const invar_dry_run_objects *parts,
                                              const invar_memory_workload *ask) INVAR_MUST_USE;
invar_status invar_memory_plan_rehearse_check(const invar_dry_run_objects *parts,
                                              const invar_memory_workload *ask) INVAR_MUST_USE;
invar_status invar_memory_plan_rehearse_learn(const invar_dry_run_objects *parts,
                                              const invar_memory_workload *ask) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
