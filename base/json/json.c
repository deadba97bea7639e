/*
 * json.c - strict JSON parser on top of jansson, typed getters, and values as text.
 *
 * A value of one byte in the text ("[[],[],[]...") takes some hundred bytes in the tree, so the
 * values are counted before anything is built.
 *
 * If its buffer for a string or a number cannot grow, jansson's parser continues without the
 * characters that did not fit and returns a wrong value, or worse. So the first allocation that
 * fails ends the parser with longjmp. The parser's blocks are listed while it runs, so that they
 * can be freed then.
 *
 * jansson rejects an integer that does not fit into 64 bits, or reads all integers as reals. If it
 * rejects one, the text is parsed the second way, and the integers that fit are put back: tree and
 * text have the same numbers in the same order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/json/json.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define WHERE_SIZE (INVAR_PATH_SHOWN_SIZE + 24)

/* Quotes `where` for a message, because the name of a file may be hostile, too. */
static const char *quote_where(char out[WHERE_SIZE], const char *where)
{
    invar_text_quote(out, WHERE_SIZE, where, strlen(where));
    return out;
}

/* ---- memory ---------------------------------------------------------------------------------- */

#define RECENT 8 // newest blocks among which a freed block is searched

static json_malloc_t plain_alloc;
static json_free_t plain_free;

typedef struct blocks {
    void **of; /* (count) */
    size_t count, room;
} blocks;

/* State of the parser of this thread. */
static _Thread_local struct {
    jmp_buf *caller; /* NULL while no parser runs */
    blocks made;     /* blocks that are not freed yet, in any order */
    blocks dropped;  /* blocks that jansson has freed; released after the parse */
} parser;

static bool add_block(blocks *list, void *block)
{
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 64;
        void **larger = plain_alloc(room * sizeof *larger);

        if (!larger)
            return false;
        if (list->count > 0)
            memcpy(larger, list->of, list->count * sizeof *larger);
        plain_free(list->of);
        list->of = larger;
        list->room = room;
    }
    list->of[list->count++] = block;
    return true;
}

static void *watched_alloc(size_t bytes)
{
    void *block = plain_alloc(bytes);

    if (!parser.caller || (block && add_block(&parser.made, block)))
        return block;
    plain_free(block);
    longjmp(*parser.caller, 1);
}

/*
 * Frees a block if it is one of the newest, like most blocks that a parser frees. Others are freed
 * after the parse, because searching all blocks could take very long.
 */
static void watched_free(void *block)
{
    blocks *made = &parser.made;
    size_t first = made->count > RECENT ? made->count - RECENT : 0;

    if (!parser.caller || !block) {
        plain_free(block);
        return;
    }
    for (size_t i = made->count; i > first; i--)
        if (made->of[i - 1] == block) {
            made->of[i - 1] = made->of[--made->count];
            plain_free(block);
            return;
        }
    if (!add_block(&parser.dropped, block))
        longjmp(*parser.caller, 1);
}

static void install_watched_alloc(void)
{
    json_get_alloc_funcs(&plain_alloc, &plain_free);
    json_set_alloc_funcs(watched_alloc, watched_free);
}

/* Ends the parser of this thread. All of its blocks are freed unless it has finished. */
static void end_parser(bool finished)
{
    const blocks *list = finished ? &parser.dropped : &parser.made;

    for (size_t i = 0; i < list->count; i++)
        plain_free(list->of[i]);
    plain_free(parser.made.of);
    plain_free(parser.dropped.of);
    memset(&parser, 0, sizeof parser);
}

/* Calls json_loadb; returns false for lack of memory. */
static bool load_watched(json_t **out, const char *text, size_t bytes, size_t flags,
                         json_error_t *error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    jmp_buf caller;

    pthread_once(&once, install_watched_alloc);
    *out = NULL;
    if (setjmp(caller) != 0) {
        end_parser(false);
        return false;
    }
    parser.caller = &caller;
    *out = json_loadb(text, bytes, flags, error);
    end_parser(true);
    return true;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Iterates over the numbers of a valid JSON text. */
typedef struct numbers {
    const char *at, *end;
    const char *text; /* (bytes) the current number, not terminated */
    size_t bytes;
} numbers;

static bool in_number(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* Returns the closing quote of a string. */
static const char *end_of_string(const char *quote, const char *end)
{
    const char *at = quote + 1;

    while (at < end && *at != '"')
        at += *at == '\\' ? 2 : 1;
    return at;
}

static void next_number(numbers *n)
{
    while (n->at < n->end && *n->at != '-' && (*n->at < '0' || *n->at > '9'))
        n->at = (*n->at == '"' ? end_of_string(n->at, n->end) : n->at) + 1;
    INVAR_CHECK(n->at < n->end); // the tree has as many numbers as the text
    for (n->text = n->at; n->at < n->end && in_number(*n->at);)
        n->at++;
    n->bytes = (size_t)(n->at - n->text);
}

static bool has_fraction(const numbers *n)
{
    for (size_t i = 0; i < n->bytes; i++) {
        if (n->text[i] == '.' || n->text[i] == 'e' || n->text[i] == 'E')
            return true;
    }
    return false;
}

/*
 * Advances to the next number. *out = a new integer, or NULL if the number is not an integer that
 * fits. Returns false for lack of memory.
 */
static bool next_integer(json_t **out, numbers *n)
{
    char digits[24]; // INT64_MIN has 20 characters
    long long value;

    *out = NULL;
    next_number(n);
    if (has_fraction(n) || n->bytes >= sizeof digits)
        return true;
    memcpy(digits, n->text, n->bytes);
    digits[n->bytes] = '\0';
    errno = 0;
    value = strtoll(digits, NULL, 10);
    if (errno != 0)
        return true;
    *out = json_integer(value);
    return *out != NULL;
}

static bool put_back(json_t *value, numbers *n);

/*
 * *out = a new integer that replaces `child`, or NULL if `child` stays. Also handles the numbers
 * below `child`. Returns false for lack of memory.
 */
static bool replace_big_integer(json_t **out, json_t *child, numbers *n)
{
    *out = NULL;
    return json_is_real(child) ? next_integer(out, n) : put_back(child, n);
}

/* Replaces the reals below `value` that were parsed from integers that fit. */
static bool put_back(json_t *value, numbers *n)
{
    json_t *integer;

    for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at)) {
        if (!replace_big_integer(&integer, json_object_iter_value(at), n) ||
            (integer && json_object_iter_set_new(value, at, integer) != 0))
            return false;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (!replace_big_integer(&integer, json_array_get(value, i), n) ||
            (integer && json_array_set_new(value, i, integer) != 0))
            return false;
    }
    return true;
}

/*
 * Advances to the number that `wanted`, at or below `value`, was parsed from; false if not found.
 */
static bool seek_number(json_t *value, const json_t *wanted, numbers *n)
{
    bool found = value == wanted;

    if (json_is_number(value))
        next_number(n);
    for (void *at = json_object_iter(value); at && !found; at = json_object_iter_next(value, at))
        found = seek_number(json_object_iter_value(at), wanted, n);
    for (size_t i = 0; i < json_array_size(value) && !found; i++)
        found = seek_number(json_array_get(value, i), wanted, n);
    return found;
}

bool invar_json_digits(const char **out, size_t *bytes_out, json_t *tree, const json_t *value,
                       const char *text, size_t bytes)
{
    numbers n = {.at = text, .end = text + bytes};

    INVAR_CHECK(json_is_number(value) && seek_number(tree, value, &n));
    *out = n.text;
    *bytes_out = n.bytes;
    return !has_fraction(&n);
}

/* ---- trees ----------------------------------------------------------------------------------- */

/* Computes upper bounds of the values and the depth that a parser would build from any bytes. */
static void bound_values(size_t *values_out, size_t *depth_out, const char *text, size_t bytes)
{
    size_t values = 1, open = 0, deepest = 0;
    bool quoted = false;

    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        else if (quoted)
            continue;
        else if (c == '[' || c == '{')
            deepest = ++open > deepest ? open : deepest;
        else if (c == ']' || c == '}')
            open -= open > 0;
        values += !quoted && (c == '[' || c == '{' || c == ',');
    }
    *values_out = values;
    *depth_out = deepest;
}

size_t invar_json_count(const char *text, size_t bytes)
{
    size_t values, depth;

    bound_values(&values, &depth, text, bytes);
    return values;
}

/* Like load_watched, but an integer that does not fit becomes a real. */
static bool load_numbers(json_t **out, const char *text, size_t bytes, size_t flags,
                         json_error_t *error)
{
    numbers n = {.at = text, .end = text + bytes};

    if (!load_watched(out, text, bytes, flags, error))
        return false;
    if (*out || json_error_code(error) != json_error_numeric_overflow)
        return true;
    if (!load_watched(out, text, bytes, flags | JSON_DECODE_INT_AS_REAL, error))
        return false;
    if (!*out || put_back(*out, &n))
        return true;
    json_decref(*out);
    *out = NULL;
    return false;
}

static bool is_blank(const char *text, size_t bytes)
{
    while (bytes > 0 && strchr(" \t\r\n", text[bytes - 1]) && text[bytes - 1] != '\0')
        bytes--;
    return bytes == 0;
}

static invar_status parse_text(json_t **out, const char *where, const char *text, size_t bytes,
                               size_t more_flags)
{
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | more_flags;
    char place[WHERE_SIZE], quote[INVAR_TEXT_QUOTE_SIZE * 2];
    size_t values, depth;
    json_error_t error;

    *out = NULL;
    quote_where(place, where);
    if (is_blank(text, bytes))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: it is empty; expected JSON", place);
    bound_values(&values, &depth, text, bytes);
    if (values > INVAR_JSON_MAX_VALUES)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: more than %d values", place,
                          INVAR_JSON_MAX_VALUES);
    if (depth > INVAR_JSON_MAX_DEPTH)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: nested deeper than %d", place,
                          INVAR_JSON_MAX_DEPTH);
    if (!load_numbers(out, text, bytes, flags, &error))
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for %s", place);
    if (*out)
        return INVAR_OK;
    if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: it begins with a byte order mark; save it as UTF-8 without one",
                          place);
    if (invar_text_is_pointer(text, bytes))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: " INVAR_TEXT_POINTER, place);
    if (json_error_code(&error) == json_error_null_character)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: a text in it has the character NUL, \\u0000",
                          place);
    invar_text_quote(quote, sizeof quote, error.text, strlen(error.text));
    if (!memchr(text, '\n', bytes)) // the text is one line of a file, whose number is in `where`
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: column %d is not JSON: %s", place, error.column,
                          quote);
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: line %d, column %d is not JSON: %s", place,
                      error.line, error.column, quote);
}

invar_status invar_json_parse(json_t **out, const char *where, const char *text, size_t bytes)
{
    return parse_text(out, where, text, bytes, 0);
}

invar_status invar_json_parse_raw(json_t **out, const char *where, const char *text, size_t bytes)
{
    return parse_text(out, where, text, bytes, JSON_ALLOW_NUL);
}

invar_status invar_json_read(json_t **out, const char *path, size_t max_bytes)
{
    INVAR_AUTO_FREE char *text = NULL;
    size_t bytes;

    *out = NULL;
    INVAR_TRY(invar_file_read(&text, &bytes, path, max_bytes));
    return invar_json_parse(out, INVAR_SHOWN_PATH(path), text, bytes);
}

/* ---- members --------------------------------------------------------------------------------- */

static invar_status find_member(const json_t **out, const json_t *object, const char *key,
                                const char *where)
{
    char place[WHERE_SIZE];

    if (!json_is_object(object))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: not a JSON object, so without \"%s\"",
                          quote_where(place, where), key);
    *out = json_object_get(object, key);
    if (!*out)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"%s\" is missing", quote_where(place, where),
                          key);
    return INVAR_OK;
}

static invar_status wrong_type(const char *key, const char *where, const char *expected)
{
    char place[WHERE_SIZE];

    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"%s\" is not %s", quote_where(place, where), key,
                      expected);
}

invar_status invar_json_int(int64_t *out, const json_t *object, const char *key, const char *where,
                            int64_t low, int64_t high)
{
    char place[WHERE_SIZE];
    const json_t *value;

    INVAR_TRY(find_member(&value, object, key, where));
    if (json_is_real(value) && fabs(json_real_value(value)) >= 0x1p63)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"%s\" is %g, not in %lld to %lld",
                          quote_where(place, where), key, json_real_value(value), (long long)low,
                          (long long)high);
    if (!json_is_integer(value))
        return wrong_type(key, where, "an integer");
    *out = json_integer_value(value);
    if (*out < low || *out > high)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"%s\" is %lld, not in %lld to %lld",
                          quote_where(place, where), key, (long long)*out, (long long)low,
                          (long long)high);
    return INVAR_OK;
}

invar_status invar_json_real(double *out, const json_t *object, const char *key, const char *where)
{
    const json_t *value;

    INVAR_TRY(find_member(&value, object, key, where));
    *out = json_number_value(value);
    if (!json_is_number(value) || !isfinite(*out))
        return wrong_type(key, where, "a finite number");
    return INVAR_OK;
}

invar_status invar_json_bool(bool *out, const json_t *object, const char *key, const char *where)
{
    const json_t *value;

    INVAR_TRY(find_member(&value, object, key, where));
    if (!json_is_boolean(value))
        return wrong_type(key, where, "true or false");
    *out = json_is_true(value);
    return INVAR_OK;
}

invar_status invar_json_string(const char **out, const json_t *object, const char *key,
                               const char *where)
{
    const json_t *value;

    INVAR_TRY(find_member(&value, object, key, where));
    if (!json_is_string(value))
        return wrong_type(key, where, "a string");
    *out = json_string_value(value);
    return INVAR_OK;
}

invar_status invar_json_as_corrupt(invar_status status)
{
    invar_error error;

    if (status != INVAR_E_INVALID)
        return status;
    invar_error_take(&error);
    return INVAR_FAIL(INVAR_E_CORRUPT, error.native, "%s", error.message);
}

void invar_json_release(json_t **value)
{
    json_decref(*value);
}

bool invar_json_has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return value && !json_is_null(value);
}

/* ---- text ------------------------------------------------------------------------------------ */

invar_status invar_json_dump(char **out, size_t *bytes_out, const json_t *value, size_t flags,
                             const char *what)
{
    size_t bytes = value ? json_dumpb(value, NULL, 0, flags) : 0;

    *out = NULL;
    if (bytes > 0)
        INVAR_TRY(INVAR_ALLOC(*out, bytes + 1, what));
    // jansson also needs memory for writing, each time
    if (bytes == 0 || json_dumpb(value, *out, bytes, flags) != bytes) {
        invar_free(*out);
        *out = NULL;
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for %s", what);
    }
    (*out)[bytes] = '\0';
    *bytes_out = bytes;
    return INVAR_OK;
}
