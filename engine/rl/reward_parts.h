/*
 * reward_parts.h - named components of a reward, in addition to the number that is trained on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_REWARD_PARTS_H
#define INVAR_ENGINE_RL_REWARD_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    INVAR_REWARD_NAME_SIZE = 48, /* bytes of a part's name with its NUL */
    INVAR_REWARD_PARTS = 32      /* largest number of parts of a reward, and of names in a batch */
};

/* Unused bytes of the name are zero: parts are compared and sent to other ranks as bytes. */
typedef struct invar_reward_part {
    char name[INVAR_REWARD_NAME_SIZE];
    double value;
} invar_reward_part;

/* Parts of one reward; zero-initialized, it is empty. Release with invar_reward_parts_release. */
typedef struct invar_reward_parts {
    invar_reward_part *items; /* (count) sorted by name, without duplicates; owned (invar_alloc) */
    int64_t count;
} invar_reward_parts;

void invar_reward_parts_release(invar_reward_parts *parts);

/*
 * Inserts a part. Returns INVAR_E_CORRUPT if the name is not 1 to 47 letters, digits, _, -, . or @,
 * if it exists already, if the value is not finite, or if there are too many parts; the message
 * begins with `where`.
 */
invar_status invar_reward_parts_add(invar_reward_parts *parts, const char *name, size_t bytes,
                                    double value, const char *where) INVAR_MUST_USE;

/* Returns the sum of the values, added in order. */
double invar_reward_parts_sum(const invar_reward_parts *parts);

/* Returns the part with this name; NULL if it does not exist. */
const invar_reward_part *invar_reward_parts_find(const invar_reward_parts *parts, const char *name);

bool invar_reward_parts_equal(const invar_reward_parts *a, const invar_reward_parts *b);

struct invar_rl_sample;

/*
 * Makes a part for each name that any sample has, with the mean over the samples that have it.
 * `out` must be empty.
 */
invar_status invar_reward_parts_mean(invar_reward_parts *out, const struct invar_rl_sample *samples,
                                     int64_t count) INVAR_MUST_USE;

#endif
