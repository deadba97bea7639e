/*
 * hf_files.c - what a Hugging Face folder has beside config.json and weights.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/io/hf_files.h"

#include "base/alloc.h"
#include "base/file.h"

#include "base/invar_banned.h"

#define MAX_BYTES ((size_t)1 << 30)

static const char *const names[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
};
enum { N_NAMES = sizeof names / sizeof *names };

invar_status invar_hf_files_add(invar_hf_files *files, const char *dir, const char *name)
{
    invar_checkpoint_blob *file = &files->items[files->count];
    char path[INVAR_PATH_SIZE], *data;

    INVAR_CHECK(files->count < INVAR_HF_FILES);
    INVAR_TRY(invar_path_join(path, sizeof path, dir, name));
    if (!invar_path_exists(path))
        return INVAR_OK;
    INVAR_TRY(invar_file_read(&data, &file->bytes, path, MAX_BYTES));
    file->name = name;
    file->data = data;
    files->count++;
    return INVAR_OK;
}

invar_status invar_hf_files_read(invar_hf_files *files, const char *dir)
{
    for (int i = 0; i < N_NAMES; i++)
        INVAR_TRY(invar_hf_files_add(files, dir, names[i]));
    return INVAR_OK;
}

invar_status invar_hf_files_write(const invar_hf_files *files, const char *dir)
{
    char path[INVAR_PATH_SIZE];

    for (int64_t i = 0; files && i < files->count; i++) {
        INVAR_TRY(invar_path_join(path, sizeof path, dir, files->items[i].name));
        INVAR_TRY(invar_file_write(path, files->items[i].data, files->items[i].bytes));
    }
    return INVAR_OK;
}

void invar_hf_files_release(invar_hf_files *files)
{
    for (int64_t i = 0; i < files->count; i++)
        invar_free((void *)(uintptr_t)files->items[i].data);
    *files = (invar_hf_files){.count = 0};
}
