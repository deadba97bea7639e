/*
 * compare.c - tests that each query that compares two runs finds their first difference.
 *
 * Control: two runs with the same content, one of them interrupted, have no difference. The last
 * test fails if a query that compares runs has no test.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/ledger/query/query_fixture.h"

static void test_ledger_compare__first_divergence(void **state)
{
    static const char columns[] = "compared_steps differing_steps first_step same_batch same_rng";
    const char *path = diverged;

    (void)state;
    expect_fault(path, "first-divergence", "a=1 b=2", columns, "60|23|37|1|1\n");
    expect_control(healthy, "first-divergence", "a=1 b=2", columns, "60|0|-|-|-\n");
    expect_control(healthy, "first-divergence", "a=1 b=3", columns, "60|0|-|-|-\n");
    expect_rows(healthy, "first-divergence", "a=1 b=9", columns, "0|0|-|-|-\n");
}

static void test_ledger_compare__first_divergent_point(void **state)
{
    static const char columns[] = "step point phase layer op kind level inputs inputs_equal";
    const char *path = diverged;

    (void)state;
    expect_fault(path, "first-divergent-point", "a=1 b=2 count=2", columns,
                 "37|layer.1.mlp.out|forward|1|swiglu|act|0|1|1\n"
                 "37|head.logits|forward|-|linear|logits|0|1|0\n");
    expect_control(healthy, "first-divergent-point", "a=1 b=3", columns, "");
    // Points are matched by name, so a manifest with one more point is not a difference.
    path = ledger_with_two_runs("finer.db", &(invar_test_ledger){.steps = STEPS, .finer = true});
    expect_control(path, "first-divergent-point", "a=1 b=2", columns, "");
    raw_tamper(path, "UPDATE step SET root = zeroblob(16) WHERE run = 2");
    expect_fault(path, "first-divergence", "a=1 b=2", "differing_steps first_step", "60|0\n");
    expect_control(path, "first-divergent-point", "a=1 b=2", columns, "");
    path = ledger_with_two_runs("finer_diverged.db",
                                &(invar_test_ledger){.steps = STEPS,
                                                     .finer = true,
                                                     .faults = {{INVAR_TEST_DIVERGES, .step = 20,
                                                                 .point = "layer.0.attn.out"}}});
    expect_fault(path, "first-divergent-point", "a=1 b=2 count=1", columns,
                 "20|layer.0.attn.out|forward|0|attention|act|1|1|1\n");
    // The finer run has an input that the other run lacks, so the inputs are not known to be equal.
    expect_fault(path, "first-divergent-point", "a=2 b=1 count=1", columns,
                 "20|layer.0.attn.out|forward|0|attention|act|1|2|0\n");
}

static void test_ledger_compare__divergence_spread(void **state)
{
    static const char columns[] = "step phase differing compared first_ord";

    (void)state;
    expect_fault(diverged, "divergence-spread", "a=1 b=2 steps=2", columns,
                 "37|rollout|0|2|-\n37|forward|3|7|6\n37|backward|3|3|9\n37|optimizer|3|3|12\n"
                 "38|rollout|2|2|0\n38|forward|7|7|2\n38|backward|3|3|9\n38|optimizer|3|3|12\n");
    expect_control(healthy, "divergence-spread", "a=1 b=2", columns, "");
}

static void test_ledger_compare__metric_divergence(void **state)
{
    static const char columns[] = "first_step metric differing_steps";

    (void)state;
    expect_fault(
        diverged, "metric-divergence", "a=1 b=2", columns,
        "37|train/entropy_loss|23\n37|train/grad_norm|23\n37|train/kl_loss|23\n"
        "37|train/loss|23\n37|train/pg_clipfrac|23\n37|train/pg_loss|23\n37|train/ppo_kl|23\n"
        "38|rollout/entropy|22\n38|rollout/log_probs|22\n");
    expect_control(healthy, "metric-divergence", "a=1 b=3", columns, "");
}

static void test_ledger_compare__run_diff(void **state)
{
    static const char columns[] = "scope key value_a value_b";
    const invar_ledger_fact facts[] = {{"env", "NCCL_ALGO", "Ring"}};
    const char *path = ledger_with_two_runs(
        "run_diff.db", &(invar_test_ledger){.steps = 1,
                                            .seed = 7,
                                            .facts = facts,
                                            .n_facts = 1,
                                            .faults = {{.kind = INVAR_TEST_DIRTY}}});

    (void)state;
    expect_fault(path, "run-diff", "a=1 b=2", columns,
                 "identity|seed|0|7\n"
                 "build|diff|-|" DIFF "\n"
                 "build|dirty|clean|modified\n"
                 "env|NCCL_ALGO|-|Ring\n");
    expect_control(healthy, "run-diff", "a=1 b=3", columns, "");
}

static void test_ledger_compare__reply_drift(void **state)
{
    static const char columns[] = "step plugin call bytes_a bytes_b";
    const char *path = ledger_with_two_runs(
        "reply.db",
        &(invar_test_ledger){.steps = STEPS, .faults = {{INVAR_TEST_REPLY, .step = 21}}});

    (void)state;
    expect_fault(path, "reply-drift", "a=1 b=2", columns, "21|reward|0|14|14\n");
    expect_control(healthy, "reply-drift", "a=1 b=3", columns, "");
}

static void test_ledger_compare__each_has_a_test_and_a_control(void **state)
{
    (void)state;
    assert_all_tested(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_compare__first_divergence),
        cmocka_unit_test(test_ledger_compare__first_divergent_point),
        cmocka_unit_test(test_ledger_compare__divergence_spread),
        cmocka_unit_test(test_ledger_compare__metric_divergence),
        cmocka_unit_test(test_ledger_compare__run_diff),
        cmocka_unit_test(test_ledger_compare__reply_drift),
        cmocka_unit_test(test_ledger_compare__each_has_a_test_and_a_control),
    };

    return cmocka_run_group_tests(tests, setup_ledgers, raw_teardown);
}
