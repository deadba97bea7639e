/*
 * repo.h - read-only access to a git repository; the only interface to libgit2.
 *
 * Nothing here writes to the repository: no ref, index, work tree, object or reflog. A repository
 * may be used by one thread at a time. Object ids are 40 hexadecimal digits.
 *
 * Repositories that cannot be read completely fail with a remedy: INVAR_E_STATE for a shallow clone
 * whose history ends too early (git fetch --unshallow), a partial clone that lacks objects (git
 * fetch --refetch --no-filter) or another owner (safe.directory); INVAR_E_UNSUPPORTED for a format
 * that this libgit2 does not know; INVAR_E_CORRUPT for damaged or missing objects. Bare
 * repositories and linked work trees are supported.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_GIT_REPO_H
#define INVAR_BISECT_GIT_REPO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "bisect/search/history.h"

typedef struct invar_repo invar_repo;

/*
 * Opens the repository of `path`: a work tree, a folder inside one, a .git folder or a bare
 * repository. Close *out with invar_repo_close.
 */
invar_status invar_repo_open(invar_repo **out, const char *path) INVAR_MUST_USE;
void invar_repo_close(invar_repo *repo); /* `repo` may be NULL */

/*
 * Returns the folder that holds the objects, absolute and without links. It identifies the
 * repository.
 */
const char *invar_repo_folder(const invar_repo *repo);

/* Returns the absolute path of the work tree, or NULL for a bare repository. */
const char *invar_repo_work_tree(const invar_repo *repo);

/*
 * Resolves any revision of git to a commit. Returns INVAR_E_NOTFOUND if it does not exist, and
 * INVAR_E_INVALID if it names a tree or a blob or is ambiguous.
 */
invar_status invar_repo_resolve(char out[INVAR_OID_SIZE], invar_repo *repo,
                                const char *revision) INVAR_MUST_USE;

typedef struct invar_repo_range {
    const char *bad;         /* object id */
    const char *const *good; /* (n_good) object ids; without any, the range reaches down to the
                                roots */
    size_t n_good;
    bool first_parent;
    const char *const *paths; /* (n_paths) files or folders; without any, all commits are
                                 candidates */
    size_t n_paths;
} invar_repo_range;

/*
 * Builds the history of the commits reachable from `bad` but from no `good`; it is empty if `bad`
 * is reachable from a good commit. With paths, returns INVAR_E_NOTFOUND if no commit of the range
 * touches them. The caller frees *out with invar_history_free.
 */
invar_status invar_repo_history(invar_history **out, invar_repo *repo,
                                const invar_repo_range *range) INVAR_MUST_USE;

#define INVAR_REPO_BASES 16

/*
 * Finds the best common ancestors of two commits, at most INVAR_REPO_BASES; *count_out is 0 without
 * a common ancestor.
 */
invar_status invar_repo_merge_bases(char out[INVAR_REPO_BASES][INVAR_OID_SIZE], size_t *count_out,
                                    invar_repo *repo, const char *a, const char *b) INVAR_MUST_USE;

/* *out is true if `ancestor` is `commit` or reachable from it. */
invar_status invar_repo_is_ancestor(bool *out, invar_repo *repo, const char *ancestor,
                                    const char *commit) INVAR_MUST_USE;

#define INVAR_REPO_PARENTS 64
#define INVAR_REPO_TEXT 256
#define INVAR_REPO_FILES 12

typedef struct invar_repo_file {
    char path[INVAR_REPO_TEXT]; /* escaped for terminals */
    char status;                /* A D M R T as in git */
    int64_t added, removed;     /* lines; -1 for a binary file */
} invar_repo_file;

/* Details of a commit for reports. All texts are printable UTF-8 of one line. */
typedef struct invar_repo_commit {
    char id[INVAR_OID_SIZE], tree[INVAR_OID_SIZE];
    size_t n_parents;                                 /* number of parents, which may exceed
                                                         INVAR_REPO_PARENTS */
    char parents[INVAR_REPO_PARENTS][INVAR_OID_SIZE]; /* the first INVAR_REPO_PARENTS parents */
    char author[INVAR_REPO_TEXT];                     /* "Name <mail>" */
    int64_t when;                                     /* committer date in Unix seconds */
    char subject[INVAR_REPO_TEXT];
    int64_t files, added, removed; /* difference from the first parent, or from an empty tree */
    size_t n_shown;
    invar_repo_file shown[INVAR_REPO_FILES]; /* first changed files */
} invar_repo_commit;

invar_status invar_repo_describe(invar_repo_commit *out, invar_repo *repo,
                                 const char *commit) INVAR_MUST_USE;

/* Reads only the subject, which needs no comparison. */
invar_status invar_repo_subject(char out[INVAR_REPO_TEXT], invar_repo *repo,
                                const char *commit) INVAR_MUST_USE;

#define INVAR_REPO_PATCH 65536 /* largest size of a returned patch in bytes */

/*
 * Formats the difference from the first parent, or from an empty tree, as `git show` does: complete
 * lines of printable UTF-8, empty if contents are missing. *cut_out is true if the patch was
 * truncated. The caller frees *out with invar_free.
 */
invar_status invar_repo_patch(char **out, bool *cut_out, invar_repo *repo,
                              const char *commit) INVAR_MUST_USE;

/* Writes the tree id of a commit. */
invar_status invar_repo_tree(char out[INVAR_OID_SIZE], invar_repo *repo,
                             const char *commit) INVAR_MUST_USE;

/*
 * Makes the tracked files of `folder` those of the commit, including submodules: differing files
 * are written, files that the commit lacks are removed, all other files (of a build) stay. The
 * checkout index FOLDER.tree records the contents; after a killed checkout the folder is written
 * from scratch. Submodules are read from the repositories that git keeps below the .git folder or
 * the work tree; INVAR_E_NOTFOUND names a missing one and the remedy. Files have the bytes of the
 * repository: no line ending conversion, no filters, Git LFS pointers stay pointers. A file that is
 * unchanged since the last checkout keeps its time. Returns INVAR_E_CORRUPT for trees with names
 * that would leave the folder; no link on the way to a file is followed.
 */
invar_status invar_repo_checkout(invar_repo *repo, const char *commit,
                                 const char *folder) INVAR_MUST_USE;

/*
 * Like invar_repo_checkout, but copies the work tree `from` in its current state: tracked and
 * untracked files without .git and files that git ignores. If `from` is not in a repository,
 * everything is copied except .git and run folders, which contain a ledger.db. *hash_out is the
 * hash of the contents.
 */
invar_status invar_repo_snapshot(char hash_out[INVAR_OID_SIZE], const char *from,
                                 const char *folder) INVAR_MUST_USE;

/*
 * Formats "Name <mail>" as git would for a commit, from the configuration and environment;
 * "unknown" if not configured.
 */
void invar_repo_signature(char out[INVAR_REPO_TEXT], const invar_repo *repo);

#endif
