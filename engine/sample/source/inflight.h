/*
 * inflight.h - samples that are not trained on yet: rollouts that have begun, and surplus groups.
 *
 * Samples of rollouts are parts of responses, or wait for the others of their rollout. Surplus
 * groups are whole and judged: a filter kept them, and their batch was full. In a checkpoint all
 * are a file of rollouts (engine/sample/rollout/file/rollout_file.h): no KV cache, which the
 * weights of the next tick would have to compute anew in any case.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_INFLIGHT_H
#define INVAR_ENGINE_SAMPLE_SOURCE_INFLIGHT_H

#include "engine/files/data/dataset.h"
#include "engine/sample/rollout/file/rollout_file.h"
#include "engine/sample/source/lag.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed, nothing has begun; release. */
typedef struct invar_inflight {
    invar_rl_samples started[INVAR_LAG_MAX + 1]; /* (count) of each rollout, in order */
    int64_t count;
    int64_t first;            /* the number of the first one */
    invar_rl_samples surplus; /* whole groups */
} invar_inflight;

void invar_inflight_release(invar_inflight *flight);

/* The samples of the first rollout, which leaves; the caller owns them. */
void invar_inflight_pop(invar_rl_samples *out, invar_inflight *flight);

/* Response tokens that a sample may ever have. */
int64_t invar_inflight_limit(const invar_rl_sample *sample, const invar_sampling_params *sampling,
                             const invar_model_spec *spec);

/* Into an empty one. */
invar_status invar_inflight_copy(invar_inflight *out, const invar_inflight *from) INVAR_MUST_USE;

/*
 * ---- inflight_file.c: in a checkpoint ----------------------------------------------------------
 */

#define INVAR_INFLIGHT_FILE "flight.jsonl"

/*
 * The bytes of the file; the header's rollout is the first one's, or, where none has begun, stays.
 * The caller owns *out.
 */
invar_status invar_inflight_format(char **out, size_t *bytes_out, const invar_inflight *flight,
                                   invar_rollout_header *header) INVAR_MUST_USE;

/* What a run that goes on expects of the file. */
typedef struct invar_inflight_expectation {
    const char *where; /* in messages */
    const invar_dataset *data;
    invar_digest tokenizer; /* its hash */
    const invar_model_spec *spec;
    invar_sampling_params sampling;
    int64_t first;      /* rollout */
    int64_t weights;    /* the newest version */
    int64_t samples;    /* index of the run's next one, */
    int64_t groups;     /* and number of its next group */
    int64_t round;      /* prompts of each rollout, */
    int64_t per_prompt; /* and samples of each of them */
    int64_t route_size; /* of a row */
    int64_t lag;        /* of the next two: */
    bool recorded;      /* groups leave one by one, late or early, and may have no token yet: */
    int64_t delay;      /* rollouts that they may be late */
    bool led;           /* a plug-in leads samples: those that have begun have ended */
    bool surplus;       /* there may be surplus groups, and rollouts of fewer prompts, */
    bool fork;          /* or the run that was forked may have had them */
} invar_inflight_expectation;

/*
 * Into an empty one; nothing that the file says is believed. INVAR_E_CORRUPT, or INVAR_E_INVALID
 * where a fork's recipe cannot go on with the samples.
 */
invar_status invar_inflight_parse(invar_inflight *out, const char *text, size_t bytes,
                                  const invar_inflight_expectation *wants) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
