/*
 * programs.c - builds the program of a tree, or takes it from the cache of programs.
 *
 * A program is built in its worktree, copied to slots/N/made, and renamed to programs/KEY when it
 * is complete. If two processes build the same program, the first rename wins and the other uses
 * that result. A build that fails on top of an older build is repeated from scratch, so that no
 * verdict depends on the history of the worktree.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/number.h"
#include "bisect/workspace/workspace.h"
#include "bisect/workspace/workspace_internal.h"

#include "base/invar_banned.h"

#define BUILD_GRACE 10.0 /* seconds that a build has to end after SIGTERM */

/*
 * Build of Invar. The CMake cache of an older tree is removed, so that this tree uses its own
 * defaults. Object files stay and are rebuilt as needed.
 */
static const char invar_build[] =
    "command -v ninja >/dev/null 2>&1 && set -- -G Ninja\n"
    "rm -f \"$INVAR_BUILD/CMakeCache.txt\"\n"
    "cmake -S \"$INVAR_SOURCE\" -B \"$INVAR_BUILD\" \"$@\" -DCMAKE_BUILD_TYPE=Release "
    "-DBUILD_TESTING=OFF -DINVAR_BISECT=OFF &&\n"
    "cmake --build \"$INVAR_BUILD\" --parallel \"$INVAR_JOBS\" --target invar";

/* Sources of a program. */
typedef struct program_source {
    const invar_build_plan *how;
    invar_repo *repo;   /* NULL if the source is a folder */
    const char *commit; /* commit, or path of the source folder */
    char tree[INVAR_OID_SIZE];
} program_source;

/* State of a build in progress. */
typedef struct build_job {
    invar_workspace *workshop;
    invar_worktree *slot;
    const program_source *from;
    const volatile sig_atomic_t *stop;
    invar_revision_build *out;
    char made[INVAR_PATH_SIZE]; /* folder of the unfinished program */
} build_job;

static const char *program_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path + (path[0] == '@');
}

/* ---- the verdict file ------------------------------------------------------------------------ */

/* A stopped build has no verdict. */
static const char *const state_words[] = {
    [INVAR_REVISION_BUILD_READY] = "ready", [INVAR_REVISION_BUILD_FAILED] = "failed"};

static invar_status write_verdict(const char *folder, const invar_revision_build *build)
{
    char path[INVAR_PATH_SIZE], hex[INVAR_DIGEST_HEX_SIZE], seconds[INVAR_NUMBER_SIZE];
    char text[INVAR_CHILD_REASON_SIZE + 256];
    int bytes;

    invar_digest_format(hex, &build->binary);
    INVAR_TRY(invar_number_format(seconds, build->seconds));
    bytes = snprintf(text, sizeof text,
                     "[program]\nstate = %s\nbinary = %s\nseconds = %s\nstory = %s\n",
                     state_words[build->state], hex, seconds, build->failure_reason);
    INVAR_TRY(invar_path_join(path, sizeof path, folder, "verdict"));
    return invar_file_write(path, text, (size_t)bytes);
}

/* *out is false if the folder has no valid verdict file. */
static invar_status read_verdict(bool *out, invar_revision_build *build, const char *folder)
{
    char *text, state[16], hex[INVAR_DIGEST_HEX_SIZE];

    INVAR_TRY(invar_workspace_record_read(&text, folder, "verdict", 5));
    *out = text && invar_workspace_value_copy(state, sizeof state, NULL, text, "state") &&
           invar_workspace_value_copy(hex, sizeof hex, NULL, text, "binary") &&
           invar_workspace_record_number(&build->seconds, text, "seconds") &&
           invar_workspace_value_copy(build->failure_reason, sizeof build->failure_reason, NULL,
                                      text, "story") &&
           invar_digest_parse(&build->binary, hex) == INVAR_OK;
    build->state = *out && strcmp(state, state_words[INVAR_REVISION_BUILD_READY]) == 0
                       ? INVAR_REVISION_BUILD_READY
                       : INVAR_REVISION_BUILD_FAILED;
    *out = *out && strcmp(state, state_words[build->state]) == 0;
    invar_free(text);
    return INVAR_OK;
}

/* ---- building -------------------------------------------------------------------------------- */

/*
 * Creates the folder of the unfinished program. It belongs to the worktree, so no other process
 * uses it.
 */
static invar_status begin_build(build_job *m)
{
    INVAR_TRY(invar_path_join(m->made, sizeof m->made, m->slot->folder, "made"));
    INVAR_TRY(invar_held_folder_remove(m->made));
    INVAR_TRY(invar_held_folder_make(m->made));
    return invar_path_join(m->out->log, sizeof m->out->log, m->made, "build.log");
}

/* Computes the path at which the build leaves the program. */
static invar_status format_program_path(char out[INVAR_PATH_SIZE], const build_job *m)
{
    const char *program = m->from->how->program;
    bool built = program[0] == '@';

    return invar_path_join(out, INVAR_PATH_SIZE, built ? m->slot->build : m->slot->source,
                           program + built);
}

/*
 * Removes the program of an older build, so that it is not mistaken for the result of this one.
 * Nothing is removed if a link leads out of the worktree.
 */
static invar_status remove_old_program(const build_job *m)
{
    char path[INVAR_PATH_SIZE], folder[INVAR_PATH_SIZE], real[INVAR_PATH_SIZE];
    size_t length = strlen(m->slot->folder);

    INVAR_TRY(format_program_path(path, m));
    memcpy(folder, path, sizeof folder);
    *strrchr(folder, '/') = '\0';
    if (realpath(folder, real) && strncmp(real, m->slot->folder, length) == 0 &&
        real[length] == '/')
        (void)unlink(path); // a file that cannot be removed makes the copy fail
    return INVAR_OK;
}

static invar_status check_out(const build_job *m)
{
    char hash[INVAR_OID_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    const program_source *from = m->from;

    INVAR_TRY(invar_held_folder_make(m->slot->build));
    if (from->how->program)
        // before the checkout, because the program may be a file of the tree
        INVAR_TRY(remove_old_program(m));
    if (from->repo)
        return invar_repo_checkout(from->repo, from->commit, m->slot->source);
    INVAR_TRY(invar_repo_snapshot(hash, from->commit, m->slot->source));
    if (strcmp(hash, from->tree) == 0)
        return INVAR_OK;
    invar_path_show(shown, from->commit);
    return INVAR_FAIL(INVAR_E_STATE, 0, "%s: it changes while it is read; leave it alone meanwhile",
                      shown);
}

static invar_status run_build(invar_child_result *out, const build_job *m)
{
    const invar_build_plan *how = m->from->how;
    const char *words[] = {"sh", "-c", how->command ? how->command : invar_build, NULL};
    char source[INVAR_PATH_SIZE + 32], build[INVAR_PATH_SIZE + 32], ceiling[INVAR_PATH_SIZE + 32];
    char commit[INVAR_OID_SIZE + 32], jobs[64];
    const char *environment[] = {
        INVAR_WORKTREE_WITHOUT, source, build, ceiling, commit, jobs, NULL};
    invar_child_request request = {.words = words,
                                   .folder = m->slot->source,
                                   .environment = environment,
                                   .log = m->out->log,
                                   .lock = m->slot->lock,
                                   .timeout = how->timeout,
                                   .stop = m->stop,
                                   .kill_grace_s = BUILD_GRACE};

    (void)snprintf(source, sizeof source, "INVAR_SOURCE=%s", m->slot->source);
    (void)snprintf(build, sizeof build, "INVAR_BUILD=%s", m->slot->build);
    (void)snprintf(ceiling, sizeof ceiling, "GIT_CEILING_DIRECTORIES=%s", m->slot->folder);
    (void)snprintf(commit, sizeof commit, "INVAR_COMMIT=%s", m->from->repo ? m->from->commit : "");
    (void)snprintf(jobs, sizeof jobs, "INVAR_JOBS=%" PRId64, how->threads > 0 ? how->threads : 1);
    return invar_child_run(out, &request);
}

/* Returns true if the build failed on its own or left no program. */
static bool build_failed(const build_job *m, const invar_child_result *r)
{
    char path[INVAR_PATH_SIZE];

    if (r->end != INVAR_CHILD_EXITED || r->code != 0)
        return r->end == INVAR_CHILD_EXITED || r->end == INVAR_CHILD_SIGNALLED;
    return m->from->how->program && format_program_path(path, m) == INVAR_OK &&
           access(path, X_OK) != 0;
}

/*
 * Checks out the tree and builds it. A failure on top of an older build is repeated from scratch.
 */
static invar_status run_build_job(invar_child_result *out, build_job *m)
{
    bool older = invar_path_exists(m->slot->build);
    double seconds;

    memset(out, 0, sizeof *out);
    INVAR_TRY(check_out(m));
    if (!m->from->how->command && !m->from->how->program)
        return INVAR_OK;
    INVAR_TRY(run_build(out, m));
    if (out->killed)
        return invar_worktree_reset(m->slot);
    if (!build_failed(m, out))
        return INVAR_OK;
    INVAR_TRY(invar_workspace_check_room(m->workshop));
    if (!older)
        return INVAR_OK;
    seconds = out->seconds;
    INVAR_TRY(invar_worktree_reset(m->slot));
    INVAR_TRY(begin_build(m));
    INVAR_TRY(check_out(m));
    INVAR_TRY(run_build(out, m));
    out->seconds += seconds;
    return build_failed(m, out) ? invar_workspace_check_room(m->workshop) : INVAR_OK;
}

/* Copies the program out of the worktree. A missing program counts as a failed build. */
static invar_status fetch_program(build_job *m)
{
    const char *program = m->from->how->program;
    char path[INVAR_PATH_SIZE], to[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    invar_status status;

    INVAR_TRY(format_program_path(path, m));
    INVAR_TRY(invar_path_join(to, sizeof to, m->made, program_name(program)));
    status = invar_workspace_copy_binary(&m->out->binary, path, to);
    if (status == INVAR_E_NOTFOUND) {
        invar_error_clear();
        invar_path_show(shown, program);
        (void)snprintf(m->out->failure_reason, sizeof m->out->failure_reason,
                       "the build ended well, but there is no program %s after it", shown);
        m->out->state = INVAR_REVISION_BUILD_FAILED;
        return INVAR_OK;
    }
    INVAR_TRY(status);
    return invar_workspace_write_build_info(to, path, m->from->tree, m->from->repo,
                                            m->from->commit);
}

/* ---- the cache ------------------------------------------------------------------------------- */

/*
 * Loads the program in `folder`. *out is false unless the verdict file is valid and the digest
 * matches.
 */
static invar_status load_cached_build(bool *out, invar_revision_build *build, const char *folder,
                                      const char *name)
{
    invar_digest digest;
    invar_status status;

    INVAR_TRY(invar_path_join(build->log, sizeof build->log, folder, "build.log"));
    INVAR_TRY(invar_path_join(build->path, sizeof build->path, folder, name));
    INVAR_TRY(read_verdict(out, build, folder));
    if (*out && build->state == INVAR_REVISION_BUILD_READY) {
        status = invar_workspace_hash_binary(&digest, build->path, true);
        if (status == INVAR_E_NOMEM)
            return status;
        *out = status == INVAR_OK && invar_digest_equal(&digest, &build->binary);
    }
    if (!*out)
        invar_error_clear();
    else if (build->state == INVAR_REVISION_BUILD_FAILED)
        build->path[0] = '\0';
    return INVAR_OK;
}

/* Loads the program of a key from the cache. *out is false if it is not cached. */
static invar_status find_cached_build(bool *out, invar_revision_build *build,
                                      const invar_workspace *workspace, const invar_digest *key,
                                      const char *name)
{
    char folder[INVAR_PATH_SIZE];
    invar_revision_build found = {0};

    INVAR_TRY(invar_workspace_path(folder, workspace, "programs", key));
    INVAR_TRY(load_cached_build(out, &found, folder, name));
    found.cached = *out;
    *build = *out ? found : (invar_revision_build){0};
    return INVAR_OK;
}

/* Renames `made` to the cache entry of the key. If another process was faster, loads its entry. */
static invar_status store_build(invar_revision_build *build, const invar_workspace *workspace,
                                const char *made, const invar_digest *key, const char *name)
{
    char folder[INVAR_PATH_SIZE];
    double seconds = build->seconds;
    bool lost, there = true;

    INVAR_TRY(write_verdict(made, build));
    INVAR_TRY(invar_workspace_path(folder, workspace, "programs", key));
    INVAR_TRY(invar_workspace_entry_commit(&lost, made, folder, false));
    if (lost) {
        INVAR_TRY(load_cached_build(&there, build, folder, name));
        if (!there) // the existing entry is invalid and is replaced
            INVAR_TRY(invar_workspace_entry_commit(&lost, made, folder, true));
        else
            INVAR_TRY(invar_held_folder_remove(made));
    }
    INVAR_TRY(load_cached_build(&there, build, folder, name));
    build->seconds = seconds;
    if (there)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "a program changed while it was put into the cache");
}

static void make_key(invar_digest *out, const program_source *from)
{
    static const char *const variables[] = {"CC",       "CXX",     "CFLAGS",
                                            "CXXFLAGS", "LDFLAGS", "CPPFLAGS"};
    const invar_build_plan *how = from->how;
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    invar_workspace_key_add(&hasher, "tree");
    invar_workspace_key_add(&hasher, from->tree);
    invar_workspace_key_add(&hasher, how->command ? how->command : invar_build);
    invar_workspace_key_add(&hasher, how->program);
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        invar_workspace_key_add(&hasher, getenv(variables[i]));
    invar_hasher_final(out, &hasher);
}

/* ---- programs -------------------------------------------------------------------------------- */

static invar_status build_program(build_job *m, const invar_digest *key)
{
    const char *program = m->from->how->program;
    invar_child_result result;

    INVAR_TRY(begin_build(m));
    INVAR_TRY(run_build_job(&result, m));
    m->out->seconds = result.seconds;
    m->out->state = INVAR_REVISION_BUILD_READY;
    if (result.end == INVAR_CHILD_STOPPED) {
        m->out->state = INVAR_REVISION_BUILD_STOPPED;
        return INVAR_OK;
    }
    if (result.end != INVAR_CHILD_EXITED || result.code != 0) {
        m->out->state = INVAR_REVISION_BUILD_FAILED;
        invar_child_describe(m->out->failure_reason, &result, m->from->how->timeout);
    }
    if (!program || result.end == INVAR_CHILD_TIMED_OUT || result.end == INVAR_CHILD_MISSING)
        return INVAR_OK;
    if (m->out->state == INVAR_REVISION_BUILD_READY)
        INVAR_TRY(fetch_program(m));
    return store_build(m->out, m->workshop, m->made, key, program_name(program));
}

static invar_status check_how(const invar_build_plan *how)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    const char *program = how->program;

    if (!program || (program[0] != '/' && program_name(program)[0]))
        return INVAR_OK;
    invar_path_show(shown, program);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "--program %s: give a file relative to the tree, or @FILE for one relative "
                      "to the build folder",
                      shown);
}

static invar_status get_program(invar_revision_build *out, invar_workspace *workspace,
                                invar_worktree *slot, const program_source *from,
                                const volatile sig_atomic_t *stop)
{
    build_job m = {.workshop = workspace, .slot = slot, .from = from, .stop = stop, .out = out};
    invar_digest key;
    bool found = false;

    *out = (invar_revision_build){0};
    make_key(&key, from);
    if (from->how->program)
        INVAR_TRY(
            find_cached_build(&found, out, workspace, &key, program_name(from->how->program)));
    return found ? INVAR_OK : build_program(&m, &key);
}

invar_status invar_workspace_program(invar_revision_build *out, invar_workspace *workspace,
                                     invar_worktree *worktree, invar_repo *repo, const char *commit,
                                     const invar_build_plan *how, const volatile sig_atomic_t *stop)
{
    program_source from = {.how = how, .repo = repo, .commit = commit};

    INVAR_TRY(check_how(how));
    INVAR_TRY(invar_repo_tree(from.tree, repo, commit));
    return get_program(out, workspace, worktree, &from, stop);
}

invar_status invar_workspace_program_of_folder(invar_revision_build *out,
                                               invar_workspace *workspace, invar_worktree *worktree,
                                               const char *folder, const invar_build_plan *how,
                                               const volatile sig_atomic_t *stop)
{
    program_source from = {.how = how, .commit = folder};

    INVAR_TRY(check_how(how));
    INVAR_TRY(invar_repo_snapshot(from.tree, folder, worktree->source));
    return get_program(out, workspace, worktree, &from, stop);
}

static invar_status copy_file(invar_revision_build *out, const invar_workspace *workspace,
                              const invar_digest *key, const char *path)
{
    char made[INVAR_PATH_SIZE], to[INVAR_PATH_SIZE];
    invar_status status;

    INVAR_TRY(invar_workspace_entry_new(made, workspace, "programs", key));
    status = invar_path_join(to, sizeof to, made, program_name(path));
    if (status == INVAR_OK)
        status = invar_workspace_copy_binary(&out->binary, path, to);
    if (status == INVAR_OK)
        status = invar_workspace_copy_build_info(to, path);
    if (status == INVAR_OK)
        status = store_build(out, workspace, made, key, program_name(path));
    if (status != INVAR_OK)
        invar_workspace_entry_discard(made);
    return status;
}

invar_status invar_workspace_program_of_file(invar_revision_build *out, invar_workspace *workspace,
                                             const char *path)
{
    invar_digest key, binary;
    invar_hasher hasher;
    bool found;

    INVAR_TRY(invar_workspace_hash_binary(&binary, path, true));
    invar_hasher_init(&hasher);
    invar_workspace_key_add(&hasher, "file");
    invar_workspace_key_add(&hasher, program_name(path));
    invar_hasher_update(&hasher, &binary, sizeof binary);
    invar_hasher_final(&key, &hasher);
    INVAR_TRY(find_cached_build(&found, out, workspace, &key, program_name(path)));
    return found ? INVAR_OK : copy_file(out, workspace, &key, path);
}
