/*
 * rollout_file.h - rollout files: the samples of one rollout as JSON lines, for any language.
 *
 * A file has a header, one object per sample, and a trailer with the number of samples and the
 * SHA-256 of all bytes before it. docs/formats.md describes every member. Log-probs are the
 * shortest decimals that read back to the same bits, so a run trained from files has the chain of
 * the run that wrote them. Equal rollouts give equal bytes.
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

/* Newest version of the format. Headers of version 1 have no policy. */
#define INVAR_ROLLOUT_FILE_VERSION 2

/*
 * Everything besides weights and temperature that determines the log-probs of tokens. Two policies
 * with the same weights have the same log-probs only if all members are equal.
 */
typedef struct invar_rollout_policy {
    const char *dtype;    /* number format of the weights that sampled; NULL if unknown */
    const char *numerics; /* recipe key numerics: "ieee" or "sm90"; NULL if unknown */
    invar_digest model;   /* digest of the model's shape and arithmetic */
} invar_rollout_policy;

typedef struct invar_rollout_header {
    int64_t rollout;
    invar_digest run; /* identity digest of the run */
    int64_t weights;  /* weight version that sampled */
    invar_digest weights_hash;
    invar_digest tokenizer;
    int64_t n_samples_per_prompt;
    bool filters;     /* groups may be rejected or left over; the file then has filtered_groups */
    int64_t filtered; /* groups that a filter rejected */
    invar_sampling_params sampling;
    invar_rollout_policy policy; /* a NULL dtype writes a file of version 1 */
} invar_rollout_header;

/*
 * Writes `pattern` with each {rollout_id} replaced by `rollout` to out[size]. Returns
 * INVAR_E_INVALID if the path is too long.
 */
invar_status invar_rollout_file_path(char *out, size_t size, const char *pattern,
                                     int64_t rollout) INVAR_MUST_USE;

/*
 * Fails if a file of another kind has one of the paths of rollouts [0, count), or if no file can be
 * created there.
 */
invar_status invar_rollout_file_check(const char *pattern, int64_t count) INVAR_MUST_USE;

/* Writes a rollout file atomically: a reader sees the old or the new file. Creates its folder. */
invar_status invar_rollout_file_write(const char *path, const invar_rollout_header *header,
                                      const invar_rl_sample *samples, int64_t count) INVAR_MUST_USE;

/* Formats the bytes of a rollout file. The caller frees *out with invar_free. */
invar_status invar_rollout_file_format(char **out, size_t *bytes_out,
                                       const invar_rollout_header *header,
                                       const invar_rl_sample *samples,
                                       int64_t count) INVAR_MUST_USE;

/* Content of a rollout file. Release with invar_rollout_file_release. */
typedef struct invar_rollout_file {
    invar_digest content; /* digest of all bytes of the file */
    invar_rollout_header header;
    invar_rl_samples samples;
    void **memory; /* (n_memory) blocks that header and samples borrow; owned */
    int64_t n_memory, capacity;
} invar_rollout_file;

/*
 * Reads a rollout file. Returns INVAR_E_NOTFOUND or INVAR_E_IO if it cannot be read,
 * INVAR_E_UNSUPPORTED for a newer version, and INVAR_E_CORRUPT with file and line for invalid
 * content. After a failure *out is empty.
 */
invar_status invar_rollout_file_read(invar_rollout_file *out, const char *path) INVAR_MUST_USE;

/*
 * Like invar_rollout_file_read, but parses the header and the first sample only. *samples_out =
 * number of samples in the file.
 */
invar_status invar_rollout_file_head(invar_rollout_file *out, int64_t *samples_out,
                                     const char *path) INVAR_MUST_USE;

/* Like invar_rollout_file_read, but from memory; `where` is the path to show in messages. */
invar_status invar_rollout_file_parse(invar_rollout_file *out, const char *where, const char *text,
                                      size_t bytes) INVAR_MUST_USE;
void invar_rollout_file_release(invar_rollout_file *data);

#endif
