/*
 * logical_shards.c - views of logical shards, and gathering of their data and digests over ranks.
 *
 * Who contributes which shard, and how many bytes, follows from the partition alone, so ranks
 * exchange data without headers: one all-gather along the tensor, expert and pipeline axis each,
 * then a reordering into canonical order. Digests: each rank hashes leaves of the rows that it
 * owns; owners of rows exchange their leaves, then contributors of shards; every rank computes the
 * roots.
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

/* ---- logical shards -------------------------------------------------------------------------- */

static bool is_split_by_columns(const invar_param *p)
{
    return p->split.shards > 1 && p->split.columns;
}

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

static int64_t leaves_in(int64_t elements)
{
    int64_t bytes = elements * (int64_t)sizeof(float);

    return bytes / INVAR_TREE_LEAF_BYTES + (bytes % INVAR_TREE_LEAF_BYTES != 0);
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
    int64_t cols =
        is_split_by_columns(p) ? shard_start(p, v + 1) - shard_start(p, v) : p->local.cols;

    return leaves_in(intersect_ranges(&own, rows).count * (p->cols ? cols : 1));
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

/* Number of leaves of logical shard v of an expert, or of a parameter that is not split. */
static int64_t leaves_of(const invar_param *p, int32_t v)
{
    int64_t cols = p->cols ? p->cols : 1;

    if (p->split.shards == 1)
        return leaves_in(invar_param_all_elements(p));
    return leaves_in((shard_start(p, v + 1) - shard_start(p, v)) *
                     (p->split.columns ? p->rows : cols));
}

/* Number of leaves of all local shards of one expert. */
static int64_t leaves_per_expert(const invar_param *p)
{
    int64_t leaves = 0;

    for (int32_t v = p->local.first_shard; v < p->local.first_shard + p->local.n_shards; v++)
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
    return (invar_index_range){first,
                               last - first + (is_split_by_columns(p) ? p->local.n_shards : 1)};
}

static int64_t leaves_among(const invar_param *p, const invar_index_range *rows)
{
    invar_index_range pieces = invar_logical_shards_among(p, rows);
    int64_t leaves = 0;

    for (int64_t k = pieces.first; k < pieces.first + pieces.count; k++)
        leaves += invar_logical_shard_leaves(p, k, rows);
    return leaves;
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

static size_t shard_bytes(const shard_gather *g, int64_t piece)
{
    return (g->counts ? (size_t)g->counts[piece] : 1) * g->size;
}

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
            size_t bytes = shard_bytes(g, piece);
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

    INVAR_TRY(invar_alloc((void **)&g->bytes, 2 * (size_t)ranks, sizeof *g->bytes,
                          "the bytes of a move"));
    memset(g->bytes, 0, 2 * (size_t)ranks * sizeof *g->bytes);
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
    INVAR_TRY(invar_alloc((void **)&g->all, total, 1, "what ranks know of their pieces"));
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

/* ---- digests --------------------------------------------------------------------------------- */

typedef struct shard_hasher {
    const invar_model *model;
    const invar_tensor *of; /* tensors to hash; NULL for the masters */
    bool dry;               /* dry run: transfers are counted, digests are zeros */
    invar_op_runner caller;
    invar_upload_buffer staging;
    int64_t *starts;         /* row offsets of the shards of all contributed parameters */
    const void *starts_seen; /* the offsets in memory that ops read */
    int64_t *counts;         /* (shards of the model) leaves of each */
    int64_t own, given, all; /* number of leaves hashed here, contributed by this rank, and of
                                all shards */
    invar_digest *there;     /* (own) digests in device memory */
    invar_digest *came;      /* (own) in the order of calls, followed by canonical order: (own),
                                (given), (all) */
} shard_hasher;

/* Range of rows of a parameter that this rank hashes. */
static invar_index_range rows_to_hash(const shard_hasher *h, int64_t param)
{
    const invar_param *p = &h->model->params[param];

    if (!invar_logical_shards_is_contributor(h->model, p))
        return (invar_index_range){0, 0};
    return invar_zero_partition_here(h->model, param);
}

/* Number of row ranges that one call hashes separately; a shard of columns needs its own call. */
static int64_t row_ranges_of(const invar_param *p, const invar_index_range *rows)
{
    return is_split_by_columns(p) ? rows->count / p->local.rows
                                  : invar_logical_shards_among(p, rows).count;
}

static void write_row_offsets(int64_t *out, const invar_param *p, const invar_index_range *rows)
{
    int64_t count = row_ranges_of(p, rows), piece = invar_logical_shards_among(p, rows).first;

    for (int64_t s = 0; s < count; s++) {
        int64_t first = is_split_by_columns(p) ? rows->first + s * p->local.rows
                                               : invar_logical_shard_rows(p, piece + s).first;
        out[s] = first > rows->first ? first - rows->first : 0;
    }
    out[count] = rows->count;
}

/*
 * Writes the row offsets of all parameters to `out`, unless it is NULL, and returns their number.
 */
static int64_t list_row_offsets(int64_t *out, const shard_hasher *h)
{
    int64_t count = 0;

    for (int64_t i = 0; i < h->model->n_params; i++) {
        invar_index_range rows = rows_to_hash(h, i);
        if (rows.count == 0)
            continue;
        if (out)
            write_row_offsets(out + count, &h->model->params[i], &rows);
        count += row_ranges_of(&h->model->params[i], &rows) + 1;
    }
    return count;
}

/* Counts the leaves of every shard, whichever rank contributes it. */
static void count_leaves(shard_hasher *h)
{
    int64_t piece = 0;

    for (int64_t i = 0; i < h->model->n_params; i++) {
        const invar_param *p = &h->model->params[i];
        invar_index_range own = rows_to_hash(h, i), here = {0, p->local.experts * p->local.rows};

        for (int64_t k = 0; k < invar_logical_shards_of(p); k++) {
            h->counts[piece] = leaves_of(p, (int32_t)(k % p->split.shards));
            h->all += h->counts[piece++];
        }
        h->own += leaves_among(p, &own);
        h->given += invar_logical_shards_is_contributor(h->model, p) ? leaves_among(p, &here) : 0;
    }
}

static invar_status alloc_hash_buffers(shard_hasher *h)
{
    const invar_model *model = h->model;
    int64_t starts = list_row_offsets(NULL, h), pieces = 0;

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
    (void)list_row_offsets(h->starts, h);
    h->starts_seen = h->starts;
    return invar_upload_buffer_send(
        &h->staging, &h->caller.dev,
        &(invar_upload){&h->starts_seen, (size_t)starts * sizeof *h->starts}, 1);
}

/* Hashes all rows in one call, or in one call per shard if shards are columns. */
static invar_status hash_param(shard_hasher *h, int64_t param, const invar_index_range *rows,
                               int64_t starts, int64_t *used)
{
    const invar_param *p = &h->model->params[param];
    invar_tensor t = h->of ? invar_tensor_rows(&h->of[param], rows->first, rows->count) : p->master;
    invar_row_offsets here = {h->starts + starts, row_ranges_of(p, rows)};
    invar_row_offsets seen = {(const int64_t *)h->starts_seen + starts, here.count};
    bool columns = is_split_by_columns(p);

    for (int32_t v = p->local.first_shard;
         v < p->local.first_shard + (columns ? p->local.n_shards : 1); v++) {
        int64_t first = columns ? shard_start(p, v) : 0, end = columns ? shard_start(p, v + 1) : 0;
        invar_tensor x = columns ? invar_tensor_columns(&t, first - p->local.col, end - first) : t;
        int64_t leaves = invar_hash_leaf_count(&x, &here);
        if (leaves > 0)
            INVAR_TRY(INVAR_CALL(&h->caller, HASH_LEAVES, hash_leaves, .digest = h->there + *used,
                                 .x = x, .samples = seen, .leaves = leaves));
        *used += leaves;
    }
    return INVAR_OK;
}

static invar_status hash_owned_rows(shard_hasher *h)
{
    int64_t starts = 0, used = 0;

    for (int64_t i = 0; i < h->model->n_params; i++) {
        invar_index_range rows = rows_to_hash(h, i);
        if (rows.count == 0)
            continue;
        INVAR_TRY(hash_param(h, i, &rows, starts, &used));
        starts += row_ranges_of(&h->model->params[i], &rows) + 1;
    }
    INVAR_CHECK(used == h->own);
    return used > 0 && !h->dry ? invar_op_runner_download(&h->caller, h->came, h->there,
                                                          (size_t)used * sizeof *h->came)
                               : INVAR_OK;
}

/*
 * Reorders leaves. A call for columns yields one shard of all experts; canonical order has all
 * shards of an expert together.
 */
static void reorder_leaves(invar_digest *out, const invar_digest *came, const invar_param *p,
                           const invar_index_range *rows)
{
    int64_t each = leaves_per_expert(p), before = 0;

    if (!is_split_by_columns(p)) {
        memcpy(out, came, (size_t)leaves_among(p, rows) * sizeof *out);
        return;
    }
    for (int32_t v = p->local.first_shard; v < p->local.first_shard + p->local.n_shards; v++) {
        int64_t count = leaves_of(p, v);
        for (int64_t e = 0; e < rows->count / p->local.rows; e++, came += count)
            memcpy(out + e * each + before, came, (size_t)count * sizeof *out);
        before += count;
    }
}

static void reorder_own_leaves(invar_digest *sorted, const shard_hasher *h)
{
    int64_t used = 0;

    for (int64_t i = 0; i < h->model->n_params; i++) {
        invar_index_range rows = rows_to_hash(h, i);
        if (rows.count == 0)
            continue;
        reorder_leaves(sorted + used, h->came + used, &h->model->params[i], &rows);
        used += leaves_among(&h->model->params[i], &rows);
    }
}

/* Gathers the leaves of contributed shards from the owners of their rows. */
static invar_status gather_from_owners(invar_digest *out, const shard_hasher *h,
                                       const invar_digest *own)
{
    int64_t *counts = NULL;
    invar_status status;

    INVAR_TRY(invar_zero_partition_count(&counts, h->model, leaves_among));
    status = invar_zero_partition_gather(h->dry ? NULL : out, h->model, "digests of leaves", own,
                                         sizeof *own, counts);
    invar_free(counts);
    return status;
}

static invar_status compute_roots(invar_digest *out, const shard_hasher *h,
                                  const invar_digest *leaves)
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

static invar_status compute_digests(invar_digest *out, shard_hasher *h)
{
    invar_digest *own, *given, *all;

    INVAR_TRY(alloc_hash_buffers(h));
    INVAR_TRY(hash_owned_rows(h));
    own = h->came + h->own;
    given = own + h->own;
    all = given + h->given;
    if (!h->dry)
        reorder_own_leaves(own, h);
    if (invar_zero_partition_divide(h->model))
        INVAR_TRY(gather_from_owners(given, h, own));
    else
        given = own;
    INVAR_TRY(invar_logical_shards_gather(h->dry ? NULL : all, h->model, "digests of pieces", given,
                                          sizeof *given, h->counts));
    if (!h->dry)
        return compute_roots(out, h, all);
    memset(out, 0, (size_t)h->model->n_params * sizeof *out);
    return INVAR_OK;
}

invar_status invar_logical_shards_digests(invar_digest *out, const invar_model *model,
                                          const invar_tensor *of, const invar_device *dev)
{
    shard_hasher h = {.model = model, .of = of, .dry = model->dev.backend->memory.dry_run};
    invar_status status;

    invar_op_runner_init(&h.caller, dev);
    status = compute_digests(out, &h);
    invar_op_runner_release(&h.caller);
    invar_upload_buffer_release(&h.staging, dev);
    if (h.there)
        invar_device_free(dev, h.there);
    invar_free(h.came);
    invar_free(h.counts);
    invar_free(h.starts);
    return status;
}
