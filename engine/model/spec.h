/*
 * spec.h - what a decoder looks like: the numbers and switches that its mathematics depends on.
 *
 * One struct for all families; a family is a row of families.def that says which switches
 * are on and which keys of config.json it understands. Keys that change the mathematics and are not
 * understood are refused, never ignored.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SPEC_H
#define INVAR_ENGINE_MODEL_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/recipe/choices.h"
#include "base/status.h"
#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_family {
#define INVAR_FAMILY(ID, NAME, ...) INVAR_FAMILY_##ID,
#include "engine/model/families.def"
#undef INVAR_FAMILY
    INVAR_FAMILY_COUNT
} invar_family;

extern const invar_choices invar_family_choices; /* model_type of config.json */

/* Limits, so that no config.json asks for memory without end. */
#define INVAR_SPEC_MAX_LAYERS 256
#define INVAR_SPEC_MAX_EOS 8
#define INVAR_SPEC_MAX_VOCAB (1 << 22)
#define INVAR_SPEC_MAX_WIDTH (1 << 18) /* hidden and intermediate sizes */
#define INVAR_SPEC_MAX_HEADS 1024
#define INVAR_SPEC_MAX_EXPERTS 4096
#define INVAR_SPEC_MAX_POSITIONS (1 << 22)

typedef struct invar_rope_spec {
    double theta;
    invar_rope_scaling scaling;
    double factor; /* the rest for INVAR_ROPE_LLAMA3 only */
    double low_freq_factor;
    double high_freq_factor;
    double original_context;
} invar_rope_spec;

#define INVAR_LORA_PATTERN_SIZE 4096 /* of a pattern as text, with the NUL */

/* Adapters of linear layers, by the recipe. */
typedef struct invar_lora_spec {
    int64_t rank;                         /* 0: there are none */
    float alpha;                          /* the factor is alpha / rank, */
    bool rslora;                          /* or alpha / sqrt(rank) */
    uint32_t targets;                     /* which layers: a set of engine/model/lora/adapters.h */
    char ranks[INVAR_LORA_PATTERN_SIZE];  /* where the rank is another: an object of JSON, or "" */
    char alphas[INVAR_LORA_PATTERN_SIZE]; /* likewise of alpha */
} invar_lora_spec;

typedef struct invar_model_spec {
    invar_family family;
    int64_t vocab;
    int64_t hidden;
    int64_t layers;
    int64_t heads;
    int64_t kv_heads;
    int64_t head_dim;
    int64_t intermediate;  /* of a dense MLP */
    int64_t max_positions; /* longest sequence */
    float norm_eps;
    float init_std; /* initializer_range */
    bool tied;      /* the head is the embedding */
    bool qkv_bias;
    bool qk_norm;
    bool value_head; /* a critic: the head has one output and is never tied */
    invar_rope_spec rope;
    int64_t window;                  /* sliding window; 0: none */
    int64_t window_from;             /* first layer that has it */
    int64_t kv_span, q_span;         /* of attention, by the recipe; 0: one span */
    int64_t logical_tp, logical_etp; /* logical tensor parallelism, by the recipe; 0: 1 */
    invar_lora_spec lora;
    int64_t experts;                    /* 0: a dense model */
    int64_t experts_per_token;          /* slots */
    int64_t expert_intermediate;        /* of one expert */
    bool normalise_experts;             /* norm_topk_prob */
    bool sparse[INVAR_SPEC_MAX_LAYERS]; /* which layers have experts */
    int32_t eos[INVAR_SPEC_MAX_EOS];    /* ends a sequence; generation_config.json adds its own */
    int64_t n_eos;
} invar_model_spec;

/* "qwen3_moe"; NULL out of range. */
const char *invar_family_name(invar_family family);

/*
 * Reads DIR/config.json and, if it is there, the eos ids of DIR/generation_config.json. Refuses
 * unknown families, unknown keys that may change a bit, and impossible numbers, by name. `ignored`
 * ("a,b"; "": none) names unknown keys that change none, all of which must be there. A model
 * "...ForSequenceClassification" with one label is a critic.
 */
invar_status invar_model_spec_read(invar_model_spec *out, const char *dir,
                                   const char *ignored) INVAR_MUST_USE;

/*
 * Refuses weights of another model: DIR/config.json, where there is one, must agree with `spec` in
 * all that their mathematics needs, and the error names the key that does not. Keys that say
 * nothing about weights may differ: the longest sequence, how it ends, how weights are drawn, the
 * kind of head. Unknown keys are not compared.
 */
invar_status invar_model_spec_compare(const invar_model_spec *spec, const char *dir) INVAR_MUST_USE;

/*
 * Refuses a spec that no model can have: heads that do not divide, odd head dims, switches that the
 * family does not have, limits. Without a window `window_from` is 0.
 */
invar_status invar_model_spec_check(const invar_model_spec *spec) INVAR_MUST_USE;

/*
 * The config.json that describes the spec, byte for byte the same for equal specs; reading it gives
 * the same spec. `torch_dtype` is "float32" or "bfloat16". The caller owns *out (invar_free).
 */
invar_status invar_model_spec_json(char **out, size_t *bytes_out, const invar_model_spec *spec,
                                   const char *torch_dtype) INVAR_MUST_USE;

/* Hash of the config.json that describes the spec, with torch_dtype "float32". */
invar_status invar_model_spec_hash(invar_digest *out, const invar_model_spec *spec) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
