/*
 * source.c - a source alone: sampled, the data's answers, files; without a run around it.
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

enum { PROMPTS = 2, PER_PROMPT = 2 };

/* What sources are made of: a task's prompts, a tiny model that answers them. */
typedef struct scene {
    invar_tokenizer *tokenizer;
    invar_dataset *data;
    invar_model *model;
    invar_rollout *rollout;
    invar_saved_rollouts saved;
    invar_sample_source_options options;
} scene;

static char folder[256], pattern[300];

static void open_scene(scene *s, const invar_device *dev, bool answers)
{
    invar_dataset_options data = dataset_options("task:max", "label");
    const invar_rollout_exec_options limits = {.concurrency = 2};

    data.sft = answers;
    data.task_size = 5;
    memset(s, 0, sizeof *s);
    assert_ok(invar_tokenizer_alphabet(&s->tokenizer, invar_builtin_task_alphabet("max")));
    assert_ok(invar_dataset_open(&s->data, &data, s->tokenizer));
    s->model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 11, dev);
    assert_ok(invar_rollout_new(&s->rollout, s->model, s->tokenizer, dev, &limits));
    s->saved.on_policy = true;
    s->options = (invar_sample_source_options){
        .data = s->data,
        .tokenizer = s->tokenizer,
        .spec = &s->model->spec,
        .rollout = s->rollout,
        .sampling = {.seed = 42, .temperature = 1.0f, .top_p = 1.0f, .max_response = 3},
        .use_data_answers = answers,
        .prompts = PROMPTS,
        .per_prompt = answers ? 1 : PER_PROMPT,
        .round = PROMPTS,
        .load = "",
        .saved = &s->saved};
    assert_ok(invar_reward_parse(&s->options.reward_source.reward, &s->options.reward_source.boxed,
                                 "overlap"));
}

static void close_scene(scene *s)
{
    invar_saved_rollouts_release(&s->saved);
    invar_rollout_free(s->rollout);
    invar_model_free(s->model);
    invar_dataset_close(s->data);
    invar_tokenizer_free(s->tokenizer);
}

/* A whole rollout; how often the source was polled is returned. */
static int collect(invar_sample_batch *out, invar_sample_source *source, int64_t rollout)
{
    const invar_rollout_request order = {
        .rollout = rollout, .weights = 3, .weights_hash = {{(uint8_t)(rollout + 1)}}};
    bool ready = false;
    int polls = 0;

    assert_ok(invar_sample_source_start(source, &order));
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
    scene s;

    open_scene(&s, *state, false);
    invar_sample_source_open(&source, &s.options);
    for (int64_t rollout = 0; rollout < 2; rollout++) {
        assert_int_equal(collect(&batch, &source, rollout), 2); // a round, and the news of its end
        assert_int_equal(batch.samples.count, PROMPTS * PER_PROMPT);
        assert_true(batch.on_policy);
        assert_int_equal(batch.filtered_groups, 0);
        for (int64_t i = 0; i < batch.samples.count; i++) {
            const invar_rl_sample *x = &batch.samples.items[i];
            assert_int_equal(x->index, rollout * PROMPTS * PER_PROMPT + i);
            assert_int_equal(x->group, rollout * PROMPTS + i / PER_PROMPT);
            assert_int_equal(x->prompt, (rollout * PROMPTS + i / PER_PROMPT) % 5);
            assert_int_equal(x->draw_index, i);
            assert_int_equal(x->rollout, rollout);
            assert_int_equal(x->last_version, 3);
            assert_int_equal(x->weights_hash.bytes[0], rollout + 1);
            assert_true(x->logp && invar_rl_sample_response(x) > 0);
        }
        invar_rl_samples_reset(&batch.samples);
    }
    assert_int_equal(source.position.samples, 2 * PROMPTS * PER_PROMPT);
    assert_int_equal(source.position.groups, 2 * PROMPTS);
    invar_sample_source_close(&source);
    close_scene(&s);
}

/* A source that begins at the place of another goes on as that would have. */
static void test_source__its_place_is_all_it_has(void **state)
{
    invar_sample_source one, other;
    invar_sample_batch first, second, again;
    scene s;

    open_scene(&s, *state, false);
    invar_sample_source_open(&one, &s.options);
    (void)collect(&first, &one, 0);
    invar_sample_source_open(&other, &s.options);
    other.position = one.position;
    (void)collect(&second, &one, 1);
    (void)collect(&again, &other, 1);
    prompts_assert_equal(&again.samples, &second.samples, "at the place of the other");
    assert_int_equal(again.samples.items[0].index, PROMPTS * PER_PROMPT);
    invar_rl_samples_reset(&first.samples);
    invar_rl_samples_reset(&second.samples);
    invar_rl_samples_reset(&again.samples);
    invar_sample_source_close(&one);
    invar_sample_source_close(&other);
    close_scene(&s);
}

/* Groups whose rewards are alike: none is ever kept, and the end of that is an error. */
static void test_source__a_filter_that_is_never_content(void **state)
{
    invar_status status = INVAR_OK;
    invar_sample_source source;
    bool ready = false;
    scene s;

    open_scene(&s, *state, false);
    s.options.drop_zero_std = true;
    s.options.per_prompt = 1;
    invar_sample_source_open(&source, &s.options);
    assert_ok(invar_sample_source_start(&source, &(invar_rollout_request){0}));
    while (!ready && status == INVAR_OK)
        status = invar_sample_source_poll(&ready, &source);
    assert_int_equal(status, INVAR_E_STATE);
    invar_sample_source_close(&source);
    close_scene(&s);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void test_source__answers_of_the_data(void **state)
{
    invar_sample_source source;
    invar_sample_batch batch;
    scene s;

    open_scene(&s, *state, true);
    s.options.rollout = NULL; // nothing samples
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
    close_scene(&s);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void test_source__files_are_the_same_samples(void **state)
{
    invar_sample_source maker, reader;
    invar_sample_batch made, loaded;
    scene s;

    open_scene(&s, *state, false);
    s.options.run = (invar_digest){{9}};
    invar_sample_source_open(&maker, &s.options);
    (void)collect(&made, &maker, 0);
    assert_ok(invar_sample_source_save(&maker, &made, pattern));
    s.options.load = pattern;
    s.options.rollout = NULL;
    invar_sample_source_open(&reader, &s.options);
    assert_int_equal(collect(&loaded, &reader, 0), 1);
    assert_true(loaded.on_policy);
    prompts_assert_equal(&loaded.samples, &made.samples, "from the file");
    assert_memory_equal(&reader.position, &maker.position, sizeof reader.position);
    invar_rl_samples_reset(&loaded.samples);
    invar_sample_source_close(&reader);
    // what the recipe says is believed before the file is
    s.options.sampling.max_response = 4;
    invar_sample_source_open(&reader, &s.options);
    assert_ok(invar_sample_source_start(&reader, &maker.request));
    assert_fails(invar_sample_source_poll(&(bool){false}, &reader), INVAR_E_INVALID,
                 "max_response");
    invar_sample_source_close(&reader);
    // of another run
    s.options.sampling.max_response = 3;
    s.options.run = (invar_digest){{8}};
    invar_sample_source_open(&reader, &s.options);
    assert_ok(invar_sample_source_start(&reader, &maker.request));
    assert_fails(invar_sample_source_poll(&(bool){false}, &reader), INVAR_E_INVALID, "another run");
    invar_sample_source_close(&reader);
    invar_rl_samples_reset(&made.samples);
    invar_sample_source_close(&maker);
    close_scene(&s);
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
        cmocka_unit_test(test_source__its_place_is_all_it_has),
        cmocka_unit_test(test_source__a_filter_that_is_never_content),
        cmocka_unit_test(test_source__answers_of_the_data),
        cmocka_unit_test(test_source__files_are_the_same_samples),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
