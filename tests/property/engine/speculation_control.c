/*
 * speculation_control.c - control of speculation.c: accepting wrong draft tokens changes samples.
 *
 * This program is linked with the acceptance rule of tests/example_extension/accept_all_drafts.h,
 * which accepts every draft token.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/property/engine/draft_models.h"

enum { GROUPS = 6, EACH = 4, LONGEST = 11, RESPONSE = 20 };

typedef struct fixture {
    invar_device dev;
    invar_model *model;
    invar_rl_samples expected; /* samples without speculation */
} fixture;

static void generate_samples(invar_rl_samples *out, const fixture *f, int64_t tokens,
                             draft_source *source)
{
    const invar_sampling_params sampling = PROMPTS_SAMPLING(RESPONSE);
    const invar_rollout_exec_options limits = {
        .speculation = {source ? INVAR_SPECULATIVE_ALGORITHM_NGRAM
                               : INVAR_SPECULATIVE_ALGORITHM_NONE,
                        tokens,
                        {1, 4},
                        NULL}};
    invar_rollout *rollout;

    assert_ok(prompts_new(out, GROUPS, EACH, LONGEST, f->model->spec.vocab));
    assert_ok(invar_rollout_new(&rollout, f->model, NULL, &f->dev, &limits));
    if (source) {
        source->samples = out;
        source->expected = &f->expected;
        source->vocab = f->model->spec.vocab;
        rollout->proposer = (invar_draft_proposer){draft_propose, source};
    }
    assert_ok(invar_rollout_run(rollout, out->items, out->count, &sampling, NULL, NULL));
    invar_rollout_free(rollout);
}

static int64_t count_differing(const fixture *f, int64_t tokens, draft_kind kind)
{
    draft_source source = {.kind = kind};
    invar_rl_samples samples;
    int64_t n = 0;

    generate_samples(&samples, f, tokens, &source);
    for (int64_t i = 0; i < samples.count; i++)
        n += !prompts_equal(&samples.items[i], &f->expected.items[i]);
    invar_rl_samples_reset(&samples);
    return n;
}

static void test_speculation_control__accepted_wrong_drafts_change_samples(void **state)
{
    fixture f;

    (void)state;
    invar_test_device_init(&f.dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    f.model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 3, &f.dev);
    generate_samples(&f.expected, &f, 0, NULL);
    for (int64_t tokens = 1; tokens <= INVAR_SPECULATION_MAX; tokens += 3) {
        assert_true(count_differing(&f, tokens, DRAFT_RANDOM) > f.expected.count / 3);
        assert_true(count_differing(&f, tokens, DRAFT_NOISY) > 0);
        assert_int_equal(count_differing(&f, tokens, DRAFT_ORACLE),
                         0); // right drafts cannot be accepted
                             // wrongly
    }
    invar_rl_samples_reset(&f.expected);
    invar_model_free(f.model);
    invar_test_device_release(&f.dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_speculation_control__accepted_wrong_drafts_change_samples),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
