/*
 * internal.h - what the files of libinvar share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_API_INTERNAL_H
#define INVAR_API_INTERNAL_H

#include "api/invar.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Two structs whose last field is `last` have one layout: arrays of one are arrays of the other. */
#define INVAR_API_SAME(api, own, last)                                                             \
    _Static_assert(sizeof(api) == sizeof(own) && offsetof(api, last) == offsetof(own, last), #api)

/* A ledger is itself, under the name that other programs know. */
static inline invar_ledger *invar_api_own(invar_api_ledger *ledger)
{
    return (invar_ledger *)ledger;
}

#ifdef __cplusplus
}
#endif
#endif
