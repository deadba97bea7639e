/*
 * recorder.c - records the probe points of a step and hands the result to the ledger entry.
 *
 * Points of level 0 are in the order of docs/arithmetic.md, "The chain". At finer levels every
 * point comes after its inputs and names them; points of tokens are therefore defined between
 * forward and backward, without a value, and get their values at the end of the step. In a pipeline
 * each stage lists its points, and rank 0 defines those of all stages in this order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/recorder.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "engine/record/gather_points.h"
#include "engine/record/step_entry.h"

#include "base/invar_banned.h"

/* ---- open and close -------------------------------------------------------------------------- */

invar_status invar_recorder_open(invar_recorder *out, const invar_recorder_options *options)
{
    bool pipes = invar_layout_is_pipelined(options->layout);
    const invar_probe_options o = {.level = options->level,
                                   .stats = options->stats,
                                   .pool = options->pool,
                                   .dev = options->dev,
                                   .is_partial = !invar_ranks_is_leader(options->layout)};
    invar_probe_options own = o;

    *out = (invar_recorder){.options = *options, .last_recorded_step = -1};
    own.is_partial = true;
    INVAR_TRY(invar_probe_new(&out->probe, &o));
    if (pipes)
        INVAR_TRY(invar_probe_new(&out->stage.probe, &own));
    if (!o.dev || (!o.stats && o.level <= INVAR_PROBE_STEP))
        return INVAR_OK;
    own = o;
    own.dev = options->sampler ? options->sampler : options->dev;
    return invar_rollout_points_new(&out->sampled, &own);
}

void invar_recorder_close(invar_recorder *recorder)
{
    invar_dump_free(recorder->dump);
    invar_dump_free(recorder->stage.dump);
    invar_probe_free(recorder->stage.probe);
    invar_point_list_release(&recorder->stage.listing);
    invar_rank_buffer_release(&recorder->stage.tasks);
    invar_rollout_points_free(recorder->sampled);
    invar_trace_close(recorder->trace);
    invar_probe_free(recorder->probe);
    invar_ledger_close(recorder->ledger);
    *recorder = (invar_recorder){0};
}

void invar_recorder_print(const invar_recorder *recorder, const char *fmt, ...)
{
    char line[INVAR_ERROR_MESSAGE_SIZE + INVAR_PATH_SIZE];
    va_list rest;

    if (!recorder->options.print_line)
        return;
    va_start(rest, fmt);
    (void)vsnprintf(line, sizeof line, fmt, rest);
    va_end(rest);
    recorder->options.print_line(recorder->options.payload, line);
}

invar_status invar_recorder_event(invar_recorder *recorder, int64_t step, const char *level,
                                  const char *kind, const char *message)
{
    if (!recorder->ledger)
        return INVAR_OK;
    return invar_ledger_log_event(
        recorder->ledger,
        &(invar_ledger_event){.step = step, .level = level, .kind = kind, .message = message});
}

invar_status invar_recorder_record_weight_sync(invar_recorder *recorder, int64_t step,
                                               const invar_recorder_sync *sync)
{
    char message[160], data[200], hash[INVAR_DIGEST_HEX_SIZE];

    if (!recorder->ledger)
        return INVAR_OK;
    invar_digest_format(hash, &sync->hash);
    (void)snprintf(message, sizeof message,
                   "weights after %" PRId64 " updates: %.3g MB in %.3g s, the same on all ranks",
                   sync->version, (double)sync->bytes / 1e6, sync->seconds);
    (void)snprintf(data, sizeof data,
                   "{\"weights\": %" PRId64 ", \"bytes\": %" PRIu64
                   ", \"seconds\": %.9g, \"hash\": \"%s\"}",
                   sync->version, sync->bytes, sync->seconds, hash);
    return invar_ledger_log_event(recorder->ledger, &(invar_ledger_event){.step = step,
                                                                          .level = "debug",
                                                                          .kind = "weight-sync",
                                                                          .message = message,
                                                                          .data = data});
}

invar_status invar_recorder_chain(int64_t *step_out, invar_digest *chain_out,
                                  const invar_recorder *recorder)
{
    return recorder->ledger ? invar_ledger_chain(step_out, chain_out, recorder->ledger) : INVAR_OK;
}

/* ---- points of tokens ------------------------------------------------------------------------ */

#define TOKENS "batch.tokens"

/*
 * Point of the batch with one number per response token or sample, or with the tokens themselves.
 */
typedef struct token_point {
    const char *name, *phase, *op, *kind;
    const float *values; /* (flat->tokens) or (flat->samples); NULL if the step has no such point */
    const char *inputs[3];
} token_point;

static invar_status define_token_point(int64_t *out, invar_recorder *r, const token_point *p,
                                       const char *dtype)
{
    const int64_t any = -1;
    const invar_ledger_point full = {.name = p->name,
                                     .phase = p->phase,
                                     .layer = -1,
                                     .op = p->op,
                                     .kind = p->kind,
                                     .dtype = dtype,
                                     .shape = &any,
                                     .dims = 1,
                                     .shards = 1};

    return invar_probe_define_from(out, r->probe, &full, p->inputs);
}

/*
 * Defines the point of the tokens, with one shard per sample; records the values if `values` is
 * set.
 */
static invar_status record_tokens(invar_recorder *r, bool values)
{
    const token_point p = {TOKENS, "rollout", "sample", "data", NULL, {NULL}};
    const invar_step_report *s = r->step;
    int64_t id;

    INVAR_TRY(define_token_point(&id, r, &p, "i32"));
    for (int64_t i = 0; values && i < s->count; i++) {
        const invar_rl_sample *sample = &s->samples[s->first + i];
        int64_t ends[2] = {0, sample->n_tokens};
        invar_tensor tensor = invar_tensor_1d(sample->tokens, INVAR_DTYPE_I32, sample->n_tokens);
        INVAR_TRY(invar_probe_rows(r->probe, id, &tensor, &(invar_row_offsets){ends, 1}));
    }
    return INVAR_OK;
}

/*
 * Defines a point of numbers; records the values if `values` is set. Numbers per token have one
 * shard per sample; rewards, one number per sample, are one tensor.
 */
static invar_status record_numbers(invar_recorder *r, const token_point *p, bool values)
{
    const invar_step_report *s = r->step;
    bool rewards = p->values == s->flat->reward;
    int64_t id, first = rewards ? s->first : s->flat->offsets[s->first];
    invar_tensor tensor = invar_tensor_1d((void *)(uintptr_t)(p->values + first), INVAR_DTYPE_F32,
                                          rewards ? s->count : s->start[s->count]);

    INVAR_TRY(define_token_point(&id, r, p, "f32"));
    if (!values)
        return INVAR_OK;
    return rewards
               ? invar_probe_tensor(r->probe, id, &tensor)
               : invar_probe_rows(r->probe, id, &tensor, &(invar_row_offsets){s->start, s->count});
}

/* Lists all points of the batch in the order of the chain. */
static void list_token_points(token_point out[INVAR_TOKEN_POINTS], const invar_recorder *r)
{
    const invar_token_arrays *f = r->step->flat;
    bool sampled = r->sampled && invar_rollout_points_any(r->sampled);
    // rollout, scoring and training run the same forward: logits and log-probs have the same source
    const token_point points[INVAR_TOKEN_POINTS] = {
        {"rollout.logp",
         "rollout",
         "logprob.fwd",
         "logp",
         f->rollout_logp,
         {sampled ? "rollout.head.logits" : "head.logits", sampled ? TOKENS : NULL}},
        {"batch.reward", "rollout", "reward", "data", f->reward, {TOKENS}},
        {"score.logp", "forward", "logprob.fwd", "logp", f->score_logp, {"head.logits"}},
        {"ref.logp", "forward", "logprob.fwd", "logp", f->ref_logp, {TOKENS}},
        {"teacher.logp", "forward", "logprob.fwd", "logp", f->teacher_logp, {TOKENS}},
        {"critic.values", "forward", "linear.fwd", "act", f->values, {TOKENS}},
        {"batch.advantage",
         "rollout",
         "advantage",
         "data",
         f->advantage,
         {"batch.reward", "critic.values"}},
        {"train.logp", "forward", "logprob.fwd", "logp", f->train_logp, {"head.logits"}},
    };

    memcpy(out, points, sizeof points);
}

/* Defines all points of the batch; records the values if `values` is set. */
static invar_status record_token_points(invar_recorder *r, bool values)
{
    token_point points[INVAR_TOKEN_POINTS];
    int count = r->step->n_learners ? INVAR_TOKEN_POINTS : 2;

    list_token_points(points, r);
    INVAR_TRY(record_tokens(r, values));
    for (int i = 0; i < count; i++)
        if (points[i].values)
            INVAR_TRY(record_numbers(r, &points[i], values));
    return INVAR_OK;
}

/* ---- activations ----------------------------------------------------------------------------- */

/*
 * Hook for values. The first value of the backward defines the points of tokens, which are its
 * inputs.
 */
static invar_status on_value(void *payload, const invar_observed_value *value)
{
    invar_recorder *r = payload;

    if (!r->stage.probe && value->backward && *r->namer.stream[1] == '\0')
        INVAR_TRY(record_token_points(r, false));
    return invar_probe_on_value(&r->namer, value);
}

static invar_status on_grad_sum(void *payload, const invar_observed_grad *sum)
{
    const invar_recorder *r = payload;

    for (int i = 0; i < r->step->n_learners; i++) {
        const invar_learner *learner = r->step->learners[i].learner;
        if (strcmp(learner->options.prefix, r->namer.prefix) == 0)
            INVAR_TRY(invar_learner_record_grad_sum(learner, &r->namer, sum));
    }
    return INVAR_OK;
}

static invar_status on_round(void *payload)
{
    return invar_gather_points_learned(payload);
}

static invar_status on_task(void *payload, int64_t round)
{
    return invar_gather_points_task(payload, round);
}

static invar_status on_stages(void *payload)
{
    return invar_gather_points_stages(payload);
}

static invar_status define_listed(const invar_recorder *r, const invar_point_namer *view,
                                  bool backward)
{
    const invar_point_list *l = &r->stage.listing;
    int64_t unused;

    for (int64_t i = 0; i < l->count; i++) {
        const invar_observed_value value = invar_point_def_value(&l->values[i]);
        if (value.backward == backward)
            INVAR_TRY(invar_point_namer_define(&unused, view, &value));
    }
    return INVAR_OK;
}

invar_status invar_recorder_define_listed_points(invar_recorder *r)
{
    const invar_point_list *l = &r->stage.listing;
    invar_point_namer view = r->namer;

    view.probe = r->probe;
    view.listing = NULL;
    INVAR_TRY(define_listed(r, &view, false));
    INVAR_TRY(record_token_points(r, false));
    INVAR_TRY(define_listed(r, &view, true));
    for (int64_t i = 0; i < l->n_sums; i++) {
        invar_observed_grad sum = {.n_inputs = l->sums[i].n_inputs};
        memcpy(sum.inputs, l->sums[i].inputs, sizeof sum.inputs);
        INVAR_TRY(invar_probe_sum(&view, l->sums[i].number, &sum));
    }
    return INVAR_OK;
}

static bool records_fine_points(const invar_recorder *r)
{
    return r->options.level > INVAR_PROBE_STEP || r->dump;
}

/* inputs of every forward */
static const char *const given_tokens[] = {TOKENS, NULL};

/* Returns the namer of rollout points; these come between the tokens and the forward. */
static invar_point_namer rollout_namer(const invar_recorder *r)
{
    return (invar_point_namer){
        .probe = r->probe, .prefix = "rollout.", .phase = "rollout", .given = {given_tokens, NULL}};
}

/* Records the rollout points of this step's samples. */
static invar_status emit_rollout_points(invar_recorder *r)
{
    const invar_point_namer view = rollout_namer(r);
    const invar_step_report *s = r->step;
    uint32_t *draws;
    invar_status status;

    if (!r->sampled || !invar_rollout_points_any(r->sampled))
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(draws, (size_t)s->count, "draws of a step"));
    for (int64_t i = 0; i < s->count; i++)
        draws[i] = s->samples[s->first + i].draw_index;
    status = invar_rollout_points_emit(r->sampled, &view, draws, s->count);
    invar_free(draws);
    return status;
}

/* Opens the dump of this step, if any tensors are wanted. */
static invar_status open_dump(invar_recorder *r, const char *run)
{
    const char *points = r->options.dump, *given = r->options.dump_dir;
    char folder[INVAR_PATH_SIZE], name[64];

    invar_dump_free(r->dump);
    invar_dump_free(r->stage.dump);
    r->dump = r->stage.dump = NULL;
    if (!points || !points[0] || !r->step->n_learners)
        return INVAR_OK;
    if (r->stage.probe)
        INVAR_TRY(invar_dump_new(&r->stage.dump, NULL, points));
    if (!invar_ranks_is_leader(r->options.layout))
        return invar_dump_new(&r->dump, NULL, points);
    (void)snprintf(name, sizeof name, given[0] ? "step_%" PRId64 : "dump/step_%" PRId64,
                   r->step->number);
    INVAR_TRY(invar_path_join(folder, sizeof folder, given[0] ? given : run, name));
    return invar_dump_new(&r->dump, folder, points);
}

static invar_status close_dump(invar_recorder *r)
{
    int64_t count;

    if (!r->dump)
        return INVAR_OK;
    INVAR_TRY(invar_dump_finish(&count, r->dump));
    if (count == 0 && invar_ranks_is_leader(r->options.layout))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "debug-dump: no point of the step is called \"%.100s\"; try "
                          "train.logp, grad.*, layer.0.*, or * for all",
                          r->options.dump);
    return INVAR_OK;
}

invar_status invar_recorder_begin(invar_recorder *r, const invar_step_report *step,
                                  const char *folder)
{
    token_point points[INVAR_TOKEN_POINTS];

    r->step = step;
    list_token_points(points, r);
    for (int i = 0; i < INVAR_TOKEN_POINTS; i++)
        r->loss_inputs[i] = points[i].name;
    r->namer = (invar_point_namer){
        .probe = r->probe, .prefix = "", .given = {given_tokens, r->loss_inputs}};
    INVAR_TRY(open_dump(r, folder));
    invar_probe_begin(r->probe, r->dump);
    if (r->stage.probe) {
        invar_probe_begin(r->stage.probe, r->stage.dump);
        r->namer.probe = r->stage.probe;
        r->namer.listing = &r->stage.listing;
    }
    if (!records_fine_points(r))
        return INVAR_OK;
    INVAR_TRY(record_tokens(r, false));
    return emit_rollout_points(r);
}

void invar_recorder_watch(invar_recorder *r, invar_trainer *trainer, const char *prefix)
{
    const invar_forward_hooks show = {.on_value = on_value,
                                      .on_grad = on_grad_sum,
                                      .on_round =
                                          r->options.layout && !r->stage.probe ? on_round : NULL,
                                      .on_task = on_task,
                                      .on_all_stages = on_stages,
                                      .payload = r,
                                      .parts = r->options.level >= INVAR_PROBE_FULL};

    if (prefix)
        r->namer.prefix = prefix;
    invar_point_list_reset(&r->stage.listing);
    r->stage.tasks.bytes = 0;
    r->stage.n_tasks = 0;
    invar_trainer_set_hooks(trainer, prefix && records_fine_points(r) ? &show : NULL);
}

/* ---- end of a step --------------------------------------------------------------------------- */

invar_status invar_recorder_end(invar_recorder *r)
{
    const invar_step_report *step = r->step;
    invar_probe_result points;

    INVAR_TRY(record_token_points(r, true));
    for (int i = 0; i < step->n_learners; i++)
        INVAR_TRY(invar_learner_record_points(step->learners[i].learner, r->probe));
    INVAR_TRY(invar_probe_finish(&points, r->probe));
    // zeroing gradients starts here, so that the device does it while the ledger is written
    for (int i = 0; i < step->n_learners; i++)
        INVAR_TRY(invar_learner_end_step(step->learners[i].learner, &points));
    r->points = points.count;
    if (points.changed && r->ledger)
        INVAR_TRY(invar_ledger_define(r->ledger, points.points, (size_t)points.count));
    INVAR_TRY(invar_step_entry_append(r, step, &points));
    r->step = NULL;
    return close_dump(r);
}

/* ---- values that are not finite -------------------------------------------------------------- */

void invar_recorder_watch_rollout(invar_recorder *r, invar_rollout *rollout, bool watch)
{
    // statistics download rows, so the hook does more than run ops, and no CUDA graph may be used
    const invar_rollout_hooks watcher = {.probe = {.on_value = invar_rollout_points_on_value,
                                                   .payload = r->sampled,
                                                   .parts = r->options.level >= INVAR_PROBE_FULL,
                                                   .graph_safe = !r->options.stats},
                                         .on_pass_end = invar_rollout_points_flush};

    if (!r->sampled)
        return;
    if (watch)
        invar_rollout_points_begin(r->sampled);
    if (rollout)
        invar_rollout_set_hooks(rollout, watch ? &watcher : NULL);
}

#define NOT_FINITE "the first point that is not finite"

/* Tensor with values that are not finite. */
typedef struct nonfinite_tensor {
    char point[INVAR_LEDGER_NAME_BYTES + 1]; /* empty if all tensors are finite */
    const char *op, *phase, *kind;
    int64_t layer; /* -1 if it belongs to no layer */
    invar_ledger_stat stat;
} nonfinite_tensor;

/* Finds the first such tensor of the rollout, or else of the current step. */
static invar_status find_nonfinite(nonfinite_tensor *out, const invar_recorder *r)
{
    const invar_point_namer view = rollout_namer(r);
    const invar_point_def *v;
    const invar_ledger_point *p;

    out->point[0] = '\0';
    if (!r->options.stats)
        return INVAR_OK;
    if (r->sampled && (v = invar_rollout_points_first_nonfinite(&out->stat, r->sampled))) {
        out->op = v->op;
        out->phase = view.phase;
        out->kind = "act";
        out->layer = v->name.layer;
        return invar_point_namer_name(out->point, &view, &v->name);
    }
    if (!r->step)
        return INVAR_OK;
    p = r->stage.probe ? invar_probe_first_nonfinite(&out->stat, r->stage.probe) : NULL;
    if (!p && !(p = invar_probe_first_nonfinite(&out->stat, r->probe)))
        return INVAR_OK;
    out->op = p->op;
    out->phase = p->phase;
    out->kind = p->kind;
    out->layer = p->layer;
    (void)snprintf(out->point, sizeof out->point, "%s", p->name);
    return INVAR_OK;
}

/*
 * Writes an event with the columns of a row of `stat`, for the query nan-birth; the failed step has
 * no such row.
 */
static invar_status log_nonfinite(invar_recorder *r, int64_t step, const nonfinite_tensor *found)
{
    char message[INVAR_LEDGER_NAME_BYTES + 200], data[INVAR_LEDGER_NAME_BYTES + 300];

    if (!r->ledger)
        return INVAR_OK;
    (void)snprintf(message, sizeof message,
                   "%s (%s): %" PRId64 " NaN, %" PRId64
                   " infinite, the largest of the others is %g",
                   found->point, found->op, found->stat.nans, found->stat.infs, found->stat.absmax);
    // names of points, phases and ops contain no character that JSON escapes
    (void)snprintf(data, sizeof data,
                   "{\"point\": \"%s\", \"phase\": \"%s\", \"layer\": %" PRId64
                   ", \"op\": \"%s\", \"kind\": \"%s\", \"ord\": %" PRId64 ", \"nans\": %" PRId64
                   ", \"infs\": %" PRId64 ", \"absmax\": %.17g}",
                   found->point, found->phase, found->layer, found->op, found->kind,
                   found->stat.point, found->stat.nans, found->stat.infs, found->stat.absmax);
    return invar_ledger_log_event(r->ledger, &(invar_ledger_event){.step = step,
                                                                   .level = "error",
                                                                   .kind = "not-finite",
                                                                   .message = message,
                                                                   .data = data});
}

invar_status invar_recorder_fail(invar_recorder *r, int64_t step, invar_status status)
{
    nonfinite_tensor found;
    invar_error first;

    invar_error_take(&first);
    if (find_nonfinite(&found, r) != INVAR_OK || !found.point[0]) {
        invar_error_put(&first);
        return status;
    }
    if (log_nonfinite(r, step, &found) != INVAR_OK)
        invar_error_clear(); // report the failure of the step, not that of the event
    if (strstr(first.message, NOT_FINITE)) { // another rank has added the tensor already
        invar_error_put(&first);
        return status;
    }
    return INVAR_FAIL(status, first.native, "%.3000s; " NOT_FINITE " is %s (%s)", first.message,
                      found.point, found.op);
}
