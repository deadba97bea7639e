/*
 * learner_points.c - the points of a learner: its gradients, their norm, its weights.
 *
 * Points of level 0 are in the order of docs/arithmetic.md, "The chain".
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/model/shard/full_param.h"
#include "engine/model/shard/master_weights.h"
#include "engine/model/tensor_hasher.h"
#include "engine/train/learner.h"

#include "base/invar_banned.h"

#define TIED "grad.tied_head"

typedef char name[INVAR_LEDGER_NAME_BYTES + 1];

/* The op that makes a parameter's gradient on one rank: a point is the same in every layout. */
static const char *gradient_op(const invar_param *p)
{
    switch (p->kind) {
    case INVAR_PARAM_EMBEDDING: return "embedding.bwd";
    case INVAR_PARAM_NORM: return "rmsnorm.bwd";
    case INVAR_PARAM_BIAS: return "token.sum";
    case INVAR_PARAM_EXPERT: return "moe.linear.dw";
    default: return p->stack > 1 ? "moe.linear.dw" : "linear.dw";
    }
}

/* ---- points ---------------------------------------------------------------------------------- */

/* A point of f32 in the tensor's shape, named PREFIX `kind_of` `param`. */
static invar_ledger_point point_of(name own, const invar_learner *l, const char *kind_of,
                                   const char *param, const invar_tensor *tensor)
{
    (void)snprintf(own, sizeof(name), "%s%s%s", l->options.prefix, kind_of, param);
    return (invar_ledger_point){.name = own,
                                .phase = "backward",
                                .layer = -1,
                                .kind = "grad",
                                .dtype = "f32",
                                .shape = tensor->shape,
                                .dims = (size_t)tensor->rank,
                                .shards = 1};
}

static int64_t shards_of(const invar_param *p)
{
    return p->cut.shards > 1 ? p->cut.shards * p->cut.experts : 1;
}

static invar_status take_sum(const invar_point_namer *view, int64_t number,
                             const invar_tensor *grad, const invar_observed_grad *sum)
{
    size_t offset = (uintptr_t)grad->data;

    return invar_tensor_present(grad) && offset - sum->offset < sum->bytes
               ? invar_probe_sum(view, number, sum)
               : INVAR_OK;
}

/* A gradient's number is its parameter's, and that of the tied head's comes behind these. */
invar_status invar_learner_sum(const invar_learner *l, const invar_point_namer *view,
                               const invar_observed_grad *sum)
{
    int64_t count = l->model->n_params;

    for (int64_t i = 0; i < count; i++)
        if (l->model->params[i].local.experts > 0)
            INVAR_TRY(take_sum(view, i, &l->model->params[i].grad, sum));
    return take_sum(view, count, &l->model->tied_grad, sum);
}

/* What this rank has of a parameter's tensor, in a device's memory; `dev` NULL: in the host's. */
typedef struct held {
    const invar_tensor *tensor;
    const invar_device *dev;
} held;

/* rank 0 has all values of a parameter's tensor, of which this rank has `own`; `take` gets them. */
static invar_status take_whole(const invar_learner *l, invar_probe *probe, int64_t point,
                               int64_t param, const held *own,
                               invar_status (*take)(invar_probe *probe, int64_t point,
                                                    const invar_tensor *whole))
{
    const invar_param *p = &l->model->params[param];
    const invar_full_param_source source = {l->model, param, own->tensor, own->dev};
    invar_full_param_reader whole = {.room = 0};
    const float *values;
    invar_status status = invar_full_param_reader_read(&values, &whole, &source, 0, p->stack);

    if (status == INVAR_OK && values) {
        invar_tensor all = invar_param_whole(p, NULL);
        all.data = (void *)(uintptr_t)values;
        status = take(probe, point, &all);
    }
    invar_full_param_reader_release(&whole);
    return status;
}

/* Values are read where somebody wants. */
static invar_status give_digest(const invar_learner *l, invar_probe *probe, int64_t point,
                                int64_t param, const held *own, const invar_digest *digest)
{
    if (!invar_model_is_divided(l->model) && own->dev)
        return invar_probe_tensor_with_digest(probe, point, own->tensor, digest);
    INVAR_TRY(invar_probe_digest(probe, point, digest));
    return invar_probe_wants(probe, point)
               ? take_whole(l, probe, point, param, own, invar_probe_values)
               : INVAR_OK;
}

static invar_status gradient_point(int64_t *out, const invar_learner *l, invar_probe *probe,
                                   int64_t param)
{
    const invar_param *p = &l->model->params[param];
    bool embedding = p == l->model->embedding;
    name own, sum, tied;
    const char *const inputs[] = {sum, embedding ? "batch.tokens" : NULL, tied, NULL};
    invar_tensor whole = invar_param_whole(p, NULL);
    invar_ledger_point at = point_of(own, l, "grad.", p->name, &whole);

    at.layer = p->layer;
    at.shards = shards_of(p);
    at.op = gradient_op(p);
    invar_probe_sum_name(sum, l->options.prefix, param);
    (void)snprintf(tied, sizeof tied, "%s" TIED, l->options.prefix);
    INVAR_TRY(invar_probe_define_from(out, probe, &at, inputs));
    return give_digest(l, probe, *out, param, &(held){&l->grads->tensors[param], l->options.dev},
                       &l->grads->digests[param]);
}

/* What stands between the gradients and the weights, for those who look closer. */
static invar_status norm_point(const invar_learner *l, invar_probe *probe, const int64_t *grads)
{
    float norm = l->norm;
    invar_tensor tensor = invar_tensor_1d(&norm, INVAR_DTYPE_F32, 1);
    name own;
    invar_ledger_point at = point_of(own, l, "grad_norm", "", &tensor);
    int64_t id;

    at.phase = "optimizer";
    at.op = "grad.norm";
    at.level = INVAR_PROBE_FULL;
    at.inputs = grads;
    at.n_inputs = (size_t)l->model->n_params;
    INVAR_TRY(invar_probe_define(&id, probe, &at));
    return invar_probe_tensor(probe, id, &tensor);
}

/* The head's share of the gradient that it has in common with the embedding. */
static invar_status tied_point(const invar_learner *l, invar_probe *probe)
{
    const invar_tensor *tied = &l->grads->tied_head;
    invar_tensor whole = invar_param_whole(l->model->embedding, NULL);
    bool divided = invar_model_is_divided(l->model);
    name own, sum;
    const char *const inputs[] = {sum, NULL};
    invar_ledger_point at;
    int64_t id;

    if (!invar_tensor_present(tied))
        return INVAR_OK;
    at = point_of(own, l, TIED, "", &whole);
    at.op = "linear.dw";
    at.level = INVAR_PROBE_FULL;
    invar_probe_sum_name(sum, l->options.prefix, l->model->n_params);
    INVAR_TRY(invar_probe_define_from(&id, probe, &at, inputs));
    if (!divided || id == -1)
        return invar_probe_device_whole(probe, id, tied);
    return take_whole(l, probe, id, 0, &(held){tied, l->options.dev}, // as the embedding's
                      invar_probe_tensor);
}

/* `hashed`: the digest follows. */
static invar_status weight_point(int64_t *out, const invar_learner *l, invar_probe *probe,
                                 const invar_param *p, bool hashed)
{
    name own, grad, norm;
    const char *const inputs[] = {grad, norm, NULL};
    invar_tensor whole = invar_param_whole(p, NULL);
    invar_ledger_point at = point_of(own, l, "weight.", p->name, &whole);

    at.phase = "optimizer";
    at.layer = p->layer;
    at.shards = shards_of(p);
    at.op = "adamw";
    at.kind = "param";
    (void)snprintf(grad, sizeof grad, "%sgrad.%s", l->options.prefix, p->name);
    (void)snprintf(norm, sizeof norm, "%sgrad_norm", l->options.prefix);
    INVAR_TRY(invar_probe_define_from(out, probe, &at, inputs));
    return hashed ? INVAR_OK : invar_probe_device_whole(probe, *out, &p->master);
}

/* Whether digests of masters are put together from what ranks or pieces have of them. */
static bool of_pieces(const invar_learner *l)
{
    return invar_model_is_cut(l->model) || invar_zero_partition_divide(l->model);
}

/* The master of a parameter: where ranks have rows of it each, as it was collected, if it was. */
static held master_of(const invar_learner *l, const invar_full_masters *collected, int64_t param)
{
    const invar_param *p = &l->model->params[param];

    if (invar_full_masters_scattered(l->model))
        return (held){collected->tensors ? &collected->tensors[param] : &p->master, NULL};
    return (held){invar_param_f32(p), l->options.dev};
}

/* What AdamW has made of the masters; all points are listed while it is at work. Those that are cut
 * are hashed here. */
static invar_status hashed_points(const invar_learner *l, invar_probe *probe,
                                  const invar_full_masters *collected)
{
    invar_digest *digests;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&digests, (size_t)l->model->n_params, sizeof *digests,
                          "digests of masters"));
    status = of_pieces(l) ? invar_model_digests(digests, l->model, NULL, l->options.dev)
                          : invar_optimizer_digests(digests, l->optimizer, l->model);
    for (int64_t i = 0; i < l->model->n_params && status == INVAR_OK; i++) {
        held own = master_of(l, collected, i);
        status = give_digest(l, probe, l->weights[i], i, &own, &digests[i]);
    }
    invar_free(digests);
    return status;
}

/* The sums of all rows, where somebody looks at values: each rank has those of its own. */
static invar_status gather_gradients(const invar_learner *l)
{
    invar_zero_comm slices = {.send_buffer = NULL};
    invar_zero_ranges owned;
    invar_status status = invar_zero_ranges_grads(&owned, l->model, INVAR_ZERO_RANGES_ALL);

    if (status == INVAR_OK)
        status = invar_zero_comm_init(&slices, &l->grads->dev, l->model->layout, &owned);
    if (status == INVAR_OK)
        status = invar_zero_comm_gather(&slices, "gradients", l->grads->memory);
    invar_zero_comm_release(&slices);
    invar_zero_ranges_release(&owned);
    return status;
}

/* Of what ops read of the weights: all data-parallel ranks have the same. */
static invar_status hash_held(invar_learner *l)
{
    int64_t count = 0;
    invar_digest *of = NULL;
    invar_tensor_hasher digests;
    invar_status status = INVAR_OK;

    INVAR_TRY(
        invar_alloc((void **)&of, (size_t)l->model->n_params, sizeof *of, "digests of weights"));
    invar_tensor_hasher_init(&digests, l->options.dev);
    for (int64_t i = 0; i < l->model->n_params && status == INVAR_OK; i++)
        if (l->model->params[i].local.experts > 0) {
            status = invar_tensor_hasher_add(&digests, &l->model->params[i].weight, 1);
            count++;
        }
    if (status == INVAR_OK)
        status = invar_tensor_hasher_read(of, &digests);
    if (status == INVAR_OK)
        invar_hash_bytes(&l->weights_digest, of, (size_t)count * sizeof *of);
    invar_tensor_hasher_release(&digests);
    invar_free(of);
    return status;
}

/* Who looks at values sees those of all rows, not only of those that this rank owns. */
static invar_status bring_together(invar_full_masters *masters, invar_learner *l, bool looks)
{
    if (looks) {
        INVAR_TRY(gather_gradients(l));
        INVAR_TRY(invar_full_masters_collect(masters, l->model));
    }
    return hash_held(l);
}

static invar_status list_points(invar_learner *l, invar_probe *probe,
                                const invar_full_masters *collected)
{
    bool hashed = of_pieces(l) || (l->stepped && invar_optimizer_hashes(l->optimizer));
    int64_t count = l->model->n_params;

    INVAR_TRY(tied_point(l, probe));
    for (int64_t i = 0; i < count; i++) // those of gradients first: the norm is computed from them
        INVAR_TRY(gradient_point(&l->weights[i], l, probe, i));
    INVAR_TRY(norm_point(l, probe, l->weights));
    for (int64_t i = 0; i < count; i++)
        INVAR_TRY(weight_point(&l->weights[i], l, probe, &l->model->params[i], hashed));
    return hashed ? hashed_points(l, probe, collected) : INVAR_OK;
}

invar_status invar_learner_points(invar_learner *l, invar_probe *probe)
{
    invar_full_masters collected = {.tensors = NULL};
    invar_status status = INVAR_OK;

    if (invar_zero_partition_divide(l->model))
        status = bring_together(&collected, l, invar_probe_needs_values(probe));
    if (status == INVAR_OK)
        status = list_points(l, probe, &collected);
    invar_full_masters_release(&collected);
    return status;
}
