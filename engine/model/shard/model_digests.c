/*
 * model_digests.c - digests of masters or gradients, also of a model that ranks divide.
 *
 * A digest is the root of a tree hash over the logical shards of the full parameter, so it does not
 * depend on the ranks. Each rank hashes leaves of the rows that it owns; owners of rows exchange
 * their leaves, then contributors of shards; every rank computes the roots.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/host_staging.h"
#include "engine/model/graph/op_runner.h"
#include "engine/model/shard/logical_shards.h"
#include "engine/model/shard/zero_partition.h"
#include "engine/model/tensor_hasher.h"

#include "base/invar_banned.h"

/* ---- leaves of shards ------------------------------------------------------------------------ */

/* Number of leaves of logical shard v of an expert, or of a parameter that is not split. */
static int64_t leaves_of(const invar_param *p, int32_t v)
{
    int64_t cols = p->cols ? p->cols : 1;

    if (p->split.shards == 1)
        return invar_logical_shard_leaf_count(invar_param_all_elements(p));
    return invar_logical_shard_leaf_count(invar_logical_shard_share(p, v).count *
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

static int64_t leaves_among(const invar_param *p, const invar_index_range *rows)
{
    invar_index_range pieces = invar_logical_shards_among(p, rows);
    int64_t leaves = 0;

    for (int64_t k = pieces.first; k < pieces.first + pieces.count; k++)
        leaves += invar_logical_shard_leaves(p, k, rows);
    return leaves;
}

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
    return invar_zero_partition_local_rows(h->model, param);
}

/* Number of row ranges that one call hashes separately; a shard of columns needs its own call. */
static int64_t row_ranges_of(const invar_param *p, const invar_index_range *rows)
{
    return invar_logical_shards_by_columns(p) ? rows->count / p->local.rows
                                              : invar_logical_shards_among(p, rows).count;
}

static void write_row_offsets(int64_t *out, const invar_param *p, const invar_index_range *rows)
{
    int64_t count = row_ranges_of(p, rows), piece = invar_logical_shards_among(p, rows).first;

    for (int64_t s = 0; s < count; s++) {
        int64_t first = invar_logical_shards_by_columns(p)
                            ? rows->first + s * p->local.rows
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
    INVAR_TRY(INVAR_ALLOC(h->counts, (size_t)pieces, "leaf counts"));
    INVAR_TRY(INVAR_ALLOC(h->starts, (size_t)starts + 1, "the rows of pieces"));
    count_leaves(h);
    INVAR_TRY(INVAR_ALLOC(h->came, (size_t)(2 * h->own + h->given + h->all), "digests of leaves"));
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
    bool columns = invar_logical_shards_by_columns(p);

    for (int32_t v = p->local.first_shard;
         v < p->local.first_shard + (columns ? p->local.n_shards : 1); v++) {
        invar_index_range share = invar_logical_shard_share(p, v);
        invar_tensor x =
            columns ? invar_tensor_columns(&t, share.first - p->local.col, share.count) : t;
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

    if (!invar_logical_shards_by_columns(p)) {
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
    INVAR_AUTO_FREE int64_t *counts = NULL;

    INVAR_TRY(invar_zero_partition_count(&counts, h->model, leaves_among));
    return invar_zero_partition_gather(h->dry ? NULL : out, h->model, "digests of leaves", own,
                                       sizeof *own, counts);
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
    if (invar_zero_partition_is_divided(h->model))
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

static invar_status digest_shards(invar_digest *out, const invar_model *model,
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

invar_status invar_model_digests(invar_digest *out, const invar_model *model,
                                 const invar_tensor *of, const invar_device *dev)
{
    INVAR_AUTO(invar_tensor_hasher_release) invar_tensor_hasher hasher;

    invar_tensor_hasher_init(&hasher, dev);
    if (invar_model_is_divided(model) || invar_zero_partition_is_divided(model))
        return digest_shards(out, model, of, dev);
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        INVAR_TRY(invar_tensor_hasher_add_cut(&hasher, of ? &of[i] : &p->master, &p->split));
    }
    return invar_tensor_hasher_read(out, &hasher);
}

invar_status invar_model_hash(invar_digest *out, const invar_model *model, const invar_device *dev)
{
    INVAR_AUTO_FREE invar_digest *of = NULL;

    INVAR_TRY(INVAR_ALLOC(of, (size_t)model->n_params, "digests of weights"));
    INVAR_TRY(invar_model_digests(of, model, NULL, dev));
    invar_hash_bytes(out, of, (size_t)model->n_params * sizeof *of);
    return INVAR_OK;
}
