/*
 * aux_files.h - what a Hugging Face folder has beside config.json and weights, to be handed on.
 *
 * Files of the tokenizer, its chat templates and generation_config.json: bytes that Invar copies as
 * they are, so that an exported model can be used without the folder that it came from.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_HF_AUX_FILES_H
#define INVAR_ENGINE_FILES_HF_AUX_FILES_H

#include "base/text.h"
#include "engine/files/checkpoint/checkpoint.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_HF_TEMPLATES "additional_chat_templates" /* a folder of NAME.jinja */
#define INVAR_HF_MAX_TEMPLATES 48
#define INVAR_HF_NAMES 10 /* of files that aux_files.c looks for */
#define INVAR_HF_FILES (1 + INVAR_HF_NAMES + INVAR_HF_MAX_TEMPLATES) /* and a config.json */

/* Zeroed, it has none. Not to be moved: the items name what is in it. */
typedef struct invar_hf_files {
    invar_checkpoint_blob items[INVAR_HF_FILES]; /* the bytes are its own (invar_free) */
    int64_t count;
    char names[INVAR_HF_MAX_TEMPLATES][INVAR_CHECKPOINT_NAME_BYTES + 1]; /* of more templates */
    int64_t n_names;
    char *config; /* text of the source's config.json, which is not among `items`; NULL: none */
    size_t config_bytes;
    int64_t n_skipped;                        /* templates that cannot be handed on */
    char one_left_out[INVAR_TEXT_QUOTE_SIZE]; /* the name of one of them */
} invar_hf_files;

/* Adds the file of the folder; one that is not there is left out. */
invar_status invar_hf_files_add(invar_hf_files *files, const char *dir,
                                const char *name) INVAR_MUST_USE;

/* Takes the config.json of the folder, to be written with the type of the weights. */
invar_status invar_hf_files_take_config(invar_hf_files *files, const char *dir) INVAR_MUST_USE;

/*
 * Adds all that are there, in an order of their own. `chat_template` ("": none) is a file that
 * stands in the place of all chat templates of the folder. A further template is left out where its
 * name is not of A-Z a-z 0-9 . _ - or INVAR_HF_MAX_TEMPLATES go before it by name.
 */
invar_status invar_hf_files_read(invar_hf_files *files, const char *dir,
                                 const char *chat_template) INVAR_MUST_USE;

#define INVAR_HF_WARNING_SIZE 256

/* What was left out, as a sentence; "": nothing. */
void invar_hf_files_warning(char out[INVAR_HF_WARNING_SIZE], const invar_hf_files *files);

/* Each whole or not at all. `files` may be NULL. */
invar_status invar_hf_files_write(const invar_hf_files *files, const char *dir) INVAR_MUST_USE;

void invar_hf_files_release(invar_hf_files *files);

#ifdef __cplusplus
}
#endif
#endif
