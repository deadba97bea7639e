/*
 * op_call_log.h - what the engine asks a device to do, as text.
 *
 * A backend that runs the CPU's ops and notes every call: its op, its numbers, and of each tensor
 * the type, the extents, the row stride and where its content comes from. That is the name that
 * the test has given to the memory ("w:model.norm.weight"), the call that wrote it ("12.y"), or
 * "given". Addresses are not in it: two plans of memory have one log, two orders of calls, or a
 * call that reads something else, have two.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_OP_CALL_LOG_H
#define INVAR_TESTS_OP_CALL_LOG_H

#include "kernels-deterministic/device.h"
#include "kernels-deterministic/tensor.h"

/* One at a time. */
const invar_backend *invar_op_call_log_backend(void);

/* Begins an empty log; names and writes of the last one are forgotten. */
void invar_op_call_log_begin(void);

/* What is read from the tensor's memory is called so, until a call writes there. */
void invar_op_call_log_name(const invar_tensor *tensor, const char *kind, const char *name);

/* The log so far, one call a line; the caller frees it. */
char *invar_op_call_log_text(void);
int invar_op_call_log_count(void);

/* Most bytes that were taken at a time since the beginning, but for scratch of ops. */
size_t invar_op_call_log_bytes(void);

#endif
