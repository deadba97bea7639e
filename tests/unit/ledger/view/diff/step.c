/*
 * step.c - tests of the diff of one step, of forged ledgers, and of the printed formats.
 *
 * Runs of a single step with chosen points show which point is named as the origin. Ledgers damaged
 * through plain SQLite must be rejected, or compared without a crash. Text, JSON and HTML must hold
 * the differences and no raw text. Allocations fail one at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/fault/faulty.h"
#include "tests/unit/ledger/view/diff/pair.h"

/* ---- runs of one step ------------------------------------------------------------------------ */

typedef struct step_spec {
    const invar_ledger_point *points;
    size_t n_points;
    const invar_ledger_metric *metrics;
    size_t n_metrics;
    unsigned other;      /* bit i is set if point i has other bits */
    const char *weights; /* digest of the initial weights; NULL if it is not in the identity */
} step_spec;

static bool other_trainer;           /* the next run is of another program, without free keys */
static uint8_t batch_byte, rng_byte; /* byte in their digests; 0 if they are not recorded */

static int64_t write_one_step(const step_spec *spec)
{
    const invar_ledger_pair identity = {INVAR_LEDGER_WEIGHTS, spec->weights};
    const invar_ledger_fact key = {"free", "threads", "0"};
    invar_ledger_run run = {
        .name = "small",
        .kind = "train",
        .identity = &identity,
        .n_identity = spec->weights ? 1 : 0,
        .circumstances = {.facts = &key, .n_facts = other_trainer ? 0 : 1, .no_auto_facts = true}};
    invar_digest digests[64];
    invar_ledger_step step = {
        .digests = digests, .metrics = spec->metrics, .n_metrics = spec->n_metrics};

    step.batch.bytes[9] = batch_byte;
    step.rng.bytes[9] = rng_byte;

    assert_true(spec->n_points <= COUNT(digests));
    for (size_t i = 0; i < spec->n_points; i++) // equal first 3 letters give equal bits
        invar_hash_bytes(&digests[i], spec->points[i].name, strnlen(spec->points[i].name, 3));
    for (size_t i = 0; i < spec->n_points; i++)
        digests[i].bytes[0] ^= (uint8_t)(spec->other >> i & 1);
    assert_ok(invar_ledger_begin(shared, &run));
    assert_ok(invar_ledger_define(shared, spec->points, spec->n_points));
    assert_ok(invar_ledger_append(shared, &step));
    return ++shared_runs;
}

static const int64_t shape[] = {2, 3}, first_input[] = {0};

#define POINT(n)                                                                                   \
    {                                                                                              \
        .name = (n), .phase = "forward", .op = "linear", .kind = "act", .dtype = "f32",            \
        .shape = shape, .dims = 2, .shards = 1                                                     \
    }

static const invar_ledger_point three_points[] = {POINT("one"), POINT("two"), POINT("three")};

static invar_diff *diff_one_step(const step_spec *a, const step_spec *b)
{
    int64_t run = write_one_step(a);

    return diff_shared(run, write_one_step(b));
}

static void test_diff__structure(void **state)
{
    static const struct {
        const char *what, *a, *b;
        bool identical;
    } cases[] = {
        {"phase", "forward", "backward", true},
        {"op", "linear", "conv", true},
        {"kind", "act", "grad", true},
        {"dtype", "f32", "bf16", true},
        {"shape", "[2,3]", "[2]", true},
        {"layer", "0", "4", true},
        {"level", "0", "1", false},
        {"shards", "1", "2", true},
        {"replicated", "0", "1", true},
        {"inputs", "", "one", true},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        invar_ledger_point points[3];
        memcpy(points, three_points, sizeof three_points);
        switch (i) {
        case 0: points[1].phase = "backward"; break;
        case 1: points[1].op = "conv"; break;
        case 2: points[1].kind = "grad"; break;
        case 3: points[1].dtype = "bf16"; break;
        case 4: points[1].dims = 1; break;
        case 5: points[1].layer = 4; break;
        case 6: points[1].level = 1; break;
        case 7: points[1].shards = 2; break;
        case 8: points[1].replicated = true; break;
        default: points[1].inputs = first_input; points[1].n_inputs = 1;
        }
        invar_diff *diff = diff_one_step(&(step_spec){three_points, 3, NULL, 0, 0, NULL},
                                         &(step_spec){points, 3, NULL, 0, 0, NULL});
        assert_int_equal(diff->changes.count, 1);
        assert_string_equal(diff->changes.items[0].point, "two");
        assert_string_equal(diff->changes.items[0].what, cases[i].what);
        assert_string_equal(diff->changes.items[0].a, cases[i].a);
        assert_string_equal(diff->changes.items[0].b, cases[i].b);
        assert_int_equal(diff->points.count, 0); // structure differs, not bits
        assert_int_equal(diff->points.equal, i == 3 || i == 4 || i == 7 ? 2 : 3);
        assert_int_equal(diff->verdict, cases[i].identical ? INVAR_DIFF_VERDICT_IDENTICAL
                                                           : INVAR_DIFF_VERDICT_DIFFERENT);
        if (!cases[i].identical)
            assert_headline(diff, "different: first at step 0, in structure only: "
                                  "1 change of what is computed");
        invar_diff_free(diff);
    }
}

static void test_diff__points_of_one_side(void **state)
{
    invar_ledger_point renamed[3], swapped[] = {three_points[0], three_points[2], three_points[1]};
    invar_diff *diff;

    (void)state;
    memcpy(renamed, three_points, sizeof three_points);
    renamed[1].name = "twofold"; // has the bits of "two", whose first letters are equal
    diff = diff_one_step(&(step_spec){three_points, 3, NULL, 0, 0, NULL},
                         &(step_spec){renamed, 3, NULL, 0, 0, NULL});
    assert_headline(diff, "identical: 1 step, 2 points a step; 2 changes of structure");
    assert_string_equal(diff->changes.items[0].what, "point");
    assert_null(diff->changes.items[0].b);
    assert_null(diff->changes.items[1].a);
    assert_string_equal(diff->changes.items[1].b, "forward, linear, act, f32 [2,3]");
    invar_diff_free(diff);

    diff = diff_one_step(&(step_spec){three_points, 3, NULL, 0, 0, NULL},
                         &(step_spec){swapped, 3, NULL, 0, 0, NULL});
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_DIFFERENT); // the root depends on the order
    assert_int_equal(diff->changes.count, 1);
    assert_string_equal(diff->changes.items[0].what, "order");
    assert_string_equal(diff->changes.items[0].point, "three");
    assert_string_equal(diff->changes.items[0].a, "after two");
    assert_string_equal(diff->changes.items[0].b, "before two");
    assert_int_equal(diff->points.equal, 3);
    invar_diff_free(diff);
}

static void test_diff__looks_through_finer_points(void **state)
{
    invar_test_ledger a = {.steps = 6}, b = {.steps = 6, .finer = true};
    invar_diff *diff = diff_specs(&a, &b);

    (void)state;
    assert_headline(diff, "identical: 6 steps, 15 points a step; 2 changes of structure");
    invar_diff_free(diff);
    b.facts = other_program;
    b.n_facts = 1;
    b.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 2, "layer.0.norm.out", 0, 1};
    diff = diff_specs(&a, &b);
    assert_headline(diff, "different: first at step 2, point layer.0.attn.out (forward, layer 0), "
                          "whose inputs are equal where both have them");
    invar_diff_free(diff);
}

static void test_diff__reshaped_input_hides_the_place(void **state)
{
    invar_ledger_point a[2] = {POINT("one"), POINT("two")}, b[2] = {POINT("one"), POINT("two")};
    invar_diff *diff;

    (void)state;
    b[0].dtype = "bf16";
    a[1].inputs = b[1].inputs = first_input;
    a[1].n_inputs = b[1].n_inputs = 1;
    diff = diff_one_step(&(step_spec){a, 2, NULL, 0, 0, NULL},
                         &(step_spec){b, 2, NULL, 0, 1U << 1, NULL});
    assert_null(diff->culprit);
    assert_headline(diff, "different: first at step 0, point two (forward, layer 0), "
                          "where it begins is not known");
    invar_diff_free(diff);
}

static void test_diff__inputs_of_both_sides_count(void **state)
{
    static const int64_t one[] = {1}, both[] = {0, 1};
    invar_ledger_point a[3] = {POINT("zero"), POINT("one"), POINT("two")}, b[3];
    invar_diff *diff;

    (void)state;
    memcpy(b, a, sizeof a);
    a[2].inputs = one;
    a[2].n_inputs = 1;
    b[2].inputs = both;
    b[2].n_inputs = 2;
    for (int swap = 0; swap < 2; swap++) {
        diff = diff_one_step(&(step_spec){swap ? b : a, 3, NULL, 0, 0, NULL},
                             &(step_spec){swap ? a : b, 3, NULL, 0, 1U << 0 | 1U << 2, NULL});
        assert_int_equal(diff->points.count, 2);
        assert_string_equal(diff->culprit->name, "zero");
        assert_false(
            diff->points.items[1].is_origin); // the differing point is its input on one side
        invar_diff_free(diff);
    }
}

static void test_diff__points_without_inputs_begin_once(void **state)
{
    invar_diff *diff =
        diff_one_step(&(step_spec){three_points, 3, NULL, 0, 0, NULL},
                      &(step_spec){three_points, 3, NULL, 0, 1U << 1 | 1U << 2, NULL});
    char next[INVAR_DIFF_NEXT_LINES][INVAR_DIFF_NEXT_SIZE];

    (void)state;
    assert_int_equal(diff->points.count, 2);
    assert_ptr_equal(diff->culprit, &diff->points.items[0]);
    assert_false(diff->points.items[1].is_origin); // possibly computed from the first point
    assert_headline(diff, "different: first at step 0, point two (forward, layer 0), "
                          "the first that differs");
    // The command that replays the step with recorded inputs.
    assert_int_equal(invar_diff_next(next, diff), 1);
    assert_has(next[0], "invar diff ");
    assert_has(next[0], " --replay");
    invar_diff_free(diff);
}

/* Steps of another program cannot be replayed, so the next commands show the runs instead. */
static void test_diff__foreign_runs_are_not_replayed(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++) {
        char next[INVAR_DIFF_NEXT_LINES][INVAR_DIFF_NEXT_SIZE];
        int64_t run;
        invar_diff *diff;

        other_trainer = side == 0;
        run = write_one_step(&(step_spec){three_points, 3, NULL, 0, 0, NULL});
        other_trainer = side == 1;
        diff = diff_shared(run, write_one_step(&(step_spec){three_points, 3, NULL, 0, 2, NULL}));
        other_trainer = false;
        assert_int_equal(invar_diff_next(next, diff), 2);
        for (int i = 0; i < 2; i++)
            assert_has(next[i], " ledger show ");
        invar_diff_free(diff);
    }
}

/* "two" is a fused call and "two.parts" its parts; equal first letters give them equal bits. */
static void test_diff__fused_calls_and_their_parts(void **state)
{
    static const invar_ledger_point points[] = {POINT("one"), POINT("two"), POINT("two.parts")};
    static const struct {
        unsigned a, b; /* bit i is set if point i has other bits */
        const char *expected_text, *json;
    } cases[] = {
        {0, 2, "fused linear differs from its parts in B, the parts are equal",
         "\"b_differs\": true"},
        {2, 0, "fused linear differs from its parts in A, the parts are equal",
         "\"a_differs\": true"},
        {0, 6, "fused linear equals its parts in A and in B, the parts differ as well",
         "\"parts_equal\": false"},
        {2, 4, "fused linear differs from its parts in A and in B, the parts differ as well",
         "\"b_differs\": true"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        invar_diff *diff = diff_one_step(&(step_spec){points, 3, NULL, 0, cases[i].a, NULL},
                                         &(step_spec){points, 3, NULL, 0, cases[i].b, NULL});
        char headline[INVAR_DIFF_HEADLINE_SIZE], *text;
        assert_string_equal(diff->culprit->name, "two");
        invar_diff_headline(headline, diff);
        assert_has(headline, cases[i].expected_text);
        text = text_of(diff, invar_diff_html);
        // Once in the headline, once at the origin.
        assert_int_equal(lines_with(text, cases[i].expected_text), 2);
        free(text);
        text = text_of(diff, invar_diff_json);
        assert_has(text, cases[i].json);
        free(text);
        invar_diff_free(diff);
    }
    // Controls: a call without parts, and another differing point.
    invar_diff *plain = diff_one_step(&(step_spec){points, 2, NULL, 0, 0, NULL},
                                      &(step_spec){points, 2, NULL, 0, 2, NULL});
    invar_diff *other = diff_one_step(&(step_spec){points, 3, NULL, 0, 0, NULL},
                                      &(step_spec){points, 3, NULL, 0, 1, NULL});
    assert_false(plain->culprit->fused);
    assert_false(other->culprit->fused);
    assert_headline(other, "different: first at step 0, point one (forward, layer 0), "
                           "the first that differs");
    invar_diff_free(plain);
    invar_diff_free(other);
}

static void test_diff__groups_are_of_a_phase_and_layer_once(void **state)
{
    invar_ledger_point points[6] = {POINT("a"), POINT("b"), POINT("c"),
                                    POINT("d"), POINT("e"), POINT("f")};
    static const struct {
        const char *phase;
        int64_t layer, equal, different;
    } expected[] = {
        {"forward", 0, 0, 2}, {"forward", 1, 1, 0}, {"backward", 0, 1, 1}, {"backward", 1, 1, 0}};
    invar_diff *diff;

    (void)state;
    points[1].layer = points[3].layer = 1;
    points[3].phase = points[4].phase = points[5].phase = "backward";
    // Phase and layer of the points: forward 0, 1, 0, backward 1, 0, 0.
    diff = diff_one_step(&(step_spec){points, 6, NULL, 0, 0, NULL},
                         &(step_spec){points, 6, NULL, 0, 1U << 0 | 1U << 2 | 1U << 5, NULL});
    assert_int_equal(diff->groups.count, COUNT(expected));
    for (size_t i = 0; i < COUNT(expected); i++) {
        assert_string_equal(diff->groups.items[i].phase, expected[i].phase);
        assert_int_equal(diff->groups.items[i].layer, expected[i].layer);
        assert_int_equal(diff->groups.items[i].equal, expected[i].equal);
        assert_int_equal(diff->groups.items[i].different, expected[i].different);
    }
    invar_diff_free(diff);
}

static void test_diff__initial_weights_are_compared_not_their_version(void **state)
{
    static const struct {
        const char *a, *b;
        invar_tristate expected;
    } cases[] = {{"11", "11", INVAR_TRISTATE_YES},
                 {"11", "22", INVAR_TRISTATE_NO},
                 {"11", NULL, INVAR_TRISTATE_UNKNOWN},
                 {NULL, NULL, INVAR_TRISTATE_UNKNOWN}};

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        invar_diff *diff = diff_one_step(
            &(step_spec){.points = three_points, .n_points = 3, .weights = cases[i].a},
            &(step_spec){three_points, 3, NULL, 0, 1U << 1, cases[i].b});
        assert_int_equal(diff->same_weights, cases[i].expected);
        invar_diff_free(diff);
    }
}

static void test_diff__what_is_not_recorded_is_not_the_same(void **state)
{
    static const struct {
        uint8_t a, b;
        invar_tristate expected;
        const char *text;
        json_type type;
    } cases[] = {{1, 1, INVAR_TRISTATE_YES, "yes", JSON_TRUE},
                 {1, 2, INVAR_TRISTATE_NO, "no", JSON_FALSE},
                 {1, 0, INVAR_TRISTATE_UNKNOWN, "not recorded", JSON_NULL},
                 {0, 2, INVAR_TRISTATE_UNKNOWN, "not recorded", JSON_NULL},
                 {0, 0, INVAR_TRISTATE_UNKNOWN, "not recorded", JSON_NULL}};

    (void)state;
    for (size_t i = 0; i < COUNT(cases) * COUNT(cases); i++) {
        size_t k = i / COUNT(cases), l = i % COUNT(cases);
        char *text, line[128];
        int64_t runs[2];
        invar_diff *diff;

        for (unsigned side = 0; side < 2; side++) {
            batch_byte = side ? cases[k].b : cases[k].a;
            rng_byte = side ? cases[l].b : cases[l].a;
            runs[side] = write_one_step(&(step_spec){three_points, 3, NULL, 0, side << 1, NULL});
        }
        batch_byte = rng_byte = 0;
        diff = diff_shared(runs[0], runs[1]);
        text = text_of(diff, print_plain);
        assert_int_equal(diff->same_batch, cases[k].expected);
        assert_int_equal(diff->same_rng, cases[l].expected);
        (void)snprintf(line, sizeof line, "step 0: same data: %s, same random numbers: %s, ",
                       cases[k].text, cases[l].text);
        assert_has(text, line);
        free(text);
        text = text_of(diff, invar_diff_json);
        json_t *object = json_loads(text, 0, NULL);
        assert_int_equal(json_typeof(json_object_get(object, "same_batch")), cases[k].type);
        assert_int_equal(json_typeof(json_object_get(object, "same_rng")), cases[l].type);
        json_decref(object);
        free(text);
        invar_diff_free(diff);
    }
}

static void test_diff__whole_names(void **state)
{
    static const char name[] = "grad.model.layers.0.post_attention_layernorm.weight";
    invar_ledger_point points[2] = {POINT("one"), POINT(name)};
    invar_diff *diff = diff_one_step(&(step_spec){points, 2, NULL, 0, 0, NULL},
                                     &(step_spec){points, 2, NULL, 0, 1U << 1, NULL});
    char *text = text_of(diff, print_plain);

    (void)state;
    assert_has(text, "> grad.model.layers.0.post_attention_layernorm.weight  linear ");
    free(text);
    invar_diff_free(diff);
}

static void test_diff__new_source_hides_the_place(void **state)
{
    static const int64_t one[] = {0}, both[] = {0, 1};
    invar_ledger_point a[2] = {POINT("one"), POINT("two")};
    invar_ledger_point b[3] = {POINT("one"), POINT("new"), POINT("two")};
    invar_diff *diff;

    (void)state;
    a[1].inputs = one;
    a[1].n_inputs = 1;
    b[2].inputs = both;
    b[2].n_inputs = 2;
    diff = diff_one_step(&(step_spec){a, 2, NULL, 0, 0, NULL},
                         &(step_spec){b, 3, NULL, 0, 1U << 2, NULL});
    assert_int_equal(diff->points.count, 1);
    assert_null(diff->culprit); // the cause may be the input that only B has
    invar_diff_free(diff);
}

static void test_diff__finer_points_do_not_decide(void **state)
{
    invar_ledger_point points[3];
    invar_diff *diff;

    (void)state;
    memcpy(points, three_points, sizeof three_points);
    points[1].level = 1;
    diff = diff_one_step(&(step_spec){points, 3, NULL, 0, 0, NULL},
                         &(step_spec){points, 3, NULL, 0, 1U << 1, NULL});
    assert_headline(diff, "identical: 1 step, 3 points a step; 1 point outside the root differs");
    assert_int_equal(diff->points.count, 1);
    invar_diff_free(diff);
    // The diff of a single step counts finer points.
    assert_ok(invar_diff_step(&diff, shared, shared_runs - 1, shared, shared_runs, 0));
    assert_true(diff->diverged && !diff->roots_differ);
    assert_string_equal(diff->culprit->name, "two");
    assert_headline(diff, "different: first at step 0, point two (forward, layer 0), the first "
                          "that differs");
    invar_diff_free(diff);
}

static void test_diff__metrics_by_bits(void **state)
{
    uint64_t payload = UINT64_C(0x7ff8000000000001);
    double nan_with_payload;
    memcpy(&nan_with_payload, &payload, sizeof nan_with_payload);
    const invar_ledger_metric a[] = {{"equal", 0.1}, {"float", 1.0}, {"gone", 1},
                                     {"nan", NAN},   {"next", 1.0},  {"sign", -0x1p-1074},
                                     {"zero", 0.0}};
    const invar_ledger_metric b[] = {{"equal", 0.1},
                                     {"float", 1.0 + 10 * 0x1p-23},
                                     {"new", 1},
                                     {"nan", nan_with_payload},
                                     {"next", 1.0 + 0x1p-52},
                                     {"sign", 0x1p-1074},
                                     {"zero", -0.0}};
    static const struct {
        const char *name;
        bool in_a, in_b;
        uint64_t ulp;
        bool f32;
    } expected[] = {{"float", true, true, 10, true}, {"gone", true, false, 0, false},
                    {"nan", true, true, 0, false},   {"new", false, true, 0, false},
                    {"next", true, true, 1, false},  {"sign", true, true, 3, false},
                    {"zero", true, true, 1, true}};
    char *text;
    invar_diff *diff = diff_one_step(&(step_spec){three_points, 3, a, COUNT(a), 0, NULL},
                                     &(step_spec){three_points, 3, b, COUNT(b), 0, NULL});

    (void)state;
    assert_int_equal(diff->metrics.equal, 1);
    assert_int_equal(diff->metrics.count, COUNT(expected));
    for (size_t i = 0; i < COUNT(expected); i++) {
        assert_string_equal(diff->metrics.items[i].name, expected[i].name);
        assert_int_equal(diff->metrics.items[i].in_a, expected[i].in_a);
        assert_int_equal(diff->metrics.items[i].in_b, expected[i].in_b);
        assert_int_equal(diff->metrics.items[i].ulp, expected[i].ulp);
        assert_int_equal(diff->metrics.items[i].f32, expected[i].f32);
    }
    text = text_of(diff, print_plain);
    // Between doubles the distance would be 5.4e+09.
    assert_non_null(strstr(text, "  10 ulp (fp32)\n"));
    assert_non_null(strstr(text, "  1 ulp (fp64)\n"));
    free(text);
    free(text_of(diff, invar_diff_json));
    invar_diff_free(diff);
}

/* ---- copies without detail ------------------------------------------------------------------- */

static void test_diff__without_digests(void **state)
{
    const char *a = new_path(), *b = new_path(), *copy = new_path();
    invar_test_ledger bad = {.steps = 12, .facts = other_program, .n_facts = 1};
    invar_ledger *ledger;
    invar_diff *diff;
    char *text;

    (void)state;
    bad.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 5, "embed.out", 0, 1};
    assert_ok(invar_test_ledger_write(a, &(invar_test_ledger){.steps = 12}));
    assert_ok(invar_test_ledger_write(b, &bad));
    ledger = open_read(b);
    assert_ok(invar_ledger_backup(ledger, copy, &(invar_ledger_retention){.last_steps = 2}));
    invar_ledger_close(ledger);
    diff = diff_files(a, copy);
    assert_headline(diff, "different: first at step 5; its points are not in this copy of B");
    assert_true(diff->a.digests && !diff->b.digests);
    text = text_of(diff, print_plain);
    assert_has(text, "points: not in the ledger of B: only the root of the step is known\n");
    free(text);
    invar_diff_free(diff);
}

/* ---- forged ledgers -------------------------------------------------------------------------- */

static void test_diff__refuses_what_contradicts_itself(void **state)
{
    static const struct {
        const char *sql, *message;
    } cases[] = {
        {"UPDATE point SET inputs = 'x' WHERE ord = 1", "no list"},
        {"UPDATE point SET inputs = '' WHERE ord = 1", "no list"},
        {"UPDATE point SET inputs = '{\"0\": 0}' WHERE ord = 1", "no list"},
        {"UPDATE point SET inputs = '[0' WHERE ord = 1", "no list"},
        {"UPDATE point SET inputs = replace(hex(zeroblob(5000)), '0', '[') WHERE ord = 1",
         "no list"},
        {"UPDATE point SET inputs = '[99]' WHERE ord = 1", "not before it"},
        {"UPDATE point SET inputs = '[1]' WHERE ord = 1", "not before it"},
        {"UPDATE point SET inputs = '[2]' WHERE ord = 1", "not before it"},
        {"UPDATE point SET inputs = '[-1]' WHERE ord = 1", "not before it"},
        {"UPDATE point SET inputs = '[0.5]' WHERE ord = 1", "not before it"},
        {"UPDATE point SET inputs = '[[0]]' WHERE ord = 1", "not before it"},
        {"UPDATE point SET inputs = '[99999999999999999999]' WHERE ord = 1", "no list"},
        {"UPDATE point SET ord = 1000 WHERE ord = 14", "gaps"},
        {"UPDATE point SET ord = -1 WHERE ord = 0", "gaps"},
        {"DELETE FROM point WHERE ord = 14", "not as many points"},
        {"UPDATE digest SET data = substr(data, 1, 32)", "points"},
        {"UPDATE digest SET data = substr(data, 1, 33)", "cut off"},
        {"UPDATE digest SET data = zeroblob(1600)", "not as many points"},
        {"UPDATE digest SET data = zeroblob(0)", "points"},
        {"UPDATE digest SET manifest = 77", "not as many points"},
        {"DELETE FROM step WHERE step = 4", "gap"},
        {"UPDATE step SET step = 9223372036854775807 WHERE step = 8", "count from 0"},
        {"UPDATE step SET step = -9223372036854775807 - 1 WHERE step = 0", "count from 0"},
        {"UPDATE step SET step = -1 WHERE step = 0", "count from 0"},
        {"DELETE FROM step WHERE step < 3", "count from 0"},
        {"UPDATE step SET step = 9223372036854775806 WHERE step = 8", "gap"},
        {"UPDATE step SET chain = zeroblob(16) WHERE step > 5", "chain"},
        {"UPDATE step SET chain = zeroblob(16)", "chain"},
    };
    char good[512];

    (void)state;
    (void)snprintf(good, sizeof good, "%s", new_path());
    assert_ok(invar_test_ledger_write(good, &(invar_test_ledger){.steps = 9}));
    for (size_t side = 0; side < 2; side++) {
        for (size_t i = 0; i < COUNT(cases); i++) {
            const char *bad = copy_of(good);
            invar_diff *diff = NULL;
            tamper(bad, cases[i].sql);
            invar_status status =
                side ? diff_paths(&diff, good, bad) : diff_paths(&diff, bad, good);
            if (status != INVAR_E_CORRUPT)
                fail_msg("%s: status %d", cases[i].sql, status);
            invar_assert_message(cases[i].message, __FILE__, __LINE__);
            invar_assert_message("run 1", __FILE__, __LINE__);
        }
    }
}

static void test_diff__survives_segments_that_lie(void **state)
{
    static const char *const forgeries[] = {
        "UPDATE segment SET after_step = 9223372036854775807 WHERE seg = 1",
        "UPDATE segment SET after_step = -9223372036854775807 - 1 WHERE seg = 1",
        "UPDATE segment SET seg = 9223372036854775807 WHERE seg = 1",
        "UPDATE segment SET seg = -5 WHERE seg = 1",
        "UPDATE step SET seg = 9223372036854775807 WHERE seg = 1",
        "UPDATE step SET seg = -9223372036854775807 - 1 WHERE seg = 0",
        "DELETE FROM segment",
    };
    invar_test_ledger spec = {.steps = 12, .crash = 9, .resume = 4};
    char good[512];

    (void)state;
    (void)snprintf(good, sizeof good, "%s", new_path());
    assert_ok(invar_test_ledger_write(good, &spec));
    for (size_t i = 0; i < COUNT(forgeries); i++) {
        const char *bad = copy_of(good);
        invar_diff *diff = NULL;
        tamper(bad, forgeries[i]);
        assert_ok(diff_paths(&diff, good, bad));
        assert_int_equal(diff->step, -1);
        invar_diff_free(diff);
    }
}

static void test_diff__shows_no_raw_text(void **state)
{
    const char *a = new_path(), *b = new_path();
    invar_test_ledger bad = {.steps = 3, .facts = other_program, .n_facts = 1};
    invar_status (*const views[])(FILE *, const invar_diff *) = {print_plain, invar_diff_json,
                                                                 invar_diff_html};
    char sql[512];
    invar_diff *diff;
    char *text;

    (void)state;
    bad.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 1, "rollout.tokens", 0, 1};
    assert_ok(invar_test_ledger_write(a, &(invar_test_ledger){.steps = 3}));
    assert_ok(invar_test_ledger_write(b, &bad));
    for (int i = 0; i < 2; i++) {
        (void)snprintf(sql, sizeof sql,
                       "UPDATE point SET name = '%s', phase = '%s', op = '%s' WHERE ord = 0; "
                       "UPDATE fact SET value = '%s' || value, key = key || '%s'; "
                       "UPDATE series SET name = name || '%s'; UPDATE run SET name = '%s', "
                       "uuid = '$(reboot)'",
                       "\x1b<script>", "\xff", "\xe2\x80\xae", "<script>", "\x9b", "\x07",
                       "\x1b<script>");
        tamper(i ? b : a, sql);
    }
    // The four characters \x1b must not be printed like the escape character.
    tamper(a, "UPDATE fact SET value = '\\x1b' WHERE key LIKE 'tree%'");
    tamper(b, "UPDATE fact SET value = char(27) WHERE key LIKE 'tree%'");
    diff = diff_files(a, b);
    assert_int_equal(diff->facts.count, 2);
    assert_string_equal(diff->facts.items[1].a, "\\x5cx1b");
    assert_string_equal(diff->facts.items[1].b, "\\x1b");
    assert_string_equal(diff->culprit->name, "\\x1b<script>");
    assert_string_equal(diff->culprit->phase, "\\xff");
    for (size_t i = 0; i < COUNT(views); i++) {
        text = text_of(diff, views[i]);
        assert_null(strpbrk(text, "\x1b\x07\x9b\xff"));
        assert_null(strstr(text, "\xe2\x80\xae"));
        assert_null(strstr(text, "$(reboot) --step"));
        if (views[i] == invar_diff_html)
            assert_null(strstr(text, "b<script"));
        free(text);
    }
    invar_diff_free(diff);
}

static void test_diff__cuts_between_characters(void **state)
{
    const char *a = new_path(), *b = new_path();
    invar_test_ledger bad = {.steps = 2, .facts = other_program, .n_facts = 1};
    invar_diff *diff;
    char *text;

    (void)state;
    bad.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 1, "rollout.tokens", 0, 1};
    assert_ok(invar_test_ledger_write(a, &(invar_test_ledger){.steps = 2}));
    assert_ok(invar_test_ledger_write(b, &bad));
    for (int i = 0; i < 2; i++) // one byte, then three-byte characters
        tamper(i ? b : a,
               "UPDATE point SET name = 'x' || replace(hex(zeroblob(4000)), '0', '\u20ac'), "
               "phase = 'xx' || replace(hex(zeroblob(400)), '0', '\u20ac') WHERE ord = 0");
    diff = diff_files(a, b);
    text = text_of(diff, invar_diff_json);
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    json_decref(object);
    free(text);
    text = text_of(diff, print_plain);
    object = json_pack("s", text); // json_pack rejects invalid UTF-8
    assert_non_null(object);
    json_decref(object);
    free(text);
    invar_diff_free(diff);
}

/* ---- printed formats ------------------------------------------------------------------------- */

static invar_diff *diff_diverged(void)
{
    invar_test_ledger a = {.steps = 40}, b = {.steps = 38, .facts = other_program, .n_facts = 1};

    b.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 17, "layer.0.mlp.out", 0, 1};
    b.faults[1] = (invar_test_fault){INVAR_TEST_ABORTED, 17, NULL, 2, 0};
    return diff_specs(&a, &b);
}

static void test_diff__text(void **state)
{
    invar_diff *diff = diff_diverged();
    char *text = text_of(diff, print_plain);
    static const char *const parts[] = {
        "different: first at step 17, point layer.0.mlp.out (forward, layer 0), its inputs",
        "\nfacts: 1 differ, 27 equal\n",
        "  build  binary  00112233445566778899aabbccddeeff | ff\n",
        "\nstep 17: same data: yes, same random numbers: yes, same weights before it: yes\n",
        "\npoints: 11 differ, 4 equal\n",
        "  rollout     2 equal\n",
        "  forward     5 of 7 differ, layer 0-1\n",
        "> layer.0.mlp.out ",
        "begins here\n",
        "\nsamples: 1 differ, 7 equal\n",
        "  sample 2     prompt 2        finish\n",
        "\nplug-in replies: 1 equal\n",
        "\ncompared: 18 steps (0-17, by chains), 15 points, ",
        "  only A has 2 other steps\n",
        " --step 17\n",
    };

    (void)state;
    for (size_t i = 0; i < COUNT(parts); i++)
        assert_has(text, parts[i]);
    assert_int_equal(lines_with(text, "begins here"), 1);
    assert_int_equal(lines_with(text, "  invar ledger show "), 2);
    assert_null(strchr(text, '\x1b'));
    free(text);
    invar_diff_free(diff);
}

static void test_diff__color(void **state)
{
    invar_diff *diff = diff_diverged();
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    (void)state;
    assert_ok(invar_diff_print(stream, diff, true));
    fclose(stream);
    assert_int_equal(strncmp(text, "\x1b[31mdifferent", 14), 0);
    free(text);
    invar_diff_free(diff);
}

static void test_diff__json(void **state)
{
    invar_diff *diff = diff_diverged();
    char *text = text_of(diff, invar_diff_json);
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, NULL);

    (void)state;
    assert_non_null(object);
    assert_string_equal(json_string_value(json_object_get(object, "verdict")), "different");
    assert_int_equal(json_integer_value(json_object_get(object, "step")), 17);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(object, "culprit"), "name")),
        "layer.0.mlp.out");
    assert_int_equal(json_array_size(json_object_get(object, "points")), diff->points.count);
    assert_int_equal(json_array_size(json_object_get(object, "metrics")), diff->metrics.count);
    assert_int_equal(json_array_size(json_object_get(object, "groups")), diff->groups.count);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(object, "compared"), "only_a")), 2);
    assert_true(json_is_null(json_object_get(object, "self")));
    json_decref(object);
    free(text);
    invar_diff_free(diff);
}

static void test_diff__html(void **state)
{
    invar_diff *diff = diff_diverged();
    char *text = text_of(diff, invar_diff_html);

    (void)state;
    assert_int_equal(strncmp(text, "<!DOCTYPE html>", 15), 0);
    assert_has(text, "<title>Invar diff</title>");
    assert_has(text, "\"culprit\":{\"name\":\"layer.0.mlp.out\"");
    assert_has(text, "\"texts\":{\"metrics\":[");
    assert_has(text, "--run0:"); // the page contains its style sheets
    assert_null(strstr(text, "{{"));
    free(text);
    invar_diff_free(diff);
}

static void test_diff__long_lists_are_cut(void **state)
{
    enum { MANY = 60 };
    static char names[MANY][8];
    invar_ledger_metric a[MANY], b[MANY];
    invar_diff *diff;
    char *text;

    (void)state;
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(names[i], sizeof names[i], "m/%02d", i);
        a[i] = (invar_ledger_metric){names[i], i};
        b[i] = (invar_ledger_metric){names[i], i + 1};
    }
    diff = diff_one_step(&(step_spec){three_points, 3, a, MANY, 0, NULL},
                         &(step_spec){three_points, 3, b, MANY, 0, NULL});
    text = text_of(diff, print_plain);
    assert_int_equal(lines_with(text, "\n  m/"), 40);
    assert_has(text, "  ... and 20 more; --json has all\n");
    free(text);
    text = text_of(diff, invar_diff_json);
    assert_int_equal(lines_with(text, "\"m/"), MANY);
    free(text);
    invar_diff_free(diff);
}

static void test_diff__stream_that_is_full(void **state)
{
    invar_diff *diff = diff_diverged();
    FILE *full = fopen("/dev/full", "w");

    (void)state;
    assert_non_null(full);
    assert_fails(invar_diff_print(full, diff, false), INVAR_E_IO, "cannot write the diff");
    clearerr(full);
    assert_fails(invar_diff_json(full, diff), INVAR_E_IO, "cannot write the diff");
    clearerr(full);
    assert_fails(invar_diff_html(full, diff), INVAR_E_IO, "cannot write the page");
    fclose(full);
    invar_diff_free(diff);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_diff__every_allocation_fails_once(void **state)
{
    const char *a = new_path(), *b = new_path();
    invar_test_ledger bad = {.steps = 9, .facts = other_program, .n_facts = 1};
    invar_status status = INVAR_E_NOMEM;
    invar_diff *diff = NULL;
    faulty f = {0};

    (void)state;
    bad.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 5, "embed.out", 0, 1};
    assert_ok(invar_test_ledger_write(a, &(invar_test_ledger){.steps = 9, .crash = 4}));
    assert_ok(invar_test_ledger_write(b, &bad));
    invar_allocator_set(&(invar_allocator){faulty_alloc, faulty_free, &f});
    invar_ledger *x = open_read(a), *y = open_read(b);
    for (int n = 1; status != INVAR_OK; n++) {
        int before = f.live;
        f.calls = 0;
        f.fail_at = n;
        status = invar_diff_runs(&diff, x, 1, y, 1);
        if (status != INVAR_OK) {
            assert_int_equal(status, INVAR_E_NOMEM);
            assert_int_equal(f.live, before);
            assert_true(n < 100);
        }
    }
    assert_true(f.calls > 10);
    assert_int_equal(diff->step, 5);
    invar_diff_free(diff);
    invar_ledger_close(x);
    invar_ledger_close(y);
    assert_int_equal(f.live, 0);
    invar_allocator_set(NULL);
}

static int json_calls, json_fails;

static void *failing_json_alloc(size_t bytes)
{
    return ++json_calls == json_fails ? NULL : malloc(bytes);
}

static void test_diff__no_memory_is_no_damage(void **state)
{
    invar_test_ledger spec = {.steps = 2};
    int64_t a = add_shared_run(&spec), b = add_shared_run(&spec);
    invar_status status = INVAR_E_NOMEM;
    invar_diff *diff = NULL;

    (void)state;
    json_set_alloc_funcs(failing_json_alloc, free);
    for (json_fails = 1; status != INVAR_OK; json_fails++) {
        json_calls = 0;
        status = invar_diff_runs(&diff, shared, a, shared, b);
        if (status != INVAR_OK)
            assert_int_equal(status, INVAR_E_NOMEM);
        assert_true(json_fails < 1000);
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(json_calls > 30);
    invar_diff_free(diff);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diff__structure),
        cmocka_unit_test(test_diff__points_of_one_side),
        cmocka_unit_test(test_diff__looks_through_finer_points),
        cmocka_unit_test(test_diff__reshaped_input_hides_the_place),
        cmocka_unit_test(test_diff__inputs_of_both_sides_count),
        cmocka_unit_test(test_diff__points_without_inputs_begin_once),
        cmocka_unit_test(test_diff__foreign_runs_are_not_replayed),
        cmocka_unit_test(test_diff__fused_calls_and_their_parts),
        cmocka_unit_test(test_diff__groups_are_of_a_phase_and_layer_once),
        cmocka_unit_test(test_diff__initial_weights_are_compared_not_their_version),
        cmocka_unit_test(test_diff__what_is_not_recorded_is_not_the_same),
        cmocka_unit_test(test_diff__whole_names),
        cmocka_unit_test(test_diff__new_source_hides_the_place),
        cmocka_unit_test(test_diff__finer_points_do_not_decide),
        cmocka_unit_test(test_diff__metrics_by_bits),
        cmocka_unit_test(test_diff__without_digests),
        cmocka_unit_test(test_diff__refuses_what_contradicts_itself),
        cmocka_unit_test(test_diff__survives_segments_that_lie),
        cmocka_unit_test(test_diff__shows_no_raw_text),
        cmocka_unit_test(test_diff__cuts_between_characters),
        cmocka_unit_test(test_diff__text),
        cmocka_unit_test(test_diff__color),
        cmocka_unit_test(test_diff__json),
        cmocka_unit_test(test_diff__html),
        cmocka_unit_test(test_diff__long_lists_are_cut),
        cmocka_unit_test(test_diff__stream_that_is_full),
        cmocka_unit_test(test_diff__every_allocation_fails_once),
        cmocka_unit_test(test_diff__no_memory_is_no_damage),
    };

    return cmocka_run_group_tests(tests, setup_shared, teardown_shared);
}
