/*
 * programs.c - from a tree to a program: the cache of programs, and builds.
 *
 * A program's folder is made in its slot, slots/N/made, and renamed to programs/KEY when it is
 * whole. Two that make the same program at a time both build; the first to rename wins, and the
 * other takes that.
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
#include "base/recipe/recipe.h"
#include "bisect/workspace/workspace.h"
#include "bisect/workspace/workspace_internal.h"

#include "base/invar_banned.h"

#define BUILD_GRACE 10.0 /* seconds that a build has to end in order */

/*
 * Without the cache of an older tree: settings that nobody has asked for are this tree's own. What
 * was compiled stays, and is compiled again where it has to be.
 */
static const char invar_build[] =
    "command -v ninja >/dev/null 2>&1 && set -- -G Ninja\n"
    "rm -f \"$INVAR_BUILD/CMakeCache.txt\"\n"
    "cmake -S \"$INVAR_SOURCE\" -B \"$INVAR_BUILD\" \"$@\" -DCMAKE_BUILD_TYPE=Release "
    "-DBUILD_TESTING=OFF -DINVAR_BISECT=OFF &&\n"
    "cmake --build \"$INVAR_BUILD\" --parallel \"$INVAR_JOBS\" --target invar";

/* What a program is made from. */
typedef struct origin {
    const invar_build_plan *how;
    invar_repo *repo;   /* NULL: a folder */
    const char *commit; /* or the folder */
    char tree[INVAR_OID_SIZE];
} origin;

/* One build: where it happens and what came out. */
typedef struct making {
    invar_workspace *workshop;
    invar_worktree *slot;
    const origin *from;
    const volatile sig_atomic_t *stop;
    invar_revision_build *out;
    char made[INVAR_PATH_SIZE]; /* folder of the program in the making */
} making;

static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path + (path[0] == '@');
}

/* ---- the verdict ----------------------------------------------------------------------------- */

enum { VERDICT_STATE, VERDICT_BINARY, VERDICT_SECONDS, VERDICT_STORY, VERDICT_KEYS };

/* A build that the user stopped has no verdict. */
static const char *const state_words[] = {
    [INVAR_REVISION_BUILD_READY] = "ready", [INVAR_REVISION_BUILD_FAILED] = "failed"};
static const invar_choices invar_revision_build_state_choices = {
    state_words, sizeof state_words / sizeof *state_words};

static const invar_recipe_key verdict_keys[VERDICT_KEYS] = {
    {.section = "program",
     .name = "state",
     .type = INVAR_RECIPE_TYPE_ENUM,
     .choices = &invar_revision_build_state_choices,
     .doc = "whether there is one"},
    {.section = "program",
     .name = "binary",
     .type = INVAR_RECIPE_TYPE_STRING,
     .doc = "digest of its bytes"},
    {.section = "program",
     .name = "seconds",
     .type = INVAR_RECIPE_TYPE_FLOAT,
     .doc = "that the build took"},
    {.section = "program",
     .name = "story",
     .type = INVAR_RECIPE_TYPE_STRING,
     .doc = "why it failed"},
};
static const invar_recipe_schema verdict_schema = {.keys = verdict_keys, .count = VERDICT_KEYS};

static invar_status write_verdict(const char *folder, const invar_revision_build *built)
{
    char path[INVAR_PATH_SIZE], hex[INVAR_DIGEST_HEX_SIZE], seconds[INVAR_NUMBER_SIZE];
    char text[INVAR_CHILD_REASON_SIZE + 256];
    int bytes;

    invar_digest_format(hex, &built->binary);
    INVAR_TRY(invar_number_format(seconds, built->seconds));
    bytes = snprintf(text, sizeof text,
                     "[program]\nstate = %s\nbinary = %s\nseconds = %s\nstory = %s\n",
                     state_words[built->state], hex, seconds, built->failure_reason);
    INVAR_TRY(invar_path_join(path, sizeof path, folder, "verdict"));
    return invar_file_write(path, text, (size_t)bytes);
}

static invar_status parse_verdict(invar_revision_build *out, const invar_recipe *verdict)
{
    INVAR_TRY(invar_recipe_check(verdict));
    out->state = INVAR_RECIPE_ENUM(invar_revision_build_state, verdict, VERDICT_STATE);
    out->seconds = invar_recipe_float(verdict, VERDICT_SECONDS);
    (void)snprintf(out->failure_reason, sizeof out->failure_reason, "%s",
                   invar_recipe_string(verdict, VERDICT_STORY));
    return invar_digest_parse(&out->binary, invar_recipe_string(verdict, VERDICT_BINARY));
}

static invar_status read_verdict(invar_revision_build *out, const char *folder)
{
    char path[INVAR_PATH_SIZE];
    invar_recipe *verdict;
    invar_status status;

    INVAR_TRY(invar_path_join(path, sizeof path, folder, "verdict"));
    INVAR_TRY(invar_recipe_new(&verdict, &verdict_schema));
    status = invar_recipe_read(verdict, path);
    if (status == INVAR_OK)
        status = parse_verdict(out, verdict);
    invar_recipe_free(verdict);
    return status;
}

/* ---- a build --------------------------------------------------------------------------------- */

/* The folder of the program in the making: in a slot, nobody else's. */
static invar_status making_begin(making *m)
{
    INVAR_TRY(invar_path_join(m->made, sizeof m->made, m->slot->folder, "made"));
    INVAR_TRY(invar_held_folder_remove(m->made));
    INVAR_TRY(invar_held_folder_make(m->made));
    return invar_path_join(m->out->log, sizeof m->out->log, m->made, "build.log");
}

/* Where the build leaves the program. */
static invar_status name_program(char out[INVAR_PATH_SIZE], const making *m)
{
    const char *program = m->from->how->program;
    bool built = program[0] == '@';

    return invar_path_join(out, INVAR_PATH_SIZE, built ? m->slot->build : m->slot->source,
                           program + built);
}

/* The program of an older build goes, so that it is not taken for that of a build that makes none.
   A link on the way may lead out of the slot, where nothing is ours. */
static invar_status forget_program(const making *m)
{
    char path[INVAR_PATH_SIZE], folder[INVAR_PATH_SIZE], real[INVAR_PATH_SIZE];
    size_t length = strlen(m->slot->folder);

    INVAR_TRY(name_program(path, m));
    memcpy(folder, path, sizeof folder);
    *strrchr(folder, '/') = '\0';
    if (realpath(folder, real) && strncmp(real, m->slot->folder, length) == 0 &&
        real[length] == '/')
        (void)unlink(path); // if it cannot go, the copy will say so
    return INVAR_OK;
}

static invar_status check_out(const making *m)
{
    char hash[INVAR_OID_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    const origin *from = m->from;

    INVAR_TRY(invar_held_folder_make(m->slot->build));
    if (from->how->program)
        INVAR_TRY(forget_program(m)); // first: it may be a file of the tree, too
    if (from->repo)
        return invar_repo_checkout(from->repo, from->commit, m->slot->source);
    INVAR_TRY(invar_repo_snapshot(hash, from->commit, m->slot->source));
    if (strcmp(hash, from->tree) == 0)
        return INVAR_OK;
    invar_path_show(shown, from->commit);
    return INVAR_FAIL(INVAR_E_STATE, 0, "%s: it changes while it is read; leave it alone meanwhile",
                      shown);
}

static invar_status run_build(invar_child_result *out, const making *m)
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

/* Whether it ended by itself, and badly or without a program. */
static bool went_wrong(const making *m, const invar_child_result *r)
{
    char path[INVAR_PATH_SIZE];

    if (r->end != INVAR_CHILD_EXITED || r->code != 0)
        return r->end == INVAR_CHILD_EXITED || r->end == INVAR_CHILD_SIGNALLED;
    return m->from->how->program && name_program(path, m) == INVAR_OK && access(path, X_OK) != 0;
}

/* Checks out and builds. A failure on top of an older build is none yet: it may be that one's. */
static invar_status making_build(invar_child_result *out, making *m)
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
    if (!went_wrong(m, out))
        return INVAR_OK;
    INVAR_TRY(invar_workspace_check_room(m->workshop));
    if (!older)
        return INVAR_OK;
    seconds = out->seconds;
    INVAR_TRY(invar_worktree_reset(m->slot));
    INVAR_TRY(making_begin(m));
    INVAR_TRY(check_out(m));
    INVAR_TRY(run_build(out, m));
    out->seconds += seconds;
    return went_wrong(m, out) ? invar_workspace_check_room(m->workshop) : INVAR_OK;
}

/* Takes the program out of the slot. One that is not there is a failed build. */
static invar_status making_fetch(making *m)
{
    const char *program = m->from->how->program;
    char path[INVAR_PATH_SIZE], to[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    invar_status status;

    INVAR_TRY(name_program(path, m));
    INVAR_TRY(invar_path_join(to, sizeof to, m->made, last_name(program)));
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
    return invar_workspace_write_origin(to, path, m->from->tree, m->from->repo, m->from->commit);
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* The program in `folder`, if the verdict is there and true. */
static invar_status load_cached_build(bool *out, invar_revision_build *built, const char *folder,
                                      const char *name)
{
    invar_digest digest;
    invar_status status;

    *out = false;
    INVAR_TRY(invar_path_join(built->log, sizeof built->log, folder, "build.log"));
    INVAR_TRY(invar_path_join(built->path, sizeof built->path, folder, name));
    status = read_verdict(built, folder);
    if (status == INVAR_OK && built->state == INVAR_REVISION_BUILD_READY) {
        status = invar_workspace_hash_binary(&digest, built->path, true);
        if (status == INVAR_OK && !invar_digest_equal(&digest, &built->binary))
            return INVAR_OK;
    }
    if (status == INVAR_E_NOMEM)
        return status;
    if (status != INVAR_OK) {
        invar_error_clear();
        return INVAR_OK;
    }
    if (built->state == INVAR_REVISION_BUILD_FAILED)
        built->path[0] = '\0';
    *out = true;
    return INVAR_OK;
}

/* Takes it from the cache, if it is there. */
static invar_status look_up(bool *out, invar_revision_build *built, const invar_workspace *workshop,
                            const invar_digest *key, const char *name)
{
    char folder[INVAR_PATH_SIZE];

    *built = (invar_revision_build){0};
    INVAR_TRY(invar_workspace_path(folder, workshop, "programs", key));
    INVAR_TRY(load_cached_build(out, built, folder, name));
    built->cached = *out;
    if (!*out)
        *built = (invar_revision_build){0};
    return INVAR_OK;
}

/* `made` becomes the program of the key, unless another was faster: then it is that one. */
static invar_status revision_build_store(invar_revision_build *built,
                                         const invar_workspace *workshop, const char *made,
                                         const invar_digest *key, const char *name)
{
    char folder[INVAR_PATH_SIZE];
    double seconds = built->seconds;
    bool lost, there = true;

    INVAR_TRY(write_verdict(made, built));
    INVAR_TRY(invar_workspace_path(folder, workshop, "programs", key));
    INVAR_TRY(invar_workspace_entry_commit(&lost, made, folder, false));
    if (lost) {
        INVAR_TRY(load_cached_build(&there, built, folder, name));
        if (!there) // something is in the way that nobody believes
            INVAR_TRY(invar_workspace_entry_commit(&lost, made, folder, true));
        else
            INVAR_TRY(invar_held_folder_remove(made));
    }
    INVAR_TRY(load_cached_build(&there, built, folder, name));
    built->seconds = seconds;
    if (there)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "a program changed while it was put into the cache");
}

static void make_key(invar_digest *out, const origin *from)
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

static invar_status making_make(making *m, const invar_digest *key)
{
    const char *program = m->from->how->program;
    invar_child_result result;

    INVAR_TRY(making_begin(m));
    INVAR_TRY(making_build(&result, m));
    m->out->seconds = result.seconds;
    m->out->state = INVAR_REVISION_BUILD_READY;
    if (result.end == INVAR_CHILD_STOPPED) {
        m->out->state = INVAR_REVISION_BUILD_STOPPED;
        return INVAR_OK;
    }
    if (result.end != INVAR_CHILD_EXITED || result.code != 0) {
        m->out->state = INVAR_REVISION_BUILD_FAILED;
        invar_child_tell(m->out->failure_reason, &result, m->from->how->timeout);
    }
    if (!program || result.end == INVAR_CHILD_TIMED_OUT || result.end == INVAR_CHILD_MISSING)
        return INVAR_OK;
    if (m->out->state == INVAR_REVISION_BUILD_READY)
        INVAR_TRY(making_fetch(m));
    return revision_build_store(m->out, m->workshop, m->made, key, last_name(program));
}

static invar_status check_how(const invar_build_plan *how)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    const char *program = how->program;

    if (!program || (program[0] != '/' && last_name(program)[0]))
        return INVAR_OK;
    invar_path_show(shown, program);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "--program %s: give a file relative to the tree, or @FILE for one relative "
                      "to the build folder",
                      shown);
}

static invar_status program_of(invar_revision_build *out, invar_workspace *workshop,
                               invar_worktree *slot, const origin *from,
                               const volatile sig_atomic_t *stop)
{
    making m = {.workshop = workshop, .slot = slot, .from = from, .stop = stop, .out = out};
    invar_digest key;
    bool found = false;

    *out = (invar_revision_build){0};
    make_key(&key, from);
    if (from->how->program)
        INVAR_TRY(look_up(&found, out, workshop, &key, last_name(from->how->program)));
    return found ? INVAR_OK : making_make(&m, &key);
}

invar_status invar_workspace_program(invar_revision_build *out, invar_workspace *workshop,
                                     invar_worktree *slot, invar_repo *repo, const char *commit,
                                     const invar_build_plan *how, const volatile sig_atomic_t *stop)
{
    origin from = {.how = how, .repo = repo, .commit = commit};

    INVAR_TRY(check_how(how));
    INVAR_TRY(invar_repo_tree(from.tree, repo, commit));
    return program_of(out, workshop, slot, &from, stop);
}

invar_status invar_workspace_program_of_folder(invar_revision_build *out, invar_workspace *workshop,
                                               invar_worktree *slot, const char *folder,
                                               const invar_build_plan *how,
                                               const volatile sig_atomic_t *stop)
{
    origin from = {.how = how, .commit = folder};

    INVAR_TRY(check_how(how));
    INVAR_TRY(invar_repo_snapshot(from.tree, folder, slot->source));
    return program_of(out, workshop, slot, &from, stop);
}

static invar_status copy_file(invar_revision_build *out, const invar_workspace *workshop,
                              const invar_digest *key, const char *path)
{
    char made[INVAR_PATH_SIZE], to[INVAR_PATH_SIZE];
    invar_status status;

    INVAR_TRY(invar_workspace_entry_new(made, workshop, "programs", key));
    status = invar_path_join(to, sizeof to, made, last_name(path));
    if (status == INVAR_OK)
        status = invar_workspace_copy_binary(&out->binary, path, to);
    if (status == INVAR_OK)
        status = invar_workspace_copy_origin(to, path);
    if (status == INVAR_OK)
        status = revision_build_store(out, workshop, made, key, last_name(path));
    if (status != INVAR_OK)
        invar_workspace_entry_discard(made);
    return status;
}

invar_status invar_workspace_program_of_file(invar_revision_build *out, invar_workspace *workshop,
                                             const char *path)
{
    invar_digest key, binary;
    invar_hasher hasher;
    bool found;

    INVAR_TRY(invar_workspace_hash_binary(&binary, path, true));
    invar_hasher_init(&hasher);
    invar_workspace_key_add(&hasher, "file");
    invar_workspace_key_add(&hasher, last_name(path));
    invar_hasher_update(&hasher, &binary, sizeof binary);
    invar_hasher_final(&key, &hasher);
    INVAR_TRY(look_up(&found, out, workshop, &key, last_name(path)));
    return found ? INVAR_OK : copy_file(out, workshop, &key, path);
}
