/*
 * case_sums.c - random calls of every op on the CPU: one digest per op and numerics.
 *
 * gpu/cpu_gpu_compare.c prints the same lines from the results of a GPU. Usage: case_sums [COUNT
 * [OP]].
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "base/pool.h"
#include "tests/gpu/cases/cases.h"

static invar_status run_on_cpu(void *payload, invar_case *c, uint64_t seed)
{
    (void)seed;
    return invar_case_run(payload, c);
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 24;
    invar_device cpu = {.backend = invar_backend_cpu()};

    return invar_case_lines(count, argc > 2 ? argv[2] : NULL, run_on_cpu, &cpu) != INVAR_OK;
}
