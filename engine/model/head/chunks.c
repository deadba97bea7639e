/*
 * chunks.c - splits the head's rows into head chunks, and builds the host lists for them.
 *
 * A chunk consists of complete units, so chunking changes no sum. The lists are built again for
 * each head; their memory only grows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "base/alloc.h"
#include "base/block_carver.h"
#include "engine/model/head/head.h"

#include "base/invar_banned.h"

/* ---- chunks ---------------------------------------------------------------------------------- */

bool invar_head_divides_rows(const invar_pass *pass)
{
    return pass->division.context.size > 1;
}

static void set_local_rows(invar_head_chunk *p, const invar_pass *pass)
{
    p->shared = invar_head_divides_rows(pass);
    p->local_rows = p->shared ? invar_layout_range_of(p->rows, pass->division.context.size,
                                                      pass->division.context.rank)
                              : (invar_index_range){0, p->rows};
}

bool invar_head_next_chunk(invar_head_chunk *p, const invar_pass *pass)
{
    const invar_row_offsets *u = &pass->head.rows.units;
    int64_t unit = p->unit + p->units;

    if (unit == u->count)
        return false;
    *p = (invar_head_chunk){
        .number = p->number + (p->units > 0), .first = u->offsets[unit], .unit = unit};
    do {
        p->units++;
        p->rows = u->offsets[unit + p->units] - p->first;
    } while (unit + p->units < u->count &&
             (pass->options.head_rows == 0 ||
              u->offsets[unit + p->units + 1] - p->first <= pass->options.head_rows));
    set_local_rows(p, pass);
    return true;
}

int64_t invar_head_max_chunk_rows(const invar_pass *pass)
{
    int64_t most = 0;

    for (invar_head_chunk p = {0}; invar_head_next_chunk(&p, pass);)
        most = p.rows > most ? p.rows : most;
    // rank 0 has the largest range
    return invar_head_divides_rows(pass)
               ? invar_layout_range_of(most, pass->division.context.size, 0).count
               : most;
}

int64_t invar_head_count_chunks(const invar_pass *pass)
{
    int64_t count = 0;

    for (invar_head_chunk p = {0}; invar_head_next_chunk(&p, pass);)
        count++;
    return count;
}

int64_t invar_head_part_at(const invar_head_chunk *p)
{
    return p->unit + p->number;
}

/* ---- host arrays ----------------------------------------------------------------------------- */

static void carve_arrays(invar_pass *pass, invar_carver *c)
{
    invar_head_arrays *a = &pass->head.arrays;
    size_t rows = (size_t)pass->head.rows.count;

    a->row = invar_carve(c, rows * sizeof *a->row);
    a->parts = invar_carve(c, 2 * (rows + 1) * sizeof *a->parts);
    a->fetched = invar_carve(c, 2 * rows * sizeof *a->fetched);
    // every chunk has at least one row, except the single chunk of values
    a->samples = invar_carve(c, (rows + 3) * sizeof *a->samples);
    a->device_offsets = invar_carve(c, (rows + 3) * sizeof *a->device_offsets);
    if (!pass->options.train)
        return;
    a->row_to_selected = invar_carve(c, (size_t)pass->rows.count * sizeof *a->row_to_selected);
    a->values = invar_carve(c, rows * sizeof(float));
}

static invar_status ensure_arrays(invar_pass *pass)
{
    invar_carver c = {NULL, 0};

    carve_arrays(pass, &c);
    if (c.used > pass->head.array_bytes) {
        size_t room = c.used + c.used / 8;
        invar_free(pass->head.array_memory);
        pass->head.array_memory = NULL;
        pass->head.array_bytes = 0;
        INVAR_TRY(invar_alloc(&pass->head.array_memory, room, 1, "the list of the head's rows"));
        pass->head.array_bytes = room;
    }
    c = (invar_carver){pass->head.array_memory, 0};
    carve_arrays(pass, &c);
    return INVAR_OK;
}

/* Finds the first selected row of each context-parallel rank. */
static void find_rank_starts(invar_pass *pass, const int64_t *row, int64_t count)
{
    int64_t next = 0;

    for (int32_t r = 0; r <= pass->division.context.size; r++) {
        while (next < count && row[next] < pass->division.context.row[r])
            next++;
        pass->head.chosen[r] = next;
    }
}

/* Checks the selected rows and stores them relative to this rank's first row. */
static invar_status store_rows(invar_pass *pass, const int64_t *row, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (row[i] < (i ? row[i - 1] + 1 : 0) || row[i] >= pass->rows.count)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "row %" PRId64 " of the head is %" PRId64
                              "; rows ascend and are below %" PRId64,
                              i, row[i], pass->rows.count);
        pass->head.arrays.row[i] =
            (int32_t)(row[i] - invar_row_partition_first(&pass->division.context));
    }
    find_rank_starts(pass, row, count);
    return INVAR_OK;
}

invar_index_range invar_head_chosen_rows(const invar_pass *pass)
{
    const int64_t *start = &pass->head.chosen[pass->division.context.rank];

    return (invar_index_range){start[0], start[1] - start[0]};
}

/*
 * Lists the units of all chunks, each relative to the chunk's first row. Returns the number of
 * offsets.
 */
static int64_t list_units(invar_pass *pass)
{
    invar_head_arrays *a = &pass->head.arrays;
    int64_t count = 0, pieces = 0;

    INVAR_CHECK(pass->head.rows.units.count <=
                pass->head.rows.count); // every unit has at least one row
    a->samples[pieces++] = pass->head.rows.units;
    for (invar_head_chunk p = {0}; invar_head_next_chunk(&p, pass);) {
        a->samples[pieces++] = (invar_row_offsets){a->parts + count, p.units};
        for (int64_t i = 0; i <= p.units; i++)
            a->parts[count++] = pass->head.rows.units.offsets[p.unit + i] - p.first;
    }
    a->samples[pieces] = pass->rows.samples;
    return count;
}

invar_status invar_head_list_rows(int64_t *parts_out, invar_pass *pass)
{
    INVAR_TRY(ensure_arrays(pass));
    INVAR_TRY(store_rows(pass, pass->head.rows.row, pass->head.rows.count));
    *parts_out = list_units(pass);
    return INVAR_OK;
}

void invar_head_set_device_offsets(invar_pass *pass)
{
    const int64_t *parts = pass->inputs[INVAR_INPUT_PARTS];
    invar_head_arrays *a = &pass->head.arrays;

    a->device_offsets[0] =
        (invar_row_offsets){pass->inputs[INVAR_INPUT_HEAD_UNITS], pass->head.rows.units.count};
    for (invar_head_chunk p = {0};
         invar_head_next_chunk(&p, pass) && p.number < pass->head.acts.pieces;)
        a->device_offsets[1 + p.number] =
            (invar_row_offsets){parts + invar_head_part_at(&p), p.units};
    a->device_offsets[1 + pass->head.acts.pieces] = pass->samples;
}

void invar_head_set_row_to_selected(invar_pass *pass)
{
    invar_head_arrays *a = &pass->head.arrays;
    invar_index_range own = invar_head_chosen_rows(pass);

    for (int64_t i = 0; i < invar_row_partition_count(&pass->division.context); i++)
        a->row_to_selected[i] = (int32_t)pass->head.rows.count;
    for (int64_t i = own.first; i < own.first + own.count; i++)
        a->row_to_selected[a->row[i]] = (int32_t)i;
}
