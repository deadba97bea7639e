/*
 * async_sampler.c - tests of a thread beside its rank: while it gets on, other ranks wait for it,
 * and not where it hangs; who is stopped in the middle of a look ends soon.
 *
 * There are no samples: only the look takes its time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/async_sampler.h"

#include <time.h>

#include "tests/ranks.h"

#define PATIENCE 0.5 // seconds without a beat

enum { PIECES = 12 };

typedef struct looker {
    bool silent; /* it never says that it gets on */
    int pieces;  /* done */
} looker;

/* For twice as long as others wait. */
static invar_status look(void *payload, const invar_rl_sample *samples, int64_t count,
                         const invar_progress_callback *tick)
{
    looker *l = payload;

    (void)samples;
    (void)count;
    for (l->pieces = 0; l->pieces < PIECES; l->pieces++) {
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        if (!l->silent)
            INVAR_TRY(tick->run(tick->payload));
    }
    return INVAR_OK;
}

static invar_status part(rank_run *run)
{
    invar_layout layout;
    const invar_generate_args how = {.layout = &layout, .per_prompt = 1};
    const invar_verify_callback beside = {look, run->payload};
    invar_async_sampler *ahead;

    invar_layout_init(&layout, run->comm, PATIENCE);
    if (invar_comm_rank(run->comm) == 0) {
        INVAR_TRY(invar_async_sampler_begin(&ahead, &how, NULL, 0, &beside));
        INVAR_TRY(invar_async_sampler_join(ahead));
    }
    return invar_comm_run(
        run->comm,
        &(invar_comm_transfer){.op = INVAR_COMM_BARRIER, .phase = "join", .timeout_s = PATIENCE});
}

static void test_ahead__a_long_look_is_awaited(void **state)
{
    (void)state;
    for (int silent = 0; silent < 2; silent++) {
        looker l = {.silent = silent};
        rank_run runs[MAX_RANKS];

        run_ranks(runs, 2, 0, 0, part, &l);
        assert_int_equal(l.pieces, PIECES);
        assert_int_equal(runs[1].status == INVAR_OK, !silent);
    }
}

static void test_ahead__a_look_is_stopped(void **state)
{
    const invar_generate_args how = {.per_prompt = 1};
    looker l = {.silent = false};
    const invar_verify_callback beside = {look, &l};
    invar_async_sampler *ahead;

    (void)state;
    assert_ok(invar_async_sampler_begin(&ahead, &how, NULL, 0, &beside));
    invar_async_sampler_stop(ahead);
    assert_true(l.pieces < PIECES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ahead__a_long_look_is_awaited),
        cmocka_unit_test(test_ahead__a_look_is_stopped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
