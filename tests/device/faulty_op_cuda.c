/*
 * faulty_op_cuda.c - invar with the wrong op of faulty_op.h in its device `cuda`, on the CPU.
 *
 * INVAR_TEST_WRONG in the environment names the op, and after a colon the field that calls must
 * have to be wrong: "linear.fwd:residual". If it is not set, every op is right.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/faulty_op.h"

const invar_backend *invar_backend_cuda(void)
{
    const char *name = getenv("INVAR_TEST_WRONG");
    size_t length = name ? strcspn(name, ":") : 0;

    if (!name)
        return invar_backend_cpu();
    for (invar_op op = 0; op < INVAR_OP_COUNT; op++)
        if (strlen(invar_op_name(op)) == length && strncmp(invar_op_name(op), name, length) == 0)
            return invar_faulty_op_backend(op, name[length] ? name + length + 1 : NULL);
    fprintf(stderr, "INVAR_TEST_WRONG=%s: no such op\n", name);
    abort();
}
