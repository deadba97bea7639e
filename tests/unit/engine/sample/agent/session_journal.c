/*
 * session_journal.c - tests of the journal of live sessions: kills, damage, and foreign files.
 *
 * The file is cut after every byte, and every bit of it is flipped. Complete sessions must be
 * restored; files of another run or another agent must be rejected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/agent/session_journal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "tests/support.h"

static const invar_agent_limits limits = {
    .vocab = 13, .context = 16, .max_calls = 2, .max_branches = 1};
static const invar_session_journal_id this_rollout = {.run = {{1}}, .weights = {{2}}, .number = 3};
static const char version_1_head[] = "{\"invar_sessions\":1,\"rollout\":3,"
                                     "\"run\":\"01000000000000000000000000000000\","
                                     "\"weights\":\"02000000000000000000000000000000\"}\n";
static char path[64];

static invar_session_journal *open_journal(const invar_session_journal_id *rollout)
{
    invar_session_journal *journal;

    assert_ok(invar_session_journal_open(&journal, path, rollout, &limits));
    assert_ok(invar_session_journal_begin(journal));
    return journal;
}

/* Logs a session of one call with the response `token`, and with `ends` the end of the session. */
static void log_session(invar_session_journal *journal, int64_t sample, int32_t token, bool ends)
{
    invar_agent_session s = {0};
    invar_agent_call *call;

    assert_ok(invar_agent_session_add(&call, &s, (int32_t[]){1}, 1, -1));
    assert_ok(INVAR_ALLOC(call->response, 1, "test"));
    call->response[0] = token;
    call->n_response = 1;
    call->finish = INVAR_FINISH_LENGTH;
    assert_ok(invar_session_journal_call(journal, sample, call));
    if (ends) {
        assert_ok(invar_agent_session_end(&s, "{\"reward\":0.5}", 14, "test"));
        assert_ok(invar_session_journal_end(journal, sample, &s));
    }
    invar_agent_session_release(&s);
}

/*
 * Takes a sample's ended session, whose response must be `token`. Returns false if there is none.
 */
static bool take_session(invar_session_journal *journal, int64_t sample, int32_t token)
{
    invar_agent_session s = {0};
    bool found = invar_session_journal_take_session(&s, journal, sample);

    if (found) {
        assert_int_equal(s.n_calls, 1);
        assert_int_equal(s.calls[0]->response[0], token);
        assert_true(s.rewarded && s.reward == 0.5);
    }
    invar_agent_session_release(&s);
    return found;
}

static void test_session_journal__keeps_ended_sessions(void **state)
{
    invar_session_journal_id next = this_rollout;
    invar_session_journal *journal = open_journal(&this_rollout);

    (void)state;
    log_session(journal, 4, 7, true);
    log_session(journal, 5, 8, false);
    invar_session_journal_close(journal);
    for (int i = 0; i < 2; i++) { // opening the journal without new calls keeps its content
        journal = open_journal(&this_rollout);
        assert_true(invar_session_journal_matches(journal, &this_rollout));
        if (i == 1) {
            assert_true(take_session(journal, 4, 7));
            assert_false(take_session(journal, 4, 7)); // a session can be taken once
            assert_false(take_session(journal, 5, 8));
        }
        invar_session_journal_close(journal);
    }
    next.number++;
    journal = open_journal(&next);
    assert_false(invar_session_journal_matches(journal, &this_rollout));
    assert_false(take_session(journal, 4, 7));
    invar_session_journal_close(journal);
    journal = open_journal(&this_rollout); // the journal of the next rollout has replaced it
    assert_false(take_session(journal, 4, 7));
    invar_session_journal_close(journal);
}

/* A file that is cut anywhere has the sessions whose end is complete. */
static void test_session_journal__survives_any_cut(void **state)
{
    invar_session_journal *journal = open_journal(&this_rollout);
    size_t bytes, first;
    char *text;

    (void)state;
    log_session(journal, 4, 7, true);
    log_session(journal, 5, 8, true);
    invar_session_journal_close(journal);
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    first = (size_t)(strchr(strstr(text, "\"end\""), '\n') + 1 - text);
    for (size_t cut = 0; cut <= bytes; cut++) {
        invar_journal_contents contents = {0};
        int64_t ended = 0;

        assert_ok(
            invar_journal_contents_read(&contents, text, cut, &this_rollout, &limits, "test"));
        for (int64_t i = 0; i < contents.count; i++)
            ended += contents.items[i].session.end != NULL;
        assert_int_equal(ended, (cut >= first) + (cut == bytes));
        invar_journal_contents_release(&contents);
    }
    assert_ok(invar_file_write(path, text, bytes - 1));
    journal = open_journal(&this_rollout);
    assert_true(take_session(journal, 4, 7));
    assert_false(take_session(journal, 5, 8));
    invar_session_journal_close(journal);
    invar_free(text);
}

/* Sessions that another agent has ended are rejected if both agents are known. */
static void test_session_journal__refuses_sessions_of_another_agent(void **state)
{
    static const invar_digest no_agent = {{0}}, old = {{5}}, new = {{6}};
    const struct {
        invar_digest wrote, reads;
        bool ends, refused;
    } cases[] = {
        {old, old, true, false},      {old, new, true, true},       {old, new, false, false},
        {no_agent, new, true, false}, {old, no_agent, true, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_session_journal_id first = this_rollout, second = this_rollout;
        invar_session_journal *journal;

        first.agent = cases[i].wrote;
        second.agent = cases[i].reads;
        journal = open_journal(&first);
        log_session(journal, 4, 7, cases[i].ends);
        invar_session_journal_close(journal);
        if (cases[i].refused) {
            assert_fails(invar_session_journal_open(&journal, path, &second, &limits),
                         INVAR_E_STATE,
                         "the agent has changed (hash 06000000, was 05000000) and 1 sessions of "
                         "rollout 3");
            second.number++; // the new agent may start the next rollout
        }
        journal = open_journal(&second);
        assert_int_equal(take_session(journal, 4, 7), cases[i].ends && !cases[i].refused);
        invar_session_journal_close(journal);
        assert_int_equal(unlink(path), 0);
    }
}

/* The file of an earlier rollout may be larger than memory; it is not read. */
static void test_session_journal__leaves_other_rollouts_unread(void **state)
{
    invar_session_journal_id next = this_rollout;
    invar_session_journal *journal = open_journal(&this_rollout);

    (void)state;
    invar_session_journal_close(journal);
    assert_int_equal(truncate(path, (off_t)1 << 33), 0);
    next.number++;
    journal = open_journal(&next);
    log_session(journal, 4, 7, true);
    invar_session_journal_close(journal);
    journal = open_journal(&next);
    assert_true(take_session(journal, 4, 7));
    invar_session_journal_close(journal);
}

static void test_session_journal__refuses_damage(void **state)
{
    static const char *const lines[] = {
        "{}\n",
        "{\"sample\":1}\n",
        "{\"sample\":1,\"call\":{},\"end\":{}}\n",
        "{\"sample\":1,\"call\":{}}\n",
        "{\"sample\":-1,\"end\":{}}\n",
        "{\"sample\":1,\"end\":{}}\n{\"sample\":1,\"end\":{}}\n",
        "\n",
    };
    char blank[2000], head[sizeof version_1_head];
    invar_session_journal *journal;

    (void)state;
    memcpy(head, version_1_head, sizeof head);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char text[512];

        (void)snprintf(text, sizeof text, "%s%s", head, lines[i]);
        assert_ok(invar_file_write(path, text, strlen(text)));
        assert_fails(invar_session_journal_open(&journal, path, &this_rollout, &limits),
                     INVAR_E_CORRUPT, "remove the file");
    }
    assert_ok(invar_file_write(path, "{\"invar_sessions\":2}\n", 21));
    assert_fails(invar_session_journal_open(&journal, path, &this_rollout, &limits),
                 INVAR_E_CORRUPT, "sessions");
    memset(blank, ' ', sizeof blank);
    assert_ok(invar_file_write(path, blank, sizeof blank));
    assert_fails(invar_session_journal_open(&journal, path, &this_rollout, &limits),
                 INVAR_E_CORRUPT, ":1: the line is longer than 1024 bytes; remove the file");
    memcpy(strstr(head, "\"weights\":\"") + strlen("\"weights\":\""), "x", 1);
    assert_ok(invar_file_write(path, head, strlen(head)));
    assert_fails(invar_session_journal_open(&journal, path, &this_rollout, &limits),
                 INVAR_E_CORRUPT,
                 ":1: \"weights\" is no hash of 32 hexadecimal digits; remove the file");
}

/* Checksums cover each bit of the file, including the first line. */
static void test_session_journal__refuses_every_flipped_bit(void **state)
{
    invar_session_journal *journal = open_journal(&this_rollout);
    size_t bytes;
    char *text;

    (void)state;
    log_session(journal, 4, 7, true);
    log_session(journal, 5, 8, true);
    assert_false(invar_session_journal_unchecked(journal));
    invar_session_journal_close(journal);
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        invar_journal_contents contents = {0};

        text[bit / 8] ^= (char)(1 << bit % 8);
        assert_fails(
            invar_journal_contents_read(&contents, text, bytes, &this_rollout, &limits, "test"),
            INVAR_E_CORRUPT, "test:");
        text[bit / 8] ^= (char)(1 << bit % 8);
        invar_journal_contents_release(&contents);
    }
    invar_free(text);
}

/* A file of another run with the same recipe, rollout and weights is rejected. */
static void test_session_journal__refuses_file_of_another_run(void **state)
{
    invar_session_journal_id mine = this_rollout, other = this_rollout;
    invar_session_journal *journal;

    (void)state;
    mine.uuid = (invar_digest){{7}};
    other.uuid = (invar_digest){{8}};
    journal = open_journal(&other);
    log_session(journal, 4, 7, true);
    invar_session_journal_close(journal);
    assert_fails(invar_session_journal_open(&journal, path, &mine, &limits), INVAR_E_STATE,
                 "the sessions belong to run 08000000, not to this run");
    assert_int_equal(unlink(path), 0);
}

/* Version 1 has no checksums. It is read, and kept until the caller begins the new file. */
static void test_session_journal__reads_version_1_unchecked(void **state)
{
    char old[1000], *text, *line, *end;
    invar_session_journal *journal = open_journal(&this_rollout);
    size_t bytes;

    (void)state;
    log_session(journal, 4, 7, true);
    invar_session_journal_close(journal);
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    (void)snprintf(old, sizeof old, "%s", version_1_head);
    for (line = strchr(text, '\n') + 1; *line; line = end + 1) { // removes the checksums
        end = strchr(line, '\n');
        (void)snprintf(old + strlen(old), sizeof old - strlen(old), "%.*s}\n",
                       (int)(strstr(line, ",\"sum\":") - line), line);
    }
    assert_ok(invar_file_write(path, old, strlen(old)));
    invar_free(text);
    assert_ok(invar_session_journal_open(&journal, path, &this_rollout, &limits));
    assert_true(invar_session_journal_unchecked(journal));
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    assert_string_equal(text, old);
    invar_free(text);
    assert_ok(invar_session_journal_begin(journal));
    assert_true(take_session(journal, 4, 7));
    invar_session_journal_close(journal);
    journal = open_journal(&this_rollout);
    assert_false(invar_session_journal_unchecked(journal));
    assert_true(take_session(journal, 4, 7));
    invar_session_journal_close(journal);
}

static int make_path(void **state)
{
    (void)state;
    return snprintf(path, sizeof path, "agent-log-%d", (int)getpid()) < 0;
}

static int remove_path(void **state)
{
    (void)state;
    (void)unlink(path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_session_journal__keeps_ended_sessions, make_path,
                                        remove_path),
        cmocka_unit_test_setup_teardown(test_session_journal__survives_any_cut, make_path,
                                        remove_path),
        cmocka_unit_test_setup_teardown(test_session_journal__refuses_sessions_of_another_agent,
                                        make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_session_journal__leaves_other_rollouts_unread,
                                        make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_session_journal__refuses_damage, make_path,
                                        remove_path),
        cmocka_unit_test_setup_teardown(test_session_journal__refuses_every_flipped_bit, make_path,
                                        remove_path),
        cmocka_unit_test_setup_teardown(test_session_journal__refuses_file_of_another_run,
                                        make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_session_journal__reads_version_1_unchecked, make_path,
                                        remove_path),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
