/*
 * graph.c - commit graph, loaded on demand and kept; ancestor tests and merge bases.
 *
 * Ancestors are marked down to the roots, regardless of the dates of commits, so results do not
 * depend on clocks. Loading a commit takes some microseconds once, and a node about 60 bytes. Nodes
 * move when the graph grows: use indices across calls.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "bisect/git/git.h"

#include "base/invar_banned.h"

#define MAX_COMMITS (1 << 28)
#define INITIAL_SIZE 2048 /* a power of two, which the hash table requires */

enum {
    MARK_A = 1,
    MARK_B = 2,
    MARK_STALE = 4 /* an ancestor of a common ancestor */
};

/* ---- storage --------------------------------------------------------------------------------- */

invar_status invar_git_push(invar_git_index_list *numbers, int32_t number)
{
    INVAR_TRY(INVAR_GROW(numbers->items, numbers->capacity, numbers->count, numbers->count + 1,
                         "commits"));
    numbers->items[numbers->count++] = number;
    return INVAR_OK;
}

void invar_git_graph_release(invar_git_graph *graph)
{
    invar_free(graph->nodes);
    invar_free(graph->table);
    invar_free(graph->parents.items);
}

/* Returns the table entry of the id, or the empty entry for it. Ids are uniformly distributed. */
static int32_t *find_table_entry(const invar_git_graph *graph, const git_oid *id)
{
    uint32_t mask = (uint32_t)graph->table_size - 1, at;

    memcpy(&at, id->id, sizeof at);
    for (at &= mask;; at = (at + 1) & mask) {
        int32_t number = graph->table[at];
        if (number < 0 || INVAR_GIT(oid_equal)(&graph->nodes[number].id, id))
            return &graph->table[at];
    }
}

/* Reserves one more node. The table stays at most half full. */
static invar_status reserve_node(invar_git_graph *graph)
{
    const int32_t size = graph->table_size ? 2 * graph->table_size : INITIAL_SIZE;
    int32_t *table = NULL;

    if (graph->count >= MAX_COMMITS)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "a history of more than %d commits", MAX_COMMITS);
    INVAR_TRY(INVAR_GROW(graph->nodes, graph->capacity, graph->count, graph->count + 1, "commits"));
    if (graph->count < graph->table_size / 2)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(table, (size_t)size, "commits"));
    memset(table, 0xFF, (size_t)size * sizeof *table);
    invar_free(graph->table);
    graph->table = table;
    graph->table_size = size;
    for (int32_t i = 0; i < graph->count; i++)
        *find_table_entry(graph, &graph->nodes[i].id) = i;
    return INVAR_OK;
}

static invar_status find_or_add_node(int32_t *out, invar_git_graph *graph, const git_oid *id)
{
    int32_t *slot;

    INVAR_TRY(reserve_node(graph));
    slot = find_table_entry(graph, id);
    if (*slot < 0) {
        invar_git_node *node = &graph->nodes[graph->count];
        memset(node, 0, sizeof *node);
        node->id = *id;
        *slot = graph->count++;
    }
    *out = *slot;
    return INVAR_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

invar_status invar_git_add_shallow(invar_repo *repo, const git_oid *id)
{
    int32_t number;

    INVAR_TRY(find_or_add_node(&number, &repo->graph, id));
    repo->graph.nodes[number].state |= INVAR_GIT_SHALLOW;
    repo->is_shallow = true;
    return INVAR_OK;
}

invar_status invar_git_load(invar_repo *repo, int32_t number)
{
    invar_git_graph *graph = &repo->graph;
    invar_git_node *node = &graph->nodes[number];
    invar_status status = INVAR_OK;
    invar_git_raw_commit commit;
    unsigned parents;
    int32_t first, parent;

    if (node->state & INVAR_GIT_LOADED)
        return INVAR_OK;
    INVAR_TRY(invar_git_raw_commit_open(&commit, repo->git, &node->id, repo->display_path));
    if (!commit.object) {
        node->state |= INVAR_GIT_LOADED | INVAR_GIT_MISSING;
        return INVAR_OK;
    }
    node->date = commit.date;
    parents = node->state & INVAR_GIT_SHALLOW ? 0 : commit.n_parents;
    first = graph->parents.count;
    for (unsigned i = 0; status == INVAR_OK && i < parents; i++) {
        git_oid id = invar_git_raw_commit_parent(&commit, i);
        status = find_or_add_node(&parent, graph, &id);
        if (status == INVAR_OK)
            status = invar_git_push(&graph->parents, parent);
    }
    invar_git_raw_commit_close(&commit);
    if (status != INVAR_OK)
        return status;
    node = &graph->nodes[number]; // the node may have moved
    node->parent = first;
    node->n_parents = graph->parents.count - first;
    node->state |= INVAR_GIT_LOADED;
    return INVAR_OK;
}

invar_status invar_git_node_of(int32_t *out, invar_repo *repo, const char *id)
{
    git_oid oid;

    INVAR_TRY(invar_git_oid(&oid, id));
    INVAR_TRY(find_or_add_node(out, &repo->graph, &oid));
    INVAR_TRY(invar_git_load(repo, *out));
    if (repo->graph.nodes[*out].state & INVAR_GIT_MISSING)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "%s: there is no commit %s", repo->display_path, id);
    return INVAR_OK;
}

void invar_git_clear_marks(invar_repo *repo)
{
    for (int32_t i = 0; i < repo->graph.count; i++)
        repo->graph.nodes[i].marks = 0;
}

invar_status invar_git_paint(bool *cut_out, invar_repo *repo, int32_t start, uint8_t mark)
{
    invar_git_graph *graph = &repo->graph;
    invar_git_index_list open = {NULL, 0, 0};
    bool cut = false;
    invar_status status = invar_git_push(&open, start);

    graph->nodes[start].marks |= mark;
    while (status == INVAR_OK && open.count > 0) {
        int32_t number = open.items[--open.count];
        status = invar_git_load(repo, number);
        if (status != INVAR_OK)
            break;
        const invar_git_node *node = &graph->nodes[number];
        cut = cut || (node->state & (INVAR_GIT_SHALLOW | INVAR_GIT_MISSING));
        for (int32_t i = 0; status == INVAR_OK && i < node->n_parents; i++) {
            int32_t parent = graph->parents.items[node->parent + i];
            if (graph->nodes[parent].marks & mark)
                continue;
            graph->nodes[parent].marks |= mark;
            status = invar_git_push(&open, parent);
        }
    }
    invar_free(open.items);
    if (cut_out)
        *cut_out = cut;
    return status;
}

/* ---- queries --------------------------------------------------------------------------------- */

/* Marks the ancestors of both commits with MARK_A and MARK_B. */
static invar_status mark_ancestors(int32_t *a_out, int32_t *b_out, bool *cut_out, invar_repo *repo,
                                   const char *a, const char *b)
{
    bool cut_a, cut_b;

    INVAR_TRY(invar_git_node_of(a_out, repo, a));
    INVAR_TRY(invar_git_node_of(b_out, repo, b));
    invar_git_clear_marks(repo);
    INVAR_TRY(invar_git_paint(&cut_a, repo, *a_out, MARK_A));
    INVAR_TRY(invar_git_paint(&cut_b, repo, *b_out, MARK_B));
    *cut_out = cut_a || cut_b;
    return INVAR_OK;
}

static bool is_common(const invar_git_node *node)
{
    return (node->marks & (MARK_A | MARK_B)) == (MARK_A | MARK_B) &&
           !(node->state & INVAR_GIT_MISSING);
}

/* Inserts a merge base in the order of ids, so the result does not depend on earlier queries. */
static void insert_base(char out[INVAR_REPO_BASES][INVAR_OID_SIZE], size_t *count,
                        const git_oid *id)
{
    char text[INVAR_OID_SIZE];
    size_t at = *count;

    INVAR_GIT(oid_tostr)(text, sizeof text, id);
    if (*count < INVAR_REPO_BASES)
        (*count)++;
    else if (strcmp(out[--at], text) < 0)
        return;
    for (; at > 0 && strcmp(out[at - 1], text) > 0; at--)
        memcpy(out[at], out[at - 1], INVAR_OID_SIZE);
    memcpy(out[at], text, INVAR_OID_SIZE);
}

invar_status invar_repo_merge_bases(char out[INVAR_REPO_BASES][INVAR_OID_SIZE], size_t *count_out,
                                    invar_repo *repo, const char *a, const char *b)
{
    invar_git_graph *graph = &repo->graph;
    int32_t node_a, node_b;
    bool cut;

    *count_out = 0;
    INVAR_TRY(mark_ancestors(&node_a, &node_b, &cut, repo, a, b));
    // all ancestors of a common ancestor are common, so the best ones are not the parent of one
    for (int32_t i = 0; i < graph->count; i++) {
        const invar_git_node *node = &graph->nodes[i];
        for (int32_t j = 0; is_common(node) && j < node->n_parents; j++)
            graph->nodes[graph->parents.items[node->parent + j]].marks |= MARK_STALE;
    }
    for (int32_t i = 0; i < graph->count; i++) {
        const invar_git_node *node = &graph->nodes[i];
        if (is_common(node) && !(node->marks & MARK_STALE))
            insert_base(out, count_out, &node->id);
    }
    if (*count_out == 0 && cut && repo->is_shallow)
        return invar_git_fail_shallow(repo, "two revisions have no common ancestor here");
    return INVAR_OK;
}

invar_status invar_repo_is_ancestor(bool *out, invar_repo *repo, const char *ancestor,
                                    const char *commit)
{
    int32_t above, below;
    bool cut;

    *out = false;
    INVAR_TRY(mark_ancestors(&above, &below, &cut, repo, ancestor, commit));
    *out = repo->graph.nodes[above].marks & MARK_B;
    // missing commits cannot matter if `commit` is an ancestor of `ancestor`
    if (!*out && cut && repo->is_shallow && !(repo->graph.nodes[below].marks & MARK_A))
        return invar_git_fail_shallow(repo, "which of two revisions came first cannot be told");
    return INVAR_OK;
}
