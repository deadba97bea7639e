/*
 * model.c - the memory of parameters, their first values and their compute form.
 *
 * Initialisation, normative: value i of parameter p is std * z, where z is a normal number made by
 * Box and Muller in double from Philox with counter (i / 4 low, i / 4 high, p, 0) and key
 * (seed, 2): words 0 and 1 give z of i % 4 = 0 and 1, words 2 and 3 the other two;
 * u = (w + 0.5) * 2^-32, z = sqrt(-2 log u_a) * cos(2 pi u_b), then sin; rounded to f32, times std.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/carve.h"
#include "engine/model/decoder.h"
#include "engine/model/digests.h"
#include "engine/model/pieces.h"
#include "engine/model/shard/owners.h"
#include "engine/program/call.h"
#include "engine/program/near.h"
#include "kernels-deterministic/math/elementary_f64.h"
#include "kernels-deterministic/math/philox.h"

#include "base/invar_banned.h"

#define PURPOSE_INIT 2

/* ---- formats --------------------------------------------------------------------------------- */

typedef struct format_facts {
    invar_dtype storage;
    invar_dtype linear; /* of the linear layers' weights */
    int32_t scale_rows;
    int64_t in_block; /* what the extents of a linear layer are multiples of */
    int64_t out_block;
} format_facts;

#define STEP_GROUP 16 /* q, k, v and gate, up are one chain in dx: a part ends with a whole group */

static const format_facts formats[INVAR_FORMAT_COUNT] = {
#define INVAR_FORMAT(ID, NAME, ...) [INVAR_FORMAT_##ID] = {__VA_ARGS__},
#include "engine/model/formats.def"
#undef INVAR_FORMAT
};

static const char *const names[INVAR_FORMAT_COUNT] = {
#define INVAR_FORMAT(ID, NAME, ...) [INVAR_FORMAT_##ID] = (NAME),
#include "engine/model/formats.def"
#undef INVAR_FORMAT
};

const invar_choices invar_format_choices = {names, INVAR_FORMAT_COUNT};

const char *invar_format_name(invar_format format)
{
    return invar_choices_word(&invar_format_choices, (int)format);
}

invar_dtype invar_format_storage(invar_format format)
{
    return formats[format].storage;
}

int64_t invar_format_head_block(invar_format format)
{
    int64_t block = invar_dtype_scale_block(formats[format].linear);

    return block > STEP_GROUP ? block : STEP_GROUP;
}

static bool quantised_kind(const invar_param *p)
{
    return p->kind == INVAR_PARAM_LINEAR || p->kind == INVAR_PARAM_EXPERT;
}

/* The first parameter whose extents the format cannot have; NULL: all fit. */
static const invar_param *find_misfit(const invar_model *model, invar_format format)
{
    const format_facts *f = &formats[format];

    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        if (quantised_kind(p) && (p->cols % f->in_block || p->rows % f->out_block))
            return p;
    }
    return NULL;
}

static invar_status check_extents(const invar_model *model, invar_format format)
{
    const invar_param *p = find_misfit(model, format);
    const format_facts *f = &formats[format];
    const char *fit[INVAR_FORMAT_COUNT]; // fp32 fits every model
    char fitting[INVAR_CHOICES_TEXT_SIZE];

    if (!p)
        return INVAR_OK;
    for (int i = 0; i < INVAR_FORMAT_COUNT; i++)
        fit[i] = find_misfit(model, (invar_format)i) ? NULL : names[i];
    invar_choices_text(fitting, sizeof fitting, &(invar_choices){fit, INVAR_FORMAT_COUNT}, ", ",
                       ", ");
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                      "%s is %" PRId64 " x %" PRId64 "; %s needs multiples of %" PRId64
                      " x %" PRId64 "; this model can have dtype %s",
                      p->name, p->rows, p->cols, names[format], f->out_block, f->in_block, fitting);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_tensor carve_tensor(invar_carver *c, invar_dtype dtype, int64_t rows, int64_t cols)
{
    int64_t count = rows * (cols ? cols : 1);
    void *data = invar_carve(c, (size_t)count * (size_t)invar_dtype_bits(dtype) / 8);

    return cols ? invar_tensor_2d(data, dtype, rows, cols) : invar_tensor_1d(data, dtype, rows);
}

/* Of a linear layer, or of all experts: each begins its scale blocks anew. */
static invar_tensor carve_weight(invar_carver *c, const format_facts *f, const invar_param *p)
{
    invar_tensor t = carve_tensor(c, f->linear, p->own.experts * p->own.rows, p->own.cols);

    t.scale_rows = f->scale_rows;
    if (t.scale_rows > 1 && p->stack > 1)
        t.scale_period = (int32_t)p->own.rows;
    if (invar_dtype_scale_block(t.dtype))
        t.scale = invar_carve(c, invar_tensor_scale_bytes(&t));
    return t;
}

static invar_tensor carve_own(invar_carver *c, invar_dtype dtype, const invar_param *p)
{
    return carve_tensor(c, dtype, p->own.experts * p->own.rows, p->own.cols);
}

static void lay_out(invar_model *model, invar_carver *c)
{
    const format_facts *f = &formats[model->format];
    int64_t positions = model->spec.max_positions, half = model->spec.head_dim / 2;

    // masters beside masters, weights beside weights: the optimizer takes neighbours together
    for (int64_t i = 0; i < model->n_params; i++) {
        invar_param *p = &model->params[model->order[i]];
        if (p->own.experts > 0 && (!model->weights_alone || model->format == INVAR_FORMAT_FP32))
            p->master = carve_own(c, INVAR_DTYPE_F32, p);
    }
    for (int64_t i = 0; i < model->n_params; i++) {
        invar_param *p = &model->params[model->order[i]];
        if (p->own.experts == 0)
            continue;
        if (model->format == INVAR_FORMAT_FP32)
            p->weight = p->master;
        else if (quantised_kind(p))
            p->weight = carve_weight(c, f, p);
        else
            p->weight = carve_own(c, f->storage, p);
    }
    model->cosine = carve_tensor(c, INVAR_DTYPE_F32, positions, half);
    model->sine = carve_tensor(c, INVAR_DTYPE_F32, positions, half);
}

/* What is decayed lies together, and so does what is not. */
static void order_memory(invar_model *model)
{
    int64_t count = 0;

    for (int vectors = 0; vectors < 2; vectors++)
        for (int64_t i = 0; i < model->n_params; i++)
            if ((model->params[i].cols == 0) == (vectors == 1))
                model->order[count++] = i;
}

/* Places in a block of gradients: as in memory, then the tied head's. */
static void lay_out_grads(invar_model *model)
{
    bool tied = model->head == model->embedding;
    uintptr_t next = 0;

    for (int64_t i = 0; i <= model->n_params; i++) {
        const invar_param *of = i < model->n_params ? &model->params[model->order[i]] : model->head;
        invar_tensor *grad =
            i < model->n_params ? &model->params[model->order[i]].grad : &model->tied_grad;
        if (i == model->n_params && !tied)
            break;
        *grad = of->master;
        grad->data = (void *)next; // an offset
        next += (size_t)invar_param_elements(of) * sizeof(float);
        if (i < model->n_params) // the tied head's gradient is that of a product
            next += (size_t)(invar_param_spare_rows(of) * of->own.cols) * sizeof(float);
        next = invar_aligned(next);
    }
    model->grad_bytes = next;
}

static void link_params(invar_model *model)
{
    int64_t layers = model->spec.layers, next = 1;

    for (int64_t i = 0; i < layers; i++) {
        model->first[i] = next;
        while (model->params[next].layer == i)
            next++;
    }
    model->first[layers] = next;
    model->embedding = model->params;
    model->norm = &model->params[next];
    model->head =
        model->spec.tied && !model->spec.value_head ? model->embedding : &model->params[next + 1];
}

static invar_status allocate(invar_model *model)
{
    invar_carver c = {NULL, 0};

    lay_out(model, &c);
    INVAR_TRY(invar_device_take(&model->dev, &model->memory, c.used, "the model's parameters"));
    c = (invar_carver){model->memory, 0};
    lay_out(model, &c);
    return INVAR_OK;
}

static invar_status make_rope(invar_model *model, const invar_device *dev)
{
    const invar_rope_spec *r = &model->spec.rope;
    invar_caller caller;
    invar_status status;

    invar_caller_init(&caller, dev);
    status =
        INVAR_CALL(&caller, ROPE_TABLE, rope_table, .cosine = model->cosine, .sine = model->sine,
                   .theta = r->theta, .scaling = r->scaling, .factor = r->factor,
                   .low_freq_factor = r->low_freq_factor, .high_freq_factor = r->high_freq_factor,
                   .original_context = r->original_context);
    invar_caller_release(&caller);
    return status;
}

/* All that is known of parameters but their memory. */
static invar_status declare(invar_model *model)
{
    const invar_model_spec *spec = &model->spec;
    int64_t count;

    INVAR_TRY(invar_decoder_declare(&count, NULL, spec, model->format));
    INVAR_TRY(invar_alloc((void **)&model->params, (size_t)count, sizeof *model->params,
                          "the list of parameters"));
    INVAR_TRY(invar_alloc((void **)&model->order, (size_t)count, sizeof *model->order,
                          "the order of parameters"));
    INVAR_TRY(invar_alloc((void **)&model->first, (size_t)spec->layers + 1, sizeof *model->first,
                          "the list of layers"));
    INVAR_TRY(invar_decoder_declare(&model->n_params, model->params, spec, model->format));
    order_memory(model);
    link_params(model);
    INVAR_TRY(invar_model_part_check(&model->part, spec, model->params, model->n_params,
                                     invar_dtype_scale_block(formats[model->format].linear) > 0));
    for (int64_t i = 0; i < model->n_params; i++)
        model->params[i].own = invar_model_part_box(&model->part, spec, &model->params[i]);
    return check_extents(model, model->format);
}

static invar_status make(invar_model **out, const invar_model_spec *spec, invar_format format,
                         const invar_layout *layout, const invar_device *dev, bool weights_alone)
{
    invar_model *model = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_model_spec_check(spec));
    INVAR_TRY(invar_alloc((void **)&model, 1, sizeof *model, "a model"));
    *model = (invar_model){
        .spec = *spec,
        .format = format,
        .storage = invar_format_storage(format),
        .weights_alone = weights_alone,
        .layout = layout,
        .part = invar_model_part_of(layout, layout ? invar_comm_rank(layout->world) : 0),
        .dev = *dev};
    model->dev.scratch = NULL;
    status = declare(model);
    if (status == INVAR_OK)
        status = allocate(model);
    if (status == INVAR_OK) {
        lay_out_grads(model);
        status = invar_owners_make(model);
    }
    if (status == INVAR_OK)
        status = make_rope(model, dev);
    if (status != INVAR_OK) {
        invar_model_free(model);
        return status;
    }
    *out = model;
    return INVAR_OK;
}

invar_status invar_model_new(invar_model **out, const invar_model_spec *spec, invar_format format,
                             const invar_layout *layout, const invar_device *dev)
{
    return make(out, spec, format, layout, dev, false);
}

invar_status invar_model_new_weights(invar_model **out, const invar_model_spec *spec,
                                     invar_format format, const invar_layout *layout,
                                     const invar_device *dev)
{
    return make(out, spec, format, layout, dev, true);
}

void invar_model_free(invar_model *model)
{
    if (!model)
        return;
    invar_free(model->params);
    invar_free(model->owners);
    invar_free(model->order);
    invar_free(model->first);
    invar_device_give(&model->dev, model->memory);
    invar_free(model);
}

/* ---- values ---------------------------------------------------------------------------------- */

#define INIT_PIECE 65536 /* values a task makes, a multiple of 4 */

typedef struct init_job {
    float *out;
    int64_t count;
    invar_box_runs runs; /* of what is here of the parameter */
    uint32_t param, seed;
    float std;
} init_job;

/* Two normal numbers from two words. */
static void normal_pair(float out[2], uint32_t a, uint32_t b)
{
    double u = ((double)a + 0.5) * 0x1p-32, v = ((double)b + 0.5) * 0x1p-32;
    double radius = sqrt(-2.0 * invar_log_f64(u)), angle = 0x1.921fb54442d18p2 * v;

    out[0] = (float)(radius * invar_cos_f64(angle));
    out[1] = (float)(radius * invar_sin_f64(angle));
}

/* Values [first, first + count) of the whole parameter. */
static void fill_values(float *out, const init_job *job, int64_t first, int64_t count)
{
    for (int64_t i = first; i < first + count;) {
        uint64_t block = (uint64_t)i / 4;
        uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), job->param, 0};
        uint32_t key[2] = {job->seed, invar_philox_purpose(PURPOSE_INIT, 0)}, word[4];
        float z[4];

        invar_philox4x32(word, counter, key);
        normal_pair(z, word[0], word[1]);
        normal_pair(z + 2, word[2], word[3]);
        do
            out[i - first] = z[i % 4] * job->std;
        while (++i % 4 && i < first + count);
    }
}

static invar_status init_piece(void *payload, int64_t task, int worker)
{
    const init_job *job = payload;
    int64_t first = task * INIT_PIECE, end = first + INIT_PIECE, count;

    (void)worker;
    end = end < job->count ? end : job->count;
    for (int64_t i = first; i < end; i += count) {
        int64_t into = i % job->runs.length, left = job->runs.length - into;
        count = left < end - i ? left : end - i;
        fill_values(job->out + i, job, invar_box_run_at(&job->runs, i / job->runs.length) + into,
                    count);
    }
    return INVAR_OK;
}

/* The first values of parameter i of the model. */
static invar_status first_values(float *out, const invar_model *model, int64_t i, uint32_t seed,
                                 invar_pool *pool)
{
    const invar_param *p = &model->params[i];
    int64_t count = invar_param_elements(p);
    init_job job = {out,         count, invar_box_runs_of(p, &p->own),
                    (uint32_t)i, seed,  model->spec.init_std};

    if (p->kind == INVAR_PARAM_NORM || p->kind == INVAR_PARAM_BIAS) {
        for (int64_t j = 0; j < count; j++)
            out[j] = p->kind == INVAR_PARAM_NORM ? 1.0f : 0.0f;
        return INVAR_OK;
    }
    return invar_pool_run(pool, (count + INIT_PIECE - 1) / INIT_PIECE, init_piece, &job);
}

static invar_status init_param(invar_model *model, int64_t i, uint32_t seed, invar_window *window)
{
    const invar_param *p = &model->params[i];
    size_t bytes = (size_t)invar_param_elements(p) * sizeof(float);
    void *out;

    INVAR_TRY(invar_window_write(&out, window, p->master.data, bytes));
    INVAR_TRY(first_values(out, model, i, seed, window->dev->pool));
    return invar_window_store(window, p->master.data, bytes);
}

invar_status invar_model_init(invar_model *model, uint32_t seed, const invar_device *dev)
{
    invar_window window = {.dev = dev};
    invar_status status = INVAR_OK;

    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++)
        if (model->params[i].own.experts > 0)
            status = init_param(model, i, seed, &window);
    invar_window_release(&window);
    return status == INVAR_OK ? invar_model_refresh(model, dev) : status;
}

/* ---- the compute form ------------------------------------------------------------------------ */

/* As AdamW rounds: to nearest even. */
static invar_status round_master(invar_caller *caller, const invar_param *p)
{
    return INVAR_CALL(
        caller, QUANTISE, quantise,
        .q = invar_tensor_2d(p->weight.data, INVAR_DTYPE_BF16, 1, invar_param_elements(p)),
        .x = invar_tensor_2d(p->master.data, INVAR_DTYPE_F32, 1, invar_param_elements(p)));
}

invar_status invar_model_refresh(invar_model *model, const invar_device *dev)
{
    invar_caller caller;
    invar_status status = INVAR_OK;

    invar_caller_init(&caller, dev);
    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++) {
        const invar_param *p = &model->params[i];
        if (p->own.experts == 0)
            continue;
        if (p->weight.dtype == INVAR_DTYPE_BF16)
            status = round_master(&caller, p);
        else if (p->weight.dtype != INVAR_DTYPE_F32)
            status = INVAR_CALL(&caller, QUANTISE, quantise, .q = p->weight, .x = p->master);
    }
    invar_caller_release(&caller);
    return status;
}

static invar_status copy_param(const invar_param *to, const invar_param *from,
                               const invar_device *dev)
{
    size_t count = (size_t)invar_param_elements(to);
    size_t bytes = count * (size_t)invar_dtype_bits(to->weight.dtype) / 8;

    INVAR_TRY(invar_device_copy(dev, to->master.data, from->master.data, count * sizeof(float)));
    if (to->weight.data != to->master.data)
        INVAR_TRY(invar_device_copy(dev, to->weight.data, from->weight.data, bytes));
    if (!to->weight.scale)
        return INVAR_OK;
    return invar_device_copy(dev, to->weight.scale, from->weight.scale,
                             invar_tensor_scale_bytes(&to->weight));
}

invar_status invar_model_copy(invar_model *to, const invar_model *from)
{
    if (to->format != from->format || to->n_params != from->n_params)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "weights are copied between models of one kind only");
    for (int64_t i = 0; i < to->n_params; i++) {
        const invar_param *a = &to->params[i], *b = &from->params[i];
        if (a->stack != b->stack || a->rows != b->rows || a->cols != b->cols ||
            invar_param_elements(a) != invar_param_elements(b))
            return INVAR_FAIL(INVAR_E_INVALID, 0, "%s has other extents in the other model",
                              a->name);
    }
    for (int64_t i = 0; i < from->n_params; i++)
        if (to->params[i].own.experts > 0)
            INVAR_TRY(copy_param(&to->params[i], &from->params[i], &to->dev));
    return INVAR_OK;
}

size_t invar_model_weight_bytes(const invar_model *model)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        if (p->own.experts > 0)
            bytes +=
                (size_t)invar_param_elements(p) * (size_t)invar_dtype_bits(p->weight.dtype) / 8 +
                invar_tensor_scale_bytes(&p->weight);
    }
    return bytes;
}

bool invar_model_is_divided(const invar_model *model)
{
    return invar_model_part_ranks(&model->part) > 1;
}

bool invar_model_is_cut(const invar_model *model)
{
    if (invar_model_is_divided(model))
        return true;
    for (int64_t i = 0; i < model->n_params; i++)
        if (model->params[i].cut.pieces > 1)
            return true;
    return false;
}

invar_status invar_model_digests(invar_digest *out, const invar_model *model,
                                 const invar_tensor *of, const invar_device *dev)
{
    invar_status status = INVAR_OK;
    invar_digests digests;

    if (invar_model_is_divided(model))
        return invar_pieces_digests(out, model, of, false, dev);
    invar_digests_init(&digests, dev);
    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++) {
        const invar_param *p = &model->params[i];
        status = invar_digests_add_cut(&digests, of ? &of[i] : &p->master, &p->cut);
    }
    if (status == INVAR_OK)
        status = invar_digests_read(out, &digests);
    invar_digests_release(&digests);
    return status;
}

invar_status invar_model_digests_owned(invar_digest *out, const invar_model *model,
                                       const invar_tensor *of, const invar_device *dev)
{
    return invar_owners_divide(model) ? invar_pieces_digests(out, model, of, true, dev)
                                      : invar_model_digests(out, model, of, dev);
}

invar_status invar_model_hash(invar_digest *out, const invar_model *model, const invar_device *dev)
{
    invar_digest *of = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&of, (size_t)model->n_params, sizeof *of, "digests of weights"));
    status = invar_model_digests(of, model, NULL, dev);
    if (status == INVAR_OK)
        invar_hash_bytes(out, of, (size_t)model->n_params * sizeof *of);
    invar_free(of);
    return status;
}

int64_t invar_model_kv_heads(const invar_model *model)
{
    for (int64_t i = 0; i < model->n_params; i++)
        if (model->params[i].own.experts > 0 && strstr(model->params[i].name, "k_proj.weight"))
            return model->params[i].own.rows / model->spec.head_dim;
    return model->spec.kv_heads;
}

invar_param *invar_model_find(const invar_model *model, const char *name)
{
    for (int64_t i = 0; i < model->n_params; i++)
        if (strcmp(model->params[i].name, name) == 0)
            return &model->params[i];
    return NULL;
}
