/*
 * lock_file.h - a file that one process writes at a time, again and again.
 *
 * Each writing replaces the file, so no lock on it would last: what is locked is PATH-lock, an
 * empty file beside it, which its holder removes. The lock (F_OFD_SETLK) ends with the process, and
 * what a killed one left is taken over. On a file system without locks there is none.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_TRACK_LOCK_FILE_H
#define INVAR_ENGINE_RECORD_TRACK_LOCK_FILE_H

#include <stdbool.h>

#include "base/file.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed: nothing is held. */
typedef struct invar_lock_file {
    bool locked;
    int fd;
    char lock[INVAR_PATH_SIZE];
} invar_lock_file;

/* Before anything is written: INVAR_E_BUSY where somebody holds the file now. */
invar_status invar_lock_file_check(const char *path) INVAR_MUST_USE;

/* INVAR_E_BUSY likewise; INVAR_E_IO where something else has the lock's name. */
invar_status invar_lock_file_take(invar_lock_file *out, const char *path) INVAR_MUST_USE;
void invar_lock_file_release(invar_lock_file *hold);

#ifdef __cplusplus
}
#endif
#endif
