/*
 * by_time.c - checkpoints by the clock: when one is written, and how failures are handled.
 *
 * A run without save-interval loses at most save-interval-minutes when it is killed. The clock of
 * rank 0 decides for all ranks, between two rollouts. Neither the decision nor a failure changes
 * any result: chain, content and the other checkpoints are equal to those of a run without
 * save-interval-minutes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "base/process/process.h"
#include "engine/run/run_storage.h"

#include "base/invar_banned.h"

static int64_t now_ms(const invar_run_job *job)
{
    const invar_train_options *o = job->options;

    return o->clock_ms ? o->clock_ms(o->payload) : invar_process_clock_ms();
}

static bool is_enabled(const invar_run_storage *storage)
{
    return storage->job->config->save_interval_minutes > 0.0 && storage->dirs.paths.save[0] &&
           !storage->job->options->replay;
}

void invar_run_restart_clock(invar_run_storage *storage)
{
    if (is_enabled(storage) && invar_ranks_is_leader(storage->world->all))
        storage->checkpoints.saved_ms = now_ms(storage->job);
}

invar_status invar_run_plan_disk(invar_disk *out, const invar_run_storage *storage,
                                 const invar_run_models *models)
{
    const invar_disk_inputs inputs = {.session = &models->context,
                                      .settings = &storage->job->settings,
                                      .files = &storage->checkpoints.hf_files,
                                      .save = storage->dirs.paths.save,
                                      .bare = invar_run_keeps_weights_fixed(storage),
                                      .fresh = storage->job->options->fresh &&
                                               !storage->dirs.folder.is_open};

    return invar_disk_plan(out, &inputs);
}

/*
 * Fails if a checkpoint by time would leave no space for the last one and those of save-interval.
 */
static invar_status check_space(const invar_run_storage *storage, const invar_run_models *models)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    invar_disk disk;

    INVAR_TRY(invar_run_plan_disk(&disk, storage, models));
    if (invar_disk_has_room(&disk))
        return INVAR_OK;
    invar_path_show(shown, disk.save);
    return INVAR_FAIL(INVAR_E_IO, 0,
                      "%.400s: the disk has room for the %" PRId64 " that are sure to come alone",
                      shown, disk.n_remaining);
}

bool invar_run_may_copy(int64_t bytes, size_t memory)
{
    return (uint64_t)bytes <= memory / 2;
}

/* Decides whether to save now; only rank 0 calls it. */
static invar_status decide_by_clock(bool *out, invar_run_storage *storage, invar_run_models *models)
{
    invar_status status;

    if ((double)(now_ms(storage->job) - storage->checkpoints.saved_ms) <
        60e3 * storage->job->config->save_interval_minutes)
        return INVAR_OK;
    status = check_space(storage, models);
    *out = status == INVAR_OK;
    if (!*out)
        invar_run_restart_clock(storage);
    return invar_run_forgive_save(storage, status);
}

invar_status invar_run_agree_by_time(bool *out, invar_run_storage *storage,
                                     invar_run_models *models)
{
    *out = false;
    if (!is_enabled(storage))
        return INVAR_OK;
    if (invar_ranks_is_leader(storage->world->all))
        INVAR_TRY(decide_by_clock(out, storage, models));
    return invar_ranks_broadcast(storage->world->all, "save by time", 0, out, sizeof *out);
}

/*
 * Counts a failure and returns true if it is to be reported: the first one of a reason, and then
 * the second, the fourth, the eighth. With a short interval every rollout may bring another one.
 * The count starts again after a checkpoint by time that succeeds.
 */
static bool count_failure(invar_run_checkpoints *store, const invar_error *why)
{
    if (store->failed != why->status || store->native != why->native)
        store->failures = 0;
    store->failed = why->status;
    store->native = why->native;
    store->failures++;
    return (store->failures & (store->failures - 1)) == 0;
}

invar_status invar_run_forgive_save(invar_run_storage *storage, invar_status status)
{
    char message[sizeof((invar_error *)0)->message + 128];
    invar_error why;

    if (status != INVAR_E_IO && status != INVAR_E_NOMEM)
        return status;
    invar_error_take(&why);
    storage->checkpoints.next =
        0; // a checkpoint after a failure may have to save what this one did not
    if (!count_failure(&storage->checkpoints, &why))
        return INVAR_OK;
    (void)snprintf(message, sizeof message,
                   "no checkpoint after %g minutes (save-interval-minutes): %s; the run continues",
                   storage->job->config->save_interval_minutes, why.message);
    invar_recorder_print(&storage->recorder, "warning: step %" PRId64 ": %s",
                         storage->position.step - 1, message);
    return invar_recorder_event(&storage->recorder, storage->position.step - 1, "warning", "save",
                                message);
}
