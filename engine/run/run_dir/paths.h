/*
 * paths.h - paths of a run: its folder, its ledger and its checkpoints.
 *
 *     RUN              `run`, or runs/NAME
 *     RUN/ledger.db    or `ledger`
 *     RUN/checkpoints  or `save`; `none` for no checkpoints. If `save` is empty, the environment
 *                      variable INVAR_SAVE replaces it: none, or a folder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_RUN_DIR_PATHS_H
#define INVAR_ENGINE_RUN_RUN_DIR_PATHS_H

#include "base/file.h"
#include "engine/config/config.h"
#include "ledger/ledger.h"

#define INVAR_RUN_PATHS_CHECKPOINTS "checkpoints"
#define INVAR_RUN_PATHS_WARNING_SIZE (2 * INVAR_PATH_SHOWN_SIZE + 160)

typedef struct invar_run_paths {
    char name[INVAR_LEDGER_NAME_BYTES + 1]; /* name of the run */
    /* name by the recipe alone, without the folder; stored in checkpoints */
    char recipe_name[INVAR_LEDGER_NAME_BYTES + 1];
    char run[INVAR_PATH_SIZE];
    char ledger[INVAR_PATH_SIZE];
    char save[INVAR_PATH_SIZE]; /* empty if no checkpoints are saved */
    bool default_save_dir;      /* neither the key `save` nor INVAR_SAVE is set */
} invar_run_paths;

/*
 * Sets the paths of a run. `path`, the recipe's, names the run if neither the key `name` nor `run`
 * does; it may be NULL.
 */
invar_status invar_run_paths_find(invar_run_paths *out, const invar_config *config,
                                  const char *path) INVAR_MUST_USE;

/*
 * Fails if the run could not write an output: part of its path is not a folder, or is not writable.
 * The message names the key. Nothing is created. Set `fresh` if an existing run is renamed first.
 */
invar_status invar_run_paths_check(const invar_run_paths *paths, const invar_config *config,
                                   bool fresh) INVAR_MUST_USE;

/*
 * Finds the checkpoint folder of the run in `folder`: the one with the newest checkpoint that the
 * run's ledger names and that exists, at its recorded path or in the run folder. If `step` is not
 * -1, only checkpoints of this step count. The hash in the ledger tells checkpoints of this run
 * from those of others, to which a relative path may lead. Without such a ledger, *out is
 * RUN/checkpoints, or `folder` itself.
 *
 * `warning` is not empty if a newer checkpoint is missing. Returns INVAR_E_STATE if the ledger
 * names checkpoints and none of them exists.
 */
invar_status invar_run_paths_checkpoints(char out[INVAR_PATH_SIZE],
                                         char warning[INVAR_RUN_PATHS_WARNING_SIZE],
                                         const char *folder, int64_t step) INVAR_MUST_USE;

#endif
