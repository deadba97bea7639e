/*
 * model_weights.c - computes the weights of a model from masters, and copies weights.
 *
 * A weight is the rounding or the quantization of its master. With ZeRO a rank computes the rows of
 * its masters, and the ranks gather the others. Two models must have the same extents.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/host_staging.h"
#include "engine/model/graph/op_runner.h"
#include "engine/model/shard/master_weights.h"
#include "engine/model/shard/param_loader.h"

#include "base/invar_banned.h"

static invar_status update_weight(invar_op_runner *runner, const invar_param *p,
                                  const invar_param *from, const invar_device *dev)
{
    const invar_tensor *master = &from->master;
    invar_tensor to;

    if (!invar_tensor_present(master))
        return INVAR_OK;
    if (p->weight.dtype != INVAR_DTYPE_F32)
        return invar_param_loader_weight(runner, p, from->master_row, master);
    to = invar_tensor_rows(&p->weight, from->master_row, master->shape[0]);
    if (to.data == master->data)
        return INVAR_OK;
    return invar_device_copy(dev, to.data, master->data, invar_host_staging_span(master));
}

/* Computes the weights of the rows that this rank owns, and gathers the others. */
static invar_status update_weights_from(invar_model *model, const invar_model *from,
                                        const invar_device *dev)
{
    invar_op_runner runner;
    invar_status status = INVAR_OK;

    invar_op_runner_init(&runner, dev);
    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++)
        status = update_weight(&runner, &model->params[i], &from->params[i], dev);
    invar_op_runner_release(&runner);
    return status == INVAR_OK ? invar_weights_gather(model) : status;
}

invar_status invar_model_update_weights(invar_model *model, const invar_device *dev)
{
    return update_weights_from(model, model, dev);
}

static invar_status check_same_extents(const invar_param *a, const invar_param *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (a[i].stack != b[i].stack || a[i].rows != b[i].rows || a[i].cols != b[i].cols ||
            invar_param_elements(&a[i]) != invar_param_elements(&b[i]))
            return INVAR_FAIL(INVAR_E_INVALID, 0, "%s has other extents in the other model",
                              a[i].name);
    return INVAR_OK;
}

invar_status invar_model_refresh_from(invar_model *model, const invar_model *from,
                                      const invar_device *dev)
{
    if (model->n_params != from->n_params ||
        invar_model_is_adapted(model) != invar_model_is_adapted(from))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "weights are made from a model of the same spec only");
    INVAR_TRY(check_same_extents(model->params, from->params, model->n_params));
    return update_weights_from(model, from, dev);
}

static invar_status copy_param(const invar_param *to, const invar_param *from,
                               const invar_device *dev)
{
    size_t count = (size_t)invar_param_elements(to);
    size_t bytes = count * (size_t)invar_dtype_bits(to->weight.dtype) / 8;

    INVAR_TRY(invar_device_copy(dev, to->weight.data, from->weight.data, bytes));
    if (to->weight.scale)
        INVAR_TRY(invar_device_copy(dev, to->weight.scale, from->weight.scale,
                                    invar_tensor_scale_bytes(&to->weight)));
    if (!invar_tensor_present(&to->master) || to->weight.dtype == INVAR_DTYPE_F32)
        return INVAR_OK;
    if (to->master_row != from->master_row || to->master.shape[0] != from->master.shape[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s has masters of other rows in the other model",
                          to->name);
    return invar_device_copy(dev, to->master.data, from->master.data,
                             invar_host_staging_span(&to->master));
}

static invar_status copy_params(const invar_param *to, const invar_param *from, int64_t count,
                                const invar_device *dev)
{
    INVAR_TRY(check_same_extents(to, from, count));
    for (int64_t i = 0; i < count; i++)
        if (to[i].local.experts > 0)
            INVAR_TRY(copy_param(&to[i], &from[i], dev));
    return INVAR_OK;
}

invar_status invar_model_copy(invar_model *to, const invar_model *from)
{
    if (to->format != from->format || to->n_params != from->n_params || to->n_base != from->n_base)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "weights are copied between models of one kind only");
    INVAR_TRY(copy_params(to->params, from->params, to->n_params, &to->dev));
    if (to->memory.base == from->memory.base) // no base, or a shared one
        return INVAR_OK;
    return copy_params(to->base, from->base, to->n_base, &to->dev);
}
