/*
 * audit.c - the audit of a run: what its recipe asks for, and what a finding does.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>

#include "engine/run/loop.h"

#include "base/invar_banned.h"

static invar_status found(void *payload, const invar_audit_finding *f)
{
    invar_loop *loop = payload;
    char layer[40] = "", text[INVAR_ERROR_MESSAGE_SIZE];

    if (f->layer >= 0)
        (void)snprintf(layer, sizeof layer, " in layer %" PRId64, f->layer);
    (void)snprintf(
        text, sizeof text,
        "audit: %s%s: %.60s is 0x%0*" PRIx32 " on the device, 0x%0*" PRIx32
        " computed again; check the device with invar doctor, and continue on another one",
        invar_op_name(f->op), layer, f->element, f->digits, f->device, f->digits, f->cpu);
    return invar_loop_mismatch(loop, "audit-mismatch", text);
}

invar_status invar_loop_attach_audit(invar_loop *loop)
{
    invar_audit_options o = {.elements = invar_recipe_int(loop->recipe, INVAR_KEY_AUDIT),
                             .found = found,
                             .payload = loop};

    if (o.elements == 0)
        return INVAR_OK;
    INVAR_TRY(invar_audit_new(&loop->audit, &loop->session.dev, &o));
    invar_trainer_audit(loop->trainer, loop->audit);
    if (loop->rollout)
        invar_rollout_audit(loop->rollout, loop->audit);
    return INVAR_OK;
}
