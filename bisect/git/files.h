/*
 * files.h - a list of files, and a folder that is made to hold exactly them.
 *
 * The folder's memory, FOLDER.tree beside it, says which files were laid there and how the file
 * system saw them then (size, time, inode). So a file that is wanted again and that nobody touched
 * is left alone, with its time, and builds stay incremental; a file that a build changed is laid
 * anew; a file that is not wanted any more is removed; files that were never laid stay. While the
 * folder changes it has no memory: a process that is killed leaves none, and the next one starts
 * from an empty folder.
 *
 * Names come from repositories that nobody vouches for. Nothing outside the folder is ever written
 * or removed: no name may leave the folder, and no link is followed on the way to a file, whoever
 * put it there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_GIT_FILES_H
#define INVAR_BISECT_GIT_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "bisect/search/history.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The modes of git. A folder is listed only where it has to be there without a file in it. */
typedef enum invar_files_mode {
    INVAR_FILES_FOLDER = 0040000,
    INVAR_FILES_PLAIN = 0100644,
    INVAR_FILES_PROGRAM = 0100755,
    INVAR_FILES_LINK = 0120000
} invar_files_mode;

typedef struct invar_files_entry {
    const char *path; /* relative, of the list */
    invar_files_mode mode;
    char id[INVAR_OID_SIZE]; /* equal ids mean equal contents; "": a folder */
    void *from;              /* for the source */
    uint64_t size, inode;    /* of the file as it was laid */
    int64_t seconds, nanoseconds;
} invar_files_entry;

typedef struct invar_files_names invar_files_names;

typedef struct invar_files {
    invar_files_entry *entries; /* (count) */
    size_t count, room;
    invar_files_names *names; /* holds the paths */
} invar_files;

void invar_files_release(invar_files *files);

/* INVAR_E_CORRUPT: a path that would leave the folder, or is too long. */
invar_status invar_files_add(invar_files *files, const char *path, invar_files_mode mode,
                             const char *id, void *from) INVAR_MUST_USE;

/* By path, as bytes. INVAR_E_CORRUPT: a path is there twice. */
invar_status invar_files_sort(invar_files *files) INVAR_MUST_USE;

/* ---- the memory of a folder ------------------------------------------------------------------ */

/* Lists in *out what a memory says; *found_out false: nothing that can be used. */
invar_status invar_files_parse(invar_files *out, bool *found_out, const char *text,
                               size_t bytes) INVAR_MUST_USE;

/* *found_out false: there is no memory, or none that can be used. */
invar_status invar_files_read(invar_files *out, bool *found_out, const char *path) INVAR_MUST_USE;
invar_status invar_files_write(const invar_files *files, const char *path) INVAR_MUST_USE;

/* ---- laying ---------------------------------------------------------------------------------- */

/* Where contents come from. */
typedef struct invar_files_source {
    /* Writes the content of a plain file or program to `fd`; `path` is for messages. */
    invar_status (*put)(void *payload, const invar_files_entry *entry, int fd, const char *path);
    /* Where a link points to. */
    invar_status (*link)(void *payload, const invar_files_entry *entry, char out[INVAR_PATH_SIZE]);
    void *payload;
} invar_files_source;

/* Makes the folder hold these files; sorts them and fills in how they were laid. */
invar_status invar_files_checkout(const char *folder, invar_files *files,
                                  const invar_files_source *source) INVAR_MUST_USE;

/* All bytes to a descriptor, for `put`. */
invar_status invar_files_put(int fd, const void *data, size_t bytes,
                             const char *path) INVAR_MUST_USE;

/* A failure with errno: "PATH: WHAT: REASON". */
invar_status invar_files_fail(const char *path, const char *what) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
