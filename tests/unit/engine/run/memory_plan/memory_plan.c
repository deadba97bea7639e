/*
 * memory_plan.c - plans of memory against what passes really take, and what is chosen.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_plan/memory_plan.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "engine/train/weight_sync/weight_sync.h"
#include "tests/device/counting_allocator.h"
#include "tests/device/fake_gpu.h"
#include "tests/model.h"

enum { SAMPLES = 6, PROMPT = 5, RESPONSE = 11, TOKENS = PROMPT + RESPONSE };

#define PLENTY ((size_t)1 << 40)

/* ---- a device that counts -------------------------------------------------------------------- */

/* The CPU, or memory like a GPU's; nobody takes more than needed. */
static invar_device device_of(bool far)
{
    static invar_backend tables[2];
    invar_device dev = {.backend = &tables[far], .numerics = INVAR_NUMERICS_IEEE};

    tables[far] = far ? *invar_far_backend() : *invar_backend_cpu();
    tables[far].memory.exact_size = true;
    if (far) {
        tables[far].memory.alloc_host = invar_counted_take;
        tables[far].memory.free_host = invar_counted_give;
        invar_far_begin(0);
    } else {
        tables[far].memory.alloc = invar_counted_take;
        tables[far].memory.free = invar_counted_give;
    }
    assert_ok(invar_device_open(&dev));
    return dev;
}

static size_t most_taken(bool far)
{
    return far ? invar_far_counted().most : invar_counted.most;
}

static size_t now_taken(bool far)
{
    return far ? invar_far_counted().bytes : invar_counted.taken;
}

/* ---- learning, scoring ----------------------------------------------------------------------- */

static invar_memory_workload ask_of(const invar_device *dev, const invar_model_spec *spec,
                                    invar_format format)
{
    return (invar_memory_workload){
        .dev = dev,
        .spec = spec,
        .format = format,
        .learns = true,
        .adamw = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f},
        .plan = {.unit_rows = 1, .unit_count = 1, .micro_batch = SAMPLES},
        .step_samples = SAMPLES,
        .samples = SAMPLES,
        .prompt = PROMPT,
        .response = RESPONSE,
        .context = TOKENS,
        .rollouts = {{.prompts = 2,
                      .per_prompt = 3,
                      .prompt = PROMPT,
                      .response = RESPONSE,
                      .context = TOKENS}},
        .sampling = {{.temperature = 1.0f, .top_p = 1.0f, .max_response = RESPONSE}}};
}

/* All as long as can be. */
static void fill_samples(invar_rl_samples *out, int64_t vocab)
{
    invar_test_samples(out, SAMPLES, RESPONSE, vocab, 3);
    for (int64_t i = 0; i < out->count; i++) {
        invar_rl_sample *s = &out->items[i];
        invar_free(s->tokens);
        assert_ok(invar_alloc((void **)&s->tokens, TOKENS, sizeof *s->tokens, "tokens"));
        for (int t = 0; t < TOKENS; t++)
            s->tokens[t] = (int32_t)(t % vocab);
        s->prompt_tokens = PROMPT;
        s->n_tokens = TOKENS;
    }
}

static invar_status some_loss(void *payload, int64_t first, int64_t count, const float *now,
                              const float *entropy, float *dnow, float *dentropy)
{
    (void)payload;
    (void)first;
    (void)now;
    (void)entropy;
    (void)dentropy;
    for (int64_t i = 0; i < count * RESPONSE; i++)
        dnow[i] = 0.1f;
    return INVAR_OK;
}

static void check_close(const char *what, size_t measured, size_t planned)
{
    if (measured > planned || (double)planned > 1.05 * (double)measured)
        fail_msg("%s: %zu bytes were planned, %zu were taken", what, planned, measured);
}

/* The bytes that one pass of a trainer takes, for real. */
static size_t measure(invar_model *model, invar_grads *grads, const invar_device *dev,
                      const invar_memory_workload *ask, const invar_memory_plan *b, bool learn)
{
    bool far = invar_device_is_local(dev);
    const invar_trainer_options o = {.plan = ask->plan,
                                     .recompute = ask->recompute,
                                     .head_rows = b->choice.head_rows,
                                     .temperature = 1.0f,
                                     .layout = ask->layout};
    float now[SAMPLES * RESPONSE], entropy[SAMPLES * RESPONSE];
    invar_trainer_result result = {.train_logp = now, .entropy = entropy};
    invar_trainer_loss loss = {.run = some_loss};
    invar_trainer *trainer = NULL;
    invar_rl_samples samples;
    size_t before = now_taken(far);

    fill_samples(&samples, model->spec.vocab);
    invar_counted.most = invar_counted.taken;
    assert_ok(invar_trainer_new(&trainer, dev, &o));
    if (learn)
        assert_ok(invar_trainer_forward_backward(trainer, model, samples.items, samples.count,
                                                 &loss, grads, &result));
    else
        assert_ok(invar_trainer_score(trainer, model, samples.items, samples.count, now, NULL));
    invar_trainer_free(trainer);
    invar_rl_samples_reset(&samples);
    return most_taken(far) - before;
}

static void compare_training(invar_test_model kind, invar_format format, bool far, bool recompute,
                             int64_t head_rows)
{
    invar_model_spec spec = invar_test_spec(kind, true);
    invar_device dev = device_of(far);
    invar_memory_workload ask = ask_of(&dev, &spec, format);
    invar_model *model = NULL;
    invar_grads *grads = NULL;
    invar_memory_plan b;

    ask.recompute = recompute;
    ask.head_rows = head_rows;
    assert_ok(invar_memory_plan_make(&b, &ask, PLENTY));
    assert_true(b.fits);
    assert_ok(invar_model_new(&model, &spec, format, NULL, &dev));
    assert_ok(invar_model_init(model, 1, &dev));
    assert_int_equal(b.items[0].bytes,
                     (now_taken(far) + INVAR_ALIGN - 1) / INVAR_ALIGN * INVAR_ALIGN);
    assert_ok(invar_grads_new(&grads, model));
    // scoring first: the far device's most is of all time
    check_close("scoring", measure(model, grads, &dev, &ask, &b, false), b.scoring);
    check_close("learning", measure(model, grads, &dev, &ask, &b, true), b.learning);
    invar_grads_free(grads);
    invar_model_free(model);
    invar_device_close(&dev);
}

static void test_budget__training_takes_what_was_planned(void **state)
{
    static const invar_test_model kinds[] = {INVAR_TEST_MODEL_DENSE, INVAR_TEST_MODEL_EXPERTS};

    (void)state;
    for (int far = 0; far < 2; far++)
        for (int k = 0; k < 2; k++)
            for (int f = 0; f < INVAR_FORMAT_COUNT; f++)
                for (int way = 0; way < 2; way++)
                    compare_training(kinds[k], (invar_format)f, far, way == 1, way == 1 ? 4 : 0);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* The other one, whose memory nobody counts. */
typedef struct partner {
    invar_layout layout;
    invar_device dev;
    const invar_memory_workload *ask;
    invar_model *model;
    invar_status status;
} partner;

static invar_status take_part(partner *p, invar_trainer *trainer, const invar_rl_samples *samples)
{
    float now[SAMPLES * RESPONSE], entropy[SAMPLES * RESPONSE];
    invar_trainer_result result = {.train_logp = now, .entropy = entropy};
    invar_trainer_loss loss = {.run = some_loss};
    invar_grads *grads;
    invar_status status;

    INVAR_TRY(invar_trainer_score(trainer, p->model, samples->items, samples->count, now, NULL));
    INVAR_TRY(invar_grads_new(&grads, p->model));
    status = invar_trainer_forward_backward(trainer, p->model, samples->items, samples->count,
                                            &loss, grads, &result);
    invar_grads_free(grads);
    return status;
}

static void *partner_main(void *payload)
{
    partner *p = payload;
    invar_trainer_options o = {.plan = p->ask->plan, .temperature = 1.0f, .layout = &p->layout};
    invar_trainer *trainer = NULL;
    invar_rl_samples samples;

    fill_samples(&samples, p->model->spec.vocab);
    p->status = invar_trainer_new(&trainer, &p->dev, &o);
    if (p->status == INVAR_OK)
        p->status = take_part(p, trainer, &samples);
    invar_trainer_free(trainer);
    invar_rl_samples_reset(&samples);
    return NULL;
}

/* Rank 0 of two, which has half of the moments and learns unit by unit. */
static void compare_ranks(invar_test_model kind, bool far)
{
    invar_model_spec spec = invar_test_spec(kind, true);
    invar_device dev = device_of(far);
    invar_memory_workload ask = ask_of(&dev, &spec, INVAR_FORMAT_BF16);
    partner other = {.dev = {.backend = invar_backend_cpu(), .numerics = INVAR_NUMERICS_IEEE},
                     .ask = &ask};
    invar_model *model = NULL;
    invar_grads *grads = NULL;
    invar_layout layout;
    invar_comm *comms[2];
    invar_memory_plan alone, b;
    pthread_t thread;

    assert_ok(invar_comm_threads(comms, 2, 0));
    invar_layout_init(&layout, comms[0], 60);
    invar_layout_init(&other.layout, comms[1], 60);
    assert_ok(invar_memory_plan_make(&alone, &ask, PLENTY));
    ask.layout = &layout;
    assert_ok(invar_memory_plan_make(&b, &ask, PLENTY));
    assert_string_equal(b.items[2].name, "actor: moments");
    assert_true(10 * b.items[2].bytes <= 6 * alone.items[2].bytes); // half, and what stays whole
    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_BF16, &layout, &dev));
    assert_ok(invar_model_init(model, 1, &dev));
    assert_ok(invar_model_new(&other.model, &spec, INVAR_FORMAT_BF16, &other.layout, &other.dev));
    assert_ok(invar_model_init(other.model, 1, &other.dev));
    assert_ok(invar_grads_new(&grads, model));
    assert_int_equal(pthread_create(&thread, NULL, partner_main, &other), 0);
    check_close("scoring", measure(model, grads, &dev, &ask, &b, false), b.scoring);
    check_close("learning", measure(model, grads, &dev, &ask, &b, true), b.learning);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(other.status, INVAR_OK);
    invar_comm_free(comms[0]);
    invar_comm_free(comms[1]);
    invar_grads_free(grads);
    invar_model_free(model);
    invar_model_free(other.model);
    invar_device_close(&dev);
}

static void test_budget__ranks_take_what_was_planned(void **state)
{
    (void)state;
    for (int far = 0; far < 2; far++) {
        compare_ranks(INVAR_TEST_MODEL_DENSE, far);
        compare_ranks(INVAR_TEST_MODEL_EXPERTS, far);
    }
}

/* ---- weights on their way -------------------------------------------------------------------- */

/* Of two ranks one trains and one samples: both buckets of either, no fuller than all weights. */
static void compare_sync(bool far, bool samples, size_t bucket)
{
    const invar_layout_sizes whole = {
        .tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1};
    const invar_rank_role_sizes sizes = {.train = whole, .rollout = whole, .rollout_ranks = 1};
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, true);
    invar_device dev = device_of(far);
    invar_memory_workload ask = ask_of(&dev, &spec, INVAR_FORMAT_BF16);
    invar_model *model = NULL;
    invar_weight_sync *sync = NULL;
    invar_rank_roles sides;
    invar_memory_plan alone, b;
    size_t before, taken;

    ask.samples_alone = samples;
    ask.learns = !samples;
    ask.bucket_bytes = bucket;
    assert_ok(invar_memory_plan_make(&alone, &ask, PLENTY));
    assert_ok(invar_rank_roles_simulate(&sides, &sizes, 2, samples));
    ask.roles = &sides;
    assert_ok(invar_memory_plan_make(&b, &ask, PLENTY));
    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_BF16, NULL, &dev));
    before = invar_counted.taken;
    assert_ok(
        invar_weight_sync_new(&sync, &(invar_weight_sync_options){&sides, model, &dev, bucket}));
    taken = invar_counted.taken - before;
    assert_int_equal(taken,
                     2 * (bucket < alone.items[0].bytes ? bucket : invar_weight_sync_bytes(sync)));
    assert_int_equal(b.host - alone.host, far ? taken : 0);
    assert_int_equal(b.resident - alone.resident, far ? 0 : invar_aligned(taken));
    assert_int_equal(b.need - alone.need, b.resident - alone.resident);
    invar_weight_sync_free(sync);
    assert_int_equal(invar_counted.taken, before);
    invar_model_free(model);
    invar_rank_roles_close(&sides);
    invar_device_close(&dev);
}

static void test_budget__weights_on_their_way_take_what_was_planned(void **state)
{
    (void)state;
    for (int far = 0; far < 2; far++)
        for (int samples = 0; samples < 2; samples++) {
            compare_sync(far, samples, 1000);
            compare_sync(far, samples, PLENTY);
        }
}

/* ---- a teacher ------------------------------------------------------------------------------- */

static size_t bytes_of(const invar_memory_plan *b, const char *name)
{
    for (int i = 0; i < b->n_items; i++)
        if (strcmp(b->items[i].name, name) == 0)
            return b->items[i].bytes;
    return 0;
}

/* It has masters only while it is loaded, when there is nothing else. */
static void compare_teacher(invar_format format, bool far)
{
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_EXPERTS, true), large = spec;
    invar_device dev = device_of(far);
    invar_memory_workload ask = ask_of(&dev, &spec, format);
    invar_model *whole = NULL, *teacher = NULL;
    invar_memory_plan b, alone;

    large.layers = 40 * spec.layers;
    assert_ok(invar_memory_plan_make(&alone, &ask, PLENTY));
    ask.teacher = true;
    ask.teacher_spec = &large;
    assert_ok(invar_memory_plan_make(&b, &ask, PLENTY));
    assert_ok(invar_model_new(&whole, &large, format, NULL, &dev));
    assert_ok(invar_model_new_weights(&teacher, &large, format, NULL, &dev));
    check_close("loading", now_taken(far), b.load_peak_bytes);
    invar_model_free(whole);
    check_close("a teacher", now_taken(far), bytes_of(&b, "teacher: weights"));
    assert_int_equal(b.resident - alone.resident, bytes_of(&b, "teacher: weights"));
    assert_int_equal(alone.load_peak_bytes, 0);
    // so large a one is what the run needs, and is named where it does not fit
    assert_int_equal(b.need, b.load_peak_bytes);
    assert_ok(invar_memory_plan_make(&b, &ask, b.load_peak_bytes - 1));
    assert_fails(invar_memory_plan_check_fits(&b, &ask), INVAR_E_NOMEM, "loading the teacher");
    // one of the actor's size is not
    ask.teacher_spec = NULL;
    assert_ok(invar_memory_plan_make(&b, &ask, PLENTY));
    assert_int_equal(b.need, b.resident + b.block + b.outside_block_bytes);
    assert_true(bytes_of(&b, "teacher: weights") <= bytes_of(&b, "actor: weights"));
    invar_model_free(teacher);
    invar_device_close(&dev);
}

static void test_budget__a_teacher_keeps_its_weights_alone(void **state)
{
    (void)state;
    for (int far = 0; far < 2; far++)
        for (int f = 0; f < INVAR_FORMAT_COUNT; f++)
            compare_teacher((invar_format)f, far);
}

/* ---- sampling -------------------------------------------------------------------------------- */

static size_t sample(invar_model *model, const invar_device *dev, const invar_memory_workload *ask,
                     const invar_memory_plan *b)
{
    invar_rollout_exec_options limits = ask->limits;
    invar_rl_samples samples;
    invar_rollout *rollout = NULL;
    size_t before = now_taken(invar_device_is_local(dev));

    limits.pages = b->choice.pages;
    limits.concurrency = b->choice.concurrency;
    fill_samples(&samples, model->spec.vocab);
    for (int64_t i = 0; i < samples.count; i++) {
        invar_rl_sample *s = &samples.items[i];
        invar_free(s->logp);
        invar_free(s->mask);
        s->logp = NULL;
        s->mask = NULL;
        s->n_tokens = s->prompt_tokens;
        s->group = i / 3;
    }
    invar_counted.most = invar_counted.taken;
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, &limits));
    assert_ok(invar_rollout_run(rollout, samples.items, samples.count,
                                &ask->sampling[INVAR_MEMORY_PLAN_TRAINING], NULL, NULL));
    invar_rollout_free(rollout);
    invar_rl_samples_reset(&samples);
    return most_taken(invar_device_is_local(dev)) - before;
}

static void test_budget__sampling_takes_no_more_than_planned(void **state)
{
    (void)state;
    for (int far = 0; far < 2; far++) {
        invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_EXPERTS, false);
        invar_device dev = device_of(far);
        invar_memory_workload ask = ask_of(&dev, &spec, INVAR_FORMAT_BF16);
        invar_model *model = NULL;
        invar_memory_plan b;
        size_t measured;

        assert_ok(invar_memory_plan_make(&b, &ask, PLENTY));
        assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_BF16, NULL, &dev));
        assert_ok(invar_model_init(model, 1, &dev));
        measured = sample(model, &dev, &ask, &b);
        // passes are planned a little larger than prompts of this length allow
        if (measured > b.sampling || (double)b.sampling > 1.25 * (double)measured)
            fail_msg("%zu bytes were planned, %zu were taken", b.sampling, measured);
        invar_model_free(model);
        invar_device_close(&dev);
    }
}

/* ---- other shapes ---------------------------------------------------------------------------- */

/* Smaller samples, fewer of them, other limits: none of it needs more. */
static void compare_smaller(const invar_memory_workload *ask, int cases)
{
    invar_memory_plan whole, part;

    assert_ok(invar_memory_plan_make(&whole, ask, PLENTY));
    assert_int_equal(whole.choice.max_tokens, ask->plan.max_tokens);
    for (uint64_t i = 0; i < (uint64_t)cases; i++) {
        invar_memory_workload other = *ask;
        other.prompt = 1 + invar_test_random(1, i) % ask->prompt;
        other.response = 1 + invar_test_random(2, i) % ask->response;
        other.step_samples = other.samples = 1 + invar_test_random(3, i) % ask->step_samples;
        other.plan.max_tokens = 1 + invar_test_random(4, i) % ask->plan.max_tokens;
        assert_ok(invar_memory_plan_make(&part, &other, PLENTY));
        if (part.learning > whole.learning || part.scoring > whole.scoring ||
            part.sampling > whole.sampling)
            fail_msg("case %d: %zu, %zu and %zu bytes; of the largest %zu, %zu and %zu", (int)i,
                     part.sampling, part.scoring, part.learning, whole.sampling, whole.scoring,
                     whole.learning);
    }
}

static void test_budget__smaller_batches_need_no_more(void **state)
{
    invar_device dev = device_of(false);
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_EXPERTS, false);
    invar_memory_workload ask = ask_of(&dev, &spec, INVAR_FORMAT_BF16);

    (void)state;
    ask.plan = (invar_batch_plan_options){.unit_rows = 60, .unit_count = 13, .max_tokens = 70};
    ask.dynamic = true;
    ask.head_rows = 9;
    ask.step_samples = ask.samples = 40;
    compare_smaller(&ask, 300);
    invar_device_close(&dev);
}

/* Ranks that divide rows, as long as these have blocks enough. */
static void test_budget__fewer_divided_rows_need_no_more(void **state)
{
    static const invar_layout_sizes sizes = {
        .tensor = 4, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .sequence = true};
    invar_device dev = device_of(false);
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, false);
    invar_memory_workload ask = ask_of(&dev, &spec, INVAR_FORMAT_BF16);
    invar_layout layout;

    (void)state;
    spec.vocab = 1024;
    spec.heads = spec.kv_heads = 4;
    spec.intermediate = 512;
    spec.max_positions = ask.context = 256;
    spec.logical_tp = 4;
    ask.response = 250;
    ask.plan = (invar_batch_plan_options){.unit_rows = 600, .unit_count = 13, .max_tokens = 1500};
    ask.dynamic = true;
    ask.head_rows = 9;
    ask.step_samples = ask.samples = 12;
    for (int r = 0; r < 4; r++) {
        assert_ok(invar_layout_simulate(&layout, &sizes, 4, r));
        ask.layout = &layout;
        compare_smaller(&ask, 60);
        invar_layout_release(&layout);
    }
    invar_device_close(&dev);
}

/* ---- choices --------------------------------------------------------------------------------- */

static void test_budget__chooses_what_fits(void **state)
{
    invar_device dev = device_of(false);
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, false);
    invar_memory_workload ask = ask_of(&dev, &spec, INVAR_FORMAT_FP32), set;
    invar_memory_plan most, b;
    bool fitted = false, fewer_tokens = false, fewer_pages = false;

    (void)state;
    ask.plan = (invar_batch_plan_options){.unit_rows = 1, .unit_count = 1, .max_tokens = 100000};
    ask.dynamic = true;
    ask.step_samples = ask.samples = 400;
    ask.rollouts[INVAR_MEMORY_PLAN_TRAINING].prompts = 300;
    assert_ok(invar_memory_plan_make(&most, &ask, PLENTY));
    for (size_t memory = most.need / 40; memory < 2 * most.need; memory += memory / 8) {
        assert_ok(invar_memory_plan_make(&b, &ask, memory));
        if (fitted && !b.fits) // more memory never hurts
            fail_msg("%zu bytes fit nothing: tokens %d, rows %d, pages %d, %zu %zu %zu", memory,
                     (int)b.choice.max_tokens, (int)b.choice.head_rows, (int)b.choice.pages,
                     b.sampling, b.scoring, b.learning);
        assert_true(!b.fits || b.need <= memory - memory / 64);
        assert_in_range(b.choice.max_tokens, TOKENS - 1, 100000);
        assert_int_equal(b.block, b.learning > b.sampling ? b.learning : b.sampling);
        if (b.fits)
            assert_ok(invar_memory_plan_check_fits(&b, &ask));
        fitted = b.fits;
        fewer_tokens = fewer_tokens || (b.fits && b.choice.max_tokens < 100000);
        fewer_pages = fewer_pages || (b.fits && b.choice.pages < most.choice.pages);
    }
    assert_true(fitted && fewer_tokens && fewer_pages);
    // what is set stays, and is refused where it cannot fit
    set = ask;
    set.limits.pages = most.choice.pages;
    set.limits.concurrency = 64;
    set.head_rows = 100000;
    assert_ok(invar_memory_plan_make(&b, &set, PLENTY));
    assert_ok(invar_memory_plan_make(&b, &set, b.resident + b.sampling - b.cache / 2));
    assert_false(b.fits);
    assert_int_equal(b.choice.pages, most.choice.pages);
    assert_int_equal(b.choice.head_rows, 100000);
    assert_fails(invar_memory_plan_check_fits(&b, &set), INVAR_E_NOMEM, "set kv-pages = 0");
    // nothing helps
    assert_ok(invar_memory_plan_make(&b, &ask, 1000));
    assert_fails(invar_memory_plan_check_fits(&b, &ask), INVAR_E_NOMEM, "take a smaller model");
    invar_device_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget__training_takes_what_was_planned),
        cmocka_unit_test(test_budget__ranks_take_what_was_planned),
        cmocka_unit_test(test_budget__weights_on_their_way_take_what_was_planned),
        cmocka_unit_test(test_budget__a_teacher_keeps_its_weights_alone),
        cmocka_unit_test(test_budget__sampling_takes_no_more_than_planned),
        cmocka_unit_test(test_budget__smaller_batches_need_no_more),
        cmocka_unit_test(test_budget__fewer_divided_rows_need_no_more),
        cmocka_unit_test(test_budget__chooses_what_fits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
