/*
 * ledger_file.h - the ledger as a file: where it may lie, and the lock that makes one writer the
 * only one.
 *
 * The lock is on "PATH-lock", beside the ledger, because SQLite's own locks last for a transaction
 * only. The system gives it up when the process dies, however it dies; the file stays and says who
 * held it last.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_STORE_LEDGER_FILE_H
#define INVAR_LEDGER_STORE_LEDGER_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_ledger_file_kind {
    INVAR_LEDGER_FILE_KIND_MISSING,
    INVAR_LEDGER_FILE_KIND_EMPTY,
    INVAR_LEDGER_FILE_KIND_DATA
} invar_ledger_file_kind;

#define INVAR_LEDGER_FILE_PATH_SIZE 4096

/*
 * Where `path` leads: a link's target, else the path itself. What lies beside a ledger (its log,
 * its lock) lies beside the target, so that one ledger has one lock, by whatever name.
 */
invar_status invar_ledger_file_resolve(char out[INVAR_LEDGER_FILE_PATH_SIZE],
                                       const char *path) INVAR_MUST_USE;

/* INVAR_E_INVALID when it is a folder or a device. */
invar_status invar_ledger_file_look(invar_ledger_file_kind *out, const char *path) INVAR_MUST_USE;

/* True when "PATH-wal" is there and holds something: steps that are not in the file yet. */
bool invar_ledger_file_has_wal(const char *path);

/* True when the file can be written, and others be made beside it. */
bool invar_ledger_file_writable(const char *path);

/* What SQLite leaves beside it: a WAL that has nothing in it any more; a journal, which it only has
   while it is made. That a writer has been there shows its lock. */
bool invar_ledger_file_has_empty_wal(const char *path);
bool invar_ledger_file_has_journal(const char *path);
bool invar_ledger_file_has_been_written(const char *path);

/* True when the file has a second name (a hard link), whose writer would have another lock. */
bool invar_ledger_file_has_other_names(const char *path);

/* The name of the network file system that `path` (or its folder) lies on; NULL: it is local. */
const char *invar_ledger_file_network(const char *path);

/* The same for a number that statfs(2) yields. */
const char *invar_ledger_file_network_name(long type);

/* True when `mounts`, the text of /proc/self/mountinfo, calls this FUSE device a local disk. */
bool invar_ledger_file_fuse_local(const char *mounts, unsigned major_number, unsigned minor_number);

/* *fd_out holds the lock until it is closed. INVAR_E_BUSY names the holder. */
invar_status invar_ledger_file_lock(int *fd_out, const char *path,
                                    const char *writer) INVAR_MUST_USE;

/* False when somebody removed the lock's file: then a second writer could get in. */
bool invar_ledger_file_lock_valid(int fd);

/* Whether the ledger of this lock was removed, wherever its folder has been moved to. */
bool invar_ledger_file_removed(int fd);

/* Whether there is a lock, held or not; and, by its holder, without it. */
bool invar_ledger_file_has_lock(const char *path);
void invar_ledger_file_remove_lock(const char *path);

/* Makes the folder's entry of a new file durable. */
invar_status invar_ledger_file_sync_folder(const char *path) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
