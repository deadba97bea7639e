/*
 * step.c - records a step: rows, root, chain and content hash, in one transaction.
 *
 * Each row of a content table is built by one function below. The same row is fed to the content
 * hash and, inside the transaction, written, so the hash covers exactly what is stored. All values
 * are checked before the transaction begins. With must_match, the step is compared with the newest
 * earlier execution that followed the same chain. Nothing is allocated per row.
 *
 * Invariants: L1 to L6 (docs/ledger.md)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "ledger/internal.h"
#include "ledger/validate.h"

#include "base/invar_banned.h"

/* A step that is being recorded: the caller's values, sorted, and the hashes computed from them. */
typedef struct draft {
    const invar_ledger_step *step;
    const invar_ledger_metric **metrics;       /* (n_metrics) sorted by name */
    const invar_ledger_metric **gauges;        /* (n_gauges) sorted by name */
    const invar_ledger_plugin_reply **replies; /* (n_replies) sorted by plug-in and call */
    int64_t seg;
    int64_t entry;
    invar_digest root, chain, content;
    char note[INVAR_LEDGER_NOTE_SIZE]; /* message of the event "content-differs"; empty if the
                                          content is equal or was not compared */
} draft;

/* ---- rows ------------------------------------------------------------------------------------ */

enum { STEP_ROOT = 6, STEP_CHAIN = 7, STEP_CONTENT = 8 }; /* columns of step_row */

static void step_row(invar_ledger_value *row, const draft *d)
{
    const invar_ledger_step *s = d->step;
    const invar_ledger_row_values values = {
        invar_ledger_value_int(s->step),       invar_ledger_value_int(d->seg),
        invar_ledger_value_int(d->entry),      invar_ledger_value_int(s->weights_version),
        invar_ledger_value_digest(&s->batch),  invar_ledger_value_digest(&s->rng),
        invar_ledger_value_digest(&d->root),   invar_ledger_value_digest(&d->chain),
        invar_ledger_value_digest(&d->content)};

    memcpy(row, values, sizeof values);
}

static void metric_row(invar_ledger_value *row, const draft *d, const invar_ledger_metric *metric)
{
    row[0] = invar_ledger_value_int(d->step->step);
    row[1] = invar_ledger_value_int(d->seg);
    row[2] = invar_ledger_value_text(metric->name);
    row[3] = invar_ledger_value_bits(metric->value);
}

static void sample_row(invar_ledger_value *row, const draft *d, size_t idx)
{
    const invar_ledger_sample *s = &d->step->samples[idx];
    const invar_ledger_row_values values = {
        invar_ledger_value_int(d->step->step),       invar_ledger_value_int(d->seg),
        invar_ledger_value_int((int64_t)idx),        invar_ledger_value_int(s->prompt),
        invar_ledger_value_digest(&s->prompt_hash),  invar_ledger_value_text(s->rng),
        invar_ledger_value_int(s->weights_first),    invar_ledger_value_int(s->weights_last),
        invar_ledger_value_digest(&s->weights_hash), invar_ledger_value_int(s->prompt_tokens),
        invar_ledger_value_int(s->tokens),           invar_ledger_value_digest(&s->token_hash),
        invar_ledger_value_digest(&s->rollout_logp), invar_ledger_value_digest(&s->train_logp),
        invar_ledger_value_bits(s->reward),          invar_ledger_value_bits(s->advantage),
        invar_ledger_value_bits(s->logp_diff_max),   invar_ledger_value_int(s->logp_diff_position),
        invar_ledger_value_text(s->finish_reason),   invar_ledger_value_int(s->completion_order)};

    memcpy(row, values, sizeof values);
}

static void reply_row(invar_ledger_value *row, const draft *d,
                      const invar_ledger_plugin_reply *reply)
{
    row[0] = invar_ledger_value_int(d->step->step);
    row[1] = invar_ledger_value_int(d->seg);
    row[2] = invar_ledger_value_text(reply->plugin);
    row[3] = invar_ledger_value_int(reply->call);
    row[4] = invar_ledger_value_digest(&reply->request);
    row[5] = invar_ledger_value_blob(reply->data, reply->bytes);
}

static void part_row(invar_ledger_value *row, const draft *d, const invar_ledger_reward_part *part)
{
    row[0] = invar_ledger_value_int(d->step->step);
    row[1] = invar_ledger_value_int(d->seg);
    row[2] = invar_ledger_value_int(part->sample);
    row[3] = invar_ledger_value_text(part->name);
    row[4] = invar_ledger_value_bits(part->value);
}

/* Makes row i of a content table, in the order of its keys. Returns false after the last row. */
static bool content_row(invar_ledger_value *row, const draft *d, invar_ledger_table table, size_t i)
{
    const invar_ledger_step *s = d->step;

    switch (table) {
    case INVAR_LEDGER_TABLE_METRIC:
        if (i < s->n_metrics)
            metric_row(row, d, d->metrics[i]);
        return i < s->n_metrics;
    case INVAR_LEDGER_TABLE_SAMPLE:
        if (i < s->n_samples)
            sample_row(row, d, i);
        return i < s->n_samples;
    case INVAR_LEDGER_TABLE_REPLY:
        if (i < s->n_replies)
            reply_row(row, d, d->replies[i]);
        return i < s->n_replies;
    default:
        if (i < s->n_parts)
            part_row(row, d, &s->parts[i]);
        return i < s->n_parts;
    }
}

static void work_row(invar_ledger_value *row, const draft *d, const invar_ledger_rank_time *work)
{
    const invar_ledger_row_values values = {
        invar_ledger_value_int(d->step->step),   invar_ledger_value_int(d->seg),
        invar_ledger_value_int(work->rank),      invar_ledger_value_text(work->phase),
        invar_ledger_value_text(work->transfer), invar_ledger_value_text(work->host),
        invar_ledger_value_int(work->calls),     invar_ledger_value_int(work->duration_ns),
        invar_ledger_value_int(work->sent),      invar_ledger_value_int(work->received)};

    memcpy(row, values, sizeof values);
}

static void op_row(invar_ledger_value *row, const draft *d, const invar_ledger_op_time *op)
{
    const invar_ledger_row_values values = {
        invar_ledger_value_int(d->step->step),   invar_ledger_value_int(d->seg),
        invar_ledger_value_int(op->rank),        invar_ledger_value_text(op->phase),
        invar_ledger_value_text(op->op),         invar_ledger_value_int(op->calls),
        invar_ledger_value_int(op->duration_ns), invar_ledger_value_int(op->longest_ns)};

    memcpy(row, values, sizeof values);
}

/* ---- checks of the caller's values ----------------------------------------------------------- */

/* Checks reward parts. They must be in the order of their keys, in which they are hashed. */
static invar_status check_parts(const invar_ledger_step *step)
{
    for (size_t i = 0; i < step->n_parts; i++) {
        const invar_ledger_reward_part *p = &step->parts[i], *before = i > 0 ? p - 1 : NULL;

        INVAR_TRY(invar_ledger_validate_name("a part of a reward", p->name));
        if (p->sample < 0 || (uint64_t)p->sample >= step->n_samples)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "ledger: part \"%.80s\" of the reward of sample %" PRId64
                              "; the step has %zu samples",
                              p->name, p->sample, step->n_samples);
        if (before && (before->sample > p->sample ||
                       (before->sample == p->sample && strcmp(before->name, p->name) >= 0)))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "ledger: part \"%.80s\" of the reward of sample %" PRId64
                              " is not in order",
                              p->name, p->sample);
    }
    return INVAR_OK;
}

static int by_call(const void *a, const void *b)
{
    const invar_ledger_plugin_reply *x = a, *y = b;
    int order = strcmp(x->plugin, y->plugin);

    return order != 0 ? order : (x->call > y->call) - (x->call < y->call);
}

static invar_status check_replies(const invar_ledger_plugin_reply **order,
                                  const invar_ledger_step *step)
{
    for (size_t i = 0; i < step->n_replies; i++) {
        INVAR_TRY(invar_ledger_validate_name("a plug-in", step->replies[i].plugin));
        order[i] = &step->replies[i];
    }
    INVAR_TRY(invar_sort((const void **)order, step->n_replies, by_call));
    for (size_t i = 1; i < step->n_replies; i++)
        if (by_call(order[i - 1], order[i]) == 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "ledger: two replies of \"%.80s\" to call %" PRId64, order[i]->plugin,
                              order[i]->call);
    return INVAR_OK;
}

static invar_status check_rank_times(const invar_ledger_step *step)
{
    for (size_t i = 0; i < step->n_work; i++) {
        const invar_ledger_rank_time *w = &step->work[i];

        if (w->rank < 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "ledger: work of rank %" PRId64 "; ranks are numbered from 0",
                              w->rank);
        INVAR_TRY(invar_ledger_validate_name("the host of a rank", w->host));
        INVAR_TRY(invar_ledger_validate_name("a rank's phase", w->phase));
        if (!w->transfer || w->transfer[0])
            INVAR_TRY(invar_ledger_validate_name("what a rank moved", w->transfer));
    }
    return INVAR_OK;
}

static invar_status check_op_times(const invar_ledger_step *step)
{
    for (size_t i = 0; i < step->n_ops; i++) {
        const invar_ledger_op_time *op = &step->ops[i];

        if (op->rank < 0 || op->calls < 1 || op->duration_ns < 0 || op->longest_ns < 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "ledger: %" PRId64 " calls of an op by rank %" PRId64
                              ", which took %" PRId64 " ns, the longest %" PRId64,
                              op->calls, op->rank, op->duration_ns, op->longest_ns);
        INVAR_TRY(invar_ledger_validate_name("the phase of an op", op->phase));
        INVAR_TRY(invar_ledger_validate_name("an op", op->op));
    }
    return INVAR_OK;
}

static invar_status check_multi_turn(const invar_ledger_step *step)
{
    for (size_t i = 0; i < step->n_multi_turn; i++) {
        const invar_ledger_multi_turn *l = &step->multi_turn[i];

        if (l->sample < 0 || (uint64_t)l->sample >= step->n_samples || l->turns < 1 ||
            l->env_tokens < 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "ledger: %" PRId64 " turns with %" PRId64
                              " tokens inserted, of sample %" PRId64 "; the step has %zu samples",
                              l->turns, l->env_tokens, l->sample, step->n_samples);
    }
    return INVAR_OK;
}

static invar_status check_kept_samples(const invar_ledger_step *step)
{
    for (size_t i = 0; i < step->n_kept; i++) {
        const invar_ledger_kept_sample *k = &step->kept[i];

        if (k->sample < 0 || (uint64_t)k->sample >= step->n_samples || k->bytes == 0 ||
            k->bytes > INVAR_LEDGER_KEPT_SAMPLE_BYTES ||
            (i > 0 && k->sample <= step->kept[i - 1].sample))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "ledger: %zu bytes kept of sample %" PRId64
                              ", the %zu-th kept; the step has %zu samples",
                              k->bytes, k->sample, i + 1, step->n_samples);
    }
    return INVAR_OK;
}

static invar_status check_details(const invar_ledger *ledger, const invar_ledger_step *step)
{
    for (size_t i = 0; i < step->n_replicas; i++)
        if (step->replicas[i].rank < 1)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "ledger: digests of rank %" PRId64 "; replicas have 1 and above",
                              step->replicas[i].rank);
    for (size_t i = 0; i < step->n_stats; i++)
        if (step->stats[i].point < 0 ||
            (uint64_t)step->stats[i].point >= ledger->definition.points || step->stats[i].rank < 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "ledger: statistics of point %" PRId64 ", rank %" PRId64
                              "; there are %zu points",
                              step->stats[i].point, step->stats[i].rank, ledger->definition.points);
    for (size_t i = 0; i < step->n_timings; i++)
        INVAR_TRY(invar_ledger_validate_name("a timing's phase", step->timings[i].phase));
    for (size_t i = 0; i < step->n_events; i++)
        INVAR_TRY(invar_ledger_validate_event(&step->events[i]));
    INVAR_TRY(check_multi_turn(step));
    INVAR_TRY(check_op_times(step));
    INVAR_TRY(check_kept_samples(step));
    return check_rank_times(step);
}

static invar_status check_state(const invar_ledger *ledger, const invar_ledger_step *step)
{
    if (ledger->position.run == 0)
        return INVAR_FAIL(INVAR_E_STATE, 0, "ledger: a step needs a run; begin or resume one");
    if (ledger->position.finished)
        return INVAR_FAIL(INVAR_E_STATE, 0, "ledger: the segment is finished; resume the run");
    if (!ledger->definition.defined)
        return INVAR_FAIL(INVAR_E_STATE, 0, "ledger: define the points before the first step");
    if (step->step != ledger->position.step + 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "ledger: step %" PRId64 " came, expected %" PRId64,
                          step->step, ledger->position.step + 1);
    return INVAR_OK;
}

/* ---- hashes ---------------------------------------------------------------------------------- */

static void hash_content(draft *d)
{
    invar_hasher hasher;
    invar_ledger_row_values row;

    invar_hasher_init(&hasher);
    step_row(row, d);
    invar_ledger_row_content(&hasher, INVAR_LEDGER_TABLE_STEP, row);
    for (size_t t = 0; t < INVAR_CONTENT_TABLES; t++)
        for (size_t i = 0; content_row(row, d, invar_content_tables[t], i); i++)
            invar_ledger_row_content(&hasher, invar_content_tables[t], row);
    invar_hasher_final(&d->content, &hasher);
}

/* ---- a step that an earlier segment executed ------------------------------------------------- */

/* An earlier execution of a step. */
typedef struct execution {
    int64_t seg; /* -1 if there is none */
    invar_digest root, chain, content;
} execution;

static invar_status read_execution(execution *out, const invar_ledger *ledger,
                                   const invar_ledger_stored_row *row)
{
    const struct {
        int column;
        invar_digest *digest;
    } hashes[] = {
        {STEP_ROOT, &out->root}, {STEP_CHAIN, &out->chain}, {STEP_CONTENT, &out->content}};

    INVAR_TRY(invar_ledger_row_check(row, invar_sql_path(ledger->sql)));
    for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++) {
        const invar_ledger_value *value = &row->values[hashes[i].column];

        if (value->type != INVAR_LEDGER_TYPE_BLOB || value->bytes != sizeof *hashes[i].digest)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "ledger %.1000s: a step has no hash; verify it",
                              invar_sql_path(ledger->sql));
        memcpy(hashes[i].digest, value->data, value->bytes);
    }
    return INVAR_OK;
}

/*
 * Finds the newest earlier execution that followed the same chain. Only ledgers of 0.1.0 can hold
 * executions of a step that followed different chains.
 */
static invar_status find_execution(execution *out, const invar_ledger *ledger,
                                   invar_sql_stmt *select, int64_t step)
{
    int64_t seg = ledger->position.seg;
    invar_ledger_stored_row row;
    invar_digest chain;
    invar_status status = INVAR_OK;

    while (out->seg < 0 && status == INVAR_OK && --seg >= 0) {
        INVAR_TRY(INVAR_SQL_BIND(select, ledger->position.run, step, seg));
        if (!invar_ledger_row_next(&row, &status, select, INVAR_LEDGER_TABLE_STEP))
            continue;
        INVAR_TRY(read_execution(out, ledger, &row));
        chain = ledger->position.chain;
        invar_digest_chain(&chain, &out->root);
        if (invar_digest_equal(&chain, &out->chain))
            out->seg = seg;
    }
    return status;
}

/* Writes the first point whose digest differs, among the points that both executions recorded. */
static invar_status describe_point_difference(char *out, size_t size, const invar_ledger *ledger,
                                              const draft *d, int64_t seg)
{
    const invar_ledger_manifest *defined = &ledger->definition;
    invar_sql_stmt *stmt;
    invar_status status = INVAR_SQL_QUERY(
        &stmt, ledger->sql,
        "SELECT q.name, q.op FROM digest d JOIN point p USING(manifest) "
        "JOIN manifest m ON m.hash = ?4 JOIN point q ON q.manifest = m.manifest AND "
        "q.name = p.name WHERE d.run = ?1 AND d.step = ?2 AND d.seg = ?3 AND d.rank = 0 AND "
        "substr(d.data, 1 + 16 * p.ord, 16) <> substr(?5, 1 + 16 * q.ord, 16) "
        "ORDER BY q.ord LIMIT 1",
        ledger->position.run, d->step->step, seg);

    (void)snprintf(out, size, "no point that both recorded differs, but the root does");
    if (status == INVAR_OK)
        status = invar_sql_bind(stmt, 4, invar_ledger_value_digest(&defined->hash));
    if (status == INVAR_OK)
        status = invar_sql_bind(
            stmt, 5,
            invar_ledger_value_blob(d->step->digests, defined->points * sizeof *d->step->digests));
    if (invar_sql_next(&status, stmt))
        (void)snprintf(out, size, "the first point that differs is %.255s (%.255s)",
                       invar_sql_text(stmt, 0, NULL), invar_sql_text(stmt, 1, NULL));
    return invar_sql_end(stmt, status);
}

static void hash_row(invar_digest *out, invar_ledger_table table, const invar_ledger_value *row)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    invar_ledger_row_content(&hasher, table, row);
    invar_hasher_final(out, &hasher);
}

/* Describes the first row of a content table that differs; leaves `out` alone if none does. */
static invar_status describe_row_difference(char *out, size_t size, const invar_ledger *ledger,
                                            const draft *d, invar_ledger_table table, int64_t seg)
{
    invar_sql_stmt *select;
    invar_ledger_stored_row found;
    invar_ledger_row_values own;
    invar_status status = INVAR_LEDGER_ROW_SELECT(&select, ledger->sql, table, ledger->position.run,
                                                  d->step->step, seg);
    bool differs = false, more = true;

    for (size_t i = 0; status == INVAR_OK && more && !differs; i++) {
        invar_digest before, now;
        bool row = invar_ledger_row_next(&found, &status, select, table);

        more = content_row(own, d, table, i);
        if (status != INVAR_OK || (!row && !more))
            break;
        differs = row != more;
        if (!differs) {
            hash_row(&before, table, found.values);
            hash_row(&now, table, own);
            differs = !invar_digest_equal(&before, &now);
        }
        if (differs)
            invar_ledger_row_describe(out, size, table, row ? found.values : own);
    }
    return invar_sql_end(select, status);
}

/*
 * Writes the message of the event "content-differs": the points are equal, but the content is not,
 * for example because another version of the program computes a metric in another way.
 */
static invar_status describe_content_difference(draft *d, const invar_ledger *ledger, int64_t seg)
{
    char row[INVAR_LEDGER_NAME_BYTES + 200] = "its content, of which rows were left out";

    for (size_t t = INVAR_CONTENT_TABLES; t > 0; t--)
        INVAR_TRY(
            describe_row_difference(row, sizeof row, ledger, d, invar_content_tables[t - 1], seg));
    (void)snprintf(d->note, sizeof d->note,
                   "executed again: all points are those of segment %" PRId64 ", but not %s", seg,
                   row);
    return INVAR_OK;
}

static invar_status compare_with_earlier(draft *d, const invar_ledger *ledger)
{
    char point[2 * INVAR_LEDGER_NAME_BYTES + 64];
    execution before = {.seg = -1};
    invar_sql_stmt *select;
    invar_status status;

    INVAR_TRY(INVAR_LEDGER_ROW_SELECT(&select, ledger->sql, INVAR_LEDGER_TABLE_STEP, 0, 0, 0));
    status = invar_sql_end(select, find_execution(&before, ledger, select, d->step->step));
    if (status != INVAR_OK || before.seg < 0)
        return status;
    if (invar_digest_equal(&before.root, &d->root))
        return invar_digest_equal(&before.content, &d->content)
                   ? INVAR_OK
                   : describe_content_difference(d, ledger, before.seg);
    INVAR_TRY(describe_point_difference(point, sizeof point, ledger, d, before.seg));
    return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                      "step %" PRId64 " was executed again and differs from segment %" PRId64
                      " of the ledger: %s; put back the program and the files of the run that "
                      "recorded the step, or begin a new run with --fork",
                      d->step->step, before.seg, point);
}

/* ---- writing --------------------------------------------------------------------------------- */

static invar_status write_values(invar_ledger *ledger, const draft *d, invar_ledger_table table,
                                 const invar_ledger_metric *const *values, size_t count)
{
    invar_ledger_row_values row;

    for (size_t i = 0; i < count; i++) {
        INVAR_TRY(invar_ledger_add_series(ledger, values[i]->name));
        metric_row(row, d, values[i]);
        INVAR_TRY(invar_ledger_add(ledger, table, row));
    }
    return INVAR_OK;
}

static invar_status write_digests(invar_ledger *ledger, const draft *d, int64_t rank,
                                  const invar_digest *digests)
{
    const invar_ledger_manifest *defined = &ledger->definition;

    return invar_ledger_add(
        ledger, INVAR_LEDGER_TABLE_DIGEST,
        (invar_ledger_row_values){
            invar_ledger_value_int(d->step->step), invar_ledger_value_int(d->seg),
            invar_ledger_value_int(rank), invar_ledger_value_digest(&defined->hash),
            invar_ledger_value_blob(digests, defined->points * sizeof *digests)});
}

static invar_status write_details(invar_ledger *ledger, const draft *d)
{
    const invar_ledger_step *s = d->step;
    invar_ledger_row_values row;

    for (size_t i = 0; i < s->n_replicas; i++)
        INVAR_TRY(write_digests(ledger, d, s->replicas[i].rank, s->replicas[i].digests));
    for (size_t i = 0; i < s->n_stats; i++)
        INVAR_TRY(invar_ledger_add(
            ledger, INVAR_LEDGER_TABLE_STAT,
            (invar_ledger_row_values){
                invar_ledger_value_int(s->step), invar_ledger_value_int(d->seg),
                invar_ledger_value_int(s->stats[i].rank), invar_ledger_value_int(s->stats[i].point),
                invar_ledger_value_int(s->stats[i].nans), invar_ledger_value_int(s->stats[i].infs),
                invar_ledger_value_bits(s->stats[i].absmax),
                invar_ledger_value_bits(s->stats[i].l2)}));
    for (size_t i = 0; i < s->n_timings; i++)
        INVAR_TRY(invar_ledger_add(
            ledger, INVAR_LEDGER_TABLE_TIMING,
            (invar_ledger_row_values){invar_ledger_value_int(s->step),
                                      invar_ledger_value_int(d->seg),
                                      invar_ledger_value_text(s->timings[i].phase),
                                      invar_ledger_value_int(s->timings[i].start_ns),
                                      invar_ledger_value_int(s->timings[i].duration_ns)}));
    for (size_t i = 0; i < s->n_work; i++) {
        work_row(row, d, &s->work[i]);
        INVAR_TRY(invar_ledger_add(ledger, INVAR_LEDGER_TABLE_WORK, row));
    }
    for (size_t i = 0; i < s->n_ops; i++) {
        op_row(row, d, &s->ops[i]);
        INVAR_TRY(invar_ledger_add(ledger, INVAR_LEDGER_TABLE_OP_TIME, row));
    }
    for (size_t i = 0; i < s->n_multi_turn; i++)
        INVAR_TRY(invar_ledger_add(
            ledger, INVAR_LEDGER_TABLE_LED_SAMPLE,
            (invar_ledger_row_values){invar_ledger_value_int(s->step),
                                      invar_ledger_value_int(d->seg),
                                      invar_ledger_value_int(s->multi_turn[i].sample),
                                      invar_ledger_value_int(s->multi_turn[i].turns),
                                      invar_ledger_value_int(s->multi_turn[i].env_tokens)}));
    for (size_t i = 0; i < s->n_kept; i++)
        INVAR_TRY(invar_ledger_add(
            ledger, INVAR_LEDGER_TABLE_KEPT_SAMPLE,
            (invar_ledger_row_values){invar_ledger_value_int(s->step),
                                      invar_ledger_value_int(d->seg),
                                      invar_ledger_value_int(s->kept[i].sample),
                                      invar_ledger_value_blob(s->kept[i].data, s->kept[i].bytes)}));
    for (size_t i = 0; i < s->n_events; i++)
        INVAR_TRY(invar_ledger_add_event(ledger, &s->events[i], s->step, (int64_t)i));
    if (!d->note[0])
        return INVAR_OK;
    return invar_ledger_add_event(
        ledger,
        &(invar_ledger_event){.level = "warning", .kind = "content-differs", .message = d->note},
        s->step, (int64_t)s->n_events);
}

static invar_status write_step(invar_ledger *ledger, const draft *d)
{
    const invar_ledger_step *s = d->step;
    invar_ledger_row_values row;

    step_row(row, d);
    INVAR_TRY(invar_ledger_add(ledger, INVAR_LEDGER_TABLE_STEP, row));
    INVAR_TRY(write_values(ledger, d, INVAR_LEDGER_TABLE_METRIC, d->metrics, s->n_metrics));
    INVAR_TRY(write_values(ledger, d, INVAR_LEDGER_TABLE_GAUGE, d->gauges, s->n_gauges));
    INVAR_TRY(write_digests(ledger, d, 0, s->digests));
    for (size_t i = 0; content_row(row, d, INVAR_LEDGER_TABLE_SAMPLE, i); i++)
        INVAR_TRY(invar_ledger_add(ledger, INVAR_LEDGER_TABLE_SAMPLE, row));
    for (size_t i = 0; content_row(row, d, INVAR_LEDGER_TABLE_REPLY, i); i++)
        INVAR_TRY(invar_ledger_add(ledger, INVAR_LEDGER_TABLE_REPLY, row));
    for (size_t i = 0; content_row(row, d, INVAR_LEDGER_TABLE_REWARD_PART, i); i++) {
        INVAR_TRY(invar_ledger_add_series(ledger, s->parts[i].name));
        INVAR_TRY(invar_ledger_add(ledger, INVAR_LEDGER_TABLE_REWARD_PART, row));
    }
    return write_details(ledger, d);
}

static invar_status append_draft(invar_ledger *ledger, draft *d)
{
    const invar_ledger_step *s = d->step;
    invar_ledger_position next = ledger->position;

    INVAR_TRY(invar_ledger_validate_metrics(d->metrics, "a metric", s->metrics, s->n_metrics));
    INVAR_TRY(invar_ledger_validate_metrics(d->gauges, "a gauge", s->gauges, s->n_gauges));
    INVAR_TRY(check_replies(d->replies, s));
    invar_ledger_step_root(&d->root, s->digests, ledger->definition.rooted,
                           ledger->definition.points);
    d->chain = ledger->position.chain;
    invar_digest_chain(&d->chain, &d->root);
    hash_content(d);
    if (s->must_match && ledger->position.seg > 0)
        INVAR_TRY(compare_with_earlier(d, ledger));
    next.step = s->step;
    next.chain = d->chain;
    INVAR_TRY(invar_ledger_begin_transaction(ledger, "step", INVAR_DURABILITY_PROCESS));
    INVAR_TRY(invar_ledger_commit(ledger, write_step(ledger, d), &next));
    if (d->note[0] && ledger->other_content++ == 0)
        memcpy(ledger->other_note, d->note, sizeof d->note);
    return INVAR_OK;
}

invar_status invar_ledger_append(invar_ledger *ledger, const invar_ledger_step *step)
{
    draft d = {.step = step, .seg = ledger->position.seg, .entry = ledger->position.entry};
    const void **order;
    invar_status status;

    INVAR_TRY(check_state(ledger, step));
    for (size_t i = 0; i < step->n_samples; i++) {
        INVAR_TRY(invar_ledger_validate_name("a sample's coordinates", step->samples[i].rng));
        INVAR_TRY(invar_ledger_validate_name("a sample's finish", step->samples[i].finish_reason));
    }
    INVAR_TRY(check_parts(step));
    INVAR_TRY(check_details(ledger, step));
    INVAR_TRY(INVAR_ALLOC(order, step->n_metrics + step->n_gauges + step->n_replies, "a step"));
    d.metrics = (const invar_ledger_metric **)order;
    d.gauges = d.metrics + step->n_metrics;
    d.replies = (const invar_ledger_plugin_reply **)(order + step->n_metrics + step->n_gauges);
    status = append_draft(ledger, &d);
    invar_free(order);
    return status;
}

invar_status invar_ledger_chain(int64_t *step_out, invar_digest *chain_out,
                                const invar_ledger *ledger)
{
    if (ledger->position.run == 0)
        return INVAR_FAIL(INVAR_E_STATE, 0, "ledger: no run has begun");
    *step_out = ledger->position.step;
    *chain_out = ledger->position.chain;
    return INVAR_OK;
}

int64_t invar_ledger_other_content(const char **note_out, const invar_ledger *ledger)
{
    *note_out = ledger->other_note;
    return ledger->other_content;
}
