/*
 * optimizer.c - AdamW over a model: layout of the moments, checkpoint access, and the step.
 *
 * Masters, moments and gradients of the owned rows are in the same order, in which parameters
 * follow each other at aligned offsets. A step merges neighbors that are contiguous in every array
 * into one op call; AdamW is elementwise, so neither merging nor offload chunks change a bit.
 * Compute weights that are quantized in blocks are written after the last element of their
 * parameter.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/optimizer.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/op_runner.h"
#include "engine/model/shard/master_weights.h"
#include "engine/model/shard/param_loader.h"

#include "base/invar_banned.h"

static size_t row_bytes(const invar_param *p)
{
    return (size_t)invar_param_row_elements(p) * sizeof(float);
}

/* Returns the bytes of one moment of a parameter, for the rows that this rank owns. */
static size_t local_moment_bytes(const invar_model *model, int64_t param)
{
    return (size_t)invar_zero_partition_local_rows(model, param).count *
           row_bytes(&model->params[param]);
}

static invar_status alloc_moments(invar_optimizer *o, size_t piece)
{
    static const char what[] = "the optimizer's moments";
    void *memory = NULL;

    if (o->local_bytes == 0) { // a rank may own no row of a small model
        INVAR_TRY(invar_device_alloc(&o->dev, &memory, INVAR_ALIGN, what));
    } else if (piece == 0) {
        INVAR_TRY(invar_device_alloc(&o->dev, &memory, 2 * o->local_bytes, what));
    } else {
        INVAR_TRY(invar_offload_new(&o->offload, &o->dev, o->local_bytes, piece));
        INVAR_TRY(invar_device_alloc_host(&o->dev, &memory, 2 * o->local_bytes, what));
    }
    o->memory = memory;
    return INVAR_OK;
}

/* Sets the addresses of all moments: m from `first` on, v after it. NULL clears them. */
static void set_moment_addresses(invar_optimizer *o, char *first)
{
    for (int64_t i = 0; i < o->params; i++) {
        o->m[i].data = first ? first + o->full_offsets[i] : NULL;
        o->v[i].data = first ? first + o->full_bytes + o->full_offsets[i] : NULL;
    }
}

/*
 * Computes all offsets. Moments have the offsets of the masters, since both cover the owned rows.
 */
static void compute_offsets(invar_optimizer *o, const invar_model *model)
{
    for (int64_t k = 0; k < model->n_params; k++) {
        int64_t i = model->order[k];
        const invar_param *p = &model->params[i];

        o->m[i] = o->v[i] = invar_param_local_tensor(p, NULL);
        o->full_offsets[i] = o->full_bytes;
        o->offsets[i] = o->local_bytes;
        INVAR_CHECK(p->master.shape[0] == invar_zero_partition_local_rows(model, i).count);
        o->full_bytes += invar_aligned((size_t)invar_param_elements(p) * sizeof(float));
        o->local_bytes += invar_aligned(local_moment_bytes(model, i));
    }
}

static invar_status alloc_optimizer(invar_optimizer *o, const invar_model *model, size_t piece)
{
    size_t count = (size_t)model->n_params;

    INVAR_TRY(INVAR_ALLOC(o->m, count, "the list of moments"));
    INVAR_TRY(INVAR_ALLOC(o->v, count, "the list of moments"));
    INVAR_TRY(INVAR_ALLOC(o->offsets, 2 * count, "the list of moments"));
    o->full_offsets = o->offsets + count;
    INVAR_TRY(INVAR_ALLOC(o->ends, count, "the ends of masters"));
    compute_offsets(o, model);
    INVAR_TRY(alloc_moments(o, piece));
    set_moment_addresses(o, o->divided ? NULL : o->memory);
    if (!o->offload && !o->divided && !invar_model_is_cut(model))
        INVAR_TRY(invar_device_alloc(&o->dev, (void **)&o->digests, count * sizeof *o->digests,
                                     "digests of masters"));
    return INVAR_OK;
}

invar_status invar_optimizer_new(invar_optimizer **out, const invar_model *model,
                                 size_t chunk_bytes)
{
    invar_optimizer *o = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(o, 1, "an optimizer"));
    *o = (invar_optimizer){.params = model->n_params,
                           .dev = model->dev,
                           .divided = invar_zero_partition_is_divided(model)};
    status = alloc_optimizer(o, model, chunk_bytes);
    if (status == INVAR_OK)
        status = invar_optimizer_reset(o);
    if (status != INVAR_OK) {
        invar_optimizer_free(o);
        return status;
    }
    *out = o;
    return INVAR_OK;
}

const invar_device *invar_optimizer_device(const invar_optimizer *optimizer)
{
    return optimizer->offload || optimizer->divided ? NULL : &optimizer->dev;
}

void invar_optimizer_free(invar_optimizer *optimizer)
{
    if (!optimizer)
        return;
    invar_free(optimizer->m);
    invar_free(optimizer->v);
    invar_free(optimizer->offsets);
    invar_free(optimizer->ends);
    invar_free(optimizer->collected);
    invar_device_free(&optimizer->dev, optimizer->digests);
    if (optimizer->offload)
        invar_device_free_host(&optimizer->dev, optimizer->memory);
    else
        invar_device_free(&optimizer->dev, optimizer->memory);
    invar_offload_free(optimizer->offload);
    invar_free(optimizer);
}

/* Frees the collected moments: they are about to become outdated. */
static void free_collected(invar_optimizer *o)
{
    invar_free(o->collected);
    o->collected = NULL;
    if (o->divided)
        set_moment_addresses(o, NULL);
}

invar_status invar_optimizer_reset(invar_optimizer *optimizer)
{
    size_t bytes = 2 * optimizer->local_bytes;

    optimizer->beta1_power = optimizer->beta2_power = 1.0f;
    optimizer->steps = 0;
    free_collected(optimizer);
    if (bytes == 0)
        return INVAR_OK;
    if (!optimizer->offload)
        return invar_device_zero(&optimizer->dev, optimizer->memory, bytes);
    if (!optimizer->dev.backend->memory.dry_run)
        memset(optimizer->memory, 0, bytes);
    return INVAR_OK;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* Returns the device whose memory this rank's moments are in, NULL for host memory. */
static const invar_device *local_moment_device(const invar_optimizer *o)
{
    return o->offload ? NULL : &o->dev;
}

static invar_status collect_moments(invar_optimizer *o, invar_zero_comm *comm)
{
    char *m = NULL, *v = NULL;

    if (comm->plan.rank == 0) {
        INVAR_TRY(INVAR_ALLOC_SIZED(o->collected, 2, o->full_bytes, "moments of all ranks"));
        m = o->collected;
        v = o->collected + o->full_bytes;
    }
    INVAR_TRY(invar_zero_comm_collect(comm, "first moments", m, o->memory, true));
    INVAR_TRY(invar_zero_comm_collect(comm, "second moments", v, o->memory + o->local_bytes, true));
    set_moment_addresses(o, m);
    return INVAR_OK;
}

invar_status invar_optimizer_collect(invar_optimizer *optimizer, const invar_model *model)
{
    invar_zero_comm comm;
    invar_status status;

    if (!optimizer->divided)
        return INVAR_OK;
    free_collected(optimizer);
    status = invar_full_masters_comm_init(&comm, model, local_moment_device(optimizer));
    if (status == INVAR_OK)
        status = collect_moments(optimizer, &comm);
    invar_zero_comm_release(&comm);
    return status;
}

invar_status invar_optimizer_load(invar_optimizer *optimizer, const invar_model *model,
                                  int64_t param, bool second, const float *values)
{
    const invar_optimizer *o = optimizer;
    invar_index_range rows = invar_zero_partition_local_rows(model, param);
    size_t each = row_bytes(&model->params[param]), bytes = (size_t)rows.count * each;
    const char *source = (const char *)values + (size_t)rows.first * each;
    char *there = o->memory + (second ? o->local_bytes : 0) + o->offsets[param];

    free_collected(optimizer);
    if (bytes == 0)
        return INVAR_OK;
    if (local_moment_device(o))
        return invar_device_upload(&o->dev, there, source, bytes);
    memcpy(there, source, bytes);
    return INVAR_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct adamw_step {
    invar_op_runner caller;
    const invar_optimizer *optimizer;
    const invar_model *model;
    const invar_grads *grads;
    float clip, lr;
    bool digests;
    const invar_adamw_options *options;
} adamw_step;

/* Elements that one op call updates: of one parameter, or of several that are contiguous. */
typedef struct update_span {
    invar_tensor weight; /* zeroed if ops read the master or a quantization of it */
    invar_tensor master, m, v, grad;
    float decay;
    /* the parameters: `tensors` in the order of memory, starting at index `first` */
    int64_t first, tensors;
} update_span;

static invar_tensor slice_tensor(const invar_tensor *t, int64_t first, int64_t count)
{
    size_t size = (size_t)invar_dtype_bits(t->dtype) / 8;

    return invar_tensor_1d((char *)t->data + (size_t)first * size, t->dtype, count);
}

static bool has_weight_decay(const invar_param *p)
{
    return p->kind != INVAR_PARAM_NORM && p->kind != INVAR_PARAM_BIAS;
}

static bool has_bf16_weight(const invar_param *p)
{
    return p->weight.dtype == INVAR_DTYPE_BF16;
}

/*
 * Returns the span of `count` elements of a parameter; `first` is relative to its owned elements.
 */
static update_span span_of_param(const adamw_step *s, int64_t place, int64_t first, int64_t count,
                                 void *m, void *v)
{
    int64_t i = s->model->order[place];
    const invar_param *p = &s->model->params[i];
    int64_t before = p->master_row * invar_param_row_elements(p);
    update_span out = {.master = slice_tensor(&p->master, first, count),
                       .m = invar_tensor_1d(m, INVAR_DTYPE_F32, count),
                       .v = invar_tensor_1d(v, INVAR_DTYPE_F32, count),
                       .grad = slice_tensor(&s->grads->tensors[i], before + first, count),
                       .decay = has_weight_decay(p) ? s->options->weight_decay : 0.0f,
                       .first = place,
                       .tensors = 1};

    if (has_bf16_weight(p))
        out.weight = slice_tensor(&p->weight, before + first, count);
    return out;
}

static bool is_adjacent(const invar_tensor *a, const invar_tensor *b)
{
    size_t bytes = (size_t)a->shape[0] * (size_t)invar_dtype_bits(a->dtype) / 8;

    return a->dtype == b->dtype && (char *)a->data + bytes == (char *)b->data;
}

/*
 * Appends `b` to `a` if it follows `a` in every array and has the same decay; else returns false.
 */
static bool extend_span(update_span *a, const update_span *b)
{
    invar_tensor *as[] = {&a->master, &a->m, &a->v, &a->grad, &a->weight};
    const invar_tensor *bs[] = {&b->master, &b->m, &b->v, &b->grad, &b->weight};
    bool weights = invar_tensor_present(&a->weight);
    size_t count = weights ? 5 : 4;

    if (a->decay != b->decay || weights != invar_tensor_present(&b->weight) ||
        a->first + a->tensors != b->first)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!is_adjacent(as[i], bs[i]))
            return false;
    for (size_t i = 0; i < count; i++)
        *as[i] = invar_tensor_1d(as[i]->data, as[i]->dtype, as[i]->shape[0] + bs[i]->shape[0]);
    a->tensors += b->tensors;
    return true;
}

static invar_status update_elements(adamw_step *s, const update_span *p)
{
    const invar_optimizer *o = s->optimizer;
    const invar_adamw_options *options = s->options;

    if (!invar_tensor_present(&p->master)) // no parameter has been added yet
        return INVAR_OK;
    return INVAR_CALL(
        &s->caller, ADAMW, adamw, .weight = p->weight, .master = p->master, .m = p->m, .v = p->v,
        .grad = p->grad, .clip = s->clip, .lr = s->lr, .beta1 = options->beta1,
        .beta2 = options->beta2, .eps = options->eps, .weight_decay = p->decay,
        .beta1_power = o->beta1_power, .beta2_power = o->beta2_power,
        .digest = s->digests ? &o->digests[p->first] : NULL,
        .end = s->digests ? &o->ends[p->first] : NULL, .tensors = s->digests ? p->tensors : 0);
}

/* Writes a compute weight that is quantized in blocks. Call after its last element was updated. */
static invar_status quantize_weight(adamw_step *s, int64_t param)
{
    const invar_param *p = &s->model->params[param];

    if (has_bf16_weight(p) || p->weight.dtype == INVAR_DTYPE_F32)
        return INVAR_OK;
    return invar_param_loader_weight(&s->caller, p, p->master_row, &p->master);
}

/* Quantizes the parameters whose last element has its moments among these bytes. */
static invar_status quantize_range(adamw_step *s, size_t first, size_t bytes)
{
    for (int64_t k = 0; k < s->model->n_params; k++) {
        int64_t i = s->model->order[k];
        size_t begin = s->optimizer->offsets[i];
        size_t end = begin + local_moment_bytes(s->model, i);
        if (begin < end && first < end && end <= first + bytes)
            INVAR_TRY(quantize_weight(s, i));
    }
    return INVAR_OK;
}

/* Updates all elements whose moments are among these bytes of the local m and v. */
static invar_status update_range(void *payload, size_t first, size_t bytes,
                                 void *const there[INVAR_OFFLOAD_ARRAYS])
{
    adamw_step *s = payload;
    const invar_optimizer *o = s->optimizer;
    update_span run = {0};

    for (int64_t k = 0; k < s->model->n_params; k++) {
        int64_t i = s->model->order[k];
        size_t begin = o->offsets[i], end = begin + local_moment_bytes(s->model, i);
        size_t from = begin > first ? begin : first;
        size_t to = end < first + bytes ? end : first + bytes;

        if (from < to) {
            update_span next =
                span_of_param(s, k, (int64_t)((from - begin) / sizeof(float)),
                              (int64_t)((to - from) / sizeof(float)),
                              (char *)there[0] + (from - first), (char *)there[1] + (from - first));
            if (!extend_span(&run, &next)) {
                INVAR_TRY(update_elements(s, &run));
                run = next;
            }
            o->ends[k] = run.master.shape[0];
        }
    }
    INVAR_TRY(update_elements(s, &run));
    return quantize_range(s, first, bytes);
}

invar_status invar_optimizer_step(invar_optimizer *optimizer, invar_model *model,
                                  const invar_grads *grads, float clip, float lr, bool digests,
                                  const invar_adamw_options *options, const invar_device *dev)
{
    void *const moments[INVAR_OFFLOAD_ARRAYS] = {optimizer->memory,
                                                 optimizer->memory + optimizer->local_bytes};
    adamw_step s = {.optimizer = optimizer,
                    .model = model,
                    .grads = grads,
                    .clip = clip,
                    .lr = lr,
                    .digests = digests && invar_optimizer_can_hash(optimizer),
                    .options = options};
    invar_status status;

    invar_op_runner_init(&s.caller, dev);
    optimizer->beta1_power *= options->beta1;
    optimizer->beta2_power *= options->beta2;
    optimizer->steps++;
    free_collected(optimizer);
    status = optimizer->offload ? invar_offload_run(optimizer->offload, moments, update_range, &s)
                                : update_range(&s, 0, optimizer->local_bytes, moments);
    invar_op_runner_release(&s.caller);
    return status == INVAR_OK ? invar_weights_gather(model)
                              : status; // compute weights of the rows that other ranks own
}

bool invar_optimizer_can_hash(const invar_optimizer *optimizer)
{
    return optimizer->digests != NULL;
}

invar_status invar_optimizer_digests(invar_digest *out, const invar_optimizer *optimizer,
                                     const invar_model *model)
{
    size_t count = (size_t)model->n_params;
    invar_digest *ordered;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(ordered, count, "digests of masters"));
    status = invar_device_download(&optimizer->dev, ordered, optimizer->digests,
                                   count * sizeof *ordered);
    for (int64_t k = 0; k < model->n_params && status == INVAR_OK; k++)
        out[model->order[k]] = ordered[k];
    invar_free(ordered);
    return status;
}
