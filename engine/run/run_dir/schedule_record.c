/*
 * schedule_record.c - opens the recorded schedule of a run (rollout-schedule = recorded).
 *
 * A tick of the schedule says which groups were trained on and which samples were in flight. It
 * comes from this run's own file, from the record of another run (rollout-record), or in a replay
 * from the ledger; if none of them has it, the clock decides. The run's file must fit the run: a
 * tick is in the file before its steps are in the ledger, so a file that ends earlier has lost
 * lines.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "engine/ext/recorded_replies.h"
#include "engine/run/run_storage.h"

#include "base/invar_banned.h"

/* Reads a file on rank 0 and broadcasts it; *bytes_out is 0 if it does not exist. Collective. */
static invar_status read_file(char **out, size_t *bytes_out, const invar_run_world *world,
                              const char *path)
{
    if (invar_ranks_is_leader(world->all) && path[0] && invar_path_exists(path))
        INVAR_TRY(invar_file_read(out, bytes_out, path, SIZE_MAX / 2));
    return invar_run_share_text(out, bytes_out, world, "recorded schedule");
}

/* ---- this run's ------------------------------------------------------------------------------ */

/*
 * Fails if the file is of another run. Two runs of one recipe have the same identity, so the run's
 * id is compared, too: the clock may have decided differently.
 */
static invar_status check_run(const invar_run_storage *storage, const invar_schedule_log_head *head,
                              const char *shown)
{
    invar_digest uuid = {{0}};
    bool same = invar_digest_equal(&head->run, &storage->identity.digest);

    if (same && head->checked && invar_ranks_is_leader(storage->world->all)) {
        if (storage->recorder.uuid[0])
            INVAR_TRY(invar_digest_parse(&uuid, storage->recorder.uuid));
        same = invar_digest_equal(&head->uuid, &uuid);
    }
    if (same)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "%s is the schedule of another run: put this run's file back, or give "
                      "another folder (run)",
                      shown);
}

/* Fails if a tick before the next one is missing. */
static invar_status check_ticks(const invar_run_storage *storage, const invar_run_flow *flow,
                                const char *shown)
{
    const invar_schedule_log *own = &flow->recorded_schedule.own_log;
    int64_t steps = storage->job->settings.steps_per_rollout, next = storage->position.rollout;
    int64_t begin = storage->fork.step >= 0 ? (storage->fork.step + 1) / steps : 0;

    if (own->count == 0 ? next == begin
                        : own->first == begin && invar_schedule_log_end(own) >= next)
        return INVAR_OK;
    if (own->count == 0)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%s is missing or empty, and the run continues with tick %" PRId64
                          ": put the file back, or fork the run, which begins a new one",
                          shown, next);
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "%s has ticks %" PRId64 " to %" PRId64 ", and the run continues with tick "
                      "%" PRId64 " of those from %" PRId64 " on: put the whole file back, or fork "
                      "the run, which begins a new one",
                      shown, own->first, invar_schedule_log_end(own) - 1, next, begin);
}

/* Fails if the ledger has steps of a tick that the file lacks: lines were lost. */
static invar_status check_recorded(const invar_run_storage *storage, const invar_run_flow *flow,
                                   const char *shown)
{
    int64_t steps = storage->job->settings.steps_per_rollout;
    int64_t last = storage->recorder.last_recorded_step, tick = last < 0 ? -1 : last / steps;
    const invar_schedule_tick *found =
        invar_schedule_log_find(&flow->recorded_schedule.own_log, tick);

    if (!invar_ranks_is_leader(storage->world->all) || last <= storage->fork.step ||
        (found && found->has_batch))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%s ends before tick %" PRId64 ", and the ledger has step %" PRId64
                      ", which was made by it: put the whole file back, or fork the run, which "
                      "begins a new one",
                      shown, tick, last);
}

/* Reads and checks the run's own record. Collective. */
static invar_status open_own_record(invar_run_storage *storage, invar_run_flow *flow)
{
    char path[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE], *text = NULL;
    invar_schedule_log_head head;
    size_t bytes = 0;
    invar_status status;

    INVAR_TRY(
        invar_path_join(path, sizeof path, storage->dirs.paths.run, INVAR_RECORDED_SCHEDULE_FILE));
    invar_path_show(shown, path);
    status = read_file(&text, &bytes, storage->world, path);
    if (status == INVAR_OK)
        status = invar_error_advise(invar_schedule_log_read_file(&flow->recorded_schedule.own_log,
                                                                 &head, text, bytes, shown),
                                    INVAR_E_CORRUPT,
                                    "put the file back, or fork the run, which begins a new one");
    if (status == INVAR_OK && head.found)
        status = check_run(storage, &head, shown);
    if (status == INVAR_OK)
        status = check_ticks(storage, flow, shown);
    if (status == INVAR_OK)
        status = check_recorded(storage, flow, shown);
    flow->recorded_schedule.unchecked = status == INVAR_OK && head.found && !head.checked;
    invar_free(text);
    return status;
}

/*
 * The file is written again, without a line that a kill has cut off. The new file has checksums, so
 * the event about lines without them is recorded first: a kill in between repeats both.
 */
invar_status invar_run_begin_schedule(invar_run_storage *storage, invar_run_flow *flow)
{
    char path[INVAR_PATH_SIZE];
    invar_json_text lines = {0};
    invar_digest uuid;
    invar_status status;

    if (!storage->job->settings.sampling.recorded || storage->job->options->replay)
        return INVAR_OK;
    INVAR_TRY(
        invar_path_join(path, sizeof path, storage->dirs.paths.run, INVAR_RECORDED_SCHEDULE_FILE));
    INVAR_TRY(invar_digest_parse(&uuid, storage->recorder.uuid));
    if (flow->recorded_schedule.unchecked)
        INVAR_TRY(invar_run_report_unchecked(storage, INVAR_RECORDED_SCHEDULE_FILE));
    invar_schedule_log_write(&lines, &flow->recorded_schedule.own_log, &storage->identity.digest,
                             &uuid);
    status = lines.status;
    if (status == INVAR_OK)
        status = invar_journal_create(&flow->recorded_schedule.file, path, lines.data, lines.bytes);
    invar_json_text_release(&lines);
    return status;
}

invar_status invar_run_report_unchecked(invar_run_storage *storage, const char *file)
{
    char text[256];

    (void)snprintf(text, sizeof text,
                   "%.100s was written by version 0.1.0, without sums: the lines are unchecked, "
                   "and steps that are executed again are compared with the ledger",
                   file);
    invar_recorder_print(&storage->recorder, "%s", text);
    return invar_recorder_event(&storage->recorder, storage->position.step, "warning",
                                INVAR_JOURNAL_UNCHECKED, text);
}

/* ---- another run's --------------------------------------------------------------------------- */

static bool is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Reads rollout-record: the folder of a run, or the file itself. */
static invar_status read_record(invar_run_storage *storage, invar_run_flow *flow,
                                invar_schedule_log_head *head, const char *record)
{
    char path[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE], *text = NULL;
    size_t bytes = 0;
    invar_status status;

    INVAR_TRY(invar_path_join(path, sizeof path, record, INVAR_RECORDED_SCHEDULE_FILE));
    invar_path_show(shown, record);
    status = read_file(&text, &bytes, storage->world, is_folder(record) ? path : record);
    if (status == INVAR_OK)
        status = invar_schedule_log_read_file(&flow->recorded_schedule.given_log, head, text, bytes,
                                              shown);
    if (status == INVAR_OK && !head->found)
        status = INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                            "rollout-record: %s is not, and has no, " INVAR_RECORDED_SCHEDULE_FILE
                            ": give the folder of a run with rollout-schedule = recorded",
                            shown);
    if (status == INVAR_OK && !head->checked)
        invar_recorder_print(&storage->recorder, "rollout-record: %s has no sums and is unchecked",
                             shown);
    invar_free(text);
    return status;
}

/*
 * Checks that the record has every tick of a new run. A resumed run has ticks of its own and is not
 * checked. Which samples a tick has is known only when they are sampled.
 */
static invar_status check_record(const invar_run_storage *storage, const invar_run_flow *flow)
{
    const invar_train_settings *set = &storage->job->settings;
    int64_t tick = storage->fork.step >= 0 ? (storage->fork.step + 1) / set->steps_per_rollout : 0;
    invar_schedule_tick found;

    if (!invar_ranks_is_leader(storage->world->all) ||
        invar_path_exists(storage->dirs.paths.ledger))
        return INVAR_OK; // rank 0 checks for all
    for (; tick < set->run_schedule.rollouts; tick++) {
        INVAR_TRY(invar_recorded_schedule_plan(&found, &flow->recorded_schedule, tick));
        if (found.n_groups != storage->job->config->rollout_batch_size)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "rollout-record: tick %" PRId64 " has a batch of %" PRId64
                              " groups, and rollout-batch-size is %" PRId64
                              ": the record is damaged, or of a run with other keys",
                              tick, found.n_groups, storage->job->config->rollout_batch_size);
    }
    return INVAR_OK;
}

invar_status invar_run_read_record(invar_run_storage *storage, invar_run_flow *flow)
{
    const char *record = storage->job->config->rollout_record;
    invar_schedule_log_head head;

    if (!storage->job->settings.sampling.recorded || storage->job->options->replay || !record[0])
        return INVAR_OK;
    INVAR_TRY(read_record(storage, flow, &head, record));
    flow->recorded_schedule.origin = "rollout-record";
    flow->recorded_schedule.identity = head.run;
    return check_record(storage, flow);
}

/* ---- a replay -------------------------------------------------------------------------------- */

/* Parses the schedule lines among the recorded replies. */
static invar_status parse_replies(invar_run_flow *flow, const invar_recorded_replies *stored)
{
    const invar_plugin_replies *all = &stored->replies;

    for (size_t i = 0; i < all->count; i++)
        if (strcmp(all->items[i].plugin, INVAR_RECORDED_SCHEDULE_REPLY) == 0)
            INVAR_TRY(invar_schedule_log_read(&flow->recorded_schedule.own_log, all->items[i].data,
                                              all->items[i].bytes, "the ledger's schedule"));
    return INVAR_OK;
}

/*
 * Reads the ticks of all replayed rollouts from the ledger, and what was sampled before the next
 * one.
 */
static invar_status read_ledger(invar_run_storage *storage, invar_run_flow *flow)
{
    int64_t steps = storage->job->settings.steps_per_rollout,
            step = storage->position.rollout * steps;
    invar_recorded_replies stored = {0};
    invar_status status = INVAR_OK;

    flow->recorded_schedule.origin = "replay";
    flow->recorded_schedule.open_end = true;
    for (; step <= storage->recorder.last_recorded_step && status == INVAR_OK; step += steps) {
        status = invar_recorded_replies_read(&stored, storage->recorder.ledger,
                                             storage->recorder.run, step);
        if (status == INVAR_OK)
            status = parse_replies(flow, &stored);
        if (step > storage->job->options->until)
            break;
    }
    invar_recorded_replies_release(&stored);
    return status;
}

invar_status invar_run_open_schedule(invar_run_storage *storage, invar_run_flow *flow)
{
    if (!storage->job->settings.sampling.recorded)
        return INVAR_OK;
    if (storage->job->options->replay)
        return read_ledger(storage, flow);
    if (flow->recorded_schedule.origin &&
        !invar_digest_equal(&flow->recorded_schedule.identity, &storage->identity.digest))
        invar_recorder_print(&storage->recorder,
                             "rollout-record: %s is of a run with another identity, whose samples "
                             "may have ended elsewhere",
                             storage->job->config->rollout_record);
    return open_own_record(storage, flow);
}

/* ---- in the ledger --------------------------------------------------------------------------- */

invar_status invar_run_write_tick(invar_json_text *text, const invar_run_storage *storage,
                                  const invar_run_flow *flow)
{
    if (storage->job->settings.sampling.recorded)
        invar_recorded_schedule_write(text, &flow->recorded_schedule, storage->position.rollout);
    return text->status;
}
