/*
 * model.c - invar bench --model: builds a model with random weights, runs the parts, prints the
 * results.
 *
 * Weights are copied from a block of noise in device memory. Every result is printed as text or
 * JSON as soon as its part is done. The measurements are in step.c, decode.c, rollout.c and
 * speculation.c.
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
#include "cli/bench/bench.h"
#include "cli/safe_text.h"
#include "engine/model/graph/op_runner.h"
#include "kernels-deterministic/math/bf16.h"

#include "base/invar_banned.h"

#define PEAK_FLOPS 989e12 /* of an H100 or H200: bf16, dense */
#define FEW_SEQUENCES 8   /* number of sequences at which a GPU has spare time for drafts */

/* ---- shapes ---------------------------------------------------------------------------------- */

#define INVAR_CHOICES INVAR_CHOICES_WORDS
#define INVAR_CHOICE INVAR_CHOICE_WORD
#include "cli/bench/choices.def"
#undef INVAR_CHOICES
#undef INVAR_CHOICE

typedef struct shape {
    invar_model_spec spec;
    int64_t samples, length;   /* samples of a step and tokens of each */
    int64_t batch, context;    /* sequences and context of decoding and of a rollout */
    int64_t groups, group;     /* prompts of a rollout and samples of each */
    int64_t shortest, longest; /* response lengths of a rollout */
} shape;

#define QWEN                                                                                       \
    .vocab = 151936, .norm_eps = 1e-6f, .init_std = 0.02f, .head_dim = 128, .rope = {.theta = 1e6}
#define DEFAULT_SIZES                                                                              \
    .samples = 8, .length = 2048, .batch = 256, .context = 512, .groups = 256, .group = 8,         \
    .shortest = 100, .longest = 4000
#define TINY                                                                                       \
    .vocab = 512, .hidden = 128, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 64,           \
    .intermediate = 256, .max_positions = 1024, .norm_eps = 1e-6f, .init_std = 0.02f,              \
    .tied = true, .qk_norm = true, .rope = {.theta = 1e6}
#define TINY_DEFAULT_SIZES                                                                         \
    .samples = 2, .length = 32, .batch = 4, .context = 16, .groups = 4, .group = 2, .shortest = 5, \
    .longest = 40

static const shape shapes[INVAR_BENCH_SHAPE_COUNT] = {
    [INVAR_BENCH_SHAPE_QWEN3_0_6B] = {DEFAULT_SIZES,
                                      .spec = {QWEN, .family = INVAR_FAMILY_QWEN3, .hidden = 1024,
                                               .layers = 28, .heads = 16, .kv_heads = 8,
                                               .intermediate = 3072, .max_positions = 40960,
                                               .tied = true, .qk_norm = true}},
    [INVAR_BENCH_SHAPE_QWEN2_5_1_5B] = {DEFAULT_SIZES,
                                        .spec = {QWEN, .family = INVAR_FAMILY_QWEN2, .hidden = 1536,
                                                 .layers = 28, .heads = 12, .kv_heads = 2,
                                                 .intermediate = 8960, .max_positions = 32768,
                                                 .tied = true, .qkv_bias = true}},
    [INVAR_BENCH_SHAPE_QWEN3_8B] = {DEFAULT_SIZES,
                                    .spec = {QWEN, .family = INVAR_FAMILY_QWEN3, .hidden = 4096,
                                             .layers = 36, .heads = 32, .kv_heads = 8,
                                             .intermediate = 12288, .max_positions = 40960,
                                             .qk_norm = true}},
    [INVAR_BENCH_SHAPE_QWEN3_30B_A3B] =
        {DEFAULT_SIZES,
         .spec = {QWEN, .family = INVAR_FAMILY_QWEN3_MOE, .hidden = 2048, .layers = 48, .heads = 32,
                  .kv_heads = 4, .intermediate = 6144, .max_positions = 40960, .qk_norm = true,
                  .experts = 128, .experts_per_token = 8, .expert_intermediate = 768,
                  .normalize_experts = true}},
    [INVAR_BENCH_SHAPE_TINY] = {TINY_DEFAULT_SIZES, .spec = {TINY, .family = INVAR_FAMILY_QWEN3}},
    [INVAR_BENCH_SHAPE_TINY_MOE] = {TINY_DEFAULT_SIZES,
                                    .spec = {TINY, .family = INVAR_FAMILY_QWEN3_MOE, .experts = 8,
                                             .experts_per_token = 2, .expert_intermediate = 128,
                                             .normalize_experts = true}},
};

static shape find_shape(const invar_bench_model_options *o)
{
    shape found = shapes[o->model.value];

    if (o->layers)
        found.spec.layers = o->layers;
    found.spec.logical_tp = o->logical_tp;
    for (int64_t i = 0; i < found.spec.layers; i++)
        found.spec.sparse[i] = found.spec.experts > 0;
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
    shape shape;
    int64_t parameters;
    size_t masters, weights; /* bytes */
    invar_bench_train train;
    invar_bench_decode decode;
    invar_bench_rollout rollout;
    invar_bench_speculation speculation;
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

static void print_passes(const char *what, const invar_bench_passes *p, double seconds)
{
    printf("  %-38s %10.3f s  %12.0f tokens/s %6.1f %% of the time, %" PRId64 " passes\n", what,
           p->seconds, p->seconds > 0.0 ? (double)p->tokens / p->seconds : 0.0,
           100.0 * p->seconds / seconds, p->count);
}

/* Returns the tokens per second of decoding alone. */
static double steady_rate(const invar_bench_rollout *r)
{
    return (double)r->steady.batch / r->steady.seconds;
}

static void print_rollout(const model_results *a)
{
    const invar_bench_rollout *r = &a->rollout;

    printf("\nrollout, %" PRId64 " prompts of %" PRId64 " tokens x %" PRId64 " samples of %" PRId64
           " to %" PRId64 ", %" PRId64 " sequences at a time\n",
           r->groups, r->context, r->group, r->shortest, r->longest, r->batch);
    printf("  %-38s %10.3f s  %12.0f tokens/s\n", "all of it", r->seconds,
           (double)r->tokens / r->seconds);
    print_passes("passes that read prompts", &r->prompts, r->seconds);
    print_passes("passes with all sequences", &r->all, r->seconds);
    print_passes("passes with fewer", &r->fewer, r->seconds);
    printf("  %-38s %10" PRId64 " tokens\n", "computed again, for want of pages",
           r->recomputed_rows);
    printf("  decoding alone, context %-14" PRId64 " %10.3f ms %12.0f tokens/s; all of it: %.2f\n",
           r->steady.context, 1e3 * r->steady.seconds, steady_rate(r),
           (double)r->tokens / r->seconds / steady_rate(r));
    printf("  %-38s cache %.0f, activations %.0f\n", "MiB", to_mib(r->cache),
           to_mib(r->activations));
}

static void print_draft_result(const invar_bench_draft_result *g,
                               const invar_bench_draft_result *none)
{
    printf("  %-38" PRId64 " %10.3f ms %12.0f tokens/s %6.2f times, %" PRId64 " passes, %" PRId64
           " of %" PRId64 " guesses held\n",
           g->n_draft_tokens, 1e3 * g->seconds, (double)g->tokens / g->seconds,
           none->seconds / g->seconds, g->passes, g->accepted, g->drafted);
}

static void print_speculation(const model_results *a)
{
    static const char *const texts[INVAR_BENCH_TEXT_COUNT] = {
        [INVAR_BENCH_TEXT_TABLE] = "lines of a table",
        [INVAR_BENCH_TEXT_PROBLEMS] = "answers of word problems"};
    const invar_bench_speculation *s = &a->speculation;

    for (int text = 0; text < INVAR_BENCH_TEXT_COUNT; text++) {
        printf("\nspeculation, %s, %" PRId64 " sequences; tokens guessed at a time\n", texts[text],
               s->batch);
        for (int i = 0; i < INVAR_BENCH_DRAFTED; i++)
            print_draft_result(&s->drafted[text][i], &s->drafted[text][0]);
    }
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

static void json_profile(const invar_bench_profile *p)
{
    if (!p->rows)
        return;
    printf(", \"profile\": {\"seconds\": %.9g, \"rounds\": %" PRId64 ", \"rows\": [", p->seconds,
           p->rounds);
    for (int64_t i = 0; i < p->count; i++)
        printf("%s\n    {\"op\": \"%s\", \"shape\": \"%s\", \"calls\": %" PRId64
               ", \"seconds\": %.9g}",
               i ? "," : "", p->rows[i].name, p->rows[i].shape, p->rows[i].calls,
               p->rows[i].seconds);
    printf("]}");
}

static void json_head(const model_results *a)
{
    printf("{\n  \"model\": \"%s\", \"dtype\": \"%s\", \"numerics\": \"%s\", \"device\": \"%s\", "
           "\"layers\": %" PRId64 ", \"parameters\": %" PRId64
           ",\n  \"bytes\": {\"masters\": %zu, \"weights\": %zu}",
           invar_bench_shape_choices.words[a->options->model.value],
           invar_format_name(a->model->format), invar_numerics_name(a->dev->numerics),
           invar_device_kind_choices.words[a->options->device], a->model->spec.layers,
           a->parameters, a->masters, a->weights);
}

static void json_record(const char *level, const invar_bench_record *r, const char *then)
{
    printf("\"%s\": {\"seconds\": %.9g, \"points\": %" PRId64 "}%s", level, r->seconds, r->points,
           then);
}

static void json_train(const model_results *a)
{
    const invar_bench_train *t = &a->train;

    printf(",\n  \"train\": {\"samples\": %" PRId64 ", \"length\": %" PRId64
           ", \"seconds\": %.9g, \"tokens_per_second\": %.9g, \"flops\": %.9g, "
           "\"grad_norm\": %.9g, \"recorded\": {",
           t->samples, t->length, t->seconds, (double)(t->samples * t->length) / t->seconds,
           t->flop, t->norm);
    json_record("step", &t->recorded[INVAR_PROBE_STEP], ", ");
    json_record("point", &t->recorded[INVAR_PROBE_POINT], ", ");
    json_record("full", &t->recorded[INVAR_PROBE_FULL], "}");
    if (a->options->offload)
        printf(", \"optimizer_on_host\": true");
    printf(", \"bytes\": {\"gradients\": %zu, \"optimizer\": %zu, \"activations\": %zu, "
           "\"head\": %zu, \"scratch\": %zu}",
           t->gradients, t->optimizer, t->activations, t->head, t->scratch);
    json_profile(&t->profile);
    printf("}");
}

static void json_decode(const model_results *a)
{
    const invar_bench_decode *d = &a->decode;

    printf(",\n  \"decode\": {\"batch\": %" PRId64 ", \"context\": %" PRId64
           ", \"last_context\": %" PRId64 ", \"seconds\": %.9g, \"tokens_per_second\": %.9g, "
           "\"prefill_seconds\": %.9g",
           d->batch, d->context, d->last_context, d->seconds, (double)d->batch / d->seconds,
           d->prefill_seconds);
    printf(", \"bytes\": {\"cache\": %zu, \"activations\": %zu}", d->cache, d->activations);
    json_profile(&d->profile);
    printf("}");
}

static void json_passes(const char *name, const invar_bench_passes *p)
{
    printf(", \"%s\": {\"passes\": %" PRId64 ", \"tokens\": %" PRId64 ", \"seconds\": %.9g}", name,
           p->count, p->tokens, p->seconds);
}

static void json_rollout(const model_results *a)
{
    const invar_bench_rollout *r = &a->rollout;

    printf(",\n  \"rollout\": {\"prompts\": %" PRId64 ", \"samples\": %" PRId64
           ", \"batch\": %" PRId64 ", \"context\": %" PRId64 ", \"shortest\": %" PRId64
           ", \"longest\": %" PRId64 ", \"tokens\": %" PRId64
           ", \"seconds\": %.9g, \"tokens_per_second\": %.9g",
           r->groups, r->group, r->batch, r->context, r->shortest, r->longest, r->tokens,
           r->seconds, (double)r->tokens / r->seconds);
    json_passes("reading_prompts", &r->prompts);
    json_passes("all_sequences", &r->all);
    json_passes("fewer_sequences", &r->fewer);
    printf(", \"tokens_again\": %" PRId64 ", \"decoding_alone\": {\"context\": %" PRId64
           ", \"seconds\": %.9g, \"tokens_per_second\": %.9g}",
           r->recomputed_rows, r->steady.context, r->steady.seconds, steady_rate(r));
    printf(", \"bytes\": {\"cache\": %zu, \"activations\": %zu}}", r->cache, r->activations);
}

static void json_speculation(const model_results *a)
{
    const invar_bench_speculation *s = &a->speculation;

    printf(",\n  \"speculation\": {\"batch\": %" PRId64, s->batch);
    for (int text = 0; text < INVAR_BENCH_TEXT_COUNT; text++) {
        printf(", \"%s\": [", invar_bench_text_choices.words[text]);
        for (int i = 0; i < INVAR_BENCH_DRAFTED; i++) {
            const invar_bench_draft_result *g = &s->drafted[text][i];
            printf("%s{\"tokens_at_a_time\": %" PRId64 ", \"tokens\": %" PRId64
                   ", \"passes\": %" PRId64 ", \"drafted\": %" PRId64 ", \"accepted\": %" PRId64
                   ", \"seconds\": %.9g}",
                   i ? ", " : "", g->n_draft_tokens, g->tokens, g->passes, g->drafted, g->accepted,
                   g->seconds);
        }
        printf("]");
    }
    printf("}");
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Returns true if a part is measured. Rollout and speculation take long and run only on request. */
static bool part_is_selected(const invar_bench_model_options *o, invar_bench_part part)
{
    return o->only.value < 0 ? part < INVAR_BENCH_PART_ROLLOUT : o->only.value == (int)part;
}

/* Prints the results of each part before the next one starts. */
static invar_status measure_parts(model_results *a, const invar_bench_subject *subject)
{
    const invar_bench_model_options *o = a->options;

    if (part_is_selected(o, INVAR_BENCH_PART_TRAIN)) {
        INVAR_TRY(invar_bench_train_run(&a->train, subject));
        (o->json ? json_train : print_train)(a);
        fflush(stdout);
    }
    if (part_is_selected(o, INVAR_BENCH_PART_DECODE)) {
        INVAR_TRY(invar_bench_decode_run(&a->decode, subject));
        (o->json ? json_decode : print_decode)(a);
    }
    if (part_is_selected(o, INVAR_BENCH_PART_ROLLOUT)) {
        a->rollout = (invar_bench_rollout){.groups = a->shape.groups,
                                           .group = a->shape.group,
                                           .batch = a->decode.batch,
                                           .context = a->decode.context,
                                           .shortest = a->shape.shortest,
                                           .longest = a->shape.longest};
        INVAR_TRY(invar_bench_rollout_run(&a->rollout, subject));
        (o->json ? json_rollout : print_rollout)(a);
    }
    if (part_is_selected(o, INVAR_BENCH_PART_SPECULATION)) {
        a->speculation = (invar_bench_speculation){.batch = o->batch ? o->batch : FEW_SEQUENCES};
        INVAR_TRY(invar_bench_speculation_run(&a->speculation, subject));
        (o->json ? json_speculation : print_speculation)(a);
    }
    return INVAR_OK;
}

static invar_status measure_model(model_results *a, const invar_bench_subject *subject)
{
    const invar_bench_model_options *o = a->options;
    invar_status status;

    a->model = subject->model;
    a->dev = &subject->dev;
    count_parameters(a);
    (o->json ? json_head : print_head)(a);
    status = measure_parts(a, subject);
    if (!o->json)
        return status;
    if (status != INVAR_OK) {
        printf(",\n  \"error\": ");
        invar_safe_text_print_json(stdout, invar_error_last()->message);
    }
    printf("\n}\n");
    return status;
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
    subject->dev.backend = invar_profiling_backend_backend(subject->profiler);
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
    model_results a = {.options = options, .shape = find_shape(options)};
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
