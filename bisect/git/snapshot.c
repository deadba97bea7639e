/*
 * snapshot.c - copies a work tree in its current state into a folder, without files that git
 * ignores.
 *
 * Tracked files are copied as they are on disk, and so are untracked files that are not ignored; a
 * nested repository (a submodule) is read with its own ignore rules. The source tree is only read.
 * Files are hashed first and copied later, and the copy is hashed again: a file that changes in
 * between is an error (INVAR_E_BUSY).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // realpath, readlink

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "bisect/git/files.h"
#include "bisect/git/git.h"

#include "base/invar_banned.h"

#define DEEPEST 256

/* Repository whose index and ignore rules apply; git is NULL if there is no repository. */
typedef struct ignore_rules {
    git_repository *git;
    git_index *index;
    size_t top; /* length of the work tree's path, without a trailing slash */
} ignore_rules;

typedef struct snapshot_job {
    char path[INVAR_PATH_SIZE]; /* absolute path of the current entry */
    size_t top;                 /* length of the path of `from` */
    size_t length;
    int depth;
    invar_files *files;
} snapshot_job;

/* ---- rules ----------------------------------------------------------------------------------- */

static void release_rules(ignore_rules *r)
{
    if (r->git) { // otherwise libgit2 may not be loaded
        INVAR_GIT(index_free)(r->index);
        INVAR_GIT(repository_free)(r->git);
    }
    memset(r, 0, sizeof *r);
}

/*
 * Finds the repository that contains `path`, or with NO_SEARCH the one at `path`. out->git is NULL
 * without one.
 */
static invar_status find_rules(ignore_rules *out, const char *path, unsigned flags)
{
    char shown[INVAR_PATH_SHOWN_SIZE], real[INVAR_PATH_SIZE];
    invar_status status = invar_git_open(&out->git, path, flags);
    int code;

    if (status == INVAR_E_NOTFOUND) {
        invar_error_clear();
        return INVAR_OK;
    }
    INVAR_TRY(status);
    if (!INVAR_GIT(repository_workdir)(out->git) ||
        !realpath(INVAR_GIT(repository_workdir)(out->git), real)) {
        release_rules(out);
        return INVAR_OK;
    }
    out->top = strlen(real);
    code = INVAR_GIT(repository_index)(&out->index, out->git);
    if (code == 0)
        return INVAR_OK;
    invar_path_show(shown, path);
    status = invar_git_fail(out->git, shown, code, "the index cannot be read");
    release_rules(out);
    return status;
}

/* Returns the path relative to the work tree. */
static const char *relative_path(const ignore_rules *r, const char *path)
{
    return path[r->top] == '/' ? path + r->top + 1 : path + r->top;
}

static bool is_tracked(const ignore_rules *r, const char *path, bool folder)
{
    char prefix[INVAR_PATH_SIZE + 1];
    const char *name = relative_path(r, path);

    // a submodule has one index entry; a folder is tracked if one of its files is
    if (INVAR_GIT(index_get_bypath)(r->index, name, 0))
        return true;
    snprintf(prefix, sizeof prefix, "%s/", name);
    return folder && INVAR_GIT(index_find_prefix)(NULL, r->index, prefix) == 0;
}

static invar_status is_wanted(bool *out, const ignore_rules *r, const char *path, bool folder)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    int ignored = 0, code;

    *out = true;
    if (!r->git || is_tracked(r, path, folder))
        return INVAR_OK;
    code = INVAR_GIT(ignore_path_is_ignored)(&ignored, r->git, relative_path(r, path));
    if (code) {
        invar_path_show(shown, path);
        return invar_git_fail(r->git, shown, code, "whether it is ignored cannot be told");
    }
    *out = !ignored;
    return INVAR_OK;
}

/* ---- contents -------------------------------------------------------------------------------- */

/* Destination of a copy. */
typedef struct copy_target {
    int fd;
    const char *path;
} copy_target;

static invar_status write_chunk(void *payload, const void *piece, size_t bytes)
{
    const copy_target *to = payload;

    return invar_files_put(to->fd, piece, bytes, to->path);
}

/* Hashes a file, and copies it to `to` unless that is NULL. */
static invar_status read_file(invar_digest *digest, const char *path, copy_target *to)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    invar_status status;
    int64_t bytes;

    if (fd < 0)
        return invar_path_fail(path, "cannot be opened");
    status = invar_fd_hash(digest, &bytes, fd, path, to ? write_chunk : NULL, to);
    close(fd);
    return status;
}

static invar_status read_link(invar_digest *digest, char out[INVAR_PATH_SIZE], const char *path)
{
    ssize_t length = readlink(path, out, INVAR_PATH_SIZE);

    if (length < 0)
        return invar_path_fail(path, "the link cannot be read");
    if (length >= INVAR_PATH_SIZE) {
        errno = ENAMETOOLONG;
        return invar_path_fail(path, "the link cannot be read");
    }
    out[length] = '\0';
    invar_hash_bytes(digest, out, (size_t)length);
    return INVAR_OK;
}

/* Sets t->path to the path of a list entry in the work tree. */
static invar_status set_source_path(snapshot_job *t, const invar_files_entry *entry)
{
    t->path[t->top] = '\0';
    return invar_path_join(t->path + t->top, sizeof t->path - t->top, "/", entry->path);
}

static invar_status check_unchanged(const invar_files_entry *entry, const invar_digest *digest)
{
    char hex[INVAR_DIGEST_HEX_SIZE], shown[INVAR_PATH_SHOWN_SIZE];

    invar_digest_format(hex, digest);
    if (strcmp(hex, entry->id) == 0)
        return INVAR_OK;
    invar_path_show(shown, entry->path);
    return INVAR_FAIL(INVAR_E_BUSY, 0, "%s: it changes while it is copied: try again", shown);
}

static invar_status put_file(void *payload, const invar_files_entry *entry, int fd,
                             const char *path)
{
    snapshot_job *t = payload;
    invar_digest digest;

    INVAR_TRY(set_source_path(t, entry));
    INVAR_TRY(read_file(&digest, t->path, &(copy_target){fd, path}));
    return check_unchanged(entry, &digest);
}

static invar_status link_file(void *payload, const invar_files_entry *entry,
                              char out[INVAR_PATH_SIZE])
{
    snapshot_job *t = payload;
    invar_digest digest;

    INVAR_TRY(set_source_path(t, entry));
    INVAR_TRY(read_link(&digest, out, t->path));
    return check_unchanged(entry, &digest);
}

/* ---- the walk -------------------------------------------------------------------------------- */

static invar_status list_folder(snapshot_job *t, const ignore_rules *r);

static invar_status list_file(snapshot_job *t, const struct stat *info)
{
    char target[INVAR_PATH_SIZE], hex[INVAR_DIGEST_HEX_SIZE];
    invar_files_mode mode = INVAR_FILES_LINK;
    invar_digest digest;

    if (S_ISLNK(info->st_mode)) {
        INVAR_TRY(read_link(&digest, target, t->path));
    } else {
        mode = info->st_mode & S_IXUSR ? INVAR_FILES_PROGRAM : INVAR_FILES_PLAIN;
        INVAR_TRY(read_file(&digest, t->path, NULL));
    }
    invar_digest_format(hex, &digest);
    return invar_files_add(t->files, t->path + t->top + 1, mode, hex, NULL);
}

/* Returns true if the current folder has an entry with that name. */
static bool folder_has(const snapshot_job *t, const char *name)
{
    char path[2 * INVAR_PATH_SIZE];

    snprintf(path, sizeof path, "%s/%s", t->path, name);
    return invar_path_exists(path);
}

static invar_status list_subfolder(snapshot_job *t, const ignore_rules *outer)
{
    ignore_rules inner = {NULL, NULL, 0};
    invar_status status;

    if (!outer->git && folder_has(t, "ledger.db"))
        return INVAR_OK; // a run folder
    if (folder_has(t, ".git"))
        INVAR_TRY(find_rules(&inner, t->path, GIT_REPOSITORY_OPEN_NO_SEARCH));
    status = list_folder(t, inner.git ? &inner : outer);
    release_rules(&inner);
    return status;
}

/* Adds t->path unless git ignores it. Sockets, pipes and devices are skipped. */
static invar_status list_entry(snapshot_job *t, const ignore_rules *r)
{
    struct stat info;
    bool wanted;

    if (lstat(t->path, &info) != 0)
        return errno == ENOENT ? INVAR_OK : invar_path_fail(t->path, "cannot be looked at");
    if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode))
        return INVAR_OK;
    INVAR_TRY(is_wanted(&wanted, r, t->path, S_ISDIR(info.st_mode)));
    if (!wanted)
        return INVAR_OK;
    return S_ISDIR(info.st_mode) ? list_subfolder(t, r) : list_file(t, &info);
}

static invar_status list_name(snapshot_job *t, const ignore_rules *r, const char *name)
{
    const size_t outer = t->length, length = strlen(name);
    invar_status status;

    if (outer + 1 + length >= sizeof t->path || t->depth >= DEEPEST) {
        errno = ENAMETOOLONG;
        return invar_path_fail(t->path, "what is below cannot be copied");
    }
    t->path[outer] = '/';
    memcpy(t->path + outer + 1, name, length + 1);
    t->length += 1 + length;
    t->depth++;
    status = list_entry(t, r);
    t->depth--;
    t->length = outer;
    t->path[outer] = '\0';
    return status;
}

static invar_status list_folder(snapshot_job *t, const ignore_rules *r)
{
    DIR *entries = opendir(t->path);
    invar_status status = INVAR_OK;
    const struct dirent *entry;
    bool empty = true;

    if (!entries)
        return invar_path_fail(t->path, "the folder cannot be read");
    while (status == INVAR_OK && (entry = readdir(entries)) != NULL) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        empty = false;
        if (strcmp(name, ".git") != 0)
            status = list_name(t, r, name);
    }
    closedir(entries);
    // git does not track empty folders
    if (status == INVAR_OK && empty && !r->git && t->length > t->top)
        status = invar_files_add(t->files, t->path + t->top + 1, INVAR_FILES_FOLDER, "", NULL);
    return status;
}

/* Lists all files of the work tree, with the rules of the repository that contains it. */
static invar_status list_work_tree(snapshot_job *t)
{
    ignore_rules r = {NULL, NULL, 0};
    bool wanted = true;
    invar_status status;

    INVAR_TRY(find_rules(&r, t->path, 0));
    // a folder that an outer repository ignores is not part of it
    status = r.git && t->length > r.top ? is_wanted(&wanted, &r, t->path, true) : INVAR_OK;
    if (!wanted)
        release_rules(&r);
    if (status == INVAR_OK)
        status = list_folder(t, &r);
    release_rules(&r);
    return status;
}

/* ---- the snapshot ---------------------------------------------------------------------------- */

/* Rejects nested folders: the copy would contain itself, or the checkout would empty the source. */
static invar_status check_target_folder(const char *from, const char *folder)
{
    char path[INVAR_PATH_SIZE], real[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];

    INVAR_TRY(invar_path_nearest_existing(path, folder)); // the folder need not exist yet
    if (!realpath(path, real))
        return invar_path_fail(path, "the folder cannot be found");
    if (!invar_files_is_inside(real, from) &&
        !(strcmp(path, folder) == 0 && invar_files_is_inside(from, real)))
        return INVAR_OK;
    invar_path_show(shown, folder);
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the copy must not lie in the tree that it copies",
                      shown);
}

static invar_status resolve_folder(char out[INVAR_PATH_SIZE], const char *path)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    struct stat info;

    if (realpath(path, out) && stat(out, &info) == 0 && S_ISDIR(info.st_mode))
        return INVAR_OK;
    out[0] = '\0';
    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "%s: there is no such folder", shown);
}

static void hash_contents(char out[INVAR_OID_SIZE], const invar_files *files)
{
    char hex[INVAR_DIGEST_HEX_SIZE], mode[16];
    invar_hasher hasher;
    invar_digest digest;

    invar_hasher_init(&hasher);
    for (size_t i = 0; i < files->count; i++) {
        const invar_files_entry *e = &files->entries[i];
        int bytes = snprintf(mode, sizeof mode, "%06o ", (unsigned)e->mode);
        invar_hasher_update(&hasher, mode, (size_t)bytes);
        invar_hasher_update(&hasher, e->id, strlen(e->id) + 1);
        invar_hasher_update(&hasher, e->path, strlen(e->path) + 1);
    }
    invar_hasher_final(&digest, &hasher);
    invar_digest_format(hex, &digest);
    snprintf(out, INVAR_OID_SIZE, "%s", hex);
}

invar_status invar_repo_snapshot(char hash_out[INVAR_OID_SIZE], const char *from,
                                 const char *folder)
{
    invar_files files = {NULL, 0, 0, NULL};
    snapshot_job *t = NULL;
    invar_files_source source = {put_file, link_file, NULL};
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_ZEROED(t, 1, "a snapshot"));
    t->files = &files;
    source.payload = t;
    status = resolve_folder(t->path, from);
    if (status == INVAR_OK)
        status = check_target_folder(t->path, folder);
    t->top = t->length = strlen(t->path);
    if (status == INVAR_OK)
        status = list_work_tree(t);
    if (status == INVAR_OK)
        status = invar_files_sort(&files);
    if (status == INVAR_OK)
        hash_contents(hash_out, &files);
    if (status == INVAR_OK)
        status = invar_files_checkout(folder, &files, &source);
    invar_files_release(&files);
    invar_free(t);
    return status;
}
