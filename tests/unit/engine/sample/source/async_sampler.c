/*
 * async_sampler.c - tests of the sampling thread: heartbeats while it works, and stopping it early.
 *
 * There are no samples; only the verify callback takes time. Control: without heartbeats, the other
 * rank times out.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/async_sampler.h"

#include <time.h>

#include "tests/ranks.h"

#define TIMEOUT_S 0.5 // timeout without heartbeats, in seconds

enum { PIECES = 12 };

typedef struct slow_verifier {
    bool silent; /* the callback sends no heartbeats */
    int pieces;  /* number of completed pieces of work */
} slow_verifier;

/* Takes more than twice the timeout of the other rank. */
static invar_status verify_slowly(void *payload, const invar_rl_sample *samples, int64_t count,
                                  const invar_progress_callback *tick)
{
    slow_verifier *l = payload;

    (void)samples;
    (void)count;
    for (l->pieces = 0; l->pieces < PIECES; l->pieces++) {
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        if (!l->silent)
            INVAR_TRY(tick->run(tick->payload));
    }
    return INVAR_OK;
}

static invar_status run_rank(rank_run *run)
{
    invar_layout layout;
    const invar_generate_args args = {.layout = &layout, .per_prompt = 1};
    const invar_verify_callback verify = {verify_slowly, run->payload};
    invar_async_sampler *sampler;

    invar_layout_init(&layout, run->comm, TIMEOUT_S);
    if (invar_comm_rank(run->comm) == 0) {
        INVAR_TRY(invar_async_sampler_begin(&sampler, &args, NULL, 0, &verify));
        INVAR_TRY(invar_async_sampler_join(sampler));
    }
    return invar_comm_run(
        run->comm,
        &(invar_comm_transfer){.op = INVAR_COMM_BARRIER, .phase = "join", .timeout_s = TIMEOUT_S});
}

static void test_async_sampler__heartbeats_keep_ranks_waiting(void **state)
{
    (void)state;
    for (int silent = 0; silent < 2; silent++) {
        slow_verifier l = {.silent = silent};
        rank_run runs[MAX_RANKS];

        run_ranks(runs, 2, 0, 0, run_rank, &l);
        assert_int_equal(l.pieces, PIECES);
        assert_int_equal(runs[1].status == INVAR_OK, !silent);
    }
}

static void test_async_sampler__stops_early(void **state)
{
    const invar_generate_args args = {.per_prompt = 1};
    slow_verifier l = {.silent = false};
    const invar_verify_callback verify = {verify_slowly, &l};
    invar_async_sampler *sampler;

    (void)state;
    assert_ok(invar_async_sampler_begin(&sampler, &args, NULL, 0, &verify));
    invar_async_sampler_stop(sampler);
    assert_true(l.pieces < PIECES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_async_sampler__heartbeats_keep_ranks_waiting),
        cmocka_unit_test(test_async_sampler__stops_early),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
