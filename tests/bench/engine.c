/*
 * engine.c - measures how fast the engine trains and generates. A program, not a test.
 *
 *     bench.engine train|generate DIR FORMAT NUMERICS THREADS REPEATS
 *
 * Reads the model of DIR, a Hugging Face folder. train: one optimizer step (forward, backward,
 * clipping, AdamW) on 16 samples of 128 tokens. generate: 64 tokens after each of 16 prompts of
 * 32. Prints the seconds of each repetition. tests/bench/engine.py compares them with PyTorch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/files/hf/hf.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/train/optimizer.h"
#include "engine/train/trainer.h"
#include "tests/bench/bench.h"

enum { SAMPLES = 16, TRAIN_TOKENS = 128, PROMPT = 32, RESPONSE = 64, SCRATCH = 256 << 20 };

typedef struct bench {
    invar_device dev;
    invar_model *model;
    invar_rl_sample samples[SAMPLES];
    int32_t tokens[SAMPLES][TRAIN_TOKENS];
} bench;

static void open_model(bench *b, const char *dir, invar_format format)
{
    invar_model_spec spec;

    DO(invar_model_spec_read(&spec, dir, ""));
    DO(invar_model_new(&b->model, &spec, format, NULL, &b->dev));
    DO(invar_hf_load(b->model, dir, &b->dev));
}

static void open_device(bench *b, invar_numerics numerics, int threads)
{
    b->dev.backend = invar_backend_cpu();
    b->dev.numerics = numerics;
    DO(invar_pool_new(&b->dev.pool, threads));
    DO(invar_arena_new(&b->dev.scratch, "bench"));
    DO(invar_arena_plan_scratch(b->dev.scratch, SCRATCH));
    DO(invar_arena_reserve(b->dev.scratch));
}

/* Makes samples of n_tokens tokens, the first `prompt` of which are the prompt. */
static void make_samples(bench *b, int64_t prompt, int64_t n_tokens)
{
    for (int64_t i = 0; i < SAMPLES; i++) {
        invar_rl_sample *s = &b->samples[i];

        for (int64_t j = 0; j < TRAIN_TOKENS; j++)
            b->tokens[i][j] = (int32_t)((i * 7919 + j * 104729) % b->model->spec.vocab);
        s->index = s->group = i;
        s->draw_index = (uint32_t)i;
        DO(INVAR_ALLOC(s->tokens, (size_t)n_tokens, "tokens"));
        memcpy(s->tokens, b->tokens[i], (size_t)n_tokens * sizeof *s->tokens);
        s->prompt_tokens = prompt;
        s->n_tokens = n_tokens;
    }
}

/* ---- training -------------------------------------------------------------------------------- */

/* The loss: minus the mean log-prob. */
static invar_status mean_loss(void *payload, int64_t first, int64_t count, const float *logp,
                              const float *entropy, float *dlogp, float *dentropy)
{
    const invar_rl_sample *samples = payload;

    (void)logp, (void)entropy, (void)dentropy;
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < invar_rl_sample_response(&samples[first + i]); j++)
            *dlogp++ = -1.0f / (SAMPLES * (TRAIN_TOKENS - 1));
    return INVAR_OK;
}

static void bench_train(bench *b, int repeats)
{
    invar_trainer_options options = {.plan = {1, 1, 0, 0}, .temperature = 1.0f};
    invar_adamw_options adamw = {0.9f, 0.98f, 1e-8f, 0.1f, 1.0f};
    invar_trainer_loss loss = {.run = mean_loss, .payload = b->samples};
    static float logp[SAMPLES * TRAIN_TOKENS];
    invar_trainer_result result = {.train_logp = logp};
    invar_trainer *trainer;
    invar_optimizer *optimizer;
    invar_grads *grads;
    float norm, clip;

    make_samples(b, 1, TRAIN_TOKENS);
    DO(invar_trainer_new(&trainer, &b->dev, &options));
    DO(invar_optimizer_new(&optimizer, b->model, 0));
    DO(invar_grads_new(&grads, b->model));
    for (int r = 0; r < repeats; r++) {
        double start = now_ms();

        DO(invar_grads_zero(grads));
        DO(invar_trainer_forward_backward(trainer, b->model, b->samples, SAMPLES, &loss, grads,
                                          &result));
        DO(invar_optimizer_norm(&norm, &clip, b->model, grads, false, adamw.clip_grad, &b->dev));
        DO(invar_optimizer_step(optimizer, b->model, grads, clip, 1e-4f, false, &adamw, &b->dev));
        printf("%.6f\n", 1e-3 * (now_ms() - start));
        fflush(stdout);
    }
    for (int i = 0; i < SAMPLES; i++)
        invar_rl_sample_release(&b->samples[i]);
    invar_grads_free(grads);
    invar_optimizer_free(optimizer);
    invar_trainer_free(trainer);
}

/* ---- generation ------------------------------------------------------------------------------ */

static void bench_generate(bench *b, int repeats)
{
    invar_sampling_params sampling = {
        .seed = 1, .temperature = 1.0f, .top_p = 1.0f, .max_response = RESPONSE};
    invar_rollout_exec_options limits = {.concurrency = SAMPLES};
    invar_rollout *rollout;

    DO(invar_rollout_new(&rollout, b->model, NULL, &b->dev, &limits));
    for (int r = 0; r < repeats; r++) {
        double start;

        make_samples(b, PROMPT, PROMPT);
        start = now_ms();
        DO(invar_rollout_run(rollout, b->samples, SAMPLES, &sampling, NULL, NULL));
        printf("%.6f\n", 1e-3 * (now_ms() - start));
        fflush(stdout);
        for (int i = 0; i < SAMPLES; i++) {
            if (invar_rl_sample_response(&b->samples[i]) != RESPONSE)
                exit(2);
            invar_rl_sample_release(&b->samples[i]);
        }
    }
    invar_rollout_free(rollout);
}

int main(int argc, char **argv)
{
    static bench b;
    int format, numerics;

    if (argc != 7) {
        fprintf(stderr, "bench.engine train|generate DIR FORMAT NUMERICS THREADS REPEATS\n");
        return 2;
    }
    format = invar_choices_find(&invar_format_choices, argv[3], strlen(argv[3]));
    numerics = invar_choices_find(&invar_numerics_choices, argv[4], strlen(argv[4]));
    if (format < 0 || numerics < 0) {
        fprintf(stderr, "bench.engine: unknown format or numerics\n");
        return 2;
    }
    open_device(&b, (invar_numerics)numerics, atoi(argv[5]));
    open_model(&b, argv[2], (invar_format)format);
    if (strcmp(argv[1], "train") == 0)
        bench_train(&b, atoi(argv[6]));
    else
        bench_generate(&b, atoi(argv[6]));
    invar_model_free(b.model);
    invar_arena_free(b.dev.scratch);
    invar_pool_free(b.dev.pool);
    return 0;
}
