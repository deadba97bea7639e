/*
 * launch_script.c - reads a launch script with the files that it sources, and returns the
 * arguments.
 *
 * All texts, words and variables are in one block of fixed size (invar_shell_state), which bounds
 * the memory of hostile scripts; every array has a limit with an error of its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/miles_import/launch_script.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "engine/config/miles_import/shell_vars.h"

#include "base/invar_banned.h"

/* ---- texts, words and variables -------------------------------------------------------------- */

static invar_status fail_too_many(const invar_shell_state *shell, const char *what, int most)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the script has more than %d %s",
                      shell->texts + shell->files[0], most, what);
}

invar_status invar_shell_state_put(invar_shell_state *shell, char byte)
{
    if (shell->used + 1 >= INVAR_SHELL_STATE_TEXTS)
        return fail_too_many(shell, "bytes of text, its variables written out",
                             INVAR_SHELL_STATE_TEXTS);
    shell->texts[shell->used++] = byte;
    return INVAR_OK;
}

invar_status invar_shell_state_text(uint32_t *out, invar_shell_state *shell, const char *text,
                                    size_t bytes)
{
    if (bytes + 1 >= INVAR_SHELL_STATE_TEXTS - shell->used)
        return fail_too_many(shell, "bytes of text, its variables written out",
                             INVAR_SHELL_STATE_TEXTS);
    *out = shell->used;
    memcpy(shell->texts + shell->used, text, bytes);
    shell->used += (uint32_t)bytes;
    shell->texts[shell->used++] = '\0';
    return INVAR_OK;
}

invar_status invar_shell_state_add(invar_shell_token_list *list, invar_shell_state *shell,
                                   invar_shell_token word)
{
    int32_t at = shell->n_words;

    if (at == INVAR_SHELL_STATE_WORDS)
        return fail_too_many(shell, "words", INVAR_SHELL_STATE_WORDS);
    shell->words[at] = word;
    shell->words[at].next = -1;
    if (list->last >= 0)
        shell->words[list->last].next = at;
    else
        list->first = at;
    list->last = at;
    shell->n_words++;
    return INVAR_OK;
}

invar_shell_var *invar_shell_state_find(invar_shell_state *shell, const char *name, size_t bytes)
{
    for (int i = 0; i < shell->n_names; i++) {
        const char *known = shell->texts + shell->names[i].name;
        if (strlen(known) == bytes && memcmp(known, name, bytes) == 0)
            return &shell->names[i];
    }
    return NULL;
}

invar_status invar_shell_state_define(invar_shell_var **out, invar_shell_state *shell,
                                      const char *name, size_t bytes)
{
    invar_shell_var made = {.words = {-1, -1}, .state = INVAR_LAUNCH_SCRIPT_UNSET};

    *out = invar_shell_state_find(shell, name, bytes);
    if (*out)
        return INVAR_OK;
    if (shell->n_names == INVAR_SHELL_STATE_NAMES)
        return fail_too_many(shell, "variables", INVAR_SHELL_STATE_NAMES);
    INVAR_TRY(invar_shell_state_text(&made.name, shell, name, bytes));
    shell->names[shell->n_names] = made;
    *out = &shell->names[shell->n_names++];
    return INVAR_OK;
}

static invar_status add_file(int *out, invar_shell_state *shell, const char *path)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    if (shell->n_files == INVAR_SHELL_STATE_FILES)
        return fail_too_many(shell, "files of source", INVAR_SHELL_STATE_FILES - 1);
    invar_path_show(shown, path);
    INVAR_TRY(invar_shell_state_text(&shell->files[shell->n_files], shell, shown, strlen(shown)));
    *out = shell->n_files++;
    return INVAR_OK;
}

invar_status invar_shell_state_source(invar_shell_state *shell, const char *path, bool conditional)
{
    char folder[INVAR_PATH_SIZE];
    char *text = NULL;
    size_t bytes;
    invar_status status;
    int file;

    INVAR_TRY(add_file(&file, shell, path));
    INVAR_TRY(invar_path_folder(folder, path));
    INVAR_TRY(invar_file_read(&text, &bytes, path, INVAR_LAUNCH_SCRIPT_MAX_BYTES));
    status = invar_shell_state_run(shell, file, folder, conditional, text, bytes);
    invar_free(text);
    return status;
}

/* ---- result ---------------------------------------------------------------------------------- */

/*
 * Collects the words of all arrays NAME_ARGS, in the order of definition, if no command starts
 * train.py.
 */
static invar_status collect_arg_arrays(invar_shell_state *shell)
{
    for (int i = 0; i < shell->n_names; i++) {
        const invar_shell_var *n = &shell->names[i];
        if (!n->array || !invar_text_has_suffix(shell->texts + n->name, "_ARGS"))
            continue;
        for (int32_t at = n->words.first; at >= 0; at = shell->words[at].next)
            INVAR_TRY(invar_shell_state_add(&shell->train, shell, shell->words[at]));
    }
    if (shell->train.first < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: there is no array NAME_ARGS=( ... ) with words and no train.py: is "
                          "it a launch script of Miles?",
                          shell->texts + shell->files[0]);
    return INVAR_OK;
}

static invar_status copy_words(invar_launch_word **out, int *count_out,
                               const invar_shell_state *shell, invar_shell_token_list list)
{
    int count = 0;

    for (int32_t at = list.first; at >= 0; at = shell->words[at].next)
        count++;
    INVAR_TRY(INVAR_ALLOC(*out, (size_t)count, "words of a script"));
    *count_out = count;
    count = 0;
    for (int32_t at = list.first; at >= 0; at = shell->words[at].next) {
        const invar_shell_token *w = &shell->words[at];
        (*out)[count++] =
            (invar_launch_word){shell->texts + w->text, shell->texts + shell->files[w->file],
                                w->line, (invar_launch_word_state)w->state};
    }
    return INVAR_OK;
}

static invar_status fill_script(invar_launch_script *out, invar_shell_state *shell)
{
    if (!shell->train_line)
        INVAR_TRY(collect_arg_arrays(shell));
    out->async = shell->async;
    INVAR_TRY(copy_words(&out->words, &out->count, shell, shell->train));
    return copy_words(&out->unread, &out->n_unread, shell, shell->unread);
}

static invar_status make_shell(invar_shell_state **out, invar_launch_script *script, bool follow)
{
    memset(script, 0, sizeof *script);
    INVAR_TRY(invar_alloc(&script->store, 1, sizeof **out, "script"));
    *out = script->store;
    // the other fields are written before they are read
    memset(*out, 0, offsetof(invar_shell_state, names));
    (*out)->unread = (*out)->train = (invar_shell_token_list){-1, -1};
    (*out)->follow = follow;
    return INVAR_OK;
}

static invar_status finish_script(invar_launch_script *out, invar_shell_state *shell,
                                  invar_status status)
{
    if (status == INVAR_OK)
        status = fill_script(out, shell);
    if (status != INVAR_OK)
        invar_launch_script_release(out);
    return status;
}

invar_status invar_launch_script_read(invar_launch_script *out, const char *path)
{
    invar_shell_state *shell;

    INVAR_TRY(make_shell(&shell, out, true));
    return finish_script(out, shell, invar_shell_state_source(shell, path, false));
}

invar_status invar_launch_script_parse(invar_launch_script *out, const char *file, const char *text,
                                       size_t bytes)
{
    invar_shell_state *shell;
    invar_status status;
    int index;

    INVAR_TRY(make_shell(&shell, out, false));
    status = add_file(&index, shell, file);
    if (status == INVAR_OK)
        status = invar_shell_state_run(shell, index, "", false, text, bytes);
    return finish_script(out, shell, status);
}

void invar_launch_script_release(invar_launch_script *script)
{
    invar_free(script->words);
    invar_free(script->unread);
    invar_free(script->store);
    memset(script, 0, sizeof *script);
}
