/*
 * plugin_command.c - splits, locates and hashes the command line of a plug-in key.
 *
 * Of a program's arguments only the first file is hashed. Later ones may be logs or caches as well
 * as settings, and the digest must not change because the plug-in has written its log.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/plugin_command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"

#include "base/invar_banned.h"

/* ---- words ----------------------------------------------------------------------------------- */

/*
 * Splits `text` in place into words; word i begins at words[i]. `words` must have room for all
 * words and a NULL. Returns their number, or -1 if a quote is not closed.
 */
static int split_words(char **words, char *text)
{
    char *to = text;
    int count = 0;

    while (*text) {
        while (*text == ' ' || *text == '\t')
            text++;
        if (!*text)
            break;
        words[count++] = to;
        while (*text && *text != ' ' && *text != '\t') {
            char quote = *text == '"' || *text == '\'' ? *text++ : '\0';
            if (!quote) {
                *to++ = *text++;
                continue;
            }
            while (*text && *text != quote)
                *to++ = *text++;
            if (!*text++)
                return -1;
        }
        text += *text != '\0'; // skip the blank before the end of the word overwrites it
        *to++ = '\0';
    }
    words[count] = NULL;
    return count;
}

invar_status invar_plugin_argv_split(invar_plugin_argv *out, const char *name, const char *text)
{
    size_t bytes = strlen(text) + 1;
    int count;

    INVAR_TRY(INVAR_ALLOC(out->text, bytes, "a command"));
    INVAR_TRY(INVAR_ALLOC(out->words, bytes / 2 + 2, "a command's words"));
    memcpy(out->text, text, bytes);
    count = split_words(out->words, out->text);
    if (count <= 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "plug-in %.1000s: %s", name,
                          count < 0 ? "the command has a quote without its end"
                                    : "the command is empty");
    out->count = (size_t)count;
    return INVAR_OK;
}

void invar_plugin_argv_release(invar_plugin_argv *command)
{
    invar_free(command->words);
    invar_free(command->text);
    *command = (invar_plugin_argv){0};
}

bool invar_plugin_argv_is_shared_object(const char *spec)
{
    size_t bytes = strlen(spec);

    return bytes > 3 && strcmp(spec + bytes - 3, ".so") == 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool is_file(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, R_OK) == 0;
}

/* Hashes a file if it is readable. */
static invar_status add_file(bool *found_out, invar_hasher *hasher, const char *path)
{
    invar_digest digest;
    int64_t bytes;

    if (!is_file(path))
        return INVAR_OK;
    INVAR_TRY(invar_file_hash(&digest, &bytes, path));
    invar_hasher_update(hasher, digest.bytes, sizeof digest.bytes);
    *found_out = true;
    return INVAR_OK;
}

/*
 * Writes PATH_ENTRY/program for the first entry of `at`, or "" if the entry is empty, and returns
 * the rest of the list.
 */
static const char *next_path_entry(char out[INVAR_PATH_SIZE], const char *at, const char *program)
{
    size_t bytes = strcspn(at, ":");

    out[0] = '\0';
    if (bytes > 0 && bytes + strlen(program) + 2 <= INVAR_PATH_SIZE) {
        memcpy(out, at, bytes);
        out[bytes] = '/';
        memcpy(out + bytes + 1, program, strlen(program) + 1);
    }
    return at + bytes + (at[bytes] == ':');
}

/* Hashes the program in the first folder of PATH that has it. */
static invar_status add_from_path(bool *found_out, invar_hasher *hasher, const char *program)
{
    const char *at = getenv("PATH");
    char path[INVAR_PATH_SIZE];

    while (at && *at && !*found_out) {
        at = next_path_entry(path, at, program);
        INVAR_TRY(add_file(found_out, hasher, path));
    }
    return INVAR_OK;
}

/* Returns 0, or the errno for which exec would fail. */
static int check_executable(const char *path)
{
    struct stat info;

    if (stat(path, &info) != 0)
        return errno;
    return S_ISREG(info.st_mode) && access(path, X_OK) == 0 ? 0 : EACCES;
}

invar_status invar_plugin_argv_find(const invar_plugin_argv *command, const char *name)
{
    const char *program = command->words[0], *at = getenv("PATH");
    char path[INVAR_PATH_SIZE], quote[INVAR_TEXT_QUOTE_SIZE * 2];
    int code = check_executable(program);

    if (!strchr(program, '/')) {
        code = ENOENT;
        for (at = at ? at : "/bin:/usr/bin"; *at && code; code = check_executable(path)) {
            at = next_path_entry(path, at, program);
            if (!path[0]) // an empty entry means the current folder
                (void)snprintf(path, sizeof path, "%s", program);
        }
    }
    if (!code)
        return INVAR_OK;
    invar_text_quote(quote, sizeof quote, program, strlen(program));
    return INVAR_FAIL(INVAR_E_IO, code, "plug-in %.1000s: cannot start %s: %s", name, quote,
                      strerror(code));
}

invar_status invar_plugin_argv_locate(const char *name, const char *spec)
{
    invar_plugin_argv command = {0};
    char shown[INVAR_PATH_SHOWN_SIZE];
    invar_status status;

    if (!invar_plugin_argv_is_shared_object(spec)) {
        status = invar_plugin_argv_split(&command, name, spec);
        if (status == INVAR_OK)
            status = invar_plugin_argv_find(&command, name);
        invar_plugin_argv_release(&command);
        return status;
    }
    if (invar_path_exists(spec))
        return INVAR_OK;
    invar_path_show(shown, spec);
    return INVAR_FAIL(INVAR_E_IO, 0, "plug-in %.1000s: cannot load it: %s%s: no such file", name,
                      strchr(spec, '/') ? "" : "./", shown);
}

static invar_status add_command(bool *found_out, invar_hasher *hasher,
                                const invar_plugin_argv *command)
{
    const char *program = command->words[0];
    bool script = false;

    if (strchr(program, '/'))
        INVAR_TRY(add_file(found_out, hasher, program));
    for (size_t i = 1; i < command->count && !script; i++)
        INVAR_TRY(add_file(&script, hasher, command->words[i]));
    *found_out = *found_out || script;
    return *found_out || strchr(program, '/') ? INVAR_OK
                                              : add_from_path(found_out, hasher, program);
}

invar_status invar_plugin_argv_hash(bool *found_out, invar_digest *out, const char *name,
                                    const char *spec)
{
    invar_plugin_argv command = {0};
    invar_hasher hasher;
    invar_status status;

    *found_out = false;
    invar_hasher_init(&hasher);
    if (invar_plugin_argv_is_shared_object(spec)) {
        INVAR_TRY(add_file(found_out, &hasher, spec));
    } else {
        status = invar_plugin_argv_split(&command, name, spec);
        if (status == INVAR_OK)
            status = add_command(found_out, &hasher, &command);
        invar_plugin_argv_release(&command);
        INVAR_TRY(status);
    }
    invar_hasher_final(out, &hasher);
    return INVAR_OK;
}
