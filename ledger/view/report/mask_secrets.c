/*
 * mask_secrets.c - masks secrets in the texts of a report.
 *
 * A secret is recognized by the text before it or by its own form, and becomes "***":
 *
 *     WANDB_API_KEY=... HF_TOKEN=...     names in capitals that end with KEY, TOKEN, SECRET ...
 *     PGPASSWORD=...                     names that end with a password, also within a word
 *     api-key=... --password ...         some names in any case, also before a blank
 *     --key=... --judge-token ...        names of options with such an end, except keys of recipes
 *     ?key=... &token=...                shorter names in the query of a URL
 *     token: ... "password": "..."       the names above before a colon, as in YAML and JSON
 *     Authorization=... Bearer ...       the last word
 *     https://user:password@host         user and password
 *     user:password@host                 the password, up to the last @ of the word
 *     Authorization%3D...                the signs above, percent-encoded as in a URL
 *     {"key": "..."}                     a member of JSON
 *     sk-... ghp_... eyJ...              words that begin like keys of well-known services
 *     hooks.slack.com/services/...       the path of a webhook
 *
 * It cannot recognize every secret: the user has to check a page before sharing it, or leave
 * commands out (redact.c).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "ledger/view/report/internal.h"

#include "base/invar_banned.h"

#define MASK "***"

typedef struct piece {
    const char *text;
    size_t bytes;
} piece;

/*
 * Returns the first character, decoded if it is percent-encoded ("%3D"). *bytes_out is its encoded
 * length, 0 at the end of the text.
 */
static char first_of(size_t *bytes_out, piece text)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *high, *low;

    *bytes_out = text.bytes > 0;
    if (text.bytes < 3 || text.text[0] != '%' || !text.text[1] || !text.text[2])
        return text.bytes > 0 ? text.text[0] : '\0';
    high = strchr(digits, text.text[1]);
    low = strchr(digits, text.text[2]);
    if (!high || !low)
        return '%';
    *bytes_out = 3;
    return (char)((high - digits) % 16 * 16 + (low - digits) % 16);
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

static char to_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c == '-' ? '_' : c;
}

/* True if the name ends with this word, which has lower-case letters and _. */
static bool has_suffix(piece name, const char *word)
{
    size_t bytes = strlen(word);

    for (size_t i = 0; i < bytes && bytes <= name.bytes; i++)
        if (to_lower(name.text[name.bytes - bytes + i]) != word[i])
            return false;
    return bytes <= name.bytes;
}

/* True if the name is this word or ends with _ and this word. */
static bool has_last_word(piece name, const char *word)
{
    size_t bytes = strlen(word);

    return has_suffix(name, word) &&
           (bytes == name.bytes || to_lower(name.text[name.bytes - bytes - 1]) == '_');
}

static bool equals_word(piece name, const char *word)
{
    return name.bytes == strlen(word) && has_suffix(name, word);
}

static bool has_last_word_of(piece name, const char *const *words)
{
    for (; *words; words++)
        if (has_last_word(name, *words))
            return true;
    return false;
}

/*
 * True if a name before '=' is that of a secret. Short words count only in capitals, as in names of
 * variables, because `input-key` and `stop-token` are keys of recipes.
 */
static bool is_secret(piece name)
{
    static const char *const any[] = {"api_key",     "apikey",        "secret",       "secret_key",
                                      "private_key", "access_key",    "access_token", "auth_token",
                                      "hf_token",    "authorization", "cookie",       NULL};
    static const char *const capitals[] = {"key",  "token", "secret",      "password",
                                           "pass", "pwd",   "credentials", NULL};

    bool small = false; // the name has small letters

    for (size_t i = 0; i < name.bytes; i++)
        small |= name.text[i] >= 'a' && name.text[i] <= 'z';
    return has_suffix(name, "password") || has_suffix(name, "passwd") ||
           has_suffix(name, "passphrase") || has_last_word_of(name, any) ||
           equals_word(name, "token") || (!small && has_last_word_of(name, capitals));
}

/* True if a name in the query of a URL is that of a secret; keys of recipes do not occur there. */
static bool is_query_secret(piece name)
{
    static const char *const words[] = {
        "key",       "token",       "secret", "pwd",     "pass",        "sig", "auth",
        "signature", "credentials", "pat",    "webhook", "webhook_url", NULL};

    return has_last_word_of(name, words);
}

/* True if the name of an option is that of a secret, and not that of a field or special token. */
static bool is_option_secret(piece name)
{
    static const char *const fields[] = {"input_key",  "label_key", "metadata_key", "tool_key",
                                         "reward_key", "sort_key",  "public_key",   "stop_token",
                                         "eos_token",  "bos_token", "pad_token",    "unk_token",
                                         NULL};

    return is_query_secret(name) && !has_last_word_of(name, fields);
}

static piece rest_of(piece text, size_t from)
{
    return (piece){text.text + from, text.bytes - from};
}

/* Returns the number of bytes before the first of `stops` or a NUL. */
static size_t bytes_until(piece text, const char *stops)
{
    size_t i = 0;

    while (i < text.bytes && text.text[i] != '\0' && !strchr(stops, text.text[i]))
        i++;
    return i;
}

/* Returns the value at the beginning: up to its closing quote, or to the end of the word. */
static piece value_at(piece text)
{
    char quote = text.bytes > 0 ? text.text[0] : '\0';

    if (quote == '\'' || quote == '"') {
        text = rest_of(text, 1);
        return (piece){text.text, bytes_until(text, (const char[]){quote, '\0'})};
    }
    return (piece){text.text, bytes_until(text, " \t\r\n\"'&;,")};
}

static bool is_number(piece value)
{
    size_t i = 0;

    while (i < value.bytes && value.text[i] >= '0' && value.text[i] <= '9')
        i++;
    return i == value.bytes;
}

static bool has_prefix(piece text, const char *word)
{
    return text.bytes >= strlen(word) && memcmp(text.text, word, strlen(word)) == 0;
}

/*
 * Returns the password if the text begins with "PASSWORD@HOST": all up to the last @ before a host.
 * "image:tag@sha256:..." has no password.
 */
static piece password_at(piece text)
{
    size_t at = bytes_until(text, " \t\r\n\"'");

    while (at-- > 0) {
        piece host = rest_of(text, at + 1);
        if (text.text[at] == '@' && host.bytes > 0 && is_name(host.text[0]) &&
            !has_prefix(host, "sha256:"))
            return (piece){text.text, at};
    }
    return (piece){text.text, 0};
}

/*
 * Returns user and password of a URL if the text begins with "://" and has them. The password may
 * contain a '/' if the text before it cannot be a host with a port.
 */
static piece user_of_url(piece text)
{
    piece place = rest_of(text, 3), password = {place.text, 0};
    size_t host = bytes_until(place, "/?# \t\r\n\"'"), colon = bytes_until(place, ":"),
           bytes = host;

    while (bytes > 0 && place.text[bytes - 1] != '@')
        bytes--;
    if (bytes == 0 && colon < host && !is_number((piece){place.text + colon + 1, host - colon - 1}))
        password = password_at(rest_of(place, colon + 1));
    if (password.bytes > 0)
        bytes = colon + 1 + password.bytes + 1;
    return (piece){place.text, bytes > 1 ? bytes - 1 : 0};
}

/*
 * Returns the secret of an Authorization value: the second word of "Basic abc", or the only word.
 */
static piece credentials_at(piece text)
{
    piece scheme = value_at(text), rest = rest_of(text, (size_t)(scheme.text - text.text));
    bool quoted = rest.text != text.text;
    size_t first = bytes_until(rest, " \t\r\n\"'");

    if (first > 0 && first + 1 < rest.bytes && rest.text[first] == ' ' &&
        (quoted || equals_word((piece){rest.text, first}, "basic") ||
         equals_word((piece){rest.text, first}, "bearer") ||
         equals_word((piece){rest.text, first}, "token")))
        return value_at(rest_of(rest, first + 1));
    return scheme;
}

/* True if a part between '-' and '_' is too long, or has too many digits, for a natural word. */
static bool looks_random(piece name)
{
    size_t bytes = 0, digits = 0;

    for (size_t i = 0; i < name.bytes; i++) {
        bool part = is_name(name.text[i]) && !strchr("_-", name.text[i]);
        bytes = part ? bytes + 1 : 0;
        digits = part ? digits + (name.text[i] <= '9') : 0;
        if (bytes >= 16 || (bytes >= 8 && digits > 0 && digits < bytes))
            return true;
    }
    return false;
}

static size_t name_at(piece text)
{
    size_t i = 0;

    while (i < text.bytes && is_name(text.text[i]))
        i++;
    return i;
}

/*
 * Returns the length of a JSON Web Token, three parts with dots between them; 0 if it is not one.
 */
static size_t web_token_at(piece text)
{
    size_t bytes = 0;

    if (!has_prefix(text, "eyJ"))
        return 0;
    for (int dots = 0;; dots++) {
        size_t part = name_at(rest_of(text, bytes));
        bytes += part;
        if (part == 0 || dots == 2)
            return part > 0 ? bytes : 0;
        if (bytes == text.bytes || text.text[bytes] != '.')
            return 0;
        bytes++;
    }
}

/* Returns the secret at the beginning that is recognized by its form; empty if there is none. */
static piece secret_of_form(piece text)
{
    static const char *const prefixes[] = {"ghp_",  "gho_",  "github_pat_", "AKIA",
                                           "xoxa-", "xoxb-", "xoxp-",       "glpat-"};
    static const char webhook[] = "hooks.slack.com/services/";
    const piece name = {text.text, name_at(text)};

    if (has_prefix(text, webhook)) {
        piece path = rest_of(text, sizeof webhook - 1);
        return (piece){path.text, bytes_until(path, " \t\r\n\"'<>,;)")};
    }
    // words of recipes and names of files may also begin with sk- or hf_
    if ((has_prefix(name, "sk-") || has_prefix(name, "hf_")) && looks_random(rest_of(name, 3)))
        return name;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (has_prefix(name, prefixes[i]) && name.bytes >= strlen(prefixes[i]) + 8)
            return name;
    return (piece){text.text, web_token_at(text)};
}

/*
 * Returns the value after a name and '=' or ':'; a colon may be followed by blanks. The number in
 * "token: 5" is a count of tokens and no secret; a number after any other name may be a secret.
 */
static piece value_after(piece name, piece text, bool colon)
{
    piece value;

    while (colon && text.bytes > 0 && text.text[0] == ' ')
        text = rest_of(text, 1);
    value = has_last_word(name, "authorization") ? credentials_at(text) : value_at(text);
    return colon && is_number(value) && equals_word(name, "token") ? (piece){text.text, 0} : value;
}

/*
 * Returns the secret at the beginning of the text after a name; empty if there is none. `before` is
 * the character before the name.
 */
static piece secret_after(piece name, piece text, char before)
{
    const piece none = {text.text, 0};
    bool option = name.bytes > 2 && name.text[0] == '-';
    bool query = before == '?' || before == '&';
    size_t bytes;
    char next = first_of(&bytes, text);
    piece rest = rest_of(text, bytes);

    if (text.bytes > 3 && memcmp(text.text, "://", 3) == 0)
        return user_of_url(text);
    while (name.bytes > 0 && name.text[0] == '-')
        name = rest_of(name, 1);
    option = option && (is_secret(name) || is_option_secret(name));
    if (next == '=' && (option || is_secret(name) || (query && is_query_secret(name))))
        return value_after(name, rest, false);
    if (next == ' ' && (option || equals_word(name, "bearer"))) {
        while (has_prefix(rest, " "))
            rest = rest_of(rest, 1);
        return has_prefix(rest, "--") ? (piece){rest.text, 0} : value_at(rest);
    }
    if ((next == '"' || next == '\'') && rest.bytes > 0 && rest.text[0] == ':' && is_secret(name))
        return value_after(name, rest_of(rest, 1), true);
    if (next == '"' && before == '"' && equals_word(name, "key") && has_prefix(rest, ":")) {
        // the value of a member "key" of JSON may be a plain name, such as a recipe key
        rest = rest_of(rest, 1);
        rest = rest_of(rest, has_prefix(rest, " "));
        piece value = value_at(rest);
        return value.text != rest.text && looks_random(value) ? value : (piece){rest.text, 0};
    }
    if (next != ':')
        return none;
    if (is_secret(name))
        return value_after(name, rest, true);
    // "host:/path", "git@host:path", "//host:port/path"
    if (has_prefix(rest, "/") || before == '@' ||
        (before == '/' && is_number((piece){rest.text, bytes_until(rest, "/@")})))
        return none;
    return password_at(rest);
}

/* Returns the first secret of a text; empty if there is none. */
static piece find_secret(piece text)
{
    char before = '\0';

    while (text.bytes > 0) {
        piece name = {text.text, name_at(text)};
        if (name.bytes == 0) {
            size_t bytes;
            before = first_of(&bytes, text);
            text = rest_of(text, bytes);
            continue;
        }
        piece secret = secret_of_form(text);
        if (secret.bytes > 0)
            return secret;
        text = rest_of(text, name.bytes);
        secret = secret_after(name, text, before);
        before = '\0';
        if (secret.bytes > 0)
            return secret;
    }
    return (piece){text.text, 0};
}

invar_status invar_report_mask(char **out, size_t *bytes_out, const char *text, size_t bytes)
{
    piece rest = {text, bytes}, secret = find_secret(rest);
    size_t used = 0;
    char *copy;

    *out = NULL;
    if (secret.bytes == 0)
        return INVAR_OK;
    // a secret and the text by which it is recognized have at least 3 bytes together
    INVAR_TRY(INVAR_ALLOC_SIZED(copy, bytes + 1, strlen(MASK), "a text"));
    for (; secret.bytes > 0; secret = find_secret(rest)) {
        size_t before = (size_t)(secret.text - rest.text);
        memcpy(copy + used, rest.text, before);
        memcpy(copy + used + before, MASK, strlen(MASK));
        used += before + strlen(MASK);
        rest = rest_of(rest, before + secret.bytes);
    }
    memcpy(copy + used, rest.text, rest.bytes);
    *out = copy;
    *bytes_out = used + rest.bytes;
    return INVAR_OK;
}
