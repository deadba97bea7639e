/*
 * inference_engine.c - continuous batching of generation requests on the thread that owns the
 * model.
 *
 * Each round of the worker admits submitted requests, scores prompts, runs one pass of the rollout
 * for all unfinished samples, and publishes the new tokens. Prompts of several requests are scored
 * in one batch; if a batch fails, its requests are scored one at a time, so that only the bad one
 * fails.
 *
 * The lock guards the submission queue, `load`, the shutdown flags and the published fields of
 * requests. The list of admitted requests and their samples belong to the worker, which does not
 * hold the lock during a pass.
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

#define STOP_CHECK_MS 100 // longest wait before the stop flag is checked
#define SCORE_SEQUENCES 64

struct invar_inference_engine {
    invar_inference_engine_options options;
    invar_rollout *own_rollout; /* rollout that generates; NULL if options.rollout does */
    invar_rollout *scorer;      /* rollout that scores prompts, with a KV cache of its own */
    int64_t score_rows;         /* rows that the KV cache of the scorer can hold */
    pthread_mutex_t lock;
    pthread_cond_t work_cond; /* signaled when a request was submitted or canceled */
    invar_generation_request *submitted, **submitted_end;
    int64_t load;
    bool closed;
    bool stopped; /* set by invar_inference_engine_stop */

    /* The following fields are private to the worker: */
    invar_generation_request *requests; /* admitted requests, in order of submission */
    int64_t live_samples;               /* samples that are not finished */
    int64_t group;                      /* number of the next prompt, as group of its samples */
};

/* ---- generation requests --------------------------------------------------------------------- */

static void init_condition(pthread_cond_t *out)
{
    pthread_condattr_t attributes;

    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(out, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

invar_status invar_generation_request_init(invar_generation_request *t, int64_t n_prompts,
                                           int64_t n)
{
    int64_t choices = n_prompts * n;

    memset(t, 0, sizeof *t);
    init_condition(&t->progress_cond);
    INVAR_TRY(INVAR_ALLOC_ZEROED(t->prompts, (size_t)n_prompts, "prompts"));
    t->n_prompts = n_prompts;
    INVAR_TRY(INVAR_ALLOC_ZEROED(t->choices, (size_t)choices, "choices"));
    INVAR_TRY(INVAR_ALLOC_ZEROED(t->samples, (size_t)choices, "samples"));
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

/* ---- creation -------------------------------------------------------------------------------- */

static invar_status open_rollouts(invar_inference_engine *engine)
{
    const invar_inference_engine_options *o = &engine->options;
    invar_rollout_exec_options limits, settled;

    engine->closed = o->rollout != NULL;
    if (o->rollout)
        return INVAR_OK;
    limits = *o->limits;
    INVAR_TRY(invar_rollout_new(&engine->own_rollout, o->model, o->tokenizer, o->dev, &limits));
    limits.speculation = (invar_speculation){0}; // scoring computes known tokens only
    limits.concurrency = limits.concurrency && limits.concurrency < SCORE_SEQUENCES
                             ? limits.concurrency
                             : SCORE_SEQUENCES;
    INVAR_TRY(invar_rollout_new(&engine->scorer, o->model, NULL, o->dev, &limits));
    settled = invar_rollout_resolve_options(&limits, o->model, o->dev, 1, o->context, 0);
    engine->score_rows = settled.pages * settled.page_size;
    return invar_rollout_open_stream(engine->own_rollout, o->context);
}

invar_status invar_inference_engine_new(invar_inference_engine **out,
                                        const invar_inference_engine_options *options)
{
    invar_inference_engine *engine = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_ZEROED(engine, 1, "a dispatch"));
    engine->options = *options;
    engine->submitted_end = &engine->submitted;
    (void)pthread_mutex_init(&engine->lock, NULL);
    init_condition(&engine->work_cond);
    status = open_rollouts(engine);
    if (status != INVAR_OK) {
        invar_inference_engine_free(engine);
        return status;
    }
    *out = engine;
    return INVAR_OK;
}

void invar_inference_engine_free(invar_inference_engine *engine)
{
    if (!engine)
        return;
    invar_rollout_free(engine->own_rollout);
    invar_rollout_free(engine->scorer);
    (void)pthread_mutex_destroy(&engine->lock);
    (void)pthread_cond_destroy(&engine->work_cond);
    invar_free(engine);
}

static invar_rollout *rollout_of(const invar_inference_engine *engine)
{
    return engine->own_rollout ? engine->own_rollout : engine->options.rollout;
}

/* ---- called by any thread -------------------------------------------------------------------- */

static void lock_engine(invar_inference_engine *engine)
{
    (void)pthread_mutex_lock(&engine->lock);
}

void invar_inference_engine_unlock(invar_inference_engine *engine)
{
    (void)pthread_mutex_unlock(&engine->lock);
}

static void wait_for(pthread_cond_t *condition, invar_inference_engine *engine, int64_t ms)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(condition, &engine->lock, &until);
}

invar_status invar_inference_engine_submit(invar_inference_engine *engine,
                                           invar_generation_request *request)
{
    invar_status status = INVAR_OK;

    lock_engine(engine);
    if (engine->closed)
        status = INVAR_FAIL(INVAR_E_STATE, 0, "the server is about to end");
    else if (engine->load >= engine->options.max_requests)
        status = INVAR_FAIL(INVAR_E_BUSY, 0,
                            "the server works on %" PRId64 " requests, as many as it takes",
                            engine->load);
    if (status == INVAR_OK) {
        *engine->submitted_end = request;
        engine->submitted_end = &request->next;
        engine->load++;
        (void)pthread_cond_signal(&engine->work_cond);
    }
    invar_inference_engine_unlock(engine);
    return status;
}

static int64_t tokens_of(const invar_generation_request *t)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < t->n_prompts * t->n; i++)
        sum += t->choices[i].count;
    return sum;
}

void invar_inference_engine_wait(invar_inference_engine *engine, invar_generation_request *request,
                                 int64_t known, int64_t ms)
{
    lock_engine(engine);
    if (!request->done && tokens_of(request) <= known)
        wait_for(&request->progress_cond, engine, ms);
}

void invar_inference_engine_cancel(invar_inference_engine *engine,
                                   invar_generation_request *request)
{
    lock_engine(engine);
    request->canceled = true;
    (void)pthread_cond_signal(&engine->work_cond);
    while (!request->done)
        wait_for(&request->progress_cond, engine, STOP_CHECK_MS);
    invar_inference_engine_unlock(engine);
}

void invar_inference_engine_stop(invar_inference_engine *engine)
{
    lock_engine(engine);
    engine->stopped = true;
    (void)pthread_cond_signal(&engine->work_cond);
    invar_inference_engine_unlock(engine);
}

int64_t invar_inference_engine_load(invar_inference_engine *engine)
{
    int64_t load;

    lock_engine(engine);
    load = engine->load;
    invar_inference_engine_unlock(engine);
    return load;
}

/* ---- worker: end of requests ----------------------------------------------------------------- */

/* Marks the request as done and wakes its owner, who may free it at once. Caller holds `lock`. */
static void complete_request(invar_inference_engine *engine, invar_generation_request *t)
{
    t->done = true;
    engine->load--;
    (void)pthread_cond_broadcast(&t->progress_cond);
}

/* Removes the samples of the request from the rollout and completes it. Caller holds `lock`. */
static void drop_request(invar_inference_engine *engine, invar_generation_request *t)
{
    if (t->n_unfinished > 0)
        invar_rollout_cancel(rollout_of(engine), t->samples, t->n_prompts * t->n);
    engine->live_samples -= t->n_unfinished;
    t->n_unfinished = 0;
    complete_request(engine, t);
}

static void set_request_failed(invar_inference_engine *engine, invar_generation_request *t)
{
    invar_error_take(&t->error);
    drop_request(engine, t);
}

/* Removes an admitted request from the list and fails it with the current error. */
static void fail_request(invar_inference_engine *engine, invar_generation_request *t)
{
    invar_generation_request **at = &engine->requests;

    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    lock_engine(engine);
    set_request_failed(engine, t);
    invar_inference_engine_unlock(engine);
}

/* Removes requests that are complete or canceled from the list. Caller holds `lock`. */
static void remove_finished(invar_inference_engine *engine)
{
    for (invar_generation_request **at = &engine->requests; *at;) {
        invar_generation_request *t = *at;

        if (!t->canceled && t->n_unfinished > 0) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        if (t->canceled)
            drop_request(engine, t);
        else
            complete_request(engine, t);
    }
}

/* Fails all requests with the current error, which stays set, and accepts no more. */
static void fail_all(invar_inference_engine *engine)
{
    invar_error error;

    invar_error_take(&error);
    lock_engine(engine);
    engine->closed = true;
    *engine->submitted_end = engine->requests;
    while (engine->submitted) {
        invar_generation_request *t = engine->submitted;

        engine->submitted = t->next;
        invar_error_put(&error);
        set_request_failed(engine, t);
    }
    engine->submitted_end = &engine->submitted;
    engine->requests = NULL;
    invar_inference_engine_unlock(engine);
    invar_error_put(&error);
}

/* ---- worker: admission ----------------------------------------------------------------------- */

static invar_status init_sample(invar_rl_sample *s, const invar_generation_request *t,
                                const invar_generation_prompt *prompt, uint32_t choice,
                                int64_t group)
{
    *s = (invar_rl_sample){.index = choice,
                           .group = group,
                           .rollout = t->rollout,
                           .draw_index = t->draw_index + choice};
    return invar_rl_sample_set_prompt(s, prompt->tokens, prompt->count, 0);
}

static invar_status add_prompt_samples(invar_inference_engine *engine, invar_generation_request *t,
                                       int64_t prompt)
{
    invar_rl_sample *samples = t->samples + prompt * t->n;

    for (int64_t i = 0; i < t->n; i++)
        INVAR_TRY(init_sample(&samples[i], t, &t->prompts[prompt], (uint32_t)i, engine->group));
    engine->group++;
    INVAR_TRY(invar_rollout_add(rollout_of(engine), samples, t->n, t->sampling));
    t->n_unfinished += t->n;
    engine->live_samples += t->n;
    return INVAR_OK;
}

/*
 * Fails if the KV cache of the scorer cannot hold a prompt. The last token of a prompt needs no
 * row.
 */
static invar_status check_prompts_fit(const invar_inference_engine *engine,
                                      const invar_generation_request *t)
{
    for (int64_t i = 0; t->score && i < t->n_prompts; i++)
        if (t->prompts[i].count - 1 > engine->score_rows)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "prompt %" PRId64 " has %" PRId64 " tokens; the server's KV cache "
                              "has room to score %" PRId64 ": shorten it, or serve with more "
                              "kv-pages",
                              i, t->prompts[i].count, engine->score_rows + 1);
    return INVAR_OK;
}

static invar_status start_request(invar_inference_engine *engine, invar_generation_request *t)
{
    INVAR_TRY(check_prompts_fit(engine, t));
    for (int64_t i = 0; t->sampling->max_response > 0 && i < t->n_prompts; i++)
        INVAR_TRY(add_prompt_samples(engine, t, i));
    return INVAR_OK;
}

/* Takes the submitted requests out of the queue, in order. Caller holds `lock`. */
static invar_generation_request *take_submitted(invar_inference_engine *engine)
{
    invar_generation_request *first = engine->submitted;

    engine->submitted = NULL;
    engine->submitted_end = &engine->submitted;
    return first;
}

/* Admits submitted requests. A request whose samples cannot be created fails. */
static void admit_requests(invar_inference_engine *engine, invar_generation_request *first)
{
    invar_generation_request **end = &engine->requests, *next;

    while (*end)
        end = &(*end)->next;
    for (invar_generation_request *t = first; t; t = next) {
        next = t->next;
        t->next = NULL;
        if (start_request(engine, t) == INVAR_OK) {
            *end = t;
            end = &t->next;
            continue;
        }
        lock_engine(engine);
        set_request_failed(engine, t);
        invar_inference_engine_unlock(engine);
    }
}

/* ---- worker: scoring ------------------------------------------------------------------------- */

/* Prompts of several requests that are scored together. */
typedef struct score_batch {
    invar_generation_request **requests; /* (n_requests) */
    int64_t n_requests;
    const int32_t **tokens;
    int64_t *n;
    float **logp;
    int64_t count, room;
} score_batch;

static invar_status init_score_batch(score_batch *out, int64_t room)
{
    INVAR_TRY(INVAR_ALLOC_ZEROED(out->requests, (size_t)room, "scores"));
    INVAR_TRY(INVAR_ALLOC_ZEROED(out->tokens, (size_t)room, "scores"));
    INVAR_TRY(INVAR_ALLOC_ZEROED(out->n, (size_t)room, "scores"));
    INVAR_TRY(INVAR_ALLOC_ZEROED(out->logp, (size_t)room, "scores"));
    out->room = room;
    return INVAR_OK;
}

static void release_score_batch(score_batch *s)
{
    invar_free(s->requests);
    invar_free(s->tokens);
    invar_free(s->n);
    invar_free(s->logp);
}

static invar_status add_to_score_batch(score_batch *out, invar_generation_request *t)
{
    out->requests[out->n_requests++] = t;
    for (int64_t i = 0; i < t->n_prompts; i++) {
        invar_generation_prompt *p = &t->prompts[i];

        if (!p->logp) // a request of a failed batch already has its buffer
            INVAR_TRY(INVAR_ALLOC(p->logp, (size_t)p->count, "scores"));
        out->tokens[out->count] = p->tokens;
        out->n[out->count] = p->count;
        out->logp[out->count++] = p->logp;
    }
    return INVAR_OK;
}

/* Returns whether `t` may be scored in the batch that `first` begins. */
static bool can_share_batch(const invar_generation_request *t,
                            const invar_generation_request *first)
{
    return t == first || (t->score && !t->score_alone && !first->score_alone &&
                          t->sampling->temperature == first->sampling->temperature);
}

/* Fills a batch with the first request, then with others that fit. */
static invar_status fill_score_batch(score_batch *out, invar_generation_request *first)
{
    INVAR_TRY(init_score_batch(out, first->n_prompts > SCORE_SEQUENCES ? first->n_prompts
                                                                       : SCORE_SEQUENCES));
    for (invar_generation_request *t = first; t; t = t->next)
        if (can_share_batch(t, first) && t->n_prompts <= out->room - out->count)
            INVAR_TRY(add_to_score_batch(out, t));
    return INVAR_OK;
}

static invar_status fail_not_finite(void)
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
                return fail_not_finite();
    return INVAR_OK;
}

/*
 * Returns whether the error means that nothing can be computed any more; other errors belong to a
 * request.
 */
static bool is_device_error(invar_status status)
{
    return status == INVAR_E_CUDA || status == INVAR_E_NCCL || status == INVAR_E_MPI;
}

static void finish_scores(invar_inference_engine *engine, const score_batch *all)
{
    for (int64_t i = 0; i < all->n_requests; i++) {
        invar_generation_request *t = all->requests[i];

        t->score = false;
        if (check_scores(t) != INVAR_OK)
            fail_request(engine, t);
    }
}

/*
 * Handles a batch that failed: its requests are marked to be scored alone, so that only the bad one
 * fails.
 */
static void retry_individually(invar_inference_engine *engine, const score_batch *all,
                               invar_generation_request *first)
{
    if (all->n_requests <= 1)
        fail_request(engine, first);
    else
        for (int64_t i = 0; i < all->n_requests; i++)
            all->requests[i]->score_alone = true;
}

/* Scores the batch that begins with this request. Fails on an error of the device only. */
static invar_status run_score_batch(invar_inference_engine *engine, invar_generation_request *first)
{
    score_batch all = {0};
    invar_status status = fill_score_batch(&all, first);

    if (status == INVAR_OK)
        status = invar_rollout_score(engine->scorer, all.tokens, all.n, all.count,
                                     first->sampling->temperature, all.logp);
    if (status == INVAR_OK)
        finish_scores(engine, &all);
    else if (!is_device_error(status))
        retry_individually(engine, &all, first);
    release_score_batch(&all);
    return is_device_error(status) ? status : INVAR_OK;
}

/* ---- worker: rounds -------------------------------------------------------------------------- */

/* Appends the new tokens of the sample to the published tokens of the choice. */
static invar_status publish_choice(invar_generation_choice *c, const invar_rl_sample *s)
{
    int64_t count = invar_rl_sample_response(s);

    INVAR_TRY(INVAR_GROW(c->tokens, c->tokens_capacity, c->count, count, "tokens"));
    INVAR_TRY(INVAR_GROW(c->logp, c->logp_capacity, c->count, count, "log-probs"));
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

static invar_status publish_request(invar_inference_engine *engine, invar_generation_request *t)
{
    bool news = false;

    for (int64_t i = 0; i < t->n_prompts * t->n; i++) {
        invar_generation_choice *c = &t->choices[i];
        const invar_rl_sample *s = &t->samples[i];

        if (c->finish == INVAR_FINISH_NONE && s->finish == INVAR_FINISH_ABORT)
            return fail_not_finite();
        if (c->finish != INVAR_FINISH_NONE || invar_rl_sample_response(s) == c->count)
            continue;
        INVAR_TRY(publish_choice(c, s));
        news = true;
        if (c->finish == INVAR_FINISH_NONE)
            continue;
        t->n_unfinished--;
        engine->live_samples--;
    }
    if (news)
        (void)pthread_cond_broadcast(&t->progress_cond);
    return INVAR_OK;
}

/*
 * Publishes the new tokens of all requests. A request that cannot be published fails. Caller holds
 * `lock`.
 */
static void publish_all(invar_inference_engine *engine)
{
    for (invar_generation_request **at = &engine->requests; *at;) {
        invar_generation_request *t = *at;

        if (publish_request(engine, t) == INVAR_OK) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        set_request_failed(engine, t);
    }
}

static bool is_stopped(const invar_inference_engine *engine, const volatile sig_atomic_t *stop)
{
    return engine->stopped || (stop && *stop);
}

/*
 * Waits at most STOP_CHECK_MS for work. Returns false if the engine is stopped and no requests are
 * left. Returns with `lock` held.
 */
static bool wait_for_work(invar_inference_engine *engine, const volatile sig_atomic_t *stop)
{
    lock_engine(engine);
    remove_finished(engine);
    if (!engine->requests && !engine->submitted && !is_stopped(engine, stop))
        wait_for(&engine->work_cond, engine, STOP_CHECK_MS);
    engine->closed = engine->closed || is_stopped(engine, stop);
    return engine->requests || engine->submitted || !engine->closed;
}

static invar_status call_tick(const invar_inference_engine *engine)
{
    return engine->options.on_progress ? engine->options.on_progress(engine->options.payload)
                                       : INVAR_OK;
}

static invar_generation_request *first_unscored(const invar_inference_engine *engine)
{
    invar_generation_request *t = engine->requests;

    while (t && !t->score)
        t = t->next;
    return t;
}

static invar_status run_round(invar_inference_engine *engine)
{
    for (invar_generation_request *t = first_unscored(engine); t; t = first_unscored(engine))
        INVAR_TRY(run_score_batch(engine, t));
    return engine->live_samples > 0 ? invar_rollout_step(rollout_of(engine)) : INVAR_OK;
}

/* Serves requests until the engine is stopped. Returns with `lock` held, unless it fails. */
static invar_status run_loop(invar_inference_engine *engine, const volatile sig_atomic_t *stop)
{
    invar_status status = INVAR_OK;

    while (status == INVAR_OK && wait_for_work(engine, stop)) {
        invar_generation_request *first = take_submitted(engine);

        invar_inference_engine_unlock(engine);
        admit_requests(engine, first);
        status = run_round(engine);
        if (status != INVAR_OK)
            break;
        lock_engine(engine);
        publish_all(engine);
        invar_inference_engine_unlock(engine);
        status = call_tick(engine);
    }
    return status;
}

invar_status invar_inference_engine_begin(invar_inference_engine *engine)
{
    INVAR_TRY(invar_rollout_open_stream(engine->options.rollout, engine->options.context));
    lock_engine(engine);
    engine->closed = engine->stopped = false;
    invar_inference_engine_unlock(engine);
    return INVAR_OK;
}

invar_status invar_inference_engine_run(invar_inference_engine *engine,
                                        const volatile sig_atomic_t *stop)
{
    invar_status status = run_loop(engine, stop);

    if (status != INVAR_OK)
        fail_all(engine);
    else
        invar_inference_engine_unlock(engine);
    if (!engine->own_rollout)
        invar_rollout_close(engine->options.rollout);
    return status;
}
