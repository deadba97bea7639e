/*
 * logprob.c - checks the arguments of the log-probability ops.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <float.h>
#include <inttypes.h>

#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

/* Checks what forward and backward share: logits, per-token tensors and temperature. */
static invar_status check_common(const invar_device *dev, invar_op op, const invar_tensor *logits,
                                 const invar_tensor *targets, const invar_tensor *max,
                                 const invar_tensor *logsum, float temperature)
{
    const int64_t any[2] = {INVAR_ANY, INVAR_ANY}, *tokens = logits->shape;

    INVAR_TRY(invar_check_tensor(op, "logits", logits, INVAR_TYPE(F32), 2, any));
    INVAR_TRY(invar_check_range(op, "vocabulary", (double)logits->shape[1], 1, INT32_MAX));
    INVAR_TRY(invar_check_tensor(op, "targets", targets, INVAR_TYPE(I32), 1, tokens));
    INVAR_TRY(invar_check_indices(dev, op, "targets", targets, logits->shape[1]));
    INVAR_TRY(invar_check_tensor(op, "max", max, INVAR_TYPE(F32), 1, tokens));
    INVAR_TRY(invar_check_tensor(op, "logsum", logsum, INVAR_TYPE(F32), 1, tokens));
    return invar_check_range(op, "temperature", temperature, FLT_MIN, FLT_MAX);
}

invar_status invar_check_logprob_fwd(const invar_device *dev, invar_op op,
                                     const invar_logprob_fwd_args *a)
{
    INVAR_TRY(check_common(dev, op, &a->logits, &a->targets, &a->max, &a->logsum, a->temperature));
    INVAR_CHECK_1D(op, a, logp, INVAR_TYPE(F32), a->logits.shape[0]);
    return invar_check_optional(op, "entropy", &a->entropy, INVAR_TYPE(F32), 1, a->logits.shape);
}

invar_status invar_check_logprob_bwd(const invar_device *dev, invar_op op,
                                     const invar_logprob_bwd_args *a)
{
    INVAR_TRY(check_common(dev, op, &a->logits, &a->targets, &a->max, &a->logsum, a->temperature));
    INVAR_CHECK_2D(op, a, dlogits, INVAR_TYPES_STORAGE, a->logits.shape[0], a->logits.shape[1]);
    INVAR_CHECK_1D(op, a, dlogp, INVAR_TYPE(F32), a->logits.shape[0]);
    if (!invar_tensor_present(&a->dentropy))
        return INVAR_OK;
    INVAR_CHECK_1D(op, a, dentropy, INVAR_TYPE(F32), a->logits.shape[0]);
    INVAR_CHECK_1D(op, a, entropy, INVAR_TYPE(F32), a->logits.shape[0]);
    return INVAR_OK;
}

invar_status invar_check_logprob_sum(const invar_device *dev, invar_op op,
                                     const invar_logprob_sum_args *a)
{
    const int64_t any[2] = {INVAR_ANY, INVAR_ANY}, *tokens = a->logits.shape;
    int64_t least = invar_logprob_sum_columns(tokens[1], 1);

    INVAR_TRY(invar_check_tensor(op, "logits", &a->logits, INVAR_TYPE(F32), 2, any));
    INVAR_TRY(invar_check_range(op, "vocabulary", (double)tokens[1], 0, INT32_MAX - 1));
    INVAR_CHECK_2D(op, a, sums, INVAR_TYPE(F32), tokens[0], INVAR_ANY);
    if (a->sums.shape[1] < least || a->sums.shape[1] % 3 != 1)
        return INVAR_REJECT(
            op, "sums: %" PRId64 " columns; expected 3 a chunk and 1, at least %" PRId64,
            a->sums.shape[1], least);
    INVAR_CHECK_1D(op, a, targets, INVAR_TYPE(I32), tokens[0]);
    INVAR_TRY(invar_check_indices(dev, op, "targets", &a->targets, tokens[1] + 1));
    return invar_check_range(op, "temperature", a->temperature, FLT_MIN, FLT_MAX);
}

invar_status invar_check_logprob_join(const invar_device *dev, invar_op op,
                                      const invar_logprob_join_args *a)
{
    const int64_t any[1] = {INVAR_ANY}, *tokens = a->targets.shape;

    INVAR_TRY(invar_check_range(op, "vocabulary", (double)a->vocabulary, 1, INT32_MAX));
    INVAR_TRY(invar_check_range(op, "parts", a->parts, 1, INT32_MAX));
    INVAR_TRY(invar_check_tensor(op, "targets", &a->targets, INVAR_TYPE(I32), 1, any));
    INVAR_TRY(invar_check_indices(dev, op, "targets", &a->targets, a->vocabulary));
    INVAR_CHECK_2D(op, a, sums, INVAR_TYPE(F32), a->parts * tokens[0],
                   invar_logprob_sum_columns(a->vocabulary, a->parts));
    INVAR_CHECK_1D(op, a, logp, INVAR_TYPE(F32), tokens[0]);
    INVAR_CHECK_1D(op, a, max, INVAR_TYPE(F32), tokens[0]);
    INVAR_CHECK_1D(op, a, logsum, INVAR_TYPE(F32), tokens[0]);
    INVAR_TRY(invar_check_optional(op, "entropy", &a->entropy, INVAR_TYPE(F32), 1, tokens));
    return invar_check_range(op, "temperature", a->temperature, FLT_MIN, FLT_MAX);
}
