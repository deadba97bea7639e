/*
 * lock_file.h - lock for a file that one process at a time rewrites again and again.
 *
 * Each write replaces the file by renaming, so a lock on the file itself would be lost. Instead
 * PATH-lock is locked, an empty file next to it, which its holder removes. The lock (F_OFD_SETLK)
 * ends with the process, so the lock file of a killed process can be locked again. On a file system
 * without locks the file is not protected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACK_LOCK_FILE_H
#define INVAR_ENGINE_RECORD_TRACK_LOCK_FILE_H

#include <stdbool.h>

#include "base/file.h"
#include "base/status.h"

/* Zero-initialized, it holds no lock. */
typedef struct invar_lock_file {
    bool locked;
    /* the lock file; valid if `locked` */
    int fd;
    /* path of the lock file */
    char lock[INVAR_PATH_SIZE];
} invar_lock_file;

/*
 * Returns INVAR_E_BUSY if another process holds the lock now, INVAR_E_IO if a file other than an
 * empty regular file has the name of the lock file. Changes nothing.
 */
invar_status invar_lock_file_check(const char *path) INVAR_MUST_USE;

/*
 * Acquires the lock. Fails like invar_lock_file_check, or with INVAR_E_IO if the lock file cannot
 * be made. Succeeds on a file system without locks. Release with invar_lock_file_release.
 */
invar_status invar_lock_file_acquire(invar_lock_file *out, const char *path) INVAR_MUST_USE;
/* Removes the lock file and releases the lock. Does nothing if no lock is held. */
void invar_lock_file_release(invar_lock_file *lock);

#endif
