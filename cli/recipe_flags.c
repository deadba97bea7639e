/*
 * recipe_flags.c - recipe keys as command-line flags: --key value, --key=value, --switch.
 *
 * Keys are taken out of argv before the options of a command are parsed. The difficulty is to find
 * the recipe file: a word counts as the value of the flag before it if that flag needs one, and a
 * boolean key takes the next word only if it is "true" or "false". Aliases of Miles, Megatron-LM
 * and SGLang are accepted, except in flags for child programs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/recipe_flags.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/interactive.h"
#include "cli/safe_text.h"
#include "engine/config/flag_aliases.h"

#include "base/invar_banned.h"

/*
 * Returns the key of "--name" or "--name=value", or -1. With `aliases`, names of Miles, Megatron-LM
 * and SGLang are accepted; programs of other versions may not know them.
 */
static int key_of(const char *word, const char **value_out, bool aliases)
{
    char name[INVAR_RECIPE_MAX_NAME + 1];
    const char *equals;
    invar_flag_alias foreign;
    size_t bytes;
    int key;

    *value_out = NULL;
    if (strncmp(word, "--", 2) != 0)
        return -1;
    equals = strchr(word, '=');
    bytes = equals ? (size_t)(equals - word) - 2 : strlen(word) - 2;
    if (bytes > INVAR_RECIPE_MAX_NAME)
        return -1;
    memcpy(name, word + 2, bytes);
    name[bytes] = '\0';
    if (equals)
        *value_out = equals + 1;
    key = invar_recipe_find(invar_config_schema(), name);
    if (key < 0 && aliases && invar_flag_alias_find(&foreign, name, bytes))
        key = (int)foreign.key;
    return key;
}

static bool is_switch(int key)
{
    return invar_config_schema()->keys[key].type == INVAR_RECIPE_TYPE_BOOL;
}

/*
 * Finds the value of a flag without '='. A boolean key takes the next word only if it is "true" or
 * "false", or if the command has no words beside flags.
 */
static invar_status value_of(const char **out, int *used, int key, bool words, int left,
                             char **next)
{
    bool word = left > 0 && (strcmp(next[0], "true") == 0 || strcmp(next[0], "false") == 0 ||
                             (!words && next[0][0] != '-'));

    *used = 0;
    if (is_switch(key) && !word) {
        *out = "true";
        return INVAR_OK;
    }
    if (left == 0 || strncmp(next[0], "--", 2) == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--%s needs a value; one that begins with -- is given as --%s=VALUE",
                          invar_config_schema()->keys[key].name,
                          invar_config_schema()->keys[key].name);
    *out = next[0];
    *used = 1;
    return INVAR_OK;
}

/*
 * Returns how many words the option occupies, 0 for a word that names no option. `next` is the
 * following word, or NULL.
 */
static int option_words(const invar_option *options, const char *word, const char *next)
{
    size_t bytes = strncmp(word, "--", 2) == 0 ? strcspn(word + 2, "=") : 0;

    for (; options->name && bytes; options++)
        if (strlen(options->name) == bytes && strncmp(options->name, word + 2, bytes) == 0)
            return word[2 + bytes] == '=' || invar_option_takes_no_value(options, next) ? 1 : 2;
    return 0;
}

/* Fails if the word after a boolean key is not like a path and does not exist as a file. */
static invar_status check_path(const char *word, int key)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];

    if (key < 0 || strpbrk(word, "./") || invar_path_exists(word))
        return INVAR_OK;
    invar_text_quote(quote, sizeof quote, word, strlen(word));
    return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: \"%s\" is neither true or false, nor a recipe",
                      invar_config_schema()->keys[key].name, quote);
}

/* Takes the recipe out of argv: the word that is neither a flag nor the value of one. */
static invar_status take_path(const char **out, const invar_option *options, int *argc, char **argv)
{
    int alone = -1; // boolean key before this word, if it has no value

    *out = NULL;
    for (int i = 0; i < *argc;) {
        const char *value;
        int own = option_words(options, argv[i], i + 1 < *argc ? argv[i + 1] : NULL),
            key = own ? -1 : key_of(argv[i], &value, true), used = 0;

        if (!own && key < 0 && argv[i][0] == '-')
            return INVAR_OK; // an unknown flag may or may not have a value, so the search ends
        if (!own && key < 0) {
            INVAR_TRY(check_path(argv[i], alone));
            *out = argv[i];
            memmove(argv + i, argv + i + 1, (size_t)(*argc - i - 1) * sizeof *argv);
            --*argc;
            return INVAR_OK;
        }
        if (key >= 0 && !value)
            INVAR_TRY(value_of(&value, &used, key, true, *argc - i - 1, argv + i + 1));
        alone = key >= 0 && !used && !strchr(argv[i], '=') ? key : -1;
        i += own ? own : 1 + used;
    }
    return INVAR_OK;
}

static invar_status apply_flags(invar_recipe *recipe, bool words, int *argc, char **argv)
{
    const invar_recipe_schema *schema = invar_config_schema();
    int kept = 0;

    for (int i = 0; i < *argc; i++) {
        char origin[INVAR_RECIPE_MAX_NAME + 3];
        const char *value;
        int key = key_of(argv[i], &value, true), used = 0;

        if (key < 0) {
            argv[kept++] = argv[i];
            continue;
        }
        if (!value)
            INVAR_TRY(value_of(&value, &used, key, words, *argc - i - 1, argv + i + 1));
        (void)snprintf(origin, sizeof origin, "%.*s", (int)strcspn(argv[i], "="), argv[i]);
        INVAR_TRY(invar_recipe_set(recipe, schema->keys[key].name, value, origin));
        i += used;
    }
    *argc = kept;
    return INVAR_OK;
}

/* Returns true if " #" occurs outside of quotes. */
static bool has_comment(const char *text)
{
    char quote = '\0';

    for (const char *c = text; *c; c++) {
        if (quote)
            quote = *c == quote ? '\0' : quote;
        else if (*c == '\'' || *c == '"')
            quote = *c;
        else if (c[0] == ' ' && c[1] == '#')
            return true;
    }
    return false;
}

/*
 * Warns about values from the file that seem to contain a comment. A text value may contain any
 * character, so this is legal but rarely intended. The value itself may be a secret and is not
 * printed.
 */
static void warn_of_comments(const invar_recipe *recipe)
{
    char line[640];

    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry e;

        invar_recipe_entry_get(&e, recipe, i);
        if (e.source != INVAR_RECIPE_SOURCE_FILE || !has_comment(e.text))
            continue;
        (void)snprintf(line, sizeof line,
                       "warning: %.400s: the value of '%s' includes the ' #' and the text after "
                       "it; a comment needs a line of its own",
                       e.origin, e.key->name);
        invar_interactive_print(NULL, line);
    }
}

static invar_status make_recipe(invar_config *out, const char *path, int *argc, char **argv)
{
    invar_recipe *recipe = NULL;
    invar_status status;

    out->recipe = NULL;
    INVAR_TRY(invar_recipe_new(&recipe, invar_config_schema()));
    status = path ? invar_recipe_read_with_includes(recipe, path) : INVAR_OK;
    if (status == INVAR_OK)
        // commands with a recipe file have no other word
        status = apply_flags(recipe, !path, argc, argv);
    if (status != INVAR_OK) {
        invar_recipe_free(recipe);
        return status;
    }
    warn_of_comments(recipe);
    invar_config_read(out, recipe);
    return INVAR_OK;
}

invar_status invar_recipe_flags_keys(invar_config *out, int *argc, char **argv)
{
    return make_recipe(out, NULL, argc, argv);
}

static invar_status read_recipe(invar_config *out, const char **path_out,
                                const invar_option *options, int *argc, char **argv)
{
    out->recipe = NULL;
    INVAR_TRY(take_path(path_out, options, argc, argv));
    INVAR_TRY(make_recipe(out, *path_out, argc, argv));
    return invar_options_parse(options, *argc, argv);
}

invar_status invar_recipe_flags_recipe(invar_config *out, const char **path_out,
                                       const invar_option *options, int *argc, char **argv)
{
    out->recipe = NULL;
    if (*argc == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "which recipe? Give a file, such as recipes/quickstart.ini, or its keys "
                          "as flags");
    return read_recipe(out, path_out, options, argc, argv);
}

invar_status invar_recipe_flags_model(invar_config *out, const char **path_out,
                                      const invar_option *options, int *argc, char **argv)
{
    invar_recipe_entry numerics;

    INVAR_TRY(read_recipe(out, path_out, options, argc, argv));
    invar_recipe_entry_get(&numerics, out->recipe, INVAR_KEY_NUMERICS);
    if (numerics.source != INVAR_RECIPE_SOURCE_NONE)
        return INVAR_OK;
    INVAR_TRY(invar_recipe_set(out->recipe, "numerics", "ieee", "default"));
    invar_config_read(out, out->recipe);
    return INVAR_OK;
}

/* Moves the recipe keys with their values from argv to `words`; the rest stays in order. */
static invar_status move_keys(const char **words, int *count_out, const invar_option *options,
                              int *argc, char **argv)
{
    int kept = 0, taken = 0;

    for (int i = 0, count; i < *argc; i += count) {
        const char *value;
        int own = option_words(options, argv[i], i + 1 < *argc ? argv[i + 1] : NULL), used = 0;
        int key = own ? -1 : key_of(argv[i], &value, false);

        if (key >= 0 && !value)
            INVAR_TRY(value_of(&value, &used, key, true, *argc - i - 1, argv + i + 1));
        count = own ? own : 1 + used;
        for (int k = i; k < i + count && k < *argc; k++) {
            if (key >= 0)
                words[taken++] = argv[k];
            else
                argv[kept++] = argv[k];
        }
    }
    *argc = kept;
    words[taken] = NULL;
    *count_out = taken;
    return INVAR_OK;
}

invar_status invar_recipe_flags_to_argv(const char ***out, const invar_option *options, int *argc,
                                        char **argv)
{
    invar_config checked = {.recipe = NULL};
    const char **words;
    invar_status status;
    int count;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(words, (size_t)*argc + 1, "flags"));
    status = move_keys(words, &count, options, argc, argv);
    if (status == INVAR_OK)
        status = invar_recipe_flags_keys(&checked, &count, (char **)words); // all of them are keys
    invar_recipe_free(checked.recipe);
    if (status == INVAR_OK)
        *out = words;
    else
        invar_free((void *)words);
    return status;
}

static const char *name_at(int index)
{
    const invar_recipe_schema *schema = invar_config_schema();

    return index < schema->count ? schema->keys[index].name : NULL;
}

static const char *instead_of(const char *name, size_t length)
{
    return invar_recipe_replacement(invar_config_schema(), name, length);
}

static const char *foreign_to(const char *name, size_t length)
{
    invar_flag_alias foreign;

    return invar_flag_alias_find(&foreign, name, length) ? foreign.sentence : NULL;
}

invar_option_names invar_recipe_flags_names = {name_at, instead_of, foreign_to};

/* Formats the possible values: "fp32|bf16", "true|false", "0 to 256", "NUMBER", "TEXT". */
static void format_values(char *out, size_t size, const invar_recipe_key *k)
{
    bool ints = k->int_min != 0 || k->int_max != 0, reals = k->float_min != 0 || k->float_max != 0;

    switch (k->type) {
    case INVAR_RECIPE_TYPE_BOOL: (void)snprintf(out, size, "true|false"); break;
    case INVAR_RECIPE_TYPE_ENUM:
    case INVAR_RECIPE_TYPE_STRING:
        if (k->choices)
            invar_choices_text(out, size, k->choices, "|", "|");
        else
            (void)snprintf(out, size, "TEXT");
        break;
    case INVAR_RECIPE_TYPE_INT:
        (void)snprintf(out, size, ints ? "%" PRId64 " to %" PRId64 : "INTEGER", k->int_min,
                       k->int_max);
        break;
    case INVAR_RECIPE_TYPE_FLOAT:
        (void)snprintf(out, size, reals ? "%g to %g" : "NUMBER", k->float_min, k->float_max);
        break;
    }
}

void invar_recipe_flags_describe(char out[INVAR_RECIPE_FLAGS_TEXT_SIZE], const invar_recipe_key *k)
{
    const char *fallback = !k->default_text ? "" : k->default_text[0] ? k->default_text : "empty";
    char values[INVAR_RECIPE_FLAGS_TEXT_SIZE - 200];

    format_values(values, sizeof values, k);
    (void)snprintf(out, INVAR_RECIPE_FLAGS_TEXT_SIZE, "%s (%s%s), %s", values,
                   k->default_text ? "default " : "must be given", fallback,
                   invar_recipe_effect_name(k->effect));
}

static void print_key(const invar_recipe_key *k)
{
    char head[INVAR_RECIPE_FLAGS_TEXT_SIZE];

    invar_recipe_flags_describe(head, k);
    invar_safe_text_wrap(stdout, head, printf("  --%s ", k->name));
    invar_safe_text_wrap(stdout, k->doc, printf("      "));
}

void invar_recipe_flags_help(void)
{
    const invar_recipe_schema *schema = invar_config_schema();

    for (int i = 0; i < schema->count && !invar_help_has_sink(); i++) {
        const invar_recipe_key *k = &schema->keys[i];
        if (i == 0 || strcmp(k->section, schema->keys[i - 1].section) != 0)
            printf("\n[%s]\n", k->section);
        print_key(k);
    }
}

static int find_key(const char *name)
{
    return invar_recipe_find(invar_config_schema(), strncmp(name, "--", 2) == 0 ? name + 2 : name);
}

bool invar_recipe_flags_is_key(const char *name)
{
    return find_key(name) >= 0;
}

void invar_recipe_flags_help_key(const char *name)
{
    const invar_recipe_key *key = &invar_config_schema()->keys[find_key(name)];

    printf("[%s]\n", key->section);
    print_key(key);
}
