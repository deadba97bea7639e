/*
 * git.h - what the files around libgit2 share; nobody else includes it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_GIT_GIT_H
#define INVAR_BISECT_GIT_GIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <git2.h>

#include "base/file.h"
#include "bisect/git/repo.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- libgit2 --------------------------------------------------------------------------------- */

/* Its functions, found when the library was loaded (invar_git_start), not before. */
typedef struct invar_git_library {
#define INVAR_GIT_FUNCTION(name) __typeof__(git_##name) *name;
#include "bisect/git/library.def"
#undef INVAR_GIT_FUNCTION
} invar_git_library;

extern invar_git_library invar_git_loaded;

/* INVAR_GIT(blob_free)(blob) calls git_blob_free. */
#define INVAR_GIT(name) (invar_git_loaded.name)

/* Loads libgit2, and makes it ready for use by any thread. */
invar_status invar_git_start(void) INVAR_MUST_USE;

/* ---- objects --------------------------------------------------------------------------------- */

#define INVAR_GIT_LARGEST (512 << 20) /* bytes of an object: it lies in memory as a whole */

/*
 * The caller frees *out; NULL: the object is not here. INVAR_E_UNSUPPORTED: it is larger than
 * INVAR_GIT_LARGEST. `shown` names the repository.
 */
invar_status invar_git_read(git_odb_object **out, git_repository *git, const git_oid *id,
                            const char *shown) INVAR_MUST_USE;

/* A commit as its text tells, whatever its times look like. Pointers are into the object. */
typedef struct invar_git_raw_commit {
    git_odb_object *object; /* NULL: it is not here */
    git_oid tree;
    const char *parents; /* lines of them */
    unsigned n_parents;
    const char *author; /* (author_bytes) "Name <mail>" */
    size_t author_bytes;
    int64_t date; /* of the committer; 0: none that can be read */
    const char *message;
    size_t message_bytes;
} invar_git_raw_commit;

/* INVAR_E_CORRUPT: the object is no commit. */
invar_status invar_git_raw_commit_open(invar_git_raw_commit *out, git_repository *git,
                                       const git_oid *id, const char *shown) INVAR_MUST_USE;
void invar_git_raw_commit_close(invar_git_raw_commit *text); /* also one that is not here */
git_oid invar_git_raw_commit_parent(const invar_git_raw_commit *text, unsigned number);

/* ---- the graph of commits, read as far as somebody asked ------------------------------------- */

enum {
    INVAR_GIT_LOADED = 1,  /* its parents are known */
    INVAR_GIT_SHALLOW = 2, /* its parents were not fetched */
    INVAR_GIT_MISSING = 4  /* the object is not here */
};

typedef struct invar_git_node {
    git_oid id;
    int32_t parent; /* first of n_parents in invar_git_graph.parents */
    int32_t n_parents;
    int32_t query_index; /* for one query */
    int64_t date;        /* of the committer */
    uint8_t state;       /* INVAR_GIT_* */
    uint8_t marks;       /* for one query */
} invar_git_node;

/* Numbers that grow at their end. */
typedef struct invar_git_index_list {
    int32_t *items;
    int32_t count, room;
} invar_git_index_list;

typedef struct invar_git_graph {
    invar_git_node *nodes;
    int32_t count, room;
    int32_t *table; /* (table_size) open addressing; -1: empty */
    int32_t table_size;
    invar_git_index_list parents;
} invar_git_graph;

/* The commit's number in the graph; INVAR_E_NOTFOUND: there is no such commit. */
invar_status invar_git_node_of(int32_t *out, invar_repo *repo, const char *id) INVAR_MUST_USE;

/* Reads the parents of a node. Nodes move in memory: address them by number. */
invar_status invar_git_load(invar_repo *repo, int32_t number) INVAR_MUST_USE;

/* Sets `mark` on a commit and all its ancestors; *cut_out: some were not here. May be NULL. */
invar_status invar_git_paint(bool *cut_out, invar_repo *repo, int32_t start,
                             uint8_t mark) INVAR_MUST_USE;

void invar_git_clear_marks(invar_repo *repo);
void invar_git_graph_release(invar_git_graph *graph);

invar_status invar_git_push(invar_git_index_list *numbers, int32_t number) INVAR_MUST_USE;

/* ---- the repository -------------------------------------------------------------------------- */

struct invar_repo {
    git_repository *git;
    char folder[INVAR_PATH_SIZE];
    char work_tree[INVAR_PATH_SIZE]; /* "": bare */
    char display_path[INVAR_PATH_SHOWN_SIZE];
    git_oid *shallow; /* (n_shallow) sorted: commits whose parents were not fetched */
    size_t n_shallow;
    invar_git_graph graph;
    git_repository **modules; /* (n_modules) repositories of submodules, once looked for */
    size_t n_modules;
    bool modules_known;
};

/* git_repository_open_ext with our messages. INVAR_E_NOTFOUND: there is none. */
invar_status invar_git_open(git_repository **out, const char *path, unsigned flags) INVAR_MUST_USE;

/* What libgit2 has just said, as a failure; `shown` names the repository. */
invar_status invar_git_fail(git_repository *git, const char *shown, int code,
                            const char *what) INVAR_MUST_USE;

/* Commits are missing because of how the clone was made. */
invar_status invar_git_fail_shallow(const invar_repo *repo, const char *what) INVAR_MUST_USE;

invar_status invar_git_oid(git_oid *out, const char *id) INVAR_MUST_USE;

/* A commit that must be here: INVAR_E_NOTFOUND. */
invar_status invar_git_commit(invar_git_raw_commit *out, invar_repo *repo,
                              const char *id) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
