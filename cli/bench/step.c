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
#include "cli/bench/step.h"
#include "engine/record/recorder.h"
#include "engine/train/flop.h"

#include "base/invar_banned.h"

enum { WARM_UP = 2, IN_A_ROW = 5 };

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

static invar_status mean_loss(void *payload, int64_t first, int64_t count, const float *now,
                              const float *entropy, float *dnow, float *dentropy)
{
    const invar_bench_train *t = payload;

    (void)first, (void)now, (void)entropy, (void)dentropy;
    for (int64_t i = 0; i < count * t->length; i++)
        dnow[i] = -1.0f / (float)(t->samples * t->length);
    return INVAR_OK;
}

static invar_status forward_backward(invar_bench_step *l)
{
    const invar_trainer_loss loss = {.run = mean_loss, .payload = l->train};
    invar_trainer_result result = {.train_logp = l->flat.train_logp};

    return invar_learner_forward_backward(&l->learner, l->trainer, l->samples.items,
                                          l->samples.count, &loss, &result);
}

/* Starts all work of a step without waiting for it. */
static invar_status queue_step(invar_bench_step *l, bool watched)
{
    l->learner.options.no_hashing = !watched;
    INVAR_TRY(forward_backward(l));
    return invar_learner_step(&l->learner, 0, false);
}

invar_status invar_bench_step_gradients(invar_bench_step *l)
{
    INVAR_TRY(forward_backward(l));
    return invar_learner_end_step(&l->learner, NULL);
}

invar_status invar_bench_step_run(invar_bench_step *l, void *payload)
{
    (void)payload;
    INVAR_TRY(queue_step(l, false));
    INVAR_TRY(invar_learner_end_step(&l->learner, NULL));
    return invar_device_synchronize(&l->subject->dev);
}

static invar_status recorded_step(invar_bench_step *l, void *payload)
{
    recorder *r = payload;
    invar_step_report step = {.number = r->step++,
                              .samples = l->samples.items,
                              .flat = &l->flat,
                              .count = l->samples.count,
                              .start = l->flat.offsets,
                              .policy.own_weights = true,
                              .learners = {{.learner = &l->learner}},
                              .n_learners = 1};
    invar_status status;

    INVAR_TRY(invar_recorder_begin(&r->is, &step, ""));
    invar_recorder_watch(&r->is, l->trainer, "");
    status = queue_step(l, true);
    invar_recorder_watch(&r->is, l->trainer, NULL);
    INVAR_TRY(status);
    INVAR_TRY(invar_recorder_end(&r->is));
    return invar_device_synchronize(&l->subject->dev);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Runs `count` steps of a variant after `idle` steps that are not timed. */
static invar_status run_variant(invar_bench_step *l, invar_bench_variant *t, int64_t idle,
                                int64_t first, int64_t count)
{
    for (int64_t i = -idle; i < count; i++) {
        double begun = invar_bench_now();
        INVAR_TRY(t->run(l, t->payload));
        if (i >= 0)
            t->times[first + i] = invar_bench_now() - begun;
    }
    return INVAR_OK;
}

invar_status invar_bench_step_measure(invar_bench_step *l, invar_bench_variant *variants, int n)
{
    invar_bench_variant *end = variants + n;
    int64_t count = l->subject->repetitions;

    INVAR_CHECK(count <= (int64_t)(sizeof variants->times / sizeof *variants->times));
    for (int64_t first = 0; first < count; first += IN_A_ROW) {
        int64_t left = count - first, idle = first == 0 || n > 1 ? WARM_UP : 0;
        for (invar_bench_variant *t = variants; t < end; t++)
            INVAR_TRY(run_variant(l, t, idle, first, left < IN_A_ROW ? left : IN_A_ROW));
    }
    for (invar_bench_variant *t = variants; t < end; t++)
        *t->median_out = invar_bench_median(t->times, count);
    return INVAR_OK;
}

/* Measures the step with recording; at the coarsest level in turn with the step alone. */
static invar_status measure_recorded(invar_bench_step *l, int64_t level)
{
    invar_bench_record *out = &l->train->recorded[level];
    recorder r;
    invar_bench_variant variants[] = {
        {.run = invar_bench_step_run, .median_out = &l->train->seconds},
        {.run = recorded_step, .payload = &r, .median_out = &out->seconds}};
    bool both = level == INVAR_PROBE_STEP;
    invar_status status = recorder_open(&r, l->subject, level);

    if (status == INVAR_OK)
        status = invar_bench_step_measure(l, both ? variants : variants + 1, both ? 2 : 1);
    out->points = r.is.points;
    recorder_close(&r);
    return status;
}

invar_status invar_bench_step_profile(invar_bench_profile *out, invar_bench_step *l)
{
    if (!l->subject->profile)
        return INVAR_OK;
    INVAR_TRY(invar_profiling_backend_begin(l->subject->profiler, &l->subject->dev));
    INVAR_TRY(invar_bench_step_run(l, NULL));
    invar_profiling_backend_end(l->subject->profiler);
    return invar_bench_profile_take(out, l->subject->profiler, 1);
}

static void record_memory(invar_bench_train *t, const invar_bench_step *l)
{
    const invar_profiling_backend *meter = l->subject->profiler;

    t->gradients = l->learner.grads->bytes;
    t->optimizer = 2 * l->learner.optimizer->local_bytes;
    t->activations = invar_profiling_backend_allocated_bytes(meter, "activations");
    t->head = invar_profiling_backend_allocated_bytes(meter, "rows of the head");
    t->scratch = invar_profiling_backend_allocated_bytes(meter, "arena scratch of ops");
}

static invar_status measure_all(invar_bench_step *l)
{
    invar_bench_train *t = l->train;

    INVAR_TRY(invar_bench_step_run(l, NULL));
    t->norm = (double)l->learner.norm;
    if (!(l->learner.norm > 0.0f))
        return INVAR_FAIL(INVAR_E_STATE, 0, "bench: the gradient is zero: nothing was learned");
    record_memory(t, l);
    INVAR_TRY(measure_recorded(l, INVAR_PROBE_STEP));
    INVAR_TRY(measure_recorded(l, INVAR_PROBE_POINT));
    INVAR_TRY(measure_recorded(l, INVAR_PROBE_FULL));
    return invar_bench_step_profile(&t->profile, l);
}

/* ---- setup ----------------------------------------------------------------------------------- */

/* Samples have one token more than is computed, because the last one is only predicted. */
static invar_status make_samples(invar_bench_step *l)
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
        invar_bench_tokens(s->tokens, tokens, &state, l->subject->model->spec.vocab);
    }
    return INVAR_OK;
}

/* Fills in the arrays that a run computes before the step. */
static invar_status make_flat(invar_bench_step *l)
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

invar_status invar_bench_step_open(invar_bench_step *l, const invar_bench_subject *on,
                                   invar_bench_train *train)
{
    const invar_trainer_options options = {
        .plan = {.unit_rows = 16384, .unit_count = 64, .micro_batch = train->micro_batch},
        .head_rows = invar_trainer_head_rows(&on->dev, &on->model->spec),
        .temperature = 1.0f};
    const invar_learner_options learner = {.dev = &on->dev,
                                           .prefix = "",
                                           .schedule = {.style = INVAR_DECAY_CONSTANT, .lr = 1e-6},
                                           .adamw = {0.9f, 0.98f, 1e-8f, 0.1f, 1.0f},
                                           .offload_chunk_bytes =
                                               on->offload ? INVAR_OPTIMIZER_CHUNK_BYTES : 0,
                                           .no_hashing = true};

    *l = (invar_bench_step){.subject = on, .train = train};
    INVAR_TRY(make_samples(l));
    train->flop = invar_flop_train(on->model, l->samples.items, l->samples.count);
    INVAR_TRY(make_flat(l));
    INVAR_TRY(invar_trainer_new(&l->trainer, &on->dev, &options));
    return invar_learner_open(&l->learner, on->model, true, &learner);
}

void invar_bench_step_close(invar_bench_step *l)
{
    invar_rl_samples_reset(&l->samples);
    invar_token_arrays_release(&l->flat);
    invar_learner_close(&l->learner);
    invar_trainer_free(l->trainer);
}

invar_status invar_bench_train_run(invar_bench_train *train, const invar_bench_subject *subject)
{
    invar_bench_step l;
    invar_status status = invar_bench_step_open(&l, subject, train);

    if (status == INVAR_OK)
        status = measure_all(&l);
    invar_bench_step_close(&l);
    return status;
}
