/*
 * repo.h - a git repository, only ever read: the one door to libgit2.
 *
 * Nothing here writes into the repository: no ref, no index, no work tree, no object, no reflog.
 * A repository belongs to one thread at a time. Object ids are 40 hexadecimal digits.
 *
 * Repositories that cannot be read in full say so with what to do: INVAR_E_STATE for a shallow
 * clone whose history ends too early (git fetch --unshallow), a partial clone whose objects are not
 * here (git fetch --refetch --no-filter), another owner (safe.directory); INVAR_E_UNSUPPORTED for a
 * format that this libgit2 does not know; INVAR_E_CORRUPT for damaged or missing objects. Bare
 * repositories and linked work trees are fine.
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

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_repo invar_repo;

/* `path` is a work tree, a folder below one, a .git or a bare repository. */
invar_status invar_repo_open(invar_repo **out, const char *path) INVAR_MUST_USE;
void invar_repo_close(invar_repo *repo); /* NULL is allowed */

/* The folder that holds the objects, absolute and without links: the repository's name. */
const char *invar_repo_folder(const invar_repo *repo);

/* The work tree, absolute; NULL: a bare repository. */
const char *invar_repo_work_tree(const invar_repo *repo);

/*
 * Any revision that git knows, as a commit. INVAR_E_NOTFOUND: there is none; INVAR_E_INVALID: it is
 * a tree or a blob, or may be more than one.
 */
invar_status invar_repo_resolve(char out[INVAR_OID_SIZE], invar_repo *repo,
                                const char *revision) INVAR_MUST_USE;

typedef struct invar_repo_range {
    const char *bad;         /* id */
    const char *const *good; /* (n_good) ids; 0: down to the roots */
    size_t n_good;
    bool first_parent;
    const char *const *paths; /* (n_paths) files or folders; 0: all commits are candidates */
    size_t n_paths;
} invar_repo_range;

/*
 * The commits that `bad` has and no `good` has, as plain data; none when a good one has `bad`. With
 * paths, INVAR_E_NOTFOUND: no commit of the range touches them.
 */
invar_status invar_repo_history(invar_history **out, invar_repo *repo,
                                const invar_repo_range *range) INVAR_MUST_USE;

#define INVAR_REPO_BASES 16

/* The best common ancestors of two commits, at most INVAR_REPO_BASES; *count_out 0: none. */
invar_status invar_repo_merge_bases(char out[INVAR_REPO_BASES][INVAR_OID_SIZE], size_t *count_out,
                                    invar_repo *repo, const char *a, const char *b) INVAR_MUST_USE;

/* True when `ancestor` is `commit` or can be reached from it. */
invar_status invar_repo_is_ancestor(bool *out, invar_repo *repo, const char *ancestor,
                                    const char *commit) INVAR_MUST_USE;

#define INVAR_REPO_PARENTS 64
#define INVAR_REPO_TEXT 256
#define INVAR_REPO_FILES 12

typedef struct invar_repo_file {
    char path[INVAR_REPO_TEXT]; /* made safe */
    char status;                /* A D M R T as git says */
    int64_t added, removed;     /* lines; -1: a binary file */
} invar_repo_file;

/* A commit as people see it; all text is printable UTF-8 of one line. */
typedef struct invar_repo_commit {
    char id[INVAR_OID_SIZE], tree[INVAR_OID_SIZE];
    size_t n_parents;                                 /* all of them */
    char parents[INVAR_REPO_PARENTS][INVAR_OID_SIZE]; /* the first of them */
    char author[INVAR_REPO_TEXT];                     /* "Name <mail>" */
    int64_t when;                                     /* of the commit, Unix seconds */
    char subject[INVAR_REPO_TEXT];
    int64_t files, added, removed; /* against the first parent, or nothing */
    size_t n_shown;
    invar_repo_file shown[INVAR_REPO_FILES]; /* the first files that differ */
} invar_repo_commit;

invar_status invar_repo_describe(invar_repo_commit *out, invar_repo *repo,
                                 const char *commit) INVAR_MUST_USE;

/* Its subject alone, which costs no comparison. */
invar_status invar_repo_subject(char out[INVAR_REPO_TEXT], invar_repo *repo,
                                const char *commit) INVAR_MUST_USE;

#define INVAR_REPO_PATCH 65536 /* bytes of a patch that is shown, at most */

/*
 * What it changes against its first parent, or against nothing, as `git show` has it: whole lines,
 * each printable UTF-8. *cut_out: there is more. The caller owns *out (invar_free); "" where
 * contents are not here.
 */
invar_status invar_repo_patch(char **out, bool *cut_out, invar_repo *repo,
                              const char *commit) INVAR_MUST_USE;

/* The tree of a commit. */
invar_status invar_repo_tree(char out[INVAR_OID_SIZE], invar_repo *repo,
                             const char *commit) INVAR_MUST_USE;

/*
 * Makes the tracked files of `folder` those of the commit, submodules included: what differs is
 * written, what the commit does not have is removed, all other files (of a build) stay. The folder
 * remembers in a file beside it, FOLDER.tree, what it holds; a checkout that was killed is made
 * anew. Submodules are read from the repositories that git keeps below the .git folder or the work
 * tree; INVAR_E_NOTFOUND names one that is not there and how to get it.
 *
 * Files have the bytes that the repository holds: no line ends are converted, no filter runs, Git
 * LFS pointers stay pointers. A file that nobody touched since the last checkout and that is to
 * stay keeps its time. Trees with names that would leave the folder are INVAR_E_CORRUPT; no link on
 * the way to a file is followed.
 */
invar_status invar_repo_checkout(invar_repo *repo, const char *commit,
                                 const char *folder) INVAR_MUST_USE;

/*
 * The same for the work tree `from` as it is now: tracked and untracked files, without what git
 * ignores and without .git. `from` need not be a repository: then all of it but .git and runs that
 * hold a ledger. *hash_out names the content.
 */
invar_status invar_repo_snapshot(char hash_out[INVAR_OID_SIZE], const char *from,
                                 const char *folder) INVAR_MUST_USE;

/*
 * "Name <mail>" as git would sign a commit, from its settings and environment; "unknown". NULL: the
 * user's settings alone.
 */
void invar_repo_signature(char out[INVAR_REPO_TEXT], const invar_repo *repo);

#ifdef __cplusplus
}
#endif
#endif
