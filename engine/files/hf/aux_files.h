/*
 * aux_files.h - tokenizer files and chat templates of a Hugging Face folder, copied with exports.
 *
 * These files (tokenizer, chat templates, generation_config.json) are copied byte by byte, so that
 * an exported model can be used without the folder that it came from.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_HF_AUX_FILES_H
#define INVAR_ENGINE_FILES_HF_AUX_FILES_H

#include "base/text.h"
#include "engine/files/checkpoint/checkpoint.h"

#define INVAR_HF_TEMPLATES "additional_chat_templates" /* a folder of NAME.jinja */
#define INVAR_HF_MAX_TEMPLATES 48
#define INVAR_HF_NAMES 10 /* number of file names in aux_files.c */
#define INVAR_HF_FILES (1 + INVAR_HF_NAMES + INVAR_HF_MAX_TEMPLATES) /* including a config.json */

/* Files of one folder; empty if zeroed. Must not be moved: `items` point into `names`. */
typedef struct invar_hf_files {
    invar_checkpoint_blob items[INVAR_HF_FILES]; /* data is owned (invar_free) */
    int64_t count;
    /* names of additional templates */
    char names[INVAR_HF_MAX_TEMPLATES][INVAR_CHECKPOINT_NAME_BYTES + 1];
    int64_t n_names;
    char *config; /* config.json of the source, which is not among `items`; NULL if absent */
    size_t config_bytes;
    int64_t n_skipped;                        /* templates that cannot be copied */
    char skipped_name[INVAR_TEXT_QUOTE_SIZE]; /* name of one skipped template */
} invar_hf_files;

/* Adds a file of the folder, if it exists. */
invar_status invar_hf_files_add(invar_hf_files *files, const char *dir,
                                const char *name) INVAR_MUST_USE;

/* Reads the config.json of the folder, to be written later with the type of the weights. */
invar_status invar_hf_files_read_config(invar_hf_files *files, const char *dir) INVAR_MUST_USE;

/*
 * Adds all existing files, in a fixed order. `chat_template`, if not empty, is a file that replaces
 * all chat templates of the folder. Additional templates are skipped if their name has characters
 * other than A-Z a-z 0-9 . _ - or if INVAR_HF_MAX_TEMPLATES precede them by name.
 */
invar_status invar_hf_files_read(invar_hf_files *files, const char *dir,
                                 const char *chat_template) INVAR_MUST_USE;

#define INVAR_HF_WARNING_SIZE 256

/* Writes a sentence about skipped templates; empty if none was skipped. */
void invar_hf_files_warning(char out[INVAR_HF_WARNING_SIZE], const invar_hf_files *files);

/* Writes all files, each atomically. `files` may be NULL. */
invar_status invar_hf_files_write(const invar_hf_files *files, const char *dir) INVAR_MUST_USE;

void invar_hf_files_release(invar_hf_files *files);

#endif
