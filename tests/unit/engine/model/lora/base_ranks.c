/*
 * base_ranks.c - a frozen base has one hash, however ranks divide it; adapters are those of one
 * rank.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/lora/adapters.h"
#include "engine/model/lora/frozen_base.h"
#include "tests/device/fake_gpu.h"
#include "tests/sharded_model.h"

enum { SEED = 11 };

typedef struct lesson {
    divided_model of;
    invar_digest hash;
} lesson;

/* The last rank of the last stage has another value in its base. */
static invar_status spoil(const invar_model *model, const invar_device *dev)
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

static invar_status check_hash(const lesson *l, const invar_model *model, const invar_device *dev,
                               bool same)
{
    invar_digest hash;

    INVAR_TRY(invar_base_hash(&hash, model, dev));
    return invar_digest_equal(&hash, &l->hash) == same
               ? INVAR_OK
               : INVAR_FAIL(INVAR_E_MISMATCH, 0, "the base has %s hash",
                            same ? "another" : "the same");
}

static invar_status check_rank(void *payload, invar_model *model, const invar_device *dev)
{
    const lesson *l = payload;

    INVAR_TRY(invar_model_init(model, SEED, dev));
    INVAR_TRY(divided_same_model(l->of.one, model)); // adapters
    INVAR_TRY(check_hash(l, model, dev, true));
    INVAR_TRY(spoil(model, dev));
    return check_hash(l, model, dev, false);
}

static void check(lesson *l, int world)
{
    l->of.world = &divided_worlds[world];
    divided_check(&l->of, (uint64_t)world, invar_format_name(l->of.format));
}

static void test_base_ranks__one_hash(void **state)
{
    invar_device far;

    assert_ok(invar_far_open(&far, *state));
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        lesson l = {.of = {.spec = divided_spec(INVAR_TEST_MODEL_EXPERTS, (invar_format)format),
                           .format = (invar_format)format,
                           .dev = *state,
                           .far = format % 2 ? &far : NULL,
                           .check = check_rank,
                           .payload = &l}};

        l.of.spec.lora = (invar_lora_spec){.rank = 3, .alpha = 2.0f};
        assert_ok(invar_lora_targets(&l.of.spec.lora.targets, "all-linear"));
        assert_ok(invar_model_new(&l.of.one, &l.of.spec, l.of.format, NULL, *state));
        assert_ok(invar_model_init(l.of.one, SEED, *state));
        assert_ok(invar_base_hash(&l.hash, l.of.one, *state));
        for (int w = 1 + format % 3; w < DIVIDED_WORLDS; w += invar_test_full() ? 1 : 5)
            check(&l, w);
        invar_model_free(l.of.one);
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
