/*
 * base_ranks.c - tests that the hash of a frozen base does not depend on the layout.
 *
 * Ranks that divide a model must have the hash of one rank, and the adapters of one rank. Control:
 * one changed byte on one rank changes the hash on all ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/lora/adapters.h"
#include "engine/model/lora/frozen_base.h"
#include "tests/device/fake_gpu.h"
#include "tests/sharded_model.h"

enum { SEED = 11 };

/* Layout and model to test, and the hash that one rank computed. */
typedef struct base_case {
    sharded_model divided;
    invar_digest hash;
} base_case;

/* Changes one byte of the base on the last rank of the last stage. */
static invar_status corrupt_base(const invar_model *model, const invar_device *dev)
{
    const invar_param *p = NULL;
    unsigned char byte;

    for (int64_t i = 0; i < model->n_base; i++)
        if (model->base[i].local.experts > 0 && model->base[i].kind == INVAR_PARAM_LINEAR)
            p = &model->base[i];
    if (model->part.stage < model->part.stages - 1 ||
        model->part.tensor < model->part.tensors - 1 || !p)
        return INVAR_OK;
    INVAR_TRY(invar_device_download(dev, &byte, p->weight.data, 1));
    byte ^= 1;
    return invar_device_upload(dev, p->weight.data, &byte, 1);
}

static invar_status check_hash(const base_case *expected, const invar_model *model,
                               const invar_device *dev, bool same)
{
    invar_digest hash;

    INVAR_TRY(invar_base_hash(&hash, model, dev));
    return invar_digest_equal(&hash, &expected->hash) == same
               ? INVAR_OK
               : INVAR_FAIL(INVAR_E_MISMATCH, 0, "the base has %s hash",
                            same ? "another" : "the same");
}

static invar_status check_rank(void *payload, invar_model *model, const invar_device *dev)
{
    const base_case *expected = payload;

    INVAR_TRY(invar_model_init(model, SEED, dev));
    INVAR_TRY(sharded_compare_model(expected->divided.one, model)); // adapters
    INVAR_TRY(check_hash(expected, model, dev, true));
    INVAR_TRY(corrupt_base(model, dev));
    return check_hash(expected, model, dev, false);
}

static void check(base_case *expected, int world)
{
    expected->divided.world = &divided_worlds[world];
    sharded_check(&expected->divided, (uint64_t)world, invar_format_name(expected->divided.format));
}

static void test_base_ranks__one_hash(void **state)
{
    invar_device far;

    assert_ok(invar_fake_gpu_open(&far, *state));
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        base_case expected = {
            .divided = {.spec = sharded_spec(INVAR_TEST_MODEL_EXPERTS, (invar_format)format),
                        .format = (invar_format)format,
                        .dev = *state,
                        .far = format % 2 ? &far : NULL,
                        .check = check_rank,
                        .payload = &expected}};

        expected.divided.spec.lora = (invar_lora_spec){.rank = 3, .alpha = 2.0f};
        assert_ok(invar_lora_targets(&expected.divided.spec.lora.targets, "all-linear"));
        assert_ok(invar_model_new(&expected.divided.one, &expected.divided.spec,
                                  expected.divided.format, NULL, *state));
        assert_ok(invar_model_init(expected.divided.one, SEED, *state));
        assert_ok(invar_base_hash(&expected.hash, expected.divided.one, *state));
        for (int w = 1 + format % 3; w < DIVIDED_WORLDS; w += invar_test_full() ? 1 : 5)
            check(&expected, w);
        invar_model_free(expected.divided.one);
    }
    invar_device_close(&far);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_ranks__one_hash),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
