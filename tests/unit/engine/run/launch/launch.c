/*
 * launch.c - tests of invar_launch_open: launchers by their environment variables, and --ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/launch/launch.h"

#include <stdlib.h>

#include "tests/support.h"

static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK",
                                        "SLURM_STEP_NUM_TASKS"};
enum { VARIABLES = sizeof variables / sizeof *variables };

/* An environment of a launcher, the number of --ranks, and the expected result. */
typedef struct launcher {
    const char *set[VARIABLES]; /* values of `variables`; NULL if not set */
    int64_t ranks;
    invar_status status;
    const char *text; /* part of the error message; NULL if none is expected */
} launcher;

static const launcher launchers[] = {
    {{NULL}, 0, INVAR_OK, NULL},
    {{NULL}, 1, INVAR_OK, NULL},
    {{"1", NULL, "0", NULL}, 1, INVAR_OK, NULL},
    {{NULL, "1", NULL, "1"}, 1, INVAR_OK, NULL},
    {{NULL, NULL, NULL, "1"}, 3, INVAR_OK, NULL},
    // there is no MPI module next to this executable
    {{"2", NULL, "0", NULL}, 1, INVAR_E_UNSUPPORTED, "invar-mpi.so"},
    {{NULL, "4", NULL, NULL}, 1, INVAR_E_UNSUPPORTED, "invar-mpi.so"},
    {{NULL, NULL, "3", "8"}, 1, INVAR_E_UNSUPPORTED, "invar-mpi.so"},
    {{"2", NULL, "0", NULL}, 2, INVAR_E_INVALID, "2 processes have been started already"},
    {{NULL, NULL, NULL, "8"}, 1, INVAR_E_INVALID, "8 tasks that do not know each other"},
};

static void test_launch__recognizes_launchers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const launcher *l = &launchers[i];
        invar_launch launch;

        for (int v = 0; v < VARIABLES; v++)
            assert_int_equal(
                l->set[v] ? setenv(variables[v], l->set[v], 1) : unsetenv(variables[v]), 0);
        assert_int_equal(invar_launch_open(&launch, 60.0, l->ranks), l->status);
        if (l->text)
            invar_assert_message(l->text, __FILE__, __LINE__);
        assert_true((launch.comms != NULL) == (l->status == INVAR_OK && l->ranks > 1));
        assert_int_equal(launch.count, l->status == INVAR_OK && l->ranks > 1 ? l->ranks : 1);
        assert_true(invar_launch_has_rank0(&launch));
        invar_launch_close(&launch);
        invar_launch_close(&launch); // a second close has no effect
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_launch__recognizes_launchers)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
