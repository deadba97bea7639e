/*
 * head.c - self-check of the head: logits, sampling, log-probabilities, optimizer.
 *
 * The gradient of the table is that of a tied head: the sum of two gradients. The optimizer runs
 * three steps on it. Results that depend on embedding.bwd are named after its revision.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/selfcheck/layer.h"

#include "base/invar_banned.h"

static invar_status check_optimizer(invar_selfcheck *r, const invar_tensor *grad)
{
    int64_t n = grad->shape[0] * grad->shape[1];
    invar_tensor own = invar_tensor_2d(grad->data, INVAR_DTYPE_F32, 1, n), other, sum;
    invar_tensor master, m, v, weight;
    float norm_and_clip[2];
    invar_tensor numbers;
    void *data;

    // stands for the gradient of the head, which shares the table
    INVAR_TRY(invar_selfcheck_make_random(&other, r, INVAR_DTYPE_F32, 1, n, 0.01f));
    INVAR_TRY(invar_selfcheck_make(&sum, r, INVAR_DTYPE_F32, 1, n));
    INVAR_TRY(invar_add(r->dev, &(invar_add_args){.out = sum, .a = other, .b = own}));
    sum = invar_selfcheck_as_1d(&sum);
    INVAR_TRY(
        invar_selfcheck_emit_after(r, INVAR_OP_EMBEDDING_BWD, INVAR_OP_ADD, "gradient", &sum));
    INVAR_TRY(invar_grad_norm(r->dev, &(invar_grad_norm_args){.norm = &norm_and_clip[0],
                                                              .clip = &norm_and_clip[1],
                                                              .grads = &sum,
                                                              .count = 1,
                                                              .max_norm = 0.5f}));
    // grad.norm writes to host memory
    INVAR_TRY(invar_selfcheck_make_copy(&data, r, norm_and_clip, sizeof norm_and_clip));
    numbers = invar_tensor_1d(data, INVAR_DTYPE_F32, 2);
    INVAR_TRY(invar_selfcheck_emit_after(r, INVAR_OP_EMBEDDING_BWD, INVAR_OP_GRAD_NORM,
                                         "norm, clip", &numbers));
    INVAR_TRY(invar_selfcheck_make_random(&master, r, INVAR_DTYPE_F32, 1, n, 0.15f));
    INVAR_TRY(invar_selfcheck_make(&m, r, INVAR_DTYPE_F32, 1, n));
    INVAR_TRY(invar_selfcheck_make(&v, r, INVAR_DTYPE_F32, 1, n));
    INVAR_TRY(invar_selfcheck_make(&weight, r, r->storage, 1, n));
    for (int step = 1; step <= 3; step++) {
        static const float beta1_power[] = {0.9f, 0.81f, 0.729f};
        static const float beta2_power[] = {0.95f, 0.9025f, 0.857375f};
        INVAR_TRY(invar_adamw(r->dev, &(invar_adamw_args){.weight = invar_selfcheck_as_1d(&weight),
                                                          .master = invar_selfcheck_as_1d(&master),
                                                          .m = invar_selfcheck_as_1d(&m),
                                                          .v = invar_selfcheck_as_1d(&v),
                                                          .grad = sum,
                                                          .clip = norm_and_clip[1],
                                                          .lr = 1e-3f,
                                                          .beta1 = 0.9f,
                                                          .beta2 = 0.95f,
                                                          .eps = 1e-8f,
                                                          .weight_decay = 0.1f,
                                                          .beta1_power = beta1_power[step - 1],
                                                          .beta2_power = beta2_power[step - 1]}));
    }
    INVAR_TRY(
        invar_selfcheck_emit_after(r, INVAR_OP_EMBEDDING_BWD, INVAR_OP_ADAMW, "master", &master));
    return invar_selfcheck_emit_after(r, INVAR_OP_EMBEDDING_BWD, INVAR_OP_ADAMW, "weight", &weight);
}

static invar_status sample_tokens(invar_selfcheck *r, const invar_tensor *logits)
{
    invar_sample_coords near[TOKENS];
    invar_tensor tokens;
    void *coords;

    for (uint32_t t = 0; t < TOKENS; t++)
        near[t] = (invar_sample_coords){t, 7, 3};
    INVAR_TRY(invar_selfcheck_make_copy(&coords, r, near, sizeof near));
    INVAR_TRY(invar_selfcheck_make(&tokens, r, INVAR_DTYPE_I32, 1, TOKENS));
    INVAR_TRY(invar_sample(r->dev, &(invar_sample_args){.tokens = invar_selfcheck_as_1d(&tokens),
                                                        .logits = *logits,
                                                        .coords = coords,
                                                        .seed = 42,
                                                        .purpose = 1,
                                                        .temperature = 0.8f,
                                                        .top_k = 50,
                                                        .top_p = 0.95f,
                                                        .min_p = 0.01f}));
    return invar_selfcheck_emit_tensor(r, INVAR_OP_SAMPLE, "tokens", &tokens);
}

invar_status invar_selfcheck_head(invar_selfcheck *r, const invar_tensor *h,
                                  const invar_tensor *table, const invar_tensor *targets)
{
    invar_tensor logits, logp, entropy, max, logsum, dlogp, dentropy, dlogits, dx, dw;

    INVAR_TRY(invar_selfcheck_linear(r, &logits, h, table, NULL, 1, INVAR_DTYPE_F32));
    INVAR_TRY(invar_selfcheck_make(&logp, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(invar_selfcheck_make(&entropy, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(invar_selfcheck_make(&max, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(invar_selfcheck_make(&logsum, r, INVAR_DTYPE_F32, 1, TOKENS));
    INVAR_TRY(invar_logprob_fwd(
        r->dev, &(invar_logprob_fwd_args){.logp = invar_selfcheck_as_1d(&logp),
                                          .entropy = invar_selfcheck_as_1d(&entropy),
                                          .max = invar_selfcheck_as_1d(&max),
                                          .logsum = invar_selfcheck_as_1d(&logsum),
                                          .logits = logits,
                                          .targets = *targets,
                                          .temperature = 0.8f}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_LOGPROB_FWD, "logp", &logp));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_LOGPROB_FWD, "entropy", &entropy));
    INVAR_TRY(sample_tokens(r, &logits));

    INVAR_TRY(invar_selfcheck_make_random(&dlogp, r, INVAR_DTYPE_F32, 1, TOKENS, 1.0f));
    INVAR_TRY(invar_selfcheck_make_random(&dentropy, r, INVAR_DTYPE_F32, 1, TOKENS, 0.01f));
    INVAR_TRY(invar_selfcheck_make(&dlogits, r, r->storage, TOKENS, VOCABULARY));
    INVAR_TRY(invar_logprob_bwd(
        r->dev, &(invar_logprob_bwd_args){.dlogits = dlogits,
                                          .dlogp = invar_selfcheck_as_1d(&dlogp),
                                          .dentropy = invar_selfcheck_as_1d(&dentropy),
                                          .entropy = invar_selfcheck_as_1d(&entropy),
                                          .max = invar_selfcheck_as_1d(&max),
                                          .logsum = invar_selfcheck_as_1d(&logsum),
                                          .logits = logits,
                                          .targets = *targets,
                                          .temperature = 0.8f}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_LOGPROB_BWD, "dlogits", &dlogits));
    INVAR_TRY(invar_selfcheck_input_grad(r, &dx, &(invar_linear_part){dlogits, *table}, 1));
    INVAR_TRY(invar_selfcheck_weight_grad(r, &dw, &dlogits, h));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_LINEAR_DW, "dtable", &dw));
    INVAR_TRY(invar_selfcheck_make(&dw, r, INVAR_DTYPE_F32, VOCABULARY, WIDTH));
    INVAR_TRY(invar_embedding_bwd(
        r->dev, &(invar_embedding_bwd_args){
                    .dtable = dw, .dout = dx, .ids = *targets, .units = r->samples}));
    INVAR_TRY(invar_selfcheck_emit_tensor(r, INVAR_OP_EMBEDDING_BWD, "dtable", &dw));
    return check_optimizer(r, &dw);
}
