/*
 * source.c - tests of the sample source without a run: sampling, responses of the data, files.
 *
 * Samples from a file and from a source at the position of another must be equal bit for bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/source.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/unit/engine/files/data/options.h"
#include "tests/unit/engine/sample/rollout/prompts.h"
#include "tests/unit/engine/sample/source/source_config.h"

enum { PROMPTS = 2, PER_PROMPT = 2 };

/* A task's prompts, and a tiny model that samples responses. */
typedef struct source_fixture {
    invar_tokenizer *tokenizer;
    invar_dataset *data;
    invar_model *model;
    invar_rollout *rollout;
    invar_saved_rollouts saved;
    invar_config config;
    invar_sample_source_options options;
} source_fixture;

static char folder[256], pattern[300];

static void open_fixture(source_fixture *s, const invar_device *dev, bool use_answers)
{
    invar_dataset_options data = dataset_options("task:max", "label");
    const invar_rollout_exec_options limits = {.concurrency = 2};

    data.sft = use_answers;
    data.task_size = 5;
    memset(s, 0, sizeof *s);
    assert_ok(invar_tokenizer_alphabet(&s->tokenizer, invar_builtin_task_alphabet("max")));
    assert_ok(invar_dataset_open(&s->data, &data, s->tokenizer));
    s->model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 11, dev);
    assert_ok(invar_rollout_new(&s->rollout, s->model, s->tokenizer, dev, &limits));
    s->saved.on_policy = true;
    s->config = source_config(PROMPTS);
    s->options = (invar_sample_source_options){
        .config = &s->config,
        .generate =
            {.rollout = s->rollout,
             .sampling = {.seed = 42, .temperature = 1.0f, .top_p = 1.0f, .max_response = 3},
             .per_prompt = use_answers ? 1 : PER_PROMPT},
        .data = s->data,
        .tokenizer = s->tokenizer,
        .spec = &s->model->spec,
        .use_data_answers = use_answers,
        .round = PROMPTS,
        .saved = &s->saved};
    assert_ok(invar_reward_parse(&s->options.generate.reward_source.reward,
                                 &s->options.generate.reward_source.boxed, "overlap"));
}

static void close_fixture(source_fixture *s)
{
    invar_saved_rollouts_release(&s->saved);
    invar_rollout_free(s->rollout);
    invar_model_free(s->model);
    invar_dataset_close(s->data);
    invar_tokenizer_free(s->tokenizer);
}

/* Collects one rollout. Returns the number of polls. */
static int collect(invar_sample_batch *out, invar_sample_source *source, int64_t rollout)
{
    const invar_rollout_request request = {
        .rollout = rollout, .weights = 3, .weights_hash = {{(uint8_t)(rollout + 1)}}};
    bool ready = false;
    int polls = 0;

    assert_ok(invar_sample_source_start(source, &request));
    for (; !ready; polls++)
        assert_ok(invar_sample_source_poll(&ready, source));
    invar_sample_source_take(out, source);
    return polls;
}

/* ---- sampled --------------------------------------------------------------------------------- */

static void test_source__samples_in_order(void **state)
{
    invar_sample_source source;
    invar_sample_batch batch;
    source_fixture s;

    open_fixture(&s, *state, false);
    invar_sample_source_open(&source, &s.options);
    for (int64_t rollout = 0; rollout < 2; rollout++) {
        assert_int_equal(collect(&batch, &source, rollout),
                         2); // polls for the round and for its end
        assert_int_equal(batch.samples.count, PROMPTS * PER_PROMPT);
        assert_true(batch.on_policy);
        assert_int_equal(batch.filtered_groups, 0);
        for (int64_t i = 0; i < batch.samples.count; i++) {
            const invar_rl_sample *x = &batch.samples.items[i];
            assert_int_equal(x->index, rollout * PROMPTS * PER_PROMPT + i);
            assert_int_equal(x->group, rollout * PROMPTS + i / PER_PROMPT);
            assert_int_equal(x->data.line, (rollout * PROMPTS + i / PER_PROMPT) % 5);
            assert_int_equal(x->draw_index, i);
            assert_int_equal(x->rollout, rollout);
            assert_int_equal(x->weights.last, 3);
            assert_int_equal(x->weights.hash.bytes[0], rollout + 1);
            assert_true(x->logp && invar_rl_sample_response(x) > 0);
        }
        invar_rl_samples_reset(&batch.samples);
    }
    assert_int_equal(source.position.samples, 2 * PROMPTS * PER_PROMPT);
    assert_int_equal(source.position.groups, 2 * PROMPTS);
    invar_sample_source_close(&source);
    close_fixture(&s);
}

/* A source that starts at the position of another continues with the same samples. */
static void test_source__resumes_from_its_position(void **state)
{
    invar_sample_source original, restored;
    invar_sample_batch first, second, resumed;
    source_fixture s;

    open_fixture(&s, *state, false);
    invar_sample_source_open(&original, &s.options);
    (void)collect(&first, &original, 0);
    invar_sample_source_open(&restored, &s.options);
    restored.position = original.position;
    (void)collect(&second, &original, 1);
    (void)collect(&resumed, &restored, 1);
    prompts_assert_equal(&resumed.samples, &second.samples, "at the place of the other");
    assert_int_equal(resumed.samples.items[0].index, PROMPTS * PER_PROMPT);
    invar_rl_samples_reset(&first.samples);
    invar_rl_samples_reset(&second.samples);
    invar_rl_samples_reset(&resumed.samples);
    invar_sample_source_close(&original);
    invar_sample_source_close(&restored);
    close_fixture(&s);
}

/* Groups of one sample have equal rewards, so the filter drops all and sampling must fail. */
static void test_source__a_filter_that_drops_all_fails(void **state)
{
    invar_status status = INVAR_OK;
    invar_sample_source source;
    bool ready = false;
    source_fixture s;

    open_fixture(&s, *state, false);
    s.config.dynamic_sampling_filter = INVAR_GROUP_FILTER_NONZERO_STD;
    s.options.generate.per_prompt = 1;
    invar_sample_source_open(&source, &s.options);
    assert_ok(invar_sample_source_start(&source, &(invar_rollout_request){0}));
    while (!ready && status == INVAR_OK)
        status = invar_sample_source_poll(&ready, &source);
    assert_int_equal(status, INVAR_E_STATE);
    invar_sample_source_close(&source);
    close_fixture(&s);
}

/* ---- responses of the data ------------------------------------------------------------------- */

static void test_source__responses_of_the_data(void **state)
{
    invar_sample_source source;
    invar_sample_batch batch;
    source_fixture s;

    open_fixture(&s, *state, true);
    s.options.generate.rollout = NULL; // responses come from the data
    invar_sample_source_open(&source, &s.options);
    assert_int_equal(collect(&batch, &source, 0), 1);
    assert_int_equal(batch.samples.count, PROMPTS);
    for (int64_t i = 0; i < PROMPTS; i++) {
        const invar_rl_sample *x = &batch.samples.items[i];
        const invar_prompt *p = invar_dataset_prompt(s.data, i);
        assert_null(x->logp);
        assert_int_equal(x->n_tokens, p->n_tokens + p->n_answer);
        assert_memory_equal(x->tokens + p->n_tokens, p->answer, (size_t)p->n_answer * 4);
        assert_memory_equal(x->mask, p->answer_mask, (size_t)p->n_answer);
    }
    invar_rl_samples_reset(&batch.samples);
    invar_sample_source_close(&source);
    close_fixture(&s);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void test_source__files_are_the_same_samples(void **state)
{
    invar_sample_source writer, reader;
    invar_sample_batch written, loaded;
    source_fixture s;

    open_fixture(&s, *state, false);
    s.options.run = (invar_digest){{9}};
    invar_sample_source_open(&writer, &s.options);
    (void)collect(&written, &writer, 0);
    assert_ok(invar_sample_source_save(&writer, &written, pattern));
    s.config.load_debug_rollout_data = pattern;
    s.options.generate.rollout = NULL;
    invar_sample_source_open(&reader, &s.options);
    assert_int_equal(collect(&loaded, &reader, 0), 1);
    assert_true(loaded.on_policy);
    prompts_assert_equal(&loaded.samples, &written.samples, "from the file");
    assert_memory_equal(&reader.position, &writer.position, sizeof reader.position);
    invar_rl_samples_reset(&loaded.samples);
    invar_sample_source_close(&reader);
    // the sampling parameters of the file must be those of the recipe
    s.options.generate.sampling.max_response = 4;
    invar_sample_source_open(&reader, &s.options);
    assert_ok(invar_sample_source_start(&reader, &writer.request));
    assert_fails(invar_sample_source_poll(&(bool){false}, &reader), INVAR_E_INVALID,
                 "max_response");
    invar_sample_source_close(&reader);
    // a file of another run
    s.options.generate.sampling.max_response = 3;
    s.options.run = (invar_digest){{8}};
    invar_sample_source_open(&reader, &s.options);
    assert_ok(invar_sample_source_start(&reader, &writer.request));
    assert_fails(invar_sample_source_poll(&(bool){false}, &reader), INVAR_E_INVALID, "another run");
    invar_sample_source_close(&reader);
    invar_rl_samples_reset(&written.samples);
    invar_sample_source_close(&writer);
    close_fixture(&s);
}

static int setup(void **state)
{
    (void)snprintf(folder, sizeof folder, "%s/source.%ld", INVAR_TEST_WORK, (long)getpid());
    (void)snprintf(pattern, sizeof pattern, "%s/{rollout_id}.jsonl", folder);
    return invar_test_devices_setup(state) || invar_held_folder_make(folder) != INVAR_OK;
}

static int teardown(void **state)
{
    return invar_test_devices_teardown(state) || invar_held_folder_remove(folder) != INVAR_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_source__samples_in_order),
        cmocka_unit_test(test_source__resumes_from_its_position),
        cmocka_unit_test(test_source__a_filter_that_drops_all_fails),
        cmocka_unit_test(test_source__responses_of_the_data),
        cmocka_unit_test(test_source__files_are_the_same_samples),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
