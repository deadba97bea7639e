/*
 * eval_config.c - parses the file of eval-config into one recipe per evaluation set.
 *
 * A section starts with a copy of the run's recipe, without the keys that the section sets itself,
 * and is checked like any recipe when it ends. Errors name the file and line.
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

#include "base/invar_banned.h"

#define MAX_SETS 256
#define ORIGIN_SIZE 512

/* Settings of a section, and the recipe keys that they set. */
static const struct {
    const char *name;
    invar_key key;
    bool hash_if_set; /* newer than recorded sets: hashed only if it is not its default */
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
    {"turns", INVAR_KEY_EVAL_TURNS, .hash_if_set = true},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

typedef struct text_span {
    const char *text;
    size_t bytes;
} text_span;

/* State of the parser, with the section at hand. */
typedef struct eval_reader {
    const char *path;
    const invar_recipe *recipe;
    invar_eval_config *out;
    text_span name; /* name of the section; empty before the first one */
    int section, line;
    text_span data_path;        /* value of `path` */
    text_span values[SETTINGS]; /* settings of the section; no text if absent */
    int lines[SETTINGS];
} eval_reader;

static invar_status fail_at(const eval_reader *r, int line, const char *why, text_span what)
{
    return INVAR_FAIL(
        INVAR_E_INVALID, 0, "%.300s:%d: \"%s\" %s", r->path, line,
        INVAR_QUOTED_BYTES(INVAR_TEXT_QUOTE_SIZE, what.text ? what.text : "", what.bytes), why);
}

/* ---- a set ----------------------------------------------------------------------------------- */

/* Returns true if the set is a built-in task; only tasks use task-size. */
static bool is_task(const eval_reader *r)
{
    return r->data_path.text && r->data_path.bytes > 5 &&
           memcmp(r->data_path.text, "task:", 5) == 0;
}

static bool is_own(const eval_reader *r, int key)
{
    for (int i = 0; i < SETTINGS; i++)
        if ((int)settings[i].key == key && r->values[i].text)
            return true;
    return key == INVAR_KEY_EVAL_PROMPT_DATA || key == INVAR_KEY_EVAL_CONFIG ||
           (key == INVAR_KEY_TASK_SIZE && !is_task(r));
}

/* Copies the settings of the run's recipe that the section does not set. */
static invar_status inherit_settings(invar_recipe *to, const eval_reader *r)
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

static invar_status set_value(invar_recipe *to, const eval_reader *r, invar_key key,
                              text_span value, int line)
{
    char text[INVAR_PATH_SIZE], origin[ORIGIN_SIZE];

    if (value.bytes >= sizeof text)
        return fail_at(r, line, "is too long", value);
    memcpy(text, value.text, value.bytes);
    text[value.bytes] = '\0';
    (void)snprintf(origin, sizeof origin, "%.300s:%d", r->path, line);
    return invar_recipe_set(to, invar_config_schema()->keys[key].name, text, origin);
}

/* Sets eval-prompt-data to name and path of the set. */
static invar_status set_data(invar_recipe *to, const eval_reader *r)
{
    char text[INVAR_PATH_SIZE + INVAR_RECIPE_MAX_NAME];
    int used;

    if (!r->data_path.text)
        return fail_at(r, r->section, "is a set without path = FILE", r->name);
    used = snprintf(text, sizeof text, "%.*s \"%.*s\"", (int)r->name.bytes, r->name.text,
                    (int)r->data_path.bytes, r->data_path.text);
    if (used >= (int)sizeof text || memchr(r->data_path.text, '"', r->data_path.bytes))
        return fail_at(r, r->section, "has a path that is too long or has a quote", r->name);
    return set_value(to, r, INVAR_KEY_EVAL_PROMPT_DATA, (text_span){text, (size_t)used},
                     r->section);
}

static invar_status fill_recipe(invar_recipe *to, const eval_reader *r)
{
    INVAR_TRY(inherit_settings(to, r));
    INVAR_TRY(set_data(to, r));
    for (int i = 0; i < SETTINGS; i++)
        if (r->values[i].text)
            INVAR_TRY(set_value(to, r, settings[i].key, r->values[i], r->lines[i]));
    return INVAR_OK;
}

static bool is_duplicate(const eval_reader *r)
{
    for (size_t i = 0; i < r->out->count; i++) {
        const char *data = r->out->sets[i].eval_prompt_data;
        if (strncmp(data, r->name.text, r->name.bytes) == 0 && data[r->name.bytes] == ' ')
            return true;
    }
    return false;
}

/* Makes a set from the section that ends. */
static invar_status end_section(eval_reader *r)
{
    invar_eval_config *out = r->out;
    invar_recipe *recipe;

    if (!r->name.text)
        return INVAR_OK;
    if (is_duplicate(r))
        return fail_at(r, r->section, "is there twice", r->name);
    if (out->count == MAX_SETS)
        return fail_at(r, r->section, "is one set too many", r->name);
    INVAR_TRY(invar_recipe_new(&recipe, invar_config_schema()));
    out->sets[out->count++].recipe = recipe;
    INVAR_TRY(fill_recipe(recipe, r));
    return invar_config_check(invar_config_read(&out->sets[out->count - 1], recipe));
}

/* ---- lines ----------------------------------------------------------------------------------- */

static text_span trim_blanks(text_span p)
{
    while (p.bytes > 0 && p.text[0] == ' ')
        p = (text_span){p.text + 1, p.bytes - 1};
    while (p.bytes > 0 && (p.text[p.bytes - 1] == ' ' || p.text[p.bytes - 1] == '\r'))
        p.bytes--;
    return p;
}

static invar_status begin_section(eval_reader *r, text_span line)
{
    INVAR_TRY(end_section(r));
    if (line.bytes < 3 || line.text[line.bytes - 1] != ']' || line.bytes > INVAR_RECIPE_MAX_NAME)
        return fail_at(r, r->line, "is no section: expected [NAME], the name of a set", line);
    if (!invar_config_is_set_name(line.text + 1, line.bytes - 2))
        return fail_at(r, r->line, "is no name of a set; a name has letters, digits, '-', '_', '.'",
                       line);
    *r = (eval_reader){.path = r->path,
                       .recipe = r->recipe,
                       .out = r->out,
                       .line = r->line,
                       .section = r->line,
                       .name = {line.text + 1, line.bytes - 2}};
    return INVAR_OK;
}

static bool is_named(text_span key, const char *name)
{
    return key.bytes == strlen(name) && memcmp(key.text, name, key.bytes) == 0;
}

static invar_status read_setting(eval_reader *r, text_span key, text_span value)
{
    bool first = false, known = is_named(key, "path");

    if (!value.bytes)
        return fail_at(r, r->line, "has no value", key);
    if (known) {
        first = !r->data_path.text;
        r->data_path = value;
    }
    for (int i = 0; i < SETTINGS; i++)
        if (is_named(key, settings[i].name)) {
            known = true;
            first = !r->values[i].text;
            r->values[i] = value;
            r->lines[i] = r->line;
        }
    if (!known)
        return fail_at(r, r->line,
                       "is no setting of a set; docs/data.md (Evaluation sets) has a list", key);
    return first ? INVAR_OK : fail_at(r, r->line, "is there twice", key);
}

static invar_status read_line(eval_reader *r, text_span line)
{
    const char *equals = line.bytes ? memchr(line.text, '=', line.bytes) : NULL;
    size_t before;

    if (line.bytes == 0 || line.text[0] == '#' || line.text[0] == ';')
        return INVAR_OK;
    if (memchr(line.text, '\0', line.bytes))
        return fail_at(r, r->line, "has a byte 0", line);
    if (line.text[0] == '[')
        return begin_section(r, line);
    if (!equals || !r->name.text)
        return fail_at(r, r->line, "is neither [NAME] nor a setting of a set: KEY = VALUE", line);
    before = (size_t)(equals - line.text);
    return read_setting(r, trim_blanks((text_span){line.text, before}),
                        trim_blanks((text_span){equals + 1, line.bytes - before - 1}));
}

static invar_status read_lines(eval_reader *r, text_span text)
{
    while (text.bytes > 0) {
        const char *end = memchr(text.text, '\n', text.bytes);
        size_t length = end ? (size_t)(end - text.text) : text.bytes, used = length + (end ? 1 : 0);

        r->line++;
        INVAR_TRY(read_line(r, trim_blanks((text_span){text.text, length})));
        text = (text_span){text.text + used, text.bytes - used};
    }
    return end_section(r);
}

/* ---- file ------------------------------------------------------------------------------------ */

invar_status invar_eval_config_read(invar_eval_config *out, const invar_config *config)
{
    eval_reader r = {.path = config->eval_config, .recipe = config->recipe, .out = out};
    invar_status status;
    char *text = NULL;
    size_t bytes;

    *out = (invar_eval_config){NULL, 0};
    if (!r.path[0])
        return INVAR_OK;
    INVAR_TRY(invar_file_read(&text, &bytes, r.path, INVAR_RECIPE_MAX_BYTES));
    status = INVAR_ALLOC(out->sets, MAX_SETS, "sets");
    if (status == INVAR_OK)
        status = read_lines(&r, (text_span){text, bytes});
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
        invar_recipe_free(evals->sets[i].recipe);
    invar_free(evals->sets);
    *evals = (invar_eval_config){NULL, 0};
}

void invar_eval_config_hash(invar_hasher *hasher, const invar_config *config)
{
    for (int i = 0; i < SETTINGS; i++) {
        invar_recipe_entry e;

        invar_recipe_entry_get(&e, config->recipe, (int)settings[i].key);
        if (!settings[i].hash_if_set || invar_recipe_entry_identifies(&e))
            invar_hasher_update(hasher, e.text, strlen(e.text) + 1);
    }
}
