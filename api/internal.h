/*
 * internal.h - shared by the files of libinvar: casts between the structs of the interface and our
 * own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_API_INTERNAL_H
#define INVAR_API_INTERNAL_H

#include "api/invar.h"
#include "ledger/ledger.h"

/*
 * Asserts that two structs whose last field is `last` have the same layout, so that an array of one
 * can be passed as an array of the other.
 */
#define INVAR_API_SAME(api, own, last)                                                             \
    _Static_assert(sizeof(api) == sizeof(own) && offsetof(api, last) == offsetof(own, last), #api)

/* Casts a ledger of the interface, which is an opaque name for invar_ledger. */
static inline invar_ledger *invar_api_own(invar_api_ledger *ledger)
{
    return (invar_ledger *)ledger;
}

#endif
