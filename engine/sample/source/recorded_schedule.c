/*
 * recorded_schedule.c - follows and continues the log of a recorded schedule.
 *
 * A tick of the own log takes precedence over the given log. A resumed run takes the batches of its
 * log and samples again what it had sampled; the token counts are compared with the log and must
 * not differ. Only the last two ticks stay in memory, the journal has all of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/recorded_schedule.h"

#include <inttypes.h>

#include "base/invar_banned.h"

void invar_recorded_schedule_release(invar_recorded_schedule *t)
{
    invar_schedule_log_release(&t->own_log);
    invar_schedule_log_release(&t->given_log);
    invar_journal_close(t->file);
    invar_json_text_release(&t->line);
    *t = (invar_recorded_schedule){0};
}

invar_status invar_recorded_schedule_plan(invar_schedule_tick *out,
                                          const invar_recorded_schedule *t, int64_t tick)
{
    const invar_schedule_tick *own = invar_schedule_log_find(&t->own_log, tick);
    const invar_schedule_tick *other = invar_schedule_log_find(&t->given_log, tick);

    *out = own ? *own : other ? *other : (invar_schedule_tick){0};
    if (other && other->has_unfinished && !out->has_unfinished) {
        out->has_unfinished = true;
        out->unfinished = other->unfinished;
        out->n_unfinished = other->n_unfinished;
    }
    if (invar_recorded_schedule_may_use_clock(t) ||
        (out->has_batch && (out->has_unfinished || t->open_end)))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "%.1000s: the recorded schedule ends before tick %" PRId64
                      " does: the run ended there, or it is a shortened copy; give a smaller "
                      "num-rollout, or a record that is longer",
                      t->origin, tick);
}

static invar_status append_line(invar_recorded_schedule *t)
{
    INVAR_TRY(t->line.status);
    return t->file ? invar_journal_append(t->file, t->line.data, t->line.bytes) : INVAR_OK;
}

invar_status invar_recorded_schedule_batch(invar_recorded_schedule *t, int64_t tick,
                                           const int64_t *groups, int64_t count)
{
    if (invar_schedule_log_find(&t->own_log, tick))
        return INVAR_OK;
    INVAR_TRY(invar_schedule_log_add_batch(&t->own_log, tick, groups, count,
                                           INVAR_RECORDED_SCHEDULE_FILE));
    invar_schedule_log_trim(&t->own_log,
                            tick - 1); // the journal keeps them, and no later tick reads them
    invar_json_text_reset(&t->line);
    invar_schedule_log_write_batch(&t->line, tick, invar_schedule_log_find(&t->own_log, tick));
    return append_line(t);
}

/*
 * Fails if unfinished samples differ from the log, because sampling again must give equal counts.
 */
static invar_status compare_unfinished(const invar_schedule_tick *own, int64_t tick,
                                       const invar_unfinished_sample *left, int64_t count)
{
    int64_t i = 0;

    while (i < count && i < own->n_unfinished && left[i].sample == own->unfinished[i].sample &&
           left[i].tokens == own->unfinished[i].tokens)
        i++;
    if (i == count && i == own->n_unfinished)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                      "recorded schedule: after tick %" PRId64 " sample %" PRId64
                      " is not where the record has it: the record was changed, or other tokens "
                      "were drawn than when it was made",
                      tick, i < own->n_unfinished ? own->unfinished[i].sample : left[i].sample);
}

invar_status invar_recorded_schedule_drawn(invar_recorded_schedule *t, int64_t tick,
                                           const invar_unfinished_sample *unfinished, int64_t count)
{
    const invar_schedule_tick *own = invar_schedule_log_find(&t->own_log, tick);

    if (own && own->has_unfinished)
        return compare_unfinished(own, tick, unfinished, count);
    INVAR_TRY(invar_schedule_log_add_drawn(&t->own_log, tick, unfinished, count,
                                           INVAR_RECORDED_SCHEDULE_FILE));
    invar_json_text_reset(&t->line);
    invar_schedule_log_write_drawn(&t->line, tick, own);
    return append_line(t);
}

void invar_recorded_schedule_write(invar_json_text *text, const invar_recorded_schedule *t,
                                   int64_t tick)
{
    const invar_schedule_tick *before = invar_schedule_log_find(&t->own_log, tick - 1);
    const invar_schedule_tick *now = invar_schedule_log_find(&t->own_log, tick);

    if (before && before->has_unfinished)
        invar_schedule_log_write_drawn(text, tick - 1, before);
    if (now)
        invar_schedule_log_write_batch(text, tick, now);
}
