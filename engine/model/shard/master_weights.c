/*
 * master_weights.c - gathers masters, and weights computed from them, of rows that ranks own.
 *
 * Masters form one block in memory order, so the byte ranges of zero_ranges.c apply to them, and to
 * the moments of the optimizer, which have the same layout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/master_weights.h"

#include "base/alloc.h"

#include "base/invar_banned.h"

bool invar_full_masters_scattered(const invar_model *model)
{
    return invar_zero_partition_is_divided(model) && model->format != INVAR_FORMAT_FP32;
}

invar_status invar_full_masters_comm_init(invar_zero_comm *out, const invar_model *model,
                                          const invar_device *dev)
{
    INVAR_AUTO(invar_zero_ranges_release) invar_zero_ranges owned = {0};

    *out = (invar_zero_comm){.send_buffer = NULL};
    INVAR_TRY(invar_zero_ranges_masters(&owned, model));
    return invar_zero_comm_init(out, dev, model->layout, &owned);
}

/* ---- gathering on rank 0 --------------------------------------------------------------------- */

/*
 * Sets the tensors of all parameters in a block that is laid out as the ranges expect; without data
 * if `block` is NULL.
 */
static void set_tensors(invar_tensor *out, const invar_model *model, char *block)
{
    size_t at = 0;

    for (int64_t k = 0; k < model->n_params; k++) {
        int64_t i = model->order[k];
        const invar_param *p = &model->params[i];

        out[i] = invar_param_local_tensor(p, block && p->local.experts > 0 ? block + at : NULL);
        at += invar_aligned((size_t)invar_param_elements(p) * sizeof(float));
    }
}

static invar_status collect_masters(invar_full_masters *out, const invar_model *model,
                                    invar_zero_comm *comm)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < comm->owned.size; i++)
        bytes += comm->owned.bytes[i];
    INVAR_TRY(INVAR_ALLOC(out->tensors, (size_t)model->n_params, "masters of all ranks"));
    if (comm->plan.rank == 0)
        INVAR_TRY(INVAR_ALLOC(out->memory, bytes, "masters of all ranks"));
    set_tensors(out->tensors, model, out->memory);
    return invar_zero_comm_collect(comm, "masters", out->memory, model->memory.masters, true);
}

invar_status invar_full_masters_collect(invar_full_masters *out, const invar_model *model)
{
    INVAR_AUTO(invar_zero_comm_release) invar_zero_comm comm = {.send_buffer = NULL};

    invar_full_masters_release(out);
    if (!invar_full_masters_scattered(model))
        return INVAR_OK;
    INVAR_TRY(invar_full_masters_comm_init(&comm, model, &model->dev));
    return collect_masters(out, model, &comm);
}

void invar_full_masters_release(invar_full_masters *masters)
{
    invar_free(masters->tensors);
    invar_free(masters->memory);
    *masters = (invar_full_masters){.tensors = NULL};
}

/* ---- gathering on every rank ----------------------------------------------------------------- */

/* Gathers the rows of all owners; `out` has this rank's at their position. */
static invar_status gather_rows(float *out, const invar_model *model, int64_t param)
{
    INVAR_AUTO_FREE size_t *bytes = NULL;
    const invar_layout_axis *data = &model->layout->data;
    size_t each = (size_t)invar_param_row_elements(&model->params[param]) * sizeof(float);

    INVAR_TRY(INVAR_ALLOC(bytes, (size_t)data->size, "the bytes of a move"));
    for (int r = 0; r < data->size; r++)
        bytes[r] = (size_t)invar_zero_partition_rows(model, param, r).count * each;
    return invar_layout_gather(model->layout, data, "masters", out, bytes);
}

invar_status invar_full_masters_read(float *out, const invar_model *model, int64_t param)
{
    const invar_param *p = &model->params[param];
    bool scattered = invar_full_masters_scattered(model);
    const invar_tensor *own = scattered ? &p->master : invar_param_f32(p);
    int64_t each = invar_param_row_elements(p), first = scattered ? p->master_row : 0;

    if (own->shape[0] > 0)
        INVAR_TRY(invar_device_download(&model->dev, out + first * each, own->data,
                                        (size_t)(own->shape[0] * each) * sizeof(float)));
    return scattered ? gather_rows(out, model, param) : INVAR_OK;
}

invar_status invar_weights_gather(const invar_model *model)
{
    INVAR_AUTO(invar_zero_comm_release) invar_zero_comm comm = {.send_buffer = NULL};
    INVAR_AUTO(invar_zero_ranges_release) invar_zero_ranges owned = {0};

    if (!invar_zero_partition_is_divided(model) ||
        invar_layout_skips_transfers(model->layout, model->dev.backend->memory.dry_run))
        return INVAR_OK;
    INVAR_TRY(invar_zero_ranges_weights(&owned, model));
    INVAR_TRY(invar_zero_comm_init(&comm, &model->dev, model->layout, &owned));
    return invar_zero_comm_gather(&comm, "weights", model->memory.trained);
}
