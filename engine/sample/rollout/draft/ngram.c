/*
 * ngram.c - chains of places, found by the hash of the `least` tokens that end there.
 *
 * A place is a token that has a successor. The places of one hash form a chain, the newest first;
 * of other tokens with that hash the comparison gets rid.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/draft/ngram.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define TRIES 32 // places of a chain that are compared

/* Token `at` of a sample. */
typedef struct place {
    int32_t sample, at;
    int32_t before; /* the next older place of the chain; -1: none */
} place;

struct invar_ngram_proposer {
    const invar_rl_sample *samples;
    int64_t users; /* samples that have not left */
    invar_ngram_proposer_window window;
    int64_t *learned; /* (count) tokens of each sample that are places, or lie before the first */
    place *places;    /* (n_places) */
    int64_t n_places, room;
    int32_t *newest; /* (1 << bits) of each chain; -1: none */
    int bits;
};

static void ngram_proposer_release(invar_ngram_proposer *g)
{
    invar_free(g->learned);
    invar_free(g->places);
    invar_free(g->newest);
    invar_free(g);
}

static invar_status ngram_proposer_fill(invar_ngram_proposer *g, int64_t count)
{
    size_t chains = (size_t)1 << g->bits;

    INVAR_TRY(invar_alloc((void **)&g->learned, (size_t)count, sizeof *g->learned,
                          "what was learned of samples"));
    INVAR_TRY(
        invar_alloc((void **)&g->newest, chains, sizeof *g->newest, "the chains of a look-up"));
    memset(g->newest, 0xFF, chains * sizeof *g->newest);
    // a prompt is learned once, with the first sample of its group
    for (int64_t i = 0; i < count; i++) {
        bool first = i == 0 || g->samples[i].group != g->samples[i - 1].group;
        int64_t prompt = first ? 0 : g->samples[i].prompt_tokens;
        g->learned[i] = prompt > g->window.min_n - 1 ? prompt : g->window.min_n - 1;
    }
    return INVAR_OK;
}

invar_status invar_ngram_proposer_new(invar_ngram_proposer **out, const invar_rl_sample *samples,
                                      int64_t count, const invar_ngram_proposer_window *window)
{
    invar_ngram_proposer *g = NULL;
    invar_status status;

    INVAR_CHECK(window->min_n >= 1 && window->max_n >= window->min_n && count <= INT32_MAX);
    INVAR_TRY(invar_alloc((void **)&g, 1, sizeof *g, "a look-up of tokens"));
    memset(g, 0, sizeof *g);
    g->samples = samples;
    g->users = count;
    g->window = *window;
    for (g->bits = 10; g->bits < 22 && (count >> (g->bits - 8)) > 0; g->bits++)
        continue;
    status = ngram_proposer_fill(g, count);
    if (status != INVAR_OK) {
        ngram_proposer_release(g);
        return status;
    }
    *out = g;
    return INVAR_OK;
}

void invar_ngram_proposer_leave(invar_ngram_proposer *g)
{
    if (g && --g->users == 0)
        ngram_proposer_release(g);
}

/* The chain of the tokens of a sample that end at `at`. */
static int32_t *chain_of(const invar_ngram_proposer *g, const invar_rl_sample *s, int64_t at)
{
    uint64_t hash = (uint64_t)s->group;

    for (int64_t i = at + 1 - g->window.min_n; i <= at; i++)
        hash = (hash ^ (uint64_t)(uint32_t)s->tokens[i]) * UINT64_C(0x9E3779B97F4A7C15);
    return &g->newest[hash >> (64 - g->bits)];
}

static invar_status make_room(invar_ngram_proposer *g)
{
    int64_t room = g->room ? 2 * g->room : 1024;
    place *larger = NULL;

    INVAR_TRY(invar_alloc((void **)&larger, (size_t)room, sizeof *larger, "places of tokens"));
    if (g->n_places > 0)
        memcpy(larger, g->places, (size_t)g->n_places * sizeof *larger);
    invar_free(g->places);
    g->places = larger;
    g->room = room;
    return INVAR_OK;
}

/* All tokens of a sample but the last one, which nothing follows yet. */
static invar_status ngram_proposer_learn(invar_ngram_proposer *g, int64_t sample)
{
    const invar_rl_sample *s = &g->samples[sample];

    for (; g->learned[sample] < s->n_tokens - 1; g->learned[sample]++) {
        int64_t at = g->learned[sample];
        int32_t *chain = chain_of(g, s, at);

        if (g->n_places == INT32_MAX)
            return INVAR_OK; // what is known by then will do
        if (g->n_places == g->room)
            INVAR_TRY(make_room(g));
        g->places[g->n_places] = (place){(int32_t)sample, (int32_t)at, *chain};
        *chain = (int32_t)g->n_places++;
    }
    return INVAR_OK;
}

/* Tokens that agree, backwards from two places. */
static int64_t ngram_proposer_agreement(const invar_ngram_proposer *g, const invar_rl_sample *a,
                                        int64_t at, const invar_rl_sample *b, int64_t place_at)
{
    int64_t n = 0;

    while (n < g->window.max_n && n <= at && n <= place_at &&
           a->tokens[at - n] == b->tokens[place_at - n])
        n++;
    return n;
}

/* The best place for what follows the last token of a sample; NULL: there is none. */
static const place *look_up(const invar_ngram_proposer *g, const invar_rl_sample *s)
{
    int64_t last = s->n_tokens - 1, best = g->window.min_n - 1;
    const place *found = NULL;
    int32_t next;

    if (s->n_tokens < g->window.min_n)
        return NULL;
    next = *chain_of(g, s, last);
    for (int i = 0; i < TRIES && next >= 0 && best < g->window.max_n; i++) {
        const place *p = &g->places[next];
        const invar_rl_sample *other = &g->samples[p->sample];
        int64_t n =
            other->group == s->group ? ngram_proposer_agreement(g, s, last, other, p->at) : 0;

        if (n > best) {
            best = n;
            found = p;
        }
        next = p->before;
    }
    return found;
}

invar_status invar_ngram_proposer_make(void *self, invar_draft_request *guesses, int64_t count)
{
    (void)self;
    for (int64_t i = 0; i < count; i++) {
        const invar_rl_sample *s = guesses[i].sample, *from;
        invar_ngram_proposer *g = guesses[i].seen;
        const place *found;

        INVAR_TRY(ngram_proposer_learn(g, s - g->samples));
        found = guesses[i].max_tokens > 0 ? look_up(g, s) : NULL;
        if (!found)
            continue;
        from = &g->samples[found->sample];
        // what was guessed of a sample continues it: a period goes on
        for (int64_t n = 0, at = found->at + 1; n < guesses[i].max_tokens; n++, at++) {
            if (from != s && at >= from->n_tokens)
                break;
            guesses[i].tokens[n] = from->tokens[at];
            guesses[i].count++;
        }
    }
    return INVAR_OK;
}
