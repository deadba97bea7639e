/*
 * dataset.h - prompts with labels: JSON lines (also in gzip), Parquet, or a built-in task.
 *
 * Every line is one JSON object; a bad line is an error with its number, never skipped. All is read
 * and tokenized when the set is loaded; prompts longer than allowed are dropped there, counted.
 * The order of an epoch is a Philox shuffle of (seed, epoch): nothing else.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_DATA_DATASET_H
#define INVAR_ENGINE_FILES_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "engine/files/data/builtin_task.h"
#include "engine/text/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_prompt {
    int64_t line;         /* in the file, from 0: the prompt's name in the ledger */
    const char *text;     /* as the model sees it, after the chat template */
    const char *label;    /* "" when there is none */
    const char *metadata; /* a JSON object, canonical; "{}" when there is none */
    const int32_t *tokens;
    int64_t n_tokens;
    invar_digest hash; /* of the tokens */
    /* SFT: what the model shall answer, tokens after the prompt, with their loss mask; else NULL */
    const int32_t *answer;
    const uint8_t *answer_mask;
    int64_t n_answer;
} invar_prompt;

typedef struct invar_dataset_options {
    const char *path;         /* "data.jsonl", "data.jsonl@[0:100]" or "task:NAME" */
    const char *input_key;    /* a string, or a list of messages (needs a chat template) */
    const char *label_key;    /* "" : none */
    const char *metadata_key; /* "" : none */
    const char *tool_key;     /* "" : none */
    bool apply_chat_template;
    const char *chat_template_path;   /* "": the tokenizer's own */
    const char *chat_template_kwargs; /* a JSON object; "": none */
    const char *hf_dir;               /* where the tokenizer's template is */
    int64_t max_prompt_tokens;        /* 0: no limit */
    int64_t max_total_tokens;         /* SFT: prompt and answer; 0: no limit */
    /*
     * Also make answers. With a chat template every message of the assistant is learned, and the
     * label as a last one where there is a label key; without, the label and the end of text. A
     * message is learned by what the rendering of the whole talk has of it behind the prompt for
     * generation; the first one begins the answer, what others say in between is masked.
     */
    bool sft;
    uint32_t seed;     /* of a built-in task */
    int64_t task_size; /* prompts of a built-in task */
} invar_dataset_options;

typedef struct invar_dataset invar_dataset;

invar_status invar_dataset_open(invar_dataset **out, const invar_dataset_options *options,
                                const invar_tokenizer *tokenizer) INVAR_MUST_USE;

/* The lines from memory; `path` only names them. */
invar_status invar_dataset_parse(invar_dataset **out, const invar_dataset_options *options,
                                 const invar_tokenizer *tokenizer, const char *text,
                                 size_t bytes) INVAR_MUST_USE;
void invar_dataset_close(invar_dataset *dataset);

int64_t invar_dataset_size(const invar_dataset *dataset);
int64_t invar_dataset_dropped_count(const invar_dataset *dataset); /* too long */
const invar_prompt *invar_dataset_prompt(const invar_dataset *dataset, int64_t i);

/* The prompt of a line; NULL: there is none, or it was dropped. Prompts are in order of lines. */
const invar_prompt *invar_dataset_find(const invar_dataset *dataset, int64_t line);

/* The digest of all prompts, labels, metadata and answers in order: part of the run's identity. */
void invar_dataset_hash(invar_digest *out, const invar_dataset *dataset);

/* Where a run is in its data; plain numbers, kept in checkpoints. */
typedef struct invar_data_cursor {
    int64_t epoch;
    int64_t offset; /* prompts of this epoch already taken */
} invar_data_cursor;

/* The next prompt, in the order of the epoch; wraps into the next epoch. */
const invar_prompt *invar_dataset_next(invar_dataset *dataset, invar_data_cursor *cursor,
                                       bool shuffle, uint32_t seed);

/*
 * The order of an epoch: order[0 .. count) becomes a permutation of 0 .. count - 1. Fisher and
 * Yates' shuffle: for i = count - 1 down to 1, items i and floor(w * (i + 1) / 2^64) change places,
 * w = word0 + 2^32 word1 of Philox4x32-10 with counter (i, epoch, epoch >> 32, 0), key (seed, 3).
 */
void invar_dataset_shuffle(int32_t *order, int64_t count, uint32_t seed, int64_t epoch);

#ifdef __cplusplus
}
#endif
#endif
