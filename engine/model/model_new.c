/*
 * model_new.c - creates a model: declares its parameters and lays out their memory.
 *
 * Memory is laid out twice by the same function: once to count the bytes and once to assign
 * addresses. Weights come first and masters last, so an op graph that names parameters by offset
 * serves models with and without masters. A rejected layout gets advice: which logical sizes would
 * allow it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/block_carver.h"
#include "engine/model/decoder.h"
#include "engine/model/graph/op_runner.h"
#include "engine/model/lora/adapters.h"
#include "engine/model/shard/zero_partition.h"

#include "base/invar_banned.h"

/* ---- extents --------------------------------------------------------------------------------- */

static bool quantized_kind(const invar_param *p)
{
    return p->kind == INVAR_PARAM_LINEAR || p->kind == INVAR_PARAM_EXPERT;
}

/* Returns the first parameter whose extents the format does not support; NULL if all fit. */
static const invar_param *find_misfit(const invar_model *model, invar_format format)
{
    const invar_format_traits *f = invar_format_traits_of(format);

    for (int64_t i = 0; i < model->n_base; i++) {
        const invar_param *p = &model->base[i];
        if (quantized_kind(p) && (p->cols % f->in_block || p->rows % f->out_block))
            return p;
    }
    return NULL;
}

static invar_status check_extents(const invar_model *model, invar_format format)
{
    const invar_param *p = find_misfit(model, format);
    const invar_format_traits *f = invar_format_traits_of(format);
    const char *fit[INVAR_FORMAT_COUNT]; // fp32 fits every model
    char fitting[INVAR_CHOICES_TEXT_SIZE];

    if (!p)
        return INVAR_OK;
    for (int i = 0; i < INVAR_FORMAT_COUNT; i++)
        fit[i] = find_misfit(model, (invar_format)i) ? NULL : invar_format_name((invar_format)i);
    invar_choices_text(fitting, sizeof fitting, &(invar_choices){fit, INVAR_FORMAT_COUNT}, ", ",
                       ", ");
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                      "%s is %" PRId64 " x %" PRId64 "; %s needs multiples of %" PRId64
                      " x %" PRId64 "; this model can have dtype %s",
                      p->name, p->rows, p->cols, invar_format_name(format), f->out_block,
                      f->in_block, fitting);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_tensor carve_tensor(invar_carver *c, invar_dtype dtype, int64_t rows, int64_t cols)
{
    int64_t count = rows * (cols ? cols : 1);
    void *data = invar_carve(c, (size_t)count * (size_t)invar_dtype_bits(dtype) / 8);

    return cols ? invar_tensor_2d(data, dtype, rows, cols) : invar_tensor_1d(data, dtype, rows);
}

/*
 * Carves the weight of a linear layer or of a stack of experts. Scale blocks start again with each
 * expert.
 */
static invar_tensor carve_weight(invar_carver *c, const invar_format_traits *f,
                                 const invar_param *p)
{
    invar_tensor t = carve_tensor(c, f->linear, p->local.experts * p->local.rows, p->local.cols);

    t.scale_rows = f->scale_rows;
    if (t.scale_rows > 1 && p->stack > 1)
        t.scale_period = (int32_t)p->local.rows;
    if (invar_dtype_scale_block(t.dtype))
        t.scale = invar_carve(c, invar_tensor_scale_bytes(&t));
    return t;
}

/* Carves the tensor that ops read of a parameter. */
static invar_tensor carve_compute(invar_carver *c, const invar_format_traits *f,
                                  const invar_param *p)
{
    return quantized_kind(p) ? carve_weight(c, f, p)
                             : carve_tensor(c, f->storage, invar_param_rows(p), p->local.cols);
}

/* Carves the master of the rows that this rank owns. */
static void carve_master(invar_carver *c, const invar_model *model, int64_t param)
{
    invar_param *p = &model->params[param];
    invar_index_range own = invar_zero_partition_local_rows(model, param);

    if (own.count == 0)
        return;
    p->master = carve_tensor(c, INVAR_DTYPE_F32, own.count, p->local.cols);
    p->master_row = own.first;
}

/* Sets the master to rows of the weight, if weights are f32. */
static void alias_master(const invar_model *model, int64_t param)
{
    invar_param *p = &model->params[param];
    invar_index_range own = invar_zero_partition_local_rows(model, param);

    if (own.count == 0)
        return;
    p->master = invar_tensor_rows(&p->weight, own.first, own.count);
    p->master_row = own.first;
}

static void carve_params(invar_model *model, invar_carver *c)
{
    const invar_format_traits *f = invar_format_traits_of(model->format);
    int64_t positions = model->spec.max_positions, half = model->spec.attention.head_dim / 2;
    bool apart = model->format != INVAR_FORMAT_FP32;

    // masters are adjacent, and so are weights: the optimizer updates neighbors in one call
    for (int64_t i = 0; i < model->n_params; i++) {
        invar_param *p = &model->params[model->order[i]];
        if (p->local.experts > 0)
            p->weight = carve_compute(c, f, p);
        if (!apart)
            alias_master(model, model->order[i]);
    }
    model->rope.cosine = carve_tensor(c, INVAR_DTYPE_F32, positions, half);
    model->rope.sine = carve_tensor(c, INVAR_DTYPE_F32, positions, half);
    model->memory.masters = invar_carve(c, 0); // last: op graphs serve models without masters too
    for (int64_t i = 0; apart && !model->no_masters && i < model->n_params; i++)
        carve_master(c, model, model->order[i]);
}

static void carve_base(invar_model *model, invar_carver *c)
{
    const invar_format_traits *f = invar_format_traits_of(model->format);

    for (int64_t i = 0; i < model->n_base; i++)
        if (model->base[i].local.experts > 0)
            model->base[i].weight = carve_compute(c, f, &model->base[i]);
}

invar_tensor invar_model_carve_weight(invar_carver *c, const invar_model *model,
                                      const invar_param *p)
{
    return carve_compute(c, invar_format_traits_of(model->format), p);
}

/* Orders matrices before vectors, so that parameters with weight decay are adjacent. */
static void order_memory(invar_model *model)
{
    int64_t count = 0;

    for (int vectors = 0; vectors < 2; vectors++)
        for (int64_t i = 0; i < model->n_params; i++)
            if ((model->params[i].cols == 0) == (vectors == 1))
                model->order[count++] = i;
}

/* Assigns offsets in a block of gradients in the order of memory; a tied head comes last. */
static void assign_grad_offsets(invar_model *model)
{
    bool tied = model->head == model->embedding && !invar_model_is_adapted(model);
    uintptr_t next = 0;

    for (int64_t i = 0; i <= model->n_params; i++) {
        const invar_param *of = i < model->n_params ? &model->params[model->order[i]] : model->head;
        invar_tensor *grad =
            i < model->n_params ? &model->params[model->order[i]].grad : &model->tied_grad;
        if (i == model->n_params && !tied)
            break;
        if (of->local.experts > 0)
            *grad = invar_param_local_tensor(of, (void *)next); // offset, not an address
        next += (size_t)invar_param_elements(of) * sizeof(float);
        // a tied head's gradient comes from a product and needs no spare rows
        if (i < model->n_params)
            next += (size_t)(invar_param_spare_rows(of) * of->local.cols) * sizeof(float);
        next = invar_aligned(next);
    }
    model->grad_bytes = next;
}

static void link_params(invar_model *model)
{
    int64_t layers = model->spec.layers, next = 1;

    for (int64_t i = 0; i < layers; i++) {
        model->first[i] = next;
        while (model->base[next].layer == i)
            next++;
    }
    model->first[layers] = next;
    model->embedding = model->base;
    model->norm = &model->base[next];
    model->head =
        model->spec.tied && !model->spec.value_head ? model->embedding : &model->base[next + 1];
}

static invar_status alloc_params(invar_model *model)
{
    invar_carver c = {NULL, 0};

    carve_params(model, &c);
    INVAR_TRY(
        invar_device_alloc(&model->dev, &model->memory.trained, c.used, "the model's parameters"));
    c = (invar_carver){model->memory.trained, 0};
    carve_params(model, &c);
    return INVAR_OK;
}

/* Allocates the frozen base, or shares the one of `beside`. */
static invar_status allocate_base(invar_model *model, const invar_model *beside)
{
    invar_carver c = {NULL, 0};

    for (int64_t i = 0; beside && i < model->n_base; i++)
        model->base[i].weight = beside->base[i].weight;
    if (beside) {
        model->memory.base = beside->memory.base;
        model->memory.base_borrowed = true;
        return INVAR_OK;
    }
    carve_base(model, &c);
    INVAR_TRY(invar_device_alloc(&model->dev, &model->memory.base, c.used, "the frozen base"));
    c = (invar_carver){model->memory.base, 0};
    carve_base(model, &c);
    return INVAR_OK;
}

static invar_status make_rope(invar_model *model, const invar_device *dev)
{
    const invar_rope_spec *r = &model->spec.rope;
    INVAR_AUTO(invar_op_runner_release) invar_op_runner runner;

    invar_op_runner_init(&runner, dev);
    return INVAR_CALL(&runner, ROPE_TABLE, rope_table, .cosine = model->rope.cosine,
                      .sine = model->rope.sine, .theta = r->theta, .scaling = r->scaling,
                      .factor = r->factor, .low_freq_factor = r->low_freq_factor,
                      .high_freq_factor = r->high_freq_factor,
                      .original_context = r->original_context);
}

/* Replaces the parameters by those of the adapters; the base follows them. */
static invar_status declare_adapters(invar_model *model)
{
    const invar_lora_spec *lora = &model->spec.lora;
    int64_t count = invar_adapters_count(model->base, model->n_base, lora);

    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(invar_adapters_check(model->base, model->n_base, lora));
    model->base = model->params + count;
    memmove(model->base, model->params, (size_t)model->n_base * sizeof *model->params);
    model->n_params = count;
    return invar_adapters_declare(model->params, model->base, model->n_base, lora);
}

/* Lists the parameters in canonical order and links the special ones. */
static invar_status list_params(invar_model *model)
{
    const invar_model_spec *spec = &model->spec;
    int64_t count;

    INVAR_TRY(invar_decoder_declare(&count, NULL, spec, model->format));
    count *= spec->lora.rank > 0 ? 3 : 1; // each parameter has at most two of an adapter
    INVAR_TRY(INVAR_ALLOC(model->params, (size_t)count, "the list of parameters"));
    INVAR_TRY(INVAR_ALLOC(model->order, (size_t)count, "the order of parameters"));
    INVAR_TRY(INVAR_ALLOC(model->first, (size_t)spec->layers + 1, "the list of layers"));
    INVAR_TRY(invar_decoder_declare(&model->n_params, model->params, spec, model->format));
    model->base = model->params;
    model->n_base = model->n_params;
    INVAR_TRY(declare_adapters(model));
    if (spec->lora.rank > 0 && !invar_model_is_adapted(model))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "target-modules names no layer of this model: with lora-rank %" PRId64
                          " some layer needs an adapter",
                          spec->lora.rank);
    order_memory(model);
    link_params(model);
    return INVAR_OK;
}

/* Determines everything about the parameters except their memory. */
static invar_status declare_params(invar_model *model)
{
    const invar_model_spec *spec = &model->spec;

    INVAR_TRY(list_params(model));
    INVAR_TRY(invar_model_partition_check(
        &model->part, spec, model->base, model->n_base,
        invar_dtype_scale_block(invar_format_traits_of(model->format)->linear) > 0));
    for (int64_t i = 0; i < model->n_base; i++)
        model->base[i].local = invar_model_partition_shard(&model->part, spec, &model->base[i]);
    for (int64_t i = 0; i < model->n_params; i++)
        model->params[i].local = invar_model_partition_shard(&model->part, spec, &model->params[i]);
    return check_extents(model, model->format);
}

/* Frees a model that has no device memory. */
static void free_lists(invar_model *model)
{
    invar_free(model->params);
    invar_free(model->zero_rows);
    invar_free(model->order);
    invar_free(model->first);
    invar_free(model);
}

static invar_status check_declaration(const invar_model_spec *spec, invar_format format,
                                      const invar_model_partition *part)
{
    invar_model *model = NULL;
    invar_status status;

    INVAR_TRY(invar_model_spec_check(spec));
    INVAR_TRY(INVAR_ALLOC(model, 1, "a model"));
    *model = (invar_model){.spec = *spec, .format = format, .part = *part};
    status = declare_params(model);
    free_lists(model);
    return status;
}

static int64_t shards_of(int64_t logical)
{
    return logical > 1 ? logical : 1;
}

/*
 * Returns the smallest power-of-two multiple of `least` that `ranks` divides; 0 if it exceeds the
 * limit.
 */
static int64_t next_shards(int64_t least, int64_t ranks)
{
    while (least <= INVAR_LINEAR_MAX_SHARDS && least % ranks != 0)
        least *= 2;
    return least <= INVAR_LINEAR_MAX_SHARDS ? least : 0;
}

/* Finds logical sizes with which the ranks of `part` can divide the model. */
static bool find_logical_sizes(invar_model_spec *out, invar_format format,
                               const invar_model_partition *part)
{
    const int64_t experts = part->expert_tensors > 1 && out->experts.count > 0 ? part->tensors : 1;
    const int64_t tp = next_shards(shards_of(out->logical_tp), part->tensors);
    const int64_t etp = next_shards(shards_of(out->logical_etp), experts);

    for (int64_t t = tp; t > 0; t = next_shards(2 * t, part->tensors))
        for (int64_t e = etp; e > 0; e = next_shards(2 * e, experts)) {
            out->logical_tp = t;
            out->logical_etp = e;
            if (check_declaration(out, format, part) == INVAR_OK)
                return true;
            if (experts == 1) // logical-etp does not change what the ranks divide
                break;
        }
    return false;
}

/* Writes the keys that differ: "logical-tp = 2 and logical-etp = 4". */
static void describe_logical_sizes(char *out, size_t size, const invar_model_spec *spec,
                                   const invar_model_spec *other)
{
    const bool tp = other->logical_tp != spec->logical_tp;
    size_t used = 0;

    if (tp)
        used = (size_t)snprintf(out, size, "logical-tp = %d", (int)other->logical_tp);
    if (other->logical_etp != spec->logical_etp)
        (void)snprintf(out + used, size - used, "%slogical-etp = %d", tp ? " and " : "",
                       (int)other->logical_etp);
}

/* Adds to a rejection the logical sizes with which tensor-parallel ranks could divide the model. */
static invar_status advise_logical_sizes(invar_status status, const invar_model_spec *spec,
                                         invar_format format, invar_model_partition part)
{
    invar_model_spec other = *spec;
    char pieces[64], advice[200];
    invar_error refusal;
    bool fits, found;

    part.stages = part.chunks = part.experts = part.contexts = 1; // these have own advice
    if (status != INVAR_E_INVALID || part.tensors <= 1)
        return status;
    invar_error_take(&refusal);
    fits = check_declaration(spec, format, &part) == INVAR_OK;
    found = !fits && find_logical_sizes(&other, format, &part);
    invar_error_put(&refusal);
    if (fits)
        return status;
    if (!found)
        return invar_error_advise(status, status,
                                  "no logical-tp lets so many ranks divide this model: lower "
                                  "tensor-model-parallel-size");
    describe_logical_sizes(pieces, sizeof pieces, spec, &other);
    (void)snprintf(advice, sizeof advice,
                   "set %s to divide it (which changes the identity of the run: other bits, "
                   "another chain)",
                   pieces);
    return invar_error_advise(status, status, advice);
}

invar_status invar_model_check(const invar_model_spec *spec, invar_format format,
                               const invar_layout *layout)
{
    const invar_model_partition part = invar_model_partition_of(layout, 0);

    return advise_logical_sizes(check_declaration(spec, format, &part), spec, format, part);
}

/* Options of model creation besides the spec. */
typedef struct creation_options {
    bool weights_alone;
    const invar_model *beside; /* model whose frozen base is shared; NULL to own one */
} creation_options;

static invar_status init_new_model(invar_model *model, const creation_options *what,
                                   const invar_device *dev)
{
    INVAR_TRY(
        advise_logical_sizes(declare_params(model), &model->spec, model->format, model->part));
    INVAR_TRY(invar_zero_partition_make(model));
    INVAR_TRY(alloc_params(model));
    if (invar_model_is_adapted(model))
        INVAR_TRY(allocate_base(model, what->beside));
    assign_grad_offsets(model);
    return make_rope(model, dev);
}

static invar_status create_model(invar_model **out, const invar_model_spec *spec,
                                 invar_format format, const invar_layout *layout,
                                 const invar_device *dev, const creation_options *what)
{
    invar_model *model = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_model_spec_check(spec));
    INVAR_TRY(INVAR_ALLOC(model, 1, "a model"));
    *model = (invar_model){
        .spec = *spec,
        .format = format,
        .storage = invar_format_storage(format),
        .no_masters = what->weights_alone,
        .layout = layout,
        .part = invar_model_partition_of(layout, layout ? invar_comm_rank(layout->world) : 0),
        .dev = *dev};
    model->dev.scratch = NULL;
    status = init_new_model(model, what, dev);
    if (status == INVAR_OK)
        *out = model;
    else
        invar_model_free(model);
    return status;
}

invar_status invar_model_new(invar_model **out, const invar_model_spec *spec, invar_format format,
                             const invar_layout *layout, const invar_device *dev)
{
    return create_model(out, spec, format, layout, dev,
                        &(creation_options){.weights_alone = false});
}

invar_status invar_model_new_weights(invar_model **out, const invar_model_spec *spec,
                                     invar_format format, const invar_layout *layout,
                                     const invar_device *dev)
{
    return create_model(out, spec, format, layout, dev, &(creation_options){.weights_alone = true});
}

invar_status invar_model_new_sharing_base(invar_model **out, const invar_model *other,
                                          const invar_device *dev)
{
    return create_model(out, &other->spec, other->format, other->layout, dev,
                        &(creation_options){.beside = other});
}

void invar_model_free(invar_model *model)
{
    if (!model)
        return;
    invar_device_free(&model->dev, model->memory.trained);
    if (!model->memory.base_borrowed)
        invar_device_free(&model->dev, model->memory.base);
    free_lists(model);
}
