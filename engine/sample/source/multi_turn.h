/*
 * multi_turn.h - multi-turn samples driven by a plug-in: tools, games, dialogs.
 *
 * Turns run in rounds. All unfinished samples with equal stop strings get their next turn in one
 * run of the rollout, spread over the ranks; then one request asks the plug-in what follows each
 * unfinished sample. So batches stay full, and requests depend on the samples only. Tokens that the
 * plug-in inserts become part of the response, with mask 0 and log-prob 0. Token ids are
 * authoritative: inserted text is tokenized on its own, and the output of the model is never
 * tokenized again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_MULTI_TURN_H
#define INVAR_ENGINE_SAMPLE_SOURCE_MULTI_TURN_H

#include "engine/config/config.h"
#include "engine/ext/plugin.h"
#include "engine/sample/rollout/rollout.h"

typedef struct invar_generate_args invar_generate_args; /* engine/sample/source/generate.h */

/* Settings of multi-turn generation. Everything is borrowed. */
typedef struct invar_multi_turn {
    bool enabled;         /* a plug-in drives the samples (custom-generate-function-path) */
    invar_plugin *plugin; /* NULL on ranks other than the one that runs the plug-in */
    int64_t max_turns;    /* largest number of turns of a sample */
    int64_t
        max_turn_tokens; /* tokens of a turn, unless the plug-in gives a limit; 0 for no limit */
    int64_t positions;   /* positions of the model: the longest context */
    const invar_tokenizer *tokenizer;
} invar_multi_turn;

/*
 * Opens the plug-in that the recipe names; *out = NULL if it names none. With `stored` the plug-in
 * is not started, because its replies come from the ledger. The caller closes *out with
 * invar_plugin_close.
 */
invar_status invar_multi_turn_attach(invar_plugin **out, const invar_config *config,
                                     bool stored) INVAR_MUST_USE;

/* Returns the settings of the recipe. */
invar_multi_turn invar_multi_turn_read(const invar_config *config, invar_plugin *plugin,
                                       const invar_model_spec *spec,
                                       const invar_tokenizer *tokenizer);

/*
 * Runs all turns of samples[0, count) and sets their rewards, as invar_generate. Collective. The
 * response text of a sample has the tokens of the model only. The reward is the one that the
 * plug-in ends the sample with, else that of the reward source. If rewards are computed per group,
 * the reward source also sees rewarded samples of groups with unrewarded ones.
 */
invar_status invar_multi_turn_run(const invar_generate_args *how, invar_rl_sample *samples,
                                  int64_t count) INVAR_MUST_USE;

#endif
