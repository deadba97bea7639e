/*
 * pack.h - a pack: one file with everything that is needed to execute a recorded step again
 * anywhere.
 *
 * A POSIX tar archive (engine/files/tar.h), docs/formats.md:
 *
 *     recipe.ini       keys of the run; their files are members of the pack
 *     ledger.db        ledger of the run, without the detail of older steps
 *     checkpoint/      state before the step's rollout; absent for the first rollout
 *     data.jsonl, hf/, adapter/, ref/, critic/, teacher/, template.jinja, rollout-N.jsonl   if used
 *     manifest.json    "invar-pack 1", run, step, and size and XXH3-128 of every other member
 *
 * Plug-ins are not packed, since the ledger has their replies. Initial weights that the seed makes
 * are not packed either.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_REPLAY_PACK_H
#define INVAR_ENGINE_RUN_REPLAY_PACK_H

#include "engine/run/replay/replay.h"

/* Names of the members of a pack (docs/formats.md). */
#define INVAR_PACK_FORMAT "invar-pack 1"
#define INVAR_PACK_MANIFEST "manifest.json"
#define INVAR_PACK_RECIPE "recipe.ini"
#define INVAR_PACK_LEDGER "ledger.db"
#define INVAR_PACK_CHECKPOINT "checkpoint"
#define INVAR_PACK_DATA "data.jsonl"
#define INVAR_PACK_HF "hf"
#define INVAR_PACK_LATEST "latest_checkpointed_iteration.txt"

typedef struct invar_pack_result {
    int64_t checkpoint_step; /* step of the checkpoint in the pack; -1 if none */
    bool made;               /* the checkpoint was missing and was made by executing steps again */
    int64_t members;
    int64_t bytes; /* sum over all members */
} invar_pack_result;

/*
 * Packs `replay->step`. replay->first_step and `save` are not used; `replay->folder` is for
 * intermediate files. Returns INVAR_E_MISMATCH if a checkpoint had to be made and the steps before
 * it were not reproduced as recorded.
 */
invar_status invar_pack_write(invar_pack_result *out, const invar_replay *replay,
                              const char *path) INVAR_MUST_USE;

/* Content of an unpacked pack. Release with invar_pack_release. */
typedef struct invar_pack {
    int64_t step;
    char uuid[INVAR_LEDGER_UUID_SIZE];
    char ledger[INVAR_PATH_SIZE];
    invar_recorded_keys keys; /* recipe keys, with paths of unpacked files */
} invar_pack;

/*
 * Unpacks into the empty folder `folder` and verifies every member. After a failure there is
 * nothing to release.
 */
invar_status invar_pack_read(invar_pack *out, const char *path, const char *folder) INVAR_MUST_USE;
void invar_pack_release(invar_pack *pack);

#endif
