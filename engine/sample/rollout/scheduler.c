/*
 * scheduler.c - continuous batching: admission, passes, preemption and the end of sequences.
 *
 * Progress: if the first admitted sequence needs a page, all others are preempted for it, the last
 * one first, and finally a kept prompt is dropped; check_fit guarantees that it fits then. No
 * thrashing: a sequence is admitted only if every admitted one can still grow by GROWTH pages. Both
 * must survive a change here, as must determinism: decisions use only the order of sequences and
 * the free pages.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/scheduler.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define GROWTH 4 // pages that every admitted sequence can still get when another one is admitted

/* ---- set-up ---------------------------------------------------------------------------------- */

/* Returns the number of full pages that a sequence shares with its prompt. */
static int64_t shared_pages(const invar_scheduler *s, const invar_seq *seq)
{
    return seq->parent < 0 ? 0 : seq->prefill / s->cache->shape.page_size;
}

static invar_status check_fit(const invar_scheduler *s, const invar_seq *seq)
{
    int64_t pages = invar_kv_cache_pages_for(s->cache, seq->rows), have = s->cache->shape.pages;

    if (seq->parent >= 0)
        pages += invar_kv_cache_pages_for(s->cache, seq->prefill) - shared_pages(s, seq);
    if (pages > have)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "KV cache: sample %" PRId64 " may need %" PRId64 " pages of %" PRId64
                          " positions, the cache has %" PRId64
                          ": give it more pages, or make prompts or responses shorter",
                          seq->sample, pages, s->cache->shape.page_size, have);
    return INVAR_OK;
}

static invar_status prepare_sequences(const invar_scheduler *s, int64_t first, int64_t end)
{
    int64_t parent = -1, children = 0;

    for (int64_t i = first; i < end; i++) {
        invar_seq *seq = &s->seqs[i];

        INVAR_CHECK(seq->prefill >= 1 && seq->rows >= seq->prefill);
        INVAR_CHECK(children == 0 || seq->prefill == s->seqs[parent].prefill);
        seq->parent = children > 0 ? parent : -1;
        children -= children > 0;
        if (seq->n_sharing > 0) {
            INVAR_CHECK(seq->parent < 0 && seq->rows == seq->prefill);
            parent = i;
            children = seq->n_pending_shares = seq->n_sharing;
        }
        INVAR_TRY(check_fit(s, seq));
    }
    INVAR_CHECK(children == 0);
    return INVAR_OK;
}

invar_status invar_scheduler_add(invar_scheduler *s, invar_seq *seqs, int64_t more)
{
    s->seqs = seqs;
    INVAR_TRY(prepare_sequences(s, s->n_seqs, s->n_seqs + more));
    s->n_seqs += more;
    return INVAR_OK;
}

invar_status invar_scheduler_init(invar_scheduler *s, invar_kv_cache *cache, invar_seq *seqs,
                                  int64_t n_seqs, int64_t concurrency, int64_t chunk)
{
    memset(s, 0, sizeof *s);
    INVAR_CHECK(concurrency >= 1 && chunk >= 1);
    s->cache = cache;
    s->concurrency = concurrency;
    s->chunk = chunk;
    invar_kv_cache_reset(cache);
    INVAR_TRY(invar_scheduler_add(s, seqs, n_seqs));
    INVAR_TRY(INVAR_ALLOC(s->active, (size_t)s->concurrency, "the sequences of a pass"));
    return INVAR_ALLOC(s->slices, (size_t)s->concurrency, "the rows of a pass");
}

void invar_scheduler_release(invar_scheduler *s)
{
    for (int64_t i = 0; i < s->n_seqs; i++)
        invar_free(s->seqs[i].pages);
    invar_free(s->active);
    invar_free(s->slices);
    memset(s, 0, sizeof *s);
}

/* ---- end of sequences ------------------------------------------------------------------------ */

static void end_sequence(invar_scheduler *s, invar_seq *seq)
{
    invar_kv_cache_free_pages(s->cache, seq->pages, seq->n_pages);
    invar_free(seq->pages);
    seq->pages = NULL;
    seq->n_pages = 0;
    seq->state = INVAR_SEQ_FINISHED;
}

/*
 * Records that a sequence no longer waits for its shared prompt; the last one ends a kept prompt.
 */
static void leave_parent(invar_scheduler *s, const invar_seq *seq)
{
    invar_seq *parent = seq->parent < 0 ? NULL : &s->seqs[seq->parent];

    if (parent && --parent->n_pending_shares == 0 && parent->state == INVAR_SEQ_PREFIX_KEPT)
        end_sequence(s, parent);
}

void invar_scheduler_finish(invar_scheduler *s, int64_t index)
{
    invar_seq *seq = &s->seqs[index];

    if (seq->state == INVAR_SEQ_WAITING || seq->state == INVAR_SEQ_ADMITTED)
        leave_parent(s, seq);
    end_sequence(s, seq);
}

/* Returns true if a sequence that shares the prompt is not over. */
static bool has_live_sharers(const invar_scheduler *s, int64_t prompt)
{
    for (int64_t i = prompt + 1; i < s->n_seqs; i++)
        if (s->seqs[i].parent == prompt && s->seqs[i].state != INVAR_SEQ_FINISHED)
            return true;
    return false;
}

void invar_scheduler_cancel(invar_scheduler *s, int64_t index)
{
    int64_t parent = s->seqs[index].parent;

    invar_scheduler_finish(s, index);
    if (parent >= 0 && s->seqs[parent].state != INVAR_SEQ_FINISHED && !has_live_sharers(s, parent))
        end_sequence(s, &s->seqs[parent]);
}

/*
 * Removes finished sequences from `active`, and shared prompts whose rows are computed. Such
 * prompts keep their pages while a sharing sequence has not joined.
 */
static void release_finished_prompts(invar_scheduler *s)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < s->n_active; i++) {
        invar_seq *seq = &s->seqs[s->active[i]];

        if (seq->state == INVAR_SEQ_FINISHED)
            continue;
        if (seq->n_sharing > 0 && seq->done == seq->rows) {
            seq->state = INVAR_SEQ_PREFIX_KEPT;
            if (seq->n_pending_shares == 0)
                end_sequence(s, seq);
        } else {
            s->active[kept++] = s->active[i];
        }
    }
    s->n_active = kept;
}

void invar_scheduler_compact(int64_t *places_out, invar_scheduler *s)
{
    int64_t kept = 0, next = 0;

    release_finished_prompts(s);
    for (int64_t i = 0; i < s->n_seqs; i++) {
        places_out[i] = s->seqs[i].state == INVAR_SEQ_FINISHED ? -1 : kept;
        next += i < s->next && places_out[i] >= 0;
        if (places_out[i] < 0)
            continue;
        s->seqs[kept] = s->seqs[i];
        if (s->seqs[kept].parent >= 0) // a prompt precedes its sequences
            s->seqs[kept].parent = places_out[s->seqs[kept].parent];
        kept++;
    }
    for (int64_t i = 0; i < s->n_active; i++)
        s->active[i] = places_out[s->active[i]];
    s->n_seqs = kept;
    s->next = next;
}

/* ---- preemption ------------------------------------------------------------------------------ */

/* Returns a sequence to the queue without pages; its first `known` rows are known now. */
static void requeue(invar_scheduler *s, int64_t index, int64_t known)
{
    invar_seq *seq = &s->seqs[index];

    end_sequence(s, seq);
    seq->state = INVAR_SEQ_WAITING;
    seq->n_recompute = seq->done > seq->n_recompute ? seq->done : seq->n_recompute;
    seq->prefill = known;
    seq->done = 0;
    s->next = index < s->next ? index : s->next;
}

/*
 * Preempts the sequence admitted last. It no longer shares the prompt, unless it was still waiting
 * for it.
 */
static void preempt_last(invar_scheduler *s)
{
    int64_t index = s->active[--s->n_active];
    invar_seq *seq = &s->seqs[index];

    if (seq->state == INVAR_SEQ_RUNNING && seq->n_sharing == 0)
        seq->parent = -1;
    requeue(s, index, seq->done < seq->prefill ? seq->prefill : seq->done + 1);
}

/*
 * Frees the pages of the prompt that is kept for waiting sequences. Their first token is sampled
 * already, so they no longer share the prompt and prefill its rows and that token themselves. At
 * most one such prompt exists, and its sequences are the first waiting ones with a parent. Returns
 * false if no prompt is kept.
 */
static bool drop_kept_prompt(invar_scheduler *s)
{
    int64_t i = s->next, kept;

    while (i < s->n_seqs && (s->seqs[i].state != INVAR_SEQ_WAITING || s->seqs[i].parent < 0))
        i++;
    kept = i < s->n_seqs ? s->seqs[i].parent : -1;
    if (kept < 0 || s->seqs[kept].state != INVAR_SEQ_PREFIX_KEPT)
        return false;
    for (; i < s->n_seqs && s->seqs[i].parent == kept; i++)
        if (s->seqs[i].state == INVAR_SEQ_WAITING) {
            s->seqs[i].parent = -1;
            s->seqs[i].n_recompute = s->seqs[i].prefill++;
        }
    end_sequence(s, &s->seqs[kept]);
    return true;
}

/*
 * Gets the page for one more row of active sequence i, preempting others if necessary. Returns
 * false if the sequence was the last one and was preempted itself.
 */
static bool grow_sequence(invar_scheduler *s, int64_t i)
{
    invar_seq *seq = &s->seqs[s->active[i]];

    while (seq->n_pages < invar_kv_cache_pages_for(s->cache, seq->done + 1)) {
        if (invar_kv_cache_alloc_pages(seq->pages + seq->n_pages, s->cache, 1)) {
            seq->n_pages++;
        } else if (s->n_active > 1) {
            preempt_last(s);
            if (s->n_active == i)
                return false;
        } else {
            bool found = drop_kept_prompt(s);
            INVAR_CHECK(found);
        }
    }
    return true;
}

/* ---- admission ------------------------------------------------------------------------------- */

/* Returns the number of pages to keep free for the growth of the admitted sequences. */
static int64_t pages_for_growth(const invar_scheduler *s)
{
    int64_t pages = 0;

    for (int64_t i = 0; i < s->n_active; i++) {
        const invar_seq *seq = &s->seqs[s->active[i]];
        int64_t more = invar_kv_cache_pages_for(s->cache, seq->rows) - seq->n_pages;
        pages += more < GROWTH ? more : GROWTH;
    }
    return pages;
}

/* Allocates the pages of the known rows. *admitted_out = false if too few are free. */
static invar_status admit_sequence(bool *admitted_out, invar_scheduler *s, int64_t index)
{
    invar_seq *seq = &s->seqs[index];
    int64_t total = invar_kv_cache_pages_for(s->cache, seq->rows), shared = shared_pages(s, seq);
    int64_t known = invar_kv_cache_pages_for(s->cache, seq->prefill);

    *admitted_out = known - shared + pages_for_growth(s) <= s->cache->n_free;
    if (!*admitted_out)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(seq->pages, (size_t)total, "the page table of a sequence"));
    seq->n_pages = known;
    seq->n_shared = shared;
    if (shared > 0) {
        const invar_seq *parent = &s->seqs[seq->parent];
        memcpy(seq->pages, parent->pages, (size_t)shared * sizeof *seq->pages);
        invar_kv_cache_ref_pages(s->cache, seq->pages, shared);
    }
    INVAR_CHECK(invar_kv_cache_alloc_pages(seq->pages + shared, s->cache, known - shared));
    seq->state = seq->parent < 0 ? INVAR_SEQ_RUNNING : INVAR_SEQ_ADMITTED;
    s->active[s->n_active++] = index;
    return INVAR_OK;
}

static invar_status admit_waiting(invar_scheduler *s)
{
    bool admitted = true;

    while (admitted && s->next < s->n_seqs && s->n_active < s->concurrency) {
        if (s->seqs[s->next].state == INVAR_SEQ_WAITING)
            INVAR_TRY(admit_sequence(&admitted, s, s->next));
        s->next += admitted;
        // with no sequence admitted, only a kept prompt can occupy the pages
        if (!admitted && s->n_active == 0)
            admitted = drop_kept_prompt(s);
    }
    return INVAR_OK;
}

/*
 * Starts decoding after a shared prompt. The partly filled page is copied, since both write to it.
 */
static invar_status join_prompt(invar_scheduler *s, invar_seq *seq)
{
    const invar_seq *parent = &s->seqs[seq->parent];
    int64_t partial = seq->prefill % s->cache->shape.page_size;

    if (partial > 0)
        INVAR_TRY(invar_kv_cache_copy(s->cache, seq->pages[seq->n_shared],
                                      parent->pages[seq->n_shared], partial));
    seq->done = seq->prefill;
    seq->state = INVAR_SEQ_RUNNING;
    leave_parent(s, seq);
    return INVAR_OK;
}

/* ---- the pass -------------------------------------------------------------------------------- */

/* Lets admitted sequences join their shared prompts whose rows are computed. */
static invar_status join_prompts(invar_scheduler *s)
{
    for (int64_t i = 0; i < s->n_active; i++) {
        invar_seq *seq = &s->seqs[s->active[i]];

        if (seq->state == INVAR_SEQ_ADMITTED && s->seqs[seq->parent].state == INVAR_SEQ_PREFIX_KEPT)
            INVAR_TRY(join_prompt(s, seq));
    }
    return INVAR_OK;
}

#define MANY 2 // prefill rows per decoding sequence above which prefill gets its own pass

/* Returns true if the next pass should consist of prefill rows only. */
static bool prefers_prefill_pass(const invar_scheduler *s)
{
    int64_t known = 0, others = 0;

    for (int64_t i = 0; i < s->n_active; i++) {
        const invar_seq *seq = &s->seqs[s->active[i]];

        if (seq->state == INVAR_SEQ_RUNNING && seq->done < seq->prefill)
            known += seq->prefill - seq->done;
        else if (seq->state == INVAR_SEQ_RUNNING)
            others++;
    }
    known = known < s->chunk ? known : s->chunk;
    return known > MANY * others;
}

int64_t invar_scheduler_max_rows(int64_t known, int64_t sequences, int64_t n_draft_rows,
                                 bool separate_prefill)
{
    int64_t mixed = separate_prefill && known > MANY * sequences ? MANY * sequences : known;

    mixed += sequences * (1 + n_draft_rows);
    return mixed > known ? mixed : known;
}

/* Returns the rows of a sequence in this pass; `left` prefill rows of the chunk are available. */
static int64_t rows_in_pass(const invar_seq *seq, int64_t left, bool known_alone)
{
    int64_t known = seq->prefill - seq->done;

    if (seq->state != INVAR_SEQ_RUNNING || seq->done == seq->rows)
        return 0;
    if (known <= 0)
        return known_alone ? 0 : 1;
    return known < left ? known : left;
}

/* Adds a draft row to a sequence if that needs no preemption; returns false otherwise. */
static bool add_draft_row(invar_scheduler *s, invar_seq *seq)
{
    if (seq->done == seq->rows)
        return false;
    if (seq->n_pages < invar_kv_cache_pages_for(s->cache, seq->done + 1)) {
        if (!invar_kv_cache_alloc_pages(seq->pages + seq->n_pages, s->cache, 1))
            return false;
        seq->n_pages++;
    }
    seq->done++;
    return true;
}

static void add_draft_rows(invar_scheduler *s, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        invar_seq_slice *turn = &s->slices[i];
        invar_seq *seq = &s->seqs[turn->seq];
        bool through = turn->first >= seq->prefill;

        while (through && turn->count <= s->lookahead && add_draft_row(s, seq))
            turn->count++;
    }
}

void invar_scheduler_truncate(invar_scheduler *s, int64_t index, int64_t rows)
{
    invar_seq_slice *turn = &s->slices[index];
    invar_seq *seq = &s->seqs[turn->seq];
    int64_t pages;

    turn->count = rows;
    seq->done = turn->first + rows;
    pages = invar_kv_cache_pages_for(s->cache, seq->done);
    if (seq->n_pages > pages) {
        invar_kv_cache_free_pages(s->cache, seq->pages + pages, seq->n_pages - pages);
        seq->n_pages = pages;
    }
}

invar_status invar_scheduler_next(const invar_seq_slice **out, int64_t *count_out,
                                  invar_scheduler *s)
{
    int64_t left = s->chunk, count = 0;
    bool known_alone;

    release_finished_prompts(s);
    INVAR_TRY(admit_waiting(s));
    INVAR_TRY(join_prompts(s));
    known_alone = s->separate_prefill && prefers_prefill_pass(s);
    for (int64_t i = 0; i < s->n_active; i++) {
        invar_seq *seq = &s->seqs[s->active[i]];
        int64_t rows = rows_in_pass(seq, left, known_alone);

        if (rows == 0 || !grow_sequence(s, i))
            continue;
        s->slices[count++] = (invar_seq_slice){s->active[i], seq->done, rows};
        if (seq->done < seq->prefill)
            left -= rows;
        seq->done += rows;
    }
    INVAR_CHECK(count > 0 || (s->n_active == 0 && s->next == s->n_seqs));
    add_draft_rows(s, count);
    *out = s->slices;
    *count_out = count;
    return INVAR_OK;
}
