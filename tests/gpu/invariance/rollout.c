/*
 * rollout.c - generation end to end: the determinism tests of other engines, with exact
 * comparison.
 *
 * Equal requests get the same response, a request gets its response in any batch, and generated
 * tokens have the same log-probs when scored at once, however prompts are shared, split or cached.
 * The model is in device memory; the engine is the one used for training. Control: another draw or
 * another prompt gets another response.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/trainer.h"
#include "tests/gpu/invariance/sweep.h"
#include "tests/unit/engine/sample/rollout/prompts.h"

enum { MAX_PROMPT = 4097, MAX_SAMPLES = 1000, MAX_SCORES = 40000 };

typedef struct rollout_subject {
    invar_sweep *s;
    const invar_device *dev;
    invar_model *model;
    char name[64];
} rollout_subject;

static rollout_subject subject_new(invar_test_model kind, invar_format format)
{
    rollout_subject u = {.s = invar_sweep_begin(INVAR_NUMERICS_SM90)};
    invar_model_spec spec = invar_test_spec(kind, true);

    u.dev = &u.s->dev;
    (void)snprintf(u.name, sizeof u.name, "%s %s", invar_test_model_name(kind),
                   invar_format_name(format));
    spec.max_positions = MAX_PROMPT + 100;
    if (u.s->large) {
        spec.hidden = 256;
        spec.attention.kv_heads = 2;
        spec.attention.head_dim = 64;
        spec.intermediate = 512;
        spec.vocab = 512;
    }
    spec.n_eos = 0;
    assert_ok(invar_model_new(&u.model, &spec, format, NULL, u.dev));
    assert_ok(invar_model_init(u.model, 3, u.dev));
    assert_ok(invar_model_update_weights(u.model, u.dev));
    return u;
}

static invar_sampling_params sampling_of(float temperature, int64_t response)
{
    return (invar_sampling_params){
        .seed = 42, .temperature = temperature, .top_p = 1.0f, .max_response = response};
}

static void generate_samples(const rollout_subject *u, invar_rl_samples *samples,
                             const invar_rollout_exec_options *limits,
                             const invar_sampling_params *sampling)
{
    invar_rollout *rollout;

    assert_ok(invar_rollout_new(&rollout, u->model, NULL, u->dev, limits));
    assert_ok(invar_rollout_run(rollout, samples->items, samples->count, sampling, NULL, NULL));
    invar_rollout_free(rollout);
}

/* Makes a prompt from a seed. */
static void add_prompt(const rollout_subject *u, invar_rl_samples *samples, uint64_t seed,
                       int64_t length, int64_t group, uint32_t draw)
{
    static int32_t prompt[MAX_PROMPT];

    for (int64_t i = 0; i < length; i++)
        prompt[i] = (int32_t)(invar_test_random(seed, (uint64_t)i) % u->model->spec.vocab);
    assert_ok(prompts_add(samples, prompt, length, group, draw));
}

static void for_subjects(void (*check)(const rollout_subject *u))
{
    bool large = invar_sweep_begin(INVAR_NUMERICS_SM90)->large;

    for (int format = 0; format < INVAR_FORMAT_COUNT; format++)
        for (int experts = 0; experts < 2; experts++) {
            rollout_subject u;

            if (!large && (format + experts) % 4 != 1)
                continue; // bf16; f32 and int4 with experts
            u = subject_new(experts ? INVAR_TEST_MODEL_EXPERTS : INVAR_TEST_MODEL_DENSE,
                            (invar_format)format);

            check(&u);
            invar_model_free(u.model);
        }
}

/* ---- equal requests -------------------------------------------------------------------------- */

/* Many requests with one prompt and one draw get the response of the request alone. */
static void check_equal(const rollout_subject *u)
{
    static const float temperatures[] = {0.0f, 0.6f};
    int64_t count = invar_sweep_size(u->s, MAX_SAMPLES, 30);

    for (int t = 0; t < 2; t++)
        for (int shared = 0; shared < 2; shared++) {
            const invar_sampling_params sampling =
                sampling_of(temperatures[t], invar_sweep_size(u->s, 16, 5));
            const invar_rollout_exec_options limits = {.no_prefix_sharing = !shared};
            invar_rl_samples samples = {0}, alone = {0};

            add_prompt(u, &alone, 1, 9, 0, 5);
            generate_samples(u, &alone, &limits, &sampling);
            for (int64_t i = 0; i < count; i++)
                add_prompt(u, &samples, 1, 9, 0, 5);
            generate_samples(u, &samples, &limits, &sampling);
            for (int64_t i = 0; i < count; i++)
                if (!prompts_equal(&samples.items[i], &alone.items[0]))
                    fail_msg("%s: request %d of %d has another answer", u->name, (int)i,
                             (int)count);
            invar_rl_samples_reset(&samples);
            invar_rl_samples_reset(&alone);
        }
}

static void test_rollout__equal_requests_get_one_response(void **state)
{
    (void)state;
    for_subjects(check_equal);
}

/* ---- a request among others ------------------------------------------------------------------ */

/* A request at a random position of random batches gets the same response. */
static void check_among_others(const rollout_subject *u)
{
    const invar_sampling_params sampling = sampling_of(0.6f, invar_sweep_size(u->s, 16, 4));
    const invar_rollout_exec_options limits = {0};
    int64_t longest = invar_sweep_size(u->s, 600, 20), large = invar_sweep_size(u->s, 64, 4);
    invar_rl_samples alone = {0};
    uint64_t n = 0;

    add_prompt(u, &alone, 1, longest / 3, 0, 5);
    generate_samples(u, &alone, &limits, &sampling);
    for (int trial = 0; trial < invar_sweep_size(u->s, 5, 2); trial++) {
        int64_t count = large + invar_test_random(9, n++) % large;
        int64_t place = invar_test_random(9, n++) % count;
        invar_rl_samples samples = {0};

        for (int64_t i = 0; i < count; i++) {
            int64_t length = 1 + invar_test_random(9, n++) % longest;

            if (i == place)
                add_prompt(u, &samples, 1, longest / 3, i, 5);
            else
                add_prompt(u, &samples, 100 + n, length, i, (uint32_t)i);
        }
        generate_samples(u, &samples, &limits, &sampling);
        if (!prompts_equal(&samples.items[place], &alone.items[0]))
            fail_msg("%s: place %d of %d: another answer", u->name, (int)place, (int)count);
        invar_rl_samples_reset(&samples);
    }
    invar_rl_samples_reset(&alone);
}

static void test_rollout__request_among_others(void **state)
{
    (void)state;
    for_subjects(check_among_others);
}

/* ---- long prompts ---------------------------------------------------------------------------- */

/*
 * Prompts of several lengths, each several times: shared or not, in any chunks and pages, with
 * drafts.
 */
static void check_prompts(const rollout_subject *u)
{
    static const int64_t lengths[] = {1, 511, 2048, 4097}, small[] = {1, 17, 40, 33};
    static const invar_rollout_exec_options ways[] = {
        {.concurrency = 3},
        {.no_prefix_sharing = true},
        {.prefill_chunk = 100, .page_size = 24},
        {.prefill_chunk = 1000, .page_size = 128},
        {.concurrency = 1, .prefill_chunk = 33, .page_size = 8},
        {.speculation = {INVAR_SPECULATIVE_ALGORITHM_NGRAM, 4, {1, 4}, NULL}},
        {.page_size = 8, .speculation = {INVAR_SPECULATIVE_ALGORITHM_DRAFT, .tokens = 8}},
        {.speculation = {INVAR_SPECULATIVE_ALGORITHM_DRAFT, .tokens = 2}}};
    const invar_sampling_params sampling = sampling_of(0.8f, 8);
    const invar_rollout_exec_options usual = {0};
    invar_rl_samples expected = {0};

    for (int64_t i = 0; i < 12; i++)
        add_prompt(u, &expected, 50 + (uint64_t)(i / 3),
                   u->s->large ? lengths[i / 3] : small[i / 3], i / 3, (uint32_t)i);
    generate_samples(u, &expected, &usual, &sampling);
    for (int way = 0; way < 8; way++) {
        invar_rollout_exec_options limits = ways[way];
        invar_rl_samples samples = {0};
        char what[100];

        for (int64_t i = 0; i < expected.count; i++) {
            const invar_rl_sample *e = &expected.items[i];
            assert_ok(prompts_add(&samples, e->tokens, e->prompt_tokens, e->group, e->draw_index));
        }
        (void)snprintf(what, sizeof what, "%s, way %d", u->name, way);
        if (limits.speculation.algorithm == INVAR_SPECULATIVE_ALGORITHM_DRAFT)
            limits.speculation.model = u->model; // all of its drafts are accepted
        generate_samples(u, &samples, &limits, &sampling);
        prompts_assert_equal(&samples, &expected, what);
        invar_rl_samples_reset(&samples);
    }
    invar_rl_samples_reset(&expected);
}

static void test_rollout__prompts_shared_and_chunked(void **state)
{
    (void)state;
    for_subjects(check_prompts);
}

/* ---- generated and scored -------------------------------------------------------------------- */

/* Scores through the cache, in chunks. */
static void score_cached(const rollout_subject *u, const invar_rl_samples *samples, int64_t chunk,
                         float temperature, const char *what)
{
    static float logp[MAX_SCORES];
    const invar_rollout_exec_options limits = {.prefill_chunk = chunk};
    const int32_t *tokens[MAX_SAMPLES];
    float *out[MAX_SAMPLES];
    int64_t n[MAX_SAMPLES], next = 0;
    invar_rollout *rollout;

    for (int64_t i = 0; i < samples->count; i++) {
        tokens[i] = samples->items[i].tokens;
        n[i] = samples->items[i].n_tokens;
        out[i] = logp + next;
        next += n[i] - 1;
    }
    assert_true(next <= MAX_SCORES);
    assert_ok(invar_rollout_new(&rollout, u->model, NULL, u->dev, &limits));
    assert_ok(invar_rollout_score(rollout, tokens, n, samples->count, temperature, out));
    invar_rollout_free(rollout);
    for (int64_t i = 0; i < samples->count; i++) {
        const invar_rl_sample *s = &samples->items[i];
        invar_assert_bits_f32(out[i] + s->prompt_tokens - 1, s->logp, invar_rl_sample_response(s),
                              what);
    }
}

/* Scores as training does, in micro-batches. */
static void score_packed(const rollout_subject *u, const invar_rl_samples *samples,
                         int64_t micro_batch, float temperature, const char *what)
{
    static float logp[MAX_SCORES], entropy[MAX_SCORES];
    const invar_trainer_options options = {
        .plan = {1, 1, micro_batch, 0}, .temperature = temperature, .replay = u->model};
    const float *next = logp;
    invar_trainer *trainer;

    assert_ok(invar_trainer_new(&trainer, u->dev, &options));
    assert_ok(
        invar_trainer_score(trainer, u->model, samples->items, samples->count, logp, entropy));
    invar_trainer_free(trainer);
    for (int64_t i = 0; i < samples->count; i++) {
        const invar_rl_sample *s = &samples->items[i];
        invar_assert_bits_f32(next, s->logp, invar_rl_sample_response(s), what);
        next += invar_rl_sample_response(s);
    }
}

static void check_scores(const rollout_subject *u)
{
    static const int64_t chunks[] = {0, 1, 7, 64, 100};
    const invar_sampling_params sampling = sampling_of(0.7f, invar_sweep_size(u->s, 60, 12));
    const invar_rollout_exec_options limits = {0};
    invar_rl_samples samples = {0};

    for (int64_t i = 0; i < invar_sweep_size(u->s, 32, 5); i++)
        add_prompt(u, &samples, 200 + (uint64_t)i, 1 + i * invar_sweep_size(u->s, 13, 3), i,
                   (uint32_t)i);
    generate_samples(u, &samples, &limits, &sampling);
    for (int i = 0; i < 5; i++)
        score_cached(u, &samples, chunks[i], sampling.temperature, u->name);
    for (int64_t micro_batch = 1; micro_batch <= samples.count; micro_batch *= 3)
        score_packed(u, &samples, micro_batch, sampling.temperature, u->name);
    invar_rl_samples_reset(&samples);
}

static void test_rollout__generated_is_scored(void **state)
{
    (void)state;
    for_subjects(check_scores);
}

/* ---- controls -------------------------------------------------------------------------------- */

/* Control: another draw or another prompt gets another response. */
static void check_controls(const rollout_subject *u)
{
    const invar_sampling_params sampling = sampling_of(0.6f, 8);
    const invar_rollout_exec_options limits = {0};
    invar_rl_samples samples = {0};

    add_prompt(u, &samples, 1, 9, 0, 5);
    add_prompt(u, &samples, 1, 9, 0, 6);
    add_prompt(u, &samples, 2, 9, 1, 5);
    generate_samples(u, &samples, &limits, &sampling);
    for (int i = 1; i < 3; i++)
        assert_false(prompts_equal(&samples.items[i], &samples.items[0]));
    invar_rl_samples_reset(&samples);
}

static void test_rollout__controls_are_seen(void **state)
{
    (void)state;
    for_subjects(check_controls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rollout__equal_requests_get_one_response),
        cmocka_unit_test(test_rollout__request_among_others),
        cmocka_unit_test(test_rollout__prompts_shared_and_chunked),
        cmocka_unit_test(test_rollout__generated_is_scored),
        cmocka_unit_test(test_rollout__controls_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
