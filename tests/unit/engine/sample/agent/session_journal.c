/*
 * session_journal.c - the file of sessions on their way: what a kill leaves of it, and what is
 * refused.
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
static const invar_session_journal_id now = {.run = {{1}}, .weights = {{2}}, .number = 3};
static const char old_head[] = "{\"invar_sessions\":1,\"rollout\":3,"
                               "\"run\":\"01000000000000000000000000000000\","
                               "\"weights\":\"02000000000000000000000000000000\"}\n";
static char path[64];

static invar_session_journal *open_log(const invar_session_journal_id *rollout)
{
    invar_session_journal *log;

    assert_ok(invar_session_journal_open(&log, path, rollout, &limits));
    assert_ok(invar_session_journal_begin(log));
    return log;
}

/* A session of one call that says `token`, which is logged; `ends`: so is its end. */
static void lead(invar_session_journal *log, int64_t sample, int32_t token, bool ends)
{
    invar_agent_session s = {0};
    invar_agent_call *call;

    assert_ok(invar_agent_session_add(&call, &s, (int32_t[]){1}, 1, -1));
    assert_ok(invar_alloc((void **)&call->response, 1, sizeof *call->response, "test"));
    call->response[0] = token;
    call->n_response = 1;
    call->finish = INVAR_FINISH_LENGTH;
    assert_ok(invar_session_journal_call(log, sample, call));
    if (ends) {
        assert_ok(invar_agent_session_end(&s, "{\"reward\":0.5}", 14, "test"));
        assert_ok(invar_session_journal_end(log, sample, &s));
    }
    invar_agent_session_release(&s);
}

/* Whether the log has the end of the sample's session, which said `token`. */
static bool has(invar_session_journal *log, int64_t sample, int32_t token)
{
    invar_agent_session s = {0};
    bool found = invar_session_journal_take_session(&s, log, sample);

    if (found) {
        assert_int_equal(s.n_calls, 1);
        assert_int_equal(s.calls[0]->response[0], token);
        assert_true(s.rewarded && s.reward == 0.5);
    }
    invar_agent_session_release(&s);
    return found;
}

static void test_log__keeps_sessions_that_ended(void **state)
{
    invar_session_journal_id next = now;
    invar_session_journal *log = open_log(&now);

    (void)state;
    lead(log, 4, 7, true);
    lead(log, 5, 8, false);
    invar_session_journal_close(log);
    for (int i = 0; i < 2; i++) { // also after it was opened without any more
        log = open_log(&now);
        assert_true(invar_session_journal_matches(log, &now));
        if (i == 1) {
            assert_true(has(log, 4, 7));
            assert_false(has(log, 4, 7)); // it was taken
            assert_false(has(log, 5, 8));
        }
        invar_session_journal_close(log);
    }
    next.number++;
    log = open_log(&next);
    assert_false(invar_session_journal_matches(log, &now));
    assert_false(has(log, 4, 7));
    invar_session_journal_close(log);
    log = open_log(&now); // the next rollout's has taken its place
    assert_false(has(log, 4, 7));
    invar_session_journal_close(log);
}

/* Cut off anywhere, it has the sessions whose ends are whole. */
static void test_log__survives_any_cut(void **state)
{
    invar_session_journal *log = open_log(&now);
    size_t bytes, first;
    char *text;

    (void)state;
    lead(log, 4, 7, true);
    lead(log, 5, 8, true);
    invar_session_journal_close(log);
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    first = (size_t)(strchr(strstr(text, "\"end\""), '\n') + 1 - text);
    for (size_t cut = 0; cut <= bytes; cut++) {
        invar_journal_contents logged = {0};
        int64_t ended = 0;

        assert_ok(invar_journal_contents_read(&logged, text, cut, &now, &limits, "test"));
        for (int64_t i = 0; i < logged.count; i++)
            ended += logged.items[i].session.end != NULL;
        assert_int_equal(ended, (cut >= first) + (cut == bytes));
        invar_journal_contents_release(&logged);
    }
    assert_ok(invar_file_write(path, text, bytes - 1));
    log = open_log(&now);
    assert_true(has(log, 4, 7));
    assert_false(has(log, 5, 8));
    invar_session_journal_close(log);
    invar_free(text);
}

/* What one agent has ended is no other's to go on with, where both are known. */
static void test_log__refuses_sessions_of_another_agent(void **state)
{
    static const invar_digest nobody = {{0}}, old = {{5}}, new = {{6}};
    const struct {
        invar_digest wrote, reads;
        bool ends, refused;
    } cases[] = {
        {old, old, true, false},    {old, new, true, true},     {old, new, false, false},
        {nobody, new, true, false}, {old, nobody, true, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_session_journal_id first = now, second = now;
        invar_session_journal *log;

        first.agent = cases[i].wrote;
        second.agent = cases[i].reads;
        log = open_log(&first);
        lead(log, 4, 7, cases[i].ends);
        invar_session_journal_close(log);
        if (cases[i].refused) {
            assert_fails(invar_session_journal_open(&log, path, &second, &limits), INVAR_E_STATE,
                         "the agent has changed (hash 06000000, was 05000000) and 1 sessions of "
                         "rollout 3");
            second.number++; // the next rollout is the new one's
        }
        log = open_log(&second);
        assert_int_equal(has(log, 4, 7), cases[i].ends && !cases[i].refused);
        invar_session_journal_close(log);
        assert_int_equal(unlink(path), 0);
    }
}

/* The rollout before may have left more than memory has; its holes are no lines. */
static void test_log__leaves_other_rollouts_unread(void **state)
{
    invar_session_journal_id next = now;
    invar_session_journal *log = open_log(&now);

    (void)state;
    invar_session_journal_close(log);
    assert_int_equal(truncate(path, (off_t)1 << 33), 0);
    next.number++;
    log = open_log(&next);
    lead(log, 4, 7, true);
    invar_session_journal_close(log);
    log = open_log(&next);
    assert_true(has(log, 4, 7));
    invar_session_journal_close(log);
}

static void test_log__refuses_damage(void **state)
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
    char blank[2000], head[sizeof old_head];
    invar_session_journal *log;

    (void)state;
    memcpy(head, old_head, sizeof head);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char text[512];

        (void)snprintf(text, sizeof text, "%s%s", head, lines[i]);
        assert_ok(invar_file_write(path, text, strlen(text)));
        assert_fails(invar_session_journal_open(&log, path, &now, &limits), INVAR_E_CORRUPT,
                     "remove the file");
    }
    assert_ok(invar_file_write(path, "{\"invar_sessions\":2}\n", 21));
    assert_fails(invar_session_journal_open(&log, path, &now, &limits), INVAR_E_CORRUPT,
                 "sessions");
    memset(blank, ' ', sizeof blank);
    assert_ok(invar_file_write(path, blank, sizeof blank));
    assert_fails(invar_session_journal_open(&log, path, &now, &limits), INVAR_E_CORRUPT,
                 ":1: the line is longer than 1024 bytes; remove the file");
    memcpy(strstr(head, "\"weights\":\"") + strlen("\"weights\":\""), "x", 1);
    assert_ok(invar_file_write(path, head, strlen(head)));
    assert_fails(invar_session_journal_open(&log, path, &now, &limits), INVAR_E_CORRUPT,
                 ":1: \"weights\" is no hash of 32 hexadecimal digits; remove the file");
}

/* Each bit of the file, of the first line too, is covered by a sum. */
static void test_log__refuses_every_flipped_bit(void **state)
{
    invar_session_journal *log = open_log(&now);
    size_t bytes;
    char *text;

    (void)state;
    lead(log, 4, 7, true);
    lead(log, 5, 8, true);
    assert_false(invar_session_journal_unchecked(log));
    invar_session_journal_close(log);
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        invar_journal_contents logged = {0};

        text[bit / 8] ^= (char)(1 << bit % 8);
        assert_fails(invar_journal_contents_read(&logged, text, bytes, &now, &limits, "test"),
                     INVAR_E_CORRUPT, "test:");
        text[bit / 8] ^= (char)(1 << bit % 8);
        invar_journal_contents_release(&logged);
    }
    invar_free(text);
}

/* The file of another run of the same recipe, in the same rollout with the same weights. */
static void test_log__refuses_file_of_another_run(void **state)
{
    invar_session_journal_id mine = now, other = now;
    invar_session_journal *log;

    (void)state;
    mine.uuid = (invar_digest){{7}};
    other.uuid = (invar_digest){{8}};
    log = open_log(&other);
    lead(log, 4, 7, true);
    invar_session_journal_close(log);
    assert_fails(invar_session_journal_open(&log, path, &mine, &limits), INVAR_E_STATE,
                 "the sessions belong to run 08000000, not to this run");
    assert_int_equal(unlink(path), 0);
}

/* Version 1 had no sums: it is read, and stays as it is until the caller begins the new file. */
static void test_log__reads_version_1_unchecked(void **state)
{
    char old[1000], *text, *line, *end;
    invar_session_journal *log = open_log(&now);
    size_t bytes;

    (void)state;
    lead(log, 4, 7, true);
    invar_session_journal_close(log);
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    (void)snprintf(old, sizeof old, "%s", old_head);
    for (line = strchr(text, '\n') + 1; *line; line = end + 1) { // without their sums
        end = strchr(line, '\n');
        (void)snprintf(old + strlen(old), sizeof old - strlen(old), "%.*s}\n",
                       (int)(strstr(line, ",\"sum\":") - line), line);
    }
    assert_ok(invar_file_write(path, old, strlen(old)));
    invar_free(text);
    assert_ok(invar_session_journal_open(&log, path, &now, &limits));
    assert_true(invar_session_journal_unchecked(log));
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    assert_string_equal(text, old);
    invar_free(text);
    assert_ok(invar_session_journal_begin(log));
    assert_true(has(log, 4, 7));
    invar_session_journal_close(log);
    log = open_log(&now);
    assert_false(invar_session_journal_unchecked(log));
    assert_true(has(log, 4, 7));
    invar_session_journal_close(log);
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
        cmocka_unit_test_setup_teardown(test_log__keeps_sessions_that_ended, make_path,
                                        remove_path),
        cmocka_unit_test_setup_teardown(test_log__survives_any_cut, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_log__refuses_sessions_of_another_agent, make_path,
                                        remove_path),
        cmocka_unit_test_setup_teardown(test_log__leaves_other_rollouts_unread, make_path,
                                        remove_path),
        cmocka_unit_test_setup_teardown(test_log__refuses_damage, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_log__refuses_every_flipped_bit, make_path,
                                        remove_path),
        cmocka_unit_test_setup_teardown(test_log__refuses_file_of_another_run, make_path,
                                        remove_path),
        cmocka_unit_test_setup_teardown(test_log__reads_version_1_unchecked, make_path,
                                        remove_path),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
