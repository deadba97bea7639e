/*
 * random_delays.c - invar with random delays in its threads, and failures of sampling on request.
 *
 * Environment:
 *   INVAR_TEST_DELAYS=SEED   threads sleep before passes of models, copies between ranks, optimizer
 *                            steps and rollouts, sometimes for long
 *   INVAR_TEST_FAILURE=N     the N-th rollout that ends with samples in flight runs out of memory
 *                            after sampling; like the delays, this must not change a bit
 *   INVAR_TEST_STALE=N       from the N-th copy of a model on, nothing is copied
 *   INVAR_TEST_PATIENCE=MS   time-out of ranks; the first rank that scores during training is slow:
 *                            a pass takes an eighth of MS
 *   INVAR_TEST_KILL          the program is killed when it begins a journal
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "engine/files/journal.h"
#include "engine/model/forward.h"
#include "engine/ranks/comm/comm.h"
#include "engine/sample/source/async_sampler.h"
#include "engine/train/learner.h"
#include "tests/device/wrapped_rollout.h"

#define SHORT_NS 1000000u // upper bound of most delays
#define LONG_NS 30000000u // upper bound of one delay in SELDOM
#define SELDOM 64

/* Returns a number that depends on all bits of x (the finalizer of splitmix64). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Sleeps, one time in three. */
static void sleep_randomly(void)
{
    static atomic_ullong n_calls;
    const char *seed = getenv("INVAR_TEST_DELAYS");
    uint64_t chance;

    if (!seed)
        return;
    chance = mix(strtoull(seed, NULL, 10) * 0x9E3779B97F4A7C15u + atomic_fetch_add(&n_calls, 1));
    if (chance % 3 == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(chance / 192 %
                                                       (chance / 3 % SELDOM ? SHORT_NS : LONG_NS))},
                  NULL);
}

/* ---- a slow check ---------------------------------------------------------------------------- */

static _Thread_local bool checks_slowly;

static long patience_ms(void)
{
    const char *patience = getenv("INVAR_TEST_PATIENCE");

    return patience ? atol(patience) : 0;
}

void __real_invar_layout_init(invar_layout *layout, invar_comm *world, double seconds);
void __wrap_invar_layout_init(invar_layout *layout, invar_comm *world, double seconds);

void __wrap_invar_layout_init(invar_layout *layout, invar_comm *world, double seconds)
{
    __real_invar_layout_init(layout, world, patience_ms() ? (double)patience_ms() / 1000 : seconds);
}

invar_status __real_invar_train_loop_verify_async(void *loop, const invar_rl_sample *samples,
                                                  int64_t count,
                                                  const invar_progress_callback *tick);
invar_status __wrap_invar_train_loop_verify_async(void *loop, const invar_rl_sample *samples,
                                                  int64_t count,
                                                  const invar_progress_callback *tick);

invar_status __wrap_invar_train_loop_verify_async(void *loop, const invar_rl_sample *samples,
                                                  int64_t count,
                                                  const invar_progress_callback *tick)
{
    static _Atomic(void *) first;
    void *unset = NULL;
    invar_status status;

    (void)atomic_compare_exchange_strong(&first, &unset, loop);
    checks_slowly = patience_ms() && loop == atomic_load(&first);
    status = __real_invar_train_loop_verify_async(loop, samples, count, tick);
    checks_slowly = false;
    return status;
}

/* ---- passes, copies between ranks, steps ----------------------------------------------------- */

invar_status __real_invar_pass_run(invar_pass *pass, const invar_model *model,
                                   const invar_packed_rows *rows);
invar_status __wrap_invar_pass_run(invar_pass *pass, const invar_model *model,
                                   const invar_packed_rows *rows);

invar_status __wrap_invar_pass_run(invar_pass *pass, const invar_model *model,
                                   const invar_packed_rows *rows)
{
    sleep_randomly();
    if (checks_slowly)
        nanosleep(&(struct timespec){.tv_nsec = patience_ms() * 125000}, NULL);
    return __real_invar_pass_run(pass, model, rows);
}

invar_status __real_invar_comm_run(invar_comm *comm, const invar_comm_transfer *move);
invar_status __wrap_invar_comm_run(invar_comm *comm, const invar_comm_transfer *move);

invar_status __wrap_invar_comm_run(invar_comm *comm, const invar_comm_transfer *move)
{
    sleep_randomly();
    return __real_invar_comm_run(comm, move);
}

invar_status __real_invar_learner_step(invar_learner *learner, int64_t step, bool rest);
invar_status __wrap_invar_learner_step(invar_learner *learner, int64_t step, bool rest);

invar_status __wrap_invar_learner_step(invar_learner *learner, int64_t step, bool rest)
{
    sleep_randomly();
    return __real_invar_learner_step(learner, step, rest);
}

invar_status __real_invar_model_copy(invar_model *to, const invar_model *from);
invar_status __wrap_invar_model_copy(invar_model *to, const invar_model *from);

invar_status __wrap_invar_model_copy(invar_model *to, const invar_model *from)
{
    static atomic_int copies;
    const char *stale = getenv("INVAR_TEST_STALE");

    if (stale && atomic_fetch_add(&copies, 1) + 1 >= atoi(stale))
        return INVAR_OK;
    return __real_invar_model_copy(to, from);
}

/* ---- rollouts -------------------------------------------------------------------------------- */

invar_status __wrap_invar_rollout_run(invar_rollout *rollout, invar_rl_sample *samples,
                                      int64_t count, const invar_sampling_params *sampling,
                                      progress_fn tick, void *payload)
{
    static atomic_int n_suspended;
    const char *fails = getenv("INVAR_TEST_FAILURE");

    sleep_randomly();
    INVAR_TRY(__real_invar_rollout_run(rollout, samples, count, sampling, tick, payload));
    if (fails && samples[count - 1].suspend_at > 0 &&
        atomic_fetch_add(&n_suspended, 1) + 1 == atoi(fails))
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "a test: no memory for samples ahead");
    return INVAR_OK;
}

/* ---- journals -------------------------------------------------------------------------------- */

invar_status __real_invar_journal_create(invar_journal **out, const char *path, const char *lines,
                                         size_t bytes);
invar_status __wrap_invar_journal_create(invar_journal **out, const char *path, const char *lines,
                                         size_t bytes);

invar_status __wrap_invar_journal_create(invar_journal **out, const char *path, const char *lines,
                                         size_t bytes)
{
    invar_status status = __real_invar_journal_create(out, path, lines, bytes);

    if (getenv("INVAR_TEST_KILL"))
        (void)raise(SIGKILL);
    return status;
}
