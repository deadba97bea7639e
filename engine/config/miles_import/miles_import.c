/*
 * miles_import.c - maps the flags of a Miles launch script to recipe keys.
 *
 * The rules are those of argparse: the last of repeated flags wins, and all words after a flag that
 * do not begin with two dashes are its values. The recipe is built repeatedly: as long as a key has
 * no effect, it is dropped with a note, and the recipe is built again without it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/miles_import/miles_import.h"

#include <string.h>

#include "base/alloc.h"
#include "base/number.h"
#include "base/text.h"
#include "engine/config/flag_aliases.h"
#include "engine/rl/reward/reward.h"

#include "base/invar_banned.h"

/* A flag of the script and its values. */
typedef struct flag {
    const char *name; /* without the dashes; not terminated, `length` bytes */
    size_t length;
    const char *equals; /* value after "="; NULL if there is no "=" */
    const invar_launch_word *word;
    int values; /* number of words after the flag */
    invar_launch_word_state state;
} flag;

/* Value of a key, and the flag that it comes from. */
typedef struct key_value {
    char *text; /* NULL if the key is not set */
    flag from;
    bool alias; /* the flag has another name than the key */
} key_value;

typedef struct importer {
    invar_import *out;
    key_value values[INVAR_KEY_COUNT];
} importer;

/* ---- notes ----------------------------------------------------------------------------------- */

static const char *const state_reasons[] = {
    [INVAR_LAUNCH_SCRIPT_COMPUTED] = "a command of the script computes it, and nothing is executed",
    [INVAR_LAUNCH_SCRIPT_BRACES] = "bash makes several words of {a,b} and {1..3}; write them out",
    [INVAR_LAUNCH_SCRIPT_UNSET] = "the script does not say what the variable is",
    [INVAR_LAUNCH_SCRIPT_CONDITIONAL] =
        "it depends on a condition, a loop or a function of the script",
};

static invar_status add_note(importer *im, invar_import_kind kind, const invar_launch_word *word,
                             const char *flag_text, const char *why)
{
    invar_import *o = im->out;
    invar_import_note *n;

    if (o->count == o->capacity) { // at most one note per flag, key and file
        int room = o->script.count + o->script.n_unread + 2 * INVAR_KEY_COUNT;
        INVAR_CHECK(o->capacity == 0);
        INVAR_TRY(INVAR_ALLOC(o->notes, (size_t)room, "notes"));
        o->capacity = room;
    }
    n = &o->notes[o->count++];
    *n = (invar_import_note){.kind = kind, .file = word ? word->file : NULL};
    n->line = word ? word->line : 0;
    invar_text_quote(n->flag, sizeof n->flag, flag_text, strlen(flag_text));
    invar_text_quote(n->why, sizeof n->why, why, strlen(why));
    return INVAR_OK;
}

/* Adds a note with the text "--name first-value ...". */
static invar_status note_flag(importer *im, invar_import_kind kind, const flag *f, const char *why)
{
    char text[2 * INVAR_IMPORT_FLAG_SIZE];

    (void)snprintf(text, sizeof text, "%.120s%s%.120s%s", f->word->text, f->values ? " " : "",
                   f->values ? f->word[1].text : "", f->values > 1 ? " ..." : "");
    return add_note(im, kind, f->word, text, why);
}

/* ---- values ---------------------------------------------------------------------------------- */

static const char *value_at(const flag *f, int index)
{
    return f->equals ? f->equals : f->word[1 + index].text;
}

static int value_count(const flag *f)
{
    return f->equals ? 1 : f->values;
}

/* Writes a byte of a JSON string; returns the number of bytes written, at most 6. */
static size_t escape_json_char(char *out, char c)
{
    if ((unsigned char)c < 0x20)
        return (size_t)snprintf(out, 7, "\\u%04x", (unsigned)c);
    if (c == '"' || c == '\\') {
        out[0] = '\\';
        out[1] = c;
        return 2;
    }
    out[0] = c;
    return 1;
}

/* Joins all values to one text in the form of the key. The caller owns *out. */
static invar_status join_values(char **out, const flag *f, invar_flag_alias_kind how)
{
    const bool strings = how == INVAR_FLAG_ALIAS_STRINGS, words = how == INVAR_FLAG_ALIAS_WORDS;
    const int count = value_count(f);
    size_t room = 3, used = 0;

    for (int i = 0; i < count; i++)
        room += 6 * strlen(value_at(f, i)) + 7;
    INVAR_TRY(INVAR_ALLOC(*out, room, "value of a flag"));
    if (strings)
        (*out)[used++] = '[';
    for (int i = 0; i < count; i++) {
        const char *text = value_at(f, i);
        const bool quoted = strings || (words && (strpbrk(text, " \t") || !*text));
        if (i > 0)
            (*out)[used++] = words ? ' ' : ',';
        if (quoted)
            (*out)[used++] = '"';
        for (; *text; text++) {
            if (strings)
                used += escape_json_char(*out + used, *text);
            else
                (*out)[used++] = *text;
        }
        if (quoted)
            (*out)[used++] = '"';
    }
    if (strings)
        (*out)[used++] = ']';
    (*out)[used] = '\0';
    return INVAR_OK;
}

/* Sets a key. A flag with the key's own name overrides an alias. */
static invar_status set_value(importer *im, invar_key key, const flag *f, char *text)
{
    const char *name = invar_config_schema()->keys[key].name;
    key_value *v = &im->values[key];
    bool alias = strlen(name) != f->length || memcmp(name, f->name, f->length) != 0;

    if (v->text && alias && !v->alias) {
        invar_free(text);
        return note_flag(im, INVAR_IMPORT_MOOT, f, "the script has the key itself, too");
    }
    invar_free(v->text);
    *v = (key_value){text, *f, alias};
    return INVAR_OK;
}

static invar_status import_key(importer *im, const flag *f, invar_key key,
                               invar_flag_alias_kind how)
{
    const invar_recipe_key *k = &invar_config_schema()->keys[key];
    const bool listed = how == INVAR_FLAG_ALIAS_STRINGS || how == INVAR_FLAG_ALIAS_WORDS ||
                        how == INVAR_FLAG_ALIAS_COMMAS;
    char *text;

    if (value_count(f) == 0 && k->type == INVAR_RECIPE_TYPE_BOOL) {
        INVAR_TRY(INVAR_ALLOC(text, sizeof "true", "value of a flag"));
        memcpy(text, "true", sizeof "true");
        return set_value(im, key, f, text);
    }
    if (value_count(f) == 0)
        return note_flag(im, INVAR_IMPORT_LOST, f, "it has no value in the script");
    if (value_count(f) > 1 && !listed)
        return note_flag(im, INVAR_IMPORT_LOST, f, "it has several values; the key takes one");
    INVAR_TRY(join_values(&text, f, how));
    return set_value(im, key, f, text);
}

/*
 * Imports a plug-in. A Python function has no file here; the only filter that Miles ships becomes a
 * key.
 */
static invar_status import_plugin(importer *im, const flag *f, const invar_flag_alias *what)
{
    static const char filter[] = "check_reward_nonzero_std";
    const char *text = value_count(f) == 1 ? value_at(f, 0) : "";
    char *word;

    if (what->key == INVAR_KEY_DYNAMIC_SAMPLING_FILTER_PATH &&
        invar_text_has_suffix(text, filter)) {
        INVAR_TRY(INVAR_ALLOC(word, sizeof "nonzero_std", "value of a flag"));
        memcpy(word, "nonzero_std", sizeof "nonzero_std");
        return set_value(im, INVAR_KEY_DYNAMIC_SAMPLING_FILTER, f, word);
    }
    if (!strchr(text, '/') && !invar_text_has_suffix(text, ".py") &&
        !invar_text_has_suffix(text, ".so"))
        return note_flag(im, INVAR_IMPORT_LOST, f, what->sentence);
    return import_key(im, f, what->key, what->how);
}

static bool is_same(const char *text, const char *only)
{
    double a, b;

    if (strcmp(text, only) == 0)
        return true;
    if (!only[0] || !strchr("0123456789", only[0]) || invar_number_parse(&a, text) != INVAR_OK ||
        invar_number_parse(&b, only) != INVAR_OK) {
        invar_error_clear();
        return false;
    }
    return a == b;
}

static invar_status import_flag(importer *im, const flag *f)
{
    invar_flag_alias what;
    bool same;

    if (!invar_flag_alias_find(&what, f->name, f->length))
        return note_flag(im, INVAR_IMPORT_LOST, f, "unknown flag");
    if (what.how == INVAR_FLAG_ALIAS_MOOT)
        return note_flag(im, INVAR_IMPORT_MOOT, f, what.sentence);
    if (what.how == INVAR_FLAG_ALIAS_LOST)
        return note_flag(im, INVAR_IMPORT_LOST, f, what.sentence);
    if (f->state != INVAR_LAUNCH_SCRIPT_PLAIN)
        return note_flag(im, INVAR_IMPORT_LOST, f, state_reasons[f->state]);
    if (what.how == INVAR_FLAG_ALIAS_ONLY) {
        same = value_count(f) == 1 && is_same(value_at(f, 0), what.only);
        return note_flag(im, same ? INVAR_IMPORT_MOOT : INVAR_IMPORT_LOST, f, what.sentence);
    }
    if (what.how == INVAR_FLAG_ALIAS_PLUGIN)
        return import_plugin(im, f, &what);
    return import_key(im, f, what.key, what.how);
}

/* ---- words of the script --------------------------------------------------------------------- */

static bool is_flag(const char *text)
{
    return text[0] == '-' && text[1] == '-' && text[2] && !strchr("0123456789.", text[2]);
}

/* Returns true for "$@" or "${MORE[@]}", which stand for an unknown number of words. */
static bool is_open(const invar_launch_word *w)
{
    return w->state == INVAR_LAUNCH_SCRIPT_UNSET &&
           (strstr(w->text, "[@]") || strstr(w->text, "[*]") || strstr(w->text, "$@"));
}

/* Returns the flag at words[*at] and advances *at past its values. */
static flag next_flag(const invar_launch_script *s, int *at)
{
    const invar_launch_word *w = &s->words[(*at)++];
    flag f = {.name = w->text + 2, .word = w, .state = w->state};

    f.length = strcspn(f.name, "=");
    f.equals = f.name[f.length] ? f.name + f.length + 1 : NULL;
    for (; *at < s->count && !is_flag(s->words[*at].text) && !is_open(&s->words[*at]); ++*at) {
        f.values++;
        if (f.state == INVAR_LAUNCH_SCRIPT_PLAIN)
            f.state = s->words[*at].state;
    }
    return f;
}

static invar_status import_words(importer *im)
{
    const invar_launch_script *s = &im->out->script;

    for (int i = 0; i < s->n_unread; i++)
        INVAR_TRY(add_note(im, INVAR_IMPORT_LOST, &s->unread[i], s->unread[i].text,
                           "this file of source is not beside the script: its flags are missing"));
    for (int i = 0; i < s->count;) {
        const invar_launch_word *w = &s->words[i];
        if (is_flag(w->text)) {
            flag f = next_flag(s, &i);
            INVAR_TRY(import_flag(im, &f));
            continue;
        }
        INVAR_TRY(add_note(im, INVAR_IMPORT_LOST, w, w->text,
                           w->state == INVAR_LAUNCH_SCRIPT_PLAIN ? "a word that belongs to no flag"
                                                                 : state_reasons[w->state]));
        i++;
    }
    return INVAR_OK;
}

/* ---- values that Miles implies --------------------------------------------------------------- */

/* Sets a key that the script does not have; the note gives the reason. */
static invar_status choose_value(importer *im, invar_key key, const char *text, const char *why)
{
    char shown[INVAR_IMPORT_FLAG_SIZE];
    key_value *v = &im->values[key];

    if (v->text)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(v->text, strlen(text) + 1, "value of a key"));
    memcpy(v->text, text, strlen(text) + 1);
    (void)snprintf(shown, sizeof shown, "%s = %s", invar_config_schema()->keys[key].name, text);
    return add_note(im, INVAR_IMPORT_CHOSEN, NULL, shown, why);
}

static const char *text_of(const importer *im, invar_key key)
{
    return im->values[key].text ? im->values[key].text : "";
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

static invar_status drop_value(importer *im, invar_key key, invar_import_kind kind, const char *why)
{
    key_value *v = &im->values[key];
    invar_status status = INVAR_OK;

    if (v->from.word)
        status = note_flag(im, kind, &v->from, why);
    else
        remove_choice_note(im->out, key);
    invar_free(v->text);
    *v = (key_value){0};
    return status;
}

/*
 * Drops folders of Megatron: those of hf-checkpoint and of save are the defaults, others cannot be
 * read.
 */
static invar_status drop_weights(importer *im)
{
    static const invar_key keys[] = {INVAR_KEY_LOAD, INVAR_KEY_REF_LOAD, INVAR_KEY_CRITIC_LOAD};
    const char *hf = text_of(im, INVAR_KEY_HF_CHECKPOINT), *save = text_of(im, INVAR_KEY_SAVE);
    size_t bytes = strlen(hf);

    while (bytes > 0 && hf[bytes - 1] == '/')
        bytes--;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *name = invar_config_schema()->keys[keys[i]].name;
        const char *path = text_of(im, keys[i]);
        invar_flag_alias what;
        bool same = bytes > 0 && strncmp(path, hf, bytes) == 0;

        if (!*path)
            continue;
        INVAR_CHECK(invar_flag_alias_find(&what, name, strlen(name)));
        if (keys[i] == INVAR_KEY_LOAD && strcmp(path, save) == 0)
            INVAR_TRY(
                drop_value(im, keys[i], INVAR_IMPORT_MOOT, "the folder of save is its default"));
        else if (same)
            INVAR_TRY(drop_value(im, keys[i], INVAR_IMPORT_MOOT,
                                 "the weights of hf-checkpoint are its default"));
        else
            INVAR_TRY(drop_value(im, keys[i], INVAR_IMPORT_LOST, what.sentence));
    }
    return INVAR_OK;
}

static bool has_flag(const invar_launch_script *s, const char *name)
{
    for (int i = 0; i < s->count; i++)
        if (s->words[i].state == INVAR_LAUNCH_SCRIPT_PLAIN && strcmp(s->words[i].text, name) == 0)
            return true;
    return false;
}

/*
 * Sets logical-tp to the number of ranks that divide a layer, so that sums have one shard per rank.
 */
static invar_status choose_logical_tp(importer *im)
{
    const char *sizes[] = {text_of(im, INVAR_KEY_TENSOR_MODEL_PARALLEL_SIZE),
                           *text_of(im, INVAR_KEY_ROLLOUT_NUM_GPUS)
                               ? text_of(im, INVAR_KEY_ROLLOUT_NUM_GPUS_PER_ENGINE)
                               : ""};
    static const char *const pieces[] = {"8", "4", "2"};

    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        if (strcmp(sizes[0], pieces[i]) == 0 || strcmp(sizes[1], pieces[i]) == 0)
            return choose_value(
                im, INVAR_KEY_LOGICAL_TP, pieces[i],
                "so many ranks can divide a layer; the sums are made of as many pieces");
    return INVAR_OK;
}

static bool is_before(const char *a, const char *b)
{
    double x, y;

    if (invar_number_parse(&x, a) == INVAR_OK && invar_number_parse(&y, b) == INVAR_OK)
        return x < y;
    invar_error_clear();
    return true; // values that are not numbers are dropped later, with the reason
}

/* Sets the profiler window: an end that is missing in the script has Miles' default. */
static invar_status choose_window(importer *im)
{
    static const invar_key ends[] = {INVAR_KEY_PROFILE_STEP_START, INVAR_KEY_PROFILE_STEP_END};
    const invar_launch_script *s = &im->out->script;
    const char *why = NULL;

    if (!im->values[ends[0]].text && !im->values[ends[1]].text)
        return INVAR_OK;
    INVAR_TRY(choose_value(im, ends[0], "10", "Miles' default"));
    INVAR_TRY(choose_value(im, ends[1], "12", "Miles' default"));
    if (!has_flag(s, "--use-pytorch-profiler") && !has_flag(s, "--profile"))
        why = "without use-pytorch-profiler Miles profiles no step, either";
    else if (!is_before(text_of(im, ends[0]), text_of(im, ends[1])))
        why = "no step lies between profile-step-start and profile-step-end, which are 10 and 12 "
              "where the script does not say them";
    for (int i = 0; why && i < 2; i++)
        INVAR_TRY(drop_value(im, ends[i], INVAR_IMPORT_MOOT, why));
    return INVAR_OK;
}

/* Adds defaults of Miles that differ here, and values for which Miles has no flag. */
static invar_status add_defaults(importer *im)
{
    const invar_launch_script *s = &im->out->script;

    INVAR_TRY(drop_weights(im));
    if (has_flag(s, "--colocate") && im->values[INVAR_KEY_ROLLOUT_NUM_GPUS].text)
        INVAR_TRY(drop_value(im, INVAR_KEY_ROLLOUT_NUM_GPUS, INVAR_IMPORT_MOOT,
                             "with colocate Miles ignores it, too"));
    if (s->async)
        INVAR_TRY(choose_value(im, INVAR_KEY_ROLLOUT_LAG, "1", "the schedule of train_async.py"));
    INVAR_TRY(choose_logical_tp(im));
    INVAR_TRY(choose_window(im));
    INVAR_TRY(choose_value(im, INVAR_KEY_DEVICE, "cuda", "Miles runs on GPUs"));
    INVAR_TRY(
        choose_value(im, INVAR_KEY_NUMERICS, "sm90",
                     "the arithmetic of an H200, which CPUs have, too; ieee is faster on those"));
    INVAR_TRY(choose_value(im, INVAR_KEY_ROLLOUT_SKIP_SPECIAL_TOKENS, "false", "Miles' default"));
    if (im->values[INVAR_KEY_USE_KL_LOSS].text ||
        (im->values[INVAR_KEY_KL_COEF].text && !is_same(text_of(im, INVAR_KEY_KL_COEF), "0")))
        INVAR_TRY(choose_value(im, INVAR_KEY_KL_LOSS_TYPE, "k1", "Miles' default"));
    if (!im->values[INVAR_KEY_LR_DECAY_STYLE].text)
        INVAR_TRY(add_note(im, INVAR_IMPORT_LOST, NULL, "--lr-decay-style",
                           "without it Megatron decays linearly over all steps, here lr is "
                           "constant: set lr-decay-style and lr-decay-iters"));
    return INVAR_OK;
}

/* ---- recipe ---------------------------------------------------------------------------------- */

/* Checks that a reward is one of the built-in ones. */
static invar_status check_reward(const importer *im, invar_key key)
{
    invar_reward reward;
    bool boxed;

    if (key != INVAR_KEY_RM_TYPE)
        return INVAR_OK;
    return invar_reward_parse(&reward, &boxed, im->values[key].text);
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

        if (!im->values[i].text)
            continue;
        status = check_reward(im, (invar_key)i);
        if (status == INVAR_OK)
            status = invar_recipe_set(recipe, schema->keys[i].name, im->values[i].text,
                                      schema->keys[i].name);
        if (status == INVAR_OK)
            continue;
        if (status != INVAR_E_INVALID)
            return status;
        invar_error_take(&reason);
        INVAR_TRY(drop_value(im, (invar_key)i, semantic ? INVAR_IMPORT_LOST : INVAR_IMPORT_MOOT,
                             reason.message));
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

    INVAR_TRY(import_words(im));
    INVAR_TRY(add_defaults(im));
    for (;;) {
        INVAR_TRY(try_recipe(&unused, im));
        if (unused == INVAR_KEY_NONE)
            return INVAR_OK;
        memcpy(why, im->out->error, sizeof why);
        INVAR_TRY(drop_value(im, unused, INVAR_IMPORT_MOOT, reason_of(why)));
    }
}

static invar_status import(invar_import *out)
{
    importer *im;
    invar_status status = INVAR_ALLOC(im, 1, "import");

    if (status == INVAR_OK) {
        memset(im, 0, sizeof *im);
        im->out = out;
        status = make_recipe(im);
        for (int i = 0; i < INVAR_KEY_COUNT; i++)
            invar_free(im->values[i].text);
        invar_free(im);
    }
    if (status != INVAR_OK)
        invar_import_release(out);
    return status;
}

invar_status invar_import_read(invar_import *out, const char *path)
{
    memset(out, 0, sizeof *out);
    INVAR_TRY(invar_launch_script_read(&out->script, path));
    return import(out);
}

invar_status invar_import_parse(invar_import *out, const char *file, const char *text, size_t bytes)
{
    memset(out, 0, sizeof *out);
    INVAR_TRY(invar_launch_script_parse(&out->script, file, text, bytes));
    return import(out);
}

void invar_import_release(invar_import *import)
{
    invar_launch_script_release(&import->script);
    invar_recipe_free(import->recipe);
    invar_free(import->notes);
    memset(import, 0, sizeof *import);
}

bool invar_import_is_complete(const invar_import *import)
{
    for (int i = 0; i < import->count; i++)
        if (import->notes[i].kind == INVAR_IMPORT_LOST)
            return false;
    return !import->error[0];
}

/* ---- file ------------------------------------------------------------------------------------ */

const char *invar_import_title(invar_import_kind kind)
{
    static const char *const titles[INVAR_IMPORT_KINDS] = {
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
            fprintf(out, " (%s:%d)", n->file, n->line);
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
