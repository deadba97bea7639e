/*
 * start.c - decides whether a run may begin in its folder, and opens the folder, ledger and fork.
 *
 * The run folder may be new, hold this run, or hold something else. All checks come before anything
 * is created. The run folder and the checkpoint folder are then held open, so that they are found
 * again if a user moves them, and are never created a second time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/files/hf/hf.h"
#include "engine/run/run_storage.h"

#include "base/invar_banned.h"

/* ---- foreign files --------------------------------------------------------------------------- */

/*
 * True if `path` leads through the entry `name` of the folder: "runs/a/checkpoints/x" leads through
 * "checkpoints" of "runs/a".
 */
static bool leads_through(const char *path, const char *folder, const char *name)
{
    size_t length = invar_path_length(folder), bytes = strlen(name);

    if (strncmp(path, folder, length) != 0 || path[length] != '/')
        return false;
    path += length + strspn(path + length, "/");
    return strncmp(path, name, bytes) == 0 && (path[bytes] == '/' || path[bytes] == '\0');
}

bool invar_run_is_output(const struct stat *file)
{
    struct stat out;

    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &out) == 0 && out.st_dev == file->st_dev && out.st_ino == file->st_ino)
            return true;
    return false;
}

/* True for files that users put beside a run: its log, its recipe, the script that starts it. */
static bool is_user_file(const char *name)
{
    static const char *const endings[] = {".log", ".out", ".err", ".txt", ".ini", ".sh", ".md"};

    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (invar_text_has_suffix(name, endings[i]))
            return true;
    return name[0] == '.';
}

/* True for entries that a run leaves in its folder, even if its ledger was removed. */
static bool is_run_file(const invar_run_storage *storage, DIR *folder, const char *name)
{
    struct stat there;

    return is_user_file(name) || strcmp(name, INVAR_RUN_PATHS_CHECKPOINTS) == 0 ||
           strcmp(name, "report.html") == 0 || strcmp(name, "dump") == 0 ||
           strncmp(name, "ledger.db", strlen("ledger.db")) == 0 ||
           leads_through(storage->dirs.paths.save, storage->dirs.paths.run, name) ||
           leads_through(storage->dirs.paths.ledger, storage->dirs.paths.run, name) ||
           (fstatat(dirfd(folder), name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
            invar_run_is_output(&there));
}

/* Fails if the folder has no ledger and holds other things: its name is probably a mistake. */
static invar_status check_foreign(const invar_run_storage *storage)
{
    char shown[INVAR_PATH_SHOWN_SIZE], what[INVAR_PATH_SHOWN_SIZE];
    const struct dirent *entry;
    bool foreign = false;
    DIR *folder;

    if (invar_path_exists(storage->dirs.paths.ledger))
        return INVAR_OK;
    folder = opendir(storage->dirs.paths.run);
    if (!folder)
        return INVAR_OK; // the folder does not exist, or creating it will report the error
    while (!foreign && (entry = readdir(folder)) != NULL)
        if (!is_run_file(storage, folder, entry->d_name)) {
            invar_path_show(what, entry->d_name);
            foreign = true;
        }
    closedir(folder);
    if (!foreign)
        return INVAR_OK;
    invar_path_show(shown, storage->dirs.paths.run);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "run: %s holds \"%s\" and no ledger: it is no folder of a run; give another "
                      "one with --run",
                      shown, what);
}

/* ---- starting over --------------------------------------------------------------------------- */

/*
 * Fails if --fresh cannot rename the old run: its ledger is elsewhere, or a process writes to it.
 */
static invar_status check_idle(const invar_run_storage *storage)
{
    const char *ledger = storage->dirs.paths.ledger;
    char writer[INVAR_LEDGER_WRITER_SIZE];

    if (storage->job->config->ledger[0] && invar_path_exists(ledger))
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "--fresh: the ledger %.1000s lies outside of the run's folder and has the "
            "old run; give another one with --ledger",
            ledger);
    INVAR_TRY(invar_ledger_writer(writer, ledger));
    if (writer[0])
        return INVAR_FAIL(INVAR_E_BUSY, 0, "--fresh: %.1000s has a writer: %.1000s; end it first",
                          ledger, writer);
    return INVAR_OK;
}

/* Copies the run folder without trailing slashes: if it is a link, the link itself is meant. */
static void copy_run_folder(char out[INVAR_PATH_SIZE], const invar_run_storage *storage)
{
    (void)snprintf(out, INVAR_PATH_SIZE, "%.*s", (int)invar_path_length(storage->dirs.paths.run),
                   storage->dirs.paths.run);
}

/*
 * True if the path to the checkpoints leads through the run folder, so that they move when it is
 * renamed. A path that leaves the folder again does not.
 */
static bool is_inside_run_folder(const invar_run_storage *storage)
{
    const char *save = storage->dirs.paths.save;
    char home[INVAR_PATH_SIZE], part[INVAR_PATH_SIZE];
    struct stat run, there;
    bool along = false;

    copy_run_folder(home, storage);
    if (lstat(home, &run) != 0)
        return false;
    for (size_t end = 1; save[0] && save[end - 1]; end++) {
        if (save[end - 1] == '/' || (save[end] && save[end] != '/'))
            continue;
        (void)snprintf(part, sizeof part, "%.*s", (int)end, save);
        if (lstat(part, &there) == 0 && there.st_dev == run.st_dev && there.st_ino == run.st_ino)
            along = true;
        else if (end > 1 && memcmp(&save[end - 2], "..", 2) == 0)
            along = false;
    }
    return along;
}

/* Renames the old run to FOLDER.1, or the next free number. */
static invar_status rename_old_run(const invar_run_storage *storage)
{
    char from[INVAR_PATH_SIZE], to[INVAR_PATH_SIZE + 16], shown[INVAR_PATH_SHOWN_SIZE];

    copy_run_folder(from, storage);
    for (int n = 1; n == 1 || invar_path_exists(to); n++)
        (void)snprintf(to, sizeof to, "%s.%d", from, n);
    if (rename(from, to) != 0) {
        int code = errno;
        invar_path_show(shown, from);
        return INVAR_FAIL(INVAR_E_IO, code, "--fresh: %s cannot be renamed: %s", shown,
                          strerror(code));
    }
    invar_recorder_print(&storage->recorder, "the old run is now %s", to);
    return INVAR_OK;
}

/* ---- the owner of the checkpoints ------------------------------------------------------------ */

/* Fails because the checkpoints in `save` belong to `owner`. */
static invar_status fail_foreign_checkpoints(const invar_run_storage *storage,
                                             const invar_checkpoint_owner *owner)
{
    char shown[INVAR_PATH_SHOWN_SIZE], who[INVAR_LEDGER_UUID_SIZE + 16] = "something else";

    invar_path_show(shown, storage->dirs.paths.save);
    if (owner->uuid[0])
        (void)snprintf(who, sizeof who, "run %.8s", owner->uuid);
    return INVAR_FAIL(
        INVAR_E_STATE, 0,
        "save: %s holds checkpoints of %s%s; give this run a folder of its own with save, "
        "or start from their weights with ref-load",
        shown, who,
        storage->job->options->fresh ? ", and --fresh sets aside only what is in the run's folder"
        : invar_digest_equal(&owner->identity, &storage->identity.digest)
            ? ", of the same recipe in another run folder"
            : "");
}

/* Locks the checkpoint folder, and fails if it belongs to another run. */
static invar_status lock_checkpoint_folder(invar_run_storage *storage)
{
    if (!storage->dirs.paths.save[0] || storage->job->options->replay || storage->dirs.claim.locked)
        return INVAR_OK;
    INVAR_TRY(invar_checkpoint_lock_acquire(&storage->dirs.claim, storage->dirs.paths.save));
    if (storage->dirs.claim.owned &&
        (!storage->recorder.uuid[0] ||
         strcmp(storage->dirs.claim.owner.uuid, storage->recorder.uuid) != 0))
        return fail_foreign_checkpoints(storage, &storage->dirs.claim.owner);
    return INVAR_OK;
}

static bool has_checkpoint(const char *folder)
{
    int64_t step;

    if (folder[0] && invar_checkpoint_latest(&step, folder) == INVAR_OK)
        return true;
    invar_error_clear();
    return false;
}

/* Fails if the run has checkpoints and `save` names another folder: it would start over. */
static invar_status check_save_folder(const invar_run_storage *storage)
{
    const char *save = storage->dirs.paths.save[0] ? storage->dirs.paths.save : "none";
    char folder[INVAR_PATH_SIZE], warning[INVAR_RUN_PATHS_WARNING_SIZE];
    char there[INVAR_PATH_SHOWN_SIZE], here[INVAR_PATH_SHOWN_SIZE];

    if (storage->fork.starting || storage->job->config->load[0] ||
        has_checkpoint(storage->dirs.paths.save))
        return INVAR_OK;
    // a run without checkpoints starts over anyway
    if (invar_run_paths_checkpoints(folder, warning, storage->dirs.paths.run, -1) != INVAR_OK ||
        !has_checkpoint(folder)) {
        invar_error_clear();
        return INVAR_OK;
    }
    invar_path_show(there, folder);
    invar_path_show(here, save);
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "save = %s, but the checkpoints of this run are in %s: give --save %s to "
                      "continue there, --load %s to continue and save as you say, or --fresh to "
                      "start over",
                      here, there, there, there);
}

invar_status invar_run_check_home(const invar_run_storage *storage, const invar_run_models *models)
{
    invar_checkpoint_owner owner = {.uuid = ""};
    char uuid[INVAR_LEDGER_UUID_SIZE];
    bool owned = false;

    INVAR_TRY(check_foreign(storage));
    if (storage->job->options->fresh) // an existing run is renamed
        return INVAR_OK;
    INVAR_TRY(invar_run_check_existing(uuid, storage, models));
    if (invar_path_exists(storage->dirs.paths.save))
        INVAR_TRY(invar_checkpoint_owner_find(&owned, &owner, storage->dirs.paths.save));
    if (owned && strcmp(owner.uuid, uuid) != 0)
        return fail_foreign_checkpoints(storage, &owner);
    return uuid[0] ? check_save_folder(storage) : INVAR_OK;
}

invar_status invar_run_open_dirs(invar_run_storage *storage, invar_run_models *models)
{
    bool known;

    if (storage->job->options->fresh && invar_path_exists(storage->dirs.paths.run)) {
        INVAR_TRY(check_idle(storage));
        if (invar_path_exists(storage->dirs.paths.save) && !is_inside_run_folder(storage))
            // not renamed with the run, so a foreign owner must be rejected before that
            INVAR_TRY(lock_checkpoint_folder(storage));
        INVAR_TRY(rename_old_run(storage));
    }
    known = invar_path_exists(storage->dirs.paths.ledger);
    if (known)
        INVAR_TRY(invar_run_open_ledger(storage, models));
    INVAR_TRY(invar_run_check_exports(storage));
    INVAR_TRY(lock_checkpoint_folder(storage));
    INVAR_TRY(invar_held_folder_make(storage->dirs.paths.run));
    INVAR_TRY(invar_held_folder_open(&storage->dirs.folder, storage->dirs.paths.run));
    return known ? INVAR_OK : invar_run_open_ledger(storage, models);
}

invar_status invar_run_write_owner(invar_run_storage *storage)
{
    invar_checkpoint_owner owner = {.identity = storage->identity.digest};

    if (!storage->dirs.claim.locked)
        return INVAR_OK;
    memcpy(owner.uuid, storage->recorder.uuid, sizeof owner.uuid);
    INVAR_TRY(invar_checkpoint_lock_write_owner(&storage->dirs.claim, &owner));
    return invar_checkpoint_remove_leftovers(storage->dirs.paths.save);
}

/* ---- a fork ---------------------------------------------------------------------------------- */

/* Result of reading the fork from a ledger. */
typedef struct recorded_fork {
    invar_fork *fork;
    bool run; /* the ledger has a run, forked or not */
} recorded_fork;

static invar_status read_fork_row(void *payload, const char *const *columns,
                                  const invar_ledger_value *values, int count)
{
    recorded_fork *found = payload;
    invar_fork *fork = found->fork;

    (void)columns;
    if (!values)
        return INVAR_OK;
    INVAR_CHECK(count == 3);
    found->run = true;
    if (values[0].type == INVAR_LEDGER_TYPE_NULL)
        return INVAR_OK;
    if (values[0].type != INVAR_LEDGER_TYPE_TEXT || values[0].bytes >= sizeof fork->uuid ||
        values[1].type != INVAR_LEDGER_TYPE_INT || values[2].type != INVAR_LEDGER_TYPE_BLOB ||
        values[2].bytes != sizeof fork->chain.bytes)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "the ledger has an invalid parent: invar ledger verify says more");
    memcpy(fork->uuid, values[0].data, values[0].bytes + 1);
    fork->step = values[1].integer;
    memcpy(fork->chain.bytes, values[2].data, sizeof fork->chain.bytes);
    return INVAR_OK;
}

/* Sets storage->fork as the ledger of the run folder has it. *run_out is true if it has a run. */
static invar_status read_recorded_fork(bool *run_out, invar_run_storage *storage)
{
    recorded_fork found = {.fork = &storage->fork};
    const invar_ledger_select_request request = {
        .sql = "SELECT CASE WHEN g.after_step >= 0 THEN r.parent END, g.after_step, g.chain FROM "
               "run r JOIN segment g ON g.run = r.run AND g.seg = 0",
        .row = read_fork_row,
        .payload = &found};
    invar_ledger *ledger = NULL;
    invar_status status = INVAR_OK;

    *run_out = false;
    if (!invar_path_exists(storage->dirs.paths.ledger) || storage->job->options->fresh)
        return INVAR_OK;
    if (invar_ledger_open(&ledger, storage->dirs.paths.ledger, &(invar_ledger_options){0}) !=
        INVAR_OK) {
        invar_error_clear(); // opening the ledger to write will report or repair it
        return INVAR_OK;
    }
    status = invar_ledger_select(ledger, &request);
    invar_ledger_close(ledger);
    *run_out = found.run;
    return status;
}

/* Checks keys that --fork excludes or needs. */
static invar_status check_fork_keys(const invar_run_storage *storage)
{
    bool step = storage->job->config->ckpt_step >= 0;

    if (storage->job->config->load[0])
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "--fork names what the run continues from, and so does 'load': leave one of "
            "them out");
    if (step || storage->job->config->skip_damaged)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--fork: '%s' is about a run's own checkpoints; choose one of the parent "
                          "with --fork-step, or leave out --fork to resume a fork",
                          step ? "ckpt-step" : "skip-damaged");
    if (!storage->dirs.paths.save[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--fork: a fork needs checkpoints of its own to resume from; leave out "
                          "save = none");
    return INVAR_OK;
}

/* Opens the checkpoint of the parent at `step`, unless --fork-step names another one. */
static invar_status open_parent(invar_run_storage *storage, int64_t step)
{
    const bool asked = storage->job->options->fork_step != INVAR_CHECKPOINT_LATEST;
    const invar_checkpoint_open_options choice = {.step = asked ? storage->job->options->fork_step
                                                                : step};
    const invar_checkpoint_state *state;
    char folder[INVAR_PATH_SIZE], warning[INVAR_RUN_PATHS_WARNING_SIZE];
    invar_status status;

    INVAR_TRY(check_fork_keys(storage));
    INVAR_TRY(invar_hf_check_folder("--fork", storage->job->options->fork));
    INVAR_TRY(
        invar_run_paths_checkpoints(folder, warning, storage->job->options->fork, choice.step));
    if (warning[0])
        invar_run_print(storage, warning);
    status = invar_checkpoint_open(&storage->checkpoints.resume_from, folder, &choice);
    if (status == INVAR_E_NOTFOUND)
        return invar_error_advise(status, INVAR_E_NOTFOUND,
                                  "--fork needs the folder of a run that has checkpoints");
    INVAR_TRY(status);
    state = invar_checkpoint_state_of(storage->checkpoints.resume_from);
    if (!state->uuid[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--fork: %.1000s is of no run; start from its weights with ref-load",
                          invar_checkpoint_path(storage->checkpoints.resume_from));
    storage->fork = (invar_fork){.step = state->step, .chain = state->chain, .starting = true};
    memcpy(storage->fork.uuid, state->uuid, sizeof storage->fork.uuid);
    memcpy(storage->fork.name, state->name, sizeof storage->fork.name);
    return INVAR_OK;
}

/*
 * *out is true if the fork has checkpoints of its own. Fails if they exist but none is marked as
 * the newest: starting the fork again would overwrite them.
 */
static invar_status has_own_checkpoint(bool *out, const char *save)
{
    static const char advice[] = "leave out --fork, and choose a checkpoint with ckpt-step";
    char shown[INVAR_PATH_SHOWN_SIZE];
    int64_t step, count = 0, *steps = NULL;
    invar_status status = invar_checkpoint_latest(&step, save);

    *out = status == INVAR_OK;
    if (status != INVAR_E_NOTFOUND)
        return invar_error_advise(status, INVAR_E_CORRUPT, advice);
    invar_error_clear();
    if (invar_path_exists(save))
        INVAR_TRY(invar_checkpoint_list(&steps, &count, save));
    invar_free(steps);
    if (count == 0)
        return INVAR_OK;
    invar_path_show(shown, save);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s has checkpoints, and nothing says the newest: %s",
                      shown, advice);
}

/*
 * Handles --fork for a run that is a fork already: it must be of the same parent and step. Resumes
 * it, or starts it again if it was stopped before its first checkpoint.
 */
static invar_status resume_or_restart_fork(invar_run_storage *storage)
{
    const invar_fork known = storage->fork;
    bool own;

    INVAR_TRY(has_own_checkpoint(&own, storage->dirs.paths.save));
    INVAR_TRY(open_parent(storage, known.step));
    if (known.step != storage->fork.step || !invar_digest_equal(&known.chain, &storage->fork.chain))
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%.1000s holds a fork of another run, or of another step; choose another "
                          "folder with --run, or start over with --fresh%s",
                          storage->dirs.paths.ledger,
                          own ? ", or leave out --fork to resume it" : "");
    if (!own)
        return INVAR_OK;
    invar_checkpoint_close(storage->checkpoints.resume_from);
    storage->checkpoints.resume_from = NULL;
    storage->fork = known;
    return INVAR_OK;
}

static invar_status find_fork_on_rank0(invar_run_storage *storage)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    bool there;

    INVAR_TRY(read_recorded_fork(&there, storage));
    if (!storage->job->options->fork)
        return INVAR_OK;
    if (!there)
        return open_parent(storage, INVAR_CHECKPOINT_LATEST);
    if (storage->fork.step >= 0)
        return resume_or_restart_fork(storage);
    invar_path_show(shown, storage->dirs.paths.run);
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "--fork: %s exists already and is not a fork; give the new run a name of its "
                      "own with --name or --run",
                      shown);
}

invar_status invar_run_find_fork(invar_run_storage *storage)
{
    storage->fork.step = -1;
    if (invar_ranks_is_leader(storage->world->all))
        INVAR_TRY(find_fork_on_rank0(storage));
    return invar_ranks_broadcast(storage->world->all, "fork", 0, &storage->fork,
                                 sizeof storage->fork);
}

/* True for keys that decide which folders a run reads and writes. A fork has folders of its own. */
static bool is_about_folders(int key)
{
    return key == INVAR_KEY_NAME || key == INVAR_KEY_RUN || key == INVAR_KEY_LEDGER ||
           key == INVAR_KEY_SAVE || key == INVAR_KEY_LOAD || key == INVAR_KEY_CKPT_STEP ||
           key == INVAR_KEY_SKIP_DAMAGED;
}

/*
 * A fork counts the rollouts of its parent, so the fork of a finished run needs more of them.
 * Returns the key that sets their number, with twice its value in *value_out; INVAR_KEY_COUNT if
 * the run is not finished.
 */
static int rollouts_key(int64_t *value_out, const invar_run_job *job, int64_t rollouts_done)
{
    const int64_t rollouts = job->config->num_rollout;
    const int key = rollouts > 0 ? INVAR_KEY_NUM_ROLLOUT : INVAR_KEY_NUM_EPOCH;

    if (rollouts_done < job->settings.run_schedule.rollouts)
        return INVAR_KEY_COUNT;
    *value_out = rollouts > 0 ? rollouts_done + rollouts : 2 * job->config->num_epoch;
    return key;
}

static void print_fork_command(FILE *out, const invar_run_storage *storage, const char *folder,
                               int64_t rollouts_done)
{
    int64_t most = 0;
    const int longer = rollouts_key(&most, storage->job, rollouts_done);
    const invar_run_paths *at = &storage->dirs.paths;

    fputs("invar train", out);
    if (storage->job->options->recipe_path) {
        fputc(' ', out);
        invar_text_print_shell_word(out, storage->job->options->recipe_path);
    }
    fputs(" --fork ", out);
    // the ledger in the run folder names the weights of a checkpoint without any
    invar_text_print_shell_word(
        out, !storage->job->config->debug_rollout_only && storage->job->config->save[0] ? at->save
                                                                                        : at->run);
    fputs(" --run ", out);
    invar_text_print_shell_word(out, folder);
    if (storage->job->options->threads_for > 1)
        fprintf(out, " --ranks %d", storage->job->options->threads_for);
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry e;
        invar_recipe_entry_get(&e, storage->job->config->recipe, i);
        if (i == longer)
            fprintf(out, " --%s %" PRId64, e.key->name, most);
        if (i == longer || e.source != INVAR_RECIPE_SOURCE_FLAG || is_about_folders(i))
            continue;
        fprintf(out, " --%s ", e.key->name);
        invar_text_print_shell_word(out, e.text);
    }
}

void invar_run_fork_command(char out[INVAR_FORK_COMMAND_SIZE], const invar_run_storage *storage)
{
    char folder[INVAR_PATH_SIZE + 24], home[INVAR_PATH_SIZE];
    int64_t step;
    FILE *text;

    out[0] = '\0';
    if (!storage->dirs.paths.save[0] ||
        invar_checkpoint_latest(&step, storage->dirs.paths.save) != INVAR_OK) {
        invar_error_clear();
        return;
    }
    copy_run_folder(home, storage);
    (void)snprintf(folder, sizeof folder, "%s-fork", home);
    for (int n = 2; invar_path_exists(folder); n++)
        (void)snprintf(folder, sizeof folder, "%s-fork-%d", home, n);
    text = fmemopen(out, INVAR_FORK_COMMAND_SIZE, "w");
    if (!text)
        return;
    setbuf(text, NULL); // unbuffered, so that ferror reports a command that is too long
    print_fork_command(text, storage, folder,
                       (step + 1) / storage->job->settings.steps_per_rollout);
    if (ferror(text))
        out[0] = '\0';
    (void)fclose(text);
}

/* ---- moved folders --------------------------------------------------------------------------- */

invar_status invar_run_refresh_paths(invar_run_storage *storage)
{
    if (!storage->dirs.folder.is_open)
        return INVAR_OK;
    INVAR_TRY(invar_held_folder_refresh(&storage->dirs.folder));
    if (storage->dirs.claim.locked) {
        INVAR_TRY(invar_checkpoint_lock_refresh_path(&storage->dirs.claim));
        memcpy(storage->dirs.paths.save, storage->dirs.claim.folder.path,
               sizeof storage->dirs.paths.save);
    }
    if (strcmp(storage->dirs.folder.path, storage->dirs.paths.run) == 0)
        return INVAR_OK;
    invar_recorder_print(&storage->recorder, "the run was moved, and continues in %s",
                         storage->dirs.folder.path);
    memcpy(storage->dirs.paths.run, storage->dirs.folder.path, sizeof storage->dirs.paths.run);
    if (storage->job->config->ledger[0])
        return INVAR_OK;
    return invar_path_join(storage->dirs.paths.ledger, sizeof storage->dirs.paths.ledger,
                           storage->dirs.paths.run, "ledger.db");
}
