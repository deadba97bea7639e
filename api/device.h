/*
 * device.h - the device of libinvar on which ops run. Private to api/.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_API_DEVICE_H
#define INVAR_API_DEVICE_H

#include <pthread.h>

#include "api/invar.h"
#include "kernels-deterministic/device.h"

struct invar_api_device {
    invar_device dev;
    pthread_mutex_t busy; /* held during a call, because calls share stream and scratch */
    size_t scratch_bytes; /* capacity of the scratch */
};

/* Makes sure that the scratch has at least `bytes` bytes. Caller holds `device->busy`. */
invar_status invar_api_device_scratch(invar_api_device *device, size_t bytes) INVAR_MUST_USE;

#endif
