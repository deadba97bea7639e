/*
 * attention.c - the attention block: norm, q k v, QK-norm, rotation, attention, output, residual.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/pass.h"

#include "base/invar_banned.h"

static invar_attention_shape shape_of(const invar_pass *pass, int64_t layer)
{
    const invar_model_spec *s = &pass->model->spec;
    invar_attention_shape shape = {0};

    if (s->window > 0 && layer >= s->window_from)
        shape.window = s->window;
    return shape;
}

static invar_rotation rotation_of(const invar_pass *pass)
{
    return (invar_rotation){.positions = invar_tensor_1d((void *)(uintptr_t)pass->given.positions,
                                                         INVAR_DTYPE_I32, pass->rows.count),
                            .cosine = pass->model->cosine,
                            .sine = pass->model->sine};
}

static invar_status rotate(invar_pass *pass, invar_op op, const invar_tensor *t, int64_t heads)
{
    invar_tensor view = invar_pass_heads(t, heads);
    invar_rotation r = rotation_of(pass);
    invar_rope_fwd_args args = {view, view, r.positions, r.cosine, r.sine};

    return invar_caller_run(&pass->caller, op, &args);
}

/* QK-norm and the rotation in one op. What lies between them a probe wants to see. */
static bool turns_at_once(const invar_pass *pass)
{
    return pass->model->spec.qk_norm && !pass->probe.take;
}

static invar_status turn_at_once(invar_pass *pass, const invar_tensor *y, const invar_tensor *x,
                                 const invar_param *weight, int64_t heads)
{
    return INVAR_CALL(&pass->caller, RMSNORM_FWD, rmsnorm_fwd, .y = invar_pass_heads(y, heads),
                      .x = invar_pass_heads(x, heads), .weight = weight->weight,
                      .eps = pass->model->spec.norm_eps, .rotation = rotation_of(pass));
}

static invar_status turn_back_at_once(invar_pass *pass, const invar_tensor *dx,
                                      const invar_tensor *dy, const invar_tensor *x,
                                      const invar_param *weight, int64_t heads, invar_grads *grads)
{
    return INVAR_CALL(&pass->caller, RMSNORM_BWD, rmsnorm_bwd, .dx = invar_pass_heads(dx, heads),
                      .dweight = *invar_pass_grad(pass, grads, weight),
                      .dy = invar_pass_heads(dy, heads), .x = invar_pass_heads(x, heads),
                      .weight = weight->weight, .units = pass->given.units,
                      .eps = pass->model->spec.norm_eps, .rotation = rotation_of(pass));
}

static invar_status project(invar_pass *pass, int64_t layer, invar_acts *a)
{
    const invar_layer *w = &pass->model->layers[layer];
    invar_tensor x;

    INVAR_TRY(invar_block_norm(pass, &a->norm_in, &a->x, w->norm_in, 1));
    INVAR_TRY(INVAR_SHOW(pass, layer, "norm_in", RMSNORM_FWD, &a->norm_in, .inputs = {"in"}));
    INVAR_TRY(invar_block_operand(&x, pass, layer, "norm_in", &a->norm_in));
    INVAR_TRY(invar_block_linears(pass, &x,
                                  (const invar_block_output[]){{&a->q_raw, w->wq, w->bq},
                                                               {&a->k_raw, w->wk, w->bk},
                                                               {&a->v, w->wv, w->bv}},
                                  3));
    INVAR_TRY(INVAR_SHOW(pass, layer, "q.proj", LINEAR_FWD, &a->q_raw,
                         .inputs = {"norm_in", "norm_in.q"}));
    INVAR_TRY(INVAR_SHOW(pass, layer, "k.proj", LINEAR_FWD, &a->k_raw,
                         .inputs = {"norm_in", "norm_in.q"}));
    return INVAR_SHOW(pass, layer, "v", LINEAR_FWD, &a->v, .inputs = {"norm_in", "norm_in.q"});
}

/* QK-norm, where the model has one, and the rotation. */
static invar_status turn(invar_pass *pass, int64_t layer, invar_acts *a)
{
    const invar_model_spec *s = &pass->model->spec;
    const invar_layer *w = &pass->model->layers[layer];
    const char *q = s->qk_norm ? "q.norm" : "q.proj", *k = s->qk_norm ? "k.norm" : "k.proj";

    if (turns_at_once(pass)) {
        INVAR_TRY(turn_at_once(pass, &a->q, &a->q_raw, w->norm_q, s->heads));
        return turn_at_once(pass, &a->k, &a->k_raw, w->norm_k, s->kv_heads);
    }
    if (s->qk_norm) {
        INVAR_TRY(invar_block_norm(pass, &a->q, &a->q_raw, w->norm_q, s->heads));
        INVAR_TRY(invar_block_norm(pass, &a->k, &a->k_raw, w->norm_k, s->kv_heads));
        INVAR_TRY(INVAR_SHOW(pass, layer, q, RMSNORM_FWD, &a->q, .inputs = {"q.proj"}));
        INVAR_TRY(INVAR_SHOW(pass, layer, k, RMSNORM_FWD, &a->k, .inputs = {"k.proj"}));
    }
    INVAR_TRY(rotate(pass, INVAR_OP_ROPE_FWD, &a->q, s->heads));
    INVAR_TRY(rotate(pass, INVAR_OP_ROPE_FWD, &a->k, s->kv_heads));
    INVAR_TRY(INVAR_SHOW(pass, layer, "q", ROPE_FWD, &a->q, .inputs = {q}));
    return INVAR_SHOW(pass, layer, "k", ROPE_FWD, &a->k, .inputs = {k});
}

/* Over the rows themselves, or over the cache that the new keys and values go into. */
static invar_status attend(invar_pass *pass, int64_t layer, invar_acts *a)
{
    const invar_model_spec *s = &pass->model->spec;
    const invar_given *given = &pass->given;
    invar_kv_pages cache;
    invar_tensor q = invar_pass_heads(&a->q, s->heads), o = invar_pass_heads(&a->o, s->heads);
    invar_tensor k = invar_pass_heads(&a->k, s->kv_heads), v = invar_pass_heads(&a->v, s->kv_heads);
    invar_attention_shape shape = shape_of(pass, layer);

    if (!pass->rows.cache)
        return INVAR_CALL(&pass->caller, ATTENTION_FWD, attention_fwd, .o = o, .lse2 = a->lse2,
                          .q = q, .k = k, .v = v, .samples = given->samples, .shape = shape);
    cache = pass->rows.cache[layer];
    cache.pages.data = (void *)(uintptr_t)given->pages;
    INVAR_TRY(INVAR_CALL(&pass->caller, KV_WRITE, kv_write, .cache = cache, .k = k, .v = v,
                         .rows = given->samples, .lengths = given->lengths));
    return INVAR_CALL(&pass->caller, ATTENTION_PAGED, attention_paged, .o = o, .q = q,
                      .cache = cache, .rows = given->samples, .lengths = given->lengths,
                      .shape = shape);
}

invar_status invar_block_attention(invar_pass *pass, int64_t layer, invar_acts *a)
{
    const invar_layer *w = &pass->model->layers[layer];
    invar_tensor o;

    INVAR_TRY(project(pass, layer, a));
    INVAR_TRY(turn(pass, layer, a));
    INVAR_TRY(attend(pass, layer, a));
    INVAR_TRY(INVAR_SHOW(pass, layer, "o", ATTENTION_FWD, &a->o, .inputs = {"q", "k", "v"}));
    INVAR_TRY(invar_block_operand(&o, pass, layer, "o", &a->o));
    INVAR_TRY(invar_block_add_linear(
        pass, &a->mid, &a->x, &o, w->wo,
        &(invar_forward_value){.point = "o.proj", .layer = layer, .inputs = {"o", "o.q"}}));
    return INVAR_SHOW(pass, layer, "attn", ADD, &a->mid, .inputs = {"in", "o.proj"},
                      .stream = true);
}

static invar_status attend_backward(invar_pass *pass, int64_t layer, invar_acts *a)
{
    const invar_model_spec *s = &pass->model->spec;
    invar_temps *t = &pass->temps;

    INVAR_TRY(INVAR_CALL(
        &pass->caller, ATTENTION_BWD, attention_bwd, .dq = invar_pass_heads(&t->dq, s->heads),
        .dk = invar_pass_heads(&t->dk, s->kv_heads), .dv = invar_pass_heads(&t->dv, s->kv_heads),
        .d_o = invar_pass_heads(&t->d_o, s->heads), .o = invar_pass_heads(&a->o, s->heads),
        .lse2 = a->lse2, .q = invar_pass_heads(&a->q, s->heads),
        .k = invar_pass_heads(&a->k, s->kv_heads), .v = invar_pass_heads(&a->v, s->kv_heads),
        .samples = pass->given.samples, .shape = shape_of(pass, layer)));
    INVAR_TRY(INVAR_SHOW_BACK(pass, layer, "dq.rope", ATTENTION_BWD, &t->dq,
                              .inputs = {"do", "q", "k", "v", "o"}));
    INVAR_TRY(INVAR_SHOW_BACK(pass, layer, "dk.rope", ATTENTION_BWD, &t->dk,
                              .inputs = {"do", "q", "k", "v", "o"}));
    return INVAR_SHOW_BACK(pass, layer, "dv", ATTENTION_BWD, &t->dv,
                           .inputs = {"do", "q", "k", "v", "o"});
}

static invar_status turn_backward(invar_pass *pass, int64_t layer, invar_acts *a,
                                  invar_grads *grads)
{
    const invar_model_spec *s = &pass->model->spec;
    const invar_layer *w = &pass->model->layers[layer];
    const invar_segments *units = &pass->given.units;
    invar_temps *t = &pass->temps;
    const char *dq = s->qk_norm ? "dq.norm" : "dq", *dk = s->qk_norm ? "dk.norm" : "dk";

    if (turns_at_once(pass)) {
        INVAR_TRY(
            turn_back_at_once(pass, &t->dq_raw, &t->dq, &a->q_raw, w->norm_q, s->heads, grads));
        return turn_back_at_once(pass, &t->dk_raw, &t->dk, &a->k_raw, w->norm_k, s->kv_heads,
                                 grads);
    }
    INVAR_TRY(rotate(pass, INVAR_OP_ROPE_BWD, &t->dq, s->heads));
    INVAR_TRY(rotate(pass, INVAR_OP_ROPE_BWD, &t->dk, s->kv_heads));
    INVAR_TRY(INVAR_SHOW_BACK(pass, layer, dq, ROPE_BWD, &t->dq, .inputs = {"dq.rope"}));
    INVAR_TRY(INVAR_SHOW_BACK(pass, layer, dk, ROPE_BWD, &t->dk, .inputs = {"dk.rope"}));
    if (!s->qk_norm)
        return INVAR_OK;
    INVAR_TRY(invar_block_norm_backward(pass, &t->dq_raw, &t->dq, &a->q_raw, w->norm_q, s->heads,
                                        units, grads));
    INVAR_TRY(invar_block_norm_backward(pass, &t->dk_raw, &t->dk, &a->k_raw, w->norm_k, s->kv_heads,
                                        units, grads));
    INVAR_TRY(
        INVAR_SHOW_BACK(pass, layer, "dq", RMSNORM_BWD, &t->dq_raw, .inputs = {dq, "q.proj"}));
    return INVAR_SHOW_BACK(pass, layer, "dk", RMSNORM_BWD, &t->dk_raw, .inputs = {dk, "k.proj"});
}

invar_status invar_block_attention_backward(invar_pass *pass, int64_t layer, invar_acts *a,
                                            invar_grads *grads)
{
    const invar_layer *w = &pass->model->layers[layer];
    const invar_block_join join = {&a->x, w->norm_in, "dx", "dx.norm", "dnorm_in", "in"};
    invar_temps *t = &pass->temps;
    invar_block_part out = {&t->d, "dattn", w->wo, NULL, false};
    invar_block_part qkv[3] = {{&t->dq_raw, "dq", w->wq, w->bq, false},
                               {&t->dk_raw, "dk", w->wk, w->bk, false},
                               {&t->dv, "dv", w->wv, w->bv, false}};

    INVAR_TRY(invar_block_linear_backward(pass, layer, &t->d_o, &a->o, &out, 1, NULL, grads));
    INVAR_TRY(INVAR_SHOW_BACK(pass, layer, "do", LINEAR_DX, &t->d_o, .inputs = {"d", "dattn.q"}));
    INVAR_TRY(attend_backward(pass, layer, a));
    INVAR_TRY(turn_backward(pass, layer, a, grads));
    INVAR_TRY(
        invar_block_linear_backward(pass, layer, &t->branch, &a->norm_in, qkv, 3, NULL, grads));
    INVAR_TRY(INVAR_SHOW_BACK(pass, layer, "dnorm_in", LINEAR_DX, &t->branch,
                              .inputs = {"dq", "dk", "dv", "dq.q", "dk.q", "dv.q"}));
    return invar_block_join_backward(pass, layer, &join, grads);
}
