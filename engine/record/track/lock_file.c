/*
 * lock_file.c - lock for a file that one process at a time rewrites again and again.
 *
 * The holder removes the lock file while it holds the lock. A process that opened the file before
 * the removal would then lock a file that no other process can see, so after locking it compares
 * the file with the one at the path, and starts over if they differ.
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

static invar_status make_lock_path(char out[INVAR_PATH_SIZE], const char *path)
{
    size_t length = strlen(path);

    if (length + sizeof SUFFIX > INVAR_PATH_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the path is too long: %.1000s", path);
    memcpy(out, path, length);
    memcpy(out + length, SUFFIX, sizeof SUFFIX);
    return INVAR_OK;
}

static invar_status lock_error(const char *lock, int code, const char *why)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, lock);
    return INVAR_FAIL(INVAR_E_IO, code, "its lock %s: %s", shown, why);
}

static invar_status busy_error(const char *path)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_BUSY, 0, "%s: another run writes it now; give each run its own file",
                      shown);
}

/*
 * Opens the lock file without following links or blocking on pipes. A file with contents is another
 * program's and is rejected. *out is -1 if the file does not exist and `flags` is 0.
 */
static invar_status open_lock(int *out, const char *lock, int flags)
{
    struct stat info;
    int code;

    *out = invar_fd_open(lock, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0666);
    code = errno;
    if (*out < 0 && code == ENOENT && !flags)
        return INVAR_OK;
    if (*out < 0)
        return lock_error(lock, code, strerror(code));
    if (fstat(*out, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0)
        return INVAR_OK;
    close(*out);
    return lock_error(lock, 0, "a file of another kind lies there; move it away");
}

static struct flock write_lock_request(void)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
}

invar_status invar_lock_file_check(const char *path)
{
    struct flock is = write_lock_request();
    char lock[INVAR_PATH_SIZE];
    bool taken;
    int fd;

    INVAR_TRY(make_lock_path(lock, path));
    INVAR_TRY(open_lock(&fd, lock, 0));
    if (fd < 0)
        return INVAR_OK;
    taken = fcntl(fd, F_OFD_GETLK, &is) == 0 && is.l_type != F_UNLCK;
    close(fd);
    return taken ? busy_error(path) : INVAR_OK;
}

/* Returns false if the previous holder has removed the lock file since it was opened. */
static bool is_current_file(int fd, const char *lock)
{
    struct stat ours, there;

    return fstat(fd, &ours) == 0 && lstat(lock, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}

invar_status invar_lock_file_acquire(invar_lock_file *out, const char *path)
{
    struct flock whole = write_lock_request();

    *out = (invar_lock_file){.locked = false};
    INVAR_TRY(make_lock_path(out->lock, path));
    while (!out->locked) {
        INVAR_TRY(open_lock(&out->fd, out->lock, O_CREAT));
        if (fcntl(out->fd, F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES)) {
            close(out->fd);
            return busy_error(path);
        }
        out->locked = is_current_file(out->fd, out->lock);
        if (!out->locked)
            close(out->fd);
    }
    return INVAR_OK;
}

void invar_lock_file_release(invar_lock_file *lock)
{
    if (!lock->locked)
        return;
    unlink(lock->lock); // remove it while it is locked; the next process makes a new one
    close(lock->fd);
    lock->locked = false;
}
