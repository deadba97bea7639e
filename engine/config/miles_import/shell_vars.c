/*
 * shell_vars.c - reads bash command by command, and executes nothing.
 *
 * A command is looked at for assignments, `source` and train.py; of keywords only their nesting
 * matters: whatever stands inside of one may be left out by a shell, so what it assigns is
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

static int32_t shell_scanner_following(const invar_shell_scanner *r, int32_t word)
{
    return word < 0 || word == r->command.last ? -1 : r->shell->words[word].next;
}

static invar_status shell_scanner_push(invar_shell_scanner *r, char what)
{
    if (r->nesting == INVAR_SHELL_NESTING)
        return invar_shell_refuse(r, "commands are nested more than 64 deep");
    r->open[r->nesting++] = what;
    return INVAR_OK;
}

static char shell_scanner_top(const invar_shell_scanner *r)
{
    return r->nesting ? r->open[r->nesting - 1] : '\0';
}

/* Where something else is open, it stays so: what follows counts as conditional. */
static void shell_scanner_pop(invar_shell_scanner *r, const char *what)
{
    if (shell_scanner_top(r) && strchr(what, shell_scanner_top(r)))
        r->nesting--;
}

/* NAME=value or NAME+=value. */
static invar_status shell_scanner_assign(invar_shell_scanner *r, int32_t word)
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
 * The path of `source` in the folder of the script. ${DIR}/rest is taken as rest: a directory that
 * a script computes is its own. False: it cannot be known.
 */
static bool shell_scanner_beside(const invar_shell_scanner *r, char out[INVAR_PATH_SIZE],
                                 int32_t word)
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

static invar_status shell_scanner_source(invar_shell_scanner *r, int32_t word)
{
    char path[INVAR_PATH_SIZE];

    if (word < 0)
        return INVAR_OK;
    if (!r->shell->follow || !shell_scanner_beside(r, path, word) || !invar_path_exists(path))
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

/* The words behind train.py, wherever in the command it stands. */
static invar_status find_train(invar_shell_scanner *r, int32_t word)
{
    invar_shell_state *s = r->shell;
    bool async = false, python = false; // others, such as pkill, name train.py, too

    while (word >= 0 && !(python && is_train(invar_shell_text_of(r, word), &async))) {
        python = python || strstr(invar_shell_text_of(r, word), "python") ||
                 strstr(invar_shell_text_of(r, word), "torchrun");
        word = shell_scanner_following(r, word);
    }
    if (word < 0)
        return INVAR_OK;
    if (s->train_line)
        return invar_shell_refuse(r, "train.py is started a second time; keep one of the commands");
    s->train_line = s->words[word].line;
    s->async = async;
    for (word = shell_scanner_following(r, word); word >= 0;
         word = shell_scanner_following(r, word))
        INVAR_TRY(invar_shell_state_add(&s->train, s, s->words[word]));
    return INVAR_OK;
}

/* ---- commands that assign -------------------------------------------------------------------- */

/* What the variable has now is not known any more; words of an array are told as such. */
static void mark_unknown(invar_shell_state *s, invar_shell_var *n)
{
    n->state = INVAR_LAUNCH_SCRIPT_COMPUTED;
    for (int32_t at = n->array ? n->words.first : -1; at >= 0; at = s->words[at].next)
        s->words[at].state = INVAR_LAUNCH_SCRIPT_COMPUTED;
}

/* The variable whose name the word begins with. */
static void forget_named(invar_shell_scanner *r, int32_t word)
{
    const char *text = invar_shell_text_of(r, word);
    size_t bytes = invar_shell_name_length(text, text + strlen(text));
    invar_shell_var *n = bytes ? invar_shell_state_find(r->shell, text, bytes) : NULL;

    if (n)
        mark_unknown(r->shell, n);
}

/* NAME[index]=value */
static bool is_element(const char *text)
{
    size_t bytes = invar_shell_name_length(text, text + strlen(text));

    return bytes && text[bytes] == '[' && strchr(text + bytes, '=');
}

/* Commands of the shell that give variables values of their own. */
static void forget_assigned(invar_shell_scanner *r, int32_t word)
{
    const char *command = invar_shell_text_of(r, word);

    if (is_element(command))
        forget_named(r, word);
    if (invar_shell_is_one_of(command, "eval"))
        for (int i = 0; i < r->shell->n_names; i++)
            mark_unknown(r->shell, &r->shell->names[i]);
    if (!invar_shell_is_one_of(command, "read mapfile readarray let unset getopts printf"))
        return;
    for (word = shell_scanner_following(r, word); word >= 0;
         word = shell_scanner_following(r, word))
        forget_named(r, word);
}

/* A command that is no keyword. */
static invar_status look_at(invar_shell_scanner *r, int32_t word)
{
    const bool exports = r->shell->words[word].bare &&
                         invar_shell_is_one_of(invar_shell_text_of(r, word),
                                               "export declare local readonly typeset");
    int32_t first = exports ? shell_scanner_following(r, word) : word, last = first;

    while (last >= 0 &&
           (r->shell->words[last].name || (exports && *invar_shell_text_of(r, last) == '-')))
        last = shell_scanner_following(r, last);
    if (last >= 0 && !exports) { // NAME=value before a command is for that command alone
        if (invar_shell_is_one_of(invar_shell_text_of(r, last), "source ."))
            return shell_scanner_source(r, shell_scanner_following(r, last));
        forget_assigned(r, last);
        return find_train(r, last);
    }
    for (; first >= 0; first = shell_scanner_following(r, first))
        if (r->shell->words[first].name)
            INVAR_TRY(shell_scanner_assign(r, first));
    return INVAR_OK;
}

/* What a loop assigns is known while it runs alone. */
static invar_status name_loop(invar_shell_scanner *r, int32_t word)
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
            status = shell_scanner_push(r, 'f');
            if (status == INVAR_OK)
                status = name_loop(r, shell_scanner_following(r, word));
            word = -1;
        } else if (invar_shell_is_one_of(text, "case")) {
            status = shell_scanner_push(r, 'c');
            word = -1;
        } else if (invar_shell_opens_block(r, word)) {
            status = shell_scanner_push(r, *text);
            word = shell_scanner_following(r, word);
        } else if (invar_shell_is_one_of(text, "then do else elif ! time")) {
            word = shell_scanner_following(r, word);
        } else if (invar_shell_is_one_of(text, "fi done esac }")) {
            shell_scanner_pop(r, *text == 'f'   ? "i"
                                 : *text == 'd' ? "fwu"
                                 : *text == 'e' ? "c"
                                                : "{");
            word = -1;
        } else {
            break;
        }
    }
    if (status == INVAR_OK && word >= 0)
        status = look_at(r, word);
    r->command = (invar_shell_token_list){-1, -1};
    r->chained = false;
    return status;
}

/* ---- operators ------------------------------------------------------------------------------- */

/* Behind "<<": the word that ends the document. */
static void read_delimiter(invar_shell_scanner *r)
{
    size_t n = 0;

    r->at += r->at < r->end && *r->at == '-';
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t'))
        r->at++;
    while (r->at < r->end && !invar_shell_is_blank(*r->at) && !strchr(";&|()<>", *r->at)) {
        if (!strchr("'\"\\", *r->at) && n < INVAR_SHELL_DELIMITER)
            r->delimiter[n++] = *r->at;
        r->at++;
    }
    r->delimiter[n] = '\0';
}

/* Skips the lines of a here-document; `at` is at the beginning of its first. */
static void skip_document(invar_shell_scanner *r)
{
    size_t bytes = strlen(r->delimiter);

    while (r->at < r->end) {
        const char *line = r->at;
        invar_shell_skip_comment(r);
        while (line < r->at && *line == '\t')
            line++;
        if (r->at < r->end)
            (void)invar_shell_next(r);
        if ((size_t)(r->at - line) >= bytes && memcmp(line, r->delimiter, bytes) == 0 &&
            (line + bytes == r->at || line[bytes] == '\n' || line[bytes] == '\r'))
            break;
    }
    r->delimiter[0] = '\0';
}

/* "> file", "2>&1", "<<END": the next word is no word of the command. */
static invar_status shell_scanner_redirect(invar_shell_scanner *r)
{
    invar_shell_token_list aside = {-1, -1};
    char c = invar_shell_next(r);

    if (c == '<' && r->at < r->end && *r->at == '<') {
        r->at++;
        if (r->at == r->end || *r->at != '<') {
            read_delimiter(r);
            return INVAR_OK;
        }
    }
    while (r->at < r->end && strchr("<>&|", *r->at))
        r->at++;
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t'))
        r->at++;
    if (r->at == r->end || invar_shell_is_blank(*r->at) || strchr(";()", *r->at))
        return INVAR_OK;
    r->list = &aside;
    INVAR_TRY(invar_shell_read_word(r));
    r->list = &r->command;
    return INVAR_OK;
}

static invar_status shell_scanner_operate(invar_shell_scanner *r)
{
    char c = *r->at;

    if (c == '<' || c == '>' || (c == '&' && r->at + 1 < r->end && r->at[1] == '>')) {
        r->at += c == '&';
        return shell_scanner_redirect(r);
    }
    (void)invar_shell_next(r);
    if (c == ')' && shell_scanner_top(r) == 'c') { // the pattern of a case
        r->command = (invar_shell_token_list){-1, -1};
        return INVAR_OK;
    }
    INVAR_TRY(end_command(r));
    if (c == '(' && shell_scanner_top(r) != 'c')
        return shell_scanner_push(r, '(');
    if (c == ')')
        shell_scanner_pop(r, "(");
    if (c == '|' || (c == '&' && r->at < r->end && *r->at == '&')) {
        r->at += r->at < r->end && *r->at == c;
        r->chained = true;
    }
    return INVAR_OK;
}

static invar_status shell_scanner_step(invar_shell_scanner *r)
{
    char c = *r->at;

    if (c == '\n') {
        (void)invar_shell_next(r);
        if (r->delimiter[0])
            skip_document(r);
        // behind && and | a command goes on in the next line
        return r->command.first >= 0 || !r->chained ? end_command(r) : INVAR_OK;
    }
    if (invar_shell_is_blank(c)) {
        r->at++;
        return INVAR_OK;
    }
    if (c == '#') {
        invar_shell_skip_comment(r);
        return INVAR_OK;
    }
    if (strchr(";&|()<>", c))
        return shell_scanner_operate(r);
    return invar_shell_read_word(r);
}

invar_status invar_shell_state_run(invar_shell_state *shell, int file, const char *folder,
                                   bool conditional, const char *text, size_t bytes)
{
    invar_shell_scanner r = {.shell = shell,
                             .at = text,
                             .end = text + bytes,
                             .folder = folder,
                             .file = file,
                             .line = 1,
                             .conditional = conditional,
                             .command = {-1, -1}};

    if (bytes > INVAR_LAUNCH_SCRIPT_MAX_BYTES)
        return invar_shell_refuse(&r, "the file is larger than 1048576 bytes");
    if (memchr(text, '\0', bytes))
        return invar_shell_refuse(&r, "the file has a NUL byte: it is no script");
    r.list = &r.command;
    while (r.at < r.end)
        INVAR_TRY(shell_scanner_step(&r));
    return end_command(&r);
}
