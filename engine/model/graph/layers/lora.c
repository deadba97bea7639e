/*
 * lora.c - low-rank adapters of linear layers: two narrow products next to the layer's own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/layers/lora.h"

#include "engine/model/graph/layers/context_parallel.h"

#include "base/invar_banned.h"

static const invar_tensor none;

invar_tensor invar_adapter_buffer(invar_builder *b, const invar_weight *w, int64_t rows)
{
    if (!invar_adapter_present(w))
        return none;
    return invar_op_graph_tensor(b->graph, b->model.storage, rows, w->adapter.b.shape[1]);
}

/*
 * Returns the layer with weight `of` and without adapter; `divided` if ranks divide it as they
 * divide w.
 */
static invar_weight narrow_weight(const invar_weight *w, const invar_tensor *of, bool divided)
{
    invar_weight out = *w;

    out.w = *of;
    out.dw = none;
    out.adapter = (invar_adapter){.a = none};
    if (!divided) {
        out.split.shards = out.n_shards = 1;
        out.first_shard = 0;
    }
    return out;
}

invar_weight invar_adapter_a(const invar_weight *w)
{
    return narrow_weight(w, &w->adapter.a, w->split.columns);
}

invar_weight invar_adapter_b(const invar_weight *w)
{
    return narrow_weight(w, &w->adapter.b, !w->split.columns);
}

/* Rows of experts have no point: their order is not that of a sample. */
void invar_adapter_scale(invar_builder *b, const invar_lora_linear *l, const invar_tensor *u,
                         const invar_tensor *low, bool gradient)
{
    INVAR_APPEND(b->graph, b->layer, SCALE, scale, .y = *u, .x = *low,
                 .factor = l->w->adapter.factor);
    if (!l->experts)
        invar_build_adapted(b, l->name, gradient, u);
}

void invar_adapter_fold(invar_builder *b, const invar_tensor *y, const invar_tensor *sums,
                        const invar_tensor *residual)
{
    INVAR_APPEND(b->graph, b->layer, SHARDS_FOLD, shards_fold, .y = *y, .x = *sums,
                 .residual = *residual, .shards = 2);
}

void invar_adapter_gradient(invar_builder *b, const invar_lora_linear *l, const invar_tensor *dw,
                            const invar_tensor *dy, const invar_tensor *x)
{
    invar_index_range share;
    invar_tensor all;

    if (l->experts) {
        INVAR_APPEND(b->graph, b->layer, MOE_LINEAR_DW, moe_linear_dw, .dw = *dw, .dy = *dy,
                     .x = *x, .row_token = l->row_token, .experts = *l->experts,
                     .units = b->rows.all_units);
        invar_op_graph_mark_overwrite(b->graph, offsetof(invar_moe_linear_dw_args, fresh));
        return;
    }
    share = invar_cp_columns(b, dy->shape[1]);
    all = b->rows.context ? invar_cp_spread(b, dy, b->rows.all_count, b->rows.context->row) : *dy;
    INVAR_APPEND(b->graph, b->layer, LINEAR_DW, linear_dw,
                 .dw = invar_tensor_rows(dw, share.first, share.count), .dy = all, .x = *x,
                 .units = b->rows.all_units);
    invar_op_graph_mark_overwrite(b->graph, offsetof(invar_linear_dw_args, fresh));
}
