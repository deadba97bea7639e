/*
 * model.h - invar bench --model: measures a training step and decoding with random weights.
 *
 * model.c builds the model, runs the measurements and prints them. step.c trains, decode.c times
 * decode passes. Both use the engine as a run does, and so do the programs of tests/bench.
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

/* Members of the JSON. */
#define INVAR_BENCH_PROFILE_ROW "{op text, shape text, calls int, seconds real}"
#define INVAR_BENCH_PROFILE "{seconds real, rounds int, rows [" INVAR_BENCH_PROFILE_ROW "]}"
#define INVAR_BENCH_RECORD "{seconds real, points int}"
#define INVAR_BENCH_RECORDED                                                                       \
    "{step " INVAR_BENCH_RECORD ", point " INVAR_BENCH_RECORD ", full " INVAR_BENCH_RECORD "}"
#define INVAR_BENCH_TRAIN_BYTES                                                                    \
    "{gradients int, optimizer int, activations int, head int, scratch int}"
#define INVAR_BENCH_TRAIN                                                                          \
    "{samples int, length int, seconds real, tokens_per_second real, flops real, grad_norm real,"  \
    " recorded " INVAR_BENCH_RECORDED ", optimizer_on_host~ bool, bytes " INVAR_BENCH_TRAIN_BYTES  \
    ", profile~ " INVAR_BENCH_PROFILE "}"
#define INVAR_BENCH_DECODE_BYTES "{cache int, activations int}"
#define INVAR_BENCH_DECODE                                                                         \
    "{batch int, context int, last_context int, seconds real, tokens_per_second real,"             \
    " prefill_seconds real, bytes " INVAR_BENCH_DECODE_BYTES ", profile~ " INVAR_BENCH_PROFILE "}"
#define INVAR_BENCH_MODEL_BYTES "{masters int, weights int}"
#define INVAR_BENCH_MODEL_RESULT                                                                   \
    "{model text, dtype text, numerics text, device text, layers int, parameters int,"             \
    " bytes " INVAR_BENCH_MODEL_BYTES ", train~ " INVAR_BENCH_TRAIN                                \
    ", decode~ " INVAR_BENCH_DECODE ", error~ text} (with --model)"

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

#define INVAR_BENCH_MODEL_DEFAULTS                                                                 \
    {                                                                                              \
        .model = {&invar_bench_shape_choices, -1},                                                 \
        .dtype = {&invar_format_choices, INVAR_FORMAT_BF16},                                       \
        .numerics = {&invar_numerics_choices, -1}, .tokens = "",                                   \
        .only = {&invar_bench_part_choices, -1}, .repetitions = 5                                  \
    }

/* Rows of the options of --model, which comes first; the others require it. */
#define INVAR_BENCH_MODEL_OPTIONS(o)                                                               \
    {"model",                                                                                      \
     INVAR_OPTION_WORD,                                                                            \
     &(o).model,                                                                                   \
     "SHAPE",                                                                                      \
     "measure a whole model with random weights",                                                  \
     0,                                                                                            \
     0},                                                                                           \
        {"only", INVAR_OPTION_WORD, &(o).only, "PART", "measure one part alone", 0, 0},            \
        {"dtype", INVAR_OPTION_WORD, &(o).dtype, "FORMAT", "number format of the model", 0, 0},    \
        {"numerics",                                                                               \
         INVAR_OPTION_WORD,                                                                        \
         &(o).numerics,                                                                            \
         "NAME",                                                                                   \
         "arithmetic, by default sm90 on a GPU and ieee elsewhere",                                \
         0,                                                                                        \
         0},                                                                                       \
        {"tokens",                                                                                 \
         INVAR_OPTION_TEXT,                                                                        \
         &(o).tokens,                                                                              \
         "BxL",                                                                                    \
         "samples in a training step x tokens in each (8x2048; tiny: fewer)",                      \
         0,                                                                                        \
         0},                                                                                       \
        {"micro-batch",                                                                            \
         INVAR_OPTION_INT,                                                                         \
         &(o).micro_batch,                                                                         \
         "N",                                                                                      \
         "number of samples in a micro-batch (all)",                                               \
         1,                                                                                        \
         1 << 20},                                                                                 \
        {"batch",                                                                                  \
         INVAR_OPTION_INT,                                                                         \
         &(o).batch,                                                                               \
         "N",                                                                                      \
         "number of sequences decoded together (256; tiny: fewer)",                                \
         1,                                                                                        \
         1 << 16},                                                                                 \
        {"context",                                                                                \
         INVAR_OPTION_INT,                                                                         \
         &(o).context,                                                                             \
         "N",                                                                                      \
         "number of tokens in each sequence before decoding is timed (512; tiny: fewer)",          \
         1,                                                                                        \
         1 << 20},                                                                                 \
        {"layers",                                                                                 \
         INVAR_OPTION_INT,                                                                         \
         &(o).layers,                                                                              \
         "N",                                                                                      \
         "use only the first N layers, when a step does not fit in memory",                        \
         1,                                                                                        \
         256},                                                                                     \
        {"logical-tp",                                                                             \
         INVAR_OPTION_INT,                                                                         \
         &(o).logical_tp,                                                                          \
         "N",                                                                                      \
         "make sums of 1, 2, 4 or 8 pieces, as the recipe key does (1)",                           \
         1,                                                                                        \
         8},                                                                                       \
        {"repetitions",                                                                            \
         INVAR_OPTION_INT,                                                                         \
         &(o).repetitions,                                                                         \
         "N",                                                                                      \
         "number of timed steps (5); the median is shown",                                         \
         1,                                                                                        \
         64},                                                                                      \
        {"profile",                                                                                \
         INVAR_OPTION_FLAG,                                                                        \
         &(o).profile,                                                                             \
         NULL,                                                                                     \
         "show the time of each op in a step and in a decoding pass",                              \
         0,                                                                                        \
         0},                                                                                       \
    {                                                                                              \
        "optimizer-cpu-offload", INVAR_OPTION_FLAG, &(o).offload, NULL,                            \
            "on a GPU: keep the moments of AdamW in host memory", 0, 0                             \
    }

invar_status invar_bench_model(const invar_bench_model_options *options) INVAR_MUST_USE;

/* ---- interface between the files ------------------------------------------------------------- */

/* The measured model and its device. */
typedef struct invar_bench_subject {
    invar_device dev; /* has the profiler attached */
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

#endif
