/*
 * triage.c - each rule finds the faults that it is for, at their step, and nothing in runs that are
 * well or nearly ill.
 *
 * A run is a healthy one, one of whose curves is replaced.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/triage/triage.h"

#include <math.h>

#include "tests/unit/ledger/raw_ledger.h"

/* ---- a run of curves ------------------------------------------------------------------------- */

enum { STEPS = 60, GROUPS = 4 };

typedef double curve(int64_t step);

typedef enum series {
    REWARD,
    ENTROPY,
    GRAD_NORM,
    TOKENS,
    CUT,
    ZERO_STD,
    LOGP,
    REF_LOGP,
    KL,
    CLIPPED,
    ESS,
    N_METRICS,
    GAP = N_METRICS, /* of a sample's log-probs */
    ROLLOUT,         /* seconds */
    NANS,            /* of a point */
    N_SERIES
} series;

static const char *const metric_names[N_METRICS] = {
    "rollout/raw_reward",        "train/entropy",           "train/grad_norm",
    "rollout/response_len/mean", "rollout/truncated_ratio", "rollout/zero_std/count",
    "rollout/log_probs",         "rollout/ref_log_probs",   "train/train_rollout_kl",
    "train/pg_clipfrac",         "train/ess_ratio"};

/* Noise that every run has, in [-1, 1). */
static double noise(int64_t step)
{
    return (double)(step * 7919 % 64) / 32 - 1;
}

static double learns(int64_t step)
{
    return 0.1 + 0.8 * (double)step / STEPS + 0.05 * noise(step);
}

static double narrows(int64_t step)
{
    return 2.0 * exp2(-(double)step / 8); // as a policy does that is sure because it is right
}

static double norm(int64_t step)
{
    return 1.0 + 0.5 * noise(step);
}

static double short_text(int64_t step)
{
    return 20 + 3 * noise(step);
}

static double some(int64_t step)
{
    return 0.1 + 0.05 * noise(step);
}

static double none(int64_t step)
{
    (void)step;
    return 0;
}

static double one(int64_t step)
{
    (void)step;
    return 1;
}

static double likely(int64_t step)
{
    return -0.7 + 0.01 * noise(step);
}

static curve *const healthy[N_SERIES] = {
    [REWARD] = learns, [ENTROPY] = narrows, [GRAD_NORM] = norm, [TOKENS] = short_text,
    [CUT] = some,      [ZERO_STD] = one,    [LOGP] = likely,    [REF_LOGP] = likely,
    [KL] = none,       [CLIPPED] = some,    [ESS] = one,        [GAP] = none,
    [ROLLOUT] = one,   [NANS] = none,
};

/* What a test changes; a zeroed one is a healthy run. */
typedef struct change {
    series at[3];
    curve *to[3];            /* NULL: none any more */
    const char *key, *value; /* of the identity */
    const char *fact;        /* a free key that is set */
} change;

static double value_of(const change *c, series which, int64_t step)
{
    for (int i = 0; i < 3; i++)
        if (c->to[i] && c->at[i] == which)
            return c->to[i](step);
    return healthy[which](step);
}

static invar_digest digest_of(int64_t number)
{
    invar_digest out;

    invar_hash_bytes(&out, &number, sizeof number);
    return out;
}

static void append(invar_ledger *ledger, const change *c, bool sampled, int64_t step)
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
                                           // a token that nobody drew is in the hashes alone
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

/* How a run ends; a zeroed one is done. */
typedef struct end {
    int64_t code;
    const char *reason;
    const char *failure; /* an event of step FROM; NULL: none */
    bool resumed;        /* and goes on */
    bool killed;         /* there is no end */
    bool written;        /* a process writes it */
} end;

#define FROM 30 /* the step at which most faults begin */

static void write_end(invar_ledger *ledger, const end *e)
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

/* As other trainers write them, runs have no samples. */
static void write_run(const char *path, const change *c, bool sampled, const end *e)
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
        append(ledger, c, sampled, step);
    write_end(ledger, e);
    invar_ledger_close(ledger);
}

/* Each finding's next command, where it is a query, has something to look at. */
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

static void look(invar_triage *out, const change *c, bool sampled, const end *e)
{
    const char *path = raw_path("run.db");
    invar_ledger *ledger;

    write_run(path, c, sampled, e);
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    assert_ok(invar_triage_run(out, ledger, 1, e->written));
    check_next(out, ledger);
    invar_ledger_close(ledger);
}

/* ---- curves of runs that are ill, and of such as only look like it --------------------------- */

static double likelier(int64_t step)
{
    return -0.6 + 0.01 * noise(step);
}

static double other_model(int64_t step)
{
    return -2.5 + 0.01 * noise(step);
}

static double lost(int64_t step)
{
    return -9.0 + 0.01 * noise(step);
}

static double from_30(int64_t step)
{
    return step >= FROM ? 1e-6 : 0;
}

static double once(int64_t step)
{
    return step == FROM ? 0.5 : 0;
}

static double spikes(int64_t step)
{
    return step == FROM ? 40 : norm(step);
}

static double doubles(int64_t step)
{
    return step == FROM ? 4 : norm(step);
}

static double dies(int64_t step)
{
    return step >= FROM ? 0 : norm(step);
}

static double clipped_hard(int64_t step)
{
    return 30 + noise(step);
}

static double falls(int64_t step)
{
    return step < FROM ? 2 * learns(step) : 0.1 + 0.02 * noise(step);
}

static double falls_slowly(int64_t step)
{
    return step < FROM ? 2 * learns(step) : 1.0 - 0.04 * (double)(step - FROM);
}

static double dips(int64_t step)
{
    return learns(step) - (step >= FROM && step < FROM + 3 ? 0.3 : 0);
}

static double never(int64_t step)
{
    (void)step;
    return 0;
}

static double all_groups(int64_t step)
{
    (void)step;
    return GROUPS;
}

static double all_groups_late(int64_t step)
{
    return step >= FROM ? GROUPS : 1;
}

static double right(int64_t step)
{
    return step >= FROM ? 1 : learns(step);
}

static double flat(int64_t step)
{
    return 0.3 + 0.02 * noise(step);
}

static double grows(int64_t step)
{
    return 20.0 + 2.0 * (double)step;
}

static double fills(int64_t step)
{
    return (double)step / STEPS;
}

static double shrinks(int64_t step)
{
    return step < FROM ? 20 : 3;
}

static double freezes(int64_t step)
{
    return step < FROM ? 2.0 : 0.01;
}

static double not_a_number(int64_t step)
{
    return step >= FROM ? NAN : norm(step);
}

static double endless(int64_t step)
{
    return step >= FROM ? -INFINITY : norm(step);
}

static double three_late(int64_t step)
{
    return step >= FROM ? 3 : 0;
}

static double drifts(int64_t step)
{
    return 0.02 * (double)step;
}

static double few(int64_t step)
{
    return step >= FROM ? 0.1 : 1;
}

static double slow_from_30(int64_t step)
{
    return step >= FROM ? 6 : 1;
}

static double slow_often(int64_t step)
{
    return step % 20 >= 8 ? 5 : 1;
}

static double slow_once(int64_t step)
{
    return step == FROM ? 60 : 1;
}

typedef struct plant {
    const char *rule; /* NULL: no rule may find anything */
    int64_t step;     /* that it names */
    const char *says; /* part of the evidence */
    change change;
} plant;

static const plant plants[] = {
    {"first-step-kl", 0, "must be equal", {{REF_LOGP}, {likelier}, NULL, NULL, NULL}},
    {"first-step-kl", 0, "reference -2.", {{REF_LOGP}, {other_model}, NULL, NULL, "ref-load"}},
    {NULL, 0, NULL, {{REF_LOGP}, {likelier}, NULL, NULL, "ref-load"}},

    {"logprob-gap", FROM, "1 of 2 samples", {{GAP}, {from_30}, NULL, NULL, NULL}},
    {"logprob-gap", FROM, "worst by 0.5", {{GAP}, {once}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{GAP}, {once}, "rollout-lag", "2", NULL}},
    {NULL, 0, NULL, {{GAP}, {once}, "rollout-dtype", "fp8", NULL}},

    {"grad-norm", FROM, "it is 40", {{GRAD_NORM}, {spikes}, NULL, NULL, NULL}},
    {"grad-norm", 2, "it is 0 for 3", {{GRAD_NORM}, {none}, NULL, NULL, NULL}},
    {"grad-norm",
     FROM + 19,
     "it is 0 for 20",
     {{GRAD_NORM, REWARD, ENTROPY}, {dies, flat, one}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{GRAD_NORM, REWARD}, {dies, right}, NULL, NULL, NULL}},
    {"grad-norm", 20, "cut down to 1", {{GRAD_NORM}, {clipped_hard}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{GRAD_NORM}, {doubles}, NULL, NULL, NULL}},

    {"reward-collapse", -1, "at its best", {{REWARD}, {falls}, NULL, NULL, NULL}},
    {"reward-collapse", -1, "at its best", {{REWARD}, {falls_slowly}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{REWARD}, {dips}, NULL, NULL, NULL}},

    {"zero-signal",
     4,
     "each of the 4 groups",
     {{ZERO_STD, REWARD, ENTROPY}, {all_groups, never, one}, NULL, NULL, NULL}},
    {"zero-signal",
     4,
     "the mean is 1",
     {{ZERO_STD, REWARD, ENTROPY}, {all_groups, one, one}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{ZERO_STD, REWARD}, {all_groups_late, right}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{ZERO_STD}, {all_groups}, "advantage-estimator", "ppo", NULL}},
    {NULL, 0, NULL, {{ZERO_STD}, {all_groups}, "n-samples-per-prompt", "1", NULL}},
    {NULL, 0, NULL, {{ZERO_STD, REWARD}, {all_groups, never}, "loss-type", "sft_loss", NULL}},
    {NULL, 0, NULL, {{ZERO_STD, REWARD}, {all_groups, never}, "use-opd", "true", NULL}},

    {"length",
     -1,
     "tokens a response",
     {{TOKENS, CUT, REWARD}, {grows, fills, flat}, NULL, NULL, NULL}},
    {"length",
     -1,
     "tokens a response, at first 20",
     {{TOKENS, REWARD, ENTROPY}, {shrinks, flat, one}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{TOKENS, CUT}, {grows, fills}, NULL, NULL, NULL}},

    {"template", 0, "is -9", {{LOGP, REF_LOGP}, {lost, lost}, NULL, NULL, "hf-checkpoint"}},
    {"template", 2, "within 128 tokens", {{CUT}, {one}, NULL, NULL, "hf-checkpoint"}},
    {NULL, 0, NULL, {{LOGP, REF_LOGP, CUT}, {lost, lost, one}, NULL, NULL, NULL}},

    {"entropy-collapse",
     -1,
     "at most it was 2",
     {{ENTROPY, REWARD}, {freezes, flat}, NULL, NULL, NULL}},
    {"entropy-collapse", -1, "reward 0.3", {{ENTROPY, REWARD}, {narrows, flat}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{ENTROPY}, {freezes}, NULL, NULL, NULL}},

    {"not-finite", FROM, "train/grad_norm is NaN", {{GRAD_NORM}, {not_a_number}, NULL, NULL, NULL}},
    {"not-finite", FROM, "train/grad_norm is infinite", {{GRAD_NORM}, {endless}, NULL, NULL, NULL}},
    {"not-finite", FROM, "layer.0.mlp.out has 3 NaN", {{NANS}, {three_late}, NULL, NULL, NULL}},

    {"off-policy", -1, "KL of rollout", {{KL}, {drifts}, "rollout-lag", "2", NULL}},
    {"off-policy", -1, "effective samples", {{ESS}, {few}, "rollout-lag", "2", NULL}},
    {"off-policy", 4, "clipped tokens 100", {{CLIPPED}, {one}, NULL, NULL, NULL}},

    {"slow-phase",
     FROM + 9,
     "rollout took at least 6",
     {{ROLLOUT}, {slow_from_30}, NULL, NULL, NULL}},
    {"slow-phase", 17, "rollout took at least 5", {{ROLLOUT}, {slow_often}, NULL, NULL, NULL}},
    {NULL, 0, NULL, {{ROLLOUT}, {slow_once}, NULL, NULL, NULL}},
};

/* ---- tests ----------------------------------------------------------------------------------- */

static const invar_triage_finding *find(const invar_triage *t, const char *rule)
{
    for (int i = 0; i < t->count; i++)
        if (strcmp(t->found[i].rule.name + strlen(INVAR_TRIAGE_PREFIX), rule) == 0)
            return &t->found[i];
    return NULL;
}

/* By the rule's number: how many faults it has found. */
static int found[INVAR_TRIAGE_RULES], rules;

static void try_plants(bool sampled)
{
    for (size_t i = 0; i < COUNT(plants); i++) {
        const plant *p = &plants[i];
        const invar_triage_finding *f;
        static invar_triage t;

        look(&t, &p->change, sampled, &(end){0});
        rules = t.rules;
        if (!p->rule) {
            if (t.count)
                fail_msg("plant %zu: %s finds %s", i, t.found[0].rule.name, t.found[0].evidence);
            continue;
        }
        f = find(&t, p->rule);
        if (!sampled && strcmp(p->rule, "logprob-gap") == 0) { // it is about samples
            assert_null(f);
            continue;
        }
        if (!f)
            fail_msg("plant %zu: %s finds nothing%s", i, p->rule, sampled ? "" : ", unsampled");
        // a mean of rewards has noise, so what was learnt is less sure by it: a step or two later
        if (p->step >= 0 && (sampled ? f->step != p->step : f->step < p->step))
            fail_msg("plant %zu: %s: step %" PRId64 ", not %" PRId64, i, p->rule, f->step, p->step);
        if (!strstr(f->evidence, p->says))
            fail_msg("plant %zu: %s says: %s", i, p->rule, f->evidence);
        found[f->number] += sampled;
    }
}

static void test_triage__plants(void **state)
{
    (void)state;
    try_plants(true);
}

static void test_triage__without_samples(void **state)
{
    (void)state;
    try_plants(false);
}

static void test_triage__ends(void **state)
{
    static const struct {
        end end;
        const char *says; /* NULL: no finding */
        int64_t step;
        const char *next; /* of not-finite; NULL: it finds nothing */
    } ends[] = {
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
    for (size_t i = 0; i < COUNT(ends); i++) {
        const invar_triage_finding *f, *odd;
        static invar_triage t;

        look(&t, &(change){.key = NULL}, true, &ends[i].end);
        f = find(&t, "failure");
        odd = find(&t, "not-finite");
        if (!f != !ends[i].says || !odd != !ends[i].next || t.count != (f != NULL) + (odd != NULL))
            fail_msg("end %zu: %d findings", i, t.count);
        if (f && (f->step != ends[i].step || !strstr(f->evidence, ends[i].says)))
            fail_msg("end %zu: step %" PRId64 ", %s", i, f->step, f->evidence);
        if (odd)
            assert_non_null(strstr(odd->next_command, ends[i].next));
        if (f)
            found[f->number]++;
    }
}

/* A run that no process writes, and that has no end. */
static void test_triage__killed(void **state)
{
    static const struct {
        end end;
        const char *says; /* NULL: no finding */
    } ends[] = {
        {{.killed = true}, "segment 0 has no end: its last step is 59; the run has no checkpoint"},
        {{.resumed = true}, "segment 1 has no end: it has no step; the run has no checkpoint"},
        {{.killed = true, .written = true}, NULL},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(ends); i++) {
        const invar_triage_finding *f;
        static invar_triage t;

        look(&t, &(change){.key = NULL}, true, &ends[i].end);
        f = find(&t, "killed");
        if (!f != !ends[i].says || t.count != (f != NULL))
            fail_msg("end %zu: %d findings", i, t.count);
        if (f && (strcmp(f->evidence, ends[i].says) != 0 || f->step != STEPS - 1))
            fail_msg("end %zu: step %" PRId64 ": %s", i, f->step, f->evidence);
        if (f)
            found[f->number]++;
    }
}

/* Runs last. */
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
        look(&t, &(change){.key = NULL}, sampled, &(end){0});
        if (t.count)
            fail_msg("%s finds %s", t.found[0].rule.name, t.found[0].evidence);
        for (int i = 0; i < t.n_idle; i++)
            assert_true(t.idle[i].why[0]);
    }
}

/* Findings come by step, each with all that a reader needs. */
static void test_triage__several(void **state)
{
    static invar_triage t;

    (void)state;
    look(&t, &(change){{NANS, GAP}, {three_late, from_30}, NULL, NULL, NULL}, true, &(end){0});
    assert_int_equal(t.count, 2);
    assert_true(t.found[0].step <= t.found[1].step);
    for (int i = 0; i < t.count; i++) {
        assert_true(t.found[i].explanation[0] && t.found[i].next_command[0]);
        assert_int_equal(t.found[i].steps, STEPS - FROM);
    }
    assert_string_equal(find(&t, "logprob-gap")->next_command, "replay RUN --step STEP");
}

/* A rule's limits are its query's parameters; a run without a step has no finding. */
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
