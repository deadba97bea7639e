/*
 * json.c - JSON that is shared by the results of bisect, ab and ci.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/view/json.h"

#include <errno.h>
#include <string.h>

#include "base/json/result.h"

#include "base/invar_banned.h"

json_t *invar_view_divergence(const invar_divergence *p)
{
    if (!p->known)
        return json_null();
    return INVAR_RESULT(INVAR_VIEW_DIVERGENCE, p->step, p->point, p->phase, p->layer, p->op,
                        p->fused, p->kind, p->dtype, p->shape, p->before, p->after, p->op_level,
                        p->points_different, p->points_equal, p->headline, p->ledger_before,
                        p->ledger_after);
}

invar_status invar_view_write(FILE *out, json_t *object)
{
    bool written;

    if (!object)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the answer as JSON");
    errno = 0;
    written = json_dumpf(object, out, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) == 0 &&
              fputc('\n', out) != EOF && fflush(out) == 0;
    json_decref(object);
    if (!written)
        return INVAR_FAIL(INVAR_E_IO, errno, "cannot write the answer: %s",
                          errno ? strerror(errno) : "no memory");
    return INVAR_OK;
}
