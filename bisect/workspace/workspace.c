/*
 * workspace.c - opens the workspace folder, creates cache entries and hands out worktrees.
 *
 * An entry is written to KEY.TAG-NUMBER.tmp and renamed, so an entry under its final name is
 * complete. Entries of dead processes are removed when the workspace is opened. A worktree is owned
 * through flock on slots/N/lock, which its children inherit; slots/N/user names the owning process,
 * so that a dead owner's children can be killed before the worktree is reused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // realpath

#include "bisect/workspace/workspace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/process/process.h"
#include "bisect/git/files.h"
#include "bisect/workspace/process_tag.h"
#include "bisect/workspace/workspace_internal.h"

#include "base/invar_banned.h"

#define MAX_WORKTREES 256
#define NAME_BYTES 64 /* largest length of the subject's name in the folder name */
#define LOCK_MS 2000  /* time that killed children may take to release a lock */
#define MIN_FREE_BYTES                                                                             \
    16777216 /* bytes; with less free space a failure may be caused by the full
                                   disk */

/* ---- location -------------------------------------------------------------------------------- */

/* Returns true if a path has a component "..". */
static bool has_parent_component(const char *path)
{
    for (const char *at = path; (at = strstr(at, "..")); at += 2) {
        if ((at == path || at[-1] == '/') && (!at[2] || at[2] == '/'))
            return true;
    }
    return false;
}

/* Resolves to an absolute path without links. The last components need not exist. */
static invar_status resolve_path(char out[INVAR_PATH_SIZE], const char *path)
{
    char whole[INVAR_PATH_SIZE], head[INVAR_PATH_SIZE] = "/", real[INVAR_PATH_SIZE] = "";
    size_t cut;

    if (path[0] != '/' && !getcwd(head, sizeof head))
        return invar_path_fail(".", "the current folder cannot be found");
    INVAR_TRY(invar_path_join(whole, sizeof whole, head, path + strspn(path, "/")));
    for (cut = strlen(whole);;) {
        memcpy(head, whole, cut);
        head[cut] = '\0';
        if (realpath(head, real))
            break;
        if (errno != ENOENT)
            return invar_path_fail(path, "cannot be looked at");
        while (cut > 1 && whole[cut - 1] == '/')
            cut--;
        while (cut > 1 && whole[cut - 1] != '/')
            cut--;
    }
    errno = ENOENT;
    // a ".." after a folder that does not exist cannot be resolved
    if (has_parent_component(whole + cut))
        return invar_path_fail(path, "cannot be looked at");
    if (whole[cut])
        return invar_path_join(out, INVAR_PATH_SIZE, real, whole + cut);
    memcpy(out, real, strlen(real) + 1);
    return INVAR_OK;
}

/* Copies the last component of the subject other than ".git", with unusual characters replaced. */
static void format_subject_name(char out[NAME_BYTES + 1], const char *subject)
{
    size_t end = strlen(subject), begin, used = 0;

    while (end > 0 && subject[end - 1] == '/')
        end--;
    if (end >= 5 && memcmp(subject + end - 5, "/.git", 5) == 0)
        end -= 5;
    for (begin = end; begin > 0 && subject[begin - 1] != '/'; begin--)
        continue;
    for (; begin < end && used < NAME_BYTES; begin++) {
        char c = subject[begin];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '-' || c == '_' || (c == '.' && used > 0);
        out[used++] = plain ? c : '_';
    }
    out[used] = '\0';
}

/* Computes the default location in the cache folder of the user. */
static invar_status default_location(char out[INVAR_PATH_SIZE], const char *subject)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char root[INVAR_PATH_SIZE], name[NAME_BYTES + 1], hex[INVAR_DIGEST_HEX_SIZE];
    char last[NAME_BYTES + INVAR_DIGEST_HEX_SIZE + 16];
    invar_digest digest;

    if (cache && cache[0] == '/')
        INVAR_TRY(invar_path_join(root, sizeof root, cache, "invar"));
    else if (home && home[0] == '/')
        INVAR_TRY(invar_path_join(root, sizeof root, home, ".cache/invar"));
    else
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "there is no folder to work in: neither XDG_CACHE_HOME nor HOME is an "
                          "absolute path; give one with --work DIR");
    format_subject_name(name, subject);
    invar_hash_bytes(&digest, subject, strlen(subject));
    invar_digest_format(hex, &digest);
    (void)snprintf(last, sizeof last, "%s-%.12s", name, hex);
    return invar_path_join(out, INVAR_PATH_SIZE, root, last);
}

static invar_status check_outside(const char *folder, const char *outside)
{
    char real[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    size_t length;

    INVAR_TRY(resolve_path(real, outside));
    length = strlen(real);
    if (length > 5 && strcmp(real + length - 5, "/.git") == 0)
        real[length - 5] = '\0'; // the .git of a linked work tree counts as its main repository
    if (!invar_files_is_inside(folder, real))
        return INVAR_OK;
    invar_path_show(shown, folder);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%s: it lies inside the repository, which is only read; give a folder "
                      "outside of it with --work DIR",
                      shown);
}

/* ---- the folder ------------------------------------------------------------------------------ */

static invar_status make_folder(const char *path)
{
    char above[INVAR_PATH_SIZE];
    size_t length = (size_t)(strrchr(path, '/') - path);

    memcpy(above, path, length);
    above[length] = '\0';
    if (length > 0)
        INVAR_TRY(invar_held_folder_make(above));
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return invar_path_fail(path, "the folder cannot be made");
    return invar_held_folder_make(path); // fails if the path is not a folder
}

/* Returns the tag in a name KEY.TAG-NUMBER.tmp, or NULL for any other name. */
static const char *tag_in_name(const char *name)
{
    size_t length = strlen(name);
    const char *dot = strchr(name, '.');

    if (!dot || length < 4 || strcmp(name + length - 4, ".tmp") != 0)
        return NULL;
    return strlen(dot + 1) >= INVAR_PROCESS_TAG_SIZE ? dot + 1 : NULL;
}

/* Removes unfinished entries of dead processes and kills the children of these. */
static invar_status remove_unfinished(const char *folder)
{
    DIR *entries = opendir(folder);
    invar_status status = INVAR_OK;
    struct dirent *entry;

    if (!entries)
        return invar_path_fail(folder, "cannot be read");
    while (status == INVAR_OK && (entry = readdir(entries))) {
        char path[INVAR_PATH_SIZE], user[INVAR_PROCESS_TAG_SIZE] = "";
        const char *at = tag_in_name(entry->d_name);

        if (!at)
            continue;
        memcpy(user, at, INVAR_PROCESS_TAG_SIZE - 1);
        if (invar_process_tag_lives(user))
            continue;
        invar_process_tag_sweep(user);
        status = invar_path_join(path, sizeof path, folder, entry->d_name);
        if (status == INVAR_OK)
            status = invar_held_folder_remove(path);
    }
    closedir(entries);
    return status;
}

/*
 * Rejects a folder that other users can write to, because its programs are executed as this user.
 */
static invar_status check_owner(const char *folder)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    struct stat info;

    if (stat(folder, &info) != 0)
        return invar_path_fail(folder, "cannot be looked at");
    invar_path_show(shown, folder);
    if (info.st_uid != geteuid())
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%s: the folder belongs to another user, who could change the programs "
                          "in it; give one of your own with --work DIR",
                          shown);
    if (info.st_mode & S_IWOTH)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%s: everybody can write into the folder and change the programs in it; "
                          "'chmod o-w' it, or give another one with --work DIR",
                          shown);
    return INVAR_OK;
}

static invar_status make_subfolders(const invar_workspace *w)
{
    static const char *const parts[] = {"slots", "programs", "runs", "bisects"};
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(make_folder(w->folder));
    INVAR_TRY(check_owner(w->folder));
    for (int i = 0; i < 4; i++) {
        INVAR_TRY(invar_path_join(path, sizeof path, w->folder, parts[i]));
        INVAR_TRY(invar_held_folder_make(path));
        if (i == 1 || i == 2)
            INVAR_TRY(remove_unfinished(path));
    }
    return INVAR_OK;
}

invar_status invar_workspace_open(invar_workspace **out, const char *folder, const char *subject,
                                  const char *const *outside)
{
    char place[INVAR_PATH_SIZE];
    invar_workspace *w;
    invar_status status = INVAR_OK;

    *out = NULL;
    if (!folder)
        INVAR_TRY(default_location(place, subject));
    INVAR_TRY(INVAR_ALLOC(w, 1, "a workshop"));
    status = resolve_path(w->folder, folder ? folder : place);
    for (; status == INVAR_OK && *outside; outside++)
        status = check_outside(w->folder, *outside);
    if (status == INVAR_OK)
        status = make_subfolders(w);
    if (status != INVAR_OK) {
        invar_free(w);
        return status;
    }
    *out = w;
    return INVAR_OK;
}

void invar_workspace_close(invar_workspace *workspace)
{
    invar_free(workspace);
}

const char *invar_workspace_folder(const invar_workspace *workspace)
{
    return workspace->folder;
}

/* ---- entries --------------------------------------------------------------------------------- */

invar_status invar_workspace_path(char out[INVAR_PATH_SIZE], const invar_workspace *workspace,
                                  const char *kind, const invar_digest *key)
{
    char name[64], hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, key);
    (void)snprintf(name, sizeof name, "%s/%s", kind, hex);
    return invar_path_join(out, INVAR_PATH_SIZE, workspace->folder, name);
}

/* Formats PATH.TAG-NUMBER.tmp, a name that is unique to this process. */
static invar_status format_temp_path(char out[INVAR_PATH_SIZE], const char *path)
{
    static _Atomic uint32_t number;
    char user[INVAR_PROCESS_TAG_SIZE];
    int bytes;

    invar_process_tag_self(user);
    bytes = snprintf(out, INVAR_PATH_SIZE, "%s.%s-%08" PRIx32 ".tmp", path, user,
                     atomic_fetch_add(&number, 1));
    if (bytes < INVAR_PATH_SIZE)
        return INVAR_OK;
    errno = ENAMETOOLONG;
    return invar_path_fail(path, "cannot be made");
}

invar_status invar_workspace_entry_new(char out[INVAR_PATH_SIZE], const invar_workspace *workspace,
                                       const char *kind, const invar_digest *key)
{
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_workspace_path(path, workspace, kind, key));
    INVAR_TRY(format_temp_path(out, path));
    return invar_held_folder_make(out);
}

invar_status invar_workspace_entry_commit(bool *lost_out, const char *made, const char *path,
                                          bool replace)
{
    char old[INVAR_PATH_SIZE];

    *lost_out = false;
    for (int i = 0; i < 100; i++) {
        if (rename(made, path) == 0)
            return INVAR_OK;
        if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
            break;
        if (!replace) {
            *lost_out = true;
            return INVAR_OK;
        }
        // another process may create the entry in between; try again
        INVAR_TRY(format_temp_path(old, path));
        if (rename(path, old) != 0 && errno != ENOENT)
            break;
        INVAR_TRY(invar_held_folder_remove(old));
    }
    return invar_path_fail(path, "cannot be put in place");
}

void invar_workspace_entry_discard(const char *made)
{
    invar_error why;

    invar_error_take(&why);
    if (invar_held_folder_remove(made) != INVAR_OK)
        invar_error_clear(); // the next open removes it
    invar_error_put(&why);
}

invar_status invar_workspace_check_room(const invar_workspace *workspace)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    struct statvfs disk;

    if (statvfs(workspace->folder, &disk) != 0)
        return invar_path_fail(workspace->folder, "cannot be looked at");
    if ((uint64_t)disk.f_bavail * disk.f_frsize >= MIN_FREE_BYTES &&
        (disk.f_favail > 16 || !disk.f_files))
        return INVAR_OK;
    invar_path_show(shown, workspace->folder);
    return INVAR_FAIL(INVAR_E_IO, ENOSPC,
                      "%s: the disk is full; make room, or give another folder with --work DIR",
                      shown);
}

void invar_workspace_key_add(invar_hasher *hasher, const char *text)
{
    uint64_t bytes = text ? strlen(text) + 1 : 0;

    invar_hasher_update(hasher, &bytes, sizeof bytes);
    invar_hasher_update(hasher, text, text ? (size_t)bytes - 1 : 0);
}

/* ---- worktrees ------------------------------------------------------------------------------- */

static invar_status worktree_path(char out[INVAR_PATH_SIZE], const invar_worktree *slot,
                                  const char *name)
{
    return invar_path_join(out, INVAR_PATH_SIZE, slot->folder, name);
}

/* Locks the worktree if the lock is free and the file still exists under its name. */
static invar_status try_lock(bool *out, const invar_worktree *slot, const char *path)
{
    struct stat held, found;

    *out = false;
    if (flock(slot->lock, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK || errno == EINTR ? INVAR_OK
                                                      : invar_path_fail(path, "cannot be locked");
    *out = fstat(slot->lock, &held) == 0 && lstat(path, &found) == 0 &&
           held.st_ino == found.st_ino && held.st_dev == found.st_dev;
    return INVAR_OK;
}

/* Kills the children of a dead owner, which hold the lock, and waits for the lock. */
static invar_status lock_after_sweep(bool *out, const invar_worktree *slot, const char *path,
                                     const char *user)
{
    static const struct timespec nap = {0, 5000000};
    int64_t until = invar_process_clock_ms() + LOCK_MS;

    invar_process_tag_sweep(user);
    for (;;) {
        INVAR_TRY(try_lock(out, slot, path));
        if (*out || invar_process_clock_ms() >= until)
            return INVAR_OK;
        nanosleep(&nap, NULL);
    }
}

/* Reads the tag of the owner; empty if there is no owner file. */
static void read_owner_tag(char out[INVAR_PROCESS_TAG_SIZE], const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t got = fd >= 0 ? read(fd, out, INVAR_PROCESS_TAG_SIZE - 1) : 0;

    out[got > 0 ? got : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

invar_status invar_worktree_reset(const invar_worktree *worktree)
{
    static const char *const parts[] = {"made", "build", "source"};
    char path[INVAR_PATH_SIZE];

    // before the rest, because the index describes the contents of `source`
    INVAR_TRY(worktree_path(path, worktree, "source.tree"));
    (void)unlink(path);
    for (int i = 0; i < 3; i++) {
        INVAR_TRY(worktree_path(path, worktree, parts[i]));
        INVAR_TRY(invar_held_folder_remove(path));
    }
    return INVAR_OK;
}

static invar_status try_worktree(bool *out, invar_worktree *slot)
{
    char lock[INVAR_PATH_SIZE], path[INVAR_PATH_SIZE];
    char user[INVAR_PROCESS_TAG_SIZE], self[INVAR_PROCESS_TAG_SIZE];

    INVAR_TRY(worktree_path(lock, slot, "lock"));
    INVAR_TRY(worktree_path(path, slot, "user"));
    slot->lock =
        invar_process_fd_above_stdio(open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (slot->lock < 0)
        return invar_path_fail(lock, "cannot be opened");
    INVAR_TRY(try_lock(out, slot, lock));
    read_owner_tag(user, path);
    if (!*out && user[0] && !invar_process_tag_lives(user))
        INVAR_TRY(lock_after_sweep(out, slot, lock, user));
    if (!*out)
        return INVAR_OK;
    if (user[0] && !invar_process_tag_lives(user))
        invar_process_tag_sweep(user); // children of the dead owner that have closed the lock
    if (invar_path_exists(path))
        INVAR_TRY(invar_worktree_reset(slot));
    invar_process_tag_self(self);
    return invar_file_write(path, self, strlen(self));
}

static invar_status init_worktree(invar_worktree *slot, const invar_workspace *workspace,
                                  int number)
{
    char name[32];

    *slot = (invar_worktree){.number = number, .lock = -1};
    (void)snprintf(name, sizeof name, "slots/%d", number);
    INVAR_TRY(invar_path_join(slot->folder, sizeof slot->folder, workspace->folder, name));
    INVAR_TRY(worktree_path(slot->source, slot, "source"));
    INVAR_TRY(worktree_path(slot->build, slot, "build"));
    return invar_held_folder_make(slot->folder);
}

static void close_worktree(invar_worktree *slot)
{
    if (slot->lock >= 0)
        close(slot->lock);
    slot->lock = -1;
}

invar_status invar_worktree_acquire(invar_worktree *out, invar_workspace *workspace)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    bool taken = false;

    for (int i = 0; i < MAX_WORKTREES; i++) {
        invar_status status = init_worktree(out, workspace, i);
        if (status == INVAR_OK)
            status = try_worktree(&taken, out);
        if (status == INVAR_OK && taken)
            return INVAR_OK;
        close_worktree(out);
        INVAR_TRY(status);
    }
    invar_path_show(shown, workspace->folder);
    return INVAR_FAIL(INVAR_E_BUSY, 0, "%s: all %d slots are in use", shown, MAX_WORKTREES);
}

void invar_worktree_release(invar_worktree *worktree)
{
    char path[INVAR_PATH_SIZE];

    if (worktree->lock < 0)
        return;
    if (worktree_path(path, worktree, "user") == INVAR_OK)
        (void)unlink(path);
    close_worktree(worktree);
}
