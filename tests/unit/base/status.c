/*
 * status.c - tests of status codes and the per-thread error record.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/status.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support.h"

static void test_base_status__starts_without_failure(void **state)
{
    (void)state;
    invar_error_clear();
    assert_non_null(invar_error_last());
    assert_int_equal(invar_error_last()->status, INVAR_OK);
    assert_string_equal(invar_error_last()->message, "");
}

static void test_base_status__fail_fills_the_record(void **state)
{
    int line = __LINE__ + 1;
    invar_status status = INVAR_FAIL(INVAR_E_IO, 42, "disk %d of %s", 7, "array");

    (void)state;
    assert_int_equal(status, INVAR_E_IO);
    assert_int_equal(invar_error_last()->status, INVAR_E_IO);
    assert_int_equal(invar_error_last()->native, 42);
    assert_int_equal(invar_error_last()->line, line);
    assert_non_null(strstr(invar_error_last()->file, "status.c"));
    assert_string_equal(invar_error_last()->message, "disk 7 of array");
}

static void test_base_status__long_message_is_cut(void **state)
{
    char text[2 * INVAR_ERROR_MESSAGE_SIZE];

    (void)state;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_fails(INVAR_FAIL(INVAR_E_IO, 0, "%s", text), INVAR_E_IO, "xxx");
    assert_int_equal(strlen(invar_error_last()->message), INVAR_ERROR_MESSAGE_SIZE - 1);
    text[1000] = '\0'; // room for two paths and a remedy
    assert_fails(INVAR_FAIL(INVAR_E_IO, 0, "%s", text), INVAR_E_IO, text);
}

static void test_base_status__message_may_quote_the_last_one(void **state)
{
    (void)state;
    assert_int_equal(INVAR_FAIL(INVAR_E_IO, 0, "inner"), INVAR_E_IO);
    assert_int_equal(INVAR_FAIL(INVAR_E_IO, 0, "outer: %s", invar_error_last()->message),
                     INVAR_E_IO);
    assert_string_equal(invar_error_last()->message, "outer: inner");
}

static void test_base_status__take_clears_and_put_restores(void **state)
{
    invar_error error;

    (void)state;
    assert_int_equal(INVAR_FAIL(INVAR_E_BUSY, 3, "held"), INVAR_E_BUSY);
    invar_error_take(&error);
    assert_int_equal(invar_error_last()->status, INVAR_OK);
    assert_string_equal(invar_error_last()->message, "");
    invar_error_put(&error);
    assert_int_equal(invar_error_last()->status, INVAR_E_BUSY);
    assert_int_equal(invar_error_last()->native, 3);
    assert_string_equal(invar_error_last()->message, "held");
}

static void *fail_elsewhere(void *payload)
{
    (void)payload;
    (void)INVAR_FAIL(INVAR_E_CORRUPT, 0, "in another thread");
    return NULL;
}

static void test_base_status__record_belongs_to_the_thread(void **state)
{
    pthread_t thread;

    (void)state;
    assert_int_equal(INVAR_FAIL(INVAR_E_STATE, 0, "in this thread"), INVAR_E_STATE);
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(invar_error_last()->message, "in this thread");
}

static invar_status try_twice(int *reached, invar_status first, invar_status second)
{
    *reached = 0;
    INVAR_TRY(first);
    *reached = 1;
    INVAR_TRY(second);
    *reached = 2;
    return INVAR_OK;
}

static void test_base_status__try_returns_the_first_failure(void **state)
{
    int reached;

    (void)state;
    assert_int_equal(try_twice(&reached, INVAR_E_IO, INVAR_E_SQL), INVAR_E_IO);
    assert_int_equal(reached, 0);
    assert_int_equal(try_twice(&reached, INVAR_OK, INVAR_E_SQL), INVAR_E_SQL);
    assert_int_equal(reached, 1);
    assert_int_equal(try_twice(&reached, INVAR_OK, INVAR_OK), INVAR_OK);
    assert_int_equal(reached, 2);
}

static void test_base_status__advice_follows_its_own_code_only(void **state)
{
    invar_status status = INVAR_FAIL(INVAR_E_NOMEM, 7, "the cache: no room");

    (void)state;
    assert_int_equal(invar_error_advise(status, INVAR_E_IO, "buy a disk"), INVAR_E_NOMEM);
    assert_string_equal(invar_error_last()->message, "the cache: no room");
    assert_int_equal(invar_error_advise(status, INVAR_E_NOMEM, "lower kv-pages"), INVAR_E_NOMEM);
    assert_string_equal(invar_error_last()->message, "the cache: no room; lower kv-pages");
    assert_int_equal(invar_error_last()->native, 7);
    for (int i = 0; i < 300; i++) // longer messages are cut
        assert_int_equal(invar_error_advise(status, INVAR_E_NOMEM, "lower kv-pages"), status);
    assert_int_equal(strlen(invar_error_last()->message), INVAR_ERROR_MESSAGE_SIZE - 1);
    assert_int_equal(invar_error_advise(INVAR_OK, INVAR_OK, "nothing"), INVAR_OK);
}

static void test_base_status__a_key_stands_before_the_message(void **state)
{
    invar_status status = INVAR_FAIL(INVAR_E_IO, 2, "a.jinja: no such file");

    (void)state;
    assert_int_equal(invar_error_of_key(status, "chat-template-path"), INVAR_E_IO);
    assert_string_equal(invar_error_last()->message, "chat-template-path: a.jinja: no such file");
    assert_int_equal(invar_error_last()->native, 2);
    for (int i = 0; i < 300; i++) // longer messages are cut
        assert_int_equal(invar_error_of_key(status, "chat-template-path"), status);
    assert_int_equal(strlen(invar_error_last()->message), INVAR_ERROR_MESSAGE_SIZE - 1);
    assert_int_equal(invar_error_of_key(INVAR_OK, "nowhere"), INVAR_OK);
}

static void test_base_status__every_code_has_its_own_name(void **state)
{
    (void)state;
    assert_string_equal(invar_status_name(INVAR_OK), "OK");
    for (int a = 0; a >= INVAR_E_NODEVICE; a--) {
        assert_string_not_equal(invar_status_name((invar_status)a), "UNKNOWN");
        for (int b = 0; b > a; b--)
            assert_string_not_equal(invar_status_name((invar_status)a),
                                    invar_status_name((invar_status)b));
    }
    assert_string_equal(invar_status_name((invar_status)1), "UNKNOWN");
    assert_string_equal(invar_status_name((invar_status)(INVAR_E_NODEVICE - 1)), "UNKNOWN");
}

static void test_base_status__broken_invariant_aborts_with_one_line(void **state)
{
    char text[512] = "";
    int pipe_ends[2], result;
    pid_t child;

    (void)state;
    INVAR_CHECK(1 + 1 == 2);
    assert_int_equal(pipe(pipe_ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipe_ends[1], STDERR_FILENO);
        INVAR_CHECK(1 + 1 == 3);
        _exit(0);
    }
    close(pipe_ends[1]);
    assert_true(read(pipe_ends[0], text, sizeof text - 1) > 0);
    close(pipe_ends[0]);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT);
    assert_non_null(strstr(text, "1 + 1 == 3"));
    assert_non_null(strstr(text, "status.c:"));
    assert_int_equal(strcspn(text, "\n"), strlen(text) - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_status__starts_without_failure),
        cmocka_unit_test(test_base_status__fail_fills_the_record),
        cmocka_unit_test(test_base_status__long_message_is_cut),
        cmocka_unit_test(test_base_status__message_may_quote_the_last_one),
        cmocka_unit_test(test_base_status__take_clears_and_put_restores),
        cmocka_unit_test(test_base_status__record_belongs_to_the_thread),
        cmocka_unit_test(test_base_status__try_returns_the_first_failure),
        cmocka_unit_test(test_base_status__advice_follows_its_own_code_only),
        cmocka_unit_test(test_base_status__a_key_stands_before_the_message),
        cmocka_unit_test(test_base_status__every_code_has_its_own_name),
        cmocka_unit_test(test_base_status__broken_invariant_aborts_with_one_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
