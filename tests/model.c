/*
 * model.c - tiny models for tests: specs, random weights, LoRA adapters, partitions, samples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/model.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/lora/adapters.h"
#include "engine/model/shard/param_loader.h"

const char *invar_test_model_name(invar_test_model kind)
{
    static const char *const names[] = {"dense", "bias", "llama", "window", "experts"};

    return names[kind];
}

invar_model_spec invar_test_spec(invar_test_model kind, bool wide)
{
    invar_model_spec s = {.family = INVAR_FAMILY_QWEN3,
                          .vocab = 97,
                          .hidden = wide ? 128 : 48,
                          .layers = 2,
                          .attention.heads = 4,
                          .attention.kv_heads = wide ? 4 : 2,
                          .attention.head_dim = wide ? 32 : 16,
                          .intermediate = wide ? 128 : 80,
                          .max_positions = 256,
                          .norm_eps = 1e-6f,
                          .init_std = 0.15f,
                          .tied = true,
                          .attention.qk_norm = true,
                          .rope = {.theta = 10000.0},
                          .eos = {96},
                          .n_eos = 1};

    switch (kind) {
    case INVAR_TEST_MODEL_BIAS:
    case INVAR_TEST_MODEL_WINDOW:
        s.family = INVAR_FAMILY_QWEN2;
        s.attention.qk_norm = s.tied = false;
        s.attention.qkv_bias = true;
        s.attention.window = kind == INVAR_TEST_MODEL_WINDOW ? 5 : 0;
        s.attention.window_from = s.attention.window ? 1 : 0;
        break;
    case INVAR_TEST_MODEL_LLAMA:
        s.family = INVAR_FAMILY_LLAMA;
        s.attention.qk_norm = s.tied = false;
        s.rope = (invar_rope_spec){500000.0, INVAR_ROPE_LLAMA3, 8.0, 1.0, 4.0, 64.0};
        break;
    case INVAR_TEST_MODEL_EXPERTS:
        s.family = INVAR_FAMILY_QWEN3_MOE;
        s.tied = false;
        s.experts.count = 6;
        s.experts.per_token = 2;
        s.experts.intermediate = wide ? 128 : 48;
        s.experts.normalize = true;
        s.experts.sparse[1] = true;
        break;
    default: break;
    }
    return s;
}

/* Fills a norm weight or a bias with differing values. */
static void add_random_values(const invar_param *p, uint64_t seed, const invar_device *dev)
{
    size_t bytes = (size_t)p->rows * sizeof(float);
    float *values;

    assert_ok(INVAR_ALLOC_SIZED(values, bytes, 1, "values"));
    assert_ok(invar_device_download(dev, values, p->master.data, bytes));
    for (int64_t j = 0; j < p->rows; j++)
        values[j] += invar_test_normal(seed, (uint64_t)j, 0.2f);
    assert_ok(invar_device_upload(dev, p->master.data, values, bytes));
    invar_free(values);
}

/*
 * Sets extents that are not multiples of 128, so the last scale blocks of fp8 and mxfp8 are short.
 */
static void shorten_blocks(invar_model_spec *s)
{
    s->hidden = 96;
    s->attention.heads = 6;
    s->attention.kv_heads = 3;
    s->attention.head_dim = 16;
    s->intermediate = 160;
    if (s->experts.count)
        s->experts.intermediate = 160;
}

/* Changes extents to some that the format accepts. */
static invar_model_spec spec_for(invar_test_model kind, invar_format format)
{
    bool wide = format != INVAR_FORMAT_FP32 && format != INVAR_FORMAT_BF16;
    invar_model_spec spec = invar_test_spec(kind, wide);

    if (wide)
        shorten_blocks(&spec);
    return spec;
}

/* Sets the values of B, except for the columns that pad the rank. */
static void fill_adapter(const invar_param *p, uint64_t seed, int64_t rank, const invar_device *dev)
{
    int64_t count = invar_param_elements(p);
    float *values;

    assert_ok(INVAR_ALLOC(values, (size_t)count, "values"));
    for (int64_t j = 0; j < count; j++)
        values[j] = j % p->cols < rank ? invar_test_normal(seed, (uint64_t)j, 0.2f) : 0.0f;
    assert_ok(invar_device_upload(dev, p->master.data, values, (size_t)count * sizeof *values));
    invar_free(values);
}

invar_model *invar_test_model_adapted(invar_test_model kind, invar_format format, uint32_t seed,
                                      int64_t rank, bool zero, const invar_device *dev)
{
    invar_model_spec spec = spec_for(kind, format);
    invar_model *model = NULL;

    spec.lora = (invar_lora_spec){.rank = rank, .alpha = 3.0f};
    assert_ok(invar_lora_targets(&spec.lora.targets, "all-linear"));
    assert_ok(invar_model_new(&model, &spec, format, NULL, dev));
    assert_ok(invar_model_init(model, seed, dev));
    for (int64_t i = 1; i < model->n_params && !zero; i += 2)
        fill_adapter(&model->params[i], seed + (uint64_t)i, rank, dev);
    assert_ok(invar_model_update_weights(model, dev));
    return model;
}

invar_model *invar_test_model_new(invar_test_model kind, invar_format format, uint32_t seed,
                                  const invar_device *dev)
{
    invar_model_spec spec = spec_for(kind, format);
    invar_model *model = NULL;

    assert_ok(invar_model_new(&model, &spec, format, NULL, dev));
    assert_ok(invar_model_init(model, seed, dev));
    for (int64_t i = 0; i < model->n_params; i++)
        if (model->params[i].cols == 0)
            add_random_values(&model->params[i], seed + (uint64_t)i, dev);
    assert_ok(invar_model_update_weights(model, dev));
    return model;
}

static invar_status load_local_shard(invar_param_loader *fill, int64_t param, const float *whole)
{
    const invar_param *p = &fill->model->params[param];
    float *local_values;

    if (p->local.experts == 0)
        return INVAR_OK;
    INVAR_TRY(invar_param_loader_buffer_all(&local_values, fill, p));
    invar_param_shard_extract(local_values, p, &p->local, whole);
    return invar_param_loader_store(fill);
}

invar_status invar_test_model_fill(invar_model *model, const invar_model *whole,
                                   const invar_device *dev)
{
    invar_status status = INVAR_OK;
    invar_param_loader fill;

    invar_param_loader_init(&fill, model, dev);
    for (int64_t i = 0; status == INVAR_OK && i < whole->n_params; i++)
        status = load_local_shard(&fill, i, whole->params[i].master.data);
    invar_param_loader_release(&fill);
    return status;
}

invar_status invar_test_model_part(invar_model **out, const invar_model *whole,
                                   const invar_layout *layout, const invar_device *dev)
{
    invar_status status = invar_model_new(out, &whole->spec, whole->format, layout, dev);

    if (status == INVAR_OK)
        status = invar_test_model_fill(*out, whole, dev);
    if (status == INVAR_OK)
        return INVAR_OK;
    invar_model_free(*out);
    *out = NULL;
    return status;
}

void invar_test_samples(invar_rl_samples *out, int64_t count, int64_t longest, int64_t vocab,
                        uint64_t seed)
{
    uint64_t n = 0;

    *out = (invar_rl_samples){0};
    for (int64_t i = 0; i < count; i++) {
        invar_rl_sample *s;
        assert_ok(invar_rl_samples_append(&s, out));
        s->index = i;
        s->group = i / 2;
        s->prompt_tokens = 1 + invar_test_random(seed, n++) % 9;
        s->n_tokens = s->prompt_tokens + 1 + invar_test_random(seed, n++) % longest;
        assert_ok(INVAR_ALLOC(s->tokens, (size_t)s->n_tokens, "tokens"));
        for (int64_t j = 0; j < s->n_tokens; j++)
            s->tokens[j] = (int32_t)(invar_test_random(seed, n++) % vocab);
    }
}
