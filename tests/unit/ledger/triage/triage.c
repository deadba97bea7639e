/*
 * triage.c - tests that each triage rule finds its faults, at their step, and no others.
 *
 * Each case is a healthy run with up to three of its metric curves replaced. Controls: the healthy
 * run, and curves that resemble a fault but are explained by the recipe or a good reward. The last
 * test fails if a rule has found fewer than two faults.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/triage/triage.h"

#include <math.h>

#include "tests/unit/ledger/raw_ledger.h"

/* ---- a run made of curves -------------------------------------------------------------------- */

enum { STEPS = 60, GROUPS = 4 };

typedef double curve(int64_t step);

typedef enum series {
    REWARD,
    ENTROPY,
    GRAD_NORM,
    TOKENS,
    TRUNCATED,
    ZERO_STD,
    LOGP,
    REF_LOGP,
    KL,
    CLIPPED,
    ESS,
    N_METRICS,
    GAP = N_METRICS, /* gap between the log-probs of a sample */
    ROLLOUT,         /* duration of the rollout, in seconds */
    NANS,            /* NaN of a point */
    N_SERIES
} series;

static const char *const metric_names[N_METRICS] = {
    "rollout/raw_reward",        "train/entropy",           "train/grad_norm",
    "rollout/response_len/mean", "rollout/truncated_ratio", "rollout/zero_std/count",
    "rollout/log_probs",         "rollout/ref_log_probs",   "train/train_rollout_kl",
    "train/pg_clipfrac",         "train/ess_ratio"};

/* Deterministic noise in [-1, 1), part of most curves. */
static double noise(int64_t step)
{
    return (double)(step * 7919 % 64) / 32 - 1;
}

static double rising_reward(int64_t step)
{
    return 0.1 + 0.8 * (double)step / STEPS + 0.05 * noise(step);
}

static double falling_entropy(int64_t step)
{
    return 2.0 * exp2(-(double)step / 8); // a policy becomes certain while its reward rises
}

static double healthy_norm(int64_t step)
{
    return 1.0 + 0.5 * noise(step);
}

static double short_responses(int64_t step)
{
    return 20 + 3 * noise(step);
}

static double small_ratio(int64_t step)
{
    return 0.1 + 0.05 * noise(step);
}

static double constant_0(int64_t step)
{
    (void)step;
    return 0;
}

static double constant_1(int64_t step)
{
    (void)step;
    return 1;
}

static double typical_logp(int64_t step)
{
    return -0.7 + 0.01 * noise(step);
}

static curve *const healthy[N_SERIES] = {
    [REWARD] = rising_reward,   [ENTROPY] = falling_entropy, [GRAD_NORM] = healthy_norm,
    [TOKENS] = short_responses, [TRUNCATED] = small_ratio,   [ZERO_STD] = constant_1,
    [LOGP] = typical_logp,      [REF_LOGP] = typical_logp,   [KL] = constant_0,
    [CLIPPED] = small_ratio,    [ESS] = constant_1,          [GAP] = constant_0,
    [ROLLOUT] = constant_1,     [NANS] = constant_0,
};

/* Changes to the healthy run; none if zeroed. */
typedef struct change {
    series changed[3];
    curve *replacement[3];   /* (3) curve of the series changed[i]; NULL ends the list */
    const char *key, *value; /* additional key of the identity; NULL if there is none */
    const char *fact;        /* free key that is set; NULL if there is none */
} change;

static double value_of(const change *c, series which, int64_t step)
{
    for (int i = 0; i < 3; i++)
        if (c->replacement[i] && c->changed[i] == which)
            return c->replacement[i](step);
    return healthy[which](step);
}

static invar_digest digest_of(int64_t number)
{
    invar_digest out;

    invar_hash_bytes(&out, &number, sizeof number);
    return out;
}

static void append_step(invar_ledger *ledger, const change *c, bool sampled, int64_t step)
{
    double gap = value_of(c, GAP, step), nans = value_of(c, NANS, step);
    const invar_digest same = digest_of(step), other = digest_of(step + 1000);
    const invar_ledger_timing timings[] = {
        {"rollout", step, (int64_t)(1e9 * value_of(c, ROLLOUT, step))},
        {"train", step, 1000000000}};
    const invar_ledger_stat stat = {.nans = (int64_t)nans};
    invar_ledger_metric metrics[N_METRICS];
    invar_ledger_sample samples[2];

    for (int i = 0; i < N_METRICS; i++)
        metrics[i] = (invar_ledger_metric){metric_names[i], value_of(c, (series)i, step)};
    for (int i = 0; i < 2; i++)
        samples[i] = (invar_ledger_sample){.rng = "0/0",
                                           .rollout_logp = same,
                                           // differs even without a gap: digests cover inserted
                                           // tokens
                                           .train_logp = i == 0 ? other : same,
                                           .reward = i,
                                           .logp_diff_max = i == 0 ? gap : 0,
                                           .logp_diff_position = i == 0 && gap > 0 ? 3 : -1,
                                           .finish_reason = "stop"};
    assert_ok(invar_ledger_append(ledger, &(invar_ledger_step){.step = step,
                                                               .weights_version = step,
                                                               .digests = &same,
                                                               .metrics = metrics,
                                                               .n_metrics = N_METRICS,
                                                               .stats = &stat,
                                                               .n_stats = nans > 0,
                                                               .samples = samples,
                                                               .n_samples = sampled ? 2 : 0,
                                                               .timings = timings,
                                                               .n_timings = 2}));
}

/* How a run ends; a zeroed struct is a run that finishes with exit code 0. */
typedef struct run_end {
    int64_t code;        /* exit code */
    const char *reason;  /* NULL for "done" */
    const char *failure; /* message of a failure event at step FROM; NULL if there is none */
    bool resumed;        /* a second segment begins after the first one */
    bool killed;         /* the segment does not finish */
    bool written;        /* a process is writing the run */
} run_end;

#define FROM 30 /* the step at which most faults begin */

static void write_end(invar_ledger *ledger, const run_end *e)
{
    if (e->failure)
        assert_ok(invar_ledger_log_event(
            ledger, &(invar_ledger_event){
                        .step = FROM, .level = "error", .kind = "failure", .message = e->failure}));
    if (!e->killed)
        assert_ok(invar_ledger_finish(ledger, e->code, e->reason ? e->reason : "done"));
    if (e->resumed)
        assert_ok(invar_ledger_resume(ledger, NULL, -1, NULL,
                                      &(invar_ledger_provenance){.no_auto_facts = true}));
}

/* Writes a run. Without `sampled` it has no samples, like the runs of other trainers. */
static void write_run(const char *path, const change *c, bool sampled, const run_end *e)
{
    const invar_ledger_pair identity[] = {{"clip-grad", "1"},
                                          {"rollout-batch-size", "4"},
                                          {"rollout-max-response-len", "128"},
                                          {c->key, c->value}};
    const invar_ledger_fact fact = {"free", c->fact, "somewhere"};
    const int64_t shape[] = {8};
    const invar_ledger_point point = {.name = "layer.0.mlp.out",
                                      .phase = "forward",
                                      .op = "linear",
                                      .kind = "act",
                                      .dtype = "f32",
                                      .shape = shape,
                                      .dims = 1,
                                      .shards = 1};
    invar_ledger *ledger;

    (void)unlink(path);
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_begin(
        ledger,
        &(invar_ledger_run){
            .name = "run",
            .kind = "train",
            .identity = identity,
            .n_identity = c->key ? 4 : 3,
            .circumstances = {.facts = &fact, .n_facts = c->fact ? 1 : 0, .no_auto_facts = true}}));
    assert_ok(invar_ledger_define(ledger, &point, 1));
    for (int64_t step = 0; step < STEPS; step++)
        append_step(ledger, c, sampled, step);
    write_end(ledger, e);
    invar_ledger_close(ledger);
}

/* Asserts that the run has the data of each query that a finding names as its next command. */
static void check_next(const invar_triage *t, invar_ledger *ledger)
{
    static const char begin[] = "ledger query ";
    invar_ledger_argument arguments[INVAR_LEDGER_QUERY_PARAMS] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = 1}}};
    char name[INVAR_LEDGER_QUERY_WORD], why[INVAR_LEDGER_QUERY_LINE];
    invar_ledger_query query;
    bool data;

    for (int i = 0; i < t->count; i++) {
        const char *next = t->found[i].next_command;

        if (strncmp(next, begin, strlen(begin)) != 0)
            continue;
        next += strlen(begin);
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(next, " "), next);
        assert_ok(invar_ledger_query_find(&query, name));
        assert_ok(invar_ledger_query_has_data(&data, why, ledger, &query, arguments));
        if (!data)
            fail_msg("%s: next is %s: %s", t->found[i].rule.name, name, why);
    }
}

static void triage_run_with(invar_triage *out, const change *c, bool sampled, const run_end *e)
{
    const char *path = raw_path("run.db");
    invar_ledger *ledger;

    write_run(path, c, sampled, e);
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    assert_ok(invar_triage_run(out, ledger, 1, e->written));
    check_next(out, ledger);
    invar_ledger_close(ledger);
}

/* ---- curves with faults, and curves that resemble faults ------------------------------------- */

static double higher_logp(int64_t step)
{
    return -0.6 + 0.01 * noise(step);
}

static double logp_of_other_model(int64_t step)
{
    return -2.5 + 0.01 * noise(step);
}

static double very_low_logp(int64_t step)
{
    return -9.0 + 0.01 * noise(step);
}

static double gap_from_30(int64_t step)
{
    return step >= FROM ? 1e-6 : 0;
}

static double gap_once(int64_t step)
{
    return step == FROM ? 0.5 : 0;
}

static double norm_spike(int64_t step)
{
    return step == FROM ? 40 : healthy_norm(step);
}

static double norm_doubled_once(int64_t step)
{
    return step == FROM ? 4 : healthy_norm(step);
}

static double norm_0_from_30(int64_t step)
{
    return step >= FROM ? 0 : healthy_norm(step);
}

static double norm_far_above_clip(int64_t step)
{
    return 30 + noise(step);
}

static double reward_drop(int64_t step)
{
    return step < FROM ? 2 * rising_reward(step) : 0.1 + 0.02 * noise(step);
}

static double reward_decline(int64_t step)
{
    return step < FROM ? 2 * rising_reward(step) : 1.0 - 0.04 * (double)(step - FROM);
}

static double reward_dip(int64_t step)
{
    return rising_reward(step) - (step >= FROM && step < FROM + 3 ? 0.3 : 0);
}

static double reward_0(int64_t step)
{
    (void)step;
    return 0;
}

static double all_groups_0_std(int64_t step)
{
    (void)step;
    return GROUPS;
}

static double all_groups_0_std_from_30(int64_t step)
{
    return step >= FROM ? GROUPS : 1;
}

static double reward_1_from_30(int64_t step)
{
    return step >= FROM ? 1 : rising_reward(step);
}

static double flat_reward(int64_t step)
{
    return 0.3 + 0.02 * noise(step);
}

static double growing_length(int64_t step)
{
    return 20.0 + 2.0 * (double)step;
}

static double growing_truncation(int64_t step)
{
    return (double)step / STEPS;
}

static double shrinking_length(int64_t step)
{
    return step < FROM ? 20 : 3;
}

static double entropy_collapse(int64_t step)
{
    return step < FROM ? 2.0 : 0.01;
}

static double norm_nan_from_30(int64_t step)
{
    return step >= FROM ? NAN : healthy_norm(step);
}

static double norm_infinite_from_30(int64_t step)
{
    return step >= FROM ? -INFINITY : healthy_norm(step);
}

static double three_nans_from_30(int64_t step)
{
    return step >= FROM ? 3 : 0;
}

static double growing_kl(int64_t step)
{
    return 0.02 * (double)step;
}

static double low_ess_from_30(int64_t step)
{
    return step >= FROM ? 0.1 : 1;
}

static double rollout_slow_from_30(int64_t step)
{
    return step >= FROM ? 6 : 1;
}

static double rollout_slow_often(int64_t step)
{
    return step % 20 >= 8 ? 5 : 1;
}

static double rollout_slow_once(int64_t step)
{
    return step == FROM ? 60 : 1;
}

typedef struct fault_case {
    const char *rule;          /* rule that must find it; NULL if no rule may find anything */
    int64_t step;              /* step of the finding; -1 for any */
    const char *expected_text; /* part of the evidence */
    change change;
} fault_case;

static const fault_case fault_cases[] = {
    {"first-step-kl", 0, "must be equal", {{REF_LOGP}, {higher_logp}, NULL, NULL, NULL}},
    {"first-step-kl",
     0,
     "reference -2.",
     {{REF_LOGP}, {logp_of_other_model}, NULL, NULL, "ref-load"}},
    {NULL, 0, NULL, {{REF_LOGP}, {higher_logp}, NULL, NULL, "ref-load"}},

    {"logprob-gap", FROM, "1 of 2 samples", {{GAP}, {gap_from_30}, NULL, NULL, NULL}},
    {"logprob-gap", FROM, "worst by 0.5", {{GAP}, {gap_once}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{GAP}, {gap_once}, "rollout-lag", "2", NULL}},
    {NULL, 0, NULL, {{GAP}, {gap_once}, "rollout-dtype", "fp8", NULL}},

    {"grad-norm", FROM, "it is 40", {{GRAD_NORM}, {norm_spike}, NULL, NULL, NULL}},
    {"grad-norm", 2, "it is 0 for 3", {{GRAD_NORM}, {constant_0}, NULL, NULL, NULL}},
    {"grad-norm",
     FROM + 19,
     "it is 0 for 20",
     {{GRAD_NORM, REWARD, ENTROPY}, {norm_0_from_30, flat_reward, constant_1}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{GRAD_NORM, REWARD}, {norm_0_from_30, reward_1_from_30}, NULL, NULL, NULL}},
    {"grad-norm", 20, "cut down to 1", {{GRAD_NORM}, {norm_far_above_clip}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{GRAD_NORM}, {norm_doubled_once}, NULL, NULL, NULL}},

    {"reward-collapse", -1, "at its best", {{REWARD}, {reward_drop}, NULL, NULL, NULL}},
    {"reward-collapse", -1, "at its best", {{REWARD}, {reward_decline}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{REWARD}, {reward_dip}, NULL, NULL, NULL}},

    {"zero-signal",
     4,
     "each of the 4 groups",
     {{ZERO_STD, REWARD, ENTROPY}, {all_groups_0_std, reward_0, constant_1}, NULL, NULL, NULL}},
    {"zero-signal",
     4,
     "the mean is 1",
     {{ZERO_STD, REWARD, ENTROPY}, {all_groups_0_std, constant_1, constant_1}, NULL, NULL, NULL}},
    {NULL,
     0,
     NULL,
     {{ZERO_STD, REWARD}, {all_groups_0_std_from_30, reward_1_from_30}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{ZERO_STD}, {all_groups_0_std}, "advantage-estimator", "ppo", NULL}},
    {NULL, 0, NULL, {{ZERO_STD}, {all_groups_0_std}, "n-samples-per-prompt", "1", NULL}},
    {NULL,
     0,
     NULL,
     {{ZERO_STD, REWARD}, {all_groups_0_std, reward_0}, "loss-type", "sft_loss", NULL}},
    {NULL, 0, NULL, {{ZERO_STD, REWARD}, {all_groups_0_std, reward_0}, "use-opd", "true", NULL}},

    {"length",
     -1,
     "tokens a response",
     {{TOKENS, TRUNCATED, REWARD},
      {growing_length, growing_truncation, flat_reward},
      NULL,
      NULL,
      NULL}},
    {"length",
     -1,
     "tokens a response, at first 20",
     {{TOKENS, REWARD, ENTROPY}, {shrinking_length, flat_reward, constant_1}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{TOKENS, TRUNCATED}, {growing_length, growing_truncation}, NULL, NULL, NULL}},

    {"template",
     0,
     "is -9",
     {{LOGP, REF_LOGP}, {very_low_logp, very_low_logp}, NULL, NULL, "hf-checkpoint"}},
    {"template", 2, "within 128 tokens", {{TRUNCATED}, {constant_1}, NULL, NULL, "hf-checkpoint"}},
    {NULL,
     0,
     NULL,
     {{LOGP, REF_LOGP, TRUNCATED}, {very_low_logp, very_low_logp, constant_1}, NULL, NULL, NULL}},

    {"entropy-collapse",
     -1,
     "at most it was 2",
     {{ENTROPY, REWARD}, {entropy_collapse, flat_reward}, NULL, NULL, NULL}},
    {"entropy-collapse",
     -1,
     "reward 0.3",
     {{ENTROPY, REWARD}, {falling_entropy, flat_reward}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{ENTROPY}, {entropy_collapse}, NULL, NULL, NULL}},

    {"not-finite",
     FROM,
     "train/grad_norm is NaN",
     {{GRAD_NORM}, {norm_nan_from_30}, NULL, NULL, NULL}},
    {"not-finite",
     FROM,
     "train/grad_norm is infinite",
     {{GRAD_NORM}, {norm_infinite_from_30}, NULL, NULL, NULL}},
    {"not-finite",
     FROM,
     "layer.0.mlp.out has 3 NaN",
     {{NANS}, {three_nans_from_30}, NULL, NULL, NULL}},

    {"off-policy", -1, "KL of rollout", {{KL}, {growing_kl}, "rollout-lag", "2", NULL}},
    {"off-policy", -1, "effective samples", {{ESS}, {low_ess_from_30}, "rollout-lag", "2", NULL}},
    {"off-policy", 4, "clipped tokens 100", {{CLIPPED}, {constant_1}, NULL, NULL, NULL}},

    {"slow-phase",
     FROM + 9,
     "rollout took at least 6",
     {{ROLLOUT}, {rollout_slow_from_30}, NULL, NULL, NULL}},
    {"slow-phase",
     17,
     "rollout took at least 5",
     {{ROLLOUT}, {rollout_slow_often}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{ROLLOUT}, {rollout_slow_once}, NULL, NULL, NULL}},
};

/* ---- tests ----------------------------------------------------------------------------------- */

static const invar_triage_finding *find_rule(const invar_triage *t, const char *rule)
{
    for (int i = 0; i < t->count; i++)
        if (strcmp(t->found[i].rule.name + strlen(INVAR_TRIAGE_PREFIX), rule) == 0)
            return &t->found[i];
    return NULL;
}

/* Number of faults that each rule has found, by the rule's number; and the number of rules. */
static int found[INVAR_TRIAGE_RULES], rules;

static void check_fault_cases(bool sampled, size_t stride)
{
    for (size_t i = 0; i < COUNT(fault_cases); i += stride) {
        const fault_case *p = &fault_cases[i];
        const invar_triage_finding *f;
        static invar_triage t;

        triage_run_with(&t, &p->change, sampled, &(run_end){0});
        rules = t.rules;
        if (!p->rule) {
            if (t.count)
                fail_msg("plant %zu: %s finds %s", i, t.found[0].rule.name, t.found[0].evidence);
            continue;
        }
        f = find_rule(&t, p->rule);
        if (!sampled && strcmp(p->rule, "logprob-gap") == 0) { // the rule reads samples
            assert_null(f);
            continue;
        }
        if (!f)
            fail_msg("plant %zu: %s finds nothing%s", i, p->rule, sampled ? "" : ", unsampled");
        // Without samples a rule only has the noisy mean reward and may need a few more steps.
        if (p->step >= 0 && (sampled ? f->step != p->step : f->step < p->step))
            fail_msg("plant %zu: %s: step %" PRId64 ", not %" PRId64, i, p->rule, f->step, p->step);
        if (!strstr(f->evidence, p->expected_text))
            fail_msg("plant %zu: %s says: %s", i, p->rule, f->evidence);
        found[f->number] += sampled;
    }
}

static void test_triage__plants(void **state)
{
    (void)state;
    check_fault_cases(true, 1);
}

static void test_triage__without_samples(void **state)
{
    (void)state;
    check_fault_cases(false, (size_t)invar_test_count(4, 1));
}

static void test_triage__ends(void **state)
{
    static const struct {
        run_end run_end;
        const char *expected_text; /* evidence of the rule failure; NULL if it finds nothing */
        int64_t step;
        const char *next; /* next command of the rule not-finite; NULL if it finds nothing */
    } end_cases[] = {
        {{.code = 2, .reason = "failure"}, "exit code 2: failure", STEPS, NULL},
        {{.code = 2, .reason = "no", .failure = "the disk is full"},
         "exit code 2: the disk is full",
         FROM,
         NULL},
        {{.code = 2, .reason = "no", .failure = "logits that are not finite"},
         "logits",
         FROM,
         "last-words --run RUN"},
        {{.code = 130, .reason = "interrupted"}, NULL, 0, NULL},
        {{.code = 143, .reason = "stopped"}, NULL, 0, NULL},
        {{.code = 2, .failure = "the disk is full", .resumed = true, .written = true},
         NULL,
         0,
         NULL},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(end_cases); i++) {
        const invar_triage_finding *f, *not_finite;
        static invar_triage t;

        triage_run_with(&t, &(change){.key = NULL}, true, &end_cases[i].run_end);
        f = find_rule(&t, "failure");
        not_finite = find_rule(&t, "not-finite");
        if (!f != !end_cases[i].expected_text || !not_finite != !end_cases[i].next ||
            t.count != (f != NULL) + (not_finite != NULL))
            fail_msg("end %zu: %d findings", i, t.count);
        if (f && (f->step != end_cases[i].step || !strstr(f->evidence, end_cases[i].expected_text)))
            fail_msg("end %zu: step %" PRId64 ", %s", i, f->step, f->evidence);
        if (not_finite)
            assert_non_null(strstr(not_finite->next_command, end_cases[i].next));
        if (f)
            found[f->number]++;
    }
}

/* A run that has not finished is reported as killed, unless a process is writing it. */
static void test_triage__killed(void **state)
{
    static const struct {
        run_end run_end;
        const char *expected_text; /* evidence of the rule killed; NULL if it finds nothing */
    } end_cases[] = {
        {{.killed = true}, "segment 0 has no end: its last step is 59; the run has no checkpoint"},
        {{.resumed = true}, "segment 1 has no end: it has no step; the run has no checkpoint"},
        {{.killed = true, .written = true}, NULL},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(end_cases); i++) {
        const invar_triage_finding *f;
        static invar_triage t;

        triage_run_with(&t, &(change){.key = NULL}, true, &end_cases[i].run_end);
        f = find_rule(&t, "killed");
        if (!f != !end_cases[i].expected_text || t.count != (f != NULL))
            fail_msg("end %zu: %d findings", i, t.count);
        if (f && (strcmp(f->evidence, end_cases[i].expected_text) != 0 || f->step != STEPS - 1))
            fail_msg("end %zu: step %" PRId64 ": %s", i, f->step, f->evidence);
        if (f)
            found[f->number]++;
    }
}

/* Runs last: every rule must have found at least two faults. */
static void test_triage__each_rule(void **state)
{
    (void)state;
    assert_true(rules > 0);
    for (int i = 0; i < rules; i++)
        if (found[i] < 2)
            fail_msg("rule %d is tried with %d faults", i, found[i]);
}

static void test_triage__healthy(void **state)
{
    static invar_triage t;

    (void)state;
    for (int sampled = 0; sampled < 2; sampled++) {
        triage_run_with(&t, &(change){.key = NULL}, sampled, &(run_end){0});
        if (t.count)
            fail_msg("%s finds %s", t.found[0].rule.name, t.found[0].evidence);
        for (int i = 0; i < t.n_idle; i++)
            assert_true(t.idle[i].why[0]);
    }
}

/* Several findings are sorted by step, each with explanation and next command. */
static void test_triage__several(void **state)
{
    static invar_triage t;

    (void)state;
    triage_run_with(&t, &(change){{NANS, GAP}, {three_nans_from_30, gap_from_30}, NULL, NULL, NULL},
                    true, &(run_end){0});
    assert_int_equal(t.count, 2);
    assert_true(t.found[0].step <= t.found[1].step);
    for (int i = 0; i < t.count; i++) {
        assert_true(t.found[i].explanation[0] && t.found[i].next_command[0]);
        assert_int_equal(t.found[i].steps, STEPS - FROM);
    }
    assert_string_equal(find_rule(&t, "logprob-gap")->next_command, "replay RUN --step STEP");
}

/* A run without a step has no finding. */
static void test_triage__empty(void **state)
{
    const char *path = raw_path("empty.db");
    static invar_triage t;
    invar_ledger *ledger;

    (void)state;
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_begin(
        ledger, &(invar_ledger_run){
                    .name = "run", .kind = "train", .circumstances = {.no_auto_facts = true}}));
    assert_ok(invar_triage_run(&t, ledger, 1, true));
    assert_int_equal(t.count, 0);
    invar_ledger_close(ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_triage__plants), cmocka_unit_test(test_triage__without_samples),
        cmocka_unit_test(test_triage__ends),   cmocka_unit_test(test_triage__healthy),
        cmocka_unit_test(test_triage__killed), cmocka_unit_test(test_triage__several),
        cmocka_unit_test(test_triage__empty),  cmocka_unit_test(test_triage__each_rule),
    };

    return cmocka_run_group_tests(tests, raw_setup, raw_teardown);
}
