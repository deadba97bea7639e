/*
 * read.c - reads a spec from config.json, and compares a spec with the one of other weights.
 *
 * The file is untrusted: every key is checked against the table in keys.c before it is used, every
 * number has a range, and the result must pass invar_model_spec_check. Two generations of rotary
 * keys exist ("rope_scaling" and "rope_parameters"); if a file has both, they must agree.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/text.h"
#include "engine/model/family.h"
#include "engine/model/spec/keys.h"

#include "base/invar_banned.h"

#define MAX_BYTES (1 << 20)
#define VALUE_SIZE 256 /* of the text of a value in error messages */

typedef struct reader {
    invar_model_spec *spec;
    const invar_family_traits *family;
    const json_t *config;
    const char *where;
    const char *ignored; /* "a,b": unknown keys that are accepted */
} reader;

static bool has_key(const reader *r, const char *key)
{
    return invar_json_has(r->config, key);
}

/* ---- numbers and switches -------------------------------------------------------------------- */

static invar_status read_family(reader *r)
{
    char known[INVAR_CHOICES_TEXT_SIZE];
    const char *name;
    int family;

    INVAR_TRY(invar_json_string(&name, r->config, "model_type", r->where));
    family = invar_choices_find(&invar_family_choices, name, strlen(name));
    if (family < 0) {
        invar_choices_text(known, sizeof known, &invar_family_choices, ", ", " and ");
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: models of type \"%s\" are not supported; %s are", r->where,
                          INVAR_QUOTED(name), known);
    }
    r->spec->family = (invar_family)family;
    r->family = invar_family_traits_of(r->spec->family);
    return INVAR_OK;
}

static invar_status read_extents(const reader *r)
{
    invar_model_spec *s = r->spec;

    s->attention.kv_heads = s->attention.heads;
    if (!r->family->kv_heads_optional || has_key(r, "num_key_value_heads"))
        INVAR_TRY(invar_json_int(&s->attention.kv_heads, r->config, "num_key_value_heads", r->where,
                                 1, INT_MAX));
    s->attention.head_dim =
        r->family->head_dim ? r->family->head_dim : s->hidden / s->attention.heads;
    if (has_key(r, "head_dim"))
        return invar_json_int(&s->attention.head_dim, r->config, "head_dim", r->where, 1, INT_MAX);
    if (!r->family->head_dim && s->hidden % s->attention.heads)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: \"head_dim\" is missing, and \"hidden_size\" is no multiple of "
                          "\"num_attention_heads\"",
                          r->where);
    return INVAR_OK;
}

static invar_status read_optional_float(float *out, const reader *r, const char *key,
                                        double fallback)
{
    double value = fallback;

    if (has_key(r, key))
        INVAR_TRY(invar_json_real(&value, r->config, key, r->where));
    *out = (float)value;
    return INVAR_OK;
}

static invar_status read_optional_bool(bool *out, const reader *r, const char *key)
{
    *out = false;
    return has_key(r, key) ? invar_json_bool(out, r->config, key, r->where) : INVAR_OK;
}

static invar_status read_switches(const reader *r)
{
    invar_model_spec *s = r->spec;

    s->attention.qkv_bias = r->family->qkv_bias;
    s->attention.qk_norm = r->family->qk_norm;
    INVAR_TRY(read_optional_float(&s->norm_eps, r, "rms_norm_eps", 1e-6));
    INVAR_TRY(read_optional_float(&s->init_std, r, "initializer_range", 0.02));
    return read_optional_bool(&s->tied, r, "tie_word_embeddings");
}

/* ---- rotary embedding ------------------------------------------------------------------------ */

/* Members of "rope_parameters"; "rope_scaling" has all of them except the first. */
static const char *const rope_keys[] = {
    "rope_theta", "rope_type",
    "type", // up to here valid for every type
    "factor",     "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
enum { N_ROPE_KEYS = sizeof rope_keys / sizeof *rope_keys, N_ROPE_COMMON = 3 };

static invar_status check_rope_keys(const reader *r, const json_t *rope, const char *name,
                                    bool llama3, bool theta)
{
    size_t known = llama3 ? N_ROPE_KEYS : N_ROPE_COMMON;
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)rope, key, value)
    {
        size_t i = theta ? 0 : 1;
        while (i < known && strcmp(key, rope_keys[i]) != 0)
            i++;
        if (i < known)
            continue;
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: unknown key \"%s\" in \"%s\"; it may change the mathematics",
                          r->where, INVAR_QUOTED(key), name);
    }
    return INVAR_OK;
}

static invar_status read_rope_type(bool *llama3, const reader *r, const json_t *rope,
                                   const char *name)
{
    const char *type = "default", *old;

    if (!json_is_object(rope))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"%s\" is not an object", r->where, name);
    if (invar_json_has(rope, "type"))
        INVAR_TRY(invar_json_string(&type, rope, "type", r->where));
    old = type;
    if (invar_json_has(rope, "rope_type"))
        INVAR_TRY(invar_json_string(&type, rope, "rope_type", r->where));
    if (invar_json_has(rope, "type") && strcmp(type, old) != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"%s\" has two different types", r->where, name);
    *llama3 = strcmp(type, "llama3") == 0;
    if (*llama3 || strcmp(type, "default") == 0)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                      "%s: \"%s\" has the type \"%s\"; \"default\" and \"llama3\" are supported",
                      r->where, name, INVAR_QUOTED(type));
}

static invar_status read_scaling(const reader *r, const char *name, bool theta)
{
    const json_t *rope = json_object_get(r->config, name);
    invar_rope_spec *out = &r->spec->rope;
    int64_t context;
    bool llama3;

    INVAR_TRY(read_rope_type(&llama3, r, rope, name));
    INVAR_TRY(check_rope_keys(r, rope, name, llama3, theta));
    if (theta && (invar_json_has(rope, "rope_theta") || !has_key(r, "rope_theta")))
        INVAR_TRY(invar_json_real(&out->theta, rope, "rope_theta", r->where));
    if (!llama3)
        return INVAR_OK;
    out->scaling = INVAR_ROPE_LLAMA3;
    INVAR_TRY(invar_json_real(&out->factor, rope, "factor", r->where));
    INVAR_TRY(invar_json_real(&out->low_freq_factor, rope, "low_freq_factor", r->where));
    INVAR_TRY(invar_json_real(&out->high_freq_factor, rope, "high_freq_factor", r->where));
    INVAR_TRY(
        invar_json_int(&context, rope, "original_max_position_embeddings", r->where, 1, INT_MAX));
    out->original_context = (double)context;
    return INVAR_OK;
}

static bool same_scaling(const invar_rope_spec *a, const invar_rope_spec *b)
{
    return a->scaling == b->scaling && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->original_context == b->original_context;
}

/*
 * Reads "rope_theta" and "rope_scaling", or "rope_parameters", which includes both. If all are
 * present, they must agree.
 */
static invar_status read_rope(const reader *r)
{
    invar_rope_spec *out = &r->spec->rope, old;

    *out = (invar_rope_spec){.theta = 10000, .scaling = INVAR_ROPE_DEFAULT};
    if (has_key(r, "rope_theta"))
        INVAR_TRY(invar_json_real(&out->theta, r->config, "rope_theta", r->where));
    if (has_key(r, "rope_scaling"))
        INVAR_TRY(read_scaling(r, "rope_scaling", false));
    if (!has_key(r, "rope_parameters"))
        return INVAR_OK;
    old = *out;
    *out = (invar_rope_spec){.theta = old.theta, .scaling = INVAR_ROPE_DEFAULT};
    INVAR_TRY(read_scaling(r, "rope_parameters", true));
    if ((has_key(r, "rope_theta") && old.theta != out->theta) ||
        (has_key(r, "rope_scaling") && !same_scaling(&old, out)))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: \"rope_parameters\" differs from \"rope_theta\" or "
                          "\"rope_scaling\" beside it: remove one of them",
                          r->where);
    return INVAR_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/*
 * *first_out = first sliding layer of "layer_types", after which all must slide; the number of
 * layers if none does.
 */
static invar_status read_layer_types(int64_t *first_out, const reader *r)
{
    const json_t *types = json_object_get(r->config, "layer_types");
    int64_t first = r->spec->layers;

    if (json_array_size(types) != (size_t)r->spec->layers)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: \"layer_types\" is no list of \"num_hidden_layers\" types",
                          r->where);
    for (int64_t i = 0; i < r->spec->layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool slides = type && strcmp(type, "sliding_attention") == 0;

        if (!type || (!slides && strcmp(type, "full_attention") != 0) || (!slides && i > first))
            return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                              "%s: \"layer_types\" other than full_attention, then "
                              "sliding_attention to the end, are not supported",
                              r->where);
        if (slides && i < first)
            first = i;
    }
    *first_out = first;
    return INVAR_OK;
}

static invar_status read_window(const reader *r)
{
    invar_model_spec *s = r->spec;
    int64_t window = 0, from = s->layers;
    bool use = false;

    if (r->family->windows)
        INVAR_TRY(read_optional_bool(&use, r, "use_sliding_window"));
    if (use && has_key(r, "sliding_window")) {
        INVAR_TRY(invar_json_int(&window, r->config, "sliding_window", r->where, 1, INT_MAX));
        if (!has_key(r, "layer_types"))
            INVAR_TRY(invar_json_int(&from, r->config, "max_window_layers", r->where, 0, INT_MAX));
    }
    if (has_key(r, "layer_types"))
        INVAR_TRY(read_layer_types(&from, r));
    if (from < s->layers && window == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: \"layer_types\" slide, but there is no sliding window", r->where);
    if (from < s->layers) {
        s->attention.window = window;
        s->attention.window_from = from;
    }
    return INVAR_OK;
}

static invar_status read_expert_count(const reader *r)
{
    const char *key = has_key(r, "num_experts") ? "num_experts" : "num_local_experts";
    int64_t *out = &r->spec->experts.count, other;

    INVAR_TRY(invar_json_int(out, r->config, key, r->where, 1, INVAR_SPEC_MAX_EXPERTS));
    if (!has_key(r, "num_local_experts"))
        return INVAR_OK;
    return invar_json_int(&other, r->config, "num_local_experts", r->where, *out, *out);
}

static invar_status read_sparse(const reader *r)
{
    const json_t *dense = json_object_get(r->config, "mlp_only_layers");
    invar_model_spec *s = r->spec;
    int64_t step = 1;

    if (has_key(r, "decoder_sparse_step"))
        INVAR_TRY(invar_json_int(&step, r->config, "decoder_sparse_step", r->where, 1, INT_MAX));
    for (int64_t i = 0; i < s->layers; i++)
        s->experts.sparse[i] = (i + 1) % step == 0;
    if (has_key(r, "mlp_only_layers") && !json_is_array(dense))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"mlp_only_layers\" is not a list", r->where);
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *item = json_array_get(dense, i);
        int64_t layer = json_integer_value(item);

        if (!json_is_integer(item) || layer < 0 || layer >= s->layers)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%s: \"mlp_only_layers\" has something that is no layer's number",
                              r->where);
        s->experts.sparse[layer] = false;
    }
    return INVAR_OK;
}

static invar_status read_layers(const reader *r)
{
    invar_model_spec *s = r->spec;

    if (s->layers > INVAR_SPEC_MAX_LAYERS)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: \"num_hidden_layers\" is above %d", r->where,
                          INVAR_SPEC_MAX_LAYERS);
    INVAR_TRY(read_window(r));
    if (!r->family->sparse)
        return INVAR_OK;
    INVAR_TRY(read_expert_count(r));
    INVAR_TRY(read_optional_bool(&s->experts.normalize, r, "norm_topk_prob"));
    return read_sparse(r);
}

/* ---- head ------------------------------------------------------------------------------------ */

static invar_status read_head(const reader *r)
{
    const json_t *list = json_object_get(r->config, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    char causal[64], classifier[64], quote[INVAR_TEXT_QUOTE_SIZE];

    if (!has_key(r, "architectures"))
        return INVAR_OK;
    snprintf(causal, sizeof causal, "%sForCausalLM", r->family->class_name);
    snprintf(classifier, sizeof classifier, "%sForSequenceClassification", r->family->class_name);
    if (json_array_size(list) != 1 || !name)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"architectures\" is not one name in a list",
                          r->where);
    if (strcmp(name, causal) == 0)
        return INVAR_OK;
    invar_text_quote(quote, sizeof quote, name, strlen(name));
    if (strcmp(name, classifier) != 0)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: the architecture \"%s\" is not supported; %s and %s are", r->where,
                          quote, causal, classifier);
    if (json_object_size(json_object_get(r->config, "id2label")) != 1)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: \"id2label\" of a %s has to have one label: it is a critic",
                          r->where, quote);
    r->spec->value_head = true;
    r->spec->tied = false;
    return INVAR_OK;
}

static invar_status add_eos(const reader *r, const json_t *value)
{
    invar_model_spec *s = r->spec;
    int64_t id = json_integer_value(value);

    if (!json_is_integer(value) || id < 0 || id >= s->vocab)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: \"eos_token_id\" has something that is no token's id", r->where);
    for (int64_t i = 0; i < s->n_eos; i++) {
        if (s->eos[i] == id)
            return INVAR_OK;
    }
    if (s->n_eos == INVAR_SPEC_MAX_EOS)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: there are more than %d eos ids", r->where,
                          INVAR_SPEC_MAX_EOS);
    s->eos[s->n_eos++] = (int32_t)id;
    return INVAR_OK;
}

static invar_status read_eos(const reader *r)
{
    const json_t *value = json_object_get(r->config, "eos_token_id");

    if (!has_key(r, "eos_token_id"))
        return INVAR_OK;
    if (!json_is_array(value))
        return add_eos(r, value);
    for (size_t i = 0; i < json_array_size(value); i++)
        INVAR_TRY(add_eos(r, json_array_get(value, i)));
    return INVAR_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static invar_status read_rest(reader *r)
{
    invar_status status;

    INVAR_TRY(invar_spec_keys_check(r->spec->family, r->config, r->ignored, r->where));
    INVAR_TRY(invar_spec_keys_read(r->spec, r->config, r->where));
    INVAR_TRY(read_extents(r));
    INVAR_TRY(read_switches(r));
    INVAR_TRY(read_rope(r));
    INVAR_TRY(read_layers(r));
    INVAR_TRY(read_head(r));
    INVAR_TRY(read_eos(r));
    status = invar_model_spec_check(r->spec);
    if (status != INVAR_OK)
        return INVAR_FAIL(status, 0, "%s: %s", r->where, invar_error_last()->message);
    return INVAR_OK;
}

static invar_status read_config(reader *r)
{
    INVAR_TRY(read_family(r));
    INVAR_TRY(invar_spec_keys_ignored(r->spec->family, r->config, r->ignored, r->where));
    return read_rest(r);
}

/*
 * Reads the config.json of weights for a model that has been read. The keys to ignore are the
 * model's.
 */
static invar_status read_other(reader *r)
{
    INVAR_TRY(read_family(r));
    return read_rest(r);
}

static invar_status read_generation(reader *r)
{
    if (!json_is_object(r->config))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: not a JSON object", r->where);
    return read_eos(r);
}

static invar_status read_file(invar_model_spec *out, const char *path, const char *ignored,
                              invar_status (*read)(reader *r))
{
    INVAR_AUTO_JSON json_t *config = NULL;
    char shown[INVAR_PATH_SHOWN_SIZE];
    reader r = {.spec = out, .where = shown, .ignored = ignored};

    invar_path_show(shown, path);
    INVAR_TRY(invar_json_read(&config, path, MAX_BYTES));
    r.config = config;
    return read(&r);
}

invar_status invar_model_spec_read(invar_model_spec *out, const char *dir, const char *ignored)
{
    char path[INVAR_PATH_SIZE];

    *out = (invar_model_spec){0};
    INVAR_TRY(invar_path_join(path, sizeof path, dir, "config.json"));
    INVAR_TRY(read_file(out, path, ignored, read_config));
    INVAR_TRY(invar_path_join(path, sizeof path, dir, "generation_config.json"));
    return invar_path_exists(path) ? read_file(out, path, "", read_generation) : INVAR_OK;
}

/* ---- weights of another folder --------------------------------------------------------------- */

/* *out = the config.json of a spec as an object. The caller frees it with json_decref. */
static invar_status spec_as_json(json_t **out, const invar_model_spec *spec)
{
    INVAR_AUTO_FREE char *text = NULL;
    size_t bytes;

    INVAR_TRY(invar_model_spec_json(&text, &bytes, spec, "float32"));
    return invar_json_parse(out, "config.json", text, bytes);
}

static void print_value(char out[VALUE_SIZE], const json_t *value)
{
    const size_t form = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9);
    size_t bytes = json_dumpb(value, out, VALUE_SIZE - 1, form);

    if (bytes == 0 || bytes >= VALUE_SIZE)
        (void)snprintf(out, VALUE_SIZE, bytes ? "a long list" : "not there");
    else
        out[bytes] = '\0';
}

/* Fails if a key of `a` has another value in `b`. */
static invar_status compare_keys(const json_t *a, const json_t *b, bool of_model, const char *where)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        char here[VALUE_SIZE], there[VALUE_SIZE];

        if (json_equal(value, (json_t *)(uintptr_t)other))
            continue;
        print_value(here, of_model ? other : value);
        print_value(there, of_model ? value : other);
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: \"%s\" is %s, and %s in the model that the weights are for: name "
                          "weights of the same model",
                          where, key, here, there);
    }
    return INVAR_OK;
}

/* Copies the values that do not concern weights from `spec`. A critic has another kind of head. */
static void set_free_values(invar_model_spec *other, const invar_model_spec *spec)
{
    other->init_std = spec->init_std;
    other->max_positions = spec->max_positions;
    memcpy(other->eos, spec->eos, sizeof spec->eos);
    other->n_eos = spec->n_eos;
    other->value_head = spec->value_head;
    if (spec->value_head)
        other->tied = spec->tied;
}

invar_status invar_model_spec_compare(const invar_model_spec *spec, const char *dir)
{
    INVAR_AUTO_JSON json_t *model = NULL;
    INVAR_AUTO_JSON json_t *weights = NULL;
    char path[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    invar_model_spec other = {0};

    INVAR_TRY(invar_path_join(path, sizeof path, dir, "config.json"));
    if (!invar_path_exists(path))
        return INVAR_OK;
    INVAR_TRY(read_file(&other, path, NULL, read_other));
    set_free_values(&other, spec);
    invar_path_show(shown, path);
    INVAR_TRY(spec_as_json(&model, spec));
    INVAR_TRY(spec_as_json(&weights, &other));
    INVAR_TRY(compare_keys(model, weights, true, shown));
    return compare_keys(weights, model, false, shown);
}
