/*
 * folder.h - fixture of the tests of points: test devices, and a temporary folder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_MODEL_PROBE_FOLDER_H
#define INVAR_TESTS_UNIT_ENGINE_MODEL_PROBE_FOLDER_H

#include <stdio.h>
#include <stdlib.h>

#include "tests/ops.h"

#ifndef INVAR_TEST_WORK
#define INVAR_TEST_WORK "." /* set by the build; not needed if the header is compiled alone */
#endif

static char folder[] = INVAR_TEST_WORK "/probe-XXXXXX";

static inline int set_up(void **state)
{
    return mkdtemp(folder) ? invar_test_devices_setup(state) : -1;
}

static inline int tear_down(void **state)
{
    int rc = invar_test_devices_teardown(state);
    char command[sizeof folder + 16];

    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command) == 0 ? rc : -1;
}

#endif
