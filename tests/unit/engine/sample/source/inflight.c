/*
 * inflight.c - tests of in-flight samples: saved and resumed bit for bit; invalid files are
 * rejected.
 *
 * A source that is restored from the saved bytes after any tick must yield the samples of the
 * source that continues. Control of the rejections: the unchanged file is accepted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/inflight.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "engine/sample/source/source.h"
#include "tests/unit/engine/files/data/options.h"
#include "tests/unit/engine/sample/rollout/prompts.h"
#include "tests/unit/engine/sample/source/source_config.h"

enum { PROMPTS = 2, PER_PROMPT = 2, LAG = 2, SEGMENT = 2, TICKS = 5 };

typedef struct inflight_fixture {
    invar_tokenizer *tokenizer;
    invar_dataset *data;
    invar_model *model;
    invar_rollout *rollout;
    invar_config config;
    invar_sample_source_options options;
} inflight_fixture;

static void open_fixture(inflight_fixture *s, const invar_device *dev)
{
    invar_dataset_options data = dataset_options("task:max", "label");
    const invar_rollout_exec_options limits = {.concurrency = 3};

    data.task_size = 5;
    memset(s, 0, sizeof *s);
    assert_ok(invar_tokenizer_alphabet(&s->tokenizer, invar_builtin_task_alphabet("max")));
    assert_ok(invar_dataset_open(&s->data, &data, s->tokenizer));
    s->model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 11, dev);
    assert_ok(invar_rollout_new(&s->rollout, s->model, s->tokenizer, dev, &limits));
    s->config = source_config(PROMPTS);
    s->options = (invar_sample_source_options){.config = &s->config,
                                               .generate = {.rollout = s->rollout,
                                                            .sampling = {.seed = 42,
                                                                         .temperature = 1.0f,
                                                                         .top_p = 1.0f,
                                                                         .max_response = 9},
                                                            .per_prompt = PER_PROMPT},
                                               .data = s->data,
                                               .tokenizer = s->tokenizer,
                                               .spec = &s->model->spec,
                                               .round = PROMPTS,
                                               .schedule = {.lag = LAG, .segment = SEGMENT}};
    assert_ok(invar_reward_parse(&s->options.generate.reward_source.reward,
                                 &s->options.generate.reward_source.boxed, "overlap"));
}

static void close_fixture(inflight_fixture *s)
{
    invar_rollout_free(s->rollout);
    invar_model_free(s->model);
    invar_dataset_close(s->data);
    invar_tokenizer_free(s->tokenizer);
}

/* Samples one rollout with the tick as weight version, then the in-flight rollouts. */
static void collect(invar_rl_samples *out, invar_sample_source *source, int64_t rollout)
{
    const invar_rollout_request request = {.rollout = rollout, .weights = rollout};
    invar_sample_batch batch;
    bool ready = false;

    assert_ok(invar_sample_source_start(source, &request));
    while (!ready)
        assert_ok(invar_sample_source_poll(&ready, source));
    invar_sample_source_take(&batch, source);
    assert_ok(invar_sample_source_prefetch(source));
    if (source->options.schedule.ahead == INVAR_AHEAD_IN_THREAD)
        assert_ok(invar_sample_source_join(source));
    assert_true(source->options.schedule.surplus || batch.on_policy == (rollout == 0));
    *out = batch.samples;
}

static invar_inflight_expectation expectation_of(const inflight_fixture *s,
                                                 const invar_sample_source *source, int64_t first)
{
    return (invar_inflight_expectation){.where = "flight",
                                        .data = s->data,
                                        .spec = &s->model->spec,
                                        .sampling = s->options.generate.sampling,
                                        .first = first,
                                        .weights = first,
                                        .samples = source->position.samples,
                                        .groups = source->position.groups,
                                        .round = s->options.round,
                                        .per_prompt = PER_PROMPT,
                                        .schedule.surplus = s->options.schedule.surplus,
                                        .route_size = invar_model_sparse_layers(s->model) *
                                                      s->model->spec.experts.per_token};
}

static void format(char **text, size_t *bytes, const invar_inflight *flight)
{
    invar_rollout_header header = {.n_samples_per_prompt = PER_PROMPT, .rollout = 2};

    assert_ok(invar_inflight_format(text, bytes, flight, &header));
}

/* ---- save and resume ------------------------------------------------------------------------- */

static void check_versions(const invar_rl_samples *samples, int64_t rollout)
{
    for (int64_t i = 0; i < samples->count; i++) {
        const invar_rl_sample *s = &samples->items[i];
        int64_t begin = rollout > LAG ? rollout - LAG : 0;
        int64_t last = begin + (invar_rl_sample_response(s) - 1) / SEGMENT;

        assert_int_equal(s->rollout, rollout);
        assert_int_equal(s->draw_index, i);
        assert_int_equal(s->index, rollout * PROMPTS * PER_PROMPT + i);
        assert_int_equal(s->weights.first, begin);
        assert_int_equal(s->weights.last, last < rollout ? last : rollout);
    }
}

/* Resumes after each tick, with in-flight rollouts in the same pass, in their own, in a thread. */
static void test_inflight__resumes_from_its_bytes(void **state)
{
    invar_rl_samples expected[TICKS], resumed;
    inflight_fixture s;

    open_fixture(&s, *state);
    for (int64_t cut = 0; cut < TICKS; cut++) {
        invar_sample_source original, restored;
        char *text;
        size_t bytes;

        s.options.schedule.ahead = cut % 3 == 2   ? INVAR_AHEAD_IN_THREAD
                                   : cut % 3 == 1 ? INVAR_AHEAD_AFTER_BATCH
                                                  : INVAR_AHEAD_WITH_BATCH;
        invar_sample_source_open(&original, &s.options);
        invar_sample_source_open(&restored, &s.options);
        for (int64_t v = 0; v < TICKS; v++) {
            if (v == cut && v > 0) {
                const invar_inflight_expectation expectation = expectation_of(&s, &original, v);
                format(&text, &bytes, &original.inflight);
                assert_ok(invar_inflight_parse(&restored.inflight, text, bytes, &expectation));
                assert_int_equal(restored.inflight.count, LAG);
                invar_free(text);
                restored.position = original.position;
            }
            collect(&expected[v], &original, v);
            check_versions(&expected[v], v);
            if (v < cut)
                continue;
            collect(&resumed, &restored, v);
            prompts_assert_equal(&resumed, &expected[v], "from the bytes");
            invar_rl_samples_reset(&resumed);
        }
        for (int64_t v = 0; v < TICKS; v++)
            invar_rl_samples_reset(&expected[v]);
        invar_sample_source_close(&original);
        invar_sample_source_close(&restored);
    }
    close_fixture(&s);
}

/* ---- surplus --------------------------------------------------------------------------------- */

/* Uses random rewards, so that some groups are dropped and some are kept as surplus. */
static void use_surplus(inflight_fixture *s, int64_t lag)
{
    invar_reward_source *reward_source = &s->options.generate.reward_source;

    assert_ok(
        invar_reward_parse(&reward_source->reward, &reward_source->boxed, "deterministic_random"));
    s->config.dynamic_sampling_filter = INVAR_GROUP_FILTER_NONZERO_STD;
    s->options.schedule.surplus = true;
    s->options.round = 7;
    s->options.schedule.lag = lag;
}

/* Saves and resumes with surplus after `cut` ticks. Returns the number of surplus samples. */
static int64_t check_surplus(const inflight_fixture *s, int64_t cut)
{
    const invar_rollout_header header = {.n_samples_per_prompt = PER_PROMPT, .rollout = cut};
    invar_rl_samples expected, resumed;
    invar_sample_source original, restored;
    int64_t n_surplus;

    invar_sample_source_open(&original, &s->options);
    invar_sample_source_open(&restored, &s->options);
    for (int64_t v = 0; v < cut; v++) {
        collect(&expected, &original, v);
        invar_rl_samples_reset(&expected);
    }
    n_surplus = original.inflight.surplus.count;
    if (n_surplus || original.inflight.count) {
        const invar_inflight_expectation expectation = expectation_of(s, &original, cut);
        invar_rollout_header head = header;
        char *text;
        size_t bytes;

        assert_ok(invar_inflight_format(&text, &bytes, &original.inflight, &head));
        assert_ok(invar_inflight_parse(&restored.inflight, text, bytes, &expectation));
        invar_free(text);
    }
    restored.position = original.position;
    for (int64_t v = cut; v < TICKS; v++) {
        collect(&expected, &original, v);
        collect(&resumed, &restored, v);
        assert_int_equal(expected.count, PROMPTS * PER_PROMPT);
        prompts_assert_equal(&resumed, &expected, "with surplus from the bytes");
        for (int64_t i = 0; i < expected.count; i++) {
            assert_true(expected.items[i].reward == resumed.items[i].reward);
            assert_int_equal(expected.items[i].group, resumed.items[i].group);
            assert_true(i == 0 || expected.items[i].index > expected.items[i - 1].index);
        }
        invar_rl_samples_reset(&expected);
        invar_rl_samples_reset(&resumed);
    }
    invar_sample_source_close(&original);
    invar_sample_source_close(&restored);
    return n_surplus;
}

static void test_inflight__surplus_resumes_from_its_bytes(void **state)
{
    for (int64_t lag = 0; lag <= LAG; lag += LAG) {
        int64_t n_surplus = 0;
        inflight_fixture s;

        open_fixture(&s, *state);
        use_surplus(&s, lag);
        for (int64_t cut = 1; cut < TICKS; cut++)
            n_surplus += check_surplus(&s, cut);
        assert_true(n_surplus > 0);
        close_fixture(&s);
    }
}

/* ---- sampling thread ------------------------------------------------------------------------- */

typedef struct verifier {
    int64_t times, n_new; /* number of calls, and of samples with new tokens */
    bool fails;           /* the callback fails */
} verifier;

static invar_status verify_samples(void *payload, const invar_rl_sample *samples, int64_t count,
                                   const invar_progress_callback *tick)
{
    verifier *l = payload;

    INVAR_TRY(tick->run(tick->payload));
    l->times++;
    for (int64_t i = 0; i < count; i++)
        l->n_new += samples[i].n_tokens > samples[i].weights.last_from;
    return l->fails ? INVAR_FAIL(INVAR_E_IO, 5, "it does not like them") : INVAR_OK;
}

static void test_inflight__thread_calls_verify(void **state)
{
    verifier l = {0};
    invar_rl_samples taken;
    invar_sample_source source;
    inflight_fixture s;

    open_fixture(&s, *state);
    s.options.schedule.ahead = INVAR_AHEAD_IN_THREAD;
    s.options.verify = (invar_verify_callback){verify_samples, &l};
    invar_sample_source_open(&source, &s.options);
    collect(&taken, &source, 0);
    invar_rl_samples_reset(&taken);
    assert_int_equal(l.times, 1);
    assert_int_equal(l.n_new, LAG * PROMPTS * PER_PROMPT);
    assert_ok(invar_sample_source_poll_error(&source));
    // invar_sample_source_poll_error and invar_sample_source_join report the failure of the
    // callback
    l.fails = true;
    assert_ok(
        invar_sample_source_start(&source, &(invar_rollout_request){.rollout = 1, .weights = 1}));
    for (bool ready = false; !ready;)
        assert_ok(invar_sample_source_poll(&ready, &source));
    assert_ok(invar_sample_source_prefetch(&source));
    while (invar_sample_source_poll_error(&source) == INVAR_OK)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    invar_assert_message("it does not like them", __FILE__, __LINE__);
    invar_error_clear();
    assert_int_equal(invar_sample_source_join(&source), INVAR_E_IO);
    assert_int_equal(invar_error_last()->native, 5);
    invar_sample_source_close(&source);
    // closing stops a running thread without a join
    invar_sample_source_open(&source, &s.options);
    assert_ok(invar_sample_source_start(&source, &(invar_rollout_request){.rollout = 0}));
    for (bool ready = false; !ready;)
        assert_ok(invar_sample_source_poll(&ready, &source));
    assert_ok(invar_sample_source_prefetch(&source));
    invar_sample_source_close(&source);
    close_fixture(&s);
}

/* ---- invalid files --------------------------------------------------------------------------- */

typedef void (*edit_fn)(invar_rollout_file *data, invar_inflight_expectation *expectation);

static invar_rl_sample *third_sample(invar_rollout_file *d)
{
    return &d->samples.items[2];
}

static void of_other_rollout(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third_sample(d)->rollout = 9;
}

static void of_other_draw(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third_sample(d)->draw_index = 0;
}

static void of_later_index(invar_rollout_file *d, invar_inflight_expectation *w)
{
    w->samples = third_sample(d)->index;
}

static void of_later_version(invar_rollout_file *d, invar_inflight_expectation *w)
{
    w->weights = 0;
    third_sample(d)->weights.last = 1;
}

static void without_logprobs(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    invar_free(third_sample(d)->logp);
    third_sample(d)->logp = NULL;
}

static void masked(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third_sample(d)->mask[0] = 0;
}

static void of_another_vocabulary(invar_rollout_file *d, invar_inflight_expectation *w)
{
    third_sample(d)->tokens[third_sample(d)->prompt_tokens] = (int32_t)w->spec->vocab;
}

static void aborted(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third_sample(d)->finish = INVAR_FINISH_ABORT;
}

static void of_another_model(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)d;
    w->route_size++;
}

static void in_another_group(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    d->samples.items[3].group++;
}

/* Gives the second group the number of another one. */
static void number_group(invar_rollout_file *d, int64_t group)
{
    third_sample(d)->group = d->samples.items[3].group = group;
}

static void in_one_group(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    number_group(d, d->samples.items[0].group);
}

static void in_an_earlier_group(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    number_group(d, d->samples.items[0].group - 1);
}

static void in_a_later_group(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    number_group(d, d->samples.items[4].group); // a group of the next rollout
}

static void in_a_group_to_come(invar_rollout_file *d, invar_inflight_expectation *w)
{
    w->groups = d->samples.items[2].group;
}

static void of_another_tokenizer(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    d->header.tokenizer.bytes[0] ^= 1;
}

static void of_another_prompt(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third_sample(d)->data.line = d->samples.items[3].data.line = d->samples.items[0].data.line;
}

static void of_no_line(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third_sample(d)->data.line = d->samples.items[3].data.line = 1000;
}

static void too_long(invar_rollout_file *d, invar_inflight_expectation *w)
{
    w->sampling.max_response = invar_rl_sample_response(third_sample(d)) - 1;
}

static void too_few(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    invar_rl_sample_release(&d->samples.items[--d->samples.count]);
}

static void no_samples(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    while (d->samples.count)
        invar_rl_sample_release(&d->samples.items[--d->samples.count]);
}

static void of_other_groups(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)d;
    w->per_prompt = 1;
}

static void of_another_tick(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    d->header.rollout++;
}

static void unfinished(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    d->samples.items[0].finish = INVAR_FINISH_NONE;
}

static void half_a_group(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    d->samples.items[1].draw_index++;
}

static void of_two_rollouts(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    d->samples.items[1].rollout++;
}

static void without_surplus(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)d;
    w->schedule.surplus = false;
    w->round = 1;
}

static void untouched(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)d;
    (void)w;
}

/* Saves the in-flight samples of a source, applies `change` and reads the result. */
static invar_status read_changed(const inflight_fixture *s, const invar_sample_source *source,
                                 edit_fn change)
{
    invar_inflight_expectation expectation = expectation_of(s, source, 2);
    invar_rollout_file data;
    invar_inflight flight = {.count = 0};
    invar_status status;
    size_t bytes;
    char *text;

    format(&text, &bytes, &source->inflight);
    assert_ok(invar_rollout_file_parse(&data, "flight", text, bytes));
    invar_free(text);
    change(&data, &expectation);
    assert_ok(invar_rollout_file_format(&text, &bytes, &data.header, data.samples.items,
                                        data.samples.count));
    status = invar_inflight_parse(&flight, text, bytes, &expectation);
    assert_true(status == INVAR_OK || flight.count == 0);
    invar_free(text);
    invar_inflight_release(&flight);
    invar_rollout_file_release(&data);
    return status;
}

static void test_inflight__refuses_invalid_files(void **state)
{
    static const struct {
        edit_fn change;
        invar_status status;
        const char *message;
    } cases[] = {
        {of_other_rollout, INVAR_E_CORRUPT, "\"rollout\" of sample"},
        {of_other_draw, INVAR_E_CORRUPT, "\"draw\" of sample"},
        {of_later_index, INVAR_E_CORRUPT, "\"index\" of sample"},
        {of_later_version, INVAR_E_CORRUPT, "\"weights\" of sample"},
        {without_logprobs, INVAR_E_CORRUPT, "\"logprobs\" of sample"},
        {masked, INVAR_E_CORRUPT, "\"mask\" of sample"},
        {of_another_vocabulary, INVAR_E_CORRUPT, "\"tokens\" of sample"},
        {aborted, INVAR_E_CORRUPT, "\"finish\" of sample"},
        {of_another_model, INVAR_E_CORRUPT, "\"route_size\" of sample"},
        {in_another_group, INVAR_E_CORRUPT, "\"group\" of sample"},
        {in_one_group, INVAR_E_CORRUPT, "\"group\" of sample"},
        {in_an_earlier_group, INVAR_E_CORRUPT, "of group 3 after sample"},
        {in_a_later_group, INVAR_E_CORRUPT, "\"group\" of sample"},
        {in_a_group_to_come, INVAR_E_CORRUPT, "\"group\" of sample"},
        {of_another_tokenizer, INVAR_E_INVALID, "another tokenizer"},
        {of_another_prompt, INVAR_E_INVALID, "a fork keeps the data"},
        {of_no_line, INVAR_E_INVALID, "a fork keeps the data"},
        {too_long, INVAR_E_INVALID, "rollout-max-response-len"},
        {too_few, INVAR_E_INVALID, "a fork keeps these numbers"},
        {no_samples, INVAR_E_CORRUPT, "has 0 rollouts"},
        {of_other_groups, INVAR_E_INVALID, "a fork keeps these numbers"},
        {of_another_tick, INVAR_E_CORRUPT, "rollouts from 3 on"},
    };
    invar_rl_samples batch;
    invar_sample_source source;
    inflight_fixture s;

    open_fixture(&s, *state);
    invar_sample_source_open(&source, &s.options);
    for (int64_t v = 0; v < 2; v++) {
        collect(&batch, &source, v);
        invar_rl_samples_reset(&batch);
    }
    assert_ok(read_changed(&s, &source, untouched));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(read_changed(&s, &source, cases[i].change), cases[i].status, cases[i].message);
    invar_sample_source_close(&source);
    close_fixture(&s);
}

/* Makes all samples multi-turn, as in a run with a multi-turn plug-in. */
static void multi_turn(invar_rollout_file *d, invar_inflight_expectation *w)
{
    w->multi_turn = true;
    for (int64_t i = 0; i < d->samples.count; i++) {
        d->samples.items[i].turns = 2;
        d->samples.items[i].mask[0] = 0;
        d->samples.items[i].finish = INVAR_FINISH_STOP;
    }
}

static void one_single_turn(invar_rollout_file *d, invar_inflight_expectation *w)
{
    multi_turn(d, w);
    third_sample(d)->turns = 0;
}

static void multi_turn_unfinished(invar_rollout_file *d, invar_inflight_expectation *w)
{
    multi_turn(d, w);
    third_sample(d)->finish = INVAR_FINISH_NONE;
}

static void one_multi_turn(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third_sample(d)->turns = 1;
}

static void test_inflight__multi_turn(void **state)
{
    invar_rl_samples batch;
    invar_sample_source source;
    inflight_fixture s;

    open_fixture(&s, *state);
    invar_sample_source_open(&source, &s.options);
    for (int64_t v = 0; v < 2; v++) {
        collect(&batch, &source, v);
        invar_rl_samples_reset(&batch);
    }
    assert_ok(read_changed(&s, &source, multi_turn));
    assert_fails(read_changed(&s, &source, one_single_turn), INVAR_E_INVALID,
                 "is not led by a plug-in");
    assert_fails(read_changed(&s, &source, one_multi_turn), INVAR_E_INVALID, "is led by a plug-in");
    assert_fails(read_changed(&s, &source, multi_turn_unfinished), INVAR_E_CORRUPT, "\"finish\"");
    invar_sample_source_close(&source);
    close_fixture(&s);
}

static void test_inflight__refuses_invalid_surplus(void **state)
{
    static const struct {
        edit_fn change;
        invar_status status;
        const char *message;
    } cases[] = {
        {unfinished, INVAR_E_CORRUPT, "\"finish\" of sample"},
        {half_a_group, INVAR_E_CORRUPT, "\"draw\" of sample"},
        {of_two_rollouts, INVAR_E_CORRUPT, "\"rollout\" of sample"},
        {without_surplus, INVAR_E_CORRUPT, "\"rollout\" of sample"},
        {too_few, INVAR_E_INVALID, "a fork keeps these numbers"},
        {of_another_tick, INVAR_E_CORRUPT, "rollouts from 3 on"},
    };
    invar_rl_samples batch;
    invar_sample_source source;
    inflight_fixture s;

    open_fixture(&s, *state);
    use_surplus(&s, 0);
    invar_sample_source_open(&source, &s.options);
    for (int64_t v = 0; v < 2; v++) {
        collect(&batch, &source, v);
        invar_rl_samples_reset(&batch);
    }
    assert_true(source.inflight.surplus.count > 0);
    assert_ok(read_changed(&s, &source, untouched));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(read_changed(&s, &source, cases[i].change), cases[i].status, cases[i].message);
    invar_sample_source_close(&source);
    close_fixture(&s);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void test_inflight__a_copy_is_its_own(void **state)
{
    invar_inflight copy = {.count = 0};
    invar_rl_samples batch;
    char *before, *after;
    size_t bytes, resumed;
    invar_sample_source source;
    inflight_fixture s;

    open_fixture(&s, *state);
    invar_sample_source_open(&source, &s.options);
    collect(&batch, &source, 0);
    invar_rl_samples_reset(&batch);
    format(&before, &bytes, &source.inflight);
    assert_ok(invar_inflight_copy(&copy, &source.inflight));
    collect(&batch, &source, 1); // changes the samples that were copied
    invar_rl_samples_reset(&batch);
    invar_sample_source_close(&source);
    format(&after, &resumed, &copy);
    assert_int_equal(bytes, resumed);
    assert_memory_equal(before, after, bytes);
    invar_free(before);
    invar_free(after);
    invar_inflight_release(&copy);
    close_fixture(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inflight__resumes_from_its_bytes),
        cmocka_unit_test(test_inflight__thread_calls_verify),
        cmocka_unit_test(test_inflight__refuses_invalid_files),
        cmocka_unit_test(test_inflight__surplus_resumes_from_its_bytes),
        cmocka_unit_test(test_inflight__multi_turn),
        cmocka_unit_test(test_inflight__refuses_invalid_surplus),
        cmocka_unit_test(test_inflight__a_copy_is_its_own),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
