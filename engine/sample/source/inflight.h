/*
 * inflight.h - samples that are not trained on yet: begun rollouts and surplus groups.
 *
 * Samples of begun rollouts have parts of their responses, or wait for other samples of their
 * rollout. Surplus groups are complete and rewarded: the filters kept them when their batch was
 * full. A checkpoint stores all of them as a rollout file
 * (engine/sample/rollout/file/rollout_file.h), without a KV cache, because the next weights must
 * compute all rows again anyway.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_INFLIGHT_H
#define INVAR_ENGINE_SAMPLE_SOURCE_INFLIGHT_H

#include "engine/files/data/dataset.h"
#include "engine/sample/rollout/file/rollout_file.h"
#include "engine/sample/source/sample_schedule.h"

/* In-flight samples. Zero-initialize before use. Release with invar_inflight_release. */
typedef struct invar_inflight {
    invar_rl_samples
        started[INVAR_LAG_MAX + 1]; /* (count) samples of each begun rollout, in order */
    int64_t count;
    int64_t first;            /* number of the first begun rollout */
    invar_rl_samples surplus; /* surplus groups, in order of index */
} invar_inflight;

void invar_inflight_release(invar_inflight *inflight);

/* Removes the first begun rollout and moves its samples to *out, which the caller then owns. */
void invar_inflight_pop(invar_rl_samples *out, invar_inflight *inflight);

/* Returns the largest number of response tokens that a sample may have. */
int64_t invar_inflight_limit(const invar_rl_sample *sample, const invar_sampling_params *sampling,
                             const invar_model_spec *spec);

/* Copies `from` into an empty *out. Texts stay borrowed from the data set. */
invar_status invar_inflight_copy(invar_inflight *out, const invar_inflight *from) INVAR_MUST_USE;

/* ---- inflight_file.c ------------------------------------------------------------------------- */

#define INVAR_INFLIGHT_FILE "flight.jsonl"

/*
 * Formats the in-flight file of a checkpoint. Sets header->rollout to the first begun rollout;
 * leaves it if none has begun. The caller frees *out with invar_free.
 */
invar_status invar_inflight_format(char **out, size_t *bytes_out, const invar_inflight *inflight,
                                   invar_rollout_header *header) INVAR_MUST_USE;

/* Requirements of a run that resumes or forks from a checkpoint on its in-flight file. */
typedef struct invar_inflight_expectation {
    const char *where; /* path to show in messages */
    const invar_dataset *data;
    invar_digest tokenizer; /* digest of the tokenizer */
    const invar_model_spec *spec;
    invar_sampling_params sampling;
    int64_t first;      /* rollout that is next */
    int64_t weights;    /* newest weight version */
    int64_t samples;    /* index of the next sample of the run */
    int64_t groups;     /* number of the next group of the run */
    int64_t round;      /* prompts of a begun rollout */
    int64_t per_prompt; /* samples per prompt */
    int64_t route_size; /* expert ids per row; 0 for a dense model */
    invar_sample_schedule schedule;
    bool multi_turn; /* a plug-in drives the samples, so all begun samples have finished */
    bool fork;       /* the file is of another run, whose keys may differ */
} invar_inflight_expectation;

/*
 * Parses an in-flight file into an empty *out. The content is untrusted and checked against
 * `wants`. Returns INVAR_E_CORRUPT for an invalid file, and INVAR_E_INVALID if the recipe, as of a
 * fork, cannot continue the samples.
 */
invar_status invar_inflight_parse(invar_inflight *out, const char *text, size_t bytes,
                                  const invar_inflight_expectation *wants) INVAR_MUST_USE;

#endif
