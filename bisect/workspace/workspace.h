/*
 * workspace.h - a folder of our own, where revisions are checked out, built and run.
 *
 *     FOLDER/
 *       slots/N/source  the tree of a revision     slots/N/build   its build, kept and incremental
 *       slots/N/made    what the build in progress will leave in programs/
 *       slots/N/lock    held by whoever uses the slot and by every child of it
 *       slots/N/user    who uses it (process_tag.h); still there afterwards: the user was killed
 *       programs/KEY/   a built program, KEY = hash of tree and build command: PROGRAM,
 *                       PROGRAM.build (from what), build.log, and `verdict`, written last
 *       runs/KEY/       a run, KEY = hash of program, recipe, flags and the files that they name:
 *                       ledger.db, run.log, and `outcome`, written last
 *       bisects/ID/     the state and the answer of one bisect (state.h)
 *       experiments/ID/ an A/B experiment (ab.h)
 *       samples/KEY/    what a run has sampled, for the run of another program (divergence.h)
 *
 * The folder is never inside the user's work tree. Everything is written beside its place, into a
 * name that ends with the user's and ".tmp", and renamed, so that a kill at any moment leaves
 * nothing that a later call believes; what dead users left so is removed by the next open. A slot
 * whose user was killed may still have children at work: taking it ends them, and its source and
 * build are made from nothing, because a file of theirs may be half written.
 *
 * A workshop may be used by several threads and processes at a time; a slot by one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_WORKSPACE_WORKSPACE_H
#define INVAR_BISECT_WORKSPACE_WORKSPACE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/status.h"
#include "bisect/git/repo.h"
#include "bisect/workspace/child.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_workspace invar_workspace;

/*
 * `folder` NULL: invar/NAME-HASH below $XDG_CACHE_HOME or $HOME/.cache, for the thing `subject` (a
 * path: NAME is its last part that is not ".git"). INVAR_E_INVALID: the folder lies inside one of
 * the folders `outside`, which are only read (a ".git": what it is of); ended by NULL.
 * INVAR_E_STATE: the folder belongs to another user, or everybody can write into it.
 */
invar_status invar_workspace_open(invar_workspace **out, const char *folder, const char *subject,
                                  const char *const *outside) INVAR_MUST_USE;
void invar_workspace_close(invar_workspace *workshop); /* NULL is allowed */
const char *invar_workspace_folder(const invar_workspace *workshop);

/* ---- slots ----------------------------------------------------------------------------------- */

typedef struct invar_worktree {
    int number;
    int lock; /* descriptor; for invar_child_request.lock */
    char folder[INVAR_PATH_SIZE], source[INVAR_PATH_SIZE], build[INVAR_PATH_SIZE];
} invar_worktree;

/* The first slot that nobody uses; made when it is not there. */
invar_status invar_worktree_acquire(invar_worktree *out, invar_workspace *workshop) INVAR_MUST_USE;
void invar_worktree_release(invar_worktree *slot);

/* Source and build go, after a child in them was killed: what it wrote may be half done. */
invar_status invar_worktree_reset(const invar_worktree *slot) INVAR_MUST_USE;

/*
 * What no child in a slot inherits, as words of invar_child_request.environment: what names the
 * user's repository (git sets it for hooks), and what `make` tells its children.
 */
#define INVAR_WORKTREE_WITHOUT                                                                     \
    "INVAR_*", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX",       \
        "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "MAKEFLAGS",  \
        "MFLAGS", "MAKELEVEL"

/* ---- programs -------------------------------------------------------------------------------- */

/* How a tree becomes a program. Strings are borrowed. */
typedef struct invar_build_plan {
    const char *command; /* for sh -c, in the source folder; NULL: that of Invar itself, cmake, or
                            without a program none: the tree is only checked out */
    const char *program; /* what it makes, relative to the source folder, or to the build folder
                            with a leading "@"; NULL: nothing that can be named */
    double timeout;      /* seconds; 0: none */
    int64_t threads;     /* for the build; INVAR_JOBS */
} invar_build_plan;

typedef enum invar_revision_build_state {
    INVAR_REVISION_BUILD_READY,
    INVAR_REVISION_BUILD_FAILED, /* the build ended with a failure: `story` */
    INVAR_REVISION_BUILD_STOPPED /* the user stopped it */
} invar_revision_build_state;

typedef struct invar_revision_build {
    invar_revision_build_state state;
    bool cached;                /* no build was needed */
    char path[INVAR_PATH_SIZE]; /* of the program; "": none is named */
    invar_digest binary;        /* of its bytes and its modules'; zeros without one */
    double seconds;
    char log[INVAR_PATH_SIZE];
    char failure_reason[INVAR_CHILD_REASON_SIZE]; /* of a failure */
} invar_revision_build;

/*
 * The program of a commit: from the cache, or checked out into the slot and built there. The build
 * has in its environment INVAR_SOURCE and INVAR_BUILD (folders of the slot), INVAR_COMMIT and
 * INVAR_JOBS. PROGRAM.build says commit, tree, author and subject, whatever the build wrote.
 * A program that cannot be named (program NULL) is never cached: it is built in the slot, for a
 * command that runs there. A failed build is cached, one that timed out or was stopped is not. A
 * build that fails on top of an older one is made once more from nothing, so that no verdict
 * depends on what the slot was used for before. Commits with one tree share a program; its
 * PROGRAM.build names the first of them. INVAR_E_IO: also when the disk is full, which would make
 * any build fail.
 */
invar_status invar_workspace_program(invar_revision_build *out, invar_workspace *workshop,
                                     invar_worktree *slot, invar_repo *repo, const char *commit,
                                     const invar_build_plan *how,
                                     const volatile sig_atomic_t *stop) INVAR_MUST_USE;

/* The same for the work tree `folder` as it is now (a copy is built, the folder is only read). */
invar_status invar_workspace_program_of_folder(invar_revision_build *out, invar_workspace *workshop,
                                               invar_worktree *slot, const char *folder,
                                               const invar_build_plan *how,
                                               const volatile sig_atomic_t *stop) INVAR_MUST_USE;

/* The same for a program that is there already: it is copied, so that it stays what it is. */
invar_status invar_workspace_program_of_file(invar_revision_build *out, invar_workspace *workshop,
                                             const char *path) INVAR_MUST_USE;

/*
 * The digest of a program's bytes and of its modules' (base/process/module.h). INVAR_E_NOTFOUND:
 * there is no such file or, with `runs`, none that may be run.
 */
invar_status invar_workspace_hash_binary(invar_digest *out, const char *path,
                                         bool runs) INVAR_MUST_USE;

/* ---- runs ------------------------------------------------------------------------------------ */

/* A recipe, run by a program: `PROGRAM train RECIPE --run FOLDER ... FLAGS`. Borrowed. */
typedef struct invar_run_request {
    const char *program;
    invar_digest binary;
    const char *recipe;             /* file; pinned by the caller */
    const char *const *flags;       /* further words, ended by NULL; NULL: none */
    const char *const *environment; /* as invar_child_request; ended by NULL; NULL: ours */
    const char *prefix;             /* command before PROGRAM, cut at blanks; NULL: none */
    const char *name;               /* tells apart runs of the same content: "1", "again"; NULL */
    int64_t until;                  /* --until STEP; -1: to the recipe's end */
    double timeout;
    const volatile sig_atomic_t *stop;
    /*
     * Called when the ledger has new steps (and at the end); true: it has seen enough, end the run.
     * A run that was ended so is kept as it is, and taken again only where `watch` says that it is
     * enough. May be NULL.
     */
    bool (*should_stop)(void *payload, const char *ledger_path);
    void *payload;
    bool same_addresses;
    bool record_mismatch; /* log-probs that differ are recorded and do not end it, whatever the
                             recipe says; the flags have the last word */
    bool no_cache;        /* do not take it from the cache */
} invar_run_request;

typedef enum invar_run_outcome {
    INVAR_RUN_DONE,   /* to its end, or as far as `watch` wanted */
    INVAR_RUN_FAILED, /* it crashed, refused the recipe, or took too long: `story` */
    INVAR_RUN_STOPPED /* the user stopped it */
} invar_run_outcome;

typedef struct invar_run_result {
    invar_run_outcome state;
    bool cached;
    bool enough;                  /* ended by `watch` */
    int exit_code;                /* of `train` */
    char folder[INVAR_PATH_SIZE]; /* with run.log */
    char ledger[INVAR_PATH_SIZE];
    double seconds;
    int64_t peak_bytes;
    char story[INVAR_CHILD_REASON_SIZE]; /* of a failure, or of an exit code that is not 0 */
} invar_run_result;

/*
 * The value that a key has in the flags (ended by NULL; NULL: none), else in the recipe's text; it
 * may be empty. NULL: it is in neither. Borrowed, and not ended.
 */
const char *invar_workspace_value(size_t *bytes_out, const char *const *flags, const char *recipe,
                                  const char *key);

/*
 * The files that a recipe (its text) and flags (ended by NULL; NULL: none) name, as they are now:
 * a part of every run's key, and of the name of a bisect.
 */
void invar_workspace_inputs(invar_digest *out, const char *recipe, const char *const *flags);

/*
 * Runs it, or takes what the same program made of the same recipe, flags, environment and name in
 * the same current folder before. `train` may end with 0, or with 1 (log-probs differ, which is a
 * result), and has to leave a ledger with a step. Checkpoints, traces and other files that a recipe
 * asks for are neither read nor written. Only what is DONE is taken again. `lock` as in
 * invar_child_request. INVAR_E_STATE: somebody else's signal ended it, before its time.
 */
invar_status invar_workspace_run(invar_run_result *out, invar_workspace *workshop, int lock,
                                 const invar_run_request *request) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
