/*
 * learner_points.c - records gradients, gradient norm and weights of a learner as probe points.
 *
 * A point has the same name, shape and digest in every layout. If ranks or logical shards divide a
 * tensor, its digest is combined from theirs, and full values are gathered only if the probe wants
 * values. Points of level 0 must stay in the order of docs/arithmetic.md, "The chain".
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

/* Returns the op that computes a parameter's gradient on one rank; all layouts record this name. */
static const char *gradient_op_of(const invar_param *p)
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

/* Returns an f32 point with the tensor's shape, named PREFIX `kind_of` `param`. */
static invar_ledger_point make_point(name own, const invar_learner *l, const char *kind_of,
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

static int64_t shard_count_of(const invar_param *p)
{
    return p->split.shards > 1 ? p->split.shards * p->split.experts : 1;
}

static invar_status record_grad_sum(const invar_point_namer *view, int64_t number,
                                    const invar_tensor *grad, const invar_observed_grad *sum)
{
    size_t offset = (uintptr_t)grad->data;

    return invar_tensor_present(grad) && offset - sum->offset < sum->bytes
               ? invar_probe_sum(view, number, sum)
               : INVAR_OK;
}

/* The number of a gradient is that of its parameter; the tied head comes after all parameters. */
invar_status invar_learner_record_grad_sum(const invar_learner *l, const invar_point_namer *namer,
                                           const invar_observed_grad *sum)
{
    int64_t count = l->model->n_params;

    for (int64_t i = 0; i < count; i++)
        if (l->model->params[i].local.experts > 0)
            INVAR_TRY(record_grad_sum(namer, i, &l->model->params[i].grad, sum));
    return record_grad_sum(namer, count, &l->model->tied_grad, sum);
}

/*
 * The part of a parameter's tensor that this rank holds: in device memory, or in host memory if
 * `dev` is NULL.
 */
typedef struct local_tensor {
    const invar_tensor *tensor;
    const invar_device *dev;
} local_tensor;

/*
 * Gathers all values of a parameter's tensor on rank 0 and passes them to `take` there; `own` is
 * the part on this rank.
 */
static invar_status record_full_values(const invar_learner *l, invar_probe *probe, int64_t point,
                                       int64_t param, const local_tensor *own,
                                       invar_status (*take)(invar_probe *probe, int64_t point,
                                                            const invar_tensor *whole))
{
    const invar_param *p = &l->model->params[param];
    const invar_full_param_source source = {l->model, param, own->tensor, own->dev};
    invar_full_param_reader whole = {.capacity = 0};
    const float *values;
    invar_status status = invar_full_param_reader_read(&values, &whole, &source, 0, p->stack);

    if (status == INVAR_OK && values) {
        invar_tensor all = invar_param_full_tensor(p, NULL);
        all.data = (void *)(uintptr_t)values;
        status = take(probe, point, &all);
    }
    invar_full_param_reader_release(&whole);
    return status;
}

/* Records a digest, and the values too if the probe wants them. */
static invar_status record_digest(const invar_learner *l, invar_probe *probe, int64_t point,
                                  int64_t param, const local_tensor *own,
                                  const invar_digest *digest)
{
    if (!invar_model_is_divided(l->model) && own->dev)
        return invar_probe_tensor_with_digest(probe, point, own->tensor, digest);
    INVAR_TRY(invar_probe_digest(probe, point, digest));
    return invar_probe_wants(probe, point)
               ? record_full_values(l, probe, point, param, own, invar_probe_values)
               : INVAR_OK;
}

static invar_status record_gradient(int64_t *out, const invar_learner *l, invar_probe *probe,
                                    int64_t param)
{
    const invar_param *p = &l->model->params[param];
    bool embedding = p == l->model->embedding;
    name own, sum, tied;
    const char *const inputs[] = {sum, embedding ? "batch.tokens" : NULL, tied, NULL};
    invar_tensor whole = invar_param_full_tensor(p, NULL);
    invar_ledger_point at = make_point(own, l, "grad.", p->name, &whole);

    at.layer = p->layer;
    at.shards = shard_count_of(p);
    at.op = gradient_op_of(p);
    invar_probe_sum_name(sum, l->options.prefix, param);
    (void)snprintf(tied, sizeof tied, "%s" TIED, l->options.prefix);
    INVAR_TRY(invar_probe_define_from(out, probe, &at, inputs));
    return record_digest(l, probe, *out, param,
                         &(local_tensor){&l->grads->tensors[param], l->options.dev},
                         &l->grads->digests[param]);
}

/* Records the gradient norm, at the level INVAR_PROBE_FULL. */
static invar_status record_norm(const invar_learner *l, invar_probe *probe, const int64_t *grads)
{
    float norm = l->norm;
    invar_tensor tensor = invar_tensor_1d(&norm, INVAR_DTYPE_F32, 1);
    name own;
    invar_ledger_point at = make_point(own, l, "grad_norm", "", &tensor);
    int64_t id;

    at.phase = "optimizer";
    at.op = "grad.norm";
    at.level = INVAR_PROBE_FULL;
    at.inputs = grads;
    at.n_inputs = (size_t)l->model->n_params;
    INVAR_TRY(invar_probe_define(&id, probe, &at));
    return invar_probe_tensor(probe, id, &tensor);
}

/* Records the part of the tied embedding's gradient that comes from the head. */
static invar_status record_tied_gradient(const invar_learner *l, invar_probe *probe)
{
    const invar_tensor *tied = &l->grads->tied_head;
    invar_tensor whole = invar_param_full_tensor(l->model->embedding, NULL);
    bool divided = invar_model_is_divided(l->model);
    name own, sum;
    const char *const inputs[] = {sum, NULL};
    invar_ledger_point at;
    int64_t id;

    if (!invar_tensor_present(tied))
        return INVAR_OK;
    at = make_point(own, l, TIED, "", &whole);
    at.op = "linear.dw";
    at.level = INVAR_PROBE_FULL;
    invar_probe_sum_name(sum, l->options.prefix, l->model->n_params);
    INVAR_TRY(invar_probe_define_from(&id, probe, &at, inputs));
    if (!divided || id == -1)
        return invar_probe_device_tensor(probe, id, tied);
    return record_full_values(
        l, probe, id, 0,
        &(local_tensor){tied, l->options.dev}, // the shape is that of the embedding, parameter 0
        invar_probe_tensor);
}

/*
 * Defines the point of a weight. Records its value only if `hashed` is false; else the digest
 * follows.
 */
static invar_status define_weight(int64_t *out, const invar_learner *l, invar_probe *probe,
                                  const invar_param *p, bool hashed)
{
    name own, grad, norm;
    const char *const inputs[] = {grad, norm, NULL};
    invar_tensor whole = invar_param_full_tensor(p, NULL);
    invar_ledger_point at = make_point(own, l, "weight.", p->name, &whole);

    at.phase = "optimizer";
    at.layer = p->layer;
    at.shards = shard_count_of(p);
    at.op = "adamw";
    at.kind = "param";
    (void)snprintf(grad, sizeof grad, "%sgrad.%s", l->options.prefix, p->name);
    (void)snprintf(norm, sizeof norm, "%sgrad_norm", l->options.prefix);
    INVAR_TRY(invar_probe_define_from(out, probe, &at, inputs));
    return hashed ? INVAR_OK : invar_probe_device_tensor(probe, *out, &p->master);
}

/* Returns true if digests of masters are combined from those of ranks or logical shards. */
static bool combines_digests(const invar_learner *l)
{
    return invar_model_is_cut(l->model) || invar_zero_partition_is_divided(l->model);
}

/* Returns the master of a parameter: from `collected` if data-parallel ranks divide its rows. */
static local_tensor master_tensor_of(const invar_learner *l, const invar_full_masters *collected,
                                     int64_t param)
{
    const invar_param *p = &l->model->params[param];

    if (invar_full_masters_scattered(l->model))
        return (local_tensor){collected->tensors ? &collected->tensors[param] : &p->master, NULL};
    return (local_tensor){invar_param_f32(p), l->options.dev};
}

/*
 * Records the digests of the masters after AdamW. All points are defined already; divided masters
 * are hashed here.
 */
static invar_status record_hashed_weights(const invar_learner *l, invar_probe *probe,
                                          const invar_full_masters *collected)
{
    invar_digest *digests;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(digests, (size_t)l->model->n_params, "digests of masters"));
    status = combines_digests(l) ? invar_model_digests(digests, l->model, NULL, l->options.dev)
                                 : invar_optimizer_digests(digests, l->optimizer, l->model);
    for (int64_t i = 0; i < l->model->n_params && status == INVAR_OK; i++) {
        local_tensor own = master_tensor_of(l, collected, i);
        status = record_digest(l, probe, l->weight_points[i], i, &own, &digests[i]);
    }
    invar_free(digests);
    return status;
}

/*
 * Gathers the gradients of all rows, for probes that want values; each rank has its own rows only.
 */
static invar_status gather_gradients(const invar_learner *l)
{
    invar_zero_comm comm = {.send_buffer = NULL};
    invar_zero_ranges owned;
    invar_status status = invar_zero_ranges_grads(&owned, l->model, INVAR_ZERO_RANGES_ALL);

    if (status == INVAR_OK)
        status = invar_zero_comm_init(&comm, &l->grads->dev, l->model->layout, &owned);
    if (status == INVAR_OK)
        status = invar_zero_comm_gather(&comm, "gradients", l->grads->memory);
    invar_zero_comm_release(&comm);
    invar_zero_ranges_release(&owned);
    return status;
}

/* Hashes the compute weights of this rank, which are the same on all data-parallel ranks. */
static invar_status hash_compute_weights(invar_learner *l)
{
    int64_t count = 0;
    invar_digest *of = NULL;
    invar_tensor_hasher hasher;
    invar_status status = INVAR_OK;

    INVAR_TRY(INVAR_ALLOC(of, (size_t)l->model->n_params, "digests of weights"));
    invar_tensor_hasher_init(&hasher, l->options.dev);
    for (int64_t i = 0; i < l->model->n_params && status == INVAR_OK; i++)
        if (l->model->params[i].local.experts > 0) {
            status = invar_tensor_hasher_add(&hasher, &l->model->params[i].weight, 1);
            count++;
        }
    if (status == INVAR_OK)
        status = invar_tensor_hasher_read(of, &hasher);
    if (status == INVAR_OK)
        invar_hash_bytes(&l->weights_digest, of, (size_t)count * sizeof *of);
    invar_tensor_hasher_release(&hasher);
    invar_free(of);
    return status;
}

/*
 * Gathers gradients and masters of all rows if the probe wants values, and hashes the compute
 * weights.
 */
static invar_status prepare_divided_points(invar_full_masters *masters, invar_learner *l,
                                           bool looks)
{
    if (looks) {
        INVAR_TRY(gather_gradients(l));
        INVAR_TRY(invar_full_masters_collect(masters, l->model));
    }
    return hash_compute_weights(l);
}

static invar_status record_points(invar_learner *l, invar_probe *probe,
                                  const invar_full_masters *collected)
{
    bool hashed = combines_digests(l) || (l->stepped && invar_optimizer_can_hash(l->optimizer));
    int64_t count = l->model->n_params;

    INVAR_TRY(record_tied_gradient(l, probe));
    for (int64_t i = 0; i < count; i++) // gradients first: the norm is computed from them
        INVAR_TRY(record_gradient(&l->weight_points[i], l, probe, i));
    INVAR_TRY(record_norm(l, probe, l->weight_points));
    for (int64_t i = 0; i < count; i++)
        INVAR_TRY(define_weight(&l->weight_points[i], l, probe, &l->model->params[i], hashed));
    return hashed ? record_hashed_weights(l, probe, collected) : INVAR_OK;
}

invar_status invar_learner_record_points(invar_learner *l, invar_probe *probe)
{
    invar_full_masters collected = {.tensors = NULL};
    invar_status status = INVAR_OK;

    if (invar_zero_partition_is_divided(l->model))
        status = prepare_divided_points(&collected, l, invar_probe_needs_values(probe));
    if (status == INVAR_OK)
        status = record_points(l, probe, &collected);
    invar_full_masters_release(&collected);
    return status;
}
