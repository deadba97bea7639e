/*
 * rollout_run.c - the sampling loop: runs passes, samples tokens and appends them to their samples.
 *
 * One step is: get the slices of the next pass from the scheduler, propose draft tokens, run the
 * pass, sample from every row that yields a token, and append the tokens, finishing samples at stop
 * ids, stop strings and lengths. Draft tokens (engine/sample/rollout/draft) are written after the
 * tokens of their sample, where the pass reads its input. Sampled tokens overwrite them and are
 * appended as long as the drafts were equal; rows after the first difference are discarded, so
 * drafts change no token.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/rollout.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/sample/rollout/running_batch.h"
#include "engine/sample/rollout/stop.h"

#include "base/invar_banned.h"

/* ---- tokens ---------------------------------------------------------------------------------- */

bool invar_sampling_is_stop_id(const invar_sampling_params *p, int32_t token)
{
    for (int64_t i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == token)
            return true;
    return false;
}

/*
 * *out = finish of a sample after its newest token, INVAR_FINISH_NONE if it continues. A sample
 * with forced tokens ends like the given sample.
 */
static invar_status check_finish(invar_finish *out, const invar_running_batch *run,
                                 invar_decode_state *state)
{
    const invar_sampling_params *p = state->sampling;
    const invar_rl_sample *s = state->sample;
    int32_t token = s->tokens[s->n_tokens - 1];
    bool may_end = invar_rl_sample_response(s) > p->min_response;
    bool stop = may_end && invar_sampling_is_stop_id(p, token);

    if (run->forced_samples) {
        const invar_rl_sample *given = &run->forced_samples[state - run->states];
        *out = s->n_tokens == given->n_tokens ? given->finish : INVAR_FINISH_NONE;
        return INVAR_OK;
    }
    if (p->n_stop > 0) {
        INVAR_TRY(
            invar_text_stream_push(&state->text, run->rollout->tokenizer, token, p->skip_special));
        stop = stop ||
               (may_end && invar_stop_find(state->text.text, state->text.bytes,
                                           state->text.unchanged_bytes, p->stop, p->n_stop) >= 0);
    }
    *out = stop                                                           ? INVAR_FINISH_STOP
           : s->n_tokens == invar_running_batch_limit(run->rollout, p, s) ? INVAR_FINISH_LENGTH
                                                                          : INVAR_FINISH_NONE;
    return INVAR_OK;
}

invar_status invar_rollout_decode(invar_rl_sample *s, const invar_tokenizer *tokenizer,
                                  bool skip_special)
{
    int64_t n = invar_rl_sample_response(s), own = 0;
    invar_status status;
    int32_t *ids;

    INVAR_TRY(INVAR_ALLOC(ids, (size_t)n, "tokens of a response"));
    for (int64_t i = 0; i < n; i++)
        if (s->mask[i])
            ids[own++] = s->tokens[s->prompt_tokens + i];
    invar_free(s->response);
    s->response = NULL;
    status =
        invar_tokenizer_decode(&s->response, &s->response_bytes, tokenizer, ids, own, skip_special);
    invar_free(ids);
    return status;
}

/* Takes a sample out of the run: finished, or suspended if `how` is INVAR_FINISH_NONE. */
static invar_status finish_sample(invar_running_batch *run, invar_decode_state *state,
                                  invar_finish how)
{
    invar_rl_sample *s = state->sample;

    invar_scheduler_finish(&run->runner.scheduler, state->seq);
    invar_running_batch_release_state(state);
    if (run->rollout->tokenizer && how != INVAR_FINISH_NONE) {
        invar_free(s->response);
        s->response = NULL;
        INVAR_TRY(invar_tokenizer_decode(&s->response, &s->response_bytes, run->rollout->tokenizer,
                                         s->tokens + s->prompt_tokens, invar_rl_sample_response(s),
                                         state->sampling->skip_special));
    }
    s->finish = how;
    s->stats.arrival = run->samples_done++;
    return INVAR_OK;
}

static invar_status append_token(invar_running_batch *run, const invar_draw *draw)
{
    invar_decode_state *state = &run->states[draw->owner];
    invar_rl_sample *s = state->sample;
    int64_t n = invar_rl_sample_response(s);
    invar_finish how;

    state->finished = !isfinite(draw->logp) && run->rollout->stream == run;
    if (state->finished)
        return finish_sample(run, state, INVAR_FINISH_ABORT); // the other samples continue
    if (!isfinite(draw->logp))
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "rollout: draw %" PRIu32 " has logits that are not finite at "
                          "position %" PRIu32 ": the weights are damaged or have diverged",
                          draw->coords.sample, draw->coords.position);
    if (n == state->capacity)
        INVAR_TRY(invar_running_batch_grow_sample(state));
    run->seqs[state->seq].tokens = s->tokens;
    s->tokens[s->n_tokens] =
        run->forced_samples ? run->forced_samples[draw->owner].tokens[s->n_tokens] : draw->token;
    s->n_tokens++;
    s->logp[n] = draw->logp;
    s->mask[n] = 1;
    run->tokens_done++;
    INVAR_TRY(check_finish(&how, run, state));
    state->finished = how != INVAR_FINISH_NONE || s->n_tokens == state->limit;
    return state->finished ? finish_sample(run, state, how) : INVAR_OK;
}

/* ---- drafts ---------------------------------------------------------------------------------- */

/* Returns true if the slice is decoded: each of its rows yields a token of the same sample. */
static bool is_decoded(const invar_running_batch *run, const invar_seq_slice *turn)
{
    return turn->first >= run->seqs[turn->seq].prefill;
}

/* Prepares the draft request of slice i, and space for the draft tokens in its sample. */
static invar_status request_draft(invar_draft_request *out, invar_running_batch *run, int64_t i)
{
    const invar_seq_slice *turn = &run->runner.slices[i];
    invar_seq *seq = &run->seqs[turn->seq];
    invar_decode_state *state = &run->states[seq->sample];

    while (invar_rl_sample_response(state->sample) + turn->count > state->capacity)
        INVAR_TRY(invar_running_batch_grow_sample(state));
    seq->tokens = state->sample->tokens;
    *out = (invar_draft_request){.sample = state->sample,
                                 .sampling = state->sampling,
                                 .ngrams = state->ngrams,
                                 .seq = turn->seq,
                                 .max_tokens = state->skip_draft_once ? 0 : turn->count - 1,
                                 .tokens = state->sample->tokens + state->sample->n_tokens};
    state->skip_draft_once = false;
    return INVAR_OK;
}

/*
 * Cuts the draft rows of slice i that got no draft token. With `fill` they get dummy tokens
 * instead, so that all sequences have equally many rows and the pass can run as a CUDA graph.
 */
static void fit_slice_to_draft(invar_running_batch *run, int64_t i, const invar_draft_request *g,
                               bool fill)
{
    invar_decode_state *state = &run->states[run->seqs[g->seq].sample];

    state->n_draft_tokens = g->count;
    state->sample->stats.speculated.passes++;
    state->sample->stats.speculated.drafted += g->count;
    run->rollout->counters.drafted += g->count;
    if (fill && g->max_tokens > 0) {
        for (int64_t n = g->count; n < g->max_tokens; n++)
            g->tokens[n] = g->tokens[n - 1]; // without a draft this copies the newest token
    } else {
        invar_scheduler_truncate(&run->runner.scheduler, i, 1 + g->count);
    }
}

/* Gets draft tokens for all decoded slices of this pass. */
static invar_status propose_drafts(invar_running_batch *run)
{
    const invar_model_runner *runner = &run->runner;
    int64_t asked = 0, next = 0;
    bool made = false, alike = run->rollout->graph_cache != NULL;

    for (int64_t i = 0; i < runner->n_slices; i++)
        if (is_decoded(run, &runner->slices[i]))
            INVAR_TRY(request_draft(&run->draft_requests[asked++], run, i));
    INVAR_TRY(run->proposer.propose(run->proposer.self, run->draft_requests, asked));
    for (int64_t i = 0; i < asked; i++) {
        made = made || run->draft_requests[i].count > 0;
        alike = alike && run->draft_requests[i].max_tokens == runner->scheduler.lookahead;
    }
    for (int64_t i = 0; i < runner->n_slices; i++)
        if (is_decoded(run, &runner->slices[i]))
            fit_slice_to_draft(run, i, &run->draft_requests[next++],
                               made && alike && asked == runner->n_slices);
    return INVAR_OK;
}

/* ---- passes ---------------------------------------------------------------------------------- */

/* Adds a draw for a sample from a row that is `ahead` draft tokens after its newest token. */
static void plan_draw(invar_running_batch *run, int64_t sample, int64_t row, int64_t ahead)
{
    const invar_decode_state *state = &run->states[sample];
    const invar_rl_sample *s = state->sample;

    run->draws[run->n_draws++] = (invar_draw){
        .row = row,
        .coords = {(uint32_t)(s->n_tokens + ahead), s->draw_index, s->rollout},
        .sampling = run->sampling ? NULL : state->sampling,
        .ban_stop_ids = invar_rl_sample_response(s) + ahead < state->sampling->min_response,
        .owner = sample};
}

static int64_t end_of_samples(const invar_seq *seq)
{
    return seq->sample + invar_seq_samples(seq);
}

/*
 * Returns the number of draws from slice i: one per row if it is decoded; one per sample, from the
 * last row, if it completes a prefill; else 0.
 */
static int64_t count_draws(const invar_running_batch *run, int64_t i)
{
    const invar_seq_slice *turn = &run->runner.slices[i];
    const invar_seq *seq = &run->seqs[turn->seq];

    if (is_decoded(run, turn))
        return turn->count;
    return turn->first + turn->count < seq->prefill ? 0 : invar_seq_samples(seq);
}

static void plan_slice_draws(invar_running_batch *run, int64_t i)
{
    const invar_seq_slice *turn = &run->runner.slices[i];
    int64_t sample = run->seqs[turn->seq].sample, row = run->runner.start[i];

    for (int64_t n = 0; n < count_draws(run, i); n++)
        if (is_decoded(run, turn))
            plan_draw(run, sample, row + n, n);
        else
            plan_draw(run, sample + n, row + turn->count - 1, 0);
}

/* Copies the routing of the first `rows` rows of slice i to its samples. */
static void copy_routing(const invar_running_batch *run, int64_t i, int64_t rows)
{
    const invar_model_runner *runner = &run->runner;
    const invar_seq_slice *turn = &runner->slices[i];
    const invar_seq *seq = &run->seqs[turn->seq];

    for (int64_t n = seq->sample; runner->route > 0 && n < end_of_samples(seq); n++)
        memcpy(run->states[n].sample->routing + turn->first * runner->route,
               runner->routing + runner->start[i] * runner->route,
               (size_t)(rows * runner->route) * sizeof *runner->routing);
}

/* Runs one pass, samples a token from every row that yields one, and downloads the routing. */
static invar_status pass_and_draw(invar_running_batch *run)
{
    const invar_model_runner *runner = &run->runner;
    int64_t fillers, sequences = runner->scheduler.concurrency;

    if (run->row_owners) // owners of the rows of layers, and per draw of its logits and its token
        INVAR_TRY(invar_row_ownership_pass(run->row_owners, sequences + runner->scheduler.chunk +
                                                                2 * (run->count + sequences)));
    INVAR_TRY(invar_model_runner_next(&run->runner));
    if (runner->n_slices == 0)
        return INVAR_OK;
    if (run->proposer.propose)
        INVAR_TRY(propose_drafts(run));
    INVAR_TRY(invar_model_runner_pass(&run->runner));
    run->n_draws = 0;
    for (int64_t i = 0; i < runner->n_slices; i++)
        plan_slice_draws(run, i);
    fillers = (runner->sequences - runner->n_slices) * runner->rows_per_sequence;
    for (int64_t i = 0; i < fillers; i++)
        run->draws[run->n_draws + i] = (invar_draw){
            .row = runner->start[runner->n_slices] + i,
            .sampling = run->n_draws > 0 ? run->draws[run->n_draws - 1].sampling : NULL,
            .filler = true};
    if (invar_rollout_stages_samples(run->rollout))
        INVAR_TRY(invar_sampler_draw(&run->sampler, run->rollout->pass, run->draws,
                                     run->n_draws + fillers));
    INVAR_TRY(invar_rollout_stages_broadcast(run->rollout, "tokens", run->draws,
                                             (size_t)run->n_draws * sizeof *run->draws));
    // without draws no result was read, so the held-back ops must be launched here
    if (run->rollout->graph_cache)
        INVAR_TRY(invar_cuda_graph_cache_flush(run->rollout->graph_cache));
    if (run->row_owners)
        INVAR_TRY(run->row_owners->hooks.on_pass_end(run->row_owners->hooks.probe.payload));
    return invar_rollout_stages_routing(run->rollout, &runner->rows);
}

/*
 * Appends the draws of a decoded slice as long as the draft tokens are equal to them; *out = how
 * many. A row with logits that are not finite is discarded and computed again without drafts,
 * because draft rows must not influence the result.
 */
static invar_status append_accepted(int64_t *out, invar_running_batch *run, const invar_draw *draws,
                                    int64_t count)
{
    invar_decode_state *state = &run->states[draws->owner];
    bool holds = true;
    int64_t n = 0;

    while (n < count && holds && !state->finished) {
        int32_t guessed = n + 1 < count ? state->sample->tokens[state->sample->n_tokens] : -1;

        state->skip_draft_once = count > 1 && !isfinite(draws[n].logp);
        if (state->skip_draft_once)
            break;
        INVAR_TRY(append_token(run, &draws[n]));
        holds = n + 1 < count &&
                invar_draft_accepted(guessed, state->sample->tokens[state->sample->n_tokens - 1]);
        n++;
    }
    *out = n;
    return INVAR_OK;
}

/* Counts the accepted draft tokens of a slice; `count` is -1 if not even its first row was kept. */
static void count_accepted(invar_running_batch *run, invar_decode_state *state, int64_t count)
{
    if (count <= 0)
        return;
    state->sample->stats.speculated.accepted += count;
    run->rollout->counters.accepted += count;
}

/* Appends tokens and routing of slice i, whose draws begin at `draws`. */
static invar_status append_slice(invar_running_batch *run, int64_t i, const invar_draw *draws)
{
    const invar_seq_slice *turn = &run->runner.slices[i];
    invar_decode_state *state = &run->states[run->seqs[turn->seq].sample];
    int64_t rows = turn->count, count = count_draws(run, i);

    if (is_decoded(run, turn)) {
        INVAR_TRY(append_accepted(&rows, run, draws, count));
        count_accepted(run, state,
                       rows - 1 < state->n_draft_tokens ? rows - 1 : state->n_draft_tokens);
    } else {
        for (int64_t n = 0; n < count; n++)
            INVAR_TRY(append_token(run, &draws[n]));
    }
    copy_routing(run, i, rows);
    if (rows < turn->count && !state->finished)
        invar_scheduler_truncate(&run->runner.scheduler, i, rows);
    return INVAR_OK;
}

invar_status invar_running_batch_step(invar_running_batch *run)
{
    invar_status status = pass_and_draw(run);
    const invar_draw *draws = run->draws;

    invar_model_runner_end_capture(&run->runner);
    if (status == INVAR_OK && run->draft)
        status = invar_draft_model_catch_up(run->draft);
    for (int64_t i = 0; status == INVAR_OK && i < run->runner.n_slices; i++) {
        int64_t count = count_draws(run, i);
        status = append_slice(run, i, draws);
        draws += count;
    }
    return status;
}

void invar_rollout_suspend(invar_rollout *rollout)
{
    rollout->suspend_requested = true;
}

/* Frees the arrays of a suspended sample without response tokens, so that it is a prompt again. */
static void reset_to_prompt(invar_rl_sample *s)
{
    if (s->n_tokens > s->prompt_tokens)
        return;
    invar_free(s->logp);
    invar_free(s->mask);
    invar_free(s->routing);
    s->logp = NULL;
    s->mask = NULL;
    s->routing = NULL;
    s->route_size = 0;
}

static invar_status run_batch(invar_running_batch *run, invar_rl_sample *samples, int64_t count,
                              invar_rollout_tick *tick, void *payload)
{
    bool *leaves = &run->rollout->suspend_requested;
    invar_status status = invar_running_batch_begin(run, samples, count);

    *leaves = false;
    while (status == INVAR_OK && run->samples_done < count && !*leaves) {
        status = invar_running_batch_step(run);
        if (status == INVAR_OK && tick)
            status = tick(payload, run->samples_done, run->tokens_done);
    }
    for (int64_t i = 0; status == INVAR_OK && i < count; i++)
        reset_to_prompt(&samples[i]);
    invar_running_batch_end(run);
    return invar_host_staging_advise_oom(
        status, invar_device_is_local(&run->rollout->op_runner.dev), INVAR_MODEL_RUNNER_ADVICE);
}

invar_status invar_rollout_run(invar_rollout *rollout, invar_rl_sample *samples, int64_t count,
                               const invar_sampling_params *sampling, invar_rollout_tick *tick,
                               void *payload)
{
    invar_running_batch run = {.rollout = rollout, .sampling = sampling};

    return run_batch(&run, samples, count, tick, payload);
}

/* ---- given samples --------------------------------------------------------------------------- */

/* Copies the prompt and the coordinates of a given sample with a complete response. */
static invar_status copy_prompt(invar_rl_sample *out, const invar_rollout *r,
                                const invar_sampling_params *p, const invar_rl_sample *given)
{
    int64_t limit = invar_running_batch_limit(r, p, given);

    if (given->n_tokens <= given->prompt_tokens || given->n_tokens > limit ||
        given->finish == INVAR_FINISH_NONE)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: sample %" PRId64 " has %" PRId64 " tokens, %" PRId64
                          " of them prompt; expected a response, and %" PRId64 " tokens at most",
                          given->index, given->n_tokens, given->prompt_tokens, limit);
    for (int64_t i = given->prompt_tokens; i < given->n_tokens; i++)
        if (given->tokens[i] < 0 || given->tokens[i] >= r->model->spec.vocab)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "rollout: token %" PRId32 " in the response of sample %" PRId64
                              "; the vocabulary has %" PRId64,
                              given->tokens[i], given->index, r->model->spec.vocab);
    *out = (invar_rl_sample){.index = given->index,
                             .group = given->group,
                             .data.line = given->data.line,
                             .rollout = given->rollout,
                             .draw_index = given->draw_index};
    return invar_rl_sample_set_prompt(out, given->tokens, given->prompt_tokens, 0);
}

invar_status invar_rollout_teacher_force(invar_rollout *rollout, const invar_rl_sample *given,
                                         int64_t count, const invar_sampling_params *sampling,
                                         invar_rollout_tick *tick, void *payload)
{
    invar_running_batch run = {.rollout = rollout, .sampling = sampling, .forced_samples = given};
    invar_rl_samples samples = {0};
    invar_status status = INVAR_OK;

    for (int64_t i = 0; i < count && status == INVAR_OK; i++) {
        invar_rl_sample *s;
        status = invar_rl_samples_append(&s, &samples);
        if (status == INVAR_OK)
            status = copy_prompt(s, rollout, sampling, &given[i]);
    }
    if (status == INVAR_OK)
        status = run_batch(&run, samples.items, count, tick, payload);
    invar_rl_samples_reset(&samples);
    return status;
}
