/*
 * point_names.h - names the values that a forward and backward show, as points of a probe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_POINT_NAMES_H
#define INVAR_ENGINE_MODEL_PROBE_POINT_NAMES_H

#include "engine/model/forward.h"
#include "engine/model/probe/point_list.h"
#include "engine/model/probe/probe.h"

/*
 * Hook payload: use invar_probe_on_value as `on_value` of invar_forward_hooks. A value becomes the
 * point PREFIX "layer." LAYER "." NAME, or PREFIX NAME if its layer is -1. The residual stream has
 * level INVAR_PROBE_POINT, everything else INVAR_PROBE_FULL.
 */
typedef struct invar_point_namer {
    invar_probe *probe;
    const char *prefix; /* "", "critic.", ... */
    const char *phase;  /* phase of all points; NULL for "forward" and "backward" */
    /*
     * Names of the points that forward and backward start from, the inputs of values without
     * inputs: two lists, each with NULL after the last name, or NULL.
     */
    const char *const *given[2];
    char stream[2][INVAR_LEDGER_NAME_BYTES + 1]; /* last points of the residual stream in forward
                                                    and backward; "" at first */
    invar_point_list *listing; /* pipeline stages: list that receives the values; may be NULL */
} invar_point_namer;

/* Writes the point name of a value. invar_point_namer_level returns the level of its point. */
invar_status invar_point_namer_name(char out[INVAR_LEDGER_NAME_BYTES + 1],
                                    const invar_point_namer *namer,
                                    const invar_value_name *value) INVAR_MUST_USE;

int64_t invar_point_namer_level(const invar_observed_value *value);

/* Defines the point of a value without recording data; reads only type and shape of its rows. */
invar_status invar_point_namer_define(int64_t *point_out, const invar_point_namer *namer,
                                      const invar_observed_value *value) INVAR_MUST_USE;

invar_status invar_probe_on_value(void *namer, const invar_observed_value *value) INVAR_MUST_USE;

/*
 * Makes the inputs of parameter gradient `number` known under the name that invar_probe_sum_name
 * gives, for use as an input in invar_probe_define_from. With a listing, adds them to the list
 * instead.
 */
invar_status invar_probe_sum(const invar_point_namer *namer, int64_t number,
                             const invar_observed_grad *sum) INVAR_MUST_USE;
void invar_probe_sum_name(char out[INVAR_LEDGER_NAME_BYTES + 1], const char *prefix,
                          int64_t number);

#endif
