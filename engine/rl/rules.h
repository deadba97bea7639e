/*
 * rules.h - the built-in rewards, one function each. What they accept: docs/recipes.md.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_RULES_H
#define INVAR_ENGINE_RL_RULES_H

#include "base/status.h"
#include "engine/rl/answer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 1 when the last \boxed{} of the response is the label, as text or as a number; else 0. */
double invar_rule_math(invar_piece response, invar_piece label);

/* 1 when what follows the last "Answer:" is the label, else -1. */
double invar_rule_dapo(invar_piece response, invar_piece label);

/* The F1 of the words of both, 0 to 1. */
invar_status invar_rule_f1(double *out, invar_piece response, invar_piece label) INVAR_MUST_USE;

/* 1 when the response names the right option; else 0. `metadata` is a JSON object. */
invar_status invar_rule_gpqa(double *out, invar_piece response, invar_piece label,
                             const char *metadata) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
