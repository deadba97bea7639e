/*
 * series.c - ledgers of several runs for tests: commits of a CI case, both sides of an A/B test.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "tests/ledger.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

invar_status invar_test_ledger_ci(const char *path, int64_t n_steps, bool changes)
{
    for (int i = 7; i >= 0;
         i--) { // newest first, so that run numbers and commits have opposite orders
        char name[8], seconds[24], subject[32];
        const invar_ledger_fact facts[] = {{"ci", "case", "tiny"},
                                           {"build", "commit", name},
                                           {"build", "commit_time", seconds},
                                           {"build", "subject", subject}};
        invar_test_ledger spec = {
            .steps = n_steps, .name = name, .kind = "ci", .facts = facts, .n_facts = COUNT(facts)};

        (void)snprintf(name, sizeof name, "c%d", i);
        (void)snprintf(seconds, sizeof seconds, "%d", INVAR_TEST_LEDGER_EPOCH + 60 * i);
        (void)snprintf(subject, sizeof subject, "change %d", i);
        if (changes && i >= 3)
            spec.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 0, "layer.1.mlp.out", 0, 1};
        if (changes && i >= 6)
            spec.faults[1] = (invar_test_fault){INVAR_TEST_DIVERGES, 0, "layer.0.attn.grad", 0, 2};
        INVAR_TRY(invar_test_ledger_add(path, &spec));
    }
    return INVAR_OK;
}

invar_status invar_test_ledger_ab(const char *path, int64_t n_steps, bool effect)
{
    for (int i = 0; i < 8; i++) {
        char name[8], seed[8];
        const char *side = i % 2 ? "b" : "a";
        const invar_ledger_fact facts[] = {
            {"ab", "experiment", "lr"}, {"ab", "seed", seed}, {"ab", "side", side}};
        invar_test_ledger spec = {.steps = n_steps,
                                  .name = name,
                                  .kind = "ab",
                                  .seed = (uint64_t)(i / 2),
                                  .facts = facts,
                                  .n_facts = COUNT(facts)};

        (void)snprintf(name, sizeof name, "%s%d", side, i / 2);
        (void)snprintf(seed, sizeof seed, "%d", i / 2);
        if (effect && i % 2) {
            spec.faults[0] = (invar_test_fault){.kind = INVAR_TEST_REWARD_SHIFT,
                                                .value = i < 6 ? 0.125 : -0.125};
            spec.faults[1] =
                (invar_test_fault){.kind = INVAR_TEST_DIVERGES, .point = "layer.0.attn.weight"};
        }
        INVAR_TRY(invar_test_ledger_add(path, &spec));
    }
    return INVAR_OK;
}
