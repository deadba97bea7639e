/*
 * workspace_internal.h - what the parts of the workshop share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_WORKSPACE_WORKSPACE_INTERNAL_H
#define INVAR_BISECT_WORKSPACE_WORKSPACE_INTERNAL_H

#include "base/file.h"
#include "base/hash.h"
#include "base/status.h"
#include "bisect/workspace/workspace.h"

#ifdef __cplusplus
extern "C" {
#endif

struct invar_workspace {
    char folder[INVAR_PATH_SIZE]; /* absolute, without links */
};

/* FOLDER/KIND/KEY, KIND being "programs" or "runs". */
invar_status invar_workspace_path(char out[INVAR_PATH_SIZE], const invar_workspace *workshop,
                                  const char *kind, const invar_digest *key) INVAR_MUST_USE;

/* A new, empty FOLDER/KIND/KEY.USER-NUMBER.tmp. */
invar_status invar_workspace_entry_new(char out[INVAR_PATH_SIZE], const invar_workspace *workshop,
                                       const char *kind, const invar_digest *key) INVAR_MUST_USE;

/*
 * Puts the folder `made` in the place of `path`. Without `replace` another that is there stays, and
 * *lost_out says so.
 */
invar_status invar_workspace_entry_commit(bool *lost_out, const char *made, const char *path,
                                          bool replace) INVAR_MUST_USE;

/* Removes a folder that was begun, after a failure: its record stays. */
void invar_workspace_entry_discard(const char *made);

/* INVAR_E_IO when the disk is so full that anything may have failed because of that. */
invar_status invar_workspace_check_room(const invar_workspace *workshop) INVAR_MUST_USE;

/* A text, or none, as part of a key: no two lists of texts give the same bytes. */
void invar_workspace_key_add(invar_hasher *hasher, const char *text);

/*
 * The files and folders that words of the value name, as they are now (size, time of the last
 * change), as part of a key. What is not there is no part of it.
 */
void invar_workspace_mix_inputs(invar_hasher *hasher, const char *value, size_t bytes);

/* ---- binary.c -------------------------------------------------------------------------------- */

/* Copies a program and its modules into the folder of `to`; the digest is that of all of them. */
invar_status invar_workspace_copy_binary(invar_digest *out, const char *from,
                                         const char *to) INVAR_MUST_USE;

/*
 * ---- build_info.c
 * --------------------------------------------------------------------------------
 */

/*
 * TO.build: the tree and, with a repository, the commit; what the build says beside its `program`
 * of the compiler stays.
 */
invar_status invar_workspace_write_origin(const char *to, const char *program, const char *tree,
                                          invar_repo *repo, const char *commit) INVAR_MUST_USE;

/* The files of the build beside `program`, if there are any, to their place beside `to`. */
invar_status invar_workspace_copy_origin(const char *to, const char *program) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
