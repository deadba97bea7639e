/*
 * state.c - append-only state file of a bisect: strict reader and durable writer.
 *
 * The first part of the file describes the case, and its hash is the id of the bisect; the lines
 * after it are results. Invariant: a line counts only after fdatasync, and an incomplete last line
 * is removed by the next open. flock on the file keeps other processes out while a bisect runs. Any
 * other damage is an error (INVAR_E_CORRUPT), never skipped.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // flock in addition to POSIX open

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/recipe/flatten.h"
#include "bisect/state/state_internal.h"

#include "base/invar_banned.h"

#define MAX_BYTES (64u << 20)
#define MAX_TRIALS 100000
#define MAX_MS ((int64_t)1000000000000) /* longest build or run, 31 years */
#define TRIAL_FIELDS 14

/*
 * Returns the remedy for a damaged file: a reset removes states in the workspace, but not a file
 * given by the user.
 */
static const char *damage_advice(const invar_bisect_state *state)
{
    return state->folder[0] ? "invar bisect reset starts over"
                            : "a whole one is what 'invar bisect log' prints";
}

invar_status invar_bisect_state_damaged(const invar_bisect_state *state, int64_t line)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, state->path);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s:%" PRId64 ": not a line of a bisect's state: %s",
                      shown, line, damage_advice(state));
}

/* ---- trials ---------------------------------------------------------------------------------- */

/* Words of role, verdict and source. A trial points to these constants, so it owns no strings. */
static const char *const roles[] = {"good end", "bad end", "merge base",
                                    "search",   "again",   "change"};
static const char *const verdicts[] = {"good", "bad", "third", "skip"};
static const char *const ways[] = {"ran", "program", "tree"};

static const char *find_constant(const char *const *list, size_t count, const char *word)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i], word) == 0)
            return list[i];
    return NULL;
}

/* Parses the fields of a line "trial ..." after its first word. */
static bool take_trial(invar_bisect_state_trial *out, char **f)
{
    invar_bisect_trial *t = &out->trial;
    int64_t exit_code, build_ms, run_ms;

    *out = (invar_bisect_state_trial){.attempt = 0};
    for (int i = 0; i < TRIAL_FIELDS; i++)
        if (!invar_word_buffer_unescape(f[i]))
            return false;
    t->role = find_constant(roles, sizeof roles / sizeof *roles, f[4]);
    t->verdict = find_constant(verdicts, sizeof verdicts / sizeof *verdicts, f[5]);
    t->source = find_constant(ways, sizeof ways / sizeof *ways, f[7]);
    if (!invar_bisect_state_is_oid(f[0]) || !invar_bisect_state_is_oid(f[1]) || !t->role ||
        !t->verdict || !t->source)
        return false;
    if (!invar_word_buffer_int(&out->attempt, f[3], 0, 1000) ||
        !invar_word_buffer_int(&t->diverged_at, f[8], -1, INT64_MAX) ||
        !invar_word_buffer_int(&exit_code, f[9], -1000, 1000) ||
        !invar_word_buffer_int(&build_ms, f[10], 0, MAX_MS) ||
        !invar_word_buffer_int(&run_ms, f[11], 0, MAX_MS))
        return false;
    t->exit_code = (int)exit_code;
    t->build_s = (double)build_ms / 1000;
    t->run_s = (double)run_ms / 1000;
    return invar_bisect_state_copy(t->commit, sizeof t->commit, f[0]) &&
           invar_bisect_state_copy(out->tree, sizeof out->tree, f[1]) &&
           invar_bisect_state_copy(out->binary, sizeof out->binary, f[2]) &&
           invar_bisect_state_copy(t->value, sizeof t->value, f[6]) &&
           invar_bisect_state_copy(t->ledger, sizeof t->ledger, f[12]) &&
           invar_bisect_state_copy(t->failure_reason, sizeof t->failure_reason, f[13]);
}

const invar_bisect_state_trial *invar_bisect_state_find(const invar_bisect_state *state,
                                                        const char *commit, int64_t attempt)
{
    for (size_t i = 0; i < state->count; i++)
        if (state->trials[i].attempt == attempt &&
            strcmp(state->trials[i].trial.commit, commit) == 0)
            return &state->trials[i];
    return NULL;
}

static invar_status keep_trial(invar_bisect_state *s, const invar_bisect_state_trial *trial)
{
    const int64_t count = (int64_t)s->count;

    INVAR_TRY(INVAR_GROW(s->trials, s->capacity, count, count + 1, "the trials of a bisect"));
    s->trials[s->count++] = *trial;
    return INVAR_OK;
}

static invar_status read_line(invar_bisect_state *s, char *line, int64_t number)
{
    invar_bisect_state_trial trial;
    char *fields[TRIAL_FIELDS];
    int count = 0;

    if (strcmp(line, "done") == 0) {
        s->finished = true;
        return INVAR_OK;
    }
    if (strncmp(line, "until ", 6) == 0)
        return invar_word_buffer_int(&s->until, line + 6, 0, INT64_MAX)
                   ? INVAR_OK
                   : invar_bisect_state_damaged(s, number);
    if (strncmp(line, "trial ", 6) != 0 || s->count >= MAX_TRIALS)
        return invar_bisect_state_damaged(s, number);
    for (char *at = line + 6; at && count < TRIAL_FIELDS; count++) {
        fields[count] = at;
        at = strchr(at, ' ');
        if (at)
            *at++ = '\0';
        if (at && count == TRIAL_FIELDS - 1)
            return invar_bisect_state_damaged(s, number);
    }
    if (count != TRIAL_FIELDS || !take_trial(&trial, fields))
        return invar_bisect_state_damaged(s, number);
    return keep_trial(s, &trial);
}

/*
 * Parses the text of a state file. *whole_out is the length of its complete lines; the rest was cut
 * off by a kill.
 */
static invar_status read_text(invar_bisect_state *s, size_t *whole_out, const char *text,
                              size_t bytes)
{
    const char *end = strstr(text, "\n\n");
    invar_digest digest;
    size_t first;
    int64_t number;
    char *copy;

    if (strncmp(text, INVAR_BISECT_STATE_MAGIC, strlen(INVAR_BISECT_STATE_MAGIC)) != 0) {
        char shown[INVAR_PATH_SHOWN_SIZE];
        invar_path_show(shown, s->path);
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: not the state of a bisect: %s\"%.16s\": %s",
                          shown,
                          bytes ? "its first line is not " : "it is empty and does not begin with ",
                          INVAR_BISECT_STATE_MAGIC, damage_advice(s));
    }
    if (strlen(text) != bytes || !end)
        return invar_bisect_state_damaged(s, 1);
    first = (size_t)(end - text) + 1;
    invar_hash_bytes(&digest, text, first + 1);
    invar_digest_format(s->id, &digest);
    INVAR_TRY(INVAR_ALLOC(s->text, bytes + 1, "the state of a bisect"));
    memcpy(s->text, text, bytes + 1);
    s->text[first] = '\0';
    copy = s->text + first + 1; // the lines after the empty line, in the same allocation
    number = (int64_t)invar_bisect_state_count_lines(s->text) + 1;
    *whole_out = first + 1;
    for (char *newline; (newline = strchr(copy, '\n')); copy = newline + 1) {
        *newline = '\0';
        number++;
        *whole_out += (size_t)(newline - copy) + 1;
        INVAR_TRY(read_line(s, copy, number));
    }
    return invar_bisect_state_take_case(s);
}

static invar_status read_state(invar_bisect_state *s, size_t *whole_out)
{
    char *text;
    size_t bytes;
    invar_status status;

    INVAR_TRY(invar_file_read(&text, &bytes, s->path, MAX_BYTES));
    status = read_text(s, whole_out, text, bytes);
    invar_free(text);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

static invar_status new_state(invar_bisect_state **out)
{
    INVAR_TRY(INVAR_ALLOC_ZEROED(*out, 1, "a bisect"));
    (*out)->fd = -1;
    (*out)->until = -1;
    return INVAR_OK;
}

static invar_status close_failed(invar_bisect_state **state, invar_status status)
{
    if (status != INVAR_OK) {
        invar_bisect_state_close(*state);
        *state = NULL;
    }
    return status;
}

invar_status invar_bisect_state_read(invar_bisect_state **out, const char *path)
{
    invar_status status;
    size_t whole;

    INVAR_TRY(new_state(out));
    (void)snprintf((*out)->path, sizeof(*out)->path, "%s", path);
    status = read_state(*out, &whole);
    return close_failed(out, status);
}

invar_status invar_bisect_state_lock(invar_bisect_state *state)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    state->fd = open(state->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (state->fd < 0)
        return invar_path_fail(state->path, "cannot open");
    if (flock(state->fd, LOCK_EX | LOCK_NB) == 0)
        return INVAR_OK;
    if (errno != EWOULDBLOCK)
        return invar_path_fail(state->path, "cannot lock");
    invar_path_show(shown, state->path);
    return INVAR_FAIL(INVAR_E_BUSY, EWOULDBLOCK,
                      "%s: this very bisect is at work in another process: wait for it", shown);
}

/* Appends a line and syncs it. A line that cannot be written completely is removed again. */
static invar_status append_line(invar_bisect_state *state, const char *line, size_t bytes)
{
    off_t before = lseek(state->fd, 0, SEEK_END);

    if (invar_fd_write(state->fd, line, bytes) != 0) {
        invar_status status = invar_path_fail(state->path, "cannot write");
        if (ftruncate(state->fd, before) != 0)
            errno = 0; // the next reader drops the incomplete line
        return status;
    }
    return fdatasync(state->fd) == 0 ? INVAR_OK : invar_path_fail(state->path, "cannot sync");
}

/*
 * Returns true if the text begins with a section, as a recipe does. Detects other files before
 * anything is built.
 */
static bool looks_like_recipe(const char *text, size_t bytes)
{
    if (strlen(text) != bytes)
        return false;
    while (*text && (*text == '#' || *text == ';' || strchr(" \t\r\n", *text)))
        text += strchr("#;", *text) ? strcspn(text, "\n") : 1;
    return *text == '[';
}

static invar_status read_recipe(char **out, const invar_bisect_case *what)
{
    size_t bytes;

    *out = NULL;
    if (!what->recipe || what->recipe_text)
        return INVAR_OK;
    INVAR_TRY(invar_recipe_flatten(out, &bytes, what->recipe));
    if (looks_like_recipe(*out, bytes))
        return INVAR_OK;
    invar_free(*out);
    *out = NULL;
    return INVAR_FAIL(
        INVAR_E_INVALID, 0,
        "%.1000s: not a recipe, which begins with a [section]; a command is given with --run",
        what->recipe);
}

/* Writes the first part if the file is new, or if a kill left the first part incomplete. */
static invar_status begin_file(invar_bisect_state *s, const invar_word_buffer *head)
{
    size_t bytes;
    char *text;
    bool torn;

    INVAR_TRY(invar_file_read(&text, &bytes, s->path, MAX_BYTES));
    torn = bytes < head->used && memcmp(text, head->data, bytes) == 0;
    invar_free(text);
    if (!torn)
        return INVAR_OK;
    if (ftruncate(s->fd, 0) != 0)
        return invar_path_fail(s->path, "cannot shorten");
    return append_line(s, head->data, head->used);
}

static invar_status open_file(invar_bisect_state *s, const char *folder,
                              const invar_word_buffer *head)
{
    invar_digest digest;
    size_t whole;

    invar_hash_bytes(&digest, head->data, head->used);
    invar_digest_format(s->id, &digest);
    INVAR_TRY(invar_path_join(s->folder, sizeof s->folder, folder, s->id));
    INVAR_TRY(invar_held_folder_make(s->folder));
    INVAR_TRY(invar_path_join(s->path, sizeof s->path, s->folder, INVAR_BISECT_STATE_FILE));
    INVAR_TRY(invar_bisect_state_lock(s));
    INVAR_TRY(begin_file(s, head));
    INVAR_TRY(read_state(s, &whole));
    if (ftruncate(s->fd, (off_t)whole) != 0)
        return invar_path_fail(s->path, "cannot shorten");
    // the modification time selects the state that reports show
    (void)utimensat(AT_FDCWD, s->path, NULL, 0);
    return INVAR_OK;
}

invar_status invar_bisect_state_open(invar_bisect_state **out, const char *folder,
                                     const invar_bisect_case *what)
{
    invar_bisect_case whole = *what;
    char *recipe = NULL, inputs[INVAR_DIGEST_HEX_SIZE];
    invar_digest digest;
    invar_word_buffer head = {0};
    invar_status status;

    INVAR_TRY(new_state(out));
    status = read_recipe(&recipe, what);
    if (recipe)
        whole.recipe_text = recipe;
    if (status == INVAR_OK && whole.recipe_text && !whole.inputs) {
        // other data under the same names is another bisect
        invar_workspace_inputs(&digest, whole.recipe_text, whole.flags);
        invar_digest_format(inputs, &digest);
        whole.inputs = inputs;
    }
    if (status == INVAR_OK)
        status = invar_bisect_state_put_case(&head, &whole, whole.recipe_text);
    if (status == INVAR_OK)
        status = open_file(*out, folder, &head);
    invar_free(recipe);
    invar_free(head.data);
    return close_failed(out, status);
}

void invar_bisect_state_close(invar_bisect_state *state)
{
    if (!state)
        return;
    if (state->fd >= 0)
        close(state->fd);
    invar_free(state->text);
    invar_free((void *)state->lists);
    invar_free(state->recipe);
    invar_free(state->trials);
    invar_free(state);
}

/* ---- appending ------------------------------------------------------------------------------- */

/* Returns whole milliseconds: those that were read are written again. */
static int64_t milliseconds(double seconds)
{
    return seconds * 1000 < (double)MAX_MS ? (int64_t)(seconds * 1000 + 0.5) : MAX_MS;
}

static invar_status put_trial(invar_word_buffer *b, const invar_bisect_state_trial *trial)
{
    const invar_bisect_trial *t = &trial->trial;
    const int64_t values[] = {trial->attempt, t->diverged_at, t->exit_code,
                              milliseconds(t->build_s), milliseconds(t->run_s)};
    char numbers[5][24];
    const char *const words[TRIAL_FIELDS] = {
        t->commit,  trial->tree, trial->binary, numbers[0],       t->role,
        t->verdict, t->value,    t->source,     numbers[1],       numbers[2],
        numbers[3], numbers[4],  t->ledger,     t->failure_reason};

    for (size_t i = 0; i < 5; i++)
        (void)snprintf(numbers[i], sizeof numbers[i], "%" PRId64, values[i]);
    INVAR_TRY(invar_word_buffer_put(b, "trial"));
    for (size_t i = 0; i < TRIAL_FIELDS; i++) {
        INVAR_TRY(invar_word_buffer_put(b, " "));
        INVAR_TRY(invar_word_buffer_put_word(b, words[i]));
    }
    return invar_word_buffer_put(b, "\n");
}

invar_status invar_bisect_state_add(invar_bisect_state *state,
                                    const invar_bisect_state_trial *trial)
{
    invar_word_buffer line = {0};
    invar_status status = put_trial(&line, trial);

    if (status == INVAR_OK)
        status = append_line(state, line.data, line.used);
    if (status == INVAR_OK)
        status = keep_trial(state, trial);
    invar_free(line.data);
    return status;
}

invar_status invar_bisect_state_set_until(invar_bisect_state *state, int64_t step)
{
    char line[48];

    (void)snprintf(line, sizeof line, "until %" PRId64 "\n", step);
    INVAR_TRY(append_line(state, line, strlen(line)));
    state->until = step;
    return INVAR_OK;
}

invar_status invar_bisect_state_finish(invar_bisect_state *state)
{
    if (!state->finished)
        INVAR_TRY(append_line(state, "done\n", 5));
    state->finished = true;
    return INVAR_OK;
}

invar_status invar_bisect_state_import(invar_bisect_state *state, const invar_bisect_state *from)
{
    for (size_t i = 0; i < from->count; i++) {
        const invar_bisect_state_trial *t = &from->trials[i];
        if (!invar_bisect_state_find(state, t->trial.commit, t->attempt))
            INVAR_TRY(invar_bisect_state_add(state, t));
    }
    return from->until >= 0 && state->until < 0 ? invar_bisect_state_set_until(state, from->until)
                                                : INVAR_OK;
}
