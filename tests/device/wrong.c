/*
 * wrong.c - the backend of the CPU with one op that is wrong.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/device/wrong.h"

#include <string.h>

#include "kernels-deterministic/fields.h"

static invar_backend wrong;
static invar_op planted;
static const invar_field *needed; /* NULL: no field */
static int64_t calls;

/* Which of an op's results, as its arguments begin with them. */
static const invar_tensor *result_of(const void *args)
{
    return (const invar_tensor *)args + (planted == INVAR_OP_MOE_ROUTE_FWD); // its ids stay
}

static const invar_field *find_field(invar_op op, const char *name)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, op);

    for (int i = 0; i < count; i++)
        if (strcmp(fields[i].name, name) == 0)
            return &fields[i];
    INVAR_CHECK(!"the op has a field of this name");
    return NULL;
}

static invar_status run_wrong(const invar_device *dev, const void *args, void *workspace)
{
    const invar_tensor *t = result_of(args);
    size_t bits = (size_t)invar_dtype_bits(t->dtype);
    unsigned char flip = invar_dtype_scale_block(t->dtype) ? 0x80 : 1; // a code must stay a number

    INVAR_TRY(invar_backend_cpu()->ops[planted].run(dev, args, workspace));
    if (needed && !invar_field_present(needed, args))
        return INVAR_OK;
    for (int64_t i = 0; i < t->shape[0]; i++)
        ((unsigned char *)t->data)[(size_t)i * (size_t)t->row_stride * bits / 8] ^= flip;
    calls++;
    return INVAR_OK;
}

const invar_backend *invar_wrong_backend(invar_op op, const char *field)
{
    wrong = *invar_backend_cpu();
    wrong.ops[op].run = run_wrong;
    planted = op;
    needed = field ? find_field(op, field) : NULL;
    calls = 0;
    return &wrong;
}

int64_t invar_wrong_calls(void)
{
    return calls;
}
