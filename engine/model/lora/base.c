/*
 * base.c - the weights of a frozen base.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/lora/base.h"

#include "base/alloc.h"
#include "engine/model/digests.h"

#include "base/invar_banned.h"

void invar_base_writer_init(invar_base_writer *out, const invar_device *dev)
{
    *out = (invar_base_writer){.dev = dev};
    invar_caller_init(&out->caller, dev);
}

void invar_base_writer_release(invar_base_writer *writer)
{
    invar_caller_release(&writer->caller);
    invar_free(writer->near);
    invar_device_give(writer->dev, writer->staging);
}

invar_status invar_base_room(float **out, invar_base_writer *w, int64_t elements)
{
    size_t bytes = (size_t)elements * sizeof(float);

    if (bytes > w->near_bytes) {
        invar_free(w->near);
        w->near = NULL;
        w->near_bytes = 0;
        INVAR_TRY(invar_alloc((void **)&w->near, bytes, 1, "values of a frozen weight"));
        w->near_bytes = bytes;
    }
    *out = w->near;
    return INVAR_OK;
}

static invar_status stage(invar_base_writer *w, size_t bytes)
{
    if (bytes > w->staging_bytes) {
        INVAR_TRY(invar_caller_settle(&w->caller));
        invar_device_give(w->dev, w->staging);
        w->staging = NULL;
        w->staging_bytes = 0;
        INVAR_TRY(invar_device_take(w->dev, &w->staging, bytes, "values of a frozen weight"));
        w->staging_bytes = bytes;
    }
    return invar_device_put(w->dev, w->staging, w->near, bytes);
}

invar_status invar_base_write(invar_base_writer *w, const invar_param *p, int64_t first,
                              int64_t rows)
{
    int64_t cols = p->cols ? p->own.cols : rows;
    invar_tensor to = p->cols ? invar_tensor_rows(&p->weight, first, rows)
                              : invar_tensor_2d(p->weight.data, p->weight.dtype, 1, rows);
    size_t bytes = (size_t)(to.shape[0] * cols) * sizeof(float);

    if (to.dtype == INVAR_DTYPE_F32)
        return invar_device_put(w->dev, to.data, w->near, bytes);
    INVAR_TRY(stage(w, bytes));
    return INVAR_CALL(&w->caller, QUANTISE, quantise, .q = to,
                      .x = invar_tensor_2d(w->staging, INVAR_DTYPE_F32, to.shape[0], cols));
}

static invar_status hash_weights(invar_digest *of, const invar_model *model,
                                 const invar_device *dev)
{
    invar_status status = INVAR_OK;
    invar_digests digests;

    invar_digests_init(&digests, dev);
    for (int64_t i = 0; i < model->n_base && status == INVAR_OK; i++)
        status = invar_digests_add(&digests, &model->base[i].weight, 1);
    if (status == INVAR_OK)
        status = invar_digests_read(of, &digests);
    invar_digests_release(&digests);
    return status;
}

invar_status invar_base_hash(invar_digest *out, const invar_model *model, const invar_device *dev)
{
    invar_digest *of = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&of, (size_t)model->n_base, sizeof *of, "digests of a base"));
    status = hash_weights(of, model, dev);
    if (status == INVAR_OK)
        invar_hash_bytes(out, of, (size_t)model->n_base * sizeof *of);
    invar_free(of);
    return status;
}
