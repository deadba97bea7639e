/*
 * shell_vars.c - interprets a bash script command by command, without executing anything.
 *
 * Commands are only searched for assignments, `source` and train.py; for keywords only their
 * nesting matters: a shell may skip everything inside of one, so variables assigned there are
 * conditional.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/miles_import/shell_vars.h"

#include <string.h>

#include "base/file.h"
#include "engine/config/miles_import/shell_scanner.h"

#include "base/invar_banned.h"

/* ---- commands -------------------------------------------------------------------------------- */

static int32_t next_word(const invar_shell_scanner *r, int32_t word)
{
    return word < 0 || word == r->command.last ? -1 : r->shell->words[word].next;
}

static invar_status push_open(invar_shell_scanner *r, char what)
{
    if (r->nesting == INVAR_SHELL_NESTING)
        return invar_shell_fail(r, "commands are nested more than 64 deep");
    r->open[r->nesting++] = what;
    return INVAR_OK;
}

static char top_open(const invar_shell_scanner *r)
{
    return r->nesting ? r->open[r->nesting - 1] : '\0';
}

/* Closes a construct. If another one is open, it stays open: what follows counts as conditional. */
static void pop_open(invar_shell_scanner *r, const char *what)
{
    if (top_open(r) && strchr(what, top_open(r)))
        r->nesting--;
}

/* Assigns NAME=value or NAME+=value. */
static invar_status assign_variable(invar_shell_scanner *r, int32_t word)
{
    invar_shell_state *s = r->shell;
    const invar_shell_token *w = &s->words[word];
    const char *text = s->texts + w->text;
    const size_t bytes = (size_t)w->name;
    const bool more = text[bytes] == '+';
    invar_shell_var *n;
    bool may_miss;

    INVAR_TRY(invar_shell_state_define(&n, s, text, bytes));
    n->inner = n->inner || invar_shell_in_block(r);
    may_miss = r->conditional || r->chained || r->nesting || n->inner;
    n->array = false;
    if (may_miss || more)
        n->state = may_miss ? INVAR_LAUNCH_SCRIPT_CONDITIONAL : INVAR_LAUNCH_SCRIPT_COMPUTED;
    else
        n->state = w->state;
    n->text = w->text + (uint32_t)bytes + 1;
    return INVAR_OK;
}

/*
 * Finds the file of `source` in the folder of the script. ${DIR}/rest is read as rest: a directory
 * that a script computes is assumed to be its own. Returns false if the path is unknown.
 */
static bool find_sourced_file(const invar_shell_scanner *r, char out[INVAR_PATH_SIZE], int32_t word)
{
    const char *path = invar_shell_text_of(r, word);

    if (r->shell->words[word].state != INVAR_LAUNCH_SCRIPT_PLAIN) {
        const char *slash;
        path += *path == '"';
        slash = *path == '$' ? strchr(path, '/') : NULL;
        if (!slash || memchr(path, '(', (size_t)(slash - path)))
            return false;
        path = slash + 1;
        if (strpbrk(path, "$`("))
            return false;
    }
    if (*path == '/' || !*path ||
        invar_path_join(out, INVAR_PATH_SIZE, r->folder, path) != INVAR_OK) {
        invar_error_clear();
        return false;
    }
    out[strcspn(out, "\"")] = '\0';
    return true;
}

static invar_status source_file(invar_shell_scanner *r, int32_t word)
{
    char path[INVAR_PATH_SIZE];

    if (word < 0)
        return INVAR_OK;
    if (!r->shell->follow || !find_sourced_file(r, path, word) || !invar_path_exists(path))
        return invar_shell_state_add(&r->shell->unread, r->shell, r->shell->words[word]);
    return invar_shell_state_source(r->shell, path, r->conditional || r->nesting > 0);
}

static bool is_train(const char *word, bool *async_out)
{
    const char *name = strrchr(word, '/');

    name = name ? name + 1 : word;
    *async_out = strcmp(name, "train_async.py") == 0;
    return *async_out || strcmp(name, "train.py") == 0;
}

/* Finds train.py anywhere in the command, and keeps the words after it. */
static invar_status find_train(invar_shell_scanner *r, int32_t word)
{
    invar_shell_state *s = r->shell;
    bool async = false, python = false; // other commands, such as pkill, also mention train.py

    while (word >= 0 && !(python && is_train(invar_shell_text_of(r, word), &async))) {
        python = python || strstr(invar_shell_text_of(r, word), "python") ||
                 strstr(invar_shell_text_of(r, word), "torchrun");
        word = next_word(r, word);
    }
    if (word < 0)
        return INVAR_OK;
    if (s->train_line)
        return invar_shell_fail(r, "train.py is started a second time; keep one of the commands");
    s->train_line = s->words[word].line;
    s->async = async;
    for (word = next_word(r, word); word >= 0; word = next_word(r, word))
        INVAR_TRY(invar_shell_state_add(&s->train, s, s->words[word]));
    return INVAR_OK;
}

/* ---- commands that assign -------------------------------------------------------------------- */

/* Marks the value of a variable as unknown; for an array, each of its words. */
static void mark_unknown(invar_shell_state *s, invar_shell_var *n)
{
    n->state = INVAR_LAUNCH_SCRIPT_COMPUTED;
    for (int32_t at = n->array ? n->words.first : -1; at >= 0; at = s->words[at].next)
        s->words[at].state = INVAR_LAUNCH_SCRIPT_COMPUTED;
}

/* Marks the variable at the beginning of the word as unknown. */
static void mark_named_unknown(invar_shell_scanner *r, int32_t word)
{
    const char *text = invar_shell_text_of(r, word);
    size_t bytes = invar_shell_name_length(text, text + strlen(text));
    invar_shell_var *n = bytes ? invar_shell_state_find(r->shell, text, bytes) : NULL;

    if (n)
        mark_unknown(r->shell, n);
}

/* Returns true for NAME[index]=value. */
static bool is_element(const char *text)
{
    size_t bytes = invar_shell_name_length(text, text + strlen(text));

    return bytes && text[bytes] == '[' && strchr(text + bytes, '=');
}

/* Marks variables as unknown that the command may assign. */
static void mark_assigned_unknown(invar_shell_scanner *r, int32_t word)
{
    const char *command = invar_shell_text_of(r, word);

    if (is_element(command))
        mark_named_unknown(r, word);
    if (invar_shell_is_one_of(command, "eval"))
        for (int i = 0; i < r->shell->n_names; i++)
            mark_unknown(r->shell, &r->shell->names[i]);
    if (!invar_shell_is_one_of(command, "read mapfile readarray let unset getopts printf"))
        return;
    for (word = next_word(r, word); word >= 0; word = next_word(r, word))
        mark_named_unknown(r, word);
}

/* Interprets a command that is not a keyword. */
static invar_status interpret_command(invar_shell_scanner *r, int32_t word)
{
    const bool exports = r->shell->words[word].bare &&
                         invar_shell_is_one_of(invar_shell_text_of(r, word),
                                               "export declare local readonly typeset");
    int32_t first = exports ? next_word(r, word) : word, last = first;

    while (last >= 0 &&
           (r->shell->words[last].name || (exports && *invar_shell_text_of(r, last) == '-')))
        last = next_word(r, last);
    if (last >= 0 && !exports) { // NAME=value before a command affects that command only
        if (invar_shell_is_one_of(invar_shell_text_of(r, last), "source ."))
            return source_file(r, next_word(r, last));
        mark_assigned_unknown(r, last);
        return find_train(r, last);
    }
    for (; first >= 0; first = next_word(r, first))
        if (r->shell->words[first].name)
            INVAR_TRY(assign_variable(r, first));
    return INVAR_OK;
}

/* Defines the variable of a loop, whose value is known only while the loop runs. */
static invar_status define_loop_variable(invar_shell_scanner *r, int32_t word)
{
    invar_shell_var *n;

    if (word < 0 ||
        !invar_shell_name_length(invar_shell_text_of(r, word), invar_shell_text_of(r, word) + 1))
        return INVAR_OK;
    INVAR_TRY(invar_shell_state_define(&n, r->shell, invar_shell_text_of(r, word),
                                       strlen(invar_shell_text_of(r, word))));
    n->array = false;
    n->state = INVAR_LAUNCH_SCRIPT_CONDITIONAL;
    return INVAR_OK;
}

static invar_status end_command(invar_shell_scanner *r)
{
    int32_t word = r->command.first;
    invar_status status = INVAR_OK;

    while (word >= 0 && status == INVAR_OK) {
        const char *text = invar_shell_text_of(r, word);
        if (!r->shell->words[word].bare) {
            break;
        } else if (invar_shell_is_one_of(text, "for select")) {
            status = push_open(r, 'f');
            if (status == INVAR_OK)
                status = define_loop_variable(r, next_word(r, word));
            word = -1;
        } else if (invar_shell_is_one_of(text, "case")) {
            status = push_open(r, 'c');
            word = -1;
        } else if (invar_shell_opens_block(r, word)) {
            status = push_open(r, *text);
            word = next_word(r, word);
        } else if (invar_shell_is_one_of(text, "then do else elif ! time")) {
            word = next_word(r, word);
        } else if (invar_shell_is_one_of(text, "fi done esac }")) {
            pop_open(r, *text == 'f' ? "i" : *text == 'd' ? "fwu" : *text == 'e' ? "c" : "{");
            word = -1;
        } else {
            break;
        }
    }
    if (status == INVAR_OK && word >= 0)
        status = interpret_command(r, word);
    r->command = (invar_shell_token_list){-1, -1};
    r->chained = false;
    return status;
}

/* ---- operators ------------------------------------------------------------------------------- */

/* Reads the word after "<<", which ends the document. */
static void read_delimiter(invar_shell_scanner *r)
{
    size_t n = 0;

    r->position += r->position < r->end && *r->position == '-';
    while (r->position < r->end && (*r->position == ' ' || *r->position == '\t'))
        r->position++;
    while (r->position < r->end && !invar_shell_is_blank(*r->position) &&
           !strchr(";&|()<>", *r->position)) {
        if (!strchr("'\"\\", *r->position) && n < INVAR_SHELL_DELIMITER)
            r->delimiter[n++] = *r->position;
        r->position++;
    }
    r->delimiter[n] = '\0';
}

/* Skips the lines of a here-document, from the beginning of its first line. */
static void skip_document(invar_shell_scanner *r)
{
    size_t bytes = strlen(r->delimiter);

    while (r->position < r->end) {
        const char *line = r->position;
        invar_shell_skip_comment(r);
        while (line < r->position && *line == '\t')
            line++;
        if (r->position < r->end)
            (void)invar_shell_next(r);
        if ((size_t)(r->position - line) >= bytes && memcmp(line, r->delimiter, bytes) == 0 &&
            (line + bytes == r->position || line[bytes] == '\n' || line[bytes] == '\r'))
            break;
    }
    r->delimiter[0] = '\0';
}

/* Skips "> file", "2>&1" or "<<END": the next word does not belong to the command. */
static invar_status skip_redirection(invar_shell_scanner *r)
{
    invar_shell_token_list aside = {-1, -1};
    char c = invar_shell_next(r);

    if (c == '<' && r->position < r->end && *r->position == '<') {
        r->position++;
        if (r->position == r->end || *r->position != '<') {
            read_delimiter(r);
            return INVAR_OK;
        }
    }
    while (r->position < r->end && strchr("<>&|", *r->position))
        r->position++;
    while (r->position < r->end && (*r->position == ' ' || *r->position == '\t'))
        r->position++;
    if (r->position == r->end || invar_shell_is_blank(*r->position) || strchr(";()", *r->position))
        return INVAR_OK;
    r->list = &aside;
    INVAR_TRY(invar_shell_read_word(r));
    r->list = &r->command;
    return INVAR_OK;
}

static invar_status read_operator(invar_shell_scanner *r)
{
    char c = *r->position;

    if (c == '<' || c == '>' || (c == '&' && r->position + 1 < r->end && r->position[1] == '>')) {
        r->position += c == '&';
        return skip_redirection(r);
    }
    (void)invar_shell_next(r);
    if (c == ')' && top_open(r) == 'c') { // pattern of a case
        r->command = (invar_shell_token_list){-1, -1};
        return INVAR_OK;
    }
    INVAR_TRY(end_command(r));
    if (c == '(' && top_open(r) != 'c')
        return push_open(r, '(');
    if (c == ')')
        pop_open(r, "(");
    if (c == '|' || (c == '&' && r->position < r->end && *r->position == '&')) {
        r->position += r->position < r->end && *r->position == c;
        r->chained = true;
    }
    return INVAR_OK;
}

static invar_status read_next(invar_shell_scanner *r)
{
    char c = *r->position;

    if (c == '\n') {
        (void)invar_shell_next(r);
        if (r->delimiter[0])
            skip_document(r);
        // after && and | a command continues in the next line
        return r->command.first >= 0 || !r->chained ? end_command(r) : INVAR_OK;
    }
    if (invar_shell_is_blank(c)) {
        r->position++;
        return INVAR_OK;
    }
    if (c == '#') {
        invar_shell_skip_comment(r);
        return INVAR_OK;
    }
    if (strchr(";&|()<>", c))
        return read_operator(r);
    return invar_shell_read_word(r);
}

invar_status invar_shell_state_run(invar_shell_state *shell, int file, const char *folder,
                                   bool conditional, const char *text, size_t bytes)
{
    invar_shell_scanner r = {.shell = shell,
                             .position = text,
                             .end = text + bytes,
                             .folder = folder,
                             .file = file,
                             .line = 1,
                             .conditional = conditional,
                             .command = {-1, -1}};

    if (bytes > INVAR_LAUNCH_SCRIPT_MAX_BYTES)
        return invar_shell_fail(&r, "the file is larger than 1048576 bytes");
    if (memchr(text, '\0', bytes))
        return invar_shell_fail(&r, "the file has a NUL byte: it is no script");
    r.list = &r.command;
    while (r.position < r.end)
        INVAR_TRY(read_next(&r));
    return end_command(&r);
}
