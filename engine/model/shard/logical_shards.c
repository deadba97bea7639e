/*
 * logical_shards.c - views of logical shards, and gathering of their data over ranks.
 *
 * Who contributes which shard, and how many bytes, follows from the partition alone, so ranks
 * exchange data without headers: one all-gather along the tensor, expert and pipeline axis each,
 * then a reordering into canonical order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/logical_shards.h"

#include <string.h>

#include "base/alloc.h"
#include "kernels-deterministic/math/shards.h"

#include "base/invar_banned.h"

/* ---- logical shards -------------------------------------------------------------------------- */

int64_t invar_logical_shards_of(const invar_param *p)
{
    return p->split.shards > 1 ? p->stack * p->split.shards : 1;
}

int64_t invar_logical_shards_here(const invar_param *p)
{
    if (p->split.shards > 1)
        return p->local.experts * p->local.n_shards;
    return p->local.experts > 0 ? 1 : 0;
}

/* First row or column of logical shard v of an expert, along the split. */
static int64_t shard_start(const invar_param *p, int32_t v)
{
    return invar_shard_start(p->split.columns ? p->cols : p->rows, p->split.atom, p->split.shards,
                             v);
}

invar_index_range invar_logical_shard_share(const invar_param *p, int32_t v)
{
    return (invar_index_range){shard_start(p, v), shard_start(p, v + 1) - shard_start(p, v)};
}

invar_tensor invar_logical_shard_of(const invar_param *p, const invar_tensor *t, int64_t shard)
{
    const invar_param_shard *own = &p->local;
    int64_t row, first, size;
    invar_tensor rows;
    int32_t v;

    if (p->split.shards == 1)
        return *t;
    row = shard / own->n_shards * own->rows;
    v = own->first_shard + (int32_t)(shard % own->n_shards);
    first = shard_start(p, v) - (p->split.columns ? own->col : own->row);
    size = shard_start(p, v + 1) - shard_start(p, v);
    rows = invar_tensor_rows(t, row + (p->split.columns ? 0 : first),
                             p->split.columns ? own->rows : size);
    return p->split.columns ? invar_tensor_columns(&rows, first, size) : rows;
}

invar_index_range invar_logical_shard_rows(const invar_param *p, int64_t shard)
{
    int64_t first = p->split.shards > 1 ? shard / p->local.n_shards * p->local.rows : 0;
    int32_t v = p->local.first_shard + (int32_t)(shard % p->local.n_shards);

    if (p->split.shards == 1)
        return (invar_index_range){0, p->local.experts * p->local.rows};
    if (p->split.columns)
        return (invar_index_range){first, p->local.rows};
    return (invar_index_range){first + shard_start(p, v) - p->local.row,
                               shard_start(p, v + 1) - shard_start(p, v)};
}

int64_t invar_logical_shard_at(const invar_param *p, int64_t row)
{
    int64_t piece = p->split.shards > 1 ? row / p->local.rows * p->local.n_shards : 0;

    while (row >=
           invar_logical_shard_rows(p, piece).first + invar_logical_shard_rows(p, piece).count)
        piece++;
    return piece;
}

static invar_index_range intersect_ranges(const invar_index_range *a, const invar_index_range *b)
{
    int64_t first = a->first > b->first ? a->first : b->first;
    int64_t end_a = a->first + a->count, end_b = b->first + b->count;
    int64_t end = end_a < end_b ? end_a : end_b;

    return (invar_index_range){first, end > first ? end - first : 0};
}

int64_t invar_logical_shard_leaves(const invar_param *p, int64_t shard,
                                   const invar_index_range *rows)
{
    invar_index_range own = invar_logical_shard_rows(p, shard);
    int32_t v = p->local.first_shard + (int32_t)(shard % p->local.n_shards);
    int64_t cols = invar_logical_shards_by_columns(p) ? shard_start(p, v + 1) - shard_start(p, v)
                                                      : p->local.cols;

    return invar_logical_shard_leaf_count(intersect_ranges(&own, rows).count *
                                          (p->cols ? cols : 1));
}

/* Lists the leaves of rows that are a part of a shard; they are contiguous. */
static void list_leaves(invar_tensor *out, const invar_tensor *t, const invar_index_range *rows)
{
    int64_t each = t->rank == 2 ? t->shape[1] : 1, left = rows->count * each;
    float *at = (float *)t->data + rows->first * each;

    for (; left > 0;
         left -= INVAR_LOGICAL_SHARD_LEAF_ELEMENTS, at += INVAR_LOGICAL_SHARD_LEAF_ELEMENTS)
        *out++ = invar_tensor_1d(
            at, INVAR_DTYPE_F32,
            left < INVAR_LOGICAL_SHARD_LEAF_ELEMENTS ? left : INVAR_LOGICAL_SHARD_LEAF_ELEMENTS);
}

int64_t invar_logical_shard_parts(invar_tensor *out, const invar_param *p, const invar_tensor *t,
                                  int64_t shard, const invar_index_range *rows)
{
    invar_index_range own = invar_logical_shard_rows(p, shard), some = intersect_ranges(&own, rows);

    if (some.count == 0)
        return 0;
    if (some.count == own.count) {
        if (out)
            *out = invar_logical_shard_of(p, t, shard);
        return 1;
    }
    if (out)
        list_leaves(out, t, &some);
    return invar_logical_shard_leaves(p, shard, rows);
}

invar_index_range invar_logical_shards_among(const invar_param *p, const invar_index_range *rows)
{
    int64_t first, last;

    if (rows->count == 0)
        return (invar_index_range){0, 0};
    first = invar_logical_shard_at(p, rows->first);
    last = invar_logical_shard_at(p, rows->first + rows->count - 1);
    return (invar_index_range){
        first, last - first + (invar_logical_shards_by_columns(p) ? p->local.n_shards : 1)};
}

/* ---- contributors ---------------------------------------------------------------------------- */

int invar_logical_shards_contributor(const invar_model *model, const invar_param *p, int64_t expert,
                                     int32_t v)
{
    return invar_model_partition_first(&model->part, &model->spec, p, expert, v);
}

bool invar_logical_shards_is_contributor(const invar_model *model, const invar_param *p)
{
    return p->local.experts > 0 &&
           invar_logical_shards_contributor(model, p, p->local.expert, p->local.first_shard) ==
               invar_model_partition_number(&model->part);
}

/* ---- gathering ------------------------------------------------------------------------------- */

/* Data of one gather; the contributions of the ranks are adjacent, in the order of rank numbers. */
typedef struct shard_gather {
    const invar_model *model;
    size_t size;
    const int64_t *counts;
    size_t *bytes; /* (ranks) bytes that each contributes */
    size_t *at;    /* (ranks) offset of each contribution */
    char *all;
} shard_gather;

/* Contributors of the logical shards of an expert, and of the following experts up to `end`. */
typedef struct contributors {
    int of[INVAR_LINEAR_MAX_SHARDS];
    int64_t end;
} contributors;

static void find_contributors(contributors *out, const invar_model *model, const invar_param *p,
                              int64_t expert)
{
    invar_model_partition first;
    invar_param_shard box;

    for (int32_t v = 0; v < p->split.shards; v++)
        out->of[v] = invar_logical_shards_contributor(model, p, expert, v);
    first = invar_model_partition_numbered(&model->part, out->of[0]);
    box = invar_model_partition_shard(&first, &model->spec, p);
    out->end = box.expert + box.experts;
}

/*
 * Without `out`, adds up what each rank contributes; with `out`, copies it to canonical order and
 * advances g->at. Returns the bytes of all shards.
 */
static size_t walk_shards(shard_gather *g, char *out)
{
    const invar_model *model = g->model;
    size_t total = 0;
    int64_t piece = 0;

    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        contributors who = {.end = 0};

        for (int64_t k = 0; k < invar_logical_shards_of(p); k++, piece++) {
            size_t bytes = (g->counts ? (size_t)g->counts[piece] : 1) * g->size;
            int giver;
            if (k / p->split.shards >= who.end)
                find_contributors(&who, model, p, k / p->split.shards);
            giver = who.of[k % p->split.shards];
            if (out)
                memcpy(out + total, g->all + g->at[giver], bytes);
            *(out ? &g->at[giver] : &g->bytes[giver]) += bytes;
            total += bytes;
        }
    }
    return total;
}

/*
 * Gathers along an axis. Each of its ranks has the contributions of `width` ranks with adjacent
 * numbers.
 */
static invar_status gather_along_axis(const shard_gather *g, const invar_layout_axis *axis,
                                      int width, const char *phase)
{
    INVAR_AUTO_FREE size_t *parts = NULL;
    int number = invar_model_partition_number(&g->model->part), all = width * axis->size;
    int first = number / all * all;

    if (axis->size == 1)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(parts, (size_t)axis->size, "the bytes of a move"));
    for (int r = 0; r < axis->size; r++) {
        parts[r] = 0;
        for (int n = 0; n < width; n++)
            parts[r] += g->bytes[first + r * width + n];
    }
    return invar_layout_gather(g->model->layout, axis, phase, g->all + g->at[first], parts);
}

static invar_status gather_along_all_axes(const shard_gather *g, const char *phase)
{
    const invar_layout *layout = g->model->layout;
    int tensors = layout->tensor.size;

    INVAR_TRY(gather_along_axis(g, &layout->tensor, 1, phase));
    INVAR_TRY(gather_along_axis(g, &layout->expert, tensors, phase));
    return gather_along_axis(g, &layout->pipeline, tensors * layout->expert.size, phase);
}

static invar_status gather_shards(shard_gather *g, void *out, const char *phase, const void *own)
{
    int ranks = invar_model_partition_ranks(&g->model->part);
    int self = invar_model_partition_number(&g->model->part);
    bool dry = g->model->dev.backend->memory.dry_run;
    size_t total;

    INVAR_TRY(INVAR_ALLOC_ZEROED(g->bytes, 2 * (size_t)ranks, "the bytes of a move"));
    g->at = g->bytes + ranks;
    total = walk_shards(g, NULL);
    if (dry && out) // nothing was computed
        memset(out, 0, total);
    if (ranks == 1 && !dry && total > 0)
        memcpy(out, own, total);
    if (ranks == 1 || invar_layout_skips_transfers(g->model->layout, dry))
        return INVAR_OK;
    for (int r = 1; r < ranks; r++)
        g->at[r] = g->at[r - 1] + g->bytes[r - 1];
    INVAR_TRY(INVAR_ALLOC(g->all, total, "what ranks know of their pieces"));
    if (g->bytes[self] > 0 && !dry)
        memcpy(g->all + g->at[self], own, g->bytes[self]);
    INVAR_TRY(gather_along_all_axes(g, phase));
    if (!dry)
        (void)walk_shards(g, out);
    return INVAR_OK;
}

invar_status invar_logical_shards_gather(void *out, const invar_model *model, const char *phase,
                                         const void *own, size_t size, const int64_t *counts)
{
    shard_gather g = {.model = model, .size = size, .counts = counts};
    invar_status status = gather_shards(&g, out, phase, own);

    invar_free(g.bytes);
    invar_free(g.all);
    return status;
}
