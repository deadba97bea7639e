/*
 * reward_parts.h - named parts of rewards: what a judge says beside the one number that is learned
 * from.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RL_REWARD_PARTS_H
#define INVAR_ENGINE_RL_REWARD_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    INVAR_REWARD_NAME_SIZE = 48, /* of a part's name, with the terminating NUL */
    INVAR_REWARD_PARTS = 32      /* of one reward, at most; also different names in a batch */
};

/* Plain bytes, also behind the name's end: parts are compared and sent to other ranks as such. */
typedef struct invar_reward_part {
    char name[INVAR_REWARD_NAME_SIZE];
    double value;
} invar_reward_part;

/* Zeroed, there are none; items are owned (invar_alloc). */
typedef struct invar_reward_parts {
    invar_reward_part *items; /* (count), in the order of their names, which differ */
    int64_t count;
} invar_reward_parts;

void invar_reward_parts_release(invar_reward_parts *parts);

/*
 * Adds one in its place. INVAR_E_CORRUPT, with `where` in front, for a name that is not 1 to 47
 * letters, digits and any of _ - . @ or is there already, a value that is not finite, or too many.
 */
invar_status invar_reward_parts_add(invar_reward_parts *parts, const char *name, size_t bytes,
                                    double value, const char *where) INVAR_MUST_USE;

/* Their sum, in order. */
double invar_reward_parts_sum(const invar_reward_parts *parts);

/* NULL: there is none of that name. */
const invar_reward_part *invar_reward_parts_find(const invar_reward_parts *parts, const char *name);

bool invar_reward_parts_equal(const invar_reward_parts *a, const invar_reward_parts *b);

struct invar_rl_sample;

/* Of each name that any of the samples has: the mean over those that have it. */
invar_status invar_reward_parts_mean(invar_reward_parts *out, const struct invar_rl_sample *samples,
                                     int64_t count) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
