/*
 * model.c - tests of a model's parameters: list, initial values, formats, copies and hashes.
 *
 * The list of parameters is compared with files that transformers wrote, initial values with the
 * normative expression in double, and weights with the masters they are made from. Control: each
 * comparison also finds a changed spec, seed, format, master or bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/hf/tensor_names.h"
#include "engine/files/safetensors.h"
#include "engine/model/decoder.h"
#include "engine/model/graph/op_runner.h"
#include "kernels-deterministic/math/bf16.h"
#include "kernels-deterministic/math/philox.h"
#include "tests/model.h"

static int64_t elements(const invar_param *p)
{
    return p->stack * p->rows * (p->cols ? p->cols : 1);
}

/* Returns the up projection of the second layer, dense or of all experts. */
static const invar_param *find_up_proj(const invar_model *model)
{
    const invar_param *p = invar_model_find(model, "model.layers.1.mlp.up_proj.weight");

    return p ? p : invar_model_find(model, "model.layers.1.mlp.experts.up_proj.weight");
}

/* ---- list of parameters ---------------------------------------------------------------------- */

/* Returns the number of differences in names and extents between a spec's parameters and a file. */
static int64_t count_differences(const invar_model_spec *spec, const invar_safetensors *file)
{
    int64_t count, wrong = 0, tensors = 0;
    invar_param *params;

    assert_ok(invar_decoder_declare(&count, NULL, spec, INVAR_FORMAT_FP32));
    params = calloc((size_t)count, sizeof *params);
    assert_non_null(params);
    assert_ok(invar_decoder_declare(&count, params, spec, INVAR_FORMAT_FP32));
    for (int64_t i = 0; i < count; i++)
        for (int64_t e = 0; e < params[i].stack; e++) {
            const invar_param *p = &params[i];
            const invar_safetensor *t;
            char name[INVAR_HF_NAME_SIZE];

            invar_hf_name(name, p, e);
            t = invar_safetensors_find(file, name);
            wrong += !t || t->rank != (p->cols ? 2 : 1) || t->shape[0] != p->rows ||
                     (p->cols && t->shape[1] != p->cols);
            tensors++;
        }
    free(params);
    return wrong + (tensors != invar_safetensors_count(file));
}

/* The parameters of a spec are exactly the tensors of a file that transformers wrote. */
static void test_model__lists_what_transformers_writes(void **state)
{
    static const char *const folders[] = {"llama", "qwen2",      "qwen2_window",
                                          "qwen3", "qwen3_wide", "qwen3_moe"};

    (void)state;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char dir[512], path[600];
        invar_safetensors *file = NULL;
        invar_model_spec spec, other;

        (void)snprintf(dir, sizeof dir, "%s/oracle/model/%s", INVAR_TEST_DATA, folders[i]);
        (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
        assert_ok(invar_model_spec_read(&spec, dir, ""));
        assert_ok(invar_safetensors_open(&file, path));
        if (count_differences(&spec, file) != 0)
            fail_msg("%s: the list of parameters differs", folders[i]);
        // controls: a changed switch, a changed extent, one layer more
        other = spec;
        other.attention.qkv_bias = !spec.attention.qkv_bias;
        assert_true(count_differences(&other, file) > 0);
        other = spec;
        other.tied = !spec.tied;
        assert_true(count_differences(&other, file) > 0);
        other = spec;
        other.attention.kv_heads++;
        assert_true(count_differences(&other, file) > 0);
        other = spec;
        other.layers++;
        assert_true(count_differences(&other, file) > 0);
        invar_safetensors_close(file);
    }
}

static void test_model__order_is_canonical(void **state)
{
    static const char *const expected[] = {"model.embed_tokens.weight",
                                           "model.layers.0.input_layernorm.weight",
                                           "model.layers.0.self_attn.q_proj.weight",
                                           "model.layers.0.self_attn.k_proj.weight",
                                           "model.layers.0.self_attn.v_proj.weight",
                                           "model.layers.0.self_attn.q_norm.weight",
                                           "model.layers.0.self_attn.k_norm.weight",
                                           "model.layers.0.self_attn.o_proj.weight",
                                           "model.layers.0.post_attention_layernorm.weight",
                                           "model.layers.0.mlp.gate_proj.weight",
                                           "model.layers.0.mlp.up_proj.weight",
                                           "model.layers.0.mlp.down_proj.weight",
                                           "model.layers.1.input_layernorm.weight",
                                           "model.layers.1.self_attn.q_proj.weight",
                                           "model.layers.1.self_attn.k_proj.weight",
                                           "model.layers.1.self_attn.v_proj.weight",
                                           "model.layers.1.self_attn.q_norm.weight",
                                           "model.layers.1.self_attn.k_norm.weight",
                                           "model.layers.1.self_attn.o_proj.weight",
                                           "model.layers.1.post_attention_layernorm.weight",
                                           "model.layers.1.mlp.gate.weight",
                                           "model.layers.1.mlp.experts.gate_proj.weight",
                                           "model.layers.1.mlp.experts.up_proj.weight",
                                           "model.layers.1.mlp.experts.down_proj.weight",
                                           "model.norm.weight",
                                           "lm_head.weight"};
    const int64_t count = sizeof expected / sizeof *expected;
    const invar_device *dev = *state;
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_EXPERTS, false);
    invar_model *model = NULL;

    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_FP32, NULL, dev));
    assert_int_equal(model->n_params, count);
    for (int64_t i = 0; i < count; i++)
        assert_string_equal(model->params[i].name, expected[i]);
    assert_ptr_equal(invar_model_find(model, expected[20]), &model->params[20]);
    assert_int_equal(model->first[0], 1);
    assert_int_equal(model->first[1], 12);
    assert_int_equal(model->first[2], 24);
    assert_ptr_equal(model->norm, &model->params[24]);
    assert_ptr_equal(model->head, &model->params[25]);
    assert_null(invar_model_find(model, "model.layers.2.mlp.gate.weight"));
    invar_model_free(model);
    // a critic has its own head, even if the head of its actor is tied
    spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, false);
    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_FP32, NULL, dev));
    assert_ptr_equal(model->head, model->embedding);
    invar_model_free(model);
    spec.value_head = true;
    spec.tied = false;
    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_FP32, NULL, dev));
    assert_string_equal(model->head->name, "score.weight");
    assert_int_equal(model->head->rows, 1);
    invar_model_free(model);
}

/* ---- initial values -------------------------------------------------------------------------- */

/* The normative expression, with the functions of the C library; equal except for rounding. */
static double expected_value(uint32_t seed, int64_t param, int64_t i)
{
    uint64_t block = (uint64_t)i / 4;
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)param, 0};
    uint32_t key[2] = {seed, 2}, word[4];
    double u, v, radius;

    invar_philox4x32(word, counter, key);
    u = ((double)word[i % 4 / 2 * 2] + 0.5) / 4294967296.0;
    v = ((double)word[i % 4 / 2 * 2 + 1] + 0.5) / 4294967296.0;
    radius = sqrt(-2.0 * log(u));
    return i % 2 ? radius * sin(2.0 * 3.14159265358979323846 * v)
                 : radius * cos(2.0 * 3.14159265358979323846 * v);
}

static void assert_normal(const invar_param *p, int64_t param_index, uint32_t seed, double std)
{
    const float *values = p->master.data;
    int64_t count = elements(p), beyond = 0;
    double sum = 0.0, squares = 0.0, n = (double)count;

    for (int64_t i = 0; i < count; i++) {
        double z = (double)values[i] / std;
        assert_true(fabs(z - expected_value(seed, param_index, i)) < 1e-6 * (1.0 + fabs(z)));
        sum += z;
        squares += z * z;
        beyond += fabs(z) > 1.0;
    }
    // five standard deviations of each estimate
    assert_true(fabs(sum / n) < 5.0 / sqrt(n));
    assert_true(fabs(squares / n - 1.0) < 5.0 * sqrt(2.0 / n));
    assert_true(fabs((double)beyond / n - 0.31731) < 5.0 * sqrt(0.31731 * 0.68269 / n));
}

static void test_model__first_values(void **state)
{
    const invar_device *dev = *state;

    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++) {
        invar_model_spec spec = invar_test_spec((invar_test_model)kind, false);
        invar_model *model = NULL;

        assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_FP32, NULL, dev));
        assert_ok(invar_model_init(model, 77, dev));
        for (int64_t i = 0; i < model->n_params; i++) {
            const invar_param *p = &model->params[i];
            const float *values = p->master.data;
            if (p->cols) {
                assert_normal(p, i, 77, (double)spec.init_std);
                continue;
            }
            for (int64_t j = 0; j < p->rows; j++)
                assert_true(values[j] == (p->kind == INVAR_PARAM_NORM ? 1.0f : 0.0f));
        }
        invar_model_free(model);
    }
}

/* Values depend on the seed and on the index of the parameter, not on threads or other extents. */
static void test_model__first_values_depend_on_seed_and_place_alone(void **state)
{
    const invar_device *devs = *state;
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, false);
    invar_model *a = NULL, *b = NULL;
    const invar_param *gate, *up;
    int64_t down;
    size_t bytes;

    spec.vocab = 4001; // the values are computed by several tasks
    assert_ok(invar_model_new(&a, &spec, INVAR_FORMAT_FP32, NULL, &devs[0]));
    assert_ok(invar_model_init(a, 5, &devs[0]));
    for (int i = 1; i < INVAR_TEST_DEVICES; i++) {
        assert_ok(invar_model_new(&b, &spec, INVAR_FORMAT_FP32, NULL, &devs[i]));
        assert_ok(invar_model_init(b, 5, &devs[i]));
        for (int64_t p = 0; p < a->n_params; p++)
            invar_assert_bits_f32(b->params[p].master.data, a->params[p].master.data,
                                  elements(&a->params[p]), a->params[p].name);
        invar_model_free(b);
    }
    spec.vocab = 200;
    assert_ok(invar_model_new(&b, &spec, INVAR_FORMAT_FP32, NULL, &devs[0]));
    assert_ok(invar_model_init(b, 5, &devs[0]));
    down = invar_model_find(a, "model.layers.1.mlp.down_proj.weight") - a->params;
    invar_assert_bits_f32(b->params[down].master.data, a->params[down].master.data,
                          elements(&a->params[down]), "beside another embedding");
    gate = invar_model_find(a, "model.layers.0.mlp.gate_proj.weight");
    up = invar_model_find(a, "model.layers.0.mlp.up_proj.weight");
    bytes = (size_t)elements(gate) * sizeof(float);
    assert_true(invar_bits_differ(gate->master.data, up->master.data, bytes));
    assert_ok(invar_model_init(b, 6, &devs[0]));
    assert_true(
        invar_bits_differ(gate->master.data, b->params[gate - a->params].master.data, bytes));
    invar_model_free(a);
    invar_model_free(b);
}

/* ---- formats --------------------------------------------------------------------------------- */

static void test_model__extents_that_a_format_cannot_have(void **state)
{
    const invar_device *dev = *state;

    for (int i = 0; i < INVAR_FORMAT_COUNT; i++) {
        invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_EXPERTS, true);
        invar_model *model = NULL;

        assert_ok(invar_model_new(&model, &spec, (invar_format)i, NULL, dev));
        invar_model_free(model);
        if (i == INVAR_FORMAT_FP32 || i == INVAR_FORMAT_FP8)
            continue;                   // these formats accept any extents
        spec.experts.intermediate += 8; // not a multiple of a scale block or dot step
        assert_fails(invar_model_new(&model, &spec, (invar_format)i, NULL, dev),
                     INVAR_E_UNSUPPORTED,
                     "model.layers.1.mlp.experts.gate_proj.weight is 136 x 128");
        assert_null(model);
        spec = invar_test_spec(INVAR_TEST_MODEL_EXPERTS, true);
        spec.attention.kv_heads = 3;
        assert_fails(invar_model_new(&model, &spec, (invar_format)i, NULL, dev), INVAR_E_INVALID,
                     "");
    }
}

/* Extents of SmolLM2-135M, whose last scale blocks are short. */
static void test_model__takes_widths_of_real_models(void **state)
{
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, true);

    spec.hidden = 576;
    spec.attention.heads = 9;
    spec.attention.kv_heads = 3;
    spec.attention.head_dim = 64;
    spec.intermediate = 1536;
    for (int i = 0; i < INVAR_FORMAT_COUNT; i++) {
        invar_model *model;
        assert_ok(invar_model_new(&model, &spec, (invar_format)i, NULL, *state));
        invar_model_free(model);
    }
}

/* The message lists the formats that accept the extents. */
static void test_model__a_refused_format_names_those_that_fit(void **state)
{
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, true);
    invar_model *model;

    spec.intermediate = 144;
    assert_fails(invar_model_new(&model, &spec, INVAR_FORMAT_INT4, NULL, *state),
                 INVAR_E_UNSUPPORTED,
                 "int4 needs multiples of 16 x 32; this model can have dtype fp32, bf16, fp8, "
                 "mxfp8");
    spec.intermediate = 24;
    assert_fails(invar_model_new(&model, &spec, INVAR_FORMAT_MXFP8, NULL, *state),
                 INVAR_E_UNSUPPORTED, "this model can have dtype fp32, fp8");
    assert_null(strstr(invar_error_last()->message, "bf16"));
}

/* All weights that ops read are made from the masters, and only from them. */
static void test_model__refresh_makes_the_compute_form(void **state)
{
    const invar_device *dev = *state;

    for (int i = INVAR_FORMAT_BF16; i < INVAR_FORMAT_COUNT; i++) {
        invar_model *model =
            invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, (invar_format)i, 3, dev);
        invar_op_runner runner;

        invar_op_runner_init(&runner, dev);
        for (int64_t p = 0; p < model->n_params; p++) {
            const invar_param *param = &model->params[p];
            const float *master = param->master.data;
            bool quantized =
                (param->kind == INVAR_PARAM_LINEAR || param->kind == INVAR_PARAM_EXPERT) &&
                i != INVAR_FORMAT_BF16;

            assert_int_equal(param->weight.dtype == INVAR_DTYPE_BF16, !quantized);
            if (quantized) {
                invar_tensor expected = invar_test_copy(&param->weight);
                assert_ok(
                    INVAR_CALL(&runner, QUANTIZE, quantize, .q = expected, .x = param->master));
                invar_assert_bits_tensor(&param->weight, &expected, param->name);
                invar_test_free(&expected);
                continue;
            }
            for (int64_t j = 0; j < elements(param); j++)
                assert_int_equal(((const uint16_t *)param->weight.data)[j],
                                 invar_bf16_from_f32(master[j]));
        }
        // control: a changed master changes the weights, but only after an update
        {
            const invar_param *changed = find_up_proj(model);
            invar_tensor before = invar_test_copy(&changed->weight);
            for (int64_t j = 0; j < changed->cols; j++)
                ((float *)changed->master.data)[j] *= -1.5f;
            invar_assert_bits_tensor(&changed->weight, &before, "not refreshed");
            assert_ok(invar_model_update_weights(model, dev));
            assert_true(invar_tensors_differ(&changed->weight, &before));
            invar_test_free(&before);
        }
        invar_op_runner_release(&runner);
        invar_model_free(model);
    }
}

/* Weights made from another model's masters equal those of a model with its own masters. */
static void test_model__refresh_takes_masters_of_another_format(void **state)
{
    const invar_device *dev = *state;
    const invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_EXPERTS, true);
    invar_model *dense = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 3, dev);
    invar_model *from = NULL;

    assert_ok(invar_model_new(&from, &spec, INVAR_FORMAT_BF16, NULL, dev));
    assert_ok(invar_model_init(from, 3, dev));
    for (int i = 0; i < INVAR_FORMAT_COUNT; i++) {
        invar_model *full = NULL, *weights_only = NULL;

        assert_ok(invar_model_new(&full, &spec, (invar_format)i, NULL, dev));
        assert_ok(invar_model_init(full, 3, dev));
        assert_ok(invar_model_new_weights(&weights_only, &spec, (invar_format)i, NULL, dev));
        assert_ok(invar_model_refresh_from(weights_only, from, dev));
        for (int64_t p = 0; p < weights_only->n_params; p++)
            invar_assert_bits_tensor(&weights_only->params[p].weight, &full->params[p].weight,
                                     weights_only->params[p].name);
        ((float *)find_up_proj(from)->master.data)[0] += 1.0f;
        assert_ok(invar_model_refresh_from(weights_only, from, dev));
        assert_true(
            invar_tensors_differ(&find_up_proj(weights_only)->weight, &find_up_proj(full)->weight));
        ((float *)find_up_proj(from)->master.data)[0] =
            ((const float *)find_up_proj(full)->master.data)[0];
        assert_fails(invar_model_refresh_from(weights_only, dense, dev), INVAR_E_INVALID,
                     "same spec");
        invar_model_free(weights_only);
        invar_model_free(full);
    }
    invar_model_free(dense);
    invar_model_free(from);
}

/* ---- copies and hashes ----------------------------------------------------------------------- */

/* A model without masters has its weights at the same offsets, so one op graph serves both. */
static void test_model__copy_takes_weights_alone(void **state)
{
    const invar_device *dev = *state;

    for (int i = 0; i < INVAR_FORMAT_COUNT; i++) {
        invar_model *from = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, (invar_format)i, 3, dev);
        invar_model *to;

        assert_ok(invar_model_new_weights(&to, &from->spec, (invar_format)i, NULL, dev));
        assert_ok(invar_model_copy(to, from));
        for (int64_t p = 0; p < to->n_params; p++) {
            const invar_tensor *a = &to->params[p].weight, *b = &from->params[p].weight;
            invar_assert_bits_tensor(a, b, "weight");
            assert_int_equal((char *)a->data - (char *)to->memory.trained,
                             (char *)b->data - (char *)from->memory.trained);
        }
        assert_int_equal((char *)to->rope.sine.data - (char *)to->memory.trained,
                         (char *)from->rope.sine.data - (char *)from->memory.trained);
        invar_model_free(to);
        invar_model_free(from);
    }
}

static void test_model__copy_takes_masters_and_weights(void **state)
{
    const invar_device *dev = *state;

    for (int i = 0; i < INVAR_FORMAT_COUNT; i++) {
        invar_model *from = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, (invar_format)i, 3, dev);
        invar_model *to = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, (invar_format)i, 4, dev);
        invar_model *other = invar_test_model_new(INVAR_TEST_MODEL_DENSE, (invar_format)i, 4, dev);

        assert_true(invar_tensors_differ(&find_up_proj(to)->weight, &find_up_proj(from)->weight));
        assert_ok(invar_model_copy(to, from));
        for (int64_t p = 0; p < to->n_params; p++) {
            invar_assert_bits_tensor(&to->params[p].master, &from->params[p].master, "master");
            invar_assert_bits_tensor(&to->params[p].weight, &from->params[p].weight, "weight");
        }
        assert_fails(invar_model_copy(to, other), INVAR_E_INVALID, "one kind");
        invar_model_free(other);
        other = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS,
                                     (invar_format)((i + 1) % INVAR_FORMAT_COUNT), 4, dev);
        assert_fails(invar_model_copy(to, other), INVAR_E_INVALID, "one kind");
        invar_model_free(other);
        invar_model_free(to);
        invar_model_free(from);
    }
}

static void test_model__copy_refuses_other_extents(void **state)
{
    const invar_device *dev = *state;
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, false);
    invar_model *a = NULL, *b = NULL;

    assert_ok(invar_model_new(&a, &spec, INVAR_FORMAT_FP32, NULL, dev));
    spec.vocab++;
    assert_ok(invar_model_new(&b, &spec, INVAR_FORMAT_FP32, NULL, dev));
    assert_ok(invar_model_init(b, 1, dev));
    assert_fails(invar_model_copy(a, b), INVAR_E_INVALID, "model.embed_tokens.weight");
    invar_model_free(a);
    invar_model_free(b);
}

/* The hash depends on the bits of the masters only, not on threads, numerics or the format. */
static void test_model__hash_is_of_the_masters(void **state)
{
    const invar_device *devs = *state;
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, true);
    invar_digest first, hash;
    invar_model *model = NULL;
    uint32_t *word;

    for (int i = 0; i < INVAR_FORMAT_COUNT; i++) {
        const invar_device *dev = &devs[i % INVAR_TEST_DEVICES];
        assert_ok(invar_model_new(&model, &spec, (invar_format)i, NULL, dev));
        assert_ok(invar_model_init(model, 9, dev));
        assert_ok(invar_model_hash(i ? &hash : &first, model, dev));
        assert_true(i == 0 || invar_digest_equal(&hash, &first));
        invar_model_free(model);
    }
    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_FP32, NULL, &devs[0]));
    assert_ok(invar_model_init(model, 9, &devs[0]));
    for (int64_t p = 0; p < model->n_params; p++) { // the last bit of every parameter counts
        word = (uint32_t *)model->params[p].master.data + elements(&model->params[p]) - 1;
        *word ^= 1;
        assert_ok(invar_model_hash(&hash, model, &devs[0]));
        assert_false(invar_digest_equal(&hash, &first));
        *word ^= 1;
    }
    assert_ok(invar_model_hash(&hash, model, &devs[0]));
    assert_true(invar_digest_equal(&hash, &first));
    invar_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model__lists_what_transformers_writes),
        cmocka_unit_test(test_model__order_is_canonical),
        cmocka_unit_test(test_model__first_values),
        cmocka_unit_test(test_model__first_values_depend_on_seed_and_place_alone),
        cmocka_unit_test(test_model__extents_that_a_format_cannot_have),
        cmocka_unit_test(test_model__takes_widths_of_real_models),
        cmocka_unit_test(test_model__a_refused_format_names_those_that_fit),
        cmocka_unit_test(test_model__refresh_makes_the_compute_form),
        cmocka_unit_test(test_model__refresh_takes_masters_of_another_format),
        cmocka_unit_test(test_model__copy_takes_weights_alone),
        cmocka_unit_test(test_model__copy_takes_masters_and_weights),
        cmocka_unit_test(test_model__copy_refuses_other_extents),
        cmocka_unit_test(test_model__hash_is_of_the_masters),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
