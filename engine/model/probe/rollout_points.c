/*
 * rollout_points.c - hash chains of rollout activations per sequence.
 *
 * Values come in the same order in every pass, so the search for a point starts after the last one
 * found. The hook queues rows on the device hasher; flush downloads their leaves and chains each
 * leaf for every sequence that shares the row. Statistics are computed from rows that are read
 * back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/rollout_points.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/cuda_graph_cache.h"
#include "engine/model/graph/dataflow.h"
#include "engine/model/probe/leaf_hasher.h"
#include "engine/model/probe/tensor_stats.h"

#include "base/invar_banned.h"

/* State of a sequence in one point. */
typedef struct sequence_chain {
    invar_digest chain;
    invar_ledger_stat stat;
} sequence_chain;

typedef struct point {
    invar_point_def is;
    bool hashed;            /* the level includes the point */
    sequence_chain *of;     /* (capacity) indexed by sequence number */
    int64_t capacity;       /* entries without rows are zero */
    invar_ledger_stat seen; /* statistics of all rows that belong to a sequence */
    bool counted;           /* the point has statistics */
} point;

/* Rows whose digests have not been downloaded. */
typedef struct pending_rows {
    int64_t point, rows;
    int64_t leaves; /* leaves per row */
    const invar_row_samples *owners;
} pending_rows;

struct invar_rollout_points {
    invar_probe_options options;
    point *points;
    int64_t n_points, points_room;
    int64_t cursor; /* index at which the next search starts: values come in order */
    pending_rows *pending_rows;
    int64_t n_taken, taken_room;
    invar_leaf_hasher leaves;
    int64_t *ramp; /* (ramp_rows + 1) 0, 1, ... in device memory: offsets that make every row a
                      range */
    int64_t ramp_rows;
    invar_host_window window;
};

/* ---- create and free ------------------------------------------------------------------------- */

invar_status invar_rollout_points_new(invar_rollout_points **out,
                                      const invar_probe_options *options)
{
    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(*out, 1, "the points of a rollout"));
    (*out)->options = *options;
    (*out)->window.dev = options->dev;
    invar_leaf_hasher_init(&(*out)->leaves, options->dev);
    return INVAR_OK;
}

void invar_rollout_points_free(invar_rollout_points *s)
{
    if (!s)
        return;
    for (int64_t i = 0; i < s->n_points; i++)
        invar_free(s->points[i].of);
    invar_free(s->points);
    invar_free(s->pending_rows);
    invar_device_free(s->options.dev, s->ramp);
    invar_leaf_hasher_release(&s->leaves);
    invar_host_window_release(&s->window);
    invar_free(s);
}

void invar_rollout_points_begin(invar_rollout_points *s)
{
    for (int64_t i = 0; i < s->n_points; i++) {
        point *p = &s->points[i];
        if (p->capacity > 0)
            memset(p->of, 0, (size_t)p->capacity * sizeof *p->of);
        p->seen = (invar_ledger_stat){0};
    }
    s->n_taken = s->cursor = s->leaves.count = 0;
}

/* ---- points ---------------------------------------------------------------------------------- */

static bool same_name(const invar_value_name *a, const invar_value_name *b)
{
    return a->layer == b->layer && strcmp(a->text, b->text) == 0;
}

static invar_status insert_point(invar_rollout_points *s, int64_t at, const invar_point_def *is)
{
    invar_observed_value value = invar_point_def_value(is);

    INVAR_TRY(INVAR_GROW(s->points, s->points_room, s->n_points, s->n_points + 1,
                         "the points of a rollout"));
    memmove(s->points + at + 1, s->points + at, (size_t)(s->n_points - at) * sizeof *s->points);
    s->points[at] =
        (point){.is = *is,
                .hashed = invar_point_namer_level(&value) <= s->options.level,
                .counted = s->options.stats && invar_tensor_stats_counts(is->rows.dtype)};
    s->n_points++;
    return INVAR_OK;
}

static invar_status find_point(int64_t *out, invar_rollout_points *s,
                               const invar_observed_value *value)
{
    invar_point_def is;
    bool deep = false;

    for (int64_t i = 0; i < s->n_points; i++) {
        *out = (s->cursor + i) % s->n_points;
        if (same_name(&s->points[*out].is.name, &value->name)) {
            s->cursor = *out + 1;
            return INVAR_OK;
        }
    }
    for (int64_t i = 0; i < s->n_points && !deep; i++)
        deep = s->points[i].is.name.layer >= 0;
    invar_point_def_of(&is, value, deep);
    *out = s->n_points;
    s->cursor = *out + 1;
    return insert_point(s, *out, &is);
}

/* Finds the state of sequence `number`, zeroed if it is new. */
static invar_status find_sequence(sequence_chain **out, point *p, uint32_t number)
{
    int64_t before = p->capacity;

    INVAR_TRY(
        INVAR_GROW(p->of, p->capacity, before, (int64_t)number + 1, "the points of a rollout"));
    if (p->capacity > before)
        memset(p->of + before, 0, (size_t)(p->capacity - before) * sizeof *p->of);
    *out = &p->of[number];
    return INVAR_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Ensures offsets for `rows` single rows in device memory. */
static invar_status ensure_row_offsets(invar_rollout_points *s, int64_t rows)
{
    const invar_device *dev = s->options.dev;
    int64_t larger = 2 * s->ramp_rows > rows ? 2 * s->ramp_rows : rows, *numbers;
    invar_status status;

    if (rows <= s->ramp_rows)
        return INVAR_OK;
    if (s->leaves.op_runner.graph_cache) // held-back ops read the old offsets
        INVAR_TRY(invar_cuda_graph_cache_flush(s->leaves.op_runner.graph_cache));
    invar_device_free(dev, s->ramp);
    s->ramp = NULL;
    s->ramp_rows = 0;
    INVAR_TRY(INVAR_ALLOC(numbers, (size_t)larger + 1, "rows to hash"));
    for (int64_t i = 0; i <= larger; i++)
        numbers[i] = i;
    status = invar_device_alloc(dev, (void **)&s->ramp, ((size_t)larger + 1) * sizeof *s->ramp,
                                "rows to hash");
    if (status == INVAR_OK)
        status = invar_device_upload(dev, s->ramp, numbers, ((size_t)larger + 1) * sizeof *s->ramp);
    invar_free(numbers);
    if (status == INVAR_OK)
        s->ramp_rows = larger;
    return status;
}

/* Adds the statistics of each row, read back to the host. */
static invar_status add_row_stats(invar_rollout_points *s, int64_t index, const invar_tensor *rows,
                                  const invar_row_samples *owners)
{
    point *p = &s->points[index];
    invar_tensor near;

    INVAR_TRY(invar_host_window_tensor(&near, &s->window, rows));
    for (int64_t i = 0; i < rows->shape[0]; i++) {
        invar_tensor row = invar_tensor_rows(&near, i, 1);
        invar_ledger_stat stat = {0};
        if (owners[i].count == 0)
            continue;
        invar_tensor_stats_add(&stat, &row, 1);
        invar_tensor_stats_join(&p->seen, &stat);
        for (int64_t n = 0; n < owners[i].count; n++) {
            sequence_chain *of;
            INVAR_TRY(find_sequence(&of, p, owners[i].draws[n]));
            invar_tensor_stats_join(&of->stat, &stat);
        }
    }
    return INVAR_OK;
}

/* Chains the leaves of one row in every sequence that shares it. */
static invar_status chain_row(point *p, const invar_row_samples *owner, const invar_digest *leaves,
                              int64_t count)
{
    for (int64_t n = 0; n < owner->count; n++) {
        sequence_chain *of;
        INVAR_TRY(find_sequence(&of, p, owner->draws[n]));
        for (int64_t i = 0; i < count; i++)
            invar_digest_chain(&of->chain, &leaves[i]);
    }
    return INVAR_OK;
}

invar_status invar_rollout_points_flush(void *sequences)
{
    invar_rollout_points *s = sequences;
    const invar_digest *leaves;

    INVAR_TRY(invar_leaf_hasher_read(&leaves, &s->leaves));
    for (const pending_rows *t = s->pending_rows; t < s->pending_rows + s->n_taken; t++)
        for (int64_t i = 0; i < t->rows; i++, leaves += t->leaves)
            INVAR_TRY(chain_row(&s->points[t->point], &t->owners[i], leaves, t->leaves));
    s->n_taken = 0;
    return INVAR_OK;
}

static invar_status hash_rows(invar_rollout_points *s, int64_t index, const invar_tensor *rows,
                              const invar_row_samples *owners)
{
    static const int64_t one[] = {0, 1};
    int64_t count = rows->shape[0];
    int64_t each = invar_hash_leaf_count(rows, &(invar_row_offsets){one, 1}); // data, and scales

    INVAR_TRY(ensure_row_offsets(s, count));
    if (invar_leaf_hasher_full(&s->leaves, count * each))
        INVAR_TRY(invar_rollout_points_flush(s));
    INVAR_TRY(INVAR_GROW(s->pending_rows, s->taken_room, s->n_taken, s->n_taken + 1,
                         "the points of a rollout"));
    INVAR_TRY(invar_leaf_hasher_add(&s->leaves, rows, &(invar_row_offsets){s->ramp, count},
                                    count * each));
    s->pending_rows[s->n_taken++] = (pending_rows){index, count, each, owners};
    return INVAR_OK;
}

invar_status invar_rollout_points_on_value(void *sequences, const invar_observed_value *value)
{
    invar_rollout_points *s = sequences;
    invar_tensor rows;
    int64_t index;
    const point *p;

    INVAR_TRY(find_point(&index, s, value));
    p = &s->points[index];
    if (!p->hashed && !p->counted)
        return INVAR_OK;
    INVAR_TRY(invar_dataflow_rows(&rows, value));
    s->leaves.op_runner.graph_cache = value->op_runner->graph_cache;
    if (p->counted)
        INVAR_TRY(add_row_stats(s, index, &rows, value->owners));
    return p->hashed ? hash_rows(s, index, &rows, value->owners) : INVAR_OK;
}

/* ---- results --------------------------------------------------------------------------------- */

bool invar_rollout_points_any(const invar_rollout_points *s)
{
    for (int64_t i = 0; i < s->n_points; i++)
        if (s->points[i].hashed)
            return true;
    return false;
}

/* Sets the value of one point in the probe, and its statistics. */
static invar_status emit_point(point *p, const invar_point_namer *view, const uint32_t *numbers,
                               int64_t count)
{
    const invar_observed_value value = invar_point_def_value(&p->is);
    invar_ledger_stat stat = {0};
    invar_digest digest;
    invar_hasher hasher;
    int64_t number;

    INVAR_TRY(invar_point_namer_define(&number, view, &value));
    invar_hasher_init(&hasher);
    for (int64_t i = 0; i < count; i++) {
        sequence_chain *of;
        INVAR_TRY(find_sequence(&of, p, numbers[i]));
        invar_hasher_update(&hasher, &of->chain, sizeof of->chain);
        invar_tensor_stats_join(&stat, &of->stat);
    }
    invar_hasher_final(&digest, &hasher);
    INVAR_TRY(invar_probe_digest(view->probe, number, &digest));
    return p->counted ? invar_probe_stat(view->probe, number, &stat) : INVAR_OK;
}

invar_status invar_rollout_points_emit(invar_rollout_points *s, const invar_point_namer *namer,
                                       const uint32_t *draw_indexes, int64_t count)
{
    for (int64_t i = 0; i < s->n_points; i++)
        INVAR_TRY(emit_point(&s->points[i], namer, draw_indexes, count));
    return INVAR_OK;
}

/* ---- several ranks --------------------------------------------------------------------------- */

/* The chain of one sequence, as sent to another rank. */
typedef struct packed_sequence {
    uint64_t number;
    sequence_chain is;
} packed_sequence;

static bool has_rows(const sequence_chain *s)
{
    static const invar_digest none;

    return !invar_digest_equal(&s->chain, &none);
}

/* Packs a point; above the level only its definition, for the inputs of other points. */
static invar_status pack_point(invar_rank_buffer *to, const point *p)
{
    int64_t count = 0;

    for (int64_t i = 0; p->hashed && i < p->capacity; i++)
        count += has_rows(&p->of[i]);
    INVAR_TRY(invar_rank_buffer_put(to, &p->is, 1, sizeof p->is));
    INVAR_TRY(invar_rank_buffer_put(to, &count, 1, sizeof count));
    for (int64_t i = 0; p->hashed && i < p->capacity; i++) {
        const packed_sequence one = {(uint64_t)i, p->of[i]};
        if (has_rows(&p->of[i]))
            INVAR_TRY(invar_rank_buffer_put(to, &one, 1, sizeof one));
    }
    return INVAR_OK;
}

invar_status invar_rollout_points_pack(invar_rank_buffer *to, const invar_rollout_points *s)
{
    INVAR_TRY(invar_rank_buffer_put(to, &s->n_points, 1, sizeof s->n_points));
    for (int64_t i = 0; i < s->n_points; i++)
        INVAR_TRY(pack_point(to, &s->points[i]));
    return INVAR_OK;
}

/* Finds the point of that name; one of another pipeline stage is inserted by its position. */
static invar_status find_or_insert_def(point **out, invar_rollout_points *s,
                                       const invar_point_def *is)
{
    int64_t at = s->n_points;

    INVAR_TRY(invar_point_def_check(is));
    for (int64_t i = 0; i < s->n_points; i++) {
        *out = &s->points[i];
        if (same_name(&s->points[i].is.name, &is->name))
            return INVAR_OK;
    }
    while (at > 0 && s->points[at - 1].is.place > is->place)
        at--;
    INVAR_TRY(insert_point(s, at, is));
    *out = &s->points[at];
    return INVAR_OK;
}

static invar_status unpack_point(invar_rollout_points *s, invar_rank_buffer_reader *from)
{
    const void *is, *count, *items;
    point *p;

    INVAR_TRY(invar_rank_buffer_take(&is, from, 1, sizeof(invar_point_def)));
    INVAR_TRY(find_or_insert_def(&p, s, is));
    INVAR_TRY(invar_rank_buffer_take(&count, from, 1, sizeof(int64_t)));
    for (int64_t i = 0; i < *(const int64_t *)count; i++) {
        const packed_sequence *one;
        sequence_chain *of;
        INVAR_TRY(invar_rank_buffer_take(&items, from, 1, sizeof *one));
        one = items;
        if (one->number > UINT32_MAX)
            return invar_rank_buffer_damaged();
        INVAR_TRY(find_sequence(&of, p, (uint32_t)one->number));
        *of = one->is;
    }
    return INVAR_OK;
}

invar_status invar_rollout_points_unpack(invar_rollout_points *s, invar_rank_buffer_reader *from)
{
    const void *count;

    INVAR_TRY(invar_rank_buffer_take(&count, from, 1, sizeof(int64_t)));
    for (int64_t i = 0; i < *(const int64_t *)count; i++)
        INVAR_TRY(unpack_point(s, from));
    return INVAR_OK;
}

/* ---- values that are not finite -------------------------------------------------------------- */

const invar_point_def *invar_rollout_points_first_nonfinite(invar_ledger_stat *out,
                                                            const invar_rollout_points *s)
{
    for (int64_t i = 0; i < s->n_points; i++) {
        *out = s->points[i].seen;
        out->point = i;
        if (out->nans || out->infs)
            return &s->points[i].is;
    }
    return NULL;
}
