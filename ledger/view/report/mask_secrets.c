/*
 * mask_secrets.c - secrets in the text of a report, known by what is before them or by their form.
 *
 * Each becomes "***":
 *
 *     WANDB_API_KEY=... HF_TOKEN=...     names in capitals that end with KEY, TOKEN, SECRET ...
 *     PGPASSWORD=...                     names that end with a password, also within a word
 *     api-key=... --password ...         some names in any letters, also before a blank
 *     --key=... --judge-token ...        names of options that end so, except keys of recipes
 *     ?key=... &token=...                shorter names in the query of a URL
 *     token: ... "password": "..."       the names above before a colon, as in YAML and JSON
 *     Authorization=... Bearer ...       the last word
 *     https://user:password@host         all that stands before the @
 *     user:password@host                 the password, up to the last @ of the word
 *     Authorization%3D...                the signs above as a URL writes them
 *     {"key": "..."}                     a member of JSON
 *     sk-... ghp_... eyJ...              words that begin as keys of well-known services do
 *     hooks.slack.com/services/...       the path of a webhook
 *
 * It cannot know every secret: who shares a page looks at it, or leaves commands out (redact.c).
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

/* The first character, which a URL may have as "%3D"; *bytes_out: its length; 0 at the end. */
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

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c == '-' ? '_' : c;
}

/* Whether the name ends with this word (small letters and _). */
static bool ends(piece name, const char *word)
{
    size_t bytes = strlen(word);

    for (size_t i = 0; i < bytes && bytes <= name.bytes; i++)
        if (lower(name.text[name.bytes - bytes + i]) != word[i])
            return false;
    return bytes <= name.bytes;
}

/* Whether the name ends with this word, which begins there or after a _. */
static bool ends_with(piece name, const char *word)
{
    size_t bytes = strlen(word);

    return ends(name, word) &&
           (bytes == name.bytes || lower(name.text[name.bytes - bytes - 1]) == '_');
}

static bool equals(piece name, const char *word)
{
    return name.bytes == strlen(word) && ends(name, word);
}

static bool ends_with_one(piece name, const char *const *words)
{
    for (; *words; words++)
        if (ends_with(name, *words))
            return true;
    return false;
}

static bool has_small_letters(piece name)
{
    for (size_t i = 0; i < name.bytes; i++)
        if (name.text[i] >= 'a' && name.text[i] <= 'z')
            return true;
    return false;
}

/* Names of variables are in capitals; `input-key` and `stop-token` are keys of recipes. */
static bool is_secret(piece name)
{
    static const char *const any[] = {"api_key",     "apikey",        "secret",       "secret_key",
                                      "private_key", "access_key",    "access_token", "auth_token",
                                      "hf_token",    "authorization", "cookie",       NULL};
    static const char *const capitals[] = {"key",  "token", "secret",      "password",
                                           "pass", "pwd",   "credentials", NULL};

    return ends(name, "password") || ends(name, "passwd") || ends(name, "passphrase") ||
           ends_with_one(name, any) || equals(name, "token") ||
           (!has_small_letters(name) && ends_with_one(name, capitals));
}

/* Names in the query of a URL, where no key of a recipe is. */
static bool is_query_secret(piece name)
{
    static const char *const words[] = {
        "key",       "token",       "secret", "pwd",     "pass",        "sig", "auth",
        "signature", "credentials", "pat",    "webhook", "webhook_url", NULL};

    return ends_with_one(name, words);
}

/* Names of options of commands. Those that name a field or a token of a vocabulary are none. */
static bool is_option_secret(piece name)
{
    static const char *const fields[] = {"input_key",  "label_key", "metadata_key", "tool_key",
                                         "reward_key", "sort_key",  "public_key",   "stop_token",
                                         "eos_token",  "bos_token", "pad_token",    "unk_token",
                                         NULL};

    return is_query_secret(name) && !ends_with_one(name, fields);
}

static piece rest_of(piece text, size_t from)
{
    return (piece){text.text + from, text.bytes - from};
}

/* How many bytes do not have any of these. */
static size_t until(piece text, const char *stops)
{
    size_t i = 0;

    while (i < text.bytes && text.text[i] != '\0' && !strchr(stops, text.text[i]))
        i++;
    return i;
}

/* A value, up to its quote or the end of the word. */
static piece value_at(piece text)
{
    char quote = text.bytes > 0 ? text.text[0] : '\0';

    if (quote == '\'' || quote == '"') {
        text = rest_of(text, 1);
        return (piece){text.text, until(text, (const char[]){quote, '\0'})};
    }
    return (piece){text.text, until(text, " \t\r\n\"'&;,")};
}

/* The value of an option behind blanks; of no bytes if another option follows. */
static piece option_value(piece text)
{
    while (text.bytes > 0 && text.text[0] == ' ')
        text = rest_of(text, 1);
    return text.bytes > 1 && text.text[0] == '-' && text.text[1] == '-' ? (piece){text.text, 0}
                                                                        : value_at(text);
}

static bool is_number(piece value)
{
    size_t i = 0;

    while (i < value.bytes && value.text[i] >= '0' && value.text[i] <= '9')
        i++;
    return i == value.bytes;
}

static bool begins(piece text, const char *word)
{
    return text.bytes >= strlen(word) && memcmp(text.text, word, strlen(word)) == 0;
}

/*
 * The password, if the text begins with "PASSWORD@HOST", up to the last @ before a host.
 * "image:tag@sha256:..." has none.
 */
static piece password_at(piece text)
{
    size_t at = until(text, " \t\r\n\"'");

    while (at-- > 0) {
        piece host = rest_of(text, at + 1);
        if (text.text[at] == '@' && host.bytes > 0 && is_name(host.text[0]) &&
            !begins(host, "sha256:"))
            return (piece){text.text, at};
    }
    return (piece){text.text, 0};
}

/*
 * The user and password of a URL, if the text begins with "://" and has them. The password may have
 * a '/' where no port and path can be.
 */
static piece user_of_url(piece text)
{
    piece place = rest_of(text, 3), password = {place.text, 0};
    size_t host = until(place, "/?# \t\r\n\"'"), colon = until(place, ":"), bytes = host;

    while (bytes > 0 && place.text[bytes - 1] != '@')
        bytes--;
    if (bytes == 0 && colon < host && !is_number((piece){place.text + colon + 1, host - colon - 1}))
        password = password_at(rest_of(place, colon + 1));
    if (password.bytes > 0)
        bytes = colon + 1 + password.bytes + 1;
    return (piece){place.text, bytes > 1 ? bytes - 1 : 0};
}

/* "Basic abc" has its secret in the second word; one word alone is the secret. */
static piece credentials_at(piece text)
{
    piece scheme = value_at(text), rest = rest_of(text, (size_t)(scheme.text - text.text));
    bool quoted = rest.text != text.text;
    size_t first = until(rest, " \t\r\n\"'");

    if (first > 0 && first + 1 < rest.bytes && rest.text[first] == ' ' &&
        (quoted || equals((piece){rest.text, first}, "basic") ||
         equals((piece){rest.text, first}, "bearer") || equals((piece){rest.text, first}, "token")))
        return value_at(rest_of(rest, first + 1));
    return scheme;
}

static bool is_alnum(char c)
{
    return is_name(c) && c != '_' && c != '-';
}

/* Whether a part of it between '-' and '_' is too long, or too mixed, for a word of a language. */
static bool looks_random(piece name)
{
    size_t bytes = 0, digits = 0;

    for (size_t i = 0; i < name.bytes; i++) {
        bool part = is_alnum(name.text[i]);
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

/* The bytes of a JSON Web Token, three parts with dots between them; 0 if it is none. */
static size_t web_token_at(piece text)
{
    size_t bytes = 0;

    if (!begins(text, "eyJ"))
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

/* The secret that begins here and that its own form tells; of no bytes if there is none. */
static piece secret_of_form(piece text)
{
    static const char *const prefixes[] = {"ghp_",  "gho_",  "github_pat_", "AKIA",
                                           "xoxa-", "xoxb-", "xoxp-",       "glpat-"};
    static const char webhook[] = "hooks.slack.com/services/";
    const piece name = {text.text, name_at(text)};

    if (begins(text, webhook)) {
        piece path = rest_of(text, sizeof webhook - 1);
        return (piece){path.text, until(path, " \t\r\n\"'<>,;)")};
    }
    // words of recipes and names of files begin with these two, too
    if ((begins(name, "sk-") || begins(name, "hf_")) && looks_random(rest_of(name, 3)))
        return name;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (begins(name, prefixes[i]) && name.bytes >= strlen(prefixes[i]) + 8)
            return name;
    return (piece){text.text, web_token_at(text)};
}

/* The text of a member "key", behind its colon; a name, such as that of a recipe's key, is none. */
static piece key_of_json(piece text)
{
    piece value = value_at(text);

    return value.text != text.text && looks_random(value) ? value : (piece){text.text, 0};
}

/*
 * The value of a name before '=' or ':', which may have quotes and blanks around the colon. The
 * number in "token: 5" is a count of tokens; a number behind any other name may be a secret.
 */
static piece value_after(piece name, piece text, bool colon)
{
    piece value;

    while (colon && text.bytes > 0 && text.text[0] == ' ')
        text = rest_of(text, 1);
    value = ends_with(name, "authorization") ? credentials_at(text) : value_at(text);
    return colon && is_number(value) && equals(name, "token") ? (piece){text.text, 0} : value;
}

/*
 * The secret that the text behind a name begins with; of no bytes if there is none. `before` is the
 * character before the name.
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
    if (next == ' ' && (option || equals(name, "bearer")))
        return option_value(rest);
    if ((next == '"' || next == '\'') && rest.bytes > 0 && rest.text[0] == ':' && is_secret(name))
        return value_after(name, rest_of(rest, 1), true);
    if (next == '"' && before == '"' && equals(name, "key") && begins(rest, ":")) {
        rest = rest_of(rest, 1);
        return key_of_json(rest_of(rest, begins(rest, " ")));
    }
    if (next != ':')
        return none;
    if (is_secret(name))
        return value_after(name, rest, true);
    // "host:/path", "git@host:path", "//host:port/path"
    if (begins(rest, "/") || before == '@' ||
        (before == '/' && is_number((piece){rest.text, until(rest, "/@")})))
        return none;
    return password_at(rest);
}

/* The first secret of a text; of no bytes if there is none. */
static piece find(piece text)
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
    piece rest = {text, bytes}, secret = find(rest);
    size_t used = 0;
    char *copy;

    *out = NULL;
    if (secret.bytes == 0)
        return INVAR_OK;
    // a secret has at least a byte, and what shows that it is one two
    INVAR_TRY(invar_alloc((void **)&copy, bytes + 1, strlen(MASK), "a text"));
    for (; secret.bytes > 0; secret = find(rest)) {
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
