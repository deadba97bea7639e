/*
 * step.c - measures an optimizer step, and the additional time of recording it.
 *
 * A step is what a run does with given samples: forward, head, loss, backward, norm, AdamW, new
 * compute weights. The loss is the negated mean log-prob of random tokens. A recorded step adds the
 * work of the recorder (engine/record/recorder.h): digests, at finer levels of layers and of every
 * call, and an entry in a ledger in a temporary folder.
 *
 * Variants that are compared run alternately, several steps each, so that the device warms up for
 * all of them and each runs at the clock that its own steps cause.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/bench/bench.h"
#include "cli/bench/model.h"
#include "engine/record/recorder.h"
#include "engine/train/flop.h"

#include "base/invar_banned.h"

enum { WARM_UP = 2, IN_A_ROW = 5, MAX_TIMES = 64 };

/* ---- recording a step ------------------------------------------------------------------------ */

typedef struct recorder {
    invar_recorder is;
    char folder[64];
    int64_t step;
} recorder;

static invar_status open_ledger(recorder *r)
{
    char path[sizeof r->folder + 16];
    invar_ledger_run run = {
        .name = "bench", .kind = "train", .circumstances = {.no_auto_facts = true, .n_facts = 0}};

    (void)snprintf(r->folder, sizeof r->folder, "/tmp/invar-bench-XXXXXX");
    if (!mkdtemp(r->folder)) {
        r->folder[0] = '\0';
        return INVAR_FAIL(INVAR_E_IO, 0, "bench: no folder can be made in /tmp");
    }
    (void)snprintf(path, sizeof path, "%s/ledger.db", r->folder);
    INVAR_TRY(invar_ledger_open(&r->is.ledger, path, &(invar_ledger_options){.create = true}));
    return invar_ledger_begin(r->is.ledger, &run);
}

static invar_status recorder_open(recorder *r, const invar_bench_subject *on, int64_t level)
{
    invar_recorder_options options = {.level = level, .pool = on->dev.pool, .dev = &on->dev};

    *r = (recorder){.step = 0};
    INVAR_TRY(invar_recorder_open(&r->is, &options));
    return open_ledger(r);
}

static void recorder_close(recorder *r)
{
    invar_error before;

    invar_recorder_close(&r->is);
    // a folder that stays in /tmp does not affect the measurement
    invar_error_take(&before);
    if (r->folder[0] && invar_held_folder_remove(r->folder) != INVAR_OK)
        invar_error_clear();
    invar_error_put(&before);
}

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct train_bench {
    const invar_bench_subject *on;
    invar_bench_train *train;
    invar_rl_samples samples; /* (train->samples) */
    invar_token_arrays flat;
    invar_trainer *trainer;
    invar_learner learner;
} train_bench;

static invar_status mean_loss(void *payload, int64_t first, int64_t count, const float *now,
                              const float *entropy, float *dnow, float *dentropy)
{
    const invar_bench_train *t = payload;

    (void)first, (void)now, (void)entropy, (void)dentropy;
    for (int64_t i = 0; i < count * t->length; i++)
        dnow[i] = -1.0f / (float)(t->samples * t->length);
    return INVAR_OK;
}

/* Computes the gradients and their norm. The gradients must be zero. */
static invar_status forward_backward(train_bench *l)
{
    const invar_trainer_loss loss = {.run = mean_loss, .payload = l->train};
    invar_trainer_result result = {.train_logp = l->flat.train_logp};

    return invar_learner_forward_backward(&l->learner, l->trainer, l->samples.items,
                                          l->samples.count, &loss, &result);
}

/* Starts all work of a step without waiting for it. */
static invar_status queue_step(train_bench *l, bool watched)
{
    l->learner.options.no_hashing = !watched;
    INVAR_TRY(forward_backward(l));
    return invar_learner_step(&l->learner, 0, false);
}

static invar_status optimizer_step(train_bench *l)
{
    INVAR_TRY(queue_step(l, false));
    INVAR_TRY(invar_learner_end_step(&l->learner, NULL));
    return invar_device_synchronize(&l->on->dev);
}

static invar_status recorded_step(train_bench *l, recorder *r)
{
    invar_step_report step = {.number = r->step++,
                              .samples = l->samples.items,
                              .flat = &l->flat,
                              .count = l->samples.count,
                              .start = l->flat.offsets,
                              .own_weights = true,
                              .learners = {{.learner = &l->learner}},
                              .n_learners = 1};
    invar_status status;

    INVAR_TRY(invar_recorder_begin(&r->is, &step, ""));
    invar_recorder_watch(&r->is, l->trainer, "");
    status = queue_step(l, true);
    invar_recorder_watch(&r->is, l->trainer, NULL);
    INVAR_TRY(status);
    INVAR_TRY(invar_recorder_end(&r->is));
    return invar_device_synchronize(&l->on->dev);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* A variant of the step that is timed. */
typedef struct timed_variant {
    recorder *recorder;        /* NULL to record nothing */
    const invar_backend *peer; /* backend whose ops are used; NULL for our own */
    double *median_out;
    double times[MAX_TIMES];
} timed_variant;

static invar_status run_step(train_bench *l, const timed_variant *t)
{
    const invar_bench_subject *on = l->on;
    invar_status status;

    if (t->recorder)
        return recorded_step(l, t->recorder);
    if (!t->peer)
        return optimizer_step(l);
    invar_profiling_backend_set_target(on->profiler, t->peer);
    status = optimizer_step(l);
    invar_profiling_backend_set_target(on->profiler, on->backend);
    return status;
}

/* Runs `count` steps of a variant after `idle` steps that are not timed. */
static invar_status run_variant(train_bench *l, timed_variant *t, int64_t idle, int64_t first,
                                int64_t count)
{
    for (int64_t i = -idle; i < count; i++) {
        double begun = invar_bench_now();
        INVAR_TRY(run_step(l, t));
        if (i >= 0)
            t->times[first + i] = invar_bench_now() - begun;
    }
    return INVAR_OK;
}

/* Measures the median of each variant. */
static invar_status measure_variants(train_bench *l, timed_variant *turns, int n_turns)
{
    int64_t count = l->on->repetitions;

    INVAR_CHECK(count <= MAX_TIMES);
    for (int64_t first = 0; first < count; first += IN_A_ROW) {
        int64_t left = count - first, idle = first == 0 || n_turns > 1 ? WARM_UP : 0;
        for (timed_variant *t = turns; t < turns + n_turns; t++)
            INVAR_TRY(run_variant(l, t, idle, first, left < IN_A_ROW ? left : IN_A_ROW));
    }
    for (timed_variant *t = turns; t < turns + n_turns; t++)
        *t->median_out = invar_bench_median(t->times, count);
    return INVAR_OK;
}

/*
 * Measures the step, the step with recording, and the step with the ops of a peer if there is one.
 */
static invar_status measure_step(train_bench *l)
{
    invar_bench_train *out = l->train;
    recorder r;
    timed_variant turns[] = {
        {.median_out = &out->seconds},
        {.recorder = &r, .median_out = &out->recorded[INVAR_PROBE_STEP].seconds},
        {.peer = l->on->peer, .median_out = &out->peer_seconds}};
    invar_status status = recorder_open(&r, l->on, INVAR_PROBE_STEP);

    if (status == INVAR_OK)
        status = measure_variants(l, turns, l->on->peer ? 3 : 2);
    out->recorded[INVAR_PROBE_STEP].points = r.is.points;
    recorder_close(&r);
    return status;
}

static invar_status measure_finer(train_bench *l, int64_t level)
{
    invar_bench_record *out = &l->train->recorded[level];
    recorder r;
    timed_variant fine = {.recorder = &r, .median_out = &out->seconds};
    invar_status status = recorder_open(&r, l->on, level);

    if (status == INVAR_OK)
        status = measure_variants(l, &fine, 1);
    out->points = r.is.points;
    recorder_close(&r);
    return status;
}

static invar_status profile_step(invar_bench_profile *out, train_bench *l)
{
    if (!l->on->profile)
        return INVAR_OK;
    INVAR_TRY(invar_profiling_backend_begin(l->on->profiler, &l->on->dev));
    INVAR_TRY(optimizer_step(l));
    invar_profiling_backend_end(l->on->profiler);
    return invar_bench_profile_take(out, l->on->profiler, 1);
}

/*
 * Rejects a peer whose gradient norm differs by more than 2 %, because it computes something else.
 */
static invar_status try_peer(train_bench *l, float own)
{
    invar_bench_train *t = l->train;

    // clears our gradients, which would otherwise stand in for work that the peer omits
    INVAR_TRY(invar_device_zero(&l->on->dev, l->learner.grads->memory, l->learner.grads->bytes));
    INVAR_TRY(forward_backward(l));
    INVAR_TRY(invar_learner_end_step(&l->learner, NULL));
    t->peer_norm_ratio = (double)l->learner.norm / (double)own;
    if (!(t->peer_norm_ratio > 0.98 && t->peer_norm_ratio < 1.02))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "--peer: its gradient has a norm of %g, ours of %g: it computes "
                          "something else",
                          (double)l->learner.norm, (double)own);
    return profile_step(&t->profile.peer, l);
}

static invar_status check_peer(train_bench *l)
{
    const invar_bench_subject *on = l->on;
    invar_status status;

    if (!on->peer)
        return INVAR_OK;
    INVAR_TRY(forward_backward(l));
    INVAR_TRY(invar_learner_end_step(&l->learner, NULL));
    invar_profiling_backend_set_target(on->profiler, on->peer);
    status = try_peer(l, l->learner.norm);
    invar_profiling_backend_set_target(on->profiler, on->backend);
    return status;
}

static void record_memory(invar_bench_train *t, const train_bench *l)
{
    const invar_profiling_backend *meter = l->on->profiler;

    t->gradients = l->learner.grads->bytes;
    t->optimizer = 2 * l->learner.optimizer->local_bytes;
    t->activations = invar_profiling_backend_allocated_bytes(meter, "activations");
    t->head = invar_profiling_backend_allocated_bytes(meter, "rows of the head");
    t->scratch = invar_profiling_backend_allocated_bytes(meter, "arena scratch of ops");
}

static invar_status measure_all(train_bench *l)
{
    invar_bench_train *t = l->train;

    INVAR_TRY(optimizer_step(l));
    t->norm = (double)l->learner.norm;
    if (!(l->learner.norm > 0.0f))
        return INVAR_FAIL(INVAR_E_STATE, 0, "bench: the gradient is zero: nothing was learned");
    record_memory(t, l);
    INVAR_TRY(check_peer(l));
    INVAR_TRY(measure_step(l));
    INVAR_TRY(measure_finer(l, INVAR_PROBE_POINT));
    INVAR_TRY(measure_finer(l, INVAR_PROBE_FULL));
    return profile_step(&t->profile.ours, l);
}

/* ---- setup ----------------------------------------------------------------------------------- */

/* Samples have one token more than is computed, because the last one is only predicted. */
static invar_status make_samples(train_bench *l)
{
    int64_t tokens = l->train->length + 1;
    uint64_t state = 7;

    for (int64_t i = 0; i < l->train->samples; i++) {
        invar_rl_sample *s;
        INVAR_TRY(invar_rl_samples_append(&s, &l->samples));
        INVAR_TRY(INVAR_ALLOC(s->tokens, (size_t)tokens, "tokens"));
        s->index = s->group = i;
        s->prompt_tokens = 1;
        s->n_tokens = tokens;
        invar_bench_tokens(s->tokens, tokens, &state, l->on->model->spec.vocab);
    }
    return INVAR_OK;
}

/* Fills in the arrays that a run computes before the step. */
static invar_status make_flat(train_bench *l)
{
    invar_token_arrays *f = &l->flat;
    size_t bytes;

    INVAR_TRY(invar_token_arrays_make(f, &l->samples, &(invar_token_array_flags){.critic = false}));
    bytes = (size_t)f->tokens * sizeof(float);
    memset(f->score_logp, 0, bytes);
    memset(f->entropy, 0, bytes);
    memset(f->advantage, 0, bytes);
    return INVAR_OK;
}

static invar_status open_train_bench(train_bench *l)
{
    const invar_bench_subject *on = l->on;
    const invar_trainer_options options = {
        .plan = {.unit_rows = 16384, .unit_count = 64, .micro_batch = l->train->micro_batch},
        .head_rows = invar_trainer_head_rows(&on->dev, &on->model->spec),
        .temperature = 1.0f};
    const invar_learner_options learner = {.dev = &on->dev,
                                           .prefix = "",
                                           .schedule = {.style = INVAR_DECAY_CONSTANT, .lr = 1e-6},
                                           .adamw = {0.9f, 0.98f, 1e-8f, 0.1f, 1.0f},
                                           .offload_chunk_bytes =
                                               on->offload ? INVAR_OPTIMIZER_CHUNK_BYTES : 0,
                                           .no_hashing = true};

    INVAR_TRY(make_samples(l));
    l->train->flop = invar_flop_train(on->model, l->samples.items, l->samples.count);
    INVAR_TRY(make_flat(l));
    INVAR_TRY(invar_trainer_new(&l->trainer, &on->dev, &options));
    return invar_learner_open(&l->learner, on->model, true, &learner);
}

static void close_train_bench(train_bench *l)
{
    invar_rl_samples_reset(&l->samples);
    invar_token_arrays_release(&l->flat);
    invar_learner_close(&l->learner);
    invar_trainer_free(l->trainer);
}

invar_status invar_bench_train_run(invar_bench_train *train, const invar_bench_subject *subject)
{
    train_bench l = {.on = subject, .train = train};
    invar_status status = open_train_bench(&l);

    if (status == INVAR_OK)
        status = measure_all(&l);
    close_train_bench(&l);
    return status;
}
