/*
 * runs.c - tests of training runs in a bisect workspace: cached, stopped, failed or incomplete.
 *
 * The built program calls this test program, which then acts as `invar train` (run_as_train). A run
 * is reused only if nothing that may change its result has changed and its record is undamaged;
 * each change and each damage must cause a new run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/bisect/workspace/workspace.h"

#include <signal.h>
#include <time.h>

#include "bisect/workspace/process_tag.h"
#include "ledger/ledger.h"
#include "tests/ledger.h"

/* ---- the program under test ------------------------------------------------------------------ */

static volatile sig_atomic_t terminated;

static void on_term(int number)
{
    (void)number;
    terminated = 1;
}

static const char *flag_value(int argc, char **argv, const char *flag)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], flag) == 0)
            return argv[i + 1];
    }
    return NULL;
}

/*
 * Writes a step every 20 ms until SIGTERM, which ends it like invar train. With `last`, it sends
 * itself SIGTERM at step 2.
 */
static int train_until_signal(const char *path, bool last)
{
    invar_test_ledger spec = {.steps = 100000};
    static const struct timespec nap = {0, 20000000};
    invar_ledger *ledger;

    signal(SIGTERM, on_term);
    if (invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}) != INVAR_OK ||
        invar_test_ledger_begin(ledger, &spec) != INVAR_OK)
        return 2;
    for (int64_t step = 0; !terminated; step++) {
        if (step == 2 && last)
            raise(SIGTERM);
        if (invar_test_ledger_step(ledger, &spec, 0, step) != INVAR_OK)
            return 2;
        nanosleep(&nap, NULL);
    }
    terminated = invar_ledger_finish(ledger, 143, "stopped") == INVAR_OK;
    invar_ledger_close(ledger);
    return terminated ? 143 : 2;
}

/* Acts as PROGRAM train RECIPE --run FOLDER ...; the flag --play selects the behavior. */
static int run_as_train(int argc, char **argv)
{
    const char *folder = flag_value(argc, argv, "--run"), *mode = flag_value(argc, argv, "--play");
    char path[4096];

    mode = mode ? mode : "steps";
    for (int i = 1; i < argc; i++)
        printf("[%s]", argv[i]);
    printf("\nenvironment %s %s, save %s\n", getenv("INVAR_LEDGER") ? "dirty" : "clean",
           getenv("EXTRA") ? getenv("EXTRA") : "none", getenv("INVAR_SAVE"));
    fflush(stdout);
    if (!folder)
        return 129;
    snprintf(path, sizeof path, "%s/ledger.db", folder);
    if (strcmp(mode, "forever") == 0)
        return train_until_signal(path, false);
    if (strcmp(mode, "signalled") == 0)
        return train_until_signal(path, true);
    if (strcmp(mode, "silent") == 0)
        return 0;
    if (strcmp(mode, "refuse") == 0) {
        fputs("key = 1: unknown\n", stderr);
        return 129;
    }
    if (invar_test_ledger_write(path, &(invar_test_ledger){.steps = 3}) != INVAR_OK)
        return 2;
    if (strcmp(mode, "crash") == 0)
        abort();
    return strcmp(mode, "differs") == 0;
}
/* ---- runs ------------------------------------------------------------------------------------ */

static invar_run_request request_for(const invar_revision_build *built, const char *const *flags)
{
    return (invar_run_request){.program = built->path,
                               .binary = built->binary,
                               .recipe = recipe_path,
                               .flags = flags,
                               .until = -1,
                               .timeout = LONG_TIMEOUT};
}

static invar_run_result run_once(fixture *s, const invar_run_request *request)
{
    invar_run_result ran;

    assert_ok(invar_workspace_run(&ran, s->workspace, s->worktree.lock, request));
    return ran;
}

static invar_run_result run_mode(fixture *s, const invar_revision_build *built, const char *mode)
{
    const char *flags[] = {"--play", mode, NULL};
    invar_run_request request = request_for(built, flags);

    return run_once(s, &request);
}

static int64_t last_step(const char *path)
{
    invar_ledger_summary summary;
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_find(&summary, ledger, NULL));
    invar_ledger_close(ledger);
    return summary.last_step;
}

static void test_workshop__run_is_made_once(void **state)
{
    static const char *const flags[] = {"--lr", "1e-3", NULL};
    static const char *const environment[] = {"EXTRA=yes", NULL};
    fixture *s = *state;
    invar_revision_build built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, flags);
    char expected[3 * INVAR_PATH_SIZE];
    invar_run_result a, b;

    setenv("INVAR_LEDGER", "x", 1);
    a = run_once(s, &request);
    unsetenv("INVAR_LEDGER");
    assert_int_equal(a.state, INVAR_RUN_DONE);
    assert_false(a.cached);
    assert_false(a.enough);
    assert_int_equal(a.exit_code, 0);
    assert_int_equal(last_step(a.ledger), 2);
    snprintf(expected, sizeof expected, "[train][%s/recipe.ini][--run][%s/runs/", work_folder,
             workspace_path);
    assert_contains(path_in(a.folder, "run.log"), expected);
    assert_contains(
        path_in(a.folder, "run.log"),
        "[--save][][--load][][--no-report][--lr][1e-3]\nenvironment clean none, save none\n");
    b = run_once(s, &request);
    assert_true(b.cached);
    assert_int_equal(b.state, INVAR_RUN_DONE);
    assert_string_equal(b.ledger, a.ledger);
    assert_true(b.seconds == a.seconds && b.peak_bytes == a.peak_bytes);

    // Every input that may change the result gives another run.
    request.until = 5;
    b = run_once(s, &request);
    assert_false(b.cached);
    assert_contains(path_in(b.folder, "run.log"), "[--no-report][--until][5][--lr]");
    request.until = -1;
    request.name = "again";
    assert_false(run_once(s, &request).cached);
    request.environment = environment;
    b = run_once(s, &request);
    assert_false(b.cached);
    assert_contains(path_in(b.folder, "run.log"), "environment clean yes, save none\n");
    request.prefix = "env  EXTRA=prefix ";
    b = run_once(s, &request);
    assert_false(b.cached);
    assert_contains(path_in(b.folder, "run.log"), "environment clean prefix, save none\n");
    request.flags = flags + 2;
    assert_false(run_once(s, &request).cached);
    assert_true(run_once(s, &request).cached);
    request.no_cache = true;
    assert_false(run_once(s, &request).cached);
    request.no_cache = false;
    assert_true(run_once(s, &request).cached);
    assert_ok(invar_file_write(recipe_path, "[ckpt]\n# more\n", 14));
    assert_false(run_once(s, &request).cached);
}

/*
 * Checkpoints of the recipe are turned off, with the keys that need them, and the tensor parallel
 * size is set to 1, since a trial has one rank.
 */
static void test_workshop__run_stays_in_its_folder(void **state)
{
    static const char recipe[] = "[ckpt]\nsave = runs/x\nsave-interval = 20\nkeep-checkpoints=3\n"
                                 "# trace = no\n[engine]\ndebug-dump-dir   = x\n"
                                 "[perf]\ntensor-model-parallel-size = 2\n";
    static const char *const flags[] = {"--load", "here", NULL};
    fixture *s = *state;
    invar_revision_build built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, flags);
    invar_run_result a;

    assert_ok(invar_file_write(recipe_path, recipe, sizeof recipe - 1));
    a = run_once(s, &request);
    assert_contains(path_in(a.folder, "run.log"),
                    "[--save][][--save-interval][0][--keep-checkpoints][0][--debug-dump-dir][]"
                    "[--tensor-model-parallel-size][1][--no-report][--load][here]\n");
}

/* A change of a file that the recipe reads gives another run. */
static void test_workshop__run_is_made_anew_when_its_files_change(void **state)
{
    static const char format[] = "[rollout]\nprompt-data = %s/data.jsonl@[0:9]\nname = none\n"
                                 "eval-prompt-data = x %s/folder,y z \"%s/a b\"\n"
                                 "chat-template-path = %s/c d\nsave = %s/saved\n";
    fixture *s = *state;
    invar_revision_build built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, NULL);
    char recipe[6 * sizeof work_folder + sizeof format];

    snprintf(recipe, sizeof recipe, format, work_folder, work_folder, work_folder, work_folder,
             work_folder);
    assert_ok(invar_file_write(recipe_path, recipe, strlen(recipe)));
    run_script(NULL, work_folder, "echo 1 >data.jsonl; mkdir folder saved; echo 1 >folder/weights");
    assert_false(run_once(s, &request).cached);
    assert_true(run_once(s, &request).cached);
    run_script(NULL, work_folder, "echo 12 >data.jsonl");
    assert_false(run_once(s, &request).cached);
    assert_true(run_once(s, &request).cached);
    run_script(NULL, work_folder, "echo 1 >'a b'");
    assert_false(run_once(s, &request).cached);
    run_script(NULL, work_folder, "echo 1 >'c d'");
    assert_false(run_once(s, &request).cached);
    assert_true(run_once(s, &request).cached);
    run_script(NULL, work_folder, "echo 12 >folder/weights");
    assert_false(run_once(s, &request).cached);
    run_script(NULL, work_folder, "echo 1 >folder/more");
    assert_false(run_once(s, &request).cached);
    run_script(NULL, work_folder, "rm -r folder");
    assert_false(run_once(s, &request).cached);
    run_script(NULL, work_folder, "echo 1 >saved/checkpoint"); // no run reads this folder
    assert_true(run_once(s, &request).cached);
    assert_ok(invar_file_write(recipe_path, "[ckpt]\n", 7));
}

/* record_mismatch adds --on-mismatch record, unless the user has given that flag. */
static void test_workshop__mismatch_is_recorded(void **state)
{
    static const char *const flags[] = {"--on-mismatch=stop", NULL};
    fixture *s = *state;
    invar_revision_build built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, NULL);
    invar_run_result a;

    assert_false(run_once(s, &request).cached);
    request.record_mismatch = true;
    a = run_once(s, &request);
    assert_false(a.cached);
    assert_contains(path_in(a.folder, "run.log"), "[--no-report][--on-mismatch][record]\n");
    request.flags = flags;
    assert_contains(path_in(run_once(s, &request).folder, "run.log"),
                    "[--no-report][--on-mismatch=stop]\n");
}

static void test_workshop__run_that_differs_is_a_result(void **state)
{
    fixture *s = *state;
    invar_revision_build built = build(s, first, BUILD);
    invar_run_result a = run_mode(s, &built, "differs");

    assert_int_equal(a.state, INVAR_RUN_DONE);
    assert_int_equal(a.exit_code, 1);
    assert_non_null(strstr(a.failure_reason, "exit code 1"));
    a = run_mode(s, &built, "differs");
    assert_true(a.cached);
    assert_int_equal(a.exit_code, 1);
}

static void test_workshop__failed_run_is_made_again(void **state)
{
    static const char *const mode_names[] = {"crash", "refuse", "silent"};
    static const char *const reasons[] = {"killed by signal 6, SIGABRT", "exit code 129: key = 1",
                                          "it ended well, but left no ledger"};
    fixture *s = *state;
    invar_revision_build built = build(s, first, BUILD), missing = built;

    for (int i = 0; i < 3; i++) {
        for (int time_of = 0; time_of < 2; time_of++) {
            invar_run_result a = run_mode(s, &built, mode_names[i]);
            assert_int_equal(a.state, INVAR_RUN_FAILED);
            assert_false(a.cached);
            assert_non_null(strstr(a.failure_reason, reasons[i]));
            assert_contains(path_in(a.folder, "run.log"), "[train]");
        }
    }
    snprintf(missing.path, sizeof missing.path, "%s/none", work_folder);
    assert_int_equal(run_mode(s, &missing, "steps").state, INVAR_RUN_FAILED);
}

static void test_workshop__endless_run_ends(void **state)
{
    static const char *const flags[] = {"--play", "forever", NULL};
    volatile sig_atomic_t stop = 1;
    fixture *s = *state;
    invar_revision_build built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, flags);
    invar_run_result a;

    request.timeout = 0.5;
    a = run_once(s, &request);
    assert_int_equal(a.state, INVAR_RUN_FAILED);
    assert_non_null(strstr(a.failure_reason, "no end within 0.5 s"));
    request.stop = &stop;
    a = run_once(s, &request);
    assert_int_equal(a.state, INVAR_RUN_STOPPED);
    request.timeout = LONG_TIMEOUT;
    assert_int_equal(run_once(s, &request).state, INVAR_RUN_STOPPED);
}

typedef struct step_condition {
    int64_t steps[64];
    int calls;
    int64_t enough;
} step_condition;

static bool enough_steps(void *payload, const char *ledger)
{
    step_condition *w = payload;

    assert_true(w->calls < 64);
    w->steps[w->calls] = last_step(ledger);
    return w->steps[w->calls++] >= w->enough;
}

static void test_workshop__run_ends_when_enough_was_seen(void **state)
{
    static const char *const flags[] = {"--play", "forever", NULL};
    step_condition w = {.enough = 8};
    fixture *s = *state;
    invar_revision_build built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, flags);
    invar_run_result a;

    request.should_stop = enough_steps;
    request.payload = &w;
    a = run_once(s, &request);
    assert_int_equal(a.state, INVAR_RUN_DONE);
    assert_true(a.enough);
    assert_int_equal(a.exit_code, 0); // the run finished regularly
    assert_true(last_step(a.ledger) >= 8);
    for (int i = 1; i < w.calls; i++)
        assert_true(w.steps[i] >= w.steps[i - 1]); // the ledger may have grown in between
    assert_true(w.steps[w.calls - 1] >= 8);
    w.calls = 0;
    a = run_once(s, &request);
    assert_true(a.cached && a.enough);
    assert_int_equal(w.calls, 1); // asked once for the cached run

    // The cached run is too short for a later step.
    w = (step_condition){.enough = 30};
    a = run_once(s, &request);
    assert_false(a.cached);
    assert_true(last_step(a.ledger) >= 30);
    w = (step_condition){.enough = 4};
    assert_true(run_once(s, &request).cached);
    request.should_stop = NULL;
    request.timeout = 0.5; // a full run is made again, which never ends here
    assert_int_equal(run_once(s, &request).state, INVAR_RUN_FAILED);
    request.should_stop = enough_steps;
    request.timeout = LONG_TIMEOUT;

    // The callback is called once more for a run that finishes without being stopped.
    request.flags = NULL;
    a = run_once(s, &request);
    assert_int_equal(a.state, INVAR_RUN_DONE);
    assert_false(a.enough);
    assert_true(w.calls > 0);
    assert_int_equal(w.steps[w.calls - 1], 2);
}

/* A run stopped by a signal of another process is incomplete, so it is an error, not a result. */
static void test_workshop__run_that_another_stops_is_none(void **state)
{
    static const char *const flags[] = {"--play", "signalled", NULL};
    fixture *s = *state;
    invar_revision_build built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, flags);
    invar_run_result a;

    for (int i = 0; i < 2; i++) {
        assert_fails(invar_workspace_run(&a, s->workspace, s->worktree.lock, &request),
                     INVAR_E_STATE, "after step 2 by a signal");
    }
}

static void test_workshop__unfinished_run_is_not_believed(void **state)
{
    static const char *const damage[] = {"rm outcome",
                                         ": >outcome",
                                         "sed -i '$d' outcome",
                                         "echo 'x = 1' >>outcome",
                                         "sed -i s/exit-code/exit/ outcome",
                                         "rm ledger.db"};
    fixture *s = *state;
    invar_revision_build built = build(s, first, BUILD);
    invar_run_result a = run_mode(s, &built, "steps");
    invar_workspace *workspace;
    char dead_folder[INVAR_PATH_SIZE + 64], live_folder[INVAR_PATH_SIZE + 64],
        self[INVAR_PROCESS_TAG_SIZE];

    for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        run_script(NULL, a.folder, damage[i]);
        a = run_mode(s, &built, "steps");
        if (a.cached)
            fail_msg("believed after: %s", damage[i]);
        assert_true(run_mode(s, &built, "steps").cached);
    }
    // The unfinished folder of a dead process is removed; that of a living process stays.
    snprintf(dead_folder, sizeof dead_folder, "%s.%08x-%016x-00000000.tmp", a.folder, 0x3ffffff, 1);
    invar_process_tag_self(self);
    snprintf(live_folder, sizeof live_folder, "%s.%s-00000000.tmp", a.folder, self);
    assert_ok(invar_held_folder_make(path_in(dead_folder, "x")));
    assert_ok(invar_held_folder_make(live_folder));
    assert_ok(invar_workspace_open(&workspace, workspace_path, repo_path,
                                   (const char *const[]){repo_path, NULL}));
    invar_workspace_close(workspace);
    assert_false(invar_path_exists(dead_folder));
    assert_true(invar_path_exists(live_folder));
    assert_true(invar_path_exists(a.folder));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(run_is_made_once),
        TEST(run_is_made_anew_when_its_files_change),
        TEST(mismatch_is_recorded),
        TEST(run_that_another_stops_is_none),
        TEST(run_stays_in_its_folder),
        TEST(run_that_differs_is_a_result),
        TEST(failed_run_is_made_again),
        TEST(endless_run_ends),
        TEST(run_ends_when_enough_was_seen),
        TEST(unfinished_run_is_not_believed),
    };

    if (argc > 2 && strcmp(argv[1], "train") == 0)
        _exit(run_as_train(argc, argv)); // skips the leak check of sanitizers, which takes seconds
    return cmocka_run_group_tests(tests, setup_repository, clean_up);
}
