/*
 * run.h - complete runs of a tiny model on a built-in task, for tests.
 *
 * The recipe of a run is run_tiny, overridden by lists of keys and values. Two runs are compared
 * by the digests in their ledgers (run_digests, run_same).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_RUN_H
#define INVAR_TESTS_RUN_H

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/config/config.h"
#include "engine/rl/sample.h"
#include "engine/run/train.h"
#include "tests/no_sync.h"
#include "tests/support.h"
#include "tests/unit/engine/config/config_of.h"

typedef struct run_pair {
    const char *key, *value;
} run_pair;

/*
 * Two rollouts of two prompts with two samples each; a model 16 wide with one layer and one head.
 */
static const run_pair run_tiny[] = {{"num-layers", "1"},
                                    {"hidden-size", "16"},
                                    {"num-attention-heads", "1"},
                                    {"ffn-hidden-size", "16"},
                                    {"max-position-embeddings", "16"},
                                    {"prompt-data", "task:max"},
                                    {"task-size", "8"},
                                    {"num-rollout", "2"},
                                    {"rollout-batch-size", "2"},
                                    {"n-samples-per-prompt", "2"},
                                    {"rollout-max-response-len", "2"},
                                    {"rm-type", "overlap"},
                                    {"numerics", "ieee"},
                                    {NULL, NULL}};

static inline bool run_has(const run_pair *pairs, const char *key)
{
    for (; pairs && pairs->key; pairs++)
        if (strcmp(pairs->key, key) == 0)
            return true;
    return false;
}

/*
 * Returns the checked recipe of a run in `folder`: run_tiny, overridden by `own`, then by `more`,
 * which may be NULL.
 */
static inline invar_recipe *run_recipe(const char *folder, const run_pair *own,
                                       const run_pair *more)
{
    const run_pair *const layers[] = {run_tiny, own, more};
    invar_recipe *recipe = NULL;

    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    assert_ok(invar_recipe_set(recipe, "run", folder, "test"));
    for (int i = 0; i < 3; i++)
        for (const run_pair *p = layers[i]; p && p->key; p++)
            if (!run_has(i < 1 ? own : NULL, p->key) && !run_has(i < 2 ? more : NULL, p->key))
                assert_ok(invar_recipe_set(recipe, p->key, p->value, "test"));
    assert_ok(invar_config_check(config_of(recipe)));
    return recipe;
}

static inline invar_status run_train(invar_recipe *recipe)
{
    invar_train_summary summary;

    return invar_train(&summary, config_of(recipe), &(invar_train_options){.until = -1});
}

/* Digests that identify the steps of a run and everything that it computed. */
typedef struct run_digests {
    int64_t last;
    invar_digest identity, chain, content;
} run_digests;

/*
 * Reads the digests from a ledger and verifies it. Returns false if there is no ledger yet, or one
 * without a run; SQLite first creates an empty file.
 */
static inline bool run_read_digests(run_digests *out, const char *folder)
{
    invar_ledger_summary summary;
    invar_ledger_verify_result verdict;
    invar_ledger *ledger = NULL;
    struct stat file;
    char path[600];
    bool found;

    (void)snprintf(path, sizeof path, "%s/ledger.db", folder);
    if (stat(path, &file) != 0 || file.st_size == 0)
        return false;
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_verify(&verdict, ledger, NULL, NULL));
    assert_int_equal(verdict.problems, 0);
    found = invar_ledger_find(&summary, ledger, NULL) == INVAR_OK;
    if (found) {
        *out = (run_digests){.last = summary.last_step, .identity = summary.identity};
        assert_ok(invar_ledger_content_hash(&out->content, ledger, summary.run));
        if (summary.last_step >= 0)
            assert_ok(invar_ledger_chain_at(&out->chain, ledger, summary.run, summary.last_step));
    }
    invar_ledger_close(ledger);
    invar_error_clear();
    return found;
}

/* Returns whether two runs have the same steps, bits and log. */
static inline bool run_same(const run_digests *a, const run_digests *b)
{
    return a->last == b->last && invar_digest_equal(&a->chain, &b->chain) &&
           invar_digest_equal(&a->content, &b->content);
}

/* ---- runs below a folder of the test --------------------------------------------------------- */

static char run_base[256];

/* Makes the folder of the test; `path` begins with INVAR_TEST_WORK. */
static inline int run_setup(const char *path)
{
    (void)snprintf(run_base, sizeof run_base, "%s.%ld", path, (long)getpid());
    return invar_held_folder_make(run_base) != INVAR_OK;
}

static inline int run_teardown(void **state)
{
    (void)state;
    return invar_held_folder_remove(run_base) != INVAR_OK;
}

/* Returns a path below the folder of the test; the last 128 returned paths are valid. */
static inline const char *run_path(const char *name)
{
    static char paths[128][400];
    static int next;
    char *path = paths[next++ % 128];

    (void)snprintf(path, sizeof paths[0], "%s/%s", run_base, name);
    return path;
}

static inline run_digests run_digests_of(const char *name)
{
    run_digests memory;

    assert_true(run_read_digests(&memory, run_path(name)));
    return memory;
}

/* Trains the run `name` with the pairs of both lists; b overrides a and may be NULL. */
static inline invar_status run_train_pairs(const char *name, const run_pair *a, const run_pair *b)
{
    invar_recipe *recipe = run_recipe(run_path(name), a, b);
    invar_status status = run_train(recipe);

    invar_recipe_free(recipe);
    return status;
}

static inline run_digests run_train_ok(const char *name, const run_pair *a, const run_pair *b)
{
    assert_ok(run_train_pairs(name, a, b));
    return run_digests_of(name);
}

static inline void run_select(const char *name, const char *sql, invar_ledger_row_fn row,
                              void *payload)
{
    invar_ledger_select_request request = {.sql = sql, .row = row, .payload = payload};
    invar_ledger *ledger = NULL;
    char path[500];

    (void)snprintf(path, sizeof path, "%s/ledger.db", run_path(name));
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_select(ledger, &request));
    invar_ledger_close(ledger);
}

static inline invar_status run_on_number(void *payload, const char *const *columns,
                                         const invar_ledger_value *values, int count)
{
    (void)columns;
    if (!values)
        return INVAR_OK;
    assert_int_equal(count, 1);
    *(double *)payload =
        values[0].type == INVAR_LEDGER_TYPE_INT ? (double)values[0].integer : values[0].real;
    return INVAR_OK;
}

/* Returns the first number of the last row. */
static inline double run_query_number(const char *name, const char *sql)
{
    double number = -1.0;

    run_select(name, sql, run_on_number, &number);
    return number;
}

typedef struct run_lengths_of {
    invar_rl_sample *samples;
    int64_t per_step;
} run_lengths_of;

static inline invar_status run_on_lengths(void *payload, const char *const *columns,
                                          const invar_ledger_value *values, int count)
{
    const run_lengths_of *to = payload;

    (void)columns;
    if (!values)
        return INVAR_OK;
    assert_int_equal(count, 4);
    assert_in_range(values[1].integer, 0, to->per_step - 1);
    to->samples[values[0].integer * to->per_step + values[1].integer] =
        (invar_rl_sample){.n_tokens = values[2].integer, .prompt_tokens = values[3].integer};
    return INVAR_OK;
}

/* Reads the lengths of the run's samples into out (steps, per_step). */
static inline void run_lengths(invar_rl_sample *out, const char *name, int64_t per_step)
{
    run_lengths_of to = {out, per_step};

    run_select(name, "SELECT step, idx, tokens, prompt_tokens FROM samples", run_on_lengths, &to);
}

#endif
