/*
 * logical_shards.c - tests that ranks which divide a model have the values and digests of one rank.
 *
 * Masters, weights and digests are compared bit by bit in many layouts. Controls: a changed value
 * on one rank changes exactly one digest, and two tensor-parallel ranks have different shards.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/logical_shards.h"

#include "tests/device/fake_gpu.h"
#include "tests/sharded_model.h"

enum { SEED = 7 };

/* Layout and model to test, and the results of one rank. */
typedef struct shard_case {
    sharded_model divided;
    invar_digest *digests, hash; /* (n_params) digests of the parameters; hash of the model */
} shard_case;

/* Compares digests and hash with those of one rank; without `same`, one digest must differ. */
static invar_status check_digests(const shard_case *expected, invar_model *model,
                                  const invar_device *dev, bool same)
{
    invar_digest *digests, hash;
    invar_status status;
    int64_t n_differing = 0;

    INVAR_TRY(invar_model_hash(&hash, model, dev));
    digests = calloc((size_t)model->n_params, sizeof *digests);
    status = invar_model_digests(digests, model, NULL, dev);
    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++)
        n_differing += !invar_digest_equal(&digests[i], &expected->digests[i]);
    free(digests);
    INVAR_TRY(status);
    if (n_differing != (same ? 0 : 1) || invar_digest_equal(&hash, &expected->hash) != same)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "%lld digests differ", (long long)n_differing);
    return INVAR_OK;
}

/* Changes the first value of the embedding on the last rank of the first stage. */
static invar_status corrupt_embedding(const shard_case *expected, const invar_model *model)
{
    const float wrong = 42.0f;

    (void)expected;
    if (model->part.stage > 0 || model->part.tensor < model->part.tensors - 1 ||
        !invar_tensor_present(&model->embedding->master))
        return INVAR_OK;
    return invar_device_upload(&model->dev, model->embedding->master.data, &wrong, sizeof wrong);
}

/* Fails if the shard of another tensor-parallel rank has the same bits. */
static invar_status check_other_shards(const shard_case *expected, const invar_model *model)
{
    const invar_param *p =
        &model->params[model->first[expected->divided.spec.layers - 1] + 1]; // q_proj
    invar_model_partition other = model->part;
    invar_param_shard other_shard;
    bool equal;

    other.tensor = model->part.tensors - 1 - model->part.tensor;
    other_shard = invar_model_partition_shard(&other, &model->spec, p);
    if (model->part.tensors == 1 || p->local.experts == 0 || other_shard.rows != p->local.rows)
        return INVAR_OK;
    INVAR_TRY(sharded_compare(&equal, p, &other_shard,
                              &expected->divided.one->params[p - model->params].weight,
                              &expected->divided.one->dev, &p->weight, 0, &model->dev));
    return equal ? INVAR_FAIL(INVAR_E_MISMATCH, 0, "%s: ranks have the same", p->name) : INVAR_OK;
}

static invar_status check_model(void *payload, invar_model *model, const invar_device *dev)
{
    const shard_case *expected = payload;

    INVAR_TRY(invar_model_init(model, SEED, dev));
    INVAR_TRY(sharded_compare_model(expected->divided.one, model));
    INVAR_TRY(check_other_shards(expected, model));
    INVAR_TRY(check_digests(expected, model, dev, true));
    INVAR_TRY(corrupt_embedding(expected, model));
    return check_digests(expected, model, dev, false);
}

static void check(invar_test_model kind, invar_format format, const sharded_world *world,
                  uint64_t schedule, const invar_device *dev, const invar_device *far)
{
    shard_case expected = {.divided = {.world = world,
                                       .spec = sharded_spec(kind, format),
                                       .format = format,
                                       .dev = dev,
                                       .far = far,
                                       .check = check_model,
                                       .payload = &expected}};

    assert_ok(invar_model_new(&expected.divided.one, &expected.divided.spec, format, NULL, dev));
    assert_ok(invar_model_init(expected.divided.one, SEED, dev));
    expected.digests = calloc((size_t)expected.divided.one->n_params, sizeof *expected.digests);
    assert_ok(invar_model_digests(expected.digests, expected.divided.one, NULL, dev));
    assert_ok(invar_model_hash(&expected.hash, expected.divided.one, dev));
    sharded_check(&expected.divided, schedule, invar_test_model_name(kind));
    invar_model_free(expected.divided.one);
    free(expected.digests);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_logical_shards__all_ranks_equal_one(void **state)
{
    static const invar_test_model kinds[] = {INVAR_TEST_MODEL_DENSE, INVAR_TEST_MODEL_EXPERTS,
                                             INVAR_TEST_MODEL_BIAS};
    // by default the worlds that sharded_runs selects, each with one model: every model and format
    static const int by_world[DIVIDED_WORLDS] = {[4] = 2, [10] = 1, [13] = 1};
    const invar_device *dev = *state;
    int format = 0;

    for (int w = 0; w < DIVIDED_WORLDS; w++)
        for (int k = 0; k < 3; k++, format = (format + 1) % INVAR_FORMAT_COUNT)
            if (invar_test_full() || (sharded_runs(w) && k == by_world[w]))
                check(kinds[k], (invar_format)format, &divided_worlds[w], (uint64_t)(w + k), dev,
                      NULL);
    for (int w = invar_test_full() ? 0 : 1; w < DIVIDED_EXPERT_WORLDS;
         w += invar_test_full() ? 1 : 2)
        check(INVAR_TEST_MODEL_EXPERTS, (invar_format)w, &divided_expert_worlds[w], (uint64_t)w,
              dev, NULL);
}

static void test_logical_shards__far_device(void **state)
{
    const invar_device *dev = *state;
    invar_device far;

    assert_ok(invar_fake_gpu_open(&far, dev));
    check(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, &divided_worlds[1], 1, dev, &far);
    check(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP8, &divided_worlds[3], 2, dev, &far);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    invar_device_close(&far);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logical_shards__all_ranks_equal_one),
        cmocka_unit_test(test_logical_shards__far_device),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
