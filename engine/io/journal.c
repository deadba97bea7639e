/*
 * journal.c - lines that are durable.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/io/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

struct invar_journal {
    char path[INVAR_PATH_SIZE];
    int fd;
    bool broken; /* its last line may be half a one: nothing may follow */
};

static invar_status cannot(const char *path, const char *what)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    int why = errno;

    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_IO, why, "%s: cannot %s: %s", shown, what, strerror(why));
}

invar_status invar_journal_begin(invar_journal **out, const char *path, const void *data,
                                 size_t bytes)
{
    invar_journal *j = NULL;

    *out = NULL;
    if (strlen(path) >= sizeof j->path)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%.200s...: the path is too long", path);
    INVAR_TRY(invar_file_write(path, data, bytes));
    INVAR_TRY(invar_alloc((void **)&j, 1, sizeof *j, "a journal"));
    *j = (invar_journal){.fd = invar_fd_open(path, O_WRONLY | O_APPEND | O_CLOEXEC, 0)};
    memcpy(j->path, path, strlen(path) + 1);
    if (j->fd < 0) {
        invar_status status = cannot(path, "open it");

        invar_free(j);
        return status;
    }
    *out = j;
    return INVAR_OK;
}

/* Lines of a file without a name are lost with the process. */
static invar_status check_name(const invar_journal *j)
{
    struct stat info;

    if (fstat(j->fd, &info) != 0)
        return cannot(j->path, "look at it");
    if (info.st_nlink > 0)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "%.1000s was removed while it was being written: nothing can go on by it",
                      j->path);
}

invar_status invar_journal_append(invar_journal *j, const void *data, size_t bytes)
{
    const char *at = data, *end = at + bytes;

    if (j->broken)
        return INVAR_FAIL(INVAR_E_STATE, 0, "%.1000s: nothing is written to it after a failure",
                          j->path);
    INVAR_TRY(check_name(j));
    j->broken = true;
    while (at < end) {
        ssize_t put = write(j->fd, at, (size_t)(end - at));

        if (put < 0 && errno != EINTR)
            return cannot(j->path, "write to it");
        at += put > 0 ? put : 0;
    }
    if (invar_fd_sync(j->fd) != 0)
        return cannot(j->path, "sync it");
    j->broken = false;
    return INVAR_OK;
}

void invar_journal_close(invar_journal *j)
{
    if (!j)
        return;
    (void)close(j->fd);
    invar_free(j);
}
