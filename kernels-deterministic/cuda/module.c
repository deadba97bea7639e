/*
 * module.c - loads the CUDA backend from the module invar-cuda.so.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/module.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/process/module.h"

#include "base/invar_banned.h"

#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const invar_backend *backend;
static char load_error[INVAR_ERROR_MESSAGE_SIZE]; /* message of the failed load; empty if it did not
                                                     fail */

invar_status invar_cuda_module_load(const invar_backend **out, const char *file)
{
    const void *symbol;
    const invar_cuda_module *module;

    *out = NULL;
    INVAR_TRY(invar_module_load(&symbol, file, TEXT(INVAR_CUDA_MODULE), false));
    module = symbol;
    if (strcmp(module->interface, INVAR_INTERFACE) != 0)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "the module %.200s is that of another build of the program", file);
    *out = module->backend();
    return INVAR_OK;
}

static void load_own_module(void)
{
    if (invar_cuda_module_load(&backend, INVAR_MODULE_CUDA) == INVAR_OK)
        return;
    (void)snprintf(load_error, sizeof load_error, "%s", invar_error_last()->message);
    invar_error_clear();
}

const invar_backend *invar_cuda_module_backend(void)
{
    (void)pthread_once(&once, load_own_module);
    return backend;
}

invar_status invar_backend_cuda_absent(void)
{
    return INVAR_FAIL(INVAR_E_NODEVICE, 0, "no CUDA here: %s; or choose device = cpu",
                      load_error[0] ? load_error : "this program has no such backend");
}
