/*
 * bpe.c - byte pair encoding of one word: the pairs of lowest rank are joined first.
 *
 * The symbols of a word are a linked list in an array, the possible merges a heap by (rank, place).
 * An entry of the heap may be out of date when its turn comes; it counts if the pair that stands
 * there by then still gives the same symbol. That is the rule of the tokenizers library.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/tokenizer/bpe.h"

#include <stdbool.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

typedef struct rule {
    int32_t left, right; /* left is -1 where there is none */
    int32_t rank, joined;
} rule;

struct invar_bpe {
    size_t mask;
    rule *rules; /* (mask + 1), open addressing */
};

typedef struct symbol {
    int32_t id; /* -1: joined to the one before */
    int32_t previous, next;
} symbol;

typedef struct candidate {
    int32_t rank, place, joined;
} candidate;

typedef struct word_state {
    const invar_bpe *bpe;
    symbol *symbols; /* (count) */
    int32_t count;
    candidate *heap; /* room for 2 * count: a join removes one and adds at most two */
    size_t n_heap;
} word_state;

/* ---- rules ----------------------------------------------------------------------------------- */

invar_status invar_bpe_new(invar_bpe **out, size_t merges)
{
    invar_status status;
    size_t slots = 16;
    invar_bpe *bpe;

    *out = NULL;
    while (slots < merges * 2)
        slots *= 2;
    INVAR_TRY(invar_alloc((void **)&bpe, 1, sizeof *bpe, "merges"));
    status = invar_alloc((void **)&bpe->rules, slots, sizeof *bpe->rules, "merges");
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

/* The slot of a pair: its rule, or the empty one where it would be. */
static rule *bpe_find(const invar_bpe *bpe, int32_t left, int32_t right)
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
    *bpe_find(bpe, left, right) = (rule){left, right, rank, joined};
}

/* ---- the heap -------------------------------------------------------------------------------- */

static bool candidate_before(const candidate *a, const candidate *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->place < b->place);
}

static void word_state_push(word_state *w, candidate c)
{
    size_t i = w->n_heap++;

    while (i > 0 && candidate_before(&c, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = c;
}

static candidate word_state_pop(word_state *w)
{
    candidate top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < w->n_heap) {
        if (child + 1 < w->n_heap && candidate_before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!candidate_before(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* The rule for the symbol at `place` and the next one; NULL when there is none. */
static const rule *rule_at(const word_state *w, int32_t place)
{
    const symbol *s = &w->symbols[place];
    const rule *found;

    if (s->next < 0)
        return NULL;
    found = bpe_find(w->bpe, s->id, w->symbols[s->next].id);
    return found->left < 0 ? NULL : found;
}

static void word_state_propose(word_state *w, int32_t place)
{
    const rule *r = rule_at(w, place);

    if (r)
        word_state_push(w, (candidate){r->rank, place, r->joined});
}

static void word_state_join(word_state *w, const candidate *c)
{
    symbol *left = &w->symbols[c->place], *right = &w->symbols[left->next];

    left->id = c->joined;
    left->next = right->next;
    right->id = -1;
    if (left->next >= 0)
        w->symbols[left->next].previous = c->place;
    if (left->previous >= 0)
        word_state_propose(w, left->previous);
    word_state_propose(w, c->place);
}

static void word_state_merge(word_state *w)
{
    for (int32_t i = 0; i + 1 < w->count; i++)
        word_state_propose(w, i);
    while (w->n_heap > 0) {
        candidate top = word_state_pop(w);
        const rule *r = w->symbols[top.place].id < 0 ? NULL : rule_at(w, top.place);
        if (r && r->joined == top.joined)
            word_state_join(w, &top);
    }
}

static invar_status bpe_scratch_reserve(invar_bpe_scratch *work, size_t symbols)
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
                            invar_bpe_scratch *work)
{
    word_state w = {.bpe = bpe, .count = (int32_t)*count};
    size_t n = 0;

    if (*count > INT32_MAX / 4)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a word of %zu symbols is too long", *count);
    INVAR_TRY(bpe_scratch_reserve(work, *count));
    w.symbols = work->memory;
    w.heap = (candidate *)(w.symbols + work->capacity);
    for (int32_t i = 0; i < w.count; i++)
        w.symbols[i] = (symbol){ids[i], i - 1, i + 1 < w.count ? i + 1 : -1};
    word_state_merge(&w);
    for (int32_t i = 0; i < w.count; i++)
        if (w.symbols[i].id >= 0)
            ids[n++] = w.symbols[i].id;
    *count = n;
    return INVAR_OK;
}

void invar_bpe_scratch_release(invar_bpe_scratch *work)
{
    invar_free(work->memory);
    *work = (invar_bpe_scratch){NULL, 0};
}
