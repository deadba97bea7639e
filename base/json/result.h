/*
 * result.h - JSON of results: one text per kind of object writes it and describes it.
 *
 * The text lists the members in order, each with a name, a type and an optional meaning:
 *
 *     #define FILE_RESULT "{path line, verdict same|changed, added int? (null: binary)}"
 *     json_t *object = INVAR_RESULT(FILE_RESULT, file->path, verdict_word, file->added);
 *     json_t *schema = invar_result_schema("{files [" FILE_RESULT "]}");
 *
 * Types: int, real, bool; text, or line for one printable line; hex32 and 0xhex16 for that many
 * hexadecimal digits; a|b for one of these words; int/text for either; {...} for an object, [T] for
 * a list of T. T? may be null, and name~ may be missing. A last member * T stands for members of
 * other names. Alternatives of a result or of a list are separated by semicolons.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_JSON_RESULT_H
#define INVAR_BASE_JSON_RESULT_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#include "base/hash.h"
#include "base/status.h"

/* Value of a member, and the end of a list of values. */
typedef struct invar_result_value {
    enum {
        INVAR_RESULT_END,
        INVAR_RESULT_INT,
        INVAR_RESULT_REAL,
        INVAR_RESULT_TEXT,
        INVAR_RESULT_DIGEST,
        INVAR_RESULT_JSON
    } kind;
    union {
        int64_t integer;
        double real;
        const char *text;
        const invar_digest *digest;
        json_t *json;
    };
} invar_result_value;

/*
 * Converts up to 32 values to an object of the described members. Integers that are negative, reals
 * that are not finite, texts that are NULL and lines that are NULL or empty become null where the
 * type allows null; a null member that may be missing is left out. A json_t * is a value of any
 * type, and its reference is taken. Returns NULL for lack of memory, for a NULL among the values
 * or for a number that is not JSON.
 */
#define INVAR_RESULT(members, ...) INVAR_RESULT_PADDED(members, __VA_ARGS__, INVAR_RESULT_PADDING)
json_t *invar_result_pack(const char *members, const invar_result_value *values);

/* Converts `count` items of `size` bytes to a list with `element`. NULL for lack of memory. */
json_t *invar_result_list(const void *items, size_t count, size_t size,
                          json_t *(*element)(const void *item));

/* Returns a text as JSON. Bytes that are not UTF-8 become \xNN, and then other controls, too. */
json_t *invar_result_text(const char *text, size_t bytes);

/* Returns a text as one printable line, which is cut after INVAR_PATH_SIZE bytes. */
json_t *invar_result_line(const char *text);

/* Returns the JSON Schema of a result, or NULL without memory. */
json_t *invar_result_schema(const char *result);

#define INVAR_JSON_FLAGS (JSON_ENSURE_ASCII | JSON_REAL_PRECISION(17))

/*
 * Writes a value and a newline, and releases the reference. Returns INVAR_E_NOMEM if `value` is
 * NULL.
 */
invar_status invar_json_write(FILE *out, json_t *value) INVAR_MUST_USE;

/* ---- expansion of INVAR_RESULT --------------------------------------------------------------- */

invar_result_value invar_result_of_int(int64_t value);
invar_result_value invar_result_of_size(size_t value);
invar_result_value invar_result_of_real(double value);
invar_result_value invar_result_of_text(const char *value);
invar_result_value invar_result_of_digest(const invar_digest *value);
invar_result_value invar_result_of_json(json_t *value);
invar_result_value invar_result_of_end(const invar_result_value *value);

#define INVAR_RESULT_VALUE(x)                                                                      \
    _Generic((x),                                                                                  \
        size_t: invar_result_of_size, \
        double: invar_result_of_real,                                                              \
        float: invar_result_of_real,                                                               \
        char *: invar_result_of_text,                                                              \
        const char *: invar_result_of_text,                                                        \
        invar_digest *: invar_result_of_digest,                                                    \
        const invar_digest *: invar_result_of_digest,                                              \
        json_t *: invar_result_of_json,                                                            \
        const invar_result_value *: invar_result_of_end,                                           \
        default: invar_result_of_int)(x)
#define INVAR_RESULT_NONE (&(const invar_result_value){.kind = INVAR_RESULT_END})
#define INVAR_RESULT_NONE4                                                                         \
    INVAR_RESULT_NONE, INVAR_RESULT_NONE, INVAR_RESULT_NONE, INVAR_RESULT_NONE
#define INVAR_RESULT_NONE16                                                                        \
    INVAR_RESULT_NONE4, INVAR_RESULT_NONE4, INVAR_RESULT_NONE4, INVAR_RESULT_NONE4
#define INVAR_RESULT_PADDING INVAR_RESULT_NONE16, INVAR_RESULT_NONE16, INVAR_RESULT_NONE
#define INVAR_RESULT_PADDED(...) INVAR_RESULT_SPLIT(__VA_ARGS__)
#define INVAR_RESULT_4(a, b, c, d)                                                                 \
    INVAR_RESULT_VALUE(a), INVAR_RESULT_VALUE(b), INVAR_RESULT_VALUE(c), INVAR_RESULT_VALUE(d)
#define INVAR_RESULT_SPLIT(members, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, \
                           v, w, x, y, z, aa, bb, cc, dd, ee, ff, ...)                             \
    invar_result_pack(members, (const invar_result_value[]){INVAR_RESULT_4(a, b, c, d),            \
                                                            INVAR_RESULT_4(e, f, g, h),            \
                                                            INVAR_RESULT_4(i, j, k, l),            \
                                                            INVAR_RESULT_4(m, n, o, p),            \
                                                            INVAR_RESULT_4(q, r, s, t),            \
                                                            INVAR_RESULT_4(u, v, w, x),            \
                                                            INVAR_RESULT_4(y, z, aa, bb),          \
                                                            INVAR_RESULT_4(cc, dd, ee, ff),        \
                                                            {0}})

#endif
