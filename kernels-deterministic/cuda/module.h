/*
 * module.h - the CUDA backend as a module of the program (base/process/module.h): invar-cuda.so.
 *
 * It is compiled against the program's headers and calls functions of the program, so the two must
 * be built from the same ones. INVAR_INTERFACE, by which they recognise each other, is a hash of
 * those headers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_DETERMINISTIC_CUDA_MODULE_H
#define INVAR_KERNELS_DETERMINISTIC_CUDA_MODULE_H

#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_CUDA_MODULE invar_cuda_v1 /* what it exports */

typedef struct invar_cuda_module {
    const char *interface; /* INVAR_INTERFACE */
    const invar_backend *(*backend)(void);
} invar_cuda_module;

/* The backend, for what is linked with it. */
const invar_backend *invar_cuda_backend(void);

/* The backend of a module: the name of its file, or a path. INVAR_E_UNSUPPORTED says why not. */
invar_status invar_cuda_module_load(const invar_backend **out, const char *file) INVAR_MUST_USE;

/* The backend of the program's own module, loaded by the first call; NULL: there is none. */
const invar_backend *invar_cuda_module_backend(void);

#ifdef __cplusplus
}
#endif
#endif
