/*
 * replay_context.c - context shared by the commands replay and pack: scratch folder, run and keys.
 *
 * The scratch folder is removed on close unless the user keeps it. Errors of the removal never hide
 * the first error of the command.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/process/process.h"
#include "cli/interactive.h"
#include "cli/ledger/ledger.h"
#include "cli/run/replay.h"

#include "base/invar_banned.h"

/* ---- progress -------------------------------------------------------------------------------- */

static void show_progress(void *payload, const invar_train_progress *p)
{
    invar_replay_context *context = payload;
    char text[96];

    if (!context->progress) {
        invar_progress_options o = {.stream = stderr,
                                    .title = "replay",
                                    .unit = "steps",
                                    .first = p->step,
                                    .total = context->replay.step + 1};
        if (invar_progress_new(&context->progress, &o) != INVAR_OK) {
            invar_error_clear();
            return;
        }
    }
    (void)snprintf(text, sizeof text, "rollout %" PRId64 "  %s", p->rollout, p->phase);
    invar_progress_update(context->progress, p->step, text);
}

/* ---- the scratch folder ---------------------------------------------------------------------- */

static invar_status make_scratch(char out[INVAR_PATH_SIZE])
{
    const char *root = getenv("TMPDIR");

    INVAR_TRY(invar_path_join(out, INVAR_PATH_SIZE, root && root[0] ? root : "/tmp",
                              "invar-replay-XXXXXX"));
    if (!mkdtemp(out))
        return INVAR_FAIL(INVAR_E_IO, errno, "%.1000s: the scratch folder cannot be made: %s", out,
                          strerror(errno));
    return INVAR_OK;
}

static invar_status open_kept_folder(char out[INVAR_PATH_SIZE], const char *keep)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, keep);
    if (strlen(keep) >= INVAR_PATH_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--keep: %s: the path is too long", shown);
    // only one level is created, because a missing parent folder is probably misspelt
    INVAR_TRY(invar_held_folder_make_one(keep));
    if (rmdir(keep) != 0) // rmdir fails if the folder is not empty
        return INVAR_FAIL(INVAR_E_INVALID, errno, "--keep: %s: %s; give a new or empty folder",
                          shown, strerror(errno));
    memcpy(out, keep, strlen(keep) + 1);
    return invar_held_folder_make_one(keep);
}

invar_status invar_replay_scratch(char out[INVAR_PATH_SIZE], const char *keep)
{
    invar_status status = keep ? open_kept_folder(out, keep) : make_scratch(out);

    if (status != INVAR_OK)
        out[0] = '\0';
    return status;
}

invar_status invar_replay_context_open(invar_replay_context *context, const char *keep)
{
    INVAR_TRY(invar_replay_scratch(context->scratch, keep));
    context->kept = keep != NULL;
    INVAR_TRY(invar_path_join(context->folder, sizeof context->folder, context->scratch, "run"));
    return invar_held_folder_make(context->folder);
}

int invar_replay_exit(invar_status status, int code)
{
    if (status == INVAR_OK)
        return code;
    code = invar_report_error();
    return invar_interactive_caught() ? invar_process_stop_code(invar_interactive_caught()) : code;
}

void invar_replay_scratch_remove(const char *scratch)
{
    invar_error first;

    invar_error_take(&first);
    if (scratch[0] && invar_held_folder_remove(scratch) != INVAR_OK)
        invar_interactive_print(NULL, invar_error_last()->message);
    invar_error_put(&first);
}

void invar_replay_context_close(invar_replay_context *context)
{
    invar_progress_free(context->progress);
    invar_located_close(&context->located);
    invar_recorded_keys_release(&context->keys);
    if (!context->kept)
        invar_replay_scratch_remove(context->scratch);
}

/* ---- the run --------------------------------------------------------------------------------- */

invar_status invar_replay_context_set(invar_replay_context *context, const invar_config *flags,
                                      int64_t step)
{
    INVAR_TRY(invar_recorded_keys_override(&context->keys, flags->recipe));
    context->replay = (invar_replay){
        .ledger = context->located.ledger,
        .run = &context->located.run,
        .keys = &context->keys,
        .folder = context->folder,
        .first_step = step,
        .step = step,
        .progress = show_progress,
        .say = invar_interactive_print,
        .stop = invar_interactive_catch_signals("stopping after the current rollout"),
        .payload = context};
    return INVAR_OK;
}

invar_status invar_replay_context_run(invar_replay_context *context, const char *word,
                                      const invar_config *flags, int64_t step)
{
    const char *ledger = flags->ledger;

    INVAR_TRY(invar_locate_run(&context->located, word, ledger[0] ? ledger : NULL));
    if (step < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--step is missing: which step?");
    INVAR_TRY(invar_recorded_keys_read(&context->keys, context->located.ledger,
                                       context->located.path, &context->located.run, step));
    return invar_replay_context_set(context, flags, step);
}
