/*
 * tar.h - POSIX ustar archives of plain files, as `tar tf` lists them.
 *
 *     invar_tar_writer_open(&tar, "a.tar");
 *     invar_tar_add_file(tar, "checkpoint/state.json", "/where/it/is");
 *     invar_tar_commit(tar);
 *     invar_tar_writer_close(tar);
 *
 * The reader accepts only archives of this writer: unique names of letters, digits, '.', '_' and
 * '-', at most 7 folders deep, without a dot at the beginning of a folder or file; no links, owners
 * or times. Equal files give equal archives.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_TAR_H
#define INVAR_ENGINE_FILES_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"

#define INVAR_TAR_NAME_BYTES 100
#define INVAR_TAR_MAX_MEMBERS 4096
#define INVAR_TAR_MAX_BYTES ((INT64_C(1) << 33) - 1) /* largest member of the format */

typedef struct invar_tar_member {
    char name[INVAR_TAR_NAME_BYTES + 1];
    int64_t bytes;
    invar_digest hash; /* hash of its content */
} invar_tar_member;

/* Members in archive order. Zero-initialize before use; release with invar_tar_list_release. */
typedef struct invar_tar_list {
    invar_tar_member *items; /* (count) */
    int64_t count, capacity;
} invar_tar_list;

void invar_tar_list_release(invar_tar_list *list);

/* Returns the member with this name; NULL if it does not exist. */
const invar_tar_member *invar_tar_find(const invar_tar_list *list, const char *name);

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct invar_tar_writer invar_tar_writer;

/*
 * Begins an archive. The file appears, complete, when it is committed. Fails if `path` is a file
 * that is neither empty nor an archive (invar_path_check_output).
 */
invar_status invar_tar_writer_open(invar_tar_writer **out, const char *path) INVAR_MUST_USE;
invar_status invar_tar_add(invar_tar_writer *writer, const char *name, const void *data,
                           size_t bytes) INVAR_MUST_USE;
invar_status invar_tar_add_file(invar_tar_writer *writer, const char *name,
                                const char *path) INVAR_MUST_USE;

/* Members added so far; borrowed until the next call. */
const invar_tar_list *invar_tar_members(const invar_tar_writer *writer);

invar_status invar_tar_commit(invar_tar_writer *writer) INVAR_MUST_USE;
void invar_tar_writer_close(invar_tar_writer *writer);

/* ---- reading --------------------------------------------------------------------------------- */

/* Returns true if the file begins like a tar archive. */
bool invar_tar_is_archive(const char *path);

/*
 * Unpacks all members into `folder`, which must exist. Returns INVAR_E_CORRUPT if the archive is
 * damaged, hostile, or written by another program. After a failure some members may have been
 * unpacked.
 */
invar_status invar_tar_unpack(invar_tar_list *out, const char *path,
                              const char *folder) INVAR_MUST_USE;

#endif
