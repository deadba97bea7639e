/*
 * ab_alloc.c - an A/B experiment whose allocations fail: all of them under full, else a selection.
 *
 * The program is a script that hands out two ledgers, one a side. Its runs are in the cache, but
 * for the last call, so that what fails is the experiment itself: comparing, merging, measuring.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "bisect/ab/ab.h"
#include "bisect/view/ab.h"
#include "tests/fault/faulty.h"
#include "tests/ledger.h"

static char work[] = INVAR_TEST_WORK "/ab-alloc-XXXXXX";
static char shop[sizeof work + 32];

static const char *below(const char *name)
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
    (void)snprintf(shop, sizeof shop, "%s/shop", work);
    assert_ok(invar_test_ledger_write(below("a.db"), &spec));
    spec.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 1, "layer.1.mlp.out", 0, 1};
    spec.faults[1] = (invar_test_fault){INVAR_TEST_REWARD_SHIFT, .step = 1, .value = 0.5};
    assert_ok(invar_test_ledger_write(below("b.db"), &spec));
    for (char side = 'a'; side <= 'b'; side++) {
        const char *path = below(side == 'a' ? "program-a" : "program-b");
        (void)snprintf(script, sizeof script, "#!/bin/sh\ncp '%s/%c.db' \"$4/ledger.db\"\n", work,
                       side);
        write_text(path, script);
        assert_int_equal(chmod(path, 0755), 0);
    }
    write_text(below("recipe.ini"), "[model]\nseed = 1\n");
    return 0;
}

static int tidy(void **state)
{
    (void)state;
    return invar_held_folder_remove(work) != INVAR_OK;
}

/* The whole of it, with all three views. */
static invar_status experiment(invar_ab_verdict expected)
{
    const invar_ab_case what = {.repo = work,
                                .sides = {below("program-a"), below("program-b")},
                                .recipe = below("recipe.ini"),
                                .seeds = 1,
                                .timeout = 60};
    const invar_ab_options options = {.work = shop, .jobs = 2, .threads = 1};
    FILE *nothing = fopen("/dev/null", "w");
    invar_ab_result *answer;
    invar_status status = invar_ab_run(&answer, &what, &options);

    assert_non_null(nothing);
    if (status == INVAR_OK) {
        assert_int_equal(answer->verdict, expected);
        assert_int_equal(answer->divergence.step, 1);
        assert_string_equal(answer->divergence.point, "layer.1.mlp.out");
        assert_true(answer->effects.count > answer->effects.n_same);
        status = invar_ab_html(nothing, answer);
    }
    if (status == INVAR_OK)
        status = invar_ab_json(nothing, answer);
    if (status == INVAR_OK)
        status = invar_ab_print(nothing, answer, false);
    invar_ab_result_free(answer);
    (void)fclose(nothing);
    return status;
}

static void test_ab_alloc__any_allocation_may_fail(void **state)
{
    faulty f = {.fail_at = -1};
    invar_allocator allocator = {faulty_alloc, faulty_free, &f};
    int total, stride, failures = 0;

    (void)state;
    assert_ok(experiment(INVAR_AB_DIFFERENT)); // from now on from the cache
    invar_allocator_set(&allocator);
    assert_ok(experiment(INVAR_AB_DIFFERENT));
    assert_int_equal(f.live, 0);
    total = f.calls;
    stride = total / (int)invar_test_count(30, total);
    for (int n = 1; n <= total; n += stride) {
        invar_status status;

        atomic_init(&f.calls, 0);
        f.fail_at = n;
        status = experiment(INVAR_AB_DIFFERENT);
        assert_int_equal(f.live, 0);
        assert_true(status == INVAR_OK || status == INVAR_E_NOMEM);
        failures += status != INVAR_OK;
    }
    invar_allocator_set(NULL);
    assert_true(failures > 20);
    assert_ok(experiment(INVAR_AB_DIFFERENT)); // and nothing was left that hinders it
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ab_alloc__any_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, prepare, tidy);
}
