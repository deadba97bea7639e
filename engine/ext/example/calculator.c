/*
 * calculator.c - an example of a plug-in that leads samples: a tool that the model may call.
 *
 *     custom-generate-function-path = build/plugins/calculator.so
 *     rollout-stop = ["</calc>"]
 *
 * A turn with <calc>12*7</calc> is followed by <result>84</result>, and the model goes on. The
 * token that completes the stop string may have more letters. A turn without a call is the end of
 * the sample, which the recipe's rm-type judges: what the model said in all its turns. Expressions
 * have numbers, + - * / and parentheses.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/ext/invar_plugin.h"

#define BEGIN "<calc>"
#define END "</calc>"

enum { DEPTH = 32, RESULT = 64, SAMPLES = 65536 };

/* ---- expressions ----------------------------------------------------------------------------- */

/* Text that is read; `bad` once it makes no sense. */
typedef struct reader {
    const char *at, *end;
    int depth;
    int bad;
} reader;

static char reader_next(reader *r)
{
    while (r->at < r->end && *r->at == ' ')
        r->at++;
    return r->at < r->end ? *r->at : '\0';
}

static int reader_takes(reader *r, char c)
{
    if (reader_next(r) != c)
        return 0;
    r->at++;
    return 1;
}

static double reader_sum(reader *r);

/* Digits with at most one point: never what depends on the locale, nor an exponent. */
static double reader_number(reader *r)
{
    double value = 0.0, place = 1.0;
    int digits = 0, points = 0;

    for (reader_next(r); r->at < r->end; r->at++) {
        if (*r->at == '.') {
            points++;
        } else if (*r->at >= '0' && *r->at <= '9') {
            value = value * 10.0 + (*r->at - '0');
            place *= points ? 10.0 : 1.0;
            digits++;
        } else {
            break;
        }
    }
    r->bad = r->bad || digits == 0 || points > 1;
    return value / place;
}

static double reader_factor(reader *r)
{
    double value = 0.0;

    if (r->bad || ++r->depth > DEPTH) {
        r->bad = 1;
    } else if (reader_takes(r, '-')) {
        value = -reader_factor(r);
    } else if (reader_takes(r, '(')) {
        value = reader_sum(r);
        r->bad = r->bad || !reader_takes(r, ')');
    } else {
        value = reader_number(r);
    }
    r->depth--;
    return value;
}

static double reader_product(reader *r)
{
    double value = reader_factor(r);

    for (;;) {
        if (reader_takes(r, '*'))
            value *= reader_factor(r);
        else if (reader_takes(r, '/'))
            value /= reader_factor(r);
        else
            return value;
    }
}

static double reader_sum(reader *r)
{
    double value = reader_product(r);

    for (;;) {
        if (reader_takes(r, '+'))
            value += reader_product(r);
        else if (reader_takes(r, '-'))
            value -= reader_product(r);
        else
            return value;
    }
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* The last place of a word in a text; NULL: it is not there. */
static const char *last_of(const char *word, const char *text, size_t bytes)
{
    const size_t length = strlen(word);

    for (size_t at = bytes < length ? 0 : bytes - length + 1; at-- > 0;)
        if (memcmp(text + at, word, length) == 0)
            return text + at;
    return NULL;
}

/* The last call of a turn; 0: it has none. */
static int find_call(reader *out, const invar_plugin_turn *turn)
{
    const char *end = last_of(END, turn->text, turn->text_bytes);
    const char *begin = end ? last_of(BEGIN, turn->text, (size_t)(end - turn->text)) : NULL;

    if (!begin)
        return 0;
    *out = (reader){.at = begin + strlen(BEGIN), .end = end};
    return 1;
}

static void reader_compute(char out[RESULT], reader *r)
{
    double value = reader_sum(r);

    if (r->bad || reader_next(r) != '\0' || !isfinite(value))
        (void)snprintf(out, RESULT, "<result>error</result>");
    else
        (void)snprintf(out, RESULT, "<result>%.12g</result>", value);
}

static int plugin_turn_generate(void *self, const invar_plugin_turn *turns, size_t count,
                                invar_plugin_next *out, char *error)
{
    static char results[SAMPLES][RESULT]; /* that are inserted, until the next call */

    (void)self;
    if (count > SAMPLES) {
        (void)snprintf(error, INVAR_PLUGIN_ERROR_SIZE, "%zu samples at once; it takes %d", count,
                       SAMPLES);
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        reader call;

        out[i].end = turns[i].last || !find_call(&call, &turns[i]);
        if (out[i].end)
            continue;
        reader_compute(results[i], &call);
        out[i].text = results[i];
        out[i].text_bytes = strlen(results[i]);
    }
    return 0;
}

const invar_plugin_table invar_plugin_v1 = {INVAR_PLUGIN_HEAD("calculator"),
                                            .generate = plugin_turn_generate};
