/*
 * point_list.c - lists of point definitions, and merging those of several pipeline stages.
 *
 * Definitions are plain structs without pointers, so they are sent as bytes. Received ones are
 * checked before use: every text must be terminated and every count in range.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/point_list.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* ---- definitions ----------------------------------------------------------------------------- */

static void copy_names(invar_value_name *out, const invar_value_name *names, int count)
{
    for (int i = 0; i < count; i++) {
        out[i].layer = names[i].layer;
        (void)snprintf(out[i].text, sizeof out[i].text, "%s", names[i].text);
    }
}

static int64_t position_of(const invar_observed_value *value, bool deep)
{
    int64_t layer = value->name.layer, depth = layer >= 0 ? layer : deep ? INT32_MAX : -1;

    return value->backward ? 2 * (int64_t)INT32_MAX - depth : depth;
}

void invar_point_def_of(invar_point_def *out, const invar_observed_value *value, bool deep)
{
    const invar_tensor *rows = value->rows;

    memset(out, 0, sizeof *out);
    copy_names(&out->name, &value->name, 1);
    out->place = position_of(value, deep);
    INVAR_CHECK(strlen(value->op) < sizeof out->op);
    (void)snprintf(out->op, sizeof out->op, "%s", value->op);
    out->backward = value->backward;
    out->stream = value->is_residual;
    copy_names(out->inputs, value->inputs, value->n_inputs);
    out->n_inputs = value->n_inputs;
    out->rows.dtype = rows->dtype;
    out->rows.rank = rows->rank;
    memcpy(out->rows.shape, rows->shape, sizeof rows->shape);
    out->rows.row_stride = rows->row_stride;
}

invar_observed_value invar_point_def_value(const invar_point_def *listed)
{
    invar_observed_value value = {.name = listed->name,
                                  .op = listed->op,
                                  .backward = listed->backward,
                                  .is_residual = listed->stream,
                                  .n_inputs = listed->n_inputs,
                                  .rows = &listed->rows};

    memcpy(value.inputs, listed->inputs, sizeof value.inputs);
    return value;
}

static bool are_names(const invar_value_name *names, int count)
{
    bool fit = count >= 0 && count <= INVAR_DATAFLOW_INPUTS;

    for (int i = 0; fit && i < count; i++)
        fit = memchr(names[i].text, '\0', sizeof names[i].text) != NULL;
    return fit;
}

invar_status invar_point_def_check(const invar_point_def *l)
{
    bool fits = are_names(&l->name, 1) && are_names(l->inputs, l->n_inputs) &&
                memchr(l->op, '\0', sizeof l->op) && l->rows.rank >= 1 &&
                l->rows.rank <= INVAR_MAX_RANK && l->rows.dtype < INVAR_DTYPE_COUNT;

    return fits ? INVAR_OK : invar_rank_buffer_damaged();
}

static bool same_name(const invar_value_name *a, const invar_value_name *b)
{
    return a->layer == b->layer && strcmp(a->text, b->text) == 0;
}

/* ---- lists ----------------------------------------------------------------------------------- */

void invar_point_list_reset(invar_point_list *list)
{
    list->count = list->n_sums = 0;
}

void invar_point_list_release(invar_point_list *list)
{
    invar_free(list->values);
    invar_free(list->sums);
    *list = (invar_point_list){0};
}

static bool is_listed(const invar_point_list *l, const invar_value_name *name)
{
    for (int64_t i = l->count - 1; i >= 0; i--)
        if (same_name(&l->values[i].name, name))
            return true;
    return false;
}

static invar_status insert_def(invar_point_list *l, int64_t at, const invar_point_def *value)
{
    INVAR_TRY(
        INVAR_GROW(l->values, l->capacity, l->count, l->count + 1, "a list of what is shown"));
    memmove(l->values + at + 1, l->values + at, (size_t)(l->count - at) * sizeof *l->values);
    l->values[at] = *value;
    l->count++;
    return INVAR_OK;
}

static bool has_layer_values(const invar_point_list *l)
{
    for (int64_t i = l->count - 1; i >= 0; i--)
        if (l->values[i].name.layer >= 0)
            return true;
    return false;
}

invar_status invar_point_list_add(invar_point_list *l, const invar_observed_value *value)
{
    invar_point_def one;

    if (is_listed(l, &value->name))
        return INVAR_OK;
    invar_point_def_of(&one, value, has_layer_values(l));
    return insert_def(l, l->count, &one);
}

static invar_status add_sum(invar_point_list *l, const invar_point_grad_inputs *sum)
{
    int64_t i = 0;

    while (i < l->n_sums && l->sums[i].number != sum->number)
        i++;
    if (i == l->n_sums)
        INVAR_TRY(INVAR_GROW(l->sums, l->sums_capacity, i, i + 1, "a list of what is shown"));
    l->sums[i] = *sum;
    l->n_sums += i == l->n_sums;
    return INVAR_OK;
}

invar_status invar_point_list_add_sum(invar_point_list *l, int64_t number,
                                      const invar_observed_grad *sum)
{
    invar_point_grad_inputs one;

    memset(&one, 0, sizeof one);
    one.number = number;
    copy_names(one.inputs, sum->inputs, sum->n_inputs);
    one.n_inputs = sum->n_inputs;
    return add_sum(l, &one);
}

/* ---- several stages -------------------------------------------------------------------------- */

invar_status invar_point_list_pack(invar_rank_buffer *to, const invar_point_list *l)
{
    INVAR_TRY(invar_rank_buffer_put(to, &l->count, 1, sizeof l->count));
    INVAR_TRY(invar_rank_buffer_put(to, l->values, (size_t)l->count, sizeof *l->values));
    INVAR_TRY(invar_rank_buffer_put(to, &l->n_sums, 1, sizeof l->n_sums));
    return invar_rank_buffer_put(to, l->sums, (size_t)l->n_sums, sizeof *l->sums);
}

/* Inserts a definition after those with lower and equal positions. */
static invar_status unpack_def(invar_point_list *l, const invar_point_def *value)
{
    int64_t at = l->count;

    INVAR_TRY(invar_point_def_check(value));
    if (is_listed(l, &value->name))
        return INVAR_OK;
    while (at > 0 && l->values[at - 1].place > value->place)
        at--;
    return insert_def(l, at, value);
}

static invar_status unpack_sum(invar_point_list *l, const invar_point_grad_inputs *sum)
{
    return are_names(sum->inputs, sum->n_inputs) ? add_sum(l, sum) : invar_rank_buffer_damaged();
}

invar_status invar_point_list_unpack(invar_point_list *l, invar_rank_buffer_reader *from)
{
    const void *count, *items;

    INVAR_TRY(invar_rank_buffer_take(&count, from, 1, sizeof(int64_t)));
    INVAR_TRY(invar_rank_buffer_take(&items, from, *(const int64_t *)count, sizeof *l->values));
    for (int64_t i = 0; i < *(const int64_t *)count; i++)
        INVAR_TRY(unpack_def(l, (const invar_point_def *)items + i));
    INVAR_TRY(invar_rank_buffer_take(&count, from, 1, sizeof(int64_t)));
    INVAR_TRY(invar_rank_buffer_take(&items, from, *(const int64_t *)count, sizeof *l->sums));
    for (int64_t i = 0; i < *(const int64_t *)count; i++)
        INVAR_TRY(unpack_sum(l, (const invar_point_grad_inputs *)items + i));
    return INVAR_OK;
}
