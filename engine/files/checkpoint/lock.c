/*
 * lock.c - exclusive lock on a folder of checkpoints, and the file SAVE/owner that names its run.
 *
 *     [owner]
 *     run = 0f3c7a...        uuid of the run in its ledger
 *     identity = 5667...     digest of the semantic keys of the run
 *
 * An empty file names no owner: its writer died before it had a run. The lock (F_OFD_SETLK) belongs
 * to the open file, so it also excludes other threads of the process, and ends with the process.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // F_OFD_SETLK

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/recipe/recipe.h"
#include "engine/files/checkpoint/format.h"

#include "base/invar_banned.h"

#define OWNER "owner"
#define MAX_STATE ((size_t)256 << 20)

static const invar_recipe_key keys[] = {
    {.section = "owner", .name = "run", .type = INVAR_RECIPE_TYPE_STRING, .doc = "its uuid"},
    {.section = "owner", .name = "identity", .type = INVAR_RECIPE_TYPE_STRING, .doc = "its hash"},
};
static const invar_recipe_schema schema = {.keys = keys, .count = 2};

static invar_status io_error(const char *path, const char *what)
{
    int code = errno;

    return INVAR_FAIL(INVAR_E_IO, code, "%s: %s: %s", INVAR_SHOWN_PATH(path), what, strerror(code));
}

/* ---- owner ----------------------------------------------------------------------------------- */

static invar_status read_recipe(invar_checkpoint_owner *out, const invar_recipe *recipe,
                                const char *path)
{
    const char *run = invar_recipe_string(recipe, 0);

    if (!run[0] || strlen(run) >= sizeof out->uuid ||
        invar_digest_parse(&out->identity, invar_recipe_string(recipe, 1)) != INVAR_OK)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s does not name a run; give another folder",
                          INVAR_SHOWN_PATH(path));
    memcpy(out->uuid, run, strlen(run) + 1);
    return INVAR_OK;
}

/* Reads the owner from a file that is not empty. */
static invar_status read_owner(invar_checkpoint_owner *out, const char *path)
{
    invar_recipe *recipe;
    invar_status status;

    INVAR_TRY(invar_recipe_new(&recipe, &schema));
    status = invar_recipe_read(recipe, path);
    if (status == INVAR_OK)
        status = invar_recipe_check(recipe);
    if (status == INVAR_OK)
        status = read_recipe(out, recipe, path);
    invar_recipe_free(recipe);
    return status;
}

static invar_status read_state(invar_checkpoint_owner *out, const char *save, int64_t step)
{
    INVAR_AUTO(invar_checkpoint_index_release) invar_checkpoint_index index = {0};
    INVAR_AUTO_FREE char *text = NULL;
    char folder[INVAR_PATH_SIZE], path[INVAR_PATH_SIZE];
    size_t bytes;

    INVAR_TRY(invar_checkpoint_folder(folder, save, step, ""));
    INVAR_TRY(invar_path_join(path, sizeof path, folder, INVAR_CHECKPOINT_STATE));
    INVAR_TRY(invar_file_read(&text, &bytes, path, MAX_STATE));
    INVAR_TRY(invar_checkpoint_index_parse(&index, INVAR_SHOWN_PATH(folder), text, bytes));
    memcpy(out->uuid, index.state.uuid, sizeof out->uuid);
    out->identity = index.state.identity;
    return INVAR_OK;
}

invar_status invar_checkpoint_owner_find(bool *owned_out, invar_checkpoint_owner *out,
                                         const char *save)
{
    INVAR_AUTO_FREE int64_t *steps = NULL;
    int64_t count;
    invar_status status = INVAR_E_NOTFOUND;

    INVAR_TRY(invar_checkpoint_list(&steps, &count, save));
    for (int64_t i = count - 1; i >= 0 && status != INVAR_OK && status != INVAR_E_NOMEM; i--) {
        status = read_state(out, save, steps[i]);
        if (status != INVAR_OK && status != INVAR_E_NOMEM)
            invar_error_clear();
    }
    *owned_out = count > 0;
    return status == INVAR_E_NOMEM ? status : INVAR_OK;
}

/* ---- lock ------------------------------------------------------------------------------------ */

void invar_checkpoint_lock_release(invar_checkpoint_lock *lock)
{
    if (lock->locked)
        close(lock->fd);
    invar_held_folder_release(&lock->folder);
    *lock = (invar_checkpoint_lock){0};
}

/* Opens the owner file without following links, which another process may have placed there. */
static invar_status open_owner(int *out, const char *path)
{
    struct stat info;

    *out = invar_fd_open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (*out < 0)
        return io_error(path, "cannot be opened");
    if (fstat(*out, &info) == 0 && S_ISREG(info.st_mode))
        return INVAR_OK;
    close(*out);
    errno = EINVAL;
    return io_error(path, "it is no regular file");
}

static invar_status lock_owner_file(invar_checkpoint_lock *lock)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    if (fcntl(lock->fd, F_OFD_SETLK, &whole) == 0 || (errno != EAGAIN && errno != EACCES))
        return INVAR_OK; // file systems without locks: the owner's name is the only protection
    return INVAR_FAIL(INVAR_E_BUSY, errno,
                      "%s: a run writes its checkpoints there now; wait for its end, or give "
                      "another folder",
                      INVAR_SHOWN_PATH(lock->folder.path));
}

static invar_status check_owner(invar_checkpoint_lock *lock, const char *path)
{
    struct stat info;

    if (fstat(lock->fd, &info) != 0)
        return io_error(path, "cannot be looked at");
    lock->has_owner_file = info.st_size > 0;
    if (!lock->has_owner_file)
        return invar_checkpoint_owner_find(&lock->owned, &lock->owner, lock->folder.path);
    lock->owned = true;
    return read_owner(&lock->owner, path);
}

static invar_status acquire_lock(invar_checkpoint_lock *lock, const char *save)
{
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(invar_held_folder_make(save));
    INVAR_TRY(invar_held_folder_open(&lock->folder, save));
    INVAR_TRY(invar_path_join(path, sizeof path, save, OWNER));
    INVAR_TRY(open_owner(&lock->fd, path));
    lock->locked = true;
    INVAR_TRY(lock_owner_file(lock));
    return check_owner(lock, path);
}

invar_status invar_checkpoint_lock_acquire(invar_checkpoint_lock *lock, const char *save)
{
    invar_status status;

    *lock = (invar_checkpoint_lock){0};
    status = acquire_lock(lock, save);
    if (status != INVAR_OK)
        invar_checkpoint_lock_release(lock);
    return status;
}

invar_status invar_checkpoint_lock_write_owner(invar_checkpoint_lock *lock,
                                               const invar_checkpoint_owner *owner)
{
    char text[256];
    int bytes;

    if (lock->has_owner_file)
        return INVAR_OK;
    bytes = snprintf(text, sizeof text, "[owner]\nrun = %s\nidentity = %s\n", owner->uuid,
                     INVAR_DIGEST_HEX(&owner->identity));
    if (pwrite(lock->fd, text, (size_t)bytes, 0) != bytes || invar_fd_sync(lock->fd) != 0) {
        invar_status status = io_error(lock->folder.path, "its owner cannot be written");
        (void)!ftruncate(lock->fd, 0); // a truncated name would be invalid
        return status;
    }
    lock->has_owner_file = lock->owned = true;
    lock->owner = *owner;
    return invar_held_folder_sync(lock->folder.path);
}

invar_status invar_checkpoint_lock_refresh_path(invar_checkpoint_lock *lock)
{
    char path[INVAR_PATH_SIZE];
    struct stat ours, there;

    INVAR_TRY(invar_held_folder_refresh(&lock->folder));
    INVAR_TRY(invar_path_join(path, sizeof path, lock->folder.path, OWNER));
    // compare with the open folder: its path may lead to another one by now
    if (fstat(lock->fd, &ours) == 0 &&
        fstatat(lock->folder.fd, OWNER, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "%s was removed or replaced: the folder may be another run's by now, and "
                      "nothing more is written there",
                      INVAR_SHOWN_PATH(path));
}
