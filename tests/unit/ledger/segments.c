/*
 * segments.c - tests of runs and their segments: begin, fork and resume.
 *
 * Invalid calls must be rejected and leave every table as it was. Steps that a resume executes
 * again are compared with the recorded ones; each difference of bits or content is rejected or
 * reported. Also covers the checkpoints, evaluations, points and objects of a run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/ledger/raw_ledger.h"

static const invar_ledger_provenance no_provenance = {.no_auto_facts = true};
static const invar_test_ledger spec = {.steps = 5};

/* Creates a ledger with a run of `steps` steps and returns its writer. */
static invar_ledger *new_run(const char *name, int64_t steps)
{
    invar_ledger *ledger;

    raw_remove(raw_path(name));
    ledger = raw_writer(raw_path(name));
    assert_ok(invar_test_ledger_begin(ledger, &spec));
    for (int64_t step = 0; step < steps; step++)
        assert_ok(invar_test_ledger_step(ledger, &spec, 0, step));
    return ledger;
}

static invar_digest chain_at(invar_ledger *ledger, int64_t step)
{
    invar_digest chain;

    assert_ok(invar_ledger_chain_at(&chain, ledger, 1, step));
    return chain;
}

/* ---- begin ----------------------------------------------------------------------------------- */

static void test_ledger_segments__begin_refuses(void **state)
{
    static const invar_ledger_pair twice[] = {{"a", "1"}, {"b", "2"}, {"a", "1"}},
                                   no_key = {"", "1"}, no_value = {"a", NULL},
                                   odd_value = {"a", "\x1b"};
    static const invar_ledger_fact no_scope = {"", "k", "v"}, no_fact = {"s", "k", NULL},
                                   facts[] = {{"s", "k", "1"}, {"s", "k", "2"}};
    static const invar_digest no_chain = {{0}};
    static const invar_ledger_object no_kind = {"s", "k", NULL, "", 0};
    static const struct {
        invar_ledger_run run;
        const char *text;
    } cases[] = {
        {{.name = NULL, .kind = "train"}, "a run's name is empty"},
        {{.name = "a\nb", .kind = "train"}, "a run's name"},
        {{.name = "a", .kind = NULL}, "a run's kind is empty"},
        {{.name = "a", .kind = "trial"}, "is none of train, eval, ci, ab, bisect, replay"},
        {{.name = "a", .kind = "train", .parent = ""}, "a run's parent is empty"},
        {{.name = "a", .kind = "train", .fork_chain = &no_chain}, "the chain of no parent"},
        {{.name = "a", .kind = "train", .parent = "b", .fork_step = -1, .fork_chain = &no_chain},
         "the chain of no step"},
        {{.name = "a", .kind = "train", .identity = twice, .n_identity = 3}, "\"a\" is twice"},
        {{.name = "a", .kind = "train", .identity = &no_key, .n_identity = 1}, "is empty"},
        {{.name = "a", .kind = "train", .identity = &no_value, .n_identity = 1}, "is missing"},
        {{.name = "a", .kind = "train", .identity = &odd_value, .n_identity = 1}, "control"},
        {{.name = "a", .kind = "train", .circumstances = {.facts = &no_scope, .n_facts = 1}},
         "a fact's scope is empty"},
        {{.name = "a", .kind = "train", .circumstances = {.facts = &no_fact, .n_facts = 1}},
         "a fact's value is missing"},
        {{.name = "a", .kind = "train", .circumstances = {.objects = &no_kind, .n_objects = 1}},
         "an object's kind is empty"},
        {{.name = "a",
          .kind = "train",
          .circumstances = {.facts = facts, .n_facts = 2, .no_auto_facts = true}},
         "fact has that row already"},
    };
    const char *path = raw_path("begin.db");
    invar_ledger *ledger = raw_writer(path);
    invar_digest before = raw_dump(path), after;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        invar_status status = invar_ledger_begin(ledger, &cases[i].run);
        assert_int_equal(status, INVAR_E_INVALID);
        invar_assert_message(cases[i].text, __FILE__, __LINE__);
    }
    after = raw_dump(path);
    raw_assert_digest(&before, &after);
    assert_ok(invar_test_ledger_begin(ledger, &spec));
    invar_ledger_close(ledger);
    raw_assert_clean(path);
}

/* The identity is a set: its order does not matter, its keys and values do. */
static void test_ledger_segments__identity(void **state)
{
    static const invar_ledger_pair sets[][2] = {{{"a", "1"}, {"b", "2"}},
                                                {{"b", "2"}, {"a", "1"}},
                                                {{"a", "1"}, {"b", "3"}},
                                                {{"a", "1b"}, {"c", "2"}}};
    invar_ledger *ledger = raw_writer(raw_path("identity.db"));
    invar_ledger_summary found[4];
    char number[24];

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_ok(invar_ledger_begin(ledger, &(invar_ledger_run){.name = "r",
                                                                 .kind = "ci",
                                                                 .identity = sets[i],
                                                                 .n_identity = 2,
                                                                 .circumstances = no_provenance}));
        (void)snprintf(number, sizeof number, "%d", i + 1);
        assert_ok(invar_ledger_find(&found[i], ledger, number));
        assert_int_equal(found[i].run, i + 1);
        for (int k = 0; k < i; k++)
            assert_int_equal(invar_digest_equal(&found[i].identity, &found[k].identity),
                             i == 1 && k == 0);
    }
    invar_ledger_close(ledger);
    raw_assert_clean(raw_path("identity.db"));
}

/* ---- two runs -------------------------------------------------------------------------------- */

static void test_ledger_segments__two_runs(void **state)
{
    const invar_test_ledger second = {.steps = 3, .name = "second", .seed = 7};
    const char *path = raw_path("runs.db");
    invar_ledger *ledger = new_run("runs.db", 4);
    invar_ledger_summary a, b, found;
    char word[INVAR_LEDGER_UUID_SIZE];

    (void)state;
    assert_ok(invar_test_ledger_begin(ledger, &second));
    for (int64_t step = 0; step < 3; step++)
        assert_ok(invar_test_ledger_step(ledger, &second, 0, step));
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
    assert_ok(invar_ledger_find(&a, ledger, "test"));
    assert_ok(invar_ledger_find(&b, ledger, "2"));
    assert_int_equal(a.last_step, 3);
    assert_int_equal(b.last_step, 2);
    assert_false(a.finished);
    assert_true(b.finished);
    assert_int_equal(a.entries, 6); // begin, its event and four steps
    assert_int_equal(b.entries, 6); // begin, its event, three steps and finish
    assert_string_equal(b.name, "second");
    for (size_t length = 4; length < sizeof b.uuid; length++) {
        if (strncmp(a.uuid, b.uuid, length) == 0) // probability 1/65536 for 4 digits
            continue;
        (void)snprintf(word, sizeof word, "%.*s", (int)length, b.uuid);
        assert_ok(invar_ledger_find(&found, ledger, word));
        assert_int_equal(found.run, 2);
    }
    assert_fails(invar_ledger_find(&found, ledger, NULL), INVAR_E_INVALID, "it holds 2 runs");
    (void)snprintf(word, sizeof word, "%.3s", b.uuid);
    assert_fails(invar_ledger_find(&found, ledger, word), INVAR_E_NOTFOUND, "no run has");
    assert_fails(invar_ledger_find(&found, ledger, ""), INVAR_E_NOTFOUND, "no run has");
    assert_fails(invar_ledger_find(&found, ledger, "\x1b\n"), INVAR_E_NOTFOUND, "\"??\"");
    assert_fails(invar_ledger_resume(ledger, NULL, -1, NULL, &no_provenance), INVAR_E_INVALID,
                 "2 runs");
    assert_ok(invar_ledger_resume(ledger, a.uuid, 3, &a.chain, &no_provenance));
    assert_ok(invar_test_ledger_begin(ledger, &(invar_test_ledger){.name = "second"}));
    assert_fails(invar_ledger_find(&found, ledger, "second"), INVAR_E_INVALID, "2 runs are");
    invar_ledger_close(ledger);
    raw_assert_clean(path);
}

/* ---- a fork ---------------------------------------------------------------------------------- */

/* Begins a fork of another run, at its chain at `step`, in a new ledger. */
static invar_ledger *begin_fork(const char *name, const invar_digest *chain, int64_t step)
{
    const invar_ledger_run run = {.name = "fork",
                                  .kind = "train",
                                  .parent = "00112233445566778899aabbccddeeff",
                                  .fork_step = step,
                                  .fork_chain = chain,
                                  .circumstances = {.no_auto_facts = true}};
    invar_ledger *ledger;

    raw_remove(raw_path(name));
    ledger = raw_writer(raw_path(name));
    assert_ok(invar_ledger_begin(ledger, &run));
    return ledger;
}

static void test_ledger_segments__fork(void **state)
{
    const char *path = raw_path("fork.db");
    invar_ledger *parent = new_run("parent.db", 5), *ledger;
    invar_digest chain = chain_at(parent, 2), other = chain, last = chain_at(parent, 4), now;
    invar_ledger_checkpoint kept = {.step = 2, .path = "x", .chain = chain};
    invar_ledger_summary found;

    (void)state;
    ledger = begin_fork("fork.db", &chain, 2);
    now = chain_at(ledger, 2);
    raw_assert_digest(&chain, &now);
    assert_ok(invar_ledger_checkpoint_intent(ledger, &kept));
    // A fork that stopped before its first step resumes from the fork step only.
    other.bytes[0] ^= 1;
    assert_fails(invar_ledger_resume(ledger, NULL, 2, &other, &no_provenance), INVAR_E_MISMATCH,
                 "is not the checkpoint's");
    assert_fails(invar_ledger_resume(ledger, NULL, 1, &chain, &no_provenance), INVAR_E_STATE,
                 "no step 1");
    assert_ok(invar_test_ledger_resume(ledger, &spec, 3));
    for (int64_t step = 3; step < 5; step++)
        assert_ok(invar_test_ledger_step(ledger, &spec, 1, step));
    // Steps with equal bits give the chain of the parent.
    now = chain_at(ledger, 4);
    raw_assert_digest(&last, &now);
    assert_ok(invar_ledger_find(&found, ledger, NULL));
    assert_string_equal(found.parent, "00112233445566778899aabbccddeeff");
    assert_int_equal(found.fork_step, 2);
    assert_int_equal(found.first_step, 3);
    invar_ledger_close(parent);
    invar_ledger_close(ledger);
    raw_assert_clean(path);
}

/* ---- resume ---------------------------------------------------------------------------------- */

static void test_ledger_segments__resume_refuses(void **state)
{
    const char *path = raw_path("refused.db");
    invar_ledger *ledger = new_run("refused.db", 3);
    invar_digest before = raw_dump(path), after, chain = chain_at(ledger, 2), other = chain;

    (void)state;
    other.bytes[15] ^= 1;
    assert_fails(invar_ledger_resume(ledger, NULL, 2, &other, &no_provenance), INVAR_E_MISMATCH,
                 "is not the checkpoint's");
    assert_fails(invar_ledger_resume(ledger, NULL, 1, &chain, &no_provenance), INVAR_E_MISMATCH,
                 "is not the checkpoint's");
    assert_fails(invar_ledger_resume(ledger, NULL, 3, &chain, &no_provenance), INVAR_E_STATE,
                 "it has no step 3 of test; the checkpoint is of another run, or newer");
    assert_fails(invar_ledger_resume(ledger, NULL, -2, &chain, &no_provenance), INVAR_E_INVALID,
                 "-2");
    assert_fails(invar_ledger_resume(ledger, "nobody", 2, &chain, &no_provenance), INVAR_E_NOTFOUND,
                 "nobody");
    after = raw_dump(path);
    raw_assert_digest(&before, &after);
    assert_ok(invar_test_ledger_step(ledger, &spec, 0, 3)); // the segment is still open
    invar_ledger_close(ledger);
    raw_assert_clean(path);
}

/* A step that is executed twice is stored twice; the timeline shows the newest. */
static void test_ledger_segments__overlap(void **state)
{
    const invar_test_ledger drifted = {
        .steps = 5, .faults = {{INVAR_TEST_OVERLAP, .step = 3, .point = "layer.1.mlp.out"}}};
    const char *path = raw_path("overlap.db");
    invar_ledger *ledger = new_run("overlap.db", 5);
    invar_digest before[5], after[5];

    (void)state;
    for (int i = 0; i < 5; i++)
        before[i] = chain_at(ledger, i);
    assert_ok(invar_test_ledger_resume(ledger, &drifted, 2));
    assert_int_equal(raw_int(path, "SELECT max(seg) FROM segment"), 1);
    for (int64_t step = 2; step < 4; step++)
        assert_ok(invar_test_ledger_step(ledger, &drifted, 1, step));
    for (int i = 0; i < 5; i++)
        after[i] = chain_at(ledger, i);
    for (int i = 0; i < 3; i++)
        raw_assert_digest(&before[i], &after[i]);
    assert_false(invar_digest_equal(&before[3], &after[3]));
    raw_assert_digest(&before[4], &after[4]); // not executed again
    assert_int_equal(raw_int(path, "SELECT count(*) FROM step"), 7);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM timeline"), 5);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM timeline WHERE seg = 1"), 2);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM metrics"), 5 * 20);

    // A third segment, through the same writer, from the first step, after a regular finish.
    assert_ok(invar_ledger_finish(ledger, 1, "preempted"));
    assert_ok(invar_test_ledger_resume(ledger, &spec, 0));
    assert_ok(invar_test_ledger_step(ledger, &spec, 2, 0));
    after[0] = chain_at(ledger, 0);
    raw_assert_digest(&before[0], &after[0]);
    invar_ledger_close(ledger);
    assert_int_equal(raw_int(path, "SELECT after_step FROM segment WHERE seg = 2"), -1);
    assert_int_equal(raw_int(path, "SELECT hex(chain) = hex(zeroblob(16)) FROM segment "
                                   "WHERE seg = 2"),
                     1);
    assert_int_equal(raw_summary(path, NULL).segments, 3);
    assert_false(raw_summary(path, NULL).finished);
    raw_assert_clean(path);
}

/* A step that is executed again under must_match is rejected if its bits differ. */
static void test_ledger_segments__refuses_other_bits_of_repeated_step(void **state)
{
    const invar_test_ledger same = {.steps = 5, .must_match = true};
    const invar_test_ledger finer = {
        .steps = 5,
        .must_match = true,
        .finer = true,
        .faults = {{INVAR_TEST_OVERLAP, .step = 3, .point = "layer.1.mlp.out"}}};
    const char *path = raw_path("again.db");
    invar_ledger *ledger = new_run("again.db", 5);
    invar_digest chain = chain_at(ledger, 4);

    (void)state;
    assert_ok(invar_test_ledger_resume(ledger, &same, 2));
    for (int64_t step = 2; step < 5; step++)
        assert_ok(invar_test_ledger_step(ledger, &same, 1, step));
    // Only points that both segments have are compared.
    assert_ok(invar_test_ledger_resume(ledger, &finer, 2));
    assert_ok(invar_test_ledger_step(ledger, &finer, 2, 2));
    assert_fails(invar_test_ledger_step(ledger, &finer, 2, 3), INVAR_E_MISMATCH,
                 "step 3 was executed again and differs from segment 1 of the ledger: the first "
                 "point that differs is layer.1.mlp.out");
    assert_int_equal(raw_int(path, "SELECT count(*) FROM step WHERE seg = 2"), 1);
    invar_digest after = chain_at(ledger, 4);
    raw_assert_digest(&chain, &after);
    invar_ledger_close(ledger);
    raw_assert_clean(path);
}

/* A repeated step with equal points but another content is recorded with a warning event. */
static void test_ledger_segments__notes_other_content_of_repeated_step(void **state)
{
    const invar_test_ledger reply = {
        .steps = 5, .must_match = true, .faults = {{INVAR_TEST_REPLY, .step = 3}}};
    const invar_test_ledger metric = {
        .steps = 5,
        .must_match = true,
        .faults = {{INVAR_TEST_REWARD_SHIFT, .step = 3, .value = 0.5}}};
    const char *path = raw_path("content.db");
    const char *note;
    invar_ledger *ledger = new_run("content.db", 5);

    (void)state;
    assert_ok(invar_test_ledger_resume(ledger, &reply, 2));
    assert_ok(invar_test_ledger_step(ledger, &reply, 1, 2));
    assert_int_equal(invar_ledger_other_content(&note, ledger), 0);
    assert_string_equal(note, "");
    assert_ok(invar_test_ledger_step(ledger, &reply, 1, 3));
    assert_ok(invar_test_ledger_resume(ledger, &metric, 3));
    assert_ok(invar_test_ledger_step(ledger, &metric, 2, 3));
    assert_int_equal(invar_ledger_other_content(&note, ledger), 2);
    assert_string_equal(note, "executed again: all points are those of segment 0, but not reply "
                              "(step 3, seg 0, plugin reward, call 0)");
    invar_ledger_close(ledger);
    assert_int_equal(
        raw_int(path, "SELECT count(*) FROM event WHERE kind = 'content-differs' AND step = 3"), 2);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM event WHERE kind = 'content-differs' AND "
                                   "seg = 1 AND message LIKE '%segment 0, but not reply (step 3, "
                                   "seg 0, plugin reward, call 0)'"),
                     1);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM event WHERE kind = 'content-differs' AND "
                                   "seg = 2 AND message LIKE '%segment 1, but not metric (step 3, "
                                   "seg 1, series rollout/raw_reward)'"),
                     1);
    raw_assert_clean(path);
}

/* The recorded row of a repeated step is verified before it is compared. */
static void test_ledger_segments__refuses_damaged_row_of_repeated_step(void **state)
{
    const invar_test_ledger same = {.steps = 5, .must_match = true};
    const char *path = raw_path("row.db");
    invar_ledger *ledger = new_run("row.db", 5);

    (void)state;
    invar_ledger_close(ledger);
    raw_tamper(path, "UPDATE step SET root = zeroblob(16) WHERE step = 3");
    ledger = raw_writer(path);
    assert_ok(invar_test_ledger_resume(ledger, &same, 3));
    assert_fails(invar_test_ledger_step(ledger, &same, 1, 3), INVAR_E_CORRUPT,
                 "the values of step (step 3, seg 0) do not give its sum");
    invar_ledger_close(ledger);
}

static invar_status count_reply(void *payload, const invar_ledger_plugin_reply *reply)
{
    assert_string_equal(reply->plugin, "reward");
    ++*(int *)payload;
    return INVAR_OK;
}

/* A recorded reply is rejected if any column of its row is damaged. */
static void test_ledger_segments__refuses_damaged_reply(void **state)
{
    static const char *const columns[] = {"plugin", "call", "request", "data", "sum"};
    const char *path = raw_path("replies.db");
    invar_ledger *ledger = new_run("replies.db", 3);
    int count = 0;
    bool found;

    (void)state;
    assert_ok(invar_ledger_replies(&found, ledger, 1, 1, count_reply, &count));
    assert_true(found && count == 1);
    assert_ok(invar_ledger_replies(&found, ledger, 1, 3, count_reply, &count));
    assert_true(!found && count == 1);
    invar_ledger_close(ledger);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        char text[200];

        (void)snprintf(text, sizeof text, "UPDATE reply SET %s = flip(%s) WHERE step = 1",
                       columns[i], columns[i]);
        raw_tamper(path, text);
        ledger = raw_reader(path);
        assert_fails(invar_ledger_replies(&found, ledger, 1, 1, count_reply, &count),
                     INVAR_E_CORRUPT, "the values of reply (step 1, seg 0");
        invar_ledger_close(ledger);
        raw_tamper(path, text); // flips it back
    }
    assert_int_equal(count, 1);
    raw_assert_clean(path);
}

static void test_ledger_segments__resume_wants_points(void **state)
{
    invar_ledger *ledger = new_run("points.db", 2);
    invar_digest chain = chain_at(ledger, 1);

    (void)state;
    assert_ok(invar_ledger_resume(ledger, NULL, 1, &chain, &no_provenance));
    assert_fails(invar_test_ledger_step(ledger, &spec, 1, 2), INVAR_E_STATE, "define the points");
    // Resuming twice is allowed.
    assert_ok(invar_ledger_resume(ledger, NULL, 1, &chain, &no_provenance));
    invar_ledger_close(ledger);
    assert_int_equal(raw_int(raw_path("points.db"), "SELECT count(*) FROM segment"), 3);
    assert_int_equal(raw_int(raw_path("points.db"), "SELECT count(*) FROM manifest"), 1);
    raw_assert_clean(raw_path("points.db"));
}

/* An object of several segments is stored once; each segment has the fact that names it. */
static void test_ledger_segments__objects(void **state)
{
    const invar_test_ledger dirty = {
        .steps = 2, .crash = 1, .resume = 1, .faults = {{.kind = INVAR_TEST_DIRTY}}};
    const char *path = raw_path("objects.db");

    (void)state;
    assert_ok(invar_test_ledger_write(path, &dirty));
    assert_int_equal(raw_int(path, "SELECT count(*) FROM object"), 1);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM fact WHERE scope = 'build' AND key = "
                                   "'diff' AND value = (SELECT lower(hex(hash)) FROM object)"),
                     2);
    raw_assert_clean(path);
}

/* ---- checkpoints and evaluations ------------------------------------------------------------- */

static void test_ledger_segments__checkpoints(void **state)
{
    const char *path = raw_path("checkpoint.db");
    invar_ledger *ledger = new_run("checkpoint.db", 3);
    invar_ledger_checkpoint made = {.step = 2, .path = "c/2", .bytes = 7};
    invar_digest before = raw_dump(path), after;

    (void)state;
    assert_fails(invar_ledger_checkpoint_intent(ledger, &made), INVAR_E_MISMATCH,
                 "checkpoint c/2: its chain is not the ledger's at step 2");
    made.chain = chain_at(ledger, 1);
    assert_fails(invar_ledger_checkpoint_intent(ledger, &made), INVAR_E_MISMATCH, "step 2");
    made.chain = chain_at(ledger, 2);
    made.step = 3;
    assert_fails(invar_ledger_checkpoint_intent(ledger, &made), INVAR_E_INVALID,
                 "a checkpoint of step 3; the last step is 2");
    made.step = -2;
    assert_fails(invar_ledger_checkpoint_intent(ledger, &made), INVAR_E_INVALID, "step -2");
    made.step = -1;
    assert_fails(invar_ledger_checkpoint_intent(ledger, &made), INVAR_E_MISMATCH, "step -1");
    made.step = 2;
    made.path = "c\x1b";
    assert_fails(invar_ledger_checkpoint_complete(ledger, &made), INVAR_E_INVALID, "control");
    after = raw_dump(path);
    raw_assert_digest(&before, &after);

    made.path = "c/2";
    assert_ok(invar_ledger_checkpoint_intent(ledger, &made));
    assert_ok(invar_ledger_checkpoint_complete(ledger, &made));
    made = (invar_ledger_checkpoint){.step = 0, .path = "c/0", .chain = chain_at(ledger, 0)};
    assert_ok(invar_ledger_checkpoint_complete(ledger, &made)); // older than the last step
    made = (invar_ledger_checkpoint){.step = -1, .path = "c/start"};
    assert_ok(invar_ledger_checkpoint_intent(ledger, &made)); // state at the start of the run
    invar_ledger_close(ledger);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM checkpoint WHERE state = 'intent'"), 2);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM checkpoint WHERE state = 'complete'"), 2);
    raw_assert_clean(path);
}

static void test_ledger_segments__evaluations(void **state)
{
    const invar_ledger_metric results[] = {{"reward", 0.5}, {"length", 17}, {"reward", 0.5}};
    const char *path = raw_path("evaluation.db");
    invar_ledger *ledger = new_run("evaluation.db", 0);
    invar_digest before, after;

    (void)state;
    assert_ok(invar_ledger_add_evaluation(ledger, "gsm8k", results, 2)); // no step is recorded yet
    before = raw_dump(path);
    assert_fails(invar_ledger_add_evaluation(ledger, "gsm8k", results, 2), INVAR_E_INVALID,
                 "evaluation has that row already");
    assert_fails(invar_ledger_add_evaluation(ledger, "aime", results, 3), INVAR_E_INVALID, "twice");
    assert_fails(invar_ledger_add_evaluation(ledger, "", results, 2), INVAR_E_INVALID, "is empty");
    after = raw_dump(path);
    raw_assert_digest(&before, &after);
    assert_ok(invar_ledger_add_evaluation(ledger, "aime", results, 2));
    assert_ok(invar_test_ledger_step(ledger, &spec, 0, 0));
    assert_ok(invar_ledger_add_evaluation(ledger, "gsm8k", results, 1));
    assert_ok(invar_ledger_add_evaluation(ledger, "nothing", NULL, 0));
    invar_ledger_close(ledger);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM evaluation WHERE step = -1"), 4);
    assert_int_equal(raw_int(path, "SELECT count(*) FROM evaluation WHERE step = 0"), 1);
    raw_assert_clean(path);
}

/* ---- points ---------------------------------------------------------------------------------- */

static void test_ledger_segments__points_refused(void **state)
{
    static const int64_t forward = 1, itself = 0, shape[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const struct {
        invar_ledger_point point; // the first of two points; zero fields get valid values
        const char *text;
    } cases[] = {
        {{.name = "b"}, "two points have the name \"b\""},
        {{.name = "a", .layer = -2}, "layer -2"},
        {{.name = "a", .level = -1}, "level -1"},
        {{.name = "a", .shards = -1}, "-1 shards"},
        {{.name = "a", .inputs = &forward, .n_inputs = 1}, "does not come before it"},
        {{.name = "a", .inputs = &itself, .n_inputs = 1}, "does not come before it"},
        {{.name = "a", .shape = shape, .dims = 9}, "9 dimensions"},
        {{.name = ""}, "a point's name is empty"},
        {{.name = "a", .phase = "\x7f"}, "a point's phase"},
        {{.name = "a", .op = "\xff"}, "a point's op"},
        {{.name = "a", .kind = "\n"}, "a point's kind"},
        {{.name = "a", .dtype = "\t"}, "a point's dtype"},
    };
    const char *path = raw_path("undefined.db");
    invar_ledger *ledger = new_run("undefined.db", 1);
    invar_digest before = raw_dump(path), after;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        invar_ledger_point points[2] = {cases[i].point};
        points[0].phase = points[0].phase ? points[0].phase : "forward";
        points[0].op = points[0].op ? points[0].op : "linear";
        points[0].kind = points[0].kind ? points[0].kind : "act";
        points[0].dtype = points[0].dtype ? points[0].dtype : "bf16";
        points[0].shards = points[0].shards ? points[0].shards : 1;
        points[1] = (invar_ledger_point){.name = "b",
                                         .phase = "forward",
                                         .op = "linear",
                                         .kind = "act",
                                         .dtype = "bf16",
                                         .shards = 1};
        assert_fails(invar_ledger_define(ledger, points, 2), INVAR_E_INVALID, cases[i].text);
    }
    after = raw_dump(path);
    raw_assert_digest(&before, &after);
    // The points defined before are still valid.
    assert_ok(invar_test_ledger_step(ledger, &spec, 0, 1));
    invar_ledger_close(ledger);
    raw_assert_clean(path);
}

/* A point may have 20000 inputs, such as a norm over all gradients, but none of them twice. */
static void test_ledger_segments__many_inputs(void **state)
{
    enum { MANY = 20000 };
    static invar_ledger_point points[MANY + 1];
    static char names[MANY + 1][16];
    static int64_t inputs[MANY + 1]; /* all points; the last element, 0, is a duplicate */
    const char *path = raw_path("many.db");
    invar_ledger *ledger = new_run("many.db", 1);

    (void)state;
    for (int i = 0; i <= MANY; i++) {
        (void)snprintf(names[i], sizeof names[i], "p%d", i);
        points[i] = (invar_ledger_point){.name = names[i],
                                         .phase = "backward",
                                         .op = "linear.dw",
                                         .kind = "grad",
                                         .dtype = "f32",
                                         .shards = 1};
        if (i < MANY)
            inputs[i] = i;
    }
    points[MANY].inputs = inputs;
    points[MANY].n_inputs = MANY + 1;
    assert_fails(invar_ledger_define(ledger, points, MANY + 1), INVAR_E_INVALID,
                 "20001 inputs: some are named twice");
    points[MANY].n_inputs = MANY;
    assert_ok(invar_ledger_define(ledger, points, MANY + 1));
    assert_int_equal(
        raw_int(path, "SELECT max(json_array_length(inputs)) FROM point WHERE name = 'p20000'"),
        MANY);
    invar_ledger_close(ledger);
    raw_assert_clean(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_segments__begin_refuses),
        cmocka_unit_test(test_ledger_segments__identity),
        cmocka_unit_test(test_ledger_segments__two_runs),
        cmocka_unit_test(test_ledger_segments__resume_refuses),
        cmocka_unit_test(test_ledger_segments__overlap),
        cmocka_unit_test(test_ledger_segments__refuses_other_bits_of_repeated_step),
        cmocka_unit_test(test_ledger_segments__notes_other_content_of_repeated_step),
        cmocka_unit_test(test_ledger_segments__refuses_damaged_row_of_repeated_step),
        cmocka_unit_test(test_ledger_segments__refuses_damaged_reply),
        cmocka_unit_test(test_ledger_segments__resume_wants_points),
        cmocka_unit_test(test_ledger_segments__fork),
        cmocka_unit_test(test_ledger_segments__objects),
        cmocka_unit_test(test_ledger_segments__checkpoints),
        cmocka_unit_test(test_ledger_segments__evaluations),
        cmocka_unit_test(test_ledger_segments__points_refused),
        cmocka_unit_test(test_ledger_segments__many_inputs),
    };

    return cmocka_run_group_tests(tests, raw_setup, raw_teardown);
}
