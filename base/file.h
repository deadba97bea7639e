/*
 * file.h - whole files, folders, and writing that is never half done.
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

#ifdef __cplusplus
extern "C" {
#endif

/* open(2) and fsync(2), again where a signal came in between. */
int invar_fd_open(const char *path, int flags, unsigned mode);
int invar_fd_sync(int fd);

/*
 * The whole file, with a NUL after its last byte that is not counted; the caller owns *out
 * (invar_free). INVAR_E_NOTFOUND, INVAR_E_IO, INVAR_E_INVALID for what is no regular file or has
 * more than `max_bytes`. Every error names the path.
 */
invar_status invar_file_read(char **out, size_t *bytes_out, const char *path,
                             size_t max_bytes) INVAR_MUST_USE;

/* The same of a file, a pipe or a device, to its end; "-" is standard input. */
invar_status invar_file_read_stream(char **out, size_t *bytes_out, const char *path,
                                    size_t max_bytes) INVAR_MUST_USE;

/*
 * The digest of a regular file of any size, and how many bytes it has; little memory is used.
 * INVAR_E_NOTFOUND, INVAR_E_IO, INVAR_E_INVALID for what is no regular file, as above.
 */
invar_status invar_file_hash(invar_digest *out, int64_t *bytes_out,
                             const char *path) INVAR_MUST_USE;

/*
 * The same of an open file, from where it stands to its end. Each piece that is hashed goes to
 * `take`, unless that is NULL: a copy that it makes has the digest. `path` is for messages.
 */
typedef invar_status (*invar_file_block_fn)(void *payload, const void *piece, size_t bytes);
invar_status invar_fd_hash(invar_digest *out, int64_t *bytes_out, int fd, const char *path,
                           invar_file_block_fn take, void *payload) INVAR_MUST_USE;

/*
 * Fails where something lies that an output must not replace: the name was given by mistake. An
 * output that a user may name replaces a file that is empty or has its kind's `mark`, the text that
 * files of the kind have at byte `at` (what is cut off before the mark's end will do); a link, a
 * pipe, a socket or a device is refused. Without a mark, NULL, the name is ours alone: it replaces
 * whatever is no SQLite database, such as a ledger.
 */
invar_status invar_path_check_output(const char *path, const char *mark, size_t at) INVAR_MUST_USE;

/*
 * Before long work: fails where a file cannot be made at `path`, since its folder is missing, is
 * none or may not be written to, or since `path` itself is a folder.
 */
invar_status invar_path_check_writable(const char *path) INVAR_MUST_USE;

/* The same of an output of a run whose folder `home` will be there by then. */
invar_status invar_path_check_writable_in(const char *path, const char *home) INVAR_MUST_USE;

/* The same where folders that are missing will be made on the way to it. */
invar_status invar_path_check_creatable(const char *path) INVAR_MUST_USE;

/* Before long work: fails if files cannot be made in the folder `path`, which may be missing. Makes
   nothing. */
invar_status invar_path_check_folder(const char *path) INVAR_MUST_USE;

/*
 * Writes PATH.invar-tmp, syncs it, renames it to `path`, syncs the folder: old or new, never a
 * part.
 */
invar_status invar_file_write(const char *path, const void *data, size_t bytes) INVAR_MUST_USE;

/* The same piece by piece, for what shall not lie in memory at once. */
typedef struct invar_file_writer invar_file_writer;

invar_status invar_file_writer_open(invar_file_writer **out, const char *path) INVAR_MUST_USE;
invar_status invar_file_writer_put(invar_file_writer *writer, const void *data,
                                   size_t bytes) INVAR_MUST_USE;

/* Sync, rename, sync of the folder. Afterwards there is only _close. */
invar_status invar_file_writer_commit(invar_file_writer *writer) INVAR_MUST_USE;

/* Without a commit nothing is left behind. NULL is allowed. */
void invar_file_writer_close(invar_file_writer *writer);

/* "dir/name", at most `size` bytes with the NUL; INVAR_E_INVALID when it does not fit. */
invar_status invar_path_join(char *out, size_t size, const char *dir,
                             const char *name) INVAR_MUST_USE;

#define INVAR_PATH_SIZE 4096

#define INVAR_PATH_SHOWN_SIZE 1024

/* The path as messages show it: one harmless line; of a longer one the end. */
void invar_path_show(char out[INVAR_PATH_SHOWN_SIZE], const char *path);

#define INVAR_PATH_WHOLE_SIZE 1024

/*
 * What a message adds when a file is not there: " (/current/folder/FILE)" for a relative path, ""
 * for another. Relative paths begin at the current folder, also those in a recipe.
 */
void invar_path_absolute_hint(char out[INVAR_PATH_WHOLE_SIZE], const char *path);

/* Makes the folder and those above it, each of which then survives the loss of power; one that is
   there is fine. */
invar_status invar_held_folder_make(const char *path) INVAR_MUST_USE;

/* The same where the folder above it must be there. */
invar_status invar_held_folder_make_one(const char *path) INVAR_MUST_USE;

/* A folder that is held open, so that it is found again where it is moved. Zeroed: none is held. */
typedef struct invar_held_folder {
    bool held;
    int fd;
    char path[INVAR_PATH_SIZE];
} invar_held_folder;

invar_status invar_held_folder_open(invar_held_folder *out, const char *path) INVAR_MUST_USE;
void invar_held_folder_release(invar_held_folder *folder);

/* `path` leads to it again, wherever it is by now; INVAR_E_STATE: it was removed. */
invar_status invar_held_folder_refresh(invar_held_folder *folder) INVAR_MUST_USE;

/* Syncs the entries of a folder, so that a rename in it survives the loss of power. */
invar_status invar_held_folder_sync(const char *path) INVAR_MUST_USE;

/* Removes a folder and all in it; one that is not there is fine. Follows no links. */
invar_status invar_held_folder_remove(const char *path) INVAR_MUST_USE;

/* False where something is in the folder; one that is not there is empty. */
invar_status invar_held_folder_is_empty(bool *out, const char *path) INVAR_MUST_USE;

/* True when something is there. */
bool invar_path_exists(const char *path);

/* The folder that `path` lies in. */
invar_status invar_path_folder(char out[INVAR_PATH_SIZE], const char *path) INVAR_MUST_USE;

/* The path itself where something is there, else the nearest folder above it that is there. */
invar_status invar_path_standing(char out[INVAR_PATH_SIZE], const char *path) INVAR_MUST_USE;

/* The bytes of a path without slashes at its end; "/" keeps its own. */
size_t invar_path_length(const char *path);

/* Two names of one file or folder; where there is none, the same name. */
bool invar_path_same(const char *a, const char *b);

#ifdef __cplusplus
}
#endif
#endif
