/*
 * miles_import.c - makes a recipe of the flags that launch_flags.py finds in a launch script.
 *
 * The scripts of this folder read the script of Miles in a child process and answer with values of
 * keys and notes. The recipe is built repeatedly: as long as a key has no effect, it is dropped
 * with a note, and the recipe is built again without it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/miles_import/miles_import.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "engine/config/flag_aliases.h"
#include "engine/ext/embedded_script.h"
#include "engine/rl/reward/reward.h"

#include "base/invar_banned.h"

#define NAME "import-miles"
#define FILES "script_loop.py shell_parser.py shell_values.py shell_flow.py launch_flags.py"
#define SECONDS 120.0 /* time limit of the child process */

typedef struct importer {
    invar_import *out;
    const json_t *values[INVAR_KEY_COUNT]; /* text and flag of each key; NULL if it is not set */
} importer;

/* ---- answer of the script that reads --------------------------------------------------------- */

static void write_strings(invar_json_text *line, const char *const *strings, int count)
{
    for (int i = 0; i < count; i++)
        invar_json_text_string(line, strings[i], strlen(strings[i]));
}

/* Writes the table of flags, and of each key its flag of Miles and whether it is a switch. */
static void write_tables(invar_json_text *line)
{
    static const char *const kinds[] = {
        [INVAR_FLAG_ALIAS_KEY] = "KEY",         [INVAR_FLAG_ALIAS_PLUGIN] = "PLUGIN",
        [INVAR_FLAG_ALIAS_WORDS] = "WORDS",     [INVAR_FLAG_ALIAS_COMMAS] = "COMMAS",
        [INVAR_FLAG_ALIAS_STRINGS] = "STRINGS", [INVAR_FLAG_ALIAS_WEIGHTS] = "WEIGHTS",
        [INVAR_FLAG_ALIAS_ONLY] = "ONLY",       [INVAR_FLAG_ALIAS_MOOT] = "MOOT",
        [INVAR_FLAG_ALIAS_LOST] = "LOST",
    };
    const invar_recipe_schema *schema = invar_config_schema();
    invar_flag_alias row;
    const char *flags;

    invar_json_text_key(line, "aliases");
    invar_json_text_open(line, '[');
    for (int i = 0; invar_flag_alias_row(&row, &flags, i); i++) {
        const char *what = row.key != INVAR_KEY_NONE ? schema->keys[row.key].name : row.only;
        invar_json_text_open(line, '[');
        write_strings(line, (const char *[]){flags, kinds[row.how], what ? what : "", row.sentence},
                      4);
        invar_json_text_close(line, ']');
    }
    invar_json_text_close(line, ']');
    invar_json_text_key(line, "keys");
    invar_json_text_open(line, '{');
    for (int i = 0; i < schema->count; i++) {
        invar_json_text_key(line, schema->keys[i].name);
        invar_json_text_open(line, '[');
        write_strings(line, (const char *[]){invar_config_miles((invar_key)i)}, 1);
        invar_json_text_bool(line, schema->keys[i].type == INVAR_RECIPE_TYPE_BOOL);
        invar_json_text_close(line, ']');
    }
    invar_json_text_close(line, '}');
}

static invar_status ask_script(json_t **out, const char *path, const char *text, size_t bytes)
{
    invar_line_process *program;
    invar_json_text line = {0};
    invar_status status;

    INVAR_TRY(invar_embedded_script_open(&program, NAME, FILES, SECONDS));
    invar_json_text_open(&line, '{');
    invar_json_text_key(&line, "path");
    invar_json_text_bytes(&line, (const uint8_t *)path, (int64_t)strlen(path));
    invar_json_text_key(&line, "text");
    invar_json_text_bytes(&line, (const uint8_t *)text, (int64_t)bytes);
    write_tables(&line);
    invar_json_text_close(&line, '}');
    status = invar_embedded_script_ask(out, program, NAME, &line, false);
    invar_line_process_close(program);
    invar_json_text_release(&line);
    return status;
}

static const char *string_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

/* Adds a note about the flag that `from` names with its file and line. */
static void add_note(invar_import *o, invar_import_kind kind, const json_t *from, const char *why)
{
    const char *flag = string_of(from, "flag");
    invar_import_note *n = &o->notes[o->count++];

    *n = (invar_import_note){.kind = kind,
                             .file = json_string_value(json_object_get(from, "file")),
                             .line = (int)json_integer_value(json_object_get(from, "line"))};
    invar_text_quote(n->flag, sizeof n->flag, flag, strlen(flag));
    invar_text_quote(n->why, sizeof n->why, why, strlen(why));
}

/* Takes the values and notes of the answer. */
static invar_status take_answer(importer *im)
{
    const json_t *answer = im->out->answer, *notes = json_object_get(answer, "notes"), *item;
    const char *refused = string_of(answer, "refused");
    size_t i;

    if (*refused) {
        char quote[INVAR_ERROR_MESSAGE_SIZE / 2];
        invar_text_quote(quote, sizeof quote, refused, strlen(refused));
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s", quote);
    }
    // every key may be dropped once, with one note
    INVAR_TRY(INVAR_ALLOC(im->out->notes, json_array_size(notes) + INVAR_KEY_COUNT, "notes"));
    json_array_foreach(notes, i, item)
        add_note(im->out, (invar_import_kind)json_integer_value(json_object_get(item, "kind")),
                 item, string_of(item, "why"));
    json_array_foreach(json_object_get(answer, "values"), i, item)
        im->values[invar_recipe_find(invar_config_schema(), string_of(item, "key"))] = item;
    return INVAR_OK;
}

/* Removes the note about a chosen key that is dropped again. */
static void remove_choice_note(invar_import *o, invar_key key)
{
    const char *name = invar_config_schema()->keys[key].name;
    size_t bytes = strlen(name);

    for (int i = 0; i < o->count; i++)
        if (o->notes[i].kind == INVAR_IMPORT_CHOSEN &&
            strncmp(o->notes[i].flag, name, bytes) == 0 && o->notes[i].flag[bytes] == ' ') {
            memmove(&o->notes[i], &o->notes[i + 1], (size_t)(--o->count - i) * sizeof *o->notes);
            return;
        }
}

static void drop_value(importer *im, invar_key key, invar_import_kind kind, const char *why)
{
    if (json_object_get(im->values[key], "flag"))
        add_note(im->out, kind, im->values[key], why);
    else
        remove_choice_note(im->out, key);
    im->values[key] = NULL;
}

/* ---- recipe ---------------------------------------------------------------------------------- */

/* Checks that a reward is one of the built-in ones. */
static invar_status check_reward(const importer *im, invar_key key)
{
    invar_reward reward;
    bool boxed;

    if (key != INVAR_KEY_RM_TYPE)
        return INVAR_OK;
    return invar_reward_parse(&reward, &boxed, string_of(im->values[key], "text"));
}

/*
 * Sets all keys. A value that a key cannot have is dropped, which is not a loss if the key is free.
 */
static invar_status set_keys(importer *im, invar_recipe *recipe)
{
    const invar_recipe_schema *schema = invar_config_schema();

    for (int i = 0; i < schema->count; i++) {
        const bool semantic = schema->keys[i].effect != INVAR_RECIPE_EFFECT_FREE;
        invar_status status;
        invar_error reason;

        if (!im->values[i])
            continue;
        status = check_reward(im, (invar_key)i);
        if (status == INVAR_OK)
            status = invar_recipe_set(recipe, schema->keys[i].name,
                                      string_of(im->values[i], "text"), schema->keys[i].name);
        if (status == INVAR_OK)
            continue;
        if (status != INVAR_E_INVALID)
            return status;
        invar_error_take(&reason);
        drop_value(im, (invar_key)i, semantic ? INVAR_IMPORT_LOST : INVAR_IMPORT_MOOT,
                   reason.message);
    }
    return INVAR_OK;
}

/*
 * Builds a recipe from the remaining values. *unused_out is a key without effect, if there is one.
 */
static invar_status try_recipe(invar_key *unused_out, importer *im)
{
    invar_import *o = im->out;
    invar_config config;
    invar_error reason;
    invar_status status;

    *unused_out = INVAR_KEY_NONE;
    invar_recipe_free(o->recipe);
    o->recipe = NULL;
    o->error[0] = '\0';
    INVAR_TRY(invar_recipe_new(&o->recipe, invar_config_schema()));
    INVAR_TRY(set_keys(im, o->recipe));
    invar_config_read(&config, o->recipe);
    status = invar_config_check_unused(unused_out, &config);
    if (*unused_out == INVAR_KEY_NONE)
        status = invar_config_check(&config);
    if (status != INVAR_E_INVALID)
        return status;
    invar_error_take(&reason);
    invar_text_quote(o->error, sizeof o->error, reason.message, strlen(reason.message));
    return INVAR_OK;
}

/* Returns "would be ignored: it needs ..." without the origin and name of the key. */
static const char *reason_of(const char *refusal)
{
    const char *at = strstr(refusal, "would be ignored: ");

    return at ? at : refusal;
}

static invar_status make_recipe(importer *im)
{
    invar_key unused;
    char why[INVAR_IMPORT_WHY_SIZE];

    INVAR_TRY(take_answer(im));
    for (;;) {
        INVAR_TRY(try_recipe(&unused, im));
        if (unused == INVAR_KEY_NONE)
            return INVAR_OK;
        memcpy(why, im->out->error, sizeof why);
        drop_value(im, unused, INVAR_IMPORT_MOOT, reason_of(why));
    }
}

invar_status invar_import_read(invar_import *out, const char *path)
{
    importer im = {.out = out};
    invar_status status;
    size_t bytes;
    char *text;

    memset(out, 0, sizeof *out);
    INVAR_TRY(invar_file_read(&text, &bytes, path, INVAR_IMPORT_MAX_BYTES));
    status = ask_script(&out->answer, path, text, bytes);
    invar_free(text);
    if (status == INVAR_OK)
        status = make_recipe(&im);
    if (status != INVAR_OK)
        invar_import_release(out);
    return status;
}

void invar_import_release(invar_import *import)
{
    json_decref(import->answer);
    invar_recipe_free(import->recipe);
    invar_free(import->notes);
    memset(import, 0, sizeof *import);
}

bool invar_import_is_complete(const invar_import *import)
{
    for (int i = 0; i < import->count; i++)
        if (import->notes[i].kind <= INVAR_IMPORT_LOST)
            return false;
    return !import->error[0];
}

/* ---- file ------------------------------------------------------------------------------------ */

const char *invar_import_title(invar_import_kind kind)
{
    static const char *const titles[INVAR_IMPORT_KINDS] = {
        [INVAR_IMPORT_UNKNOWN] = "unknown",
        [INVAR_IMPORT_LOST] = "not taken over",
        [INVAR_IMPORT_CHOSEN] = "chosen here",
        [INVAR_IMPORT_MOOT] = "without effect here",
    };

    return titles[kind];
}

static void write_notes(FILE *out, const invar_import *import, invar_import_kind kind)
{
    bool any = false;

    for (int i = 0; i < import->count; i++) {
        const invar_import_note *n = &import->notes[i];
        if (n->kind != kind)
            continue;
        if (!any)
            fprintf(out, "#\n# %s:\n", invar_import_title(kind));
        any = true;
        fprintf(out, "#   %s", n->flag);
        if (n->file)
            fprintf(out, " (%s:%d)", INVAR_SHOWN_PATH(n->file), n->line);
        fprintf(out, ": %s\n", n->why);
    }
}

int invar_import_keys(const invar_import *import)
{
    invar_recipe_entry e;
    int keys = 0;

    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry_get(&e, import->recipe, i);
        keys += e.source == INVAR_RECIPE_SOURCE_FLAG;
    }
    return keys;
}

void invar_import_write(FILE *out, const invar_import *import)
{
    const char *section = "";
    invar_recipe_entry e;

    fputs(INVAR_IMPORT_MARK, out);
    if (import->error[0])
        fprintf(out, "#\n# it cannot be run as it is:\n#   %s\n", import->error);
    for (int kind = 0; kind < INVAR_IMPORT_KINDS; kind++)
        write_notes(out, import, (invar_import_kind)kind);
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry_get(&e, import->recipe, i);
        if (e.source != INVAR_RECIPE_SOURCE_FLAG)
            continue;
        if (strcmp(section, e.key->section) != 0)
            fprintf(out, "%s[%s]\n", section[0] ? "" : "\n", e.key->section);
        section = e.key->section;
        fprintf(out, "%s =%s%s\n", e.key->name, e.text[0] ? " " : "", e.text);
    }
}
