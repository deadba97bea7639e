/*
 * checkout.c - checks out a commit and its submodules into a folder, without git's filters.
 *
 * File contents are the bytes of the blobs, as in `git archive` without attributes: no line ending
 * conversion, no filters, and a Git LFS pointer stays a pointer. Attributes and index of the work
 * tree are not read, so the same commit always gives the same bytes.
 *
 * The commit of a submodule may come from any repository of a submodule that has it; the id proves
 * that it is the right one, even if the submodule had another name at that time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // realpath

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "bisect/git/files.h"
#include "bisect/git/git.h"

#include "base/invar_banned.h"

#define MAX_DEPTH 256 /* largest nesting depth of folders */
#define MAX_MODULE_DEPTH                                                                           \
    12 /* folders below .git/modules; names of submodules may contain
                               slashes */
#define MAX_MODULES 4096

/* ---- repositories of submodules -------------------------------------------------------------- */

static bool is_folder(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Adds the repository at `path` if it can be opened, up to MAX_MODULES of them. */
static invar_status try_module(invar_repo *repo, const char *path, unsigned flags)
{
    const int64_t count = (int64_t)repo->n_modules;
    git_repository *module = NULL;
    invar_status status;

    if (count >= MAX_MODULES ||
        INVAR_GIT(repository_open_ext)(&module, path, flags | GIT_REPOSITORY_OPEN_NO_SEARCH,
                                       NULL) != 0)
        return INVAR_OK;
    status = INVAR_GROW(repo->modules, repo->modules_capacity, count, count + 1, "submodules");
    if (status == INVAR_OK)
        repo->modules[repo->n_modules++] = module;
    else
        INVAR_GIT(repository_free)(module);
    return status;
}

/* Finds all repositories below a folder `modules`, and recursively below their own. */
static invar_status find_modules(invar_repo *repo, const char *folder, int depth)
{
    DIR *entries = depth < MAX_MODULE_DEPTH ? opendir(folder) : NULL;
    char path[INVAR_PATH_SIZE], inner[INVAR_PATH_SIZE];
    invar_status status = INVAR_OK;
    const struct dirent *entry;

    while (entries && status == INVAR_OK && (entry = readdir(entries)) != NULL) {
        if (entry->d_name[0] == '.' ||
            invar_path_join(path, sizeof path, folder, entry->d_name) != INVAR_OK ||
            !is_folder(path) || invar_path_join(inner, sizeof inner, path, "objects") != INVAR_OK)
            continue;
        bool found = is_folder(inner);
        if (found)
            // bare, because the work tree of a submodule may have been moved or removed
            status = try_module(repo, path, GIT_REPOSITORY_OPEN_BARE);
        if (status == INVAR_OK && found)
            status = invar_path_join(inner, sizeof inner, path, "modules");
        if (status == INVAR_OK)
            status = find_modules(repo, found ? inner : path, depth + 1);
    }
    if (entries)
        closedir(entries);
    return status;
}

static invar_status find_all_modules(invar_repo *repo)
{
    char path[INVAR_PATH_SIZE];

    if (repo->modules_known)
        return INVAR_OK;
    INVAR_TRY(invar_path_join(path, sizeof path, repo->folder, "modules"));
    INVAR_TRY(find_modules(repo, path, 0));
    // a linked work tree has submodule repositories of its own
    INVAR_TRY(invar_path_join(path, sizeof path, INVAR_GIT(repository_path)(repo->git), "modules"));
    if (strcmp(INVAR_GIT(repository_path)(repo->git), INVAR_GIT(repository_commondir)(repo->git)) !=
        0)
        INVAR_TRY(find_modules(repo, path, 0));
    repo->modules_known = true;
    return INVAR_OK;
}

/* Finds a repository of a submodule that has the commit. *out is NULL if no repository has it. */
static invar_status find_commit(git_repository **out, const invar_repo *repo, const git_oid *id)
{
    git_odb_object *found = NULL;

    *out = NULL;
    for (size_t i = 0; i < repo->n_modules && !*out; i++) {
        INVAR_TRY(invar_git_read(&found, repo->modules[i], id, repo->display_path));
        if (found)
            *out = repo->modules[i];
        INVAR_GIT(odb_object_free)(found);
    }
    return INVAR_OK;
}

/* Finds the repository that has the commit of the submodule at `path`, or fails with a remedy. */
static invar_status find_module(git_repository **out, invar_repo *repo, const char *path,
                                const git_oid *id)
{
    char place[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE], hex[INVAR_OID_SIZE];

    INVAR_TRY(find_all_modules(repo));
    INVAR_TRY(find_commit(out, repo, id));
    // a submodule that was created in the work tree keeps its .git there
    if (!*out && repo->work_tree[0]) {
        INVAR_TRY(invar_path_join(place, sizeof place, repo->work_tree, path));
        INVAR_TRY(try_module(repo, place, 0));
        INVAR_TRY(find_commit(out, repo, id));
    }
    if (*out)
        return INVAR_OK;
    INVAR_GIT(oid_tostr)(hex, 13, id);
    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_NOTFOUND, GIT_ENOTFOUND,
                      "submodule %s: commit %s is not here: 'git submodule update --init "
                      "--recursive' or 'git fetch --recurse-submodules=yes' gets it",
                      shown, hex);
}

/* ---- files of a commit ----------------------------------------------------------------------- */

typedef struct tree_walk {
    invar_repo *repo;
    git_repository *git; /* repository of the current commit */
    invar_files *files;
    bool modules;  /* the current commit has a .gitmodules file */
    size_t length; /* length of the folder of the current commit in `path`, with its slash */
    char path[INVAR_PATH_SIZE];
    invar_status status;
} tree_walk;

static invar_status list_commit(tree_walk *l, git_repository *git, const git_oid *id);

static invar_status add_file(tree_walk *l, const git_tree_entry *entry, invar_files_mode mode)
{
    char id[INVAR_OID_SIZE];

    INVAR_GIT(oid_tostr)(id, sizeof id, INVAR_GIT(tree_entry_id)(entry));
    return invar_files_add(l->files, l->path, mode, id, l->git);
}

/* A gitlink without .gitmodules becomes an empty folder, as in git. */
static invar_status add_module(tree_walk *l, const git_oid *id)
{
    const tree_walk outer = {.git = l->git, .modules = l->modules, .length = l->length};
    const size_t length = strlen(l->path);
    git_repository *module;

    if (!l->modules)
        return invar_files_add(l->files, l->path, INVAR_FILES_FOLDER, "", NULL);
    INVAR_TRY(find_module(&module, l->repo, l->path, id));
    l->length = (size_t)snprintf(l->path + length, sizeof l->path - length, "/") + length;
    INVAR_TRY(list_commit(l, module, id));
    l->git = outer.git;
    l->modules = outer.modules;
    l->length = outer.length;
    return INVAR_OK;
}

/* Adds an entry of a tree at l->path; the entries of a folder follow it. */
static invar_status add_entry(tree_walk *l, const git_tree_entry *entry)
{
    switch (INVAR_GIT(tree_entry_filemode)(entry)) {
    case GIT_FILEMODE_TREE: return INVAR_OK;
    case GIT_FILEMODE_BLOB: return add_file(l, entry, INVAR_FILES_PLAIN);
    case GIT_FILEMODE_BLOB_EXECUTABLE: return add_file(l, entry, INVAR_FILES_PROGRAM);
    case GIT_FILEMODE_LINK: return add_file(l, entry, INVAR_FILES_LINK);
    case GIT_FILEMODE_COMMIT: return add_module(l, INVAR_GIT(tree_entry_id)(entry));
    default:
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: a tree has an entry of an unknown kind",
                          l->repo->display_path);
    }
}

/* Callback of git_tree_walk. `folder` is empty or ends with a slash. */
static int visit_entry(const char *folder, const git_tree_entry *entry, void *payload)
{
    tree_walk *l = payload;
    const char *name = INVAR_GIT(tree_entry_name)(entry);
    const size_t room = sizeof l->path - l->length;
    int depth = 0, bytes = snprintf(l->path + l->length, room, "%s%s", folder, name);

    for (const char *at = l->path; (at = strchr(at, '/')); at++)
        depth++;
    // every git command that a build runs would obey a .git from the repository
    if (strchr(name, '/') || strcasecmp(name, ".git") == 0)
        l->status =
            INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: a tree has a file that must not be, '%.20s'",
                       l->repo->display_path, name);
    else if ((size_t)bytes >= room || depth >= MAX_DEPTH)
        l->status = INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: a tree has paths that are too long",
                               l->repo->display_path);
    else
        l->status = add_entry(l, entry);
    return l->status == INVAR_OK ? 0 : GIT_EUSER;
}

static invar_status list_commit(tree_walk *l, git_repository *git, const git_oid *id)
{
    invar_git_raw_commit commit;
    git_tree *tree = NULL;
    int code = GIT_ENOTFOUND;

    INVAR_TRY(invar_git_raw_commit_open(&commit, git, id, l->repo->display_path));
    if (commit.object)
        code = INVAR_GIT(tree_lookup)(&tree, git, &commit.tree);
    invar_git_raw_commit_close(&commit);
    if (code)
        return invar_git_fail(git, l->repo->display_path, code, "a commit cannot be read");
    l->modules = INVAR_GIT(tree_entry_byname)(tree, ".gitmodules") != NULL;
    l->git = git;
    code = INVAR_GIT(tree_walk)(tree, GIT_TREEWALK_PRE, visit_entry, l);
    INVAR_GIT(tree_free)(tree);
    return l->status != INVAR_OK || !code
               ? l->status
               : invar_git_fail(git, l->repo->display_path, code, "a tree cannot be read");
}

/* ---- contents -------------------------------------------------------------------------------- */

static invar_status read_blob(git_odb_object **out, const invar_repo *repo,
                              const invar_files_entry *entry)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    git_oid id;

    INVAR_TRY(invar_git_oid(&id, entry->id));
    invar_path_show(shown, entry->path);
    INVAR_TRY(invar_git_read(out, entry->from, &id, shown));
    return *out ? INVAR_OK
                : invar_git_fail(entry->from, repo->display_path, GIT_ENOTFOUND,
                                 "a file cannot be read");
}

static invar_status put_blob(void *payload, const invar_files_entry *entry, int fd,
                             const char *path)
{
    git_odb_object *blob;
    invar_status status;

    INVAR_TRY(read_blob(&blob, payload, entry));
    status = invar_files_put(fd, INVAR_GIT(odb_object_data)(blob), INVAR_GIT(odb_object_size)(blob),
                             path);
    INVAR_GIT(odb_object_free)(blob);
    return status;
}

static invar_status link_blob(void *payload, const invar_files_entry *entry,
                              char out[INVAR_PATH_SIZE])
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    git_odb_object *blob;
    size_t length;
    bool fine;

    INVAR_TRY(read_blob(&blob, payload, entry));
    length = INVAR_GIT(odb_object_size)(blob);
    fine = length > 0 && length < INVAR_PATH_SIZE &&
           !memchr(INVAR_GIT(odb_object_data)(blob), 0, length);
    if (fine) {
        memcpy(out, INVAR_GIT(odb_object_data)(blob), length);
        out[length] = '\0';
    }
    INVAR_GIT(odb_object_free)(blob);
    if (fine)
        return INVAR_OK;
    invar_path_show(shown, entry->path);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "'%s' is a link to what cannot be a path", shown);
}

/* Rejects a folder that contains the repository, because a checkout empties the folder. */
static invar_status check_target_folder(const invar_repo *repo, const char *folder)
{
    char real[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];

    if (!realpath(folder, real)) // the folder does not exist yet
        return INVAR_OK;
    if (!invar_files_is_inside(repo->folder, real) && !invar_files_is_inside(repo->work_tree, real))
        return INVAR_OK;
    invar_path_show(shown, folder);
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the repository itself lies there", shown);
}

invar_status invar_repo_checkout(invar_repo *repo, const char *commit, const char *folder)
{
    invar_files files = {NULL, 0, 0, NULL};
    invar_files_source source = {put_blob, link_blob, repo};
    tree_walk *l = NULL;
    git_oid id;
    invar_status status;

    INVAR_TRY(invar_git_oid(&id, commit));
    INVAR_TRY(check_target_folder(repo, folder));
    INVAR_TRY(INVAR_ALLOC_ZEROED(l, 1, "a checkout"));
    l->repo = repo;
    l->files = &files;
    status = list_commit(l, repo->git, &id);
    invar_free(l);
    if (status == INVAR_OK)
        status = invar_files_checkout(folder, &files, &source);
    invar_files_release(&files);
    return status;
}
