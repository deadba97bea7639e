/*
 * ledger_file.h - checks where a ledger file lies, and holds the lock that allows only one writer.
 *
 * The lock is on "PATH-lock", a file beside the ledger, because the locks of SQLite last for one
 * transaction only. The system releases it when the process dies, however it dies. The lock file
 * stays and names its last holder. A ledger on a network file system can be read if it has no WAL,
 * and is never written, because SQLite loses data there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_STORE_LEDGER_FILE_H
#define INVAR_LEDGER_STORE_LEDGER_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum invar_ledger_file_kind {
    INVAR_LEDGER_FILE_KIND_MISSING,
    INVAR_LEDGER_FILE_KIND_EMPTY,
    INVAR_LEDGER_FILE_KIND_DATA
} invar_ledger_file_kind;

#define INVAR_LEDGER_FILE_PATH_SIZE 4096

/*
 * Writes the target of a symbolic link to `out`, or `path` itself if it is no link. WAL and lock
 * lie beside the target, so a ledger has one lock under all its names.
 */
invar_status invar_ledger_file_resolve(char out[INVAR_LEDGER_FILE_PATH_SIZE],
                                       const char *path) INVAR_MUST_USE;

/*
 * *out = whether the file is missing, empty or has data. Returns INVAR_E_INVALID if it is a folder
 * or a device, INVAR_E_CORRUPT if it has one byte, which SQLite would overwrite.
 */
invar_status invar_ledger_file_look(invar_ledger_file_kind *out, const char *path) INVAR_MUST_USE;

/*
 * Returns the size of a file beside the ledger, -1 if it does not exist. "-wal" may hold steps that
 * are not in the ledger yet, and a reader leaves it empty. "-journal" exists only while the tables
 * are created. "-lock" exists since a writer has opened the ledger for the first time.
 */
int64_t invar_ledger_file_beside(const char *path, const char *suffix);

/* True if this process may write the file and create files beside it. */
bool invar_ledger_file_writable(const char *path);

/* True if the file has a second name (a hard link), under which a writer has another lock. */
bool invar_ledger_file_has_other_names(const char *path);

/*
 * Returns the name of the network file system that `path`, or its folder if it does not exist, lies
 * on; NULL if the file system is local.
 */
const char *invar_ledger_file_network(const char *path);

/*
 * Returns the name of the network file system with this f_type of statfs(2); NULL if it is local.
 */
const char *invar_ledger_file_network_name(long type);

/* True if `mounts`, the text of /proc/self/mountinfo, lists this FUSE device as a local disk. */
bool invar_ledger_file_fuse_local(const char *mounts, unsigned major_number, unsigned minor_number);

/*
 * Locks the ledger for writing. The lock is held until *fd_out is closed. `writer` is the name of
 * this program in the lock file; NULL means "a process". Never waits: returns INVAR_E_BUSY, with
 * the holder in the message, if the lock is taken.
 */
invar_status invar_ledger_file_lock(int *fd_out, const char *path,
                                    const char *writer) INVAR_MUST_USE;

/* False if the lock file was removed, so that a second writer could get a lock of its own. */
bool invar_ledger_file_lock_valid(int fd);

/* True if the ledger of this lock was removed; a ledger that was moved with its folder was not. */
bool invar_ledger_file_removed(int fd);

/* Removes the lock file. Caller holds the lock. */
void invar_ledger_file_remove_lock(const char *path);

/* Syncs the folder of `path`, so that a new name in it survives the loss of power. */
invar_status invar_ledger_file_sync_folder(const char *path) INVAR_MUST_USE;

#endif
