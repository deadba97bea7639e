/*
 * flop.c - tests of the FLOP of training against a count product by product.
 *
 * With the argument "print" it writes sizes and counts as JSON lines, which tests/oracle/flop.py
 * compares with the FLOP counter of PyTorch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/flop.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/model.h"

enum { SAMPLES = 5, LONGEST = 23, RANK = 16 };

/* Returns the FLOP of `times` products (rows, in) x (in, out): 3 to train, 2 if frozen. */
static double product_flop(int64_t rows, int64_t in, int64_t out, int times)
{
    double flop = 0.0;

    for (int64_t r = 0; r < rows; r++)
        flop += 2.0 * (double)in * (double)out * times;
    return flop;
}

/* Returns the FLOP of a linear layer, with its LoRA adapter if there is one. */
static double linear_flop(const invar_model_spec *s, int64_t rows, int64_t in, int64_t out)
{
    int64_t rank = s->lora.rank;

    if (rank == 0)
        return product_flop(rows, in, out, 3);
    return product_flop(rows, in, out, 2) + product_flop(rows, in, rank, 3) +
           product_flop(rows, rank, out, 3);
}

/* Returns the FLOP of attention, summed over all visible pairs of query and key. */
static double attention_flop(const invar_model_spec *s, int64_t layer, int64_t rows)
{
    double flop = 0.0;

    for (int64_t q = 0; q < rows; q++)
        for (int64_t k = 0; k <= q; k++)
            if (s->attention.window == 0 || layer < s->attention.window_from ||
                q - k < s->attention.window)
                flop += 3.0 * 4.0 * (double)(s->attention.heads * s->attention.head_dim);
    return flop;
}

static double mlp_flop(const invar_model_spec *s, int64_t layer, int64_t rows)
{
    int64_t d = s->hidden, n = s->experts.sparse[layer] ? s->experts.intermediate : s->intermediate;
    int64_t slots = s->experts.sparse[layer] ? s->experts.per_token : 1;
    double flop = 0.0;

    for (int64_t i = 0; i < slots; i++)
        flop += 2.0 * linear_flop(s, rows, d, n) + linear_flop(s, rows, n, d);
    if (s->experts.sparse[layer])
        flop += product_flop(rows, d, s->experts.count, s->lora.rank ? 2 : 3);
    return flop;
}

static double sequence_flop(const invar_model_spec *s, int64_t rows)
{
    double flop = 0.0;

    for (int64_t layer = 0; layer < s->layers; layer++) {
        flop += linear_flop(s, rows, s->hidden, s->attention.heads * s->attention.head_dim);
        flop +=
            2.0 * linear_flop(s, rows, s->hidden, s->attention.kv_heads * s->attention.head_dim);
        flop += linear_flop(s, rows, s->attention.heads * s->attention.head_dim, s->hidden);
        flop += attention_flop(s, layer, rows) + mlp_flop(s, layer, rows);
    }
    return flop;
}

static double count_flop(const invar_model_spec *s, const invar_rl_samples *samples)
{
    double flop = 0.0;

    for (int64_t i = 0; i < samples->count; i++) {
        const invar_rl_sample *sample = &samples->items[i];

        flop += sequence_flop(s, sample->n_tokens - 1);
        flop += product_flop(sample->n_tokens - sample->prompt_tokens, s->hidden,
                             s->value_head ? 1 : s->vocab, s->lora.rank ? 2 : 3);
    }
    return flop;
}

static invar_model *make_model(int kind, bool adapted, const invar_device *dev)
{
    return adapted ? invar_test_model_adapted((invar_test_model)kind, INVAR_FORMAT_FP32, 1, RANK,
                                              true, dev)
                   : invar_test_model_new((invar_test_model)kind, INVAR_FORMAT_FP32, 1, dev);
}

static void test_flop__is_the_sum_of_all_products(void **state)
{
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int kind = 0; kind < 2 * INVAR_TEST_MODEL_COUNT; kind++) {
        invar_model *model = make_model(kind / 2, kind % 2, &dev);
        invar_rl_samples samples = {0};
        double flop;

        invar_test_samples(&samples, SAMPLES, LONGEST, model->spec.vocab, (uint64_t)kind);
        flop = invar_flop_train(model, samples.items, samples.count);
        assert_true(flop == count_flop(&model->spec, &samples));
        assert_true(flop > 0.0);
        // control: one token less has fewer FLOP
        samples.items[0].n_tokens--;
        assert_true(invar_flop_train(model, samples.items, samples.count) < flop);
        samples.items[0].n_tokens++;
        invar_rl_samples_reset(&samples);
        invar_model_free(model);
    }
    invar_test_device_release(&dev);
}

/* Two branches are two sequences for attention and one sequence for everything else. */
static void test_flop__branches_do_not_see_each_other(void **state)
{
    invar_device dev;
    invar_model *model;
    const invar_model_spec *s;
    int64_t cut = 12;
    invar_rl_sample undivided = {.prompt_tokens = 4, .n_tokens = 31}, branched = undivided;
    double saved = 0.0;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    model = make_model(INVAR_TEST_MODEL_DENSE, false, &dev);
    s = &model->spec;
    branched.branch_starts = &cut;
    branched.n_branch_starts = 1;
    for (int64_t layer = 0; layer < s->layers; layer++)
        saved += attention_flop(s, layer, 30) - attention_flop(s, layer, 12) -
                 attention_flop(s, layer, 18);
    assert_true(saved > 0.0);
    assert_true(invar_flop_train(model, &undivided, 1) - invar_flop_train(model, &branched, 1) ==
                saved);
    invar_model_free(model);
    invar_test_device_release(&dev);
}

static void print_case(int kind, bool adapted, const invar_device *dev)
{
    invar_model *model = make_model(kind, adapted, dev);
    const invar_model_spec *s = &model->spec;
    invar_rl_samples samples = {0};

    invar_test_samples(&samples, SAMPLES, LONGEST, s->vocab, (uint64_t)kind + 77);
    printf("{\"name\": \"%s\", \"vocab\": %" PRId64 ", \"hidden\": %" PRId64 ", \"heads\": %" PRId64
           ", \"kv_heads\": %" PRId64 ", \"head_dim\": %" PRId64 ", \"intermediate\": %" PRId64
           ", \"experts\": %" PRId64 ", \"slots\": %" PRId64 ", \"expert_intermediate\": %" PRId64
           ", \"window\": %" PRId64 ", \"window_from\": %" PRId64 ", \"rank\": %" PRId64
           ", \"sparse\": [",
           invar_test_model_name((invar_test_model)kind), s->vocab, s->hidden, s->attention.heads,
           s->attention.kv_heads, s->attention.head_dim, s->intermediate, s->experts.count,
           s->experts.per_token, s->experts.intermediate, s->attention.window,
           s->attention.window_from, s->lora.rank);
    for (int64_t i = 0; i < s->layers; i++)
        printf("%s%d", i ? ", " : "", s->experts.sparse[i]);
    printf("], \"samples\": [");
    for (int64_t i = 0; i < samples.count; i++)
        printf("%s[%" PRId64 ", %" PRId64 "]", i ? ", " : "", samples.items[i].prompt_tokens,
               samples.items[i].n_tokens);
    printf("], \"flop\": %.0f}\n", invar_flop_train(model, samples.items, samples.count));
    invar_rl_samples_reset(&samples);
    invar_model_free(model);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flop__is_the_sum_of_all_products),
        cmocka_unit_test(test_flop__branches_do_not_see_each_other),
    };
    invar_device dev;

    if (argc < 2 || strcmp(argv[1], "print") != 0)
        return cmocka_run_group_tests(tests, NULL, NULL);
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int kind = 0; kind < 2 * INVAR_TEST_MODEL_COUNT; kind++)
        print_case(kind / 2, kind % 2, &dev);
    invar_test_device_release(&dev);
    return 0;
}
