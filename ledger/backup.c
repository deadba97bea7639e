/*
 * backup.c - a copy of a ledger in a new file, whole or without old detail.
 *
 * The copy is made in a folder of its own beside the place where it shall be, and gets its name
 * when it is whole and synced. A backup that was killed leaves that folder and nothing else; the
 * next one of the same name removes it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // renameat2

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/temp_name.h"
#include "ledger/internal.h"
#include "ledger/store/ledger_file.h"

#include "base/invar_banned.h"

static invar_status io_error(const char *path, const char *what)
{
    return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s: %s: %s", path, what, strerror(errno));
}

static invar_status name_taken(const char *path)
{
    return INVAR_FAIL(INVAR_E_INVALID, EEXIST,
                      "%.1000s: there is a file of that name already, or one of that name with "
                      "\"-wal\"",
                      path);
}

static invar_status copy_shortened(invar_ledger *ledger, const char *path,
                                   const invar_ledger_retention *keep)
{
    invar_ledger *to;
    invar_status status;

    INVAR_TRY(invar_ledger_open(
        &to, path, &(invar_ledger_options){.create = true, .writer = "invar ledger backup"}));
    status = invar_ledger_copy_pruned(to, ledger, keep);
    invar_ledger_close(to);
    return status;
}

static invar_status sync_file(const char *path)
{
    int fd = invar_fd_open(path, O_RDWR | O_CLOEXEC, 0), rc;

    if (fd < 0)
        return io_error(path, "cannot be opened");
    rc = invar_fd_sync(fd);
    close(fd);
    return rc == 0 ? INVAR_OK : io_error(path, "cannot be synced");
}

/* Never in the place of another file, also one that appeared just now. */
static invar_status give_name(const char *copy, const char *path)
{
    int rc = renameat2(AT_FDCWD, copy, AT_FDCWD, path, RENAME_NOREPLACE);

    if (rc != 0 && (errno == EINVAL || errno == ENOSYS)) // the file system cannot do that at once
        rc = link(copy, path) == 0 ? unlink(copy) : -1;
    if (rc != 0)
        return errno == EEXIST ? name_taken(path) : io_error(path, "cannot be made");
    return invar_ledger_file_sync_folder(path);
}

/* The status that counts is the copy's. */
static void remove_quietly(const char *folder)
{
    invar_error kept;

    invar_error_take(&kept);
    if (invar_held_folder_remove(folder) != INVAR_OK)
        invar_error_clear(); // the next copy of this name removes it
    invar_error_put(&kept);
}

invar_status invar_ledger_backup(invar_ledger *ledger, const char *path,
                                 const invar_ledger_retention *keep)
{
    char folder[INVAR_PATH_SIZE], copy[INVAR_PATH_SIZE + 8];
    invar_status status;

    INVAR_TRY(invar_temp_name(folder, path, "partial"));
    if (access(path, F_OK) == 0 || invar_ledger_file_has_wal(path)) // a log would become the copy's
        return name_taken(path);
    if (mkdir(folder, 0700) != 0)
        return io_error(path, "cannot be made");
    snprintf(copy, sizeof copy, "%s/copy", folder);
    status = keep && keep->last_steps >= 0 ? copy_shortened(ledger, copy, keep)
                                           : invar_sql_copy(ledger->sql, copy);
    if (status == INVAR_OK)
        status = sync_file(copy);
    if (status == INVAR_OK)
        status = give_name(copy, path);
    remove_quietly(folder);
    return status;
}
