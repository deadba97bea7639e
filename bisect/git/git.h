/*
 * git.h - libgit2 functions, raw commits and the commit graph. Private to bisect/git.
 *
 * libgit2 is loaded at run time: call invar_git_start first, and call its functions only through
 * INVAR_GIT. A repository and its graph belong to one thread at a time.
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

/* ---- libgit2 --------------------------------------------------------------------------------- */

/* Functions of libgit2; set when invar_git_start has loaded the library. */
typedef struct invar_git_library {
#define INVAR_GIT_FUNCTION(name) __typeof__(git_##name) *name;
#include "bisect/git/library.def"
#undef INVAR_GIT_FUNCTION
} invar_git_library;

extern invar_git_library invar_git_loaded;

/* INVAR_GIT(blob_free)(blob) calls git_blob_free of the loaded library. */
#define INVAR_GIT(name) (invar_git_loaded.name)

/*
 * Loads libgit2 once and initializes it for use by any thread. Returns INVAR_E_GIT if it cannot be
 * loaded.
 */
invar_status invar_git_start(void) INVAR_MUST_USE;

/* ---- objects --------------------------------------------------------------------------------- */

#define INVAR_GIT_LARGEST                                                                          \
    (512 << 20) /* largest size of an object in bytes; objects are read into
                                         memory */

/*
 * Reads an object. *out is NULL if the repository lacks it. Returns INVAR_E_UNSUPPORTED if it is
 * larger than INVAR_GIT_LARGEST. `shown` names the repository in messages. The caller frees *out.
 */
invar_status invar_git_read(git_odb_object **out, git_repository *git, const git_oid *id,
                            const char *shown) INVAR_MUST_USE;

/* A commit parsed from its text, even if its times are malformed. Pointers point into `object`. */
typedef struct invar_git_raw_commit {
    git_odb_object *object; /* NULL if the repository lacks the commit */
    git_oid tree;
    const char *parents; /* first of the lines "parent ID" */
    unsigned n_parents;
    const char *author; /* (author_bytes) "Name <mail>" */
    size_t author_bytes;
    int64_t date; /* committer date in Unix seconds; 0 if it cannot be parsed */
    const char *message;
    size_t message_bytes;
} invar_git_raw_commit;

/* Reads and parses a commit. Returns INVAR_E_CORRUPT if the object is not a commit. */
invar_status invar_git_raw_commit_open(invar_git_raw_commit *out, git_repository *git,
                                       const git_oid *id, const char *shown) INVAR_MUST_USE;
void invar_git_raw_commit_close(invar_git_raw_commit *text); /* `text->object` may be NULL */
git_oid invar_git_raw_commit_parent(const invar_git_raw_commit *text, unsigned number);

/* ---- commit graph, loaded on demand ---------------------------------------------------------- */

enum {
    INVAR_GIT_LOADED = 1,  /* parents are known */
    INVAR_GIT_SHALLOW = 2, /* the parents were not fetched (shallow clone) */
    INVAR_GIT_MISSING = 4  /* the repository lacks the object */
};

typedef struct invar_git_node {
    git_oid id;
    int32_t parent; /* index of the first of n_parents entries in invar_git_graph.parents */
    int32_t n_parents;
    int32_t query_index; /* scratch index of one query */
    int64_t date;        /* committer date */
    uint8_t state;       /* INVAR_GIT_* bits */
    uint8_t marks;       /* scratch bits of one query */
} invar_git_node;

/* Growable array of indices. */
typedef struct invar_git_index_list {
    int32_t *items;
    int32_t count;
    int64_t capacity;
} invar_git_index_list;

typedef struct invar_git_graph {
    invar_git_node *nodes;
    int32_t count;
    int64_t capacity;
    int32_t *table; /* (table_size) hash table with open addressing; -1 for an empty entry */
    int32_t table_size;
    invar_git_index_list parents;
} invar_git_graph;

/* *out is the node of the commit. Returns INVAR_E_NOTFOUND if the commit does not exist. */
invar_status invar_git_node_of(int32_t *out, invar_repo *repo, const char *id) INVAR_MUST_USE;

/* Notes that the parents of a commit were not fetched. */
invar_status invar_git_add_shallow(invar_repo *repo, const git_oid *id) INVAR_MUST_USE;

/* Loads the parents of a node. May move the nodes in memory, so keep indices, not pointers. */
invar_status invar_git_load(invar_repo *repo, int32_t number) INVAR_MUST_USE;

/*
 * Sets `mark` on a commit and all its ancestors. *cut_out is true if some are missing; may be NULL.
 */
invar_status invar_git_paint(bool *cut_out, invar_repo *repo, int32_t start,
                             uint8_t mark) INVAR_MUST_USE;

void invar_git_clear_marks(invar_repo *repo);
void invar_git_graph_release(invar_git_graph *graph);

invar_status invar_git_push(invar_git_index_list *numbers, int32_t number) INVAR_MUST_USE;

/* ---- repository ------------------------------------------------------------------------------ */

struct invar_repo {
    git_repository *git;
    char folder[INVAR_PATH_SIZE];
    char work_tree[INVAR_PATH_SIZE]; /* empty for a bare repository */
    char display_path[INVAR_PATH_SHOWN_SIZE];
    bool is_shallow; /* the parents of some commits were not fetched */
    invar_git_graph graph;
    git_repository **modules; /* (n_modules) repositories of submodules found so far; owned */
    size_t n_modules;
    int64_t modules_capacity;
    bool modules_known;
};

/*
 * Calls git_repository_open_ext and explains its errors. Returns INVAR_E_NOTFOUND if `path` has no
 * repository.
 */
invar_status invar_git_open(git_repository **out, const char *path, unsigned flags) INVAR_MUST_USE;

/* Turns the last error of libgit2 into a failure; `shown` names the repository. */
invar_status invar_git_fail(git_repository *git, const char *shown, int code,
                            const char *what) INVAR_MUST_USE;

/* Fails because a shallow clone lacks commits, and names the remedy. */
invar_status invar_git_fail_shallow(const invar_repo *repo, const char *what) INVAR_MUST_USE;

invar_status invar_git_oid(git_oid *out, const char *id) INVAR_MUST_USE;

/* Opens a commit. Returns INVAR_E_NOTFOUND if it does not exist. */
invar_status invar_git_commit(invar_git_raw_commit *out, invar_repo *repo,
                              const char *id) INVAR_MUST_USE;

#endif
