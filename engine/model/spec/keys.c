/*
 * keys.c - table of the config.json keys of each model family, and the checks on them.
 *
 * A key is read into the spec, must have the one value that is supported, or is known to change no
 * bits: because the table says so, or because the base class of transformers defines it for every
 * model. Any other key is rejected unless the caller lists it in hf-ignore-keys.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/spec/keys.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

#include "engine/model/family.h"

#include "base/invar_banned.h"

typedef struct reader {
    invar_family family;
    const json_t *config;
    const char *ignored; /* "a,b", or NULL for all */
    const char *where;
} reader;

/* ---- known keys ------------------------------------------------------------------------------ */

#define LLAMA (1u << INVAR_FAMILY_LLAMA)
#define QWEN2 (1u << INVAR_FAMILY_QWEN2)
#define QWEN3 (1u << INVAR_FAMILY_QWEN3)
#define MOE (1u << INVAR_FAMILY_QWEN3_MOE)
#define ALL (LLAMA | QWEN2 | QWEN3 | MOE)

typedef enum rule {
    RULE_FREE,  /* changes no bits in this family */
    RULE_READ,  /* read by a function of read.c */
    RULE_INT,   /* read into `field`; required */
    RULE_FALSE, /* this and the following: the only supported value */
    RULE_ZERO,
    RULE_ONE,
    RULE_EMPTY, /* object or list */
    RULE_SILU
} rule;

typedef struct config_key {
    const char *name;
    unsigned families;
    rule rule;
    size_t field; /* RULE_INT only */
} config_key;

#define FIELD(name) offsetof(invar_model_spec, name)

static const config_key keys[] = {
    {"vocab_size", ALL, RULE_INT, FIELD(vocab)},
    {"hidden_size", ALL, RULE_INT, FIELD(hidden)},
    {"intermediate_size", ALL, RULE_INT, FIELD(intermediate)},
    {"num_hidden_layers", ALL, RULE_INT, FIELD(layers)},
    {"num_attention_heads", ALL, RULE_INT, FIELD(attention.heads)},
    {"max_position_embeddings", ALL, RULE_INT, FIELD(max_positions)},
    {"moe_intermediate_size", MOE, RULE_INT, FIELD(experts.intermediate)},
    {"num_experts_per_tok", MOE, RULE_INT, FIELD(experts.per_token)},
    {"model_type", ALL, RULE_READ, 0},
    {"architectures", ALL, RULE_READ, 0},
    {"id2label", ALL, RULE_READ, 0},
    {"num_key_value_heads", ALL, RULE_READ, 0},
    {"head_dim", ALL, RULE_READ, 0},
    {"rms_norm_eps", ALL, RULE_READ, 0},
    {"initializer_range", ALL, RULE_READ, 0},
    {"tie_word_embeddings", ALL, RULE_READ, 0},
    {"rope_theta", ALL, RULE_READ, 0},
    {"rope_scaling", ALL, RULE_READ, 0},
    {"rope_parameters", ALL, RULE_READ, 0},
    {"eos_token_id", ALL, RULE_READ, 0},
    {"use_sliding_window", QWEN2 | QWEN3, RULE_READ, 0},
    {"sliding_window", QWEN2 | QWEN3, RULE_READ, 0},
    {"max_window_layers", QWEN2 | QWEN3, RULE_READ, 0},
    {"layer_types", QWEN2 | QWEN3 | MOE, RULE_READ, 0},
    {"num_experts", MOE, RULE_READ, 0},
    {"num_local_experts", MOE, RULE_READ, 0},
    {"decoder_sparse_step", MOE, RULE_READ, 0},
    {"mlp_only_layers", MOE, RULE_READ, 0},
    {"norm_topk_prob", MOE, RULE_READ, 0},
    {"hidden_act", ALL, RULE_SILU, 0},
    {"attention_bias", LLAMA | QWEN3 | MOE, RULE_FALSE, 0},
    {"mlp_bias", LLAMA, RULE_FALSE, 0},
    {"use_sliding_window", MOE, RULE_FALSE, 0},
    {"output_router_logits", MOE, RULE_FALSE, 0}, // without it the auxiliary loss is off
    {"add_cross_attention", ALL, RULE_FALSE, 0},
    {"is_encoder_decoder", ALL, RULE_FALSE, 0},
    {"attention_dropout", ALL, RULE_ZERO, 0},
    {"chunk_size_feed_forward", ALL, RULE_ZERO, 0},
    {"pretraining_tp", ALL, RULE_ONE, 0},
    {"sliding_window", MOE, RULE_FREE, 0}, // off without use_sliding_window
    {"max_window_layers", MOE, RULE_FREE, 0},
    {"router_aux_loss_coef", MOE, RULE_FREE, 0},
    {"pruned_heads", ALL, RULE_EMPTY, 0},
    {"rope_interleaved", LLAMA, RULE_FALSE, 0},
    {"is_llama_config", LLAMA, RULE_FREE, 0}, // written by other programs
    {"transformers.js_config", ALL, RULE_FREE, 0},
};

enum { N_KEYS = sizeof keys / sizeof *keys };

/*
 * Keys that the base class of transformers' configurations defines besides the keys above, in any
 * version: how a model is described, loaded and run, and how text is sampled. Names that begin with
 * '_' or end with "_token_id" need not be listed.
 */
static const char *const base_class[] = {
    "attn_implementation",
    "cross_attention_hidden_size", // cross attention is rejected
    "dtype",                       // the tensors have their type
    "experts_implementation",
    "finetuning_task",
    "gradient_checkpointing",
    "is_decoder",
    "label2id",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "prefix",
    "problem_type",
    "return_dict",
    "task_specific_params",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "use_bfloat16",
    "use_cache",
    // generation
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
};

/* ---- keys of a file -------------------------------------------------------------------------- */

/* Returns true if models of the family may have the key. */
static bool key_belongs_to(const config_key *key, invar_family family)
{
    return key->families >> invar_family_traits_of(family)->keys & 1;
}

static const config_key *find_key(const reader *r, const char *name)
{
    for (size_t i = 0; i < N_KEYS; i++) {
        if (key_belongs_to(&keys[i], r->family) && strcmp(keys[i].name, name) == 0)
            return &keys[i];
    }
    return NULL;
}

static invar_status require_value(const reader *r, const config_key *key, bool right,
                                  const char *value)
{
    if (right)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: \"%s\" is supported with the value %s only",
                      r->where, key->name, value);
}

static invar_status check_value(const reader *r, const config_key *key, const json_t *value)
{
    bool number = json_is_number(value);

    if (json_is_null(value)) // null counts as absent
        return INVAR_OK;
    switch (key->rule) {
    case RULE_FALSE: return require_value(r, key, json_is_false(value), "false");
    case RULE_ZERO: return require_value(r, key, number && json_number_value(value) == 0, "0");
    case RULE_ONE: return require_value(r, key, number && json_number_value(value) == 1, "1");
    case RULE_EMPTY:
        return require_value(r, key, json_object_size(value) + json_array_size(value) == 0, "{}");
    case RULE_SILU:
        return require_value(r, key,
                             json_is_string(value) && strcmp(json_string_value(value), "silu") == 0,
                             "\"silu\"");
    case RULE_FREE:
    case RULE_READ:
    case RULE_INT: break;
    }
    return INVAR_OK;
}

/* Returns true if the key changes no bits of any model. */
static bool is_free(const char *name)
{
    static const char id[] = "_token_id";
    size_t length = strlen(name);

    if (name[0] == '_' || (length >= strlen(id) && strcmp(name + length - strlen(id), id) == 0))
        return true;
    for (size_t i = 0; i < sizeof base_class / sizeof *base_class; i++) {
        if (strcmp(name, base_class[i]) == 0)
            return true;
    }
    return false;
}

static bool is_ignored(const reader *r, const char *name)
{
    const char *cursor = r->ignored, *item;
    size_t bytes;

    while (invar_text_item(&item, &bytes, &cursor, ',')) {
        if (strlen(name) == bytes && memcmp(name, item, bytes) == 0)
            return true;
    }
    return false;
}

/* A mistyped name would otherwise seem to have an effect. */
invar_status invar_spec_keys_ignored(invar_family family, const json_t *config, const char *ignored,
                                     const char *where)
{
    const reader reading = {family, config, ignored, where}, *r = &reading;
    const char *cursor = ignored, *item;
    size_t bytes;

    while (invar_text_item(&item, &bytes, &cursor, ',')) {
        char name[128], quote[INVAR_TEXT_QUOTE_SIZE];

        snprintf(name, sizeof name, "%.*s", (int)(bytes < sizeof name ? bytes : 0), item);
        invar_text_quote(quote, sizeof quote, item, bytes);
        if (!json_object_get(r->config, name))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%s: there is no key \"%s\" to be ignored: correct hf-ignore-keys",
                              r->where, quote);
        if (find_key(r, name) || is_free(name))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%s: \"%s\" is no unknown key: take it out of hf-ignore-keys",
                              r->where, quote);
    }
    return INVAR_OK;
}

invar_status invar_spec_keys_check(invar_family family, const json_t *config, const char *ignored,
                                   const char *where)
{
    const reader reading = {family, config, ignored, where}, *r = &reading;
    char quote[INVAR_TEXT_QUOTE_SIZE];
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)config, name, value)
    {
        const config_key *key = find_key(r, name);
        if (key)
            INVAR_TRY(check_value(r, key, value));
        if (key || json_is_null(value) || is_free(name) || !ignored || is_ignored(r, name))
            continue;
        invar_text_quote(quote, sizeof quote, name, strlen(name));
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: unknown key \"%s\" of a %s model; it may change the mathematics, so "
                          "it is not ignored; if it does not, hf-ignore-keys = %s",
                          r->where, quote, invar_family_name(r->family), quote);
    }
    return INVAR_OK;
}

invar_status invar_spec_keys_read(invar_model_spec *spec, const json_t *config, const char *where)
{
    for (size_t i = 0; i < N_KEYS; i++) {
        if (keys[i].rule == RULE_INT && key_belongs_to(&keys[i], spec->family))
            INVAR_TRY(invar_json_int((int64_t *)(void *)((char *)spec + keys[i].field), config,
                                     keys[i].name, where, 1, INT_MAX));
    }
    return INVAR_OK;
}
