/*
 * feed.h - jobs through the cache, pass by pass: what generation and scoring share.
 *
 * Only engine/rollout includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_ROLLOUT_FEED_H
#define INVAR_ENGINE_ROLLOUT_FEED_H

#include "base/arena.h"
#include "engine/model/call.h"
#include "engine/rollout/rollout.h"
#include "engine/rollout/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

struct invar_rollout {
    const invar_model *model;
    const invar_tokenizer *tokenizer;
    invar_caller caller;
    invar_rollout_limits limits;
    invar_pass *pass;
    invar_cache *cache; /* of the last run, used again where it fits */
    invar_rollout_counters counters;
};

typedef struct invar_feed {
    invar_rollout *rollout;
    invar_schedule schedule;
    const invar_turn *turns; /* (n_turns) of the last pass */
    int64_t n_turns;
    int64_t route;       /* numbers of one row's routing; 0: none */
    int64_t width;       /* of the page tables */
    invar_arena *memory; /* the host's, as are the arrays */
    int32_t *ids;        /* (rows) */
    int32_t *positions;  /* (rows) */
    int64_t *start;      /* (n_turns + 1) rows of each turn */
    int64_t *lengths;    /* (n_turns) */
    int32_t *tables;     /* (n_turns, width) */
    int32_t *routing;    /* (rows, route) */
} invar_feed;

/*
 * The limits with nothing left open, for `sequences` of at most `rows` rows; the cache is there
 * afterwards, and the counters begin anew.
 */
invar_status invar_feed_settle(invar_rollout_limits *out, invar_rollout *rollout, int64_t sequences,
                               int64_t rows) INVAR_MUST_USE;

/* Settled limits. The jobs are borrowed. Released also after a failure. */
invar_status invar_feed_init(invar_feed *feed, invar_rollout *rollout,
                             const invar_rollout_limits *limits, invar_job *jobs,
                             int64_t n_jobs) INVAR_MUST_USE;
void invar_feed_release(invar_feed *feed);

/* Runs the next pass; n_turns is 0 when all jobs are over. */
invar_status invar_feed_pass(invar_feed *feed) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
