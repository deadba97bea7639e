/*
 * inflight.c - samples in flight: kept as bytes they go on as if nothing had been; odd bytes are
 * refused.
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

enum { PROMPTS = 2, PER_PROMPT = 2, LAG = 2, SEGMENT = 2, TICKS = 5 };

typedef struct scene {
    invar_tokenizer *tokenizer;
    invar_dataset *data;
    invar_model *model;
    invar_rollout *rollout;
    invar_sample_source_options options;
} scene;

static void open_scene(scene *s, const invar_device *dev)
{
    invar_dataset_options data = dataset_options("task:max", "label");
    const invar_rollout_exec_options limits = {.concurrency = 3};

    data.task_size = 5;
    memset(s, 0, sizeof *s);
    assert_ok(invar_tokenizer_alphabet(&s->tokenizer, invar_builtin_task_alphabet("max")));
    assert_ok(invar_dataset_open(&s->data, &data, s->tokenizer));
    s->model = invar_test_model_new(INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_BF16, 11, dev);
    assert_ok(invar_rollout_new(&s->rollout, s->model, s->tokenizer, dev, &limits));
    s->options = (invar_sample_source_options){
        .data = s->data,
        .tokenizer = s->tokenizer,
        .spec = &s->model->spec,
        .rollout = s->rollout,
        .sampling = {.seed = 42, .temperature = 1.0f, .top_p = 1.0f, .max_response = 9},
        .prompts = PROMPTS,
        .per_prompt = PER_PROMPT,
        .round = PROMPTS,
        .lag = {LAG, SEGMENT},
        .load = ""};
    assert_ok(invar_reward_parse(&s->options.reward_source.reward, &s->options.reward_source.boxed,
                                 "overlap"));
}

static void close_scene(scene *s)
{
    invar_rollout_free(s->rollout);
    invar_model_free(s->model);
    invar_dataset_close(s->data);
    invar_tokenizer_free(s->tokenizer);
}

/* The samples of a rollout; versions are the numbers of ticks. */
static void collect(invar_rl_samples *out, invar_sample_source *source, int64_t rollout)
{
    const invar_rollout_request order = {.rollout = rollout, .weights = rollout};
    invar_sample_batch batch;
    bool ready = false;

    assert_ok(invar_sample_source_start(source, &order));
    while (!ready)
        assert_ok(invar_sample_source_poll(&ready, source));
    invar_sample_source_take(&batch, source);
    assert_ok(invar_sample_source_prefetch(source));
    if (source->options.use_thread)
        assert_ok(invar_sample_source_join(source));
    assert_true(source->options.keep_surplus || batch.on_policy == (rollout == 0));
    *out = batch.samples;
}

static invar_inflight_expectation wants_of(const scene *s, const invar_sample_source *source,
                                           int64_t first)
{
    return (invar_inflight_expectation){.where = "flight",
                                        .data = s->data,
                                        .spec = &s->model->spec,
                                        .sampling = s->options.sampling,
                                        .first = first,
                                        .weights = first,
                                        .samples = source->position.samples,
                                        .groups = source->position.groups,
                                        .round = s->options.round,
                                        .per_prompt = PER_PROMPT,
                                        .surplus = s->options.keep_surplus,
                                        .route_size = invar_model_sparse_layers(s->model) *
                                                      s->model->spec.experts_per_token};
}

static void format(char **text, size_t *bytes, const invar_inflight *flight)
{
    invar_rollout_header header = {.n_samples_per_prompt = PER_PROMPT, .rollout = 2};

    assert_ok(invar_inflight_format(text, bytes, flight, &header));
}

/* ---- there and back -------------------------------------------------------------------------- */

static void check_versions(const invar_rl_samples *samples, int64_t rollout)
{
    for (int64_t i = 0; i < samples->count; i++) {
        const invar_rl_sample *s = &samples->items[i];
        int64_t begin = rollout > LAG ? rollout - LAG : 0;
        int64_t last = begin + (invar_rl_sample_response(s) - 1) / SEGMENT;

        assert_int_equal(s->rollout, rollout);
        assert_int_equal(s->draw_index, i);
        assert_int_equal(s->index, rollout * PROMPTS * PER_PROMPT + i);
        assert_int_equal(s->first_version, begin);
        assert_int_equal(s->last_version, last < rollout ? last : rollout);
    }
}

/* From the place and the bytes of any tick on, alone, beside the one in turn and by a thread. */
static void test_flight__goes_on_from_its_bytes(void **state)
{
    invar_rl_samples whole[TICKS], again;
    scene s;

    open_scene(&s, *state);
    for (int64_t cut = 0; cut < TICKS; cut++) {
        invar_sample_source one, other;
        char *text;
        size_t bytes;

        s.options.separate_async_phase = cut % 3 > 0;
        s.options.use_thread = cut % 3 == 2;
        invar_sample_source_open(&one, &s.options);
        invar_sample_source_open(&other, &s.options);
        for (int64_t v = 0; v < TICKS; v++) {
            if (v == cut && v > 0) {
                const invar_inflight_expectation wants = wants_of(&s, &one, v);
                format(&text, &bytes, &one.inflight);
                assert_ok(invar_inflight_parse(&other.inflight, text, bytes, &wants));
                assert_int_equal(other.inflight.count, LAG);
                invar_free(text);
                other.position = one.position;
            }
            collect(&whole[v], &one, v);
            check_versions(&whole[v], v);
            if (v < cut)
                continue;
            collect(&again, &other, v);
            prompts_assert_equal(&again, &whole[v], "from the bytes");
            invar_rl_samples_reset(&again);
        }
        for (int64_t v = 0; v < TICKS; v++)
            invar_rl_samples_reset(&whole[v]);
        invar_sample_source_close(&one);
        invar_sample_source_close(&other);
    }
    close_scene(&s);
}

/* ---- surplus --------------------------------------------------------------------------------- */

/* Coins for rewards: some groups are dropped, and some are kept beyond the batch. */
static void keep_surplus(scene *s, int64_t lag)
{
    invar_reward_source *judge = &s->options.reward_source;

    assert_ok(invar_reward_parse(&judge->reward, &judge->boxed, "deterministic_random"));
    s->options.drop_zero_std = s->options.keep_surplus = true;
    s->options.round = 7;
    s->options.lag.rollouts = lag;
}

/* The file goes there and back; a source that has it goes on as the one that wrote it. */
static int64_t check_surplus(const scene *s, int64_t cut)
{
    const invar_rollout_header header = {.n_samples_per_prompt = PER_PROMPT, .rollout = cut};
    invar_rl_samples whole, again;
    invar_sample_source one, other;
    int64_t waited;

    invar_sample_source_open(&one, &s->options);
    invar_sample_source_open(&other, &s->options);
    for (int64_t v = 0; v < cut; v++) {
        collect(&whole, &one, v);
        invar_rl_samples_reset(&whole);
    }
    waited = one.inflight.surplus.count;
    if (waited || one.inflight.count) {
        const invar_inflight_expectation wants = wants_of(s, &one, cut);
        invar_rollout_header head = header;
        char *text;
        size_t bytes;

        assert_ok(invar_inflight_format(&text, &bytes, &one.inflight, &head));
        assert_ok(invar_inflight_parse(&other.inflight, text, bytes, &wants));
        invar_free(text);
    }
    other.position = one.position;
    for (int64_t v = cut; v < TICKS; v++) {
        collect(&whole, &one, v);
        collect(&again, &other, v);
        assert_int_equal(whole.count, PROMPTS * PER_PROMPT);
        prompts_assert_equal(&again, &whole, "with surplus from the bytes");
        for (int64_t i = 0; i < whole.count; i++) {
            assert_true(whole.items[i].reward == again.items[i].reward);
            assert_int_equal(whole.items[i].group, again.items[i].group);
            assert_true(i == 0 || whole.items[i].index > whole.items[i - 1].index);
        }
        invar_rl_samples_reset(&whole);
        invar_rl_samples_reset(&again);
    }
    invar_sample_source_close(&one);
    invar_sample_source_close(&other);
    return waited;
}

static void test_flight__surplus_goes_on_from_its_bytes(void **state)
{
    for (int64_t lag = 0; lag <= LAG; lag += LAG) {
        int64_t waited = 0;
        scene s;

        open_scene(&s, *state);
        keep_surplus(&s, lag);
        for (int64_t cut = 1; cut < TICKS; cut++)
            waited += check_surplus(&s, cut);
        assert_true(waited > 0);
        close_scene(&s);
    }
}

/* ---- by a thread ----------------------------------------------------------------------------- */

typedef struct looker {
    int64_t times, fresh; /* samples with new tokens */
    bool fails;
} looker;

static invar_status look(void *payload, const invar_rl_sample *samples, int64_t count,
                         const invar_progress_callback *tick)
{
    looker *l = payload;

    INVAR_TRY(tick->run(tick->payload));
    l->times++;
    for (int64_t i = 0; i < count; i++)
        l->fresh += samples[i].n_tokens > samples[i].current_version_from;
    return l->fails ? INVAR_FAIL(INVAR_E_IO, 5, "it does not like them") : INVAR_OK;
}

static void test_flight__a_thread_is_looked_after(void **state)
{
    looker l = {0};
    invar_rl_samples taken;
    invar_sample_source source;
    scene s;

    open_scene(&s, *state);
    s.options.separate_async_phase = s.options.use_thread = true;
    s.options.verify = (invar_verify_callback){look, &l};
    invar_sample_source_open(&source, &s.options);
    collect(&taken, &source, 0);
    invar_rl_samples_reset(&taken);
    assert_int_equal(l.times, 1);
    assert_int_equal(l.fresh, LAG * PROMPTS * PER_PROMPT);
    assert_ok(invar_sample_source_poll_error(&source));
    // its failure is that of whoever joins it, and of whoever glances once it has failed
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
    // who is stopped leaves nothing, and nobody need join it
    invar_sample_source_open(&source, &s.options);
    assert_ok(invar_sample_source_start(&source, &(invar_rollout_request){.rollout = 0}));
    for (bool ready = false; !ready;)
        assert_ok(invar_sample_source_poll(&ready, &source));
    assert_ok(invar_sample_source_prefetch(&source));
    invar_sample_source_close(&source);
    close_scene(&s);
}

/* ---- odd files ------------------------------------------------------------------------------- */

typedef void (*edit)(invar_rollout_file *data, invar_inflight_expectation *wants);

static invar_rl_sample *third(invar_rollout_file *d)
{
    return &d->samples.items[2];
}

static void of_other_rollout(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third(d)->rollout = 9;
}

static void of_other_draw(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third(d)->draw_index = 0;
}

static void of_later_index(invar_rollout_file *d, invar_inflight_expectation *w)
{
    w->samples = third(d)->index;
}

static void of_later_version(invar_rollout_file *d, invar_inflight_expectation *w)
{
    w->weights = 0;
    third(d)->last_version = 1;
}

static void without_logprobs(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    invar_free(third(d)->logp);
    third(d)->logp = NULL;
}

static void masked(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third(d)->mask[0] = 0;
}

static void of_another_vocabulary(invar_rollout_file *d, invar_inflight_expectation *w)
{
    third(d)->tokens[third(d)->prompt_tokens] = (int32_t)w->spec->vocab;
}

static void given_up(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third(d)->finish = INVAR_FINISH_ABORT;
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

/* The second group gets the number of another one. */
static void number_group(invar_rollout_file *d, int64_t group)
{
    third(d)->group = d->samples.items[3].group = group;
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
    number_group(d, d->samples.items[4].group); // of the next rollout, which is refused
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
    third(d)->prompt = d->samples.items[3].prompt = d->samples.items[0].prompt;
}

static void of_no_line(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third(d)->prompt = d->samples.items[3].prompt = 1000;
}

static void too_long(invar_rollout_file *d, invar_inflight_expectation *w)
{
    w->sampling.max_response = invar_rl_sample_response(third(d)) - 1;
}

static void too_few(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    invar_rl_sample_release(&d->samples.items[--d->samples.count]);
}

static void none(invar_rollout_file *d, invar_inflight_expectation *w)
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
    w->surplus = false;
    w->round = 1;
}

static void untouched(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)d;
    (void)w;
}

/* The flight of a source, changed by `change`, is read. */
static invar_status read_changed(const scene *s, const invar_sample_source *source, edit change)
{
    invar_inflight_expectation wants = wants_of(s, source, 2);
    invar_rollout_file data;
    invar_inflight flight = {.count = 0};
    invar_status status;
    size_t bytes;
    char *text;

    format(&text, &bytes, &source->inflight);
    assert_ok(invar_rollout_file_parse(&data, "flight", text, bytes));
    invar_free(text);
    change(&data, &wants);
    assert_ok(invar_rollout_file_format(&text, &bytes, &data.header, data.samples.items,
                                        data.samples.count));
    status = invar_inflight_parse(&flight, text, bytes, &wants);
    assert_true(status == INVAR_OK || flight.count == 0);
    invar_free(text);
    invar_inflight_release(&flight);
    invar_rollout_file_release(&data);
    return status;
}

static void test_flight__odd_files_are_refused(void **state)
{
    static const struct {
        edit change;
        invar_status status;
        const char *says;
    } cases[] = {
        {of_other_rollout, INVAR_E_CORRUPT, "\"rollout\" of sample"},
        {of_other_draw, INVAR_E_CORRUPT, "\"draw\" of sample"},
        {of_later_index, INVAR_E_CORRUPT, "\"index\" of sample"},
        {of_later_version, INVAR_E_CORRUPT, "\"weights\" of sample"},
        {without_logprobs, INVAR_E_CORRUPT, "\"logprobs\" of sample"},
        {masked, INVAR_E_CORRUPT, "\"mask\" of sample"},
        {of_another_vocabulary, INVAR_E_CORRUPT, "\"tokens\" of sample"},
        {given_up, INVAR_E_CORRUPT, "\"finish\" of sample"},
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
        {none, INVAR_E_CORRUPT, "has 0 rollouts"},
        {of_other_groups, INVAR_E_INVALID, "a fork keeps these numbers"},
        {of_another_tick, INVAR_E_CORRUPT, "rollouts from 3 on"},
    };
    invar_rl_samples batch;
    invar_sample_source source;
    scene s;

    open_scene(&s, *state);
    invar_sample_source_open(&source, &s.options);
    for (int64_t v = 0; v < 2; v++) {
        collect(&batch, &source, v);
        invar_rl_samples_reset(&batch);
    }
    assert_ok(read_changed(&s, &source, untouched));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(read_changed(&s, &source, cases[i].change), cases[i].status, cases[i].says);
    invar_sample_source_close(&source);
    close_scene(&s);
}

/* Of a run that a plug-in leads, all samples have had their turns; of others none has. */
static void led(invar_rollout_file *d, invar_inflight_expectation *w)
{
    w->led = true;
    for (int64_t i = 0; i < d->samples.count; i++) {
        d->samples.items[i].turns = 2;
        d->samples.items[i].mask[0] = 0;
        d->samples.items[i].finish = INVAR_FINISH_STOP;
    }
}

static void led_alone(invar_rollout_file *d, invar_inflight_expectation *w)
{
    led(d, w);
    third(d)->turns = 0;
}

static void led_unfinished(invar_rollout_file *d, invar_inflight_expectation *w)
{
    led(d, w);
    third(d)->finish = INVAR_FINISH_NONE;
}

static void led_before(invar_rollout_file *d, invar_inflight_expectation *w)
{
    (void)w;
    third(d)->turns = 1;
}

static void test_flight__turns(void **state)
{
    invar_rl_samples batch;
    invar_sample_source source;
    scene s;

    open_scene(&s, *state);
    invar_sample_source_open(&source, &s.options);
    for (int64_t v = 0; v < 2; v++) {
        collect(&batch, &source, v);
        invar_rl_samples_reset(&batch);
    }
    assert_ok(read_changed(&s, &source, led));
    assert_fails(read_changed(&s, &source, led_alone), INVAR_E_INVALID, "is not led by a plug-in");
    assert_fails(read_changed(&s, &source, led_before), INVAR_E_INVALID, "is led by a plug-in");
    assert_fails(read_changed(&s, &source, led_unfinished), INVAR_E_CORRUPT, "\"finish\"");
    invar_sample_source_close(&source);
    close_scene(&s);
}

static void test_flight__odd_surplus_is_refused(void **state)
{
    static const struct {
        edit change;
        invar_status status;
        const char *says;
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
    scene s;

    open_scene(&s, *state);
    keep_surplus(&s, 0);
    invar_sample_source_open(&source, &s.options);
    for (int64_t v = 0; v < 2; v++) {
        collect(&batch, &source, v);
        invar_rl_samples_reset(&batch);
    }
    assert_true(source.inflight.surplus.count > 0);
    assert_ok(read_changed(&s, &source, untouched));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(read_changed(&s, &source, cases[i].change), cases[i].status, cases[i].says);
    invar_sample_source_close(&source);
    close_scene(&s);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void test_flight__a_copy_is_its_own(void **state)
{
    invar_inflight copy = {.count = 0};
    invar_rl_samples batch;
    char *before, *after;
    size_t bytes, again;
    invar_sample_source source;
    scene s;

    open_scene(&s, *state);
    invar_sample_source_open(&source, &s.options);
    collect(&batch, &source, 0);
    invar_rl_samples_reset(&batch);
    format(&before, &bytes, &source.inflight);
    assert_ok(invar_inflight_copy(&copy, &source.inflight));
    collect(&batch, &source, 1); // moves and changes what it was copied from
    invar_rl_samples_reset(&batch);
    invar_sample_source_close(&source);
    format(&after, &again, &copy);
    assert_int_equal(bytes, again);
    assert_memory_equal(before, after, bytes);
    invar_free(before);
    invar_free(after);
    invar_inflight_release(&copy);
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flight__goes_on_from_its_bytes),
        cmocka_unit_test(test_flight__a_thread_is_looked_after),
        cmocka_unit_test(test_flight__odd_files_are_refused),
        cmocka_unit_test(test_flight__surplus_goes_on_from_its_bytes),
        cmocka_unit_test(test_flight__turns),
        cmocka_unit_test(test_flight__odd_surplus_is_refused),
        cmocka_unit_test(test_flight__a_copy_is_its_own),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
