/*
 * rollout_hooks.c - adds the owners of rows to the values that rollout hooks observe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/rollout_hooks.h"

#include <stdio.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

void invar_row_ownership_release(invar_row_ownership *row_owners)
{
    invar_free(row_owners->owners);
    *row_owners = (invar_row_ownership){0};
}

invar_status invar_row_ownership_pass(invar_row_ownership *row_owners, int64_t rows)
{
    row_owners->used = 0;
    return INVAR_GROW(row_owners->owners, row_owners->capacity, 0, rows, "the owners of rows");
}

invar_row_samples *invar_row_ownership_owners(invar_row_ownership *row_owners, int64_t rows)
{
    invar_row_samples *owners = row_owners->owners + row_owners->used;

    INVAR_CHECK(rows <= row_owners->capacity - row_owners->used);
    row_owners->used += rows;
    row_owners->current = owners;
    return owners;
}

static invar_status call_hook_with_owners(void *payload, const invar_observed_value *value)
{
    const invar_row_ownership *show = payload;
    invar_observed_value owned = *value;

    owned.owners = show->current;
    return show->hooks.probe.on_value(show->hooks.probe.payload, &owned);
}

invar_forward_hooks invar_row_ownership_probe(invar_row_ownership *row_owners)
{
    invar_forward_hooks probe = row_owners->hooks.probe;

    if (probe.on_value) {
        probe.on_value = call_hook_with_owners;
        probe.payload = row_owners;
    }
    return probe;
}

invar_status invar_row_ownership_value(invar_row_ownership *row_owners, invar_op_runner *runner,
                                       const char *name, invar_op op, const invar_tensor *rows,
                                       const char *const *inputs)
{
    invar_observed_value value = {
        .name = {.layer = -1}, .op = invar_op_name(op), .op_runner = runner, .rows = rows};

    (void)snprintf(value.name.text, sizeof value.name.text, "%s", name);
    for (; *inputs; inputs++) {
        invar_value_name *input = &value.inputs[value.n_inputs++];
        input->layer = -1;
        (void)snprintf(input->text, sizeof input->text, "%s", *inputs);
    }
    return call_hook_with_owners(row_owners, &value);
}
