/*
 * rollout_hooks.c - adds the owners of rows to the values that rollout hooks observe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/rollout_hooks.h"

#include <stdio.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

void invar_row_ownership_release(invar_row_ownership *show)
{
    invar_free(show->owners);
    *show = (invar_row_ownership){0};
}

invar_status invar_row_ownership_pass(invar_row_ownership *show, int64_t rows)
{
    show->used = 0;
    if (rows <= show->room)
        return INVAR_OK;
    invar_free(show->owners);
    show->owners = NULL;
    show->room = 0;
    INVAR_TRY(invar_alloc((void **)&show->owners, (size_t)rows, sizeof *show->owners,
                          "the owners of rows"));
    show->room = rows;
    return INVAR_OK;
}

invar_row_samples *invar_row_ownership_owners(invar_row_ownership *show, int64_t rows)
{
    invar_row_samples *owners = show->owners + show->used;

    INVAR_CHECK(rows <= show->room - show->used);
    show->used += rows;
    show->current = owners;
    return owners;
}

static invar_status call_hook_with_owners(void *payload, const invar_observed_value *value)
{
    const invar_row_ownership *show = payload;
    invar_observed_value owned = *value;

    owned.owners = show->current;
    return show->watcher.probe.take(show->watcher.probe.payload, &owned);
}

invar_forward_hooks invar_row_ownership_probe(invar_row_ownership *show)
{
    invar_forward_hooks probe = show->watcher.probe;

    if (probe.take) {
        probe.take = call_hook_with_owners;
        probe.payload = show;
    }
    return probe;
}

invar_status invar_row_ownership_value(invar_row_ownership *show, invar_op_runner *caller,
                                       const char *name, invar_op op, const invar_tensor *rows,
                                       const char *const *inputs)
{
    invar_observed_value value = {
        .name = {.layer = -1}, .op = invar_op_name(op), .caller = caller, .rows = rows};

    (void)snprintf(value.name.text, sizeof value.name.text, "%s", name);
    for (; *inputs; inputs++) {
        invar_value_name *input = &value.inputs[value.n_inputs++];
        input->layer = -1;
        (void)snprintf(input->text, sizeof input->text, "%s", *inputs);
    }
    return call_hook_with_owners(show, &value);
}
