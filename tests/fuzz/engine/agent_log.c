/*
 * agent_log.c - fuzz target: agent sessions, in the journal of a rollout and in a ledger.
 *
 * The input is read as the lines after a valid head of a journal, and as the record of one session.
 * An accepted session has tokens of the vocabulary within the context, keeps its limits, has a
 * valid number of branches, and is written and read again to the same bytes. The corpus is from a
 * run of tests/e2e/agents.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/agent/session_journal.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

enum { VOCABULARY = 14, CONTEXT = 16, CALLS = 12, BRANCHES = 8 };

static const invar_agent_limits limits = {
    .vocab = VOCABULARY, .context = CONTEXT, .max_calls = CALLS, .max_branches = BRANCHES};
static const invar_session_journal_id rollout = {.number = 3};
static const char head[] =
    "{\"invar_sessions\":1,\"rollout\":3,\"run\":\"00000000000000000000000000000000\","
    "\"weights\":\"00000000000000000000000000000000\"}\n";

static void check_calls(const invar_agent_session *s)
{
    INVAR_CHECK(s->n_calls <= CALLS);
    for (int64_t i = 0; i < s->n_calls; i++) {
        const invar_agent_call *c = s->calls[i];

        INVAR_CHECK(c->n_prompt >= 1 && c->n_response >= 1);
        INVAR_CHECK(c->n_prompt + c->n_response <= CONTEXT);
        INVAR_CHECK(c->number >= 0 && c->number <= UINT32_MAX);
        for (int64_t k = 0; k < c->n_prompt; k++)
            INVAR_CHECK(c->prompt[k] >= 0 && c->prompt[k] < VOCABULARY);
        for (int64_t k = 0; k < c->n_response; k++)
            INVAR_CHECK(c->response[k] >= 0 && c->response[k] < VOCABULARY);
    }
}

static void check_branches(const invar_agent_session *s)
{
    int64_t branches;

    INVAR_CHECK(invar_agent_session_branches(&branches, s) == INVAR_OK);
    INVAR_CHECK(branches <= s->n_calls && (branches > 0) == (s->n_calls > 0));
    INVAR_CHECK(!s->end || branches <= BRANCHES);
}

static void check_round_trip(const invar_agent_session *s)
{
    invar_json_text first = {0}, second = {0};
    invar_agent_session reread = {0};

    invar_agent_session_write(&first, s);
    INVAR_CHECK(first.status == INVAR_OK);
    INVAR_CHECK(invar_agent_session_read(&reread, first.data, first.bytes, &limits, "fuzz") ==
                INVAR_OK);
    invar_agent_session_write(&second, &reread);
    INVAR_CHECK(first.bytes == second.bytes && memcmp(first.data, second.data, first.bytes) == 0);
    INVAR_CHECK(reread.rewarded == s->rewarded && !reread.error == !s->error);
    INVAR_CHECK(!s->rewarded || isfinite(s->reward));
    invar_json_text_release(&first);
    invar_json_text_release(&second);
    invar_agent_session_release(&reread);
}

static void check_session(const invar_agent_session *s)
{
    check_calls(s);
    check_branches(s);
    if (s->end)
        check_round_trip(s);
}

static void read_file(const uint8_t *data, size_t size)
{
    invar_journal_contents logged = {0};
    invar_status status;
    char *text;

    INVAR_CHECK(INVAR_ALLOC(text, sizeof head + size, "fuzz") == INVAR_OK);
    memcpy(text, head, sizeof head - 1);
    if (size)
        memcpy(text + sizeof head - 1, data, size);
    status = invar_journal_contents_read(&logged, text, sizeof head - 1 + size, &rollout, &limits,
                                         "fuzz");
    INVAR_CHECK(status == INVAR_OK || status == INVAR_E_CORRUPT);
    if (status != INVAR_OK)
        fuzz_check_failure(status);
    for (int64_t i = 0; status == INVAR_OK && i < logged.count; i++)
        check_session(&logged.items[i].session);
    invar_journal_contents_release(&logged);
    invar_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    invar_agent_session s = {0};
    invar_status status;

    read_file(data, size);
    status = invar_agent_session_read(&s, (const char *)data, size, &limits, "fuzz");
    INVAR_CHECK(status == INVAR_OK || status == INVAR_E_CORRUPT);
    if (status == INVAR_OK)
        check_session(&s);
    else
        fuzz_check_failure(status);
    invar_agent_session_release(&s);
    return 0;
}
