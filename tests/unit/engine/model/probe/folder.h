/*
 * folder.h - devices, and a folder of the test's own that is gone afterwards, for tests of points.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_MODEL_PROBE_FOLDER_H
#define INVAR_TESTS_UNIT_ENGINE_MODEL_PROBE_FOLDER_H

#include <stdio.h>
#include <stdlib.h>

#include "tests/ops.h"

#ifndef INVAR_TEST_WORK
#define INVAR_TEST_WORK "." /* the build says it; a header that is compiled alone need not know */
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
