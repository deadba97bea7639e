/*
 * paths.h - where a run keeps its files, as its recipe says.
 *
 *     RUN              `run`, or runs/NAME
 *     RUN/ledger.db    or `ledger`
 *     RUN/checkpoints  or `save`; `none`: no checkpoints. Where `save` is empty the variable
 *                      INVAR_SAVE goes before it: none, or a folder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_RUN_DIR_PATHS_H
#define INVAR_ENGINE_RUN_RUN_DIR_PATHS_H

#include "base/file.h"
#include "base/recipe/recipe.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_RUN_PATHS_CHECKPOINTS "checkpoints"
#define INVAR_RUN_PATHS_WARNING_SIZE (2 * INVAR_PATH_SHOWN_SIZE + 160)

typedef struct invar_run_paths {
    char name[INVAR_LEDGER_NAME_BYTES + 1];        /* name of the run */
    char recipe_name[INVAR_LEDGER_NAME_BYTES + 1]; /* independent of the folder; in checkpoints */
    char run[INVAR_PATH_SIZE];
    char ledger[INVAR_PATH_SIZE];
    char save[INVAR_PATH_SIZE]; /* empty if no checkpoints are saved */
    bool default_save_dir;      /* neither `save` nor INVAR_SAVE names a folder */
} invar_run_paths;

/* `path`, the recipe's, names the run if neither the key `name` nor `run` does. It may be NULL. */
invar_status invar_run_paths_find(invar_run_paths *out, const invar_recipe *recipe,
                                  const char *path) INVAR_MUST_USE;

/*
 * Fails where the run could not write: something on the way to an output is no folder, or may not
 * be written to. The message names the key. Nothing is made. `fresh`: a run that is there gets
 * another name first.
 */
invar_status invar_run_paths_check(const invar_run_paths *at, const invar_recipe *recipe,
                                   bool fresh) INVAR_MUST_USE;

/*
 * The folder of checkpoints of the run in `folder`: that of the newest checkpoint that the run's
 * ledger names and that is there, as the ledger says (`save`) or in the run's folder; of `step` if
 * that is not -1. The hash in the ledger tells a checkpoint of this run from those of others, which
 * a relative path may lead to. Without such a ledger RUN/checkpoints, or `folder` itself. A warning
 * that is not "" says that a newer one is not there. INVAR_E_STATE: the ledger names some, and none
 * of the run is there.
 */
invar_status invar_run_paths_checkpoints(char out[INVAR_PATH_SIZE],
                                         char warning[INVAR_RUN_PATHS_WARNING_SIZE],
                                         const char *folder, int64_t step) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
