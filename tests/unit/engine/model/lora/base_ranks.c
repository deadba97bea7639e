/*
 * base_ranks.c - a frozen base has one hash, however ranks divide it; adapters are those of one
 * rank.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/lora/adapters.h"
#include "engine/model/lora/base.h"
#include "tests/device/far.h"
#include "tests/divided.h"

enum { SEED = 11 };

typedef struct lesson {
    invar_model_spec spec;
    invar_format format;
    const divided_world *world;
    const invar_device *dev, *far;
    invar_model *one;
    invar_digest hash;
} lesson;

/* The last rank of the last stage has another value in its base. */
static invar_status spoil(const invar_model *model, const invar_device *dev)
{
    const invar_param *p = NULL;
    unsigned char byte;

    for (int64_t i = 0; i < model->n_base; i++)
        if (model->base[i].own.experts > 0 && model->base[i].kind == INVAR_PARAM_LINEAR)
            p = &model->base[i];
    if (model->part.stage < model->part.stages - 1 ||
        model->part.tensor < model->part.tensors - 1 || !p)
        return INVAR_OK;
    INVAR_TRY(invar_device_get(dev, &byte, p->weight.data, 1));
    byte ^= 1;
    return invar_device_put(dev, p->weight.data, &byte, 1);
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

static invar_status check_rank(const lesson *l, invar_model *model, const invar_device *dev)
{
    INVAR_TRY(invar_model_init(model, SEED, dev));
    INVAR_TRY(divided_same_model(l->one, model)); // adapters
    INVAR_TRY(check_hash(l, model, dev, true));
    INVAR_TRY(spoil(model, dev));
    return check_hash(l, model, dev, false);
}

static invar_status rank_part(rank_run *run)
{
    const lesson *l = run->payload;
    invar_device dev = divided_device(l->dev, l->far, invar_comm_rank(run->comm));
    invar_model *model = NULL;
    invar_layout layout;
    invar_status status = divided_layout(&layout, run->comm, l->world);

    if (status == INVAR_OK)
        status = invar_model_new(&model, &l->spec, l->format, &layout, &dev);
    if (status == INVAR_OK)
        status = check_rank(l, model, &dev);
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    invar_model_free(model);
    invar_layout_release(&layout);
    return status;
}

static void check(lesson *l, int world)
{
    l->world = &divided_worlds[world];
    divided_run(l->world->size, (uint64_t)world, rank_part, l, invar_format_name(l->format));
}

static void test_base_ranks__one_hash(void **state)
{
    invar_device far;

    assert_ok(invar_far_open(&far, *state));
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        lesson l = {.spec = divided_spec(INVAR_TEST_MODEL_EXPERTS, (invar_format)format),
                    .format = (invar_format)format,
                    .dev = *state,
                    .far = format % 2 ? &far : NULL};

        l.spec.lora = (invar_lora_spec){.rank = 3, .alpha = 2.0f};
        assert_ok(invar_lora_targets(&l.spec.lora.targets, "all-linear"));
        assert_ok(invar_model_new(&l.one, &l.spec, l.format, NULL, *state));
        assert_ok(invar_model_init(l.one, SEED, *state));
        assert_ok(invar_base_hash(&l.hash, l.one, *state));
        for (int w = 1 + format % 3; w < DIVIDED_WORLDS; w += invar_test_full() ? 1 : 5)
            check(&l, w);
        invar_model_free(l.one);
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
