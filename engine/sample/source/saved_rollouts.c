/*
 * saved_rollouts.c - sample source that loads rollouts from files, and saves them.
 *
 * Own files, with the identity of this run, are trusted only for the sampled tokens: weights,
 * sampling params, prompts, texts and rewards are computed again and compared, and training
 * compares the log-probs. All other files are foreign: they are input data like a data set, their
 * digest belongs to the identity of the run, and their content must not change afterwards.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/config/config.h"
#include "engine/sample/rollout/stop.h"
#include "engine/sample/source/source.h"

#include "base/invar_banned.h"

/* ---- own or foreign -------------------------------------------------------------------------- */

/* Hashes all consecutive files from 0 on, like lines of a data set, even if the run uses fewer. */
static invar_status hash_files(invar_saved_rollouts *saved, const char *pattern)
{
    int64_t n = 0, capacity = 0, bytes;
    char path[INVAR_PATH_SIZE];

    for (;; saved->n_files = ++n) {
        INVAR_TRY(invar_rollout_file_path(path, sizeof path, pattern, n));
        if (!invar_path_exists(path))
            break;
        INVAR_TRY(INVAR_GROW(saved->files, capacity, n, n + 1, "hashes of rollouts"));
        INVAR_TRY(invar_file_hash(&saved->files[n], &bytes, path));
    }
    invar_hash_bytes(&saved->foreign, saved->files, (size_t)saved->n_files * sizeof *saved->files);
    return INVAR_OK;
}

/*
 * Returns true if a plug-in decides rewards or filters, which cannot be recomputed from the recipe.
 */
static bool is_decided_by_plugin(const invar_config *c)
{
    return invar_reward_source_is_plugin(c) || c->dynamic_sampling_filter_path[0] ||
           c->rollout_sample_filter_path[0];
}

static invar_status reject_idle_keys(const invar_config *c, const char *path)
{
    const invar_key idle = c->use_rollout_logprobs ? INVAR_KEY_USE_ROLLOUT_LOGPROBS
                           : c->use_tis            ? INVAR_KEY_USE_TIS
                           : c->use_mis            ? INVAR_KEY_USE_MIS
                                                   : INVAR_KEY_NONE;
    char shown[INVAR_PATH_SHOWN_SIZE];

    // with rollout-dtype, log-probs of sampling differ from those of training
    if (c->rollout_dtype[0] || idle == INVAR_KEY_NONE)
        return INVAR_OK;
    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "'%s' would be ignored: %s is this run's own rollout, whose "
                      "log-probabilities are those of training",
                      invar_config_schema()->keys[idle].name, shown);
}

invar_status invar_saved_rollouts_find(invar_saved_rollouts *out, const invar_config *config,
                                       const invar_digest *own)
{
    const char *pattern = config->load_debug_rollout_data;
    invar_rollout_file first;
    char path[INVAR_PATH_SIZE];
    int64_t samples;

    *out = (invar_saved_rollouts){.on_policy = true};
    if (!pattern[0])
        return INVAR_OK;
    INVAR_TRY(invar_rollout_file_path(path, sizeof path, pattern, 0));
    if (!invar_path_exists(path)) // the run resumes at a later rollout, or check_file rejects it
        return INVAR_OK;
    INVAR_TRY(invar_rollout_file_head(&first, &samples, path));
    out->on_policy = invar_digest_equal(&first.header.run, own) && !is_decided_by_plugin(config);
    invar_rollout_file_release(&first);
    return out->on_policy ? reject_idle_keys(config, path) : hash_files(out, pattern);
}

void invar_saved_rollouts_release(invar_saved_rollouts *saved)
{
    invar_free(saved->files);
    *saved = (invar_saved_rollouts){0};
}

/* ---- checks of all files --------------------------------------------------------------------- */

/*
 * Fails if a sample does not fit the model: the file may be of one with more tokens or positions.
 */
static invar_status check_sample_fits(const invar_rl_sample *s, const invar_model_spec *spec,
                                      const char *path)
{
    bool fits = s->prompt_tokens >= 1 && s->n_tokens > s->prompt_tokens &&
                s->n_tokens - 1 <= spec->max_positions;

    for (int64_t i = 0; i < s->n_tokens && fits; i++)
        fits = s->tokens[i] >= 0 && s->tokens[i] < spec->vocab;
    if (fits)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s: sample %" PRId64 " does not fit the model: it needs a prompt and a "
                      "response, tokens below %" PRId64 ", and %" PRId64 " positions at most",
                      path, s->index, spec->vocab, spec->max_positions);
}

/* Checks the header and the number of samples. */
static invar_status check_head(const invar_sample_source_options *o, const invar_rollout_header *h,
                               int64_t samples, const char *path)
{
    int64_t wanted = o->config->rollout_batch_size * o->generate.per_prompt;
    invar_digest tokenizer;

    if (o->saved->on_policy && !invar_digest_equal(&h->run, &o->run))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s is of another run; a run takes its rollouts from one run only, "
                          "and from another than itself beginning with rollout 0",
                          path);
    invar_tokenizer_hash(&tokenizer, o->tokenizer);
    if (!invar_digest_equal(&tokenizer, &h->tokenizer))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%.1000s was sampled with another tokenizer", path);
    if (samples != wanted)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s has %" PRId64 " samples, the recipe's steps need %" PRId64, path,
                          samples, wanted);
    return INVAR_OK;
}

/* Checks that a foreign sample has the recorded data that the recipe needs. */
static invar_status check_recorded_data(const invar_sample_source_options *o,
                                        const invar_rl_sample *s, const char *path)
{
    if ((o->config->use_tis || o->config->use_mis || o->config->use_rollout_logprobs) && !s->logp)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: sample %" PRId64 " has no log-probabilities, which use-tis, "
                          "use-mis and use-rollout-logprobs need",
                          path, s->index);
    if (o->config->use_rollout_routing_replay && !s->routing)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: sample %" PRId64 " has no recorded routing, which "
                          "use-rollout-routing-replay needs; leave out one of them",
                          path, s->index);
    return INVAR_OK;
}

invar_status invar_sample_source_check_file(const invar_sample_source *source, int64_t rollout)
{
    const invar_sample_source_options *o = &source->options;
    char path[INVAR_PATH_SIZE];
    invar_rollout_file data;
    invar_status status;
    int64_t samples;

    INVAR_TRY(
        invar_rollout_file_path(path, sizeof path, o->config->load_debug_rollout_data, rollout));
    INVAR_TRY(invar_rollout_file_head(&data, &samples, path));
    status = check_head(o, &data.header, samples, path);
    if (status == INVAR_OK && !o->saved->on_policy && data.samples.count > 0)
        status = check_recorded_data(o, data.samples.items, path);
    invar_rollout_file_release(&data);
    return status;
}

static invar_status check_loaded(const invar_sample_source *source, const char *path)
{
    const invar_sample_source_options *o = &source->options;
    const invar_rl_samples *samples = &source->batch.samples;

    INVAR_TRY(check_head(o, &source->loaded.header, samples->count, path));
    for (int64_t i = 0; i < samples->count; i++)
        INVAR_TRY(check_sample_fits(&samples->items[i], o->spec, path));
    return INVAR_OK;
}

/* ---- foreign files --------------------------------------------------------------------------- */

/* Fails if the file has changed since the identity was computed, or lacks data that is needed. */
static invar_status check_foreign(const invar_sample_source *source, const char *path)
{
    const invar_sample_source_options *o = &source->options;
    const invar_rl_samples *samples = &source->batch.samples;
    int64_t rollout = source->request.rollout;

    if (!o->replay && (rollout >= o->saved->n_files ||
                       !invar_digest_equal(&source->loaded.content, &o->saved->files[rollout])))
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%.1000s has changed since the run was started: its content belongs to "
                          "the run's identity; begin another run",
                          path);
    for (int64_t i = 0; i < samples->count; i++)
        INVAR_TRY(check_recorded_data(o, &samples->items[i], path));
    return INVAR_OK;
}

/* ---- own files ------------------------------------------------------------------------------- */

static bool have_equal_bytes(const void *a, const void *b, size_t bytes)
{
    return !a == !b && (!a || memcmp(a, b, bytes) == 0);
}

static bool have_equal_stops(const invar_sampling_params *a, const invar_sampling_params *b)
{
    if (a->n_stop_ids != b->n_stop_ids || a->n_stop != b->n_stop)
        return false;
    for (int64_t i = 0; i < a->n_stop; i++)
        if (strcmp(a->stop[i], b->stop[i]) != 0)
            return false;
    for (int64_t i = 0; i < a->n_stop_ids; i++)
        if (a->stop_ids[i] != b->stop_ids[i])
            return false;
    return true;
}

/*
 * Returns true if the loaded file was sampled with the arithmetic of this run. A file of version 1
 * does not record its arithmetic; it is only known for files with the identity of this run.
 */
static bool has_own_policy(const invar_sample_source *source)
{
    const invar_rollout_policy *file = &source->loaded.header.policy;
    const invar_rollout_policy *own = &source->options.policy;

    if (!file->dtype)
        return source->options.saved->on_policy;
    return strcmp(file->dtype, own->dtype) == 0 && strcmp(file->numerics, own->numerics) == 0 &&
           invar_digest_equal(&file->model, &own->model);
}

/* Returns the name of the first header member that this run would write differently, or NULL. */
static const char *find_differing_header(const invar_sample_source *source)
{
    const invar_rollout_header *h = &source->loaded.header;
    const invar_sampling_params want = source->options.generate.sampling, *s = &h->sampling;
    const struct {
        const char *name;
        bool same;
    } members[] = {
        {"rollout", h->rollout == source->request.rollout},
        {"weights", h->weights == source->request.weights},
        {"dtype, numerics or model", has_own_policy(source)},
        {"weights_hash", source->batch.on_policy},
        {"n_samples_per_prompt", h->n_samples_per_prompt == source->options.generate.per_prompt},
        {"seed", s->seed == want.seed},
        {"purpose", s->purpose == want.purpose},
        {"temperature", s->temperature == want.temperature},
        {"top_k", s->top_k == want.top_k},
        {"top_p", s->top_p == want.top_p},
        {"min_p", s->min_p == want.min_p},
        {"max_response", s->max_response == want.max_response},
        {"max_context", s->max_context == want.max_context},
        {"min_response", s->min_response == want.min_response},
        {"stop_ids or stop", have_equal_stops(s, &want)},
        {"skip_special", s->skip_special == want.skip_special},
    };

    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (!members[i].same)
            return members[i].name;
    return NULL;
}

/* Returns the name of the first member that differs from the recomputed sample, or NULL. */
static const char *find_differing_member(const invar_rl_sample *s, const invar_rl_sample *want)
{
    size_t response = (size_t)invar_rl_sample_response(s);
    const struct {
        const char *name;
        bool same;
    } members[] = {
        {"index", s->index == want->index},
        {"group", s->group == want->group},
        {"prompt", s->data.line == want->data.line},
        {"rollout", s->rollout == want->rollout},
        {"draw", s->draw_index == want->draw_index},
        {"prompt_text", strcmp(s->data.prompt, want->data.prompt) == 0},
        {"label", strcmp(s->data.label, want->data.label) == 0},
        {"metadata", strcmp(s->data.metadata, want->data.metadata) == 0},
        {"prompt_tokens", s->prompt_tokens == want->prompt_tokens},
        {"tokens",
         s->n_tokens == want->n_tokens &&
             have_equal_bytes(s->tokens, want->tokens, (size_t)want->n_tokens * sizeof *s->tokens)},
        {"logprobs", !s->logp == !want->logp},
        {"mask", s->n_tokens == want->n_tokens && have_equal_bytes(s->mask, want->mask, response)},
        {"route_size", s->route_size == want->route_size},
        {"response", s->response_bytes == want->response_bytes &&
                         (want->response_bytes == 0 ||
                          memcmp(s->response, want->response, want->response_bytes) == 0)},
        {"finish", s->finish == want->finish},
        {"weights", s->weights.last == want->weights.last},
        {"weights_first", s->weights.first == want->weights.first},
        {"weights_hash", invar_digest_equal(&s->weights.hash, &want->weights.hash)},
        {"prompt_hash", invar_digest_equal(&s->data.hash, &want->data.hash)},
        {"reward", memcmp(&s->reward, &want->reward, sizeof s->reward) == 0},
        {"parts", invar_reward_parts_equal(&s->parts, &want->parts)},
        {"removed", s->is_masked_out == want->is_masked_out},
    };

    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (!members[i].same)
            return members[i].name;
    return NULL;
}

/*
 * Recomputes from the sampled tokens of s everything that follows from them: text, finish, reward.
 */
static invar_status recompute_sample(invar_rl_sample *want, const invar_sample_source_options *o,
                                     const invar_rl_sample *s)
{
    const invar_sampling_params *sampling = &o->generate.sampling;
    int64_t n = invar_rl_sample_response(s);
    int32_t *tokens;

    INVAR_TRY(INVAR_ALLOC(tokens, (size_t)(want->prompt_tokens + n), "tokens of a sample"));
    memcpy(tokens, want->tokens, (size_t)want->prompt_tokens * sizeof *tokens);
    memcpy(tokens + want->prompt_tokens, s->tokens + s->prompt_tokens, (size_t)n * sizeof *tokens);
    invar_free(want->tokens);
    want->tokens = tokens;
    want->n_tokens = want->prompt_tokens + n;
    INVAR_TRY(INVAR_ALLOC(want->mask, (size_t)n, "a loss mask"));
    memset(want->mask, 1, (size_t)n);
    INVAR_TRY(INVAR_ALLOC(want->logp, (size_t)n, "log-probs"));
    INVAR_TRY(invar_tokenizer_decode(&want->response, &want->response_bytes, o->tokenizer,
                                     tokens + want->prompt_tokens, n, sampling->skip_special));
    want->finish = invar_sampling_is_stop_id(sampling, tokens[want->n_tokens - 1]) ||
                           invar_stop_find(want->response, want->response_bytes, 0, sampling->stop,
                                           sampling->n_stop) >= 0
                       ? INVAR_FINISH_STOP
                       : INVAR_FINISH_LENGTH;
    want->route_size = invar_model_spec_route(o->spec); // training compares the experts
    return invar_reward_source_run(&o->generate.reward_source, want, 1);
}

/*
 * Recomputes sample i of an own file and fails if the file differs. `place` is the index of its
 * prompt in the rollout, `before` the position of the source before the rollout.
 */
static invar_status check_own_sample(const invar_sample_source *source,
                                     const invar_source_position *before, int64_t i, int64_t place,
                                     const invar_prompt *p, const char *path)
{
    const invar_sample_source_options *o = &source->options;
    const invar_rl_sample *s = &source->batch.samples.items[i];
    int64_t n = o->generate.per_prompt;
    invar_rl_sample want = {.index = before->samples + place * n + i % n,
                            .group = before->groups + place,
                            .rollout = (uint32_t)source->request.rollout,
                            .draw_index = o->use_data_answers ? 0 : (uint32_t)(place * n + i % n),
                            .weights.first = source->request.weights,
                            .weights.last = source->request.weights,
                            .weights.hash = source->request.weights_hash};
    const char *odd;
    invar_status status = invar_sample_source_init_sample(&want, p);

    if (status == INVAR_OK)
        status = o->use_data_answers ? invar_sample_source_fill_answer(&want, p)
                                     : recompute_sample(&want, o, s);
    odd = status == INVAR_OK ? find_differing_member(s, &want) : NULL;
    invar_rl_sample_release(&want);
    if (odd)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: \"%s\" of sample %" PRId64
                          " is not what this recipe gives: the "
                          "file was changed, or another version of the program wrote it",
                          path, odd, s->index);
    return status;
}

/* ---- position in the data -------------------------------------------------------------------- */

/*
 * *out = number of prompts that the rollout consumed when it was sampled. For own rollouts it
 * follows from the samples: rounds are complete, and the last round had the last group of the
 * batch.
 */
static invar_status count_consumed(int64_t *out, const invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;
    const invar_rl_samples *samples = &source->batch.samples;
    int64_t last = 0;

    *out = o->config->rollout_batch_size;
    if (!o->saved->on_policy || o->use_data_answers || !o->data)
        return INVAR_OK;
    for (int64_t i = 0; i < samples->count; i++)
        last = samples->items[i].draw_index > last ? samples->items[i].draw_index : last;
    *out = (last / o->generate.per_prompt / o->round + 1) * o->round;
    if (*out / o->round > invar_sample_source_max_rounds(source))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "the loaded rollout %" PRId64 " has draw %" PRId64
                          ", which this recipe never makes",
                          source->request.rollout, last);
    return INVAR_OK;
}

/* *out = number of groups that filters rejected; -1 if the file does not record it. */
static invar_status count_filtered(int64_t *out, const invar_sample_source *source,
                                   int64_t consumed)
{
    const invar_rollout_header *h = &source->loaded.header;
    bool own = source->options.saved->on_policy;
    int64_t most = consumed - source->options.config->rollout_batch_size;

    *out = own && most == 0 ? 0 : h->filters ? h->filtered : -1;
    if (!own || *out <= most) // the rounds of another run are unknown
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "the loaded rollout %" PRId64 " has filtered_groups %" PRId64
                      ", but only %" PRId64 " groups are not in the batch",
                      source->request.rollout, *out, most);
}

/* Advances the position as sampling would have, so that the run can continue without files. */
static invar_status advance_position(invar_sample_source *source, const char *path)
{
    const invar_sample_source_options *o = &source->options;
    const invar_source_position before = source->position;
    const invar_rl_samples *samples = &source->batch.samples;
    int64_t n = o->generate.per_prompt, consumed, i = 0;

    INVAR_TRY(count_consumed(&consumed, source));
    source->position.samples += consumed * n;
    source->position.groups += consumed;
    INVAR_TRY(count_filtered(&source->batch.filtered_groups, source, consumed));
    for (int64_t place = 0; place < consumed && o->data; place++) {
        const invar_prompt *p = invar_sample_source_next(source);
        if (!o->saved->on_policy || i == samples->count ||
            (!o->use_data_answers && samples->items[i].draw_index / n > place))
            continue; // the filter dropped this group
        for (int64_t j = 0; j < n; j++, i++)
            INVAR_TRY(check_own_sample(source, &before, i, place, p, path));
    }
    if (o->saved->on_policy && o->data && i != samples->count)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: sample %" PRId64 " has a draw of an earlier one: the file was "
                          "changed, or another version of the program wrote it",
                          path, samples->items[i].index);
    return INVAR_OK;
}

/* ---- loading and saving ---------------------------------------------------------------------- */

static invar_status check_header(const invar_sample_source *source, const char *path)
{
    const char *odd = source->options.saved->on_policy ? find_differing_header(source) : NULL;

    if (!odd)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s: its \"%s\" is not what this run has: the file was changed, or "
                      "another version of the program wrote it, whose rollouts are foreign with "
                      "use-rollout-logprobs = true",
                      path, odd);
}

/* Runs own samples through the model again, so that rollout hooks see its logits and tokens. */
static invar_status replay_for_hooks(const invar_sample_source *source)
{
    const invar_sample_source_options *o = &source->options;
    const invar_rl_samples *samples = &source->batch.samples;

    return o->saved->on_policy ? invar_rollout_teacher_force(o->generate.rollout, samples->items,
                                                             samples->count, &o->generate.sampling,
                                                             o->generate.tick, o->generate.payload)
                               : INVAR_OK;
}

static invar_status load_rollout(bool *ready_out, invar_sample_source *source)
{
    const invar_rollout_header *h = &source->loaded.header;
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_rollout_file_path(path, sizeof path,
                                      source->options.config->load_debug_rollout_data,
                                      source->request.rollout));
    INVAR_TRY(invar_rollout_file_read(&source->loaded, path));
    source->batch.samples = source->loaded.samples; // moved; the texts stay with the file
    source->loaded.samples = (invar_rl_samples){0};
    source->batch.on_policy =
        invar_digest_equal(&h->weights_hash, &source->request.weights_hash) &&
        h->sampling.temperature == source->options.generate.sampling.temperature &&
        has_own_policy(source);
    INVAR_TRY(check_loaded(source, path));
    INVAR_TRY(check_header(source, path));
    if (!source->options.saved->on_policy)
        INVAR_TRY(check_foreign(source, path));
    *ready_out = true;
    INVAR_TRY(advance_position(source, path));
    return source->options.recompute_points ? replay_for_hooks(source) : INVAR_OK;
}

const invar_sample_source_kind invar_sample_source_files = {.produce = load_rollout, .loads = true};

invar_status invar_sample_source_save(const invar_sample_source *source,
                                      const invar_sample_batch *batch, const char *pattern)
{
    const invar_sample_source_options *o = &source->options;
    const invar_rollout_request *order = &source->request;
    invar_rollout_header header = {.rollout = order->rollout,
                                   .run = o->run,
                                   .weights = order->weights,
                                   .weights_hash = order->weights_hash,
                                   .n_samples_per_prompt = o->generate.per_prompt,
                                   .filters = o->config->dynamic_sampling_filter ==
                                                  INVAR_GROUP_FILTER_NONZERO_STD ||
                                              o->config->dynamic_sampling_filter_path[0] ||
                                              o->config->rollout_sample_filter_path[0] ||
                                              o->round > o->config->rollout_batch_size,
                                   .filtered = batch->filtered_groups,
                                   .sampling = o->generate.sampling,
                                   .policy = o->policy};
    char path[INVAR_PATH_SIZE];

    invar_tokenizer_hash(&header.tokenizer, o->tokenizer);
    INVAR_TRY(invar_rollout_file_path(path, sizeof path, pattern, order->rollout));
    return invar_rollout_file_write(path, &header, batch->samples.items, batch->samples.count);
}
