/*
 * model.c - answers questions about a model: its size, its parts and its parameters.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/model.h"

#include <string.h>

#include "base/invar_banned.h"

static size_t weight_bytes(const invar_param *params, int64_t count)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < count; i++) {
        const invar_param *p = &params[i];
        if (p->local.experts > 0)
            bytes +=
                (size_t)invar_param_elements(p) * (size_t)invar_dtype_bits(p->weight.dtype) / 8 +
                invar_tensor_scale_bytes(&p->weight);
    }
    return bytes;
}

size_t invar_model_weight_bytes(const invar_model *model)
{
    return weight_bytes(model->base, model->n_base) +
           (invar_model_is_adapted(model) ? weight_bytes(model->params, model->n_params) : 0);
}

bool invar_model_is_divided(const invar_model *model)
{
    return invar_model_partition_ranks(&model->part) > 1;
}

bool invar_model_is_cut(const invar_model *model)
{
    if (invar_model_is_divided(model))
        return true;
    for (int64_t i = 0; i < model->n_params; i++)
        if (model->params[i].split.shards > 1)
            return true;
    return false;
}

int64_t invar_model_kv_heads(const invar_model *model)
{
    for (int64_t i = 0; i < model->n_base; i++)
        if (model->base[i].local.experts > 0 && strstr(model->base[i].name, "k_proj.weight"))
            return model->base[i].local.rows / model->spec.attention.head_dim;
    return model->spec.attention.kv_heads;
}

static invar_param *find_param(invar_param *params, int64_t count, const char *name)
{
    for (int64_t i = 0; i < count; i++)
        if (strcmp(params[i].name, name) == 0)
            return &params[i];
    return NULL;
}

invar_param *invar_model_find(const invar_model *model, const char *name)
{
    invar_param *found = find_param(model->params, model->n_params, name);

    return found || !invar_model_is_adapted(model) ? found
                                                   : find_param(model->base, model->n_base, name);
}
