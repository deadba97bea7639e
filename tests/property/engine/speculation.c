/*
 * speculation.c - speculative decoding changes no sample, whatever is drafted and by whom.
 *
 * Tokens, log-probs, routing and texts are compared bit by bit with a rollout without drafts.
 * Drafts are those of the n-gram table and of a draft model, always right ones, partly wrong ones,
 * random and fixed tokens, and some whose rows are not finite. Right drafts must save passes. The
 * control is speculation_control.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "tests/device/fake_gpu.h"
#include "tests/property/engine/draft_models.h"
#include "tests/property/engine/rollout_variants.h"

enum { GROUPS = 6, EACH = 4, LONGEST = 11, RESPONSE = 20, LETTERS = 27 };

static const invar_sampling_params default_sampling = PROMPTS_SAMPLING(RESPONSE);

/* Inputs of a rollout. */
typedef struct rollout_inputs {
    const invar_model *model, *draft; /* `draft` is the draft model */
    const invar_device *dev;
    const invar_tokenizer *tokenizer;
    const invar_sampling_params *sampling;
    int32_t fixed; /* token of DRAFT_FIXED */
} rollout_inputs;

static invar_rollout_counters generate_samples(invar_rl_samples *out, const rollout_inputs *inputs,
                                               const invar_rollout_exec_options *limits,
                                               draft_source *source)
{
    invar_rollout_counters counted;
    invar_rollout *rollout;

    assert_ok(prompts_new(out, GROUPS, EACH, LONGEST, inputs->model->spec.vocab));
    assert_ok(invar_rollout_new(&rollout, inputs->model, inputs->tokenizer, inputs->dev, limits));
    if (source && source->kind != DRAFT_NGRAM) {
        source->samples = out;
        rollout->proposer = (invar_draft_proposer){draft_propose, source};
    }
    assert_ok(invar_rollout_run(rollout, out->items, out->count, inputs->sampling, NULL, NULL));
    invar_rollout_get_counters(&counted, rollout);
    invar_rollout_free(rollout);
    return counted;
}

static invar_speculation ngram_speculation(int64_t tokens, int64_t least)
{
    return (invar_speculation){INVAR_SPECULATIVE_ALGORITHM_NGRAM, tokens, {least, least + 2}, NULL};
}

/* Generates with drafts of a kind and compares with the expected samples. */
static invar_rollout_counters check_drafts(const invar_rl_samples *expected,
                                           const rollout_inputs *inputs,
                                           const invar_rollout_exec_options *limits,
                                           draft_kind kind, int64_t tokens)
{
    draft_source source = {.kind = kind,
                           .expected = expected,
                           .vocab = inputs->model->spec.vocab,
                           .fixed = inputs->fixed};
    invar_rollout_exec_options own = *limits;
    invar_rollout_counters counted;
    invar_rl_samples samples;
    char what[80];

    own.speculation = ngram_speculation(tokens, 1 + tokens % 3);
    counted = generate_samples(&samples, inputs, &own, &source);
    (void)snprintf(what, sizeof what, "guesses %d, %d at a time", (int)kind, (int)tokens);
    prompts_assert_equal(&samples, expected, what);
    assert_true(counted.accepted >= 0 && counted.accepted <= counted.drafted);
    invar_rl_samples_reset(&samples);
    return counted;
}

/* Generates with a draft model and compares. Returns the percentage of accepted draft tokens. */
static int64_t check_draft(const invar_rl_samples *expected, const rollout_inputs *inputs,
                           const invar_model *draft, const invar_rollout_exec_options *limits,
                           int64_t tokens)
{
    invar_rollout_exec_options own = *limits;
    invar_rollout_counters counted;
    invar_rl_samples samples;
    char what[80];

    own.speculation = (invar_speculation){
        .algorithm = INVAR_SPECULATIVE_ALGORITHM_DRAFT, .tokens = tokens, .model = draft};
    counted = generate_samples(&samples, inputs, &own, NULL);
    (void)snprintf(what, sizeof what, "a draft model, %d at a time", (int)tokens);
    prompts_assert_equal(&samples, expected, what);
    assert_true(counted.drafted > 0 && counted.accepted <= counted.drafted);
    invar_rl_samples_reset(&samples);
    return 100 * counted.accepted / counted.drafted;
}

/* ---- the sweep ------------------------------------------------------------------------------- */

/*
 * Checks every second kind of draft, the others in the next call, or a draft model. The number of
 * draft tokens is the next one of a sequence. Under `full` all kinds and all numbers are used.
 */
static void check_all(const rollout_inputs *inputs, int64_t number)
{
    static int n_checked;
    const invar_rollout_exec_options plain = {0};
    invar_rl_samples expected;

    generate_samples(&expected, inputs, &plain, NULL);
    n_checked++;
    for (int kind = 0; kind <= DRAFT_KINDS; kind++)
        for (int64_t i = 0; i < invar_test_count(1, INVAR_SPECULATION_MAX); i++, number++) {
            const invar_rollout_exec_options limits =
                variant_limits(&variants[number % VARIANTS], LONGEST + RESPONSE);
            int64_t tokens = 1 + number % INVAR_SPECULATION_MAX;

            if (!invar_test_full() && (kind + n_checked) % 2 != 0)
                continue;
            if (kind < DRAFT_KINDS)
                check_drafts(&expected, inputs, &limits, (draft_kind)kind, tokens);
            else
                check_draft(&expected, inputs, inputs->draft, &limits, tokens);
        }
    invar_rl_samples_reset(&expected);
}

static void test_speculation__every_model_and_format(void **state)
{
    int64_t number = 0;

    (void)state;
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++, number++) {
            bool included = format == INVAR_FORMAT_COUNT - 1 - kind; // every kind and format once
            rollout_inputs inputs = {.sampling = &default_sampling, .fixed = 5};
            invar_model *model, *draft;
            invar_device dev;

            if (!included && !invar_test_full())
                continue;
            invar_test_device_init(&dev, number % 2 ? INVAR_NUMERICS_SM90 : INVAR_NUMERICS_IEEE,
                                   INVAR_CPU_PATH_SIMD, 2);
            model = invar_test_model_new((invar_test_model)kind, (invar_format)format, 3, &dev);
            draft =
                invar_test_model_new(INVAR_TEST_MODEL_DENSE,
                                     number % 2 ? INVAR_FORMAT_FP32 : INVAR_FORMAT_BF16, 4, &dev);
            inputs.model = model;
            inputs.draft = draft;
            inputs.dev = &dev;
            check_all(&inputs, number * 13);
            invar_model_free(draft);
            invar_model_free(model);
            invar_test_device_release(&dev);
        }
}

/* ---- one model ------------------------------------------------------------------------------- */

typedef struct fixture {
    invar_device dev;
    invar_model *model, *draft; /* models whose tokens are letters */
    invar_tokenizer *tokenizer;
} fixture;

static int setup(void **state)
{
    static fixture f;
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_LLAMA, false);

    spec.vocab = LETTERS;
    spec.eos[0] = LETTERS - 1;
    invar_test_device_init(&f.dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
    assert_ok(invar_model_new(&f.model, &spec, INVAR_FORMAT_FP32, NULL, &f.dev));
    assert_ok(invar_model_init(f.model, 5, &f.dev));
    assert_ok(invar_model_new(&f.draft, &spec, INVAR_FORMAT_FP32, NULL, &f.dev));
    assert_ok(invar_model_init(f.draft, 6, &f.dev));
    assert_ok(invar_tokenizer_alphabet(&f.tokenizer, "abcdefghijklmnopqrstuvwxyz"));
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    invar_tokenizer_free(f->tokenizer);
    invar_model_free(f->draft);
    invar_model_free(f->model);
    invar_test_device_release(&f->dev);
    return 0;
}

static void test_speculation__every_sampling_parameter(void **state)
{
    static const char *const stop[] = {"ab", "q", "zz"};
    static const int32_t ends[] = {LETTERS - 1, 3};
    const fixture *f = *state;
    invar_sampling_params sampling_params[6];

    for (int i = 0; i < 6; i++)
        sampling_params[i] = (invar_sampling_params){.seed = 4,
                                                     .temperature = 1.0f,
                                                     .top_p = 1.0f,
                                                     .max_response = RESPONSE,
                                                     .stop_ids = ends,
                                                     .n_stop_ids = 2};
    sampling_params[0].temperature = 0.0f;
    sampling_params[1].top_p = 0.7f;
    sampling_params[2].stop = stop, sampling_params[2].n_stop = 3;
    sampling_params[3].stop = stop, sampling_params[3].n_stop = 3,
    sampling_params[3].min_response = 9;
    sampling_params[4].max_context = LONGEST + 3;
    sampling_params[5].top_k = 4, sampling_params[5].min_p = 0.05f,
    sampling_params[5].max_response = 3;
    for (int i = 0; i < 6; i++) {
        rollout_inputs inputs = {.model = f->model,
                                 .draft = f->draft,
                                 .dev = &f->dev,
                                 .tokenizer = f->tokenizer,
                                 .sampling = &sampling_params[i],
                                 .fixed = LETTERS - 1}; // a stop id at every position
        check_all(&inputs, i * 7);
    }
}

/*
 * Right drafts save passes, and random ones are hardly ever accepted. N-gram drafts are good
 * because greedy samples of a group are equal.
 */
static void test_speculation__right_drafts_save_passes(void **state)
{
    const fixture *f = *state;
    const invar_rollout_exec_options plain = {.concurrency = 5};
    const invar_sampling_params greedy = {
        .temperature = 0.0f, .top_p = 1.0f, .max_response = RESPONSE};
    const rollout_inputs inputs = {.model = f->model, .dev = &f->dev, .sampling = &greedy};
    invar_rollout_counters without, with;
    invar_rl_samples expected;

    without = generate_samples(&expected, &inputs, &plain, NULL);
    assert_int_equal(without.drafted, 0);
    with = check_drafts(&expected, &inputs, &plain, DRAFT_ORACLE, 4);
    assert_true(3 * with.passes < without.passes);
    assert_int_equal(with.accepted, with.drafted);
    with = check_drafts(&expected, &inputs, &plain, DRAFT_NGRAM, 4);
    assert_true(with.accepted > with.drafted / 4 && 4 * with.passes < 3 * without.passes);
    with = check_drafts(&expected, &inputs, &plain, DRAFT_RANDOM, 4);
    assert_true(with.drafted > 100 && with.accepted < with.drafted / 8);
    invar_rl_samples_reset(&expected);
}

/* A draft token whose embedding is NaN changes nothing, since it is never sampled. */
static void test_speculation__rejected_rows_need_not_be_finite(void **state)
{
    const fixture *f = *state;
    const invar_rollout_exec_options plain = {.page_size = 4};
    invar_model *model =
        invar_test_model_new(INVAR_TEST_MODEL_LLAMA, INVAR_FORMAT_FP32, 3, &f->dev);
    rollout_inputs inputs = {
        .model = model, .dev = &f->dev, .sampling = &default_sampling, .fixed = -1};
    float *embedding = model->params[0].master.data;
    invar_rl_samples expected;
    bool occurs[1000] = {false};

    assert_true(model->spec.vocab <= 1000);
    generate_samples(&expected, &inputs, &plain, NULL);
    for (int64_t i = 0; i < expected.count; i++)
        for (int64_t t = 0; t < expected.items[i].n_tokens; t++)
            occurs[expected.items[i].tokens[t]] = true;
    for (int32_t t = 0; t < model->spec.vocab; t++)
        inputs.fixed = occurs[t] ? inputs.fixed : t;
    assert_true(inputs.fixed >= 0);
    embedding[inputs.fixed * model->params[0].cols] = NAN;
    assert_ok(invar_model_update_weights(model, &f->dev));
    assert_int_equal(check_drafts(&expected, &inputs, &plain, DRAFT_FIXED, 3).accepted, 0);
    invar_rl_samples_reset(&expected);
    invar_model_free(model);
}

/* ---- a draft model --------------------------------------------------------------------------- */

/* Without stop ids, no draft token lies after the end of a response. */
static const invar_sampling_params endless = {
    .seed = 12, .temperature = 1.0f, .top_p = 0.9f, .max_response = RESPONSE};

/*
 * The model as its own draft model is always right, however its rows are computed; another model is
 * not.
 */
static void test_speculation__a_draft_model(void **state)
{
    const invar_rollout_exec_options plain = {0};
    rollout_inputs inputs = {.sampling = &endless};
    invar_model *model, *draft;
    invar_device dev;
    invar_rl_samples expected;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
    model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 3, &dev);
    draft = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 4, &dev);
    inputs.model = model;
    inputs.dev = &dev;
    generate_samples(&expected, &inputs, &plain, NULL);
    for (int64_t i = 0; i < VARIANTS; i++) {
        const invar_rollout_exec_options limits = variant_limits(&variants[i], LONGEST + RESPONSE);

        if (invar_test_full() || i % 2 == 0) // by default the two models share the variants
            assert_int_equal(check_draft(&expected, &inputs, model, &limits, 1 + i), 100);
        if (invar_test_full() || i % 2 == 1)
            assert_true(check_draft(&expected, &inputs, draft, &limits, 1 + i) < 50);
    }
    invar_rl_samples_reset(&expected);
    invar_model_free(model);
    invar_model_free(draft);
    invar_test_device_release(&dev);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* On a device with graphs, passes with drafts are graphs as well. */
static void test_speculation__graphs(void **state)
{
    static const invar_rollout_exec_options limits[] = {
        {.concurrency = 16}, {.concurrency = 7, .page_size = 2}, {.page_size = 1, .pages = 48}};
    rollout_inputs near = {.sampling = &default_sampling}, far = {.sampling = &default_sampling};
    invar_device dev, far_dev;
    invar_model *model, *far_model;
    invar_rl_samples expected;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
    invar_fake_gpu_begin(0);
    far_dev = dev;
    far_dev.backend = invar_fake_gpu_backend();
    far_dev.scratch = NULL;
    assert_ok(invar_device_open(&far_dev));
    model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 3, &dev);
    far_model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 3, &far_dev);
    near.model = model, near.dev = &dev;
    far.model = far_model, far.dev = &far_dev;
    generate_samples(&expected, &near, &limits[0], NULL);
    for (int i = 0; i < 3; i++)
        for (int kind = 0; kind < DRAFT_KINDS; kind++) {
            if (!invar_test_full() && (i + kind) % 2 != 0)
                continue;
            int64_t runs = invar_fake_gpu_counted().graph_runs;
            check_drafts(&expected, &far, &limits[i], (draft_kind)kind, 1 + i);
            // sequences have different numbers of rows if pages are few, and then graphs do not
            // repeat
            assert_true(i == 2 || invar_fake_gpu_counted().graph_runs > runs);
        }
    invar_rl_samples_reset(&expected);
    near.sampling = far.sampling = &endless;
    generate_samples(&expected, &near, &limits[0], NULL);
    for (int i = 0; i < 3; i++)
        assert_int_equal(check_draft(&expected, &far, far_model, &limits[i], 1 + i), 100);
    invar_rl_samples_reset(&expected);
    invar_model_free(model);
    invar_model_free(far_model);
    invar_device_close(&far_dev);
    invar_test_device_release(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_speculation__every_sampling_parameter),
        cmocka_unit_test(test_speculation__right_drafts_save_passes),
        cmocka_unit_test(test_speculation__rejected_rows_need_not_be_finite),
        cmocka_unit_test(test_speculation__a_draft_model),
        cmocka_unit_test(test_speculation__graphs),
        cmocka_unit_test(test_speculation__every_model_and_format),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
