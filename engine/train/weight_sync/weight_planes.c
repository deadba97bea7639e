/*
 * weight_planes.c - bytes of one logical shard of a weight, as rows with a stride.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/weight_sync/weight_planes.h"

#include "engine/model/shard/logical_shards.h"

#include "base/invar_banned.h"

/* Rows and columns of a shard within the local tensor. */
typedef struct shard_area {
    int64_t row, rows, col, cols;
} shard_area;

static shard_area shard_area_of(const invar_param *p, int64_t piece)
{
    const invar_param_shard *own = &p->local;
    shard_area a = {0, own->experts * own->rows, 0, invar_param_row_elements(p)};
    invar_index_range share;

    if (p->split.shards == 1)
        return a;
    share = invar_logical_shard_share(p, own->first_shard + (int32_t)(piece % own->n_shards));
    a.row = piece / own->n_shards * own->rows;
    a.rows = own->rows;
    if (p->split.columns) {
        a.col = share.first - own->col;
        a.cols = share.count;
    } else {
        a.row += share.first - own->row;
        a.rows = share.count;
    }
    return a;
}

/* Returns the rows of an area in an array with `wide` elements of `bits` bits per row. */
static invar_tree_shard make_plane(void *data, const shard_area *a, int64_t wide, int64_t bits)
{
    return (invar_tree_shard){(char *)data + (a->row * wide + a->col) * bits / 8, a->rows,
                              (size_t)(a->cols * bits / 8), (size_t)(wide * bits / 8)};
}

/* Returns the area of the scales of `a`, in bands and scale blocks. */
static shard_area scale_area_of(const shard_area *a, const invar_tensor *weight)
{
    int64_t block = invar_dtype_scale_block(weight->dtype);
    int64_t first = invar_tensor_band_index(weight, a->row);
    int64_t last = invar_tensor_band_index(weight, a->row + a->rows - 1);

    INVAR_CHECK(a->col % block == 0);
    return (shard_area){first, last + 1 - first, a->col / block, (a->cols + block - 1) / block};
}

int invar_weight_sync_planes(invar_tree_shard out[INVAR_WEIGHT_SYNC_PLANES], const invar_param *p,
                             const invar_tensor *weight, int64_t shard)
{
    shard_area a = shard_area_of(p, shard);
    int64_t blocks, bits;

    out[0] =
        make_plane(weight->data, &a, invar_param_row_elements(p), invar_dtype_bits(weight->dtype));
    if (!invar_dtype_scale_block(weight->dtype))
        return 1;
    blocks = invar_tensor_scale_blocks(weight);
    bits = 8 * (int64_t)invar_tensor_scale_bytes(weight) / (invar_tensor_bands(weight) * blocks);
    a = scale_area_of(&a, weight);
    out[1] = make_plane(weight->scale, &a, blocks, bits);
    return 2;
}

size_t invar_weight_sync_shard_bytes(const invar_param *p, int64_t shard)
{
    invar_tree_shard planes[INVAR_WEIGHT_SYNC_PLANES];
    int count = invar_weight_sync_planes(planes, p, &p->weight, shard);
    size_t bytes = 0;

    for (int i = 0; i < count; i++)
        bytes += (size_t)planes[i].rows * planes[i].row_bytes;
    return bytes;
}
