/*
 * row_partition.c - computes the row ranges of ranks from the units of a pass.
 *
 * Each cut is the block boundary at or below an even split by rows, moved so that every rank gets a
 * block. Everything is integer arithmetic on `units`, so all ranks compute the same ranges without
 * communication.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/row_partition.h"

#include <string.h>

#include "base/minmax.h"

#include "base/invar_banned.h"

static int64_t blocks_of(int64_t rows)
{
    return (rows + INVAR_TOKEN_BLOCK - 1) / INVAR_TOKEN_BLOCK;
}

int64_t invar_row_partition_blocks(const invar_row_offsets *units)
{
    int64_t blocks = 0;

    for (int64_t u = 0; u < units->count; u++)
        blocks += blocks_of(units->offsets[u + 1] - units->offsets[u]);
    return blocks;
}

/* First row of a block; the number of rows for the block after the last. */
static int64_t row_of(const invar_row_offsets *units, int64_t block)
{
    for (int64_t u = 0; u < units->count; u++) {
        int64_t own = blocks_of(units->offsets[u + 1] - units->offsets[u]);
        if (block < own)
            return units->offsets[u] + block * INVAR_TOKEN_BLOCK;
        block -= own;
    }
    return units->offsets[units->count];
}

/* Index of the block that contains the row. */
static int64_t block_of(const invar_row_offsets *units, int64_t row)
{
    int64_t before = 0;

    for (int64_t u = 0; u < units->count; u++) {
        int64_t in_unit = row - units->offsets[u];
        if (row < units->offsets[u + 1])
            return before + in_unit / INVAR_TOKEN_BLOCK;
        before += blocks_of(units->offsets[u + 1] - units->offsets[u]);
    }
    return before;
}

/* First block of a rank whose predecessor starts at block `before`: at least the next one. */
static int64_t cut_at(const invar_row_offsets *units, int64_t blocks, int64_t before, int size,
                      int rank)
{
    int64_t rows = units->offsets[units->count];
    int64_t even = block_of(units, rows / size * rank + rows % size * rank / size);
    int64_t last = blocks - (size - rank); // leaves one block for each later rank

    return invar_min_i64(invar_max_i64(invar_min_i64(even, last), before + 1), blocks);
}

static void set_local_units(invar_row_partition *d, const invar_row_offsets *units)
{
    int64_t first = d->row[d->rank], end = d->row[d->rank + 1];

    while (d->unit < units->count && units->offsets[d->unit + 1] <= first)
        d->unit++;
    while (d->unit + d->units < units->count && units->offsets[d->unit + d->units] < end)
        d->units++;
}

void invar_row_partition_init(invar_row_partition *out, const invar_row_offsets *units, int size,
                              int rank)
{
    int64_t blocks = invar_row_partition_blocks(units);

    INVAR_CHECK(size <= INVAR_ROW_PARTITION_MAX_RANKS);
    memset(out, 0, sizeof *out);
    out->rank = rank;
    out->size = size;
    for (int r = 1; r < size; r++)
        out->block[r] = cut_at(units, blocks, out->block[r - 1], size, r);
    out->block[size] = blocks;
    for (int r = 0; r <= size; r++)
        out->row[r] = row_of(units, out->block[r]);
    set_local_units(out, units);
}

void invar_row_partition_group(invar_row_partition *outer, invar_row_partition *inner,
                               const invar_row_partition *of, const invar_row_offsets *units,
                               int each)
{
    int first = of->rank / each * each;

    memset(outer, 0, sizeof *outer);
    memset(inner, 0, sizeof *inner);
    outer->rank = of->rank / each;
    outer->size = of->size / each;
    for (int r = 0; r <= outer->size; r++) {
        outer->row[r] = of->row[r * each];
        outer->block[r] = of->block[r * each];
    }
    set_local_units(outer, units);
    inner->rank = of->rank % each;
    inner->size = each;
    inner->unit = of->unit;
    inner->units = of->units;
    for (int r = 0; r <= each; r++) {
        inner->row[r] = of->row[first + r] - of->row[first];
        inner->block[r] = of->block[first + r] - of->block[first];
    }
}

int64_t invar_row_partition_max(int64_t rows, int size)
{
    int64_t share = rows / size + INVAR_TOKEN_BLOCK; // cuts round down by less
    int64_t undivided = (int64_t)(size - 1) * INVAR_TOKEN_BLOCK;

    return invar_min_i64(rows, invar_max_i64(share, undivided));
}

void invar_row_partition_units(int64_t *start, const invar_row_partition *d,
                               const invar_row_offsets *units)
{
    int64_t first = d->row[d->rank], end = d->row[d->rank + 1];

    for (int64_t i = 0; i <= d->units; i++)
        start[i] = invar_min_i64(invar_max_i64(units->offsets[d->unit + i], first), end) - first;
}
