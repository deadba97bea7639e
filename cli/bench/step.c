/*
 * step.c - what an optimizer step costs, and what its record adds.
 *
 * A step is what a run does with samples that are there: forward, head, loss, backward, norm,
 * AdamW, new compute weights. The loss is the mean log-probability of random tokens, negated. The
 * recorded step adds what a run's recorder makes of it (engine/record/recorder.h): digests, of the
 * layers and of every call at the finer levels, and an entry of a ledger, which is written to a
 * temporary folder.
 * Kinds of steps that are compared take turns, several steps each: the device grows warm for all of
 * them, and each has the clock that steps of its kind leave, as in a run.
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

enum { WARM_UP = 2, IN_A_ROW = 5, MOST_TIMES = 64 };

/* ---- what a run keeps of a step -------------------------------------------------------------- */

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
    // what stays in /tmp makes the measurement none the worse
    invar_error_take(&before);
    if (r->folder[0] && invar_held_folder_remove(r->folder) != INVAR_OK)
        invar_error_clear();
    invar_error_put(&before);
}

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct lesson {
    const invar_bench_subject *on;
    invar_bench_train *train;
    invar_rl_samples samples; /* (train->samples) */
    invar_token_arrays flat;
    invar_trainer *trainer;
    invar_learner learner;
} lesson;

static invar_status mean_loss(void *payload, int64_t first, int64_t count, const float *now,
                              const float *entropy, float *dnow, float *dentropy)
{
    const invar_bench_train *t = payload;

    (void)first, (void)now, (void)entropy, (void)dentropy;
    for (int64_t i = 0; i < count * t->length; i++)
        dnow[i] = -1.0f / (float)(t->samples * t->length);
    return INVAR_OK;
}

/* Up to the norm; the gradients are zero before. */
static invar_status forward_backward(lesson *l)
{
    const invar_trainer_loss loss = {.run = mean_loss, .payload = l->train};
    invar_trainer_result result = {.train_logp = l->flat.train_logp};

    return invar_learner_forward_backward(&l->learner, l->trainer, l->samples.items,
                                          l->samples.count, &loss, &result);
}

/* All of it begun. */
static invar_status lesson_advance(lesson *l, bool watched)
{
    l->learner.options.no_hashing = !watched;
    INVAR_TRY(forward_backward(l));
    return invar_learner_step(&l->learner, 0, false);
}

static invar_status optimizer_step(lesson *l)
{
    INVAR_TRY(lesson_advance(l, false));
    INVAR_TRY(invar_learner_end_step(&l->learner, NULL));
    return invar_device_synchronize(&l->on->dev);
}

static invar_status learn_recorded(lesson *l, recorder *r)
{
    invar_step_report step = {.number = r->step++,
                              .samples = l->samples.items,
                              .flat = &l->flat,
                              .count = l->samples.count,
                              .start = l->flat.start,
                              .own_weights = true,
                              .learners = {{.learner = &l->learner}},
                              .n_learners = 1};
    invar_status status;

    INVAR_TRY(invar_recorder_begin(&r->is, &step, ""));
    invar_recorder_watch(&r->is, l->trainer, "");
    status = lesson_advance(l, true);
    invar_recorder_watch(&r->is, l->trainer, NULL);
    INVAR_TRY(status);
    INVAR_TRY(invar_recorder_end(&r->is));
    return invar_device_synchronize(&l->on->dev);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* A kind of step. */
typedef struct turn {
    recorder *recorder;        /* NULL: nothing is recorded */
    const invar_backend *peer; /* whose ops it takes; NULL: our own */
    double *median_out;
    double times[MOST_TIMES];
} turn;

static invar_status take_step(lesson *l, const turn *t)
{
    const invar_bench_subject *on = l->on;
    invar_status status;

    if (t->recorder)
        return learn_recorded(l, t->recorder);
    if (!t->peer)
        return optimizer_step(l);
    invar_profiling_backend_exchange(on->meter, t->peer);
    status = optimizer_step(l);
    invar_profiling_backend_exchange(on->meter, on->backend);
    return status;
}

/* So many steps of a kind, after `idle` that are not timed. */
static invar_status take_turn(lesson *l, turn *t, int64_t idle, int64_t first, int64_t count)
{
    for (int64_t i = -idle; i < count; i++) {
        double begun = invar_bench_now();
        INVAR_TRY(take_step(l, t));
        if (i >= 0)
            t->times[first + i] = invar_bench_now() - begun;
    }
    return INVAR_OK;
}

/* The median of each kind. */
static invar_status lesson_measure(lesson *l, turn *turns, int n_turns)
{
    int64_t count = l->on->repetitions;

    INVAR_CHECK(count <= MOST_TIMES);
    for (int64_t first = 0; first < count; first += IN_A_ROW) {
        int64_t left = count - first, idle = first == 0 || n_turns > 1 ? WARM_UP : 0;
        for (turn *t = turns; t < turns + n_turns; t++)
            INVAR_TRY(take_turn(l, t, idle, first, left < IN_A_ROW ? left : IN_A_ROW));
    }
    for (turn *t = turns; t < turns + n_turns; t++)
        *t->median_out = invar_bench_median(t->times, count);
    return INVAR_OK;
}

/* The step, what its record adds, and with the ops of a peer, if there is one. */
static invar_status measure_step(lesson *l)
{
    invar_bench_train *out = l->train;
    recorder r;
    turn turns[] = {{.median_out = &out->seconds},
                    {.recorder = &r, .median_out = &out->recorded[INVAR_PROBE_STEP].seconds},
                    {.peer = l->on->peer, .median_out = &out->peer_seconds}};
    invar_status status = recorder_open(&r, l->on, INVAR_PROBE_STEP);

    if (status == INVAR_OK)
        status = lesson_measure(l, turns, l->on->peer ? 3 : 2);
    out->recorded[INVAR_PROBE_STEP].points = r.is.points;
    recorder_close(&r);
    return status;
}

static invar_status measure_finer(lesson *l, int64_t level)
{
    invar_bench_record *out = &l->train->recorded[level];
    recorder r;
    turn fine = {.recorder = &r, .median_out = &out->seconds};
    invar_status status = recorder_open(&r, l->on, level);

    if (status == INVAR_OK)
        status = lesson_measure(l, &fine, 1);
    out->points = r.is.points;
    recorder_close(&r);
    return status;
}

static invar_status lesson_profile(invar_bench_profile *out, lesson *l)
{
    if (!l->on->profile)
        return INVAR_OK;
    INVAR_TRY(invar_profiling_backend_begin(l->on->meter, &l->on->dev));
    INVAR_TRY(optimizer_step(l));
    invar_profiling_backend_end(l->on->meter);
    return invar_bench_profile_take(out, l->on->meter, 1);
}

/* A peer that computes something else is none. */
static invar_status try_peer(lesson *l, float own)
{
    invar_bench_train *t = l->train;

    // our own gradients are still there, and would stand for what it leaves undone
    INVAR_TRY(invar_device_zero(&l->on->dev, l->learner.grads->memory, l->learner.grads->bytes));
    INVAR_TRY(forward_backward(l));
    INVAR_TRY(invar_learner_end_step(&l->learner, NULL));
    t->peer_norm_ratio = (double)l->learner.norm / (double)own;
    if (!(t->peer_norm_ratio > 0.98 && t->peer_norm_ratio < 1.02))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "--peer: its gradient has a norm of %g, ours of %g: it computes "
                          "something else",
                          (double)l->learner.norm, (double)own);
    return lesson_profile(&t->profile.peer, l);
}

static invar_status check_peer(lesson *l)
{
    const invar_bench_subject *on = l->on;
    invar_status status;

    if (!on->peer)
        return INVAR_OK;
    INVAR_TRY(forward_backward(l));
    INVAR_TRY(invar_learner_end_step(&l->learner, NULL));
    invar_profiling_backend_exchange(on->meter, on->peer);
    status = try_peer(l, l->learner.norm);
    invar_profiling_backend_exchange(on->meter, on->backend);
    return status;
}

static void record_memory(invar_bench_train *t, const lesson *l)
{
    const invar_profiling_backend *meter = l->on->meter;

    t->gradients = l->learner.grads->bytes;
    t->optimizer = 2 * l->learner.optimizer->local_bytes;
    t->activations = invar_profiling_backend_taken(meter, "activations");
    t->head = invar_profiling_backend_taken(meter, "rows of the head");
    t->scratch = invar_profiling_backend_taken(meter, "arena scratch of ops");
}

static invar_status measure_all(lesson *l)
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
    return lesson_profile(&t->profile.own, l);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* A token more than is computed: the last one is only predicted. */
static invar_status make_samples(lesson *l)
{
    int64_t tokens = l->train->length + 1;
    uint64_t state = 7;

    for (int64_t i = 0; i < l->train->samples; i++) {
        invar_rl_sample *s;
        INVAR_TRY(invar_rl_samples_append(&s, &l->samples));
        INVAR_TRY(invar_alloc((void **)&s->tokens, (size_t)tokens, sizeof *s->tokens, "tokens"));
        s->index = s->group = i;
        s->prompt_tokens = 1;
        s->n_tokens = tokens;
        invar_bench_tokens(s->tokens, tokens, &state, l->on->model->spec.vocab);
    }
    return INVAR_OK;
}

/* What a run would have computed before the step. */
static invar_status make_flat(lesson *l)
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

static invar_status open_lesson(lesson *l)
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
                                           .piece = on->offload ? INVAR_OPTIMIZER_PIECE : 0,
                                           .no_hashing = true};

    INVAR_TRY(make_samples(l));
    l->train->flop = invar_flop_train(on->model, l->samples.items, l->samples.count);
    INVAR_TRY(make_flat(l));
    INVAR_TRY(invar_trainer_new(&l->trainer, &on->dev, &options));
    return invar_learner_open(&l->learner, on->model, true, &learner);
}

static void close_lesson(lesson *l)
{
    invar_rl_samples_reset(&l->samples);
    invar_token_arrays_release(&l->flat);
    invar_learner_close(&l->learner);
    invar_trainer_free(l->trainer);
}

invar_status invar_bench_train_run(invar_bench_train *train, const invar_bench_subject *subject)
{
    lesson l = {.on = subject, .train = train};
    invar_status status = open_lesson(&l);

    if (status == INVAR_OK)
        status = measure_all(&l);
    close_lesson(&l);
    return status;
}
