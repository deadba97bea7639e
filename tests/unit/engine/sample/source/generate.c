/*
 * generate.c - tests of samples that another rank has sampled: received completely, or rejected.
 *
 * Rank 1 runs invar_generate without samples of its own. Rank 0 is the test itself, which sends a
 * valid message, or one with a wrong field, a wrong last byte or missing bytes. In the last test
 * rank 0 samples slowly.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/generate.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "engine/ranks/layout/rank_collectives.h"
#include "tests/model.h"
#include "tests/ranks.h"

enum { PROMPT = 2, RESPONSE = 3, ROUTE = 2, TEXT = 4, HEAD = 11 };

static const int32_t prompt[PROMPT] = {7, 8}, answer[RESPONSE] = {1, 2, 3};
static const float logp[RESPONSE] = {-0.5f, -1.0f, -0.25f};
static const uint8_t mask[RESPONSE] = {1, 1, 1};
static const int32_t routing[(PROMPT + RESPONSE - 1) * ROUTE] = {3, 1, 0, 2, 1, 3, 2, 0};
static const char text[TEXT + 1] = "a\0bc"; /* contains a NUL */

/* A message with one sample, and its faults. */
typedef struct message {
    int64_t head[HEAD]; /* prompt and response tokens, branch starts, route size, text bytes,
                           finish, turns, arrival; speculation: passes, drafted, accepted */
    size_t cut;         /* number of bytes at the end that are not sent */
    char end;           /* byte after the text; valid is NUL */
} message;

static message valid_message(void)
{
    return (message){{PROMPT, RESPONSE, 0, ROUTE, TEXT, INVAR_FINISH_STOP, 0, 5, 9, 8, 7}, 0, '\0'};
}

static size_t append_bytes(char *to, size_t at, const void *data, size_t bytes)
{
    memcpy(to + at, data, bytes);
    return at + bytes;
}

static invar_status send_message(const message *m, const invar_layout *layout)
{
    char bytes[400];
    size_t n = 0, out_bytes[2] = {0, 0};
    char arrived[400];
    int64_t own, sizes[2];

    n = append_bytes(bytes, n, m->head, sizeof m->head);
    n = append_bytes(bytes, n, prompt, sizeof prompt);
    n = append_bytes(bytes, n, answer, sizeof answer);
    n = append_bytes(bytes, n, logp, sizeof logp);
    n = append_bytes(bytes, n, mask, sizeof mask);
    n = append_bytes(bytes, n, routing, sizeof routing);
    n = append_bytes(bytes, n, text, TEXT);
    n = append_bytes(bytes, n, &m->end, 1);
    own = (int64_t)(n - m->cut);
    INVAR_TRY(invar_ranks_all_gather(layout, "rollout", &own, sizeof own, sizes));
    out_bytes[0] = (size_t)own;
    return invar_comm_run(layout->world, &(invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV,
                                                                .phase = "rollout",
                                                                .timeout_s = 60,
                                                                .in = bytes,
                                                                .out = arrived,
                                                                .out_bytes = out_bytes});
}

static bool is_expected(const invar_rl_sample *s)
{
    return s->n_tokens == PROMPT + RESPONSE && memcmp(s->tokens, prompt, sizeof prompt) == 0 &&
           memcmp(s->tokens + PROMPT, answer, sizeof answer) == 0 &&
           memcmp(s->logp, logp, sizeof logp) == 0 && memcmp(s->mask, mask, sizeof mask) == 0 &&
           s->route_size == ROUTE && memcmp(s->routing, routing, sizeof routing) == 0 &&
           s->response_bytes == TEXT && memcmp(s->response, text, sizeof text) == 0 &&
           s->finish == INVAR_FINISH_STOP && s->stats.arrival == 5 && s->reward == 1 &&
           s->stats.speculated.passes == 9 && s->stats.speculated.drafted == 8 &&
           s->stats.speculated.accepted == 7;
}

static invar_status receive_sample(const invar_layout *layout)
{
    const invar_generate_args args = {
        .layout = layout, .reward_source.reward = INVAR_REWARD_OVERLAP, .per_prompt = 1};
    invar_rl_sample s = {
        .prompt_tokens = PROMPT, .n_tokens = PROMPT, .data.label = "a", .data.metadata = "{}"};
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(s.tokens, PROMPT, "a prompt"));
    memcpy(s.tokens, prompt, sizeof prompt);
    status = invar_generate(&args, &s, 1);
    if (status == INVAR_OK && !is_expected(&s))
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "another sample");
    invar_rl_sample_release(&s);
    return status;
}

static invar_status run_rank(rank_run *run)
{
    invar_layout layout;

    invar_layout_init(&layout, run->comm, 60);
    return invar_comm_rank(run->comm) == 0 ? send_message(run->payload, &layout)
                                           : receive_sample(&layout);
}

static invar_status receive_message(message m)
{
    rank_run runs[MAX_RANKS];

    run_ranks(runs, 2, 0, 0, run_rank, &m);
    assert_int_equal(runs[0].status, INVAR_OK);
    return runs[1].status;
}

static void test_generate__receives_a_sample(void **state)
{
    (void)state;
    assert_int_equal(receive_message(valid_message()), INVAR_OK);
}

static void test_generate__refuses_damage(void **state)
{
    static const int64_t wrong[] = {1, -2, 100, 1 << 30, INT64_MAX / 8, INT64_MAX, INT64_MIN};
    message m = valid_message();

    (void)state;
    m.end = 'x';
    assert_int_equal(receive_message(m), INVAR_E_CORRUPT);
    for (size_t cut = 1; cut < 100; cut++) {
        m = valid_message();
        m.cut = cut;
        assert_int_equal(receive_message(m), INVAR_E_CORRUPT);
    }
    for (int field = 0; field < 6; field++) // field 5 is the finish, for which 1 is valid
        for (size_t i = field < 5 ? 0 : 1; i < sizeof wrong / sizeof *wrong; i++) {
            m = valid_message();
            m.head[field] = wrong[i];
            assert_int_equal(receive_message(m), INVAR_E_CORRUPT);
        }
}

/* ---- a slow rank ----------------------------------------------------------------------------- */

enum { PASSES = 8 };

static invar_status sleep_in_pass(void *payload, int64_t samples_done, int64_t tokens_done)
{
    (void)payload;
    (void)samples_done;
    (void)tokens_done;
    nanosleep(&(struct timespec){.tv_nsec = 250000000}, NULL);
    return INVAR_OK;
}

/* Rank 0 samples for twice the timeout of rank 1, with heartbeats after each pass. */
static invar_status sample_slowly(rank_run *run)
{
    invar_layout layout;
    invar_generate_args args = {
        .layout = &layout,
        .sampling = {.temperature = 1.0f, .top_p = 1.0f, .max_response = PASSES},
        .per_prompt = 1};
    invar_rl_sample s = {
        .prompt_tokens = PROMPT, .n_tokens = PROMPT, .data.label = "", .data.metadata = "{}"};
    invar_status status;

    invar_layout_init(&layout, run->comm, 1);
    if (invar_comm_rank(run->comm) == 0) {
        args.rollout = run->payload;
        args.tick = sleep_in_pass;
    }
    INVAR_TRY(INVAR_ALLOC(s.tokens, PROMPT, "a prompt"));
    memcpy(s.tokens, prompt, sizeof prompt);
    status = invar_generate(&args, &s, 1);
    if (status == INVAR_OK && s.n_tokens != PROMPT + PASSES)
        status = INVAR_FAIL(INVAR_E_MISMATCH, 0, "another sample");
    invar_rl_sample_release(&s);
    return status;
}

static void test_generate__a_slow_rank_is_awaited(void **state)
{
    const invar_rollout_exec_options limits = {
        .concurrency = 1, .prefill_chunk = 8, .page_size = 4, .pages = 8};
    const invar_device *dev = *state;
    invar_model *model =
        invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 11, &dev[0]);
    rank_run runs[MAX_RANKS];
    invar_rollout *rollout;

    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, &limits));
    run_ranks(runs, 2, 0, 0, sample_slowly, rollout);
    assert_ok(ranks_status(runs, 2));
    invar_rollout_free(rollout);
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate__receives_a_sample),
        cmocka_unit_test(test_generate__refuses_damage),
        cmocka_unit_test(test_generate__a_slow_rank_is_awaited),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
