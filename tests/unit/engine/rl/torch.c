/*
 * torch.c - tests of advantages, losses, gradients and metrics against PyTorch in float64.
 *
 * tests/oracle/rl.py writes the cases, with gradients from autograd, to tests/oracle/rl.json;
 * INVAR_RL_FIXTURES names another file. Controls: results shifted by one token and options that
 * are switched off must be detected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rl/loss.h"
#include "tests/support.h"

enum { MOST = 64 };

/* Allowed error of fp32 against float64: a few roundings, relative to the array's largest value. */
static const double ARRAY_LIMIT = 3e-6;
static const double METRIC_LIMIT = 1e-5;

/* ---- cases ----------------------------------------------------------------------------------- */

typedef struct rl_case {
    const char *name;
    const json_t *expect;
    invar_rl_options options;
    invar_rl_batch batch;
    int64_t tokens;
    int64_t start[MOST], group[MOST];
    uint8_t mask[MOST];
    float reward[MOST], old_logp[MOST], rollout_logp[MOST], ref_logp[MOST], teacher_logp[MOST];
    float values[MOST], now[MOST], entropy[MOST];
    float advantage[MOST], returns[MOST], dnow[MOST], dentropy[MOST];
} rl_case;

static json_t *document;

static size_t read_floats(float *out, const json_t *object, const char *name)
{
    const json_t *list = json_object_get(object, name);

    assert_true(json_is_array(list) && json_array_size(list) <= MOST);
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (float)json_number_value(json_array_get(list, i));
    return json_array_size(list);
}

static void read_integers(int64_t *out, const json_t *object, const char *name)
{
    const json_t *list = json_object_get(object, name);

    assert_true(json_is_array(list) && json_array_size(list) <= MOST);
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = json_integer_value(json_array_get(list, i));
}

static const char *const loss_words[INVAR_LOSS_COUNT] = {
    [INVAR_LOSS_POLICY] = "policy", [INVAR_LOSS_SFT] = "sft", [INVAR_LOSS_VALUE] = "value"};
static const invar_choices losses = {loss_words, INVAR_LOSS_COUNT};

#define FIELD(name, field)                                                                         \
    {                                                                                              \
#name, offsetof(invar_rl_options, field)                                                   \
    }
static const struct {
    const char *name;
    size_t offset;
} floats[] = {FIELD(gamma, gamma),
              FIELD(lambd, lambd),
              FIELD(kl_coef, kl.reward_coef),
              FIELD(kl_loss_coef, kl.loss_coef),
              FIELD(eps_clip, clip.low),
              FIELD(eps_clip_high, clip.high),
              FIELD(eps_clip_c, clip.dual),
              FIELD(value_clip, clip.value),
              FIELD(entropy_coef, entropy_coef),
              FIELD(constant_divisor, constant_divisor),
              FIELD(opd_kl_coef, opd_kl_coef),
              FIELD(opsm_delta, opsm.delta),
              FIELD(tis_clip, tis.high),
              FIELD(tis_clip_low, tis.low),
              FIELD(mis_low, mis.low),
              FIELD(mis_high, mis.high),
              FIELD(mis_rs_low, mis.rs.low),
              FIELD(mis_rs_high, mis.rs.high),
              FIELD(mis_veto, mis.rs.veto)};
static const struct {
    const char *name;
    size_t offset;
} bools[] = {FIELD(rewards_normalization, rewards_normalization),
             FIELD(std_normalization, std_normalization),
             FIELD(normalize_advantages, normalize_advantages),
             FIELD(use_kl_loss, kl.use_loss),
             FIELD(unbiased_kl, kl.unbiased),
             FIELD(per_token_loss, per_token_loss),
             FIELD(use_opsm, opsm.use),
             FIELD(use_tis, tis.use),
             FIELD(use_mis, mis.use),
             FIELD(mis_rs, mis.rs.use),
             FIELD(mis_batch_normalize, mis.batch_normalize)};
static const struct {
    const char *name;
    size_t offset;
    const invar_choices *choices;
} words[] = {{"loss", offsetof(invar_rl_options, loss), &losses},
             {"estimator", offsetof(invar_rl_options, estimator), &invar_estimator_choices},
             {"kl_type", offsetof(invar_rl_options, kl.type), &invar_kl_choices},
             {"mis_level", offsetof(invar_rl_options, mis.level), &invar_mis_level_choices},
             {"mis_rs_level", offsetof(invar_rl_options, mis.rs.level), &invar_mis_level_choices},
             {"mis_mode", offsetof(invar_rl_options, mis.mode), &invar_mis_mode_choices}};
#define COUNT(table) (sizeof(table) / sizeof(table)[0])

/* Sets an option; returns false if it does not exist. */
static bool set_option(invar_rl_options *options, const char *name, const json_t *value)
{
    char *base = (char *)options;

    for (size_t i = 0; i < COUNT(floats); i++) {
        float x = (float)json_number_value(value);
        if (strcmp(name, floats[i].name) == 0)
            return memcpy(base + floats[i].offset, &x, sizeof x) != NULL;
    }
    for (size_t i = 0; i < COUNT(bools); i++) {
        bool x = json_is_true(value);
        if (strcmp(name, bools[i].name) == 0)
            return memcpy(base + bools[i].offset, &x, sizeof x) != NULL;
    }
    if (strcmp(name, "tis_icepop") == 0) {
        options->tis.mode = json_is_true(value) ? INVAR_TIS_MODE_ICEPOP : INVAR_TIS_MODE_TRUNCATE;
        return true;
    }
    for (size_t i = 0; i < COUNT(words); i++) {
        const char *word = json_string_value(value);
        int x = word ? invar_choices_find(words[i].choices, word, strlen(word)) : -1;
        if (strcmp(name, words[i].name) == 0 && x >= 0)
            return memcpy(base + words[i].offset, &x, sizeof x) != NULL;
    }
    return false;
}

static void load_case(rl_case *p, const json_t *item)
{
    const json_t *batch = json_object_get(item, "batch");
    json_t *options = json_object_get(item, "options"), *value;
    int64_t mask[MOST];
    const char *name;

    memset(p, 0, sizeof *p);
    p->name = json_string_value(json_object_get(item, "name"));
    p->expect = json_object_get(item, "expect");
    json_object_foreach(options, name, value)
    {
        if (!set_option(&p->options, name, value))
            fail_msg("%s: no such option: %s", p->name, name);
    }
    p->tokens = (int64_t)read_floats(p->now, batch, "now");
    read_floats(p->old_logp, batch, "old_logp");
    read_floats(p->rollout_logp, batch, "rollout_logp");
    read_floats(p->ref_logp, batch, "ref_logp");
    read_floats(p->teacher_logp, batch, "teacher_logp");
    read_floats(p->values, batch, "values");
    read_floats(p->entropy, batch, "entropy");
    read_integers(mask, batch, "mask");
    read_integers(p->start, batch, "start");
    read_integers(p->group, batch, "group");
    for (int64_t t = 0; t < p->tokens; t++)
        p->mask[t] = (uint8_t)mask[t];
    p->batch = (invar_rl_batch){.samples = (int64_t)read_floats(p->reward, batch, "reward"),
                                .offsets = p->start,
                                .group = p->group,
                                .mask = p->mask,
                                .reward = p->reward,
                                .old_logp = p->old_logp,
                                .rollout_logp = p->rollout_logp,
                                .ref_logp = p->ref_logp,
                                .teacher_logp = p->teacher_logp,
                                .values = p->values};
}

/* ---- comparison ------------------------------------------------------------------------------ */

/* Returns the largest error over the largest expected value, compared with elements i + shift. */
static double max_error_of(const rl_case *p, const char *name, const float *got, size_t shift)
{
    const json_t *list = json_object_get(p->expect, name);
    size_t n = json_array_size(list);
    double worst = 0, largest = 1e-30;

    assert_int_equal(n, (size_t)p->tokens);
    for (size_t i = 0; i < n; i++) {
        double expected = json_number_value(json_array_get(list, (i + shift) % n));
        worst = fmax(worst, fabs((double)got[i] - expected));
        largest = fmax(largest, fabs(expected));
    }
    return worst / largest;
}

static void compare_array(const rl_case *p, const char *name, const float *got)
{
    double error = max_error_of(p, name, got, 0);

    if (!(error <= ARRAY_LIMIT))
        fail_msg("%s: %s is off by %g of its largest value", p->name, name, error);
}

static void compare_metrics(const rl_case *p, invar_loss *loss)
{
    const json_t *expected = json_object_get(p->expect, "metrics");
    const invar_loss_metric *metrics;
    size_t count;

    assert_ok(invar_loss_metrics(&metrics, &count, loss));
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_object_get(expected, metrics[i].name);
        double want = json_number_value(value);
        if (!value)
            fail_msg("%s: nothing is expected of %s", p->name, metrics[i].name);
        if (!(fabs(metrics[i].value - want) <= METRIC_LIMIT * fmax(1.0, fabs(want))))
            fail_msg("%s: %s is %.9g instead of %.9g", p->name, metrics[i].name, metrics[i].value,
                     want);
    }
    assert_int_equal(count, json_object_size(expected));
}

static void check_case(rl_case *p)
{
    bool has_entropy = p->options.entropy_coef != 0.0f;
    invar_loss *loss;

    assert_ok(invar_rl_advantages(p->advantage, p->returns, &p->batch, &p->options));
    compare_array(p, "advantage", p->advantage);
    compare_array(p, "returns", p->returns);
    assert_ok(invar_loss_new(&loss, &p->batch, &p->options, p->advantage, p->returns));
    assert_ok(invar_loss_run(loss, 0, p->batch.samples, p->now, p->entropy, p->dnow,
                             has_entropy ? p->dentropy : NULL));
    compare_array(p, "dnow", p->dnow);
    if (has_entropy)
        compare_array(p, "dentropy", p->dentropy);
    compare_metrics(p, loss);
    invar_loss_free(loss);
}

static void test_rl_torch__accuracy_of_all_cases(void **state)
{
    json_t *cases = json_object_get(document, "cases"), *item;
    static rl_case p;
    size_t i, sensitive = 0;

    (void)state;
    json_array_foreach(cases, i, item)
    {
        load_case(&p, item);
        check_case(&p);
        // control: values shifted by one token are wrong
        sensitive += max_error_of(&p, "dnow", p.dnow, 1) > 100 * ARRAY_LIMIT;
    }
    assert_true(sensitive > 25);
}

/* Every fraction metric is neither 0 nor 1 in at least one of the committed cases. */
static void test_rl_torch__cases_are_not_idle(void **state)
{
    json_t *cases = json_object_get(document, "cases"), *varying = json_object(), *item, *value;
    const char *name;
    size_t i;

    (void)state;
    json_array_foreach(cases, i, item)
    {
        json_t *metrics = json_object_get(json_object_get(item, "expect"), "metrics");
        json_object_foreach(metrics, name, value)
        {
            double x = json_number_value(value);
            bool happens = x > 0 && x < 1;
            if (strstr(name, "frac") && (happens || !json_object_get(varying, name)))
                json_object_set_new(varying, name, json_boolean(happens));
        }
    }
    json_object_foreach(varying, name, value)
    {
        if (!json_is_true(value) && !getenv("INVAR_RL_FIXTURES"))
            fail_msg("%s is 0 or 1 in every case", name);
    }
    assert_true(json_object_size(varying) > 10);
    json_decref(varying);
}

/* Control: without clipping, TIS, MIS and OPSM, the gradients of most policy cases are wrong. */
static void test_rl_torch__options_matter(void **state)
{
    json_t *cases = json_object_get(document, "cases"), *item;
    static rl_case p;
    size_t i, changed = 0;

    (void)state;
    json_array_foreach(cases, i, item)
    {
        invar_loss *loss;
        load_case(&p, item);
        if (p.options.loss != INVAR_LOSS_POLICY)
            continue;
        check_case(&p);
        p.options.clip.low = p.options.clip.high = 10.0f;
        p.options.clip.dual = p.options.constant_divisor = 0.0f;
        p.options.tis.use = p.options.mis.use = p.options.opsm.use = false;
        assert_ok(invar_loss_new(&loss, &p.batch, &p.options, p.advantage, NULL));
        assert_ok(invar_loss_run(loss, 0, p.batch.samples, p.now, p.entropy, p.dnow, p.dentropy));
        changed += max_error_of(&p, "dnow", p.dnow, 0) > 100 * ARRAY_LIMIT;
        invar_loss_free(loss);
    }
    assert_true(changed > 15);
}

static int load_document(void **state)
{
    const char *path = getenv("INVAR_RL_FIXTURES");
    json_error_t error;

    (void)state;
    document = json_load_file(path ? path : INVAR_TEST_DATA "/oracle/rl.json", 0, &error);
    if (!document)
        fprintf(stderr, "rl.json: line %d: %s\n", error.line, error.text);
    return document ? 0 : -1;
}

static int free_document(void **state)
{
    (void)state;
    json_decref(document);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rl_torch__accuracy_of_all_cases),
        cmocka_unit_test(test_rl_torch__cases_are_not_idle),
        cmocka_unit_test(test_rl_torch__options_matter),
    };

    return cmocka_run_group_tests(tests, load_document, free_document);
}
