/*
 * golden.c - runs compared with the chain of another, and files that are no golden.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/golden.h"
#include "tests/ledger.h"
#include "tests/support.h"

static char folder[256], golden[300];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/golden.%ld", INVAR_TEST_WORK, (long)getpid());
    (void)snprintf(golden, sizeof golden, "%s/a.golden", folder);
    return invar_folder_make(folder) != INVAR_OK;
}

static int teardown(void **state)
{
    (void)state;
    return invar_folder_remove(folder) != INVAR_OK;
}

/* A ledger with one run, open for reading. */
static invar_ledger *ledger_of(const char *name, const invar_test_ledger *spec, int64_t *run_out)
{
    invar_ledger_summary summary;
    invar_ledger *ledger = NULL;
    char path[300];

    (void)snprintf(path, sizeof path, "%s/%s.db", folder, name);
    assert_ok(invar_test_ledger_write(path, spec));
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_find(&summary, ledger, NULL));
    *run_out = summary.run;
    return ledger;
}

static invar_golden_verdict verdict_of(const char *name, const invar_test_ledger *spec)
{
    int64_t run;
    invar_ledger *ledger = ledger_of(name, spec, &run);
    invar_golden_verdict v;

    assert_ok(invar_golden_compare(&v, golden, ledger, run));
    invar_ledger_close(ledger);
    return v;
}

static void record(const invar_test_ledger *spec)
{
    int64_t run;
    invar_ledger *ledger = ledger_of("golden", spec, &run);

    assert_ok(invar_golden_record(golden, ledger, run));
    invar_ledger_close(ledger);
}

static void test_golden__says_where_a_run_leaves_it(void **state)
{
    invar_golden_verdict v;

    (void)state;
    record(&(invar_test_ledger){.steps = 20});
    v = verdict_of("same", &(invar_test_ledger){.steps = 20});
    assert_int_equal(v.first, -1);
    assert_int_equal(v.compared, 20);
    assert_int_equal(v.steps, 20);
    assert_true(v.identity);
    // a longer run, a shorter one, one that was resumed: as far as both go
    v = verdict_of("longer", &(invar_test_ledger){.steps = 30});
    assert_true(v.first == -1 && v.compared == 20);
    v = verdict_of("shorter", &(invar_test_ledger){.steps = 5});
    assert_true(v.first == -1 && v.compared == 5 && v.steps == 20);
    v = verdict_of("resumed", &(invar_test_ledger){.steps = 20, .crash = 13, .resume = 10});
    assert_true(v.first == -1 && v.compared == 20);
    v = verdict_of(
        "other", &(invar_test_ledger){
                     .steps = 20, .faults = {{INVAR_TEST_DIVERGES, 7, "layer.1.mlp.out", 0, 0.0}}});
    assert_int_equal(v.first, 7);
    assert_int_equal(v.compared, 20);
    assert_true(v.identity);
    v = verdict_of("seed", &(invar_test_ledger){.steps = 20, .seed = 9});
    assert_int_equal(v.first, 0);
    assert_false(v.identity);
}

/* The golden as text with one change. */
static void write_golden(const char *text, size_t bytes)
{
    assert_ok(invar_file_write(golden, text, bytes));
}

static void test_golden__files_that_are_none(void **state)
{
    static const char hex[] = "00112233445566778899aabbccddeeff";
    const struct {
        const char *text, *where;
    } bad[] = {{"", ":1:"},
               {"# invar golden 2\n", ":1:"},
               {"# invar golden 1", ":1:"},
               {"# invar golden 1\nidentity xyz\n", ":2:"},
               {"# invar golden 1\n1 00112233445566778899aabbccddeeff\n", ":2:"},
               {"# invar golden 1\n0 00112233445566778899aabbccddeef\n", ":2:"},
               {"# invar golden 1\n0 00112233445566778899aabbccddeeff \n", ":2:"},
               {"# invar golden 1\n0 00112233445566778899aabbccddeeff\r\n", ":2:"},
               {"# invar golden 1\n0\n", ":2:"},
               {"# invar golden 1\n\n", ":2:"},
               {"# invar golden 1\n99999999999999999999999 0011\n", ":2:"},
               {"# invar golden 1\n-1 00112233445566778899aabbccddeeff\n", ":2:"}};
    char text[400];
    invar_golden_verdict v;
    int64_t run;
    invar_ledger *ledger = ledger_of("run", &(invar_test_ledger){.steps = 3}, &run);

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_golden(bad[i].text, strlen(bad[i].text));
        assert_fails(invar_golden_compare(&v, golden, ledger, run), INVAR_E_CORRUPT, bad[i].where);
    }
    // what a NUL hides is not compared, so it is refused
    (void)snprintf(text, sizeof text, "# invar golden 1\n0 %s\n", hex);
    write_golden(text, strlen(text));
    assert_ok(invar_golden_compare(&v, golden, ledger, run));
    assert_int_equal(v.first, 0);
    text[strlen("# invar golden 1\n")] = '\0';
    write_golden(text, strlen("# invar golden 1\n") + 10);
    assert_fails(invar_golden_compare(&v, golden, ledger, run), INVAR_E_CORRUPT, ":1:");
    // nothing to compare is no agreement: the verb says so
    write_golden("# invar golden 1\n# no step\n", 27);
    assert_ok(invar_golden_compare(&v, golden, ledger, run));
    assert_true(v.compared == 0 && v.first == -1);
    (void)snprintf(text, sizeof text, "%s/absent", folder);
    assert_fails(invar_golden_compare(&v, text, ledger, run), INVAR_E_NOTFOUND, "absent");
    invar_ledger_close(ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden__says_where_a_run_leaves_it),
        cmocka_unit_test(test_golden__files_that_are_none),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
