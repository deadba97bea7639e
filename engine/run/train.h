/*
 * train.h - runs a training run: rollout, reward, advantage, optimizer step, ledger, checkpoint.
 *
 * invar_train does the complete run; invar_train_check does only what precedes the first write, and
 * compares the ranks. Options and progress callbacks never change a result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_TRAIN_H
#define INVAR_ENGINE_RUN_TRAIN_H

#include "engine/config/config.h"
#include "engine/run/train_options.h"

/*
 * Runs a complete training run, or continues it. Returns INVAR_E_MISMATCH if log-probs differed, or
 * if a checkpoint and the ledger disagree. After any failure the ledger holds every completed step,
 * and a run with checkpoints resumes from the last one when it is started again.
 *
 * Collective. Rank 0 alone writes, and on other ranks `out` has no chain. If one rank fails, all
 * end.
 */
invar_status invar_train(invar_train_summary *out, const invar_config *config,
                         const invar_train_options *options) INVAR_MUST_USE;

/* Inputs of the run on this rank, as invar_train_check found them. */
typedef struct invar_train_inputs {
    invar_digest identity, weights;
    invar_digest data; /* zero if there is no prompt-data */
    int threads;
    bool differ; /* the ranks have compared their inputs, and one rank differs */
} invar_train_inputs;

/*
 * Does what a run does before it writes anything: reads data and weights, plans the memory and
 * compares the ranks. If one rank differs, returns INVAR_E_STATE on all ranks with `differ` set;
 * the message names the rank and the difference. Any other failure of one rank ends all.
 * Collective.
 */
invar_status invar_train_check(invar_train_inputs *out, const invar_config *config,
                               const invar_train_options *options) INVAR_MUST_USE;

#endif
