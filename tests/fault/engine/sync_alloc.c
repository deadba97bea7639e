/*
 * sync_alloc.c - allocations of a weight sync fail one at a time, on one of the ranks.
 *
 * One rank trains, two sample as one engine. After a failure all ranks return, the failing
 * one with INVAR_E_NOMEM, and leave no block (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/weight_sync/weight_sync.h"
#include "tests/fault/faulty.h"
#include "tests/sharded_model.h"

#define RANKS 3

static invar_model_spec tiny_spec(void)
{
    invar_model_spec s = sharded_spec(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16);

    s.layers = 1;
    s.vocab = 512;
    s.attention.heads = s.attention.kv_heads = s.logical_tp = 2;
    s.intermediate = 256;
    return s;
}

static invar_status sync_once(const invar_rank_roles *rank_roles, invar_model *model)
{
    const invar_weight_sync_options o = {
        .roles = rank_roles, .model = model, .dev = &model->dev, .bucket_bytes = 10000};
    invar_weight_sync_result result;
    invar_weight_sync *sync;
    invar_status status;

    INVAR_TRY(invar_weight_sync_new(&sync, &o));
    status = invar_weight_sync_transfer(sync);
    if (status == INVAR_OK)
        status = invar_weight_sync_compare(&result, sync);
    invar_weight_sync_free(sync);
    return status;
}

static invar_status make_and_sync(rank_run *run)
{
    const invar_rank_role_sizes sizes = {
        .train = {.tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1},
        .rollout = {.tensor = 2, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1},
        .rollout_ranks = 2};
    const invar_device dev = {.backend = invar_backend_cpu()};
    const invar_model_spec spec = tiny_spec();
    invar_layout layout = {.world = NULL};
    invar_model *model = NULL;
    invar_rank_roles rank_roles;
    invar_status status =
        invar_rank_roles_open(&rank_roles, &layout, run->comm, SHARDED_TIMEOUT_S, &sizes);

    if (status == INVAR_OK && rank_roles.is_rollout_rank)
        status = invar_model_new_weights(&model, &spec, INVAR_FORMAT_BF16, &layout, &dev);
    else if (status == INVAR_OK)
        status = invar_model_new(&model, &spec, INVAR_FORMAT_BF16, &layout, &dev);
    if (status == INVAR_OK && !rank_roles.is_rollout_rank)
        status = invar_model_init(model, 5, &dev);
    if (status == INVAR_OK)
        status = sync_once(&rank_roles, model);
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    invar_model_free(model);
    invar_layout_release(&layout);
    invar_rank_roles_close(&rank_roles);
    return status;
}

static invar_status exercise_sync(void)
{
    rank_run runs[MAX_RANKS];

    INVAR_TRY(try_ranks(runs, RANKS, 0, 0, make_and_sync, NULL));
    return ranks_status(runs, RANKS);
}

static void test_sync_alloc__each_fails_once(void **state)
{
    (void)state;
    fail_each_allocation(exercise_sync);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sync_alloc__each_fails_once)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
