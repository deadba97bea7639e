/*
 * lock_file.c - a file that one process writes at a time, again and again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // F_OFD_SETLK

#include "engine/record/track/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/invar_banned.h"

#define SUFFIX "-lock"

static invar_status name_lock(char out[INVAR_PATH_SIZE], const char *path)
{
    size_t length = strlen(path);

    if (length + sizeof SUFFIX > INVAR_PATH_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the path is too long: %.1000s", path);
    memcpy(out, path, length);
    memcpy(out + length, SUFFIX, sizeof SUFFIX);
    return INVAR_OK;
}

static invar_status refuse(const char *lock, int code, const char *why)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, lock);
    return INVAR_FAIL(INVAR_E_IO, code, "its lock %s: %s", shown, why);
}

static invar_status busy(const char *path)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_BUSY, 0, "%s: another run writes it now; give each run its own file",
                      shown);
}

/* Neither through a link nor waiting at a pipe; nobody's file with something in it is a lock. */
static invar_status open_lock(int *out, const char *lock, int flags)
{
    struct stat info;
    int code;

    *out = invar_fd_open(lock, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0666);
    code = errno;
    if (*out < 0 && code == ENOENT && !flags)
        return INVAR_OK;
    if (*out < 0)
        return refuse(lock, code, strerror(code));
    if (fstat(*out, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0)
        return INVAR_OK;
    close(*out);
    return refuse(lock, 0, "a file of another kind lies there; move it away");
}

static struct flock whole_file(void)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
}

invar_status invar_lock_file_check(const char *path)
{
    struct flock is = whole_file();
    char lock[INVAR_PATH_SIZE];
    bool taken;
    int fd;

    INVAR_TRY(name_lock(lock, path));
    INVAR_TRY(open_lock(&fd, lock, 0));
    if (fd < 0)
        return INVAR_OK;
    taken = fcntl(fd, F_OFD_GETLK, &is) == 0 && is.l_type != F_UNLCK;
    close(fd);
    return taken ? busy(path) : INVAR_OK;
}

/* False: the holder before us has removed it since we opened it. */
static bool still_there(int fd, const char *lock)
{
    struct stat ours, there;

    return fstat(fd, &ours) == 0 && lstat(lock, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}

invar_status invar_lock_file_take(invar_lock_file *out, const char *path)
{
    struct flock whole = whole_file();

    *out = (invar_lock_file){.locked = false};
    INVAR_TRY(name_lock(out->lock, path));
    while (!out->locked) {
        INVAR_TRY(open_lock(&out->fd, out->lock, O_CREAT));
        if (fcntl(out->fd, F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES)) {
            close(out->fd);
            return busy(path);
        }
        out->locked = still_there(out->fd, out->lock);
        if (!out->locked)
            close(out->fd);
    }
    return INVAR_OK;
}

void invar_lock_file_release(invar_lock_file *hold)
{
    if (!hold->locked)
        return;
    unlink(hold->lock); // while it is ours: the next one makes another
    close(hold->fd);
    hold->locked = false;
}
