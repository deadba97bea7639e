/*
 * inflight.c - container of in-flight samples: release, pop, copy.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/inflight.h"

#include <string.h>

#include "base/minmax.h"

#include "base/invar_banned.h"

void invar_inflight_release(invar_inflight *inflight)
{
    for (int64_t r = 0; r < inflight->count; r++)
        invar_rl_samples_reset(&inflight->started[r]);
    invar_rl_samples_reset(&inflight->surplus);
    *inflight = (invar_inflight){.count = 0};
}

void invar_inflight_pop(invar_rl_samples *out, invar_inflight *inflight)
{
    *out = inflight->started[0];
    inflight->count--;
    inflight->first++;
    memmove(&inflight->started[0], &inflight->started[1],
            (size_t)inflight->count * sizeof *inflight->started);
    inflight->started[inflight->count] = (invar_rl_samples){0};
}

int64_t invar_inflight_limit(const invar_rl_sample *s, const invar_sampling_params *p,
                             const invar_model_spec *spec)
{
    int64_t context = p->max_context ? p->max_context : spec->max_positions;

    return invar_min_i64(context - s->prompt_tokens, p->max_response);
}

invar_status invar_inflight_copy(invar_inflight *out, const invar_inflight *from)
{
    out->first = from->first;
    for (int64_t r = 0; r < from->count; r++) {
        out->count++;
        INVAR_TRY(invar_rl_samples_copy(&out->started[r], &from->started[r]));
    }
    return invar_rl_samples_copy(&out->surplus, &from->surplus);
}
