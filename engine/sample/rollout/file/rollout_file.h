/*
 * rollout_file.h - the samples of one rollout in a file that any language reads.
 *
 * JSON lines: a header, one object a sample, and a last line with the number of samples and the
 * SHA-256 of all bytes before it. docs/formats.md describes every member. Log-probabilities are the
 * shortest decimals that read back to the same bits, so a run trained from files ends on the chain
 * of the run that wrote them. Equal rollouts give equal bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_FILE_ROLLOUT_FILE_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_FILE_ROLLOUT_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "engine/rl/sample.h"
#include "engine/sample/rollout/rollout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Newest version of the format. Version 1 has no policy in its header. */
#define INVAR_ROLLOUT_FILE_VERSION 2

/*
 * What decides the log-probabilities of tokens beside the weights and the temperature. Two
 * policies with the same weights have the same log-probabilities only if all members are equal.
 */
typedef struct invar_rollout_policy {
    const char *dtype;    /* number format of the weights that sampled; NULL if it is unknown */
    const char *numerics; /* NULL if it is unknown */
    invar_digest model;   /* hash of the model's shape and arithmetic */
} invar_rollout_policy;

typedef struct invar_rollout_header {
    int64_t rollout;
    invar_digest run; /* identity of the run */
    int64_t weights;  /* version that sampled */
    invar_digest weights_hash;
    invar_digest tokenizer;
    int64_t n_samples_per_prompt;
    bool filters;     /* groups may be rejected or left over; the file then has `filtered` */
    int64_t filtered; /* groups that a filter rejected */
    invar_sampling_params sampling;
    invar_rollout_policy policy; /* dtype NULL writes a file of version 1 */
} invar_rollout_header;

/* The pattern with each {rollout_id} replaced by the number; INVAR_E_INVALID: too long. */
invar_status invar_rollout_file_path(char *out, size_t size, const char *pattern,
                                     int64_t rollout) INVAR_MUST_USE;

/* True for a pattern that gives each rollout a file of its own. */
bool invar_rollout_file_distinct(const char *pattern);

/* Fails where a file of another kind has one of the names of rollouts [0, count), or none can be
   made there. */
invar_status invar_rollout_file_check(const char *pattern, int64_t count) INVAR_MUST_USE;

/* Atomic: the old file or the new one, never a part. Makes the folder. */
invar_status invar_rollout_file_write(const char *path, const invar_rollout_header *header,
                                      const invar_rl_sample *samples, int64_t count) INVAR_MUST_USE;

/* The bytes of such a file; the caller owns *out (invar_free). */
invar_status invar_rollout_file_format(char **out, size_t *bytes_out,
                                       const invar_rollout_header *header,
                                       const invar_rl_sample *samples,
                                       int64_t count) INVAR_MUST_USE;

/* What a file holds, with the memory of all that header and samples borrow. Release. */
typedef struct invar_rollout_file {
    invar_digest content; /* hash of all bytes */
    invar_rollout_header header;
    invar_rl_samples samples;
    void **memory; /* (n_memory) */
    int64_t n_memory, capacity;
} invar_rollout_file;

/* INVAR_E_NOTFOUND, INVAR_E_IO; INVAR_E_CORRUPT with file and line for everything else. */
invar_status invar_rollout_file_read(invar_rollout_file *out, const char *path) INVAR_MUST_USE;

/* Like invar_rollout_file_read, with the first sample alone; *samples_out is their number. */
invar_status invar_rollout_file_head(invar_rollout_file *out, int64_t *samples_out,
                                     const char *path) INVAR_MUST_USE;

/* What `read` does, from memory; `where` stands for the path in messages. */
invar_status invar_rollout_file_parse(invar_rollout_file *out, const char *where, const char *text,
                                      size_t bytes) INVAR_MUST_USE;
void invar_rollout_file_release(invar_rollout_file *data);

#ifdef __cplusplus
}
#endif
#endif
