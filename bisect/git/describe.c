/*
 * describe.c - details of a commit for reports: author, subject, changed files, patch; the user's
 * name.
 *
 * A commit is compared with its first parent, as `git show` does. All texts are quoted, so that a
 * repository cannot send control characters to a terminal. Objects that a shallow or partial clone
 * lacks reduce the details instead of failing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "bisect/git/git.h"

#include "base/invar_banned.h"

#define RENAME_LIMIT 1000       /* default of git's diff.renameLimit */
#define LARGEST_TEXT (64 << 20) /* larger files are not compared line by line */

/* ---- changed files --------------------------------------------------------------------------- */

/* Finds the tree of the first parent; NULL if the commit has no parent. */
static int lookup_parent_tree(git_tree **out, invar_repo *repo, const invar_git_raw_commit *commit)
{
    invar_git_raw_commit parent;
    git_oid id;
    int code = GIT_ENOTFOUND;

    *out = NULL;
    if (commit->n_parents == 0)
        return 0;
    id = invar_git_raw_commit_parent(commit, 0);
    if (invar_git_raw_commit_open(&parent, repo->git, &id, repo->display_path) != INVAR_OK) {
        invar_error_clear(); // treated like a missing parent
        return code;
    }
    if (parent.object)
        code = INVAR_GIT(tree_lookup)(out, repo->git, &parent.tree);
    invar_git_raw_commit_close(&parent);
    return code;
}

/* Compares the commit with its first parent, or with an empty tree. */
static int make_diff(git_diff **out, invar_repo *repo, const invar_git_raw_commit *commit,
                     bool renames, uint32_t context)
{
    git_diff_options options;
    git_diff_find_options find;
    git_tree *tree = NULL, *before = NULL;
    int code = INVAR_GIT(tree_lookup)(&tree, repo->git, &commit->tree);

    INVAR_GIT(diff_options_init)(&options, GIT_DIFF_OPTIONS_VERSION);
    INVAR_GIT(diff_find_options_init)(&find, GIT_DIFF_FIND_OPTIONS_VERSION);
    options.flags = GIT_DIFF_INCLUDE_TYPECHANGE;
    options.context_lines = context;
    options.max_size = LARGEST_TEXT;
    find.flags = GIT_DIFF_FIND_RENAMES;
    find.rename_limit = RENAME_LIMIT;
    if (code == 0)
        code = lookup_parent_tree(&before, repo, commit);
    if (code == 0)
        code = INVAR_GIT(diff_tree_to_tree)(out, repo->git, before, tree, &options);
    if (code == 0 && renames) {
        code = INVAR_GIT(diff_find_similar)(*out, &find);
        if (code) {
            INVAR_GIT(diff_free)(*out);
            *out = NULL;
        }
    }
    INVAR_GIT(tree_free)(before);
    INVAR_GIT(tree_free)(tree);
    return code;
}

/* Counts the lines of a file; -1 if it is binary. A submodule counts as one line. */
static int count_file_lines(int64_t *out, git_repository *git, const git_diff_file *file)
{
    git_blob *blob = NULL;
    int code;

    *out = 1;
    if (file->mode == GIT_FILEMODE_COMMIT)
        return 0;
    code = INVAR_GIT(blob_lookup)(&blob, git, &file->id);
    if (code)
        return code;
    const char *text = INVAR_GIT(blob_rawcontent)(blob);
    size_t bytes = (size_t)INVAR_GIT(blob_rawsize)(blob);
    *out = bytes > 0 && text[bytes - 1] != '\n';
    for (size_t i = 0; i < bytes; i++)
        *out += text[i] == '\n';
    if (INVAR_GIT(blob_is_binary)(blob))
        *out = -1;
    INVAR_GIT(blob_free)(blob);
    return 0;
}

static int count_patch_lines(int64_t *added, int64_t *removed, git_diff *diff, size_t number)
{
    const git_diff_delta *delta = INVAR_GIT(diff_get_delta)(diff, number);
    git_patch *patch_text = NULL;
    size_t plus = 0, minus = 0;
    int code = INVAR_GIT(patch_from_diff)(&patch_text, diff, number);

    if (code == 0 && patch_text)
        code = INVAR_GIT(patch_line_stats)(NULL, &plus, &minus, patch_text);
    INVAR_GIT(patch_free)(patch_text);
    *added = delta->flags & GIT_DIFF_FLAG_BINARY ? -1 : (int64_t)plus;
    *removed = delta->flags & GIT_DIFF_FLAG_BINARY ? -1 : (int64_t)minus;
    return code;
}

/* Counts changed lines of one file; -1 for binary files and those that a partial clone lacks. */
static int count_lines(int64_t *added, int64_t *removed, git_repository *git, git_diff *diff,
                       size_t number)
{
    const git_diff_delta *delta = INVAR_GIT(diff_get_delta)(diff, number);
    int code;

    if (delta->status == GIT_DELTA_TYPECHANGE) { // all lines count, for example of a new link
        code = count_file_lines(removed, git, &delta->old_file);
        code = code ? code : count_file_lines(added, git, &delta->new_file);
    } else {
        code = count_patch_lines(added, removed, diff, number);
    }
    if (code == GIT_ENOTFOUND || *added < 0 || *removed < 0)
        *added = *removed = -1;
    return code == GIT_ENOTFOUND ? 0 : code;
}

static int add_files(invar_repo_commit *out, git_repository *git, git_diff *diff)
{
    size_t count = INVAR_GIT(diff_num_deltas)(diff);

    out->files = (int64_t)count;
    for (size_t i = 0; i < count; i++) {
        const git_diff_delta *delta = INVAR_GIT(diff_get_delta)(diff, i);
        const char *path = delta->new_file.path ? delta->new_file.path : delta->old_file.path;
        int64_t added, removed;
        int code = count_lines(&added, &removed, git, diff, i);
        if (code)
            return code;
        if (added >= 0) {
            out->added += added;
            out->removed += removed;
        }
        if (out->n_shown == INVAR_REPO_FILES)
            continue;
        invar_repo_file *file = &out->shown[out->n_shown++];
        invar_text_quote(file->path, sizeof file->path, path, strlen(path));
        file->status = INVAR_GIT(diff_status_char)(delta->status);
        file->added = added;
        file->removed = removed;
    }
    return 0;
}

/* ---- commits --------------------------------------------------------------------------------- */

/* Copies the first paragraph of the message as one line. */
static void format_subject(char out[INVAR_REPO_TEXT], const char *message, size_t bytes)
{
    char text[2 * INVAR_REPO_TEXT];
    size_t length = 0;

    while (bytes > 0 && (*message == '\n' || *message == ' ')) {
        message++;
        bytes--;
    }
    for (size_t i = 0; i < bytes && length < sizeof text; i++) {
        if (message[i] == '\n' && (i + 1 == bytes || message[i + 1] == '\n'))
            break;
        text[length++] = message[i] == '\n' ? ' ' : message[i];
    }
    invar_text_quote(out, INVAR_REPO_TEXT, text, length);
}

static void add_text(invar_repo_commit *out, const git_oid *id, const invar_git_raw_commit *commit)
{
    INVAR_GIT(oid_tostr)(out->id, sizeof out->id, id);
    INVAR_GIT(oid_tostr)(out->tree, sizeof out->tree, &commit->tree);
    out->n_parents = commit->n_parents;
    for (unsigned i = 0; i < commit->n_parents && i < INVAR_REPO_PARENTS; i++) {
        git_oid parent = invar_git_raw_commit_parent(commit, i);
        INVAR_GIT(oid_tostr)(out->parents[i], sizeof out->parents[i], &parent);
    }
    invar_text_quote(out->author, sizeof out->author, commit->author ? commit->author : "",
                     commit->author_bytes);
    out->when = commit->date;
    format_subject(out->subject, commit->message, commit->message_bytes);
}

invar_status invar_repo_describe(invar_repo_commit *out, invar_repo *repo, const char *commit)
{
    invar_git_raw_commit found;
    git_diff *diff = NULL;
    git_oid id;
    int code;

    memset(out, 0, sizeof *out);
    INVAR_TRY(invar_git_oid(&id, commit));
    INVAR_TRY(invar_git_commit(&found, repo, commit));
    add_text(out, &id, &found);
    code = make_diff(&diff, repo, &found, true, 0);
    // renames need contents; without them, names and kinds of changes are still known
    if (code == GIT_ENOTFOUND)
        code = make_diff(&diff, repo, &found, false, 0);
    // nothing is known if a tree is missing, for example at the end of a shallow clone
    if (code == GIT_ENOTFOUND)
        code = 0;
    if (code == 0 && diff)
        code = add_files(out, repo->git, diff);
    INVAR_GIT(diff_free)(diff);
    invar_git_raw_commit_close(&found);
    return code ? invar_git_fail(repo->git, repo->display_path, code, "a commit cannot be compared")
                : INVAR_OK;
}

invar_status invar_repo_subject(char out[INVAR_REPO_TEXT], invar_repo *repo, const char *commit)
{
    invar_git_raw_commit found;

    INVAR_TRY(invar_git_commit(&found, repo, commit));
    format_subject(out, found.message, found.message_bytes);
    invar_git_raw_commit_close(&found);
    return INVAR_OK;
}

/* ---- patches --------------------------------------------------------------------------------- */

typedef struct patch_text {
    char *text; /* (INVAR_REPO_PATCH + 1) */
    size_t used;
    bool cut;
} patch_text;

/*
 * Appends the lines of a diff callback; a header has several. Unprintable characters are escaped.
 */
static int append_lines(const git_diff_delta *delta, const git_diff_hunk *hunk,
                        const git_diff_line *line, void *payload)
{
    const char *at = line->content, *end = at + line->content_len;
    patch_text *p = payload;

    (void)delta, (void)hunk;
    while (at < end && !p->cut) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t bytes = (size_t)((newline ? newline : end) - at);
        char shown[512], plain[2 * sizeof shown];
        size_t length = strchr("+- ", line->origin) != NULL;

        bytes = bytes < sizeof plain ? bytes : sizeof plain;
        for (size_t i = 0; i < bytes; i++)
            plain[i] = at[i] == '\t' ? ' ' : at[i];
        shown[0] = line->origin;
        invar_text_quote(shown + length, sizeof shown - length - 1, plain, bytes);
        length = strlen(shown);
        shown[length++] = '\n';
        p->cut = p->used + length > INVAR_REPO_PATCH;
        if (!p->cut)
            memcpy(p->text + p->used, shown, length);
        p->used += p->cut ? 0 : length;
        at = newline ? newline + 1 : end;
    }
    return p->cut ? GIT_EUSER : 0;
}

invar_status invar_repo_patch(char **out, bool *cut_out, invar_repo *repo, const char *commit)
{
    patch_text p = {.text = NULL};
    invar_git_raw_commit found;
    git_diff *diff = NULL;
    invar_status status;
    int code;

    *out = NULL;
    *cut_out = false;
    INVAR_TRY(INVAR_ALLOC(p.text, INVAR_REPO_PATCH + 1, "a patch"));
    status = invar_git_commit(&found, repo, commit);
    if (status != INVAR_OK) {
        invar_free(p.text);
        return status;
    }
    code = make_diff(&diff, repo, &found, true, 3);
    invar_git_raw_commit_close(&found);
    if (code == 0)
        code = INVAR_GIT(diff_print)(diff, GIT_DIFF_FORMAT_PATCH, append_lines, &p);
    INVAR_GIT(diff_free)(diff);
    if (code && code != GIT_ENOTFOUND && code != GIT_EUSER) {
        invar_free(p.text);
        return invar_git_fail(repo->git, repo->display_path, code, "a commit cannot be compared");
    }
    p.text[p.used] = '\0';
    *out = p.text;
    *cut_out = p.cut;
    return INVAR_OK;
}

/* ---- identity of the user -------------------------------------------------------------------- */

/* Returns the value from the environment or the git configuration, or NULL. */
static const char *find_setting(git_config *config, const char *variable, const char *author,
                                const char *user)
{
    const char *value = getenv(variable);

    if (value && value[0])
        return value;
    if (config && INVAR_GIT(config_get_string)(&value, config, author) == 0 && value[0])
        return value;
    if (config && INVAR_GIT(config_get_string)(&value, config, user) == 0 && value[0])
        return value;
    return NULL;
}

void invar_repo_signature(char out[INVAR_REPO_TEXT], const invar_repo *repo)
{
    git_config *settings = NULL;
    const char *name, *mail;
    char text[2 * INVAR_REPO_TEXT];

    INVAR_GIT(repository_config_snapshot)(&settings, repo->git);
    name = find_setting(settings, "GIT_AUTHOR_NAME", "author.name", "user.name");
    mail = find_setting(settings, "GIT_AUTHOR_EMAIL", "author.email", "user.email");
    if (!mail)
        mail = getenv("EMAIL");
    if (name && mail && mail[0])
        (void)snprintf(text, sizeof text, "%s <%s>", name, mail);
    else
        (void)snprintf(text, sizeof text, "%s", name ? name : "unknown");
    invar_text_quote(out, INVAR_REPO_TEXT, text, strlen(text));
    INVAR_GIT(config_free)(settings);
}
