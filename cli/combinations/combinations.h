/*
 * combinations.h - invar help combinations: pairs of recipe keys that are refused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_COMBINATIONS_COMBINATIONS_H
#define INVAR_CLI_COMBINATIONS_COMBINATIONS_H

#include "base/status.h"

/* Prints every pair of features.def that is refused, with the reason, a line each, on stdout. */
invar_status invar_combinations_show(void) INVAR_MUST_USE;

#endif
