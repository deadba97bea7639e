/*
 * rollout.c - a sample depends on its prompt, its coordinates and the weights only.
 *
 * Tokens, log-probs and routing are compared bit by bit, for any number of concurrent sequences,
 * prefill chunk, page size, number of pages and threads, with other neighbors in any order, and
 * with pauses. Log-probs must also equal those of the packed forward pass of training and of
 * scoring. Controls: other coordinates, seeds, temperatures and weights give other samples. By
 * default the settings share the numerics and the checks; under `full` every setting has all.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/model_runner.h"
#include "tests/property/engine/rollout_variants.h"
#include "tests/unit/engine/sample/rollout/prompts.h"

enum { GROUPS = 6, EACH = 4, LONGEST = 11, RESPONSE = 20 };

static const invar_sampling_params baseline = PROMPTS_SAMPLING(RESPONSE);

typedef struct setting {
    invar_test_model kind;
    invar_format format;
    invar_numerics numerics;
} setting;

/* ---- generation ------------------------------------------------------------------------------ */

static int64_t n_recomputed; /* rows recomputed after preemptions, of all generations */

static void generate_samples(invar_rl_samples *samples, const invar_model *model,
                             const invar_device *dev, const invar_rollout_exec_options *limits,
                             const invar_sampling_params *sampling)
{
    invar_rollout_counters counted;
    invar_rollout *rollout;

    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, limits));
    assert_ok(invar_rollout_run(rollout, samples->items, samples->count, sampling, NULL, NULL));
    invar_rollout_get_counters(&counted, rollout);
    n_recomputed += counted.recomputed;
    invar_rollout_free(rollout);
}

static void generate_prompts(invar_rl_samples *samples, const invar_model *model,
                             const invar_device *dev, const invar_rollout_exec_options *limits,
                             const invar_sampling_params *sampling)
{
    assert_ok(prompts_new(samples, GROUPS, EACH, LONGEST, model->spec.vocab));
    generate_samples(samples, model, dev, limits, sampling);
}

static void describe_setting(char *out, size_t size, const setting *s, const char *what)
{
    snprintf(out, size, "%s %s %s: %s", invar_test_model_name(s->kind),
             invar_format_name(s->format), invar_numerics_name(s->numerics), what);
}

/* ---- execution ------------------------------------------------------------------------------- */

static void check_variant(const invar_rl_samples *expected, const invar_model *model,
                          const setting *s, const rollout_variant *w)
{
    const invar_rollout_exec_options limits = variant_limits(w, LONGEST + RESPONSE);
    invar_rl_samples samples;
    invar_device dev;
    char what[160], way_text[80];

    variant_describe(way_text, sizeof way_text, w);
    describe_setting(what, sizeof what, s, way_text);
    invar_test_device_init(&dev, s->numerics, INVAR_CPU_PATH_SIMD, w->threads);
    generate_prompts(&samples, model, &dev, &limits, &baseline);
    prompts_assert_equal(&samples, expected, what);
    invar_rl_samples_reset(&samples);
    invar_test_device_release(&dev);
}

/* Checks every combination of the options for one model. */
static void check_all_variants(const invar_rl_samples *expected, const invar_model *model,
                               const setting *s)
{
    static const int64_t at_a_time[] = {1, 2, 5, 64}, chunks[] = {1, 3, 7, 512};
    static const int64_t page_sizes[] = {1, 2, 16, 64};

    for (int i = 0; i < 4 * 4 * 4 * 3 * 2 * 3; i++) {
        rollout_variant w = {.threads = 1 + i % 3,
                             .few_pages = i / 3 % 3,
                             .no_sharing = i / 9 % 2,
                             .concurrency = at_a_time[i / 18 % 4],
                             .chunk = chunks[i / 72 % 4],
                             .page_size = page_sizes[i / 288]};
        check_variant(expected, model, s, &w);
    }
}

/* ---- training -------------------------------------------------------------------------------- */

/* All samples packed as for training. */
typedef struct packed {
    invar_packed_rows rows;
    invar_logit_rows head;
    int32_t ids[2048], positions[2048], targets[2048], routing[4096];
    int64_t start[64], row[2048], head_start[64];
    invar_sample_coords coords[2048];
    float logp[2048];
} packed;

static void pack_samples(packed *p, const invar_rl_samples *samples, float temperature)
{
    int64_t t = 0, r = 0;

    for (int64_t i = 0; i < samples->count; i++) {
        const invar_rl_sample *s = &samples->items[i];

        p->start[i] = t;
        p->head_start[i] = r;
        for (int64_t n = 0; n < s->n_tokens; n++, t++) {
            p->ids[t] = s->tokens[n];
            p->positions[t] = (int32_t)n;
            if (n + 1 < s->n_tokens && n + 1 >= s->prompt_tokens) {
                p->row[r] = t;
                p->coords[r] = (invar_sample_coords){(uint32_t)n + 1, s->draw_index, s->rollout};
                p->targets[r++] = s->tokens[n + 1];
            }
        }
    }
    p->start[samples->count] = t;
    p->head_start[samples->count] = r;
    assert_true(t <= 2048 && samples->count < 64);
    p->rows = (invar_packed_rows){.count = t,
                                  .ids = p->ids,
                                  .positions = p->positions,
                                  .samples = {p->start, samples->count},
                                  .units = {p->start, samples->count},
                                  .routing = p->routing};
    p->head = (invar_logit_rows){.count = r,
                                 .row = p->row,
                                 .targets = p->targets,
                                 .units = {p->head_start, samples->count},
                                 .temperature = temperature};
}

/*
 * Checks that sampling from training's logits with the coordinates (position, draw, rollout) gives
 * the same tokens.
 */
static void check_draws(packed *p, invar_pass *pass, const invar_device *dev,
                        const invar_sampling_params *sampling)
{
    static int32_t tokens[2048];
    invar_sample_args args = {.tokens = invar_tensor_1d(tokens, INVAR_DTYPE_I32, p->head.count),
                              .coords = p->coords,
                              .seed = sampling->seed,
                              .purpose = sampling->purpose,
                              .temperature = sampling->temperature,
                              .top_k = sampling->top_k,
                              .top_p = sampling->top_p,
                              .min_p = sampling->min_p};

    assert_ok(invar_pass_logits(&args.logits, pass, p->row, p->head.count));
    assert_ok(invar_sample(dev, &args));
    assert_memory_equal(tokens, p->targets, (size_t)p->head.count * sizeof *tokens);
}

static void check_training(const invar_rl_samples *samples, const invar_model *model,
                           const invar_device *dev, const invar_sampling_params *sampling,
                           const char *what)
{
    static packed p;
    const invar_pass_options options = {.train = true};
    invar_pass *pass;

    pack_samples(&p, samples, sampling->temperature == 0.0f ? 1.0f : sampling->temperature);
    assert_ok(invar_pass_new(&pass, dev, &options));
    assert_ok(invar_pass_run(pass, model, &p.rows));
    assert_ok(invar_pass_head(pass, &p.head, p.logp, NULL));
    for (int64_t i = 0; i < samples->count; i++) {
        const invar_rl_sample *s = &samples->items[i];

        invar_assert_bits_f32(s->logp, p.logp + p.head_start[i], invar_rl_sample_response(s), what);
        if (s->route_size > 0)
            assert_memory_equal(s->routing, p.routing + p.start[i] * s->route_size,
                                (size_t)((s->n_tokens - 1) * s->route_size) * sizeof *s->routing);
    }
    if (sampling->min_response == 0) // otherwise stop ids are excluded at the first tokens
        check_draws(&p, pass, dev, sampling);
    invar_pass_free(pass);
}

/* ---- scoring --------------------------------------------------------------------------------- */

typedef float scores[64][LONGEST + RESPONSE];

/* Scores complete sequences, and checks that responses have the log-probs of the rollout. */
static void score_samples(scores logp, const invar_rl_samples *samples, const invar_model *model,
                          const invar_device *dev, const invar_rollout_exec_options *limits,
                          const char *what)
{
    const int32_t *tokens[64];
    float *out[64];
    int64_t n[64];
    invar_rollout *rollout;

    for (int64_t i = 0; i < samples->count; i++) {
        tokens[i] = samples->items[i].tokens;
        n[i] = samples->items[i].n_tokens;
        out[i] = logp[i];
    }
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, limits));
    assert_ok(invar_rollout_score(rollout, tokens, n, samples->count, baseline.temperature, out));
    for (int64_t i = 0; i < samples->count; i++) {
        const invar_rl_sample *s = &samples->items[i];
        invar_assert_bits_f32(logp[i] + s->prompt_tokens - 1, s->logp, invar_rl_sample_response(s),
                              what);
    }
    invar_rollout_free(rollout);
}

static void check_scores(const invar_rl_samples *samples, const invar_model *model,
                         const invar_device *dev, const char *what)
{
    static const invar_rollout_exec_options score_options[] = {
        {.prefill_chunk = 1, .concurrency = 5},
        {.prefill_chunk = 7, .page_size = 1, .concurrency = 3},
        {.prefill_chunk = 1, .concurrency = 64, .page_size = 2}};
    const invar_rollout_exec_options default_options = {0};
    scores expected_scores, got;

    score_samples(expected_scores, samples, model, dev, &default_options, what);
    for (int64_t i = 0; i < invar_test_count(1, 3); i++) {
        score_samples(got, samples, model, dev, &score_options[i], what);
        for (int64_t n = 0; n < samples->count; n++)
            invar_assert_bits_f32(got[n], expected_scores[n], samples->items[n].n_tokens - 1, what);
    }
}

/* ---- neighbors ------------------------------------------------------------------------------- */

/* Checks some samples alone, and all of them in reverse order. */
static void check_neighbors(const invar_rl_samples *expected, const invar_model *model,
                            const invar_device *dev, const char *what)
{
    const invar_rollout_exec_options limits = {
        .concurrency = 5, .prefill_chunk = 4, .page_size = 3};
    invar_rl_samples samples = {0};
    int64_t last = expected->count - 1;

    for (int64_t i = 0; i <= last; i += invar_test_count(5, 1)) {
        const invar_rl_sample *e = &expected->items[i];
        assert_ok(prompts_add(&samples, e->tokens, e->prompt_tokens, e->group, e->draw_index));
        generate_samples(&samples, model, dev, &limits, &baseline);
        if (!prompts_equal(&samples.items[0], e))
            fail_msg("%s: sample %d alone differs", what, (int)i);
        invar_rl_samples_reset(&samples);
    }
    for (int64_t i = 0; i <= last; i++) {
        const invar_rl_sample *e = &expected->items[last - i];
        assert_ok(prompts_add(&samples, e->tokens, e->prompt_tokens, e->group, e->draw_index));
    }
    generate_samples(&samples, model, dev, &limits, &baseline);
    for (int64_t i = 0; i <= last; i++)
        if (!prompts_equal(&samples.items[i], &expected->items[last - i]))
            fail_msg("%s: sample %d differs in reverse order", what, (int)(last - i));
    invar_rl_samples_reset(&samples);
}

/* ---- pauses ---------------------------------------------------------------------------------- */

/*
 * Sets a random next pause for every unfinished sample, moves these to the front and returns their
 * number.
 */
static int64_t set_pauses(invar_rl_samples *samples, uint64_t seed)
{
    int64_t left = 0;

    for (int64_t i = 0; i < samples->count; i++) {
        invar_rl_sample *s = &samples->items[i], moved;

        if (s->finish != INVAR_FINISH_NONE)
            continue;
        s->suspend_at = s->n_tokens + 1 + invar_test_random(seed, (uint64_t)i) % 7;
        moved = *s;
        *s = samples->items[left];
        samples->items[left++] = moved;
    }
    return left;
}

static const invar_rl_sample *find_draw(const invar_rl_samples *samples, uint32_t draw)
{
    int64_t i = 0;

    while (samples->items[i].draw_index != draw)
        i++;
    return &samples->items[i];
}

/* Checks that samples which are paused and resumed again and again are those of one run. */
static void check_pauses(const invar_rl_samples *expected, const invar_model *model,
                         const setting *s, const rollout_variant *w)
{
    const invar_rollout_exec_options limits = variant_limits(w, LONGEST + RESPONSE);
    invar_rl_samples samples;
    invar_device dev;
    char what[160];
    int64_t left, runs = 0;

    describe_setting(what, sizeof what, s, "with pauses");
    invar_test_device_init(&dev, s->numerics, INVAR_CPU_PATH_SIMD, w->threads);
    assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, model->spec.vocab));
    while ((left = set_pauses(&samples, (uint64_t)runs)) > 0) {
        invar_rl_samples some = {samples.items, left, left};
        generate_samples(&some, model, &dev, &limits, &baseline);
        runs++;
    }
    assert_true(runs > 3);
    for (int64_t i = 0; i < expected->count; i++)
        if (!prompts_equal(find_draw(&samples, expected->items[i].draw_index), &expected->items[i]))
            fail_msg("%s: sample %d differs", what, (int)i);
    invar_rl_samples_reset(&samples);
    invar_test_device_release(&dev);
}

/* ---- the sweep ------------------------------------------------------------------------------- */

static void check_setting(const setting *s, int64_t number)
{
    const invar_rollout_exec_options limits = {0};
    invar_rl_samples expected;
    invar_model *model;
    invar_device dev;
    char what[160];

    describe_setting(what, sizeof what, s, "");
    invar_test_device_init(&dev, s->numerics, INVAR_CPU_PATH_SIMD, 1);
    model = invar_test_model_new(s->kind, s->format, 3, &dev);
    generate_prompts(&expected, model, &dev, &limits, &baseline);
    // the reduced sweep uses another variant for each setting
    for (int64_t i = 0; i < invar_test_count(1, VARIANTS); i++)
        check_variant(&expected, model, s, &variants[(number + i) % VARIANTS]);
    check_training(&expected, model, &dev, &baseline, what);
    check_scores(&expected, model, &dev, what);
    if (invar_test_full() || number % 2 == 0)
        check_neighbors(&expected, model, &dev, what);
    if (invar_test_full() || number % 2 == 1)
        check_pauses(&expected, model, s, &variants[number % VARIANTS]);
    if (invar_test_full() && s->format == INVAR_FORMAT_BF16 && s->numerics == INVAR_NUMERICS_IEEE &&
        s->kind >= INVAR_TEST_MODEL_WINDOW)
        check_all_variants(&expected, model, s);
    invar_rl_samples_reset(&expected);
    invar_model_free(model);
    invar_test_device_release(&dev);
}

static void test_rollout__bits_do_not_depend_on_execution(void **state)
{
    int64_t number = 0, n_checked = 0;

    (void)state;
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++)
            for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++, number++) {
                setting s = {(invar_test_model)kind, (invar_format)format,
                             (invar_numerics)numerics};
                bool usual_kind =
                    kind == INVAR_TEST_MODEL_DENSE || kind == INVAR_TEST_MODEL_EXPERTS;
                // f32 products do not depend on the numerics; other models run in one format
                if (format == INVAR_FORMAT_FP32 && numerics != INVAR_NUMERICS_IEEE)
                    continue;
                if (invar_test_full())
                    check_setting(&s, number);
                else if ((usual_kind || format == INVAR_FORMAT_BF16) &&
                         (format == INVAR_FORMAT_FP32 || (kind + format + numerics) % 2 == 0))
                    check_setting(&s, n_checked++);
            }
    assert_true(n_recomputed > 100);
}

/* ---- one model, many sampling parameters ----------------------------------------------------- */

typedef struct fixture {
    invar_device dev;
    invar_model *model;
    invar_rl_samples baseline; /* generated with the default options */
} fixture;

static int setup(void **state)
{
    static fixture f;
    const invar_rollout_exec_options limits = {0};

    invar_test_device_init(&f.dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
    f.model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP32, 3, &f.dev);
    generate_prompts(&f.baseline, f.model, &f.dev, &limits, &baseline);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    invar_rl_samples_reset(&f->baseline);
    invar_model_free(f->model);
    invar_test_device_release(&f->dev);
    return 0;
}

/*
 * The samples are worth comparing: they have different lengths and ends, and no two of a group are
 * equal.
 */
static void test_rollout__samples_are_various(void **state)
{
    const fixture *f = *state;
    int64_t stopped = 0, longest = 0;

    for (int64_t i = 0; i < f->baseline.count; i++) {
        const invar_rl_sample *s = &f->baseline.items[i];
        int64_t n = invar_rl_sample_response(s);

        assert_int_equal(s->route_size, 1 * 2);
        stopped += s->finish == INVAR_FINISH_STOP;
        longest += s->finish == INVAR_FINISH_LENGTH;
        assert_true(n >= 1 && n <= RESPONSE);
        assert_int_equal(s->finish == INVAR_FINISH_LENGTH, n == RESPONSE);
        for (int64_t t = 0; t < n; t++) {
            assert_true(s->logp[t] < 0.0f && s->mask[t] == 1);
            for (int e = 0; e < 6; e++)
                if (t + 1 < n)
                    assert_int_not_equal(s->tokens[s->prompt_tokens + t], prompts_ends[e]);
        }
        for (int64_t j = 0; j < i; j++)
            assert_false(s->group == f->baseline.items[j].group &&
                         prompts_equal(s, &f->baseline.items[j]));
    }
    assert_true(stopped > 0 && longest > 0 && stopped + longest == f->baseline.count);
}

/* Old values in the cache, here NaN, are never read. */
static void test_rollout__stale_pages_do_not_matter(void **state)
{
    fixture *f = *state;
    const invar_rollout_exec_options limits = {.concurrency = 3, .page_size = 4};
    invar_rl_samples samples;
    invar_rollout *rollout;

    assert_ok(invar_rollout_new(&rollout, f->model, NULL, &f->dev, &limits));
    for (int i = 0; i < 3; i++) {
        assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, f->model->spec.vocab));
        assert_ok(invar_rollout_run(rollout, samples.items, samples.count, &baseline, NULL, NULL));
        prompts_assert_equal(&samples, &f->baseline, "a later run");
        invar_rl_samples_reset(&samples);
        memset(rollout->cache->memory, 0xFF,
               (size_t)(rollout->cache->shape.pages *
                        invar_kv_cache_page_bytes(&rollout->cache->shape)));
    }
    invar_rollout_free(rollout);
}

static void test_rollout__arrival_is_the_order_of_completion(void **state)
{
    fixture *f = *state;
    bool seen[64] = {false};

    for (int64_t i = 0; i < f->baseline.count; i++) {
        int64_t arrival = f->baseline.items[i].stats.arrival;
        assert_in_range(arrival, 0, f->baseline.count - 1);
        assert_false(seen[arrival]);
        seen[arrival] = true;
    }
}

/* Log-probs are those of the full vocabulary, regardless of the filters. */
static void test_rollout__filters_do_not_change_log_probs(void **state)
{
    fixture *f = *state;
    const invar_rollout_exec_options limits = {.concurrency = 5};
    invar_sampling_params sampling[] = {baseline, baseline, baseline, baseline, baseline};

    sampling[0].top_k = 5;
    sampling[1].top_p = 0.6f;
    sampling[2].min_p = 0.1f;
    sampling[3].temperature = 1.7f, sampling[3].top_k = 40, sampling[3].top_p = 0.9f;
    sampling[4].min_response = RESPONSE / 2; // stop ids are excluded at first
    for (int i = 0; i < 5; i++) {
        invar_rl_samples samples;

        generate_prompts(&samples, f->model, &f->dev, &limits, &sampling[i]);
        check_training(&samples, f->model, &f->dev, &sampling[i], "filters");
        invar_rl_samples_reset(&samples);
    }
}

/*
 * If the temperature is 0, all samples of a group have the same response, and log-probs have
 * temperature 1.
 */
static void test_rollout__greedy(void **state)
{
    fixture *f = *state;
    const invar_rollout_exec_options limits = {0};
    invar_sampling_params sampling = baseline;
    invar_rl_samples samples;

    sampling.temperature = 0.0f;
    generate_prompts(&samples, f->model, &f->dev, &limits, &sampling);
    for (int64_t i = 1; i < samples.count; i++)
        if (samples.items[i].group == samples.items[i - 1].group)
            assert_true(prompts_equal(&samples.items[i], &samples.items[i - 1]));
    check_training(&samples, f->model, &f->dev, &sampling, "greedy");
    invar_rl_samples_reset(&samples);
}

/* ---- inputs that must matter ----------------------------------------------------------------- */

static int64_t count_differing(const invar_rl_samples *a, const invar_rl_samples *b)
{
    int64_t n = 0;

    for (int64_t i = 0; i < a->count; i++)
        n += !prompts_equal(&a->items[i], &b->items[i]);
    return n;
}

static void assert_all_differ(fixture *f, const invar_sampling_params *sampling,
                              uint32_t draw_shift, uint32_t rollout_shift)
{
    const invar_rollout_exec_options limits = {0};
    invar_rl_samples samples;

    assert_ok(prompts_new(&samples, GROUPS, EACH, LONGEST, f->model->spec.vocab));
    for (int64_t i = 0; i < samples.count; i++) {
        samples.items[i].draw_index += draw_shift;
        samples.items[i].rollout += rollout_shift;
    }
    generate_samples(&samples, f->model, &f->dev, &limits, sampling);
    assert_true(count_differing(&samples, &f->baseline) > f->baseline.count / 2);
    invar_rl_samples_reset(&samples);
}

static void test_rollout__coordinates_matter(void **state)
{
    fixture *f = *state;
    invar_sampling_params sampling = baseline;

    assert_all_differ(f, &baseline, 1000, 0);
    assert_all_differ(f, &baseline, 0, 1);
    sampling.seed++;
    assert_all_differ(f, &sampling, 0, 0);
    sampling = baseline;
    sampling.purpose = INVAR_PURPOSE_EVAL;
    assert_all_differ(f, &sampling, 0, 0);
    sampling = baseline;
    sampling.temperature = 0.81f;
    assert_all_differ(f, &sampling, 0, 0);
}

/* One bit of one weight changes log-probs. */
static void test_rollout__weights_matter(void **state)
{
    fixture *f = *state;
    const invar_rollout_exec_options limits = {0};
    uint32_t *weight = f->model->params[0].master.data;
    invar_rl_samples samples;
    uint32_t before;

    // an element of the embedding of the first prompt's first token
    weight += f->baseline.items[0].tokens[0] * f->model->params[0].cols;
    before = *weight;
    *weight ^= 1u << 20;
    assert_ok(invar_model_update_weights(f->model, &f->dev));
    generate_prompts(&samples, f->model, &f->dev, &limits, &baseline);
    assert_false(prompts_equal(&samples.items[0], &f->baseline.items[0]));
    *weight = before;
    assert_ok(invar_model_update_weights(f->model, &f->dev));
    invar_rl_samples_reset(&samples);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rollout__samples_are_various),
        cmocka_unit_test(test_rollout__stale_pages_do_not_matter),
        cmocka_unit_test(test_rollout__arrival_is_the_order_of_completion),
        cmocka_unit_test(test_rollout__filters_do_not_change_log_probs),
        cmocka_unit_test(test_rollout__greedy),
        cmocka_unit_test(test_rollout__coordinates_matter),
        cmocka_unit_test(test_rollout__weights_matter),
        cmocka_unit_test(test_rollout__bits_do_not_depend_on_execution),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
