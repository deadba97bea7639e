/*
 * sampling.c - bench.sampling: whole rollouts, and speculative decoding, of a model of invar bench.
 *
 *     bench.sampling --only rollout|speculation --model SHAPE [--device cuda] [--option value ...]
 *
 * Options are those of invar bench --model. The results are printed as JSON.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/bench/sampling/sampling.h"

#include <stdio.h>

#include "base/json/result.h"
#include "base/process/argv0.h"

enum { ROLLOUT, SPECULATION, PARTS };

static const char *const part_words[PARTS] = {[ROLLOUT] = "rollout", [SPECULATION] = "speculation"};
static const invar_choices parts = {part_words, PARTS};

/* ---- rollout --------------------------------------------------------------------------------- */

#define PASSES "{passes int, tokens int, seconds real}"
#define ALONE "{context int, seconds real, tokens_per_second real}"
#define ROLLOUT_RESULT                                                                             \
    "{prompts int, samples int, batch int, context int, shortest int, longest int, tokens int,"    \
    " seconds real, tokens_per_second real, reading_prompts " PASSES ", all_sequences " PASSES     \
    ", fewer_sequences " PASSES ", tokens_again int, decoding_alone " ALONE                        \
    ", of_decoding_alone real, bytes " INVAR_BENCH_DECODE_BYTES "}"

static json_t *passes_json(const invar_bench_passes *p)
{
    return INVAR_RESULT(PASSES, p->count, p->tokens, p->seconds);
}

static invar_status measure_rollout(json_t **out, const invar_bench_subject *on,
                                    const invar_bench_decode *sizes, bool tiny)
{
    invar_bench_rollout r = {.groups = tiny ? 4 : 256,
                             .group = tiny ? 2 : 8,
                             .batch = sizes->batch,
                             .context = sizes->context,
                             .shortest = tiny ? 5 : 100,
                             .longest = tiny ? 40 : 4000};
    double rate, alone;

    INVAR_TRY(invar_bench_rollout_run(&r, on));
    rate = (double)r.tokens / r.seconds;
    alone = (double)r.steady.batch / r.steady.seconds;
    *out = INVAR_RESULT(
        ROLLOUT_RESULT, r.groups, r.group, r.batch, r.context, r.shortest, r.longest, r.tokens,
        r.seconds, rate, passes_json(&r.prompts), passes_json(&r.all), passes_json(&r.fewer),
        r.recomputed_rows, INVAR_RESULT(ALONE, r.steady.context, r.steady.seconds, alone),
        rate / alone, INVAR_RESULT(INVAR_BENCH_DECODE_BYTES, r.cache, r.activations));
    return INVAR_OK;
}

/* ---- speculation ----------------------------------------------------------------------------- */

#define DRAFTS                                                                                     \
    "{tokens_at_a_time int, tokens int, passes int, drafted int, accepted int, seconds real,"      \
    " times real}"

static json_t *drafts_json(const invar_bench_draft_result *text)
{
    json_t *list = json_array();

    for (const invar_bench_draft_result *g = text; g < text + INVAR_BENCH_DRAFTED; g++)
        (void)json_array_append_new(list, INVAR_RESULT(DRAFTS, g->n_draft_tokens, g->tokens,
                                                       g->passes, g->drafted, g->accepted,
                                                       g->seconds, text->seconds / g->seconds));
    return list;
}

static invar_status measure_speculation(json_t **out, const invar_bench_subject *on, int64_t batch)
{
    enum { FEW_SEQUENCES = 8 }; // at which a GPU has spare time for drafts
    invar_bench_speculation s = {.batch = batch ? batch : FEW_SEQUENCES};

    INVAR_TRY(invar_bench_speculation_run(&s, on));
    *out = INVAR_RESULT("{batch int, table [" DRAFTS "], problems [" DRAFTS "]}", s.batch,
                        drafts_json(s.drafted[INVAR_BENCH_TEXT_TABLE]),
                        drafts_json(s.drafted[INVAR_BENCH_TEXT_PROBLEMS]));
    return INVAR_OK;
}

/* ---- the program ----------------------------------------------------------------------------- */

static invar_status measure(json_t **out, const invar_bench_model_options *o, int part)
{
    bool tiny = o->model.value >= (int)INVAR_BENCH_SHAPE_TINY;
    invar_bench_subject subject = {.repetitions = 0};
    const invar_backend *backend;
    invar_bench_decode decode;
    invar_bench_train train;
    invar_status status;

    if (o->model.value < 0 || part < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "expected --model SHAPE and --only PART");
    INVAR_TRY(invar_bench_apply_options(&train, &decode, o));
    INVAR_TRY(invar_backend_find(&backend, o->device));
    status = invar_bench_open(&subject, o, backend);
    if (status == INVAR_OK)
        status = part == ROLLOUT ? measure_rollout(out, &subject, &decode, tiny)
                                 : measure_speculation(out, &subject, o->batch);
    invar_bench_close(&subject);
    return status;
}

int main(int argc, char **argv)
{
    invar_bench_model_options model = INVAR_BENCH_MODEL_DEFAULTS;
    invar_option_choice device = {&invar_device_kind_choices, INVAR_DEVICE_CPU},
                        only = {&parts, -1};
    const invar_option options[] = {
        {"device", INVAR_OPTION_WORD, &device, "DEVICE", "where to run", 0, 0},
        INVAR_OPTION_THREADS(&model.threads, "threads"),
        // the first --only of the list is found
        {"only", INVAR_OPTION_WORD, &only, "PART", "what to measure", 0, 0},
        INVAR_BENCH_MODEL_OPTIONS(model),
        {0}};
    json_t *out = NULL;
    invar_status status;

    invar_argv0_set(argv[0]);
    model.threads = invar_default_threads();
    status = invar_options_parse(options, argc - 1, argv + 1);
    model.device = (invar_device_kind)device.value;
    if (status == INVAR_OK)
        status = measure(&out, &model, only.value);
    if (status == INVAR_OK)
        status = invar_json_write(stdout, out);
    return invar_exit(status);
}
