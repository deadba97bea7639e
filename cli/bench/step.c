/*
 * step.c - what an optimizer step costs, and what its record adds.
 *
 * A step is what a run does with samples that are there: forward, head, loss, backward, norm,
 * AdamW, new compute weights. The loss is the mean log-probability of random tokens, negated. The
 * recorded step adds what a run records of it: the digests of tokens, log-probabilities, gradients
 * and masters, those of the layers at level point, the hash of the weights that sample, and an
 * entry of a ledger, which is written to a temporary folder. Kinds of steps that are compared take
 * turns, several steps each: the device grows warm for all of them, and each has the clock that
 * steps of its kind leave, as in a run.
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
#include "engine/probe/view.h"
#include "engine/rl/sample.h"
#include "engine/train/optimizer.h"
#include "engine/train/trainer.h"

#include "base/invar_banned.h"

enum { WARM_UP = 2, IN_A_ROW = 5, MOST_TIMES = 64 };

/* ---- what a run keeps of a step -------------------------------------------------------------- */

typedef struct recorder {
    invar_probe *probe;
    invar_probe_view view;
    bool fine; /* layers are recorded, too */
    invar_ledger *ledger;
    char folder[64];
    int64_t step;
    int64_t points;        /* of the last entry */
    invar_digest weights;  /* hash of the weights of now */
    int64_t *ids;          /* (n_params) their points */
    invar_digest *masters; /* (n_params) */
} recorder;

static invar_status open_ledger(recorder *r)
{
    char path[sizeof r->folder + 16];
    invar_ledger_run run = {
        .name = "bench", .kind = "train", .circumstances = {.bare = true, .n_facts = 0}};

    (void)snprintf(r->folder, sizeof r->folder, "/tmp/invar-bench-XXXXXX");
    if (!mkdtemp(r->folder)) {
        r->folder[0] = '\0';
        return INVAR_FAIL(INVAR_E_IO, 0, "bench: no folder can be made in /tmp");
    }
    (void)snprintf(path, sizeof path, "%s/ledger.db", r->folder);
    INVAR_TRY(invar_ledger_open(&r->ledger, path, &(invar_ledger_options){.create = true}));
    return invar_ledger_begin(r->ledger, &run);
}

static invar_status recorder_open(recorder *r, const invar_bench_subject *on, int64_t level)
{
    static const char *const none[] = {NULL};
    invar_probe_options options = {.level = level, .pool = on->dev.pool, .dev = &on->dev};

    *r =
        (recorder){.view = {.prefix = "", .given = {none, none}}, .fine = level > INVAR_PROBE_STEP};
    INVAR_TRY(invar_probe_new(&r->probe, &options));
    r->view.probe = r->probe;
    INVAR_TRY(invar_alloc((void **)&r->ids, (size_t)on->model->n_params, sizeof *r->ids,
                          "the points of weights"));
    INVAR_TRY(invar_alloc((void **)&r->masters, (size_t)on->model->n_params, sizeof *r->masters,
                          "digests of masters"));
    INVAR_TRY(invar_model_hash(&r->weights, on->model, &on->dev));
    return open_ledger(r);
}

static void recorder_close(recorder *r)
{
    invar_error before;

    invar_probe_free(r->probe);
    invar_ledger_close(r->ledger);
    invar_free(r->ids);
    invar_free(r->masters);
    // what stays in /tmp makes the measurement none the worse
    invar_error_take(&before);
    if (r->folder[0] && invar_folder_remove(r->folder) != INVAR_OK)
        invar_error_clear();
    invar_error_put(&before);
}

static invar_status define(int64_t *out, const recorder *r, const char *name, const char *kind,
                           const char *dtype, const invar_tensor *tensor)
{
    int64_t shape[INVAR_MAX_RANK] = {-1};

    for (int32_t i = 0; tensor && i < tensor->rank; i++)
        shape[i] = tensor->shape[i];
    return invar_probe_define(out, r->probe,
                              &(invar_ledger_point){.name = name,
                                                    .phase = "optimizer",
                                                    .layer = -1,
                                                    .op = "adamw",
                                                    .kind = kind,
                                                    .dtype = dtype,
                                                    .shape = shape,
                                                    .dims = tensor ? (size_t)tensor->rank : 1,
                                                    .shards = 1});
}

static invar_status define_of(int64_t *out, const recorder *r, const char *prefix,
                              const invar_param *p, const char *kind, const invar_tensor *tensor)
{
    char name[INVAR_PARAM_NAME_SIZE + 16];

    (void)snprintf(name, sizeof name, "%s.%s", prefix, p->name);
    return define(out, r, name, kind, "f32", tensor);
}

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct lesson {
    const invar_bench_subject *on;
    invar_bench_train *train;
    invar_rl_sample *samples; /* (train->samples) */
    float *logp;              /* (tokens) */
    invar_trainer *trainer;
    invar_optimizer *optimizer;
    invar_grads *grads;
    float norm; /* of the last step */
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

static const invar_adamw_options adamw = {0.9f, 0.98f, 1e-8f, 0.1f, 1.0f};

/* Up to the norm; the gradients are zero before. */
static invar_status differentiate(float *clip_out, lesson *l, bool digests)
{
    const invar_trainer_loss loss = {mean_loss, l->train, false};
    invar_trainer_result result = {.now = l->logp};

    INVAR_TRY(invar_trainer_learn(l->trainer, l->on->model, l->samples, l->train->samples, &loss,
                                  l->grads, &result));
    return invar_optimizer_norm(&l->norm, clip_out, l->on->model, l->grads, digests,
                                adamw.clip_grad, &l->on->dev);
}

/* All of it begun. */
static invar_status advance(lesson *l, bool digests)
{
    float clip;

    INVAR_TRY(differentiate(&clip, l, digests));
    return invar_optimizer_step(l->optimizer, l->on->model, l->grads, clip, 1e-6f, digests, &adamw,
                                &l->on->dev);
}

static invar_status learn(lesson *l)
{
    INVAR_TRY(advance(l, false));
    INVAR_TRY(invar_grads_zero(l->grads));
    return invar_device_wait(&l->on->dev);
}

static invar_status token_points(const recorder *r, const lesson *l)
{
    int64_t length = l->train->length, tokens, logp;

    INVAR_TRY(define(&tokens, r, "batch.tokens", "data", "i32", NULL));
    INVAR_TRY(define(&logp, r, "train.logp", "logp", "f32", NULL));
    for (int64_t i = 0; i < l->train->samples; i++) {
        invar_rl_sample *s = &l->samples[i];
        int64_t all[] = {0, s->n_tokens}, response[] = {0, length};
        invar_tensor ids = invar_tensor_1d(s->tokens, INVAR_DTYPE_I32, s->n_tokens);
        invar_tensor row = invar_tensor_1d(l->logp + i * length, INVAR_DTYPE_F32, length);
        INVAR_TRY(invar_probe_rows(r->probe, tokens, &ids, &(invar_segments){all, 1}));
        INVAR_TRY(invar_probe_rows(r->probe, logp, &row, &(invar_segments){response, 1}));
    }
    return INVAR_OK;
}

static invar_status gradient_points(const recorder *r, const lesson *l)
{
    const invar_model *model = l->on->model;
    const invar_grads *grads = l->grads;

    for (int64_t i = 0; i < model->n_params; i++) {
        int64_t id;
        INVAR_TRY(define_of(&id, r, "grad", &model->params[i], "grad", &grads->of[i]));
        INVAR_TRY(invar_probe_device_hashed(r->probe, id, &grads->of[i], &grads->digests[i]));
    }
    return INVAR_OK;
}

/* The points are listed while the device is at the optimizer. */
static invar_status weight_points(const recorder *r, const lesson *l)
{
    const invar_model *model = l->on->model;
    bool hashed = invar_optimizer_hashes(l->optimizer);

    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_tensor *master = &model->params[i].master;
        INVAR_TRY(define_of(&r->ids[i], r, "weight", &model->params[i], "param", master));
        if (!hashed)
            INVAR_TRY(invar_probe_device_whole(r->probe, r->ids[i], master));
    }
    if (!hashed)
        return INVAR_OK;
    INVAR_TRY(invar_optimizer_digests(r->masters, l->optimizer, model));
    for (int64_t i = 0; i < model->n_params; i++)
        INVAR_TRY(invar_probe_device_hashed(r->probe, r->ids[i], &model->params[i].master,
                                            &r->masters[i]));
    return INVAR_OK;
}

static void hash_weights(recorder *r, const invar_model *model, const invar_digest *digests)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    for (int64_t i = 0; i < model->n_params; i++)
        invar_hasher_update(&hasher, digests[r->ids[i]].bytes, sizeof *digests);
    invar_hasher_final(&r->weights, &hasher);
}

static invar_status append(recorder *r, const lesson *l)
{
    invar_ledger_metric norm = {"train/grad_norm", (double)l->norm};
    invar_ledger_step step = {.step = r->step,
                              .weights = r->step + 1,
                              .rng = r->weights,
                              .metrics = &norm,
                              .n_metrics = 1};
    invar_probe_result result;

    r->step++;
    INVAR_TRY(invar_probe_finish(&result, r->probe));
    if (result.changed)
        INVAR_TRY(invar_ledger_define(r->ledger, result.points, (size_t)result.count));
    step.digests = result.digests;
    r->points = result.count;
    hash_weights(r, l->on->model, result.digests);
    INVAR_TRY(invar_grads_zero(l->grads)); // while the ledger is written
    INVAR_TRY(invar_ledger_append(r->ledger, &step));
    return invar_device_wait(&l->on->dev);
}

static invar_status learn_recorded(lesson *l, recorder *r)
{
    invar_forward_probe show = {invar_probe_take, &r->view};
    invar_status status;

    r->view.stream[0][0] = r->view.stream[1][0] = '\0';
    invar_probe_begin(r->probe, NULL);
    invar_trainer_probe(l->trainer, r->fine ? &show : NULL);
    status = advance(l, true);
    invar_trainer_probe(l->trainer, NULL);
    if (status == INVAR_OK)
        status = token_points(r, l);
    if (status == INVAR_OK)
        status = gradient_points(r, l);
    if (status == INVAR_OK)
        status = weight_points(r, l);
    return status == INVAR_OK ? append(r, l) : status;
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
        return learn(l);
    invar_meter_exchange(on->meter, t->peer);
    status = learn(l);
    invar_meter_exchange(on->meter, on->own);
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
static invar_status measure(lesson *l, turn *turns, int n_turns)
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
                    {.recorder = &r, .median_out = &out->recorded_seconds},
                    {.peer = l->on->peer, .median_out = &out->peer_seconds}};
    invar_status status = recorder_open(&r, l->on, INVAR_PROBE_STEP);

    if (status == INVAR_OK)
        status = measure(l, turns, l->on->peer ? 3 : 2);
    out->points = r.points;
    recorder_close(&r);
    return status;
}

static invar_status measure_points(lesson *l)
{
    recorder r;
    turn fine = {.recorder = &r, .median_out = &l->train->points_seconds};
    invar_status status = recorder_open(&r, l->on, INVAR_PROBE_POINT);

    if (status == INVAR_OK)
        status = measure(l, &fine, 1);
    l->train->finer_points = r.points;
    recorder_close(&r);
    return status;
}

static invar_status profile(invar_bench_profile *out, lesson *l)
{
    if (!l->on->profile)
        return INVAR_OK;
    INVAR_TRY(invar_meter_begin(l->on->meter, &l->on->dev));
    INVAR_TRY(learn(l));
    invar_meter_end(l->on->meter);
    return invar_bench_profile_take(out, l->on->meter, 1);
}

/* A peer that computes something else is none. */
static invar_status try_peer(lesson *l, float own)
{
    invar_bench_train *t = l->train;
    float clip;

    // our own gradients are still there, and would stand for what it leaves undone
    INVAR_TRY(invar_device_zero(&l->on->dev, l->grads->memory, l->grads->bytes));
    INVAR_TRY(differentiate(&clip, l, false));
    INVAR_TRY(invar_grads_zero(l->grads));
    t->peer_norm_ratio = (double)l->norm / (double)own;
    if (!(t->peer_norm_ratio > 0.98 && t->peer_norm_ratio < 1.02))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "--peer: its gradient has a norm of %g, ours of %g: it computes "
                          "something else",
                          (double)l->norm, (double)own);
    return profile(&t->profile.peer, l);
}

static invar_status check_peer(lesson *l)
{
    const invar_bench_subject *on = l->on;
    invar_status status;
    float clip;

    if (!on->peer)
        return INVAR_OK;
    INVAR_TRY(differentiate(&clip, l, false));
    INVAR_TRY(invar_grads_zero(l->grads));
    invar_meter_exchange(on->meter, on->peer);
    status = try_peer(l, l->norm);
    invar_meter_exchange(on->meter, on->own);
    return status;
}

static void weigh(invar_bench_train *t, const lesson *l)
{
    const invar_meter *meter = l->on->meter;

    t->gradients = l->grads->bytes;
    t->optimizer = 2 * l->optimizer->bytes;
    t->activations = invar_meter_taken(meter, "activations");
    t->head = invar_meter_taken(meter, "rows of the head");
    t->scratch = invar_meter_taken(meter, "arena scratch of ops");
}

static invar_status measure_all(lesson *l)
{
    invar_bench_train *t = l->train;

    INVAR_TRY(learn(l));
    t->norm = (double)l->norm;
    if (!(l->norm > 0.0f))
        return INVAR_FAIL(INVAR_E_STATE, 0, "bench: the gradient is zero: nothing was learned");
    weigh(t, l);
    INVAR_TRY(check_peer(l));
    INVAR_TRY(measure_step(l));
    INVAR_TRY(measure_points(l));
    return profile(&t->profile.own, l);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* A token more than is computed: the last one is only predicted. */
static invar_status make_samples(lesson *l)
{
    int64_t count = l->train->samples, tokens = l->train->length + 1;
    uint64_t state = 7;

    INVAR_TRY(invar_alloc((void **)&l->samples, (size_t)count, sizeof *l->samples, "samples"));
    memset(l->samples, 0, (size_t)count * sizeof *l->samples);
    INVAR_TRY(invar_alloc((void **)&l->logp, (size_t)(count * tokens), sizeof *l->logp,
                          "log-probabilities"));
    for (int64_t i = 0; i < count; i++) {
        invar_rl_sample *s = &l->samples[i];
        INVAR_TRY(invar_alloc((void **)&s->tokens, (size_t)tokens, sizeof *s->tokens, "tokens"));
        s->index = s->group = i;
        s->prompt_tokens = 1;
        s->n_tokens = tokens;
        invar_bench_tokens(s->tokens, tokens, &state, l->on->model->spec.vocab);
    }
    return INVAR_OK;
}

static invar_status open_lesson(lesson *l)
{
    const invar_model *model = l->on->model;
    invar_trainer_options options = {.plan = {.unit = 1, .micro_batch = l->train->micro_batch},
                                     .head_rows =
                                         invar_trainer_head_rows(&l->on->dev, &model->spec),
                                     .temperature = 1.0f};

    INVAR_TRY(make_samples(l));
    INVAR_TRY(invar_trainer_new(&l->trainer, &l->on->dev, &options));
    INVAR_TRY(
        invar_optimizer_new(&l->optimizer, model, l->on->offload ? INVAR_OPTIMIZER_PIECE : 0));
    return invar_grads_new(&l->grads, model);
}

static void close_lesson(lesson *l)
{
    for (int64_t i = 0; l->samples && i < l->train->samples; i++)
        invar_rl_sample_release(&l->samples[i]);
    invar_free(l->samples);
    invar_free(l->logp);
    invar_grads_free(l->grads);
    invar_optimizer_free(l->optimizer);
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
