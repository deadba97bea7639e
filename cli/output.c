/*
 * output.c - a file that appears whole or not at all.
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

#include "base/invar_banned.h"

static invar_status io_error(const char *path, const char *what)
{
    return INVAR_FAIL(INVAR_E_IO, errno, "%.160s: %s: %s", path, what, strerror(errno));
}

invar_status invar_output_open(invar_output *out, const char *path)
{
    struct stat info;
    int fd;

    *out = (invar_output){.stream = stdout};
    if (strcmp(path, "-") == 0)
        return INVAR_OK;
    if (strlen(path) + 32 > sizeof out->path)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the path is too long: %.100s", path);
    snprintf(out->path, sizeof out->path, "%s", path);
    if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        out->stream = fopen(path, "we");
        return out->stream ? INVAR_OK : io_error(path, "cannot be written");
    }
    snprintf(out->other, sizeof out->other, "%s.new-%ld", path, (long)getpid());
    fd = open(out->other, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return io_error(path, "cannot be made");
    out->stream = fdopen(fd, "w");
    if (!out->stream) {
        close(fd);
        unlink(out->other);
        return io_error(path, "cannot be written");
    }
    return INVAR_OK;
}

/* Everything is on the disk, and without an error since the beginning. */
static bool complete(FILE *stream, bool sync)
{
    return fflush(stream) == 0 && !ferror(stream) && (!sync || fsync(fileno(stream)) == 0);
}

invar_status invar_output_close(invar_output *out, invar_status status)
{
    bool renamed = out->other[0] != '\0';

    if (out->stream == stdout)
        return status; // main looks whether it could be written
    if (status == INVAR_OK && !complete(out->stream, renamed))
        status = io_error(out->path, "could not be written");
    if (fclose(out->stream) != 0 && status == INVAR_OK)
        status = io_error(out->path, "could not be written");
    if (status == INVAR_OK && renamed && rename(out->other, out->path) != 0)
        status = io_error(out->path, "cannot get its name");
    if (status != INVAR_OK && renamed)
        unlink(out->other);
    return status;
}
