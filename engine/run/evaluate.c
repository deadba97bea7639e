/*
 * evaluate.c - samples the evaluation sets, computes their rewards, and sums up the results.
 *
 * The recipe names its sets in eval-prompt-data, or eval-config has one recipe for each set. Either
 * way a set is evaluated with the run context and a recipe of its own. Sample i of a set is draw i
 * of the evaluation before rollout `number`, so results do not depend on the number of ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/evaluate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/minmax.h"
#include "engine/config/check_internal.h"
#include "engine/config/eval_config.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/rl/estimator.h"
#include "engine/rl/token_arrays.h"
#include "engine/sample/source/generate.h"
#include "engine/sample/source/source.h"

#include "base/invar_banned.h"

#define MAX_RESULTS 64

/* One data set: its name and path. */
typedef struct test_set {
    char name[128];
    char path[INVAR_PATH_SIZE];
} test_set;

static bool next_set(test_set *out, const char **cursor)
{
    const char *name, *path;
    size_t name_bytes, path_bytes;

    if (!invar_config_words(&name, &name_bytes, cursor) ||
        !invar_config_words(&path, &path_bytes, cursor))
        return false;
    (void)snprintf(out->name, sizeof out->name, "%.*s", (int)name_bytes, name);
    (void)snprintf(out->path, sizeof out->path, "%.*s", (int)path_bytes, path);
    return true;
}

/* ---- sets ------------------------------------------------------------------------------------ */

typedef invar_status for_recipe_fn(void *payload, const invar_run_context *session);

/*
 * Calls the function once with the run's recipe or, with eval-config, once for each recipe of it.
 */
static invar_status for_each_recipe(for_recipe_fn *visitor, void *payload,
                                    const invar_run_context *session)
{
    const invar_eval_config *evals = &session->evals;
    invar_run_context own = *session;

    if (evals->count == 0)
        return visitor(payload, session);
    for (size_t i = 0; i < evals->count; i++) {
        own.config = &evals->sets[i];
        INVAR_TRY(visitor(payload, &own));
    }
    return INVAR_OK;
}

/*
 * Returns the sampling parameters of the rollout, with the changes that the evaluation keys make.
 */
static invar_sampling_params sampling_of(const invar_run_context *session)
{
    const invar_config *c = session->config;
    invar_sampling_params s = invar_run_context_sampling(session);

    s.purpose = INVAR_PURPOSE_EVAL;
    if (c->eval_temperature >= 0.0)
        s.temperature = (float)c->eval_temperature;
    if (c->eval_top_p > 0.0)
        s.top_p = (float)c->eval_top_p;
    if (c->eval_top_k != 0)
        s.top_k = c->eval_top_k > 0 ? (int32_t)c->eval_top_k : 0;
    if (c->eval_max_response_len > 0)
        s.max_response = c->eval_max_response_len;
    return s;
}

static invar_status check_sampling(void *payload, const invar_run_context *session)
{
    const invar_sampling_params sampling = sampling_of(session);
    const bool own = session->config->eval_max_response_len > 0;

    (void)payload;
    return invar_run_context_check_sampling(
        session, own ? INVAR_KEY_EVAL_MAX_RESPONSE_LEN : INVAR_KEY_ROLLOUT_MAX_RESPONSE_LEN,
        &sampling);
}

invar_status invar_evaluate_read_sets(invar_run_context *session)
{
    invar_eval_config_release(&session->evals);
    INVAR_TRY(invar_eval_config_read(&session->evals, session->config));
    return for_each_recipe(check_sampling, NULL, session);
}

static invar_status measure_set(void *payload, const invar_run_context *session)
{
    invar_data_lengths *seen = payload;
    invar_sampling_params *most = &seen->sampling, own = sampling_of(session);
    bool first = seen->per_prompt == 0;

    seen->per_prompt = invar_max_i64(seen->per_prompt, session->config->n_samples_per_eval_prompt);
    seen->response = invar_max_i64(seen->response, own.max_response);
    if (first)
        *most = own;
    most->max_response = seen->response;
    most->top_k = own.top_k > most->top_k ? own.top_k : most->top_k;
    most->top_p = own.top_p < most->top_p ? own.top_p : most->top_p;
    most->temperature = own.temperature > most->temperature ? own.temperature : most->temperature;
    return INVAR_OK;
}

invar_status invar_evaluate_measure(invar_data_lengths *seen, const invar_run_context *session)
{
    return for_each_recipe(measure_set, seen, session);
}

/* ---- one set --------------------------------------------------------------------------------- */

static invar_status add_prompts(invar_rl_samples *out, const invar_evaluation *e,
                                const invar_dataset *data, int64_t per_prompt)
{
    if (invar_dataset_size(data) > UINT32_MAX / per_prompt)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "n-samples-per-eval-prompt: %" PRId64 " of %" PRId64
                          " prompts are more samples than an evaluation can number",
                          per_prompt, invar_dataset_size(data));
    for (int64_t i = 0; i < invar_dataset_size(data) * per_prompt; i++) {
        const invar_prompt *p = invar_dataset_prompt(data, i / per_prompt);
        invar_rl_sample *s;

        INVAR_TRY(invar_rl_samples_append(&s, out));
        s->index = i;
        s->group = i / per_prompt;
        s->rollout = (uint32_t)e->number;
        s->weights.hash = e->weights;
        s->draw_index = (uint32_t)i;
        INVAR_TRY(invar_sample_source_init_sample(s, p));
    }
    return INVAR_OK;
}

typedef struct set_results {
    invar_ledger_metric items[MAX_RESULTS];
    char names[MAX_RESULTS][224];
    size_t count;
} set_results;

static void add_result(set_results *r, const char *set, const char *what, int64_t number,
                       double value)
{
    char *name = r->names[r->count];

    INVAR_CHECK(r->count < MAX_RESULTS);
    if (number > 0)
        (void)snprintf(name, sizeof r->names[0], "eval/%s-%s%" PRId64, set, what, number);
    else
        (void)snprintf(name, sizeof r->names[0], "eval/%s%s", set, what);
    r->items[r->count++] = (invar_ledger_metric){name, value};
}

static invar_status add_reward_parts(set_results *out, const invar_rl_samples *samples,
                                     const char *set)
{
    invar_reward_parts means = {NULL, 0};
    invar_status status = invar_reward_parts_mean(&means, samples->items, samples->count);
    char what[INVAR_REWARD_NAME_SIZE + 16];

    for (int64_t i = 0; i < means.count && status == INVAR_OK; i++) {
        (void)snprintf(what, sizeof what, "/reward/%s", means.items[i].name);
        add_result(out, set, what, 0, means.items[i].value);
    }
    invar_reward_parts_release(&means);
    return status;
}

static invar_status add_pass_rates(set_results *out, const invar_rl_samples *samples,
                                   const test_set *set, int64_t per_prompt)
{
    invar_token_arrays arrays = {0};

    INVAR_TRY(invar_token_arrays_make(&arrays, samples, &(invar_token_array_flags){0}));
    for (int64_t k = 1; k <= per_prompt; k *= 2)
        add_result(out, set->name, "pass@", k, invar_token_arrays_pass_at(&arrays, k));
    invar_token_arrays_release(&arrays);
    return INVAR_OK;
}

static invar_status summarize_set(set_results *out, const invar_rl_samples *samples,
                                  const test_set *set, int64_t per_prompt,
                                  const invar_reward_source *judge)
{
    double reward = 0.0, length = 0.0, truncated = 0.0, n = (double)samples->count;
    bool judged;

    out->count = 0;
    INVAR_TRY(invar_reward_source_has_all_rewards(&judged, judge, samples->items, samples->count));
    for (int64_t i = 0; i < samples->count; i++) {
        const invar_rl_sample *s = &samples->items[i];
        reward += s->reward;
        length += (double)invar_rl_sample_response(s);
        truncated += s->finish == INVAR_FINISH_LENGTH;
    }
    if (judged) {
        add_result(out, set->name, "", 0, reward / n);
        INVAR_TRY(add_reward_parts(out, samples, set->name));
    }
    add_result(out, set->name, "-truncated_ratio", 0, truncated / n);
    add_result(out, set->name, "/response_len/mean", 0, length / n);
    return judged ? add_pass_rates(out, samples, set, per_prompt) : INVAR_OK;
}

/* The sets of one recipe. */
typedef struct recipe_sets {
    const invar_evaluation *evaluation;
    const invar_run_context *session;
    invar_reward_source judge;
} recipe_sets;

static invar_status run_set(const recipe_sets *r, const test_set *set, const invar_dataset *data,
                            invar_rl_samples *samples)
{
    const invar_evaluation *e = r->evaluation;
    int64_t per_prompt = r->session->config->n_samples_per_eval_prompt;
    const invar_run_context *s = r->session;
    invar_generate_args how = {
        .layout = e->layout,
        .rollout = e->rollout,
        .sampling = sampling_of(s),
        .reward_source = r->judge,
        .turns = invar_multi_turn_read(s->config, e->turns, &s->spec, s->tokenizer),
        // the agents that lead samples of training
        .agents_lead = s->config->custom_agent_path[0] && s->config->eval_turns,
        .agents = e->agents,
        .needs_reward = invar_estimator_traits_of(s->config->advantage_estimator)->needs_reward,
        .evaluation = true,
        .per_prompt = per_prompt};
    set_results found;

    how.turns.enabled = how.turns.enabled && s->config->eval_turns;
    if (how.agents_lead && e->no_agents)
        return INVAR_OK;
    if (how.agents_lead && invar_ranks_is_leader(e->layout) && !e->agents)
        return invar_config_fail(s->config, INVAR_KEY_EVAL_TURNS,
                                 "= true: agents lead evaluations of a training run alone; with "
                                 "false each is one response, without custom-agent-path");
    INVAR_TRY(add_prompts(samples, e, data, per_prompt));
    INVAR_TRY(invar_generate(&how, samples->items, samples->count));
    if (e->look)
        INVAR_TRY(e->look(e->payload, set->name, samples));
    INVAR_TRY(summarize_set(&found, samples, set, per_prompt, &how.reward_source));
    return e->take(e->payload, set->name, found.items, found.count);
}

static invar_status run_sets(void *payload, const invar_run_context *session)
{
    recipe_sets r = {.evaluation = payload, .session = session};
    const char *cursor = session->config->eval_prompt_data;
    test_set set;

    INVAR_TRY(invar_reward_source_read(&r.judge, session->config, r.evaluation->plugin, true));
    while (next_set(&set, &cursor)) {
        invar_dataset *data = NULL;
        invar_rl_samples samples = {0};
        invar_status status = invar_run_context_data(&data, session, set.path, true);

        if (status == INVAR_OK)
            status = run_set(&r, &set, data, &samples);
        invar_rl_samples_reset(&samples);
        invar_dataset_close(data);
        INVAR_TRY(status);
    }
    return INVAR_OK;
}

invar_status invar_evaluate(const invar_evaluation *evaluation)
{
    return for_each_recipe(run_sets, (void *)(uintptr_t)evaluation, evaluation->session);
}

/* ---- what they are --------------------------------------------------------------------------- */

typedef struct hash_state {
    invar_hasher hasher;
    invar_data_lengths *seen;
    bool settings; /* each set has settings of its own */
} hash_state;

static invar_status hash_sets(void *payload, const invar_run_context *session)
{
    const char *cursor = session->config->eval_prompt_data;
    hash_state *a = payload;
    test_set set;

    while (next_set(&set, &cursor)) {
        invar_dataset *data = NULL;
        invar_digest digest;

        INVAR_TRY(invar_run_context_data(&data, session, set.path, true));
        invar_dataset_hash(&digest, data);
        invar_data_lengths_add(a->seen, data, true);
        invar_dataset_close(data);
        invar_hasher_update(&a->hasher, set.name, strlen(set.name) + 1);
        invar_hasher_update(&a->hasher, digest.bytes, sizeof digest.bytes);
    }
    if (a->settings)
        invar_eval_config_hash(&a->hasher, session->config);
    return INVAR_OK;
}

invar_status invar_evaluate_hash(invar_digest *out, invar_data_lengths *seen,
                                 const invar_run_context *session)
{
    hash_state a = {.seen = seen, .settings = session->config->eval_config[0]};

    invar_hasher_init(&a.hasher);
    INVAR_TRY(for_each_recipe(hash_sets, &a, session));
    invar_hasher_final(out, &a.hasher);
    return INVAR_OK;
}

/* ---- what their rules say -------------------------------------------------------------------- */

static invar_status check_sets(void *payload, const invar_run_context *session)
{
    const char *cursor = session->config->eval_prompt_data;
    invar_reward_source_reach reach = *(const invar_reward_source_reach *)payload;
    test_set set;

    while (next_set(&set, &cursor)) {
        invar_dataset *data = NULL;
        char what[sizeof set.name + 16];
        invar_status status;

        (void)snprintf(what, sizeof what, "evaluation set %s", set.name);
        reach.what = what;
        reach.path = set.path;
        INVAR_TRY(invar_run_context_data(&data, session, set.path, true));
        status = invar_reward_source_check_data(session->config, data, &reach);
        invar_dataset_close(data);
        INVAR_TRY(status);
    }
    return INVAR_OK;
}

invar_status invar_evaluate_check(const invar_run_context *session,
                                  const invar_reward_source_reach *reach)
{
    return for_each_recipe(check_sets, (void *)(uintptr_t)reach, session);
}
