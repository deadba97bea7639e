/*
 * series.c - tests of the metric series in a report page.
 *
 * The bits of each number must equal those that were recorded, NaN payloads included. Thinned
 * series keep first, last, extreme and non-finite values. Repeated steps show the newest segment.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/ledger/view/report/page.h"

static json_t *series_of(const page *p, size_t run, const char *name)
{
    json_t *list = json_object_get(json_array_get(at(p, "runs"), run), "series"), *series;
    size_t i;

    json_array_foreach(list, i, series)
    {
        if (strcmp(json_string_value(json_object_get(series, "name")), name) == 0)
            return series;
    }
    fail_msg("run %zu has no series %s", run, name);
    return NULL;
}

/* Returns the bits of a series at a step; *found_out is false if it has no value there. */
static uint64_t bits_at(bool *found_out, const json_t *series, int64_t step)
{
    const char *bits = json_string_value(json_object_get(series, "bits"));
    json_t *deltas = json_object_get(series, "at"), *delta;
    int64_t position = 0;
    size_t i;

    json_array_foreach(deltas, i, delta)
    {
        position += json_integer_value(delta);
        if (position == step) {
            char digits[17];
            (void)snprintf(digits, sizeof digits, "%.16s", bits + 16 * i);
            *found_out = true;
            return strtoull(digits, NULL, 16);
        }
    }
    *found_out = false;
    return 0;
}

static void assert_bits_at(const json_t *series, int64_t step, uint64_t expected)
{
    bool found;
    uint64_t bits = bits_at(&found, series, step);

    if (!found || bits != expected)
        fail_msg("step %" PRId64 ": %016" PRIx64 ", expected %016" PRIx64 "%s", step, bits,
                 expected, found ? "" : "; there is none");
}

enum { LONG = 5000, HIGH_AT = 1234, LOW_AT = 2718, NAN_AT = 3141 };

static double long_value(int64_t step)
{
    if (step == HIGH_AT || step == LOW_AT)
        return step == HIGH_AT ? 50 : -50;
    if (step == 0 || step == LONG - 1)
        return 0.5; // first and last value, not extremes
    return step == NAN_AT ? (double)NAN : (double)(step * 7919 % 1000) / 1000;
}

static int make_series(void **state)
{
    assert_int_equal(make_ledgers(state), 0);
    write_curve("long.db", "long", LONG, long_value);
    return 0;
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void test_ledger_report__keeps_every_bit(void **state)
{
    page p = page_of("odd.db", 1);
    json_t *series = series_of(&p, 0, "train/x");

    (void)state;
    for (int64_t step = 0; step < 8; step++)
        assert_bits_at(series, step, bits_of(special_value(step)));
    assert_int_equal(number_in(series, "count"), 8);
    assert_int_equal(number_in(series, "odd"), 3);
    page_release(&p);
}

static void test_ledger_report__thinning_keeps_extremes(void **state)
{
    page p = page_of("long.db", 1);
    json_t *series = series_of(&p, 0, "train/x");
    size_t points = json_array_size(json_object_get(series, "at"));

    (void)state;
    assert_int_equal(number_in(series, "count"), LONG);
    assert_int_equal(number_in(series, "odd"), 1);
    assert_true(points <= INVAR_REPORT_POINTS);
    assert_true(points > INVAR_REPORT_POINTS / 2);
    assert_int_equal(strlen(json_string_value(json_object_get(series, "bits"))), 16 * points);
    const int64_t kept[] = {0, HIGH_AT, LOW_AT, NAN_AT, LONG - 1};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        assert_bits_at(series, kept[i], bits_of(long_value(kept[i])));
    for (int64_t step = 0; step < LONG; step++) { // kept values are unchanged
        bool found;
        uint64_t bits = bits_at(&found, series, step);
        assert_true(!found || bits == bits_of(long_value(step)));
    }
    page_release(&p);
}

static void test_ledger_report__all_kinds_of_series(void **state)
{
    page p = page_of("runs.db", 1);
    static const struct {
        const char *name, *kind;
        int64_t count;
    } expected[] = {{"rollout/raw_reward", "metric", 40},
                    {"eval/gsm8k/reward", "evaluation", 4},
                    {"time/rollout", "time", 40}};

    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        json_t *series = series_of(&p, 0, expected[i].name);
        assert_string_equal(json_string_value(json_object_get(series, "kind")), expected[i].kind);
        assert_int_equal(number_in(series, "count"), expected[i].count);
        assert_int_equal(json_array_size(json_object_get(series, "at")), expected[i].count);
    }
    page_release(&p);
}

/* Steps 2 and 3 are executed twice with other metrics; the page shows the second execution. */
static void test_ledger_report__newest_segment_counts(void **state)
{
    invar_ledger *ledger = begin_run("twice.db", "twice");
    invar_digest chain;
    int64_t step;

    (void)state;
    append_value(ledger, 0, 0);
    append_value(ledger, 1, 1);
    assert_ok(invar_ledger_chain(&step, &chain, ledger));
    append_value(ledger, 2, 2);
    append_value(ledger, 3, 3);
    assert_ok(invar_ledger_resume(ledger, NULL, 1, &chain, &no_provenance));
    define(ledger, "p");
    append_value(ledger, 2, 102);
    append_value(ledger, 3, 103);
    append_value(ledger, 4, 104);
    invar_ledger_close(ledger);
    page p = page_of("twice.db", 1);
    json_t *series = series_of(&p, 0, "train/x");
    assert_int_equal(number_in(series, "count"), 5);
    for (int64_t i = 0; i < 5; i++)
        assert_bits_at(series, i, bits_of((double)(i < 2 ? i : 100 + i)));
    assert_number(&p, "runs/0/again/steps", 2);
    assert_number(&p, "runs/0/again/differ", 0); // points are equal, only metrics differ
    assert_number(&p, "runs/0/again/other", 2);
    assert_number(&p, "runs/0/again/first_other", 2);
    page_release(&p);
}

/* SFT runs of version 0.1.0 recorded zeros as rewards and log-prob differences; they are hidden. */
static void test_ledger_report__sft_run_shows_no_reward_and_no_comparison(void **state)
{
    static const invar_ledger_metric metrics[] = {{"rollout/raw_reward", 0.0},
                                                  {"rollout/zero_std/count", 2.0},
                                                  {"train/logp_diff_max", 0.0},
                                                  {"train/logp_diff_p99", 0.0},
                                                  {"train/loss", 2.5}};
    const invar_ledger_step step = {
        .digests = &(invar_digest){{1}}, .metrics = metrics, .n_metrics = 5};
    invar_ledger_pair losses[] = {{"loss-type", "sft_loss"}, {"loss-type", "policy_loss"}};
    static const char *const files[] = {"sft.db", "policy.db"};
    static const size_t shown[] = {1, 5};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        invar_ledger *ledger = begin_run_as(files[i], "run", losses[i]);
        assert_ok(invar_ledger_append(ledger, &step));
        invar_ledger_close(ledger);
        page p = page_of(files[i], 1);
        assert_int_equal(json_array_size(at(&p, "runs/0/series")), shown[i]);
        (void)series_of(&p, 0, "train/loss");
        page_release(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_report__keeps_every_bit),
        cmocka_unit_test(test_ledger_report__thinning_keeps_extremes),
        cmocka_unit_test(test_ledger_report__all_kinds_of_series),
        cmocka_unit_test(test_ledger_report__newest_segment_counts),
        cmocka_unit_test(test_ledger_report__sft_run_shows_no_reward_and_no_comparison),
    };

    return cmocka_run_group_tests(tests, make_series, NULL);
}
