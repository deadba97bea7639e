/*
 * pack_names.h - names of the members of a pack; docs/formats.md.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_REPLAY_PACK_NAMES_H
#define INVAR_ENGINE_RUN_REPLAY_PACK_NAMES_H

#define INVAR_PACK_FORMAT "invar-pack 1"
#define INVAR_PACK_MANIFEST "manifest.json"
#define INVAR_PACK_RECIPE "recipe.ini"
#define INVAR_PACK_LEDGER "ledger.db"
#define INVAR_PACK_CHECKPOINT "checkpoint"
#define INVAR_PACK_DATA "data.jsonl"
#define INVAR_PACK_HF "hf"
#define INVAR_PACK_LATEST "latest_checkpointed_iteration.txt"

#endif
