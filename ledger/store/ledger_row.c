/*
 * ledger_row.c - the rows of a run: tables, canonical bytes, sums, and how rows are written and
 * read.
 *
 * The array specs repeats the scripts of schema/ on purpose, in a form that a program can iterate
 * over; a test compares the two. All SQL that reads or writes rows of runs is generated from it.
 *
 * Invariants: L1, L2, L3 (docs/ledger.md)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/store/ledger_row.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/invar_banned.h"

/* ---- the tables ------------------------------------------------------------------------------ */

#define INT INVAR_LEDGER_TYPE_INT
#define TEXT INVAR_LEDGER_TYPE_TEXT
#define BLOB INVAR_LEDGER_TYPE_BLOB
#define K INVAR_COLUMN_KEY
#define C INVAR_COLUMN_CONTENT
#define TWIN (INVAR_COLUMN_HAS_READABLE_COPY | INVAR_COLUMN_CONTENT)
#define ENTRY                                                                                      \
    {                                                                                              \
        "entry", INT, INVAR_COLUMN_ENTRY                                                           \
    }
#define STEP                                                                                       \
    {                                                                                              \
        "step", INT, K | C                                                                         \
    }
#define SEG                                                                                        \
    {                                                                                              \
        "seg", INT, K                                                                              \
    }
#define SERIES                                                                                     \
    {                                                                                              \
        "series", TEXT, K | C | INVAR_COLUMN_SERIES                                                \
    }

enum { ALWAYS = false, DETAIL = true };

static const invar_ledger_table_def specs[INVAR_LEDGER_TABLE_COUNT] = {
    [INVAR_LEDGER_TABLE_RUN] = {"run",
                                ALWAYS,
                                {ENTRY,
                                 {"uuid", TEXT, K},
                                 {"name", TEXT, 0},
                                 {"kind", TEXT, 0},
                                 {"identity", BLOB, 0},
                                 {"parent", TEXT, 0},
                                 {"fork_step", INT, 0}}},
    [INVAR_LEDGER_TABLE_IDENTITY] = {"identity",
                                     ALWAYS,
                                     {{"key", TEXT, K}, ENTRY, {"value", TEXT, 0}}},
    [INVAR_LEDGER_TABLE_SEGMENT] = {"segment",
                                    ALWAYS,
                                    {SEG, ENTRY, {"after_step", INT, 0}, {"chain", BLOB, 0}}},
    [INVAR_LEDGER_TABLE_FINISH] = {"finish",
                                   ALWAYS,
                                   {SEG, ENTRY, {"exit_code", INT, 0}, {"reason", TEXT, 0}}},
    [INVAR_LEDGER_TABLE_FACT] =
        {"fact", ALWAYS, {SEG, {"scope", TEXT, K}, {"key", TEXT, K}, ENTRY, {"value", TEXT, 0}}},
    [INVAR_LEDGER_TABLE_OBJECT] =
        {"object", ALWAYS, {{"hash", BLOB, K}, ENTRY, {"kind", TEXT, 0}, {"data", BLOB, 0}}},
    [INVAR_LEDGER_TABLE_STEP] = {"step",
                                 ALWAYS,
                                 {STEP,
                                  SEG,
                                  ENTRY,
                                  {"weights", INT, C},
                                  {"batch", BLOB, C},
                                  {"rng", BLOB, C},
                                  {"root", BLOB, C},
                                  {"chain", BLOB, C},
                                  {"content", BLOB, 0}}},
    [INVAR_LEDGER_TABLE_METRIC] = {"metric",
                                   ALWAYS,
                                   {STEP, SEG, SERIES, {"value_bits", INT, TWIN}}},
    [INVAR_LEDGER_TABLE_DIGEST] = {"digest",
                                   DETAIL,
                                   {STEP,
                                    SEG,
                                    {"rank", INT, K},
                                    {"manifest", BLOB, INVAR_COLUMN_MANIFEST},
                                    {"data", BLOB, 0}}},
    [INVAR_LEDGER_TABLE_STAT] = {"stat",
                                 DETAIL,
                                 {STEP,
                                  SEG,
                                  {"rank", INT, K},
                                  {"ord", INT, K},
                                  {"nans", INT, 0},
                                  {"infs", INT, 0},
                                  {"absmax_bits", INT, INVAR_COLUMN_HAS_READABLE_COPY},
                                  {"l2_bits", INT, INVAR_COLUMN_HAS_READABLE_COPY}}},
    [INVAR_LEDGER_TABLE_SAMPLE] = {"sample",
                                   DETAIL,
                                   {STEP,
                                    SEG,
                                    {"idx", INT, K | C},
                                    {"prompt", INT, C},
                                    {"prompt_hash", BLOB, C},
                                    {"rng", TEXT, C},
                                    {"weights_first", INT, C},
                                    {"weights_last", INT, C},
                                    {"weights_hash", BLOB, C},
                                    {"prompt_tokens", INT, C},
                                    {"tokens", INT, C},
                                    {"token_hash", BLOB, C},
                                    {"rollout_logp", BLOB, C},
                                    {"train_logp", BLOB, C},
                                    {"reward_bits", INT, TWIN},
                                    {"advantage_bits", INT, TWIN},
                                    {"diff_bits", INT, TWIN},
                                    {"diff_at", INT, C},
                                    {"finish", TEXT, C},
                                    {"arrival", INT, 0}}},
    [INVAR_LEDGER_TABLE_REPLY] = {"reply",
                                  DETAIL,
                                  {STEP,
                                   SEG,
                                   {"plugin", TEXT, K | C},
                                   {"call", INT, K | C},
                                   {"request", BLOB, C},
                                   {"data", BLOB, C}}},
    [INVAR_LEDGER_TABLE_EVALUATION] =
        {"evaluation",
         ALWAYS,
         {STEP, SEG, {"dataset", TEXT, K | C}, SERIES, ENTRY, {"value_bits", INT, TWIN}}},
    [INVAR_LEDGER_TABLE_CHECKPOINT] = {"checkpoint",
                                       ALWAYS,
                                       {STEP,
                                        SEG,
                                        {"entry", INT, K | INVAR_COLUMN_ENTRY},
                                        {"state", TEXT, 0},
                                        {"path", TEXT, 0},
                                        {"bytes", INT, 0},
                                        {"hash", BLOB, 0},
                                        {"chain", BLOB, 0}}},
    [INVAR_LEDGER_TABLE_SEAL] = {"seal",
                                 ALWAYS,
                                 {{"entry", INT, K | INVAR_COLUMN_ENTRY},
                                  {"content", BLOB, 0},
                                  {"integrity", BLOB, 0},
                                  {"sha256", BLOB, 0}}},
    [INVAR_LEDGER_TABLE_TIMING] =
        {"timing",
         DETAIL,
         {STEP, SEG, {"phase", TEXT, K}, {"start_ns", INT, 0}, {"duration_ns", INT, 0}}},
    [INVAR_LEDGER_TABLE_GAUGE] =
        {"gauge", DETAIL, {STEP, SEG, SERIES, {"value_bits", INT, INVAR_COLUMN_HAS_READABLE_COPY}}},
    [INVAR_LEDGER_TABLE_EVENT] = {"event",
                                  ALWAYS,
                                  {{"entry", INT, K | INVAR_COLUMN_ENTRY},
                                   {"i", INT, K},
                                   {"seg", INT, 0},
                                   {"step", INT, 0},
                                   {"level", TEXT, 0},
                                   {"kind", TEXT, 0},
                                   {"message", TEXT, 0},
                                   {"data", TEXT, 0}}},
    [INVAR_LEDGER_TABLE_WORK] = {"work",
                                 DETAIL,
                                 {STEP,
                                  SEG,
                                  {"rank", INT, K},
                                  {"phase", TEXT, K},
                                  {"move", TEXT, K},
                                  {"host", TEXT, 0},
                                  {"calls", INT, 0},
                                  {"duration_ns", INT, 0},
                                  {"sent", INT, 0},
                                  {"received", INT, 0}}},
    [INVAR_LEDGER_TABLE_REWARD_PART] =
        {"reward_part",
         DETAIL,
         {STEP, SEG, {"idx", INT, K | C}, SERIES, {"value_bits", INT, TWIN}}},
    [INVAR_LEDGER_TABLE_LED_SAMPLE] =
        {"led_sample",
         DETAIL,
         {STEP, SEG, {"idx", INT, K}, {"turns", INT, 0}, {"inserted", INT, 0}}},
    [INVAR_LEDGER_TABLE_OP_TIME] = {"op_time",
                                    DETAIL,
                                    {STEP,
                                     SEG,
                                     {"rank", INT, K},
                                     {"phase", TEXT, K},
                                     {"op", TEXT, K},
                                     {"calls", INT, 0},
                                     {"duration_ns", INT, 0},
                                     {"longest_ns", INT, 0}}},
    [INVAR_LEDGER_TABLE_KEPT_SAMPLE] = {"kept_sample",
                                        DETAIL,
                                        {STEP, SEG, {"idx", INT, K}, {"data", BLOB, 0}}},
};

const invar_ledger_table invar_content_tables[INVAR_CONTENT_TABLES] = {
    INVAR_LEDGER_TABLE_METRIC, INVAR_LEDGER_TABLE_SAMPLE, INVAR_LEDGER_TABLE_REPLY,
    INVAR_LEDGER_TABLE_REWARD_PART};

const invar_ledger_table_def *invar_ledger_table_get(invar_ledger_table table)
{
    return &specs[table];
}

/* ---- values ---------------------------------------------------------------------------------- */

invar_ledger_value invar_ledger_value_null(void)
{
    return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_NULL};
}

invar_ledger_value invar_ledger_value_int(int64_t value)
{
    return (invar_ledger_value){.type = INT, .integer = value};
}

invar_ledger_value invar_ledger_value_bits(double value)
{
    invar_ledger_value bits = {.type = INT};

    memcpy(&bits.integer, &value, sizeof value);
    return bits;
}

invar_ledger_value invar_ledger_value_text(const char *text)
{
    return text ? (invar_ledger_value){.type = TEXT, .data = text, .bytes = strlen(text)}
                : invar_ledger_value_null();
}

invar_ledger_value invar_ledger_value_blob(const void *data, size_t bytes)
{
    return (invar_ledger_value){.type = BLOB, .data = data, .bytes = bytes};
}

invar_ledger_value invar_ledger_value_digest(const invar_digest *digest)
{
    return invar_ledger_value_blob(digest->bytes, sizeof digest->bytes);
}

/* ---- canonical bytes ------------------------------------------------------------------------- */

static void feed_tagged(invar_ledger_bytes_fn feed, void *payload, uint8_t tag, uint64_t number)
{
    uint8_t head[9] = {tag};

    for (int i = 0; i < 8; i++)
        head[1 + i] = (uint8_t)(number >> 8 * i);
    feed(payload, head, sizeof head);
}

void invar_ledger_value_feed(invar_ledger_bytes_fn on_bytes, void *payload,
                             const invar_ledger_value *value)
{
    invar_ledger_value bits;

    switch (value->type) {
    case INVAR_LEDGER_TYPE_INT: feed_tagged(on_bytes, payload, 1, (uint64_t)value->integer); return;
    case INVAR_LEDGER_TYPE_TEXT:
    case INVAR_LEDGER_TYPE_BLOB:
        feed_tagged(on_bytes, payload, value->type == TEXT ? 2 : 3, value->bytes);
        on_bytes(payload, value->data, value->bytes);
        return;
    case INVAR_LEDGER_TYPE_REAL: // not in any column, but a forged one must not pass as NULL
        bits = invar_ledger_value_bits(value->real);
        feed_tagged(on_bytes, payload, 4, (uint64_t)bits.integer);
        return;
    default: on_bytes(payload, "", 1); return; // NULL
    }
}

static void feed_columns(invar_ledger_bytes_fn feed, void *payload, invar_ledger_table table,
                         const invar_ledger_value *row, int flags)
{
    const invar_ledger_table_def *spec = &specs[table];
    invar_ledger_value name = invar_ledger_value_text(spec->name);

    invar_ledger_value_feed(feed, payload, &name);
    for (int i = 0; spec->column[i].name; i++)
        if ((spec->column[i].flags & flags) == flags)
            invar_ledger_value_feed(feed, payload, &row[i]);
}

static void feed_hasher(void *hasher, const void *data, size_t bytes)
{
    invar_hasher_update(hasher, data, bytes);
}

void invar_ledger_value_hash(invar_hasher *hasher, const invar_ledger_value *value)
{
    invar_ledger_value_feed(feed_hasher, hasher, value);
}

int64_t invar_ledger_row_sum(invar_ledger_table table, const invar_ledger_value *row)
{
    invar_hasher hasher;
    invar_digest digest;
    uint64_t sum = 0;

    invar_hasher_init(&hasher);
    feed_columns(feed_hasher, &hasher, table, row, 0);
    invar_hasher_final(&digest, &hasher);
    for (int i = 0; i < 8; i++)
        sum = sum << 8 | digest.bytes[i];
    return (int64_t)sum;
}

void invar_ledger_row_content(invar_hasher *hasher, invar_ledger_table table,
                              const invar_ledger_value *row)
{
    feed_columns(feed_hasher, hasher, table, row, INVAR_COLUMN_CONTENT);
}

void invar_ledger_row_canonical(invar_ledger_table table, const invar_ledger_value *row,
                                invar_ledger_bytes_fn on_bytes, void *payload)
{
    feed_columns(on_bytes, payload, table, row, 0);
}

/* ---- statements ------------------------------------------------------------------------------ */

/* Text in a buffer of fixed size, in which all generated statements fit. */
typedef struct text {
    char data[4096];
    size_t used;
} text;

static void text_add(text *t, const char *format, ...) INVAR_PRINTF(2, 3);

static void text_add(text *t, const char *format, ...)
{
    va_list arguments;
    int written;

    va_start(arguments, format);
    written = vsnprintf(t->data + t->used, sizeof t->data - t->used, format, arguments);
    va_end(arguments);
    INVAR_CHECK(written >= 0 && (size_t)written < sizeof t->data - t->used);
    t->used += (size_t)written;
}

/* Returns the length of the readable copy's name: "value" for "value_bits". */
static int twin_length(const invar_column *column)
{
    return (int)(strlen(column->name) - strlen("_bits"));
}

invar_status invar_ledger_row_insert(invar_sql_stmt **out, invar_sql *sql, invar_ledger_table table)
{
    const invar_ledger_table_def *spec = &specs[table];
    text names = {.used = 0}, values = {.used = 0}, all = {.used = 0};

    text_add(&names, "run");
    text_add(&values, "?");
    for (int i = 0; spec->column[i].name; i++) {
        const invar_column *column = &spec->column[i];
        text_add(&names, ", %s", column->name);
        if (column->flags & INVAR_COLUMN_SERIES)
            text_add(&values, ", (SELECT series FROM series WHERE name = ?)");
        else if (column->flags & INVAR_COLUMN_MANIFEST)
            text_add(&values, ", (SELECT manifest FROM manifest WHERE hash = ?)");
        else
            text_add(&values, ", ?");
        if (column->flags & INVAR_COLUMN_HAS_READABLE_COPY) {
            text_add(&names, ", %.*s", twin_length(column), column->name);
            text_add(&values, ", ?");
        }
    }
    text_add(&all, "INSERT INTO %s(%s, sum) VALUES(%s, ?)", spec->name, names.data, values.data);
    return invar_sql_prepare(out, sql, all.data);
}

static double twin_of(int64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

invar_status invar_ledger_row_write(invar_sql_stmt *insert, invar_ledger_table table, int64_t run,
                                    const invar_ledger_value *row, int64_t sum)
{
    const invar_ledger_table_def *spec = &specs[table];
    invar_status status = invar_sql_bind(insert, 1, invar_ledger_value_int(run));
    int at = 2;

    for (int i = 0; spec->column[i].name && status == INVAR_OK; i++) {
        status = invar_sql_bind(insert, at++, row[i]);
        if (status == INVAR_OK && spec->column[i].flags & INVAR_COLUMN_HAS_READABLE_COPY)
            status = invar_sql_bind(insert, at++, // NaN binds NULL
                                    (invar_ledger_value){.type = INVAR_LEDGER_TYPE_REAL,
                                                         .real = twin_of(row[i].integer)});
    }
    if (status == INVAR_OK)
        status = invar_sql_bind(insert, at, invar_ledger_value_int(sum));
    return status == INVAR_OK ? invar_sql_run(insert) : status;
}

invar_status invar_ledger_row_select(invar_sql_stmt **out, invar_sql *sql, invar_ledger_table table,
                                     const int64_t *key, size_t count)
{
    const invar_ledger_table_def *spec = &specs[table];
    text t = {.used = 0};
    int position = 0, keys = 0;
    bool has_entry = false;

    text_add(&t, "SELECT ");
    for (int i = 0; spec->column[i].name; i++) {
        const invar_column *column = &spec->column[i];
        has_entry |= (column->flags & INVAR_COLUMN_ENTRY) != 0;
        if (column->flags & INVAR_COLUMN_SERIES)
            text_add(&t, "(SELECT name FROM series n WHERE n.series = t.series), ");
        else if (column->flags & INVAR_COLUMN_MANIFEST)
            text_add(&t, "(SELECT hash FROM manifest m WHERE m.manifest = t.manifest), ");
        else
            text_add(&t, "%s, ", column->name);
        if (column->flags & INVAR_COLUMN_HAS_READABLE_COPY)
            text_add(&t, "%.*s, ", twin_length(column), column->name);
    }
    text_add(&t, "sum, %s FROM %s t WHERE run = ?1",
             has_entry ? "entry"
                       : "(SELECT entry FROM step s WHERE s.run = t.run AND s.step = t.step AND "
                         "s.seg = t.seg)",
             spec->name);
    if (count > 1)
        text_add(&t, " AND step = ?2 AND seg = ?3");
    for (int i = 0; spec->column[i].name; i++) {
        position++;
        if (spec->column[i].flags & INVAR_COLUMN_KEY)
            text_add(&t, "%s%d", keys++ == 0 ? " ORDER BY " : ", ", position);
        if (spec->column[i].flags & INVAR_COLUMN_HAS_READABLE_COPY)
            position++;
    }
    return invar_sql_query(out, sql, t.data, key, count);
}

invar_ledger_value invar_ledger_value_column(invar_sql_stmt *stmt, int column)
{
    invar_ledger_value value = {.type = invar_sql_type(stmt, column)};

    switch (value.type) {
    case INVAR_LEDGER_TYPE_INT: value.integer = invar_sql_int(stmt, column); break;
    case INVAR_LEDGER_TYPE_REAL: value.real = invar_sql_real(stmt, column); break;
    case INVAR_LEDGER_TYPE_TEXT: value.data = invar_sql_text(stmt, column, &value.bytes); break;
    case INVAR_LEDGER_TYPE_BLOB: value.data = invar_sql_blob(stmt, column, &value.bytes); break;
    default: break;
    }
    return value;
}

/* True if a readable copy equals the value of its bits. NaN is stored as NULL, and -0 as 0. */
static bool twin_agrees(int64_t bits, invar_sql_stmt *stmt, int column)
{
    double value = twin_of(bits);

    if (value != value)
        return invar_sql_type(stmt, column) == INVAR_LEDGER_TYPE_NULL;
    return invar_sql_type(stmt, column) != INVAR_LEDGER_TYPE_NULL &&
           invar_sql_real(stmt, column) == value;
}

bool invar_ledger_row_next(invar_ledger_stored_row *out, invar_status *status,
                           invar_sql_stmt *select, invar_ledger_table table)
{
    const invar_ledger_table_def *spec = &specs[table];
    int at = 0;

    if (!invar_sql_next(status, select))
        return false;
    out->table = table;
    out->readable_copies_agree = true;
    for (int i = 0; spec->column[i].name; i++) {
        out->values[i] = invar_ledger_value_column(select, at++);
        if (spec->column[i].flags & INVAR_COLUMN_HAS_READABLE_COPY)
            out->readable_copies_agree =
                twin_agrees(out->values[i].integer, select, at++) && out->readable_copies_agree;
    }
    out->sum = invar_sql_int(select, at++);
    out->entry =
        invar_sql_type(select, at) == INVAR_LEDGER_TYPE_INT ? invar_sql_int(select, at) : -1;
    return true;
}

/* ---- for people ----------------------------------------------------------------------- */

/* Copies at most 48 bytes of a key, which may be hostile: others than ASCII become '?'. */
static void describe_text(char *out, size_t size, const invar_ledger_value *value)
{
    size_t used = 0;

    for (size_t i = 0; i < value->bytes && i < 48 && used + 2 < size; i++) {
        char c = ((const char *)value->data)[i];
        out[used++] = c >= ' ' && c < 0x7f ? c : '?';
    }
    out[used] = '\0';
}

void invar_ledger_row_describe(char *out, size_t size, invar_ledger_table table,
                               const invar_ledger_value *row)
{
    const invar_ledger_table_def *spec = &specs[table];
    char word[64];
    int used = snprintf(out, size, "%s (", spec->name);
    const char *comma = "";

    for (int i = 0; spec->column[i].name && used >= 0 && (size_t)used < size; i++) {
        if (!(spec->column[i].flags & INVAR_COLUMN_KEY))
            continue;
        if (row[i].type == INVAR_LEDGER_TYPE_TEXT)
            describe_text(word, sizeof word, &row[i]);
        else if (row[i].type == INVAR_LEDGER_TYPE_INT)
            snprintf(word, sizeof word, "%" PRId64, row[i].integer);
        else
            snprintf(word, sizeof word, "?");
        used +=
            snprintf(out + used, size - (size_t)used, "%s%s %s", comma, spec->column[i].name, word);
        comma = ", ";
    }
    if (used >= 0 && (size_t)used < size)
        snprintf(out + used, size - (size_t)used, ")");
}

invar_status invar_ledger_row_check(const invar_ledger_stored_row *row, const char *path)
{
    char name[INVAR_LEDGER_NAME_BYTES + 200];

    if (invar_ledger_row_sum(row->table, row->values) == row->sum)
        return INVAR_OK;
    invar_ledger_row_describe(name, sizeof name, row->table, row->values);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "ledger %.1000s: the values of %s do not give its sum: the file is damaged; "
                      "restore it from a copy (invar ledger verify lists the damage)",
                      path, name);
}
