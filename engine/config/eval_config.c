/*
 * eval_config.c - evaluation sets with settings of their own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/eval_config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "engine/config/check_internal.h"
#include "engine/config/config.h"

#include "base/invar_banned.h"

#define MOST_SETS 256
#define ORIGIN_SIZE 512

/* What a section may say, and the key of a recipe that it stands for. */
static const struct {
    const char *name;
    invar_key key;
    bool later; /* than sets that were recorded: hashed only where it is not its default */
} settings[] = {
    {"n-samples-per-eval-prompt", INVAR_KEY_N_SAMPLES_PER_EVAL_PROMPT, false},
    {"temperature", INVAR_KEY_EVAL_TEMPERATURE, false},
    {"top-p", INVAR_KEY_EVAL_TOP_P, false},
    {"top-k", INVAR_KEY_EVAL_TOP_K, false},
    {"max-response-len", INVAR_KEY_EVAL_MAX_RESPONSE_LEN, false},
    {"input-key", INVAR_KEY_EVAL_INPUT_KEY, false},
    {"label-key", INVAR_KEY_EVAL_LABEL_KEY, false},
    {"rm-type", INVAR_KEY_EVAL_RM_TYPE, false},
    {"reward-key", INVAR_KEY_EVAL_REWARD_KEY, false},
    {"turns", INVAR_KEY_EVAL_TURNS, .later = true},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

typedef struct piece {
    const char *text;
    size_t bytes;
} piece;

/* The file while it is read. */
typedef struct reader {
    const char *path;
    const invar_recipe *recipe;
    invar_eval_config *out;
    piece name; /* of the section; none before the first */
    int section, line;
    piece place;            /* of its data */
    piece values[SETTINGS]; /* without text: not there */
    int lines[SETTINGS];
} reader;

static invar_status reader_fail(const reader *r, int line, const char *why, piece what)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    invar_text_quote(quoted, sizeof quoted, what.text ? what.text : "", what.bytes);
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%.300s:%d: \"%s\" %s", r->path, line, quoted, why);
}

/* ---- a set ----------------------------------------------------------------------------------- */

/* A set from a file has no use for what tasks need. */
static bool is_task(const reader *r)
{
    return r->place.text && r->place.bytes > 5 && memcmp(r->place.text, "task:", 5) == 0;
}

static bool is_own(const reader *r, int key)
{
    for (int i = 0; i < SETTINGS; i++)
        if ((int)settings[i].key == key && r->values[i].text)
            return true;
    return key == INVAR_KEY_EVAL_PROMPT_DATA || key == INVAR_KEY_EVAL_CONFIG ||
           (key == INVAR_KEY_TASK_SIZE && !is_task(r));
}

/* What the run's recipe says, where the section says nothing. */
static invar_status recipe_inherit(invar_recipe *to, const reader *r)
{
    for (int key = 0; key < INVAR_KEY_COUNT; key++) {
        invar_recipe_entry e;

        invar_recipe_entry_get(&e, r->recipe, key);
        if (!is_own(r, key) &&
            (e.source == INVAR_RECIPE_SOURCE_FILE || e.source == INVAR_RECIPE_SOURCE_FLAG))
            INVAR_TRY(invar_recipe_set(to, e.key->name, e.text, e.origin));
    }
    return INVAR_OK;
}

static invar_status set_value(invar_recipe *to, const reader *r, invar_key key, piece value,
                              int line)
{
    char text[INVAR_PATH_SIZE], origin[ORIGIN_SIZE];

    if (value.bytes >= sizeof text)
        return reader_fail(r, line, "is too long", value);
    memcpy(text, value.text, value.bytes);
    text[value.bytes] = '\0';
    (void)snprintf(origin, sizeof origin, "%.300s:%d", r->path, line);
    return invar_recipe_set(to, invar_config_schema()->keys[key].name, text, origin);
}

/* The set's name and place as eval-prompt-data has them. */
static invar_status set_place(invar_recipe *to, const reader *r)
{
    char text[INVAR_PATH_SIZE + INVAR_RECIPE_MAX_NAME];
    int used;

    if (!r->place.text)
        return reader_fail(r, r->section, "is a set without path = FILE", r->name);
    used = snprintf(text, sizeof text, "%.*s \"%.*s\"", (int)r->name.bytes, r->name.text,
                    (int)r->place.bytes, r->place.text);
    if (used >= (int)sizeof text || memchr(r->place.text, '"', r->place.bytes))
        return reader_fail(r, r->section, "has a path that is too long or has a quote", r->name);
    return set_value(to, r, INVAR_KEY_EVAL_PROMPT_DATA, (piece){text, (size_t)used}, r->section);
}

static invar_status recipe_fill(invar_recipe *to, const reader *r)
{
    INVAR_TRY(recipe_inherit(to, r));
    INVAR_TRY(set_place(to, r));
    for (int i = 0; i < SETTINGS; i++)
        if (r->values[i].text)
            INVAR_TRY(set_value(to, r, settings[i].key, r->values[i], r->lines[i]));
    return invar_config_check(to);
}

static bool is_twice(const reader *r)
{
    for (size_t i = 0; i < r->out->count; i++) {
        const char *data = invar_recipe_string(r->out->recipes[i], INVAR_KEY_EVAL_PROMPT_DATA);
        if (strncmp(data, r->name.text, r->name.bytes) == 0 && data[r->name.bytes] == ' ')
            return true;
    }
    return false;
}

/* The section that ends becomes a recipe. */
static invar_status end_section(reader *r)
{
    invar_eval_config *out = r->out;

    if (!r->name.text)
        return INVAR_OK;
    if (is_twice(r))
        return reader_fail(r, r->section, "is there twice", r->name);
    if (out->count == MOST_SETS)
        return reader_fail(r, r->section, "is one set too many", r->name);
    INVAR_TRY(invar_recipe_new(&out->recipes[out->count], invar_config_schema()));
    return recipe_fill(out->recipes[out->count++], r);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static piece trim(piece p)
{
    while (p.bytes > 0 && p.text[0] == ' ')
        p = (piece){p.text + 1, p.bytes - 1};
    while (p.bytes > 0 && (p.text[p.bytes - 1] == ' ' || p.text[p.bytes - 1] == '\r'))
        p.bytes--;
    return p;
}

static invar_status begin_section(reader *r, piece line)
{
    INVAR_TRY(end_section(r));
    if (line.bytes < 3 || line.text[line.bytes - 1] != ']' || line.bytes > INVAR_RECIPE_MAX_NAME)
        return reader_fail(r, r->line, "is no section: expected [NAME], the name of a set", line);
    if (!invar_config_is_set_name(line.text + 1, line.bytes - 2))
        return reader_fail(r, r->line,
                           "is no name of a set; a name has letters, digits, '-', '_', '.'", line);
    *r = (reader){.path = r->path,
                  .recipe = r->recipe,
                  .out = r->out,
                  .line = r->line,
                  .section = r->line,
                  .name = {line.text + 1, line.bytes - 2}};
    return INVAR_OK;
}

static bool is_named(piece key, const char *name)
{
    return key.bytes == strlen(name) && memcmp(key.text, name, key.bytes) == 0;
}

static invar_status take_setting(reader *r, piece key, piece value)
{
    bool first = false, known = is_named(key, "path");

    if (!value.bytes)
        return reader_fail(r, r->line, "has no value", key);
    if (known) {
        first = !r->place.text;
        r->place = value;
    }
    for (int i = 0; i < SETTINGS; i++)
        if (is_named(key, settings[i].name)) {
            known = true;
            first = !r->values[i].text;
            r->values[i] = value;
            r->lines[i] = r->line;
        }
    if (!known)
        return reader_fail(r, r->line,
                           "is no setting of a set; docs/recipes.md (Evaluation sets) has a list",
                           key);
    return first ? INVAR_OK : reader_fail(r, r->line, "is there twice", key);
}

static invar_status take_line(reader *r, piece line)
{
    const char *equals = line.bytes ? memchr(line.text, '=', line.bytes) : NULL;
    size_t before;

    if (line.bytes == 0 || line.text[0] == '#' || line.text[0] == ';')
        return INVAR_OK;
    if (memchr(line.text, '\0', line.bytes))
        return reader_fail(r, r->line, "has a byte 0", line);
    if (line.text[0] == '[')
        return begin_section(r, line);
    if (!equals || !r->name.text)
        return reader_fail(r, r->line, "is neither [NAME] nor a setting of a set: KEY = VALUE",
                           line);
    before = (size_t)(equals - line.text);
    return take_setting(r, trim((piece){line.text, before}),
                        trim((piece){equals + 1, line.bytes - before - 1}));
}

static invar_status take_lines(reader *r, piece text)
{
    while (text.bytes > 0) {
        const char *end = memchr(text.text, '\n', text.bytes);
        size_t length = end ? (size_t)(end - text.text) : text.bytes, used = length + (end ? 1 : 0);

        r->line++;
        INVAR_TRY(take_line(r, trim((piece){text.text, length})));
        text = (piece){text.text + used, text.bytes - used};
    }
    return end_section(r);
}

/* ---- the file -------------------------------------------------------------------------------- */

invar_status invar_eval_config_read(invar_eval_config *out, const invar_recipe *recipe)
{
    reader r = {
        .path = invar_recipe_string(recipe, INVAR_KEY_EVAL_CONFIG), .recipe = recipe, .out = out};
    invar_status status;
    char *text = NULL;
    size_t bytes;

    *out = (invar_eval_config){NULL, 0};
    if (!r.path[0])
        return INVAR_OK;
    INVAR_TRY(invar_file_read(&text, &bytes, r.path, INVAR_RECIPE_MAX_BYTES));
    status = invar_alloc((void **)&out->recipes, MOST_SETS, sizeof *out->recipes, "sets");
    if (status == INVAR_OK)
        status = take_lines(&r, (piece){text, bytes});
    if (status == INVAR_OK && out->count == 0)
        status = INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "eval-config = %.300s has no set; add a section [NAME] with path = FILE", r.path);
    invar_free(text);
    if (status != INVAR_OK)
        invar_eval_config_release(out);
    return status;
}

void invar_eval_config_release(invar_eval_config *evals)
{
    for (size_t i = 0; i < evals->count; i++)
        invar_recipe_free(evals->recipes[i]);
    invar_free(evals->recipes);
    *evals = (invar_eval_config){NULL, 0};
}

void invar_eval_config_hash(invar_hasher *hasher, const invar_recipe *recipe)
{
    for (int i = 0; i < SETTINGS; i++) {
        invar_recipe_entry e;

        invar_recipe_entry_get(&e, recipe, (int)settings[i].key);
        if (!settings[i].later || invar_recipe_entry_identifies(&e))
            invar_hasher_update(hasher, e.text, strlen(e.text) + 1);
    }
}
