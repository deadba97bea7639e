/*
 * other_op_revisions.c - invar whose ops report other revisions, with the same bits.
 *
 * INVAR_TEST_REVISED in the environment is a prefix of op names whose revision is one higher. The
 * program is linked with --wrap=invar_op_revision.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/device.h"

int __real_invar_op_revision(invar_op op);
int __wrap_invar_op_revision(invar_op op);

int __wrap_invar_op_revision(invar_op op)
{
    const char *begin = getenv("INVAR_TEST_REVISED");
    const char *name = invar_op_name(op);

    return __real_invar_op_revision(op) +
           (begin && name && strncmp(name, begin, strlen(begin)) == 0);
}
