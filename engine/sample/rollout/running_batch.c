/*
 * running_batch.c - puts samples into the running batch: checks, buffers, sequences, proposers.
 *
 * A run sets up everything once; a stream adds samples later with the same functions. Everything
 * that can fail for one sample fails here, before the scheduler knows the sample. Samples of a
 * group that have nothing but their prompt share its prefill.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/running_batch.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/minmax.h"

#include "base/invar_banned.h"

#define FIRST_CAPACITY 64 // response tokens

/* ---- checks ---------------------------------------------------------------------------------- */

invar_status invar_rollout_check(const invar_model_spec *spec, const invar_tokenizer *tokenizer,
                                 const invar_sampling_params *p)
{
    if (p->max_response < 1 || p->min_response < 0 || p->max_context < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: responses of %" PRId64 " to %" PRId64
                          " tokens in a context of %" PRId64 "; expected 0 or more to 1 or more",
                          p->min_response, p->max_response, p->max_context);
    if (p->max_context > spec->max_positions)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: a context of %" PRId64 " tokens; the model has %" PRId64
                          " positions",
                          p->max_context, spec->max_positions);
    if ((p->max_context ? p->max_context : spec->max_positions) < 2)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: a context of 1 token has no room for a prompt and a response; "
                          "allow a longer one (rollout-max-context-len, max-position-embeddings)");
    for (int64_t i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] < 0 || p->stop_ids[i] >= spec->vocab)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "rollout: stop id %" PRId32 "; the vocabulary has %" PRId64 " tokens",
                              p->stop_ids[i], spec->vocab);
    for (int64_t i = 0; i < p->n_stop; i++)
        if (!tokenizer || !p->stop[i][0])
            return INVAR_FAIL(INVAR_E_INVALID, 0, "rollout: stop string %" PRId64 " %s", i,
                              tokenizer ? "is empty" : "needs a tokenizer");
    return INVAR_OK;
}

int64_t invar_running_batch_limit(const invar_rollout *r, const invar_sampling_params *p,
                                  const invar_rl_sample *s)
{
    int64_t context = p->max_context ? p->max_context : r->model->spec.max_positions;

    return context - s->prompt_tokens < p->max_response ? context
                                                        : s->prompt_tokens + p->max_response;
}

/* Returns the number of tokens at which the sample ends or is suspended in this run. */
static int64_t limit_now(const invar_running_batch *run, const invar_sampling_params *p,
                         const invar_rl_sample *s)
{
    int64_t limit = invar_running_batch_limit(run->rollout, p, s);

    return s->suspend_at > 0 && s->suspend_at < limit ? s->suspend_at : limit;
}

/* Returns the number of expert ids in the routing of a row. */
static int64_t route_size(const invar_running_batch *run)
{
    const invar_model *model = run->rollout->model;

    return invar_model_sparse_layers(model) * model->spec.experts.per_token;
}

static bool has_response_tokens(const invar_rl_sample *s)
{
    return s->n_tokens > s->prompt_tokens;
}

/* Returns true for a prompt, and for a suspended sample with all arrays that it must have. */
static bool can_continue(const invar_running_batch *run, const invar_sampling_params *p,
                         const invar_rl_sample *s)
{
    if (s->prompt_tokens < 1 || s->n_tokens < s->prompt_tokens || s->finish != INVAR_FINISH_NONE)
        return false;
    if (!has_response_tokens(s))
        return true;
    return s->logp && s->mask && s->route_size == route_size(run) &&
           (s->route_size == 0 || s->routing) && s->n_tokens < limit_now(run, p, s);
}

static invar_status check_sample(const invar_running_batch *run, const invar_sampling_params *p,
                                 const invar_rl_sample *s)
{
    const invar_model_spec *spec = &run->rollout->model->spec;

    if (!can_continue(run, p, s))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: sample %" PRId64 " has %" PRId64 " tokens, %" PRId64
                          " of them prompt; expected a prompt, or one with a part of its response",
                          s->index, s->n_tokens, s->prompt_tokens);
    if (invar_running_batch_limit(run->rollout, p, s) <= s->prompt_tokens)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: the prompt of sample %" PRId64 " (line %" PRId64
                          " of the data) has %" PRId64
                          " tokens and leaves no room for a response: filter such prompts, or "
                          "allow a longer context",
                          s->index, s->data.line, s->prompt_tokens);
    for (int64_t i = 0; i < s->n_tokens; i++)
        if (s->tokens[i] < 0 || s->tokens[i] >= spec->vocab)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "rollout: token %" PRId32 " of sample %" PRId64
                              "; the vocabulary has %" PRId64,
                              s->tokens[i], s->index, spec->vocab);
    return INVAR_OK;
}

static invar_status check_same_prompt(const invar_rl_sample *a, const invar_rl_sample *b)
{
    if (a->prompt_tokens != b->prompt_tokens ||
        memcmp(a->tokens, b->tokens, (size_t)a->prompt_tokens * sizeof *a->tokens) != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: samples %" PRId64 " and %" PRId64 " are of group %" PRId64
                          " but their prompts differ",
                          a->index, b->index, a->group);
    return INVAR_OK;
}

/* ---- buffers --------------------------------------------------------------------------------- */

invar_status invar_running_batch_grow_sample(invar_decode_state *state)
{
    invar_rl_sample *s = state->sample;
    int64_t most = state->limit - s->prompt_tokens;
    int64_t room = invar_min_i64(state->capacity ? 2 * state->capacity : FIRST_CAPACITY, most);

    INVAR_TRY(invar_rl_sample_reserve(s, room));
    state->capacity = room;
    return INVAR_OK;
}

/* ---- sequences ------------------------------------------------------------------------------- */

/* Returns how many samples from `first` on are of one group and have nothing but their prompt. */
static int64_t group_size(const invar_running_batch *run, int64_t first)
{
    const invar_rl_sample *s = run->states[first].sample;
    int64_t n = 1;

    while (!has_response_tokens(s) && first + n < run->count &&
           run->states[first + n].sample->group == s->group &&
           !has_response_tokens(run->states[first + n].sample))
        n++;
    return n;
}

/*
 * Returns true if n samples should share a sequence for their prompt: several samples, and enough
 * pages for the prompt and the longest of them together.
 */
static bool should_share_prompt(const invar_running_batch *run, int64_t first, int64_t n)
{
    const invar_decode_state *state = &run->states[first];
    int64_t size = run->limits.page_size, prompt = state->sample->prompt_tokens;
    int64_t pages = (state->limit - 1 + size - 1) / size + (prompt % size != 0);

    return n > 1 && !run->limits.no_prefix_sharing && pages <= run->rollout->cache->shape.pages;
}

static void add_sequence(invar_running_batch *run, int64_t first, int64_t rows, int64_t children)
{
    const invar_rl_sample *s = run->states[first].sample;

    run->seqs[run->n_seqs++] = (invar_seq){.prefill = s->n_tokens,
                                           .rows = rows,
                                           .n_sharing = children,
                                           .sample = first,
                                           .tokens = s->tokens};
}

static invar_status add_group(invar_running_batch *run, int64_t first, int64_t n)
{
    int64_t prompt = run->states[first].sample->prompt_tokens;

    for (int64_t i = first + 1; i < first + n; i++)
        INVAR_TRY(check_same_prompt(run->states[first].sample, run->states[i].sample));
    if (should_share_prompt(run, first, n)) {
        run->rollout->counters.shared += (n - 1) * prompt;
        add_sequence(run, first, prompt, n);
    }
    for (int64_t i = first; i < first + n; i++) {
        run->states[i].seq = run->n_seqs;
        // the last token of a sample is never an input
        add_sequence(run, i, run->states[i].limit - 1, 0);
    }
    return INVAR_OK;
}

/* Restores the decode state of a suspended sample: its capacity, and its text for stop strings. */
static invar_status restore_suspended(const invar_running_batch *run, invar_decode_state *state)
{
    const invar_sampling_params *p = state->sampling;
    const invar_rl_sample *s = state->sample;

    state->capacity = invar_rl_sample_response(s);
    for (int64_t i = s->prompt_tokens; p->n_stop > 0 && i < s->n_tokens; i++)
        INVAR_TRY(invar_text_stream_push(&state->text, run->rollout->tokenizer, s->tokens[i],
                                         p->skip_special));
    return INVAR_OK;
}

static invar_status begin_decode_state(invar_running_batch *run, invar_decode_state *state)
{
    INVAR_TRY(check_sample(run, state->sampling, state->sample));
    state->limit = limit_now(run, state->sampling, state->sample);
    state->sample->route_size = route_size(run);
    INVAR_TRY(has_response_tokens(state->sample) ? restore_suspended(run, state) : INVAR_OK);
    return invar_running_batch_grow_sample(state);
}

invar_status invar_running_batch_add_samples(invar_running_batch *run, invar_rl_sample *samples,
                                             int64_t count, const invar_sampling_params *sampling)
{
    const invar_rollout *r = run->rollout;

    INVAR_TRY(invar_rollout_check(&r->model->spec, r->tokenizer, sampling));
    for (int64_t i = 0; i < count; i++) {
        invar_decode_state *state = &run->states[run->count++];

        *state = (invar_decode_state){.sample = &samples[i], .sampling = sampling};
        INVAR_TRY(begin_decode_state(run, state));
    }
    return INVAR_OK;
}

invar_status invar_running_batch_add_seqs(invar_running_batch *run, int64_t first)
{
    for (int64_t i = first, n; i < run->count; i += n) {
        n = group_size(run, i);
        INVAR_TRY(add_group(run, i, n));
    }
    return INVAR_OK;
}

static invar_status begin_hooks(invar_running_batch *run)
{
    const invar_forward_hooks probe = invar_row_ownership_probe(&run->rollout->row_owners);

    INVAR_TRY(INVAR_ALLOC(run->draw_indexes, (size_t)run->count, "the draws of samples"));
    for (int64_t i = 0; i < run->count; i++)
        run->draw_indexes[i] = run->states[i].sample->draw_index;
    run->row_owners = &run->rollout->row_owners;
    run->row_owners->draws = run->draw_indexes;
    invar_rollout_stages_probe(run->rollout, &probe);
    return INVAR_OK;
}

/* Returns the number of draft tokens per sequence; 0 while hooks or an audit are active. */
static int64_t lookahead_of(const invar_running_batch *run)
{
    const invar_rollout *r = run->rollout;

    return run->row_owners || r->audited ? 0 : invar_speculation_tokens(&r->limits.speculation);
}

invar_status invar_running_batch_select_proposer(invar_running_batch *run)
{
    const invar_rollout *r = run->rollout;

    r->cache->draft_cache = NULL;
    if (lookahead_of(run) == 0)
        return INVAR_OK;
    run->proposer = r->proposer;
    if (run->proposer.propose)
        return INVAR_OK;
    if (r->draft) {
        run->draft = r->draft;
        run->proposer = (invar_draft_proposer){invar_draft_model_propose, run->draft};
        return invar_draft_model_begin(run->draft, run->sampling, &run->runner);
    }
    run->proposer = (invar_draft_proposer){invar_ngram_proposer_propose, NULL};
    return INVAR_OK;
}

invar_status invar_running_batch_add_ngrams(invar_running_batch *run, int64_t first)
{
    invar_ngram_proposer *seen = NULL;

    if (run->proposer.propose != invar_ngram_proposer_propose || run->count == first)
        return INVAR_OK;
    INVAR_TRY(invar_ngram_proposer_new(&seen, run->states[first].sample, run->count - first,
                                       &run->rollout->limits.speculation.window));
    for (int64_t i = first; i < run->count; i++)
        run->states[i].ngrams = seen;
    return INVAR_OK;
}

void invar_running_batch_release_state(invar_decode_state *state)
{
    invar_text_stream_release(&state->text);
    invar_ngram_proposer_leave(state->ngrams);
    state->ngrams = NULL;
}

invar_status invar_running_batch_reserve(invar_running_batch *run, int64_t count)
{
    INVAR_TRY(
        INVAR_GROW(run->states, run->capacity, run->count, count, "the samples of a rollout"));
    // every shared prompt has a sample, so there are at most as many prompts as samples
    INVAR_TRY(INVAR_GROW(run->seqs, run->seqs_capacity, run->n_seqs, 2 * run->capacity,
                         "the jobs of a rollout"));
    run->runner.scheduler.seqs = run->seqs;
    return INVAR_OK;
}

invar_status invar_running_batch_make_draws(invar_running_batch *run, int64_t samples)
{
    int64_t sequences = run->runner.scheduler.concurrency;

    return INVAR_GROW(run->draws, run->draws_capacity, 0,
                      samples + sequences * (1 + lookahead_of(run)), "the draws of a pass");
}

invar_status invar_running_batch_init_runner(invar_running_batch *run, int64_t sequences,
                                             int64_t rows)
{
    const invar_model_runner_limits room = {
        .sequences = sequences, .rows = rows, .ahead = lookahead_of(run)};

    INVAR_TRY(invar_model_runner_init(&run->runner, run->rollout, &run->limits, &room, run->seqs,
                                      run->n_seqs));
    run->runner.steady = true;
    run->runner.row_owners = run->sampler.row_owners = run->row_owners;
    INVAR_TRY(INVAR_ALLOC(run->draft_requests, (size_t)run->runner.scheduler.concurrency,
                          "the guesses of a pass"));
    return invar_running_batch_make_draws(run, run->capacity);
}

invar_status invar_running_batch_begin(invar_running_batch *run, invar_rl_sample *samples,
                                       int64_t count)
{
    int64_t most = 1;

    INVAR_CHECK(!run->rollout->stream);
    INVAR_TRY(invar_running_batch_reserve(run, count));
    INVAR_TRY(invar_sampler_init(&run->sampler, &run->rollout->op_runner, run->sampling));
    INVAR_TRY(invar_running_batch_add_samples(run, samples, count, run->sampling));
    if (run->rollout->row_owners.hooks.probe.on_value)
        INVAR_TRY(begin_hooks(run));
    for (int64_t i = 0; i < run->count; i++)
        most = run->states[i].limit - 1 > most ? run->states[i].limit - 1 : most;
    INVAR_TRY(invar_model_runner_resolve_options(&run->limits, run->rollout, run->count, most));
    INVAR_TRY(invar_running_batch_add_seqs(run, 0));
    INVAR_TRY(invar_running_batch_init_runner(run, run->n_seqs, most));
    INVAR_TRY(invar_running_batch_select_proposer(run));
    return invar_running_batch_add_ngrams(run, 0);
}

void invar_running_batch_end(invar_running_batch *run)
{
    for (int64_t i = 0; run->states && i < run->count; i++)
        invar_running_batch_release_state(&run->states[i]);
    invar_model_runner_release(&run->runner);
    invar_sampler_release(&run->sampler);
    invar_rollout_stages_probe(run->rollout, NULL);
    if (run->draft)
        invar_draft_model_end(run->draft);
    invar_free(run->draw_indexes);
    invar_free(run->states);
    invar_free(run->draws);
    invar_free(run->draft_requests);
    invar_free(run->seqs);
}
