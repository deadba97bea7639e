/*
 * backup.c - copies a ledger to a new file, complete or without old detail.
 *
 * The copy is made in a temporary folder beside the target, synced, and then renamed to the target,
 * so the target never exists half written. A backup that was killed leaves only the temporary
 * folder; the next backup to the same target removes it. An existing file is never replaced.
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

static invar_status fail_exists(const char *path)
{
    return INVAR_FAIL(INVAR_E_INVALID, EEXIST,
                      "%.1000s: there is a file of that name already, or one of that name with "
                      "\"-wal\"",
                      path);
}

static invar_status copy_pruned(invar_ledger *ledger, const char *path,
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

/* Renames the copy to `path`; fails if a file of that name exists by now. */
static invar_status rename_copy(const char *copy, const char *path)
{
    int rc = renameat2(AT_FDCWD, copy, AT_FDCWD, path, RENAME_NOREPLACE);

    if (rc != 0 && (errno == EINVAL || errno == ENOSYS)) // no RENAME_NOREPLACE on this file system
        rc = link(copy, path) == 0 ? unlink(copy) : -1;
    if (rc != 0)
        return errno == EEXIST ? fail_exists(path) : io_error(path, "cannot be made");
    return invar_ledger_file_sync_folder(path);
}

/* Removes the folder and keeps the record of an earlier failure. */
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
    // SQLite would apply a "-wal" file at the target to the copy
    if (access(path, F_OK) == 0 || invar_ledger_file_beside(path, "-wal") > 0)
        return fail_exists(path);
    if (mkdir(folder, 0700) != 0)
        return io_error(path, "cannot be made");
    snprintf(copy, sizeof copy, "%s/copy", folder);
    status = keep && keep->last_steps >= 0 ? copy_pruned(ledger, copy, keep)
                                           : invar_sql_copy(ledger->sql, copy);
    if (status == INVAR_OK)
        status = sync_file(copy);
    if (status == INVAR_OK)
        status = rename_copy(copy, path);
    remove_quietly(folder);
    return status;
}
