/*
 * repo.c - opens a git repository read-only and explains the errors of libgit2.
 *
 * The repository is chosen by the path alone; GIT_DIR and related variables are ignored. Errors of
 * libgit2 are mapped to statuses and to a remedy for shallow clones, partial clones, foreign owners
 * and damaged repositories.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // realpath

#include "bisect/git/repo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "bisect/git/git.h"

#include "base/invar_banned.h"

#define SHALLOW_BYTES (64u << 20)
#define DIGITS (INVAR_OID_SIZE - 1)

/* ---- errors ---------------------------------------------------------------------------------- */

static const char *last_text(void)
{
    const git_error *last = INVAR_GIT(error_last)();

    return last && last->message ? last->message : "no reason given";
}

static int note_entry(const git_config_entry *entry, void *payload)
{
    (void)entry;
    *(bool *)payload = true;
    return 0;
}

/* Returns true if the repository is a partial clone, which may lack objects. */
static bool is_partial(git_repository *git)
{
    git_config *config = NULL;
    bool found = false;

    if (!git || INVAR_GIT(repository_config_snapshot)(&config, git) != 0)
        return false;
    INVAR_GIT(config_foreach_match)
    (config, "^(extensions\\.partialclone|remote\\..+\\.promisor)$", note_entry, &found);
    INVAR_GIT(config_free)(config);
    return found;
}

/* Extracts the id from the libgit2 message "object not found - no match for id (ID)". */
static void parse_missing_id(char out[INVAR_OID_SIZE], const char *text)
{
    const char *open = strrchr(text, '(');
    size_t length = open ? strspn(open + 1, "0123456789abcdef") : 0;

    if (length > DIGITS)
        length = DIGITS;
    if (length)
        memcpy(out, open + 1, length);
    out[length] = '\0';
}

static invar_status fail_missing(git_repository *git, const char *shown, int code)
{
    char id[INVAR_OID_SIZE];

    parse_missing_id(id, last_text());
    if (is_partial(git))
        return INVAR_FAIL(INVAR_E_STATE, code,
                          "%s: object %s is not here: the clone is partial, "
                          "'git fetch --refetch --no-filter' gets the rest",
                          shown, id);
    return INVAR_FAIL(INVAR_E_CORRUPT, code,
                      "%s: object %s is missing: the repository is damaged, see 'git fsck --full'",
                      shown, id);
}

invar_status invar_git_fail(git_repository *git, const char *shown, int code, const char *what)
{
    const git_error *last = INVAR_GIT(error_last)();
    int area = last ? last->klass : GIT_ERROR_NONE;
    char text[80];
    invar_status status = INVAR_E_GIT;

    if (code == GIT_ENOTFOUND && area == GIT_ERROR_ODB)
        return fail_missing(git, shown, code);
    invar_text_quote(text, sizeof text, last_text(), strlen(last_text()));
    if (area == GIT_ERROR_NOMEMORY)
        status = INVAR_E_NOMEM;
    else if (area == GIT_ERROR_OS || area == GIT_ERROR_FILESYSTEM)
        status = INVAR_E_IO;
    else if (area == GIT_ERROR_ODB || area == GIT_ERROR_ZLIB || area == GIT_ERROR_OBJECT ||
             area == GIT_ERROR_TREE)
        return INVAR_FAIL(INVAR_E_CORRUPT, code, "%s: %s: %s; see 'git fsck --full'", shown, what,
                          text);
    return INVAR_FAIL(status, code, "%s: %s: %s", shown, what, text);
}

invar_status invar_git_fail_shallow(const invar_repo *repo, const char *what)
{
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "%s: %s: the clone is shallow and its history ends too early, "
                      "'git fetch --unshallow' gets the rest",
                      repo->display_path, what);
}

/* ---- opening --------------------------------------------------------------------------------- */

static invar_status fail_open(const char *path, int code)
{
    char shown[INVAR_PATH_SHOWN_SIZE], text[80];

    invar_path_show(shown, path);
    invar_text_quote(text, sizeof text, last_text(), strlen(last_text()));
    // libgit2 1.5 returns another code if safe.directory is not set at all
    if (code == GIT_EOWNER || strstr(last_text(), "safe.directory"))
        return INVAR_FAIL(INVAR_E_STATE, code,
                          "%s: the repository belongs to another user; "
                          "'git config --global --add safe.directory FOLDER' allows its use",
                          shown);
    if (code == GIT_ENOTFOUND && !invar_path_exists(path))
        return INVAR_FAIL(INVAR_E_NOTFOUND, code, "%s: no such file or folder", shown);
    if (code == GIT_ENOTFOUND)
        return INVAR_FAIL(INVAR_E_NOTFOUND, code,
                          "%s: there is no git repository here or above: work in one, or name one "
                          "with --repo",
                          shown);
    if (strstr(last_text(), "unsupported"))
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, code,
                          "%s: %s: a clone with SHA-1 ids and refs in files can be read", shown,
                          text);
    return invar_git_fail(NULL, shown, code, "the repository cannot be opened");
}

invar_status invar_git_open(git_repository **out, const char *path, unsigned flags)
{
    int code;

    *out = NULL;
    INVAR_TRY(invar_git_start());
    code = INVAR_GIT(repository_open_ext)(out, path, flags, NULL);
    return code ? fail_open(path, code) : INVAR_OK;
}

/* Resolves to an absolute path without links and without a trailing slash. */
static invar_status real_path(char out[INVAR_PATH_SIZE], const char *path)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    if (realpath(path, out)) // writes at most PATH_MAX bytes, which is INVAR_PATH_SIZE
        return INVAR_OK;
    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_IO, 0, "%s: the folder cannot be found", shown);
}

/*
 * Reads the file "shallow", one id per line, which is in the common folder even for a linked work
 * tree.
 */
static invar_status read_shallow(invar_repo *repo)
{
    char path[INVAR_PATH_SIZE], *text = NULL;
    size_t bytes = 0;
    invar_status status;

    INVAR_TRY(invar_path_join(path, sizeof path, repo->folder, "shallow"));
    if (!invar_path_exists(path))
        return INVAR_OK;
    status = invar_file_read(&text, &bytes, path, SHALLOW_BYTES);
    for (const char *at = text; status == INVAR_OK && *at; at += strspn(at, "\n")) {
        size_t length = strcspn(at, "\n");
        git_oid id;
        if (length == DIGITS && INVAR_GIT(oid_fromstrn)(&id, at, DIGITS) == 0)
            status = invar_git_add_shallow(repo, &id);
        at += length;
    }
    invar_free(text);
    return status;
}

invar_status invar_repo_open(invar_repo **out, const char *path)
{
    invar_repo *repo = NULL;
    const char *work_tree;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(repo, 1, "a repository"));
    status = invar_git_open(&repo->git, path, 0);
    if (status == INVAR_OK)
        status = real_path(repo->folder, INVAR_GIT(repository_commondir)(repo->git));
    work_tree = status == INVAR_OK ? INVAR_GIT(repository_workdir)(repo->git) : NULL;
    if (work_tree)
        status = real_path(repo->work_tree, work_tree);
    if (status == INVAR_OK) {
        invar_path_show(repo->display_path, repo->work_tree[0] ? repo->work_tree : repo->folder);
        status = read_shallow(repo);
    }
    if (status != INVAR_OK) {
        invar_repo_close(repo);
        return status;
    }
    *out = repo;
    return INVAR_OK;
}

void invar_repo_close(invar_repo *repo)
{
    if (!repo)
        return;
    for (size_t i = 0; i < repo->n_modules; i++)
        INVAR_GIT(repository_free)(repo->modules[i]);
    invar_free(repo->modules);
    invar_git_graph_release(&repo->graph);
    if (repo->git) // otherwise libgit2 may not be loaded
        INVAR_GIT(repository_free)(repo->git);
    invar_free(repo);
}

const char *invar_repo_folder(const invar_repo *repo)
{
    return repo->folder;
}

const char *invar_repo_work_tree(const invar_repo *repo)
{
    return repo->work_tree[0] ? repo->work_tree : NULL;
}

/* ---- commits --------------------------------------------------------------------------------- */

invar_status invar_git_oid(git_oid *out, const char *id)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    if (strlen(id) == DIGITS && INVAR_GIT(oid_fromstr)(out, id) == 0)
        return INVAR_OK;
    invar_text_quote(quoted, sizeof quoted, id, strlen(id));
    return INVAR_FAIL(INVAR_E_INVALID, 0, "'%s' is no object id", quoted);
}

invar_status invar_git_commit(invar_git_raw_commit *out, invar_repo *repo, const char *id)
{
    git_oid oid;

    INVAR_TRY(invar_git_oid(&oid, id));
    INVAR_TRY(invar_git_raw_commit_open(out, repo->git, &oid, repo->display_path));
    if (!out->object)
        return INVAR_FAIL(INVAR_E_NOTFOUND, GIT_ENOTFOUND, "%s: there is no commit %s",
                          repo->display_path, id);
    return INVAR_OK;
}

invar_status invar_repo_tree(char out[INVAR_OID_SIZE], invar_repo *repo, const char *commit)
{
    invar_git_raw_commit found;

    INVAR_TRY(invar_git_commit(&found, repo, commit));
    INVAR_GIT(oid_tostr)(out, INVAR_OID_SIZE, &found.tree);
    invar_git_raw_commit_close(&found);
    return INVAR_OK;
}
