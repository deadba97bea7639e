/*
 * export.c - exports a run as CSV and as JSON lines.
 *
 * JSON lines are driven by a table of queries. The names of a query's columns are the names of the
 * members, their types are the types in JSON, and a column of bits also becomes a number.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/export/export.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/number.h"
#include "base/text.h"
#include "ledger/internal.h"
#include "ledger/store/sql.h"
#include "ledger/view/export/scalars.h"

#include "base/invar_banned.h"

/* ---- both ------------------------------------------------------------------------------------ */

static invar_status check_written(FILE *out)
{
    if (ferror(out))
        return INVAR_FAIL(INVAR_E_IO, errno, "the export cannot be written: %s", strerror(errno));
    return INVAR_OK;
}

static invar_status flush_output(FILE *out)
{
    fflush(out);
    return check_written(out);
}

/* ---- CSV ------------------------------------------------------------------------------------- */

void invar_export_csv_field(FILE *out, const char *text, size_t bytes)
{
    bool quoted = false;

    for (size_t i = 0; i < bytes && !quoted; i++)
        quoted = strchr(",\"\r\n", text[i]) != NULL; // strchr finds a NUL byte, too
    if (quoted)
        fputc('"', out);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '"')
            fputc('"', out);
        fputc(text[i], out);
    }
    if (quoted)
        fputc('"', out);
}

static invar_status write_scalar(void *payload, const invar_export_scalar *scalar)
{
    FILE *out = payload;
    char value[INVAR_NUMBER_SIZE];

    INVAR_TRY(invar_number_format(value, scalar->value));
    fprintf(out, "%" PRId64 ",%" PRId64 ",", scalar->step, scalar->seg);
    invar_export_csv_field(out, scalar->name, scalar->name_bytes);
    fprintf(out, ",%s,0x%016" PRIx64 "\r\n", value, scalar->bits);
    return check_written(out);
}

invar_status invar_export_csv(FILE *out, invar_ledger *ledger, int64_t run)
{
    const invar_export_range all = {.after = -2, .upto = INT64_MAX};
    invar_export_run found;

    INVAR_TRY(invar_export_find(&found, ledger, run));
    fputs(INVAR_EXPORT_CSV_MARK, out);
    INVAR_TRY(invar_export_scalars(ledger, run, &all, write_scalar, out));
    return flush_output(out);
}

/* ---- JSON: what there is --------------------------------------------------------------------- */

/*
 * A member of a line that is an object of its own, with one member per row of `sql`, named by the
 * first column. In `sql` ?1 is the run, and ?2, ?3 ... are the first columns of the line's query.
 */
typedef struct member {
    const char *name;
    bool plain; /* the value of a row is its second column; otherwise an object of all columns
                   except the first */
    const char *sql;
} member;

#define MEMBERS 4

typedef struct part {
    const char *kind;
    const char *sql; /* query of the lines, with ?1 = run */
    member members[MEMBERS];
} part;

#define OF_STEP "WHERE x.run = ?1 AND x.step = ?2 AND x.seg = ?3"
#define NUMBERS(table)                                                                             \
    "SELECT n.name, x.value_bits AS bits FROM " table                                              \
    " x LEFT JOIN series n USING(series) " OF_STEP " ORDER BY n.name"
#define DIGESTS(rank)                                                                              \
    "SELECT x.name, x.hash FROM digests x " OF_STEP " AND x.rank = " rank " ORDER BY x.ord"

static const part parts[] = {
    {.kind = "run",
     .sql = "SELECT r.uuid, r.name, r.kind AS run_kind, r.identity, r.parent, r.fork_step,"
            " e.ns AS created_ns FROM run r JOIN entry e ON e.run = r.run AND e.n = r.entry"
            " WHERE r.run = ?1"},
    {.kind = "identity", .sql = "SELECT key, value FROM identity WHERE run = ?1 ORDER BY key"},
    {.kind = "segment",
     .sql = "SELECT s.seg AS segment, s.after_step, s.chain, e.ns, f.exit_code, f.reason"
            " FROM segment s JOIN entry e ON e.run = s.run AND e.n = s.entry"
            " LEFT JOIN finish f ON f.run = s.run AND f.seg = s.seg"
            " WHERE s.run = ?1 ORDER BY s.seg"},
    {.kind = "fact",
     .sql = "SELECT seg AS segment, scope, key, value FROM fact WHERE run = ?1"
            " ORDER BY seg, scope, key"},
    {.kind = "object",
     .sql = "SELECT hash, kind AS object_kind, data FROM object WHERE run = ?1 ORDER BY hash"},
    {.kind = "point",
     .sql = "SELECT m.hash AS manifest, p.ord, p.name, p.phase, p.layer, p.op,"
            " p.kind AS point_kind, p.level, p.dtype, p.shape, p.shards, p.replicated, p.inputs"
            " FROM point p JOIN manifest m USING(manifest)"
            " WHERE p.manifest IN (SELECT manifest FROM digest WHERE run = ?1)"
            " ORDER BY p.manifest, p.ord"},
    {.kind = "step",
     .sql = "SELECT s.step, s.seg AS segment, s.seg = (SELECT max(t.seg) FROM step t"
            " WHERE t.run = s.run AND t.step = s.step) AS newest, e.ns, s.weights, s.batch, s.rng,"
            " s.root, s.chain, s.content, m.hash AS manifest"
            " FROM step s JOIN entry e ON e.run = s.run AND e.n = s.entry"
            " LEFT JOIN digest d ON d.run = s.run AND d.step = s.step AND d.seg = s.seg"
            " AND d.rank = 0 LEFT JOIN manifest m USING(manifest)"
            " WHERE s.run = ?1 ORDER BY s.step, s.seg",
     .members = {{.name = "metrics", .sql = NUMBERS("metric")},
                 {.name = "digests", .plain = true, .sql = DIGESTS("0")},
                 {.name = "gauges", .sql = NUMBERS("gauge")},
                 {.name = "timings",
                  .sql = "SELECT x.phase, x.start_ns, x.duration_ns FROM timing x " OF_STEP
                         " ORDER BY x.phase"}}},
    {.kind = "replica",
     .sql = "SELECT step, seg AS segment, rank FROM digest WHERE run = ?1 AND rank > 0"
            " ORDER BY step, seg, rank",
     .members = {{.name = "digests", .plain = true, .sql = DIGESTS("?4")}}},
    {.kind = "stat",
     .sql = "SELECT x.step, x.seg AS segment, x.rank, p.name AS point, x.nans, x.infs,"
            " x.absmax_bits, x.l2_bits FROM stat x LEFT JOIN digest d ON d.run = x.run"
            " AND d.step = x.step AND d.seg = x.seg AND d.rank = 0"
            " LEFT JOIN point p ON p.manifest = d.manifest AND p.ord = x.ord"
            " WHERE x.run = ?1 ORDER BY x.step, x.seg, x.rank, x.ord"},
    {.kind = "sample",
     .sql = "SELECT step, seg AS segment, idx, prompt, prompt_hash, rng, weights_first,"
            " weights_last, weights_hash, prompt_tokens, tokens, token_hash, rollout_logp,"
            " train_logp, reward_bits, advantage_bits, diff_bits, diff_at, finish, arrival"
            " FROM sample WHERE run = ?1 ORDER BY step, seg, idx"},
    {.kind = "reply",
     .sql = "SELECT step, seg AS segment, plugin, call, request, data FROM reply WHERE run = ?1"
            " ORDER BY step, seg, plugin, call"},
    {.kind = "reward_part",
     .sql = "SELECT x.step, x.seg AS segment, x.idx, n.name, x.value_bits AS bits"
            " FROM reward_part x LEFT JOIN series n USING(series)"
            " WHERE x.run = ?1 ORDER BY x.step, x.seg, x.idx, n.name"},
    {.kind = "led_sample",
     .sql = "SELECT step, seg AS segment, idx, turns, inserted FROM led_sample WHERE run = ?1"
            " ORDER BY step, seg, idx"},
    {.kind = "kept_sample",
     .sql = "SELECT step, seg AS segment, idx, data FROM kept_sample WHERE run = ?1"
            " ORDER BY step, seg, idx"},
    {.kind = "work",
     .sql = "SELECT step, seg AS segment, rank, host, phase, move, calls, duration_ns, sent,"
            " received FROM work WHERE run = ?1 ORDER BY step, seg, rank, phase, move"},
    {.kind = "op_time",
     .sql = "SELECT step, seg AS segment, rank, phase, op, calls, duration_ns, longest_ns"
            " FROM op_time WHERE run = ?1 ORDER BY step, seg, rank, phase, op"},
    {.kind = "evaluation",
     .sql = "SELECT x.step, x.seg AS segment, e.ns, x.dataset, n.name, x.value_bits AS bits"
            " FROM evaluation x LEFT JOIN series n USING(series)"
            " JOIN entry e ON e.run = x.run AND e.n = x.entry"
            " WHERE x.run = ?1 ORDER BY x.step, x.seg, x.dataset, n.name"},
    {.kind = "checkpoint",
     .sql = "SELECT step, seg AS segment, entry, state, path, bytes, hash, chain FROM checkpoint"
            " WHERE run = ?1 ORDER BY step, seg, entry"},
    {.kind = "event",
     .sql = "SELECT entry, i, seg AS segment, step, level, kind AS event_kind, message, data"
            " FROM event WHERE run = ?1 ORDER BY entry, i"},
    {.kind = "seal",
     .sql = "SELECT entry, content, integrity, sha256 FROM seal WHERE run = ?1 ORDER BY entry"},
    {.kind = "entry",
     .sql = "SELECT n, kind AS entry_kind, ns, rows, chain FROM entry WHERE run = ?1 ORDER BY n"},
};

/* ---- JSON: how it is written ----------------------------------------------------------------- */

/* Fails for a text of which jansson made no string: it is not UTF-8, or memory was lacking. */
static invar_status no_string(const char *text, size_t bytes)
{
    json_t *checked = json_stringn(text, bytes), *any = json_stringn_nocheck(text, bytes);
    bool damaged = any && !checked;
    char quote[INVAR_TEXT_QUOTE_SIZE];

    json_decref(checked);
    json_decref(any);
    if (!damaged)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "the export: no memory for a value");
    invar_text_quote(quote, sizeof quote, text, bytes);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the export: '%s' is not UTF-8; verify the ledger",
                      quote);
}

/* Sets a member. Owns `value`, also after a failure; NULL means that there was no memory for it. */
static invar_status set_member(json_t *object, const char *name, json_t *value)
{
    if (json_object_set_new(object, name, value) != 0)
        return no_string(name, strlen(name));
    return INVAR_OK;
}

json_t *invar_export_hex(const void *data, size_t bytes)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *from = data;
    char *hex;
    json_t *value;

    if (INVAR_ALLOC(hex, 2 * bytes, "JSON") != INVAR_OK)
        return NULL;
    for (size_t i = 0; i < bytes; i++) {
        hex[2 * i] = digits[from[i] >> 4];
        hex[2 * i + 1] = digits[from[i] & 15];
    }
    value = json_stringn_nocheck(hex, 2 * bytes);
    invar_free(hex);
    return value;
}

/* Sets a double and its bits: the members X and X_bits for the column X_bits, value for bits. */
static invar_status put_bits(json_t *object, const char *name, int64_t bits)
{
    char real[64] = "value", text[INVAR_NUMBER_SIZE], hex[24];
    double value;

    memcpy(&value, &bits, sizeof value);
    if (strcmp(name, "bits") != 0)
        snprintf(real, sizeof real, "%.*s", (int)(strlen(name) - strlen("_bits")), name);
    snprintf(hex, sizeof hex, "0x%016" PRIx64, (uint64_t)bits);
    if (isfinite(value)) {
        INVAR_TRY(set_member(object, real, json_real(value)));
    } else {
        INVAR_TRY(invar_number_format(text, value));
        INVAR_TRY(set_member(object, real, json_string(text)));
    }
    return set_member(object, name, json_string(hex));
}

static invar_status put_column(json_t *object, const char *name, invar_sql_stmt *row, int column)
{
    size_t bytes;
    const void *data;
    json_t *value;

    switch (invar_sql_type(row, column)) {
    case INVAR_LEDGER_TYPE_INT:
        return set_member(object, name, json_integer(invar_sql_int(row, column)));
    case INVAR_LEDGER_TYPE_TEXT:
        data = invar_sql_text(row, column, &bytes);
        value = json_stringn(data, bytes);
        return value ? set_member(object, name, value) : no_string(data, bytes);
    case INVAR_LEDGER_TYPE_BLOB:
        data = invar_sql_blob(row, column, &bytes);
        return set_member(object, name, invar_export_hex(data, bytes));
    default: return set_member(object, name, json_null());
    }
}

static invar_status put_columns(json_t *object, invar_sql_stmt *row, int first)
{
    for (int i = first; i < invar_sql_columns(row); i++) {
        const char *name = invar_sql_column_name(row, i);
        if (invar_text_has_suffix(name, "bits"))
            INVAR_TRY(put_bits(object, name, invar_sql_int(row, i)));
        else
            INVAR_TRY(put_column(object, name, row, i));
    }
    return INVAR_OK;
}

static invar_status put_item(json_t *object, const member *m, invar_sql_stmt *row)
{
    const char *name = invar_sql_text(row, 0, NULL);
    json_t *item;

    if (name[0] == '\0')
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the export: a value has no name; verify the ledger");
    if (m->plain)
        return put_column(object, name, row, 1);
    item = json_object();
    INVAR_TRY(set_member(object, name, item)); // `object` owns it now
    return put_columns(item, row, 1);
}

static invar_status put_member(json_t *object, const member *m, invar_sql_stmt *inner, int64_t run,
                               invar_sql_stmt *outer)
{
    json_t *value = json_object();
    invar_status status;

    INVAR_TRY(set_member(object, m->name, value));
    status = INVAR_SQL_BIND(inner, run, invar_sql_int(outer, 0), invar_sql_int(outer, 1),
                            invar_sql_int(outer, 2));
    while (invar_sql_next(&status, inner))
        status = put_item(value, m, inner);
    return status;
}

/* The prepared statements of a part: the query of its lines and those of its members. */
typedef struct queries {
    invar_sql_stmt *lines;
    invar_sql_stmt *members[MEMBERS];
} queries;

static invar_status write_row(FILE *out, int64_t run, const part *p, const queries *q)
{
    json_t *line = json_object();
    invar_status status = set_member(line, "kind", json_string(p->kind));

    if (status == INVAR_OK)
        status = put_columns(line, q->lines, 0);
    for (int i = 0; i < MEMBERS && p->members[i].sql && status == INVAR_OK; i++)
        status = put_member(line, &p->members[i], q->members[i], run, q->lines);
    // json_dumpf also fails for lack of memory
    if (status == INVAR_OK && json_dumpf(line, out, JSON_COMPACT) != 0 && !ferror(out))
        status = INVAR_FAIL(INVAR_E_NOMEM, 0, "the export: no memory for a line");
    if (status == INVAR_OK) {
        fputc('\n', out);
        status = check_written(out);
    }
    json_decref(line);
    return status;
}

static invar_status write_part(FILE *out, invar_sql *sql, int64_t run, const part *p)
{
    queries q = {NULL, {NULL}};
    invar_status status = INVAR_SQL_QUERY(&q.lines, sql, p->sql, run);

    for (int i = 0; i < MEMBERS && p->members[i].sql && status == INVAR_OK; i++)
        status = invar_sql_prepare(&q.members[i], sql, p->members[i].sql);
    while (invar_sql_next(&status, q.lines))
        status = write_row(out, run, p, &q);
    for (int i = 0; i < MEMBERS; i++)
        invar_sql_free(q.members[i]);
    return invar_sql_end(q.lines, status);
}

invar_status invar_export_jsonl(FILE *out, invar_ledger *ledger, int64_t run)
{
    invar_export_run found;
    invar_status status;
    bool began;

    INVAR_TRY(invar_ledger_snapshot(&began, ledger));
    status = invar_export_find(&found, ledger, run);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && status == INVAR_OK; i++)
        status = write_part(out, ledger->sql, run, &parts[i]);
    if (status == INVAR_OK)
        status = flush_output(out);
    invar_ledger_snapshot_end(ledger, began);
    return status;
}
