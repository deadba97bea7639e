/*
 * module.h - the CUDA backend as a module of the program: invar-cuda.so (base/process/module.h).
 *
 * The module is compiled against the program's headers and calls functions of the program, so both
 * must be built from the same headers. INVAR_INTERFACE is a hash of those headers; a module with
 * another one is rejected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_DETERMINISTIC_CUDA_MODULE_H
#define INVAR_KERNELS_DETERMINISTIC_CUDA_MODULE_H

#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_CUDA_MODULE invar_cuda_v1 /* name of the symbol that the module exports */

typedef struct invar_cuda_module {
    const char *interface; /* INVAR_INTERFACE */
    const invar_backend *(*backend)(void);
} invar_cuda_module;

/* Returns the backend, for programs that are linked with it. */
const invar_backend *invar_cuda_backend(void);

/*
 * Loads the backend of a module; `file` is a file name or a path. Returns INVAR_E_UNSUPPORTED with
 * the reason if the module cannot be loaded or belongs to another build.
 */
invar_status invar_cuda_module_load(const invar_backend **out, const char *file) INVAR_MUST_USE;

/*
 * Returns the backend of the program's own module, which the first call loads; NULL if there is
 * none. Thread-safe.
 */
const invar_backend *invar_cuda_module_backend(void);

#ifdef __cplusplus
}
#endif
#endif
