/*
 * dataset.h - prompt data sets: JSON lines (also gzip), Parquet, or a built-in task.
 *
 * Every line is one JSON object; an invalid line is an error with its number, never skipped. All
 * lines are read and tokenized when the data set is opened; prompts that are too long are dropped
 * and counted. The order of an epoch is a Philox shuffle that depends on (seed, epoch) only.
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

typedef struct invar_prompt {
    int64_t line;         /* line in the file, from 0; identifies the prompt in the ledger */
    const char *text;     /* text after the chat template */
    const char *label;    /* empty if absent */
    const char *metadata; /* a JSON object, canonical; "{}" if absent */
    const int32_t *tokens;
    int64_t n_tokens;
    invar_digest hash; /* digest of the tokens */
    /* SFT: (n_answer) tokens after the prompt and their loss mask; else NULL */
    const int32_t *answer;
    const uint8_t *answer_mask;
    int64_t n_answer;
} invar_prompt;

typedef struct invar_dataset_options {
    const char *path;      /* "data.jsonl", "data.parquet@[0:100]" or "task:NAME" */
    const char *input_key; /* key of a string, or of a list of messages (needs a chat template) */
    const char *label_key; /* empty if there are no labels */
    const char *metadata_key; /* empty if there are no metadata */
    const char *tool_key;     /* empty if there are no tools */
    bool apply_chat_template;
    const char *chat_template_path;   /* empty for the tokenizer's own template */
    const char *chat_template_kwargs; /* a JSON object, or empty */
    const char *hf_dir;               /* folder of the tokenizer's template */
    int64_t max_prompt_tokens;        /* 0 for no limit */
    int64_t max_total_tokens; /* SFT: limit for prompt and answer together; 0 for no limit */
    /*
     * Make answers, too. With a chat template, every message of the assistant is learned unless its
     * "step_loss_mask" is 0, and the label as a last one if there is a label key; without a chat
     * template, the label and the end of text. The learned part of a message is its text in the
     * rendering of the whole conversation after the generation prompt. The answer begins with the
     * first learned message; other messages in between are masked.
     */
    bool sft;
    uint32_t seed;     /* seed of a built-in task */
    int64_t task_size; /* number of prompts of a built-in task */
} invar_dataset_options;

typedef struct invar_dataset invar_dataset;

/*
 * Reads and tokenizes a data set. `options` and `tokenizer` are used during the call only. Close it
 * with invar_dataset_close.
 */
invar_status invar_dataset_open(invar_dataset **out, const invar_dataset_options *options,
                                const invar_tokenizer *tokenizer) INVAR_MUST_USE;

/* Like invar_dataset_open, for lines in memory; `path` is used in messages only. */
invar_status invar_dataset_parse(invar_dataset **out, const invar_dataset_options *options,
                                 const invar_tokenizer *tokenizer, const char *text,
                                 size_t bytes) INVAR_MUST_USE;
void invar_dataset_close(invar_dataset *dataset);

int64_t invar_dataset_size(const invar_dataset *dataset);
/* Number of prompts that were dropped because they are too long. */
int64_t invar_dataset_dropped_count(const invar_dataset *dataset);
const invar_prompt *invar_dataset_prompt(const invar_dataset *dataset, int64_t i);

/*
 * Returns the prompt of a line; NULL if it does not exist or was dropped. Prompts are in line
 * order.
 */
const invar_prompt *invar_dataset_find(const invar_dataset *dataset, int64_t line);

/* Digest of all prompts, labels, metadata and answers in order; part of the run's identity. */
void invar_dataset_hash(invar_digest *out, const invar_dataset *dataset);

/* Position of a run in its data; kept in checkpoints. */
typedef struct invar_data_cursor {
    int64_t epoch;
    int64_t offset; /* prompts of this epoch that were used */
} invar_data_cursor;

/* Returns the next prompt in the order of the epoch; continues with the next epoch at the end. */
const invar_prompt *invar_dataset_next(invar_dataset *dataset, invar_data_cursor *cursor,
                                       bool shuffle, uint32_t seed);

/*
 * Computes the order of an epoch: order[0 .. count) becomes a permutation of 0 .. count - 1.
 * Fisher-Yates shuffle: for i = count - 1 down to 1, items i and floor(w * (i + 1) / 2^64) are
 * swapped, with w = word0 + 2^32 word1 of Philox4x32-10 with counter (i, epoch, epoch >> 32, 0),
 * key (seed, 3).
 */
void invar_dataset_shuffle(int32_t *order, int64_t count, uint32_t seed, int64_t epoch);

#endif
