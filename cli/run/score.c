/*
 * score.c - invar score: log-probs of given tokens, with one of three forward passes.
 *
 * Reads lines {"tokens":[...]} and prints {"logprobs":[...],"bits":["bf3a41c2",...]} for each: the
 * log-prob of every token except the first, as numbers and as bits. Mode, batch size, prefill chunk
 * and threads change none of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "cli/ledger/ledger.h"
#include "cli/recipe_flags.h"
#include "cli/run/logprobs.h"
#include "cli/run/weights.h"
#include "cli/safe_text.h"
#include "engine/run/context/run_context.h"
#include "engine/train/trainer.h"

#include "base/invar_banned.h"

#define MAX_BYTES ((size_t)1 << 30)

enum { MODE_TRAIN, MODE_PREFILL, MODE_DECODE, MODES };

static const char *const mode_words[MODES] = {
    [MODE_TRAIN] = "train", [MODE_PREFILL] = "prefill", [MODE_DECODE] = "decode"};
static const invar_choices modes = {mode_words, MODES};

typedef struct settings {
    const char *tokens;
    invar_option_choice mode;
    int64_t batch_size;
    int64_t chunk;
    bool json;
} settings;

static settings asked = {.mode = {&modes, MODE_TRAIN}};

/* Lines of the file, as samples whose prompt is their first token. */
typedef struct scored_lines {
    invar_rl_samples samples;
    float **logp; /* (count) n_tokens - 1 values each; owned */
} scored_lines;

static void release_lines(scored_lines *l)
{
    for (int64_t i = 0; l->logp && i < l->samples.count; i++)
        invar_free(l->logp[i]);
    invar_free(l->logp);
    invar_rl_samples_reset(&l->samples);
}

/* ---- reading --------------------------------------------------------------------------------- */

static invar_status read_token(int32_t *out, const json_t *id, size_t i, const char *where,
                               const invar_model_spec *spec)
{
    const json_int_t value = json_integer_value(id);

    if (!json_is_integer(id))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: \"tokens\"[%zu] is no integer: give ids of tokens", where, i);
    if (value < 0 || value >= spec->vocab)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: \"tokens\"[%zu] is %lld; this model's tokens are 0 to %" PRId64
                          ": make the ids with its own tokenizer",
                          where, i, (long long)value, spec->vocab - 1);
    *out = (int32_t)value;
    return INVAR_OK;
}

static invar_status read_tokens(invar_rl_sample *s, const json_t *tokens, const char *where,
                                const invar_model_spec *spec)
{
    size_t count = json_array_size(tokens);

    if (!json_is_array(tokens) || count == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: \"tokens\" is %s; a line is {\"tokens\": [1, 2, 3]}", where,
                          !tokens                 ? "missing"
                          : json_is_array(tokens) ? "empty"
                                                  : "no list");
    if (count > (size_t)spec->max_positions)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: %zu tokens; the model takes %" PRId64 " at most", where, count,
                          spec->max_positions);
    INVAR_TRY(INVAR_ALLOC(s->tokens, count, "tokens"));
    for (size_t i = 0; i < count; i++)
        INVAR_TRY(read_token(&s->tokens[i], json_array_get(tokens, i), i, where, spec));
    s->prompt_tokens = 1;
    s->n_tokens = (int64_t)count;
    return INVAR_OK;
}

static invar_status read_line(scored_lines *l, const char *name, int64_t number, const char *text,
                              size_t bytes, const invar_model_spec *spec)
{
    char where[INVAR_PATH_SIZE];
    invar_rl_sample *s;
    invar_status status;
    json_t *object;

    (void)snprintf(where, sizeof where, "%.*s:%" PRId64, 4000, name, number);
    // raw, because texts may contain any bytes
    INVAR_TRY(invar_json_parse_raw(&object, where, text, bytes));
    status = invar_rl_samples_append(&s, &l->samples);
    if (status == INVAR_OK) {
        s->index = number - 1;
        status = read_tokens(s, json_object_get(object, "tokens"), where, spec);
    }
    json_decref(object);
    return status;
}

static invar_status read_lines(scored_lines *l, const char *path, const invar_model_spec *spec)
{
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    invar_status status = INVAR_OK;
    char *text = NULL;
    size_t bytes;
    int64_t number = 0;

    INVAR_TRY(invar_file_read_stream(&text, &bytes, path, MAX_BYTES));
    while (bytes > 0 && text[bytes - 1] == '\n') // empty lines are allowed only at the end
        bytes--;
    for (char *line = text, *end = text + bytes; line < end && status == INVAR_OK;) {
        char *newline = memchr(line, '\n', (size_t)(end - line));
        char *stop = newline ? newline : end;
        status = read_line(l, name, ++number, line, (size_t)(stop - line), spec);
        line = stop + 1;
    }
    invar_free(text);
    if (status == INVAR_OK && l->samples.count == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%.1000s has no line to score", name);
    return status;
}

static invar_status alloc_logprobs(scored_lines *l)
{
    INVAR_TRY(INVAR_ALLOC_ZEROED(l->logp, (size_t)l->samples.count, "log-probabilities"));
    for (int64_t i = 0; i < l->samples.count; i++)
        INVAR_TRY(INVAR_ALLOC_SIZED(l->logp[i], (size_t)l->samples.items[i].n_tokens - 1,
                                    sizeof **l->logp, "log-probabilities"));
    return INVAR_OK;
}

/* ---- scoring --------------------------------------------------------------------------------- */

/* Scores with the training forward pass, which needs samples with at least two tokens. */
static invar_status score_by_training(scored_lines *l, const invar_run_context *s, int64_t batch,
                                      float temperature)
{
    invar_trainer_options o = {.plan = {.unit_rows = 1, .unit_count = 1, .micro_batch = batch},
                               .temperature = temperature};
    invar_trainer *trainer = NULL;
    invar_status status;

    INVAR_TRY(invar_trainer_new(&trainer, &s->dev, &o));
    status = INVAR_OK;
    for (int64_t i = 0; i < l->samples.count && status == INVAR_OK;) {
        int64_t count = 0, tokens = 0;
        float *flat = NULL;

        while (i + count < l->samples.count && l->samples.items[i + count].n_tokens > 1)
            tokens += l->samples.items[i + count++].n_tokens - 1;
        if (count == 0) {
            i++;
            continue;
        }
        status = INVAR_ALLOC(flat, (size_t)tokens, "log-probabilities");
        if (status == INVAR_OK)
            status = invar_trainer_score(trainer, s->models.actor, l->samples.items + i, count,
                                         flat, NULL);
        for (int64_t j = 0, at = 0; j < count && status == INVAR_OK; j++) {
            int64_t n = l->samples.items[i + j].n_tokens - 1;
            memcpy(l->logp[i + j], flat + at, (size_t)n * sizeof *flat);
            at += n;
        }
        invar_free(flat);
        i += count;
    }
    invar_trainer_free(trainer);
    return status;
}

static invar_status score_by_rollout(scored_lines *l, const invar_run_context *s, int64_t batch,
                                     int64_t chunk, float temperature)
{
    invar_rollout_exec_options limits = invar_run_context_limits(s);
    int64_t count = l->samples.count, *n = NULL;
    const int32_t **tokens = NULL;
    invar_rollout *rollout = NULL;
    invar_status status;

    limits.concurrency = batch;
    limits.prefill_chunk = chunk;
    status = INVAR_ALLOC(n, (size_t)count, "lengths");
    if (status == INVAR_OK)
        status = INVAR_ALLOC(tokens, (size_t)count, "sequences");
    if (status == INVAR_OK) {
        for (int64_t i = 0; i < count; i++) {
            n[i] = l->samples.items[i].n_tokens;
            tokens[i] = l->samples.items[i].tokens;
        }
        status = invar_rollout_new(&rollout, s->models.actor, NULL, &s->dev, &limits);
    }
    if (status == INVAR_OK)
        status = invar_rollout_score(rollout, tokens, n, count, temperature, l->logp);
    invar_rollout_free(rollout);
    invar_free(tokens);
    invar_free(n);
    return status;
}

static invar_status score_lines(scored_lines *l, const invar_run_context *s, const settings *set)
{
    float temperature = (float)s->config->rollout_temperature;

    if (set->mode.value == MODE_TRAIN)
        return score_by_training(l, s, set->batch_size ? set->batch_size : 1, temperature);
    return score_by_rollout(l, s, set->batch_size, set->mode.value == MODE_DECODE ? 1 : set->chunk,
                            temperature);
}

/* ---- printing -------------------------------------------------------------------------------- */

static invar_status print_json(const scored_lines *l)
{
    invar_json_text line = {0};
    invar_status status = INVAR_OK;

    for (int64_t i = 0; i < l->samples.count && status == INVAR_OK; i++) {
        invar_json_text_open(&line, '{');
        invar_logprobs_put(&line, l->logp[i], l->samples.items[i].n_tokens - 1);
        invar_json_text_close(&line, '}');
        status = invar_logprobs_end(stdout, &line);
    }
    invar_json_text_release(&line);
    return status;
}

static void print_table(const scored_lines *l, const invar_run_context *s)
{
    char weights[INVAR_DIGEST_HEX_SIZE], from[INVAR_WEIGHTS_FROM_SIZE];

    invar_digest_format(weights, &s->weights);
    invar_weights_from(from, s);
    printf("line    tokens  log-prob        per token\n");
    for (int64_t i = 0; i < l->samples.count; i++) {
        int64_t n = l->samples.items[i].n_tokens - 1;
        double sum = 0.0;
        for (int64_t j = 0; j < n; j++)
            sum += (double)l->logp[i][j];
        printf("%-7" PRId64 " %-7" PRId64 " %-15.6f %.6f\n", l->samples.items[i].index + 1, n + 1,
               sum, n ? sum / (double)n : 0.0);
    }
    printf("\nweights %s\nfrom    ", weights);
    invar_safe_text_print(stdout, from);
    putchar('\n');
}

/* ---- the command ----------------------------------------------------------------------------- */

static invar_status run_score(const settings *set, const invar_config *config)
{
    invar_run_context session;
    scored_lines l = {0};
    invar_status status;

    if (!set->tokens)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--tokens FILE is missing");
    INVAR_TRY(invar_run_context_open(&session, config, INVAR_RUN_CONTEXT_NO_TOKENIZER));
    status = invar_run_context_load_newest(&session);
    if (status == INVAR_OK)
        status = read_lines(&l, set->tokens, &session.spec);
    if (status == INVAR_OK)
        status = alloc_logprobs(&l);
    if (status == INVAR_OK)
        status = score_lines(&l, &session, set);
    if (status == INVAR_OK && set->json)
        status = print_json(&l);
    else if (status == INVAR_OK)
        print_table(&l, &session);
    release_lines(&l);
    invar_run_context_close(&session);
    return status;
}

static const invar_option options[] = {
    {"tokens", INVAR_OPTION_TEXT, &asked.tokens, "FILE",
     "file with lines {\"tokens\":[...]}; - reads standard input", 0, 0},
    {"mode", INVAR_OPTION_WORD, &asked.mode, "MODE", "which forward pass", 0, 0},
    {"batch-size", INVAR_OPTION_INT, &asked.batch_size, "N",
     "number of sequences in a batch (0: as many as fit)", 0, 65536},
    {"chunk", INVAR_OPTION_INT, &asked.chunk, "N", "number of prefill tokens in one pass (0: 512)",
     0, 1 << 24},
    INVAR_OPTION_JSON(&asked.json),
    INVAR_RECIPE_FLAGS_END};

static int cmd_score(int argc, char **argv)
{
    invar_config config = {.recipe = NULL};
    const char *path = NULL;
    invar_status status = invar_recipe_flags_model(&config, &path, options, &argc, argv);

    if (status == INVAR_OK)
        status = invar_weights_choose(&config);
    if (status == INVAR_OK)
        status = run_score(&asked, &config);
    if (status == INVAR_OK && path)
        invar_weights_hint(&config, path);
    invar_recipe_free(config.recipe);
    return invar_exit(status);
}

const invar_cli_command invar_cmd_score = {
    .name = "score",
    .summary = "compute log-probabilities of given tokens",
    .run = cmd_score,
    .about =
        "Computes the log-probabilities of given tokens. The training forward pass, prefill in\n"
        "any chunking and decoding token by token give the same bits.\n"
        "\n"
        "The model comes from a recipe, from its keys as options (--hf-checkpoint DIR, --dtype,\n"
        "--numerics with a default of ieee, --threads, --rollout-temperature), or from both. The\n"
        "weights come from --load DIR; otherwise from the newest checkpoint of --run DIR\n"
        "(--ckpt-step picks another); otherwise they are the initial ones.\n",
    .options = options,
    .result = "{logprobs [real/text] (of each token but the first; one that is not finite is a"
              " string), bits [hex8] (the same as binary32)}"
              " (one line of output: each is an object)",
    .arguments = "[RECIPE] --hf-checkpoint DIR --tokens FILE "
                 "[--option value ...]"};
