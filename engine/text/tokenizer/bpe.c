/*
 * bpe.c - byte pair encoding of one word: pairs are merged in the order of their rank.
 *
 * The symbols of a word are a linked list in an array, the possible merges a heap by (rank,
 * position). An entry of the heap may be out of date when it is taken. It still counts if the pair
 * at its position gives the same symbol: that is the rule of the tokenizers library, and changing
 * it would change tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/tokenizer/bpe.h"

#include <stdbool.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

typedef struct merge_rule {
    int32_t left, right; /* `left` is -1 if the slot is empty */
    int32_t rank, joined;
} merge_rule;

struct invar_bpe {
    size_t mask;
    merge_rule *rules; /* (mask + 1) open addressing */
};

typedef struct symbol {
    int32_t id; /* -1 if the symbol was merged into the previous one */
    int32_t previous, next;
} symbol;

typedef struct candidate {
    int32_t rank, place, joined;
} candidate;

typedef struct word_state {
    const invar_bpe *bpe;
    symbol *symbols; /* (count) */
    int32_t count;
    candidate *heap; /* capacity 2 * count: a merge removes one entry and adds at most two */
    size_t n_heap;
} word_state;

/* ---- merge rules ----------------------------------------------------------------------------- */

invar_status invar_bpe_new(invar_bpe **out, size_t merges)
{
    invar_status status;
    size_t slots = 16;
    invar_bpe *bpe;

    *out = NULL;
    while (slots < merges * 2)
        slots *= 2;
    INVAR_TRY(INVAR_ALLOC(bpe, 1, "merges"));
    status = INVAR_ALLOC(bpe->rules, slots, "merges");
    if (status != INVAR_OK) {
        invar_free(bpe);
        return status;
    }
    bpe->mask = slots - 1;
    for (size_t i = 0; i < slots; i++)
        bpe->rules[i].left = -1;
    *out = bpe;
    return INVAR_OK;
}

void invar_bpe_free(invar_bpe *bpe)
{
    if (!bpe)
        return;
    invar_free(bpe->rules);
    invar_free(bpe);
}

/* Returns the slot of a pair: its rule, or the empty slot at which it would be inserted. */
static merge_rule *find_slot(const invar_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t slot;

    key = (key ^ key >> 31) * 0x9E3779B97F4A7C15u;
    key = (key ^ key >> 29) * 0xBF58476D1CE4E5B9u;
    slot = (size_t)(key >> 32) & bpe->mask;
    while (bpe->rules[slot].left != -1 &&
           (bpe->rules[slot].left != left || bpe->rules[slot].right != right))
        slot = (slot + 1) & bpe->mask;
    return &bpe->rules[slot];
}

void invar_bpe_add(invar_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t joined)
{
    *find_slot(bpe, left, right) = (merge_rule){left, right, rank, joined};
}

/* ---- the heap -------------------------------------------------------------------------------- */

static bool comes_before(const candidate *a, const candidate *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->place < b->place);
}

static void push_candidate(word_state *w, candidate c)
{
    size_t i = w->n_heap++;

    while (i > 0 && comes_before(&c, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = c;
}

static candidate pop_candidate(word_state *w)
{
    candidate top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < w->n_heap) {
        if (child + 1 < w->n_heap && comes_before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!comes_before(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Returns the rule for the symbol at `place` and the next one, or NULL. */
static const merge_rule *find_rule(const word_state *w, int32_t place)
{
    const symbol *s = &w->symbols[place];
    const merge_rule *found;

    if (s->next < 0)
        return NULL;
    found = find_slot(w->bpe, s->id, w->symbols[s->next].id);
    return found->left < 0 ? NULL : found;
}

static void push_merge_at(word_state *w, int32_t place)
{
    const merge_rule *r = find_rule(w, place);

    if (r)
        push_candidate(w, (candidate){r->rank, place, r->joined});
}

static void merge_pair(word_state *w, const candidate *c)
{
    symbol *left = &w->symbols[c->place], *right = &w->symbols[left->next];

    left->id = c->joined;
    left->next = right->next;
    right->id = -1;
    if (left->next >= 0)
        w->symbols[left->next].previous = c->place;
    if (left->previous >= 0)
        push_merge_at(w, left->previous);
    push_merge_at(w, c->place);
}

static void merge_word(word_state *w)
{
    for (int32_t i = 0; i + 1 < w->count; i++)
        push_merge_at(w, i);
    while (w->n_heap > 0) {
        candidate top = pop_candidate(w);
        const merge_rule *r = w->symbols[top.place].id < 0 ? NULL : find_rule(w, top.place);
        if (r && r->joined == top.joined)
            merge_pair(w, &top);
    }
}

static invar_status reserve_scratch(invar_bpe_scratch *work, size_t symbols)
{
    size_t each = sizeof(symbol) + 2 * sizeof(candidate);
    size_t capacity = work->capacity ? work->capacity : 256;
    void *memory;

    if (symbols <= work->capacity)
        return INVAR_OK;
    while (capacity < symbols)
        capacity *= 2;
    INVAR_TRY(invar_alloc(&memory, capacity, each, "a word"));
    invar_free(work->memory);
    work->memory = memory;
    work->capacity = capacity;
    return INVAR_OK;
}

invar_status invar_bpe_word(int32_t *ids, size_t *count, const invar_bpe *bpe,
                            invar_bpe_scratch *scratch)
{
    word_state w = {.bpe = bpe, .count = (int32_t)*count};
    size_t n = 0;

    if (*count > INT32_MAX / 4)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a word of %zu symbols is too long", *count);
    INVAR_TRY(reserve_scratch(scratch, *count));
    w.symbols = scratch->memory;
    w.heap = (candidate *)(w.symbols + scratch->capacity);
    for (int32_t i = 0; i < w.count; i++)
        w.symbols[i] = (symbol){ids[i], i - 1, i + 1 < w.count ? i + 1 : -1};
    merge_word(&w);
    for (int32_t i = 0; i < w.count; i++)
        if (w.symbols[i].id >= 0)
            ids[n++] = w.symbols[i].id;
    *count = n;
    return INVAR_OK;
}

void invar_bpe_scratch_release(invar_bpe_scratch *scratch)
{
    invar_free(scratch->memory);
    *scratch = (invar_bpe_scratch){NULL, 0};
}
