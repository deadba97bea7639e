/*
 * compare_points.c - compares the points of two executions of a step by name, and finds the
 * culprit.
 *
 * Values are compared if both sides have the point with the same dtype, shape and number of shards;
 * all other differences between the manifests are structural. A difference arises at a point that
 * differs although all its inputs are equal; among points without recorded inputs, at the first
 * that differs. An input that only one side has, for example of a finer probe, is replaced by its
 * own inputs, so that points which both sides have decide.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/sort.h"
#include "ledger/store/ledger_row.h"
#include "ledger/view/diff/internal.h"

#include "base/invar_banned.h"

/* Result of comparing a point with the point of the same name on the other side. */
typedef enum fate { FATE_ALONE, FATE_RESHAPED, FATE_EQUAL, FATE_DIFFERENT } fate;

typedef struct point {
    const char *name, *phase, *op, *kind, *dtype, *shape;
    int64_t layer, level, shards, replicated;
    int64_t *inputs; /* (n_inputs) indices of earlier points */
    size_t n_inputs;
    int64_t
        twin; /* index of the point of the same name in the other manifest; -1 if there is none */
    fate fate;
    bool settled; /* the point is equal on both sides, or only one side has it and all its inputs
                     are settled */
    invar_digest value;
} point;

typedef struct manifest {
    const invar_diff_source *source;
    point *points; /* (count) */
    int64_t count;
    int64_t number; /* number of the manifest in its ledger */
} manifest;

/* ---- reading --------------------------------------------------------------------------------- */

static invar_status read_inputs(invar_diff *diff, point *p, int64_t ord, const manifest *m,
                                const char *text, size_t bytes)
{
    json_error_t error;
    json_t *array = json_loadb(text, bytes, 0, &error);
    invar_status status = INVAR_OK;

    if (!array && *error.text == '\0') // jansson describes every failure except lack of memory
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "diff: no memory for the inputs of a point");
    if (!json_is_array(array))
        status = invar_diff_corrupt(m->source, "the inputs of a point are no list");
    p->n_inputs = json_array_size(array);
    if (status == INVAR_OK)
        status = INVAR_DIFF_ALLOC(p->inputs, diff, p->n_inputs);
    for (size_t i = 0; status == INVAR_OK && i < p->n_inputs; i++) {
        const json_t *input = json_array_get(array, i);
        int64_t value = json_integer_value(input);
        if (!json_is_integer(input) || value < 0 || value >= ord)
            status = invar_diff_corrupt(m->source, "a point has an input that is not before it");
        p->inputs[i] = value;
    }
    json_decref(array);
    return status;
}

static invar_status read_point(invar_diff *diff, manifest *m, int64_t i, invar_sql_stmt *row)
{
    point *p = &m->points[i];
    const char *inputs;
    size_t bytes;

    if (invar_sql_int(row, 0) != i)
        return invar_diff_corrupt(m->source, "the points of a manifest have gaps");
    INVAR_TRY(invar_diff_column(&p->name, diff, row, 1));
    INVAR_TRY(invar_diff_column(&p->phase, diff, row, 2));
    INVAR_TRY(invar_diff_column(&p->op, diff, row, 4));
    INVAR_TRY(invar_diff_column(&p->kind, diff, row, 5));
    INVAR_TRY(invar_diff_column(&p->dtype, diff, row, 7));
    INVAR_TRY(invar_diff_column(&p->shape, diff, row, 8));
    p->layer = invar_sql_type(row, 3) == INVAR_LEDGER_TYPE_NULL ? -1 : invar_sql_int(row, 3);
    p->level = invar_sql_int(row, 6);
    p->shards = invar_sql_int(row, 9);
    p->replicated = invar_sql_int(row, 10);
    p->twin = -1;
    inputs = invar_sql_text(row, 11, &bytes);
    return read_inputs(diff, p, i, m, inputs, bytes);
}

/* *out = the index, in the other manifest, of the point named in `row`; -1 if there is none. */
static invar_status find_twin(int64_t *out, invar_sql_stmt *find, const manifest *other,
                              invar_sql_stmt *row)
{
    invar_status status;

    invar_sql_reset(find);
    status = invar_sql_bind(find, 2, invar_ledger_value_column(row, 1));
    *out = invar_sql_next(&status, find) ? invar_sql_int(find, 0) : -1;
    if (*out >= other->count)
        return invar_diff_corrupt(other->source, "a manifest has more points than digests");
    return status;
}

/* Reads the points in order. If `other` is not NULL, also pairs them with the points of `other`. */
static invar_status read_point_rows(invar_diff *diff, manifest *m, manifest *other,
                                    invar_sql_stmt *rows, invar_sql_stmt *find)
{
    invar_status status = INVAR_OK;
    int64_t i = 0;

    for (; i <= m->count && invar_sql_next(&status, rows); i++) {
        if (i == m->count)
            continue;
        INVAR_TRY(read_point(diff, m, i, rows));
        if (!other)
            continue;
        INVAR_TRY(find_twin(&m->points[i].twin, find, other, rows));
        if (m->points[i].twin >= 0)
            other->points[m->points[i].twin].twin = i;
    }
    return status == INVAR_OK && i != m->count
               ? invar_diff_corrupt(m->source, "a manifest has not as many points as digests")
               : status;
}

static invar_status read_points(invar_diff *diff, manifest *m, manifest *other)
{
    invar_sql_stmt *rows, *find = NULL;
    invar_status status = INVAR_SQL_QUERY(
        &rows, m->source->sql,
        "SELECT ord, name, phase, layer, op, kind, level, dtype, shape, shards, replicated, inputs "
        "FROM point WHERE manifest = ?1 ORDER BY ord",
        m->number);

    if (status == INVAR_OK && other)
        status = INVAR_SQL_QUERY(&find, other->source->sql,
                                 "SELECT ord FROM point WHERE manifest = ?1 AND name = ?2",
                                 other->number);
    if (status == INVAR_OK)
        status = read_point_rows(diff, m, other, rows, find);
    invar_sql_free(find);
    return invar_sql_end(rows, status);
}

/* Reads the digests of rank 0; a pruned copy may not have them. */
static invar_status read_digests(invar_diff *diff, manifest *m)
{
    invar_sql_stmt *row;
    const unsigned char *data;
    size_t bytes;
    invar_status status = invar_diff_prepare(
        &row, m->source,
        "SELECT manifest, data FROM digest WHERE run = ?1 AND step = ?2 AND seg = ?3 AND rank = 0");

    if (invar_sql_next(&status, row)) {
        m->source->side->digests = true;
        m->number = invar_sql_int(row, 0);
        data = invar_sql_blob(row, 1, &bytes);
        m->source->side->points = m->count = (int64_t)(bytes / sizeof m->points->value.bytes);
        status = INVAR_DIFF_ALLOC(m->points, diff, (size_t)m->count);
        for (int64_t i = 0; status == INVAR_OK && i < m->count; i++)
            memcpy(m->points[i].value.bytes, data + i * 16, 16);
        if (status == INVAR_OK && bytes % 16)
            status = invar_diff_corrupt(m->source, "the digests of a step are cut off");
    }
    return invar_sql_end(row, status);
}

/* ---- structure ------------------------------------------------------------------------------- */

static invar_status add_change(invar_diff *diff, const char *name, const char *what, const char *a,
                               const char *b)
{
    return INVAR_DIFF_ADD(diff->changes, diff, (invar_diff_manifest_change){name, what, a, b});
}

/* Describes a point that only one side has, such as "forward, linear, act, bf16 [4,8]". */
static invar_status describe_point(const char **out, invar_diff *diff, const point *p)
{
    return invar_diff_format(out, diff, "%s, %s, %s, %s %s", p->phase, p->op, p->kind, p->dtype,
                             p->shape);
}

static invar_status list_inputs(const char **out, invar_diff *diff, const manifest *m,
                                const point *p)
{
    size_t bytes = 1, used = 0;
    char *text;

    for (size_t i = 0; i < p->n_inputs; i++)
        bytes += strlen(m->points[p->inputs[i]].name) + 2;
    INVAR_TRY(INVAR_DIFF_ALLOC(text, diff, bytes));
    for (size_t i = 0; i < p->n_inputs; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "",
                                 m->points[p->inputs[i]].name);
    *out = text;
    return INVAR_OK;
}

static bool same_inputs(const manifest *a, const point *p, const point *q)
{
    if (p->n_inputs != q->n_inputs)
        return false;
    for (size_t i = 0; i < p->n_inputs; i++)
        if (a->points[p->inputs[i]].twin != q->inputs[i])
            return false;
    return true;
}

/* Adds the fields in which two points of one name differ. */
static invar_status compare_fields(invar_diff *diff, const manifest *a, const manifest *b,
                                   const point *p, const point *q)
{
    const struct {
        const char *what, *a, *b;
    } texts[] = {{"phase", p->phase, q->phase},
                 {"op", p->op, q->op},
                 {"kind", p->kind, q->kind},
                 {"dtype", p->dtype, q->dtype},
                 {"shape", p->shape, q->shape}};
    const struct {
        const char *what;
        int64_t a, b;
    } numbers[] = {{"layer", p->layer, q->layer},
                   {"level", p->level, q->level},
                   {"shards", p->shards, q->shards},
                   {"replicated", p->replicated, q->replicated}};
    const char *x, *y;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(texts[i].a, texts[i].b) != 0)
            INVAR_TRY(add_change(diff, p->name, texts[i].what, texts[i].a, texts[i].b));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].a == numbers[i].b)
            continue;
        INVAR_TRY(invar_diff_format(&x, diff, "%" PRId64, numbers[i].a));
        INVAR_TRY(invar_diff_format(&y, diff, "%" PRId64, numbers[i].b));
        INVAR_TRY(add_change(diff, p->name, numbers[i].what, x, y));
    }
    if (same_inputs(a, p, q))
        return INVAR_OK;
    INVAR_TRY(list_inputs(&x, diff, a, p));
    INVAR_TRY(list_inputs(&y, diff, b, q));
    return add_change(diff, p->name, "inputs", x, y);
}

/* Adds the first pair of points that the sides execute in opposite order. */
static invar_status compare_order(invar_diff *diff, const manifest *a)
{
    const point *last = NULL;

    for (const point *p = a->points; p < a->points + a->count; p++) {
        const char *x, *y;
        if (p->twin < 0)
            continue;
        if (!last || p->twin > last->twin) {
            last = p;
            continue;
        }
        INVAR_TRY(invar_diff_format(&x, diff, "after %s", last->name));
        INVAR_TRY(invar_diff_format(&y, diff, "before %s", last->name));
        return add_change(diff, p->name, "order", x, y);
    }
    return INVAR_OK;
}

static invar_status compare_structure(invar_diff *diff, const manifest *a, const manifest *b)
{
    const char *text;

    for (const point *p = a->points; p < a->points + a->count; p++) {
        if (p->twin >= 0) {
            INVAR_TRY(compare_fields(diff, a, b, p, &b->points[p->twin]));
            continue;
        }
        INVAR_TRY(describe_point(&text, diff, p));
        INVAR_TRY(add_change(diff, p->name, "point", text, NULL));
    }
    for (const point *q = b->points; q < b->points + b->count; q++) {
        if (q->twin >= 0)
            continue;
        INVAR_TRY(describe_point(&text, diff, q));
        INVAR_TRY(add_change(diff, q->name, "point", NULL, text));
    }
    return compare_order(diff, a);
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool inputs_settled(const manifest *m, const point *p)
{
    for (size_t i = 0; i < p->n_inputs; i++)
        if (!m->points[p->inputs[i]].settled)
            return false;
    return true;
}

/* Compares all points. Inputs precede the points computed from them, so one pass suffices. */
static void propagate_equality(manifest *m, const manifest *other)
{
    for (point *p = m->points; p < m->points + m->count; p++) {
        const point *q = p->twin < 0 ? NULL : &other->points[p->twin];
        bool alike = q && strcmp(p->dtype, q->dtype) == 0 && strcmp(p->shape, q->shape) == 0 &&
                     p->shards == q->shards;
        p->fate = !q                                         ? FATE_ALONE
                  : !alike                                   ? FATE_RESHAPED
                  : invar_digest_equal(&p->value, &q->value) ? FATE_EQUAL
                                                             : FATE_DIFFERENT;
        p->settled = p->fate == FATE_EQUAL ||
                     (p->fate == FATE_ALONE && p->n_inputs > 0 && inputs_settled(m, p));
    }
}

/* Consecutive points of one phase and layer. */
typedef struct stretch {
    invar_diff_group count;
    size_t phase; /* index of the first stretch of the phase, by which phases are sorted */
    size_t index; /* index in the list of stretches */
} stretch;

typedef INVAR_DIFF_LIST(stretch) stretch_list;

static invar_status count_stretch(invar_diff *diff, stretch_list *stretches, const point *p)
{
    stretch *last = stretches->count ? &stretches->items[stretches->count - 1] : NULL;

    if (!last || last->count.layer != p->layer || strcmp(last->count.phase, p->phase) != 0) {
        INVAR_TRY(INVAR_DIFF_ADD(*stretches, diff,
                                 (stretch){.count = {.phase = p->phase, .layer = p->layer},
                                           .index = stretches->count - 1}));
        last = &stretches->items[stretches->count - 1];
    }
    last->count.equal += p->fate == FATE_EQUAL;
    last->count.different += p->fate == FATE_DIFFERENT;
    return INVAR_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const stretch *)a)->count.phase, ((const stretch *)b)->count.phase);
}

static int by_phase_and_layer(const void *a, const void *b)
{
    const stretch *x = a, *y = b;

    if (x->phase != y->phase)
        return x->phase < y->phase ? -1 : 1;
    return (x->count.layer > y->count.layer) - (x->count.layer < y->count.layer);
}

/* Joins stretches of the same phase and layer to groups; they need not be adjacent. */
static invar_status join_stretches(invar_diff *diff, const stretch_list *stretches)
{
    stretch *all = stretches->items;
    const void **order;

    INVAR_TRY(INVAR_DIFF_ALLOC(order, diff, stretches->count));
    for (size_t i = 0; i < stretches->count; i++)
        order[i] = &all[i];
    INVAR_TRY(invar_sort(order, stretches->count, by_name));
    for (size_t i = 0; i < stretches->count;
         i++) { // a stable sort keeps the first of a phase first
        const stretch *s = order[i], *before = i > 0 ? order[i - 1] : NULL;
        all[s->index].phase = before && by_name(before, s) == 0 ? before->phase : s->index;
    }
    INVAR_TRY(invar_sort(order, stretches->count, by_phase_and_layer));
    for (size_t i = 0; i < stretches->count; i++) {
        const stretch *s = order[i];
        invar_diff_group *last;
        if (i == 0 || by_phase_and_layer(order[i - 1], s) != 0) {
            INVAR_TRY(INVAR_DIFF_ADD(diff->groups, diff, s->count));
            continue;
        }
        last = &diff->groups.items[diff->groups.count - 1];
        last->equal += s->count.equal;
        last->different += s->count.different;
    }
    return INVAR_OK;
}

/* Returns the point NAME.parts, which follows the point NAME of a fused call; NULL if absent. */
static const point *parts_of(const manifest *m, const point *p)
{
    static const char more[] = ".parts";
    const point *next = p + 1;
    size_t length = strlen(p->name);

    if (next == m->points + m->count || strncmp(next->name, p->name, length) != 0 ||
        strcmp(next->name + length, more) != 0)
        return NULL;
    return next;
}

static invar_status add_point(invar_diff *diff, const manifest *a, const manifest *b,
                              const point *p)
{
    const point *q = &b->points[p->twin], *parts = parts_of(a, p), *other = parts_of(b, q);
    bool fused = parts && other;
    // without recorded inputs, a later difference may follow from an earlier one
    bool known = p->n_inputs + q->n_inputs > 0 || diff->points.count == 0;
    invar_diff_point different = {
        .name = p->name,
        .phase = p->phase,
        .op = p->op,
        .kind = p->kind,
        .dtype = p->dtype,
        .shape = p->shape,
        .ord = p - a->points,
        .layer = p->layer,
        .level = p->level,
        .inputs = (int64_t)p->n_inputs,
        .is_origin = known && inputs_settled(a, p) && inputs_settled(b, q),
        .inputs_differ = !same_inputs(a, p, q),
        .fused = fused,
        .fused_mismatch_a = fused && !invar_digest_equal(&p->value, &parts->value),
        .fused_mismatch_b = fused && !invar_digest_equal(&q->value, &other->value),
        .parts_equal = fused && invar_digest_equal(&parts->value, &other->value),
        .a = p->value,
        .b = q->value,
    };

    return INVAR_DIFF_ADD(diff->points, diff, different);
}

static invar_status list_values(invar_diff *diff, const manifest *a, const manifest *b)
{
    stretch_list stretches = {0};

    for (const point *p = a->points; p < a->points + a->count; p++) {
        if (p->fate != FATE_EQUAL && p->fate != FATE_DIFFERENT)
            continue;
        INVAR_TRY(count_stretch(diff, &stretches, p));
        diff->points.equal += p->fate == FATE_EQUAL;
        if (p->fate == FATE_DIFFERENT)
            INVAR_TRY(add_point(diff, a, b, p));
    }
    for (size_t i = 0; i < diff->points.count && !diff->culprit; i++)
        if (diff->points.items[i].is_origin)
            diff->culprit = &diff->points.items[i];
    return join_stretches(diff, &stretches);
}

invar_status invar_diff_compare_points(invar_diff *diff, const invar_diff_source *a,
                                       const invar_diff_source *b)
{
    manifest x = {.source = a}, y = {.source = b};

    INVAR_TRY(read_digests(diff, &x));
    INVAR_TRY(read_digests(diff, &y));
    if (!a->side->digests || !b->side->digests)
        return INVAR_OK;
    INVAR_TRY(read_points(diff, &x, NULL));
    INVAR_TRY(read_points(diff, &y, &x));
    INVAR_TRY(compare_structure(diff, &x, &y));
    propagate_equality(&x, &y);
    propagate_equality(&y, &x);
    return list_values(diff, &x, &y);
}
