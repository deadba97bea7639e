/*
 * pack.h - one file with all that a recorded step needs, to execute it again anywhere.
 *
 * A POSIX tar archive (engine/files/tar.h), docs/formats.md:
 *
 *     recipe.ini       the keys of the run; what they name lies beside it
 *     ledger.db        the run's ledger, without the detail of older steps
 *     checkpoint/      the state before the step's rollout; not there for the first one
 *     data.jsonl, hf/, ref/, critic/, teacher/, template.jinja, rollout-N.jsonl   where used
 *     manifest.json    "invar-pack 1", run, step, and size and XXH3-128 of every other member
 *
 * Plug-ins are not in it: the ledger has what they replied. Initial weights that the seed makes are
 * not in it either.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_REPLAY_PACK_H
#define INVAR_ENGINE_RUN_REPLAY_PACK_H

#include "engine/run/replay/replay.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_pack_result {
    int64_t checkpoint_step; /* step of the checkpoint in it; -1: none is needed */
    bool made; /* the run had no such checkpoint: it was made by executing steps again */
    int64_t members;
    int64_t bytes; /* of all members */
} invar_pack_result;

/*
 * Packs `replay->step`; from, save and the rest of *replay are not used. `replay->folder` is for
 * intermediate files. INVAR_E_MISMATCH: a checkpoint had to be made, and the steps before it did
 * not come out as recorded.
 */
invar_status invar_pack_write(invar_pack_result *out, const invar_replay *replay,
                              const char *path) INVAR_MUST_USE;

/* What an unpacked pack is about. Zeroed at first; release. */
typedef struct invar_pack {
    int64_t step;
    char uuid[INVAR_LEDGER_UUID_SIZE];
    char ledger[INVAR_PATH_SIZE];
    invar_recorded_keys keys; /* their files are those of the pack */
} invar_pack;

/* Unpacks into `folder`, which is there and empty, and verifies every member. */
invar_status invar_pack_read(invar_pack *out, const char *path, const char *folder) INVAR_MUST_USE;
void invar_pack_release(invar_pack *pack);

#ifdef __cplusplus
}
#endif
#endif
