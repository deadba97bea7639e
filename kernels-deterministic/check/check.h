/*
 * check.h - argument checks of the ops, shared by all backends.
 *
 * invar_check_<op> accepts or rejects the arguments of one op; the error names the op and the
 * argument. Accepted arguments cannot make a backend access memory out of bounds or read data that
 * it has overwritten. Two checks are left to the backend while the op runs: values in memory that
 * the host cannot read (device.h), and that slot_row names each row once, which needs scratch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CHECK_CHECK_H
#define INVAR_KERNELS_CHECK_CHECK_H

#include "kernels-deterministic/ops.h"

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    invar_status invar_check_##fn(const invar_device *dev, invar_op op,                            \
                                  const invar_##fn##_args *args) INVAR_MUST_USE;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

/* Sets of types, for the parameter `types` below. */
#define INVAR_TYPE(dtype) (1u << INVAR_DTYPE_##dtype)
#define INVAR_TYPES_STORAGE (INVAR_TYPE(F32) | INVAR_TYPE(BF16))
#define INVAR_TYPES_QUANTIZED (INVAR_TYPE(FP8) | INVAR_TYPE(MXFP8) | INVAR_TYPE(INT4))

/* Sets the error of a rejected call, a format with at least one value, and returns its status. */
#define INVAR_REJECT(op, format, ...)                                                              \
    INVAR_FAIL(INVAR_E_INVALID, 0, "%s: " format, invar_op_name(op), __VA_ARGS__)

/* Accepts every rank, or every extent in a shape. */
#define INVAR_ANY (-1)

/*
 * Rejects a tensor that is absent, whose type is not in `types`, whose rank or shape differs
 * (INVAR_ANY accepts any extent; with rank INVAR_ANY `shape` is not read), that has elements but no
 * data, or whose stride makes rows overlap. Quantized types need scales, too, and int4 complete
 * scale blocks.
 */
invar_status invar_check_tensor(invar_op op, const char *arg, const invar_tensor *t, unsigned types,
                                int rank, const int64_t *shape) INVAR_MUST_USE;

/* Like invar_check_tensor, but accepts an absent tensor. */
invar_status invar_check_optional(invar_op op, const char *arg, const invar_tensor *t,
                                  unsigned types, int rank, const int64_t *shape) INVAR_MUST_USE;

/* Rejects tensors of different types. */
invar_status invar_check_same_type(invar_op op, const char *arg_a, const invar_tensor *a,
                                   const char *arg_b, const invar_tensor *b) INVAR_MUST_USE;

/* Rejects t unless it has the type and shape of `like`, which has been checked. */
invar_status invar_check_like(invar_op op, const char *arg, const invar_tensor *t,
                              const char *arg_like, const invar_tensor *like) INVAR_MUST_USE;

/*
 * Rejects offsets that do not ascend or exceed `rows`. If the offsets are unreadable, only their
 * number is checked.
 */
invar_status invar_check_segments_within(const invar_device *dev, invar_op op, const char *arg,
                                         const invar_row_offsets *s, int64_t rows) INVAR_MUST_USE;

/*
 * Rejects offsets that do not start at 0, ascend and end at `rows`. If the offsets are unreadable,
 * only their number is checked.
 */
invar_status invar_check_segments(const invar_device *dev, invar_op op, const char *arg,
                                  const invar_row_offsets *s, int64_t rows) INVAR_MUST_USE;

/* Rejects an i32 tensor with a value outside [0, bound). An unreadable tensor is accepted. */
invar_status invar_check_indices(const invar_device *dev, invar_op op, const char *arg,
                                 const invar_tensor *t, int64_t bound) INVAR_MUST_USE;

/*
 * Rejects an i32 tensor unless it holds each value of [0, n) once, where n is its number of
 * elements. `seen` is n bytes of scratch. The tensor must be readable.
 */
invar_status invar_check_permutation(const invar_device *dev, invar_op op, const char *arg,
                                     const invar_tensor *t, uint8_t *seen) INVAR_MUST_USE;

/*
 * Rejects an output that shares memory with another field, unless op_fields.def lists that field
 * and it is the same memory. The arguments must have passed their own check. Column slices of one
 * buffer do not overlap although their rows alternate; absent and empty tensors overlap nothing.
 */
invar_status invar_check_memory(invar_op op, const void *args) INVAR_MUST_USE;

/* Rejects a value that is NaN or not in [low, high]. */
invar_status invar_check_range(invar_op op, const char *arg, double value, double low,
                               double high) INVAR_MUST_USE;

/* Rejects a number of logical shards that is not a power of two up to `most`. */
invar_status invar_check_shards(invar_op op, const char *arg, int64_t shards,
                                int64_t most) INVAR_MUST_USE;

/* Checks head_shards and head_atom of an op. */
invar_status invar_check_head_shards(invar_op op, int32_t shards, int64_t atom) INVAR_MUST_USE;

/*
 * invar_check_tensor with the extents as parameters: INVAR_CHECK_2D(op, args, x, types, rows,
 * cols).
 */
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

#endif
