/*
 * optimizer.c - AdamW over a model.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/optimizer.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model/pieces.h"
#include "engine/program/call.h"
#include "engine/train/slices.h"
#include "kernels-deterministic/math/clip.h"
#include "kernels-deterministic/math/reduce.h"

#include "base/invar_banned.h"

/* Of a master or its moments, as far as they are here. */
static size_t element_bytes(const invar_tensor *t)
{
    return (size_t)(t->shape[0] * t->row_stride) * sizeof(float);
}

static size_t moment_bytes(const invar_param *p)
{
    return (element_bytes(&p->master) + INVAR_ALIGN - 1) / INVAR_ALIGN * INVAR_ALIGN;
}

static invar_status take_memory(invar_optimizer *o, size_t piece)
{
    static const char what[] = "the optimizer's moments";
    void *memory = NULL;

    if (o->own.bytes == 0) { // many ranks leave some nothing of a small model
        INVAR_TRY(invar_device_take(&o->dev, &memory, INVAR_ALIGN, what));
    } else if (piece == 0) {
        INVAR_TRY(invar_device_take(&o->dev, &memory, 2 * o->own.bytes, what));
    } else {
        INVAR_TRY(invar_offload_new(&o->offload, &o->dev, o->own.bytes, piece));
        INVAR_TRY(invar_device_take_host(&o->dev, &memory, 2 * o->own.bytes, what));
    }
    o->memory = memory;
    return INVAR_OK;
}

/* m and v are in two blocks, of which the second begins `apart` bytes behind the first. */
static void place_moments(invar_optimizer *o, char *first, size_t apart)
{
    for (int64_t i = 0; i < o->params; i++) {
        o->m[i].data = first ? first + o->at[i] : NULL;
        o->v[i].data = first ? first + apart + o->at[i] : NULL;
    }
}

/* Masters lie as moments do: a slice of the one is a slice of the other. */
static char *masters_of(const invar_model *model)
{
    int64_t k = 0;

    while (model->params[model->order[k]].own.experts == 0) // the first that is here
        k++;
    return model->params[model->order[k]].master.data;
}

static void lay_out(invar_optimizer *o, const invar_model *model)
{
    for (int64_t k = 0; k < model->n_params; k++) {
        int64_t i = model->order[k];
        o->m[i] = o->v[i] = model->params[i].master;
        o->at[i] = o->block;
        INVAR_CHECK(model->params[i].own.experts == 0 ||
                    (char *)model->params[i].master.data == masters_of(model) + o->at[i]);
        o->block += moment_bytes(&model->params[i]);
    }
    o->own = (invar_layout_slice){0, o->block};
    if (o->layout)
        o->own = invar_layout_slice_of(o->block, o->layout->data.size, o->layout->data.rank);
}

static invar_status allocate(invar_optimizer *o, const invar_model *model, size_t piece)
{
    size_t count = (size_t)model->n_params;

    INVAR_TRY(invar_alloc((void **)&o->m, count, sizeof *o->m, "the list of moments"));
    INVAR_TRY(invar_alloc((void **)&o->v, count, sizeof *o->v, "the list of moments"));
    INVAR_TRY(invar_alloc((void **)&o->at, count, sizeof *o->at, "the list of moments"));
    INVAR_TRY(invar_alloc((void **)&o->ends, count, sizeof *o->ends, "the ends of masters"));
    lay_out(o, model);
    INVAR_TRY(take_memory(o, piece));
    place_moments(o, o->layout ? NULL : o->memory, o->own.bytes);
    if (!o->offload && !o->layout && !invar_model_is_cut(model))
        INVAR_TRY(invar_device_take(&o->dev, (void **)&o->digests, count * sizeof *o->digests,
                                    "digests of masters"));
    return INVAR_OK;
}

invar_status invar_optimizer_new(invar_optimizer **out, const invar_model *model, size_t piece,
                                 const invar_layout *layout)
{
    invar_optimizer *o = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&o, 1, sizeof *o, "an optimizer"));
    *o = (invar_optimizer){.params = model->n_params,
                           .dev = model->dev,
                           .layout = invar_layout_divides(layout) ? layout : NULL};
    status = allocate(o, model, piece);
    if (status == INVAR_OK)
        status = invar_optimizer_reset(o);
    if (status != INVAR_OK) {
        invar_optimizer_free(o);
        return status;
    }
    *out = o;
    return INVAR_OK;
}

const invar_device *invar_optimizer_place(const invar_optimizer *optimizer)
{
    return optimizer->offload || optimizer->layout ? NULL : &optimizer->dev;
}

void invar_optimizer_free(invar_optimizer *optimizer)
{
    if (!optimizer)
        return;
    invar_free(optimizer->m);
    invar_free(optimizer->v);
    invar_free(optimizer->at);
    invar_free(optimizer->ends);
    invar_free(optimizer->collected);
    invar_device_give(&optimizer->dev, optimizer->digests);
    if (optimizer->offload)
        invar_device_give_host(&optimizer->dev, optimizer->memory);
    else
        invar_device_give(&optimizer->dev, optimizer->memory);
    invar_offload_free(optimizer->offload);
    invar_free(optimizer);
}

/* What was collected is no longer what is there. */
static void drop(invar_optimizer *o)
{
    invar_free(o->collected);
    o->collected = NULL;
    if (o->layout)
        place_moments(o, NULL, 0);
}

invar_status invar_optimizer_reset(invar_optimizer *optimizer)
{
    size_t bytes = 2 * optimizer->own.bytes;

    optimizer->beta1_power = optimizer->beta2_power = 1.0f;
    optimizer->steps = 0;
    drop(optimizer);
    if (bytes == 0)
        return INVAR_OK;
    if (!optimizer->offload)
        return invar_device_zero(&optimizer->dev, optimizer->memory, bytes);
    if (!optimizer->dev.backend->memory.dry)
        memset(optimizer->memory, 0, bytes);
    return INVAR_OK;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* Where own moments are, whether they are divided or not. */
static const invar_device *own_place(const invar_optimizer *o)
{
    return o->offload ? NULL : &o->dev;
}

static invar_status collect(invar_optimizer *o, invar_slices *slices)
{
    char *m = NULL, *v = NULL;

    if (o->layout->data.rank == 0) {
        INVAR_TRY(invar_alloc((void **)&o->collected, 2, o->block, "moments of all ranks"));
        m = o->collected;
        v = o->collected + o->block;
    }
    INVAR_TRY(invar_slices_collect(slices, "first moments", m, o->memory));
    INVAR_TRY(invar_slices_collect(slices, "second moments", v, o->memory + o->own.bytes));
    place_moments(o, m, o->block);
    return INVAR_OK;
}

invar_status invar_optimizer_collect(invar_optimizer *optimizer)
{
    invar_slices slices;
    invar_status status;

    if (!optimizer->layout)
        return INVAR_OK;
    drop(optimizer);
    status = invar_slices_init(&slices, own_place(optimizer), optimizer->layout, optimizer->block);
    if (status == INVAR_OK)
        status = collect(optimizer, &slices);
    invar_slices_release(&slices);
    return status;
}

invar_status invar_optimizer_put(invar_optimizer *optimizer, int64_t param, bool second,
                                 const float *values)
{
    const invar_optimizer *o = optimizer;
    size_t begin = o->at[param], end = begin + element_bytes(&o->m[param]);
    size_t from = begin > o->own.first ? begin : o->own.first;
    size_t to = end < o->own.first + o->own.bytes ? end : o->own.first + o->own.bytes;
    const char *source;
    char *there;

    drop(optimizer);
    if (from >= to)
        return INVAR_OK;
    source = (const char *)values + (from - begin);
    there = o->memory + (second ? o->own.bytes : 0) + (from - o->own.first);
    if (own_place(o))
        return invar_device_put(&o->dev, there, source, to - from);
    memcpy(there, source, to - from);
    return INVAR_OK;
}

/* ---- the norm -------------------------------------------------------------------------------- */

static invar_status norm_of(invar_caller *caller, float *norm_out, float *clip_out,
                            const invar_tensor *grads, int64_t count, float clip_grad,
                            invar_digest *digests)
{
    return INVAR_CALL(caller, GRAD_NORM, grad_norm, .norm = norm_out, .clip = clip_out,
                      .grads = grads, .count = count, .max_norm = clip_grad, .digest = digests);
}

static invar_status not_finite(const invar_param *p)
{
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "the gradient of %s is not finite or its square overflows: look at the step "
                      "with debug-determinism, or take a smaller lr",
                      p->name);
}

static invar_status overflow(void)
{
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "the gradients' sum of squares overflows: take a smaller lr");
}

/* The norm is no number: the first parameter whose own is none either, by name. */
static invar_status blame(invar_caller *caller, const invar_model *model, const invar_grads *grads)
{
    float norm, clip;

    for (int64_t i = 0; i < model->n_params; i++) {
        invar_status status = norm_of(caller, &norm, &clip, &grads->of[i], 1, 0.0f, NULL);
        if (status == INVAR_E_STATE)
            return not_finite(&model->params[i]);
        INVAR_TRY(status);
    }
    return overflow();
}

/* What the op makes of the squares of all tensors. */
static invar_status finish_norm(float *norm_out, float *clip_out, const invar_model *model,
                                const float *squares, int64_t count, float clip_grad)
{
    const float *next = squares;

    for (int64_t i = 0; i < model->n_params; i++)
        for (int64_t k = 0; k < invar_pieces_of(&model->params[i]); k++)
            if (!isfinite(*next++))
                return not_finite(&model->params[i]);
    *norm_out = invar_sqrtf(invar_reduce_f32(squares, count));
    if (!isfinite(*norm_out))
        return overflow();
    *clip_out = invar_norm_clip(*norm_out, clip_grad);
    return INVAR_OK;
}

/* Of pieces that ranks divide: each squares those that it gives, and all add them up. */
static invar_status norm_of_all(invar_caller *caller, float *norm_out, float *clip_out,
                                const invar_model *model, const invar_grads *grads, float clip_grad)
{
    int64_t count = 0;
    float *all = NULL, *own, norm, clip;
    invar_status status;

    for (int64_t i = 0; i < model->n_params; i++)
        count += invar_pieces_of(&model->params[i]);
    INVAR_TRY(invar_alloc((void **)&all, (size_t)(count + grads->n_pieces), sizeof *all,
                          "squares of gradients"));
    own = all + count;
    status = INVAR_CALL(caller, GRAD_NORM, grad_norm, .norm = &norm, .clip = &clip,
                        .grads = grads->pieces, .count = grads->n_pieces, .squares = own);
    if (status == INVAR_E_STATE) { // all ranks find it together
        invar_error_clear();
        status = INVAR_OK;
    }
    if (status == INVAR_OK)
        status = invar_pieces_gather(all, model, "squares of gradients", own, sizeof *own, NULL);
    if (status == INVAR_OK)
        status = finish_norm(norm_out, clip_out, model, all, count, clip_grad);
    invar_free(all);
    return status;
}

static invar_status norm_here(invar_caller *caller, float *norm_out, float *clip_out,
                              const invar_model *model, const invar_grads *grads, float clip_grad,
                              invar_digest *digests)
{
    invar_status status =
        norm_of(caller, norm_out, clip_out, grads->pieces, grads->n_pieces, clip_grad, digests);

    return status == INVAR_E_STATE ? blame(caller, model, grads) : status;
}

invar_status invar_optimizer_norm(float *norm_out, float *clip_out, const invar_model *model,
                                  invar_grads *grads, bool digests, float clip_grad,
                                  const invar_device *dev)
{
    bool cut = invar_model_is_cut(model); // a digest is of all pieces
    invar_caller caller;
    invar_status status;

    invar_caller_init(&caller, dev);
    status = invar_model_is_divided(model)
                 ? norm_of_all(&caller, norm_out, clip_out, model, grads, clip_grad)
                 : norm_here(&caller, norm_out, clip_out, model, grads, clip_grad,
                             digests && !cut ? grads->digests : NULL);
    invar_caller_release(&caller);
    if (status == INVAR_OK && digests && cut)
        status = invar_model_digests(grads->digests, model, grads->of, dev);
    return status;
}

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct step {
    invar_caller caller;
    const invar_optimizer *optimizer;
    const invar_model *model;
    const invar_grads *grads;
    float clip, lr;
    bool digests;
    const invar_adamw_options *options;
} step;

/* Elements that are moved together: of a parameter, or of several that are neighbours. */
typedef struct part {
    invar_tensor weight; /* zeroed: the ops read the master or a quantisation of it */
    invar_tensor master, m, v, grad;
    float decay;
    int64_t first, tensors; /* the parameters, by their places in the order of memory */
} part;

static invar_tensor elements(const invar_tensor *t, int64_t first, int64_t count)
{
    size_t size = (size_t)invar_dtype_bits(t->dtype) / 8;

    return invar_tensor_1d((char *)t->data + (size_t)first * size, t->dtype, count);
}

static bool decays(const invar_param *p)
{
    return p->kind != INVAR_PARAM_NORM && p->kind != INVAR_PARAM_BIAS;
}

static bool rounds(const invar_param *p)
{
    return p->weight.dtype == INVAR_DTYPE_BF16;
}

static part part_of(const step *s, int64_t place, int64_t first, int64_t count, void *m, void *v)
{
    int64_t i = s->model->order[place];
    const invar_param *p = &s->model->params[i];
    part out = {.master = elements(&p->master, first, count),
                .m = invar_tensor_1d(m, INVAR_DTYPE_F32, count),
                .v = invar_tensor_1d(v, INVAR_DTYPE_F32, count),
                .grad = elements(&s->grads->of[i], first, count),
                .decay = decays(p) ? s->options->weight_decay : 0.0f,
                .first = place,
                .tensors = 1};

    if (rounds(p) && !s->optimizer->layout)
        out.weight = elements(&p->weight, first, count);
    return out;
}

static bool adjoin(const invar_tensor *a, const invar_tensor *b)
{
    size_t bytes = (size_t)a->shape[0] * (size_t)invar_dtype_bits(a->dtype) / 8;

    return a->dtype == b->dtype && (char *)a->data + bytes == (char *)b->data;
}

/* Makes `a` longer by `b`, if that lies behind it in every array and is decayed alike. */
static bool join(part *a, const part *b)
{
    invar_tensor *as[] = {&a->master, &a->m, &a->v, &a->grad, &a->weight};
    const invar_tensor *bs[] = {&b->master, &b->m, &b->v, &b->grad, &b->weight};
    bool weights = invar_tensor_present(&a->weight);
    size_t count = weights ? 5 : 4;

    if (a->decay != b->decay || weights != invar_tensor_present(&b->weight) ||
        a->first + a->tensors != b->first)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!adjoin(as[i], bs[i]))
            return false;
    for (size_t i = 0; i < count; i++)
        *as[i] = invar_tensor_1d(as[i]->data, as[i]->dtype, as[i]->shape[0] + bs[i]->shape[0]);
    a->tensors += b->tensors;
    return true;
}

static invar_status update(step *s, const part *p)
{
    const invar_optimizer *o = s->optimizer;
    const invar_adamw_options *options = s->options;

    if (!invar_tensor_present(&p->master)) // before the first
        return INVAR_OK;
    return INVAR_CALL(
        &s->caller, ADAMW, adamw, .weight = p->weight, .master = p->master, .m = p->m, .v = p->v,
        .grad = p->grad, .clip = s->clip, .lr = s->lr, .beta1 = options->beta1,
        .beta2 = options->beta2, .eps = options->eps, .weight_decay = p->decay,
        .beta1_power = o->beta1_power, .beta2_power = o->beta2_power,
        .digest = s->digests ? &o->digests[p->first] : NULL,
        .end = s->digests ? &o->ends[p->first] : NULL, .tensors = s->digests ? p->tensors : 0);
}

/* What ops read, where that is no rounding of single elements: after the last of them. */
static invar_status quantise(step *s, const invar_param *p)
{
    if (rounds(p) || p->weight.dtype == INVAR_DTYPE_F32)
        return INVAR_OK;
    return INVAR_CALL(&s->caller, QUANTISE, quantise, .q = p->weight, .x = p->master);
}

/* Those parameters whose last element has its moments among these bytes. */
static invar_status quantise_range(step *s, size_t first, size_t bytes)
{
    size_t begin = 0;

    for (int64_t k = 0; k < s->model->n_params; k++) {
        const invar_param *p = &s->model->params[s->model->order[k]];
        size_t end = begin + element_bytes(&p->master);
        if (begin < end && first < end && end <= first + bytes)
            INVAR_TRY(quantise(s, p));
        begin += moment_bytes(p);
    }
    return INVAR_OK;
}

/* All elements whose moments are among these bytes of the own m and v. */
static invar_status update_range(void *payload, size_t first, size_t bytes,
                                 void *const there[INVAR_OFFLOAD_ARRAYS])
{
    step *s = payload;
    size_t begin = 0;
    part run = {0};

    first += s->optimizer->own.first;
    for (int64_t k = 0; k < s->model->n_params; k++) {
        const invar_param *p = &s->model->params[s->model->order[k]];
        size_t end = begin + element_bytes(&p->master);
        size_t from = begin > first ? begin : first;
        size_t to = end < first + bytes ? end : first + bytes;

        if (from < to) {
            part next =
                part_of(s, k, (int64_t)((from - begin) / sizeof(float)),
                        (int64_t)((to - from) / sizeof(float)), (char *)there[0] + (from - first),
                        (char *)there[1] + (from - first));
            if (!join(&run, &next)) {
                INVAR_TRY(update(s, &run));
                run = next;
            }
            s->optimizer->ends[k] = run.master.shape[0];
        }
        begin += moment_bytes(p);
    }
    INVAR_TRY(update(s, &run));
    return s->optimizer->layout ? INVAR_OK : quantise_range(s, first, bytes);
}

/* The masters that other ranks have moved, and what ops read of all of them. */
static invar_status gather_masters(const invar_optimizer *o, invar_model *model,
                                   const invar_device *dev)
{
    invar_slices slices;
    invar_status status;

    if (invar_layout_silent(o->layout, o->dev.backend->memory.dry))
        return INVAR_OK;
    status = invar_slices_init(&slices, &o->dev, o->layout, o->block);
    if (status == INVAR_OK)
        status = invar_slices_gather(&slices, "weights", masters_of(model));
    invar_slices_release(&slices);
    return status == INVAR_OK ? invar_model_refresh(model, dev) : status;
}

invar_status invar_optimizer_step(invar_optimizer *optimizer, invar_model *model,
                                  const invar_grads *grads, float clip, float lr, bool digests,
                                  const invar_adamw_options *options, const invar_device *dev)
{
    void *const moments[INVAR_OFFLOAD_ARRAYS] = {optimizer->memory,
                                                 optimizer->memory + optimizer->own.bytes};
    step s = {.optimizer = optimizer,
              .model = model,
              .grads = grads,
              .clip = clip,
              .lr = lr,
              .digests = digests && invar_optimizer_hashes(optimizer),
              .options = options};
    invar_status status;

    invar_caller_init(&s.caller, dev);
    optimizer->beta1_power *= options->beta1;
    optimizer->beta2_power *= options->beta2;
    optimizer->steps++;
    drop(optimizer);
    status = optimizer->offload ? invar_offload_run(optimizer->offload, moments, update_range, &s)
                                : update_range(&s, 0, optimizer->own.bytes, moments);
    invar_caller_release(&s.caller);
    return status == INVAR_OK && optimizer->layout ? gather_masters(optimizer, model, dev) : status;
}

bool invar_optimizer_hashes(const invar_optimizer *optimizer)
{
    return optimizer->digests != NULL;
}

invar_status invar_optimizer_digests(invar_digest *out, const invar_optimizer *optimizer,
                                     const invar_model *model)
{
    size_t count = (size_t)model->n_params;
    invar_digest *ordered;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&ordered, count, sizeof *ordered, "digests of masters"));
    status =
        invar_device_get(&optimizer->dev, ordered, optimizer->digests, count * sizeof *ordered);
    for (int64_t k = 0; k < model->n_params && status == INVAR_OK; k++)
        out[model->order[k]] = ordered[k];
    invar_free(ordered);
    return status;
}
