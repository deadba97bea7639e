/*
 * generate.c - invar generate: completes prompts, or regenerates one recorded sample.
 *
 * A completion depends on the weights, the prompt, the sampling settings and its random
 * coordinates: the seed and the number of the draw. Prompts run in batches, which change no bit,
 * and are printed when their batch ends. A regenerated sample is compared with the ledger.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "base/text.h"
#include "cli/interactive.h"
#include "cli/ledger/ledger.h"
#include "cli/recipe_flags.h"
#include "cli/run/logprobs.h"
#include "cli/run/weights.h"
#include "cli/safe_text.h"
#include "engine/run/replay/regenerate.h"
#include "engine/sample/source/generate.h"
#include "engine/sample/source/source.h"

#include "base/invar_banned.h"

#define BATCH 64         /* samples in a batch, unless one prompt has more */
#define MAX_RESPONSE 256 /* response tokens if the recipe sets no limit */

typedef struct settings {
    const char *prompt;
    const char *prompts;
    const char *sample;
    int64_t n; /* 0 if not given, which means 1 */
    bool json;
} settings;

static settings asked;

/* Result of comparing a regenerated sample with the ledger. */
typedef enum verdict {
    VERDICT_NONE,
    VERDICT_IDENTICAL,
    VERDICT_DIFFERENT,
    VERDICT_MISSING
} verdict;

static const char *const verdict_names[] = {
    [VERDICT_NONE] = "",
    [VERDICT_IDENTICAL] = "identical",
    [VERDICT_DIFFERENT] = "different",
    [VERDICT_MISSING] = "missing",
};

/* Compared parts of a sample. */
enum { PART_PROMPT, PART_TOKENS, PART_LOGP, PARTS };

static const char *const part_names[PARTS] = {
    [PART_PROMPT] = "prompt", [PART_TOKENS] = "tokens", [PART_LOGP] = "log-probabilities"};

/* Result of the comparison, and which parts differ. */
typedef struct comparison {
    invar_digest ours[PARTS];
    bool differs[PARTS];
    verdict found;
} comparison;

/* ---- printing -------------------------------------------------------------------------------- */

/* Prints a text escaped for the terminal. Newlines stay newlines. */
static invar_status print_text(const char *text, size_t bytes)
{
    size_t size = 4 * bytes + 1;
    char *safe = NULL;

    INVAR_TRY(INVAR_ALLOC(safe, size, "a text to show"));
    for (const char *line = text, *end = text + bytes; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const char *stop = newline ? newline : end;

        invar_text_escape(safe, size, line, (size_t)(stop - line));
        puts(safe);
        line = stop + 1;
    }
    if (bytes == 0)
        putchar('\n');
    invar_free(safe);
    return INVAR_OK;
}

static void put_string(invar_json_text *line, const char *key, const char *text, size_t bytes)
{
    invar_json_text_key(line, key);
    invar_json_text_string(line, text, bytes);
}

static void put_digest(invar_json_text *line, const char *key, const invar_digest *digest)
{
    invar_json_text_key(line, key);
    invar_json_text_digest(line, digest);
}

static void put_int(invar_json_text *line, const char *key, int64_t value)
{
    invar_json_text_key(line, key);
    invar_json_text_int(line, value);
}

static void put_differences(invar_json_text *line, const comparison *c)
{
    invar_json_text_key(line, "differs");
    invar_json_text_open(line, '[');
    for (int i = 0; i < PARTS; i++)
        if (c->differs[i])
            invar_json_text_string(line, part_names[i], strlen(part_names[i]));
    invar_json_text_close(line, ']');
}

/* Prints a sample as JSON. "tokens" includes the prompt, so that `invar score` accepts the line. */
static invar_status print_json(const invar_rl_sample *s, uint32_t seed, const comparison *c)
{
    const char *finish = invar_finish_name(s->finish);
    const invar_rng_coords at = invar_rng_coords_of(s, seed, INVAR_PURPOSE_TRAIN);
    char coords[INVAR_RNG_COORDS_SIZE];
    invar_json_text line = {0};
    invar_status status;

    invar_rng_coords_format(coords, &at);
    invar_json_text_open(&line, '{');
    put_int(&line, "prompt", s->data.line);
    put_int(&line, "prompt_tokens", s->prompt_tokens);
    invar_json_text_key(&line, "tokens");
    invar_json_text_ints(&line, s->tokens, s->n_tokens);
    invar_logprobs_put(&line, s->logp, invar_rl_sample_response(s));
    put_string(&line, "text", s->response ? s->response : "", s->response_bytes);
    put_string(&line, "finish", finish, strlen(finish));
    put_string(&line, "coords", coords, strlen(coords));
    put_digest(&line, "weights", &s->weights.hash);
    put_digest(&line, "prompt_hash", &s->data.hash);
    if (c && c->found != VERDICT_NONE)
        put_string(&line, "ledger", verdict_names[c->found], strlen(verdict_names[c->found]));
    if (c && c->found == VERDICT_DIFFERENT)
        put_differences(&line, c);
    invar_json_text_close(&line, '}');
    status = invar_logprobs_end(stdout, &line);
    invar_json_text_release(&line);
    return status;
}

/* Prints a sample. If it is the only one, its text is printed without a heading. */
static invar_status print_sample(const invar_rl_sample *s, bool alone)
{
    bool color = invar_term_has_color(stdout);

    if (!alone)
        printf("%sprompt %" PRId64 ", draw %" PRIu32 ": %s after %" PRId64 " token%s%s\n",
               invar_term_escape(color, INVAR_TERM_STYLE_BOLD), s->data.line, s->draw_index,
               invar_finish_name(s->finish), invar_rl_sample_response(s),
               invar_text_plural(invar_rl_sample_response(s)),
               invar_term_escape(color, INVAR_TERM_STYLE_PLAIN));
    return print_text(s->response ? s->response : "", s->response_bytes);
}

/* Prints the origin of the weights to stderr, because stdout may consist of one text only. */
static void print_weights_origin(const invar_run_context *session)
{
    char from[INVAR_WEIGHTS_FROM_SIZE], line[INVAR_WEIGHTS_FROM_SIZE + 16];

    invar_weights_from(from, session);
    (void)snprintf(line, sizeof line, "weights from %s", from);
    invar_interactive_print(NULL, line);
}

/* ---- prompts --------------------------------------------------------------------------------- */

typedef struct generate_job {
    const settings *set;
    const invar_run_context *session;
    const invar_dataset *data;
    invar_rollout *rollout;
    invar_sampling_params sampling;
    invar_multi_turn turns;
    int64_t n; /* samples per prompt */
    invar_spec_decode_stats speculated;
} generate_job;

/* Appends the samples of prompt i. */
static invar_status add_prompt_samples(invar_rl_samples *to, const generate_job *g, int64_t i)
{
    int64_t n = g->n;

    for (int64_t j = 0; j < n; j++) {
        invar_rl_sample *s;

        INVAR_TRY(invar_rl_samples_append(&s, to));
        s->index = i * n + j;
        s->group = i;
        s->draw_index = (uint32_t)s->index;
        s->weights.hash = g->session->weights;
        INVAR_TRY(invar_sample_source_init_sample(s, invar_dataset_prompt(g->data, i)));
    }
    return INVAR_OK;
}

/*
 * Samples a batch, turn by turn with the plug-in of the recipe if there is one. Rewards are not
 * computed.
 */
static invar_status sample_batch(const generate_job *g, invar_rl_samples *batch)
{
    const invar_generate_args how = {
        .rollout = g->rollout, .sampling = g->sampling, .turns = g->turns, .per_prompt = 1};

    if (!g->turns.enabled)
        return invar_rollout_run(g->rollout, batch->items, batch->count, &g->sampling, NULL, NULL);
    return invar_generate(&how, batch->items, batch->count);
}

static invar_status run_batch(generate_job *g, invar_rl_samples *batch)
{
    bool alone = invar_dataset_size(g->data) * g->n == 1;
    invar_spec_decode_stats sum;

    INVAR_TRY(sample_batch(g, batch));
    sum = invar_spec_decode_stats_sum(batch->items, batch->count);
    g->speculated.passes += sum.passes;
    g->speculated.drafted += sum.drafted;
    g->speculated.accepted += sum.accepted;
    for (int64_t i = 0; i < batch->count; i++)
        INVAR_TRY(g->set->json ? print_json(&batch->items[i], g->sampling.seed, NULL)
                               : print_sample(&batch->items[i], alone));
    (void)fflush(stdout);
    return INVAR_OK;
}

/* Prints the statistics of speculative decoding to stderr. */
static void print_draft_stats(const invar_spec_decode_stats *s)
{
    char line[160];

    if (s->drafted == 0)
        return;
    (void)snprintf(line, sizeof line,
                   "speculation: %" PRId64 " of %" PRId64 " guessed tokens were drawn, %.2f tokens "
                   "a pass",
                   s->accepted, s->drafted, 1.0 + (double)s->accepted / (double)s->passes);
    invar_interactive_print(NULL, line);
}

static invar_status run_prompts(generate_job *g)
{
    int64_t prompts = invar_dataset_size(g->data);

    for (int64_t i = 0; i < prompts;) {
        invar_rl_samples batch = {0};
        invar_status status = INVAR_OK;

        do
            status = add_prompt_samples(&batch, g, i++);
        while (status == INVAR_OK && i < prompts && batch.count + g->n <= BATCH);
        if (status == INVAR_OK)
            status = run_batch(g, &batch);
        invar_rl_samples_reset(&batch);
        INVAR_TRY(status);
    }
    return INVAR_OK;
}

static invar_status complete_prompts(const settings *set, invar_run_context *session,
                                     invar_plugin *leader)
{
    invar_rollout_exec_options limits = invar_run_context_limits(session);
    generate_job g = {
        .set = set,
        .session = session,
        .sampling = invar_run_context_sampling(session),
        .turns = invar_multi_turn_read(session->config, leader, &session->spec, session->tokenizer),
        .n = set->n ? set->n : 1};
    invar_dataset *data = NULL;
    invar_status status;

    if (g.sampling.max_response == 0)
        g.sampling.max_response = MAX_RESPONSE;
    INVAR_TRY(
        invar_run_context_check_sampling(session, INVAR_KEY_ROLLOUT_MAX_RESPONSE_LEN, &g.sampling));
    INVAR_TRY(invar_run_context_load_newest(session));
    if (!set->json)
        print_weights_origin(session);
    INVAR_TRY(set->prompt ? invar_run_context_prompt(&data, session, set->prompt)
                          : invar_run_context_data(&data, session, set->prompts, false));
    g.data = data;
    if (invar_dataset_dropped_count(data))
        fprintf(stderr, "invar: %" PRId64 " prompt%s left out: too long\n",
                invar_dataset_dropped_count(data),
                invar_dataset_dropped_count(data) == 1 ? " was" : "s were");
    status = invar_rollout_new(&g.rollout, invar_model_set_sampler(&session->models),
                               session->tokenizer, &session->dev, &limits);
    if (status == INVAR_OK)
        status = run_prompts(&g);
    if (status == INVAR_OK && !set->json)
        print_draft_stats(&g.speculated);
    invar_rollout_free(g.rollout);
    invar_dataset_close(data);
    return status;
}

/* ---- a recorded sample ----------------------------------------------------------------------- */

static bool digest_matches(const invar_ledger_value *value, const invar_digest *digest)
{
    return value->bytes == sizeof digest->bytes &&
           memcmp(value->data, digest->bytes, sizeof digest->bytes) == 0;
}

/*
 * Compares a row with the new sample. A resumed run may have the sample several times; all rows
 * must be equal to it.
 */
static invar_status compare_row(void *payload, const char *const *columns,
                                const invar_ledger_value *values, int count)
{
    comparison *c = payload;

    (void)columns;
    INVAR_CHECK(count == PARTS + 1);
    if (!values)
        return INVAR_OK;
    if (values[PARTS].integer)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "--sample: weights of several versions drew this sample "
                          "(rollout-segment-tokens), and one version cannot: invar replay of its "
                          "step makes it again");
    if (c->found == VERDICT_MISSING)
        c->found = VERDICT_IDENTICAL;
    for (int i = 0; i < PARTS; i++) {
        if (digest_matches(&values[i], &c->ours[i]))
            continue;
        c->differs[i] = true;
        c->found = VERDICT_DIFFERENT;
    }
    return INVAR_OK;
}

static invar_status query_sample(comparison *c, const invar_rl_sample *s, const char *coords,
                                 const char *path)
{
    invar_ledger_argument rng = {
        "rng", {.type = INVAR_LEDGER_TYPE_TEXT, .data = coords, .bytes = strlen(coords)}};
    invar_ledger_select_request request = {
        .sql = "SELECT prompt_hash, token_hash, rollout_logp, weights_first <> weights_last "
               "FROM sample WHERE rng = :rng",
        .arguments = &rng,
        .n_arguments = 1,
        .row = compare_row,
        .payload = c};
    invar_ledger *ledger = NULL;
    invar_status status;

    c->found = VERDICT_MISSING;
    c->ours[PART_PROMPT] = s->data.hash;
    invar_hash_bytes(&c->ours[PART_TOKENS], s->tokens, (size_t)s->n_tokens * sizeof *s->tokens);
    invar_hash_bytes(&c->ours[PART_LOGP], s->logp,
                     (size_t)invar_rl_sample_response(s) * sizeof *s->logp);
    INVAR_TRY(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    status = invar_ledger_select(ledger, &request);
    invar_ledger_close(ledger);
    return status;
}

/* Compares the sample with the ledger of the run or the ledger that the recipe names, if any. */
static invar_status compare_with_ledger(comparison *out, const invar_rl_sample *s,
                                        const settings *set, const invar_config *config)
{
    char path[INVAR_LOCATE_PATH_SIZE];

    *out = (comparison){.found = VERDICT_NONE};
    if (!config->run[0] && !config->ledger[0])
        return INVAR_OK;
    INVAR_TRY(invar_locate_file(path, config->ledger[0] ? config->ledger : config->run));
    return query_sample(out, s, set->sample, path);
}

static int exit_code(verdict found)
{
    switch (found) {
    case VERDICT_DIFFERENT: return INVAR_EXIT_DIFFERENT;
    case VERDICT_MISSING: return INVAR_EXIT_NOTHING;
    default: return INVAR_EXIT_OK;
    }
}

/*
 * Prints "different: tokens and log-probabilities"; if nothing differs, all parts that were
 * compared.
 */
static void print_verdict(const comparison *c)
{
    bool color = invar_term_has_color(stdout), all = c->found == VERDICT_IDENTICAL;
    int left = 0;

    if (c->found == VERDICT_MISSING)
        puts("ledger    has no sample with these coordinates: nothing was compared");
    if (c->found == VERDICT_MISSING || c->found == VERDICT_NONE)
        return;
    printf("ledger    %s%s%s: ",
           invar_term_escape(color, all ? INVAR_TERM_STYLE_GREEN : INVAR_TERM_STYLE_RED),
           verdict_names[c->found], invar_term_escape(color, INVAR_TERM_STYLE_PLAIN));
    for (int i = 0; i < PARTS; i++)
        left += all || c->differs[i];
    for (int i = 0; i < PARTS; i++)
        if (all || c->differs[i])
            printf("%s%s", part_names[i], --left > 1 ? ", " : left == 1 ? " and " : "\n");
}

static invar_status regenerate_sample(int *code_out, const settings *set,
                                      invar_run_context *session)
{
    invar_rl_samples samples = {0};
    invar_rng_coords coords;
    comparison found;
    invar_status status;

    INVAR_TRY(invar_rng_coords_parse(&coords, set->sample));
    status = invar_regenerate(&samples, session, &coords);
    if (status == INVAR_OK)
        status = compare_with_ledger(&found, samples.items, set, session->config);
    if (status == INVAR_OK) {
        *code_out = exit_code(found.found);
        status = set->json ? print_json(samples.items, coords.seed, &found)
                           : print_sample(samples.items, true);
        if (!set->json)
            print_verdict(&found);
    }
    invar_rl_samples_reset(&samples);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

static invar_status complete_with_plugin(const settings *set, invar_run_context *session)
{
    invar_plugin *leader;
    invar_status status;

    INVAR_TRY(invar_multi_turn_attach(&leader, session->config, false));
    status = complete_prompts(set, session, leader);
    invar_plugin_close(leader);
    return status;
}

static invar_status run_generate(int *code_out, const settings *set, const invar_config *config)
{
    invar_run_context session;
    invar_status status;

    if (!set->prompt + !set->prompts + !set->sample != 2)
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "exactly one of --prompt TEXT, --prompts FILE and --sample COORDS is needed");
    if (set->sample && set->n)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--n would be ignored: --sample makes the one sample that COORDS name");
    if (set->sample && config->ckpt_step >= 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--ckpt-step would be ignored: COORDS of --sample say which weights");
    INVAR_TRY(invar_run_context_open(&session, config, set->sample ? INVAR_RUN_CONTEXT_DATA : 0));
    status = set->sample ? regenerate_sample(code_out, set, &session)
                         : complete_with_plugin(set, &session);
    invar_run_context_close(&session);
    return status;
}

static const invar_option options[] = {
    {"prompt", INVAR_OPTION_TEXT, &asked.prompt, "TEXT", "text to complete", 0, 0},
    {"prompts", INVAR_OPTION_TEXT, &asked.prompts, "FILE",
     "data set with prompts to complete: a JSON lines file or task:NAME", 0, 0},
    {"sample", INVAR_OPTION_TEXT, &asked.sample, "COORDS",
     "reproduce a recorded sample; COORDS is column rng of the ledger's table sample", 0, 0},
    {"n", INVAR_OPTION_INT, &asked.n, "N", "number of completions for each prompt (1)", 1, 65536},
    INVAR_OPTION_JSON(&asked.json),
    INVAR_RECIPE_FLAGS_END};

static int cmd_generate(int argc, char **argv)
{
    invar_config config = {.recipe = NULL};
    const char *path = NULL;
    int code = INVAR_EXIT_OK;
    invar_status status = invar_recipe_flags_model(&config, &path, options, &argc, argv);

    if (status == INVAR_OK && !asked.sample) // with --sample, the coordinates select the weights
        status = invar_weights_choose(&config);
    if (status == INVAR_OK)
        status = run_generate(&code, &asked, &config);
    if (status == INVAR_OK && !asked.sample && path)
        invar_weights_hint(&config, path);
    invar_recipe_free(config.recipe);
    return status == INVAR_OK ? code : invar_report_error();
}

const invar_cli_command invar_cmd_generate = {
    .name = "generate",
    .summary = "complete prompts, or reproduce one recorded sample",
    .run = cmd_generate,
    .about =
        "Completes prompts, or reproduces one recorded sample on its own, bit for bit. The model\n"
        "and the sampling settings come from a recipe, from its keys as options (--hf-checkpoint\n"
        "DIR, --rollout-temperature, --rollout-max-response-len with a default of 256,\n"
        "--rollout-seed, ...), or from both.\n"
        "\n"
        "The weights come from --load DIR; otherwise from the newest checkpoint of --run DIR\n"
        "(--ckpt-step picks another); otherwise they are the initial ones. Standard error says\n"
        "which.\n"
        "\n"
        "--sample needs the recipe of the run. Its weights are the initial ones or those of a\n"
        "checkpoint in load or save. With --run DIR the sample is compared with the recorded one.\n"
        "\n"
        "Exit codes:\n"
        "  0    done; --sample with --run: identical\n"
        "  1    --sample with --run: different\n"
        "  6    --sample with --run: the ledger has no such sample\n",
    .options = options,
    .result = "{prompt int, prompt_tokens int, tokens [int] (of prompt and response),"
              " logprobs [real/text] (of each token of the response; one that is not finite is a"
              " string), bits [hex8] (the same as binary32), text text, finish text, coords text,"
              " weights hex32, prompt_hash hex32, ledger~ text, differs~ [text]}"
              " (one line of output: each is an object)",
    .arguments = "[RECIPE] --prompt TEXT | --prompts FILE | --sample COORDS [--key value ...]"};
