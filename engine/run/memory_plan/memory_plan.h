/*
 * memory_plan.h - plans the device memory of a run before its first token.
 *
 * Nothing is estimated: the code of the run itself goes through its largest rollout, scoring and
 * optimizer step on a device that only counts (phase_arena.h). Settings that the recipe leaves
 * open, and that change no bit, are chosen so that everything fits: rows of logits per pass, tokens
 * of a micro-batch, pages of the KV cache, and concurrent sequences.
 *
 *     resident                      for the complete run: weights, gradients, moments, buckets
 *     max(sampling, verification,   one block that these phases use in turn: KV cache and
 *         scoring, learning)        activations
 *     outside_block_bytes           used between the phases: norms, hashes
 *
 * If rollouts are sampled during training (overlap), the block has two parts: the first,
 * max(sampling, verification), for the sampler, and after it max(scoring, learning).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_MEMORY_PLAN_MEMORY_PLAN_H
#define INVAR_ENGINE_RUN_MEMORY_PLAN_MEMORY_PLAN_H

#include "engine/ranks/layout/rank_roles.h"
#include "engine/run/memory_plan/phase_arena.h"
#include "engine/run/models/model_set.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/train/learner.h"

/* Largest rollout of one kind; zeroed if nothing is sampled. */
typedef struct invar_rollout_shape {
    int64_t prompts, per_prompt; /* prompts in progress at a time, and samples of each */
    int64_t prompt;              /* tokens of the longest prompt */
    int64_t response;            /* largest number of response tokens */
    int64_t context;             /* largest number of tokens of prompt and response */
    bool measured;               /* the prompts were read; false if `prompt` is the recipe's
                                    bound */
    bool resumed; /* samples are suspended and continued, and their rows are then computed again */
} invar_rollout_shape;

typedef enum invar_rollout_use {
    INVAR_MEMORY_PLAN_TRAINING,
    INVAR_MEMORY_PLAN_EVALUATION,
    INVAR_MEMORY_PLAN_USES
} invar_rollout_use;

/* Largest numbers of tokens in training. */
typedef struct invar_sample_lengths {
    int64_t prompt, response, context; /* prompt, response, and both */
    int64_t branches;                  /* sequences of one sample, at most; 0 for one */
} invar_sample_lengths;

/* Ranks of a workload. */
typedef struct invar_workload_ranks {
    const invar_layout *layout;    /* layout of the ranks that divide model, samples and moments;
                                      NULL for one rank */
    const invar_rank_roles *roles; /* roles of the ranks, for the weight sync; NULL if all
                                      train and sample */
    size_t bucket_bytes;           /* bytes of a weight sync buffer: update-weight-buffer-size */
} invar_workload_ranks;

/* Everything about a run that its memory depends on. A field that the recipe leaves open is 0. */
typedef struct invar_memory_workload {
    const invar_device *dev; /* open, unless the run is only planned */
    invar_model_specs models;
    bool verify_inflight; /* the sampler also scores the tokens that it has drawn */
    int64_t max_inflight; /* largest number of in-flight samples that the sampler scores */
    bool learns;
    bool must_fit;      /* stop planning as soon as the run cannot fit */
    bool entropy;       /* the loss has an entropy term */
    bool loss_on_rank0; /* the policy loss is computed on rank 0, by a plug-in */
    int64_t level;      /* invar_probe_level of the recorded points */
    bool replay;        /* rollout routing replay (R3), not a replay of steps */
    invar_adamw_options adamw;
    /* bytes of optimizer moments on the device at a time; 0 if all stay there */
    size_t offload_chunk_bytes;
    invar_workload_ranks ranks;
    invar_batch_plan_options plan; /* how samples form micro-batches */
    bool dynamic;                  /* plan.max_tokens is an upper bound */
    bool micro_batch_unset;        /* the recipe has no key for the size of a micro-batch */
    bool recompute;
    int64_t head_rows;    /* rows of logits per pass: log-probs-chunk-size */
    int64_t step_samples; /* samples per optimizer step */
    int64_t samples;      /* samples that are scored at once, such as those of a
                                          rollout */
    invar_sample_lengths lengths;
    invar_rollout_shape rollouts[INVAR_MEMORY_PLAN_USES];
    invar_rollout_exec_options limits;
    invar_sampling_params sampling[INVAR_MEMORY_PLAN_USES];
} invar_memory_workload;

/* Settings of the plan: chosen if the recipe leaves them open, else the recipe's. */
typedef struct invar_memory_plan_choice {
    int64_t head_rows;   /* log-probs-chunk-size */
    int64_t max_tokens;  /* tokens of a micro-batch; 0 if micro-batch-size decides */
    int64_t pages;       /* kv-pages; 0 if nothing is sampled */
    int64_t concurrency; /* rollout-concurrency */
} invar_memory_plan_choice;

#define INVAR_MEMORY_PLAN_ITEMS 12

typedef struct invar_memory_plan_item {
    const char *name; /* "actor: weights" */
    size_t bytes;
} invar_memory_plan_item;

typedef struct invar_memory_plan {
    invar_memory_plan_item items[INVAR_MEMORY_PLAN_ITEMS]; /* (n_items) resident memory */
    int n_items;
    size_t resident; /* sum of all items */
    size_t host;     /* host memory besides device memory: moments, transfer buffers */
    size_t weights;  /* bytes of weights that a rank that only samples receives before a rollout */
    int peak_rank;   /* rank of this pipeline stage that needs the most memory, as far as this
                        rank knows */
    size_t cache;    /* part of `sampling`: keys and values */
    size_t sampling, scoring, learning;
    size_t verify_bytes; /* memory for verifying in-flight samples, by the sampler or the trainer */
    size_t sampler_bytes; /* first bytes of the block, used by the sampler during training; 0 if
                            all phases take turns */
    size_t block;         /* bytes of the block: the largest phase, or the sum of both parts */
    size_t outside_block_bytes; /* memory between the phases: norms, hashes */
    /* Peak while a teacher is loaded before all other models, to hash its masters; 0 without a
       teacher. */
    size_t load_peak_bytes;
    size_t need;      /* resident, block and outside_block_bytes, or load_peak_bytes if that is
                         more */
    size_t available; /* bytes of the device */
    size_t usable;    /* `available` without a small reserve for the driver */
    invar_memory_plan_choice choice;
    bool fits;
} invar_memory_plan;

/*
 * Plans the run for a device with `available` bytes. A plan that does not fit is INVAR_OK, with
 * out->fits false.
 */
invar_status invar_memory_plan_make(invar_memory_plan *out, const invar_memory_workload *workload,
                                    size_t available) INVAR_MUST_USE;

/* Writes the settings of a plan into the workload, which then has no open ones. */
void invar_memory_plan_settle(invar_memory_workload *workload,
                              const invar_memory_plan_choice *choice);

/*
 * Returns the options of a settled workload's trainer that its memory depends on. `model` is the
 * one whose routing is replayed (R3).
 */
invar_trainer_options invar_memory_plan_trainer(const invar_memory_workload *workload,
                                                const invar_model *model);

#define INVAR_MEMORY_PLAN_ADVICE_SIZE 1024

/*
 * Writes the keys that would make the plan fit: "set a = 1, or b = 2 (semantic)"; "" if it fits
 * already, or if no key would help.
 */
invar_status invar_memory_plan_advice(char out[INVAR_MEMORY_PLAN_ADVICE_SIZE],
                                      const invar_memory_plan *plan,
                                      const invar_memory_workload *workload) INVAR_MUST_USE;

/*
 * Returns INVAR_OK if the plan fits; else INVAR_E_NOMEM, with the numbers and the keys that would
 * help.
 */
invar_status invar_memory_plan_check_fits(const invar_memory_plan *plan,
                                          const invar_memory_workload *workload) INVAR_MUST_USE;

/*
 * Returns the tokens of the longest sequence in training or scoring, and of the longest sample,
 * which may have several sequences.
 */
int64_t invar_memory_plan_longest(const invar_memory_workload *workload);
int64_t invar_memory_plan_longest_sample(const invar_memory_workload *workload);

/* Size of the largest micro-batch, and of its longest unit. */
typedef struct invar_largest_micro_batch {
    int64_t rows, samples;
    int64_t unit_rows, unit_samples;
} invar_largest_micro_batch;

/*
 * Returns the largest micro-batch of learning or, if not `learns`, of scoring, in which each sample
 * is its own unit.
 */
invar_largest_micro_batch invar_memory_plan_batch_of(const invar_memory_workload *workload,
                                                     bool learns);

/* True if anything is sampled, for training or for evaluation. */
bool invar_memory_plan_samples(const invar_memory_workload *workload);

/* Returns the rows of the longest sampled sequence. */
int64_t invar_memory_plan_rows(const invar_rollout_shape *rollout);

/* ---- the block of a run ---------------------------------------------------------------------- */

/*
 * Device memory that the phases of a run use in turn. Zero-initialize before use. Release with
 * invar_phase_memory_release.
 */
typedef struct invar_phase_memory {
    const invar_device *dev;      /* borrowed */
    void *memory;                 /* the block; owned */
    invar_phase_arena *stages[4]; /* owned; by invar_memory_phase */
} invar_phase_memory;

typedef enum invar_memory_phase {
    INVAR_MEMORY_PLAN_SAMPLING,
    INVAR_MEMORY_PLAN_CHECKING, /* verification of in-flight samples */
    INVAR_MEMORY_PLAN_SCORING,
    INVAR_MEMORY_PLAN_LEARNING,
} invar_memory_phase;

/*
 * Allocates the block of a plan and makes a counting device for each phase. Sampling and checking
 * use `sampler`, which has the same memory as `dev` and may be equal to it.
 */
invar_status invar_phase_memory_alloc(invar_phase_memory *out, const invar_device *dev,
                                      const invar_device *sampler,
                                      const invar_memory_plan *plan) INVAR_MUST_USE;
void invar_phase_memory_release(invar_phase_memory *memory);

/* Returns the device of a phase; valid until the block is released. */
const invar_device *invar_phase_memory_dev(const invar_phase_memory *memory,
                                           invar_memory_phase phase);

/* Objects of a run that are dry-run, on devices of the block. */
typedef struct invar_dry_run_objects {
    invar_rollout *rollout;           /* NULL if nothing is sampled */
    invar_trainer *trainer;           /* NULL if nothing is scored or trained */
    invar_trainer *checker;           /* trainer that verifies in-flight samples, or NULL */
    const invar_forward_hooks *probe; /* hooks that observe training, or NULL */
    const invar_model_set *models;
    invar_grads *actor_grads, *critic_grads; /* NULL if nothing is trained */
} invar_dry_run_objects;

/*
 * Dry-runs all phases with the largest shapes, so that the objects allocate their memory; then lets
 * the devices of the block execute ops.
 */
invar_status invar_phase_memory_activate(invar_phase_memory *memory,
                                         const invar_dry_run_objects *parts,
                                         const invar_memory_workload *workload) INVAR_MUST_USE;

/* ---- internal -------------------------------------------------------------------------------- */

/*
 * Private to engine/run/memory_plan: a loss of zero, and the dry runs of the phases, on counting
 * devices.
 */
invar_status invar_memory_plan_no_loss(void *payload, int64_t first, int64_t count,
                                       const float *now, const float *entropy, float *dnow_out,
                                       float *dentropy_out) INVAR_MUST_USE;
invar_status invar_dry_run_rollout(invar_rollout *rollout,
                                   const invar_memory_workload *workload) INVAR_MUST_USE;
invar_status invar_dry_run_score(const invar_dry_run_objects *parts,
                                 const invar_memory_workload *workload) INVAR_MUST_USE;
invar_status invar_dry_run_check(const invar_dry_run_objects *parts,
                                 const invar_memory_workload *workload) INVAR_MUST_USE;
invar_status invar_dry_run_learn(const invar_dry_run_objects *parts,
                                 const invar_memory_workload *workload) INVAR_MUST_USE;

#endif
