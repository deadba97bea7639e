/*
 * golden_alloc.c - allocations of recording, reviewing, accepting and listing goldens fail
 * one at a time.
 *
 * Each failure must return INVAR_E_NOMEM with a message and leave no block (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "bisect/ci/ci_internal.h"
#include "tests/fault/faulty.h"
#include "tests/ledger.h"

static char folder[] = INVAR_TEST_WORK "/golden_alloc-XXXXXX";
static char ledger[sizeof folder + 16];
static invar_ci_case ci_case;

static invar_status record_golden(const char *path)
{
    invar_ledger_summary run;
    invar_ledger *opened = NULL;
    invar_status status;

    INVAR_TRY(invar_ledger_open(&opened, ledger, &(invar_ledger_options){0}));
    status = invar_ledger_find(&run, opened, NULL);
    if (status == INVAR_OK)
        status = invar_golden_record(path, opened, run.run, "a test");
    invar_ledger_close(opened);
    return status;
}

static invar_status record_again(void)
{
    return record_golden(ci_case.new_golden);
}

static invar_status review_case(void)
{
    invar_ci_result result;

    return invar_ci_review(&result, &ci_case);
}

static invar_status list_cases(void)
{
    invar_ci_case *cases;
    size_t count;

    INVAR_TRY(invar_ci_cases(&cases, &count, folder));
    invar_free(cases);
    return INVAR_OK;
}

static invar_status accept_golden(void)
{
    invar_golden *golden, *accepted;
    invar_status status;

    INVAR_TRY(invar_golden_read(&golden, ci_case.golden));
    status = invar_golden_accept(&accepted, golden, golden, "somebody, no commit, why");
    invar_golden_free(golden);
    if (status == INVAR_OK)
        invar_golden_free(accepted);
    return status;
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return 1;
    snprintf(ledger, sizeof ledger, "%s/ledger.db", folder);
    return invar_ci_case_of(&ci_case, folder, "a") != INVAR_OK ||
           invar_test_ledger_write(ledger, &(invar_test_ledger){.steps = 4, .seed = 1}) != 0 ||
           record_golden(ci_case.golden) != INVAR_OK ||
           record_golden(ci_case.new_golden) != INVAR_OK ||
           invar_test_ledger_write(ledger, &(invar_test_ledger){.steps = 4}) != INVAR_OK;
}

static int teardown(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) != INVAR_OK;
}

static void test_fault_golden_alloc__recorded_and_reviewed(void **state)
{
    (void)state;
    fail_each_allocation(record_again);
    fail_each_allocation(review_case);
    fail_each_allocation(accept_golden);
    fail_each_allocation(list_cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault_golden_alloc__recorded_and_reviewed),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
