/*
 * library.c - version, error messages and memory of libinvar.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "api/invar.h"
#include "base/alloc.h"
#include "base/status.h"

#include "base/invar_banned.h"

int32_t invar_api_abi(void)
{
    return INVAR_API_ABI;
}

const char *invar_api_version(void)
{
    return INVAR_VERSION;
}

const char *invar_api_error(void)
{
    return invar_error_last()->message;
}

const char *invar_api_status_name(int32_t status)
{
    return invar_status_name((invar_status)status);
}

void invar_api_free(void *text)
{
    invar_free(text);
}
