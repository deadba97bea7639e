/*
 * status.c - the error record of each thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/invar_banned.h"

static _Thread_local invar_error last_error;

const invar_error *invar_error_last(void)
{
    return &last_error;
}

void invar_error_clear(void)
{
    memset(&last_error, 0, sizeof last_error);
}

void invar_error_take(invar_error *out)
{
    *out = last_error;
    invar_error_clear();
}

void invar_error_put(const invar_error *error)
{
    last_error = *error;
}

invar_status invar_error_advise(invar_status status, invar_status only, const char *advice)
{
    size_t length = strlen(last_error.message);

    if (status == only && last_error.status == only)
        snprintf(last_error.message + length, sizeof last_error.message - length, "; %s", advice);
    return status;
}

invar_status invar_error_of_key(invar_status status, const char *key)
{
    const invar_error first = last_error;

    return status == INVAR_OK ? status
                              : INVAR_FAIL(status, first.native, "%s: %s", key, first.message);
}

const char *invar_status_name(invar_status status)
{
    switch (status) {
    case INVAR_OK: return "OK";
    case INVAR_E_INVALID: return "INVALID";
    case INVAR_E_NOMEM: return "NOMEM";
    case INVAR_E_IO: return "IO";
    case INVAR_E_CORRUPT: return "CORRUPT";
    case INVAR_E_STATE: return "STATE";
    case INVAR_E_UNSUPPORTED: return "UNSUPPORTED";
    case INVAR_E_NOTFOUND: return "NOTFOUND";
    case INVAR_E_BUSY: return "BUSY";
    case INVAR_E_MISMATCH: return "MISMATCH";
    case INVAR_E_CUDA: return "CUDA";
    case INVAR_E_NCCL: return "NCCL";
    case INVAR_E_SQL: return "SQL";
    case INVAR_E_GIT: return "GIT";
    case INVAR_E_MPI: return "MPI";
    case INVAR_E_NODEVICE: return "NODEVICE";
    }
    return "UNKNOWN";
}

void invar_error_set(invar_status status, int native, const char *file, int line, const char *fmt,
                     ...)
{
    invar_error error = {.status = status, .native = native, .file = file, .line = line};
    va_list ap;

    // formatted into a second buffer, because an argument may be the message that is replaced
    va_start(ap, fmt);
    vsnprintf(error.message, sizeof error.message, fmt, ap);
    va_end(ap);
    last_error = error;
}

void invar_check_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "invar: internal error: %s does not hold (%s:%d); please report this\n", what,
            file, line);
    abort();
}
