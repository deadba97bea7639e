/*
 * inference_engine.c - one thread works for many.
 *
 * The worker's round: take up what was handed in, score what is to be scored, one pass for all that
 * generates, tell the news. It holds the lock only where it touches what others see.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/inference_engine.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define IDLE_MS 100 // between two looks at the signal
#define SCORE_SEQUENCES 64

struct invar_inference_engine {
    invar_inference_engine_options options;
    invar_rollout *own;    /* generates; NULL: that of somebody else */
    invar_rollout *scorer; /* has a cache of its own */
    int64_t score_rows;    /* that its pages hold */
    pthread_mutex_t lock;
    pthread_cond_t work; /* something was handed in or withdrawn */
    invar_generation_request *handed, **handed_end;
    int64_t load;
    bool closed;
    bool stopped; /* from another thread */

    /* the worker's */
    invar_generation_request *tickets; /* taken up, in order */
    int64_t live;                      /* samples that are generated */
    int64_t group;
};

/* ---- tickets --------------------------------------------------------------------------------- */

static void init_condition(pthread_cond_t *out)
{
    pthread_condattr_t attributes;

    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(out, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

static invar_status make_zeroed(void **out, int64_t count, size_t size, const char *what)
{
    INVAR_TRY(invar_alloc(out, (size_t)count, size, what));
    memset(*out, 0, (size_t)count * size);
    return INVAR_OK;
}

invar_status invar_generation_request_init(invar_generation_request *t, int64_t n_prompts,
                                           int64_t n)
{
    int64_t choices = n_prompts * n;

    memset(t, 0, sizeof *t);
    init_condition(&t->progress_cond);
    INVAR_TRY(make_zeroed((void **)&t->prompts, n_prompts, sizeof *t->prompts, "prompts"));
    t->n_prompts = n_prompts;
    INVAR_TRY(make_zeroed((void **)&t->choices, choices, sizeof *t->choices, "choices"));
    INVAR_TRY(make_zeroed((void **)&t->samples, choices, sizeof *t->samples, "samples"));
    t->n = n;
    return INVAR_OK;
}

void invar_generation_request_release(invar_generation_request *t)
{
    for (int64_t i = 0; i < t->n_prompts; i++)
        invar_free(t->prompts[i].logp);
    for (int64_t i = 0; i < t->n_prompts * t->n; i++) {
        invar_free(t->choices[i].tokens);
        invar_free(t->choices[i].logp);
        invar_rl_sample_release(&t->samples[i]);
    }
    invar_free(t->prompts);
    invar_free(t->choices);
    invar_free(t->samples);
    (void)pthread_cond_destroy(&t->progress_cond);
    memset(t, 0, sizeof *t);
}

/* ---- life ------------------------------------------------------------------------------------ */

static invar_status open_rollouts(invar_inference_engine *d)
{
    const invar_inference_engine_options *o = &d->options;
    invar_rollout_exec_options limits, settled;

    d->closed = o->rollout != NULL;
    if (o->rollout)
        return INVAR_OK;
    limits = *o->limits;
    INVAR_TRY(invar_rollout_new(&d->own, o->model, o->tokenizer, o->dev, &limits));
    limits.speculation = (invar_speculation){0}; // nothing is guessed of what is known
    limits.concurrency = limits.concurrency && limits.concurrency < SCORE_SEQUENCES
                             ? limits.concurrency
                             : SCORE_SEQUENCES;
    INVAR_TRY(invar_rollout_new(&d->scorer, o->model, NULL, o->dev, &limits));
    settled = invar_rollout_resolve_options(&limits, o->model, o->dev, 1, o->context, 0);
    d->score_rows = settled.pages * settled.page_size;
    return invar_rollout_open_stream(d->own, o->context);
}

invar_status invar_inference_engine_new(invar_inference_engine **out,
                                        const invar_inference_engine_options *options)
{
    invar_inference_engine *d = NULL;
    invar_status status;

    INVAR_TRY(make_zeroed((void **)&d, 1, sizeof *d, "a dispatch"));
    d->options = *options;
    d->handed_end = &d->handed;
    (void)pthread_mutex_init(&d->lock, NULL);
    init_condition(&d->work);
    status = open_rollouts(d);
    if (status != INVAR_OK) {
        invar_inference_engine_free(d);
        return status;
    }
    *out = d;
    return INVAR_OK;
}

void invar_inference_engine_free(invar_inference_engine *d)
{
    if (!d)
        return;
    invar_rollout_free(d->own);
    invar_rollout_free(d->scorer);
    (void)pthread_mutex_destroy(&d->lock);
    (void)pthread_cond_destroy(&d->work);
    invar_free(d);
}

static invar_rollout *rollout_of(const invar_inference_engine *d)
{
    return d->own ? d->own : d->options.rollout;
}

/* ---- any thread ------------------------------------------------------------------------------ */

static void inference_engine_lock(invar_inference_engine *d)
{
    (void)pthread_mutex_lock(&d->lock);
}

void invar_inference_engine_unlock(invar_inference_engine *d)
{
    (void)pthread_mutex_unlock(&d->lock);
}

static void wait_for(pthread_cond_t *condition, invar_inference_engine *d, int64_t ms)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(condition, &d->lock, &until);
}

invar_status invar_inference_engine_submit(invar_inference_engine *d,
                                           invar_generation_request *ticket)
{
    invar_status status = INVAR_OK;

    inference_engine_lock(d);
    if (d->closed)
        status = INVAR_FAIL(INVAR_E_STATE, 0, "the server is about to end");
    else if (d->load >= d->options.max_requests)
        status =
            INVAR_FAIL(INVAR_E_BUSY, 0,
                       "the server works on %" PRId64 " requests, as many as it takes", d->load);
    if (status == INVAR_OK) {
        *d->handed_end = ticket;
        d->handed_end = &ticket->next;
        d->load++;
        (void)pthread_cond_signal(&d->work);
    }
    invar_inference_engine_unlock(d);
    return status;
}

static int64_t tokens_of(const invar_generation_request *t)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < t->n_prompts * t->n; i++)
        sum += t->choices[i].count;
    return sum;
}

void invar_inference_engine_wait(invar_inference_engine *d, invar_generation_request *ticket,
                                 int64_t known, int64_t ms)
{
    inference_engine_lock(d);
    if (!ticket->done && tokens_of(ticket) <= known)
        wait_for(&ticket->progress_cond, d, ms);
}

void invar_inference_engine_cancel(invar_inference_engine *d, invar_generation_request *ticket)
{
    inference_engine_lock(d);
    ticket->canceled = true;
    (void)pthread_cond_signal(&d->work);
    while (!ticket->done)
        wait_for(&ticket->progress_cond, d, IDLE_MS);
    invar_inference_engine_unlock(d);
}

void invar_inference_engine_stop(invar_inference_engine *d)
{
    inference_engine_lock(d);
    d->stopped = true;
    (void)pthread_cond_signal(&d->work);
    invar_inference_engine_unlock(d);
}

int64_t invar_inference_engine_load(invar_inference_engine *d)
{
    int64_t load;

    inference_engine_lock(d);
    load = d->load;
    invar_inference_engine_unlock(d);
    return load;
}

/* ---- the worker: the end of tickets ---------------------------------------------------------- */

/* With the lock. The ticket is its owner's again, and may be gone at once. */
static void complete_request(invar_inference_engine *d, invar_generation_request *t)
{
    t->done = true;
    d->load--;
    (void)pthread_cond_broadcast(&t->progress_cond);
}

/* With the lock: its samples leave the rollout, where they are. */
static void inference_engine_drop(invar_inference_engine *d, invar_generation_request *t)
{
    if (t->left > 0)
        invar_rollout_cancel(rollout_of(d), t->samples, t->n_prompts * t->n);
    d->live -= t->left;
    t->left = 0;
    complete_request(d, t);
}

static void inference_engine_fail(invar_inference_engine *d, invar_generation_request *t)
{
    invar_error_take(&t->error);
    inference_engine_drop(d, t);
}

/* The worker's: a ticket of the list fails by itself, with the error that there is. */
static void fail_request(invar_inference_engine *d, invar_generation_request *t)
{
    invar_generation_request **at = &d->tickets;

    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    inference_engine_lock(d);
    inference_engine_fail(d, t);
    invar_inference_engine_unlock(d);
}

/* With the lock: what is done or withdrawn leaves the list. */
static void inference_engine_clear(invar_inference_engine *d)
{
    for (invar_generation_request **at = &d->tickets; *at;) {
        invar_generation_request *t = *at;

        if (!t->canceled && t->left > 0) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        if (t->canceled)
            inference_engine_drop(d, t);
        else
            complete_request(d, t);
    }
}

/* All of them, with the error that there is. */
static void fail_all(invar_inference_engine *d)
{
    invar_error error;

    invar_error_take(&error);
    inference_engine_lock(d);
    d->closed = true;
    *d->handed_end = d->tickets;
    while (d->handed) {
        invar_generation_request *t = d->handed;

        d->handed = t->next;
        invar_error_put(&error);
        inference_engine_fail(d, t);
    }
    d->handed_end = &d->handed;
    d->tickets = NULL;
    invar_inference_engine_unlock(d);
    invar_error_put(&error);
}

/* ---- the worker: taking up ------------------------------------------------------------------- */

static invar_status make_sample(invar_rl_sample *s, const invar_generation_request *t,
                                const invar_generation_prompt *prompt, uint32_t choice,
                                int64_t group)
{
    *s = (invar_rl_sample){.index = choice,
                           .group = group,
                           .rollout = t->rollout,
                           .draw_index = t->draw + choice,
                           .prompt_tokens = prompt->count,
                           .n_tokens = prompt->count};
    INVAR_TRY(invar_alloc((void **)&s->tokens, (size_t)s->n_tokens, sizeof *s->tokens,
                          "tokens of a prompt"));
    memcpy(s->tokens, prompt->tokens, (size_t)s->n_tokens * sizeof *s->tokens);
    return INVAR_OK;
}

static invar_status add_prompt(invar_inference_engine *d, invar_generation_request *t,
                               int64_t prompt)
{
    invar_rl_sample *samples = t->samples + prompt * t->n;

    for (int64_t i = 0; i < t->n; i++)
        INVAR_TRY(make_sample(&samples[i], t, &t->prompts[prompt], (uint32_t)i, d->group));
    d->group++;
    INVAR_TRY(invar_rollout_add(rollout_of(d), samples, t->n, t->sampling));
    t->left += t->n;
    d->live += t->n;
    return INVAR_OK;
}

/* Whether the pages hold each of the prompts; the last token has no row. */
static invar_status check_fit(const invar_inference_engine *d, const invar_generation_request *t)
{
    for (int64_t i = 0; t->score && i < t->n_prompts; i++)
        if (t->prompts[i].count - 1 > d->score_rows)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "prompt %" PRId64 " has %" PRId64 " tokens; the server's KV cache "
                              "has room to score %" PRId64 ": shorten it, or serve with more "
                              "kv-pages",
                              i, t->prompts[i].count, d->score_rows + 1);
    return INVAR_OK;
}

static invar_status inference_engine_begin(invar_inference_engine *d, invar_generation_request *t)
{
    INVAR_TRY(check_fit(d, t));
    for (int64_t i = 0; t->sampling->max_response > 0 && i < t->n_prompts; i++)
        INVAR_TRY(add_prompt(d, t, i));
    return INVAR_OK;
}

/* With the lock: the tickets that came, in their order. */
static invar_generation_request *take_handed(invar_inference_engine *d)
{
    invar_generation_request *first = d->handed;

    d->handed = NULL;
    d->handed_end = &d->handed;
    return first;
}

/* Those whose samples cannot be begun have failed. */
static void take_up(invar_inference_engine *d, invar_generation_request *first)
{
    invar_generation_request **end = &d->tickets, *next;

    while (*end)
        end = &(*end)->next;
    for (invar_generation_request *t = first; t; t = next) {
        next = t->next;
        t->next = NULL;
        if (inference_engine_begin(d, t) == INVAR_OK) {
            *end = t;
            end = &t->next;
            continue;
        }
        inference_engine_lock(d);
        inference_engine_fail(d, t);
        invar_inference_engine_unlock(d);
    }
}

/* ---- the worker: scores ---------------------------------------------------------------------- */

/* Prompts of several tickets. */
typedef struct sheet {
    invar_generation_request **tickets; /* (n_tickets) */
    int64_t n_tickets;
    const int32_t **tokens;
    int64_t *n;
    float **logp;
    int64_t count, room;
} sheet;

static invar_status make_sheet(sheet *out, int64_t room)
{
    INVAR_TRY(make_zeroed((void **)&out->tickets, room, sizeof *out->tickets, "scores"));
    INVAR_TRY(make_zeroed((void **)&out->tokens, room, sizeof *out->tokens, "scores"));
    INVAR_TRY(make_zeroed((void **)&out->n, room, sizeof *out->n, "scores"));
    INVAR_TRY(make_zeroed((void **)&out->logp, room, sizeof *out->logp, "scores"));
    out->room = room;
    return INVAR_OK;
}

static void release_sheet(sheet *s)
{
    invar_free(s->tickets);
    invar_free(s->tokens);
    invar_free(s->n);
    invar_free(s->logp);
}

static invar_status write_down(sheet *out, invar_generation_request *t)
{
    out->tickets[out->n_tickets++] = t;
    for (int64_t i = 0; i < t->n_prompts; i++) {
        invar_generation_prompt *p = &t->prompts[i];

        if (!p->logp) // else it was on a sheet that failed
            INVAR_TRY(invar_alloc((void **)&p->logp, (size_t)p->count, sizeof *p->logp, "scores"));
        out->tokens[out->count] = p->tokens;
        out->n[out->count] = p->count;
        out->logp[out->count++] = p->logp;
    }
    return INVAR_OK;
}

/* Whether t may be on the sheet that `first` begins. */
static bool goes_with(const invar_generation_request *t, const invar_generation_request *first)
{
    return t == first || (t->score && !t->score_alone && !first->score_alone &&
                          t->sampling->temperature == first->sampling->temperature);
}

/* The first ticket, then as many as fit. */
static invar_status fill_sheet(sheet *out, invar_generation_request *first)
{
    INVAR_TRY(
        make_sheet(out, first->n_prompts > SCORE_SEQUENCES ? first->n_prompts : SCORE_SEQUENCES));
    for (invar_generation_request *t = first; t; t = t->next)
        if (goes_with(t, first) && t->n_prompts <= out->room - out->count)
            INVAR_TRY(write_down(out, t));
    return INVAR_OK;
}

static invar_status not_finite(void)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "logits are not finite: the weights are damaged, or the prompt is too much "
                      "for their number format");
}

static invar_status check_scores(const invar_generation_request *t)
{
    for (int64_t i = 0; i < t->n_prompts; i++)
        for (int64_t n = 0; n + 1 < t->prompts[i].count; n++)
            if (!isfinite(t->prompts[i].logp[n]))
                return not_finite();
    return INVAR_OK;
}

/* Whether an error says that nothing can be computed any more; others are those of a ticket. */
static bool is_devices(invar_status status)
{
    return status == INVAR_E_CUDA || status == INVAR_E_NCCL || status == INVAR_E_MPI;
}

static void take_scores(invar_inference_engine *d, const sheet *all)
{
    for (int64_t i = 0; i < all->n_tickets; i++) {
        invar_generation_request *t = all->tickets[i];

        t->score = false;
        if (check_scores(t) != INVAR_OK)
            fail_request(d, t);
    }
}

/* Tickets of a sheet that failed are scored one by one; one that fails alone is the guilty one. */
static void retry_individually(invar_inference_engine *d, const sheet *all,
                               invar_generation_request *first)
{
    if (all->n_tickets <= 1)
        fail_request(d, first);
    else
        for (int64_t i = 0; i < all->n_tickets; i++)
            all->tickets[i]->score_alone = true;
}

/* A sheet that begins with this ticket. */
static invar_status score_sheet(invar_inference_engine *d, invar_generation_request *first)
{
    sheet all = {0};
    invar_status status = fill_sheet(&all, first);

    if (status == INVAR_OK)
        status = invar_rollout_score(d->scorer, all.tokens, all.n, all.count,
                                     first->sampling->temperature, all.logp);
    if (status == INVAR_OK)
        take_scores(d, &all);
    else if (!is_devices(status))
        retry_individually(d, &all, first);
    release_sheet(&all);
    return is_devices(status) ? status : INVAR_OK;
}

/* ---- the worker: rounds ---------------------------------------------------------------------- */

/* Appends the sample's new tokens to what others see of the choice. */
static invar_status tell_choice(invar_generation_choice *c, const invar_rl_sample *s)
{
    int64_t count = invar_rl_sample_response(s), room = c->room ? c->room : 64;
    int32_t *tokens = NULL;
    float *logp = NULL;

    while (room < count)
        room *= 2;
    if (room > c->room) {
        INVAR_TRY(invar_alloc((void **)&tokens, (size_t)room, sizeof *tokens, "tokens"));
        if (invar_alloc((void **)&logp, (size_t)room, sizeof *logp, "log-probs") != INVAR_OK) {
            invar_free(tokens);
            return invar_error_last()->status;
        }
        invar_free(c->tokens);
        invar_free(c->logp);
        c->tokens = tokens;
        c->logp = logp;
        c->room = room;
        c->count = 0;
    }
    if (count > c->count) {
        size_t fresh = (size_t)(count - c->count);
        memcpy(c->tokens + c->count, s->tokens + s->prompt_tokens + c->count,
               fresh * sizeof *c->tokens);
        memcpy(c->logp + c->count, s->logp + c->count, fresh * sizeof *c->logp);
    }
    c->count = count;
    c->finish = s->finish;
    return INVAR_OK;
}

static invar_status inference_engine_report(invar_inference_engine *d, invar_generation_request *t)
{
    bool news = false;

    for (int64_t i = 0; i < t->n_prompts * t->n; i++) {
        invar_generation_choice *c = &t->choices[i];
        const invar_rl_sample *s = &t->samples[i];

        if (c->finish == INVAR_FINISH_NONE && s->finish == INVAR_FINISH_ABORT)
            return not_finite();
        if (c->finish != INVAR_FINISH_NONE || invar_rl_sample_response(s) == c->count)
            continue;
        INVAR_TRY(tell_choice(c, s));
        news = true;
        if (c->finish == INVAR_FINISH_NONE)
            continue;
        t->left--;
        d->live--;
    }
    if (news)
        (void)pthread_cond_broadcast(&t->progress_cond);
    return INVAR_OK;
}

/* With the lock. */
static void tell_all(invar_inference_engine *d)
{
    for (invar_generation_request **at = &d->tickets; *at;) {
        invar_generation_request *t = *at;

        if (inference_engine_report(d, t) == INVAR_OK) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        inference_engine_fail(d, t);
    }
}

static bool is_stopped(const invar_inference_engine *d, const volatile sig_atomic_t *stop)
{
    return d->stopped || (stop && *stop);
}

/* Waits a while for something to do; false: there never will be. With the lock afterwards. */
static bool wait_for_work(invar_inference_engine *d, const volatile sig_atomic_t *stop)
{
    inference_engine_lock(d);
    inference_engine_clear(d);
    if (!d->tickets && !d->handed && !is_stopped(d, stop))
        wait_for(&d->work, d, IDLE_MS);
    d->closed = d->closed || is_stopped(d, stop);
    return d->tickets || d->handed || !d->closed;
}

static invar_status inference_engine_tick(const invar_inference_engine *d)
{
    return d->options.tick ? d->options.tick(d->options.payload) : INVAR_OK;
}

static invar_generation_request *first_unscored(const invar_inference_engine *d)
{
    invar_generation_request *t = d->tickets;

    while (t && !t->score)
        t = t->next;
    return t;
}

static invar_status work_round(invar_inference_engine *d)
{
    for (invar_generation_request *t = first_unscored(d); t; t = first_unscored(d))
        INVAR_TRY(score_sheet(d, t));
    return d->live > 0 ? invar_rollout_step(rollout_of(d)) : INVAR_OK;
}

/* All that comes until the end; with the lock, unless it fails. */
static invar_status run_loop(invar_inference_engine *d, const volatile sig_atomic_t *stop)
{
    invar_status status = INVAR_OK;

    while (status == INVAR_OK && wait_for_work(d, stop)) {
        invar_generation_request *first = take_handed(d);

        invar_inference_engine_unlock(d);
        take_up(d, first);
        status = work_round(d);
        if (status != INVAR_OK)
            break;
        inference_engine_lock(d);
        tell_all(d);
        invar_inference_engine_unlock(d);
        status = inference_engine_tick(d);
    }
    return status;
}

invar_status invar_inference_engine_begin(invar_inference_engine *d)
{
    INVAR_TRY(invar_rollout_open_stream(d->options.rollout, d->options.context));
    inference_engine_lock(d);
    d->closed = d->stopped = false;
    invar_inference_engine_unlock(d);
    return INVAR_OK;
}

invar_status invar_inference_engine_run(invar_inference_engine *d,
                                        const volatile sig_atomic_t *stop)
{
    invar_status status = run_loop(d, stop);

    if (status != INVAR_OK)
        fail_all(d);
    else
        invar_inference_engine_unlock(d);
    if (!d->own)
        invar_rollout_close(d->options.rollout);
    return status;
}
