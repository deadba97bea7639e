/*
 * ledger_file.c - checks where a ledger file lies, and holds the lock that allows only one writer.
 *
 * Locks belong to the open file description (F_OFD_*), not to the process: a second writer in the
 * same process is rejected like any other, and querying the holder does not release the lock. A
 * ledger may come from an untrusted source, so the lock file is opened without following links.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // F_OFD_SETLK

#include "ledger/store/ledger_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "ledger/ledger.h"

#include "base/invar_banned.h"

enum { PATH_BYTES = INVAR_LEDGER_FILE_PATH_SIZE + 16 };

static invar_status io_error(const char *path, const char *what)
{
    return INVAR_FAIL(INVAR_E_IO, errno, "ledger %.1000s: %s: %s", path, what, strerror(errno));
}

/* ---- where it lies --------------------------------------------------------------------------- */

invar_status invar_ledger_file_resolve(char out[INVAR_LEDGER_FILE_PATH_SIZE], const char *path)
{
    struct stat info;

    if (strlen(path) >= INVAR_LEDGER_FILE_PATH_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "ledger: the path is too long: %.1000s", path);
    if (lstat(path, &info) != 0 || !S_ISLNK(info.st_mode))
        memcpy(out, path, strlen(path) + 1);
    else if (!realpath(path, out)) // PATH_MAX is our size
        return io_error(path, "the link cannot be followed");
    return INVAR_OK;
}

invar_status invar_ledger_file_look(invar_ledger_file_kind *out, const char *path)
{
    struct stat info;

    *out = INVAR_LEDGER_FILE_KIND_MISSING;
    if (stat(path, &info) != 0)
        return errno == ENOENT ? INVAR_OK : io_error(path, "cannot be looked at");
    if (!S_ISREG(info.st_mode))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "ledger %.1000s: it is %s, not a file", path,
                          S_ISDIR(info.st_mode) ? "a folder" : "a device");
    if (info.st_size == 1) // SQLite takes it for empty, and would write over it
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%.1000s: a file of one byte, not a ledger", path);
    *out = info.st_size == 0 ? INVAR_LEDGER_FILE_KIND_EMPTY : INVAR_LEDGER_FILE_KIND_DATA;
    return INVAR_OK;
}

bool invar_ledger_file_has_other_names(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && info.st_nlink > 1;
}

static void with_suffix(char out[PATH_BYTES], const char *path, const char *suffix)
{
    snprintf(out, PATH_BYTES, "%s%s", path, suffix);
}

/* Writes the folder of `path` to `out`; "." if the path has no slash. */
static void folder_of(char out[PATH_BYTES], const char *path)
{
    const char *slash = strrchr(path, '/');
    int length = slash ? (int)(slash - path) : 0;

    if (!slash)
        snprintf(out, PATH_BYTES, ".");
    else
        snprintf(out, PATH_BYTES, "%.*s/", length, path);
}

int64_t invar_ledger_file_beside(const char *path, const char *suffix)
{
    char name[PATH_BYTES];
    struct stat info;

    with_suffix(name, path, suffix);
    return stat(name, &info) == 0 ? (int64_t)info.st_size : -1;
}

bool invar_ledger_file_writable(const char *path)
{
    char folder[PATH_BYTES];

    folder_of(folder, path);
    return access(folder, W_OK) == 0 && access(path, W_OK) == 0;
}

const char *invar_ledger_file_network_name(long type)
{
    static const struct {
        unsigned long type;
        const char *name;
    } known[] = {
        {0x6969, "NFS"},         {0xFF534D42, "CIFS"},   {0xFE534D42, "SMB"},
        {0x517B, "SMB"},         {0x0BD00BD0, "Lustre"}, {0x47504653, "GPFS"},
        {0x00C36400, "Ceph"},    {0x19830326, "BeeGFS"}, {0x20030528, "OrangeFS"},
        {0x5346414F, "AFS"},     {0x6B414653, "AFS"},    {0x7461636F, "OCFS2"},
        {0x01161970, "GFS2"},    {0x01021997, "9P"},     {0x65735546, "FUSE"},
        {0xAAD7AAEA, "Panasas"}, {0x73757245, "Coda"},
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if ((unsigned long)(unsigned int)type == known[i].type)
            return known[i].name;
    return NULL;
}

bool invar_ledger_file_fuse_local(const char *mounts, unsigned major_number, unsigned minor_number)
{
    static const char *const local[] = {" - fuse.fuse-overlayfs ", " - fuseblk "};
    char device[32], line[1024];
    const char *end;
    size_t length;

    snprintf(device, sizeof device, " %u:%u ", major_number, minor_number);
    for (const char *at = mounts; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, "\n");
        length = (size_t)(end - at) < sizeof line - 1 ? (size_t)(end - at) : sizeof line - 1;
        memcpy(line, at, length);
        line[length] = '\0';
        for (size_t i = 0; i < sizeof local / sizeof *local; i++)
            if (strstr(line, device) && strstr(line, local[i]))
                return true;
    }
    return false;
}

/*
 * True if the FUSE file system of `path` is local. FUSE may be a network (sshfs), but also the root
 * of a container (fuse-overlayfs) or a local disk (fuseblk).
 */
static bool on_local_fuse(const char *path)
{
    static const char mounts_path[] = "/proc/self/mountinfo";
    char mounts[65536];
    struct stat info;
    size_t used = 0;
    ssize_t bytes;
    int fd;

    if (stat(path, &info) != 0)
        return false;
    fd = invar_fd_open(mounts_path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return false;
    while ((bytes = read(fd, mounts + used, sizeof mounts - 1 - used)) > 0)
        used += (size_t)bytes;
    close(fd);
    mounts[used] = '\0';
    return invar_ledger_file_fuse_local(mounts, major(info.st_dev), minor(info.st_dev));
}

const char *invar_ledger_file_network(const char *path)
{
    char folder[PATH_BYTES];
    struct statfs info;
    const char *name;

    folder_of(folder, path);
    if (statfs(path, &info) != 0 && statfs(folder, &info) != 0)
        return NULL; // opening the file will report the problem
    name = invar_ledger_file_network_name((long)info.f_type);
    return name && strcmp(name, "FUSE") == 0 && on_local_fuse(folder) ? NULL : name;
}

invar_status invar_ledger_file_sync_folder(const char *path)
{
    char folder[PATH_BYTES];
    int fd, rc;

    folder_of(folder, path);
    fd = invar_fd_open(folder, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return io_error(folder, "cannot be opened");
    rc = invar_fd_sync(fd);
    close(fd);
    // EINVAL: this file system cannot sync folders and does not need it
    return rc != 0 && errno != EINVAL ? io_error(folder, "cannot be synced") : INVAR_OK;
}

/* ---- the lock -------------------------------------------------------------------------------- */

/* Reads the description that the last holder wrote. */
static void read_holder(char out[INVAR_LEDGER_WRITER_SIZE], int fd)
{
    char line[INVAR_LEDGER_WRITER_SIZE];
    ssize_t bytes = pread(fd, line, sizeof line - 1, 0);

    line[bytes > 0 ? bytes : 0] = '\0';
    // the file may be hostile: quote one line, without control characters
    invar_text_quote(out, INVAR_LEDGER_WRITER_SIZE, line, strcspn(line, "\n"));
    if (out[0] == '\0')
        snprintf(out, INVAR_LEDGER_WRITER_SIZE, "a process that did not say who it is");
}

static bool write_holder(int fd, const char *writer)
{
    char line[INVAR_LEDGER_WRITER_SIZE], host[65] = "", since[32] = "";
    struct timespec now;
    struct tm utc;
    int bytes;

    gethostname(host, sizeof host - 1);
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &utc))
        strftime(since, sizeof since, "%Y-%m-%dT%H:%M:%SZ", &utc);
    bytes = snprintf(line, sizeof line - 1, "pid %ld on %s since %s: %.200s", (long)getpid(), host,
                     since, writer ? writer : "a process");
    line[bytes++] = '\n';
    return ftruncate(fd, 0) == 0 && pwrite(fd, line, (size_t)bytes, 0) == bytes;
}

/*
 * Opens the lock file. It may be hostile, so links are not followed and a pipe does not block.
 * Returns -1 with errno if it cannot be opened, with ELOOP if it is not a plain file with one name.
 */
static int open_lock(const char *name, int flags)
{
    struct stat info;
    int fd = invar_fd_open(name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);

    if (fd >= 0 && (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink > 1)) {
        close(fd);
        errno = ELOOP;
        return -1;
    }
    return fd;
}

static struct flock whole_file(void)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
}

invar_status invar_ledger_file_lock(int *fd_out, const char *path, const char *writer)
{
    char name[PATH_BYTES], holder[INVAR_LEDGER_WRITER_SIZE];
    struct flock lock = whole_file();
    invar_status status;
    int fd;

    with_suffix(name, path, "-lock");
    fd = open_lock(name, O_RDWR | O_CREAT);
    if (fd < 0)
        return INVAR_FAIL(
            INVAR_E_IO, errno,
            "ledger %.1000s: its lock \"...-lock\" cannot be made: %s; write it where "
            "you may, with --ledger FILE",
            path, strerror(errno));
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        if (errno == EAGAIN || errno == EACCES) {
            read_holder(holder, fd);
            status = INVAR_FAIL(INVAR_E_BUSY, errno,
                                "ledger %.1000s: it has a writer already: %.1000s", path, holder);
        } else {
            status = io_error(path, "cannot be locked");
        }
        close(fd);
        return status;
    }
    if (!write_holder(fd, writer)) {
        status = io_error(path, "its lock cannot be written");
        close(fd);
        return status;
    }
    *fd_out = fd;
    return INVAR_OK;
}

void invar_ledger_file_remove_lock(const char *path)
{
    char name[PATH_BYTES];

    with_suffix(name, path, "-lock");
    unlink(name);
}

bool invar_ledger_file_removed(int fd)
{
    char link[64], name[PATH_BYTES];
    struct stat info;
    ssize_t bytes;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    bytes = readlink(link, name, sizeof name - 1);
    if (bytes <= 0 || bytes >= (ssize_t)sizeof name - 1)
        return false;
    name[bytes] = '\0';
    if (!invar_text_has_suffix(name, "-lock"))
        return false;
    name[bytes - (ssize_t)strlen("-lock")] = '\0';
    return stat(name, &info) != 0 && errno == ENOENT;
}

bool invar_ledger_file_lock_valid(int fd)
{
    struct stat info;

    return fstat(fd, &info) == 0 && info.st_nlink == 1;
}

/* Opens the lock file of a ledger. *out = the descriptor; -1 if there is no lock file. */
static invar_status open_existing_lock(int *out, const char *path)
{
    char name[PATH_BYTES], target[INVAR_LEDGER_FILE_PATH_SIZE];

    INVAR_TRY(invar_ledger_file_resolve(target, path));
    with_suffix(name, target, "-lock");
    *out = open_lock(name, O_RDWR);
    if (*out < 0 && (errno == EACCES || errno == EROFS))
        *out = open_lock(name, O_RDONLY);
    return *out < 0 && errno != ENOENT ? io_error(path, "its lock cannot be opened") : INVAR_OK;
}

/* Reads the holder of the lock, or without `current` also the last one that has released it. */
static invar_status read_writer(char out[INVAR_LEDGER_WRITER_SIZE], const char *path, bool current)
{
    struct flock lock = whole_file();
    int fd;

    out[0] = '\0';
    INVAR_TRY(open_existing_lock(&fd, path));
    if (fd < 0)
        return INVAR_OK;
    if (fcntl(fd, F_OFD_GETLK, &lock) != 0)
        lock.l_type = F_UNLCK; // without support for these locks no writer could have one
    if (!current || lock.l_type != F_UNLCK)
        read_holder(out, fd);
    close(fd);
    return INVAR_OK;
}

invar_status invar_ledger_writer(char out[INVAR_LEDGER_WRITER_SIZE], const char *path)
{
    return read_writer(out, path, true);
}

invar_status invar_ledger_last_writer(char out[INVAR_LEDGER_WRITER_SIZE], const char *path)
{
    return read_writer(out, path, false);
}
