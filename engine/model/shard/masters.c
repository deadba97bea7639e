/*
 * masters.c - masters of which each data-parallel rank has the rows that it owns.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/masters.h"

#include "base/alloc.h"

#include "base/invar_banned.h"

invar_status invar_masters_slices(invar_slices *out, const invar_model *model,
                                  const invar_device *dev)
{
    invar_owned owned;
    invar_status status = invar_owned_masters(&owned, model);

    *out = (invar_slices){.give = NULL};
    if (status == INVAR_OK)
        status = invar_slices_init(out, dev, model->layout, &owned);
    invar_owned_release(&owned);
    return status;
}

/* Are masters something else than what ops read, which all ranks have? */
static bool scattered(const invar_model *model)
{
    return invar_owners_divide(model) && model->format != INVAR_FORMAT_FP32;
}

char *invar_masters_block(const invar_model *model)
{
    int64_t k = 0;

    while (model->params[model->order[k]].own.experts == 0) // the first that is here
        k++;
    return model->params[model->order[k]].master.data;
}

invar_status invar_masters_gather(const invar_model *model)
{
    invar_slices slices;
    invar_status status;

    if (!scattered(model))
        return INVAR_OK;
    status = invar_masters_slices(&slices, model, &model->dev);
    if (status == INVAR_OK)
        status = invar_slices_gather(&slices, "masters", invar_masters_block(model));
    invar_slices_release(&slices);
    return status;
}

static invar_status collect(invar_masters *out, const invar_model *model, invar_slices *slices)
{
    const char *block = invar_masters_block(model);
    size_t bytes = 0;

    for (int64_t i = 0; i < slices->owned.size; i++)
        bytes += slices->owned.bytes[i];
    INVAR_TRY(invar_alloc((void **)&out->of, (size_t)model->n_params, sizeof *out->of,
                          "masters of all ranks"));
    if (slices->exchange.rank == 0)
        INVAR_TRY(invar_alloc((void **)&out->memory, bytes, 1, "masters of all ranks"));
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];

        out->of[i] = p->master;
        out->of[i].data =
            out->memory && p->master.data ? out->memory + ((char *)p->master.data - block) : NULL;
    }
    return invar_slices_collect(slices, "masters", out->memory, block, false);
}

invar_status invar_masters_collect(invar_masters *out, const invar_model *model)
{
    invar_slices slices;
    invar_status status;

    invar_masters_release(out);
    if (!scattered(model))
        return INVAR_OK;
    status = invar_masters_slices(&slices, model, &model->dev);
    if (status == INVAR_OK)
        status = collect(out, model, &slices);
    invar_slices_release(&slices);
    return status;
}

void invar_masters_release(invar_masters *masters)
{
    invar_free(masters->of);
    invar_free(masters->memory);
    *masters = (invar_masters){.of = NULL};
}
