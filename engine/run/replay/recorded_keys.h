/*
 * recorded_keys.h - recipe keys of a recorded run, to run it again somewhere else.
 *
 * Keys that only decide where the run wrote and how it was observed are left out: folders,
 * checkpoints, dumps, trace. The folder of its checkpoints is kept separately.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_REPLAY_RECORDED_KEYS_H
#define INVAR_ENGINE_RUN_REPLAY_RECORDED_KEYS_H

#include "base/file.h"
#include "engine/config/config.h"
#include "ledger/ledger.h"

/* Keys of a recorded run. Zero-initialize before use. Release with invar_recorded_keys_release. */
typedef struct invar_recorded_keys {
    char *value[INVAR_KEY_COUNT];      /* canonical text, owned; NULL for the default */
    char checkpoints[INVAR_PATH_SIZE]; /* checkpoint folder of the run: `save` or, if that does not
                                          exist, `load`; empty if it had none */
    bool reference_apart; /* the reference has its own config.json, so ref-load is not the
                             actor's; set by invar_recorded_keys_read only */
} invar_recorded_keys;

void invar_recorded_keys_release(invar_recorded_keys *recorded);

/*
 * Reads the keys of the segment whose execution of `step` is valid, from the ledger at `path`.
 * Returns INVAR_E_NOTFOUND if there is no such step, INVAR_E_CORRUPT if the ledger is malformed,
 * and INVAR_E_UNSUPPORTED if it has a key that this program does not know.
 */
invar_status invar_recorded_keys_read(invar_recorded_keys *out, invar_ledger *ledger,
                                      const char *path, const invar_ledger_summary *run,
                                      int64_t step) INVAR_MUST_USE;

/* Reads keys from a file that invar_recorded_keys_write has written. */
invar_status invar_recorded_keys_load(invar_recorded_keys *out, const char *path) INVAR_MUST_USE;
invar_status invar_recorded_keys_write(const invar_recorded_keys *recorded,
                                       const char *path) INVAR_MUST_USE;

/* Sets a key to a copy of `value`; NULL for its default. */
invar_status invar_recorded_keys_put(invar_recorded_keys *recorded, invar_key key,
                                     const char *value) INVAR_MUST_USE;

/* Copies the values of all keys, and not the checkpoint folder. */
invar_status invar_recorded_keys_copy(invar_recorded_keys *out,
                                      const invar_recorded_keys *from) INVAR_MUST_USE;

/* Returns the value or the default of a key; "" if that is empty, too. */
const char *invar_recorded_keys_get(const invar_recorded_keys *recorded, invar_key key);

/*
 * Applies every flag of `flags`. Returns INVAR_E_INVALID for semantic keys and for those that a
 * replay sets itself. `load` sets the checkpoint folder.
 */
invar_status invar_recorded_keys_override(invar_recorded_keys *recorded,
                                          const invar_recipe *flags) INVAR_MUST_USE;

/* Makes a checked configuration of the keys. The caller frees out->recipe. */
invar_status invar_recorded_keys_to_config(invar_config *out,
                                           const invar_recorded_keys *recorded) INVAR_MUST_USE;

/* ---- files ----------------------------------------------------------------------------------- */

/* Returns the keys whose values name input files; *count_out is their number. */
const invar_key *invar_recorded_keys_paths(size_t *count_out);

/*
 * Writes the file that a key names, without a slice "@[a:b]"; "" for a built-in task. `rollout`
 * selects the file of load-debug-rollout-data.
 */
invar_status invar_recorded_keys_file(char out[INVAR_PATH_SIZE],
                                      const invar_recorded_keys *recorded, invar_key key,
                                      int64_t rollout) INVAR_MUST_USE;

/*
 * Returns INVAR_E_NOTFOUND, with the flag to give, if a file or folder of the keys is missing; of
 * rollout files, only that of `rollout` is checked.
 */
invar_status invar_recorded_keys_check_files(const invar_recorded_keys *recorded,
                                             int64_t rollout) INVAR_MUST_USE;

#endif
