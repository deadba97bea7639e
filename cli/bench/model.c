/*
 * model.c - invar bench --model: builds a model with random weights, runs the parts, prints the
 * results.
 *
 * Weights are copied from a block of noise in device memory. Text is printed as soon as a part is
 * done, JSON at the end. The measurements are in step.c and decode.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bench/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "base/json/result.h"
#include "cli/bench/bench.h"
#include "engine/model/graph/op_runner.h"
#include "kernels-deterministic/math/bf16.h"

#include "base/invar_banned.h"

#define PEAK_FLOPS 989e12 /* of an H100 or H200: bf16, dense */

/* ---- shapes ---------------------------------------------------------------------------------- */

#define INVAR_CHOICES INVAR_CHOICES_WORDS
#define INVAR_CHOICE INVAR_CHOICE_WORD
#include "cli/bench/choices.def"
#undef INVAR_CHOICES
#undef INVAR_CHOICE

typedef struct shape {
    invar_model_spec spec;
    int64_t samples, length; /* samples of a step and tokens of each */
    int64_t batch, context;  /* sequences and context of decoding */
} shape;

#define QWEN                                                                                       \
    .vocab = 151936, .norm_eps = 1e-6f, .init_std = 0.02f, .attention.head_dim = 128,              \
    .rope = {.theta = 1e6}
#define DEFAULT_SIZES .samples = 8, .length = 2048, .batch = 256, .context = 512
#define TINY                                                                                       \
    .vocab = 512, .hidden = 128, .layers = 2, .attention.heads = 4, .attention.kv_heads = 2,       \
    .attention.head_dim = 64, .intermediate = 256, .max_positions = 1024, .norm_eps = 1e-6f,       \
    .init_std = 0.02f, .tied = true, .attention.qk_norm = true, .rope = {.theta = 1e6}
#define TINY_DEFAULT_SIZES .samples = 2, .length = 32, .batch = 4, .context = 16

static const shape shapes[INVAR_BENCH_SHAPE_COUNT] = {
    [INVAR_BENCH_SHAPE_QWEN3_0_6B] = {DEFAULT_SIZES,
                                      .spec = {QWEN, .family = INVAR_FAMILY_QWEN3, .hidden = 1024,
                                               .layers = 28, .attention.heads = 16,
                                               .attention.kv_heads = 8, .intermediate = 3072,
                                               .max_positions = 40960, .tied = true,
                                               .attention.qk_norm = true}},
    [INVAR_BENCH_SHAPE_QWEN2_5_1_5B] = {DEFAULT_SIZES,
                                        .spec = {QWEN, .family = INVAR_FAMILY_QWEN2, .hidden = 1536,
                                                 .layers = 28, .attention.heads = 12,
                                                 .attention.kv_heads = 2, .intermediate = 8960,
                                                 .max_positions = 32768, .tied = true,
                                                 .attention.qkv_bias = true}},
    [INVAR_BENCH_SHAPE_QWEN3_8B] = {DEFAULT_SIZES,
                                    .spec = {QWEN, .family = INVAR_FAMILY_QWEN3, .hidden = 4096,
                                             .layers = 36, .attention.heads = 32,
                                             .attention.kv_heads = 8, .intermediate = 12288,
                                             .max_positions = 40960, .attention.qk_norm = true}},
    [INVAR_BENCH_SHAPE_QWEN3_30B_A3B] =
        {DEFAULT_SIZES,
         .spec = {QWEN, .family = INVAR_FAMILY_QWEN3_MOE, .hidden = 2048, .layers = 48,
                  .attention.heads = 32, .attention.kv_heads = 4, .intermediate = 6144,
                  .max_positions = 40960, .attention.qk_norm = true, .experts.count = 128,
                  .experts.per_token = 8, .experts.intermediate = 768, .experts.normalize = true}},
    [INVAR_BENCH_SHAPE_TINY] = {TINY_DEFAULT_SIZES, .spec = {TINY, .family = INVAR_FAMILY_QWEN3}},
    [INVAR_BENCH_SHAPE_TINY_MOE] = {TINY_DEFAULT_SIZES,
                                    .spec = {TINY, .family = INVAR_FAMILY_QWEN3_MOE,
                                             .experts.count = 8, .experts.per_token = 2,
                                             .experts.intermediate = 128,
                                             .experts.normalize = true}},
};

static shape find_shape(const invar_bench_model_options *o)
{
    shape found = shapes[o->model.value];

    if (o->layers)
        found.spec.layers = o->layers;
    found.spec.logical_tp = o->logical_tp;
    for (int64_t i = 0; i < found.spec.layers; i++)
        found.spec.experts.sparse[i] = found.spec.experts.count > 0;
    return found;
}

/* Parses samples and tokens such as "8x2048". */
static invar_status read_tokens(shape *out, const char *text)
{
    char *end;

    if (!text[0])
        return INVAR_OK;
    out->samples = strtoll(text, &end, 10);
    out->length = *end == 'x' ? strtoll(end + 1, &end, 10) : 0;
    if (*end || out->samples < 1 || out->length < 1 || out->samples > 1 << 20 ||
        out->length > out->spec.max_positions)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--tokens %.40s: expected samples x tokens of each, as 8x2048, at most "
                          "%" PRId64 " tokens",
                          text, out->spec.max_positions);
    return INVAR_OK;
}

invar_status invar_bench_apply_options(invar_bench_train *train, invar_bench_decode *decode,
                                       const invar_bench_model_options *o)
{
    shape found = find_shape(o);

    INVAR_TRY(read_tokens(&found, o->tokens));
    if ((o->logical_tp & (o->logical_tp - 1)) != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--logical-tp %" PRId64 ": is not 1, 2, 4 or 8",
                          o->logical_tp);
    if (o->offload && o->profile)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--profile and --optimizer-cpu-offload: give one of them; moments travel "
                          "while others are computed with");
    *train = (invar_bench_train){
        .samples = found.samples, .length = found.length, .micro_batch = o->micro_batch};
    *decode = (invar_bench_decode){.batch = o->batch ? o->batch : found.batch,
                                   .context = o->context ? o->context : found.context};
    return INVAR_OK;
}

/* ---- random weights -------------------------------------------------------------------------- */

/* Random numbers in device memory, as f32 and rounded to bf16, from which parameters are copied. */
typedef struct noise_block {
    const invar_device *dev;
    float *wide;
    uint16_t *narrow;
} noise_block;

// not a power of two, so that rows of matrices do not repeat
enum { NOISE_COUNT = (1 << 22) - 3001 };

static invar_status make_noise(noise_block *n, float deviation)
{
    float *wide = NULL;
    uint16_t *narrow = NULL;
    uint64_t state = 3;
    invar_status status = INVAR_ALLOC(wide, NOISE_COUNT, "noise");

    if (status == INVAR_OK)
        status = INVAR_ALLOC(narrow, NOISE_COUNT, "noise");
    for (int64_t i = 0; i < NOISE_COUNT && status == INVAR_OK; i++) {
        wide[i] = invar_bench_noise(&state) * (deviation / INVAR_BENCH_NOISE);
        narrow[i] = invar_bf16_from_f32(wide[i]);
    }
    if (status == INVAR_OK)
        status = invar_device_alloc(n->dev, (void **)&n->wide, NOISE_COUNT * sizeof *wide, "noise");
    if (status == INVAR_OK)
        status =
            invar_device_alloc(n->dev, (void **)&n->narrow, NOISE_COUNT * sizeof *narrow, "noise");
    if (status == INVAR_OK)
        status = invar_device_upload(n->dev, n->wide, wide, NOISE_COUNT * sizeof *wide);
    if (status == INVAR_OK)
        status = invar_device_upload(n->dev, n->narrow, narrow, NOISE_COUNT * sizeof *narrow);
    invar_free(wide);
    invar_free(narrow);
    return status;
}

/*
 * Copies `count` elements of `size` bytes from the noise, starting at element `first` and wrapping
 * around.
 */
static invar_status copy_noise(const noise_block *n, void *to, const void *from, size_t size,
                               int64_t count, int64_t first)
{
    for (int64_t at = 0, piece; at < count; at += piece, first = 0) {
        piece = NOISE_COUNT - first < count - at ? NOISE_COUNT - first : count - at;
        INVAR_TRY(invar_device_copy(n->dev, (char *)to + (size_t)at * size,
                                    (const char *)from + (size_t)first * size,
                                    (size_t)piece * size));
    }
    return INVAR_OK;
}

static int64_t param_elements(const invar_param *p)
{
    return p->stack * p->rows * (p->cols ? p->cols : 1);
}

static invar_status fill_norm(const noise_block *n, const invar_param *p)
{
    size_t count = (size_t)param_elements(p);
    float *ones = NULL;
    uint16_t *rounded;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_SIZED(ones, count, sizeof *ones + sizeof *rounded, "ones"));
    rounded = (uint16_t *)(ones + count);
    for (size_t i = 0; i < count; i++) {
        ones[i] = 1.0f;
        rounded[i] = invar_bf16_from_f32(1.0f);
    }
    status = invar_device_upload(n->dev, p->master.data, ones, count * sizeof *ones);
    if (status == INVAR_OK && p->weight.dtype == INVAR_DTYPE_BF16)
        status = invar_device_upload(n->dev, p->weight.data, rounded, count * sizeof *rounded);
    invar_free(ones);
    return status;
}

/* Fills the master and the weight in its number format. */
static invar_status fill_param(const noise_block *n, invar_op_runner *runner, const invar_param *p,
                               int64_t number)
{
    int64_t first = number * 104729 % NOISE_COUNT;

    if (p->kind == INVAR_PARAM_NORM)
        return fill_norm(n, p);
    INVAR_TRY(copy_noise(n, p->master.data, n->wide, sizeof *n->wide, param_elements(p), first));
    if (p->weight.dtype == INVAR_DTYPE_BF16)
        return copy_noise(n, p->weight.data, n->narrow, sizeof *n->narrow, param_elements(p),
                          first);
    if (p->weight.dtype == INVAR_DTYPE_F32)
        return INVAR_OK; // the weight is the master itself
    return INVAR_CALL(runner, QUANTIZE, quantize, .q = p->weight, .x = p->master);
}

static invar_status fill_model(invar_model *model, const invar_device *dev)
{
    noise_block n = {.dev = dev};
    invar_op_runner runner;
    invar_status status = make_noise(&n, model->spec.init_std);

    invar_op_runner_init(&runner, dev);
    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++)
        status = fill_param(&n, &runner, &model->params[i], i);
    invar_op_runner_release(&runner);
    if (n.wide)
        invar_device_free(dev, n.wide);
    if (n.narrow)
        invar_device_free(dev, n.narrow);
    return status;
}

void invar_bench_tokens(int32_t *out, int64_t count, uint64_t *state, int64_t vocabulary)
{
    for (int64_t i = 0; i < count; i++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        out[i] = (int32_t)((*state >> 33) % (uint64_t)vocabulary);
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */

invar_status invar_bench_profile_take(invar_bench_profile *out, invar_profiling_backend *profiler,
                                      int64_t rounds)
{
    const invar_profile_row *rows = invar_profiling_backend_rows(&out->count, profiler);

    INVAR_TRY(INVAR_ALLOC_SIZED(out->rows, (size_t)out->count, sizeof *rows, "a profile"));
    memcpy(out->rows, rows, (size_t)out->count * sizeof *rows);
    out->seconds = invar_profiling_backend_seconds(profiler);
    out->rounds = rounds;
    return INVAR_OK;
}

/* All results of a run. */
typedef struct model_results {
    const invar_bench_model_options *options;
    const invar_model *model;
    const invar_device *dev;
    int64_t parameters;
    size_t masters, weights; /* bytes */
    invar_bench_train train;
    invar_bench_decode decode;
    bool trained, decoded; /* the part was measured */
} model_results;

static void count_parameters(model_results *a)
{
    for (int64_t i = 0; i < a->model->n_params; i++) {
        const invar_param *p = &a->model->params[i];
        size_t count = (size_t)param_elements(p);

        a->parameters += param_elements(p);
        a->masters += count * sizeof(float);
        a->weights += count * (size_t)invar_dtype_bits(p->weight.dtype) / 8 +
                      invar_tensor_scale_bytes(&p->weight);
    }
}

/* ---- text output ----------------------------------------------------------------------------- */

static double to_mib(size_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* Returns the time of the host: everything except ops and copies. */
static double host_seconds(const invar_bench_profile *p)
{
    double seconds = p->seconds;

    for (int64_t i = 0; i < p->count; i++)
        seconds -= p->rows[i].seconds;
    return seconds;
}

static void print_row(const invar_bench_profile *p, const invar_profile_row *r)
{
    printf("%-16s %-26s %8" PRId64 " %11.1f %9.3f %6.1f%%\n", r->name, r->shape,
           r->calls / p->rounds, 1e6 * r->seconds / (double)r->calls,
           1e3 * r->seconds / (double)p->rounds, 100.0 * r->seconds / p->seconds);
}

static void print_profile(const invar_bench_profile *p, const char *what)
{
    invar_profile_row host = {.name = "the host", .calls = p->rounds, .seconds = host_seconds(p)};
    invar_profile_row all = {.name = "all", .calls = p->rounds, .seconds = p->seconds};

    if (!p->rows)
        return;
    printf("\n%-16s %-26s %8s %11s %9s %7s\n", what, "", "calls", "us each", "ms", "share");
    for (int64_t i = 0; i < p->count; i++)
        print_row(p, &p->rows[i]);
    print_row(p, &host);
    print_row(p, &all);
}

static void print_more(const char *what, double seconds, double base)
{
    printf("  %-38s %10.3f ms %+7.1f %%\n", what, 1e3 * seconds, 100.0 * (seconds / base - 1.0));
}

static void print_train(const model_results *a)
{
    const invar_bench_train *t = &a->train;
    double rate = (double)(t->samples * t->length) / t->seconds;

    printf("\ntraining, %" PRId64 " x %" PRId64 " tokens\n", t->samples, t->length);
    printf("  %-38s %10.3f ms %12.0f tokens/s", "a step", 1e3 * t->seconds, rate);
    if (invar_device_is_local(a->dev))
        printf("  %.1f %% of 989 TFLOP/s", 100.0 * t->flop / t->seconds / PEAK_FLOPS);
    printf("\n");
    print_more("digests of the step, ledger", t->recorded[INVAR_PROBE_STEP].seconds, t->seconds);
    print_more("digests of its layers too", t->recorded[INVAR_PROBE_POINT].seconds, t->seconds);
    print_more("digests of every call", t->recorded[INVAR_PROBE_FULL].seconds, t->seconds);
    printf("  %-38s gradients %.0f, optimizer %.0f%s, activations %.0f, head %.0f, scratch %.0f\n",
           "MiB", to_mib(t->gradients), to_mib(t->optimizer),
           a->options->offload ? " of the host" : "", to_mib(t->activations), to_mib(t->head),
           to_mib(t->scratch));
    print_profile(&t->profile, "training");
}

static void print_decode(const model_results *a)
{
    const invar_bench_decode *d = &a->decode;
    double batch = (double)d->batch;

    printf("\ndecoding, %" PRId64 " sequences, context %" PRId64 " to %" PRId64 "\n", d->batch,
           d->context, d->last_context);
    printf("  %-38s %10.3f ms %12.0f tokens/s\n", "a token of each", 1e3 * d->seconds,
           batch / d->seconds);
    printf("  %-38s %10.3f ms %12.0f tokens/s\n", "reading the prompts", 1e3 * d->prefill_seconds,
           batch * (double)d->context / d->prefill_seconds);
    printf("  %-38s cache %.0f, activations %.0f\n", "MiB", to_mib(d->cache),
           to_mib(d->activations));
    print_profile(&d->profile, "decoding");
}

static void print_head(const model_results *a)
{
    bool color = invar_term_has_color(stdout);

    printf("%s%s%s: %s, %s on %s, %" PRId64 " layers, %.1f M parameters\n",
           invar_term_escape(color, INVAR_TERM_STYLE_BOLD),
           invar_bench_shape_choices.words[a->options->model.value],
           invar_term_escape(color, INVAR_TERM_STYLE_PLAIN), invar_format_name(a->model->format),
           invar_numerics_name(a->dev->numerics),
           invar_device_kind_choices.words[a->options->device], a->model->spec.layers,
           1e-6 * (double)a->parameters);
    printf("  %-38s masters %.0f, weights %.0f\n", "MiB", to_mib(a->masters), to_mib(a->weights));
}

/* ---- JSON output ----------------------------------------------------------------------------- */

static json_t *profile_row_json(const void *item)
{
    const invar_profile_row *r = item;

    return INVAR_RESULT(INVAR_BENCH_PROFILE_ROW, r->name, r->shape, r->calls, r->seconds);
}

static json_t *profile_json(const invar_bench_profile *p)
{
    return p->rows ? INVAR_RESULT(INVAR_BENCH_PROFILE, p->seconds, p->rounds,
                                  invar_result_list(p->rows, (size_t)p->count, sizeof *p->rows,
                                                    profile_row_json))
                   : json_null();
}

static json_t *record_json(const invar_bench_record *r)
{
    return INVAR_RESULT(INVAR_BENCH_RECORD, r->seconds, r->points);
}

static json_t *train_json(const model_results *a)
{
    const invar_bench_train *t = &a->train;
    const invar_bench_record *recorded = t->recorded;

    return INVAR_RESULT(INVAR_BENCH_TRAIN, t->samples, t->length, t->seconds,
                        (double)(t->samples * t->length) / t->seconds, t->flop, t->norm,
                        INVAR_RESULT(INVAR_BENCH_RECORDED, record_json(&recorded[INVAR_PROBE_STEP]),
                                     record_json(&recorded[INVAR_PROBE_POINT]),
                                     record_json(&recorded[INVAR_PROBE_FULL])),
                        a->options->offload ? json_true() : json_null(),
                        INVAR_RESULT(INVAR_BENCH_TRAIN_BYTES, t->gradients, t->optimizer,
                                     t->activations, t->head, t->scratch),
                        profile_json(&t->profile));
}

static json_t *decode_json(const model_results *a)
{
    const invar_bench_decode *d = &a->decode;

    return INVAR_RESULT(INVAR_BENCH_DECODE, d->batch, d->context, d->last_context, d->seconds,
                        (double)d->batch / d->seconds, d->prefill_seconds,
                        INVAR_RESULT(INVAR_BENCH_DECODE_BYTES, d->cache, d->activations),
                        profile_json(&d->profile));
}

/* Prints the parts that were measured, and after a failure its message. */
static invar_status print_json(const model_results *a, invar_status status)
{
    INVAR_TRY(invar_json_write(
        stdout,
        INVAR_RESULT(
            INVAR_BENCH_MODEL_RESULT, invar_bench_shape_choices.words[a->options->model.value],
            invar_format_name(a->model->format), invar_numerics_name(a->dev->numerics),
            invar_device_kind_choices.words[a->options->device], a->model->spec.layers,
            a->parameters, INVAR_RESULT(INVAR_BENCH_MODEL_BYTES, a->masters, a->weights),
            a->trained ? train_json(a) : json_null(), a->decoded ? decode_json(a) : json_null(),
            status == INVAR_OK ? NULL : invar_error_last()->message)));
    return status;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Measures the selected parts. Text is printed as soon as a part is done. */
static invar_status measure_parts(model_results *a, const invar_bench_subject *subject)
{
    const invar_bench_model_options *o = a->options;

    if (o->only.value != INVAR_BENCH_PART_DECODE) {
        INVAR_TRY(invar_bench_train_run(&a->train, subject));
        a->trained = true;
        if (!o->json)
            print_train(a);
        fflush(stdout);
    }
    if (o->only.value != INVAR_BENCH_PART_TRAIN) {
        INVAR_TRY(invar_bench_decode_run(&a->decode, subject));
        a->decoded = true;
        if (!o->json)
            print_decode(a);
    }
    return INVAR_OK;
}

static invar_status measure_model(model_results *a, const invar_bench_subject *subject)
{
    invar_status status;

    a->model = subject->model;
    a->dev = &subject->dev;
    count_parameters(a);
    if (!a->options->json)
        print_head(a);
    status = measure_parts(a, subject);
    return a->options->json ? print_json(a, status) : status;
}

invar_status invar_bench_open(invar_bench_subject *subject, const invar_bench_model_options *o,
                              const invar_backend *backend)
{
    const invar_numerics usual =
        o->device == INVAR_DEVICE_CUDA ? INVAR_NUMERICS_SM90 : INVAR_NUMERICS_IEEE;
    const shape found = find_shape(o);

    *subject = (invar_bench_subject){
        .repetitions = o->repetitions, .offload = o->offload, .profile = o->profile};
    INVAR_TRY(invar_profiling_backend_new(&subject->profiler, backend));
    INVAR_TRY(invar_pool_new(&subject->dev.pool, (int)o->threads));
    (void)invar_profiling_backend_attach(&subject->dev, subject->profiler);
    subject->dev.numerics = o->numerics.value < 0 ? usual : (invar_numerics)o->numerics.value;
    INVAR_TRY(invar_device_open(&subject->dev));
    INVAR_TRY(invar_model_new(&subject->model, &found.spec, (invar_format)o->dtype.value, NULL,
                              &subject->dev));
    return fill_model(subject->model, &subject->dev);
}

void invar_bench_close(invar_bench_subject *subject)
{
    invar_model_free(subject->model);
    if (subject->profiler)
        invar_device_close(&subject->dev);
    invar_pool_free(subject->dev.pool);
    invar_profiling_backend_free(subject->profiler);
}

invar_status invar_bench_model(const invar_bench_model_options *options)
{
    model_results a = {.options = options};
    invar_bench_subject subject = {.repetitions = 0};
    const invar_backend *backend;
    invar_status status;

    INVAR_TRY(invar_bench_apply_options(&a.train, &a.decode, options));
    INVAR_TRY(invar_backend_find(&backend, options->device));
    status = invar_bench_open(&subject, options, backend);
    if (status == INVAR_OK)
        status = measure_model(&a, &subject);
    invar_free(a.train.profile.rows);
    invar_free(a.decode.profile.rows);
    invar_bench_close(&subject);
    return status;
}
