/*
 * optimizer.c - AdamW over a model.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/optimizer.h"

#include "base/alloc.h"
#include "engine/model/call.h"

#include "base/invar_banned.h"

static size_t moment_bytes(const invar_param *p)
{
    size_t bytes = (size_t)(p->master.shape[0] * p->master.row_stride) * sizeof(float);

    return (bytes + INVAR_ALIGN - 1) / INVAR_ALIGN * INVAR_ALIGN;
}

static invar_status allocate(invar_optimizer *o, const invar_model *model)
{
    size_t count = (size_t)model->n_params, half = 0;
    char *next;

    for (int64_t i = 0; i < model->n_params; i++)
        half += moment_bytes(&model->params[i]);
    INVAR_TRY(invar_alloc((void **)&o->m, count, sizeof *o->m, "the list of moments"));
    INVAR_TRY(invar_alloc((void **)&o->v, count, sizeof *o->v, "the list of moments"));
    o->bytes = 2 * half;
    INVAR_TRY(invar_device_take(&o->dev, &o->memory, o->bytes, "the optimizer's moments"));
    next = o->memory;
    for (int64_t i = 0; i < model->n_params; i++) {
        o->m[i] = o->v[i] = model->params[i].master;
        o->m[i].data = next;
        o->v[i].data = next + half;
        next += moment_bytes(&model->params[i]);
    }
    return INVAR_OK;
}

invar_status invar_optimizer_new(invar_optimizer **out, const invar_model *model)
{
    invar_optimizer *o = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&o, 1, sizeof *o, "an optimizer"));
    *o = (invar_optimizer){.dev = model->dev};
    status = allocate(o, model);
    if (status == INVAR_OK)
        status = invar_optimizer_reset(o);
    if (status != INVAR_OK) {
        invar_optimizer_free(o);
        return status;
    }
    *out = o;
    return INVAR_OK;
}

void invar_optimizer_free(invar_optimizer *optimizer)
{
    if (!optimizer)
        return;
    invar_free(optimizer->m);
    invar_free(optimizer->v);
    invar_device_give(&optimizer->dev, optimizer->memory);
    invar_free(optimizer);
}

invar_status invar_optimizer_reset(invar_optimizer *optimizer)
{
    optimizer->beta1_power = optimizer->beta2_power = 1.0f;
    optimizer->steps = 0;
    return invar_device_zero(&optimizer->dev, optimizer->memory, optimizer->bytes);
}

static invar_status norm_of(invar_caller *caller, float *norm_out, float *clip_out,
                            const invar_tensor *grads, int64_t count, float clip_grad)
{
    return INVAR_CALL(caller, GRAD_NORM, grad_norm, .norm = norm_out, .clip = clip_out,
                      .grads = grads, .count = count, .max_norm = clip_grad);
}

/* The norm is no number: the first parameter whose own is none either, by name. */
static invar_status blame(invar_caller *caller, const invar_model *model, const invar_grads *grads)
{
    float norm, clip;

    for (int64_t i = 0; i < model->n_params; i++) {
        invar_status status = norm_of(caller, &norm, &clip, &grads->of[i], 1, 0.0f);
        if (status == INVAR_E_STATE)
            return INVAR_FAIL(INVAR_E_STATE, 0,
                              "the gradient of %s is not finite or its square overflows: look at "
                              "the step with debug-determinism, or take a smaller lr",
                              model->params[i].name);
        INVAR_TRY(status);
    }
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "the gradients' sum of squares overflows: take a smaller lr");
}

invar_status invar_optimizer_norm(float *norm_out, float *clip_out, const invar_model *model,
                                  const invar_grads *grads, float clip_grad,
                                  const invar_device *dev)
{
    invar_caller caller;
    invar_status status;

    invar_caller_init(&caller, dev);
    status = norm_of(&caller, norm_out, clip_out, grads->of, model->n_params, clip_grad);
    if (status == INVAR_E_STATE)
        status = blame(&caller, model, grads);
    invar_caller_release(&caller);
    return status;
}

static invar_tensor flat(const invar_tensor *t)
{
    return invar_tensor_1d(t->data, t->dtype, t->shape[0] * t->row_stride);
}

static bool decays(const invar_param *p)
{
    return p->kind != INVAR_PARAM_NORM && p->kind != INVAR_PARAM_BIAS;
}

/* The master, its rounding, or its quantisation: whatever the ops read afterwards. */
static invar_status update(invar_caller *caller, invar_optimizer *o, const invar_param *p,
                           int64_t i, const invar_tensor *grad, float clip, float lr,
                           const invar_adamw_options *options)
{
    invar_tensor none = {0};
    bool rounds = p->weight.dtype == INVAR_DTYPE_BF16;
    bool quantises = !rounds && p->weight.dtype != INVAR_DTYPE_F32;

    INVAR_TRY(INVAR_CALL(caller, ADAMW, adamw, .weight = rounds ? flat(&p->weight) : none,
                         .master = flat(&p->master), .m = flat(&o->m[i]), .v = flat(&o->v[i]),
                         .grad = flat(grad), .clip = clip, .lr = lr, .beta1 = options->beta1,
                         .beta2 = options->beta2, .eps = options->eps,
                         .weight_decay = decays(p) ? options->weight_decay : 0.0f,
                         .beta1_power = o->beta1_power, .beta2_power = o->beta2_power));
    if (!quantises)
        return INVAR_OK;
    return INVAR_CALL(caller, QUANTISE, quantise, .q = p->weight, .x = p->master);
}

invar_status invar_optimizer_step(invar_optimizer *optimizer, invar_model *model,
                                  const invar_grads *grads, float clip, float lr,
                                  const invar_adamw_options *options, const invar_device *dev)
{
    invar_caller caller;
    invar_status status = INVAR_OK;

    invar_caller_init(&caller, dev);
    optimizer->beta1_power *= options->beta1;
    optimizer->beta2_power *= options->beta2;
    optimizer->steps++;
    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++)
        status = update(&caller, optimizer, &model->params[i], i, &grads->of[i], clip, lr, options);
    invar_caller_release(&caller);
    return status;
}
