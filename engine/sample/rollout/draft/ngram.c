/*
 * ngram.c - n-gram index over the tokens of a group: a hash table with chains, newest entry first.
 *
 * An entry is the position of a token that has a successor. Its hash is that of the group and of
 * the min_n tokens that end there. A look-up follows one chain for at most TRIES entries and
 * compares tokens, which also rejects hash collisions. The result depends on the samples only,
 * never on time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/draft/ngram.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define TRIES 32 // entries of a chain that are compared

/* Index entry: token `at` of a sample. */
typedef struct ngram_entry {
    int32_t sample, at;
    int32_t next_older; /* next older entry of the chain; -1 at its end */
} ngram_entry;

struct invar_ngram_proposer {
    const invar_rl_sample *samples;
    int64_t users; /* samples that have not left */
    invar_ngram_proposer_window window;
    int64_t *n_indexed;   /* (count) first tokens of each sample that are indexed or need not be */
    ngram_entry *entries; /* (n_entries) entries of all chains */
    int64_t n_entries, room;
    int32_t *newest; /* (1 << bits) newest entry of each chain; -1 if it is empty */
    int bits;
};

static void free_proposer(invar_ngram_proposer *g)
{
    invar_free(g->n_indexed);
    invar_free(g->entries);
    invar_free(g->newest);
    invar_free(g);
}

static invar_status alloc_index(invar_ngram_proposer *g, int64_t count)
{
    size_t chains = (size_t)1 << g->bits;

    INVAR_TRY(INVAR_ALLOC(g->n_indexed, (size_t)count, "what was learned of samples"));
    INVAR_TRY(INVAR_ALLOC(g->newest, chains, "the chains of a look-up"));
    memset(g->newest, 0xFF, chains * sizeof *g->newest);
    // a prompt is indexed once, with the first sample of its group
    for (int64_t i = 0; i < count; i++) {
        bool first = i == 0 || g->samples[i].group != g->samples[i - 1].group;
        int64_t prompt = first ? 0 : g->samples[i].prompt_tokens;
        g->n_indexed[i] = prompt > g->window.min_n - 1 ? prompt : g->window.min_n - 1;
    }
    return INVAR_OK;
}

invar_status invar_ngram_proposer_new(invar_ngram_proposer **out, const invar_rl_sample *samples,
                                      int64_t count, const invar_ngram_proposer_window *window)
{
    invar_ngram_proposer *g = NULL;
    invar_status status;

    INVAR_CHECK(window->min_n >= 1 && window->max_n >= window->min_n && count <= INT32_MAX);
    INVAR_TRY(INVAR_ALLOC_ZEROED(g, 1, "a look-up of tokens"));
    g->samples = samples;
    g->users = count;
    g->window = *window;
    for (g->bits = 10; g->bits < 22 && (count >> (g->bits - 8)) > 0; g->bits++)
        continue;
    status = alloc_index(g, count);
    if (status != INVAR_OK) {
        free_proposer(g);
        return status;
    }
    *out = g;
    return INVAR_OK;
}

void invar_ngram_proposer_leave(invar_ngram_proposer *g)
{
    if (g && --g->users == 0)
        free_proposer(g);
}

/* Returns the chain of the n-gram of a sample that ends at `at`. */
static int32_t *chain_of(const invar_ngram_proposer *g, const invar_rl_sample *s, int64_t at)
{
    uint64_t hash = (uint64_t)s->group;

    for (int64_t i = at + 1 - g->window.min_n; i <= at; i++)
        hash = (hash ^ (uint64_t)(uint32_t)s->tokens[i]) * UINT64_C(0x9E3779B97F4A7C15);
    return &g->newest[hash >> (64 - g->bits)];
}

/* Indexes all new tokens of a sample except the last one, which has no successor yet. */
static invar_status index_tokens(invar_ngram_proposer *g, int64_t sample)
{
    const invar_rl_sample *s = &g->samples[sample];

    for (; g->n_indexed[sample] < s->n_tokens - 1; g->n_indexed[sample]++) {
        int64_t at = g->n_indexed[sample];
        int32_t *chain = chain_of(g, s, at);

        if (g->n_entries == INT32_MAX)
            return INVAR_OK; // the index is full; older entries still work
        INVAR_TRY(
            INVAR_GROW(g->entries, g->room, g->n_entries, g->n_entries + 1, "places of tokens"));
        g->entries[g->n_entries] = (ngram_entry){(int32_t)sample, (int32_t)at, *chain};
        *chain = (int32_t)g->n_entries++;
    }
    return INVAR_OK;
}

/* Returns the number of equal tokens backwards from two positions, at most max_n. */
static int64_t match_length(const invar_ngram_proposer *g, const invar_rl_sample *a, int64_t at,
                            const invar_rl_sample *b, int64_t entry_at)
{
    int64_t n = 0;

    while (n < g->window.max_n && n <= at && n <= entry_at &&
           a->tokens[at - n] == b->tokens[entry_at - n])
        n++;
    return n;
}

/* Returns the entry with the longest match to the last tokens of a sample; NULL without a match. */
static const ngram_entry *look_up(const invar_ngram_proposer *g, const invar_rl_sample *s)
{
    int64_t last = s->n_tokens - 1, best = g->window.min_n - 1;
    const ngram_entry *found = NULL;
    int32_t next;

    if (s->n_tokens < g->window.min_n)
        return NULL;
    next = *chain_of(g, s, last);
    for (int i = 0; i < TRIES && next >= 0 && best < g->window.max_n; i++) {
        const ngram_entry *p = &g->entries[next];
        const invar_rl_sample *other = &g->samples[p->sample];
        int64_t n = other->group == s->group ? match_length(g, s, last, other, p->at) : 0;

        if (n > best) {
            best = n;
            found = p;
        }
        next = p->next_older;
    }
    return found;
}

invar_status invar_ngram_proposer_propose(void *self, invar_draft_request *requests, int64_t count)
{
    (void)self;
    for (int64_t i = 0; i < count; i++) {
        const invar_rl_sample *s = requests[i].sample, *from;
        invar_ngram_proposer *g = requests[i].ngrams;
        const ngram_entry *found;

        INVAR_TRY(index_tokens(g, s - g->samples));
        found = requests[i].max_tokens > 0 ? look_up(g, s) : NULL;
        if (!found)
            continue;
        from = &g->samples[found->sample];
        // within one sample the copy may read tokens drafted just now, so a period repeats
        for (int64_t n = 0, at = found->at + 1; n < requests[i].max_tokens; n++, at++) {
            if (from != s && at >= from->n_tokens)
                break;
            requests[i].tokens[n] = from->tokens[at];
            requests[i].count++;
        }
    }
    return INVAR_OK;
}
