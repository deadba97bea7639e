/*
 * session.c - tests of agent sessions: call numbers, branches, the sample, and ledger records.
 *
 * Token ids are written as digits. Expected branches and samples are literals, for calls in any
 * order; a record that is read and written again must have the same bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/agent/session.h"

#include <string.h>

#include "base/alloc.h"
#include "tests/support.h"

static const invar_agent_limits limits = {
    .vocab = 13, .context = 16, .max_calls = 3, .max_branches = 2};

/*
 * Adds a call whose token ids are the digits of both texts, with log-probs -1, -2, ... The call
 * stays in flight if `response` is empty.
 */
static invar_agent_call *add_call(invar_agent_session *s, const char *prompt, const char *response,
                                  int64_t number)
{
    int32_t ids[16];
    int64_t n = (int64_t)strlen(prompt), m = (int64_t)strlen(response);
    invar_agent_call *call;

    for (int64_t i = 0; i < n; i++)
        ids[i] = prompt[i] - '0';
    assert_ok(invar_agent_session_add(&call, s, ids, n, number));
    if (m == 0)
        return call;
    assert_ok(INVAR_ALLOC(call->response, (size_t)m, "test"));
    assert_ok(INVAR_ALLOC(call->logp, (size_t)m, "test"));
    for (int64_t i = 0; i < m; i++) {
        call->response[i] = response[i] - '0';
        call->logp[i] = -(float)(i + 1);
    }
    call->n_response = m;
    call->finish = INVAR_FINISH_STOP;
    return call;
}

static int64_t count_branches(const invar_agent_session *s)
{
    int64_t count;

    assert_ok(invar_agent_session_branches(&count, s));
    return count;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void test_session__numbers_calls_by_prompt(void **state)
{
    invar_agent_session s = {0};
    const invar_agent_call *first = add_call(&s, "12", "3", -1),
                           *second = add_call(&s, "12", "4", -1);
    const invar_agent_call *numbered = add_call(&s, "12", "5", 1),
                           *second_prompt = add_call(&s, "13", "4", -1);
    const int32_t prompt[] = {1, 2};
    uint32_t seeds[4] = {invar_agent_call_seed(first, 42), invar_agent_call_seed(second, 42),
                         invar_agent_call_seed(numbered, 42),
                         invar_agent_call_seed(second_prompt, 42)};

    (void)state;
    assert_int_equal(first->number, 0);
    assert_int_equal(second->number, 1);
    assert_int_equal(second_prompt->number, 0);
    assert_true(numbered->numbered && numbered->number == 1);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++)
            assert_int_not_equal(seeds[i], seeds[k]);
    assert_int_not_equal(seeds[0], invar_agent_call_seed(first, 43));
    assert_ptr_equal(invar_agent_session_find(&s, prompt, 2, true, 1), numbered);
    assert_ptr_equal(invar_agent_session_find(&s, prompt, 2, false, 1), second);
    assert_null(invar_agent_session_find(&s, prompt, 2, true, 0));
    assert_null(invar_agent_session_find(&s, prompt, 1, true, 1));
    // a removed call gives its number to the next call
    invar_agent_session_remove(&s, first);
    assert_int_equal(add_call(&s, "12", "", -1)->number, 0);
    invar_agent_session_release(&s);
}

/* ---- branches -------------------------------------------------------------------------------- */

static void test_session__branches(void **state)
{
    static const struct {
        const char *calls[5][2];
        int64_t branches;
    } cases[] = {
        {{{"1", "2"}}, 1},
        {{{"1", "2"}, {"123", "4"}, {"12345", "6"}}, 1},
        {{{"1", "2"}, {"13", "4"}}, 2},  // another history
        {{{"1", "22"}, {"12", "4"}}, 2}, // only a part of the response
        {{{"1", "2"}, {"12", "3"}}, 1},  // prompt equals the history: no new user tokens
        {{{"1", "2"}, {"123", "4"}, {"124", "5"}}, 2}, // two continuations
        {{{"1", "2"}, {"1", "3"}, {"125", "6"}, {"136", "7"}}, 2},
        {{{"1", "2"}, {"12", "3"}, {"1234", "5"}, {"124", "5"}}, 2},
        {{{"1", "2"}, {"", ""}}, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int rotation = 0; rotation < 4; rotation++) { // the order of calls does not matter
            invar_agent_session s = {0};
            int n = 0;

            while (n < 5 && cases[i].calls[n][0] && cases[i].calls[n][0][0])
                n++;
            for (int k = 0; k < n; k++) {
                const char *const *call = cases[i].calls[(k + rotation) % n];
                (void)add_call(&s, call[0], call[1], -1);
            }
            assert_int_equal(count_branches(&s), cases[i].branches);
            invar_agent_session_release(&s);
        }
}

/* A call in flight counts as a branch of its own until it has a response. */
static void test_session__counts_calls_in_flight(void **state)
{
    invar_agent_session s = {0};

    (void)state;
    (void)add_call(&s, "1", "", -1);
    (void)add_call(&s, "12", "", -1);
    assert_int_equal(count_branches(&s), 2);
    invar_agent_session_release(&s);
}

/* ---- samples --------------------------------------------------------------------------------- */

static invar_rl_sample new_sample(void)
{
    invar_rl_sample s = {.prompt_tokens = 1, .n_tokens = 1};

    assert_ok(INVAR_ALLOC(s.tokens, 1, "test"));
    s.tokens[0] = 7;
    return s;
}

static invar_tokenizer *digit_tokenizer(void)
{
    invar_tokenizer *tokenizer;

    assert_ok(invar_tokenizer_alphabet(&tokenizer, "0123456789<>?"));
    return tokenizer;
}

static void test_session__fills_a_sample(void **state)
{
    char branch[INVAR_AGENT_BRANCH_SIZE];
    invar_rl_sample sample = new_sample();
    invar_tokenizer *tokenizer = digit_tokenizer();
    invar_agent_session s = {0};

    (void)state;
    (void)add_call(&s, "13", "98",
                   -1); // sorted last, although added first: the prompt "1" is shorter
    (void)add_call(&s, "123", "45", -1);
    (void)add_call(&s, "1", "2", -1);
    assert_ok(invar_agent_session_fill(&sample, branch, &s, tokenizer, true));
    assert_int_equal(sample.n_tokens, 9);
    assert_int_equal(sample.prompt_tokens, 1);
    assert_memory_equal(sample.tokens, ((int32_t[]){1, 2, 3, 4, 5, 1, 3, 9, 8}), 36);
    assert_memory_equal(sample.mask, ((uint8_t[]){1, 0, 1, 1, 0, 0, 1, 1}), 8);
    assert_memory_equal(sample.logp, ((float[]){-1, 0, -1, -2, 0, 0, -1, -2}), 32);
    assert_int_equal(sample.n_branch_starts, 1);
    assert_int_equal(sample.branch_starts[0], 5);
    assert_int_equal(sample.turns, 3);
    assert_string_equal(sample.response, "24598");
    assert_int_equal(sample.finish, INVAR_FINISH_STOP);
    assert_string_equal(branch, "a prompt of 2 tokens goes on with no earlier call: it agrees with "
                                "one in its first 1 tokens");
    invar_rl_sample_release(&sample);
    invar_agent_session_release(&s);
    invar_tokenizer_free(tokenizer);
}

static void test_session__fills_a_sample_without_calls(void **state)
{
    char branch[INVAR_AGENT_BRANCH_SIZE];
    invar_rl_sample sample = new_sample();
    invar_tokenizer *tokenizer = digit_tokenizer();
    invar_agent_session s = {0};

    (void)state;
    assert_ok(invar_agent_session_fill(&sample, branch, &s, tokenizer, true));
    assert_int_equal(sample.n_tokens, 2);
    assert_int_equal(sample.prompt_tokens, 1);
    assert_memory_equal(sample.tokens, ((int32_t[]){7, 7}), 8);
    assert_int_equal(sample.mask[0], 0);
    assert_int_equal(sample.finish, INVAR_FINISH_ABORT);
    assert_string_equal(sample.response, "");
    assert_string_equal(branch, "");
    invar_rl_sample_release(&sample);
    invar_tokenizer_free(tokenizer);
}

/* ---- records --------------------------------------------------------------------------------- */

static void test_session__round_trip_of_a_record(void **state)
{
    static const char words[] = "{\"id\":3,\"reward\":{\"a\":0.5,\"b\":true},\"why\":\"so\"}";
    invar_json_text first = {0}, second = {0};
    invar_agent_session s = {0}, restored = {0};

    (void)state;
    (void)add_call(&s, "13", "98", -1);
    (void)add_call(&s, "1", "2", 4000000000);
    assert_ok(invar_agent_session_sort(&s));
    assert_int_equal(s.calls[0]->n_prompt, 1);
    assert_ok(invar_agent_session_end(&s, words, strlen(words), "test"));
    assert_true(s.rewarded && s.reward == 1.5 && s.parts.count == 2 && !s.error);
    invar_agent_session_write(&first, &s);
    assert_ok(first.status);
    assert_ok(invar_agent_session_read(&restored, first.data, first.bytes, &limits, "test"));
    invar_agent_session_write(&second, &restored);
    assert_int_equal(first.bytes, second.bytes);
    assert_memory_equal(first.data, second.data, first.bytes);
    assert_true(restored.rewarded && restored.reward == 1.5 && restored.parts.count == 2);
    assert_int_equal(restored.calls[0]->number, 4000000000);
    invar_json_text_release(&first);
    invar_json_text_release(&second);
    invar_agent_session_release(&s);
    invar_agent_session_release(&restored);
}

static void test_session__records_failures(void **state)
{
    invar_agent_session s = {0}, restored = {0};
    invar_json_text text = {0};

    (void)state;
    assert_ok(invar_agent_session_fail(&s, "it \"hangs\""));
    assert_non_null(strstr(s.error, "hangs"));
    assert_false(s.rewarded);
    invar_agent_session_write(&text, &s);
    assert_ok(invar_agent_session_read(&restored, text.data, text.bytes, &limits, "test"));
    assert_string_equal(restored.error, s.error);
    invar_json_text_release(&text);
    invar_agent_session_release(&s);
    invar_agent_session_release(&restored);
}

/* Calls are rejected before the record of the session exceeds the size limit of the ledger. */
static void test_session__keeps_its_record_small(void **state)
{
    enum { TOKENS = 1 << 20, ID = 1000000 }; // 8 MiB of text per prompt, with commas
    invar_agent_session s = {0};
    invar_agent_call *call;
    int32_t *ids;

    (void)state;
    assert_ok(INVAR_ALLOC(ids, TOKENS, "test"));
    for (int i = 0; i < TOKENS; i++)
        ids[i] = ID;
    for (int i = 0; i < 3; i++)
        assert_ok(invar_agent_session_add(&call, &s, ids, TOKENS, i));
    assert_fails(invar_agent_session_add(&call, &s, ids, TOKENS, 3), INVAR_E_INVALID,
                 "more than 32 MiB");
    assert_int_equal(s.n_calls, 3);
    assert_ok(
        invar_agent_session_add(&call, &s, ids, TOKENS - 64, 3)); // fills the rest of the limit
    call->response = ids;
    call->n_response = 64;
    assert_fails(invar_agent_session_add(&call, &s, ids, 1, 4), INVAR_E_INVALID, "end the session");
    invar_agent_session_release(&s);
}

static void test_session__refuses_damaged_records(void **state)
{
#define NUMBERED(n) "{\"number\":" #n ",\"prompt\":[1],\"response\":[2],\"finish\":\"stop\"}"
#define THREE NUMBERED(0) "," NUMBERED(1) "," NUMBERED(2)
#define CALL "{\"occurrence\":0,\"prompt\":[1],\"response\":[2],\"finish\":\"stop\"}"
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "test"},
        {"[]", "no list \"calls\""},
        {"{\"calls\":[],\"end\":7}", "no object \"end\""},
        {"{\"calls\":[" CALL "]}", "no object \"end\""},
        {"{\"calls\":[7],\"end\":{}}", "\"prompt\" of a call is no list of 1 to 16"},
        {"{\"calls\":[" CALL "," CALL "],\"end\":{}}", "a call is recorded twice"},
        {"{\"calls\":[{\"prompt\":[1],\"response\":[2],\"finish\":\"stop\"}],\"end\":{}}",
         "occurrence"},
        {"{\"calls\":[{\"number\":-1,\"prompt\":[1],\"response\":[2],\"finish\":\"stop\"}],"
         "\"end\":{}}",
         "number"},
        {"{\"calls\":[{\"number\":1,\"prompt\":[],\"response\":[2],\"finish\":\"stop\"}],"
         "\"end\":{}}",
         "\"prompt\" of a call is no list"},
        {"{\"calls\":[{\"number\":1,\"prompt\":[13],\"response\":[2],\"finish\":\"stop\"}],"
         "\"end\":{}}",
         "no token at 0"},
        {"{\"calls\":[{\"number\":1,\"prompt\":[1],\"response\":[2.5],\"finish\":\"stop\"}],"
         "\"end\":{}}",
         "no token at 0"},
        {"{\"calls\":[{\"number\":1,\"prompt\":[1],\"response\":[2],\"finish\":\"abort\"}],"
         "\"end\":{}}",
         "neither stop nor length"},
        {"{\"calls\":[{\"number\":1,\"prompt\":[1,1,1,1,1,1,1,1,1],\"response\":"
         "[1,1,1,1,1,1,1,1],\"finish\":\"stop\"}],\"end\":{}}",
         "17 tokens; the context has 16"},
        {"{\"calls\":[],\"end\":{\"reward\":\"much\"}}", "neither a number nor an object"},
        {"{\"calls\":[],\"end\":{\"reward\":1e999}}", "test"},
        {"{\"calls\":[],\"end\":{\"error\":7}}", "\"error\" is no text"},
        {"{\"calls\":[" THREE "," NUMBERED(3) "],\"end\":{}}",
         "more than 3 calls (agent-max-calls)"},
        {"{\"calls\":[" THREE "],\"end\":{}}", "3 branches, more than 2 (agent-max-branches)"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_agent_session s = {0};
        assert_fails(
            invar_agent_session_read(&s, cases[i].text, strlen(cases[i].text), &limits, "test"),
            INVAR_E_CORRUPT, cases[i].message);
        invar_agent_session_release(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session__numbers_calls_by_prompt),
        cmocka_unit_test(test_session__branches),
        cmocka_unit_test(test_session__counts_calls_in_flight),
        cmocka_unit_test(test_session__fills_a_sample),
        cmocka_unit_test(test_session__fills_a_sample_without_calls),
        cmocka_unit_test(test_session__round_trip_of_a_record),
        cmocka_unit_test(test_session__records_failures),
        cmocka_unit_test(test_session__keeps_its_record_small),
        cmocka_unit_test(test_session__refuses_damaged_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
