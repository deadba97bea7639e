/*
 * weights.c - selects the weights for commands that need a model: initial, from a run or a folder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/run/weights.h"

#include <stdio.h>

#include "cli/interactive.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/files/hf/hf.h"
#include "engine/run/run_dir/paths.h"

#include "base/invar_banned.h"

static bool load_is_given(const invar_config *config)
{
    invar_recipe_entry load;

    invar_recipe_entry_get(&load, config->recipe, INVAR_KEY_LOAD);
    return load.source > INVAR_RECIPE_SOURCE_DEFAULT;
}

invar_status invar_weights_choose(invar_config *config)
{
    char shown[INVAR_PATH_SHOWN_SIZE], warning[INVAR_RUN_PATHS_WARNING_SIZE],
        ledger[INVAR_PATH_SIZE];
    invar_run_paths at;
    int64_t step;

    if (load_is_given(config) || !config->run[0])
        return INVAR_OK;
    INVAR_TRY(invar_run_paths_find(&at, config, NULL));
    invar_path_show(shown, at.run);
    INVAR_TRY(invar_path_join(ledger, sizeof ledger, at.run, "ledger.db"));
    if (invar_path_exists(ledger) || !at.save[0] ||
        invar_checkpoint_latest(&step, at.save) == INVAR_E_NOTFOUND) {
        INVAR_TRY(invar_run_paths_checkpoints(at.save, warning, at.run, config->ckpt_step));
        if (warning[0])
            invar_interactive_print(NULL, warning);
    }
    if (invar_checkpoint_latest(&step, at.save) == INVAR_E_NOTFOUND) {
        INVAR_TRY(invar_hf_check_folder("run", at.run));
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "run: %s has no checkpoint; train it, or name weights with --load "
                          "(--load= is the initial ones)",
                          shown);
    }
    INVAR_TRY(invar_recipe_set(config->recipe, "load", at.save, "--run"));
    invar_config_read(config, config->recipe);
    return INVAR_OK;
}

void invar_weights_from(char out[INVAR_WEIGHTS_FROM_SIZE], const invar_run_context *session)
{
    if (session->loaded.folder[0])
        (void)snprintf(out, INVAR_WEIGHTS_FROM_SIZE, "%s", session->loaded.folder);
    else
        (void)snprintf(out, INVAR_WEIGHTS_FROM_SIZE, "the initial ones (%s)",
                       session->weights_from);
}

void invar_weights_hint(const invar_config *config, const char *path)
{
    char line[2 * INVAR_PATH_SHOWN_SIZE + 128], shown[INVAR_PATH_SHOWN_SIZE];
    invar_run_paths at;
    int64_t step;

    if (load_is_given(config))
        return;
    if (invar_run_paths_find(&at, config, path) != INVAR_OK || !at.save[0] ||
        invar_checkpoint_latest(&step, at.save) != INVAR_OK) {
        invar_error_clear();
        return;
    }
    invar_path_show(shown, at.run);
    (void)snprintf(line, sizeof line,
                   "these are the initial weights; %s has trained ones: --run %s takes them", shown,
                   shown);
    invar_interactive_print(NULL, line);
}
