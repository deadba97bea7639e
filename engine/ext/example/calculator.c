/*
 * calculator.c - example of a plug-in for turns: a calculator tool that the model may call.
 *
 *     custom-generate-function-path = build/plugins/calculator.so
 *     rollout-stop = ["</calc>"]
 *
 * A turn with <calc>12*7</calc> is followed by <result>84</result>, and the model continues. The
 * token that completes the stop string may have more letters. A turn without a call ends the
 * sample, and the recipe's rm-type rewards what the model generated in all turns. Expressions have
 * numbers, + - * / and parentheses.
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

/* Parser state; `bad` is set after a syntax error. */
typedef struct parser {
    const char *at, *end;
    int depth;
    int bad;
} parser;

static char peek_char(parser *r)
{
    while (r->at < r->end && *r->at == ' ')
        r->at++;
    return r->at < r->end ? *r->at : '\0';
}

static int accept_char(parser *r, char c)
{
    if (peek_char(r) != c)
        return 0;
    r->at++;
    return 1;
}

static double parse_sum(parser *r);

/* Parses digits with at most one point: no exponent, and nothing that depends on the locale. */
static double parse_number(parser *r)
{
    double value = 0.0, place = 1.0;
    int digits = 0, points = 0;

    for (peek_char(r); r->at < r->end; r->at++) {
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

static double parse_factor(parser *r)
{
    double value = 0.0;

    if (r->bad || ++r->depth > DEPTH) {
        r->bad = 1;
    } else if (accept_char(r, '-')) {
        value = -parse_factor(r);
    } else if (accept_char(r, '(')) {
        value = parse_sum(r);
        r->bad = r->bad || !accept_char(r, ')');
    } else {
        value = parse_number(r);
    }
    r->depth--;
    return value;
}

static double parse_product(parser *r)
{
    double value = parse_factor(r);

    for (;;) {
        if (accept_char(r, '*'))
            value *= parse_factor(r);
        else if (accept_char(r, '/'))
            value /= parse_factor(r);
        else
            return value;
    }
}

static double parse_sum(parser *r)
{
    double value = parse_product(r);

    for (;;) {
        if (accept_char(r, '+'))
            value += parse_product(r);
        else if (accept_char(r, '-'))
            value -= parse_product(r);
        else
            return value;
    }
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* Last position of a word in a text; NULL if it does not occur. */
static const char *last_of(const char *word, const char *text, size_t bytes)
{
    const size_t length = strlen(word);

    for (size_t at = bytes < length ? 0 : bytes - length + 1; at-- > 0;)
        if (memcmp(text + at, word, length) == 0)
            return text + at;
    return NULL;
}

/* Finds the last call of a turn; returns 0 if the turn has no call. */
static int find_call(parser *out, const invar_plugin_turn *turn)
{
    const char *end = last_of(END, turn->text, turn->text_bytes);
    const char *begin = end ? last_of(BEGIN, turn->text, (size_t)(end - turn->text)) : NULL;

    if (!begin)
        return 0;
    *out = (parser){.at = begin + strlen(BEGIN), .end = end};
    return 1;
}

static void format_result(char out[RESULT], parser *r)
{
    double value = parse_sum(r);

    if (r->bad || peek_char(r) != '\0' || !isfinite(value))
        (void)snprintf(out, RESULT, "<result>error</result>");
    else
        (void)snprintf(out, RESULT, "<result>%.12g</result>", value);
}

static int generate_actions(void *self, const invar_plugin_turn *turns, size_t count,
                            invar_plugin_next *out, char *error)
{
    static char results[SAMPLES][RESULT]; /* inserted texts, valid until the next call */

    (void)self;
    if (count > SAMPLES) {
        (void)snprintf(error, INVAR_PLUGIN_ERROR_SIZE, "%zu samples at once; it takes %d", count,
                       SAMPLES);
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        parser call;

        out[i].end = turns[i].last || !find_call(&call, &turns[i]);
        if (out[i].end)
            continue;
        format_result(results[i], &call);
        out[i].text = results[i];
        out[i].text_bytes = strlen(results[i]);
    }
    return 0;
}

const invar_plugin_table invar_plugin_v1 = {INVAR_PLUGIN_HEAD("calculator"),
                                            .generate = generate_actions};
