/*
 * files.h - makes a folder contain exactly the files of a list, incrementally and safely.
 *
 * The checkout index, FOLDER.tree next to the folder, records which files were written and their
 * size, time and inode at that moment. A wanted file that is unchanged keeps its time, so that
 * builds stay incremental; a file that a build changed is written again; an unwanted file of the
 * index is removed; other files stay. The index is removed before the first change, so a killed
 * checkout leaves none, and the next one starts with an empty folder.
 *
 * Names come from untrusted repositories. Nothing outside the folder is ever written or removed: no
 * name may leave the folder, and no link on the way to a file is followed.
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

/* The modes of git. A folder is listed only if it must exist without any file in it. */
typedef enum invar_files_mode {
    INVAR_FILES_FOLDER = 0040000,
    INVAR_FILES_PLAIN = 0100644,
    INVAR_FILES_PROGRAM = 0100755,
    INVAR_FILES_LINK = 0120000
} invar_files_mode;

typedef struct invar_files_entry {
    const char *path; /* relative path; owned by the list */
    invar_files_mode mode;
    char id[INVAR_OID_SIZE]; /* hash of the contents: equal ids mean equal bytes; empty for a
                                folder */
    void *from;              /* payload for the source of contents */
    uint64_t size, inode;    /* size, inode and time of the file after it was written */
    int64_t seconds, nanoseconds;
} invar_files_entry;

typedef struct invar_files_names invar_files_names;

typedef struct invar_files {
    invar_files_entry *entries; /* (count) */
    size_t count;
    int64_t capacity;
    invar_files_names *names; /* storage of the paths; owned */
} invar_files;

/* Returns true if a path is `folder` or below it. Both are absolute and without links. */
bool invar_files_is_inside(const char *path, const char *folder);

void invar_files_release(invar_files *files);

/* Appends a file. Returns INVAR_E_CORRUPT if the path would leave the folder or is too long. */
invar_status invar_files_add(invar_files *files, const char *path, invar_files_mode mode,
                             const char *id, void *from) INVAR_MUST_USE;

/* Sorts by path, as bytes. Returns INVAR_E_CORRUPT if a path occurs twice. */
invar_status invar_files_sort(invar_files *files) INVAR_MUST_USE;

/* ---- the checkout index ---------------------------------------------------------------------- */

/* Parses an index. *found_out is false if it is damaged, and *out is then empty. */
invar_status invar_files_parse(invar_files *out, bool *found_out, const char *text,
                               size_t bytes) INVAR_MUST_USE;

/* Reads an index file. *found_out is false if it does not exist or is damaged. */
invar_status invar_files_read(invar_files *out, bool *found_out, const char *path) INVAR_MUST_USE;
invar_status invar_files_write(const invar_files *files, const char *path) INVAR_MUST_USE;

/* ---- checkout -------------------------------------------------------------------------------- */

/* Source of file contents. */
typedef struct invar_files_source {
    /* Writes the contents of a file to `fd`; `path` is used in error messages only. */
    invar_status (*put)(void *payload, const invar_files_entry *entry, int fd, const char *path);
    /* Writes the target of a link to `out`. */
    invar_status (*link)(void *payload, const invar_files_entry *entry, char out[INVAR_PATH_SIZE]);
    void *payload;
} invar_files_source;

/* Makes the folder contain these files. Sorts the list and fills in size, inode and time. */
invar_status invar_files_checkout(const char *folder, invar_files *files,
                                  const invar_files_source *source) INVAR_MUST_USE;

/* Writes all bytes to a descriptor, for implementations of `put`. */
invar_status invar_files_put(int fd, const void *data, size_t bytes,
                             const char *path) INVAR_MUST_USE;

#endif
