/*
 * stop.c - tests of the end of responses: stop strings, stop ids, lengths, and suspended rollouts.
 *
 * A reference rollout has no stop condition; with one, each sample must be a prefix of the
 * reference, bit for bit. Every rollout is repeated with suspensions, which must not change it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "engine/sample/rollout/stop.h"
#include "tests/unit/engine/sample/rollout/prompts.h"

/* ---- search ---------------------------------------------------------------------------------- */

static int64_t find_stop(const char *text, size_t from, const char *a, const char *b)
{
    const char *const stop[2] = {a, b};

    return invar_stop_find(text, strlen(text), from, stop, 2);
}

static void test_stop__finds_matches_that_end_in_new_text(void **state)
{
    (void)state;
    assert_int_equal(find_stop("one two", 0, "two", "one"), 0);
    assert_int_equal(find_stop("one two", 0, "three", "one"), 1);
    assert_int_equal(find_stop("one two", 3, "three", "one"), -1); // ends in the old text
    assert_int_equal(find_stop("one two", 2, "three", "one"), 1);
    assert_int_equal(find_stop("one two", 6, "three", "two"), 1); // spans old and new text
    assert_int_equal(find_stop("one two", 7, "three", "two"), -1);
    assert_int_equal(find_stop("one two", 6, "three", "one two"), 1);
    assert_int_equal(find_stop("one two", 0, "one two ", "x"), -1);
    assert_int_equal(find_stop("aaab", 3, "ab", "x"), 0);
    assert_int_equal(find_stop("aaabaab", 4, "aab", "x"), 0);
    assert_int_equal(find_stop("", 0, "a", "b"), -1);
    assert_int_equal(find_stop("abc", 0, "", "x"), -1); // an empty string never matches
    assert_int_equal(invar_stop_find("abc", 3, 0, NULL, 0), -1);
}

/* Searches text that grows by 1 to 3 bytes, compared with strstr on every prefix. */
static void test_stop__agrees_with_strstr(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        char text[13] = "", a[5] = "", b[4] = "";
        const char *const stop[2] = {a, b};
        size_t first = 0, bytes;

        for (uint64_t i = 0; i < 12; i++)
            text[i] = "ab"[invar_test_random(seed, i) % 2];
        for (uint64_t i = 0; i < 4; i++)
            a[i] = "ab"[invar_test_random(seed, 20 + i) % 2];
        for (uint64_t i = 0; i < 3; i++)
            b[i] = "ab"[invar_test_random(seed, 30 + i) % 2];
        // the shortest prefix of the text that contains one of both
        for (first = 1; first <= 12; first++) {
            char begin[13] = "";
            memcpy(begin, text, first);
            if (strstr(begin, a) || strstr(begin, b))
                break;
        }
        for (bytes = 0; bytes < 12;) {
            size_t n_added = 1 + invar_test_random(seed, 40 + bytes) % 3;
            size_t from = bytes;
            bytes = bytes + n_added < 12 ? bytes + n_added : 12;
            if (invar_stop_find(text, bytes, from, stop, 2) >= 0) {
                assert_true(first > from && first <= bytes);
                break;
            }
            assert_true(first > bytes);
        }
    }
}

/* ---- responses ------------------------------------------------------------------------------- */

/* A tiny model whose tokens are letters. */
typedef struct fixture {
    invar_device dev;
    invar_model *model;
    invar_tokenizer *tokenizer;
    invar_rollout *rollout;
    invar_rl_samples unlimited; /* reference samples without stop conditions */
} fixture;

enum { RESPONSE = 40, VOCAB = 27, SAMPLES = 6 };

static const int32_t prompt[] = {1, 2, 3, 4, 5};
static const invar_sampling_params base_sampling = {
    .seed = 4, .temperature = 1.0f, .top_p = 1.0f, .max_response = RESPONSE};

static void make_prompts(invar_rl_samples *out)
{
    *out = (invar_rl_samples){0};
    for (uint32_t i = 0; i < SAMPLES; i++)
        assert_ok(prompts_add(out, prompt, 5, i / 3, i));
}

/* Samples suspended every few tokens, also within a stop string, must equal the others. */
static void check_pauses(const invar_rl_samples *expected, const fixture *f,
                         const invar_sampling_params *sampling)
{
    invar_rl_samples samples;

    make_prompts(&samples);
    for (int64_t i = 0; i < samples.count; i++) {
        invar_rl_sample *s = &samples.items[i];

        while (s->finish == INVAR_FINISH_NONE) {
            s->suspend_at = s->n_tokens + 1 + i % 3;
            assert_ok(invar_rollout_run(f->rollout, s, 1, sampling, NULL, NULL));
            assert_true(s->finish == INVAR_FINISH_NONE ? s->n_tokens == s->suspend_at
                                                       : s->n_tokens <= s->suspend_at);
        }
    }
    prompts_assert_equal(&samples, expected, "with pauses");
    invar_rl_samples_reset(&samples);
}

typedef struct suspend_timer {
    invar_rollout *rollout;
    int64_t passes; /* number of passes until it suspends the rollout */
} suspend_timer;

static invar_status suspend_after(void *payload, int64_t samples_done, int64_t tokens_done)
{
    suspend_timer *c = payload;

    (void)samples_done;
    (void)tokens_done;
    if (--c->passes == 0)
        invar_rollout_suspend(c->rollout);
    return INVAR_OK;
}

/* Copies the unfinished samples to `out`, or with `back` from there. Returns their number. */
static int64_t pack_active(invar_rl_sample *out, invar_rl_samples *from, bool back)
{
    int64_t n = 0;

    for (int64_t i = 0; i < from->count; i++)
        if (from->items[i].finish == INVAR_FINISH_NONE) {
            if (back)
                from->items[i] = out[n++];
            else
                out[n++] = from->items[i];
        }
    return n;
}

/*
 * Suspends the complete rollout after `passes` passes, again and again. Returns how often a sample
 * was suspended without a token.
 */
static int64_t check_suspended(const invar_rl_samples *expected, invar_rollout *rollout,
                               const invar_sampling_params *sampling, int64_t passes)
{
    invar_rl_sample active[SAMPLES];
    invar_rl_samples samples;
    int64_t n, n_without_token = 0;

    make_prompts(&samples);
    while ((n = pack_active(active, &samples, false)) > 0) {
        suspend_timer c = {rollout,
                           passes++}; // one more each time, because prefixes are computed again

        assert_ok(invar_rollout_run(rollout, active, n, sampling, suspend_after, &c));
        for (int64_t i = 0; i < n; i++) {
            bool has_tokens = active[i].n_tokens > active[i].prompt_tokens;

            assert_true(has_tokens == (active[i].logp != NULL) &&
                        has_tokens == (active[i].mask != NULL));
            assert_true(has_tokens || active[i].finish == INVAR_FINISH_NONE);
            assert_true((active[i].finish == INVAR_FINISH_NONE) == !active[i].response);
            n_without_token += !has_tokens;
        }
        pack_active(active, &samples, true);
    }
    prompts_assert_equal(&samples, expected, "left by the clock");
    invar_rl_samples_reset(&samples);
    return n_without_token;
}

static void generate(invar_rl_samples *out, const fixture *f, const invar_sampling_params *sampling)
{
    make_prompts(out);
    assert_ok(invar_rollout_run(f->rollout, out->items, out->count, sampling, NULL, NULL));
    check_pauses(out, f, sampling);
    for (int64_t passes = 1; passes < 12; passes += 3)
        (void)check_suspended(out, f->rollout, sampling, passes);
}

static int setup(void **state)
{
    static fixture f;
    const invar_rollout_exec_options limits = {.concurrency = 4, .page_size = 4};
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, false);

    spec.vocab = VOCAB;
    spec.eos[0] = VOCAB - 1;
    invar_test_device_init(&f.dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_ok(invar_model_new(&f.model, &spec, INVAR_FORMAT_FP32, NULL, &f.dev));
    assert_ok(invar_model_init(f.model, 5, &f.dev));
    assert_ok(invar_tokenizer_alphabet(&f.tokenizer, "abcdefghijklmnopqrstuvwxyz"));
    assert_ok(invar_rollout_new(&f.rollout, f.model, f.tokenizer, &f.dev, &limits));
    generate(&f.unlimited, &f, &base_sampling);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    invar_rl_samples_reset(&f->unlimited);
    invar_rollout_free(f->rollout);
    invar_tokenizer_free(f->tokenizer);
    invar_model_free(f->model);
    invar_test_device_release(&f->dev);
    return 0;
}

/* Suspends the rollout during the prefill of prompts and before it. */
static void test_stop__suspended_before_the_first_token(void **state)
{
    const fixture *f = *state;
    const invar_rollout_exec_options limits = {
        .concurrency = 2, .page_size = 4, .prefill_chunk = 3};
    invar_rollout *rollout;

    assert_ok(invar_rollout_new(&rollout, f->model, f->tokenizer, &f->dev, &limits));
    for (int64_t passes = 1; passes < 9; passes++)
        assert_true(check_suspended(&f->unlimited, rollout, &base_sampling, passes) > 0);
    invar_rollout_free(rollout);
}

/* Checks that the response is the first `n` tokens of the reference. */
static void assert_cut(const invar_rl_sample *s, const invar_rl_sample *unlimited, int64_t n,
                       invar_finish finish)
{
    assert_int_equal(s->finish, finish);
    assert_int_equal(invar_rl_sample_response(s), n);
    assert_memory_equal(s->tokens, unlimited->tokens, (size_t)s->n_tokens * sizeof *s->tokens);
    assert_memory_equal(s->logp, unlimited->logp, (size_t)n * sizeof *s->logp);
    assert_true(s->response_bytes <= unlimited->response_bytes);
    assert_memory_equal(s->response, unlimited->response, s->response_bytes);
    assert_int_equal(s->response[s->response_bytes], '\0');
}

/* Returns the number of response tokens that contain the first `bytes` bytes of the text. */
static int64_t tokens_for(const fixture *f, const invar_rl_sample *s, size_t bytes)
{
    size_t n_bytes = 0;
    int64_t n = 0;

    while (n_bytes < bytes) {
        size_t n_added;
        int32_t id = s->tokens[s->prompt_tokens + n++];
        (void)invar_tokenizer_bytes(&n_added, f->tokenizer, id);
        n_bytes +=
            base_sampling.skip_special && invar_tokenizer_special(f->tokenizer, id) ? 0 : n_added;
    }
    return n;
}

static void test_stop__the_text_is_that_of_the_tokens(void **state)
{
    const fixture *f = *state;

    for (int64_t i = 0; i < f->unlimited.count; i++) {
        const invar_rl_sample *s = &f->unlimited.items[i];
        char *text;
        size_t bytes;

        assert_int_equal(s->finish, INVAR_FINISH_LENGTH);
        assert_int_equal(invar_rl_sample_response(s), RESPONSE);
        assert_ok(invar_tokenizer_decode(&text, &bytes, f->tokenizer, s->tokens + s->prompt_tokens,
                                         RESPONSE, false));
        assert_int_equal(s->response_bytes, bytes);
        assert_memory_equal(s->response, text, bytes + 1);
        invar_free(text);
    }
}

/* Stop strings of one, two and three tokens. */
static void test_stop__strings_end_a_response(void **state)
{
    const fixture *f = *state;

    for (size_t length = 1; length <= 3; length++) {
        char wanted[4] = "";
        const char *const stop[] = {"never this one", wanted};
        invar_sampling_params sampling = base_sampling;
        invar_rl_samples samples;
        int64_t stopped = 0;

        memcpy(wanted, f->unlimited.items[0].response + 10, length);
        sampling.stop = stop;
        sampling.n_stop = 2;
        generate(&samples, f, &sampling);
        for (int64_t i = 0; i < samples.count; i++) {
            const invar_rl_sample *s = &f->unlimited.items[i];
            const char *hit = strstr(s->response, wanted);

            stopped += hit != NULL;
            if (hit)
                assert_cut(&samples.items[i], s,
                           tokens_for(f, s, (size_t)(hit - s->response) + length),
                           INVAR_FINISH_STOP);
            else
                assert_cut(&samples.items[i], s, RESPONSE, INVAR_FINISH_LENGTH);
        }
        assert_true(stopped > 0);
        invar_rl_samples_reset(&samples);
    }
}

static int64_t first_of(const invar_rl_sample *s, const int32_t *ids, int64_t n_ids, int64_t from)
{
    for (int64_t t = from; t < RESPONSE; t++)
        for (int64_t i = 0; i < n_ids; i++)
            if (s->tokens[s->prompt_tokens + t] == ids[i])
                return t;
    return -1;
}

static void test_stop__ids_end_a_response(void **state)
{
    const fixture *f = *state;
    int32_t ids[2] = {f->unlimited.items[0].tokens[5 + 7], f->unlimited.items[1].tokens[5 + 20]};
    invar_sampling_params sampling = base_sampling;
    invar_rl_samples samples;

    sampling.stop_ids = ids;
    sampling.n_stop_ids = 2;
    generate(&samples, f, &sampling);
    for (int64_t i = 0; i < samples.count; i++) {
        int64_t at = first_of(&f->unlimited.items[i], ids, 2, 0);

        if (at >= 0) // the stop id is part of the response
            assert_cut(&samples.items[i], &f->unlimited.items[i], at + 1, INVAR_FINISH_STOP);
        else
            assert_cut(&samples.items[i], &f->unlimited.items[i], RESPONSE, INVAR_FINISH_LENGTH);
    }
    invar_rl_samples_reset(&samples);
}

/* min_response: its tokens are never stop ids, and stop strings are ignored. */
static void test_stop__min_response(void **state)
{
    const fixture *f = *state;
    char wanted[2] = {f->unlimited.items[0].response[3], '\0'};
    const char *const stop[] = {wanted};
    int32_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 3}; // 3 occurs twice
    invar_sampling_params sampling = base_sampling;
    invar_rl_samples samples;

    sampling.stop_ids = ids;
    sampling.n_stop_ids = 10;
    sampling.min_response = 12;
    generate(&samples, f, &sampling);
    for (int64_t i = 0; i < samples.count; i++) {
        const invar_rl_sample *s = &samples.items[i];
        int64_t n = invar_rl_sample_response(s);

        assert_true(n > 12 && n < RESPONSE);
        assert_int_equal(s->finish, INVAR_FINISH_STOP);
        assert_int_equal(first_of(s, ids, 10, 0), n - 1);
    }
    invar_rl_samples_reset(&samples);

    sampling = base_sampling;
    sampling.stop = stop;
    sampling.n_stop = 1;
    sampling.min_response =
        4; // the stop string occurs in the fourth token, which must not end the response
    generate(&samples, f, &sampling);
    {
        const char *later = strstr(f->unlimited.items[0].response + 4, wanted);

        if (later)
            assert_cut(&samples.items[0], &f->unlimited.items[0],
                       tokens_for(f, &f->unlimited.items[0],
                                  (size_t)(later - f->unlimited.items[0].response) + 1),
                       INVAR_FINISH_STOP);
        else
            assert_cut(&samples.items[0], &f->unlimited.items[0], RESPONSE, INVAR_FINISH_LENGTH);
    }
    invar_rl_samples_reset(&samples);
}

static void test_stop__context_bounds_prompt_and_response(void **state)
{
    const fixture *f = *state;
    invar_sampling_params sampling = base_sampling;
    invar_rl_samples samples;

    for (int64_t context = 6; context < 30; context += 7) {
        sampling.max_context = context;
        generate(&samples, f, &sampling);
        for (int64_t i = 0; i < samples.count; i++)
            assert_cut(&samples.items[i], &f->unlimited.items[i], context - 5, INVAR_FINISH_LENGTH);
        invar_rl_samples_reset(&samples);
    }
    sampling.max_context = 5;
    make_prompts(&samples);
    assert_fails(invar_rollout_run(f->rollout, samples.items, samples.count, &sampling, NULL, NULL),
                 INVAR_E_INVALID, "leaves no room for a response");
    invar_rl_samples_reset(&samples);
}

/* ---- rejected input -------------------------------------------------------------------------- */

static void assert_sampling_refused(const fixture *f, const invar_sampling_params *sampling,
                                    const char *text)
{
    invar_rl_samples samples;

    make_prompts(&samples);
    assert_fails(invar_rollout_run(f->rollout, samples.items, samples.count, sampling, NULL, NULL),
                 INVAR_E_INVALID, text);
    invar_rl_samples_reset(&samples);
}

static void test_stop__refuses_bad_settings(void **state)
{
    const fixture *f = *state;
    const char *const empty[] = {"a", ""};
    const int32_t ids[] = {3, VOCAB};
    invar_sampling_params s;

    s = base_sampling, s.max_response = 0;
    assert_sampling_refused(f, &s, "expected");
    s = base_sampling, s.min_response = -1;
    assert_sampling_refused(f, &s, "expected");
    s = base_sampling, s.max_context = 257;
    assert_sampling_refused(f, &s, "the model has 256 positions");
    s = base_sampling, s.stop = empty, s.n_stop = 2;
    assert_sampling_refused(f, &s, "stop string 1 is empty");
    s = base_sampling, s.stop_ids = ids, s.n_stop_ids = 2;
    assert_sampling_refused(f, &s, "stop id 27");
    s = base_sampling, s.temperature = -1.0f;
    assert_sampling_refused(f, &s, "temperature");
    s = base_sampling, s.top_p = 0.0f;
    assert_sampling_refused(f, &s, "top_p");
}

static void test_stop__refuses_bad_samples(void **state)
{
    const fixture *f = *state;
    const int32_t bad[] = {1, VOCAB};
    invar_rl_samples samples = {0};

    assert_ok(prompts_add(&samples, bad, 2, 0, 0));
    assert_fails(invar_rollout_run(f->rollout, samples.items, 1, &base_sampling, NULL, NULL),
                 INVAR_E_INVALID, "token 27 of sample 0");
    invar_rl_samples_reset(&samples);
    make_prompts(&samples);
    samples.items[1].tokens[4] = 9;
    assert_fails(
        invar_rollout_run(f->rollout, samples.items, samples.count, &base_sampling, NULL, NULL),
        INVAR_E_INVALID, "samples 0 and 1 are of group 0 but their prompts differ");
    invar_rl_samples_reset(&samples);
    make_prompts(&samples);
    samples.items[2].prompt_tokens = 4;
    assert_fails(
        invar_rollout_run(f->rollout, samples.items, samples.count, &base_sampling, NULL, NULL),
        INVAR_E_INVALID, "sample 2 has 5 tokens, 4 of them prompt");
    invar_rl_samples_reset(&samples);
    assert_ok(invar_rollout_run(f->rollout, NULL, 0, &base_sampling, NULL, NULL));
}

static void test_stop__refuses_bad_limits(void **state)
{
    const fixture *f = *state;
    invar_rollout *rollout = NULL;
    invar_rollout_exec_options limits = {.concurrency = -1};
    const char *const stop[] = {"a"};
    invar_sampling_params sampling = base_sampling;
    invar_rl_samples samples;

    assert_fails(invar_rollout_new(&rollout, f->model, NULL, &f->dev, &limits), INVAR_E_INVALID,
                 "concurrency is -1");
    limits = (invar_rollout_exec_options){.pages = 2, .page_size = 4};
    assert_ok(invar_rollout_new(&rollout, f->model, NULL, &f->dev, &limits));
    make_prompts(&samples);
    assert_fails(
        invar_rollout_run(rollout, samples.items, samples.count, &base_sampling, NULL, NULL),
        INVAR_E_INVALID, "sample 0 may need 11 pages of 4 positions, the cache has 2");
    sampling.stop = stop;
    sampling.n_stop = 1;
    assert_fails(invar_rollout_run(rollout, samples.items, samples.count, &sampling, NULL, NULL),
                 INVAR_E_INVALID, "stop string 0 needs a tokenizer");
    invar_rl_samples_reset(&samples);
    invar_rollout_free(rollout);
}

static void test_stop__scoring_refuses_bad_sequences(void **state)
{
    const fixture *f = *state;
    int32_t tokens[300] = {0};
    const int32_t *const sequences[] = {prompt, tokens};
    float logp[300], *out[] = {logp, logp};

    assert_fails(
        invar_rollout_score(f->rollout, sequences, (const int64_t[]){5, 257}, 2, 1.0f, out),
        INVAR_E_INVALID, "sequence 1 has 257 tokens");
    assert_fails(invar_rollout_score(f->rollout, sequences, (const int64_t[]){5, 0}, 2, 1.0f, out),
                 INVAR_E_INVALID, "sequence 1 has 0 tokens");
    tokens[2] = -1;
    assert_fails(invar_rollout_score(f->rollout, sequences, (const int64_t[]){5, 3}, 2, 1.0f, out),
                 INVAR_E_INVALID, "sequence 1 has token -1 at 2");
    // a sequence of one token has no log-prob, which is not an error
    assert_ok(invar_rollout_score(f->rollout, sequences, (const int64_t[]){1, 1}, 2, 1.0f, out));
    assert_ok(invar_rollout_score(f->rollout, sequences, NULL, 0, 1.0f, out));
}

/* ---- progress -------------------------------------------------------------------------------- */

typedef struct progress_log {
    int64_t calls, samples, tokens, stop_after;
} progress_log;

static invar_status record_progress(void *payload, int64_t samples_done, int64_t tokens_done)
{
    progress_log *w = payload;

    assert_true(samples_done >= w->samples && tokens_done > w->tokens);
    w->samples = samples_done;
    w->tokens = tokens_done;
    if (++w->calls == w->stop_after)
        return INVAR_FAIL(INVAR_E_BUSY, 0, "asked to stop");
    return INVAR_OK;
}

static void test_stop__progress_callback(void **state)
{
    const fixture *f = *state;
    invar_rollout_counters counters;
    invar_rl_samples samples;
    progress_log w = {0};

    make_prompts(&samples);
    assert_ok(invar_rollout_run(f->rollout, samples.items, samples.count, &base_sampling,
                                record_progress, &w));
    assert_int_equal(w.samples, SAMPLES);
    assert_int_equal(w.tokens, SAMPLES * RESPONSE);
    invar_rollout_get_counters(&counters, f->rollout);
    assert_int_equal(counters.prefilled, 2 * 5);
    assert_int_equal(counters.shared, 4 * 5);
    assert_int_equal(counters.decoded, SAMPLES * (RESPONSE - 1));
    assert_int_equal(counters.passes, w.calls);
    assert_true(counters.max_pages_used > 0);
    invar_rl_samples_reset(&samples);

    w = (progress_log){.stop_after = 5};
    make_prompts(&samples);
    assert_fails(invar_rollout_run(f->rollout, samples.items, samples.count, &base_sampling,
                                   record_progress, &w),
                 INVAR_E_BUSY, "asked to stop");
    assert_int_equal(w.calls, 5);
    invar_rl_samples_reset(&samples);
    generate(&samples, f, &base_sampling); // the rollout can be used after a failure
    prompts_assert_equal(&samples, &f->unlimited, "after an end");
    invar_rl_samples_reset(&samples);
}

/* Weights that are not finite fail the rollout. */
static void test_stop__faulty_weights_are_reported(void **state)
{
    const fixture *f = *state;
    float *norm = f->model->norm->master.data, original = norm[0];
    invar_rl_samples samples;

    norm[0] = (float)INFINITY;
    assert_ok(invar_model_update_weights(f->model, &f->dev));
    make_prompts(&samples);
    assert_fails(
        invar_rollout_run(f->rollout, samples.items, samples.count, &base_sampling, NULL, NULL),
        INVAR_E_STATE, "not finite");
    invar_rl_samples_reset(&samples);
    norm[0] = original;
    assert_ok(invar_model_update_weights(f->model, &f->dev));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop__suspended_before_the_first_token),
        cmocka_unit_test(test_stop__finds_matches_that_end_in_new_text),
        cmocka_unit_test(test_stop__agrees_with_strstr),
        cmocka_unit_test(test_stop__the_text_is_that_of_the_tokens),
        cmocka_unit_test(test_stop__strings_end_a_response),
        cmocka_unit_test(test_stop__ids_end_a_response),
        cmocka_unit_test(test_stop__min_response),
        cmocka_unit_test(test_stop__context_bounds_prompt_and_response),
        cmocka_unit_test(test_stop__refuses_bad_settings),
        cmocka_unit_test(test_stop__refuses_bad_samples),
        cmocka_unit_test(test_stop__refuses_bad_limits),
        cmocka_unit_test(test_stop__scoring_refuses_bad_sequences),
        cmocka_unit_test(test_stop__progress_callback),
        cmocka_unit_test(test_stop__faulty_weights_are_reported),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
