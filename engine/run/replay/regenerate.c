/*
 * regenerate.c - finds the weights and the prompt of a recorded sample, and samples it again.
 *
 * The initial weights are tried first, then every checkpoint in `load` and `save`, from newest to
 * oldest. Weights are recognized by their hash, so a wrong or damaged checkpoint is merely skipped.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/replay/regenerate.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/files/hf/hf.h"
#include "engine/run/run_dir/paths.h"
#include "engine/run/train_settings.h"
#include "engine/sample/source/source.h"

#include "base/invar_banned.h"

/* ---- weights --------------------------------------------------------------------------------- */

/*
 * *found is true if the weights could be loaded and have the wanted hash. An unreadable checkpoint
 * is no error.
 */
static invar_status try_weights(bool *found, invar_run_context *s, const char *folder, int64_t step,
                                const invar_digest *wanted)
{
    invar_status status = invar_run_context_load(s->models.actor, folder, step, &s->dev);

    *found = false;
    if (status == INVAR_E_NOMEM)
        return status;
    if (status != INVAR_OK) {
        invar_error_clear();
        return INVAR_OK;
    }
    INVAR_TRY(invar_run_context_refresh_sampler(s));
    INVAR_TRY(invar_model_hash(&s->weights, s->models.actor, &s->dev));
    *found = invar_digest_equal(&s->weights, wanted);
    return INVAR_OK;
}

/* Tries all checkpoints of a folder, from newest to oldest, or its Hugging Face weights. */
static invar_status try_folder(bool *found, int64_t *tried, invar_run_context *s,
                               const char *folder, const invar_digest *wanted)
{
    invar_status status = INVAR_OK;
    int64_t *steps = NULL, count = 0;

    if (!folder[0] || !invar_path_exists(folder))
        return INVAR_OK;
    if (invar_hf_has_weights(folder)) {
        ++*tried;
        return try_weights(found, s, folder, INVAR_CHECKPOINT_LATEST, wanted);
    }
    INVAR_TRY(invar_checkpoint_list(&steps, &count, folder));
    for (int64_t i = count - 1; i >= 0 && status == INVAR_OK && !*found; i--) {
        ++*tried;
        status = try_weights(found, s, folder, steps[i], wanted);
    }
    invar_free(steps);
    return status;
}

static invar_status find_weights(invar_run_context *s, const invar_digest *wanted)
{
    const char *load = s->config->load;
    invar_run_paths at;
    char hex[INVAR_DIGEST_HEX_SIZE], first[INVAR_DIGEST_HEX_SIZE];
    bool found = invar_digest_equal(&s->weights, wanted);
    int64_t tried = 0;

    if (found)
        return INVAR_OK;
    invar_digest_format(first, &s->weights);
    INVAR_TRY(invar_run_paths_find(&at, s->config, NULL));
    if (!s->config->save[0] && !s->config->run[0])
        at.save[0] = '\0'; // no run is named, so the default folder means nothing
    INVAR_TRY(try_folder(&found, &tried, s, load, wanted));
    if (!found && strcmp(load, at.save) != 0)
        INVAR_TRY(try_folder(&found, &tried, s, at.save, wanted));
    if (found)
        return INVAR_OK;
    invar_digest_format(hex, wanted);
    return INVAR_FAIL(
        INVAR_E_NOTFOUND, 0,
        "the weights %s are missing: the initial ones (%s) are %s, and none of %" PRId64
        " checkpoints in the recipe's load and save has them; give the folder that "
        "does with --load (save-interval = 1 keeps the weights of every rollout)",
        hex, s->weights_from, first, tried);
}

/* ---- the sample ------------------------------------------------------------------------------ */

static invar_status find_prompt(const invar_prompt **out, const invar_run_context *s, int64_t line)
{
    for (int64_t i = 0; s->data && i < invar_dataset_size(s->data); i++) {
        *out = invar_dataset_prompt(s->data, i);
        if ((*out)->line == line)
            return INVAR_OK;
    }
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "the prompt is missing: line %" PRId64
                      " (from 0) is not in the recipe's prompt-data, or too long",
                      line);
}

static invar_status check_coords(const invar_run_context *s, const invar_rng_coords *c)
{
    int64_t seed = s->config->rollout_seed;

    if (c->purpose != INVAR_PURPOSE_TRAIN)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "purpose=%" PRIu32 ": only samples of training (purpose=0) are in the "
                          "ledger; evaluations are done again as a whole, by invar eval",
                          c->purpose);
    if (invar_train_settings_supervised(s->config))
        return INVAR_FAIL(
            INVAR_E_UNSUPPORTED, 0,
            "loss-type = sft_loss: the answers come from the data, nothing is sampled");
    if (s->config->custom_generate_function_path[0])
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "custom-generate-function-path: a plug-in led the sample, whose replies "
                          "are in the ledger; invar replay does its step again with them");
    if (s->config->custom_agent_path[0])
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "custom-agent-path: an agent led the sample, whose session is in the "
                          "ledger; invar replay does its step again with it");
    if (c->seed != seed)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "the sample has seed=%" PRIu32 ", the recipe rollout-seed = %" PRId64
                          ": another run",
                          c->seed, seed);
    return INVAR_OK;
}

invar_status invar_regenerate(invar_rl_samples *out, invar_run_context *session,
                              const invar_rng_coords *coords)
{
    invar_sampling_params sampling = invar_run_context_sampling(session);
    invar_rollout_exec_options limits = invar_run_context_limits(session);
    invar_rollout *rollout = NULL;
    const invar_prompt *prompt;
    invar_rl_sample *s;
    invar_status status;

    INVAR_TRY(check_coords(session, coords));
    INVAR_TRY(find_prompt(&prompt, session, coords->prompt));
    INVAR_TRY(find_weights(session, &coords->weights));
    INVAR_TRY(invar_rl_samples_append(&s, out));
    s->rollout = coords->rollout;
    s->draw_index = coords->draw;
    s->weights.hash = coords->weights;
    INVAR_TRY(invar_sample_source_init_sample(s, prompt));
    INVAR_TRY(invar_rollout_new(&rollout, invar_model_set_sampler(&session->models),
                                session->tokenizer, &session->dev, &limits));
    status = invar_rollout_run(rollout, s, 1, &sampling, NULL, NULL);
    invar_rollout_free(rollout);
    return status;
}
