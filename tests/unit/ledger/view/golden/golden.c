/*
 * golden.c - tests of golden files: recording, comparing, locating a divergence, parsing.
 *
 * Runs with a planted divergence are compared with the golden of 20 healthy steps; the first step
 * and point must be those of the fault. Golden files must read back to the same bytes, and changed
 * bytes must be rejected with their line. Control: longer, shorter and resumed runs are equal.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/golden/golden.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "tests/ledger.h"
#include "tests/support.h"

static char folder[256], path[300], points_path[300];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/golden.%ld", INVAR_TEST_WORK, (long)getpid());
    (void)snprintf(path, sizeof path, "%s/a.golden", folder);
    (void)snprintf(points_path, sizeof points_path, "%s/a.points", folder);
    return invar_held_folder_make(folder) != INVAR_OK;
}

static int teardown(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) != INVAR_OK;
}

/* The golden of a run, and the points of its steps. */
typedef struct golden_run {
    invar_golden *golden;
    invar_golden_points *points;
} golden_run;

static invar_ledger *write_ledger(const invar_test_ledger *spec, int64_t *run_out)
{
    invar_ledger_summary summary;
    invar_ledger *ledger = NULL;
    char file[300];

    (void)snprintf(file, sizeof file, "%s/ledger.db", folder);
    assert_ok(invar_test_ledger_write(file, spec));
    assert_ok(invar_ledger_open(&ledger, file, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_find(&summary, ledger, NULL));
    *run_out = summary.run;
    return ledger;
}

static golden_run golden_run_of(const invar_test_ledger *spec)
{
    golden_run s;
    int64_t run;
    invar_ledger *ledger = write_ledger(spec, &run);

    assert_ok(invar_golden_from_run(&s.golden, ledger, run, "a test"));
    assert_ok(invar_golden_points_of_run(&s.points, ledger, run));
    invar_ledger_close(ledger);
    return s;
}

static void golden_run_release(golden_run *s)
{
    invar_golden_free(s->golden);
    invar_golden_points_free(s->points);
}

/* Compares a run with the golden of 20 healthy steps; *place, if not NULL, is the divergence. */
static invar_golden_comparison compare_with_healthy(const invar_test_ledger *spec,
                                                    invar_golden_divergence *place)
{
    golden_run was = golden_run_of(&(invar_test_ledger){.steps = 20}), is = golden_run_of(spec);
    invar_golden_comparison c;

    invar_golden_compare(&c, was.golden, is.golden);
    if (place)
        assert_ok(invar_golden_localize(place, was.points, is.points, c.first));
    golden_run_release(&was);
    golden_run_release(&is);
    c.ops_differ = 0; // their names were freed with the golden
    return c;
}

static void test_golden__says_where_a_run_leaves_it(void **state)
{
    const invar_test_fault other = {INVAR_TEST_DIVERGES, 7, "layer.1.mlp.out", 0, 0.0};
    invar_golden_comparison c = compare_with_healthy(&(invar_test_ledger){.steps = 20}, NULL);

    (void)state;
    assert_int_equal(c.verdict, INVAR_GOLDEN_SAME);
    assert_true(c.first == -1 && c.compared == 20 && c.steps == 20 && c.same_identity &&
                c.same_manifest);
    // Control: a longer, a shorter and a resumed run are compared over the common steps.
    c = compare_with_healthy(&(invar_test_ledger){.steps = 30}, NULL);
    assert_true(c.verdict == INVAR_GOLDEN_SAME && c.compared == 20);
    c = compare_with_healthy(&(invar_test_ledger){.steps = 5}, NULL);
    assert_true(c.verdict == INVAR_GOLDEN_SAME && c.compared == 5 && c.steps == 20);
    c = compare_with_healthy(&(invar_test_ledger){.steps = 20, .crash = 13, .resume = 10}, NULL);
    assert_true(c.verdict == INVAR_GOLDEN_SAME && c.compared == 20);
    c = compare_with_healthy(&(invar_test_ledger){.steps = 20, .faults = {other}}, NULL);
    assert_true(c.verdict == INVAR_GOLDEN_CHANGED && c.first == 7 && c.same_identity &&
                !c.only_loss);
    c = compare_with_healthy(&(invar_test_ledger){.steps = 20, .seed = 9}, NULL);
    assert_true(c.verdict == INVAR_GOLDEN_CHANGED && c.first == 0 && !c.same_identity);
}

/* A difference of the loss bits alone is found, and so is a loss on one side only. */
static void test_golden__compares_the_loss(void **state)
{
    golden_run was = golden_run_of(&(invar_test_ledger){.steps = 3});
    golden_run is = golden_run_of(&(invar_test_ledger){.steps = 3});
    invar_golden_comparison c;

    (void)state;
    assert_true(is.golden->steps[1].has_loss);
    is.golden->steps[1].loss ^= 1;
    invar_golden_compare(&c, was.golden, is.golden);
    assert_true(c.verdict == INVAR_GOLDEN_CHANGED && c.first == 1 && c.only_loss);
    is.golden->steps[1].has_loss = was.golden->steps[1].has_loss = false;
    invar_golden_compare(&c, was.golden, is.golden);
    assert_int_equal(c.verdict, INVAR_GOLDEN_SAME);
    was.golden->steps[2].has_loss = false;
    invar_golden_compare(&c, was.golden, is.golden);
    assert_true(c.first == 2 && c.only_loss);
    is.golden->n_steps = 0;
    invar_golden_compare(&c, was.golden, is.golden);
    assert_true(c.verdict == INVAR_GOLDEN_NOTHING && c.compared == 0);
    golden_run_release(&was);
    golden_run_release(&is);
}

static void test_golden__names_ops_that_differ(void **state)
{
    const invar_ledger_fact old[] = {{"op", "add", "1"}, {"op", "gone", "4"}, {"op", "mul", "1"}};
    const invar_ledger_fact new[] = {{"op", "add", "2"}, {"op", "mul", "1"}, {"op", "new", "1"}};
    golden_run was = golden_run_of(&(invar_test_ledger){.steps = 1, .facts = old, .n_facts = 3});
    golden_run is = golden_run_of(&(invar_test_ledger){.steps = 1, .facts = new, .n_facts = 3});
    invar_golden_comparison c;

    (void)state;
    invar_golden_compare(&c, was.golden, is.golden);
    assert_int_equal(c.ops_differ, 3);
    assert_string_equal(c.ops[0].name, "add");
    assert_string_equal(c.ops[0].old_revision, "1");
    assert_string_equal(c.ops[0].new_revision, "2");
    assert_true(strcmp(c.ops[1].name, "gone") == 0 && !c.ops[1].new_revision);
    assert_true(strcmp(c.ops[2].name, "new") == 0 && !c.ops[2].old_revision);
    golden_run_release(&was);
    golden_run_release(&is);
}

static void test_golden__localises_without_the_good_run(void **state)
{
    const invar_test_fault other = {INVAR_TEST_DIVERGES, 7, "layer.1.mlp.out", 0, 0.0};
    char text[INVAR_GOLDEN_HEADLINE];
    invar_golden_divergence place;
    golden_run was, is;

    (void)state;
    (void)compare_with_healthy(&(invar_test_ledger){.steps = 20, .faults = {other}}, &place);
    assert_true(place.known && place.exact && place.step == 7 && place.n_changes == 0);
    assert_string_equal(place.point, "layer.1.mlp.out");
    assert_int_equal(place.layer, 1);
    assert_string_not_equal(place.was, place.is);
    assert_true(place.equal > 0 && place.equal + place.different <= INVAR_TEST_LEDGER_POINTS);
    invar_golden_divergence_describe(text, &place, 7);
    assert_non_null(strstr(text, "step 7, point layer.1.mlp.out ("));
    // Late in a run, points are recorded for some steps only, so the location is not exact.
    was = golden_run_of(&(invar_test_ledger){.steps = 140});
    is = golden_run_of(&(invar_test_ledger){
        .steps = 140, .faults = {{INVAR_TEST_DIVERGES, 113, "layer.1.mlp.out", 0, 0.0}}});
    assert_int_equal(was.points->n_values, 102);
    assert_ok(invar_golden_localize(&place, was.points, is.points, 113));
    assert_true(place.known && !place.exact && place.step == 120);
    invar_golden_divergence_describe(text, &place, 113);
    assert_non_null(strstr(text, "as step 120 shows"));
    assert_ok(invar_golden_localize(&place, was.points, is.points, 133));
    assert_true(!place.known && place.step == -1);
    golden_run_release(&was);
    golden_run_release(&is);
}

static void test_golden__names_changes_of_structure(void **state)
{
    golden_run was = golden_run_of(&(invar_test_ledger){.steps = 2});
    golden_run is = golden_run_of(&(invar_test_ledger){.steps = 2});
    invar_golden_point *points = is.points->points, moved = points[3];
    invar_golden_divergence place;

    (void)state;
    points[2].name = "another";
    points[3] = points[4];
    points[4] = moved;
    points[6].shape = "[7]";
    assert_ok(invar_golden_localize(&place, was.points, is.points, 0));
    assert_int_equal(place.n_changes, 4);
    assert_non_null(strstr(place.changes[0], "not there any more"));
    assert_non_null(strstr(place.changes[1], "comes earlier"));
    assert_non_null(strstr(place.changes[2], "shape [7], was ["));
    assert_string_equal(place.changes[3], "another: is new");
    golden_run_release(&was);
    golden_run_release(&is);
}

/* A golden that is written and read prints the same bytes and keeps its history. */
static void test_golden__comes_back_from_its_files(void **state)
{
    invar_golden *golden, *before = NULL;
    invar_golden_points *points;
    char *first, *second;
    size_t first_bytes, second_bytes;
    int64_t run;
    invar_ledger *ledger = write_ledger(&(invar_test_ledger){.steps = 20}, &run);

    (void)state;
    assert_ok(invar_golden_record(path, ledger, run, "a test"));
    assert_ok(invar_golden_read(&golden, path));
    assert_ok(invar_golden_points_beside(&points, golden, path));
    assert_non_null(points);
    assert_int_equal(points->n_points, 13); // points of level 0
    assert_ok(invar_file_read(&first, &first_bytes, path, 1 << 20));
    assert_ok(invar_golden_print(&second, &second_bytes, golden));
    assert_true(first_bytes == second_bytes && memcmp(first, second, first_bytes) == 0);
    invar_free(first);
    invar_free(second);
    // Recording again keeps the accepted changes. Points of another golden are ignored.
    assert_ok(invar_golden_accept(&before, golden, golden, "A <a@b>, 1234, why"));
    assert_ok(invar_golden_write(path, before));
    assert_int_equal(before->first_line, golden->first_line + 1);
    assert_ok(invar_golden_record(path, ledger, run, "a test"));
    invar_golden_free(golden);
    assert_ok(invar_golden_read(&golden, path));
    assert_int_equal(golden->n_accepted, 1);
    assert_string_equal(golden->accepted[0], "A <a@b>, 1234, why");
    invar_golden_points_free(points);
    golden->steps[19].chain.bytes[0] ^= 1;
    assert_ok(invar_golden_points_beside(&points, golden, path));
    assert_null(points);
    golden->steps[19].chain.bytes[0] ^= 1;
    assert_int_equal(truncate(points_path, 40), 0);
    assert_fails(invar_golden_points_beside(&points, golden, path), INVAR_E_CORRUPT, points_path);
    assert_int_equal(unlink(points_path), 0);
    assert_ok(invar_golden_points_beside(&points, golden, path));
    assert_null(points);
    invar_golden_free(before);
    invar_golden_free(golden);
    invar_ledger_close(ledger);
}

/* ---- invalid files --------------------------------------------------------------------------- */

static bool begins_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/*
 * Changes the first or last character of each line of a valid file. The parser must reject it with
 * a message that names the file. Control: it accepts a letter at the end of a name or a generator,
 * and only there.
 */
static void assert_changes_rejected(bool of_points, const char *text, size_t bytes)
{
    static const struct {
        const char *position;
        char replacement;
    } mutations[] = {
        {"first", 'z'}, {"last", 'G'}, {"first", ' '}, {"last", '\t'}, {"first", '\x01'}};
    const char *line = text;
    char *copy = NULL;
    int n_accepted = 0;
    void *memory;

    assert_ok(invar_alloc(&memory, bytes, 1, "a copy"));
    copy = memory;
    for (size_t i = 0; i < bytes; i++) {
        bool first = i == 0 || text[i - 1] == '\n', last = text[i + 1] == '\n';
        line = first ? text + i : line;
        for (size_t k = 0; k < sizeof mutations / sizeof *mutations; k++) {
            invar_golden_points *points;
            invar_golden *golden;
            if (!(mutations[k].position[0] == 'f' ? first : last) ||
                text[i] == mutations[k].replacement)
                continue;
            memcpy(copy, text, bytes);
            copy[i] = mutations[k].replacement;
            if (of_points ? invar_golden_points_parse(&points, "x", copy, bytes) == INVAR_OK
                          : invar_golden_parse(&golden, "x", copy, bytes) == INVAR_OK) {
                assert_true(begins_with(line, "name ") || begins_with(line, "generator "));
                assert_int_equal(mutations[k].replacement, 'G');
                n_accepted++;
                if (of_points)
                    invar_golden_points_free(points);
                else
                    invar_golden_free(golden);
                continue;
            }
            invar_assert_message("x:", __FILE__, __LINE__);
            invar_error_clear();
        }
    }
    assert_int_equal(n_accepted, of_points ? 1 : 2);
    invar_free(copy);
}

static void test_golden__files_that_are_none(void **state)
{
    golden_run s = golden_run_of(&(invar_test_ledger){.steps = 3});
    const struct {
        const char *text;
        invar_status code;
        const char *message;
    } bad[] = {
        {"", INVAR_E_CORRUPT, "x is empty"},
        {"# invar golden 1\n# a\nidentity 00\n", INVAR_E_UNSUPPORTED, "record it again"},
        {"# invar golden 3\n", INVAR_E_UNSUPPORTED, "version 3"},
        {"# invar golden 2", INVAR_E_CORRUPT, "x:1:"},
        {"# invar golden 02\n", INVAR_E_CORRUPT, "x:1:"},
        {"# invar golden 99999999999999999999\n", INVAR_E_CORRUPT, "x:1:"},
        {"# invar golden 2\r\n", INVAR_E_CORRUPT, "x:1:"},
        {"# invar golden 2\n\xff\n", INVAR_E_CORRUPT, "x:2:"},
        {"# invar golden 2\nname a\n", INVAR_E_CORRUPT, "x:2:"},
    };
    char *text, name[300];
    invar_golden *golden;
    size_t bytes;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(invar_golden_parse(&golden, "x", bad[i].text, strlen(bad[i].text)),
                     bad[i].code, bad[i].message);
    assert_ok(invar_golden_print(&text, &bytes, s.golden));
    assert_changes_rejected(false, text, bytes);
    text[20] = '\0'; // text after a NUL must not be ignored
    assert_fails(invar_golden_parse(&golden, "x", text, bytes), INVAR_E_CORRUPT, "x:2:");
    invar_free(text);
    // The roots of this file do not give its chain.
    s.golden->steps[1].root.bytes[3] ^= 8;
    assert_ok(invar_golden_print(&text, &bytes, s.golden));
    assert_fails(invar_golden_parse(&golden, "x", text, bytes), INVAR_E_CORRUPT, "the roots give");
    invar_free(text);
    assert_ok(invar_golden_points_print(&text, &bytes, s.points));
    assert_changes_rejected(true, text, bytes);
    invar_free(text);
    (void)snprintf(name, sizeof name, "%s/absent", folder);
    assert_fails(invar_golden_read(&golden, name), INVAR_E_NOTFOUND, "absent");
    golden_run_release(&s);
}

static void test_golden__names_of_points(void **state)
{
    char out[64];

    (void)state;
    assert_ok(invar_golden_points_path(out, sizeof out, "a/b.golden"));
    assert_string_equal(out, "a/b.points");
    assert_ok(invar_golden_points_path(out, sizeof out, "a/b.golden.new"));
    assert_string_equal(out, "a/b.points.new");
    assert_ok(invar_golden_points_path(out, sizeof out, ".golden"));
    assert_string_equal(out, ".golden.points");
    assert_ok(invar_golden_points_path(out, sizeof out, "b"));
    assert_string_equal(out, "b.points");
    assert_fails(invar_golden_points_path(out, 8, "a/b.golden"), INVAR_E_INVALID, "too long");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden__says_where_a_run_leaves_it),
        cmocka_unit_test(test_golden__compares_the_loss),
        cmocka_unit_test(test_golden__names_ops_that_differ),
        cmocka_unit_test(test_golden__localises_without_the_good_run),
        cmocka_unit_test(test_golden__names_changes_of_structure),
        cmocka_unit_test(test_golden__comes_back_from_its_files),
        cmocka_unit_test(test_golden__files_that_are_none),
        cmocka_unit_test(test_golden__names_of_points),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
