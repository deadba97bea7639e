/*
 * tar.h - files in one file: POSIX ustar archives of plain files, as `tar tf` lists them.
 *
 *     invar_tar_writer_open(&tar, "a.tar");
 *     invar_tar_add_file(tar, "checkpoint/state.json", "/where/it/is");
 *     invar_tar_commit(tar);
 *     invar_tar_writer_close(tar);
 *
 * Reading accepts what this writer writes and nothing else: names of letters, digits, '.', '_' and
 * '-', in folders below the one that is unpacked into, none twice; no links, no owners, no times.
 * Equal files give equal archives.
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

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_TAR_NAME_BYTES 100
#define INVAR_TAR_MAX_MEMBERS 4096
#define INVAR_TAR_MAX_BYTES ((INT64_C(1) << 33) - 1) /* of a member: what the format can say */

typedef struct invar_tar_member {
    char name[INVAR_TAR_NAME_BYTES + 1];
    int64_t bytes;
    invar_digest hash; /* of its content */
} invar_tar_member;

/* In order of the archive. Zeroed at first; release. */
typedef struct invar_tar_list {
    invar_tar_member *items; /* (count) */
    int64_t count, capacity;
} invar_tar_list;

void invar_tar_list_release(invar_tar_list *list);

/* NULL: there is none of that name. */
const invar_tar_member *invar_tar_find(const invar_tar_list *list, const char *name);

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct invar_tar_writer invar_tar_writer;

/* The file appears when it is committed, whole. */
invar_status invar_tar_writer_open(invar_tar_writer **out, const char *path) INVAR_MUST_USE;
invar_status invar_tar_add(invar_tar_writer *writer, const char *name, const void *data,
                           size_t bytes) INVAR_MUST_USE;
invar_status invar_tar_add_file(invar_tar_writer *writer, const char *name,
                                const char *path) INVAR_MUST_USE;

/* What was added so far; borrowed until the next call. */
const invar_tar_list *invar_tar_members(const invar_tar_writer *writer);

invar_status invar_tar_commit(invar_tar_writer *writer) INVAR_MUST_USE;
void invar_tar_writer_close(invar_tar_writer *writer); /* NULL is allowed */

/* ---- reading --------------------------------------------------------------------------------- */

/* True when the file begins like a tar archive. */
bool invar_tar_is(const char *path);

/*
 * Unpacks all members below `folder`, which is there. INVAR_E_CORRUPT: damaged, hostile, or written
 * by another program; INVAR_E_IO. After a failure part of it may have been unpacked.
 */
invar_status invar_tar_unpack(invar_tar_list *out, const char *path,
                              const char *folder) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
