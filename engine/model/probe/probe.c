/*
 * probe.c - defines points, collects their values over micro-batches, and computes their digests.
 *
 * Points are found by name in an open-addressing hash table. A value is a growing list of leaf
 * digests; its root is computed when the step is finished. Leaves of device-local rows are computed
 * on the device: their slots are reserved at once and filled when they are downloaded together.
 * Points above the level are kept as skipped points, so that inputs can refer to what they were
 * computed from.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/probe.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model/probe/probe_internal.h"
#include "engine/model/probe/tensor_stats.h"

#include "base/invar_banned.h"

/* ---- create and free ------------------------------------------------------------------------- */

invar_status invar_probe_new(invar_probe **out, const invar_probe_options *options)
{
    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(*out, 1, "a probe"));
    (*out)->options = *options;
    (*out)->window.dev = options->dev;
    if (options->dev) {
        invar_tensor_hasher_init(&(*out)->digesting, options->dev);
        invar_leaf_hasher_init(&(*out)->leaves, options->dev);
    }
    return INVAR_OK;
}

void invar_probe_free(invar_probe *probe)
{
    if (!probe)
        return;
    for (int64_t i = 0; i < probe->count; i++) {
        invar_free((void *)(uintptr_t)probe->points[i].name);
        invar_free(probe->values[i].leaves);
        invar_free(probe->values[i].samples);
    }
    invar_free(probe->points);
    invar_free(probe->digests);
    invar_free(probe->values);
    invar_free(probe->stats);
    invar_free(probe->table);
    invar_free(probe->skipped);
    invar_host_window_release(&probe->window);
    if (probe->options.dev) {
        invar_tensor_hasher_release(&probe->digesting);
        invar_leaf_hasher_release(&probe->leaves);
    }
    invar_free(probe->awaited);
    invar_free(probe->pending);
    invar_free(probe);
}

void invar_probe_begin(invar_probe *probe, invar_dump *dump)
{
    for (int64_t i = 0; i < probe->count; i++) {
        invar_probe_value *v = &probe->values[i];
        *v = (invar_probe_value){.leaves = v->leaves,
                                 .capacity = v->capacity,
                                 .samples = v->samples,
                                 .samples_capacity = v->samples_capacity};
    }
    probe->digesting.count = 0;
    probe->leaves.count = probe->n_pending = 0;
    probe->dump = dump;
}

/* ---- points ---------------------------------------------------------------------------------- */

static int64_t key_of_point(int64_t number)
{
    return number + 1;
}

static int64_t key_of_absent(int64_t number)
{
    return -1 - number;
}

static const char *name_of_key(const invar_probe *probe, int64_t key)
{
    return key > 0 ? probe->points[key - 1].name : probe->skipped[-1 - key].name;
}

/* Returns the table slot of a name, or the free slot for it; the table is never full. */
static int64_t *find_slot(const invar_probe *probe, const char *name)
{
    invar_digest digest;
    uint64_t at;

    invar_hash_bytes(&digest, name, strlen(name));
    memcpy(&at, digest.bytes, sizeof at);
    for (;; at++) {
        int64_t *place = &probe->table[at & (uint64_t)(probe->table_size - 1)];
        if (*place == 0 || strcmp(name_of_key(probe, *place), name) == 0)
            return place;
    }
}

int64_t invar_probe_find(const invar_probe *probe, const char *name)
{
    return probe->table_size ? *find_slot(probe, name) : 0;
}

/* Ensures capacity for one more name; at least half of the table stays free. */
static invar_status grow_table(invar_probe *probe)
{
    int64_t size = probe->table_size ? 2 * probe->table_size : 64;
    void *table;

    if (2 * (probe->count + probe->n_skipped + 1) <= probe->table_size)
        return INVAR_OK;
    INVAR_TRY(invar_alloc(&table, (size_t)size, sizeof *probe->table, "names of a probe's points"));
    memset(table, 0, (size_t)size * sizeof *probe->table);
    invar_free(probe->table);
    probe->table = table;
    probe->table_size = size;
    for (int64_t i = 0; i < probe->count; i++)
        *find_slot(probe, probe->points[i].name) = key_of_point(i);
    for (int64_t i = 0; i < probe->n_skipped; i++)
        *find_slot(probe, probe->skipped[i].name) = key_of_absent(i);
    return INVAR_OK;
}

static bool same_numbers(const int64_t *a, size_t a_count, const int64_t *b, size_t b_count)
{
    return a_count == b_count && (a_count == 0 || memcmp(a, b, a_count * sizeof *a) == 0);
}

static bool same_point(const invar_ledger_point *a, const invar_ledger_point *b)
{
    return strcmp(a->phase, b->phase) == 0 && a->layer == b->layer && strcmp(a->op, b->op) == 0 &&
           strcmp(a->kind, b->kind) == 0 && a->level == b->level &&
           strcmp(a->dtype, b->dtype) == 0 && a->shards == b->shards &&
           a->replicated == b->replicated && same_numbers(a->shape, a->dims, b->shape, b->dims) &&
           same_numbers(a->inputs, a->n_inputs, b->inputs, b->n_inputs);
}

static char *copy_text(char *at, const char **field)
{
    size_t bytes = strlen(*field) + 1;

    memcpy(at, *field, bytes);
    *field = at;
    return at + bytes;
}

static char *copy_array(char *at, const int64_t **field, size_t count)
{
    if (count > 0)
        memcpy(at, *field, count * sizeof **field);
    *field = (const int64_t *)(const void *)at;
    return at + count * sizeof **field;
}

/* Copies a point with everything it refers to into one allocation, which starts at its name. */
static invar_status copy_point(invar_ledger_point *out, const invar_ledger_point *point)
{
    size_t name = (strlen(point->name) + sizeof(int64_t)) / sizeof(int64_t) * sizeof(int64_t);
    size_t numbers = (point->dims + point->n_inputs) * sizeof(int64_t);
    size_t texts =
        strlen(point->phase) + strlen(point->op) + strlen(point->kind) + strlen(point->dtype) + 4;
    char *at;

    INVAR_TRY(INVAR_ALLOC(at, name + numbers + texts, "a probe's point"));
    *out = *point;
    copy_text(at, &out->name);
    at = copy_array(at + name, &out->shape, out->dims); // aligned, because `name` was rounded up
    at = copy_array(at, &out->inputs, out->n_inputs);
    at = copy_text(at, &out->phase);
    at = copy_text(at, &out->op);
    at = copy_text(at, &out->kind);
    copy_text(at, &out->dtype);
    return INVAR_OK;
}

static invar_status add_point(int64_t *out, invar_probe *probe, const invar_ledger_point *point)
{
    int64_t used = probe->count, needed = used + 1, a = probe->capacity, b = a, c = a;

    INVAR_TRY(grow_table(probe));
    // after a failure the arrays have different sizes, each at least `capacity`
    INVAR_TRY(INVAR_GROW(probe->points, a, used, needed, "a probe's points"));
    INVAR_TRY(INVAR_GROW(probe->digests, b, used, needed, "a probe's points"));
    INVAR_TRY(INVAR_GROW(probe->values, c, used, needed, "a probe's points"));
    probe->capacity = a;
    INVAR_TRY(copy_point(&probe->points[used], point));
    memset(&probe->values[used], 0, sizeof *probe->values);
    *find_slot(probe, point->name) = key_of_point(used);
    *out = probe->count++;
    return INVAR_OK;
}

/* Defines a point above the level: *out is a number for the dump, or -1. */
static invar_status define_skipped_point(int64_t *out, invar_probe *probe, const char *name)
{
    int64_t key = invar_probe_find(probe, name), used = probe->n_skipped;

    if (key == 0) {
        invar_probe_skipped_point *a;
        INVAR_TRY(grow_table(probe));
        INVAR_TRY(INVAR_GROW(probe->skipped, probe->skipped_capacity, used, used + 1,
                             "a probe's points"));
        a = &probe->skipped[used];
        memcpy(a->name, name, strlen(name) + 1);
        a->sources.count = 0;
        key = key_of_absent(used);
        *find_slot(probe, name) = key;
        probe->n_skipped++;
    }
    *out = probe->dump && invar_dump_wants(probe->dump, name) ? key - 1 : -1;
    return INVAR_OK;
}

invar_status invar_probe_define(int64_t *point_out, invar_probe *probe,
                                const invar_ledger_point *point)
{
    size_t length = strlen(point->name);
    int64_t key;

    if (length == 0 || length > INVAR_LEDGER_NAME_BYTES)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "probe: a point's name has %zu bytes; 1 to %d",
                          length, INVAR_LEDGER_NAME_BYTES);
    if (point->level > probe->options.level)
        return define_skipped_point(point_out, probe, point->name);
    key = invar_probe_find(probe, point->name);
    if (key == 0)
        return add_point(point_out, probe, point);
    if (key < 0 || (!probe->options.is_partial && !same_point(&probe->points[key - 1], point)))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "probe: point \"%.100s\" was defined before as something else",
                          point->name);
    *point_out = key - 1;
    return INVAR_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static const char *point_name(const invar_probe *probe, int64_t point)
{
    return point < 0 ? probe->skipped[-2 - point].name : probe->points[point].name;
}

static invar_status check_number(const invar_probe *probe, int64_t point)
{
    if (point >= probe->count || -2 - point >= probe->n_skipped)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "probe: there is no point %" PRId64, point);
    return INVAR_OK;
}

/* Fails if the value is complete, or with `fresh` if there is any value. */
static invar_status check_open(const invar_probe *probe, int64_t point, bool fresh)
{
    const invar_probe_value *v = &probe->values[point];

    if (v->complete || (fresh && v->present))
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "probe: point \"%.100s\" has its value of this step already",
                          probe->points[point].name);
    return INVAR_OK;
}

static invar_status check_tensor(const invar_ledger_point *point, const invar_tensor *tensor)
{
    bool fits = strcmp(point->dtype, invar_dtype_name(tensor->dtype)) == 0 &&
                point->dims == (size_t)tensor->rank;

    for (size_t i = 0; fits && i < point->dims; i++)
        fits = point->shape[i] == -1 || point->shape[i] == tensor->shape[i];
    if (!fits)
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "probe: point \"%.100s\" gets a tensor of another type or shape (%s, rank "
            "%d)",
            point->name, invar_dtype_name(tensor->dtype), (int)tensor->rank);
    return INVAR_OK;
}

static invar_status check_samples(const char *name, const invar_tensor *tensor,
                                  const invar_row_offsets *samples)
{
    bool fits = samples->count >= 0 && samples->offsets[0] == 0 &&
                samples->offsets[samples->count] <= tensor->shape[0];

    for (int64_t i = 0; fits && i < samples->count; i++)
        fits = samples->offsets[i] <= samples->offsets[i + 1];
    if (!fits)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "probe: point \"%.100s\": its samples are not rows of its tensor", name);
    return INVAR_OK;
}

/*
 * Writes rows [first, end) of a tensor as tree shards: data and, if quantized, scales. Returns
 * their number.
 */
static int64_t row_shards(invar_tree_shard *out, const invar_tensor *x, int64_t first, int64_t end)
{
    invar_tensor rows = invar_tensor_rows(x, first, end - first);
    size_t bits = (size_t)invar_dtype_bits(x->dtype), scales = invar_tensor_scale_bytes(&rows);

    out[0] =
        (invar_tree_shard){rows.data, end - first, (size_t)invar_tensor_row_elements(x) * bits / 8,
                           (size_t)x->row_stride * bits / 8};
    if (!invar_dtype_scale_block(x->dtype))
        return 1;
    out[1] = (invar_tree_shard){rows.scale, 1, scales, scales};
    return 2;
}

invar_status invar_probe_grow_leaves(invar_probe_value *v, int64_t count)
{
    return INVAR_GROW(v->leaves, v->capacity, v->count, v->count + count, "a probe's points");
}

static invar_status add_leaves(invar_probe *probe, invar_probe_value *v, const invar_tree_input *in)
{
    int64_t count;

    INVAR_TRY(invar_tree_leaf_count(&count, in));
    INVAR_TRY(invar_probe_grow_leaves(v, count));
    INVAR_TRY(invar_tree_leaves(v->leaves + v->count, count, probe->options.pool, in));
    v->count += count;
    v->shards += in->n_shards;
    for (int64_t i = 0; i < in->n_shards; i++)
        v->bytes += (uint64_t)in->shards[i].rows * in->shards[i].row_bytes;
    v->present = true;
    return INVAR_OK;
}

/* Adds the row ranges `parts`, each as a shard. */
static invar_status add_rows(invar_probe *probe, invar_probe_value *v, const invar_tensor *tensor,
                             const invar_row_offsets *parts)
{
    INVAR_AUTO_FREE invar_tree_shard *shards = NULL;
    invar_tree_input in;
    int64_t count = 0;

    INVAR_TRY(INVAR_ALLOC(shards, 2 * (size_t)parts->count, "a probe's shards"));
    for (int64_t i = 0; i < parts->count; i++)
        count += row_shards(shards + count, tensor, parts->offsets[i], parts->offsets[i + 1]);
    in = (invar_tree_input){shards, count};
    return add_leaves(probe, v, &in);
}

/* Computes statistics of host rows, per sample; of all rows if `samples` is NULL. */
static invar_status add_stats(invar_probe *probe, int64_t point, const invar_tensor *near,
                              const invar_row_offsets *samples)
{
    const int64_t all[] = {0, near->shape[0]};
    const invar_row_offsets whole = {all, 1}, *s = samples ? samples : &whole;
    invar_probe_value *v = &probe->values[point];

    if (!probe->options.stats || !invar_tensor_stats_counts(near->dtype))
        return INVAR_OK;
    v->has_stats = true;
    for (int64_t i = 0; i < s->count; i++) {
        invar_tensor rows =
            invar_tensor_rows(near, s->offsets[i], s->offsets[i + 1] - s->offsets[i]);
        invar_ledger_stat one = {0};
        invar_tensor_stats_add(&one, &rows, rows.shape[0]);
        invar_tensor_stats_join(&v->stat, &one);
        if (!probe->options.is_partial || !samples)
            continue;
        INVAR_TRY(INVAR_GROW(v->samples, v->samples_capacity, v->n_samples, v->n_samples + 1,
                             "a probe's points"));
        v->samples[v->n_samples++] = one;
    }
    return INVAR_OK;
}

static bool is_dumped(const invar_probe *probe, int64_t point)
{
    return probe->dump && invar_dump_wants(probe->dump, point_name(probe, point));
}

/*
 * Returns true if the tensor is dumped. numpy has no quantized types; the tensor before
 * quantization is a point too.
 */
static bool is_tensor_dumped(const invar_probe *probe, int64_t point, const invar_tensor *tensor)
{
    return !invar_dtype_scale_block(tensor->dtype) && is_dumped(probe, point);
}

invar_status invar_probe_rows(invar_probe *probe, int64_t point, const invar_tensor *tensor,
                              const invar_row_offsets *samples)
{
    if (point == -1)
        return INVAR_OK;
    INVAR_TRY(check_number(probe, point));
    INVAR_TRY(check_samples(point_name(probe, point), tensor, samples));
    if (point >= 0) {
        INVAR_TRY(check_open(probe, point, false));
        INVAR_TRY(check_tensor(&probe->points[point], tensor));
        INVAR_TRY(add_rows(probe, &probe->values[point], tensor, samples));
        INVAR_TRY(add_stats(probe, point, tensor, samples));
    }
    return is_tensor_dumped(probe, point, tensor)
               ? invar_dump_rows(probe->dump, point_name(probe, point), tensor, samples)
               : INVAR_OK;
}

/* Row i of n belongs to shard floor(i V / n), as in the op hash.tree. */
static invar_status add_complete_tensor(invar_probe *probe, int64_t point,
                                        const invar_tensor *tensor)
{
    int64_t shards = probe->points[point].shards, n = tensor->shape[0], *start;
    invar_probe_value *v = &probe->values[point];
    invar_status status;

    INVAR_TRY(check_open(probe, point, true));
    INVAR_TRY(check_tensor(&probe->points[point], tensor));
    INVAR_TRY(INVAR_ALLOC(start, (size_t)shards + 1, "a probe's shards"));
    for (int64_t i = 0; i <= shards; i++)
        start[i] = (i * n + shards - 1) / shards;
    status = add_rows(probe, v, tensor, &(invar_row_offsets){start, shards});
    invar_free(start);
    v->complete = status == INVAR_OK;
    return status == INVAR_OK ? add_stats(probe, point, tensor, NULL) : status;
}

invar_status invar_probe_tensor(invar_probe *probe, int64_t point, const invar_tensor *tensor)
{
    if (point == -1)
        return INVAR_OK;
    INVAR_TRY(check_number(probe, point));
    if (point >= 0)
        INVAR_TRY(add_complete_tensor(probe, point, tensor));
    return is_tensor_dumped(probe, point, tensor)
               ? invar_dump_rows(probe->dump, point_name(probe, point), tensor, NULL)
               : INVAR_OK;
}

/* ---- values in device memory ----------------------------------------------------------------- */

static bool has_local_memory(const invar_probe *probe)
{
    return probe->options.dev && invar_device_is_local(probe->options.dev);
}

invar_status invar_probe_read_leaves(invar_probe *probe)
{
    const invar_digest *read;
    int64_t at = 0;

    if (probe->n_pending == 0)
        return INVAR_OK;
    INVAR_TRY(invar_leaf_hasher_read(&read, &probe->leaves));
    for (int64_t i = 0; i < probe->n_pending; i++) {
        const invar_probe_pending_leaves *f = &probe->pending[i];
        if (f->count > 0)
            memcpy(probe->values[f->point].leaves + f->first, read + at,
                   (size_t)f->count * sizeof *read);
        at += f->count;
    }
    probe->n_pending = 0;
    return INVAR_OK;
}

/* Reserves slots for the leaves; they are downloaded together with others. */
static invar_status hash_rows(invar_probe *probe, int64_t point, const invar_tensor *rows,
                              const invar_row_offsets *samples, const invar_row_offsets *there)
{
    int64_t count = invar_hash_leaf_count(rows, samples);
    invar_probe_value *v = &probe->values[point];

    if (invar_leaf_hasher_full(&probe->leaves, count))
        INVAR_TRY(invar_probe_read_leaves(probe));
    INVAR_TRY(invar_probe_grow_leaves(v, count));
    INVAR_TRY(INVAR_GROW(probe->pending, probe->pending_capacity, probe->n_pending,
                         probe->n_pending + 1, "a probe's points"));
    INVAR_TRY(invar_leaf_hasher_add(&probe->leaves, rows, there, count));
    probe->pending[probe->n_pending++] = (invar_probe_pending_leaves){point, v->count, count};
    v->count += count;
    v->shards += invar_dtype_scale_block(rows->dtype) ? 2 * samples->count : samples->count;
    v->bytes += (uint64_t)(rows->shape[0] * invar_tensor_row_elements(rows)) *
                    (uint64_t)invar_dtype_bits(rows->dtype) / 8 +
                invar_tensor_scale_bytes(rows);
    v->present = true;
    return INVAR_OK;
}

/* Reads values back for dump and statistics, of `samples` or, if NULL, of a complete tensor. */
static invar_status read_back(invar_probe *probe, int64_t point, const invar_tensor *tensor,
                              const invar_row_offsets *samples)
{
    bool dump = is_tensor_dumped(probe, point, tensor);
    bool counts = point >= 0 && probe->options.stats && invar_tensor_stats_counts(tensor->dtype);
    invar_tensor near;

    if (!dump && !counts)
        return INVAR_OK;
    INVAR_TRY(invar_host_window_tensor(&near, &probe->window, tensor));
    if (counts)
        INVAR_TRY(add_stats(probe, point, &near, samples));
    return dump ? invar_dump_rows(probe->dump, point_name(probe, point), &near, samples) : INVAR_OK;
}

invar_status invar_probe_device_rows(invar_probe *probe, int64_t point, const invar_tensor *tensor,
                                     const invar_row_offsets *samples,
                                     const invar_row_offsets *device_samples)
{
    invar_tensor rows;

    if (point == -1 || !has_local_memory(probe))
        return invar_probe_rows(probe, point, tensor, samples);
    INVAR_TRY(check_number(probe, point));
    INVAR_TRY(check_samples(point_name(probe, point), tensor, samples));
    rows = invar_tensor_rows(tensor, 0, samples->offsets[samples->count]);
    if (point >= 0) {
        INVAR_TRY(check_open(probe, point, false));
        INVAR_TRY(check_tensor(&probe->points[point], tensor));
        INVAR_TRY(hash_rows(probe, point, &rows, samples, device_samples));
    }
    return read_back(probe, point, &rows, samples);
}

/* Queues a complete tensor; its digest is computed when the step is finished. */
static invar_status queue_complete_tensor(invar_probe *probe, int64_t point,
                                          const invar_tensor *tensor)
{
    invar_probe_value *v = &probe->values[point];

    INVAR_TRY(check_open(probe, point, true));
    INVAR_TRY(check_tensor(&probe->points[point], tensor));
    INVAR_TRY(INVAR_GROW(probe->awaited, probe->awaited_capacity, probe->digesting.count,
                         probe->digesting.count + 1, "a probe's points"));
    INVAR_TRY(
        invar_tensor_hasher_add(&probe->digesting, tensor, (int32_t)probe->points[point].shards));
    probe->awaited[probe->digesting.count - 1] = point;
    v->present = v->complete = v->external_digest = true;
    return INVAR_OK;
}

invar_status invar_probe_device_tensor(invar_probe *probe, int64_t point,
                                       const invar_tensor *tensor)
{
    if (point == -1 || !has_local_memory(probe))
        return invar_probe_tensor(probe, point, tensor);
    INVAR_TRY(check_number(probe, point));
    if (point >= 0)
        INVAR_TRY(queue_complete_tensor(probe, point, tensor));
    return read_back(probe, point, tensor, NULL);
}

invar_status invar_probe_tensor_with_digest(invar_probe *probe, int64_t point,
                                            const invar_tensor *tensor, const invar_digest *digest)
{
    if (point == -1)
        return INVAR_OK;
    INVAR_TRY(check_number(probe, point));
    if (point >= 0) {
        INVAR_TRY(check_tensor(&probe->points[point], tensor));
        INVAR_TRY(invar_probe_digest(probe, point, digest));
    }
    return read_back(probe, point, tensor, NULL);
}

invar_status invar_probe_values(invar_probe *probe, int64_t point, const invar_tensor *tensor)
{
    if (point == -1)
        return INVAR_OK;
    INVAR_TRY(check_number(probe, point));
    if (point >= 0) {
        INVAR_TRY(check_tensor(&probe->points[point], tensor));
        INVAR_TRY(add_stats(probe, point, tensor, NULL));
    }
    return is_tensor_dumped(probe, point, tensor)
               ? invar_dump_rows(probe->dump, point_name(probe, point), tensor, NULL)
               : INVAR_OK;
}

bool invar_probe_wants(const invar_probe *probe, int64_t point)
{
    return point != -1 && (probe->options.stats || is_dumped(probe, point));
}

bool invar_probe_needs_values(const invar_probe *probe)
{
    return probe->options.stats || probe->dump || probe->options.level >= INVAR_PROBE_FULL;
}

static invar_status read_digests(invar_probe *probe)
{
    INVAR_AUTO_FREE invar_digest *read = NULL;
    int64_t count = probe->digesting.count;

    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(read, (size_t)count, "a probe's digests"));
    INVAR_TRY(invar_tensor_hasher_read(read, &probe->digesting));
    for (int64_t i = 0; i < count; i++)
        probe->digests[probe->awaited[i]] = read[i];
    return INVAR_OK;
}

/* ---- digests --------------------------------------------------------------------------------- */

invar_status invar_probe_digest(invar_probe *probe, int64_t point, const invar_digest *digest)
{
    if (point < 0)
        return INVAR_OK;
    INVAR_TRY(check_number(probe, point));
    INVAR_TRY(check_open(probe, point, true));
    probe->digests[point] = *digest;
    probe->values[point].present = true;
    probe->values[point].complete = true;
    probe->values[point].external_digest = true;
    return INVAR_OK;
}

invar_status invar_probe_stat(invar_probe *probe, int64_t point, const invar_ledger_stat *stat)
{
    if (point < 0 || !probe->options.stats)
        return INVAR_OK;
    INVAR_TRY(check_number(probe, point));
    probe->values[point].stat = *stat;
    probe->values[point].has_stats = true;
    return INVAR_OK;
}

/* ---- results --------------------------------------------------------------------------------- */

/* Lists the statistics of all points that have any, in order. */
static invar_status list_stats(size_t *count_out, invar_probe *probe)
{
    *count_out = 0;
    INVAR_TRY(INVAR_GROW(probe->stats, probe->stats_capacity, 0, probe->count, "a probe's points"));
    for (int64_t i = 0; i < probe->count; i++) {
        invar_ledger_stat stat = probe->values[i].stat;
        if (!probe->values[i].has_stats)
            continue;
        stat.point = i;
        stat.l2 = sqrt(stat.l2);
        probe->stats[(*count_out)++] = stat;
    }
    return INVAR_OK;
}

const invar_ledger_point *invar_probe_first_nonfinite(invar_ledger_stat *out,
                                                      const invar_probe *probe)
{
    for (int64_t i = 0; i < probe->count; i++) {
        *out = probe->values[i].stat;
        out->point = i;
        if (out->nans || out->infs)
            return &probe->points[i];
    }
    return NULL;
}

invar_status invar_probe_finish(invar_probe_result *out, invar_probe *probe)
{
    size_t n_stats;

    INVAR_TRY(read_digests(probe));
    INVAR_TRY(invar_probe_read_leaves(probe));
    for (int64_t i = 0; i < probe->count; i++) {
        const invar_probe_value *v = &probe->values[i];
        if (!v->present && !probe->options.is_partial)
            return INVAR_FAIL(INVAR_E_STATE, 0, "probe: point \"%.100s\" got no value in this step",
                              probe->points[i].name);
        if (!v->present)
            probe->digests[i] = (invar_digest){{0}};
        else if (!v->external_digest)
            INVAR_TRY(
                invar_tree_root(&probe->digests[i], v->leaves, v->count, v->bytes, v->shards));
    }
    INVAR_TRY(list_stats(&n_stats, probe));
    *out = (invar_probe_result){.points = probe->points,
                                .digests = probe->digests,
                                .count = probe->count,
                                .changed = probe->count != probe->listed,
                                .stats = probe->stats,
                                .n_stats = n_stats};
    probe->listed = probe->count;
    return INVAR_OK;
}

invar_status invar_probe_leaves(const invar_digest **out, int64_t *count_out,
                                const invar_probe *probe, int64_t point)
{
    INVAR_TRY(check_number(probe, point));
    if (point < 0 || !probe->values[point].present || probe->values[point].external_digest)
        return INVAR_FAIL(INVAR_E_STATE, 0, "probe: point %" PRId64 " has no leaves in this step",
                          point);
    *out = probe->values[point].leaves;
    *count_out = probe->values[point].count;
    return INVAR_OK;
}

/* ---- inputs of points ------------------------------------------------------------------------ */

static void add_source(invar_probe_sources *list, int64_t point)
{
    for (int64_t i = 0; i < list->count; i++)
        if (list->points[i] == point)
            return;
    // given by the model's own structure, never by input data
    INVAR_CHECK(list->count < INVAR_PROBE_SOURCES);
    list->points[list->count++] = point;
}

/* Adds the point with this name, or the points that replace it. */
static void add_sources(invar_probe_sources *list, const invar_probe *probe, const char *name)
{
    int64_t key = invar_probe_find(probe, name);

    if (key > 0) {
        add_source(list, key - 1);
    } else if (key < 0) {
        const invar_probe_sources *known = &probe->skipped[-1 - key].sources;
        for (int64_t i = 0; i < known->count; i++)
            add_source(list, known->points[i]);
    }
}

invar_status invar_probe_define_from(int64_t *point_out, invar_probe *probe,
                                     const invar_ledger_point *point, const char *const *inputs)
{
    invar_ledger_point full = *point;
    invar_probe_sources from = {.count = 0};

    for (; probe->options.level > INVAR_PROBE_STEP && inputs && *inputs; inputs++)
        add_sources(&from, probe, *inputs);
    full.inputs = from.points;
    full.n_inputs = (size_t)from.count;
    INVAR_TRY(invar_probe_define(point_out, probe, &full));
    if (*point_out < 0)
        probe->skipped[-1 - invar_probe_find(probe, point->name)].sources = from;
    return INVAR_OK;
}
