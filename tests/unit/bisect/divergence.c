/*
 * divergence.c - tests of locating the first divergence of two runs, and of refining it by reruns.
 *
 * Ledgers with a planted fault must diverge at its step and point; control: another fault, another
 * point. This file replaces functions of the workspace: invar_workspace_run records its requests
 * and returns prepared ledgers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/divergence.h"
#include "tests/ledger.h"
#include "tests/support.h"

static char work_folder[400] = INVAR_TEST_WORK "/place-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(work_folder));
    return 0;
}

/* Returns a new path; it stays valid for four calls. */
static const char *new_path(void)
{
    static char paths[4][512];
    static int next;
    char *out = paths[next % 4];

    (void)snprintf(out, sizeof paths[0], "%s/%d.db", work_folder, next++);
    return out;
}

static invar_divergence compare_runs(const invar_test_ledger *a, const invar_test_ledger *b)
{
    const char *before = new_path(), *after = new_path();
    invar_divergence divergence;

    assert_ok(invar_test_ledger_write(before, a));
    assert_ok(invar_test_ledger_write(after, b));
    assert_ok(invar_divergence_compare(&divergence, before, after, -1));
    assert_string_equal(divergence.ledger_before, before);
    assert_string_equal(divergence.ledger_after, after);
    assert_false(divergence.op_level);
    return divergence;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void test_place__equal_runs_have_none(void **state)
{
    invar_test_ledger spec = {.steps = 5};
    invar_divergence divergence = compare_runs(&spec, &spec);

    (void)state;
    assert_false(divergence.known);
    assert_string_equal(divergence.point, "");
    assert_string_equal(divergence.before, "");
    assert_int_equal(divergence.points_different, 0);
}

static void test_place__tensor(void **state)
{
    invar_test_ledger a = {.steps = 12}, b = {.steps = 12};
    invar_divergence divergence;

    (void)state;
    b.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 7, "layer.1.mlp.out", 0, 1};
    divergence = compare_runs(&a, &b);
    assert_true(divergence.known);
    assert_int_equal(divergence.step, 7);
    assert_string_equal(divergence.point, "layer.1.mlp.out");
    assert_string_equal(divergence.phase, "forward");
    assert_string_equal(divergence.op, "swiglu");
    assert_string_equal(divergence.kind, "act");
    assert_string_equal(divergence.shape, "[1024,64]");
    assert_int_equal(divergence.layer, 1);
    assert_int_equal(strlen(divergence.before), INVAR_DIGEST_HEX_SIZE - 1);
    assert_string_not_equal(divergence.before, divergence.after);
    assert_int_equal(divergence.points_different, 9);
    assert_int_equal(divergence.points_equal, 6);
    assert_non_null(strstr(divergence.headline, "first at step 7"));

    // In the opposite order the point is equal and the digests are exchanged.
    invar_divergence reversed = compare_runs(&b, &a);
    assert_string_equal(reversed.point, divergence.point);
    assert_string_equal(reversed.before, divergence.after);
    assert_string_equal(reversed.after, divergence.before);

    // Control: another fault gives another point.
    b.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 3, "head.logits", 0, 1};
    divergence = compare_runs(&a, &b);
    assert_int_equal(divergence.step, 3);
    assert_string_equal(divergence.point, "head.logits");
    assert_int_equal(divergence.layer, -1);
}

/* A finer point that both runs have is the origin, although chains do not cover it. */
static void test_place__finer_points_count(void **state)
{
    invar_test_ledger a = {.steps = 6, .finer = true}, b = a;
    invar_divergence divergence;

    (void)state;
    b.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 4, "layer.0.norm.out", 0, 1};
    divergence = compare_runs(&a, &b);
    assert_string_equal(divergence.point, "layer.0.norm.out");
    a.finer = false; // the first point that both runs have
    divergence = compare_runs(&a, &b);
    assert_string_equal(divergence.point, "layer.0.attn.out");
}

static void test_place__structure_alone(void **state)
{
    const char *before = new_path(), *after = new_path();
    const int64_t shapes[2] = {4, 8};
    const char *paths[2] = {before, after};
    invar_divergence divergence;

    (void)state;
    for (int i = 0; i < 2; i++) {
        const invar_ledger_point point = {.name = "x",
                                          .phase = "forward",
                                          .layer = -1,
                                          .op = "linear.fwd",
                                          .kind = "act",
                                          .dtype = "f32",
                                          .shape = &shapes[i],
                                          .dims = 1,
                                          .shards = 1};
        const invar_digest digest = {{(uint8_t)i}};
        invar_ledger *ledger;
        assert_ok(invar_ledger_open(&ledger, paths[i], &(invar_ledger_options){.create = true}));
        assert_ok(invar_ledger_begin(
            ledger, &(invar_ledger_run){
                        .name = "t", .kind = "train", .circumstances = {.no_auto_facts = true}}));
        assert_ok(invar_ledger_define(ledger, &point, 1));
        assert_ok(invar_ledger_append(ledger, &(invar_ledger_step){.digests = &digest}));
        assert_ok(invar_ledger_finish(ledger, 0, "done"));
        invar_ledger_close(ledger);
    }
    assert_ok(invar_divergence_compare(&divergence, before, after, -1));
    assert_true(divergence.known);
    assert_int_equal(divergence.step, 0);
    assert_string_equal(divergence.kind, "structure");
    assert_string_equal(divergence.point, "x");
    assert_string_equal(divergence.op, "shape");
    assert_string_equal(divergence.before, "");
}

/* Divergences in metrics, samples and evaluations, with equal tensors. */
static void test_place__records(void **state)
{
    invar_test_ledger a = {.steps = 12}, b = {.steps = 12};
    invar_divergence divergence;

    (void)state;
    b.faults[0] = (invar_test_fault){.kind = INVAR_TEST_REWARD_SHIFT, .step = 5, .value = 0.5};
    divergence = compare_runs(&a, &b);
    assert_true(divergence.known);
    assert_int_equal(divergence.step, 5);
    assert_string_equal(divergence.kind, "metric");
    assert_string_equal(divergence.point, "rollout/raw_reward");
    assert_string_equal(divergence.before, "");
    assert_int_equal(divergence.layer, -1);

    b.faults[0] =
        (invar_test_fault){.kind = INVAR_TEST_LOGP_MISMATCH, .step = 4, .other = 2, .value = 0.25};
    divergence = compare_runs(&a, &b);
    assert_true(divergence.known);
    assert_int_equal(divergence.step, 4);
    assert_true(strcmp(divergence.kind, "metric") == 0 || strcmp(divergence.kind, "sample") == 0);

    b.faults[0] = (invar_test_fault){.kind = INVAR_TEST_EVAL_DROP, .step = 9};
    divergence = compare_runs(&a, &b);
    assert_string_equal(divergence.kind, "evaluation");
    assert_int_equal(divergence.step, 9);
}

static void test_place__what_is_no_ledger(void **state)
{
    const char *good = new_path(), *none = new_path(), *two = new_path();
    invar_divergence divergence;

    (void)state;
    assert_ok(invar_test_ledger_write(good, &(invar_test_ledger){.steps = 2}));
    assert_fails(invar_divergence_compare(&divergence, good, none, -1), INVAR_E_NOTFOUND, "");
    assert_false(divergence.known);
    assert_fails(invar_divergence_compare(&divergence, none, good, -1), INVAR_E_NOTFOUND, "");
    assert_ok(invar_test_ledger_write(two, &(invar_test_ledger){.steps = 2}));
    assert_ok(invar_test_ledger_add(two, &(invar_test_ledger){.steps = 2}));
    // The ledger has two runs.
    assert_int_not_equal(invar_divergence_compare(&divergence, good, two, -1), INVAR_OK);
    assert_false(divergence.known);
}

/* ---- refining -------------------------------------------------------------------------------- */

enum { CALLS = 4 };

/* The replaced invar_workspace_run: its prepared results and the recorded requests. */
static struct {
    const char *ledgers[CALLS]; /* ledger that each call returns */
    invar_run_outcome states[CALLS];
    invar_status status;
    int calls;
    char flags[CALLS][400]; /* separated by blanks */
    char program[CALLS][16], name[CALLS][16];
    int64_t until[CALLS];
    bool has_callback;
} fake_runs;

static char samples_path[400]; /* path of the samples in the first request that saves them */

const char *invar_workspace_folder(const invar_workspace *workspace)
{
    assert_null(workspace);
    return "/shop";
}

invar_status invar_workspace_run(invar_run_result *out, invar_workspace *workspace, int lock,
                                 const invar_run_request *request)
{
    int i = fake_runs.calls++;

    assert_null(workspace);
    assert_int_equal(lock, 17);
    assert_in_range(i, 0, CALLS - 1);
    for (const char *const *word = request->flags; *word; word++) {
        size_t used = strlen(fake_runs.flags[i]);
        (void)snprintf(fake_runs.flags[i] + used, sizeof fake_runs.flags[i] - used, "%s%s",
                       used ? " " : "", *word);
        if (strcmp(*word, "--save-debug-rollout-data") == 0)
            (void)snprintf(samples_path, sizeof samples_path, "%s", word[1]);
    }
    (void)snprintf(fake_runs.program[i], sizeof fake_runs.program[i], "%s", request->program);
    (void)snprintf(fake_runs.name[i], sizeof fake_runs.name[i], "%s", request->name);
    fake_runs.until[i] = request->until;
    fake_runs.has_callback |= request->should_stop != NULL || request->payload != NULL;
    memset(out, 0, sizeof *out);
    out->state = fake_runs.states[i];
    if (out->state == INVAR_RUN_DONE)
        (void)snprintf(out->ledger, sizeof out->ledger, "%s", fake_runs.ledgers[i]);
    return fake_runs.status == INVAR_OK
               ? INVAR_OK
               : INVAR_FAIL(fake_runs.status, 0, "the stand-in has no disk");
}

static bool never_stop(void *payload, const char *ledger)
{
    (void)payload;
    (void)ledger;
    return false;
}

static const char *const some_flags[] = {"--debug-determinism", "point",  "--seed", "3",
                                         "--on-mismatch=stop",  "--lr=1", NULL};
static const invar_run_request requests[2] = {{.program = "before",
                                               .flags = some_flags,
                                               .name = "1",
                                               .until = 99,
                                               .should_stop = never_stop,
                                               .payload = &fake_runs},
                                              {.program = "after", .name = "1", .until = 99}};

/* Returns the divergence of two coarse runs, and prepares ledgers of fine runs for later calls. */
static invar_divergence coarse_divergence(const char *fine_point)
{
    invar_test_ledger a = {.steps = 6}, b = {.steps = 6};
    const char *before, *after;
    invar_divergence divergence;

    b.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 4, "layer.0.attn.out", 0, 1};
    divergence = compare_runs(&a, &b);
    assert_string_equal(divergence.point, "layer.0.attn.out");
    a.finer = b.finer = true;
    b.faults[0].point = fine_point;
    if (!fine_point)
        b.faults[0].kind = INVAR_TEST_HEALTHY;
    before = new_path();
    after = new_path();
    assert_ok(invar_test_ledger_write(before, &a));
    assert_ok(invar_test_ledger_write(after, &b));
    memset(&fake_runs, 0, sizeof fake_runs);
    fake_runs.ledgers[0] = before;
    fake_runs.ledgers[1] = after;
    fake_runs.ledgers[2] = before;
    return divergence;
}

/* Asserts the flags of a call: `expected`, followed by the path of the samples. */
static void assert_flags(int call, const char *expected)
{
    char text[sizeof fake_runs.flags[0] + sizeof samples_path];

    assert_ptr_equal(strstr(samples_path, "/shop/samples/"), samples_path);
    assert_non_null(strstr(samples_path, "/{rollout_id}."));
    (void)snprintf(text, sizeof text, "%s%s", expected, samples_path);
    assert_string_equal(fake_runs.flags[call], text);
}

static void test_refine__names_the_finer_point(void **state)
{
    invar_divergence divergence = coarse_divergence("layer.0.norm.out");

    (void)state;
    assert_ok(invar_divergence_refine(&divergence, NULL, 17, &requests[0], &requests[1]));
    assert_true(divergence.known && divergence.op_level);
    assert_string_equal(divergence.point, "layer.0.norm.out");
    assert_int_equal(divergence.step, 4);
    assert_string_equal(divergence.ledger_before, fake_runs.ledgers[0]);
    assert_string_equal(divergence.ledger_after, fake_runs.ledgers[1]);
    assert_int_equal(fake_runs.calls, 2);
    assert_string_equal(fake_runs.program[0], "before");
    assert_string_equal(fake_runs.program[1], "after");
    assert_flags(0, "--seed 3 --lr=1 --debug-determinism full --on-mismatch record "
                    "--save-debug-rollout-data ");
    assert_string_equal(fake_runs.flags[1], "--debug-determinism full --on-mismatch record");
    for (int i = 0; i < 2; i++) {
        assert_string_equal(fake_runs.name[i], "fine");
        assert_int_equal(fake_runs.until[i], 4);
    }
    assert_false(fake_runs.has_callback);
}

/* Failed, stopped or equal fine runs leave the coarse divergence unchanged. */
static void test_refine__leaves_it_as_it_was(void **state)
{
    static const struct {
        invar_run_outcome states[CALLS];
        int calls;
    } cases[] = {
        {{INVAR_RUN_FAILED, INVAR_RUN_FAILED}, 2},
        {{INVAR_RUN_DONE, INVAR_RUN_FAILED}, 2},
        {{INVAR_RUN_STOPPED}, 1},
        {{INVAR_RUN_DONE, INVAR_RUN_STOPPED}, 2},
        {{INVAR_RUN_DONE, INVAR_RUN_DONE}, 2}, // the fine runs are equal
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_divergence divergence = coarse_divergence(i == 4 ? NULL : "layer.0.norm.out"),
                         old = divergence;
        memcpy(fake_runs.states, cases[i].states, sizeof fake_runs.states);
        assert_ok(invar_divergence_refine(&divergence, NULL, 17, &requests[0], &requests[1]));
        assert_memory_equal(&divergence, &old, sizeof divergence);
        assert_int_equal(fake_runs.calls, cases[i].calls);
    }
}

/* A run that fails while saving samples is repeated without saving them. */
static void test_refine__does_without_saving(void **state)
{
    invar_divergence divergence = coarse_divergence("layer.0.norm.out");

    (void)state;
    fake_runs.states[0] = INVAR_RUN_FAILED;
    fake_runs.ledgers[2] = fake_runs.ledgers[1];
    fake_runs.ledgers[1] = fake_runs.ledgers[0];
    assert_ok(invar_divergence_refine(&divergence, NULL, 17, &requests[0], &requests[1]));
    assert_int_equal(fake_runs.calls, 3);
    assert_string_equal(fake_runs.program[1], "before");
    assert_null(strstr(fake_runs.flags[1], "rollout-data"));
    assert_string_equal(fake_runs.program[2], "after");
    assert_string_equal(divergence.point, "layer.0.norm.out");
}

/*
 * If the tokens differ, a third run with the samples of the first one shows the next differing op.
 */
static void test_refine__looks_behind_samples(void **state)
{
    invar_test_ledger after_samples = {
        .steps = 6, .finer = true, .faults = {{INVAR_TEST_DIVERGES, 4, "layer.1.mlp.out", 0, 1}}};
    const char *third;

    (void)state;
    for (int i = 0; i < 3; i++) {
        invar_divergence divergence = coarse_divergence("rollout.tokens");
        char kept[2][512]; // new_path keeps only four paths
        for (int k = 0; k < 2; k++) {
            (void)snprintf(kept[k], sizeof kept[k], "%s", fake_runs.ledgers[k]);
            fake_runs.ledgers[k] = kept[k];
        }
        third = new_path();
        assert_ok(invar_test_ledger_write(third, &after_samples));
        // Last case: the third run equals the first.
        fake_runs.ledgers[2] = i == 2 ? kept[0] : third;
        fake_runs.states[2] = i == 1 ? INVAR_RUN_FAILED : INVAR_RUN_DONE;
        assert_ok(invar_divergence_refine(&divergence, NULL, 17, &requests[0], &requests[1]));
        assert_int_equal(fake_runs.calls, 3);
        assert_string_equal(fake_runs.program[2], "after");
        assert_flags(2, "--debug-determinism full --on-mismatch record "
                        "--load-debug-rollout-data ");
        assert_int_equal(fake_runs.until[2], 4);
        assert_true(divergence.known && divergence.op_level);
        assert_string_equal(divergence.point, i == 0 ? "layer.1.mlp.out" : "rollout.tokens");
        assert_string_equal(divergence.ledger_after, i == 0 ? third : kept[1]);
    }
}

static void test_refine__runs_nothing_for_nothing(void **state)
{
    invar_divergence divergence = coarse_divergence("layer.0.norm.out");

    (void)state;
    divergence.known = false;
    assert_ok(invar_divergence_refine(&divergence, NULL, 17, &requests[0], &requests[1]));
    divergence.known = true;
    divergence.step = -1;
    assert_ok(invar_divergence_refine(&divergence, NULL, 17, &requests[0], &requests[1]));
    assert_int_equal(fake_runs.calls, 0);
}

static void test_refine__passes_failures_on(void **state)
{
    invar_divergence divergence = coarse_divergence("layer.0.norm.out"), old = divergence;

    (void)state;
    fake_runs.status = INVAR_E_IO;
    assert_fails(invar_divergence_refine(&divergence, NULL, 17, &requests[0], &requests[1]),
                 INVAR_E_IO, "no disk");
    fake_runs.status = INVAR_OK;
    fake_runs.calls = 0;
    fake_runs.ledgers[1] = "/nowhere/ledger.db";
    assert_fails(invar_divergence_refine(&divergence, NULL, 17, &requests[0], &requests[1]),
                 INVAR_E_NOTFOUND, "nowhere");
    assert_memory_equal(&divergence, &old, sizeof divergence);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_place__equal_runs_have_none),
        cmocka_unit_test(test_place__tensor),
        cmocka_unit_test(test_place__finer_points_count),
        cmocka_unit_test(test_place__structure_alone),
        cmocka_unit_test(test_place__records),
        cmocka_unit_test(test_place__what_is_no_ledger),
        cmocka_unit_test(test_refine__names_the_finer_point),
        cmocka_unit_test(test_refine__leaves_it_as_it_was),
        cmocka_unit_test(test_refine__does_without_saving),
        cmocka_unit_test(test_refine__looks_behind_samples),
        cmocka_unit_test(test_refine__runs_nothing_for_nothing),
        cmocka_unit_test(test_refine__passes_failures_on),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
