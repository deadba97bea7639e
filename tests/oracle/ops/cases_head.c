/*
 * cases_head.c - log-probabilities, sampling and the optimizer against PyTorch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/oracle/ops/cases.h"

static invar_tensor vector(invar_oracle_run *r, int64_t n)
{
    return invar_oracle_output(r, invar_tensor_1d(NULL, INVAR_DTYPE_F32, n));
}

/* A logit of 40 with an error of 2^-24 of itself makes its probability wrong by 2^-18.7. */
#define DLOGITS ((invar_oracle_limit){{0x1p-17, 0x1p-19}, {0x1.04p-8, 0x1p-8}})

void invar_oracle_logprob(invar_oracle_run *r)
{
    invar_tensor logits = invar_oracle_input(r, "logits"), dlogp = invar_oracle_input(r, "dlogp");
    int64_t tokens = logits.shape[0];
    invar_logprob_fwd_args fwd = {.logp = vector(r, tokens),
                                  .entropy = vector(r, tokens),
                                  .max = vector(r, tokens),
                                  .logsum = vector(r, tokens),
                                  .logits = logits,
                                  .targets = invar_oracle_input(r, "targets"),
                                  .temperature = (float)invar_oracle_number(r, "temperature")};
    invar_logprob_bwd_args bwd = {.dlogits = invar_oracle_storage(r, tokens, logits.shape[1]),
                                  .dlogp = dlogp,
                                  .max = fwd.max,
                                  .logsum = fwd.logsum,
                                  .logits = logits,
                                  .targets = fwd.targets,
                                  .temperature = fwd.temperature};

    assert_ok(invar_logprob_fwd(&r->dev, &fwd));
    invar_oracle_expect(r, "logprob.fwd", "logp", &fwd.logp, INVAR_ORACLE_IN_F32);
    invar_oracle_expect(r, "logprob.fwd", "entropy", &fwd.entropy, INVAR_ORACLE_IN_F32);
    assert_ok(invar_logprob_bwd(&r->dev, &bwd));
    invar_oracle_expect(r, "logprob.bwd", "dlogits_of_logp", &bwd.dlogits, DLOGITS);
    bwd.dentropy = invar_oracle_input(r, "dentropy");
    bwd.entropy = fwd.entropy;
    assert_ok(invar_logprob_bwd(&r->dev, &bwd));
    invar_oracle_expect(r, "logprob.bwd", "dlogits", &bwd.dlogits, DLOGITS);
}

/* ---- sampling -------------------------------------------------------------------------------- */

#define DRAWS 20000

/*
 * Checks sampled frequencies: a token without probability is never drawn; any other count may
 * differ from its expectation by five standard deviations plus five.
 */
static void expect_frequencies(const invar_oracle_run *r, const char *name,
                               const invar_tensor *tokens, int64_t vocabulary)
{
    const float *expected = invar_oracle_data(r, name, INVAR_ORACLE_F32, vocabulary);
    int32_t drawn[1000] = {0};

    assert_true(vocabulary <= 1000);
    for (int64_t i = 0; i < DRAWS; i++)
        drawn[((const int32_t *)tokens->data)[i]]++;
    for (int64_t v = 0; v < vocabulary; v++) {
        double p = expected[v], deviation = sqrt(DRAWS * p * (1.0 - p));
        if (!(fabs(drawn[v] - DRAWS * p) <= (p > 0.0 ? 5.0 * deviation + 5.0 : 0.0)))
            fail_msg("%s: token %" PRId64 " was drawn %" PRId32 " times; expected %.1f +- %.1f",
                     name, v, drawn[v], DRAWS * p, deviation);
    }
}

void invar_oracle_sample(invar_oracle_run *r)
{
    static invar_sample_coords coords[DRAWS];
    invar_tensor row = invar_oracle_input(r, "logits");
    int64_t vocabulary = row.shape[1];
    invar_tensor logits =
        invar_oracle_output(r, invar_tensor_2d(NULL, INVAR_DTYPE_F32, DRAWS, vocabulary));
    invar_tensor tokens = invar_oracle_output(r, invar_tensor_1d(NULL, INVAR_DTYPE_I32, DRAWS));
    invar_sample_args args = {.tokens = tokens,
                              .logits = logits,
                              .coords = coords,
                              .seed = 1,
                              .purpose = 2,
                              .top_p = 1.0f};

    for (uint32_t i = 0; i < DRAWS; i++) {
        coords[i] = (invar_sample_coords){.position = i % 100, .sample = i / 100, .rollout = 3};
        memcpy((float *)logits.data + i * vocabulary, row.data, (size_t)vocabulary * sizeof(float));
    }
    assert_ok(invar_sample(&r->dev, &args));
    invar_oracle_expect_bits(r, "best", tokens.data, sizeof(int32_t)); // all rows are equal
    // the filters apply one after the other, in the order of the contract
    args.temperature = (float)invar_oracle_number(r, "temperature");
    assert_ok(invar_sample(&r->dev, &args));
    expect_frequencies(r, "after_temperature", &tokens, vocabulary);
    args.top_k = (int32_t)invar_oracle_number(r, "top_k");
    assert_ok(invar_sample(&r->dev, &args));
    expect_frequencies(r, "after_top_k", &tokens, vocabulary);
    args.top_p = (float)invar_oracle_number(r, "top_p");
    assert_ok(invar_sample(&r->dev, &args));
    expect_frequencies(r, "after_top_p", &tokens, vocabulary);
    args.min_p = (float)invar_oracle_number(r, "min_p");
    assert_ok(invar_sample(&r->dev, &args));
    expect_frequencies(r, "after_min_p", &tokens, vocabulary);
}

/* ---- optimizer ------------------------------------------------------------------------------- */

#define STEPS 3
#define PARAMETERS 2

/* Returns the tensor "stem.i" of the fixtures. */
static invar_tensor given_of(invar_oracle_run *r, const char *stem, int i)
{
    char name[48];

    snprintf(name, sizeof name, "%s.%d", stem, i);
    return invar_oracle_input(r, name);
}

static invar_adamw_args start(invar_oracle_run *r, int parameter)
{
    invar_tensor master = given_of(r, "master", parameter);
    invar_tensor weight = invar_tensor_1d(NULL, r->storage, master.shape[0]);

    return (invar_adamw_args){.weight = invar_oracle_output(r, weight),
                              .master = master,
                              .m = invar_oracle_sum(r, &master),
                              .v = invar_oracle_sum(r, &master),
                              .lr = (float)invar_oracle_number(r, "lr"),
                              .beta1 = (float)invar_oracle_number(r, "beta1"),
                              .beta2 = (float)invar_oracle_number(r, "beta2"),
                              .eps = (float)invar_oracle_number(r, "eps"),
                              .weight_decay = (float)invar_oracle_number(r, "weight_decay"),
                              .beta1_power = 1.0f,
                              .beta2_power = 1.0f};
}

static void step(invar_oracle_run *r, invar_adamw_args *adamw, int number, float *norm, float *clip)
{
    invar_tensor grads[PARAMETERS];
    char stem[32];

    snprintf(stem, sizeof stem, "grad.%d", number);
    for (int i = 0; i < PARAMETERS; i++)
        grads[i] = given_of(r, stem, i);
    assert_ok(invar_grad_norm(
        &r->dev, &(invar_grad_norm_args){.norm = norm,
                                         .clip = clip,
                                         .grads = grads,
                                         .count = PARAMETERS,
                                         .max_norm = (float)invar_oracle_number(r, "max_norm")}));
    for (int i = 0; i < PARAMETERS; i++) {
        adamw[i].grad = grads[i];
        adamw[i].clip = *clip;
        adamw[i].beta1_power *= adamw[i].beta1;
        adamw[i].beta2_power *= adamw[i].beta2;
        assert_ok(invar_adamw(&r->dev, &adamw[i]));
    }
}

static void expect_of(const invar_oracle_run *r, const char *what, const char *stem, int i,
                      const invar_tensor *got, invar_oracle_limit limit)
{
    char name[48];

    snprintf(name, sizeof name, "%s.%d", stem, i);
    invar_oracle_expect(r, what, name, got, limit);
}

void invar_oracle_optimizer(invar_oracle_run *r)
{
    invar_adamw_args adamw[PARAMETERS];
    invar_tensor norms = vector(r, STEPS), clips = vector(r, STEPS);

    for (int i = 0; i < PARAMETERS; i++)
        adamw[i] = start(r, i);
    for (int n = 0; n < STEPS; n++)
        step(r, adamw, n, (float *)norms.data + n, (float *)clips.data + n);
    invar_oracle_expect(r, "grad.norm", "norms", &norms, INVAR_ORACLE_IN_F32);
    invar_oracle_expect(r, "grad.norm", "clips", &clips, INVAR_ORACLE_IN_F32);
    for (int i = 0; i < PARAMETERS; i++) {
        expect_of(r, "adamw", "after", i, &adamw[i].master, INVAR_ORACLE_IN_F32);
        expect_of(r, "adamw, rounded", "after", i, &adamw[i].weight, INVAR_ORACLE_ROUNDED);
        expect_of(r, "adamw", "m", i, &adamw[i].m, INVAR_ORACLE_IN_F32);
        expect_of(r, "adamw", "v", i, &adamw[i].v, INVAR_ORACLE_IN_F32);
    }
}
