/*
 * op_call_log.h - a backend that logs the ops which the engine calls, as text.
 *
 * The backend runs the CPU's ops and logs every call: its op, its numbers, and for each tensor the
 * type, the extents, the row stride and the source of its content. The source is the name that the
 * test gave to the memory ("w:model.norm.weight"), the call that wrote it ("12.y"), or "given".
 * Addresses are not logged: two memory plans give one log; another order of calls, or a call that
 * reads something else, gives another.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_OP_CALL_LOG_H
#define INVAR_TESTS_OP_CALL_LOG_H

#include "kernels-deterministic/device.h"
#include "kernels-deterministic/tensor.h"

/* Returns the backend. There is one log, so use one device at a time. */
const invar_backend *invar_op_call_log_backend(void);

/* Begins an empty log; discards names and writes of the previous one. */
void invar_op_call_log_begin(void);

/* Names the content of the tensor's memory until a call writes to it. */
void invar_op_call_log_name(const invar_tensor *tensor, const char *kind, const char *name);

/* Returns the log so far, one line per call; the caller frees it. */
char *invar_op_call_log_text(void);
int invar_op_call_log_count(void);

/* Returns the maximum of bytes allocated at a time since the beginning, without scratch of ops. */
size_t invar_op_call_log_bytes(void);

#endif
