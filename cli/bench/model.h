/*
 * model.h - invar bench --model: a training step, decoding and a rollout, of random weights.
 *
 * model.c makes the model, asks for the measurements and prints them; step.c trains, decode.c
 * generates, rollout.c does so as a whole rollout, speculation.c with guesses of tokens. All use
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
    invar_option_choice model; /* an invar_bench_shape; none: single ops are measured */
    invar_device_kind device;
    invar_option_choice dtype;
    invar_option_choice numerics; /* none: sm90 on a GPU, ieee on the CPU */
    const char *tokens; /* "8x2048": samples of a step and the tokens of each; "": the shape's */
    invar_option_choice only; /* an invar_bench_part; none: train and decode */
    const char *peer;         /* a shared object, see invar_bench_peer_fn; "": none */
    int64_t micro_batch;      /* samples; 0: all in one */
    int64_t batch;            /* sequences; 0: as the shape has it, here and below */
    int64_t context;          /* tokens of each before the first that is timed */
    int64_t layers;
    int64_t logical_tp; /* pieces of sums */
    int64_t repetitions;
    int64_t threads;
    bool offload; /* the optimizer's moments are in the host's memory */
    bool profile;
    bool json;
} invar_bench_model_options;

invar_status invar_bench_model(const invar_bench_model_options *options) INVAR_MUST_USE;

/*
 * What a peer exports as invar_bench_peer: a table with other ops and the same memory, or NULL. A
 * device of `own` may be used with it.
 */
typedef const invar_backend *(*invar_bench_peer_fn)(const invar_backend *own);

/* ---- between the files ----------------------------------------------------------------------- */

/* What is measured. */
typedef struct invar_bench_subject {
    invar_device dev; /* its backend is the meter's */
    invar_profiling_backend *meter;
    const invar_backend *backend; /* behind the meter */
    const invar_backend *peer;    /* NULL: none */
    invar_model *model;
    int64_t repetitions;
    bool offload;
    bool profile;
} invar_bench_subject;

/* Tokens below `vocabulary`, the next of a sequence. */
void invar_bench_tokens(int32_t *out, int64_t count, uint64_t *state, int64_t vocabulary);

/* The median of `count` times, which are put in order. */
double invar_bench_median(double *times, int64_t count);

typedef struct invar_bench_profile {
    invar_profile_row *rows; /* (count), the longest first; invar_free */
    int64_t count;
    double seconds; /* of what was profiled, everything included */
    int64_t rounds; /* steps or passes in it */
} invar_bench_profile;

/* Its own, and the peer's; rows NULL: not asked for. */
typedef struct invar_bench_profiles {
    invar_bench_profile own, peer;
} invar_bench_profiles;

/* What the meter has measured over `rounds`. */
invar_status invar_bench_profile_take(invar_bench_profile *out, invar_profiling_backend *meter,
                                      int64_t rounds) INVAR_MUST_USE;

enum { INVAR_BENCH_LEVELS = INVAR_PROBE_FULL + 1 };

/* A step with its entry of a ledger, at one level of digests. */
typedef struct invar_bench_record {
    double seconds;
    int64_t points; /* digests of the entry */
} invar_bench_record;

typedef struct invar_bench_train {
    int64_t samples, length; /* tokens of each that are computed */
    int64_t micro_batch;     /* samples; 0: all */
    /* out */
    double seconds; /* a step */
    double flop;    /* of it: invar_flop_train */
    invar_bench_record recorded[INVAR_BENCH_LEVELS];
    double peer_seconds;                                     /* 0: no peer */
    double peer_norm_ratio;                                  /* of the peer's gradient to ours */
    double norm;                                             /* of the gradient of the first step */
    size_t gradients, optimizer, activations, head, scratch; /* bytes */
    invar_bench_profiles profile;
} invar_bench_train;

invar_status invar_bench_train_run(invar_bench_train *train,
                                   const invar_bench_subject *subject) INVAR_MUST_USE;

typedef struct invar_bench_decode {
    int64_t batch, context;
    /* out */
    double seconds;            /* a pass that gives every sequence one token */
    double peer_seconds;       /* 0: no peer */
    double prefill_seconds;    /* until every sequence had its first token */
    int64_t last_context;      /* of the longest sequence, in the end */
    size_t cache, activations; /* bytes */
    invar_bench_profiles profile;
} invar_bench_decode;

invar_status invar_bench_decode_run(invar_bench_decode *decode,
                                    const invar_bench_subject *subject) INVAR_MUST_USE;

typedef struct invar_bench_passes {
    int64_t count, tokens; /* tokens that were drawn */
    double seconds;
} invar_bench_passes;

typedef struct invar_bench_rollout {
    int64_t groups, group;     /* prompts, and the samples of each */
    int64_t batch, context;    /* sequences at a time; tokens of a prompt */
    int64_t shortest, longest; /* responses */
    /* out */
    int64_t tokens;          /* of all responses */
    int64_t recomputed_rows; /* rows that were computed again: other samples needed their pages */
    double seconds;          /* of all of it */
    invar_bench_passes prompts, all, fewer;
    size_t cache, activations; /* bytes */
    invar_bench_decode steady; /* as many sequences with the mean context of a token, no others */
} invar_bench_rollout;

/* The committed list of lengths: response tokens of a sample, log-uniform between the two. */
int64_t invar_bench_rollout_length(int64_t shortest, int64_t longest, int64_t sample);

invar_status invar_bench_rollout_run(invar_bench_rollout *rollout,
                                     const invar_bench_subject *subject) INVAR_MUST_USE;

/* A rollout of given responses. */
typedef struct invar_bench_draft_result {
    int64_t ahead;  /* tokens guessed at a time; 0: none */
    int64_t tokens; /* of all responses */
    int64_t passes, drafted, accepted;
    double seconds;
} invar_bench_draft_result;

enum { INVAR_BENCH_GUESSED = 4 }; /* numbers of tokens at a time, the first is 0 */

typedef struct invar_bench_speculation {
    int64_t batch; /* sequences */
    /* out */
    invar_bench_draft_result guessed[INVAR_BENCH_TEXT_COUNT][INVAR_BENCH_GUESSED];
} invar_bench_speculation;

invar_status invar_bench_speculation_run(invar_bench_speculation *speculation,
                                         const invar_bench_subject *subject) INVAR_MUST_USE;

#endif
