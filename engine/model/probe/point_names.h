/*
 * point_names.h - what a forward and its backward show, as points of a probe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_POINT_NAMES_H
#define INVAR_ENGINE_MODEL_PROBE_POINT_NAMES_H

#include "engine/model/forward.h"
#include "engine/model/probe/point_list.h"
#include "engine/model/probe/probe.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * For invar_forward_hooks: `take` is invar_probe_on_value, `payload` a view. The point is
 * PREFIX "layer." LAYER "." POINT, or PREFIX POINT where the layer is -1. The residual stream is of
 * level INVAR_PROBE_POINT, everything else of INVAR_PROBE_FULL.
 */
typedef struct invar_point_namer {
    invar_probe *probe;
    const char *prefix; /* "", "critic.", ... */
    const char *phase;  /* of all points; NULL: "forward", "backward" */
    /* What the forward and the backward begin with: names of points, NULL after the last. */
    const char *const *given[2];
    char stream[2][INVAR_LEDGER_NAME_BYTES + 1]; /* where they stand; "" at first */
    invar_point_list *listing; /* of a stage of a pipeline: what it shows; NULL: nobody lists it */
} invar_point_namer;

/* The name of its point. */
invar_status invar_point_namer_name(char out[INVAR_LEDGER_NAME_BYTES + 1],
                                    const invar_point_namer *view,
                                    const invar_value_name *value) INVAR_MUST_USE;

int64_t invar_point_namer_level(const invar_observed_value *value);

/* The point alone, as invar_probe_define; of the value's rows type and shape are looked at. */
invar_status invar_point_namer_define(int64_t *point_out, const invar_point_namer *view,
                                      const invar_observed_value *value) INVAR_MUST_USE;

invar_status invar_probe_on_value(void *view, const invar_observed_value *value) INVAR_MUST_USE;

/*
 * What the gradient with this number is computed from is known by the name of its sum from then on,
 * for invar_probe_define_from.
 */
invar_status invar_probe_sum(const invar_point_namer *view, int64_t number,
                             const invar_observed_grad *sum) INVAR_MUST_USE;
void invar_probe_sum_name(char out[INVAR_LEDGER_NAME_BYTES + 1], const char *prefix,
                          int64_t number);

#ifdef __cplusplus
}
#endif
#endif
