/*
 * file.h - reads, hashes and atomically writes files; checks outputs; paths and folders.
 *
 * Every message names the path. A file is written under a temporary name, synced and renamed, so
 * that readers see the old content or the new one and never a part.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_FILE_H
#define INVAR_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"

/* Like open(2) and fsync(2), but continue after a signal. Return -1 with errno on failure. */
int invar_fd_open(const char *path, int flags, unsigned mode);
int invar_fd_sync(int fd);

/* Writes all bytes, continuing after signals. Returns 0, or -1 with errno. */
int invar_fd_write(int fd, const void *data, size_t bytes);

/*
 * Reads a regular file. *out (*bytes_out) is followed by a NUL that is not counted; the caller
 * frees it with invar_free. Returns INVAR_E_NOTFOUND, INVAR_E_IO, or INVAR_E_INVALID if it is not a
 * regular file or has more than `max_bytes`.
 */
invar_status invar_file_read(char **out, size_t *bytes_out, const char *path,
                             size_t max_bytes) INVAR_MUST_USE;

/* Like invar_file_read, but also reads pipes and devices, to their end; "-" is standard input. */
invar_status invar_file_read_stream(char **out, size_t *bytes_out, const char *path,
                                    size_t max_bytes) INVAR_MUST_USE;

/*
 * Computes the digest and the size of a regular file with little memory. Returns INVAR_E_NOTFOUND,
 * INVAR_E_IO, or INVAR_E_INVALID if it is not a regular file.
 */
invar_status invar_file_hash(invar_digest *out, int64_t *bytes_out,
                             const char *path) INVAR_MUST_USE;

/* Callback for each block that is hashed. A failure ends the call, which returns it. */
typedef invar_status (*invar_file_block_fn)(void *payload, const void *piece, size_t bytes);

/*
 * Like invar_file_hash, for an open file from its current position to its end. `take`, unless NULL,
 * receives exactly the hashed bytes, so that a copy made by it has the digest. `path` is used in
 * messages only.
 */
invar_status invar_fd_hash(invar_digest *out, int64_t *bytes_out, int fd, const char *path,
                           invar_file_block_fn take, void *payload) INVAR_MUST_USE;

/*
 * Fails if a file exists at `path` that an output must not replace, because the user probably named
 * it by mistake. `mark` is the text that files of the output's kind have at byte `at`: only an
 * empty file or a file with the mark, which may be cut off within the mark, is replaced; links,
 * folders, pipes, sockets and devices are rejected. With a `mark` of NULL, for names that only
 * Invar uses, everything may be replaced except SQLite databases, such as ledgers.
 */
invar_status invar_path_check_output(const char *path, const char *mark, size_t at) INVAR_MUST_USE;

/*
 * Checks before long work whether a file can be created at `path`. Fails if its folder is missing,
 * is not a folder or cannot be written, or if `path` itself is a folder. Creates nothing.
 */
invar_status invar_path_check_writable(const char *path) INVAR_MUST_USE;

/*
 * Like invar_path_check_writable, but a file directly in the run folder `home` also passes if the
 * folder does not exist yet.
 */
invar_status invar_path_check_writable_in(const char *path, const char *home) INVAR_MUST_USE;

/* Like invar_path_check_writable, for a caller that creates missing folders. */
invar_status invar_path_check_creatable(const char *path) INVAR_MUST_USE;

/*
 * Checks before long work whether files can be created in the folder `path`, which may be missing.
 */
invar_status invar_path_check_folder(const char *path) INVAR_MUST_USE;

/*
 * Replaces a file atomically and durably: writes PATH.invar-tmp, syncs it, renames it to `path`,
 * and syncs the folder.
 */
invar_status invar_file_write(const char *path, const void *data, size_t bytes) INVAR_MUST_USE;

/* Like invar_file_write, in several calls, for content that is never completely in memory. */
typedef struct invar_file_writer invar_file_writer;

/*
 * Opens the temporary file of `path`, and fails if `path` is an SQLite database. The caller frees
 * *out with invar_file_writer_close. _put appends bytes.
 */
invar_status invar_file_writer_open(invar_file_writer **out, const char *path) INVAR_MUST_USE;
invar_status invar_file_writer_put(invar_file_writer *writer, const void *data,
                                   size_t bytes) INVAR_MUST_USE;

/* Syncs and renames the file, and syncs the folder. Only invar_file_writer_close may follow. */
invar_status invar_file_writer_commit(invar_file_writer *writer) INVAR_MUST_USE;

/* Frees the writer; without a successful commit, removes the temporary file. May be NULL. */
void invar_file_writer_close(invar_file_writer *writer);

/* Writes "dir/name" to `out`. Returns INVAR_E_INVALID if it does not fit into `size` bytes. */
invar_status invar_path_join(char *out, size_t size, const char *dir,
                             const char *name) INVAR_MUST_USE;

#define INVAR_PATH_SIZE 4096 /* bytes of a path, with the NUL */

#define INVAR_PATH_SHOWN_SIZE 1024 /* bytes of a path in a message, with the NUL */

/*
 * Writes a path for a message, and returns `out`: one line, with '?' for control characters
 * (invar_text_quote); only its end if it is too long. The macro's text lives as long as a local
 * variable of the block that it stands in.
 */
const char *invar_path_show(char out[INVAR_PATH_SHOWN_SIZE], const char *path);
#define INVAR_SHOWN_PATH(path) invar_path_show((char[INVAR_PATH_SHOWN_SIZE]){0}, path)

/* Fails with errno and INVAR_E_IO: "PATH: WHAT: REASON". */
invar_status invar_path_fail(const char *path, const char *what) INVAR_MUST_USE;

#define INVAR_PATH_HINT_SIZE 1024 /* bytes of such a hint, with the NUL */

/*
 * Writes the hint that a message about a missing file adds: " (/current/folder/FILE)" for a
 * relative path, else an empty text. All relative paths begin at the current folder, also those in
 * a recipe.
 */
void invar_path_absolute_hint(char out[INVAR_PATH_HINT_SIZE], const char *path);

/* Creates a folder and its missing parents, durably. Succeeds if the folder exists. */
invar_status invar_held_folder_make(const char *path) INVAR_MUST_USE;

/* Like invar_held_folder_make, but the parent must exist. */
invar_status invar_held_folder_make_one(const char *path) INVAR_MUST_USE;

/* A folder that is held open, so that it is found again after a move. Zeroed if none is open. */
typedef struct invar_held_folder {
    bool is_open;               /* `fd` is valid */
    int fd;                     /* descriptor of the folder */
    char path[INVAR_PATH_SIZE]; /* last known path of the folder */
} invar_held_folder;

/* Opens a folder. Release it with invar_held_folder_release. */
invar_status invar_held_folder_open(invar_held_folder *out, const char *path) INVAR_MUST_USE;
void invar_held_folder_release(invar_held_folder *folder);

/* Updates folder->path if the folder was moved. Returns INVAR_E_STATE if it was removed. */
invar_status invar_held_folder_refresh(invar_held_folder *folder) INVAR_MUST_USE;

/* Syncs the folder `path`, so that a rename in it survives the loss of power. */
invar_status invar_held_folder_sync(const char *path) INVAR_MUST_USE;

/* Removes a folder with its content, without following links. Succeeds if it does not exist. */
invar_status invar_held_folder_remove(const char *path) INVAR_MUST_USE;

/* *out = whether the folder has no entries; also true if it does not exist. */
invar_status invar_held_folder_is_empty(bool *out, const char *path) INVAR_MUST_USE;

/* True if anything exists at the path, also a dangling link. */
bool invar_path_exists(const char *path);

/* Writes the folder of `path` to `out`; "." for a path without a slash. */
invar_status invar_path_folder(char out[INVAR_PATH_SIZE], const char *path) INVAR_MUST_USE;

/* Writes the path itself to `out` if it exists, else its nearest parent that exists. */
invar_status invar_path_nearest_existing(char out[INVAR_PATH_SIZE],
                                         const char *path) INVAR_MUST_USE;

/* Returns the length of a path without slashes at its end; the slash of "/" is kept. */
size_t invar_path_length(const char *path);

/* True if both paths lead to the same file or folder, or are equal. */
bool invar_path_same(const char *a, const char *b);

#endif
