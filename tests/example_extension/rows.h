/*
 * rows.h - functions of the example estimator and reward, for the tables that include their rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_EXAMPLE_EXTENSION_ROWS_H
#define INVAR_TESTS_EXAMPLE_EXTENSION_ROWS_H

#include <stdint.h>

#include "base/status.h"

struct invar_advantage_state;
struct invar_reward_input;

void invar_toy_estimate(struct invar_advantage_state *e, int64_t sample);
invar_status invar_toy_judge(double *out, const struct invar_reward_input *c);

#endif
