/*
 * peft.c - tests of LoRA adapters in folders of the Python library peft.
 *
 * Adapters that are saved and loaded must have the same bits, with rsLoRA and with patterns of
 * ranks and alphas. Settings that the engine does not implement are rejected by name. Merged
 * weights are compared with B * A computed in double.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/hf/peft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/files/safetensors.h"
#include "engine/model/lora/adapters.h"
#include "tests/model.h"

enum { RANK = 5 };

static char work[512];
static invar_device dev;

static int make_work(void **state)
{
    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    snprintf(work, sizeof work, "%s/peft-XXXXXX", INVAR_TEST_WORK);
    return mkdtemp(work) ? 0 : -1;
}

static int remove_work(void **state)
{
    (void)state;
    invar_test_device_release(&dev);
    return invar_held_folder_remove(work) == INVAR_OK ? 0 : -1;
}

static invar_model *make_adapted(bool zero)
{
    return invar_test_model_adapted(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 3, RANK, zero,
                                    &dev);
}

static const char *in_work(const char *name)
{
    static char path[4][4096];
    static int next;
    char *out = path[next++ % 4];

    snprintf(out, sizeof path[0], "%s/%s", work, name);
    return out;
}

static bool equal_weights(const invar_model *a, const invar_model *b)
{
    for (int64_t i = 0; i < a->n_params; i++)
        if (memcmp(a->params[i].master.data, b->params[i].master.data,
                   (size_t)invar_param_elements(&a->params[i]) * sizeof(float)) != 0 ||
            memcmp(a->params[i].weight.data, b->params[i].weight.data,
                   (size_t)invar_param_elements(&a->params[i]) * 2) != 0)
            return false;
    return true;
}

static void test_peft__out_and_in(void **state)
{
    invar_model *from = make_adapted(false), *to = make_adapted(true);
    invar_safetensors *file;
    const invar_safetensor *t;

    (void)state;
    assert_false(equal_weights(from, to));
    assert_ok(invar_peft_save(from, NULL, in_work("out"), "models/base"));
    assert_ok(invar_peft_load(to, in_work("out"), &dev));
    assert_true(equal_weights(from, to));
    assert_ok(invar_safetensors_open(&file, in_work("out/adapter_model.safetensors")));
    t = invar_safetensors_find(
        file, "base_model.model.model.layers.1.mlp.experts.4.down_proj.lora_A.weight");
    assert_non_null(t);
    assert_int_equal(t->shape[0], RANK);
    assert_int_equal(t->shape[1], from->spec.experts.intermediate);
    t = invar_safetensors_find(file,
                               "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight");
    assert_non_null(t);
    assert_int_equal(t->shape[1], RANK);
    invar_safetensors_close(file);
    invar_model_free(from);
    invar_model_free(to);
}

/* Saves master weights that are not in the model, as gathered from several ranks. */
static void test_peft__takes_other_masters(void **state)
{
    invar_model *model = make_adapted(false), *other = make_adapted(true);
    invar_tensor *masters = NULL;

    (void)state;
    assert_ok(INVAR_ALLOC(masters, (size_t)model->n_params, "a list"));
    for (int64_t i = 0; i < model->n_params; i++)
        masters[i] = model->params[i].master;
    assert_ok(invar_peft_save(other, masters, in_work("others"), ""));
    assert_ok(invar_peft_load(other, in_work("others"), &dev));
    assert_true(equal_weights(model, other));
    invar_free(masters);
    invar_model_free(model);
    invar_model_free(other);
}

/* Replaces the first occurrence of `from` in the folder's adapter_config.json by `to`. */
static void change_config(const char *folder, const char *from, const char *to)
{
    char path[4096], text[4096], changed[4096];
    FILE *file;
    char *match;

    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    file = fopen(path, "rb");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    match = strstr(text, from);
    assert_non_null(match);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(match - text), text, to,
             match + strlen(from));
    assert_ok(invar_file_write(path, changed, strlen(changed)));
}

static void test_peft__refuses_what_it_does_not_compute(void **state)
{
    static const char *const cases[][3] = {
        {"\"use_dora\": false", "\"use_dora\": true", "\"use_dora\" is set"},
        {"\"use_rslora\": false", "\"use_rslora\": true",
         "\"use_rslora\" is true, but use-rslora is false"},
        {"\"use_rslora\": false", "\"use_rslora\": 1", "\"use_rslora\" is neither true nor false"},
        {"\"use_dora\": false", "\"rank_pattern\": {\"q_proj\": 2}",
         "self_attn.q_proj.weight is another than that of the recipe's rank-pattern"},
        {"\"use_dora\": false", "\"alpha_pattern\": {\"q_proj\": 2}",
         "self_attn.q_proj.weight is another than that of the recipe's alpha-pattern"},
        {"\"use_dora\": false", "\"rank_pattern\": {\"q_proj|v_proj\": 5}",
         "is a regular expression"},
        {"\"use_dora\": false", "\"rank_pattern\": {\"1.down_proj\": 5}", "names experts"},
        {"\"use_dora\": false", "\"rank_pattern\": {\"q_proj\": 0}", "has no rank from 1 to 4096"},
        {"\"use_dora\": false", "\"rank_pattern\": {\"q_proj\": 5.5}", "has no rank from 1 to"},
        {"\"use_dora\": false", "\"rank_pattern\": [5]", "is no object of names and numbers"},
        {"\"use_dora\": false", "\"alpha_pattern\": {\"q_proj\": -1}", "has no number from 1e-6"},
        {"\"use_dora\": false", "\"alpha_pattern\": {\"lm_head\": 3}",
         "does not end with the name"},
        {"\"use_dora\": false", "\"alpha_pattern\": {\"layers.9.self_attn.q_proj\": 3}",
         "names no layer with an adapter"},
        {"\"use_dora\": false",
         "\"rank_pattern\": {\"q_proj\": 5, \"layers.0.self_attn.q_proj\": 6}", "has two numbers"},
        {"\"use_dora\": false", "\"modules_to_save\": [\"lm_head\"]", "\"modules_to_save\" is set"},
        {"\"use_dora\": false", "\"a_setting_to_come\": 3", "\"a_setting_to_come\" is set"},
        {"\"use_dora\": false", "\"init_lora_weights\": \"pissa\"", "has changed the weights"},
        {"\"none\"", "\"all\"", "\"bias\" is not none"},
        {"\"LORA\"", "\"IA3\"", "\"peft_type\" is not LORA"},
        {"\"r\": 5", "\"r\": 6", "\"r\" is 6, but lora-rank is 5"},
        {"\"lora_alpha\": 3", "\"lora_alpha\": 2.5", "is 2.5, but lora-alpha is 3"},
    };
    invar_model *model = make_adapted(false);

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(invar_peft_save(model, NULL, in_work("wrong"), ""));
        assert_ok(invar_peft_load(model, in_work("wrong"), &dev));
        change_config(in_work("wrong"), cases[i][0], cases[i][1]);
        assert_invalid(invar_peft_load(model, in_work("wrong"), &dev), cases[i][2]);
    }
    invar_model_free(model);
}

/*
 * Returns a MoE model with adapters of these settings; `ranks` and `alphas` are JSON patterns, or
 * empty. The matrices B are not zero.
 */
static invar_model *make_adapted_with(bool rslora, const char *ranks, const char *alphas)
{
    invar_model *model = NULL, *plain = make_adapted(true);
    invar_model_spec spec = plain->spec;

    spec.lora.rslora = rslora;
    assert_ok(invar_lora_patterns(&spec.lora, ranks, alphas));
    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_FP32, NULL, &dev));
    assert_ok(invar_model_init(model, 3, &dev));
    for (int64_t i = 1; i < model->n_params; i += 2) {
        float *b = model->params[i].master.data;
        for (int64_t j = 0; j < invar_param_elements(&model->params[i]); j++)
            b[j] = j % model->params[i].cols < model->params[i].rank ? (float)(j % 7 - 3) : 0.0f;
    }
    invar_model_free(plain);
    return model;
}

/* rsLoRA scales by alpha / sqrt(rank). The folder records it, and a mismatch is rejected. */
static void test_peft__rslora_comes_back(void **state)
{
    invar_model *model = make_adapted_with(true, "", ""), *plain = make_adapted(true);
    invar_lora_spec spec;

    (void)state;
    assert_true(invar_lora_factor(&model->spec.lora) == (float)(3.0 / sqrt(RANK)));
    assert_ok(invar_peft_save(model, NULL, in_work("rslora"), ""));
    assert_ok(invar_peft_spec(&spec, in_work("rslora")));
    assert_true(spec.rslora);
    assert_ok(invar_peft_load(model, in_work("rslora"), &dev));
    assert_invalid(invar_peft_load(plain, in_work("rslora"), &dev),
                   "\"use_rslora\" is true, but use-rslora is false");
    change_config(in_work("rslora"), "\"use_rslora\": true", "\"use_rslora\": null");
    assert_ok(invar_peft_load(plain, in_work("rslora"), &dev));
    assert_ok(invar_peft_spec(&spec, in_work("rslora")));
    assert_false(spec.rslora);
    assert_invalid(invar_peft_load(model, in_work("rslora"), &dev),
                   "\"use_rslora\" is not true, but use-rslora is true");
    invar_model_free(model);
    invar_model_free(plain);
}

static void check_adapter(const invar_model *model, const char *name, int64_t rank, float factor)
{
    const invar_param *p = invar_model_find(model, name);

    assert_non_null(p);
    assert_int_equal(p->rank, rank);
    assert_int_equal(p->rows, (rank + 15) / 16 * 16);
    assert_true(p->factor == factor);
}

static void test_peft__patterns_come_back(void **state)
{
    static const char ranks[] = "{\"layers.0.self_attn.q_proj\": 17, \"down_proj\": 2}";
    invar_model *from = make_adapted_with(false, ranks, "{\"q_proj\": 8.5}");
    invar_model *to = make_adapted_with(false, ranks, "{\"self_attn.q_proj\": 8.5}");
    invar_model *plain = make_adapted(true);
    invar_lora_spec spec;

    (void)state;
    check_adapter(from, "model.layers.0.self_attn.q_proj.lora_A.weight", 17, 8.5f / 17.0f);
    check_adapter(from, "model.layers.1.self_attn.q_proj.lora_A.weight", RANK, 8.5f / 5.0f);
    check_adapter(from, "model.layers.1.mlp.experts.down_proj.lora_A.weight", 2, 1.5f);
    check_adapter(from, "model.layers.0.self_attn.k_proj.lora_A.weight", RANK, 3.0f / 5.0f);
    for (int64_t i = 0; i < to->n_params; i++)
        memset(to->params[i].master.data, 0,
               (size_t)invar_param_elements(&to->params[i]) * sizeof(float));
    assert_ok(invar_peft_save(from, NULL, in_work("patterns"), ""));
    // `to` has patterns in other words, but equal ranks and alphas
    assert_ok(invar_peft_load(to, in_work("patterns"), &dev));
    for (int64_t i = 0; i < to->n_params; i++)
        assert_memory_equal(from->params[i].master.data, to->params[i].master.data,
                            (size_t)invar_param_elements(&to->params[i]) * sizeof(float));
    assert_invalid(invar_peft_load(plain, in_work("patterns"), &dev), "the recipe's rank-pattern");
    assert_ok(invar_peft_spec(&spec, in_work("patterns")));
    assert_string_equal(spec.ranks, "{\"down_proj\":2,\"layers.0.self_attn.q_proj\":17}");
    assert_string_equal(spec.alphas, "{\"q_proj\":8.5}");
    invar_model_free(from);
    invar_model_free(to);
    invar_model_free(plain);
}

static void test_peft__layers_are_those_of_the_folder(void **state)
{
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, false);
    invar_model *all = NULL, *qv_only = NULL;

    (void)state;
    spec.lora = (invar_lora_spec){.rank = RANK, .alpha = 3.0f};
    assert_ok(invar_lora_targets(&spec.lora.targets, "all-linear"));
    assert_ok(invar_model_new(&all, &spec, INVAR_FORMAT_FP32, NULL, &dev));
    assert_ok(invar_model_init(all, 1, &dev));
    assert_ok(invar_lora_targets(&spec.lora.targets, "q_proj,v_proj"));
    assert_ok(invar_model_new(&qv_only, &spec, INVAR_FORMAT_FP32, NULL, &dev));
    assert_ok(invar_model_init(qv_only, 1, &dev));
    assert_ok(invar_peft_save(all, NULL, in_work("all"), ""));
    assert_ok(invar_peft_save(qv_only, NULL, in_work("some"), ""));
    assert_int_equal(invar_peft_load(qv_only, in_work("all"), &dev), INVAR_E_CORRUPT);
    assert_non_null(strstr(invar_error_last()->message, "is no adapter of this model"));
    assert_int_equal(invar_peft_load(all, in_work("some"), &dev), INVAR_E_CORRUPT);
    assert_non_null(strstr(invar_error_last()->message, "is missing: target-modules"));
    assert_int_equal(invar_peft_load(all, in_work("none"), &dev), INVAR_E_NOTFOUND);
    invar_model_free(all);
    invar_model_free(qv_only);
}

static void test_peft__configuration_comes_back(void **state)
{
    static const char *const wrong[] = {"\"lora_alpha\": \"16\"", "\"lora_alpha\": 0",
                                        "\"lora_alpha\": -1", "\"megatron_core\": null"};
    invar_model *model = make_adapted(false);
    invar_lora_spec spec;

    (void)state;
    assert_ok(invar_peft_save(model, NULL, in_work("spec"), ""));
    assert_ok(invar_peft_spec(&spec, in_work("spec")));
    assert_memory_equal(&spec, &model->spec.lora, sizeof spec);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_ok(invar_peft_save(model, NULL, in_work("spec"), ""));
        change_config(in_work("spec"), "\"lora_alpha\": 3", wrong[i]);
        assert_invalid(invar_peft_spec(&spec, in_work("spec")), "is no number from 1e-6 to 1e6");
    }
    assert_ok(invar_peft_save(model, NULL, in_work("spec"), ""));
    change_config(in_work("spec"), "\"k_proj\"", "\"lm_head\"");
    assert_invalid(invar_peft_spec(&spec, in_work("spec")), "'lm_head' is no linear layer");
    change_config(in_work("spec"), "\"r\": 5", "\"r\": 2.5");
    assert_invalid(invar_peft_spec(&spec, in_work("spec")), "\"r\" is no rank from 1 to 4096");
    invar_model_free(model);
}

/*
 * Compares the merged weights of a parameter with before + factor * B * A, computed in double, or
 * with `before` if it has no adapter.
 */
static void check_merged(const invar_param *merged, const invar_param *p, const float *before)
{
    double factor = p->adapter ? (double)p->adapter->factor : 0;
    const float *a = p->adapter ? p->adapter[0].master.data : NULL, *got = merged->master.data;
    const float *b = p->adapter ? p->adapter[1].master.data : NULL;

    for (int64_t i = 0; i < invar_param_elements(p); i++) {
        int64_t row = p->cols ? i / p->cols : i, expert = row / p->rows;
        double sum = 0;
        for (int64_t r = 0; a && r < p->adapter->rank; r++)
            sum += (double)b[row * p->adapter[1].cols + r] *
                   (double)a[(expert * p->adapter[0].rows + r) * p->cols + i % p->cols];
        assert_true(got[i] == (float)((double)before[i] + factor * sum));
    }
}

static void check_merge(bool rslora, const char *ranks, const char *alphas)
{
    invar_model *model = make_adapted_with(rslora, ranks, alphas), *merged_model = NULL,
                *plain = NULL;
    invar_model_spec spec = model->spec;

    spec.lora = (invar_lora_spec){0};
    assert_ok(invar_model_new(&merged_model, &spec, INVAR_FORMAT_FP32, NULL, &dev));
    assert_ok(invar_model_new(&plain, &spec, INVAR_FORMAT_FP32, NULL, &dev));
    assert_ok(invar_model_init(merged_model, 3, &dev));
    assert_ok(invar_model_init(plain, 3, &dev));
    assert_ok(invar_peft_merge(merged_model, model, &dev));
    for (int64_t i = 0; i < model->n_base; i++)
        check_merged(&merged_model->params[i], &model->base[i], plain->params[i].master.data);
    invar_model_free(model);
    invar_model_free(merged_model);
    invar_model_free(plain);
}

static void test_peft__merges(void **state)
{
    (void)state;
    check_merge(false, "", "");
    check_merge(true, "", "");
    check_merge(false, "{\"q_proj\": 17}", "{\"down_proj\": 2}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peft__out_and_in),
        cmocka_unit_test(test_peft__takes_other_masters),
        cmocka_unit_test(test_peft__refuses_what_it_does_not_compute),
        cmocka_unit_test(test_peft__rslora_comes_back),
        cmocka_unit_test(test_peft__patterns_come_back),
        cmocka_unit_test(test_peft__layers_are_those_of_the_folder),
        cmocka_unit_test(test_peft__configuration_comes_back),
        cmocka_unit_test(test_peft__merges),
    };

    return cmocka_run_group_tests(tests, make_work, remove_work);
}
