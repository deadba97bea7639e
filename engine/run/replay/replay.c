/*
 * replay.c - executes recorded steps again in a copy of the ledger, and compares the results.
 *
 * The recorded keys become a recipe whose run folder is new and whose `load` is the chosen
 * checkpoint; invar_train then runs it with options.replay. The comparison is a query on the copy:
 * steps of the newest segment against the execution that was valid before.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/replay/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/record/op_revisions.h"
#include "engine/run/context/run_context.h"
#include "engine/run/replay/corrected.h"

#include "base/invar_banned.h"

static void replay_print(const invar_replay *replay, const char *line)
{
    if (replay->say)
        replay->say(replay->payload, line);
}

/* ---- where to start -------------------------------------------------------------------------- */

/* *why_out = reason why a checkpoint does not belong to the run's timeline; NULL if it does. */
static invar_status checkpoint_mismatch_reason(const char **why_out, const invar_replay *replay,
                                               invar_checkpoint *c)
{
    const invar_checkpoint_state *state = invar_checkpoint_state_of(c);
    invar_digest chain;

    *why_out = NULL;
    if (!invar_digest_equal(&state->identity, &replay->run->identity)) {
        *why_out = "it belongs to another run";
        return INVAR_OK;
    }
    if (!invar_checkpoint_has_set(c, "model.exp_avg") &&
        !invar_checkpoint_has_set(c, INVAR_RUN_CONTEXT_ADAPTERS ".exp_avg")) {
        *why_out = "it was written with no-save-optim";
        return INVAR_OK;
    }
    INVAR_TRY(invar_ledger_chain_at(&chain, replay->ledger, replay->run->run, state->step));
    if (!invar_digest_equal(&chain, &state->chain))
        *why_out = "the ledger has another chain for its step";
    return INVAR_OK;
}

static invar_status try_checkpoint(bool *fits_out, const invar_replay *replay, const char *folder,
                                   int64_t step)
{
    invar_checkpoint *c = NULL;
    const char *why = NULL;
    char line[INVAR_ERROR_MESSAGE_SIZE + 64];
    invar_status status;

    *fits_out = false;
    status = invar_checkpoint_open(&c, folder, &(invar_checkpoint_open_options){.step = step});
    if (status == INVAR_OK)
        status = checkpoint_mismatch_reason(&why, replay, c);
    invar_checkpoint_close(c);
    if (status == INVAR_E_NOMEM)
        return status;
    if (status != INVAR_OK)
        why = invar_error_last()->message;
    *fits_out = why == NULL;
    if (why) {
        (void)snprintf(line, sizeof line, "stepped over the checkpoint of step %" PRId64 ": %s",
                       step, why);
        replay_print(replay, line);
    }
    if (status != INVAR_OK)
        invar_error_clear();
    return INVAR_OK;
}

static void print_missing_folder(const invar_replay *replay, const char *folder)
{
    char shown[INVAR_PATH_SHOWN_SIZE], line[INVAR_PATH_SHOWN_SIZE + 96];

    if (!folder[0])
        return;
    invar_path_show(shown, folder);
    (void)snprintf(line, sizeof line,
                   "%s, the folder of the run's checkpoints, is not there (--load names another)",
                   shown);
    replay_print(replay, line);
}

invar_status invar_replay_checkpoint(int64_t *step_out, const invar_replay *replay,
                                     const char *folder, int64_t before)
{
    int64_t *steps = NULL, count = 0;
    bool fits = false;
    invar_status status = INVAR_OK;

    *step_out = -1;
    if (before < 0)
        return INVAR_OK;
    if (!folder[0] || !invar_path_exists(folder)) {
        print_missing_folder(replay, folder);
        return INVAR_OK;
    }
    INVAR_TRY(invar_checkpoint_list(&steps, &count, folder));
    for (int64_t i = count - 1; i >= 0 && !fits && status == INVAR_OK; i--)
        if (steps[i] <= before) {
            status = try_checkpoint(&fits, replay, folder, steps[i]);
            if (fits)
                *step_out = steps[i];
        }
    invar_free(steps);
    return status;
}

invar_status invar_replay_rollout(int64_t *first_out, int64_t *rollout_out,
                                  const invar_recorded_keys *keys, int64_t step)
{
    invar_config config;
    int64_t each;

    INVAR_TRY(invar_recorded_keys_to_config(&config, keys));
    each = config.debug_rollout_only ? 1 : invar_config_steps_per_rollout(&config);
    invar_recipe_free(config.recipe);
    *rollout_out = step / each;
    *first_out = *rollout_out * each;
    return INVAR_OK;
}

/* ---- the copy -------------------------------------------------------------------------------- */

static invar_status count_run(void *payload, const invar_ledger_summary *summary)
{
    (void)summary;
    ++*(int64_t *)payload;
    return INVAR_OK;
}

invar_status invar_replay_copy(const invar_replay *replay, const char *path)
{
    invar_ledger *copy = NULL;
    int64_t runs = 0;
    invar_status status;

    INVAR_TRY(invar_ledger_runs(replay->ledger, count_run, &runs));
    if (runs == 1)
        return invar_ledger_backup(replay->ledger, path, NULL);
    INVAR_TRY(invar_ledger_open(&copy, path,
                                &(invar_ledger_options){.create = true, .writer = "invar replay"}));
    status = invar_ledger_import_run(copy, replay->ledger, replay->run->run);
    invar_ledger_close(copy);
    return status;
}

/* ---- op revisions ---------------------------------------------------------------------------- */

static invar_status check_revisions(const invar_replay *replay, int64_t first)
{
    bool known;

    INVAR_TRY(
        invar_op_revisions_check(&known, replay->ledger, replay->run, first, replay->step, ""));
    if (!known)
        replay_print(replay, INVAR_OP_REVISIONS_UNKNOWN);
    return INVAR_OK;
}

/* ---- executing ------------------------------------------------------------------------------- */

/* Sets the recorded keys, with the folders of the replay. */
static invar_status set_keys(invar_recorded_keys *keys, const invar_replay *replay, int64_t after)
{
    char number[24];

    INVAR_TRY(invar_recorded_keys_copy(keys, replay->keys));
    INVAR_TRY(invar_recorded_keys_put(keys, INVAR_KEY_RUN, replay->folder));
    INVAR_TRY(invar_recorded_keys_put(keys, INVAR_KEY_SAVE, replay->save ? replay->save : "none"));
    if (after < 0)
        return INVAR_OK;
    (void)snprintf(number, sizeof number, "%" PRId64, after);
    INVAR_TRY(invar_recorded_keys_put(keys, INVAR_KEY_LOAD, replay->keys->checkpoints));
    return invar_recorded_keys_put(keys, INVAR_KEY_CKPT_STEP, number);
}

static invar_status execute_steps(const invar_replay *replay, int64_t after)
{
    invar_train_options options = {.kind = "replay",
                                   .until = replay->step,
                                   .replay = true,
                                   .stop = replay->stop,
                                   .progress = replay->progress,
                                   .say = replay->say,
                                   .payload = replay->payload};
    invar_recorded_keys keys = {0};
    invar_train_summary summary;
    invar_config config;
    invar_status status = set_keys(&keys, replay, after);

    if (status == INVAR_OK)
        status = invar_recorded_keys_to_config(&config, &keys);
    invar_recorded_keys_release(&keys);
    INVAR_TRY(status);
    status = invar_train(&summary, &config, &options);
    invar_recipe_free(config.recipe);
    if (status == INVAR_OK && summary.last_step < replay->step)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%s after step %" PRId64 ", before step %" PRId64 " was executed again",
                          summary.stopped ? "stopped by a signal" : "the run ended",
                          summary.last_step, replay->step);
    return status;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/*
 * Steps of the newest segment with the execution that was valid before. The content of a step of
 * version 0.1.0 may differ although all its bits are the same (corrected.h).
 */
static const char sql[] =
    "SELECT n.step, n.chain, o.step IS NOT NULL, n.root = o.root AND n.chain = o.chain, "
    "n.content = o.content, " INVAR_CORRECTED_OLD " "
    "FROM step n LEFT JOIN step o ON o.run = n.run AND o.step = n.step AND o.seg = "
    "(SELECT max(p.seg) FROM step p WHERE p.run = n.run AND p.step = n.step AND p.seg < n.seg) "
    "WHERE n.run = :run AND n.seg = (SELECT max(seg) FROM segment WHERE run = :run) "
    "ORDER BY n.step";

static invar_status read_step(void *payload, const char *const *columns,
                              const invar_ledger_value *values, int count)
{
    invar_replay_result *out = payload;
    int64_t step;

    (void)columns;
    if (!values)
        return INVAR_OK;
    INVAR_CHECK(count == 6 && values[1].bytes == sizeof out->chain);
    step = values[0].integer;
    if (out->last < 0)
        out->first = step;
    out->last = step;
    memcpy(&out->chain, values[1].data, sizeof out->chain);
    if (!values[2].integer)
        return INVAR_OK;
    out->compared++;
    out->corrected += values[3].integer && !values[4].integer && values[5].integer;
    if (!(values[3].integer && (values[4].integer || values[5].integer)) && out->differs < 0)
        out->differs = step;
    return INVAR_OK;
}

/* Finds a difference of content that no corrected metric explains. */
static invar_status check_corrected(invar_replay_result *out, invar_ledger *copy, int64_t run,
                                    const invar_recorded_keys *keys)
{
    char what[INVAR_CORRECTED_SIZE];
    int64_t step;

    if (out->corrected == 0)
        return INVAR_OK;
    INVAR_TRY(invar_corrected_check(&step, what, copy, run, keys));
    if (step < 0 || (out->differs >= 0 && out->differs < step))
        return INVAR_OK;
    out->differs = step;
    memcpy(out->what, what, sizeof what);
    return INVAR_OK;
}

static invar_status compare_steps(invar_replay_result *out, const invar_recorded_keys *keys)
{
    invar_ledger_summary run;
    invar_ledger *copy = NULL;
    invar_status status;

    INVAR_TRY(invar_ledger_open(&copy, out->ledger, &(invar_ledger_options){0}));
    status = invar_ledger_find(&run, copy, NULL);
    if (status == INVAR_OK) {
        const invar_ledger_argument argument = {
            "run", {.type = INVAR_LEDGER_TYPE_INT, .integer = run.run}};
        status = invar_ledger_select(copy, &(invar_ledger_select_request){.sql = sql,
                                                                          .arguments = &argument,
                                                                          .n_arguments = 1,
                                                                          .row = read_step,
                                                                          .payload = out});
    }
    if (status == INVAR_OK)
        status = check_corrected(out, copy, run.run, keys);
    invar_ledger_close(copy);
    return status;
}

invar_status invar_replay_run(invar_replay_result *out, const invar_replay *replay)
{
    int64_t first, rollout;

    *out = (invar_replay_result){.checkpoint_step = -1, .first = -1, .last = -1, .differs = -1};
    if (replay->first_step < 0 || replay->first_step > replay->step)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "steps %" PRId64 " to %" PRId64 ": the first is not before the last",
                          replay->first_step, replay->step);
    INVAR_TRY(invar_replay_checkpoint(&out->checkpoint_step, replay, replay->keys->checkpoints,
                                      replay->first_step - 1));
    INVAR_TRY(invar_replay_rollout(&first, &rollout, replay->keys, out->checkpoint_step + 1));
    INVAR_TRY(check_revisions(replay, out->checkpoint_step + 1));
    INVAR_TRY(invar_recorded_keys_check_files(replay->keys, rollout));
    INVAR_TRY(invar_path_join(out->ledger, sizeof out->ledger, replay->folder, "ledger.db"));
    INVAR_TRY(invar_replay_copy(replay, out->ledger));
    INVAR_TRY(execute_steps(replay, out->checkpoint_step));
    return compare_steps(out, replay->keys);
}
