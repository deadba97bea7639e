/*
 * output.c - writes files atomically: a file appears complete or not at all.
 *
 * A regular file is written under a temporary name, synced and renamed. Devices, pipes with a
 * reader, and paths below /dev and /proc are written directly. Links are rejected elsewhere, so
 * that no file outside is replaced.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/temp_name.h"

#include "base/invar_banned.h"

static invar_status io_error(const char *path, const char *what)
{
    return INVAR_FAIL(INVAR_E_IO, errno, "%s: %s: %s", path, what, strerror(errno));
}

/*
 * Opens a device or a pipe with a reader. Anything else that could block or lead elsewhere is
 * rejected.
 */
static invar_status open_device(invar_output *out, const char *path, int flags)
{
    int fd = invar_fd_open(path, O_WRONLY | O_TRUNC | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags, 0);
    struct stat info;

    if (fd < 0 && errno == ENXIO)
        return INVAR_FAIL(INVAR_E_IO, ENXIO,
                          "%s: no process reads this pipe; start its reader first", path);
    if (fd < 0)
        return io_error(path, "cannot be written");
    if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode))
        errno = EISDIR;
    else if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0 &&
             (out->stream = fdopen(fd, "w")))
        return INVAR_OK;
    close(fd);
    return io_error(path, "cannot be written");
}

static invar_status open_temp_file(invar_output *out, const char *path, const char *mark)
{
    int fd;

    INVAR_TRY(invar_path_check_output(path, mark, 0));
    INVAR_TRY(invar_temp_name(out->temp_path, path, "new"));
    fd = invar_fd_open(out->temp_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return io_error(path, "cannot be made");
    out->stream = fdopen(fd, "w");
    if (!out->stream) {
        close(fd);
        unlink(out->temp_path);
        return io_error(path, "cannot be written");
    }
    return INVAR_OK;
}

static invar_status init_output(invar_output *out, const char *path)
{
    *out = (invar_output){.stream = stdout};
    if (strlen(path) >= sizeof out->path)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the path is too long: %.1000s", path);
    memcpy(out->path, path, strlen(path) + 1);
    return INVAR_OK;
}

/*
 * Returns true below /dev and /proc, which contain links of the system: /dev/stdout, /dev/fd/63,
 * /proc/self/fd/1.
 */
static bool is_system(const char *path)
{
    return strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0;
}

static bool is_device(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0 && (S_ISCHR(info.st_mode) || S_ISFIFO(info.st_mode));
}

invar_status invar_output_open(invar_output *out, const char *path, const char *mark)
{
    INVAR_TRY(init_output(out, path));
    if (strcmp(path, "-") == 0)
        return INVAR_OK;
    if (is_system(path))
        return open_device(out, path, 0);
    if (is_device(path))
        return open_device(out, path, O_NOFOLLOW);
    return open_temp_file(out, path, mark);
}

invar_status invar_output_check(const char *path, const char *mark)
{
    invar_output out;

    INVAR_TRY(init_output(&out, path));
    if (strcmp(path, "-") == 0 || is_system(path) || is_device(path))
        return INVAR_OK;
    INVAR_TRY(invar_path_check_writable(path));
    return invar_path_check_output(path, mark, 0);
}

invar_status invar_output_replace(invar_output *out, const char *path, const char *mark)
{
    INVAR_TRY(init_output(out, path));
    return open_temp_file(out, path, mark);
}

/* Returns true if everything was written without errors and, with `sync`, is on the disk. */
static bool flush_stream(FILE *stream, bool sync)
{
    return fflush(stream) == 0 && !ferror(stream) && (!sync || invar_fd_sync(fileno(stream)) == 0);
}

invar_status invar_output_close(invar_output *out, invar_status status)
{
    bool renamed = out->temp_path[0] != '\0';

    if (out->stream == stdout)
        return status; // main checks whether stdout could be written
    if (status == INVAR_OK && !flush_stream(out->stream, renamed))
        status = io_error(out->path, "could not be written");
    if (fclose(out->stream) != 0 && status == INVAR_OK)
        status = io_error(out->path, "could not be written");
    if (status == INVAR_OK && renamed && rename(out->temp_path, out->path) != 0)
        status = io_error(out->path, "cannot get its name");
    if (status != INVAR_OK && renamed)
        unlink(out->temp_path);
    return status;
}
