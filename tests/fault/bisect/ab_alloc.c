/*
 * ab_alloc.c - allocations of an A/B experiment fail: all of them under full, else a selection.
 *
 * The program under test is a script that copies a prepared ledger, one per side. An undisturbed
 * experiment fills the cache of runs first, so the failing allocations are those of the experiment
 * itself: comparing, merging, measuring. Each run returns the right verdict or INVAR_E_NOMEM and
 * leaves no block. Control: more than two thirds of the runs must have failed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "bisect/ab/ab.h"
#include "bisect/view/ab.h"
#include "bisect/view/json.h"
#include "tests/fault/faulty.h"
#include "tests/ledger.h"

static char work[] = INVAR_TEST_WORK "/ab-alloc-XXXXXX";
static char workspace[sizeof work + 32];

static const char *work_path(const char *name)
{
    static char paths[8][sizeof work + 32];
    static int next;
    char *out = paths[next++ % 8];

    (void)snprintf(out, sizeof paths[0], "%s/%s", work, name);
    return out;
}

static void write_text(const char *path, const char *text)
{
    assert_ok(invar_file_write(path, text, strlen(text)));
}

static int prepare(void **state)
{
    invar_test_ledger spec = {.steps = 3};
    char script[512];

    (void)state;
    assert_non_null(mkdtemp(work));
    (void)snprintf(workspace, sizeof workspace, "%s/shop", work);
    assert_ok(invar_test_ledger_write(work_path("a.db"), &spec));
    spec.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 1, "layer.1.mlp.out", 0, 1};
    spec.faults[1] = (invar_test_fault){INVAR_TEST_REWARD_SHIFT, .step = 1, .value = 0.5};
    assert_ok(invar_test_ledger_write(work_path("b.db"), &spec));
    for (char side = 'a'; side <= 'b'; side++) {
        const char *path = work_path(side == 'a' ? "program-a" : "program-b");
        (void)snprintf(script, sizeof script, "#!/bin/sh\ncp '%s/%c.db' \"$4/ledger.db\"\n", work,
                       side);
        write_text(path, script);
        assert_int_equal(chmod(path, 0755), 0);
    }
    write_text(work_path("recipe.ini"), "[model]\nseed = 1\n");
    return 0;
}

static int clean_up(void **state)
{
    (void)state;
    return invar_held_folder_remove(work) != INVAR_OK;
}

/* Runs the experiment and writes its result as HTML, JSON and text. */
static invar_status run_experiment(invar_ab_verdict expected)
{
    const invar_ab_case request = {.repo = work,
                                   .sides = {work_path("program-a"), work_path("program-b")},
                                   .recipe = work_path("recipe.ini"),
                                   .seeds = 1,
                                   .timeout = 60};
    const invar_ab_options options = {.work = workspace, .jobs = 2, .threads = 1};
    FILE *null_stream = fopen("/dev/null", "w");
    invar_ab_result *result;
    invar_status status = invar_ab_run(&result, &request, &options);

    assert_non_null(null_stream);
    if (status == INVAR_OK) {
        assert_int_equal(result->verdict, expected);
        assert_int_equal(result->divergence.step, 1);
        assert_string_equal(result->divergence.point, "layer.1.mlp.out");
        assert_true(result->effects.count > result->effects.n_same);
        status = invar_ab_html(null_stream, result);
    }
    if (status == INVAR_OK)
        status = invar_view_write(null_stream, invar_ab_object(result));
    if (status == INVAR_OK)
        status = invar_ab_print(null_stream, result, false);
    invar_ab_result_free(result);
    (void)fclose(null_stream);
    return status;
}

static void test_ab_alloc__any_allocation_may_fail(void **state)
{
    faulty f = {.fail_at = -1};
    invar_allocator allocator = {faulty_alloc, faulty_free, &f};
    int total, stride, runs = 0, failures = 0;

    (void)state;
    assert_ok(run_experiment(INVAR_AB_DIFFERENT)); // fills the cache of runs
    invar_allocator_set(&allocator);
    assert_ok(run_experiment(INVAR_AB_DIFFERENT));
    assert_int_equal(f.live, 0);
    total = f.calls;
    stride = total / (int)invar_test_count(10, total);
    for (int n = 1; n <= total; n += stride) {
        invar_status status;

        atomic_init(&f.calls, 0);
        f.fail_at = n;
        status = run_experiment(INVAR_AB_DIFFERENT);
        assert_int_equal(f.live, 0);
        assert_true(status == INVAR_OK || status == INVAR_E_NOMEM);
        runs++;
        failures += status != INVAR_OK;
    }
    invar_allocator_set(NULL);
    assert_true(3 * failures > 2 * runs);
    // Control: after the failures the experiment still succeeds.
    assert_ok(run_experiment(INVAR_AB_DIFFERENT));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ab_alloc__any_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, prepare, clean_up);
}
