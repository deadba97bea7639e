/*
 * commit.c - reads git objects of bounded size, and parses commits without libgit2's date checks.
 *
 * libgit2 rejects a commit whose author or committer has no valid time, and with it every search
 * that meets the commit. Git reads such commits, and old repositories have them from converters and
 * imported patches. The text is therefore parsed here with git's rules: an invalid time is 0, and
 * the author is taken as it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "bisect/git/git.h"

#include "base/invar_banned.h"

#define DIGITS (INVAR_OID_SIZE - 1)

/* ---- objects --------------------------------------------------------------------------------- */

invar_status invar_git_read(git_odb_object **out, git_repository *git, const git_oid *id,
                            const char *shown)
{
    git_odb *odb = NULL;
    git_object_t type;
    size_t bytes = 0;
    char hex[INVAR_OID_SIZE];
    int code = INVAR_GIT(repository_odb)(&odb, git);

    *out = NULL;
    if (code == 0) // the header is read first: a few compressed bytes can unpack to any size
        code = INVAR_GIT(odb_read_header)(&bytes, &type, odb, id);
    if (code == 0 && bytes <= INVAR_GIT_LARGEST)
        code = INVAR_GIT(odb_read)(out, odb, id);
    INVAR_GIT(odb_free)(odb);
    if (code && code != GIT_ENOTFOUND)
        return invar_git_fail(git, shown, code, "an object cannot be read");
    if (bytes <= INVAR_GIT_LARGEST)
        return INVAR_OK;
    INVAR_GIT(oid_tostr)(hex, sizeof hex, id);
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                      "%s: object %s unpacks to %zu MiB: more than %d MiB are not read", shown, hex,
                      bytes >> 20, INVAR_GIT_LARGEST >> 20);
}

/* ---- commits --------------------------------------------------------------------------------- */

/*
 * Returns the rest of the line at *at after `key`, and advances *at. Returns false if the line has
 * another key.
 */
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

/* Returns the length of "Name <mail>" in "Name <mail> 1700000000 +0100"; 0 without a ">". */
static size_t person_length(const char *line, size_t bytes)
{
    while (bytes > 0 && line[bytes - 1] != '>')
        bytes--;
    return bytes;
}

/* Returns the seconds of such a line as git parses them; a newline terminates the line. */
static int64_t parse_date(const char *line, size_t bytes)
{
    size_t at = person_length(line, bytes);

    at += strspn(line + at, " \t");
    if (line[at] < '0' || line[at] > '9')
        return 0;
    return strtoll(line + at, NULL, 10); // INT64_MAX on overflow
}

/* Parses the object. Returns false if it is not a commit. */
static bool parse_commit(invar_git_raw_commit *out)
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
        out->author_bytes = person_length(line, bytes);
    }
    if (take_line(&line, &bytes, &at, end, "committer "))
        out->date = parse_date(line, bytes);
    while (take_line(&line, &bytes, &at, end, "") && bytes > 0)
        ; // skips other headers up to the empty line
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
    if (!out->object || parse_commit(out))
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

    // parse_commit has validated these digits
    (void)INVAR_GIT(oid_fromstrn)(&id, text->parents + number * (sizeof "parent " + DIGITS) + 7,
                                  DIGITS);
    return id;
}
