/*
 * part_ranks.c - tests that tensor, context and expert parallelism change no bits.
 *
 * Each rank gets its local shards of a reference model. Log-probs, entropies and logits of all
 * ranks, and each rank's shards of the gradients, are compared with those of one rank. Control:
 * with other logical shards, which is one sum per rank, the results differ. By default every kind
 * of model and every format runs at least once, and the layouts that combine the kinds of
 * parallelism; under `full` all layouts with all kinds and formats.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/train/trainer.h"
#include "tests/device/fake_gpu.h"
#include "tests/model.h"
#include "tests/ranks.h"

/* Numbers and maximum lengths of samples: a few short ones, and some of several token blocks. */
enum {
    SAMPLES = 5,
    MAX_LENGTH = 60,
    LONG_SAMPLES = 9,
    LONG_LENGTH = 240,
    MAX_TOKENS = LONG_SAMPLES * LONG_LENGTH
};
#define SECONDS 60

/* ---- models ---------------------------------------------------------------------------------- */

/* Returns a spec with at least 8 atoms on every axis that is split, or with 11 on all of them. */
static invar_model_spec make_spec(invar_test_model kind, bool eleven, int64_t logical)
{
    invar_model_spec s = invar_test_spec(kind, true);
    int64_t atoms = eleven ? 11 : 8;

    s.vocab = eleven ? 11 * 256 - 7 : 9 * 256 - 200;
    s.hidden = 64;
    s.attention.heads = eleven ? 11 : 16;
    s.attention.kv_heads = atoms;
    s.attention.head_dim = 128;
    s.intermediate = atoms * 128;
    s.eos[0] = 5;
    if (s.experts.count) {
        s.experts.count = 4;
        s.experts.intermediate = atoms * 128;
        s.logical_etp = logical;
    }
    s.logical_tp = logical;
    return s;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Results of scoring and training; `values` are some logits. */
typedef struct train_results {
    float scores[MAX_TOKENS], entropies[MAX_TOKENS], logp[MAX_TOKENS], values[MAX_TOKENS];
} train_results;

/* A model, its samples and layout, and the results of one rank. */
typedef struct train_case {
    invar_model_spec spec;
    invar_format format;
    invar_device dev, fake_gpu; /* `fake_gpu`: device of rank 1 if it is open */
    const invar_rl_samples *samples;
    bool recompute;
    int64_t head_rows, micro_batch, unit_rows;
    invar_layout_sizes sizes;
    const invar_model *reference; /* complete model on one rank; `grads` are its gradients */
    const invar_grads *grads;
    train_results expected;
} train_case;

static invar_status run_loss(void *payload, int64_t first, int64_t count, const float *logp,
                             const float *entropy, float *dlogp, float *dentropy)
{
    const train_case *tc = payload;
    int64_t tokens = invar_trainer_tokens(tc->samples->items + first, count);

    for (int64_t i = 0; i < tokens; i++) {
        dlogp[i] = 0.1f * logp[i] + 0.01f * (float)(i % 7);
        if (dentropy)
            dentropy[i] = 0.02f * entropy[i];
    }
    return INVAR_OK;
}

/* Reads about 200 logits of two rows; log-probs alone would not show every difference. */
static invar_status read_logits(train_results *out, const train_case *tc, const invar_model *model,
                                const invar_device *dev)
{
    static const int64_t rows[] = {0, 2};
    const int32_t ids[] = {1, 1000, (int32_t)tc->spec.vocab - 1}, positions[] = {0, 1, 2};
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
        for (int64_t i = 0; i < tc->spec.vocab && status == INVAR_OK; i += tc->spec.vocab / 100)
            status = invar_device_download(dev, &out->values[next++],
                                           (const float *)logits.data + r * logits.row_stride + i,
                                           sizeof(float));
    invar_pass_free(pass);
    return status;
}

/* Scores the samples and runs forward and backward; `grads` gets the gradients. */
static invar_status train(train_results *out, const train_case *tc, const invar_model *model,
                          invar_grads *grads, const invar_device *dev)
{
    invar_trainer_options options = {
        .plan = {.micro_batch = tc->micro_batch, .unit_rows = tc->unit_rows, .unit_count = 64},
        .recompute = tc->recompute,
        .head_rows = tc->head_rows,
        .temperature = 0.8f};
    invar_trainer_loss loss = {.run = run_loss, .payload = (void *)(uintptr_t)tc, .entropy = true};
    invar_trainer_result result = {.train_logp = out->logp, .entropy = out->entropies};
    invar_trainer *trainer = NULL;
    invar_status status;

    memset(out, 0, sizeof *out);
    INVAR_TRY(invar_trainer_new(&trainer, dev, &options));
    status = invar_trainer_score(trainer, model, tc->samples->items, tc->samples->count,
                                 out->scores, NULL);
    if (status == INVAR_OK)
        status = invar_trainer_forward_backward(trainer, model, tc->samples->items,
                                                tc->samples->count, &loss, grads, &result);
    invar_trainer_free(trainer);
    return status == INVAR_OK ? read_logits(out, tc, model, dev) : status;
}

/* Extracts the rank's local shard of a complete parameter; the caller frees it. */
static invar_status extract_shard(float **out, size_t *bytes_out, const invar_param *p,
                                  const float *reference)
{
    *bytes_out = (size_t)invar_param_elements(p) * sizeof **out;
    INVAR_TRY(INVAR_ALLOC_SIZED(*out, *bytes_out, 1, "a part of a parameter"));
    invar_param_shard_extract(*out, p, &p->local, reference);
    return INVAR_OK;
}

static invar_status compare_gradient(const train_case *tc, const invar_model *model,
                                     const invar_grads *grads, int64_t i)
{
    const invar_param *p = &model->params[i];
    float *expected = NULL, *actual = NULL;
    invar_status status;
    size_t bytes;

    INVAR_TRY(extract_shard(&expected, &bytes, p, tc->grads->tensors[i].data));
    status = INVAR_ALLOC_SIZED(actual, bytes, 1, "a gradient");
    if (status == INVAR_OK)
        status = invar_device_download(&model->dev, actual, grads->tensors[i].data, bytes);
    if (status == INVAR_OK && memcmp(expected, actual, bytes) != 0)
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "the gradient of %s differs", p->name);
    invar_free(expected);
    invar_free(actual);
    return status;
}

static invar_status train_rank(const train_case *tc, const invar_layout *layout)
{
    bool fake_gpu = tc->fake_gpu.backend && invar_comm_rank(layout->world) == 1;
    const invar_device *dev = fake_gpu ? &tc->fake_gpu : &tc->dev;
    invar_model *model = NULL;
    invar_grads *grads = NULL;
    train_results out;
    invar_status status;

    INVAR_TRY(invar_model_new(&model, &tc->spec, tc->format, layout, dev));
    status = invar_test_model_fill(model, tc->reference, dev);
    if (status == INVAR_OK)
        status = invar_grads_new(&grads, model);
    if (status == INVAR_OK)
        status = train(&out, tc, model, grads, dev);
    if (status == INVAR_OK && layout->context.size > 1 &&
        invar_comm_get_stats(layout->context.comm, INVAR_COMM_ALLTOALLV).sent == 0)
        status = INVAR_FAIL(INVAR_E_STATE, 0, "no rows were divided");
    if (status == INVAR_OK && memcmp(out.values, tc->expected.values, sizeof out.values) != 0)
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "the logits differ");
    if (status == INVAR_OK && memcmp(&out, &tc->expected, sizeof out) != 0)
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "the log-probabilities differ");
    for (int64_t i = 0; i < model->n_params && status == INVAR_OK; i++)
        status = compare_gradient(tc, model, grads, i);
    invar_grads_free(grads);
    invar_model_free(model);
    return status;
}

static invar_status run_rank(rank_run *run)
{
    const train_case *tc = run->payload;
    invar_layout layout;
    invar_status status;

    invar_layout_init(&layout, run->comm, SECONDS);
    status = invar_layout_divide(&layout, &tc->sizes);
    if (status == INVAR_OK)
        status = train_rank(tc, &layout);
    if (status != INVAR_OK)
        invar_comm_abort(run->comm, invar_error_last()->message);
    invar_layout_release(&layout);
    return status;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Computes the expected results on one rank; the caller frees model and gradients. */
static void compute_expected(train_case *tc, invar_model **reference_out, invar_grads **grads_out)
{
    assert_ok(invar_model_new(reference_out, &tc->spec, tc->format, NULL, &tc->dev));
    assert_ok(invar_model_init(*reference_out, 11, &tc->dev));
    assert_ok(invar_grads_new(grads_out, *reference_out));
    assert_ok(train(&tc->expected, tc, *reference_out, *grads_out, &tc->dev));
    tc->reference = *reference_out;
    tc->grads = *grads_out;
}

/* Runs all ranks of a layout and fails if one of them differs from the expected results. */
static void check_sizes(train_case *tc, const char *name, invar_layout_sizes sizes,
                        uint64_t schedule)
{
    rank_run runs[MAX_RANKS];
    int ranks;

    sizes.pipeline = sizes.virtual_stages = 1;
    sizes.sequence = tc->sizes.sequence;
    tc->sizes = sizes;
    ranks = invar_layout_model_ranks(&sizes);
    run_ranks(runs, ranks, schedule, 0, run_rank, tc);
    for (int r = 0; r < ranks; r++)
        if (runs[r].status != INVAR_OK)
            fail_msg("%s, %s, %d x %d x %d ranks, rank %d: %s", name, invar_format_name(tc->format),
                     sizes.tensor, sizes.context, sizes.expert, r, runs[r].error.message);
}

static void check(train_case *tc, const char *name, int first, int last)
{
    invar_model *reference = NULL;
    invar_grads *grads = NULL;

    compute_expected(tc, &reference, &grads);
    for (int ranks = first; ranks <= last; ranks *= 2)
        check_sizes(tc, name,
                    (invar_layout_sizes){.tensor = ranks, .expert_tensor = ranks, .expert = 1},
                    7 * (uint64_t)(ranks == 4));
    invar_grads_free(grads);
    invar_model_free(reference);
}

static void train_case_init(train_case *tc, const invar_rl_samples *samples,
                            const invar_device *dev, invar_test_model kind, invar_format format,
                            bool eleven)
{
    *tc = (train_case){.spec = make_spec(kind, eleven, 8),
                       .format = format,
                       .dev = *dev,
                       .samples = samples,
                       .micro_batch = 2,
                       .unit_rows = 90,
                       .head_rows = kind == INVAR_TEST_MODEL_BIAS ? 40 : 0,
                       .recompute = kind == INVAR_TEST_MODEL_LLAMA};
    tc->dev.pool = NULL; // a rank is a thread
}

static void test_part_ranks__compute_as_one(void **state)
{
    invar_rl_samples samples;
    bool full = invar_test_full();
    train_case tc;

    invar_test_samples(&samples, SAMPLES, MAX_LENGTH, 2000, 3);
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
            int ranks = 2 << kind % 3;

            if (!full && (kind + format) % 5 != 0) // every kind and format once
                continue;
            train_case_init(&tc, &samples, *state, (invar_test_model)kind, (invar_format)format,
                            false);
            check(&tc, invar_test_model_name((invar_test_model)kind), full ? 2 : ranks,
                  full ? 8 : ranks);
        }
    invar_rl_samples_reset(&samples);
}

/* Uneven logical shards are multiplied one by one, which no format with scales supports. */
static void test_part_ranks__eleven_atoms(void **state)
{
    static const invar_format formats[] = {INVAR_FORMAT_FP32, INVAR_FORMAT_BF16};
    invar_rl_samples samples;
    bool full = invar_test_full();
    train_case tc;

    invar_test_samples(&samples, SAMPLES, MAX_LENGTH, 2000, 4);
    for (int i = 0; i < (full ? 2 : 1); i++) { // by default bf16 is in divide_rows
        train_case_init(&tc, &samples, *state, INVAR_TEST_MODEL_DENSE, formats[i], true);
        check(&tc, "eleven atoms", full ? 2 : 4, full ? 8 : 4);
    }
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        if (!full && format != INVAR_FORMAT_FP32)
            continue;
        train_case_init(&tc, &samples, *state, INVAR_TEST_MODEL_EXPERTS, (invar_format)format,
                        true);
        check(&tc, "eleven atoms, experts", 8, 8);
    }
    invar_rl_samples_reset(&samples);
}

/* Sums are large enough that every rank adds a range of their rows. */
static void test_part_ranks__share_rows(void **state)
{
    static const invar_test_model kinds[] = {INVAR_TEST_MODEL_DENSE, INVAR_TEST_MODEL_EXPERTS};
    static const invar_format formats[] = {INVAR_FORMAT_FP32, INVAR_FORMAT_FP8};
    invar_rl_samples samples;
    bool full = invar_test_full();

    invar_test_samples(&samples, SAMPLES, MAX_LENGTH, 2000, 7);
    for (int i = full ? 0 : 1; i < 2; i++) { // the first layer of the second kind is dense
        train_case tc;

        train_case_init(&tc, &samples, *state, kinds[i], formats[i], false);
        tc.spec.hidden = full ? 1024 : 512;
        tc.micro_batch = SAMPLES;
        // 256 KiB: limit of tp_reduce.c above which ranks share the rows
        assert_true(invar_trainer_tokens(samples.items, SAMPLES) * tc.spec.hidden * 4 > 1 << 18);
        check(&tc, "wide", full ? 2 : 4, full ? 8 : 4);
    }
    invar_rl_samples_reset(&samples);
}

/*
 * Puts all samples into one micro-batch of several token blocks, whose rows ranks divide. By
 * default each key head has one query head, which halves the attention over these rows.
 */
static void divide_rows(train_case *tc)
{
    if (!invar_test_full())
        tc->spec.attention.heads = tc->spec.attention.kv_heads;
    tc->sizes.sequence = true;
    tc->micro_batch = LONG_SAMPLES;
    tc->unit_rows = 500;
}

static void test_part_ranks__divide_rows(void **state)
{
    invar_rl_samples samples;
    bool full = invar_test_full();
    train_case tc;

    invar_test_samples(&samples, full ? LONG_SAMPLES : SAMPLES, LONG_LENGTH, 2000, 9);
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
            // experts with divided rows are in test_part_ranks__divide_context_and_experts
            if (!full && (kind != INVAR_TEST_MODEL_WINDOW || format != INVAR_FORMAT_MXFP8))
                continue;
            train_case_init(&tc, &samples, *state, (invar_test_model)kind, (invar_format)format,
                            false);
            divide_rows(&tc);
            tc.recompute = format / 2 % 2;
            check(&tc, invar_test_model_name((invar_test_model)kind), full ? 2 : 8, 8);
        }
    train_case_init(&tc, &samples, *state, INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, true);
    divide_rows(&tc);
    check(&tc, "eleven atoms", 2, full ? 8 : 2);
    invar_rl_samples_reset(&samples);
}

/* Context parallelism: ranks divide the rows of a unit and of a sample, and the heads. */
static void test_part_ranks__divide_context(void **state)
{
    static const invar_layout_sizes sizes[] = {
        {.tensor = 1, .expert_tensor = 1, .context = 2},
        {.tensor = 1, .expert_tensor = 1, .context = 4},
        {.tensor = 2, .expert_tensor = 1, .context = 2},
        {.tensor = 2, .expert_tensor = 1, .context = 4},
    };
    // by default; -1 for none; experts are in test_part_ranks__divide_context_and_experts
    static const int by_kind[INVAR_TEST_MODEL_COUNT] = {3, -1, -1, 1, -1};
    invar_rl_samples samples;
    bool full = invar_test_full();

    invar_test_samples(&samples, SAMPLES, LONG_LENGTH, 2000, 9);
    for (int kind = 0; kind < INVAR_TEST_MODEL_COUNT; kind++)
        for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
            invar_model *reference = NULL;
            invar_grads *grads = NULL;
            train_case tc;

            if (!full && ((kind + format) % 5 != 0 || by_kind[kind] < 0))
                continue;
            train_case_init(&tc, &samples, *state, (invar_test_model)kind, (invar_format)format,
                            false);
            divide_rows(&tc);
            tc.recompute = (kind + format) % 2;
            tc.sizes.sequence = kind % 2 == 0;
            tc.head_rows = format % 2 ? 70 : 0;
            compute_expected(&tc, &reference, &grads);
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                if (full || (int)i == by_kind[kind])
                    check_sizes(&tc, invar_test_model_name((invar_test_model)kind), sizes[i], i);
            invar_grads_free(grads);
            invar_model_free(reference);
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
    // by default; far_device has the first layout, and divide_experts the smaller expert shards
    static const unsigned by_format[INVAR_FORMAT_COUNT] = {[INVAR_FORMAT_FP8] = 1u << 2};
    invar_rl_samples samples;
    bool full = invar_test_full();

    invar_test_samples(&samples, SAMPLES, LONG_LENGTH, 2000, 11);
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        invar_model *reference = NULL;
        invar_grads *grads = NULL;
        train_case tc;

        if (!full && !by_format[format])
            continue;
        train_case_init(&tc, &samples, *state, INVAR_TEST_MODEL_EXPERTS, (invar_format)format,
                        false);
        tc.spec.experts.count =
            9; // an expert-parallel size of 3 gives each rank 3 of them, an odd number
        divide_rows(&tc);
        tc.recompute = format % 2 == 0;
        tc.sizes.sequence = format / 2 % 2;
        compute_expected(&tc, &reference, &grads);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            if (full || by_format[format] >> i & 1)
                check_sizes(&tc, "contexts, experts", sizes[i], i);
        invar_grads_free(grads);
        invar_model_free(reference);
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
    // by default; far_device has the first layout, divide_context_and_experts divides everything
    static const unsigned by_format[INVAR_FORMAT_COUNT] = {[INVAR_FORMAT_INT4] = 1u << 1 | 1u << 4};
    invar_rl_samples samples;
    bool full = invar_test_full();

    invar_test_samples(&samples, SAMPLES, MAX_LENGTH, 2000, 5);
    for (int format = 0; format < INVAR_FORMAT_COUNT; format++) {
        invar_model *reference = NULL;
        invar_grads *grads = NULL;
        train_case tc;

        if (!full && !by_format[format])
            continue;
        train_case_init(&tc, &samples, *state, INVAR_TEST_MODEL_EXPERTS, (invar_format)format,
                        false);
        tc.recompute = format % 2;
        compute_expected(&tc, &reference, &grads);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            if (full || by_format[format] >> i & 1)
                check_sizes(&tc, "experts", sizes[i], i);
        invar_grads_free(grads);
        invar_model_free(reference);
    }
    invar_rl_samples_reset(&samples);
}

/* Control: one sum per rank, as a reducing collective would compute it, has other bits. */
static void test_part_ranks__sums_by_rank_differ(void **state)
{
    invar_rl_samples samples;
    invar_model *reference = NULL;
    invar_grads *grads = NULL;
    rank_run runs[MAX_RANKS];
    train_case tc;

    invar_test_samples(&samples, SAMPLES, MAX_LENGTH, 2000, 8);
    train_case_init(&tc, &samples, *state, INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, false);
    compute_expected(&tc, &reference, &grads);
    tc.spec.logical_tp = 2;
    tc.sizes =
        (invar_layout_sizes){.tensor = 2, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1};
    run_ranks(runs, 2, 0, 0, run_rank, &tc);
    for (int r = 0; r < 2; r++)
        assert_int_equal(runs[r].status, INVAR_E_CORRUPT);
    invar_grads_free(grads);
    invar_model_free(reference);
    invar_rl_samples_reset(&samples);
}

/* Rank 1 has its model in memory that the host cannot access. */
static void test_part_ranks__far_device(void **state)
{
    static const invar_layout_sizes sizes[] = {
        {.tensor = 2, .expert_tensor = 2, .expert = 1},
        {.tensor = 1, .expert_tensor = 1, .expert = 2},
        {.tensor = 1, .expert_tensor = 1, .context = 2},
        {.tensor = 1, .expert_tensor = 1, .context = 2, .expert = 2}};
    invar_rl_samples samples;
    invar_model *reference = NULL;
    invar_grads *grads = NULL;
    train_case tc;

    invar_test_samples(&samples, SAMPLES, MAX_LENGTH, 2000, 6);
    train_case_init(&tc, &samples, *state, INVAR_TEST_MODEL_EXPERTS, INVAR_FORMAT_FP8, false);
    compute_expected(&tc, &reference, &grads);
    assert_ok(invar_fake_gpu_open(&tc.fake_gpu, &tc.dev));
    for (int i = 0; i < 4; i++)
        if (invar_test_full() || i != 2) // the last layout divides contexts, too
            check_sizes(&tc, "far", sizes[i], 0);
    tc.sizes.sequence = true; // every sample is one unit and one token block
    check_sizes(&tc, "far, divided rows", sizes[0], 0);
    assert_true(invar_fake_gpu_counted().ops > 0);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    invar_device_close(&tc.fake_gpu);
    invar_grads_free(grads);
    invar_model_free(reference);
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
