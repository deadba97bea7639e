/*
 * check.h - arguments of ops, checked once for all backends.
 *
 * invar_check_<op> accepts or refuses the arguments of one op; a refusal names the op and the
 * argument. What passes here cannot make a backend read or write out of bounds, nor read what it
 * has overwritten. Left to `run` are what lies in far memory (device.h), and one thing that needs
 * scratch: that slot_row names each row once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CHECK_CHECK_H
#define INVAR_KERNELS_CHECK_CHECK_H

#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    invar_status invar_check_##fn(const invar_device *dev, const invar_##fn##_args *args)          \
        INVAR_MUST_USE;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

/* Sets of types, for the `types` parameter below. */
#define INVAR_TYPE(dtype) (1u << INVAR_DTYPE_##dtype)
#define INVAR_TYPES_STORAGE (INVAR_TYPE(F32) | INVAR_TYPE(BF16))
#define INVAR_TYPES_QUANTIZED (INVAR_TYPE(FP8) | INVAR_TYPE(MXFP8) | INVAR_TYPE(INT4))

/* Any extent. */
#define INVAR_ANY (-1)

/*
 * Refuses a tensor whose type is not in `types`, whose rank differs, whose shape differs from
 * `shape` where that is not INVAR_ANY, whose data is NULL while it has elements, or whose stride
 * makes rows overlap. Quantized types also need scales and whole scale blocks. With rank INVAR_ANY
 * every rank and shape is accepted; `shape` is not looked at.
 */
invar_status invar_check_tensor(invar_op op, const char *arg, const invar_tensor *t, unsigned types,
                                int rank, const int64_t *shape) INVAR_MUST_USE;

/* The same, for an optional tensor. */
invar_status invar_check_optional(invar_op op, const char *arg, const invar_tensor *t,
                                  unsigned types, int rank, const int64_t *shape) INVAR_MUST_USE;

/* Two tensors of one type. */
invar_status invar_check_same_type(invar_op op, const char *arg_a, const invar_tensor *a,
                                   const char *arg_b, const invar_tensor *b) INVAR_MUST_USE;

/* A tensor with the type and the shape of `like`, which has been checked. */
invar_status invar_check_like(invar_op op, const char *arg, const invar_tensor *t,
                              const char *arg_like, const invar_tensor *like) INVAR_MUST_USE;

/* Segments that ascend and end at `rows` or before. Far ones are only counted. */
invar_status invar_check_segments_within(const invar_device *dev, invar_op op, const char *arg,
                                         const invar_row_offsets *s, int64_t rows) INVAR_MUST_USE;

/* Segments that start at 0, ascend, and end at `rows`. Far ones are only counted. */
invar_status invar_check_segments(const invar_device *dev, invar_op op, const char *arg,
                                  const invar_row_offsets *s, int64_t rows) INVAR_MUST_USE;

/* Every value of an i32 tensor in [0, bound); a far one is not looked at. */
invar_status invar_check_indices(const invar_device *dev, invar_op op, const char *arg,
                                 const invar_tensor *t, int64_t bound) INVAR_MUST_USE;

/* An i32 tensor of n elements that holds each value of [0, n) once. `seen`: n bytes of scratch. */
invar_status invar_check_permutation(const invar_device *dev, invar_op op, const char *arg,
                                     const invar_tensor *t, uint8_t *seen) INVAR_MUST_USE;

/*
 * An output shares no byte with another field, unless op_fields.def says that it may be that one:
 * for arguments that their own check has accepted. Columns of one buffer are apart although their
 * rows alternate; an absent or empty tensor is apart from everything.
 */
invar_status invar_check_memory(invar_op op, const void *args) INVAR_MUST_USE;

/* A finite float in [low, high]. */
invar_status invar_check_range(invar_op op, const char *arg, double value, double low,
                               double high) INVAR_MUST_USE;

/* A number of logical shards: a power of two; `most` is the bound. */
invar_status invar_check_shards(invar_op op, const char *arg, int64_t shards,
                                int64_t most) INVAR_MUST_USE;

/* head_shards and head_atom. */
invar_status invar_check_head_shards(invar_op op, int32_t shards, int64_t atom) INVAR_MUST_USE;

/* invar_check_tensor with the shape written out: INVAR_CHECK_2D(op, args, x, types, rows, cols). */
#define INVAR_CHECK_1D(op, args, field, types, n0)                                                 \
    INVAR_TRY(invar_check_tensor((op), #field, &(args)->field, (types), 1, (const int64_t[]){(n0)}))
#define INVAR_CHECK_2D(op, args, field, types, n0, n1)                                             \
    INVAR_TRY(invar_check_tensor((op), #field, &(args)->field, (types), 2,                         \
                                 (const int64_t[]){(n0), (n1)}))
#define INVAR_CHECK_3D(op, args, field, types, n0, n1, n2)                                         \
    INVAR_TRY(invar_check_tensor((op), #field, &(args)->field, (types), 3,                         \
                                 (const int64_t[]){(n0), (n1), (n2)}))
#define INVAR_CHECK_4D(op, args, field, types, n0, n1, n2, n3)                                     \
    INVAR_TRY(invar_check_tensor((op), #field, &(args)->field, (types), 4,                         \
                                 (const int64_t[]){(n0), (n1), (n2), (n3)}))

#ifdef __cplusplus
}
#endif
#endif
