/*
 * aux_files.c - reads and writes the auxiliary files of a Hugging Face folder.
 *
 * A chat template may be in tokenizer_config.json, in a file of its own, or in a folder of
 * additional templates. If the recipe gives another template, all of these are dropped. Additional
 * templates are kept in the order of names, so the result does not depend on the order of the
 * directory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/hf/aux_files.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"

#include "base/invar_banned.h"

#define MAX_BYTES ((size_t)1 << 30)
#define CHAT_TEMPLATE "chat_template.jinja"
#define OLD_TEMPLATE "chat_template.json"
#define CONFIG "tokenizer_config.json"
#define ENDING ".jinja"

static const char *const names[] = {
    "tokenizer.json",
    CONFIG,
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
_Static_assert(N_NAMES == INVAR_HF_NAMES, "the room for them");

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

invar_status invar_hf_files_read_config(invar_hf_files *files, const char *dir)
{
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_join(path, sizeof path, dir, "config.json"));
    return invar_file_read(&files->config, &files->config_bytes, path, MAX_BYTES);
}

static void skip_template(invar_hf_files *files, const char *name)
{
    files->n_skipped++;
    invar_text_quote(files->skipped_name, sizeof files->skipped_name, name, strlen(name));
}

/* Keeps "additional_chat_templates/NAME" if it is a template, in the order of names. */
static void keep_template(invar_hf_files *files, const char *name)
{
    char whole[sizeof INVAR_HF_TEMPLATES + NAME_MAX + 1];
    int64_t at = files->n_names;

    if (name[0] == '.' || !invar_text_has_suffix(name, ENDING))
        return;
    (void)snprintf(whole, sizeof whole, INVAR_HF_TEMPLATES "/%s", name);
    while (at > 0 && strcmp(files->names[at - 1], whole) > 0)
        at--;
    if (!invar_checkpoint_blob_name(whole) || at == INVAR_HF_MAX_TEMPLATES) {
        skip_template(files, name);
        return;
    }
    if (files->n_names == INVAR_HF_MAX_TEMPLATES)
        skip_template(files, files->names[--files->n_names] + sizeof INVAR_HF_TEMPLATES);
    memmove(files->names[at + 1], files->names[at],
            (size_t)(files->n_names - at) * sizeof *files->names);
    memcpy(files->names[at], whole, strlen(whole) + 1);
    files->n_names++;
}

static invar_status fail_list(const char *path, int code)
{
    return INVAR_FAIL(INVAR_E_IO, code, "%s: cannot be listed: %s", INVAR_SHOWN_PATH(path),
                      strerror(code));
}

static invar_status add_templates(invar_hf_files *files, const char *dir)
{
    char path[INVAR_PATH_SIZE];
    struct dirent *entry;
    DIR *stream;
    int code;

    INVAR_TRY(invar_path_join(path, sizeof path, dir, INVAR_HF_TEMPLATES));
    stream = opendir(path);
    if (!stream)
        return errno == ENOENT ? INVAR_OK : fail_list(path, errno);
    while (errno = 0, (entry = readdir(stream)) != NULL)
        keep_template(files, entry->d_name);
    code = errno;
    (void)closedir(stream);
    if (code)
        return fail_list(path, code);
    for (int64_t i = 0; i < files->n_names; i++)
        INVAR_TRY(invar_hf_files_add(files, dir, files->names[i]));
    return INVAR_OK;
}

void invar_hf_files_warning(char out[INVAR_HF_WARNING_SIZE], const invar_hf_files *files)
{
    out[0] = '\0';
    if (files->n_skipped)
        (void)snprintf(out, INVAR_HF_WARNING_SIZE,
                       INVAR_HF_TEMPLATES
                       ": %" PRId64 " chat template%s not handed on, as \"%s\": "
                       "a name is of A-Z a-z 0-9 . _ -, and there are at most %d",
                       files->n_skipped, files->n_skipped == 1 ? " is" : "s are",
                       files->skipped_name, INVAR_HF_MAX_TEMPLATES);
}

/* Removes the template from the tokenizer's settings, because another one is given. */
static invar_status drop_template(invar_checkpoint_blob *file)
{
    INVAR_AUTO_JSON json_t *settings = NULL;
    size_t bytes;
    char *text;

    INVAR_TRY(invar_json_parse_raw(&settings, CONFIG, file->data, file->bytes));
    if (json_object_del(settings, "chat_template") != 0)
        return INVAR_OK;
    INVAR_TRY(invar_json_dump(&text, &bytes, settings, JSON_INDENT(2), CONFIG));
    invar_free((void *)file->data);
    file->data = text;
    file->bytes = bytes;
    return INVAR_OK;
}

invar_status invar_hf_files_read(invar_hf_files *files, const char *dir, const char *chat_template)
{
    bool given = chat_template[0] != '\0';

    for (int i = 0; i < N_NAMES; i++) {
        int64_t before = files->count;
        if (given && strcmp(names[i], CHAT_TEMPLATE) == 0)
            INVAR_TRY(invar_error_of_key(add_path(files, chat_template, CHAT_TEMPLATE),
                                         "chat-template-path"));
        else if (!given || strcmp(names[i], OLD_TEMPLATE) != 0)
            INVAR_TRY(invar_hf_files_add(files, dir, names[i]));
        if (given && strcmp(names[i], CONFIG) == 0 && files->count > before)
            INVAR_TRY(drop_template(&files->items[before]));
    }
    return given ? INVAR_OK : add_templates(files, dir);
}

/* ---- writing --------------------------------------------------------------------------------- */

invar_status invar_hf_files_write(const invar_hf_files *files, const char *dir)
{
    char path[INVAR_PATH_SIZE];

    if (files && files->n_names > 0) {
        INVAR_TRY(invar_path_join(path, sizeof path, dir, INVAR_HF_TEMPLATES));
        INVAR_TRY(invar_held_folder_make(path));
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
    invar_free(files->config);
    *files = (invar_hf_files){.count = 0};
}
