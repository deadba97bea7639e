/*
 * faulty_op.h - the CPU backend with one wrong op: it flips a bit in every row of a result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_DEVICE_FAULTY_OP_H
#define INVAR_TESTS_DEVICE_FAULTY_OP_H

#include <stdint.h>

#include "kernels-deterministic/device.h"

/*
 * Returns the backend with a wrong op, valid until the next call. If `field` is not NULL, only
 * calls that have this optional field (op_fields.def) are wrong: if it is a fused field, the plain
 * calls stay right.
 */
const invar_backend *invar_faulty_op_backend(invar_op op, const char *field);

/* Makes the first `right` further calls of the op right. */
void invar_faulty_op_skip(int64_t right);

/* Returns the number of wrong calls since then. */
int64_t invar_faulty_op_calls(void);

#endif
