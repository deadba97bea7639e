/*
 * copying_backend.h - runs the ops of another backend on copies of tensors in host memory.
 *
 * With it, a test that keeps its tensors on the heap runs on any backend: every call copies the
 * memory of its arguments to that backend, runs there, and copies changes back. Copies keep their
 * addresses modulo 256, and overlapping tensors still overlap. The memory around them and the
 * scratch are NaN, and a write outside of the tensors is an error.
 *
 * INVAR_TEST_DEVICE selects the backend: "cuda", or "fake_gpu" (tests/device/fake_gpu.h); if it is
 * not set, the CPU backend is used directly. With INVAR_TEST_TRACE the name of each op is written
 * to stderr.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_DEVICE_COPYING_BACKEND_H
#define INVAR_TESTS_DEVICE_COPYING_BACKEND_H

#include "kernels-deterministic/device.h"

/* Returns the backend that runs the ops, by INVAR_TEST_DEVICE; NULL if it is not available. */
const invar_backend *invar_test_ops_backend(void);

/*
 * Returns the backend for tensors on the heap: the CPU's, or the copying backend for another one.
 */
const invar_backend *invar_test_heap_backend(void);

#endif
