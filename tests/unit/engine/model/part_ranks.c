/*
 * part_ranks.c - ranks that divide layers and experts score and learn as one rank does.
 *
 * A rank's weights are its part of the whole model's. Log-probabilities, entropies and logits of
 * all ranks are compared with those of one rank, and of the gradients what each rank has of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/train/trainer.h"
#include "tests/device/fake_gpu.h"
#include "tests/model.h"
#include "tests/ranks.h"

enum { SAMPLES = 5, LONGEST = 60, MORE = 9, LONGER = 240, MOST = MORE * LONGER };
#define SECONDS 60

/* ---- models ---------------------------------------------------------------------------------- */

/* At least 8 atoms on every axis that is cut, or 11 in all. */
static invar_model_spec spec_of(invar_test_model kind, bool eleven, int64_t logical)
{
    invar_model_spec s = invar_test_spec(kind, true);
    int64_t atoms = eleven ? 11 : 8;

    s.vocab = eleven ? 11 * 256 - 7 : 9 * 256 - 200;
    s.hidden = 64;
    s.heads = eleven ? 11 : 16;
    s.kv_heads = atoms;
    s.head_dim = 128;
    s.intermediate = atoms * 128;
    s.eos[0] = 5;
    if (s.experts) {
        s.experts = 4;
        s.expert_intermediate = atoms * 128;
        s.logical_etp = logical;
    }
    s.logical_tp = logical;
    return s;
}

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct outcome {
    float scores[MOST], entropies[MOST], now[MOST], values[MOST];
} outcome;

typedef struct lesson {
    invar_model_spec spec;
    invar_format format;
    invar_device dev, far; /* of rank 1, if it is there */
    const invar_rl_samples *samples;
    bool recompute;
    int64_t head_rows, micro_batch, unit_rows;
    invar_layout_sizes sizes;
    const invar_model *whole; /* with its gradients: what is expected */
    const invar_grads *grads;
    outcome expected;
} lesson;

static invar_status run_loss(void *payload, int64_t first, int64_t count, const float *now,
                             const float *entropy, float *dnow, float *dentropy)
{
    const lesson *l = payload;
    int64_t tokens = invar_trainer_tokens(l->samples->items + first, count);

    for (int64_t i = 0; i < tokens; i++) {
        dnow[i] = 0.1f * now[i] + 0.01f * (float)(i % 7);
        if (dentropy)
            dentropy[i] = 0.02f * entropy[i];
    }
    return INVAR_OK;
}

/* The logits of some rows, of which log-probabilities do not tell everything. */
static invar_status read_logits(outcome *out, const lesson *l, const invar_model *model,
                                const invar_device *dev)
{
    static const int64_t rows[] = {0, 2};
    const int32_t ids[] = {1, 1000, (int32_t)l->spec.vocab - 1}, positions[] = {0, 1, 2};
    static const int64_t start[] = {0, 3};
    invar_packed_rows in = {.count = 3, .ids = ids, .positions = positions, .samples = {start, 1}};
    invar_pass *pass = NULL;
    invar_tensor logits;
    invar_status status;
    int64_t next = 0;

    in.units = in.samples;
    INVAR_TRY(invar_pass_new(&pass, dev, &(invar_pass_options){.poison = true}));
    status = invar_pass_run(pass, model, &in);
    if (status == INVAR_OK)
        status = invar_pass_logits(&logits, pass, rows, 2);
    for (int64_t r = 0; r < 2 && status == INVAR_OK; r++)
        for (int64_t i = 0; i < l->spec.vocab && status == INVAR_OK; i += l->spec.vocab / 100)
            status = invar_device_download(dev, &out->values[next++],
                                           (const float *)logits.data + r * logits.row_stride + i,
                                           sizeof(float));
    invar_pass_free(pass);
    return status;
}

static invar_status learn(outcome *out, const lesson *l, const invar_model *model,
                          invar_grads *grads, const invar_device *dev)
{
    invar_trainer_options options = {
        .plan = {.micro_batch = l->micro_batch, .unit_rows = l->unit_rows, .unit_count = 64},
        .recompute = l->recompute,
        .head_rows = l->head_rows,
        .temperature = 0.8f};
    invar_trainer_loss loss = {.run = run_loss, .payload = (void *)(uintptr_t)l, .entropy = true};
    invar_trainer_result result = {.train_logp = out->now, .entropy = out->entropies};
    invar_trainer *trainer = NULL;
    invar_status status;

    memset(out, 0, sizeof *out);
    INVAR_TRY(invar_trainer_new(&trainer, dev, &options));
    status = invar_trainer_score(trainer, model, l->samples->items, l->samples->count, out->scores,
                                 NULL);
    if (status == INVAR_OK)
        status = invar_trainer_forward_backward(trainer, model, l->samples->items,
                                                l->samples->count, &loss, grads, &result);
    invar_trainer_free(trainer);
    return status == INVAR_OK ? read_logits(out, l, model, dev) : status;
}

/* What the rank has of a parameter of the whole model; the caller frees it. */
static invar_status box_of(float **out, size_t *bytes_out, const invar_param *p, const float *whole)
{
    *bytes_out = (size_t)invar_param_elements(p) * sizeof **out;
    INVAR_TRY(invar_alloc((void **)out, *bytes_out, 1, "a part of a parameter"));
    invar_param_shard_extract(*out, p, &p->local, whole);
    return INVAR_OK;
}

static invar_status compare_gradient(const lesson *l, const invar_model *model,
                                     const invar_grads *grads, int64_t i)
{
    const invar_param *p = &model->params[i];
    float *expected = NULL, *found = NULL;
    invar_status status;
    size_t bytes;

    INVAR_TRY(box_of(&expected, &bytes, p, l->grads->tensors[i].data));
    status = invar_alloc((void **)&found, bytes, 1, "a gradient");
    if (status == INVAR_OK)
        status = invar_device_download(&model->dev, found, grads->tensors[i].data, bytes);
    if (status == INVAR_OK && memcmp(expected, found, bytes) != 0)
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "the gradient of %s differs", p->name);
    invar_free(expected);
    invar_free(found);
    return status;
}

static invar_status learn_part(const lesson *l, const invar_layout *layout)
{
    bool far = l->far.backend && invar_comm_rank(layout->world) == 1;
    const invar_device *dev = far ? &l->far : &l->dev;
    invar_model *model = NULL;
    invar_grads *grads = NULL;
    outcome out;
    invar_status status;

    INVAR_TRY(invar_model_new(&model, &l->spec, l->format, layout, dev));
    status = invar_test_model_fill(model, l->whole, dev);
    if (status == INVAR_OK)
        status = invar_grads_new(&grads, model);
    if (status == INVAR_OK)
        status = learn(&out, l, model, grads, dev);
    if (status == INVAR_OK && layout->context.size > 1 &&
        invar_comm_get_stats(layout->context.comm, INVAR_COMM_ALLTOALLV).sent == 0)
        status = INVAR_FAIL(INVAR_E_STATE, 0, "no rows were divided");
    if (status == INVAR_OK && memcmp(out.values, l->expected.values, sizeof out.values) != 0)
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "the logits differ");
    if (status == INVAR_OK && memcmp(&out, &l->expected, sizeof out) != 0)
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "the log-probabilities differ");
    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++)
        status = compare_gradient(l, model, grads, i);
    invar_grads_free(grads);
    invar_model_free(model);
    return status;
}

static invar_status one_rank(rank_run *run)
{
    const lesson *l = run->payload;
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    status = invar_layout_divide(&layout, &l->sizes);
    if (status == INVAR_OK)
        status = learn_part(l, &layout);
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    invar_layout_release(&layout);
    return status;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void expect(lesson *l, invar_model **whole_out, invar_grads **grads_out)
{
    assert_ok(invar_model_new(whole_out, &l->spec, l->format, NULL, &l->dev));
    assert_ok(invar_model_init(*whole_out, 11, &l->dev));
    assert_ok(invar_grads_new(grads_out, *whole_out));
    assert_ok(learn(&l->expected, l, *whole_out, *grads_out, &l->dev));
    l->whole = *whole_out;
    l->grads = *grads_out;
}

/* As many ranks as the sizes need. */
static void check_sizes(lesson *l, const char *name, invar_layout_sizes sizes, uint64_t schedule)
{
    rank_run runs[MAX_RANKS];
    int ranks;

    sizes.pipeline = sizes.virtual_stages = 1;
    sizes.sequence = l->sizes.sequence;
    l->sizes = sizes;
    ranks = invar_layout_model_ranks(&sizes);
    run_ranks(runs, ranks, schedule, 0, one_rank, l);
    for (int r = 0; r < ranks; r++)
        if (runs[r].status != INVAR_OK)
            fail_msg("%s, %s, %d x %d x %d ranks, rank %d: %s", name, invar_format_name(l->format),
                     sizes.tensor, sizes.context, sizes.expert, r, runs[r].error.message);
}

static void check(lesson *l, const char *name, int first, int last)
{
    invar_model *whole = NULL;
    invar_grads *grads = NULL;

    expect(l, &whole, &grads);
    for (int ranks = first; ranks <= last; ranks *= 2)
        check_sizes(l, name,
                    (invar_layout_sizes){.tensor = ranks, .expert_tensor = ranks, .expert = 1},
                    7 * (uint64_t)(ranks == 4));
    invar_grads_free(grads);
    invar_model_free(whole);
}

static void lesson_init(lesson *l, const invar_rl_samples *samples, const invar_device *dev,
                        invar_test_model kind, invar_format format, bool eleven)
{
    *l = (lesson){.spec = spec_of(kind, eleven, 8),
                  .format = format,
                  .dev = *dev,
                  .samples = samples,
                  .micro_batch = 2,
                  .unit_rows = 90,
                  .head_rows = kind == INVAR_TEST_MODEL_BIAS ? 40 : 0,
                  .recompute = kind == INVAR_TEST_MODEL_LLAMA};
    l->dev.pool = NULL; // a rank is a thread
}

static void test_part_ranks__compute_as_one(void **state)
{
    invar_rl_samples samples;
    lesson l;

    invar_test_samples(&samples, SAMPLES, LONGEST, 2000, 3);
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
            if (!invar_test_full() && (kind + format) % 3 != 0)
                continue;
            lesson_init(&l, &samples, *state, (invar_test_model)kind, (invar_format)format, false);
            check(&l, invar_test_model_name((invar_test_model)kind), 2, 8);
        }
    invar_rl_samples_reset(&samples);
}

/* Products of uneven pieces are made one by one, so no format with scales has these. */
static void test_part_ranks__eleven_atoms(void **state)
{
    static const invar_format formats[] = {INVAR_FORMAT_FP32, INVAR_FORMAT_BF16};
    invar_rl_samples samples;
    lesson l;

    invar_test_samples(&samples, SAMPLES, LONGEST, 2000, 4);
    for (int i = 0; i < 2; i++) {
        lesson_init(&l, &samples, *state, INVAR_TEST_MODEL_DENSE, formats[i], true);
        check(&l, "eleven atoms", 2, 8);
    }
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        lesson_init(&l, &samples, *state, INVAR_TEST_MODEL_EXPERTS, (invar_format)format, true);
        check(&l, "eleven atoms, experts", 8, 8);
    }
    invar_rl_samples_reset(&samples);
}

/* Sums that are large enough for each rank to add a share of their rows. */
static void test_part_ranks__share_rows(void **state)
{
    static const invar_test_model kinds[] = {INVAR_TEST_MODEL_DENSE, INVAR_TEST_MODEL_EXPERTS};
    static const invar_format formats[] = {INVAR_FORMAT_FP32, INVAR_FORMAT_FP8};
    invar_rl_samples samples;

    invar_test_samples(&samples, SAMPLES, LONGEST, 2000, 7);
    for (int i = 0; i < 2; i++) {
        lesson l;

        lesson_init(&l, &samples, *state, kinds[i], formats[i], false);
        l.spec.hidden = 1024;
        l.micro_batch = SAMPLES;
        check(&l, "wide", 2, 8);
    }
    invar_rl_samples_reset(&samples);
}

/* Samples of several blocks of tokens, all in one micro-batch: ranks divide its rows. */
static void divide_rows(lesson *l)
{
    l->sizes.sequence = true;
    l->micro_batch = MORE;
    l->unit_rows = 500;
}

static void test_part_ranks__divide_rows(void **state)
{
    invar_rl_samples samples;
    bool full = invar_test_full();
    int ranks = 2;
    lesson l;

    invar_test_samples(&samples, MORE, LONGER, 2000, 9);
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
            if (!full && (kind + format) % 6 != 0)
                continue;
            lesson_init(&l, &samples, *state, (invar_test_model)kind, (invar_format)format, false);
            divide_rows(&l);
            l.recompute = format / 2 % 2;
            check(&l, invar_test_model_name((invar_test_model)kind), full ? 2 : ranks,
                  full ? 8 : ranks);
            ranks = ranks == 8 ? 2 : 2 * ranks;
        }
    lesson_init(&l, &samples, *state, INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, true);
    divide_rows(&l);
    check(&l, "eleven atoms", 2, full ? 8 : 2);
    invar_rl_samples_reset(&samples);
}

/* Rows of one unit, and of one sample, go to several ranks; heads to others. */
static void test_part_ranks__divide_context(void **state)
{
    static const invar_layout_sizes sizes[] = {
        {.tensor = 1, .expert_tensor = 1, .context = 2},
        {.tensor = 1, .expert_tensor = 1, .context = 4},
        {.tensor = 2, .expert_tensor = 1, .context = 2},
        {.tensor = 2, .expert_tensor = 1, .context = 4},
    };
    invar_rl_samples samples;

    invar_test_samples(&samples, SAMPLES, LONGER, 2000, 9);
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
            invar_model *whole = NULL;
            invar_grads *grads = NULL;
            lesson l;

            if (!invar_test_full() && (kind + format) % 5 != 0)
                continue;
            lesson_init(&l, &samples, *state, (invar_test_model)kind, (invar_format)format, false);
            divide_rows(&l);
            l.recompute = (kind + format) % 2;
            l.sizes.sequence = kind % 2 == 0;
            l.head_rows = format % 2 ? 70 : 0;
            expect(&l, &whole, &grads);
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                if (invar_test_full() || (i + (size_t)kind) % 3 == 0)
                    check_sizes(&l, invar_test_model_name((invar_test_model)kind), sizes[i], i);
            invar_grads_free(grads);
            invar_model_free(whole);
        }
    invar_rl_samples_reset(&samples);
}

/* Context-parallel ranks share the experts that expert-parallel ones divide, evenly or not. */
static void test_part_ranks__divide_context_and_experts(void **state)
{
    static const invar_layout_sizes sizes[] = {
        {.tensor = 1, .expert_tensor = 1, .context = 2, .expert = 2},
        {.tensor = 1, .expert_tensor = 1, .context = 2, .expert = 3},
        {.tensor = 2, .expert_tensor = 2, .context = 2, .expert = 2},
        {.tensor = 1, .expert_tensor = 1, .context = 4, .expert = 2},
        {.tensor = 2, .expert_tensor = 1, .context = 2, .expert = 2},
    };
    invar_rl_samples samples;

    invar_test_samples(&samples, SAMPLES, LONGER, 2000, 11);
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        invar_model *whole = NULL;
        invar_grads *grads = NULL;
        lesson l;

        lesson_init(&l, &samples, *state, INVAR_TEST_MODEL_EXPERTS, (invar_format)format, false);
        l.spec.experts = 9; // 3 of them have an odd number
        divide_rows(&l);
        l.recompute = format % 2 == 0;
        l.sizes.sequence = format / 2 % 2;
        expect(&l, &whole, &grads);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            if (invar_test_full() || (i + (size_t)format) % 5 == 0) // each once
                check_sizes(&l, "contexts, experts", sizes[i], i);
        invar_grads_free(grads);
        invar_model_free(whole);
    }
    invar_rl_samples_reset(&samples);
}

static void test_part_ranks__divide_experts(void **state)
{
    static const invar_layout_sizes sizes[] = {
        {.tensor = 1, .expert_tensor = 1, .expert = 2},
        {.tensor = 1, .expert_tensor = 1, .expert = 3},
        {.tensor = 2, .expert_tensor = 1, .expert = 2},
        {.tensor = 2, .expert_tensor = 2, .expert = 4},
        {.tensor = 4, .expert_tensor = 1, .expert = 1},
    };
    invar_rl_samples samples;

    invar_test_samples(&samples, SAMPLES, LONGEST, 2000, 5);
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        invar_model *whole = NULL;
        invar_grads *grads = NULL;
        lesson l;

        lesson_init(&l, &samples, *state, INVAR_TEST_MODEL_EXPERTS, (invar_format)format, false);
        l.recompute = format % 2;
        expect(&l, &whole, &grads);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            if (invar_test_full() || (i + (size_t)format) % 3 == 0)
                check_sizes(&l, "experts", sizes[i], i);
        invar_grads_free(grads);
        invar_model_free(whole);
    }
    invar_rl_samples_reset(&samples);
}

/* The control: one sum a rank, which a reducing collective would make, is another sum. */
static void test_part_ranks__sums_by_rank_differ(void **state)
{
    invar_rl_samples samples;
    invar_model *whole = NULL;
    invar_grads *grads = NULL;
    rank_run runs[MAX_RANKS];
    lesson l;

    invar_test_samples(&samples, SAMPLES, LONGEST, 2000, 8);
    lesson_init(&l, &samples, *state, INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, false);
    expect(&l, &whole, &grads);
    l.spec.logical_tp = 2;
    l.sizes =
        (invar_layout_sizes){.tensor = 2, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1};
    run_ranks(runs, 2, 0, 0, one_rank, &l);
    for (int r = 0; r < 2; r++)
        assert_int_equal(runs[r].status, INVAR_E_CORRUPT);
    invar_grads_free(grads);
    invar_model_free(whole);
    invar_rl_samples_reset(&samples);
}

/* One of the ranks has its model where the host cannot touch it. */
static void test_part_ranks__far_device(void **state)
{
    static const invar_layout_sizes sizes[] = {
        {.tensor = 2, .expert_tensor = 2, .expert = 1},
        {.tensor = 1, .expert_tensor = 1, .expert = 2},
        {.tensor = 1, .expert_tensor = 1, .context = 2},
        {.tensor = 1, .expert_tensor = 1, .context = 2, .expert = 2}};
    invar_rl_samples samples;
    invar_model *whole = NULL;
    invar_grads *grads = NULL;
    lesson l;

    invar_test_samples(&samples, SAMPLES, LONGEST, 2000, 6);
    lesson_init(&l, &samples, *state, INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP8, false);
    expect(&l, &whole, &grads);
    assert_ok(invar_far_open(&l.far, &l.dev));
    for (int i = 0; i < 4; i++)
        check_sizes(&l, "far", sizes[i], 0);
    l.sizes.sequence = true; // each sample is a unit, and a block of tokens
    check_sizes(&l, "far, divided rows", sizes[0], 0);
    assert_true(invar_far_counted().ops > 0);
    assert_int_equal(invar_far_counted().live, 0);
    invar_device_close(&l.far);
    invar_grads_free(grads);
    invar_model_free(whole);
    invar_rl_samples_reset(&samples);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_part_ranks__compute_as_one),
        cmocka_unit_test(test_part_ranks__eleven_atoms),
        cmocka_unit_test(test_part_ranks__share_rows),
        cmocka_unit_test(test_part_ranks__divide_rows),
        cmocka_unit_test(test_part_ranks__divide_context),
        cmocka_unit_test(test_part_ranks__divide_context_and_experts),
        cmocka_unit_test(test_part_ranks__divide_experts),
        cmocka_unit_test(test_part_ranks__sums_by_rank_differ),
        cmocka_unit_test(test_part_ranks__far_device),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
