/*
 * logical_shards.c - what ranks know of their pieces, put together.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/logical_shards.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/model/graph/op_runner.h"
#include "engine/model/shard/zero_partition.h"
#include "kernels-deterministic/math/shards.h"

#include "base/invar_banned.h"

/* ---- pieces ---------------------------------------------------------------------------------- */

static bool cut_along_columns(const invar_param *p)
{
    return p->cut.shards > 1 && p->cut.columns;
}

int64_t invar_logical_shards_of(const invar_param *p)
{
    return p->cut.shards > 1 ? p->stack * p->cut.shards : 1;
}

int64_t invar_logical_shards_here(const invar_param *p)
{
    if (p->cut.shards > 1)
        return p->local.experts * p->local.pieces;
    return p->local.experts > 0 ? 1 : 0;
}

/* Where piece v of an expert begins, along what is cut. */
static int64_t start_of(const invar_param *p, int32_t v)
{
    return invar_shard_start(p->cut.columns ? p->cols : p->rows, p->cut.atom, p->cut.shards, v);
}

invar_index_range invar_logical_shard_share(const invar_param *p, int32_t v)
{
    return (invar_index_range){start_of(p, v), start_of(p, v + 1) - start_of(p, v)};
}

invar_tensor invar_logical_shard_of(const invar_param *p, const invar_tensor *t, int64_t piece)
{
    const invar_param_shard *own = &p->local;
    int64_t row, first, size;
    invar_tensor rows;
    int32_t v;

    if (p->cut.shards == 1)
        return *t;
    row = piece / own->pieces * own->rows;
    v = own->piece + (int32_t)(piece % own->pieces);
    first = start_of(p, v) - (p->cut.columns ? own->col : own->row);
    size = start_of(p, v + 1) - start_of(p, v);
    rows =
        invar_tensor_rows(t, row + (p->cut.columns ? 0 : first), p->cut.columns ? own->rows : size);
    return p->cut.columns ? invar_tensor_columns(&rows, first, size) : rows;
}

static int64_t leaves_in(int64_t elements)
{
    int64_t bytes = elements * (int64_t)sizeof(float);

    return bytes / INVAR_TREE_LEAF_BYTES + (bytes % INVAR_TREE_LEAF_BYTES != 0);
}

invar_index_range invar_logical_shard_rows(const invar_param *p, int64_t piece)
{
    int64_t first = p->cut.shards > 1 ? piece / p->local.pieces * p->local.rows : 0;
    int32_t v = p->local.piece + (int32_t)(piece % p->local.pieces);

    if (p->cut.shards == 1)
        return (invar_index_range){0, p->local.experts * p->local.rows};
    if (p->cut.columns)
        return (invar_index_range){first, p->local.rows};
    return (invar_index_range){first + start_of(p, v) - p->local.row,
                               start_of(p, v + 1) - start_of(p, v)};
}

int64_t invar_logical_shard_at(const invar_param *p, int64_t row)
{
    int64_t piece = p->cut.shards > 1 ? row / p->local.rows * p->local.pieces : 0;

    while (row >=
           invar_logical_shard_rows(p, piece).first + invar_logical_shard_rows(p, piece).count)
        piece++;
    return piece;
}

static invar_index_range index_range_common(const invar_index_range *a, const invar_index_range *b)
{
    int64_t first = a->first > b->first ? a->first : b->first;
    int64_t end_a = a->first + a->count, end_b = b->first + b->count;
    int64_t end = end_a < end_b ? end_a : end_b;

    return (invar_index_range){first, end > first ? end - first : 0};
}

int64_t invar_logical_shard_leaves(const invar_param *p, int64_t piece,
                                   const invar_index_range *rows)
{
    invar_index_range own = invar_logical_shard_rows(p, piece);
    int32_t v = p->local.piece + (int32_t)(piece % p->local.pieces);
    int64_t cols = cut_along_columns(p) ? start_of(p, v + 1) - start_of(p, v) : p->local.cols;

    return leaves_in(index_range_common(&own, rows).count * (p->cols ? cols : 1));
}

/* Of rows that are no whole piece: those lie together. */
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
                                  int64_t piece, const invar_index_range *rows)
{
    invar_index_range own = invar_logical_shard_rows(p, piece),
                      some = index_range_common(&own, rows);

    if (some.count == 0)
        return 0;
    if (some.count == own.count) {
        if (out)
            *out = invar_logical_shard_of(p, t, piece);
        return 1;
    }
    if (out)
        list_leaves(out, t, &some);
    return invar_logical_shard_leaves(p, piece, rows);
}

/* Of piece v of an expert, or of all of a parameter that is not cut. */
static int64_t leaves_of(const invar_param *p, int32_t v)
{
    int64_t cols = p->cols ? p->cols : 1;

    if (p->cut.shards == 1)
        return leaves_in(invar_param_all_elements(p));
    return leaves_in((start_of(p, v + 1) - start_of(p, v)) * (p->cut.columns ? p->rows : cols));
}

/* Of those pieces of an expert that are here. */
static int64_t leaves_each(const invar_param *p)
{
    int64_t leaves = 0;

    for (int32_t v = p->local.piece; v < p->local.piece + p->local.pieces; v++)
        leaves += leaves_of(p, v);
    return leaves;
}

invar_index_range invar_logical_shards_among(const invar_param *p, const invar_index_range *rows)
{
    int64_t first, last;

    if (rows->count == 0)
        return (invar_index_range){0, 0};
    first = invar_logical_shard_at(p, rows->first);
    last = invar_logical_shard_at(p, rows->first + rows->count - 1);
    return (invar_index_range){first, last - first + (cut_along_columns(p) ? p->local.pieces : 1)};
}

static int64_t leaves_among(const invar_param *p, const invar_index_range *rows)
{
    invar_index_range pieces = invar_logical_shards_among(p, rows);
    int64_t leaves = 0;

    for (int64_t k = pieces.first; k < pieces.first + pieces.count; k++)
        leaves += invar_logical_shard_leaves(p, k, rows);
    return leaves;
}

/* ---- who gives ------------------------------------------------------------------------------- */

int invar_logical_shards_contributor(const invar_model *model, const invar_param *p, int64_t expert,
                                     int32_t v)
{
    return invar_model_partition_first(&model->part, &model->spec, p, expert, v);
}

bool invar_logical_shards_is_contributor(const invar_model *model, const invar_param *p)
{
    return p->local.experts > 0 &&
           invar_logical_shards_contributor(model, p, p->local.expert, p->local.piece) ==
               invar_model_partition_number(&model->part);
}

/* ---- gathering ------------------------------------------------------------------------------- */

/* What ranks give lies one behind the other, in the order of their numbers. */
typedef struct gathering {
    const invar_model *model;
    size_t size;
    const int64_t *counts;
    size_t *bytes; /* (ranks) that each gives */
    size_t *at;    /* (ranks) where they begin */
    char *all;
} gathering;

static size_t piece_bytes(const gathering *g, int64_t piece)
{
    return (g->counts ? (size_t)g->counts[piece] : 1) * g->size;
}

/* Who gives the pieces of an expert, and of those behind it up to `end`. */
typedef struct givers {
    int of[INVAR_LINEAR_MAX_SHARDS];
    int64_t end;
} givers;

static void find_givers(givers *out, const invar_model *model, const invar_param *p, int64_t expert)
{
    invar_model_partition first;
    invar_param_shard box;

    for (int32_t v = 0; v < p->cut.shards; v++)
        out->of[v] = invar_logical_shards_contributor(model, p, expert, v);
    first = invar_model_partition_numbered(&model->part, out->of[0]);
    box = invar_model_partition_box(&first, &model->spec, p);
    out->end = box.expert + box.experts;
}

/* Counts what each rank gives, or, with `out`, brings it in canonical order. */
static size_t gathering_walk(gathering *g, char *out)
{
    const invar_model *model = g->model;
    size_t total = 0;
    int64_t piece = 0;

    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        givers who = {.end = 0};

        for (int64_t k = 0; k < invar_logical_shards_of(p); k++, piece++) {
            size_t bytes = piece_bytes(g, piece);
            int giver;
            if (k / p->cut.shards >= who.end)
                find_givers(&who, model, p, k / p->cut.shards);
            giver = who.of[k % p->cut.shards];
            if (out)
                memcpy(out + total, g->all + g->at[giver], bytes);
            *(out ? &g->at[giver] : &g->bytes[giver]) += bytes;
            total += bytes;
        }
    }
    return total;
}

/* Each rank of the axis has what `width` ranks give that stand together. */
static invar_status move_along(const gathering *g, const invar_layout_axis *axis, int width,
                               const char *phase)
{
    int number = invar_model_partition_number(&g->model->part), all = width * axis->size;
    int first = number / all * all;
    size_t *parts = NULL;
    invar_status status;

    if (axis->size == 1)
        return INVAR_OK;
    INVAR_TRY(
        invar_alloc((void **)&parts, (size_t)axis->size, sizeof *parts, "the bytes of a move"));
    for (int r = 0; r < axis->size; r++) {
        parts[r] = 0;
        for (int n = 0; n < width; n++)
            parts[r] += g->bytes[first + r * width + n];
    }
    status = invar_layout_gather(g->model->layout, axis, phase, g->all + g->at[first], parts);
    invar_free(parts);
    return status;
}

static invar_status gathering_move(const gathering *g, const char *phase)
{
    const invar_layout *layout = g->model->layout;
    int tensors = layout->tensor.size;

    INVAR_TRY(move_along(g, &layout->tensor, 1, phase));
    INVAR_TRY(move_along(g, &layout->expert, tensors, phase));
    return move_along(g, &layout->pipeline, tensors * layout->expert.size, phase);
}

static invar_status gathering_gather(gathering *g, void *out, const char *phase, const void *own)
{
    int ranks = invar_model_partition_ranks(&g->model->part);
    int self = invar_model_partition_number(&g->model->part);
    bool dry = g->model->dev.backend->memory.dry_run;
    size_t total;

    INVAR_TRY(invar_alloc((void **)&g->bytes, 2 * (size_t)ranks, sizeof *g->bytes,
                          "the bytes of a move"));
    memset(g->bytes, 0, 2 * (size_t)ranks * sizeof *g->bytes);
    g->at = g->bytes + ranks;
    total = gathering_walk(g, NULL);
    if (dry && out) // nothing was computed
        memset(out, 0, total);
    if (ranks == 1 && !dry && total > 0)
        memcpy(out, own, total);
    if (ranks == 1 || invar_layout_skips_transfers(g->model->layout, dry))
        return INVAR_OK;
    for (int r = 1; r < ranks; r++)
        g->at[r] = g->at[r - 1] + g->bytes[r - 1];
    INVAR_TRY(invar_alloc((void **)&g->all, total, 1, "what ranks know of their pieces"));
    if (g->bytes[self] > 0 && !dry)
        memcpy(g->all + g->at[self], own, g->bytes[self]);
    INVAR_TRY(gathering_move(g, phase));
    if (!dry)
        (void)gathering_walk(g, out);
    return INVAR_OK;
}

invar_status invar_logical_shards_gather(void *out, const invar_model *model, const char *phase,
                                         const void *own, size_t size, const int64_t *counts)
{
    gathering g = {.model = model, .size = size, .counts = counts};
    invar_status status = gathering_gather(&g, out, phase, own);

    invar_free(g.bytes);
    invar_free(g.all);
    return status;
}

/* ---- digests --------------------------------------------------------------------------------- */

typedef struct hashing {
    const invar_model *model;
    const invar_tensor *of; /* NULL: masters */
    bool dry;               /* nothing is hashed: moves are made, and digests are zeros */
    invar_op_runner caller;
    invar_upload_buffer staging;
    int64_t *starts;         /* of the segments of all parameters that are given */
    const void *starts_seen; /* as ops read them */
    int64_t *counts;         /* leaves of all pieces of the model */
    int64_t own, given, all; /* leaves of what is hashed here; of what is given; of everything */
    invar_digest *there;     /* (own) in the device's memory */
    invar_digest *came; /* (own) in the order of calls, then canonical: (own), (given), (all) */
} hashing;

/* What is hashed here of a parameter. */
static invar_index_range rows_of(const hashing *h, int64_t param)
{
    const invar_param *p = &h->model->params[param];

    if (!invar_logical_shards_is_contributor(h->model, p))
        return (invar_index_range){0, 0};
    return invar_zero_partition_here(h->model, param);
}

/* The rows of pieces as segments; of columns there is a call each. */
static int64_t segments_of(const invar_param *p, const invar_index_range *rows)
{
    return cut_along_columns(p) ? rows->count / p->local.rows
                                : invar_logical_shards_among(p, rows).count;
}

static void fill_starts(int64_t *out, const invar_param *p, const invar_index_range *rows)
{
    int64_t count = segments_of(p, rows), piece = invar_logical_shards_among(p, rows).first;

    for (int64_t s = 0; s < count; s++) {
        int64_t first = cut_along_columns(p) ? rows->first + s * p->local.rows
                                             : invar_logical_shard_rows(p, piece + s).first;
        out[s] = first > rows->first ? first - rows->first : 0;
    }
    out[count] = rows->count;
}

/* All segments in one array, NULL: only their number. */
static int64_t list_starts(int64_t *out, const hashing *h)
{
    int64_t count = 0;

    for (int64_t i = 0; i < h->model->n_params; i++) {
        invar_index_range rows = rows_of(h, i);
        if (rows.count == 0)
            continue;
        if (out)
            fill_starts(out + count, &h->model->params[i], &rows);
        count += segments_of(&h->model->params[i], &rows) + 1;
    }
    return count;
}

/* The leaves of every piece, of whoever gives it. */
static void count_leaves(hashing *h)
{
    int64_t piece = 0;

    for (int64_t i = 0; i < h->model->n_params; i++) {
        const invar_param *p = &h->model->params[i];
        invar_index_range own = rows_of(h, i), here = {0, p->local.experts * p->local.rows};

        for (int64_t k = 0; k < invar_logical_shards_of(p); k++) {
            h->counts[piece] = leaves_of(p, (int32_t)(k % p->cut.shards));
            h->all += h->counts[piece++];
        }
        h->own += leaves_among(p, &own);
        h->given += invar_logical_shards_is_contributor(h->model, p) ? leaves_among(p, &here) : 0;
    }
}

static invar_status make_room(hashing *h)
{
    const invar_model *model = h->model;
    int64_t starts = list_starts(NULL, h), pieces = 0;

    for (int64_t i = 0; i < model->n_params; i++)
        pieces += invar_logical_shards_of(&model->params[i]);
    INVAR_TRY(invar_alloc((void **)&h->counts, (size_t)pieces, sizeof *h->counts, "leaf counts"));
    INVAR_TRY(invar_alloc((void **)&h->starts, (size_t)starts + 1, sizeof *h->starts,
                          "the rows of pieces"));
    count_leaves(h);
    INVAR_TRY(invar_alloc((void **)&h->came, (size_t)(2 * h->own + h->given + h->all),
                          sizeof *h->came, "digests of leaves"));
    INVAR_TRY(invar_device_alloc(&h->caller.dev, (void **)&h->there,
                                 (size_t)(h->own + 1) * sizeof *h->there, "digests of leaves"));
    (void)list_starts(h->starts, h);
    h->starts_seen = h->starts;
    return invar_upload_buffer_send(
        &h->staging, &h->caller.dev,
        &(invar_upload){&h->starts_seen, (size_t)starts * sizeof *h->starts}, 1);
}

/* One call for all rows, or for all rows of each piece's columns. */
static invar_status hash_param(hashing *h, int64_t param, const invar_index_range *rows,
                               int64_t starts, int64_t *used)
{
    const invar_param *p = &h->model->params[param];
    invar_tensor t = h->of ? invar_tensor_rows(&h->of[param], rows->first, rows->count) : p->master;
    invar_row_offsets here = {h->starts + starts, segments_of(p, rows)};
    invar_row_offsets seen = {(const int64_t *)h->starts_seen + starts, here.count};
    bool columns = cut_along_columns(p);

    for (int32_t v = p->local.piece; v < p->local.piece + (columns ? p->local.pieces : 1); v++) {
        int64_t first = columns ? start_of(p, v) : 0, end = columns ? start_of(p, v + 1) : 0;
        invar_tensor x = columns ? invar_tensor_columns(&t, first - p->local.col, end - first) : t;
        int64_t leaves = invar_hash_leaf_count(&x, &here);
        if (leaves > 0)
            INVAR_TRY(INVAR_CALL(&h->caller, HASH_LEAVES, hash_leaves, .digest = h->there + *used,
                                 .x = x, .samples = seen, .leaves = leaves));
        *used += leaves;
    }
    return INVAR_OK;
}

static invar_status hash_own(hashing *h)
{
    int64_t starts = 0, used = 0;

    for (int64_t i = 0; i < h->model->n_params; i++) {
        invar_index_range rows = rows_of(h, i);
        if (rows.count == 0)
            continue;
        INVAR_TRY(hash_param(h, i, &rows, starts, &used));
        starts += segments_of(&h->model->params[i], &rows) + 1;
    }
    INVAR_CHECK(used == h->own);
    return used > 0 && !h->dry
               ? invar_op_runner_get(&h->caller, h->came, h->there, (size_t)used * sizeof *h->came)
               : INVAR_OK;
}

/* Calls for columns yield all experts of a piece; in canonical order an expert has all pieces. */
static void sort_leaves(invar_digest *out, const invar_digest *came, const invar_param *p,
                        const invar_index_range *rows)
{
    int64_t each = leaves_each(p), before = 0;

    if (!cut_along_columns(p)) {
        memcpy(out, came, (size_t)leaves_among(p, rows) * sizeof *out);
        return;
    }
    for (int32_t v = p->local.piece; v < p->local.piece + p->local.pieces; v++) {
        int64_t count = leaves_of(p, v);
        for (int64_t e = 0; e < rows->count / p->local.rows; e++, came += count)
            memcpy(out + e * each + before, came, (size_t)count * sizeof *out);
        before += count;
    }
}

static void sort_own(invar_digest *sorted, const hashing *h)
{
    int64_t used = 0;

    for (int64_t i = 0; i < h->model->n_params; i++) {
        invar_index_range rows = rows_of(h, i);
        if (rows.count == 0)
            continue;
        sort_leaves(sorted + used, h->came + used, &h->model->params[i], &rows);
        used += leaves_among(&h->model->params[i], &rows);
    }
}

/* The leaves of what is given, from the owners of its rows. */
static invar_status gather_owned(invar_digest *out, const hashing *h, const invar_digest *own)
{
    int64_t *counts = NULL;
    invar_status status;

    INVAR_TRY(invar_zero_partition_count(&counts, h->model, leaves_among));
    status = invar_zero_partition_gather(h->dry ? NULL : out, h->model, "digests of leaves", own,
                                         sizeof *own, counts);
    invar_free(counts);
    return status;
}

static invar_status make_roots(invar_digest *out, const hashing *h, const invar_digest *leaves)
{
    const int64_t *counts = h->counts;

    for (int64_t i = 0; i < h->model->n_params; i++) {
        const invar_param *p = &h->model->params[i];
        int64_t shards = invar_logical_shards_of(p), count = 0;
        uint64_t bytes = (uint64_t)invar_param_all_elements(p) * sizeof(float);

        for (int64_t k = 0; k < shards; k++)
            count += *counts++;
        INVAR_TRY(invar_tree_root(&out[i], leaves, count, bytes, shards));
        leaves += count;
    }
    return INVAR_OK;
}

static invar_status hash_all(invar_digest *out, hashing *h)
{
    invar_digest *own, *given, *all;

    INVAR_TRY(make_room(h));
    INVAR_TRY(hash_own(h));
    own = h->came + h->own;
    given = own + h->own;
    all = given + h->given;
    if (!h->dry)
        sort_own(own, h);
    if (invar_zero_partition_divide(h->model))
        INVAR_TRY(gather_owned(given, h, own));
    else
        given = own;
    INVAR_TRY(invar_logical_shards_gather(h->dry ? NULL : all, h->model, "digests of pieces", given,
                                          sizeof *given, h->counts));
    if (!h->dry)
        return make_roots(out, h, all);
    memset(out, 0, (size_t)h->model->n_params * sizeof *out);
    return INVAR_OK;
}

invar_status invar_logical_shards_digests(invar_digest *out, const invar_model *model,
                                          const invar_tensor *of, const invar_device *dev)
{
    hashing h = {.model = model, .of = of, .dry = model->dev.backend->memory.dry_run};
    invar_status status;

    invar_op_runner_init(&h.caller, dev);
    status = hash_all(out, &h);
    invar_op_runner_release(&h.caller);
    invar_upload_buffer_release(&h.staging, dev);
    if (h.there)
        invar_device_free(dev, h.there);
    invar_free(h.came);
    invar_free(h.counts);
    invar_free(h.starts);
    return status;
}
