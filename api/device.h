/*
 * device.h - a device of libinvar, for those who call ops on it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_API_DEVICE_H
#define INVAR_API_DEVICE_H

#include <pthread.h>

#include "api/invar.h"
#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct invar_api_device {
    invar_device dev;
    pthread_mutex_t busy; /* calls run one at a time: they share the scratch */
    size_t scratch_bytes;
};

/* Scratch for a call; what is there and large enough stays. For who holds `busy`. */
invar_status invar_api_device_scratch(invar_api_device *device, size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
