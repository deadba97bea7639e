/*
 * corrected.c - compares the content of repeated steps row by row.
 *
 * The rows of both executions become texts with a kind and a key, and are joined by these.
 * Differences that the changelog of 0.2.0 lists are excused, only in runs of the kind that it
 * lists. A shortened copy may lack rows of the old execution, which cannot be compared.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/replay/corrected.h"

#include <stdio.h>
#include <string.h>

#include "engine/config/config.h"
#include "engine/rl/estimator.h"

#include "base/invar_banned.h"

#define ROWS_OF(table)                                                                             \
    " FROM pair p JOIN " table " x ON x.run = :run AND x.step = p.step AND x.seg IN (p.was, "      \
    "p.now) "
#define NAMED "JOIN series s ON s.series = x.series "

/* Steps with equal bits and different content, and their two segments. */
#define PAIR                                                                                       \
    "pair AS (SELECT n.step, o.seg AS was, n.seg AS now, EXISTS (SELECT 1 FROM pruned q "          \
    "WHERE q.run = o.run AND q.entry = o.entry) AS cut FROM step n JOIN step o ON o.run = n.run "  \
    "AND o.step = n.step AND o.seg = (SELECT max(p.seg) FROM step p WHERE p.run = n.run AND "      \
    "p.step = n.step AND p.seg < n.seg) WHERE n.run = :run AND n.seg = "                           \
    "(SELECT max(seg) FROM segment WHERE run = :run) AND n.root = o.root AND n.chain = o.chain "   \
    "AND n.content <> o.content AND " INVAR_CORRECTED_OLD ")"

/* Values of one column of samples; NULL if absent. */
#define OF_SAMPLE(column)                                                                          \
    "UNION ALL SELECT p.step, x.seg, '" column " of sample', x.idx, CASE WHEN x." column           \
    " IS NOT NULL THEN x." column "_bits END" ROWS_OF("sample")

/* All rows that the content hash covers; `value` of an absent number of a sample is NULL. */
#define CONTENT                                                                                    \
    "content AS (SELECT p.step, x.seg, 'the batch' AS kind, '' AS key, "                           \
    "x.weights || ' ' || hex(x.batch) || hex(x.rng) AS value" ROWS_OF(                             \
        "step") "UNION ALL SELECT p.step, x.seg, 'metric', s.name, x.value_bits" ROWS_OF("metric") \
        NAMED                                                                                      \
        "UNION ALL SELECT p.step, x.seg, 'sample', x.idx, x.prompt || hex(x.prompt_hash) || "      \
        "x.rng || "                                                                                \
        "' ' || x.weights_first || ' ' || x.weights_last || hex(x.weights_hash) || "               \
        "x.prompt_tokens "                                                                         \
        "|| ' ' || x.tokens || hex(x.token_hash) || hex(x.rollout_logp) || hex(x.train_logp) || "  \
        "x.finish" ROWS_OF("sample") OF_SAMPLE("reward") OF_SAMPLE(                                \
            "advantage") "UNION ALL SELECT p.step, x.seg, 'diff of sample', x.idx, CASE WHEN "     \
                         "x.diff "                                                                 \
                         "IS NOT NULL OR "                                                         \
                         "x.diff_at <> -1 THEN x.diff_bits || ' ' || x.diff_at END" ROWS_OF(       \
                             "sample") "UNION ALL SELECT p.step, x.seg, 'reply', x.plugin || ' ' " \
                                       "|| "                                                       \
                                       "x.call, "                                                  \
                                       "hex(x.request) || hex(x.data)" ROWS_OF(                    \
                                           "reply") "UNION ALL SELECT p.step, x.seg, 'part of "    \
                                                    "the "                                         \
                                                    "reward of sample', x.idx || ' ' || s.name, "  \
                                                    "x.value_bits" ROWS_OF("reward_part") NAMED    \
        ")"

/* `found`: the changelog lists the difference, or the old row was left out of the copy. */
static const char sql[] =
    "WITH " PAIR ", " CONTENT ", other AS (SELECT p.step, p.cut, c.kind, c.key, "
    "max(CASE WHEN c.seg = p.was THEN c.value END) AS old, "
    "max(CASE WHEN c.seg = p.now THEN c.value END) AS new "
    "FROM pair p JOIN content c ON c.step = p.step GROUP BY p.step, c.kind, c.key), "
    "judged AS (SELECT step, kind || ' ' || key AS what, coalesce(cut AND old IS NULL OR CASE "
    "WHEN kind = 'diff of sample' THEN new IS NULL AND :absent "
    "WHEN kind = 'reward of sample' THEN new IS NULL AND :unrewarded "
    "WHEN kind = 'advantage of sample' THEN new IS NULL AND :sft "
    "WHEN kind <> 'metric' THEN 0 "
    "WHEN key GLOB 'train/logp_diff_*' OR key = 'rollout/rollout_log_probs' "
    "THEN new IS NULL AND :absent "
    "WHEN key GLOB 'rollout/zero_std/*' OR key GLOB 'passrate/*' OR key = 'rollout/raw_reward' "
    "THEN new IS NULL AND :unrewarded "
    "WHEN key = 'rollout/advantages' THEN new IS NULL AND :sft "
    "WHEN key = 'rollout/dynamic_filter/dropped' THEN new IS NULL AND :sft OR :groups "
    "WHEN key GLOB 'rollout/staleness/*' THEN old IS NOT NULL AND new IS NOT NULL AND :versions "
    "END, 0) AS found FROM other WHERE old IS NOT new) "
    "SELECT p.step, (SELECT min(what) FROM judged j WHERE j.step = p.step AND NOT j.found), "
    "p.cut OR EXISTS (SELECT 1 FROM judged j WHERE j.step = p.step) FROM pair p ORDER BY p.step";

typedef struct content_search {
    int64_t step;
    char *what;
} content_search;

static invar_status read_step(void *payload, const char *const *columns,
                              const invar_ledger_value *values, int count)
{
    content_search *s = payload;
    bool row;

    (void)columns;
    if (!values || s->step >= 0)
        return INVAR_OK;
    INVAR_CHECK(count == 3);
    row = values[1].type == INVAR_LEDGER_TYPE_TEXT;
    if (!row && values[2].integer)
        return INVAR_OK;
    s->step = values[0].integer;
    if (row)
        (void)snprintf(s->what, INVAR_CORRECTED_SIZE, "%.*s", (int)values[1].bytes,
                       (const char *)values[1].data);
    else
        (void)snprintf(s->what, INVAR_CORRECTED_SIZE, "content hash, but no row");
    return INVAR_OK;
}

static invar_ledger_argument bool_argument(const char *name, bool value)
{
    return (invar_ledger_argument){name, {.type = INVAR_LEDGER_TYPE_INT, .integer = value}};
}

invar_status invar_corrected_check(int64_t *step_out, char what[INVAR_CORRECTED_SIZE],
                                   invar_ledger *ledger, int64_t run,
                                   const invar_recorded_keys *keys)
{
    const bool sft = strcmp(invar_recorded_keys_get(keys, INVAR_KEY_LOSS_TYPE), "sft_loss") == 0;
    const bool loads = invar_recorded_keys_get(keys, INVAR_KEY_LOAD_DEBUG_ROLLOUT_DATA)[0];
    const bool clock =
        strcmp(invar_recorded_keys_get(keys, INVAR_KEY_ROLLOUT_SCHEDULE), "recorded") == 0;
    const bool filters = keys->value[INVAR_KEY_DYNAMIC_SAMPLING_FILTER_PATH] ||
                         keys->value[INVAR_KEY_ROLLOUT_SAMPLE_FILTER_PATH];
    const bool surplus = keys->value[INVAR_KEY_OVER_SAMPLING_BATCH_SIZE] ||
                         keys->value[INVAR_KEY_OVER_SAMPLING_KEEP_SURPLUS];
    invar_config config;
    content_search s = {-1, what};
    invar_status status;

    INVAR_TRY(invar_recorded_keys_to_config(&config, keys));
    const bool judged = invar_estimator_traits_of(config.advantage_estimator)->needs_reward;
    const invar_ledger_argument arguments[] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = run}},
        bool_argument("sft", sft),
        bool_argument("unrewarded", sft || !judged),
        bool_argument("absent", sft || loads),
        bool_argument("groups",
                      loads || (filters && surplus) || keys->value[INVAR_KEY_BUFFER_FILTER_PATH]),
        bool_argument("versions", clock && invar_config_steps_per_rollout(&config) > 1)};
    invar_recipe_free(config.recipe);
    status = invar_ledger_select(
        ledger, &(invar_ledger_select_request){.sql = sql,
                                               .arguments = arguments,
                                               .n_arguments = sizeof arguments / sizeof *arguments,
                                               .row = read_step,
                                               .payload = &s});
    *step_out = s.step;
    return status;
}
