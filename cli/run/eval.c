/*
 * eval.c - invar eval: runs the evaluation sets of a recipe with given weights.
 *
 * The random draws are those of the evaluation during training with the same weights, so the
 * results are equal to those in the ledger.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/ledger/ledger.h"
#include "cli/recipe_flags.h"
#include "cli/run/weights.h"
#include "cli/safe_text.h"
#include "cli/text_table.h"
#include "engine/run/evaluate.h"

#include "base/invar_banned.h"

typedef struct settings {
    int64_t rollout;
    bool json;
    bool exact;
} settings;

static settings asked = {.rollout = -1};

/* Destination of results: a table and a JSON object. */
typedef struct eval_results {
    invar_text_table table;
    json_t *sets;
    bool exact;
} eval_results;

/* ---- results --------------------------------------------------------------------------------- */

static invar_status add_results(void *payload, const char *set, const invar_ledger_metric *list,
                                size_t count)
{
    eval_results *r = payload;
    json_t *object = json_object();
    int failed = json_object_set_new(r->sets, set, object);

    for (size_t i = 0; i < count && !failed; i++) {
        failed = json_object_set_new(object, list[i].name, json_real(list[i].value));
        invar_text_table_add(&r->table, "ss", set, list[i].name);
        invar_text_table_real(&r->table, list[i].value, r->exact);
    }
    return failed ? INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for results") : r->table.status;
}

#define RESULT                                                                                     \
    "{weights hex32, from text, rollout int,"                                                      \
    " sets {* {* real}} (metrics by name, by evaluation set)}"

static invar_status print_results(eval_results *r, const invar_run_context *s, int64_t rollout,
                                  bool json)
{
    char weights[INVAR_DIGEST_HEX_SIZE], from[INVAR_WEIGHTS_FROM_SIZE];

    invar_digest_format(weights, &s->weights);
    invar_weights_from(from, s);
    if (json)
        return invar_json_write(stdout,
                                INVAR_RESULT(RESULT, weights, from, rollout, json_incref(r->sets)));
    INVAR_TRY(invar_text_table_show(&r->table, stdout, INVAR_OK));
    printf("\nweights %s, draws of rollout %" PRId64 "\nfrom    ", weights, rollout);
    invar_safe_text_print(stdout, from);
    putchar('\n');
    return INVAR_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

static invar_status evaluate_sets(eval_results *r, const settings *set, invar_run_context *s,
                                  invar_plugin *reward, invar_plugin *turns)
{
    invar_rollout_exec_options limits = invar_run_context_limits(s);
    invar_evaluation e = {
        .session = s, .plugin = reward, .turns = turns, .take = add_results, .payload = r};
    invar_status status;

    INVAR_TRY(invar_run_context_load_newest(s));
    e.number = set->rollout >= 0 ? set->rollout : s->loaded.rollout;
    INVAR_TRY(invar_rollout_new(&e.rollout, invar_model_set_sampler(&s->models), s->tokenizer,
                                &s->dev, &limits));
    status = invar_evaluate(&e);
    if (status == INVAR_OK)
        status = print_results(r, s, e.number, set->json);
    invar_rollout_free(e.rollout);
    return status;
}

static invar_status evaluate_with_plugins(eval_results *r, const settings *set,
                                          const invar_config *config)
{
    invar_plugin *reward = NULL, *turns = NULL;
    invar_run_context session;
    invar_status status;

    INVAR_TRY(invar_run_context_open(&session, config, 0));
    status = invar_evaluate_read_sets(&session);
    if (status == INVAR_OK)
        status = invar_reward_source_attach(&reward, config, false);
    if (status == INVAR_OK)
        status = invar_multi_turn_attach(&turns, config, false);
    if (status == INVAR_OK)
        status = evaluate_sets(r, set, &session, reward, turns);
    invar_plugin_close(turns);
    invar_plugin_close(reward);
    invar_run_context_close(&session);
    return status;
}

static invar_status run_eval(const settings *set, const invar_config *config)
{
    eval_results r = {.exact = set->exact};
    invar_status status;

    INVAR_TRY(invar_config_check(config));
    if (!invar_config_evaluates(config))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "there is nothing to evaluate: the recipe has neither eval-prompt-data "
                          "nor eval-config");
    r.sets = json_object();
    r.table.columns = 3;
    invar_text_table_add(&r.table, "sss", "set", "metric", "value");
    status = evaluate_with_plugins(&r, set, config);
    invar_text_table_free(&r.table);
    json_decref(r.sets);
    return status;
}

static const invar_option options[] = {
    {"rollout", INVAR_OPTION_INT, &asked.rollout, "N",
     "use the random draws of this rollout (default: the checkpoint's next rollout, or 0)", 0,
     UINT32_MAX},
    INVAR_OPTION_JSON(&asked.json),
    INVAR_OPTION_EXACT(&asked.exact),
    INVAR_RECIPE_FLAGS_END};

static int cmd_eval(int argc, char **argv)
{
    invar_config config = {.recipe = NULL};
    const char *path = NULL;
    invar_status status = invar_recipe_flags_recipe(&config, &path, options, &argc, argv);

    if (status == INVAR_OK)
        status = invar_weights_choose(&config);
    if (status == INVAR_OK)
        status = run_eval(&asked, &config);
    if (status == INVAR_OK)
        invar_weights_hint(&config, path);
    invar_recipe_free(config.recipe);
    return invar_exit(status);
}

const invar_cli_command invar_cmd_eval = {
    .name = "eval",
    .summary = "evaluate weights on the evaluation sets of a recipe",
    .run = cmd_eval,
    .about =
        "Samples and scores every data set of the recipe's eval-prompt-data. The results equal\n"
        "those that training records for the same weights.\n"
        "\n"
        "The weights come from --load DIR; otherwise from the newest checkpoint of --run DIR;\n"
        "otherwise they are the initial ones, also with an empty --load=. --ckpt-step picks\n"
        "another checkpoint. Recipe keys are options here too.\n",
    .options = options,
    .result = RESULT,
    .arguments = "RECIPE [--run DIR | --load DIR] [--key value ...]"};
