/*
 * hf.c - tests of reading and writing the weights of Hugging Face model folders.
 *
 * The fixtures are small models that transformers wrote (data/generate.py), one per family, and one
 * in shards. Every tensor must be loaded with its bits, and saved files must load to the same
 * model. Each faulty folder is an edited fixture. Control: the unedited copy loads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/hf/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/files/safetensors.h"
#include "kernels-deterministic/math/bf16.h"
#include "tests/support.h"

static const char *const fixtures[] = {"llama", "qwen2", "qwen3", "qwen3_moe", "critic"};
enum { N_FIXTURES = 5, MOE = 3 };

static char work[512];
static invar_device dev;

static int make_work(void **state)
{
    (void)state;
    dev.backend = invar_backend_cpu();
    dev.numerics = INVAR_NUMERICS_IEEE;
    snprintf(work, sizeof work, "%s/hf-XXXXXX", INVAR_TEST_WORK);
    return mkdtemp(work) ? 0 : -1;
}

static int remove_work(void **state)
{
    (void)state;
    return invar_held_folder_remove(work) == INVAR_OK ? 0 : -1;
}

static const char *fixture(const char *name)
{
    static char path[1024];

    snprintf(path, sizeof path, "%s/unit/engine/files/hf/data/%s", INVAR_TEST_DATA, name);
    return path;
}

static const char *in_work(const char *name)
{
    static char path[8][4096];
    static int next;
    char *out = path[next++ % 8];

    snprintf(out, sizeof path[0], "%s/%s", work, name);
    return out;
}

/* Returns a model of the folder's config.json whose masters are NaN (0xFF bytes). */
static invar_model *new_model(const char *dir, invar_format format)
{
    invar_model_spec spec;
    invar_model *model;

    assert_ok(invar_model_spec_read(&spec, dir, ""));
    assert_ok(invar_model_new(&model, &spec, format, NULL, &dev));
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        memset(p->master.data, 0xFF, (size_t)(p->stack * p->rows * (p->cols ? p->cols : 1)) * 4);
    }
    return model;
}

static invar_model *load_model(const char *dir)
{
    invar_model *model = new_model(dir, INVAR_FORMAT_FP32);

    assert_ok(invar_hf_load(model, dir, &dev));
    return model;
}

static void assert_equal_models(const invar_model *a, const invar_model *b, bool equal)
{
    invar_digest x, y;

    assert_ok(invar_model_hash(&x, a, &dev));
    assert_ok(invar_model_hash(&y, b, &dev));
    assert_int_equal(invar_digest_equal(&x, &y), equal);
}

static void assert_equal_files(const char *a, const char *b)
{
    char *x, *y;
    size_t x_bytes, y_bytes;

    assert_ok(invar_file_read(&x, &x_bytes, a, 1 << 24));
    assert_ok(invar_file_read(&y, &y_bytes, b, 1 << 24));
    assert_int_equal(x_bytes, y_bytes);
    assert_memory_equal(x, y, x_bytes);
    invar_free(x);
    invar_free(y);
}

/* ---- loading fixtures ------------------------------------------------------------------------ */

/* Compares a tensor of the file with its parameter, or with its slice of the stacked experts. */
static void assert_in_model(const invar_model *model, const invar_safetensors *file,
                            const invar_safetensor *t)
{
    static float expected[4096];
    char name[128];
    const float *got = NULL;
    int layer, expert;
    char kind[8];

    assert_true(t->elements <= 4096);
    assert_ok(invar_safetensors_read_f32(expected, file, t, 0, t->elements));
    snprintf(name, sizeof name, "%s", t->name);
    if (sscanf(t->name, "model.layers.%d.mlp.experts.%d.%7[a-z]_proj", &layer, &expert, kind) ==
        3) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s_proj.weight", layer, kind);
        assert_non_null(invar_model_find(model, name));
        got = (const float *)invar_model_find(model, name)->master.data + expert * t->elements;
    } else {
        assert_non_null(invar_model_find(model, name));
        got = invar_model_find(model, name)->master.data;
    }
    invar_assert_bits_f32(got, expected, t->elements, t->name);
}

static int64_t assert_file_in_model(const invar_model *model, const char *path)
{
    invar_safetensors *file;
    int64_t elements = 0;

    assert_ok(invar_safetensors_open(&file, path));
    for (int64_t i = 0; i < invar_safetensors_count(file); i++) {
        assert_in_model(model, file, invar_safetensors_at(file, i));
        elements += invar_safetensors_at(file, i)->elements;
    }
    invar_safetensors_close(file);
    return elements;
}

static void test_engine_hf__loads_every_tensor_that_transformers_wrote(void **state)
{
    (void)state;
    for (int i = 0; i < N_FIXTURES; i++) {
        invar_model *model = load_model(fixture(fixtures[i]));
        int64_t elements = 0, expected = 0;
        char path[2048];

        assert_true(invar_hf_has_weights(fixture(fixtures[i])));
        for (int shard = 1; shard <= (i == MOE ? 3 : 1); shard++) {
            snprintf(path, sizeof path, "%s/model.safetensors", fixture(fixtures[i]));
            if (i == MOE)
                snprintf(path, sizeof path, "%s/model-%05d-of-00003.safetensors",
                         fixture(fixtures[i]), shard);
            elements += assert_file_in_model(model, path);
        }
        for (int64_t p = 0; p < model->n_params; p++)
            expected += model->params[p].stack * model->params[p].rows *
                        (model->params[p].cols ? model->params[p].cols : 1);
        assert_int_equal(elements, expected);
        invar_model_free(model);
    }
}

static void test_engine_hf__refreshes_the_weights(void **state)
{
    invar_model *model = new_model(fixture("qwen3"), INVAR_FORMAT_BF16);
    const float *master;
    const uint16_t *weight;

    (void)state;
    assert_ok(invar_hf_load(model, fixture("qwen3"), &dev));
    master = model->embedding->master.data;
    weight = model->embedding->weight.data;
    for (int64_t i = 0; i < model->spec.vocab * model->spec.hidden; i++)
        assert_int_equal(weight[i], invar_bf16_from_f32(master[i]));
    invar_model_free(model);
}

/* ---- saving ---------------------------------------------------------------------------------- */

static void test_engine_hf__saves_what_it_loads_to_the_byte(void **state)
{
    (void)state;
    for (int i = 0; i < N_FIXTURES; i++) {
        invar_model *model = load_model(fixture(fixtures[i])), *reloaded;

        assert_ok(invar_hf_save(model, NULL, in_work("one"), INVAR_DTYPE_F32, 0, NULL));
        reloaded = load_model(in_work("one"));
        assert_equal_models(model, reloaded, true);
        assert_ok(invar_hf_save(reloaded, NULL, in_work("two"), INVAR_DTYPE_F32, 0, NULL));
        assert_equal_files(in_work("one/model.safetensors"), in_work("two/model.safetensors"));
        assert_equal_files(in_work("one/config.json"), in_work("two/config.json"));
        invar_model_free(reloaded);

        assert_ok(invar_hf_save(model, NULL, in_work("shards"), INVAR_DTYPE_F32, 5000, NULL));
        assert_false(invar_path_exists(in_work("shards/model.safetensors")));
        assert_true(invar_path_exists(in_work("shards/model.safetensors.index.json")));
        reloaded = load_model(in_work("shards"));
        assert_equal_models(model, reloaded, true);
        invar_model_free(reloaded);

        // one file over shards, and shards over one file: files of the old layout must not be read
        assert_ok(invar_model_init(model, 7, &dev));
        assert_ok(invar_hf_save(model, NULL, in_work("shards"), INVAR_DTYPE_F32, 0, NULL));
        assert_false(invar_path_exists(in_work("shards/model.safetensors.index.json")));
        assert_ok(invar_hf_save(model, NULL, in_work("one"), INVAR_DTYPE_F32, 5000, NULL));
        for (int folder = 0; folder < 2; folder++) {
            reloaded = load_model(in_work(folder ? "one" : "shards"));
            assert_equal_models(model, reloaded, true);
            invar_model_free(reloaded);
        }
        assert_ok(invar_held_folder_remove(in_work("one")));
        assert_ok(invar_held_folder_remove(in_work("two")));
        assert_ok(invar_held_folder_remove(in_work("shards")));
        invar_model_free(model);
    }
}

static void test_engine_hf__bf16_keeps_bf16_and_rounds_f32(void **state)
{
    invar_model *model = load_model(fixture("llama")), *reloaded;

    (void)state;
    assert_ok(invar_hf_save(model, NULL, in_work("bf16"), INVAR_DTYPE_BF16, 0, NULL));
    reloaded = load_model(in_work("bf16"));
    assert_equal_models(model, reloaded, true);
    invar_model_free(reloaded);
    assert_ok(invar_model_init(model, 1, &dev));
    assert_ok(invar_hf_save(model, NULL, in_work("bf16"), INVAR_DTYPE_BF16, 0, NULL));
    reloaded = load_model(in_work("bf16"));
    assert_equal_models(model, reloaded, false);
    invar_model_free(reloaded);
    assert_fails(invar_hf_save(model, NULL, in_work("x"), INVAR_DTYPE_FP8, 0, NULL),
                 INVAR_E_UNSUPPORTED, "not as fp8");
    assert_false(invar_path_exists(in_work("x")));
    invar_model_free(model);
}

static bool shard_path(char out[1024], int shard, int shards)
{
    snprintf(out, 1024, "%s/sized/model-%05d-of-%05d.safetensors", work, shard, shards);
    return invar_path_exists(out);
}

/* No shard exceeds the limit, and none has space for the first tensor of the next shard. */
static void test_engine_hf__shards_have_their_size(void **state)
{
    enum { LIMIT = 3000 };
    invar_model *model = load_model(fixture("qwen3_moe"));
    int64_t previous_bytes = LIMIT;
    char path[1024];
    int shards = 2;

    (void)state;
    assert_ok(invar_hf_save(model, NULL, in_work("sized"), INVAR_DTYPE_F32, LIMIT, NULL));
    while (!shard_path(path, 1, shards))
        assert_true(++shards < 100);
    for (int shard = 1; shard <= shards; shard++) {
        invar_safetensors *file;
        int64_t bytes = 0;

        assert_true(shard_path(path, shard, shards));
        assert_ok(invar_safetensors_open(&file, path));
        for (int64_t i = 0; i < invar_safetensors_count(file); i++)
            bytes += invar_safetensors_at(file, i)->elements * 4;
        assert_true(bytes <= LIMIT);
        assert_true(previous_bytes + invar_safetensors_at(file, 0)->elements * 4 > LIMIT);
        previous_bytes = bytes;
        invar_safetensors_close(file);
    }
    assert_false(shard_path(path, shards + 1, shards));
    invar_model_free(model);
}

/* ---- faulty folders -------------------------------------------------------------------------- */

/* Changes to the fixture's model.safetensors; zeroed for none. */
typedef struct tensor_edits {
    const char *drop; /* name of a tensor to leave out; NULL if there is none */
    const char
        *transpose; /* name of a matrix whose two extents are swapped; NULL if there is none */
    invar_safetensor extra[2]; /* (n_extra) tensors of zeros to add */
    int64_t n_extra;
    bool mixed; /* every other tensor is written as BF16, the others as F32 */
} tensor_edits;

/* Makes `folder` with the fixture's config.json and an edited model.safetensors. */
static void write_edited(const char *folder, const char *name, const tensor_edits *edits)
{
    static const float zeros[4096];
    static float data[64][4096];
    invar_safetensor list[64];
    invar_safetensors_writer *writer;
    invar_safetensors *file;
    char path[2048], *config;
    int64_t count = 0;
    size_t bytes;

    snprintf(path, sizeof path, "%s/config.json", fixture(name));
    assert_ok(invar_file_read(&config, &bytes, path, 1 << 20));
    assert_ok(invar_held_folder_make(in_work(folder)));
    snprintf(path, sizeof path, "%s/config.json", in_work(folder));
    assert_ok(invar_file_write(path, config, bytes));
    invar_free(config);
    snprintf(path, sizeof path, "%s/model.safetensors", fixture(name));
    assert_ok(invar_safetensors_open(&file, path));
    for (int64_t i = 0; i < invar_safetensors_count(file); i++) {
        invar_safetensor t = *invar_safetensors_at(file, i);
        if (edits->drop && strcmp(t.name, edits->drop) == 0)
            continue;
        if (edits->transpose && strcmp(t.name, edits->transpose) == 0) {
            t.shape[0] = invar_safetensors_at(file, i)->shape[1];
            t.shape[1] = invar_safetensors_at(file, i)->shape[0];
        }
        assert_ok(invar_safetensors_read_f32(data[count], file, &t, 0, t.elements));
        t.type = edits->mixed && count % 2 ? INVAR_SAFETENSORS_BF16 : INVAR_SAFETENSORS_F32;
        list[count++] = t;
    }
    for (int64_t i = 0; i < edits->n_extra; i++)
        list[count++] = edits->extra[i];
    snprintf(path, sizeof path, "%s/model.safetensors", in_work(folder));
    assert_ok(invar_safetensors_create(&writer, path, list, count, NULL, 0));
    for (int64_t i = 0; i < count; i++) {
        bool added = i >= count - edits->n_extra;
        int64_t elements = added ? list[i].shape[0] * list[i].shape[1] : list[i].elements;
        assert_ok(added ? invar_safetensors_write(writer, zeros, elements)
                        : invar_safetensors_write_f32(writer, data[i], elements));
    }
    assert_ok(invar_safetensors_commit(writer));
    invar_safetensors_writer_close(writer);
    invar_safetensors_close(file);
}

static invar_status load_edited(const char *name, const tensor_edits *edits)
{
    invar_model *model;
    invar_status status;

    write_edited("edited", name, edits);
    model = new_model(in_work("edited"), INVAR_FORMAT_FP32);
    status = invar_hf_load(model, in_work("edited"), &dev);
    invar_model_free(model);
    return status;
}

static void test_engine_hf__names_missing_surplus_and_misshapen_tensors(void **state)
{
    (void)state;
    assert_ok(load_edited("llama", &(tensor_edits){0}));
    assert_fails(load_edited("llama", &(tensor_edits){.drop = "model.layers.1.mlp.up_proj.weight"}),
                 INVAR_E_CORRUPT,
                 "edited: tensor 'model.layers.1.mlp.up_proj.weight' is missing, 1 of 21 are");
    assert_fails(load_edited("llama", &(tensor_edits){.drop = "lm_head.weight"}), INVAR_E_CORRUPT,
                 "tensor 'lm_head.weight' is missing");
    assert_fails(
        load_edited("qwen2", &(tensor_edits){.drop = "model.layers.0.self_attn.k_proj.bias"}),
        INVAR_E_CORRUPT, "'model.layers.0.self_attn.k_proj.bias' is missing");
    assert_fails(
        load_edited("llama", &(tensor_edits){.transpose = "model.layers.0.mlp.up_proj.weight"}),
        INVAR_E_CORRUPT,
        "model.safetensors: tensor 'model.layers.0.mlp.up_proj.weight' is F32 (16, 32), "
        "expected F32 (32, 16)");
    assert_fails(
        load_edited("llama", &(tensor_edits){.n_extra = 1,
                                             .extra = {{"model.layers.2.mlp.up_proj.weight",
                                                        INVAR_SAFETENSORS_F32,
                                                        2,
                                                        {32, 16},
                                                        0,
                                                        0}}}),
        INVAR_E_CORRUPT, "'model.layers.2.mlp.up_proj.weight': the model that config.json");
    assert_ok(load_edited("llama",
                          &(tensor_edits){.n_extra = 1,
                                          .extra = {{"model.layers.0.self_attn.rotary_emb.inv_freq",
                                                     INVAR_SAFETENSORS_F32,
                                                     2,
                                                     {1, 2},
                                                     0,
                                                     0}}}));
    assert_fails(
        load_edited("llama",
                    &(tensor_edits){
                        .drop = "model.norm.weight",
                        .n_extra = 1,
                        .extra = {{"model.norm.weight", INVAR_SAFETENSORS_I32, 1, {16, 1}, 0, 0}}}),
        INVAR_E_UNSUPPORTED, "'model.norm.weight' is I32; weights are F32, BF16 or F16");
}

/* The values of the fixture are bf16, so they are exact in both types. */
static void test_engine_hf__tensors_may_have_types_of_their_own(void **state)
{
    invar_model *model = load_model(fixture("llama")), *mixed;

    (void)state;
    write_edited("mixed", "llama", &(tensor_edits){.mixed = true});
    mixed = load_model(in_work("mixed"));
    assert_equal_models(model, mixed, true);
    invar_model_free(model);
    invar_model_free(mixed);
}

/* The file may contain a tied head if it has the bits of the embedding. */
static void test_engine_hf__compares_a_tied_head(void **state)
{
    static const tensor_edits zero_head = {
        .n_extra = 1, .extra = {{"lm_head.weight", INVAR_SAFETENSORS_F32, 2, {40, 16}, 0, 0}}};
    tensor_edits short_head = zero_head;
    invar_model *model;

    (void)state;
    short_head.extra[0].shape[0] = 39;
    assert_fails(load_edited("qwen2", &zero_head), INVAR_E_CORRUPT,
                 "'lm_head.weight': config.json ties it to the embedding, whose bits are others");
    assert_fails(load_edited("qwen2", &short_head), INVAR_E_CORRUPT,
                 "'lm_head.weight' is F32 (39, 16), expected F32 (40, 16)");
    // control: an embedding of zeros and a head of zeros
    assert_ok(load_edited(
        "qwen2",
        &(tensor_edits){
            .drop = "model.embed_tokens.weight",
            .n_extra = 2,
            .extra = {{"model.embed_tokens.weight", INVAR_SAFETENSORS_F32, 2, {40, 16}, 0, 0},
                      zero_head.extra[0]}}));
    model = new_model(in_work("edited"), INVAR_FORMAT_FP32);
    assert_ok(invar_hf_load(model, in_work("edited"), &dev));
    assert_ptr_equal(model->head, model->embedding);
    invar_model_free(model);
}

/* A critic that is loaded from a language model gets its body and a value head of zeros. */
static void test_engine_hf__a_critic_takes_the_body_of_a_language_model(void **state)
{
    invar_model *actor = load_model(fixture("llama")), *critic;
    invar_model_spec spec = actor->spec;

    (void)state;
    spec.value_head = true;
    assert_ok(invar_model_new(&critic, &spec, INVAR_FORMAT_FP32, NULL, &dev));
    memset(critic->head->master.data, 0xFF, 16 * sizeof(float));
    assert_ok(invar_hf_load(critic, fixture("llama"), &dev));
    for (int64_t i = 0; i < critic->n_params; i++) {
        const invar_param *p = &critic->params[i];
        static const float zeros[16];
        const invar_param *from = invar_model_find(actor, p->name);

        if (p->kind == INVAR_PARAM_HEAD)
            assert_memory_equal(p->master.data, zeros, sizeof zeros);
        else
            assert_memory_equal(p->master.data, from->master.data,
                                (size_t)(p->rows * (p->cols ? p->cols : 1)) * sizeof(float));
    }
    invar_model_free(critic);
    invar_model_free(actor);
}

/* ---- faulty indexes of shards ---------------------------------------------------------------- */

/* Loads a copy of the fixture with three shards; the first `from` in its index becomes `to`. */
static invar_status load_with_index(const char *from, const char *to)
{
    invar_model *model;
    invar_status status;
    char *text, *match, *changed;
    size_t bytes;

    for (int i = 0; i < 4; i++) {
        static const char *const files[] = {"config.json", "model-00001-of-00003.safetensors",
                                            "model-00002-of-00003.safetensors",
                                            "model-00003-of-00003.safetensors"};
        char path[2048];

        snprintf(path, sizeof path, "%s/%s", fixture("qwen3_moe"), files[i]);
        assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
        assert_ok(invar_held_folder_make(in_work("index")));
        snprintf(path, sizeof path, "index/%s", files[i]);
        assert_ok(invar_file_write(in_work(path), text, bytes));
        invar_free(text);
    }
    assert_ok(
        invar_file_read(&text, &bytes, fixture("qwen3_moe/model.safetensors.index.json"), 1 << 20));
    match = strstr(text, from);
    assert_non_null(match);
    changed = malloc(bytes + strlen(to) + 1);
    assert_non_null(changed);
    snprintf(changed, bytes + strlen(to) + 1, "%.*s%s%s", (int)(match - text), text, to,
             match + strlen(from));
    assert_ok(
        invar_file_write(in_work("index/model.safetensors.index.json"), changed, strlen(changed)));
    free(changed);
    invar_free(text);
    model = new_model(in_work("index"), INVAR_FORMAT_FP32);
    status = invar_hf_load(model, in_work("index"), &dev);
    invar_model_free(model);
    return status;
}

static void test_engine_hf__rejects_wrong_indexes(void **state)
{
#define FIRST "\"lm_head.weight\": \"model-00001-of-00003.safetensors\""
    (void)state;
    assert_ok(load_with_index("total_size", "total_bytes"));
    assert_fails(load_with_index(FIRST, "\"lm_head.weight\": \"../model.safetensors\""),
                 INVAR_E_CORRUPT, "tensor 'lm_head.weight': its file is no name");
    assert_fails(load_with_index(FIRST, "\"lm_head.weight\": \".hidden.safetensors\""),
                 INVAR_E_CORRUPT, "its file is no name");
    assert_fails(load_with_index(FIRST, "\"lm_head.weight\": \"/etc/passwd\""), INVAR_E_CORRUPT,
                 "its file is no name");
    assert_fails(load_with_index(FIRST, "\"lm_head.weight\": 1"), INVAR_E_CORRUPT,
                 "its file is no name");
    assert_fails(load_with_index(FIRST, "\"lm_head.weight\": \"none.safetensors\""),
                 INVAR_E_NOTFOUND, "none.safetensors: cannot be opened");
    assert_fails(load_with_index(FIRST, "\"lm_head.weight\": \"model-00002-of-00003.safetensors\""),
                 INVAR_E_CORRUPT,
                 "tensor 'lm_head.weight': the index says that it is in this file");
    assert_fails(load_with_index(FIRST ",", ""), INVAR_E_CORRUPT,
                 "tensor 'lm_head.weight': the index does not say that it is in this file");
    assert_fails(load_with_index(FIRST, FIRST ", \"x\": \"model-00001-of-00003.safetensors\""),
                 INVAR_E_CORRUPT, "tensor 'x': the index says that it is in this file");
    assert_fails(load_with_index(FIRST, FIRST ", " FIRST), INVAR_E_INVALID, "duplicate object key");
    assert_fails(load_with_index("weight_map", "weights"), INVAR_E_CORRUPT,
                 "there is no object \"weight_map\"");
}

/*
 * The message names a file that the folder has instead of weights. The files are added in ascending
 * order of precedence.
 */
static void test_engine_hf__a_folder_without_weights_is_not_found(void **state)
{
    static const char *const files[][2] = {
        {"model.gguf", "model.gguf cannot be read"},
        {"pytorch_model-00002-of-00002.bin", "pytorch_model-00002-of-00002.bin cannot be read"},
        {"pytorch_model-00001-of-00002.bin", "pytorch_model-00001-of-00002.bin cannot be read"},
        {"model-00001-of-00002.safetensors", "is a shard, and its index is missing"},
        {"adapter_model.safetensors", "adapter_model.safetensors is an adapter"},
    };
    const char *dir = in_work("without");
    invar_model *model = load_model(fixture("llama"));
    char path[4200];

    (void)state;
    assert_ok(invar_held_folder_make(dir));
    assert_false(invar_hf_has_weights(dir));
    assert_fails(invar_hf_load(model, dir, &dev), INVAR_E_NOTFOUND,
                 "without: no weights: neither model.safetensors nor");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        assert_ok(invar_path_join(path, sizeof path, dir, files[i][0]));
        assert_ok(invar_file_write(path, "", 0));
        assert_fails(invar_hf_check_weights(dir), INVAR_E_NOTFOUND, files[i][1]);
    }
    assert_ok(invar_path_join(path, sizeof path, dir, "model.safetensors"));
    assert_ok(invar_file_write(path, "", 0));
    assert_ok(invar_hf_check_weights(dir));
    invar_model_free(model);
}

static void test_engine_hf__names_the_download_of_a_hub_model(void **state)
{
    static const char *const no_hub_names[] = {"Qwen",     "Qwen/",   "/Qwen/Qwen3",  "a/b/c",
                                               "../Qwen3", "./Qwen3", "-a/Qwen3",     "tests/Qwen3",
                                               "a b/c",    "Qwen/.x", "models/Qwen3", "runs/grpo"};
    static const char *const hub_addresses[] = {"https://huggingface.co/Qwen/Qwen3-0.6B",
                                                "https://huggingface.co/Qwen/Qwen3-0.6B/tree/main",
                                                "huggingface.co/Qwen/Qwen3-0.6B",
                                                "hf://Qwen/Qwen3-0.6B"};
    (void)state;

    assert_fails(invar_hf_check_folder("hf-checkpoint", "Qwen/Qwen3-0.6B"), INVAR_E_NOTFOUND,
                 "hf-checkpoint: Qwen/Qwen3-0.6B: no such folder");
    invar_assert_message("download a model of the Hugging Face Hub with 'hf download "
                         "Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B' and name that folder",
                         __FILE__, __LINE__);
    for (size_t i = 0; i < sizeof hub_addresses / sizeof *hub_addresses; i++)
        assert_fails(invar_hf_check_folder("ref-load", hub_addresses[i]), INVAR_E_NOTFOUND,
                     "'hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B'");
    assert_fails(invar_hf_check_folder("ref-load", "https://example.org/model"), INVAR_E_NOTFOUND,
                 "such folder; Invar downloads nothing: docs/models.md says how to get a model");
    assert_fails(invar_hf_check_folder("hf-checkpoint", "models/Qwen3"), INVAR_E_NOTFOUND,
                 "docs/models.md says how to get a model");
    assert_int_equal(chdir(INVAR_TEST_DATA "/.."), 0); // the folder "tests" exists there
    for (size_t i = 0; i < sizeof no_hub_names / sizeof *no_hub_names; i++) {
        assert_fails(invar_hf_check_folder("", no_hub_names[i]), INVAR_E_NOTFOUND,
                     "no such folder");
        assert_null(strstr(invar_error_last()->message, "download"));
    }
    assert_ok(invar_hf_check_folder("", "tests"));
}

static void test_engine_hf__says_what_a_folder_of_a_model_holds(void **state)
{
    const char *dir = in_work("data"), *config = in_work("data/config.json");

    (void)state;
    assert_ok(invar_held_folder_make(dir));
    assert_fails(invar_hf_check_model("hf-checkpoint", dir), INVAR_E_NOTFOUND,
                 "data is no folder of a model: it has no config.json; the folder of a model holds "
                 "config.json, tokenizer.json, tokenizer_config.json and weights as .safetensors");
    assert_ok(invar_file_write(in_work("data/a.gguf"), "", 0));
    assert_fails(invar_hf_check_model("hf-checkpoint", dir), INVAR_E_NOTFOUND,
                 "; a.gguf cannot be read: load it with transformers");
    assert_ok(invar_file_write(config, "{}", 2));
    assert_ok(invar_hf_check_model("hf-checkpoint", dir));
    assert_fails(invar_hf_check_model("hf-checkpoint", config), INVAR_E_NOTFOUND,
                 "config.json is a file, not a folder");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_hf__loads_every_tensor_that_transformers_wrote),
        cmocka_unit_test(test_engine_hf__refreshes_the_weights),
        cmocka_unit_test(test_engine_hf__saves_what_it_loads_to_the_byte),
        cmocka_unit_test(test_engine_hf__bf16_keeps_bf16_and_rounds_f32),
        cmocka_unit_test(test_engine_hf__shards_have_their_size),
        cmocka_unit_test(test_engine_hf__names_missing_surplus_and_misshapen_tensors),
        cmocka_unit_test(test_engine_hf__tensors_may_have_types_of_their_own),
        cmocka_unit_test(test_engine_hf__compares_a_tied_head),
        cmocka_unit_test(test_engine_hf__a_critic_takes_the_body_of_a_language_model),
        cmocka_unit_test(test_engine_hf__rejects_wrong_indexes),
        cmocka_unit_test(test_engine_hf__a_folder_without_weights_is_not_found),
        cmocka_unit_test(test_engine_hf__names_the_download_of_a_hub_model),
        cmocka_unit_test(test_engine_hf__says_what_a_folder_of_a_model_holds),
    };

    return cmocka_run_group_tests(tests, make_work, remove_work);
}
