/*
 * dataset_line.h - parses and tokenizes one record of a data set. Private to the data set.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_DATA_DATASET_LINE_H
#define INVAR_ENGINE_FILES_DATA_DATASET_LINE_H

#include "engine/files/data/dataset.h"
#include "engine/text/chat/chat_template.h"

typedef struct invar_record_reader {
    const invar_dataset_options *options;
    const invar_tokenizer *tokenizer;
    invar_chat_template *chat; /* NULL if no template is applied */
} invar_record_reader;

/*
 * One record. Zero-initialize before use; release with invar_dataset_record_release. Texts are
 * NUL-terminated.
 */
typedef struct invar_dataset_record {
    char *text;
    char *label;
    char *metadata;
    int32_t *tokens;
    int64_t n_tokens;
    int32_t *answer; /* (n_answer) SFT only, else NULL */
    uint8_t *mask;   /* (n_answer) 1 if the token is learned; NULL if all are */
    int64_t n_answer;
} invar_dataset_record;

/*
 * Parses a record. `where` is "file:line" and begins every error message. Release *out also after a
 * failure.
 */
invar_status invar_dataset_record_read(invar_dataset_record *out, const invar_record_reader *reader,
                                       const char *where, const char *json,
                                       size_t bytes) INVAR_MUST_USE;

/* Like invar_dataset_record_read, from a prompt and a label instead of JSON. */
invar_status invar_dataset_record_plain(invar_dataset_record *out,
                                        const invar_record_reader *reader, const char *where,
                                        const char *prompt, const char *label) INVAR_MUST_USE;

void invar_dataset_record_release(invar_dataset_record *line);

#endif
