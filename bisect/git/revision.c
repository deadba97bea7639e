/*
 * revision.c - resolves a revision such as HEAD~2 or a tag to a commit.
 *
 * Revisions have the meaning of git, with one difference: refs/replace and info/grafts are ignored,
 * because libgit2 does not support them. libgit2 stops at a commit with a malformed time
 * (commit.c); a name, an id or HEAD followed by ~ and ^ is then resolved here by walking the graph.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "bisect/git/git.h"

#include "base/invar_banned.h"

#define MAX_STEPS 1000000000L

static invar_status fail_revision(const invar_repo *repo, const char *revision, int code)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    invar_text_quote(quoted, sizeof quoted, revision, strlen(revision));
    if ((code == GIT_ENOTFOUND || code == GIT_EUNBORNBRANCH) && repo->is_shallow)
        return INVAR_FAIL(INVAR_E_NOTFOUND, code,
                          "%s: there is no revision '%s': the clone is shallow, "
                          "'git fetch --unshallow' gets the rest",
                          repo->display_path, quoted);
    if (code == GIT_ENOTFOUND || code == GIT_EUNBORNBRANCH)
        return INVAR_FAIL(INVAR_E_NOTFOUND, code, "%s: there is no revision '%s'",
                          repo->display_path, quoted);
    if (code == GIT_EAMBIGUOUS)
        return INVAR_FAIL(INVAR_E_INVALID, code,
                          "%s: '%s' names more than one object: give more digits",
                          repo->display_path, quoted);
    if (code == GIT_EINVALIDSPEC)
        return INVAR_FAIL(INVAR_E_INVALID, code, "%s: '%s' is not the name of one revision",
                          repo->display_path, quoted);
    return invar_git_fail(repo->git, repo->display_path, code, "a revision cannot be read");
}

static invar_status peel_to_commit(char out[INVAR_OID_SIZE], invar_repo *repo,
                                   const git_object *object, const char *revision)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];
    git_object *commit = NULL;
    int code = INVAR_GIT(object_peel)(&commit, object, GIT_OBJECT_COMMIT);

    if (code == GIT_EINVALIDSPEC || code == GIT_EPEEL) {
        invar_text_quote(quoted, sizeof quoted, revision, strlen(revision));
        return INVAR_FAIL(INVAR_E_INVALID, code, "%s: '%s' is a %s, not a commit",
                          repo->display_path, quoted,
                          INVAR_GIT(object_type2string)(INVAR_GIT(object_type)(object)));
    }
    if (code)
        return invar_git_fail(repo->git, repo->display_path, code, "a tag cannot be followed");
    INVAR_GIT(oid_tostr)(out, INVAR_OID_SIZE, INVAR_GIT(object_id)(commit));
    INVAR_GIT(object_free)(commit);
    return INVAR_OK;
}

/* ---- revisions beyond commits that libgit2 cannot read --------------------------------------- */

/* Finds the object of a reference name or an abbreviated id, whatever its type. */
static int find_name(git_oid *out, git_repository *git, const char *name)
{
    git_reference *found = NULL, *last = NULL;
    size_t length = strlen(name);
    git_odb *odb = NULL;
    git_oid digits;
    int code = INVAR_GIT(reference_dwim)(&found, git, name);

    if (code == 0)
        code = INVAR_GIT(reference_resolve)(&last, found);
    if (code == 0)
        *out = *INVAR_GIT(reference_target)(last);
    else if (length >= GIT_OID_MINPREFIXLEN &&
             INVAR_GIT(oid_fromstrn)(&digits, name, length) == 0 &&
             INVAR_GIT(repository_odb)(&odb, git) == 0)
        code = INVAR_GIT(odb_exists_prefix)(out, odb, &digits, length);
    INVAR_GIT(odb_free)(odb);
    INVAR_GIT(reference_free)(last);
    INVAR_GIT(reference_free)(found);
    return code;
}

/* Replaces a commit by its parent with this number, starting at 1. */
static invar_status step_up(int32_t *commit, bool *found_out, invar_repo *repo, long parent)
{
    const invar_git_node *node;

    INVAR_TRY(invar_git_load(repo, *commit));
    node = &repo->graph.nodes[*commit];
    *found_out = parent <= node->n_parents;
    if (*found_out)
        *commit = repo->graph.parents.items[node->parent + (int32_t)parent - 1];
    return INVAR_OK;
}

/*
 * Follows a suffix such as "~3^2" from a commit. *found_out is false if a parent does not exist or
 * the text is not a suffix.
 */
static invar_status follow_suffix(int32_t *commit, bool *found_out, invar_repo *repo,
                                  const char *way)
{
    *found_out = true;
    while (*found_out && *way) {
        const char kind = *way++;
        char *end = (char *)way;
        long number = *way >= '0' && *way <= '9' ? strtol(way, &end, 10) : 1;
        *found_out = (kind == '~' || kind == '^') && number <= MAX_STEPS;
        way = end;
        if (kind == '^' && number > 0 && *found_out)
            INVAR_TRY(step_up(commit, found_out, repo, number));
        for (; kind == '~' && number > 0 && *found_out; number--)
            INVAR_TRY(step_up(commit, found_out, repo, 1));
    }
    return INVAR_OK;
}

static invar_status resolve_in_graph(char out[INVAR_OID_SIZE], invar_repo *repo, const char *name)
{
    char base[INVAR_PATH_SIZE];
    size_t length = strcspn(name, "~^");
    int32_t commit;
    bool found;
    git_oid id;
    int code;

    (void)snprintf(base, sizeof base, "%.*s", (int)length, name);
    code = length < sizeof base ? find_name(&id, repo->git, base) : GIT_EINVALIDSPEC;
    if (code)
        return fail_revision(repo, name, code);
    INVAR_GIT(oid_tostr)(out, INVAR_OID_SIZE, &id);
    INVAR_TRY(invar_git_node_of(&commit, repo, out));
    INVAR_TRY(follow_suffix(&commit, &found, repo, name + length));
    if (!found || (repo->graph.nodes[commit].state & INVAR_GIT_MISSING))
        return fail_revision(repo, name, GIT_ENOTFOUND);
    INVAR_GIT(oid_tostr)(out, INVAR_OID_SIZE, &repo->graph.nodes[commit].id);
    return INVAR_OK;
}

/* ---- any revision ---------------------------------------------------------------------------- */

invar_status invar_repo_resolve(char out[INVAR_OID_SIZE], invar_repo *repo, const char *revision)
{
    char head[INVAR_PATH_SIZE];
    const char *name = revision;
    git_object *object = NULL;
    const git_error *last;
    invar_status status;
    int code;

    // libgit2 supports "@", but not "@~1"
    if (revision[0] == '@' && (revision[1] == '~' || revision[1] == '^')) {
        int bytes = snprintf(head, sizeof head, "HEAD%s", revision + 1);
        if (bytes < 0 || (size_t)bytes >= sizeof head)
            return fail_revision(repo, revision, GIT_EINVALIDSPEC);
        name = head;
    }
    code = INVAR_GIT(revparse_single)(&object, repo->git, name);
    last = INVAR_GIT(error_last)();
    // a commit with a malformed time
    if (code && last && last->message && strstr(last->message, "failed to parse signature"))
        return resolve_in_graph(out, repo, name);
    if (code)
        return fail_revision(repo, revision, code);
    status = peel_to_commit(out, repo, object, revision);
    INVAR_GIT(object_free)(object);
    return status;
}
