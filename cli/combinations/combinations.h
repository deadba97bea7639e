/*
 * combinations.h - invar help combinations: lists the pairs of recipe keys that are rejected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_COMBINATIONS_COMBINATIONS_H
#define INVAR_CLI_COMBINATIONS_COMBINATIONS_H

#include "base/status.h"

/* Prints every pair of features.def that is rejected, with the reason, one per line, to stdout. */
invar_status invar_combinations_show(void) INVAR_MUST_USE;

#endif
