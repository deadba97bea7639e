/*
 * logical_shards.c - ranks that divide a model have the values and the digests of one rank, bit for
 * bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/logical_shards.h"

#include "tests/device/fake_gpu.h"
#include "tests/sharded_model.h"

enum { SEED = 7 };

typedef struct lesson {
    divided_model of;
    invar_digest *digests, hash; /* one rank's */
} lesson;

/* Digests of all ranks are those of one, and those of one other value are not. */
static invar_status check_digests(const lesson *l, invar_model *model, const invar_device *dev,
                                  bool same)
{
    invar_digest *digests, hash;
    invar_status status;
    int64_t odd = 0;

    INVAR_TRY(invar_model_hash(&hash, model, dev));
    digests = calloc((size_t)model->n_params, sizeof *digests);
    status = invar_model_digests(digests, model, NULL, dev);
    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++)
        odd += !invar_digest_equal(&digests[i], &l->digests[i]);
    free(digests);
    INVAR_TRY(status);
    if (odd != (same ? 0 : 1) || invar_digest_equal(&hash, &l->hash) != same)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "%lld digests differ", (long long)odd);
    return INVAR_OK;
}

/* The last rank of the first stage has another value in its part of the embedding. */
static invar_status spoil(const lesson *l, const invar_model *model)
{
    const float wrong = 42.0f;

    (void)l;
    if (model->part.stage > 0 || model->part.tensor < model->part.tensors - 1 ||
        !invar_tensor_present(&model->embedding->master))
        return INVAR_OK;
    return invar_device_upload(&model->dev, model->embedding->master.data, &wrong, sizeof wrong);
}

/* What another rank of the tensor axis has is something else. */
static invar_status check_others(const lesson *l, const invar_model *model)
{
    const invar_param *p = &model->params[model->first[l->of.spec.layers - 1] + 1]; // q_proj
    invar_model_partition other = model->part;
    invar_param_shard box;
    bool equal;

    other.tensor = model->part.tensors - 1 - model->part.tensor;
    box = invar_model_partition_shard(&other, &model->spec, p);
    if (model->part.tensors == 1 || p->local.experts == 0 || box.rows != p->local.rows)
        return INVAR_OK;
    INVAR_TRY(divided_compare(&equal, p, &box, &l->of.one->params[p - model->params].weight,
                              &l->of.one->dev, &p->weight, 0, &model->dev));
    return equal ? INVAR_FAIL(INVAR_E_MISMATCH, 0, "%s: ranks have the same", p->name) : INVAR_OK;
}

static invar_status check_model(void *payload, invar_model *model, const invar_device *dev)
{
    const lesson *l = payload;

    INVAR_TRY(invar_model_init(model, SEED, dev));
    INVAR_TRY(divided_same_model(l->of.one, model));
    INVAR_TRY(check_others(l, model));
    INVAR_TRY(check_digests(l, model, dev, true));
    INVAR_TRY(spoil(l, model));
    return check_digests(l, model, dev, false);
}

static void check(invar_test_model kind, invar_format format, const divided_world *world,
                  uint64_t schedule, const invar_device *dev, const invar_device *far)
{
    lesson l = {.of = {.world = world,
                       .spec = divided_spec(kind, format),
                       .format = format,
                       .dev = dev,
                       .far = far,
                       .check = check_model,
                       .payload = &l}};

    assert_ok(invar_model_new(&l.of.one, &l.of.spec, format, NULL, dev));
    assert_ok(invar_model_init(l.of.one, SEED, dev));
    l.digests = calloc((size_t)l.of.one->n_params, sizeof *l.digests);
    assert_ok(invar_model_digests(l.digests, l.of.one, NULL, dev));
    assert_ok(invar_model_hash(&l.hash, l.of.one, dev));
    divided_check(&l.of, schedule, invar_test_model_name(kind));
    invar_model_free(l.of.one);
    free(l.digests);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_pieces__of_all_ranks_are_those_of_one(void **state)
{
    static const invar_test_model kinds[] = {INVAR_TEST_MODEL_DENSE, INVAR_TEST_MODEL_EXPERTS,
                                             INVAR_TEST_MODEL_BIAS};
    const invar_device *dev = *state;
    int format = 0;

    for (int w = 0; w < DIVIDED_WORLDS; w++)
        for (int k = 0; k < 3; k++, format = (format + 1) % INVAR_FORMAT_COUNT)
            check(kinds[k], (invar_format)format, &divided_worlds[w], (uint64_t)(w + k), dev, NULL);
    for (int w = 0; w < DIVIDED_EXPERT_WORLDS; w++)
        check(INVAR_TEST_MODEL_EXPERTS, (invar_format)w, &divided_expert_worlds[w], (uint64_t)w,
              dev, NULL);
}

static void test_pieces__far_device(void **state)
{
    const invar_device *dev = *state;
    invar_device far;

    assert_ok(invar_far_open(&far, dev));
    check(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, &divided_worlds[1], 1, dev, &far);
    check(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP8, &divided_worlds[3], 2, dev, &far);
    assert_int_equal(invar_far_counted().live, 0);
    invar_device_close(&far);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces__of_all_ranks_are_those_of_one),
        cmocka_unit_test(test_pieces__far_device),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
