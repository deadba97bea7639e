/*
 * seal.c - seals of runs: computes, stores and checks the line that pins the first entries of a
 * run.
 *
 * The sums and chains of a ledger (XXH3) show accidental damage. A seal also has a SHA-256, so a
 * line that is kept elsewhere also reveals a forgery. A seal covers the entries before it and
 * nothing later, so it stays true when the run continues or is imported into another ledger.
 *
 * Invariants: L10 (docs/ledger.md)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/seal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "ledger/manifest.h"
#include "ledger/sha256.h"

#include "base/invar_banned.h"

/* ---- computing ------------------------------------------------------------------------------- */

static void feed_sha256(void *payload, const void *data, size_t bytes)
{
    invar_sha256_update(payload, data, bytes);
}

/* Feeds all columns of all rows of a statement, with ?1 = run and ?2 = entries. */
static invar_status feed_rows(invar_sha256 *sha, invar_ledger *ledger, const char *text,
                              int64_t run, int64_t entries)
{
    invar_sql_stmt *stmt;
    invar_status status = INVAR_SQL_QUERY(&stmt, ledger->sql, text, run, entries);

    while (invar_sql_next(&status, stmt))
        for (int i = 0; i < invar_sql_columns(stmt); i++) {
            invar_ledger_value value = invar_ledger_value_column(stmt, i);
            invar_ledger_value_feed(feed_sha256, sha, &value);
        }
    return invar_sql_end(stmt, status);
}

static invar_status feed_table(invar_sha256 *sha, invar_ledger *ledger, invar_ledger_table table,
                               int64_t run, int64_t entries)
{
    invar_ledger_stored_row found;
    invar_sql_stmt *stmt;
    invar_status status = INVAR_LEDGER_ROW_SELECT(&stmt, ledger->sql, table, run);

    while (invar_ledger_row_next(&found, &status, stmt, table))
        if (found.entry < entries)
            invar_ledger_row_canonical(table, found.values, feed_sha256, sha);
    return invar_sql_end(stmt, status);
}

static const char entry_rows[] = "SELECT n, kind, ns, rows, total, chain FROM entry "
                                 "WHERE run = ?1 AND n < ?2 ORDER BY n";

static const char point_rows[] =
    "SELECT " INVAR_MANIFEST_POINT_NAMES " FROM manifest m JOIN point p USING(manifest) "
    "WHERE m.manifest IN (SELECT DISTINCT d.manifest FROM digest d JOIN step s USING(run, step, "
    "seg) WHERE d.run = ?1 AND s.entry < ?2) ORDER BY m.hash, p.ord";

static invar_status check_not_pruned(invar_ledger *ledger, int64_t run)
{
    int64_t pruned;

    INVAR_TRY(invar_sql_query_int(&pruned, ledger->sql,
                                  "SELECT count(*) FROM pruned WHERE run = ?1", run));
    if (pruned > 0)
        return INVAR_FAIL(
            INVAR_E_STATE, 0,
            "ledger %.1000s: rows were left out of this copy, so no seal of run %" PRId64
            " can be computed; use the original",
            invar_sql_path(ledger->sql), run);
    return INVAR_OK;
}

invar_status invar_seal_integrity(invar_digest *out, invar_ledger *ledger, int64_t run, int64_t n)
{
    invar_sql_stmt *stmt;
    invar_status status = INVAR_SQL_QUERY(
        &stmt, ledger->sql, "SELECT chain FROM entry WHERE run = ?1 AND n = ?2", run, n);
    bool row = invar_sql_next(&status, stmt);

    if (status == INVAR_OK && (!row || !invar_sql_digest(out, stmt, 0)))
        status =
            INVAR_FAIL(INVAR_E_CORRUPT, 0, "ledger %.1000s: run %" PRId64 " has no entry %" PRId64,
                       invar_sql_path(ledger->sql), run, n);
    return invar_sql_end(stmt, status);
}

static invar_status compute_seal(invar_seal *out, invar_ledger *ledger, int64_t run,
                                 int64_t entries)
{
    invar_sha256 sha;

    INVAR_TRY(check_not_pruned(ledger, run));
    out->entries = entries;
    INVAR_TRY(invar_content_until(&out->content, ledger, run, entries));
    INVAR_TRY(invar_seal_integrity(&out->integrity, ledger, run, entries - 1));
    invar_sha256_init(&sha);
    INVAR_TRY(feed_rows(&sha, ledger, entry_rows, run, entries));
    for (int table = 0; table < INVAR_LEDGER_TABLE_COUNT; table++)
        INVAR_TRY(feed_table(&sha, ledger, (invar_ledger_table)table, run, entries));
    INVAR_TRY(feed_rows(&sha, ledger, point_rows, run, entries));
    invar_sha256_final(out->sha256, &sha);
    return INVAR_OK;
}

invar_status invar_seal_compute(invar_seal *out, invar_ledger *ledger, int64_t run, int64_t entries)
{
    invar_status status;
    bool began;

    INVAR_TRY(invar_ledger_snapshot(&began, ledger));
    status = compute_seal(out, ledger, run, entries);
    invar_ledger_snapshot_end(ledger, began);
    return status;
}

/* ---- the line -------------------------------------------------------------------------------- */

static void print_seal(char out[INVAR_LEDGER_SEAL_SIZE], const char *uuid, const invar_seal *seal)
{
    char content[INVAR_DIGEST_HEX_SIZE], integrity[INVAR_DIGEST_HEX_SIZE];
    char sha256[INVAR_SHA256_HEX_SIZE];

    invar_digest_format(content, &seal->content);
    invar_digest_format(integrity, &seal->integrity);
    invar_sha256_format(sha256, seal->sha256);
    snprintf(out, INVAR_LEDGER_SEAL_SIZE, "invar-seal 1 %s %" PRId64 " %s %s %s", uuid,
             seal->entries, content, integrity, sha256);
}

/*
 * Records the seal as one more entry of the run, which need not be the run that is being written.
 */
static invar_status store_seal(invar_ledger *ledger, const invar_ledger_summary *run,
                               const invar_seal *seal)
{
    invar_ledger_position before = ledger->position, next;
    invar_status status;

    INVAR_TRY(invar_ledger_begin_transaction(ledger, "seal", INVAR_DURABILITY_POWER));
    if (ledger->position.run != run->run) {
        ledger->position = (invar_ledger_position){
            .run = run->run, .entry = run->entries, .entry_chain = run->integrity};
    }
    next = ledger->position;
    status = invar_ledger_add(
        ledger, INVAR_LEDGER_TABLE_SEAL,
        (invar_ledger_row_values){invar_ledger_value_int(ledger->position.entry),
                                  invar_ledger_value_digest(&seal->content),
                                  invar_ledger_value_digest(&seal->integrity),
                                  invar_ledger_value_blob(seal->sha256, INVAR_SEAL_BYTES)});
    status = invar_ledger_commit(ledger, status, &next);
    if (status != INVAR_OK || before.run != run->run)
        ledger->position = before;
    return status;
}

invar_status invar_ledger_seal(char out[INVAR_LEDGER_SEAL_SIZE], invar_ledger *ledger, int64_t run)
{
    invar_ledger_summary summary;
    invar_seal seal;
    invar_status status;
    bool began;

    INVAR_TRY(invar_ledger_snapshot(&began, ledger));
    status = invar_ledger_find_number(&summary, ledger, run);
    if (status == INVAR_OK)
        status = invar_seal_compute(&seal, ledger, run, summary.entries);
    invar_ledger_snapshot_end(ledger, began);
    if (status == INVAR_OK && ledger->lock >= 0)
        status = store_seal(ledger, &summary, &seal);
    if (status == INVAR_OK)
        print_seal(out, summary.uuid, &seal);
    return status;
}

/* Parses the uuid and the number of entries; everything else is compared as text. */
static invar_status parse_seal(char uuid[INVAR_LEDGER_UUID_SIZE], int64_t *entries_out,
                               const char *line)
{
    static const char head[] = "invar-seal 1 ";
    char quote[INVAR_TEXT_QUOTE_SIZE], *end;
    const char *at = line + sizeof head - 1;
    size_t digits;

    if (strncmp(line, head, sizeof head - 1) == 0) {
        digits = strspn(at, "0123456789abcdef");
        if (digits == INVAR_LEDGER_UUID_SIZE - 1 && at[digits] == ' ' && at[digits + 1] >= '1' &&
            at[digits + 1] <= '9') {
            memcpy(uuid, at, digits);
            uuid[digits] = '\0';
            *entries_out = strtoll(at + digits + 1, &end, 10);
            if (*end == ' ')
                return INVAR_OK;
        }
    }
    invar_text_quote(quote, sizeof quote, line, strlen(line));
    return INVAR_FAIL(INVAR_E_INVALID, 0, "not a seal, \"invar-seal 1 UUID ...\": \"%s\"", quote);
}

static invar_status compare_seal(invar_ledger *ledger, const char *line, size_t length)
{
    char uuid[INVAR_LEDGER_UUID_SIZE], now[INVAR_LEDGER_SEAL_SIZE];
    invar_ledger_summary summary;
    invar_status status;
    invar_seal seal;
    int64_t entries;

    INVAR_TRY(parse_seal(uuid, &entries, line));
    status = invar_ledger_find(&summary, ledger, uuid);
    if (status == INVAR_E_NOTFOUND)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0, "ledger %.1000s: the sealed run %.32s is not in it",
                          invar_sql_path(ledger->sql), uuid);
    INVAR_TRY(status);
    if (entries > summary.entries)
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "ledger %.1000s: the sealed run had %" PRId64
                          " entries, this one has %" PRId64 ": its end is missing",
                          invar_sql_path(ledger->sql), entries, summary.entries);
    INVAR_TRY(invar_seal_compute(&seal, ledger, summary.run, entries));
    print_seal(now, uuid, &seal);
    if (strlen(now) != length || memcmp(now, line, length) != 0)
        return INVAR_FAIL(
            INVAR_E_MISMATCH, 0,
            "ledger %.1000s: run %.32s is not what the seal says; invar ledger verify "
            "may name the row",
            invar_sql_path(ledger->sql), uuid);
    return INVAR_OK;
}

invar_status invar_ledger_seal_check(invar_ledger *ledger, const char *line)
{
    size_t length = strlen(line);
    invar_status status;
    bool began;

    while (length > 0 && strchr("\r\n ", line[length - 1]))
        length--;
    INVAR_TRY(invar_ledger_snapshot(&began, ledger));
    status = compare_seal(ledger, line, length);
    invar_ledger_snapshot_end(ledger, began);
    return status;
}
