/*
 * fuzz.h - the interface between a fuzz target and its driver: libFuzzer, or driver.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FUZZ_FUZZ_H
#define INVAR_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Aborts if the code under test breaks a promise, else returns 0. libFuzzer requires this name. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
