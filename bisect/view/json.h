/*
 * json.h - JSON that is shared by the results of bisect, ab and ci.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_VIEW_JSON_H
#define INVAR_BISECT_VIEW_JSON_H

#include <jansson.h>
#include <stdio.h>

#include "base/status.h"
#include "bisect/divergence.h"

#define INVAR_VIEW_DIVERGENCE                                                                      \
    "{step int, point line, phase line?, layer int?, op line?, fused line?, kind line?, dtype "    \
    "line?,"                                                                                       \
    " shape line?, before line?, after line?, fine bool, points_different int, points_equal int,"  \
    " headline line, ledger_before line, ledger_after line}?"

/* Converts a divergence; null if it is unknown. */
json_t *invar_view_divergence(const invar_divergence *divergence);

/*
 * Writes the object and a newline and releases the object. Returns INVAR_E_NOMEM if `object` is
 * NULL.
 */
invar_status invar_view_write(FILE *out, json_t *object) INVAR_MUST_USE;

#endif
