/*
 * run_context.c - opens the run context: device, threads, tokenizer, stop tokens and data.
 *
 * Specs of models are read before the device is opened, since the number of threads depends on
 * them; weights come last, since they are large. For planning, a GPU that does not exist is
 * replaced by the CPU backend with the memory properties of a GPU. With rollout-overlap the context
 * has a second device context on the same GPU, with its own thread pool, for the sampling thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/context/run_context.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/text.h"
#include "base/minmax.h"
#include "base/process/process.h"
#include "engine/files/hf/hf.h"
#include "engine/run/context/internal.h"
#include "engine/run/train_settings.h"

#include "base/invar_banned.h"

#define TASK_PREFIX "task:"

/* ---- device ---------------------------------------------------------------------------------- */

#define SMALL_HIDDEN 256 /* narrower models keep at most SMALL_THREADS threads busy */
#define SMALL_THREADS 2  /* more threads cost more to wake than they compute */

/* The recipe's threads, or the cores of this rank; small models get few. */
static int64_t count_threads(const invar_run_context *s, const invar_local_ranks *crowd)
{
    int64_t threads = s->config->threads;
    int64_t most = invar_process_cores(crowd->process_ranks, crowd->host_ranks);

    if (threads == 0)
        return s->spec.hidden <= SMALL_HIDDEN && most > SMALL_THREADS ? SMALL_THREADS : most;
    return threads > crowd->process_ranks ? threads / crowd->process_ranks : 1;
}

static invar_backend simulated_backend;

static void init_simulated_gpu(void)
{
    simulated_backend = *invar_backend_cpu();
    simulated_backend.name = "cuda";
    simulated_backend.memory.device_local = true;
}

/* Returns a backend with the memory properties of a GPU. Ranks that are threads share it. */
static const invar_backend *simulated_gpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, init_simulated_gpu);
    return &simulated_backend;
}

/*
 * Opens the device. `any` allows a simulated one (INVAR_RUN_CONTEXT_ANY_DEVICE); `profiled`
 * measures ops.
 */
static invar_status open_device(invar_run_context *s, bool any, bool profiled,
                                const invar_local_ranks *crowd)
{
    int64_t threads = count_threads(s, crowd);
    invar_status status;

    if (threads > 1)
        INVAR_TRY(invar_pool_new(&s->pool, (int)threads));
    s->dev = (invar_device){
        .numerics = s->config->numerics, .pool = s->pool, .ordinal = crowd->local_rank};
    if (profiled)
        INVAR_TRY(invar_profile_new(&s->profile));
    s->dev.profiler = invar_profile_meter(s->profile);
    status = invar_backend_find(&s->dev.backend, s->config->device);
    if (status == INVAR_OK)
        status = invar_device_open(&s->dev);
    if (status != INVAR_E_NODEVICE || !any || s->config->device == INVAR_DEVICE_CPU)
        return status;
    invar_error_clear();
    s->imagined = true;
    s->dev.backend = simulated_gpu();
    return INVAR_OK;
}

/* Opens the device of the sampling thread, whose ops run at the same time as those of training. */
static invar_status open_beside(invar_run_context *s)
{
    if (s->pool)
        INVAR_TRY(invar_pool_new(&s->sampler.pool, invar_pool_threads(s->pool)));
    if (s->profile)
        INVAR_TRY(invar_profile_new(&s->sampler.profile));
    s->sampler.dev = s->dev;
    s->sampler.dev.profiler = invar_profile_meter(s->sampler.profile);
    s->sampler.dev.pool = s->sampler.pool;
    s->sampler.dev.context = NULL;
    s->sampler.dev.high_priority = true; // its ops are few and depend on each other
    return invar_device_open(&s->sampler.dev);
}

/* ---- tokenizer ------------------------------------------------------------------------------- */

static invar_status open_tokenizer(invar_run_context *s, unsigned wants)
{
    const char *alphabet;
    char path[INVAR_PATH_SIZE];

    if (s->config->hf_checkpoint[0]) {
        INVAR_TRY(invar_path_join(path, sizeof path, s->config->hf_checkpoint, "tokenizer.json"));
        if ((wants & INVAR_RUN_CONTEXT_NO_TOKENIZER) && !invar_path_exists(path))
            return INVAR_OK;
        return invar_tokenizer_read(&s->tokenizer, s->config->hf_checkpoint);
    }
    if (strncmp(s->config->prompt_data, TASK_PREFIX, strlen(TASK_PREFIX)) != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "no tokenizer: give hf-checkpoint, or a built-in task as prompt-data");
    alphabet = invar_builtin_task_alphabet(s->config->prompt_data + strlen(TASK_PREFIX));
    if (!alphabet)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "prompt-data: there is no task \"%.60s\"",
                          s->config->prompt_data + strlen(TASK_PREFIX));
    return invar_tokenizer_alphabet(&s->tokenizer, alphabet);
}

/* ---- stop tokens ----------------------------------------------------------------------------- */

static void add_stop(invar_run_context *s, int32_t id)
{
    for (int64_t i = 0; i < s->stops.n_ids; i++)
        if (s->stops.ids[i] == id)
            return;
    s->stops.ids[s->stops.n_ids++] = id;
}

static invar_status read_stops(invar_run_context *s)
{
    int32_t *given_ids = NULL, eos = s->tokenizer ? invar_tokenizer_eos(s->tokenizer) : -1;
    int64_t count = 0;
    invar_status status;

    INVAR_TRY(invar_config_ids(&given_ids, &count, s->config, INVAR_KEY_ROLLOUT_STOP_TOKEN_IDS));
    status = INVAR_ALLOC(s->stops.ids, (size_t)(count + s->spec.n_eos + 1), "stop ids");
    if (status == INVAR_OK) {
        for (int64_t i = 0; i < s->spec.n_eos; i++)
            add_stop(s, s->spec.eos[i]);
        if (eos >= 0)
            add_stop(s, eos);
        for (int64_t i = 0; i < count; i++)
            add_stop(s, given_ids[i]);
    }
    invar_free(given_ids);
    if (status == INVAR_OK)
        status = invar_config_strings(&s->stops.texts, &s->stops.n_texts, s->config,
                                      INVAR_KEY_ROLLOUT_STOP);
    return status;
}

/* ---- data ------------------------------------------------------------------------------------ */

static invar_dataset_options data_options(const invar_run_context *s, const char *path, bool eval)
{
    const invar_config *c = s->config;
    int64_t context = invar_run_context_context(s);
    invar_dataset_options o = {
        .path = path,
        .input_key = c->input_key,
        .label_key = c->label_key,
        .metadata_key = c->metadata_key,
        .tool_key = c->tool_key,
        .apply_chat_template = c->apply_chat_template,
        .chat_template_path = c->chat_template_path,
        .chat_template_kwargs = c->apply_chat_template_kwargs,
        .hf_dir = c->hf_checkpoint,
        .max_prompt_tokens = c->rollout_max_prompt_len ? c->rollout_max_prompt_len : context - 1,
        .max_total_tokens = context,
        .sft = invar_train_settings_supervised(c) && !eval,
        // a built-in task is evaluated on other prompts than it is trained on
        .seed = (uint32_t)c->rollout_seed + (eval ? 1 : 0),
        .task_size = c->task_size};

    if (eval && c->eval_input_key[0])
        o.input_key = c->eval_input_key;
    if (eval && c->eval_label_key[0])
        o.label_key = c->eval_label_key;
    return o;
}

invar_status invar_run_context_data(invar_dataset **out, const invar_run_context *s,
                                    const char *path, bool eval)
{
    invar_dataset_options o = data_options(s, path, eval);

    return invar_dataset_open(out, &o, s->tokenizer);
}

void invar_data_lengths_add(invar_data_lengths *out, const invar_dataset *data, bool eval)
{
    int64_t size = data ? invar_dataset_size(data) : 0;
    int64_t *prompt = eval ? &out->eval : &out->prompt;

    if (eval)
        out->eval_prompts = invar_max_i64(out->eval_prompts, size);
    for (int64_t i = 0; i < size; i++) {
        const invar_prompt *p = invar_dataset_prompt(data, i);
        *prompt = invar_max_i64(*prompt, p->n_tokens);
        out->answer = invar_max_i64(out->answer, p->n_answer);
        out->total = invar_max_i64(out->total, p->n_tokens + p->n_answer);
    }
}

invar_status invar_run_context_prompt(invar_dataset **out, const invar_run_context *s,
                                      const char *text)
{
    invar_dataset_options o = data_options(s, "prompt", true);
    invar_json_text line = {0};
    invar_status status;

    o.input_key = "prompt";
    o.label_key = o.metadata_key = o.tool_key = "";
    invar_json_text_open(&line, '{');
    invar_json_text_key(&line, o.input_key);
    invar_json_text_string(&line, text, strlen(text));
    invar_json_text_close(&line, '}');
    status = line.status;
    if (status == INVAR_OK)
        status = invar_dataset_parse(out, &o, s->tokenizer, line.data, line.bytes);
    invar_json_text_release(&line);
    return status;
}

invar_sampling_params invar_run_context_sampling(const invar_run_context *s)
{
    const invar_config *c = s->config;

    return (invar_sampling_params){.seed = (uint32_t)c->rollout_seed,
                                   .purpose = INVAR_PURPOSE_TRAIN,
                                   .temperature = (float)c->rollout_temperature,
                                   .top_k = c->rollout_top_k > 0 ? (int32_t)c->rollout_top_k : 0,
                                   .top_p = (float)c->rollout_top_p,
                                   .min_p = (float)c->rollout_min_p,
                                   .max_response = c->rollout_max_response_len,
                                   .max_context = c->rollout_max_context_len,
                                   .stop_ids = s->stops.ids,
                                   .n_stop_ids = s->stops.n_ids,
                                   .stop = (const char *const *)s->stops.texts,
                                   .n_stop = s->stops.n_texts,
                                   .skip_special = c->rollout_skip_special_tokens};
}

invar_rollout_exec_options invar_run_context_limits(const invar_run_context *s)
{
    const invar_config *c = s->config;

    return (invar_rollout_exec_options){
        .concurrency = c->rollout_concurrency,
        .prefill_chunk = c->chunked_prefill_size,
        .page_size = c->page_size,
        .pages = c->kv_pages,
        .no_prefix_sharing = c->disable_prefix_sharing,
        .no_graphs = c->disable_cuda_graph,
        .speculation = {.model = s->models.draft,
                        .algorithm = c->speculative_algorithm,
                        .tokens = c->speculative_num_draft_tokens,
                        .window = {c->speculative_ngram_min_match_window_size,
                                   c->speculative_ngram_max_match_window_size}}};
}

/* ---- opening and closing --------------------------------------------------------------------- */

static invar_status open_all(invar_run_context *s, unsigned wants, const invar_local_ranks *crowd)
{
    invar_model_specs specs;

    // a folder without a model is reported before a missing file in it
    if (s->config->hf_checkpoint[0])
        INVAR_TRY(invar_hf_check_model("hf-checkpoint", s->config->hf_checkpoint));
    if (invar_run_context_drafts(s))
        INVAR_TRY(invar_hf_check_model("speculative-draft-model-path",
                                       s->config->speculative_draft_model_path));
    INVAR_TRY(open_tokenizer(s, wants));
    INVAR_TRY(invar_run_context_read_specs(s, wants));
    INVAR_TRY(open_device(s, (wants & INVAR_RUN_CONTEXT_ANY_DEVICE) != 0,
                          (wants & (INVAR_RUN_CONTEXT_LEARN | INVAR_RUN_CONTEXT_SAMPLE)) &&
                              s->config->profile_step_end > 0,
                          crowd));
    if ((wants & INVAR_RUN_CONTEXT_LEARN) && s->config->rollout_overlap)
        INVAR_TRY(open_beside(s));
    INVAR_TRY(read_stops(s));
    if ((wants & INVAR_RUN_CONTEXT_DATA) && s->config->prompt_data[0])
        INVAR_TRY(invar_run_context_data(&s->data, s, s->config->prompt_data, false));
    specs = invar_run_context_model_specs(s, wants);
    return wants & INVAR_RUN_CONTEXT_NO_WEIGHTS ? INVAR_OK
                                                : invar_run_context_make_models(s, &specs);
}

invar_status invar_run_context_open(invar_run_context *session, const invar_config *config,
                                    unsigned wants)
{
    return invar_run_context_open_rank(session, config, wants,
                                       &(invar_local_ranks){.process_ranks = 1, .host_ranks = 1});
}

invar_status invar_run_context_open_rank(invar_run_context *session, const invar_config *config,
                                         unsigned wants, const invar_local_ranks *local_ranks)
{
    invar_status status;

    *session = (invar_run_context){.config = config,
                                   .format = config->dtype,
                                   .rollout_format = invar_train_settings_rollout_format(config),
                                   .layout = local_ranks->layout};
    status = open_all(session, wants, local_ranks);
    if (status != INVAR_OK)
        invar_run_context_close(session);
    return status;
}

void invar_run_context_close(invar_run_context *session)
{
    invar_eval_config_release(&session->evals);
    invar_dataset_close(session->data);
    invar_model_set_release(&session->models);
    invar_tokenizer_free(session->tokenizer);
    invar_free(session->stops.ids);
    invar_free(session->stops.texts);
    invar_device_close(&session->sampler.dev);
    invar_device_close(&session->dev);
    invar_profile_free(session->sampler.profile);
    invar_profile_free(session->profile);
    invar_pool_free(session->sampler.pool);
    invar_pool_free(session->pool);
    *session = (invar_run_context){0};
}
