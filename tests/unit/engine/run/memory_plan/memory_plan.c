/*
 * memory_plan.c - tests of memory plans: planned against measured bytes, and the chosen settings.
 *
 * Models are created, trained, scored and sampled on counting allocators, on the CPU and on the
 * fake GPU. A plan may not be below the measured peak, and hardly above it. Other tests compare
 * plans with each other: smaller batches and more memory.
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

/* ---- counting device ------------------------------------------------------------------------- */

/* Returns the CPU or the fake GPU, with counted allocations of exact size. */
static invar_device device_of(bool fake_gpu)
{
    static invar_backend tables[2];
    invar_device dev = {.backend = &tables[fake_gpu], .numerics = INVAR_NUMERICS_IEEE};

    tables[fake_gpu] = fake_gpu ? *invar_fake_gpu_backend() : *invar_backend_cpu();
    tables[fake_gpu].memory.exact_size = true;
    if (fake_gpu) {
        tables[fake_gpu].memory.alloc_host = invar_counting_allocator_alloc;
        tables[fake_gpu].memory.free_host = invar_counting_allocator_free;
        invar_fake_gpu_begin(0);
    } else {
        tables[fake_gpu].memory.alloc = invar_counting_allocator_alloc;
        tables[fake_gpu].memory.free = invar_counting_allocator_free;
    }
    assert_ok(invar_device_open(&dev));
    return dev;
}

static size_t peak_bytes_of(bool fake_gpu)
{
    return fake_gpu ? invar_fake_gpu_counted().most : invar_counting_allocator.most;
}

static size_t live_bytes_of(bool fake_gpu)
{
    return fake_gpu ? invar_fake_gpu_counted().bytes : invar_counting_allocator.taken;
}

/* ---- training, scoring ----------------------------------------------------------------------- */

static invar_memory_workload make_workload(const invar_device *dev, const invar_model_spec *spec,
                                           invar_format format)
{
    return (invar_memory_workload){
        .dev = dev,
        .models = {.actor = spec, .format = format, .rollout_format = format},
        .learns = true,
        .adamw = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f},
        .plan = {.unit_rows = 1, .unit_count = 1, .micro_batch = SAMPLES},
        .step_samples = SAMPLES,
        .samples = SAMPLES,
        .lengths = {.prompt = PROMPT, .response = RESPONSE, .context = TOKENS},
        .rollouts = {{.prompts = 2,
                      .per_prompt = 3,
                      .prompt = PROMPT,
                      .response = RESPONSE,
                      .context = TOKENS}},
        .sampling = {{.temperature = 1.0f, .top_p = 1.0f, .max_response = RESPONSE}}};
}

/* Makes samples of the maximum length. */
static void fill_samples(invar_rl_samples *out, int64_t vocab)
{
    invar_test_samples(out, SAMPLES, RESPONSE, vocab, 3);
    for (int64_t i = 0; i < out->count; i++) {
        invar_rl_sample *s = &out->items[i];
        invar_free(s->tokens);
        assert_ok(INVAR_ALLOC(s->tokens, TOKENS, "tokens"));
        for (int t = 0; t < TOKENS; t++)
            s->tokens[t] = (int32_t)(t % vocab);
        s->prompt_tokens = PROMPT;
        s->n_tokens = TOKENS;
    }
}

static invar_status constant_loss(void *payload, int64_t first, int64_t count, const float *now,
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

/* Returns the peak bytes of one pass of a trainer. */
static size_t measure_pass(invar_model *model, invar_grads *grads, const invar_device *dev,
                           const invar_memory_workload *workload, const invar_memory_plan *b,
                           bool train)
{
    bool fake_gpu = invar_device_is_local(dev);
    const invar_trainer_options o = {.plan = workload->plan,
                                     .recompute = workload->recompute,
                                     .head_rows = b->choice.head_rows,
                                     .temperature = 1.0f,
                                     .layout = workload->ranks.layout};
    float now[SAMPLES * RESPONSE], entropy[SAMPLES * RESPONSE];
    invar_trainer_result result = {.train_logp = now, .entropy = entropy};
    invar_trainer_loss loss = {.run = constant_loss};
    invar_trainer *trainer = NULL;
    invar_rl_samples samples;
    size_t before = live_bytes_of(fake_gpu);

    fill_samples(&samples, model->spec.vocab);
    invar_counting_allocator.most = invar_counting_allocator.taken;
    assert_ok(invar_trainer_new(&trainer, dev, &o));
    if (train)
        assert_ok(invar_trainer_forward_backward(trainer, model, samples.items, samples.count,
                                                 &loss, grads, &result));
    else
        assert_ok(invar_trainer_score(trainer, model, samples.items, samples.count, now, NULL));
    invar_trainer_free(trainer);
    invar_rl_samples_reset(&samples);
    return peak_bytes_of(fake_gpu) - before;
}

static void compare_training(invar_test_model kind, invar_format format, bool fake_gpu,
                             bool recompute, int64_t head_rows)
{
    invar_model_spec spec = invar_test_spec(kind, true);
    invar_device dev = device_of(fake_gpu);
    invar_memory_workload workload = make_workload(&dev, &spec, format);
    invar_model *model = NULL;
    invar_grads *grads = NULL;
    invar_memory_plan b;

    workload.recompute = recompute;
    workload.head_rows = head_rows;
    assert_ok(invar_memory_plan_make(&b, &workload, PLENTY));
    assert_true(b.fits);
    assert_ok(invar_model_new(&model, &spec, format, NULL, &dev));
    assert_ok(invar_model_init(model, 1, &dev));
    assert_int_equal(b.items[0].bytes,
                     (live_bytes_of(fake_gpu) + INVAR_ALIGN - 1) / INVAR_ALIGN * INVAR_ALIGN);
    assert_ok(invar_grads_new(&grads, model));
    // scoring first, because the peak of the fake GPU is never reset
    check_close("scoring", measure_pass(model, grads, &dev, &workload, &b, false), b.scoring);
    check_close("learning", measure_pass(model, grads, &dev, &workload, &b, true), b.learning);
    invar_grads_free(grads);
    invar_model_free(model);
    invar_device_close(&dev);
}

static void test_memory_plan__training_takes_what_was_planned(void **state)
{
    static const invar_test_model kinds[] = {INVAR_TEST_MODEL_DENSE, INVAR_TEST_MODEL_EXPERTS};

    (void)state;
    for (int fake_gpu = 0; fake_gpu < 2; fake_gpu++)
        for (int k = 0; k < 2; k++)
            for (int f = 0; f < INVAR_FORMAT_COUNT; f++)
                for (int variant = 0; variant < 2; variant++)
                    compare_training(kinds[k], (invar_format)f, fake_gpu, variant == 1,
                                     variant == 1 ? 4 : 0);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* The second of two ranks, whose memory is not counted. */
typedef struct second_rank {
    invar_layout layout;
    invar_device dev;
    const invar_memory_workload *workload;
    invar_model *model;
    invar_status status;
} second_rank;

static invar_status run_second_rank(second_rank *p, invar_trainer *trainer,
                                    const invar_rl_samples *samples)
{
    float now[SAMPLES * RESPONSE], entropy[SAMPLES * RESPONSE];
    invar_trainer_result result = {.train_logp = now, .entropy = entropy};
    invar_trainer_loss loss = {.run = constant_loss};
    invar_grads *grads;
    invar_status status;

    INVAR_TRY(invar_trainer_score(trainer, p->model, samples->items, samples->count, now, NULL));
    INVAR_TRY(invar_grads_new(&grads, p->model));
    status = invar_trainer_forward_backward(trainer, p->model, samples->items, samples->count,
                                            &loss, grads, &result);
    invar_grads_free(grads);
    return status;
}

static void *second_rank_main(void *payload)
{
    second_rank *p = payload;
    invar_trainer_options o = {
        .plan = p->workload->plan, .temperature = 1.0f, .layout = &p->layout};
    invar_trainer *trainer = NULL;
    invar_rl_samples samples;

    fill_samples(&samples, p->model->spec.vocab);
    p->status = invar_trainer_new(&trainer, &p->dev, &o);
    if (p->status == INVAR_OK)
        p->status = run_second_rank(p, trainer, &samples);
    invar_trainer_free(trainer);
    invar_rl_samples_reset(&samples);
    return NULL;
}

/* Measures rank 0 of two, which has half of the moments and computes one unit at a time. */
static void compare_ranks(invar_test_model kind, bool fake_gpu)
{
    invar_model_spec spec = invar_test_spec(kind, true);
    invar_device dev = device_of(fake_gpu);
    invar_memory_workload workload = make_workload(&dev, &spec, INVAR_FORMAT_BF16);
    second_rank other = {.dev = {.backend = invar_backend_cpu(), .numerics = INVAR_NUMERICS_IEEE},
                         .workload = &workload};
    invar_model *model = NULL;
    invar_grads *grads = NULL;
    invar_layout layout;
    invar_comm *comms[2];
    invar_memory_plan alone, b;
    pthread_t thread;

    assert_ok(invar_comm_threads(comms, 2, 0));
    invar_layout_init(&layout, comms[0], 60);
    invar_layout_init(&other.layout, comms[1], 60);
    assert_ok(invar_memory_plan_make(&alone, &workload, PLENTY));
    workload.ranks.layout = &layout;
    assert_ok(invar_memory_plan_make(&b, &workload, PLENTY));
    assert_string_equal(b.items[2].name, "actor: moments");
    assert_true(10 * b.items[2].bytes <=
                6 * alone.items[2].bytes); // half, and some tensors that are not divided
    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_BF16, &layout, &dev));
    assert_ok(invar_model_init(model, 1, &dev));
    assert_ok(invar_model_new(&other.model, &spec, INVAR_FORMAT_BF16, &other.layout, &other.dev));
    assert_ok(invar_model_init(other.model, 1, &other.dev));
    assert_ok(invar_grads_new(&grads, model));
    assert_int_equal(pthread_create(&thread, NULL, second_rank_main, &other), 0);
    check_close("scoring", measure_pass(model, grads, &dev, &workload, &b, false), b.scoring);
    check_close("learning", measure_pass(model, grads, &dev, &workload, &b, true), b.learning);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(other.status, INVAR_OK);
    invar_comm_free(comms[0]);
    invar_comm_free(comms[1]);
    invar_grads_free(grads);
    invar_model_free(model);
    invar_model_free(other.model);
    invar_device_close(&dev);
}

static void test_memory_plan__ranks_take_what_was_planned(void **state)
{
    (void)state;
    for (int fake_gpu = 0; fake_gpu < 2; fake_gpu++) {
        compare_ranks(INVAR_TEST_MODEL_DENSE, fake_gpu);
        compare_ranks(INVAR_TEST_MODEL_EXPERTS, fake_gpu);
    }
}

/* ---- weight sync ----------------------------------------------------------------------------- */

/* One rank trains and one samples: each has two buckets, at most as large as all weights. */
static void compare_sync(bool fake_gpu, bool samples, size_t bucket)
{
    const invar_layout_sizes whole = {
        .tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1};
    const invar_rank_role_sizes sizes = {.train = whole, .rollout = whole, .rollout_ranks = 1};
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, true);
    invar_device dev = device_of(fake_gpu);
    invar_memory_workload workload = make_workload(&dev, &spec, INVAR_FORMAT_BF16);
    invar_model *model = NULL;
    invar_weight_sync *sync = NULL;
    invar_rank_roles roles;
    invar_memory_plan alone, b;
    size_t before, sync_bytes;

    workload.models.samples_alone = samples;
    workload.learns = !samples;
    workload.ranks.bucket_bytes = bucket;
    assert_ok(invar_memory_plan_make(&alone, &workload, PLENTY));
    assert_ok(invar_rank_roles_simulate(&roles, &sizes, 2, samples));
    workload.ranks.roles = &roles;
    assert_ok(invar_memory_plan_make(&b, &workload, PLENTY));
    assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_BF16, NULL, &dev));
    before = invar_counting_allocator.taken;
    assert_ok(
        invar_weight_sync_new(&sync, &(invar_weight_sync_options){&roles, model, &dev, bucket}));
    sync_bytes = invar_counting_allocator.taken - before;
    assert_int_equal(sync_bytes,
                     2 * (bucket < alone.items[0].bytes ? bucket : invar_weight_sync_bytes(sync)));
    assert_int_equal(b.host - alone.host, fake_gpu ? sync_bytes : 0);
    assert_int_equal(b.resident - alone.resident, fake_gpu ? 0 : invar_aligned(sync_bytes));
    assert_int_equal(b.need - alone.need, b.resident - alone.resident);
    invar_weight_sync_free(sync);
    assert_int_equal(invar_counting_allocator.taken, before);
    invar_model_free(model);
    invar_rank_roles_close(&roles);
    invar_device_close(&dev);
}

static void test_memory_plan__weight_sync_takes_what_was_planned(void **state)
{
    (void)state;
    for (int fake_gpu = 0; fake_gpu < 2; fake_gpu++)
        for (int samples = 0; samples < 2; samples++) {
            compare_sync(fake_gpu, samples, 1000);
            compare_sync(fake_gpu, samples, PLENTY);
        }
}

/* ---- teacher --------------------------------------------------------------------------------- */

static size_t item_bytes(const invar_memory_plan *b, const char *name)
{
    for (int i = 0; i < b->n_items; i++)
        if (strcmp(b->items[i].name, name) == 0)
            return b->items[i].bytes;
    return 0;
}

/* A teacher has masters only while it is loaded, before anything else is allocated. */
static void compare_teacher(invar_format format, bool fake_gpu)
{
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_EXPERTS, true), large = spec;
    invar_device dev = device_of(fake_gpu);
    invar_memory_workload workload = make_workload(&dev, &spec, format);
    invar_model *whole = NULL, *teacher = NULL;
    invar_memory_plan b, alone;

    large.layers = 40 * spec.layers;
    assert_ok(invar_memory_plan_make(&alone, &workload, PLENTY));
    workload.models.teacher = &large;
    workload.models.teacher_apart = true;
    assert_ok(invar_memory_plan_make(&b, &workload, PLENTY));
    assert_ok(invar_model_new(&whole, &large, format, NULL, &dev));
    assert_ok(invar_model_new_weights(&teacher, &large, format, NULL, &dev));
    check_close("loading", live_bytes_of(fake_gpu), b.load_peak_bytes);
    invar_model_free(whole);
    check_close("a teacher", live_bytes_of(fake_gpu), item_bytes(&b, "teacher: weights"));
    assert_int_equal(b.resident - alone.resident, item_bytes(&b, "teacher: weights"));
    assert_int_equal(alone.load_peak_bytes, 0);
    // loading the large teacher determines the need, and the error message names it
    assert_int_equal(b.need, b.load_peak_bytes);
    assert_ok(invar_memory_plan_make(&b, &workload, b.load_peak_bytes - 1));
    assert_fails(invar_memory_plan_check_fits(&b, &workload), INVAR_E_NOMEM, "loading the teacher");
    // loading a teacher of the actor's size does not
    workload.models.teacher = &spec;
    workload.models.teacher_apart = false;
    assert_ok(invar_memory_plan_make(&b, &workload, PLENTY));
    assert_int_equal(b.need, b.resident + b.block + b.outside_block_bytes);
    assert_true(item_bytes(&b, "teacher: weights") <= item_bytes(&b, "actor: weights"));
    invar_model_free(teacher);
    invar_device_close(&dev);
}

static void test_memory_plan__a_teacher_keeps_only_its_weights(void **state)
{
    (void)state;
    for (int fake_gpu = 0; fake_gpu < 2; fake_gpu++)
        for (int f = 0; f < INVAR_FORMAT_COUNT; f++)
            compare_teacher((invar_format)f, fake_gpu);
}

/* ---- sampling -------------------------------------------------------------------------------- */

static size_t measure_sampling(invar_model *model, const invar_device *dev,
                               const invar_memory_workload *workload, const invar_memory_plan *b)
{
    invar_rollout_exec_options limits = workload->limits;
    invar_rl_samples samples;
    invar_rollout *rollout = NULL;
    size_t before = live_bytes_of(invar_device_is_local(dev));

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
    invar_counting_allocator.most = invar_counting_allocator.taken;
    assert_ok(invar_rollout_new(&rollout, model, NULL, dev, &limits));
    assert_ok(invar_rollout_run(rollout, samples.items, samples.count,
                                &workload->sampling[INVAR_MEMORY_PLAN_TRAINING], NULL, NULL));
    invar_rollout_free(rollout);
    invar_rl_samples_reset(&samples);
    return peak_bytes_of(invar_device_is_local(dev)) - before;
}

static void test_memory_plan__sampling_takes_no_more_than_planned(void **state)
{
    (void)state;
    for (int fake_gpu = 0; fake_gpu < 2; fake_gpu++) {
        invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_EXPERTS, false);
        invar_device dev = device_of(fake_gpu);
        invar_memory_workload workload = make_workload(&dev, &spec, INVAR_FORMAT_BF16);
        invar_model *model = NULL;
        invar_memory_plan b;
        size_t measured;

        assert_ok(invar_memory_plan_make(&b, &workload, PLENTY));
        assert_ok(invar_model_new(&model, &spec, INVAR_FORMAT_BF16, NULL, &dev));
        assert_ok(invar_model_init(model, 1, &dev));
        measured = measure_sampling(model, &dev, &workload, &b);
        // planned passes are a little larger than passes with prompts of this length
        if (measured > b.sampling || (double)b.sampling > 1.25 * (double)measured)
            fail_msg("%zu bytes were planned, %zu were taken", b.sampling, measured);
        invar_model_free(model);
        invar_device_close(&dev);
    }
}

/* ---- other shapes ---------------------------------------------------------------------------- */

/* Smaller samples, fewer samples and other limits must not need more memory. */
static void compare_smaller(const invar_memory_workload *workload, int cases)
{
    invar_memory_plan whole, part;

    assert_ok(invar_memory_plan_make(&whole, workload, PLENTY));
    assert_int_equal(whole.choice.max_tokens, workload->plan.max_tokens);
    for (uint64_t i = 0; i < (uint64_t)cases; i++) {
        invar_memory_workload other = *workload;
        other.lengths.prompt = 1 + invar_test_random(1, i) % workload->lengths.prompt;
        other.lengths.response = 1 + invar_test_random(2, i) % workload->lengths.response;
        other.step_samples = other.samples = 1 + invar_test_random(3, i) % workload->step_samples;
        other.plan.max_tokens = 1 + invar_test_random(4, i) % workload->plan.max_tokens;
        assert_ok(invar_memory_plan_make(&part, &other, PLENTY));
        if (part.learning > whole.learning || part.scoring > whole.scoring ||
            part.sampling > whole.sampling)
            fail_msg("case %d: %zu, %zu and %zu bytes; of the largest %zu, %zu and %zu", (int)i,
                     part.sampling, part.scoring, part.learning, whole.sampling, whole.scoring,
                     whole.learning);
    }
}

static void test_memory_plan__smaller_batches_need_no_more(void **state)
{
    invar_device dev = device_of(false);
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_EXPERTS, false);
    invar_memory_workload workload = make_workload(&dev, &spec, INVAR_FORMAT_BF16);

    (void)state;
    workload.plan = (invar_batch_plan_options){.unit_rows = 60, .unit_count = 13, .max_tokens = 70};
    workload.dynamic = true;
    workload.head_rows = 9;
    workload.step_samples = workload.samples = 40;
    compare_smaller(&workload, 300);
    invar_device_close(&dev);
}

/* Sequence parallelism with four ranks; units have enough token blocks for all of them. */
static void test_memory_plan__fewer_divided_rows_need_no_more(void **state)
{
    static const invar_layout_sizes sizes = {
        .tensor = 4, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .sequence = true};
    invar_device dev = device_of(false);
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, false);
    invar_memory_workload workload = make_workload(&dev, &spec, INVAR_FORMAT_BF16);
    invar_layout layout;

    (void)state;
    spec.vocab = 1024;
    spec.attention.heads = spec.attention.kv_heads = 4;
    spec.intermediate = 512;
    spec.max_positions = workload.lengths.context = 256;
    spec.logical_tp = 4;
    workload.lengths.response = 250;
    workload.plan =
        (invar_batch_plan_options){.unit_rows = 600, .unit_count = 13, .max_tokens = 1500};
    workload.dynamic = true;
    workload.head_rows = 9;
    workload.step_samples = workload.samples = 12;
    for (int r = 0; r < 4; r++) {
        assert_ok(invar_layout_simulate(&layout, &sizes, 4, r));
        workload.ranks.layout = &layout;
        compare_smaller(&workload, 60);
        invar_layout_release(&layout);
    }
    invar_device_close(&dev);
}

/* ---- choices --------------------------------------------------------------------------------- */

static void test_memory_plan__chooses_what_fits(void **state)
{
    invar_device dev = device_of(false);
    invar_model_spec spec = invar_test_spec(INVAR_TEST_MODEL_DENSE, false);
    invar_memory_workload workload = make_workload(&dev, &spec, INVAR_FORMAT_FP32), fixed;
    invar_memory_plan most, b;
    bool fitted_before = false, fewer_tokens = false, fewer_pages = false;

    (void)state;
    workload.plan =
        (invar_batch_plan_options){.unit_rows = 1, .unit_count = 1, .max_tokens = 100000};
    workload.dynamic = true;
    workload.step_samples = workload.samples = 400;
    workload.rollouts[INVAR_MEMORY_PLAN_TRAINING].prompts = 300;
    assert_ok(invar_memory_plan_make(&most, &workload, PLENTY));
    for (size_t memory = most.need / 40; memory < 2 * most.need; memory += memory / 8) {
        assert_ok(invar_memory_plan_make(&b, &workload, memory));
        if (fitted_before && !b.fits) // a plan that fits must also fit into more memory
            fail_msg("%zu bytes fit nothing: tokens %d, rows %d, pages %d, %zu %zu %zu", memory,
                     (int)b.choice.max_tokens, (int)b.choice.head_rows, (int)b.choice.pages,
                     b.sampling, b.scoring, b.learning);
        assert_true(!b.fits || b.need <= memory - memory / 64);
        assert_in_range(b.choice.max_tokens, TOKENS - 1, 100000);
        assert_int_equal(b.block, b.learning > b.sampling ? b.learning : b.sampling);
        if (b.fits)
            assert_ok(invar_memory_plan_check_fits(&b, &workload));
        fitted_before = b.fits;
        fewer_tokens = fewer_tokens || (b.fits && b.choice.max_tokens < 100000);
        fewer_pages = fewer_pages || (b.fits && b.choice.pages < most.choice.pages);
    }
    assert_true(fitted_before && fewer_tokens && fewer_pages);
    // values that the user has set are kept, and rejected if they cannot fit
    fixed = workload;
    fixed.limits.pages = most.choice.pages;
    fixed.limits.concurrency = 64;
    fixed.head_rows = 100000;
    assert_ok(invar_memory_plan_make(&b, &fixed, PLENTY));
    assert_ok(invar_memory_plan_make(&b, &fixed, b.resident + b.sampling - b.cache / 2));
    assert_false(b.fits);
    assert_int_equal(b.choice.pages, most.choice.pages);
    assert_int_equal(b.choice.head_rows, 100000);
    assert_fails(invar_memory_plan_check_fits(&b, &fixed), INVAR_E_NOMEM, "set kv-pages = 0");
    // no choice fits into 1000 bytes
    assert_ok(invar_memory_plan_make(&b, &workload, 1000));
    assert_fails(invar_memory_plan_check_fits(&b, &workload), INVAR_E_NOMEM,
                 "take a smaller model");
    invar_device_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_plan__training_takes_what_was_planned),
        cmocka_unit_test(test_memory_plan__ranks_take_what_was_planned),
        cmocka_unit_test(test_memory_plan__weight_sync_takes_what_was_planned),
        cmocka_unit_test(test_memory_plan__a_teacher_keeps_only_its_weights),
        cmocka_unit_test(test_memory_plan__sampling_takes_no_more_than_planned),
        cmocka_unit_test(test_memory_plan__smaller_batches_need_no_more),
        cmocka_unit_test(test_memory_plan__fewer_divided_rows_need_no_more),
        cmocka_unit_test(test_memory_plan__chooses_what_fits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
