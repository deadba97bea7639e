/*
 * range.c - commits between good and bad as plain data, with path filtering as in git log.
 *
 * The order is that of a depth-first walk from the bad commit, first parents first, with each
 * commit after its parents; it depends on the graph alone.
 *
 * Paths simplify the history as in git: a commit whose paths equal those of one of its parents is
 * not relevant, and only the first such parent is followed, because the contents came from there.
 * Other parents stay in the history, but their commits are relevant only if another path of the
 * graph leads to them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/text.h"
#include "bisect/git/git.h"

#include "base/invar_banned.h"

enum { MARK_GOOD = 1, MARK_SEEN = 2, MARK_FOLLOWED = 4, MARK_RELEVANT = 8 };

typedef struct range_query {
    invar_repo *repo;
    const invar_repo_range *want;
    int32_t bad;
    invar_git_index_list order; /* commits of the range, parents before children */
    char (*paths)[INVAR_PATH_SIZE];
    invar_digest *below; /* (number of nodes) digest of the contents below the paths */
    bool *known;         /* (number of nodes) the entry of `below` is valid */
} range_query;

/* ---- the walk -------------------------------------------------------------------------------- */

/* Returns the number of parents that the walk follows. */
static int32_t parents_of(const range_query *r, const invar_git_node *node)
{
    return r->want->first_parent && node->n_parents > 1 ? 1 : node->n_parents;
}

static invar_status enter_commit(range_query *r, invar_git_index_list *open,
                                 invar_git_index_list *next, int32_t number)
{
    invar_repo *repo = r->repo;
    const invar_git_node *node;
    char id[INVAR_OID_SIZE];

    INVAR_TRY(invar_git_load(repo, number));
    node = &repo->graph.nodes[number];
    INVAR_GIT(oid_tostr)(id, sizeof id, &node->id);
    if (node->state & INVAR_GIT_MISSING)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: commit %s is missing: the repository is damaged, "
                          "see 'git fsck --full'",
                          repo->display_path, id);
    if (node->state & INVAR_GIT_SHALLOW) {
        id[12] = '\0';
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%s: the parents of commit %s are not here: the clone is shallow, "
                          "'git fetch --unshallow' gets the rest",
                          repo->display_path, id);
    }
    repo->graph.nodes[number].marks |= MARK_SEEN;
    INVAR_TRY(invar_git_push(open, number));
    return invar_git_push(next, 0);
}

/*
 * Depth-first walk without recursion: `open` is the current path, `next` the next parent of each
 * commit on it.
 */
static invar_status walk_range(range_query *r)
{
    invar_git_graph *graph = &r->repo->graph;
    invar_git_index_list open = {NULL, 0, 0}, next = {NULL, 0, 0};
    invar_status status = INVAR_OK;

    if (!(graph->nodes[r->bad].marks & MARK_GOOD))
        status = enter_commit(r, &open, &next, r->bad);
    while (status == INVAR_OK && open.count > 0) {
        int32_t number = open.items[open.count - 1], at = next.items[next.count - 1]++;
        const invar_git_node *node = &graph->nodes[number];
        if (at >= parents_of(r, node)) {
            open.count--;
            next.count--;
            status = invar_git_push(&r->order, number);
            continue;
        }
        int32_t parent = graph->parents.items[node->parent + at];
        if (!(graph->nodes[parent].marks & (MARK_GOOD | MARK_SEEN)))
            status = enter_commit(r, &open, &next, parent);
    }
    invar_free(open.items);
    invar_free(next.items);
    return status;
}

/* ---- paths ----------------------------------------------------------------------------------- */

/* Normalizes a path: "./a//b/" becomes "a/b"; "." and "" become "", the complete tree. */
static invar_status clean_path(char out[INVAR_PATH_SIZE], const char *path)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];
    size_t used = 0;
    bool fine = path[0] != '/' && strlen(path) < INVAR_PATH_SIZE;

    for (const char *at = path; fine && *at;) {
        size_t length = strcspn(at, "/");
        if (length == 2 && memcmp(at, "..", 2) == 0) {
            fine = false;
        } else if (length > 0 && !(length == 1 && at[0] == '.')) {
            if (used)
                out[used++] = '/';
            memcpy(out + used, at, length);
            used += length;
        }
        at += length + (at[length] == '/');
    }
    out[used] = '\0';
    if (fine)
        return INVAR_OK;
    invar_text_quote(quoted, sizeof quoted, path, strlen(path));
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "'%s': a path has to be relative to the top of the repository, without '..'",
                      quoted);
}

/* Hashes mode and id of a path in a tree; zeros if the tree has no such path. */
static int hash_entry(invar_hasher *hasher, git_tree *tree, const char *path)
{
    git_tree_entry *entry = NULL;
    uint32_t mode = 0;
    git_oid id;
    int code = 0;

    memset(&id, 0, sizeof id);
    if (!path[0]) {
        mode = GIT_FILEMODE_TREE;
        id = *INVAR_GIT(tree_id)(tree);
    } else {
        code = INVAR_GIT(tree_entry_bypath)(&entry, tree, path);
        // GIT_ENOTFOUND has two meanings: the tree has no such name, or the object database lacks a
        // tree
        if (code == GIT_ENOTFOUND && INVAR_GIT(error_last)()->klass == GIT_ERROR_TREE)
            code = 0;
        if (entry) {
            mode = (uint32_t)INVAR_GIT(tree_entry_filemode)(entry);
            id = *INVAR_GIT(tree_entry_id)(entry);
        }
    }
    INVAR_GIT(tree_entry_free)(entry);
    invar_hasher_update(hasher, &mode, sizeof mode);
    invar_hasher_update(hasher, id.id, sizeof id.id);
    return code;
}

/*
 * Computes the digest of the contents below the paths in a commit; `number` -1 means an empty tree.
 */
static invar_status digest_below_paths(invar_digest *out, range_query *r, int32_t number)
{
    invar_repo *repo = r->repo;
    invar_hasher hasher;
    invar_git_raw_commit commit;
    git_tree *tree = NULL;
    static const unsigned char nothing[sizeof(uint32_t) + GIT_OID_RAWSZ];
    int code = 0;

    if (number >= 0 && r->known[number]) {
        *out = r->below[number];
        return INVAR_OK;
    }
    invar_hasher_init(&hasher);
    if (number >= 0) {
        const git_oid *id = &repo->graph.nodes[number].id;
        INVAR_TRY(invar_git_raw_commit_open(&commit, repo->git, id, repo->display_path));
        code =
            commit.object ? INVAR_GIT(tree_lookup)(&tree, repo->git, &commit.tree) : GIT_ENOTFOUND;
        invar_git_raw_commit_close(&commit);
    }
    for (size_t i = 0; code == 0 && i < r->want->n_paths; i++) {
        if (tree)
            code = hash_entry(&hasher, tree, r->paths[i]);
        else
            invar_hasher_update(&hasher, nothing, sizeof nothing);
    }
    INVAR_GIT(tree_free)(tree);
    if (code)
        return invar_git_fail(repo->git, repo->display_path, code, "a tree cannot be read");
    invar_hasher_final(out, &hasher);
    if (number >= 0) {
        r->below[number] = *out;
        r->known[number] = true;
    }
    return INVAR_OK;
}

/*
 * Marks the commit relevant, or sets *same_out to the first parent with equal contents below the
 * paths.
 */
static invar_status mark_if_relevant(int32_t *same_out, range_query *r, int32_t number)
{
    invar_git_graph *graph = &r->repo->graph;
    const invar_git_node *node = &graph->nodes[number];
    const int32_t parents = parents_of(r, node);
    invar_digest mine, theirs;

    *same_out = -1;
    INVAR_TRY(digest_below_paths(&mine, r, number));
    for (int32_t i = 0; i < parents; i++) {
        int32_t parent = graph->parents.items[node->parent + i];
        INVAR_TRY(digest_below_paths(&theirs, r, parent));
        if (invar_digest_equal(&mine, &theirs)) {
            *same_out = parent;
            return INVAR_OK;
        }
    }
    INVAR_TRY(digest_below_paths(&theirs, r, -1));
    if (parents > 0 || !invar_digest_equal(&mine, &theirs))
        graph->nodes[number].marks |= MARK_RELEVANT;
    return INVAR_OK;
}

/*
 * Children come before parents here, so that a commit is examined after everything that leads to
 * it.
 */
static invar_status simplify_history(range_query *r)
{
    invar_git_graph *graph = &r->repo->graph;
    size_t room = (size_t)graph->count;
    int32_t relevant = 0;

    INVAR_TRY(INVAR_ALLOC(r->below, room, "commits"));
    INVAR_TRY(INVAR_ALLOC_ZEROED(r->known, room, "commits"));
    graph->nodes[r->bad].marks |= MARK_FOLLOWED;
    for (int32_t i = r->order.count - 1; i >= 0; i--) {
        int32_t number = r->order.items[i], same;
        const invar_git_node *node = &graph->nodes[number];
        if (!(node->marks & MARK_FOLLOWED))
            continue;
        INVAR_TRY(mark_if_relevant(&same, r, number));
        relevant += (node->marks & MARK_RELEVANT) != 0;
        for (int32_t j = 0; j < parents_of(r, node); j++) {
            int32_t parent = graph->parents.items[node->parent + j];
            if (same < 0 || same == parent)
                graph->nodes[parent].marks |= MARK_FOLLOWED;
        }
    }
    if (relevant == 0 && r->order.count > 0)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "%s: none of the %d commits between good and bad touches the paths; "
                          "are they spelled as in the repository?",
                          r->repo->display_path, (int)r->order.count);
    return INVAR_OK;
}

/* ---- the result ------------------------------------------------------------------------------ */

static invar_status build_history(invar_history **out, range_query *r)
{
    invar_git_graph *graph = &r->repo->graph;
    const int32_t count = r->order.count;
    invar_history *history = NULL;
    int32_t links = 0;

    for (int32_t i = 0; i < count; i++)
        links += parents_of(r, &graph->nodes[r->order.items[i]]);
    INVAR_TRY(INVAR_ALLOC_ZEROED(history, 1, "a history"));
    *out = history;
    INVAR_TRY(INVAR_ALLOC(history->commits, (size_t)count, "a history"));
    INVAR_TRY(INVAR_ALLOC(history->parents, (size_t)links, "a history"));
    for (int32_t i = 0; i < count; i++) {
        invar_git_node *node = &graph->nodes[r->order.items[i]];
        invar_history_commit *commit = &history->commits[i];
        int32_t same = -1;

        node->query_index = i;
        INVAR_GIT(oid_tostr)(commit->id, sizeof commit->id, &node->id);
        commit->relevant = r->want->n_paths == 0 || (node->marks & MARK_RELEVANT);
        commit->parent = history->n_links;
        commit->date = node->date;
        if (node->marks & MARK_FOLLOWED && !commit->relevant)
            INVAR_TRY(mark_if_relevant(&same, r, r->order.items[i]));
        for (int32_t j = 0; j < parents_of(r, node); j++) {
            int32_t number = graph->parents.items[node->parent + j];
            const invar_git_node *parent = &graph->nodes[number];
            if (parent->marks & MARK_SEEN && (same < 0 || same == number))
                history->parents[history->n_links++] = parent->query_index;
        }
        commit->n_parents = history->n_links - commit->parent;
    }
    history->count = count;
    return INVAR_OK;
}

static invar_status find_range(range_query *r)
{
    const invar_repo_range *want = r->want;
    int32_t good;

    INVAR_TRY(INVAR_ALLOC(r->paths, want->n_paths, "paths"));
    for (size_t i = 0; i < want->n_paths; i++)
        INVAR_TRY(clean_path(r->paths[i], want->paths[i]));
    INVAR_TRY(invar_git_node_of(&r->bad, r->repo, want->bad));
    invar_git_clear_marks(r->repo);
    for (size_t i = 0; i < want->n_good; i++) {
        INVAR_TRY(invar_git_node_of(&good, r->repo, want->good[i]));
        INVAR_TRY(invar_git_paint(NULL, r->repo, good, MARK_GOOD));
    }
    INVAR_TRY(walk_range(r));
    return want->n_paths ? simplify_history(r) : INVAR_OK;
}

invar_status invar_repo_history(invar_history **out, invar_repo *repo,
                                const invar_repo_range *range_wanted)
{
    range_query r = {.repo = repo, .want = range_wanted};
    invar_status status = find_range(&r);

    *out = NULL;
    if (status == INVAR_OK)
        status = build_history(out, &r);
    if (status != INVAR_OK) {
        invar_history_free(*out);
        *out = NULL;
    }
    invar_free(r.order.items);
    invar_free(r.paths);
    invar_free(r.below);
    invar_free(r.known);
    return status;
}
