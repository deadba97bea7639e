/*
 * saved.c - rollouts in files: written, and trained from.
 *
 * Files of the run's own identity are believed in nothing that the recipe says: weights, settings
 * of sampling, prompts, texts and rewards are made again and compared, and training compares the
 * log-probabilities. What is left is which tokens were drawn. All other files are foreign: data
 * like a data set, whose hash belongs to the identity.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/rollout/stop.h"
#include "engine/run/loop.h"

#include "base/invar_banned.h"

/* ---- whose they are -------------------------------------------------------------------------- */

static invar_status hash_file(invar_loop *loop, const char *path)
{
    int64_t n = loop->n_files, bytes;
    invar_digest *files;

    if ((n & (n - 1)) == 0) { // full: 0, 1, 2, 4, ...
        INVAR_TRY(invar_alloc((void **)&files, (size_t)(n ? 2 * n : 1), sizeof *files,
                              "hashes of rollouts"));
        if (n)
            memcpy(files, loop->files, (size_t)n * sizeof *files);
        invar_free(loop->files);
        loop->files = files;
    }
    INVAR_TRY(invar_file_hash(&loop->files[n], &bytes, path));
    loop->n_files++;
    return INVAR_OK;
}

/* All that are there, like the lines of a data set: not only those that this run gets to. */
static invar_status hash_files(invar_loop *loop, const char *pattern)
{
    char path[INVAR_PATH_SIZE];

    for (;;) {
        INVAR_TRY(invar_rollout_file_path(path, sizeof path, pattern, loop->n_files));
        if (!invar_path_exists(path))
            break;
        INVAR_TRY(hash_file(loop, path));
    }
    invar_hash_bytes(&loop->foreign, loop->files, (size_t)loop->n_files * sizeof *loop->files);
    return INVAR_OK;
}

/* What a plug-in decided nobody can make again from the recipe. */
static bool decided_by_plugin(const invar_recipe *r)
{
    return invar_recipe_string(r, INVAR_KEY_CUSTOM_RM_PATH)[0] ||
           invar_recipe_string(r, INVAR_KEY_ROLLOUT_SAMPLE_FILTER_PATH)[0];
}

static invar_status refuse_idle_keys(const invar_recipe *r, const char *path)
{
    static const invar_key keys[] = {INVAR_KEY_USE_ROLLOUT_LOGPROBS, INVAR_KEY_USE_TIS,
                                     INVAR_KEY_USE_MIS};
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, path);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (invar_recipe_bool(r, (int)keys[i]))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "'%s' would be ignored: %s is this run's own rollout, whose "
                              "log-probabilities are those of training",
                              invar_config_schema()->keys[keys[i]].name, shown);
    return INVAR_OK;
}

invar_status invar_loop_find_rollouts(invar_loop *loop, const invar_digest *own)
{
    const char *pattern = invar_recipe_string(loop->recipe, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA);
    invar_rollout_data first = {0};
    char path[INVAR_PATH_SIZE];

    if (!pattern[0])
        return INVAR_OK;
    INVAR_TRY(invar_rollout_file_path(path, sizeof path, pattern, 0));
    if (!invar_path_exists(path)) // the first rollout fails, or the run goes on from a later one
        return INVAR_OK;
    INVAR_TRY(invar_rollout_file_read(&first, path));
    loop->own_rollouts =
        invar_digest_equal(&first.header.run, own) && !decided_by_plugin(loop->recipe);
    invar_rollout_data_release(&first);
    return loop->own_rollouts ? refuse_idle_keys(loop->recipe, path) : hash_files(loop, pattern);
}

/* ---- what all must fulfil -------------------------------------------------------------------- */

/* A file may be of a model with more tokens or a longer context. */
static invar_status check_fits(const invar_rl_sample *s, const invar_model_spec *spec,
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

static invar_status check_loaded(const invar_loop *loop, const char *path)
{
    const invar_rollout_header *h = &loop->loaded.header;
    int64_t wanted = loop->set.global_batch * loop->set.steps_per_rollout;
    invar_digest tokenizer;

    if (loop->own_rollouts && !invar_digest_equal(&h->run, &loop->identity))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s is of another run; a run takes its rollouts from one run only, "
                          "and from another than itself beginning with rollout 0",
                          path);
    invar_tokenizer_hash(&tokenizer, loop->session.tokenizer);
    if (!invar_digest_equal(&tokenizer, &h->tokenizer))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%.1000s was sampled with another tokenizer", path);
    if (loop->batch.count != wanted)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s has %" PRId64 " samples, the recipe's steps need %" PRId64, path,
                          loop->batch.count, wanted);
    for (int64_t i = 0; i < loop->batch.count; i++)
        INVAR_TRY(check_fits(&loop->batch.items[i], &loop->session.spec, path));
    return INVAR_OK;
}

/* ---- foreign ones ---------------------------------------------------------------------------- */

/* The file is the one that the identity knows, and has what the recipe wants of it. */
static invar_status check_foreign(const invar_loop *loop, const char *path,
                                  const invar_digest *content)
{
    const invar_rl_options *rl = &loop->set.rl;
    bool needed = rl->use_tis || rl->use_mis || loop->set.rollout_logprobs;

    if (!loop->options->replay && (loop->place.rollout >= loop->n_files ||
                                   !invar_digest_equal(content, &loop->files[loop->place.rollout])))
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%.1000s has changed since the run was started: its content belongs to "
                          "the run's identity; begin another run",
                          path);
    for (int64_t i = 0; i < loop->batch.count && needed; i++)
        if (!loop->batch.items[i].logp)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%.1000s: sample %" PRId64
                              " has no log-probabilities, which use-tis, "
                              "use-mis and use-rollout-logprobs need",
                              path, loop->batch.items[i].index);
    return INVAR_OK;
}

/* ---- own ones -------------------------------------------------------------------------------- */

static bool same_list(const void *a, const void *b, size_t bytes)
{
    return !a == !b && (!a || memcmp(a, b, bytes) == 0);
}

static bool same_stops(const invar_sampling *a, const invar_sampling *b)
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

/* The first member of the header that is not what this run would write; NULL: none. */
static const char *odd_header(const invar_loop *loop, const invar_rollout_header *h)
{
    const invar_sampling want = invar_session_sampling(&loop->session), *s = &h->sampling;
    const struct {
        const char *name;
        bool same;
    } members[] = {
        {"rollout", h->rollout == loop->place.rollout},
        {"weights", h->weights == loop->place.weights},
        {"weights_hash", loop->own_weights},
        {"n_samples_per_prompt", h->n_samples_per_prompt == loop->set.per_prompt},
        {"seed", s->seed == want.seed},
        {"purpose", s->purpose == want.purpose},
        {"temperature", s->temperature == want.temperature},
        {"top_k", s->top_k == want.top_k},
        {"top_p", s->top_p == want.top_p},
        {"min_p", s->min_p == want.min_p},
        {"max_response", s->max_response == want.max_response},
        {"max_context", s->max_context == want.max_context},
        {"min_response", s->min_response == want.min_response},
        {"stop_ids or stop", same_stops(s, &want)},
        {"skip_special", s->skip_special == want.skip_special},
    };

    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (!members[i].same)
            return members[i].name;
    return NULL;
}

/* The first member of a sample that is not what this run would have; NULL: none. */
static const char *odd_member(const invar_rl_sample *s, const invar_rl_sample *want)
{
    size_t response = (size_t)invar_rl_sample_response(s);
    const struct {
        const char *name;
        bool same;
    } members[] = {
        {"index", s->index == want->index},
        {"group", s->group == want->group},
        {"prompt", s->prompt == want->prompt},
        {"rollout", s->rollout == want->rollout},
        {"draw", s->draw == want->draw},
        {"prompt_text", strcmp(s->prompt_text, want->prompt_text) == 0},
        {"label", strcmp(s->label, want->label) == 0},
        {"metadata", strcmp(s->metadata, want->metadata) == 0},
        {"prompt_tokens", s->prompt_tokens == want->prompt_tokens},
        {"tokens",
         s->n_tokens == want->n_tokens &&
             same_list(s->tokens, want->tokens, (size_t)want->n_tokens * sizeof *s->tokens)},
        {"logprobs", !s->logp == !want->logp},
        {"mask", s->n_tokens == want->n_tokens && same_list(s->mask, want->mask, response)},
        {"route_size", s->route_size == want->route_size},
        {"response", s->response_bytes == want->response_bytes &&
                         (want->response_bytes == 0 ||
                          memcmp(s->response, want->response, want->response_bytes) == 0)},
        {"finish", s->finish == want->finish},
        {"weights", s->weights == want->weights},
        {"weights_hash", invar_digest_equal(&s->weights_hash, &want->weights_hash)},
        {"prompt_hash", invar_digest_equal(&s->prompt_hash, &want->prompt_hash)},
        {"reward", memcmp(&s->reward, &want->reward, sizeof s->reward) == 0},
        {"removed", s->removed == want->removed},
    };

    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (!members[i].same)
            return members[i].name;
    return NULL;
}

/* What follows from the drawn tokens: text, end and reward. */
static invar_status complete(invar_rl_sample *want, const invar_loop *loop,
                             const invar_rl_sample *s)
{
    const invar_sampling sampling = invar_session_sampling(&loop->session);
    int64_t n = invar_rl_sample_response(s);
    int32_t *tokens;

    INVAR_TRY(invar_alloc((void **)&tokens, (size_t)(want->prompt_tokens + n), sizeof *tokens,
                          "tokens of a sample"));
    memcpy(tokens, want->tokens, (size_t)want->prompt_tokens * sizeof *tokens);
    memcpy(tokens + want->prompt_tokens, s->tokens + s->prompt_tokens, (size_t)n * sizeof *tokens);
    invar_free(want->tokens);
    want->tokens = tokens;
    want->n_tokens = want->prompt_tokens + n;
    INVAR_TRY(invar_alloc((void **)&want->mask, (size_t)n, 1, "a loss mask"));
    memset(want->mask, 1, (size_t)n);
    INVAR_TRY(invar_alloc((void **)&want->logp, (size_t)n, sizeof *want->logp, "log-probs"));
    INVAR_TRY(invar_tokenizer_decode(&want->response, &want->response_bytes,
                                     loop->session.tokenizer, tokens + want->prompt_tokens, n,
                                     sampling.skip_special));
    want->finish = invar_sampling_ends(&sampling, tokens[want->n_tokens - 1]) ||
                           invar_stop_find(want->response, want->response_bytes, 0, sampling.stop,
                                           sampling.n_stop) >= 0
                       ? INVAR_FINISH_STOP
                       : INVAR_FINISH_LENGTH;
    want->route_size = s->route_size; // training compares the experts
    return invar_judge_run(&loop->judge, want, 1);
}

/* `place`: the prompt's among those that the rollout took. */
static invar_status check_own(const invar_loop *loop, const invar_loop_place *before, int64_t i,
                              int64_t place, const invar_prompt *p, const char *path)
{
    const invar_rl_sample *s = &loop->batch.items[i];
    int64_t n = loop->set.per_prompt;
    invar_rl_sample want = {.index = before->samples + place * n + i % n,
                            .group = before->groups + place,
                            .rollout = (uint32_t)before->rollout,
                            .draw = loop->set.sft ? 0 : (uint32_t)(place * n + i % n),
                            .weights = before->weights,
                            .weights_hash = loop->weights_hash};
    const char *odd;
    invar_status status = invar_session_ask(&want, p);

    if (status == INVAR_OK)
        status = loop->set.sft ? invar_loop_answer(&want, p) : complete(&want, loop, s);
    odd = status == INVAR_OK ? odd_member(s, &want) : NULL;
    invar_rl_sample_release(&want);
    if (odd)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: \"%s\" of sample %" PRId64
                          " is not what this recipe gives: the "
                          "file was changed, or another version of the program wrote it",
                          path, odd, s->index);
    return status;
}

/* ---- the place in the data ------------------------------------------------------------------- */

/*
 * The prompts that this rollout took from the data when it was sampled. Of the run's own rollouts
 * that is known: rounds are whole, and the last one had the last group of the batch.
 */
static invar_status count_consumed(int64_t *out, const invar_loop *loop)
{
    int64_t size = invar_loop_round_size(loop), last = 0;

    *out = loop->set.prompts;
    if (!loop->own_rollouts || loop->set.sft || !loop->session.data)
        return INVAR_OK;
    for (int64_t i = 0; i < loop->batch.count; i++)
        last = loop->batch.items[i].draw > last ? loop->batch.items[i].draw : last;
    *out = (last / loop->set.per_prompt / size + 1) * size;
    if (*out / size > invar_loop_most_rounds(loop, size))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "the loaded rollout %" PRId64 " has draw %" PRId64
                          ", which this recipe never makes",
                          loop->place.rollout, last);
    return INVAR_OK;
}

/* Leaves the place as sampling would have, so that the run may go on without files. */
static invar_status pass_over(invar_loop *loop, const char *path)
{
    const invar_loop_place before = loop->place;
    int64_t n = loop->set.per_prompt, consumed, i = 0;

    INVAR_TRY(count_consumed(&consumed, loop));
    loop->place.samples += consumed * n;
    loop->place.groups += consumed;
    loop->dropped_groups = consumed - loop->set.prompts;
    for (int64_t place = 0; place < consumed && loop->session.data; place++) {
        const invar_prompt *p = invar_loop_next_prompt(loop);
        if (!loop->own_rollouts || i == loop->batch.count ||
            (!loop->set.sft && loop->batch.items[i].draw / n > place))
            continue; // a group that the filter dropped
        for (int64_t j = 0; j < n; j++, i++)
            INVAR_TRY(check_own(loop, &before, i, place, p, path));
    }
    if (loop->own_rollouts && loop->session.data && i != loop->batch.count)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%.1000s: sample %" PRId64 " has a draw of an earlier one: the file was "
                          "changed, or another version of the program wrote it",
                          path, loop->batch.items[i].index);
    return INVAR_OK;
}

/* ---- one rollout ----------------------------------------------------------------------------- */

static invar_status check_header(const invar_loop *loop, const char *path)
{
    const char *odd = loop->own_rollouts ? odd_header(loop, &loop->loaded.header) : NULL;

    if (!odd)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s: its \"%s\" is not what this run has: the file was changed, or "
                      "another version of the program wrote it, whose rollouts are foreign with "
                      "use-rollout-logprobs = true",
                      path, odd);
}

invar_status invar_loop_load_rollout(invar_loop *loop, const char *pattern)
{
    const invar_rollout_header *h = &loop->loaded.header;
    char path[INVAR_PATH_SIZE];

    invar_rollout_data_release(&loop->loaded);
    INVAR_TRY(invar_rollout_file_path(path, sizeof path, pattern, loop->place.rollout));
    INVAR_TRY(invar_rollout_file_read(&loop->loaded, path));
    loop->batch = loop->loaded.samples; // moved; the texts stay with the file
    loop->loaded.samples = (invar_rl_samples){0};
    loop->own_weights =
        invar_digest_equal(&h->weights_hash, &loop->weights_hash) &&
        h->sampling.temperature == invar_session_sampling(&loop->session).temperature;
    INVAR_TRY(check_loaded(loop, path));
    INVAR_TRY(check_header(loop, path));
    if (!loop->own_rollouts)
        INVAR_TRY(check_foreign(loop, path, &loop->loaded.content));
    return pass_over(loop, path);
}

invar_status invar_loop_save_rollout(invar_loop *loop, const char *pattern)
{
    invar_rollout_header header = {.rollout = loop->place.rollout,
                                   .run = loop->identity,
                                   .weights = loop->place.weights,
                                   .weights_hash = loop->weights_hash,
                                   .n_samples_per_prompt = loop->set.per_prompt,
                                   .sampling = invar_session_sampling(&loop->session)};
    char path[INVAR_PATH_SIZE];

    invar_tokenizer_hash(&header.tokenizer, loop->session.tokenizer);
    INVAR_TRY(invar_rollout_file_path(path, sizeof path, pattern, loop->place.rollout));
    return invar_rollout_file_write(path, &header, loop->batch.items, loop->batch.count);
}
