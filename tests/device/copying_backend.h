/*
 * copying_backend.h - the host's memory, and another backend's ops on copies of it.
 *
 * A test that keeps its tensors on the heap runs on any backend: every call copies what its
 * arguments lead to into that backend's memory, runs there, and brings back what changed. Copies
 * keep their addresses modulo 256, tensors that overlap still do, what lies beside them and the
 * scratch is NaN, and a write beside them is an error.
 *
 * INVAR_TEST_DEVICE says which: "cuda", "far" (tests/device/fake_gpu.h) or, where it is not set,
 * the CPU itself, without a ferry. With INVAR_TEST_TRACE the ferry writes the name of each op to
 * stderr.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_DEVICE_COPYING_BACKEND_H
#define INVAR_TESTS_DEVICE_COPYING_BACKEND_H

#include "kernels-deterministic/device.h"

/* The backend whose ops a test is to run, by INVAR_TEST_DEVICE; NULL where there is none. */
const invar_backend *invar_test_ops_backend(void);

/* The same for tensors on the heap: the CPU, or a ferry to the other. */
const invar_backend *invar_test_heap_backend(void);

#endif
