/*
 * faulty_op.h - the backend of the CPU with one op that is wrong: it flips a bit in every row.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_DEVICE_FAULTY_OP_H
#define INVAR_TESTS_DEVICE_FAULTY_OP_H

#include <stdint.h>

#include "kernels-deterministic/device.h"

/*
 * Until the next call. `field`: calls that have this optional field (fields.def) are wrong, no
 * others: with one that fuses, the plain calls of the op stay right. NULL: all calls.
 */
const invar_backend *invar_wrong_backend(invar_op op, const char *field);

/* Of the backend's coming calls, the first `right` are right. */
void invar_wrong_after(int64_t right);

/* How many calls were wrong since then. */
int64_t invar_wrong_calls(void);

#endif
