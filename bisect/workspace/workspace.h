/*
 * workspace.h - cache folder in which revisions are checked out, built and run.
 *     FOLDER/
 *       slots/N/source   worktree N: the files of a revision
 *       slots/N/build    its build folder, kept for incremental builds
 *       slots/N/made     program under construction, later programs/KEY
 *       slots/N/lock     locked by the process that uses the worktree and by its children
 *       slots/N/user     tag of that process (process_tag.h); still present if it was killed
 *       programs/KEY/    built program, KEY = hash of tree, build command, program name and
 *                        compiler variables (CC, CFLAGS ...): PROGRAM, PROGRAM.build (its
 *                        sources), build.log, and `verdict`, written last
 *       runs/KEY/        run, KEY = hash of program, recipe, flags, the files that they name,
 *                        environment and name: ledger.db, run.log, and `outcome`, written last
 *       bisects/ID/      state and result of a bisect (state.h)
 *       experiments/ID/  A/B experiment (ab.h)
 *       samples/KEY/     samples of a run, for the run of another program (divergence.h)
 *
 * The folder is never inside the user's work tree. Entries are written under a temporary name with
 * the tag of the process and renamed, so a kill at any moment leaves nothing that a later call
 * trusts; leftovers of dead processes are removed by the next open. A worktree whose owner was
 * killed may still have running children: acquiring it kills them and deletes source and build,
 * because files may be incomplete.
 *
 * Several threads and processes may use a workspace at the same time, but each worktree has one
 * user.
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
#include "ledger/ledger.h"

typedef struct invar_workspace invar_workspace;

/*
 * Opens or creates a workspace. If `folder` is NULL, it is invar/NAME-HASH below $XDG_CACHE_HOME or
 * $HOME/.cache for the path `subject`; NAME is the last component that is not ".git". `outside` is
 * a NULL-terminated list of folders that must not contain the workspace; a ".git" stands for its
 * work tree. Returns INVAR_E_INVALID if one of them contains it, and INVAR_E_STATE if the folder
 * belongs to another user or is writable for everyone.
 */
invar_status invar_workspace_open(invar_workspace **out, const char *folder, const char *subject,
                                  const char *const *outside) INVAR_MUST_USE;
void invar_workspace_close(invar_workspace *workspace); /* `workspace` may be NULL */
const char *invar_workspace_folder(const invar_workspace *workspace);

/* ---- worktrees ------------------------------------------------------------------------------- */

typedef struct invar_worktree {
    int number;
    int lock; /* locked descriptor; pass it as invar_child_request.lock */
    char folder[INVAR_PATH_SIZE], source[INVAR_PATH_SIZE], build[INVAR_PATH_SIZE];
} invar_worktree;

/* Acquires the first free worktree, or creates one. Returns INVAR_E_BUSY if all are in use. */
invar_status invar_worktree_acquire(invar_worktree *out, invar_workspace *workspace) INVAR_MUST_USE;
void invar_worktree_release(invar_worktree *worktree);

/* Deletes source and build after a child was killed, because files may be incomplete. */
invar_status invar_worktree_reset(const invar_worktree *worktree) INVAR_MUST_USE;

/*
 * Variables that no child in a worktree inherits, as words of invar_child_request.environment:
 * those that name the user's repository (git sets them for hooks) and those that `make` passes to
 * its children.
 */
#define INVAR_WORKTREE_WITHOUT                                                                     \
    "INVAR_*", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX",       \
        "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "MAKEFLAGS",  \
        "MFLAGS", "MAKELEVEL"

/* ---- programs -------------------------------------------------------------------------------- */

/* Describes how a tree is built. Strings are borrowed. */
typedef struct invar_build_plan {
    const char *command; /* command for sh -c in the source folder; NULL for the build of Invar
                            (cmake), or for no build if `program` is NULL too */
    const char *program; /* path of the built program, relative to the source folder, or with a
                            leading "@" to the build folder; NULL if the build has no single
                            program */
    double timeout;      /* time limit in seconds; 0 for no limit */
    int64_t threads;     /* threads of the build (INVAR_JOBS) */
} invar_build_plan;

typedef enum invar_revision_build_state {
    INVAR_REVISION_BUILD_READY,
    INVAR_REVISION_BUILD_FAILED, /* the build failed; see failure_reason */
    INVAR_REVISION_BUILD_STOPPED /* stopped by the user */
} invar_revision_build_state;

typedef struct invar_revision_build {
    invar_revision_build_state state;
    bool cached;                /* no build was needed */
    char path[INVAR_PATH_SIZE]; /* path of the program; empty if the plan names no program */
    invar_digest binary;        /* digest of the program and its modules; zeros without a program */
    double seconds;
    char log[INVAR_PATH_SIZE];
    char failure_reason[INVAR_CHILD_REASON_SIZE]; /* why the build failed */
} invar_revision_build;

/*
 * Gets the program of a commit: from the cache, or built in the worktree. The environment of the
 * build has INVAR_SOURCE and INVAR_BUILD (folders of the worktree), INVAR_COMMIT and INVAR_JOBS.
 * PROGRAM.build records commit, tree, author and subject. Without a named program nothing is
 * cached: the tree is built in the worktree for a command that runs there. A failed build is
 * cached, a build that timed out or was stopped is not. A build that fails on top of an older one
 * is repeated from scratch, so no verdict depends on the history of the worktree. Commits with
 * equal trees share a program, and its PROGRAM.build names the first of them. Returns INVAR_E_IO if
 * the disk is full, which would make any build fail.
 */
invar_status invar_workspace_program(invar_revision_build *out, invar_workspace *workspace,
                                     invar_worktree *worktree, invar_repo *repo, const char *commit,
                                     const invar_build_plan *how,
                                     const volatile sig_atomic_t *stop) INVAR_MUST_USE;

/*
 * Like invar_workspace_program, for the work tree `folder` in its current state. A copy is built;
 * the folder is only read.
 */
invar_status invar_workspace_program_of_folder(invar_revision_build *out,
                                               invar_workspace *workspace, invar_worktree *worktree,
                                               const char *folder, const invar_build_plan *how,
                                               const volatile sig_atomic_t *stop) INVAR_MUST_USE;

/*
 * Like invar_workspace_program, for an existing program file. The file is copied, so that later
 * changes have no effect.
 */
invar_status invar_workspace_program_of_file(invar_revision_build *out, invar_workspace *workspace,
                                             const char *path) INVAR_MUST_USE;

/*
 * Computes the digest of a program and its modules (base/process/module.h). Returns
 * INVAR_E_NOTFOUND if the file does not exist or, with `runs`, is not executable.
 */
invar_status invar_workspace_hash_binary(invar_digest *out, const char *path,
                                         bool runs) INVAR_MUST_USE;

/* ---- runs ------------------------------------------------------------------------------------ */

/* Request to run `PROGRAM train RECIPE --run FOLDER ... FLAGS`. Pointers are borrowed. */
typedef struct invar_run_request {
    const char *program;
    invar_digest binary;
    const char *recipe;             /* recipe file, which the caller must not change during the
                                       run */
    const char *const *flags;       /* further words; NULL-terminated, or NULL */
    const char *const *environment; /* words as in invar_child_request; NULL-terminated, or NULL */
    const char *prefix;             /* command that starts PROGRAM, split at blanks, or NULL */
    const char *name;               /* distinguishes runs with equal contents: "1", "again"; may be
                                       NULL */
    int64_t until;                  /* last step (--until); -1 for the recipe's last step */
    double timeout;
    const volatile sig_atomic_t *stop;
    /*
     * Called when the ledger has new steps, and at the end. Return true to end the run early. Such
     * a run is cached, and reused only if `should_stop` of the new request accepts its ledger. May
     * be NULL.
     */
    bool (*should_stop)(void *payload, const char *ledger_path);
    void *payload;
    bool same_addresses;
    bool record_mismatch; /* record mismatching log-probs instead of ending the run, whatever the
                             recipe sets; flags win */
    bool no_cache;        /* do not reuse a cached run */
} invar_run_request;

typedef enum invar_run_outcome {
    INVAR_RUN_DONE,   /* ran to its end, or as far as `should_stop` wanted */
    INVAR_RUN_FAILED, /* crashed, rejected the recipe or took too long; see failure_reason */
    INVAR_RUN_STOPPED /* stopped by the user */
} invar_run_outcome;

typedef struct invar_run_result {
    invar_run_outcome state;
    bool cached;
    bool enough;                  /* ended early by `should_stop` */
    int exit_code;                /* exit code of `train`, or 128 + signal number; 0 if `enough` */
    char folder[INVAR_PATH_SIZE]; /* folder with run.log */
    char ledger[INVAR_PATH_SIZE];
    double seconds;
    int64_t peak_bytes;
    char
        failure_reason[INVAR_CHILD_REASON_SIZE]; /* reason of a failure or of a nonzero exit code */
} invar_run_result;

/*
 * Returns the value of a key in the flags (NULL-terminated, or NULL), or else in the recipe text.
 * The value may be empty; NULL if neither has the key. It is borrowed and not NUL-terminated.
 */
const char *invar_workspace_value(size_t *bytes_out, const char *const *flags, const char *recipe,
                                  const char *key);

/* Like invar_workspace_value, but copies the value. Returns false if it is absent or too long. */
bool invar_workspace_value_copy(char *out, size_t size, const char *const *flags,
                                const char *recipe, const char *key);

/*
 * Joins flags, without those that set a key of `extra`, and `extra`, whose words are "--key=value"
 * or pairs. Both are NULL-terminated; `flags` may be NULL. The caller frees *out with invar_free.
 */
invar_status invar_workspace_flags_replace(const char ***out, const char *const *flags,
                                           const char *const *extra) INVAR_MUST_USE;

/*
 * Hashes the current state of the files that a recipe text and flags (NULL-terminated, or NULL)
 * name: size and inode change time, not contents; of a folder, those of its files. The hash is part
 * of the cache key of every run and of the id of a bisect.
 */
void invar_workspace_inputs(invar_digest *out, const char *recipe, const char *const *flags);

/*
 * Opens a ledger for reading and finds its only run. The caller closes *out, also after a failure.
 */
invar_status invar_workspace_ledger_open(invar_ledger **out, invar_ledger_summary *run,
                                         const char *path) INVAR_MUST_USE;

/*
 * Runs a SELECT statement with its (n_arguments) arguments and calls `take` with the values of each
 * row. A failure of `take` ends the call and is returned.
 */
invar_status
invar_workspace_ledger_select(invar_ledger *ledger, const char *sql,
                              const invar_ledger_argument *arguments, size_t n_arguments,
                              invar_status (*take)(void *payload, const invar_ledger_value *values),
                              void *payload) INVAR_MUST_USE;

/*
 * Runs the program, or reuses the run of the same program with the same recipe, flags, environment,
 * name and current folder. `train` may exit with 0, or with 1 (log-probs differ, which is a
 * result), and must leave a ledger with a step. Checkpoints, traces and other files of the recipe
 * are neither read nor written. Only runs that are DONE are reused. `lock` is passed to the child.
 * Returns INVAR_E_STATE if a signal from outside ended the run early.
 */
invar_status invar_workspace_run(invar_run_result *out, invar_workspace *workspace, int lock,
                                 const invar_run_request *request) INVAR_MUST_USE;

#endif
