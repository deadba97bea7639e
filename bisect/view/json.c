/*
 * json.c - JSON values shared by the results of bisect, ab and ci.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/view/json.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "bisect/view/bisect_report_text.h"

#include "base/invar_banned.h"

json_t *invar_view_text(const char *text)
{
    char safe[INVAR_PATH_SIZE + 4];

    return json_string(invar_bisect_report_safe(safe, sizeof safe, text));
}

json_t *invar_view_text_or_null(const char *text)
{
    return *text ? invar_view_text(text) : json_null();
}

json_t *invar_view_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *invar_view_list(const void *items, size_t count, size_t size,
                        json_t *(*element)(const void *item))
{
    json_t *array = json_array();

    for (size_t i = 0; array && i < count; i++)
        if (json_array_append_new(array, element((const char *)items + i * size)) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

json_t *invar_view_divergence(const invar_divergence *p)
{
    if (!p->known)
        return json_null();
    return json_pack(
        "{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:I, s:I, s:o, s:o, s:o}",
        "step", (json_int_t)p->step, "point", invar_view_text(p->point), "phase",
        invar_view_text_or_null(p->phase), "layer",
        p->layer < 0 ? json_null() : json_integer(p->layer), "op", invar_view_text_or_null(p->op),
        "fused", invar_view_text_or_null(p->fused), "kind", invar_view_text_or_null(p->kind),
        "dtype", invar_view_text_or_null(p->dtype), "shape", invar_view_text_or_null(p->shape),
        "before", invar_view_text_or_null(p->before), "after", invar_view_text_or_null(p->after),
        "fine", p->op_level, "points_different", (json_int_t)p->points_different, "points_equal",
        (json_int_t)p->points_equal, "headline", invar_view_text(p->headline), "ledger_before",
        invar_view_text(p->ledger_before), "ledger_after", invar_view_text(p->ledger_after));
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
