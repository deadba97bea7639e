/*
 * bisect_report.c - tests of the report of a bisect as text, as JSON and as a page.
 *
 * Each verdict has a result made by hand with hostile texts, which must not become markup or
 * terminal sequences. With INVAR_TEST_PAGES=FOLDER the pages are written to FOLDER, to view them in
 * a browser.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/view/bisect_report.h"
#include "tests/support.h"

#define HOSTILE "</script><script>alert(1)</script> & \"quotes\" 'n' \x1b[31mred\nline \xff"
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { VERDICTS = INVAR_BISECT_STOPPED + 1, TRIALS = 9 };

/* Returns a commit id of equal digits; it stays valid for eight calls. */
static const char *id(char digit)
{
    static char out[8][INVAR_OID_SIZE];
    static int next;
    char *s = out[next++ % 8];

    memset(s, digit, INVAR_OID_SIZE - 1);
    s[INVAR_OID_SIZE - 1] = '\0';
    return s;
}

static void set_text(char *field, const char *text)
{
    memcpy(field, text, strlen(text) + 1);
}

static void fill_commit(invar_repo_commit *c, char digit, const char *subject)
{
    memset(c, 0, sizeof *c);
    set_text(c->id, id(digit));
    set_text(c->tree, id('9'));
    c->n_parents = 1;
    set_text(c->parents[0], id('0'));
    set_text(c->author, "Ada <ada@example.org>");
    c->when = 1767225600;
    set_text(c->subject, subject);
    c->files = 14;
    c->added = 10;
    c->removed = 1;
    c->n_shown = 2;
    set_text(c->shown[0].path, "kernels/fold.c");
    c->shown[0].status = 'M';
    c->shown[0].added = 10;
    c->shown[0].removed = 1;
    set_text(c->shown[1].path, "logo.png");
    c->shown[1].status = 'A';
    c->shown[1].added = -1;
    c->shown[1].removed = -1;
}

static void fill_divergence(invar_divergence *p)
{
    memset(p, 0, sizeof *p);
    p->known = p->op_level = true;
    p->step = 7;
    set_text(p->point, "layer.3.q");
    set_text(p->phase, "forward");
    set_text(p->op, "linear.fwd");
    set_text(p->kind, "act");
    set_text(p->dtype, "bf16");
    set_text(p->shape, "[-1,64]");
    p->layer = 3;
    set_text(p->before, "11111111222222223333333344444444");
    set_text(p->after, "55555555666666667777777788888888");
    p->points_different = 12;
    p->points_equal = 40;
    set_text(p->headline, "different: first at step 7, point layer.3.q");
    set_text(p->ledger_before, "/home/me/shop/runs/a/ledger.db");
    set_text(p->ledger_after, "/tmp/it's here/ledger.db");
}

typedef struct report_fixture {
    invar_bisect_result result;
    invar_bisect_change changes[2];
    invar_repo_commit suspects[2];
    invar_bisect_trial trials[TRIALS];
} report_fixture;

static void fill_trials(report_fixture *s)
{
    static const struct {
        char digit;
        const char *role, *verdict, *value, *source_name;
        int64_t position;
    } trials[TRIALS] = {{'a', "good end", "good", "aaaaaaaa1", "ran", 0},
                        {'b', "bad end", "bad", "bbbbbbbb2", "ran", 40},
                        {'1', "search", "good", "aaaaaaaa1", "program", 20},
                        {'2', "search", "skip", "", "ran", 30},
                        {'3', "search", "third", "cccccccc3", "ran", 31},
                        {'4', "search", "good", "aaaaaaaa1", "tree", 25},
                        {'c', "search", "bad", "bbbbbbbb2", "ran", 28},
                        {'5', "search", "good", "aaaaaaaa1", "state", 27},
                        {'c', "again", "bad", "bbbbbbbb2", "ran", 28}};

    for (int i = 0; i < TRIALS; i++) {
        invar_bisect_trial *t = &s->trials[i];
        set_text(t->commit, id(trials[i].digit));
        t->role = trials[i].role;
        t->verdict = trials[i].verdict;
        t->source = trials[i].source_name;
        set_text(t->value, trials[i].value);
        t->position = trials[i].position;
        t->diverged_at = i == 1 ? 7 : -1;
        t->build_s = 1.5;
        t->run_s = 0.25;
        set_text(t->subject, i == 2 ? "subject of <trial> 2" : "");
    }
    s->trials[3].exit_code = 2;
    set_text(s->trials[3].failure_reason, "exit code 2: fold.c:3: error: " HOSTILE);
}

/* Fills in a result with this verdict. */
static invar_bisect_result *make_result(report_fixture *s, invar_bisect_verdict verdict)
{
    invar_bisect_result *a = &s->result;

    memset(s, 0, sizeof *s);
    fill_trials(s);
    a->verdict = verdict;
    set_text(a->id, "0123456789abcdef0123456789abcdef");
    set_text(a->folder, "/home/me/shop/bisects/0123456789abcdef0123456789abcdef");
    set_text(a->question, "chain at step 7");
    set_text(a->good, id('a'));
    set_text(a->bad, id('b'));
    a->range = 40;
    a->first_diverging_step = 7;
    a->trials = s->trials;
    a->n_trials = TRIALS;
    a->cost.search_trials = 6;
    a->cost.built = 5;
    a->cost.from_tree = 2;
    a->cost.ran = 6;
    a->cost.from_program = 1;
    a->cost.skipped = 1;
    a->cost.build_s = 100;
    a->cost.run_s = 8000;
    a->cost.wall_s = 59.9;
    fill_commit(&s->changes[0].commit, 'c', HOSTILE);
    fill_commit(&s->changes[1].commit, 'd', "kernels: the second change");
    set_text(s->changes[0].parent, id('5'));
    for (int i = 0; i < 2; i++) {
        set_text(s->changes[i].before, i ? "bbbbbbbb2" : "aaaaaaaa1");
        set_text(s->changes[i].after, i ? "cccccccc3" : "bbbbbbbb2");
        fill_divergence(&s->changes[i].divergence);
    }
    fill_commit(&s->suspects[0], 'e', "first suspect");
    fill_commit(&s->suspects[1], 'f', "second suspect");
    if (verdict == INVAR_BISECT_FOUND || verdict == INVAR_BISECT_CHANGES) {
        a->changes = s->changes;
        a->n_changes = verdict == INVAR_BISECT_FOUND ? 1 : 2;
    }
    if (verdict == INVAR_BISECT_FOUND) {
        fill_divergence(&a->divergence);
        a->confirmed = a->has_third_value = true;
    }
    if (verdict == INVAR_BISECT_SUSPECTS) {
        a->suspects = s->suspects;
        a->n_suspects = 2;
        a->all_suspects = 70;
    }
    if (verdict == INVAR_BISECT_NONDETERMINISTIC)
        set_text(a->commit, id('c'));
    if (verdict == INVAR_BISECT_WRONG_END || verdict == INVAR_BISECT_UNTESTABLE) {
        set_text(a->commit, id('a'));
        set_text(a->reason, "exit code 1: " HOSTILE);
    }
    if (verdict == INVAR_BISECT_FIXED)
        set_text(a->base, id('7'));
    return a;
}

static invar_status print_plain(FILE *out, const invar_bisect_result *result)
{
    return invar_bisect_report_print(out, result, false);
}

static invar_status print_colored(FILE *out, const invar_bisect_result *result)
{
    return invar_bisect_report_print(out, result, true);
}

static char *text_of(const invar_bisect_result *result,
                     invar_status (*print)(FILE *, const invar_bisect_result *))
{
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    assert_non_null(stream);
    assert_ok(print(stream, result));
    assert_int_equal(fclose(stream), 0);
    return text;
}

static void assert_has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in:\n%s", part, text);
}

static void assert_lacks(const char *text, const char *part)
{
    if (strstr(text, part))
        fail_msg("'%s' is in:\n%s", part, text);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void test_answer__text_of_a_culprit(void **state)
{
    report_fixture s;
    char *text = text_of(make_result(&s, INVAR_BISECT_FOUND), print_plain);

    (void)state;
    assert_ptr_equal(strstr(text, "found: cccccccccccc </script>"), text); // the first line
    assert_has(text, "\ncommit     cccccccccccccccccccccccccccccccccccccccc\n");
    assert_has(text, "author     Ada <ada@example.org>\n");
    assert_has(text, "date       2026-01-01T00:00:00Z\n");
    assert_has(text, "files      14 changed, 10 lines added, 1 removed\n");
    assert_has(text, "  M kernels/fold.c  +10 -1\n  A logo.png  binary\n  ... and 12 more");
    assert_has(text, "parent     5555555555555555555555555555555555555555\n");
    assert_has(text, "value      aaaaaaaa1 -> bbbbbbbb2\n");
    assert_has(text, "step 7, point layer.3.q (forward, layer 3), op linear.fwd\n");
    assert_has(text, "tensor     act bf16 [-1,64]\n");
    assert_has(text, "before   11111111222222223333333344444444\n");
    assert_has(text, "after    55555555666666667777777788888888\n");
    assert_has(text, "12 points differ, 40 equal at that step; every op's output was recorded\n");
    assert_has(text, "confirmed  yes");
    assert_has(text, "--all-changes");
    assert_has(text, "40 commits, aaaaaaaaaaaa to bbbbbbbbbbbb\n");
    assert_has(text, "they part at step 7\n");
    assert_has(text, "9 trials, 6 of the search; 5 builds in 1 min 40 s; 6 runs in 2 h 13 min; "
                     "2 from the cache; 1 whose program was equal; 1 not testable; ");
    assert_has(text,
               "page       /home/me/shop/bisects/0123456789abcdef0123456789abcdef/answer.html\n");
    assert_has(text, "\n  git show cccccccccccccccccccccccccccccccccccccccc\n");
    assert_has(text,
               "\n  invar diff /home/me/shop/runs/a/ledger.db '/tmp/it'\\''s here/ledger.db'\n");
    assert_lacks(text, "\x1b"); // the subject contains escape sequences
    assert_lacks(text, "\xff");
    free(text);
}

static void test_answer__text_says_only_what_is_known(void **state)
{
    report_fixture s;
    invar_bisect_result *a = make_result(&s, INVAR_BISECT_FOUND);
    char *text;

    (void)state;
    a->confirmed = a->has_third_value = false;
    a->divergence.known = false;
    a->first_diverging_step = -1;
    s.changes[0].commit.files = 2;
    s.changes[0].merge = true;
    s.changes[0].n_untested_before = 3;
    text = text_of(a, print_plain);
    assert_has(text, "confirmed  no");
    assert_has(text, "a merge whose value none of its parents has, or one of 3 commits before it");
    assert_lacks(text, "--all-changes");
    assert_lacks(text, "place");
    assert_lacks(text, "invar diff");
    assert_lacks(text, "they part");
    assert_lacks(text, "more; git show");
    free(text);

    a->divergence.known = true; // the divergence is in a metric, not in a tensor
    a->divergence.before[0] = a->divergence.after[0] = a->divergence.phase[0] =
        a->divergence.op[0] = '\0';
    a->divergence.layer = -1;
    set_text(a->divergence.kind, "metric");
    set_text(a->divergence.point, "train/grad_norm");
    text = text_of(a, print_plain);
    assert_has(text, "step 7, train/grad_norm, not a tensor but metric\n");
    assert_lacks(text, "tensor     ");
    free(text);
}

static void test_answer__every_verdict(void **state)
{
    static const struct {
        const char *name, *line, *more;
    } expected[VERDICTS] = {
        {"found", "found: cccccccccccc ", "git show cccc"},
        {"changes", "changes: 2 changes of the value between aaaaaaaaaaaa and bbbbbbbbbbbb\n",
         "aaaaaaaa -> bbbbbbbb  step 7, point layer.3.q"},
        {"suspects", "suspects: it is one of 70 commits; those between cannot be tested\n",
         "... and 68 more"},
        {"nondeterministic", "nondeterministic: commit cccccccccccc gave two answers",
         "invar diff"},
        {"same-ends", "same-ends: the ends aaaaaaaaaaaa and bbbbbbbbbbbb give the same value\n",
         "--until"},
        {"wrong-end", "wrong-end: the good end aaaaaaaaaaaa is not what it was said to be\n",
         "exit code 1: </script>"},
        {"fixed",
         "fixed: the good end aaaaaaaaaaaa has a fix that the bad end bbbbbbbbbbbb lacks\n",
         "merge base 777777777777 is bad already: swap --good and --bad"},
        {"untestable", "untestable: the good end aaaaaaaaaaaa cannot be built or run\n",
         "exit code 1: </script>"},
        {"stopped", "stopped: after 9 trials\n", "run the same command again to continue"},
    };
    report_fixture s;

    (void)state;
    for (int i = 0; i < VERDICTS; i++) {
        invar_bisect_result *a = make_result(&s, (invar_bisect_verdict)i);
        char *text = text_of(a, print_plain), *colored = text_of(a, print_colored);
        assert_string_equal(invar_bisect_report_verdict(a->verdict), expected[i].name);
        assert_ptr_equal(strstr(text, expected[i].line), text);
        assert_has(text, expected[i].more);
        assert_has(text, "question   chain at step 7\n");
        assert_lacks(text, "\x1b");
        assert_has(colored, "\x1b[");
        free(colored);
        free(text);
    }
}

static void test_answer__a_run_that_leaves_the_question_open(void **state)
{
    report_fixture s;
    invar_bisect_result *a = make_result(&s, INVAR_BISECT_UNTESTABLE);
    char *text;

    (void)state;
    set_text(a->reason, "ledger: the run has no metric 'lss'");
    a->range = 0; // the range was not determined
    text = text_of(a, print_plain);
    assert_has(text,
               "the good end aaaaaaaaaaaa ran, but its ledger does not answer the question\n");
    assert_has(text, "check the names in the question");
    assert_has(text, "range      aaaaaaaaaaaa to bbbbbbbbbbbb\n");
    assert_lacks(text, "--build");
    free(text);
}

static void test_answer__lists(void **state)
{
    report_fixture s;
    char *text = text_of(make_result(&s, INVAR_BISECT_CHANGES), print_plain);

    (void)state;
    assert_has(text, "cccccccccccc  2026-01-01  Ada  </script>");
    assert_has(text, "dddddddddddd  2026-01-01  Ada  kernels: the second change\n");
    assert_has(text, "    bbbbbbbb -> cccccccc  step 7");
    free(text);
    s.result.n_changes = 0;
    text = text_of(&s.result, print_plain);
    assert_has(text, "changes: 0 changes");
    assert_has(text, "gave the same value as its parents");
    free(text);
    text = text_of(make_result(&s, INVAR_BISECT_SUSPECTS), print_plain);
    assert_has(text, "eeeeeeeeeeee  2026-01-01  Ada  first suspect\nffffffffffff");
    free(text);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *json_of(const invar_bisect_result *result)
{
    char *text = text_of(result, invar_bisect_report_json);
    json_error_t error;
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &error);

    if (!object)
        fail_msg("%s in:\n%s", error.text, text);
    free(text);
    return object;
}

static const char *string(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));

    if (!s)
        fail_msg("no text '%s'", key);
    return s;
}

static void assert_integer(const json_t *object, const char *key, int64_t expected)
{
    assert_true(json_is_integer(json_object_get(object, key)));
    assert_int_equal(json_integer_value(json_object_get(object, key)), expected);
}

static void test_answer__json_of_a_culprit(void **state)
{
    report_fixture s;
    json_t *o = json_of(make_result(&s, INVAR_BISECT_FOUND));
    const json_t *c = json_object_get(o, "culprit"), *p = json_object_get(o, "place");
    const json_t *t = json_array_get(json_object_get(o, "trials"), 3);
    const json_t *cost = json_object_get(o, "cost");

    (void)state;
    assert_string_equal(string(o, "verdict"), "found");
    assert_string_equal(string(c, "commit"), id('c'));
    assert_string_equal(string(c, "parent"), id('5'));
    assert_string_equal(string(c, "author"), "Ada <ada@example.org>");
    assert_has(string(c, "subject"), "</script><script>alert(1)</script> & \"quotes\" 'n' ");
    assert_integer(c, "time", 1767225600);
    assert_integer(c, "added", 10);
    assert_integer(c, "removed", 1);
    assert_integer(c, "files_changed", 14);
    assert_string_equal(string(json_array_get(json_object_get(c, "files"), 0), "path"),
                        "kernels/fold.c");
    // A binary file.
    assert_true(
        json_is_null(json_object_get(json_array_get(json_object_get(c, "files"), 1), "added")));
    assert_integer(p, "step", 7);
    assert_integer(p, "layer", 3);
    assert_string_equal(string(p, "op"), "linear.fwd");
    assert_string_equal(string(p, "before"), "11111111222222223333333344444444");
    assert_true(json_is_true(json_object_get(p, "fine")));
    assert_int_equal(json_array_size(json_object_get(o, "trials")), TRIALS);
    assert_string_equal(string(t, "verdict"), "skip");
    assert_integer(t, "exit_code", 2);
    assert_integer(t, "position", 30);
    assert_true(json_is_null(json_object_get(t, "value")));
    assert_has(string(t, "story"), "exit code 2");
    assert_integer(o, "search_trials", 6);
    assert_integer(o, "range", 40);
    assert_true(json_is_true(json_object_get(o, "confirmed")));
    assert_true(json_is_true(json_object_get(o, "third")));
    assert_integer(cost, "built", 5);
    assert_true(json_real_value(json_object_get(cost, "wall_s")) == 59.9);
    assert_string_equal(string(json_object_get(o, "work"), "folder"), s.result.folder);
    json_decref(o);
}

static void test_answer__json_of_every_verdict(void **state)
{
    report_fixture s;

    (void)state;
    for (int i = 0; i < VERDICTS; i++) {
        json_t *o = json_of(make_result(&s, (invar_bisect_verdict)i));
        bool found = i == INVAR_BISECT_FOUND;
        assert_string_equal(string(o, "verdict"),
                            invar_bisect_report_verdict((invar_bisect_verdict)i));
        assert_int_equal(json_is_null(json_object_get(o, "culprit")), !found);
        assert_int_equal(json_is_null(json_object_get(o, "place")), !found);
        assert_int_equal(json_array_size(json_object_get(o, "changes")), s.result.n_changes);
        assert_int_equal(json_array_size(json_object_get(o, "suspects")), s.result.n_suspects);
        json_decref(o);
    }
}

/* ---- the page -------------------------------------------------------------------------------- */

static void save_page(const char *name, const char *page)
{
    const char *folder = getenv("INVAR_TEST_PAGES");
    char path[512];
    FILE *file;

    if (!folder)
        return;
    (void)snprintf(path, sizeof path, "%s/bisect-%s.html", folder, name);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(page, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void test_answer__page_has_the_facts(void **state)
{
    static const char *const facts[] = {
        "<title>Invar bisect</title>",
        "cccccccccccccccccccccccccccccccccccccccc",
        "Ada \\u003cada@example.org>",
        "2026-01-01T00:00:00Z",
        "\"path\":\"kernels/fold.c\",\"status\":\"M\",\"added\":10,",
        "\"point\":\"layer.3.q\"",
        "\"op\":\"linear.fwd\"",
        "\"layer\":3",
        "55555555666666667777777788888888",
        "\"confirmed\":true",
        "\"third\":true",
        "chain at step 7",
        "git show cccc",
        "it'\\\\''s here",
        "exit code 2: fold.c:3: error:",
    };
    report_fixture s;
    invar_bisect_result *a = make_result(&s, INVAR_BISECT_FOUND);
    static char patch[] =
        "diff --git a/x b/x\n@@ -1 +1 @@\n-<b>old</b>\n+new & \"better\"\n same\n";
    char *page;

    a->patch = patch;
    a->patch_cut = true;
    page = text_of(a, invar_bisect_report_html);

    (void)state;
    save_page("found", page);
    for (size_t i = 0; i < COUNT(facts); i++)
        assert_has(page, facts[i]);
    assert_lacks(page, "{{");
    assert_has(page, "\\n-\\u003cb>old\\u003c/b>\\n+new & \\\"better\\\"\\n");
    assert_has(page, "\"patch_cut\":true");
    assert_has(page, "subject of \\u003ctrial> 2");
    assert_lacks(page, "<script>alert");
    assert_has(page, "\\u003c/script>\\u003cscript>alert(1)");
    assert_lacks(page, "\x1b");
    assert_lacks(page, "\xff");
    free(page);
}

static void test_answer__page_of_every_verdict(void **state)
{
    report_fixture s;

    (void)state;
    for (int i = 1; i < VERDICTS; i++) {
        char *page = text_of(make_result(&s, (invar_bisect_verdict)i), invar_bisect_report_html);
        save_page(invar_bisect_report_verdict((invar_bisect_verdict)i), page);
        assert_has(page, invar_bisect_report_verdict((invar_bisect_verdict)i));
        assert_has(page, "</html>");
        assert_lacks(page, "{{");
        assert_lacks(page, "<script>alert");
        free(page);
    }
}

static void test_answer__a_full_disk_is_said(void **state)
{
    invar_status (*const prints[])(FILE *, const invar_bisect_result *) = {
        print_plain, invar_bisect_report_json, invar_bisect_report_html};
    report_fixture s;

    (void)state;
    for (size_t i = 0; i < COUNT(prints); i++) {
        FILE *full = fopen("/dev/full", "w");
        assert_non_null(full);
        assert_fails(prints[i](full, make_result(&s, INVAR_BISECT_FOUND)), INVAR_E_IO,
                     "cannot write the");
        (void)fclose(full);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer__text_of_a_culprit),
        cmocka_unit_test(test_answer__text_says_only_what_is_known),
        cmocka_unit_test(test_answer__every_verdict),
        cmocka_unit_test(test_answer__a_run_that_leaves_the_question_open),
        cmocka_unit_test(test_answer__lists),
        cmocka_unit_test(test_answer__json_of_a_culprit),
        cmocka_unit_test(test_answer__json_of_every_verdict),
        cmocka_unit_test(test_answer__page_has_the_facts),
        cmocka_unit_test(test_answer__page_of_every_verdict),
        cmocka_unit_test(test_answer__a_full_disk_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
