/*
 * file.c - reads, hashes and atomically writes files; checks outputs; paths and folders.
 *
 * Files are opened with O_NONBLOCK where a pipe of that name must not block the open. All messages
 * show paths by invar_path_show.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // nftw

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define SUFFIX ".invar-tmp" /* a file of this name was left by a killed process and is replaced */
#define PIECE ((size_t)1 << 20)

/* ---- paths ----------------------------------------------------------------------------------- */

const char *invar_path_show(char out[INVAR_PATH_SHOWN_SIZE], const char *path)
{
    size_t length = strlen(path), most = INVAR_PATH_SHOWN_SIZE - 8;
    size_t cut = length > most ? length - most : 0;

    if (cut)
        memcpy(out, "...", 3);
    invar_text_quote(out + (cut ? 3 : 0), INVAR_PATH_SHOWN_SIZE - 3, path + cut, length - cut);
    return out;
}

void invar_path_absolute_hint(char out[INVAR_PATH_HINT_SIZE], const char *path)
{
    char folder[INVAR_PATH_SIZE], whole[INVAR_PATH_SIZE], shown[INVAR_PATH_HINT_SIZE - 3];
    int bytes;

    out[0] = '\0';
    if (path[0] == '/' || !getcwd(folder, sizeof folder))
        return;
    bytes = snprintf(whole, sizeof whole, "%s%s%s", folder, folder[1] ? "/" : "", path);
    if (bytes < 0 || (size_t)bytes >= sizeof whole)
        return;
    invar_text_quote(shown, sizeof shown, whole, (size_t)bytes);
    (void)snprintf(out, INVAR_PATH_HINT_SIZE, " (%s)", shown);
}

invar_status invar_path_fail(const char *path, const char *what)
{
    int code = errno;

    return INVAR_FAIL(INVAR_E_IO, code, "%s: %s: %s", INVAR_SHOWN_PATH(path), what, strerror(code));
}

static invar_status io_error(const char *path, const char *what)
{
    char whole[INVAR_PATH_HINT_SIZE];

    if (errno != ENOENT)
        return invar_path_fail(path, what);
    invar_path_absolute_hint(whole, path);
    return INVAR_FAIL(INVAR_E_NOTFOUND, ENOENT, "%s: %s: no such file or folder%s",
                      INVAR_SHOWN_PATH(path), what, whole);
}

static invar_status path_too_long(const char *path)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the path is longer than %d bytes",
                      INVAR_SHOWN_PATH(path), INVAR_PATH_SIZE - 1);
}

invar_status invar_path_join(char *out, size_t size, const char *dir, const char *name)
{
    size_t length = strlen(dir);
    const char *slash = length > 0 && dir[length - 1] != '/' ? "/" : "";
    int bytes = snprintf(out, size, "%s%s%s", dir, slash, name);

    return bytes < 0 || (size_t)bytes >= size ? path_too_long(dir) : INVAR_OK;
}

invar_status invar_held_folder_is_empty(bool *out, const char *path)
{
    DIR *folder = opendir(path);
    int entries = 0;

    *out = true;
    if (!folder && errno == ENOENT)
        return INVAR_OK;
    if (!folder)
        return INVAR_FAIL(INVAR_E_IO, errno, "%s: cannot be written to: %s", INVAR_SHOWN_PATH(path),
                          strerror(errno));
    while (entries < 3 && readdir(folder)) // "." and ".." always exist
        entries++;
    closedir(folder);
    *out = entries < 3;
    return INVAR_OK;
}

bool invar_path_exists(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0;
}

size_t invar_path_length(const char *path)
{
    size_t length = strlen(path);

    while (length > 1 && path[length - 1] == '/')
        length--;
    return length;
}

bool invar_path_same(const char *a, const char *b)
{
    size_t length = invar_path_length(a);
    struct stat x, y;

    if (length == invar_path_length(b) && memcmp(a, b, length) == 0)
        return true;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

invar_status invar_path_folder(char out[INVAR_PATH_SIZE], const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;

    if (length >= INVAR_PATH_SIZE)
        return path_too_long(path);
    if (length > 0)
        memcpy(out, path, length);
    else
        out[length++] = slash ? '/' : '.';
    out[length] = '\0';
    return INVAR_OK;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

int invar_fd_open(const char *path, int flags, unsigned mode)
{
    int fd;

    do
        fd = open(path, flags, (mode_t)mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

int invar_fd_sync(int fd)
{
    int rc;

    do
        rc = fsync(fd);
    while (rc != 0 && errno == EINTR);
    return rc;
}

int invar_fd_write(int fd, const void *data, size_t bytes)
{
    const char *at = data;

    while (bytes > 0) {
        ssize_t put = write(fd, at, bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put == 0)
            errno = ENOSPC;
        if (put <= 0)
            return -1;
        at += put;
        bytes -= (size_t)put;
    }
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Opens a file for reading; O_NONBLOCK, because opening a pipe would block. */
static int open_to_read(const char *path)
{
    return invar_fd_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
}

/* *out = the size of an open file. Fails if it is not regular or has more than `max_bytes`. */
static invar_status check_size(size_t *out, int fd, const char *path, size_t max_bytes)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    struct stat info;

    if (fstat(fd, &info) != 0)
        return io_error(path, "cannot be looked at");
    invar_path_show(shown, path);
    if (!S_ISREG(info.st_mode))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: it is %s, not a file", shown,
                          S_ISDIR(info.st_mode) ? "a folder" : "a device or a pipe");
    if ((uint64_t)info.st_size > max_bytes)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the file has %lld bytes, %zu are allowed", shown,
                          (long long)info.st_size, max_bytes);
    *out = (size_t)info.st_size;
    return INVAR_OK;
}

static invar_status read_exactly(char *out, size_t bytes, int fd, const char *path)
{
    size_t used = 0;

    while (used < bytes) {
        ssize_t got = read(fd, out + used, bytes - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return io_error(path, "cannot be read");
        if (got == 0)
            return INVAR_FAIL(INVAR_E_IO, 0, "%s: the file became shorter while it was read",
                              INVAR_SHOWN_PATH(path));
        used += (size_t)got;
    }
    out[bytes] = '\0';
    return INVAR_OK;
}

invar_status invar_file_read(char **out, size_t *bytes_out, const char *path, size_t max_bytes)
{
    int fd = open_to_read(path);
    char *text = NULL;
    size_t bytes = 0;
    invar_status status;

    *out = NULL;
    *bytes_out = 0;
    if (fd < 0)
        return io_error(path, "cannot be opened");
    status = check_size(&bytes, fd, path, max_bytes);
    if (status == INVAR_OK)
        status = INVAR_ALLOC(text, bytes + 1, "a file");
    if (status == INVAR_OK)
        status = read_exactly(text, bytes, fd, path);
    close(fd);
    if (status != INVAR_OK) {
        invar_free(text);
        return status;
    }
    *out = text;
    *bytes_out = bytes;
    return INVAR_OK;
}

static invar_status read_to_end(char **text, size_t *used, int fd, const char *path,
                                size_t max_bytes)
{
    size_t room = 0;

    for (;;) {
        ssize_t got;

        if (*used == room)
            INVAR_TRY(invar_alloc_grow(text, &room, *used, max_bytes, "a file"));
        got = read(fd, *text + *used, room - *used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return io_error(path, "cannot be read");
        if (got == 0)
            break;
        *used += (size_t)got;
        if (*used > max_bytes)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: more than the %zu bytes that are allowed",
                              INVAR_SHOWN_PATH(path), max_bytes);
    }
    (*text)[*used] = '\0';
    return INVAR_OK;
}

static invar_status hash_rest(invar_hasher *hasher, int64_t *bytes_out, int fd, const char *path,
                              char *piece, invar_file_block_fn take, void *payload)
{
    ssize_t got;

    while ((got = read(fd, piece, PIECE)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return io_error(path, "cannot be read");
        invar_hasher_update(hasher, piece, (size_t)got);
        *bytes_out += got;
        if (take)
            INVAR_TRY(take(payload, piece, (size_t)got));
    }
    return INVAR_OK;
}

invar_status invar_fd_hash(invar_digest *out, int64_t *bytes_out, int fd, const char *path,
                           invar_file_block_fn take, void *payload)
{
    invar_status status;
    invar_hasher hasher;
    char *piece;

    *bytes_out = 0;
    invar_hasher_init(&hasher);
    INVAR_TRY(INVAR_ALLOC(piece, PIECE, "a piece of a file"));
    status = hash_rest(&hasher, bytes_out, fd, path, piece, take, payload);
    invar_free(piece);
    invar_hasher_final(out, &hasher);
    return status;
}

invar_status invar_file_hash(invar_digest *out, int64_t *bytes_out, const char *path)
{
    int fd = open_to_read(path);
    invar_status status;
    size_t bytes;

    *bytes_out = 0;
    if (fd < 0)
        return io_error(path, "cannot be opened");
    status = check_size(&bytes, fd, path, SIZE_MAX);
    if (status == INVAR_OK)
        status = invar_fd_hash(out, bytes_out, fd, path, NULL, NULL);
    close(fd);
    return status;
}

invar_status invar_file_read_stream(char **out, size_t *bytes_out, const char *path,
                                    size_t max_bytes)
{
    bool standard = strcmp(path, "-") == 0;
    int fd = standard ? STDIN_FILENO : invar_fd_open(path, O_RDONLY | O_CLOEXEC, 0);
    char *text = NULL;
    size_t bytes = 0;
    invar_status status;

    *out = NULL;
    *bytes_out = 0;
    if (fd < 0)
        return io_error(path, "cannot be opened");
    status = read_to_end(&text, &bytes, fd, standard ? "standard input" : path, max_bytes);
    if (!standard)
        close(fd);
    if (status != INVAR_OK) {
        invar_free(text);
        return status;
    }
    *out = text;
    *bytes_out = bytes;
    return INVAR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

#define HEAD_BYTES 512 /* bytes of a file that are read to find out its kind */

/* Fails if `path` is a link, folder, pipe, socket or device. */
static invar_status check_kind(const char *path)
{
    const char *kind;
    struct stat info;

    if (lstat(path, &info) != 0 || S_ISREG(info.st_mode))
        return INVAR_OK;
    kind = S_ISLNK(info.st_mode)    ? "symbolic link"
           : S_ISDIR(info.st_mode)  ? "folder"
           : S_ISFIFO(info.st_mode) ? "pipe"
           : S_ISSOCK(info.st_mode) ? "socket"
                                    : "device";
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%s: is a %s, and is not replaced%s; give the name of a file",
                      INVAR_SHOWN_PATH(path), kind, S_ISLNK(info.st_mode) ? " or followed" : "");
}

/* Reads the first bytes of a file; none if it is empty, missing, or not a regular file. */
static invar_status read_head(size_t *bytes_out, char head[HEAD_BYTES], const char *path)
{
    int fd = invar_fd_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0);
    struct stat info;
    ssize_t bytes = 0;

    *bytes_out = 0;
    if (fd < 0 && errno == EACCES)
        return INVAR_FAIL(INVAR_E_IO, errno,
                          "%s: what lies there cannot be read, and is not replaced: %s",
                          INVAR_SHOWN_PATH(path), strerror(errno));
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
        bytes = read(fd, head, HEAD_BYTES);
    if (fd >= 0)
        close(fd);
    *bytes_out = bytes > 0 ? (size_t)bytes : 0;
    return INVAR_OK;
}

static bool has_mark(const char *head, size_t bytes, const char *mark, size_t at)
{
    size_t length = strlen(mark);

    INVAR_CHECK(at + length <= HEAD_BYTES);
    if (bytes <= at)
        return bytes == 0;
    return memcmp(head + at, mark, bytes - at < length ? bytes - at : length) == 0;
}

invar_status invar_path_check_output(const char *path, const char *mark, size_t at)
{
    static const char database[] = "SQLite format 3"; // compared with its NUL
    char head[HEAD_BYTES], shown[INVAR_PATH_SHOWN_SIZE];
    size_t bytes;

    if (mark)
        INVAR_TRY(check_kind(path));
    INVAR_TRY(read_head(&bytes, head, path));
    invar_path_show(shown, path);
    if (bytes >= sizeof database && memcmp(head, database, sizeof database) == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: a ledger or another database lies there and is not replaced; give "
                          "another name",
                          shown);
    if (mark && !has_mark(head, bytes, mark, at))
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "%s: a file of another kind lies there and is not replaced; remove it, or "
            "give another name",
            shown);
    return INVAR_OK;
}

invar_status invar_path_nearest_existing(char out[INVAR_PATH_SIZE], const char *path)
{
    char at[INVAR_PATH_SIZE];
    struct stat info;

    if (snprintf(out, INVAR_PATH_SIZE, "%s", path) >= INVAR_PATH_SIZE)
        return path_too_long(path);
    while (lstat(out, &info) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
        (void)snprintf(at, sizeof at, "%s", out);
        INVAR_TRY(invar_path_folder(out, at));
        if (strcmp(out, at) == 0)
            break;
    }
    return INVAR_OK;
}

/*
 * True for the file systems of the kernel, proc and sysfs, in which not even root can make a file.
 */
static bool is_of_kernel(const char *folder)
{
    static const unsigned long types[] = {0x9FA0, 0x62656572}; // proc, sysfs
    struct statfs info;

    if (statfs(folder, &info) != 0)
        return false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if ((unsigned long)info.f_type == types[i])
            return true;
    return false;
}

/* Checks whether `path` can be created in `folder`, together with missing folders. */
static invar_status check_in(const char *path, const char *folder)
{
    char at[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    struct stat info;
    int code = 0;

    INVAR_TRY(invar_path_nearest_existing(at, folder));
    invar_path_show(shown, path);
    if (stat(at, &info) == 0 ? !S_ISDIR(info.st_mode) : errno == ENOENT) // ENOENT: a dangling link
        return INVAR_FAIL(INVAR_E_IO, ENOTDIR,
                          "%s: cannot be written: %s is no folder; name another place", shown,
                          INVAR_SHOWN_PATH(at));
    if (faccessat(AT_FDCWD, at, W_OK | X_OK, AT_EACCESS) != 0)
        code = errno;
    else if (is_of_kernel(at))
        code = EROFS;
    return code ? INVAR_FAIL(INVAR_E_IO, code, "%s: cannot be written: %s; name another place",
                             shown, strerror(code))
                : INVAR_OK;
}

invar_status invar_path_check_writable(const char *path)
{
    char folder[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    struct stat info;

    INVAR_TRY(invar_path_folder(folder, path));
    invar_path_show(shown, path);
    if (stat(folder, &info) != 0 && errno == ENOENT)
        return INVAR_FAIL(INVAR_E_IO, ENOENT, "%s: its folder does not exist; create it first",
                          shown);
    if (lstat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return INVAR_FAIL(INVAR_E_INVALID, EISDIR, "%s: is a folder; give the name of a file",
                          shown);
    return check_in(path, folder);
}

invar_status invar_path_check_writable_in(const char *path, const char *home)
{
    char folder[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_folder(folder, path));
    return !invar_path_exists(folder) && invar_path_same(folder, home)
               ? INVAR_OK
               : invar_path_check_writable(path);
}

invar_status invar_path_check_creatable(const char *path)
{
    char folder[INVAR_PATH_SIZE];

    INVAR_TRY(invar_path_folder(folder, path));
    return check_in(path, folder);
}

invar_status invar_path_check_folder(const char *path)
{
    return check_in(path, path);
}

struct invar_file_writer {
    int fd; /* open temporary file; -1 after commit */
    bool committed;
    char path[INVAR_PATH_SIZE];    /* final path */
    char partial[INVAR_PATH_SIZE]; /* path of the temporary file */
};

invar_status invar_file_writer_open(invar_file_writer **out, const char *path)
{
    size_t length = strlen(path);
    invar_file_writer *writer;

    *out = NULL;
    if (length + sizeof SUFFIX > INVAR_PATH_SIZE)
        return path_too_long(path);
    INVAR_TRY(invar_path_check_output(path, NULL, 0));
    INVAR_TRY(INVAR_ALLOC(writer, 1, "a writer"));
    writer->committed = false;
    memcpy(writer->path, path, length + 1);
    memcpy(writer->partial, path, length);
    memcpy(writer->partial + length, SUFFIX, sizeof SUFFIX);
    unlink(writer->partial); // a leftover, or a link that must not be followed
    writer->fd = invar_fd_open(writer->partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (writer->fd < 0) {
        invar_status status = io_error(path, "cannot be made");
        invar_free(writer);
        return status;
    }
    *out = writer;
    return INVAR_OK;
}

invar_status invar_file_writer_put(invar_file_writer *writer, const void *data, size_t bytes)
{
    return invar_fd_write(writer->fd, data, bytes) == 0
               ? INVAR_OK
               : io_error(writer->partial, "cannot be written");
}

invar_status invar_file_writer_commit(invar_file_writer *writer)
{
    char folder[INVAR_PATH_SIZE];
    int rc;

    INVAR_TRY(invar_path_folder(folder, writer->path));
    if (invar_fd_sync(writer->fd) != 0)
        return io_error(writer->partial, "cannot be synced");
    rc = close(writer->fd);
    writer->fd = -1;
    if (rc != 0)
        return io_error(writer->partial, "cannot be closed");
    if (rename(writer->partial, writer->path) != 0)
        return io_error(writer->path, "cannot be put in place");
    writer->committed = true;
    return invar_held_folder_sync(folder);
}

void invar_file_writer_close(invar_file_writer *writer)
{
    if (!writer)
        return;
    if (writer->fd >= 0)
        close(writer->fd);
    if (!writer->committed)
        unlink(writer->partial);
    invar_free(writer);
}

invar_status invar_file_write(const char *path, const void *data, size_t bytes)
{
    invar_file_writer *writer;
    invar_status status;

    INVAR_TRY(invar_file_writer_open(&writer, path));
    status = invar_file_writer_put(writer, data, bytes);
    if (status == INVAR_OK)
        status = invar_file_writer_commit(writer);
    invar_file_writer_close(writer);
    return status;
}

/* ---- folders --------------------------------------------------------------------------------- */

/*
 * Syncs the parent of a new folder, so that its name survives the loss of power. A parent that this
 * process may write but not read cannot be synced.
 */
static invar_status sync_above(const char *path)
{
    char plain[INVAR_PATH_SIZE], above[INVAR_PATH_SIZE];

    (void)snprintf(plain, sizeof plain, "%.*s", (int)invar_path_length(path), path);
    INVAR_TRY(invar_path_folder(above, plain));
    return access(above, R_OK) == 0 ? invar_held_folder_sync(above) : INVAR_OK;
}

invar_status invar_held_folder_make_one(const char *path)
{
    struct stat info;

    if (mkdir(path, 0777) == 0)
        return sync_above(path);
    if (errno != EEXIST)
        return io_error(path, "the folder cannot be made");
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_IO, ENOTDIR, "%s: it exists and is not a folder",
                      INVAR_SHOWN_PATH(path));
}

invar_status invar_held_folder_make(const char *path)
{
    char part[INVAR_PATH_SIZE];
    size_t length = strlen(path);

    if (length >= sizeof part)
        return path_too_long(path);
    for (size_t i = 1; i < length; i++) {
        if (path[i] != '/')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        INVAR_TRY(invar_held_folder_make_one(part));
    }
    return invar_held_folder_make_one(path);
}

invar_status invar_held_folder_open(invar_held_folder *out, const char *path)
{
    size_t length = strlen(path);

    *out = (invar_held_folder){.is_open = false};
    if (length >= sizeof out->path)
        return path_too_long(path);
    out->fd = invar_fd_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (out->fd < 0)
        return io_error(path, "cannot be opened");
    memcpy(out->path, path, length + 1);
    out->is_open = true;
    return INVAR_OK;
}

void invar_held_folder_release(invar_held_folder *folder)
{
    if (folder->is_open)
        close(folder->fd);
    folder->is_open = false;
}

static bool leads_to(const char *path, const struct stat *wanted)
{
    struct stat info;

    return stat(path, &info) == 0 && info.st_dev == wanted->st_dev && info.st_ino == wanted->st_ino;
}

/* Finds the current path of an open folder. Repeated, because it may be moved in the meantime. */
static bool find_open(char path[INVAR_PATH_SIZE], int fd, const struct stat *wanted)
{
    enum { TRIES = 100 };
    char link[64];

    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    for (int i = 0; i < TRIES; i++) {
        ssize_t bytes = readlink(link, path, INVAR_PATH_SIZE - 1);
        path[bytes > 0 ? bytes : 0] = '\0';
        if (leads_to(path, wanted))
            return true;
    }
    return false;
}

invar_status invar_held_folder_refresh(invar_held_folder *folder)
{
    char path[INVAR_PATH_SIZE];
    struct stat info;

    if (fstat(folder->fd, &info) != 0)
        return io_error(folder->path, "cannot be looked at");
    if (leads_to(folder->path, &info))
        return INVAR_OK;
    if (!find_open(path, folder->fd, &info))
        return INVAR_FAIL(
            INVAR_E_STATE, 0,
            "%s: the folder was removed while it was written to; what was in it is gone, and "
            "nothing more is written",
            INVAR_SHOWN_PATH(folder->path));
    memcpy(folder->path, path, strlen(path) + 1);
    return INVAR_OK;
}

invar_status invar_held_folder_sync(const char *path)
{
    int fd = invar_fd_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0), rc;

    if (fd < 0)
        return io_error(path, "cannot be opened");
    rc = invar_fd_sync(fd);
    if (rc != 0 && errno == EINVAL) // this file system cannot sync folders and does not need it
        rc = 0;
    if (rc != 0) {
        invar_status status = io_error(path, "cannot be synced");
        close(fd);
        return status;
    }
    close(fd);
    return INVAR_OK;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)place;
    if ((kind == FTW_DP || kind == FTW_DNR ? rmdir(path) : unlink(path)) == 0)
        return 0;
    return io_error(path, "cannot be removed");
}

invar_status invar_held_folder_remove(const char *path)
{
    struct stat info;
    int rc;

    if (lstat(path, &info) != 0)
        return errno == ENOENT ? INVAR_OK : io_error(path, "cannot be looked at");
    if (!S_ISDIR(info.st_mode))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: it is no folder, and stays",
                          INVAR_SHOWN_PATH(path));
    rc = nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return rc == -1 ? io_error(path, "cannot be removed") : (invar_status)rc;
}
