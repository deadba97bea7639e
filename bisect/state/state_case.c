/*
 * state_case.c - writes and parses the first part of a bisect state file, which describes the case.
 *
 * The text is canonical: equal cases give equal bytes, because its hash is the id of the bisect. A
 * new field therefore changes the id of every case that sets it. Strings of a parsed case point
 * into state->text, and its lists into state->lists.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/number.h"
#include "base/recipe/choices.h"
#include "bisect/state/state_internal.h"

#include "base/invar_banned.h"

/* ---- fields ---------------------------------------------------------------------------------- */

static const char *const kind_words[] = {
    [INVAR_CRITERION_CHAIN] = "chain",
    [INVAR_CRITERION_METRIC] = "metric",
    [INVAR_CRITERION_POINTS] = "points",
    [INVAR_CRITERION_EXIT] = "exit",
};
static const invar_choices kinds = {kind_words, sizeof kind_words / sizeof *kind_words};

typedef enum field_type {
    FIELD_TEXT, /* const char *; NULL is not written */
    FIELD_LIST, /* const char *const *; one line for each item */
    FIELD_WORD, /* char[size] */
    FIELD_KIND, /* invar_criterion_kind */
    FIELD_BOOL,
    FIELD_INT, /* int64_t of at least -1 */
    FIELD_REAL
} field_type;

/* A field of the case: the first word of its line and its place in invar_bisect_case. */
typedef struct case_field {
    const char *key;
    field_type type;
    size_t offset, size;
    unsigned kinds; /* bit mask of the criteria for which it is written; 0 for all */
} case_field;

#define FIELD(key, type, member)                                                                   \
    {                                                                                              \
        key, type, offsetof(invar_bisect_case, member), sizeof((invar_bisect_case *)NULL)->member, \
            0                                                                                      \
    }
#define FIELD_OF(kind, key, type, member)                                                          \
    {                                                                                              \
        key, type, offsetof(invar_bisect_case, question.member),                                   \
            sizeof((invar_bisect_case *)NULL)->question.member, 1u << INVAR_CRITERION_##kind       \
    }

/* All fields in the order in which they are written. */
static const case_field fields[] = {FIELD("repo", FIELD_TEXT, repo),
                                    FIELD("good", FIELD_TEXT, good),
                                    FIELD("bad", FIELD_TEXT, bad),
                                    FIELD("first-parent", FIELD_BOOL, first_parent),
                                    FIELD("all-changes", FIELD_BOOL, all_changes),
                                    FIELD("path", FIELD_LIST, paths),
                                    FIELD("skip", FIELD_LIST, skip),
                                    FIELD("question", FIELD_KIND, question.kind),
                                    FIELD("last", FIELD_INT, question.until),
                                    FIELD_OF(METRIC, "metric", FIELD_WORD, metric),
                                    FIELD_OF(METRIC, "op", FIELD_WORD, op),
                                    FIELD_OF(METRIC, "bound", FIELD_REAL, bound),
                                    FIELD_OF(POINTS, "layer", FIELD_INT, layer),
                                    FIELD_OF(POINTS, "point-kind", FIELD_WORD, point_kind),
                                    FIELD_OF(POINTS, "point-op", FIELD_WORD, point_op),
                                    FIELD_OF(POINTS, "phase", FIELD_WORD, phase),
                                    FIELD_OF(POINTS, "point", FIELD_WORD, point),
                                    FIELD("recipe", FIELD_TEXT, recipe),
                                    FIELD("inputs", FIELD_TEXT, inputs),
                                    FIELD("flag", FIELD_LIST, flags),
                                    FIELD("golden", FIELD_TEXT, golden),
                                    FIELD("run", FIELD_TEXT, run),
                                    FIELD("build", FIELD_TEXT, build),
                                    FIELD("program", FIELD_TEXT, program),
                                    FIELD("timeout", FIELD_REAL, timeout)};

#define N_FIELDS (sizeof fields / sizeof *fields)

/* ---- writing --------------------------------------------------------------------------------- */

static invar_status put_line(invar_word_buffer *b, const char *key, const char *value)
{
    INVAR_TRY(invar_word_buffer_put(b, key));
    INVAR_TRY(invar_word_buffer_put(b, " "));
    INVAR_TRY(invar_word_buffer_put_word(b, value));
    return invar_word_buffer_put(b, "\n");
}

static invar_status put_field(invar_word_buffer *b, const case_field *f, const void *value)
{
    const char *const *list = value;
    char number[INVAR_NUMBER_SIZE];

    switch (f->type) {
    case FIELD_TEXT: return *list ? put_line(b, f->key, *list) : INVAR_OK;
    case FIELD_LIST:
        for (list = *(const char *const *const *)value; list && *list; list++)
            INVAR_TRY(put_line(b, f->key, *list));
        return INVAR_OK;
    case FIELD_WORD: return put_line(b, f->key, value);
    case FIELD_KIND: return put_line(b, f->key, kind_words[*(const invar_criterion_kind *)value]);
    case FIELD_BOOL: return put_line(b, f->key, *(const bool *)value ? "1" : "0");
    case FIELD_INT:
        (void)snprintf(number, sizeof number, "%" PRId64, *(const int64_t *)value);
        return put_line(b, f->key, number);
    case FIELD_REAL: INVAR_TRY(invar_number_format(number, *(const double *)value)); break;
    }
    return put_line(b, f->key, number);
}

static invar_status put_recipe(invar_word_buffer *b, const char *text)
{
    while (text && *text) {
        const char *newline = strchr(text, '\n');
        size_t bytes = newline ? (size_t)(newline - text) : strlen(text);
        INVAR_TRY(invar_word_buffer_put(b, "recipe-line "));
        INVAR_TRY(invar_word_buffer_put_bytes(b, text, bytes));
        INVAR_TRY(invar_word_buffer_put(b, "\n"));
        text += bytes + (newline != NULL);
    }
    return INVAR_OK;
}

invar_status invar_bisect_state_put_case(invar_word_buffer *b, const invar_bisect_case *w,
                                         const char *recipe)
{
    INVAR_TRY(invar_word_buffer_put(b, INVAR_BISECT_STATE_MAGIC));
    for (size_t i = 0; i < N_FIELDS; i++)
        if (!fields[i].kinds || (fields[i].kinds & 1u << w->question.kind))
            INVAR_TRY(put_field(b, &fields[i], (const char *)w + fields[i].offset));
    INVAR_TRY(put_recipe(b, recipe));
    return invar_word_buffer_put(b, "\n");
}

/* ---- reading --------------------------------------------------------------------------------- */

bool invar_bisect_state_is_oid(const char *text)
{
    return strlen(text) == INVAR_OID_SIZE - 1 &&
           strspn(text, "0123456789abcdef") == INVAR_OID_SIZE - 1;
}

bool invar_bisect_state_copy(char *out, size_t size, const char *text)
{
    (void)snprintf(out, size, "%s", text);
    return strlen(text) < size;
}

/*
 * Appends a value to a list. All lists share one allocation, and the entries of each list follow
 * each other in the file.
 */
static void append_to_list(invar_bisect_state *s, const char *const **list, size_t *used,
                           const char *value)
{
    *used += *list == NULL; // skips the NULL that terminates the previous list
    if (!*list)
        *list = s->lists + *used;
    s->lists[(*used)++] = value;
    s->lists[*used] = NULL;
}

static bool parse_field(invar_bisect_state *s, size_t *used, const case_field *f, char *value)
{
    void *to = (char *)&s->what + f->offset;
    char *end;
    int kind;

    switch (f->type) {
    case FIELD_TEXT: *(const char **)to = value; return true;
    case FIELD_LIST: append_to_list(s, to, used, value); return true;
    case FIELD_WORD: return invar_bisect_state_copy(to, f->size, value);
    case FIELD_KIND:
        kind = invar_choices_find(&kinds, value, strlen(value));
        *(invar_criterion_kind *)to = (invar_criterion_kind)(kind < 0 ? 0 : kind);
        return kind >= 0;
    case FIELD_BOOL:
        *(bool *)to = strcmp(value, "1") == 0;
        return *(bool *)to || strcmp(value, "0") == 0;
    case FIELD_INT: return invar_word_buffer_int(to, value, -1, INT64_MAX);
    case FIELD_REAL: break;
    }
    *(double *)to = strtod(value, &end);
    return end != value && !*end && s->what.timeout >= 0;
}

/* Parses the line of a field. Returns false for an unknown key or a malformed value. */
static bool parse_line(invar_bisect_state *s, size_t *used, const char *key, char *value)
{
    size_t i = 0;

    while (i < N_FIELDS && strcmp(key, fields[i].key) != 0)
        i++;
    return i < N_FIELDS && parse_field(s, used, &fields[i], value);
}

static bool case_is_complete(const invar_bisect_case *w)
{
    return w->repo && w->good && w->bad && invar_bisect_state_is_oid(w->good) &&
           invar_bisect_state_is_oid(w->bad) && (w->recipe != NULL) != (w->run != NULL);
}

size_t invar_bisect_state_count_lines(const char *text)
{
    size_t lines = 0;

    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

/* Parses the case. `s->text` is the first part, up to its empty line. */
invar_status invar_bisect_state_take_case(invar_bisect_state *s)
{
    invar_word_buffer recipe = {0};
    int64_t number = 1;
    size_t used = 0;

    // each list needs room for its terminating NULL
    INVAR_TRY(INVAR_ALLOC(s->lists, invar_bisect_state_count_lines(s->text) + 8,
                          "the lists of a bisect"));
    s->what.question = (invar_criterion){.until = -1, .layer = -1};
    for (char *line = s->text + strlen(INVAR_BISECT_STATE_MAGIC), *next; *line; line = next) {
        char *newline = strchr(line, '\n'), *blank;
        number++;
        next = newline + 1;
        *newline = '\0';
        blank = strchr(line, ' ');
        if (!blank)
            return invar_bisect_state_damaged(s, number);
        *blank = '\0';
        if (strcmp(line, "recipe-line") == 0) {
            invar_status status = invar_word_buffer_put(&recipe, blank + 1);
            if (status == INVAR_OK)
                status = invar_word_buffer_put(&recipe, "\n");
            s->recipe = recipe.data;
            INVAR_TRY(status);
        } else if (!invar_word_buffer_unescape(blank + 1) ||
                   !parse_line(s, &used, line, blank + 1)) {
            return invar_bisect_state_damaged(s, number);
        }
    }
    if (!case_is_complete(&s->what) || (s->what.recipe && !s->recipe))
        return invar_bisect_state_damaged(s, number);
    return INVAR_OK;
}
