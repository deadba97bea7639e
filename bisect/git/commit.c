/*
 * commit.c - objects of bounded size, and commits as their text tells.
 *
 * libgit2 refuses a commit whose author or committer has no proper time, and so every search that
 * comes across one. Git reads it all the same, and old repositories have them: what a converter
 * wrote, or an imported patch. So the text is read here, with git's rules: a time that is no number
 * is 0, and what is said of the author is taken as it stands.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "bisect/git/git.h"

#include "base/invar_banned.h"

#define DIGITS (INVAR_OID_SIZE - 1)

/* ---- size ------------------------------------------------------------------------------------ */

static invar_status refuse_size(const git_oid *id, size_t bytes, const char *shown)
{
    char hex[INVAR_OID_SIZE];

    INVAR_GIT(oid_tostr)(hex, sizeof hex, id);
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                      "%s: object %s unpacks to %zu MiB: more than %d MiB are not read", shown, hex,
                      bytes >> 20, INVAR_GIT_LARGEST >> 20);
}

invar_status invar_git_read(git_odb_object **out, git_repository *git, const git_oid *id,
                            const char *shown)
{
    git_odb *odb = NULL;
    git_object_t type;
    size_t bytes = 0;
    int code = INVAR_GIT(repository_odb)(&odb, git);

    *out = NULL;
    if (code == 0) // without unpacking it: a few bytes can become any number
        code = INVAR_GIT(odb_read_header)(&bytes, &type, odb, id);
    if (code == 0 && bytes <= INVAR_GIT_LARGEST)
        code = INVAR_GIT(odb_read)(out, odb, id);
    INVAR_GIT(odb_free)(odb);
    if (code && code != GIT_ENOTFOUND)
        return invar_git_fail(git, shown, code, "an object cannot be read");
    return bytes > INVAR_GIT_LARGEST ? refuse_size(id, bytes, shown) : INVAR_OK;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* The line at *at without `key`, which it must begin with; moves on to the next. */
static bool take_line(const char **line_out, size_t *bytes_out, const char **at, const char *end,
                      const char *key)
{
    const char *line = *at, *newline = memchr(line, '\n', (size_t)(end - line));
    size_t length = strlen(key);

    if (!newline || (size_t)(newline - line) < length || memcmp(line, key, length) != 0)
        return false;
    *line_out = line + length;
    *bytes_out = (size_t)(newline - line) - length;
    *at = newline + 1;
    return true;
}

static bool take_oid(git_oid *out, const char **at, const char *end, const char *key)
{
    const char *line;
    size_t bytes;

    return take_line(&line, &bytes, at, end, key) && bytes == DIGITS &&
           INVAR_GIT(oid_fromstrn)(out, line, DIGITS) == 0;
}

/* Bytes of "Name <mail>" in "Name <mail> 1700000000 +0100"; 0: it has no end. */
static size_t person_in(const char *line, size_t bytes)
{
    while (bytes > 0 && line[bytes - 1] != '>')
        bytes--;
    return bytes;
}

/* The seconds of such a line, as git reads them; a newline ends it. */
static int64_t date_in(const char *line, size_t bytes)
{
    size_t at = person_in(line, bytes);

    at += strspn(line + at, " \t");
    if (line[at] < '0' || line[at] > '9')
        return 0;
    return strtoll(line + at, NULL, 10); // INT64_MAX where it does not fit
}

/* False: it is no commit. */
static bool parse(invar_git_raw_commit *out)
{
    const char *at = INVAR_GIT(odb_object_data)(out->object);
    const char *end = at + INVAR_GIT(odb_object_size)(out->object), *line;
    size_t bytes;
    git_oid parent;

    if (INVAR_GIT(odb_object_type)(out->object) != GIT_OBJECT_COMMIT ||
        !take_oid(&out->tree, &at, end, "tree "))
        return false;
    for (out->parents = at; take_oid(&parent, &at, end, "parent ");)
        out->n_parents++;
    if (take_line(&line, &bytes, &at, end, "author ")) {
        out->author = line;
        out->author_bytes = person_in(line, bytes);
    }
    if (take_line(&line, &bytes, &at, end, "committer "))
        out->date = date_in(line, bytes);
    while (take_line(&line, &bytes, &at, end, "") && bytes > 0)
        ; // headers, up to an empty line
    out->message = at;
    out->message_bytes = (size_t)(end - at);
    return true;
}

invar_status invar_git_raw_commit_open(invar_git_raw_commit *out, git_repository *git,
                                       const git_oid *id, const char *shown)
{
    char hex[INVAR_OID_SIZE];

    memset(out, 0, sizeof *out);
    INVAR_TRY(invar_git_read(&out->object, git, id, shown));
    if (!out->object || parse(out))
        return INVAR_OK;
    invar_git_raw_commit_close(out);
    INVAR_GIT(oid_tostr)(hex, sizeof hex, id);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: object %s is no commit; see 'git fsck --full'",
                      shown, hex);
}

void invar_git_raw_commit_close(invar_git_raw_commit *text)
{
    INVAR_GIT(odb_object_free)(text->object);
    text->object = NULL;
}

git_oid invar_git_raw_commit_parent(const invar_git_raw_commit *text, unsigned number)
{
    git_oid id;

    // parse has read it before
    (void)INVAR_GIT(oid_fromstrn)(&id, text->parents + number * (sizeof "parent " + DIGITS) + 7,
                                  DIGITS);
    return id;
}
