/*
 * adapters.c - tests of LoRA adapters: target layers, extents, initial values; the frozen base.
 *
 * The weights of a base must be those of the model without adapters. Control: a flipped bit changes
 * the hash of the base.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/lora/adapters.h"

#include <string.h>

#include "engine/model/lora/frozen_base.h"
#include "tests/model.h"

enum { RANK = 5, ROWS = 16 };

static void test_lora__targets(void **state)
{
    uint32_t all, two, one;

    (void)state;
    assert_ok(invar_lora_targets(&all, "all-linear"));
    assert_ok(invar_lora_targets(&two, "v_proj,q_proj"));
    assert_ok(invar_lora_targets(&one, "down_proj"));
    assert_string_equal(invar_lora_target(two, 0), "q_proj");
    assert_string_equal(invar_lora_target(two, 1), "v_proj");
    assert_null(invar_lora_target(two, 2));
    assert_string_equal(invar_lora_target(one, 0), "down_proj");
    assert_string_equal(invar_lora_target(all, 6), "down_proj");
    assert_null(invar_lora_target(all, 7));
    assert_invalid(invar_lora_targets(&all, ""), "target-modules: '' is no linear layer");
    assert_invalid(invar_lora_targets(&all, "q_proj,"), "target-modules: '' is no");
    assert_invalid(invar_lora_targets(&all, "q_proj, v_proj"), "target-modules: ' v_proj' is no");
    assert_invalid(invar_lora_targets(&all, "lm_head"), "'lm_head' is no linear layer");
}

static void test_lora__factor_and_rows(void **state)
{
    invar_lora_spec lora = {.rank = 3, .alpha = 2.0f};

    (void)state;
    assert_true(invar_lora_factor(&lora) == 2.0f / 3.0f);
    assert_int_equal(invar_lora_rows(&lora), 16);
    lora.rank = 17;
    assert_int_equal(invar_lora_rows(&lora), 32);
    lora.rslora = true;
    assert_true(invar_lora_factor(&lora) == 0x1.f0b684p-2f); // 2 / sqrt(17)
}

static void check_extents(const invar_model *model, const char *name, int64_t rows, int64_t cols)
{
    const invar_param *p = invar_model_find(model, name);

    assert_non_null(p);
    assert_int_equal(p->kind, INVAR_PARAM_ADAPTER);
    assert_int_equal(p->rows, rows);
    assert_int_equal(p->cols, cols);
}

static void test_adapters__stand_before_a_frozen_base(void **state)
{
    const invar_device *dev = *state;
    invar_model *model =
        invar_test_model_adapted(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 3, RANK, true, dev);
    const invar_model_spec *s = &model->spec;

    assert_true(invar_model_is_adapted(model));
    assert_int_equal(model->n_params, 2 * 7 * s->layers);
    check_extents(model, "model.layers.0.self_attn.q_proj.lora_A.weight", ROWS, s->hidden);
    check_extents(model, "model.layers.0.self_attn.q_proj.lora_B.weight",
                  s->attention.heads * s->attention.head_dim, ROWS);
    check_extents(model, "model.layers.0.mlp.down_proj.lora_A.weight", ROWS, s->intermediate);
    check_extents(model, "model.layers.1.mlp.experts.up_proj.lora_B.weight",
                  s->experts.intermediate, ROWS);
    assert_int_equal(
        invar_model_find(model, "model.layers.1.mlp.experts.up_proj.lora_A.weight")->stack,
        s->experts.count);
    for (int64_t i = 0; i < model->n_base; i++) {
        assert_false(invar_tensor_present(&model->base[i].master));
        assert_false(invar_tensor_present(&model->base[i].grad));
        assert_true(invar_tensor_present(&model->base[i].weight));
    }
    assert_null(model->embedding->adapter);
    assert_false(invar_tensor_present(&model->tied_grad));
    invar_model_free(model);
}

/* A has random initial values; B and the rows that pad the rank are +0. */
static void test_adapters__first_values(void **state)
{
    static const uint32_t zero;
    invar_model *model = invar_test_model_adapted(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 3,
                                                  RANK, true, *state);

    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        const float *values = p->master.data;
        double squares = 0;
        for (int64_t j = 0; j < invar_param_elements(p); j++) {
            bool random = i % 2 == 0 && j / p->cols % p->rows < RANK;
            squares += (double)values[j] * (double)values[j];
            assert_int_equal(memcmp(&values[j], &zero, sizeof zero) != 0, random);
        }
        if (i % 2 == 0) { // the variance is 1 / (3 cols)
            double mean = squares * 3 / (RANK * (double)p->stack);
            assert_true(mean > 0.7 && mean < 1.4);
        }
    }
    invar_model_free(model);
}

/* With the same seed, the weights of the base equal those of the model without adapters. */
static void test_base__has_the_weights_of_the_model(void **state)
{
    const invar_device *dev = *state;

    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        invar_model *model = invar_test_model_adapted(INVAR_TEST_MODEL_EXPERTS,
                                                      (invar_format)format, 3, RANK, true, dev);
        invar_model *copy = NULL, *plain = NULL;
        invar_model_spec spec = model->spec;
        invar_digest base, other;

        spec.lora = (invar_lora_spec){0};
        assert_ok(invar_model_new(&plain, &spec, (invar_format)format, NULL, dev));
        assert_ok(invar_model_init(plain, 3, dev));
        assert_int_equal(plain->n_params, model->n_base);
        for (int64_t i = 0; i < model->n_base; i++)
            assert_memory_equal(model->base[i].weight.data, plain->params[i].weight.data,
                                (size_t)invar_param_elements(&model->base[i]) *
                                    (size_t)invar_dtype_bits(model->base[i].weight.dtype) / 8);
        assert_ok(invar_base_hash(&base, model, dev));
        assert_ok(invar_base_hash(&other, plain, dev));
        assert_true(invar_digest_equal(&base, &other));
        assert_ok(invar_model_new(&copy, &model->spec, (invar_format)format, NULL, dev));
        assert_ok(invar_model_copy(copy, model));
        assert_ok(invar_base_hash(&other, copy, dev));
        assert_true(invar_digest_equal(&base, &other));
        ((char *)copy->base[1].weight.data)[0] ^= 1;
        assert_ok(invar_base_hash(&other, copy, dev));
        assert_false(invar_digest_equal(&base, &other));
        invar_model_free(model);
        invar_model_free(copy);
        invar_model_free(plain);
    }
}

/* Two models share one base, which is in memory once. */
static void test_base__is_shared(void **state)
{
    const invar_device *dev = *state;
    invar_model *model =
        invar_test_model_adapted(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_INT4, 3, RANK, false, dev);
    invar_model *sharing = NULL;
    invar_digest a, b;

    assert_ok(invar_model_new_sharing_base(&sharing, model, dev));
    assert_ok(invar_model_copy(sharing, model));
    for (int64_t i = 0; i < model->n_base; i++)
        assert_ptr_equal(sharing->base[i].weight.data, model->base[i].weight.data);
    assert_ptr_not_equal(sharing->params[0].master.data, model->params[0].master.data);
    assert_ok(invar_model_hash(&a, model, dev));
    assert_ok(invar_model_hash(&b, sharing, dev));
    assert_true(invar_digest_equal(&a, &b));
    ((float *)model->params[0].master.data)[0] += 1.0f;
    assert_ok(invar_model_hash(&a, model, dev));
    assert_false(invar_digest_equal(&a, &b));
    invar_model_free(sharing);
    assert_ok(invar_base_hash(&a, model, dev));
    invar_model_free(model);
}

static void test_adapters__some_layer_has_one(void **state)
{
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, false);
    invar_model *model = NULL;

    spec.lora = (invar_lora_spec){.rank = 4, .alpha = 1.0f, .targets = 0};
    assert_invalid(invar_model_new(&model, &spec, INVAR_FORMAT_FP32, NULL, *state),
                   "target-modules names no layer of this model");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lora__targets),
        cmocka_unit_test(test_lora__factor_and_rows),
        cmocka_unit_test(test_adapters__stand_before_a_frozen_base),
        cmocka_unit_test(test_adapters__first_values),
        cmocka_unit_test(test_base__has_the_weights_of_the_model),
        cmocka_unit_test(test_base__is_shared),
        cmocka_unit_test(test_adapters__some_layer_has_one),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
