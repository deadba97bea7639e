/*
 * timetable.c - records of ticks that are obeyed and continued.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/source/timetable.h"

#include <inttypes.h>

#include "base/invar_banned.h"

void invar_timetable_release(invar_timetable *t)
{
    invar_ticks_release(&t->own);
    invar_ticks_release(&t->other);
    invar_journal_close(t->file);
    invar_json_text_release(&t->line);
    *t = (invar_timetable){0};
}

invar_status invar_timetable_plan(invar_tick *out, const invar_timetable *t, int64_t tick)
{
    const invar_tick *own = invar_ticks_find(&t->own, tick);
    const invar_tick *other = invar_ticks_find(&t->other, tick);

    *out = own ? *own : other ? *other : (invar_tick){0};
    if (other && other->drawn && !out->drawn) {
        out->drawn = true;
        out->left = other->left;
        out->n_left = other->n_left;
    }
    if (invar_timetable_free(t) || (out->batched && (out->drawn || t->open_end)))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "%.1000s: the recorded schedule ends before tick %" PRId64
                      " does: the run ended there, or it is a shortened copy; give a smaller "
                      "num-rollout, or a record that is longer",
                      t->name, tick);
}

static invar_status put(invar_timetable *t)
{
    INVAR_TRY(t->line.status);
    return t->file ? invar_journal_append(t->file, t->line.data, t->line.bytes) : INVAR_OK;
}

invar_status invar_timetable_batch(invar_timetable *t, int64_t tick, const int64_t *groups,
                                   int64_t count)
{
    if (invar_ticks_find(&t->own, tick))
        return INVAR_OK;
    INVAR_TRY(invar_ticks_add_batch(&t->own, tick, groups, count, INVAR_TIMETABLE_FILE));
    invar_ticks_forget(&t->own, tick - 1); // the file has them, and nobody asks again
    invar_json_text_reset(&t->line);
    invar_ticks_write_batch(&t->line, tick, invar_ticks_find(&t->own, tick));
    return put(t);
}

/* A run that draws again what it has drawn once comes to the same place. */
static invar_status compare(const invar_tick *own, int64_t tick, const invar_tick_left *left,
                            int64_t count)
{
    int64_t i = 0;

    while (i < count && i < own->n_left && left[i].sample == own->left[i].sample &&
           left[i].tokens == own->left[i].tokens)
        i++;
    if (i == count && i == own->n_left)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                      "recorded schedule: after tick %" PRId64 " sample %" PRId64
                      " is not where the record has it: the record was changed, or other tokens "
                      "were drawn than when it was made",
                      tick, i < own->n_left ? own->left[i].sample : left[i].sample);
}

invar_status invar_timetable_drawn(invar_timetable *t, int64_t tick, const invar_tick_left *left,
                                   int64_t count)
{
    const invar_tick *own = invar_ticks_find(&t->own, tick);

    if (own && own->drawn)
        return compare(own, tick, left, count);
    INVAR_TRY(invar_ticks_add_drawn(&t->own, tick, left, count, INVAR_TIMETABLE_FILE));
    invar_json_text_reset(&t->line);
    invar_ticks_write_drawn(&t->line, tick, own);
    return put(t);
}

void invar_timetable_show(invar_json_text *text, const invar_timetable *t, int64_t tick)
{
    const invar_tick *before = invar_ticks_find(&t->own, tick - 1);
    const invar_tick *now = invar_ticks_find(&t->own, tick);

    if (before && before->drawn)
        invar_ticks_write_drawn(text, tick - 1, before);
    if (now)
        invar_ticks_write_batch(text, tick, now);
}
