/*
 * view.c - what a forward and its backward show, as points of a probe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/probe/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/program/watch.h"

#include "base/invar_banned.h"

typedef char name[INVAR_LEDGER_NAME_BYTES + 1];

static invar_status name_point(name out, const invar_probe_view *view,
                               const invar_value_name *value)
{
    char place[32] = "";

    if (value->layer >= 0)
        snprintf(place, sizeof place, "layer.%" PRId64 ".", value->layer);
    if (snprintf(out, sizeof(name), "%s%s%s", view->prefix, place, value->text) >=
        (int)sizeof(name))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "probe: the name of point \"%s\" is too long",
                          value->text);
    return INVAR_OK;
}

static invar_status define(int64_t *out, const invar_probe_view *view, const char *point,
                           const invar_forward_value *value)
{
    const char *inputs[INVAR_WATCH_INPUTS + 1] = {NULL};
    name names[INVAR_WATCH_INPUTS];
    int64_t shape[INVAR_MAX_RANK] = {-1};

    for (int i = 0; i < value->n_inputs; i++) {
        INVAR_TRY(name_point(names[i], view, &value->inputs[i]));
        inputs[i] = names[i];
    }
    for (int32_t i = 1; i < value->rows->rank; i++)
        shape[i] = value->rows->shape[i] * (value->by_slot ? value->by_slot->shape[1] : 1);
    return invar_probe_define_from(
        out, view->probe,
        &(invar_ledger_point){.name = point,
                              .phase = value->backward ? "backward" : "forward",
                              .layer = value->name.layer,
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
    invar_tensor rows = *value->rows;
    int64_t number;
    name point;

    INVAR_TRY(name_point(point, v, &value->name));
    INVAR_TRY(define(&number, v, point, value));
    if (value->stream)
        memcpy(v->stream[value->backward], point, sizeof point);
    if (value->by_slot && number != -1)
        INVAR_TRY(invar_watch_slots(&rows, value));
    return invar_probe_device_rows(v->probe, number, &rows, value->samples, value->there);
}
