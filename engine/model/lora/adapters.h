/*
 * adapters.h - LoRA: which linear layers have an adapter, and its parameters.
 *
 * A layer W (N, K) gets A (r, K) and B (N, r), r filled up to a multiple of 16 with zeros, which
 * training leaves zeros. Of a stack of experts each has its own. What W is cut along, A or B is cut
 * along, too (docs/arithmetic.md, sections 14 and 15).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_LORA_ADAPTERS_H
#define INVAR_ENGINE_MODEL_LORA_ADAPTERS_H

#include "engine/model/graph/param.h"
#include "engine/model/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "all-linear" or names as in "q_proj,v_proj", as a set; INVAR_E_INVALID names one that is none. */
invar_status invar_lora_targets(uint32_t *out, const char *words) INVAR_MUST_USE;

/* The names of a set, one after the other; NULL behind the last. */
const char *invar_lora_target(uint32_t targets, int number);

/* s = alpha / rank, rounded once; of rsLoRA alpha / sqrt(rank), in f64, then rounded to f32. */
float invar_lora_factor(const invar_lora_spec *lora);

/*
 * One of the adapters of experts that is not cut: it is one piece, whatever its number of experts,
 * so that each expert-parallel rank has all of it.
 */
static inline bool invar_adapter_is_uncut(const invar_param *p)
{
    return p->kind == INVAR_PARAM_ADAPTER && p->stack > 1 && p->cut.shards == 1;
}

/* Takes rank-pattern and alpha-pattern, objects of JSON or "". */
invar_status invar_lora_patterns(invar_lora_spec *out, const char *ranks,
                                 const char *alphas) INVAR_MUST_USE;

/* Rank and factor of a layer, as the patterns say. */
invar_status invar_lora_layer(int64_t *rank_out, float *factor_out, const invar_lora_spec *lora,
                              const invar_param *p) INVAR_MUST_USE;

/* Rows that each A has at least: the rank, filled up. */
int64_t invar_lora_rows(const invar_lora_spec *lora);

/* Parameters of all adapters of these: two for each. */
int64_t invar_adapters_count(const invar_param *base, int64_t count, const invar_lora_spec *lora);

/* Declares them in the order of their layers, A before B, and notes them in the base. */
invar_status invar_adapters_declare(invar_param *out, invar_param *base, int64_t count,
                                    const invar_lora_spec *lora) INVAR_MUST_USE;

/* Refuses patterns that match no layer with an adapter. */
invar_status invar_adapters_check(const invar_param *base, int64_t count,
                                  const invar_lora_spec *lora) INVAR_MUST_USE;

/* Is it A, which starts with random values? B starts with zeros. */
bool invar_adapter_is_first(const invar_param *p);

#ifdef __cplusplus
}
#endif
#endif
