/*
 * combinations.c - invar help combinations: lists the pairs of recipe keys that are rejected.
 *
 * No list of such pairs is kept. Each pair of features.def becomes a recipe and is passed to
 * invar_admission_check, which decides about every run before it starts. A pair is rejected if no
 * recipe with both keys is accepted: with the further keys that both need, in either order of
 * precedence, with those of one of them, and without any; each of these also with the keys of every
 * INVAR_ALSO.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/combinations/combinations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/safe_text.h"
#include "engine/config/config.h"
#include "engine/run/admission.h"
#include "engine/run/context/run_context.h"
#include "engine/run/train_settings.h"

#include "base/invar_banned.h"

#define RANKS "ranks" /* number of ranks, which is not a recipe key */
#define ORIGIN "pair" /* origin of a key in messages of the checks */
#define NEXT "; "     /* separator between keys */
#define EQUALS " = "  /* separator between a key and its value */

typedef struct feature {
    const char *name, *needs;
} feature;

/* Keys of a base or a need that apply to one kind of recipe, or keys of a folder's model. */
typedef struct keys_entry {
    const char *word, *kind, *keys;
} keys_entry;

#define INVAR_BASE(...)
#define INVAR_NEED(...)
#define INVAR_ALSO(...)
#define INVAR_MODEL(...)
#define INVAR_FEATURE(NAME, NEEDS) {NAME, NEEDS},
static const feature features[] = {
#include "cli/combinations/features.def"
};
#undef INVAR_FEATURE
#define INVAR_FEATURE(...)

#undef INVAR_BASE
#define INVAR_BASE(KIND, KEYS) {"", KIND, KEYS},
static const keys_entry bases[] = {
#include "cli/combinations/features.def"
};
#undef INVAR_BASE
#define INVAR_BASE(...)

#undef INVAR_NEED
#define INVAR_NEED(WORD, KIND, KEYS) {WORD, KIND, KEYS},
static const keys_entry needs[] = {
#include "cli/combinations/features.def"
};
#undef INVAR_NEED
#define INVAR_NEED(...)

#undef INVAR_ALSO
#define INVAR_ALSO(NEEDS) {"", NEEDS},
static const feature alternatives[] = {
    {"", ""}, // no further keys
#include "cli/combinations/features.def"
};
#undef INVAR_ALSO
#define INVAR_ALSO(...)

#undef INVAR_MODEL
#define INVAR_MODEL(FOLDER, KEYS) {FOLDER, "", KEYS},
static const keys_entry folders[] = {
#include "cli/combinations/features.def"
};

enum {
    FEATURES = sizeof features / sizeof *features,
    BASES = sizeof bases / sizeof *bases,
    NEEDS = sizeof needs / sizeof *needs,
    ALTERNATIVES = sizeof alternatives / sizeof *alternatives,
    FOLDERS = sizeof folders / sizeof *folders,
    PARTS = 3 /* a recipe combines one of the alternatives and a pair of features */
};

/* Context shared by the recipes of all pairs. */
typedef struct pairs_context {
    invar_config config;                 /* recipe of the current pair, and the last model's keys */
    invar_run_context sessions[FOLDERS]; /* models of all folders */
    int count;                           /* number of open sessions */
} pairs_context;

/* ---- the recipe of a pair -------------------------------------------------------------------- */

/* A recipe under construction. The first value of a key wins. */
typedef struct recipe_draft {
    invar_recipe *recipe;
    bool set[INVAR_KEY_COUNT];
    bool folder; /* the model comes from a folder */
    bool file;   /* the data comes from a file */
    int ranks;   /* 0 if no feature sets a number */
} recipe_draft;

static bool is_kind(const recipe_draft *d, const char *kind)
{
    return strcmp(kind, "all") == 0 || strcmp(kind, d->folder ? "folder" : "own") == 0 ||
           strcmp(kind, d->file ? "file" : "task") == 0;
}

static invar_status set_key(recipe_draft *d, const char *name, const char *value)
{
    int key = invar_recipe_find(invar_config_schema(), name);

    if (strcmp(name, RANKS) == 0) {
        d->ranks = (int)strtol(value, NULL, 10);
        return INVAR_OK;
    }
    INVAR_CHECK(key >= 0);
    if (d->set[key])
        return INVAR_OK;
    d->set[key] = true;
    return invar_recipe_set(d->recipe, name, value, ORIGIN);
}

/* Copies the next of several keys or words. Returns false at the end. */
static bool next_key(char out[256], const char **cursor)
{
    const char *end = strstr(*cursor, NEXT);
    size_t bytes = end ? (size_t)(end - *cursor) : strlen(*cursor);

    INVAR_CHECK(bytes < 256);
    memcpy(out, *cursor, bytes);
    out[bytes] = '\0';
    *cursor += bytes + (end ? strlen(NEXT) : 0);
    return bytes > 0;
}

static invar_status set_keys(recipe_draft *d, const char *keys)
{
    char name[256], *value;

    while (next_key(name, &keys)) {
        value = strstr(name, EQUALS);
        INVAR_CHECK(value != NULL);
        *value = '\0';
        INVAR_TRY(set_key(d, name, value + strlen(EQUALS)));
    }
    return INVAR_OK;
}

/* Sets the keys of the entries that a word names, for the kind of this recipe. */
static invar_status set_entries(recipe_draft *d, const keys_entry *entries, int count,
                                const char *word)
{
    for (int i = 0; i < count; i++)
        if (strcmp(entries[i].word, word) == 0 && is_kind(d, entries[i].kind))
            INVAR_TRY(set_keys(d, entries[i].keys));
    return INVAR_OK;
}

static void set_kind(recipe_draft *d, const char *wanted)
{
    char word[256];

    while (next_key(word, &wanted)) {
        d->file = d->file || strcmp(word, "file") == 0;
        d->folder = d->folder || d->file || strcmp(word, "folder") == 0;
    }
}

static invar_status set_needs(recipe_draft *d, const char *wanted)
{
    char word[256];

    while (next_key(word, &wanted))
        INVAR_TRY(strstr(word, EQUALS) ? set_keys(d, word) : set_entries(d, needs, NEEDS, word));
    return INVAR_OK;
}

static invar_status write_features(recipe_draft *d, const feature *const parts[PARTS])
{
    for (int i = 0; i < PARTS; i++)
        set_kind(d, parts[i]->needs);
    for (int i = 0; i < PARTS; i++)
        INVAR_TRY(set_keys(d, parts[i]->name));
    for (int i = 0; i < PARTS; i++)
        INVAR_TRY(set_needs(d, parts[i]->needs));
    return set_entries(d, bases, BASES, "");
}

/* ---- models ---------------------------------------------------------------------------------- */

static invar_status open_model(invar_run_context *out, invar_config *config, const char *keys)
{
    recipe_draft d = {.recipe = config->recipe};

    INVAR_TRY(invar_recipe_reset(d.recipe));
    INVAR_TRY(set_keys(&d, keys));
    INVAR_TRY(set_entries(&d, bases, BASES, ""));
    return invar_run_context_open(out, invar_config_read(config, d.recipe),
                                  INVAR_RUN_CONTEXT_NO_WEIGHTS | INVAR_RUN_CONTEXT_ANY_DEVICE);
}

static invar_status open_context(pairs_context *out)
{
    INVAR_TRY(invar_recipe_new(&out->config.recipe, invar_config_schema()));
    for (; out->count < FOLDERS; out->count++)
        INVAR_TRY(open_model(&out->sessions[out->count], &out->config, folders[out->count].keys));
    return INVAR_OK;
}

static void close_context(pairs_context *s)
{
    while (s->count > 0)
        invar_run_context_close(&s->sessions[--s->count]);
    invar_recipe_free(s->config.recipe);
}

/* Returns the model of a folder, or NULL for any other path. */
static const invar_model_spec *find_model(const pairs_context *s, const char *path)
{
    for (int i = 0; i < FOLDERS; i++)
        if (strcmp(path, folders[i].word) == 0)
            return &s->sessions[i].spec;
    return NULL;
}

/*
 * Returns the model of the actor. For a model without a folder this is a folder's model with or
 * without experts, because the rules distinguish nothing else.
 */
static const invar_model_spec *find_actor(const pairs_context *s, const invar_config *config)
{
    const invar_model_spec *named = find_model(s, config->hf_checkpoint);
    int i = 0;

    while (!named && (s->sessions[i].spec.experts.count > 0) != (config->num_experts > 0))
        i++;
    return named ? named : &s->sessions[i].spec;
}

/* ---- the decision ---------------------------------------------------------------------------- */

/* Returns the smallest number of ranks of the layout. Contradictory layouts are rejected later. */
static int count_ranks(const recipe_draft *d, const invar_config *config)
{
    invar_rank_role_sizes sides;
    int least;

    if (invar_train_settings_roles(&sides, config) != INVAR_OK) {
        invar_error_clear();
        return 0;
    }
    least = invar_layout_model_ranks(&sides.train) + sides.rollout_ranks;
    return d->ranks > least ? d->ranks : least;
}

/*
 * Returns a further model if the recipe names one with another shape than the actor; *out holds its
 * spec.
 */
static const invar_model_spec *find_second_model(invar_model_spec *out, const invar_config *config,
                                                 const pairs_context *s, const char *path)
{
    const invar_model_spec *named = find_model(s, path);

    if (!named || named == find_actor(s, config))
        return NULL;
    *out = *named;
    out->logical_tp = config->logical_tp;
    out->logical_etp = config->logical_etp;
    return out;
}

static invar_status check_admission(const recipe_draft *d, const pairs_context *s)
{
    invar_config config;
    const invar_config *c = invar_config_read(&config, d->recipe);
    invar_model_spec actor = *find_actor(s, c), reference, teacher, critic;
    const invar_admission facts = {.config = c,
                                   .ranks = count_ranks(d, c),
                                   .actor = &actor,
                                   .reference = find_second_model(&reference, c, s, c->ref_load),
                                   .teacher =
                                       find_second_model(&teacher, c, s, c->opd_teacher_load),
                                   .critic = find_second_model(&critic, c, s, c->critic_load)};

    INVAR_TRY(invar_admission_check(&(invar_admission){.config = c}));
    INVAR_TRY(invar_run_context_complete_spec(&actor, c));
    return invar_admission_check(&facts);
}

static invar_status try_recipe(const pairs_context *s, const feature *const parts[PARTS])
{
    recipe_draft d = {.recipe = s->config.recipe};

    INVAR_TRY(invar_recipe_reset(d.recipe));
    INVAR_TRY(write_features(&d, parts));
    return check_admission(&d, s);
}

static int key_bytes(const feature *of)
{
    return (int)strcspn(of->name, " ");
}

static bool same_key(const feature *a, const feature *b)
{
    return key_bytes(a) == key_bytes(b) && strncmp(a->name, b->name, (size_t)key_bytes(a)) == 0;
}

/* *out is true if the key is among the needs of a feature and is not the feature itself. */
static invar_status find_need(bool *out, const pairs_context *s, const feature *of, const char *key)
{
    int index = invar_recipe_find(invar_config_schema(), key);
    recipe_draft d = {.recipe = s->config.recipe};

    INVAR_TRY(invar_recipe_reset(d.recipe));
    set_kind(&d, of->needs);
    INVAR_TRY(set_needs(&d, of->needs));
    *out = index >= 0 && d.set[index] && !same_key(of, &(feature){key, ""});
    return INVAR_OK;
}

/*
 * Prints the pair and the reason without the origin of the key. The reason may name a key that is
 * not in the pair but needed by one of its features.
 */
static invar_status show_refusal(const pairs_context *s, const feature *const pair[2])
{
    char line[INVAR_ERROR_MESSAGE_SIZE + 512], key[64] = "", needs_it[160] = "";
    invar_error reason;
    const char *why = reason.message;
    bool needed = false;

    invar_error_take(&reason);
    if (strncmp(why, ORIGIN ": ", strlen(ORIGIN ": ")) == 0)
        why += strlen(ORIGIN ": ");
    if (*why == '\'')
        (void)snprintf(key, sizeof key, "%.*s", (int)strcspn(why + 1, "'"), why + 1);
    for (int i = 0; i < 2 && !needed; i++) {
        INVAR_TRY(find_need(&needed, s, pair[i], key));
        if (needed)
            (void)snprintf(needs_it, sizeof needs_it, "%.*s needs %s: ", key_bytes(pair[i]),
                           pair[i]->name, key);
    }
    (void)snprintf(line, sizeof line, "%s with %s: %s%s", pair[0]->name, pair[1]->name, needs_it,
                   why);
    invar_safe_text_wrap(stdout, line, 0);
    return INVAR_OK;
}

static bool is_refusal(invar_status status)
{
    return status == INVAR_E_INVALID || status == INVAR_E_UNSUPPORTED;
}

/* Returns INVAR_OK if a recipe of the pair is accepted, otherwise the error of the first recipe. */
static invar_status try_pair(const pairs_context *s, const feature *a, const feature *b)
{
    const feature bare_a = {a->name, ""}, bare_b = {b->name, ""};
    const feature *const pairs[][2] = {
        {a, b}, {b, a}, {a, &bare_b}, {&bare_a, b}, {&bare_a, &bare_b}};
    const int count = (int)(sizeof pairs / sizeof *pairs);
    invar_error first;
    invar_status status = INVAR_OK;

    for (int i = 0; i < count * ALTERNATIVES; i++) {
        const feature *const *pair = pairs[i % count];
        status =
            try_recipe(s, (const feature *[PARTS]){&alternatives[i / count], pair[0], pair[1]});
        if (!is_refusal(status))
            return status;
        if (i == 0)
            invar_error_take(&first);
        invar_error_clear();
    }
    invar_error_put(&first);
    return status;
}

static invar_status show_pairs(const pairs_context *s)
{
    int64_t pairs = 0, refused = 0;
    invar_status status;

    for (int i = 0; i < FEATURES; i++)
        for (int k = i + 1; k < FEATURES; k++) {
            if (same_key(&features[i], &features[k]))
                continue;
            pairs++;
            status = try_pair(s, &features[i], &features[k]);
            if (status == INVAR_OK)
                continue;
            if (!is_refusal(status))
                return status;
            INVAR_TRY(show_refusal(s, (const feature *[]){&features[i], &features[k]}));
            refused++;
        }
    printf("\n%lld of %lld pairs of %d features are refused. Each was tried with several sets of "
           "other keys. train --dry-run decides about a recipe.\n",
           (long long)refused, (long long)pairs, FEATURES);
    return INVAR_OK;
}

invar_status invar_combinations_show(void)
{
    pairs_context s = {.count = 0};
    invar_status status = open_context(&s);

    if (status == INVAR_OK)
        status = show_pairs(&s);
    close_context(&s);
    return status;
}
