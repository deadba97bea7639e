/*
 * recorded_keys.h - the keys that a recorded run had, as a recipe that runs it again somewhere
 * else.
 *
 * What only said where the run wrote and how it was watched is left out: folders, checkpoints,
 * dumps, the trace. The folder of its checkpoints is remembered beside the keys.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_REPLAY_RECORDED_KEYS_H
#define INVAR_ENGINE_RUN_REPLAY_RECORDED_KEYS_H

#include "base/file.h"
#include "engine/config/config.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed at first; release. */
typedef struct invar_recorded_keys {
    char *value[INVAR_KEY_COUNT]; /* canonical text; NULL: the default */
    char checkpoints[INVAR_PATH_SIZE];
    bool reference_apart; /* the run's reference is a model of its own: ref-load has no other use */
} invar_recorded_keys;

void invar_recorded_keys_release(invar_recorded_keys *recorded);

/*
 * Of the segment that executed `step` as it counts, from the ledger at `path`. INVAR_E_NOTFOUND: no
 * such step; INVAR_E_CORRUPT: what the ledger has is no recipe of this program.
 */
invar_status invar_recorded_keys_read(invar_recorded_keys *out, invar_ledger *ledger,
                                      const char *path, const invar_ledger_summary *run,
                                      int64_t step) INVAR_MUST_USE;

/* From a file that _write made. */
invar_status invar_recorded_keys_load(invar_recorded_keys *out, const char *path) INVAR_MUST_USE;
invar_status invar_recorded_keys_write(const invar_recorded_keys *recorded,
                                       const char *path) INVAR_MUST_USE;

/* NULL: back to the default. */
invar_status invar_recorded_keys_put(invar_recorded_keys *recorded, invar_key key,
                                     const char *value) INVAR_MUST_USE;

/* "" where the default is empty, too. */
const char *invar_recorded_keys_get(const invar_recorded_keys *recorded, invar_key key);

/*
 * Puts every flag of `flags`. Semantic keys, and those that a replay sets by itself, are refused:
 * INVAR_E_INVALID. `load` becomes the folder of checkpoints.
 */
invar_status invar_recorded_keys_override(invar_recorded_keys *recorded,
                                          const invar_recipe *flags) INVAR_MUST_USE;

/* The caller owns *out; checked. */
invar_status invar_recorded_keys_to_recipe(invar_recipe **out,
                                           const invar_recorded_keys *recorded) INVAR_MUST_USE;

/* ---- files ----------------------------------------------------------------------------------- */

/* The keys whose value names files of the run; `count` of them. */
const invar_key *invar_recorded_keys_paths(size_t *count_out);

/* The file of a value: without a slice "@[a:b]"; "" for a built-in task. */
invar_status invar_recorded_keys_file(char out[INVAR_PATH_SIZE],
                                      const invar_recorded_keys *recorded, invar_key key,
                                      int64_t rollout) INVAR_MUST_USE;

/* INVAR_E_NOTFOUND names the first file or folder that is missing, and the flag to give. */
invar_status invar_recorded_keys_check_files(const invar_recorded_keys *recorded,
                                             int64_t rollout) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
