/*
 * train_entry.c - start and end of a training run, also after a failure.
 *
 * After a failure, the state of the last complete step is saved if it is sound, and the first error
 * is the one that the ledger and the caller get: whatever fails later is a consequence, or is less
 * important. Other ranks wait for this one, so a rank that fails aborts them before anything else.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/process/process.h"
#include "engine/run/train_loop.h"

#include "base/invar_banned.h"

/* Completes the checkpoint in progress before the run ends. Keeps the first error in *first. */
static invar_status finish_checkpoint(invar_error *first, invar_run_storage *storage,
                                      invar_status status)
{
    invar_status saved;

    invar_error_take(first);
    saved = invar_run_finish_save(storage);
    if (status == INVAR_OK && saved != INVAR_OK) {
        invar_error_take(first);
        return saved;
    }
    invar_error_clear();
    return status;
}

/* Reports a removed or replaced run folder instead of the error that resulted from it. */
static invar_status prefer_folder_error(invar_run_storage *storage, invar_status status)
{
    invar_error first;
    invar_status now;

    if (status == INVAR_OK || !storage->dirs.folder.is_open)
        return status;
    invar_error_take(&first);
    now = invar_held_folder_refresh(&storage->dirs.folder);
    if (now == INVAR_E_STATE)
        return now;
    invar_error_put(&first);
    return status;
}

/*
 * True if the state in memory can be saved after the failure. After a mismatch or a GPU error it
 * may not be the state that the chain describes, so nothing is saved.
 */
static bool is_sound(invar_status status)
{
    return status != INVAR_E_MISMATCH && status != INVAR_E_CUDA;
}

/* Saves the last complete step after the failure *first, and adds advice about it to the error. */
static void save_after_failure(invar_error *first, invar_train_loop *loop)
{
    char advice[128];
    bool saved;

    if (!is_sound(first->status) && !loop->world.all)
        return;
    if (invar_train_loop_emergency_save(&saved, loop, is_sound(first->status)) != INVAR_OK)
        saved = false; // the first failure is the one to report
    invar_error_clear();
    if (!saved)
        return;
    (void)snprintf(advice, sizeof advice,
                   "a checkpoint of step %" PRId64 " is saved: start the run again to continue",
                   loop->storage.position.step - 1);
    invar_error_put(first);
    first->status = invar_error_advise(first->status, first->status, advice);
    invar_error_take(first);
}

/* Records the end of the run in the ledger, also after a failure, and returns the first failure. */
static invar_status finish_run(invar_train_loop *loop, invar_status status)
{
    invar_error first;
    int64_t code;

    if (!loop->storage.recorder.ledger && status == INVAR_OK)
        return INVAR_OK;
    if (!loop->storage.recorder.ledger) { // take part in the checkpoint that rank 0 writes
        invar_error_take(&first);
        save_after_failure(&first, loop);
        invar_error_put(&first);
        return status;
    }
    if (loop->storage.summary->finished)
        return status;
    status = finish_checkpoint(&first, &loop->storage, status);
    if (status == INVAR_OK)
        INVAR_TRY(invar_run_record_restarts(&loop->storage, &loop->flow));
    if (status == INVAR_OK && loop->storage.summary->stopped)
        return invar_ledger_finish(loop->storage.recorder.ledger,
                                   invar_process_stop_code(loop->storage.summary->stopped),
                                   "stopped");
    if (status == INVAR_OK)
        return invar_ledger_finish(loop->storage.recorder.ledger, 0, "done");
    save_after_failure(&first, loop);
    code = invar_run_signal(&loop->job) == SIGXFSZ ? invar_process_stop_code(SIGXFSZ)
                                                   : invar_process_exit_code(status);
    if (invar_run_record_restarts(&loop->storage, &loop->flow) != INVAR_OK ||
        invar_recorder_event(&loop->storage.recorder, loop->storage.position.step, "error",
                             "failure", first.message) != INVAR_OK ||
        invar_ledger_finish(loop->storage.recorder.ledger, code, first.message) != INVAR_OK)
        invar_error_clear(); // the ledger itself may have failed
    invar_error_put(&first);
    return status;
}

/*
 * Aborts the other ranks, which wait for this one. Call before anything else after a failure. If
 * all ranks have failed together, only rank 0 does it. If `whole`, the ranks can still save
 * together.
 */
static void abort_other_ranks(const invar_train_options *options, bool together, bool whole)
{
    const char *why = invar_error_last()->message;

    if (!options->comm || (together && invar_comm_rank(options->comm) != 0))
        return;
    if (whole)
        invar_comm_abort_recoverable(options->comm, why);
    else
        invar_comm_abort(options->comm, why);
}

/* Prints a line if the trace is incomplete, which does not fail the run. */
static void check_trace(const invar_run_storage *storage)
{
    if (!storage->recorder.trace || invar_trace_check(storage->recorder.trace) == INVAR_OK)
        return;
    invar_recorder_print(&storage->recorder, "%s", invar_error_last()->message);
    invar_error_clear();
}

/* Prints a line if the run ended before profile-step-start, since the profile is then empty. */
static void check_profile_window(const invar_run_storage *storage, const invar_run_models *models)
{
    int64_t first = storage->job->config->profile_step_start;

    if (models->context.profile && storage->position.step <= first)
        invar_recorder_print(&storage->recorder,
                             "profile-step-start = %" PRId64 ": the run has %" PRId64
                             " steps so far; no op was measured",
                             first, storage->position.step);
}

static void fill_summary(invar_train_summary *out, const invar_run_storage *storage)
{
    memcpy(out->name, storage->dirs.paths.name, sizeof out->name);
    memcpy(out->folder, storage->dirs.paths.run, sizeof out->folder);
    memcpy(out->ledger, storage->dirs.paths.ledger, sizeof out->ledger);
    memcpy(out->uuid, storage->recorder.uuid, sizeof out->uuid);
    out->saves = storage->dirs.paths.save[0];
    out->forked_after = storage->fork.step;
    out->tokens_per_s = invar_throughput_mean_tokens_per_s(&storage->recorder.throughput);
    out->mfu = invar_throughput_mean_mfu(&storage->recorder.throughput);
}

invar_status invar_train(invar_train_summary *out, const invar_config *config,
                         const invar_train_options *options)
{
    invar_train_loop *loop = NULL;
    invar_status status;

    *out = (invar_train_summary){.resumed_after = -1,
                                 .forked_after = -1,
                                 .last_step = -1,
                                 .first_reward = (double)NAN,
                                 .last_reward = (double)NAN,
                                 .first_loss = (double)NAN,
                                 .last_loss = (double)NAN};
    status = INVAR_ALLOC(loop, 1, "a run");
    if (status != INVAR_OK) {
        abort_other_ranks(options, false, false);
        return status;
    }
    status = invar_train_loop_open(loop, config, options, out);
    if (status == INVAR_OK && !out->finished)
        status = invar_train_loop_run(loop);
    if (status != INVAR_OK) {
        abort_other_ranks(options, loop->world.all_failed || loop->storage.recorder.ranks_diverged,
                          is_sound(status) && invar_run_has_rescue_point(&loop->storage));
        invar_sample_source_stop(&loop->flow.source);
    }
    if (status == INVAR_OK)
        check_trace(&loop->storage);
    if (status == INVAR_OK)
        check_profile_window(&loop->storage, &loop->models);
    if (status == INVAR_OK)
        status = invar_run_refresh_paths(&loop->storage);
    fill_summary(out, &loop->storage);
    status = finish_run(loop, prefer_folder_error(&loop->storage, status));
    invar_run_close_track(&loop->storage, status);
    invar_run_log_end(&loop->storage, status);
    invar_train_loop_close(loop);
    invar_free(loop);
    return status;
}

invar_status invar_train_check(invar_train_inputs *out, const invar_config *config,
                               const invar_train_options *options)
{
    invar_train_loop *loop = NULL;
    invar_status status;

    *out = (invar_train_inputs){.threads = 0};
    status = INVAR_ALLOC(loop, 1, "a run");
    if (status == INVAR_OK)
        status = invar_train_loop_read(loop, config, options);
    out->differ = loop && loop->world.all_failed && status == INVAR_E_STATE;
    if (status == INVAR_OK || out->differ) {
        const invar_run_context *context = &loop->models.context;

        out->identity = loop->storage.identity.digest;
        out->weights = context->weights;
        out->threads = context->pool ? invar_pool_threads(context->pool) : 1;
        if (context->data)
            invar_dataset_hash(&out->data, context->data);
    } else
        abort_other_ranks(options, loop && loop->world.all_failed, false);
    if (loop)
        invar_train_loop_close(loop);
    invar_free(loop);
    return status;
}
