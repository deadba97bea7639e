/*
 * model_spec.c - family traits, limits of a model spec, and the config.json that describes a spec.
 *
 * The written config.json is the normal form of a spec: keys in a fixed order and shortest decimal
 * numbers, so its digest identifies the spec.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/spec/spec.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/number.h"
#include "engine/model/family.h"

#include "base/invar_banned.h"

/* ---- families -------------------------------------------------------------------------------- */

static const invar_family_traits families[INVAR_FAMILY_COUNT] = {
#define INVAR_FAMILY(ID, NAME, ...) [INVAR_FAMILY_##ID] = {__VA_ARGS__},
#include "engine/model/families.def"
#undef INVAR_FAMILY
};

static const char *const names[INVAR_FAMILY_COUNT] = {
#define INVAR_FAMILY(ID, NAME, ...) [INVAR_FAMILY_##ID] = (NAME),
#include "engine/model/families.def"
#undef INVAR_FAMILY
};

const invar_choices invar_family_choices = {names, INVAR_FAMILY_COUNT};

const invar_family_traits *invar_family_traits_of(invar_family family)
{
    INVAR_CHECK((unsigned)family < INVAR_FAMILY_COUNT);
    return &families[family];
}

const char *invar_family_name(invar_family family)
{
    return invar_choices_word(&invar_family_choices, (int)family);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static invar_status in_range(const char *what, int64_t value, int64_t low, int64_t high)
{
    if (value < low || value > high)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "model: %s is %" PRId64 ", not in %" PRId64 " to %" PRId64, what, value,
                          low, high);
    return INVAR_OK;
}

static invar_status check_extents(const invar_model_spec *s)
{
    INVAR_TRY(in_range("the vocabulary", s->vocab, 2, INVAR_SPEC_MAX_VOCAB));
    INVAR_TRY(in_range("the hidden size", s->hidden, 1, INVAR_SPEC_MAX_WIDTH));
    INVAR_TRY(in_range("the number of layers", s->layers, 1, INVAR_SPEC_MAX_LAYERS));
    INVAR_TRY(in_range("the number of heads", s->attention.heads, 1, INVAR_SPEC_MAX_HEADS));
    INVAR_TRY(in_range("the number of KV heads", s->attention.kv_heads, 1, s->attention.heads));
    INVAR_TRY(in_range("the head dim", s->attention.head_dim, 2, INVAR_ATTENTION_MAX_DIM));
    INVAR_TRY(in_range("the intermediate size", s->intermediate, 1, INVAR_SPEC_MAX_WIDTH));
    INVAR_TRY(in_range("the longest sequence", s->max_positions, 1, INVAR_SPEC_MAX_POSITIONS));
    if (s->attention.heads % s->attention.kv_heads)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "model: %" PRId64 " heads are no multiple of %" PRId64 " KV heads",
                          s->attention.heads, s->attention.kv_heads);
    if (s->attention.head_dim % 2)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "model: the head dim %" PRId64 " is odd",
                          s->attention.head_dim);
    return INVAR_OK;
}

static invar_status check_experts(const invar_model_spec *s)
{
    bool moe = families[s->family].sparse != NULL;

    INVAR_TRY(
        in_range("the number of experts", s->experts.count, moe, moe ? INVAR_SPEC_MAX_EXPERTS : 0));
    if (moe) {
        INVAR_TRY(in_range("experts per token", s->experts.per_token, 1, s->experts.count));
        INVAR_TRY(in_range("the intermediate size of an expert", s->experts.intermediate, 1,
                           INVAR_SPEC_MAX_WIDTH));
    }
    for (int64_t i = 0; i < INVAR_SPEC_MAX_LAYERS; i++) {
        if (s->experts.sparse[i] && (!moe || i >= s->layers))
            return INVAR_FAIL(INVAR_E_INVALID, 0, "model: layer %" PRId64 " cannot have experts",
                              i);
    }
    return INVAR_OK;
}

static invar_status check_window(const invar_model_spec *s)
{
    if (s->attention.window == 0)
        return in_range("the first layer with a window", s->attention.window_from, 0, 0);
    if (!families[s->family].windows)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "model: %s has no sliding window", names[s->family]);
    INVAR_TRY(in_range("the sliding window", s->attention.window, 1, INVAR_SPEC_MAX_POSITIONS));
    return in_range("the first layer with a window", s->attention.window_from, 0, s->layers - 1);
}

static bool is_positive(double x)
{
    return isfinite(x) && x > 0;
}

static invar_status check_rope(const invar_rope_spec *r)
{
    bool scaled = r->scaling == INVAR_ROPE_LLAMA3;

    if (!is_positive(r->theta))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "model: rope_theta is not a positive number");
    if (!scaled && r->scaling != INVAR_ROPE_DEFAULT)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "model: unknown kind of rope scaling");
    if (!scaled)
        return INVAR_OK;
    if (!(is_positive(r->factor) && is_positive(r->low_freq_factor) &&
          is_positive(r->high_freq_factor) && r->high_freq_factor > r->low_freq_factor))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "model: rope scaling llama3 needs positive numbers, and a "
                          "high_freq_factor above the low_freq_factor");
    if (!(r->original_context >= 1 && r->original_context <= INT32_MAX &&
          r->original_context == (double)(int32_t)r->original_context))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "model: the original context of rope scaling is no number of tokens");
    return INVAR_OK;
}

static invar_status check_switches(const invar_model_spec *s)
{
    const invar_family_traits *family = &families[s->family];

    if (s->attention.qkv_bias != family->qkv_bias || s->attention.qk_norm != family->qk_norm)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "model: %s has %s biases and %s QK-norm",
                          names[s->family], family->qkv_bias ? "QKV" : "no",
                          family->qk_norm ? "a" : "no");
    if (s->value_head && s->tied)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "model: a value head is never tied");
    if (!is_positive((double)s->norm_eps))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "model: rms_norm_eps is not a positive number");
    if (!(isfinite(s->init_std) && s->init_std >= 0))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "model: initializer_range is not a number >= 0");
    return INVAR_OK;
}

static invar_status check_eos(const invar_model_spec *s)
{
    INVAR_TRY(in_range("the number of eos ids", s->n_eos, 0, INVAR_SPEC_MAX_EOS));
    for (int64_t i = 0; i < s->n_eos; i++)
        INVAR_TRY(in_range("an eos id", s->eos[i], 0, s->vocab - 1));
    return INVAR_OK;
}

invar_status invar_model_spec_check(const invar_model_spec *spec)
{
    INVAR_TRY(in_range("the family", (int64_t)spec->family, 0, INVAR_FAMILY_COUNT - 1));
    INVAR_TRY(check_extents(spec));
    INVAR_TRY(check_switches(spec));
    INVAR_TRY(check_experts(spec));
    INVAR_TRY(check_window(spec));
    INVAR_TRY(check_rope(&spec->rope));
    return check_eos(spec);
}

/* ---- config.json ----------------------------------------------------------------------------- */

#define JSON_SIZE 8192 /* two lists of INVAR_SPEC_MAX_LAYERS and INVAR_SPEC_MAX_EOS numbers fit */

typedef struct text {
    char *at;
    size_t used;
} text;

static void put_text(text *t, const char *fmt, ...) INVAR_PRINTF(2, 3);

static void put_text(text *t, const char *fmt, ...)
{
    va_list ap;
    int bytes;

    va_start(ap, fmt);
    bytes = vsnprintf(t->at + t->used, JSON_SIZE - t->used, fmt, ap);
    va_end(ap);
    INVAR_CHECK(bytes >= 0 && (size_t)bytes < JSON_SIZE - t->used);
    t->used += (size_t)bytes;
}

static void put_int(text *t, const char *key, int64_t value)
{
    put_text(t, "  \"%s\": %" PRId64 ",\n", key, value);
}

static void put_bool(text *t, const char *key, bool value)
{
    put_text(t, "  \"%s\": %s,\n", key, value ? "true" : "false");
}

/* Writes a real with a point or an exponent, so that typed readers do not see an integer. */
static invar_status put_real(text *t, const char *indent, const char *key, double value,
                             const char *end)
{
    char number[INVAR_NUMBER_SIZE];

    INVAR_TRY(invar_number_format(number, value));
    put_text(t, "%s\"%s\": %s%s%s", indent, key, number, strpbrk(number, ".e") ? "" : ".0", end);
    return INVAR_OK;
}

/* Finds the double with the fewest digits that rounds to `value`: 1e-06, not 9.99999997475e-07. */
static invar_status shortest_double(double *out, float value)
{
    char number[INVAR_NUMBER_SIZE];

    for (int digits = 1; digits <= 9; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, (double)value);
        INVAR_TRY(invar_number_parse(out, number));
        if ((float)*out == value)
            return INVAR_OK;
    }
    *out = (double)value;
    return INVAR_OK;
}

static invar_status put_float(text *t, const char *key, float value)
{
    double wide;

    INVAR_TRY(shortest_double(&wide, value));
    return put_real(t, "  ", key, wide, ",\n");
}

static void put_eos(text *t, const invar_model_spec *s)
{
    put_text(t, "  \"eos_token_id\": ");
    if (s->n_eos == 0)
        put_text(t, "null");
    for (int64_t i = 0; i < s->n_eos; i++)
        put_text(t, "%s%" PRId32, i ? ", " : s->n_eos > 1 ? "[" : "", s->eos[i]);
    put_text(t, "%s,\n", s->n_eos > 1 ? "]" : "");
}

static void put_experts(text *t, const invar_model_spec *s)
{
    const char *comma = "";

    put_int(t, "decoder_sparse_step", 1);
    put_text(t, "  \"mlp_only_layers\": [");
    for (int64_t i = 0; i < s->layers; i++) {
        if (!s->experts.sparse[i]) {
            put_text(t, "%s%" PRId64, comma, i);
            comma = ", ";
        }
    }
    put_text(t, "],\n");
    put_int(t, "moe_intermediate_size", s->experts.intermediate);
    put_bool(t, "norm_topk_prob", s->experts.normalize);
    put_int(t, "num_experts", s->experts.count);
    put_int(t, "num_experts_per_tok", s->experts.per_token);
    put_bool(t, "output_router_logits", false);
}

/* Writes the keys that every version of transformers reads. */
static invar_status put_rope(text *t, const invar_rope_spec *r)
{
    if (r->scaling == INVAR_ROPE_LLAMA3) {
        put_text(t, "  \"rope_scaling\": {\n");
        INVAR_TRY(put_real(t, "    ", "factor", r->factor, ",\n"));
        INVAR_TRY(put_real(t, "    ", "high_freq_factor", r->high_freq_factor, ",\n"));
        INVAR_TRY(put_real(t, "    ", "low_freq_factor", r->low_freq_factor, ",\n"));
        put_text(t, "    \"original_max_position_embeddings\": %.0f,\n", r->original_context);
        put_text(t, "    \"rope_type\": \"llama3\"\n  },\n");
    }
    return put_real(t, "  ", "rope_theta", r->theta, ",\n");
}

static void put_window(text *t, const invar_model_spec *s)
{
    if (s->attention.window > 0) {
        put_int(t, "max_window_layers", s->attention.window_from);
        put_int(t, "sliding_window", s->attention.window);
    }
    put_bool(t, "use_sliding_window", s->attention.window > 0);
}

static void put_head(text *t, const invar_model_spec *s)
{
    put_text(t, "  \"architectures\": [\n    \"%sFor%s\"\n  ],\n", families[s->family].class_name,
             s->value_head ? "SequenceClassification" : "CausalLM");
    if (s->value_head)
        put_text(t, "  \"id2label\": {\n    \"0\": \"value\"\n  },\n"
                    "  \"label2id\": {\n    \"value\": 0\n  },\n");
}

static invar_status put_config(text *t, const invar_model_spec *s, const char *torch_dtype)
{
    const invar_family_traits *family = &families[s->family];

    put_text(t, "{\n");
    put_head(t, s);
    put_eos(t, s);
    put_int(t, "head_dim", s->attention.head_dim);
    put_text(t, "  \"hidden_act\": \"silu\",\n");
    put_int(t, "hidden_size", s->hidden);
    INVAR_TRY(put_float(t, "initializer_range", s->init_std));
    put_int(t, "intermediate_size", s->intermediate);
    put_int(t, "max_position_embeddings", s->max_positions);
    put_text(t, "  \"model_type\": \"%s\",\n", names[s->family]);
    put_int(t, "num_attention_heads", s->attention.heads);
    put_int(t, "num_hidden_layers", s->layers);
    put_int(t, "num_key_value_heads", s->attention.kv_heads);
    if (family->sparse)
        put_experts(t, s);
    INVAR_TRY(put_float(t, "rms_norm_eps", s->norm_eps));
    INVAR_TRY(put_rope(t, &s->rope));
    if (family->windows)
        put_window(t, s);
    put_bool(t, "tie_word_embeddings", s->tied);
    put_text(t, "  \"torch_dtype\": \"%s\",\n", torch_dtype);
    put_text(t, "  \"vocab_size\": %" PRId64 "\n}\n", s->vocab);
    return INVAR_OK;
}

invar_status invar_model_spec_json(char **out, size_t *bytes_out, const invar_model_spec *spec,
                                   const char *torch_dtype)
{
    text t = {NULL, 0};
    invar_status status;

    *out = NULL;
    *bytes_out = 0;
    INVAR_TRY(invar_model_spec_check(spec));
    INVAR_TRY(INVAR_ALLOC(t.at, JSON_SIZE, "config.json"));
    status = put_config(&t, spec, torch_dtype);
    if (status != INVAR_OK) {
        invar_free(t.at);
        return status;
    }
    *out = t.at;
    *bytes_out = t.used;
    return INVAR_OK;
}

invar_status invar_model_spec_hash(invar_digest *out, const invar_model_spec *spec)
{
    INVAR_AUTO_FREE char *json = NULL;
    size_t bytes;

    INVAR_TRY(invar_model_spec_json(&json, &bytes, spec, "float32"));
    invar_hash_bytes(out, json, bytes);
    return INVAR_OK;
}
