/*
 * ab_side.c - one side of an A/B experiment: parses its name, builds its program, reads its recipe.
 *
 * A side is a folder, an executable file or a revision. A revision is resolved once and built in a
 * worktree, a folder is copied first, and a file is copied as it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // S_IFMT

#include "bisect/ab/ab_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/recipe/flatten.h"
#include "base/text.h"

#include "base/invar_banned.h"

/* ---- the name -------------------------------------------------------------------------------- */

static const struct {
    const char *prefix;
    invar_ab_kind kind;
} prefixes[] = {{"rev:", INVAR_AB_COMMIT}, {"dir:", INVAR_AB_FOLDER}, {"file:", INVAR_AB_FILE}};

/* Returns true if the path is a file of this type: S_IFDIR or S_IFREG. */
static bool has_type(const char *path, mode_t type)
{
    struct stat info;

    return stat(path, &info) == 0 && (info.st_mode & S_IFMT) == type;
}

static invar_status check_kind(const invar_ab_side *side)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, side->given);
    if (side->kind == INVAR_AB_FOLDER && !has_type(side->given, S_IFDIR))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s is no folder", shown);
    if (side->kind == INVAR_AB_FILE && !has_type(side->given, S_IFREG))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s is no file", shown);
    if (side->kind == INVAR_AB_FILE && access(side->given, X_OK) != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s is not executable", shown);
    return INVAR_OK;
}

invar_status invar_ab_side_read(invar_ab_side *out, const char *text)
{
    bool said = false;

    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes && !said; i++) {
        size_t bytes = strlen(prefixes[i].prefix);
        said = strncmp(text, prefixes[i].prefix, bytes) == 0;
        if (said) {
            out->kind = prefixes[i].kind;
            text += bytes;
        }
    }
    if (!said)
        out->kind = has_type(text, S_IFDIR)                              ? INVAR_AB_FOLDER
                    : has_type(text, S_IFREG) && access(text, X_OK) == 0 ? INVAR_AB_FILE
                                                                         : INVAR_AB_COMMIT;
    if (text[0] == '\0')
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a side is named by a revision, a folder or a file");
    if (snprintf(out->given, sizeof out->given, "%s", text) >= (int)sizeof out->given)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the name \"%.60s...\" is too long", text);
    return check_kind(out);
}

invar_status invar_ab_side_resolve(invar_ab_side *side, invar_repo *repo)
{
    char id[INVAR_OID_SIZE], shown[INVAR_PATH_SHOWN_SIZE], message[INVAR_ERROR_MESSAGE_SIZE];
    invar_status status;

    if (side->kind != INVAR_AB_COMMIT)
        return INVAR_OK;
    status = invar_repo_resolve(id, repo, side->given);
    if (status == INVAR_E_NOTFOUND && has_type(side->given, S_IFREG)) {
        invar_path_show(shown, side->given);
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s is a file that is not executable, and no revision", shown);
    }
    if (status == INVAR_E_NOTFOUND) { // an unknown revision is an error of the user
        memcpy(message, invar_error_last()->message, sizeof message);
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s", message);
    }
    INVAR_TRY(status);
    return invar_repo_describe(&side->commit, repo, id);
}

invar_status invar_ab_side_build(invar_ab_side *side, invar_workspace *workspace,
                                 invar_worktree *worktree, invar_repo *repo,
                                 const invar_ab_case *what, const invar_ab_options *options)
{
    const invar_build_plan how = {.command = what->build,
                                  .program = what->program ? what->program : "@invar",
                                  .timeout = what->timeout,
                                  .threads = options->threads};

    switch (side->kind) {
    case INVAR_AB_COMMIT:
        return invar_workspace_program(&side->built, workspace, worktree, repo, side->commit.id,
                                       &how, options->stop);
    case INVAR_AB_FOLDER:
        return invar_workspace_program_of_folder(&side->built, workspace, worktree, side->given,
                                                 &how, options->stop);
    case INVAR_AB_FILE: break;
    }
    return invar_workspace_program_of_file(&side->built, workspace, side->given);
}

/* ---- the recipe ------------------------------------------------------------------------------ */

const char *invar_ab_side_names(const invar_ab_case *what, int side)
{
    return side == INVAR_AB_B && what->recipe_b ? what->recipe_b : what->recipe;
}

invar_status invar_ab_side_recipe(char **out, size_t *bytes_out, const invar_ab_side *side,
                                  const char *path, bool own_recipe, invar_worktree *worktree,
                                  invar_repo *repo)
{
    char inside[INVAR_PATH_SIZE];

    if (!own_recipe)
        return invar_recipe_flatten(out, bytes_out, path);
    if (side->kind == INVAR_AB_FILE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a program has no tree with a recipe of its own");
    if (side->kind == INVAR_AB_COMMIT)
        INVAR_TRY(invar_repo_checkout(repo, side->commit.id, worktree->source));
    INVAR_TRY(invar_path_join(inside, sizeof inside,
                              side->kind == INVAR_AB_COMMIT ? worktree->source : side->given,
                              path));
    return invar_recipe_flatten(out, bytes_out, inside);
}

invar_status invar_ab_number(int64_t *out, const char *const *flags, const char *recipe,
                             const char *key, int64_t fallback)
{
    char text[32], quoted[INVAR_TEXT_QUOTE_SIZE], *end;

    *out = fallback;
    if (!invar_workspace_value_copy(text, sizeof text, flags, recipe, key))
        return INVAR_OK;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || *out < 0) {
        invar_text_quote(quoted, sizeof quoted, text, strlen(text));
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s = %s is no whole number from 0 on", key, quoted);
    }
    return INVAR_OK;
}
