/*
 * serve.c - invar serve: serves a model with OpenAI's HTTP API until a signal stops it.
 *
 * This thread owns the model and runs the inference engine; threads of the HTTP server pass
 * requests to it (engine/sample/serve/inference_engine.h). After the first signal the requests in
 * flight are finished. All parts are closed in reverse order, also after a failure.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/interactive.h"
#include "cli/recipe_flags.h"
#include "cli/run/weights.h"
#include "engine/config/check_internal.h"
#include "engine/sample/serve/server.h"

#include "base/invar_banned.h"

#define KEY_VARIABLE "INVAR_API_KEY"
#define KEY_BYTES 4096
// connections in addition to max-requests, for idle clients and rejected requests
#define SPARE_CONNECTIONS 64

typedef struct settings {
    const char *host, *key_file, *name;
    int64_t port, most, most_body, memory, seconds, client_seconds;
} settings;

static settings asked = {.host = "127.0.0.1",
                         .port = 8000,
                         .most = 256,
                         .most_body = 4 << 20,
                         .memory = 1 << 30,
                         .seconds = 600,
                         .client_seconds = 30};

/* Parts that live as long as the server. */
typedef struct serve_context {
    invar_run_context session;
    invar_sampling_params sampling;
    invar_server_info facts;
    invar_inference_engine *dispatch;
    invar_prompt_encoder *prompter;
    invar_server *server;
    char *key;      /* API key, or NULL; owned */
    char name[256]; /* name of the model folder */
} serve_context;

/* ---- the API key ----------------------------------------------------------------------------- */

/* Checks that a key has only printable characters without blanks, as an HTTP header requires. */
static invar_status check_key(const char *key, const char *from)
{
    if (!*key)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s has no key: write one line with it", from);
    for (const char *c = key; *c; c++)
        if (*c <= ' ' || *c > '~')
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%s: a key has printable ASCII characters alone, and is one line",
                              from);
    return INVAR_OK;
}

static invar_status read_key(char **out, const settings *set)
{
    const char *given = getenv(KEY_VARIABLE);
    size_t bytes;

    if (set->key_file) {
        INVAR_TRY(invar_file_read(out, &bytes, set->key_file, KEY_BYTES));
        (*out)[strcspn(*out, "\r\n")] = '\0';
        return check_key(*out, "--api-key-file");
    }
    if (!given || !*given)
        return INVAR_OK;
    bytes = strlen(given) + 1;
    INVAR_TRY(INVAR_ALLOC(*out, bytes, "a key"));
    memcpy(*out, given, bytes);
    return check_key(*out, KEY_VARIABLE);
}

/* ---- setup ----------------------------------------------------------------------------------- */

/* Sets the model name: the option, the last component of the folder, or "invar". */
static void set_name(serve_context *s, const settings *set)
{
    const char *dir = s->session.config->hf_checkpoint;
    size_t end = strlen(dir), first;

    while (end > 0 && dir[end - 1] == '/')
        end--;
    for (first = end; first > 0 && dir[first - 1] != '/';)
        first--;
    (void)snprintf(s->name, sizeof s->name, "%.*s", (int)(end - first), dir + first);
    s->facts.model = set->name ? set->name : *s->name ? s->name : "invar";
}

/* Rejects keys of a recipe that make no sense for a server. */
static invar_status check_recipe(const invar_config *config)
{
    double temperature = config->rollout_temperature;

    if (temperature > 0 && temperature < INVAR_COMPLETION_REQUEST_MIN_TEMPERATURE)
        return invar_config_fail(config, INVAR_KEY_ROLLOUT_TEMPERATURE,
                                 "is too near 0 to serve: give 0, or at least 0.001");
    if (config->custom_generate_function_path[0])
        return invar_config_fail(config, INVAR_KEY_CUSTOM_GENERATE_FUNCTION_PATH,
                                 "leads no samples of a server: leave it out");
    if (config->custom_agent_path[0])
        return invar_config_fail(config, INVAR_KEY_CUSTOM_AGENT_PATH,
                                 "leads samples of training alone: leave it out, and let agents "
                                 "ask the server");
    return INVAR_OK;
}

static void set_server_info(serve_context *s, const settings *set)
{
    const invar_run_context *session = &s->session;
    int64_t context = s->sampling.max_context;

    s->facts = (invar_server_info){.weights = session->weights,
                                   .base = session->base.weights,
                                   .adapted = session->spec.lora.rank > 0,
                                   .numerics = invar_numerics_name(session->dev.numerics),
                                   .format = invar_format_name(session->rollout_format),
                                   .context = context ? context : session->spec.max_positions,
                                   .started = invar_process_clock_ns(CLOCK_REALTIME) / 1000000000};
    set_name(s, set);
}

static invar_status open_server(serve_context *s, const settings *set)
{
    const invar_run_context *session = &s->session;
    const invar_config *c = session->config;
    invar_rollout_exec_options limits = invar_run_context_limits(session);
    const invar_prompt_encoder_options prompts = {.tokenizer = session->tokenizer,
                                                  .hf_dir = c->hf_checkpoint,
                                                  .template_path = c->chat_template_path,
                                                  .template_kwargs = c->apply_chat_template_kwargs,
                                                  .vocab = session->spec.vocab,
                                                  .context = s->facts.context};

    INVAR_TRY(invar_prompt_encoder_new(&s->prompter, &prompts));
    INVAR_TRY(invar_inference_engine_new(
        &s->dispatch,
        &(invar_inference_engine_options){.model = invar_model_set_sampler(&session->models),
                                          .tokenizer = session->tokenizer,
                                          .dev = &session->dev,
                                          .limits = &limits,
                                          .context = s->facts.context,
                                          .max_requests = set->most}));
    return invar_server_open(&s->server,
                             &(invar_server_options){.host = set->host,
                                                     .port = set->port,
                                                     .key = s->key,
                                                     .connections = set->most + SPARE_CONNECTIONS,
                                                     .max_body_bytes = set->most_body,
                                                     .max_memory_bytes = set->memory,
                                                     .request_timeout_s = set->seconds,
                                                     .client_timeout_s = set->client_seconds,
                                                     .server_info = &s->facts,
                                                     .sampling = &s->sampling,
                                                     .tokenizer = session->tokenizer,
                                                     .engine = s->dispatch,
                                                     .prompt_encoder = s->prompter});
}

static void close_server(serve_context *s)
{
    invar_server_close(s->server);
    invar_inference_engine_free(s->dispatch);
    invar_prompt_encoder_free(s->prompter);
    invar_free(s->key);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Prints the address. Programs that wait for the server read the last of these lines. */
static void print_ready(const serve_context *s, const settings *set)
{
    char line[INVAR_WEIGHTS_FROM_SIZE + 256], from[INVAR_WEIGHTS_FROM_SIZE];
    bool six = strchr(set->host, ':') != NULL;

    invar_weights_from(from, &s->session);
    (void)snprintf(line, sizeof line, "weights from %s", from);
    invar_interactive_print(NULL, line);
    if (invar_prompt_encoder_no_chat(s->prompter)) {
        (void)snprintf(line, sizeof line, "no chats: %.600s",
                       invar_prompt_encoder_no_chat(s->prompter));
        invar_interactive_print(NULL, line);
    }
    (void)snprintf(line, sizeof line, "serving %.200s at http://%s%.100s%s:%" PRId64 "/v1",
                   s->facts.model, six ? "[" : "", set->host, six ? "]" : "",
                   invar_server_port(s->server));
    invar_interactive_print(NULL, line);
}

static invar_status serve_requests(serve_context *s, const settings *set)
{
    const volatile sig_atomic_t *caught;

    INVAR_TRY(read_key(&s->key, set));
    INVAR_TRY(invar_run_context_load_newest(&s->session));
    s->sampling = invar_run_context_sampling(&s->session);
    set_server_info(s, set);
    INVAR_TRY(open_server(s, set));
    caught = invar_interactive_catch_signals("finishing the requests that are there");
    print_ready(s, set);
    return invar_inference_engine_run(s->dispatch, caught);
}

static invar_status run_serve(const settings *set, const invar_config *config)
{
    serve_context s = {0};
    invar_status status;
    invar_error error;

    INVAR_TRY(invar_run_context_open(&s.session, config, 0));
    status = serve_requests(&s, set);
    invar_error_take(&error);
    close_server(&s);
    invar_run_context_close(&s.session);
    invar_error_put(&error);
    return status;
}

static const invar_option options[] = {
    {"host", INVAR_OPTION_TEXT, &asked.host, "ADDRESS",
     "number of the address to listen at (127.0.0.1); one that "
     "other machines reach needs a key",
     0, 0},
    {"port", INVAR_OPTION_INT, &asked.port, "N", "port to listen at (8000); 0: any that is free", 0,
     65535},
    {"api-key-file", INVAR_OPTION_TEXT, &asked.key_file, "FILE",
     "file whose first line is the key that requests must bring; "
     "otherwise " KEY_VARIABLE " of the environment",
     0, 0},
    {"served-model-name", INVAR_OPTION_TEXT, &asked.name, "NAME",
     "name of the model in requests (the folder's)", 0, 0},
    {"max-requests", INVAR_OPTION_INT, &asked.most, "N",
     "number of requests at a time (256); more are told to come "
     "again",
     1, 65536},
    {"max-body-bytes", INVAR_OPTION_INT, &asked.most_body, "N",
     "bytes of the longest request (4194304)", 1, INT64_C(1) << 30},
    {"max-memory-bytes", INVAR_OPTION_INT, &asked.memory, "N",
     "bytes of memory for all requests in flight (1073741824); "
     "more requests are told to come again",
     1 << 16, INT64_C(1) << 50},
    {"request-seconds", INVAR_OPTION_INT, &asked.seconds, "N",
     "seconds that a request may take (600); 0: no limit", 0, 1000000},
    {"client-seconds", INVAR_OPTION_INT, &asked.client_seconds, "N",
     "seconds that a client has to send a request, and to take "
     "the next bytes of its reply (30)",
     1, 1000000},
    INVAR_RECIPE_FLAGS_END};

static int cmd_serve(int argc, char **argv)
{
    invar_config config = {.recipe = NULL};
    const char *path = NULL;
    invar_status status = invar_recipe_flags_model(&config, &path, options, &argc, argv);

    if (status == INVAR_OK && asked.name && !asked.name[0])
        status = INVAR_FAIL(INVAR_E_INVALID, 0,
                            "--served-model-name: the name is empty; give one, or leave the option "
                            "out for that of the folder");
    if (status == INVAR_OK)
        status = check_recipe(&config);
    if (status == INVAR_OK)
        status = invar_weights_choose(&config);
    if (status == INVAR_OK && path)
        invar_weights_hint(&config, path);
    if (status == INVAR_OK)
        status = run_serve(&asked, &config);
    invar_recipe_free(config.recipe);
    return status != INVAR_OK ? invar_report_error()
                              : invar_process_stop_code(invar_interactive_caught());
}

const invar_cli_command invar_cmd_serve = {
    .name = "serve",
    .summary = "serve a model by OpenAI's HTTP API, bit-equal at any load",
    .run = cmd_serve,
    .about =
        "Serves a model by OpenAI's HTTP API: /v1/completions, /v1/chat/completions, /v1/models\n"
        "and /health. A reply has the same bits at any load, and says from which coordinates\n"
        "'invar generate' makes it again.\n"
        "\n"
        "The model comes from a recipe, from its keys as options (--hf-checkpoint DIR, --dtype,\n"
        "--device, --lora-adapter-path, ...), or from both. --rollout-temperature and the other\n"
        "sampling keys are what holds where a request says nothing; --rollout-seed is the seed\n"
        "then. The weights come from --load DIR; otherwise from the newest checkpoint of\n"
        "--run DIR; otherwise they are the initial ones.\n"
        "\n"
        "The first Ctrl-C or SIGTERM finishes the open requests, the second ends at once.\n"
        "\n"
        "Exit codes:\n"
        "  130  Ctrl-C ended it, after the open requests were answered\n"
        "  143  SIGTERM or SIGHUP ended it, after the open requests were answered\n",
    .options = options,
    .arguments = "[RECIPE] --hf-checkpoint DIR [--port N] [--key value ...]"};
