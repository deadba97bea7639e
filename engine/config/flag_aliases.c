/*
 * flag_aliases.c - finds flags of Miles, Megatron-LM and SGLang in the tables.
 *
 * A full name in flag_aliases.def is more specific than a key of the same name, and a key more
 * specific than a prefix ("name*") in flag_aliases.def.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/flag_aliases.h"

#include <string.h>

#include "base/text.h"

#include "base/invar_banned.h"

typedef struct alias_row {
    const char *flags;
    invar_flag_alias_kind how;
    const char *what;
    const char *sentence;
} alias_row;

static const alias_row rows[] = {
#define INVAR_ALIAS(FLAGS, HOW, WHAT, SENTENCE) {FLAGS, INVAR_FLAG_ALIAS_##HOW, WHAT, SENTENCE},
#include "engine/config/flag_aliases.def"
#undef INVAR_ALIAS
};

enum { ROWS = sizeof rows / sizeof *rows };

static void fill_alias(invar_flag_alias *out, const alias_row *r)
{
    *out = (invar_flag_alias){r->how, INVAR_KEY_NONE, NULL, r->sentence};
    if (r->how < INVAR_FLAG_ALIAS_ONLY)
        out->key = (invar_key)invar_recipe_find(invar_config_schema(), r->what);
    else if (r->how == INVAR_FLAG_ALIAS_ONLY)
        out->only = r->what;
}

bool invar_flag_alias_row(invar_flag_alias *out, const char **flags_out, int index)
{
    if (index >= ROWS)
        return false;
    fill_alias(out, &rows[index]);
    *flags_out = rows[index].flags;
    return true;
}

/* Returns true if the row lists the flag: by its full name, or by a prefix "name*". */
static bool row_matches(const alias_row *r, const char *name, size_t length, bool whole)
{
    const char *cursor = r->flags, *word;
    size_t bytes;

    while (invar_text_item(&word, &bytes, &cursor, ' ')) {
        bool begins = word[bytes - 1] == '*';
        if (whole && !begins && bytes == length && memcmp(word, name, bytes) == 0)
            return true;
        if (!whole && begins && bytes - 1 <= length && memcmp(word, name, bytes - 1) == 0)
            return true;
    }
    return false;
}

static const alias_row *find_row(const char *name, size_t length, bool whole)
{
    for (int i = 0; i < ROWS; i++)
        if (row_matches(&rows[i], name, length, whole))
            return &rows[i];
    return NULL;
}

/* Finds the key with this name, else the first key with this flag of Miles. */
static invar_key find_key(const char *name, size_t length)
{
    const invar_recipe_schema *schema = invar_config_schema();

    for (int own = 1; own >= 0; own--)
        for (int i = 0; i < schema->count; i++) {
            const char *flag = own ? schema->keys[i].name : invar_config_miles((invar_key)i);
            if (strlen(flag) == length && memcmp(flag, name, length) == 0)
                return (invar_key)i;
        }
    return INVAR_KEY_NONE;
}

bool invar_flag_alias_find(invar_flag_alias *out, const char *name, size_t length)
{
    const alias_row *r = length ? find_row(name, length, true) : NULL;
    invar_key key = r || !length ? INVAR_KEY_NONE : find_key(name, length);

    if (key != INVAR_KEY_NONE) {
        *out = (invar_flag_alias){INVAR_FLAG_ALIAS_KEY, key, NULL, ""};
        return true;
    }
    if (!r && length)
        r = find_row(name, length, false);
    if (r)
        fill_alias(out, r);
    return r;
}
