/*
 * kernel_avx512.c - micro-kernels on 512-bit vectors, for x86-64 machines that have them.
 *
 * The program is built for AVX2; this file alone is built for AVX-512 (InvarFlags.cmake), and its
 * kernels are used only if the CPU reports AVX-512 (invar_kernels_widest). They are compiled from
 * kernel_vectors.h like the other widths: the width never changes a result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/step/kernel.h"

#if defined(__x86_64__)

#include "kernels-deterministic/step/kernel_vectors.h"

#include "base/invar_banned.h"

const invar_kernels invar_kernels_avx512 = INVAR_KERNELS_OF_VECTORS;

#endif
