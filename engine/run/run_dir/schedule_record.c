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
#include "engine/run/train_loop.h"

#include "base/invar_banned.h"

/* Reads a file on rank 0 and broadcasts it; *bytes_out is 0 if it does not exist. Collective. */
static invar_status read_file(char **out, size_t *bytes_out, const invar_train_loop *loop,
                              const char *path)
{
    if (invar_ranks_is_leader(loop->world) && path[0] && invar_path_exists(path))
        INVAR_TRY(invar_file_read(out, bytes_out, path, SIZE_MAX / 2));
    return invar_train_loop_share_text(out, bytes_out, loop, "recorded schedule");
}

/* ---- this run's ------------------------------------------------------------------------------ */

/*
 * Fails if the file is of another run. Two runs of one recipe have the same identity, so the run's
 * id is compared, too: the clock may have decided differently.
 */
static invar_status check_run(const invar_train_loop *loop, const invar_schedule_log_head *head,
                              const char *shown)
{
    invar_digest uuid = {{0}};
    bool same = invar_digest_equal(&head->run, &loop->identity.digest);

    if (same && head->checked && invar_ranks_is_leader(loop->world)) {
        if (loop->recorder.uuid[0])
            INVAR_TRY(invar_digest_parse(&uuid, loop->recorder.uuid));
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
static invar_status check_ticks(const invar_train_loop *loop, const char *shown)
{
    const invar_schedule_log *own = &loop->recorded_schedule.own_log;
    int64_t steps = loop->settings.steps_per_rollout, next = loop->position.rollout;
    int64_t begin = loop->fork.step >= 0 ? (loop->fork.step + 1) / steps : 0;

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
static invar_status check_recorded(const invar_train_loop *loop, const char *shown)
{
    int64_t steps = loop->settings.steps_per_rollout;
    int64_t last = loop->recorder.last_recorded_step, tick = last < 0 ? -1 : last / steps;
    const invar_schedule_tick *found =
        invar_schedule_log_find(&loop->recorded_schedule.own_log, tick);

    if (!invar_ranks_is_leader(loop->world) || last <= loop->fork.step ||
        (found && found->has_batch))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%s ends before tick %" PRId64 ", and the ledger has step %" PRId64
                      ", which was made by it: put the whole file back, or fork the run, which "
                      "begins a new one",
                      shown, tick, last);
}

/* Reads and checks the run's own record. Collective. */
static invar_status open_own_record(invar_train_loop *loop)
{
    char path[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE], *text = NULL;
    invar_schedule_log_head head;
    size_t bytes = 0;
    invar_status status;

    INVAR_TRY(
        invar_path_join(path, sizeof path, loop->dirs.paths.run, INVAR_RECORDED_SCHEDULE_FILE));
    invar_path_show(shown, path);
    status = read_file(&text, &bytes, loop, path);
    if (status == INVAR_OK)
        status = invar_error_advise(invar_schedule_log_read_file(&loop->recorded_schedule.own_log,
                                                                 &head, text, bytes, shown),
                                    INVAR_E_CORRUPT,
                                    "put the file back, or fork the run, which begins a new one");
    if (status == INVAR_OK && head.found)
        status = check_run(loop, &head, shown);
    if (status == INVAR_OK)
        status = check_ticks(loop, shown);
    if (status == INVAR_OK)
        status = check_recorded(loop, shown);
    loop->recorded_schedule.unchecked = status == INVAR_OK && head.found && !head.checked;
    invar_free(text);
    return status;
}

/*
 * The file is written again, without a line that a kill has cut off. The new file has checksums, so
 * the event about lines without them is recorded first: a kill in between repeats both.
 */
invar_status invar_train_loop_begin_schedule(invar_train_loop *loop)
{
    char path[INVAR_PATH_SIZE];
    invar_json_text lines = {0};
    invar_digest uuid;
    invar_status status;

    if (!loop->settings.recorded || loop->options->replay)
        return INVAR_OK;
    INVAR_TRY(
        invar_path_join(path, sizeof path, loop->dirs.paths.run, INVAR_RECORDED_SCHEDULE_FILE));
    INVAR_TRY(invar_digest_parse(&uuid, loop->recorder.uuid));
    if (loop->recorded_schedule.unchecked)
        INVAR_TRY(invar_train_loop_report_unchecked(loop, INVAR_RECORDED_SCHEDULE_FILE));
    invar_schedule_log_write(&lines, &loop->recorded_schedule.own_log, &loop->identity.digest,
                             &uuid);
    status = lines.status;
    if (status == INVAR_OK)
        status = invar_journal_create(&loop->recorded_schedule.file, path, lines.data, lines.bytes);
    invar_json_text_release(&lines);
    return status;
}

invar_status invar_train_loop_report_unchecked(invar_train_loop *loop, const char *file)
{
    char text[256];

    (void)snprintf(text, sizeof text,
                   "%.100s was written by version 0.1.0, without sums: the lines are unchecked, "
                   "and steps that are executed again are compared with the ledger",
                   file);
    invar_recorder_print(&loop->recorder, "%s", text);
    return invar_recorder_event(&loop->recorder, loop->position.step, "warning",
                                INVAR_JOURNAL_UNCHECKED, text);
}

/* ---- another run's --------------------------------------------------------------------------- */

static bool is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Reads rollout-record: the folder of a run, or the file itself. */
static invar_status read_record(invar_train_loop *loop, invar_schedule_log_head *head,
                                const char *record)
{
    char path[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE], *text = NULL;
    size_t bytes = 0;
    invar_status status;

    INVAR_TRY(invar_path_join(path, sizeof path, record, INVAR_RECORDED_SCHEDULE_FILE));
    invar_path_show(shown, record);
    status = read_file(&text, &bytes, loop, is_folder(record) ? path : record);
    if (status == INVAR_OK)
        status = invar_schedule_log_read_file(&loop->recorded_schedule.given_log, head, text, bytes,
                                              shown);
    if (status == INVAR_OK && !head->found)
        status = INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                            "rollout-record: %s is not, and has no, " INVAR_RECORDED_SCHEDULE_FILE
                            ": give the folder of a run with rollout-schedule = recorded",
                            shown);
    if (status == INVAR_OK && !head->checked)
        invar_recorder_print(&loop->recorder, "rollout-record: %s has no sums and is unchecked",
                             shown);
    invar_free(text);
    return status;
}

/*
 * Checks that the record has every tick of a new run. A resumed run has ticks of its own and is not
 * checked. Which samples a tick has is known only when they are sampled.
 */
static invar_status check_record(const invar_train_loop *loop)
{
    const invar_train_settings *set = &loop->settings;
    int64_t tick = loop->fork.step >= 0 ? (loop->fork.step + 1) / set->steps_per_rollout : 0;
    invar_schedule_tick found;

    if (!invar_ranks_is_leader(loop->world) || invar_path_exists(loop->dirs.paths.ledger))
        return INVAR_OK; // rank 0 checks for all
    for (; tick < set->run_schedule.rollouts; tick++) {
        INVAR_TRY(invar_recorded_schedule_plan(&found, &loop->recorded_schedule, tick));
        if (found.n_groups != loop->config->rollout_batch_size)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "rollout-record: tick %" PRId64 " has a batch of %" PRId64
                              " groups, and rollout-batch-size is %" PRId64
                              ": the record is damaged, or of a run with other keys",
                              tick, found.n_groups, loop->config->rollout_batch_size);
    }
    return INVAR_OK;
}

invar_status invar_train_loop_read_record(invar_train_loop *loop)
{
    const char *record = loop->config->rollout_record;
    invar_schedule_log_head head;

    if (!loop->settings.recorded || loop->options->replay || !record[0])
        return INVAR_OK;
    INVAR_TRY(read_record(loop, &head, record));
    loop->recorded_schedule.origin = "rollout-record";
    loop->recorded_schedule.identity = head.run;
    return check_record(loop);
}

/* Warns if the record is of a run with another identity. */
static void compare_identities(const invar_train_loop *loop)
{
    if (loop->recorded_schedule.origin &&
        !invar_digest_equal(&loop->recorded_schedule.identity, &loop->identity.digest))
        invar_recorder_print(&loop->recorder,
                             "rollout-record: %s is of a run with another identity, whose samples "
                             "may have ended elsewhere",
                             loop->config->rollout_record);
}

/* ---- a replay -------------------------------------------------------------------------------- */

/* Parses the schedule lines among the recorded replies. */
static invar_status parse_replies(invar_train_loop *loop, const invar_recorded_replies *stored)
{
    for (size_t i = 0; i < stored->count; i++)
        if (strcmp(stored->items[i].plugin, INVAR_RECORDED_SCHEDULE_REPLY) == 0)
            INVAR_TRY(invar_schedule_log_read(&loop->recorded_schedule.own_log,
                                              stored->items[i].data, stored->items[i].bytes,
                                              "the ledger's schedule"));
    return INVAR_OK;
}

/*
 * Reads the ticks of all replayed rollouts from the ledger, and what was sampled before the next
 * one.
 */
static invar_status read_ledger(invar_train_loop *loop)
{
    int64_t steps = loop->settings.steps_per_rollout, step = loop->position.rollout * steps;
    invar_recorded_replies stored = {0};
    invar_status status = INVAR_OK;

    loop->recorded_schedule.origin = "replay";
    loop->recorded_schedule.open_end = true;
    for (; step <= loop->recorder.last_recorded_step && status == INVAR_OK; step += steps) {
        status =
            invar_recorded_replies_read(&stored, loop->recorder.ledger, loop->recorder.run, step);
        if (status == INVAR_OK)
            status = parse_replies(loop, &stored);
        if (step > loop->options->until)
            break;
    }
    invar_recorded_replies_release(&stored);
    return status;
}

invar_status invar_train_loop_open_schedule(invar_train_loop *loop)
{
    if (!loop->settings.recorded)
        return INVAR_OK;
    if (loop->options->replay)
        return read_ledger(loop);
    compare_identities(loop);
    return open_own_record(loop);
}

/* ---- in the ledger --------------------------------------------------------------------------- */

invar_status invar_train_loop_write_tick(invar_json_text *text, const invar_train_loop *loop)
{
    if (loop->settings.recorded)
        invar_recorded_schedule_write(text, &loop->recorded_schedule, loop->position.rollout);
    return text->status;
}
