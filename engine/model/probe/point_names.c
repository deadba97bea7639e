/*
 * point_names.c - names the values that a forward and backward show, and records them as points.
 *
 * A value becomes the point PREFIX "layer." N "." NAME; its inputs are named the same way. Values
 * without inputs depend on what the pass started from, so they get the configured inputs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/point_names.h"

#include <inttypes.h>

#include "base/text.h"
#include "engine/model/graph/dataflow.h"

#include "base/invar_banned.h"

typedef char name[INVAR_LEDGER_NAME_BYTES + 1];

/* Formats a number >= 0. */
static const char *format_decimal(char out[24], int64_t number)
{
    char *at = out + 23;

    *at = '\0';
    do
        *--at = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    return at;
}

invar_status invar_point_namer_name(char out[INVAR_LEDGER_NAME_BYTES + 1],
                                    const invar_point_namer *namer, const invar_value_name *value)
{
    bool layer = value->layer >= 0;
    char digits[24];
    const char *texts[] = {namer->prefix, layer ? "layer." : "",
                           layer ? format_decimal(digits, value->layer) : "", layer ? "." : "",
                           value->text};

    if (!invar_text_join(out, sizeof(name), texts, 5))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "probe: the name of point \"%s\" is too long",
                          value->text);
    return INVAR_OK;
}

typedef struct inputs {
    name names[INVAR_DATAFLOW_INPUTS];
    const char *list[INVAR_DATAFLOW_INPUTS + 1]; /* NULL after the last */
} inputs;

static invar_status name_inputs(inputs *out, const invar_point_namer *view,
                                const invar_value_name *values, int count)
{
    for (int i = 0; i < count; i++) {
        INVAR_TRY(invar_point_namer_name(out->names[i], view, &values[i]));
        out->list[i] = out->names[i];
    }
    out->list[count] = NULL;
    return INVAR_OK;
}

int64_t invar_point_namer_level(const invar_observed_value *value)
{
    return value->is_residual ? INVAR_PROBE_POINT : INVAR_PROBE_FULL;
}

invar_status invar_point_namer_define(int64_t *out, const invar_point_namer *namer,
                                      const invar_observed_value *value)
{
    const char *phase = value->backward ? "backward" : "forward";
    int64_t shape[INVAR_MAX_RANK] = {-1};
    name point;
    inputs from;

    INVAR_TRY(invar_point_namer_name(point, namer, &value->name));
    INVAR_TRY(name_inputs(&from, namer, value->inputs, value->n_inputs));
    for (int32_t i = 1; i < value->rows->rank; i++)
        shape[i] = value->rows->shape[i];
    return invar_probe_define_from(
        out, namer->probe,
        &(invar_ledger_point){.name = point,
                              .phase = namer->phase ? namer->phase : phase,
                              .layer = value->name.layer,
                              .op = value->op,
                              .kind = value->backward ? "grad" : "act",
                              .level = invar_point_namer_level(value),
                              .dtype = invar_dtype_name(value->rows->dtype),
                              .shape = shape,
                              .dims = (size_t)value->rows->rank,
                              .shards = 1},
        *from.list ? from.list : namer->given[value->backward]);
}

invar_status invar_probe_on_value(void *namer, const invar_observed_value *value)
{
    invar_point_namer *v = namer;
    invar_tensor rows;
    int64_t number;

    if (v->listing)
        INVAR_TRY(invar_point_list_add(v->listing, value));
    INVAR_TRY(invar_point_namer_define(&number, v, value));
    if (value->is_residual)
        INVAR_TRY(invar_point_namer_name(v->stream[value->backward], v, &value->name));
    if (number == -1)
        return INVAR_OK;
    INVAR_TRY(invar_dataflow_rows(&rows, value));
    return invar_probe_device_rows(v->probe, number, &rows, value->samples, value->device_samples);
}

void invar_probe_sum_name(char out[INVAR_LEDGER_NAME_BYTES + 1], const char *prefix, int64_t number)
{
    (void)snprintf(out, sizeof(name), "%sgrad.sum.%" PRId64, prefix, number);
}

/* Defines a point above every level: it only passes on what it was computed from. */
invar_status invar_probe_sum(const invar_point_namer *namer, int64_t number,
                             const invar_observed_grad *sum)
{
    int64_t point;
    inputs from;
    name own;

    if (namer->listing)
        return invar_point_list_add_sum(namer->listing, number, sum);
    invar_probe_sum_name(own, namer->prefix, number);
    INVAR_TRY(name_inputs(&from, namer, sum->inputs, sum->n_inputs));
    return invar_probe_define_from(&point, namer->probe,
                                   &(invar_ledger_point){.name = own, .level = INVAR_PROBE_LEVELS},
                                   from.list);
}
