/*
 * speculation.c - samples do not depend on what is guessed, how much of it, and by whom.
 *
 * Tokens, log-probabilities, routing and texts are compared bit by bit with a rollout in which
 * nothing is guessed. Guesses are those of the product, always right ones, always wrong ones, and
 * some whose rows are not finite. What must show is how many passes it took.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "tests/device/fake_gpu.h"
#include "tests/property/engine/draft_models.h"
#include "tests/property/engine/rollout_variants.h"

enum { GROUPS = 6, EACH = 4, LONGEST = 11, RESPONSE = 20, LETTERS = 27 };

static const invar_sampling_params usual = PROMPTS_SAMPLING(RESPONSE);

typedef struct subject {
    const invar_model *model, *draft; /* that guesses */
    const invar_device *dev;
    const invar_tokenizer *tokenizer;
    const invar_sampling_params *sampling;
    int32_t fixed; /* token of GUESS_FIXED */
} subject;

static invar_rollout_counters generate(invar_rl_samples *out, const subject *on,
                                       const invar_rollout_exec_options *limits, guess_maker *maker)
{
    invar_rollout_counters counted;
    invar_rollout *rollout;

    assert_ok(prompts_new(out, GROUPS, EACH, LONGEST, on->model->spec.vocab));
    assert_ok(invar_rollout_new(&rollout, on->model, on->tokenizer, on->dev, limits));
    if (maker && maker->kind != GUESS_NGRAM) {
        maker->samples = out;
        rollout->proposer = (invar_draft_proposer){guess_make, maker};
    }
    assert_ok(invar_rollout_run(rollout, out->items, out->count, on->sampling, NULL, NULL));
    invar_rollout_get_counters(&counted, rollout);
    invar_rollout_free(rollout);
    return counted;
}

static invar_speculation guessing(int64_t tokens, int64_t least)
{
    return (invar_speculation){INVAR_SPECULATIVE_ALGORITHM_NGRAM, tokens, {least, least + 2}, NULL};
}

/* Guesses of a kind against the samples that are expected. */
static invar_rollout_counters check(const invar_rl_samples *expected, const subject *on,
                                    const invar_rollout_exec_options *limits, guess_kind kind,
                                    int64_t tokens)
{
    guess_maker maker = {
        .kind = kind, .expected = expected, .vocab = on->model->spec.vocab, .fixed = on->fixed};
    invar_rollout_exec_options own = *limits;
    invar_rollout_counters counted;
    invar_rl_samples samples;
    char what[80];

    own.speculation = guessing(tokens, 1 + tokens % 3);
    counted = generate(&samples, on, &own, &maker);
    (void)snprintf(what, sizeof what, "guesses %d, %d at a time", (int)kind, (int)tokens);
    prompts_assert_equal(&samples, expected, what);
    assert_true(counted.accepted >= 0 && counted.accepted <= counted.drafted);
    invar_rl_samples_reset(&samples);
    return counted;
}

/* Guesses of another model; returns how many of 100 were drawn. */
static int64_t check_draft(const invar_rl_samples *expected, const subject *on,
                           const invar_model *draft, const invar_rollout_exec_options *limits,
                           int64_t tokens)
{
    invar_rollout_exec_options own = *limits;
    invar_rollout_counters counted;
    invar_rl_samples samples;
    char what[80];

    own.speculation = (invar_speculation){
        .algorithm = INVAR_SPECULATIVE_ALGORITHM_DRAFT, .tokens = tokens, .model = draft};
    counted = generate(&samples, on, &own, NULL);
    (void)snprintf(what, sizeof what, "a draft model, %d at a time", (int)tokens);
    prompts_assert_equal(&samples, expected, what);
    assert_true(counted.drafted > 0 && counted.accepted <= counted.drafted);
    invar_rl_samples_reset(&samples);
    return 100 * counted.accepted / counted.drafted;
}

/* ---- the sweep ------------------------------------------------------------------------------- */

/* Every kind of guess, a draft model's too; of numbers those that come next, or in full all. */
static void check_all(const subject *on, int64_t number)
{
    const invar_rollout_exec_options plain = {0};
    invar_rl_samples expected;

    generate(&expected, on, &plain, NULL);
    for (int kind = 0; kind <= GUESS_KINDS; kind++)
        for (int64_t i = 0; i < invar_test_count(1, INVAR_SPECULATION_MAX); i++, number++) {
            const invar_rollout_exec_options limits =
                way_limits(&ways[number % WAYS], LONGEST + RESPONSE);
            int64_t tokens = 1 + number % INVAR_SPECULATION_MAX;

            if (kind < GUESS_KINDS)
                check(&expected, on, &limits, (guess_kind)kind, tokens);
            else
                check_draft(&expected, on, on->draft, &limits, tokens);
        }
    invar_rl_samples_reset(&expected);
}

static void test_speculation__every_model_and_format(void **state)
{
    int64_t number = 0;

    (void)state;
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++, number++) {
            bool some = format == INVAR_FORMAT_BF16 || kind == INVAR_TEST_MODEL_EXPERTS;
            subject on = {.sampling = &usual, .fixed = 5};
            invar_model *model, *draft;
            invar_device dev;

            if (!some && !invar_test_full())
                continue;
            invar_test_device_init(&dev, number % 2 ? INVAR_NUMERICS_SM90 : INVAR_NUMERICS_IEEE,
                                   INVAR_CPU_PATH_SIMD, 2);
            model = invar_test_model_new((invar_test_model)kind, (invar_format)format, 3, &dev);
            draft =
                invar_test_model_new(INVAR_TEST_MODEL_DENSE,
                                     number % 2 ? INVAR_FORMAT_FP32 : INVAR_FORMAT_BF16, 4, &dev);
            on.model = model;
            on.draft = draft;
            on.dev = &dev;
            check_all(&on, number * 13);
            invar_model_free(draft);
            invar_model_free(model);
            invar_test_device_release(&dev);
        }
}

/* ---- one model ------------------------------------------------------------------------------- */

typedef struct fixture {
    invar_device dev;
    invar_model *model, *draft; /* that write letters */
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

static void test_speculation__every_way_of_sampling(void **state)
{
    static const char *const stop[] = {"ab", "q", "zz"};
    static const int32_t ends[] = {LETTERS - 1, 3};
    const fixture *f = *state;
    invar_sampling_params ways_to[6];

    for (int i = 0; i < 6; i++)
        ways_to[i] = (invar_sampling_params){.seed = 4,
                                             .temperature = 1.0f,
                                             .top_p = 1.0f,
                                             .max_response = RESPONSE,
                                             .stop_ids = ends,
                                             .n_stop_ids = 2};
    ways_to[0].temperature = 0.0f;
    ways_to[1].top_p = 0.7f;
    ways_to[2].stop = stop, ways_to[2].n_stop = 3;
    ways_to[3].stop = stop, ways_to[3].n_stop = 3, ways_to[3].min_response = 9;
    ways_to[4].max_context = LONGEST + 3;
    ways_to[5].top_k = 4, ways_to[5].min_p = 0.05f, ways_to[5].max_response = 3;
    for (int i = 0; i < 6; i++) {
        subject on = {.model = f->model,
                      .draft = f->draft,
                      .dev = &f->dev,
                      .tokenizer = f->tokenizer,
                      .sampling = &ways_to[i],
                      .fixed = LETTERS - 1}; // an end, wherever it is guessed
        check_all(&on, i * 7);
    }
}

/* Right guesses save passes, random ones are hardly ever kept; greedy groups follow each other. */
static void test_speculation__good_guesses_save_passes(void **state)
{
    const fixture *f = *state;
    const invar_rollout_exec_options plain = {.concurrency = 5};
    const invar_sampling_params greedy = {
        .temperature = 0.0f, .top_p = 1.0f, .max_response = RESPONSE};
    const subject on = {.model = f->model, .dev = &f->dev, .sampling = &greedy};
    invar_rollout_counters without, with;
    invar_rl_samples expected;

    without = generate(&expected, &on, &plain, NULL);
    assert_int_equal(without.drafted, 0);
    with = check(&expected, &on, &plain, GUESS_KNOWS, 4);
    assert_true(3 * with.passes < without.passes);
    assert_int_equal(with.accepted, with.drafted);
    with = check(&expected, &on, &plain, GUESS_NGRAM, 4);
    assert_true(with.accepted > with.drafted / 4 && 4 * with.passes < 3 * without.passes);
    with = check(&expected, &on, &plain, GUESS_RANDOM, 4);
    assert_true(with.drafted > 100 && with.accepted < with.drafted / 8);
    invar_rl_samples_reset(&expected);
}

/* A token whose embedding is no number: its row is nothing as long as it is not drawn. */
static void test_speculation__rejected_rows_need_not_be_finite(void **state)
{
    const fixture *f = *state;
    const invar_rollout_exec_options plain = {.page_size = 4};
    invar_model *model =
        invar_test_model_new(INVAR_TEST_MODEL_LLAMA, INVAR_FORMAT_FP32, 3, &f->dev);
    subject on = {.model = model, .dev = &f->dev, .sampling = &usual, .fixed = -1};
    float *embedding = model->params[0].master.data;
    invar_rl_samples expected;
    bool occurs[1000] = {false};

    assert_true(model->spec.vocab <= 1000);
    generate(&expected, &on, &plain, NULL);
    for (int64_t i = 0; i < expected.count; i++)
        for (int64_t t = 0; t < expected.items[i].n_tokens; t++)
            occurs[expected.items[i].tokens[t]] = true;
    for (int32_t t = 0; t < model->spec.vocab; t++)
        on.fixed = occurs[t] ? on.fixed : t;
    assert_true(on.fixed >= 0);
    embedding[on.fixed * model->params[0].cols] = NAN;
    assert_ok(invar_model_update_weights(model, &f->dev));
    assert_int_equal(check(&expected, &on, &plain, GUESS_FIXED, 3).accepted, 0);
    invar_rl_samples_reset(&expected);
    invar_model_free(model);
}

/* ---- a draft model --------------------------------------------------------------------------- */

/* Nothing is guessed behind the end of a response. */
static const invar_sampling_params endless = {
    .seed = 12, .temperature = 1.0f, .top_p = 0.9f, .max_response = RESPONSE};

/* The model itself is always right, wherever its rows come from; another one is not. */
static void test_speculation__a_draft_model(void **state)
{
    const invar_rollout_exec_options plain = {0};
    subject on = {.sampling = &endless};
    invar_model *model, *draft;
    invar_device dev;
    invar_rl_samples expected;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
    model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 3, &dev);
    draft = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 4, &dev);
    on.model = model;
    on.dev = &dev;
    generate(&expected, &on, &plain, NULL);
    for (int64_t i = 0; i < WAYS; i++) {
        const invar_rollout_exec_options limits = way_limits(&ways[i], LONGEST + RESPONSE);

        assert_int_equal(check_draft(&expected, &on, model, &limits, 1 + i), 100);
        assert_true(check_draft(&expected, &on, draft, &limits, 1 + i) < 50);
    }
    invar_rl_samples_reset(&expected);
    invar_model_free(model);
    invar_model_free(draft);
    invar_test_device_release(&dev);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* On a device with graphs, passes with guesses are graphs, too. */
static void test_speculation__graphs(void **state)
{
    static const invar_rollout_exec_options limits[] = {
        {.concurrency = 16}, {.concurrency = 7, .page_size = 2}, {.page_size = 1, .pages = 48}};
    subject near = {.sampling = &usual}, far = {.sampling = &usual};
    invar_device dev, far_dev;
    invar_model *model, *far_model;
    invar_rl_samples expected;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
    invar_far_begin(0);
    far_dev = dev;
    far_dev.backend = invar_far_backend();
    far_dev.scratch = NULL;
    assert_ok(invar_device_open(&far_dev));
    model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 3, &dev);
    far_model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 3, &far_dev);
    near.model = model, near.dev = &dev;
    far.model = far_model, far.dev = &far_dev;
    generate(&expected, &near, &limits[0], NULL);
    for (int i = 0; i < 3; i++)
        for (int kind = 0; kind < GUESS_KINDS; kind++) {
            int64_t runs = invar_far_counted().graph_runs;
            check(&expected, &far, &limits[i], (guess_kind)kind, 1 + i);
            // with hardly a page to spare, sequences have different numbers of rows
            assert_true(i == 2 || invar_far_counted().graph_runs > runs);
        }
    invar_rl_samples_reset(&expected);
    near.sampling = far.sampling = &endless;
    generate(&expected, &near, &limits[0], NULL);
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
        cmocka_unit_test(test_speculation__every_way_of_sampling),
        cmocka_unit_test(test_speculation__good_guesses_save_passes),
        cmocka_unit_test(test_speculation__rejected_rows_need_not_be_finite),
        cmocka_unit_test(test_speculation__a_draft_model),
        cmocka_unit_test(test_speculation__graphs),
        cmocka_unit_test(test_speculation__every_model_and_format),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
