/*
 * shell_expand.c - reads words of bash: quotes, expansions, arrays.
 *
 * A word whose value cannot be known without a shell keeps its text in the file, or an excerpt,
 * with a state that says why. A value of a variable is copied from the texts by offset, because it
 * may belong to the word that is being read.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/text.h"
#include "engine/config/miles_import/shell_scanner.h"

#include "base/invar_banned.h"

invar_status invar_shell_fail(const invar_shell_scanner *r, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:%d: %s", r->shell->texts + r->shell->files[r->file],
                      (int)r->line, why);
}

bool invar_shell_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_name_char(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && c >= '0' && c <= '9');
}

size_t invar_shell_name_length(const char *at, const char *end)
{
    size_t n = 0;

    while (at + n < end && is_name_char(at[n], n == 0))
        n++;
    return n;
}

char invar_shell_next(invar_shell_scanner *r)
{
    r->line += *r->position == '\n';
    return *r->position++;
}

/* ---- words ----------------------------------------------------------------------------------- */

static void begin_word(invar_shell_scanner *r)
{
    r->word_begin = r->position;
    r->start = r->shell->used;
    r->from_line = r->line;
    r->active = false;
    r->bare = true;
    r->state = INVAR_LAUNCH_SCRIPT_PLAIN;
    r->name = 0;
}

static invar_status put_char(invar_shell_scanner *r, char c)
{
    r->active = true;
    return invar_shell_state_put(r->shell, c);
}

/* Marks the value of the word as unknown. */
static void set_unknown(invar_shell_scanner *r, invar_launch_word_state state)
{
    r->active = true;
    r->state = state;
}

static invar_status end_word(invar_shell_scanner *r)
{
    invar_shell_state *s = r->shell;
    invar_shell_token word = {.line = r->from_line,
                              .file = (int16_t)r->file,
                              .state = (uint8_t)r->state,
                              .bare = r->bare,
                              .name = r->name};

    if (!r->active)
        return INVAR_OK;
    if (r->state != INVAR_LAUNCH_SCRIPT_PLAIN && r->name >= INVAR_SHELL_STATE_EXCERPT)
        return invar_shell_fail(r, "the name of a variable is longer than 200 bytes");
    if (r->state != INVAR_LAUNCH_SCRIPT_PLAIN) {
        size_t bytes = (size_t)(r->position - r->word_begin);
        s->used = r->start;
        INVAR_TRY(invar_shell_state_text(
            &word.text, s, r->word_begin,
            bytes < INVAR_SHELL_STATE_EXCERPT ? bytes : INVAR_SHELL_STATE_EXCERPT));
    } else {
        word.text = r->start;
        INVAR_TRY(invar_shell_state_put(s, '\0'));
    }
    return invar_shell_state_add(r->list, s, word);
}

/* Skips from after an opening bracket to after the closing one, including quoted text. */
static invar_status skip_nested(invar_shell_scanner *r, char open, char close)
{
    int depth = 1;

    while (depth > 0) {
        char c, quote = 0;

        if (r->position == r->end)
            return invar_shell_fail(r, "the file ends within a bracket");
        c = invar_shell_next(r);
        if (c == '\\' && r->position < r->end)
            (void)invar_shell_next(r);
        else if (c == '\'' || c == '"')
            quote = c;
        depth += c == open;
        depth -= c == close;
        while (quote) {
            if (r->position == r->end)
                return invar_shell_fail(r, "the file ends within a quote");
            c = invar_shell_next(r);
            if (c == '\\' && quote == '"' && r->position < r->end)
                (void)invar_shell_next(r);
            else if (c == quote)
                quote = 0;
        }
    }
    return INVAR_OK;
}

/* Appends a value to the word; blanks outside of quotes end words. */
static invar_status put_value(invar_shell_scanner *r, const char *value, bool quoted)
{
    for (; *value; value++) {
        if (quoted || !invar_shell_is_blank(*value)) {
            INVAR_TRY(put_char(r, *value));
            continue;
        }
        INVAR_TRY(end_word(r));
        begin_word(r);
        r->bare = false;
    }
    r->active = r->active || quoted;
    return INVAR_OK;
}

static invar_status put_variable(invar_shell_scanner *r, const char *name, size_t bytes,
                                 bool quoted)
{
    const invar_shell_var *n = invar_shell_state_find(r->shell, name, bytes);
    uint32_t text = n ? n->text : 0;

    if (!n || n->array || n->state != INVAR_LAUNCH_SCRIPT_PLAIN) {
        set_unknown(r,
                    n && !n->array ? (invar_launch_word_state)n->state : INVAR_LAUNCH_SCRIPT_UNSET);
        return INVAR_OK;
    }
    // by offset: texts do not move, but the value may be that of this very word
    return put_value(r, r->shell->texts + text, quoted);
}

/* Appends the words of an array as separate words. */
static invar_status put_array(invar_shell_scanner *r, const char *name, size_t bytes)
{
    const invar_shell_var *n = invar_shell_state_find(r->shell, name, bytes);
    int32_t at = n && n->array ? n->words.first : -1, last = n ? n->words.last : -1;

    if (!n || !n->array) {
        set_unknown(r, INVAR_LAUNCH_SCRIPT_UNSET);
        return INVAR_OK;
    }
    if (r->shell->used > r->start ||
        r->state != INVAR_LAUNCH_SCRIPT_PLAIN) // not for the quote before the array
        INVAR_TRY(end_word(r));
    for (; at >= 0; at = at == last ? -1 : r->shell->words[at].next)
        INVAR_TRY(invar_shell_state_add(r->list, r->shell, r->shell->words[at]));
    begin_word(r);
    r->bare = false;
    return INVAR_OK;
}

/* Reads "value}" of ${NAME:-value}: plain text, with or without quotes; other forms are unknown. */
static invar_status put_fallback(invar_shell_scanner *r, bool known, const char *name, size_t bytes,
                                 bool quoted)
{
    const char *from = r->position;
    size_t length;

    INVAR_TRY(skip_nested(r, '{', '}'));
    length = (size_t)(r->position - 1 - from);
    if (known)
        return put_variable(r, name, bytes, quoted);
    if (length >= 2 && (*from == '"' || *from == '\'') && from[length - 1] == *from) {
        from++;
        length -= 2;
    }
    for (size_t i = 0; i < length; i++)
        if (strchr("$`\"'\\{", from[i])) {
            set_unknown(r, INVAR_LAUNCH_SCRIPT_COMPUTED);
            return INVAR_OK;
        }
    r->active = true;
    for (size_t i = 0; i < length; i++)
        INVAR_TRY(put_char(r, from[i]));
    return INVAR_OK;
}

/* Expands ${...}, from after "${". */
static invar_status expand_braces(invar_shell_scanner *r, bool quoted)
{
    const char *name = r->position;
    size_t bytes = invar_shell_name_length(r->position, r->end), left;
    const invar_shell_var *n = invar_shell_state_find(r->shell, name, bytes);

    r->position += bytes;
    left = (size_t)(r->end - r->position);
    if (bytes && left >= 1 && r->position[0] == '}') {
        r->position++;
        return put_variable(r, name, bytes, quoted);
    }
    if (bytes && left >= 4 &&
        (memcmp(r->position, "[@]}", 4) == 0 || memcmp(r->position, "[*]}", 4) == 0)) {
        r->position += 4;
        return put_array(r, name, bytes);
    }
    if (bytes && left >= 2 &&
        (r->position[0] == '-' || (r->position[0] == ':' && r->position[1] == '-'))) {
        bool empty = n && n->state == INVAR_LAUNCH_SCRIPT_PLAIN && !r->shell->texts[n->text];
        bool known = n && !n->array && !(empty && r->position[0] == ':');
        r->position += r->position[0] == ':' ? 2 : 1;
        return put_fallback(r, known, name, bytes, quoted);
    }
    set_unknown(r, INVAR_LAUNCH_SCRIPT_COMPUTED);
    return skip_nested(r, '{', '}');
}

static invar_status read_single(invar_shell_scanner *r);

/* Expands $..., from after "$". */
static invar_status expand_dollar(invar_shell_scanner *r, bool quoted)
{
    size_t bytes = invar_shell_name_length(r->position, r->end);
    const char *name = r->position;

    r->bare = false;
    if (bytes) {
        r->position += bytes;
        return put_variable(r, name, bytes, quoted);
    }
    if (r->position == r->end || invar_shell_is_blank(*r->position) || *r->position == '"')
        return put_char(r, '$');
    switch (invar_shell_next(r)) {
    case '{': return expand_braces(r, quoted);
    case '(': set_unknown(r, INVAR_LAUNCH_SCRIPT_COMPUTED); return skip_nested(r, '(', ')');
    case '\'': set_unknown(r, INVAR_LAUNCH_SCRIPT_COMPUTED); return read_single(r);
    default: set_unknown(r, INVAR_LAUNCH_SCRIPT_UNSET); return INVAR_OK; // $1, $@, $?
    }
}

static invar_status skip_backquotes(invar_shell_scanner *r)
{
    set_unknown(r, INVAR_LAUNCH_SCRIPT_COMPUTED);
    r->bare = false;
    while (r->position < r->end) {
        char c = invar_shell_next(r);
        if (c == '`')
            return INVAR_OK;
        if (c == '\\' && r->position < r->end)
            (void)invar_shell_next(r);
    }
    return invar_shell_fail(r, "the file ends within backquotes");
}

/* Reads a single-quoted string, from after the opening quote. */
static invar_status read_single(invar_shell_scanner *r)
{
    r->active = true;
    r->bare = false;
    while (r->position < r->end) {
        char c = invar_shell_next(r);
        if (c == '\'')
            return INVAR_OK;
        INVAR_TRY(put_char(r, c));
    }
    return invar_shell_fail(r, "the file ends within a quote");
}

static invar_status read_double(invar_shell_scanner *r)
{
    r->active = true;
    r->bare = false;
    while (r->position < r->end) {
        char c = invar_shell_next(r);
        if (c == '"')
            return INVAR_OK;
        if (c == '$') {
            INVAR_TRY(expand_dollar(r, true));
        } else if (c == '`') {
            INVAR_TRY(skip_backquotes(r));
        } else if (c == '\\' && r->position < r->end && strchr("$`\"\\\n", *r->position)) {
            c = invar_shell_next(r);
            if (c != '\n')
                INVAR_TRY(put_char(r, c));
        } else {
            INVAR_TRY(put_char(r, c));
        }
    }
    return invar_shell_fail(r, "the file ends within a quote");
}

/* Returns true if the word so far is NAME or NAME+, so that = makes it an assignment. */
static bool is_assigned(const invar_shell_scanner *r)
{
    const char *text = r->shell->texts + r->start;
    size_t bytes = r->shell->used - r->start, name;

    if (!r->bare || r->name || !bytes)
        return false;
    name = invar_shell_name_length(text, text + bytes);
    return name && (name == bytes || (name + 1 == bytes && text[name] == '+'));
}

/* Returns true for the number before a redirection, as in 2>&1, which is not a word. */
static bool is_descriptor(const invar_shell_scanner *r)
{
    const char *text = r->shell->texts + r->start;

    for (uint32_t i = 0; i < r->shell->used - r->start; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    return r->bare && r->active;
}

/* Returns true if a { begins a list or a range; otherwise it is an ordinary character. */
static bool is_expansion(const char *at, const char *end)
{
    bool several = false;
    int depth = 1;

    for (; at < end && depth > 0 && !invar_shell_is_blank(*at) && !strchr(";&|()<>", *at); at++) {
        const char *quote =
            *at == '\'' || *at == '"' ? memchr(at + 1, *at, (size_t)(end - at - 1)) : NULL;

        if (quote)
            at = quote;
        else if (*at == '\\' && at + 1 < end)
            at++;
        else if (*at == ',' || (*at == '.' && at + 1 < end && at[1] == '.'))
            several = several || depth == 1;
        else
            depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
    }
    return depth == 0 && several;
}

static invar_status read_array(invar_shell_scanner *r);

invar_status invar_shell_read_word(invar_shell_scanner *r)
{
    begin_word(r);
    while (r->position < r->end && !invar_shell_is_blank(*r->position) &&
           !strchr(";&|()<>", *r->position)) {
        char c = invar_shell_next(r);
        switch (c) {
        case '\\':
            if (r->position < r->end && *r->position != '\n') {
                r->bare = false;
                c = invar_shell_next(r);
                INVAR_TRY(put_char(r, c));
            } else if (r->position < r->end) {
                (void)invar_shell_next(r);
                if (!r->active)
                    return INVAR_OK; // a comment may follow
                r->bare = false;
            }
            break;
        case '\'': INVAR_TRY(read_single(r)); break;
        case '"': INVAR_TRY(read_double(r)); break;
        case '$': INVAR_TRY(expand_dollar(r, false)); break;
        case '`': INVAR_TRY(skip_backquotes(r)); break;
        case '=':
            if (is_assigned(r))
                r->name = (int32_t)invar_shell_name_length(r->shell->texts + r->start,
                                                           r->shell->texts + r->shell->used);
            INVAR_TRY(put_char(r, c));
            if (r->name && r->position < r->end && *r->position == '(' && r->list == &r->command)
                return read_array(r);
            break;
        case '{':
            if (is_expansion(r->position, r->end))
                set_unknown(r, INVAR_LAUNCH_SCRIPT_BRACES);
            INVAR_TRY(put_char(r, c));
            break;
        case '*': // patterns for file names
        case '?': set_unknown(r, INVAR_LAUNCH_SCRIPT_COMPUTED); break;
        case '~': // a home directory
            if (r->shell->used == r->start)
                set_unknown(r, INVAR_LAUNCH_SCRIPT_COMPUTED);
            else
                INVAR_TRY(put_char(r, c));
            break;
        default: INVAR_TRY(put_char(r, c)); break;
        }
    }
    if (r->position < r->end && strchr("<>", *r->position) && is_descriptor(r))
        return INVAR_OK;
    return end_word(r);
}

void invar_shell_skip_comment(invar_shell_scanner *r)
{
    while (r->position < r->end && *r->position != '\n')
        r->position++;
}

const char *invar_shell_text_of(const invar_shell_scanner *r, int32_t word)
{
    return r->shell->texts + r->shell->words[word].text;
}

bool invar_shell_is_one_of(const char *word, const char *words)
{
    const char *item;
    size_t bytes;

    while (invar_text_item(&item, &bytes, &words, ' '))
        if (strlen(word) == bytes && memcmp(word, item, bytes) == 0)
            return true;
    return false;
}

bool invar_shell_opens_block(const invar_shell_scanner *r, int32_t word)
{
    return r->shell->words[word].bare &&
           invar_shell_is_one_of(invar_shell_text_of(r, word), "if while until {");
}

bool invar_shell_in_block(const invar_shell_scanner *r)
{
    return memchr(r->open, '{', (size_t)r->nesting) != NULL;
}

/* Marks words that the script may leave out. */
static void mark_conditional(invar_shell_scanner *r, invar_shell_token_list list)
{
    for (int32_t at = list.first; at >= 0; at = r->shell->words[at].next)
        if (r->shell->words[at].state == INVAR_LAUNCH_SCRIPT_PLAIN)
            r->shell->words[at].state = INVAR_LAUNCH_SCRIPT_CONDITIONAL;
}

static void append_list(invar_shell_scanner *r, invar_shell_token_list *list,
                        invar_shell_token_list more)
{
    if (list->last >= 0 && more.first >= 0)
        r->shell->words[list->last].next = more.first;
    if (list->first < 0)
        list->first = more.first;
    if (more.last >= 0)
        list->last = more.last;
}

/* Reads NAME=( ... ) or NAME+=( ... ); the word has the text before the bracket. */
static invar_status read_array(invar_shell_scanner *r)
{
    const bool opens = r->command.first >= 0 && invar_shell_opens_block(r, r->command.first);
    bool may_miss = r->conditional || r->chained || r->nesting > 0 || opens;
    const uint32_t name = r->start;
    const size_t bytes = (size_t)r->name;
    const bool more = r->shell->texts[name + bytes] == '+';
    invar_shell_token_list words = {-1, -1};
    invar_shell_var *n;

    INVAR_TRY(invar_shell_state_put(r->shell, '\0'));
    (void)invar_shell_next(r);
    r->list = &words;
    for (;;) {
        while (r->position < r->end && invar_shell_is_blank(*r->position))
            (void)invar_shell_next(r);
        if (r->position == r->end)
            return invar_shell_fail(r, "the file ends within an array");
        if (*r->position == ')')
            break;
        if (*r->position == '#')
            invar_shell_skip_comment(r);
        else if (strchr(";&|(<>", *r->position))
            return invar_shell_fail(
                r, "an operator within an array; a value that has one needs quotes");
        else
            INVAR_TRY(invar_shell_read_word(r));
    }
    (void)invar_shell_next(r);
    r->list = &r->command;
    INVAR_TRY(invar_shell_state_define(&n, r->shell, r->shell->texts + name, bytes));
    n->inner = n->inner || invar_shell_in_block(r) ||
               (opens && *invar_shell_text_of(r, r->command.first) == '{');
    may_miss = may_miss || n->inner;
    if (may_miss) {
        mark_conditional(r, words);
        if (!more)
            mark_conditional(r, n->words); // the old words stay if the command is skipped
    }
    if (!n->array || (!more && !may_miss))
        n->words = (invar_shell_token_list){-1, -1};
    append_list(r, &n->words, words);
    n->array = true;
    n->state = INVAR_LAUNCH_SCRIPT_PLAIN;
    return INVAR_OK;
}
