/*
 * divergence.c - tests of the place where two runs part, from their ledgers.
 *
 * The functions of the workshop are the test's own: invar_workspace_run remembers what it was asked
 * and hands out ledgers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/divergence.h"
#include "tests/ledger.h"
#include "tests/support.h"

static char work[400] = INVAR_TEST_WORK "/place-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(work));
    return 0;
}

/* A path that no call has returned before. */
static const char *fresh(void)
{
    static char paths[4][512];
    static int next;
    char *out = paths[next % 4];

    (void)snprintf(out, sizeof paths[0], "%s/%d.db", work, next++);
    return out;
}

static invar_divergence place_of(const invar_test_ledger *a, const invar_test_ledger *b)
{
    const char *before = fresh(), *after = fresh();
    invar_divergence place;

    assert_ok(invar_test_ledger_write(before, a));
    assert_ok(invar_test_ledger_write(after, b));
    assert_ok(invar_divergence_compare(&place, before, after));
    assert_string_equal(place.ledger_before, before);
    assert_string_equal(place.ledger_after, after);
    assert_false(place.op_level);
    return place;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void test_place__equal_runs_have_none(void **state)
{
    invar_test_ledger spec = {.steps = 5};
    invar_divergence place = place_of(&spec, &spec);

    (void)state;
    assert_false(place.known);
    assert_string_equal(place.point, "");
    assert_string_equal(place.before, "");
    assert_int_equal(place.points_different, 0);
}

static void test_place__tensor(void **state)
{
    invar_test_ledger a = {.steps = 12}, b = {.steps = 12};
    invar_divergence place;

    (void)state;
    b.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 7, "layer.1.mlp.out", 0, 1};
    place = place_of(&a, &b);
    assert_true(place.known);
    assert_int_equal(place.step, 7);
    assert_string_equal(place.point, "layer.1.mlp.out");
    assert_string_equal(place.phase, "forward");
    assert_string_equal(place.op, "swiglu");
    assert_string_equal(place.kind, "act");
    assert_string_equal(place.shape, "[1024,64]");
    assert_int_equal(place.layer, 1);
    assert_int_equal(strlen(place.before), INVAR_DIGEST_HEX_SIZE - 1);
    assert_string_not_equal(place.before, place.after);
    assert_int_equal(place.points_different, 9);
    assert_int_equal(place.points_equal, 6);
    assert_non_null(strstr(place.headline, "first at step 7"));

    // the other way round: the same place, the digests change sides
    invar_divergence back = place_of(&b, &a);
    assert_string_equal(back.point, place.point);
    assert_string_equal(back.before, place.after);
    assert_string_equal(back.after, place.before);

    // a control: another fault, another place
    b.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 3, "head.logits", 0, 1};
    place = place_of(&a, &b);
    assert_int_equal(place.step, 3);
    assert_string_equal(place.point, "head.logits");
    assert_int_equal(place.layer, -1);
}

/* A finer point on both sides is where it begins, though no chain has it. */
static void test_place__finer_points_count(void **state)
{
    invar_test_ledger a = {.steps = 6, .finer = true}, b = a;
    invar_divergence place;

    (void)state;
    b.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 4, "layer.0.norm.out", 0, 1};
    place = place_of(&a, &b);
    assert_string_equal(place.point, "layer.0.norm.out");
    a.finer = false; // without it on one side: the first that both have
    place = place_of(&a, &b);
    assert_string_equal(place.point, "layer.0.attn.out");
}

static void test_place__structure_alone(void **state)
{
    const char *before = fresh(), *after = fresh();
    const int64_t shapes[2] = {4, 8};
    const char *paths[2] = {before, after};
    invar_divergence place;

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
    assert_ok(invar_divergence_compare(&place, before, after));
    assert_true(place.known);
    assert_int_equal(place.step, 0);
    assert_string_equal(place.kind, "structure");
    assert_string_equal(place.point, "x");
    assert_string_equal(place.op, "shape");
    assert_string_equal(place.before, "");
}

/* What stands beside the tensors. */
static void test_place__records(void **state)
{
    invar_test_ledger a = {.steps = 12}, b = {.steps = 12};
    invar_divergence place;

    (void)state;
    b.faults[0] = (invar_test_fault){.kind = INVAR_TEST_REWARD_SHIFT, .step = 5, .value = 0.5};
    place = place_of(&a, &b);
    assert_true(place.known);
    assert_int_equal(place.step, 5);
    assert_string_equal(place.kind, "metric");
    assert_string_equal(place.point, "rollout/raw_reward");
    assert_string_equal(place.before, "");
    assert_int_equal(place.layer, -1);

    b.faults[0] =
        (invar_test_fault){.kind = INVAR_TEST_LOGP_MISMATCH, .step = 4, .other = 2, .value = 0.25};
    place = place_of(&a, &b);
    assert_true(place.known);
    assert_int_equal(place.step, 4);
    assert_true(strcmp(place.kind, "metric") == 0 || strcmp(place.kind, "sample") == 0);

    b.faults[0] = (invar_test_fault){.kind = INVAR_TEST_EVAL_DROP, .step = 9};
    place = place_of(&a, &b);
    assert_string_equal(place.kind, "evaluation");
    assert_int_equal(place.step, 9);
}

static void test_place__what_is_no_ledger(void **state)
{
    const char *good = fresh(), *none = fresh(), *two = fresh();
    invar_divergence place;

    (void)state;
    assert_ok(invar_test_ledger_write(good, &(invar_test_ledger){.steps = 2}));
    assert_fails(invar_divergence_compare(&place, good, none), INVAR_E_NOTFOUND, "");
    assert_false(place.known);
    assert_fails(invar_divergence_compare(&place, none, good), INVAR_E_NOTFOUND, "");
    assert_ok(invar_test_ledger_write(two, &(invar_test_ledger){.steps = 2}));
    assert_ok(invar_test_ledger_add(two, &(invar_test_ledger){.steps = 2}));
    assert_int_not_equal(invar_divergence_compare(&place, good, two), INVAR_OK); // which of them?
    assert_false(place.known);
}

/* ---- refining -------------------------------------------------------------------------------- */

enum { CALLS = 4 };

/* What the stand-in does, and what it saw. */
static struct {
    const char *ledgers[CALLS]; /* call by call */
    invar_run_outcome states[CALLS];
    invar_status status;
    int calls;
    char flags[CALLS][400]; /* joined by blanks */
    char program[CALLS][16], name[CALLS][16];
    int64_t until[CALLS];
    bool watched;
} fake;

static char samples[400]; /* as the first call says where to */

const char *invar_workspace_folder(const invar_workspace *workspace)
{
    assert_null(workspace);
    return "/shop";
}

invar_status invar_workspace_run(invar_run_result *out, invar_workspace *workspace, int lock,
                                 const invar_run_request *request)
{
    int i = fake.calls++;

    assert_null(workspace);
    assert_int_equal(lock, 17);
    assert_in_range(i, 0, CALLS - 1);
    for (const char *const *word = request->flags; *word; word++) {
        size_t used = strlen(fake.flags[i]);
        (void)snprintf(fake.flags[i] + used, sizeof fake.flags[i] - used, "%s%s", used ? " " : "",
                       *word);
        if (strcmp(*word, "--save-debug-rollout-data") == 0)
            (void)snprintf(samples, sizeof samples, "%s", word[1]);
    }
    (void)snprintf(fake.program[i], sizeof fake.program[i], "%s", request->program);
    (void)snprintf(fake.name[i], sizeof fake.name[i], "%s", request->name);
    fake.until[i] = request->until;
    fake.watched |= request->should_stop != NULL || request->payload != NULL;
    memset(out, 0, sizeof *out);
    out->state = fake.states[i];
    if (out->state == INVAR_RUN_DONE)
        (void)snprintf(out->ledger, sizeof out->ledger, "%s", fake.ledgers[i]);
    return fake.status == INVAR_OK ? INVAR_OK
                                   : INVAR_FAIL(fake.status, 0, "the stand-in has no disk");
}

static bool never(void *payload, const char *ledger)
{
    (void)payload;
    (void)ledger;
    return false;
}

static const char *const some_flags[] = {"--debug-determinism", "point",  "--seed", "3",
                                         "--on-mismatch=stop",  "--lr=1", NULL};
static const invar_run_request asked[2] = {{.program = "before",
                                            .flags = some_flags,
                                            .name = "1",
                                            .until = 99,
                                            .should_stop = never,
                                            .payload = &fake},
                                           {.program = "after", .name = "1", .until = 99}};

/* A place as the coarse runs give it, and fine ledgers to come. */
static invar_divergence coarse(const char *fine_point)
{
    invar_test_ledger a = {.steps = 6}, b = {.steps = 6};
    const char *before, *after;
    invar_divergence place;

    b.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 4, "layer.0.attn.out", 0, 1};
    place = place_of(&a, &b);
    assert_string_equal(place.point, "layer.0.attn.out");
    a.finer = b.finer = true;
    b.faults[0].point = fine_point;
    if (!fine_point)
        b.faults[0].kind = INVAR_TEST_HEALTHY;
    before = fresh();
    after = fresh();
    assert_ok(invar_test_ledger_write(before, &a));
    assert_ok(invar_test_ledger_write(after, &b));
    memset(&fake, 0, sizeof fake);
    fake.ledgers[0] = before;
    fake.ledgers[1] = after;
    fake.ledgers[2] = before;
    return place;
}

/* Flags that end with the place of the samples. */
static void assert_flags(int call, const char *expected)
{
    char text[sizeof fake.flags[0] + sizeof samples];

    assert_ptr_equal(strstr(samples, "/shop/samples/"), samples);
    assert_non_null(strstr(samples, "/{rollout_id}."));
    (void)snprintf(text, sizeof text, "%s%s", expected, samples);
    assert_string_equal(fake.flags[call], text);
}

static void test_refine__names_the_finer_point(void **state)
{
    invar_divergence place = coarse("layer.0.norm.out");

    (void)state;
    assert_ok(invar_divergence_refine(&place, NULL, 17, &asked[0], &asked[1]));
    assert_true(place.known && place.op_level);
    assert_string_equal(place.point, "layer.0.norm.out");
    assert_int_equal(place.step, 4);
    assert_string_equal(place.ledger_before, fake.ledgers[0]);
    assert_string_equal(place.ledger_after, fake.ledgers[1]);
    assert_int_equal(fake.calls, 2);
    assert_string_equal(fake.program[0], "before");
    assert_string_equal(fake.program[1], "after");
    assert_flags(0, "--seed 3 --lr=1 --debug-determinism full --on-mismatch record "
                    "--save-debug-rollout-data ");
    assert_string_equal(fake.flags[1], "--debug-determinism full --on-mismatch record");
    for (int i = 0; i < 2; i++) {
        assert_string_equal(fake.name[i], "fine");
        assert_int_equal(fake.until[i], 4);
    }
    assert_false(fake.watched);
}

/* A program that does not know the keys, a stop, and runs that agree leave what was known. */
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
        {{INVAR_RUN_DONE, INVAR_RUN_DONE}, 2}, // equal this time
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_divergence place = coarse(i == 4 ? NULL : "layer.0.norm.out"), old = place;
        memcpy(fake.states, cases[i].states, sizeof fake.states);
        assert_ok(invar_divergence_refine(&place, NULL, 17, &asked[0], &asked[1]));
        assert_memory_equal(&place, &old, sizeof place);
        assert_int_equal(fake.calls, cases[i].calls);
    }
}

/* A program that cannot save its samples is run without. */
static void test_refine__does_without_saving(void **state)
{
    invar_divergence place = coarse("layer.0.norm.out");

    (void)state;
    fake.states[0] = INVAR_RUN_FAILED;
    fake.ledgers[2] = fake.ledgers[1];
    fake.ledgers[1] = fake.ledgers[0];
    assert_ok(invar_divergence_refine(&place, NULL, 17, &asked[0], &asked[1]));
    assert_int_equal(fake.calls, 3);
    assert_string_equal(fake.program[1], "before");
    assert_null(strstr(fake.flags[1], "rollout-data"));
    assert_string_equal(fake.program[2], "after");
    assert_string_equal(place.point, "layer.0.norm.out");
}

/* Other tokens: with those of the run before, the op behind them shows. */
static void test_refine__looks_behind_samples(void **state)
{
    invar_test_ledger behind = {
        .steps = 6, .finer = true, .faults = {{INVAR_TEST_DIVERGES, 4, "layer.1.mlp.out", 0, 1}}};
    const char *third;

    (void)state;
    for (int i = 0; i < 3; i++) {
        invar_divergence place = coarse("rollout.tokens");
        char kept[2][512]; // fresh() has room for few
        for (int k = 0; k < 2; k++) {
            (void)snprintf(kept[k], sizeof kept[k], "%s", fake.ledgers[k]);
            fake.ledgers[k] = kept[k];
        }
        third = fresh();
        assert_ok(invar_test_ledger_write(third, &behind));
        fake.ledgers[2] = i == 2 ? kept[0] : third; // the last: equal with these samples
        fake.states[2] = i == 1 ? INVAR_RUN_FAILED : INVAR_RUN_DONE;
        assert_ok(invar_divergence_refine(&place, NULL, 17, &asked[0], &asked[1]));
        assert_int_equal(fake.calls, 3);
        assert_string_equal(fake.program[2], "after");
        assert_flags(2, "--debug-determinism full --on-mismatch record "
                        "--load-debug-rollout-data ");
        assert_int_equal(fake.until[2], 4);
        assert_true(place.known && place.op_level);
        assert_string_equal(place.point, i == 0 ? "layer.1.mlp.out" : "rollout.tokens");
        assert_string_equal(place.ledger_after, i == 0 ? third : kept[1]);
    }
}

static void test_refine__runs_nothing_for_nothing(void **state)
{
    invar_divergence place = coarse("layer.0.norm.out");

    (void)state;
    place.known = false;
    assert_ok(invar_divergence_refine(&place, NULL, 17, &asked[0], &asked[1]));
    place.known = true;
    place.step = -1;
    assert_ok(invar_divergence_refine(&place, NULL, 17, &asked[0], &asked[1]));
    assert_int_equal(fake.calls, 0);
}

static void test_refine__passes_failures_on(void **state)
{
    invar_divergence place = coarse("layer.0.norm.out"), old = place;

    (void)state;
    fake.status = INVAR_E_IO;
    assert_fails(invar_divergence_refine(&place, NULL, 17, &asked[0], &asked[1]), INVAR_E_IO,
                 "no disk");
    fake.status = INVAR_OK;
    fake.calls = 0;
    fake.ledgers[1] = "/nowhere/ledger.db";
    assert_fails(invar_divergence_refine(&place, NULL, 17, &asked[0], &asked[1]), INVAR_E_NOTFOUND,
                 "nowhere");
    assert_memory_equal(&place, &old, sizeof place);
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
