/*
 * write_files.c - makes a folder contain exactly the files of a list.
 *
 * Every folder on the way to a file is opened by name relative to its parent without following
 * links (openat, O_NOFOLLOW), so that a link left by a tree or a build cannot lead outside.
 * Unchanged files are recognized by the checkout index (files.h), which is removed before the first
 * change and written after the last.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // openat and related functions

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "bisect/git/files.h"

#include "base/invar_banned.h"

#define OPEN_FOLDER_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

typedef struct checkout_job {
    const char *folder;
    char index_path[INVAR_PATH_SIZE];
    bool changed;                 /* the checkout index has been removed */
    int top;                      /* descriptor of the folder */
    int inner;                    /* descriptor of the folder named by `parent`; -1 if closed */
    char parent[INVAR_PATH_SIZE]; /* relative path; empty for the folder itself */
} checkout_job;

invar_status invar_files_put(int fd, const void *data, size_t bytes, const char *path)
{
    return invar_fd_write(fd, data, bytes) == 0 ? INVAR_OK
                                                : invar_path_fail(path, "cannot be written");
}

/* Like invar_path_fail, for a path relative to the folder. */
static invar_status fail_at(const checkout_job *lay, const char *path, const char *what)
{
    int code = errno;
    char whole[2 * INVAR_PATH_SIZE];

    snprintf(whole, sizeof whole, "%s/%s", lay->folder, path);
    errno = code;
    return invar_path_fail(whole, what);
}

/* ---- folders --------------------------------------------------------------------------------- */

/*
 * Removes the checkout index durably before the first change: after a kill it must not describe a
 * folder that changed.
 */
static invar_status begin_changes(checkout_job *lay)
{
    char above[INVAR_PATH_SIZE];
    char *slash;

    if (lay->changed)
        return INVAR_OK;
    lay->changed = true;
    if (unlink(lay->index_path) != 0)
        return errno == ENOENT ? INVAR_OK : invar_path_fail(lay->index_path, "cannot be removed");
    memcpy(above, lay->index_path, strlen(lay->index_path) + 1);
    slash = strrchr(above, '/');
    if (!slash)
        return invar_held_folder_sync(".");
    slash[slash == above] = '\0';
    return invar_held_folder_sync(above);
}

static void close_parent(checkout_job *lay)
{
    if (lay->inner >= 0 && lay->inner != lay->top)
        close(lay->inner);
    lay->inner = -1;
}

/*
 * Opens the folder `name` in `fd`. With `make`, creates it and replaces a link or file of that
 * name. *out is -1 if it does not exist.
 */
static invar_status open_subfolder(int *out, checkout_job *lay, int fd, const char *name, bool make)
{
    bool in_the_way;

    *out = openat(fd, name, OPEN_FOLDER_FLAGS);
    if (*out >= 0 || !make)
        return *out >= 0 || errno == ENOENT || errno == ENOTDIR || errno == ELOOP
                   ? INVAR_OK
                   : fail_at(lay, lay->parent, "the folder cannot be opened");
    in_the_way = errno == ENOTDIR || errno == ELOOP;
    INVAR_TRY(begin_changes(lay));
    if (in_the_way && unlinkat(fd, name, 0) != 0)
        return fail_at(lay, lay->parent, "cannot be replaced by a folder");
    if (mkdirat(fd, name, 0777) != 0 && errno != EEXIST)
        return fail_at(lay, lay->parent, "the folder cannot be made");
    *out = openat(fd, name, OPEN_FOLDER_FLAGS);
    return *out >= 0 ? INVAR_OK : fail_at(lay, lay->parent, "the folder cannot be opened");
}

/* Opens the parent folder of a path as lay->inner; -1 if it does not exist and `make` is false. */
static invar_status open_parent(checkout_job *lay, const char *path, bool make)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    char name[INVAR_PATH_SIZE];

    if (lay->inner >= 0 && strlen(lay->parent) == length && memcmp(lay->parent, path, length) == 0)
        return INVAR_OK;
    close_parent(lay);
    memcpy(lay->parent, path, length);
    lay->parent[length] = '\0';
    int fd = lay->top;
    for (const char *at = lay->parent; fd >= 0 && *at;) {
        size_t part = strcspn(at, "/");
        int next;
        memcpy(name, at, part);
        name[part] = '\0';
        invar_status status = open_subfolder(&next, lay, fd, name, make);
        if (fd != lay->top)
            close(fd);
        INVAR_TRY(status);
        fd = next;
        at += part + (at[part] == '/');
    }
    lay->inner = fd;
    return INVAR_OK;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* ---- removing -------------------------------------------------------------------------------- */

/* Removes the parent folders that became empty. */
static invar_status remove_empty_parents(checkout_job *lay, const char *path)
{
    char rest[INVAR_PATH_SIZE];
    char *slash;

    snprintf(rest, sizeof rest, "%s", path);
    while ((slash = strrchr(rest, '/')) != NULL) {
        *slash = '\0';
        close_parent(lay);
        INVAR_TRY(open_parent(lay, rest, false));
        if (lay->inner < 0 || unlinkat(lay->inner, name_of(rest), AT_REMOVEDIR) != 0)
            return INVAR_OK; // the folder has other entries and stays
    }
    return INVAR_OK;
}

static invar_status remove_entry(checkout_job *lay, const invar_files_entry *entry)
{
    int flag = entry->mode == INVAR_FILES_FOLDER ? AT_REMOVEDIR : 0;

    INVAR_TRY(begin_changes(lay));
    INVAR_TRY(open_parent(lay, entry->path, false));
    if (lay->inner < 0)
        return INVAR_OK;
    if (unlinkat(lay->inner, name_of(entry->path), flag) != 0) {
        // already removed, or replaced by something that the checkout did not write
        if (errno == ENOENT || errno == EISDIR || errno == ENOTDIR ||
            (flag && (errno == ENOTEMPTY || errno == EEXIST)))
            return INVAR_OK;
        return fail_at(lay, entry->path, "cannot be removed");
    }
    return remove_empty_parents(lay, entry->path);
}

/* Returns the entry of the same path, or NULL. *at advances through the sorted list. */
static const invar_files_entry *find_previous_entry(const invar_files *files, size_t *at,
                                                    const char *path)
{
    while (*at < files->count && strcmp(files->entries[*at].path, path) < 0)
        ++*at;
    return *at < files->count && strcmp(files->entries[*at].path, path) == 0 ? &files->entries[*at]
                                                                             : NULL;
}

static invar_status remove_unwanted(checkout_job *lay, const invar_files *before,
                                    const invar_files *files)
{
    size_t at = 0;

    for (size_t i = 0; i < before->count; i++)
        if (!find_previous_entry(files, &at, before->entries[i].path))
            INVAR_TRY(remove_entry(lay, &before->entries[i]));
    close_parent(lay);
    return INVAR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Returns true if the file is still the one that was written, with the wanted contents and mode. */
static bool is_kept(const invar_files_entry *want, const invar_files_entry *laid,
                    const struct stat *info)
{
    if (want->mode == INVAR_FILES_FOLDER)
        return S_ISDIR(info->st_mode);
    if (!laid || laid->mode != want->mode || strcmp(laid->id, want->id) != 0)
        return false;
    if (want->mode == INVAR_FILES_LINK ? !S_ISLNK(info->st_mode) : !S_ISREG(info->st_mode))
        return false;
    if (want->mode != INVAR_FILES_LINK &&
        ((info->st_mode & S_IXUSR) != 0) != (want->mode == INVAR_FILES_PROGRAM))
        return false;
    return (uint64_t)info->st_size == laid->size && (uint64_t)info->st_ino == laid->inode &&
           (int64_t)info->st_mtim.tv_sec == laid->seconds &&
           (int64_t)info->st_mtim.tv_nsec == laid->nanoseconds;
}

static void record_file_info(invar_files_entry *entry, const struct stat *info)
{
    if (entry->mode == INVAR_FILES_FOLDER)
        return;
    entry->size = (uint64_t)info->st_size;
    entry->inode = (uint64_t)info->st_ino;
    entry->seconds = (int64_t)info->st_mtim.tv_sec;
    entry->nanoseconds = (int64_t)info->st_mtim.tv_nsec;
}

/* Removes what occupies the path of a file, folders recursively. */
static invar_status remove_obstacle(checkout_job *lay, const char *path, const struct stat *info)
{
    char whole[INVAR_PATH_SIZE];

    if (S_ISDIR(info->st_mode)) {
        INVAR_TRY(invar_path_join(whole, sizeof whole, lay->folder, path));
        return invar_held_folder_remove(whole);
    }
    return unlinkat(lay->inner, name_of(path), 0) == 0 ? INVAR_OK
                                                       : fail_at(lay, path, "cannot be replaced");
}

static invar_status write_file(checkout_job *lay, const invar_files_entry *entry,
                               const invar_files_source *source)
{
    char whole[2 * INVAR_PATH_SIZE];
    int rights = entry->mode == INVAR_FILES_PROGRAM ? 0777 : 0666;
    int fd = openat(lay->inner, name_of(entry->path),
                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, rights);
    invar_status status;

    if (fd < 0)
        return fail_at(lay, entry->path, "cannot be made");
    snprintf(whole, sizeof whole, "%s/%s", lay->folder, entry->path);
    status = source->put(source->payload, entry, fd, whole);
    if (close(fd) != 0 && status == INVAR_OK)
        return fail_at(lay, entry->path, "cannot be written");
    return status;
}

static invar_status make_entry(checkout_job *lay, const invar_files_entry *entry,
                               const invar_files_source *source)
{
    const char *name = name_of(entry->path);
    char target[INVAR_PATH_SIZE];

    switch (entry->mode) {
    case INVAR_FILES_FOLDER:
        return mkdirat(lay->inner, name, 0777) == 0
                   ? INVAR_OK
                   : fail_at(lay, entry->path, "the folder cannot be made");
    case INVAR_FILES_LINK:
        INVAR_TRY(source->link(source->payload, entry, target));
        return symlinkat(target, lay->inner, name) == 0
                   ? INVAR_OK
                   : fail_at(lay, entry->path, "the link cannot be made");
    default: return write_file(lay, entry, source);
    }
}

static invar_status checkout_entry(checkout_job *lay, invar_files_entry *entry,
                                   const invar_files_entry *laid, const invar_files_source *source)
{
    struct stat info;
    bool there;

    INVAR_TRY(open_parent(lay, entry->path, true));
    there = fstatat(lay->inner, name_of(entry->path), &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (!there && errno != ENOENT)
        return fail_at(lay, entry->path, "cannot be looked at");
    if (!there || !is_kept(entry, laid, &info)) {
        INVAR_TRY(begin_changes(lay));
        if (there)
            INVAR_TRY(remove_obstacle(lay, entry->path, &info));
        INVAR_TRY(make_entry(lay, entry, source));
        if (fstatat(lay->inner, name_of(entry->path), &info, AT_SYMLINK_NOFOLLOW) != 0)
            return fail_at(lay, entry->path, "cannot be looked at");
    }
    record_file_info(entry, &info);
    return INVAR_OK;
}

/* Returns true if the sorted list has an entry below `path`. */
static bool has_below(const invar_files *files, const char *path)
{
    char inside[INVAR_PATH_SIZE + 1];
    size_t length = (size_t)snprintf(inside, sizeof inside, "%s/", path);
    size_t low = 0, high = files->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(files->entries[middle].path, inside) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < files->count && strncmp(files->entries[low].path, inside, length) == 0;
}

/* Rejects a list in which a path is both a file and a folder. */
static invar_status check_path_clashes(const invar_files *files)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    for (size_t i = 0; i < files->count; i++) {
        if (!has_below(files, files->entries[i].path))
            continue;
        invar_path_show(shown, files->entries[i].path);
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the tree has '%s' as a file and as a folder", shown);
    }
    return INVAR_OK;
}

static invar_status checkout_all(checkout_job *lay, const invar_files *before, invar_files *files,
                                 const invar_files_source *source)
{
    size_t at = 0;

    INVAR_TRY(remove_unwanted(lay, before, files));
    for (size_t i = 0; i < files->count; i++) {
        invar_files_entry *entry = &files->entries[i];
        INVAR_TRY(
            checkout_entry(lay, entry, find_previous_entry(before, &at, entry->path), source));
    }
    return INVAR_OK;
}

invar_status invar_files_checkout(const char *folder, invar_files *files,
                                  const invar_files_source *source)
{
    checkout_job lay = {.folder = folder, .top = -1, .inner = -1};
    invar_files before = {NULL, 0, 0, NULL};
    bool known = false;
    invar_status status;

    if ((size_t)snprintf(lay.index_path, sizeof lay.index_path, "%s.tree", folder) >=
        sizeof lay.index_path)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the path of a checkout is too long");
    INVAR_TRY(invar_files_sort(files));
    INVAR_TRY(check_path_clashes(files));
    status = invar_files_read(&before, &known, lay.index_path);
    if (status == INVAR_OK && !known) {
        status = begin_changes(&lay);
        if (status == INVAR_OK)
            status = invar_held_folder_remove(folder);
    }
    if (status == INVAR_OK)
        status = invar_held_folder_make(folder);
    if (status == INVAR_OK) {
        lay.top = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        status = lay.top < 0 ? invar_path_fail(folder, "cannot be opened")
                             : checkout_all(&lay, &before, files, source);
    }
    close_parent(&lay);
    if (lay.top >= 0)
        close(lay.top);
    invar_files_release(&before);
    if (status == INVAR_OK && lay.changed)
        status = invar_files_write(files, lay.index_path);
    return status;
}
