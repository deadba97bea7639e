/*
 * points.c - the points of a step that the chain is made of, and those beside them.
 *
 * Points of level 0 are in the order of docs/arithmetic.md, "The chain". Where finer points are
 * recorded, every point stands after those that it is computed from, and names them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/run/loop.h"

#include "base/invar_banned.h"

/* ---- tokens ---------------------------------------------------------------------------------- */

typedef struct point {
    const char *name, *phase, *op, *kind, *dtype;
    int64_t shape[2];
    size_t dims;
    int64_t layer;
    const char *inputs[4]; /* what it is computed from, where finer points are recorded */
    int64_t level;
} point;

static bool fine(const invar_loop *loop)
{
    return invar_recipe_enum(loop->recipe, INVAR_KEY_DEBUG_DETERMINISM) > 0;
}

static invar_status define(int64_t *out, invar_loop *loop, const point *p)
{
    invar_ledger_point full = {.name = p->name,
                               .phase = p->phase,
                               .layer = p->layer,
                               .op = p->op,
                               .kind = p->kind,
                               .level = p->level,
                               .dtype = p->dtype,
                               .shape = p->shape,
                               .dims = p->dims,
                               .shards = 1};

    return invar_probe_define_from(out, loop->probe, &full, fine(loop) ? p->inputs : NULL);
}

static invar_status tokens_point(invar_loop *loop, const invar_loop_step *step)
{
    point p = {"batch.tokens", "rollout", "sample", "data", "i32", {-1, 0}, 1, -1, {NULL}, 0};
    int64_t id;

    INVAR_TRY(define(&id, loop, &p));
    for (int64_t i = 0; step && i < step->count; i++) {
        const invar_rl_sample *s = &loop->batch.items[step->first + i];
        int64_t ends[2] = {0, s->n_tokens};
        invar_tensor tensor = invar_tensor_1d(s->tokens, INVAR_DTYPE_I32, s->n_tokens);
        INVAR_TRY(invar_probe_rows(loop->probe, id, &tensor, &(invar_segments){ends, 1}));
    }
    return INVAR_OK;
}

static invar_status reward_point(invar_loop *loop, const invar_loop_step *step)
{
    point p = {"batch.reward", "rollout", "reward", "data",           "f32",
               {-1, 0},        1,         -1,       {"batch.tokens"}, 0};
    invar_tensor tensor;
    int64_t id;

    INVAR_TRY(define(&id, loop, &p));
    if (!step)
        return INVAR_OK;
    tensor = invar_tensor_1d(loop->flat.reward + step->first, INVAR_DTYPE_F32, step->count);
    return invar_probe_whole(loop->probe, id, &tensor);
}

/* One number a response token, a shard a sample. */
static invar_status token_point(invar_loop *loop, const invar_loop_step *step, const point *p,
                                const float *values)
{
    invar_flat *f = &loop->flat;
    invar_tensor tensor;
    int64_t begin, id;

    if (!values)
        return INVAR_OK;
    INVAR_TRY(define(&id, loop, p));
    if (!step)
        return INVAR_OK;
    begin = f->start[step->first];
    tensor = invar_tensor_1d((void *)(values + begin), INVAR_DTYPE_F32,
                             f->start[step->first + step->count] - begin);
    return invar_probe_rows(loop->probe, id, &tensor,
                            &(invar_segments){f->step_start, step->count});
}

/* All points of tokens in the order of the chain; step NULL: without values. */
static invar_status token_points(invar_loop *loop, const invar_loop_step *step, bool learned)
{
    const invar_flat *f = &loop->flat;
    // rollout, scoring and training are one forward: what made the logits made the log-probs
    const struct {
        const char *name, *phase, *op, *kind;
        const float *values;
        const char *inputs[2];
    } points[] = {
        {"rollout.logp", "rollout", "logprob.fwd", "logp", f->rollout_logp, {"head.logits"}},
        {NULL, NULL, NULL, NULL, NULL, {NULL}}, // the reward
        {"score.logp", "forward", "logprob.fwd", "logp", f->score_logp, {"head.logits"}},
        {"ref.logp", "forward", "logprob.fwd", "logp", f->ref_logp, {"batch.tokens"}},
        {"teacher.logp", "forward", "logprob.fwd", "logp", f->teacher_logp, {"batch.tokens"}},
        {"critic.values", "forward", "linear.fwd", "act", f->values, {"batch.tokens"}},
        {"batch.advantage",
         "rollout",
         "advantage",
         "data",
         f->advantage,
         {"batch.reward", "critic.values"}},
        {"train.logp", "forward", "logprob.fwd", "logp", f->train_logp, {"head.logits"}},
    };
    size_t count = learned ? sizeof points / sizeof *points : 2;

    INVAR_TRY(tokens_point(loop, step));
    for (size_t i = 0; i < count; i++) {
        point p = {points[i].name,
                   points[i].phase,
                   points[i].op,
                   points[i].kind,
                   "f32",
                   {-1, 0},
                   1,
                   -1,
                   {points[i].inputs[0], points[i].inputs[1]},
                   0};
        if (p.name)
            INVAR_TRY(token_point(loop, step, &p, points[i].values));
        else
            INVAR_TRY(reward_point(loop, step));
    }
    return INVAR_OK;
}

invar_status invar_loop_define_points(invar_loop *loop, bool forward_done)
{
    return forward_done ? token_points(loop, NULL, true) : tokens_point(loop, NULL);
}

/* The op that makes a parameter's gradient. */
static const char *gradient_op(invar_param_kind kind)
{
    switch (kind) {
    case INVAR_PARAM_EMBEDDING: return "embedding.bwd";
    case INVAR_PARAM_NORM: return "rmsnorm.bwd";
    case INVAR_PARAM_BIAS: return "token.sum";
    case INVAR_PARAM_EXPERT: return "moe.linear.dw";
    default: return "linear.dw";
    }
}

/* ---- parameters ------------------------------------------------------------------------------ */

typedef char name[INVAR_LEDGER_NAME_BYTES + 1];

/*
 * What a gradient is computed from: names of its layer's points, NULL after the last; "in" is the
 * residual stream at its beginning, "out" the gradient of the stream at its end.
 */
static const char *const *gradient_sources(const invar_param *p)
{
    static const struct {
        const char *ending, *sources[4];
    } table[] = {
        {"input_layernorm.weight", {"dnorm_in", "in"}},
        {"q_proj.weight", {"dq", "norm_in"}},
        {"q_proj.bias", {"dq"}},
        {"k_proj.weight", {"dk", "norm_in"}},
        {"k_proj.bias", {"dk"}},
        {"v_proj.weight", {"dv", "norm_in"}},
        {"v_proj.bias", {"dv"}},
        {"q_norm.weight", {"dq.norm", "q.proj"}},
        {"k_norm.weight", {"dk.norm", "k.proj"}},
        {"o_proj.weight", {"dattn", "o"}},
        {"post_attention_layernorm.weight", {"dnorm_mid", "attn"}},
        {"gate_proj.weight", {"dgate", "norm_mid", "expert.x"}},
        {"up_proj.weight", {"dup", "norm_mid", "expert.x"}},
        {"experts.down_proj.weight", {"dexpert.y", "act"}},
        {"down_proj.weight", {"out", "act"}},
        {"mlp.gate.weight", {"drouter", "norm_mid"}},
        {"embed_tokens.weight", {"layer.0.dx", "batch.tokens", "grad.tied_head"}},
        {"model.norm.weight", {"head.dnorm", "in"}},
        {"lm_head.weight", {"head.dlogits", "head.norm"}},
        {"score.weight", {"head.dlogits", "head.norm"}},
    };
    static const char *const none[] = {NULL};
    size_t length = strlen(p->name);

    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        size_t ending = strlen(table[i].ending);
        if (length >= ending && strcmp(p->name + length - ending, table[i].ending) == 0)
            return table[i].sources;
    }
    return none;
}

static void name_source(name out, const invar_model *model, int64_t layer, const char *prefix,
                        const char *source)
{
    int64_t layers = model->spec.layers, below = (layer < 0 ? layers : layer) - 1;
    bool in = strcmp(source, "in") == 0, end = strcmp(source, "out") == 0;

    if (in && below < 0)
        (void)snprintf(out, sizeof(name), "%sembed", prefix);
    else if (end && layer + 1 == layers)
        (void)snprintf(out, sizeof(name), "%shead.dx", prefix);
    else if (in || end)
        (void)snprintf(out, sizeof(name), "%slayer.%" PRId64 ".%s", prefix, in ? below : layer + 1,
                       in ? "mlp" : "dx");
    else if (layer >= 0)
        (void)snprintf(out, sizeof(name), "%slayer.%" PRId64 ".%s", prefix, layer, source);
    else
        (void)snprintf(out, sizeof(name), "%s%s", prefix, source);
}

static invar_status gradient_point(int64_t *out, invar_loop *loop, const invar_model *model,
                                   int64_t param, const char *prefix, const invar_grads *grads)
{
    const invar_param *p = &model->params[param];
    const char *const *sources = gradient_sources(p);
    name own, inputs[3];
    point at = {.name = own,
                .phase = "backward",
                .op = gradient_op(p->kind),
                .kind = "grad",
                .dtype = "f32",
                .shape = {p->master.shape[0], p->cols},
                .dims = p->cols ? 2 : 1,
                .layer = p->layer};

    (void)snprintf(own, sizeof own, "%sgrad.%s", prefix, p->name);
    for (int i = 0; sources[i]; i++) {
        name_source(inputs[i], model, p->layer, prefix, sources[i]);
        at.inputs[i] = inputs[i];
    }
    INVAR_TRY(define(out, loop, &at));
    return invar_probe_device_hashed(loop->probe, *out, &grads->of[param], &grads->digests[param]);
}

/* What stands between the gradients and the weights, for those who look closer. */
static invar_status norm_point(invar_loop *loop, const char *prefix, float norm,
                               const int64_t *grads, int64_t count)
{
    invar_tensor tensor = invar_tensor_1d(&norm, INVAR_DTYPE_F32, 1);
    int64_t id, one = 1;
    name own;

    (void)snprintf(own, sizeof own, "%sgrad_norm", prefix);
    INVAR_TRY(invar_probe_define(&id, loop->probe,
                                 &(invar_ledger_point){.name = own,
                                                       .phase = "optimizer",
                                                       .layer = -1,
                                                       .op = "grad.norm",
                                                       .kind = "grad",
                                                       .level = INVAR_PROBE_FULL,
                                                       .dtype = "f32",
                                                       .shape = &one,
                                                       .dims = 1,
                                                       .shards = 1,
                                                       .inputs = grads,
                                                       .n_inputs = (size_t)count}));
    return invar_probe_whole(loop->probe, id, &tensor);
}

/* The head's share of the gradient that it has in common with the embedding. */
static invar_status tied_point(invar_loop *loop, const char *prefix, const invar_grads *grads)
{
    name own, inputs[2];
    point at = {.name = own,
                .phase = "backward",
                .op = "linear.dw",
                .kind = "grad",
                .dtype = "f32",
                .shape = {grads->tied_head.shape[0], grads->tied_head.shape[1]},
                .dims = 2,
                .layer = -1,
                .inputs = {inputs[0], inputs[1]},
                .level = INVAR_PROBE_FULL};
    int64_t id;

    if (!invar_tensor_present(&grads->tied_head))
        return INVAR_OK;
    (void)snprintf(own, sizeof own, "%sgrad.tied_head", prefix);
    (void)snprintf(inputs[0], sizeof inputs[0], "%shead.dlogits", prefix);
    (void)snprintf(inputs[1], sizeof inputs[1], "%shead.norm", prefix);
    INVAR_TRY(define(&id, loop, &at));
    return invar_probe_device_whole(loop->probe, id, &grads->tied_head);
}

/* `hashed`: the digest follows. */
static invar_status weight_point(int64_t *out, invar_loop *loop, const invar_param *p,
                                 const char *prefix, bool hashed)
{
    name own, grad, norm;
    point at = {.name = own,
                .phase = "optimizer",
                .op = "adamw",
                .kind = "param",
                .dtype = "f32",
                .shape = {p->master.shape[0], p->cols},
                .dims = p->cols ? 2 : 1,
                .layer = p->layer,
                .inputs = {grad, norm}};

    (void)snprintf(own, sizeof own, "%sweight.%s", prefix, p->name);
    (void)snprintf(grad, sizeof grad, "%sgrad.%s", prefix, p->name);
    (void)snprintf(norm, sizeof norm, "%sgrad_norm", prefix);
    INVAR_TRY(define(out, loop, &at));
    return hashed ? INVAR_OK : invar_probe_device_whole(loop->probe, *out, &p->master);
}

/* What AdamW has made of the masters; all points are listed while it is at work. */
static invar_status hashed_points(const int64_t *ids, invar_loop *loop, const invar_model *model,
                                  const invar_optimizer *optimizer)
{
    invar_digest *digests;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&digests, (size_t)model->n_params, sizeof *digests,
                          "digests of masters"));
    status = invar_optimizer_digests(digests, optimizer, model);
    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++)
        status =
            invar_probe_device_hashed(loop->probe, ids[i], &model->params[i].master, &digests[i]);
    invar_free(digests);
    return status;
}

/*
 * `ids` has room for a point of every parameter, and gets those of the weights. `hashed` has the
 * digests of the masters; NULL: they are hashed here.
 */
static invar_status param_points(int64_t *ids, invar_loop *loop, const invar_model *model,
                                 const invar_grads *grads, const char *prefix, float norm,
                                 const invar_optimizer *hashed)
{
    int64_t count = model->n_params;

    INVAR_TRY(tied_point(loop, prefix, grads));
    for (int64_t i = 0; i < count; i++)
        INVAR_TRY(gradient_point(&ids[i], loop, model, i, prefix, grads));
    INVAR_TRY(norm_point(loop, prefix, norm, ids, count));
    for (int64_t i = 0; i < count; i++)
        INVAR_TRY(weight_point(&ids[i], loop, &model->params[i], prefix, hashed != NULL));
    return hashed ? hashed_points(ids, loop, model, hashed) : INVAR_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* What invar_model_hash would make of the actor, since its points are whole masters. */
static void hash_weights(invar_loop *loop, const invar_probe_result *points, const int64_t *ids)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    for (int64_t i = 0; i < loop->session.actor->n_params; i++)
        invar_hasher_update(&hasher, points->digests[ids[i]].bytes, sizeof(invar_digest));
    invar_hasher_final(&loop->weights_hash, &hasher);
    loop->weights_hashed = true;
}

static invar_status learned_points(invar_probe_result *out, invar_loop *loop,
                                   const invar_loop_step *step)
{
    const invar_model *actor = loop->session.actor, *critic = loop->session.critic;
    int64_t actor_points = actor->n_params, critic_points = step->value_loss ? critic->n_params : 0;
    int64_t *ids;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&ids, (size_t)(actor_points + critic_points), sizeof *ids,
                          "the points of parameters"));
    status = param_points(ids, loop, actor, loop->grads, "", step->norm,
                          step->actor_hashed ? loop->optimizer : NULL);
    if (status == INVAR_OK && step->value_loss)
        status =
            param_points(ids + actor_points, loop, critic, loop->critic_grads, "critic.",
                         step->critic_norm, step->critic_hashed ? loop->critic_optimizer : NULL);
    if (status == INVAR_OK)
        status = invar_probe_finish(out, loop->probe);
    if (status == INVAR_OK)
        hash_weights(loop, out, ids);
    invar_free(ids);
    // begun here, a device does it while the ledger is written
    if (status == INVAR_OK)
        status = invar_grads_zero(loop->grads);
    if (status == INVAR_OK && step->value_loss)
        status = invar_grads_zero(loop->critic_grads);
    return status;
}

invar_status invar_loop_points(invar_probe_result *out, invar_loop *loop,
                               const invar_loop_step *step)
{
    (void)invar_flat_batch(&loop->flat, step->first, step->count); // the starts of its tokens
    INVAR_TRY(token_points(loop, step, step->loss != NULL));
    return step->loss ? learned_points(out, loop, step) : invar_probe_finish(out, loop->probe);
}
