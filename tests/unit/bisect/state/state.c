/*
 * state.c - tests of the state file of a bisect.
 *
 * Case and trials must read back as they were written. A file truncated at any byte must lose only
 * its last line; damaged lines are rejected. Control: the undamaged file opens again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/state/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/support.h"

#define GOOD "1111111111111111111111111111111111111111"
#define BAD "2222222222222222222222222222222222222222"
#define TREE "3333333333333333333333333333333333333333"

static char work_folder[400] = INVAR_TEST_WORK "/state-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(work_folder));
    return 0;
}

static const char *folder_named(const char *name)
{
    static char path[512];

    (void)snprintf(path, sizeof path, "%s/%s", work_folder, name);
    return path;
}

static const char *const paths[] = {"engine", "a b", "c\\d\ne", NULL};
static const char *const flags[] = {"--lr", "1e-3", "", NULL};

static invar_bisect_case make_case(void)
{
    return (invar_bisect_case){.repo = "/tmp/a repository\\with\nodd names/.git",
                               .good = GOOD,
                               .bad = BAD,
                               .first_parent = true,
                               .paths = paths,
                               .question = {.kind = INVAR_CRITERION_CHAIN, .until = 9, .layer = -1},
                               .recipe = "recipes/moe.ini",
                               .recipe_text = "[model]\n\nseed = 1\n",
                               .flags = flags,
                               .timeout = 12.5};
}

static invar_bisect_state_trial make_trial(int number)
{
    invar_bisect_state_trial t = {.tree = TREE, .attempt = number % 2};

    (void)snprintf(t.trial.commit, sizeof t.trial.commit, "%040d", number / 2);
    t.trial.role = number ? "search" : "good end";
    t.trial.verdict = number % 3 == 2 ? "skip" : "good";
    t.trial.source = "ran";
    t.trial.diverged_at = number - 1;
    t.trial.exit_code = number;
    t.trial.build_s = 0.25 * number;
    if (number % 3 != 2)
        (void)snprintf(t.trial.value, sizeof t.trial.value, "value-%d", number);
    (void)snprintf(t.trial.ledger, sizeof t.trial.ledger, "/tmp/a b/%d.db", number);
    (void)snprintf(t.trial.failure_reason, sizeof t.trial.failure_reason,
                   number % 3 == 2 ? "why\nnot \\ so" : "");
    return t;
}

static void check_trials(const invar_bisect_state *state, size_t expected)
{
    const invar_bisect_state_trial *trials = state->trials;

    assert_int_equal(state->count, expected);
    for (size_t i = 0; i < state->count; i++) {
        invar_bisect_state_trial t = make_trial((int)i);
        assert_string_equal(trials[i].trial.commit, t.trial.commit);
        assert_string_equal(trials[i].trial.role, t.trial.role);
        assert_string_equal(trials[i].trial.verdict, t.trial.verdict);
        assert_string_equal(trials[i].trial.value, t.trial.value);
        assert_string_equal(trials[i].trial.ledger, t.trial.ledger);
        assert_string_equal(trials[i].trial.failure_reason, t.trial.failure_reason);
        assert_int_equal(trials[i].attempt, t.attempt);
        assert_int_equal(trials[i].trial.diverged_at, t.trial.diverged_at);
        assert_int_equal(trials[i].trial.exit_code, t.trial.exit_code);
        assert_true(trials[i].trial.build_s == t.trial.build_s);
    }
}

static void write_trials(invar_bisect_state *state, int count)
{
    for (int i = 0; i < count; i++) {
        invar_bisect_state_trial t = make_trial(i);
        assert_ok(invar_bisect_state_add(state, &t));
    }
}

/* ---- writing and reading --------------------------------------------------------------------- */

static void test_state__case_comes_back(void **unused)
{
    invar_bisect_case spec = make_case();
    const invar_bisect_case *read_case;
    invar_bisect_state *state;

    (void)unused;
    assert_ok(invar_bisect_state_open(&state, folder_named("case"), &spec));
    read_case = &state->what;
    assert_string_equal(read_case->repo, spec.repo);
    assert_string_equal(read_case->good, GOOD);
    assert_string_equal(read_case->bad, BAD);
    assert_true(read_case->first_parent);
    assert_false(read_case->all_changes);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(read_case->paths[i] == NULL, paths[i] == NULL);
        assert_int_equal(read_case->flags[i] == NULL, flags[i] == NULL);
        if (paths[i])
            assert_string_equal(read_case->paths[i], paths[i]);
        if (flags[i])
            assert_string_equal(read_case->flags[i], flags[i]);
    }
    assert_null(read_case->skip);
    assert_null(read_case->run);
    assert_int_equal(read_case->question.until, 9);
    assert_string_equal(state->recipe, spec.recipe_text);
    assert_true(read_case->timeout == 12.5);
    invar_bisect_state_close(state);
}

static void test_state__goes_on_where_it_was(void **unused)
{
    invar_bisect_case spec = make_case();
    invar_bisect_state *state;

    (void)unused;
    assert_ok(invar_bisect_state_open(&state, folder_named("again"), &spec));
    assert_int_equal(state->until, -1);
    write_trials(state, 7);
    assert_ok(invar_bisect_state_set_until(state, 3));
    check_trials(state, 7);
    invar_bisect_state_close(state);
    assert_ok(invar_bisect_state_open(&state, folder_named("again"), &spec));
    check_trials(state, 7);
    assert_int_equal(state->until, 3);
    assert_false(state->finished);
    assert_ok(invar_bisect_state_finish(state));
    invar_bisect_state_close(state);
    assert_ok(invar_bisect_state_open(&state, folder_named("again"), &spec));
    assert_true(state->finished);
    invar_bisect_state_close(state);
}

static void test_state__another_question_is_another_file(void **unused)
{
    invar_bisect_case spec = make_case();
    invar_bisect_state *a, *b, *c;

    (void)unused;
    assert_ok(invar_bisect_state_open(&a, folder_named("two"), &spec));
    spec.question.until = 10;
    assert_ok(invar_bisect_state_open(&b, folder_named("two"), &spec));
    spec.recipe_text = "[model]\n\nseed = 2\n";
    assert_ok(invar_bisect_state_open(&c, folder_named("two"), &spec));
    assert_string_not_equal(a->id, b->id);
    assert_string_not_equal(b->id, c->id);
    invar_bisect_state_close(a);
    invar_bisect_state_close(b);
    invar_bisect_state_close(c);
}

static void test_state__other_data_is_another_question(void **unused)
{
    invar_bisect_case spec = make_case();
    invar_bisect_state *a, *b, *c;
    char data[600], recipe[700];

    (void)unused;
    (void)snprintf(data, sizeof data, "%s/prompts.jsonl", work_folder);
    (void)snprintf(recipe, sizeof recipe, "[rollout]\nprompt-data = %s\n", data);
    spec.recipe_text = recipe;
    assert_ok(invar_file_write(data, "one", 3));
    assert_ok(invar_bisect_state_open(&a, folder_named("data"), &spec));
    invar_bisect_state_close(a);
    // Control: the data is unchanged.
    assert_ok(invar_bisect_state_open(&a, folder_named("data"), &spec));
    assert_ok(invar_file_write(data, "other", 5));
    assert_ok(invar_bisect_state_open(&b, folder_named("data"), &spec));
    assert_string_not_equal(a->id, b->id);
    spec = a->what; // a case from a log has the digest of the data at that time
    spec.recipe_text = a->recipe;
    assert_ok(invar_bisect_state_open(&c, folder_named("log"), &spec));
    assert_string_equal(a->id, c->id);
    invar_bisect_state_close(a);
    invar_bisect_state_close(b);
    invar_bisect_state_close(c);
}

/* ---- kills and damage ------------------------------------------------------------------------ */

static void test_state__a_cut_loses_only_the_last_line(void **unused)
{
    invar_bisect_case spec = make_case();
    char path[512];
    invar_bisect_state *state;
    size_t bytes, head;
    char *text;

    (void)unused;
    assert_ok(invar_bisect_state_open(&state, folder_named("cut"), &spec));
    (void)snprintf(path, sizeof path, "%.500s", state->path);
    write_trials(state, 4);
    invar_bisect_state_close(state);
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    head = (size_t)(strstr(text, "\n\n") - text) + 2;
    for (size_t cut = head; cut <= bytes; cut++) {
        size_t lines = 0;
        for (size_t i = head; i < cut; i++)
            lines += text[i] == '\n';
        assert_ok(invar_file_write(path, text, cut));
        assert_ok(invar_bisect_state_open(&state, folder_named("cut"), &spec));
        check_trials(state, lines);
        for (int i = (int)lines; i < 4; i++) { // appended lines must not join the truncated one
            invar_bisect_state_trial t = make_trial(i);
            assert_ok(invar_bisect_state_add(state, &t));
        }
        invar_bisect_state_close(state);
        assert_ok(invar_bisect_state_read(&state, path));
        check_trials(state, 4);
        invar_bisect_state_close(state);
    }
    invar_free(text);
}

static void test_state__damage_is_refused(void **unused)
{
    static const char *const wrong[] = {"rubbish\n", "trial x\n",  "until x\n",
                                        "trial\n",   "until -5\n", "\n"};
    invar_bisect_case spec = make_case();
    char path[512];
    invar_bisect_state *state;
    size_t bytes;
    char *text;

    (void)unused;
    assert_ok(invar_bisect_state_open(&state, folder_named("damage"), &spec));
    (void)snprintf(path, sizeof path, "%.500s", state->path);
    write_trials(state, 2);
    invar_bisect_state_close(state);
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *longer;
        assert_ok(INVAR_ALLOC(longer, bytes + 64, "a test"));
        memcpy(longer, text, bytes);
        (void)snprintf(longer + bytes, 64, "%s", wrong[i]);
        assert_ok(invar_file_write(path, longer, strlen(longer)));
        assert_fails(invar_bisect_state_open(&state, folder_named("damage"), &spec),
                     INVAR_E_CORRUPT, "invar bisect reset");
        invar_free(longer);
    }
    assert_ok(invar_file_write(path, text, bytes)); // control: the undamaged file
    assert_ok(invar_bisect_state_open(&state, folder_named("damage"), &spec));
    invar_bisect_state_close(state);
    invar_free(text);
}

static void test_state__belongs_to_one_process(void **unused)
{
    invar_bisect_case spec = make_case();
    invar_bisect_state *state;
    int exit_status;
    pid_t child;

    (void)unused;
    assert_ok(invar_bisect_state_open(&state, folder_named("busy"), &spec));
    child = fork();
    if (child == 0) {
        invar_bisect_state *second;
        _exit(invar_bisect_state_open(&second, folder_named("busy"), &spec) == INVAR_E_BUSY ? 0
                                                                                            : 1);
    }
    assert_int_equal(waitpid(child, &exit_status, 0), child);
    assert_int_equal(exit_status, 0);
    invar_bisect_state_close(state);
    assert_ok(invar_bisect_state_open(&state, folder_named("busy"), &spec));
    invar_bisect_state_close(state);
}

/* ---- several bisects ------------------------------------------------------------------------- */

static void test_state__newest_and_none(void **unused)
{
    invar_bisect_case spec = make_case();
    char path[INVAR_PATH_SIZE], first[INVAR_PATH_SIZE];
    invar_bisect_state *state, *busy;
    int64_t count;

    (void)unused;
    assert_fails(invar_bisect_state_newest(path, folder_named("many")), INVAR_E_NOTFOUND,
                 "no bisect");
    assert_ok(invar_bisect_state_open(&state, folder_named("many"), &spec));
    invar_bisect_state_close(state);
    assert_ok(invar_bisect_state_newest(first, folder_named("many")));
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    spec.timeout = 1;
    assert_ok(invar_bisect_state_open(&busy, folder_named("many"), &spec));
    assert_ok(invar_bisect_state_newest(path, folder_named("many")));
    assert_string_not_equal(path, first);
    assert_fails(invar_bisect_state_remove_all(&count, folder_named("many")), INVAR_E_BUSY,
                 "at work");
    invar_bisect_state_close(busy);
    assert_ok(invar_bisect_state_remove_all(&count, folder_named("many")));
    assert_true(count > 0);
    assert_ok(invar_bisect_state_remove_all(&count, folder_named("many")));
    assert_int_equal(count, 0);
    assert_fails(invar_bisect_state_newest(path, folder_named("many")), INVAR_E_NOTFOUND,
                 "no bisect");
}

static void test_state__import_takes_what_is_missing(void **unused)
{
    invar_bisect_case spec = make_case();
    invar_bisect_state *from, *to;

    (void)unused;
    assert_ok(invar_bisect_state_open(&from, folder_named("from"), &spec));
    assert_ok(invar_bisect_state_open(&to, folder_named("to"), &spec));
    write_trials(from, 6);
    write_trials(to, 2);
    assert_ok(invar_bisect_state_set_until(from, 5));
    assert_ok(invar_bisect_state_import(to, from));
    check_trials(to, 6);
    assert_int_equal(to->until, 5);
    invar_bisect_state_close(from);
    invar_bisect_state_close(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state__case_comes_back),
        cmocka_unit_test(test_state__goes_on_where_it_was),
        cmocka_unit_test(test_state__another_question_is_another_file),
        cmocka_unit_test(test_state__other_data_is_another_question),
        cmocka_unit_test(test_state__a_cut_loses_only_the_last_line),
        cmocka_unit_test(test_state__damage_is_refused),
        cmocka_unit_test(test_state__belongs_to_one_process),
        cmocka_unit_test(test_state__newest_and_none),
        cmocka_unit_test(test_state__import_takes_what_is_missing),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
