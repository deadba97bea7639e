/*
 * hf_files.c - what a Hugging Face folder has beside config.json and weights.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/io/hf_files.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sort.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define MAX_BYTES ((size_t)1 << 30)
#define CHAT_TEMPLATE "chat_template.jinja"
#define OLD_TEMPLATE "chat_template.json"
#define ENDING ".jinja"

static const char *const names[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    CHAT_TEMPLATE,
    OLD_TEMPLATE,
    "generation_config.json",
};
enum { N_NAMES = sizeof names / sizeof *names };

/* ---- reading --------------------------------------------------------------------------------- */

static invar_status add_path(invar_hf_files *files, const char *path, const char *name)
{
    invar_checkpoint_blob *file = &files->items[files->count];
    char *data;

    INVAR_CHECK(files->count < INVAR_HF_FILES);
    INVAR_TRY(invar_file_read(&data, &file->bytes, path, MAX_BYTES));
    file->name = name;
    file->data = data;
    files->count++;
    return INVAR_OK;
}

invar_status invar_hf_files_add(invar_hf_files *files, const char *dir, const char *name)
{
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(path, sizeof path, dir, name));
    return invar_path_exists(path) ? add_path(files, path, name) : INVAR_OK;
}

/* Keeps "additional_chat_templates/NAME", where that is a template of the folder `path`. */
static invar_status keep_template(invar_hf_files *files, const char *path, const char *name)
{
    char quote[INVAR_TEXT_QUOTE_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    char whole[sizeof INVAR_HF_TEMPLATES + NAME_MAX + 1];
    size_t length = strlen(name), end = strlen(ENDING);

    if (name[0] == '.' || length <= end || strcmp(name + length - end, ENDING) != 0)
        return INVAR_OK;
    invar_path_show(shown, path);
    invar_text_quote(quote, sizeof quote, name, length);
    (void)snprintf(whole, sizeof whole, INVAR_HF_TEMPLATES "/%s", name);
    if (!invar_checkpoint_blob_name(whole))
        return INVAR_FAIL(
            INVAR_E_UNSUPPORTED, 0,
            "%s: a chat template's name is of A-Z a-z 0-9 . _ -, unlike \"%s\": rename "
            "it",
            shown, quote);
    if (files->n_names == INVAR_HF_MAX_TEMPLATES)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: more than %d chat templates", shown,
                          INVAR_HF_MAX_TEMPLATES);
    memcpy(files->names[files->n_names++], whole, strlen(whole) + 1);
    return INVAR_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* In the order of names, so that the files do not depend on that of the folder. */
static invar_status add_templates(invar_hf_files *files, const char *dir)
{
    const void *order[INVAR_HF_MAX_TEMPLATES];
    invar_status status = INVAR_OK;
    char path[INVAR_PATH_SIZE];
    struct dirent *entry;
    DIR *stream;

    INVAR_TRY(invar_path_join(path, sizeof path, dir, INVAR_HF_TEMPLATES));
    stream = opendir(path);
    if (!stream)
        return INVAR_OK;
    while (status == INVAR_OK && (entry = readdir(stream)) != NULL)
        status = keep_template(files, path, entry->d_name);
    (void)closedir(stream);
    for (int64_t i = 0; i < files->n_names; i++)
        order[i] = files->names[i];
    if (status == INVAR_OK)
        status = invar_sort(order, (size_t)files->n_names, by_name);
    for (int64_t i = 0; i < files->n_names && status == INVAR_OK; i++)
        status = invar_hf_files_add(files, dir, order[i]);
    return status;
}

invar_status invar_hf_files_read(invar_hf_files *files, const char *dir, const char *chat_template)
{
    bool given = chat_template[0] != '\0';

    for (int i = 0; i < N_NAMES; i++) {
        if (given && strcmp(names[i], CHAT_TEMPLATE) == 0)
            INVAR_TRY(add_path(files, chat_template, CHAT_TEMPLATE));
        else if (!given || strcmp(names[i], OLD_TEMPLATE) != 0)
            INVAR_TRY(invar_hf_files_add(files, dir, names[i]));
    }
    return given ? INVAR_OK : add_templates(files, dir);
}

/* ---- writing --------------------------------------------------------------------------------- */

invar_status invar_hf_files_write(const invar_hf_files *files, const char *dir)
{
    char path[INVAR_PATH_SIZE];

    if (files && files->n_names > 0) {
        INVAR_TRY(invar_path_join(path, sizeof path, dir, INVAR_HF_TEMPLATES));
        INVAR_TRY(invar_folder_make(path));
    }
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
