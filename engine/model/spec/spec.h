/*
 * spec.h - model spec: the sizes and switches that determine a decoder's computation.
 *
 * One struct serves all families; a family is a row of families.def with its switches and the
 * config.json keys that it understands. A key that changes the computation and is not understood is
 * rejected, never ignored.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SPEC_SPEC_H
#define INVAR_ENGINE_MODEL_SPEC_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/recipe/choices.h"
#include "base/status.h"
#include "kernels-deterministic/ops.h"

typedef enum invar_family {
#define INVAR_FAMILY(ID, NAME, ...) INVAR_FAMILY_##ID,
#include "engine/model/families.def"
#undef INVAR_FAMILY
    INVAR_FAMILY_COUNT
} invar_family;

extern const invar_choices invar_family_choices; /* model_type of config.json */

/* Limits that keep an untrusted config.json from requesting excessive memory. */
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
    double factor; /* this and the following fields: INVAR_ROPE_LLAMA3 only */
    double low_freq_factor;
    double high_freq_factor;
    double original_context;
} invar_rope_spec;

#define INVAR_LORA_PATTERN_SIZE 4096 /* bytes of a pattern with the NUL */

/* LoRA adapters of linear layers, from the recipe. */
typedef struct invar_lora_spec {
    int64_t rank;                         /* 0 for no adapters */
    float alpha;                          /* factor is alpha / rank */
    bool rslora;                          /* factor is alpha / sqrt(rank) instead */
    uint32_t targets;                     /* bit set of layers, see engine/model/lora/adapters.h */
    char ranks[INVAR_LORA_PATTERN_SIZE];  /* rank-pattern: JSON object of ranks that differ from
                                             `rank`, or "" */
    char alphas[INVAR_LORA_PATTERN_SIZE]; /* alpha-pattern: JSON object of alphas that differ
                                             from `alpha`, or "" */
} invar_lora_spec;

/* Attention of all layers. */
typedef struct invar_attention_spec {
    int64_t heads;
    int64_t kv_heads;
    int64_t head_dim;
    bool qkv_bias;
    bool qk_norm;
    int64_t window;          /* sliding window; 0 for none */
    int64_t window_from;     /* first layer with a window */
    int64_t kv_span, q_span; /* keys and queries per span in the sums of attention, from the
                                recipe; 0 for one span */
} invar_attention_spec;

/* Feed-forward of the layers with experts. */
typedef struct invar_experts_spec {
    int64_t count;                      /* 0 for a dense model */
    int64_t per_token;                  /* slots: experts per token */
    int64_t intermediate;               /* width of one expert */
    bool normalize;                     /* norm_topk_prob */
    bool sparse[INVAR_SPEC_MAX_LAYERS]; /* layers with experts */
} invar_experts_spec;

typedef struct invar_model_spec {
    invar_family family;
    int64_t vocab;
    int64_t hidden;
    int64_t layers;
    int64_t intermediate;  /* width of a dense MLP */
    int64_t max_positions; /* longest sequence */
    float norm_eps;
    float init_std;  /* initializer_range */
    bool tied;       /* the head uses the embedding's weights */
    bool value_head; /* critic: the head has one output and is never tied */
    invar_attention_spec attention;
    invar_rope_spec rope;
    invar_experts_spec experts;
    int64_t logical_tp, logical_etp; /* logical tensor parallelism, from the recipe; 0 counts as
                                        1 */
    invar_lora_spec lora;
    int32_t eos[INVAR_SPEC_MAX_EOS]; /* end-of-sequence ids, including those of
                                        generation_config.json */
    int64_t n_eos;
} invar_model_spec;

/* Returns the name of the family, such as "qwen3_moe"; NULL if out of range. */
const char *invar_family_name(invar_family family);

/*
 * Reads DIR/config.json and, if it exists, the eos ids of DIR/generation_config.json. Rejects
 * unknown families, unknown keys that may change bits, and impossible sizes, and names them.
 * `ignored` ("a,b", or "") lists unknown keys that change no bits; all of them must exist. A model
 * "...ForSequenceClassification" with one label is a critic.
 */
invar_status invar_model_spec_read(invar_model_spec *out, const char *dir,
                                   const char *ignored) INVAR_MUST_USE;

/*
 * Fails if DIR/config.json exists and differs from `spec` in a key that the computation with the
 * weights needs; the error names the key. Keys that do not concern weights may differ: longest
 * sequence, eos ids, initialization, kind of head. Unknown keys are not compared.
 */
invar_status invar_model_spec_compare(const invar_model_spec *spec, const char *dir) INVAR_MUST_USE;

/*
 * Rejects an impossible spec: heads that do not divide, head dims that are not even, switches that
 * the family does not have, exceeded limits. Without a window, `window_from` must be 0.
 */
invar_status invar_model_spec_check(const invar_model_spec *spec) INVAR_MUST_USE;

/*
 * Writes the config.json that describes the spec, without what comes from the recipe (spans,
 * logical tensor parallelism, adapters). Specs that are otherwise equal give equal bytes, and
 * reading them gives an equal spec. `torch_dtype` is "float32" or "bfloat16". The caller frees *out
 * with invar_free.
 */
invar_status invar_model_spec_json(char **out, size_t *bytes_out, const invar_model_spec *spec,
                                   const char *torch_dtype) INVAR_MUST_USE;

/* Digest of the text that invar_model_spec_json writes with torch_dtype "float32". */
invar_status invar_model_spec_hash(invar_digest *out, const invar_model_spec *spec) INVAR_MUST_USE;

#endif
