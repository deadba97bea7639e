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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/number.h"
#include "base/recipe/choices.h"
#include "bisect/state/state_internal.h"

#include "base/invar_banned.h"

/* ---- writing --------------------------------------------------------------------------------- */

static const char *const kind_words[] = {
    [INVAR_CRITERION_CHAIN] = "chain",
    [INVAR_CRITERION_METRIC] = "metric",
    [INVAR_CRITERION_POINTS] = "points",
    [INVAR_CRITERION_EXIT] = "exit",
};
static const invar_choices kinds = {kind_words, sizeof kind_words / sizeof *kind_words};

static invar_status put_field(invar_word_buffer *b, const char *key, const char *value)
{
    if (!value)
        return INVAR_OK;
    INVAR_TRY(invar_word_buffer_put(b, key));
    INVAR_TRY(invar_word_buffer_put(b, " "));
    INVAR_TRY(invar_word_buffer_put_word(b, value));
    return invar_word_buffer_put(b, "\n");
}

static invar_status put_int(invar_word_buffer *b, const char *key, int64_t value)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%" PRId64, value);
    return put_field(b, key, text);
}

static invar_status put_real(invar_word_buffer *b, const char *key, double value)
{
    char text[INVAR_NUMBER_SIZE];

    INVAR_TRY(invar_number_format(text, value));
    return put_field(b, key, text);
}

static invar_status put_list(invar_word_buffer *b, const char *key, const char *const *list)
{
    for (; list && *list; list++)
        INVAR_TRY(put_field(b, key, *list));
    return INVAR_OK;
}

static invar_status put_question(invar_word_buffer *b, const invar_criterion *q)
{
    INVAR_TRY(put_field(b, "question", kind_words[q->kind]));
    INVAR_TRY(put_int(b, "last", q->until));
    if (q->kind == INVAR_CRITERION_METRIC) {
        INVAR_TRY(put_field(b, "metric", q->metric));
        INVAR_TRY(put_field(b, "op", q->op));
        return put_real(b, "bound", q->bound);
    }
    if (q->kind != INVAR_CRITERION_POINTS)
        return INVAR_OK;
    INVAR_TRY(put_int(b, "layer", q->layer));
    INVAR_TRY(put_field(b, "point-kind", q->point_kind));
    INVAR_TRY(put_field(b, "point-op", q->point_op));
    INVAR_TRY(put_field(b, "phase", q->phase));
    return put_field(b, "point", q->point);
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
    INVAR_TRY(put_field(b, "repo", w->repo));
    INVAR_TRY(put_field(b, "good", w->good));
    INVAR_TRY(put_field(b, "bad", w->bad));
    INVAR_TRY(put_int(b, "first-parent", w->first_parent));
    INVAR_TRY(put_int(b, "all-changes", w->all_changes));
    INVAR_TRY(put_list(b, "path", w->paths));
    INVAR_TRY(put_list(b, "skip", w->skip));
    INVAR_TRY(put_question(b, &w->question));
    INVAR_TRY(put_field(b, "recipe", w->recipe));
    INVAR_TRY(put_field(b, "inputs", w->inputs));
    INVAR_TRY(put_list(b, "flag", w->flags));
    INVAR_TRY(put_field(b, "golden", w->golden));
    INVAR_TRY(put_field(b, "run", w->run));
    INVAR_TRY(put_field(b, "build", w->build));
    INVAR_TRY(put_field(b, "program", w->program));
    INVAR_TRY(put_real(b, "timeout", w->timeout));
    INVAR_TRY(put_recipe(b, recipe));
    return invar_word_buffer_put(b, "\n");
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool parse_bool(bool *out, const char *text)
{
    *out = strcmp(text, "1") == 0;
    return *out || strcmp(text, "0") == 0;
}

static bool parse_real(double *out, const char *text)
{
    char *end;

    *out = strtod(text, &end);
    return end != text && !*end;
}

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

static bool parse_criterion(invar_criterion *q, const char *key, const char *value)
{
    if (strcmp(key, "question") == 0) {
        const int kind = invar_choices_find(&kinds, value, strlen(value));
        if (kind >= 0)
            q->kind = (invar_criterion_kind)kind;
        return kind >= 0;
    }
    if (strcmp(key, "last") == 0)
        return invar_word_buffer_int(&q->until, value, -1, INT64_MAX);
    if (strcmp(key, "metric") == 0)
        return invar_bisect_state_copy(q->metric, sizeof q->metric, value);
    if (strcmp(key, "op") == 0)
        return invar_bisect_state_copy(q->op, sizeof q->op, value);
    if (strcmp(key, "bound") == 0)
        return parse_real(&q->bound, value);
    if (strcmp(key, "layer") == 0)
        return invar_word_buffer_int(&q->layer, value, -1, INT64_MAX);
    if (strcmp(key, "point-kind") == 0)
        return invar_bisect_state_copy(q->point_kind, sizeof q->point_kind, value);
    if (strcmp(key, "point-op") == 0)
        return invar_bisect_state_copy(q->point_op, sizeof q->point_op, value);
    if (strcmp(key, "phase") == 0)
        return invar_bisect_state_copy(q->phase, sizeof q->phase, value);
    return strcmp(key, "point") == 0 && invar_bisect_state_copy(q->point, sizeof q->point, value);
}

/*
 * Appends a value to a list. All lists share one allocation, and the entries of each list follow
 * each other in the file.
 */
static void append_to_list(invar_bisect_state *s, const char *const **list, size_t *used,
                           const char *value)
{
    if (!*list)
        *list = s->lists + *used;
    s->lists[(*used)++] = value;
    s->lists[*used] = NULL;
}

static bool parse_field(invar_bisect_state *s, size_t *used, const char *key, char *value)
{
    invar_bisect_case *w = &s->what;
    const struct {
        const char *key;
        const char **to;
    } texts[] = {{"repo", &w->repo},       {"good", &w->good},     {"bad", &w->bad},
                 {"recipe", &w->recipe},   {"run", &w->run},       {"build", &w->build},
                 {"program", &w->program}, {"golden", &w->golden}, {"inputs", &w->inputs}};
    const struct {
        const char *key;
        const char *const **to;
    } lists[] = {{"path", &w->paths}, {"skip", &w->skip}, {"flag", &w->flags}};

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(key, texts[i].key) == 0) {
            *texts[i].to = value;
            return true;
        }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (strcmp(key, lists[i].key) == 0) {
            // skips the NULL that terminates the previous list
            *used += *lists[i].to == NULL;
            append_to_list(s, lists[i].to, used, value);
            return true;
        }
    if (strcmp(key, "first-parent") == 0)
        return parse_bool(&w->first_parent, value);
    if (strcmp(key, "all-changes") == 0)
        return parse_bool(&w->all_changes, value);
    if (strcmp(key, "timeout") == 0)
        return parse_real(&w->timeout, value) && w->timeout >= 0;
    return parse_criterion(&w->question, key, value);
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
                   !parse_field(s, &used, line, blank + 1)) {
            return invar_bisect_state_damaged(s, number);
        }
    }
    if (!case_is_complete(&s->what) || (s->what.recipe && !s->recipe))
        return invar_bisect_state_damaged(s, number);
    return INVAR_OK;
}
