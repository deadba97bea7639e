/*
 * rollout.c - samples from prompts.
 *
 * Every sample is a job. Where several samples of a group share a prompt, the prompt is a job of
 * its own before them: its last row gives all of them their first token, and its pages are theirs.
 *
 * Guesses (engine/rollout/draft) are written behind the tokens of their sample, where the rows of a
 * pass are read from. The tokens that are drawn overwrite them, as long as they agree.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rollout/rollout.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/program/near.h"
#include "engine/rollout/draft/draft.h"
#include "engine/rollout/draft/ngram.h"
#include "engine/rollout/feed.h"
#include "engine/rollout/sampler.h"
#include "engine/rollout/stop.h"

#include "base/invar_banned.h"

#define FIRST_ROOM 64 // response tokens

/* A sample on its way. */
typedef struct writer {
    invar_rl_sample *sample;
    const invar_sampling *sampling;
    int64_t job;
    int64_t limit;   /* tokens in all, in this run */
    int64_t room;    /* response tokens that the arrays can take */
    int64_t guessed; /* tokens behind its own, in this pass */
    bool doubted;    /* its next row has no guesses behind it */
    bool left;       /* it needs no more tokens in this run */
    invar_text_stream text;
} writer;

typedef struct invar_open_rollout {
    invar_rollout *rollout;
    const invar_sampling *sampling; /* of all samples; NULL: each has its own */
    writer *writers;                /* (count) */
    int64_t count;
    int64_t room;    /* samples that the arrays can take */
    invar_job *jobs; /* (n_jobs) */
    int64_t n_jobs;
    invar_rollout_limits limits; /* settled */
    invar_draw *draws;           /* (n_draws) of this pass, turn by turn; then those of fillers */
    int64_t n_draws;
    invar_ngram *ngram;
    invar_draft *draft;    /* the rollout's, where it guesses */
    invar_guesser guesser; /* `make` NULL: nobody guesses */
    invar_guess *guesses;  /* (sequences of a pass) */
    invar_feed feed;
    invar_sampler sampler;
    int64_t samples_done;
    int64_t tokens_done;
    const invar_rl_sample *given; /* (count) whose tokens are taken instead of those drawn; NULL */
    invar_show *show;             /* NULL: nobody looks */
    uint32_t *numbers;            /* (count) the draw of each sample, where somebody does */
} generation;

#define ROOM_FOR_OPEN 64 // samples, at first

/* ---- what is refused ------------------------------------------------------------------------- */

invar_status invar_rollout_check(const invar_rollout *r, const invar_sampling *p)
{
    const invar_model_spec *spec = &r->model->spec;

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
        if (!r->tokenizer || !p->stop[i][0])
            return INVAR_FAIL(INVAR_E_INVALID, 0, "rollout: stop string %" PRId64 " %s", i,
                              r->tokenizer ? "is empty" : "needs a tokenizer");
    return INVAR_OK;
}

/* Tokens that the sample may ever have. */
static int64_t limit_of(const invar_rollout *r, const invar_sampling *p, const invar_rl_sample *s)
{
    int64_t context = p->max_context ? p->max_context : r->model->spec.max_positions;

    return context - s->prompt_tokens < p->max_response ? context
                                                        : s->prompt_tokens + p->max_response;
}

/* Tokens that the sample may have when this run ends. */
static int64_t limit_now(const generation *run, const invar_sampling *p, const invar_rl_sample *s)
{
    int64_t limit = limit_of(run->rollout, p, s);

    return s->pause > 0 && s->pause < limit ? s->pause : limit;
}

/* Numbers that routers choose for a row. */
static int64_t route_size(const generation *run)
{
    const invar_model *model = run->rollout->model;

    return invar_model_sparse_layers(model) * model->spec.experts_per_token;
}

static bool has_begun(const invar_rl_sample *s)
{
    return s->n_tokens > s->prompt_tokens;
}

/* A prompt; or one with a part of its response, as an earlier run has left it. */
static bool can_go_on(const generation *run, const invar_sampling *p, const invar_rl_sample *s)
{
    if (s->prompt_tokens < 1 || s->n_tokens < s->prompt_tokens || s->finish != INVAR_FINISH_NONE)
        return false;
    if (!has_begun(s))
        return true;
    return s->logp && s->mask && s->route_size == route_size(run) &&
           (s->route_size == 0 || s->routing) && s->n_tokens < limit_now(run, p, s);
}

static invar_status check_sample(const generation *run, const invar_sampling *p,
                                 const invar_rl_sample *s)
{
    const invar_model_spec *spec = &run->rollout->model->spec;

    if (!can_go_on(run, p, s))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: sample %" PRId64 " has %" PRId64 " tokens, %" PRId64
                          " of them prompt; expected a prompt, or one with a part of its response",
                          s->index, s->n_tokens, s->prompt_tokens);
    if (limit_of(run->rollout, p, s) <= s->prompt_tokens)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: the prompt of sample %" PRId64 " (line %" PRId64
                          " of the data) has %" PRId64
                          " tokens and leaves no room for a response: filter such prompts, or "
                          "allow a longer context",
                          s->index, s->prompt, s->prompt_tokens);
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

/* ---- room ------------------------------------------------------------------------------------ */

/* Replaces an array of `used` items by one that has room for `count`. */
static invar_status regrow(void **array, int64_t used, int64_t count, size_t size, const char *what)
{
    void *larger = NULL;

    INVAR_TRY(invar_alloc(&larger, (size_t)count, size, what));
    if (used > 0)
        memcpy(larger, *array, (size_t)used * size);
    invar_free(*array);
    *array = larger;
    return INVAR_OK;
}

/* Room for more response tokens: some at first, then twice as many, never beyond the limit. */
static invar_status make_room(writer *w)
{
    invar_rl_sample *s = w->sample;
    int64_t used = w->room, most = w->limit - s->prompt_tokens;
    int64_t room = used ? 2 * used : FIRST_ROOM, total;

    room = room < most ? room : most;
    total = s->prompt_tokens + room;
    INVAR_TRY(
        regrow((void **)&s->tokens, s->n_tokens, total, sizeof *s->tokens, "tokens of a sample"));
    INVAR_TRY(regrow((void **)&s->logp, used, room, sizeof *s->logp, "log-probs of a sample"));
    INVAR_TRY(regrow((void **)&s->mask, used, room, sizeof *s->mask, "the mask of a sample"));
    if (s->route_size > 0)
        INVAR_TRY(regrow((void **)&s->routing, used ? s->n_tokens - 1 : 0, total,
                         (size_t)s->route_size * sizeof *s->routing, "the routing of a sample"));
    w->room = room;
    return INVAR_OK;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Samples from `first` on that are of its group, and like it have nothing but their prompt. */
static int64_t group_size(const generation *run, int64_t first)
{
    const invar_rl_sample *s = run->writers[first].sample;
    int64_t n = 1;

    while (!has_begun(s) && first + n < run->count &&
           run->writers[first + n].sample->group == s->group &&
           !has_begun(run->writers[first + n].sample))
        n++;
    return n;
}

/* Whether a prompt pays as a job of its own: several samples, and pages for it beside each. */
static bool shares(const generation *run, int64_t first, int64_t n)
{
    const writer *w = &run->writers[first];
    int64_t size = run->limits.page_size, prompt = w->sample->prompt_tokens;
    int64_t pages = (w->limit - 1 + size - 1) / size + (prompt % size != 0);

    return n > 1 && !run->limits.no_prefix_sharing && pages <= run->rollout->cache->shape.pages;
}

static void add_job(generation *run, int64_t first, int64_t rows, int64_t children)
{
    const invar_rl_sample *s = run->writers[first].sample;

    run->jobs[run->n_jobs++] = (invar_job){.prefill = s->n_tokens,
                                           .rows = rows,
                                           .children = children,
                                           .sample = first,
                                           .tokens = s->tokens};
}

static invar_status add_group(generation *run, int64_t first, int64_t n)
{
    int64_t prompt = run->writers[first].sample->prompt_tokens;

    for (int64_t i = first + 1; i < first + n; i++)
        INVAR_TRY(check_same_prompt(run->writers[first].sample, run->writers[i].sample));
    if (shares(run, first, n)) {
        run->rollout->counters.shared += (n - 1) * prompt;
        add_job(run, first, prompt, n);
    }
    for (int64_t i = first; i < first + n; i++) {
        run->writers[i].job = run->n_jobs;
        // the last token of a sequence is never put in
        add_job(run, i, run->writers[i].limit - 1, 0);
    }
    return INVAR_OK;
}

/* Where the sample was left: room as far as it has tokens, and their text. */
static invar_status pick_up(const generation *run, writer *w)
{
    const invar_sampling *p = w->sampling;
    const invar_rl_sample *s = w->sample;

    w->room = invar_rl_sample_response(s);
    for (int64_t i = s->prompt_tokens; p->n_stop > 0 && i < s->n_tokens; i++)
        INVAR_TRY(invar_text_stream_push(&w->text, run->rollout->tokenizer, s->tokens[i],
                                         p->skip_special));
    return INVAR_OK;
}

static invar_status begin_writer(generation *run, writer *w)
{
    INVAR_TRY(check_sample(run, w->sampling, w->sample));
    w->limit = limit_now(run, w->sampling, w->sample);
    w->sample->route_size = route_size(run);
    INVAR_TRY(has_begun(w->sample) ? pick_up(run, w) : INVAR_OK);
    return make_room(w);
}

/* Samples behind those that there are, in arrays that have room for them. */
static invar_status begin_samples(generation *run, invar_rl_sample *samples, int64_t count,
                                  const invar_sampling *sampling)
{
    INVAR_TRY(invar_rollout_check(run->rollout, sampling));
    for (int64_t i = 0; i < count; i++) {
        writer *w = &run->writers[run->count++];

        *w = (writer){.sample = &samples[i], .sampling = sampling};
        INVAR_TRY(begin_writer(run, w));
    }
    return INVAR_OK;
}

/* Jobs of the samples from `first` on. */
static invar_status add_groups(generation *run, int64_t first)
{
    for (int64_t i = first, n; i < run->count; i += n) {
        n = group_size(run, i);
        INVAR_TRY(add_group(run, i, n));
    }
    return INVAR_OK;
}

static invar_status begin_showing(generation *run)
{
    const invar_forward_probe probe = invar_show_probe(&run->rollout->show);

    INVAR_TRY(invar_alloc((void **)&run->numbers, (size_t)run->count, sizeof *run->numbers,
                          "the draws of samples"));
    for (int64_t i = 0; i < run->count; i++)
        run->numbers[i] = run->writers[i].sample->draw;
    run->show = &run->rollout->show;
    run->show->draws = run->numbers;
    invar_stages_probe(run->rollout, &probe);
    return INVAR_OK;
}

/* Tokens guessed at a time; none where rows are looked at. */
static int64_t ahead_of(const generation *run)
{
    const invar_rollout *r = run->rollout;

    return run->show || r->audited ? 0 : invar_speculation_tokens(&r->limits.speculation);
}

/* Who guesses. */
static invar_status begin_guessing(generation *run, const invar_rl_sample *samples)
{
    const invar_rollout *r = run->rollout;
    const invar_speculation *s = &r->limits.speculation;

    r->cache->twin = NULL;
    if (ahead_of(run) == 0)
        return INVAR_OK;
    run->guesser = r->guesser;
    if (run->guesser.make)
        return INVAR_OK;
    if (r->draft) {
        run->draft = r->draft;
        run->guesser = (invar_guesser){invar_draft_make, run->draft};
        return invar_draft_begin(run->draft, samples, run->sampling, &run->feed);
    }
    INVAR_TRY(invar_ngram_new(&run->ngram, samples, run->count, &s->window));
    run->guesser = (invar_guesser){invar_ngram_make, run->ngram};
    return INVAR_OK;
}

/* Room for `count` samples in all. */
static invar_status reserve(generation *run, int64_t count)
{
    INVAR_TRY(regrow((void **)&run->writers, run->count, count, sizeof *run->writers,
                     "the samples of a rollout"));
    // there is no prompt without a sample that waits for it
    INVAR_TRY(regrow((void **)&run->jobs, run->n_jobs, 2 * count, sizeof *run->jobs,
                     "the jobs of a rollout"));
    run->feed.schedule.jobs = run->jobs;
    run->room = count;
    return INVAR_OK;
}

/* Room for those of any pass, of so many samples. */
static invar_status make_draws(generation *run, int64_t samples)
{
    int64_t sequences = run->feed.schedule.concurrency;

    return regrow((void **)&run->draws, 0, samples + sequences * (1 + ahead_of(run)),
                  sizeof *run->draws, "the draws of a pass");
}

/* Passes of so many sequences at most. */
static invar_status begin_feed(generation *run, int64_t sequences, int64_t rows)
{
    const invar_feed_room room = {.sequences = sequences, .rows = rows, .ahead = ahead_of(run)};

    INVAR_TRY(
        invar_feed_init(&run->feed, run->rollout, &run->limits, &room, run->jobs, run->n_jobs));
    run->feed.steady = true;
    run->feed.show = run->sampler.show = run->show;
    INVAR_TRY(invar_alloc((void **)&run->guesses, (size_t)run->feed.schedule.concurrency,
                          sizeof *run->guesses, "the guesses of a pass"));
    return make_draws(run, run->room);
}

static invar_status begin(generation *run, invar_rl_sample *samples, int64_t count)
{
    int64_t most = 1;

    INVAR_CHECK(!run->rollout->open);
    INVAR_TRY(reserve(run, count));
    INVAR_TRY(invar_sampler_init(&run->sampler, &run->rollout->caller, run->sampling));
    INVAR_TRY(begin_samples(run, samples, count, run->sampling));
    if (run->rollout->show.watcher.probe.take)
        INVAR_TRY(begin_showing(run));
    for (int64_t i = 0; i < run->count; i++)
        most = run->writers[i].limit - 1 > most ? run->writers[i].limit - 1 : most;
    INVAR_TRY(invar_feed_settle(&run->limits, run->rollout, run->count, most));
    INVAR_TRY(add_groups(run, 0));
    INVAR_TRY(begin_feed(run, run->n_jobs, most));
    return begin_guessing(run, samples);
}

static void end(generation *run)
{
    for (int64_t i = 0; run->writers && i < run->count; i++)
        invar_text_stream_release(&run->writers[i].text);
    invar_feed_release(&run->feed);
    invar_sampler_release(&run->sampler);
    invar_stages_probe(run->rollout, NULL);
    invar_ngram_free(run->ngram);
    if (run->draft)
        invar_draft_end(run->draft);
    invar_free(run->numbers);
    invar_free(run->writers);
    invar_free(run->draws);
    invar_free(run->guesses);
    invar_free(run->jobs);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

bool invar_sampling_ends(const invar_sampling *p, int32_t token)
{
    for (int64_t i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == token)
            return true;
    return false;
}

/* What the newest token means for its sample; a given one ends where it ended. */
static invar_status judge(invar_finish *out, const generation *run, writer *w)
{
    const invar_sampling *p = w->sampling;
    const invar_rl_sample *s = w->sample;
    int32_t token = s->tokens[s->n_tokens - 1];
    bool may_end = invar_rl_sample_response(s) > p->min_response;
    bool stop = may_end && invar_sampling_ends(p, token);

    if (run->given) {
        const invar_rl_sample *given = &run->given[w - run->writers];
        *out = s->n_tokens == given->n_tokens ? given->finish : INVAR_FINISH_NONE;
        return INVAR_OK;
    }
    if (p->n_stop > 0) {
        INVAR_TRY(
            invar_text_stream_push(&w->text, run->rollout->tokenizer, token, p->skip_special));
        stop = stop || (may_end && invar_stop_find(w->text.text, w->text.bytes, w->text.fresh,
                                                   p->stop, p->n_stop) >= 0);
    }
    *out = stop                                          ? INVAR_FINISH_STOP
           : s->n_tokens == limit_of(run->rollout, p, s) ? INVAR_FINISH_LENGTH
                                                         : INVAR_FINISH_NONE;
    return INVAR_OK;
}

/* The sample is done, or left as it is (INVAR_FINISH_NONE). */
static invar_status finish(generation *run, writer *w, invar_finish how)
{
    invar_rl_sample *s = w->sample;

    invar_schedule_finish(&run->feed.schedule, w->job);
    invar_text_stream_release(&w->text);
    if (run->rollout->tokenizer && how != INVAR_FINISH_NONE) {
        invar_free(s->response);
        s->response = NULL;
        INVAR_TRY(invar_tokenizer_decode(&s->response, &s->response_bytes, run->rollout->tokenizer,
                                         s->tokens + s->prompt_tokens, invar_rl_sample_response(s),
                                         w->sampling->skip_special));
    }
    s->finish = how;
    s->arrival = run->samples_done++;
    return INVAR_OK;
}

static invar_status take_draw(generation *run, const invar_draw *draw)
{
    writer *w = &run->writers[draw->owner];
    invar_rl_sample *s = w->sample;
    int64_t n = invar_rl_sample_response(s);
    invar_finish how;

    w->left = !isfinite(draw->logp) && run->rollout->open == run;
    if (w->left)
        return finish(run, w, INVAR_FINISH_ABORT); // the others go on
    if (!isfinite(draw->logp))
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "rollout: draw %" PRIu32 " has logits that are not finite at "
                          "position %" PRIu32 ": the weights are damaged or have diverged",
                          draw->at.sample, draw->at.position);
    if (n == w->room)
        INVAR_TRY(make_room(w));
    run->jobs[w->job].tokens = s->tokens;
    s->tokens[s->n_tokens] = run->given ? run->given[draw->owner].tokens[s->n_tokens] : draw->token;
    s->n_tokens++;
    s->logp[n] = draw->logp;
    s->mask[n] = 1;
    run->tokens_done++;
    INVAR_TRY(judge(&how, run, w));
    w->left = how != INVAR_FINISH_NONE || s->n_tokens == w->limit;
    return w->left ? finish(run, w, how) : INVAR_OK;
}

/* ---- guesses --------------------------------------------------------------------------------- */

/* Whether the turn's sequence draws one token after the other, from each of its rows. */
static bool decodes(const generation *run, const invar_turn *turn)
{
    return turn->first >= run->jobs[turn->job].prefill;
}

/* Asks for the tokens of the rows ahead of turn i, and makes room for them. */
static invar_status ask(invar_guess *out, generation *run, int64_t i)
{
    const invar_turn *turn = &run->feed.turns[i];
    invar_job *job = &run->jobs[turn->job];
    writer *w = &run->writers[job->sample];

    while (invar_rl_sample_response(w->sample) + turn->count > w->room)
        INVAR_TRY(make_room(w));
    job->tokens = w->sample->tokens;
    *out = (invar_guess){.sample = job->sample,
                         .job = turn->job,
                         .most = w->doubted ? 0 : turn->count - 1,
                         .tokens = w->sample->tokens + w->sample->n_tokens};
    w->doubted = false;
    return INVAR_OK;
}

/* Rows that were not guessed for are cut, or filled so that a graph runs all sequences. */
static void fit_turn(generation *run, int64_t i, const invar_guess *g, bool fill)
{
    run->writers[g->sample].guessed = g->count;
    run->writers[g->sample].sample->speculated.passes++;
    run->writers[g->sample].sample->speculated.drafted += g->count;
    run->rollout->counters.drafted += g->count;
    if (fill && g->most > 0) {
        for (int64_t n = g->count; n < g->most; n++)
            g->tokens[n] = g->tokens[n - 1]; // the newest token where nothing was guessed
    } else {
        invar_schedule_cut(&run->feed.schedule, i, 1 + g->count);
    }
}

/* Tokens for the rows ahead of this pass. */
static invar_status guess(generation *run)
{
    const invar_feed *feed = &run->feed;
    int64_t asked = 0, next = 0;
    bool made = false, alike = run->rollout->tape != NULL;

    for (int64_t i = 0; i < feed->n_turns; i++)
        if (decodes(run, &feed->turns[i]))
            INVAR_TRY(ask(&run->guesses[asked++], run, i));
    INVAR_TRY(run->guesser.make(run->guesser.self, run->guesses, asked));
    for (int64_t i = 0; i < asked; i++) {
        made = made || run->guesses[i].count > 0;
        alike = alike && run->guesses[i].most == feed->schedule.ahead;
    }
    for (int64_t i = 0; i < feed->n_turns; i++)
        if (decodes(run, &feed->turns[i]))
            fit_turn(run, i, &run->guesses[next++], made && alike && asked == feed->n_turns);
    return INVAR_OK;
}

/* ---- passes ---------------------------------------------------------------------------------- */

/* A draw from a row that is `ahead` of the sample's newest token. */
static void plan_draw(generation *run, int64_t sample, int64_t row, int64_t ahead)
{
    const writer *w = &run->writers[sample];
    const invar_rl_sample *s = w->sample;

    run->draws[run->n_draws++] =
        (invar_draw){.row = row,
                     .at = {(uint32_t)(s->n_tokens + ahead), s->draw, s->rollout},
                     .sampling = run->sampling ? NULL : w->sampling,
                     .no_end = invar_rl_sample_response(s) + ahead < w->sampling->min_response,
                     .owner = sample};
}

static int64_t samples_end(const invar_job *job)
{
    return job->sample + invar_job_samples(job);
}

/* Draws from turn i: from each of its rows, or from the last one for each sample. */
static int64_t draws_of(const generation *run, int64_t i)
{
    const invar_turn *turn = &run->feed.turns[i];
    const invar_job *job = &run->jobs[turn->job];

    if (decodes(run, turn))
        return turn->count;
    return turn->first + turn->count < job->prefill ? 0 : invar_job_samples(job);
}

static void plan_turn(generation *run, int64_t i)
{
    const invar_turn *turn = &run->feed.turns[i];
    int64_t sample = run->jobs[turn->job].sample, row = run->feed.start[i];

    for (int64_t n = 0; n < draws_of(run, i); n++)
        if (decodes(run, turn))
            plan_draw(run, sample, row + n, n);
        else
            plan_draw(run, sample + n, row + turn->count - 1, 0);
}

/* Of the first rows of turn i. */
static void keep_routing(const generation *run, int64_t i, int64_t rows)
{
    const invar_feed *feed = &run->feed;
    const invar_turn *turn = &feed->turns[i];
    const invar_job *job = &run->jobs[turn->job];

    for (int64_t n = job->sample; feed->route > 0 && n < samples_end(job); n++)
        memcpy(run->writers[n].sample->routing + turn->first * feed->route,
               feed->routing + feed->start[i] * feed->route,
               (size_t)(rows * feed->route) * sizeof *feed->routing);
}

/* A pass, a draw from every row that has one, and what the routers chose. */
static invar_status pass_and_draw(generation *run)
{
    const invar_feed *feed = &run->feed;
    int64_t fillers, sequences = feed->schedule.concurrency;

    if (run->show) // of the layers' rows, and of each draw's row of logits and token
        INVAR_TRY(invar_show_pass(run->show,
                                  sequences + feed->schedule.chunk + 2 * (run->count + sequences)));
    INVAR_TRY(invar_feed_next(&run->feed));
    if (feed->n_turns == 0)
        return INVAR_OK;
    if (run->guesser.make)
        INVAR_TRY(guess(run));
    INVAR_TRY(invar_feed_pass(&run->feed));
    run->n_draws = 0;
    for (int64_t i = 0; i < feed->n_turns; i++)
        plan_turn(run, i);
    fillers = (feed->sequences - feed->n_turns) * feed->each;
    for (int64_t i = 0; i < fillers; i++)
        run->draws[run->n_draws + i] = (invar_draw){
            .row = feed->start[feed->n_turns] + i,
            .sampling = run->n_draws > 0 ? run->draws[run->n_draws - 1].sampling : NULL,
            .filler = true};
    if (invar_stages_draw(run->rollout))
        INVAR_TRY(invar_sampler_draw(&run->sampler, run->rollout->pass, run->draws,
                                     run->n_draws + fillers));
    INVAR_TRY(invar_stages_share(run->rollout, "tokens", run->draws,
                                 (size_t)run->n_draws * sizeof *run->draws));
    // a pass without draws is not waited for, and must run all the same
    if (run->rollout->tape)
        INVAR_TRY(invar_tape_flush(run->rollout->tape));
    if (run->show)
        INVAR_TRY(run->show->watcher.settle(run->show->watcher.probe.payload));
    return invar_stages_routing(run->rollout, &feed->rows);
}

/*
 * Draws of a sequence, one after the other, as long as guesses hold; *out: how many. Values behind
 * a guess must not matter, and where they are not finite it takes a row alone to know.
 */
static invar_status take_each(int64_t *out, generation *run, const invar_draw *draws, int64_t count)
{
    writer *w = &run->writers[draws->owner];
    bool holds = true;
    int64_t n = 0;

    while (n < count && holds && !w->left) {
        int32_t guessed = n + 1 < count ? w->sample->tokens[w->sample->n_tokens] : -1;

        w->doubted = count > 1 && !isfinite(draws[n].logp);
        if (w->doubted)
            break;
        INVAR_TRY(take_draw(run, &draws[n]));
        holds =
            n + 1 < count && invar_guess_holds(guessed, w->sample->tokens[w->sample->n_tokens - 1]);
        n++;
    }
    *out = n;
    return INVAR_OK;
}

/* Of the guesses of a turn; -1 where not even its first row counts. */
static void count_accepted(generation *run, writer *w, int64_t count)
{
    if (count <= 0)
        return;
    w->sample->speculated.accepted += count;
    run->rollout->counters.accepted += count;
}

/* Tokens and routing of turn i; draws from `draws` on. */
static invar_status take_turn(generation *run, int64_t i, const invar_draw *draws)
{
    const invar_turn *turn = &run->feed.turns[i];
    writer *w = &run->writers[run->jobs[turn->job].sample];
    int64_t rows = turn->count, count = draws_of(run, i);

    if (decodes(run, turn)) {
        INVAR_TRY(take_each(&rows, run, draws, count));
        count_accepted(run, w, rows - 1 < w->guessed ? rows - 1 : w->guessed);
    } else {
        for (int64_t n = 0; n < count; n++)
            INVAR_TRY(take_draw(run, &draws[n]));
    }
    keep_routing(run, i, rows);
    if (rows < turn->count && !w->left)
        invar_schedule_cut(&run->feed.schedule, i, rows);
    return INVAR_OK;
}

static invar_status step(generation *run)
{
    invar_status status = pass_and_draw(run);
    const invar_draw *draws = run->draws;

    invar_feed_listened(&run->feed);
    if (status == INVAR_OK && run->draft)
        status = invar_draft_read(run->draft);
    for (int64_t i = 0; status == INVAR_OK && i < run->feed.n_turns; i++) {
        int64_t count = draws_of(run, i);
        status = take_turn(run, i, draws);
        draws += count;
    }
    return status;
}

static invar_status generate(generation *run, invar_rl_sample *samples, int64_t count,
                             invar_status (*tick)(void *payload, int64_t samples_done,
                                                  int64_t tokens_done),
                             void *payload)
{
    invar_status status = begin(run, samples, count);

    while (status == INVAR_OK && run->samples_done < count) {
        status = step(run);
        if (status == INVAR_OK && tick)
            status = tick(payload, run->samples_done, run->tokens_done);
    }
    end(run);
    return invar_near_advise(status, invar_device_far(&run->rollout->caller.dev),
                             INVAR_FEED_ADVICE);
}

invar_status invar_rollout_run(
    invar_rollout *rollout, invar_rl_sample *samples, int64_t count, const invar_sampling *sampling,
    invar_status (*tick)(void *payload, int64_t samples_done, int64_t tokens_done), void *payload)
{
    generation run = {.rollout = rollout, .sampling = sampling};

    return generate(&run, samples, count, tick, payload);
}

/* ---- samples that join and leave ------------------------------------------------------------- */

invar_status invar_rollout_open(invar_rollout *r, int64_t context)
{
    generation *run = NULL;
    invar_status status;

    INVAR_CHECK(!r->open);
    if (context < 2 || context > r->model->spec.max_positions)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "rollout: a context of %" PRId64 " tokens; expected 2 to %" PRId64,
                          context, r->model->spec.max_positions);
    if (invar_speculation_tokens(&r->limits.speculation) > 0)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "rollout: nothing is guessed where samples join and leave: set "
                          "speculative-algorithm to none");
    INVAR_TRY(invar_alloc((void **)&run, 1, sizeof *run, "a rollout"));
    *run = (generation){.rollout = r};
    r->open = run;
    status = reserve(run, ROOM_FOR_OPEN);
    if (status == INVAR_OK)
        status = invar_sampler_init(&run->sampler, &r->caller, NULL);
    if (status == INVAR_OK)
        status = invar_feed_settle(&run->limits, r, INT32_MAX, context - 1);
    if (status == INVAR_OK)
        status = begin_feed(run, run->limits.concurrency, context - 1);
    if (status != INVAR_OK)
        invar_rollout_close(r);
    else
        r->cache->twin = NULL;
    return invar_near_advise(status, invar_device_far(&r->caller.dev), INVAR_FEED_ADVICE);
}

void invar_rollout_close(invar_rollout *r)
{
    if (r->open)
        end(r->open);
    invar_free(r->open);
    r->open = NULL;
}

/* Samples that have left, and their jobs, leave the arrays. */
static invar_status tidy(generation *run)
{
    int64_t *places = NULL, *numbers, kept = 0;

    INVAR_TRY(invar_alloc((void **)&places, (size_t)(run->n_jobs + run->count), sizeof *places,
                          "the order of samples"));
    numbers = places + run->n_jobs;
    invar_schedule_compact(places, &run->feed.schedule);
    run->n_jobs = run->feed.schedule.n_jobs;
    for (int64_t i = 0; i < run->count; i++) {
        writer *w = &run->writers[i];

        numbers[i] = w->left ? 0 : kept; // a prompt that is through belongs to nobody
        if (w->left)
            continue;
        w->job = places[w->job];
        run->writers[kept++] = *w;
    }
    for (int64_t i = 0; i < run->n_jobs; i++)
        run->jobs[i].sample = numbers[run->jobs[i].sample];
    run->count = kept;
    invar_free(places);
    return INVAR_OK;
}

/* Room for so many more; twice as much as is needed, so that it is made seldom. */
static invar_status make_room_for(generation *run, int64_t more)
{
    int64_t room = run->room;

    if (run->count + more <= room)
        return INVAR_OK;
    INVAR_TRY(tidy(run));
    while (2 * (run->count + more) > room)
        room *= 2;
    if (room == run->room)
        return INVAR_OK;
    INVAR_TRY(make_draws(run, room));
    return reserve(run, room);
}

/* The samples from `first` on never were. */
static void forget(generation *run, int64_t first)
{
    for (int64_t i = first; i < run->count; i++)
        invar_text_stream_release(&run->writers[i].text);
    run->count = first;
    run->n_jobs = run->feed.schedule.n_jobs;
}

invar_status invar_rollout_add(invar_rollout *r, invar_rl_sample *samples, int64_t count,
                               const invar_sampling *sampling)
{
    generation *run = r->open;
    invar_status status;
    int64_t first;

    INVAR_CHECK(run);
    INVAR_TRY(make_room_for(run, count));
    first = run->count;
    status = begin_samples(run, samples, count, sampling);
    if (status == INVAR_OK)
        status = add_groups(run, first);
    if (status == INVAR_OK)
        status = invar_schedule_add(&run->feed.schedule, run->jobs,
                                    run->n_jobs - run->feed.schedule.n_jobs);
    if (status != INVAR_OK)
        forget(run, first);
    return status;
}

void invar_rollout_drop(invar_rollout *r, const invar_rl_sample *samples, int64_t count)
{
    generation *run = r->open;

    INVAR_CHECK(run);
    for (int64_t i = 0; i < run->count; i++) {
        writer *w = &run->writers[i];

        if (w->left || w->sample < samples || w->sample >= samples + count)
            continue;
        w->left = true;
        invar_text_stream_release(&w->text);
        invar_schedule_drop(&run->feed.schedule, w->job);
    }
}

invar_status invar_rollout_step(invar_rollout *r)
{
    INVAR_CHECK(r->open);
    return invar_near_advise(step(r->open), invar_device_far(&r->caller.dev), INVAR_FEED_ADVICE);
}

/* ---- given samples --------------------------------------------------------------------------- */

/* The prompt of a given sample, to be completed. */
static invar_status prompt_of(invar_rl_sample *out, const invar_rollout *r, const invar_sampling *p,
                              const invar_rl_sample *given)
{
    int64_t limit = limit_of(r, p, given);

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
                             .prompt = given->prompt,
                             .rollout = given->rollout,
                             .draw = given->draw,
                             .prompt_tokens = given->prompt_tokens,
                             .n_tokens = given->prompt_tokens};
    INVAR_TRY(invar_alloc((void **)&out->tokens, (size_t)out->n_tokens, sizeof *out->tokens,
                          "tokens of a prompt"));
    memcpy(out->tokens, given->tokens, (size_t)out->n_tokens * sizeof *out->tokens);
    return INVAR_OK;
}

invar_status invar_rollout_follow(invar_rollout *rollout, const invar_rl_sample *given,
                                  int64_t count, const invar_sampling *sampling,
                                  invar_status (*tick)(void *payload, int64_t samples_done,
                                                       int64_t tokens_done),
                                  void *payload)
{
    generation run = {.rollout = rollout, .sampling = sampling, .given = given};
    invar_rl_samples samples = {0};
    invar_status status = INVAR_OK;

    for (int64_t i = 0; i < count && status == INVAR_OK; i++) {
        invar_rl_sample *s;
        status = invar_rl_samples_append(&s, &samples);
        if (status == INVAR_OK)
            status = prompt_of(s, rollout, sampling, &given[i]);
    }
    if (status == INVAR_OK)
        status = generate(&run, samples.items, count, tick, payload);
    invar_rl_samples_reset(&samples);
    return status;
}
