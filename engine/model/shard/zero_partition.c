/*
 * zero_partition.c - divides the rows of all parameters among data-parallel ranks (ZeRO-1).
 *
 * The parameters of a group (the embedding, or the rest of a model chunk) are taken as one sequence
 * of elements in memory order and cut into equal parts; each cut moves up to the next row at which
 * owners may change. All ranks compute the same boundaries, so gathered data needs no headers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/zero_partition.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/forward.h"
#include "engine/model/shard/logical_shards.h"

#include "base/invar_banned.h"

/* ---- rows ------------------------------------------------------------------------------------ */

/*
 * Returns true if, in some format, rows on both sides of the boundary share scales. Scales start
 * again with each expert.
 */
static bool splits_scales(const invar_param *p, int64_t row)
{
    if (p->kind != INVAR_PARAM_LINEAR && p->kind != INVAR_PARAM_EXPERT)
        return false;
    return row % (p->stack > 1 ? p->local.rows : INVAR_FP8_BLOCK) != 0;
}

/* Returns true if the owner may change at this row. */
static bool may_change_owner(const invar_param *p, int64_t row)
{
    int64_t into = row - invar_logical_shard_rows(p, invar_logical_shard_at(p, row)).first;

    if (splits_scales(p, row))
        return false;
    if (row * invar_param_row_elements(p) % (int64_t)(INVAR_ALIGN / sizeof(float)))
        return false;
    if (p->split.shards > 1 && p->split.columns)
        return into == 0;
    return into * invar_param_row_elements(p) % INVAR_LOGICAL_SHARD_LEAF_ELEMENTS == 0;
}

static int64_t next_boundary(const invar_param *p, int64_t row)
{
    while (row < invar_param_rows(p) && !may_change_owner(p, row))
        row++;
    return row;
}

/* ---- owners ---------------------------------------------------------------------------------- */

/* Returns the group of a parameter: 0 for the embedding, else 1 + its model chunk on this stage. */
static int64_t group_of(const invar_model *model, const invar_param *p)
{
    return p == model->embedding ? 0 : 1 + invar_grads_chunk(model, p) / model->part.stages;
}

/*
 * Writes the first row of each rank in a parameter; `at` elements of its group, which has `total`,
 * come before it.
 */
static void divide_param(int64_t *first, const invar_param *p, int64_t at, int64_t total, int size)
{
    int64_t rows = invar_param_rows(p), each = invar_param_row_elements(p);

    for (int r = 0; r <= size; r++) {
        int64_t goal = total / size * r + total % size * r / size - at;

        if (goal <= 0 || r == 0)
            first[r] = 0;
        else if (goal >= rows * each || r == size)
            first[r] = rows;
        else
            first[r] = next_boundary(p, (goal + each - 1) / each);
    }
}

/* Elements of each group: of all its parameters, and of those before the current one. */
typedef struct group_sizes {
    int64_t total[INVAR_LAYOUT_MAX_CHUNKS + 1], at[INVAR_LAYOUT_MAX_CHUNKS + 1];
} group_sizes;

static void divide_params(invar_model *model, int size)
{
    group_sizes g = {.total = {0}};

    for (int64_t i = 0; i < model->n_params; i++)
        g.total[group_of(model, &model->params[i])] += invar_param_elements(&model->params[i]);
    for (int64_t k = 0; k < model->n_params; k++) {
        int64_t i = model->order[k], group = group_of(model, &model->params[i]);

        divide_param(model->zero_rows + i * (size + 1), &model->params[i], g.at[group],
                     g.total[group], size);
        g.at[group] += invar_param_elements(&model->params[i]);
    }
}

invar_status invar_zero_partition_make(invar_model *model)
{
    if (!invar_layout_has_data_parallel(model->layout))
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(model->zero_rows,
                          (size_t)(model->n_params * (model->layout->data.size + 1)),
                          "the owners of parameters"));
    divide_params(model, model->layout->data.size);
    return INVAR_OK;
}

bool invar_zero_partition_is_divided(const invar_model *model)
{
    return model->zero_rows != NULL;
}

invar_index_range invar_zero_partition_rows(const invar_model *model, int64_t param, int rank)
{
    const int64_t *first = model->zero_rows + param * (model->layout->data.size + 1) + rank;

    return (invar_index_range){first[0], first[1] - first[0]};
}

invar_index_range invar_zero_partition_local_rows(const invar_model *model, int64_t param)
{
    if (model->zero_rows)
        return invar_zero_partition_rows(model, param, model->layout->data.rank);
    return (invar_index_range){0, invar_param_rows(&model->params[param])};
}

/* ---- gathering ------------------------------------------------------------------------------- */

invar_status invar_zero_partition_count(int64_t **out, const invar_model *model,
                                        int64_t (*count)(const invar_param *param,
                                                         const invar_index_range *rows))
{
    int ranks = model->layout->data.size;

    INVAR_TRY(
        INVAR_ALLOC(*out, (size_t)(ranks * model->n_params), "what ranks know of their rows"));
    for (int64_t i = 0; i < model->n_params; i++) {
        bool given = invar_logical_shards_is_contributor(model, &model->params[i]);

        for (int r = 0; r < ranks; r++) {
            invar_index_range rows = invar_zero_partition_rows(model, i, r);
            (*out)[r * model->n_params + i] = given ? count(&model->params[i], &rows) : 0;
        }
    }
    return INVAR_OK;
}

/* Data of one gather; the contributions of the ranks are adjacent. */
typedef struct row_gather {
    const invar_model *model;
    size_t size;
    const int64_t *counts;
    char *all;
    size_t *bytes, *at; /* (ranks) bytes of each rank's contribution, and offset of its next
                           parameter */
} row_gather;

static size_t bytes_of(const row_gather *g, int64_t param, int rank)
{
    return (size_t)g->counts[rank * g->model->n_params + param] * g->size;
}

static size_t count_bytes(row_gather *g)
{
    size_t total = 0;

    for (int r = 0; r < g->model->layout->data.size; r++) {
        g->at[r] = total;
        g->bytes[r] = 0;
        for (int64_t i = 0; i < g->model->n_params; i++)
            g->bytes[r] += bytes_of(g, i, r);
        total += g->bytes[r];
    }
    return total;
}

static void order_by_param(char *out, const row_gather *g)
{
    for (int64_t i = 0; i < g->model->n_params; i++)
        for (int r = 0; r < g->model->layout->data.size; r++) {
            memcpy(out, g->all + g->at[r], bytes_of(g, i, r));
            g->at[r] += bytes_of(g, i, r);
            out += bytes_of(g, i, r);
        }
}

static invar_status gather_rows(void *out, row_gather *g, const char *phase, const void *own)
{
    const invar_layout *layout = g->model->layout;
    bool dry = g->model->dev.backend->memory.dry_run;
    int rank = layout->data.rank;
    size_t total;

    INVAR_TRY(INVAR_ALLOC(g->bytes, 2 * (size_t)layout->data.size, "the bytes of a move"));
    g->at = g->bytes + layout->data.size;
    total = count_bytes(g);
    if (dry && out) // nothing was computed
        memset(out, 0, total);
    if (invar_layout_skips_transfers(layout, dry))
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(g->all, total + 1, "what ranks know of their rows"));
    if (g->bytes[rank] > 0 && !dry)
        memcpy(g->all + g->at[rank], own, g->bytes[rank]);
    INVAR_TRY(invar_layout_gather(layout, &layout->data, phase, g->all, g->bytes));
    if (!dry)
        order_by_param(out, g);
    return INVAR_OK;
}

invar_status invar_zero_partition_gather(void *out, const invar_model *model, const char *phase,
                                         const void *own, size_t size, const int64_t *counts)
{
    row_gather g = {.model = model, .size = size, .counts = counts};
    invar_status status = gather_rows(out, &g, phase, own);

    invar_free(g.bytes);
    invar_free(g.all);
    return status;
}
