/*
 * view.c - what a forward and its backward show, as points of a probe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/probe/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/invar_banned.h"

typedef char name[INVAR_LEDGER_NAME_BYTES + 1];

static invar_status name_point(name out, const invar_probe_view *view, int64_t layer,
                               const char *point)
{
    char place[32] = "";

    if (layer >= 0)
        snprintf(place, sizeof place, "layer.%" PRId64 ".", layer);
    if (snprintf(out, sizeof(name), "%s%s%s", view->prefix, place, point) >= (int)sizeof(name))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "probe: the name of point \"%.100s\" is too long",
                          point);
    return INVAR_OK;
}

/* The full name of an input; see invar_forward_value. */
static invar_status name_input(name out, const invar_probe_view *view, int64_t layer,
                               const char *input)
{
    bool in = strcmp(input, "in") == 0;

    if (strcmp(input, "d") == 0 || (in && layer < 0)) {
        memcpy(out, view->stream[!in], sizeof(name));
        return INVAR_OK;
    }
    if (in)
        return layer == 0 ? name_point(out, view, -1, "embed")
                          : name_point(out, view, layer - 1, "mlp");
    return name_point(out, view, layer, input);
}

static invar_status define(int64_t *out, const invar_probe_view *view, const char *point,
                           const invar_forward_value *value)
{
    const char *inputs[INVAR_FORWARD_INPUTS + 1] = {NULL};
    name names[INVAR_FORWARD_INPUTS];
    int64_t shape[INVAR_MAX_RANK] = {-1};

    for (int i = 0; i < INVAR_FORWARD_INPUTS && value->inputs[i]; i++) {
        INVAR_TRY(name_input(names[i], view, value->layer, value->inputs[i]));
        inputs[i] = names[i];
    }
    for (int32_t i = 1; i < value->rows->rank; i++)
        shape[i] = value->rows->shape[i];
    return invar_probe_define_from(
        out, view->probe,
        &(invar_ledger_point){.name = point,
                              .phase = value->backward ? "backward" : "forward",
                              .layer = value->layer,
                              .op = value->op,
                              .kind = value->backward ? "grad" : "act",
                              .level = value->stream ? INVAR_PROBE_POINT : INVAR_PROBE_FULL,
                              .dtype = invar_dtype_name(value->rows->dtype),
                              .shape = shape,
                              .dims = (size_t)value->rows->rank,
                              .shards = 1},
        *inputs ? inputs : view->given[value->backward]);
}

invar_status invar_probe_take(void *view, const invar_forward_value *value)
{
    invar_probe_view *v = view;
    int64_t number;
    name point;

    INVAR_TRY(name_point(point, v, value->layer, value->point));
    INVAR_TRY(define(&number, v, point, value));
    if (value->stream)
        memcpy(v->stream[value->backward], point, sizeof point);
    if (value->near)
        return invar_probe_rows(v->probe, number, value->rows, value->samples);
    return invar_probe_device_rows(v->probe, number, value->rows, value->samples);
}
