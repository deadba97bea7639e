/*
 * dataset_line.h - one line of a data set: from JSON to tokens. Private to the data set.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_DATA_DATASET_LINE_H
#define INVAR_ENGINE_FILES_DATA_DATASET_LINE_H

#include "engine/files/data/dataset.h"
#include "engine/text/chat/chat_template.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_record_reader {
    const invar_dataset_options *options;
    const invar_tokenizer *tokenizer;
    invar_chat_template *chat; /* NULL: no template is applied */
} invar_record_reader;

/* Zeroed at first; release. Texts end with NUL. */
typedef struct invar_dataset_record {
    char *text;
    char *label;
    char *metadata;
    int32_t *tokens;
    int64_t n_tokens;
    int32_t *answer; /* SFT only */
    uint8_t *mask;   /* (n_answer) 1: to be learned; NULL: all of it */
    int64_t n_answer;
} invar_dataset_record;

/* `where` is "file:line" and begins every error. After a failure `out` must still be released. */
invar_status invar_dataset_record_read(invar_dataset_record *out, const invar_record_reader *reader,
                                       const char *where, const char *json,
                                       size_t bytes) INVAR_MUST_USE;

/* A line without JSON. */
invar_status invar_dataset_record_plain(invar_dataset_record *out,
                                        const invar_record_reader *reader, const char *where,
                                        const char *prompt, const char *label) INVAR_MUST_USE;

void invar_dataset_record_release(invar_dataset_record *line);

#ifdef __cplusplus
}
#endif
#endif
