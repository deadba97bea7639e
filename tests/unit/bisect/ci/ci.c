/*
 * ci.c - tests of invar ci: cases, review of pending goldens, chaos settings, reports for services.
 *
 * Accept is repeated after the renames of an interrupted accept and must complete it once. Chaos
 * settings must be a function of seed, case and number, and differ from each other. Reports of
 * results with every byte must stay valid XML, Markdown, JSON and one line per annotation.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/ci/ci.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "bisect/ci/ci_internal.h"
#include "bisect/view/ci.h"
#include "tests/ledger.h"
#include "tests/support.h"

static char folder[256];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/ci.%ld", INVAR_TEST_WORK, (long)getpid());
    return invar_held_folder_make(folder) != INVAR_OK;
}

static int teardown(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) != INVAR_OK;
}

static void create_file(const char *name)
{
    char path[300];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(invar_file_write(path, "", 0));
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void test_ci_cases__a_word_is_a_name_or_a_path(void **state)
{
    invar_ci_case c;

    (void)state;
    assert_ok(invar_ci_case_of(&c, "recipes", "moe"));
    assert_string_equal(c.recipe, "recipes/moe.ini");
    assert_string_equal(c.new_points, "recipes/moe.points.new");
    assert_ok(invar_ci_case_of(&c, "recipes", "x/y/moe.ini"));
    assert_string_equal(c.golden, "x/y/moe.golden");
    assert_string_equal(c.name, "moe");
    assert_ok(invar_ci_case_of(&c, "recipes", "moe.ini"));
    assert_string_equal(c.golden, "moe.golden");
    assert_ok(invar_ci_case_of(&c, "recipes", "/moe.ini"));
    assert_string_equal(c.golden, "/moe.golden");
    assert_fails(invar_ci_case_of(&c, "recipes", "x/moe"), INVAR_E_INVALID, "no recipe");
    assert_fails(invar_ci_case_of(&c, "recipes", ""), INVAR_E_INVALID, "no name");
    assert_fails(invar_ci_case_of(&c, "recipes", ".ini/"), INVAR_E_INVALID, "no recipe");
}

static void test_ci_cases__of_a_folder(void **state)
{
    static const char *const files[] = {"z.ini",     "b.golden",    "a.ini",      "a.golden",
                                        "a.points",  "c.points",    "b.ini.orig", ".hidden.ini",
                                        "notes.txt", "d.golden.new"};
    static const char *const expected[] = {"a", "b", "d", "z"};
    invar_ci_case *cases;
    size_t count;

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        create_file(files[i]);
    assert_ok(invar_ci_cases(&cases, &count, folder));
    assert_int_equal(count, 4);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(cases[i].name, expected[i]);
    assert_true(invar_ci_pending(&cases[2]) && !invar_ci_pending(&cases[0]));
    invar_free(cases);
    assert_fails(invar_ci_cases(&cases, &count, "/nowhere/at/all"), INVAR_E_NOTFOUND, "--cases");
}

/* ---- pending --------------------------------------------------------------------------------- */

/* Writes a run and records its golden and points at these paths. */
static void write_run(const char *golden, const char *points, const invar_test_ledger *spec)
{
    invar_ledger_summary run;
    invar_ledger *ledger;
    invar_ci_side side = {0};
    char path[300];

    (void)snprintf(path, sizeof path, "%s/ledger.db", folder);
    assert_ok(invar_test_ledger_write(path, spec));
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_find(&run, ledger, NULL));
    assert_ok(invar_golden_from_run(&side.golden, ledger, run.run, "a test"));
    assert_ok(invar_golden_points_of_run(&side.points, ledger, run.run));
    assert_ok(invar_golden_write(golden, side.golden));
    assert_ok(invar_golden_points_write(points, side.points));
    invar_ci_side_free(&side);
    invar_ledger_close(ledger);
}

static const invar_test_ledger healthy = {.steps = 9},
                               changed = {
                                   .steps = 9,
                                   .faults = {{INVAR_TEST_DIVERGES, 4, "layer.1.mlp.out", 0, 0.0}}};

static size_t count_accepted(const invar_ci_case *item)
{
    invar_golden *golden;
    size_t count;

    assert_ok(invar_golden_read(&golden, item->golden));
    count = golden->n_accepted;
    invar_golden_free(golden);
    return count;
}

static void test_ci_pending__reviewed_and_accepted(void **state)
{
    invar_ci_result result;
    invar_ci_case c;

    (void)state;
    assert_ok(invar_ci_case_of(&c, folder, "p"));
    write_run(c.golden, c.points, &healthy);
    assert_fails(invar_ci_review(&result, &c), INVAR_E_NOTFOUND, "nothing is pending");
    assert_fails(invar_ci_accept(&c, "why"), INVAR_E_NOTFOUND, "nothing is pending");
    assert_fails(invar_ci_reject(&c), INVAR_E_NOTFOUND, "nothing is pending");
    write_run(c.new_golden, c.new_points, &changed);
    assert_ok(invar_ci_review(&result, &c));
    assert_int_equal(result.verdict, INVAR_CI_CHANGED);
    assert_true(result.first == 4 && result.divergence.known && result.same_identity);
    assert_string_equal(result.divergence.point, "layer.1.mlp.out");
    assert_fails(invar_ci_accept(&c, "  "), INVAR_E_INVALID, "reason");
    assert_fails(invar_ci_accept(&c, "a\tb"), INVAR_E_INVALID, "one line");
    assert_ok(invar_ci_accept(&c, "why"));
    assert_false(invar_ci_pending(&c));
    assert_int_equal(count_accepted(&c), 1);
}

/*
 * An accept that was killed between its renames is repeated: one line of history, matching files.
 */
static void test_ci_pending__accept_goes_on_after_a_kill(void **state)
{
    invar_ci_case c;
    invar_ci_side side;

    (void)state;
    assert_ok(invar_ci_case_of(&c, folder, "k"));
    write_run(c.golden, c.points, &healthy);
    write_run(c.new_golden, c.new_points, &changed);
    // Killed after the points were renamed, before the golden was.
    assert_int_equal(rename(c.new_points, c.points), 0);
    assert_ok(invar_ci_side_read(&side, c.golden));
    assert_null(side.points);
    invar_ci_side_free(&side);
    assert_ok(invar_ci_accept(&c, "why"));
    assert_int_equal(count_accepted(&c), 1);
    // Killed after the golden was written: its pending copy still exists.
    write_run(c.new_golden, c.new_points, &changed);
    assert_int_equal(rename(c.new_points, c.points), 0);
    assert_ok(invar_ci_accept(&c, "why"));
    assert_int_equal(count_accepted(&c), 1);
    assert_ok(invar_ci_side_read(&side, c.golden));
    assert_non_null(side.points);
    invar_ci_side_free(&side);
    assert_false(invar_ci_pending(&c));
}

/* ---- chaos ----------------------------------------------------------------------------------- */

static void test_ci_chaos__is_drawn_and_never_the_same_twice(void **state)
{
    static const invar_chaos_locales locales = {
        {"C", "tr_TR.utf8", "ca_ES.utf8@with-a-name-of-39-characters"}, 3};
    static invar_chaos chaos, again;
    static invar_chaos_run a, b;
    char seen[64][INVAR_CI_REASON_SIZE];

    (void)state;
    for (int i = 0; i < 64; i++) {
        invar_chaos_generate(&chaos, &locales, 7, "moe", i);
        invar_chaos_compose(&a, &chaos, INVAR_CHAOS_ALL);
        invar_chaos_generate(&again, &locales, 7, "moe", i);
        invar_chaos_compose(&b, &again, INVAR_CHAOS_ALL);
        assert_string_equal(a.description, b.description);
        assert_string_equal(a.flags[0], b.flags[0]);
        assert_non_null(strstr(a.description, "threads "));
        assert_non_null(strstr(a.description, "LC_ALL="));
        // The description is not truncated.
        assert_true(strlen(a.description) + 1 < sizeof a.description);
        memcpy(seen[i], a.description, sizeof seen[i]);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(seen[i], seen[k]);
    }
    invar_chaos_generate(&chaos, &locales, 8, "moe", 0);
    invar_chaos_compose(&a, &chaos, INVAR_CHAOS_ALL);
    assert_string_not_equal(a.description, seen[0]);
    // A single setting brings only the flags that belong to it.
    invar_chaos_compose(&a, &chaos, 1);
    assert_string_equal(a.description, chaos.items[1].description);
    assert_true(strncmp(a.flags[1], "--use-dynamic-batch-size=", 25) == 0);
    assert_true(!a.flags[2] && !a.environment[0] && !a.prefix && !a.same_addresses);
}

/* Lists the locales with a program `locale` that is this script. */
static void list_locales(invar_chaos_locales *out, const char *script)
{
    const char *before = getenv("PATH");
    char path[300], *saved = strdup(before ? before : "/usr/bin:/bin"), search[4096];

    assert_non_null(saved);
    (void)snprintf(path, sizeof path, "%s/locale", folder);
    assert_ok(invar_file_write(path, script, strlen(script)));
    assert_int_equal(chmod(path, 0700), 0);
    (void)snprintf(search, sizeof search, "%s:%s", folder, saved);
    assert_int_equal(setenv("PATH", search, 1), 0);
    assert_ok(invar_chaos_list_locales(out, folder));
    assert_int_equal(setenv("PATH", saved, 1), 0);
    assert_int_equal(unlink(path), 0);
    free(saved);
}

/* Every usable name of the list is found, in its order; other lines are ignored. */
static void test_ci_chaos__finds_locales(void **state)
{
    static const char *const expected[] = {"C", "de_DE.utf8", "ca_ES.utf8@euro", "POSIX"};
    static invar_chaos_locales locales;

    (void)state;
    list_locales(&locales, "#!/bin/sh\n"
                           "[ \"$*\" = -a ] || exit 1\n"
                           "printf 'C\\nde_DE.utf8\\n\\nca_ES.utf8@euro\\n'\n"
                           "printf 'a b\\nx;y\\n1234567890123456789012345678901234567890\\n'\n"
                           "printf POSIX\n");
    assert_int_equal(locales.count, sizeof expected / sizeof *expected);
    for (size_t i = 0; i < locales.count; i++)
        assert_string_equal(locales.names[i], expected[i]);
    list_locales(&locales, "#!/bin/sh\necho C\nexit 1\n");
    assert_int_equal(locales.count, 0);
    list_locales(&locales, "#!/bin/sh\nseq 100\n");
    assert_int_equal(locales.count, INVAR_CHAOS_LOCALES);
    assert_string_equal(locales.names[INVAR_CHAOS_LOCALES - 1], "64");
}

/* ---- services -------------------------------------------------------------------------------- */

/* Returns a result whose texts contain every byte except NUL. */
static invar_ci_result hostile_result(const invar_ci_case *item, char *headline, size_t size)
{
    invar_ci_result r = {.item = item,
                         .verdict = INVAR_CI_CHANGED,
                         .first = 3,
                         .line = 17,
                         .compared = 5,
                         .steps = 5,
                         .divergence = {.known = true, .step = 3, .layer = -1}};

    for (size_t i = 0; i + 1 < size && i < 255; i++)
        headline[i] = (char)(i + 1);
    memcpy(r.headline, headline, 256);
    memcpy(r.reason, headline, 256);
    memcpy(r.varied, headline, 256);
    memcpy(r.divergence.point, headline, 256);
    return r;
}

static char *print_to_text(void (*print)(FILE *out, const invar_ci_result *results, size_t count),
                           const invar_ci_result *results, size_t count)
{
    static char text[1 << 18];
    FILE *stream = fmemopen(text, sizeof text, "w");

    memset(text, 0, sizeof text);
    assert_non_null(stream);
    print(stream, results, count);
    assert_int_equal(fclose(stream), 0);
    return text;
}

static void test_ci_view__is_safe_for_any_bytes(void **state)
{
    static invar_ci_case item;
    static char bytes[256];
    invar_ci_result r[12];
    int lines = 0;
    json_t *json;

    (void)state;
    r[0] = hostile_result(&item, bytes, sizeof bytes);
    memcpy(item.name, bytes, sizeof item.name);
    memcpy(item.golden, bytes, sizeof bytes);
    for (int i = 1; i < 12; i++)
        r[i] = r[0];
    // XML: no control character, and each & begins a numeric character reference.
    for (const char *at = print_to_text(invar_ci_junit, r, 1); *at; at++) {
        assert_true(*at == '\n' || (unsigned char)*at >= 0x20);
        if (*at == '&')
            assert_true(at[1] == '#' && strspn(at + 2, "0123456789") > 0);
    }
    // Annotations are limited to ten, with one line each.
    for (const char *at = print_to_text(invar_ci_annotations, r, 12); *at; at++) {
        if (*at == '%')
            assert_true(strspn(at + 1, "0123456789ABCDEF") >= 2);
        lines += *at == '\n';
        assert_true(*at == '\n' || (unsigned char)*at >= 0x20);
    }
    assert_int_equal(lines, 10);
    assert_non_null(strstr(print_to_text(invar_ci_markdown, r, 1), "| changed |"));
    json = invar_ci_json(r, 12);
    assert_non_null(json);
    assert_int_equal(json_array_size(json), 12);
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ci_cases__a_word_is_a_name_or_a_path),
        cmocka_unit_test(test_ci_cases__of_a_folder),
        cmocka_unit_test(test_ci_pending__reviewed_and_accepted),
        cmocka_unit_test(test_ci_pending__accept_goes_on_after_a_kill),
        cmocka_unit_test(test_ci_chaos__is_drawn_and_never_the_same_twice),
        cmocka_unit_test(test_ci_chaos__finds_locales),
        cmocka_unit_test(test_ci_view__is_safe_for_any_bytes),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
