/*
 * multi_turn.h - samples of several turns, which a plug-in leads: tools, games, dialogues.
 *
 * Turns are rounds. All samples that go on get their next turn in one run of the rollout, on
 * whichever rank; then the plug-in is asked, once, what follows each. So batches stay full, and
 * questions depend on the samples alone. What it inserts becomes tokens of the response that take
 * no part in the loss and have a log-probability of 0. Token ids are the truth: a text that is
 * inserted is tokenised by itself, and nothing that the model said is ever tokenised again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_MULTI_TURN_H
#define INVAR_ENGINE_SAMPLE_SOURCE_MULTI_TURN_H

#include "base/recipe/recipe.h"
#include "engine/ext/plugin.h"
#include "engine/sample/rollout/rollout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_generate_args invar_generate_args; /* engine/sample/source/generate.h */

/* Who leads, and how far. All is borrowed. */
typedef struct invar_multi_turn {
    bool enabled;
    invar_plugin *plugin; /* NULL: another rank has it */
    bool judged;          /* every sample needs a reward */
    int64_t max_turns;    /* turns of a sample, */
    int64_t longest;      /* and tokens of a turn, unless the plug-in says; 0: no limit */
    int64_t positions;    /* of the model: the longest context */
    const invar_tokenizer *tokenizer;
} invar_multi_turn;

/* That plug-in, NULL: none. `stored`: it is not started, its replies come from the ledger. The
   caller owns *out (invar_plugin_close). */
invar_status invar_multi_turn_attach(invar_plugin **out, const invar_recipe *recipe,
                                     bool stored) INVAR_MUST_USE;

/* The recipe's. */
invar_multi_turn invar_multi_turn_read(const invar_recipe *recipe, invar_plugin *plugin,
                                       const invar_model_spec *spec,
                                       const invar_tokenizer *tokenizer);

/*
 * A call of all ranks: samples [0, count), as invar_generate. The response of each is the text that
 * the model said; its reward is what the plug-in ended it with or, without one, the judge's. A
 * judge of groups sees those that are rewarded, too, where others of their group are not.
 */
invar_status invar_multi_turn_run(const invar_generate_args *how, invar_rl_sample *samples,
                                  int64_t count) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
