/*
 * model.h - invar bench --model: measures a training step, decoding and a rollout with random
 * weights.
 *
 * model.c builds the model, runs the measurements and prints them. step.c trains, decode.c times
 * decode passes, rollout.c a complete rollout, speculation.c speculative decoding. All of them use
 * the engine as a run does.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BENCH_MODEL_H
#define INVAR_CLI_BENCH_MODEL_H

#include "cli/bench/profiling_backend.h"
#include "cli/command.h"
#include "engine/model/model.h"
#include "engine/model/probe/probe.h"

#define INVAR_CHOICES INVAR_CHOICES_ENUM
#define INVAR_CHOICE INVAR_CHOICE_ID
#include "cli/bench/choices.def"
#undef INVAR_CHOICES
#undef INVAR_CHOICE

typedef struct invar_bench_model_options {
    invar_option_choice model; /* an invar_bench_shape; negative to measure single ops */
    invar_device_kind device;
    invar_option_choice dtype;
    invar_option_choice numerics; /* negative for the default: sm90 on a GPU, ieee on the CPU */
    const char *tokens;           /* such as "8x2048": samples of a step and tokens of each; empty
                                     for those of the shape */
    invar_option_choice only;     /* an invar_bench_part; negative for train and decode */
    int64_t micro_batch;          /* samples; 0 for all samples in one micro-batch */
    int64_t batch;                /* sequences; 0 for the number of the shape */
    int64_t context;              /* tokens of each sequence before the timing begins; 0 for the
                                     number of the shape */
    int64_t layers;
    int64_t logical_tp; /* logical shards of sums; 0 for the default of 1 */
    int64_t repetitions;
    int64_t threads;
    bool offload; /* keep the optimizer's moments in host memory */
    bool profile;
    bool json;
} invar_bench_model_options;

/*
 * Adds the options of --model, without an end, and returns their number. The first one is --model;
 * the others require it.
 */
enum { INVAR_BENCH_MODEL_OPTIONS = 13 };
int invar_bench_add_model_options(invar_option *list, invar_bench_model_options *options);
invar_bench_model_options invar_bench_default_model_options(void);

invar_status invar_bench_model(const invar_bench_model_options *options) INVAR_MUST_USE;

/* ---- interface between the files ------------------------------------------------------------- */

/* The measured model and its device. */
typedef struct invar_bench_subject {
    invar_device dev; /* its backend is the one of `profiler` */
    invar_profiling_backend *profiler;
    invar_model *model;
    int64_t repetitions;
    bool offload;
    bool profile;
} invar_bench_subject;

/*
 * Opens the device, with the ops of `backend`, and makes the model. Close it even after a failure.
 */
invar_status invar_bench_open(invar_bench_subject *subject,
                              const invar_bench_model_options *options,
                              const invar_backend *backend) INVAR_MUST_USE;
void invar_bench_close(invar_bench_subject *subject);

/* Writes the next pseudo-random tokens below `vocabulary`. */
void invar_bench_tokens(int32_t *out, int64_t count, uint64_t *state, int64_t vocabulary);

typedef struct invar_bench_profile {
    invar_profile_row *rows; /* (count) rows, the longest time first, NULL if not requested; free
                                with invar_free */
    int64_t count;
    double seconds; /* total time of the profiled steps or passes */
    int64_t rounds; /* number of profiled steps or passes */
} invar_bench_profile;

/* Copies the rows that the profiling backend has measured over `rounds`. */
invar_status invar_bench_profile_take(invar_bench_profile *out, invar_profiling_backend *profiler,
                                      int64_t rounds) INVAR_MUST_USE;

enum { INVAR_BENCH_LEVELS = INVAR_PROBE_FULL + 1 };

/* Result of a step that records an entry in a ledger, at one level of digests. */
typedef struct invar_bench_record {
    double seconds;
    int64_t points; /* number of digests in the entry */
} invar_bench_record;

typedef struct invar_bench_train {
    int64_t samples, length; /* samples and computed tokens of each */
    int64_t micro_batch;     /* samples; 0 for all samples in one micro-batch */
    /* results of the measurement */
    double seconds; /* seconds of a step */
    double flop;    /* FLOP of a step by invar_flop_train */
    invar_bench_record recorded[INVAR_BENCH_LEVELS];
    double norm;                                             /* gradient norm of the first step */
    size_t gradients, optimizer, activations, head, scratch; /* bytes */
    invar_bench_profile profile;
} invar_bench_train;

invar_status invar_bench_train_run(invar_bench_train *train,
                                   const invar_bench_subject *subject) INVAR_MUST_USE;

typedef struct invar_bench_decode {
    int64_t batch, context;
    /* results of the measurement */
    double seconds;            /* seconds of a pass that gives every sequence one token */
    double prefill_seconds;    /* seconds until every sequence had its first token */
    int64_t last_context;      /* context of the longest sequence at the end */
    size_t cache, activations; /* bytes */
    invar_bench_profile profile;
} invar_bench_decode;

invar_status invar_bench_decode_run(invar_bench_decode *decode,
                                    const invar_bench_subject *subject) INVAR_MUST_USE;

/* Checks the options and sets the sizes of what is measured. */
invar_status invar_bench_apply_options(invar_bench_train *train, invar_bench_decode *decode,
                                       const invar_bench_model_options *options) INVAR_MUST_USE;

typedef struct invar_bench_passes {
    int64_t count, tokens; /* number of drawn tokens */
    double seconds;
} invar_bench_passes;

typedef struct invar_bench_rollout {
    int64_t groups, group;     /* prompts, and samples of each */
    int64_t batch, context;    /* concurrent sequences, and tokens of a prompt */
    int64_t shortest, longest; /* range of response lengths */
    /* results of the measurement */
    int64_t tokens;          /* tokens of all responses */
    int64_t recomputed_rows; /* rows computed again after a preemption */
    double seconds;          /* seconds of the complete rollout */
    /* passes with prefill or recomputed tokens; passes in which all sequences drew; others */
    invar_bench_passes prompts, all, fewer;
    size_t cache, activations; /* bytes */
    invar_bench_decode steady; /* decoding alone: the same number of sequences with the mean
                                  context */
} invar_bench_rollout;

/* Returns the response length of a sample from a fixed list, log-uniform between the two bounds. */
int64_t invar_bench_rollout_length(int64_t shortest, int64_t longest, int64_t sample);

invar_status invar_bench_rollout_run(invar_bench_rollout *rollout,
                                     const invar_bench_subject *subject) INVAR_MUST_USE;

/* Result of a rollout with given responses. */
typedef struct invar_bench_draft_result {
    int64_t n_draft_tokens; /* draft tokens per pass; 0 without speculation */
    int64_t tokens;         /* tokens of all responses */
    /* number of passes, of draft tokens, and of draft tokens equal to those of the response */
    int64_t passes, drafted, accepted;
    double seconds;
} invar_bench_draft_result;

enum { INVAR_BENCH_DRAFTED = 4 }; /* number of measured draft lengths; the first one is 0 */

typedef struct invar_bench_speculation {
    int64_t batch; /* number of sequences */
    /* results of the measurement */
    invar_bench_draft_result drafted[INVAR_BENCH_TEXT_COUNT][INVAR_BENCH_DRAFTED];
} invar_bench_speculation;

invar_status invar_bench_speculation_run(invar_bench_speculation *speculation,
                                         const invar_bench_subject *subject) INVAR_MUST_USE;

#endif
