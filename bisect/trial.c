/*
 * trial.c - tests one commit: builds it in a worktree, runs it and evaluates the criterion.
 *
 * A trial of a recipe runs the built program through the workspace, whose caches of programs and
 * runs serve most of the requests. A trial of a command runs `sh -c` in the checked-out tree and
 * follows the exit codes of git bisect run. A commit that cannot be built or run is not an error:
 * its value is empty and `failure_reason` has the reason.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/trial.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/process/process.h"

#include "base/invar_banned.h"

#define SKIP_CODE 125
#define ABORT_CODE 128

invar_build_plan invar_trial_build(const invar_trial_context *context)
{
    const invar_bisect_case *what = context->what;

    return (invar_build_plan){.command = what->build,
                              // a command runs in the tree, which must therefore be checked out
                              .program = what->run       ? NULL
                                         : what->program ? what->program
                                                         : "@invar",
                              .timeout = what->timeout,
                              .threads = context->threads};
}

invar_run_request invar_trial_request(const invar_trial_context *context,
                                      const invar_revision_build *build, int64_t attempt)
{
    return (invar_run_request){.program = build->path,
                               .binary = build->binary,
                               .recipe = context->recipe,
                               .flags = context->what->flags,
                               .name = attempt ? "again" : NULL,
                               .no_cache = attempt > 0,
                               .until = context->question.until,
                               .record_mismatch = true,
                               .timeout = context->what->timeout};
}

static void set_untestable(invar_bisect_state_trial *out, const char *what, const char *story)
{
    (void)snprintf(out->trial.failure_reason, sizeof out->trial.failure_reason, "%s: %.1000s", what,
                   story);
}

/* Like set_untestable, and names the log. A log path that does not fit completely is left out. */
static void set_untestable_with_log(invar_bisect_state_trial *out, const char *what,
                                    const char *story, const char *log)
{
    size_t used, room = strlen("; see ") + strlen(log);

    if (room > sizeof out->trial.failure_reason / 2) {
        set_untestable(out, what, story);
        return;
    }
    used = (size_t)snprintf(out->trial.failure_reason, sizeof out->trial.failure_reason - room,
                            "%s: %s", what, story);
    if (used >= sizeof out->trial.failure_reason - room)
        used = sizeof out->trial.failure_reason - room - 1;
    used -= used > 0 && out->trial.failure_reason[used - 1] == '.';
    (void)snprintf(out->trial.failure_reason + used, room + 1, "; see %s", log);
}

/* Evaluates the criterion on the ledger. A run that does not decide it counts as untestable. */
static invar_status evaluate_criterion(invar_bisect_state_trial *out,
                                       const invar_criterion *question, const char *ledger)
{
    invar_status status = invar_criterion_evaluate(out->trial.value, question, ledger);

    (void)snprintf(out->trial.ledger, sizeof out->trial.ledger, "%s", ledger);
    if (status != INVAR_E_NOTFOUND)
        return status;
    out->trial.value[0] = '\0';
    set_untestable(out, "ledger", invar_error_last()->message);
    invar_error_clear();
    return INVAR_OK;
}

/* ---- recipes --------------------------------------------------------------------------------- */

static bool run_is_decided(void *payload, const char *ledger)
{
    return invar_criterion_is_decided(payload, ledger);
}

static invar_status run_recipe(invar_trial_job *job, const invar_trial_context *context,
                               const invar_worktree *slot, const invar_revision_build *build,
                               const volatile sig_atomic_t *stop)
{
    invar_run_request request = invar_trial_request(context, build, job->attempt);
    invar_criterion question = context->question;
    invar_bisect_state_trial *out = &job->result;
    invar_run_result ran;

    request.stop = stop;
    request.should_stop = question.kind == INVAR_CRITERION_METRIC ? run_is_decided : NULL;
    request.payload = &question;
    INVAR_TRY(invar_workspace_run(&ran, context->workspace, slot->lock, &request));
    job->stopped = ran.state == INVAR_RUN_STOPPED;
    out->trial.exit_code = ran.exit_code;
    out->trial.run_s = ran.cached ? 0 : ran.seconds;
    out->trial.source = !ran.cached ? "ran" : build->cached ? "tree" : "program";
    if (ran.state == INVAR_RUN_FAILED)
        set_untestable(out, "run", ran.failure_reason);
    if (ran.state != INVAR_RUN_DONE)
        return INVAR_OK;
    return evaluate_criterion(out, &question, ran.ledger);
}

/* ---- commands -------------------------------------------------------------------------------- */

typedef struct command_watch {
    const invar_criterion *question;
    const char *ledger;
} command_watch;

static bool command_is_decided(void *payload)
{
    const command_watch *w = payload;

    return invar_criterion_is_decided(w->question, w->ledger);
}

/* Exit codes as in git bisect run: 0 good, 125 skip, 1 to 127 bad, 128 and above stop. */
static invar_status classify_command_exit(invar_bisect_state_trial *out,
                                          const invar_trial_context *context,
                                          const invar_child_result *r, const char *ledger)
{
    char story[INVAR_CHILD_REASON_SIZE];
    const bool decides = context->question.kind == INVAR_CRITERION_EXIT;
    bool exited = r->end == INVAR_CHILD_EXITED || r->end == INVAR_CHILD_ENDED_EARLY;
    int code = r->end == INVAR_CHILD_SIGNALLED ? ABORT_CODE + r->code : r->code;

    invar_child_describe(story, r, context->what->timeout);
    out->trial.exit_code = code;
    if (r->end != INVAR_CHILD_ENDED_EARLY && r->end != INVAR_CHILD_TIMED_OUT && code >= ABORT_CODE)
        return INVAR_FAIL(
            INVAR_E_STATE, code,
            "%.12s: the command ended with %d, and 128 or above means to stop: %.1000s",
            out->trial.commit, code, story);
    if (!exited ||
        (r->end == INVAR_CHILD_EXITED && (code == SKIP_CODE || (code != 0 && !decides)))) {
        set_untestable(out, "run", story);
        return INVAR_OK;
    }
    if (decides) {
        (void)snprintf(out->trial.value, sizeof out->trial.value, "%s",
                       r->code == 0 ? "good" : "bad");
        (void)snprintf(out->trial.failure_reason, sizeof out->trial.failure_reason, "%s",
                       r->code == 0 ? "" : r->last_words);
        return INVAR_OK;
    }
    if (!invar_path_exists(ledger)) {
        set_untestable(out, "ledger", "the command wrote no $INVAR_RUN/ledger.db");
        return INVAR_OK;
    }
    return evaluate_criterion(out, &context->question, ledger);
}

/* Writes "NAME=VALUE" to `out`. */
static invar_status set_variable(char out[INVAR_PATH_SIZE + 32], const char *name,
                                 const char *value)
{
    int bytes = snprintf(out, INVAR_PATH_SIZE + 32, "%s=%s", name, value);

    if (bytes < 0 || bytes >= INVAR_PATH_SIZE + 32)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the path is too long", name);
    return INVAR_OK;
}

static invar_status make_folder(char out[INVAR_PATH_SIZE], const invar_trial_context *context,
                                const invar_trial_job *job)
{
    char name[INVAR_OID_SIZE + 48];

    (void)snprintf(name, sizeof name, "trials/%s-%" PRId64, job->commit, job->attempt);
    INVAR_TRY(invar_path_join(out, INVAR_PATH_SIZE, context->folder, name));
    INVAR_TRY(invar_held_folder_remove(out));
    return invar_held_folder_make(out);
}

/*
 * Returns true if the command died from the signal that also stops this process. A signal to the
 * process group may end the command before our handler has run, so the flag is read a moment later.
 */
static bool stopped_by_group_signal(const invar_trial_context *context, const invar_child_result *r)
{
    const struct timespec moment = {0, 100000000};
    int code = r->end == INVAR_CHILD_SIGNALLED ? ABORT_CODE + r->code
               : r->end == INVAR_CHILD_EXITED  ? r->code
                                               : 0;

    if (code != invar_process_stop_code(SIGINT) && code != invar_process_stop_code(SIGTERM))
        return false;
    (void)nanosleep(&moment, NULL);
    return context->stop && *context->stop;
}

static invar_status run_command(invar_trial_job *job, const invar_trial_context *context,
                                const invar_worktree *slot, const volatile sig_atomic_t *stop)
{
    char folder[INVAR_PATH_SIZE], log[INVAR_PATH_SIZE], ledger[INVAR_PATH_SIZE];
    char variables[5][INVAR_PATH_SIZE + 32], jobs[32];
    const char *words[] = {"sh", "-c", context->what->run, NULL};
    const char *environment[] = {INVAR_WORKTREE_WITHOUT, variables[0], variables[1], variables[2],
                                 variables[3],           variables[4], NULL};
    command_watch watch = {.question = &context->question, .ledger = ledger};
    invar_child_request request = {.words = words,
                                   .folder = slot->source,
                                   .environment = environment,
                                   .log = log,
                                   .lock = slot->lock,
                                   .timeout = context->what->timeout,
                                   .stop = stop,
                                   .payload = &watch,
                                   .kill_grace_s = 5};
    invar_child_result result;

    (void)snprintf(jobs, sizeof jobs, "%" PRId64, context->threads);
    INVAR_TRY(make_folder(folder, context, job));
    INVAR_TRY(invar_path_join(log, sizeof log, folder, "run.log"));
    INVAR_TRY(invar_path_join(ledger, sizeof ledger, folder, "ledger.db"));
    INVAR_TRY(set_variable(variables[0], "INVAR_SOURCE", slot->source));
    INVAR_TRY(set_variable(variables[1], "INVAR_BUILD", slot->build));
    INVAR_TRY(set_variable(variables[2], "INVAR_COMMIT", job->commit));
    INVAR_TRY(set_variable(variables[3], "INVAR_RUN", folder));
    INVAR_TRY(set_variable(variables[4], "INVAR_JOBS", jobs));
    if (context->question.kind == INVAR_CRITERION_METRIC)
        request.should_stop = command_is_decided;
    INVAR_TRY(invar_child_run(&result, &request));
    if (result.killed)
        INVAR_TRY(invar_worktree_reset(slot));
    job->result.trial.run_s = result.seconds;
    job->stopped = result.end == INVAR_CHILD_STOPPED || stopped_by_group_signal(context, &result);
    if (job->stopped)
        return INVAR_OK;
    return classify_command_exit(&job->result, context, &result, ledger);
}

/* ---- one trial ------------------------------------------------------------------------------- */

/* Hashes the program that the build command made. `out` is empty if the case names no program. */
static invar_status hash_program(char out[INVAR_DIGEST_HEX_SIZE],
                                 const invar_trial_context *context, const invar_worktree *slot)
{
    const char *name = context->what->program;
    char path[INVAR_PATH_SIZE];
    invar_digest digest;

    out[0] = '\0';
    if (!name)
        return INVAR_OK;
    INVAR_TRY(name[0] == '@' ? invar_path_join(path, sizeof path, slot->build, name + 1)
                             : invar_path_join(path, sizeof path, slot->source, name));
    INVAR_TRY(invar_workspace_hash_binary(&digest, path, false));
    invar_digest_format(out, &digest);
    return INVAR_OK;
}

/* Runs the command in the worktree, unless the same binary was tested by an earlier trial. */
static invar_status try_command(invar_trial_job *job, const invar_trial_context *context,
                                const invar_worktree *slot, const volatile sig_atomic_t *stop)
{
    invar_bisect_state_trial *out = &job->result, known;
    invar_status status = hash_program(out->binary, context, slot);

    if (status == INVAR_E_NOTFOUND) {
        set_untestable(out, "build", invar_error_last()->message);
        invar_error_clear();
        return INVAR_OK;
    }
    INVAR_TRY(status);
    if (!out->binary[0] || job->attempt > 0 ||
        !context->find_known_result(context->payload, &known, out->binary))
        return run_command(job, context, slot, stop);
    known.trial.build_s = out->trial.build_s;
    known.trial.run_s = 0;
    known.trial.source = "program";
    memcpy(known.trial.commit, out->trial.commit, sizeof known.trial.commit);
    memcpy(known.tree, out->tree, sizeof known.tree);
    *out = known;
    return INVAR_OK;
}

/* Moves the build log out of the worktree, where the next build would overwrite it. */
static invar_status keep_log(const char *log, const invar_trial_context *context,
                             const invar_trial_job *job)
{
    char folder[INVAR_PATH_SIZE], kept[INVAR_PATH_SIZE];

    INVAR_TRY(make_folder(folder, context, job));
    INVAR_TRY(invar_path_join(kept, sizeof kept, folder, "build.log"));
    (void)rename(log, kept); // a missing log is not an error
    return INVAR_OK;
}

static invar_status try_commit(invar_trial_job *job, const invar_trial_context *context,
                               invar_worktree *slot, invar_repo *repo,
                               const volatile sig_atomic_t *stop)
{
    invar_build_plan how = invar_trial_build(context);
    invar_revision_build build;
    invar_bisect_state_trial *out = &job->result;

    INVAR_TRY(invar_repo_tree(out->tree, repo, job->commit));
    INVAR_TRY(
        invar_workspace_program(&build, context->workspace, slot, repo, job->commit, &how, stop));
    out->trial.build_s = build.cached ? 0 : build.seconds;
    job->stopped = build.state == INVAR_REVISION_BUILD_STOPPED;
    if (build.state == INVAR_REVISION_BUILD_FAILED && context->what->run) {
        INVAR_TRY(keep_log(build.log, context, job));
        set_untestable(out, "build", build.failure_reason);
    } else if (build.state == INVAR_REVISION_BUILD_FAILED)
        set_untestable_with_log(out, "build", build.failure_reason, build.log);
    if (build.state != INVAR_REVISION_BUILD_READY)
        return INVAR_OK;
    if (context->what->run)
        return try_command(job, context, slot, stop);
    invar_digest_format(out->binary, &build.binary);
    return run_recipe(job, context, slot, &build, stop);
}

invar_status invar_trial_one(invar_trial_job *job, const invar_trial_context *context,
                             const volatile sig_atomic_t *stop)
{
    invar_worktree slot;
    invar_repo *repo = NULL;
    invar_status status;

    job->stopped = false;
    job->result = (invar_bisect_state_trial){.attempt = job->attempt};
    job->result.trial.diverged_at = -1;
    job->result.trial.source = "ran";
    memcpy(job->result.trial.commit, job->commit, sizeof job->commit);
    INVAR_TRY(invar_worktree_acquire(&slot, context->workspace));
    status = invar_repo_open(&repo, context->what->repo);
    if (status == INVAR_OK)
        status = try_commit(job, context, &slot, repo, stop);
    invar_repo_close(repo);
    invar_worktree_release(&slot);
    return status;
}
