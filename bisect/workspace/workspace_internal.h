/*
 * workspace_internal.h - cache entries, keys and build records. Private to bisect/workspace.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_WORKSPACE_WORKSPACE_INTERNAL_H
#define INVAR_BISECT_WORKSPACE_WORKSPACE_INTERNAL_H

#include "base/file.h"
#include "base/hash.h"
#include "base/status.h"
#include "bisect/workspace/workspace.h"

struct invar_workspace {
    char folder[INVAR_PATH_SIZE]; /* absolute, without links */
};

/* Formats FOLDER/KIND/KEY; KIND is "programs" or "runs". */
invar_status invar_workspace_path(char out[INVAR_PATH_SIZE], const invar_workspace *workspace,
                                  const char *kind, const invar_digest *key) INVAR_MUST_USE;

/* Creates an empty folder FOLDER/KIND/KEY.TAG-NUMBER.tmp. */
invar_status invar_workspace_entry_new(char out[INVAR_PATH_SIZE], const invar_workspace *workspace,
                                       const char *kind, const invar_digest *key) INVAR_MUST_USE;

/*
 * Renames the folder `made` to `path`. If `path` exists and `replace` is false, *lost_out is true
 * and nothing changes.
 */
invar_status invar_workspace_entry_commit(bool *lost_out, const char *made, const char *path,
                                          bool replace) INVAR_MUST_USE;

/* Removes an unfinished entry after a failure and keeps the error record. */
void invar_workspace_entry_discard(const char *made);

/* Returns INVAR_E_IO if the disk is so full that this may have caused a failure. */
invar_status invar_workspace_check_room(const invar_workspace *workspace) INVAR_MUST_USE;

/* Adds a text or NULL to a key. Different lists of texts never give the same bytes. */
void invar_workspace_key_add(invar_hasher *hasher, const char *text);

/*
 * Adds the files and folders that words of the value name to a key, with size and time of the last
 * change. Words that name nothing are skipped.
 */
void invar_workspace_key_add_inputs(invar_hasher *hasher, const char *value, size_t bytes);

/* ---- recipe_values.c ------------------------------------------------------------------------- */

/*
 * Reads a record of the cache, a file of "key = value" lines. *out is NULL if it does not exist or
 * has another number of lines. The caller frees *out with invar_free.
 */
invar_status invar_workspace_record_read(char **out, const char *folder, const char *name,
                                         size_t lines) INVAR_MUST_USE;

/* Reads a number of a record. Returns false if there is none. */
bool invar_workspace_record_number(double *out, const char *record, const char *key);

/* Returns the length of a NULL-terminated list; 0 for NULL. */
size_t invar_workspace_count_words(const char *const *words);

/* ---- binary.c -------------------------------------------------------------------------------- */

/* Copies a program and its modules into the folder of `to`. *out is the digest of all of them. */
invar_status invar_workspace_copy_binary(invar_digest *out, const char *from,
                                         const char *to) INVAR_MUST_USE;

/* ---- build_info.c ---------------------------------------------------------------------------- */

/*
 * Writes TO.build: the tree, the commit if there is a repository, and the compiler entries that the
 * build wrote next to `program`.
 */
invar_status invar_workspace_write_build_info(const char *to, const char *program, const char *tree,
                                              invar_repo *repo, const char *commit) INVAR_MUST_USE;

/* Copies the build files next to `program`, if there are any, to their places next to `to`. */
invar_status invar_workspace_copy_build_info(const char *to, const char *program) INVAR_MUST_USE;

#endif
