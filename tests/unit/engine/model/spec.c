/*
 * spec.c - tests of reading, checking and writing config.json.
 *
 * Published configurations and files that transformers wrote are read with the expected fields, and
 * every accepted spec is written and read back unchanged. A key that changes the model and is not
 * supported is rejected by name. Control: keys without effect are ignored.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/spec/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "tests/support.h"

static char work[512];

static int make_work(void **state)
{
    (void)state;
    snprintf(work, sizeof work, "%s/spec-XXXXXX", INVAR_TEST_WORK);
    return mkdtemp(work) ? 0 : -1;
}

static int remove_work(void **state)
{
    (void)state;
    return invar_held_folder_remove(work) == INVAR_OK ? 0 : -1;
}

static void write_text(const char *name, const char *text)
{
    char path[1024];

    assert_ok(invar_path_join(path, sizeof path, work, name));
    assert_ok(invar_file_write(path, text, strlen(text)));
}

static void remove_text(const char *name)
{
    char path[1024];

    assert_ok(invar_path_join(path, sizeof path, work, name));
    remove(path);
}

static invar_status read_text(invar_model_spec *out, const char *config)
{
    write_text("config.json", config);
    return invar_model_spec_read(out, work, "");
}

static void assert_same(const invar_model_spec *a, const invar_model_spec *b)
{
    char *text[2];
    size_t bytes[2];

    assert_ok(invar_model_spec_json(&text[0], &bytes[0], a, "float32"));
    assert_ok(invar_model_spec_json(&text[1], &bytes[1], b, "float32"));
    assert_string_equal(text[0], text[1]);
    assert_int_equal(bytes[0], strlen(text[0]));
    invar_free(text[0]);
    invar_free(text[1]);
    assert_int_equal(a->family, b->family);
    assert_int_equal(a->attention.window, b->attention.window);
    assert_int_equal(a->attention.window_from, b->attention.window_from);
    assert_int_equal(a->value_head, b->value_head);
    assert_int_equal(a->tied, b->tied);
    assert_int_equal(a->attention.qkv_bias, b->attention.qkv_bias);
    assert_int_equal(a->attention.qk_norm, b->attention.qk_norm);
    assert_int_equal(a->n_eos, b->n_eos);
    assert_memory_equal(a->eos, b->eos, sizeof a->eos);
    assert_memory_equal(a->experts.sparse, b->experts.sparse, sizeof a->experts.sparse);
    assert_memory_equal(&a->norm_eps, &b->norm_eps, sizeof a->norm_eps);
    assert_memory_equal(&a->init_std, &b->init_std, sizeof a->init_std);
    assert_true(a->rope.theta == b->rope.theta && a->rope.scaling == b->rope.scaling &&
                a->rope.factor == b->rope.factor &&
                a->rope.original_context == b->rope.original_context);
}

/* Writes the spec and asserts that reading it back gives the same spec. */
static void assert_round_trip(const invar_model_spec *spec)
{
    invar_model_spec reread;
    size_t bytes;
    char *text;

    remove_text("generation_config.json");
    assert_ok(invar_model_spec_json(&text, &bytes, spec, "bfloat16"));
    assert_ok(read_text(&reread, text));
    assert_same(spec, &reread);
    invar_free(text);
}

/* ---- published models ------------------------------------------------------------------------ */

static const char llama_32_1b[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false,"
    " \"attention_dropout\": 0.0, \"bos_token_id\": 128000,"
    " \"eos_token_id\": [128001, 128008, 128009], \"head_dim\": 64, \"hidden_act\": \"silu\","
    " \"hidden_size\": 2048, \"initializer_range\": 0.02, \"intermediate_size\": 8192,"
    " \"max_position_embeddings\": 131072, \"mlp_bias\": false, \"model_type\": \"llama\","
    " \"num_attention_heads\": 32, \"num_hidden_layers\": 16, \"num_key_value_heads\": 8,"
    " \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, \"rope_scaling\": {\"factor\": 32.0,"
    " \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0,"
    " \"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"},"
    " \"rope_theta\": 500000.0, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\","
    " \"transformers_version\": \"4.45.0.dev0\", \"use_cache\": true, \"vocab_size\": 128256}";

static const char qwen25_05b[] =
    "{\"architectures\": [\"Qwen2ForCausalLM\"], \"attention_dropout\": 0.0,"
    " \"bos_token_id\": 151643, \"eos_token_id\": 151645, \"hidden_act\": \"silu\","
    " \"hidden_size\": 896, \"initializer_range\": 0.02, \"intermediate_size\": 4864,"
    " \"max_position_embeddings\": 32768, \"max_window_layers\": 21, \"model_type\": \"qwen2\","
    " \"num_attention_heads\": 14, \"num_hidden_layers\": 24, \"num_key_value_heads\": 2,"
    " \"rms_norm_eps\": 1e-06, \"rope_theta\": 1000000.0, \"sliding_window\": 32768,"
    " \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\","
    " \"transformers_version\": \"4.43.1\", \"use_cache\": true, \"use_sliding_window\": false,"
    " \"vocab_size\": 151936}";

static const char qwen3_30b_a3b[] =
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"attention_bias\": false,"
    " \"attention_dropout\": 0.0, \"bos_token_id\": 151643, \"decoder_sparse_step\": 1,"
    " \"eos_token_id\": 151645, \"head_dim\": 128, \"hidden_act\": \"silu\", \"hidden_size\": 2048,"
    " \"initializer_range\": 0.02, \"intermediate_size\": 6144,"
    " \"max_position_embeddings\": 40960, \"max_window_layers\": 48, \"mlp_only_layers\": [],"
    " \"model_type\": \"qwen3_moe\", \"moe_intermediate_size\": 768, \"norm_topk_prob\": true,"
    " \"num_attention_heads\": 32, \"num_experts\": 128, \"num_experts_per_tok\": 8,"
    " \"num_hidden_layers\": 48, \"num_key_value_heads\": 4, \"output_router_logits\": false,"
    " \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 1000000.0,"
    " \"router_aux_loss_coef\": 0.001, \"sliding_window\": null, \"tie_word_embeddings\": false,"
    " \"torch_dtype\": \"bfloat16\", \"transformers_version\": \"4.51.0\", \"use_cache\": true,"
    " \"use_sliding_window\": false, \"vocab_size\": 151936}";

static void test_engine_spec__reads_llama(void **state)
{
    static const int32_t eos[] = {128001, 128008, 128009};
    invar_model_spec s;

    (void)state;
    assert_ok(read_text(&s, llama_32_1b));
    assert_int_equal(s.family, INVAR_FAMILY_LLAMA);
    assert_int_equal(s.vocab, 128256);
    assert_int_equal(s.hidden, 2048);
    assert_int_equal(s.layers, 16);
    assert_int_equal(s.attention.heads, 32);
    assert_int_equal(s.attention.kv_heads, 8);
    assert_int_equal(s.attention.head_dim, 64);
    assert_int_equal(s.intermediate, 8192);
    assert_int_equal(s.max_positions, 131072);
    assert_true(s.norm_eps == 1e-5f && s.init_std == 0.02f);
    assert_true(s.tied && !s.attention.qkv_bias && !s.attention.qk_norm && !s.value_head);
    assert_int_equal(s.rope.scaling, INVAR_ROPE_LLAMA3);
    assert_true(s.rope.theta == 500000 && s.rope.factor == 32 && s.rope.low_freq_factor == 1 &&
                s.rope.high_freq_factor == 4 && s.rope.original_context == 8192);
    assert_int_equal(s.n_eos, 3);
    assert_memory_equal(s.eos, eos, sizeof eos);
    assert_int_equal(s.attention.window, 0);
    assert_int_equal(s.experts.count, 0);
    assert_round_trip(&s);
}

static void test_engine_spec__reads_qwen2_and_generation_config(void **state)
{
    static const int32_t eos[] = {151645, 151643};
    invar_model_spec s;

    (void)state;
    write_text("generation_config.json",
               "{\"do_sample\": true, \"eos_token_id\": [151645, 151643], \"top_p\": 0.8}");
    assert_ok(read_text(&s, qwen25_05b));
    assert_int_equal(s.family, INVAR_FAMILY_QWEN2);
    assert_int_equal(s.attention.head_dim, 64);
    assert_true(s.tied && s.attention.qkv_bias && !s.attention.qk_norm);
    assert_int_equal(s.attention.window, 0);
    assert_int_equal(s.n_eos, 2);
    assert_memory_equal(s.eos, eos, sizeof eos);
    assert_true(s.rope.theta == 1e6 && s.rope.scaling == INVAR_ROPE_DEFAULT);
    write_text("generation_config.json", "[]");
    assert_fails(read_text(&s, qwen25_05b), INVAR_E_INVALID,
                 "generation_config.json: not a JSON object");
    write_text("generation_config.json", "{\"eos_token_id\": 151936}");
    assert_fails(read_text(&s, qwen25_05b), INVAR_E_INVALID,
                 "generation_config.json: \"eos_token_id\" has something that is no token");
    remove_text("generation_config.json");
    assert_ok(read_text(&s, qwen25_05b));
    assert_round_trip(&s);
}

static void test_engine_spec__reads_qwen3_moe(void **state)
{
    invar_model_spec s;

    (void)state;
    assert_ok(read_text(&s, qwen3_30b_a3b));
    assert_int_equal(s.family, INVAR_FAMILY_QWEN3_MOE);
    assert_int_equal(s.experts.count, 128);
    assert_int_equal(s.experts.per_token, 8);
    assert_int_equal(s.experts.intermediate, 768);
    assert_true(s.experts.normalize && s.attention.qk_norm && !s.attention.qkv_bias && !s.tied);
    for (int i = 0; i < INVAR_SPEC_MAX_LAYERS; i++)
        assert_int_equal(s.experts.sparse[i], i < 48);
    assert_round_trip(&s);
}

/* Reads files that transformers 5.22 wrote (tests/unit/engine/files/hf/data/generate.py). */
static void test_engine_spec__reads_what_transformers_writes(void **state)
{
    static const char *const names[] = {"llama", "qwen2", "qwen3", "qwen3_moe", "critic"};
    invar_model_spec s;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char dir[1024];

        snprintf(dir, sizeof dir, "%s/unit/engine/files/hf/data/%s", INVAR_TEST_DATA, names[i]);
        assert_ok(invar_model_spec_read(&s, dir, ""));
        assert_string_equal(invar_family_name(s.family), i < 4 ? names[i] : "qwen2");
        assert_int_equal(s.value_head, i == 4);
        assert_int_equal(s.hidden, 16);
        assert_int_equal(s.attention.kv_heads, 2);
        assert_int_equal(s.attention.head_dim, i == 2 || i == 3 ? 8 : 4);
        assert_int_equal(s.rope.scaling, i == 0 ? INVAR_ROPE_LLAMA3 : INVAR_ROPE_DEFAULT);
        assert_true(s.rope.theta == (i == 0 ? 500000 : 10000));
        assert_int_equal(s.experts.count, i == 3 ? 4 : 0);
        assert_int_equal(s.attention.window, i == 2 ? 16 : 0);
        assert_int_equal(s.attention.window_from, i == 2 ? 1 : 0);
        assert_round_trip(&s);
    }
}

/* ---- one key at a time ----------------------------------------------------------------------- */

/* Beginnings of the config.json of small models, without the closing brace. */
#define SMALL                                                                                      \
    "\"vocab_size\": 40, \"hidden_size\": 16, \"intermediate_size\": 24, "                         \
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"max_position_embeddings\": 64"
#define LLAMA "{\"model_type\": \"llama\", " SMALL
#define QWEN2 "{\"model_type\": \"qwen2\", \"num_key_value_heads\": 2, " SMALL
#define QWEN3 "{\"model_type\": \"qwen3\", \"num_key_value_heads\": 2, " SMALL
#define MOE                                                                                        \
    "{\"model_type\": \"qwen3_moe\", \"num_key_value_heads\": 2, \"num_experts_per_tok\": 2, "     \
    "\"moe_intermediate_size\": 8, " SMALL

static void test_engine_spec__has_the_defaults_of_transformers(void **state)
{
    invar_model_spec s;

    (void)state;
    assert_ok(read_text(&s, LLAMA ", \"head_dim\": null}"));
    assert_int_equal(s.attention.kv_heads, 4);
    assert_int_equal(s.attention.head_dim, 4);
    assert_true(s.norm_eps == 1e-6f && s.init_std == 0.02f && !s.tied && s.rope.theta == 10000);
    assert_int_equal(s.n_eos, 0);
    assert_ok(read_text(&s, QWEN3 "}"));
    assert_int_equal(s.attention.head_dim, 128);
    assert_ok(read_text(&s, MOE ", \"num_local_experts\": 6}"));
    assert_int_equal(s.attention.head_dim, 4);
    assert_int_equal(s.experts.count, 6);
    assert_false(s.experts.normalize);
}

static void test_engine_spec__reads_windows(void **state)
{
    invar_model_spec s;

    (void)state;
    assert_ok(read_text(&s, QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": 8, "
                                  "\"max_window_layers\": 3}"));
    assert_int_equal(s.attention.window, 8);
    assert_int_equal(s.attention.window_from, 3);
    assert_round_trip(&s);
    assert_ok(read_text(&s, QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": 8, "
                                  "\"max_window_layers\": 4}"));
    assert_int_equal(s.attention.window, 0);
    assert_ok(read_text(&s, QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": 8, "
                                  "\"layer_types\": [\"full_attention\", \"sliding_attention\", "
                                  "\"sliding_attention\", \"sliding_attention\"]}"));
    assert_int_equal(s.attention.window_from, 1);
    assert_ok(read_text(&s, QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": null}"));
    assert_int_equal(s.attention.window, 0);
}

static void test_engine_spec__reads_sparse_layers(void **state)
{
    static const bool expected[5] = {false, false, false, true, false};
    invar_model_spec s;

    (void)state;
    assert_ok(read_text(
        &s, MOE ", \"num_experts\": 4, \"decoder_sparse_step\": 2, \"mlp_only_layers\": [1]}"));
    assert_memory_equal(s.experts.sparse, expected, sizeof expected);
    assert_round_trip(&s);
}

#define ROPE(factor)                                                                               \
    "{\"rope_type\": \"llama3\", \"factor\": " #factor                                             \
    ", \"low_freq_factor\": 1, \"high_freq_factor\": 4, \"original_max_position_embeddings\": 32}"

/* A file may have both spellings, rope_scaling and rope_parameters, if they agree. */
static void test_engine_spec__reads_rope_twice(void **state)
{
    invar_model_spec once, twice;

    (void)state;
    assert_ok(read_text(&once, QWEN2 ", \"rope_theta\": 1e5, \"rope_scaling\": " ROPE(8) "}"));
    assert_ok(read_text(&twice, QWEN2 ", \"rope_theta\": 1e5, \"rope_scaling\": " ROPE(
                                    8) ", \"rope_parameters\": " ROPE(8) "}"));
    assert_true(twice.rope.theta == 1e5 && twice.rope.factor == 8);
    assert_same(&once, &twice);
    assert_ok(read_text(&twice, QWEN2 ", \"rope_theta\": 1e5, \"rope_parameters\": "
                                      "{\"rope_type\": \"default\", \"rope_theta\": 1e5}}"));
    assert_true(twice.rope.theta == 1e5 && twice.rope.scaling == INVAR_ROPE_DEFAULT);
}

/* SmolLM2-135M-Instruct has some of these keys; loading a GGUF in transformers adds others. */
static void test_engine_spec__ignores_what_every_model_may_have(void **state)
{
    static const char *const extra_keys[] = {
        ", \"_name_or_path\": \"x\", \"_model_name_or_path\": \"y\", \"unk_token_id\": 0, "
        "\"sep_token_id\": 70}",
        ", \"is_llama_config\": true, \"rope_interleaved\": false, \"transformers.js_config\": "
        "{\"dtype\": \"q4\"}}",
        ", \"max_length\": 4096, \"temperature\": 0.6, \"top_p\": 0.9, \"num_beams\": 1, "
        "\"suppress_tokens\": [1]}",
        ", \"torchscript\": false, \"is_decoder\": true, \"pruned_heads\": {}, \"prefix\": null, "
        "\"use_bfloat16\": false, \"task_specific_params\": {\"x\": 1}}",
        ", \"dtype\": \"float16\", \"torch_dtype\": \"bfloat16\", \"quantization_config\": null}",
    };
    invar_model_spec plain, s;

    (void)state;
    assert_ok(read_text(&plain, LLAMA "}"));
    for (size_t i = 0; i < sizeof extra_keys / sizeof *extra_keys; i++) {
        char config[1024];

        snprintf(config, sizeof config, "%s%s", LLAMA, extra_keys[i]);
        assert_ok(read_text(&s, config));
        assert_same(&plain, &s);
    }
}

static void test_engine_spec__ignores_the_listed_keys(void **state)
{
    static const struct {
        const char *ignored, *message;
    } cases[] = {
        {"", "unknown key \"logit_note\" of a llama model"},
        {"other", "unknown key \"logit_note\""},
        {"logit_note", "unknown key \"other\""},
        {"logit_note,other,third", "there is no key \"third\" to be ignored"},
        {"logit_note,other,vocab_size", "\"vocab_size\" is no unknown key"},
        {"logit_note,other,use_cache", "\"use_cache\" is no unknown key"},
    };
    invar_model_spec plain, s;

    (void)state;
    assert_ok(read_text(&plain, LLAMA "}"));
    write_text("config.json", LLAMA ", \"logit_note\": 2, \"other\": [], \"use_cache\": true}");
    assert_ok(invar_model_spec_read(&s, work, " other, logit_note"));
    assert_same(&plain, &s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(invar_model_spec_read(&s, work, cases[i].ignored),
                     i < 3 ? INVAR_E_UNSUPPORTED : INVAR_E_INVALID, cases[i].message);
}

static void test_engine_spec__weights_are_of_the_same_model(void **state)
{
    static const struct {
        const char *config, *message; /* NULL if the weights fit the model */
    } cases[] = {
        {LLAMA "}", NULL},
        {LLAMA ", \"rope_theta\": 5e5}",
         "config.json: \"rope_theta\" is 500000.0, and 10000.0 in the model that the weights are"},
        {LLAMA ", \"rms_norm_eps\": 1e-5}", "\"rms_norm_eps\" is 1e-5, and 1e-6 in"},
        {LLAMA ", \"head_dim\": 32}", "\"head_dim\" is 32, and "},
        {LLAMA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
               "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
               "\"original_max_position_embeddings\": 16}}",
         "\"rope_scaling\" is {"},
        {LLAMA ", \"initializer_range\": 0.5, \"eos_token_id\": 3}", NULL},
        {LLAMA ", \"note\": 1}", NULL}, // unknown keys matter in the model's own config.json only
    };
    invar_model_spec spec;

    (void)state;
    assert_ok(read_text(&spec, LLAMA "}"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text("config.json", cases[i].config);
        if (cases[i].message)
            assert_fails(invar_model_spec_compare(&spec, work), INVAR_E_INVALID, cases[i].message);
        else
            assert_ok(invar_model_spec_compare(&spec, work));
    }
    spec.value_head = true; // a critic: config.json of a run's checkpoint describes the actor
    write_text("config.json", LLAMA ", \"tie_word_embeddings\": true}");
    assert_ok(invar_model_spec_compare(&spec, work));
    spec.value_head = false;
    assert_fails(invar_model_spec_compare(&spec, work), INVAR_E_INVALID,
                 "\"tie_word_embeddings\" is true, and false in");
    assert_ok(invar_model_spec_compare(
        &spec, "/nowhere")); // without a config.json only shapes could be compared
}

static void test_engine_spec__refuses(void **state)
{
    static const struct {
        const char *config;
        invar_status status;
        const char *message;
    } cases[] = {
        {"[]", INVAR_E_INVALID, "config.json: not a JSON object"},
        {"{\"model_type\": \"llama\"", INVAR_E_INVALID, "config.json: column 22 is not JSON"},
        {"{" SMALL "}", INVAR_E_INVALID, "\"model_type\" is missing"},
        {"{\"model_type\": \"mamba\"}", INVAR_E_UNSUPPORTED, "type \"mamba\" are not supported"},
        {LLAMA ", \"logit_scale\": 2}", INVAR_E_UNSUPPORTED,
         "config.json: unknown key \"logit_scale\" of a llama model"},
        {LLAMA ", \"quantization_config\": {}}", INVAR_E_UNSUPPORTED, "\"quantization_config\""},
        {LLAMA ", \"sliding_window\": 8}", INVAR_E_UNSUPPORTED, "unknown key \"sliding_window\""},
        {QWEN3 ", \"mlp_bias\": false}", INVAR_E_UNSUPPORTED, "unknown key \"mlp_bias\""},
        {LLAMA ", \"vocab_size\": 41}", INVAR_E_INVALID, "duplicate object key"},
        {LLAMA ", \"attention_bias\": true}", INVAR_E_UNSUPPORTED,
         "\"attention_bias\" is supported with the value false only"},
        {LLAMA ", \"mlp_bias\": 0}", INVAR_E_UNSUPPORTED, "\"mlp_bias\""},
        {LLAMA ", \"hidden_act\": \"gelu\"}", INVAR_E_UNSUPPORTED, "\"hidden_act\""},
        {LLAMA ", \"attention_dropout\": 0.1}", INVAR_E_UNSUPPORTED, "the value 0 only"},
        {LLAMA ", \"pretraining_tp\": 2}", INVAR_E_UNSUPPORTED, "the value 1 only"},
        {QWEN2 ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0}}", INVAR_E_UNSUPPORTED,
         "\"rope_scaling\" has the type \"yarn\""},
        {QWEN2 ", \"rope_scaling\": {\"rope_type\": \"default\", \"factor\": 4.0}}",
         INVAR_E_UNSUPPORTED, "unknown key \"factor\" in \"rope_scaling\""},
        {QWEN2 ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"type\": \"default\"}}",
         INVAR_E_INVALID, "two different types"},
        {QWEN2 ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}", INVAR_E_INVALID,
         "\"low_freq_factor\" is missing"},
        {QWEN2 ", \"rope_scaling\": 4}", INVAR_E_INVALID, "\"rope_scaling\" is not an object"},
        {QWEN2 ", \"rope_scaling\": {\"rope_theta\": 1e4}}", INVAR_E_UNSUPPORTED, "\"rope_theta\""},
        {QWEN2 ", \"rope_parameters\": {\"rope_type\": \"default\"}}", INVAR_E_INVALID,
         "\"rope_theta\" is missing"},
        {QWEN2 ", \"rope_parameters\": {\"rope_theta\": 1e4, \"partial_rotary_factor\": 0.5}}",
         INVAR_E_UNSUPPORTED, "\"partial_rotary_factor\""},
        {QWEN2 ", \"rope_theta\": 1e4, \"rope_parameters\": {\"rope_theta\": 1e5}}",
         INVAR_E_INVALID, "remove one of them"},
        {QWEN2 ", \"rope_scaling\": " ROPE(8) ", \"rope_parameters\": " ROPE(4) "}",
         INVAR_E_INVALID, "\"rope_theta\" is missing"},
        {QWEN2
         ", \"rope_theta\": 1e4, \"rope_scaling\": " ROPE(8) ", \"rope_parameters\": " ROPE(4) "}",
         INVAR_E_INVALID, "remove one of them"},
        {LLAMA ", \"pruned_heads\": {\"0\": [1]}}", INVAR_E_UNSUPPORTED, "the value {} only"},
        {LLAMA ", \"rope_interleaved\": true}", INVAR_E_UNSUPPORTED, "\"rope_interleaved\""},
        {LLAMA ", \"auto_map\": {}}", INVAR_E_UNSUPPORTED, "hf-ignore-keys = auto_map"},
        {QWEN2 ", \"rope_theta\": -1}", INVAR_E_INVALID, "config.json: model: rope_theta"},
        {QWEN2 ", \"rope_theta\": \"x\"}", INVAR_E_INVALID, "not a finite number"},
        {QWEN2 ", \"rms_norm_eps\": 0}", INVAR_E_INVALID, "rms_norm_eps"},
        {QWEN2 ", \"head_dim\": 3}", INVAR_E_INVALID, "the head dim 3 is odd"},
        {QWEN2 ", \"head_dim\": 258}", INVAR_E_INVALID, "not in 2 to 256"},
        {QWEN2 ", \"layer_types\": [\"full_attention\"]}", INVAR_E_INVALID, "\"layer_types\""},
        {QWEN2 ", \"layer_types\": [\"full_attention\", \"sliding_attention\", "
               "\"full_attention\", \"sliding_attention\"]}",
         INVAR_E_UNSUPPORTED, "\"layer_types\" other than"},
        {QWEN2 ", \"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", "
               "\"sliding_attention\"]}",
         INVAR_E_INVALID, "no sliding window"},
        {QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": 8}", INVAR_E_INVALID,
         "\"max_window_layers\" is missing"},
        {MOE ", \"use_sliding_window\": true, \"num_experts\": 4}", INVAR_E_UNSUPPORTED,
         "\"use_sliding_window\""},
        {MOE "}", INVAR_E_INVALID, "\"num_local_experts\" is missing"},
        {MOE ", \"num_experts\": 4, \"num_local_experts\": 5}", INVAR_E_INVALID, "is 5, not in 4"},
        {MOE ", \"num_experts\": 1}", INVAR_E_INVALID, "experts per token is 2, not in 1 to 1"},
        {MOE ", \"num_experts\": 4, \"mlp_only_layers\": [4]}", INVAR_E_INVALID, "no layer"},
        {MOE ", \"num_experts\": 4, \"mlp_only_layers\": 4}", INVAR_E_INVALID, "is not a list"},
        {MOE ", \"num_experts\": 4, \"decoder_sparse_step\": 0}", INVAR_E_INVALID, "is 0, not in"},
        {MOE ", \"num_experts\": 4, \"output_router_logits\": true}", INVAR_E_UNSUPPORTED,
         "\"output_router_logits\""},
        {MOE ", \"num_experts\": 4, \"shared_expert_intermediate_size\": 8}", INVAR_E_UNSUPPORTED,
         "\"shared_expert_intermediate_size\""},
        {LLAMA ", \"num_key_value_heads\": 3}", INVAR_E_INVALID, "no multiple of 3 KV heads"},
        {LLAMA ", \"num_key_value_heads\": 5}", INVAR_E_INVALID, "KV heads is 5"},
        {LLAMA ", \"eos_token_id\": 40}", INVAR_E_INVALID, "\"eos_token_id\""},
        {LLAMA ", \"eos_token_id\": [1, \"2\"]}", INVAR_E_INVALID, "\"eos_token_id\""},
        {LLAMA ", \"eos_token_id\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}", INVAR_E_UNSUPPORTED,
         "more than 8 eos ids"},
        {LLAMA ", \"architectures\": [\"LlamaForTokenClassification\"]}", INVAR_E_UNSUPPORTED,
         "\"LlamaForTokenClassification\" is not supported"},
        {LLAMA ", \"architectures\": [\"LlamaForSequenceClassification\"]}", INVAR_E_UNSUPPORTED,
         "\"id2label\""},
        {LLAMA ", \"architectures\": []}", INVAR_E_INVALID, "\"architectures\""},
        {"{\"model_type\": \"llama\", \"vocab_size\": 40}", INVAR_E_INVALID,
         "\"hidden_size\" is missing"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 1e3}", INVAR_E_INVALID,
         "\"vocab_size\" is not an integer"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 0}", INVAR_E_INVALID, "\"vocab_size\" is 0"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 2147483647, \"hidden_size\": 16, "
         "\"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
         "\"max_position_embeddings\": 64}",
         INVAR_E_INVALID, "the vocabulary is 2147483647"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 40, \"hidden_size\": 18, "
         "\"intermediate_size\": 24, \"num_hidden_layers\": 257, \"num_attention_heads\": 4, "
         "\"max_position_embeddings\": 64, \"head_dim\": 8}",
         INVAR_E_UNSUPPORTED, "\"num_hidden_layers\" is above 256"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 40, \"hidden_size\": 18, "
         "\"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
         "\"max_position_embeddings\": 64}",
         INVAR_E_INVALID, "\"head_dim\" is missing"},
    };
    invar_model_spec s;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(read_text(&s, cases[i].config), cases[i].status, cases[i].message);
    remove_text("config.json");
    assert_fails(invar_model_spec_read(&s, work, ""), INVAR_E_NOTFOUND,
                 "config.json: cannot be opened");
}

/* ---- checking and writing -------------------------------------------------------------------- */

static void test_engine_spec__check_refuses_what_no_family_has(void **state)
{
    invar_model_spec valid, s;

    (void)state;
    assert_ok(read_text(&valid, QWEN2 "}"));
    assert_ok(invar_model_spec_check(&valid));
    s = valid, s.attention.qkv_bias = false;
    assert_fails(invar_model_spec_check(&s), INVAR_E_INVALID, "qwen2 has QKV biases and no QK");
    s = valid, s.attention.qk_norm = true;
    assert_fails(invar_model_spec_check(&s), INVAR_E_INVALID, "QK-norm");
    s = valid, s.experts.sparse[0] = true;
    assert_fails(invar_model_spec_check(&s), INVAR_E_INVALID, "layer 0 cannot have experts");
    s = valid, s.experts.count = 2;
    assert_fails(invar_model_spec_check(&s), INVAR_E_INVALID, "the number of experts is 2");
    s = valid, s.value_head = s.tied = true;
    assert_fails(invar_model_spec_check(&s), INVAR_E_INVALID, "never tied");
    s = valid, s.attention.window_from = 1;
    assert_fails(invar_model_spec_check(&s), INVAR_E_INVALID, "first layer with a window");
    s = valid, s.rope = (invar_rope_spec){1e4, INVAR_ROPE_LLAMA3, 8, 4, 4, 32};
    assert_fails(invar_model_spec_check(&s), INVAR_E_INVALID, "above the low_freq_factor");
    s.rope.low_freq_factor = 1, s.rope.original_context = 0.5;
    assert_fails(invar_model_spec_check(&s), INVAR_E_INVALID, "the original context");
    s = valid, s.family = INVAR_FAMILY_COUNT;
    assert_fails(invar_model_spec_check(&s), INVAR_E_INVALID, "the family is 4");
    assert_null(invar_family_name(INVAR_FAMILY_COUNT));
}

/* Random numbers are written and read back bit by bit. */
static void test_engine_spec__numbers_survive(void **state)
{
    invar_model_spec s;

    (void)state;
    assert_ok(read_text(&s, llama_32_1b));
    for (uint64_t i = 0; i < (uint64_t)invar_test_count(200, 5000); i++) {
        s.norm_eps = invar_test_normal(1, i, 1e-5f);
        s.norm_eps = s.norm_eps > 0 ? s.norm_eps : 1;
        s.init_std = invar_test_normal(2, i, 0.1f);
        s.init_std = s.init_std > 0 ? s.init_std : 0;
        s.rope.theta = 1 + invar_test_random(3, i) / 7.0;
        s.rope.factor = 1 + invar_test_random(4, i) / 3e8;
        s.rope.original_context = 1 + invar_test_random(5, i) / 2;
        assert_round_trip(&s);
    }
}

static void test_engine_spec__writes_stable_text(void **state)
{
    invar_model_spec s;
    size_t bytes;
    char *text;

    (void)state;
    assert_ok(read_text(&s, qwen25_05b));
    assert_ok(invar_model_spec_json(&text, &bytes, &s, "bfloat16"));
    assert_string_equal(text, "{\n"
                              "  \"architectures\": [\n"
                              "    \"Qwen2ForCausalLM\"\n"
                              "  ],\n"
                              "  \"eos_token_id\": 151645,\n"
                              "  \"head_dim\": 64,\n"
                              "  \"hidden_act\": \"silu\",\n"
                              "  \"hidden_size\": 896,\n"
                              "  \"initializer_range\": 0.02,\n"
                              "  \"intermediate_size\": 4864,\n"
                              "  \"max_position_embeddings\": 32768,\n"
                              "  \"model_type\": \"qwen2\",\n"
                              "  \"num_attention_heads\": 14,\n"
                              "  \"num_hidden_layers\": 24,\n"
                              "  \"num_key_value_heads\": 2,\n"
                              "  \"rms_norm_eps\": 1e-06,\n"
                              "  \"rope_theta\": 1e+06,\n"
                              "  \"use_sliding_window\": false,\n"
                              "  \"tie_word_embeddings\": true,\n"
                              "  \"torch_dtype\": \"bfloat16\",\n"
                              "  \"vocab_size\": 151936\n"
                              "}\n");
    invar_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_spec__reads_llama),
        cmocka_unit_test(test_engine_spec__reads_qwen2_and_generation_config),
        cmocka_unit_test(test_engine_spec__reads_qwen3_moe),
        cmocka_unit_test(test_engine_spec__reads_what_transformers_writes),
        cmocka_unit_test(test_engine_spec__has_the_defaults_of_transformers),
        cmocka_unit_test(test_engine_spec__reads_windows),
        cmocka_unit_test(test_engine_spec__reads_sparse_layers),
        cmocka_unit_test(test_engine_spec__reads_rope_twice),
        cmocka_unit_test(test_engine_spec__ignores_what_every_model_may_have),
        cmocka_unit_test(test_engine_spec__ignores_the_listed_keys),
        cmocka_unit_test(test_engine_spec__weights_are_of_the_same_model),
        cmocka_unit_test(test_engine_spec__refuses),
        cmocka_unit_test(test_engine_spec__check_refuses_what_no_family_has),
        cmocka_unit_test(test_engine_spec__numbers_survive),
        cmocka_unit_test(test_engine_spec__writes_stable_text),
    };

    return cmocka_run_group_tests(tests, make_work, remove_work);
}
