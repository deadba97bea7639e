/*
 * grads.c - the gradients of a model's parameters: one block of memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/forward.h"

#include "base/alloc.h"
#include "engine/program/call.h"
#include "kernels-deterministic/math/shards.h"

#include "base/invar_banned.h"

static invar_status zero_all(invar_grads *grads)
{
    return invar_device_zero(&grads->dev, grads->memory, grads->bytes);
}

/* `at` counts from the beginning of the block. */
static invar_tensor placed(const invar_grads *grads, const invar_tensor *at)
{
    invar_tensor t = *at;

    t.data = (char *)grads->memory + (uintptr_t)at->data;
    return t;
}

/* The pieces of a parameter's gradient; NULL: only their number. */
static int64_t cut_up(invar_tensor *out, const invar_tensor *t, const invar_cut *cut)
{
    int64_t rows = t->shape[0] / cut->stack, count = 0;

    if (cut->pieces == 1) {
        if (out)
            *out = *t;
        return 1;
    }
    for (int64_t e = 0; e < cut->stack; e++)
        for (int32_t v = 0; v < cut->pieces; v++, count++) {
            int64_t n = cut->columns ? t->shape[1] : rows;
            int64_t first = invar_shard_start(n, cut->atom, cut->pieces, v);
            int64_t size = invar_shard_start(n, cut->atom, cut->pieces, v + 1) - first;
            invar_tensor part = invar_tensor_rows(t, e * rows + (cut->columns ? 0 : first),
                                                  cut->columns ? rows : size);
            if (out)
                out[count] = cut->columns ? invar_tensor_columns(&part, first, size) : part;
        }
    return count;
}

static invar_status list_pieces(invar_grads *grads, const invar_model *model)
{
    int64_t next = 0;

    for (int64_t i = 0; i < model->n_params; i++)
        grads->n_pieces += cut_up(NULL, &grads->of[i], &model->params[i].cut);
    INVAR_TRY(invar_alloc((void **)&grads->pieces, (size_t)grads->n_pieces, sizeof *grads->pieces,
                          "the list of gradients"));
    for (int64_t i = 0; i < model->n_params; i++)
        next += cut_up(grads->pieces + next, &grads->of[i], &model->params[i].cut);
    return INVAR_OK;
}

/* Matrices come first, the embedding before all; then vectors, then the tied head's. */
static void lay_out(invar_grads *grads, const invar_model *model)
{
    char *end = (char *)grads->memory + grads->bytes;

    INVAR_CHECK(model->order[0] == 0 && model->embedding == &model->params[0]);
    for (int64_t k = 0; k < model->n_params; k++) {
        int64_t i = model->order[k];
        grads->of[i] = placed(grads, &model->params[i].grad);
        if (k == 1)
            grads->embedding_bytes = (uintptr_t)model->params[i].grad.data;
        if (model->params[i].cols == 0 && !grads->vectors)
            grads->vectors = grads->of[i].data;
    }
    if (invar_tensor_present(&model->tied_grad)) {
        grads->tied_head = placed(grads, &model->tied_grad);
        end = grads->tied_head.data;
    }
    grads->vector_bytes = (size_t)(end - (char *)grads->vectors);
}

invar_status invar_grads_new(invar_grads **out, const invar_model *model)
{
    invar_grads *grads = NULL;
    size_t bytes = model->grad_bytes;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_alloc((void **)&grads, 1, sizeof *grads, "gradients"));
    *grads = (invar_grads){.bytes = bytes, .dev = model->dev};
    status = invar_alloc((void **)&grads->of, (size_t)model->n_params, sizeof *grads->of,
                         "the list of gradients");
    if (status == INVAR_OK)
        status = invar_alloc((void **)&grads->digests, (size_t)model->n_params,
                             sizeof *grads->digests, "digests of gradients");
    if (status == INVAR_OK)
        status = invar_device_take(&grads->dev, &grads->memory, bytes, "gradients");
    if (status == INVAR_OK)
        status = zero_all(grads);
    if (status == INVAR_OK) {
        lay_out(grads, model);
        status = list_pieces(grads, model);
    }
    if (status != INVAR_OK) {
        invar_grads_free(grads);
        return status;
    }
    grads->fresh = true;
    *out = grads;
    return INVAR_OK;
}

void invar_grads_free(invar_grads *grads)
{
    if (!grads)
        return;
    invar_free(grads->of);
    invar_free(grads->pieces);
    invar_free(grads->digests);
    invar_device_give(&grads->dev, grads->memory);
    invar_free(grads);
}

invar_status invar_grads_zero(invar_grads *grads)
{
    grads->fresh = true;
    INVAR_TRY(invar_device_zero(&grads->dev, grads->memory, grads->embedding_bytes));
    return invar_device_zero(&grads->dev, grads->vectors, grads->vector_bytes);
}

invar_status invar_grads_join(invar_grads *grads, const invar_model *model, const invar_device *dev)
{
    const invar_tensor *sum = &grads->of[0]; // the embedding comes first
    invar_caller caller;
    invar_status status;

    if (grads->fresh) { // a step without a backward
        INVAR_TRY(zero_all(grads));
        grads->fresh = false;
    }
    if (!invar_tensor_present(&grads->tied_head))
        return INVAR_OK;
    INVAR_CHECK(model->embedding == &model->params[0]);
    invar_caller_init(&caller, dev);
    status = INVAR_CALL(&caller, ADD, add, .out = *sum, .a = grads->tied_head, .b = *sum);
    invar_caller_release(&caller);
    return status;
}
