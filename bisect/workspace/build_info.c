/*
 * build_info.c - writes and copies PROGRAM.build, which records the sources of a program.
 *
 * A build in a worktree has no .git, so commit, tree, author and subject are written here, whatever
 * the build recorded. Compiler, flags, version and type are taken from the file that the build
 * wrote, if it wrote one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // realpath

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/process/module.h"
#include "base/text.h"
#include "bisect/workspace/workspace_internal.h"

#include "base/invar_banned.h"

#define BUILD_FILE_BYTES 1048576

/*
 * Formats the file. Compiler entries come from the build; the rest is known better here, because
 * the worktree has no .git.
 */
static size_t format_build_info(char *out, size_t size, const char *tree,
                                const invar_repo_commit *about, const char *built)
{
    static const char *const kept[] = {"compiler", "flags", "version", "type"};
    char when[24] = "";
    size_t used;

    if (about)
        (void)snprintf(when, sizeof when, "%" PRId64, about->when);
    used = (size_t)snprintf(
        out, size,
        "# From what the program beside this file was built.\n[build]\ncommit = %s\ntree = %s\n"
        "commit-time = %s\nauthor = %s\nsubject = %s\ndirty = %s\n",
        about ? about->id : "", tree, when, about ? about->author : "", about ? about->subject : "",
        about ? "clean" : "unknown");
    for (int i = 0; i < 4; i++) {
        size_t bytes;
        const char *value = invar_workspace_value(&bytes, NULL, built, kept[i]);
        used += (size_t)snprintf(out + used, size - used, "%s = ", kept[i]);
        invar_text_quote(out + used, bytes + 4, value ? value : "", bytes);
        used += strlen(out + used);
        out[used++] = '\n';
    }
    return used;
}

/* Reads the file that the build wrote next to the program. *out is NULL if it wrote none. */
static invar_status read_build_file(char **out, size_t *bytes_out, const char *program)
{
    char path[INVAR_PATH_SIZE];
    invar_status status;

    *out = NULL;
    *bytes_out = 0;
    invar_module_record(path, program, ".build");
    status = invar_file_read(out, bytes_out, path, BUILD_FILE_BYTES);
    if (status == INVAR_OK || status == INVAR_E_NOMEM)
        return status;
    invar_error_clear();
    return INVAR_OK;
}

invar_status invar_workspace_write_build_info(const char *to, const char *program, const char *tree,
                                              invar_repo *repo, const char *commit)
{
    char path[INVAR_PATH_SIZE], *built = NULL, *text = NULL;
    invar_repo_commit *about = NULL;
    size_t bytes = 0, size = 0;
    invar_status status = INVAR_OK;

    if (snprintf(path, sizeof path, "%s.build", to) >= (int)sizeof path)
        return INVAR_OK;
    if (repo)
        status = INVAR_ALLOC(about, 1, "a commit");
    if (status == INVAR_OK && repo)
        status = invar_repo_describe(about, repo, commit);
    if (status == INVAR_OK)
        status = read_build_file(&built, &bytes, program);
    size = bytes + sizeof *about + 1024;
    if (status == INVAR_OK)
        status = INVAR_ALLOC(text, size, "what a program was built from");
    if (status == INVAR_OK) {
        bytes = format_build_info(text, size, tree, about, built ? built : "");
        status = invar_file_write(path, text, bytes);
    }
    invar_free(text);
    invar_free(built);
    invar_free(about);
    return status;
}

static invar_status copy_build_file(const char *path, const char *to, const char *ending)
{
    char from[INVAR_PATH_SIZE], copy[INVAR_PATH_SIZE], *text = NULL;
    invar_status status;
    size_t bytes;

    invar_module_record(from, path, ending);
    (void)snprintf(copy, sizeof copy, "%s%s", to, ending);
    status = invar_file_read(&text, &bytes, from, 16 * (size_t)BUILD_FILE_BYTES);
    if (status == INVAR_OK)
        status = invar_file_write(copy, text, bytes);
    else if (status != INVAR_E_NOMEM)
        status = INVAR_OK; // the file does not exist
    if (status == INVAR_OK)
        invar_error_clear();
    invar_free(text);
    return status;
}

/* The files are next to the program itself, not next to a link to it such as /proc/self/exe. */
invar_status invar_workspace_copy_build_info(const char *to, const char *program)
{
    char file[PATH_MAX];

    if (realpath(program, file))
        program = file;
    INVAR_TRY(copy_build_file(program, to, ".build"));
    return copy_build_file(program, to, ".build.diff");
}
