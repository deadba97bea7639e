/*
 * adapters.h - LoRA: which linear layers have an adapter, and the adapters' parameters.
 *
 * A layer W (N, K) gets A (r, K) and B (N, r). The rank r is padded to a multiple of 16 with zeros,
 * which training keeps. Each expert of a stack has its own adapter. A is split over ranks if W is
 * split along columns, B if W is split along rows (docs/arithmetic.md, sections 14 and 15).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_LORA_ADAPTERS_H
#define INVAR_ENGINE_MODEL_LORA_ADAPTERS_H

#include "engine/model/graph/param.h"
#include "engine/model/spec/spec.h"

/*
 * Parses "all-linear" or names such as "q_proj,v_proj" into a bit set. Returns INVAR_E_INVALID,
 * naming the word, if a word is not a layer with adapters.
 */
invar_status invar_lora_targets(uint32_t *out, const char *words) INVAR_MUST_USE;

/* Returns the name of member `number` of a set; NULL after the last. */
const char *invar_lora_target(uint32_t targets, int number);

/*
 * Returns s = alpha / rank, rounded once; for rsLoRA alpha / sqrt(rank) in f64, then rounded to
 * f32; 0 without adapters.
 */
float invar_lora_factor(const invar_lora_spec *lora);

/*
 * Returns true for the A or B of experts that is not split. It is one logical shard for all
 * experts, and each expert-parallel rank holds all of it.
 */
static inline bool invar_adapter_is_uncut(const invar_param *p)
{
    return p->kind == INVAR_PARAM_ADAPTER && p->stack > 1 && p->split.shards == 1;
}

/* Stores rank-pattern and alpha-pattern, JSON objects or "", after checking them. */
invar_status invar_lora_patterns(invar_lora_spec *out, const char *ranks,
                                 const char *alphas) INVAR_MUST_USE;

/* Determines rank and factor of a layer from the patterns. */
invar_status invar_lora_layer(int64_t *rank_out, float *factor_out, const invar_lora_spec *lora,
                              const invar_param *p) INVAR_MUST_USE;

/* Lower bound of the padded ranks: the padded lora-rank, or 16 if there is a rank-pattern. */
int64_t invar_lora_rows(const invar_lora_spec *lora);

/* Number of parameters of all adapters: two per adapted layer. */
int64_t invar_adapters_count(const invar_param *base, int64_t count, const invar_lora_spec *lora);

/*
 * Declares the parameters in the order of their layers, A before B, and sets `adapter` of the
 * layers.
 */
invar_status invar_adapters_declare(invar_param *out, invar_param *base, int64_t count,
                                    const invar_lora_spec *lora) INVAR_MUST_USE;

/* Rejects patterns that match no layer with an adapter. */
invar_status invar_adapters_check(const invar_param *base, int64_t count,
                                  const invar_lora_spec *lora) INVAR_MUST_USE;

/* Returns true if the parameter is A, which is initialized randomly; B starts with zeros. */
bool invar_adapter_is_first(const invar_param *p);

#endif
